"""What `auto` takes against the best fixed method: cloud x N x tolerance, potential and gradient, on one core or on a GPU.

    cargo build --release && python3 benches/auto.py --binary target/release/fmm --out runs/<date>-<host>

The methods of a row are timed in turn, a few rounds of it. Seconds are the least median of an evaluation on an existing plan,
`auto_over_best` is the median over the rounds of what `auto` took over the method that was the fastest.
Direct sums are timed to 2e4 points (2e5 on a GPU), and from there on grow with N^2. Rows go to `auto.csv`, which is added to:
`--n`, `--clouds` and `--tolerances` make it in pieces. Nothing else should run on the machine meanwhile.
"""

import argparse
import csv
import json
import statistics
import subprocess
from pathlib import Path

METHODS = ["equivalent", "spherical", "treecode"]
COLUMNS = ["backend", "cloud", "n", "tolerance", "auto", "order", "direct_s", "equivalent_s", "spherical_s", "treecode_s", "auto_s",
           "auto_over_best", "error_equivalent", "error_spherical", "error_treecode", "error_auto"]
DIRECT_UP_TO = {"cpu": 20_000, "cuda": 200_000}


def run(args, cloud, n, tolerance, method, repeat, verify):
    command = [args.binary, "run", "--demo", cloud, "--n", n, "--tolerance", tolerance, "--method", method,
               "--outputs", "potential,gradient", "--repeat", repeat, "--json"]
    command += ["--backend", "cuda"] if args.backend == "cuda" else ["--threads", 1, "--costs", "built-in"]
    command += ["--verify", 1000] if verify else []
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        print(f"{method}: {done.stderr.strip().splitlines()[-1]}")
        return None
    return json.loads(done.stdout)


def row(args, cloud, n, tolerance):
    seconds, rounds, errors, chosen = {}, {}, {}, {}
    for k in range(args.rounds):
        for method in [*args.methods.split(","), "auto"]:
            report = run(args, cloud, n, tolerance, method, args.repeat, k == 0)
            if report is None:
                continue
            rounds.setdefault(method, []).append(report["seconds"]["apply"])
            seconds[method] = min(rounds[method])
            chosen[method] = (report["method"], report["order"])
            if k == 0:
                errors[method] = max(e["rel_l2"] for e in report["errors"].values())
    direct = min(n, DIRECT_UP_TO[args.backend])
    if direct not in args.direct:
        args.direct[direct] = run(args, "uniform", direct, 1e-3, "direct", 5, False)["seconds"]["apply"]
    seconds["direct"] = args.direct[direct] * (n / direct) ** 2
    best = min((m for m in seconds if m != "auto"), key=seconds.get)
    over = statistics.median(a / b for a, b in zip(rounds["auto"], rounds.get(best, [seconds[best]] * args.rounds)))
    found = {"backend": args.backend, "cloud": cloud, "n": n, "tolerance": tolerance, "auto": chosen["auto"][0], "order": chosen["auto"][1]}
    found |= {f"{m}_s": f"{s:.5f}" for m, s in seconds.items()} | {f"error_{m}": f"{e:.2e}" for m, e in errors.items()}
    return found | {"auto_over_best": f"{over:.3f}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=DIRECT_UP_TO, default="cpu")
    parser.add_argument("--clouds", default="uniform,ellipsoid,plummer")
    parser.add_argument("--n", default="10000,100000,1000000")
    parser.add_argument("--tolerances", default="1e-3,1e-6,1e-9")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    args.direct = {}
    args.out.mkdir(parents=True, exist_ok=True)
    all_over = []
    with open(args.out / "auto.csv", "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        for n in map(int, args.n.split(",")):
            for cloud in args.clouds.split(","):
                for tolerance in args.tolerances.split(","):
                    found = row(args, cloud, n, tolerance)
                    writer.writerow(found)
                    file.flush()
                    all_over.append(float(found["auto_over_best"]))
                    print(" ".join(str(found.get(c, "-")) for c in COLUMNS), flush=True)
    print(f"auto over the best fixed method: median {statistics.median(all_over):.3f}, at most {max(all_over):.3f}")


main()
