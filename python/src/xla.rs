//! The C interface of XLA's foreign functions (`xla/ffi/api/c_api.h` of jaxlib), as far as sums need it. What is
//! declared here is the same in versions 0.1 to 0.4 of the interface.

use crate::errors::{self, cause};
use fmm::{Error, Number, Precision};
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The newest version of the interface that is known here.
const VERSION: [c_int; 2] = [0, 4];
/// The extension of a call that asks for the version instead of calling.
const METADATA: c_int = 1;
/// The stage in which buffers hold numbers.
const EXECUTE: c_int = 3;
/// Type of an argument or result.
const BUFFER: c_int = 1;
/// Type of an attribute.
const SCALAR: c_int = 3;
/// Types of numbers.
const I64: c_int = 5;
const F32: c_int = 11;
const F64: c_int = 12;

/// Codes of errors.
#[derive(Clone, Copy)]
pub enum Code {
    Cancelled = 1,
    InvalidArgument = 3,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
}

/// An error of the runtime, which owns it.
pub type RuntimeError = *mut c_void;
type Ask<T> = unsafe extern "C" fn(*mut T) -> RuntimeError;

#[repr(C)]
struct Extension {
    size: usize,
    kind: c_int,
    next: *mut Extension,
}

#[repr(C)]
struct Version {
    size: usize,
    extension: *mut Extension,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Metadata {
    size: usize,
    version: Version,
    traits: u32,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct ErrorCreate {
    size: usize,
    extension: *mut Extension,
    message: *const c_char,
    code: c_int,
}

/// What a context is asked for: the stream, or (in the first four bytes) the number of the device.
#[repr(C)]
struct OfContext<T> {
    size: usize,
    extension: *mut Extension,
    context: *mut c_void,
    answer: T,
}

#[repr(C)]
struct Api {
    size: usize,
    extension: *mut Extension,
    version: Version,
    internal: *const c_void,
    error_create: Ask<ErrorCreate>,
    error_message: *const c_void,
    error_destroy: *const c_void,
    handler_register: *const c_void,
    stream: Ask<OfContext<*mut c_void>>,
}

/// The functions of a runtime that is not too old; `size` tells.
#[repr(C)]
struct LaterApi {
    first: Api,
    others: [*const c_void; 12],
    device: Ask<OfContext<i32>>,
}

/// Arguments or results: their types, and pointers to them.
#[repr(C)]
struct Several {
    size: usize,
    extension: *mut Extension,
    len: i64,
    types: *const c_int,
    all: *const *const RawBuffer,
}

#[repr(C)]
struct RawBuffer {
    size: usize,
    extension: *mut Extension,
    dtype: c_int,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct Name {
    start: *const u8,
    len: usize,
}

#[repr(C)]
struct Scalar {
    dtype: c_int,
    value: *const c_void,
}

#[repr(C)]
struct Attributes {
    size: usize,
    extension: *mut Extension,
    len: i64,
    types: *const c_int,
    names: *const *const Name,
    all: *const *const Scalar,
}

#[repr(C)]
struct Frame {
    size: usize,
    extension: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: c_int,
    arguments: Several,
    results: Several,
    attributes: Attributes,
}

/// A function that XLA calls.
pub type Handler = unsafe extern "C" fn(*mut c_void) -> RuntimeError;

/// Why a call has no results.
pub enum Refusal {
    /// An error of the runtime.
    Runtime(RuntimeError),
    Said(Code, String),
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Self {
        let code = match cause(&e) {
            Error::Memory { .. } => Code::ResourceExhausted,
            Error::Unsupported { .. } | Error::UnsupportedOutput { .. } => Code::Unimplemented,
            Error::Cancelled { .. } => Code::Cancelled,
            Error::Threads { .. } | Error::NoDevice { .. } | Error::DeviceCompile { .. } | Error::Device { .. } => {
                Code::Internal
            }
            _ => Code::InvalidArgument,
        };
        Refusal::Said(code, e.to_string())
    }
}

/// An error that says what is wrong with a call.
pub fn refuse<T>(code: Code, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Said(code, text.into()))
}

/// One call: buffers and attributes, valid while it runs.
pub struct Call<'a>(&'a Frame);

/// A buffer of f32 or f64 numbers, row by row.
#[derive(Clone, Copy)]
pub struct Buffer<'a> {
    data: *mut c_void,
    pub dims: &'a [i64],
    pub precision: Precision,
}

impl<'a> Call<'a> {
    /// The arguments.
    pub fn arguments(&self) -> Result<Vec<Buffer<'a>>, Refusal> {
        self.buffers(&self.0.arguments)
    }

    /// The results, which the call writes.
    pub fn results(&self) -> Result<Vec<Buffer<'a>>, Refusal> {
        self.buffers(&self.0.results)
    }

    fn buffers(&self, all: &'a Several) -> Result<Vec<Buffer<'a>>, Refusal> {
        let of = |k: usize| {
            // SAFETY: the runtime gives `len` types and pointers, valid during the call; a type says what a pointer is.
            let buffer = unsafe {
                if *all.types.add(k) != BUFFER {
                    return refuse(Code::InvalidArgument, format!("argument or result {k} is no array"));
                }
                &**all.all.add(k)
            };
            let precision = match buffer.dtype {
                F32 => Precision::F32,
                F64 => Precision::F64,
                other => return refuse(Code::InvalidArgument, format!("an array has numbers of XLA's type {other}")),
            };
            let rank = buffer.rank.max(0) as usize;
            // SAFETY: the runtime gives `rank` extents; without axes the pointer may be null.
            let dims = if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffer.dims, rank) } };
            Ok(Buffer { data: buffer.data, dims, precision })
        };
        (0..all.len.max(0) as usize).map(of).collect()
    }

    /// The attribute of this name, a whole number.
    pub fn number(&self, name: &str) -> Result<i64, Refusal> {
        let all = &self.0.attributes;
        for k in 0..all.len.max(0) as usize {
            // SAFETY: the runtime gives `len` types, names and pointers, valid during the call; a type says what its
            // pointer is, and so does the type of a number.
            unsafe {
                let key = &**all.names.add(k);
                if std::slice::from_raw_parts(key.start, key.len) == name.as_bytes() && *all.types.add(k) == SCALAR {
                    let scalar = &**all.all.add(k);
                    if scalar.dtype == I64 {
                        return Ok(scalar.value.cast::<i64>().read_unaligned());
                    }
                }
            }
        }
        refuse(Code::InvalidArgument, format!("the call has no whole number {name}"))
    }

    /// The stream of a call on a GPU.
    pub fn stream(&self) -> Result<usize, Refusal> {
        // SAFETY: as `of_context` asks.
        let stream = unsafe { self.of_context(self.api().stream, std::ptr::null_mut()) }?;
        Ok(stream as usize)
    }

    /// The number of the GPU of a call.
    pub fn device(&self) -> Result<usize, Refusal> {
        if self.api().size < size_of::<LaterApi>() {
            return refuse(Code::Unimplemented, "this jaxlib does not say which GPU a call is for: use a newer one");
        }
        // SAFETY: the table of functions is as long as it says. The function is the one that `of_context` asks for.
        let device = unsafe { self.of_context((*self.0.api.cast::<LaterApi>()).device, 0) }?;
        Ok(device.max(0) as usize)
    }

    fn api(&self) -> &'a Api {
        // SAFETY: the runtime gives its functions with each call.
        unsafe { &*self.0.api }
    }

    /// What the context of the call answers.
    ///
    /// # Safety
    /// `ask` is the function of the interface for answers of this type.
    unsafe fn of_context<T>(&self, ask: Ask<OfContext<T>>, nothing: T) -> Result<T, Refusal> {
        let (size, extension) = (size_of::<OfContext<T>>(), std::ptr::null_mut());
        let mut asked = OfContext { size, extension, context: self.0.context, answer: nothing };
        // SAFETY: as promised.
        let failed = unsafe { ask(&mut asked) };
        if failed.is_null() { Ok(asked.answer) } else { Err(Refusal::Runtime(failed)) }
    }
}

impl<'a> Buffer<'a> {
    /// Count of numbers.
    pub fn len(&self) -> usize {
        self.dims.iter().map(|&n| n.max(0) as usize).product()
    }

    /// Address of the first number.
    pub fn address(&self) -> u64 {
        self.data as u64
    }

    /// The numbers of an argument on the host; an error if they have another type.
    pub fn numbers<T: Number>(&self) -> Result<&'a [T], Refusal> {
        if T::PRECISION != self.precision {
            return refuse(Code::InvalidArgument, "arrays have numbers of different types");
        }
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: the runtime gives a buffer of this type and these extents, aligned for any number, which nothing
        // writes during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.len()) })
    }

    /// Writes the numbers of a result on the host from `first` on.
    pub fn write<T: Number>(&self, first: usize, numbers: &[T]) -> Result<(), Refusal> {
        if T::PRECISION != self.precision || first + numbers.len() > self.len() {
            let text = format!("a result has extents {:?}, not those of the sums", self.dims);
            return refuse(Code::InvalidArgument, text);
        }
        // SAFETY: the buffer has room for so many numbers of this type, and nothing else uses a result during the call.
        unsafe {
            let to = self.data.cast::<T>().add(first);
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, numbers.len());
        }
        Ok(())
    }
}

/// Answers a call by `work`: the version, if XLA asks for it, or else the results. A panic is an error.
///
/// # Safety
/// `frame` is what XLA passes to a handler.
pub unsafe fn answered(frame: *mut c_void, work: impl FnOnce(&Call<'_>) -> Result<(), Refusal>) -> RuntimeError {
    // SAFETY: as promised; the frame and all that it points to live as long as the call.
    let (frame, api) = unsafe {
        let frame = &*frame.cast::<Frame>();
        (frame, &*frame.api)
    };
    // SAFETY: extensions are valid or null, and the kind says which one it is.
    unsafe {
        if let Some(extension) = frame.extension.as_ref().filter(|e| e.kind == METADATA) {
            let metadata = &mut *(*(extension as *const Extension).cast::<MetadataExtension>()).metadata;
            metadata.version.major = VERSION[0];
            metadata.version.minor = api.version.minor.min(VERSION[1]);
            // Calls plan and wait, so they cannot be recorded in a graph.
            metadata.traits = 0;
            return std::ptr::null_mut();
        }
    }
    if frame.stage != EXECUTE {
        return std::ptr::null_mut();
    }
    let done = catch_unwind(AssertUnwindSafe(|| work(&Call(frame))));
    let done =
        done.unwrap_or_else(|panic| refuse(Code::Internal, format!("internal error: {}", errors::said(&*panic))));
    let (code, text) = match done {
        Ok(()) => return std::ptr::null_mut(),
        Err(Refusal::Runtime(failed)) => return failed,
        Err(Refusal::Said(code, text)) => (code, text),
    };
    let message = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (size, extension) = (size_of::<ErrorCreate>(), std::ptr::null_mut());
    let mut create = ErrorCreate { size, extension, message: message.as_ptr(), code: code as c_int };
    // SAFETY: the function of the interface for this structure; it copies the message.
    unsafe { (api.error_create)(&mut create) }
}
