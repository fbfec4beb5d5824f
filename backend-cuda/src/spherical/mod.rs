//! The method by spherical harmonics on the device: rows of p² coefficients for boxes of side 1.
//!
//! P2M and P2L run the recursions of `fmm_kernels::spherical::basis`; L2P and M2P those of polynomials without roots, on coefficients
//! that are made of a row for each of the values (`series`). M2M, M2L and L2L are [`Translation`]s of one of two kinds.

mod operators;
mod plan;
mod rotations;
mod series;

use fmm_kernels::spherical::Truncation;
use fmm_traits::Real;

pub(crate) use plan::Spherical;

/// How rows are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// Products with dense matrices, one for each octant or offset and the same on all levels, by the kernels that equivalent densities
    /// have: p⁴ operations, but whole tiles of them on the tensor cores. Distant pairs with fewer degrees have zeros in their
    /// matrices, which save nothing.
    Dense,
    /// Rotate – coaxial – rotate back (Gumerov & Duraiswami 2008, §2.2.2), many edges of one offset at a time: 2p³ operations.
    Rcr,
}

impl Translation {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Translation::Dense => "dense",
            Translation::Rcr => "rcr",
        }
    }

    /// What was faster for order `p` by measurement (docs/notes/gpu-performance.md): in f32 rotations where many rows fit into shared
    /// memory and tiles of products are not full; and where products were not faster by more than 2 %, so that the memory of their
    /// matrices (p⁴ numbers each) and the seconds that they take to make decide.
    pub fn fastest<T: Real>(p: usize) -> Translation {
        match (T::NAME, p) {
            ("f32", 10..=14 | 20..) | (_, 25..) => Translation::Rcr,
            _ => Translation::Dense,
        }
    }
}

/// The variants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SphericalSettings {
    /// Whether M2L uses fewer degrees for distant pairs.
    pub truncation: Truncation,
    /// How rows are translated; `None`: as is [`fastest`](Translation::fastest).
    pub translation: Option<Translation>,
}
