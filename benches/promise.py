"""Error over tolerance for a sweep of tolerances: at most 1 (the promise), at least 1/30 (no waste).

    cargo build --release && python3 benches/promise.py --binary target/release/fmm --out runs/<date>-<host>

For each cloud and tolerance the largest error of the requested outputs, worst of strengths uniform in (0, 1)
and normal, against direct summation at 1000 random targets. Needs numpy.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from compare import cloud  # noqa: E402

OUTPUTS = ["potential", "potential,gradient"]
TOLERANCES = [m * 10.0 ** -k for k in range(2, 10) for m in (1.0, 0.3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--method", default="equivalent")
    parser.add_argument("--tolerances", type=lambda x: [float(t) for t in x.split(",")], default=TOLERANCES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    broken, name = 0, "promise.csv" if args.method == "equivalent" else f"promise-{args.method}-{args.n}.csv"
    with tempfile.TemporaryDirectory() as folder, open(args.out / name, "w", newline="") as file:
        folder, writer = Path(folder), csv.writer(file)
        writer.writerow(["cloud", "n", "outputs", "tolerance", "order", "error", "error_over_tolerance"])
        random = np.random.default_rng(2)
        np.save(folder / "uniform.npy", random.random(args.n))
        np.save(folder / "normal.npy", random.standard_normal(args.n))
        for shape in ("uniform", "ellipsoid"):
            np.save(folder / "points.npy", cloud(shape, args.n))
            for outputs in OUTPUTS:
                for tolerance in args.tolerances:
                    worst = 0.0
                    for strengths in ("uniform", "normal"):
                        command = [args.binary, "run", "--sources", folder / "points.npy", "--strengths",
                                   folder / f"{strengths}.npy", "--outputs", outputs, "--tolerance", f"{tolerance:g}",
                                   "--method", args.method, "--verify", "1000", "--json"]
                        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True)
                        report = json.loads(done.stdout)
                        worst = max(worst, *(e["rel_l2"] for e in report["errors"].values()))
                    ratio = worst / tolerance
                    broken += not 1 / 30 <= ratio <= 1
                    writer.writerow([shape, args.n, outputs, f"{tolerance:g}", report["order"], f"{worst:.3e}", f"{ratio:.4f}"])
                    print(f"{shape} {outputs} {tolerance:g}: order {report['order']}, error/tolerance {ratio:.3f} = 1/{1 / ratio:.1f}")
    sys.exit(f"promise.py: {broken} outside [1/30, 1]" if broken else 0)


main()
