//! DLPack (dmlc/dlpack, `dlpack.h`, versions 0.x and 1.x): capsules of arrays that libraries pass to each other.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

/// Device type of the memory of an NVIDIA GPU.
pub const CUDA: i32 = 2;
/// Code of floating-point numbers.
const FLOAT: u8 = 2;
/// The version of the format that is written.
const VERSION: [u32; 2] = [1, 0];
const NAMES: [&CStr; 2] = [c"dltensor", c"dltensor_versioned"];
const USED: [&CStr; 2] = [c"used_dltensor", c"used_dltensor_versioned"];

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a capsule of ours keeps alive: the array, its shape and its strides.
struct Context {
    _owner: Py<PyAny>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// A capsule for an array of f32 or f64 numbers in rows without gaps. It keeps `owner` alive.
pub fn capsule<'py>(
    py: Python<'py>,
    address: u64,
    shape: &[usize],
    single: bool,
    device: i32,
    versioned: bool,
    owner: Py<PyAny>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
    let strides = (0..shape.len()).map(|k| shape[k + 1..].iter().product()).collect();
    let mut context = Box::new(Context { _owner: owner, shape, strides });
    let tensor = Tensor {
        data: address as *mut c_void,
        device_type: CUDA,
        device,
        ndim: context.shape.len() as i32,
        code: FLOAT,
        bits: if single { 32 } else { 64 },
        lanes: 1,
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(context).cast();
    let made: *mut c_void = match versioned {
        false => Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete) })).cast(),
        true => {
            let all = Versioned { version: VERSION, context, deleter: Some(delete_versioned), flags: 0, tensor };
            Box::into_raw(Box::new(all)).cast()
        }
    };
    // SAFETY: `made` is not null, the name is static, and the destructor fits both.
    unsafe {
        let capsule = ffi::PyCapsule_New(made, NAMES[usize::from(versioned)].as_ptr(), Some(drop_capsule));
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?.cast_into_unchecked())
    }
}

/// Frees a tensor of ours. A consumer calls it once, from any thread.
unsafe extern "C" fn delete(made: *mut Managed) {
    // SAFETY: made by `capsule` from boxes.
    unsafe { free(Box::from_raw(made).context) }
}

/// As [`delete`].
unsafe extern "C" fn delete_versioned(made: *mut Versioned) {
    // SAFETY: as above.
    unsafe { free(Box::from_raw(made).context) }
}

/// Frees a context, with the lock of the interpreter, unless the interpreter is gone.
///
/// # Safety
/// `context` comes from `capsule`, and is freed once.
unsafe fn free(context: *mut c_void) {
    // SAFETY: as promised. Without an interpreter the owner cannot be dropped; the memory goes with the process.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let mut held = Some(context);
    if Python::try_attach(|_| drop(held.take())).is_none() {
        std::mem::forget(held);
    }
}

/// Frees the tensor of a capsule that nobody took.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with a capsule of `capsule`. A consumer has renamed the ones it took.
    unsafe {
        let valid = |name: *const c_char| ffi::PyCapsule_IsValid(capsule, name) == 1;
        if valid(NAMES[0].as_ptr()) {
            delete(ffi::PyCapsule_GetPointer(capsule, NAMES[0].as_ptr()).cast());
        } else if valid(NAMES[1].as_ptr()) {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAMES[1].as_ptr()).cast());
        }
    }
}

/// The tensor of a capsule.
enum Pointer {
    Plain(NonNull<Managed>),
    Versioned(NonNull<Versioned>),
}

/// An array that was taken from a capsule. Dropping it gives the memory back to its owner.
#[pyclass(frozen, module = "fmm._core")]
pub struct Taken(Pointer);
// SAFETY: the protocol lets any thread read the description and call the deleter.
unsafe impl Send for Taken {}
// SAFETY: as above; nothing is changed before the drop.
unsafe impl Sync for Taken {}

#[pymethods]
impl Taken {
    /// Takes the array of a capsule, which is then used.
    #[new]
    fn new(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: the name of a capsule says which of the two structures its pointer is, by the protocol. The capsule
        // is renamed, so that nobody else takes it.
        unsafe {
            let kind = (0..2).find(|&k| ffi::PyCapsule_IsValid(capsule.as_ptr(), NAMES[k].as_ptr()) == 1);
            let Some(kind) = kind else { return Err(PyBufferError::new_err("this is no unused capsule of DLPack")) };
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAMES[kind].as_ptr());
            let Some(pointer) = NonNull::new(pointer) else { return Err(PyErr::fetch(capsule.py())) };
            let taken = match kind {
                0 => Pointer::Plain(pointer.cast()),
                _ => {
                    let version = pointer.cast::<Versioned>().as_ref().version;
                    if version[0] != VERSION[0] {
                        let text = format!("DLPack of version {}.{}; known is 1.x", version[0], version[1]);
                        return Err(PyBufferError::new_err(text));
                    }
                    Pointer::Versioned(pointer.cast())
                }
            };
            if ffi::PyCapsule_SetName(capsule.as_ptr(), USED[kind].as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            Ok(Taken(taken))
        }
    }

    /// Device type and number.
    #[getter]
    fn device(&self) -> (i32, i32) {
        let tensor = self.tensor();
        (tensor.device_type, tensor.device)
    }

    /// Address of the first number.
    #[getter]
    fn address(&self) -> u64 {
        let tensor = self.tensor();
        tensor.data as u64 + tensor.byte_offset
    }

    /// Extent of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.axes(self.tensor().shape))
    }

    /// Strides in numbers; None for rows without gaps.
    #[getter]
    fn strides(&self) -> Option<Vec<i64>> {
        let strides = self.tensor().strides;
        (!strides.is_null()).then(|| self.axes(strides).to_vec())
    }

    /// Type of the numbers as NumPy writes it, such as f4.
    #[getter]
    fn dtype(&self) -> String {
        let Tensor { code, bits, lanes, .. } = *self.tensor();
        let letter = match code {
            0 => 'i',
            1 => 'u',
            FLOAT => 'f',
            5 => 'c',
            _ => '?',
        };
        if lanes == 1 { format!("{letter}{}", bits / 8) } else { format!("{letter}{}x{lanes}", bits / 8) }
    }
}

impl Taken {
    fn tensor(&self) -> &Tensor {
        // SAFETY: the tensor lives until its deleter is called, in `drop`.
        unsafe {
            match &self.0 {
                Pointer::Plain(all) => &all.as_ref().tensor,
                Pointer::Versioned(all) => &all.as_ref().tensor,
            }
        }
    }

    /// A number of each axis.
    fn axes(&self, at: *mut i64) -> &[i64] {
        match usize::try_from(self.tensor().ndim) {
            // SAFETY: the tensor has so many numbers at its shape, and at its strides if they are not null.
            Ok(n) if n > 0 && !at.is_null() => unsafe { std::slice::from_raw_parts(at, n) },
            _ => &[],
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the deleter is called once, and the tensor is not read after it.
        unsafe {
            match self.0 {
                Pointer::Plain(all) => {
                    if let Some(deleter) = all.as_ref().deleter {
                        deleter(all.as_ptr());
                    }
                }
                Pointer::Versioned(all) => {
                    if let Some(deleter) = all.as_ref().deleter {
                        deleter(all.as_ptr());
                    }
                }
            }
        }
    }
}
