//! The far field by spherical harmonics on the device: rows of p² coefficients, in units of a box of side 1.
//!
//! P2M and P2L run the recursions of `fmm_kernels::spherical::basis`. L2P, and M2P of high orders, convert a row to one
//! set of polynomial coefficients per value, and run recursions without square roots (`series`). M2P of low orders
//! converts a row to one polynomial, and sums its derivatives beside (`polynomials`). M2M, M2L and L2L are
//! [`Translation`]s of one of three kinds.

mod operators;
mod plan;
mod polynomials;
mod rotations;
mod series;
mod unrolled;

use fmm_kernels::spherical::Truncation;
use fmm_traits::Real;

pub(crate) use plan::Spherical;
pub use unrolled::{UnrolledShape, rcr_unrolled_program};

/// The ways to translate rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// Products with dense matrices: p⁴ operations, but in whole tiles on the tensor cores. There is one matrix per
    /// octant or offset, the same on all levels. Equivalent densities use the same kernels. Truncation saves
    /// nothing: unused degrees are zeros in the matrices.
    Dense,
    /// Rotate – coaxial – rotate back (Gumerov & Duraiswami 2008, §2.2.2), for many edges of one offset at a time: 2p³
    /// operations. M2L of low orders has all matrices in its code.
    Rcr,
    /// As `Rcr`, but an M2L translation may end at a domain of two or four children: `domains`.
    Domains,
}

impl Translation {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Translation::Dense => "dense",
            Translation::Rcr => "rcr",
            Translation::Domains => "domains",
        }
    }

    /// The faster way for order `p`, measured in docs/notes/gpu-performance.md. In f32, rotations win up to order 14; up
    /// to 12 M2L has unrolled code. In f64, unrolled code is slower than dense products up to order 8, whose rows fill
    /// one tile of a product. At high orders both take about the same time; rotations are chosen there because the dense
    /// matrices (p⁴ numbers each) take memory and time to make.
    pub fn fastest<T: Real>(p: usize) -> Translation {
        match (T::NAME, p) {
            ("f32", ..=14 | 20..) | (_, 9..=12 | 25..) => Translation::Rcr,
            _ => Translation::Dense,
        }
    }
}

/// Options of spherical harmonics on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SphericalSettings {
    /// Whether M2L uses fewer degrees for distant pairs.
    pub truncation: Truncation,
    /// The way to translate rows. `None`: [`fastest`](Translation::fastest).
    pub translation: Option<Translation>,
    /// Whether M2L edges may end at the parents of boxes, as in the lists of the 119 stencil.
    pub parents: bool,
}
