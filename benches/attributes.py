#!/usr/bin/env python3
"""Attributes of sources in far fields: sums with one value of an attribute, and with values that spread.

    cargo build --release && python3 benches/attributes.py --binary target/release/fmm --out runs/<date>-<host>

`one` in the column `values` is the middle of the range for all sources, by `--set`. Rows with an order show what each node
more is worth. Errors are against direct sums at 1000 random targets, for strengths uniform in (0, 1). Needs numpy.
"""

import tempfile
from pathlib import Path

import numpy as np

from table import Table, arguments, run, worst

# Kernel, its attribute and the range of the values.
STOKESLET, GAUSSIAN = ("regularised_stokeslet", "e", 0.01, 0.03), ("gaussian", "h", 0.3, 0.36)
# Kernel, values, points, options.
CASES = [
    *[(STOKESLET, values, 100_000, ["--tolerance", "1e-6"]) for values in ("one", "spread")],
    *[(GAUSSIAN, values, 100_000, ["--tolerance", "1e-4"]) for values in ("one", "spread")],
    *[(STOKESLET, values, 100_000, ["--tolerance", "1e-3"]) for values in ("one", "spread")],
    *[(kernel, "spread", 20_000, ["--method", "interpolation", "--order", 8, "--ncrit", 40, "--nodes", nodes])
      for kernel in (STOKESLET, GAUSSIAN) for nodes in (1, 2, 3, 4)],
]
COLUMNS = ["kernel", "range", "values", "options", "n", "method", "order", "nodes", "ncrit", "error", "plan_s", "sums_s",
           "operators_s", "apply_s", "refused"]


def main():
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    table = Table(args.out / "attributes.csv", COLUMNS, 5, args.resume)
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder, "values.npy")
        for (kernel, name, low, high), kind, n, options in CASES:
            np.save(values, low + (high - low) * np.random.default_rng(7).random(n))
            own = {"one": ["--set", f"{name}={(low + high) / 2}"], "spread": ["--attribute", f"{name}={values}"]}[kind]
            row = {"kernel": kernel, "range": f"{low} to {high}", "values": kind, "n": n,
                   "options": " ".join(map(str, options))}
            if table.has(row):
                continue
            report = run(args.binary, ["--kernel", kernel, "--demo", "uniform", "--n", n, *own, *options,
                                       "--threads", args.threads, "--no-cache", "--repeat", args.repeat, "--verify", 1000])
            if isinstance(report, str):
                table.add(row | {"refused": report})
                continue
            plan, seconds = report["plan"], report["seconds"]
            probe = plan["probe"] or {}
            table.add(row | {"method": report["method"], "order": report["order"], "nodes": plan["nodes"], "ncrit": plan["ncrit"],
                             "error": worst(report), "plan_s": seconds["plan"], "sums_s": probe.get("seconds"),
                             "operators_s": probe.get("operators"), "apply_s": seconds["apply"]})


main()
