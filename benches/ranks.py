#!/usr/bin/env python3
"""Weak and strong scaling of one sum over several GPUs of one host, through the command `fmm`.

    benches/ranks.py [--fmm target/release/fmm] [--devices 0,1] [--weak 22,24] [--strong 24] [--arrays host,device]
                     [--adopt] [--mpi] [--out FOLDER]

Laplace, potential and gradient in f32, order 6. With arrays of the host there is one array, whose pieces go to the GPUs; with
arrays of devices each GPU has a piece, `apply` is without transfers, and stages are not timed. `apply` is the median of seven evaluations; with arrays of
the host, copies of strengths and sums between host and GPUs are included. `stages` is the sum of the times of the stages, each on its
slowest GPU, from P2M to P2P, without the ways between the caller's order and the trees; P2P runs after the far field
(`--stages-apart`), so that times add up. Efficiency: weak, time of one GPU with as many points as each of several, over theirs; strong, time
of one GPU with all points over that of several, by their number. `plan` is a first plan, `set_points` a
plan with other points (the same, of several GPUs). `sends` are the bytes of multipoles and of strengths that
the busiest GPU sends in an evaluation. With `--adopt` the callers on devices have the points that their GPUs own. With `--mpi`
there is a process for each GPU, started by mpirun (`fmm` must have been built with the feature mpi); arrays are on devices. FOLDER
gets ranks.csv, with one row for each run.

`model` is the time that a model of a network forecasts: the time of one GPU, shared out with the imbalance that was reported, plus
what the busiest GPU sends, at the bandwidth of NVLink 4, and its messages, each with the time of a launch. Work and messages do
not overlap in it. With `--mpi` the counts of messages, ghosts and bytes are those of rank 0.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile

REQUEST = ["--backend", "cuda", "--precision", "f32", "--numbers", "f32", "--order", "6", "--method", "equivalent",
           "--outputs", "potential,gradient", "--repeat", "7", "--json"]
# Bytes per second of one direction of NVLink 4 (NVIDIA's data sheet of the H100), and seconds of a message: about that of a launch.
BANDWIDTH, MESSAGE = 450e9, 10e-6
STAGES = ["p2m", "m2m", "m2l", "p2l", "l2l", "l2p", "m2p", "p2p"]
FIELDS = ["scaling", "arrays", "adopted", "demo", "n", "devices", "apply", "stages", "plan", "set_points", "imbalance", "ghosts", "multipoles", "sends",
          "messages", "model", "error", "efficiency_apply", "efficiency_stages", *STAGES, "machine"]


def run(fmm, demo, n, devices, arrays, cache, verify, adopt, mpi):
    """The row of a run."""
    processes = mpi and len(devices) > 1
    launcher = ["mpirun", "-n", str(len(devices)), "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"] if processes else []
    command = [*launcher, fmm, "run", "--demo", demo, "--n", str(n), "--arrays", arrays, "--cache", cache, *REQUEST]
    if arrays == "host" or len(devices) > 1:
        command += ["--devices", ",".join(devices)]
    if arrays == "device" and len(devices) > 1:
        command += ([] if processes else ["--ranks", str(len(devices))]) + ["--adopt"] * adopt
    times, row = [], {"arrays": arrays, "adopted": int(adopt), "demo": demo, "n": n, "devices": len(devices)}
    for apart in (False, True) if arrays == "host" else (False,):
        extra = ["--stages-apart"] if apart else ["--verify", str(verify)] if verify else []
        done = subprocess.run(command + extra, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command + extra)}\n{done.stderr}")
        times.append(json.loads(done.stdout))
    plain, apart = times[0], times[-1]
    # Over MPI, the part of rank 0.
    parts = plain["plan"]["devices"] or [plain["plan"]["ranks"]] * processes
    row.update(
        apply=plain["seconds"]["apply"],
        stages=sum(apart["seconds"].get(stage, 0) for stage in STAGES),
        plan=plain["seconds"]["plan"],
        set_points=plain["seconds"].get("set_points", ""),
        imbalance=max((p["imbalance"] for p in parts), default=1),
        ghosts=max((p["ghosts"] for p in parts), default=0),
        multipoles=max((p["rows"] for p in parts), default=0),
        sends=max((p["bytes"] for p in parts), default=0),
        messages=max((p["messages"] for p in parts), default=0),
        error=max((e["rel_l2"] for e in plain["errors"].values()), default=""),
        machine=plain["plan"]["device"],
        **{stage: apart["seconds"].get(stage, 0) for stage in STAGES},
    )
    return row


def keep(folder, rows):
    """Writes the rows so far."""
    if not folder:
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "ranks.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fmm", default="target/release/fmm")
    parser.add_argument("--devices", default="0,1", help="GPUs; their first halves, quarters … are measured too")
    parser.add_argument("--weak", default="22,24", help="log2 of the points of each GPU")
    parser.add_argument("--strong", default="24", help="log2 of all points")
    parser.add_argument("--demos", default="uniform")
    parser.add_argument("--arrays", default="host,device", help="where the arrays of the caller are")
    parser.add_argument("--verify", type=int, default=200, help="targets at which errors are measured; 0: none")
    parser.add_argument("--adopt", action="store_true", help="arrays on devices have the points that their GPUs own")
    parser.add_argument("--mpi", action="store_true", help="a process for each GPU, with arrays on devices")
    parser.add_argument("--out", help="folder for ranks.csv")
    args = parser.parse_args()
    devices = args.devices.split(",")
    counts = [k for k in (1, 2, 4, 8, 16) if k <= len(devices)]
    known, rows = {}, []
    numbers = lambda text: [1 << int(k) for k in text.split(",") if k]
    with tempfile.TemporaryDirectory() as cache:
        def measured(demo, n, k, arrays):
            key = demo, n, k, arrays
            if key not in known:
                known[key] = run(args.fmm, demo, n, devices[:k], arrays, cache, args.verify, args.adopt, args.mpi)
            return known[key]

        places = ["device"] if args.mpi else args.arrays.split(",")
        for demo, arrays in [(demo, arrays) for demo in args.demos.split(",") for arrays in places]:
            cases = [("weak", n, k, n * k) for n in numbers(args.weak) for k in counts]
            cases += [("strong", n, k, n) for n in numbers(args.strong) for k in counts]
            for scaling, n, k, total in cases:
                one, row = measured(demo, n, 1, arrays), dict(measured(demo, total, k, arrays), scaling=scaling)
                for what in ("apply", "stages"):
                    ratio = one[what] / row[what] if row[what] else 0
                    row[f"efficiency_{what}"] = ratio if scaling == "weak" else ratio / k
                work = one["apply"] * row["imbalance"] / (1 if scaling == "weak" else k)
                # Messages of multipoles; strengths and values have as many.
                row["model"] = work + row["sends"] / BANDWIDTH + 3 * row["messages"] * MESSAGE
                rows.append(row)
                keep(args.out, rows)
                print(f"{scaling} {demo} {total} points on {k}, {arrays}: apply {1e3 * row['apply']:.2f} ms, "
                      f"stages {1e3 * row['stages']:.2f} ms", file=sys.stderr, flush=True)
    head = ["scaling", "arrays", "points", "GPUs", "new points, ms", "apply, ms", "efficiency", "stages, ms", "efficiency", "imbalance", "ghosts",
            "sends, MB", "model, ms", "error"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for r in rows:
        error = f"{r['error']:.1e}" if r["error"] != "" else ""
        moved = f"{1e3 * r['set_points']:.1f}" if r["set_points"] else ""
        print(f"| {r['scaling']} {r['demo']} | {r['arrays']} | {r['n']} | {r['devices']} | {moved} | {1e3 * r['apply']:.2f} | "
              f"{100 * r['efficiency_apply']:.1f} % | {1e3 * r['stages']:.2f} | {100 * r['efficiency_stages']:.1f} % | "
              f"{r['imbalance']:.3f} | {r['ghosts']} | {r['sends'] / 1e6:.2f} | {1e3 * r['model']:.2f} | {error} |")


if __name__ == "__main__":
    main()
