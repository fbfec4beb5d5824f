"""Sums in one call, and what a process asks before it plans: memory, costs, devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from . import _arrays, _core
from ._plan import Plan, Result, _kernel, _names, _options, _shown
from .kernels import Kernel


def evaluate(
    kernel: Kernel | str,
    sources: ArrayLike,
    strengths: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    tolerance: float | None = None,
    outputs: str | Sequence[str] = ("potential",),
    **options: Any,
) -> Result:
    """The sums in one call: a plan that is used once. ``options`` are those of :class:`Plan`.

    >>> import fmm, numpy as np
    >>> points, charges = np.random.default_rng(1).random((1000, 3)), np.ones(1000)
    >>> fmm.evaluate("laplace", points, charges, outputs=("potential", "gradient")).gradient.shape
    (1000, 3)
    """
    return Plan(kernel, sources, targets, tolerance=tolerance, outputs=outputs, **options).apply(strengths)


def direct(
    kernel: Kernel | str,
    sources: ArrayLike,
    strengths: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    outputs: str | Sequence[str] = ("potential",),
    **options: Any,
) -> Result:
    """The sums over all pairs, in O(N M) time, by the rules of :class:`Plan` for coincident points."""
    return Plan(kernel, sources, targets, outputs=outputs, method="direct", **options).apply(strengths)


def _forecast(kernel: Kernel | str, n_sources: int, n_targets: int, options: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of the calls of the core that forecast a plan."""
    kernel = _kernel(kernel)
    names = _names(options.pop("outputs", ("potential",)))
    n, m = _arrays.count(n_sources, "n_sources"), _arrays.count(n_targets, "n_targets")
    _, options["progress"] = _shown(options.get("progress"))
    return kernel._core(names), n, m, _options(names, **options)


def memory(kernel: Kernel | str, n_sources: int, n_targets: int, **options: Any) -> int:
    """Forecast bytes of a plan and one evaluation."""
    return _core.memory(*_forecast(kernel, n_sources, n_targets, options))


def open_for(kernel: Kernel | str, n_sources: int, n_targets: int, **options: Any) -> None:
    """Prepares this process for a plan of about ``n_sources`` sources and ``n_targets`` targets: it starts the threads, opens the
    GPU, loads the programs of the method that is forecast, and takes the memory of the plan from the driver. ``options`` are
    those of :class:`Plan`. The first plan then takes less time. Other threads run meanwhile, so a program can read its points
    in the same time. If both numbers are equal, the targets are assumed to be the sources.

    >>> import fmm, numpy as np, threading
    >>> opening = threading.Thread(target=fmm.open_for, args=("laplace", 5000, 5000), kwargs={"tolerance": 1e-4})
    >>> opening.start()
    >>> points = np.random.default_rng(1).random((5000, 3))
    >>> opening.join()
    >>> plan = fmm.Plan("laplace", points, tolerance=1e-4)
    """
    _core.open_for(*_forecast(kernel, n_sources, n_targets, options))


def calibrate(path: str | os.PathLike[str], kernel: Kernel | str = "laplace", **options: Any) -> None:
    """Measures the unit costs of a kernel in space on one core of this machine, or with ``backend="cuda"`` on its GPU, in
    some seconds. They are added to the file ``path``, for the option ``cost_model`` of plans with the same outputs and
    precision. ``options`` are those of :class:`Plan`."""
    kernel, path = _kernel(kernel), Path(path)
    names = _names(options.pop("outputs", ("potential",)))
    before = path.read_text() if path.exists() else None
    line, options["progress"] = _shown(options.get("progress"))
    with line:
        path.write_text(_core.calibrate(kernel._core(names), _options(names, **options), before))


def devices() -> list[str]:
    """The names of the GPUs that can be used; empty without a driver or without NVRTC."""
    names: list[str] = []
    while True:
        try:
            names.append(_core.device(len(names)))
        except RuntimeError:
            return names


__all__ = ["calibrate", "devices", "direct", "evaluate", "memory", "open_for"]
