//! The hardware of a plan, as the caller names it: cores, one GPU, several GPUs, or both.

use crate::processor::Processor;
use crate::request::Fmm;
use backend_cpu::Isa;
use backend_cuda::cudarc::driver::CudaSlice;
use backend_cuda::{Ceilings, Device, DeviceArray, DeviceInfo, DeviceOptions, DeviceScalar, RawArray};
use fmm_traits::{Error, Precision};
use std::path::PathBuf;
use std::sync::Arc;

/// The CPU as backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// Instruction set; `None` selects the widest of this machine. Results of different sets differ by rounding.
    pub isa: Option<Isa>,
}

/// An NVIDIA GPU as backend. Building and starting a program needs neither the GPU's driver nor NVIDIA's run-time
/// compiler (NVRTC). Planning needs both, and so do the methods of this type that open the device (`info`, `ceilings`,
/// `array`, `zeros`, `take`, `borrow`); without them they return [`Error::NoDevice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cuda {
    /// Number of the device.
    pub device: usize,
    /// Bytes that arrays of this process may take on the device; `None`: all that are free. A plan that needs more for
    /// all targets at once takes the targets in pieces, one after the other
    /// ([`Description::pieces`](crate::Description::pieces)), with the bits of a plan in one piece.
    pub memory: Option<u64>,
}

/// CPU cores and an NVIDIA GPU at once: the GPU sums the near field while the cores compute the far field (Hu, Gumerov &
/// Duraiswami 2012, §III-B). Points and strengths are arrays of the host. Leaves are so large that both take equally long, by
/// the forecast of the cost model.
///
/// A GPU that computes everything ([`Cuda`]) is faster on all machines where both were measured. Direct sums run on the
/// cores. Kernels of the plane with Laurent series are refused by [`Error::Unsupported`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hybrid {
    /// The cores.
    pub cpu: Cpu,
    /// The GPU, by its number. Its [`memory`](field@Cuda::memory) is ignored.
    pub cuda: Cuda,
}

/// Several NVIDIA GPUs of this machine as one backend ([`Cuda::devices`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Devices {
    numbers: Arc<[usize]>,
    /// The first of them.
    first: Cuda,
}

impl Devices {
    /// The numbers of the devices.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }
    /// The first device; device 0 if there is none.
    pub(crate) fn first(&self) -> &Cuda {
        &self.first
    }
}

impl Cuda {
    /// Several devices of this machine, by number, as one backend. A plan shares out its sums among them; points,
    /// strengths and sums are arrays of the host, whole and in the caller's order. Each device has the boxes
    /// of the tree of all points, keeps the points of its share, and sums at a share of the targets. Method and order are
    /// those of one device.
    ///
    /// With equivalent densities and interpolation the sums have the bits of a plan on one device. Spherical harmonics,
    /// and other sums by dense translations, agree to rounding, because a device cuts these sums into parts by the number
    /// of boxes.
    ///
    /// Planning reports, by [`Error::Parameter`], a list without a device or with one twice, by [`Error::NoDevice`] an
    /// absent device, and refuses what [`Fmm::ranks`] refuses.
    pub fn devices(devices: impl IntoIterator<Item = usize>) -> Devices {
        let numbers: Arc<[usize]> = devices.into_iter().collect();
        Devices { first: Cuda { device: numbers.first().copied().unwrap_or_default(), memory: None }, numbers }
    }
    /// Properties of the device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with the missing part.
    pub fn info(self) -> Result<DeviceInfo, Error> {
        Ok(self.open(None)?.info().clone())
    }
    /// Measures the rates that bound M2L on the device, in some milliseconds.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn ceilings(self, precision: Precision) -> Result<Ceilings, Error> {
        let device = self.open(None)?;
        match precision {
            Precision::F32 => device.ceilings::<f32>(),
            Precision::F64 => device.ceilings::<f64>(),
        }
    }
    /// An array on the device with a copy of `numbers`, in f32 or f64.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn array<T: DeviceScalar>(self, numbers: &[T]) -> Result<DeviceArray, Error> {
        DeviceArray::new(&self.open(None)?, numbers)
    }
    /// An array of `n` zeros on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn zeros<T: DeviceScalar>(self, n: usize) -> Result<DeviceArray, Error> {
        DeviceArray::zeros::<T>(&self.open(None)?, n)
    }
    /// Takes over a slice of `cudarc`. The host waits until the work in the slice's stream is done. The slice must
    /// belong to the primary context of the device, which `CudaContext::new` of `cudarc` uses.
    ///
    /// # Errors
    /// [`Error::Array`] for a slice of another device or context, and errors of the device.
    pub fn take<T: DeviceScalar>(self, slice: CudaSlice<T>) -> Result<DeviceArray, Error> {
        DeviceArray::from_slice(&self.open(None)?, slice)
    }
    /// Borrows memory of the caller by its address.
    ///
    /// # Errors
    /// [`Error::Array`] for rows with gaps or in another order, a misaligned address, memory that is not on this
    /// device.
    ///
    /// # Safety
    /// As for [`DeviceArray::borrowed`]: the memory holds as many numbers as `raw` says, stays valid until all work
    /// with the array is done, and nothing else writes it meanwhile.
    pub unsafe fn borrow(self, raw: RawArray) -> Result<DeviceArray, Error> {
        let device = self.open(None)?;
        // SAFETY: as promised.
        unsafe { DeviceArray::borrowed(&device, raw) }
    }
    /// Opens the device. Compiled stages are kept in `cache`, if given.
    pub(crate) fn open(self, cache: Option<&PathBuf>) -> Result<Device, Error> {
        Device::shared(&DeviceOptions { ordinal: self.device, cache: cache.cloned(), memory: self.memory })
    }
    /// An upper bound of the bytes for the arrays of a plan. What arrays of this process hold counts as free: a forecast
    /// counts the points, which are there, and other plans may end. The device refuses each array that does not fit.
    pub(crate) fn memory_of_a_plan(self, cache: Option<&PathBuf>) -> Result<u64, Error> {
        self.open(cache)?.memory_of_arrays()
    }
}

/// The hardware that computes the sums.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// Threads and SIMD of this machine.
    Cpu(Cpu),
    /// An NVIDIA GPU.
    Cuda(Cuda),
    /// Several NVIDIA GPUs.
    Devices(Devices),
    /// CPU cores and an NVIDIA GPU at once.
    Hybrid(Hybrid),
}

impl From<Hybrid> for Backend {
    fn from(hybrid: Hybrid) -> Self {
        Backend::Hybrid(hybrid)
    }
}

impl From<Devices> for Backend {
    fn from(devices: Devices) -> Self {
        Backend::Devices(devices)
    }
}
impl From<Cuda> for Backend {
    fn from(cuda: Cuda) -> Self {
        Backend::Cuda(cuda)
    }
}
impl From<Cpu> for Backend {
    fn from(cpu: Cpu) -> Self {
        Backend::Cpu(cpu)
    }
}

impl Backend {
    /// `cpu`, `cuda` or `hybrid`.
    pub fn name(&self) -> &'static str {
        self.processor().name()
    }
    /// The processor that a backend names; of several devices the first, which does what one device alone does.
    pub(crate) fn processor(&self) -> &dyn Processor {
        match self {
            Backend::Cpu(cpu) => cpu,
            Backend::Cuda(cuda) => cuda,
            Backend::Devices(devices) => devices.first(),
            Backend::Hybrid(hybrid) => hybrid,
        }
    }
    /// The backends among which one process shares out a sum, each a rank of its own ([`crate::plan`]); empty if it
    /// does not.
    pub(crate) fn several(&self) -> Vec<Backend> {
        match self {
            Backend::Cpu(_) | Backend::Cuda(_) | Backend::Hybrid(_) => Vec::new(),
            Backend::Devices(devices) => {
                devices.numbers().iter().map(|&device| Cuda { device, memory: None }.into()).collect()
            }
        }
    }
    /// Checks what the caller names as backend, as far as no device must be opened for it.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Backend::Devices(devices) = self else { return Ok(()) };
        let wrong = |value: f64, requirement| Err(Error::Parameter { name: "devices", value, requirement });
        let numbers = devices.numbers();
        match (0..numbers.len()).find(|&k| numbers[..k].contains(&numbers[k])) {
            Some(k) => wrong(numbers[k] as f64, "must be named once"),
            None if numbers.is_empty() => wrong(0.0, "must be at least one"),
            None => Ok(()),
        }
    }
    /// The names of the devices, each once; `None` on a CPU, or if a device does not answer.
    pub(crate) fn device(&self, request: &Fmm) -> Option<String> {
        let Backend::Devices(devices) = self else { return self.processor().device(request) };
        let names = devices.numbers().iter().map(|&device| Cuda { device, memory: None }.device(request));
        let mut counted: Vec<(String, usize)> = Vec::new();
        for name in names.collect::<Option<Vec<_>>>()? {
            match counted.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => counted.push((name, 1)),
            }
        }
        let said = |(name, count): (String, usize)| if count > 1 { format!("{count} × {name}") } else { name };
        Some(counted.into_iter().map(said).collect::<Vec<_>>().join(", "))
    }
}
