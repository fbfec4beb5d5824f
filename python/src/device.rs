//! Arrays in the memory of a GPU.

use crate::dlpack;
use crate::errors::raised;
use fmm::{Cuda, DeviceStream, Error, Precision, RawArray};
use numpy::PyArray1;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

/// The memory of an array as Python describes it: address, shape, strides in numbers (None for rows without gaps), and
/// whether numbers are f32.
#[derive(FromPyObject)]
pub struct Described(u64, Vec<usize>, Option<Vec<isize>>, bool);

impl Described {
    /// The array of the library for this memory.
    pub fn borrow(&self, cuda: Cuda) -> Result<fmm::DeviceArray, Error> {
        let Described(address, shape, strides, single) = self;
        let precision = if *single { Precision::F32 } else { Precision::F64 };
        let raw = RawArray { address: *address, shape, strides: strides.as_deref(), precision };
        // SAFETY: the object that described itself has as many numbers, by the protocol it spoke. The Python layer
        // holds it during the call. Work that the call enqueues is over before any later work in the stream of the
        // caller, in which the owner of the memory frees or reuses it; owners with other streams are waited for
        // (`_device.py`). Only outputs are written, which the Python layer made for this call or the caller named.
        unsafe { cuda.borrow(raw) }
    }
}

/// The stream with this handle; 0 is the default stream. (Handle 1 of `__cuda_array_interface__` is the legacy default
/// stream. Handle 2, the default stream of a thread, is refused by `_device.py`: a plan works on threads of its own.)
pub fn stream_of(handle: usize) -> DeviceStream {
    match handle {
        0 | 1 => DeviceStream::Null,
        // SAFETY: the Python layer asks the owner of the current stream for the handle during each call, and the stream
        // is used within the call.
        _ => unsafe { DeviceStream::raw(handle as *mut std::ffi::c_void) },
    }
}

/// An array of f32 or f64 numbers in the memory of a GPU, C-contiguous. It has `__cuda_array_interface__` and
/// `__dlpack__`, so that CuPy, PyTorch, JAX and Numba take it without a copy: `cupy.asarray(a)`, `torch.from_dlpack(a)`,
/// `jax.dlpack.from_dlpack(a)`. `numpy()` is a copy on the host.
#[pyclass(frozen, module = "fmm")]
pub struct DeviceArray {
    array: fmm::DeviceArray,
    #[pyo3(get)]
    device: usize,
    shape: Vec<usize>,
}

#[pymethods]
impl DeviceArray {
    /// Zeros.
    #[staticmethod]
    fn zeros(py: Python<'_>, shape: Vec<usize>, single: bool, device: usize) -> PyResult<Self> {
        let (n, cuda) = (shape.iter().product(), Cuda { device, ..Default::default() });
        let made = py.detach(|| if single { cuda.zeros::<f32>(n) } else { cuda.zeros::<f64>(n) });
        Ok(DeviceArray { array: made.map_err(raised)?, device, shape })
    }

    /// Extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Type of the numbers: float32 or float64.
    #[getter]
    fn dtype(&self) -> &'static str {
        if self.single() { "float32" } else { "float64" }
    }

    /// The description that CuPy and Numba read.
    #[getter(__cuda_array_interface__)]
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        all.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        all.set_item("typestr", if self.single() { "<f4" } else { "<f8" })?;
        all.set_item("data", (if self.array.is_empty() { 0 } else { self.array.address() }, false))?;
        all.set_item("strides", py.None())?;
        all.set_item("version", 3)?;
        Ok(all)
    }

    /// Device type (2: CUDA) and number.
    fn __dlpack_device__(&self) -> (i32, usize) {
        (dlpack::CUDA, self.device)
    }

    /// A capsule that PyTorch and JAX take, without a copy. `stream` is not needed: the work of this library on the array
    /// is done when a call that was asked for the array returns.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = stream;
        let this = slf.get();
        let elsewhere = match &dl_device {
            Some(there) => there.extract::<(i32, usize)>()? != this.__dlpack_device__(),
            None => false,
        };
        if copy == Some(true) || elsewhere {
            return Err(PyBufferError::new_err("the array is given where it is, without a copy"));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let (address, device) = (this.array.address(), this.device as i32);
        dlpack::capsule(
            slf.py(),
            address,
            &this.shape,
            this.single(),
            device,
            versioned,
            slf.clone().into_any().unbind(),
        )
    }

    /// A copy on the host, of shape (n,).
    fn host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.single() {
            let numbers = py.detach(|| self.array.download::<f32>()).map_err(raised)?;
            return Ok(PyArray1::from_vec(py, numbers).into_any());
        }
        let numbers = py.detach(|| self.array.download::<f64>()).map_err(raised)?;
        Ok(PyArray1::from_vec(py, numbers).into_any())
    }
}

impl DeviceArray {
    fn single(&self) -> bool {
        self.array.precision() == Precision::F32
    }
}
