//! Device memory that other processes of this machine read.
//!
//! A process gives out a handle of its memory, and another one opens it: the memory then has an address there. The driver
//! forbids freeing memory that is open elsewhere, and a process does not know when another one has closed it. So such memory
//! is never given back to the driver while the process lives, but taken again for later messages, and what was opened stays
//! open.

use super::Device;
use crate::error::failed;
use cudarc::driver::{DriverError, result, sys};
use fmm_traits::Error;
use std::collections::{BTreeSet, HashMap};
use std::fs::read_to_string;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The driver gives out memory in blocks of two megabytes. A handle is that of a whole block.
const BLOCK_BYTES: usize = 2 << 20;

/// The name of some memory in other processes.
pub(crate) type Handle = [u8; 64];

/// Memory that other processes may have opened, and memory of theirs that is open here.
#[derive(Debug, Default)]
pub(super) struct ForProcesses {
    /// Memory that no message uses: bytes and address.
    free: Mutex<BTreeSet<(usize, u64)>>,
    /// Bytes at each address, in use or not.
    rooms: Mutex<HashMap<u64, usize>>,
    /// Addresses here of memory of other processes.
    opened: Mutex<HashMap<Handle, u64>>,
}

/// The lock of a collection. A poisoned lock is fine: entries are moved whole.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of the memory for a message of so many bytes: a power of two. Messages that grow and grow then leave no more unused
/// memory behind than the last one takes.
fn room(bytes: usize) -> usize {
    bytes.max(BLOCK_BYTES).next_power_of_two()
}

/// The boot id of this machine: the same for all its processes; empty if unknown.
pub(crate) fn machine() -> String {
    read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

impl Device {
    /// Uninitialised memory for a message of `bytes` bytes that another process reads: an address for
    /// [`free_for_processes`](Device::free_for_processes). Takes the smallest free block that is
    /// large enough, or allocates one.
    pub(crate) fn alloc_for_processes(&self, bytes: usize, what: &str) -> Result<u64, Error> {
        let (ours, room) = (&self.inner.for_processes, room(bytes));
        let mut free = locked(&ours.free);
        if let Some(&smallest) = free.range((room, 0)..).next() {
            free.remove(&smallest);
            return Ok(smallest.1);
        }
        drop(free);
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        // SAFETY: the caller writes the memory before it is read.
        let alloc = || unsafe { result::malloc_sync(room) };
        let address = self.asked(alloc, || self.give_back().map(|()| true), room, what)?;
        locked(&ours.rooms).insert(address, room);
        Ok(address)
    }

    /// Keeps memory for a later message.
    pub(crate) fn free_for_processes(&self, address: u64) {
        let ours = &self.inner.for_processes;
        if let Some(&room) = locked(&ours.rooms).get(&address) {
            locked(&ours.free).insert((room, address));
        }
    }

    /// The handle by which another process opens memory of [`alloc_for_processes`](Device::alloc_for_processes).
    pub(crate) fn handle_of(&self, address: u64) -> Result<Handle, Error> {
        let failing = |e: DriverError| failed("a handle of memory for other processes", e);
        self.inner.context.bind_to_thread().map_err(failing)?;
        let mut handle = MaybeUninit::<sys::CUipcMemHandle>::uninit();
        // SAFETY: the address is that of an allocation; the call fills the handle.
        let handle = unsafe {
            sys::cuIpcGetMemHandle(handle.as_mut_ptr(), address).result().map_err(failing)?;
            handle.assume_init()
        };
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// The address here of memory of another process, which stays open. The context of the device is then bound to this
    /// thread.
    pub(crate) fn opened(&self, handle: &Handle) -> Result<u64, Error> {
        let failing = |e: DriverError| failed("opening memory of another process", e);
        self.inner.context.bind_to_thread().map_err(failing)?;
        let mut opened = locked(&self.inner.for_processes.opened);
        if let Some(&address) = opened.get(handle) {
            return Ok(address);
        }
        let (mut address, raw) = (0, sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) });
        let access = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: another process has made the handle, which the driver checks.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, raw, access) }.result().map_err(failing)?;
        opened.insert(*handle, address);
        Ok(address)
    }
}
