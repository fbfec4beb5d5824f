//! The method by equivalent densities on the device: operators, arranged edges, stages.
//!
//! Every operator is a dense matrix applied to many vectors at once: surface solves, M2M and L2L by
//! octant of the child, M2L by offset. Edges of one operator have distinct receivers, so products are
//! added one operator after the other without atomics.

mod arrange;
mod operators;
mod plan;
mod recipe;
mod stages;

pub use plan::Plan;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use fmm_kernels::equivalent::Scalar;

/// A working precision of expansions on the device: f32 or f64.
pub trait DeviceScalar: Scalar + DeviceRepr + ValidAsZeroBits {}
impl<T: Scalar + DeviceRepr + ValidAsZeroBits> DeviceScalar for T {}
