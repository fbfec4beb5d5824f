//! One GPU: opening it, its memory, its programs, its launches. All calls of the driver are here.

use crate::cache;
use crate::compile::{Program, compile, compiler};
use crate::error::{failed, no_device, out_of_memory};
use crate::graph::{self, Graph, Lane, Launch};
use crate::pool::Pool;
use crate::transfer::Staging;
use cudarc::driver::sys::{self, CUdevice_attribute, CUevent_flags, CUfunction_attribute, CUstream};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, ValidAsZeroBits,
    result,
};
use cudarc::nvrtc::Ptx;
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

/// An opened GPU. Work is enqueued on one stream, in order. Between a [`fork`](Device::fork) and a
/// [`join`](Device::join), a second stream takes work that may run beside the first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
    /// Folder that keeps compiled programs between runs.
    cache: Option<PathBuf>,
}

#[derive(Debug)]
struct Inner {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    beside: Arc<CudaStream>,
    /// The pool of buffers. `None` if the driver has no pools.
    pool: Option<Pool>,
    staging: Staging,
    info: DeviceInfo,
    /// Loaded programs, by fingerprint.
    programs: Mutex<HashMap<String, Functions>>,
    /// Loaded programs without parameters, by name.
    fixed: Mutex<HashMap<&'static str, Functions>>,
}

/// The entry points of a loaded program, by name.
pub(crate) type Functions = Arc<HashMap<&'static str, CudaFunction>>;

/// An array in device memory.
#[derive(Debug)]
pub(crate) struct Buffer<T>(CudaSlice<T>, usize);

/// One argument of a kernel: sixteen bytes, of which the kernel reads as many as the argument's type has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg([u64; 2]);

impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg([x as u64, 0])
    }
}
impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg([x, 0])
    }
}
impl From<f64> for Arg {
    fn from(x: f64) -> Arg {
        Arg([x.to_bits(), 0])
    }
}
/// Two numbers of four bytes; a struct in the kernel.
impl From<[u32; 2]> for Arg {
    fn from([a, b]: [u32; 2]) -> Arg {
        Arg([a as u64 | (b as u64) << 32, 0])
    }
}
impl<T> From<&Buffer<T>> for Arg {
    fn from(b: &Buffer<T>) -> Arg {
        Arg([b.address(), 0])
    }
}
/// Two addresses; a struct in the kernel.
impl<T, U> From<(&Buffer<T>, &Buffer<U>)> for Arg {
    fn from((a, b): (&Buffer<T>, &Buffer<U>)) -> Arg {
        Arg([a.address(), b.address()])
    }
}

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
        Arg([self.address() + (i * size_of::<T>()) as u64, 0])
    }
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
        let inner = Inner {
            context,
            stream,
            beside,
            pool,
            staging: Staging::default(),
            info,
            programs: Mutex::default(),
            fixed: Mutex::default(),
        };
        Ok(Device { inner: Arc::new(inner), cache: options.cache.clone() })
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
            return Ok(Device { inner: device.inner.clone(), cache: options.cache.clone() });
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

    /// Bytes of free device memory, including memory kept in the pool for new buffers.
    pub fn free_memory(&self) -> Result<u64, Error> {
        let free = self.inner.context.mem_get_info().map_err(|e| failed("asking for free memory", e))?.0 as u64;
        let kept = self.inner.pool.as_ref().map_or(Ok(0), Pool::unused)?;
        Ok(free + kept)
    }

    /// Bytes that the process has taken from the device for buffers, used or kept in the pool. 0 without a pool.
    pub fn reserved_memory(&self) -> Result<u64, Error> {
        self.inner.pool.as_ref().map_or(Ok(0), Pool::reserved)
    }

    /// What transfers need: pinned buffers, the context and the first stream.
    pub(crate) fn staging(&self) -> (&Staging, &Arc<CudaContext>, &CudaStream) {
        (&self.inner.staging, &self.inner.context, &self.inner.stream)
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

    /// Loads `program`: from memory, else from the disk cache, else compiled.
    pub(crate) fn load(&self, program: &Program) -> Result<Functions, Error> {
        let info = &self.inner.info;
        let fingerprint = program.fingerprint(info.capability, info.compiler, info.driver);
        // A poisoned lock is fine: entries are inserted whole.
        let mut programs = self.inner.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = programs.get(&fingerprint) {
            return Ok(functions.clone());
        }
        let folder = self.cache.as_deref();
        let cubin = match folder.and_then(|f| cache::load(f, &fingerprint)) {
            Some(cubin) => cubin,
            None => {
                let cubin = compile(program, info.capability)?.cubin;
                if let Some(folder) = folder {
                    cache::store(folder, &fingerprint, &cubin)?;
                }
                cubin
            }
        };
        let loading = |e: DriverError| failed(&format!("loading {}", program.name), e);
        let module = self.inner.context.load_module(Ptx::from_binary(cubin)).map_err(loading)?;
        let mut functions = HashMap::new();
        for &entry in program.entries {
            functions.insert(entry, module.load_function(entry).map_err(loading)?);
        }
        let functions = Arc::new(functions);
        programs.insert(fingerprint, functions.clone());
        Ok(functions)
    }

    /// [`load`](Device::load) of a program whose kernels are launched with `bytes` of dynamic shared memory.
    pub(crate) fn load_sharing(&self, program: &Program, bytes: usize) -> Result<Functions, Error> {
        let functions = self.load(program)?;
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        for function in functions.values() {
            let set = function.set_attribute(most, bytes as i32);
            set.map_err(|e| failed(&format!("{bytes} bytes of shared memory for {}", program.name), e))?;
        }
        Ok(functions)
    }

    /// [`load`](Device::load) of a program without parameters. `program` is called only on the first use of `name`.
    pub(crate) fn fixed(&self, name: &'static str, program: fn() -> Program) -> Result<Functions, Error> {
        let known =
            |device: &Device| device.inner.fixed.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(functions) = known(self) {
            return Ok(functions);
        }
        let functions = self.load(&program())?;
        self.inner.fixed.lock().unwrap_or_else(PoisonError::into_inner).insert(name, functions.clone());
        Ok(functions)
    }

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

    /// Enqueues filling a whole buffer with zeros.
    pub(crate) fn clear<T: DeviceRepr + ValidAsZeroBits>(&self, buffer: &mut Buffer<T>) -> Result<(), Error> {
        let done = graph::clear(buffer.address(), buffer.bytes() as usize);
        done.unwrap_or_else(|| self.inner.stream.memset_zeros(&mut buffer.0)).map_err(|e| failed("clearing memory", e))
    }

    /// Enqueues filling `bytes` bytes with zeros.
    ///
    /// # Safety
    /// `address` is the address of as many bytes.
    pub(crate) unsafe fn clear_bytes(&self, address: u64, bytes: usize, what: &str) -> Result<(), Error> {
        self.inner.context.bind_to_thread().map_err(|e| failed(what, e))?;
        // SAFETY: as promised.
        unsafe { result::memset_d8_async(address, 0, bytes, self.inner.stream.cu_stream()) }
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

    /// Enqueues a kernel. Does nothing when the grid is empty.
    ///
    /// # Safety
    /// `args` are the arguments of the kernel, in order and each with the right type. Every address is valid for the
    /// accesses that the kernel makes.
    pub(crate) unsafe fn launch(
        &self,
        functions: &Functions,
        entry: &'static str,
        grid: (u32, u32),
        block: u32,
        args: &[Arg],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_3d(functions, entry, [grid.0, grid.1, 1], block, args) }
    }

    /// [`launch`](Device::launch) with a grid of three dimensions.
    ///
    /// # Safety
    /// As for [`launch`](Device::launch).
    pub(crate) unsafe fn launch_3d(
        &self,
        functions: &Functions,
        entry: &'static str,
        grid: [u32; 3],
        block: u32,
        args: &[Arg],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_on(Lane::First, functions, entry, grid, (block, 0), args) }
    }

    /// [`launch_3d`](Device::launch_3d) with `bytes` of dynamic shared memory.
    ///
    /// # Safety
    /// As for [`launch`](Device::launch).
    pub(crate) unsafe fn launch_sharing(
        &self,
        functions: &Functions,
        entry: &'static str,
        grid: [u32; 3],
        (block, bytes): (u32, usize),
        args: &[Arg],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_on(Lane::First, functions, entry, grid, (block, bytes as u32), args) }
    }

    /// [`launch`](Device::launch) on the second stream.
    ///
    /// # Safety
    /// As for [`launch`](Device::launch), until the streams are joined.
    pub(crate) unsafe fn launch_beside(
        &self,
        functions: &Functions,
        entry: &'static str,
        grid: (u32, u32),
        block: u32,
        args: &[Arg],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_on(Lane::Beside, functions, entry, [grid.0, grid.1, 1], (block, 0), args) }
    }

    unsafe fn launch_on(
        &self,
        lane: Lane,
        functions: &Functions,
        entry: &'static str,
        grid: [u32; 3],
        (block, bytes): (u32, u32),
        args: &[Arg],
    ) -> Result<(), Error> {
        if grid.contains(&0) {
            return Ok(());
        }
        let launching = |e: DriverError| failed(&format!("launching {entry}"), e);
        let function = functions.get(entry).ok_or_else(|| Error::Device {
            call: format!("launching {entry}"),
            reason: "the program has no such entry".to_string(),
        })?;
        self.inner.context.bind_to_thread().map_err(launching)?;
        let mut slots: Vec<[u64; 2]> = args.iter().map(|a| a.0).collect();
        let mut pointers: Vec<*mut std::ffi::c_void> = slots.iter_mut().map(|s| std::ptr::from_mut(s).cast()).collect();
        let function = function.cu_function();
        let mut launch = Launch { function, grid, block, bytes, arguments: &mut pointers };
        if let Some(recorded) = graph::launch(lane, &mut launch) {
            return recorded.map_err(launching);
        }
        let stream = if lane == Lane::First { &self.inner.stream } else { &self.inner.beside }.cu_stream();
        // SAFETY: each pointer leads to sixteen bytes that outlive the call, which copies them. The caller promises the
        // rest.
        unsafe { result::launch_kernel(function, grid.into(), (block, 1, 1), bytes, stream, &mut pointers) }
            .map_err(launching)
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

/// Number of blocks of `block` threads for `n` items.
///
/// # Errors
/// [`Error::TooMany`] beyond the 2³¹ − 1 blocks of a launch.
pub(crate) fn blocks(n: usize, block: usize) -> Result<u32, Error> {
    let found = n.div_ceil(block);
    let limit = i32::MAX as usize;
    if found > limit {
        return Err(Error::TooMany { what: "blocks of a launch", found, limit });
    }
    Ok(found as u32)
}
