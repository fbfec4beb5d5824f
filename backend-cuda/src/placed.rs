//! Points in their tree on a device, with the edge lists for some settings.
//!
//! A plan takes its points as [`Placed`]. The tree is built of points on the device, or copied from the host, or cut
//! out of another tree for a probe. Several ranks can build one tree of all their points. Each rank then keeps a share
//! of it. Lists are made when a call first needs them. The last lists stay, and the lists before them if they are small.

use crate::builder::build_reported;
use crate::cut::Cut;
use crate::device::{Buffer, Device};
use crate::joint::{JointPoints, JointTree, OwnOrder, build_joint};
use crate::lists::{DeviceEdges, DeviceLists, Scope, near_pairs_there};
use crate::points::CallerPoints;
use crate::programs;
use crate::rounds::Routes;
use crate::settings::{ListKey, Settings};
use crate::shares::{Parts, Share, Sharing, share, sizes_of_all};
use crate::tree::DeviceTree;
use fmm_traits::{Error, Lists, Tree};
use fmm_tree::{BuildOptions, BuildReport};
use std::time::Instant;

/// Levels of a tree whose boxes are all adjacent.
const LEVELS_WITHOUT_FAR: usize = 2;

/// The former lists are kept if they take at most the memory that plans may use on the device, divided by this number.
const FORMER_LISTS_DIVISOR: u64 = 32;

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
    /// Points sent, tree built, and in the first plan of a process the wait for programs.
    pub tree: f64,
    /// Edge lists.
    pub lists: f64,
    /// Operators and workspaces.
    pub operators: f64,
}

/// Points in their tree on a device, and the lists that were made for them.
#[derive(Debug)]
pub struct Placed {
    tree: DeviceTree,
    report: BuildReport,
    /// [`BuildOptions::min_side`]. Nearer pairs of points are summed directly.
    min_side: f64,
    /// Seconds of building the tree, with the wait for programs.
    seconds: f64,
    /// The last lists.
    arranged: Option<Arranged>,
    /// The lists before them. Two methods of a plan that are compared with each other use their lists in turn.
    former: Option<Arranged>,
    /// What this rank has of the points and lists, if other ranks have the others.
    parts: Option<Parts>,
}

/// Edge lists with what they were made for.
#[derive(Debug)]
struct Arranged {
    /// `None`: lists of a small problem, of the host or of a share. They serve any settings, because they cannot be
    /// made again from the tree.
    key: Option<ListKey>,
    lists: DeviceLists,
    /// One number on the device, so that nobody waits for it; `None` if the lists are those of a part of the targets.
    near_pairs: Option<Buffer<u64>>,
    /// Seconds of making the lists.
    seconds: f64,
}

impl Arranged {
    /// Whether the lists are those for a key.
    fn serves(&self, key: &ListKey) -> Result<bool, Error> {
        let (Some((policy, thresholds, radii)), (of, others, at)) = (&self.key, key) else { return Ok(true) };
        let alike = policy == of && radii == at;
        Ok(alike && (thresholds == others || self.lists.hold_for(others)?))
    }

    /// Lists that serve any settings.
    fn fixed(tree: &DeviceTree, lists: DeviceLists) -> Result<Self, Error> {
        let near_pairs = Some(near_pairs_there(tree, &lists)?);
        Ok(Arranged { key: None, lists, near_pairs, seconds: 0.0 })
    }
}

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
        // The device builds the tree as soon as the programs of trees are loaded. Meanwhile other threads load the programs of
        // plans.
        let (tree, report) = device.while_loading(&programs::OF_PLANS_ON_TREES, || {
            device.load_programs_of_trees()?;
            let built = build_reported(device, sources, targets, options)?;
            device.synchronize().map(|()| built)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Placed { tree, report, min_side: options.min_side, seconds, arranged: None, former: None, parts: None })
    }

    /// Copies a tree with its lists from the host. The lists serve any settings. If the tree is
    /// [shared](fmm_traits::Shared) by several ranks, every evaluation is a joint call of all ranks. With `routes`,
    /// strengths and values belong to the points of the caller on this rank; without, to the points of this tree.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn upload(device: &Device, tree: &Tree, lists: &Lists, routes: Option<Routes>) -> Result<Placed, Error> {
        let start = Instant::now();
        device.load_programs_of_plans()?;
        let mean_leaf = tree.sources.len().max(tree.targets.len()) as f64 / tree.leaves().max(1) as f64;
        let (mut tree, lists) = (DeviceTree::upload(device, tree)?, DeviceLists::upload(device, lists)?);
        let ranks = tree.shared.as_mut().and_then(|shared| shared.ranks.as_mut());
        if let (Some(ranks), Some(routes)) = (ranks, routes) {
            ranks.route(&routes)?;
        }
        Placed::fixed(tree, lists, mean_leaf, start)
    }

    /// A tree with lists that serve any settings, and with so many points in a leaf. `start` is when the work on them began.
    pub(crate) fn fixed(tree: DeviceTree, lists: DeviceLists, mean_leaf: f64, start: Instant) -> Result<Placed, Error> {
        let arranged = Some(Arranged::fixed(&tree, lists)?);
        let (report, seconds) = (BuildReport { mean_leaf, ..BuildReport::default() }, start.elapsed().as_secs_f64());
        Ok(Placed { tree, report, min_side: 0.0, seconds, arranged, former: None, parts: None })
    }

    /// Builds the tree of the points of all ranks, of which each rank has its own, for [`share`](Placed::share). `None`
    /// if so many points lie so close to each other that each rank needs the coordinates of all. All ranks call it
    /// together.
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
        device.load_programs_of_plans()?;
        device.load_programs_of_shares()?;
        let Some(JointTree { tree, report, own }) = build_joint(device, sources, targets, options)? else {
            return Ok(None);
        };
        let parts = Some(Parts::new(&tree, own, sources.messages())?);
        let seconds = start.elapsed().as_secs_f64();
        Ok(Some(Placed { tree, report, min_side: options.min_side, seconds, arranged: None, former: None, parts }))
    }

    /// Of the points of a [`joint`](Placed::joint) tree: the mean over all targets of ρ^(2·`half_power`), as
    /// [`Cut::corner_sums`] has it. `targets` are the targets of all ranks, or the sources if they are the same points.
    /// All ranks call it together.
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

    /// Access to the tree and the lists for `settings`, for a probe.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cut(&mut self, settings: &Settings) -> Result<Cut<'_>, Error> {
        let (tree, Arranged { lists, .. }) = self.whole(settings)?;
        Cut::new(tree, lists)
    }

    /// Keeps the share of this rank of a tree that all ranks have, with the lists for `settings`, and brings the points
    /// that the share needs from their callers. `with` has the points of the tree. Strengths and values then belong to
    /// the callers of the ranks. This call, and every evaluation, is a joint call of all ranks.
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
            (self.arranged, self.former) = (None, None);
        }
        self.arrange(settings)?;
        let start = Instant::now();
        let Placed { tree, report, min_side, seconds, arranged, parts, .. } = self;
        let Arranged { lists, seconds: listed, .. } = arranged.expect("just made");
        let make = |tree: &DeviceTree, scope: &Scope| settings.lists_of(tree, scope, min_side);
        let (tree, lists, share) = share(tree, lists, &parts.expect("just made"), &with, make)?;
        let mut arranged = Arranged::fixed(&tree, lists)?;
        arranged.seconds = listed + start.elapsed().as_secs_f64();
        Ok((Placed { tree, report, min_side, seconds, arranged: Some(arranged), former: None, parts: None }, share))
    }

    /// Sizes of the tree and of the lists for `settings`. Of a [`joint`](Placed::joint) tree, all ranks call it
    /// together, and get the sums over all ranks.
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

    /// [`counts`](Placed::counts) without the number of near pairs, for which the host waits. On several ranks, the edges are
    /// those of this rank.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn sizes(&mut self, settings: &Settings) -> Result<Counts, Error> {
        let mean_leaf = self.report.mean_leaf;
        let (tree, Arranged { lists, .. }) = self.arrange(settings)?;
        Ok(Counts {
            levels: tree.level_start.len() - 1,
            boxes: tree.boxes_of_all(),
            leaves: (tree.points_of_all() as f64 / mean_leaf).round() as usize,
            root_side: tree.side,
            edges: lists.kinds().map(DeviceEdges::len),
            near_pairs: 0,
        })
    }

    /// [`arrange`](Placed::arrange), with an error if the coordinates of the points are on other ranks.
    fn whole(&mut self, settings: &Settings) -> Result<(&DeviceTree, &Arranged), Error> {
        if self.tree.sources.are_here() && self.tree.targets.are_here() {
            return self.arrange(settings);
        }
        let reason = "its points are on several devices".to_string();
        Err(Error::Unsupported { operation: "a part of a tree", reason })
    }

    /// The tree, and the lists for `settings`, made on the device unless those that are there will do.
    fn arrange(&mut self, settings: &Settings) -> Result<(&DeviceTree, &Arranged), Error> {
        let key = settings.key();
        let serves = |lists: &Option<Arranged>| lists.as_ref().map_or(Ok(false), |lists| lists.serves(&key));
        if !serves(&self.arranged)? {
            std::mem::swap(&mut self.arranged, &mut self.former);
        }
        if !serves(&self.arranged)? {
            self.arranged = None;
            // Ranks make lists in joint calls. If one rank had dropped its former lists and another had not, only some would
            // make lists. So ranks keep none.
            let most_bytes =
                if self.parts.is_some() { 0 } else { self.tree.device.usable_memory() / FORMER_LISTS_DIVISOR };
            self.former.take_if(|former| former.lists.bytes() > most_bytes);
            let lists = match self.make_lists(settings, key) {
                Err(Error::Memory { .. }) if self.former.take().is_some() => self.make_lists(settings, key),
                lists => lists,
            };
            self.arranged = Some(lists?);
        }
        Ok((&self.tree, self.arranged.as_ref().expect("just made")))
    }

    /// New lists for `settings`, which have this key.
    fn make_lists(&self, settings: &Settings, key: ListKey) -> Result<Arranged, Error> {
        let start = Instant::now();
        let scope = self.parts.as_ref().map_or(Scope::All, Parts::scope);
        let lists = settings.lists_of(&self.tree, &scope, self.min_side)?;
        let near_pairs = self.parts.is_none().then(|| near_pairs_there(&self.tree, &lists)).transpose()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Arranged { key: Some(key), lists, near_pairs, seconds })
    }
}

/// What a [`method`](crate::method) needs to know of points.
#[derive(Clone, Debug)]
pub struct Ground {
    pub(crate) device: Device,
    /// Side of the smallest boxes; `None` if there are too few levels for a far field.
    pub(crate) side: Option<f64>,
}

impl Ground {
    /// A ground without points. A method made for it has its programs, but no operators that depend on the side of boxes.
    pub fn without_points(device: &Device) -> Ground {
        Ground { device: device.clone(), side: None }
    }
}

/// Tree and lists of points, with their report, times and sizes.
pub(crate) struct Prepared {
    pub tree: DeviceTree,
    pub lists: DeviceLists,
    pub report: BuildReport,
    pub seconds: PlanSeconds,
    /// Without the number of pairs.
    pub counts: Counts,
    pub near_pairs: Buffer<u64>,
}

impl Prepared {
    pub fn new(settings: &Settings, mut placed: Placed) -> Result<Self, Error> {
        placed.whole(settings)?;
        let counts = placed.sizes(settings)?;
        let Placed { tree, report, seconds: built, arranged, .. } = placed;
        let Arranged { lists, seconds, near_pairs, .. } = arranged.expect("made above");
        let near_pairs = near_pairs.map_or_else(|| near_pairs_there(&tree, &lists), Ok)?;
        let seconds = PlanSeconds { tree: built, lists: seconds, operators: 0.0 };
        Ok(Prepared { tree, lists, report, seconds, counts, near_pairs })
    }
}
