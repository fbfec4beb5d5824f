"""The table of the front page: one row a case, `fmm run` on an existing plan, errors at 1000 random targets.

    cargo build --release && python3 benches/rows.py --binary target/release/fmm --out runs/<date>-<host>

With `--backend cuda` the rows of a GPU, into `rows-cuda.csv`: there an apply also moves strengths and values over the bus.
Nothing else should run on the machine meanwhile.
"""

import argparse
import csv
import json
import subprocess
from pathlib import Path

BOTH = "potential,gradient"
# Kernel, cloud, points, precision, threads, outputs, order.
CASES = [
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "4"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "5"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "6"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "7"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "8"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "10"]),
    ("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--order", "11"]),
    ("laplace", "ellipsoid", 1_000_000, "f64", 1, BOTH, ["--order", "6"]),
    ("laplace", "uniform", 1_000_000, "f32", 1, "potential", ["--order", "4"]),
    ("laplace", "uniform", 1_000_000, "f32", 1, "potential", ["--order", "5"]),
    ("laplace", "uniform", 1_000_000, "f32", 1, BOTH, ["--order", "5"]),
    ("stokes", "uniform", 1_000_000, "f64", 1, "potential", ["--order", "9"]),
    ("stokes", "uniform", 1_000_000, "f64", 1, "potential", ["--order", "10"]),
    ("laplace", "uniform", 1_000_000, "f64", 2, BOTH, ["--order", "7"]),
    # Spherical harmonics at the errors of the pairs above, and a treecode.
    *[("laplace", "uniform", 1_000_000, "f64", 1, BOTH, ["--method", "spherical", "--order", p]) for p in (6, 10, 15)],
    ("laplace", "ellipsoid", 1_000_000, "f64", 1, BOTH, ["--method", "spherical", "--order", 10]),
    ("laplace", "uniform", 1_000_000, "f64", 1, "potential", ["--method", "treecode", "--order", 6, "--theta", 0.9]),
    # Time per point against the number of points.
    *[("laplace", "uniform", n, "f64", 1, BOTH, ["--order", "6"])
      for n in (250_000, 350_000, 500_000, 700_000, 1_000_000, 1_400_000, 2_000_000, 2_800_000, 4_000_000)],
]
N20, N24 = 1 << 20, 1 << 24
CASES_ON_GPU = [
    ("laplace", "uniform", N20, "f32", 1, "potential", ["--tolerance", "1e-5"]),
    ("laplace", "uniform", N20, "f32", 1, "potential", ["--order", 6]),
    ("laplace", "uniform", N20, "f32", 1, BOTH, ["--order", 7]),
    ("laplace", "uniform", N20, "f64", 1, BOTH, ["--order", 7]),
    ("laplace", "uniform", N20, "f64", 1, "potential", ["--order", 11]),
    ("laplace", "plummer", N20, "f64", 1, BOTH, ["--order", 7]),
    ("laplace", "ellipsoid", N20, "f64", 1, BOTH, ["--order", 7]),
    ("stokes", "uniform", N20, "f64", 1, "potential", ["--order", 8]),
    ("laplace", "uniform", N24, "f32", 1, BOTH, ["--order", 6]),
    ("laplace", "plummer", N24, "f32", 1, BOTH, ["--order", 5]),
    ("laplace", "uniform", 200_000, "f64", 1, BOTH, ["--method", "direct"]),
]
STAGES = ["plan", "apply", "p2m", "m2m", "m2l", "p2l", "l2l", "m2p", "l2p", "p2p"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cases, name = (CASES, "rows.csv") if args.backend == "cpu" else (CASES_ON_GPU, "rows-cuda.csv")
    with open(args.out / name, "w", newline="") as file:
        writer = None
        for kernel, cloud, n, precision, threads, outputs, setting in cases:
            command = [args.binary, "run", "--kernel", kernel, "--demo", cloud, "--n", n, "--precision", precision,
                       "--backend", args.backend, "--threads", threads, "--outputs", outputs, *setting, "--repeat", args.repeat,
                       "--verify", 1000, "--json"]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True)
            report = json.loads(done.stdout)
            error = {name: e["rel_l2"] for name, e in report["errors"].items()}
            row = {k: report[k] for k in ("kernel", "method", "n_sources", "precision", "threads", "tolerance", "order", "ncrit")}
            row |= {"cloud": cloud, "error_potential": error["potential"], "error_gradient": error.get("gradient", "")}
            row |= {f"{s}_s": report["seconds"][s] for s in STAGES} | {"peak_rss_bytes": report["peak_rss_bytes"]}
            writer = writer or csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(f"{kernel} {cloud} {n} {precision} x{threads} {' '.join(map(str, setting))}: apply {row['apply_s']:.3f} s, "
                  f"{1e6 * row['apply_s'] / n:.3f} us a point, errors {error}")


main()
