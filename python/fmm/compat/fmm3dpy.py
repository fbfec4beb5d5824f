"""The names, arguments, shapes, orders and factors of fmm3dpy 2.1.0.

>>> import numpy as np
>>> import fmm.compat.fmm3dpy as fmm3dpy
>>> rng = np.random.default_rng(0)
>>> sources, charges = rng.random((3, 2000)), rng.random(2000)
>>> out = fmm3dpy.lfmm3d(eps=1e-6, sources=sources, charges=charges, pg=2)
>>> out.pot.shape, out.grad.shape
((2000,), (3, 2000))

Differences:

- ``eps`` bounds the relative l2 error of each output by itself. Where no far field does that, the sums are direct.
- Helmholtz sums are for low frequencies; at higher ones they are direct, and refused beyond 1e10 pairs.
- Without strengths, direct sums return an empty ``Output`` (there an AttributeError). ``st3ddir`` takes any number of
  targets. No points at all are allowed.
- Rotlets and doublets, and Maxwell's equations, are a NotImplementedError that says what to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from . import _arguments, _pairs, _terms
from ._arguments import NOTHING, require
from ._terms import Give, Term

__version__ = "2.1.0"
__all__ = [
    "Output", "comperr", "em3ddir", "emfmm3d", "h3ddir", "hfmm3d", "l3ddir", "lfmm3d", "st3ddir", "stfmm3d",
]  # fmt: skip

Array = NDArray[Any]


class Output:
    """What a function returns. An output that was not asked for is None."""

    pot: Any = None
    grad: Any = None
    hess: Any = None
    pottarg: Any = None
    gradtarg: Any = None
    hesstarg: Any = None
    E: Any = None
    curlE: Any = None
    divE: Any = None
    Etarg: Any = None
    curlEtarg: Any = None
    divEtarg: Any = None
    pre: Any = None
    pretarg: Any = None
    ier: Any = 0


def _strengths(charges: Any, dipvec: Any, nd: int, ns: int, kind: type[Any]) -> tuple[Array | None, Array | None]:
    return (
        _arguments.densities(charges, nd, ns, kind, "Charges"),
        _arguments.vectors(dipvec, nd, ns, 3, kind, "dipole vectors"),
    )


def _same(array: Array) -> Array:
    return array


def _six(hessian: Array) -> Array:
    """The entries xx, yy, zz, xy, xz, yz of the last two axes."""
    return hessian[..., [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]


def _laplace(charges: Array | None, dipoles: Array | None, level: int) -> list[Term]:
    """One sum, of charges (nd, n), dipoles (nd, 3, n) or both."""
    if dipoles is None:
        assert charges is not None
        kernel, strengths = kernels.Laplace(), charges
    elif charges is None:
        kernel, strengths = kernels.LaplaceDipole(), np.ascontiguousarray(dipoles.transpose(0, 2, 1))
    else:
        kernel = kernels.LaplaceMixed()
        strengths = np.concatenate([charges[:, :, None], dipoles.transpose(0, 2, 1)], axis=2)
    gives = {"pot": Give("potential", _same), "grad": Give("gradient", _same), }
    # The six entries have not the norm of the nine.
    gives["hess"] = Give("hessian", _six, similar=False)
    return [Term(kernel, strengths, dict(list(gives.items())[:level]))]


def lfmm3d(
    *, eps: float, sources: Any, charges: Any = None, dipvec: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Laplace in space: ``u(x) = sum_j c_j/(4 pi |x - y_j|) - v_j . grad_x (1/(4 pi |x - y_j|))``, without y_j = x.

    Parameters
    ----------
    eps : bound of the relative l2 error of each output
    sources : (3, n); targets : (3, nt)
    charges : (n,) or (nd, n); dipvec : (3, n) or (nd, 3, n)
    pg, pgt : 1 potential, 2 and gradient, 3 and Hessian, at the sources and at the targets
    nd : number of densities

    Returns
    -------
    Output with pot, grad, hess at the sources and pottarg, gradtarg, hesstarg at the targets, of shapes (n,), (3, n),
    (6, n), or (nd, n), (nd, 3, n), (nd, 6, n); Hessians are in the order xx, yy, zz, xy, xz, yz
    """
    out = Output()
    ns = _arguments.count(sources, 3, "sources")
    if pg == 0 and pgt == 0:
        print(NOTHING)
        return out
    c, v = _strengths(charges, dipvec, nd, ns, float)
    if targets is not None:
        _arguments.count(targets, 3, "targets")
    if nd < 1 or (c is None and v is None):
        return out
    x = _arguments.rows(sources, 3)
    for place, level in _arguments.places(pg, pgt, targets, 3):
        sums = _terms.evaluate(_laplace(c, v, level), x, _at(place, targets), nd, eps)
        _fill(out, place, sums, nd)
    return out


def _at(place: str, targets: Any) -> Array | None:
    return _arguments.rows(targets, 3) if place else None


def _fill(out: Output, place: str, sums: dict[str, Array], nd: int) -> None:
    for name, array in sums.items():
        setattr(out, name + place, _arguments.columns(array, nd))


def l3ddir(
    *, sources: Any, targets: Any, charges: Any = None, dipvec: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`lfmm3d` at the targets over all pairs with ``|x - y| > thresh``."""
    return _direct(_pairs.newton, float, sources, targets, charges, dipvec, pgt, nd, thresh, 3)


def _direct(
    green: _pairs.Green, kind: type[Any], sources: Any, targets: Any, charges: Any, dipvec: Any,
    pgt: int, nd: int, thresh: float, levels: int,
) -> Output:  # fmt: skip
    out = Output()
    ns = _arguments.count(sources, 3, "sources")
    if pgt == 0:
        print(NOTHING)
        return out
    c, v = _strengths(charges, dipvec, nd, ns, kind)
    _arguments.count(targets, 3, "targets")
    if nd < 1 or (c is None and v is None) or pgt not in range(1, levels + 1):
        return out
    x, y = _arguments.rows(sources, 3), _arguments.rows(targets, 3)
    found = _pairs.sums(green, x, y, c, v, pgt, float(thresh), kind)
    out.pottarg = np.asfortranarray(found[0][:, 0] if nd > 1 else found[0][0, 0])
    if pgt >= 2:
        # The package leaves the axis of one density here.
        out.gradtarg = np.asfortranarray(found[1] if nd > 1 or pgt == 3 else found[1][0])
    if pgt >= 3:
        out.hesstarg = np.asfortranarray(found[2] if nd > 1 else found[2][0])
    return out


#: exp(i k r)/(4 pi r) for k = a + i b.
_WAVES = """
name helmholtz
parameter a
parameter b
strengths 2
e = exp(-b*r)/(4*pi*r)
c = e*cos(a*r)
s = e*sin(a*r)
value c*q1 - s*q2
value s*q1 + c*q2
"""


def _complex(array: Array) -> Array:
    """(sets, n, 2, …), real and imaginary part, as complex numbers (sets, n, …)."""
    together: Array = array[:, :, 0] + 1j * array[:, :, 1]
    return together


def _helmholtz(zk: complex, charges: Array | None, dipoles: Array | None, level: int) -> list[Term]:
    """Charges, and dipoles as minus the divergence of three sums of charges."""
    kernel = kernels.KernelText(_WAVES, a=zk.real, b=zk.imag)

    def parts(values: Array) -> Array:
        return np.stack([values.real, values.imag], axis=-1)

    terms = []
    if charges is not None:
        gives = {"pot": Give("potential", _complex), "grad": Give("gradient", _complex)}
        terms.append(Term(kernel, parts(charges), dict(list(gives.items())[:level])))
    if dipoles is not None:
        nd, _, n = dipoles.shape
        along = dipoles.transpose(1, 0, 2).reshape(3 * nd, n)

        def divergence(array: Array) -> Array:
            """From (3 nd, n, 2, 3, …): minus the sum over k of the derivative along k of the sums of component k."""
            each = _complex(array).reshape(3, nd, array.shape[1], 3, *array.shape[4:])
            return -sum(each[k, :, :, k] for k in range(3))  # type: ignore[return-value]

        # |sum of three numbers| <= sqrt(3) |the three numbers|.
        gives = {
            "pot": Give("gradient", divergence, 3**0.5, similar=False),
            "grad": Give("hessian", divergence, 3**0.5, similar=False),
        }
        terms.append(Term(kernel, parts(along), dict(list(gives.items())[:level])))
    return terms


def hfmm3d(
    *, eps: float, zk: complex, sources: Any, charges: Any = None, dipvec: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Helmholtz in space, at low frequency: G = exp(i zk r)/(4 pi r) instead of 1/(4 pi r) in :func:`lfmm3d`.

    Strengths and outputs are complex, and pg, pgt reach to 2.

    Raises
    ------
    NotImplementedError : the frequency is so high that only direct sums keep eps, and there are more than 1e10 pairs
    """
    out = Output()
    ns = _arguments.count(sources, 3, "sources")
    if pg == 0 and pgt == 0:
        print(NOTHING)
        return out
    c, v = _strengths(charges, dipvec, nd, ns, complex)
    if targets is not None:
        _arguments.count(targets, 3, "targets")
    if nd < 1 or (c is None and v is None):
        return out
    # In lengths of 1/unit the wave number is near 1 or below it. Powers of two do not round.
    k = complex(zk)
    unit = 2.0 ** max(0, round(np.log2(abs(k)))) if abs(k) > 1 else 1.0
    x = unit * _arguments.rows(sources, 3)
    c, v = None if c is None else unit * c, None if v is None else unit**2 * v
    for place, level in _arguments.places(pg, pgt, targets, 2):
        at = unit * _arguments.rows(targets, 3) if place else None
        sums = _terms.evaluate(_helmholtz(k / unit, c, v, level), x, at, nd, eps)
        if "grad" in sums:
            sums["grad"] *= unit
        _fill(out, place, sums, nd)
    return out


def h3ddir(
    *, zk: complex, sources: Any, targets: Any, charges: Any = None, dipvec: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`hfmm3d` at the targets over all pairs with ``|x - y| > thresh``, at any frequency."""
    green = _pairs.helmholtz(complex(zk))
    return _direct(green, complex, sources, targets, charges, dipvec, pgt, nd, thresh, 2)


class _Flow:
    """The arguments of stfmm3d and st3ddir, checked."""

    def __init__(
        self, sources: Any, stoklet: Any, strslet: Any, strsvec: Any, others: Sequence[tuple[str, Any, str, Any]],
        targets: Any, ifppreg: int, ifppregtarg: int, nd: int,
    ) -> None:  # fmt: skip
        self.empty = True
        if ifppreg == 0 and ifppregtarg == 0:
            print("Nothing to compute, set either ifppreg or ifppregtarg to non-zero")
            return
        pairs = [("strslet", strslet, "strsvec", strsvec), *others]
        if stoklet is None and all(a is None and b is None for _, a, _, b in pairs):
            print(
                "Nothing to compute, set stoklet or strslet+strsvec to non-None or rotlet+rotvec to non-None or "
                "doublet+doubvec to non-None"
            )
            return
        for first, a, second, b in pairs:
            if (a is None) != (b is None):
                print(f"{first} and {second} mush be both None or both not None")
                return
        ns = _arguments.count(sources, 3, "sources")
        if targets is not None:
            _arguments.count(targets, 3, "targets")
        f = _arguments.vectors(stoklet, nd, ns, 3, float, "stoklet vectors")
        m = _arguments.vectors(strslet, nd, ns, 3, float, "strslet vectors")
        n = _arguments.vectors(strsvec, nd, ns, 3, float, "strsvec vectors")
        for first, a, second, b in others:
            _arguments.vectors(a, nd, ns, 3, float, f"{first} vectors")
            _arguments.vectors(b, nd, ns, 3, float, f"{second} vectors")
            if a is not None:
                raise NotImplementedError(
                    f"{first} with {second}: the kernel fmm.Stresslet acts by the symmetric part of a force dipole. For "
                    f"rotlets, fmm.BiotSavart() with strengths t gives t x r/(4 pi r^3)"
                )
        self.empty = False
        self.forces, self.stresses, self.nd = f, None if m is None or n is None else (m, n), nd
        self.sources = _arguments.rows(sources, 3)
        none = np.zeros((3, 0))
        self.targets = _arguments.rows(none if targets is None else targets, 3)
        self.places = [("", self.sources, ifppreg), ("targ", self.targets, ifppregtarg)]

    def fill(self, out: Output, place: str, sums: list[Array]) -> None:
        """Fortran order of pot (nd, 3, m), pre (nd, m), grad (nd, 3, 3, m)."""
        for name, array in zip(("pot", "pre", "grad"), sums):
            setattr(out, name + place, np.asfortranarray(array))


def _transposed(gradient: Array) -> Array:
    """[d, t, i, j] = du_i/dx_j with the axes i and j exchanged."""
    return gradient.swapaxes(2, 3)


def stfmm3d(
    *, eps: float, sources: Any, stoklet: Any = None, strslet: Any = None, strsvec: Any = None, rotlet: Any = None,
    rotvec: Any = None, doublet: Any = None, doubvec: Any = None, targets: Any = None,
    ifppreg: int = 0, ifppregtarg: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Stokes flow of viscosity 1: forces f (stoklet) and stresslets with strength m (strslet) and direction n (strsvec).

    u = (f/r + r (r.f)/r^3)/(8 pi) + 3 r (m.r)(n.r)/(4 pi r^5), r = x - y.

    Parameters
    ----------
    eps : bound of the relative l2 error of each output
    sources, targets : (3, n), (3, nt)
    stoklet, strslet, strsvec : (3, n) or (nd, 3, n)
    ifppreg, ifppregtarg : 1 velocity, 2 and pressure, 3 and gradient, at the sources and at the targets
    nd : number of densities

    Returns
    -------
    Output with pot (nd, 3, n), pre (nd, n), grad (nd, 3, 3, n), where grad[d, j, i] is du_i/dx_j, and the same with
    ``targ`` at the targets

    Raises
    ------
    NotImplementedError : rotlets and doublets
    """
    others = [("rotlet", rotlet, "rotvec", rotvec), ("doublet", doublet, "doubvec", doubvec)]
    out = Output()
    flow = _Flow(sources, stoklet, strslet, strsvec, others, targets, ifppreg, ifppregtarg, nd)
    if flow.empty:
        return out
    for place, _, level in flow.places:
        if level < 1:
            continue
        outputs = [("pot", "potential", _same), ("pre", "pressure", _same), ("grad", "gradient", _transposed)]
        gives = {name: Give(of, map) for name, of, map in outputs[:level]}
        terms = []
        if flow.forces is not None:
            forces = np.ascontiguousarray(flow.forces.transpose(0, 2, 1))
            terms.append(Term(kernels.Stokes(), forces, gives))
        if flow.stresses is not None:
            # The entries of D = 2 m n^T row by row.
            pairs = 2 * np.einsum("din,djn->dnij", *flow.stresses).reshape(nd, -1, 9)
            terms.append(Term(kernels.Stresslet(), pairs, gives))
        sums = _terms.evaluate(terms, flow.sources, flow.targets if place else None, nd, eps)
        flow.fill(out, place, [np.moveaxis(sums[name], 1, -1) for name in gives])
    return out


def st3ddir(
    *, eps: float, sources: Any, stoklet: Any = None, strslet: Any = None, strsvec: Any = None, rotlet: Any = None,
    rotvec: Any = None, doublet: Any = None, doubvec: Any = None, targets: Any = None,
    ifppreg: int = 0, ifppregtarg: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`stfmm3d` over all pairs with ``|x - y| > thresh``. ``eps`` is not used."""
    others = [("rotlet", rotlet, "rotvec", rotvec), ("doublet", doublet, "doubvec", doubvec)]
    out = Output()
    flow = _Flow(sources, stoklet, strslet, strsvec, others, targets, ifppreg, ifppregtarg, nd)
    if flow.empty:
        return out
    for place, at, level in flow.places:
        if level > 0:
            flow.fill(out, place, _pairs.stokes(flow.sources, at, flow.forces, flow.stresses, level, float(thresh)))
    return out


_MAXWELL = (
    "electric and magnetic currents are not sums of this library yet. Their parts are: curl, value and gradient of sums "
    "over fmm.Helmholtz(k), or h3ddir for few points"
)


def emfmm3d(
    *, eps: float, zk: complex, sources: Any, h_current: Any = None, e_current: Any = None, e_charge: Any = None,
    targets: Any = None, ifE: int = 0, ifcurlE: int = 0, ifdivE: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Maxwell's equations: NotImplementedError."""
    raise NotImplementedError(f"emfmm3d: {_MAXWELL}")


def em3ddir(
    *, eps: float, zk: complex, sources: Any, h_current: Any = None, e_current: Any = None, e_charge: Any = None,
    targets: Any = None, ifE: int = 0, ifcurlE: int = 0, ifdivE: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """Maxwell's equations: NotImplementedError."""
    raise NotImplementedError(f"em3ddir: {_MAXWELL}")


def comperr(*, ntest: int, out: Any, outex: Any, pg: int = 0, pgt: int = 0, nd: int = 1) -> Any:
    """The relative l2 error of the first ``ntest`` targets, of all outputs together: the largest output decides."""
    return _arguments.together(ntest, out, outex, pg, pgt)
