//! Families of kernels behind one virtual table, so that plans of different kernels have one type. This crate compiles
//! all code that is generic over the kernel for the families of this project, for every instruction set and both
//! precisions. A user of [`AnyFamily`] need not compile it again.

mod plane;

pub use plane::{has_gradient, only_f64, widen};

use adaptive2d::PlaneKernel;
use backend_cpu::{Isa, OctreeSolver, Settings};
use backend_cuda::{Device, DeviceSolver, Direct};
use fmm_kernels::spherical::{SphericalOptions, layout::layout};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use fmm_traits::{
    Error, Family, Kernel, Lists, Member, Members, OutputColumns, Outputs, Precision, Solver, Targets, Tree, Visitor,
    facts,
};
use std::ops::Deref;
use std::sync::Arc;

/// Facts about the kernel that computes a set of outputs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Coordinates per point.
    pub dim: usize,
    /// Strengths per source.
    pub strengths: usize,
    /// Values per target of the kernel.
    pub values: usize,
    /// The columns of each output among the values.
    pub columns: Vec<OutputColumns>,
    /// Whether K(0) counts as 0.
    pub singular: bool,
    /// Whether K(−r) = K(r)ᵀ.
    pub reciprocal: bool,
    /// An error with the reason if the kernel has no expansion in spherical harmonics.
    pub harmonic: Result<(), Error>,
    /// Components of an equivalent density.
    pub densities: usize,
    /// Components of a check value.
    pub checks: usize,
    /// Whether one set of operators serves all levels.
    pub homogeneous: bool,
    /// The kernels of the outputs, whose facts [`check`](Facts::check) tries; empty in the plane.
    pub members: Vec<Member>,
}

impl Facts {
    /// Tries the stated facts of the kernels, for points that span `extent` (0: unknown).
    ///
    /// # Errors
    /// [`Error::Fact`] with the first fact that does not hold.
    pub fn check(&self, params: &[f64], extent: f64) -> Result<(), Error> {
        facts::check(&self.members, params, extent)
    }
    /// Components of `output`; 0 if the caller did not request it.
    pub fn components(&self, output: Outputs) -> usize {
        self.columns.iter().find(|c| c.output == output).map_or(0, |c| c.columns.len())
    }
}

struct Ask<'a, F>(&'a F);

impl<F: Family> Visitor for Ask<'_, F> {
    type Output = Facts;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Facts {
        let Members { check, equivalent, .. } = Members::of::<F>();
        Facts {
            dim: 3,
            strengths: S::STRENGTHS,
            values: S::VALUES,
            columns,
            singular: S::SINGULAR,
            reciprocal: S::RECIPROCAL,
            harmonic: layout::<F, E>(self.0).map(drop),
            densities: F::Equivalent::STRENGTHS,
            checks: F::Equivalent::VALUES,
            homogeneous: F::Equivalent::dilated(&self.0.parameters(), 2.0).is_none(),
            members: vec![equivalent, check, Member::of::<S>(), Member::of::<E>()],
        }
    }
}

/// Any family of kernels: a family of this workspace (`Laplace.into()`), or your own.
#[derive(Clone)]
pub struct AnyFamily(Arc<dyn Dynamic>);

impl AnyFamily {
    /// Wraps your own [`Kernel`] or [`Family`].
    pub fn new<F: Family>(family: F) -> Self {
        AnyFamily(Arc::new(Erased(family)))
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

/// The space in which the points of a family lie.
pub enum Place<'a> {
    /// Three-dimensional space, with the functions that its engines need.
    Space(&'a dyn InSpace),
    /// The plane.
    Plane(PlaneKernel),
}

/// The functions of a family that the facade needs.
pub trait Dynamic: Send + Sync {
    /// Name of the family.
    fn name(&self) -> &'static str;
    /// The space of the points.
    fn place(&self) -> Place<'_>;
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
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error>;
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
    ) -> Result<Vec<Vec<f64>>, Error>;

    /// Coordinates per point.
    fn dim(&self) -> usize {
        match self.place() {
            Place::Space(_) => 3,
            Place::Plane(_) => 2,
        }
    }
    /// The functions for octrees and GPUs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a family of the plane.
    fn in_space(&self) -> Result<&dyn InSpace, Error> {
        match self.place() {
            Place::Space(space) => Ok(space),
            Place::Plane(kernel) => Err(plane::no_octree(kernel)),
        }
    }
}

/// The functions of a family that engines in space need.
pub trait InSpace {
    /// A solver on the CPU, by spherical harmonics if `spherical`, else by equivalent densities.
    ///
    /// # Errors
    /// Errors of [`backend_cpu::plan`] and [`backend_cpu::spherical::plan`].
    fn solver(
        &self,
        outputs: Outputs,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        spherical: Option<SphericalOptions>,
    ) -> Result<Box<dyn OctreeSolver>, Error>;
    /// A fast solver on a GPU, with the near field in f64.
    ///
    /// # Errors
    /// Errors of [`backend_cuda::solver`].
    fn device_solver(
        &self,
        outputs: Outputs,
        settings: &backend_cuda::Settings,
        precision: Precision,
        points: backend_cuda::Placed,
    ) -> Result<Box<dyn DeviceSolver>, Error>;
    /// A direct sum on a GPU, in f64. In f32, with coordinates in one piece, pairs of points that lie close together
    /// would not keep a tolerance.
    ///
    /// # Errors
    /// Errors of [`backend_cuda::Direct::new`].
    fn device_sum(
        &self,
        device: &Device,
        outputs: Outputs,
        sources: &[f64],
        targets: Targets<'_>,
    ) -> Result<Box<dyn Solver>, Error>;
}

/// The only implementation of [`Dynamic`] and [`InSpace`] in space.
struct Erased<F>(F);

impl<F: Family> Dynamic for Erased<F> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn place(&self) -> Place<'_> {
        Place::Space(self)
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
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        self.0.visit(outputs, Ask(&self.0))
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
        let done = backend_cpu::direct_batch(&self.0, outputs, sources, strengths, targets, precision, isa);
        done.map(|(values, _)| values)
    }
}

impl<F: Family> InSpace for Erased<F> {
    fn solver(
        &self,
        outputs: Outputs,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        spherical: Option<SphericalOptions>,
    ) -> Result<Box<dyn OctreeSolver>, Error> {
        match spherical {
            Some(options) => backend_cpu::spherical::plan(&self.0, outputs, tree, lists, settings, options),
            None => backend_cpu::plan(&self.0, outputs, tree, lists, settings),
        }
    }
    fn device_solver(
        &self,
        outputs: Outputs,
        settings: &backend_cuda::Settings,
        precision: Precision,
        points: backend_cuda::Placed,
    ) -> Result<Box<dyn DeviceSolver>, Error> {
        match precision {
            Precision::F32 => backend_cuda::solver::<F, f32, f64>(&self.0, outputs, settings, points),
            Precision::F64 => backend_cuda::solver::<F, f64, f64>(&self.0, outputs, settings, points),
        }
    }
    fn device_sum(
        &self,
        device: &Device,
        outputs: Outputs,
        sources: &[f64],
        targets: Targets<'_>,
    ) -> Result<Box<dyn Solver>, Error> {
        Ok(Direct::<f64>::new(device, &self.0, outputs, sources, targets, None)?.solver())
    }
}
