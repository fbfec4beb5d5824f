"""Kernels of one's own in the plane: times and errors on a quadtree, one row a case, errors at 1000 random targets.

    cargo build --release && python3 benches/quadtree.py --binary target/release/fmm --out runs/<date>-<host>

`cpu_s` is the processor time of the whole process on one thread, set-up and verification included.
"""

import argparse
import csv
import json
import resource
import subprocess
from pathlib import Path

YUKAWA, LOG = ["--kernel", "yukawa2d", "--set", "kappa=10"], ["--kernel", "anisotropic2d"]
# Kernel, cloud, points, options.
CASES = [
    # Orders: what each costs and reaches.
    *[(kernel, "uniform2d", 100_000, ["--method", "equivalent", "--order", p])
      for kernel in (YUKAWA, LOG, ["--kernel", "stokes2d"]) for p in (4, 6, 8, 10, 12, 14, 16)],
    *[(kernel, "uniform2d", 100_000, ["--method", "interpolation", "--order", p])
      for kernel in (["--kernel", "gaussian", "--dim", 2, "--set", "h=0.3"],
                     ["--kernel", "matern32", "--dim", 2, "--set", "l=0.4"]) for p in (4, 6, 8, 10, 12, 14, 16)],
    # The promise at a million points, by a loop of the C compiler.
    *[(kernel, cloud, 1_000_000, ["--tolerance", e, "--compile"])
      for kernel in (YUKAWA, LOG) for cloud in ("uniform2d", "layer2d") for e in ("1e-3", "1e-6", "1e-9")],
    # The same sum by Laurent series.
    *[(["--kernel", "laplace2d"], "uniform2d", 1_000_000, ["--tolerance", e]) for e in ("1e-3", "1e-6", "1e-9")],
]
STAGES = ["plan", "apply", "p2m", "m2m", "m2l", "p2l", "l2l", "m2p", "l2p", "p2p"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "quadtree.csv", "w", newline="") as file:
        writer = None
        for kernel, cloud, n, setting in CASES:
            command = [args.binary, "run", *kernel, "--demo", cloud, "--n", n, "--threads", 1, *setting,
                       "--costs", "built-in", "--no-cache", "--verify", 1000, "--json"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            if done.returncode != 0:
                print(f"{' '.join(map(str, kernel + setting))}: {done.stderr.strip()}")
                continue
            report = json.loads(done.stdout)
            row = {k: report[k] for k in ("kernel", "method", "n_sources", "precision", "tolerance", "order", "boxes")}
            row |= {"cloud": cloud, "error": report["errors"]["potential"]["rel_l2"], "cpu_s": round(cpu, 3)}
            row |= {f"{s}_s": report["seconds"][s] for s in STAGES} | {"peak_rss_bytes": report["peak_rss_bytes"]}
            writer = writer or csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(f"{report['kernel']} {cloud} {n} {' '.join(map(str, setting))}: {row['method']}, order {row['order']}, "
                  f"plan {row['plan_s']:.2f} s, apply {row['apply_s']:.3f} s, error {row['error']:.1e}")


main()
