"""Sums for JAX that can be differentiated, also under ``jax.jit``.

>>> import fmm, fmm.jax, jax, jax.numpy as jnp
>>> points, charges = jax.random.uniform(jax.random.key(0), (300, 3)), jnp.ones(300)
>>> @jax.jit
... def energy(points, charges):
...     return 0.5 * charges @ fmm.jax.evaluate("laplace", points, charges, tolerance=1e-5)
>>> by_points, by_charges = jax.grad(energy, argnums=(0, 1))(points, charges)
>>> by_points.shape, by_charges.shape
((300, 3), (300,))

The sums run on the CPU, in a callback to the host (``jax.pure_callback``): arrays of a GPU travel to the host and back,
which JAX does by itself. (Outside of ``jit``, a plan takes arrays of JAX on a GPU where they are: :class:`fmm.Plan`.)
Derivatives are sums too, and keep the tolerance of the call. There are no second derivatives.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _plan
from .kernels import Kernel

__all__ = ["apply", "evaluate"]


def evaluate(
    kernel: Kernel | str,
    sources: jax.Array,
    strengths: jax.Array,
    targets: jax.Array | None = None,
    *,
    tolerance: float | None = None,
    **options: Any,
) -> jax.Array:
    """The potential, differentiable with respect to ``strengths``, ``sources`` and ``targets``.

    Arguments and shapes are those of :func:`fmm.evaluate`. ``targets=None``: the sources, and each skips itself. A
    second derivative is an error, a complex kernel a NotImplementedError. Under ``jax.vmap`` the sums follow each other.
    """
    kernel = _plan._differentiable(kernel, options)
    sums = _Sums(kernel, {"tolerance": tolerance, **options}, targets is None)
    points = (sources,) if targets is None else (sources, targets)
    return sums.differentiable()(strengths, *points)


def apply(plan: _plan.Plan, strengths: jax.Array) -> jax.Array:
    """The potential of an existing plan with points on the host, differentiable with respect to ``strengths``."""
    if plan._complex:
        raise NotImplementedError(f"derivatives of the complex kernel {plan.kernel.name}")
    kind = jnp.result_type(strengths)
    there = jax.ShapeDtypeStruct((plan.n_targets, *plan._axes("potential")), kind)
    back = jax.ShapeDtypeStruct(jnp.shape(strengths), kind)

    def forth_on_host(q: Any) -> Any:
        return np.asarray(plan.apply(np.asarray(q), sets=False).potential, kind)

    def back_on_host(v: Any) -> Any:
        return np.asarray(plan.apply_transpose(np.asarray(v)), kind).reshape(back.shape)

    @jax.custom_vjp
    def linear(q: jax.Array) -> Any:
        return jax.pure_callback(forth_on_host, there, q, vmap_method="sequential")

    def backward(_: None, v: jax.Array) -> Any:
        return (jax.pure_callback(back_on_host, back, v, vmap_method="sequential"),)

    linear.defvjp(lambda q: (linear(q), None), backward)
    potential: jax.Array = linear(strengths)
    return potential


class _Sums:
    """Sums at given strengths and points, and their derivatives, on the host."""

    def __init__(self, kernel: Kernel, options: dict[str, Any], own: bool) -> None:
        self.kernel, self.options, self.own = kernel, options, own

    def plan(self, points: tuple[Any, ...], outputs: tuple[str, ...]) -> _plan.Plan:
        return _plan.Plan(self.kernel, *(np.asarray(x) for x in points), outputs=outputs, **self.options)

    def shape(self, points: tuple[Any, ...]) -> tuple[int, ...]:
        """The shape of the potential."""
        values = self.kernel.values
        return (len(points[-1]), *(() if values == 1 else (values,)))

    def potential(self, q: Any, *points: Any) -> Any:
        sums = self.plan(points, ("potential",)).apply(np.asarray(q), sets=False)
        return np.asarray(sums.potential, q.dtype)

    def derivatives(self, v: Any, q: Any, *points: Any) -> tuple[Any, ...]:
        """The derivatives of v·potential with respect to q and each array of points."""
        q, v = np.asarray(q), np.asarray(v)
        plan = self.plan(points, ("potential", "gradient"))
        slope = plan.apply(q, sets=False).gradient
        back = plan.transposed(("potential", "gradient")).apply(v, sets=False)
        by_points = [_plan._contracted(q, back.gradient), _plan._contracted(v, slope)]
        if self.own:
            by_points = [by_points[0] + by_points[1]]
        return np.asarray(back.potential, q.dtype).reshape(q.shape), *(
            np.asarray(by, x.dtype) for by, x in zip(by_points, points, strict=True)
        )

    def differentiable(self) -> Any:
        @jax.custom_vjp
        def potential(q: jax.Array, *points: jax.Array) -> Any:
            there = jax.ShapeDtypeStruct(self.shape(points), q.dtype)
            return jax.pure_callback(self.potential, there, q, *points, vmap_method="sequential")

        def backward(held: Any, v: jax.Array) -> Any:
            shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in held)
            return jax.pure_callback(self.derivatives, shapes, v, *held, vmap_method="sequential")

        potential.defvjp(lambda q, *points: (potential(q, *points), (q, *points)), backward)
        return potential
