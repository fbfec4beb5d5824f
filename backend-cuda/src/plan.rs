//! A plan: everything that does not depend on strengths, that is programs, operators, tables, sorted edges and
//! workspaces.

use crate::array::{DeviceArray, DeviceStream};
use crate::base::{Base, Near};
use crate::device::Device;
use crate::ends::{Arrays, Ends};
use crate::equivalent::{DeviceScalar, Fields};
use crate::evaluation::{self, Evaluation};
use crate::far::{FarField, Made};
use crate::graph::Graph;
use crate::levels::Units;
use crate::lists::DeviceLists;
use crate::near_alone::NoFarField;
use crate::pinned::joined;
use crate::run::{Mode, Run};
use crate::spherical::{Spherical, SphericalSettings};
use crate::tree::DeviceTree;
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_traits::{
    Error, Family, Kernels, Numbers, NumbersMut, Observer, OutputColumns, Outputs, Real, Stage, StageSeconds, evaluate,
};
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
    pub(crate) ends: Ends,
    /// Whether P2P runs beside the far field. `None`: the way that is expected to be faster.
    beside: Option<bool>,
    pub(crate) replay: Replay,
    /// New points that wait for a [`commit`](Plan::commit).
    fresh: Option<Fresh>,
    of: PhantomData<(T, N)>,
}

/// Largest number of boxes with which evaluations are recorded and replayed. On small trees the device waits for
/// launches; one launch of a recorded evaluation replaces them all.
const MAX_BOXES_REPLAYED: usize = 1 << 16;

/// The stages between both ends of an evaluation, as recorded work.
#[derive(Debug, Default)]
pub(crate) enum Replay {
    /// No evaluation has run on these points.
    #[default]
    None,
    /// One has run. The next one on arrays of the device is recorded.
    Ran,
    /// Evaluations are not recorded.
    Never,
    /// Recorded work.
    Recorded(Graph),
}

/// The expansion of the far field, with its settings.
#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    /// Equivalent densities on surfaces or in volumes, with the folder that keeps operators between runs.
    Equivalent(Fill, Option<PathBuf>),
    /// Spherical harmonics.
    Spherical(SphericalSettings),
    /// None: there are no far edges.
    Nothing,
}

/// New points of a plan, beside the present points.
#[derive(Debug)]
struct Fresh {
    base: Base,
    far: Made,
}

/// A plan without points: programs, and operators for one side of boxes. (The operators of a homogeneous kernel serve
/// boxes of any side.)
pub(crate) struct Unplaced<T: DeviceScalar, N: Real> {
    columns: Vec<OutputColumns>,
    scale: f64,
    near: Near,
    far: Box<dyn FarField>,
    ends: Ends,
    of: PhantomData<(T, N)>,
}

impl<T: DeviceScalar, N: Real> Unplaced<T, N> {
    /// Loads programs, and makes the operators of boxes of the side `ahead`.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        p: usize,
        carrier: Carrier,
        ahead: Option<f64>,
    ) -> Result<Self, Error> {
        // The near kernel may have parameters that the kernel of the densities does not scale, such as a softening.
        let near_units = Units { params: kernels.params.clone(), kernel: kernels.near.clone() };
        // The program of the near field, which takes longest to compile, is compiled beside those of the far field.
        let (near, far) = std::thread::scope(|scope| {
            let near = scope.spawn(|| Near::new::<N>(device, kernels, near_units, T::NAME == "f32"));
            let far = || -> Result<Box<dyn FarField>, Error> {
                Ok(match carrier {
                    Carrier::Equivalent(fill, cache) => {
                        let lattice = Lattice { order: p, fill, dim: kernels.near.dim };
                        Box::new(Fields::<T>::new(device, kernels, lattice, cache, ahead)?)
                    }
                    Carrier::Spherical(settings) => Box::new(Spherical::<T>::new(device, kernels, p, settings)?),
                    Carrier::Nothing => Box::new(NoFarField),
                })
            };
            let far = far();
            (joined(near), far)
        });
        let (near, far, columns) = (near?, far?, kernels.columns.clone());
        let ends = Ends::new(device, &columns, near.strengths(), near.values())?;
        Ok(Unplaced { columns, scale: kernels.scale, near, far, ends, of: PhantomData })
    }

    /// Arranges edges, and allocates workspaces.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn place(self, tree: DeviceTree, lists: DeviceLists) -> Result<Plan<T, N>, Error> {
        let Unplaced { columns, scale, near, mut far, ends, of } = self;
        let Fresh { base, far: made } = fresh(&near, &mut *far, tree, lists)?;
        far.take(made);
        Ok(Plan { columns, scale, near, far, base, ends, beside: None, replay: Replay::None, fresh: None, of })
    }
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

    /// [`new`](Plan::new) for the kernels of a family, with densities on surfaces or in volumes.
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub fn of_kernels(
        kernels: &Kernels,
        fill: Fill,
        p: usize,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        Self::of(kernels, p, Carrier::Equivalent(fill, None), tree, lists)
    }

    pub(crate) fn of(
        kernels: &Kernels,
        p: usize,
        carrier: Carrier,
        tree: DeviceTree,
        lists: DeviceLists,
    ) -> Result<Self, Error> {
        let far = !(lists.p2m.is_empty() && lists.l2p.is_empty() && lists.m2p.is_empty());
        let ahead = far.then(|| tree.smallest_side());
        Unplaced::new(&tree.device.clone(), kernels, p, carrier, ahead)?.place(tree, lists)
    }

    /// Replaces the points by a new tree and its lists. Operators are kept, and released memory is reused. On an
    /// error the plan is as before. Ranks of one tree do not know of the errors of others here.
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub fn set_tree(&mut self, tree: DeviceTree, lists: DeviceLists) -> Result<(), Error> {
        self.make(tree, lists)?;
        self.commit();
        Ok(())
    }

    /// Makes everything that the plan needs for new points. Sums are those of the present points until a
    /// [`commit`](Plan::commit).
    ///
    /// # Errors
    /// As [`new`](Plan::new).
    pub(crate) fn make(&mut self, tree: DeviceTree, lists: DeviceLists) -> Result<(), Error> {
        self.fresh = None;
        self.fresh = Some(fresh(&self.near, &mut *self.far, tree, lists)?);
        Ok(())
    }

    /// Takes the new points that wait for it.
    pub(crate) fn commit(&mut self) {
        let Some(Fresh { base, far }) = self.fresh.take() else { return };
        // Recorded work has the addresses of the old workspaces.
        self.replay = Replay::None;
        self.far.take(far);
        self.base = base;
        self.ends.forget_room();
    }

    /// Drops new points that wait for a [`commit`](Plan::commit).
    pub(crate) fn forget(&mut self) {
        self.fresh = None;
    }

    /// Decides whether P2P runs beside the far field (`Some(true)`) or behind the far field (`Some(false)`). `None`
    /// chooses the way that is expected to be faster. If P2P runs behind, the time of each stage is the time of that
    /// stage alone.
    pub fn set_beside(&mut self, beside: Option<bool>) {
        (self.beside, self.replay) = (beside, Replay::None);
    }

    /// Makes M2L take at most `most` of the p frequencies along one axis at a time, as if more spectra did not fit into
    /// memory. Lasts until the points change. For tests.
    pub fn set_m2l_part(&mut self, most: usize) {
        self.far.hold(most);
        self.replay = Replay::None;
    }

    /// Takes the targets in pieces of at most `most` targets, as if there were memory for the values of no more. Lasts
    /// until the points change. For tests.
    ///
    /// # Errors
    /// [`Error::Memory`] if a leaf has more targets, and errors of the device.
    pub fn set_piece(&mut self, most: usize) -> Result<(), Error> {
        self.replay = Replay::None;
        self.base.divide(&self.near, self.far.groups(), 0, Some(most))
    }

    /// Cuts the edges of each leaf into parts of at most `most`, which different blocks sum. Lasts until the points change.
    /// For tests.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_part(&mut self, most: u32) -> Result<(), Error> {
        self.replay = Replay::None;
        self.base.set_part(most);
        self.base.divide(&self.near, self.far.groups(), 0, None)
    }

    /// Number of pieces in which the targets are taken, one after the other.
    pub fn pieces(&self) -> usize {
        self.base.pieces()
    }

    /// Whether P2P runs beside the far field. All ranks that share a tree do the same. If some ran P2P beside, the others
    /// would wait for multipoles that come late.
    pub(crate) fn beside(&self) -> bool {
        self.beside.unwrap_or(self.far.leaves_room() && self.base.tree.boxes_of_all() <= MAX_BOXES_BESIDE)
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
        self.base.bytes() + self.far.bytes() + self.ends.bytes()
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
        let mut out = vec![0.0; self.base.given()[1] * self.values()];
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
        evaluation::apply(self, Numbers::F64(strengths), &mut [NumbersMut::F64(out)], true, observer)
    }

    /// [`apply_into`](Plan::apply_into) for several sets of strengths, with the same bits. On one rank the host waits once,
    /// and does not time the stages of more than one set.
    ///
    /// # Errors
    /// As [`apply_into`](Plan::apply_into).
    pub fn apply_batch(
        &mut self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<[f64; Stage::ALL.len()], Error> {
        evaluation::apply_batch(self, strengths, out, observer)
    }

    /// One evaluation on arrays of the host, with one array per output in the order of [`columns`](Plan::columns).
    /// Numbers may be f32 or f64, whatever the precision of the plan. On an error the arrays are as before.
    ///
    /// # Errors
    /// As [`apply_into`](Plan::apply_into), and [`Error::NotFinite`] for NaN or infinity in strengths or values.
    pub fn apply_numbers(
        &mut self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<[f64; Stage::ALL.len()], Error> {
        evaluation::apply(self, strengths, values, false, observer)
    }

    /// Enqueues one evaluation on arrays of the device, with one array per output in the order of
    /// [`columns`](Plan::columns). The evaluation runs after the work that is already in `stream`, and before work that
    /// `stream` gets later. Does not wait for the evaluation, but on several ranks: there the call ends with that of this
    /// rank. Until it has ended on all ranks, no rank may call it again, give new points or drop the plan: others may
    /// still read its arrays.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Array`] for arrays that do not fit, [`Error::NotFinite`] for numbers in an
    /// earlier evaluation that is done, and errors of the device.
    pub fn enqueue(
        &mut self,
        strengths: &DeviceArray,
        values: &[DeviceArray],
        stream: &DeviceStream,
    ) -> Result<(), Error> {
        evaluation::enqueue(self, strengths, values, stream)
    }

    /// Waits for all enqueued evaluations.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for numbers in one of them, and errors of the device.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        self.ends.check(true)
    }

    pub(crate) fn device(&self) -> &Device {
        self.base.device()
    }
}

/// Everything for new points.
fn fresh(near: &Near, far: &mut dyn FarField, tree: DeviceTree, lists: DeviceLists) -> Result<Fresh, Error> {
    let mut base = Base::new(near, tree, lists)?;
    let made = far.make(&base)?;
    base.divide(near, far.groups(), arrays_of_the_host(near, &base), None)?;
    Ok(Fresh { base, far: made })
}

/// Bytes on the device for an evaluation on arrays of the host in f64.
fn arrays_of_the_host(near: &Near, base: &Base) -> u64 {
    let [n, m] = base.given();
    (size_of::<f64>() * (n * near.strengths() + m * near.values())) as u64
}

impl<T: DeviceScalar, N: Real> Evaluation for Plan<T, N> {
    fn device(&self) -> &Device {
        self.base.device()
    }
    fn counts(&self) -> [usize; 2] {
        self.base.given()
    }
    fn ends(&mut self) -> &mut Ends {
        &mut self.ends
    }
    fn shared(&self) -> bool {
        self.base.ranks().is_some()
    }
    fn wait(&self) -> Result<(), Error> {
        self.base.ranks().map_or(Ok(()), |ranks| ranks.wait())
    }
    fn spoilt(&self) -> Result<bool, Error> {
        self.base.spoilt()
    }
    fn run(&mut self, arrays: &Arrays, observer: Observer, timed: bool) -> Result<StageSeconds, Error> {
        if !timed && matches!(self.replay, Replay::Ran) {
            let device = self.base.device().clone();
            let record = || evaluate(&mut Run::new(self, arrays, Mode::Record), &(), &mut |_, _| true);
            // Without a record, each evaluation is enqueued stage by stage.
            self.replay = device.record(record).map_or(Replay::Never, Replay::Recorded);
        }
        let mode = match &self.replay {
            _ if timed => Mode::Timed,
            Replay::Recorded(_) => Mode::Replay,
            Replay::Never | Replay::None | Replay::Ran => Mode::Plain,
        };
        let mut run = Run::new(self, arrays, mode);
        evaluate(&mut run, &(), observer)?;
        let seconds = run.seconds()?;
        drop(run);
        if matches!(self.replay, Replay::None) {
            // What ranks send each other is not recorded, nor are the ends of pieces.
            let whole = self.base.ranks().is_none() && self.base.pieces() == 1;
            let small = self.base.tree.len() <= MAX_BOXES_REPLAYED && whole;
            self.replay = if small { Replay::Ran } else { Replay::Never };
        }
        Ok(seconds)
    }
}
