//! Execution on CPU cores: rayon over boxes, SIMD over pairs and frequencies.
//!
//! [`sum`] is the one loop over pairs, [`lanes`] the vectors it runs on, [`direct`] the oracle of sums,
//! [`pairwise`] that of stages.

pub mod direct;
pub mod lanes;
pub mod pairwise;
pub mod soa;
pub mod sum;

pub use direct::{Precision, Targets, direct};
pub use lanes::Isa;
