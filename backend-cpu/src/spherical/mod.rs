//! The method by spherical harmonics on CPU cores. The mathematics and the operators are in [`fmm_kernels::spherical`].
//! This module executes the stages:
//!
//! | stage | file |
//! |---|---|
//! | P2M, P2L, L2P, M2P | `points` |
//! | M2M, M2L, L2L | `translate`, batched by `moves` |
//! | P2P | `near` in the parent module, shared by all methods in space |
//!
//! All list policies work: U, V, W, X, the 119 stencil, a treecode.

mod moves;
mod plan;
mod points;
mod stages;
mod translate;

pub use plan::plan;
