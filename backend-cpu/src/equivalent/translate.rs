//! M2M, L2L and the surface solves: matrix products over batches of boxes of one level.

use super::pool::Pool;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use fmm_kernels::equivalent::{Operators, Scalar};
use fmm_traits::{Lists, Tree};
use rayon::prelude::*;

/// Boxes per product: wide enough for a matrix product at its peak, small enough to stay in cache.
pub const BATCH: usize = 128;

/// Matrices of one thread, a column a box.
pub struct Scratch<T> {
    input: Vec<T>,
    output: Vec<T>,
    /// Check values of a batch.
    pub check: Vec<T>,
    inner: Vec<T>,
}

impl<T: Scalar> Scratch<T> {
    /// Scratch for vectors of up to `len` numbers.
    pub fn new(len: usize) -> Self {
        let zeros = || vec![T::default(); len * BATCH];
        Scratch { input: zeros(), output: zeros(), check: zeros(), inner: zeros() }
    }

    /// Densities of the first `columns` columns of `check`, by the two factors of a solve; handed to
    /// `out(column, density)`.
    pub fn solve(&mut self, factors: [MatRef<'_, T>; 2], columns: usize, mut out: impl FnMut(usize, &[T])) {
        let (rank, rows, len) = (factors[1].nrows(), factors[1].ncols(), factors[0].nrows());
        product(&mut self.inner, factors[1], &self.check[..rows * columns], columns);
        product(&mut self.output, factors[0], &self.inner[..rank * columns], columns);
        for (k, density) in self.output[..len * columns].chunks_exact(len).enumerate() {
            out(k, density);
        }
    }
}

/// `output` ← `matrix`·`input`, `columns` columns.
fn product<T: Scalar>(output: &mut [T], matrix: MatRef<'_, T>, input: &[T], columns: usize) {
    let (m, n) = (matrix.nrows(), matrix.ncols());
    let input = MatRef::from_column_major_slice(input, n, columns);
    let output = MatMut::from_column_major_slice_mut(&mut output[..m * columns], m, columns);
    matmul(output, Accum::Replace, matrix, input, T::one(), Par::Seq);
}

/// Multipoles of the non-leaf boxes of `level` from those of their children. Rows of E·n numbers.
pub fn m2m<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    scratch: &Pool<Scratch<T>>,
    multipoles: &mut [T],
) {
    let boxes = tree.level(level);
    if lists.m2m.starts[boxes.start] == lists.m2m.starts[boxes.end] {
        return;
    }
    let (row, check) = (operators.strengths * operators.points, operators.values * operators.points);
    let (upper, lower) = multipoles.split_at_mut(boxes.end * row);
    let below = boxes.end;
    upper[boxes.start * row..].par_chunks_mut(BATCH * row).enumerate().for_each(|(i, to)| {
        let first = boxes.start + i * BATCH;
        let count = to.len() / row;
        if lists.m2m.starts[first] == lists.m2m.starts[first + count] {
            return;
        }
        scratch.with(|s| {
            s.check[..check * count].fill(T::default());
            for octant in 0..8 {
                let mut columns = 0;
                let mut parent = [0; BATCH];
                for b in first..first + count {
                    for &child in lists.m2m.row(b).iter().filter(|&&c| tree.octant[c as usize] as usize == octant) {
                        let from = (child as usize - below) * row;
                        s.input[columns * row..][..row].copy_from_slice(&lower[from..from + row]);
                        parent[columns] = b - first;
                        columns += 1;
                    }
                }
                if columns > 0 {
                    product(&mut s.output, operators.m2m(octant), &s.input[..row * columns], columns);
                    for (k, &parent) in parent[..columns].iter().enumerate() {
                        let from = &s.output[k * check..][..check];
                        s.check[parent * check..][..check].iter_mut().zip(from).for_each(|(a, b)| *a += *b);
                    }
                }
            }
            s.solve(operators.upward(), count, |k, density| {
                if !lists.m2m.row(first + k).is_empty() {
                    to[k * row..(k + 1) * row].copy_from_slice(density);
                }
            });
        });
    });
}

/// Locals of the boxes of `level`: check values so far, plus the field of the parent's local, solved for
/// the equivalent density in place. `active[b]` says whether box b has a local; rows of `row` ≥ max(C, E)·n
/// numbers. `parents` are the operators of the level above.
pub fn l2l<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    parents: Option<&Operators<T>>,
    active: &[bool],
    scratch: &Pool<Scratch<T>>,
    locals: &mut [T],
    row: usize,
) {
    let boxes = tree.level(level);
    let (density, check) = (operators.strengths * operators.points, operators.values * operators.points);
    let (upper, lower) = locals.split_at_mut(boxes.start * row);
    lower[..boxes.len() * row].par_chunks_mut(BATCH * row).enumerate().for_each(|(i, to)| {
        let first = boxes.start + i * BATCH;
        let count = to.len() / row;
        if !active[first..first + count].contains(&true) {
            return;
        }
        scratch.with(|s| {
            for k in 0..count {
                s.check[k * check..][..check].copy_from_slice(&to[k * row..][..check]);
            }
            for octant in (0..8).filter(|_| parents.is_some()) {
                let mut columns = 0;
                let mut child = [0; BATCH];
                for b in (first..first + count).filter(|&b| tree.octant[b] as usize == octant) {
                    for &parent in lists.l2l.row(b) {
                        let from = parent as usize * row;
                        s.input[columns * density..][..density].copy_from_slice(&upper[from..from + density]);
                        child[columns] = b - first;
                        columns += 1;
                    }
                }
                if columns > 0 {
                    // The operator from the parent belongs to the parent's unit box.
                    let from_parent = parents.unwrap_or(operators);
                    product(&mut s.output, from_parent.l2l(octant), &s.input[..density * columns], columns);
                    for (k, &child) in child[..columns].iter().enumerate() {
                        let from = &s.output[k * check..][..check];
                        let to = &mut s.check[child * check..][..check];
                        to.iter_mut().zip(from).for_each(|(a, b)| *a += *b * from_parent.l2l_factor);
                    }
                }
            }
            s.solve(operators.downward(), count, |k, d| to[k * row..][..density].copy_from_slice(d));
        });
    });
}
