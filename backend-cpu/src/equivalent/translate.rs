//! M2M, L2L and the surface solves: products of small matrices with batches of boxes, parity by parity
//! ([`fmm_kernels::equivalent::symmetry`]).

use super::net;
use super::pool::Pool;
use crate::lanes::{Isa, Vectorized, dispatch};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use fmm_kernels::equivalent::{Affine, Direction, Operators, Scalar, symmetry::Side};
use fmm_traits::{Lists, Simd, Tree};
use rayon::prelude::*;

/// Boxes per product: wide enough for a matrix product at its peak, small enough to stay in cache.
pub const BATCH: usize = 128;
/// Families (a box and its children) per product.
const FAMILIES: usize = BATCH / 4;

/// Matrices of one thread, a column a box.
#[derive(Default)]
pub struct Scratch<T> {
    /// Check values of a batch.
    pub check: Vec<T>,
    folded: Vec<T>,
    inner: Vec<T>,
    density: Vec<T>,
    /// Children of octant o of family k: column `o·families + k`.
    family: Vec<T>,
}

/// The first `len` numbers, made if there are fewer.
fn room<T: Scalar>(v: &mut Vec<T>, len: usize) -> &mut [T] {
    if v.len() < len {
        v.resize(len, T::default());
    }
    &mut v[..len]
}

impl<T: Scalar> Scratch<T> {
    /// Zero check values for `columns` boxes of `len` numbers.
    pub fn clear(&mut self, len: usize, columns: usize) -> &mut [T] {
        let check = room(&mut self.check, len * columns);
        check.fill(T::default());
        check
    }

    /// Densities of the first `columns` columns of `check`; handed to `out(column, density)`.
    pub fn solve(&mut self, isa: Isa, by: Direction<'_, T>, columns: usize, out: impl FnMut(usize, &[T])) {
        let len = by.check().len();
        let folded = room(&mut self.folded, len * columns);
        dispatch(isa, Fold { side: by.check(), from: &mut self.check[..len * columns], to: folded, inverse: false });
        self.solve_folded(isa, by, columns, out);
    }

    /// As [`solve`](Self::solve), of `folded`.
    fn solve_folded(&mut self, isa: Isa, by: Direction<'_, T>, columns: usize, mut out: impl FnMut(usize, &[T])) {
        let (check, len) = (by.check().len(), by.density().len());
        let density = room(&mut self.density, len * columns);
        for (parity, [left, right]) in by.solves() {
            let rank = right.nrows();
            let inner = MatMut::from_column_major_slice_mut(room(&mut self.inner, rank * columns), rank, columns);
            let from = stack(&self.folded, check, columns).subrows(by.check().block(parity).start, right.ncols());
            matmul(inner, Accum::Replace, right, from, T::one(), Par::Seq);
            let inner = MatRef::from_column_major_slice(&self.inner[..rank * columns], rank, columns);
            let to = stack_mut(density, len, columns).subrows_mut(by.density().block(parity).start, left.nrows());
            matmul(to, Accum::Replace, left, inner, T::one(), Par::Seq);
        }
        let unfolded = room(&mut self.folded, len * columns);
        dispatch(isa, Fold { side: by.density(), from: density, to: unfolded, inverse: true });
        for (k, density) in unfolded.chunks_exact(len).enumerate() {
            out(k, density);
        }
    }
}

/// Columns of `len` numbers.
fn stack<T: Scalar>(data: &[T], len: usize, columns: usize) -> MatRef<'_, T> {
    MatRef::from_column_major_slice(&data[..len * columns], len, columns)
}

/// Columns of `len` numbers.
fn stack_mut<T: Scalar>(data: &mut [T], len: usize, columns: usize) -> MatMut<'_, T> {
    MatMut::from_column_major_slice_mut(&mut data[..len * columns], len, columns)
}

/// [`Side::fold`] of many vectors, or its inverse.
struct Fold<'a, T> {
    side: &'a Side,
    from: &'a mut [T],
    to: &'a mut [T],
    inverse: bool,
}

impl<T: Scalar> Vectorized for Fold<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let len = self.side.len();
        for (from, to) in self.from.chunks_exact_mut(len).zip(self.to.chunks_exact_mut(len)) {
            match self.inverse {
                false => self.side.fold(from, to),
                true => self.side.unfold(from, to),
            }
        }
    }
}

/// [`Side::fold_family`] of many families, or its inverse.
struct Families<'a, T> {
    side: &'a Side,
    family: &'a mut [T],
    count: usize,
    inverse: bool,
}

impl<T: Scalar> Vectorized for Families<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let len = self.side.len();
        for k in 0..self.count {
            let family = &mut self.family[k * len..];
            match self.inverse {
                false => self.side.fold_family(family, self.count * len),
                true => self.side.unfold_family(family, self.count * len),
            }
        }
    }
}

/// Multipoles of the non-leaf boxes of `level` from those of their children. Rows of E·n numbers; `kept` are net strengths
/// of boxes.
pub fn m2m<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    isa: Isa,
    kept: &[Vec<T>],
    scratch: &Pool<Scratch<T>>,
    multipoles: &mut [T],
) {
    let (boxes, by) = (tree.level(level), operators.upward());
    let (check, row) = (by.check().len(), by.density().len());
    let (upper, lower) = multipoles.split_at_mut(boxes.end * row);
    let below = boxes.end;
    upper[boxes.start * row..].par_chunks_mut(FAMILIES * row).enumerate().for_each(|(i, to)| {
        let first = boxes.start + i * FAMILIES;
        let mut parents = [0; FAMILIES];
        let mut count = 0;
        for b in (first..first + to.len() / row).filter(|&b| !lists.m2m.row(b).is_empty()) {
            parents[count] = b;
            count += 1;
        }
        if count == 0 {
            return;
        }
        scratch.with(|s| {
            let family = room(&mut s.family, 8 * count * row);
            family.fill(T::default());
            for (k, &parent) in parents[..count].iter().enumerate() {
                for &child in lists.m2m.row(parent) {
                    let place = tree.octant[child as usize] as usize * count + k;
                    family[place * row..][..row].copy_from_slice(&lower[(child as usize - below) * row..][..row]);
                }
            }
            dispatch(isa, Families { side: by.density(), family, count, inverse: false });
            let folded = room(&mut s.folded, check * count);
            folded.fill(T::default());
            for (parity, octant, matrix) in by.shifts() {
                let from = stack(&family[(parity | octant) * count * row..], row, count);
                let block = by.check().block(parity);
                let to = stack_mut(folded, check, count).subrows_mut(block.start, block.len());
                matmul(to, Accum::Add, matrix, from, T::one(), Par::Seq);
            }
            s.solve_folded(isa, by, count, |k, density| {
                let to = &mut to[(parents[k] - first) * row..][..row];
                to.copy_from_slice(density);
                net::add(operators, kept, parents[k], to);
            });
        });
    });
}

/// Locals of the boxes of `level`: check values so far, plus the field of the parent's local, solved for
/// the equivalent density in place. `active[b]` says whether box b has a local; rows of `row` numbers, max(C, E)·n and the
/// affine part. `parents` are the operators of the level above.
pub fn l2l<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    parents: Option<&Operators<T>>,
    affine: &Affine<T>,
    active: &[bool],
    isa: Isa,
    scratch: &Pool<Scratch<T>>,
    locals: &mut [T],
    row: usize,
) {
    let boxes = tree.level(level);
    let (upper, mut rest) = locals.split_at_mut(boxes.start * row);
    rest = &mut rest[..boxes.len() * row];
    // Tasks of whole families.
    let mut tasks = Vec::new();
    let mut first = boxes.start;
    while first < boxes.end {
        let (mut end, mut families) = (first, 0);
        while end < boxes.end && families < FAMILIES {
            let parent = tree.parent[end];
            end += tree.parent[end..boxes.end].iter().take_while(|&&p| p == parent).count();
            families += 1;
        }
        let (here, after) = rest.split_at_mut((end - first) * row);
        tasks.push((first, here));
        (rest, first) = (after, end);
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(first, to)| {
        let boxes = first..first + to.len() / row;
        if !active[boxes.clone()].contains(&true) {
            return;
        }
        scratch.with(|s| {
            if let Some(parents) = parents {
                from_parents(tree, lists, boxes, parents, affine, isa, s, upper, to, row);
            }
            let by = operators.downward();
            let (check, density) = (by.check().len(), by.density().len());
            for to in to.chunks_mut(BATCH * row) {
                let columns = to.len() / row;
                let checks = room(&mut s.check, check * columns).chunks_exact_mut(check);
                for (to, from) in checks.zip(to.chunks_exact_mut(row)) {
                    let (from, part) = from.split_at_mut(row - affine.len());
                    to.copy_from_slice(&from[..check]);
                    affine.separate(to, part);
                }
                s.solve(isa, by, columns, |k, d| to[k * row..][..density].copy_from_slice(d));
            }
        });
    });
}

/// Adds the field of the parents' locals `upper` to the check values `to` of whole families `boxes`.
fn from_parents<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    boxes: std::ops::Range<usize>,
    parents: &Operators<T>,
    affine: &Affine<T>,
    isa: Isa,
    s: &mut Scratch<T>,
    upper: &[T],
    to: &mut [T],
    row: usize,
) {
    let by = parents.downward();
    let (check, density) = (by.check().len(), by.density().len());
    let edges = boxes.clone().filter_map(|b| Some((b, *lists.l2l.row(b).first()? as usize)));
    let mut known = [0; FAMILIES];
    let mut count = 0;
    for (_, parent) in edges.clone() {
        if count == 0 || known[count - 1] != parent {
            known[count] = parent;
            count += 1;
        }
    }
    if count == 0 {
        return;
    }
    let locals = room(&mut s.check, density * count);
    for (to, parent) in locals.chunks_exact_mut(density).zip(&known) {
        to.copy_from_slice(&upper[parent * row..][..density]);
    }
    let folded = room(&mut s.folded, density * count);
    dispatch(isa, Fold { side: by.density(), from: locals, to: folded, inverse: false });
    let family = room(&mut s.family, 8 * count * check);
    for (parity, octant, matrix) in by.shifts() {
        let block = by.density().block(parity);
        let from = stack(folded, density, count).subrows(block.start, block.len());
        let to = stack_mut(&mut family[(parity | octant) * count * check..], check, count);
        matmul(to, Accum::Replace, matrix, from, parents.l2l_factor, Par::Seq);
    }
    dispatch(isa, Families { side: by.check(), family, count, inverse: true });
    let mut k = 0;
    for (b, parent) in edges {
        k += (known[k] != parent) as usize;
        let octant = tree.octant[b] as usize;
        let from = &family[(octant * count + k) * check..][..check];
        let (to, part) = to[(b - boxes.start) * row..][..row].split_at_mut(row - affine.len());
        to.iter_mut().zip(from).for_each(|(a, b)| *a += *b);
        affine.hand_down(octant, &upper[(known[k] + 1) * row - affine.len()..][..affine.len()], part);
    }
}
