//! A near field on a processor of its own: one processor sums the near pairs while another one translates (Hu, Gumerov &
//! Duraiswami 2012, §III-B).

use crate::{Error, Kernels, Lists, Tree};
use std::fmt::Debug;
use std::sync::Arc;

/// A processor that sums the near fields of plans on another processor.
pub trait NearFields: Debug + Send + Sync {
    /// The near field of `kernels` on a tree, by its P2P edges. On several ranks the sources of the tree include ghosts, and
    /// [`NearField::sums`] gets the strengths of ghosts, too.
    ///
    /// # Errors
    /// Errors of the processor.
    fn place(&self, kernels: &Kernels, tree: &Tree, lists: &Lists) -> Result<Arc<dyn NearField>, Error>;
}

/// The near field of the points of a tree.
pub trait NearField: Send + Sync {
    /// The sums over the near pairs, without the scale of the kernels: `strengths` (sources × strengths) → targets × values,
    /// both in tree order. Returns when the sums are done. Calls from several threads run one after the
    /// other.
    ///
    /// # Errors
    /// Errors of the processor.
    fn sums(&self, strengths: &[f64]) -> Result<Vec<f64>, Error>;
}
