"""Derivatives in JAX, also under jit, against finite differences and against JAX through sums over all pairs."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import fmm  # noqa: E402
import fmm.jax  # noqa: E402

jax.config.update("jax_enable_x64", True)


def arrays(rng, n, m, c):
    q = rng.standard_normal((n,) if c == 1 else (n, c))
    return jnp.asarray(rng.random((n, 3))), jnp.asarray(q), jnp.asarray(rng.random((m, 3)))


@pytest.mark.parametrize("kernel, c", [(fmm.Laplace(), 1), (fmm.Stokes(mu=0.7), 3), (fmm.LaplaceDipole(), 3)])
def test_derivatives_are_those_of_finite_differences(kernel, c, rng):
    from jax.test_util import check_grads

    x, q, y = arrays(rng, 7, 5, c)
    apart = jax.jit(lambda x, q, y: fmm.jax.evaluate(kernel, x, q, y, method="direct"))
    check_grads(apart, (x, q, y), order=1, modes=["rev"], atol=1e-4, rtol=1e-4)
    own = jax.jit(lambda x, q: fmm.jax.evaluate(kernel, x, q, method="direct"))
    check_grads(own, (x, q), order=1, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_fast_sums_keep_the_tolerance_in_derivatives(rng):
    x, q, y = arrays(rng, 3000, 2000, 1)
    v = jnp.asarray(rng.standard_normal(2000))

    def exact(x, q, y):
        return v @ (q / (4 * jnp.pi * jnp.linalg.norm(y[:, None] - x[None], axis=-1))).sum(axis=1)

    def fast(x, q, y):
        return v @ fmm.jax.evaluate("laplace", x, q, y, tolerance=1e-6, method="equivalent")

    expected = jax.grad(exact, argnums=(0, 1, 2))(x, q, y)
    for found in (jax.grad(fast, argnums=(0, 1, 2)), jax.jit(jax.grad(fast, argnums=(0, 1, 2)))):
        for a, b in zip(found(x, q, y), expected, strict=True):
            assert jnp.linalg.norm(a - b) < 4e-6 * jnp.linalg.norm(b)


def test_a_plan_is_linear(rng):
    x, q, _ = arrays(rng, 2000, 1, 3)
    plan = fmm.Plan("stokes", np.asarray(x), tolerance=1e-7)
    u = jax.jit(lambda q: fmm.jax.apply(plan, q))(q)
    v = jnp.asarray(rng.standard_normal(u.shape))
    back = jax.jit(jax.grad(lambda q: (v * fmm.jax.apply(plan, q)).sum()))(q)
    assert abs((back * q).sum() - (u * v).sum()) < 1e-6 * jnp.linalg.norm(u) * jnp.linalg.norm(v)
    single = fmm.jax.apply(plan, q.astype(jnp.float32))
    assert single.dtype == jnp.float32


def test_a_second_derivative_raises(rng):
    x, q, _ = arrays(rng, 5, 1, 1)
    energy = lambda x: fmm.jax.evaluate("laplace", x, q).sum()  # noqa: E731
    with pytest.raises(ValueError, match="do not support JVP"):
        jax.grad(lambda x: jax.grad(energy)(x).sum())(x)


def test_refusals(rng):
    x, q, _ = arrays(rng, 5, 1, 1)
    with pytest.raises(NotImplementedError, match="complex"):
        fmm.jax.evaluate("helmholtz", x, q)
    with pytest.raises(TypeError, match="outputs"):
        fmm.jax.evaluate("laplace", x, q, outputs="gradient")
