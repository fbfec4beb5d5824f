//! Points in a tree with its lists, as the probe sees them, in the memory of the host or of a device.
//!
//! The arrays that grow with the number of points or boxes stay where they are. A sample is drawn there, and a caller gets
//! the leaves, points and sums that it asks for. Several ranks may share the points; each then has a part of them, and all
//! ask the same in the same order.

use super::corners::Weights;
use super::draw::Span;
use super::sources::{Chances, Sources};
use fmm_dist::World;
use fmm_traits::{Cube, Error, Hierarchy};
use fmm_tree::{DISTANCES, Leaf};
use std::collections::BTreeMap;
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

    /// The points of a leaf.
    pub fn of_leaf(self, leaf: &Leaf) -> Range<usize> {
        match self {
            End::Sources => leaf.sources.clone(),
            End::Targets => leaf.targets.clone(),
        }
    }

    /// A point by its position.
    pub fn point(self, tree: &impl Hierarchy, at: usize) -> [f64; 3] {
        match self {
            End::Sources => tree.source(at),
            End::Targets => tree.target(at),
        }
    }
}

/// Half the power of ρ in the weight of a point, where ρ is its distance from the centre of its leaf in sides of the
/// leaf. The square of an error of order 12 grows like ρ^24.
pub(crate) const HALF_CORNER_POWER: u32 = 12;

/// A function that computes direct sums in f64: (sources, sets of strengths, targets) → the rows of each set.
pub(crate) type Direct<'a> = &'a (dyn Fn(&[f64], &[&[f64]], &[f64]) -> Result<Vec<Vec<f64>>, Error> + Sync);

/// The only rank.
pub(super) static ALONE: LazyLock<World> = LazyLock::new(World::default);

/// Leaves of all ranks in a row, class by class. Each leaf is as long as its weight in [units](super::draw::UNITS).
pub(crate) trait Row {
    /// The lengths of the classes.
    fn lengths(&self) -> BTreeMap<u64, Span>;
    /// The leaves at some places. For each request, returns the leaves of this rank at its places, each with the index of the
    /// place in the request.
    ///
    /// Example: classes 3 and 5 have the lengths 10 and 4. Place 12 of a request for both is 2 units into class 5.
    fn at(&self, requests: &[Request]) -> Result<Vec<Vec<(usize, Leaf)>>, Error>;
}

/// Places in a row that has the leaves of some classes, one class behind the other.
pub(crate) struct Request {
    pub classes: Vec<u64>,
    /// Distances from the start of that row in units, ascending.
    pub places: Vec<u128>,
}

/// The leaves with targets, by kind. A class has a code of a [kind](super::kind::Kind).
pub(crate) trait Kinds: Row {
    /// The numbers of targets and of leaves in each class, on all ranks.
    fn counts(&self) -> BTreeMap<u64, [usize; 2]>;
    /// All leaves of this rank, with their classes.
    fn leaves(&self) -> Result<Vec<(u64, Leaf)>, Error>;
}

/// Access to a tree and its lists, for the draw of a sample.
pub(crate) trait Sampled: Sync {
    /// A number for each box.
    type Numbers;
    /// For each box, whether its sources are near some chosen leaves, and whether they are close: [`Leaf::near`],
    /// [`Leaf::close`].
    type NearAndClose;
    /// The ranks that share the points.
    fn world(&self) -> &World {
        &ALONE
    }
    /// Number of sources or targets of this rank.
    fn count(&self, of: End) -> usize;
    /// Whether targets are the sources.
    fn same_points(&self) -> bool;
    /// The side of the root.
    fn root_side(&self) -> f64;
    /// For each leaf the sum over its sources or targets of ρ^(2·[`HALF_CORNER_POWER`]), where ρ is the distance from the centre
    /// of the leaf in sides of the leaf; 0 for other boxes. And the sum over all leaves of all ranks; `None` if it is 0 or
    /// not finite.
    fn corner_sums(&self, of: End) -> Result<(Self::Numbers, Option<f64>), Error>;
    /// A factor for the weights of the targets of each box b: ½ + Σₖ sₖ(b) / (2 K mean(sₖ)). The sₖ are the K arrays of
    /// [`fmm_tree::far_squares`] for these weights of edges, and the means are over the targets of all ranks. So the mean of the
    /// factor is 1. An array whose mean is no normal number (0, infinite) is left out; `None` if that leaves none.
    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Self::Numbers>, Error>;
    /// The leaves with targets, each as long as its factor times its weight. There are `targets` targets on all ranks. A leaf
    /// comes with its factor.
    fn by_kind<'a>(
        &'a self,
        weights: &'a Weights<Self::Numbers>,
        factors: Option<&'a Self::Numbers>,
        targets: usize,
    ) -> Result<Box<dyn Kinds + 'a>, Error>;
    /// Marks the boxes that are near or close to these leaves, or to leaves that other ranks name in the same call.
    fn near_and_close(&self, leaves: &[u32]) -> Result<Self::NearAndClose, Error>;
    /// The weight of all sources, and that of the close sources, on all ranks.
    fn weights_of_sources(
        &self,
        weights: &Weights<Self::Numbers>,
        near_and_close: &Self::NearAndClose,
    ) -> Result<[f64; 2], Error>;
    /// The leaves from which some sources are drawn at random, each as long as its chance. Leaves that give all their sources
    /// ([`Chances::takes`]) are left out. The classes, in ascending order, have the leaves in the order of boxes. A leaf comes
    /// with its [`Leaf::corners`].
    fn by_chance<'a>(
        &'a self,
        weights: &'a Weights<Self::Numbers>,
        near_and_close: &'a Self::NearAndClose,
        chances: &'a Chances,
    ) -> Result<Box<dyn Row + 'a>, Error>;
    /// The leaves of this rank whose sources are near, or all its leaves with sources.
    fn leaves_with_sources(&self, near_and_close: &Self::NearAndClose, all: bool) -> Result<Vec<Leaf>, Error>;
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
    /// Computes two kinds of sums. They may run side by side; if they do not, `first` comes first.
    fn both_sums<A: Send, B: Send>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        rayon::join(first, second)
    }
    /// [`sums`](Self::sums) for sets of [normal](Sources::normal) strengths, each of `components` numbers per source.
    fn sums_of_normal(
        &self,
        sources: &Sources,
        (sets, components): (usize, usize),
        targets: &[u32],
        host: (usize, Direct),
    ) -> Result<Vec<Vec<f64>>, Error> {
        let normal = sources.normal(sets, components);
        self.sums(&sources.positions, &slices(&normal), targets, host)
    }
}

/// Each set as a slice.
pub(super) fn slices(sets: &[Vec<f64>]) -> Vec<&[f64]> {
    sets.iter().map(|set| &set[..]).collect()
}

/// The first `dim` coordinates of each point, point by point.
fn coordinates(dim: usize, points: Vec<[f64; 3]>) -> Vec<f64> {
    points.into_iter().flat_map(|x| x.into_iter().take(dim)).collect()
}

/// The squared distance of a point from the centre of a cube, in squared sides of the cube.
pub(crate) fn corner_square(x: [f64; 3], cube: &Cube) -> f64 {
    (0..3).map(|a| ((x[a] - cube.center[a]) / cube.side).powi(2)).sum()
}
