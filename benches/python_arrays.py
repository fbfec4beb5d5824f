"""Times of one evaluation on arrays of a GPU, in f32 for a tolerance of 1e-4: the command, PyTorch, CuPy, JAX, and
functions that JAX compiles. Needs a GPU, the Python package fmm, PyTorch, CuPy and JAX.

    python3 benches/python_arrays.py --command target/release/fmm --csv python-arrays.csv

Rows are medians of 100 calls with the wait for the result, in turns. "jax jit of 2 q" is a compiled function without a
sum; "of 20 sums, each" is one compiled function with 20 sums, by 20. With `--busy` (`benches/xla_busy.cu`), the rows
"busy" show what a library and JAX add to one kernel that takes as long as the sum, and "jax jit of an empty call" what
JAX adds to none.
"""

import argparse
import csv
import ctypes
import json
import subprocess
import tempfile
import time
from pathlib import Path

import cupy
import jax
import numpy as np
import torch

import fmm
import fmm.jax

OPTIONS = {"tolerance": 1e-4, "precision": "f32"}


def timed(call, repeats):
    """The median and the least time, in microseconds."""
    for _ in range(5):
        call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return seconds[len(seconds) // 2] * 1e6, seconds[0] * 1e6


def command(program, folder, repeats):
    done = subprocess.run(
        [program, "run", "--sources", folder / "x.npy", "--strengths", folder / "q.npy", "--backend", "cuda",
         "--arrays", "device", "--tolerance", "1e-4", "--precision", "f32", "--numbers", "f32",
         "--repeat", str(repeats), "--json", "--costs", "built-in"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)["seconds"]["apply"] * 1e6, float("nan")


def busy(library, q, nanoseconds):
    """Measurements without a sum: a kernel that takes as long, and none."""
    like = jax.ShapeDtypeStruct(q.shape, q.dtype)

    def jitted(nanoseconds):
        return jax.jit(lambda q: jax.ffi.ffi_call("busy_call", like)(q, nanoseconds=np.int64(nanoseconds)))

    def by_torch():
        library.busy_on(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), ctypes.c_longlong(nanoseconds))
        torch.cuda.synchronize()

    kernel, empty = jitted(nanoseconds), jitted(0)
    return {
        "busy, torch": by_torch,
        "busy, jax jit": lambda: kernel(q).block_until_ready(),
        "jax jit of an empty call": lambda: empty(q).block_until_ready(),
    }


def cases(n, program, folder, repeats, library):
    """The measurements of one size, by name."""
    rng = np.random.default_rng(0)
    x, q = rng.random((n, 3)), rng.standard_normal(n)
    np.save(folder / "x.npy", x)
    np.save(folder / "q.npy", q)
    x, q = x.astype(np.float32), q.astype(np.float32)
    libraries = {"torch": lambda a: torch.asarray(a, device="cuda"), "cupy": cupy.asarray, "jax": jax.device_put}
    plans = {name: fmm.Plan("laplace", to(x), backend="cuda", **OPTIONS) for name, to in libraries.items()}
    given = {name: to(q) for name, to in libraries.items()}
    outs = {name: plans[name].apply(given[name]) for name in ("torch", "cupy")}

    def there(name):
        plans[name].apply(given[name], out=outs[name])
        plans[name].synchronize()

    jx, jq = jax.device_put(x), given["jax"]
    once = jax.jit(lambda q: fmm.jax.apply(plans["jax"], q))
    often = jax.jit(lambda q: jax.lax.fori_loop(0, 20, lambda _, w: q + 1e-9 * fmm.jax.apply(plans["jax"], w), q))
    empty = jax.jit(lambda q: 2 * q)
    moving = jax.jit(lambda x, q: fmm.jax.evaluate("laplace", x, q, **OPTIONS))
    gradient = jax.jit(jax.grad(lambda x, q: fmm.jax.evaluate("laplace", x, q, **OPTIONS).sum(), argnums=(0, 1)))
    others = {}
    if library is not None:
        # Launch and wait take 15 us of it.
        as_long = int((timed(lambda: there("torch"), repeats)[0] - 15) * 1e3)
        others = busy(library, jq, as_long)
    return {
        "command": lambda: command(program, folder, repeats),
        "torch": lambda: timed(lambda: there("torch"), repeats),
        "cupy": lambda: timed(lambda: there("cupy"), repeats),
        "jax": lambda: timed(lambda: plans["jax"].apply(jq), repeats),
        "jax jit": lambda: timed(lambda: once(jq).block_until_ready(), repeats),
        "jax jit of 20 sums, each": lambda: [t / 20 for t in timed(lambda: often(jq).block_until_ready(), repeats)],
        "jax jit of 2 q": lambda: timed(lambda: empty(jq).block_until_ready(), repeats),
        **{name: lambda call=call: timed(call, repeats) for name, call in others.items()},
        "jax jit, points that move": lambda: timed(lambda: moving(jx, jq).block_until_ready(), repeats),
        "jax jit, gradient": lambda: timed(lambda: jax.block_until_ready(gradient(jx, jq)), repeats),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--command", default="target/release/fmm")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--busy", metavar="LIBRARY", help="what benches/xla_busy.cu was compiled to")
    given = parser.parse_args()
    library = None
    if given.busy:
        library = ctypes.CDLL(str(Path(given.busy).resolve()))
        jax.ffi.register_ffi_target("busy_call", jax.ffi.pycapsule(library.busy_call), platform="CUDA")
    with given.csv.open("w", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.writer(file)
        writer.writerow(["n", "round", "who", "median_us", "least_us", torch.cuda.get_device_name()])
        for n in (1 << 16, 1 << 20):
            for k in range(given.rounds):
                for who, measure in cases(n, given.command, Path(folder), given.repeats, library).items():
                    median, least = measure()
                    writer.writerow([n, k, who, f"{median:.1f}", f"{least:.1f}"])
                    print(n, k, f"{who:28} {median:10.1f} us (least {least:.1f})", flush=True)


if __name__ == "__main__":
    main()
