//! Laplace's equation in three dimensions: G = 1/(4πr), r = target − source.
//!
//! Charges q give q·G. A dipole v is defined by the *source* gradient: φ = v·∇_y G =
//! v·r/(4πr³), the limit of two opposite charges ±q at y ± v/(2q). [`LaplaceDipole`] and
//! [`LaplaceMixed`] carry the same harmonic far field as charges, so charges are their
//! equivalent densities. The factor 1/(4π) is in `scale`, not in the pair loop.

use fmm_traits::{Error, Family, Kernel, Lane, lane::dot};
use std::f64::consts::PI;

/// 1/(4π).
pub(crate) const SCALE: f64 = 0.25 / PI;

/// Charges → potential q/(4πr).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Laplace;

impl Kernel for Laplace {
    const NAME: &'static str = "laplace";
    const COMPILED: usize = 2;

    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * dot(r, r).rsqrt();
    }
    #[inline(always)]
    fn eval_gradient<V: Lane>(_: &[V], r: &[V], q: &[V], out: &mut [V]) {
        inverse_distance_gradient(dot(r, r), r, q[0], out);
    }
    #[inline(always)]
    fn eval_hessian<V: Lane>(_: &[V], r: &[V], q: &[V], out: &mut [V]) {
        inverse_distance_hessian(dot(r, r), r, q[0], out);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn scale(&self) -> f64 {
        SCALE
    }
}

/// q/√d² and its gradient −q·r/d³ where ∇d² = 2r (plain or softened distance).
#[inline(always)]
pub(crate) fn inverse_distance_gradient<V: Lane>(d2: V, r: &[V], q: V, out: &mut [V]) {
    let w = d2.rsqrt();
    let u = q * w;
    let t = u * (w * w);
    out[0] = u.shared();
    for a in 0..3 {
        // A negation as the last operation is free: the sum over pairs subtracts instead of adding.
        out[1 + a] = -(t * r[a]);
    }
}

/// As [`inverse_distance_gradient`], with the Hessian q(3rrᵀ/d⁵ − I/d³).
#[inline(always)]
pub(crate) fn inverse_distance_hessian<V: Lane>(d2: V, r: &[V], q: V, out: &mut [V]) {
    inverse_distance_gradient(d2, r, q, out);
    let w = d2.rsqrt();
    let t = -(q * w * (w * w));
    let s = V::splat(-3.0) * (t * (w * w));
    let mut at = 4;
    for a in 0..3 {
        for b in a..3 {
            out[at] = if a == b { (s * r[a]).mul_add(r[b], t) } else { s * r[a] * r[b] };
            at += 1;
        }
    }
}

/// A charge q and a dipole v: q/r + v·r/r³.
#[inline(always)]
fn mixed<V: Lane>(r: &[V], q: V, v: &[V], u: &mut [V]) {
    let w = dot(r, r).rsqrt();
    u[0] = w * dot(v, r).mul_add(w * w, q);
}

/// [`mixed`] with its gradient v/r³ − (q + 3 v·r/r²) r/r³.
#[inline(always)]
fn mixed_gradient<V: Lane>(r: &[V], q: V, v: &[V], out: &mut [V]) {
    let w = dot(r, r).rsqrt();
    let w2 = w * w;
    let w3 = w * w2;
    let s = dot(v, r) * w2;
    let t = -(V::splat(3.0).mul_add(s, q) * w3);
    out[0] = w * (q + s);
    for a in 0..3 {
        out[1 + a] = t.mul_add(r[a], w3 * v[a]);
    }
}

/// As [`mixed_gradient`], with the Hessian h nᵀ + n hᵀ − (q + 3 v·r/r²) I/r³, where n = r/|r| and
/// h = ((3q + 15 v·r/r²) n/2 − 3 v/|r|)/r³. No power of 1/r is higher than the 1/r⁴ of the Hessian of a dipole, so
/// none overflows earlier than that.
#[inline(always)]
fn mixed_hessian<V: Lane>(r: &[V], q: V, v: &[V], out: &mut [V]) {
    mixed_gradient(r, q, v, out);
    let w = dot(r, r).rsqrt();
    let w2 = w * w;
    let w3 = w * w2;
    let s = dot(v, r) * w2;
    let t = -(V::splat(3.0).mul_add(s, q) * w3);
    let g = V::splat(7.5).mul_add(s, V::splat(1.5) * q) * w3;
    let f = V::splat(-3.0) * (w * w3);
    let (mut n, mut h) = ([t; 3], [t; 3]);
    for a in 0..3 {
        n[a] = r[a] * w;
        h[a] = g.mul_add(n[a], f * v[a]);
    }
    let mut at = 4;
    for a in 0..3 {
        for b in a..3 {
            let rest = if a == b { h[a].mul_add(n[a], t) } else { h[b] * n[a] };
            out[at] = h[a].mul_add(n[b], rest);
            at += 1;
        }
    }
}

/// Dipole vectors (3 strengths) → potential. The source member of [`LaplaceDipole`]. The type has no values, because
/// members of a family are only named.
#[derive(Clone, Copy, Debug)]
pub enum DipolePotential {}

impl Kernel for DipolePotential {
    const NAME: &'static str = "laplace_dipole";
    const COMPILED: usize = 2;
    const STRENGTHS: usize = 3;
    const RECIPROCAL: bool = false;

    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], v: &[V], u: &mut [V]) {
        mixed(r, V::splat(0.0), v, u);
    }
    #[inline(always)]
    fn eval_gradient<V: Lane>(_: &[V], r: &[V], v: &[V], out: &mut [V]) {
        mixed_gradient(r, V::splat(0.0), v, out);
    }
    #[inline(always)]
    fn eval_hessian<V: Lane>(_: &[V], r: &[V], v: &[V], out: &mut [V]) {
        mixed_hessian(r, V::splat(0.0), v, out);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn strength_degree(_: usize) -> i32 {
        -1
    }
}

/// A charge, then a dipole vector (4 strengths) → potential. The source member of
/// [`LaplaceMixed`].
#[derive(Clone, Copy, Debug)]
pub enum MixedPotential {}

impl Kernel for MixedPotential {
    const NAME: &'static str = "laplace_mixed";
    const COMPILED: usize = 2;
    const STRENGTHS: usize = 4;
    const RECIPROCAL: bool = false;

    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], s: &[V], u: &mut [V]) {
        mixed(r, s[0], &s[1..], u);
    }
    #[inline(always)]
    fn eval_gradient<V: Lane>(_: &[V], r: &[V], s: &[V], out: &mut [V]) {
        mixed_gradient(r, s[0], &s[1..], out);
    }
    #[inline(always)]
    fn eval_hessian<V: Lane>(_: &[V], r: &[V], s: &[V], out: &mut [V]) {
        mixed_hessian(r, s[0], &s[1..], out);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn strength_degree(j: usize) -> i32 {
        if j == 0 { 0 } else { -1 }
    }
}

/// Dipoles (strengths v_x, v_y, v_z), φ = v·∇_y G. Equivalent densities are charges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaplaceDipole;

/// Charges and dipoles at the same points (strengths q, v_x, v_y, v_z). Equivalent densities are
/// charges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaplaceMixed;

macro_rules! charges_inside {
    ($family:ident, $source:ident) => {
        impl Family for $family {
            type Source = $source;
            type Check = $source;
            type Equivalent = Laplace;
            type Far = Laplace;
            fn name(&self) -> &'static str {
                $source::NAME
            }
            fn parameters(&self) -> Vec<f64> {
                Vec::new()
            }
            fn scale(&self) -> f64 {
                SCALE
            }
            fn validate(&self) -> Result<(), Error> {
                Ok(())
            }
        }
    };
}
charges_inside!(LaplaceDipole, DipolePotential);
charges_inside!(LaplaceMixed, MixedPotential);
