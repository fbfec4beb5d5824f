//! The near field as a sparse block list: the pairs that a plan sums directly. Boundary-element codes replace exactly
//! these pairs.

use std::borrow::Cow;

/// A dense block of the near field: every one of some targets with every one of some sources. Both may lie in one leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearBlock<'a> {
    /// Indices of targets: rows of the output.
    pub targets: Cow<'a, [u32]>,
    /// Indices of sources.
    pub sources: Cow<'a, [u32]>,
}

impl NearBlock<'_> {
    /// The block of all pairs of `n_targets` targets and `n_sources` sources.
    pub(crate) fn whole(n_targets: usize, n_sources: usize) -> Self {
        let all = |n: usize| Cow::Owned((0..n as u32).collect());
        NearBlock { targets: all(n_targets), sources: all(n_sources) }
    }
}
