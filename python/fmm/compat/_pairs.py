"""Direct sums over all pairs with NumPy, from the derivatives of the Green's functions. They share no code with the fast sums.

T0 is a Green's function of r = target - source, T1, T2, T3 are its derivatives with respect to the target, as dicts
from sorted indices to arrays (targets, sources). A charge c has the potential c T0; a dipole p has -p_k T1_k, by the
derivative with respect to the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Pairs that are held in memory at once.
BLOCK = 200_000

Tensors = list[dict[tuple[int, ...], NDArray[Any]]]
#: From the components of r and 1/|r| (0 for a pair that is left out) to T0, T1, …
Green = Callable[[list[NDArray[Any]], NDArray[Any], int], Tensors]


def blocks(
    sources: NDArray[np.float64], targets: NDArray[np.float64], thresh: float
) -> Iterator[tuple[slice, list[NDArray[np.float64]], NDArray[np.float64]]]:
    """Some of the targets (points as rows), the components of r for each pair, and 1/|r|, which is 0 for |r| <= thresh."""
    step = max(1, BLOCK // max(1, len(sources)))
    for first in range(0, len(targets), step):
        chosen = slice(first, min(first + step, len(targets)))
        d = [targets[chosen, None, k] - sources[None, :, k] for k in range(sources.shape[1])]
        r = np.sqrt(sum(x * x for x in d))
        near = r <= thresh
        inverse = 1.0 / np.where(near, 1.0, r)
        inverse[near] = 0.0
        yield chosen, d, inverse


def _pairs(dim: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(dim) for j in range(i, dim)]


def _delta(i: int, j: int) -> float:
    return 1.0 if i == j else 0.0


def _triples(
    d: list[NDArray[Any]], first: NDArray[Any], second: NDArray[Any]
) -> dict[tuple[int, ...], NDArray[Any]]:
    """first r_i r_j r_k + second (delta_ij r_k + delta_ik r_j + delta_jk r_i)."""
    n = len(d)
    all = [(i, j, k) for i in range(n) for j in range(i, n) for k in range(j, n)]
    return {
        (i, j, k): first * d[i] * d[j] * d[k]
        + second * (_delta(i, j) * d[k] + _delta(i, k) * d[j] + _delta(j, k) * d[i])
        for i, j, k in all
    }


def newton(d: list[NDArray[Any]], inverse: NDArray[Any], order: int) -> Tensors:
    """1/(4 pi r)."""
    scaled = inverse / (4 * np.pi)
    square = inverse * inverse
    cube = scaled * square
    tensors: Tensors = [{(): scaled}, {(i,): -cube * d[i] for i in range(3)}]
    if order >= 2:
        tensors.append({(i, j): cube * (3 * square * d[i] * d[j] - _delta(i, j)) for i, j in _pairs(3)})
    if order >= 3:
        tensors.append(_triples(d, -15 * cube * square * square, 3 * cube * square))
    return tensors


def logarithm(d: list[NDArray[Any]], inverse: NDArray[Any], order: int) -> Tensors:
    """log r in the plane."""
    square = inverse * inverse
    tensors: Tensors = [{(): -np.log(np.where(inverse > 0, inverse, 1.0))}, {(i,): square * d[i] for i in range(2)}]
    if order >= 2:
        tensors.append({(i, j): square * (_delta(i, j) - 2 * square * d[i] * d[j]) for i, j in _pairs(2)})
    if order >= 3:
        tensors.append(_triples(d, 8 * square**3, -2 * square**2))
    return tensors


def helmholtz(zk: complex) -> Green:
    """exp(i k r)/(4 pi r)."""

    def green(d: list[NDArray[Any]], inverse: NDArray[Any], order: int) -> Tensors:
        r = 1.0 / np.where(inverse > 0, inverse, 1.0)
        f = np.exp(1j * zk * r) * inverse / (4 * np.pi)
        slope = (1j * zk - inverse) * f * inverse  # f'/r
        bend = (((1j * zk - inverse) ** 2 + inverse**2) * f - slope) * inverse**2  # (f'' - f'/r)/r^2
        return [
            {(): f},
            {(i,): slope * d[i] for i in range(3)},
            {(i, j): bend * d[i] * d[j] + _delta(i, j) * slope for i, j in _pairs(3)},
        ]

    return green


def sums(
    green: Green,
    sources: NDArray[np.float64],
    targets: NDArray[np.float64],
    charges: NDArray[Any] | None,
    dipoles: NDArray[Any] | None,
    level: int,
    thresh: float,
    kind: type[Any],
) -> list[NDArray[Any]]:
    """Potential (nd, 1, M), and for level 2, 3 the gradient (nd, d, M) and the second derivatives (nd, d (d + 1)/2, M).

    ``charges`` is (nd, n), ``dipoles`` (nd, d, n). Second derivatives are in the order xx, yy, zz, xy, xz, yz, in the
    plane xx, xy, yy.
    """
    dim = sources.shape[1]
    given = charges if charges is not None else dipoles
    assert given is not None
    second = sorted(_pairs(dim), key=lambda pair: pair[0] != pair[1]) if dim == 3 else _pairs(dim)
    entries: list[list[tuple[int, ...]]] = [[()], [(i,) for i in range(dim)], list(second)]
    entries = entries[:level]
    out = [np.zeros((len(given), len(names), len(targets)), kind) for names in entries]
    order = level - 1 if dipoles is None else level
    for chosen, d, inverse in blocks(sources, targets, thresh):
        tensors = green(d, inverse, order)
        for rank, names in enumerate(entries):
            for row, name in enumerate(names):
                if charges is not None:
                    out[rank][:, row, chosen] += charges @ tensors[rank][name].T
                if dipoles is not None:
                    for k in range(dim):
                        derivative = tensors[rank + 1][tuple(sorted((*name, k)))]
                        out[rank][:, row, chosen] -= dipoles[:, k] @ derivative.T
    return out


def cauchy(
    sources: NDArray[np.float64],
    targets: NDArray[np.float64],
    charges: NDArray[Any] | None,
    dipoles: NDArray[Any] | None,
    level: int,
    thresh: float,
) -> list[NDArray[Any]]:
    """Sums of c log|z - w| + d/(z - w) and of its first and second derivatives by z, each (nd, M)."""
    given = charges if charges is not None else dipoles
    assert given is not None
    out = [np.zeros((len(given), len(targets)), complex) for _ in range(level)]
    for chosen, (x, y), inverse in blocks(sources, targets, thresh):
        one = (x - 1j * y) * inverse**2  # 1/(z - w)
        logs = -np.log(np.where(inverse > 0, inverse, 1.0))
        of_charges = [logs, one, -(one**2)]
        of_dipoles = [one, -(one**2), 2 * one**3]
        for rank in range(level):
            if charges is not None:
                out[rank][:, chosen] += charges @ of_charges[rank].T
            if dipoles is not None:
                out[rank][:, chosen] += dipoles @ of_dipoles[rank].T
    return out


def stokes(
    sources: NDArray[np.float64],
    targets: NDArray[np.float64],
    forces: NDArray[np.float64] | None,
    stresses: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    level: int,
    thresh: float,
) -> list[NDArray[np.float64]]:
    """Velocity u (nd, 3, M), and for level 2, 3 the pressure (nd, M) and grad[d, j, i] = du_i/dx_j (nd, 3, 3, M).

    A force f has u = (f/r + r (r.f)/r^3)/(8 pi) and p = r.f/(4 pi r^3); stresses (m, n) have
    u = 3 r (m.r)(n.r)/(4 pi r^5) and p = (3 (m.r)(n.r)/r^5 - m.n/r^3)/(2 pi).
    """
    given = forces if forces is not None else (stresses or [None])[0]
    assert given is not None
    nd, m = len(given), len(targets)
    u, p, g = np.zeros((nd, 3, m)), np.zeros((nd, m)), np.zeros((nd, 3, 3, m))
    for chosen, d, inverse in blocks(sources, targets, thresh):
        cube = inverse**3
        fifth = cube * inverse**2
        for s in range(nd):
            if forces is not None:
                f = forces[s]
                along = sum(d[k] * f[k] for k in range(3))
                p[s, chosen] += (along * cube).sum(axis=1) / (4 * np.pi)
                for i in range(3):
                    u[s, i, chosen] += (f[i] * inverse + d[i] * along * cube).sum(axis=1) / (8 * np.pi)
                    for j in range(3) if level >= 3 else ():
                        slope = (
                            -f[i] * d[j] * cube
                            + (_delta(i, j) * along + d[i] * f[j]) * cube
                            - 3 * d[i] * d[j] * along * fifth
                        )
                        g[s, j, i, chosen] += slope.sum(axis=1) / (8 * np.pi)
            if stresses is not None:
                a, b = stresses[0][s], stresses[1][s]
                dot = (a * b).sum(axis=0)
                first, second = sum(d[k] * a[k] for k in range(3)), sum(d[k] * b[k] for k in range(3))
                both = first * second
                p[s, chosen] += (3 * both * fifth - dot * cube).sum(axis=1) / (2 * np.pi)
                for i in range(3):
                    u[s, i, chosen] += (d[i] * both * fifth).sum(axis=1) * 3 / (4 * np.pi)
                    for j in range(3) if level >= 3 else ():
                        slope = (
                            _delta(i, j) * both * fifth
                            + d[i] * (a[j] * second + b[j] * first) * fifth
                            - 5 * d[i] * d[j] * both * fifth * inverse**2
                        )
                        g[s, j, i, chosen] += slope.sum(axis=1) * 3 / (4 * np.pi)
    return [u, p, g][:level]
