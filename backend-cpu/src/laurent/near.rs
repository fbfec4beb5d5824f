//! P2P in the plane: pairs of leaves, with sources along the lanes.
//!
//! A *block* is a subtree of up to 1024 leaves. If targets are the sources, each pair of leaves in one block is visited
//! once and serves both directions. The sums at the sources go through a buffer. A block writes to its own targets
//! only, so there are no races. Blocks do not depend on the number of threads, and neither do the bits. About a tenth
//! of the pairs cross blocks and are summed once per direction.

use crate::lanes::{Isa, Terms, Vectorized, dispatch};
use adaptive2d::laurent::slot_of;
use adaptive2d::{Analytic, PlaneKernel};
use fmm_kernels::{Harmonic2d, Laplace2d, Laplace2dDipole, Laplace2dMixed};
use fmm_traits::{Gradient, Hessian, Kernel, Lane, Simd, SimdLane};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// Most values per target: f, f′ and f″, complex.
pub(super) const VALUES: usize = 6;
/// Most real numbers in a strength: a charge and a complex pole.
pub(super) const STRENGTHS: usize = 3;
/// Most values of a kernel with its Hessian.
const KERNEL_VALUES: usize = 20;

/// [`pairs`] for one kernel.
type Loop = fn(Isa, bool, Charged, &mut Gathered, [&mut [f64]; VALUES]);

/// The loops over pairs for one kernel and order of derivatives.
#[derive(Clone, Copy)]
pub(super) struct Loops {
    /// From the sources to the targets.
    pub one_way: Loop,
    /// In both directions.
    pub both_ways: Loop,
    complex: bool,
    derivatives: usize,
}

impl Loops {
    const fn of<K: Analytic, D: Kernel>() -> Self {
        let (one_way, both_ways): (Loop, Loop) = (pairs::<K, D, false>, pairs::<K, D, true>);
        Loops { one_way, both_ways, complex: K::VALUES == 2, derivatives: D::DERIVED }
    }
    /// Whether pairs add to the number `c` of a [`Jet`](adaptive2d::laurent::Jet).
    pub fn adds(&self, c: usize) -> bool {
        adds(self.complex, self.derivatives, c)
    }
}

/// The loops of one kernel for no, first and second derivatives.
struct LoopsOf<K>(PhantomData<K>);

impl<K: Analytic> LoopsOf<K> {
    const ALL: &'static [Loops; 3] =
        &[Loops::of::<K, K>(), Loops::of::<K, Gradient<K>>(), Loops::of::<K, Hessian<K>>()];
}

/// Whether pairs add to the number `c` of a jet.
const fn adds(complex: bool, derivatives: usize, c: usize) -> bool {
    (c != 1 || complex) && c / 2 <= derivatives
}

/// A kernel of the plane with its loops over pairs.
#[derive(Clone, Copy)]
pub struct PlanePairs {
    /// The kernel.
    pub kernel: PlaneKernel,
    loops: &'static [Loops; 3],
    /// For sources whose last strength is 0.
    real: &'static [Loops; 3],
}

/// Equal kernels have equal loops.
impl PartialEq for PlanePairs {
    fn eq(&self, other: &Self) -> bool {
        self.kernel == other.kernel
    }
}

impl<K: Analytic> From<K> for PlanePairs {
    fn from(kernel: K) -> Self {
        PlanePairs { kernel: kernel.into(), loops: LoopsOf::<K>::ALL, real: LoopsOf::<K::Real>::ALL }
    }
}

impl fmt::Debug for PlanePairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernel.fmt(f)
    }
}

impl From<PlanePairs> for PlaneKernel {
    fn from(pairs: PlanePairs) -> Self {
        pairs.kernel
    }
}

impl Deref for PlanePairs {
    type Target = PlaneKernel;
    fn deref(&self) -> &PlaneKernel {
        &self.kernel
    }
}

impl PlanePairs {
    /// The kernels of this project.
    pub fn all() -> [PlanePairs; 4] {
        [Harmonic2d.into(), Laplace2d.into(), Laplace2dDipole.into(), Laplace2dMixed.into()]
    }
    /// The loops for derivatives up to the order `derivatives`. `real`: every last strength is 0.
    pub(super) fn loops(&self, derivatives: usize, real: bool) -> &Loops {
        if real { &self.real[derivatives] } else { &self.loops[derivatives] }
    }
    /// Whether other loops serve `strengths`, because every last strength is 0 and that makes pairs cheaper.
    pub(super) fn is_real(&self, strengths: &[f64]) -> bool {
        let width = self.kernel.strengths();
        self.kernel.real_member(0).is_some() && strengths.chunks_exact(width).all(|s| s[width - 1] == 0.0)
    }
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

/// Adds number `c` of the field of `sources` at target i to `out[c][i]`. If `BOTH`, `targets` have strengths, and the
/// function also adds the field of the targets to the sums of `sources`. `D` is `K` with derivatives. If `rough`,
/// reciprocals have 28 bits.
#[inline(never)]
fn pairs<K: Analytic, D: Kernel, const BOTH: bool>(
    isa: Isa,
    rough: bool,
    targets: Charged,
    sources: &mut Gathered,
    out: [&mut [f64]; VALUES],
) {
    if sources.count > 0 {
        dispatch(isa, Pairs::<K, D, BOTH> { rough, targets, sources, out, _k: PhantomData });
    }
}

struct Pairs<'a, K, D, const BOTH: bool> {
    rough: bool,
    targets: Charged<'a>,
    sources: &'a mut Gathered,
    out: [&'a mut [f64]; VALUES],
    _k: PhantomData<(K, D)>,
}

impl<K: Analytic, D: Kernel, const BOTH: bool> Vectorized for Pairs<'_, K, D, BOTH> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        // As many targets at once as the registers can hold, with their strengths and sums.
        let done = if const { BOTH || D::DERIVED > 0 } { self.groups::<S, 2>() } else { self.groups::<S, 4>() };
        for i in done..self.targets.at[0].len() {
            self.rows::<S, 1, false>(i);
        }
    }
}

impl<K: Analytic, D: Kernel, const BOTH: bool> Pairs<'_, K, D, BOTH> {
    /// The array of the first strength of `K` in [`Charged`].
    const FIRST: usize = if K::EXPONENTS[0] == 0 { 0 } else { 1 };

    const fn adds(c: usize) -> bool {
        adds(K::VALUES == 2, D::DERIVED, c)
    }

    /// Sums the pairs of all whole groups of `R` targets. Returns the number of their targets.
    #[inline(always)]
    fn groups<S: Simd, const R: usize>(&mut self) -> usize {
        let mut i = 0;
        while i + R <= self.targets.at[0].len() {
            if const { S::F64::ROUGH_INVERSES } && self.rough {
                self.rows::<S, R, true>(i);
            } else {
                self.rows::<S, R, false>(i);
            }
            i += R;
        }
        i
    }

    /// Sums the pairs of targets `i..i + R` and all sources. The field of target r at a source follows from the same
    /// K(r): a strength of exponent n has the factor (−1)^n for −r, and every derivative has one more.
    ///
    /// The code has loops where `array::from_fn` and `map` would be shorter: these would be compiled again for each of
    /// its 210 instances.
    #[inline(always)]
    fn rows<S: Simd, const R: usize, const ROUGH: bool>(&mut self, i: usize) {
        let zero = S::F64::splat(0.0);
        let mut at = [[zero; 2]; R];
        let mut turned = [[Terms::<S::F64, ROUGH>::of(zero); STRENGTHS]; R];
        for r in 0..R {
            for a in 0..2 {
                at[r][a] = S::F64::broadcast(self.targets.at[a][i + r]);
            }
            if BOTH {
                for j in 0..K::STRENGTHS {
                    let strength = S::F64::broadcast(self.targets.strengths[Self::FIRST + j][i + r]);
                    turned[r][j] = Terms::of(if K::EXPONENTS[j] == 1 { -strength } else { strength });
                }
            }
        }
        let params = [Terms::<S::F64, ROUGH>::of(zero)];
        let mut sums = [[zero; VALUES]; R];
        let padded = self.sources.at[0].len();
        let from = [self.sources.at[0].as_ptr(), self.sources.at[1][..padded].as_ptr()];
        let mut acting = [from[0]; STRENGTHS];
        for c in 0..K::STRENGTHS {
            acting[c] = self.sources.strengths[Self::FIRST + c][..padded].as_ptr();
        }
        let mut back = [std::ptr::null_mut(); VALUES];
        if BOTH {
            for c in 0..VALUES {
                if Self::adds(c) {
                    back[c] = self.sources.values[c][..padded].as_mut_ptr();
                }
            }
        }
        for vector in 0..padded / S::F64::WIDTH {
            let j = vector * S::F64::WIDTH;
            macro_rules! load {
                ($from:expr) => {
                    // SAFETY: `padded` is a multiple of the widest vector, because `finish` has resized all arrays to
                    // such a length. The slices above have checked that the arrays have this length.
                    unsafe { S::F64::load($from.add(j)) }
                };
            }
            let (x, y) = (load!(from[0]), load!(from[1]));
            let mut strength = [Terms::<S::F64, ROUGH>::of(zero); STRENGTHS];
            for c in 0..K::STRENGTHS {
                strength[c] = Terms::of(load!(acting[c]));
            }
            let mut values = [zero; VALUES];
            if BOTH {
                for c in 0..VALUES {
                    if Self::adds(c) {
                        values[c] = load!(back[c]);
                    }
                }
            }
            for r in 0..R {
                let d = [Terms::<S::F64, ROUGH>::of(at[r][0] - x), Terms::of(at[r][1] - y)];
                let mut u = [Terms::of(zero); KERNEL_VALUES];
                D::eval(&params, &d, &strength[..K::STRENGTHS], &mut u[..D::VALUES]);
                for c in 0..VALUES {
                    if Self::adds(c) {
                        let (slot, minus) = slot_of(K::VALUES, c);
                        sums[r][c] = if minus { -u[slot] } else { u[slot] }.add_to(sums[r][c]);
                    }
                }
                if BOTH {
                    D::eval(&params, &d, &turned[r][..K::STRENGTHS], &mut u[..D::VALUES]);
                    for c in 0..VALUES {
                        if Self::adds(c) {
                            let (slot, minus) = slot_of(K::VALUES, c);
                            let minus = minus != (c / 2 == 1);
                            values[c] = if minus { -u[slot] } else { u[slot] }.add_to(values[c]);
                        }
                    }
                }
            }
            if BOTH {
                for c in 0..VALUES {
                    if Self::adds(c) {
                        // SAFETY: as for the loads above.
                        unsafe { values[c].store(back[c].add(j)) };
                    }
                }
            }
        }
        for r in 0..R {
            for c in 0..VALUES {
                if Self::adds(c) {
                    self.out[c][i + r] += sums[r][c].sum();
                }
            }
        }
    }
}
