"""The promise in rows: kernels × clouds × tolerances × precisions × methods.

    cargo build --release && python3 benches/promise.py --binary target/release/fmm --out runs/<date>-<host>

A row has the worse of strengths uniform in (0, 1) and normal. Its error is the largest one of the outputs, against direct
summation at 1000 random targets and, up to 100 000 points, at all of them. A row is broken where the error is above the tolerance. A
row is wasteful where the error is below a thirtieth of the tolerance, the order is not the smallest, and one order less was not
measured to break the tolerance: by the plan itself (column below), or with --below by a plan of that order.

With --strangers BINARY, the tests of the root package (target/release/deps/it-…), also rows of the kernels in tests/it/strangers that
no table knows. Needs numpy.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from compare import cloud as of_peers  # noqa: E402

# Options, strengths of a source, outputs, whether there are spherical harmonics.
KERNELS = {
    "laplace": (["--kernel", "laplace"], 1, "potential,gradient", True),
    "laplace-potential": (["--kernel", "laplace"], 1, "potential", True),
    "dipole": (["--kernel", "laplace", "--source", "dipole"], 3, "potential,gradient", True),
    "mixed": (["--kernel", "laplace", "--source", "mixed"], 4, "potential,gradient", True),
    "yukawa": (["--kernel", "yukawa", "--kappa", "5"], 1, "potential,gradient", False),
    "gravity": (["--kernel", "gravity", "--softening", "1e-4"], 1, "potential,gradient", True),
    "stokes": (["--kernel", "stokes"], 3, "potential", False),
    "stresslet": (["--kernel", "stokes", "--source", "stresslet"], 9, "potential,pressure", False),
}
CLOUDS = ("uniform", "ellipsoid", "plummer", "grid", "plane", "corner", "speck")
TOLERANCES = tuple(10.0 ** -k for k in range(2, 10))
METHODS = ("equivalent", "spherical", "treecode", "auto")
SMALLEST = {"equivalent": 3, "spherical": 1}
ALL_TARGETS_UP_TO = 100_000
WASTE = 30
COLUMNS = ["kernel", "cloud", "n", "precision", "method", "chosen", "tolerance", "order", "error_all", "error_1000",
           "tolerance_over_error", "probed", "below", "below_breaks", "plan_s", "probe_s", "apply_s", "verdict", "refused"]


def cloud(name, n):
    """n × 3 points."""
    random = np.random.default_rng(1)
    if name == "plummer":
        u = 0.999 * random.random(n)
        z = random.standard_normal((n, 3))
        return z / np.linalg.norm(z, axis=1)[:, None] / np.sqrt(u ** (-2 / 3) - 1)[:, None]
    if name == "grid":
        side = int(np.ceil(n ** (1 / 3)))
        return np.stack(np.meshgrid(*[np.arange(side) / side] * 3), -1).reshape(-1, 3)[:n]
    if name == "plane":
        return np.c_[random.random((n, 2)), np.full(n, 0.5)]
    if name == "corner":  # a tenth of the points in a corner three levels finer
        points = random.random((n, 3))
        points[: n // 10] /= 64
        return points
    if name == "speck":  # a hundredth of the points in 1e-4 of the extent
        points = random.random((n, 3))
        points[: n // 100] = [0.3001, 0.7003, 0.4007] + 1e-4 * points[: n // 100]
        return points
    return of_peers(name, n)


def run(binary, options):
    """The report of one `fmm run`, or the line of a refusal."""
    done = subprocess.run([str(o) for o in (binary, "run", *options, "--json")], capture_output=True, text=True)
    if done.returncode:
        if "floor" in done.stderr or "not available" in done.stderr:
            return done.stderr.strip()
        sys.exit(f"promise.py: {' '.join(map(str, options))}: {done.stderr}")
    return json.loads(done.stdout)


def worst(report):
    errors = [e["rel_l2"] for e in report["errors"].values()]
    return max(errors) if all(e is not None for e in errors) else float("nan")


def of_probe(report, tolerance):
    """What the plan says of its measurement: the bound at its order, with one order less, and its seconds."""
    probe = report["plan"].get("probe") or {}
    outputs = probe.get("outputs", [])
    below = [o["below"] for o in outputs if o.get("below") is not None]
    return {"probed": max((o["error"] for o in outputs), default=None), "below": max(below, default=None),
            "probe_s": probe.get("seconds")}


def measured(args, folder, kernel, shape, precision, method, tolerance):
    """A row of the command."""
    options, _, outputs, _ = KERNELS[kernel]
    row = {"kernel": kernel, "cloud": shape, "precision": precision, "method": method, "tolerance": tolerance}
    row |= {"error_all": None, "error_1000": 0.0}
    for strengths in ("uniform", "normal"):
        files = ["--sources", folder / f"{shape}.npy", "--strengths", folder / f"{strengths}-{kernel}.npy"]
        common = [*options, *files, "--outputs", outputs, "--precision", precision, "--method", method]
        report = run(args.binary, [*common, "--tolerance", f"{tolerance:g}", "--verify", 1000, "--repeat", args.repeat])
        if isinstance(report, str):
            return row | {"refused": report, "n": args.n}
        row["error_1000"] = max(row["error_1000"], worst(report))
        if args.n <= ALL_TARGETS_UP_TO:
            all_targets = run(args.binary, [*common, "--tolerance", f"{tolerance:g}", "--verify", args.n])
            row["error_all"] = max(row["error_all"] or 0.0, worst(all_targets))
        order = report["order"]
        if args.below and order is not None and order > SMALLEST.get(report["method"], 1):
            less = run(args.binary, [*common, "--order", order - 1, "--verify", 1000])
            if not isinstance(less, str):
                row["measured_below"] = max(row.get("measured_below", 0.0), worst(less))
        row |= {"n": report["n_sources"], "chosen": report["method"], "order": order}
        row |= {"plan_s": report["seconds"]["plan"], "apply_s": report["seconds"]["apply"]} | of_probe(report, tolerance)
    row["below"] = row["below"] if row["below"] is not None else row.pop("measured_below", None)
    return row


def strangers(args):
    """Rows of the kernels of tests/it/strangers."""
    lists = {"KERNELS": None, "CLOUDS": "uniform,ellipsoid", "PRECISIONS": ",".join(args.precisions),
             "TOLERANCES": ",".join(f"{t:g}" for t in args.tolerances), "N": str(args.n)}
    variables = {f"PROMISE_{key}": value for key, value in lists.items() if value}
    command = [str(args.strangers), "--ignored", "--nocapture", "--exact", "strangers::rows"]
    with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as tests:
        for line in tests.stdout:
            found = re.search(r"\{.*\}$", line)
            if found:
                row = json.loads(found[0])
                yield row | {"chosen": row.get("method"), "method": "equivalent", "n": row.get("n", args.n)}
    if tests.returncode:
        sys.exit(f"promise.py: {' '.join(command)} ended with {tests.returncode}")


def judged(row):
    """The row with tolerance/error and the verdict."""
    if row.get("refused"):
        return row | {"verdict": "refused"}
    errors = [e for e in (row["error_all"], row["error_1000"]) if e is not None]
    error, tolerance = max(errors), row["tolerance"]
    below, order = row.get("below"), row.get("order")
    breaks = below is not None and below > tolerance
    smallest = order is None or order <= SMALLEST.get(row["chosen"], 1)
    if not error <= tolerance:
        verdict = "BROKEN"
    elif error * WASTE < tolerance and not smallest and not breaks:
        verdict = "wasteful"
    else:
        verdict = "kept"
    ratio = tolerance / error if error > 0 else None
    return row | {"tolerance_over_error": ratio, "below_breaks": breaks if below is not None else None, "verdict": verdict}


def text(value):
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda allowed: lambda x: [n if n in allowed else sys.exit(f"promise.py: no {n}") for n in x.split(",")]  # noqa: E731
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--kernels", type=names(KERNELS), default=list(KERNELS))
    parser.add_argument("--clouds", type=names(CLOUDS), default=list(CLOUDS))
    parser.add_argument("--methods", type=names(METHODS), default=["equivalent", "spherical"])
    parser.add_argument("--precisions", type=names(("f64", "f32")), default=["f64", "f32"])
    parser.add_argument("--tolerances", type=lambda x: [float(t) for t in x.split(",")], default=list(TOLERANCES))
    parser.add_argument("--repeat", type=int, default=1, help="evaluations of a plan; the median time is written")
    parser.add_argument("--below", action="store_true", help="measure one order less where the plan did not")
    parser.add_argument("--strangers", type=Path, help="the test binary of the root package")
    return parser.parse_args()


def rows(args, folder):
    """All rows, those of the command first."""
    random = np.random.default_rng(2)
    for shape in args.clouds:
        np.save(folder / f"{shape}.npy", cloud(shape, args.n))
    for kernel in args.kernels:
        _, components, _, harmonic = KERNELS[kernel]
        np.save(folder / f"uniform-{kernel}.npy", random.random((args.n, components)))
        np.save(folder / f"normal-{kernel}.npy", random.standard_normal((args.n, components)))
        for shape in args.clouds:
            for precision in args.precisions:
                for method in args.methods:
                    if method == "spherical" and not harmonic:
                        continue
                    for tolerance in args.tolerances:
                        yield measured(args, folder, kernel, shape, precision, method, tolerance)
    if args.strangers:
        yield from strangers(args)


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    counts = {}
    with tempfile.TemporaryDirectory() as folder, open(args.out / "promise.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        print("  ".join(COLUMNS))
        for row in map(judged, rows(args, Path(folder))):
            line = {key: text(row.get(key)) for key in COLUMNS}
            writer.writerow(line)
            file.flush()
            print("  ".join(line[key] or "-" for key in COLUMNS), flush=True)
            counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(summary)
    bad = counts.get("BROKEN", 0) + counts.get("wasteful", 0)
    sys.exit(f"promise.py: {summary}" if bad else 0)


main()
