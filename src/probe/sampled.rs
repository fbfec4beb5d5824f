//! Placed points as the probe sees them: a tree and its lists, in the memory of the host or of a device.

use super::draw::{exact_sum, totals};
use crate::variant::Truncation;
use fmm_dist::{Placed, World};
use fmm_traits::{Error, Hierarchy, Lists, Tree};
use fmm_tree::{DISTANCES, Incoming};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::LazyLock;

/// One of the two kinds of points.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum End {
    Sources,
    Targets,
}

impl End {
    /// The points of a box.
    pub fn range(self, tree: &impl Hierarchy, b: usize) -> Range<usize> {
        match self {
            End::Sources => tree.sources_of(b),
            End::Targets => tree.targets_of(b),
        }
    }

    /// A point by its position.
    fn point(self, tree: &impl Hierarchy, at: usize) -> [f64; 3] {
        match self {
            End::Sources => tree.source(at),
            End::Targets => tree.target(at),
        }
    }
}

/// Half the power of ρ in the weight of a point, where ρ is its distance from the centre of its leaf in sides of the
/// leaf. The square of an error of order 12 grows like ρ^24.
pub(crate) const HALF_CORNER_POWER: u32 = 12;

/// Smallest number of boxes for a task of a thread.
pub(crate) const BOXES_OF_A_TASK: usize = 4096;

/// The level of a box.
pub(crate) fn level_of(tree: &impl Hierarchy, b: usize) -> usize {
    (0..tree.levels()).find(|&level| tree.level(level).contains(&b)).unwrap_or_default()
}

/// The leaves that `has` chooses, by number.
pub(crate) fn leaves(tree: &impl Hierarchy, has: impl Fn(usize) -> bool + Sync) -> Vec<u32> {
    let boxes = (0..tree.boxes() as u32).into_par_iter().with_min_len(BOXES_OF_A_TASK);
    boxes.filter(|&b| tree.is_leaf(b as usize) && has(b as usize)).collect()
}

/// A function that computes direct sums in f64: (sources, sets of strengths, targets) → the rows of each set.
pub(crate) type Direct<'a> = &'a dyn Fn(&[f64], &[&[f64]], &[f64]) -> Result<Vec<Vec<f64>>, Error>;

/// The only rank.
static ALONE: LazyLock<World> = LazyLock::new(World::default);

/// A tree with its lists. The arrays that grow with the number of points may lie on a device, so a caller asks for the
/// points and rows that it needs. Several ranks may share the points; each then has a part of them, and all ask the
/// same in the same order.
pub(crate) trait Sampled {
    /// The kind of tree.
    type Boxes: Hierarchy;
    /// The ranks that share the points.
    fn world(&self) -> &World {
        &ALONE
    }
    /// The boxes, with the ranges of their points. The points themselves may be missing.
    fn boxes(&self) -> &Self::Boxes;
    /// A summary of the edges into each box.
    fn incoming(&self) -> Result<Vec<Incoming>, Error>;
    /// A factor for the weights of the targets of each box, whose mean over the targets of all ranks is 1: one half
    /// is the same for all boxes, the other half is made up of the numbers of [`fmm_tree::far_squares`], each array divided
    /// by its mean over all targets, with equal shares. Arrays whose mean is no normal number (0, infinite) are left out;
    /// `None` if that leaves none.
    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error>;
    /// The boxes in the P2P rows of some boxes, and of those that other ranks ask for.
    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error>;
    /// The boxes in the M2L, M2P and P2L rows of some boxes, and of those that other ranks ask for.
    fn far_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error>;
    /// For each leaf the sum over its sources or targets of ρ^(2·`half_power`), where ρ is the distance from the centre
    /// of the leaf in sides of the leaf; 0 for other boxes.
    fn corner_sums(&self, of: End, half_power: u32) -> Result<Vec<f64>, Error>;
    /// The sources or targets at some positions.
    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error>;
    /// The indices of the sources at some positions, in the array of the caller.
    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error>;
    /// Direct sums from the sources at some positions to the targets at some positions, which count as separate points:
    /// the rows of each set of strengths. `direct` computes direct sums of points with `dim` coordinates on the host.
    fn sums(
        &self,
        sources: &[u32],
        strengths: &[&[f64]],
        targets: &[u32],
        (dim, direct): (usize, Direct),
    ) -> Result<Vec<Vec<f64>>, Error> {
        let [sources, targets] = [(End::Sources, sources), (End::Targets, targets)]
            .map(|(end, positions)| self.points(end, positions).map(|points| coordinates(dim, points)));
        direct(&sources?, strengths, &targets?)
    }
}

/// The first `dim` coordinates of each point, point by point.
fn coordinates(dim: usize, points: Vec<[f64; 3]>) -> Vec<f64> {
    points.into_iter().flat_map(|x| x.into_iter().take(dim)).collect()
}

/// A tree with its lists in the memory of the host.
pub(crate) struct OnHost<'a, H> {
    pub tree: &'a H,
    pub lists: &'a Lists,
    /// The opening angle θ of a treecode, whatever its expansion: one sample serves all expansions.
    pub theta: Option<f64>,
}

impl<H: Hierarchy> OnHost<'_, H> {
    /// [`Sampled::far_factors`], if the tree is that of one of several ranks. All ranks call it together.
    fn factors(&self, world: &World, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error> {
        let tree = self.tree;
        let share = |target, source| Truncation::Variable.of_m2p(self.theta, target, source);
        let [count] = totals(world, [tree.targets_of(0).len()])?;
        let mut parts = Vec::new();
        for squares in fmm_tree::far_squares(tree, self.lists, weights, half_power, share) {
            let of_leaf = |b: usize| tree.targets_of(b).len() as f64 * squares[b];
            let mean = exact_sum(world, squares.len(), of_leaf)?.map(|sum| sum / count as f64);
            parts.extend(mean.filter(|mean| mean.is_normal()).map(|mean| (squares, mean)));
        }
        let share = 0.5 / parts.len() as f64;
        let of_box = |b: usize| 0.5 + parts.iter().map(|(squares, mean)| share * squares[b] / mean).sum::<f64>();
        let boxes = (0..tree.boxes()).into_par_iter().with_min_len(BOXES_OF_A_TASK);
        Ok((!parts.is_empty()).then(|| boxes.map(of_box).collect()))
    }
}

impl<H: Hierarchy> Sampled for OnHost<'_, H> {
    type Boxes = H;

    fn boxes(&self) -> &H {
        self.tree
    }

    fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        Ok(fmm_tree::incoming(self.tree, self.lists))
    }

    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error> {
        self.factors(self.world(), weights, half_power)
    }

    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        Ok(of.iter().flat_map(|&b| self.lists.p2p.row(b as usize)).copied().collect())
    }

    fn far_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        let l = self.lists;
        let rows = |&b: &u32| [&l.m2l, &l.m2p, &l.p2l].into_iter().flat_map(move |e| e.row(b as usize));
        Ok(of.iter().flat_map(rows).copied().collect())
    }

    fn corner_sums(&self, of: End, half_power: u32) -> Result<Vec<f64>, Error> {
        Ok(corner_sums(self.tree, of, half_power))
    }

    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        Ok(positions.iter().map(|&i| of.point(self.tree, i as usize)).collect())
    }

    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        let order = self.tree.source_order();
        Ok(positions.iter().map(|&i| order[i as usize]).collect())
    }
}

/// The tree of a rank with its lists. Sources are those that the rank owns.
pub(crate) struct OnRank<'a> {
    pub placed: &'a Placed,
    pub lists: &'a Lists,
    /// The opening angle θ of a treecode.
    pub theta: Option<f64>,
}

impl OnRank<'_> {
    fn here(&self) -> OnHost<'_, Tree> {
        OnHost { tree: self.placed.tree(), lists: self.lists, theta: self.theta }
    }
}

impl Sampled for OnRank<'_> {
    type Boxes = Tree;

    fn world(&self) -> &World {
        self.placed.world()
    }

    fn boxes(&self) -> &Tree {
        self.placed.tree()
    }

    fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        self.here().incoming()
    }

    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error> {
        self.here().factors(self.world(), weights, half_power)
    }

    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        self.placed.named(&self.here().near_rows(of)?)
    }

    fn far_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        self.placed.named(&self.here().far_rows(of)?)
    }

    fn corner_sums(&self, of: End, half_power: u32) -> Result<Vec<f64>, Error> {
        self.here().corner_sums(of, half_power)
    }

    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        self.here().points(of, positions)
    }

    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        self.here().indices(positions)
    }
}

/// [`Sampled::corner_sums`] of a tree in the memory of the host.
pub(crate) fn corner_sums<H: Hierarchy>(tree: &H, of: End, half_power: u32) -> Vec<f64> {
    let of_box = |(b, level): (usize, usize)| {
        let cube = tree.cube(b, level);
        let points = if tree.is_leaf(b) { of.range(tree, b) } else { 0..0 };
        points.map(|at| corner_square(of.point(tree, at), &cube).powi(half_power as i32)).sum()
    };
    let levels = 0..tree.levels();
    let boxes: Vec<(usize, usize)> = levels.flat_map(|l| tree.level(l).map(move |b| (b, l))).collect();
    boxes.into_par_iter().map(of_box).collect()
}

/// The squared distance of a point from the centre of a cube, in squared sides of the cube.
pub(crate) fn corner_square(x: [f64; 3], cube: &fmm_traits::Cube) -> f64 {
    (0..3).map(|a| ((x[a] - cube.center[a]) / cube.side).powi(2)).sum()
}
