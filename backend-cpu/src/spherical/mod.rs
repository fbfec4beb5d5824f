//! Spherical harmonics in vectors. So far M2L, the stage that dominates; [`Pairwise::with_m2l`] runs it with the other
//! stages edge by edge.
//!
//! [`Pairwise::with_m2l`]: crate::pairwise::Pairwise::with_m2l

pub mod m2l;

pub use m2l::SphericalM2l;
