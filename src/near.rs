//! The near field as a sparse block list: the pairs that a plan sums directly. Boundary-element codes replace exactly
//! these pairs.

use std::borrow::Cow;

/// A dense block of the near field: all pairs of its targets with its sources. Its targets and its sources may be the
/// points of the same leaf.
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
