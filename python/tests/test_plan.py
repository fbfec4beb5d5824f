"""Plans: batches, reused results, transposes, moved points, reports, operators, errors."""

import pickle
import threading

import numpy as np
import pytest
from conftest import differences, relative

import fmm

N = 2500


@pytest.fixture
def plan(rng):
    return fmm.Plan("laplace", rng.random((N, 3)), tolerance=1e-5, outputs=("potential", "gradient"), threads=1)


def test_sets_have_the_bits_of_one_call_each(rng, plan):
    q = rng.standard_normal((3, N))
    together = plan.apply(q)
    assert together.potential.shape == (3, N) and together.gradient.shape == (3, N, 3)
    for k in range(3):
        assert np.array_equal(together.potential[k], plan.apply(q[k]).potential)
        assert np.array_equal(together.gradient[k], plan(q[k]).gradient)
    assert plan.apply(q[:1]).potential.shape == (1, N)
    assert plan.apply(np.empty((0, N))).potential.shape == (0, N)
    assert plan.apply(q.astype(np.float32)).gradient.dtype == np.float32


def test_one_source_with_several_sets():
    plan = fmm.Plan("laplace", [[0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]])
    several = plan.apply([[1.0], [2.0]])
    assert np.allclose(several.potential * 4 * np.pi, [[1.0], [2.0]])
    assert plan.apply([3.0]).potential.shape == (1,)
    forces = fmm.Plan(fmm.Stokes(), [[0.0, 0, 0]], [[1.0, 0, 0]])
    assert forces.apply(np.ones((2, 1, 3))).potential.shape == (2, 1, 3)
    square = fmm.Plan("laplace", np.eye(3), threads=1)
    assert square.apply(np.ones((3, 3))).potential.shape == (3, 3)


def test_results_are_reused(rng, plan):
    q = rng.standard_normal((2, N))
    out = plan.apply(q[0])
    held, expected = out.potential, plan.apply(q[1]).potential
    assert plan.apply(q[1], out) is out and out.potential is held and np.array_equal(held, expected)
    with pytest.raises(ValueError, match="out.potential"):
        plan.apply(q, out)


def test_arrays_of_any_layout(rng):
    x, q = rng.random((N, 3)), rng.standard_normal(N)
    expected = fmm.evaluate("laplace", x, q, threads=1).potential
    aside = np.zeros((N, 5))
    aside[:, 1:4] = x
    unaligned = np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(np.float64).reshape(N, 3)
    for points in (np.asfortranarray(x), aside[:, 1:4], x.astype(">f8"), x.tolist(), unaligned):
        assert np.array_equal(fmm.evaluate("laplace", points, q[::1], threads=1).potential, expected)
    assert np.array_equal(fmm.evaluate("laplace", x, np.repeat(q, 2)[::2], threads=1).potential, expected)


def test_transpose(rng):
    x, y, q = rng.random((N, 3)), rng.random((600, 3)), rng.standard_normal((N, 3))
    plan, v = fmm.Plan(fmm.Stokes(), x, y, tolerance=1e-8), rng.standard_normal((600, 3))
    back = plan.apply_transpose(v)
    assert back.shape == (N, 3)
    assert np.isclose(np.vdot(v, plan.apply(q).potential), np.vdot(back, q), rtol=1e-6)


def test_moved_points(rng, plan):
    x, q = rng.random((N, 3)), rng.random(N)
    plan.move(x)
    _, r = differences(x, x)
    assert relative(plan.apply(q).potential, (q / r).sum(axis=1) / (4 * np.pi)) < 1e-5
    y = rng.random((10, 3))
    plan.move(x, y)
    assert plan.apply(q).gradient.shape == (10, 3) and plan.n_targets == 10
    with pytest.raises(ValueError):
        plan.move(np.full((4, 3), np.nan))
    assert plan.apply(q).gradient.shape == (10, 3)


def test_a_process_opens_for_a_plan_beside_other_work(rng):
    points = rng.random((N, 3))
    opening = threading.Thread(target=fmm.open_for, args=("laplace", N, N), kwargs={"tolerance": 1e-5})
    opening.start()
    opening.join()
    q = np.ones(N)
    report = fmm.Plan("laplace", points, tolerance=1e-5).verify(q, 300)
    assert report["potential"].rel_l2 < 1e-5


def test_reports(rng, plan):
    q = rng.standard_normal(N)
    errors = plan.verify(q, 400)
    assert set(errors) == {"potential", "gradient"} and all(0 < e.rel_l2 < 1e-5 for e in errors.values())
    d = plan.describe()
    assert d["n_sources"] == N and d["tolerance"] == 1e-5 and d["probe"] is None or d["probe"]["seconds"] >= 0
    assert plan.memory > 0 and fmm.memory("laplace", 10**6, 10**6) > 10**7
    assert "laplace" in repr(plan) and "<table>" in plan._repr_html_() and "<table>" in plan.apply(q)._repr_html_()
    shown = plan.verify(q)._repr_html_()
    assert "rel_l2" in shown and "gradient" in shown and "digits" in shown and shown.count("<div") == 2
    pairs = sum(len(t) * len(s) for t, s in plan.near_blocks())
    assert pairs == d["near_pairs"]
    low, high = np.moveaxis(plan.boxes(), 1, 0)
    assert (low <= high).all() and len(low) > 1


def test_linear_operator(rng):
    sparse = pytest.importorskip("scipy.sparse.linalg")
    x = rng.random((N, 3))
    a = fmm.Plan(fmm.Matern32(l=0.05).compiled(), x, tolerance=1e-9).as_linear_operator()
    _, r = differences(x, x)
    r[np.isinf(r)] = 0
    s = 3**0.5 * r / 0.05
    dense, b = (1 + s) * np.exp(-s), rng.standard_normal(N)
    assert relative(a @ b, dense @ b) < 1e-8
    columns = rng.standard_normal((N, 4))
    assert relative(a @ columns, dense @ columns) < 1e-8 and relative(a.rmatvec(b), dense.T @ b) < 1e-8
    shifted = a + sparse.aslinearoperator(0.1 * np.eye(N))
    solution, info = sparse.cg(shifted, b, rtol=1e-8)
    assert info == 0 and relative((dense + 0.1 * np.eye(N)) @ solution, b) < 1e-6


def test_complex_operator_and_its_adjoint(rng):
    pytest.importorskip("scipy")
    x, y = rng.random((300, 3)), 2 + rng.random((200, 3))
    plan = fmm.Plan(fmm.Helmholtz(k=1.0), x, y, tolerance=1e-6)
    u, v = (rng.standard_normal(n) + 1j * rng.standard_normal(n) for n in (300, 200))
    a = plan.as_linear_operator()
    try:
        back = a.rmatvec(v)
    except NotImplementedError:
        return  # The kernel has no transpose; saying so is enough.
    assert np.isclose(np.vdot(v, a @ u), np.vdot(back, u), rtol=1e-5)


def test_kernels_are_values():
    kernel = fmm.Matern32(l=0.3).with_self(False)
    again = pickle.loads(pickle.dumps(kernel))
    assert again == kernel and hash(again) == hash(kernel) and again != fmm.Matern32(l=0.3)
    assert again.parameters == {"l": 0.3} and "matern32" in repr(again)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: fmm.Plan("laplace", x.T), ValueError, r"sources has shape \(3, 50\).*sources.T"),
        (lambda x: fmm.Plan("laplace", x, x.T), ValueError, "targets.T"),
        (lambda x: fmm.Plan("laplace", x[:, :2]), ValueError, r"expected \(N, 3\)"),
        (lambda x: fmm.Plan("nothing", x), ValueError, "no kernel nothing"),
        (lambda x: fmm.Plan("laplace", x, tolerance=1e-6, order=5), ValueError, "both a tolerance"),
        (lambda x: fmm.Plan("laplace", x, tolerance=-1), ValueError, "tolerance -1"),
        (lambda x: fmm.Plan("laplace", x, method="magic"), ValueError, "known are auto"),
        (lambda x: fmm.Plan("laplace", x, outputs="force"), ValueError, "no output 'force'"),
        (lambda x: fmm.Plan("laplace", x, outputs="pressure"), NotImplementedError, "pressure"),
        (lambda x: fmm.Plan("laplace", x, toleranc=1), TypeError, "toleranc"),
        (lambda x: fmm.Plan("laplace", x + 1j), TypeError, "complex"),
        (lambda x: fmm.Plan("laplace", x, subset=[50]), ValueError, "subset has the index 50"),
        (lambda x: fmm.Plan("laplace", np.ma.masked_less(x, 0.5)), ValueError, "sources has masked values"),
        (lambda x: fmm.Plan("laplace", x, subset=np.ma.masked_less([1, 2], 2)), ValueError, "subset has masked values"),
        (
            lambda x: fmm.Plan("harmonic2d", x[:, :2]).apply(np.ma.masked_less(x[:, 2], 0.5)),
            ValueError,
            "strengths has masked values",
        ),
        (lambda x: fmm.Plan("laplace", x, order=4.0), TypeError, "order is float"),
        (lambda x: fmm.Plan("laplace", x, threads=-1), ValueError, "threads = -1"),
        (lambda x: fmm.Plan("laplace", x, order=-3), ValueError, "order = -3"),
        (lambda x: fmm.Plan("laplace", x, progress=3), TypeError, "progress is int"),
        (lambda x: fmm.Plan("laplace", x).verify(np.ones(50), -1), ValueError, "samples = -1"),
        (lambda x: fmm.memory("laplace", -1, 5), ValueError, "n_sources = -1"),
        (lambda x: fmm.open_for("laplace", 5, -1), ValueError, "n_targets = -1"),
        (lambda x: fmm.open_for("laplace", 5, 5, tolerance=0.0), ValueError, "tolerance"),
        (lambda x: fmm.Plan("laplace", x).apply(np.ones(50), out=3), TypeError, "out is int"),
        (lambda x: pickle.dumps(fmm.Plan("laplace", x)), TypeError, "cannot be copied or pickled"),
        (lambda x: fmm.Plan("laplace", x).apply(np.ones(49)), ValueError, r"strengths has shape \(49,\)"),
        (lambda x: fmm.Plan("laplace", x).apply(np.ones((50, 2))), ValueError, "strengths has shape"),
        (lambda x: fmm.Plan(fmm.Stokes(), x).apply(np.ones(150)), ValueError, r"expected \(50, 3\)"),
        (lambda x: fmm.Yukawa(kappa=-1), ValueError, "kappa"),
        (lambda x: fmm.Kernel("yukawa", speed=1), ValueError, "no parameter speed"),
        (lambda x: fmm.Expression("1/r +"), ValueError, "column"),
        (lambda x: fmm.Plan("laplace", x, order=99), ValueError, "order 99"),
    ],
)
def test_wrong_arguments(rng, call, error, words):
    with pytest.raises(error, match=words):
        call(rng.random((50, 3)))


def test_a_forecast_takes_the_options_of_a_plan():
    plain = fmm.memory("laplace", 1000, 1000, order=4)
    assert plain == fmm.memory("laplace", 1000, 1000, order=4, progress=True)


def test_errors_have_numbers(rng):
    x, q = rng.random((50, 3)), np.ones(50)
    x[7, 2], q[9] = np.nan, np.inf
    with pytest.raises(ValueError) as e:
        fmm.Plan("laplace", x)
    assert (e.value.array, e.value.row, e.value.column) == ("sources", 7, 2) and np.isnan(e.value.value)
    with pytest.raises(ValueError) as e:
        fmm.Plan("laplace", rng.random((50, 3))).apply(q)
    assert (e.value.array, e.value.row) == ("strengths", 9)
    with pytest.raises(ValueError) as e:
        fmm.Plan("laplace", rng.random((20000, 3)), tolerance=1e-15, method="equivalent")
    assert e.value.floor > 1e-15


def test_costs_of_this_machine(rng, tmp_path):
    file = tmp_path / "costs.json"
    fmm.calibrate(file, threads=1)
    plan = fmm.Plan("laplace", rng.random((N, 3)), cost_model=file)
    assert plan.describe()["cost_model"] != fmm.Plan("laplace", rng.random((N, 3))).describe()["cost_model"]
    assert plan.verify(np.ones(N))["potential"].rel_l2 < 1e-6
    file.write_text("{}")
    with pytest.raises(ValueError, match="cost_model"):
        fmm.Plan("laplace", rng.random((N, 3)), cost_model=file)


def test_nothing_to_sum():
    none = np.empty((0, 3))
    assert fmm.evaluate("laplace", none, []).potential.shape == (0,)
    assert np.array_equal(fmm.evaluate("laplace", none, [], np.ones((2, 3))).potential, [0, 0])
