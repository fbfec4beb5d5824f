//! P2M, P2L, L2P and M2P: points along the lanes.

use super::near::{Charged, VALUES};
use crate::lanes::Vectorized;
use adaptive2d::PlaneKernel;
use adaptive2d::complex::Complex;
use adaptive2d::laurent::{MAX_ORDER, shift::INVERSES};
use fmm_traits::{Lane, Simd, SimdLane};

/// Vectors of points that take the same power at a time: one load and store of a sum serves them all.
const TOGETHER: usize = 2;
/// Vectors of targets evaluated at a time: Horner's rule is a chain, and four hide its latency.
const CHAINS: usize = 4;

/// Where a series lives.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    /// Its centre.
    pub center: [f64; 2],
    /// Its scale ρ.
    pub scale: f64,
}

/// A vector from `a[i..]`, 0 beyond the end.
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

/// Sources into a series: their multipole about a centre, or (`LOCAL`) their local there.
pub(super) struct FromPoints<'a, const LOCAL: bool> {
    pub kernel: PlaneKernel,
    pub frame: Frame,
    pub sources: Charged<'a>,
    /// Row of p + 1 coefficients, added to.
    pub row: &'a mut [f64],
}

impl<const LOCAL: bool> Vectorized for FromPoints<'_, LOCAL> {
    type Output = ();
    /// Multipoles: a_j = −Γ δ^(j−1) or −Γ δ^j/j; locals: b_n = Γ/ζ^(n+1) or −Γ/(n ζ^n), as in the plain form.
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
        for i in (0..x.len()).step_by(TOGETHER * S::F64::WIDTH) {
            let mut ratio = [Complex::<S::F64>::zero(); TOGETHER];
            let mut power = [Complex::<S::F64>::zero(); TOGETHER];
            for l in 0..TOGETHER {
                let at = i + l * S::F64::WIDTH;
                // Points beyond the end carry nothing, but must not be singular: a radius away from the centre.
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
                for l in 0..TOGETHER {
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

/// A series at targets: a local, or (`MULTIPOLE`) a multipole, whose field and derivative are added to `out`.
pub(super) struct ToPoints<'a, const MULTIPOLE: bool, const GRADIENT: bool> {
    pub frame: Frame,
    pub row: &'a [f64],
    pub at: [&'a [f64]; 2],
    /// Re f, Im f, Re f′, Im f′ by target.
    pub out: [&'a mut [f64]; VALUES],
    /// Whether there is an a_0.
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
        for i in (0..x.len()).step_by(CHAINS * S::F64::WIDTH) {
            let mut z = [Complex::<S::F64>::zero(); CHAINS];
            for (l, z) in z.iter_mut().enumerate() {
                let at = i + l * S::F64::WIDTH;
                *z = Complex::new(
                    (load::<S::F64>(x, at, frame.center[0] + frame.scale) - center[0]) * scale,
                    (load::<S::F64>(y, at, frame.center[1] + frame.scale) - center[1]) * scale,
                );
            }
            let w = if MULTIPOLE { z.map(|z| z.inverse()) } else { z };
            let mut f = [Complex::<S::F64>::zero(); CHAINS];
            let mut derivative = f;
            for j in (usize::from(MULTIPOLE)..=p).rev() {
                let c = coefficient(j);
                for l in 0..CHAINS {
                    if GRADIENT && MULTIPOLE {
                        derivative[l] = derivative[l].mul_add(w[l], c.scaled(S::F64::splat(-(j as f64))));
                    } else if GRADIENT {
                        derivative[l] = derivative[l].mul_add(w[l], f[l]);
                    }
                    f[l] = f[l].mul_add(w[l], c);
                }
            }
            for l in 0..CHAINS {
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
