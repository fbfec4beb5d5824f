//! The field of a multipole as a polynomial, summed by Horner's rule: the fast M2P of low orders.
//!
//! S at x is R at the inverted point u = x/r², divided by r. The field of the moments M is therefore F(u)/r with the
//! polynomial F = Σ M R. F is a polynomial in the coordinates x, y, z of u and s = |u|². Because z² = s − x² − y², z
//! appears at most once per monomial.
//!
//! Each coefficient costs one multiply-add for the value and about two for value and gradient. No harmonic is stored.
//! That is less than the recursions of the basis need at low orders. Order p has
//!
//! T(p) + T(p − 1), T(p) = Σ_k t(p − 2k), t(n) = n(n + 1)/2,
//!
//! coefficients: 4, 20, 56, 120, 220 for p = 2, 4, 6, 8, 10. They grow faster than the harmonics, so at high orders
//! the recursions win. A monomial xⁱ yʲ zᵉ sᵏ comes only from harmonics of degree i + j + e + 2k, so a field of fewer
//! degrees uses a part of the same coefficients.
//!
//! Rounding: the monomials of degree n are up to (1 + √2)ⁿ times as large as their sum (Legendre polynomials off the
//! real line). Up to order [`MAX_ORDER`] the rounding error stays below the truncation error, in f32 too.
//!
//! Gradient: let G be the derivatives of F by u at fixed s, and F_s the derivative by s. Then
//! ∂_a(F/r) = (s G_a − u_a(F + 2 u·G + 2 s F_s))/r.

use super::basis::{Basis, cosine, sine};
use fmm_traits::lane::dot;
use fmm_traits::{Real, SimdLane};

/// Largest order for which polynomials are used. Order 16 has 816 coefficients for 256 harmonics.
pub const MAX_ORDER: usize = 16;

/// t(n): the number of pairs (i, j) with i + j < n.
const fn pairs(n: usize) -> usize {
    n * (n + 1) / 2
}

/// T(n): the number of triples (i, j, k) with i + j + 2k < n.
fn triples(n: usize) -> usize {
    (0..n.div_ceil(2)).map(|k| pairs(n - 2 * k)).sum()
}

/// Place of xⁱ yʲ sᵏ among the triples of `n`. They are sorted by k, then by j, then by i.
fn place(n: usize, [i, j, k]: [usize; 3]) -> usize {
    let before: usize = (0..k).map(|k| pairs(n - 2 * k)).sum();
    before + row_start(n - 2 * k, j) + i
}

/// Where row j of the pairs of `n` begins.
#[inline(always)]
const fn row_start(n: usize, j: usize) -> usize {
    j * (2 * n + 1 - j) / 2
}

/// Number of coefficients of the part of a polynomial of `order` without z.
pub fn even_len(order: usize) -> usize {
    triples(order)
}

/// Number of coefficients of a polynomial of `order`.
pub fn len(order: usize) -> usize {
    triples(order) + triples(order.saturating_sub(1))
}

/// The map from moments to polynomial coefficients, and the evaluation, for one order.
#[derive(Clone, Debug)]
pub struct Horner<T> {
    order: usize,
    /// (harmonic, monomial, coefficient): the non-zero entries of the map.
    entries: Vec<(u32, u32, T)>,
    /// Where the pairs of each k begin, for z⁰ and z¹.
    starts: [Vec<usize>; 2],
}

/// The monomials of an order, with their exponents i, j, k and e.
fn monomials(order: usize) -> Vec<[usize; 4]> {
    let mut all = vec![[0; 4]; len(order)];
    for e in 0..order.min(2) {
        let n = order - e;
        let first = if e == 0 { 0 } else { triples(order) };
        for k in 0..n.div_ceil(2) {
            for j in 0..n - 2 * k {
                (0..n - 2 * k - j).for_each(|i| all[first + place(n, [i, j, k])] = [i, j, k, e]);
            }
        }
    }
    all
}

impl<T: Real> Horner<T> {
    /// The map for multipoles of `order`.
    pub fn new(order: usize) -> Self {
        let (all, basis) = (monomials(order), Basis::<f64>::new(order));
        let at = |[i, j, k, e]: [usize; 4]| {
            if e == 0 { place(order, [i, j, k]) } else { triples(order) + place(order - 1, [i, j, k]) }
        };
        // Adds factor·(powers of x, y, s and z)·from to `to`. Degrees stay below the order, since harmonics are made
        // degree by degree.
        let product = |from: &[f64], factor: f64, [x, y, s, z]: [usize; 4], to: &mut [f64]| {
            for (&[i, j, k, e], &c) in all.iter().zip(from).filter(|(_, c)| **c != 0.0) {
                let (i, j, k, c) = (i + x, j + y, k + s, factor * c);
                if e + z < 2 {
                    to[at([i, j, k, e + z])] += c;
                } else {
                    to[at([i, j, k + 1, 0])] += c;
                    to[at([i + 2, j, k, 0])] -= c;
                    to[at([i, j + 2, k, 0])] -= c;
                }
            }
        };
        let [x, y, s, z] = std::array::from_fn(|a| std::array::from_fn(|b| usize::from(a == b)));
        let mut rows = vec![vec![0.0; all.len()]; order * order];
        if let Some(first) = rows.first_mut() {
            first[0] = 1.0;
        }
        for n in 1..order {
            let make = |rows: &mut Vec<Vec<f64>>, to: usize, terms: &[(usize, f64, [usize; 4])]| {
                let mut row = vec![0.0; all.len()];
                terms.iter().for_each(|&(from, factor, by)| product(&rows[from], factor, by, &mut row));
                rows[to] = row;
            };
            for m in 0..n {
                let [a, b] = basis.coefficients(n, m);
                let two = usize::from(m + 1 < n);
                for place in [cosine, sine].into_iter().take(if m > 0 { 2 } else { 1 }) {
                    let before = [(place(n - 1, m), a, z), (if two > 0 { place(n - 2, m) } else { 0 }, -b, s)];
                    make(&mut rows, place(n, m), &before[..1 + two]);
                }
            }
            let [d, _] = basis.coefficients(n, n);
            let (cos, sin) = (cosine(n - 1, n - 1), (n > 1).then(|| sine(n - 1, n - 1)));
            let with = |first, by, second: Option<(usize, f64, [usize; 4])>| -> Vec<_> {
                std::iter::once((first, d, by)).chain(second).collect()
            };
            make(&mut rows, cosine(n, n), &with(cos, x, sin.map(|sin| (sin, -d, y))));
            make(&mut rows, sine(n, n), &with(cos, y, sin.map(|sin| (sin, d, x))));
        }
        let entries = rows.iter().enumerate().flat_map(|(h, row)| {
            row.iter().enumerate().filter(|(_, c)| **c != 0.0).map(move |(i, &c)| (h as u32, i as u32, T::of(c)))
        });
        let planes = |n: usize| (0..n.div_ceil(2)).map(move |k| place(n, [0, 0, k]));
        let odd = planes(order.saturating_sub(1)).map(|start| triples(order) + start);
        let starts = [planes(order).collect(), odd.collect()];
        Horner { order, entries: entries.collect(), starts }
    }

    /// The map from moments to coefficients: (harmonic, coefficient, factor). Coefficients are sorted by the power of z,
    /// then of s, then of y, then of x, with T(p) of them for z⁰.
    pub fn entries(&self) -> &[(u32, u32, T)] {
        &self.entries
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let starts: usize = self.starts.iter().map(|s| size_of_val(&s[..])).sum();
        (size_of_val(&self.entries[..]) + starts) as u64
    }

    /// Writes the polynomial coefficients of the moments `from` to `to` ([`len`] numbers).
    pub fn coefficients(&self, from: &[T], to: &mut [T]) {
        to.fill(T::default());
        for &(h, i, c) in &self.entries {
            to[i as usize] += c * from[h as usize];
        }
    }

    /// The potential (K = 1) or potential and gradient (K = 4) at x of a multipole with `coefficients`, from its first
    /// `degrees` degrees. x must not be 0, and r² must be in the range of the numbers.
    #[inline(always)]
    pub fn field<V: SimdLane<Scalar = T>, const K: usize>(
        &self,
        coefficients: &[T],
        degrees: usize,
        x: [V; 3],
    ) -> [V; K] {
        const { assert!(K == 1 || K == 4) };
        let p = self.order;
        let inverse = dot(&x, &x).rsqrt();
        let s = inverse * inverse;
        let u = [x[0] * s, x[1] * s, x[2] * s];
        let mut even = Sum::<V, K>::new(coefficients, [u[0], u[1], s]);
        let mut odd = Sum::<V, K>::new(coefficients, [u[0], u[1], s]);
        even.planes(&self.starts[0], p, degrees);
        odd.planes(&self.starts[1], p - 1, degrees - 1);
        let value = u[2].mul_add(odd.value, even.value);
        let mut values = [value * inverse; K];
        if K == 4 {
            let by_s = u[2].mul_add(odd.by_s, even.by_s) * s;
            let g = [u[2].mul_add(odd.by_x, even.by_x), u[2].mul_add(odd.by_y, even.by_y), odd.value];
            let twice = dot(&u, &g) + by_s;
            let radial = (twice + twice) + value;
            for a in 0..3 {
                values[1 + a] = (s * g[a] - u[a] * radial) * inverse;
            }
        }
        values
    }
}

/// A running sum Σ c xⁱ yʲ sᵏ and, if K > 1, its derivatives by x, y and s, by Horner's rule.
struct Sum<'a, V: SimdLane, const K: usize> {
    coefficients: &'a [V::Scalar],
    at: [V; 3],
    value: V,
    by_x: V,
    by_y: V,
    by_s: V,
}

impl<'a, V: SimdLane, const K: usize> Sum<'a, V, K> {
    #[inline(always)]
    fn new(coefficients: &'a [V::Scalar], at: [V; 3]) -> Self {
        let zero = V::splat(0.0);
        Sum { coefficients, at, value: zero, by_x: zero, by_y: zero, by_s: zero }
    }

    /// One step in s: multiplies the sum by s and adds a plane, given by its value and its derivatives by x and y.
    #[inline(always)]
    fn step(&mut self, [value, by_x, by_y]: [V; 3]) {
        let s = self.at[2];
        if K > 1 {
            self.by_s = self.by_s.mul_add(s, self.value);
            self.by_x = self.by_x.mul_add(s, by_x);
            self.by_y = self.by_y.mul_add(s, by_y);
        }
        self.value = self.value.mul_add(s, value);
    }

    /// One step in y: multiplies the plane by y and adds a row, given by its value and its derivative by x.
    #[inline(always)]
    fn up(&self, [value, by_x, by_y]: &mut [V; 3], row: [V; 2]) {
        let y = self.at[1];
        if K > 1 {
            *by_y = by_y.mul_add(y, *value);
            *by_x = by_x.mul_add(y, row[1]);
        }
        *value = value.mul_add(y, row[0]);
    }

    /// Value and derivative by x of a row of coefficients.
    #[inline(always)]
    fn row(&self, row: &[V::Scalar]) -> [V; 2] {
        let (x, zero) = (self.at[0], V::splat(0.0));
        let [rest @ .., last] = row else { return [zero; 2] };
        let [rest @ .., c] = rest else { return [V::broadcast(*last), zero] };
        let mut by_x = V::broadcast(*last);
        let mut value = by_x.mul_add(x, V::broadcast(*c));
        for c in rest.iter().rev() {
            if K > 1 {
                by_x = by_x.mul_add(x, value);
            }
            value = value.mul_add(x, V::broadcast(*c));
        }
        [value, by_x]
    }

    /// Adds all planes of the first `degrees` degrees. Plane k of the full polynomial of `n` degrees begins at
    /// `starts[k]`.
    #[inline(always)]
    fn planes(&mut self, starts: &[usize], n: usize, degrees: usize) {
        for k in (0..degrees.div_ceil(2)).rev() {
            self.plane(starts[k], n - 2 * k, degrees - 2 * k);
        }
    }

    /// Adds one plane. It begins at `start` and has rows of n, n − 1, … 1 coefficients; a plane cut to `len` degrees
    /// uses the first `len`, `len` − 1, … 1 coefficients of the first `len` rows. Short rows are unrolled, because a
    /// loop would cost as much as its body.
    #[inline(always)]
    fn plane(&mut self, start: usize, n: usize, len: usize) {
        let mut plane = [V::splat(0.0); 3];
        let mut from = start + row_start(n, len);
        macro_rules! rows {
            ($($length:literal)*) => {
                'rows: {
                    $(if len < $length {
                        break 'rows;
                    }
                    from -= n - len + $length;
                    self.up(&mut plane, self.row(&self.coefficients[from..from + $length]));)*
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8);
        for length in 9..=len {
            from -= n - len + length;
            self.up(&mut plane, self.row(&self.coefficients[from..from + length]));
        }
        self.step(plane);
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient::Gradient;
    use super::*;

    const POINTS: [[f64; 3]; 4] = [[1.1, -0.9, 1.4], [-0.4, 1.3, 0.1], [0.0, 0.0, 2.0], [-3.0, 0.2, -0.7]];

    #[test]
    fn a_polynomial_has_as_many_coefficients_as_the_header_says() {
        assert_eq!([1, 2, 4, 6, 8, 10].map(len), [1, 4, 20, 56, 120, 220]);
        for order in 1..=MAX_ORDER {
            let all = monomials(order);
            let degree = |[i, j, k, e]: [usize; 4]| i + j + 2 * k + e;
            assert!(all.iter().all(|&m| degree(m) < order), "{all:?}");
            let different: std::collections::HashSet<_> = all.iter().collect();
            assert_eq!(different.len(), len(order));
        }
    }

    /// Potential and gradient agree with the harmonics, with all degrees and with fewer.
    #[test]
    fn fields_are_those_of_the_basis() {
        for order in 1..=MAX_ORDER {
            let horner = Horner::<f64>::new(order);
            let row: Vec<f64> = (0..order * order).map(|i| (1.3 * i as f64 + 0.2).cos()).collect();
            let mut coefficients = vec![0.0; len(order)];
            horner.coefficients(&row, &mut coefficients);
            for degrees in 1..=order {
                let (basis, gradient) = (Basis::new(degrees + 1), Gradient::<f64>::new(degrees + 1));
                let row = &row[..degrees * degrees];
                for x in POINTS {
                    let mut s = vec![0.0; (degrees + 1).pow(2)];
                    basis.singular(degrees + 1, x, &mut s);
                    let sum = |row: &[f64]| row.iter().zip(&s).map(|(a, b)| a * b).sum::<f64>();
                    let found = horner.field::<f64, 4>(&coefficients, degrees, x);
                    let [alone] = horner.field::<f64, 1>(&coefficients, degrees, x);
                    let mut expected = vec![sum(row)];
                    for axis in 0..3 {
                        let mut derived = vec![0.0; (degrees + 1).pow(2)];
                        gradient.raise(axis, degrees + 1, -1.0, row, &mut derived);
                        expected.push(sum(&derived));
                    }
                    for (f, e) in found.iter().zip(&expected) {
                        assert!((f - e).abs() < 1e-12 * (1.0 + e.abs()), "{order} {degrees} {x:?}: {f} {e}");
                    }
                    assert!((alone - expected[0]).abs() < 1e-12 * (1.0 + alone.abs()));
                }
            }
        }
    }

    /// Rounding in f32 is far below the promise of f32 plans, for multipoles of sources throughout a box of side 1.
    #[test]
    fn coefficients_in_f32_do_not_grow_beyond_its_digits() {
        for order in [8, 12, MAX_ORDER] {
            let (wide, single) = (Horner::<f64>::new(order), Horner::<f32>::new(order));
            let degree = |i: usize| (i as f64).sqrt().floor();
            let row: Vec<f64> =
                (0..order * order).map(|i| 0.7f64.powf(degree(i)) * (1.3 * i as f64 + 0.2).cos()).collect();
            let row32: Vec<f32> = row.iter().map(|&x| x as f32).collect();
            let (mut a, mut b) = (vec![0.0; len(order)], vec![0.0; len(order)]);
            wide.coefficients(&row, &mut a);
            single.coefficients(&row32, &mut b);
            for x in POINTS {
                let exact = wide.field::<f64, 4>(&a, order, x);
                let found = single.field::<f32, 4>(&b, order, x.map(|x| x as f32));
                let size = exact.iter().map(|e| e.abs()).fold(0.0, f64::max);
                for (f, e) in found.iter().zip(exact) {
                    assert!((f64::from(*f) - e).abs() < 2e-6 * size, "{order} {x:?}: {f} {e}");
                }
            }
        }
    }
}
