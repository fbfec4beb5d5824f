//! Copies between memory of the caller and of the device, through pinned memory.
//!
//! The bus reads pinned memory at full speed, and memory of the caller at a third of that. Large arrays are therefore
//! cut into pieces. Several threads copy pieces into pinned buffers (or out of them) while the bus moves other pieces.

use crate::device::Device;
use crate::error::failed;
use crate::pinned::{Pinned, in_threads, threads_for};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use fmm_traits::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a pinned buffer.
const PIECE_BYTES: usize = 2 << 20;
/// Arrays of fewer bytes go without pinned memory: the driver stages them itself, as fast.
pub(crate) const MIN_STAGED_BYTES: usize = 1 << 16;

/// Pinned buffers that nobody uses.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    pieces: Mutex<Vec<Pinned>>,
    pub notes: Mutex<Vec<Pinned>>,
}

/// The bytes of numbers.
fn bytes_of<T: Copy>(x: &[T]) -> &[u8] {
    // SAFETY: plain numbers without padding, readable as bytes.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// The place of an array that several threads write, each its own pieces.
#[derive(Clone, Copy)]
struct Place(*mut u8);
// SAFETY: no two threads write the same piece.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// The place of a byte.
    ///
    /// # Safety
    /// `byte` is less than the length of the array.
    unsafe fn at(&self, byte: usize) -> *mut u8 {
        // SAFETY: as promised.
        unsafe { self.0.add(byte) }
    }
}

impl Staging {
    /// The free buffers. A poisoned lock is fine: buffers are moved whole.
    fn free(&self) -> MutexGuard<'_, Vec<Pinned>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Makes so many buffers free, if no other transfer takes them.
    fn reserve(&self, context: &Arc<CudaContext>, n: usize) -> Result<(), DriverError> {
        let missing = n.saturating_sub(self.free().len());
        if missing > 0 {
            let made = Pinned::several(context, PIECE_BYTES, missing)?;
            self.free().extend(made);
        }
        Ok(())
    }
    fn take(&self, context: &Arc<CudaContext>) -> Result<Pinned, DriverError> {
        loop {
            if let Some(buffer) = self.free().pop() {
                return Ok(buffer);
            }
            self.reserve(context, 1)?;
        }
    }
    fn put(&self, buffer: Pinned) {
        self.free().push(buffer);
    }

    /// Cuts `length` bytes into pieces and calls `each` once per thread, with the pieces of that thread and two pinned
    /// buffers, or twice the same one if there is one piece.
    fn pieces(
        &self,
        context: &Arc<CudaContext>,
        length: usize,
        each: impl Fn(&[Range<usize>], [&Pinned; 2]) -> Result<(), DriverError> + Sync,
    ) -> Result<(), DriverError> {
        let all: Vec<Range<usize>> =
            (0..length).step_by(PIECE_BYTES).map(|at| at..length.min(at + PIECE_BYTES)).collect();
        let threads = threads_for(all.len());
        let work = |mine: &[Range<usize>]| {
            context.bind_to_thread()?;
            let first = self.take(context)?;
            let second = if mine.len() > 1 { Some(self.take(context)?) } else { None };
            let done = each(mine, [&first, second.as_ref().unwrap_or(&first)]);
            [Some(first), second].into_iter().flatten().for_each(|b| self.put(b));
            done
        };
        let shares: Vec<Vec<_>> =
            (0..threads).map(|t| all.iter().skip(t).step_by(threads).cloned().collect()).collect();
        self.reserve(context, shares.iter().map(|mine| mine.len().min(2)).sum())?;
        in_threads(threads, |t| work(&shares[t]))
    }

    /// Enqueues a copy of `data` to an address of the device. When the call returns, the caller may change `data`, unless it has
    /// fewer than [`MIN_STAGED_BYTES`] and is page-locked.
    ///
    /// # Safety
    /// `to` is a device address with room for `data.len()` numbers; `stream` is live.
    pub unsafe fn send<T: Copy>(
        &self,
        context: &Arc<CudaContext>,
        data: &[T],
        to: u64,
        stream: &CudaStream,
    ) -> Result<(), DriverError> {
        let data = bytes_of(data);
        if data.len() < MIN_STAGED_BYTES {
            context.bind_to_thread()?;
            // SAFETY: as promised. The driver reads pageable memory before it returns. Callers whose memory may be
            // page-locked wait before they return.
            return unsafe { result::memcpy_htod_async(to, data, stream.cu_stream()) };
        }
        self.pieces(context, data.len(), |mine, buffers| {
            for (k, piece) in mine.iter().enumerate() {
                let buffer = buffers[k % 2];
                buffer.event.synchronize()?;
                let part = &data[piece.clone()];
                // SAFETY: the buffer holds PIECE_BYTES, and its last copy is done. The event is recorded behind the
                // copy, in the same stream.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), buffer.at(), part.len());
                    let staged = std::slice::from_raw_parts(buffer.at().cast_const(), part.len());
                    result::memcpy_htod_async(to + piece.start as u64, staged, stream.cu_stream())?;
                    result::event::record(buffer.event.cu_event(), stream.cu_stream())?;
                }
            }
            Ok(())
        })
    }

    /// Copies several arrays of the device, each given by address and bytes, behind each other into `data`, after the
    /// work that is in `stream`, and waits once. They have fewer than [`PIECE_BYTES`] together, and go through one
    /// pinned buffer: the driver takes longer for other memory, and waits for each copy.
    ///
    /// # Safety
    /// The parts are memory of the device, as many bytes as `data` together; `stream` is live.
    pub unsafe fn receive_parts(
        &self,
        context: &Arc<CudaContext>,
        parts: &[(u64, usize)],
        data: &mut [u8],
        stream: &CudaStream,
    ) -> Result<(), DriverError> {
        debug_assert!(data.len() <= PIECE_BYTES && data.len() == parts.iter().map(|part| part.1).sum());
        context.bind_to_thread()?;
        let buffer = self.take(context)?;
        // An earlier transfer to the device may still read the buffer, in the same stream.
        let mut copy = || {
            let mut at = 0;
            for &(from, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0) {
                // SAFETY: as promised; the buffer holds PIECE_BYTES, and is read after the wait.
                unsafe {
                    let staged = std::slice::from_raw_parts_mut(buffer.at().add(at), bytes);
                    result::memcpy_dtoh_async(staged, from, stream.cu_stream())?;
                }
                at += bytes;
            }
            // SAFETY: the stream is live, and the copies are done after the wait.
            unsafe {
                result::stream::synchronize(stream.cu_stream())?;
                std::ptr::copy_nonoverlapping(buffer.at(), data.as_mut_ptr(), data.len());
            }
            Ok(())
        };
        let done = copy();
        self.put(buffer);
        done
    }

    /// Copies numbers from an address of the device into `data`, after the work that is in `stream`, and waits.
    ///
    /// # Safety
    /// `from` is a device address of `data.len()` numbers; `stream` is live.
    pub unsafe fn receive<T: Copy>(
        &self,
        context: &Arc<CudaContext>,
        from: u64,
        data: &mut [T],
        stream: &CudaStream,
    ) -> Result<(), DriverError> {
        let length = size_of_val(data);
        let to = Place(data.as_mut_ptr().cast());
        if length < MIN_STAGED_BYTES {
            // SAFETY: as promised; the bytes are those of `data`, plain numbers.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to.0, length) };
            // SAFETY: as promised.
            return unsafe { self.receive_parts(context, &[(from, length)], bytes, stream) };
        }
        self.pieces(context, length, |mine, buffers| {
            let finish = |k: usize| {
                let (buffer, piece) = (buffers[k % 2], &mine[k]);
                buffer.event.synchronize()?;
                // SAFETY: the copy from the device is done, and this thread alone writes the piece.
                unsafe { std::ptr::copy_nonoverlapping(buffer.at(), to.at(piece.start), piece.len()) };
                Ok::<_, DriverError>(())
            };
            for (k, piece) in mine.iter().enumerate() {
                let buffer = buffers[k % 2];
                // An earlier transfer to the device may still read the buffer.
                buffer.event.synchronize()?;
                // SAFETY: the buffer holds PIECE_BYTES. It is read after its event.
                unsafe {
                    let staged = std::slice::from_raw_parts_mut(buffer.at(), piece.len());
                    result::memcpy_dtoh_async(staged, from + piece.start as u64, stream.cu_stream())?;
                    result::event::record(buffer.event.cu_event(), stream.cu_stream())?;
                }
                if k > 0 {
                    finish(k - 1)?;
                }
            }
            if mine.is_empty() { Ok(()) } else { finish(mine.len() - 1) }
        })
    }
}

impl Device {
    /// Enqueues a copy of `data` to `to`, the address of as many numbers.
    ///
    /// # Safety
    /// `to` is the address of as many numbers of this device.
    pub(crate) unsafe fn send<T: Copy>(&self, data: &[T], to: u64, what: &str) -> Result<(), Error> {
        let (staging, context, stream) = self.staging();
        // SAFETY: as promised; the stream lives as long as the device.
        unsafe { staging.send(context, data, to, stream) }.map_err(|e| failed(what, e))
    }

    /// [`Staging::receive_parts`], after all enqueued work.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn receive_parts(
        &self,
        parts: &[(u64, usize)],
        data: &mut [u8],
        what: &str,
    ) -> Result<(), Error> {
        let (staging, context, stream) = self.staging();
        // SAFETY: as promised; the stream lives as long as the device.
        unsafe { staging.receive_parts(context, parts, data, stream) }.map_err(|e| failed(what, e))
    }

    /// Copies numbers from `from`, after all enqueued work, and waits.
    ///
    /// # Safety
    /// `from` is the address of as many numbers of this device.
    pub(crate) unsafe fn receive<T: Copy>(&self, from: u64, data: &mut [T], what: &str) -> Result<(), Error> {
        let (staging, context, stream) = self.staging();
        // SAFETY: as promised.
        unsafe { staging.receive(context, from, data, stream) }.map_err(|e| failed(what, e))
    }
}
