//! Families of kernels behind one virtual table, so that plans of different kernels have one type. Everything generic over
//! the kernel is compiled here for the families of this project, for every instruction set and both precisions: whoever
//! uses [`AnyFamily`] need not compile it again.

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
    /// Coordinates of a point.
    pub dim: usize,
    /// Numbers per source.
    pub strengths: usize,
    /// Numbers per target as the kernel yields them.
    pub values: usize,
    /// Where each output lies among them.
    pub columns: Vec<OutputColumns>,
    /// Whether K(0) counts as 0.
    pub singular: bool,
    /// Whether K(−r) = K(r)ᵀ.
    pub reciprocal: bool,
    /// Why it has no expansion in spherical harmonics, if it has none.
    pub harmonic: Result<(), Error>,
    /// Components of an equivalent density.
    pub densities: usize,
    /// Components of a check value.
    pub checks: usize,
    /// Whether one set of operators serves all levels.
    pub homogeneous: bool,
    /// Whether some strengths are derivatives of charges or forces.
    pub dipolar: bool,
    /// The kernels behind the outputs, whose own facts [`check`](Facts::check) tries; none in the plane.
    pub members: Vec<Member>,
}

impl Facts {
    /// Tries what the kernels state of themselves, for points that span `extent` (0: unknown).
    ///
    /// # Errors
    /// [`Error::Fact`] with the first fact that does not hold.
    pub fn check(&self, params: &[f64], extent: f64) -> Result<(), Error> {
        facts::check(&self.members, params, extent)
    }
    /// Components of `output`, 0 when it was not asked for.
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
            dipolar: (0..S::STRENGTHS).any(|j| S::strength_degree(j) < 0),
            members: vec![equivalent, check, Member::of::<S>(), Member::of::<E>()],
        }
    }
}

/// Any family of kernels: one of this crate's (`Laplace.into()`), or your own.
#[derive(Clone)]
pub struct AnyFamily(Arc<dyn Dynamic>);

impl AnyFamily {
    /// Of your own [`Kernel`] or [`Family`].
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

/// Where the points of a family lie.
pub enum Place<'a> {
    /// In space, with what engines there need of it.
    Space(&'a dyn InSpace),
    /// In the plane.
    Plane(PlaneKernel),
}

/// What a facade needs of a family.
pub trait Dynamic: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Where its points lie.
    fn place(&self) -> Place<'_>;
    /// Its parameters, in the order of its constructor.
    fn parameters(&self) -> Vec<f64>;
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Parameter`] of one that makes no sense, [`Error::TooMany`] parameters.
    fn validate(&self) -> Result<(), Error>;
    /// The distance below which pairs are summed directly if errors of `tolerance` matter ([`Family::near_radius`]).
    fn near_radius(&self, tolerance: f64) -> f64;
    /// Facts about the kernel that computes `outputs`.
    ///
    /// # Errors
    /// [`Error::NoOutput`], [`Error::UnsupportedOutput`].
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error>;
    /// The direct sums of each set of strengths: rows of targets × [`Facts::values`].
    ///
    /// # Errors
    /// Those of [`backend_cpu::direct_batch`].
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[&[f64]],
        targets: Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Vec<f64>>, Error>;

    /// Coordinates of a point.
    fn dim(&self) -> usize {
        match self.place() {
            Place::Space(_) => 3,
            Place::Plane(_) => 2,
        }
    }
    /// Its sums over octrees and on a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of a family of the plane.
    fn in_space(&self) -> Result<&dyn InSpace, Error> {
        match self.place() {
            Place::Space(space) => Ok(space),
            Place::Plane(kernel) => Err(plane::no_octree(kernel)),
        }
    }
}

/// What the engines in space need of a family.
pub trait InSpace {
    /// On the CPU, by spherical harmonics if `spherical`, else by equivalent densities.
    ///
    /// # Errors
    /// Those of [`backend_cpu::plan`] and [`backend_cpu::spherical::plan`].
    fn solver(
        &self,
        outputs: Outputs,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
        spherical: Option<SphericalOptions>,
    ) -> Result<Box<dyn OctreeSolver>, Error>;
    /// The fast method on a GPU, with the near field in f64.
    ///
    /// # Errors
    /// Those of [`backend_cuda::solver`].
    fn device_solver(
        &self,
        outputs: Outputs,
        settings: &backend_cuda::Settings,
        precision: Precision,
        points: backend_cuda::Placed,
    ) -> Result<Box<dyn DeviceSolver>, Error>;
    /// A direct sum on a GPU, in f64: pairs in f32 with coordinates in one piece do not keep a tolerance on points that lie
    /// close together.
    ///
    /// # Errors
    /// Those of [`backend_cuda::Direct::new`].
    fn device_sum(
        &self,
        device: &Device,
        outputs: Outputs,
        sources: &[f64],
        targets: Targets<'_>,
    ) -> Result<Box<dyn Solver>, Error>;
}

/// The one implementation.
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
