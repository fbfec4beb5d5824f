"""Sums that are composed of several sums of the library, each output to its tolerance.

Let an output w be the sum over terms of L(u), where u is an output of one plan and L a linear map with |L e| <= gain |e|.
A plan with tolerance t keeps |error of u| <= t |u|, so that

    |error of w| <= t * (sum over terms of gain |u|).

The bound is eps |w| if t = eps |w| / (sum of gain |u|). These norms are measured: first from direct sums at some targets,
then from the results at all targets; if the second measurement asks for a smaller t, the sums are repeated with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _plan
from ..kernels import Kernel

#: Targets at which norms are measured first.
SAMPLES = 200
#: The smallest and largest tolerance of a plan. Rounding in f64 is near the first.
LEAST, MOST = 1e-15, 0.1
#: Pairs up to which direct summation stands for a far field that does not keep the tolerance.
PAIRS = 1e10


class Give(NamedTuple):
    """How an output of a plan enters an output of the caller."""

    output: str
    #: From (sets, n, …), the sums of the plan, to (nd, n, …).
    map: Callable[[NDArray[Any]], NDArray[Any]]
    #: |map(e)| <= gain |e|, where |e| is the l2 norm over the sets that enter one density.
    gain: float = 1.0
    #: Whether |map(e)| = gain |e| for every e.
    similar: bool = True


class Term(NamedTuple):
    """Sums of one kernel."""

    kernel: Kernel
    #: (sets, n) or (sets, n, s), where set i + k nd belongs to density i.
    strengths: NDArray[Any]
    gives: Mapping[str, Give]

    def plan(self, sources: NDArray[Any], targets: NDArray[Any] | None, **options: Any) -> _plan.Plan:
        """A plan with the outputs that are needed."""
        names = {give.output for give in self.gives.values()}
        outputs = [name for name in _plan.OUTPUTS if name in names]
        return _plan.Plan(self.kernel, sources, targets, outputs=outputs, **options)


def _norms(array: NDArray[Any], nd: int) -> NDArray[np.float64]:
    """The l2 norm for each density."""
    flat = np.abs(array.reshape(-1, nd, array[0].size))
    norms: NDArray[np.float64] = np.sqrt(np.einsum("knm,knm->n", flat, flat))
    return norms


class _Total:
    """The composed outputs, and the tolerance that they need."""

    def __init__(self, nd: int) -> None:
        self.nd = nd
        self.outputs: dict[str, NDArray[Any]] = {}
        self.bounds: dict[str, NDArray[np.float64]] = {}

    def add(self, term: Term, result: _plan.Result) -> None:
        for name, give in term.gives.items():
            array = getattr(result, give.output)
            part, bound = give.map(array), give.gain * _norms(array, self.nd)
            if name in self.outputs:
                self.outputs[name] += part
                self.bounds[name] += bound
            else:
                self.outputs[name], self.bounds[name] = part, bound

    def needs(self, eps: float) -> float:
        """The tolerance of the terms with which every output has the relative error ``eps``."""
        least = eps
        for name, bound in self.bounds.items():
            norms = _norms(self.outputs[name], self.nd)
            some = bound > 0
            if some.any():
                least = min(least, eps * float((norms[some] / bound[some]).min()))
        return least


def evaluate(
    terms: Sequence[Term], sources: NDArray[Any], targets: NDArray[Any] | None, nd: int, eps: float
) -> dict[str, NDArray[Any]]:
    """The outputs (nd, n, …) at the targets, or at the sources, of which each is left out of its own sum."""
    eps = min(max(float(eps), LEAST), MOST)
    at = sources if targets is None else targets
    if len(at) == 0:
        # A plan needs a target; its sums have the shapes.
        one = evaluate(terms, sources, sources[:1], nd, MOST)
        return {name: array[:, :0] for name, array in one.items()}
    tolerance = eps
    names = [name for term in terms for name in term.gives]
    if len(set(names)) < len(names) or not all(give.similar for term in terms for give in term.gives.values()):
        chosen = np.random.default_rng(0).choice(len(at), min(len(at), SAMPLES), replace=False)
        sample = _Total(nd)
        for term in terms:
            sample.add(term, _direct(term, sources, at, targets, chosen))
        tolerance = max(sample.needs(eps), LEAST)
    while True:
        total = _Total(nd)
        for term in terms:
            total.add(term, _apply(term, sources, targets, tolerance))
        needed = total.needs(eps)
        # The norms themselves have the relative error eps.
        if tolerance <= max(needed * (1 + 2 * eps), LEAST):
            return total.outputs
        tolerance = max(needed, LEAST)


def _direct(
    term: Term, sources: NDArray[Any], at: NDArray[Any], targets: NDArray[Any] | None, chosen: NDArray[Any]
) -> _plan.Result:
    """Direct sums at some of the targets."""
    if targets is None:
        plan = term.plan(sources, None, subset=chosen, method="direct")
    else:
        plan = term.plan(sources, at[chosen], method="direct")
    return plan.apply(term.strengths, sets=True)


def _apply(term: Term, sources: NDArray[Any], targets: NDArray[Any] | None, tolerance: float) -> _plan.Result:
    """Sums within the tolerance: direct ones, if no far field keeps it and there are few pairs."""
    try:
        plan = term.plan(sources, targets, tolerance=tolerance)
    except ValueError as e:
        floor = getattr(e, "floor", None)
        if floor is None:
            raise
        pairs = float(len(sources)) * len(sources if targets is None else targets)
        if pairs > PAIRS:
            raise NotImplementedError(
                f"the far field of the kernel {term.kernel.name} reaches {floor:.2g} on these points, {tolerance:.2g} is "
                f"needed, and {pairs:.2g} pairs are too many for direct summation: ask for a larger eps, or use fmm.direct"
            ) from e
        plan = term.plan(sources, targets, method="direct")
    return plan.apply(term.strengths, sets=True)
