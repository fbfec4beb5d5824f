"""Interpolation here and on Chebyshev nodes, order by order, on the same points: this project's interpolation and the wheel
ferreus_bbfmm, an implementation of the black-box method of Fong & Darve (2009) with compressed translations.

    python3 benches/peers/compare_bbfmm.py --binary target/release/fmm --out runs/<date>-<host>

Needs numpy and ferreus-bbfmm (0.3). A row has the relative ℓ2 error at 1000 random targets against direct summation, the
seconds to make the plan or tree, and those of an evaluation; both codes use one thread, and the fastest of --repeat
evaluations counts. Sources are the targets, uniform in the unit cube, with charges of 1 and -1, as many of each.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# Name, text for the command, name for the peer, function of r (0 at r = 0 where it is singular).
KERNELS = [
    ("1/r", "1/r", "Laplacian", lambda r: np.divide(1, r, out=np.zeros_like(r), where=r > 0)),
    ("1/r^2", "1/r^2", "OneOverR2", lambda r: np.divide(1, r**2, out=np.zeros_like(r), where=r > 0)),
    ("1/r^4", "1/r^4", "OneOverR4", lambda r: np.divide(1, r**4, out=np.zeros_like(r), where=r > 0)),
    ("r", "-r", "LinearRbf", lambda r: -r),
    ("r^2 ln r", "where(r == 0, 0, r^2*ln(r))", "ThinPlateSplineRbf", lambda r: r**2 * np.log(np.where(r > 0, r, 1))),
    ("r^3", "r^3", "CubicRbf", lambda r: r**3),
    ("exp(-3r)", "exp(-3*r)", "ExponentialRbf", lambda r: np.exp(-3 * r)),
    ("exp(-3r^2)", "exp(-3*r^2)", "GaussianRbf", lambda r: np.exp(-3 * r**2)),
    ("1/sqrt(1 + (6.5r)^2)", "1/sqrt(1 + (6.5*r)^2)", "InverseMultiquadraticRbf", lambda r: 1 / np.sqrt(1 + (6.5 * r) ** 2)),
]
COLUMNS = ["kernel", "n", "nodes", "code", "error", "setup_s", "apply_s"]


def exact(f, points, charges, rows):
    """Direct sums at points[rows]."""
    out = np.empty(len(rows))
    for k, row in enumerate(rows):
        out[k] = f(np.sqrt(((points[row] - points) ** 2).sum(1))) @ charges
    return out


def theirs(name, nodes, points, charges, repeat):
    """Sums, seconds of the tree, seconds of an evaluation."""
    import ferreus_bbfmm as peer

    start = time.perf_counter()
    kernel = peer.KernelParams(kernel_type=getattr(peer.FmmKernelType, name))
    tree = peer.FmmTree(points, nodes, kernel, True)
    setup, seconds = time.perf_counter() - start, []
    for _ in range(repeat):
        start = time.perf_counter()
        tree.set_weights(charges[:, None])
        sums = tree.evaluate(charges[:, None], points)
        seconds.append(time.perf_counter() - start)
    return sums.reshape(-1), setup, min(seconds)


def ours(args, folder, text, nodes):
    """As `theirs`; None if the method does not have the order."""
    best = None
    for _ in range(args.repeat):
        out = folder / "out.npz"
        command = [args.binary, "run", "--expression", text, "--method", "interpolation", "--order", nodes, "--threads", 1,
                   "--sources", folder / "x.npy", "--strengths", folder / "q.npy", "--out", out, "--json"]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"compare_bbfmm.py: {done.stderr}")
        seconds = json.loads(done.stdout)["seconds"]
        if best is None or seconds["apply"] < best[2]:
            with np.load(out) as arrays:
                best = arrays["potential"], seconds["plan"], seconds["apply"]
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--nodes", type=lambda x: [int(n) for n in x.split(",")], default=[3, 4, 5, 6, 7, 8])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kernels", type=lambda x: x.split(";"), default=[k[0] for k in KERNELS], help="separated by ;")
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"  # read when the wheel makes its threads
    random = np.random.default_rng(1)
    points = random.random((args.n, 3))
    charges = np.where(random.permutation(args.n) < args.n // 2, 1.0, -1.0)
    rows = random.choice(args.n, min(1000, args.n), replace=False)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(args.out / "bbfmm.csv", "w", newline="") as file:
        folder = Path(folder)
        np.save(folder / "x.npy", points)
        np.save(folder / "q.npy", charges)
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        print(f"{'kernel':<22} nodes   error: theirs      here   setup, s: theirs   here   apply, s: theirs   here")
        for name, text, peer, f in KERNELS:
            if name not in args.kernels:
                continue
            sums = exact(f, points, charges, rows)
            for nodes in args.nodes:
                line = []
                codes = [("ferreus_bbfmm", theirs(peer, nodes, points, charges, args.repeat)),
                         ("fmm", ours(args, folder, text, nodes))]
                for code, (found, setup, apply) in codes:
                    error = float(np.linalg.norm(found[rows] - sums) / np.linalg.norm(sums))
                    line.append((error, setup, apply))
                    writer.writerow(dict(kernel=name, n=args.n, nodes=nodes, code=code, error=f"{error:.3g}",
                                         setup_s=f"{setup:.3g}", apply_s=f"{apply:.3g}"))
                file.flush()
                (a, b) = line
                print(f"{name:<22} {nodes:>5} {a[0]:>15.2e} {b[0]:>9.2e} {a[1]:>18.2f} {b[1]:>6.2f} {a[2]:>18.3f} {b[2]:>6.3f}",
                      flush=True)


main()
