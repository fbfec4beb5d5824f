//! Translations term by term, O(p⁴): the oracle of the fast translations, and a variant of its own.
//!
//! In complex form, H_n^m = √((n − m)! (n + m)!)·F_n^m for all |m| ≤ n (so H_n^{−m} = (−1)^m conj H_n^m; F as in
//! [`basis`](super::basis)), I = H/r^(2n+1), and with
//!
//! B(n, m; n', m') = √(C(n + m, n' + m') C(n − m, n' − m')),
//!
//! the addition theorem H_n^m(y + t) = Σ B(n, m; n', m') H_{n−n'}^{m−m'}(t) H_{n'}^{m'}(y) gives, for multipoles
//! M = Σ q H(y) and locals Σ L conj H(x):
//!
//! * M2M: M_n^m(parent) = Σ B(n, m; n', m') H_{n−n'}^{m−m'}(t) M_{n'}^{m'}, t the child from the parent;
//! * M2L: L_n^m = (−1)ⁿ Σ B(n + n', m + m'; n, m) I_{n+n'}^{m+m'}(t) conj M_{n'}^{m'}, t the target from the
//!   source;
//! * L2L: L_n^m(child) = Σ B(n', m'; n, m) conj H_{n'−n}^{m'−m}(t) L_{n'}^{m'}, t the child from the parent.
//!
//! These are eqs. 4 ff. of Yokota & Barba (2011), with their A_n^m = (−1)ⁿ/√((n − m)! (n + m)!) collected in B,
//! whose binomials stay far from overflow. Real and imaginary parts of H (m ≥ 1) times √2 are the entries of
//! a real row; H_n^0 is real.

use super::basis::{Basis, cosine, sine, triangle};
use super::shift::Shift;
use fmm_traits::Real;
use rustfft::num_complex::Complex;
use std::f64::consts::FRAC_1_SQRT_2;

/// Tables of the direct translations of one order.
#[derive(Clone, Debug)]
pub struct Direct<T> {
    order: usize,
    basis: Basis<T>,
    /// √C(n, k) in a triangle.
    binomials: Vec<T>,
}

/// Entry (n, m) of a real row in complex form, any |m| ≤ n.
fn complex<T: Real>(row: &[T], n: usize, m: isize) -> Complex<T> {
    let a = m.unsigned_abs();
    if a == 0 {
        return Complex::new(row[cosine(n, 0)], T::of(0.0));
    }
    let h = T::of(FRAC_1_SQRT_2);
    let plus = Complex::new(h * row[cosine(n, a)], h * row[sine(n, a)]);
    match m {
        m if m > 0 => plus,
        _ if a.is_multiple_of(2) => plus.conj(),
        _ => -plus.conj(),
    }
}

/// Adds the complex entry (n, m), m ≥ 0, to a real row.
fn add<T: Real>(row: &mut [T], n: usize, m: usize, value: Complex<T>) {
    if m == 0 {
        row[cosine(n, 0)] += value.re;
    } else {
        let root = T::of(2.0 * FRAC_1_SQRT_2);
        row[cosine(n, m)] += root * value.re;
        row[sine(n, m)] += root * value.im;
    }
}

impl<T: Real> Direct<T> {
    /// Tables for expansions of `order`.
    pub fn new(order: usize) -> Self {
        let twice = 2 * order;
        let mut exact = vec![0.0f64; triangle(2 * twice, 0)];
        for n in 0..2 * twice {
            for k in 0..=n {
                exact[triangle(n, k)] =
                    if k == 0 || k == n { 1.0 } else { exact[triangle(n - 1, k - 1)] + exact[triangle(n - 1, k)] };
            }
        }
        let binomials = exact.iter().map(|b| T::of(b.sqrt())).collect();
        Direct { order, basis: Basis::new(twice), binomials }
    }

    /// B(n, m; n', m').
    fn weight(&self, n: usize, m: isize, n1: usize, m1: isize) -> T {
        let place = |n: usize, m: isize| (n as isize + m) as usize;
        self.binomials[triangle(place(n, m), place(n1, m1))] * self.binomials[triangle(place(n, -m), place(n1, -m1))]
    }

    /// Multipole of a child → multipole of its parent.
    pub fn m2m(&self, shift: &Shift, from: &[T], to: &mut [T]) {
        let p = self.order;
        let mut h = vec![T::of(0.0); p * p];
        self.basis.regular(p, shift.offset.map(|x| T::of(x / shift.to_side)), &mut h);
        let ratio = powers::<T>(shift.from_side / shift.to_side, p);
        for (n, m) in entries(p) {
            let mut sum = Complex::new(T::of(0.0), T::of(0.0));
            for n1 in 0..=n {
                for m1 in orders_within(n1, m as isize, n - n1) {
                    let term = complex(&h, n - n1, m as isize - m1) * complex(from, n1, m1);
                    sum += term.scale(self.weight(n, m as isize, n1, m1) * ratio[n1]);
                }
            }
            add(to, n, m, sum);
        }
    }

    /// Multipole, up to order `shift.orders[0]`, → local, up to order `shift.orders[1]`.
    pub fn m2l(&self, shift: &Shift, from: &[T], to: &mut [T]) {
        let [p_from, p_to] = shift.orders;
        let p = p_from + p_to;
        // In units of the distance: I of a unit vector, and the boxes' sides as powers.
        let d = shift.distance();
        let mut s = vec![T::of(0.0); p * p];
        self.basis.regular(p, shift.offset.map(|x| T::of(x / d)), &mut s);
        let (a, b) = (powers::<T>(shift.from_side / d, p_from), powers::<T>(shift.to_side / d, p_to + 1));
        for (n, m) in entries(p_to) {
            let mut sum = Complex::new(T::of(0.0), T::of(0.0));
            for n1 in 0..p_from {
                for m1 in -(n1 as isize)..=n1 as isize {
                    let (nn, mm) = (n + n1, m as isize + m1);
                    let term = complex(&s, nn, mm) * complex(from, n1, m1).conj();
                    sum += term.scale(self.weight(nn, mm, n, m as isize) * a[n1]);
                }
            }
            let sign = T::of(if n.is_multiple_of(2) { 1.0 } else { -1.0 });
            add(to, n, m, sum.scale(sign * b[n + 1]));
        }
    }

    /// Local of a parent → local of its child.
    pub fn l2l(&self, shift: &Shift, from: &[T], to: &mut [T]) {
        let p = self.order;
        let mut h = vec![T::of(0.0); p * p];
        self.basis.regular(p, shift.offset.map(|x| T::of(x / shift.from_side)), &mut h);
        let ratio = powers::<T>(shift.to_side / shift.from_side, p + 1);
        for (n, m) in entries(p) {
            let mut sum = Complex::new(T::of(0.0), T::of(0.0));
            for n1 in n..p {
                for m1 in orders_within(n1, m as isize, n1 - n) {
                    let term = complex(&h, n1 - n, m1 - m as isize).conj() * complex(from, n1, m1);
                    sum += term.scale(self.weight(n1, m1, n, m as isize));
                }
            }
            add(to, n, m, sum.scale(ratio[n + 1]));
        }
    }
}

/// (n, m), 0 ≤ m ≤ n < p.
fn entries(p: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..p).flat_map(|n| (0..=n).map(move |m| (n, m)))
}

/// The |m1| ≤ n1 with |m − m1| ≤ reach.
fn orders_within(n1: usize, m: isize, reach: usize) -> std::ops::RangeInclusive<isize> {
    let (n1, reach) = (n1 as isize, reach as isize);
    (m - reach).max(-n1)..=(m + reach).min(n1)
}

/// x⁰ … x^(count − 1).
pub(crate) fn powers<T: Real>(x: f64, count: usize) -> Vec<T> {
    (0..count).map(|n| T::of(x.powi(n as i32))).collect()
}
