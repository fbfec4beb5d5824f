"""Derivatives in JAX, also under jit, against finite differences and against JAX through sums over all pairs."""

import gc

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import fmm  # noqa: E402
import fmm.jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
# XLA passes errors on as the one or the other.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


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
    assert single.dtype == jnp.float32 and jnp.linalg.norm(single - u) < 1e-6 * jnp.linalg.norm(u)


def test_compiled_functions_call_no_python(rng):
    x, q, y = arrays(rng, 300, 200, 1)
    plan = fmm.Plan("laplace", np.asarray(x))
    value = jax.jit(jax.value_and_grad(lambda x, q: fmm.jax.evaluate("laplace", x, q, y).sum(), argnums=(0, 1)))
    for text in (value.lower(x, q).as_text(), jax.jit(lambda q: fmm.jax.apply(plan, q)).lower(q).as_text()):
        assert "fmm_sums" in text and "callback" not in text


def test_only_wanted_derivatives_are_summed(rng):
    """Gradients cost more than potentials, so sums have them only if points are differentiated."""
    x, q, y = arrays(rng, 30, 20, 1)

    energy = lambda q, x, y: fmm.jax.evaluate("laplace", x, q, y).sum()  # noqa: E731
    text = str(jax.make_jaxpr(jax.grad(energy))(q, x, y))
    assert text.count("ffi_call[") == 2 and "f64[20,3] =" not in text and "f64[30,3] =" not in text
    text = str(jax.make_jaxpr(jax.grad(energy, argnums=2))(q, x, y))
    assert "f64[20,3] =" in text and "f64[30,3] =" not in text
    for argnums in (1, 2, (0, 1, 2)):
        found = jax.jit(jax.grad(energy, argnums=argnums))(q, x, y)
        assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(found))


def test_vmap(rng):
    x, q, y = arrays(rng, 300, 200, 1)
    several = jnp.stack([q, 2 * q, -q])
    plan = fmm.Plan("laplace", np.asarray(x), np.asarray(y))
    together = jax.jit(jax.vmap(lambda q: fmm.jax.apply(plan, q)))(several)
    expected = plan.apply(np.asarray(several)).potential
    assert jnp.array_equal(together, expected)
    back = jax.vmap(jax.grad(lambda q: fmm.jax.apply(plan, q).sum()))(several)
    assert back.shape == (3, 300) and jnp.allclose(back[0], plan.apply_transpose(np.ones(200)), rtol=1e-6)
    one_by_one = jax.vmap(lambda q, x: fmm.jax.evaluate("laplace", x, q, y, method="direct"))
    found = one_by_one(several, jnp.stack([x, x + 0.1, x]))
    for k, at in enumerate((x, x + 0.1, x)):
        exact = fmm.direct("laplace", np.asarray(at), np.asarray(several[k]), np.asarray(y)).potential
        assert jnp.linalg.norm(found[k] - exact) < 1e-13 * jnp.linalg.norm(exact)


def test_points_that_move(rng):
    """The plan that is kept for the next call has that call's points; a plan of the caller may move between calls."""
    x, q, _ = arrays(rng, 3000, 1, 1)
    sums = jax.jit(lambda x, q: fmm.jax.evaluate("laplace", x, q, tolerance=1e-6))
    for at in (x, x, 0.5 * x, x[::-1]):
        exact = fmm.direct("laplace", np.asarray(at), np.asarray(q)).potential
        assert jnp.linalg.norm(sums(at, q) - exact) < 1e-6 * jnp.linalg.norm(exact)
    fmm.jax.forget()
    assert jnp.isfinite(sums(x, q)).all()
    plan = fmm.Plan("laplace", np.asarray(x), tolerance=1e-6)
    of_plan = jax.jit(jax.value_and_grad(lambda q: fmm.jax.apply(plan, q).sum()))
    before = of_plan(q)
    plan.move(np.asarray(2 * x))
    after = of_plan(q)
    assert abs(after[0] - 0.5 * before[0]) < 1e-5 * abs(before[0])
    assert jnp.linalg.norm(after[1] - 0.5 * before[1]) < 1e-5 * jnp.linalg.norm(before[1])


def test_a_compiled_function_keeps_its_plan(rng):
    x, q, _ = arrays(rng, 200, 1, 1)

    @jax.jit
    def inside(q):
        return fmm.jax.apply(fmm.Plan("laplace", np.asarray(x)), q)

    expected = fmm.direct("laplace", np.asarray(x), np.asarray(q)).potential
    for _ in range(2):
        gc.collect()
        assert jnp.linalg.norm(inside(q) - expected) < 1e-6 * jnp.linalg.norm(expected)


def test_no_growth_in_a_loop_without_jit(rng):
    x, q, _ = arrays(rng, 50, 1, 1)
    known = fmm.jax._known.cache_info().misses
    for _ in range(20):
        jax.grad(lambda q: fmm.jax.evaluate("laplace", x, q, tolerance=1e-4).sum())(q)
    assert fmm.jax._known.cache_info().misses <= known + 1


def test_nothing_to_sum_and_other_numbers(rng):
    x, q, y = arrays(rng, 20, 10, 1)
    nothing = fmm.jax.evaluate("laplace", x[:0], q[:0], y)
    assert nothing.shape == (10,) and not nothing.any()
    by = jax.grad(lambda x: fmm.jax.evaluate("laplace", x, q, y[:0]).sum())(x)
    assert by.shape == (20, 3) and not by.any()
    whole = fmm.jax.evaluate("laplace", x, jnp.ones(20, int), y)
    assert whole.dtype == jnp.float64
    assert jnp.allclose(whole, fmm.jax.evaluate("laplace", x, jnp.ones(20), y), rtol=1e-6)
    # Points in f32, strengths in f64, and the other way round.
    mixed = jax.grad(lambda x: fmm.jax.evaluate("laplace", x, q, y).sum())(x.astype(jnp.float32))
    assert mixed.dtype == jnp.float32
    assert fmm.jax.evaluate("laplace", x, q.astype(jnp.float32), y).dtype == jnp.float32


def test_errors(rng):
    x, q, _ = arrays(rng, 50, 1, 1)
    sums = jax.jit(lambda x, q: fmm.jax.evaluate("laplace", x, q, order=5, method="spherical"))
    with pytest.raises(RAISED, match="NaN"):
        sums(x.at[7].set(jnp.nan), q).block_until_ready()
    assert jnp.isfinite(sums(x, q)).all()
    plan = fmm.Plan("laplace", np.asarray(x))
    compiled = jax.jit(lambda q: fmm.jax.apply(plan, q))
    assert jnp.isfinite(compiled(q)).all()
    plan.move(np.asarray(x[:30]))
    with pytest.raises(RAISED, match="30 sources"):
        compiled(q).block_until_ready()
    plan.move(np.asarray(x), np.asarray(x[:30]))
    with pytest.raises(RAISED, match="30 targets"):
        compiled(q).block_until_ready()


def test_a_second_derivative_raises(rng):
    x, q, _ = arrays(rng, 5, 1, 1)
    energy = lambda x: fmm.jax.evaluate("laplace", x, q).sum()  # noqa: E731
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: jax.grad(energy)(x).sum())(x)


def test_refusals(rng):
    x, q, _ = arrays(rng, 5, 1, 1)
    with pytest.raises(NotImplementedError, match="complex"):
        fmm.jax.evaluate("helmholtz", x, q)
    with pytest.raises(TypeError, match="outputs"):
        fmm.jax.evaluate("laplace", x, q, outputs="gradient")
    with pytest.raises(ValueError, match="potential alone"):
        fmm.jax.apply(fmm.Plan("laplace", np.asarray(x), outputs="gradient"), q)
    with pytest.raises(TypeError, match="progress"):
        fmm.jax.evaluate("laplace", x, q, progress=True)
    with pytest.raises(TypeError, match="tolerence"):
        fmm.jax.evaluate("laplace", x, q, tolerence=1e-3)
    with pytest.raises(ValueError, match="expected"):
        fmm.jax.evaluate("laplace", x.T, q)
    with pytest.raises(ValueError, match="strengths has shape"):
        jax.jit(lambda q: fmm.jax.evaluate("laplace", x, q))(q[:4])
    with pytest.raises(TypeError, match="complex"):
        fmm.jax.evaluate("laplace", x, q * 1j)
