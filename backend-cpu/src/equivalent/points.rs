//! The stages that meet points: P2M, P2L, L2P, M2P, each the pair sum between the points of a box and a
//! surface, in coordinates of a unit box.

use super::pool::Pool;
use super::translate;
use crate::lanes::{Isa, Vectorized, dispatch};
use crate::soa::Soa;
use crate::sum::sum;
use fmm_kernels::equivalent::{Operators, Scalar, surface};
use fmm_traits::{Kernel, Lists, Points, Real, Simd, Tree};
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// Coordinate rows of a surface.
pub struct Surface<T>([Vec<T>; 3]);

impl<T: Real> Surface<T> {
    /// The surface of order `p` with the given `side` (in box sides).
    pub fn new(p: usize, side: f64) -> Self {
        let points = surface::points(p, side);
        Surface(std::array::from_fn(|a| points.iter().map(|x| T::of(x[a])).collect()))
    }
    /// The rows as targets of a sum.
    fn rows(&self) -> [&[T]; 3] {
        self.0.each_ref().map(Vec::as_slice)
    }
}

/// Scratch of one thread.
#[derive(Default)]
pub struct Scratch<T> {
    pub(super) sources: Soa<T>,
    pub(super) targets: Soa<T>,
}

/// A unit box: points are taken relative to `center`, in units of `side`.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Centre in the user's units.
    pub center: [f64; 3],
    /// Side in the user's units.
    pub side: f64,
}

impl Frame {
    /// The frame of box `b` on `level`.
    pub fn of(tree: &Tree, b: usize, level: usize) -> Self {
        Frame { center: tree.center(b, level), side: tree.side_at(level) }
    }

    /// Writes the coordinates of `points[range]` into the first three rows of `to`, from `at` on.
    #[inline(always)]
    pub fn coordinates<T: Real>(self, points: &Points, range: Range<usize>, to: &mut Soa<T>, at: usize) {
        let scale = 1.0 / self.side;
        for a in 0..3 {
            let from = &points.xyz[a][range.clone()];
            let center = self.center[a];
            for (to, x) in to.row_mut(a)[at..at + from.len()].iter_mut().zip(from) {
                *to = T::of((x - center) * scale);
            }
        }
    }

    /// Writes hatted strengths of `range` into the rows after the coordinates.
    #[inline(always)]
    pub fn strengths<K: Kernel, T: Real>(
        self,
        strengths: &[Vec<f64>],
        range: Range<usize>,
        to: &mut Soa<T>,
        at: usize,
    ) {
        for c in 0..K::STRENGTHS {
            let factor = self.side.powi(K::strength_degree(c));
            let from = &strengths[c][range.clone()];
            for (to, q) in to.row_mut(3 + c)[at..at + from.len()].iter_mut().zip(from) {
                *to = T::of(q * factor);
            }
        }
    }
}

/// Multipoles of the leaves of `level`: check values on the outer surface, then the upward solve.
pub fn p2m<K: Kernel, T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    params: &[T],
    outer: &Surface<T>,
    isa: Isa,
    strengths: &[Vec<f64>],
    scratch: &Pool<Scratch<T>>,
    batches: &Pool<translate::Scratch<T>>,
    multipoles: &mut [T],
) {
    let boxes = tree.level(level);
    let row = operators.strengths * operators.points;
    multipoles[boxes.start * row..boxes.end * row].par_chunks_mut(translate::BATCH * row).enumerate().for_each(
        |(i, to)| {
            let first = boxes.start + i * translate::BATCH;
            let check = operators.values * operators.points;
            let mut leaves = [0; translate::BATCH];
            let mut count = 0;
            for b in (first..first + to.len() / row).filter(|&b| !lists.p2m.row(b).is_empty()) {
                leaves[count] = b;
                count += 1;
            }
            if count == 0 {
                return;
            }
            batches.with(|batch| {
                scratch.with(|s| {
                    batch.check[..check * count].fill(T::default());
                    for (k, &b) in leaves[..count].iter().enumerate() {
                        let source = Gather { tree, strengths, frame: Frame::of(tree, b, level), boxes: &[b as u32] };
                        let out = &mut batch.check[k * check..][..check];
                        let job =
                            ToSurface::<K, T> { source, params, surface: outer, out, scratch: s, _k: PhantomData };
                        dispatch(isa, job);
                    }
                });
                batch.solve(operators.upward(), count, |k, density| {
                    to[(leaves[k] - first) * row..][..row].copy_from_slice(density);
                });
            });
        },
    );
}

/// Sources of X edges → check values on the inner surface of the target box. `locals` are all rows.
pub fn p2l<K: Kernel, T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    params: &[T],
    inner: &Surface<T>,
    isa: Isa,
    strengths: &[Vec<f64>],
    scratch: &Pool<Scratch<T>>,
    locals: &mut [T],
    row: usize,
) {
    let boxes = tree.level(level);
    if lists.p2l.starts[boxes.start] == lists.p2l.starts[boxes.end] {
        return;
    }
    locals[boxes.start * row..boxes.end * row].par_chunks_mut(row).enumerate().for_each(|(i, out)| {
        let b = boxes.start + i;
        if !lists.p2l.row(b).is_empty() {
            scratch.with(|s| {
                let source = Gather { tree, strengths, frame: Frame::of(tree, b, level), boxes: lists.p2l.row(b) };
                let job = ToSurface::<K, T> { source, params, surface: inner, out, scratch: s, _k: PhantomData };
                dispatch(isa, job);
            });
        }
    });
}

/// The sources of some boxes, in one frame.
struct Gather<'a> {
    tree: &'a Tree,
    strengths: &'a [Vec<f64>],
    frame: Frame,
    boxes: &'a [u32],
}

impl Gather<'_> {
    #[inline(always)]
    fn fill<K: Kernel, T: Real>(&self, to: &mut Soa<T>) {
        let total = self.boxes.iter().map(|&b| self.tree.sources_of(b as usize).len()).sum();
        to.reset(3 + K::STRENGTHS, total);
        let mut at = 0;
        for &b in self.boxes {
            let range = self.tree.sources_of(b as usize);
            self.frame.coordinates(&self.tree.sources, range.clone(), to, at);
            self.frame.strengths::<K, T>(self.strengths, range.clone(), to, at);
            at += range.len();
        }
        to.pad();
    }
}

/// Sum of a source set on a surface, added to `out` (component-major).
struct ToSurface<'a, K, T> {
    source: Gather<'a>,
    params: &'a [T],
    surface: &'a Surface<T>,
    out: &'a mut [T],
    scratch: &'a mut Scratch<T>,
    _k: PhantomData<K>,
}

impl<K: Kernel, T: Real> Vectorized for ToSurface<'_, K, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let sources = &mut self.scratch.sources;
        self.source.fill::<K, T>(sources);
        let n = self.surface.0[0].len();
        let out = self.out;
        sum::<K, S, T>(self.params, self.surface.rows(), sources, 0..sources.len(), None, |t, u| {
            for (c, u) in u.iter().enumerate() {
                out[c * n + t] += *u;
            }
        });
    }
}

/// Evaluates a density on a surface at targets, added to `out` (target-major, in the user's units).
pub struct FromSurface<'a, K, T> {
    /// Tree.
    pub tree: &'a Tree,
    /// Frame of the box that owns the density.
    pub frame: Frame,
    /// Surface of the density.
    pub surface: &'a Surface<T>,
    /// Hatted density, component-major.
    pub density: &'a [T],
    /// Kernel parameters on the unit box.
    pub params: &'a [T],
    /// Target positions.
    pub targets: Range<usize>,
    /// `targets.len() × K::VALUES`.
    pub out: &'a mut [f64],
    /// Scratch.
    pub scratch: &'a mut Scratch<T>,
    /// Kernel.
    pub _k: PhantomData<K>,
}

impl<K: Kernel, T: Real> Vectorized for FromSurface<'_, K, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let n = self.surface.0[0].len();
        let Scratch { sources, targets } = self.scratch;
        sources.reset(3 + K::STRENGTHS, n);
        for a in 0..3 {
            sources.row_mut(a)[..n].copy_from_slice(&self.surface.0[a]);
        }
        for c in 0..K::STRENGTHS {
            sources.row_mut(3 + c)[..n].copy_from_slice(&self.density[c * n..(c + 1) * n]);
        }
        sources.pad();
        let count = self.targets.len();
        targets.reset(3, count);
        self.frame.coordinates(&self.tree.targets, self.targets, targets, 0);
        let rows = [&targets.row(0)[..count], &targets.row(1)[..count], &targets.row(2)[..count]];
        let mut factor = [0.0; fmm_traits::kernel::MAX_COMPONENTS];
        for (i, f) in factor[..K::VALUES].iter_mut().enumerate() {
            *f = self.frame.side.powi(K::value_degree(i));
        }
        let out = self.out;
        sum::<K, S, T>(self.params, rows, sources, 0..n, None, |t, u| {
            let out = &mut out[t * K::VALUES..(t + 1) * K::VALUES];
            for i in 0..K::VALUES {
                out[i] += u[i].f64() * factor[i];
            }
        });
    }
}
