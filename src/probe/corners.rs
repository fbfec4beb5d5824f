//! Weights of points that grow towards the corners of their leaves.
//!
//! Errors of expansions are largest at the corners of boxes, at targets as at sources: at distance ρ from the centre an
//! error grows like ρ^p. At order 24 a few points in a thousand make up half of a squared error. So leaves, and points
//! in leaves, are drawn with a probability that grows with ρ, and count by the inverse of their probability.

use super::draw::exact_sum;
use super::sampled::{End, HALF_CORNER_POWER, Sampled, corner_square};
use fmm_traits::{Error, Hierarchy};

/// The weights of the sources, or of the targets, of this rank. The mean over all ranks is 1. One half is the same for
/// all points. The other half grows with the distance ρ from the centre of the leaf like ρ to the power
/// 2·[`HALF_CORNER_POWER`].
pub(super) struct Weights {
    end: End,
    /// The sum of that power of ρ over the points of each leaf (0 for other boxes).
    sums: Vec<f64>,
    /// The mean of that power of ρ over all points; `None` if it is 0 or not finite, and then all weights are 1.
    mean: Option<f64>,
}

impl Weights {
    /// The weights of the sources or targets, of which there are `count` on all ranks.
    pub fn new(site: &impl Sampled, end: End, count: usize) -> Result<Weights, Error> {
        let sums = site.corner_sums(end, HALF_CORNER_POWER)?;
        let mean = exact_sum(site.world(), sums.len(), |b| sums[b])?.map(|sum| sum / count as f64);
        Ok(Weights { end, sums, mean })
    }

    /// The sum of the weights of the points of a leaf.
    pub fn of_leaf(&self, leaf: usize, tree: &impl Hierarchy) -> f64 {
        let count = self.end.range(tree, leaf).len() as f64;
        self.mean.map_or(count, |mean| 0.5 * count + 0.5 * self.sums[leaf] / mean)
    }

    /// The weights of the points of each leaf. A leaf comes with its level.
    pub fn of_points(&self, site: &impl Sampled, leaves: &[(usize, usize)]) -> Result<Vec<Vec<f64>>, Error> {
        let tree = site.boxes();
        let positions = leaves.iter().flat_map(|&(b, _)| self.end.range(tree, b));
        let positions: Vec<u32> = positions.map(|at| at as u32).collect();
        let mut points = site.points(self.end, &positions)?.into_iter();
        let weights = |&(b, level): &(usize, usize)| {
            let cube = tree.cube(b, level);
            let power = |x: [f64; 3]| corner_square(x, &cube).powi(HALF_CORNER_POWER as i32);
            let points = points.by_ref().take(self.end.range(tree, b).len());
            points.map(|x| self.mean.map_or(1.0, |mean| 0.5 + 0.5 * power(x) / mean)).collect()
        };
        Ok(leaves.iter().map(weights).collect())
    }
}
