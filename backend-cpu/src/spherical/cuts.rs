//! The number of degrees of a multipole that an M2P edge of a treecode evaluates.
//!
//! The order is chosen for the nearest edges. Most boxes are further away and need fewer degrees for the same error, as
//! in M2L. Typical points lie h/2 from the centre of a box of side h. Their error falls by the ratio
//! h₁/2 / (D − h₂/2) per degree. With [`Truncation::Variable`], eq. 24 of Gumerov & Duraiswami (2008) gives each edge
//! the error of the edge with the largest ratio. Other truncations take all degrees on every edge. In lists with M2L or
//! P2L, M2P edges are near and take all degrees.

use crate::ranks;
use fmm_kernels::spherical::Truncation;
use fmm_kernels::spherical::truncation::{degrees, share_of, typical_ratio};
use fmm_traits::{Cube, Error, Lists, Tree};
use rayon::prelude::*;

/// The truncation rule for the M2P edges of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// The largest ratio of an edge, or `None` if all edges take all degrees.
    largest: Option<f64>,
}

impl Cuts {
    /// The rule for `lists` on `tree`, whose boxes are `boxes`. Ranks that share a tree agree on it.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn new(tree: &Tree, boxes: &[Cube], lists: &Lists, truncation: Truncation) -> Result<Self, Error> {
        if truncation != Truncation::Variable {
            return Ok(Cuts { largest: None });
        }
        let of_row = |t: usize| {
            let ratio = |&s: &u32| typical_ratio(boxes[t], boxes[s as usize]);
            lists.m2p.row(t).iter().map(ratio).fold(0.0, f64::max)
        };
        let locals = lists.have_locals();
        let largest = match locals {
            true => 0.0,
            false => (0..boxes.len()).into_par_iter().map(of_row).reduce(|| 0.0, f64::max),
        };
        let mut agreed = [largest, f64::from(u8::from(locals))];
        ranks::largest(tree, &mut agreed)?;
        Ok(Cuts { largest: (agreed[0] > 0.0 && agreed[1] == 0.0).then_some(agreed[0]) })
    }

    /// The share of the degrees of the multipole of `source` that an edge into `target` evaluates, for [`degrees`].
    pub fn share(&self, target: Cube, source: Cube) -> f64 {
        self.largest.map_or(1.0, |largest| share_of(largest, typical_ratio(target, source)))
    }

    /// The number of degrees that an M2P edge evaluates, out of `order`.
    pub fn degrees(&self, target: Cube, source: Cube, order: usize) -> usize {
        degrees(order, self.share(target, source))
    }
}
