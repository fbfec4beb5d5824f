//! Real solid harmonics by recursion: no angles, no special functions, no complex numbers.
//!
//! Let F_n^m(x, y, z) = rⁿ P_n^m(cos θ) e^{imφ}/(n + m)! without the sign (−1)^m, so that F_0^0 = 1 and
//! F_m^m = (x + iy) F_{m−1}^{m−1}/(2m). The basis is
//!
//! R_n^m = w_n^m·Re F_n^m (m ≥ 0) and w_n^m·Im F_n^m (sines, m ≥ 1), w_n^m = √((2 − δ_{m0}) (n − m)! (n + m)!),
//!
//! and S = R/r^(2n+1). On the unit sphere the squares of the entries of one degree add up to 1, so no factorial is ever
//! formed and no entry exceeds rⁿ. The basis of Gumerov & Duraiswami (2008), eqs. 11–15, is
//! R̃_n^m = (−1)ⁿ R_n^m/w_n^m for the cosines and −(−1)ⁿ R_n^m/w_n^m for the sines. With |y| < |x|
//!
//! 1/|x − y| = Σ_{n,m} R_n^m(y) S_n^m(x):
//!
//! where their eq. 14 has a factor (−1)ⁿ (2 − δ_{m0}) that the two w contain here. A rotation of the axes acts on R and
//! on S by the same orthogonal matrix, one per degree.
//!
//! # Order of a row
//!
//! Degree n holds 2n + 1 entries from [`cosine`]`(n, 0)` = n²: the cosines m = 0 … n, then the sines m = 1 … n. An
//! expansion of order p has the degrees 0 … p − 1, p² entries.
//!
//! Between the two rotations of a translation, entries of different m do not mix. There a row is sorted by m:
//! [`column()`].

use fmm_traits::{Real, SimdLane};

/// Place of the cosine entry (n, m), m ≥ 0, in a row.
#[inline(always)]
pub const fn cosine(n: usize, m: usize) -> usize {
    n * n + m
}

/// Place of the sine entry (n, m), m ≥ 1, in a row.
#[inline(always)]
pub const fn sine(n: usize, m: usize) -> usize {
    n * n + n + m
}

/// First place of m in a row sorted by m. There lie the cosines of the degrees m … order − 1, then, if m ≥ 1, the
/// sines.
#[inline(always)]
pub const fn column(order: usize, m: usize) -> usize {
    if m == 0 { 0 } else { (2 * m - 1) * order - m * (m - 1) }
}

/// Place of (n, m), 0 ≤ m ≤ n, in an array over all such pairs (a triangle).
#[inline(always)]
pub(crate) const fn triangle(n: usize, m: usize) -> usize {
    n * (n + 1) / 2 + m
}

/// The coefficients of the recursions, up to an order.
#[derive(Clone, Debug)]
pub struct Basis<T> {
    /// R_n^n = `diagonal[n]`·(x + iy)·R_{n−1}^{n−1}.
    diagonal: Vec<T>,
    /// R_n^m = `z[n, m]`·z·R_{n−1}^m − `r2[n, m]`·r²·R_{n−2}^m.
    z: Vec<T>,
    r2: Vec<T>,
}

impl<T: Real> Basis<T> {
    /// Coefficients for all orders up to `order`.
    pub fn new(order: usize) -> Self {
        let mut basis = Basis { diagonal: Vec::new(), z: Vec::new(), r2: Vec::new() };
        for n in 0..order {
            let d = n as f64;
            basis.diagonal.push(T::of(if n < 2 { 1.0 } else { ((2.0 * d - 1.0) / (2.0 * d)).sqrt() }));
            for m in 0..=n {
                let w = ((n * n - m * m) as f64).sqrt();
                let before = (d - 1.0).powi(2) - (m * m) as f64;
                // m = n is handled by `diagonal`; R_{n−2}^{n−1} does not exist.
                basis.z.push(T::of(if m < n { (2.0 * d - 1.0) / w } else { 0.0 }));
                basis.r2.push(T::of(if m + 1 < n { before.sqrt() / w } else { 0.0 }));
            }
        }
        basis
    }

    /// The coefficients `[a, b]` of the recursion of R_n^m. For m < n it is R_n^m = a·z·R_{n−1}^m − b·r²·R_{n−2}^m. For
    /// m = n it is R_n^n = a·(x + iy)·R_{n−1}^{n−1}, and b = 0.
    pub fn coefficients(&self, n: usize, m: usize) -> [T; 2] {
        if m == n { [self.diagonal[n], T::of(0.0)] } else { [self.z[triangle(n, m)], self.r2[triangle(n, m)]] }
    }

    /// Writes all R_n^m at (x, y, z) below degree `order` to `out` (Gumerov & Duraiswami eq. 15 in this normalisation).
    #[inline(always)]
    pub fn regular<V: SimdLane<Scalar = T>>(&self, order: usize, at: [V; 3], out: &mut [V]) {
        self.multiples(order, V::splat(1.0), at, out);
    }

    /// As [`regular`](Self::regular), times `factor`. The recursions are linear, so the strength of a source as the
    /// factor costs nothing.
    #[inline(always)]
    pub fn multiples<V: SimdLane<Scalar = T>>(&self, order: usize, factor: V, [x, y, z]: [V; 3], out: &mut [V]) {
        let out = &mut out[..order * order];
        let r2 = x.mul_add(x, y.mul_add(y, z * z));
        if let Some(first) = out.first_mut() {
            *first = factor;
        }
        for n in 1..order {
            for m in 0..n {
                let at = triangle(n, m);
                let a = V::broadcast(self.z[at]) * z;
                let b = V::broadcast(self.r2[at]) * r2;
                let two = m + 1 < n;
                // A macro instead of a closure, because only inlined code is compiled for the instruction set.
                macro_rules! step {
                    ($place:ident) => {
                        let first = a * out[$place(n - 1, m)];
                        out[$place(n, m)] = if two { first - b * out[$place(n - 2, m)] } else { first };
                    };
                }
                step!(cosine);
                if m > 0 {
                    step!(sine);
                }
            }
            let f = V::broadcast(self.diagonal[n]);
            let c = out[cosine(n - 1, n - 1)];
            let s = if n > 1 { out[sine(n - 1, n - 1)] } else { V::splat(0.0) };
            out[cosine(n, n)] = f * (x * c - y * s);
            out[sine(n, n)] = f * (x * s + y * c);
        }
    }

    /// All S_n^m at a point other than the origin: R at the inverted point x/r², divided by r. The inversion is done in
    /// f64, so that squares of far points do not overflow.
    pub fn singular(&self, order: usize, x: [f64; 3], out: &mut [T]) {
        let r2: f64 = x.iter().map(|c| c * c).sum();
        self.regular(order, x.map(|c| T::of(c / r2)), out);
        let inverse = T::of(r2.sqrt().recip());
        out[..order * order].iter_mut().for_each(|s| *s *= inverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [[f64; 3]; 4] = [[0.3, -0.4, 0.5], [-0.7, 0.1, -0.2], [0.0, 0.0, -0.8], [0.6, 0.0, 0.0]];

    /// Gumerov & Duraiswami's eq. 15 as printed: R̃_n^m, sines at negative m.
    fn eq15(order: usize, [x, y, z]: [f64; 3]) -> impl Fn(usize, isize) -> f64 {
        let mut r = vec![vec![0.0; 2 * order + 1]; order];
        let at = move |m: isize| (m + order as isize) as usize;
        let r2 = x * x + y * y + z * z;
        r[0][at(0)] = 1.0;
        for n in 1..order {
            let m = n as isize;
            (r[n][at(m)], r[n][at(-m)]) = match n {
                1 => (-x / 2.0, y / 2.0),
                _ => {
                    let (c, s) = (r[n - 1][at(m - 1)], r[n - 1][at(1 - m)]);
                    (-(x * c + y * s) / (2 * n) as f64, (y * c - x * s) / (2 * n) as f64)
                }
            };
            for m in -(n as isize) + 1..n as isize {
                let a = m.unsigned_abs();
                r[n][at(m)] = if a + 1 == n {
                    -z * r[n - 1][at(m)]
                } else {
                    let sum = (2 * n - 1) as f64 * z * r[n - 1][at(m)] + r2 * r[n - 2][at(m)];
                    -sum / ((n - a) * (n + a)) as f64
                };
            }
        }
        move |n, m| r[n][at(m)]
    }

    /// √((2 − δ_{m0}) (n − m)! (n + m)!).
    fn weight(n: usize, m: usize) -> f64 {
        let factorial = |k: usize| (1..=k).map(|i| i as f64).product::<f64>();
        (if m == 0 { 1.0 } else { 2.0f64 } * factorial(n - m) * factorial(n + m)).sqrt()
    }

    #[test]
    fn the_basis_is_that_of_eq_15_but_for_the_weights() {
        let order = 20;
        let basis = Basis::new(order);
        for x in POINTS {
            let mut found = vec![0.0; order * order];
            basis.regular(order, x, &mut found);
            let paper = eq15(order, x);
            let r = x.iter().map(|c| c * c).sum::<f64>().sqrt();
            for n in 0..order {
                let sign = if n.is_multiple_of(2) { 1.0 } else { -1.0 };
                for m in 0..=n {
                    let (c, s) = (sign * paper(n, m as isize), -sign * paper(n, -(m as isize)));
                    let close = |a: f64, b: f64| (a - b).abs() < 1e-13 * r.powi(n as i32);
                    assert!(close(found[cosine(n, m)], weight(n, m) * c), "{n} {m}");
                    assert!(m == 0 || close(found[sine(n, m)], weight(n, m) * s), "{n} {m}");
                }
            }
        }
    }

    /// Degrees 0 to 3 as polynomials.
    #[test]
    fn low_degrees_are_the_polynomials_of_the_textbooks() {
        let [x, y, z] = POINTS[0];
        let (q, r2) = (3f64.sqrt(), x * x + y * y + z * z);
        let expected = [
            vec![1.0],
            vec![z, x, y],
            vec![(3.0 * z * z - r2) / 2.0, q * x * z, q * (x * x - y * y) / 2.0, q * y * z, q * x * y],
            vec![
                z * (5.0 * z * z - 3.0 * r2) / 2.0,
                (3.0f64 / 8.0).sqrt() * x * (5.0 * z * z - r2),
                15f64.sqrt() / 2.0 * z * (x * x - y * y),
                (5.0f64 / 8.0).sqrt() * x * (x * x - 3.0 * y * y),
                (3.0f64 / 8.0).sqrt() * y * (5.0 * z * z - r2),
                15f64.sqrt() * x * y * z,
                (5.0f64 / 8.0).sqrt() * y * (3.0 * x * x - y * y),
            ],
        ]
        .concat();
        let mut found = vec![0.0; 16];
        Basis::new(4).regular(4, [x, y, z], &mut found);
        for (f, e) in found.iter().zip(&expected) {
            assert!((f - e).abs() < 1e-15, "{found:?} {expected:?}");
        }
    }

    /// 1/|x − y| = Σ R(y) S(x) to rounding, and no entry above rⁿ, at the largest order.
    #[test]
    fn the_sum_over_the_basis_is_the_inverse_distance() {
        let order = super::super::MAX_ORDER;
        let basis = Basis::new(order);
        let (mut r, mut s) = (vec![0.0; order * order], vec![0.0; order * order]);
        for y in POINTS {
            for x in [[2.5, 0.5, -1.0], [0.0, 0.0, 3.0], [-1e3, 2e3, 1.0]] {
                basis.regular(order, y, &mut r);
                basis.singular(order, x, &mut s);
                let sum: f64 = r.iter().zip(&s).map(|(a, b)| a * b).sum();
                let d = (0..3).map(|a| (x[a] - y[a]).powi(2)).sum::<f64>().sqrt();
                assert!((sum * d - 1.0).abs() < 2e-15, "{x:?} {y:?}: {sum:e}");
                let length = y.iter().map(|c| c * c).sum::<f64>().sqrt();
                for n in 0..order {
                    let squares: f64 = r[n * n..(n + 1) * (n + 1)].iter().map(|v| v * v).sum();
                    assert!((squares.sqrt() / length.powi(n as i32) - 1.0).abs() < 1e-12, "{n}");
                }
            }
        }
    }
}
