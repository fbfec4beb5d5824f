//! Device memory that is kept for reuse: the driver's pool, and shelves of freed buffers.

use crate::error::failed;
use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use fmm_traits::Error;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The driver's memory pool of a device. Freed buffers stay in it, so that the next plan of the same size takes no
/// memory from the driver. By default the driver would take freed memory back at every synchronisation, which costs
/// more time than the work on small trees.
#[derive(Debug)]
pub(crate) struct Pool(CUmemoryPool);
// SAFETY: a handle of the driver, whose calls may come from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The pool of the device, set to keep freed memory.
    pub fn keep(context: &CudaContext) -> Result<Pool, Error> {
        let asking = |e: DriverError| failed("asking for the pool of memory", e);
        let mut threshold = u64::MAX;
        let (attribute, value) = (CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &raw mut threshold);
        // SAFETY: the device exists, and the attribute is a number of 64 bits.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).map_err(asking)?;
            result::mem_pool::set_attribute(pool, attribute, value.cast()).map_err(asking)?;
            Ok(Pool(pool))
        }
    }
    fn number(&self, attribute: CUmemPool_attribute) -> Result<u64, Error> {
        let mut bytes = 0u64;
        // SAFETY: the pool belongs to a device, and both attributes are numbers of 64 bits.
        unsafe { result::mem_pool::get_attribute(self.0, attribute, (&raw mut bytes).cast()) }
            .map_err(|e| failed("asking for the pool of memory", e))?;
        Ok(bytes)
    }
    /// Bytes taken from the driver.
    pub fn reserved(&self) -> Result<u64, Error> {
        self.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }
    /// Gives memory that no buffer uses back to the driver.
    pub fn trim(&self) -> Result<(), Error> {
        // SAFETY: the pool belongs to a device.
        unsafe { result::mem_pool::trim_to(self.0, 0) }.map_err(|e| failed("giving back memory", e))
    }
    /// Bytes taken from the driver that no buffer uses.
    pub fn unused(&self) -> Result<u64, Error> {
        Ok(self.reserved()?.saturating_sub(self.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
    }
}

/// Bytes of the largest buffers that the shelves take. Where larger buffers are needed, memory may be short.
const MAX_SHELVED: usize = 4 << 30;
/// Bytes of the smallest room on a shelf.
const MIN_ROOM: usize = 512;
/// Bytes up to which rooms are a quarter of a power of two apart. Larger rooms are a sixteenth apart, to waste less.
const MAX_COARSE: usize = 16 << 20;
/// Part of the memory of a device that freed buffers may hold on shelves.
const SHARE_OF_MEMORY: u64 = 8;
/// Part of the memory of a device that freed memory for other devices may hold.
const SHARE_FOR_OTHERS: u64 = 32;

/// Where the memory on shelves comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The pool, in the order of a stream.
    Pool(Arc<CudaStream>),
    /// Outside the pool: memory that other devices may read.
    Driver(Arc<CudaContext>),
}

impl Origin {
    /// Gives memory back.
    pub fn free(&self, address: u64) {
        match self {
            // SAFETY: the memory is free, and was allocated in this stream. The slice frees it.
            Origin::Pool(stream) => drop(unsafe { stream.upgrade_device_ptr::<u8>(address, 1) }),
            Origin::Driver(context) => {
                if context.bind_to_thread().is_ok() {
                    // SAFETY: the memory is free, and comes from `malloc_sync`.
                    let _ = unsafe { result::free_sync(address) };
                }
            }
        }
    }
}

/// Freed buffers of one device, by size. Planning makes and frees some two hundred arrays. A call of the driver for each
/// takes longer than the work on small trees, and large arrays take the driver longer still. Buffers of the pool belong to
/// the first stream, so a freed buffer may be taken at once. Work on the second stream uses buffers too; whoever enqueues
/// such work joins the streams before the buffers are freed (`Device::join_or_wait`).
#[derive(Debug)]
pub(crate) struct Shelves {
    origin: Origin,
    kept: Mutex<Kept>,
}

/// Addresses of the buffers on each shelf, and their bytes together.
#[derive(Debug, Default)]
struct Kept {
    by_room: HashMap<usize, Vec<u64>>,
    bytes: usize,
    /// Largest number of bytes.
    most: usize,
}

impl Kept {
    fn take(&mut self, room: usize) -> Option<u64> {
        let address = self.by_room.get_mut(&room)?.pop()?;
        self.bytes -= room;
        Some(address)
    }
    fn put(&mut self, address: u64, room: usize) -> bool {
        let fits = self.bytes + room <= self.most;
        if fits {
            self.by_room.entry(room).or_default().push(address);
            self.bytes += room;
        }
        fits
    }
}

impl Shelves {
    /// Empty shelves on a device with so much memory.
    pub fn new(origin: Origin, memory: u64) -> Self {
        let share = match origin {
            Origin::Pool(_) => SHARE_OF_MEMORY,
            Origin::Driver(_) => SHARE_FOR_OTHERS,
        };
        let most = (memory / share) as usize;
        Shelves { origin, kept: Mutex::new(Kept { most, ..Kept::default() }) }
    }
    /// Whether buffers of so many bytes lie on these shelves.
    pub fn hold(&self, bytes: usize) -> bool {
        bytes <= MAX_SHELVED && Shelves::room(bytes) <= self.kept().most
    }
    /// Bytes that a buffer of `bytes` bytes takes: the next of 1, 1¼, 1½, 1¾ times a power of two; beyond
    /// [`MAX_COARSE`] in steps of a sixteenth.
    pub fn room(bytes: usize) -> usize {
        let bytes = bytes.max(MIN_ROOM);
        let steps = if bytes <= MAX_COARSE { 2 } else { 4 };
        bytes.next_multiple_of(1 << (bytes.ilog2() - steps))
    }
    // A poisoned lock is fine: addresses are moved whole.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The address of a freed buffer with room for so many bytes.
    pub fn take(&self, bytes: usize) -> Option<u64> {
        self.kept().take(Shelves::room(bytes))
    }
    /// Gives back a buffer of so many bytes, or keeps it.
    pub fn free(&self, address: u64, bytes: usize) {
        if !(self.hold(bytes) && self.put(address, bytes)) {
            self.origin.free(address);
        }
    }
    /// Keeps a freed buffer of so many bytes, unless there are too many. Returns whether it was kept.
    pub fn put(&self, address: u64, bytes: usize) -> bool {
        self.kept().put(address, Shelves::room(bytes))
    }
    /// Bytes of all freed buffers.
    pub fn bytes(&self) -> u64 {
        self.kept().bytes as u64
    }
    /// Gives all freed buffers back to the driver. Returns whether there were any.
    pub fn clear(&self) -> bool {
        let mut kept = self.kept();
        for address in kept.by_room.drain().flat_map(|(_, addresses)| addresses) {
            self.origin.free(address);
        }
        std::mem::take(&mut kept.bytes) > 0
    }
}

impl Drop for Shelves {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_waste_little() {
        for bytes in (1..5000).chain([MAX_COARSE, MAX_COARSE + 1, MAX_SHELVED - 1, MAX_SHELVED]) {
            let (room, part) = (Shelves::room(bytes), if bytes <= MAX_COARSE { 4 } else { 16 });
            assert!(room >= bytes && (bytes < MIN_ROOM || part * (room - bytes) < bytes), "{bytes}: {room}");
            assert_eq!(Shelves::room(room), room);
        }
    }

    #[test]
    fn freed_buffers_are_taken_again_up_to_a_bound() {
        let mut kept = Kept { most: 4096, ..Kept::default() };
        assert_eq!(kept.take(1024), None);
        assert!(kept.put(7, 1024));
        assert_eq!((kept.take(2048), kept.take(1024), kept.take(1024)), (None, Some(7), None));
        assert!((0..4).all(|k| kept.put(k, 1024)) && !kept.put(4, 1024));
        assert_eq!(kept.bytes, 4096);
    }
}
