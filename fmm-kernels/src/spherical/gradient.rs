//! Derivatives of the basis, as sparse matrices between the coefficients of neighbouring degrees.
//!
//! From ∂_z F_n^m = F_{n−1}^m, (∂_x − i∂_y) F_n^m = F_{n−1}^{m−1} and (∂_x + i∂_y) F_n^m = −F_{n−1}^{m+1} (F as in
//! [`basis`](super::basis)) follow matrices A^x, A^y, A^z with
//!
//! ∂_a R_n = A^a R_{n−1}, and, by ∇_x = −∇_y of Σ R(y) S(x) = 1/|x − y|, ∂_a S_{n−1} = −(A^a)ᵀ S_n.
//!
//! One set of matrices therefore has four uses: derivatives of a local, ∇ΣL R: (A^a)ᵀL; derivatives of a multipole,
//! ∇ΣM S: −A^a M; the multipole of a dipole, v·∇R: A R; and the local of a dipole, v·∇S: −Aᵀ S. Gumerov & Duraiswami
//! (2008), §2.3, also take gradients by coefficients instead of differences.

use super::basis::{cosine, sine};
use fmm_traits::Real;

/// The matrix entry `value` at (`row`, `column`). The row belongs to a degree n, the column to degree n − 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<T> {
    pub row: u32,
    pub column: u32,
    pub value: T,
}

/// The matrices A^x, A^y, A^z up to an order, with entries by rising degree.
#[derive(Clone, Debug)]
pub struct Gradient<T> {
    axes: [Vec<Entry<T>>; 3],
    /// `ends[axis][n]`: number of entries of the degrees up to n.
    ends: [Vec<usize>; 3],
}

impl<T: Real> Gradient<T> {
    /// Matrices whose rows have the degrees below `order`.
    pub fn new(order: usize) -> Self {
        let mut g = Gradient { axes: Default::default(), ends: Default::default() };
        for n in 0..order {
            for (axis, entries) in degree(n).into_iter().enumerate() {
                g.axes[axis].extend(entries.iter().map(|e| Entry {
                    row: e.row,
                    column: e.column,
                    value: T::of(e.value),
                }));
                g.ends[axis].push(g.axes[axis].len());
            }
        }
        g
    }

    fn entries(&self, axis: usize, order: usize) -> &[Entry<T>] {
        let end = order.checked_sub(1).map_or(0, |n| self.ends[axis][n]);
        &self.axes[axis][..end]
    }

    /// `to` += factor·A^axis·`from`: `from` of order − 1, `to` of `order`.
    pub fn raise(&self, axis: usize, order: usize, factor: T, from: &[T], to: &mut [T]) {
        for e in self.entries(axis, order) {
            to[e.row as usize] += factor * e.value * from[e.column as usize];
        }
    }

    /// `to` += factor·(A^axis)ᵀ·`from`: `from` of `order`, `to` of order − 1.
    pub fn lower(&self, axis: usize, order: usize, factor: T, from: &[T], to: &mut [T]) {
        for e in self.entries(axis, order) {
            to[e.column as usize] += factor * e.value * from[e.row as usize];
        }
    }
}

/// The entries of degree `n` of the three matrices.
pub(crate) fn degree(n: usize) -> [Vec<Entry<f64>>; 3] {
    let [mut x, mut y, mut z]: [Vec<Entry<f64>>; 3] = Default::default();
    let put = |to: &mut Vec<Entry<f64>>, row: usize, column: usize, value: f64| {
        to.push(Entry { row: row as u32, column: column as u32, value });
    };
    let norm = |m: usize| if m == 0 { 1.0 } else { 2.0 };
    for m in 0..=n {
        let (sum, difference) = ((n + m) as f64, (n - m) as f64);
        if m < n {
            let value = (sum * difference).sqrt();
            put(&mut z, cosine(n, m), cosine(n - 1, m), value);
            if m > 0 {
                put(&mut z, sine(n, m), sine(n - 1, m), value);
            }
        }
        // Towards m − 1: F_n^m → F_{n−1}^{m−1}.
        if m > 0 {
            let value = 0.5 * (norm(m) / norm(m - 1) * sum * (sum - 1.0)).sqrt();
            put(&mut x, cosine(n, m), cosine(n - 1, m - 1), value);
            put(&mut y, sine(n, m), cosine(n - 1, m - 1), value);
            if m > 1 {
                put(&mut x, sine(n, m), sine(n - 1, m - 1), value);
                put(&mut y, cosine(n, m), sine(n - 1, m - 1), -value);
            }
        }
        // Towards m + 1; at m = 0 both directions lead there.
        if m + 2 <= n {
            let half = if m == 0 { 1.0 } else { 0.5 };
            let value = half * (norm(m) / norm(m + 1) * difference * (difference - 1.0)).sqrt();
            put(&mut x, cosine(n, m), cosine(n - 1, m + 1), -value);
            put(&mut y, cosine(n, m), sine(n - 1, m + 1), -value);
            if m > 0 {
                put(&mut x, sine(n, m), sine(n - 1, m + 1), -value);
                put(&mut y, sine(n, m), cosine(n - 1, m + 1), value);
            }
        }
    }
    [x, y, z]
}

#[cfg(test)]
mod tests {
    use super::super::basis::Basis;
    use super::*;

    const ORDER: usize = 12;

    /// Sixth-order central differences of all entries along `axis`.
    fn differences(f: impl Fn([f64; 3]) -> Vec<f64>, at: [f64; 3], axis: usize) -> Vec<f64> {
        let h = 0.004;
        let mut sum = vec![0.0; f(at).len()];
        for (k, w) in [(1.0, 0.75), (2.0, -0.15), (3.0, 1.0 / 60.0)] {
            for sign in [1.0, -1.0] {
                let mut x = at;
                x[axis] += sign * k * h;
                sum.iter_mut().zip(f(x)).for_each(|(s, v)| *s += sign * w / h * v);
            }
        }
        sum
    }

    #[test]
    fn derivatives_of_both_bases_are_those_of_differences() {
        let (basis, gradient) = (Basis::new(ORDER), Gradient::new(ORDER));
        let regular = |x| {
            let mut r = vec![0.0; ORDER * ORDER];
            basis.regular(ORDER, x, &mut r);
            r
        };
        let singular = |x| {
            let mut s = vec![0.0; ORDER * ORDER];
            basis.singular(ORDER, x, &mut s);
            s
        };
        for axis in 0..3 {
            let mut found = vec![0.0; ORDER * ORDER];
            gradient.raise(axis, ORDER, 1.0, &regular([0.3, -0.5, 0.4]), &mut found);
            for (f, e) in found.iter().zip(differences(regular, [0.3, -0.5, 0.4], axis)) {
                assert!((f - e).abs() < 1e-9, "R, axis {axis}: {f} {e}");
            }
            let at = [1.1, -0.9, 1.4];
            let mut found = vec![0.0; ORDER * ORDER];
            gradient.lower(axis, ORDER, -1.0, &singular(at), &mut found);
            for (f, e) in found.iter().zip(differences(singular, at, axis)).take((ORDER - 1) * (ORDER - 1)) {
                assert!((f - e).abs() < 1e-9, "S, axis {axis}: {f} {e}");
            }
        }
    }

    /// ΔR = Σ_a A^a A^a R = 0 as matrices, and Σ_a A^a (A^a)ᵀ = n(2n − 1) on degree n.
    #[test]
    fn every_entry_is_harmonic() {
        let gradient = Gradient::<f64>::new(ORDER);
        let size = ORDER * ORDER;
        for column in 0..size {
            let mut unit = vec![0.0; size];
            unit[column] = 1.0;
            let (mut laplacian, mut round) = (vec![0.0; size], vec![0.0; size]);
            for axis in 0..3 {
                let (mut once, mut down) = (vec![0.0; size], vec![0.0; size]);
                gradient.raise(axis, ORDER, 1.0, &unit, &mut once);
                gradient.raise(axis, ORDER, 1.0, &once, &mut laplacian);
                gradient.lower(axis, ORDER, 1.0, &unit, &mut down);
                gradient.raise(axis, ORDER, 1.0, &down, &mut round);
            }
            assert!(laplacian.iter().all(|v| v.abs() < 1e-12), "{column}");
            let n = column.isqrt();
            let expected = |i: usize| if i == column { (n * (2 * n).saturating_sub(1)) as f64 } else { 0.0 };
            assert!(round.iter().enumerate().all(|(i, v)| (v - expected(i)).abs() < 1e-11), "{column}");
        }
    }
}
