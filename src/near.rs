//! The near field as a sparse block list: which pairs a plan sums directly. Boundary-element
//! codes replace exactly these.

use crate::plan::Plan;
use std::borrow::Cow;

/// A dense block of the near field: every target of one leaf with every source of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearBlock<'a> {
    /// Rows of the output.
    pub targets: Cow<'a, [u32]>,
    /// Indices of sources.
    pub sources: Cow<'a, [u32]>,
}

impl NearBlock<'_> {
    /// All pairs of so many targets and sources.
    pub(crate) fn whole(n_targets: usize, n_sources: usize) -> Self {
        let all = |n: usize| Cow::Owned((0..n as u32).collect());
        NearBlock { targets: all(n_targets), sources: all(n_sources) }
    }
}

impl Plan {
    /// The blocks of pairs that are summed directly, in the caller's indices. No pair is in two
    /// blocks. Where targets are the sources the pair (i, i) is in a block but skipped by the sum.
    /// A direct plan is one block.
    pub fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        match &self.engine {
            Some(engine) => engine.near_field(),
            None => Box::new(std::iter::empty()),
        }
    }
}
