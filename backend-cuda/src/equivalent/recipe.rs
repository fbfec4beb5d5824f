//! What the points do not change, with the types of the kernels forgotten: operators by the parameters of a box,
//! and the numbers that the stages read of a level.

use super::DeviceScalar;
use super::fourier;
use super::operators::{DeviceOperators, m2l_matrices};
use crate::device::{Buffer, Device};
use crate::programs::Groups;
use fmm_kernels::equivalent::operators::unit_parameters;
use fmm_kernels::equivalent::{Affine, OperatorSet, Operators};
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Family, Kernel};
use std::path::PathBuf;

/// Makes the operators of boxes of a side.
type MakeOperators<T> = fn(&Device, &Recipe<T>, f64) -> Result<DeviceOperators<T>, Error>;
/// Makes the operators of M2L.
type MakeM2l<T> = fn(&Device, &Operators<T>) -> Result<Buffer<T>, Error>;

/// How operators and tables are made for boxes of any side.
#[derive(Debug)]
pub(super) struct Recipe<T> {
    pub params: Vec<f64>,
    pub order: usize,
    /// Folder that keeps operators between runs.
    pub cache: Option<PathBuf>,
    /// Parameters on a box of this side, as a unit box.
    pub unit: fn(&[f64], f64) -> Vec<f64>,
    /// Operators of boxes of this side.
    pub operators: MakeOperators<T>,
    /// What locals carry beside densities, for the parameters of the root as a unit box.
    pub affine: fn(&[f64], usize) -> Affine<T>,
    /// M2L of those, as dense matrices or in Fourier space.
    pub dense: MakeM2l<T>,
    pub fourier: MakeM2l<T>,
    /// Targets of a leaf that a block sums at once: of P2P; of L2P and M2P.
    pub groups: [usize; 2],
    /// Degrees in length: strengths of the check kernel; values at targets of the far field; both of the near field.
    check_strengths: Vec<i32>,
    far_values: Vec<i32>,
    pub near_strengths: Vec<i32>,
    near_values: Vec<i32>,
    /// Whether the near field is summed in units of the box.
    framed: bool,
}

impl<T: DeviceScalar> Recipe<T> {
    /// For the family `F`, whose outputs the kernels `S` (of sources) and `E` (of equivalent densities) yield, with the
    /// near field in `N`.
    pub fn new<F: Family, S: Kernel, E: Kernel, N: fmm_traits::Real>(
        params: Vec<f64>,
        order: usize,
        cache: Option<PathBuf>,
    ) -> Self {
        let degrees = |count: usize, of: fn(usize) -> i32| (0..count).map(of).collect();
        Recipe {
            params,
            order,
            cache,
            unit: unit_parameters::<F>,
            operators: operators::<F, T>,
            affine: Affine::of::<F::Equivalent, E>,
            dense: m2l_matrices::<T, F::Equivalent>,
            fourier: fourier::operators::<T, F::Equivalent>,
            groups: [Groups::near::<N>(S::VALUES).targets(), Groups::far::<T>(E::VALUES).targets()],
            check_strengths: degrees(F::Check::STRENGTHS, F::Check::strength_degree),
            far_values: degrees(E::VALUES, E::value_degree),
            near_strengths: degrees(S::STRENGTHS, S::strength_degree),
            near_values: degrees(S::VALUES, S::value_degree),
            framed: N::NAME == "f32",
        }
    }

    /// Rows of `level.cuh` for P2M and P2L.
    pub fn check_table(&self, sides: &[f64]) -> Vec<f64> {
        self.table(sides, true, [&self.check_strengths, &[]])
    }
    /// For L2P and M2P.
    pub fn far_table(&self, sides: &[f64]) -> Vec<f64> {
        self.table(sides, true, [&[], &self.far_values])
    }
    /// For P2P.
    pub fn near_table(&self, sides: &[f64]) -> Vec<f64> {
        self.table(sides, self.framed, [&self.near_strengths, &self.near_values])
    }

    /// A row a level: side, parameters, factors of strengths, factors of values.
    fn table(&self, sides: &[f64], units: bool, degrees: [&[i32]; 2]) -> Vec<f64> {
        let row = |&side: &f64| {
            let side = if units { side } else { 1.0 };
            let mut head = if units { (self.unit)(&self.params, side) } else { self.params.clone() };
            head.resize(MAX_PARAMETERS, 0.0);
            let factors = degrees.into_iter().flatten().map(move |&d| side.powi(d));
            std::iter::once(side).chain(head).chain(factors)
        };
        sides.iter().flat_map(row).collect()
    }
}

fn operators<F: Family, T: DeviceScalar>(
    device: &Device,
    recipe: &Recipe<T>,
    side: f64,
) -> Result<DeviceOperators<T>, Error> {
    let set = OperatorSet::<T>::build::<F>(&recipe.params, &[side], recipe.order, recipe.cache.as_deref())?;
    DeviceOperators::new(device, set.level(0))
}
