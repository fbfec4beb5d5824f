//! The method by spherical harmonics on the device: rows of p² coefficients for boxes of side 1.
//!
//! P2M, P2L, L2P and M2P run the recursions of `fmm_kernels::spherical::basis`; M2M, M2L and L2L are products with dense
//! matrices, one for each octant or offset and the same on all levels, by the kernels that equivalent densities have. That is p⁴
//! operations instead of the p³ of rotations, but whole tiles of them on the tensor cores. Distant pairs with fewer degrees have
//! zeros in their matrices, which save nothing.

mod operators;
mod plan;

pub(crate) use plan::Spherical;
