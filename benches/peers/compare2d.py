"""This project and the fmm2dpy wheel on the same points of the plane, at matched measured errors.

Harmonic kernel Γ/(z_j − z), complex strengths uniform in (0, 1), sources = targets, one thread. The peer runs at each
`--eps`; ours at the largest tolerance 10^(−k/2) whose error at the same targets, against direct summation, is no larger. Both
counts are from points in to answer out; of ours `plan` + `apply`. Rows go to <out>/peers2d.csv.
Needs `pip install fmm2dpy==0.0.5 "numpy<2"`.
"""

import argparse
import csv
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
import fmm2dpy
import numpy as np

FIELDS = ["code", "version", "kernel", "cloud", "n", "setting", "rel_l2", "max_rel", "plan_s", "apply_s", "total_s"]


def direct(z, gamma, rows):
    """Sums at z[rows]; runs of sources are added one after the other."""
    out = np.zeros(len(rows), complex)
    for start in range(0, len(z), 8192):
        d = z[start:start + 8192] - z[rows][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            g = np.where(d == 0, 0, 1 / d)
        out += g @ gamma[start:start + 8192]
    return out


def errors(found, exact):
    e = np.abs(found - exact)
    return np.linalg.norm(e) / np.linalg.norm(exact), (e / np.abs(exact)).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="the command fmm")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--eps", default="1e-6", help="tolerances given to the peer")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    random = np.random.default_rng(1)
    points, strengths = random.random((args.n, 2)), random.random((args.n, 2))
    z, gamma = points @ [1, 1j], strengths @ [1, 1j]
    rows = random.choice(args.n, 1000, replace=False)
    exact = direct(z, gamma, rows)
    table = []
    for eps in map(float, args.eps.split(",")):
        start = time.perf_counter()
        out = fmm2dpy.cfmm2d(eps=eps, sources=points.T.copy(), dipstr=-gamma, pg=1)  # its kernel is 1/(z − z_j)
        seconds = time.perf_counter() - start
        peer = errors(out.pot[rows], exact)
        common = {"kernel": "harmonic2d", "cloud": "uniform", "n": args.n}
        version = importlib.metadata.version("fmm2dpy")
        table.append(common | {"code": "fmm2dpy", "version": version, "setting": f"eps {eps:g}", "rel_l2": peer[0],
                               "max_rel": peer[1], "total_s": seconds})
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/{name}.npy" for name in ("sources", "strengths")]
            np.save(files[0], points)
            np.save(files[1], gamma)
            for k in range(4, 25):
                command = [str(args.binary), "run", "--kernel", "harmonic2d", "--method", "laurent", "--threads", "1", "--json",
                           "--sources", files[0], "--strengths", files[1], "--out", f"{folder}/out.npz",
                           "--tolerance", f"{10 ** (-k / 2):.3g}", "--norm", "l2", "--repeat", "1"]
                report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                ours = errors(np.load(f"{folder}/out.npz")["potential"][rows], exact)
                if ours[0] <= peer[0] and ours[1] <= peer[1]:
                    break
            else:
                sys.exit("compare2d.py: no tolerance matches the peer")
        s = report["seconds"]
        table.append(common | {"code": "fmm", "version": "", "setting": f"tolerance {report['tolerance']:g} order {report['order']}",
                               "rel_l2": ours[0], "max_rel": ours[1], "plan_s": s["plan"], "apply_s": s["apply"], "total_s": s["total"]})
        print(f"eps {eps:g}: peer {seconds:.2f} s ({peer[0]:.1e}, {peer[1]:.1e}), ours {s['total']:.3f} s "
              f"({ours[0]:.1e}, {ours[1]:.1e}), ratio {seconds / s['total']:.1f}")
    with open(args.out / "peers2d.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(table)


main()
