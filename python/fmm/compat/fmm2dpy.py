"""The names, arguments, shapes, orders and factors of fmm2dpy 0.0.5: log r without the factor 1/(2 pi), with a plus sign.

>>> import numpy as np
>>> import fmm.compat.fmm2dpy as fmm2dpy
>>> rng = np.random.default_rng(0)
>>> sources, charges = rng.random((2, 2000)), rng.random(2000)
>>> out = fmm2dpy.rfmm2d(eps=1e-6, sources=sources, charges=charges, pg=3)
>>> out.pot.shape, out.grad.shape, out.hess.shape
((2000,), (2, 2000), (3, 2000))

Differences:

- ``eps`` bounds the relative l2 error of each output by itself. Where no far field does that, the sums are direct.
- ``cfmm2d`` takes log|z - w| for charges, also for complex ones and far away, where the imaginary part of the package
  depends on branches of the logarithm.
- Without strengths, direct sums return an empty ``Output`` (there an AttributeError).
- The Helmholtz and the biharmonic equation are a NotImplementedError that says what to use.

All sums but those of log r are sums of Gamma/(w - z), the kernel ``fmm.Harmonic2D()``: phi(Gamma). For a function f that
is analytic in z, the real part has the gradient (Re f', -Im f') and the second derivatives Re f'', -Im f'', -Re f'' (xx, xy, yy).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _plan, kernels
from . import _arguments, _pairs, _terms
from ._arguments import NOTHING
from ._terms import Give, Term

__all__ = [
    "Output", "bh2ddir", "bhfmm2d", "c2ddir", "cfmm2d", "comperr", "h2ddir", "hfmm2d", "l2ddir", "lfmm2d", "r2ddir",
    "rfmm2d",
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
    ier: Any = 0


_NAMES = ("pot", "grad", "hess")


def _strengths(
    charges: Any, dipstr: Any, dipvec: Any, nd: int, ns: int, kind: type[Any]
) -> tuple[Array | None, Array | None]:
    """Charges (nd, n), and dipoles (nd, 2, n), which are strength times vector."""
    c = _arguments.densities(charges, nd, ns, kind, "Charges")
    if dipstr is None and dipvec is None:
        return c, None
    if dipstr is None or dipvec is None:
        # As in the package, where the missing array has no shape.
        raise AttributeError("dipoles need both dipstr and dipvec")
    d = _arguments.densities(dipstr, nd, ns, kind, "Dipole strengths")
    v = _arguments.vectors(dipvec, nd, ns, 2, float, "dipole vectors")
    assert d is not None and v is not None
    return c, d[:, None] * v


@functools.cache
def _has_hessian(name: str) -> bool:
    """Whether a kernel of the plane has the output Hessian."""
    try:
        _plan.Plan(name, np.eye(2), outputs=("potential", "hessian"), method="direct")
    except NotImplementedError:
        return False
    return True


def _second(hessian: Array) -> Array:
    """phi'' from the Hessian of phi, whose entry xx it is."""
    return hessian[..., 0, 0]


def _first(gradient: Array) -> Array:
    """phi' from the gradient (phi', i phi')."""
    return gradient[..., 0]


class _Of(NamedTuple):
    """How a derivative of phi enters an output; gain and similar as in :class:`Give`."""

    order: int
    map: Callable[[Array], Array]
    gain: float = 1.0
    similar: bool = True


def _harmonic(strengths: Array, derivatives: dict[str, _Of]) -> Term:
    """Sums of phi."""
    gives = {}
    for name, of in derivatives.items():
        make = of.map
        if of.order == 0:
            gives[name] = Give("potential", make, of.gain, of.similar)
        elif of.order == 1:
            # |(phi', i phi')| = sqrt(2) |phi'|, and twice |phi''| for the Hessian.
            gives[name] = Give("gradient", lambda u, make=make: make(_first(u)), of.gain / 2**0.5, of.similar)  # type: ignore[misc]
        elif _has_hessian("harmonic2d"):
            gives[name] = Give("hessian", lambda u, make=make: make(_second(u)), of.gain / 2, of.similar)  # type: ignore[misc]
        else:
            raise NotImplementedError(
                "second derivatives of dipoles in the plane need the output hessian of fmm.Harmonic2D(), which is not "
                "there yet; use r2ddir, l2ddir or c2ddir for few points, or pg = 2"
            )
    return Term(kernels.Harmonic2D(), strengths, gives)


def _vector(f: Array) -> Array:
    """The gradient of Re F, where f = F'."""
    return np.stack([f.real, -f.imag], axis=-1)


def _three(f: Array) -> Array:
    """The second derivatives xx, xy, yy of Re F, where f = F''. Their norm is at most sqrt(2) |f|."""
    return np.stack([f.real, -f.imag, -f.real], axis=-1)


def _real(charges: Array | None, dipoles: Array | None, level: int) -> list[Term]:
    """Sums of c log r - v.r/r^2 for real c (sets, n), v (sets, 2, n)."""
    terms = []
    if charges is not None:

        def scaled(u: Array) -> Array:
            """From sums of -log(r)/(2 pi)."""
            return -2 * np.pi * u

        gives = {"pot": Give("potential", scaled, 2 * np.pi), "grad": Give("gradient", scaled, 2 * np.pi)}
        if level >= 3 and _has_hessian("laplace2d"):
            entries = lambda u: scaled(u[..., [0, 0, 1], [0, 1, 1]])  # noqa: E731
            gives["hess"] = Give("hessian", entries, 2 * np.pi, similar=False)
        elif level >= 3:
            # The derivative of log z is -phi.
            del gives["grad"]
            slopes = {
                "grad": _Of(0, lambda f: -_vector(f)),
                "hess": _Of(1, lambda f: -_three(f), 2**0.5, similar=False),
            }
            terms.append(_harmonic(charges.astype(complex), slopes))
        chosen = {name: gives[name] for name in _NAMES[:level] if name in gives}
        terms.append(Term(kernels.Laplace2D(), charges, chosen))
    if dipoles is not None:
        derivatives = {
            "pot": _Of(0, lambda f: f.real.copy(), similar=False),
            "grad": _Of(1, _vector),
            "hess": _Of(2, _three, 2**0.5, similar=False),
        }
        chosen_ = {name: derivatives[name] for name in _NAMES[:level]}
        terms.append(_harmonic(dipoles[:, 0] + 1j * dipoles[:, 1], chosen_))
    return terms


def _split(values: Array | None) -> Array | None:
    """The real parts, then the imaginary parts, as sets."""
    return None if values is None else np.concatenate([values.real, values.imag])


def _joined(terms: list[Term], nd: int) -> list[Term]:
    """Terms over the sets of :func:`_split` that give complex outputs."""

    def complex_(give: Give) -> Give:
        def joined(u: Array) -> Array:
            parts = give.map(u)
            together: Array = parts[:nd] + 1j * parts[nd:]
            return together

        return give._replace(map=joined)

    return [t._replace(gives={name: complex_(give) for name, give in t.gives.items()}) for t in terms]


def _complex(charges: Array | None, dipoles: Array | None, level: int) -> list[Term]:
    """Sums of c log r - v.r/r^2 for complex c (nd, n), v (nd, 2, n): two real sums each."""
    given = charges if charges is not None else dipoles
    assert given is not None
    return _joined(_real(_split(charges), _split(dipoles), level), len(given))


def _cauchy(charges: Array | None, dipoles: Array | None, level: int) -> list[Term]:
    """Sums of c log|z - w| + d/(z - w) and of the derivatives c/(z - w) - …, …, all complex (nd, n)."""
    terms = []
    minus = lambda f: -f  # noqa: E731
    if charges is not None:
        terms += _complex(charges, None, 1)
        if level > 1:
            slopes = {name: _Of(order, minus) for order, name in enumerate(_NAMES[1:level])}
            terms.append(_harmonic(charges, slopes))
    if dipoles is not None:
        terms.append(_harmonic(dipoles, {name: _Of(order, minus) for order, name in enumerate(_NAMES[:level])}))
    return terms


Terms = Callable[[Array | None, Array | None, int], list[Term]]


def _fast(
    make: Terms, eps: float, sources: Any, strengths: Callable[[int], tuple[Array | None, Array | None]],
    targets: Any, pg: int, pgt: int, nd: int,
) -> Output:  # fmt: skip
    out = Output()
    ns = _arguments.count(sources, 2, "sources")
    if pg == 0 and pgt == 0:
        print(NOTHING)
        return out
    c, d = strengths(ns)
    if targets is not None:
        _arguments.count(targets, 2, "targets")
    if nd < 1 or (c is None and d is None):
        return out
    x = _arguments.rows(sources, 2)
    for place, level in _arguments.places(pg, pgt, targets, 3):
        at = _arguments.rows(targets, 2) if place else None
        for name, array in _terms.evaluate(make(c, d, level), x, at, nd, eps).items():
            setattr(out, name + place, _arguments.columns(array, nd))
    return out


def rfmm2d(
    *, eps: float, sources: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Laplace in the plane, real: ``u(x) = sum_j c_j log|x - y_j| - d_j v_j . grad_x log|x - y_j|``, without y_j = x.

    Parameters
    ----------
    eps : bound of the relative l2 error of each output
    sources : (2, n); targets : (2, nt)
    charges, dipstr : (n,) or (nd, n); dipvec : (2, n) or (nd, 2, n)
    pg, pgt : 1 potential, 2 and gradient, 3 and Hessian, at the sources and at the targets
    nd : number of densities

    Returns
    -------
    Output with pot, grad, hess at the sources and pottarg, gradtarg, hesstarg at the targets, of shapes (n,), (2, n),
    (3, n), or (nd, n), (nd, 2, n), (nd, 3, n); Hessians are in the order xx, xy, yy
    """
    strengths = lambda ns: _strengths(charges, dipstr, dipvec, nd, ns, float)  # noqa: E731
    return _fast(_real, eps, sources, strengths, targets, pg, pgt, nd)


def lfmm2d(
    *, eps: float, sources: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """As :func:`rfmm2d`, for complex ``charges`` and ``dipstr``; ``dipvec`` is real."""
    strengths = lambda ns: _strengths(charges, dipstr, dipvec, nd, ns, complex)  # noqa: E731
    return _fast(_complex, eps, sources, strengths, targets, pg, pgt, nd)


def _both(charges: Any, dipstr: Any, nd: int, ns: int) -> tuple[Array | None, Array | None]:
    return (
        _arguments.densities(charges, nd, ns, complex, "Charges"),
        _arguments.densities(dipstr, nd, ns, complex, "Dipole strengths"),
    )


def cfmm2d(
    *, eps: float, sources: Any, charges: Any = None, dipstr: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Cauchy sums: ``u(z) = sum_j c_j log|z - w_j| + d_j/(z - w_j)``, complex.

    Arguments are those of :func:`rfmm2d`. Outputs are complex, (n,) or (nd, n); ``grad`` and ``hess`` are derivatives by
    z, in which log(z - w) stands for log|z - w|.
    """
    return _fast(_cauchy, eps, sources, lambda ns: _both(charges, dipstr, nd, ns), targets, pg, pgt, nd)


def _direct(
    sources: Any, strengths: Callable[[int], tuple[Array | None, Array | None]], targets: Any, pgt: int, nd: int,
    sums: Callable[[Array, Array, Array | None, Array | None], list[Array]],
) -> Output:  # fmt: skip
    out = Output()
    ns = _arguments.count(sources, 2, "sources")
    if pgt == 0:
        print(NOTHING)
        return out
    c, d = strengths(ns)
    _arguments.count(targets, 2, "targets")
    if nd < 1 or (c is None and d is None) or pgt not in (1, 2, 3):
        return out
    for name, array in zip(_NAMES, sums(_arguments.rows(sources, 2), _arguments.rows(targets, 2), c, d)):
        # The package leaves the axis of one density of the gradient if there are second derivatives.
        one = nd == 1 and not (name == "grad" and pgt == 3)
        setattr(out, f"{name}targ", np.asfortranarray(array[0] if one else array))
    return out


def _logarithms(kind: type[Any], pgt: int, thresh: float) -> Callable[..., list[Array]]:
    def sums(x: Array, y: Array, c: Array | None, d: Array | None) -> list[Array]:
        found = _pairs.sums(_pairs.logarithm, x, y, c, d, pgt, thresh, kind)
        return [found[0][:, 0], *found[1:]]

    return sums


def r2ddir(
    *, sources: Any, targets: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`rfmm2d` at the targets over all pairs with ``|x - y| > thresh``."""
    strengths = lambda ns: _strengths(charges, dipstr, dipvec, nd, ns, float)  # noqa: E731
    return _direct(sources, strengths, targets, pgt, nd, _logarithms(float, pgt, float(thresh)))


def l2ddir(
    *, sources: Any, targets: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`lfmm2d` at the targets over all pairs with ``|x - y| > thresh``."""
    strengths = lambda ns: _strengths(charges, dipstr, dipvec, nd, ns, complex)  # noqa: E731
    return _direct(sources, strengths, targets, pgt, nd, _logarithms(complex, pgt, float(thresh)))


def c2ddir(
    *, sources: Any, targets: Any, charges: Any = None, dipstr: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The sums of :func:`cfmm2d` at the targets over all pairs with ``|z - w| > thresh``."""

    def sums(x: Array, y: Array, c: Array | None, d: Array | None) -> list[Array]:
        return _pairs.cauchy(x, y, c, d, pgt, float(thresh))

    return _direct(sources, lambda ns: _both(charges, dipstr, nd, ns), targets, pgt, nd, sums)


def _missing(name: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"{name}: {instead}")


_HANKEL = (
    "Helmholtz sums of the plane are not in this library; a Yukawa kernel is, as fmm.kernel with fmm.bessel_k0, and "
    "Helmholtz sums in space as fmm.compat.fmm3dpy.hfmm3d"
)
_BIHARMONIC = (
    "biharmonic sums are not in this module; for charges combine sums of fmm.Laplace2D() and fmm.Harmonic2D() with "
    "strengths c and c w, as (z - w) conj(1/(z - w)) = z conj(1/(z - w)) - w conj(1/(z - w))"
)


def hfmm2d(
    *, eps: float, zk: complex, sources: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None,
    targets: Any = None, pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """Helmholtz in the plane: NotImplementedError."""
    raise _missing("hfmm2d", _HANKEL)


def h2ddir(
    *, zk: complex, sources: Any, targets: Any, charges: Any = None, dipstr: Any = None, dipvec: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """Helmholtz in the plane: NotImplementedError."""
    raise _missing("h2ddir", _HANKEL)


def bhfmm2d(
    *, eps: float, sources: Any, charges: Any = None, dipoles: Any = None, targets: Any = None,
    pg: int = 0, pgt: int = 0, nd: int = 1,
) -> Output:  # fmt: skip
    """The biharmonic equation in the plane: NotImplementedError."""
    raise _missing("bhfmm2d", _BIHARMONIC)


def bh2ddir(
    *, sources: Any, targets: Any, charges: Any = None, dipoles: Any = None,
    pgt: int = 0, nd: int = 1, thresh: float = 1e-16,
) -> Output:  # fmt: skip
    """The biharmonic equation in the plane: NotImplementedError."""
    raise _missing("bh2ddir", _BIHARMONIC)


def comperr(
    *, ntest: int, out: Any, outex: Any, pg: int = 0, pgt: int = 0, nd: int = 1, cauchy: int = 0
) -> Any:
    """The relative l2 error of the first ``ntest`` targets, of all outputs together; of a Cauchy sum, the potential counts
    with its real part."""
    return _arguments.together(ntest, out, outex, pg, pgt, real=bool(cauchy))
