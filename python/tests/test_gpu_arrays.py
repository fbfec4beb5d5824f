"""Arrays in the memory of a GPU. With a GPU: PyTorch, CuPy and JAX, as far as they are installed. On the emulated GPU
(``LD_LIBRARY_PATH=$(scripts/emulator.sh) FMM_EMULATED_GPU=1``), where addresses are those of the host: arrays of a
library that is known by its protocols alone."""

import ctypes
import os
import time

import numpy as np
import pytest

import fmm
from fmm import _core

EMULATED = os.environ.get("FMM_EMULATED_GPU") == "1"


def device():
    try:
        return _core.device(0)
    except RuntimeError:
        return None


pytestmark = pytest.mark.skipif(device() is None, reason="needs a GPU, or the emulated one")


class Foreign:
    """An array of an unknown library, with one of the protocols. (On the emulated GPU only.)"""

    def __init__(self, numbers, protocol, strides=None):
        numbers = np.ascontiguousarray(numbers)
        self.memory = _core.DeviceArray.zeros(list(numbers.shape), numbers.dtype == np.float32, 0)
        address = self.memory.__cuda_array_interface__["data"][0]
        if numbers.size:
            ctypes.memmove(address, numbers.ctypes.data, numbers.nbytes)
        self.protocol, self.strides, self.asked = protocol, strides, []
        if protocol == "interface":
            self.__dict__["__cuda_array_interface__"] = {
                **self.memory.__cuda_array_interface__, "strides": strides, "stream": 1,
            }
        else:
            self.__dict__["__dlpack_device__"] = self.memory.__dlpack_device__
            self.__dict__["__dlpack__"] = self.dlpack

    def dlpack(self, **options):
        self.asked.append(options)
        if self.protocol == "dlpack":
            if "max_version" in options:
                raise TypeError("an old library")
            return self.memory.__dlpack__(stream=options["stream"])
        return self.memory.__dlpack__(**options)


def foreign(protocol):
    if not EMULATED:
        pytest.skip("needs the emulated GPU")
    return lambda numbers: Foreign(numbers, protocol), lambda array: array.host().reshape(array.shape), fmm.DeviceArray


def of_torch():
    torch = pytest.importorskip("torch")
    if EMULATED or not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    return lambda x: torch.asarray(np.ascontiguousarray(x), device="cuda"), lambda x: x.cpu().numpy(), torch.Tensor


def of_cupy():
    cupy = pytest.importorskip("cupy")
    if EMULATED:
        pytest.skip("CuPy needs a real GPU")
    return cupy.asarray, cupy.asnumpy, cupy.ndarray


def of_jax():
    jax = pytest.importorskip("jax")
    if EMULATED or all(d.platform == "cpu" for d in jax.devices()):
        pytest.skip("this JAX has no GPU")
    jax.config.update("jax_enable_x64", True)
    return lambda x: jax.device_put(np.asarray(x)), np.asarray, jax.Array


LIBRARIES = {
    "interface": lambda: foreign("interface"),
    "dlpack": lambda: foreign("dlpack"),
    "dlpack_versioned": lambda: foreign("dlpack_versioned"),
    "torch": of_torch,
    "cupy": of_cupy,
    "jax": of_jax,
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]()


def relative(a, b):
    return np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b)


def test_the_same_kind_comes_back(library, rng):
    there, here, kind = library
    x, y, q = rng.random((400, 3)), rng.random((300, 3)), rng.standard_normal(400)
    outputs = ("potential", "gradient")
    exact = fmm.direct("laplace", x, q, y, outputs=outputs)
    plan = fmm.Plan("laplace", there(x), there(y), backend="cuda", outputs=outputs, method="direct")
    result = plan.apply(there(q))
    for name, array in result.items():
        assert isinstance(array, kind) and tuple(array.shape) == getattr(exact, name).shape
        assert str(array.dtype).endswith("float64") and relative(here(array), getattr(exact, name)) < 1e-13
    single = plan.apply(there(q.astype(np.float32)))
    assert str(single.gradient.dtype).endswith("float32") and relative(here(single.gradient), exact.gradient) < 1e-6
    # Several sets, and into the arrays of a result.
    sets = plan.apply(there(np.stack([q, 2 * q, -q])))
    assert tuple(sets.gradient.shape) == (3, 300, 3) and relative(here(sets.gradient)[1], 2 * exact.gradient) < 1e-13
    if kind is not getattr(__import__("sys").modules.get("jax"), "Array", None):
        again = plan.apply(there(3 * q), out=result)
        plan.synchronize()
        assert again is result and relative(here(result.potential), 3 * exact.potential) < 1e-13
    # Transposed sums.
    v = rng.standard_normal(300)
    back = plan.transposed(outputs).apply(there(v))
    expected = fmm.direct("laplace", y, v, x, outputs=outputs)
    assert isinstance(back.gradient, kind) and relative(here(back.gradient), expected.gradient) < 1e-13
    assert relative(here(plan.apply_transpose(there(v))), expected.potential) < 1e-13
    # Errors against direct sums; the points move.
    assert plan.verify(q, 100)["gradient"].rel_l2 < 1e-13
    plan.move(there(0.5 * x), there(y))
    moved = fmm.direct("laplace", 0.5 * x, q, y).potential
    assert relative(here(plan.apply(there(q)).potential), moved) < 1e-13


def test_linear_operators_stay_on_the_gpu(library, rng):
    there, here, kind = library
    x, b = rng.random((300, 3)), rng.standard_normal(300)
    plan = fmm.Plan(fmm.Matern32(l=0.1), there(x), backend="cuda", method="direct")
    if kind.__module__.partition(".")[0] != "cupy":
        with pytest.raises(TypeError, match="SciPy and CuPy"):
            plan.as_linear_operator()
        return
    from cupyx.scipy.sparse.linalg import LinearOperator, cg

    a = plan.as_linear_operator()
    host = fmm.Plan(fmm.Matern32(l=0.1), x, method="direct").as_linear_operator()
    columns = np.stack([b, 2 * b], axis=1)
    assert isinstance(a @ there(b), kind) and relative(here(a @ there(b)), host @ b) < 1e-12
    assert relative(here(a @ there(columns)), host @ columns) < 1e-12
    assert relative(here(a.rmatvec(there(b))), host.rmatvec(b)) < 1e-12
    noisy = LinearOperator(a.shape, matvec=lambda w: a @ w + 0.1 * w, dtype=a.dtype)
    weights, failed = cg(noisy, there(b))
    assert failed == 0 and relative(here(noisy @ weights), b) < 1e-4


def test_a_mix_is_a_type_error(library, rng):
    there, _, _ = library
    x, q = rng.random((50, 3)), np.ones(50)
    with pytest.raises(TypeError, match="backend='cuda'"):
        fmm.Plan("laplace", there(x))
    with pytest.raises(TypeError, match="targets is on the host"):
        fmm.Plan("laplace", there(x), x, backend="cuda")
    on_gpu = fmm.Plan("laplace", there(x), backend="cuda", method="direct")
    with pytest.raises(TypeError, match="strengths is on the host"):
        on_gpu.apply(q)
    with pytest.raises(TypeError, match="sources is on the host"):
        on_gpu.move(x)
    for plan in (fmm.Plan("laplace", x), fmm.Plan("laplace", x, backend="cuda", method="direct")):
        with pytest.raises(TypeError, match="memory of a GPU"):
            plan.apply(there(q))
        with pytest.raises(TypeError, match="memory of a GPU"):
            plan.move(there(x))
    with pytest.raises(NotImplementedError, match="subset"):
        fmm.Plan("laplace", there(x), subset=[1, 2], backend="cuda")
    with pytest.raises(NotImplementedError, match="complex"):
        fmm.Plan("helmholtz", there(x), backend="cuda")


def test_wrong_arrays_are_named(library, rng):
    there, _, _ = library
    x = rng.random((50, 3))
    with pytest.raises(ValueError, match=r"sources has shape \(3, 50\)"):
        fmm.Plan("laplace", there(np.ascontiguousarray(x.T)), backend="cuda")
    plan = fmm.Plan("laplace", there(x), backend="cuda", method="direct")
    with pytest.raises(ValueError, match="strengths has shape"):
        plan.apply(there(np.ones(49)))
    bad = np.ones(50)
    bad[7] = np.nan
    with pytest.raises(ValueError) as e:
        plan.apply(there(bad))
        plan.synchronize()
    assert e.value.array == "strengths" and e.value.row == 7
    assert np.isfinite(plan.verify(np.ones(50))["potential"].rel_l2)


@pytest.mark.skipif(not EMULATED, reason="addresses of the host")
def test_protocols(rng):
    x = rng.random((50, 3))
    transposed = Foreign(x, "interface", strides=(8, 400))
    with pytest.raises(ValueError, match="rows must follow each other"):
        fmm.Plan("laplace", transposed, backend="cuda", method="direct")
    array = Foreign(x, "dlpack")
    fmm.Plan("laplace", array, backend="cuda", method="direct")
    assert {"stream": 1} in array.asked
    # A capsule is taken once, and what nobody takes is freed.
    memory = _core.DeviceArray.zeros([5, 3], True, 0)
    for options in ({}, {"max_version": (1, 0)}):
        capsule = memory.__dlpack__(**options)
        taken = _core.Taken(capsule)
        assert (taken.device, taken.shape, taken.strides, taken.dtype) == ((2, 0), (5, 3), [3, 1], "f4")
        assert taken.address == memory.__cuda_array_interface__["data"][0]
        with pytest.raises(BufferError):
            _core.Taken(capsule)
        del taken, capsule
        memory.__dlpack__(**options)
    with pytest.raises(BufferError):
        _core.Taken(np.zeros(3).__dlpack_device__)
    numpy = _core.Taken(np.zeros((2, 3)).__dlpack__())
    assert numpy.device == (1, 0) and numpy.dtype == "f8" and numpy.shape == (2, 3)
    with pytest.raises(TypeError, match="expected f4 or f8"):
        odd = Foreign(x, "interface")
        odd.__dict__["__cuda_array_interface__"] = {**odd.__cuda_array_interface__, "typestr": "<i8"}
        fmm.Plan("laplace", odd, backend="cuda")


def test_several_gpus_sum_as_one(rng):
    if len(fmm.devices()) < 2:
        pytest.skip("needs two GPUs, or FMM_EMULATOR_DEVICES=2")
    x, y, q = rng.random((500, 3)), rng.random((300, 3)), rng.standard_normal(500)
    options = {"outputs": ("potential", "gradient"), "backend": "cuda", "order": 4, "method": "equivalent", "ncrit": 20}
    one, two = (fmm.Plan("laplace", x, y, devices=devices, **options) for devices in ([0], [0, 1]))
    for name, sums in two.apply(q).items():
        assert relative(sums, getattr(one.apply(q), name)) < 1e-13
    two.move(0.5 * x, y)
    exact = fmm.direct("laplace", 0.5 * x, q, y).potential
    assert relative(two.apply(q).potential, exact) < 1e-2
    with pytest.raises(ValueError, match="backend='cuda'"):
        fmm.Plan("laplace", x, devices=[0, 1])
    with pytest.raises(ValueError, match="devices"):
        fmm.Plan("laplace", x, backend="cuda", devices=[0, 0])


@pytest.mark.skipif(EMULATED, reason="needs a real GPU")
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_the_current_stream_orders_the_work(name, rng):
    """Strengths that are written in a stream just before, and results that are read in it just after."""
    there, here, _ = LIBRARIES[name]()
    module = pytest.importorskip(name)
    x, q = rng.random((100_000, 3)), rng.standard_normal(100_000)
    plan = fmm.Plan("laplace", there(x), backend="cuda", tolerance=1e-4)
    expected = here(plan.apply(there(q)).potential)
    if name == "torch":
        stream = module.cuda.Stream()
        inside = module.cuda.stream(stream)
    else:
        stream = inside = module.cuda.Stream(non_blocking=True)
    held = there(q)
    module.cuda.synchronize() if name == "torch" else module.cuda.Device().synchronize()
    with inside:
        for k in range(20):
            strengths = held * 0.0
            strengths += (k + 1.0) * held
            doubled = plan.apply(strengths).potential * 2.0
            strengths *= float("inf") if k > 100 else 0.0
    stream.synchronize()
    assert relative(here(doubled), 40.0 * expected) < 1e-4


@pytest.mark.skipif(EMULATED, reason="needs a real GPU")
def test_functions_that_jax_compiles(rng):
    """Sums and derivatives under jit, on arrays of the GPU, in the stream of XLA and without Python."""
    there, here, _ = LIBRARIES["jax"]()
    jax = pytest.importorskip("jax")
    import fmm.jax

    x, y, q, v = rng.random((20_000, 3)), rng.random((15_000, 3)), *rng.standard_normal((2, 20_000))
    v = v[:15_000]
    outputs = ("potential", "gradient")
    exact = fmm.direct("laplace", x, q, y, outputs=outputs)
    back = fmm.direct("laplace", y, v, x, outputs=outputs)
    expected = back.potential, q[:, None] * back.gradient, v[:, None] * exact.gradient

    def energy(q, x, y, v):
        u = fmm.jax.evaluate("laplace", 1.0 * x, q + 0.0, y, tolerance=1e-6)
        return (v * 2.0) @ (u * 0.5), u

    compiled = jax.jit(jax.value_and_grad(energy, argnums=(0, 1, 2), has_aux=True))
    text = compiled.lower(*map(there, (q, x, y, v))).as_text()
    assert "fmm_sums" in text and "callback" not in text
    for _ in range(2):
        (total, u), found = compiled(*map(there, (q, x, y, v)))
        assert abs(float(total) - v @ exact.potential) < 1e-4 * np.linalg.norm(v) * np.linalg.norm(exact.potential)
        assert relative(here(u), exact.potential) < 1e-6
        for a, b in zip(found, expected, strict=True):
            assert relative(here(a), b) < 4e-6
    # Points that move, in f32; and the sources themselves.
    own = jax.jit(lambda q, x: fmm.jax.evaluate("laplace", x, q, tolerance=1e-4, precision="f32"))
    for scale in (1.0, 0.5):
        single = scale * x.astype(np.float32)
        sums = own(there(q.astype(np.float32)), there(single))
        assert relative(here(sums), fmm.direct("laplace", single, q).potential) < 1e-4
    # A plan of the caller: several sets together, and the transposed sums.
    plan = fmm.Plan("laplace", there(x), there(y), backend="cuda")
    sets = np.stack([q, -2 * q, q[::-1]])
    several = jax.jit(jax.vmap(lambda q: fmm.jax.apply(plan, q)))(there(sets))
    assert relative(here(several)[1], -2 * exact.potential) < 1e-6
    by = jax.jit(jax.grad(lambda q: there(v) @ fmm.jax.apply(plan, q)))(there(q))
    assert relative(here(by), back.potential) < 2e-6
    # Each call waits for what is before it in the stream, and is waited for by what follows.
    chain = jax.jit(lambda q: jax.lax.fori_loop(0, 10, lambda k, w: q + 0.0 * fmm.jax.apply(own_plan, w), q))
    own_plan = fmm.Plan("laplace", there(x), backend="cuda", tolerance=1e-3)
    assert relative(here(chain(there(q))), q) < 1e-13
    # A plan with its points on the host, and strengths on the GPU.
    host = fmm.Plan("laplace", x[:50])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError, NotImplementedError), match="on the host"):
        jax.jit(lambda q: fmm.jax.apply(host, q))(there(q[:50])).block_until_ready()
    fmm.jax.forget()


@pytest.mark.skipif(EMULATED, reason="needs a real GPU")
def test_overhead_against_the_command(rng, tmp_path):
    """No more than 5 % or 0.1 ms above `fmm run --arrays device` (FMM_COMMAND names the program)."""
    import json
    import subprocess

    command = os.environ.get("FMM_COMMAND")
    if not command:
        pytest.skip("FMM_COMMAND does not name the command fmm")
    torch = pytest.importorskip("torch")
    n = 1_000_000
    x, q = rng.random((n, 3)), rng.standard_normal(n)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "q.npy", q)
    done = subprocess.run(
        [command, "run", "--kernel", "laplace", "--sources", tmp_path / "x.npy", "--strengths", tmp_path / "q.npy",
         "--backend", "cuda", "--arrays", "device", "--tolerance", "1e-4", "--precision", "f32", "--repeat", "30",
         "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    theirs = json.loads(done.stdout)["seconds"]["apply"]
    plan = fmm.Plan("laplace", torch.asarray(x, device="cuda"), backend="cuda", tolerance=1e-4, precision="f32")
    strengths, seconds = torch.asarray(q, device="cuda"), []
    out = plan.apply(strengths)
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        plan.apply(strengths, out=out)
        plan.synchronize()
        seconds.append(time.perf_counter() - start)
    ours = sorted(seconds)[len(seconds) // 2]
    print(f"Python {ours * 1e3:.4g} ms, command {theirs * 1e3:.4g} ms (medians)")
    assert ours <= max(1.05 * theirs, theirs + 1e-4)
