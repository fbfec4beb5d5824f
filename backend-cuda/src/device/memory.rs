//! Memory of a device: arrays, and copies to and from the host.

use super::ledger::Ledger;
use super::{Arg, Device, blocks};
use crate::error::{failed, out_of_memory};
use crate::graph;
use crate::pool::{Origin, Shelves};
use crate::programs;
use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, DriverError, ValidAsZeroBits, result};
use fmm_traits::Error;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Threads per block of `fetch` in `scan.cu`.
const FETCH_BLOCK: u32 = 256;

/// An array in device memory.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    len: usize,
    /// Where the memory goes when the buffer is dropped; `None`: back to the driver.
    shelves: Option<Arc<Shelves>>,
    ledger: Arc<Ledger>,
}

impl<T> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.len.max(1) * size_of::<T>()) as u64
    }
    /// Address in device memory.
    pub fn address(&self) -> u64 {
        // Every buffer belongs to the first stream, so there is no other stream to wait for.
        self.slice.device_ptr(self.slice.stream()).0
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

/// Work that is enqueued later may take the memory. Work that uses the buffer was enqueued before, in the same stream.
impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = self.len.max(1) * size_of::<T>();
        // SAFETY: nobody uses the slice after this.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let address = slice.device_ptr(slice.stream()).0;
        self.ledger.remove(address, bytes as u64);
        if self.shelves.as_ref().is_some_and(|shelves| shelves.put(address, bytes)) {
            slice.leak();
        }
    }
}

impl Device {
    /// Uninitialised memory for `n` elements. `what` appears in the error if the memory does not suffice.
    pub(crate) fn alloc<T: DeviceRepr>(&self, n: usize, what: &str) -> Result<Buffer<T>, Error> {
        let (len, bytes) = (n.max(1), n.max(1) * size_of::<T>());
        if let Some(available) = self.allowance().filter(|&left| bytes as u64 > left) {
            let what = format!("{what} within the memory that plans may use of the device");
            return Err(Error::Memory { needed: bytes as u64, available, what });
        }
        let shelves = self.inner.shelves.as_ref().filter(|shelves| shelves.hold(bytes));
        let of = |address: u64| {
            // SAFETY: the memory has this many bytes, and is free in the order of the stream. A kernel or a copy writes
            // every uninitialised buffer before it is read.
            let slice = unsafe { self.inner.stream.upgrade_device_ptr(address, len) };
            self.inner.ledger.add(address, bytes as u64, what);
            Buffer {
                slice: ManuallyDrop::new(slice),
                len: n,
                shelves: shelves.cloned(),
                ledger: self.inner.ledger.clone(),
            }
        };
        if let Some(address) = shelves.and_then(|shelves| shelves.take(bytes)) {
            return Ok(of(address));
        }
        let room = if shelves.is_some() { Shelves::room(bytes) } else { bytes };
        // SAFETY: as above.
        let fresh = || unsafe { self.inner.stream.alloc::<u8>(room) }.map(CudaSlice::leak);
        self.asked(fresh, || Ok(self.clear_shelves()), bytes, what).map(of)
    }

    /// Takes `bytes` bytes from the driver in one piece, and keeps them for buffers that come later. Smaller pieces that are kept
    /// go back to the driver before. Does nothing if as many bytes are kept already, if `bytes` is more than half of the free
    /// memory, without a pool, and if plans may use only a part of the memory.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let refused = self.inner.pool.is_none() || self.allowance().is_some();
        if refused || bytes <= self.kept_memory()? || bytes > self.free_memory()? / 2 {
            return Ok(());
        }
        // Otherwise smaller pieces would stay beside the new one.
        self.give_back()?;
        // SAFETY: nobody uses the memory, which goes to the pool at once.
        match unsafe { self.inner.stream.alloc::<u8>(bytes as usize) } {
            // Another process has taken the memory meanwhile.
            Err(e) if out_of_memory(e) => Ok(()),
            taken => taken.map(drop).map_err(|e| failed("reserving memory", e)),
        }
    }

    /// What `alloc` gets from the driver. If memory is short and `room` makes some, `alloc` asks again.
    pub(super) fn asked(
        &self,
        alloc: impl Fn() -> Result<u64, DriverError>,
        room: impl FnOnce() -> Result<bool, Error>,
        bytes: usize,
        what: &str,
    ) -> Result<u64, Error> {
        let made = match alloc() {
            Err(e) if out_of_memory(e) && room()? => alloc(),
            made => made,
        };
        made.map_err(|e| self.memory(e, bytes, what))
    }

    /// Uninitialised memory that other devices may copy, of `bytes` bytes: an address for
    /// [`free_for_others`](Device::free_for_others). The memory is not from the pool. If memory is short, shelves and pool are
    /// emptied first, which waits for the device.
    pub(crate) fn alloc_for_others(&self, bytes: usize, what: &str) -> Result<u64, Error> {
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        let shelves = self.inner.for_others.as_ref().filter(|shelves| shelves.hold(bytes));
        if let Some(address) = shelves.and_then(|shelves| shelves.take(bytes)) {
            return Ok(address);
        }
        let room = if shelves.is_some() { Shelves::room(bytes) } else { bytes.max(1) };
        // SAFETY: the caller writes the memory before it is read.
        let alloc = || unsafe { result::malloc_sync(room) };
        self.asked(alloc, || self.give_back().map(|()| true), bytes, what)
    }

    /// Frees memory that other devices may copy, of `bytes` bytes, or keeps it for the next such allocation.
    pub(crate) fn free_for_others(&self, address: u64, bytes: usize) {
        match &self.inner.for_others {
            Some(shelves) => shelves.free(address, bytes),
            None => Origin::Driver(self.inner.context.clone()).free(address),
        }
    }

    /// A buffer of `n` zeros.
    pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, n: usize, what: &str) -> Result<Buffer<T>, Error> {
        let mut buffer = self.alloc(n, what)?;
        self.inner.stream.memset_zeros(&mut *buffer.slice).map_err(|e| failed(what, e))?;
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
        done.unwrap_or_else(|| self.inner.stream.memset_zeros(&mut *buffer.slice))
            .map_err(|e| failed("clearing memory", e))
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
        let mut to = buffer.slice.slice_mut(at..at + data.len());
        self.inner.stream.memcpy_htod(data, &mut to).map_err(|e| failed(what, e))
    }

    /// A copy of a buffer.
    pub(crate) fn copy<T: DeviceRepr>(&self, from: &Buffer<T>, what: &str) -> Result<Buffer<T>, Error> {
        let mut to = self.alloc(from.len(), what)?;
        self.inner.stream.memcpy_dtod(&*from.slice, &mut *to.slice).map_err(|e| failed(what, e))?;
        Ok(to)
    }

    /// Enqueues a copy from an address into a whole buffer.
    ///
    /// # Safety
    /// `address` must be the address of as many elements as the buffer has, and stay valid until the copy is made.
    pub(crate) unsafe fn copy_from<T>(&self, address: u64, to: &mut Buffer<T>, what: &str) -> Result<(), Error> {
        let (bytes, stream) = (to.len * size_of::<T>(), self.inner.stream.cu_stream());
        // SAFETY: the caller vouches for the address; the buffer has this many bytes.
        let copied = unsafe { result::memcpy_dtod_async(to.address(), address, bytes, stream) };
        copied.map_err(|e| failed(what, e))
    }

    /// Enqueues a copy of a buffer to an address.
    ///
    /// # Safety
    /// There is room for as many elements at `address`, until the copy is made.
    pub(crate) unsafe fn copy_out<T>(&self, from: &Buffer<T>, address: u64, what: &str) -> Result<(), Error> {
        let (bytes, stream) = (from.len * size_of::<T>(), self.inner.stream.cu_stream());
        // SAFETY: the caller vouches for the address; the buffer has this many bytes.
        let copied = unsafe { result::memcpy_dtod_async(address, from.address(), bytes, stream) };
        copied.map_err(|e| failed(what, e))
    }

    /// Enqueues a copy of bytes from one address to another.
    ///
    /// # Safety
    /// Both are addresses of as many bytes of this device.
    pub(crate) unsafe fn copy_bytes(&self, from: u64, to: u64, bytes: usize, what: &str) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        // SAFETY: as promised.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.inner.stream.cu_stream()) }
            .map_err(|e| failed(what, e))
    }

    /// Enqueues a copy of `n` elements from an address into a buffer, from its element `at` on.
    ///
    /// # Safety
    /// `address` must be the address of `n` such elements, and stay valid until the copy is made.
    pub(crate) unsafe fn copy_into<T>(
        &self,
        address: u64,
        to: &mut Buffer<T>,
        (at, n): (usize, usize),
        what: &str,
    ) -> Result<(), Error> {
        debug_assert!(at + n <= to.len);
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        let (place, bytes) = (to.address() + (at * size_of::<T>()) as u64, n * size_of::<T>());
        // SAFETY: the caller vouches for the address; the buffer has these elements.
        let copied = unsafe { result::memcpy_dtod_async(place, address, bytes, self.inner.stream.cu_stream()) };
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
        let functions = self.fixed("scan", programs::scan)?;
        let at: Vec<u64> = of.iter().map(|(from, at)| from.address() + (at * size_of::<u64>()) as u64).collect();
        let (from, together) = (self.upload(&at, what)?, self.alloc(of.len(), what)?);
        let args = [(&from).into(), (of.len() as u32).into(), (&together).into()];
        // SAFETY: arguments as in scan.cu; the addresses are those of entries.
        unsafe { self.launch(&functions, "fetch", (blocks(of.len(), FETCH_BLOCK as usize)?, 1), FETCH_BLOCK, &args)? };
        self.download(&together, what)
    }

    /// Several buffers on the host, after one wait.
    pub(crate) fn download_all<const K: usize>(
        &self,
        of: [&Buffer<u64>; K],
        what: &str,
    ) -> Result<[Vec<u64>; K], Error> {
        let parts = of.map(|buffer| (buffer.address(), buffer.len() * size_of::<u64>()));
        let mut data = of.map(|buffer| vec![0u64; buffer.len()]);
        let mut bytes = vec![0u8; parts.iter().map(|p| p.1).sum()];
        // SAFETY: the buffers have these bytes.
        unsafe { self.receive_parts(&parts, &mut bytes, what)? };
        let mut words = bytes.as_chunks::<{ size_of::<u64>() }>().0.iter().map(|word| u64::from_ne_bytes(*word));
        data.iter_mut().for_each(|part| part.iter_mut().zip(&mut words).for_each(|(to, word)| *to = word));
        Ok(data)
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
                let (from, mut to) = (buffer.slice.slice(..used), larger.slice.slice_mut(..used));
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
