//! The far field by equivalent densities on the device: operators, sorted edges and stages.
//!
//! Surface solves, M2M and L2L (by octant of the child) are dense matrices applied to many vectors at once. M2L goes
//! through Fourier space, family by family. If the V list does not follow the U, V, W, X rules, or if spectra do not
//! fit into memory, M2L uses one dense matrix per offset instead. Edges with the same operator have distinct
//! receivers, so products are added without atomics.

mod affine;
mod fields;
mod fourier;
mod operators;
mod plan;
mod recipe;
mod stages;

pub(crate) use fields::Fields;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use fmm_kernels::equivalent::Scalar;
use fmm_traits::Number;

/// A type of numbers on the device: f32 or f64.
pub trait DeviceScalar: Scalar + Number + DeviceRepr + ValidAsZeroBits {}
impl<T: Scalar + Number + DeviceRepr + ValidAsZeroBits> DeviceScalar for T {}
