//! The table of tree levels that the kernels read: rows of `kernels/shared/level.cuh`.

use fmm_traits::{Member, kernel::MAX_PARAMETERS};

/// Parameters of a kernel, and how they change when a box is dilated to side 1.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    pub params: Vec<f64>,
    /// The kernel that the stage evaluates: it knows the parameters on the unit box.
    pub kernel: Member,
}

impl Units {
    /// One row per level: the parameters on the unit box, and for each of the `degrees` the factor side^degree that
    /// converts strengths or values between the caller's units and the unit box.
    pub fn table(&self, sides: &[f64], degrees: &[&[i32]]) -> Vec<f64> {
        Self::rows(sides.iter().map(|&side| (side, self.kernel.unit_parameters(&self.params, side))), degrees)
    }

    /// As [`table`](Self::table), for kernels that compute in the caller's units on all levels: factors 1.
    pub fn plain(&self, levels: usize, degrees: &[&[i32]]) -> Vec<f64> {
        Self::rows((0..levels).map(|_| (1.0, self.params.clone())), degrees)
    }

    /// One row per level, from the side and the parameters of each level.
    pub fn rows(levels: impl Iterator<Item = (f64, Vec<f64>)>, degrees: &[&[i32]]) -> Vec<f64> {
        let row = |(side, mut parameters): (f64, Vec<f64>)| {
            parameters.resize(MAX_PARAMETERS, 0.0);
            let factors = degrees.iter().copied().flatten().map(move |&d| side.powi(d));
            parameters.into_iter().chain(factors)
        };
        levels.flat_map(row).collect()
    }
}
