//! Points of boxes in the frame of a box, as the pair sums take them, and their scratch.

use crate::lanes::Vectorized;
use crate::soa::Soa;
use fmm_traits::{Points, Real, Simd, Tree};
use std::ops::Range;

/// Scratch of one thread.
#[derive(Default)]
pub struct Scratch<T> {
    /// Points that are summed over.
    pub sources: Soa<T>,
    /// Points that sums are wanted at.
    pub targets: Soa<T>,
    /// Sums in the precision of the points.
    pub sums: Vec<T>,
    /// Sums of several of them.
    pub totals: Vec<f64>,
    /// Densities in f64.
    pub wide: Vec<f64>,
    /// Sets of strengths that are still to be summed.
    pub sets: Vec<usize>,
}

impl<T: Real> Scratch<T> {
    /// `values` zeros to sum into.
    pub fn clear_sums(&mut self, values: usize) {
        self.sums.clear();
        self.sums.resize(values, T::default());
    }
}

/// Points are taken relative to `center`, in units of `side`.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Centre in the user's units.
    pub center: [f64; 3],
    /// Side in the user's units.
    pub side: f64,
}

impl Frame {
    /// The user's own coordinates in a power of two: no bit is another, but where powers of the user's lengths leave
    /// the range of f64.
    pub fn plain(tree: &Tree) -> Self {
        Frame { center: [0.0; 3], side: crate::power_of_two(tree.side_at(0)) }
    }
    /// The frame of box `b` on `level`.
    pub fn of(tree: &Tree, b: usize, level: usize) -> Self {
        Frame { center: tree.center(b, level), side: tree.side_at(level) }
    }
}

/// Copies the points of some ranges into a scratch block, in a frame.
pub struct Fill<'a, T, I> {
    /// Points in tree order.
    pub points: &'a Points,
    /// Strengths in tree order, one set after the other (none for targets).
    pub strengths: &'a [Vec<f64>],
    /// The factor of each strength of a set; see [`Pair::strength_factors`](crate::pairs::Pair::strength_factors).
    pub factors: &'a [f64],
    /// The usual values of the attributes of a source, which are the last strengths of a set.
    pub attributes: &'a [f64],
    /// Frame.
    pub frame: Frame,
    /// Ranges of positions.
    pub ranges: I,
    /// Numbers that hold a coordinate.
    pub pieces: usize,
    /// Receives the rows.
    pub to: &'a mut Soa<T>,
}

impl<'a, T, I> Fill<'a, T, I> {
    /// Copies points without strengths: targets.
    pub fn targets(points: &'a Points, frame: Frame, ranges: I, pieces: usize, to: &'a mut Soa<T>) -> Self {
        Fill { points, strengths: &[], factors: &[], attributes: &[], frame, ranges, pieces, to }
    }
}

impl<T: Real, I: Iterator<Item = Range<usize>> + Clone> Vectorized for Fill<'_, T, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Fill { points, strengths, factors, attributes, frame, ranges, pieces, to } = self;
        to.reset(pieces, strengths.len(), ranges.clone().map(|r| r.len()).sum());
        let scale = 1.0 / frame.side;
        let mut at = 0;
        for range in ranges {
            for a in 0..3 {
                let from = &points.xyz[a][range.clone()];
                let center = frame.center[a];
                to.place(a, at, from.iter().map(|x| (x - center) * scale));
            }
            for (c, (q, factor)) in strengths.iter().zip(factors.iter().cycle()).enumerate() {
                let from = &q[range.clone()];
                for (to, q) in to.strength_mut(c)[at..at + from.len()].iter_mut().zip(from) {
                    *to = T::of(q * factor);
                }
            }
            at += range.len();
        }
        let last = &factors[factors.len() - attributes.len()..];
        to.pad(factors.len().max(1), attributes.iter().zip(last).map(|(x, factor)| x * factor));
    }
}

/// Set `set` of the `sets` that `out` has for each target += `sums`·factor, value by value.
pub fn add_scaled<T: Real>(sums: &[T], factors: &[f64], values: usize, [set, sets]: [usize; 2], out: &mut [f64]) {
    for (out, u) in out.chunks_exact_mut(sets * values).zip(sums.chunks_exact(values)) {
        for ((out, u), factor) in out[set * values..].iter_mut().zip(u).zip(factors) {
            *out += u.f64() * factor;
        }
    }
}
