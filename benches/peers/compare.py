"""This project and FMM3D's Python wheel on the same points, at matched measured errors.

Laplace charges, potential and gradient, sources = targets, strengths uniform in (0, 1). For each
tolerance of the peer, its errors against direct summation at random targets are measured; ours then
runs with the largest tolerance and with the smallest order whose errors, at the same targets, are
both no larger, and the faster of the two counts. Rows go to runs/<date>-<host>/rows.csv, a README
with the command and the hardware beside them.
"""

import argparse
import csv
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FIELDS = [
    "code", "version", "kernel", "cloud", "n", "threads", "setting", "precision", "outputs",
    "potential_error", "gradient_error", "plan_s", "apply_s", "total_s", "peak_rss_bytes",
]
SAMPLES = 1000
ORDERS = range(3, 17)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, help="the command fmm")
    parser.add_argument("--clouds", default="uniform,ellipsoid")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--eps", default="1e-2,1e-3,1e-6,1e-9", help="tolerances given to the peer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3, help="evaluations; the median counts")
    parser.add_argument("--out", type=Path, help="folder [runs/<date>-<host>]")
    parser.add_argument("--table", type=Path, metavar="ROWS", help="only print the table of a rows.csv")
    return parser.parse_args()


def cloud(name, n):
    """n × 3 points, the same for every code."""
    random = np.random.default_rng(1)
    if name == "uniform":
        return random.random((n, 3))
    if name == "ellipsoid":  # axes 1:1:4, uniform angles (Lashuk et al. 2009, §V)
        theta, phi = np.pi * random.random(n), 2 * np.pi * random.random(n)
        return np.c_[0.25 * np.sin(theta) * np.cos(phi), 0.25 * np.sin(theta) * np.sin(phi), np.cos(theta)]
    sys.exit(f"compare.py: no cloud {name}")


def direct(points, charges, rows):
    """Potential and gradient at points[rows], pair by pair in f64."""
    potential, gradient = np.empty(len(rows)), np.empty((len(rows), 3))
    step = max(1, 4_000_000 // len(points))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        d = points[some, None, :] - points[None, :, :]
        r2 = np.einsum("ijk,ijk->ij", d, d)
        r2[np.arange(len(some)), some] = np.inf
        w = charges / np.sqrt(r2)
        potential[start : start + step] = w.sum(1)
        gradient[start : start + step] = -np.einsum("ij,ijk->ik", w / r2, d)
    return potential / (4 * np.pi), gradient / (4 * np.pi)


def errors(found, exact):
    """Relative ℓ2 errors of potential and gradient."""
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, exact)]


def peer(points, charges, rows, exact, eps, args):
    """One row of fmm3dpy. It keeps no plan: every evaluation builds its tree."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read when the library is loaded
    import fmm3dpy

    seconds = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        out = fmm3dpy.lfmm3d(eps=eps, sources=points.T, charges=charges, pg=2)
        seconds.append(time.perf_counter() - start)
    found = out.pot[rows], out.grad.T[rows]
    pot, grad = errors(found, exact)
    total = statistics.median(seconds)
    version = importlib.metadata.version("fmm3dpy")
    return dict(code="fmm3dpy", version=version, setting=f"eps {eps:g}", precision="f64", outputs="potential;gradient",
                potential_error=pot, gradient_error=grad, plan_s=0.0, apply_s=total, total_s=total)


def ours(args, folder, rows, exact, setting, repeat):
    """One row of this project; `setting` is an option of fmm run and its value."""
    out = folder / "out.npz"
    command = [args.binary, "run", "--sources", folder / "points.npy", "--strengths", folder / "charges.npy",
               *setting, "--method", "equivalent", "--outputs", "potential,gradient",
               "--threads", args.threads, "--repeat", repeat, "--out", out, "--json"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare.py: fmm run: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    with np.load(out) as arrays:
        found = arrays["potential"][rows], arrays["gradient"][rows]
    pot, grad = errors(found, exact)
    s = report["seconds"]
    words = f"{setting[0].strip('-')} {setting[1]:.2g}, p {report['order']}, ncrit {report['ncrit']}"
    return dict(code="fmm", version=commit(), setting=words, precision=report["precision"],
                outputs="potential;gradient", potential_error=pot, gradient_error=grad, plan_s=s["plan"],
                apply_s=s["apply"], total_s=s["total"], peak_rss_bytes=report["peak_rss_bytes"])


def matched(args, folder, rows, exact, target):
    """The faster of two rows: largest tolerance and smallest order that match the peer's errors."""
    worst = max(target["potential_error"], target["gradient_error"])
    # The error stays above tolerance/30, so that larger tolerances need no trial; floor 1e-10.
    tolerances = [t for t in (32 * worst * 10 ** (-k / 4) for k in range(20)) if 1e-10 <= t < 1]
    found = []
    for settings in ([("--tolerance", t) for t in tolerances], [("--order", p) for p in ORDERS]):
        for setting in settings:
            row = ours(args, folder, rows, exact, setting, 1)
            if all(row[key] <= target[key] for key in ("potential_error", "gradient_error")):
                found.append(ours(args, folder, rows, exact, setting, args.repeat))
                break
    if not found:
        sys.exit(f"compare.py: no order reaches the errors of {target['code']}, {target['setting']}")
    return min(found, key=lambda row: row["apply_s"])


def commit():
    """The commit of the working tree."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def hardware():
    """Processor in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} logical cores, {platform.system()} {platform.machine()}"


def write(folder, rows):
    """rows.csv and, if new, the README beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.csv"
    new = not path.exists()
    with path.open("a", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
    command = ["benches/peers/run.sh", *sys.argv[1:]]
    if "--binary" in command:
        at = command.index("--binary")
        del command[at : at + 2]
    with (folder / "README.md").open("a") as f:
        if new:
            f.write(f"# Peers, {datetime.date.today()}\n\n{hardware()}.\n\n")
        f.write(f"`{' '.join(command)}` at {commit()}.\n")


def table(rows):
    """Markdown: each row of ours below the peer's row that it matches."""
    print("| cloud, N, threads | code, setting | error pot / grad | plan | apply | peer ÷ ours: apply (one-shot) |")
    print("|---|---|---|---|---|---|")
    last = None
    for row in rows:
        case = f"{row['cloud']}, {row['n']}, {row['threads']}"
        apply, total = float(row["apply_s"]), float(row["total_s"])
        ratio = ""
        if row["code"] != "fmm":
            last = apply, total
        elif last:
            ratio = f"{last[0] / apply:.2f} ({last[1] / total:.2f})"
        pair = f"{float(row['potential_error']):.1e} / {float(row['gradient_error']):.1e}"
        print(f"| {case} | {row['code']}, {row['setting']} | {pair} | {float(row['plan_s']):.3f} s | {apply:.3f} s | {ratio} |")


def main():
    args = arguments()
    if args.table:
        with args.table.open(newline="") as f:
            return table(list(csv.DictReader(f)))
    if not args.binary:
        sys.exit("compare.py: --binary is missing (run.sh gives it)")
    rows_out = []
    for name in args.clouds.split(","):
        points = cloud(name, args.n)
        charges = np.random.default_rng(2).random(args.n)
        rows = np.random.default_rng(3).choice(args.n, min(SAMPLES, args.n), replace=False)
        exact = direct(points, charges, rows)
        case = dict(kernel="laplace", cloud=name, n=args.n, threads=args.threads)
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            np.save(scratch / "points.npy", points)
            np.save(scratch / "charges.npy", charges)
            for eps in map(float, args.eps.split(",")):
                theirs = case | peer(points, charges, rows, exact, eps, args)
                mine = case | matched(args, scratch, rows, exact, theirs)
                rows_out += [theirs, mine]
                print(f"{name}, eps {eps:g}: {theirs['apply_s'] / mine['apply_s']:.2f}", file=sys.stderr)
    table(rows_out)
    write(args.out or Path("runs") / f"{datetime.date.today()}-{platform.node()}", rows_out)


if __name__ == "__main__":
    main()
