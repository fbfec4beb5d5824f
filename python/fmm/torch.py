"""Sums for PyTorch that can be differentiated, on a CPU and on a GPU.

>>> import fmm, fmm.torch, torch
>>> points = torch.rand(300, 3, dtype=torch.float64, requires_grad=True)
>>> charges = torch.ones(300, dtype=torch.float64, requires_grad=True)
>>> energy = 0.5 * charges @ fmm.torch.evaluate("laplace", points, charges)
>>> energy.backward()
>>> points.grad.shape, charges.grad.shape
(torch.Size([300, 3]), torch.Size([300]))

Derivatives are sums too: those with respect to strengths and sources are transposed sums, those with respect to targets
are gradients (:meth:`fmm.Plan.transposed`). Every one keeps the tolerance of the call. There are no second derivatives.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _plan
from .kernels import Kernel

__all__ = ["apply", "evaluate"]


def evaluate(
    kernel: Kernel | str,
    sources: torch.Tensor,
    strengths: torch.Tensor,
    targets: torch.Tensor | None = None,
    *,
    tolerance: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """The potential, differentiable with respect to ``strengths``, ``sources`` and ``targets``.

    Arguments and shapes are those of :func:`fmm.evaluate`, with tensors of one device; on a GPU the sums run there, on
    the current stream. ``targets=None``: the sources, and each skips itself. A second derivative is a RuntimeError, a
    complex kernel a NotImplementedError.
    """
    kernel = _plan._differentiable(kernel, options)
    options["tolerance"] = tolerance
    if sources.is_cuda:
        options = {"backend": "cuda", "device": sources.device.index or 0, **options}
    potential: torch.Tensor = _Evaluate.apply(kernel, options, strengths, sources, targets)
    return potential


def apply(plan: _plan.Plan, strengths: torch.Tensor) -> torch.Tensor:
    """The potential of an existing plan, differentiable with respect to ``strengths``, of shape (N,) or (N, s)."""
    if plan._complex:
        raise NotImplementedError(f"derivatives of the complex kernel {plan.kernel.name}")
    potential: torch.Tensor = _Apply.apply(plan, strengths)
    return potential


def _given(tensor: torch.Tensor) -> Any:
    """A tensor as a plan takes it: an array of the host that shares its memory, or the tensor on its GPU."""
    tensor = tensor.detach().contiguous()
    return tensor if tensor.is_cuda else tensor.numpy()


def _taken(array: Any, like: torch.Tensor) -> torch.Tensor:
    """A result as a tensor of the type of `like`."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    return tensor.to(like.dtype)


class _NoMore(torch.autograd.Function):
    """A derivative that has none itself, with respect to any of `roots`. (PyTorch's own once_differentiable lets it pass
    for a constant if the cotangent is one.)"""

    @staticmethod
    def forward(ctx, derivative, *roots):
        return derivative.view_as(derivative)

    @staticmethod
    def backward(ctx, cotangent):
        raise RuntimeError("fmm.torch has no second derivatives")


def _once(backward):
    """`backward`, whose results raise when they are differentiated."""

    @functools.wraps(backward)
    def once(ctx, cotangent):
        with torch.no_grad():
            derivatives = backward(ctx, cotangent)
        if not torch.is_grad_enabled():
            return derivatives
        roots = [x for x in (cotangent, *ctx.saved_tensors) if x is not None]
        return tuple(None if d is None else _NoMore.apply(d, *roots) for d in derivatives)

    return once


class _Evaluate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, options, strengths, sources, targets):
        _, _, _, of_sources, of_targets = ctx.needs_input_grad
        own = targets is None
        at_targets = of_sources if own else of_targets
        outputs = ("potential", "gradient") if at_targets else ("potential",)
        points = [None if x is None else _given(x) for x in (sources, targets)]
        plan = _plan.Plan(kernel, points[0], points[1], outputs=outputs, **options)
        sums = plan.apply(_given(strengths), sets=False)
        ctx.plan, ctx.own = plan, own
        ctx.save_for_backward(strengths, sources, targets)
        ctx.slope = _taken(sums.gradient, strengths) if at_targets else None
        return _taken(sums.potential, strengths)

    @staticmethod
    @_once
    def backward(ctx, cotangent):
        strengths, sources, targets = ctx.saved_tensors
        _, _, for_strengths, of_sources, of_targets = ctx.needs_input_grad
        by_strengths = by_sources = by_targets = None
        if of_sources:
            back = ctx.plan.transposed(("potential", "gradient")).apply(_given(cotangent), sets=False)
            by_strengths = _taken(back.potential, strengths).reshape(strengths.shape)
            by_sources = _plan._contracted(strengths, _taken(back.gradient, strengths))
        elif for_strengths:
            by_strengths = _taken(ctx.plan.apply_transpose(_given(cotangent)), strengths).reshape(strengths.shape)
        if ctx.slope is not None:
            at_targets = _plan._contracted(cotangent, ctx.slope)
            if ctx.own:
                by_sources = by_sources + at_targets
            else:
                by_targets = at_targets.to(targets.dtype)
        if by_sources is not None:
            by_sources = by_sources.to(sources.dtype)
        return None, None, by_strengths, by_sources, by_targets


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, strengths):
        ctx.plan = plan
        ctx.save_for_backward(strengths)
        return _taken(plan.apply(_given(strengths), sets=False).potential, strengths)

    @staticmethod
    @_once
    def backward(ctx, cotangent):
        (strengths,) = ctx.saved_tensors
        back = ctx.plan.apply_transpose(_given(cotangent))
        return None, _taken(back, strengths).reshape(strengths.shape)
