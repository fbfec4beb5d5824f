//! P2M, P2L, L2P and M2P in the plane, with points along the lanes.

use super::near::{Charged, VALUES};
use crate::lanes::Vectorized;
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
pub(super) struct FromPoints<'a, const LOCAL: bool> {
    pub kernel: PlaneKernel,
    pub frame: Frame,
    pub sources: Charged<'a>,
    /// Row of p + 1 complex coefficients.
    pub row: &'a mut [f64],
}

impl<const LOCAL: bool> Vectorized for FromPoints<'_, LOCAL> {
    type Output = ();
    /// Multipoles are a_j = −Γ δ^(j−1) (harmonic) or −Γ δ^j/j (Laplace). Locals are b_n = Γ/ζ^(n+1) (harmonic) or
    /// −Γ/(n ζ^n) (Laplace). The plain form has the same formulas.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let FromPoints { kernel, frame, sources, row, .. } = self;
        let harmonic = kernel == PlaneKernel::Harmonic;
        let complex = !sources.strengths[1].is_empty();
        let p = row.len() / 2 - 1;
        let inverse = frame.scale.recip();
        let (scale, zero) = (S::F64::splat(inverse), S::F64::splat(0.0));
        let center = frame.center.map(S::F64::broadcast);
        let mut sums = [Complex::<S::F64>::zero(); MAX_ORDER + 1];
        let [x, y] = sources.at;
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
                let im = if complex { load(sources.strengths[1], at, 0.0) } else { zero };
                let strength = Complex::new(load(sources.strengths[0], at, 0.0), im);
                ratio[l] = if LOCAL { z.inverse() } else { z };
                power[l] = match (harmonic, LOCAL) {
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
            // Harmonic locals start at b_0, all others at j = 1.
            for j in usize::from(!(harmonic && LOCAL))..=p {
                for l in 0..SOURCE_VECTORS {
                    sums[j] += power[l];
                    power[l] = power[l] * ratio[l];
                }
            }
        }
        for (j, (x, sum)) in row.chunks_exact_mut(2).zip(&sums).enumerate() {
            let factor = if harmonic || j == 0 { 1.0 } else { -INVERSES[j] };
            x[0] += factor * sum.re.sum();
            x[1] += factor * sum.im.sum();
        }
    }
}

/// L2P, or M2P if `MULTIPOLE`: adds the field of a series, and its derivative if `GRADIENT`, at targets to `out`.
pub(super) struct ToPoints<'a, const MULTIPOLE: bool, const GRADIENT: bool> {
    pub frame: Frame,
    pub row: &'a [f64],
    /// Coordinates x and y of the targets.
    pub at: [&'a [f64]; 2],
    /// Re f, Im f, Re f′, Im f′, one array each, by target.
    pub out: [&'a mut [f64]; VALUES],
    /// Whether the kernel has logarithms, so that multipoles have a coefficient a_0.
    pub logarithms: bool,
}

impl<const MULTIPOLE: bool, const GRADIENT: bool> Vectorized for ToPoints<'_, MULTIPOLE, GRADIENT> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ToPoints { frame, row, at: [x, y], out, logarithms } = self;
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
            let mut derivative = f;
            for j in (usize::from(MULTIPOLE)..=p).rev() {
                let c = coefficient(j);
                for l in 0..TARGET_VECTORS {
                    if GRADIENT && MULTIPOLE {
                        derivative[l] = derivative[l].mul_add(w[l], c.scaled(S::F64::splat(-(j as f64))));
                    } else if GRADIENT {
                        derivative[l] = derivative[l].mul_add(w[l], f[l]);
                    }
                    f[l] = f[l].mul_add(w[l], c);
                }
            }
            for l in 0..TARGET_VECTORS {
                if MULTIPOLE {
                    f[l] = f[l] * w[l];
                    let a0 = coefficient(0);
                    derivative[l] = derivative[l].mul_add(w[l], a0) * w[l];
                    if logarithms {
                        let ln = S::F64::splat(0.5) * z[l].square().ln() + S::F64::splat(frame.scale.ln());
                        f[l] += a0.scaled(ln);
                    }
                }
                let derivative = derivative[l].scaled(scale);
                let at = i + l * S::F64::WIDTH;
                let count = x.len().saturating_sub(at).min(S::F64::WIDTH);
                for (c, v) in [f[l].re, f[l].im, derivative.re, derivative.im].into_iter().enumerate() {
                    if c < 2 || GRADIENT {
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
