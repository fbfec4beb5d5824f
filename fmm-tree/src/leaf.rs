//! The facts about a leaf that a probe needs, in place of the tree, which may be in the memory of a device.

use fmm_traits::Cube;
use std::ops::Range;

/// A leaf of a tree, with what a probe asks of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// The number of the box.
    pub number: u32,
    /// The cube that stands for the box in the operators of an expansion.
    pub cube: Cube,
    /// The range of its sources, as indices in tree order (positions).
    pub sources: Range<usize>,
    /// The range of its targets, as indices in tree order.
    pub targets: Range<usize>,
    /// The sum over its sources, or over its targets, of a power of their distance from its centre in sides of the leaf;
    /// 0 if this sum was not asked for.
    pub corners: f64,
    /// A factor of the weights of its points; 1 if there are no such factors.
    pub factor: f64,
    /// Whether a P2P edge leads from its sources to one of some chosen leaves, or to a box above one.
    pub near: bool,
    /// Whether an M2L, M2P or P2L edge leads from it, or from a box above it, to one of the chosen leaves.
    pub close: bool,
}
