//! A plan behind a trait without type parameters.

use crate::array::{DeviceArray, DeviceStream};
use crate::cut::Cut;
use crate::device::{Buffer, Device};
use crate::equivalent::DeviceScalar;
use crate::joint::{JointPoints, JointTree, OwnOrder, build_joint};
use crate::lists::{
    Acceptance, DeviceEdges, DeviceLists, Scope, near_pairs_there, stencil119_of, treecode_of, uvwx_of,
};
use crate::plan::{Carrier, Plan, Unplaced};
use crate::points::CallerPoints;
use crate::programs;
use crate::ranks::Routes;
use crate::shares::programs::OF_SHARES;
use crate::shares::{Parts, Share, Sharing, share, sizes_of_all};
use crate::spherical::SphericalSettings;
use crate::tree::{DeviceTree, build_reported};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::{equivalent, spherical};
use fmm_traits::{
    Error, Kernels, Lists, Numbers, NumbersMut, Observer, OutputColumns, Policy, Precision, Real, Solver, StageSeconds,
    Tree,
};
use fmm_tree::{BuildOptions, BuildReport, ListOptions, TreecodeOptions};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Levels of a tree whose boxes are all adjacent.
const LEVELS_WITHOUT_FAR: usize = 2;

/// The expansion of the far field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expansion {
    /// Equivalent densities, of any kernel, on surfaces or in volumes.
    Equivalent(Fill),
    /// Spherical harmonics, of charges 1/r and dipoles.
    Spherical(SphericalSettings),
}

/// Settings of a plan.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The expansion of the far field.
    pub expansion: Expansion,
    /// The list policy.
    pub policy: Policy,
    /// Order p of the lattices, or number of degrees of the harmonics.
    pub order: usize,
    /// Thresholds below which far edges are summed pair by pair.
    pub lists: ListOptions,
    /// Whether P2P runs beside the far field: [`Plan::set_beside`].
    pub beside: Option<bool>,
    /// Folder in which operators are kept between runs; `None`: in memory only.
    pub cache: Option<PathBuf>,
}

impl Settings {
    /// What the lists depend on.
    fn key(&self) -> ListKey {
        let radii = match self.expansion {
            Expansion::Equivalent(_) => [0.0, equivalent::expansion::M2P_RADIUS],
            Expansion::Spherical(_) => [spherical::expansion::M2P_RADIUS, 0.0],
        };
        (self.policy, self.lists, radii)
    }

    /// The edge lists of the policy. Pairs nearer than `near` must be summed directly, so a treecode accepts no box
    /// that is nearer.
    fn lists_of(&self, tree: &DeviceTree, scope: &Scope, near: f64) -> Result<DeviceLists, Error> {
        let theta = match self.policy {
            Policy::Uvwx => return uvwx_of(tree, scope, &self.lists),
            Policy::Stencil119 => return stencil119_of(tree, scope, &self.lists),
            Policy::Treecode { theta } => theta,
        };
        let (_, _, [sphere, cube]) = self.key();
        let options = TreecodeOptions { theta, m2p_min_sources: self.lists.m2p_min_sources };
        treecode_of(tree, scope, &options, Acceptance { sphere, cube, near })
    }
}

/// Sizes of the tree and the lists of a plan.
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

/// A [`Solver`] on a device that takes and gives arrays of either precision, on the device or on the host: one array
/// per output, in the order of [`columns`](Solver::columns). Calls wait for each other, because there is one
/// workspace.
pub trait DeviceSums: Solver {
    /// [`Plan::apply_numbers`].
    ///
    /// # Errors
    /// As there.
    fn apply_numbers(
        &self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error>;
    /// [`Plan::enqueue`], with what it says of several ranks.
    ///
    /// # Errors
    /// As there.
    fn enqueue(&self, strengths: &DeviceArray, values: &[DeviceArray], stream: &DeviceStream) -> Result<(), Error>;
    /// [`Plan::synchronize`].
    ///
    /// # Errors
    /// As there.
    fn synchronize(&self) -> Result<(), Error>;
    /// Copies of the sources, and of the targets if they are separate points (else empty), in the caller's order. Of a tree
    /// that ranks share, those of the caller of this rank; all ranks call it together.
    ///
    /// # Errors
    /// Errors of the device.
    fn points(&self) -> Result<[Vec<f64>; 2], Error>;
}

/// [`DeviceSums`] of a fast method, whose points can be exchanged.
pub trait DeviceSolver: DeviceSums {
    /// Makes everything for new points. Sums are those of the present points until a [`commit`](DeviceSolver::commit).
    /// Operators are kept. Returns the seconds that the new points have taken.
    ///
    /// # Errors
    /// What the device reports.
    fn make(&mut self, points: Placed) -> Result<PlanSeconds, Error>;
    /// Replaces the points by those that were [made](DeviceSolver::make) last, if they still wait for it.
    fn commit(&mut self);
    /// Drops new points that wait for a [`commit`](DeviceSolver::commit).
    fn forget(&mut self);
    /// [`make`](DeviceSolver::make) and [`commit`](DeviceSolver::commit). On an error the plan is as before. Ranks of one
    /// tree take the two steps themselves, and agree between them.
    ///
    /// # Errors
    /// What the device reports.
    fn set_points(&mut self, points: Placed) -> Result<(), Error> {
        self.make(points)?;
        self.commit();
        Ok(())
    }
    /// The numbers of the sources of this rank's share, in tree order, if the sources of all callers are counted in the order
    /// of ranks. On one rank: of all sources.
    ///
    /// # Errors
    /// Errors of the device.
    fn owned(&self) -> Result<Vec<u32>, Error>;
    /// Moves rows of `width` numbers, one for each source of the caller, in the order of `stream`, to the ranks that own the
    /// sources. Returns the rows of the sources that this rank owns, in tree order; on one rank, of all. All ranks call it
    /// together. Waits.
    ///
    /// # Errors
    /// [`Error::Array`] for an array of another device, and errors of the device.
    fn adopt(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error>;
    /// The report of the tree.
    fn report(&self) -> &BuildReport;
    /// Seconds of planning.
    fn seconds(&self) -> PlanSeconds;
    /// Boxes, edges and pairs.
    fn counts(&self) -> &Counts;
    /// Number of pieces in which the targets are taken, one after the other.
    fn pieces(&self) -> usize;
    /// A copy of tree and lists on the host.
    ///
    /// # Errors
    /// What the device reports.
    fn download(&self) -> Result<(Tree, Lists), Error>;
}

/// Points in their tree on a device, and the lists that were made for them last.
#[derive(Debug)]
pub struct Placed {
    tree: DeviceTree,
    report: BuildReport,
    /// Smallest side of a box.
    min_side: f64,
    seconds: f64,
    arranged: Option<Arranged>,
    /// What this rank has of the points and lists, if other ranks have the others.
    parts: Option<Parts>,
}

/// Edge lists with what they were made for.
#[derive(Debug)]
struct Arranged {
    /// `None`: lists of a small problem. They serve any settings, because they cannot be made from the small tree.
    key: Option<ListKey>,
    lists: DeviceLists,
    /// One number on the device, so that nobody waits for it; `None` if the lists are those of a part of the targets.
    near_pairs: Option<Buffer<u64>>,
    seconds: f64,
}

/// The settings that lists depend on: policy, thresholds, and the radii of M2P.
type ListKey = (Policy, ListOptions, [f64; 2]);

impl Placed {
    /// Builds the tree of points. `targets` is `None` if they are the sources.
    ///
    /// # Errors
    /// As [`build_reported`].
    pub fn new(
        device: &Device,
        options: &BuildOptions,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
    ) -> Result<Placed, Error> {
        let start = Instant::now();
        device.fixed_together(&programs::OF_TREES)?;
        let (tree, report) = build_reported(device, sources, targets, options)?;
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Placed { tree, report, min_side: options.min_side, seconds, arranged: None, parts: None })
    }

    /// Copies a tree with its lists from the host. The lists serve any settings. If the tree is
    /// [shared](fmm_traits::Shared) by several ranks, every evaluation is a joint call of all ranks. With `routes`,
    /// strengths and values belong to the points of the caller on this rank; without, to the points of this tree.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn upload(device: &Device, tree: &Tree, lists: &Lists, routes: Option<Routes>) -> Result<Placed, Error> {
        let start = Instant::now();
        device.fixed_together(&programs::OF_TREES)?;
        let mean_leaf = tree.sources.len().max(tree.targets.len()) as f64 / tree.leaves().max(1) as f64;
        let (mut tree, lists) = (DeviceTree::upload(device, tree)?, DeviceLists::upload(device, lists)?);
        let ranks = tree.shared.as_mut().and_then(|shared| shared.ranks.as_mut());
        if let (Some(ranks), Some(routes)) = (ranks, routes) {
            ranks.route(&routes)?;
        }
        let near_pairs = Some(near_pairs_there(&tree, &lists)?);
        let (report, seconds) = (BuildReport { mean_leaf, ..BuildReport::default() }, start.elapsed().as_secs_f64());
        let arranged = Some(Arranged { key: None, lists, near_pairs, seconds: 0.0 });
        Ok(Placed { tree, report, min_side: 0.0, seconds, arranged, parts: None })
    }

    /// Builds the tree of the points of all ranks, of which each rank has its own, for [`share`](Placed::share). `None` if so
    /// many points lie so close to each other that each rank needs the coordinates of all. All ranks call it together.
    ///
    /// # Errors
    /// As [`build_reported`], and those of other ranks.
    pub fn joint(
        device: &Device,
        options: &BuildOptions,
        sources: &JointPoints,
        targets: Option<&JointPoints>,
    ) -> Result<Option<Placed>, Error> {
        let start = Instant::now();
        device.fixed_together(&programs::OF_TREES)?;
        device.fixed_together(&OF_SHARES)?;
        let Some(JointTree { tree, report, own }) = build_joint(device, sources, targets, options)? else {
            return Ok(None);
        };
        let parts = Some(Parts::new(&tree, own, sources.messages())?);
        let seconds = start.elapsed().as_secs_f64();
        Ok(Some(Placed { tree, report, min_side: options.min_side, seconds, arranged: None, parts }))
    }

    /// Of the points of a [`joint`](Placed::joint) tree: the mean over all targets of ρ^(2·`half_power`), as
    /// [`Cut::corner_sums`] has it. `targets` are the targets of all ranks, or the sources if they are the same points. All
    /// ranks call it together.
    ///
    /// # Errors
    /// Errors of the device, and those of other ranks.
    pub fn corners(&self, targets: &JointPoints, half_power: u32) -> Result<f64, Error> {
        match self.parts.as_ref().map(|parts| &parts.own[..]) {
            Some([own]) => own.corners(&self.tree, targets, true, half_power),
            Some([_, own]) => own.corners(&self.tree, targets, false, half_power),
            _ => Ok(0.0),
        }
    }

    /// The report of the tree.
    pub fn report(&self) -> &BuildReport {
        &self.report
    }

    /// What a method needs to know of these points.
    pub fn ground(&self) -> Ground {
        let deep = self.tree.level_start.len() > LEVELS_WITHOUT_FAR + 1;
        Ground { device: self.tree.device.clone(), side: deep.then(|| self.tree.smallest_side()) }
    }

    /// A copy of the boxes on the host, without points.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn boxes(&self) -> Result<Tree, Error> {
        self.tree.download_boxes()
    }

    /// Access to the tree and the lists for `settings`, for a probe.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cut(&mut self, settings: &Settings) -> Result<Cut<'_>, Error> {
        self.has_points()?;
        self.arrange(settings)?;
        Cut::new(&self.tree, &self.arranged.as_ref().expect("just made").lists)
    }

    /// A small problem: a part of the sources and targets with the lists for `settings`, as `fmm_tree::thin` makes
    /// them. The small lists serve any settings. `boxes` is the copy of the boxes of these points, and the positions
    /// ascend.
    ///
    /// # Errors
    /// [`Error::Shape`] if `boxes` are those of other points, and errors of the device.
    pub fn thin(
        &mut self,
        settings: &Settings,
        boxes: &Tree,
        sources: &[u32],
        targets: &[u32],
    ) -> Result<Placed, Error> {
        let start = Instant::now();
        self.has_points()?;
        self.arrange(settings)?;
        let lists = &self.arranged.as_ref().expect("just made").lists;
        let (tree, lists, leaves) = Cut::new(&self.tree, lists)?.thin(lists, boxes, [sources, targets])?;
        let mean_leaf = sources.len().max(targets.len()) as f64 / leaves.max(1) as f64;
        let report = BuildReport { mean_leaf, ..BuildReport::default() };
        let near_pairs = Some(near_pairs_there(&tree, &lists)?);
        let arranged = Some(Arranged { key: None, lists, near_pairs, seconds: 0.0 });
        let seconds = start.elapsed().as_secs_f64();
        Ok(Placed { tree, report, min_side: 0.0, seconds, arranged, parts: None })
    }

    /// Keeps the share of this rank of a tree that all ranks have, with the lists for `settings`, and brings the points that
    /// the share needs from their callers. `with` has the points of the tree. Strengths and values then belong to the callers
    /// of the ranks. This call, and every evaluation, is a joint call of all ranks.
    ///
    /// # Errors
    /// Errors of the device, and those of other ranks.
    pub fn share(mut self, settings: &Settings, with: Sharing) -> Result<(Placed, Share), Error> {
        if self.parts.is_none() {
            let (tree, mut own) = (&self.tree, Vec::new());
            for (points, joint) in [(&tree.sources, Some(&with.sources)), (&tree.targets, with.targets.as_ref())] {
                let rows = joint.map(|joint| joint.of_rank(joint.messages().rank()));
                own.extend(rows.map(|rows| OwnOrder::of_whole(&tree.device, points, rows)).transpose()?);
            }
            self.parts = Some(Parts::new(tree, own, with.sources.messages())?);
            self.arranged = None;
        }
        self.arrange(settings)?;
        let start = Instant::now();
        let Placed { tree, report, min_side, seconds, arranged, parts } = self;
        let Arranged { lists, seconds: listed, .. } = arranged.expect("just made");
        let make = |tree: &DeviceTree, scope: &Scope| settings.lists_of(tree, scope, min_side);
        let (tree, lists, share) = share(tree, lists, &parts.expect("just made"), &with, make)?;
        let near_pairs = Some(near_pairs_there(&tree, &lists)?);
        let arranged = Arranged { key: None, lists, near_pairs, seconds: listed + start.elapsed().as_secs_f64() };
        Ok((Placed { tree, report, min_side, seconds, arranged: Some(arranged), parts: None }, share))
    }

    /// Sizes of the tree and of the lists for `settings`. Of a [`joint`](Placed::joint) tree, all ranks call it together, and
    /// get the sums over all ranks.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn counts(&mut self, settings: &Settings) -> Result<Counts, Error> {
        let mut counts = self.sizes(settings)?;
        let Arranged { lists, near_pairs, .. } = self.arranged.as_ref().expect("made above");
        if let Some(pairs) = near_pairs {
            counts.near_pairs = self.tree.device.download(pairs, "pairs")?[0];
        }
        // Each rank has all edges of P2M and M2M, and those of the others that end in its part.
        if let Some(parts) = &self.parts {
            let [of_kinds @ .., pairs] = sizes_of_all(&self.tree, lists, parts)?;
            counts.edges[2..].iter_mut().zip(of_kinds).for_each(|(edges, all)| *edges = all as usize);
            counts.near_pairs = pairs;
        }
        Ok(counts)
    }

    /// [`counts`](Placed::counts) without the number of pairs, for which the host waits.
    fn sizes(&mut self, settings: &Settings) -> Result<Counts, Error> {
        let edges = self.arrange(settings)?.lists.kinds().map(DeviceEdges::len);
        let tree = &self.tree;
        Ok(Counts {
            levels: tree.level_start.len() - 1,
            boxes: tree.boxes_of_all(),
            leaves: (tree.points_of_all() as f64 / self.report.mean_leaf).round() as usize,
            root_side: tree.side,
            edges,
            near_pairs: 0,
        })
    }

    /// An error if the coordinates of the points are on other ranks.
    fn has_points(&self) -> Result<(), Error> {
        if self.tree.sources.are_here() && self.tree.targets.are_here() {
            return Ok(());
        }
        let reason = "its points are on several devices".to_string();
        Err(Error::Unsupported { operation: "a part of a tree", reason })
    }

    /// The lists for `settings`, made on the device unless the last lists will do.
    fn arrange(&mut self, settings: &Settings) -> Result<&Arranged, Error> {
        let key = settings.key();
        if self.arranged.as_ref().is_none_or(|a| a.key.is_some_and(|made| made != key)) {
            self.arranged = None;
            let start = Instant::now();
            let scope = self.parts.as_ref().map_or(Scope::All, Parts::scope);
            let lists = settings.lists_of(&self.tree, &scope, self.min_side)?;
            let all = self.parts.is_none();
            let near_pairs = all.then(|| near_pairs_there(&self.tree, &lists)).transpose()?;
            let seconds = start.elapsed().as_secs_f64();
            self.arranged = Some(Arranged { key: Some(key), lists, near_pairs, seconds });
        }
        Ok(self.arranged.as_ref().expect("just made"))
    }
}

/// Makes a plan on the device in `precision`.
///
/// # Errors
/// As [`Plan::new`].
pub fn solver(
    kernels: &Kernels,
    settings: &Settings,
    precision: Precision,
    points: Placed,
) -> Result<Box<dyn DeviceSolver>, Error> {
    method(kernels, settings, precision, &points.ground())?.place(points)
}

/// A method that is ready for points: its programs are loaded, and its operators are made for the smallest boxes of a
/// tree. They serve all boxes if the kernel is homogeneous.
pub trait DeviceMethod: Send {
    /// A plan for points in their tree.
    ///
    /// # Errors
    /// As [`Plan::new`].
    fn place(self: Box<Self>, points: Placed) -> Result<Box<dyn DeviceSolver>, Error>;
}

/// What a [`method`] needs to know of points.
#[derive(Clone, Debug)]
pub struct Ground {
    device: Device,
    /// Side of the smallest boxes; `None` if there are too few levels for a far field.
    side: Option<f64>,
}

/// Makes a method for points in a tree, which need not have lists yet.
///
/// # Errors
/// As [`Plan::new`].
pub fn method(
    kernels: &Kernels,
    settings: &Settings,
    precision: Precision,
    ground: &Ground,
) -> Result<Box<dyn DeviceMethod>, Error> {
    match precision {
        Precision::F32 => made::<f32, f32>(kernels, settings, ground),
        Precision::F64 => made::<f64, f64>(kernels, settings, ground),
    }
}

fn made<T: DeviceScalar, N: Real>(
    kernels: &Kernels,
    settings: &Settings,
    ground: &Ground,
) -> Result<Box<dyn DeviceMethod>, Error> {
    let start = Instant::now();
    let carrier = match settings.expansion {
        Expansion::Equivalent(fill) => Carrier::Equivalent(fill, settings.cache.clone()),
        Expansion::Spherical(how) => Carrier::Spherical(how),
    };
    let plan = Unplaced::<T, N>::new(&ground.device, kernels, settings.order, carrier, ground.side)?;
    Ok(Box::new(Made { settings: settings.clone(), plan, seconds: start.elapsed().as_secs_f64() }))
}

/// The only implementation of [`DeviceMethod`].
struct Made<T: DeviceScalar, N: Real> {
    settings: Settings,
    plan: Unplaced<T, N>,
    /// Seconds of programs and operators.
    seconds: f64,
}

impl<T: DeviceScalar, N: Real> DeviceMethod for Made<T, N> {
    fn place(self: Box<Self>, points: Placed) -> Result<Box<dyn DeviceSolver>, Error> {
        let Made { settings, plan, seconds: ahead } = *self;
        let prepared = Prepared::new(&settings, points)?;
        let start = Instant::now();
        let device = prepared.tree.device.clone();
        let Prepared { tree, lists, report, mut seconds, mut counts, near_pairs } = prepared;
        let mut plan = plan.place(tree, lists)?;
        plan.set_beside(settings.beside);
        counts.near_pairs = device.download(&near_pairs, "pairs")?[0];
        seconds.operators = ahead + start.elapsed().as_secs_f64();
        let columns = plan.columns().to_vec();
        let plan = Mutex::new(plan);
        Ok(Box::new(Planned { device, settings, plan, columns, report, seconds, counts, ready: None }))
    }
}

/// Tree and lists of points, with their report, times and sizes.
struct Prepared {
    tree: DeviceTree,
    lists: DeviceLists,
    report: BuildReport,
    seconds: PlanSeconds,
    /// Without the number of pairs.
    counts: Counts,
    near_pairs: Buffer<u64>,
}

impl Prepared {
    fn new(settings: &Settings, mut placed: Placed) -> Result<Self, Error> {
        let counts = placed.sizes(settings)?;
        let Placed { tree, report, seconds: built, arranged, .. } = placed;
        let Arranged { lists, seconds, near_pairs, .. } = arranged.expect("made above");
        let near_pairs = near_pairs.map_or_else(|| near_pairs_there(&tree, &lists), Ok)?;
        let seconds = PlanSeconds { tree: built, lists: seconds, operators: 0.0 };
        Ok(Prepared { tree, lists, report, seconds, counts, near_pairs })
    }
}

/// The only implementation of [`DeviceSolver`].
struct Planned<T: DeviceScalar, N: Real> {
    device: Device,
    settings: Settings,
    plan: Mutex<Plan<T, N>>,
    columns: Vec<OutputColumns>,
    report: BuildReport,
    seconds: PlanSeconds,
    counts: Counts,
    /// Report, times and sizes of new points that wait for a commit.
    ready: Option<(BuildReport, PlanSeconds, Counts)>,
}

impl<T: DeviceScalar, N: Real> Planned<T, N> {
    /// The locked plan. A poisoned lock is fine: whatever an interrupted run has left, the next run overwrites.
    fn plan(&self) -> MutexGuard<'_, Plan<T, N>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeviceScalar, N: Real> Solver for Planned<T, N> {
    fn values(&self) -> usize {
        self.plan().values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        self.plan().apply_into(strengths, out, observer)
    }
    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        self.plan().apply_batch(strengths, out, observer)
    }
    fn bytes(&self) -> u64 {
        self.plan().bytes()
    }
}

impl<T: DeviceScalar, N: Real> DeviceSums for Planned<T, N> {
    fn apply_numbers(
        &self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        self.plan().apply_numbers(strengths, values, observer)
    }
    fn enqueue(&self, strengths: &DeviceArray, values: &[DeviceArray], stream: &DeviceStream) -> Result<(), Error> {
        self.plan().enqueue(strengths, values, stream)
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.plan().synchronize()
    }
    fn points(&self) -> Result<[Vec<f64>; 2], Error> {
        let plan = self.plan();
        let (tree, device) = (plan.tree(), &self.device);
        let separate = !Arc::ptr_eq(&tree.sources, &tree.targets);
        if let Some(ranks) = tree.ranks().filter(|_| tree.share().is_some()) {
            return ranks.points_of_callers([&tree.sources, &tree.targets], separate);
        }
        Ok([tree.sources.rows(device)?, if separate { tree.targets.rows(device)? } else { Vec::new() }])
    }
}

impl<T: DeviceScalar, N: Real> DeviceSolver for Planned<T, N> {
    fn make(&mut self, points: Placed) -> Result<PlanSeconds, Error> {
        self.forget();
        let Prepared { tree, lists, report, mut seconds, mut counts, near_pairs } =
            Prepared::new(&self.settings, points)?;
        let start = Instant::now();
        let plan = self.plan.get_mut().unwrap_or_else(PoisonError::into_inner);
        counts.near_pairs = self.device.download(&near_pairs, "pairs")?[0];
        plan.make(tree, lists)?;
        seconds.operators = start.elapsed().as_secs_f64();
        self.ready = Some((report, seconds, counts));
        Ok(seconds)
    }
    fn commit(&mut self) {
        if let Some((report, seconds, counts)) = self.ready.take() {
            self.plan.get_mut().unwrap_or_else(PoisonError::into_inner).commit();
            (self.report, self.seconds, self.counts) = (report, seconds, counts);
        }
    }
    fn forget(&mut self) {
        self.ready = None;
        self.plan.get_mut().unwrap_or_else(PoisonError::into_inner).forget();
    }
    fn owned(&self) -> Result<Vec<u32>, Error> {
        let plan = self.plan();
        let tree = plan.tree();
        let range = tree.share().map_or(0..tree.sources.len(), |share| share.sources.clone());
        self.device.download_range(&tree.sources.order, range, "order of points")
    }
    fn adopt(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error> {
        rows.is_on("rows", &self.device)?;
        let plan = self.plan();
        let (tree, handle) = (plan.tree(), stream.on(&self.device)?);
        let Some((ranks, share)) = tree.ranks().zip(tree.share()) else { return Ok(rows.clone()) };
        let own = share.sources.clone();
        let to = DeviceArray::room(&self.device, own.len() * width, rows.precision())?;
        let given = (rows.address(), rows.precision(), width);
        // SAFETY: the stream belongs to this device, as checked, and lives by the promise of its type.
        unsafe { self.device.within(handle, || ranks.adopt(given, tree.sources.len(), own, to.address()))? };
        Ok(to)
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
    fn pieces(&self) -> usize {
        self.plan().pieces()
    }
    fn download(&self) -> Result<(Tree, Lists), Error> {
        let plan = self.plan();
        Ok((plan.tree().download()?, plan.lists().download()?))
    }
}
