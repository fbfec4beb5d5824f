"""Transposed sums with gradients, against numpy."""

import numpy as np
import pytest
from conftest import differences, relative

import fmm


def test_dipoles_with_gradients(rng):
    x, y = rng.random((400, 3)), rng.random((300, 3))
    v = rng.standard_normal(300)
    plan = fmm.Plan(fmm.LaplaceDipole(), x, y, tolerance=1e-8)
    back = plan.transposed(("potential", "gradient"))
    result = back.apply(v)
    d, r = differences(x, y)
    k = d / (4 * np.pi * r[..., None] ** 3)
    assert relative(result.potential, np.einsum("i,ija->ja", v, k)) < 1e-8
    slope = 3 * d[..., None] * d[..., None, :] / r[..., None, None] ** 5 - np.eye(3) / r[..., None, None] ** 3
    assert relative(result.gradient, np.einsum("i,ijab->jab", v, slope) / (4 * np.pi)) < 1e-8
    assert relative(plan.apply_transpose(v), result.potential) < 1e-8
    assert back.verify(v)["gradient"].rel_l2 < 1e-8 and back.n_sources == 300 and back.kernel is plan.kernel
    with pytest.raises(NotImplementedError, match="transposed"):
        back.move(y, x)


def test_complex_kernels(rng):
    x, y = rng.random((200, 3)), rng.random((150, 3))
    v = rng.standard_normal(150) + 1j * rng.standard_normal(150)
    plan = fmm.Plan("helmholtz", x, y, tolerance=1e-8)
    expected = fmm.direct("helmholtz", y, v, x, outputs=("potential", "gradient"))
    result = plan.transposed(("potential", "gradient")).apply(v)
    assert relative(result.potential, expected.potential) < 1e-8
    assert relative(result.gradient, expected.gradient) < 1e-8
    assert relative(plan.apply_transpose(v), expected.potential) < 1e-8


def test_an_operator_has_its_adjoint(rng):
    pytest.importorskip("scipy")
    a = fmm.Plan(fmm.Stresslet(mu=1.0), rng.random((200, 3)), tolerance=1e-8).as_linear_operator()
    q, v = rng.standard_normal(1800), rng.standard_normal(600)
    assert abs(v @ (a @ q) - (a.rmatvec(v) @ q)) < 1e-7 * np.linalg.norm(a @ q) * np.linalg.norm(v)
