//! The recipe of a far field: the kernels and numbers from which operators and tables are made for boxes of any side.

use super::DeviceScalar;
use super::operators::Prepared;
use crate::levels::Units;
use crate::programs::Groups;
use fmm_kernels::equivalent::{Affine, Dense, Lattice, Operators, gauge};
use fmm_traits::{Error, Kernels, Member, Members};
use std::path::PathBuf;
use std::sync::Arc;

/// The kernels and numbers from which operators and tables are made.
#[derive(Debug)]
pub(super) struct Recipe {
    pub units: Units,
    /// The points of densities and check values.
    pub lattice: Lattice,
    /// Folder that keeps operators between runs.
    pub cache: Option<PathBuf>,
    /// The kernels from which operators are made.
    pub members: Members,
    /// The kernel that takes equivalent densities to the outputs.
    far: Member,
    /// The groups of L2P and M2P.
    pub groups: Groups,
    /// Degree in length of each strength of the check kernel.
    check_strengths: Vec<i32>,
    /// Degree in length of each value of the far field at a target.
    far_values: Vec<i32>,
}

impl Recipe {
    /// The recipe for far field `k` of the `kernels` of a family.
    pub fn new<T: DeviceScalar>(kernels: &Kernels, k: usize, lattice: Lattice, cache: Option<PathBuf>) -> Self {
        let params = kernels.nodes.parameters(&kernels.params, k);
        let units = Units { params, kernel: kernels.members.equivalent.clone() };
        Recipe {
            units,
            lattice,
            cache,
            members: kernels.members.clone(),
            far: kernels.far.clone(),
            groups: Groups::far::<T>(kernels.far.values),
            check_strengths: kernels.members.check.strength_degrees.clone(),
            far_values: kernels.far.value_degrees.clone(),
        }
    }

    /// The parameters of the kernel on boxes of a given side, dilated to side 1.
    pub fn parameters(&self, side: f64) -> Vec<f64> {
        self.units.kernel.unit_parameters(&self.units.params, side)
    }

    /// What the host makes of the operators of boxes of a given side, without their solves.
    pub fn operators<T: DeviceScalar>(&self, side: f64) -> Result<Arc<Operators<T>>, Error> {
        let Recipe { members, units, lattice, cache, .. } = self;
        T::operators(members, &units.params, side, *lattice, cache.as_deref())
    }

    /// What the host makes of the operators of boxes of a given side.
    pub fn prepare<T: DeviceScalar>(&self, side: f64) -> Result<Prepared<T>, Error> {
        let operators = self.operators(side)?;
        Ok(Prepared { params: self.parameters(side), solves: Dense::solves(&operators), operators })
    }

    /// Makes the affine parts of locals for a root of a given side.
    pub fn affine<T: DeviceScalar>(&self, side: f64) -> Affine<T> {
        Affine::new(&self.members, &self.far, &self.parameters(side), self.lattice)
    }

    /// Rows of `level.cuh` for P2M and P2L. In P2M densities are solved for from check values (`of_solve`), so the
    /// kernel is that of the [`gauge`].
    pub fn check_table(&self, sides: &[f64], of_solve: bool) -> Vec<f64> {
        self.table(sides, of_solve, &self.check_strengths)
    }
    /// Rows of `level.cuh` for L2P and M2P. L2P evaluates densities that a solve has found (`of_solve`).
    pub fn far_table(&self, sides: &[f64], of_solve: bool) -> Vec<f64> {
        self.table(sides, of_solve, &self.far_values)
    }
    fn table(&self, sides: &[f64], of_solve: bool, degrees: &[i32]) -> Vec<f64> {
        let Units { params, kernel } = &self.units;
        let parameters = |side| match of_solve {
            true => gauge::parameters(kernel, params, side, self.lattice),
            false => self.parameters(side),
        };
        Units::rows(sides.iter().map(|&side| (side, parameters(side))), &[degrees])
    }
}
