"""Sums against formulas in NumPy, and their shapes."""

import numpy as np
import pytest
from conftest import differences, relative

import fmm

N, M = 3000, 700


def test_laplace_with_all_outputs(rng):
    x, y, q = rng.random((N, 3)), rng.random((M, 3)), rng.standard_normal(N)
    d, r = differences(x, y)
    sums = fmm.evaluate("laplace", x, q, y, tolerance=1e-7, outputs=("potential", "gradient", "hessian"))
    assert relative(sums.potential, (q / r).sum(axis=1) / (4 * np.pi)) < 1e-7
    assert relative(sums.gradient, -(q[:, None] * d / r[..., None] ** 3).sum(axis=1) / (4 * np.pi)) < 1e-7
    outer = 3 * d[..., :, None] * d[..., None, :] / r[..., None, None] ** 5 - np.eye(3) / r[..., None, None] ** 3
    assert relative(sums.hessian, np.einsum("n,mnij->mij", q, outer) / (4 * np.pi)) < 1e-7
    assert sums.pressure is None and set(sums.stages) >= {"p2p", "m2l"}
    assert sums.hessian.shape == (M, 3, 3)


def test_targets_are_the_sources_by_index(rng):
    x, q = rng.random((N, 3)), rng.random(N)
    x[5] = x[6]
    _, r = differences(x, x)
    expected = (q / r).sum(axis=1) / (4 * np.pi)
    assert relative(fmm.evaluate("laplace", x, q).potential, expected) < 1e-6
    chosen = np.array([3, 5, 900])
    assert relative(fmm.Plan("laplace", x, subset=chosen).apply(q).potential, expected[chosen]) < 1e-6


@pytest.mark.parametrize("precision, strengths", [("f64", np.float64), ("f32", np.float32), ("f64", np.float32)])
def test_precision_and_type(rng, precision, strengths):
    x, q = rng.random((N, 3)), rng.random(N).astype(strengths)
    sums = fmm.evaluate("laplace", x, q, precision=precision, tolerance=1e-4)
    _, r = differences(x, x)
    assert sums.potential.dtype == strengths
    assert relative(sums.potential, (q / r).sum(axis=1) / (4 * np.pi)) < 1e-4


def test_stokes_flow(rng):
    x, y, f = rng.random((N, 3)), rng.random((M, 3)), rng.standard_normal((N, 3))
    d, r = differences(x, y)
    sums = fmm.evaluate(fmm.Stokes(mu=2.0), x, f, y, outputs=("potential", "gradient", "pressure"), tolerance=1e-5)
    along = np.einsum("mnk,nk->mn", d, f)
    velocity = (f / r[..., None] + d * (along / r**3)[..., None]).sum(axis=1) / (16 * np.pi)
    assert relative(sums.potential, velocity) < 1e-5
    assert relative(sums.pressure, (along / r**3).sum(axis=1) / (4 * np.pi)) < 1e-5
    assert sums.gradient.shape == (M, 3, 3) and sums.pressure.shape == (M,)


@pytest.mark.parametrize(
    "kernel, formula",
    [
        (fmm.Yukawa(kappa=3.0), lambda r: np.exp(-3 * r) / (4 * np.pi * r)),
        (fmm.Gravity(g=2.0, softening=0.01), lambda r: -2 / np.sqrt(r**2 + 1e-4)),
        (fmm.Matern32(l=0.3), lambda r: (1 + 3**0.5 * r / 0.3) * np.exp(-(3**0.5) * r / 0.3)),
        (fmm.Expression("1/(1 + a*r^2)", a=4.0), lambda r: 1 / (1 + 4 * r**2)),
    ],
)
def test_kernels(rng, kernel, formula):
    x, y, q = rng.random((N, 3)), rng.random((M, 3)), rng.standard_normal(N)
    _, r = differences(x, y)
    assert relative(fmm.evaluate(kernel, x, q, y, tolerance=1e-4).potential, formula(r) @ q) < 1e-4


def test_the_plane_is_complex(rng):
    x, q = rng.random((N, 2)), rng.standard_normal(N) + 1j * rng.standard_normal(N)
    z = x[:, 0] + 1j * x[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1 / (z[None] - z[:, None])
    np.fill_diagonal(inverse, 0)
    sums = fmm.evaluate("harmonic2d", x, q, outputs=("potential", "gradient"), tolerance=1e-7)
    slope = (inverse**2) @ q
    assert relative(sums.potential, inverse @ q) < 1e-7
    assert relative(sums.gradient, np.stack([slope, 1j * slope], axis=1)) < 1e-6
    logarithm = fmm.evaluate(fmm.Laplace2D(), x, q.real, tolerance=1e-7).potential
    _, r = differences(x, x)
    r[np.isinf(r)] = 1
    assert relative(logarithm, -np.log(r) @ q.real / (2 * np.pi)) < 1e-7


def test_second_derivatives_in_the_plane(rng):
    x, y = rng.random((N, 2)), rng.random((M, 2))
    q, d = rng.standard_normal(N), rng.standard_normal((N, 2))
    z = (y[:, 0] + 1j * y[:, 1])[:, None] - (x[:, 0] + 1j * x[:, 1])[None]
    pole = d[:, 0] + 1j * d[:, 1]
    # f = sum of q log z - pole/z; the real potential is -Re f/(2 pi).
    f = [np.log(np.abs(z)) @ q - (1 / z) @ pole, (1 / z) @ q + z**-2 @ pole, -(z**-2) @ q - 2 * z**-3 @ pole]
    sums = fmm.evaluate(
        fmm.Laplace2DMixed(), x, np.column_stack([q, d]), y, outputs=("potential", "gradient", "hessian"), tolerance=1e-8
    )
    scale = -1 / (2 * np.pi)
    assert relative(sums.potential, scale * f[0].real) < 1e-8
    assert relative(sums.gradient, scale * np.stack([f[1].real, -f[1].imag], axis=1)) < 1e-8
    rows = np.stack([f[2].real, -f[2].imag, -f[2].imag, -f[2].real], axis=1).reshape(M, 2, 2)
    assert relative(sums.hessian, scale * rows) < 1e-8
    dipoles = fmm.direct(fmm.Laplace2DDipole(), x, d, y).potential
    assert relative(dipoles, scale * (-(1 / z) @ pole).real) < 1e-12
    complex_sums = fmm.evaluate("harmonic2d", x, pole, y, outputs=("hessian",), tolerance=1e-8)
    second = -2 * z**-3 @ pole
    assert relative(complex_sums.hessian, np.stack([second, 1j * second, 1j * second, -second], 1).reshape(M, 2, 2)) < 1e-8


def test_helmholtz_is_complex(rng):
    x, y, q = rng.random((N, 3)), rng.random((M, 3)), rng.standard_normal(N) + 1j * rng.standard_normal(N)
    _, r = differences(x, y)
    sums = fmm.evaluate(fmm.Helmholtz(k=2.0), x, q, y, tolerance=1e-4)
    assert relative(sums.potential, (np.exp(2j * r) / (4 * np.pi * r)) @ q) < 1e-4


def test_direct_is_the_same_sum(rng):
    x, q = rng.random((500, 3)), rng.standard_normal(500)
    _, r = differences(x, x)
    assert relative(fmm.direct("laplace", x, q).potential, (q / r).sum(axis=1) / (4 * np.pi)) < 1e-13


def test_a_value_for_each_source(rng):
    x, y, q, width = rng.random((N, 3)), rng.random((M, 3)), rng.random(N), 0.3 * (1 + 0.01 * rng.random(N))
    _, r = differences(x, y)
    plan = fmm.Plan(fmm.Gaussian(h=0.3), x, y, tolerance=1e-2, attributes={"h": width})
    assert relative(plan.apply(q).potential, np.exp(-((r / width) ** 2)) @ q) < 1e-2


def test_several_values_in_far_fields(rng):
    x, y, q, width = rng.random((N, 3)), rng.random((M, 3)), rng.random(N), 0.3 * (1 + rng.random(N))
    _, r = differences(x, y)

    def error(nodes):
        options = {"method": "interpolation", "order": 8, "ncrit": 30, "attributes": {"h": width}}
        plan = fmm.Plan(fmm.Gaussian(h=0.3), x, y, nodes=nodes, **options)
        assert plan.describe()["nodes"] == nodes
        return relative(plan.apply(q).potential, np.exp(-((r / width) ** 2)) @ q)

    assert error(4) < 0.1 * error(2)
    with pytest.raises(ValueError):
        error(5)
    with pytest.raises(NotImplementedError):
        fmm.Plan("laplace", x, y, nodes=2)
