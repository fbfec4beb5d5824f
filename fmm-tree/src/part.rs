//! The part of a tree that one of several ranks builds from its own points.
//!
//! A rank owns whole boxes of the tree of all ranks. Boxes above are *forced*: they are split because all ranks together
//! have enough points in them. Below, a rank has all points of a box, and splits it as one rank would.

use crate::build::{self, Forced, Sorted};
use crate::morton::{self, Frame, KEY_LEVELS};
use crate::root::Root;
use fmm_traits::{Error, Tree};
use rayon::prelude::*;

/// The points of a rank in Morton order.
pub struct Part {
    root: Root,
    limit: usize,
    sets: Vec<Sorted>,
}

impl Part {
    /// Sorts `sources` and `targets` (N×3, row-major; `None`: targets are the sources) in the root cube with this lower
    /// corner and side. Points of one key keep their order. No box is deeper than level `limit`.
    pub fn new(sources: &[f64], targets: Option<&[f64]>, corner: [f64; 3], side: f64, limit: usize) -> Part {
        let frame = Frame::new(corner, side);
        let sets = std::iter::once(sources).chain(targets).map(|a| Sorted::new(a, &frame)).collect();
        Part { root: Root { corner, side }, limit, sets }
    }

    /// The boxes of these points, without the points. A box is split if `forced(level, anchor)`, or as
    /// [`build`](crate::build()) would split it.
    ///
    /// # Errors
    /// [`Error::TooMany`] boxes.
    pub fn boxes(&mut self, ncrit: usize, forced: Forced) -> Result<Tree, Error> {
        build::split(self.root, &mut self.sets, ncrit, self.limit.min(KEY_LEVELS), forced)
    }

    /// Gives `tree`, which [`boxes`](Self::boxes) made with the same `ncrit`, its points, after splitting boxes whose
    /// points one key does not separate. Returns also the number of positions with several points, and the most points
    /// at one position.
    ///
    /// # Errors
    /// [`Error::TooMany`] boxes.
    pub fn finish(mut self, mut tree: Tree, ncrit: usize, forced: Forced) -> Result<(Tree, (usize, usize)), Error> {
        if tree.levels() > KEY_LEVELS && self.limit > KEY_LEVELS {
            tree = build::split(self.root, &mut self.sets, ncrit, self.limit, forced)?;
        }
        let groups = build::coincident(&tree, &self.sets);
        build::attach(&mut tree, self.sets);
        Ok((tree, groups))
    }

    /// Numbers of ordered pairs of different sources, and of different targets, in one leaf of `tree`.
    pub fn pairs(tree: &Tree) -> [f64; 2] {
        [&tree.source_range, &tree.target_range].map(|ranges| build::pairs(tree, ranges))
    }
}

/// The keys of points (N×3, row-major) in the root cube with this lower corner and side: 63 bits, of which three for
/// each of 21 levels choose the child of a box.
pub fn keys(points: &[f64], corner: [f64; 3], side: f64) -> Vec<u64> {
    let frame = Frame::new(corner, side);
    points.as_chunks::<3>().0.par_iter().with_min_len(1024).map(|&p| frame.key(p)).collect()
}

/// The octant of a key of [`keys`] in its box of a level below 21.
pub fn octant_of(key: u64, level: usize) -> usize {
    morton::octant(key, level)
}
