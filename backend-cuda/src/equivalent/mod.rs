//! The far field by equivalent densities on the device: operators, sorted edges and stages.
//!
//! Surface solves, M2M and L2L (by octant of the child) are dense matrices applied to many vectors at once. M2L goes
//! through Fourier space, family by family. If the V list does not follow the U, V, W, X rules, or if spectra do not
//! fit into memory, M2L uses one dense matrix per offset instead. Edges with the same operator have distinct
//! receivers, so products are added without atomics.

mod affine;
mod fourier;
mod operators;
mod plan;
mod recipe;
mod stages;

pub(crate) use plan::Equivalent;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use fmm_kernels::equivalent::Scalar;

/// A working precision of expansions on the device: f32 or f64.
pub trait DeviceScalar: Scalar + DeviceRepr + ValidAsZeroBits {}
impl<T: Scalar + DeviceRepr + ValidAsZeroBits> DeviceScalar for T {}
