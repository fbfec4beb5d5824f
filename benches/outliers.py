#!/usr/bin/env python3
"""Tolerances on clouds in which few targets have nearly all of the error: tight clusters with a few points beside them.

    python3 benches/outliers.py --binary target/release/fmm --seconds 200

Draws clusters at the points of a lattice (kind 0: normal; 1: Student t with 2 degrees of freedom) or at random places
(2: Cauchy), sums potential and gradient of Laplace by a method at random, and compares with direct sums at all targets.
Prints each sum whose relative l2 error exceeds the tolerance, and at the end how many did. Needs numpy.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np


def cloud(g):
    """Points, and what tells clouds apart."""
    n = int(g.choice([8000, 12000, 20000]))
    size = 10.0 ** -int(g.integers(3, 13))
    k = int(g.choice([2, 4, 8]))
    kind = int(g.integers(0, 3))
    if kind == 0:
        points = g.integers(0, k + 1, (n, 3)) / k + g.normal(size=(n, 3)) * size
    elif kind == 1:
        points = g.integers(0, k + 1, (n, 3)) / k + g.standard_t(2, size=(n, 3)) * size
    else:
        centres = g.random((k**3, 3))[g.integers(0, k**3, n)]
        points = centres + g.standard_cauchy(size=(n, 3)).clip(-1 / size, 1 / size) * size
    return points, (kind, n, k, size)


def main():
    """Draws clouds until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/fmm")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--first", type=int, default=9000, help="seed before the first cloud")
    parser.add_argument("--threads", default="1")
    args = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name)
    sources, strengths, exact, found = (str(path / f) for f in ("s.npy", "q.npy", "exact.npz", "found.npz"))

    def run(*more):
        base = [args.binary, "run", "--sources", sources, "--strengths", strengths, "--threads", args.threads]
        return subprocess.run([*base, "--outputs", "potential,gradient", *more], capture_output=True, text=True)

    start, seed, sums, refused, broken = time.time(), args.first, 0, 0, 0
    while time.time() - start < args.seconds:
        seed += 1
        g = np.random.default_rng(seed)
        points, what = cloud(g)
        np.save(sources, points)
        np.save(strengths, g.random(len(points)) if seed % 2 else g.normal(size=len(points)))
        assert run("--method", "direct", "--out", exact).returncode == 0
        right = np.load(exact)
        for tolerance in (1e-4, 1e-6, 1e-9):
            method = str(g.choice(["auto", "auto", "spherical", "equivalent", "treecode", "interpolation"]))
            fast = run("--method", method, "--tolerance", str(tolerance), "--out", found, "--json")
            if fast.returncode:
                refused += 1
                continue
            report, sums_found = json.loads(fast.stdout), np.load(found)
            errors = []
            for output in ("potential", "gradient"):
                unit = np.abs(right[output]).max()
                norm = np.linalg.norm(right[output] / unit)
                errors.append(float(np.linalg.norm(sums_found[output] / unit - right[output] / unit) / norm))
            sums += 1
            if not max(errors) <= tolerance:
                broken += 1
                bounds = [output["error"] for output in (report["plan"]["probe"] or {}).get("outputs", [])]
                print(seed, *what, method, report["method"], report["order"], tolerance, errors, bounds, flush=True)
    print(f"{broken} of {sums} sums exceed their tolerance, {refused} were refused")


if __name__ == "__main__":
    main()
