"""Kernels × clouds × tolerances through the command: what `fmm run` chose, its error at random targets, and its seconds.

    cargo build --release && python3 benches/kernels.py --binary target/release/fmm --out runs/<date>-<host>

A row is BROKEN where the error of one of two sets of strengths is above the tolerance. Where a plan is refused, the row has
the floor that the refusal names, and the error of an FMM of the largest order, which should not be far from it.

--speed: the cases of Gaussian processes, radial basis functions and interpolation at a million points, timed (one thread,
nothing else on the machine): Laplace by both expansions first, so that other machines can compare quotients.
Needs numpy.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from compare import cloud as of_peers  # noqa: E402

# Options, strengths of a source.
KERNELS = {
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
SPEED = [  # kernel, options, tolerance, method
    ("laplace", ["--kernel", "laplace"], 1e-6, "equivalent"),
    ("laplace", ["--kernel", "laplace"], 1e-6, "interpolation"),
    *[("matern32 l=0.2", KERNELS["matern32"][0], t, "auto") for t in (1e-4, 1e-6, 1e-9)],
    *[("multiquadric c=0.01", KERNELS["multiquadric"][0], t, "auto") for t in (1e-4, 1e-6, 1e-9)],
    ("gaussian h=0.05", KERNELS["gaussian-0.05"][0], 1e-6, "auto"),
    ("gaussian h=0.3", KERNELS["gaussian-0.3"][0], 1e-6, "auto"),
    ("biharmonic", KERNELS["biharmonic"][0], 1e-6, "equivalent"),
    ("biharmonic", KERNELS["biharmonic"][0], 1e-6, "interpolation"),
]
COLUMNS = ["kernel", "cloud", "n", "backend", "precision", "outputs", "asked", "tolerance", "method", "order", "ncrit", "bound",
           "error_uniform", "error_normal", "error", "operators_s", "probe_s", "plan_s", "apply_s", "verdict", "refused"]


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
    return of_peers(name, n)


def run(args, options):
    """The report of one `fmm run`, or its complaint."""
    command = [args.binary, "run", *options, "--backend", args.backend, "--threads", args.threads, "--json"]
    done = subprocess.run([str(o) for o in command], capture_output=True, text=True)
    if done.stdout.startswith("{"):  # also where the error is above the tolerance
        return json.loads(done.stdout)
    if done.returncode and not re.search("floor|not available", done.stderr):
        sys.exit(f"kernels.py: {' '.join(map(str, command))}: {done.stderr}")
    return done.stderr.strip()


def row_of(args, name, options, components, where, shape, tolerance, method, outputs, repeat):
    """One row: two sets of strengths; the slower of the two."""
    random = np.random.default_rng(2)
    row = {"kernel": name, "cloud": shape, "n": args.n, "backend": args.backend, "precision": args.precision}
    row |= {"outputs": outputs, "asked": method, "tolerance": tolerance}
    for kind, make in (("uniform", random.random), ("normal", random.standard_normal)):
        np.save(where / "q.npy", make((args.n, components)))
        files = ["--sources", where / f"{shape}.npy", "--strengths", where / "q.npy"]
        common = [*options, *files, "--outputs", outputs, "--precision", args.precision, "--verify", 1000]
        report = run(args, [*common, "--method", method, "--tolerance", f"{tolerance:g}", "--repeat", repeat])
        if isinstance(report, str):
            floor = re.search(r"below the floor (\S+)", report)
            row |= {"refused": report, "bound": float(floor[1]) if floor else None, "verdict": "refused"}
            if floor and method != "auto":
                most = run(args, [*common, "--method", method, "--order", 12 if method == "interpolation" else 16])
                if not isinstance(most, str):
                    row |= {"error": max(e["rel_l2"] for e in most["errors"].values())}
            return row
        row[f"error_{kind}"] = max(e["rel_l2"] for e in report["errors"].values())
        probe, seconds = report["plan"].get("probe") or {}, report["seconds"]
        row |= {"method": report["method"], "order": report["order"], "ncrit": report["ncrit"]}
        row |= {"bound": max((o["error"] for o in probe.get("outputs", [])), default=None)}
        for key in ("operators", "probe", "plan", "apply"):
            row[f"{key}_s"] = max(row.get(f"{key}_s", 0.0), seconds[key])
    row["error"] = max(row["error_uniform"], row["error_normal"])
    return row | {"verdict": "kept" if row["error"] <= tolerance else "BROKEN"}


def cases(args):
    """All rows asked for."""
    if args.speed:
        for name, options, tolerance, method in SPEED:
            yield name, options, 1, "uniform", tolerance, method
        return
    for name in args.kernels:
        for shape in args.clouds:
            for tolerance in args.tolerances:
                for method in args.methods:
                    yield name, *KERNELS[name], shape, tolerance, method


def text(value):
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda allowed: lambda x: [n if n in allowed else sys.exit(f"kernels.py: no {n}") for n in x.split(",")]  # noqa: E731
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--kernels", type=names(KERNELS), default=list(KERNELS))
    parser.add_argument("--clouds", type=names(CLOUDS), default=list(CLOUDS))
    parser.add_argument("--methods", type=lambda x: x.split(","), default=["interpolation", "auto"])
    parser.add_argument("--tolerances", type=lambda x: [float(t) for t in x.split(",")], default=[1e-3, 1e-6, 1e-9])
    parser.add_argument("--outputs", default="potential")
    parser.add_argument("--precision", default="f64")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.n = args.n or (1_000_000 if args.speed else 20_000)
    args.out.mkdir(parents=True, exist_ok=True)
    counts = {}
    part = "-speed" if args.speed else ""
    name = f"kernels{part}{'-cuda' if args.backend == 'cuda' else ''}.csv"
    with tempfile.TemporaryDirectory() as folder, open(args.out / name, "w", newline="") as file:
        where = Path(folder)
        for shape in ("uniform",) if args.speed else args.clouds:
            np.save(where / f"{shape}.npy", cloud(shape, args.n))
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for kernel, options, components, shape, tolerance, method in cases(args):
            row = row_of(args, kernel, options, components, where, shape, tolerance, method, args.outputs,
                         3 if args.speed else 1)
            line = {key: text(row.get(key)) for key in COLUMNS}
            writer.writerow(line)
            file.flush()
            print("  ".join(line[key] or "-" for key in COLUMNS), flush=True)
            counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(summary)
    sys.exit(f"kernels.py: {summary}" if counts.get("BROKEN") else 0)


main()
