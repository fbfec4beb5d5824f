//! P2P in the plane: pairs of leaves, with sources along the lanes.
//!
//! A *block* is a subtree of up to 1024 leaves. If targets are the sources, each pair of leaves in one block is visited
//! once and serves both directions. The sums at the sources go through a buffer. A block writes to its own targets
//! only, so there are no races. Blocks do not depend on the number of threads, and neither do the bits. About a tenth
//! of the pairs cross blocks and are summed once per direction.

use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_traits::{Lane, Simd, SimdLane};
use std::marker::PhantomData;

/// Most values per target: potential and derivative, complex.
pub(super) const VALUES: usize = 4;

/// The kernel of a pair of points z_i and z_j, with pairs along the lanes. `d` = z_j − z_i.
pub(super) trait PairKernel: Send + Sync {
    /// Real numbers in a strength.
    const STRENGTHS: usize;
    /// Whether a pair adds to value `c` of Re f, Im f, Re f′, Im f′. Inlined, so that unused values vanish.
    fn adds(c: usize) -> bool;
    /// The numbers that both directions of a pair share.
    fn shared<V: SimdLane, const ROUGH: bool>(d: [V; 2]) -> [V; VALUES];
    /// Adds source j to target i, or (`back`) source i to target j.
    fn add<V: Lane>(shared: &[V; VALUES], strength: [V; 2], back: bool, values: &mut [V; VALUES]);
}

/// The kernel Γ/(z_j − z_i). Γ is complex if `S` = 2 and real if `S` = 1. The values include the complex derivative if
/// `D`.
pub(super) struct HarmonicPair<const S: usize, const D: bool>;

/// Added to every squared distance, so that 1/z of a pair at one place is 0·10³⁰⁰.
const AT_ZERO: f64 = 1e-300;

/// Adds s·g, or −s·g if `minus`, to `to`. The strength s has `S` real numbers.
#[inline(always)]
fn add_product<V: Lane, const S: usize>(g: [V; 2], s: [V; 2], minus: bool, to: &mut [V]) {
    let [re, im] = if minus { [-g[0], -g[1]] } else { g };
    if S == 2 {
        to[0] = (-s[1]).mul_add(im, to[0]);
        to[1] = s[1].mul_add(re, to[1]);
    }
    to[0] = s[0].mul_add(re, to[0]);
    to[1] = s[0].mul_add(im, to[1]);
}

impl<const S: usize, const D: bool> PairKernel for HarmonicPair<S, D> {
    const STRENGTHS: usize = S;
    #[inline(always)]
    fn adds(c: usize) -> bool {
        D || c < 2
    }
    /// g = 1/d, and g².
    #[inline(always)]
    fn shared<V: SimdLane, const ROUGH: bool>(d: [V; 2]) -> [V; VALUES] {
        let square = d[0].mul_add(d[0], d[1].mul_add(d[1], V::splat(AT_ZERO)));
        let w = square.inverse::<ROUGH>();
        let (re, im) = (d[0] * w, -(d[1] * w));
        if D { [re, im, re.mul_add(re, -(im * im)), V::splat(2.0) * re * im] } else { [re, im, re, im] }
    }
    #[inline(always)]
    fn add<V: Lane>(shared: &[V; VALUES], strength: [V; 2], back: bool, values: &mut [V; VALUES]) {
        add_product::<V, S>([shared[0], shared[1]], strength, back, &mut values[..2]);
        if D {
            add_product::<V, S>([shared[2], shared[3]], strength, false, &mut values[2..]);
        }
    }
}

/// The kernel Γ ln|z_i − z_j|. The values include the complex derivative Γ/(z_i − z_j) if `D`.
pub(super) struct LogarithmPair<const D: bool>;

impl<const D: bool> PairKernel for LogarithmPair<D> {
    const STRENGTHS: usize = 1;
    #[inline(always)]
    fn adds(c: usize) -> bool {
        c == 0 || (D && c >= 2)
    }
    /// ln|d|, and −1/d.
    #[inline(always)]
    fn shared<V: SimdLane, const ROUGH: bool>(d: [V; 2]) -> [V; VALUES] {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        let square = d[0].mul_add(d[0], d[1] * d[1]);
        let square = V::select(square.eq(zero), one, square);
        let ln = V::splat(0.5) * square.ln();
        if D {
            let w = square.inverse::<ROUGH>();
            [ln, zero, -(d[0] * w), d[1] * w]
        } else {
            [ln, zero, zero, zero]
        }
    }
    #[inline(always)]
    fn add<V: Lane>(shared: &[V; VALUES], strength: [V; 2], back: bool, values: &mut [V; VALUES]) {
        values[0] = strength[0].mul_add(shared[0], values[0]);
        if D {
            let s = if back { -strength[0] } else { strength[0] };
            values[2] = s.mul_add(shared[2], values[2]);
            values[3] = s.mul_add(shared[3], values[3]);
        }
    }
}

/// Points and their strengths, one array per number.
#[derive(Clone, Copy)]
pub(super) struct Charged<'a> {
    pub at: [&'a [f64]; 2],
    /// Real and imaginary parts. The second array is empty for real strengths.
    pub strengths: [&'a [f64]; 2],
}

/// The sources of one target leaf, gathered and padded, with room for the sums at these sources.
#[derive(Default)]
pub(super) struct Gathered {
    at: [Vec<f64>; 2],
    strengths: [Vec<f64>; 2],
    values: [Vec<f64>; VALUES],
    count: usize,
}

/// Most lanes of a vector.
const MAX_LANES: usize = 8;

impl Gathered {
    /// Removes all points.
    pub fn clear(&mut self) {
        self.at.iter_mut().chain(&mut self.strengths).for_each(Vec::clear);
    }

    /// Appends the points of `from` at positions `range`.
    pub fn push(&mut self, from: &Charged, range: std::ops::Range<usize>) {
        for (to, from) in self.at.iter_mut().zip(from.at) {
            to.extend_from_slice(&from[range.clone()]);
        }
        for (to, from) in self.strengths.iter_mut().zip(from.strengths) {
            if !from.is_empty() {
                to.extend_from_slice(&from[range.clone()]);
            }
        }
    }

    /// Pads with copies of the last point of zero strength, and clears the sums `c` for which `adds(c)` holds.
    pub fn finish(&mut self, adds: impl Fn(usize) -> bool) {
        self.count = self.at[0].len();
        let padded = self.count.next_multiple_of(MAX_LANES);
        for at in &mut self.at {
            at.resize(padded, at.last().copied().unwrap_or(0.0));
        }
        self.strengths.iter_mut().for_each(|s| s.resize(padded, 0.0));
        for (_, v) in self.values.iter_mut().enumerate().filter(|(c, _)| adds(*c)) {
            v.clear();
            v.resize(padded, 0.0);
        }
    }

    /// The sums of value `c` at the points, in the order of [`push`](Gathered::push).
    pub fn values(&self, c: usize) -> &[f64] {
        &self.values[c][..self.count]
    }
}

/// Adds value `c` of the field of `sources` at target i to `out[c][i]`. If `BOTH`, `targets` have strengths, and the
/// function also adds the field of the targets to the sums of `sources`.
pub(super) fn pairs<K: PairKernel, const BOTH: bool>(
    isa: Isa,
    rough: bool,
    targets: Charged,
    sources: &mut Gathered,
    out: [&mut [f64]; VALUES],
) {
    if sources.count > 0 {
        dispatch(isa, Pairs::<K, BOTH> { rough, targets, sources, out, _k: PhantomData });
    }
}

struct Pairs<'a, K, const BOTH: bool> {
    rough: bool,
    targets: Charged<'a>,
    sources: &'a mut Gathered,
    out: [&'a mut [f64]; VALUES],
    _k: PhantomData<K>,
}

impl<K: PairKernel, const BOTH: bool> Vectorized for Pairs<'_, K, BOTH> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let n = self.targets.at[0].len();
        // As many targets at once as the registers can hold, with their strengths and sums.
        let rows = if BOTH || K::adds(2) { 2 } else { 4 };
        let mut i = 0;
        while i + rows <= n {
            match (rows, self.rough) {
                (2, true) => self.rows::<S, 2, true>(i),
                (2, false) => self.rows::<S, 2, false>(i),
                (_, true) => self.rows::<S, 4, true>(i),
                (_, false) => self.rows::<S, 4, false>(i),
            }
            i += rows;
        }
        for i in i..n {
            self.rows::<S, 1, false>(i);
        }
    }
}

impl<K: PairKernel, const BOTH: bool> Pairs<'_, K, BOTH> {
    /// Sums the pairs of targets `i..i + R` and all sources.
    #[inline(always)]
    fn rows<S: Simd, const R: usize, const ROUGH: bool>(&mut self, i: usize) {
        let zero = S::F64::splat(0.0);
        let own = |a: &[f64], r: usize| S::F64::broadcast(a[i + r]);
        let at: [[S::F64; 2]; R] = std::array::from_fn(|r| self.targets.at.map(|a| own(a, r)));
        let charge: [[S::F64; 2]; R] = std::array::from_fn(|r| {
            std::array::from_fn(|c| if BOTH && c < K::STRENGTHS { own(self.targets.strengths[c], r) } else { zero })
        });
        let mut sums = [[zero; VALUES]; R];
        let padded = self.sources.at[0].len();
        let from = [&self.sources.at[0], &self.sources.at[1], &self.sources.strengths[0], &self.sources.strengths[1]];
        let from = from.map(|v| v[..padded].as_ptr());
        let back = self.sources.values.each_mut().map(|v| v.as_mut_ptr());
        for j in (0..padded).step_by(S::F64::WIDTH) {
            // SAFETY: `padded` is a multiple of the widest vector. It is also the length of every array read here:
            // `finish` has resized positions, strengths and the used arrays of sums to this length.
            let load = |p: *const f64| unsafe { S::F64::load(p.add(j)) };
            let (x, y) = (load(from[0]), load(from[1]));
            let strength = [load(from[2]), if K::STRENGTHS > 1 { load(from[3]) } else { zero }];
            let mut values = [zero; VALUES];
            if BOTH {
                for c in 0..VALUES {
                    if K::adds(c) {
                        values[c] = load(back[c]);
                    }
                }
            }
            for r in 0..R {
                let shared = K::shared::<S::F64, ROUGH>([x - at[r][0], y - at[r][1]]);
                K::add(&shared, strength, false, &mut sums[r]);
                if BOTH {
                    K::add(&shared, charge[r], true, &mut values);
                }
            }
            if BOTH {
                for c in 0..VALUES {
                    if K::adds(c) {
                        // SAFETY: as for the loads above.
                        unsafe { values[c].store(back[c].add(j)) };
                    }
                }
            }
        }
        for r in 0..R {
            for c in 0..VALUES {
                if K::adds(c) {
                    self.out[c][i + r] += sums[r][c].sum();
                }
            }
        }
    }
}
