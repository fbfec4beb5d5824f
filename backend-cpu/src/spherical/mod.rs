//! Spherical harmonics on CPU cores. Mathematics and operators: [`fmm_kernels::spherical`]; here is their execution:
//!
//! | stage | file |
//! |---|---|
//! | P2M, P2L, L2P, M2P | `points`; degrees of M2P: `cuts` |
//! | M2M, M2L, L2L | `translate`, batched by `moves` |
//! | P2P | `near`, one storey up: that of every method in space |
//!
//! Any list policy: U, V, W, X, the 119 stencil, a treecode.

pub mod cuts;
mod moves;
mod plan;
mod points;
mod stages;
mod translate;

pub use plan::plan;
