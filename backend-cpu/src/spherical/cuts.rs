//! How many degrees of a multipole an M2P edge of a treecode takes.
//!
//! An order is that of the nearest edges. Boxes further away, most of them, need fewer degrees for the same error, as in M2L: the error of
//! typical points, h/2 from the centre, falls by h₁/2 / (D − h₂/2) a degree, and eq. 24 of Gumerov & Duraiswami (2008) keeps the power of the
//! edge where that is largest ([`Truncation::Variable`]; the others take all degrees). M2P edges beside M2L or
//! P2L are near, and take all.

use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::truncation::{degrees, share_of, typical_ratio};
use fmm_traits::{Cube, Lists};
use rayon::prelude::*;

/// The rule for the lists of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// The largest ratio of an edge; none if all edges take all degrees.
    largest: Option<f64>,
}

impl Cuts {
    /// For `lists` on a tree of these boxes.
    pub fn new(boxes: &[Cube], lists: &Lists, truncation: Truncation) -> Self {
        if truncation != Truncation::Variable || lists.m2p.is_empty() || lists.have_locals() {
            return Cuts { largest: None };
        }
        let of_row = |t: usize| {
            let ratio = |&s: &u32| typical_ratio(boxes[t], boxes[s as usize]);
            lists.m2p.row(t).iter().map(ratio).fold(0.0, f64::max)
        };
        Cuts { largest: Some((0..boxes.len()).into_par_iter().map(of_row).reduce(|| 0.0, f64::max)) }
    }

    /// The share of the degrees of `source` that are evaluated in `target`, for [`degrees`].
    pub fn share(&self, target: Cube, source: Cube) -> f64 {
        self.largest.map_or(1.0, |largest| share_of(largest, typical_ratio(target, source)))
    }

    /// The degrees of an M2P edge, of `order`.
    pub fn degrees(&self, target: Cube, source: Cube, order: usize) -> usize {
        degrees(order, self.share(target, source))
    }
}
