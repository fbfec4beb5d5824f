"""The functions that compiled JAX functions call, without JAX: calls as XLA makes them (xla/ffi/api/c_api.h), with
arrays of the host, and with arrays of the emulated GPU (``FMM_EMULATED_GPU=1``)."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np
import pytest
from conftest import relative

import fmm
from fmm import _core, _plan

EMULATED = os.environ.get("FMM_EMULATED_GPU") == "1"
F32, F64, I64 = 11, 12, 5
CODES = {"INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "UNIMPLEMENTED": 12}


def struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("size", c_size_t), ("extension", c_void_p), *fields]})


Version = struct("Version", ("major", c_int), ("minor", c_int))
ErrorCreate = struct("ErrorCreate", ("message", c_char_p), ("code", c_int))
GetStream = struct("GetStream", ("context", c_void_p), ("stream", c_void_p))
GetDevice = struct("GetDevice", ("context", c_void_p), ("device", c_int32))
Ask = ctypes.CFUNCTYPE(c_void_p, c_void_p)
Api = struct(
    "Api", ("version", Version), ("internal", c_void_p), ("error_create", Ask), ("unused", c_void_p * 3),
    ("stream", Ask), ("others", c_void_p * 12), ("device", Ask), ("a_later_one", c_void_p),
)  # fmt: skip
Buffer = struct("Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p))
Several = struct("Several", ("len", c_int64), ("types", c_void_p), ("all", c_void_p))
Attributes = struct("Attributes", ("len", c_int64), ("types", c_void_p), ("names", c_void_p), ("all", c_void_p))
Frame = struct(
    "Frame", ("api", POINTER(Api)), ("context", c_void_p), ("stage", c_int), ("arguments", Several),
    ("results", Several), ("attributes", Attributes), ("future", c_void_p),
)  # fmt: skip


class Name(ctypes.Structure):
    _fields_ = [("start", c_char_p), ("len", c_size_t)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", c_int), ("value", c_void_p)]


def filled(kind, *values):
    return kind(ctypes.sizeof(kind), None, *values)


class Runtime:
    """What XLA is to a handler. `place` gives the address of an array where the handler looks for it."""

    def __init__(self, platform, minor=3):
        capsule, pointer = _core.xla_handler(platform), ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
        self.handler = Ask(pointer(capsule, None))
        self.said = None

        @Ask
        def error(asked):
            asked = ctypes.cast(asked, POINTER(ErrorCreate)).contents
            self.said = asked.code, asked.message.decode()
            return 1

        @Ask
        def stream(asked):
            ctypes.cast(asked, POINTER(GetStream)).contents.stream = None
            return None

        @Ask
        def device(asked):
            ctypes.cast(asked, POINTER(GetDevice)).contents.device = 0
            return None

        none, version = (c_void_p * 3)(), filled(Version, 0, minor)
        self.api = filled(Api, version, None, error, none, stream, (c_void_p * 12)(), device, None)

    def call(self, arguments, results, stage=3, **attributes):
        """Calls with arrays of :class:`Host` or :class:`Device`; the error as (code, text), or None."""
        held = []

        def pointers(things, types):
            several = (c_void_p * len(things))(*(ctypes.addressof(x) for x in things))
            types = (c_int * len(things))(*types)
            held.extend((things, several, types))
            return types, several

        def several(arrays):
            buffers = []
            for address, shape, dtype in (array.described for array in arrays):
                dims = (c_int64 * len(shape))(*shape)
                held.append(dims)
                buffers.append(filled(Buffer, dtype, address, len(shape), ctypes.addressof(dims)))
            types, all = pointers(buffers, [1] * len(buffers))
            return filled(Several, len(buffers), ctypes.addressof(types), ctypes.addressof(all))

        names = [Name(name.encode(), len(name)) for name in sorted(attributes)]
        values = [c_int64(attributes[name]) for name in sorted(attributes)]
        scalars = [Scalar(I64, ctypes.addressof(value)) for value in values]
        types, all = pointers(scalars, [3] * len(scalars))
        _, named = pointers(names, [0] * len(names))
        of = (ctypes.addressof(x) for x in (types, named, all))
        frame = filled(
            Frame, ctypes.pointer(self.api), None, stage, several(arguments), several(results),
            filled(Attributes, len(names), *of), None,
        )  # fmt: skip
        self.said = None
        failed = self.handler(ctypes.addressof(frame))
        assert bool(failed) == (self.said is not None)
        return self.said


class Host:
    platform = "cpu"

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)
        dtype = F32 if self.array.dtype == np.float32 else F64
        self.described = self.array.ctypes.data, self.array.shape, dtype

    def here(self):
        return self.array

    @staticmethod
    def plan(*arrays, **options):
        return fmm.Plan("laplace", *(a.array for a in arrays), **options)


class Device:
    platform = "CUDA"

    def __init__(self, array):
        array = np.ascontiguousarray(array)
        self.memory = _core.DeviceArray.zeros(list(array.shape), array.dtype == np.float32, 0)
        address = self.memory.__cuda_array_interface__["data"][0]
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        self.described = address, array.shape, F32 if array.dtype == np.float32 else F64

    def here(self):
        return self.memory.host().reshape(self.memory.shape)

    @staticmethod
    def plan(*arrays, **options):
        return fmm.Plan("laplace", *(a.memory for a in arrays), backend="cuda", **options)


@pytest.fixture(params=[Host, Device])
def there(request):
    if request.param is Device and not EMULATED:
        pytest.skip("needs the emulated GPU")
    return request.param


def request(kernel="laplace", **options):
    return _core.Registered.request(_plan._kernel(kernel)._core(()), _plan._options(("potential",), **options))


@pytest.mark.parametrize("kernel, s, c", [("laplace", 1, 1), ("laplace_dipole", 3, 1)])
@pytest.mark.parametrize("own", [True, False])
def test_sums_over_points_of_the_call(there, kernel, s, c, own, rng):
    sums, runtime = request(kernel, method="direct"), Runtime(there.platform)
    for shift in (0.0, 0.0, 1.0):  # Anew, the same points again, and points that moved.
        x, y = rng.random((70, 3)) + shift, rng.random((40, 3))
        q = rng.standard_normal((70, s))
        points, at = [there(x)] + ([] if own else [there(y)]), x if own else y
        u, slope = there(np.zeros(len(at))), there(np.zeros((len(at), 3)))
        for _ in range(2):
            assert runtime.call([there(q), *points], [u, slope], number=sums.number, transposed=0) is None
        exact = fmm.direct(kernel, x, q, None if own else y, outputs=("potential", "gradient"))
        assert relative(u.here(), exact.potential) < 1e-13 and relative(slope.here(), exact.gradient) < 1e-13
        # From targets to sources, in f32, the potential alone.
        v, back = rng.standard_normal(len(at)).astype(np.float32), there(np.zeros((70, s), np.float32))
        assert runtime.call([there(v), *points[::-1]], [back], number=sums.number, transposed=1) is None
        w = fmm.Plan(kernel, x, None if own else y, method="direct").apply_transpose(v)
        assert relative(back.here().reshape(w.shape), w) < 1e-6
    _core.forget_kept_plans()


def test_sums_of_a_plan(there, rng):
    x, y, q = rng.random((90, 3)), rng.random((50, 3)), rng.standard_normal((3, 90))
    plan = there.plan(there(x), there(y), method="direct")
    sums, runtime = _core.Registered.plan(plan._plan), Runtime(there.platform)
    u, w = there(np.zeros((3, 50))), there(np.zeros(90))
    # Three sets at once.
    assert runtime.call([there(q)], [u], number=sums.number, transposed=0) is None
    exact = np.stack([fmm.direct("laplace", x, each, y).potential for each in q])
    assert relative(u.here(), exact) < 1e-13
    v = rng.standard_normal(50)
    assert runtime.call([there(v)], [w], number=sums.number, transposed=1) is None
    assert relative(w.here(), fmm.direct("laplace", y, v, x).potential) < 1e-13


def test_errors_say_what_is_wrong(there, rng):
    runtime, sums = Runtime(there.platform), request(tolerance=1e-3)
    x, u, few = (there(a) for a in (rng.random((20, 3)), np.zeros(20), np.zeros(7)))

    def said(code, text, arguments, results, **attributes):
        found = runtime.call(arguments, results, **attributes)
        assert found is not None and found[0] == CODES[code] and text in found[1], found

    number = {"number": sums.number, "transposed": 0}
    said("INVALID_ARGUMENT", "no whole number number", [u, x], [u])
    said("INVALID_ARGUMENT", "without points", [u], [u], **number)
    said("INVALID_ARGUMENT", "extents [7]", [few, x], [u], **number)
    said("INVALID_ARGUMENT", "extents [7]", [there(np.ones(20)), x], [few], **number)
    nan = there(np.full((20, 3), np.nan))
    said("INVALID_ARGUMENT", "NaN", [u, nan], [u], **number)
    said("INVALID_ARGUMENT", "5 arrays", [u, x, x, x, x], [u], **number)
    plane = request("laplace2d_dipole")
    flat = there(rng.random((20, 2)))
    said("UNIMPLEMENTED", "laplace2d_dipole", [u, flat], [flat], number=plane.number, transposed=1)
    del sums
    said("NOT_FOUND", "gone", [u, x], [u], **number)
    # Arrays of another place than the points of a plan.
    if there is Device:
        plan = fmm.Plan("laplace", rng.random((20, 3)))
        of_host = _core.Registered.plan(plan._plan)
        said("UNIMPLEMENTED", "on the host", [u], [u], number=of_host.number, transposed=0)


def test_the_version_is_asked_for(rng):
    """A call with the extension of metadata, and calls of stages before the one that sums."""
    Metadata = type("Metadata", (ctypes.Structure,), {"_fields_": [
        ("size", c_size_t), ("version", Version), ("traits", c_uint32), ("state", c_int64)]})  # fmt: skip
    Extended = type("Extended", (ctypes.Structure,), {"_fields_": [
        ("size", c_size_t), ("kind", c_int), ("next", c_void_p), ("metadata", POINTER(Metadata))]})  # fmt: skip
    for minor, answer in ((1, 1), (3, 3), (4, 4), (9, 4)):
        runtime, metadata = Runtime("cpu", minor), Metadata(traits=99)
        extended = Extended(ctypes.sizeof(Extended), 1, None, ctypes.pointer(metadata))
        frame = filled(Frame, ctypes.pointer(runtime.api), None, 0)
        frame.extension = ctypes.addressof(extended)
        assert not runtime.handler(ctypes.addressof(frame))
        assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, answer, 0)
    assert Runtime("cpu").call([], [], stage=1) is None
    with pytest.raises(ValueError, match="TPU"):
        _core.xla_handler("TPU")
