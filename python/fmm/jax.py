"""Sums for JAX that can be differentiated, also under ``jax.jit``.

>>> import fmm, fmm.jax, jax, jax.numpy as jnp
>>> points, charges = jax.random.uniform(jax.random.key(0), (300, 3)), jnp.ones(300)
>>> @jax.jit
... def energy(points, charges):
...     return 0.5 * charges @ fmm.jax.evaluate("laplace", points, charges, tolerance=1e-5)
>>> by_points, by_charges = jax.grad(energy, argnums=(0, 1))(points, charges)
>>> by_points.shape, by_charges.shape
((300, 3), (300,))

Compiled functions call the library itself (``jax.ffi``), without Python: on a CPU with arrays of the host, on an NVIDIA
GPU with arrays on the GPU, in the stream of XLA. Derivatives are sums too, and keep the tolerance of the call. There are
no second derivatives.

Errors of the sums are ``jax.errors.JaxRuntimeError`` or ValueError, as XLA passes them on. On a GPU, NaN or infinity in
strengths or sums are an error of a later call. Ctrl-C does not end a sum in a compiled function. All arrays of a call
are on one device.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _arrays, _core, _plan
from .kernels import Kernel

__all__ = ["apply", "evaluate", "forget"]

_TARGET = "fmm_sums"
for _platform in ("cpu", "CUDA"):
    jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(_platform), platform=_platform)


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

    Arguments and shapes are those of :func:`fmm.evaluate`; arrays on a GPU are summed there, whatever ``backend`` says.
    The potential has the type of the strengths. ``targets=None``: the sources, and each skips itself. Sums with the same
    kernel and options keep a plan for their next call, whose points then move as by :meth:`fmm.Plan.move`;
    :func:`forget` frees it. A second derivative is an error, a complex kernel a NotImplementedError. Under ``jax.vmap``
    the sums follow each other.
    """
    kernel = _plan._differentiable(kernel, options)
    for name in ("progress", "comm"):
        if name in options:
            raise TypeError(f"{name} is no option of a sum in a compiled function")
    q = _floats(strengths, "strengths")
    named = {"sources": sources} if targets is None else {"sources": sources, "targets": targets}
    points = [_floats(x, name) for name, x in named.items()]
    for name, x in zip(named, points, strict=True):
        if x.ndim != 2 or x.shape[1] != kernel.dim:
            raise ValueError(f"{name} has shape {x.shape}, expected (N, {kernel.dim})")
    _arrays.sets_of(q.shape, len(points[0]), kernel.strengths, False)
    return _differentiable(_Sums(kernel, {"tolerance": tolerance, **options}))(q, *points)


def apply(plan: _plan.Plan, strengths: jax.Array) -> jax.Array:
    """The potential of an existing plan, differentiable with respect to ``strengths``. Arrays on a GPU need a plan with
    its points there. Under ``jax.vmap`` the sets of strengths are summed together."""
    if plan._on_ranks:
        raise NotImplementedError("a plan of several ranks: a compiled function may not make its calls on every rank")
    if plan._complex:
        raise NotImplementedError(f"derivatives of the complex kernel {plan.kernel.name}")
    if "potential" not in plan.outputs or (plan._there is not None and len(plan.outputs) > 1):
        raise ValueError(f"the plan has the outputs {', '.join(plan.outputs)}: make one for the potential alone")
    q = _floats(strengths, "strengths")
    _arrays.sets_of(q.shape, plan.n_sources, plan._strengths, False)
    if plan._registered is None:
        plan._registered = _Number(_core.Registered.plan(plan._plan))
    call = functools.partial(_call, plan._registered, vmap_method="broadcast_all")
    there = (plan.n_targets, *plan._axes("potential"))

    @jax.custom_vjp
    def linear(q: jax.Array) -> jax.Array:
        return call([there], q)[0]

    def backward(_: None, v: jax.Array) -> Any:
        return (call([q.shape], v, transposed=1)[0],)

    linear.defvjp(lambda q: (linear(q), None), backward)
    potential: jax.Array = linear(q)
    return potential


def forget() -> None:
    """Frees the plans that :func:`evaluate` keeps for its next calls. The next call makes new ones."""
    _core.forget_kept_plans()


class _Number(np.int64):
    """The number by which a compiled function finds its sums. JAX keeps it, and so the sums, with the function."""

    registered: _core.Registered

    def __new__(cls, registered: _core.Registered) -> _Number:
        number = super().__new__(cls, registered.number)
        number.registered = registered
        return number


class _Sums:
    """Sums of a kernel over points that the call brings."""

    def __init__(self, kernel: Kernel, options: dict[str, Any]) -> None:
        self.kernel = kernel
        try:
            self.number = _known(kernel, tuple(sorted(options.items())))
        except TypeError:  # Options with arrays are not known again.
            self.number = _registered(kernel, options)

    def __call__(self, q: Any, points: Any, *, gradient: bool, transposed: bool = False) -> list[Any]:
        """The potential, and the gradient if it is asked for. Transposed sums go from targets to sources."""
        c, d = self.kernel.strengths if transposed else self.kernel.values, self.kernel.dim
        potential = (len(points[-1]), *(() if c == 1 else (c,)))
        shapes = [potential, (*potential, d)][: 1 + gradient]
        return _call(self.number, shapes, q, *points, transposed=int(transposed), vmap_method="sequential")


@functools.lru_cache(maxsize=32)
def _known(kernel: Kernel, options: tuple[tuple[str, Any], ...]) -> _Number:
    return _registered(kernel, dict(options))


def _registered(kernel: Kernel, options: dict[str, Any]) -> _Number:
    core = kernel._core(())
    return _Number(_core.Registered.request(core, _plan._options(("potential",), **options)))


def _differentiable(sums: _Sums) -> Any:
    @jax.custom_vjp
    def potential(q: Any, *points: Any) -> Any:
        return sums(q, points, gradient=False)[0]

    def forward(q: Any, *points: Any) -> Any:
        # Gradients at the targets are summed only if somebody differentiates with respect to them.
        u, *slope = sums(q.value, [x.value for x in points], gradient=points[-1].perturbed)
        held = q.value, tuple(x.value for x in points), *slope
        # The structure of what is held says which derivatives are wanted; () has no numbers.
        return u, (held, () if points[0].perturbed else None)

    def backward(all: Any, v: Any) -> Any:
        (q, points, *slope), of_sources = all
        if isinstance(v, SymbolicZero):
            return None, *(None for _ in points)
        w, *back = sums(v, points[::-1], gradient=of_sources is not None, transposed=True)
        by_points: list[Any] = [None for _ in points]
        if back:
            by_points[0] = _plan._contracted(q, back[0])
        if slope:
            at_targets = _plan._contracted(v, slope[0])
            by_points[-1] = at_targets if len(points) == 2 else by_points[0] + at_targets
        typed = (None if by is None else by.astype(x.dtype) for by, x in zip(by_points, points, strict=True))
        return w.reshape(q.shape), *typed

    potential.defvjp(forward, backward, symbolic_zeros=True)
    return potential


def _call(
    number: _Number, shapes: list[tuple[int, ...]], q: Any, *points: Any, vmap_method: str, transposed: int = 0
) -> list[Any]:
    """One call of the library, which gives arrays of these shapes and of the type of q."""
    results = [jax.ShapeDtypeStruct(shape, q.dtype) for shape in shapes]
    if 0 in (q.size, *(r.size for r in results)):
        return [jnp.zeros(r.shape, r.dtype) for r in results]
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method=vmap_method)
    return list(call(q, *points, number=number, transposed=np.int64(transposed)))


def _floats(array: Any, name: str) -> Any:
    """The array in f32 or f64."""
    array = jnp.asarray(array)
    if jnp.iscomplexobj(array):
        raise TypeError(f"{name} is complex; this kernel takes real numbers")
    kind = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float)
    return array.astype(jnp.promote_types(kind, jnp.float32))
