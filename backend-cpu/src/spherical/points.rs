//! The stages between points and expansions. P2M and P2L sum over sources, L2P and M2P evaluate at targets. Points run
//! along the lanes.
//!
//! All four stages take points relative to the centre of a box, in units of its side. P2M and L2P use regular
//! harmonics. P2L and M2P use singular harmonics, computed as regular harmonics at the inverted point x/r², divided by
//! r.

use crate::frame::{Fill, Frame};
use crate::lanes::{Isa, Room, Two, Vectorized, dispatch};
use crate::pairs::Pair;
use crate::soa::Soa;
use fmm_kernels::spherical::basis::Basis;
use fmm_kernels::spherical::horner::Horner;
use fmm_traits::{Points, Real, Simd, SimdLane};
use std::ops::Range;

/// The kind of harmonics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harmonics {
    /// Regular harmonics R, for fields inside a box.
    Regular,
    /// Singular harmonics S, for fields outside a box.
    Singular,
}

/// Most lanes of a vector, or of two vectors computed together.
const LANES: usize = 16;

/// The point and the factor for which regular harmonics are the wanted `harmonics` at `at`, times `strength`.
#[inline(always)]
fn argument<V: SimdLane>(harmonics: Harmonics, at: [V; 3], strength: V) -> ([V; 3], V) {
    if harmonics == Harmonics::Regular {
        return (at, strength);
    }
    // Coordinates are divided by the largest one, so that squares do not overflow.
    // No closures over vectors, because the compiler may not inline them, and only inlined code is compiled for the
    // instruction set.
    let mut largest = V::splat(0.0);
    for a in 0..3 {
        let magnitude = V::select(at[a].lt(V::splat(0.0)), -at[a], at[a]);
        largest = V::select(largest.lt(magnitude), magnitude, largest);
    }
    let unit = V::splat(1.0) / largest;
    let [x, y, z] = [at[0] * unit, at[1] * unit, at[2] * unit];
    let r2 = x.mul_add(x, y.mul_add(y, z * z));
    let inverse = unit / r2;
    ([x * inverse, y * inverse, z * inverse], strength * unit / r2.sqrt())
}

/// P2M and P2L: adds Σ strength·harmonics over all points of a block to `out`. Each row of strengths has its own sums,
/// a row of order² numbers in `out`.
pub struct Sums<'a, T> {
    /// Recursions of the harmonics.
    pub basis: &'a Basis<T>,
    /// Degrees 0 … order − 1 are summed.
    pub order: usize,
    /// Kind of harmonics.
    pub harmonics: Harmonics,
    /// Rows x, y, z and the strengths, padded.
    pub points: &'a Soa<T>,
    /// Scratch.
    pub room: &'a mut Room,
    /// Receives the sums.
    pub out: &'a mut [T],
}

impl<T: Real> Sums<'_, T> {
    /// Computes the sums.
    pub fn add(self, isa: Isa) {
        dispatch(isa, self);
    }

    #[inline(always)]
    fn lanes<V: SimdLane<Scalar = T>>(self) {
        let Sums { basis, order, harmonics, points, room, out } = self;
        let len = order * order;
        let strengths = points.rows() - 3;
        let (row, sums) = room.filled(V::splat(0.0), (1 + strengths) * len).split_at_mut(len);
        for i in (0..points.len()).step_by(V::WIDTH) {
            // SAFETY: rows are padded to a multiple of 16 scalars, and no V has more than 16 (see `run`).
            let load = |r: usize| unsafe { V::load(points.row(r)[i..i + V::WIDTH].as_ptr()) };
            let at = [load(0), load(1), load(2)];
            if strengths == 1 {
                let (at, factor) = argument(harmonics, at, load(3));
                basis.multiples(order, factor, at, row);
                sums.iter_mut().zip(&*row).for_each(|(sum, &r)| *sum = *sum + r);
            } else {
                let (at, factor) = argument(harmonics, at, V::splat(1.0));
                basis.multiples(order, factor, at, row);
                for (c, sums) in sums.chunks_exact_mut(len).enumerate() {
                    let q = load(3 + c);
                    sums.iter_mut().zip(&*row).for_each(|(sum, &r)| *sum = q.mul_add(r, *sum));
                }
            }
        }
        out.iter_mut().zip(&*sums).for_each(|(to, sum)| *to += sum.sum());
    }
}

impl<T: Real> Vectorized for Sums<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        // Two vectors together where LANES allows it, so that chains of dependent products interleave.
        if 2 * <T::Vector<S> as SimdLane>::WIDTH <= LANES {
            self.lanes::<Two<T::Vector<S>>>();
        } else {
            self.lanes::<T::Vector<S>>();
        }
    }
}

/// An expansion to evaluate: the frame of its box, and its coefficients `[harmonic][value]`.
pub type Field<'a, T, const K: usize> = (Frame, &'a [[T; K]]);

/// L2P and M2P: adds Σ coefficients·harmonics of all `fields` at each target of a range to `out`, a row of `K` values
/// per target.
pub struct Values<'b, T, I, const K: usize> {
    /// Recursions of the harmonics.
    pub basis: &'b Basis<T>,
    /// Kind of harmonics.
    pub harmonics: Harmonics,
    /// Expansions to evaluate.
    pub fields: I,
    /// Number of harmonics in the longest field.
    pub longest: usize,
    /// Targets in tree order.
    pub targets: &'b Points,
    /// Positions of the targets to evaluate at.
    pub range: Range<usize>,
    /// Gives the degrees of the values under dilation.
    pub pair: &'b Pair<f64>,
    /// Scratch.
    pub block: &'b mut Soa<T>,
    /// Scratch.
    pub room: &'b mut Room,
    /// Receives the values.
    pub out: &'b mut [f64],
}

impl<'a, T: Real, I: Iterator<Item = Field<'a, T, K>>, const K: usize> Values<'_, T, I, K> {
    /// Computes the values.
    pub fn add(self, isa: Isa) {
        dispatch(isa, self);
    }

    #[inline(always)]
    fn lanes<S: Simd, V: SimdLane<Scalar = T>>(self) {
        let Values { basis, harmonics, fields, longest, targets, range, pair, block, room, out } = self;
        let rows = room.filled(V::splat(0.0), longest);
        for (frame, coefficients) in fields {
            let ranges = std::iter::once(range.clone());
            Fill::targets(targets, frame, ranges, 1, block).run::<S>();
            let factors = pair.value_factors(frame.side);
            let row = &mut rows[..coefficients.len()];
            let order = coefficients.len().isqrt();
            for i in (0..block.len()).step_by(V::WIDTH) {
                // SAFETY: rows are padded to a multiple of 16 scalars, and no V has more than 16 (see `run`).
                let load = |r: usize| unsafe { V::load(block.row(r)[i..i + V::WIDTH].as_ptr()) };
                let (at, factor) = argument(harmonics, [load(0), load(1), load(2)], V::splat(1.0));
                basis.multiples(order, factor, at, row);
                let values = products(coefficients, row);
                let count = V::WIDTH.min(block.len() - i);
                for k in 0..K {
                    let mut lanes = [T::default(); LANES];
                    // SAFETY: no V has more than LANES scalars (see `run`).
                    unsafe { values[k].store(lanes.as_mut_ptr()) };
                    for (to, x) in out[i * K..].chunks_exact_mut(K).zip(&lanes[..count]) {
                        to[k] += x.f64() * factors[k];
                    }
                }
            }
        }
    }
}

/// Σ coefficients·row over the harmonics, for each value.
#[inline(always)]
fn products<V: SimdLane, const K: usize>(coefficients: &[[V::Scalar; K]], row: &[V]) -> [V; K] {
    let mut values = [V::splat(0.0); K];
    if K > 1 {
        for (c, &r) in coefficients.iter().zip(row) {
            for k in 0..K {
                values[k] = V::broadcast(c[k]).mul_add(r, values[k]);
            }
        }
        return values;
    }
    // Four independent sums hide the latency of a multiply-add.
    let mut four = [V::splat(0.0); 4];
    let (c, r) = (coefficients.chunks_exact(4), row.chunks_exact(4));
    for (c, r) in c.remainder().iter().zip(r.remainder()) {
        values[0] = V::broadcast(c[0]).mul_add(*r, values[0]);
    }
    for (c, r) in c.zip(r) {
        for k in 0..4 {
            four[k] = V::broadcast(c[k][0]).mul_add(r[k], four[k]);
        }
    }
    values[0] = values[0] + ((four[0] + four[1]) + (four[2] + four[3]));
    values
}

impl<'a, T: Real, I: Iterator<Item = Field<'a, T, K>>, const K: usize> Vectorized for Values<'_, T, I, K> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        if 2 * <T::Vector<S> as SimdLane>::WIDTH <= LANES {
            self.lanes::<S, Two<T::Vector<S>>>();
        } else {
            self.lanes::<S, T::Vector<S>>();
        }
    }
}

/// A multipole to evaluate as a polynomial: the frame of its box, the number of degrees and the coefficients.
pub type Polynomial<'a, T> = (Frame, usize, &'a [T]);

/// M2P by polynomials: adds the fields of multipoles at each target of a range to `out`, a row of `K` values (1 or 4)
/// per target.
pub struct Polynomials<'b, T, I, const K: usize> {
    /// The form of multipoles as polynomials.
    pub horner: &'b Horner<T>,
    /// Multipoles to evaluate.
    pub edges: I,
    /// Targets in tree order.
    pub targets: &'b Points,
    /// Positions of the targets to evaluate at.
    pub range: Range<usize>,
    /// Gives the degrees of the values under dilation.
    pub pair: &'b Pair<f64>,
    /// Scratch: coordinates.
    pub block: &'b mut Soa<f64>,
    /// Scratch: sums, one row per value.
    pub sums: &'b mut Soa<f64>,
    /// Receives the values.
    pub out: &'b mut [f64],
}

impl<'a, T: Real, I: Iterator<Item = Polynomial<'a, T>>, const K: usize> Polynomials<'_, T, I, K> {
    /// Computes the values.
    pub fn add(self, isa: Isa) {
        dispatch(isa, self);
    }

    #[inline(always)]
    fn lanes<V: SimdLane<Scalar = T>>(self) {
        let Polynomials { horner, edges, targets, range, pair, block, sums, out } = self;
        block.reset(1, 0, range.len());
        (0..3).for_each(|a| block.place(a, 0, targets.xyz[a][range.clone()].iter().copied()));
        block.pad(1, std::iter::empty());
        sums.reset(0, K, range.len());
        (0..K).for_each(|k| sums.row_mut(k).fill(0.0));
        let mut factors = Factors { side: 0.0, values: [0.0; K] };
        for (frame, degrees, coefficients) in edges {
            if frame.side != factors.side {
                factors.side = frame.side;
                factors.values.copy_from_slice(&pair.value_factors(frame.side)[..K]);
            }
            edge::<T, V, K>(horner, coefficients, degrees, frame, &factors, block, sums);
        }
        for k in 0..K {
            for (to, x) in out.chunks_exact_mut(K).zip(sums.row(k)) {
                to[k] += x;
            }
        }
    }
}

/// Factors that convert the values of boxes of side `side` to the user's units.
struct Factors<const K: usize> {
    side: f64,
    values: [f64; K],
}

/// Adds the field of one multipole at the points of `block` to `sums`.
#[inline(always)]
fn edge<T: Real, V: SimdLane<Scalar = T>, const K: usize>(
    horner: &Horner<T>,
    coefficients: &[T],
    degrees: usize,
    frame: Frame,
    factors: &Factors<K>,
    block: &Soa<f64>,
    sums: &mut Soa<f64>,
) {
    let scale = 1.0 / frame.side;
    let mut lanes = [T::default(); LANES];
    for i in (0..block.len()).step_by(V::WIDTH) {
        let mut x = [V::splat(0.0); 3];
        for a in 0..3 {
            let from = &block.row(a)[i..i + V::WIDTH];
            for l in 0..V::WIDTH {
                lanes[l] = T::of((from[l] - frame.center[a]) * scale);
            }
            // SAFETY: no V has more than LANES scalars (see `run`).
            x[a] = unsafe { V::load(lanes.as_ptr()) };
        }
        let values: [V; K] = horner.field::<V, K>(coefficients, degrees, x);
        for k in 0..K {
            // SAFETY: as above.
            unsafe { values[k].store(lanes.as_mut_ptr()) };
            let to = &mut sums.row_mut(k)[i..i + V::WIDTH];
            for l in 0..V::WIDTH {
                to[l] += lanes[l].f64() * factors.values[k];
            }
        }
    }
}

impl<'a, T: Real, I: Iterator<Item = Polynomial<'a, T>>, const K: usize> Vectorized for Polynomials<'_, T, I, K> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        if 2 * <T::Vector<S> as SimdLane>::WIDTH <= LANES {
            self.lanes::<Two<T::Vector<S>>>();
        } else {
            self.lanes::<T::Vector<S>>();
        }
    }
}
