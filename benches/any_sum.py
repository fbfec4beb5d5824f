#!/usr/bin/env python3
"""Tolerances of sums drawn at random: kernel, parameters, cloud, targets, strengths, outputs, precision, method, ranks.

    python3 benches/any_sum.py --binary target/release/fmm --first 1 --seconds 200

Each seed is one request. The error is that of `--verify`: at all targets, or at 3000 random ones if there are more. Prints each
sum whose relative l2 error of an output exceeds the tolerance, each failure that is no refusal, and at the end how many
sums there were, by method. Needs numpy.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np

VERIFIED = 3000
# Seconds after which a request is given up.
LONGEST = 60
OUTPUTS = ["potential", "potential,gradient", "potential,gradient,hessian"]


def log_uniform(g, low, high):
    """A number whose logarithm is uniform."""
    return float(np.exp(g.uniform(np.log(low), np.log(high))))


def kernel(g):
    """Options of a kernel, its number of strengths, its dimension, its outputs, and whether there are harmonics."""
    number = f"{log_uniform(g, 0.03, 1):.4g}"
    space = [
        *[(["--kernel", "laplace", "--source", source], count, OUTPUTS, True)
          for source, count in (("charge", 1), ("dipole", 3), ("mixed", 4))],
        (["--kernel", "gravity", "--softening", f"{log_uniform(g, 1e-6, 1e-1):.4g}"], 1, OUTPUTS[:2], True),
        (["--kernel", "yukawa", "--kappa", f"{log_uniform(g, 0.1, 50):.4g}"], 1, OUTPUTS, False),
        (["--kernel", "stokes"], 3, OUTPUTS[:1], False),
        (["--kernel", "stokes", "--source", "stresslet"], 9, ["potential", "potential,pressure"], False),
        *[(["--kernel", name, "--set", f"{parameter}={number}"], 1, OUTPUTS[:2], False)
          for name, parameter in (("gaussian", "h"), ("exponential", "l"), ("matern32", "l"), ("matern52", "l"),
                                  ("multiquadric", "c"), ("inverse_multiquadric", "c"))],
        *[(["--kernel", name], 1, OUTPUTS[:2], False) for name in ("inverse_r2", "inverse_r4", "biharmonic", "thin_plate")],
        (["--kernel", "kelvin"], 3, OUTPUTS[:1], False),
        (["--kernel", "biot_savart"], 3, OUTPUTS[:1], False),
        (["--expression", "exp(-a*r)/r^1.5", "--set", f"a={number}"], 1, OUTPUTS[:2], False),
        (["--expression", "r/(1 + a*r^2)", "--set", f"a={number}"], 1, OUTPUTS[:1], False),
    ]
    plane = [
        *[(["--kernel", "laplace2d", "--source", source], count, OUTPUTS, False)
          for source, count in (("charge", 1), ("dipole", 2), ("mixed", 3))],
        (["--kernel", "yukawa2d", "--set", f"kappa={log_uniform(g, 0.1, 50):.4g}"], 1, OUTPUTS[:2], False),
        (["--kernel", "stokes2d"], 2, OUTPUTS[:1], False),
        (["--kernel", "gaussian", "--dim", "2", "--set", f"h={number}"], 1, OUTPUTS[:2], False),
        (["--expression", "1/r", "--dim", "2"], 1, OUTPUTS[:2], False),
    ]
    dim, kernels = (2, plane) if g.random() < 0.25 else (3, space)
    options, strengths, outputs, harmonics = kernels[g.integers(len(kernels))]
    return options, strengths, dim, str(g.choice(outputs)), harmonics


def cloud(g, n, dim):
    """Points, and the name of their kind."""
    kind = str(g.choice(["uniform", "normal", "clusters", "cauchy", "sphere", "line", "lattice", "layers", "corner"]))
    x = g.random((n, dim))
    if kind == "normal":
        x = g.normal(size=(n, dim))
    elif kind == "clusters":
        x = g.random((8, dim))[g.integers(0, 8, n)] + g.normal(size=(n, dim)) * log_uniform(g, 1e-5, 1e-1)
    elif kind == "cauchy":
        x = g.standard_cauchy(size=(n, dim)).clip(-1e4, 1e4)
    elif kind == "sphere":
        x = g.normal(size=(n, dim))
        x /= np.linalg.norm(x, axis=1)[:, None]
    elif kind == "line":
        x = x[:, :1] * g.normal(size=dim) + g.normal(size=(n, dim)) * log_uniform(g, 1e-6, 1e-2)
    elif kind == "lattice":
        x = np.unique(np.floor(x * round(n ** (1 / dim))), axis=0)
    elif kind == "layers":
        x[:, 0] = g.integers(0, 5, n) + 1e-3 * x[:, 0]
    elif kind == "corner":
        x **= g.integers(2, 7)
    return x, kind


def request(g, path):
    """Options of a random request, whose arrays are written to a folder, and what it is in words."""
    options, strengths, dim, outputs, harmonics = kernel(g)
    sources, kind = cloud(g, round(log_uniform(g, 1000, 200_000)), dim)
    sign = str(g.choice(["normal", "uniform"]))
    q = g.normal(size=(len(sources), strengths)) if sign == "normal" else g.random((len(sources), strengths))
    np.save(path / "s.npy", sources)
    np.save(path / "q.npy", q[:, 0] if strengths == 1 else q)
    arrays = ["--sources", path / "s.npy", "--strengths", path / "q.npy"]
    to = "sources"
    if g.random() < 0.3:
        targets, to = cloud(g, round(log_uniform(g, 300, 50_000)), dim)
        np.save(path / "t.npy", targets)
        arrays += ["--targets", path / "t.npy"]
    # Kernels of the plane with Laurent series are summed in f64 alone.
    precision = "f64" if "laplace2d" in options else str(g.choice(["f64", "f64", "f32"]))
    tolerance = f"{10 ** g.uniform(-5, -2) if precision == 'f32' else 10 ** g.uniform(-10, -2):.2g}"
    methods = ["auto", "auto", "equivalent", "interpolation"] if dim == 3 or "laplace2d" not in options else ["auto", "laurent"]
    methods += ["spherical", "treecode"] if harmonics else []
    method = str(g.choice(methods))
    ranks = ["--ranks", str(g.integers(2, 5))] if dim == 3 and g.random() < 0.15 else []
    asked = [*options, "--outputs", outputs, "--precision", precision, "--tolerance", tolerance, "--method", method, *ranks]
    return [*asked, *arrays], f"{' '.join(asked)}; {len(sources)} {kind} to {to}, {sign}"


def main():
    """Draws requests until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/fmm")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    args = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    start, seed, broken, refused = time.time(), args.first - 1, 0, 0
    sums = collections.Counter()
    while time.time() - start < args.seconds:
        seed += 1
        options, what = request(np.random.default_rng(seed), pathlib.Path(folder.name))
        command = [str(o) for o in (args.binary, "run", *options, "--threads", 1, "--verify", VERIFIED, "--json")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            print(seed, what, f"takes more than {LONGEST} s", flush=True)
            continue
        if not done.stdout.startswith("{"):
            refused += 1
            if "below the floor" not in done.stderr:
                print(seed, what, done.stderr.strip(), flush=True)
            continue
        report = json.loads(done.stdout)
        sums[report["method"]] += 1
        errors = {name: error["rel_l2"] for name, error in report["errors"].items()}
        if not all(error is not None and error <= report["tolerance"] for error in errors.values()):
            broken += 1
            bounds = [output["error"] for output in (report["plan"]["probe"] or {}).get("outputs", [])]
            print(seed, what, report["method"], report["order"], errors, bounds, flush=True)
    print(f"{broken} of {sum(sums.values())} sums exceed their tolerance, {refused} were refused; {dict(sums)}")


if __name__ == "__main__":
    main()
