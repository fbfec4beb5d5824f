//! Weights of points that grow towards the corners of their leaves.
//!
//! Errors of expansions are largest at the corners of boxes, at targets as at sources: at distance ρ from the centre an
//! error grows like ρ^p. At order 24 a few points in a thousand make up half of a squared error. So leaves, and points
//! in leaves, are drawn with a probability that grows with ρ, and count by the inverse of their probability.

use super::sampled::{End, HALF_CORNER_POWER, Sampled, corner_square};
use fmm_traits::Error;
use fmm_tree::Leaf;

/// The weights of the sources, or of the targets, of this rank. The mean over all ranks is 1. One half is the same for
/// all points. The other half grows with the distance ρ from the centre of the leaf like ρ to the power
/// 2·[`HALF_CORNER_POWER`].
pub(crate) struct Weights<N> {
    pub end: End,
    /// The sum of that power of ρ over the points of each leaf (0 for other boxes).
    pub sums: N,
    /// The mean of that power of ρ over all points; `None` if it is no normal number (0, infinite), and then all weights are 1.
    pub mean: Option<f64>,
}

impl<N> Weights<N> {
    /// The weights of the sources or targets, of which there are `count` on all ranks.
    pub fn new(site: &impl Sampled<Numbers = N>, end: End, count: usize) -> Result<Self, Error> {
        let (sums, all) = site.corner_sums(end)?;
        Ok(Weights { end, sums, mean: all.map(|all| all / count as f64).filter(|mean| mean.is_normal()) })
    }

    /// The sum of the weights of the points of a leaf. `corners` is the sum of that power of ρ over these points.
    pub fn of_leaf(&self, points: usize, corners: f64) -> f64 {
        let count = points as f64;
        self.mean.map_or(count, |mean| 0.5 * count + 0.5 * corners / mean)
    }

    /// The weights of the points of each leaf.
    pub fn of_points(&self, site: &impl Sampled, leaves: &[&Leaf]) -> Result<Vec<Vec<f64>>, Error> {
        let positions = leaves.iter().flat_map(|leaf| self.end.of_leaf(leaf));
        let positions: Vec<u32> = positions.map(|at| at as u32).collect();
        let mut points = site.points(self.end, &positions)?.into_iter();
        let weights = |leaf: &&Leaf| {
            let power = |x: [f64; 3]| corner_square(x, &leaf.cube).powi(HALF_CORNER_POWER as i32);
            let points = points.by_ref().take(self.end.of_leaf(leaf).len());
            points.map(|x| self.mean.map_or(1.0, |mean| 0.5 + 0.5 * power(x) / mean)).collect()
        };
        Ok(leaves.iter().map(weights).collect())
    }
}
