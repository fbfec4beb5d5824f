//! Products of the matrices of operators with batches of boxes, one column per box.
//!
//! A crate for products would allocate memory for each of them. Here the numbers of a column are always added in the same
//! order, so that they do not depend on the other columns, nor on the boxes of a level that a rank has.

use super::translate::room;
use crate::lanes::{Isa, Vectorized, dispatch};
use fmm_kernels::equivalent::{Scalar, View};
use fmm_traits::{Lane, Simd, SimdLane};

/// Vectors of rows that are summed at a time.
const VECTORS: usize = 2;
/// Columns that are summed at a time. Their sums, VECTORS·COLUMNS vectors, stay in registers.
const COLUMNS: usize = 4;
/// Most rows that are summed at a time: a vector has at most 16 numbers.
const MAX_HEIGHT: usize = 16 * VECTORS;

/// `to` ← `factor`·`left`·`right`, or with [`add`](Self::add) `to` + `factor`·`left`·`right`.
pub struct Product<'a, T> {
    /// The matrix.
    pub left: View<'a, T>,
    /// A factor.
    pub factor: T,
    /// The columns of the batch, and the distance from the beginning of one to that of the next.
    pub right: (&'a [T], usize),
    /// Number of columns.
    pub columns: usize,
    /// Whether the product is added to the numbers in `to`. Otherwise they are not read.
    pub add: bool,
    /// The columns of the result, and their distance.
    pub to: (&'a mut [T], usize),
}

impl<T: Scalar> Product<'_, T> {
    /// Computes the product. `panel` is scratch memory.
    ///
    /// # Panics
    /// If a column of `right` or `to` is shorter than the matrix wants.
    pub fn compute(self, isa: Isa, panel: &mut Vec<T>) {
        dispatch(isa, Compute { product: self, panel });
    }
}

struct Compute<'a, 'b, T> {
    product: Product<'a, T>,
    panel: &'b mut Vec<T>,
}

impl<T: Scalar> Vectorized for Compute<'_, '_, T> {
    type Output = ();
    const SINGLE: bool = T::EPSILON > 1e-10;
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Product { left, factor, right: (right, distance), columns, add, to: (to, stride) } = self.product;
        let (rows, depth) = (left.rows(), left.cols());
        let width = T::Vector::<S>::WIDTH;
        let height = VECTORS * width;
        let panel = room(self.panel, height * depth);
        for top in (0..rows).step_by(height) {
            // Some rows of the matrix, column after column. Rows that it lacks are 0.
            let here = height.min(rows - top);
            for (k, column) in panel.chunks_exact_mut(height).enumerate() {
                for (i, x) in column.iter_mut().enumerate() {
                    *x = if i < here { factor * left.at(top + i, k) } else { T::default() };
                }
            }
            for first in (0..columns).step_by(COLUMNS) {
                // The last column takes the place of columns beyond it.
                let batch: [&[T]; COLUMNS] =
                    std::array::from_fn(|c| &right[(first + c).min(columns - 1) * distance..][..depth]);
                let mut sums = [[T::Vector::<S>::splat(0.0); VECTORS]; COLUMNS];
                for k in 0..depth {
                    let column = &panel[k * height..][..height];
                    // SAFETY: `column` has VECTORS vectors of `width` numbers.
                    let a: [T::Vector<S>; VECTORS] =
                        std::array::from_fn(|v| unsafe { T::Vector::<S>::load(column[v * width..].as_ptr()) });
                    for c in 0..COLUMNS {
                        let b = T::Vector::<S>::broadcast(batch[c][k]);
                        for v in 0..VECTORS {
                            sums[c][v] = a[v].mul_add(b, sums[c][v]);
                        }
                    }
                }
                for c in 0..COLUMNS.min(columns - first) {
                    let mut sum = [T::default(); MAX_HEIGHT];
                    for v in 0..VECTORS {
                        // SAFETY: `sum` has room for VECTORS vectors of at most 16 numbers.
                        unsafe { sums[c][v].store(sum[v * width..].as_mut_ptr()) };
                    }
                    let to = &mut to[(first + c) * stride + top..][..here];
                    for (to, sum) in to.iter_mut().zip(sum) {
                        *to = if add { *to + sum } else { sum };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_kernels::equivalent::Matrix;

    /// Products agree with sums written out, on every instruction set, and the bits of a column do not depend on the number
    /// of columns.
    #[test]
    fn products_and_their_columns() {
        const COLUMNS: usize = 33;
        fn check<T: Scalar>(isa: Isa, tolerance: f64) {
            let mut panel = Vec::new();
            for rows in [1, 2, 3, 7, 19, 33, 152] {
                for depth in [0, 1, 2, 7, 19, 61, 600] {
                    let numbers = |n: usize, step: f64| (0..n).map(|i| T::of((i as f64 * step).sin())).collect();
                    let b: Vec<T> = numbers((depth + 2) * COLUMNS, 1.3);
                    let [a, across] = [(rows, depth), (depth, rows)].map(|(rows, cols)| Matrix {
                        rows,
                        cols,
                        data: numbers(rows * cols, 0.7),
                    });
                    let before: Vec<T> = numbers((rows + 1) * COLUMNS, 0.3);
                    for (left, factor, add) in
                        [(a.view(), 1.0, true), (a.view(), 1.5, false), (across.view().transposed(), 1.5, false)]
                    {
                        let mut product = |columns: usize| {
                            let mut out = before.clone();
                            let (right, to) = ((&b[1..], depth + 2), (&mut out[..], rows + 1));
                            Product { left, factor: T::of(factor), right, columns, add, to }.compute(isa, &mut panel);
                            out
                        };
                        let whole = product(COLUMNS);
                        for (at, found) in whole.iter().enumerate() {
                            let (j, i) = (at / (rows + 1), at % (rows + 1));
                            if i == rows {
                                assert!(*found == before[at], "a number between the columns has changed");
                                continue;
                            }
                            let terms = (0..depth).map(|k| left.at(i, k).f64() * b[j * (depth + 2) + 1 + k].f64());
                            let old = if add { before[at].f64() } else { 0.0 };
                            let error = (found.f64() - old - factor * terms.sum::<f64>()).abs();
                            assert!(
                                error <= tolerance * (depth as f64 + 1.0).sqrt(),
                                "{isa:?} {rows} {depth}: {error:e}"
                            );
                        }
                        for count in 0..COLUMNS {
                            let part = product(count);
                            assert!(
                                part[..count * (rows + 1)] == whole[..count * (rows + 1)],
                                "{isa:?} {rows} {depth}"
                            );
                            assert!(
                                part[count * (rows + 1)..] == before[count * (rows + 1)..],
                                "{isa:?} {rows} {depth}"
                            );
                        }
                    }
                }
            }
        }
        for isa in [Isa::Portable, Isa::detect()] {
            check::<f32>(isa, 2e-6);
            check::<f64>(isa, 4e-15);
        }
    }
}
