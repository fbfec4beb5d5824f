//! The geometry of a translation from the centre of one box to the centre of another box.

use super::truncation::Truncation;
use fmm_traits::Cube;

/// One translation.
///
/// Rows are in units of a box of side 1: for a box of side h, a multipole is Σ q R(y/h) and a local stands for the
/// field Σ L R(x/h)/h. Neither over- or underflows, whatever the side, and a translation depends only on ratios of
/// lengths.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shift {
    /// Centre of the target minus centre of the source (M2L), or centre of the child minus centre of the parent (M2M,
    /// L2L).
    pub offset: [f64; 3],
    /// Side of the box translated from.
    pub from_side: f64,
    /// Side of the box translated to.
    pub to_side: f64,
    /// Orders read and written.
    pub orders: [usize; 2],
}

impl Shift {
    /// Child to parent: all orders.
    pub fn up(parent: Cube, child: Cube, order: usize) -> Self {
        Shift { from_side: child.side, to_side: parent.side, ..Self::between(child, parent, order) }
    }

    /// Parent to child: all orders.
    pub fn down(child: Cube, parent: Cube, order: usize) -> Self {
        Shift { from_side: parent.side, to_side: child.side, ..Self::between(child, parent, order) }
    }

    /// Source to target, truncated as `truncation` says.
    pub fn across(target: Cube, source: Cube, order: usize, truncation: Truncation) -> Self {
        let orders = truncation.orders(target, source, order);
        Shift { from_side: source.side, to_side: target.side, orders, ..Self::between(target, source, order) }
    }

    fn between(a: Cube, b: Cube, order: usize) -> Self {
        let offset = std::array::from_fn(|i| a.center[i] - b.center[i]);
        Shift { offset, from_side: 1.0, to_side: 1.0, orders: [order; 2] }
    }

    /// Length of the offset.
    pub fn distance(&self) -> f64 {
        let [x, y, z] = self.offset;
        // `hypot`, because a sum of squares may overflow.
        x.hypot(y).hypot(z)
    }
}
