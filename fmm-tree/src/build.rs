//! Points → adaptive octree, level by level over sorted keys.

use crate::morton::{self, Frame, KEY_LEVELS};
use crate::root::{self, Root, RootSample};
use crate::sort;
use fmm_traits::Error;
use fmm_traits::tree::{NONE, Points, Tree};
use rayon::prelude::*;
use std::sync::Arc;

/// Deepest level of any tree. Box sides are still exact there; points closer than such a side share a leaf.
const MAX_LEVEL: usize = 48;
/// Levels with exact box centres under a root as wide as the largest coordinate. The centre of a box `b` levels down
/// needs `b + 9` bits of mantissa: 7 for the side, 2 for the corner and the half. An f64 has 53 bits, so `b` could be
/// 44; the constant stays one below.
const EXACT_LEVELS: f64 = 43.0;
/// Standard deviations by which the population of a leaf may exceed the mean before the leaf is split. Populations of
/// random points fluctuate like √mean (Poisson): a wanted mean of 64 gives a capacity of 64 + 4.5·8 = 100.
const POISSON_SLACK: f64 = 4.5;
/// How often the leaf capacity may be raised. It is raised where the density varies and leaves come out too empty.
pub const CAPACITY_STEPS: usize = 2;
/// Extent of the cloud, in extents of its middle 99 %, above which the report warns of far points.
const OUTLIER_STRETCH: f64 = 1e3;

/// How to build a tree.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BuildOptions {
    /// Leaf capacity: a box with more sources or more targets is split. `None`: from `occupancy`.
    pub ncrit: Option<usize>,
    /// Wanted occupancy: the mean number of other points in the leaf of a point. For uniform points it is the mean
    /// population of a full leaf. The occupancy decides the side of the root and `ncrit`; it is ignored if `ncrit` is
    /// given.
    pub occupancy: f64,
    /// Smallest side of a box, in the user's units; 0 for no limit. Softened kernels set it.
    pub min_side: f64,
    /// Lower corner and side of the root cube, which must contain all points; `None`: chosen.
    pub root: Option<([f64; 3], f64)>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions { ncrit: None, occupancy: 64.0, min_side: 0.0, root: None }
    }
}

/// The choices of [`build_reported`], and properties of the points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildReport {
    /// Leaf capacity used.
    pub ncrit: usize,
    /// Leaf capacity before it was [raised](Self::raise_capacity).
    pub first_ncrit: usize,
    /// [`BuildOptions::occupancy`] that the chosen root is expected to give.
    pub occupancy: f64,
    /// Root side over the smallest side that holds the points, in [1, 2).
    pub root_stretch: f64,
    /// Points per leaf of the finished tree, counted over sources or targets, whichever are more.
    pub mean_leaf: f64,
    /// Number of positions with more than one source (or target).
    pub coincident_groups: usize,
    /// Points in the largest such group; 0 without a group.
    pub largest_coincident: usize,
    /// Extent of the cloud over the extent of its middle 99 %.
    pub outlier_stretch: f64,
    /// Warnings for the user; empty if nothing is unusual.
    pub warnings: Vec<String>,
}

/// Builds the adaptive octree of `sources` and `targets` (both N×3 row-major, finite; `None`:
/// targets are the sources, and `Tree::sources` and `Tree::targets` share one allocation).
///
/// A box is split while it holds more than `ncrit` sources or more than `ncrit` targets. Points that no level can
/// separate count once per distinct position. The result depends on the input only, never on the number of threads;
/// work runs on the current rayon pool.
///
/// # Errors
/// [`Error::Shape`] when a length is no multiple of 3, [`Error::NotFinite`] for an infinity,
/// [`Error::Parameter`] for an option outside its domain, [`Error::TooMany`] beyond 2³²−2 points.
pub fn build(sources: &[f64], targets: Option<&[f64]>, options: &BuildOptions) -> Result<Tree, Error> {
    build_reported(sources, targets, options).map(|(tree, _)| tree)
}

/// [`build`], with a report of what was chosen.
pub fn build_reported(
    sources: &[f64],
    targets: Option<&[f64]>,
    options: &BuildOptions,
) -> Result<(Tree, BuildReport), Error> {
    let Cloud { root: cube, mut sets, limit, mut report } = Cloud::new(sources, targets, options)?;
    let mut tree = split(cube, &mut sets, report.ncrit, limit.min(KEY_LEVELS), &ALONE)?;
    if options.ncrit.is_none() {
        for _ in 0..CAPACITY_STEPS {
            if tree.len() == 1 || !report.raise_capacity(seen(&tree)) {
                break;
            }
            tree = split(cube, &mut sets, report.ncrit, limit.min(KEY_LEVELS), &ALONE)?;
        }
    }
    if tree.levels() > KEY_LEVELS && limit > KEY_LEVELS {
        tree = split(cube, &mut sets, report.ncrit, limit, &ALONE)?;
    }

    (report.coincident_groups, report.largest_coincident) = coincident(&tree, &sets);

    attach(&mut tree, sets);
    report.mean_leaf = tree.sources.len().max(tree.targets.len()) as f64 / tree.leaves() as f64;
    report.warn();
    Ok((tree, report))
}

/// Builds the octree whose leaves all lie on level `depth`. Boxes without points are left out; a tree without any
/// points is the root alone. Points as in [`build`], root cube as in [`BuildOptions`] (`None`: the smallest).
///
/// # Errors
/// As [`build`]; [`Error::Parameter`] for a depth whose boxes would have no exact centres.
pub fn build_uniform(
    sources: &[f64],
    targets: Option<&[f64]>,
    depth: usize,
    root: Option<([f64; 3], f64)>,
) -> Result<Tree, Error> {
    let options = BuildOptions { ncrit: Some(usize::MAX), root, ..Default::default() };
    let cloud = Cloud::new(sources, targets, &options)?;
    if depth > cloud.limit && cloud.sets.iter().any(|s| !s.points.is_empty()) {
        let requirement = "boxes of this level have no exact centres";
        return Err(Error::Parameter { name: "depth", value: depth as f64, requirement });
    }
    let Cloud { root, mut sets, .. } = cloud;
    let mut tree = split(root, &mut sets, 0, depth, &ALONE)?;
    attach(&mut tree, sets);
    Ok(tree)
}

/// The root cube, and the sources and targets sorted in Morton order within it.
struct Cloud {
    root: Root,
    sets: Vec<Sorted>,
    /// Deepest level of a tree of these points.
    limit: usize,
    report: BuildReport,
}

impl Cloud {
    fn new(sources: &[f64], targets: Option<&[f64]>, options: &BuildOptions) -> Result<Cloud, Error> {
        check_options(options)?;
        let arrays: Vec<&[f64]> = std::iter::once(sources).chain(targets).collect();
        let mut bounds = Bounds::default();
        for (&array, name) in arrays.iter().zip(["sources", "targets"]) {
            bounds = bounds.join(check_points(array, name)?);
        }
        let more = *arrays.iter().max_by_key(|a| a.len()).unwrap_or(&sources);

        let mut report = BuildReport { root_stretch: 1.0, outlier_stretch: 1.0, ..Default::default() };
        let mut sample = root::OnHost(more.as_chunks::<3>().0);
        let root = choose_root(more.len() / 3, &mut sample, &bounds, options, &mut report)?;
        report.first_ncrit = report.ncrit;
        let frame = Frame::new(root.corner, root.side);
        let sets = arrays.iter().map(|a| Sorted::new(a, &frame)).collect();
        Ok(Cloud { root, sets, limit: deepest_level(root.side, bounds.largest(), options.min_side), report })
    }
}

/// Number of positions with several sources (or targets), and the largest number of points at one position.
pub(crate) fn coincident(tree: &Tree, sets: &[Sorted]) -> (usize, usize) {
    let join = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1.max(b.1));
    let of = |(set, ranges): (&Sorted, &Vec<[u32; 2]>)| {
        let leaves = (0..tree.len()).into_par_iter().filter(|&b| tree.is_leaf(b));
        leaves.map(|b| set.coincident(ranges[b])).reduce(|| (0, 0), join)
    };
    sets.iter().zip([&tree.source_range, &tree.target_range]).map(of).fold((0, 0), join)
}

/// Gives `tree` its points.
pub(crate) fn attach(tree: &mut Tree, mut sets: Vec<Sorted>) {
    let targets = if sets.len() > 1 { sets.pop() } else { None };
    tree.sources = Arc::new(sets.pop().map(|s| s.points).unwrap_or_default());
    tree.targets = targets.map_or_else(|| tree.sources.clone(), |t| Arc::new(t.points));
}

/// Mean number of other points in the leaf of a point: over the sources or over the targets, whichever is larger.
fn seen(t: &Tree) -> f64 {
    let others = |ranges: &[[u32; 2]]| pairs(t, ranges) / f64::from(ranges[0][1] - ranges[0][0]).max(1.0);
    others(&t.source_range).max(others(&t.target_range))
}

/// Number of ordered pairs of different points in one leaf. `ranges` are those of the sources or of the targets.
pub(crate) fn pairs(t: &Tree, ranges: &[[u32; 2]]) -> f64 {
    let n = |b: usize| (ranges[b][1] - ranges[b][0]) as f64;
    (0..t.len()).filter(|&b| t.is_leaf(b)).map(|b| n(b) * (n(b) - 1.0)).sum()
}

impl BuildReport {
    /// Raises the leaf capacity if leaves came out too empty, as they do where the density varies. `seen` is the mean
    /// number of other points in the leaf of a point. Returns whether the capacity changed. Call it at most
    /// [`CAPACITY_STEPS`] times.
    pub fn raise_capacity(&mut self, seen: f64) -> bool {
        let low = seen <= 0.9 * self.occupancy;
        if low {
            self.ncrit = (self.ncrit as f64 * (self.occupancy / seen).min(2.0)).ceil() as usize;
        }
        low
    }

    /// Adds a sentence to `warnings` for each number that is out of the ordinary.
    pub fn warn(&mut self) {
        if self.coincident_groups > 0 {
            self.warnings.push(format!(
                "{} positions hold more than one point (up to {})",
                self.coincident_groups, self.largest_coincident
            ));
        }
        if self.outlier_stretch > OUTLIER_STRETCH {
            self.warnings.push(format!(
                "a few far points make the cloud {:.1e} times wider than its middle 99 %",
                self.outlier_stretch
            ));
        }
    }
}

fn check_options(o: &BuildOptions) -> Result<(), Error> {
    let parameter = |name, value, requirement| Err(Error::Parameter { name, value, requirement });
    if o.ncrit == Some(0) {
        return parameter("ncrit", 0.0, "must be at least 1");
    }
    if !(o.occupancy > 0.0 && o.occupancy <= u32::MAX as f64) {
        return parameter("occupancy", o.occupancy, "must be positive and below 2^32");
    }
    if o.min_side.is_nan() || o.min_side < 0.0 {
        return parameter("min_side", o.min_side, "must not be negative");
    }
    Ok(())
}

/// Bounding box of points.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: [f64; 3],
    high: [f64; 3],
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { low: [f64::INFINITY; 3], high: [f64::NEG_INFINITY; 3] }
    }
}

impl Bounds {
    fn join(self, o: Bounds) -> Bounds {
        Bounds {
            low: std::array::from_fn(|a| self.low[a].min(o.low[a])),
            high: std::array::from_fn(|a| self.high[a].max(o.high[a])),
        }
    }
    /// Largest magnitude of a coordinate.
    fn largest(&self) -> f64 {
        (0..3).fold(0.0, |m, a| m.max(self.low[a].abs()).max(self.high[a].abs()))
    }
}

/// Bounding box of an N×3 array, after checking its shape and size.
fn check_points(array: &[f64], name: &'static str) -> Result<Bounds, Error> {
    let n = array.len() / 3;
    if array.len() != 3 * n {
        let why = "three coordinates a point".to_string();
        return Err(Error::Shape { array: name, found: array.len(), expected: 3 * n, why });
    }
    if n >= NONE as usize {
        return Err(Error::TooMany { what: name, found: n, limit: NONE as usize - 1 });
    }
    let bounds = array
        .par_chunks(3 * 4096)
        .map(|part| part.as_chunks::<3>().0.iter().fold(Bounds::default(), |b, p| b.join(Bounds { low: *p, high: *p })))
        .reduce(Bounds::default, Bounds::join);
    if n > 0 && !bounds.largest().is_finite() {
        let at = array.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(Error::NotFinite { array: name, row: at / 3, column: at % 3, value: array[at] });
    }
    Ok(bounds)
}

/// Chooses the root cube. Fills in `ncrit`, `occupancy` and the two stretches of the report.
fn choose_root(
    n: usize,
    sample: &mut dyn RootSample,
    bounds: &Bounds,
    options: &BuildOptions,
    report: &mut BuildReport,
) -> Result<Root, Error> {
    // The capacity is the mean population plus POISSON_SLACK standard deviations; `mean_of` is the inverse.
    let capacity_of = |mean: f64| (mean + POISSON_SLACK * mean.sqrt()).ceil() as usize;
    let mean_of = |ncrit: usize| {
        let root = (POISSON_SLACK * POISSON_SLACK + 4.0 * ncrit as f64).sqrt();
        ((root - POISSON_SLACK) / 2.0).powi(2)
    };
    let wanted = options.ncrit.map_or(options.occupancy, mean_of);
    report.occupancy = wanted;
    report.ncrit = options.ncrit.unwrap_or(capacity_of(wanted));

    if let Some((corner, side)) = options.root {
        let inside = |a: usize| corner[a] <= bounds.low[a] && bounds.high[a] <= corner[a] + side;
        if !(side > 0.0 && side.is_finite() && (n == 0 || (0..3).all(inside))) {
            let requirement = "the root cube must be finite and contain all points";
            return Err(Error::Parameter { name: "root side", value: side, requirement });
        }
        return Ok(Root { corner, side });
    }
    if n == 0 {
        return Ok(Root { corner: [0.0; 3], side: 1.0 });
    }
    let base = root::smallest(bounds.low, bounds.high, bounds.largest());
    if !(2.0 * base.side).is_finite() {
        let requirement = "the extent of the points must be far below the largest f64";
        return Err(Error::Parameter { name: "extent", value: base.side, requirement });
    }
    let (ends, mut root) = ([bounds.low, bounds.high], base);
    if n > report.ncrit {
        let choice = root::choose((n, sample), ends, base, wanted, options.ncrit.is_some())?;
        report.root_stretch = choice.stretch;
        report.occupancy = wanted * choice.ratio;
        if options.ncrit.is_none() {
            report.ncrit = capacity_of(report.occupancy);
        }
        root = choice.root;
    }
    // A device has found the middle beside the pairs that the choice asks for.
    report.outlier_stretch = root::outlier_stretch((n, sample), ends)?;
    Ok(root)
}

/// The root cube (lower corner, side) and the report with the leaf capacity that [`build`] would take. For callers that
/// split boxes themselves, for example on a GPU. `n` counts the sources or the targets, whichever are more; `sample` is
/// taken from these. `low..high` is the bounding box of both.
///
/// # Errors
/// [`Error::Parameter`] for an option outside its domain, and errors of `sample`.
pub fn root_for(
    n: usize,
    sample: &mut dyn RootSample,
    low: [f64; 3],
    high: [f64; 3],
    options: &BuildOptions,
) -> Result<([f64; 3], f64, BuildReport), Error> {
    check_options(options)?;
    let mut report = BuildReport { root_stretch: 1.0, outlier_stretch: 1.0, ..Default::default() };
    let Root { corner, side } = choose_root(n, sample, &Bounds { low, high }, options, &mut report)?;
    report.first_ncrit = report.ncrit;
    Ok((corner, side, report))
}

/// The smallest root cube (lower corner, side) with exact box centres around the box `low..high`. [`build`] takes it
/// when the tree is a single box.
pub fn smallest_root(low: [f64; 3], high: [f64; 3]) -> ([f64; 3], f64) {
    let Root { corner, side } = root::smallest(low, high, Bounds { low, high }.largest());
    (corner, side)
}

/// Deepest level under a root of side `side` whose boxes have exact centres and sides of at least `min_side`
/// (0: no limit). `largest` is the largest magnitude of a coordinate.
pub fn deepest_level(side: f64, largest: f64, min_side: f64) -> usize {
    let halvings = |x: f64| (side / x).log2();
    let exact = EXACT_LEVELS + halvings(largest.max(side));
    let allowed = if min_side > 0.0 { exact.min(halvings(min_side) + 1e-9) } else { exact };
    (allowed.max(0.0) as usize).min(MAX_LEVEL)
}

/// Points of one kind in Morton order, with their keys.
pub(crate) struct Sorted {
    keys: Vec<u64>,
    points: Points,
}

impl Sorted {
    pub(crate) fn new(array: &[f64], frame: &Frame) -> Self {
        let p = array.as_chunks::<3>().0;
        let items = sort::sorted(p.len(), |i| frame.key(p[i]));
        let (mut keys, mut order) = (Vec::new(), Vec::new());
        items.par_iter().map(|x| (x.key, x.index)).unzip_into_vecs(&mut keys, &mut order);
        drop(items);
        let mut xyz: [Vec<f64>; 3] = std::array::from_fn(|_| vec![0.0; p.len()]);
        let [x, y, z] = &mut xyz;
        (x, y, z, &order).into_par_iter().with_min_len(1024).for_each(|(x, y, z, &i)| {
            [*x, *y, *z] = p[i as usize];
        });
        Sorted { keys, points: Points { xyz, order } }
    }

    /// Bits of a position. Two positions are equal exactly if their bits are equal; −0 counts as 0.
    fn position(&self, i: usize) -> [u64; 3] {
        std::array::from_fn(|a| (self.points.xyz[a][i] + 0.0).to_bits())
    }

    /// Whether more than `ncrit` distinct positions lie in `lo..hi`.
    fn exceeds(&self, [lo, hi]: [u32; 2], ncrit: usize) -> bool {
        let (lo, hi) = (lo as usize, hi as usize);
        if ncrit == 0 {
            return lo < hi;
        }
        if hi - lo <= ncrit || self.keys[lo] != self.keys[hi - 1] {
            return hi - lo > ncrit;
        }
        let mut seen = vec![self.position(lo)];
        for i in lo + 1..hi {
            let p = self.position(i);
            if let Err(place) = seen.binary_search(&p) {
                seen.insert(place, p);
                if seen.len() > ncrit {
                    return true;
                }
            }
        }
        false
    }

    /// Number of positions with several points of a leaf, and the largest number of points at one position.
    fn coincident(&self, [lo, hi]: [u32; 2]) -> (usize, usize) {
        let (mut groups, mut largest, mut start) = (0, 0, lo as usize);
        for run in self.keys[lo as usize..hi as usize].chunk_by(|a, b| a == b) {
            if run.len() > 1 {
                let mut p: Vec<[u64; 3]> = (start..start + run.len()).map(|i| self.position(i)).collect();
                p.sort_unstable();
                for group in p.chunk_by(|a, b| a == b).filter(|g| g.len() > 1) {
                    groups += 1;
                    largest = largest.max(group.len());
                }
            }
            start += run.len();
        }
        (groups, largest)
    }

    /// Sorts the points `lo..hi` by new keys, taken in `frame`, the cube that holds them.
    fn rekey(&mut self, [lo, hi]: [u32; 2], frame: &Frame) {
        let range = lo as usize..hi as usize;
        let Points { xyz: [x, y, z], order } = &mut self.points;
        let (x, y, z) = (&mut x[range.clone()], &mut y[range.clone()], &mut z[range.clone()]);
        let items = sort::sorted(range.len(), |i| frame.key([x[i], y[i], z[i]]));
        for axis in [x, y, z] {
            permute(axis, &items);
        }
        permute(&mut order[range.clone()], &items);
        for (key, item) in self.keys[range].iter_mut().zip(&items) {
            *key = item.key;
        }
    }

    /// Where the octants of a box of level `level` begin and end among its points `lo..hi`: octant o has
    /// `ends[o]..ends[o + 1]`.
    fn octants(&self, [lo, hi]: [u32; 2], level: usize) -> [u32; 9] {
        let keys = &self.keys[lo as usize..hi as usize];
        let mut ends = [lo; 9];
        for o in 0..8 {
            let done = (ends[o] - lo) as usize;
            ends[o + 1] = ends[o] + keys[done..].partition_point(|&k| morton::octant(k, level) <= o) as u32;
        }
        ends
    }
}

fn permute<T: Copy>(a: &mut [T], items: &[sort::Item]) {
    let moved: Vec<T> = items.iter().map(|x| a[x.index as usize]).collect();
    a.copy_from_slice(&moved);
}

/// Boxes (level, anchor) that are split whatever they hold here, because they hold points of other ranks.
pub(crate) type Forced<'a> = &'a (dyn Fn(usize, [u64; 3]) -> bool + Sync);

/// No box is [`Forced`].
const ALONE: fn(usize, [u64; 3]) -> bool = |_, _| false;

/// Splits boxes level by level. `sets` holds the sources and, if they differ, the targets.
pub(crate) fn split(
    cube: Root,
    sets: &mut [Sorted],
    ncrit: usize,
    max_level: usize,
    forced: Forced,
) -> Result<Tree, Error> {
    let last = sets.len() - 1;
    let mut t = Tree { corner: cube.corner, side: cube.side, level_start: vec![0], ..Default::default() };
    let all = |s: &Sorted| [0, s.points.len() as u32];
    push(&mut t, NONE, 0, [0; 3], all(&sets[0]), all(&sets[last]));
    for level in 0.. {
        let start = t.level_start[level] as usize;
        let boxes = start..t.len();
        t.level_start.push(boxes.end as u32);
        if level >= max_level {
            break;
        }
        let range = |t: &Tree, b: usize, set: usize| if set == 0 { t.source_range[b] } else { t.target_range[b] };
        let splits = |b: &usize| {
            forced(level, t.anchor[*b]) || sets.iter().enumerate().any(|(i, s)| s.exceeds(range(&t, *b, i), ncrit))
        };
        let parents: Vec<usize> = boxes.into_par_iter().filter(splits).collect();
        if level > 0 && level % KEY_LEVELS == 0 {
            let side = t.side_at(level);
            for &b in &parents {
                let corner = std::array::from_fn(|a| t.corner[a] + t.anchor[b][a] as f64 * side);
                for (i, s) in sets.iter_mut().enumerate() {
                    s.rekey(range(&t, b, i), &Frame::new(corner, side));
                }
            }
        }
        let octants: Vec<[[u32; 9]; 2]> = parents
            .par_iter()
            .map(|&b| {
                let s = sets[0].octants(t.source_range[b], level);
                [s, if last == 0 { s } else { sets[last].octants(t.target_range[b], level) }]
            })
            .collect();
        for (&b, [s, q]) in parents.iter().zip(&octants) {
            t.child_start[b] = t.len() as u32;
            for o in 0..8 {
                if s[o] < s[o + 1] || q[o] < q[o + 1] {
                    let anchor = std::array::from_fn(|a| 2 * t.anchor[b][a] + (o >> a & 1) as u64);
                    push(&mut t, b as u32, o as u8, anchor, [s[o], s[o + 1]], [q[o], q[o + 1]]);
                    t.child_count[b] += 1;
                }
            }
        }
        if t.len() >= NONE as usize {
            return Err(Error::TooMany { what: "boxes", found: t.len(), limit: NONE as usize - 1 });
        }
        if parents.is_empty() {
            break;
        }
    }
    Ok(t)
}

/// Appends a leaf.
fn push(t: &mut Tree, parent: u32, octant: u8, anchor: [u64; 3], sources: [u32; 2], targets: [u32; 2]) {
    t.parent.push(parent);
    t.child_start.push(0);
    t.child_count.push(0);
    t.octant.push(octant);
    t.anchor.push(anchor);
    t.source_range.push(sources);
    t.target_range.push(targets);
}
