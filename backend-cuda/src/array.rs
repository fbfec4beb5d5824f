//! Arrays in device memory, and streams, of a caller.

use crate::device::{Buffer, Device};
use crate::equivalent::DeviceScalar;
use crate::error::failed;
use cudarc::driver::sys::{self, CUcontext, CUpointer_attribute, CUstream};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use fmm_traits::{Error, Precision};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// An array of numbers in the memory of one device: contiguous, row-major, in f32 or f64. Clones share the memory.
///
/// An array that owns its memory frees it when the last clone goes, after the work that this crate has enqueued on it
/// by then. So the caller may drop such an array right after a call. Work that the caller itself enqueues on the
/// address must be done before. A borrowed array frees nothing; its memory must stay valid until all work is done.
#[derive(Clone)]
pub struct DeviceArray {
    device: Device,
    address: u64,
    len: usize,
    precision: Precision,
    /// The owner of the memory; `None` if the caller vouches for it.
    owner: Option<Arc<dyn Any + Send + Sync>>,
    /// Whether the memory was allocated by the caller.
    taken_over: bool,
}

/// Memory of a caller by its address, as the interfaces of Python give it (`__cuda_array_interface__`, DLPack).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawArray<'a> {
    /// Address of the first number.
    pub address: u64,
    /// Extent of each axis.
    pub shape: &'a [usize],
    /// Distance of neighbours along each axis, in numbers; `None` for row-major order without gaps. DLPack gives
    /// strides in numbers; `__cuda_array_interface__` gives them in bytes: those of N×3 numbers in f32 are (12, 4),
    /// here (3, 1).
    pub strides: Option<&'a [isize]>,
    /// Type of the numbers.
    pub precision: Precision,
}

impl fmt::Debug for DeviceArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers in {} at {:#x}", self.len, self.precision.name(), self.address)
    }
}

/// The error for an array or stream that cannot be used.
pub(crate) fn refused(array: &'static str, reason: impl Into<String>) -> Error {
    Error::Array { array, reason: reason.into() }
}

impl DeviceArray {
    /// Copies numbers to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new<T: DeviceScalar>(device: &Device, numbers: &[T]) -> Result<DeviceArray, Error> {
        let array = DeviceArray::uninitialised::<T>(device, numbers.len())?;
        // SAFETY: the array has as many numbers.
        unsafe { device.send(numbers, array.address, "an array")? };
        device.synchronize()?;
        Ok(array)
    }

    /// `n` zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn zeros<T: DeviceScalar>(device: &Device, n: usize) -> Result<DeviceArray, Error> {
        let buffer = device.zeros::<T>(n, "an array")?;
        device.synchronize()?;
        Ok(DeviceArray::of(device, buffer))
    }

    fn of<T: DeviceScalar>(device: &Device, buffer: Buffer<T>) -> DeviceArray {
        let (device, address, len) = (device.clone(), buffer.address(), buffer.len());
        let owner: Option<Arc<dyn Any + Send + Sync>> = Some(Arc::new(buffer));
        DeviceArray { device, address, len, precision: T::PRECISION, owner, taken_over: false }
    }

    /// Memory for `n` numbers, to be written before it is read.
    pub(crate) fn uninitialised<T: DeviceScalar>(device: &Device, n: usize) -> Result<DeviceArray, Error> {
        Ok(DeviceArray::of(device, device.alloc::<T>(n, "an array")?))
    }

    /// Memory for `n` numbers in `precision`, to be written before it is read.
    pub(crate) fn room(device: &Device, n: usize, precision: Precision) -> Result<DeviceArray, Error> {
        match precision {
            Precision::F32 => DeviceArray::uninitialised::<f32>(device, n),
            Precision::F64 => DeviceArray::uninitialised::<f64>(device, n),
        }
    }

    /// Takes over a slice of `cudarc`. The host waits until the work in the slice's stream is done.
    ///
    /// # Errors
    /// [`Error::Array`] for a slice of another device or context.
    pub fn from_slice<T: DeviceScalar>(device: &Device, slice: CudaSlice<T>) -> Result<DeviceArray, Error> {
        let stream = slice.stream().clone();
        if stream.context().cu_ctx() != device.context().cu_ctx() {
            let [own, other] = [stream.context(), device.context()].map(|c| c.ordinal());
            let reason =
                format!("it belongs to a context of device {own}, not to the primary context of device {other}");
            return Err(refused("slice", reason));
        }
        // The first call makes the stream of the slice wait for other streams of cudarc that have written it.
        let (address, len) = (slice.device_ptr(&stream).0, slice.len());
        stream.synchronize().map_err(|e| failed("waiting for the stream of a slice", e))?;
        let owner: Option<Arc<dyn Any + Send + Sync>> = Some(Arc::new(slice));
        let device = device.clone();
        Ok(DeviceArray { device, address, len, precision: T::PRECISION, owner, taken_over: true })
    }

    /// Borrows memory by its address.
    ///
    /// # Errors
    /// [`Error::Array`] for strides with gaps or in another order, for an address that is not a multiple of the size
    /// of a number, and for memory that the driver does not know or that lies on another device. (Pinned memory of the
    /// host counts as memory of the device that pinned it.)
    ///
    /// # Safety
    /// The memory holds as many numbers as the shape says, and stays valid until all work with this array and its
    /// clones is done. Nothing else writes it meanwhile; nothing else reads it while it receives results.
    pub unsafe fn borrowed(device: &Device, raw: RawArray) -> Result<DeviceArray, Error> {
        let (len, precision) = (raw.shape.iter().product(), raw.precision);
        if let Some(strides) = raw.strides {
            check_strides(raw.shape, strides)?;
        }
        if !raw.address.is_multiple_of(precision.bytes() as u64) {
            let reason = format!("the address {:#x} is not a multiple of {}", raw.address, precision.bytes());
            return Err(refused("array", reason));
        }
        if len > 0 {
            check_place(device, raw.address)?;
        }
        let (device, address) = (device.clone(), raw.address);
        Ok(DeviceArray { device, address, len, precision, owner: None, taken_over: false })
    }

    /// Address in device memory.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// Number of numbers.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Type of the numbers.
    pub fn precision(&self) -> Precision {
        self.precision
    }
    /// Bytes of the array.
    pub fn bytes(&self) -> u64 {
        (self.len * self.precision.bytes()) as u64
    }

    /// A copy on the host. Waits for all work of this crate on the device first. Work that the caller has enqueued on
    /// the array must be done.
    ///
    /// # Errors
    /// [`Error::Array`] for numbers of the other type, and errors of the device.
    pub fn download<T: DeviceScalar>(&self) -> Result<Vec<T>, Error> {
        let mut data = vec![T::default(); self.len];
        self.read(&mut data)?;
        Ok(data)
    }

    /// [`download`](DeviceArray::download) into a slice of the same length.
    pub(crate) fn read<T: DeviceScalar>(&self, to: &mut [T]) -> Result<(), Error> {
        if self.precision != T::PRECISION {
            let (own, other) = (self.precision.name(), T::PRECISION.name());
            return Err(refused("array", format!("its numbers are {own}, asked for as {other}")));
        }
        debug_assert_eq!(self.len, to.len());
        // SAFETY: the array has as many numbers.
        unsafe { self.device.receive(self.address, to, "an array") }
    }

    /// Checks that the array lies on `device`.
    pub(crate) fn is_on(&self, name: &'static str, device: &Device) -> Result<(), Error> {
        let [own, other] = [&self.device, device].map(|d| d.context().ordinal());
        if own == other {
            return Ok(());
        }
        Err(refused(name, format!("the array lies on device {own}, the plan on device {other}")))
    }

    /// Enqueues filling the array with zeros, in the order of `stream`.
    ///
    /// # Errors
    /// [`Error::Array`] for a stream of another device, and errors of the device.
    pub fn clear(&self, stream: &DeviceStream) -> Result<(), Error> {
        let handle = stream.on(&self.device)?;
        // SAFETY: the stream is live by the promise of its type, and the array has as many bytes.
        unsafe {
            self.device.within(handle, || self.device.set_bytes(self.address, 0, self.bytes() as usize, "an array"))
        }
    }

    /// Whether an owner other than this crate may free the memory, without regard to the stream of `device`.
    pub(crate) fn is_foreign(&self, device: &Device) -> bool {
        self.owner.is_some() && (self.taken_over || !self.device.is(device))
    }

    /// Whether two arrays have common memory.
    pub(crate) fn overlaps(&self, other: &DeviceArray) -> bool {
        self.address < other.address + other.bytes() && other.address < self.address + self.bytes()
    }
}

/// Refuses strides that are not those of row-major order. Axes of extent 1 have any stride.
fn check_strides(shape: &[usize], strides: &[isize]) -> Result<(), Error> {
    let mut expected = 1;
    let mut good = shape.len() == strides.len();
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        good &= extent == 1 || stride == expected;
        expected *= extent as isize;
    }
    if good || shape.contains(&0) {
        return Ok(());
    }
    let reason = format!("shape {shape:?} with strides {strides:?}: rows must follow each other without gaps");
    Err(refused("array", reason))
}

/// Refuses memory that is not on the device.
fn check_place(device: &Device, address: u64) -> Result<(), Error> {
    let context = device.context();
    context.bind_to_thread().map_err(|e| failed("asking for an array", e))?;
    let mut ordinal = -1i32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is a number of 32 bits, which outlives the call.
    let known = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) }.result();
    match known {
        Err(_) => Err(refused("array", format!("{address:#x} is no memory of a device"))),
        Ok(()) if ordinal != context.ordinal() as i32 => {
            let reason = format!("{address:#x} lies on device {ordinal}, not on {}", context.ordinal());
            Err(refused("array", reason))
        }
        Ok(()) => Ok(()),
    }
}

/// The stream of a caller. Work on arrays of the caller runs after the work that is already in the stream, and before
/// work that the stream gets later.
#[derive(Clone, Debug, Default)]
pub enum DeviceStream {
    /// The default stream of the device (the null stream).
    #[default]
    Null,
    /// A stream of `cudarc`.
    Shared(Arc<CudaStream>),
    /// See [`DeviceStream::raw`].
    Raw(RawStream),
}

/// A stream by its handle.
#[derive(Clone, Copy, Debug)]
pub struct RawStream(CUstream);
// SAFETY: a handle of the driver, whose calls may come from any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl DeviceStream {
    /// A stream by its handle (`cudaStream_t`, `CUstream`); null for the default stream.
    ///
    /// # Safety
    /// The stream lives as long as this value and its clones.
    pub unsafe fn raw(handle: *mut c_void) -> DeviceStream {
        if handle.is_null() { DeviceStream::Null } else { DeviceStream::Raw(RawStream(handle.cast())) }
    }

    /// The handle, after a check that the stream belongs to `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<CUstream, Error> {
        let handle = match self {
            DeviceStream::Null => return Ok(std::ptr::null_mut()),
            DeviceStream::Shared(stream) => stream.cu_stream(),
            DeviceStream::Raw(RawStream(handle)) => *handle,
        };
        let failing = |e: DriverError| failed("asking for a stream of the caller", e);
        device.context().bind_to_thread().map_err(failing)?;
        let mut of: CUcontext = std::ptr::null_mut();
        // SAFETY: the stream is live.
        unsafe { sys::cuStreamGetCtx(handle, &mut of) }.result().map_err(failing)?;
        if of != device.context().cu_ctx() {
            let reason = format!("it does not belong to the primary context of device {}", device.context().ordinal());
            return Err(refused("stream", reason));
        }
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_without_gaps_pass() {
        for (shape, strides) in
            [(&[5, 3][..], &[3, 1][..]), (&[5], &[1]), (&[1, 3], &[17, 1]), (&[5, 1], &[1, 9]), (&[0, 3], &[7, 7])]
        {
            check_strides(shape, strides).unwrap();
        }
        for (shape, strides) in
            [(&[5, 3][..], &[1, 5][..]), (&[5], &[2]), (&[5, 3], &[4, 1]), (&[5], &[-1]), (&[5], &[])]
        {
            assert!(matches!(check_strides(shape, strides), Err(Error::Array { .. })), "{shape:?} {strides:?}");
        }
    }
}
