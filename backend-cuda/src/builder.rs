//! The octree of `fmm_tree`, built on the device level by level and equal array by array: `kernels/points.cu`,
//! `kernels/split.cu`.
//!
//! Points are sorted by their keys here. `split` makes the boxes, and `deep` makes keys for levels that one key does
//! not resolve.

use crate::device::{Buffer, Device, Functions, blocks};
use crate::points::{CallerPoints, Sample};
use crate::primitives::Primitives;
use crate::programs;
use crate::split::Split;
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::Error;
use fmm_tree::{BuildOptions, BuildReport, CAPACITY_STEPS};
use std::sync::Arc;

/// Tree levels that one key resolves.
pub(crate) const KEY_LEVELS: usize = 21;
/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 63;
/// Threads per block.
pub(crate) const BLOCK: u32 = 256;

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

/// Corner and side of the root cube that `fmm_tree` chooses for `n` points from their sample and their bounding box.
/// The report becomes that of the choice.
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

    /// Sets of points with these bounding boxes. `root` returns the lower corner and side of the root cube for a
    /// bounding box; without points the bounding box is empty (+∞, −∞). `sorted` sorts the points in the root cube.
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

    /// The tree with the leaf capacity that `fmm_tree::build_reported` chooses, and its report. `report` is that of the
    /// choice of a root; there are at most `n` sources, and at most `n` targets.
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

/// The programs that build a tree.
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

    /// The keys of points in the root cube, sorted, and the row of the point of each key. Equal keys have the order of
    /// their rows.
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
