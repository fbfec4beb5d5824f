//! The equivalent-density method on CPU cores. Mathematics and operators:
//! [`fmm_kernels::equivalent`]; here is their execution, a file a stage:
//!
//! | stage | file |
//! |---|---|
//! | P2M, P2L, L2P, M2P | `points` |
//! | M2M, L2L, surface solves | `translate` |
//! | M2L | `m2l`, with its edges in `families` and its transforms in `dft` |
//! | P2P | `near` |

pub mod dft;
pub mod families;
pub mod m2l;
pub mod near;
mod net;
pub mod plan;
pub mod points;
pub mod pool;
mod stages;
pub mod translate;

pub use plan::plan;
