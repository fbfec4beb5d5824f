"""Plans, and sums in one call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core, report
from .kernels import Expression, Kernel
from .report import Errors, Report

#: Kernels whose strengths and potentials are complex numbers.
_COMPLEX = ("harmonic2d", "helmholtz")
OUTPUTS = ("potential", "gradient", "hessian", "pressure")

Progress = Callable[[str, float], Any]


class Result:
    """Sums at the M targets, in the order of the targets. An output that was not asked for is None.

    With c components of the potential (1; 3 for flows) and d coordinates, the shapes are potential (M, c), gradient
    (M, c, d), hessian (M, c, d, d), pressure (M,). An axis c = 1 is left out. Several sets of strengths have one more
    axis in front. ``gradient[..., j]`` is the derivative along axis j of the target.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], seconds: float, stages: Mapping[str, float]) -> None:
        self.potential = outputs.get("potential")
        self.gradient = outputs.get("gradient")
        self.hessian = outputs.get("hessian")
        self.pressure = outputs.get("pressure")
        self.seconds = seconds
        self.stages = dict(stages)

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The outputs that were asked for."""
        for name in OUTPUTS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in self.items())
        return f"fmm.Result({shapes}, seconds={self.seconds:.3g})"

    def _repr_html_(self) -> str:
        rows = [(name, f"{array.shape} {array.dtype}") for name, array in self.items()]
        return report.table(rows) + report.bars(self.stages)


def _names(outputs: str | Sequence[str]) -> tuple[str, ...]:
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in names:
        if name not in OUTPUTS:
            raise ValueError(f"there is no output {name!r}; known are {', '.join(OUTPUTS)}")
    return tuple(name for name in OUTPUTS if name in names)


def _kernel(kernel: Kernel | str) -> Kernel:
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return Kernel(kernel)
    raise TypeError(f"kernel is {type(kernel).__name__}, expected a kernel or its name")


class Plan:
    """Sums of a kernel over given points, ready for many sets of strengths.

    Parameters
    ----------
    kernel : a kernel (``fmm.Laplace()``, ``fmm.Matern32(l=0.2)``, ``@fmm.kernel``) or its name
    sources : (N, d) array. C-contiguous f64 arrays are not copied before the library reads them
    targets : (M, d) array; None: the sources, and each target skips itself by its index. ``targets=sources`` is not the
        same: there a source skips a target at the same position
    subset : indices of sources that are the targets, instead of ``targets``
    tolerance : bound of the relative l2 error of every output; measured before it is promised. Default 1e-6 (f32: 1e-5)
    order : order of the expansion instead of a tolerance
    outputs : names among potential, gradient, hessian, pressure
    method : auto, equivalent, interpolation, spherical, treecode, laurent, direct
    precision : precision of the arithmetic, f64 or f32
    backend, device : cpu, or cuda and the number of the GPU
    threads : threads of the plan; None: one per core
    ncrit : most points of a leaf; None: chosen
    norm : the error that the tolerance bounds, l2 or max (max: kernel harmonic2d)
    theta : opening angle of a treecode
    cache : folder for operators
    attributes : values of parameters that differ from source to source, as a dict of name -> (N,)
    progress : True for a line that shows how far work is (:class:`fmm.Progress`), or a function of (phase, fraction);
        returning False cancels with KeyboardInterrupt

    Raises
    ------
    ValueError : an argument is wrong; the exception has the numbers as attributes (array, row, column, value; or floor,
        if no order keeps the tolerance)
    NotImplementedError : the kernel has no such output, or the method does not suit it
    MemoryError : the forecast exceeds the free memory
    """

    def __init__(
        self,
        kernel: Kernel | str,
        sources: ArrayLike,
        targets: ArrayLike | None = None,
        *,
        subset: ArrayLike | None = None,
        tolerance: float | None = None,
        order: int | None = None,
        outputs: str | Sequence[str] = ("potential",),
        method: str = "auto",
        precision: str = "f64",
        backend: str = "cpu",
        device: int = 0,
        threads: int | None = None,
        ncrit: int | None = None,
        norm: str = "l2",
        theta: float | None = None,
        cache: str | None = None,
        attributes: Mapping[str, ArrayLike] | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        self.kernel = _kernel(kernel)
        self.outputs = _names(outputs)
        self._dim = self.kernel.dim
        self._complex = self.kernel.name in _COMPLEX
        points, at = self._points(sources, targets, subset)
        self._line = report.Progress() if progress is True else contextlib.nullcontext()
        values = {name: _arrays.numbers(v, name).reshape(-1) for name, v in (attributes or {}).items()}
        options = {
            "outputs": list(self.outputs),
            "tolerance": None if tolerance is None else float(tolerance),
            "order": order,
            "method": method,
            "precision": precision,
            "backend": backend,
            "device": device,
            "threads": threads,
            "ncrit": ncrit,
            "norm": norm,
            "theta": theta,
            "cache": cache,
            "attributes": values,
            "progress": self._line if progress is True else progress or None,
        }
        with self._line:
            self._plan = _core.Plan(self.kernel._core(self.outputs), points, at, options)
        self._counted()

    def _counted(self) -> None:
        self.n_sources, self.n_targets, self._strengths, _, self.memory = self._plan.counts()
        self._sizes = {name: self._plan.components(name) for name in self.outputs}

    def _points(
        self, sources: ArrayLike, targets: ArrayLike | None, subset: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
        points = _arrays.points(sources, "sources", self._dim)
        if targets is not None and subset is not None:
            raise ValueError("both targets and subset were given")
        self._sources, self._at = points, None
        if subset is not None:
            chosen = _arrays.indices(subset, len(points))
            self._at = points[chosen]
            return points.reshape(-1), chosen
        if targets is None:
            return points.reshape(-1), None
        self._at = _arrays.points(targets, "targets", self._dim)
        return points.reshape(-1), self._at.reshape(-1)

    def apply(
        self, strengths: ArrayLike, out: Result | None = None, *, sets: bool | None = None
    ) -> Result:
        """The sums for ``strengths``.

        ``strengths`` has shape (N,) or (N, s), or one more axis in front for several sets at once, with the same bits as
        one call for each. ``sets`` says whether that axis is there, where the shape alone does not. f32 strengths give
        f32 sums. ``out`` takes the result of an earlier call, whose arrays are overwritten.
        """
        flat, count = self._flat(strengths, sets)
        with self._line:
            sums = self._plan.apply(flat, 1 if count is None else count)
        lead = () if count is None else (count,)
        arrays = {name: self._shaped(name, sums[name], lead, self.n_targets) for name in self.outputs}
        if out is not None:
            for name, array in arrays.items():
                to = getattr(out, name)
                if not isinstance(to, np.ndarray) or to.shape != array.shape or to.dtype != array.dtype:
                    raise ValueError(f"out.{name} does not have shape {array.shape} and type {array.dtype}")
            for name, array in arrays.items():
                np.copyto(getattr(out, name), array)
            out.seconds, out.stages = sums["seconds"], dict(sums["stages"])
            return out
        return Result(arrays, sums["seconds"], sums["stages"])

    __call__ = apply

    def apply_transpose(self, values: ArrayLike) -> NDArray[Any]:
        """The transposed matrix times ``values``, (M,) or (M, c): an array (N,) or (N, s). The matrix takes strengths to
        potentials. The kernel must have K(-r) equal to the transpose of K(r)."""
        components = self._strengths
        if self._complex:
            array = np.require(values, np.complex128, ["C"])
            if array.shape != (self.n_targets,):
                raise ValueError(f"values has shape {array.shape}, expected ({self.n_targets},)")
            # The real matrix of a complex number transposes to that of its conjugate.
            flat = self._plan.apply_transpose(array.conj().view(np.float64).reshape(-1))
            return flat.view(np.complex128).conj()
        flat, count = _arrays.strengths(values, self.n_targets, components, False)
        assert count is None
        back = self._plan.apply_transpose(np.require(flat, np.float64))
        return back if components == 1 else back.reshape(self.n_sources, components)

    def verify(self, strengths: ArrayLike, samples: int = 1000) -> Report:
        """Errors of the sums for ``strengths`` at ``samples`` random targets against direct summation."""
        flat, _ = self._flat(strengths, False)
        with self._line:
            measured = self._plan.verify(np.require(flat, np.float64), samples)
        return Report({name: Errors(*e) for name, *e in measured})

    def move(self, sources: ArrayLike, targets: ArrayLike | None = None, *, subset: ArrayLike | None = None) -> None:
        """Replaces the points. Operators stay; the order is measured again if the boxes have changed much."""
        held = self._sources, self._at
        points, at = self._points(sources, targets, subset)
        try:
            with self._line:
                self._plan.set_points(points, at)
        except BaseException:
            self._sources, self._at = held
            raise
        self._counted()

    def describe(self) -> dict[str, Any]:
        """Method, order, reasons, counts of boxes and edges, the measured error (``probe``), seconds, warnings."""
        described: dict[str, Any] = json.loads(self._plan.describe())
        return described

    def near_blocks(self) -> list[tuple[NDArray[np.uint32], NDArray[np.uint32]]]:
        """The pairs that are summed directly, as dense blocks (indices of targets, indices of sources)."""
        return [(targets, sources) for targets, sources in self._plan.near_blocks()]

    def boxes(self) -> NDArray[np.float64]:
        """The bounding boxes of the targets of each leaf, (leaves, 2, d): lower and upper corner."""
        at = self._sources if self._at is None else self._at
        leaves = {int(targets[0]): targets for targets, _ in self.near_blocks() if len(targets)}
        corners = [(at[t].min(axis=0), at[t].max(axis=0)) for t in leaves.values()]
        return np.array(corners).reshape(len(corners), 2, self._dim)

    def as_linear_operator(self) -> Any:
        """The matrix from strengths to potentials as a ``scipy.sparse.linalg.LinearOperator``."""
        from .linear import operator

        return operator(self)

    def plot(self, ax: Any = None) -> Any:
        """Draws points and leaves with matplotlib (the first two coordinates). Returns the axes."""
        from .plotting import plot

        return plot(self, ax)

    def _flat(self, strengths: ArrayLike, sets: bool | None) -> tuple[NDArray[Any], int | None]:
        if not self._complex:
            return _arrays.strengths(strengths, self.n_sources, self._strengths, sets)
        _arrays.refuse_device(strengths, "strengths")
        array = np.require(strengths, np.complex128, ["C", "A"])
        wanted = (self.n_sources,)
        several = array.shape != wanted if sets is None else sets
        if (array.shape[1:] if several and array.ndim else array.shape) != wanted:
            raise ValueError(f"strengths has shape {array.shape}, expected {wanted}, or one more axis for several sets")
        return array.reshape(-1).view(np.float64), array.shape[0] if several else None

    def _shaped(self, name: str, flat: NDArray[Any], lead: tuple[int, ...], m: int) -> NDArray[Any]:
        d = self._dim
        axes = {"potential": (), "gradient": (d,), "hessian": (d, d), "pressure": ()}[name]
        c = self._sizes[name] // d ** len(axes)
        if self._complex:
            parts = flat.reshape(*lead, m, 2, *axes)
            parts = np.moveaxis(parts, len(lead) + 1, -1)
            return np.ascontiguousarray(parts).view(np.complex128)[..., 0]
        return flat.reshape(*lead, m, *(() if c == 1 else (c,)), *axes)

    def __repr__(self) -> str:
        d = self.describe()
        return (
            f"fmm.Plan({d['kernel']}, {self.n_sources} sources, {self.n_targets} targets, method={d['method']}, "
            f"order={d['order']}, tolerance={d['tolerance']})"
        )

    def _repr_html_(self) -> str:
        d = self.describe()
        keys = ("kernel", "method", "order", "tolerance", "why", "backend", "precision", "n_sources", "n_targets",
                "levels", "boxes", "leaves", "near_pairs", "bytes")
        return report.table([(key, d[key]) for key in keys]) + report.bars(d["seconds"])


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


def memory(kernel: Kernel | str, n_sources: int, n_targets: int, **options: Any) -> int:
    """Forecast bytes of a plan and one evaluation."""
    kernel = _kernel(kernel)
    names = _names(options.pop("outputs", ("potential",)))
    options["outputs"] = list(names)
    return _core.memory(kernel._core(names), n_sources, n_targets, options)


def devices() -> list[str]:
    """The names of the GPUs that can be used; empty without a driver or without NVRTC."""
    names: list[str] = []
    while True:
        try:
            names.append(_core.device(len(names)))
        except RuntimeError:
            return names


__all__ = ["Errors", "Expression", "Plan", "Report", "Result", "devices", "direct", "evaluate", "memory"]
