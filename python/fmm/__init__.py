"""Fast sums u(x) = sum over j of K(x - y_j) q_j over many points, to a promised tolerance.

>>> import fmm, numpy as np
>>> rng = np.random.default_rng(1)
>>> points, charges = rng.random((2000, 3)), rng.standard_normal(2000)
>>> plan = fmm.Plan(fmm.Laplace(), points, tolerance=1e-6, outputs=("potential", "gradient"))
>>> result = plan.apply(charges)
>>> result.potential.shape, result.gradient.shape
((2000,), (2000, 3))
>>> plan.verify(charges)["gradient"].rel_l2 < 1e-6
True
"""

from ._core import DeviceArray, __version__
from ._functions import calibrate, devices, direct, evaluate, memory, open_for
from ._plan import Errors, Plan, Result
from .kernels import (
    BiotSavart,
    Biharmonic,
    Exponential,
    Expression,
    Gaussian,
    Gravity,
    Harmonic2D,
    Helmholtz,
    InverseMultiquadric,
    Kelvin,
    Kernel,
    KernelText,
    Laplace,
    Laplace2D,
    Laplace2DDipole,
    Laplace2DMixed,
    LaplaceDipole,
    LaplaceMixed,
    Matern32,
    Matern52,
    Multiquadric,
    Stokes,
    Stresslet,
    ThinPlate,
    Yukawa,
)
from .own import (
    bessel_k0,
    bessel_k1,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    kernel,
    log,
    maximum,
    minimum,
    rsqrt,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    where,
)
from .report import Progress, Report
from .vtk import to_vtk

__all__ = [
    "Biharmonic",
    "BiotSavart",
    "DeviceArray",
    "Errors",
    "Exponential",
    "Expression",
    "Gaussian",
    "Gravity",
    "Harmonic2D",
    "Helmholtz",
    "InverseMultiquadric",
    "Kelvin",
    "Kernel",
    "KernelText",
    "Laplace",
    "Laplace2D",
    "Laplace2DDipole",
    "Laplace2DMixed",
    "LaplaceDipole",
    "LaplaceMixed",
    "Matern32",
    "Matern52",
    "Multiquadric",
    "Plan",
    "Progress",
    "Report",
    "Result",
    "Stokes",
    "Stresslet",
    "ThinPlate",
    "Yukawa",
    "__version__",
    "bessel_k0",
    "bessel_k1",
    "calibrate",
    "cos",
    "cosh",
    "devices",
    "direct",
    "erf",
    "erfc",
    "evaluate",
    "exp",
    "kernel",
    "log",
    "maximum",
    "memory",
    "minimum",
    "open_for",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "to_vtk",
    "where",
]
