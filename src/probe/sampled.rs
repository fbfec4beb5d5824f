//! Placed points as the probe sees them: a tree and its lists, in the memory of the host or of a device.

use fmm_traits::{Error, Hierarchy, Lists};
use fmm_tree::Incoming;
use rayon::prelude::*;

/// A tree with its lists. The arrays that grow with the number of points may lie on a device, so a caller asks for the
/// points and rows that it needs.
pub(crate) trait Sampled {
    /// The boxes, with the ranges of their points. The points themselves may be missing.
    fn boxes(&self) -> &dyn Hierarchy;
    /// A summary of the edges into each box.
    fn incoming(&self) -> Result<Vec<Incoming>, Error>;
    /// The boxes in the P2P rows of some boxes.
    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error>;
    /// For each leaf the sum over its targets of ρ^(2·`half_power`), where ρ is the distance from the centre of the
    /// leaf in sides of the leaf; 0 for other boxes.
    fn corner_sums(&self, half_power: u32) -> Result<Vec<f64>, Error>;
    /// The sources at some positions.
    fn sources(&self, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error>;
    /// The targets at some positions.
    fn targets(&self, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error>;
}

/// A tree with its lists in the memory of the host.
pub(crate) struct OnHost<'a, H> {
    pub tree: &'a H,
    pub lists: &'a Lists,
}

impl<H: Hierarchy> Sampled for OnHost<'_, H> {
    fn boxes(&self) -> &dyn Hierarchy {
        self.tree
    }

    fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        Ok(fmm_tree::incoming(self.tree, self.lists))
    }

    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        Ok(of.iter().flat_map(|&b| self.lists.p2p.row(b as usize)).copied().collect())
    }

    fn corner_sums(&self, half_power: u32) -> Result<Vec<f64>, Error> {
        let of_box = |(b, level): (usize, usize)| {
            let cube = self.tree.cube(b, level);
            let targets = if self.tree.is_leaf(b) { self.tree.targets_of(b) } else { 0..0 };
            targets.map(|at| corner_square(self.tree.target(at), &cube).powi(half_power as i32)).sum()
        };
        let levels = 0..self.tree.levels();
        let boxes: Vec<(usize, usize)> = levels.flat_map(|l| self.tree.level(l).map(move |b| (b, l))).collect();
        Ok(boxes.into_par_iter().map(of_box).collect())
    }

    fn sources(&self, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        Ok(positions.iter().map(|&i| self.tree.source(i as usize)).collect())
    }

    fn targets(&self, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        Ok(positions.iter().map(|&i| self.tree.target(i as usize)).collect())
    }
}

/// The squared distance of a point from the centre of a cube, in squared sides of the cube.
pub(crate) fn corner_square(x: [f64; 3], cube: &fmm_traits::Cube) -> f64 {
    (0..3).map(|a| ((x[a] - cube.center[a]) / cube.side).powi(2)).sum()
}
