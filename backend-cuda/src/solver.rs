//! A plan without its types, from points on the host to values on the host.

use crate::device::Device;
use crate::equivalent::{DeviceScalar, Plan};
use crate::lists::{DeviceEdges, DeviceLists, near_pairs, uvwx};
use crate::tree::{DeviceTree, build_reported};
use fmm_traits::{Error, Family, Lists, Observer, OutputColumns, Outputs, Real, Stage, Tree};
use fmm_tree::{BuildOptions, BuildReport, ListOptions};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How a plan computes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Order p of the surfaces.
    pub order: usize,
    /// How boxes are split.
    pub tree: BuildOptions,
    /// Which far edges are summed pair by pair.
    pub lists: ListOptions,
    /// Folder in which operators are kept between runs; `None`: in memory only.
    pub cache: Option<PathBuf>,
}

/// What a plan made of its points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Levels of the tree.
    pub levels: usize,
    /// Boxes of the tree.
    pub boxes: usize,
    /// Leaves of the tree.
    pub leaves: usize,
    /// Side of the root cube.
    pub root_side: f64,
    /// Edges, in the order of [`Lists::kinds`].
    pub edges: [usize; 8],
    /// Pairs of points summed directly.
    pub near_pairs: u64,
}

/// Seconds of the parts of planning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanSeconds {
    /// Points sent and tree built.
    pub tree: f64,
    /// Edge lists.
    pub lists: f64,
    /// Operators and workspaces.
    pub operators: f64,
}

/// A plan of any family, outputs and precisions. `apply` may be called from several threads; calls wait for each
/// other, as there is one workspace.
pub trait Solver: Send + Sync {
    /// Values per target in the output of [`apply`](Solver::apply).
    fn values(&self) -> usize;
    /// Where each requested output lies among them.
    fn columns(&self) -> Vec<OutputColumns>;
    /// Exchanges the points (N×3; `targets`: `None` for the sources); operators are kept, and memory is reused. On an
    /// error the plan is as before.
    fn set_points(&mut self, sources: &[f64], targets: Option<&[f64]>) -> Result<(), Error>;
    /// Sums for one set of strengths (N×s) into `out` (targets × values), both in the caller's order; seconds of each
    /// stage on the device.
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<[f64; Stage::ALL.len()], Error>;
    /// What was chosen for the tree.
    fn report(&self) -> &BuildReport;
    /// Seconds of planning.
    fn seconds(&self) -> PlanSeconds;
    /// Boxes, edges and pairs.
    fn counts(&self) -> &Counts;
    /// Bytes of device memory held.
    fn bytes(&self) -> u64;
    /// A copy of tree and lists on the host.
    fn download(&self) -> Result<(Tree, Lists), Error>;
}

/// Plans on the device: expansions in `T`, near field in `N`.
///
/// # Errors
/// As [`Plan::new`] and [`build_reported`].
pub fn solver<F: Family, T: DeviceScalar, N: Real>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    settings: &Settings,
    sources: &[f64],
    targets: Option<&[f64]>,
) -> Result<Box<dyn Solver>, Error> {
    let prepared = Prepared::new(device, settings, sources, targets)?;
    let start = Instant::now();
    let Prepared { tree, lists, report, mut seconds, counts } = prepared;
    let plan = Plan::<T, N>::new(family, outputs, settings.order, settings.cache.clone(), tree, lists)?;
    device.synchronize()?;
    seconds.operators = start.elapsed().as_secs_f64();
    let (device, settings) = (device.clone(), settings.clone());
    Ok(Box::new(Planned { device, settings, plan: Mutex::new(plan), report, seconds, counts }))
}

/// Tree and lists of points, and what there is to say of them.
struct Prepared {
    tree: DeviceTree,
    lists: DeviceLists,
    report: BuildReport,
    seconds: PlanSeconds,
    counts: Counts,
}

impl Prepared {
    fn new(device: &Device, settings: &Settings, sources: &[f64], targets: Option<&[f64]>) -> Result<Self, Error> {
        let start = Instant::now();
        let (tree, report) = build_reported(device, sources, targets, &settings.tree)?;
        device.synchronize()?;
        let built = start.elapsed().as_secs_f64();
        let lists = uvwx(&tree, &settings.lists)?;
        let near_pairs = near_pairs(&tree, &lists)?;
        let seconds = PlanSeconds { tree: built, lists: start.elapsed().as_secs_f64() - built, operators: 0.0 };
        let counts = Counts {
            levels: tree.level_start.len() - 1,
            boxes: tree.len(),
            leaves: (tree.sources.len().max(tree.targets.len()) as f64 / report.mean_leaf).round() as usize,
            root_side: tree.side,
            edges: lists.kinds().map(DeviceEdges::len),
            near_pairs,
        };
        Ok(Prepared { tree, lists, report, seconds, counts })
    }
}

/// The one implementation.
struct Planned<T: DeviceScalar, N: Real> {
    device: Device,
    settings: Settings,
    plan: Mutex<Plan<T, N>>,
    report: BuildReport,
    seconds: PlanSeconds,
    counts: Counts,
}

impl<T: DeviceScalar, N: Real> Planned<T, N> {
    /// A panic of another thread inside a run leaves nothing that the next run does not overwrite.
    fn plan(&self) -> MutexGuard<'_, Plan<T, N>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeviceScalar, N: Real> Solver for Planned<T, N> {
    fn values(&self) -> usize {
        self.plan().values()
    }
    fn columns(&self) -> Vec<OutputColumns> {
        self.plan().columns().to_vec()
    }
    fn set_points(&mut self, sources: &[f64], targets: Option<&[f64]>) -> Result<(), Error> {
        let prepared = Prepared::new(&self.device, &self.settings, sources, targets)?;
        let start = Instant::now();
        let plan = self.plan.get_mut().unwrap_or_else(PoisonError::into_inner);
        plan.set_tree(prepared.tree, prepared.lists)?;
        self.device.synchronize()?;
        (self.report, self.seconds, self.counts) = (prepared.report, prepared.seconds, prepared.counts);
        self.seconds.operators = start.elapsed().as_secs_f64();
        Ok(())
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<[f64; Stage::ALL.len()], Error> {
        self.plan().apply_into(strengths, out, observer)
    }
    fn report(&self) -> &BuildReport {
        &self.report
    }
    fn seconds(&self) -> PlanSeconds {
        self.seconds
    }
    fn counts(&self) -> &Counts {
        &self.counts
    }
    fn bytes(&self) -> u64 {
        self.plan().bytes()
    }
    fn download(&self) -> Result<(Tree, Lists), Error> {
        let plan = self.plan();
        Ok((plan.tree().download()?, plan.lists().download()?))
    }
}
