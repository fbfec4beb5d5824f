"""Arrays of the caller: checked, and brought into the form that the library takes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _device


def refuse_device(array: Any, name: str) -> None:
    """An array in the memory of a GPU is refused: a silent copy would hide two trips over the bus."""
    if _device.kind(array) is not None:
        raise TypeError(f"{name} is in the memory of a GPU, and the points of the plan, or its processor, are not: pass "
                        "points on the GPU and backend='cuda', or copy the array to the host first")


def numbers(array: Any, name: str, *, keep_f32: bool = False) -> NDArray[Any]:
    """`array` as a C-contiguous, aligned array of f64 (or f32, if it is f32 and `keep_f32`), copied only if need be."""
    refuse_device(array, name)
    refuse_masked(array, name)
    array = np.asarray(array)
    if array.dtype.kind == "c":
        raise TypeError(f"{name} is complex; this kernel takes real numbers")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has type {array.dtype}, expected real numbers")
    single = keep_f32 and array.dtype.itemsize == 4 and array.dtype.kind == "f"
    return np.require(array, np.float32 if single else np.float64, ["C", "A"])


def refuse_masked(array: Any, name: str) -> None:
    """Refuses an array with masked values, which NumPy would use."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError(f"{name} has masked values: pass {name}.filled(…), or leave them out")


def count(value: Any, name: str) -> int:
    """A whole number that is not negative."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {type(value).__name__}, expected a whole number") from None
    if number < 0:
        raise ValueError(f"{name} = {number}: must not be negative")
    return number


def points(array: Any, name: str, dim: int) -> NDArray[np.float64]:
    """Points of shape (N, dim), or (dim,) for one point."""
    checked: NDArray[np.float64] = numbers(array, name)
    if checked.ndim == 1 and checked.size == dim:
        checked = checked.reshape(1, dim)
    if checked.ndim == 2 and checked.shape[1] == dim:
        return checked
    hint = ""
    if checked.ndim == 2 and checked.shape[0] == dim:
        hint = f"; points are rows here, so pass {name}.T"
    raise ValueError(f"{name} has shape {checked.shape}, expected (N, {dim}){hint}")


def indices(array: Any, n: int) -> NDArray[np.int64]:
    """Indices of sources."""
    refuse_masked(array, "subset")
    array = np.asarray(array)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"subset has shape {array.shape} and type {array.dtype}, expected whole numbers in one row")
    checked: NDArray[np.int64] = np.require(array, np.int64, ["C", "A"])
    outside = checked[(checked < 0) | (checked >= n)]
    if outside.size:
        raise ValueError(f"subset has the index {outside[0]}, but there are {n} sources")
    return checked


def strengths(array: Any, n: int, components: int, sets: bool | None) -> tuple[NDArray[Any], int | None]:
    """Strengths in one row, and the number of sets (None for one set without an axis of its own).

    One set has shape (N,) or (N, s), where s is the number of strengths of a source; several sets have one more axis in
    front. `sets` says whether that axis is there; None tells it by the number of axes.
    """
    array = numbers(array, "strengths", keep_f32=True)
    return array.reshape(-1), sets_of(array.shape, n, components, sets)


def sets_of(shape: tuple[int, ...], n: int, components: int, sets: bool | None) -> int | None:
    """The number of sets in strengths of this shape; None for one set without an axis of its own."""
    one = [(n,), (n, 1)] if components == 1 else [(n, components)]
    several = sets
    if several is None:
        several = len(shape) == 3 or (len(shape) == 2 and shape not in one and components == 1)
    if not several:
        if shape in one or (n == 1 and components > 1 and shape == (components,)):
            return None
        raise ValueError(f"strengths has shape {shape}, expected {' or '.join(map(str, one))}")
    if len(shape) >= 1 and shape[1:] in one:
        return shape[0]
    rows = " or ".join(f"(k, {', '.join(map(str, each))})" for each in one)
    raise ValueError(f"strengths has shape {shape}, expected {' or '.join(map(str, one))}, or {rows} for k sets")
