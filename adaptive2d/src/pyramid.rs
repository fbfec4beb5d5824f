//! The asymmetric pyramid: each level splits every box twice in succession at the median, across the
//! longer side of the box, so that its four children are equally populated (Goude & Engblom 2012, §2).
//!
//! The pyramid is complete: box b has the children 4b + 1 … 4b + 4, all leaves are on the last level,
//! and a box is a run of consecutive leaves. Boxes are shrunk to their points: the centre is that of
//! their bounding rectangle, the radius reaches the farthest of them.

use crate::select::{Item, select};
use fmm_traits::tree::{Hierarchy, NONE};
use fmm_traits::{Cube, Error};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Deepest pyramid: 4^15 leaves still have 32-bit names.
const MAX_DEPTH: usize = 15;
/// Boxes of fewer points are split on one thread.
const SEQUENTIAL: usize = 1 << 13;
/// Radius below which a box is a point, relative to the root: expansions are then scaled as if it had this
/// radius.
const POINT: f64 = 1.0 / (1u128 << 100) as f64 / (1u128 << 100) as f64;

/// How to build a pyramid.
#[derive(Clone, Copy, Debug)]
pub struct PyramidOptions {
    /// Desired population N_d of a leaf, ≥ 1: the depth is that of eq. 5.2.
    pub population: f64,
    /// Levels below the root, instead of eq. 5.2.
    pub depth: Option<usize>,
}

impl Default for PyramidOptions {
    fn default() -> Self {
        PyramidOptions { population: 40.0, depth: None }
    }
}

/// Points in tree order, one array per axis.
#[derive(Clone, Debug, Default)]
pub struct PlanePoints {
    /// x by position.
    pub x: Vec<f64>,
    /// y by position.
    pub y: Vec<f64>,
    /// The caller's index by position.
    pub order: Vec<u32>,
}

impl PlanePoints {
    fn zeros(n: usize) -> Self {
        PlanePoints { x: vec![0.0; n], y: vec![0.0; n], order: vec![0; n] }
    }
    /// Number of points.
    pub fn len(&self) -> usize {
        self.order.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// The pyramid over the union of sources and targets.
#[derive(Clone, Debug, Default)]
pub struct Pyramid {
    /// Levels below the root.
    depth: usize,
    /// Centre of each box.
    pub center: Vec<[f64; 2]>,
    /// Distance from the centre within which all points of a box lie (0 for an empty box).
    pub radius: Vec<f64>,
    /// First source of each leaf, and the end of the last.
    source_start: Vec<u32>,
    /// First target of each leaf, and the end of the last.
    target_start: Vec<u32>,
    /// The sources in tree order.
    pub sources: Arc<PlanePoints>,
    /// The targets in tree order; the same allocation when targets are the sources.
    pub targets: Arc<PlanePoints>,
}

/// Levels below the root for `points` and a desired leaf population (eq. 5.2).
pub fn depth_for(points: f64, population: f64) -> usize {
    let depth = (0.5 * (5.0 * points / (8.0 * population)).log2()).ceil();
    (depth.max(0.0) as usize).min(MAX_DEPTH)
}

/// Number of boxes above level `l`, that is, the first box of level `l`.
pub fn level_start(l: usize) -> usize {
    ((1 << (2 * l)) - 1) / 3
}

/// Level of box `b`.
pub fn level_of(b: usize) -> usize {
    (3 * b + 1).ilog2() as usize / 2
}

/// A rectangle along the axes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: [f64; 2],
    high: [f64; 2],
}

impl Bounds {
    const EMPTY: Bounds = Bounds { low: [f64::INFINITY; 2], high: [f64::NEG_INFINITY; 2] };

    fn join(self, o: Bounds) -> Bounds {
        // Plain comparisons compile to one instruction each; there is no NaN.
        let less = |a: f64, b: f64| if a < b { a } else { b };
        let more = |a: f64, b: f64| if a > b { a } else { b };
        Bounds {
            low: [less(self.low[0], o.low[0]), less(self.low[1], o.low[1])],
            high: [more(self.high[0], o.high[0]), more(self.high[1], o.high[1])],
        }
    }

    fn of(items: &[Item]) -> Bounds {
        let point = |p: &Item| Bounds { low: p.at, high: p.at };
        let mut four = [Bounds::EMPTY; 4];
        let chunks = items.chunks_exact(4);
        let rest = chunks.remainder();
        for c in chunks {
            for (b, p) in four.iter_mut().zip(c) {
                *b = b.join(point(p));
            }
        }
        let all = rest.iter().map(point).fold(Bounds::EMPTY, Bounds::join);
        four.into_iter().fold(all, Bounds::join)
    }

    /// The axis across which to split.
    fn longer(&self) -> usize {
        usize::from(self.high[1] - self.low[1] > self.high[0] - self.low[0])
    }

    /// Centre; that of an empty rectangle is the origin.
    fn center(&self) -> [f64; 2] {
        let mid = |a: usize| self.low[a] + 0.5 * (self.high[a] - self.low[a]);
        if self.low[0] <= self.high[0] { [mid(0), mid(1)] } else { [0.0; 2] }
    }
}

fn length(v: [f64; 2]) -> f64 {
    v[0].hypot(v[1])
}

fn difference(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}

/// Splits `items` twice in succession, `depth` times.
fn split(items: &mut [Item], depth: usize) {
    if depth == 0 || items.len() < 2 {
        return;
    }
    let bounds = if items.len() < SEQUENTIAL {
        Bounds::of(items)
    } else {
        items.par_chunks(SEQUENTIAL).map(Bounds::of).reduce(|| Bounds::EMPTY, Bounds::join)
    };
    let axis = bounds.longer();
    let large = items.len() >= SEQUENTIAL;
    let (left, right) = halve(items, axis);
    let cut = right[0].at[axis];
    let (mut lower, mut upper) = (bounds, bounds);
    lower.high[axis] = cut;
    upper.low[axis] = cut;
    let quarter = |half: &mut [Item], bounds: Bounds| {
        if half.is_empty() {
            return;
        }
        let (a, b) = halve(half, bounds.longer());
        if large {
            rayon::join(|| split(a, depth - 1), || split(b, depth - 1));
        } else {
            split(a, depth - 1);
            split(b, depth - 1);
        }
    };
    if large {
        rayon::join(|| quarter(left, lower), || quarter(right, upper));
    } else {
        quarter(left, lower);
        quarter(right, upper);
    }
}

/// The two halves of `items` (not empty) along `axis`; the right one is the larger if they differ.
fn halve(items: &mut [Item], axis: usize) -> (&mut [Item], &mut [Item]) {
    let k = items.len() / 2;
    if axis == 0 {
        select::<0>(items, k);
    } else {
        select::<1>(items, k);
    }
    items.split_at_mut(k)
}

/// First item of leaf `k` when `n` items are halved 2·`depth` times as [`halve`] does.
fn first_of_leaf(n: usize, depth: usize, k: usize) -> usize {
    let (mut start, mut end) = (0, n);
    for bit in (0..2 * depth).rev() {
        let middle = start + (end - start) / 2;
        if k >> bit & 1 == 0 {
            end = middle;
        } else {
            start = middle;
        }
    }
    start
}

fn check(points: &[f64], array: &'static str) -> Result<usize, Error> {
    if !points.len().is_multiple_of(2) {
        let why = "N×2 coordinates".into();
        return Err(Error::Shape { array, found: points.len(), expected: points.len() + 1, why });
    }
    match points.par_iter().with_min_len(1 << 14).position_first(|x| !x.is_finite()) {
        Some(i) => Err(Error::NotFinite { array, row: i / 2, column: i % 2, value: points[i] }),
        None => Ok(points.len() / 2),
    }
}

impl Pyramid {
    /// Builds the pyramid of `sources` and `targets` (N×2 row-major, finite; `None`: targets are the sources).
    ///
    /// Separate targets are points like the sources: the median is that of all points, and eq. 5.2 counts the
    /// mean of both. The result depends on the input only, never on the number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::NotFinite`], [`Error::Parameter`] for a population below 1 or a depth above
    /// 15, [`Error::TooMany`] beyond 2³¹ points.
    pub fn build(sources: &[f64], targets: Option<&[f64]>, options: &PyramidOptions) -> Result<Self, Error> {
        let count = check(sources, "sources")?;
        let others = targets.map_or(Ok(0), |t| check(t, "targets"))?;
        let limit = 1 << 31;
        if count + others > limit {
            return Err(Error::TooMany { what: "points", found: count + others, limit });
        }
        let parameter = |name, value, requirement| Err(Error::Parameter { name, value, requirement });
        if !(options.population >= 1.0 && options.population.is_finite()) {
            return parameter("population", options.population, "must be at least 1 and finite");
        }
        if let Some(depth) = options.depth.filter(|&d| d > MAX_DEPTH) {
            return parameter("depth", depth as f64, "must be at most 15");
        }
        let mean = if targets.is_some() { 0.5 * (count + others) as f64 } else { count as f64 };
        let depth = options.depth.unwrap_or_else(|| depth_for(mean, options.population));

        let row = |(id, at): (usize, &[f64])| Item { at: [at[0], at[1]], id: id as u64 };
        let both = sources.par_chunks(2).chain(targets.unwrap_or(&[]).par_chunks(2));
        let mut items: Vec<Item> = both.enumerate().with_min_len(1 << 12).map(row).collect();
        split(&mut items, depth);

        let leaves = 1usize << (2 * depth);
        let start: Vec<usize> = (0..leaves + 1)
            .into_par_iter()
            .with_min_len(1 << 10)
            .map(|k| if k == leaves { items.len() } else { first_of_leaf(items.len(), depth, k) })
            .collect();
        let mut pyramid = Pyramid { depth, ..Default::default() };
        pyramid.shrink(&items, &start);
        let sources_only = |p: &Item| (p.id as usize) < count;
        if targets.is_none() {
            pyramid.source_start = start.iter().map(|&s| s as u32).collect();
            pyramid.target_start = pyramid.source_start.clone();
            pyramid.sources = Arc::new(unpack(&items, &pyramid.source_start, &start, 0, |_| true));
            pyramid.targets = pyramid.sources.clone();
        } else {
            pyramid.source_start = starts(&items, &start, sources_only);
            pyramid.target_start = starts(&items, &start, |p| !sources_only(p));
            pyramid.sources = Arc::new(unpack(&items, &pyramid.source_start, &start, 0, sources_only));
            let targets = unpack(&items, &pyramid.target_start, &start, count, |p| !sources_only(p));
            pyramid.targets = Arc::new(targets);
        }
        Ok(pyramid)
    }

    /// Centres and radii of all boxes: of leaves from their points, of others from their children.
    fn shrink(&mut self, items: &[Item], start: &[usize]) {
        let boxes = level_start(self.depth + 1);
        let first = level_start(self.depth);
        let mut bounds = vec![Bounds::EMPTY; boxes];
        self.center = vec![[0.0; 2]; boxes];
        self.radius = vec![0.0; boxes];
        let leaves = bounds[first..].par_iter_mut().zip(&mut self.center[first..]).zip(&mut self.radius[first..]);
        leaves.enumerate().with_min_len(1 << 8).for_each(|(k, ((bounds, center), radius))| {
            let own = &items[start[k]..start[k + 1]];
            *bounds = Bounds::of(own);
            *center = bounds.center();
            let square = |p: &Item| {
                let d = difference(p.at, *center);
                d[0] * d[0] + d[1] * d[1]
            };
            let squares = own.iter().map(square).fold(0.0, |a: f64, b| if a > b { a } else { b });
            // Squares of coordinates below 1e-150 underflow: half the diagonal holds as well.
            *radius = if squares > 1e-290 { squares.sqrt() } else { 0.5 * length(difference(bounds.high, bounds.low)) };
            if own.is_empty() {
                *radius = 0.0;
            }
        });
        for b in (0..first).rev() {
            let children = 4 * b + 1..4 * b + 5;
            bounds[b] = bounds[children.clone()].iter().copied().fold(Bounds::EMPTY, Bounds::join);
            self.center[b] = bounds[b].center();
            let filled = children.filter(|&c| bounds[c].low[0] <= bounds[c].high[0]);
            let reach = filled.map(|c| length(difference(self.center[c], self.center[b])) + self.radius[c]);
            let reach = reach.fold(0.0, f64::max);
            self.radius[b] = reach.min(0.5 * length(difference(bounds[b].high, bounds[b].low)).max(0.0));
            if bounds[b].low[0] > bounds[b].high[0] {
                self.radius[b] = 0.0;
            }
        }
    }

    /// Levels below the root: the leaves are on this level.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.radius.len()
    }

    /// Whether there is no box (only before [`build`](Pyramid::build)).
    pub fn is_empty(&self) -> bool {
        self.radius.is_empty()
    }

    /// Boxes of level `l`.
    pub fn level(&self, l: usize) -> Range<usize> {
        level_start(l)..level_start(l + 1)
    }

    /// Leaves of box `b`, counted from the first leaf.
    pub fn leaves_of(&self, b: usize) -> Range<usize> {
        let l = level_of(b);
        let shift = 2 * (self.depth - l);
        let k = b - level_start(l);
        k << shift..(k + 1) << shift
    }

    /// Source positions of box `b`.
    pub fn sources_of(&self, b: usize) -> Range<usize> {
        let leaves = self.leaves_of(b);
        self.source_start[leaves.start] as usize..self.source_start[leaves.end] as usize
    }

    /// Target positions of box `b`.
    pub fn targets_of(&self, b: usize) -> Range<usize> {
        let leaves = self.leaves_of(b);
        self.target_start[leaves.start] as usize..self.target_start[leaves.end] as usize
    }

    /// Whether targets are the sources.
    pub fn same_points(&self) -> bool {
        Arc::ptr_eq(&self.sources, &self.targets)
    }

    /// The length by which expansions of box `b` are scaled: its radius, or a tiny positive length for a box
    /// without extent.
    pub fn scale(&self, b: usize) -> f64 {
        let least = if self.radius[0] > 0.0 { self.radius[0] * POINT } else { 1.0 };
        self.radius[b].max(least)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let points = |p: &PlanePoints| 20 * p.len() as u64;
        let arrays = 24 * self.len() as u64 + 4 * (self.source_start.len() + self.target_start.len()) as u64;
        arrays + points(&self.sources) + if self.same_points() { 0 } else { points(&self.targets) }
    }
}

/// First of the items that satisfy `keep` in each leaf, and their number at the end.
fn starts(items: &[Item], start: &[usize], keep: impl Fn(&Item) -> bool + Sync) -> Vec<u32> {
    let count = |w: &[usize]| items[w[0]..w[1]].iter().filter(|p| keep(p)).count() as u32;
    let counts: Vec<u32> = start.par_windows(2).with_min_len(1 << 8).map(count).collect();
    let running = counts.iter().scan(0, |sum, &c| {
        *sum += c;
        Some(*sum)
    });
    std::iter::once(0).chain(running).collect()
}

/// The items that satisfy `keep`, as arrays; `from` is the id of the caller's first.
fn unpack(
    items: &[Item],
    kept_start: &[u32],
    start: &[usize],
    from: usize,
    keep: impl Fn(&Item) -> bool + Sync,
) -> PlanePoints {
    /// Leaves a task unpacks.
    const RUN: usize = 1 << 8;
    let mut points = PlanePoints::zeros(*kept_start.last().unwrap_or(&0) as usize);
    let PlanePoints { x, y, order } = &mut points;
    let (mut x, mut y, mut order) = (&mut x[..], &mut y[..], &mut order[..]);
    let leaves = start.len() - 1;
    let mut runs = Vec::new();
    for first in (0..leaves).step_by(RUN) {
        let end = (first + RUN).min(leaves);
        let n = (kept_start[end] - kept_start[first]) as usize;
        let mine = (x.split_off_mut(..n), y.split_off_mut(..n), order.split_off_mut(..n));
        if let (Some(x), Some(y), Some(order)) = mine {
            runs.push((&items[start[first]..start[end]], x, y, order));
        }
    }
    runs.into_par_iter().for_each(|(items, x, y, order)| {
        let to = x.iter_mut().zip(y).zip(order);
        for (p, ((x, y), order)) in items.iter().filter(|p| keep(p)).zip(to) {
            (*x, *y, *order) = (p.at[0], p.at[1], (p.id as usize - from) as u32);
        }
    });
    points
}

impl Hierarchy for Pyramid {
    fn levels(&self) -> usize {
        self.depth + 1
    }
    fn level(&self, l: usize) -> Range<usize> {
        self.level(l)
    }
    fn parent(&self, b: usize) -> u32 {
        if b == 0 { NONE } else { (b as u32 - 1) / 4 }
    }
    fn is_leaf(&self, b: usize) -> bool {
        b >= level_start(self.depth)
    }
    /// The cube of side twice the scale: expansions here see a circle, of half the side.
    fn cube(&self, b: usize, _: usize) -> Cube {
        Cube { center: [self.center[b][0], self.center[b][1], 0.0], side: 2.0 * self.scale(b) }
    }
    fn sources_of(&self, b: usize) -> Range<usize> {
        self.sources_of(b)
    }
    fn targets_of(&self, b: usize) -> Range<usize> {
        self.targets_of(b)
    }
    fn same_points(&self) -> bool {
        self.same_points()
    }
    fn source_order(&self) -> &[u32] {
        &self.sources.order
    }
    fn target_order(&self) -> &[u32] {
        &self.targets.order
    }
    fn source(&self, position: usize) -> [f64; 3] {
        [self.sources.x[position], self.sources.y[position], 0.0]
    }
    fn target(&self, position: usize) -> [f64; 3] {
        [self.targets.x[position], self.targets.y[position], 0.0]
    }
}
