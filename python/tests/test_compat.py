"""The drop-ins for fmm3dpy and fmm2dpy, each output by itself.

Direct sums are compared with formulas, written here with vectors and matrices, one target at a time. Fast sums are
compared with direct sums: the grids of the packages' own suites on few points, and the sums with most parts on many.
"""

import functools
import itertools
import warnings

import numpy as np
import pytest
from conftest import relative

import fmm
import fmm.compat.fmm2dpy as fmm2dpy
import fmm.compat.fmm3dpy as fmm3dpy
from fmm.compat import _terms

N, M, EPS = 600, 500, 1e-5
LEVELS = ("pot", "grad", "hess")


def points(dim, n=N, m=M):
    """Sources with a double point, and targets with one on a source."""
    rng = np.random.default_rng(11)
    x, y = rng.random((dim, n)), rng.random((dim, m))
    x[:, 3] = x[:, 4]
    y[:, 9] = x[:, 4]
    return x, y


def strengths(*shape, kind=float):
    rng = np.random.default_rng(12)
    real = rng.standard_normal(shape)
    return real + 1j * rng.standard_normal(shape) if kind is complex else real


def at_each(targets, sources, term):
    """The sums of ``term(r, rr)`` over sources, where r is (n, d) and rr its length, without those of length 0; a list of
    arrays with the targets last."""
    found = []
    for y in targets.T:
        r = y - sources.T
        rr = np.linalg.norm(r, axis=1)
        some = rr > 0
        found.append(term(r[some], rr[some], some))
    return [np.stack(each, axis=-1) for each in zip(*found)]


def entries(matrix):
    """xx, yy, zz, xy, xz, yz, or xx, xy, yy."""
    if len(matrix) == 2:
        return np.array([matrix[0, 0], matrix[0, 1], matrix[1, 1]])
    return np.array([matrix[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))])


def newton(c, v):
    """1/(4 pi r) with charges c (n,) and dipoles v (3, n)."""

    def term(r, rr, some):
        q, p = c[some], v.T[some]
        pr, eye, outer = (p * r).sum(axis=1), np.eye(3), lambda w, a, b: np.einsum("n,ni,nj->ij", w, a, b)
        pot = (q / rr + pr / rr**3).sum()
        grad = (-q / rr**3 - 3 * pr / rr**5) @ r + (1 / rr**3) @ p
        hess = outer(3 * q / rr**5 + 15 * pr / rr**7, r, r) - eye * (q / rr**3 + 3 * pr / rr**5).sum()
        mixed = outer(-3 / rr**5, p, r)
        return pot / (4 * np.pi), grad / (4 * np.pi), entries(hess + mixed + mixed.T) / (4 * np.pi)

    return term


def logarithm(c, v):
    """log r with charges c (n,) and dipoles v (2, n)."""

    def term(r, rr, some):
        q, p = c[some], v.T[some]
        pr, eye, outer = (p * r).sum(axis=1), np.eye(2), lambda w, a, b: np.einsum("n,ni,nj->ij", w, a, b)
        pot = (q * np.log(rr) - pr / rr**2).sum()
        grad = (q / rr**2 + 2 * pr / rr**4) @ r - (1 / rr**2) @ p
        hess = outer(-2 * q / rr**4 - 8 * pr / rr**6, r, r) + eye * (q / rr**2 + 2 * pr / rr**4).sum()
        mixed = outer(2 / rr**4, p, r)
        return pot, grad, entries(hess + mixed + mixed.T)

    return term


def cauchy(c, d):
    """c log|z - w| + d/(z - w)."""

    def term(r, rr, some):
        z, q, p = r[:, 0] + 1j * r[:, 1], c[some], d[some]
        return (q * np.log(rr) + p / z).sum(), (q / z - p / z**2).sum(), (-q / z**2 + 2 * p / z**3).sum()

    return term


def waves(k, c, v):
    """exp(i k r)/(4 pi r), charges and dipoles; the gradient by the chain rule."""

    def term(r, rr, some):
        q, p = c[some], v.T[some]
        g = np.exp(1j * k * rr) / (4 * np.pi * rr)
        slope = g * (1j * k - 1 / rr)
        bend = g * ((1j * k - 1 / rr) ** 2 + 1 / rr**2)
        n = r / rr[:, None]
        pn = (p * n).sum(axis=1)
        pot = (q * g - pn * slope).sum()
        grad = (q * slope - pn * bend + pn * slope / rr) @ n - (slope / rr) @ p
        return pot, grad

    return term


FORMULAS = {"l3": newton, "r2": logarithm, "l2": logarithm, "c2": cauchy, "h3": functools.partial(waves, 1.3)}
SUITES = [("l3", fmm3dpy, 3), ("h3", fmm3dpy, 2), ("r2", fmm2dpy, 3), ("l2", fmm2dpy, 3), ("c2", fmm2dpy, 3)]


def dimension(name):
    return int(name[1])


def given(name, which, nd, n):
    """Arguments of a function: charges ("c" in ``which``) and dipoles ("d") of nd densities."""
    kind, rows, dim = float if name in ("l3", "r2") else complex, slice(None) if nd == 2 else 0, dimension(name)
    chosen = {"charges": strengths(2, n, kind=kind)[rows]} if "c" in which else {}
    if "d" in which and name in ("l3", "h3"):
        chosen["dipvec"] = strengths(2, 3, n, kind=kind)[rows]
    elif "d" in which:
        chosen["dipstr"] = strengths(2, n, kind=kind)[::-1][rows]
        chosen |= {} if name == "c2" else {"dipvec": strengths(2, 2, n)[rows]}
    return {**chosen, "nd": nd, **({"zk": 1.3} if name == "h3" else {})}


def dipoles(name, arguments, n):
    """The dipoles that the formulas take, of one density."""
    if "dipstr" in arguments and name != "c2":
        return arguments["dipstr"] * arguments["dipvec"]
    zero = np.zeros(n) if name == "c2" else np.zeros((dimension(name), n))
    return arguments.get("dipstr", arguments.get("dipvec", zero))


@pytest.mark.parametrize("name, module, levels", SUITES)
def test_direct_sums_are_the_formulas(name, module, levels):
    n, m = 300, 70
    x, y = points(dimension(name), n, m)
    direct = getattr(module, f"{name[0]}{name[1]}ddir")
    for which in ("c", "d", "cd"):
        one = given(name, which, 1, n)
        exact = at_each(y, x, FORMULAS[name](one.get("charges", np.zeros(n)), dipoles(name, one, n)))
        for level in range(1, levels + 1):
            out, both = (direct(sources=x, targets=y, **given(name, which, nd, n), pgt=level) for nd in (1, 2))
            for rank, output in enumerate(LEVELS):
                array = getattr(out, f"{output}targ")
                if rank >= level:
                    assert array is None
                    continue
                # As in the packages, the gradient of one density keeps its axis if there are second derivatives.
                shape = exact[rank].shape
                assert array.shape == ((1, *shape) if level == 3 and rank == 1 else shape)
                assert relative(array.reshape(shape), exact[rank]) < 1e-12, (which, level, output)
                twice = getattr(both, f"{output}targ")
                assert twice.shape == (2, *shape) and twice.flags.f_contiguous
                assert np.allclose(twice[0], array.reshape(shape), rtol=1e-10)
    at_sources = direct(sources=x, targets=x, **given(name, "c", 1, n), pgt=1).pottarg
    charges = given(name, "c", 1, n)["charges"]
    exact = at_each(x, x, FORMULAS[name](charges, dipoles(name, {}, n)))
    assert relative(at_sources, exact[0]) < 1e-12


@functools.cache
def summed(name, which, nd):
    """Direct sums of the highest level at the sources and at the targets."""
    x, y = points(dimension(name))
    module, levels = {n: (m, k) for n, m, k in SUITES}[name]
    direct = getattr(module, f"{name[0]}{name[1]}ddir")
    return [direct(sources=x, targets=at, **given(name, which, nd, N), pgt=levels) for at in (x, y)]


@pytest.mark.parametrize("which", ["c", "d", "cd"])
@pytest.mark.parametrize("name, module, levels", SUITES)
def test_sums_keep_eps_on_each_output(name, module, levels, which):
    x, y = points(dimension(name))
    sums = getattr(module, f"{name[0]}fmm{name[1]}d")
    for nd, level, place in itertools.product((1, 2), range(1, levels + 1), ("s", "t", "st")):
        if (place != "st" or nd == 2) and (nd, level) != (2, levels):
            continue  # Sources alone, targets alone and several densities take the same way at each level.
        at = {"targets": y} if "t" in place else {}
        where = ({"pg": level} if "s" in place else {}) | ({"pgt": level} if "t" in place else {})
        if level == 3 and "d" in which and name[1] == "2" and not fmm2dpy._has_hessian("harmonic2d"):
            with pytest.raises(NotImplementedError, match="2ddir"):
                sums(eps=EPS, sources=x, **at, **given(name, which, nd, N), **where)
            continue
        out = sums(eps=EPS, sources=x, **at, **given(name, which, nd, N), **where)
        for suffix, letter, exact in zip(("", "targ"), "st", summed(name, which, nd)):
            for rank, output in enumerate(LEVELS):
                array = getattr(out, output + suffix)
                if rank >= level or letter not in place:
                    assert array is None
                    continue
                reference = getattr(exact, f"{output}targ")
                assert array.flags.f_contiguous and array.dtype == reference.dtype
                reference = reference.reshape(array.shape)
                for k in range(nd):
                    error = relative(*((array[k], reference[k]) if nd == 2 else (array, reference)))
                    assert error < EPS, (nd, level, place, output, error)


MANY = [("l3", "cd", 3), ("l3", "d", 2), ("h3", "c", 2), ("r2", "cd", 2), ("r2", "c", 3), ("l2", "d", 2), ("c2", "cd", 2)]


@pytest.mark.parametrize("name, which, level", MANY)
def test_many_points(name, which, level):
    n = 3000 if name == "h3" else 20_000
    x, y = points(dimension(name), n, n)
    module = fmm3dpy if name[1] == "3" else fmm2dpy
    arguments = {"sources": x, **given(name, which, 1, n), "pgt": level}
    out = getattr(module, f"{name[0]}fmm{name[1]}d")(eps=EPS, targets=y, **arguments)
    exact = getattr(module, f"{name[0]}{name[1]}ddir")(targets=y[:, :300], **arguments)
    for output in LEVELS[:level]:
        array = getattr(out, f"{output}targ")[..., :300]
        error = relative(array, getattr(exact, f"{output}targ").reshape(array.shape))
        assert error < EPS, (output, error)


def test_charges_and_dipoles_that_nearly_cancel():
    rng = np.random.default_rng(2)
    n, h = 4000, 1e-3
    x, y, v, d = rng.random((2, n)), rng.random((2, n)) + 1.5, rng.standard_normal((2, n)), rng.standard_normal(n)
    # Charges d/h at x + h v/2 and -d/h at x - h v/2 are the dipole d v at x, to which its opposite is added.
    arguments = {
        "sources": np.concatenate([x + h * v / 2, x - h * v / 2, x], axis=1),
        "charges": np.concatenate([d / h, -d / h, np.zeros(n)]),
        "dipstr": np.concatenate([np.zeros(2 * n), -0.999 * d]),
        "dipvec": np.concatenate([np.ones((2, 2 * n)), v], axis=1),
        "pgt": 2,
    }
    out = fmm2dpy.rfmm2d(eps=1e-3, targets=y, **arguments)
    exact = fmm2dpy.r2ddir(targets=y[:, :500], **arguments)
    arguments["dipstr"] = 0 * arguments["dipstr"]
    part = fmm2dpy.r2ddir(targets=y[:, :500], **arguments)
    for output in ("pottarg", "gradtarg"):
        a, b, c = (getattr(o, output)[..., :500] for o in (out, exact, part))
        assert np.linalg.norm(b) < 0.1 * np.linalg.norm(c)
        assert relative(a, b) < 1e-3


def flow(f, m, n):
    """Velocity, pressure, [j, i] = du_i/dx_j of forces and stresslets."""

    def term(r, rr, some):
        a, b, c = f.T[some], m.T[some], n.T[some]
        fr, mr, nr, mn = (a * r).sum(axis=1), (b * r).sum(axis=1), (c * r).sum(axis=1), (b * c).sum(axis=1)
        eye, outer = np.eye(3), lambda w, p, q: np.einsum("n,ni,nj->ij", w, p, q)
        u = ((1 / rr) @ a + (fr / rr**3) @ r) / (8 * np.pi) + (mr * nr / rr**5) @ r * 3 / (4 * np.pi)
        p = (fr / rr**3).sum() / (4 * np.pi) + (3 * mr * nr / rr**5 - mn / rr**3).sum() / (2 * np.pi)
        force = outer(1 / rr**3, a, r).T * -1 + outer(1 / rr**3, a, r) - outer(3 * fr / rr**5, r, r)
        force = (force + eye * (fr / rr**3).sum()) / (8 * np.pi)
        stress = outer(nr / rr**5, b, r) + outer(mr / rr**5, c, r) - outer(5 * mr * nr / rr**7, r, r)
        stress = (stress + eye * (mr * nr / rr**5).sum()) * 3 / (4 * np.pi)
        return u, p, force + stress

    return term


def forces(which, nd, n):
    f, m, v = (w if nd == 2 else w[0] for w in strengths(3, 2, 3, n))
    return ({"stoklet": f} if "f" in which else {}) | ({"strslet": m, "strsvec": v} if "s" in which else {})


@pytest.mark.parametrize("which", ["f", "s", "fs"])
def test_direct_flows_are_the_formulas(which):
    n, m = 200, 60
    x, y = points(3, n, m)
    zero = np.zeros((3, n))
    one = forces(which, 1, n)
    formula = flow(*(one.get(name, zero) for name in ("stoklet", "strslet", "strsvec")))
    for nd in (1, 2):
        out = fmm3dpy.st3ddir(eps=1, sources=x, targets=y, ifppreg=2, ifppregtarg=3, nd=nd, **forces(which, nd, n))
        assert out.grad is None and out.pot.shape == (nd, 3, n) and out.gradtarg.shape == (nd, 3, 3, m)
        for place, at in (("", x), ("targ", y)):
            for name, exact in zip(("pot", "pre", "grad"), at_each(at, x, formula)):
                array = getattr(out, name + place)
                assert array is None or relative(array[0], exact) < 1e-12


def test_many_forces_and_stresslets():
    x, y = points(3, 10_000, 10_000)
    options = {"eps": EPS, "sources": x, **forces("fs", 1, 10_000), "ifppregtarg": 3}
    out, exact = fmm3dpy.stfmm3d(targets=y, **options), fmm3dpy.st3ddir(targets=y[:, :200], **options)
    for name in ("pottarg", "pretarg", "gradtarg"):
        assert relative(getattr(out, name)[..., :200], getattr(exact, name)) < EPS, name


@pytest.mark.parametrize("which", ["f", "s", "fs"])
def test_flows_keep_eps_on_each_output(which):
    x, y = points(3)
    for nd in (1, 2):
        options = {"sources": x, "targets": y, "nd": nd, **forces(which, nd, N)}
        exact = fmm3dpy.st3ddir(eps=EPS, ifppreg=3, ifppregtarg=3, **options)
        for levels in ((3, 3), (0, 2), (1, 0)):
            out = fmm3dpy.stfmm3d(eps=EPS, ifppreg=levels[0], ifppregtarg=levels[1], **options)
            for place, level in zip(("", "targ"), levels):
                for rank, name in enumerate(("pot", "pre", "grad")):
                    array, reference = getattr(out, name + place), getattr(exact, name + place)
                    if rank >= level:
                        assert array is None
                        continue
                    assert array.shape == reference.shape and array.flags.f_contiguous
                    for k in range(nd):
                        error = relative(array[k], reference[k])
                        assert error < EPS, (nd, levels, name + place, error)


@pytest.mark.parametrize("zk", [0.0, 2j, 1.0 + 0.5j])
def test_complex_wave_numbers(zk):
    x, y = points(3)
    c, v = strengths(N, kind=complex), strengths(3, N, kind=complex)
    out = fmm3dpy.hfmm3d(eps=EPS, zk=zk, sources=x, targets=y, charges=c, dipvec=v, pgt=2)
    exact = fmm3dpy.h3ddir(zk=zk, sources=x, targets=y, charges=c, dipvec=v, pgt=2)
    assert relative(out.pottarg, exact.pottarg) < EPS and relative(out.gradtarg, exact.gradtarg) < EPS
    x, y = points(3, 100, 20)
    direct = fmm3dpy.h3ddir(zk=zk, sources=x, targets=y, charges=c[:100], dipvec=v[:, :100], pgt=2)
    pot, grad = at_each(y, x, waves(zk, c[:100], v[:, :100]))
    assert relative(direct.pottarg, pot) < 1e-12 and relative(direct.gradtarg, grad) < 1e-12


def test_waves_in_small_units():
    x, y = (1e-6 * points for points in points(3, 300, 50))
    arguments = {"zk": 2e6, "sources": x, "targets": y, "charges": strengths(300, kind=complex), "pgt": 2}
    arguments["dipvec"] = 1e-6 * strengths(3, 300, kind=complex)
    out, exact = fmm3dpy.hfmm3d(eps=EPS, **arguments), fmm3dpy.h3ddir(**arguments)
    assert relative(out.pottarg, exact.pottarg) < EPS and relative(out.gradtarg, exact.gradtarg) < EPS


def test_without_a_far_field_sums_are_direct_or_refused(monkeypatch):
    class NoFarField(fmm.Plan):
        def __init__(self, *arguments, **options):
            if "tolerance" in options:
                error = ValueError("no order keeps the tolerance")
                error.floor = 1e-3
                raise error
            super().__init__(*arguments, **options)

    monkeypatch.setattr(_terms._plan, "Plan", NoFarField)
    x, _ = points(3)
    arguments = {"zk": 90.0, "sources": x, "charges": strengths(N, kind=complex)}
    exact = fmm3dpy.h3ddir(targets=x, pgt=1, **arguments).pottarg
    assert relative(fmm3dpy.hfmm3d(eps=1e-6, pg=1, **arguments).pot, exact) < 1e-12
    monkeypatch.setattr(_terms, "PAIRS", 1e3)
    with pytest.raises(NotImplementedError, match="reaches 0.001.*fmm[.]direct"):
        fmm3dpy.hfmm3d(eps=1e-6, pg=1, **arguments)


def test_refusals_and_empty_results(capsys):
    x, y = points(3)
    c, v = strengths(N), strengths(3, N)
    assert fmm3dpy.lfmm3d(eps=EPS, sources=x, charges=c).pot is None
    assert "Nothing to compute" in capsys.readouterr().out
    for wrong in (
        {"charges": c[:-1]}, {"charges": c, "nd": 2}, {"dipvec": v.T}, {"charges": c, "targets": y.T},
        {"charges": c, "targets": y, "pgt": 0}, {"charges": c, "targets": y, "pgt": 2},
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            fmm3dpy.lfmm3d(eps=EPS, sources=x, pg=1, **wrong)
    with pytest.raises(AssertionError):
        fmm2dpy.rfmm2d(eps=EPS, sources=x, charges=c, pg=1)
    with pytest.raises(TypeError):
        fmm3dpy.lfmm3d(EPS, x, c, pg=1)
    nothing = fmm3dpy.lfmm3d(eps=EPS, sources=x, charges=c, pgt=1), fmm3dpy.lfmm3d(eps=EPS, sources=x, pg=1)
    assert all(out.pot is None and out.pottarg is None and out.ier == 0 for out in nothing)
    assert fmm3dpy.l3ddir(sources=x, targets=y, pgt=1).pottarg is None
    assert fmm3dpy.stfmm3d(eps=EPS, sources=x, strslet=v, ifppreg=1).pot is None
    assert fmm3dpy.lfmm3d(eps=EPS, sources=x, targets=y[:, :0], charges=c, pgt=2).gradtarg.shape == (3, 0)


def test_types_are_cast():
    x, _ = points(3)
    c = strengths(N)
    exact = fmm3dpy.lfmm3d(eps=EPS, sources=x, charges=c, pg=1).pot
    with pytest.warns(np.exceptions.ComplexWarning):
        assert np.array_equal(fmm3dpy.lfmm3d(eps=EPS, sources=x, charges=c + 2j, pg=1).pot, exact)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single = fmm3dpy.lfmm3d(eps=EPS, sources=np.asfortranarray(x), charges=c.astype(np.float32), pg=1).pot
    assert single.dtype == np.float64 and relative(single, exact) < 1e-6
    one = fmm3dpy.lfmm3d(eps=EPS, sources=x[:, 0], targets=x[:, 1], charges=c[:1], dipvec=x[:, 2], pgt=3)
    assert one.pottarg.shape == (1,) and one.gradtarg.shape == (3, 1) and one.hesstarg.shape == (6, 1)
    out = fmm3dpy.Output()
    out.pot = exact
    assert fmm3dpy.comperr(ntest=10, out=out, outex=out, pg=1) == 0


NAMES = {
    fmm3dpy: "hfmm3d lfmm3d emfmm3d stfmm3d h3ddir l3ddir em3ddir st3ddir comperr Output",
    fmm2dpy: "hfmm2d rfmm2d lfmm2d cfmm2d bhfmm2d h2ddir r2ddir l2ddir c2ddir bh2ddir comperr Output",
}


def test_every_name_is_there():
    for module, names in NAMES.items():
        assert set(names.split()) <= set(dir(module)) and set(names.split()) == set(module.__all__)
    x, c = np.zeros((3, 1)), np.ones(1)
    for call in (
        lambda: fmm3dpy.emfmm3d(eps=EPS, zk=1.0, sources=x),
        lambda: fmm3dpy.em3ddir(eps=EPS, zk=1.0, sources=x),
        lambda: fmm3dpy.stfmm3d(eps=EPS, sources=x, rotlet=x, rotvec=x, ifppreg=1),
        lambda: fmm3dpy.stfmm3d(eps=EPS, sources=x, doublet=x, doubvec=x, ifppreg=1),
        lambda: fmm2dpy.hfmm2d(eps=EPS, zk=1.0, sources=x[:2], charges=c),
        lambda: fmm2dpy.h2ddir(zk=1.0, sources=x[:2], targets=x[:2], charges=c),
        lambda: fmm2dpy.bhfmm2d(eps=EPS, sources=x[:2], charges=c),
        lambda: fmm2dpy.bh2ddir(sources=x[:2], targets=x[:2], charges=c),
    ):
        with pytest.raises(NotImplementedError, match="fmm[.]"):
            call()
