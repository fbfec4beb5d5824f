#!/usr/bin/env python3
"""Times of sums on one GPU through the command `fmm`, beside the times to reach.

    benches/gpu.py [--fmm target/release/fmm] [--csv FILE] [--only PART]

Each case runs `fmm run --backend cuda` twice, because the first run fills a temporary folder with compiled programs and
operators. The table shows the second run, FILE both (column `warm`: 0 or 1). `reach` is the goal in milliseconds, empty
if there is none. Times are medians of 20 evaluations. With arrays on the device, `apply` is the time of
`Plan::apply_on_device` and `Plan::synchronize`, and `points` that of `Plan::set_points_on_device` (tree, lists and
workspaces). With arrays on the host, `apply` includes all copies. Strengths and sums are f32 if the precision is f32.
`whole` is the time of the process, `open` the part of it that opens the device, `end` the part behind its output. The
case of the whole process runs one evaluation and no check. A process that has opened a device takes time to end,
whatever it has done: behind the cases of whole processes stands `end`, and as `empty` the time in which a process ends
that has opened the device and nothing else.

Orders are those whose errors keep the goals of docs/notes/gpu-performance.md for normal strengths. The strengths of the
demo, uniform in (0, 1), have smaller errors. Rows by spherical harmonics keep the goals for strengths in (0, 1): there
the errors of potential and gradient differ by as much as those of the rivals, which the goals are to beat.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time

BOTH = ["--outputs", "potential,gradient"]
# The points of Goude & Engblom (2012), 45 in a leaf; the cloud follows.
PLANE = ["--kernel", "harmonic2d", "--n", 45 << 16, "--arrays", "device", "--demo"]
# Kernels of the plane on quadtrees: name, kernel and method.
QUADTREE = [
    ("K0", ["--kernel", "yukawa2d", "--set", "kappa=10"]),
    ("log", ["--expression", "ln(r)", "--dim", 2, "--method", "equivalent"]),
    ("gaussian", ["--kernel", "gaussian", "--dim", 2, "--set", "h=0.1", "--method", "interpolation"]),
]
# Sums by spherical harmonics: name, options and goal.
HARMONICS = [
    ("2^24 f32 both", ["--n", 1 << 24, "--precision", "f32", "--order", 7, *BOTH], 40),
    ("2^20 f32 both", ["--n", 1 << 20, "--precision", "f32", "--order", 7, *BOTH], 3.5),
    ("2^20 f32 potential", ["--n", 1 << 20, "--precision", "f32", "--order", 6], 2.7),
    ("2^20 f64 both", ["--n", 1 << 20, "--order", 8, *BOTH], 5.5),
]
# Name, options, what is compared, milliseconds to reach.
CASES = [
    ("device 2^24 f32 both", ["--n", 1 << 24, "--precision", "f32", "--order", 6, *BOTH, "--arrays", "device"],
     "apply + points", 40),
    ("device 2^24 f32 both, 3.2e-4",
     ["--n", 1 << 24, "--precision", "f32", "--tolerance", 3.2e-4, *BOTH, "--arrays", "device"], "apply + plan", 55),
    ("device 2^24 f32 both, 1e-4", ["--n", 1 << 24, "--precision", "f32", "--tolerance", 1e-4, *BOTH, "--arrays", "device"],
     "apply + plan", None),
    ("device 2^20 f32 both", ["--n", 1 << 20, "--precision", "f32", "--order", 7, *BOTH, "--arrays", "device"],
     "apply + points", 3.5),
    ("device 2^20 f32 potential", ["--n", 1 << 20, "--precision", "f32", "--order", 6, "--arrays", "device"],
     "apply + points", 2.7),
    ("device 2^20 f64 both", ["--n", 1 << 20, "--order", 7, *BOTH, "--arrays", "device"], "apply + points", 5.5),
    *[(f"device {name}, harmonics", [*options, "--method", "spherical", "--arrays", "device"], "apply + points", goal)
      for name, options, goal in HARMONICS],
    ("device 2^16 f32 potential, 1e-4",
     ["--n", 1 << 16, "--precision", "f32", "--tolerance", 1e-4, "--arrays", "device"], "apply", 0.3),
    ("device 2^17 f32 potential, 1e-4",
     ["--n", 1 << 17, "--precision", "f32", "--tolerance", 1e-4, "--arrays", "device"], "apply", None),
    ("device 2^14 f32 potential, 1e-4",
     ["--n", 1 << 14, "--precision", "f32", "--tolerance", 1e-4, "--arrays", "device"], "apply", None),
    ("host 2^24 f32 both", ["--n", 1 << 24, "--precision", "f32", "--order", 6, *BOTH], "apply", 60),
    ("host 2^24 f32 both, 1e-4", ["--n", 1 << 24, "--precision", "f32", "--tolerance", 1e-4, *BOTH], "plan", 75),
    ("host 2^20 f32 both", ["--n", 1 << 20, "--precision", "f32", "--order", 7, *BOTH], "apply", 6),
    ("host 2^24 f64 both, 1e-6", ["--n", 1 << 24, "--tolerance", 1e-6, *BOTH], "apply", 130),
    ("host 2^18 f32 potential, 1e-4", ["--n", 1 << 18, "--precision", "f32", "--tolerance", 1e-4], "whole - open", 100),
    ("device 2^20 matern32, 1e-6", ["--n", 1 << 20, "--kernel", "matern32", "--tolerance", 1e-6, "--arrays", "device"],
     "apply", 25),
    ("device 2^20 f32 both, ellipsoid",
     ["--demo", "ellipsoid", "--n", 1 << 20, "--precision", "f32", "--order", 7, *BOTH, "--arrays", "device"],
     "apply + points", None),
    *[(f"plane {cloud} f64, 1e-6 largest", [*PLANE, f"{cloud}2d", "--tolerance", 1e-6, "--norm", "max"], "apply + points", goal)
      for cloud, goal in (("uniform", 9), ("normal", 11), ("layer", 10))],
    ("plane uniform f64, 1e-12", [*PLANE, "uniform2d", "--tolerance", 1e-12], "apply + points", 16),
    ("plane uniform f32, 1e-5", [*PLANE, "uniform2d", "--tolerance", 1e-5, "--precision", "f32"], "apply + points", 5),
    ("plane 2^25 f64, 1e-6", [*PLANE[:3], 1 << 25, *PLANE[4:], "uniform2d", "--tolerance", 1e-6], "apply + points", 100),
    ("plane whole, 2^18 f64 1e-6", ["--kernel", "harmonic2d", "--n", 1 << 18, "--demo", "uniform2d", "--tolerance", 1e-6],
     "whole - open", 100),
    *[(f"quadtree {name} 2^{log} {precision}, {tolerance:.0e}",
       [*kernel, "--demo", "normal2d", "--n", 1 << log, "--precision", precision, "--tolerance", tolerance, "--arrays", "device"],
       "apply + points", None)
      for name, kernel in QUADTREE for log in (20, 22) for precision, tolerance in (("f64", 1e-6), ("f32", 1e-4))],
]


# A process that opens a device, prints the time and ends.
EMPTY = """
import ctypes, os, time
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
print(time.time(), flush=True)
os._exit(0)
"""


def empty_ends():
    """Seconds in which an empty process ends, median of 5."""
    ends = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", EMPTY], capture_output=True, text=True, check=True)
        ends.append(time.time() - float(done.stdout))
    return sorted(ends)[2]


def run(fmm, options, compared, folder):
    """The report of the command, or the line in which it refuses the tolerance."""
    demo = [] if "--demo" in options else ["--demo", "uniform"]
    repeat = ["--repeat", "20", "--verify", "500"] if compared != "whole - open" else []
    numbers = ["--numbers", "f32"] if "f32" in options else []
    command = [fmm, "run", "--backend", "cuda", "--json", "--cache", folder, *demo, *map(str, options), *numbers, *repeat]
    with tempfile.TemporaryFile("w+") as errors:
        start = time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            line = process.stdout.readline()
            said = time.time()
            process.communicate()
        whole = time.time() - start
        if not line:
            errors.seek(0)
            said = errors.read()
            if "below the floor" in said:
                return said.strip()
            raise SystemExit(f"{' '.join(command)}: {said}")
    row = json.loads(line)
    row["seconds"] |= {"whole": whole, "end": start + whole - said}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fmm", default=os.path.join(os.path.dirname(__file__), "../target/release/fmm"))
    parser.add_argument("--csv", default=None)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    names = ["plan", "tree", "lists", "operators", "probe", "set_points", "apply", "p2m", "m2m", "m2l", "l2l", "l2p", "m2p",
             "p2p", "open", "whole", "end"]
    print(f"{'case':<34} {'method':<14} {'p':>2} {'errors':>16}  {'compared':<15} {'ms':>8} {'reach':>6}", flush=True)
    # Rows are written as they come, so that a time limit leaves those before it.
    with tempfile.TemporaryDirectory() as folder, open(args.csv or os.devnull, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["case", "warm", "method", "order", "precision", "potential", "gradient", *names])
        for name, options, compared, reach in CASES:
            if args.only not in name:
                continue
            for again in range(2):
                row = run(args.fmm, options, compared, folder)
                if isinstance(row, str):
                    break
                s = row["seconds"]
                s["points"] = s.get("set_points", float("nan"))
                value = {
                    "apply": s["apply"],
                    "plan": s["plan"],
                    "apply + points": s["apply"] + s["points"],
                    "apply + plan": s["apply"] + s["plan"],
                    "whole - open": s["whole"] - s["open"],
                }[compared]
                errors = {k: v["rel_l2"] for k, v in row["errors"].items()}
                out.writerow([name, again, row["method"], row["order"], row["precision"], errors.get("potential"),
                              errors.get("gradient"), *[s.get(k) for k in names]])
                file.flush()
            if isinstance(row, str):
                print(f"{name:<34} refused: {row}", flush=True)
                continue
            shown = "/".join(f"{e:.1e}" for _, e in sorted(errors.items(), reverse=True))
            ends = f"  (end {1e3 * s['end']:.0f}, empty {1e3 * empty_ends():.0f})" if compared == "whole - open" else ""
            print(f"{name:<34} {row['method']:<14} {row['order'] or 0:>2} {shown:>16}  {compared:<15} {1e3 * value:>8.2f} "
                  f"{reach if reach else '':>6}{ends}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
