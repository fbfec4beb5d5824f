//! One GPU: opening it, its streams and events. `memory`, `processes`, `programs`, `launches` and `signature` have the
//! rest.

mod launches;
mod ledger;
mod memory;
mod processes;
mod programs;
mod signature;

pub(crate) use launches::{Arg, ByItem, MAX_WALKING_BLOCKS, blocks};
pub(crate) use memory::Buffer;
pub(crate) use processes::{Handle, machine};
pub(crate) use programs::Functions;
use programs::Loaded;

use self::ledger::Ledger;
use self::processes::ForProcesses;
use crate::compile::compiler;
use crate::error::{failed, no_device};
use crate::graph::{self, Graph, Lane};
use crate::pinned::joined;
use crate::pool::{Origin, Pool, Shelves};
use crate::transfer::Staging;
use cudarc::driver::sys::{self, CUdevice_attribute, CUevent_flags, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};
use fmm_traits::Error;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Priority of the first stream. Lower numbers come first; the second stream has 0.
pub(crate) const FIRST_STREAM_PRIORITY: i32 = -1;

/// The number of a device, and its cache folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceOptions {
    /// Number of the device.
    pub ordinal: usize,
    /// Folder that keeps compiled programs between runs. `None`: each process compiles them.
    pub cache: Option<PathBuf>,
    /// Bytes that arrays of this process may take on the device, those of other plans and of callers included; `None`:
    /// all that are free. Memory that the driver takes for programs does not count.
    pub memory: Option<u64>,
}

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the device.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// Largest amount of shared memory per block, in bytes.
    pub shared_memory: u64,
    /// Newest CUDA that the driver supports, as 1000·major + 10·minor.
    pub driver: i32,
    /// Version of the run-time compiler.
    pub compiler: (i32, i32),
}

/// An opened GPU. Work is enqueued on one stream, in order. Between a `fork` and a
/// `join`, a second stream takes work that may run beside the first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
    /// Folder that keeps compiled programs between runs.
    cache: Option<PathBuf>,
    /// [`DeviceOptions::memory`].
    memory: Option<u64>,
}

#[derive(Debug)]
struct Inner {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    beside: Arc<CudaStream>,
    /// The pool of buffers. `None` if the driver has no pools.
    pool: Option<Pool>,
    /// Freed buffers of the pool; `None` without a pool.
    shelves: Option<Arc<Shelves>>,
    /// Freed memory that other devices may read; `None` without a pool, so that an emulated device sees every array.
    for_others: Option<Shelves>,
    for_processes: ForProcesses,
    ledger: Arc<Ledger>,
    staging: Staging,
    info: DeviceInfo,
    /// Loaded programs, by fingerprint.
    programs: Mutex<HashMap<String, Loaded>>,
    /// Loaded programs without parameters, by name.
    fixed: Mutex<HashMap<&'static str, Loaded>>,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] without driver, device or run-time compiler, and [`Error::Device`] if the driver refuses.
    pub fn open(options: &DeviceOptions) -> Result<Device, Error> {
        // SAFETY: the call only opens libraries.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDevice { reason: "the driver's library libcuda is not there".to_string() });
        }
        // The library of the compiler is loaded while the driver makes the context.
        let device = std::thread::scope(|scope| {
            let loading = scope.spawn(compiler);
            Device::with(options, || joined(loading))
        })?;
        // The first array that a pool gives takes as long as a small sum, whatever its size.
        device.alloc::<u8>(1, "the first array")?;
        Ok(device)
    }

    /// Opens a device. `compiler` returns the version of the compiler.
    fn with(options: &DeviceOptions, compiler: impl FnOnce() -> Result<(i32, i32), Error>) -> Result<Device, Error> {
        result::init().map_err(no_device)?;
        let count = CudaContext::device_count().map_err(no_device)?;
        if options.ordinal as i64 >= count as i64 {
            let reason = format!("device {} was asked for, there are {count}", options.ordinal);
            return Err(Error::NoDevice { reason });
        }
        let context = CudaContext::new(options.ordinal).map_err(no_device)?;
        let compiler = compiler()?;
        let info = |e: DriverError| failed("asking for the properties of the device", e);
        let (major, minor) = context.compute_capability().map_err(info)?;
        let multiprocessors =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(info)?;
        let shared = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_memory = context.attribute(shared).map_err(info)? as u64;
        let mut driver = 0;
        // SAFETY: the number outlives the call.
        unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(info)?;
        let info = DeviceInfo {
            name: context.name().map_err(info)?,
            capability: (major as u32, minor as u32),
            multiprocessors: multiprocessors as u32,
            memory: context.total_mem().map_err(info)? as u64,
            shared_memory,
            driver,
            compiler,
        };
        // SAFETY: buffers belong to the first stream; work on the second stream is forked from it and joined to it.
        unsafe { context.disable_event_tracking() };
        // The first stream has priority. The second stream uses the parts of the device that the first leaves idle.
        let making = |e: DriverError| failed("making a stream", e);
        let stream = context.new_stream_with_priority(FIRST_STREAM_PRIORITY).map_err(making)?;
        let beside = context.new_stream().map_err(making)?;
        let pool = if context.has_async_alloc() { Some(Pool::keep(&context)?) } else { None };
        let shelves = pool.is_some().then(|| Arc::new(Shelves::new(Origin::Pool(stream.clone()), info.memory)));
        let for_others = pool.is_some().then(|| Shelves::new(Origin::Driver(context.clone()), info.memory));
        let inner = Inner {
            context,
            stream,
            beside,
            pool,
            shelves,
            for_others,
            for_processes: ForProcesses::default(),
            ledger: Arc::default(),
            staging: Staging::default(),
            info,
            programs: Mutex::default(),
            fixed: Mutex::default(),
        };
        Ok(Device { inner: Arc::new(inner), cache: options.cache.clone(), memory: options.memory })
    }

    /// The device of the same number opened before, or else [`open`](Device::open). All users of one device share its
    /// streams, its memory and its loaded programs, whatever their cache folders.
    ///
    /// # Errors
    /// As [`open`](Device::open).
    pub fn shared(options: &DeviceOptions) -> Result<Device, Error> {
        static OPENED: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
        // A poisoned lock is fine: entries are inserted whole.
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = opened.iter().find(|(ordinal, _)| *ordinal == options.ordinal) {
            let (inner, cache) = (device.inner.clone(), options.cache.clone());
            return Ok(Device { inner, cache, memory: options.memory });
        }
        let device = Device::open(options)?;
        opened.push((options.ordinal, device.clone()));
        Ok(device)
    }

    /// Whether both are the same opened device.
    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Bytes of free device memory, including memory that this process keeps for new buffers; at most what is left of
    /// [`DeviceOptions::memory`].
    pub fn free_memory(&self) -> Result<u64, Error> {
        let free = self.inner.context.mem_get_info().map_err(|e| failed("asking for free memory", e))?.0 as u64;
        let for_others = self.inner.for_others.as_ref().map_or(0, Shelves::bytes);
        let kept = self.kept_memory()? + for_others;
        Ok((free + kept).min(self.allowance().unwrap_or(u64::MAX)))
    }

    /// Bytes that arrays of this process may take in all, those that they hold included.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn memory_of_arrays(&self) -> Result<u64, Error> {
        Ok(self.free_memory()? + self.inner.ledger.now())
    }

    /// Bytes of device memory that plans may use: all of it, or the limit of [`DeviceOptions::memory`].
    pub(crate) fn usable_memory(&self) -> u64 {
        self.memory.map_or(self.inner.info.memory, |limit| limit.min(self.inner.info.memory))
    }

    /// What is left of [`DeviceOptions::memory`]; `None` without a limit.
    pub(crate) fn allowance(&self) -> Option<u64> {
        self.memory.map(|limit| limit.saturating_sub(self.inner.ledger.now()))
    }

    /// Enters the arrays of the device by name from now on, for [`most_memory`](Device::most_memory).
    pub fn watch_memory(&self) {
        self.inner.ledger.begin();
    }

    /// Names and bytes of the arrays that were held at once when they took the most memory, since
    /// [`watch_memory`](Device::watch_memory); the largest first. Arrays of one name are one row.
    pub fn most_memory(&self) -> Vec<(String, u64)> {
        self.inner.ledger.at_most()
    }

    /// Bytes of memory that is kept for new buffers. The driver answers at once, unlike for
    /// [`free_memory`](Device::free_memory).
    pub(crate) fn kept_memory(&self) -> Result<u64, Error> {
        let on_shelves = self.inner.shelves.as_ref().map_or(0, |shelves| shelves.bytes());
        let kept = on_shelves + self.inner.pool.as_ref().map_or(Ok(0), Pool::unused)?;
        Ok(kept.min(self.allowance().unwrap_or(u64::MAX)))
    }

    /// Gives memory that is kept for new buffers back to the driver, after all enqueued work.
    pub(crate) fn give_back(&self) -> Result<(), Error> {
        self.clear_shelves();
        self.synchronize()?;
        self.inner.pool.as_ref().map_or(Ok(()), Pool::trim)
    }

    /// Gives freed buffers back to the driver, or to its pool. Returns whether there were any.
    pub(crate) fn clear_shelves(&self) -> bool {
        let pooled = self.inner.shelves.as_ref().is_some_and(|shelves| shelves.clear());
        self.inner.for_others.as_ref().is_some_and(Shelves::clear) || pooled
    }

    /// Bytes that the process has taken from the device for buffers, used or kept in the pool. 0 without a pool.
    pub fn reserved_memory(&self) -> Result<u64, Error> {
        self.inner.pool.as_ref().map_or(Ok(0), Pool::reserved)
    }

    /// What transfers need: pinned buffers, the context and the first stream.
    pub(crate) fn staging(&self) -> (&Staging, &Arc<CudaContext>, &CudaStream) {
        (&self.inner.staging, &self.inner.context, &self.inner.stream)
    }

    /// One of the two streams.
    pub(crate) fn stream(&self, lane: Lane) -> &CudaStream {
        match lane {
            Lane::First => &self.inner.stream,
            Lane::Beside => &self.inner.beside,
        }
    }

    /// The primary context of the device.
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// An event after all work that is now in the first stream.
    pub(crate) fn event(&self) -> Result<CudaEvent, Error> {
        self.inner.stream.record_event(None).map_err(|e| failed("recording an event", e))
    }

    /// Waits until all enqueued work is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.inner.stream.synchronize().map_err(|e| failed("waiting for the device", e))
    }

    /// Makes later work on the second stream wait for the work that is now in the first.
    pub(crate) fn fork(&self) -> Result<(), Error> {
        if graph::wait(Lane::Beside, Lane::First) {
            return Ok(());
        }
        self.inner.beside.join(&self.inner.stream).map_err(|e| failed("forking a stream", e))
    }

    /// Makes later work on the first stream wait for the work that is now in the second.
    pub(crate) fn join(&self) -> Result<(), Error> {
        if graph::wait(Lane::First, Lane::Beside) {
            return Ok(());
        }
        self.inner.stream.join(&self.inner.beside).map_err(|e| failed("joining a stream", e))
    }

    /// [`join`](Device::join), or if the driver refuses to join, a wait of the host for the second stream. If that fails
    /// too, the device refuses all later work, which then reports the error.
    pub(crate) fn join_or_wait(&self) {
        if self.join().is_err() {
            let _ = self.inner.beside.synchronize();
        }
    }

    /// Runs `work`, which enqueues on the first stream, in the order of a stream of the caller: after the work that
    /// is now in `stream`, and before work that `stream` gets later.
    ///
    /// # Safety
    /// `stream` is a live stream of this device's primary context, or null for the default stream.
    pub(crate) unsafe fn within(
        &self,
        stream: CUstream,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let failing = |e: DriverError| failed("waiting for a stream of the caller", e);
        let mark = self.inner.context.new_event(None).map_err(failing)?;
        let now = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives until both streams have it; `stream` is live by the caller's promise.
        unsafe {
            result::event::record(mark.cu_event(), stream).map_err(failing)?;
            self.inner.stream.wait(&mark).map_err(failing)?;
            // Even after an error, work that was already enqueued uses the caller's arrays, so the stream must wait.
            let done = work();
            result::event::record(mark.cu_event(), self.inner.stream.cu_stream()).map_err(failing)?;
            result::stream::wait_event(stream, mark.cu_event(), now).map_err(failing)?;
            done
        }
    }

    /// Records the work that `work` enqueues, instead of running it: [`Graph::record`].
    pub(crate) fn record(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        Graph::record(&self.inner.stream, work)
    }

    /// A time mark in the first stream.
    pub(crate) fn mark(&self) -> Result<CudaEvent, Error> {
        self.inner
            .stream
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(|e| failed("recording an event", e))
    }

    /// A time mark in the second stream.
    pub(crate) fn mark_beside(&self) -> Result<CudaEvent, Error> {
        self.inner
            .beside
            .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
            .map_err(|e| failed("recording an event", e))
    }

    /// Seconds between two marks; waits for the second.
    pub(crate) fn seconds(&self, from: &CudaEvent, to: &CudaEvent) -> Result<f64, Error> {
        from.elapsed_ms(to).map(|ms| ms as f64 * 1e-3).map_err(|e| failed("timing", e))
    }
}
