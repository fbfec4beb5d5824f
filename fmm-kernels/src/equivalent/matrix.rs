//! Dense matrices of operators, and the kernel between two sets of points.

use super::Scalar;
use fmm_traits::{Member, Real};

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
    /// The whole matrix.
    pub fn view(&self) -> View<'_, T> {
        View { data: &self.data, rows: self.rows, cols: self.cols, steps: [1, self.rows] }
    }
}

/// A borrowed [`Matrix`], or its transpose: entry (i, j) is `data[i·steps[0] + j·steps[1]]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    steps: [usize; 2],
}

impl<T> View<'_, T> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// The transpose.
    pub fn transposed(self) -> Self {
        View { data: self.data, rows: self.cols, cols: self.rows, steps: [self.steps[1], self.steps[0]] }
    }
}

impl<'a, T: Copy> View<'a, T> {
    /// Entry (i, j), which must exist.
    pub fn at(&self, i: usize, j: usize) -> T {
        debug_assert!(i < self.rows && j < self.cols, "entry ({i}, {j}) of {} × {}", self.rows, self.cols);
        self.data[i * self.steps[0] + j * self.steps[1]]
    }
    /// The entries of column `j`.
    pub fn column(self, j: usize) -> impl Iterator<Item = T> + use<'a, T> {
        (0..self.rows).map(move |i| self.at(i, j))
    }
}

impl<T: Copy> Matrix<T> {
    /// The transpose.
    pub(crate) fn transposed(&self) -> Self {
        let mut data = Vec::with_capacity(self.data.len());
        for i in 0..self.rows {
            data.extend(self.data.iter().skip(i).step_by(self.rows));
        }
        Matrix { rows: self.cols, cols: self.rows, data }
    }
    /// Some of the columns.
    pub(crate) fn columns(&self, columns: &[usize]) -> Self {
        let data = columns.iter().flat_map(|j| &self.data[j * self.rows..(j + 1) * self.rows]).copied().collect();
        Matrix { rows: self.rows, cols: columns.len(), data }
    }
}

#[cfg(test)]
impl Matrix<f64> {
    /// The product of two matrices.
    pub(super) fn times(&self, other: &Self) -> Self {
        let [a, b] = [self, other].map(|m| nalgebra::DMatrix::from_column_slice(m.rows, m.cols, &m.data));
        Matrix { rows: self.rows, cols: other.cols, data: (a * b).data.into() }
    }
}

/// `to` += `factor`·`matrix`·`from`, one vector.
pub(crate) fn multiply_add<T: Scalar>(matrix: View<'_, T>, from: &[T], factor: T, to: &mut [T]) {
    for j in 0..matrix.cols() {
        let x = factor * from[j];
        for (y, a) in to[..matrix.rows()].iter_mut().zip(matrix.column(j)) {
            *y += a * x;
        }
    }
}

/// The matrix of a kernel between two sets of points, component-major. Row `i·targets + t` is value i at target t,
/// column `j·sources + s` is strength j at source s. Entries are `factor(i, j)·K`.
pub(crate) fn kernel_matrix(
    kernel: &Member,
    params: &[f64],
    targets: &[[f64; 3]],
    sources: &[[f64; 3]],
    factor: impl Fn(usize, usize) -> f64,
) -> Matrix<f64> {
    let columns: Vec<usize> = (0..kernel.strengths * sources.len()).collect();
    let mut matrix = kernel_columns(kernel, params, targets, sources, &columns);
    let n = targets.len();
    for (c, column) in matrix.data.chunks_exact_mut((kernel.values * n).max(1)).enumerate() {
        for (i, x) in column.iter_mut().enumerate() {
            *x *= factor(i / n, c / sources.len());
        }
    }
    matrix
}

/// Some columns of [`kernel_matrix`], without factors.
pub(crate) fn kernel_columns(
    kernel: &Member,
    params: &[f64],
    targets: &[[f64; 3]],
    sources: &[[f64; 3]],
    columns: &[usize],
) -> Matrix<f64> {
    let rows = kernel.values * targets.len();
    let mut data = vec![0.0; rows * columns.len()];
    let mut values = vec![0.0; rows];
    let mut r = vec![[0.0; 3]; targets.len()];
    for (column, c) in data.chunks_exact_mut(rows.max(1)).zip(columns) {
        let (j, s) = (c / sources.len(), c % sources.len());
        let unit = unit_strength(j);
        for (r, x) in r.iter_mut().zip(targets) {
            *r = std::array::from_fn(|a| x[a] - sources[s][a]);
        }
        kernel.eval_many(params, &r, &unit[..kernel.strengths], &mut values);
        for (t, values) in values.chunks_exact(kernel.values).enumerate() {
            for (i, value) in values.iter().enumerate() {
                column[i * targets.len() + t] = *value;
            }
        }
    }
    Matrix { rows, cols: columns.len(), data }
}

/// Strength 1 in component `j`.
pub(crate) fn unit_strength(j: usize) -> [f64; fmm_traits::kernel::MAX_COMPONENTS] {
    std::array::from_fn(|k| if k == j { 1.0 } else { 0.0 })
}

/// Rounds to the working precision.
pub(crate) fn round<T: Real>(matrix: &Matrix<f64>) -> Matrix<T> {
    Matrix { rows: matrix.rows, cols: matrix.cols, data: matrix.data.iter().map(|&x| T::of(x)).collect() }
}
