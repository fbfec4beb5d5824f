//! The near field as a sparse block list: which pairs a plan sums directly. Boundary-element
//! codes replace exactly these.

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
