//! The equivalent-density method on CPU cores. Mathematics and operators:
//! [`fmm_kernels::equivalent`]; here is their execution, a file a stage:
//!
//! | stage | file |
//! |---|---|
//! | P2M, P2L, L2P, M2P | `points` |
//! | M2M, L2L, surface solves | `translate` |
//! | M2L | `m2l`, with its edges in `families` and its transforms in `dft` |
//! | P2P | `near`, one storey up: that of every method in space |

mod dft;
mod families;
mod m2l;
mod net;
mod plan;
mod points;
mod stages;
mod translate;

pub use plan::plan;
