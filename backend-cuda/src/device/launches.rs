//! Launches of kernels, and their arguments.

use super::signature::Kind;
use super::{Buffer, Device, Functions};
use crate::error::failed;
use crate::graph::{self, Lane, Launch};
use cudarc::driver::{DriverError, result};
use fmm_traits::Error;

/// One argument of a kernel: sixteen bytes, of which the kernel reads as many as the argument's type has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg {
    bytes: [u64; 2],
    kind: Kind,
}

impl Arg {
    /// No array.
    pub const NULL: Arg = Arg::address(0);

    /// An address whose type the host does not know.
    pub const fn address(address: u64) -> Arg {
        Arg { bytes: [address, 0], kind: Kind::Address(None) }
    }
    /// The address of elements `T`.
    pub(super) fn of_elements<T>(address: u64) -> Arg {
        Arg { bytes: [address, 0], kind: Kind::Address(Some(std::any::type_name::<T>())) }
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg { bytes: [x as u64, 0], kind: Kind::Number("u32") }
    }
}
impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg { bytes: [x, 0], kind: Kind::Number("u64") }
    }
}
impl From<f64> for Arg {
    fn from(x: f64) -> Arg {
        Arg { bytes: [x.to_bits(), 0], kind: Kind::Number("f64") }
    }
}
/// Two numbers of four bytes; a struct in the kernel.
impl From<[u32; 2]> for Arg {
    fn from([a, b]: [u32; 2]) -> Arg {
        Arg { bytes: [a as u64 | (b as u64) << 32, 0], kind: Kind::Struct }
    }
}
/// An address and two numbers of four bytes; a struct in the kernel.
impl From<(u64, [u32; 2])> for Arg {
    fn from((address, [a, b]): (u64, [u32; 2])) -> Arg {
        Arg { bytes: [address, a as u64 | (b as u64) << 32], kind: Kind::Struct }
    }
}
impl<T> From<&Buffer<T>> for Arg {
    fn from(b: &Buffer<T>) -> Arg {
        Arg::of_elements::<T>(b.address())
    }
}
/// Two addresses; a struct in the kernel.
impl<T, U> From<(&Buffer<T>, &Buffer<U>)> for Arg {
    fn from((a, b): (&Buffer<T>, &Buffer<U>)) -> Arg {
        Arg { bytes: [a.address(), b.address()], kind: Kind::Struct }
    }
}

impl Device {
    /// Enqueues a kernel. Does nothing when the grid is empty.
    ///
    /// # Errors
    /// [`Error::Device`] if the number or the types of `args` differ from the kernel's parameters.
    ///
    /// # Safety
    /// `args` are the arguments of the kernel, in order. Every address is valid for the accesses that the kernel makes.
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
        let launching = |e: DriverError| failed(&format!("launching {entry}"), e);
        let wrong = |reason: String| Error::Device { call: format!("launching {entry}"), reason };
        let (function, signature) =
            functions.get(entry).ok_or_else(|| wrong("the program has no such entry".to_string()))?;
        if let Some(reason) = signature.refuses(args.iter().map(|a| a.kind)) {
            return Err(wrong(reason));
        }
        if grid.contains(&0) {
            return Ok(());
        }
        self.inner.context.bind_to_thread().map_err(launching)?;
        let mut slots: Vec<[u64; 2]> = args.iter().map(|a| a.bytes).collect();
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
}

/// Largest number of blocks of a kernel whose blocks walk over the items in strides.
pub(crate) const MAX_WALKING_BLOCKS: u32 = 1024;
/// Threads of a warp.
const WARP: usize = 32;

/// A program whose kernels take some items each with a thread, or each with a warp.
#[derive(Clone, Debug)]
pub(crate) struct ByItem {
    device: Device,
    pub functions: Functions,
    /// Threads per block.
    block: u32,
}

impl ByItem {
    pub fn new(device: &Device, functions: Functions, block: u32) -> Self {
        ByItem { device: device.clone(), functions, block }
    }

    /// The device of the program.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues a kernel with one thread for each of `count` items.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub unsafe fn threads(&self, entry: &'static str, count: usize, args: &[Arg]) -> Result<(), Error> {
        let grid = (blocks(count, self.block as usize)?, 1);
        // SAFETY: the caller promises what `launch` asks for.
        unsafe { self.device.launch(&self.functions, entry, grid, self.block, args) }
    }

    /// Enqueues a kernel with one warp for each of `count` items.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub unsafe fn warps(&self, entry: &'static str, count: usize, args: &[Arg]) -> Result<(), Error> {
        let grid = (blocks(count, self.block as usize / WARP)?, 1);
        // SAFETY: the caller promises what `launch` asks for.
        unsafe { self.device.launch(&self.functions, entry, grid, self.block, args) }
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
