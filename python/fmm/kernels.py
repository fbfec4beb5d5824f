"""Kernels: the functions K in u(x) = sum over j of K(x - y_j) q_j.

Formulas, signs and factors are those of the library's CONVENTIONS.md. Gradients are with respect to the target.
"""

from __future__ import annotations

from typing import Any

from . import _core


class Kernel:
    """A kernel with its parameters. Kernels can be compared, pickled and printed."""

    def __init__(self, name: str, *, text: str | None = None, form: str = "name", **parameters: float) -> None:
        self._name, self._text, self._form = name, text, form
        self._parameters = {key: float(value) for key, value in parameters.items()}
        self._include: bool | None = None
        self._compile = False
        self._core(())  # Wrong names and parameters are errors here, not in the first plan.

    def _core(self, outputs: tuple[str, ...]) -> _core.Kernel:
        """The kernel of the library that has these outputs."""
        if self._form == "text":
            kernel = _core.Kernel.text(self._text or "", self._parameters)
        elif self._form == "expression":
            kernel = _core.Kernel.expression(self._text or "", self._parameters)
        else:
            name = "stokes_pressure" if self._name == "stokes" and "pressure" in outputs else self._name
            kernel = _core.Kernel.named(name, self._parameters)
        if self._compile:
            kernel = kernel.compiled()
        if self._include is not None:
            kernel = kernel.self_interaction(self._include)
        return kernel

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self._name

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters that were given."""
        return dict(self._parameters)

    @property
    def dim(self) -> int:
        """Coordinates of a point: 3, or 2 in the plane."""
        return self._core(()).dim

    @property
    def strengths(self) -> int:
        """Numbers that a source carries."""
        return self._core(()).strengths

    @property
    def values(self) -> int:
        """Components of the potential."""
        return self._core(()).values

    def with_self(self, include: bool) -> Kernel:
        """The kernel with a choice whether a source acts on itself, if targets are the sources."""
        other = self._copy()
        other._include = bool(include)
        other._core(())
        return other

    def compiled(self) -> Kernel:
        """The kernel with pair loops by the system's C compiler (``cc``), if it was made at run time.

        Sums on a CPU are then up to four times as fast. A plan reports a missing compiler.
        """
        other = self._copy()
        other._compile = True
        return other

    def _copy(self) -> Kernel:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _key(self) -> tuple[Any, ...]:
        return (self._name, self._text, self._form, tuple(sorted(self._parameters.items())), self._include, self._compile)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        parameters = ", ".join(f"{key}={value:g}" for key, value in self._parameters.items())
        return f"fmm.Kernel({self._name}{', ' if parameters else ''}{parameters})"


def Laplace() -> Kernel:
    """Charges: 1/(4 pi r)."""
    return Kernel("laplace")


def LaplaceDipole() -> Kernel:
    """Dipoles v (3 strengths): v.r/(4 pi r^3), the source gradient of 1/(4 pi r)."""
    return Kernel("laplace_dipole")


def LaplaceMixed() -> Kernel:
    """A charge and a dipole (4 strengths): the sum of both."""
    return Kernel("laplace_mixed")


def Yukawa(kappa: float = 1.0) -> Kernel:
    """exp(-kappa r)/(4 pi r)."""
    return Kernel("yukawa", kappa=kappa)


def Gravity(g: float = 1.0, softening: float = 0.0) -> Kernel:
    """-g/sqrt(r^2 + softening^2), the potential of masses. The acceleration is minus the gradient."""
    return Kernel("gravity", g=g, softening=softening)


def Stokes(mu: float = 1.0) -> Kernel:
    """Forces f (3 strengths): velocity (f/r + r (r.f)/r^3)/(8 pi mu). Has the output ``pressure``."""
    return Kernel("stokes", mu=mu)


def Stresslet(mu: float = 1.0) -> Kernel:
    """Force dipoles D (9 strengths, row by row): velocity 3 r (r.D.r)/(8 pi mu r^5)."""
    return Kernel("stresslet", mu=mu)


def Harmonic2D() -> Kernel:
    """In the plane: Gamma/(z_j - z), complex (Goude & Engblom 2012, eq. 5.1)."""
    return Kernel("harmonic2d")


def Laplace2D() -> Kernel:
    """In the plane, charges: -log(r)/(2 pi)."""
    return Kernel("laplace2d")


def Laplace2DDipole() -> Kernel:
    """In the plane, dipoles v (2 strengths): v.r/(2 pi r^2), the source gradient of -log(r)/(2 pi)."""
    return Kernel("laplace2d_dipole")


def Laplace2DMixed() -> Kernel:
    """In the plane, a charge and a dipole (3 strengths): the sum of both."""
    return Kernel("laplace2d_mixed")


def Expression(text: str, **parameters: float) -> Kernel:
    """A kernel from one expression of r (or x, y, z) and parameters: ``Expression("exp(-r/l)", l=0.2)``."""
    return Kernel("expression", text=text, form="expression", **parameters)


def KernelText(text: str, **parameters: float) -> Kernel:
    """A kernel from the text of a kernel file (docs/kernel-files.md of the library)."""
    return Kernel("text", text=text, form="text", **parameters)


def _catalog(name: str, formula: str) -> Any:
    def make(**parameters: float) -> Kernel:
        return Kernel(name, **parameters)  # type: ignore[arg-type]

    make.__name__ = make.__qualname__ = "".join(part.capitalize() for part in name.split("_"))
    make.__doc__ = formula
    return make


Gaussian = _catalog("gaussian", "exp(-r^2/h^2); parameter h.")
Exponential = _catalog("exponential", "exp(-r/l); parameter l.")
Matern32 = _catalog("matern32", "Covariance (1 + sqrt(3) r/l) exp(-sqrt(3) r/l); parameter l.")
Matern52 = _catalog("matern52", "Covariance (1 + a r + (a r)^2/3) exp(-a r), a = sqrt(5)/l; parameter l.")
Multiquadric = _catalog("multiquadric", "sqrt(r^2 + c^2); parameter c.")
InverseMultiquadric = _catalog("inverse_multiquadric", "1/sqrt(r^2 + c^2); parameter c.")
ThinPlate = _catalog("thin_plate", "r^2 log r.")
Biharmonic = _catalog("biharmonic", "r.")
Kelvin = _catalog("kelvin", "Kelvin's solution: displacement of an elastic body by forces (3 strengths).")
BiotSavart = _catalog("biot_savart", "Velocity by vortices (3 strengths).")
Helmholtz = _catalog("helmholtz", "exp(ikr)/(4 pi r) at low frequency; real and imaginary part are two strengths.")
