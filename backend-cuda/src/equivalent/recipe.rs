//! What the points do not change, with the types of the kernels forgotten: operators by the parameters of a box,
//! and the numbers that the stages read of a level.

use super::DeviceScalar;
use super::fourier;
use super::operators::{DeviceOperators, m2l_matrices};
use crate::device::{Buffer, Device};
use crate::levels::{Units, strength_degrees, value_degrees};
use crate::programs::Groups;
use fmm_kernels::equivalent::{Affine, OperatorSet, Operators};
use fmm_traits::{Error, Family, Kernel};
use std::path::PathBuf;

/// Makes the operators of boxes of a side.
type MakeOperators<T> = fn(&Device, &Recipe<T>, f64) -> Result<DeviceOperators<T>, Error>;
/// Makes the operators of M2L.
type MakeM2l<T> = fn(&Device, &Operators<T>) -> Result<Buffer<T>, Error>;

/// How operators and tables are made for boxes of any side.
#[derive(Debug)]
pub(super) struct Recipe<T> {
    pub units: Units,
    pub order: usize,
    /// Folder that keeps operators between runs.
    pub cache: Option<PathBuf>,
    /// Operators of boxes of this side.
    pub operators: MakeOperators<T>,
    /// What locals carry beside densities, for the parameters of the root as a unit box.
    pub affine: fn(&[f64], usize) -> Affine<T>,
    /// M2L of those, as dense matrices or in Fourier space.
    pub dense: MakeM2l<T>,
    pub fourier: MakeM2l<T>,
    /// Targets of a leaf that a block of L2P or M2P sums at once.
    pub group: usize,
    /// Degrees in length: strengths of the check kernel; values at targets of the far field.
    check_strengths: Vec<i32>,
    far_values: Vec<i32>,
}

impl<T: DeviceScalar> Recipe<T> {
    /// For the family `F`, whose outputs the kernel `E` (of equivalent densities) yields.
    pub fn new<F: Family, E: Kernel>(units: Units, order: usize, cache: Option<PathBuf>) -> Self {
        Recipe {
            units,
            order,
            cache,
            operators: operators::<F, T>,
            affine: Affine::of::<F::Equivalent, E>,
            dense: m2l_matrices::<T, F::Equivalent>,
            fourier: fourier::operators::<T, F::Equivalent>,
            group: Groups::far::<T>(E::VALUES).targets(),
            check_strengths: strength_degrees::<F::Check>(),
            far_values: value_degrees::<E>(),
        }
    }

    /// Rows of `level.cuh` for P2M and P2L.
    pub fn check_table(&self, sides: &[f64]) -> Vec<f64> {
        self.units.table(sides, &[&self.check_strengths])
    }
    /// For L2P and M2P.
    pub fn far_table(&self, sides: &[f64]) -> Vec<f64> {
        self.units.table(sides, &[&self.far_values])
    }
}

fn operators<F: Family, T: DeviceScalar>(
    device: &Device,
    recipe: &Recipe<T>,
    side: f64,
) -> Result<DeviceOperators<T>, Error> {
    let set = OperatorSet::<T>::build::<F>(&recipe.units.params, &[side], recipe.order, recipe.cache.as_deref())?;
    DeviceOperators::new(device, set.level(0))
}
