//! The operators as matrices between whole surfaces, one per octant. Tests compare the blocks by parity with these
//! matrices; backends with dense products use the solves.

use super::symmetry::Side;
use super::{Direction, Matrix, Operators, Scalar};
use rayon::prelude::*;

/// Whole operators; see the [module header](super) for the order of vectors. n = points, C = check values
/// and E = strengths per point.
#[derive(Clone, Debug)]
pub struct Dense<T> {
    /// The upward solve as two factors: multipole = `[0]·([1]·check)`; E·n × rank and rank × C·n.
    pub upward: [Matrix<T>; 2],
    /// The downward solve likewise.
    pub downward: [Matrix<T>; 2],
    /// By octant (bit 0: upper half in x, bit 1: y, bit 2: z): multipole of the child → upward check values of its
    /// parent; C·n × E·n.
    pub m2m: Vec<Matrix<T>>,
    /// By octant: local of the parent → downward check values of the child, divided by [`Operators::l2l_factor`];
    /// C·n × E·n.
    pub l2l: Vec<Matrix<T>>,
}

impl<T: Scalar> Dense<T> {
    /// The dense matrices of `operators`.
    pub fn of(operators: &Operators<T>) -> Self {
        let (up, down) = (operators.upward(), operators.downward());
        let shifts =
            |d: Direction<'_, T>| (0..d.check().octants()).into_par_iter().map(|octant| shift(d, octant)).collect();
        let [upward, downward] = Self::solves(operators);
        let (m2m, l2l) = rayon::join(|| shifts(up), || shifts(down));
        Dense { upward, downward, m2m, l2l }
    }

    /// [`upward`](Self::upward) and [`downward`](Self::downward) of `operators`.
    pub fn solves(operators: &Operators<T>) -> [[Matrix<T>; 2]; 2] {
        let (upward, downward) = rayon::join(|| solve(operators.upward()), || solve(operators.downward()));
        [upward, downward]
    }
}

/// The factors of a solve.
fn solve<T: Scalar>(d: Direction<'_, T>) -> [Matrix<T>; 2] {
    let empty = |side: &Side| Matrix { rows: side.len(), cols: 0, data: Vec::new() };
    // The second factor is collected row by row: as columns of its transpose.
    let (mut left, mut right) = (empty(d.density()), empty(d.check()));
    for (parity, [v, u]) in d.solves() {
        for k in 0..v.cols() {
            push(&mut left, d.density(), [(parity, v.column(k))]);
            push(&mut right, d.check(), [(parity, u.transposed().column(k))]);
        }
    }
    [left, right.transposed()]
}

/// Appends the column whose folded blocks are `blocks`.
fn push<T: Scalar, B: Iterator<Item = T>>(
    to: &mut Matrix<T>,
    side: &Side,
    blocks: impl IntoIterator<Item = (usize, B)>,
) {
    let mut folded = vec![T::default(); side.len()];
    for (parity, block) in blocks {
        folded[side.block(parity)].iter_mut().zip(block).for_each(|(x, y)| *x = y);
    }
    let start = to.data.len();
    to.data.resize(start + side.len(), T::default());
    to.cols += 1;
    side.unfold(&mut folded, &mut to.data[start..]);
}

/// The M2M or L2L matrix of one octant. It is assembled from parities for the octant that represents `octant`, then
/// reflected.
fn shift<T: Scalar>(d: Direction<'_, T>, octant: usize) -> Matrix<T> {
    if d.downward {
        return shift(Direction { downward: false, ..d }, octant).transposed();
    }
    let blocks: Vec<_> = d.shifts().filter(|(_, o, _)| d.represents(*o, octant)).collect();
    let mut matrix = Matrix { rows: d.check().len(), cols: 0, data: Vec::new() };
    for j in 0..d.density().len() {
        push(&mut matrix, d.check(), blocks.iter().map(|(parity, _, m)| (*parity, m.column(j))));
    }
    let share = T::of((blocks.len() as f64).sqrt().recip());
    matrix.data.iter_mut().for_each(|x| *x *= share);
    for side in [d.check(), d.density()] {
        matrix.data.chunks_exact_mut(matrix.rows).for_each(|column| side.reflect(column, octant));
        matrix = matrix.transposed();
    }
    matrix
}
