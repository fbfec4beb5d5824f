"""Plans, and sums in one call."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core, _device, _ranks, report
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


def _options(
    outputs: tuple[str, ...],
    *,
    tolerance: float | None = None,
    order: int | None = None,
    method: str = "auto",
    precision: str = "f64",
    backend: str = "cpu",
    device: int = 0,
    devices: Sequence[int] | None = None,
    threads: int | None = None,
    ncrit: int | None = None,
    norm: str = "l2",
    theta: float | None = None,
    cache: str | None = None,
    cost_model: str | os.PathLike[str] | None = None,
    attributes: Mapping[str, ArrayLike] | None = None,
    nodes: int | None = None,
    progress: Any = None,
    comm: Any = None,
) -> dict[str, Any]:
    """The options of a plan as the core takes them."""
    if devices is not None and backend != "cuda":
        raise ValueError(f"devices are GPUs, but the backend is {backend}: pass backend='cuda'")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is {type(progress).__name__}, expected True or a function of (phase, fraction)")

    def count(value: int | None, name: str) -> int | None:
        return None if value is None else _arrays.count(value, name)

    return {
        "outputs": list(outputs),
        "tolerance": None if tolerance is None else float(tolerance),
        "order": count(order, "order"),
        "method": method,
        "precision": precision,
        "backend": backend,
        "device": count(device, "device"),
        "devices": None if devices is None else [_arrays.count(each, "devices") for each in devices],
        "threads": count(threads, "threads"),
        "ncrit": count(ncrit, "ncrit"),
        "norm": norm,
        "theta": theta,
        "cache": cache,
        "cost_model": None if cost_model is None else Path(cost_model).read_text(),
        "attributes": {name: _arrays.numbers(v, name).reshape(-1) for name, v in (attributes or {}).items()},
        "nodes": count(nodes, "nodes"),
        "progress": progress,
        "world": None if comm is None else _ranks.world(comm),
    }


def _shown(progress: Any) -> tuple[Any, Any]:
    """The context that ends the line of ``progress=True``, and the function that is called, if there is one."""
    if progress is True:
        line = report.Progress()
        return line, line
    return contextlib.nullcontext(), progress or None


def _differentiable(kernel: Kernel | str, options: dict[str, Any]) -> Kernel:
    """The kernel of a sum whose derivatives are asked for, with these options of a plan; refuses what has none."""
    kernel = _kernel(kernel)
    if kernel.name in _COMPLEX:
        raise NotImplementedError(f"derivatives of the complex kernel {kernel.name}")
    for name in ("outputs", "subset"):
        if name in options:
            raise TypeError(f"{name} is no option of a sum that can be differentiated")
    return kernel


def _contracted(values: Any, gradient: Any) -> Any:
    """For each point the sum over components of values (n,) or (n, c) times gradients (n, d) or (n, c, d)."""
    if len(values) == 0:
        return gradient.reshape(0, gradient.shape[-1])
    values = values.reshape(len(values), -1, 1)
    return (values * gradient.reshape(len(values), values.shape[1], -1)).sum(1)


class Plan:
    """Sums of a kernel over given points, ready for many sets of strengths.

    Parameters
    ----------
    kernel : a kernel (``fmm.Laplace()``, ``fmm.Matern32(l=0.2)``, ``@fmm.kernel``) or its name
    sources : (N, d) array. C-contiguous f64 arrays are not copied before the library reads them. With
        ``backend="cuda"`` also an array on the GPU (CuPy, PyTorch, JAX, or any with ``__cuda_array_interface__`` or
        DLPack). Then targets and strengths are arrays of the same kind, and so are the results (:meth:`apply`)
    targets : (M, d) array; None: the sources, and each target skips itself by its index. ``targets=sources`` is not the
        same: there a source skips a target at the same position
    subset : indices of sources that are the targets, instead of ``targets``
    tolerance : bound of the relative l2 error of every output; measured before it is promised. Default 1e-6 (f32: 1e-5)
    order : order of the expansion instead of a tolerance
    outputs : names among potential, gradient, hessian, pressure
    method : auto, equivalent, interpolation, spherical, treecode, laurent, direct
    precision : precision of the arithmetic, f64 or f32
    backend, device : cpu, or cuda and the number of the GPU; or hybrid: the GPU sums the near field while the cores
        compute the far field
    devices : numbers of several GPUs that share the sums out among them, with backend cuda and arrays of the host
    threads : threads of the plan; None: one per core
    ncrit : most points of a leaf; None: chosen
    norm : the error that the tolerance bounds, l2 or max (max: kernel harmonic2d)
    theta : opening angle of a treecode
    cache : folder for operators
    cost_model : file of :func:`calibrate`, with the costs by which methods and sizes of leaves are chosen; None: costs
        that come with the library, so that no choice depends on the machine
    attributes : values of parameters that differ from source to source, as a dict of name -> (N,)
    nodes : number of values of each attribute between which far fields are interpolated, 1 to 4; None: chosen with the
        order, or 1 with a given order. ``describe()["nodes"]`` says how many there are
    progress : True for a line that shows how far work is (:class:`fmm.Progress`), or a function of (phase, fraction);
        returning False cancels with KeyboardInterrupt
    comm : a communicator of mpi4py, whose ranks plan and sum together: each gives its own points and strengths and gets
        the sums at its own targets. All ranks make the same calls. Needs a package that was built with MPI
        (``FMM_PYTHON_MPI=1 pip install ./python``)

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
        devices: Sequence[int] | None = None,
        threads: int | None = None,
        ncrit: int | None = None,
        norm: str = "l2",
        theta: float | None = None,
        cache: str | None = None,
        cost_model: str | os.PathLike[str] | None = None,
        attributes: Mapping[str, ArrayLike] | None = None,
        nodes: int | None = None,
        progress: Progress | bool | None = None,
        comm: Any = None,
    ) -> None:
        self.kernel = _kernel(kernel)
        self.outputs = _names(outputs)
        self._dim = self.kernel.dim
        self._complex = self.kernel.name in _COMPLEX
        self._device = device
        self._conjugate = False
        #: What functions that JAX compiles find the plan by (:mod:`fmm.jax`).
        self._registered: Any = None
        self._on_ranks = comm is not None
        #: The library of the points on a GPU; None for points on the host.
        self._there = _device.kind(sources)
        if self._there is not None and backend != "cuda":
            raise TypeError("sources is in the memory of a GPU, but the plan is for a CPU: pass backend='cuda', or copy "
                            "the points to the host first")
        self._line, called = _shown(progress)
        options = _options(
            self.outputs, tolerance=tolerance, order=order, method=method, precision=precision, backend=backend,
            device=device, devices=devices, threads=threads, ncrit=ncrit, norm=norm, theta=theta, cache=cache,
            cost_model=cost_model, attributes=attributes, nodes=nodes, comm=comm, progress=called,
        )  # fmt: skip
        core = self.kernel._core(self.outputs)
        with self._line:
            if self._there is None:
                points, at = self._points(sources, targets, subset)
                self._plan = _core.Plan(core, points, at, options)
            else:
                (there, at_there, stream), _held = self._points_there(sources, targets, subset)
                self._plan = _core.Plan.on_device(core, there, at_there, stream, options)
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
        self._sources, self._at, self._separate = points, None, targets is not None
        if subset is not None:
            chosen = _arrays.indices(subset, len(points))
            self._at = points[chosen]
            return points.reshape(-1), chosen
        if targets is None:
            return points.reshape(-1), None
        self._at = _arrays.points(targets, "targets", self._dim)
        return points.reshape(-1), self._at.reshape(-1)

    def _points_there(self, sources: Any, targets: Any, subset: Any) -> tuple[tuple[Any, Any, int], Any]:
        """Points on a GPU as the core takes them, and what keeps them alive."""
        if self._complex:
            raise NotImplementedError(f"arrays on a GPU for the complex kernel {self.kernel.name}: pass host arrays")
        if subset is not None:
            raise NotImplementedError("a subset of points on a GPU: pass the points as targets, or host arrays")
        held: list[Any] = []
        found: list[_device.Memory | None] = []
        for array, name in ((sources, "sources"), (targets, "targets")):
            if array is None:
                found.append(None)
                continue
            _device.same_kind(self._there, array, name, "sources")
            memory, alive = _device.memory(array, name)
            if len(memory.shape) != 2 or memory.shape[1] != self._dim:
                raise ValueError(f"{name} has shape {memory.shape}, expected (N, {self._dim})")
            found.append(memory)
            held.append(alive)
        return (found[0], found[1], _device.stream(sources)), held

    def apply(
        self, strengths: ArrayLike, out: Result | None = None, *, sets: bool | None = None
    ) -> Result:
        """The sums for ``strengths``.

        ``strengths`` has shape (N,) or (N, s), or one more axis in front for several sets at once, with the same bits as
        one call for each. ``sets`` says whether that axis is there, where the shape alone does not. f32 strengths give
        f32 sums. ``out`` takes the result of an earlier call, whose arrays are overwritten.

        Strengths on a GPU, for a plan with its points there, give arrays on the GPU of the same library. For CuPy and
        PyTorch the call does not wait: the sums run on the current stream, and NaN or infinity in strengths or sums is
        an error of a later call or of :meth:`synchronize`. The sums of JAX and of other libraries (as
        :class:`fmm.DeviceArray`) are waited for.
        """
        if out is not None and not isinstance(out, Result):
            raise TypeError(f"out is {type(out).__name__}, expected the result of an earlier call")
        if self._there is not None:
            return self._apply_there(strengths, out, sets)
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

    def _apply_there(self, strengths: Any, out: Result | None, sets: bool | None) -> Result:
        library = self._there
        assert library is not None
        if library == "jax" and out is not None:
            raise TypeError("arrays of JAX cannot be overwritten: call without out")
        _device.same_kind(library, strengths, "strengths", "the array of the points")
        given, held = _device.memory(strengths, "strengths")
        count = _arrays.sets_of(given.shape, self.n_sources, self._strengths, sets)
        lead = () if count is None else (count,)
        arrays, memories = {}, {}
        for name in self.outputs:
            shape = (*lead, self.n_targets, *self._axes(name))
            array = getattr(out, name) if out is not None else None
            if array is None:
                if out is not None:
                    raise ValueError(f"out.{name} is None")
                array = _device.empty(library, shape, given.single, strengths, self._device)
            memories[name], _ = _device.memory(array, name)
            if memories[name].shape != shape or memories[name].single != given.single:
                raise ValueError(f"out.{name} does not have shape {shape} and the type of the strengths")
            arrays[name] = array
        stream = _device.stream(strengths)
        for k in range(1 if count is None else count):
            q = given if count is None else given.part(k)
            self._plan.apply_on_device(q, {n: m if count is None else m.part(k) for n, m in memories.items()}, stream)
        try:
            if out is None:
                # While the GPU works, because JAX takes its time to accept an array.
                out = Result({n: _device.finished(library, a) for n, a in arrays.items()}, float("nan"), {})
        finally:
            if _device.waits(library):
                self.synchronize()
        del held
        return out

    def synchronize(self) -> None:
        """Waits for sums on arrays of a GPU. Raises ValueError for NaN or infinity in strengths or sums since the last
        such error."""
        self._plan.synchronize()

    def transposed(self, outputs: str | Sequence[str] = ("potential",)) -> Plan:
        """The plan of the transposed sums w_j = sum over i of K(x_i - y_j)^T v_i, from the targets of this plan to its
        sources: its "potential" are the w_j, its gradient is with respect to y_j. It measures its own error, and is
        made once. With subset, it takes values at all sources. Its points cannot move."""
        plan = object.__new__(Plan)
        plan.__dict__.update(self.__dict__)
        plan.outputs = _names(outputs)
        plan._conjugate, plan._registered = self._complex and not self._conjugate, None
        plan._plan = self._plan.transposed(list(plan.outputs))
        if plan._there is None and self._at is not None and self._separate:
            plan._sources, plan._at = self._at, self._sources
        else:
            plan._at = None
        plan._counted()
        return plan

    def apply_transpose(self, values: ArrayLike) -> NDArray[Any]:
        """The transposed matrix times ``values``, (M,) or (M, c): an array (N,) or (N, s). The matrix takes strengths to
        potentials."""
        if self._there is not None:
            there: NDArray[Any] | None = self.transposed().apply(values).potential
            assert there is not None
            return there
        components = self._plan.transposed(["potential"]).counts()[2]
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
        return back if self._strengths == 1 else back.reshape(self.n_sources, self._strengths)

    def verify(self, strengths: ArrayLike, samples: int = 1000) -> Report:
        """Errors of the sums for ``strengths`` at ``samples`` random targets against direct summation. Strengths on a
        GPU are copied to the host."""
        flat, _ = self._flat(strengths if self._there is None else _device.on_host(strengths), False)
        with self._line:
            measured = self._plan.verify(np.require(flat, np.float64), _arrays.count(samples, "samples"))
        return Report({name: Errors(*e) for name, *e in measured})

    def move(self, sources: ArrayLike, targets: ArrayLike | None = None, *, subset: ArrayLike | None = None) -> None:
        """Replaces the points. Operators stay; the order is measured again if the boxes have changed much."""
        if _device.kind(sources) != self._there:
            _device.same_kind(self._there, sources, "sources", "the array of the points")
        if self._there is not None:
            (there, at_there, stream), alive = self._points_there(sources, targets, subset)
            with self._line:
                self._plan.set_points_on_device(there, at_there, stream)
            del alive
            self._counted()
            return
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
        if self._there is not None:
            raise NotImplementedError("boxes of points on a GPU: make the plan with host arrays")
        at = self._sources if self._at is None else self._at
        leaves = {int(targets[0]): targets for targets, _ in self.near_blocks() if len(targets)}
        corners = [(at[t].min(axis=0), at[t].max(axis=0)) for t in leaves.values()]
        return np.array(corners).reshape(len(corners), 2, self._dim)

    def as_linear_operator(self) -> Any:
        """The matrix from strengths to potentials as a ``scipy.sparse.linalg.LinearOperator``. For points in a CuPy array
        it is the one of ``cupyx``, and vectors stay on the GPU."""
        from .linear import operator

        return operator(self)

    def plot(self, ax: Any = None, *, near: int | None = None) -> Any:
        """Draws points and leaves with matplotlib (the first two coordinates). Returns the axes. With ``near``, the index
        of a target, its leaf and the sources whose sums with it are direct are in colour."""
        from .plotting import plot

        return plot(self, ax, near)

    def _flat(self, strengths: ArrayLike, sets: bool | None) -> tuple[NDArray[Any], int | None]:
        if not self._complex:
            return _arrays.strengths(strengths, self.n_sources, self._strengths, sets)
        _arrays.refuse_device(strengths, "strengths")
        _arrays.refuse_masked(strengths, "strengths")
        array = np.require(strengths, np.complex128, ["C", "A"])
        wanted = (self.n_sources,)
        several = array.shape != wanted if sets is None else sets
        if (array.shape[1:] if several and array.ndim else array.shape) != wanted:
            raise ValueError(f"strengths has shape {array.shape}, expected {wanted}, or one more axis for several sets")
        if self._conjugate:
            array = array.conj()
        return array.reshape(-1).view(np.float64), array.shape[0] if several else None

    def _axes(self, name: str) -> tuple[int, ...]:
        """The axes of an output behind the axis of the targets."""
        d = self._dim
        axes = {"potential": (), "gradient": (d,), "hessian": (d, d), "pressure": ()}[name]
        c = self._sizes[name] // d ** len(axes)
        return axes if c == 1 else (c, *axes)

    def _shaped(self, name: str, flat: NDArray[Any], lead: tuple[int, ...], m: int) -> NDArray[Any]:
        axes = self._axes(name)
        if self._complex:
            axes = axes[1:]
            parts = flat.reshape(*lead, m, 2, *axes)
            parts = np.moveaxis(parts, len(lead) + 1, -1)
            whole: NDArray[Any] = np.ascontiguousarray(parts).view(np.complex128)[..., 0]
            return whole.conj() if self._conjugate else whole
        return flat.reshape(*lead, m, *axes)

    def __reduce__(self) -> Any:
        raise TypeError("a plan cannot be copied or pickled: send the kernel and the points, and make the plan there")

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


__all__ = ["Errors", "Expression", "Plan", "Report", "Result"]
