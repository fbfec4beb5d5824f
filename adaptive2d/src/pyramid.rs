//! The asymmetric pyramid: each level splits every box twice in succession at the median, across the longer side, so
//! that its four children are equally populated (Goude & Engblom 2012, §2).
//!
//! The pyramid is complete: box b has the children 4b + 1 … 4b + 4, all leaves are on the last level, and a box is a
//! run of consecutive leaves. Boxes are shrunk to their points: the centre of a box is the centre of the bounding
//! rectangle of its points, and its radius reaches the farthest point.

pub use crate::points::PlanePoints;
use crate::points::{fill, first_not_of_a_permutation, kept, kept_starts, pick};
use crate::select::{Items, select};
use fmm_traits::tree::{Hierarchy, NONE};
use fmm_traits::{Cube, Error};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Largest depth of a pyramid: 4^15 leaves still have 32-bit names.
const MAX_DEPTH: usize = 15;
/// A box with fewer points is split on one thread.
const SEQUENTIAL_POINTS: usize = 1 << 13;
/// Smallest scale of an expansion, in radii of the root. (The radius of a box is 0 if the box is one point at the
/// origin.)
pub const MIN_RELATIVE_SCALE: f64 = 1.0 / (1u128 << 100) as f64 / (1u128 << 100) as f64;

/// How to build a pyramid.
#[derive(Clone, Copy, Debug)]
pub struct PyramidOptions {
    /// Desired population N_d of a leaf, ≥ 1. Eq. 5.2 gives the depth.
    pub population: f64,
    /// Levels below the root, if not by eq. 5.2.
    pub depth: Option<usize>,
}

impl Default for PyramidOptions {
    fn default() -> Self {
        PyramidOptions { population: 40.0, depth: None }
    }
}

impl PyramidOptions {
    /// Levels below the root for some numbers of sources and of separate targets (`None`: targets are the sources).
    ///
    /// # Errors
    /// [`Error::Parameter`] for a population below 1 or a depth above 15, [`Error::TooMany`] beyond 2³¹ points.
    pub fn depth_of(&self, sources: usize, targets: Option<usize>) -> Result<usize, Error> {
        let (all, limit) = (sources + targets.unwrap_or(0), 1 << 31);
        if all > limit {
            return Err(Error::TooMany { what: "points", found: all, limit });
        }
        let parameter = |name, value, requirement| Err(Error::Parameter { name, value, requirement });
        if !(self.population >= 1.0 && self.population.is_finite()) {
            return parameter("population", self.population, "must be at least 1 and finite");
        }
        if let Some(depth) = self.depth.filter(|&d| d > MAX_DEPTH) {
            return parameter("depth", depth as f64, "must be at most 15");
        }
        let mean = if targets.is_some() { 0.5 * all as f64 } else { sources as f64 };
        Ok(self.depth.unwrap_or_else(|| depth_for(mean, self.population)))
    }
}

/// The pyramid over the union of sources and targets.
#[derive(Clone, Debug, Default)]
pub struct Pyramid {
    /// Levels below the root.
    depth: usize,
    /// Centre of each box.
    pub center: Vec<[f64; 2]>,
    /// Distance from the centre within which all points of a box lie, rounding included (0 for an empty box).
    pub radius: Vec<f64>,
    /// First source of each leaf, and the end of the last leaf.
    source_start: Vec<u32>,
    /// First target of each leaf, and the end of the last leaf.
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
        // A plain comparison compiles to one instruction. No coordinate is NaN.
        let less = |a: f64, b: f64| if a < b { a } else { b };
        let more = |a: f64, b: f64| if a > b { a } else { b };
        Bounds {
            low: [less(self.low[0], o.low[0]), less(self.low[1], o.low[1])],
            high: [more(self.high[0], o.high[0]), more(self.high[1], o.high[1])],
        }
    }

    /// Bounds of points. Large sets are handled in parallel.
    fn of(x: &[f64], y: &[f64]) -> Bounds {
        if x.len() > SEQUENTIAL_POINTS {
            let both = x.par_chunks(SEQUENTIAL_POINTS).zip(y.par_chunks(SEQUENTIAL_POINTS));
            return both.map(|(x, y)| Bounds::of(x, y)).reduce(|| Bounds::EMPTY, Bounds::join);
        }
        const LANES: usize = 8;
        let mut lanes = [Bounds::EMPTY; LANES];
        let rest = x.len() / LANES * LANES;
        for (x, y) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)) {
            for l in 0..LANES {
                lanes[l] = lanes[l].join(Bounds { low: [x[l], y[l]], high: [x[l], y[l]] });
            }
        }
        let tail = (rest..x.len()).map(|i| Bounds { low: [x[i], y[i]], high: [x[i], y[i]] });
        lanes.into_iter().chain(tail).fold(Bounds::EMPTY, Bounds::join)
    }

    /// The axis across which to split.
    fn longer(&self) -> usize {
        usize::from(self.high[1] - self.low[1] > self.high[0] - self.low[0])
    }

    /// Half the diagonal, 0 when empty.
    fn half_diagonal(&self) -> f64 {
        if self.low[0] <= self.high[0] { 0.5 * length(difference(self.high, self.low)) } else { 0.0 }
    }

    /// A bound on the rounding of a distance between points of the rectangle. A radius must cover this rounding: a
    /// point on the rim of one box may be the centre of another box, where the expansion of the other box is singular.
    fn rounding(&self) -> f64 {
        let largest = self.low.iter().chain(&self.high).fold(0.0, |m: f64, x| m.max(x.abs()));
        if largest < f64::INFINITY { 16.0 * f64::EPSILON * largest } else { 0.0 }
    }

    /// Centre of the rectangle; the origin for an empty rectangle.
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

/// Largest square of a distance from `center`.
fn farthest(x: &[f64], y: &[f64], center: [f64; 2]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    let rest = x.len() / LANES * LANES;
    let square = |x: f64, y: f64| {
        let d = difference([x, y], center);
        d[0] * d[0] + d[1] * d[1]
    };
    let more = |a: f64, b: f64| if a > b { a } else { b };
    for (x, y) in x.chunks_exact(LANES).zip(y.chunks_exact(LANES)) {
        for l in 0..LANES {
            lanes[l] = more(square(x[l], y[l]), lanes[l]);
        }
    }
    lanes.into_iter().chain((rest..x.len()).map(|i| square(x[i], y[i]))).fold(0.0, more)
}

/// Splits `items` twice in succession, `depth` times.
fn split(mut items: Items, depth: usize) {
    if depth == 0 || items.len() < 2 {
        return;
    }
    let bounds = Bounds::of(items.at[0], items.at[1]);
    let axis = bounds.longer();
    let large = items.len() > SEQUENTIAL_POINTS;
    let (cut, left, right) = halve(&mut items, axis);
    let (mut lower, mut upper) = (bounds, bounds);
    lower.high[axis] = cut;
    upper.low[axis] = cut;
    let quarter = |mut half: Items, bounds: Bounds| {
        if half.len() == 0 {
            return;
        }
        let (_, a, b) = halve(&mut half, bounds.longer());
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

/// Splits `items` (not empty) at the median along `axis`. Returns the coordinate between the halves, and the two
/// halves. If they differ in size, the right half is larger.
fn halve<'a>(items: &'a mut Items, axis: usize) -> (f64, Items<'a>, Items<'a>) {
    let k = items.len() / 2;
    let cut = select(items, axis, k);
    let (left, right) = items.split_at(k);
    (cut, left, right)
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
    // A chunk has no early exit, so that the compiler uses vectors.
    let finite = |chunk: &[f64]| chunk.iter().fold(true, |all, x| all & x.is_finite());
    if points.par_chunks(SEQUENTIAL_POINTS).all(finite) {
        return Ok(points.len() / 2);
    }
    let i = points.iter().position(|x| !x.is_finite()).unwrap_or(0);
    Err(Error::NotFinite { array, row: i / 2, column: i % 2, value: points[i] })
}

impl Pyramid {
    /// Builds the pyramid of `sources` and `targets` (N×2 row-major, finite; `None`: targets are the sources).
    ///
    /// Separate targets count as points like the sources: a median is the median of all points, and eq. 5.2 takes the
    /// mean number of sources and targets. The result depends on the input only, never on the number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::NotFinite`], [`Error::Parameter`] for a population below 1 or a depth above
    /// 15, [`Error::TooMany`] beyond 2³¹ points.
    pub fn build(sources: &[f64], targets: Option<&[f64]>, options: &PyramidOptions) -> Result<Self, Error> {
        let count = check(sources, "sources")?;
        let others = targets.map_or(Ok(0), |t| check(t, "targets"))?;
        let depth = options.depth_of(count, targets.map(|_| others))?;

        let mut all = PlanePoints::zeros(count + others);
        fill(&mut all, 0, sources);
        fill(&mut all, count, targets.unwrap_or(&[]));
        split(Items { at: [&mut all.x, &mut all.y], id: &mut all.order }, depth);

        let leaves = 1usize << (2 * depth);
        let n = all.len();
        let first = |k| if k == leaves { n as u32 } else { first_of_leaf(n, depth, k) as u32 };
        let start: Vec<u32> = (0..leaves + 1).into_par_iter().with_min_len(1 << 10).map(first).collect();
        let mut pyramid = Pyramid { depth, ..Default::default() };
        pyramid.shrink(&all, &start);
        if targets.is_none() {
            pyramid.source_start = start.clone();
            pyramid.target_start = start;
            pyramid.sources = Arc::new(all);
            pyramid.targets = pyramid.sources.clone();
        } else {
            let (sources, source_start) = pick(&all, &start, 0, |id| id < count as u32);
            let (targets, target_start) = pick(&all, &start, count as u32, |id| id >= count as u32);
            (pyramid.source_start, pyramid.target_start) = (source_start, target_start);
            (pyramid.sources, pyramid.targets) = (Arc::new(sources), Arc::new(targets));
        }
        Ok(pyramid)
    }

    /// The pyramid with the given arrays: centre and radius of each box, and the first source and the first target of
    /// each leaf with the end of the last leaf. It has no points: only [`with_points`](Pyramid::with_points) and
    /// [`holding`](Pyramid::holding) make it whole. `same_points`: targets are the sources.
    ///
    /// # Errors
    /// [`Error::Shape`] if starts do not ascend from 0, or are not those of a pyramid of this depth.
    pub fn of_boxes(
        depth: usize,
        center: Vec<[f64; 2]>,
        radius: Vec<f64>,
        [source_start, target_start]: [Vec<u32>; 2],
        same_points: bool,
    ) -> Result<Self, Error> {
        for start in [&source_start, &target_start] {
            let (found, expected) = (start.len(), (1usize << (2 * depth.min(MAX_DEPTH))) + 1);
            if found != expected || start[0] != 0 || !start.is_sorted() {
                let why = "starts of leaves that ascend from 0".to_string();
                return Err(Error::Shape { array: "starts of leaves", found, expected, why });
            }
        }
        let sources = Arc::new(PlanePoints::default());
        let targets = if same_points { sources.clone() } else { Arc::default() };
        Ok(Pyramid { depth, center, radius, source_start, target_start, sources, targets })
    }

    /// The pyramid with these sources and targets in tree order (the same allocation if targets are the sources).
    ///
    /// # Errors
    /// As [`check`](Pyramid::check).
    pub fn with_points(self, [sources, targets]: [Arc<PlanePoints>; 2]) -> Result<Self, Error> {
        let pyramid = Pyramid { sources, targets, ..self };
        pyramid.check()?;
        Ok(pyramid)
    }

    /// The first source and the first target of each leaf, and the end of the last leaf.
    pub fn starts(&self) -> [&[u32]; 2] {
        [&self.source_start, &self.target_start]
    }

    /// The smallest length by which expansions are scaled.
    pub fn least_scale(&self) -> f64 {
        if self.radius[0] > 0.0 { self.radius[0] * MIN_RELATIVE_SCALE } else { 1.0 }
    }

    /// Sets the centres and radii of all boxes: of leaves from their points, of other boxes from their children.
    fn shrink(&mut self, points: &PlanePoints, start: &[u32]) {
        let boxes = level_start(self.depth + 1);
        let first = level_start(self.depth);
        let mut bounds = vec![Bounds::EMPTY; boxes];
        self.center = vec![[0.0; 2]; boxes];
        self.radius = vec![0.0; boxes];
        let leaves = bounds[first..].par_iter_mut().zip(&mut self.center[first..]).zip(&mut self.radius[first..]);
        leaves.enumerate().with_min_len(1 << 8).for_each(|(k, ((bounds, center), radius))| {
            let own = start[k] as usize..start[k + 1] as usize;
            let (x, y) = (&points.x[own.clone()], &points.y[own]);
            *bounds = Bounds::of(x, y);
            *center = bounds.center();
            let squares = farthest(x, y, *center);
            // Squares of lengths below 1e-145 underflow. Half the diagonal is then the bound.
            let reach = if squares > 1e-290 { squares.sqrt() } else { bounds.half_diagonal() };
            *radius = reach + bounds.rounding();
        });
        for l in (0..self.depth).rev() {
            let (above, below) = (level_start(l), level_start(l + 1));
            let (own, children) = bounds.split_at_mut(below);
            let (center, child_center) = self.center.split_at_mut(below);
            let (radius, child_radius) = self.radius.split_at_mut(below);
            let boxes = own[above..].par_iter_mut().zip(&mut center[above..]).zip(&mut radius[above..]);
            boxes.enumerate().with_min_len(1 << 8).for_each(|(k, ((bounds, center), radius))| {
                let four = 4 * k..4 * k + 4;
                *bounds = children[four.clone()].iter().copied().fold(Bounds::EMPTY, Bounds::join);
                *center = bounds.center();
                let filled = four.filter(|&c| children[c].low[0] <= children[c].high[0]);
                let reach = filled.map(|c| length(difference(child_center[c], *center)) + child_radius[c]);
                *radius = reach.fold(0.0, f64::max).min(bounds.half_diagonal()) + bounds.rounding();
            });
        }
    }

    /// The pyramid with the same boxes, but only with the sources and targets at the given ascending positions. The
    /// kept points are numbered 0, 1, … in tree order. Targets are never the sources: only pairs at distance zero are
    /// skipped.
    ///
    /// # Panics
    /// If positions do not ascend, or lie beyond the points.
    pub fn thinned(&self, sources: &[u32], targets: &[u32]) -> Pyramid {
        self.holding([sources, targets], [kept(&self.sources, sources), kept(&self.targets, targets)])
    }

    /// As [`thinned`](Pyramid::thinned), with the sources and targets at these positions given. The points of this
    /// pyramid may be missing.
    ///
    /// # Panics
    /// If positions do not ascend.
    pub fn holding(&self, [sources, targets]: [&[u32]; 2], points: [PlanePoints; 2]) -> Pyramid {
        let [of_sources, of_targets] = points.map(Arc::new);
        Pyramid {
            depth: self.depth,
            center: self.center.clone(),
            radius: self.radius.clone(),
            source_start: kept_starts(&self.source_start, sources),
            target_start: kept_starts(&self.target_start, targets),
            sources: of_sources,
            targets: of_targets,
        }
    }

    /// Checks that the public arrays are as [`build`](Pyramid::build) and [`thinned`](Pyramid::thinned) make them: a
    /// centre and a radius for each box, as many points in tree order as the leaves hold, and each index of the caller
    /// once. Tasks that write the caller's rows rely on these properties.
    ///
    /// # Errors
    /// [`Error::Shape`] for an array of wrong length. [`Error::Edge`] with the leaf of a point whose index is out of
    /// range or occurs twice.
    pub fn check(&self) -> Result<(), Error> {
        let boxes = level_start(self.depth + 1);
        let length = |array, found, expected| {
            let why = format!("a pyramid of {} levels", self.levels());
            if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why }) }
        };
        length("centres of boxes", self.center.len(), boxes)?;
        length("radii of boxes", self.radius.len(), boxes)?;
        let refuse = |leaf: usize, what: String| {
            Err(Error::Edge { what, target: (level_start(self.depth) + leaf) as u32, source_box: NONE })
        };
        let sets = [(&self.sources, &self.source_start), (&self.targets, &self.target_start)];
        for (points, start) in sets.into_iter().take(if self.same_points() { 1 } else { 2 }) {
            let n = start.last().map_or(0, |&n| n as usize);
            length("x of points", points.x.len(), n)?;
            length("y of points", points.y.len(), n)?;
            length("order of points", points.order.len(), n)?;
            if let Some(at) = first_not_of_a_permutation(&points.order) {
                let leaf = start.partition_point(|&first| first as usize <= at) - 1;
                return refuse(leaf, format!("a point is the caller's {} of {n}, or a second time", points.order[at]));
            }
        }
        if self.same_points() && self.source_start != self.target_start {
            return refuse(0, "targets are the sources, but not leaf by leaf".into());
        }
        Ok(())
    }

    /// Number of the level of the leaves; the root has level 0.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.radius.len()
    }

    /// Whether there is no box (only without [`build`](Pyramid::build)).
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

    /// The length by which expansions of box `b` are scaled: its radius, or a tiny positive length if the radius is
    /// zero.
    pub fn scale(&self, b: usize) -> f64 {
        self.radius[b].max(self.least_scale())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let points = |p: &PlanePoints| 20 * p.len() as u64;
        let arrays = 24 * self.len() as u64 + 4 * (self.source_start.len() + self.target_start.len()) as u64;
        arrays + points(&self.sources) + if self.same_points() { 0 } else { points(&self.targets) }
    }
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
    /// The cube whose side is twice the scale. Expansions in the plane use the circle with half the side as radius.
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
