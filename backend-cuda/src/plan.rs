//! Everything that does not depend on strengths: programs, operators, tables, arranged edges, workspaces.

use crate::base::{Base, Near};
use crate::device::Device;
use crate::equivalent::{DeviceScalar, Equivalent};
use crate::far::FarField;
use crate::levels::Units;
use crate::lists::DeviceLists;
use crate::run::Run;
use crate::spherical::{Spherical, SphericalSettings};
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::operators::unit_parameters;
use fmm_traits::{Error, Family, Kernel, Observer, OutputColumns, Outputs, Real, Stage, Visitor, evaluate};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::path::PathBuf;

/// Most boxes with which P2P runs beside the far field.
const BESIDE: usize = 1 << 19;

/// A summation planned on the device: expansions in `T`, near field in `N`.
#[derive(Debug)]
pub struct Plan<T: DeviceScalar, N: Real> {
    columns: Vec<OutputColumns>,
    pub(crate) scale: f64,
    pub(crate) near: Near,
    pub(crate) far: Box<dyn FarField>,
    pub(crate) base: Base,
    /// Whether P2P runs beside the far field; `None`: where it pays.
    beside: Option<bool>,
    of: PhantomData<(T, N)>,
}

/// Arrays of one evaluation in device memory, by their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// N×strengths numbers in f64, in the caller's order.
    pub strengths: u64,
    /// M×values numbers in f64, in the caller's order; overwritten.
    pub values: u64,
}

/// What carries the far field.
#[derive(Clone, Debug)]
enum Carrier {
    /// Equivalent densities; folder that keeps operators between runs.
    Equivalent(Option<PathBuf>),
    Spherical(SphericalSettings),
}

impl<T: DeviceScalar, N: Real> Plan<T, N> {
    /// Plans equivalent densities of order `p` for `family` on a tree and its lists; `cache` is a folder that keeps operators
    /// between runs.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Edge`] for an edge between boxes that no operator joins, and those of
    /// the device.
    pub fn new<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        cache: Option<PathBuf>,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        Self::of(family, outputs, p, Carrier::Equivalent(cache), tree, lists)
    }

    /// Plans spherical harmonics of order `p`, degrees 0 … p − 1.
    ///
    /// # Errors
    /// As [`new`](Plan::new); [`Error::Unsupported`] for a family whose far field is not that of charges 1/r and dipoles.
    pub fn spherical<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        settings: SphericalSettings,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        Self::of(family, outputs, p, Carrier::Spherical(settings), tree, lists)
    }

    fn of<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        carrier: Carrier,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        family.validate()?;
        family.visit(outputs, New::<F, T, N> { family, p, carrier, tree, lists, of: PhantomData })?
    }

    /// Exchanges the points: a new tree and its lists. Operators are kept, and what buffers release serves the new
    /// ones. On an error the plan is as before.
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub fn set_tree(&mut self, tree: DeviceTree, lists: DeviceLists) -> Result<(), Error> {
        let base = Base::new(&self.near, tree, lists)?;
        self.far.place(&base)?;
        self.base = base;
        Ok(())
    }

    /// Whether P2P runs beside the far field (`None`: where it pays) or behind it: then the times of stages are those that
    /// each takes alone.
    pub fn set_beside(&mut self, beside: Option<bool>) {
        self.beside = beside;
    }

    /// M2L through Fourier space in parts of at most this many of the p frequencies along one axis, as where spectra do not
    /// fit; until the points change.
    pub fn set_m2l_part(&mut self, most: usize) {
        self.far.hold(most);
    }

    /// It pays where levels of few boxes leave the device idle: with one component, 8 % at 2²⁰ points and 1 % at 2²⁴ (3·10⁵
    /// boxes); −8 % at 2²⁷ (2.5·10⁶ boxes), −5 to −9 % with three components.
    pub(crate) fn beside(&self) -> bool {
        self.beside.unwrap_or(self.far.leaves_room() && self.base.tree.len() <= BESIDE)
    }

    /// Where each output lies among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// Values of a target.
    pub fn values(&self) -> usize {
        self.near.values()
    }

    /// The tree.
    pub fn tree(&self) -> &DeviceTree {
        &self.base.tree
    }

    /// The edge lists.
    pub fn lists(&self) -> &DeviceLists {
        &self.base.lists
    }

    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        self.base.bytes() + self.far.bytes()
    }

    /// One evaluation: `strengths` N×strengths → values M×values, both in the caller's order; with the
    /// seconds of each stage on the device.
    ///
    /// # Errors
    /// As [`apply_into`](Plan::apply_into).
    pub fn apply(
        &mut self,
        strengths: &[f64],
        observer: Observer,
    ) -> Result<(Vec<f64>, [f64; Stage::ALL.len()]), Error> {
        let mut out = vec![0.0; self.base.tree.targets.len() * self.values()];
        let seconds = self.apply_into(strengths, &mut out, observer)?;
        Ok((out, seconds))
    }

    /// [`apply`](Plan::apply) into a slice, which is overwritten.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Cancelled`], and those of the device.
    pub fn apply_into(
        &mut self,
        strengths: &[f64],
        out: &mut [f64],
        observer: Observer,
    ) -> Result<[f64; Stage::ALL.len()], Error> {
        let tree = &self.base.tree;
        let shape = |array, found: usize, expected: usize, why: &str| {
            if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why: why.to_string() }) }
        };
        let expected = tree.sources.len() * self.near.strengths();
        shape("strengths", strengths.len(), expected, "sources × strengths of the kernel")?;
        shape("values", out.len(), tree.targets.len() * self.values(), "targets × values of the kernel")?;
        let device = tree.device.clone();
        let (given, values) = self.base.ends()?;
        device.write(given, 0, strengths, "strengths")?;
        let ends = Ends { strengths: given.address(), values: values.address() };
        let mut run = Run::new(self, ends);
        evaluate(&mut run, &(), observer)?;
        let seconds = run.seconds()?;
        drop(run);
        device.read(self.base.ends()?.1, out, "values")?;
        Ok(seconds)
    }

    /// Enqueues one evaluation with arrays of the caller in device memory, behind what `stream` has; what that gets from
    /// here on is behind the evaluation. Does not wait for it.
    ///
    /// # Errors
    /// Those of the device. Errors of the evaluation itself come from whatever waits for it.
    ///
    /// # Safety
    /// `ends` are arrays of this device as long as [`apply_into`](Plan::apply_into) wants them, which stay until the
    /// evaluation is done; `stream` is a live stream of the device's primary context, or null for the default one.
    pub unsafe fn enqueue(&mut self, ends: Ends, stream: *mut c_void) -> Result<(), Error> {
        let device = self.device().clone();
        // SAFETY: that of the caller.
        unsafe { device.within(stream.cast(), || evaluate(&mut Run::new(self, ends), &(), &mut |_, _| true)) }
    }

    pub(crate) fn device(&self) -> &Device {
        self.base.device()
    }
}

struct New<'a, F, T, N> {
    family: &'a F,
    p: usize,
    carrier: Carrier,
    tree: DeviceTree,
    lists: DeviceLists,
    of: PhantomData<(T, N)>,
}

impl<F: Family, T: DeviceScalar, N: Real> Visitor for New<'_, F, T, N> {
    type Output = Result<Plan<T, N>, Error>;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let New { family, p, carrier, tree, lists, .. } = self;
        let device = tree.device.clone();
        let units = Units { params: family.parameters(), unit: unit_parameters::<F> };
        let mut far: Box<dyn FarField> = match carrier {
            Carrier::Equivalent(cache) => Box::new(Equivalent::<T>::new::<F, E>(&device, units.clone(), p, cache)?),
            Carrier::Spherical(settings) => Box::new(Spherical::<T>::new::<F, S, E>(&device, family, p, settings)?),
        };
        let near = Near::new::<S, N>(&device, units, T::NAME == "f32")?;
        let base = Base::new(&near, tree, lists)?;
        far.place(&base)?;
        Ok(Plan { columns, scale: family.scale(), near, far, base, beside: None, of: PhantomData })
    }
}
