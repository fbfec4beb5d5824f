//! M2M, L2L and the surface solves: products of small matrices with batches of boxes, one parity after the other
//! ([`fmm_kernels::equivalent::symmetry`]).

use super::net;
use super::product::Product;
use crate::lanes::{Isa, Vectorized, dispatch};
use crate::pool::Pool;
use fmm_kernels::equivalent::{Affine, Direction, Operators, Scalar, symmetry::Side};
use fmm_traits::{Edges, Lists, Simd, Tree};
use rayon::prelude::*;
use std::ops::Range;

/// Boxes per matrix product: wide enough for peak speed, small enough to stay in cache.
pub const BATCH: usize = 128;
/// Families per matrix product.
const FAMILIES: usize = BATCH / 4;

/// Layout of an array of expansions: `[box][set of strengths][number]`.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Number of sets of strengths.
    pub sets: usize,
    /// Number of scalars in a row.
    pub len: usize,
}

impl Rows {
    /// Number of scalars of a box.
    pub fn width(self) -> usize {
        self.sets * self.len
    }
    /// Row of box `b` and set `set`.
    pub fn of(self, b: usize, set: usize) -> Range<usize> {
        let start = (b * self.sets + set) * self.len;
        start..start + self.len
    }
    /// The part of `all` that belongs to `set`. All sets have equal parts, one after the other.
    pub fn part<T>(self, all: &[T], set: usize) -> &[T] {
        let count = all.len() / self.sets;
        &all[set * count..(set + 1) * count]
    }
    /// All rows of `boxes`.
    pub fn range(self, boxes: Range<usize>) -> Range<usize> {
        boxes.start * self.width()..boxes.end * self.width()
    }
}

/// Scratch matrices of one thread, one column per box.
#[derive(Default)]
pub struct Scratch<T> {
    /// Check values of a batch.
    pub check: Vec<T>,
    folded: Vec<T>,
    inner: Vec<T>,
    density: Vec<T>,
    /// Rows of a matrix ([`Product::compute`]).
    panel: Vec<T>,
    /// The child in octant o of family k is column `o·families + k`.
    family: Vec<T>,
}

/// The first `len` numbers of `v`, which grows if it is shorter.
pub(super) fn room<T: Scalar>(v: &mut Vec<T>, len: usize) -> &mut [T] {
    if v.len() < len {
        v.resize(len, T::default());
    }
    &mut v[..len]
}

impl<T: Scalar> Scratch<T> {
    /// Check values for `columns` boxes, `len` numbers each, set to zero.
    pub fn clear(&mut self, len: usize, columns: usize) -> &mut [T] {
        let check = room(&mut self.check, len * columns);
        check.fill(T::default());
        check
    }

    /// Solves the given `columns` of `check` for densities. Calls `out(k, density)` for the k-th of these columns.
    pub fn solve(&mut self, isa: Isa, by: Direction<'_, T>, columns: Range<usize>, out: impl FnMut(usize, &[T])) {
        let (len, count) = (by.check().len(), columns.len());
        let from = &mut self.check[len * columns.start..len * columns.end];
        let to = room(&mut self.folded, len * count);
        dispatch(isa, Fold { side: by.check(), from, to, inverse: false });
        self.solve_folded(isa, by, count, out);
    }

    /// As [`solve`](Self::solve), for the first `columns` columns of `folded`.
    fn solve_folded(&mut self, isa: Isa, by: Direction<'_, T>, columns: usize, mut out: impl FnMut(usize, &[T])) {
        let (check, len) = (by.check().len(), by.density().len());
        let density = room(&mut self.density, len * columns);
        for (parity, [left, right]) in by.solves() {
            let rank = right.rows();
            let inner = room(&mut self.inner, rank * columns);
            let from = &self.folded[by.check().block(parity).start..];
            let (factor, add) = (T::one(), false);
            Product { left: right, factor, right: (from, check), columns, add, to: (inner, rank) }
                .compute(isa, &mut self.panel);
            let to = &mut density[by.density().block(parity).start..];
            Product { left, factor, right: (inner, rank), columns, add, to: (to, len) }.compute(isa, &mut self.panel);
        }
        let unfolded = room(&mut self.folded, len * columns);
        dispatch(isa, Fold { side: by.density(), from: density, to: unfolded, inverse: true });
        for (k, density) in unfolded.chunks_exact(len).enumerate() {
            out(k, density);
        }
    }
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

/// M2M: multipoles of the boxes of `level` with `edges`, from the multipoles of their children. A row has E·n numbers
/// (E components of a density on n surface points). `kept` are the net strengths of the boxes. Sets of strengths are
/// done one by one: the boxes of one set fill the matrix products.
pub fn m2m<T: Scalar>(
    tree: &Tree,
    edges: &Edges,
    level: usize,
    operators: &Operators<T>,
    isa: Isa,
    kept: &[Vec<T>],
    scratch: &Pool<Scratch<T>>,
    rows: Rows,
    multipoles: &mut [T],
) {
    let (boxes, by) = (tree.level(level), operators.upward());
    let (check, row) = (by.check().len(), rows.len);
    let (upper, lower) = multipoles.split_at_mut(boxes.end * rows.width());
    let below = boxes.end;
    upper[boxes.start * rows.width()..].par_chunks_mut(FAMILIES * rows.width()).enumerate().for_each(|(i, to)| {
        let first = boxes.start + i * FAMILIES;
        let mut parents = [0; FAMILIES];
        let mut count = 0;
        for b in (first..first + to.len() / rows.width()).filter(|&b| !edges.row(b).is_empty()) {
            parents[count] = b;
            count += 1;
        }
        if count == 0 {
            return;
        }
        scratch.with(|s| {
            for set in 0..rows.sets {
                let family = room(&mut s.family, by.density().octants() * count * row);
                family.fill(T::default());
                for (k, &parent) in parents[..count].iter().enumerate() {
                    for &child in edges.row(parent) {
                        let place = tree.octant[child as usize] as usize * count + k;
                        family[place * row..][..row].copy_from_slice(&lower[rows.of(child as usize - below, set)]);
                    }
                }
                dispatch(isa, Families { side: by.density(), family, count, inverse: false });
                let folded = room(&mut s.folded, check * count);
                folded.fill(T::default());
                for (parity, octant, matrix) in by.shifts() {
                    let from = &family[(parity | octant) * count * row..];
                    let to = &mut folded[by.check().block(parity).start..];
                    let (right, to) = ((from, row), (to, check));
                    Product { left: matrix, factor: T::one(), right, columns: count, add: true, to }
                        .compute(isa, &mut s.panel);
                }
                let kept = rows.part(kept, set);
                s.solve_folded(isa, by, count, |k, density| {
                    let to = &mut to[rows.of(parents[k] - first, set)];
                    to.copy_from_slice(density);
                    net::add(operators, kept, parents[k], to);
                });
            }
        });
    });
}

/// L2L: locals of the boxes of `level`. The stage adds the field of the parent's local to the check values in `locals`
/// and solves for the equivalent density in place. `active[b]` says whether box b has a local. A row has max(C, E)·n
/// numbers (C components of check values, E of a density, n surface points) and the affine part. `parents` are the
/// operators of the level above.
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
    rows: Rows,
    locals: &mut [T],
) {
    let boxes = tree.level(level);
    let (upper, mut rest) = locals.split_at_mut(boxes.start * rows.width());
    rest = &mut rest[..boxes.len() * rows.width()];
    // Each task takes whole families.
    let mut tasks = Vec::new();
    let mut first = boxes.start;
    while first < boxes.end {
        let (mut end, mut families) = (first, 0);
        while end < boxes.end && families < FAMILIES {
            let parent = tree.parent[end];
            end += tree.parent[end..boxes.end].iter().take_while(|&&p| p == parent).count();
            families += 1;
        }
        let (here, after) = rest.split_at_mut((end - first) * rows.width());
        tasks.push((first, here));
        (rest, first) = (after, end);
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(first, to)| {
        let boxes = first..first + to.len() / rows.width();
        if !active[boxes.clone()].contains(&true) {
            return;
        }
        scratch.with(|s| {
            for set in 0..rows.sets {
                if let Some(parents) = parents {
                    from_parents(tree, lists, boxes.clone(), parents, affine, isa, s, upper, to, rows, set);
                }
                let by = operators.downward();
                let (check, density) = (by.check().len(), by.density().len());
                for to in to.chunks_mut(BATCH * rows.width()) {
                    let columns = to.len() / rows.width();
                    for (k, check) in room(&mut s.check, check * columns).chunks_exact_mut(check).enumerate() {
                        let (from, part) = to[rows.of(k, set)].split_at_mut(rows.len - affine.len());
                        check.copy_from_slice(&from[..check.len()]);
                        affine.separate(check, part);
                    }
                    s.solve(isa, by, 0..columns, |k, d| to[rows.of(k, set)][..density].copy_from_slice(d));
                }
            }
        });
    });
}

/// Adds the field of the parents' locals `upper` to the check values `to` of `boxes`, which are whole families.
fn from_parents<T: Scalar>(
    tree: &Tree,
    lists: &Lists,
    boxes: Range<usize>,
    parents: &Operators<T>,
    affine: &Affine<T>,
    isa: Isa,
    s: &mut Scratch<T>,
    upper: &[T],
    to: &mut [T],
    rows: Rows,
    set: usize,
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
    for (to, parent) in locals.chunks_exact_mut(density).zip(&known[..count]) {
        to.copy_from_slice(&upper[rows.of(*parent, set)][..density]);
    }
    let folded = room(&mut s.folded, density * count);
    dispatch(isa, Fold { side: by.density(), from: locals, to: folded, inverse: false });
    let family = room(&mut s.family, by.check().octants() * count * check);
    for (parity, octant, matrix) in by.shifts() {
        let from = &folded[by.density().block(parity).start..];
        let to = &mut family[(parity | octant) * count * check..];
        let (factor, right, to) = (parents.l2l_factor, (from, density), (to, check));
        Product { left: matrix, factor, right, columns: count, add: false, to }.compute(isa, &mut s.panel);
    }
    dispatch(isa, Families { side: by.check(), family, count, inverse: true });
    let mut k = 0;
    for (b, parent) in edges {
        k += (known[k] != parent) as usize;
        let octant = tree.octant[b] as usize;
        let from = &family[(octant * count + k) * check..][..check];
        let (to, part) = to[rows.of(b - boxes.start, set)].split_at_mut(rows.len - affine.len());
        to.iter_mut().zip(from).for_each(|(a, b)| *a += *b);
        affine.hand_down(octant, &upper[rows.of(known[k], set)][rows.len - affine.len()..], part);
    }
}
