//! The equivalent-density method on CPU cores, with densities on surfaces or in volumes. The mathematics and the
//! operators are in [`fmm_kernels::equivalent`]. This module executes the stages:
//!
//! | stage | file |
//! |---|---|
//! | P2M, P2L, L2P, M2P | `points` |
//! | M2M, L2L, surface solves | `translate` |
//! | M2L | `m2l`, with its edges in `families` and its transforms in `dft` |
//! | P2P | `near` in the parent module, shared by all methods in space |

mod dft;
mod families;
mod field;
mod m2l;
mod net;
mod plan;
mod points;
mod product;
mod stages;
mod translate;

pub use plan::plan;
