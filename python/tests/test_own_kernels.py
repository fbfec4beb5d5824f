"""Kernels written in Python."""

import math
import pickle

import numpy as np
import pytest
from conftest import differences, relative

import fmm


@fmm.kernel
def matern(r, l=0.2):
    a = 3**0.5 / l
    return (1 + a * r) * fmm.exp(-a * r)


@fmm.kernel(strengths=3)
def vortex(r, q, c=1.0):
    f = c / r.norm() ** 3
    return f * (q[1] * r.z - q[2] * r.y), f * (q[2] * r.x - q[0] * r.z), f * (q[0] * r.y - q[1] * r.x)


@fmm.kernel
def stretched(r, q, e=4.0):
    return q * fmm.rsqrt(r.x**2 + r.y**2 + e * r.z**2)


@fmm.kernel
def compact(r, h=0.3):
    return fmm.where((r < h) & ~(r <= 0.0), (1 - r / h) ** 4, fmm.minimum(0.0, -r * 0)) + fmm.where(r <= 0, 1.0, 0.0)


def test_sums(rng):
    x, y, q = rng.random((2000, 3)), rng.random((300, 3)), rng.standard_normal(2000)
    d, r = differences(x, y)
    s = 3**0.5 * r / 0.3
    assert relative(fmm.evaluate(matern(l=0.3), x, q, y, tolerance=1e-5).potential, ((1 + s) * np.exp(-s)) @ q) < 1e-5
    scaled = np.sqrt(d[..., 0] ** 2 + d[..., 1] ** 2 + 4 * d[..., 2] ** 2)
    assert relative(fmm.evaluate(stretched(), x, q, y, tolerance=1e-4).potential, (1 / scaled) @ q) < 1e-4
    w = rng.standard_normal((2000, 3))
    velocity = np.cross(w[None], d) / r[..., None] ** 3
    assert relative(fmm.evaluate(vortex(), x, w, y, tolerance=1e-4).potential, velocity.sum(axis=1)) < 1e-4
    bump = np.where(r < 0.3, (1 - np.minimum(r, 0.3) / 0.3) ** 4, 0)
    assert relative(fmm.direct(compact(), x, q, y).potential, bump @ q) < 1e-12


def test_gradients_are_derived(rng):
    x, y, q = rng.random((500, 3)), rng.random((20, 3)), rng.standard_normal(500)
    sums = fmm.direct(matern(), x, q, y, outputs=("potential", "gradient"))
    h = 1e-6
    for axis in range(3):
        ahead, behind = (fmm.direct(matern(), x, q, y + s * h * np.eye(3)[axis]).potential for s in (1, -1))
        assert np.allclose(sums.gradient[:, axis], (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-5)


def test_the_c_compiler_gives_the_same_sums(rng):
    x, q = rng.random((1500, 3)), rng.standard_normal(1500)
    plain = fmm.direct(matern(), x, q).potential
    assert relative(fmm.direct(matern().compiled(), x, q).potential, plain) < 1e-13


def test_own_kernels_are_values():
    assert matern(l=0.1) == matern(l=0.1) != matern()
    assert pickle.loads(pickle.dumps(matern(l=0.1))) == matern(l=0.1)
    assert matern.__name__ == "matern" and matern.parameters == {"l": 0.2}


def test_what_cannot_be_traced():
    with pytest.raises(TypeError, match="fmm.where"):

        @fmm.kernel
        def branch(r):
            return 1 / r if r > 1 else r

    with pytest.raises(TypeError, match="fmm.where"):

        @fmm.kernel
        def both(r):
            return fmm.where(r > 1 and r < 2, r, 1.0)

    with pytest.raises(TypeError, match="fmm.sqrt"):

        @fmm.kernel
        def of_math(r):
            return math.sqrt(r)

    with pytest.raises(TypeError, match="usual value"):

        @fmm.kernel
        def no_value(r, q, l):
            return q * l

    with pytest.raises(ValueError, match="linear"):

        @fmm.kernel
        def not_linear(r, q):
            return q * q / r.norm()

    with pytest.raises(TypeError, match="no parameter k"):
        matern(k=1)
