//! The shifts of Laurent and Taylor series, over any [`Lane`]: algorithms 3.4, 3.5 and 3.6 of Goude & Engblom
//! (2012), one division, O(p) multiplications and O(p²) additions each.
//!
//! Series are scaled by a length ρ of their box, about its radius: a_j stands for a_j/ρ^j and b_j for b_j·ρ^j, so that
//! no power of a side overflows. A shift then needs only ratios of lengths of the two boxes.
//!
//! Algorithm 3.6 as printed has two signs wrong. Here r = z_i − z_o, the additions of its first half are
//! b_j + b_{j+1}, and the logarithm enters as b_0 + a_0 log(−r).

use crate::complex::Complex;
use fmm_traits::Lane;

/// Largest (ρ/|r|)^p for which shifts scale by powers of r. Beyond it (boxes with almost the same centre) the powers
/// would overflow or vanish; the plain forms then multiply at each step instead.
const LARGEST_POWER: f64 = 1e100;

/// The largest child scale over |r| at which [`m2m`] and [`l2l`] of order `p` are safe.
pub fn largest_ratio(p: usize) -> f64 {
    LARGEST_POWER.powf(1.0 / p.max(1) as f64)
}

/// `a[j]` ← `a[j]`·z^j, j ≥ 1.
#[inline(always)]
fn times_powers<V: Lane>(a: &mut [Complex<V>], z: Complex<V>) {
    let mut power = z;
    for a in a.iter_mut().skip(1) {
        *a = *a * power;
        power = power * z;
    }
}

/// 1/j for j = 0 … 63 (0 for j = 0).
pub const INVERSES: [f64; 64] = {
    let mut t = [0.0; 64];
    let mut j = 1;
    while j < 64 {
        t[j] = 1.0 / j as f64;
        j += 1;
    }
    t
};

/// Multipole of a child, `a` (a_0 … a_p), to its share of the parent's multipole (algorithm 3.4 b). With r = z_c − z_p:
/// `u` = ρ_c/r, `v` = r/ρ_p.
#[inline(always)]
pub fn m2m<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>) {
    let p = a.len() - 1;
    times_powers(a, u);
    for k in (2..=p).rev() {
        for j in k..=p {
            a[j] += a[j - 1];
        }
    }
    subtract_logarithm(a);
    times_powers(a, v);
}

/// As [`m2m`] without scaling by r (algorithm 3.4 a), for any r: `t` = ρ_c/ρ_p.
#[inline(always)]
pub fn m2m_plain<V: Lane>(a: &mut [Complex<V>], t: V, v: Complex<V>) {
    let p = a.len() - 1;
    times_powers(a, Complex::new(t, V::splat(0.0)));
    for k in (2..=p).rev() {
        for j in k..=p {
            a[j] = v.mul_add(a[j - 1], a[j]);
        }
    }
    let mut power = v;
    for j in 1..=p {
        a[j] -= (a[0] * power).scaled(V::splat(INVERSES[j]));
        power = power * v;
    }
}

/// a_j − a_0/j.
#[inline(always)]
fn subtract_logarithm<V: Lane>(a: &mut [Complex<V>]) {
    let a0 = a[0];
    for (a, &inverse) in a.iter_mut().zip(&INVERSES).skip(1) {
        *a -= a0.scaled(V::splat(inverse));
    }
}

/// Local of a parent, `b` (b_0 … b_p), to the share of a child (algorithm 3.5 b). With r = z_p − z_c:
/// `u` = ρ_c/r, `v` = r/ρ_p.
#[inline(always)]
pub fn l2l<V: Lane>(b: &mut [Complex<V>], u: Complex<V>, v: Complex<V>) {
    let p = b.len() - 1;
    times_powers(b, v);
    for k in 0..=p {
        for j in p - k..p {
            b[j] -= b[j + 1];
        }
    }
    times_powers(b, u);
}

/// As [`l2l`] without scaling by r, for any r: `t` = ρ_c/ρ_p.
#[inline(always)]
pub fn l2l_plain<V: Lane>(b: &mut [Complex<V>], t: V, v: Complex<V>) {
    let p = b.len() - 1;
    let minus = Complex::zero() - v;
    for k in 0..=p {
        for j in p - k..p {
            b[j] = minus.mul_add(b[j + 1], b[j]);
        }
    }
    times_powers(b, Complex::new(t, V::splat(0.0)));
}

/// Multipole of a source box, `a` (a_0 … a_p), to its share of a local, left in the same place (algorithm 3.6).
/// With r = z_i − z_o, from the target's centre to the source's: `u` = ρ_i/r, `v` = ρ_o/r, and `ln` = ln|r|
/// (the real part of log(−r); the imaginary part of a potential of logarithms has no meaning).
#[inline(always)]
pub fn m2l<V: Lane>(a: &mut [Complex<V>], u: Complex<V>, v: Complex<V>, ln: V) {
    let p = a.len() - 1;
    let a0 = a[0];
    times_powers(a, Complex::zero() - u);
    a.rotate_left(1);
    a[p] = Complex::zero();
    for k in 2..=p {
        for j in p - k..p {
            a[j] += a[j + 1];
        }
    }
    for k in (1..=p).rev() {
        for j in k..=p {
            a[j] += a[j - 1];
        }
    }
    a[0] += a0.scaled(ln);
    for j in 1..=p {
        a[j] -= a0.scaled(V::splat(INVERSES[j]));
    }
    times_powers(a, v);
}
