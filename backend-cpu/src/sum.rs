//! The loop over pairs that is compiled for each kernel in space. P2M, P2L, L2P, M2P, P2P and direct summation all use
//! it; they differ only in the kernel, the sources and the targets.

use crate::lanes::{Isa, Product, Several, Two, Vectorized, dispatch, dispatch_large};
use crate::soa::{Soa, Targets};
use fmm_traits::{
    Kernel, Lane, Real, Simd, SimdLane,
    kernel::{MAX_COMPONENTS, MAX_PARAMETERS, MAX_STRENGTHS},
};
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Number of values above which a kernel (a Hessian of a vector) is compiled for fewer instruction sets.
const LARGE: usize = 13;

/// Adds the field of `sources` at `targets` to `out`: `out[(s·targets + t)·K::VALUES + i]` += Σ over sources of
/// K(target t − source)·strength, for each set s of strengths.
///
/// * `sources`: padded rows of coordinates in `PIECES` pieces, then the strengths, set after set.
/// * `range` selects sources. Its start must be a multiple of [`PAD`](crate::soa::PAD). Its end is rounded up to the
///   width of the vectors; padding contributes nothing.
/// * `own`: if the targets are among the sources, target t is source `own + t` and is skipped. Singular kernels need no
///   `own`, because they are zero there.
///
/// Sources run along the lanes, and a few targets stay in registers. Only the end of the source range is padded, and
/// each load of a source serves several targets.
///
/// Sets share the evaluation of the kernel. The body is inlined once per set, and the compiler computes the part that
/// does not depend on strengths once. Each set gets the same bits as it would alone.
///
/// This is the only place where a kernel is compiled for vectors: once per kernel, precision and number of pieces.
#[inline(never)]
pub fn sum<K: Kernel, T: Real, const PIECES: usize>(
    isa: Isa,
    params: &[T],
    targets: Targets<T>,
    sources: &Soa<T>,
    range: Range<usize>,
    own: Option<usize>,
    out: &mut [T],
) {
    #[cfg(feature = "develop")]
    if const { T::EPSILON > 1e-10 } {
        return widened(sum::<K, f64, 1>, isa, params, targets, sources, range, own, out);
    }
    let work = Sum::<K, T, PIECES> { params, targets, sources, range, own, out, _k: PhantomData };
    if const { K::VALUES > LARGE } {
        dispatch_large(isa, work);
    } else {
        dispatch(isa, work);
    }
}

/// The sum of arguments in `T`, computed in f64. With it, a kernel need not be compiled for f32.
#[cfg(feature = "develop")]
fn widened<T: Real>(
    sum: PairSum<f64>,
    isa: Isa,
    params: &[T],
    targets: Targets<T>,
    sources: &Soa<T>,
    range: Range<usize>,
    own: Option<usize>,
    out: &mut [T],
) {
    let pieces = sources.pieces();
    let whole = |rows: &dyn Fn(usize) -> Vec<f64>, a: usize| -> Vec<f64> {
        let mut x = rows(a);
        if pieces == 2 {
            x.iter_mut().zip(rows(3 + a)).for_each(|(x, rest)| *x += rest);
        }
        x
    };
    let wide = |from: &[T]| -> Vec<f64> { from.iter().map(|x| x.f64()).collect() };
    let strengths = sources.rows() - 3 * pieces;
    let mut block = Soa::default();
    block.reset(1, strengths, sources.len());
    for a in 0..3 {
        block.row_mut(a).copy_from_slice(&whole(&|r| wide(sources.row(r)), a));
    }
    for c in 0..strengths {
        block.strength_mut(c).copy_from_slice(&wide(sources.row(3 * pieces + c)));
    }
    let at = [0, 1, 2].map(|a| whole(&|r| wide(targets[r]), a));
    let mut wide_out = vec![0.0; out.len()];
    sum(isa, &wide(params), [&at[0], &at[1], &at[2], &[], &[], &[]], &block, range, own, &mut wide_out);
    out.iter_mut().zip(wide_out).for_each(|(to, x)| *to += T::of(x));
}

/// Largest sum that f32 may hold, for strengths of order 1 in units of the box. A larger sum contains a pair so close
/// (1e-9 for 1/r) that coordinates in two pieces begin to lose digits, or that powers leave the range of f32. Such
/// sums are repeated in f64.
pub(crate) const HELD: f64 = 1e9;

/// The signature of [`sum`].
pub type PairSum<T> = fn(Isa, &[T], Targets<T>, &Soa<T>, Range<usize>, Option<usize>, &mut [T]);

struct Sum<'a, K, T, const PIECES: usize> {
    params: &'a [T],
    targets: Targets<'a, T>,
    sources: &'a Soa<T>,
    range: Range<usize>,
    own: Option<usize>,
    out: &'a mut [T],
    _k: PhantomData<K>,
}

impl<K: Kernel, T: Real, const PIECES: usize> Vectorized for Sum<'_, K, T, PIECES> {
    type Output = ();
    const SINGLE: bool = T::EPSILON > 1e-10;
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Sum { params, targets, sources, range, own, out, .. } = self;
        match own {
            Some(own) if !K::SINGULAR => blocked::<K, S, T, PIECES, true>(params, targets, sources, range, own, out),
            _ => blocked::<K, S, T, PIECES, false>(params, targets, sources, range, 0, out),
        }
    }
}

/// Number of sets of strengths that share a pass over the sources, for a kernel with this many values. The sums of
/// all sets stay in registers.
pub const fn together(values: usize) -> usize {
    match values {
        1 => 8,
        2..=4 => 4,
        _ => 1,
    }
}

/// Chooses how many targets, or sets of strengths, share a pass. Their sums stay in registers.
#[inline(always)]
fn blocked<K: Kernel, S: Simd, T: Real, const PIECES: usize, const SKIP: bool>(
    params: &[T],
    targets: Targets<T>,
    sources: &Soa<T>,
    range: Range<usize>,
    own: usize,
    out: &mut [T],
) {
    let one = sources.rows() == 3 * PIECES + K::STRENGTHS;
    // `const` conditions are decided at compile time, so that only the passes of this kernel are compiled.
    if const { K::VALUES == 1 } {
        if one {
            pass::<K, S, T, PIECES, SKIP, T::Vector<S>, 1, 1>(params, targets, sources, range, own, out);
        } else {
            pass::<K, S, T, PIECES, SKIP, T::Vector<S>, 1, { together(1) }>(params, targets, sources, range, own, out);
        }
    } else if const { K::VALUES <= 4 } {
        if one {
            pass::<K, S, T, PIECES, SKIP, Two<T::Vector<S>>, 4, 1>(params, targets, sources, range, own, out);
        } else {
            pass::<K, S, T, PIECES, SKIP, T::Vector<S>, 4, { together(4) }>(params, targets, sources, range, own, out);
        }
    } else if const { K::VALUES <= 13 } {
        pass::<K, S, T, PIECES, SKIP, T::Vector<S>, 13, 1>(params, targets, sources, range, own, out);
    } else if const { K::VALUES <= 40 } {
        pass::<K, S, T, PIECES, SKIP, T::Vector<S>, 40, 1>(params, targets, sources, range, own, out);
    } else {
        pass::<K, S, T, PIECES, SKIP, T::Vector<S>, MAX_COMPONENTS, 1>(params, targets, sources, range, own, out);
    }
}

static IOTA: [f64; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

#[inline(always)]
fn pass<
    K: Kernel,
    S: Simd,
    T: Real,
    const PIECES: usize,
    const SKIP: bool,
    G: Several<T::Vector<S>>,
    const VALUES: usize,
    const SETS: usize,
>(
    params: &[T],
    targets: Targets<T>,
    sources: &Soa<T>,
    range: Range<usize>,
    own: usize,
    out: &mut [T],
) {
    // This line computes nothing. It keeps an unused `G` on the stack, and for its sake the compiler aligns the whole
    // stack frame. Vectors that find no register then never straddle two cache lines.
    black_box(MaybeUninit::<G>::uninit().as_mut_ptr());
    let width = T::Vector::<S>::WIDTH;
    let zero = G::splat(0.0);
    // Always the full array, so that its length is a constant to the compiler.
    let mut p = [Product::of(zero); MAX_PARAMETERS];
    for (p, &x) in p.iter_mut().zip(params) {
        *p = Product::of(G::all(SimdLane::broadcast(x)));
    }
    let length = sources.row(0).len();
    let (begin, end) = (range.start, range.end.next_multiple_of(width).min(length));
    let (n, sets) = (targets[0].len(), (sources.rows() - 3 * PIECES) / K::STRENGTHS);
    assert!(sources.rows() == 3 * PIECES + sets * K::STRENGTHS && begin <= end && end <= length);
    assert!(begin % width == 0 && end % width == 0 && out.len() == sets * n * K::VALUES);
    let row = |r: usize| sources.row(r.min(sources.rows() - 1)).as_ptr();
    // Loops, as in kernels: `array::from_fn` and `map` would be compiled again for each pass of each kernel.
    let mut places = [row(0); 6];
    let mut lane = [T::default(); IOTA.len()];
    for r in 0..6 {
        places[r] = row(r);
    }
    for i in 0..IOTA.len() {
        lane[i] = T::of(IOTA[i]);
    }
    // SAFETY: `lane` has 16 entries, the widest vector.
    let lane = G::all(unsafe { SimdLane::load(lane.as_ptr()) });
    let mut set = 0;
    while set < sets {
        let mut strengths = [[places[0]; MAX_STRENGTHS]; SETS];
        for s in 0..SETS {
            let first = 3 * PIECES + (set + s).min(sets - 1) * K::STRENGTHS;
            for c in 0..K::STRENGTHS {
                strengths[s][c] = row(first + c);
            }
        }
        let mut first = 0;
        while first < n {
            let mut at = [zero; 6];
            for b in 0..G::COUNT {
                let index = (first + b).min(n - 1);
                for r in 0..3 * PIECES {
                    at[r].set(b, SimdLane::broadcast(targets[r][index]));
                }
            }
            let mut sums = [[zero; VALUES]; SETS];
            let mut j = begin;
            while j < end {
                // A macro instead of a closure, because only inlined code is compiled for the instruction set.
                macro_rules! load {
                    ($row:expr) => {
                        // SAFETY: j is a multiple of `width` below `end`, which is at most the padded row length and a
                        // multiple of `width` (asserted), and all rows have that length: j + width stays inside.
                        G::all(unsafe { SimdLane::load($row.add(j)) })
                    };
                }
                let mut r = [Product::of(at[0]); 3];
                for a in 0..3 {
                    let mut d = at[a] - load!(places[a]);
                    if PIECES == 2 {
                        d = d - load!(places[3 + a]) + at[3 + a];
                    }
                    r[a] = Product::of(d);
                }
                // The lane of the target itself, relative to j, since f32 cannot hold all indices.
                let mut itself = zero;
                if SKIP {
                    for b in 0..G::COUNT {
                        itself.set(b, Lane::splat((own + (first + b).min(n - 1)) as f64 - j as f64));
                    }
                }
                for s in 0..SETS {
                    let mut q = [Product::of(zero); MAX_STRENGTHS];
                    for c in 0..K::STRENGTHS {
                        q[c] = Product::of(load!(strengths[s][c]));
                    }
                    let mut u = [Product::of(zero); VALUES];
                    K::eval(&p, &r[..K::DIM], &q[..K::STRENGTHS], &mut u[..K::VALUES]);
                    for i in 0..K::VALUES {
                        // Add first, then select: the multiply-add stays fused, so a sum has the same bits with `SKIP`
                        // as without.
                        let more = u[i].add_to(sums[s][i]);
                        sums[s][i] = if SKIP { Lane::select(lane.eq(itself), sums[s][i], more) } else { more };
                    }
                }
                j += width;
            }
            for s in 0..SETS.min(sets - set) {
                for b in 0..G::COUNT.min(n - first) {
                    let out = &mut out[((set + s) * n + first + b) * K::VALUES..][..K::VALUES];
                    for i in 0..K::VALUES {
                        out[i] += sums[s][i].get(b).sum();
                    }
                }
            }
            first += G::COUNT;
        }
        set += SETS;
    }
}
