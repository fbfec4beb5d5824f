"""The table of the plane: harmonic kernel, complex normal strengths, targets are the sources, one thread, points in to answer out.

    cargo build --release -p adaptive2d --example stage_times_2d
    python3 benches/plane.py --binary target/release/examples/stage_times_2d --out runs/<date>-<host>

Each row takes the smallest order from `p` on whose largest relative error at 1000 targets is at most `error`; seconds are the
median of five; the workspace is kept from one to the next, as a plan keeps it, everything else is new, and `first_s` is the first. The peak of
memory is that of the first evaluation. Nothing else should run on the machine meanwhile.
"""

import argparse
import csv
import re
import subprocess
from pathlib import Path

# Points, cloud, largest relative error, p to begin with, threads, seconds to reach.
CASES = [
    (1_000_000, "uniform", 1e-6, 17, 1, 0.35),
    (2_949_120, "uniform", 1e-6, 19, 1, 1.15),
    (2_949_120, "normal", 1e-6, 19, 1, 1.35),
    (2_949_120, "layer", 1e-6, 19, 1, 1.25),
    (1_000_000, "uniform", 1e-12, 36, 1, 0.5),
    (2_949_120, "uniform", 1e-12, 38, 1, 1.6),
    (2_949_120, "normal", 1e-12, 38, 1, 1.9),
    (2_949_120, "layer", 1e-12, 38, 1, 1.8),
    (1_000_000, "uniform", 1e-6, 17, 2, None),
    (2_949_120, "uniform", 1e-6, 19, 2, None),
]
THETA = 0.55
POPULATION = 45
FIELDS = ["n", "cloud", "kernel", "theta", "population", "order", "threads", "total_s", "pyramid_s", "connect_s", "scatter_s", "p2m_s",
          "m2m_s", "m2l_s", "p2l_s", "l2l_s", "l2p_s", "m2p_s", "p2p_s", "rel_l2", "max_rel", "held_MB", "peak_MB", "first_s", "reach_s"]


def run(binary, n, cloud, order, threads):
    """One row."""
    command = [binary, n, POPULATION, order, cloud, "harmonic", 0, threads, THETA]
    text = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(\S+) ([-+.e0-9]+)", text))
    row = {k: found[k.removesuffix("_s")] for k in FIELDS if k.endswith("_s") and k != "reach_s"}
    row |= {"rel_l2": found["rel_l2"], "max_rel": found["relative"], "held_MB": found["held_MB"],
            "peak_MB": found["peak_MB_beyond_the_caller's_arrays"]}
    return row | {"n": n, "cloud": cloud, "kernel": "harmonic", "theta": THETA, "population": POPULATION, "order": order, "threads": threads}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", help="numbers of the rows, from 0 [all]; rows are appended")
    args = parser.parse_args()
    cases = [CASES[int(i)] for i in args.rows.split(",")] if args.rows else CASES
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "plane.csv"
    new = not path.exists() or args.rows is None
    with open(path, "w" if new else "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for n, cloud, error, order, threads, reach in cases:
            row = run(args.binary, n, cloud, order, threads)
            while float(row["max_rel"]) > error:
                row = run(args.binary, n, cloud, row["order"] + 1, threads)
            row["reach_s"] = reach
            writer.writerow(row)
            file.flush()
            topological = float(row["pyramid_s"]) + float(row["connect_s"])
            print(f"{n} {cloud} {error:g} x{threads}: {row['total_s']} s (reach {reach}), p {row['order']}, largest relative error "
                  f"{row['max_rel']}, pyramid and connectivity {100 * topological / float(row['total_s']):.0f} %, "
                  f"{row['held_MB']} MB held, {row['peak_MB']} MB at the peak")


main()
