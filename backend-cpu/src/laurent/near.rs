//! P2P in the plane: pairs of leaves, with sources along the lanes.
//!
//! A *block* is a subtree of up to 1024 leaves. If targets are the sources, each pair of leaves in one block is visited
//! once and serves both directions. The sums at the sources go through a buffer. A block writes to its own targets
//! only, so there are no races. Blocks do not depend on the number of threads, and neither do the bits. About a tenth
//! of the pairs cross blocks and are summed once per direction.

use crate::lanes::{Isa, Vectorized, dispatch};
use adaptive2d::PlaneKernel;
use fmm_traits::{Lane, Simd, SimdLane};
use std::marker::PhantomData;

/// Most values per target: f, f′ and f″, complex.
pub(super) const VALUES: usize = 6;
/// Most real numbers in a strength: a charge and a complex pole.
pub(super) const STRENGTHS: usize = 3;
/// Numbers that both directions of a pair share.
const SHARED: usize = 7;

/// What a source carries and a target receives, as constants: the compiler leaves out all other terms.
pub(super) trait PairKernel: Send + Sync {
    /// Whether sources have a charge Γ: f = Γ log(z − z_j).
    const CHARGES: bool;
    /// Real numbers in a pole m: f = m/(z_j − z). 0, 1 or 2.
    const POLES: usize;
    /// Whether Im f has no meaning.
    const REAL: bool;
    /// Order of the derivatives.
    const DERIVATIVES: usize;

    /// Whether a pair adds to value `c` of Re f, Im f, Re f′, Im f′, Re f″, Im f″.
    #[inline(always)]
    fn adds(c: usize) -> bool {
        (c != 1 || !Self::REAL) && c / 2 <= Self::DERIVATIVES
    }
    /// Whether sources have the strength `c` of Γ, Re m, Im m.
    #[inline(always)]
    fn has(c: usize) -> bool {
        if c == 0 { Self::CHARGES } else { c <= Self::POLES }
    }
    /// ln|d|, g, g² and g³ of `d` = z_j − z_i, with g = 1/d. At d = 0 all are 0.
    #[inline(always)]
    fn shared<V: SimdLane, const ROUGH: bool>(d: [V; 2]) -> [V; SHARED] {
        let zero = V::splat(0.0);
        let mut shared = [zero; SHARED];
        let square = if Self::CHARGES {
            let square = d[0].mul_add(d[0], d[1] * d[1]);
            let square = V::select(square.eq(zero), V::splat(1.0), square);
            shared[0] = V::splat(0.5) * square.ln();
            square
        } else {
            d[0].mul_add(d[0], d[1].mul_add(d[1], V::splat(AT_ZERO)))
        };
        let powers = Self::DERIVATIVES + usize::from(Self::POLES > 0);
        if powers > 0 {
            let w = square.inverse::<ROUGH>();
            (shared[1], shared[2]) = (d[0] * w, -(d[1] * w));
        }
        let (re, im) = (shared[1], shared[2]);
        if powers > 1 {
            (shared[3], shared[4]) = (re.mul_add(re, -(im * im)), V::splat(2.0) * re * im);
        }
        if powers > 2 {
            shared[5] = shared[3].mul_add(re, -(shared[4] * im));
            shared[6] = shared[3].mul_add(im, shared[4] * re);
        }
        shared
    }
    /// Adds the field of source j to target i, or (`back`, where d and g change their signs) of source i to target j.
    /// Γ log(z − z_j) has the derivatives −Γg and −Γg², and mg has mg² and 2mg³.
    #[inline(always)]
    fn add<V: Lane>(shared: &[V; SHARED], strength: [V; STRENGTHS], back: bool, values: &mut [V; VALUES]) {
        let [ln, g @ .., cube_re, cube_im] = *shared;
        let [charge, re, im] = strength;
        if Self::CHARGES {
            values[0] = charge.mul_add(ln, values[0]);
            if Self::DERIVATIVES > 0 {
                let s = if back { charge } else { -charge };
                values[2] = s.mul_add(g[0], values[2]);
                values[3] = s.mul_add(g[1], values[3]);
            }
            if Self::DERIVATIVES > 1 {
                values[4] = (-charge).mul_add(g[2], values[4]);
                values[5] = (-charge).mul_add(g[3], values[5]);
            }
        }
        if Self::POLES > 0 {
            add_product::<V, Self>([g[0], g[1]], [re, im], back, &mut values[..2]);
            if Self::DERIVATIVES > 0 {
                add_product::<V, Self>([g[2], g[3]], [re, im], false, &mut values[2..4]);
            }
            if Self::DERIVATIVES > 1 {
                let two = V::splat(2.0);
                add_product::<V, Self>([two * cube_re, two * cube_im], [re, im], back, &mut values[4..]);
            }
        }
    }
}

/// The kernel with these constants of [`PairKernel`].
pub(super) struct Pair<const CHARGES: bool, const POLES: usize, const REAL: bool, const DERIVATIVES: usize>;

impl<const C: bool, const P: usize, const R: bool, const D: usize> PairKernel for Pair<C, P, R, D> {
    const CHARGES: bool = C;
    const POLES: usize = P;
    const REAL: bool = R;
    const DERIVATIVES: usize = D;
}

/// Receives the pair kernel of a sum (a closure generic over types).
pub(super) trait PairVisitor {
    /// The result of the visit.
    type Output;
    fn visit<K: PairKernel>(self) -> Self::Output;
}

/// Calls `visitor` with the pair kernel of `kernel`. If `real`, all poles of [`PlaneKernel::Harmonic`] are real, which
/// halves the work of a pair.
pub(super) fn visit<W: PairVisitor>(kernel: PlaneKernel, derivatives: usize, real: bool, visitor: W) -> W::Output {
    match (kernel, real) {
        (PlaneKernel::Harmonic, false) => visit_derivatives::<W, false, 2, false>(derivatives, visitor),
        (PlaneKernel::Harmonic, true) => visit_derivatives::<W, false, 1, false>(derivatives, visitor),
        (PlaneKernel::Laplace, _) => visit_derivatives::<W, true, 0, true>(derivatives, visitor),
        (PlaneKernel::LaplaceDipole, _) => visit_derivatives::<W, false, 2, true>(derivatives, visitor),
        (PlaneKernel::LaplaceMixed, _) => visit_derivatives::<W, true, 2, true>(derivatives, visitor),
    }
}

fn visit_derivatives<W: PairVisitor, const C: bool, const P: usize, const R: bool>(
    derivatives: usize,
    visitor: W,
) -> W::Output {
    match derivatives {
        0 => visitor.visit::<Pair<C, P, R, 0>>(),
        1 => visitor.visit::<Pair<C, P, R, 1>>(),
        _ => visitor.visit::<Pair<C, P, R, 2>>(),
    }
}

/// Added to every squared distance, so that 1/z of a pair at one place is 0·10³⁰⁰.
const AT_ZERO: f64 = 1e-300;

/// Adds m·g, or −m·g if `minus`, to `to`.
#[inline(always)]
fn add_product<V: Lane, K: PairKernel + ?Sized>(g: [V; 2], m: [V; 2], minus: bool, to: &mut [V]) {
    let [re, im] = if minus { [-g[0], -g[1]] } else { g };
    if K::POLES == 2 {
        to[0] = (-m[1]).mul_add(im, to[0]);
        to[1] = m[1].mul_add(re, to[1]);
    }
    to[0] = m[0].mul_add(re, to[0]);
    to[1] = m[0].mul_add(im, to[1]);
}

/// Points and their strengths, one array per number.
#[derive(Clone, Copy)]
pub(super) struct Charged<'a> {
    pub at: [&'a [f64]; 2],
    /// Charges, real and imaginary parts of poles. An array is empty if no source has such a strength.
    pub strengths: [&'a [f64]; STRENGTHS],
}

/// The sources of one target leaf, gathered and padded, with room for the sums at these sources.
#[derive(Default)]
pub(super) struct Gathered {
    at: [Vec<f64>; 2],
    strengths: [Vec<f64>; STRENGTHS],
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
        let charge: [[S::F64; STRENGTHS]; R] = std::array::from_fn(|r| {
            std::array::from_fn(|c| if BOTH && K::has(c) { own(self.targets.strengths[c], r) } else { zero })
        });
        let mut sums = [[zero; VALUES]; R];
        let padded = self.sources.at[0].len();
        let from = self.sources.at.each_ref().map(|v| v[..padded].as_ptr());
        let acting = self.sources.strengths.each_ref().map(|v| v[..padded].as_ptr());
        let back = self.sources.values.each_mut().map(|v| v.as_mut_ptr());
        for j in (0..padded).step_by(S::F64::WIDTH) {
            // SAFETY: `padded` is a multiple of the widest vector. It is also the length of every array read here:
            // `finish` has resized positions, strengths and the used arrays of sums to this length.
            let load = |p: *const f64| unsafe { S::F64::load(p.add(j)) };
            let (x, y) = (load(from[0]), load(from[1]));
            let mut strength = [zero; STRENGTHS];
            for c in 0..STRENGTHS {
                if K::has(c) {
                    strength[c] = load(acting[c]);
                }
            }
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
