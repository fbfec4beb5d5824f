"""What the benches share that write a table of many runs of the command: clouds, `fmm run`, and rows that several processes
make at the same time."""

import argparse
import csv
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from compare import cloud as of_peers  # noqa: E402


def cloud(name, n):
    """n × 3 points."""
    random = np.random.default_rng(1)
    if name == "plummer":
        u = 0.999 * random.random(n)
        z = random.standard_normal((n, 3))
        return z / np.linalg.norm(z, axis=1)[:, None] / np.sqrt(u ** (-2 / 3) - 1)[:, None]
    if name == "clusters":  # two balls of radius 0.1, ten apart
        z = random.standard_normal((n, 3))
        z *= 0.1 * random.random((n, 1)) ** (1 / 3) / np.linalg.norm(z, axis=1)[:, None]
        z[: n // 2, 0] += 10
        return z
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
    """The report of one `fmm run`, also where the error is above the tolerance, or the line of a refusal."""
    command = [str(o) for o in (binary, "run", *options, "--json")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stdout.startswith("{"):
        return json.loads(done.stdout)
    if re.search("floor|not available", done.stderr):
        return done.stderr.strip()
    raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def worst(report):
    """The largest error of a report."""
    errors = [e["rel_l2"] for e in report["errors"].values()]
    return max(errors) if all(e is not None for e in errors) else float("nan")


def text(value):
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def names(allowed):
    """The type of an argument: a comma-separated list of some of `allowed`."""

    def parse(given):
        unknown = [name for name in given.split(",") if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]}; known: {', '.join(allowed)}")
        return given.split(",")

    return parse


def numbers(given):
    """The type of an argument: comma-separated numbers."""
    return [float(x) for x in given.split(",")]


def arguments(description):
    """A parser with the options that all tables have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="rows that are made at the same time")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the file and make the others")
    return parser


class Table:
    """A file of rows, which grows row by row. A row is known by its first `key` columns."""

    def __init__(self, path, columns, key, resume):
        self.path, self.columns, self.key = path, columns, columns[:key]
        self.rows, self.lock = [], threading.Lock()
        if resume and path.exists():
            with open(path, newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if row.get(columns[-1]) is not None]
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        self.done = {tuple(row[c] for c in self.key) for row in self.rows}

    def has(self, row):
        return tuple(text(row[c]) for c in self.key) in self.done

    def add(self, row):
        line = {c: text(row.get(c)) for c in self.columns}
        with self.lock:
            self.rows.append(line)
            with open(self.path, "a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(line)
            print("  ".join(line[c] or "-" for c in self.columns), flush=True)

    def fill(self, cases, make, jobs):
        """Adds the row `make(case)` of each case whose first columns, `case`, are not there yet. Rows of a failed command
        are told at the end, so that one does not end all the others."""
        failed = []

        def one(case):
            try:
                self.add(make(case))
            except RuntimeError as failure:
                print(failure, file=sys.stderr, flush=True)
                failed.append(failure)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, [case for case in cases if not self.has(case)]))
        return failed

    def count(self, column):
        """How often each entry of a column occurs."""
        found = {}
        for row in self.rows:
            found[row[column]] = found.get(row[column], 0) + 1
        return found
