"""The promise in rows: kernels × clouds × tolerances × precisions × methods.

    cargo build --release && python3 benches/promise.py --binary target/release/fmm --out runs/<date>-<host>

A row has the worse of strengths uniform in (0, 1) and normal. Its error is the largest one of the outputs, against direct
summation at 1000 random targets and, up to 100 000 points, at all of them. A row is broken where the error is above the tolerance. A
row is wasteful where the error is below a thirtieth of the tolerance, the order is not the smallest, and one order less was not
measured to break the tolerance: by the plan itself (column below), or with --below by a plan of that order.

With --strangers BINARY, the tests of `fmm-cli` (target/release/deps/it-…), also rows of the kernels in tests/it/strangers that
no table knows. Needs numpy.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from table import Table, arguments, cloud, names, numbers, run, worst

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
# The first six columns say which row it is.
COLUMNS = ["kernel", "cloud", "n", "precision", "method", "tolerance", "chosen", "order", "error_all", "error_1000",
           "tolerance_over_error", "probed", "below", "below_breaks", "plan_s", "probe_s", "apply_s", "verdict", "refused"]
KEY = 6


def of_probe(report, tolerance):
    """What the plan says of its measurement: the bound at its order, with one order less, and its seconds."""
    probe = report["plan"].get("probe") or {}
    outputs = probe.get("outputs", [])
    below = [o["below"] for o in outputs if o.get("below") is not None]
    return {"probed": max((o["error"] for o in outputs), default=None), "below": max(below, default=None),
            "probe_s": probe.get("seconds")}


def measured(args, folder, case):
    """The row of a case, by the command."""
    kernel, shape, _, precision, method, tolerance = case.values()
    options, _, outputs, _ = KERNELS[kernel]
    row = case | {"error_all": None, "error_1000": 0.0}
    for strengths in ("uniform", "normal"):
        files = ["--sources", folder / f"{shape}.npy", "--strengths", folder / f"{strengths}-{kernel}.npy"]
        common = [*options, *files, "--outputs", outputs, "--precision", precision, "--method", method]
        report = run(args.binary, [*common, "--tolerance", f"{tolerance:g}", "--verify", 1000, "--repeat", args.repeat])
        if isinstance(report, str):
            return row | {"refused": report}
        row["error_1000"] = max(row["error_1000"], worst(report))
        if args.n <= ALL_TARGETS_UP_TO:
            all_targets = run(args.binary, [*common, "--tolerance", f"{tolerance:g}", "--verify", args.n])
            row["error_all"] = max(row["error_all"] or 0.0, worst(all_targets))
        order = report["order"]
        if args.below and order is not None and order > SMALLEST.get(report["method"], 1):
            less = run(args.binary, [*common, "--order", order - 1, "--verify", 1000])
            if not isinstance(less, str):
                row["measured_below"] = max(row.get("measured_below", 0.0), worst(less))
        row |= {"chosen": report["method"], "order": order}
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


def parse():
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--kernels", type=names(KERNELS), default=list(KERNELS))
    parser.add_argument("--clouds", type=names(CLOUDS), default=list(CLOUDS))
    parser.add_argument("--methods", type=names(METHODS), default=["equivalent", "spherical"])
    parser.add_argument("--precisions", type=names(("f64", "f32")), default=["f64", "f32"])
    parser.add_argument("--tolerances", type=numbers, default=list(TOLERANCES))
    parser.add_argument("--repeat", type=int, default=1, help="evaluations of a plan; the median time is written")
    parser.add_argument("--below", action="store_true", help="measure one order less where the plan did not")
    parser.add_argument("--strangers", type=Path, help="the test binary of the root package")
    return parser.parse_args()


def cases(args):
    """The first columns of all rows of the command."""
    for kernel in args.kernels:
        for shape in args.clouds:
            for precision in args.precisions:
                for method in args.methods:
                    if method == "spherical" and not KERNELS[kernel][3]:
                        continue
                    for tolerance in args.tolerances:
                        yield {"kernel": kernel, "cloud": shape, "n": args.n, "precision": precision, "method": method,
                               "tolerance": tolerance}


def main():
    args = parse()
    table = Table(args.out / "promise.csv", COLUMNS, KEY, args.resume)
    random = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for shape in args.clouds:
            np.save(folder / f"{shape}.npy", cloud(shape, args.n))
        for kernel in args.kernels:
            components = KERNELS[kernel][1]
            np.save(folder / f"uniform-{kernel}.npy", random.random((args.n, components)))
            np.save(folder / f"normal-{kernel}.npy", random.standard_normal((args.n, components)))
        failed = table.fill(cases(args), lambda case: judged(measured(args, folder, case)), args.jobs)
    for row in strangers(args) if args.strangers else ():
        if not table.has(row):
            table.add(judged(row))
    counts = table.count("verdict")
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(summary)
    bad = counts.get("BROKEN", 0) + counts.get("wasteful", 0) + len(failed)
    sys.exit(f"promise.py: {summary}, {len(failed)} failed" if bad else 0)


main()
