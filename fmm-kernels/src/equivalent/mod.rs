//! Equivalent densities: the kernel-independent FMM of Ying, Biros & Zorin, "A kernel-independent
//! adaptive fast multipole algorithm in two and three dimensions", J. Comput. Phys. 196 (2004).
//!
//! A multipole is a density on a cube surface close around its box that has the field of the
//! sources outside; a local is a density on a surface far around its box that has the field of
//! the far sources inside. Both are found by matching *check values* on the other surface. Only
//! the kernel's values are needed, so any kernel of an elliptic equation has this expansion.
//!
//! | | equivalent density | check values |
//! |---|---|---|
//! | multipole (upward) | inner surface, [`surface::INNER`] | outer surface, [`surface::OUTER`] |
//! | local (downward) | outer surface | inner surface |
//!
//! # Units
//!
//! All operators belong to a box of side 1 centred at the origin. For a box of side h, strengths
//! and densities are *hatted* (multiplied by h^strength_degree) and values divided by
//! h^value_degree; "Dilation" in [`fmm_traits::kernel`] says why this suffices. A density is
//! stored hatted for its own level; the M2M and L2L matrices contain the factor between levels.
//!
//! # Affine fields
//!
//! A local carries the constant and the slope of its field beside the density: [`affine`].
//!
//! # Order
//!
//! Vectors are component-major: entry `component·n + point`, n = [`surface::len`]`(p)`, points in
//! the order of [`surface::lattice`].
//!
//! # Reflections
//!
//! Kernels that know no left and right have operators in eight small blocks: [`symmetry`].

pub mod accuracy;
pub mod affine;
pub mod cache;
mod dense;
pub mod expansion;
mod matrix;
pub mod net;
pub mod operators;
pub mod spectra;
pub mod surface;
pub mod symmetry;

pub use affine::Affine;
pub use dense::Dense;
pub use expansion::EquivalentExpansion;
pub use matrix::Matrix;
pub use operators::{Direction, MAX_ORDER, MIN_ORDER, OperatorSet, Operators};

/// A working precision with dense linear algebra and fast Fourier transforms: f32 or f64.
pub trait Scalar: fmm_traits::Real + faer::traits::RealField + rustfft::FftNum {}
impl<T: fmm_traits::Real + faer::traits::RealField + rustfft::FftNum> Scalar for T {}

#[cfg(test)]
mod tests;
