"""Kernels × clouds × tolerances through the command: what `fmm run` chose, its error at random targets, and its seconds.

    cargo build --release && python3 benches/kernels.py --binary target/release/fmm --out runs/<date>-<host> --jobs 16

A row is BROKEN where the error is above the tolerance for strengths uniform in (0, 1), or for more normal sets than the
promise allows. The promise excludes the 2 of 100 normal sets with the smallest sums. So where the first normal set has
an error above the tolerance, 25 further sets are drawn, and the row is BROKEN if more than two of them err as much (a
bound that is right has this happen in 1 of 75 such rows). `excluded` counts these sets, of the 25, and `error_normal`
is the error of the first set all the same.

A row is refused where the plan refuses the tolerance. Its `bound` is the floor that the refusal names. Then a plan of a
tolerance just above this floor must keep it, and `error` is the smallest error of that order and the next two, the larger
one of both sets of strengths. The floor is right if it is within a factor 3 of that error; `floor_ratio` is floor/error.
A floor is a bound for nearly all sets. So where it is wrong for the first normal set, the largest error of 25 further
sets at the order of the floor counts.

--speed: the cases of Gaussian processes, radial basis functions and interpolation at a million points, timed (one thread,
nothing else on the machine): Laplace by both expansions first, so that other machines can compare quotients.
Needs numpy.
"""

import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from table import Table, arguments, cloud, names, numbers, run, worst

# Options, strengths of a source.
KERNELS = {
    "laplace": (["--kernel", "laplace"], 1),
    "dipole": (["--kernel", "laplace", "--source", "dipole"], 3),
    "yukawa": (["--kernel", "yukawa", "--kappa", "5"], 1),
    "gravity": (["--kernel", "gravity", "--softening", "1e-4"], 1),
    "stokes": (["--kernel", "stokes"], 3),
    "stresslet": (["--kernel", "stokes", "--source", "stresslet"], 9),
    "gaussian-0.05": (["--kernel", "gaussian", "--set", "h=0.05"], 1),
    "gaussian-0.3": (["--kernel", "gaussian", "--set", "h=0.3"], 1),
    "exponential": (["--kernel", "exponential", "--set", "l=0.2"], 1),
    "matern32": (["--kernel", "matern32", "--set", "l=0.2"], 1),
    "matern52": (["--kernel", "matern52", "--set", "l=0.2"], 1),
    "multiquadric": (["--kernel", "multiquadric", "--set", "c=0.01"], 1),
    "inverse_multiquadric": (["--kernel", "inverse_multiquadric", "--set", "c=0.01"], 1),
    "inverse_r2": (["--kernel", "inverse_r2"], 1),
    "inverse_r3": (["--kernel", "inverse_r3"], 1),
    "inverse_r4": (["--kernel", "inverse_r4"], 1),
    "inverse_r5": (["--kernel", "inverse_r5"], 1),
    "inverse_r6": (["--kernel", "inverse_r6"], 1),
    "biharmonic": (["--kernel", "biharmonic"], 1),
    "cubic": (["--kernel", "cubic"], 1),
    "thin_plate": (["--kernel", "thin_plate"], 1),
    "kelvin": (["--kernel", "kelvin"], 3),
    "kelvin_double": (["--kernel", "kelvin_double"], 9),
    "regularised_stokeslet": (["--kernel", "regularised_stokeslet", "--set", "e=0.01"], 3),
    "biot_savart": (["--kernel", "biot_savart"], 3),
    "helmholtz": (["--kernel", "helmholtz", "--set", "k=3"], 2),
    "anisotropic": (["--kernel", "anisotropic", "--set", "yy=4"], 1),
}
CLOUDS = ("uniform", "ellipsoid", "plummer", "clusters")
STRENGTHS = ("uniform", "normal")
FURTHER = [f"normal{k}" for k in range(25)]
SPEED = [  # kernel, options, tolerance, method, outputs
    ("laplace", "laplace", 1e-6, "equivalent", "potential"),
    ("laplace", "laplace", 1e-6, "interpolation", "potential"),
    *[("matern32 l=0.2", "matern32", t, "auto", "potential") for t in (1e-4, 1e-6, 1e-9)],
    *[("multiquadric c=0.01", "multiquadric", t, "auto", "potential") for t in (1e-4, 1e-6, 1e-9)],
    ("gaussian h=0.05", "gaussian-0.05", 1e-6, "auto", "potential"),
    ("gaussian h=0.3", "gaussian-0.3", 1e-6, "auto", "potential"),
    ("biharmonic", "biharmonic", 1e-6, "equivalent", "potential"),
    ("biharmonic", "biharmonic", 1e-6, "interpolation", "potential"),
    ("laplace", "laplace", 1e-6, "equivalent", "potential,gradient"),
    ("biharmonic", "biharmonic", 1e-6, "equivalent", "potential,gradient"),
    ("biharmonic", "biharmonic", 1e-6, "interpolation", "potential,gradient"),
]
# The first eight columns say which row it is.
COLUMNS = ["kernel", "cloud", "n", "backend", "precision", "outputs", "asked", "tolerance", "method", "order", "ncrit", "bound",
           "error_uniform", "error_normal", "excluded", "error", "floor_ratio", "operators_s", "probe_s", "plan_s", "apply_s",
           "verdict", "refused"]
KEY = 8


class Matrix:
    """The rows asked for, and how to make one."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        for shape in args.clouds:
            np.save(folder / f"{shape}.npy", cloud(shape, args.n))
        random = np.random.default_rng(2)
        for components in sorted({c for _, c in KERNELS.values()}):
            np.save(folder / f"uniform-{components}.npy", random.random((args.n, components)))
            np.save(folder / f"normal-{components}.npy", random.standard_normal((args.n, components)))
        random = np.random.default_rng(3)
        for components in sorted({c for _, c in KERNELS.values()}):
            for kind in FURTHER:
                np.save(folder / f"{kind}-{components}.npy", random.standard_normal((args.n, components)))

    def cases(self):
        """The first columns of all rows."""
        a = self.args
        common = {"n": a.n, "backend": a.backend, "precision": a.precision}
        if a.speed:
            for name, kernel, tolerance, method, outputs in SPEED:
                yield common | {"kernel": name, "of": kernel, "cloud": "uniform", "tolerance": tolerance, "asked": method,
                                "outputs": outputs}
            return
        for kernel in a.kernels:
            for shape in a.clouds:
                for tolerance in a.tolerances:
                    for method in a.methods:
                        yield common | {"kernel": kernel, "of": kernel, "cloud": shape, "tolerance": tolerance,
                                        "asked": method, "outputs": a.outputs}

    def run(self, case, kind, setting, repeat=1):
        """The report of the command for strengths of a kind, with a tolerance or an order."""
        options, components = KERNELS[case["of"]]
        files = ["--sources", self.folder / f"{case['cloud']}.npy", "--strengths", self.folder / f"{kind}-{components}.npy"]
        a = self.args
        return run(a.binary, [*options, *files, "--outputs", case["outputs"], "--precision", a.precision, "--backend", a.backend,
                              "--threads", a.threads, "--method", case["asked"], "--verify", 1000, "--repeat", repeat, *setting])

    def row(self, case):
        """The row of a case."""
        row, tolerance = dict(case), case["tolerance"]
        for kind in STRENGTHS:
            report = self.run(case, kind, ["--tolerance", f"{tolerance:g}"], 3 if self.args.speed else 1)
            if isinstance(report, str):
                return row | {"refused": report} | self.floor(case, report)
            row[f"error_{kind}"] = worst(report)
            probe, seconds = report["plan"].get("probe") or {}, report["seconds"]
            row |= {"method": report["method"], "order": report["order"], "ncrit": report["ncrit"]}
            row |= {"bound": max((o["error"] for o in probe.get("outputs", [])), default=None)}
            for key in ("operators", "probe", "plan", "apply"):
                row[f"{key}_s"] = max(row.get(f"{key}_s", 0.0), seconds[key])
        row["error"] = max(row["error_uniform"], row["error_normal"])
        kept = row["error"] <= tolerance
        if not kept and row["error_uniform"] <= tolerance:
            errors = [worst(self.run(case, kind, ["--tolerance", f"{tolerance:g}"])) for kind in FURTHER]
            row["excluded"] = sum(not error <= tolerance for error in errors)
            kept = row["excluded"] <= 2
        return row | {"verdict": "kept" if kept else "BROKEN"}

    def floor(self, case, refusal):
        """What the floor of a refusal is worth."""
        named = re.search(r"below the floor (\S+)", refusal)
        if not named:
            return {"verdict": "refused"}
        floor = float(named[1])
        best = float("inf")
        at_floor = [self.run(case, kind, ["--tolerance", f"{1.02 * floor:g}"]) for kind in STRENGTHS]
        if any(isinstance(report, str) for report in at_floor):
            return {"verdict": "refused, FLOOR", "bound": floor}
        order = at_floor[0]["order"]
        for other in (order, order + 1, order + 2) if order else (None,):
            reports = at_floor if other == order else [self.run_order(case, kind, other) for kind in STRENGTHS]
            if not any(report is None for report in reports):
                best = min(best, max(map(worst, reports)))
        right = best > 0 and 1 / 3 <= floor / best <= 3
        if best > 0 and not right and order:
            best = max([best] + [worst(self.run_order(case, kind, order)) for kind in FURTHER])
            right = 1 / 3 <= floor / best <= 3
        return {"verdict": "refused" if right else "refused, FLOOR", "bound": floor, "order": order, "error": best,
                "floor_ratio": floor / best if best > 0 else None}

    def run_order(self, case, kind, order):
        """As `run` with an order; `None` if the method does not have it."""
        try:
            report = self.run(case, kind, ["--order", order])
        except RuntimeError:
            return None
        return None if isinstance(report, str) else report


def main():
    parser = arguments(__doc__)
    parser.add_argument("--n", type=int)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--kernels", type=names(KERNELS), default=list(KERNELS))
    parser.add_argument("--clouds", type=names(CLOUDS), default=list(CLOUDS))
    parser.add_argument("--methods", type=names(("auto", "equivalent", "interpolation", "treecode")),
                        default=["equivalent", "interpolation", "auto"])
    parser.add_argument("--tolerances", type=numbers, default=[1e-3, 1e-6, 1e-9])
    parser.add_argument("--outputs", default="potential")
    parser.add_argument("--precision", default="f64")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.n = args.n or (1_000_000 if args.speed else 20_000)
    args.clouds = ["uniform"] if args.speed else args.clouds
    name = f"kernels{'-speed' if args.speed else ''}{'-cuda' if args.backend == 'cuda' else ''}.csv"
    table = Table(args.out / name, COLUMNS, KEY, args.resume)
    with tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(args, Path(folder))
        failed = table.fill(matrix.cases(), matrix.row, args.jobs)
    found = table.count("verdict")
    floors = [row["verdict"] for row in table.rows].count("refused, FLOOR")
    refused = found.get("refused", 0) + floors
    summary = (f"{len(table.rows)} rows: {found.get('kept', 0)} kept, {refused} refused ({floors} of them with a floor that is "
               f"wrong by more than 3), {found.get('BROKEN', 0)} BROKEN; {len(failed)} failed")
    print(summary)
    sys.exit(f"kernels.py: {summary}" if found.get("BROKEN") or floors or failed else 0)


main()
