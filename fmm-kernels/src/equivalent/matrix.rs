//! Dense matrices of operators, and the kernel between two sets of points.

use super::Scalar;
use faer::MatRef;
use fmm_traits::{Kernel, Real};

/// A dense matrix: entry (i, j) is `data[j·rows + i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix<T> {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// The columns, one after the other.
    pub data: Vec<T>,
}

impl<T> Matrix<T> {
    /// The matrix as faer sees it.
    pub fn view(&self) -> MatRef<'_, T> {
        MatRef::from_column_major_slice(&self.data, self.rows, self.cols)
    }
}

/// `to` += `factor`·`matrix`·`from`, one vector.
pub(crate) fn multiply_add<T: Scalar>(matrix: MatRef<'_, T>, from: &[T], factor: T, to: &mut [T]) {
    for j in 0..matrix.ncols() {
        let x = factor * from[j];
        for (i, y) in to[..matrix.nrows()].iter_mut().enumerate() {
            *y += matrix[(i, j)] * x;
        }
    }
}

/// The kernel between point sets, component-major: row `i·targets + t` is value i at target t,
/// column `j·sources + s` strength j at source s; entry = `row_factor(i)·column_factor(j)·K`.
pub(crate) fn kernel_matrix<K: Kernel>(
    params: &[f64],
    targets: &[[f64; 3]],
    sources: &[[f64; 3]],
    factor: impl Fn(usize, usize) -> f64,
) -> Matrix<f64> {
    let (rows, cols) = (K::VALUES * targets.len(), K::STRENGTHS * sources.len());
    let mut data = vec![0.0; rows * cols];
    let factors: Vec<Vec<f64>> = (0..K::STRENGTHS).map(|j| (0..K::VALUES).map(|i| factor(i, j)).collect()).collect();
    let mut values = [0.0; fmm_traits::kernel::MAX_COMPONENTS];
    for (c, column) in data.chunks_exact_mut(rows.max(1)).enumerate() {
        let (j, s) = (c / sources.len(), c % sources.len());
        let unit = unit_strength(j);
        for (t, x) in targets.iter().enumerate() {
            let r: [f64; 3] = std::array::from_fn(|a| x[a] - sources[s][a]);
            K::eval(params, &r, &unit[..K::STRENGTHS], &mut values[..K::VALUES]);
            for i in 0..K::VALUES {
                column[i * targets.len() + t] = factors[j][i] * values[i];
            }
        }
    }
    Matrix { rows, cols, data }
}

/// Strength 1 in component `j`.
pub(crate) fn unit_strength(j: usize) -> [f64; fmm_traits::kernel::MAX_COMPONENTS] {
    std::array::from_fn(|k| if k == j { 1.0 } else { 0.0 })
}

/// Rounds to the working precision.
pub(crate) fn round<T: Real>(matrix: &Matrix<f64>) -> Matrix<T> {
    Matrix { rows: matrix.rows, cols: matrix.cols, data: matrix.data.iter().map(|&x| T::of(x)).collect() }
}
