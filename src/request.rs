//! What the caller asks for: the builder of a plan.

use crate::costs::CostModel;
use crate::variant::{Expansion, ListPolicy, Translation, Truncation, Variant};
use adaptive2d::Norm;
use backend_cpu::Isa;
use backend_cuda::{Ceilings, Device, DeviceInfo, DeviceOptions};
use fmm_families::AnyFamily;
use fmm_traits::{Error, Family, Outputs, Precision};
use std::path::PathBuf;
use std::sync::Arc;

/// How sums are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Method {
    /// The fastest method that keeps the tolerance, by the prices of a [`CostModel`]: equivalent densities, spherical harmonics
    /// and a treecode where the kernel has them, in the plane Laurent series, or direct summation.
    #[default]
    Auto,
    /// The fast method by equivalent densities (Ying, Biros & Zorin 2004).
    EquivalentDensities,
    /// The fast method by spherical harmonics (Gumerov & Duraiswami 2008): Laplace charges and dipoles, gravity.
    SphericalHarmonics,
    /// Multipoles straight to targets (Barnes & Hut 1986): O(N log N).
    Treecode,
    /// The fast method of the plane, by Laurent series (Goude & Engblom 2012).
    Laurent,
    /// Pair by pair.
    Direct,
}

impl Method {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::EquivalentDensities => "equivalent",
            Method::SphericalHarmonics => "spherical",
            Method::Treecode => "treecode",
            Method::Laurent => "laurent",
            Method::Direct => "direct",
        }
    }
}

/// The CPU as backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// Instruction set; `None`: the widest of this machine. Results of different sets differ by
    /// rounding.
    pub isa: Option<Isa>,
}

/// An NVIDIA GPU as backend. Needs its driver and NVIDIA's run-time compiler (NVRTC) when a plan is made, nothing
/// before: without them a plan is an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cuda {
    /// Number of the device.
    pub device: usize,
}

impl Cuda {
    /// What the device says of itself.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what is missing.
    pub fn info(self) -> Result<DeviceInfo, Error> {
        Ok(self.open(None)?.info().clone())
    }
    /// Measures what bounds M2L on the device, in some milliseconds.
    ///
    /// # Errors
    /// Those of the device.
    pub fn ceilings(self, precision: Precision) -> Result<Ceilings, Error> {
        let device = self.open(None)?;
        match precision {
            Precision::F32 => device.ceilings::<f32>(),
            Precision::F64 => device.ceilings::<f64>(),
        }
    }
    /// The device; compiled stages are kept in `cache`, if given.
    pub(crate) fn open(self, cache: Option<&PathBuf>) -> Result<Device, Error> {
        Device::shared(&DeviceOptions { ordinal: self.device, cache: cache.cloned() })
    }
}

/// Where sums are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// Threads and SIMD of this machine.
    Cpu(Cpu),
    /// An NVIDIA GPU.
    Cuda(Cuda),
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

/// How far a plan or an evaluation is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// What comes next: `tree`, `probe`, `lists`, `operators`, or the name of a [`Stage`](crate::Stage). A plan with a tolerance
    /// may make trees and measure several times.
    pub phase: &'static str,
    /// Fraction done of the plan (first four phases) or of the evaluation, in [0, 1).
    pub fraction: f64,
}

/// A callback that watches and may cancel by returning `false`.
pub(crate) type Watch = Arc<dyn Fn(Progress) -> bool + Send + Sync>;

/// A plan in the making. Defaults: tolerance 1e-6, potential only, f64, everything else chosen.
#[derive(Clone)]
pub struct Fmm {
    pub(crate) family: AnyFamily,
    pub(crate) tolerance: Option<f64>,
    pub(crate) order: Option<usize>,
    pub(crate) norm: Norm,
    pub(crate) method: Method,
    pub(crate) variant: Variant,
    pub(crate) outputs: Outputs,
    pub(crate) precision: Precision,
    pub(crate) ncrit: Option<usize>,
    pub(crate) root: Option<([f64; 3], f64)>,
    pub(crate) threads: Option<usize>,
    pub(crate) backend: Backend,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) stages_apart: bool,
    pub(crate) costs: Arc<CostModel>,
    pub(crate) watch: Option<Watch>,
}

impl Fmm {
    /// For the sums of `family`, one of this crate's; see [`Fmm::custom`] for your own.
    pub fn new(family: impl Into<AnyFamily>) -> Self {
        Fmm {
            family: family.into(),
            tolerance: None,
            order: None,
            norm: Norm::L2,
            method: Method::Auto,
            variant: Variant::default(),
            outputs: Outputs::POTENTIAL,
            precision: Precision::F64,
            ncrit: None,
            root: None,
            threads: None,
            backend: Backend::Cpu(Cpu::default()),
            cache: None,
            stages_apart: false,
            costs: Arc::default(),
            watch: None,
        }
    }
    /// For the sums of your own [`Kernel`](crate::Kernel) or [`Family`]; compiles every stage for it.
    pub fn custom<F: Family>(family: F) -> Self {
        Fmm::new(AnyFamily::new(family))
    }
    /// Relative ℓ2 error promised for each output (crate documentation). The order that keeps it is measured when the plan is
    /// made. Default 1e-6; in f32 1e-5, or the least error there is.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = Some(tolerance);
        self
    }
    /// Order p of the expansion, 3 … 16 (spherical harmonics 1 … 40, in the plane 1 … 60), instead of a tolerance. Giving
    /// both is an error.
    pub fn order(mut self, order: usize) -> Self {
        self.order = Some(order);
        self
    }
    /// What the tolerance bounds. Default the relative ℓ2 error; [`Norm::Max`] is for `PlaneKernel::Harmonic`.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.norm = norm;
        self
    }
    /// How. Default [`Method::Auto`].
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }
    /// What each target receives. Default the potential.
    pub fn outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }
    /// Arithmetic in f32 or f64 (coordinates are f64 in either case). Default f64.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
    /// Leaf capacity, in the plane the desired population. Default: chosen, together with the root cube, from the cost model.
    pub fn ncrit(mut self, ncrit: usize) -> Self {
        self.ncrit = Some(ncrit);
        self
    }
    /// Lower corner and side of the root cube, which must contain all points. Default: chosen.
    pub fn root_cube(mut self, corner: [f64; 3], side: f64) -> Self {
        self.root = Some((corner, side));
        self
    }
    /// Number of threads. Default: all. Changes no result.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }
    /// Where. Default `Cpu::default()`.
    pub fn backend(mut self, backend: impl Into<Backend>) -> Self {
        self.backend = backend.into();
        self
    }
    /// Folder that keeps translation operators, and the stages compiled for a GPU, between runs, under a fingerprint of
    /// all they depend on. Default: they are kept in memory only.
    pub fn operator_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }
    /// On a GPU no stage runs beside another, so that the seconds of each are its own; an evaluation takes some per cent longer.
    /// Elsewhere that is always so.
    pub fn stages_apart(mut self) -> Self {
        self.stages_apart = true;
        self
    }
    /// What method and leaf sizes are chosen by. Default: the built-in one, so that no choice depends on the machine. A plan
    /// says in [`Description`](crate::Description) which one it used.
    pub fn cost_model(mut self, costs: CostModel) -> Self {
        self.costs = Arc::new(costs);
        self
    }
    /// Called before each phase, from the thread that runs it; returning `false` cancels with
    /// [`Error::Cancelled`] and leaves the plan usable.
    pub fn progress(mut self, watch: impl Fn(Progress) -> bool + Send + Sync + 'static) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }
    /// How spherical harmonics are translated. Default [`Translation::Rcr`], which is the fastest on a CPU. A GPU multiplies dense
    /// matrices where that is faster, unless [`Translation::Rcr`] is asked for; it has no other.
    pub fn translation(mut self, translation: Translation) -> Self {
        self.variant.translation = Some(translation);
        self
    }
    /// Whether distant pairs use fewer degrees of spherical harmonics. Default [`Truncation::Variable`], on a GPU, where
    /// fewer save nothing, [`Truncation::Fixed`].
    pub fn truncation(mut self, truncation: Truncation) -> Self {
        self.variant.truncation = Some(truncation);
        self
    }
    /// Lists of the fast multipole method. Default [`ListPolicy::Uvwx`].
    pub fn lists(mut self, lists: ListPolicy) -> Self {
        self.variant.lists = Some(lists);
        self
    }
    /// Expansion of a treecode. Default [`Expansion::Spherical`] where the kernel has it.
    pub fn expansion(mut self, expansion: Expansion) -> Self {
        self.variant.expansion = Some(expansion);
        self
    }
    /// Opening angle of a treecode: a box of side l is seen as a whole from distance d if l ≤ θ·d. Default: chosen
    /// with the order. In the plane the θ of the criterion of separation (Goude & Engblom 2012, eq. 2.1).
    pub fn theta(mut self, theta: f64) -> Self {
        self.variant.theta = Some(theta);
        self
    }
    /// Numbers that each source carries.
    ///
    /// # Errors
    /// An output that the kernel does not have.
    pub fn strengths(&self) -> Result<usize, Error> {
        Ok(self.family.facts(self.outputs)?.strengths)
    }
}
