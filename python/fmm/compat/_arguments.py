"""Arguments in the layout of fmm3dpy and fmm2dpy: points (d, n), strengths (n,) or (nd, n), vectors (d, n) or (nd, d, n).

Wrong shapes raise AssertionError and other types are cast, as there. A complex number that is cast to a real one loses
its imaginary part with a ComplexWarning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NOTHING = "Nothing to compute, set either pg or pgt to non-zero"


def require(condition: bool, text: str) -> None:
    """An AssertionError unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def count(points: Any, dim: int, name: str) -> int:
    """The number of points of an array (d, n), or (d,) for one point."""
    require(points.shape[0] == dim, f"The first dimension of {name} must be {dim}")
    return 1 if points.ndim == 1 else int(points.shape[1])


def rows(points: Any, dim: int) -> NDArray[np.float64]:
    """Points as rows (n, d)."""
    return np.ascontiguousarray(np.asarray(points, np.float64).reshape(dim, -1).T)


def densities(values: Any, nd: int, n: int, kind: type[Any], name: str) -> NDArray[Any] | None:
    """Scalar strengths (nd, n), or None."""
    if values is None:
        return None
    if nd == 1:
        require(values.shape[0] == n, f"{name} must be same length as second dimension of sources")
    else:
        require(
            values.shape[:2] == (nd, n),
            f"{name} must be of shape [nd,ns] where nd is number of densities, and ns is number of sources",
        )
    return np.asarray(values, kind).reshape(nd, n)


def vectors(values: Any, nd: int, n: int, dim: int, kind: type[Any], name: str) -> NDArray[Any] | None:
    """Vector strengths (nd, d, n), or None."""
    if values is None:
        return None
    if nd == 1:
        fits = values.shape[0] == dim and (n == 1 or values.shape[1:2] == (n,))
        require(fits, f"{name} must be of shape [{dim},number of sources]")
    else:
        fits = values.shape[:3] == (nd, dim, n)
        text = f"must be of shape [nd,{dim},ns] where nd is number of densities, and ns is number of sources"
        require(fits, f"{name} {text}")
    return np.asarray(values, kind).reshape(nd, dim, n)


def places(pg: int, pgt: int, targets: Any, levels: int) -> list[tuple[str, int]]:
    """Where sums are wanted ("" at the sources, "targ" at the targets), and their level: 1, 2, …, ``levels``."""
    known = range(1, levels + 1)
    if pg not in known:
        return [("targ", pgt)] if targets is not None and pgt in known else []
    if targets is None:
        return [("", pg)]
    text = "if output is requested at both sources and targets, then the same pg must be equal to pgt"
    require(pg == pgt, text)
    return [("", pg), ("targ", pgt)]


def columns(array: NDArray[Any], nd: int) -> NDArray[Any]:
    """Sums (nd, n, …) as (nd, …, n), or (…, n) for nd = 1, in Fortran order."""
    moved = np.moveaxis(array, 1, -1)
    return np.asfortranarray(moved[0] if nd == 1 else moved)


def together(ntest: int, out: Any, exact: Any, pg: int, pgt: int, *, real: bool = False) -> Any:
    """The relative l2 error of the outputs of all levels up to pg and pgt at the first ``ntest`` points.

    With ``real``, only the real part of a potential counts.
    """
    square = error = 0.0
    for place, level in (("", pg), ("targ", pgt)):
        for name in ("pot", "grad", "hess")[: max(level, 0)]:
            a = np.asarray(getattr(out, name + place))[..., :ntest].ravel()
            b = np.asarray(getattr(exact, name + place))[..., :ntest].ravel()
            if real and name == "pot":
                a, b = a.real, b.real
            square += float(np.linalg.norm(b)) ** 2
            error += float(np.linalg.norm(b - a)) ** 2
    return np.sqrt(error / square)
