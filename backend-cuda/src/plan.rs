//! A plan: everything that does not depend on strengths, that is programs, operators, tables, sorted edges and
//! workspaces.

use crate::base::{Base, Near};
use crate::device::Device;
use crate::equivalent::{DeviceScalar, Equivalent};
use crate::far::FarField;
use crate::levels::Units;
use crate::lists::DeviceLists;
use crate::run::Run;
use crate::spherical::{Spherical, SphericalSettings};
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_traits::{Error, Family, Kernels, Observer, OutputColumns, Outputs, Real, Stage, evaluate};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::path::PathBuf;

/// Largest number of boxes with which P2P runs beside the far field. On small trees the upper levels leave the device
/// idle, and P2P fills it; on large trees both compete (measured in docs/notes/gpu-performance.md).
const MAX_BOXES_BESIDE: usize = 1 << 19;

/// A summation planned on the device: expansions in `T`, near field in `N`.
#[derive(Debug)]
pub struct Plan<T: DeviceScalar, N: Real> {
    columns: Vec<OutputColumns>,
    pub(crate) scale: f64,
    pub(crate) near: Near,
    pub(crate) far: Box<dyn FarField>,
    pub(crate) base: Base,
    /// Whether P2P runs beside the far field. `None`: the way that is expected to be faster.
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

/// The expansion of the far field, with its settings.
#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    /// Equivalent densities on surfaces or in volumes, with the folder that keeps operators between runs.
    Equivalent(Fill, Option<PathBuf>),
    /// Spherical harmonics.
    Spherical(SphericalSettings),
}

impl<T: DeviceScalar, N: Real> Plan<T, N> {
    /// Plans equivalent densities of order `p` for `family` on a tree and its lists; `cache` is a folder that keeps
    /// operators between runs.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::Edge`] for an edge between boxes that no operator joins, and errors of the device.
    pub fn new<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        cache: Option<PathBuf>,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        Self::of(&Kernels::of(family, outputs)?, p, Carrier::Equivalent(Fill::Surface, cache), tree, lists)
    }

    /// Plans spherical harmonics of order `p`, degrees 0 … p − 1.
    ///
    /// # Errors
    /// As [`new`](Plan::new), and [`Error::Unsupported`] for a family whose far field is not a field of charges 1/r and
    /// dipoles.
    pub fn spherical<F: Family>(
        family: &F,
        outputs: Outputs,
        p: usize,
        settings: SphericalSettings,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        Self::of(&Kernels::of(family, outputs)?, p, Carrier::Spherical(settings), tree, lists)
    }

    pub(crate) fn of(
        kernels: &Kernels,
        p: usize,
        carrier: Carrier,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        let device = tree.device.clone();
        let units = Units { params: kernels.params.clone(), kernel: kernels.members.equivalent.clone() };
        let mut far: Box<dyn FarField> = match carrier {
            Carrier::Equivalent(fill, cache) => {
                let lattice = Lattice { order: p, fill };
                Box::new(Equivalent::<T>::new(&device, kernels, units, lattice, cache)?)
            }
            Carrier::Spherical(settings) => Box::new(Spherical::<T>::new(&device, kernels, p, settings)?),
        };
        // The near kernel may have parameters that the kernel of the densities does not scale, such as a softening.
        let near_units = Units { params: kernels.params.clone(), kernel: kernels.near.clone() };
        let near = Near::new::<N>(&device, kernels, near_units, T::NAME == "f32")?;
        let base = Base::new(&near, tree, lists)?;
        far.place(&base)?;
        let (columns, scale) = (kernels.columns.clone(), kernels.scale);
        Ok(Plan { columns, scale, near, far, base, beside: None, of: PhantomData })
    }

    /// Replaces the points by a new tree and its lists. Operators are kept, and released memory is reused. On an
    /// error the plan is as before.
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub fn set_tree(&mut self, tree: DeviceTree, lists: DeviceLists) -> Result<(), Error> {
        let base = Base::new(&self.near, tree, lists)?;
        self.far.place(&base)?;
        self.base = base;
        Ok(())
    }

    /// Decides whether P2P runs beside the far field (`Some(true)`) or behind the far field (`Some(false)`). `None`
    /// chooses the way that is expected to be faster. If P2P runs behind, the time of each stage is the time of that
    /// stage alone.
    pub fn set_beside(&mut self, beside: Option<bool>) {
        self.beside = beside;
    }

    /// Makes M2L take at most `most` of the p frequencies along one axis at a time, as if more spectra did not fit into
    /// memory. Lasts until the points change. For tests.
    pub fn set_m2l_part(&mut self, most: usize) {
        self.far.hold(most);
    }

    /// Whether P2P runs beside the far field.
    pub(crate) fn beside(&self) -> bool {
        self.beside.unwrap_or(self.far.leaves_room() && self.base.tree.len() <= MAX_BOXES_BESIDE)
    }

    /// The columns of each output among the values of a target.
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

    /// One evaluation: `strengths` (N×strengths) → values (M×values), both in the caller's order. Also returns the
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
    /// [`Error::Shape`], [`Error::Cancelled`], and errors of the device.
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

    /// Enqueues one evaluation on arrays of the caller in device memory. The evaluation runs after the work that is
    /// already in `stream`, and before work that `stream` gets later. Does not wait for the evaluation.
    ///
    /// # Errors
    /// Errors of the device. Errors of the evaluation itself are reported by the next call that waits.
    ///
    /// # Safety
    /// `ends` are arrays of this device with the lengths that [`apply_into`](Plan::apply_into) requires, valid until
    /// the evaluation is done. `stream` is a live stream of the device's primary context, or null for the default
    /// stream.
    pub unsafe fn enqueue(&mut self, ends: Ends, stream: *mut c_void) -> Result<(), Error> {
        let device = self.device().clone();
        // SAFETY: the caller promises what the callee asks for.
        unsafe { device.within(stream.cast(), || evaluate(&mut Run::new(self, ends), &(), &mut |_, _| true)) }
    }

    pub(crate) fn device(&self) -> &Device {
        self.base.device()
    }
}
