#!/usr/bin/env python3
"""Times of sums on a GPU over clouds whose leaves have very different sizes and numbers of edges.

    benches/uneven.py [--fmm target/release/fmm ...] [--csv FILE] [--points 1048576]

Each row is a cloud, a method, a precision and a program. If several programs stand after `--fmm`, all of them run each case
in turn. Columns: milliseconds of the whole sum with its copies, of P2P, of M2P and of the lists; then the relative errors of
potential and gradient at 300 targets.

The clouds of n points:
latitudes       a sphere along circles of latitude and longitude; at each pole lie √n points (1024 of 2²⁰)
clusters        200 normal clusters of widths between 1e-4 and 0.1
small clusters  5000 normal clusters of widths between 1e-5 and 0.01
molecules       clusters of 64 points and a width of 3e-5, each alone in its leaf
helix           points about a helix
two             two narrow clusters
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile

import numpy as np


def clouds(n):
    """Names and points."""
    rng = np.random.default_rng(5)

    def normal_clusters(count, low, high):
        centers, widths, which = rng.random((count, 3)), 10 ** rng.uniform(low, high, count), rng.integers(0, count, n)
        return centers[which] + widths[which, None] * rng.normal(size=(n, 3))

    side = int(n**0.5)
    polar, around = np.meshgrid(np.linspace(0, np.pi, side), np.linspace(0, 2 * np.pi, side, endpoint=False), indexing="ij")
    sphere = [np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar)]
    yield "latitudes", np.stack(sphere, -1).reshape(-1, 3)
    yield "clusters", normal_clusters(200, -4, -1)
    yield "small clusters", normal_clusters(5000, -5, -2)
    yield "molecules", (rng.random((n // 64, 1, 3)) + 3e-5 * rng.normal(size=(n // 64, 64, 3))).reshape(-1, 3)
    turn = rng.random(n)
    yield "helix", np.stack([np.cos(60 * turn), np.sin(60 * turn), turn], 1) + 1e-3 * rng.normal(size=(n, 3))
    yield "two", np.concatenate([c + 1e-3 * rng.normal(size=(n // 2, 3)) for c in (0.3, 0.7)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fmm", nargs="+", default=[os.path.join(os.path.dirname(__file__), "../target/release/fmm")])
    parser.add_argument("--csv", default=None)
    parser.add_argument("--points", type=int, default=1 << 20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open(args.csv or os.devnull, "w", newline="") as file:
        out = csv.writer(file)
        columns = ["apply", "p2p", "m2p", "lists"]
        out.writerow(["cloud", "method", "precision", "program", *columns, "potential", "gradient"])
        print(f"{'cloud':<15} {'method':<11} {'program':<24} " + " ".join(f"{c:>9}" for c in columns), flush=True)
        sources, strengths = (os.path.join(folder, f"{name}.npy") for name in ("sources", "strengths"))
        for cloud, points in clouds(args.points):
            np.save(sources, points.astype(np.float32))
            np.save(strengths, np.random.default_rng(7).random(len(points)).astype(np.float32))
            for method, order, precision in (("equivalent", 6, "f32"), ("spherical", 7, "f32"), ("equivalent", 6, "f64")):
                for fmm in args.fmm:
                    command = [fmm, "run", "--backend", "cuda", "--json", "--sources", sources, "--strengths", strengths]
                    command += ["--method", method, "--order", order, "--precision", precision, "--outputs", "potential,gradient"]
                    command += ["--numbers", "f32"] if precision == "f32" else []
                    command += ["--stages-apart", "--repeat", 5, "--verify", 300, "--cache", os.path.join(folder, "cache")]
                    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
                    if done.returncode:
                        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
                    row = json.loads(done.stdout)
                    times = [1e3 * row["seconds"][c] for c in columns]
                    errors = [row["errors"][k]["rel_l2"] for k in ("potential", "gradient")]
                    out.writerow([cloud, method, precision, os.path.basename(fmm), *times, *errors])
                    file.flush()
                    print(f"{cloud:<15} {method[:5]} {precision:<5} {os.path.basename(fmm):<24} "
                          + " ".join(f"{t:>9.3f}" for t in times) + "  " + "/".join(f"{e:.1e}" for e in errors), flush=True)


if __name__ == "__main__":
    sys.exit(main())
