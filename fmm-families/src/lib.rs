//! Families of kernels behind one virtual table, so that plans of different kernels have one type. This crate compiles
//! all code that is generic over the kernel for the families of this project, for every instruction set and both
//! precisions. A user of [`AnyFamily`] need not compile it again.

mod plane;
mod space;
mod transposed;

pub use plane::{derivatives, only_f64};
pub use space::{Expansion, InSpace};

use backend_cpu::laurent::PlanePairs;
use backend_cpu::{Isa, Pairs};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::{
    Error, Family, Kernel, Kernels, LinearMap, Member, OutputColumns, Outputs, Precision, SelfInteraction, Tape,
    Targets, Traced, facts,
};
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// Facts about the kernel that computes a set of outputs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Coordinates per point.
    pub dim: usize,
    /// Strengths per source, with its attributes.
    pub strengths: usize,
    /// Attributes of a source, which follow its strengths ([`Traced::attribute`]).
    pub attributes: usize,
    /// Values per target of the kernel.
    pub values: usize,
    /// The columns of each output among the values.
    pub columns: Vec<OutputColumns>,
    /// Whether a target skips itself by its index, if it is a source. False where K(0) counts as 0, and where a source
    /// acts on itself.
    pub skips_self: bool,
    /// Whether K(−r) = K(r)ᵀ.
    pub reciprocal: bool,
    /// An error with the reason if the kernel has no expansion in spherical harmonics.
    pub harmonic: Result<(), Error>,
    /// Components of an equivalent density.
    pub densities: usize,
    /// Components of a check value.
    pub checks: usize,
    /// As [`densities`](Facts::densities) and [`checks`](Facts::checks), for [`Fill::Volume`].
    pub in_volume: [usize; 2],
    /// Whether one set of operators serves all levels.
    pub homogeneous: bool,
    /// The parameters of `members`.
    pub params: Vec<f64>,
    /// The operations of the kernels between sources and targets, sources and check values, and densities and targets;
    /// empty in the plane.
    pub tapes: Arc<[Tape]>,
    /// Whether a CPU interprets these operations.
    pub interpreted: bool,
    /// The kernels of the outputs, whose facts [`check`](Facts::check) tries.
    pub members: Vec<Member>,
    /// L, if the points are in coordinates y = L·x and not in the coordinates x of the caller
    /// ([`Dynamic::isotropic`]).
    pub map: Option<LinearMap>,
}

impl Facts {
    /// Tries the stated facts of the kernels, for points that span `extent` (0: unknown).
    ///
    /// # Errors
    /// [`Error::Fact`] with the first fact that does not hold.
    pub fn check(&self, extent: f64) -> Result<(), Error> {
        facts::check(&self.members, &self.params, extent)
    }
    /// Maps the derivatives in sets of rows of values from the coordinates of the points to those of the caller.
    pub fn pull_back(&self, sets: &mut [Vec<f64>]) {
        if let Some(map) = &self.map {
            sets.iter_mut().for_each(|rows| map.pull_back(rows, self.values));
        }
    }
    /// Strengths per source, without its attributes.
    pub fn linear(&self) -> usize {
        self.strengths - self.attributes
    }
    /// Components of a density and of a check value.
    pub fn densities_and_checks(&self, fill: Fill) -> [usize; 2] {
        match fill {
            Fill::Surface => [self.densities, self.checks],
            Fill::Volume => self.in_volume,
        }
    }
    /// Components of `output`; 0 if the caller did not request it.
    pub fn components(&self, output: Outputs) -> usize {
        self.columns.iter().find(|c| c.output == output).map_or(0, |c| c.columns.len())
    }
}

/// Any family of kernels: a family of this workspace (`Laplace.into()`), your own, or a kernel made at run time
/// ([`Traced`]).
#[derive(Clone)]
pub struct AnyFamily(Arc<dyn Dynamic>);

impl From<Traced> for AnyFamily {
    fn from(kernel: Traced) -> Self {
        AnyFamily(Arc::new(AtRunTime { kernel, map: None, native: false }))
    }
}

impl AnyFamily {
    /// Wraps your own [`Kernel`] or [`Family`]. Its far field is computed from its values alone, on an octree, and for
    /// a kernel of the plane on a quadtree.
    ///
    /// A kernel with Laurent series, such as `Laplace2d`, is a kernel of the plane like any other here. Its series on a
    /// pyramid, which are faster, are what `Laplace2d.into()` and [`AnyFamily::analytic`] give.
    pub fn new<F: Family>(family: F) -> Self {
        AnyFamily(Arc::new(Compiled(family)))
    }

    /// The family with a choice whether a source acts on itself. Default: it does not, unless the kernel was made at
    /// run time and is finite at r = 0.
    pub fn self_interaction(self, own: SelfInteraction) -> Self {
        AnyFamily(Arc::new(WithSelf { family: self, own }))
    }

    /// The family with pair loops by the system's C compiler, if the kernel was made at run time (see
    /// [`Pairs::native`]). Other families have compiled loops already, and stay as they are.
    pub fn compiled(self) -> Self {
        self.native().unwrap_or(self)
    }
}

impl Deref for AnyFamily {
    type Target = dyn Dynamic;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for AnyFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.name(), self.parameters())
    }
}

macro_rules! compiled_here {
    ($($family:ident),*) => {$(
        impl From<$family> for AnyFamily {
            #[inline(never)]
            fn from(family: $family) -> Self {
                AnyFamily::new(family)
            }
        }
    )*};
}
compiled_here!(Laplace, LaplaceDipole, LaplaceMixed, Yukawa, Stokes, StokesPressure, Stresslet, Gravity);

/// The tree in which the points of a family lie.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// An octree in space. The points of a kernel of the plane lie at z = 0, and its octree is a quadtree.
    Space,
    /// A pyramid in the plane, for kernels with Laurent series.
    Plane(PlanePairs),
}

/// Points of `dim` coordinates as points in space: those of the plane at z = 0.
pub fn in_space(dim: usize, points: &[f64]) -> Cow<'_, [f64]> {
    match dim {
        2 => points.chunks_exact(2).flat_map(|x| [x[0], x[1], 0.0]).collect(),
        _ => points.into(),
    }
}

/// The functions of a family that the facade needs.
pub trait Dynamic: Send + Sync {
    /// Name of the family.
    fn name(&self) -> &str;
    /// The space of the points.
    fn place(&self) -> Place;
    /// Parameters, in the order of the constructor.
    fn parameters(&self) -> Vec<f64>;
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a parameter outside its domain, [`Error::TooMany`] parameters.
    fn validate(&self) -> Result<(), Error>;
    /// The distance below which pairs must be summed directly for errors of `tolerance` ([`Family::near_radius`]).
    fn near_radius(&self, tolerance: f64) -> f64;
    /// Facts about the kernel that computes `outputs`.
    ///
    /// # Errors
    /// [`Error::NoOutput`], [`Error::UnsupportedOutput`].
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        Ok(self.in_space(outputs)?.facts())
    }
    /// The direct sums of each set of strengths, as arrays of targets × [`Facts::values`].
    ///
    /// # Errors
    /// Errors of [`backend_cpu::direct_batch`].
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[&[f64]],
        targets: Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Vec<f64>>, Error> {
        self.in_space(outputs)?.direct(sources, strengths, targets, precision, isa)
    }
    /// The kernels for `outputs`, for engines in space.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a family of the plane; errors of [`validate`](Dynamic::validate);
    /// [`Error::NoOutput`], [`Error::UnsupportedOutput`].
    fn in_space(&self, outputs: Outputs) -> Result<InSpace, Error>;
    /// As [`in_space`](Dynamic::in_space), for densities in a volume ([`Fill::Volume`]). A radial kernel needs one
    /// density there, whatever its equation.
    ///
    /// # Errors
    /// Those of [`in_space`](Dynamic::in_space).
    fn in_volume(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.in_space(outputs)
    }

    /// The names of the attributes of a source, in the order in which they follow its strengths.
    fn attribute_names(&self) -> Vec<String> {
        Vec::new()
    }
    /// The family with the parameter `name` as an attribute of the sources. Expansions take the value `usual`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a compiled family; [`Error::UnknownParameter`].
    fn attribute(&self, name: &str, usual: f64) -> Result<AnyFamily, Error> {
        let _ = usual;
        let reason = format!("{} is not a kernel made at run time, so {name} is the same for all sources", self.name());
        Err(Error::Unsupported { operation: "an attribute of sources", reason })
    }

    /// The family for points in coordinates y = L·x in which its kernel is radial. [`Facts::map`] is L. `None` if there
    /// are no such coordinates, or if the kernel has no `outputs` there.
    fn isotropic(&self, outputs: Outputs) -> Option<AnyFamily> {
        let _ = outputs;
        None
    }

    /// The family with pair loops by the system's C compiler; `None` if its loops are compiled already.
    fn native(&self) -> Option<AnyFamily> {
        None
    }

    /// Coordinates per point.
    fn dim(&self) -> usize;
}

/// A kernel that was made at run time.
struct AtRunTime {
    kernel: Traced,
    /// The map from the coordinates of the caller to those of the points.
    map: Option<LinearMap>,
    /// Whether the system's C compiler makes its pair loops.
    native: bool,
}

impl Dynamic for AtRunTime {
    fn name(&self) -> &str {
        self.kernel.name()
    }
    fn place(&self) -> Place {
        Place::Space
    }
    fn dim(&self) -> usize {
        self.kernel.dim()
    }
    fn parameters(&self) -> Vec<f64> {
        self.kernel.parameters().iter().filter_map(|(_, value)| *value).collect()
    }
    fn validate(&self) -> Result<(), Error> {
        self.kernel.parameter_values().map(drop)
    }
    fn near_radius(&self, _: f64) -> f64 {
        0.0
    }
    fn in_space(&self, outputs: Outputs) -> Result<InSpace, Error> {
        let kernels = self.kernel.kernels(outputs)?;
        let pairs = if self.native { Pairs::native(&kernels)? } else { Pairs::traced(&kernels) };
        Ok(InSpace::new(kernels, pairs))
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        let Member { strengths, values, .. } = self.in_volume(outputs)?.kernels.members.equivalent;
        Ok(Facts { in_volume: [strengths, values], map: self.map, ..self.in_space(outputs)?.facts() })
    }
    fn in_volume(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.with(self.kernel.clone().densities(1)?).in_space(outputs)
    }
    fn attribute(&self, name: &str, usual: f64) -> Result<AnyFamily, Error> {
        Ok(AnyFamily(Arc::new(self.with(self.kernel.clone().set(name, usual)?.attribute(name)?))))
    }
    fn attribute_names(&self) -> Vec<String> {
        self.kernel.attribute_names()
    }
    fn native(&self) -> Option<AnyFamily> {
        Some(AnyFamily(Arc::new(AtRunTime { native: true, ..self.with(self.kernel.clone()) })))
    }
    fn isotropic(&self, outputs: Outputs) -> Option<AnyFamily> {
        let (kernel, map) = self.kernel.isotropic()?;
        kernel.kernels(outputs).ok()?;
        Some(AnyFamily(Arc::new(AtRunTime { map: Some(map), ..self.with(kernel) })))
    }
}

impl AtRunTime {
    /// Another kernel with the same loops.
    fn with(&self, kernel: Traced) -> Self {
        AtRunTime { kernel, map: self.map, native: self.native }
    }
}

/// A family with a choice whether a source acts on itself.
struct WithSelf {
    family: AnyFamily,
    own: SelfInteraction,
}

impl WithSelf {
    /// `kernels` with the choice.
    fn with(&self, InSpace { mut kernels, pairs }: InSpace) -> Result<InSpace, Error> {
        self.check(kernels.near.singular)?;
        kernels.include_self = self.own == SelfInteraction::Include;
        Ok(InSpace::new(kernels, pairs))
    }

    /// An error if a singular kernel should act on its own source.
    fn check(&self, singular: bool) -> Result<(), Error> {
        if !singular || self.own == SelfInteraction::Skip {
            return Ok(());
        }
        let reason = format!("the kernel {} has no value at r = 0", self.family.name());
        Err(Error::Unsupported { operation: "the action of a source on itself", reason })
    }
}

impl Dynamic for WithSelf {
    fn name(&self) -> &str {
        self.family.name()
    }
    fn place(&self) -> Place {
        self.family.place()
    }
    fn dim(&self) -> usize {
        self.family.dim()
    }
    fn parameters(&self) -> Vec<f64> {
        self.family.parameters()
    }
    fn validate(&self) -> Result<(), Error> {
        self.family.validate()?;
        self.check(matches!(self.family.place(), Place::Plane(_)))
    }
    fn near_radius(&self, tolerance: f64) -> f64 {
        self.family.near_radius(tolerance)
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        match self.place() {
            Place::Space => {
                let Facts { in_volume, map, .. } = self.family.facts(outputs)?;
                Ok(Facts { in_volume, map, ..self.in_space(outputs)?.facts() })
            }
            Place::Plane(_) => self.family.facts(outputs),
        }
    }
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[&[f64]],
        targets: Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Vec<f64>>, Error> {
        match self.place() {
            Place::Space => self.in_space(outputs)?.direct(sources, strengths, targets, precision, isa),
            Place::Plane(_) => self.family.direct(outputs, sources, strengths, targets, precision, isa),
        }
    }
    fn in_space(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.with(self.family.in_space(outputs)?)
    }
    fn in_volume(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.with(self.family.in_volume(outputs)?)
    }
    fn attribute(&self, name: &str, usual: f64) -> Result<AnyFamily, Error> {
        Ok(AnyFamily(Arc::new(WithSelf { family: self.family.attribute(name, usual)?, own: self.own })))
    }
    fn attribute_names(&self) -> Vec<String> {
        self.family.attribute_names()
    }
    fn native(&self) -> Option<AnyFamily> {
        Some(AnyFamily(Arc::new(WithSelf { family: self.family.native()?, own: self.own })))
    }
    fn isotropic(&self, outputs: Outputs) -> Option<AnyFamily> {
        Some(AnyFamily(Arc::new(WithSelf { family: self.family.isotropic(outputs)?, own: self.own })))
    }
}

/// The [`Dynamic`] of a family of compiled kernels.
struct Compiled<F>(F);

impl<F: Family> Dynamic for Compiled<F> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn place(&self) -> Place {
        Place::Space
    }
    fn dim(&self) -> usize {
        F::Source::DIM
    }
    fn parameters(&self) -> Vec<f64> {
        self.0.parameters()
    }
    fn validate(&self) -> Result<(), Error> {
        facts::validate(&self.0)
    }
    fn near_radius(&self, tolerance: f64) -> f64 {
        self.0.near_radius(tolerance)
    }
    fn in_space(&self, outputs: Outputs) -> Result<InSpace, Error> {
        Ok(InSpace::new(Kernels::of(&self.0, outputs)?, Pairs::of(&self.0, outputs)?))
    }
}
