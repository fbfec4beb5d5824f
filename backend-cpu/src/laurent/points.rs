//! P2M, P2L, L2P and M2P in the plane, with points along the lanes.

use super::near::{Charged, VALUES};
use crate::lanes::{Isa, Vectorized, dispatch};
use adaptive2d::PlaneKernel;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift::INVERSES};
use fmm_traits::{Lane, Simd, SimdLane};

/// Vectors of sources that take the same power together: one load and one store of a sum serve all of them.
const SOURCE_VECTORS: usize = 2;
/// Vectors of targets evaluated together. Horner's rule is a chain of dependent operations, and four chains hide its
/// latency.
const TARGET_VECTORS: usize = 4;

/// The centre and the scale of a series.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    /// Centre of the series.
    pub center: [f64; 2],
    /// Scale ρ of the series.
    pub scale: f64,
}

/// Loads a vector from `a[i..]`, with `beyond` in the lanes past the end.
#[inline(always)]
fn load<V: SimdLane<Scalar = f64>>(a: &[f64], i: usize, beyond: f64) -> V {
    if i + V::WIDTH <= a.len() {
        // SAFETY: just tested.
        return unsafe { V::load(a[i..].as_ptr()) };
    }
    let mut lanes = [beyond; 8];
    let rest = a.len().saturating_sub(i);
    lanes[..rest].copy_from_slice(&a[a.len() - rest..]);
    // SAFETY: no vector of f64 has more than 8 lanes.
    unsafe { V::load(lanes.as_ptr()) }
}

/// P2M, or P2L if `LOCAL`: adds the multipole or the local of `sources` to `row`.
pub(super) fn from_points<const LOCAL: bool>(
    isa: Isa,
    kernel: PlaneKernel,
    frame: Frame,
    sources: Charged,
    row: &mut [f64],
) {
    let [charges, re, im] = sources.strengths;
    if kernel.charges() {
        let strengths = [charges, &[]];
        dispatch(isa, FromPoints::<LOCAL, false> { frame, at: sources.at, strengths, row });
    }
    if kernel.poles() {
        dispatch(isa, FromPoints::<LOCAL, true> { frame, at: sources.at, strengths: [re, im], row });
    }
}

/// [`from_points`] of poles, or of charges unless `POLES`.
struct FromPoints<'a, const LOCAL: bool, const POLES: bool> {
    frame: Frame,
    at: [&'a [f64]; 2],
    /// Real and imaginary parts. The second array is empty for real strengths.
    strengths: [&'a [f64]; 2],
    /// Row of p + 1 complex coefficients.
    row: &'a mut [f64],
}

impl<const LOCAL: bool, const POLES: bool> Vectorized for FromPoints<'_, LOCAL, POLES> {
    type Output = ();
    /// Multipoles are a_j = −m δ^(j−1) (poles) or −Γ δ^j/j (charges). Locals are b_n = m/ζ^(n+1) (poles) or −Γ/(n ζ^n)
    /// (charges). The plain form has the same formulas.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let FromPoints { frame, at: [x, y], strengths, row } = self;
        let complex = !strengths[1].is_empty();
        let p = row.len() / 2 - 1;
        let inverse = frame.scale.recip();
        let (scale, zero) = (S::F64::splat(inverse), S::F64::splat(0.0));
        let center = frame.center.map(S::F64::broadcast);
        let mut sums = [Complex::<S::F64>::zero(); MAX_ORDER + 1];
        for i in (0..x.len()).step_by(SOURCE_VECTORS * S::F64::WIDTH) {
            let mut ratio = [Complex::<S::F64>::zero(); SOURCE_VECTORS];
            let mut power = [Complex::<S::F64>::zero(); SOURCE_VECTORS];
            for l in 0..SOURCE_VECTORS {
                let at = i + l * S::F64::WIDTH;
                // Points beyond the end have zero strength. They lie away from the centre so that no series is
                // singular.
                let z = Complex::new(
                    (load::<S::F64>(x, at, frame.center[0] + frame.scale) - center[0]) * scale,
                    (load::<S::F64>(y, at, frame.center[1] + frame.scale) - center[1]) * scale,
                );
                let im = if complex { load(strengths[1], at, 0.0) } else { zero };
                let strength = Complex::new(load(strengths[0], at, 0.0), im);
                ratio[l] = if LOCAL { z.inverse() } else { z };
                power[l] = match (POLES, LOCAL) {
                    (true, true) => strength * ratio[l].scaled(scale),
                    (true, false) => strength.scaled(-scale),
                    (false, true) => {
                        let ln = S::F64::splat(0.5) * z.square().ln() + S::F64::splat(frame.scale.ln());
                        sums[0] += strength.scaled(ln);
                        strength * ratio[l]
                    }
                    (false, false) => {
                        sums[0] += strength;
                        strength * ratio[l]
                    }
                };
            }
            // Locals of poles start at b_0, all others at j = 1.
            for j in usize::from(!(POLES && LOCAL))..=p {
                for l in 0..SOURCE_VECTORS {
                    sums[j] += power[l];
                    power[l] = power[l] * ratio[l];
                }
            }
        }
        for (j, (x, sum)) in row.chunks_exact_mut(2).zip(&sums).enumerate() {
            let factor = if POLES || j == 0 { 1.0 } else { -INVERSES[j] };
            x[0] += factor * sum.re.sum();
            x[1] += factor * sum.im.sum();
        }
    }
}

/// L2P, or M2P if `MULTIPOLE`: adds the field of a series at targets, with derivatives up to the order `derivatives`, to
/// `out`.
pub(super) fn to_points<const MULTIPOLE: bool>(isa: Isa, derivatives: usize, series: Series) {
    match derivatives {
        0 => dispatch(isa, ToPoints::<MULTIPOLE, 0>(series)),
        1 => dispatch(isa, ToPoints::<MULTIPOLE, 1>(series)),
        _ => dispatch(isa, ToPoints::<MULTIPOLE, 2>(series)),
    }
}

/// A series and the targets at which it is evaluated.
pub(super) struct Series<'a> {
    pub frame: Frame,
    pub row: &'a [f64],
    /// Coordinates x and y of the targets.
    pub at: [&'a [f64]; 2],
    /// Re f, Im f, Re f′, Im f′, Re f″, Im f″, one array each, by target.
    pub out: [&'a mut [f64]; VALUES],
    /// Whether the kernel has logarithms, so that multipoles have a coefficient a_0.
    pub logarithms: bool,
}

struct ToPoints<'a, const MULTIPOLE: bool, const DERIVATIVES: usize>(Series<'a>);

impl<const MULTIPOLE: bool, const DERIVATIVES: usize> Vectorized for ToPoints<'_, MULTIPOLE, DERIVATIVES> {
    type Output = ();
    /// Horner's rule, as in the plain form. `second` is L″/2 of a local, and M″ of a multipole.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Series { frame, row, at: [x, y], out, logarithms } = self.0;
        let scale = S::F64::splat(frame.scale.recip());
        let center = frame.center.map(S::F64::broadcast);
        let coefficient = |j: usize| Complex::new(S::F64::splat(row[2 * j]), S::F64::splat(row[2 * j + 1]));
        let p = row.len() / 2 - 1;
        for i in (0..x.len()).step_by(TARGET_VECTORS * S::F64::WIDTH) {
            let mut z = [Complex::<S::F64>::zero(); TARGET_VECTORS];
            for (l, z) in z.iter_mut().enumerate() {
                let at = i + l * S::F64::WIDTH;
                *z = Complex::new(
                    (load::<S::F64>(x, at, frame.center[0] + frame.scale) - center[0]) * scale,
                    (load::<S::F64>(y, at, frame.center[1] + frame.scale) - center[1]) * scale,
                );
            }
            let mut w = z;
            if MULTIPOLE {
                // A loop, because a closure may not be compiled into the function that enables the instruction set.
                for w in &mut w {
                    *w = w.inverse();
                }
            }
            let mut f = [Complex::<S::F64>::zero(); TARGET_VECTORS];
            let (mut first, mut second) = (f, f);
            for j in (usize::from(MULTIPOLE)..=p).rev() {
                let c = coefficient(j);
                for l in 0..TARGET_VECTORS {
                    if DERIVATIVES > 1 {
                        let factor = S::F64::splat((j * (j + 1)) as f64);
                        second[l] = second[l].mul_add(w[l], if MULTIPOLE { c.scaled(factor) } else { first[l] });
                    }
                    if DERIVATIVES > 0 {
                        let factor = S::F64::splat(-(j as f64));
                        first[l] = first[l].mul_add(w[l], if MULTIPOLE { c.scaled(factor) } else { f[l] });
                    }
                    f[l] = f[l].mul_add(w[l], c);
                }
            }
            for l in 0..TARGET_VECTORS {
                if MULTIPOLE {
                    f[l] = f[l] * w[l];
                    let a0 = coefficient(0);
                    first[l] = first[l].mul_add(w[l], a0) * w[l];
                    second[l] = second[l].mul_add(w[l], Complex::zero() - a0) * w[l] * w[l];
                    if logarithms {
                        let ln = S::F64::splat(0.5) * z[l].square().ln() + S::F64::splat(frame.scale.ln());
                        f[l] += a0.scaled(ln);
                    }
                }
                let first = first[l].scaled(scale);
                let second = second[l].scaled(scale).scaled(if MULTIPOLE { scale } else { scale + scale });
                let at = i + l * S::F64::WIDTH;
                let count = x.len().saturating_sub(at).min(S::F64::WIDTH);
                for (c, v) in [f[l].re, f[l].im, first.re, first.im, second.re, second.im].into_iter().enumerate() {
                    if c / 2 <= DERIVATIVES {
                        let mut lanes = [0.0; 8];
                        // SAFETY: no vector of f64 has more than 8 lanes.
                        unsafe { v.store(lanes.as_mut_ptr()) };
                        out[c][x.len().min(at)..][..count].iter_mut().zip(lanes).for_each(|(o, x)| *o += x);
                    }
                }
            }
        }
    }
}
