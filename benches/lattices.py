#!/usr/bin/env python3
"""Errors of expansions of one box, for ADR 14: densities on the surface of a box and in its volume, and polynomials on
equispaced and Chebyshev nodes.

    benches/lattices.py            needs numpy

A box of side 1 holds 200 sources; boxes of the same side at four offsets hold 200 targets each. A row has the ℓ2 error
of the sums of all targets through M2L, for p nodes along each axis. The cutoff of singular values is the best of 13,
as a plan would measure it.
"""
import itertools

import numpy as np

KERNELS = {
    "1/r": lambda r: 1 / r,
    "r": lambda r: r,
    "1/r^2": lambda r: 1 / r**2,
    "Matern 3/2, a = 1": lambda r: (1 + r) * np.exp(-r),
    "Matern 3/2, a = 8": lambda r: (1 + 8 * r) * np.exp(-8 * r),
    "cos(5r)/r": lambda r: np.cos(5 * r) / r,
    "sqrt(r^2 + 0.05^2)": lambda r: np.sqrt(r * r + 0.0025),
    "exp(-(r/0.4)^2)": lambda r: np.exp(-((r / 0.4) ** 2)),
}
OFFSETS = np.array([[2, 0, 0], [2, 1, 1], [3, 3, 3], [2, 2, 0]])
CUTOFFS = [10.0**-k for k in range(5, 18)]
SOURCES = 200


def distances(a, b):
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))


def lattice(p, volume):
    """Inner and outer points: shells from 1.5 to 2.5 sides from the centre, the boundary of the box on the nearest."""
    grid = np.array(list(itertools.product(range(p), repeat=3)))
    unit = (2 * grid - (p - 1)) / (p - 1)
    size = abs(unit).max(1)
    kept = size > 0 if volume else size == 1
    unit, size = unit[kept], size[kept][:, None]
    return unit * 1.01 / 2, unit / size * (2.99 / 2 + 1 - size)


def pseudo_inverse(svd, cutoff):
    u, s, v = svd
    kept = s > cutoff * s[0]
    return (v[kept].T / s[kept]) @ u[:, kept].T


def error(sums, exact):
    return np.linalg.norm(np.array(sums) - np.array(exact)) / np.linalg.norm(exact)


def densities(f, p, volume, sources, charges, targets, exact):
    inner, outer = lattice(p, volume)
    upward = np.linalg.svd(f(distances(outer, inner)), full_matrices=False)
    downward = np.linalg.svd(f(distances(inner, outer)), full_matrices=False)
    check = f(distances(outer, sources)) @ charges
    best = np.inf
    for cutoff in CUTOFFS:
        density = pseudo_inverse(upward, cutoff) @ check
        local = pseudo_inverse(downward, cutoff)
        sums = [
            f(distances(t, outer)) @ (local @ (f(distances(inner + o, inner)) @ density))
            for t, o in zip(targets, OFFSETS)
        ]
        best = min(best, error(sums, exact))
    return best


def polynomials(f, nodes, sources, charges, targets, exact):
    weights = [1 / np.prod([z - y for y in nodes if y != z]) for z in nodes]

    def basis(points):
        axes = []
        for x in points.T:
            d = x[:, None] - nodes[None]
            axes.append(np.prod(d, 1)[:, None] * weights / d)
        return np.einsum("ni,nj,nk->nijk", *axes).reshape(len(points), -1)

    grid = np.array(list(itertools.product(nodes, repeat=3)))
    moments = basis(sources).T @ charges
    sums = [basis(t) @ (f(distances(grid + o, grid)) @ moments) for t, o in zip(targets, OFFSETS)]
    return error(sums, exact)


def main():
    print(f"{'kernel':<20} {'p':>2} {'surface':>9} {'equispaced':>11} {'Chebyshev':>10} {'volume':>9}")
    for name, f in KERNELS.items():
        for p in (4, 6, 8):
            random = np.random.default_rng(1)
            sources, charges = random.random((SOURCES, 3)) - 0.5, random.random(SOURCES) - 0.3
            targets = [random.random((SOURCES, 3)) - 0.5 for _ in OFFSETS]
            exact = [f(distances(t + o, sources)) @ charges for t, o in zip(targets, OFFSETS)]
            case = (sources, charges, targets, exact)
            equispaced = np.linspace(-0.5, 0.5, p)
            chebyshev = np.cos(np.pi * (2 * np.arange(p) + 1) / (2 * p)) / 2
            row = [densities(f, p, False, *case), polynomials(f, equispaced, *case)]
            row += [polynomials(f, chebyshev, *case), densities(f, p, True, *case)]
            print(f"{name:<20} {p:>2} {row[0]:>9.1e} {row[1]:>11.1e} {row[2]:>10.1e} {row[3]:>9.1e}")


if __name__ == "__main__":
    main()
