//! Rotations of the axes, degree by degree.
//!
//! A rotation Q of space takes R_n(x) to R_n(Qx) = D_n R_n(x), D_n an orthogonal matrix of 2n + 1 rows. The recursion
//! used here comes from the derivatives. Apply ∂_a to both sides: D_n A_n^a R_{n−1}(x) = Σ_b Q_{ba} A_n^b
//! R_{n−1}(Qx), so D_n A_n^a = Σ_b Q_{ba} A_n^b D_{n−1} with the matrices of [`gradient`](super::gradient). Multiply
//! by (A_n^a)ᵀ, add over a, and use Σ_a A_n^a (A_n^a)ᵀ = n(2n − 1):
//!
//! D_n = 1/(n(2n − 1)) Σ_{a,b} Q_{ba} A_n^b D_{n−1} (A_n^a)ᵀ.
//!
//! Stacked, the A_n^a/√(n(2n − 1)) are an isometry V and D_n = Vᵀ(Q ⊗ D_{n−1})V: an error of D_{n−1} is handed on with
//! a norm of at most 1, and rounding grows no faster than linearly in n.
//!
//! Two rotations are enough. The rotation about z by α rotates each pair (cosine, sine): [`Phases`]. The rotation
//! about y by β keeps the sign of y, so it does not mix sines and cosines: [`Rotation`].

use super::basis::{column, cosine, sine, triangle};
use super::gradient::degree;
use fmm_traits::{Real, SimdLane};

/// Sums computed side by side, so that no sum waits for its own previous product.
const SUMS_AT_ONCE: usize = 4;

/// The matrices D_n, n < order, of the rotation about y that takes (sin β, 0, cos β) to the z axis.
#[derive(Clone, Debug)]
pub struct Rotation<T> {
    /// Degree by degree: (n + 1)² numbers among the cosines, n² among the sines, row by row.
    blocks: Vec<T>,
}

impl<T: Real> Rotation<T> {
    /// The matrices of `order` degrees, computed in f64.
    pub fn new(order: usize, cos_beta: f64, sin_beta: f64) -> Self {
        let (c, s) = (cos_beta, sin_beta);
        let q = [[c, 0.0, -s], [0.0, 1.0, 0.0], [s, 0.0, c]];
        let mut rotation = Rotation { blocks: Vec::new() };
        let mut last = vec![1.0];
        for n in 0..order {
            if n > 0 {
                last = next(n, &q, &last);
            }
            let width = 2 * n + 1;
            for i in 0..=n {
                rotation.blocks.extend(last[i * width..i * width + n + 1].iter().map(|&x| T::of(x)));
            }
            for i in n + 1..width {
                rotation.blocks.extend(last[i * width + n + 1..(i + 1) * width].iter().map(|&x| T::of(x)));
            }
        }
        rotation
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len() * size_of::<T>()) as u64
    }

    /// The block of D_n for the cosines (`first` = 0) or the sines (`first` = 1): rows and columns m = `first` … n,
    /// row by row.
    pub fn block(&self, n: usize, first: usize) -> &[T] {
        let before = n * (2 * n * n + 1) / 3 + first * (n + 1).pow(2);
        &self.blocks[before..][..(n + 1 - first).pow(2)]
    }

    /// `to` ← D·`from` for the degrees below `order`. Only results with m < `limit` are written, sorted by m as
    /// [`column()`] says for order `width`.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, order: usize, limit: usize, width: usize, from: &[V], to: &mut [V]) {
        self.each_block(order, |block, n, first| {
            let size = n + 1 - first;
            let x = &from[if first == 0 { cosine(n, 0) } else { sine(n, 1) }..][..size];
            let rows = size.min(limit.saturating_sub(first));
            let mut put = |i: usize, sums: &[V]| {
                for (k, &sum) in sums.iter().enumerate() {
                    to[place(width, n, i + k, first)] = sum;
                }
            };
            let mut i = 0;
            while i + SUMS_AT_ONCE <= rows {
                put(i, &products::<V, SUMS_AT_ONCE>(&block[i * size..], x));
                i += SUMS_AT_ONCE;
            }
            match rows - i {
                3 => put(i, &products::<V, 3>(&block[i * size..], x)),
                2 => put(i, &products::<V, 2>(&block[i * size..], x)),
                1 => put(i, &products::<V, 1>(&block[i * size..], x)),
                _ => {}
            }
        });
    }

    /// `to` ← Dᵀ·`from` for the degrees below `order`: the rotation back. `from` is sorted by m and has only m <
    /// `limit`.
    #[inline(always)]
    pub fn apply_back<V: SimdLane<Scalar = T>>(
        &self,
        order: usize,
        limit: usize,
        width: usize,
        from: &[V],
        to: &mut [V],
    ) {
        self.each_block(order, |block, n, first| {
            let size = n + 1 - first;
            let rows = size.min(limit.saturating_sub(first));
            let x = |j: usize| from[place(width, n, j, first)];
            let y = &mut to[if first == 0 { cosine(n, 0) } else { sine(n, 1) }..][..size];
            let mut i = 0;
            while i + SUMS_AT_ONCE <= size {
                y[i..i + SUMS_AT_ONCE].copy_from_slice(&transposed::<V, SUMS_AT_ONCE>(&block[i..], size, rows, x));
                i += SUMS_AT_ONCE;
            }
            match size - i {
                3 => y[i..].copy_from_slice(&transposed::<V, 3>(&block[i..], size, rows, x)),
                2 => y[i..].copy_from_slice(&transposed::<V, 2>(&block[i..], size, rows, x)),
                1 => y[i..].copy_from_slice(&transposed::<V, 1>(&block[i..], size, rows, x)),
                _ => {}
            }
        });
    }

    /// Calls `f(block, n, first)` for the cosines (`first` = 0) and the sines (1) of each degree n. The block has
    /// rows and columns for m = first … n.
    #[inline(always)]
    fn each_block(&self, order: usize, mut f: impl FnMut(&[T], usize, usize)) {
        let mut rest = &self.blocks[..];
        for n in 0..order {
            for first in 0..2 {
                let size = n + 1 - first;
                let (block, more) = rest.split_at(size * size);
                f(block, n, first);
                rest = more;
            }
        }
    }
}

/// Place of entry i of a block of degree n (m = i + first) in a row sorted by m.
#[inline(always)]
const fn place(width: usize, n: usize, i: usize, first: usize) -> usize {
    let m = i + first;
    column(width, m) + first * (width - m) + n - m
}

/// The products of `K` rows with `x`.
#[inline(always)]
fn products<V: SimdLane, const K: usize>(rows: &[V::Scalar], x: &[V]) -> [V; K] {
    let size = x.len();
    let rows: [&[V::Scalar]; K] = std::array::from_fn(|k| &rows[k * size..][..size]);
    let mut sums = [V::splat(0.0); K];
    for j in 0..size {
        for k in 0..K {
            sums[k] = V::broadcast(rows[k][j]).mul_add(x[j], sums[k]);
        }
    }
    sums
}

/// The products of `K` columns with x(0) … x(rows − 1). The rows of `block` are `size` numbers apart.
#[inline(always)]
fn transposed<V: SimdLane, const K: usize>(
    block: &[V::Scalar],
    size: usize,
    rows: usize,
    x: impl Fn(usize) -> V,
) -> [V; K] {
    let mut sums = [V::splat(0.0); K];
    for j in 0..rows {
        let (x, row) = (x(j), &block[j * size..][..K]);
        for k in 0..K {
            sums[k] = V::broadcast(row[k]).mul_add(x, sums[k]);
        }
    }
    sums
}

/// D_n from `last` = D_{n−1} and the rotation `q` (formula in the module header).
fn next(n: usize, q: &[[f64; 3]; 3], last: &[f64]) -> Vec<f64> {
    let width = 2 * n + 1;
    let mut d = vec![0.0; width * width];
    let a = degree(n);
    let local = |row: u32, column: u32| (row as usize - n * n, column as usize - (n - 1) * (n - 1));
    for (b, left) in a.iter().enumerate() {
        for (c, right) in a.iter().enumerate().filter(|&(c, _)| q[b][c] != 0.0) {
            let factor = q[b][c] / (n * (2 * n - 1)) as f64;
            for l in left {
                let (i, k) = local(l.row, l.column);
                for r in right {
                    let (j, m) = local(r.row, r.column);
                    d[i * width + j] += factor * l.value * r.value * last[k * (width - 2) + m];
                }
            }
        }
    }
    d
}

/// The matrices X_n, n < `order`, of the rotation A by 90° about x that takes the y axis to the z axis: 2n + 1 rows of
/// 2n + 1 numbers (the cosines m = 0 … n, then the sines m = 1 … n). A rotation about y is one about z, seen by A:
/// D_n(β about y) = X_nᵀ D_n(β about z) X_n.
///
/// A keeps x, and what was even in z it makes even in y. So only entries between functions of equal parity in x, where
/// the parity in z of the one is the parity in y of the other, are not zero: at most n² + n + 1 for each degree.
pub fn exchange(order: usize) -> Vec<Vec<f64>> {
    let q = [[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]];
    let mut all: Vec<Vec<f64>> = Vec::new();
    for n in 0..order {
        let mut matrix = all.last().map_or_else(|| vec![1.0], |last| next(n, &q, last));
        // Parities of a function in x, y and z.
        let parities = |i: usize| {
            let (m, sine) = if i > n { (i - n, 1) } else { (i, 0) };
            [(m + sine) % 2, sine, (n + m) % 2]
        };
        let width = 2 * n + 1;
        for (i, row) in matrix.chunks_exact_mut(width).enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                let ([x, y, _], [from_x, _, from_z]) = (parities(i), parities(j));
                if [x, y] != [from_x, from_z] {
                    *entry = 0.0;
                }
            }
        }
        all.push(matrix);
    }
    all
}

/// Cosines and sines of 0, α, 2α, …: `count` multiples of the angle α with this cosine and sine.
pub fn multiples([c, s]: [f64; 2], count: usize) -> Vec<[f64; 2]> {
    std::iter::successors(Some([1.0, 0.0]), |[x, y]| Some([x * c - y * s, y * c + x * s])).take(count).collect()
}

/// The rotation about z that takes the direction (cos α, sin α, ·) into the half plane y = 0, x ≥ 0, with a factor
/// for each degree. For directions below the plane z = 0 it includes the reflection z → −z, a factor (−1)^(n+m) (eq.
/// 34 of Gumerov & Duraiswami), so that β ≤ π/2 is enough for all directions.
#[derive(Clone, Debug)]
pub struct Phases<T> {
    /// Cosine and sine of mα with all factors, for each (n, m) of a triangle.
    turns: Vec<[T; 2]>,
}

impl<T> Phases<T> {
    /// Cosine and sine of mα with all factors, for each (n, m) of a triangle.
    pub fn turns(&self) -> &[[T; 2]] {
        &self.turns
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.turns.len() * size_of::<[T; 2]>()) as u64
    }
}

impl<T: Real> Phases<T> {
    /// The phases of as many degrees as there are `factors`.
    pub fn new(factors: &[f64], cos_alpha: f64, sin_alpha: f64, reflected: bool) -> Self {
        let angles = multiples([cos_alpha, sin_alpha], factors.len());
        let turn = |n: usize, m: usize| {
            let factor = if reflected && (n + m) % 2 == 1 { -factors[n] } else { factors[n] };
            angles[m].map(|x| T::of(factor * x))
        };
        Phases {
            turns: (0..factors.len()).flat_map(|n| (0..=n).map(move |m| (n, m))).map(|(n, m)| turn(n, m)).collect(),
        }
    }

    /// `to` ← rotated `from`.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        for n in 0..order {
            let turns = &self.turns[triangle(n, 0)..][..n + 1];
            let (from, to) = (&from[n * n..][..2 * n + 1], &mut to[n * n..][..2 * n + 1]);
            to[0] = V::broadcast(turns[0][0]) * from[0];
            for m in 1..=n {
                let [c, s] = turns[m].map(V::broadcast);
                let (x, y) = (from[m], from[n + m]);
                to[m] = c.mul_add(x, s * y);
                to[n + m] = c.mul_add(y, -(s * x));
            }
        }
    }

    /// `to` += `from` rotated back.
    #[inline(always)]
    pub fn add_back<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        for n in 0..order {
            let turns = &self.turns[triangle(n, 0)..][..n + 1];
            let (from, to) = (&from[n * n..][..2 * n + 1], &mut to[n * n..][..2 * n + 1]);
            to[0] = V::broadcast(turns[0][0]).mul_add(from[0], to[0]);
            for m in 1..=n {
                let [c, s] = turns[m].map(V::broadcast);
                let (x, y) = (from[m], from[n + m]);
                to[m] = c.mul_add(x, to[m] - s * y);
                to[n + m] = c.mul_add(y, s.mul_add(x, to[n + m]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_ORDER;
    use super::super::basis::Basis;
    use super::*;

    /// A row sorted by m, degree by degree.
    fn by_degree(order: usize, row: &[f64]) -> Vec<f64> {
        let mut to = vec![0.0; order * order];
        for n in 0..order {
            for m in 0..=n {
                to[cosine(n, m)] = row[place(order, n, m, 0)];
                if m > 0 {
                    to[sine(n, m)] = row[place(order, n, m - 1, 1)];
                }
            }
        }
        to
    }

    fn dense(order: usize, beta: f64) -> Vec<Vec<f64>> {
        let rotation = Rotation::<f64>::new(order, beta.cos(), beta.sin());
        let size = order * order;
        let column = |j: usize| {
            let (mut unit, mut to) = (vec![0.0; size], vec![0.0; size]);
            unit[j] = 1.0;
            rotation.apply(order, order, order, &unit, &mut to);
            by_degree(order, &to)
        };
        (0..size).map(column).collect()
    }

    #[test]
    fn the_matrices_are_orthogonal_to_rounding() {
        for beta in [0.0, 1e-9, 0.3, 0.9553166181245093, 1.5, std::f64::consts::FRAC_PI_2] {
            let columns = dense(MAX_ORDER, beta);
            for n in 0..MAX_ORDER {
                let degree = n * n..(n + 1) * (n + 1);
                for i in degree.clone() {
                    for j in degree.clone() {
                        let dot: f64 = degree.clone().map(|k| columns[i][k] * columns[j][k]).sum();
                        let expected = if i == j { 1.0 } else { 0.0 };
                        assert!((dot - expected).abs() < 2e-15 * (n + 4) as f64, "{beta} {n}: {dot}");
                    }
                }
            }
        }
    }

    /// Rotations about y from rotations about z, and the number of entries that are not zero.
    #[test]
    fn exchanged_axes_turn_rotations_about_y_into_rotations_about_z() {
        let beta = 0.7f64;
        let rotation = Rotation::<f64>::new(MAX_ORDER, beta.cos(), beta.sin());
        for (n, matrix) in exchange(MAX_ORDER).iter().enumerate() {
            let width = 2 * n + 1;
            // One more is zero at degree 17.
            assert!(matrix.iter().filter(|&&x| x != 0.0).count() <= n * n + n + 1, "degree {n}");
            let about_z = |x: &[f64]| -> Vec<f64> {
                let mut y = x.to_vec();
                for m in 1..=n {
                    let (s, c) = (m as f64 * beta).sin_cos();
                    (y[m], y[n + m]) = (c * x[m] + s * x[n + m], c * x[n + m] - s * x[m]);
                }
                y
            };
            for j in 0..width {
                let column: Vec<f64> = (0..width).map(|i| matrix[i * width + j]).collect();
                let turned = about_z(&column);
                for i in 0..width {
                    let found: f64 = (0..width).map(|k| matrix[k * width + i] * turned[k]).sum();
                    let first = usize::from(i > n);
                    let (row, place) = if i > n { (i - n - 1, j.wrapping_sub(n + 1)) } else { (i, j) };
                    let size = n + 1 - first;
                    let expected = if (i > n) == (j > n) { rotation.block(n, first)[row * size + place] } else { 0.0 };
                    assert!((found - expected).abs() < 1e-13, "degree {n}, ({i}, {j}): {found} {expected}");
                }
            }
        }
    }

    /// R(Qx) = D R(x), with α and the reflection.
    #[test]
    fn the_basis_turns_with_the_axes() {
        let order = MAX_ORDER;
        let basis = Basis::new(order);
        let size = order * order;
        for [x, y, z] in [[0.5, -0.3, 0.6], [-0.2, 0.7, -0.4], [0.0, 0.0, 0.8], [0.1, 0.2, 0.0]] {
            for direction in [[1.0f64, 2.0, 3.0], [-2.0, 1.0, -1.5], [0.0, 0.0, -1.0], [1e-9, 0.0, 1.0]] {
                let [a, b, c] = direction;
                let (rho, d) = (a.hypot(b), a.hypot(b).hypot(c));
                let (ca, sa) = if rho > 0.0 { (a / rho, b / rho) } else { (1.0, 0.0) };
                let (cb, sb) = (c.abs() / d, rho / d);
                let (x1, y1, z1) = (ca * x + sa * y, ca * y - sa * x, if c < 0.0 { -z } else { z });
                let mut expected = vec![0.0; size];
                basis.regular(order, [cb * x1 - sb * z1, y1, sb * x1 + cb * z1], &mut expected);
                let (mut row, mut turned, mut found) = (vec![0.0; size], vec![0.0; size], vec![0.0; size]);
                basis.regular(order, [x, y, z], &mut row);
                let phases = Phases::new(&vec![1.0; order], ca, sa, c < 0.0);
                let rotation = Rotation::new(order, cb, sb);
                phases.apply(order, &row, &mut turned);
                rotation.apply(order, order, order, &turned, &mut found);
                for (i, (f, e)) in by_degree(order, &found).iter().zip(&expected).enumerate() {
                    assert!((f - e).abs() < 1e-14, "{direction:?} {i}: {f} {e}");
                }
                let (mut unturned, mut back) = (vec![0.0; size], vec![0.0; size]);
                rotation.apply_back(order, order, order, &found, &mut unturned);
                phases.add_back(order, &unturned, &mut back);
                assert!(back.iter().zip(&row).all(|(f, e)| (f - e).abs() < 1e-14), "{direction:?}: back");
            }
        }
    }
}
