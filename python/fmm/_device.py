"""Arrays in the memory of a GPU: of PyTorch, CuPy, JAX, and of any other library by ``__cuda_array_interface__`` or
DLPack. Nothing is copied, and results are arrays of the same kind.

Work runs on the current stream of PyTorch and CuPy, without waiting for it. JAX shows no stream: its arrays are waited
for, and so are the sums. Other libraries name the stream in their ``__cuda_array_interface__``, or make the default
stream wait by DLPack; their sums are waited for too.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _core

#: Device types of DLPack for memory that a GPU reads: CUDA, managed.
_ON_GPU = (2, 13)
#: The legacy default stream, by its number in DLPack.
_DEFAULT_STREAM = 1


class Memory(NamedTuple):
    """The memory of an array: strides are in numbers, None for rows without gaps."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    single: bool

    def part(self, k: int) -> Memory:
        """The k-th part along the first axis."""
        rest = self.shape[1:]
        step = math.prod(rest) if self.strides is None else self.strides[0]
        strides = None if self.strides is None else self.strides[1:]
        return Memory(self.address + k * step * (4 if self.single else 8), rest, strides, self.single)


def kind(array: Any) -> str | None:
    """The library of an array in the memory of a GPU: torch, cupy, jax or other. None for an array of the host."""
    if array is None or isinstance(array, (np.ndarray, list, tuple, float, int)):
        return None
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return "torch" if getattr(array, "is_cuda", False) else None
    if library == "cupy":
        return "cupy"
    if library in ("jax", "jaxlib"):
        devices = getattr(array, "devices", None)
        return "jax" if devices is not None and any(d.platform in ("gpu", "cuda") for d in devices()) else None
    if hasattr(array, "__cuda_array_interface__"):
        return "other"
    device = getattr(array, "__dlpack_device__", None)
    return "other" if device is not None and int(device()[0]) in _ON_GPU else None


def same_kind(there: str | None, array: Any, name: str, first: str) -> None:
    """An error for an array that is not where the array called `first` is."""
    found = kind(array)
    if found == there:
        return
    of = {None: "on the host", "other": "in the memory of a GPU"}
    place, wanted = (of.get(k, f"an array of {k} in the memory of a GPU") for k in (found, there))
    raise TypeError(f"{name} is {place}, but {first} is {wanted}: a plan does not mix the two, nor copies silently")


def memory(array: Any, name: str) -> tuple[Memory, Any]:
    """The memory of an array of f32 or f64 numbers on a GPU, and what keeps it alive."""
    library = kind(array)
    if library == "torch":
        torch = sys.modules["torch"]
        if array.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} has type {array.dtype}, expected float32 or float64")
        single = array.dtype == torch.float32
        return Memory(array.data_ptr(), tuple(array.shape), tuple(array.stride()), single), array
    if library == "jax":
        array.block_until_ready()
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return _from_dlpack(array, name)
    single = _is_single(interface["typestr"].lstrip("<="), name)
    size, strides = 4 if single else 8, interface.get("strides")
    if strides is not None:
        if any(stride % size for stride in strides):
            raise ValueError(f"{name} has strides {strides} bytes, which are no multiples of {size}")
        strides = tuple(stride // size for stride in strides)
    if interface.get("mask") is not None:
        raise TypeError(f"{name} has a mask")
    return Memory(int(interface["data"][0]), tuple(interface["shape"]), strides, single), array


def _is_single(dtype: str, name: str) -> bool:
    if dtype not in ("f4", "f8"):
        raise TypeError(f"{name} has type {dtype}, expected f4 or f8")
    return dtype == "f4"


def _from_dlpack(array: Any, name: str) -> tuple[Memory, Any]:
    try:
        capsule = array.__dlpack__(stream=_DEFAULT_STREAM, max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__(stream=_DEFAULT_STREAM)
    taken = _core.Taken(capsule)
    if taken.device[0] not in _ON_GPU:
        raise TypeError(f"{name} is on device type {taken.device[0]} of DLPack, not on a CUDA device")
    strides = None if taken.strides is None else tuple(taken.strides)
    return Memory(taken.address, tuple(taken.shape), strides, _is_single(taken.dtype, name)), taken


def stream(array: Any) -> int:
    """The stream of the caller, by its handle."""
    library = kind(array)
    if library == "jax":
        return 0
    if library == "torch":
        handle = sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    elif library == "cupy":
        handle = sys.modules["cupy"].cuda.get_current_stream().ptr
    else:
        handle = (getattr(array, "__cuda_array_interface__", None) or {}).get("stream") or 0
    if handle == 2:
        raise NotImplementedError("the default stream of a thread: a plan works on threads of its own; name a stream")
    return int(handle)


def waits(library: str) -> bool:
    """Whether the sums are waited for, because nothing else orders the work of this library after them."""
    return library in ("jax", "other")


def empty(library: str, shape: tuple[int, ...], single: bool, like: Any, device: int) -> Any:
    """An array for results, beside the array `like`."""
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.float32 if single else torch.float64, device=like.device)
    if library == "cupy":
        return sys.modules["cupy"].empty(shape, dtype=np.float32 if single else np.float64)
    return _core.DeviceArray.zeros(list(shape), single, device)


def finished(library: str, array: Any) -> Any:
    """A result as an array of the library of the caller. Sums may still be on their way into it, so JAX must not copy."""
    return sys.modules["jax"].dlpack.from_dlpack(array, copy=False) if library == "jax" else array


def on_host(array: Any, dtype: Any = np.float64) -> Any:
    """A copy on the host, for what is not computed on a GPU."""
    library = kind(array)
    if library is None:
        return np.asarray(array, dtype)
    if library == "torch":
        return array.detach().cpu().numpy().astype(dtype)
    if library == "cupy":
        return array.get().astype(dtype)
    if isinstance(array, _core.DeviceArray):
        return array.host().reshape(array.shape).astype(dtype)
    if library == "jax":
        return np.asarray(array).astype(dtype)
    raise TypeError(f"{type(array).__name__} is in the memory of a GPU; copy it to the host first")
