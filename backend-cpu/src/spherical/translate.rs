//! M2M, M2L and L2L of spherical harmonics, by rotations or term by term.

use super::moves::{Courses, Moves};
use crate::lanes::{Isa, Room};
use crate::pool::Pool;
use crate::ranks;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::direct::Direct;
use fmm_kernels::spherical::shift::Shift;
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation};
use fmm_traits::tree::{Edges, Lists, Tree};
use fmm_traits::{Cube, Error, Real};
use rayon::prelude::*;

/// Translations of one order, and the edges of a tree in the form that the translations need.
pub enum Translations<T> {
    /// Translations by rotations, in O(p³), in batches.
    Rcr {
        /// The prepared translations.
        courses: Courses<T>,
        /// The edges in batches.
        moves: Box<Arranged>,
        /// Scratch vectors for a group of anchors.
        scratch: Pool<Room>,
    },
    /// Translations term by term, in O(p⁴), edge by edge: operators, order, truncation.
    Direct(Direct<T>, usize, Truncation),
}

/// Edges in batches: M2M and L2L level by level, M2L of all levels at once.
#[derive(Default)]
pub struct Arranged {
    up: Vec<Moves>,
    /// M2M that follows an exchange between ranks.
    up_after: Vec<Moves>,
    across: Moves,
    down: Vec<Moves>,
}

impl Arranged {
    fn new<T: Real>(tree: &Tree, lists: &Lists, courses: &mut Courses<T>) -> Result<Self, Error> {
        let level: Vec<u8> = (0..tree.levels()).flat_map(|l| tree.level(l).map(move |_| l as u8)).collect();
        let mut levels = |edges: &Edges, step| -> Result<Vec<Moves>, Error> {
            (0..tree.levels()).map(|l| Moves::new(tree, &level, edges, tree.level(l), step, courses)).collect()
        };
        let (up, down) = (levels(&lists.m2m, Step::Up)?, levels(&lists.l2l, Step::Down)?);
        let up_after = ranks::after(tree).map_or(Ok(Vec::new()), |after| levels(after, Step::Up))?;
        Ok(Arranged {
            up,
            up_after,
            down,
            across: Moves::new(tree, &level, &lists.m2l, 0..tree.len(), Step::Across, courses)?,
        })
    }
}

impl<T: Real> Translations<T> {
    /// The translations of expansions of `order`, for the edges of `lists`.
    ///
    /// # Errors
    /// As [`Moves::new`].
    pub fn new(tree: &Tree, lists: &Lists, order: usize, options: SphericalOptions) -> Result<Self, Error> {
        let mut new = match options.translation {
            Translation::Direct => Translations::Direct(Direct::new(order), order, options.truncation),
            how => {
                let courses = Courses::new(order, options.truncation, how == Translation::Domains);
                Translations::Rcr { courses, moves: Box::default(), scratch: Pool::new(Room::default) }
            }
        };
        new.set_tree(tree, lists)?;
        Ok(new)
    }

    /// Replaces the edges with the edges of another tree. The operators remain.
    ///
    /// # Errors
    /// As [`Moves::new`]. After an error the edges are as before.
    pub fn set_tree(&mut self, tree: &Tree, lists: &Lists) -> Result<(), Error> {
        if let Translations::Rcr { courses, moves, .. } = self {
            **moves = Arranged::new(tree, lists, courses)?;
        }
        Ok(())
    }

    /// M2M: adds to the multipoles of the boxes of `level` the multipoles of their children.
    pub fn up(&self, tree: &Tree, edges: &Edges, level: usize, isa: Isa, multipoles: &mut [T]) {
        self.upward(tree, edges, level, |arranged| &arranged.up[level], isa, multipoles);
    }

    /// As [`up`](Self::up), for the `edges` that follow an exchange between ranks.
    pub fn up_after(&self, tree: &Tree, edges: &Edges, level: usize, isa: Isa, multipoles: &mut [T]) {
        self.upward(tree, edges, level, |arranged| &arranged.up_after[level], isa, multipoles);
    }

    fn upward(
        &self,
        tree: &Tree,
        edges: &Edges,
        level: usize,
        arranged: impl Fn(&Arranged) -> &Moves,
        isa: Isa,
        multipoles: &mut [T],
    ) {
        let boxes = tree.level(level);
        match self {
            Translations::Rcr { courses, moves, scratch } => {
                let (to, from) = multipoles.split_at_mut(boxes.end * courses.row());
                arranged(moves).add(courses, isa, scratch, (boxes.end, from), (0, to));
            }
            Translations::Direct(direct, order, _) => {
                let (to, from) = multipoles.split_at_mut(boxes.end * order * order);
                let to = &mut to[boxes.start * order * order..];
                each_edge(edges, (boxes.start, to), (boxes.end, from), order * order, |b, c, from, to| {
                    direct.m2m(&Shift::up(cube(tree, b), cube(tree, c), *order), from, to);
                });
            }
        }
    }

    /// M2L on all levels: adds the fields of `multipoles` to `locals`.
    pub fn across(&self, tree: &Tree, edges: &Edges, isa: Isa, multipoles: &[T], locals: &mut [T]) {
        match self {
            Translations::Rcr { courses, moves, scratch } => {
                moves.across.add(courses, isa, scratch, (0, multipoles), (0, locals));
            }
            Translations::Direct(direct, order, truncation) => {
                each_edge(edges, (0, locals), (0, multipoles), order * order, |t, s, from, to| {
                    direct.m2l(&Shift::across(cube(tree, t), cube(tree, s), *order, *truncation), from, to);
                });
            }
        }
    }

    /// L2L: adds to the locals of the boxes of `level` the locals of their parents.
    pub fn down(&self, tree: &Tree, edges: &Edges, level: usize, isa: Isa, locals: &mut [T]) {
        let boxes = tree.level(level);
        match self {
            Translations::Rcr { courses, moves, scratch } => {
                let (from, to) = locals.split_at_mut(boxes.start * courses.row());
                moves.down[level].add(courses, isa, scratch, (0, from), (boxes.start, to));
            }
            Translations::Direct(direct, order, _) => {
                let (from, to) = locals.split_at_mut(boxes.start * order * order);
                let to = &mut to[..boxes.len() * order * order];
                each_edge(edges, (boxes.start, to), (0, from), order * order, |b, p, from, to| {
                    direct.l2l(&Shift::down(cube(tree, b), cube(tree, p), *order), from, to);
                });
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        match self {
            Translations::Rcr { courses, moves, scratch } => {
                let moves = moves.up.iter().chain(&moves.up_after).chain(&moves.down).chain([&moves.across]);
                courses.bytes() + moves.map(Moves::bytes).sum::<u64>() + scratch.bytes(Room::bytes)
            }
            Translations::Direct(..) => 0,
        }
    }
}

/// The cube of box `b`.
pub(super) fn cube(tree: &Tree, b: usize) -> Cube {
    let level = tree.level_of(b);
    Cube { center: tree.center(b, level), side: tree.side_at(level) }
}

/// Calls `translate(target, source, row of the source, row of the target)` for each edge. Rows have `len` numbers. `to`
/// begins with the row of box `first`, `from` with the row of box `first_from`.
fn each_edge<T: Real>(
    edges: &Edges,
    (first, to): (usize, &mut [T]),
    (first_from, from): (usize, &[T]),
    len: usize,
    translate: impl Fn(usize, usize, &[T], &mut [T]) + Sync,
) {
    to.par_chunks_mut(len).enumerate().for_each(|(i, to)| {
        for &s in edges.row(first + i) {
            translate(first + i, s as usize, &from[(s as usize - first_from) * len..][..len], to);
        }
    });
}
