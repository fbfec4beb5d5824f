//! Rotations of the axes, degree by degree.
//!
//! A rotation Q of space takes R_n(x) to R_n(Qx) = D_n R_n(x), D_n an orthogonal matrix of 2n + 1 rows. The recursion
//! used here comes from the derivatives. Apply ∂_a to both sides: D_n A_n^a R_{n−1}(x) = Σ_b Q_{ba} A_n^b R_{n−1}(Qx), so
//! D_n A_n^a = Σ_b Q_{ba} A_n^b D_{n−1} with the matrices of [`gradient`](super::gradient). Multiply by (A_n^a)ᵀ, add
//! over a, and use Σ_a A_n^a (A_n^a)ᵀ = n(2n − 1):
//!
//! D_n = 1/(n(2n − 1)) Σ_{a,b} Q_{ba} A_n^b D_{n−1} (A_n^a)ᵀ.
//!
//! Stacked, the A_n^a/√(n(2n − 1)) are an isometry V and D_n = Vᵀ(Q ⊗ D_{n−1})V: an error of D_{n−1} is handed on with
//! a norm of at most 1, and rounding grows no faster than linearly in n.
//!
//! Only two rotations are needed. About z by α: a 2 × 2 rotation of each pair (cosine, sine). About y by β:
//! [`Rotation`], which leaves sines and cosines apart because it keeps the sign of y.

use super::basis::{cosine, sine};
use super::gradient::degree;
use fmm_traits::{Real, SimdLane};

/// Sums that run side by side, so that none waits for its own last product.
const TILE: usize = 4;

/// D_n, n < order, of the rotation about y that takes (sin β, 0, cos β) to the z axis.
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

    /// `to` ← D·`from`, degrees below `order`.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        self.each_block(order, |block, size, at| {
            let (x, y) = (&from[at..at + size], &mut to[at..at + size]);
            let mut done = 0;
            for (y, rows) in y.chunks_exact_mut(TILE).zip(block.chunks_exact(TILE * size)) {
                let rows: [&[T]; TILE] = std::array::from_fn(|i| &rows[i * size..(i + 1) * size]);
                let mut sums = [V::splat(0.0); TILE];
                for (j, &x) in x.iter().enumerate() {
                    for (sum, row) in sums.iter_mut().zip(rows) {
                        *sum = V::broadcast(row[j]).mul_add(x, *sum);
                    }
                }
                y.copy_from_slice(&sums);
                done += TILE;
            }
            for (y, row) in y[done..].iter_mut().zip(block[done * size..].chunks_exact(size)) {
                *y = row.iter().zip(x).fold(V::splat(0.0), |sum, (&d, &x)| V::broadcast(d).mul_add(x, sum));
            }
        });
    }

    /// `to` ← Dᵀ·`from`, degrees below `order`: the rotation back.
    #[inline(always)]
    pub fn apply_back<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        self.each_block(order, |block, size, at| {
            let (x, y) = (&from[at..at + size], &mut to[at..at + size]);
            let mut done = 0;
            for y in y.chunks_exact_mut(TILE) {
                let mut sums = [V::splat(0.0); TILE];
                for (row, &x) in block.chunks_exact(size).zip(x) {
                    for (sum, &d) in sums.iter_mut().zip(&row[done..done + TILE]) {
                        *sum = V::broadcast(d).mul_add(x, *sum);
                    }
                }
                y.copy_from_slice(&sums);
                done += TILE;
            }
            for (i, y) in y.iter_mut().enumerate().skip(done) {
                let rows = block.chunks_exact(size).zip(x);
                *y = rows.fold(V::splat(0.0), |sum, (row, &x)| V::broadcast(row[i]).mul_add(x, sum));
            }
        });
    }

    /// Calls `f(block, size, first place in a row)`.
    #[inline(always)]
    fn each_block(&self, order: usize, mut f: impl FnMut(&[T], usize, usize)) {
        let mut rest = &self.blocks[..];
        for n in 0..order {
            for (size, at) in [(n + 1, cosine(n, 0)), (n, sine(n, 1))] {
                let (block, more) = rest.split_at(size * size);
                if size > 0 {
                    f(block, size, at);
                }
                rest = more;
            }
        }
    }
}

/// D_n from D_{n−1} (module header).
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

/// The rotation about z that takes the direction (cos α, sin α, ·) into the half plane y = 0, x ≥ 0, and, for
/// directions below the plane z = 0, the reflection z → −z (eq. 34 of Gumerov & Duraiswami: a factor (−1)^(n+m)), so
/// that β ≤ π/2 serves all directions.
#[derive(Clone, Debug)]
pub struct Phases<T> {
    /// cos mα and sin mα.
    angles: Vec<[T; 2]>,
    reflected: bool,
}

impl<T: Real> Phases<T> {
    /// m < order.
    pub fn new(order: usize, cos_alpha: f64, sin_alpha: f64, reflected: bool) -> Self {
        let mut at = [1.0, 0.0];
        let angles = (0..order).map(|_| {
            let now = at.map(T::of);
            at = [at[0] * cos_alpha - at[1] * sin_alpha, at[1] * cos_alpha + at[0] * sin_alpha];
            now
        });
        Phases { angles: angles.collect(), reflected }
    }

    /// `to` ← rotated `from`.
    #[inline(always)]
    pub fn apply<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        self.turn(order, T::of(1.0), |c, s| (from[c], from[s]), |to: &mut V, v| *to = v, to);
    }

    /// `to` += `from` rotated back.
    #[inline(always)]
    pub fn add_back<V: SimdLane<Scalar = T>>(&self, order: usize, from: &[V], to: &mut [V]) {
        self.turn(order, T::of(-1.0), |c, s| (from[c], from[s]), |to: &mut V, v| *to = *to + v, to);
    }

    #[inline(always)]
    fn turn<V: SimdLane<Scalar = T>>(
        &self,
        order: usize,
        direction: T,
        from: impl Fn(usize, usize) -> (V, V),
        put: impl Fn(&mut V, V),
        to: &mut [V],
    ) {
        for n in 0..order {
            for m in 0..=n {
                let [c, s] = self.angles[m];
                let sign = if self.reflected && (n + m) % 2 == 1 { T::of(-1.0) } else { T::of(1.0) };
                let (c, s) = (V::broadcast(sign * c), V::broadcast(sign * direction * s));
                let place = (cosine(n, m), if m > 0 { sine(n, m) } else { cosine(n, 0) });
                let (x, y) = from(place.0, place.1);
                if m == 0 {
                    put(&mut to[place.0], c * x);
                } else {
                    put(&mut to[place.0], c * x + s * y);
                    put(&mut to[place.1], c * y - s * x);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_ORDER;
    use super::super::basis::Basis;
    use super::*;

    fn dense(order: usize, beta: f64) -> Vec<Vec<f64>> {
        let rotation = Rotation::<f64>::new(order, beta.cos(), beta.sin());
        let size = order * order;
        let column = |j: usize| {
            let (mut unit, mut to) = (vec![0.0; size], vec![0.0; size]);
            unit[j] = 1.0;
            rotation.apply(order, &unit, &mut to);
            to
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
                let phases = Phases::new(order, ca, sa, c < 0.0);
                let rotation = Rotation::new(order, cb, sb);
                phases.apply(order, &row, &mut turned);
                rotation.apply(order, &turned, &mut found);
                for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
                    assert!((f - e).abs() < 1e-14, "{direction:?} {i}: {f} {e}");
                }
                let (mut unturned, mut back) = (vec![0.0; size], vec![0.0; size]);
                rotation.apply_back(order, &found, &mut unturned);
                phases.add_back(order, &unturned, &mut back);
                assert!(back.iter().zip(&row).all(|(f, e)| (f - e).abs() < 1e-14), "{direction:?}: back");
            }
        }
    }
}
