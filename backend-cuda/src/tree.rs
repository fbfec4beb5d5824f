//! The octree of `fmm_tree`, built on the device level by level and equal array by array:
//! `kernels/points.cu`, `kernels/split.cu`.

use crate::device::{Arg, Buffer, ByItem, Device, Functions, blocks};
use crate::points::{CallerPoints, Sample};
use crate::primitives::Primitives;
use crate::programs;
use crate::ranks::{DeviceShared, Mine, Ranks};
use crate::split::{Boxes, Split};
use fmm_traits::Error;
use fmm_traits::tree::{Points, Tree};
use fmm_tree::{BuildOptions, BuildReport, CAPACITY_STEPS};
use std::ops::Range;
use std::sync::Arc;

/// Tree levels that one key resolves.
pub(crate) const KEY_LEVELS: usize = 21;
/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 63;
/// Threads per block.
pub(crate) const BLOCK: u32 = 256;
/// Largest number of blocks of a kernel whose blocks walk over the items in strides.
pub(crate) const MAX_WALKING_BLOCKS: u32 = 1024;

/// How to build a tree on the device.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Leaf capacity: a box with more sources or more targets, at distinct positions, is split.
    pub ncrit: usize,
    /// Smallest side of a box; 0 for no limit.
    pub min_side: f64,
    /// The root cube.
    pub root: Root,
}

/// The cube of box 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Root {
    /// The smallest cube with exact box centres.
    Smallest,
    /// The cube with this lower corner and side. It must contain all points.
    Given([f64; 3], f64),
    /// The smallest cube with a level whose boxes hold this many points, if the points fill their bounding box evenly.
    Holding(f64),
}

impl Root {
    /// Corner and side for `n` points between `low` and `high`.
    fn cube(self, low: [f64; 3], high: [f64; 3], n: usize) -> Result<([f64; 3], f64), Error> {
        let parameter = |name, value, requirement| Err(Error::Parameter { name, value, requirement });
        let empty = low[0] > high[0];
        let (corner, side) = match self {
            Root::Given(corner, side) => {
                let inside = |a: usize| corner[a] <= low[a] && high[a] <= corner[a] + side;
                if !(side > 0.0 && side.is_finite() && (empty || (0..3).all(inside))) {
                    return parameter("root side", side, "the root cube must be finite and contain all points");
                }
                return Ok((corner, side));
            }
            _ if empty => ([0.0; 3], 1.0),
            Root::Smallest => fmm_tree::smallest_root(low, high),
            Root::Holding(wanted) if wanted.is_nan() || wanted <= 0.0 => {
                return parameter("points of a leaf", wanted, "must be above 0");
            }
            Root::Holding(wanted) => {
                let extent: [f64; 3] = std::array::from_fn(|a| high[a] - low[a]);
                let longest = extent.into_iter().fold(0.0, f64::max);
                // Number of boxes along the longest axis, even so that whole families fill it.
                let boxes = (n as f64 / wanted * extent.iter().map(|e| longest / e).product::<f64>()).cbrt();
                let boxes = 2.0 * (boxes / 2.0).round().max(1.0);
                if boxes.is_finite() && longest > 0.0 {
                    let side = longest / boxes * boxes.log2().ceil().exp2();
                    fmm_tree::smallest_root(low, std::array::from_fn(|a| high[a].max(low[a] + side)))
                } else {
                    fmm_tree::smallest_root(low, high)
                }
            }
        };
        if !(2.0 * side).is_finite() {
            return parameter("extent", side, "the extent of the points must be far below the largest f64");
        }
        Ok((corner, side))
    }
}

/// Points of a tree in device memory, in tree order.
#[derive(Debug)]
pub struct DevicePoints {
    /// x of all points, then y, then z; no z for points of a pyramid.
    pub(crate) xyz: Buffer<f64>,
    /// Index of each point in the caller's array.
    pub(crate) order: Buffer<u32>,
    /// Number of points.
    pub(crate) n: usize,
    /// Coordinates of a point: 3, or 2 in a pyramid.
    pub(crate) axes: usize,
}

/// A tree in device memory, with the same fields as [`Tree`].
#[derive(Debug)]
pub struct DeviceTree {
    pub(crate) device: Device,
    /// Lower corner of the root cube.
    pub corner: [f64; 3],
    /// Side of the root cube.
    pub side: f64,
    /// First box of each level, and the number of boxes.
    pub level_start: Vec<u32>,
    pub(crate) boxes: Boxes,
    /// The sources in tree order.
    pub sources: Arc<DevicePoints>,
    /// The targets in tree order. If they are the sources, both share one allocation.
    pub targets: Arc<DevicePoints>,
    /// What other ranks have of the boxes; `None` on one rank.
    pub(crate) shared: Option<DeviceShared>,
}

/// Builds the tree of `sources` and `targets` (`None`: targets are the sources) on the device. For the same root and
/// `ncrit` it equals the tree of `fmm_tree::build`, array by array.
///
/// # Errors
/// As `fmm_tree::build`, and errors of the device.
pub fn build(
    device: &Device,
    sources: &CallerPoints,
    targets: Option<&CallerPoints>,
    options: &TreeOptions,
) -> Result<DeviceTree, Error> {
    let parameter = |name, value, requirement| Error::Parameter { name, value, requirement };
    if options.ncrit == 0 {
        return Err(parameter("ncrit", 0.0, "must be at least 1"));
    }
    if options.min_side.is_nan() || options.min_side < 0.0 {
        return Err(parameter("min_side", options.min_side, "must not be negative"));
    }
    let n = sources.len().max(targets.map_or(0, CallerPoints::len));
    let root = |low, high| options.root.cube(low, high, n);
    let mut cloud = Cloud::of(device, sources, targets, options.min_side, root)?;
    let split = cloud.split(options.ncrit, cloud.limit)?;
    Ok(cloud.tree(split))
}

/// Builds the tree of points with the root cube and the leaf capacity that `fmm_tree::build_reported` chooses, and
/// returns its report. The report does not count coincident points.
///
/// # Errors
/// As [`build`].
pub fn build_reported(
    device: &Device,
    sources: &CallerPoints,
    targets: Option<&CallerPoints>,
    options: &BuildOptions,
) -> Result<(DeviceTree, BuildReport), Error> {
    let more = targets.filter(|t| t.len() >= sources.len()).unwrap_or(sources);
    let mut report = BuildReport::default();
    let root = |low, high| chosen_root(&mut report, more.len(), &mut Sample::new(device, more)?, [low, high], options);
    let cloud = Cloud::of(device, sources, targets, options.min_side, root)?;
    cloud.reported(report, more.len(), options)
}

/// Corner and side of the root cube that `fmm_tree` chooses for `n` points from their sample and their bounding box. The
/// report becomes that of the choice.
pub(crate) fn chosen_root(
    report: &mut BuildReport,
    n: usize,
    sample: &mut Sample,
    [low, high]: [[f64; 3]; 2],
    options: &BuildOptions,
) -> Result<([f64; 3], f64), Error> {
    let (corner, side, chosen) = fmm_tree::root_for(n, sample, low, high, options)?;
    *report = chosen;
    Ok((corner, side))
}

/// The root cube, and the sources and targets sorted in Morton order within it.
pub(crate) struct Cloud<'a> {
    builder: Builder<'a>,
    corner: [f64; 3],
    side: f64,
    /// Deepest level of a tree of these points.
    pub limit: usize,
    /// The sources and, if they differ, the targets.
    pub sets: Vec<Set>,
}

/// Statistics of the leaves of a tree.
struct LeafStatistics {
    /// Mean number of other points in the leaf of a point: over the sources or over the targets, whichever is larger.
    others: f64,
    /// Number of leaves.
    leaves: u64,
}

impl<'a> Cloud<'a> {
    /// Sorts points of a device.
    fn of(
        device: &'a Device,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
        min_side: f64,
        root: impl FnOnce([f64; 3], [f64; 3]) -> Result<([f64; 3], f64), Error>,
    ) -> Result<Self, Error> {
        let arrays: Vec<&CallerPoints> = [Some(sources), targets].into_iter().flatten().collect();
        arrays.iter().try_for_each(|array| array.is_on(device))?;
        let bounds: Vec<_> = arrays.iter().map(|array| array.bounds()).collect();
        Cloud::new(device, &bounds, min_side, root, |builder, corner, side| {
            arrays.into_iter().map(|array| builder.sorted(array, corner, side)).collect()
        })
    }

    /// Sets of points with these bounding boxes. `root` returns the lower corner and side of the root cube for a bounding box;
    /// without points the bounding box is empty (+∞, −∞). `sorted` sorts the points in the root cube.
    pub fn new(
        device: &'a Device,
        bounds: &[[[f64; 3]; 2]],
        min_side: f64,
        root: impl FnOnce([f64; 3], [f64; 3]) -> Result<([f64; 3], f64), Error>,
        sorted: impl FnOnce(&Builder, [f64; 3], f64) -> Result<Vec<Set>, Error>,
    ) -> Result<Self, Error> {
        let builder = Builder {
            device,
            primitives: Primitives::new(device)?,
            points: device.fixed("points", programs::points)?,
            split: device.fixed("split", programs::split)?,
        };
        let (mut low, mut high) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
        for [lower, upper] in bounds {
            for a in 0..3 {
                (low[a], high[a]) = (low[a].min(lower[a]), high[a].max(upper[a]));
            }
        }
        let empty = low[0] > high[0];
        let largest = (0..3).fold(0.0f64, |m, a| if empty { m } else { m.max(low[a].abs()).max(high[a].abs()) });
        let (corner, side) = root(low, high)?;
        let sets = sorted(&builder, corner, side)?;
        let limit = fmm_tree::deepest_level(side, largest, min_side);
        Ok(Cloud { builder, corner, side, limit, sets })
    }

    /// The tree with the leaf capacity that `fmm_tree::build_reported` chooses, and its report. `report` is that of the choice
    /// of a root; there are at most `n` sources, and at most `n` targets.
    pub fn reported(
        mut self,
        mut report: BuildReport,
        n: usize,
        options: &BuildOptions,
    ) -> Result<(DeviceTree, BuildReport), Error> {
        // A split below KEY_LEVELS permutes the points, so it must be the last.
        let shallow = self.limit.min(KEY_LEVELS);
        let mut split = self.split(report.ncrit, shallow)?;
        let mut statistics = self.leaf_statistics(&split);
        for _ in 0..CAPACITY_STEPS {
            if options.ncrit.is_some() || split.level_start.len() == 2 || !report.raise_capacity(statistics.others) {
                break;
            }
            split = self.split(report.ncrit, shallow)?;
            statistics = self.leaf_statistics(&split);
        }
        if split.level_start.len() > KEY_LEVELS + 1 && self.limit > KEY_LEVELS {
            split = self.split(report.ncrit, self.limit)?;
            statistics = self.leaf_statistics(&split);
        }
        report.mean_leaf = n as f64 / statistics.leaves.max(1) as f64;
        report.warn();
        Ok((self.tree(split), report))
    }

    /// Splits boxes until they hold at most `ncrit` points or lie on level `limit`. A split beyond [`KEY_LEVELS`]
    /// permutes the points, so it must be the last.
    fn split(&mut self, ncrit: usize, limit: usize) -> Result<Split, Error> {
        self.builder.split(self.corner, self.side, &mut self.sets, ncrit, limit)
    }

    fn leaf_statistics(&self, split: &Split) -> LeafStatistics {
        let last = self.sets.len() - 1;
        let mean = |sum: u64, set: &Set| sum as f64 / (set.points.n as f64).max(1.0);
        let [sources, targets, leaves] = split.of_leaves;
        LeafStatistics { others: mean(sources, &self.sets[0]).max(mean(targets, &self.sets[last])), leaves }
    }

    fn tree(self, Split { level_start, boxes, .. }: Split) -> DeviceTree {
        let points: Vec<Arc<DevicePoints>> = self.sets.into_iter().map(|s| Arc::new(s.points)).collect();
        let [sources, targets] = [&points[0], &points[points.len() - 1]].map(Arc::clone);
        let (device, corner, side) = (self.builder.device.clone(), self.corner, self.side);
        DeviceTree { device, corner, side, level_start, boxes, sources, targets, shared: None }
    }
}

/// Points of one kind in tree order, with their keys.
pub(crate) struct Set {
    pub keys: Buffer<u64>,
    pub points: DevicePoints,
}

pub(crate) struct Builder<'a> {
    pub device: &'a Device,
    pub primitives: Primitives,
    points: Functions,
    pub split: Functions,
}

impl Builder<'_> {
    /// Sorts points by their keys in the root cube.
    fn sorted(&self, given: &CallerPoints, corner: [f64; 3], side: f64) -> Result<Set, Error> {
        let n = given.len();
        let (keys, order) = self.keyed(given, corner, side)?;
        // The largest array comes when the work of the sort is gone.
        let xyz = self.device.alloc(3 * n, "points in tree order")?;
        let args = [given.rows().into(), (&order).into(), (n as u64).into(), (&xyz).into()];
        let grid = (blocks(n, BLOCK as usize)?, 1);
        // SAFETY: arguments as in points.cu; the order is a permutation of the n points.
        unsafe { self.device.launch(&self.points, "gather", grid, BLOCK, &args)? };
        Ok(Set { keys, points: DevicePoints { xyz, order, n, axes: 3 } })
    }

    /// The keys of points in the root cube, sorted, and the row of the point of each key. Equal keys have the order of their
    /// rows.
    pub fn keyed(
        &self,
        given: &CallerPoints,
        corner: [f64; 3],
        side: f64,
    ) -> Result<(Buffer<u64>, Buffer<u32>), Error> {
        let n = given.len();
        let frame = frame(self.device, corner, side)?;
        let mut keys = self.device.alloc(n, "keys")?;
        let mut order = self.device.alloc(n, "order")?;
        let args = [given.rows().into(), (n as u64).into(), (&frame).into(), (&keys).into()];
        let grid = (blocks(n, BLOCK as usize)?, 1);
        // SAFETY: arguments as in points.cu; there is a key for each point.
        unsafe { self.device.launch(&self.points, "point_keys", grid, BLOCK, &args)? };
        self.primitives.sort_fresh(&mut keys, &mut order, n, KEY_BITS)?;
        Ok((keys, order))
    }
}

/// The grid of keys in a cube: the lower corner, and the cells per unit length.
pub(crate) fn frame(device: &Device, corner: [f64; 3], side: f64) -> Result<Buffer<f64>, Error> {
    let density = (1u64 << KEY_LEVELS) as f64 / side;
    device.upload(&[corner[0], corner[1], corner[2], density], "frame")
}

impl DevicePoints {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.n
    }
    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }
    /// Room for `n` points of `axes` coordinates.
    pub(crate) fn alloc(device: &Device, axes: usize, n: usize) -> Result<DevicePoints, Error> {
        let xyz = device.alloc(axes * n, "points in tree order")?;
        Ok(DevicePoints { xyz, order: device.alloc(n, "order of points")?, n, axes })
    }
    /// `n` points of space whose coordinates and order are not here. They are never read.
    pub(crate) fn elsewhere(device: &Device, n: usize) -> Result<DevicePoints, Error> {
        let what = "points of other ranks";
        Ok(DevicePoints { xyz: device.alloc(0, what)?, order: device.alloc(0, what)?, n, axes: 3 })
    }
    /// Whether the coordinates are here.
    pub(crate) fn are_here(&self) -> bool {
        self.xyz.len() == self.axes * self.n
    }
    /// The coordinates along an axis, for a kernel.
    pub(crate) fn axis(&self, axis: usize) -> Arg {
        self.xyz.at(axis * self.n)
    }
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.xyz.bytes() + self.order.bytes()
    }
    /// The points in the caller's order, the coordinates of a point behind each other.
    pub(crate) fn rows(&self, device: &Device) -> Result<Vec<f64>, Error> {
        let (points, axes) = (self.download(device)?, self.axes);
        let mut rows = vec![0.0; axes * self.n];
        for (i, &at) in points.order.iter().enumerate() {
            for a in 0..axes {
                rows[axes * at as usize + a] = points.xyz[a][i];
            }
        }
        Ok(rows)
    }
    /// The places in tree order of some of the caller's rows.
    pub(crate) fn places(&self, device: &Device, rows: Range<usize>) -> Result<Buffer<u32>, Error> {
        let to = device.alloc(rows.len(), "places")?;
        let [first, count] = [rows.start, rows.len()].map(|x| Arg::from(x as u32));
        let args = [(&self.order).into(), (self.n as u64).into(), first, count, (&to).into()];
        let kernels = ByItem::new(device, device.fixed("ends", programs::ends)?, BLOCK);
        // SAFETY: arguments as in ends.cu; the order is a permutation of the points.
        unsafe { kernels.threads("places", self.n, &args)? };
        Ok(to)
    }
    /// The points at `n` positions as rows of three coordinates; z = 0 for points of the plane.
    ///
    /// # Safety
    /// `kernels` are those of `cut.cu`. There are `n` positions, all of them within the points.
    pub(crate) unsafe fn taken(&self, kernels: &ByItem, positions: Arg, n: usize) -> Result<Buffer<f64>, Error> {
        let taken = kernels.device().alloc(3 * n, "points")?;
        let shape = [(&self.xyz).into(), (self.n as u64).into(), (self.axes as u32).into()];
        let args = [shape[0], shape[1], shape[2], positions, (n as u32).into(), (&taken).into()];
        // SAFETY: arguments as in cut.cu; the rest is promised by the caller.
        unsafe { kernels.threads("take_points_as_rows", n, &args)? };
        Ok(taken)
    }
    /// Copies points from the host: one array for each axis, and the order.
    pub(crate) fn upload(device: &Device, xyz: &[&[f64]], order: &[u32]) -> Result<DevicePoints, Error> {
        let (axes, n) = (xyz.len(), order.len());
        let xyz = device.upload(&xyz.concat(), "points in tree order")?;
        Ok(DevicePoints { xyz, order: device.upload(order, "order")?, n, axes })
    }
    /// A copy on the host. The array of an axis that there is not is empty.
    pub(crate) fn download(&self, device: &Device) -> Result<Points, Error> {
        let xyz = device.download(&self.xyz, "points")?;
        let axis = |a: usize| if a < self.axes { xyz[a * self.n..(a + 1) * self.n].to_vec() } else { Vec::new() };
        Ok(Points { xyz: std::array::from_fn(axis), order: device.download(&self.order, "order")? })
    }
}

/// What a thread returns. Panics go on.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl DeviceTree {
    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.level_start.last().map_or(0, |&n| n as usize)
    }
    /// Whether there is no box. A tree always has a root, so this is always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Side of the boxes of the deepest level.
    pub(crate) fn smallest_side(&self) -> f64 {
        self.side * (2.0 - self.level_start.len() as f64).exp2()
    }
    /// The tree as kernels see it: `Boxes` of `boxes.cuh`.
    pub(crate) fn described(&self) -> Result<Buffer<u64>, Error> {
        self.boxes.described(&self.device, (self.corner, self.side), &self.boxes.target_range)
    }
    /// Bytes of device memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let targets = if Arc::ptr_eq(&self.sources, &self.targets) { 0 } else { self.targets.bytes() };
        self.boxes.bytes() + self.sources.bytes() + targets
    }
    /// Copies boxes from the host to the device. The points are there already.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn with_points(
        device: &Device,
        boxes: &Tree,
        sources: Arc<DevicePoints>,
        targets: Arc<DevicePoints>,
    ) -> Result<DeviceTree, Error> {
        let levels = (0..boxes.levels()).flat_map(|l| boxes.level(l).map(move |_| l as u8));
        let arrays = Boxes {
            parent: device.upload(&boxes.parent, "boxes")?,
            child_start: device.upload(&boxes.child_start, "boxes")?,
            child_count: device.upload(&boxes.child_count, "boxes")?,
            octant: device.upload(&boxes.octant, "boxes")?,
            level: device.upload(&levels.collect::<Vec<u8>>(), "boxes")?,
            anchor: device.upload(boxes.anchor.as_flattened(), "boxes")?,
            source_range: device.upload(boxes.source_range.as_flattened(), "boxes")?,
            target_range: device.upload(boxes.target_range.as_flattened(), "boxes")?,
        };
        let (corner, side, level_start) = (boxes.corner, boxes.side, boxes.level_start.clone());
        let shared = boxes.shared.as_ref().map(|shared| DeviceShared::new(device, shared, boxes.len())).transpose()?;
        Ok(DeviceTree { device: device.clone(), corner, side, level_start, boxes: arrays, sources, targets, shared })
    }
    /// Copies a tree from the host to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn upload(device: &Device, tree: &Tree) -> Result<DeviceTree, Error> {
        let upload =
            |p: &Points| DevicePoints::upload(device, &p.xyz.each_ref().map(|axis| &axis[..]), &p.order).map(Arc::new);
        let sources = upload(&tree.sources)?;
        let same = Arc::ptr_eq(&tree.sources, &tree.targets);
        let targets = if same { sources.clone() } else { upload(&tree.targets)? };
        DeviceTree::with_points(device, tree, sources, targets)
    }
    /// Position of the first target among the sources, if the targets are consecutive sources.
    pub(crate) fn first_target(&self) -> Option<u32> {
        match &self.shared {
            Some(shared) => shared.first,
            None => Arc::ptr_eq(&self.sources, &self.targets).then_some(0),
        }
    }
    /// The targets at which this rank sums, in tree order.
    pub(crate) fn wanted(&self) -> Range<usize> {
        self.share().map_or(0..self.targets.len(), |share| share.targets.clone())
    }
    /// What this rank has of a tree that ranks share; `None` for other trees.
    pub(crate) fn share(&self) -> Option<&Mine> {
        self.shared.as_ref()?.share.as_ref()
    }
    /// The larger one of the numbers of sources and of targets; of a tree that ranks share, those of all ranks.
    pub(crate) fn points_of_all(&self) -> usize {
        self.share().map_or(self.sources.len().max(self.targets.len()), |share| share.points)
    }
    /// Number of boxes; of a tree that ranks share, those of all ranks.
    pub(crate) fn boxes_of_all(&self) -> usize {
        self.share().map_or(self.len(), |share| share.boxes)
    }
    /// The way to the other ranks; `None` on one rank.
    pub(crate) fn ranks(&self) -> Option<&Ranks> {
        self.shared.as_ref()?.ranks.as_ref()
    }
    /// A copy on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Tree, Error> {
        let mut tree = self.download_boxes()?;
        let same = tree.same_points();
        tree.sources = Arc::new(self.sources.download(&self.device)?);
        tree.targets = if same { tree.sources.clone() } else { Arc::new(self.targets.download(&self.device)?) };
        Ok(tree)
    }
    /// A copy of the boxes on the host, without points.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn download_boxes(&self) -> Result<Tree, Error> {
        let (device, n, boxes) = (&self.device, self.len(), &self.boxes);
        let sources = Arc::new(Points::default());
        let same = Arc::ptr_eq(&self.sources, &self.targets);
        // New memory of the host costs more time than the copies, so each array has a thread.
        std::thread::scope(|scope| {
            let words = [&boxes.parent, &boxes.child_start]
                .map(|array| scope.spawn(move || device.download_range(array, 0..n, "boxes")));
            let bytes = [&boxes.child_count, &boxes.octant]
                .map(|array| scope.spawn(move || device.download_range(array, 0..n, "boxes")));
            let ranges = [&boxes.source_range, &boxes.target_range]
                .map(|array| scope.spawn(move || device.download_rows(array, n, "boxes")));
            let anchor = device.download_rows(&boxes.anchor, n, "boxes")?;
            let [parent, child_start] = words.map(joined);
            let [child_count, octant] = bytes.map(joined);
            let [source_range, target_range] = ranges.map(joined);
            Ok(Tree {
                corner: self.corner,
                side: self.side,
                level_start: self.level_start.clone(),
                parent: parent?,
                child_start: child_start?,
                child_count: child_count?,
                octant: octant?,
                anchor,
                source_range: source_range?,
                target_range: target_range?,
                targets: if same { sources.clone() } else { Arc::new(Points::default()) },
                sources,
                shared: self.shared.as_ref().and_then(|shared| shared.host.clone()),
            })
        })
    }
}
