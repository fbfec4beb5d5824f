//! Execution on CPU cores: rayon over boxes, SIMD over pairs and frequencies.
//!
//! [`sum`] is the loop over pairs that is compiled for each kernel in space, [`lanes`] the vectors it runs on,
//! [`direct`] the oracle of sums, [`pairwise`] that of stages, [`equivalent`] the fast stages of the equivalent-density
//! method, [`spherical`] those of spherical harmonics, [`laurent`] the stages of the two-dimensional method.

// The feature and the cfg leave some code unused. The compiler still checks that code.
#![cfg_attr(any(feature = "develop", without_avx512), allow(dead_code, unused_imports))]

mod admissible;
mod application;
pub mod direct;
mod elsewhere;
pub mod equivalent;
mod frame;
pub mod lanes;
pub mod laurent;
mod leaves;
mod near;
pub mod pairs;
pub mod pairwise;
mod pool;
mod ranks;
pub mod soa;
pub mod spherical;
pub mod sum;
mod traced;

pub use application::Workspaces;
pub use direct::direct_batch;
pub use equivalent::plan;
pub use lanes::Isa;
pub use pairs::Pairs;

use fmm_traits::{Error, Kernels, Lists, NearField, NearFields, Precision, Solver, Tree};
use std::path::PathBuf;
use std::sync::Arc;

/// How a plan computes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Order p of the expansion.
    pub order: usize,
    /// Precision of the arithmetic; values are always summed over boxes in f64.
    pub precision: Precision,
    /// Instruction set.
    pub isa: Isa,
    /// Folder in which operators are kept between runs; `None`: in memory only.
    pub cache: Option<PathBuf>,
    /// Another processor that sums the near field meanwhile; `None`: the cores sum it.
    pub near: Option<Arc<dyn NearFields>>,
}

impl Settings {
    /// The near field of a tree, if another processor sums it.
    pub(crate) fn near_of(
        &self,
        kernels: &Kernels,
        tree: &Tree,
        lists: &Lists,
    ) -> Result<Option<Arc<dyn NearField>>, Error> {
        self.near.as_ref().map(|near| near.place(kernels, tree, lists)).transpose()
    }
}

/// A [`Solver`] on an octree of the host, whose points can be exchanged. Each call of
/// [`apply`](Solver::apply) takes a workspace of its own.
pub trait OctreeSolver: Solver {
    /// The tree.
    fn tree(&self) -> &Tree;
    /// The edge lists.
    fn lists(&self) -> &Lists;
    /// Exchanges the points: a new tree and its lists. Buffers and operators are kept.
    ///
    /// # Errors
    /// [`Error::Edge`] of an edge that the expansion cannot take. The solver is then as before.
    fn set_tree(&mut self, tree: Tree, lists: Lists) -> Result<(), Error>;
}

/// The power of two at or below `x` > 0; 1 for what has none.
pub(crate) fn power_of_two(x: f64) -> f64 {
    // Exponent bits alone; subnormal numbers give 0.
    let power = f64::from_bits(x.to_bits() & (0x7ff << 52));
    if power > 0.0 && power.is_finite() { power } else { 1.0 }
}
