"""The drop-ins beside the genuine packages, which need environments of their own: fmm2dpy 0.0.5 takes NumPy 1 only.

``FMM3DPY=/path/to/python FMM2DPY=/path/to/python pytest tests/test_compat_genuine.py`` names Pythons that have
fmm3dpy 2.1.0 and fmm2dpy 0.0.5. Every function, pg, nd and kind of strengths is called there and here. Shapes, types,
memory order, None, ier, warnings and exceptions are the same; each output of a fast sum is within eps of the genuine
direct sum. GENUINE_N=2000 takes as many sources as the packages' own suites.
"""

import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import genuine
import numpy as np
import pytest

N, M, EPS = int(os.environ.get("GENUINE_N", 600)), 500, 1e-6
#: Arguments that say where and how well sums are computed.
PLACES = ("targets", "pg", "pgt", "ifppreg", "ifppregtarg", "eps")


def _arrays(dim, kind):
    """Points, and strengths for one and for two densities."""
    rng = np.random.default_rng(3)

    def values(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    arrays = {"x": rng.random((dim, N)), "y": rng.random((dim, M))}
    arrays["x"][:, 7] = arrays["x"][:, 8]
    arrays["y"][:, 5] = arrays["x"][:, 8]
    for nd in (1, 2):
        lead = () if nd == 1 else (nd,)
        arrays[f"c{nd}"], arrays[f"d{nd}"] = values(*lead, N), values(*lead, N)
        arrays[f"v{nd}"] = rng.standard_normal((*lead, dim, N))
        arrays[f"w{nd}"] = rng.standard_normal((*lead, dim, N))
        arrays[f"z{nd}"] = values(*lead, dim, N)
    return arrays


def _of_charges(fast, direct, levels, charges, dipoles, extra):
    """The grid of the packages' own suites: charges, dipoles or both, at sources, targets or both, pg, nd; with direct
    sums at both."""
    calls = []
    for nd, which, level in itertools.product((1, 2), ("c", "d", "cd"), range(1, levels + 1)):
        given = {**(charges(nd) if "c" in which else {}), **(dipoles(nd) if "d" in which else {}), **extra, "nd": nd}
        for place in ("s", "t", "st"):
            at = {"targets": "array:y"} if "t" in place else {}
            pg = {"pg": level} if "s" in place else {}
            pgt = {"pgt": level} if "t" in place else {}
            calls.append((fast, {"eps": EPS, "sources": "array:x", **given, **at, **pg, **pgt}))
        for at in ("array:x", "array:y"):
            calls.append((direct, {"sources": "array:x", "targets": at, **given, "pgt": level}))
    return calls


def _refused(fast, direct):
    """Calls that are refused, or that return nothing."""
    x, y, c = "array:x", "array:y", "array:c1"
    usual = {"eps": EPS, "sources": x, "charges": c}
    return [
        (fast, {**usual}),
        (fast, {**usual, "targets": y, "pg": 1}),
        (fast, {**usual, "targets": y, "pg": 1, "pgt": 2}),
        (fast, {**usual, "pgt": 1}),
        (fast, {**usual, "pg": 4}),
        (fast, {**usual, "pg": 4, "pgt": 1, "targets": y}),
        (fast, {**usual, "pg": 1, "nd": 2}),
        (fast, {"eps": EPS, "sources": x, "pg": 1}),
        (fast, {**usual, "charges": y, "pg": 1}),
        (fast, {**usual, "sources": c, "pg": 1}),
        (fast, {**usual, "targets": c, "pgt": 1}),
        (fast, {**usual, "charges": "array:complex", "pg": 1}),
        (fast, {**usual, "charges": "array:single", "sources": "array:single_x", "pg": 1}),
        (fast, {**usual, "charges": "array:whole", "pg": 1}),
        (fast, {**usual, "charges": "array:column", "pg": 1}),
        (fast, {**usual, "sources": "array:one", "charges": "array:strength", "targets": "array:other", "pgt": 2}),
        (fast, {**usual, "unknown": 1}),
        (direct, {"sources": x, "targets": y, "charges": c}),
        (direct, {"sources": x, "targets": c, "charges": c, "pgt": 1}),
        (direct, {"sources": x, "targets": y, "charges": y, "pgt": 1}),
    ]


def _flows():
    calls = []
    for nd, which, level in itertools.product((1, 2), ("f", "s", "fs"), (1, 2, 3)):
        given = {"stoklet": f"array:v{nd}"} if "f" in which else {}
        if "s" in which:
            given |= {"strslet": f"array:w{nd}", "strsvec": f"array:z{nd}"}
        given |= {"eps": EPS, "sources": "array:x", "nd": nd}
        for at, pg, pgt in (("s", level, 0), ("t", 0, level), ("st", level, level), ("st", 1, level)):
            targets = {"targets": "array:as_many"} if "t" in at else {}
            calls.append(("stfmm3d", {**given, **targets, "ifppreg": pg, "ifppregtarg": pgt}))
        for targets in ("array:x", "array:as_many"):
            calls.append(("st3ddir", {**given, "targets": targets, "ifppreg": level, "ifppregtarg": level}))
    refused = {"eps": EPS, "sources": "array:x", "ifppreg": 1}
    calls += [("stfmm3d", {**refused, **more}) for more in ({}, {"strslet": "array:v1"}, {"stoklet": "array:y"})]
    return calls


def _suite(name):
    """The module, its arrays, its calls."""
    if name == "l3d":
        both = lambda nd: {"charges": f"array:c{nd}"}, lambda nd: {"dipvec": f"array:v{nd}"}
        calls = _of_charges("lfmm3d", "l3ddir", 3, *both, {}) + _refused("lfmm3d", "l3ddir")
        return "fmm3dpy", _arrays(3, float), calls
    if name == "h3d":
        both = lambda nd: {"charges": f"array:c{nd}"}, lambda nd: {"dipvec": f"array:z{nd}"}
        return "fmm3dpy", _arrays(3, complex), _of_charges("hfmm3d", "h3ddir", 2, *both, {"zk": 1.1})
    if name == "st3d":
        return "fmm3dpy", _arrays(3, float), _flows()
    charges = lambda nd: {"charges": f"array:c{nd}"}
    dipoles = lambda nd: {"dipstr": f"array:d{nd}"} | ({} if name == "c2d" else {"dipvec": f"array:v{nd}"})
    fast, direct = f"{name[0]}fmm2d", f"{name[0]}2ddir"
    calls = _of_charges(fast, direct, 3, charges, dipoles, {}) + _refused(fast, direct)
    return "fmm2dpy", _arrays(2, float if name == "r2d" else complex), calls


def _more(arrays):
    """Arrays of other types and shapes."""
    c = arrays["c1"].real.copy()
    arrays |= {"complex": c + 1j, "single": c.astype(np.float32), "single_x": arrays["x"].astype(np.float32)}
    arrays |= {"whole": np.arange(N), "column": c[:, None], "one": arrays["x"][:, 0], "other": arrays["y"][:, 0]}
    arrays |= {"strength": c[:1], "as_many": np.random.default_rng(4).random((len(arrays["x"]), N))}
    return arrays


@pytest.mark.parametrize("name", ["l3d", "h3d", "st3d", "r2d", "l2d", "c2d"])
@pytest.mark.filterwarnings("ignore")
def test_the_genuine_package_says_the_same(name, tmp_path):
    package, arrays, calls = _suite(name)
    python = os.environ.get(package.upper())
    if not python:
        pytest.skip(f"set {package.upper()} to a Python that has {package}")
    arrays = _more(arrays)
    np.savez(tmp_path / "calls.npz", calls=json.dumps(calls), **arrays)
    script = [python, str(Path(genuine.__file__)), package, str(tmp_path / "calls.npz"), str(tmp_path / "results.npz")]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ""})
    module = importlib.import_module(f"fmm.compat.{package}")
    theirs = np.load(tmp_path / "results.npz")
    others = json.loads(str(theirs["others"]))
    exact, missing = {}, 0
    for k, (function, arguments) in enumerate(calls):
        if "dir" in function and "raised" not in others[k]:
            key = tuple(sorted((a, str(v)) for a, v in arguments.items() if a not in PLACES))
            for place, at in (("", arguments["sources"]), ("targ", arguments["targets"])):
                for output in ("pot", "grad", "hess", "pre"):
                    if f"{k}/{output}{place}" in theirs:
                        exact[output, at, key] = theirs[f"{k}/{output}{place}"]
    assert exact
    worst = 0.0
    for k, (function, arguments) in enumerate(calls):
        given = {a: arrays[v[6:]] if isinstance(v, str) and v.startswith("array:") else v for a, v in arguments.items()}
        ours = genuine.called(module, function, given)
        where = f"{function} {arguments}"
        if ours.get("raised") == "NotImplementedError":
            missing += 1
            continue
        for attribute, value in others[k].items():
            assert ours.get(attribute, "nothing") == value, (where, attribute, ours.get("raised"))
        for attribute in (a for a in ours if f"{k}/{a}" in theirs):
            mine, his = ours[attribute], theirs[f"{k}/{attribute}"]
            assert mine.shape == his.shape and mine.dtype == his.dtype, (where, attribute, mine.shape, his.shape)
            assert mine.flags.f_contiguous and his.flags.f_contiguous
            bound = 1e-12
            if "dir" not in function:
                key = tuple(sorted((a, str(v)) for a, v in arguments.items() if a not in PLACES))
                at = arguments["targets" if attribute.endswith("targ") else "sources"]
                his, bound = exact.get((attribute.removesuffix("targ"), at, key)), arguments["eps"]
                if his is None:
                    continue
                his = his.reshape(mine.shape)
            if attribute.startswith("pot") and name == "c2d":
                mine, his = mine.real, his.real
            for a, b in zip(mine, his) if arguments.get("nd") == 2 else [(mine, his)]:
                error = np.linalg.norm(a - b) / np.linalg.norm(b)
                assert error < bound, (where, attribute, error)
                worst = max(worst, error if "dir" not in function else 0.0)
    print(f"{name}: {len(calls)} calls, {missing} not implemented, worst error {worst:.2g}", file=sys.stderr)
