//! Memory of a device: arrays, and copies to and from the host.

use super::{Arg, Device};
use crate::error::{failed, out_of_memory};
use crate::graph;
use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, DriverError, ValidAsZeroBits, result};
use fmm_traits::Error;

/// An array in device memory.
#[derive(Debug)]
pub(crate) struct Buffer<T>(CudaSlice<T>, usize);

impl<T> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.1
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.1.max(1) * size_of::<T>()) as u64
    }
    /// Address in device memory.
    pub fn address(&self) -> u64 {
        // Every buffer belongs to the first stream, so there is no other stream to wait for.
        self.0.device_ptr(self.0.stream()).0
    }
    /// The address of element `i`, for a kernel.
    pub fn at(&self, i: usize) -> Arg {
        Arg::of_elements::<T>(self.address() + (i * size_of::<T>()) as u64)
    }
}

impl Buffer<u8> {
    /// The buffer as memory for elements whose type only the kernel knows.
    pub fn untyped(&self) -> Arg {
        Arg::address(self.address())
    }
}

impl Device {
    /// Uninitialised memory for `n` elements. `what` appears in the error if the memory does not suffice.
    pub(crate) fn alloc<T: DeviceRepr>(&self, n: usize, what: &str) -> Result<Buffer<T>, Error> {
        // SAFETY: a kernel or a copy writes every uninitialised buffer before it is read.
        let slice = unsafe { self.inner.stream.alloc(n.max(1)) };
        Ok(Buffer(slice.map_err(|e| self.memory(e, n.max(1) * size_of::<T>(), what))?, n))
    }

    /// A buffer of `n` zeros.
    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, n: usize, what: &str) -> Result<Buffer<T>, Error> {
        let mut buffer = self.alloc(n, what)?;
        self.inner.stream.memset_zeros(&mut buffer.0).map_err(|e| failed(what, e))?;
        Ok(buffer)
    }

    /// A buffer of `n` numbers with all bits set: [`NONE`](fmm_traits::tree::NONE).
    pub(crate) fn nones(&self, n: usize, what: &str) -> Result<Buffer<u32>, Error> {
        let buffer: Buffer<u32> = self.alloc(n, what)?;
        // SAFETY: the buffer has 4·n bytes.
        unsafe { self.set_bytes(buffer.address(), 0xff, 4 * n, what)? };
        Ok(buffer)
    }

    /// Enqueues filling a whole buffer with zeros.
    pub(crate) fn clear<T: DeviceRepr + ValidAsZeroBits>(&self, buffer: &mut Buffer<T>) -> Result<(), Error> {
        let done = graph::clear(buffer.address(), buffer.bytes() as usize);
        done.unwrap_or_else(|| self.inner.stream.memset_zeros(&mut buffer.0)).map_err(|e| failed("clearing memory", e))
    }

    /// Enqueues setting `bytes` bytes to a value.
    ///
    /// # Safety
    /// `address` is the address of as many bytes.
    pub(crate) unsafe fn set_bytes(&self, address: u64, to: u8, bytes: usize, what: &str) -> Result<(), Error> {
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        // SAFETY: as promised.
        unsafe { result::memset_d8_async(address, to, bytes, self.inner.stream.cu_stream()) }
            .map_err(|e| failed(what, e))
    }

    /// A copy of `data` on the device.
    pub(crate) fn upload<T: DeviceRepr + Copy>(&self, data: &[T], what: &str) -> Result<Buffer<T>, Error> {
        let buffer = self.alloc(data.len(), what)?;
        if !data.is_empty() {
            // SAFETY: the buffer has as many elements.
            unsafe { self.send(data, buffer.address(), what)? };
        }
        Ok(buffer)
    }

    /// Overwrites the elements of a buffer from `at` on with `data`.
    pub(crate) fn write<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        at: usize,
        data: &[T],
        what: &str,
    ) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        let mut to = buffer.0.slice_mut(at..at + data.len());
        self.inner.stream.memcpy_htod(data, &mut to).map_err(|e| failed(what, e))
    }

    /// A copy of a buffer.
    pub(crate) fn copy<T: DeviceRepr>(&self, from: &Buffer<T>, what: &str) -> Result<Buffer<T>, Error> {
        let mut to = self.alloc(from.len(), what)?;
        self.inner.stream.memcpy_dtod(&from.0, &mut to.0).map_err(|e| failed(what, e))?;
        Ok(to)
    }

    /// Enqueues a copy from an address into a whole buffer.
    ///
    /// # Safety
    /// `address` must be the address of as many elements as the buffer has, and stay valid until the copy is made.
    pub(crate) unsafe fn copy_from<T>(&self, address: u64, to: &mut Buffer<T>, what: &str) -> Result<(), Error> {
        let (bytes, stream) = (to.1 * size_of::<T>(), self.inner.stream.cu_stream());
        // SAFETY: the caller vouches for the address; the buffer has this many bytes.
        let copied = unsafe { result::memcpy_dtod_async(to.address(), address, bytes, stream) };
        copied.map_err(|e| failed(what, e))
    }

    /// Elements `range` of a buffer, on the host.
    pub(crate) fn download_range<T: DeviceRepr + Default + Copy>(
        &self,
        buffer: &Buffer<T>,
        range: std::ops::Range<usize>,
        what: &str,
    ) -> Result<Vec<T>, Error> {
        let mut data = vec![T::default(); range.len()];
        debug_assert!(range.end <= buffer.len().max(1));
        if !range.is_empty() {
            // SAFETY: the buffer has these elements.
            unsafe { self.receive(buffer.address() + (range.start * size_of::<T>()) as u64, &mut data, what)? };
        }
        Ok(data)
    }

    /// The first `n` rows of `K` elements of a buffer, on the host.
    pub(crate) fn download_rows<T: DeviceRepr + Default + Copy, const K: usize>(
        &self,
        buffer: &Buffer<T>,
        n: usize,
        what: &str,
    ) -> Result<Vec<[T; K]>, Error> {
        let mut rows = vec![[T::default(); K]; n];
        debug_assert!(K * n <= buffer.len().max(1));
        if n > 0 {
            // SAFETY: the buffer has these elements.
            unsafe { self.receive(buffer.address(), rows.as_flattened_mut(), what)? };
        }
        Ok(rows)
    }

    /// One entry from each of several buffers, in one transfer to the host.
    pub(crate) fn entries(&self, of: &[(&Buffer<u64>, usize)], what: &str) -> Result<Vec<u64>, Error> {
        let mut together: Buffer<u64> = self.alloc(of.len(), what)?;
        for (k, (from, at)) in of.iter().enumerate() {
            let (from, mut to) = (from.0.slice(*at..at + 1), together.0.slice_mut(k..k + 1));
            self.inner.stream.memcpy_dtod(&from, &mut to).map_err(|e| failed(what, e))?;
        }
        self.download(&together, what)
    }

    /// A whole buffer, on the host.
    pub(crate) fn download<T: DeviceRepr + Default + Copy>(
        &self,
        buffer: &Buffer<T>,
        what: &str,
    ) -> Result<Vec<T>, Error> {
        self.download_range(buffer, 0..buffer.len(), what)
    }

    /// Makes room for `n` elements in `buffer`. The first `used` elements are kept.
    pub(crate) fn grow<T: DeviceRepr>(
        &self,
        buffer: &mut Buffer<T>,
        used: usize,
        n: usize,
        what: &str,
    ) -> Result<(), Error> {
        if n > buffer.len() {
            let mut larger = self.alloc(n.max(buffer.len() + buffer.len() / 2), what)?;
            if used > 0 {
                let (from, mut to) = (buffer.0.slice(..used), larger.0.slice_mut(..used));
                self.inner.stream.memcpy_dtod(&from, &mut to).map_err(|e| failed(what, e))?;
            }
            *buffer = larger;
        }
        Ok(())
    }

    fn memory(&self, e: DriverError, needed: usize, what: &str) -> Error {
        if out_of_memory(e) {
            let available = self.free_memory().unwrap_or(0);
            return Error::Memory { needed: needed as u64, available, what: format!("{what} on the device") };
        }
        failed(what, e)
    }
}
