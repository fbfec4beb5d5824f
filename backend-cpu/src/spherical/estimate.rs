//! The error to expect of spherical harmonics on given points, before anything is summed.
//!
//! Of strengths that are independent, of mean 0 and of variance 1, the square of the error at a target has the mean
//! Σⱼ e(x, yⱼ)² over the sources, e what is [left](fmm_kernels::spherical::tail) of the pair on its way through the lists; the square of
//! the sum itself Σⱼ K(x, yⱼ)². Both are estimated at a few targets, from all edges into their boxes or a part of them, and one source
//! of each: points of a lattice, in the corners of their boxes, err ten times as much as uniform ones, and targets without
//! near sources lack the pairs that dominate a gradient otherwise. M2M and L2L lose nothing that M2L or M2P would keep.

use super::cuts::Cuts;
use super::translate::cube;
use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_kernels::spherical::tail::{LANES, Pair, Series};
use fmm_kernels::spherical::truncation::degrees;
use fmm_kernels::spherical::{MAX_ORDER, Truncation};
use fmm_traits::{Cube, Hierarchy, Lists, Simd, SimdLane, Tree};
use rayon::prelude::*;
use std::ops::RangeInclusive;

/// Targets whose sums are looked at, and those of their errors.
const SUMS: usize = 256;
const ERRORS: usize = 192;
/// Edges of the far field that the sum at a target is made of.
const FAR: usize = 128;
/// Part of the sums that is left away, the largest ones: a few close pairs would make up for all errors.
const CLOSE: f64 = 0.02;
/// Pairs of boxes that are looked at: one in so many points, between these bounds.
const PART: usize = 20;
const LEAST: usize = 7_000;
const MOST: usize = 16_000;
/// Order from which on more are looked at.
const ORDER: f64 = 14.0;
/// Points of a box that are looked at.
const POINTS: usize = 64;

/// Squares by order, of potential, gradient and Hessian.
type Squares = [[f64; 3]; MAX_ORDER + 1];

/// Mean squares, over the targets, of sums and of errors: potential, gradient, Hessian of charges 1/r.
#[derive(Clone, Debug)]
pub struct Estimate {
    sums: [f64; 3],
    errors: Squares,
    orders: RangeInclusive<usize>,
}

/// What is to be estimated.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// How edges of M2L, and of M2P in a treecode, are cut.
    pub truncation: Truncation,
    /// Orders from this one.
    pub least: usize,
    /// Orders up to this one.
    pub orders: usize,
    /// 1: potential, 2: gradient as well, 3: Hessian as well.
    pub outputs: usize,
    /// Pairs closer than this count for nothing in the sums: those of a softened kernel.
    pub soft: f64,
    /// Instruction set.
    pub isa: Isa,
}

impl Estimate {
    /// Of `tree` with `lists`, in the current rayon pool.
    pub fn new(tree: &Tree, lists: &Lists, question: Question) -> Self {
        let targets = tree.targets.len();
        let orders = question.orders.clamp(3, MAX_ORDER);
        // The higher the order the fewer the pairs that make up its error.
        let rare = (orders as f64 / ORDER).powi(2).max(1.0);
        let edges = (rare * (tree.sources.len().max(targets) / PART).clamp(LEAST, MOST) as f64) as usize;
        let boxes: Vec<Cube> = (0..tree.len()).map(|b| cube(tree, b)).collect();
        let cuts = Cuts::new(&boxes, lists, question.truncation);
        let probe = Probe { tree, lists, cuts, question: Question { orders, ..question }, edges };
        // Spread over all targets, in the rhythm of no lattice.
        let spread =
            |k: usize, of: usize| (((k as f64 + fraction(k)) / of as f64 * targets as f64) as usize).min(targets - 1);
        let some = SUMS.min(targets);
        let mut sums: Vec<[f64; 3]> = (0..some).into_par_iter().map(|k| probe.sums(spread(k, some))).collect();
        let some = ERRORS.min(targets);
        let errors: Vec<Squares> = (0..some).into_par_iter().map(|k| probe.errors(spread(k, some), k, some)).collect();
        let mut total = Estimate { sums: [0.0; 3], errors: [[0.0; 3]; MAX_ORDER + 1], orders: question.least..=orders };
        let kept = sums.len() - (CLOSE * sums.len() as f64) as usize;
        for k in 0..3 {
            sums.sort_unstable_by(|a, b| a[k].total_cmp(&b[k]));
            total.sums[k] = sums[..kept].iter().map(|s| s[k]).sum::<f64>() / kept as f64;
        }
        let all = total.errors.as_flattened_mut();
        for one in &errors {
            all.iter_mut().zip(one.as_flattened()).for_each(|(sum, x)| *sum += x / some as f64);
        }
        total
    }

    /// The relative ℓ2 error to expect of output number `output` (0 potential, 1 gradient, 2 Hessian) at `order`; infinite beyond what was
    /// asked for.
    pub fn error(&self, output: usize, order: usize) -> f64 {
        match self.errors.get(order).map(|e| e[output]) {
            Some(0.0) if self.orders.contains(&order) => 0.0,
            Some(error) if self.orders.contains(&order) => (error / self.sums[output]).sqrt(),
            _ => f64::INFINITY,
        }
    }
}

/// A number in [0, 1), of the sequence that fills it most evenly.
fn fraction(k: usize) -> f64 {
    (k as f64 * 0.618_033_988_749_894_9).fract()
}

/// How the sources of an edge reach the target.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Multipole,
    Local,
    Both,
}

/// An edge of the far field of a target.
struct Edge {
    target: Cube,
    source: usize,
    way: Way,
}

/// A pair on its way, how many pairs it stands for, and the shares of the degrees that its edge keeps.
#[derive(Clone, Copy)]
struct Sample {
    pair: Pair,
    weight: f64,
    way: Way,
    shares: [f64; 2],
}

struct Probe<'a> {
    tree: &'a Tree,
    lists: &'a Lists,
    cuts: Cuts,
    question: Question,
    /// Edges that all targets look at.
    edges: usize,
}

fn minus(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| a[i] - b[i])
}

fn square(v: [f64; 3]) -> f64 {
    v[0] * v[0] + v[1] * v[1] + v[2] * v[2]
}

impl Probe<'_> {
    /// Positions in units of the root cube.
    fn place(&self, p: [f64; 3]) -> [f64; 3] {
        minus(p, self.tree.corner).map(|x| x / self.tree.side)
    }

    fn cube(&self, b: usize, level: usize) -> Cube {
        let Cube { center, side } = self.tree.cube(b, level);
        Cube { center: self.place(center), side: side / self.tree.side }
    }

    /// The leaf that holds a target, and all edges of the far field on its way there.
    fn ways(&self, target: usize) -> (usize, Vec<Edge>) {
        let (tree, lists) = (self.tree, self.lists);
        let (mut b, mut level, mut edges) = (0, 0, Vec::new());
        loop {
            let cube = self.cube(b, level);
            let mut take = |list: &[u32], way| {
                edges.extend(list.iter().map(|&s| Edge { target: cube, source: s as usize, way }));
            };
            take(lists.m2l.row(b), Way::Both);
            take(lists.p2l.row(b), Way::Local);
            let mut children = if tree.is_leaf(b) { 0..0 } else { tree.children(b) };
            let Some(child) = children.find(|&c| tree.targets_of(c).contains(&target)) else {
                take(lists.m2p.row(b), Way::Multipole);
                return (b, edges);
            };
            (b, level) = (child, level + 1);
        }
    }

    /// Σ K², of near pairs and of one source of each edge.
    fn sums(&self, target: usize) -> [f64; 3] {
        let (tree, x) = (self.tree, self.place(self.tree.target(target)));
        let soft = (self.question.soft / tree.side).powi(2);
        let mut total = [0.0; 3];
        let mut add = |y: [f64; 3], weight: f64| {
            let pair = Pair { d: minus(x, y), ..Pair::default() };
            if square(pair.d) > soft {
                pair.whole().iter().zip(&mut total).for_each(|(k, sum)| *sum += weight * k);
            }
        };
        let (leaf, edges) = self.ways(target);
        for &s in self.lists.p2p.row(leaf) {
            let sources = tree.sources_of(s as usize);
            let stride = sources.len().div_ceil(4 * POINTS).max(1);
            for j in sources.step_by(stride).filter(|&j| !(tree.same_points() && j == target)) {
                add(self.place(tree.source(j)), stride as f64);
            }
        }
        let stride = edges.len().div_ceil(FAR).max(1);
        for edge in edges.iter().skip(target % stride).step_by(stride) {
            let sources = tree.sources_of(edge.source);
            add(self.place(tree.source(sources.start + sources.len() / 2)), (stride * sources.len()) as f64);
        }
        total
    }

    /// Σ e² by order at one of the targets of the leaf that holds `target`, the `k`th of `count`.
    fn errors(&self, target: usize, k: usize, count: usize) -> Squares {
        let samples = self.samples(target, k, count);
        dispatch(self.question.isa, Left { question: &self.question, samples: &samples })
    }

    /// Pairs to look at: more likely a target that is far from the centre, and of the sources of an edge one that is far
    /// from its own or near to that of the target.
    fn samples(&self, target: usize, k: usize, count: usize) -> Vec<Sample> {
        let tree = self.tree;
        let (leaf, edges) = self.ways(target);
        let own = self.cube(leaf, tree.level_of(leaf));
        // A ratio of squares to this power is what the square of the error is made of, at a typical order.
        let q = ((self.question.least + self.question.orders) / 2).clamp(4, 24) as i32;
        let corner = 1.0 / (0.75 * own.side.powi(2));
        let stretch = |t: usize| (corner * square(minus(self.place(tree.target(t)), own.center))).powi(q / 2);
        let Some((t, times)) = pick(tree.targets_of(leaf), fraction(2 * k + 1), stretch) else { return Vec::new() };
        let share = times / tree.targets_of(leaf).len() as f64;
        let at = self.place(tree.target(t));
        let stride = (edges.len() * count).div_ceil(self.edges).max(1);
        let mut samples = Vec::with_capacity(edges.len() / stride + 1);
        for (i, Edge { target: own, source: s, way }) in edges.iter().enumerate().skip(k % stride).step_by(stride) {
            let other = self.cube(*s, tree.level_of(*s));
            let (x, apart) = (minus(at, own.center), square(minus(own.center, other.center)));
            let (inner, outer) = (square(x), 1.0 / square(minus(at, other.center)));
            let (root, apart) = (inner.sqrt(), 1.0 / apart);
            let loss = |j: usize| {
                let place = self.place(tree.source(j));
                let y = square(minus(place, other.center));
                let multipole = if *way == Way::Local { 0.0 } else { y * outer };
                let local = if *way == Way::Multipole { 0.0 } else { inner / square(minus(place, own.center)) };
                let both = if *way == Way::Both { (y.sqrt() + root).powi(2) * apart } else { 0.0 };
                multipole.powi(q) + local.powi(q) + both.powi(q)
            };
            let Some((j, weight)) = pick(tree.sources_of(*s), fraction(i + 7 * k), loss) else { continue };
            let place = self.place(tree.source(j));
            let (pair, shares) = match way {
                Way::Both => {
                    let pair = Pair { d: minus(own.center, other.center), x, y: minus(place, other.center) };
                    (pair, self.question.truncation.shares(*own, other))
                }
                Way::Multipole => {
                    let pair = Pair { d: minus(at, other.center), x: [0.0; 3], y: minus(place, other.center) };
                    (pair, [self.cuts.share(*own, other), 1.0])
                }
                Way::Local => (Pair { d: minus(own.center, place), x, y: [0.0; 3] }, [1.0; 2]),
            };
            samples.push(Sample { pair, weight: weight * share * stride as f64, way: *way, shares });
        }
        samples
    }
}

/// Σ e² of samples.
struct Left<'a> {
    question: &'a Question,
    samples: &'a [Sample],
}

impl Vectorized for Left<'_> {
    type Output = Squares;

    #[inline(always)]
    fn run<S: Simd>(self) -> Squares {
        let Question { least, orders, outputs, .. } = *self.question;
        let (mut total, mut series, mut terms) = ([[0.0; 3]; MAX_ORDER + 1], Series::default(), Vec::new());
        for samples in self.samples.chunks(<S::F64 as SimdLane>::WIDTH) {
            // Lanes without a sample repeat the first.
            let pairs: [Pair; LANES] = std::array::from_fn(|i| samples.get(i).unwrap_or(&samples[0]).pair);
            series.fill::<S::F64>(orders, outputs, &pairs, &mut terms);
            for (lane, sample) in samples.iter().enumerate() {
                for p in least.max(1)..=orders {
                    let [n, l] = sample.shares.map(|share| degrees(p, share));
                    let left = match sample.way {
                        Way::Multipole => series.left(lane, n, orders),
                        Way::Local => series.left(lane, orders, l),
                        Way::Both => series.left(lane, n, l),
                    };
                    total[p].iter_mut().zip(left).for_each(|(sum, x)| *sum += sample.weight * x);
                }
            }
        }
        total
    }
}

/// Part of all likelihoods that is the same for all.
const EVENLY: f64 = 0.1;

/// One of `range`, about as likely as `measure` says, and what its value is to be multiplied by to stand for the sum over all.
fn pick(range: std::ops::Range<usize>, at: f64, measure: impl Fn(usize) -> f64) -> Option<(usize, f64)> {
    let stride = range.len().div_ceil(POINTS).max(1);
    let mut measures = [0.0; POINTS];
    let some = range.clone().step_by(stride);
    measures.iter_mut().zip(some).for_each(|(to, j)| *to = measure(j));
    let count = range.len().div_ceil(stride);
    // Some for each, so that none stands for too many.
    let some = EVENLY * measures[..count].iter().sum::<f64>() / count.max(1) as f64 + f64::MIN_POSITIVE;
    measures[..count].iter_mut().for_each(|x| *x += some);
    let total: f64 = measures[..count].iter().sum();
    let mut left = at * total;
    let chosen = measures[..count].iter().position(|x| {
        left -= x;
        left < 0.0
    });
    let i = chosen.or(count.checked_sub(1))?;
    Some((range.start + i * stride, total / measures[i] * stride as f64))
}
