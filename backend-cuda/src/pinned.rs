//! Pinned memory of the host, which the bus reads and writes at full speed.
//!
//! The driver takes half a millisecond to make a megabyte of it: the system hands out one page of 4 KB after the other.
//! A region of huge pages, touched by several threads and then pinned as a whole, takes a tenth of that (measured in
//! docs/notes/gpu-performance.md).

use crate::device::Device;
use crate::error::failed;
use cudarc::driver::sys;
use cudarc::driver::{CudaContext, CudaEvent, DriverError, result};
use fmm_traits::Error;
use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Arc, PoisonError};
use std::thread;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Largest number of threads that touch pages, and that copy. One core copies 6 to 12 GB/s, the bus of one NVIDIA H200
/// moves 55 GB/s.
pub(crate) const MAX_THREADS: usize = 10;
/// Bytes of a pinned note.
pub(crate) const NOTE_BYTES: usize = 64;
/// Number of notes that are made together.
const NOTES_TOGETHER: usize = 16;

/// Number of threads for so many pieces of work.
pub(crate) fn threads_for(pieces: usize) -> usize {
    fmm_traits::cores().min(MAX_THREADS).min(pieces).max(1)
}

/// Calls `work` with the numbers 0 to `threads` − 1, each in a thread of its own and 0 in this one, and waits for all.
///
/// # Errors
/// The first error, by number.
pub(crate) fn in_threads<E: Send>(threads: usize, work: impl Fn(usize) -> Result<(), E> + Sync) -> Result<(), E> {
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || work(t))).collect();
        let mut done = work(0);
        for other in others {
            done = done.and(joined(other));
        }
        done
    })
}

/// What a thread returns. Panics go on.
pub(crate) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A region of pinned memory.
#[derive(Debug)]
struct Region {
    context: Arc<CudaContext>,
    at: *mut u8,
    /// The layout of memory of this process; `None` for memory of the driver.
    layout: Option<Layout>,
}
// SAFETY: an address, whose bytes belong to the owners of the buffers in the region.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Region, DriverError> {
        context.bind_to_thread()?;
        let page = if bytes < HUGE_PAGE { PAGE } else { HUGE_PAGE };
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(page), page).ok();
        // SAFETY: the layout has bytes.
        let own = layout.map(|layout| (layout, unsafe { alloc(layout) })).filter(|(_, at)| !at.is_null());
        if let Some((layout, at)) = own {
            touch(at, layout);
            // SAFETY: the region is memory of this process, and is unpinned before it is freed.
            if unsafe { sys::cuMemHostRegister_v2(at.cast(), layout.size(), 0) }.result().is_ok() {
                return Ok(Region { context: context.clone(), at, layout: Some(layout) });
            }
            // SAFETY: from `alloc` with this layout.
            unsafe { dealloc(at, layout) };
        }
        // SAFETY: plain memory, freed by `drop`.
        let at = unsafe { result::malloc_host(bytes, 0)? };
        Ok(Region { context: context.clone(), at: at.cast(), layout: None })
    }
}

/// Asks for huge pages, and lets several threads write to all pages.
fn touch(at: *mut u8, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.align() == HUGE_PAGE {
        // SAFETY: the region is whole pages of this process. Where there are no huge pages, nothing changes.
        unsafe { libc::madvise(at.cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
    /// The first byte of a part of the region.
    struct Part(*mut u8);
    // SAFETY: each part belongs to one thread.
    unsafe impl Send for Part {}
    let pages = layout.size() / layout.align();
    let each = pages.div_ceil(threads_for(pages)) * layout.align();
    thread::scope(|scope| {
        for start in (0..layout.size()).step_by(each) {
            // SAFETY: within the region.
            let part = Part(unsafe { at.add(start) });
            let bytes = each.min(layout.size() - start);
            let work = move || {
                let part = part;
                for page in (0..bytes).step_by(PAGE) {
                    // SAFETY: within this part, which nobody else uses.
                    unsafe { part.0.add(page).write_volatile(0) };
                }
            };
            if each < layout.size() {
                scope.spawn(work);
            } else {
                work();
            }
        }
    });
}

impl Drop for Region {
    fn drop(&mut self) {
        // If the device has failed, the process cannot use it any more, and the memory goes with the process.
        if self.context.bind_to_thread().is_err() {
            return;
        }
        // SAFETY: from `new`; no copy uses the memory any more. Memory that stays pinned is not freed.
        unsafe {
            match self.layout {
                None => drop(result::free_host(self.at.cast())),
                Some(layout) if sys::cuMemHostUnregister(self.at.cast()).result().is_ok() => dealloc(self.at, layout),
                Some(_) => {}
            }
        }
    }
}

/// A pinned buffer, and the event after its last use.
#[derive(Debug)]
pub(crate) struct Pinned {
    region: Arc<Region>,
    at: *mut u8,
    pub event: CudaEvent,
}
// SAFETY: the buffer belongs to its owner alone.
unsafe impl Send for Pinned {}
// SAFETY: whoever reads or writes the buffer owns it, or runs a transfer that does.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `n` buffers of `bytes` bytes each, in one region. They are aligned like `bytes`.
    pub fn several(context: &Arc<CudaContext>, bytes: usize, n: usize) -> Result<Vec<Pinned>, DriverError> {
        let region = Arc::new(Region::new(context, bytes * n)?);
        let buffer = |k: usize| {
            let event = context.new_event(None)?;
            // SAFETY: within the region, which has `n` times as many bytes.
            let at = unsafe { region.at.add(k * bytes) };
            Ok(Pinned { region: region.clone(), at, event })
        };
        (0..n).map(buffer).collect()
    }

    /// The first byte.
    pub fn at(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A device that has failed may still use the memory.
        if self.region.context.bind_to_thread().is_err() || self.event.synchronize().is_err() {
            std::mem::forget(self.region.clone());
        }
    }
}

/// [`NOTE_BYTES`] bytes of pinned memory, which go back to their device when they are dropped.
#[derive(Debug)]
pub(crate) struct Note {
    device: Device,
    /// `None` while dropped.
    buffer: Option<Pinned>,
}

impl Note {
    /// Pinned memory that no copy uses.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let (staging, context, _) = device.staging();
        let notes = || staging.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let free = notes().pop();
        let buffer = match free {
            Some(buffer) => buffer.event.synchronize().map(|()| Some(buffer)),
            None => Pinned::several(context, NOTE_BYTES, NOTES_TOGETHER).map(|mut made| {
                let buffer = made.pop();
                notes().extend(made);
                buffer
            }),
        };
        Ok(Note { device: device.clone(), buffer: buffer.map_err(|e| failed("pinned memory", e))? })
    }
    /// The memory.
    pub fn pinned(&self) -> &Pinned {
        self.buffer.as_ref().expect("only a drop takes the buffer")
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let notes = &self.device.staging().0.notes;
        notes.lock().unwrap_or_else(PoisonError::into_inner).extend(self.buffer.take());
    }
}
