//! Linear maps of coordinates.

/// A linear map y = L·x of coordinates in space, with L invertible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearMap {
    /// The rows of L.
    pub rows: [[f64; 3]; 3],
}

impl LinearMap {
    /// L = I.
    pub const IDENTITY: LinearMap = LinearMap { rows: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] };

    /// L·x.
    pub fn apply(&self, x: [f64; 3]) -> [f64; 3] {
        self.rows.map(|row| row[0].mul_add(x[0], row[1].mul_add(x[1], row[2] * x[2])))
    }

    /// Lᵀ·y. A function f(L·x) with the gradient y of f at L·x has this gradient with respect to x.
    pub fn transposed(&self, y: [f64; 3]) -> [f64; 3] {
        let l = &self.rows;
        std::array::from_fn(|a| l[0][a].mul_add(y[0], l[1][a].mul_add(y[1], l[2][a] * y[2])))
    }

    /// Lᵀ·H·L of a matrix H of second derivatives, row by row.
    pub fn congruent(&self, hessian: [f64; 9]) -> [f64; 9] {
        let row = |a: usize| self.transposed([hessian[3 * a], hessian[3 * a + 1], hessian[3 * a + 2]]);
        let half = [row(0), row(1), row(2)];
        let columns: [[f64; 3]; 3] = std::array::from_fn(|b| self.transposed([half[0][b], half[1][b], half[2][b]]));
        std::array::from_fn(|k| columns[k % 3][k / 3])
    }

    /// Maps the derivatives in rows of `values` numbers of a scalar kernel in coordinates y = L·x to derivatives with
    /// respect to x, in place. A row is the value (1), with the gradient (4), and with xx, xy, xz, yy, yz, zz (10).
    pub fn pull_back(&self, rows: &mut [f64], values: usize) {
        for row in rows.chunks_exact_mut(values).filter(|row| row.len() >= 4) {
            let gradient = self.transposed([row[1], row[2], row[3]]);
            row[1..4].copy_from_slice(&gradient);
            if let [xx, xy, xz, yy, yz, zz] = row[4..] {
                let h = self.congruent([xx, xy, xz, xy, yy, yz, xz, yz, zz]);
                row[4..].copy_from_slice(&[h[0], h[1], h[2], h[4], h[5], h[8]]);
            }
        }
    }

    /// self·first: first one map, then the other.
    pub fn after(&self, first: &LinearMap) -> LinearMap {
        LinearMap { rows: self.rows.map(|row| first.transposed(row)) }
    }

    /// The inverse of an upper triangular map with positive diagonal.
    pub(crate) fn inverse_of_upper(&self) -> LinearMap {
        let l = &self.rows;
        let d = [1.0 / l[0][0], 1.0 / l[1][1], 1.0 / l[2][2]];
        let (xy, yz) = (-d[0] * l[0][1] * d[1], -d[1] * l[1][2] * d[2]);
        let xz = -d[0] * (l[0][1] * yz + l[0][2] * d[2]);
        LinearMap { rows: [[d[0], xy, xz], [0.0, d[1], yz], [0.0, 0.0, d[2]]] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L: LinearMap = LinearMap { rows: [[2.0, 0.3, -0.7], [0.0, 0.5, 0.4], [0.0, 0.0, 3.0]] };

    fn product(a: &LinearMap, b: &LinearMap) -> [[f64; 3]; 3] {
        std::array::from_fn(|i| std::array::from_fn(|j| (0..3).map(|k| a.rows[i][k] * b.rows[k][j]).sum()))
    }

    #[test]
    fn maps_are_matrices() {
        let inverse = product(&L.inverse_of_upper(), &L);
        let other = LinearMap { rows: [[0.1, 0.2, 0.3], [-1.0, 0.4, 0.6], [2.0, 0.5, -0.2]] };
        for i in 0..3 {
            for j in 0..3 {
                assert!((inverse[i][j] - LinearMap::IDENTITY.rows[i][j]).abs() < 1e-15, "{inverse:?}");
                assert!((L.after(&other).rows[i][j] - product(&L, &other)[i][j]).abs() < 1e-15);
            }
        }
        let mapped = L.apply([1.0, 2.0, 3.0]);
        assert!(mapped.iter().zip([0.5, 2.2, 9.0]).all(|(a, b)| (a - b).abs() < 1e-14), "{mapped:?}");
    }

    /// Derivatives of g(x) = f(L·x) for a cubic polynomial f, against differences.
    #[test]
    fn derivatives_are_pulled_back() {
        let f = |[x, y, z]: [f64; 3]| {
            let gradient = [2.0 * x * y + z, x * x - z * z * 0.5, x - y * z];
            let hessian = [2.0 * y, 2.0 * x, 1.0, 0.0, -z, -y];
            let mut row = vec![x * x * y + x * z - 0.5 * y * z * z];
            row.extend(gradient);
            row.extend(hessian);
            row
        };
        let at = [0.3, -0.8, 0.45];
        let pulled = |x: [f64; 3]| {
            let mut row = f(L.apply(x));
            L.pull_back(&mut row, 10);
            row
        };
        let h = 1e-5;
        let row = pulled(at);
        // Columns of the derivative by axis a of the value and of the gradient.
        let second = [[4, 5, 6], [5, 7, 8], [6, 8, 9]];
        for a in 0..3 {
            let step = |sign: f64| pulled(std::array::from_fn(|b| at[b] + if a == b { sign * h } else { 0.0 }));
            let (up, down) = (step(1.0), step(-1.0));
            let difference = |k: usize| (up[k] - down[k]) / (2.0 * h);
            assert!((difference(0) - row[1 + a]).abs() < 1e-8);
            for b in 0..3 {
                assert!((difference(1 + b) - row[second[a][b]]).abs() < 1e-8, "{a} {b}");
            }
        }
    }
}
