"""A plan as a linear operator of SciPy, or of CuPy for points in a CuPy array."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._plan import Plan


def operator(plan: Plan) -> Any:
    """The matrix from strengths to potentials. Vectors are the rows of strengths and potentials one after the other.
    Products with several columns are one batch. ``rmatvec`` needs a kernel with a transpose."""
    library: Any = np
    if plan._there is None:
        from scipy.sparse.linalg import LinearOperator
    elif plan._there == "cupy":
        library = sys.modules["cupy"]
        from cupyx.scipy.sparse.linalg import LinearOperator
    else:
        raise TypeError("linear operators are those of SciPy and CuPy: the points of the plan are an array of neither")
    if "potential" not in plan.outputs:
        raise ValueError("the plan has no output potential")
    kind: Any = np.complex128 if plan._complex else np.float64
    if plan._there is not None and plan.describe()["precision"] == "f32":
        kind = np.float32
    s = 1 if plan._complex else plan._strengths
    c = 1 if plan._complex else plan._sizes["potential"]
    rows = (plan.n_sources,) if s == 1 else (plan.n_sources, s)

    def product(x: NDArray[Any]) -> NDArray[Any]:
        potential = plan.apply(library.asarray(x).reshape(rows), sets=False).potential
        assert potential is not None
        return potential.reshape(-1)

    def products(x: NDArray[Any]) -> NDArray[Any]:
        columns = library.ascontiguousarray(library.asarray(x).T)
        potential = plan.apply(columns.reshape(len(columns), *rows), sets=True).potential
        assert potential is not None
        together: NDArray[Any] = library.ascontiguousarray(potential.reshape(len(columns), -1).T)
        return together

    def transposed(x: NDArray[Any]) -> NDArray[Any]:
        shape = (plan.n_targets,) if c == 1 else (plan.n_targets, c)
        x = library.asarray(x).reshape(shape)
        return plan.apply_transpose(x.conj()).reshape(-1).conj()

    shape = (plan.n_targets * c, plan.n_sources * s)
    return LinearOperator(shape, matvec=product, rmatvec=transposed, matmat=products, dtype=kind)
