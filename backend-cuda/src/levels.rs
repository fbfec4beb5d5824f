//! What kernels read of the levels of a tree: rows of `kernels/shared/level.cuh`.

use fmm_traits::Kernel;
use fmm_traits::kernel::MAX_PARAMETERS;

/// Parameters of a kernel, and what they are on a box that stands for one of side 1.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    pub params: Vec<f64>,
    /// Parameters on a box of this side, as a unit box.
    pub unit: fn(&[f64], f64) -> Vec<f64>,
}

impl Units {
    /// A row a level: side, parameters, then for each degree what a strength or value of a unit box is multiplied by.
    pub fn table(&self, sides: &[f64], degrees: &[&[i32]]) -> Vec<f64> {
        self.rows(sides.iter().map(|&side| (side, (self.unit)(&self.params, side))), degrees)
    }

    /// As [`table`](Self::table), for what is computed in the units of the caller on all levels.
    pub fn plain(&self, levels: usize, degrees: &[&[i32]]) -> Vec<f64> {
        self.rows((0..levels).map(|_| (1.0, self.params.clone())), degrees)
    }

    fn rows(&self, levels: impl Iterator<Item = (f64, Vec<f64>)>, degrees: &[&[i32]]) -> Vec<f64> {
        let row = |(side, mut parameters): (f64, Vec<f64>)| {
            parameters.resize(MAX_PARAMETERS, 0.0);
            let factors = degrees.iter().copied().flatten().map(move |&d| side.powi(d));
            std::iter::once(side).chain(parameters).chain(factors)
        };
        levels.flat_map(row).collect()
    }
}

/// Degrees in length of the strengths of `K`.
pub(crate) fn strength_degrees<K: Kernel>() -> Vec<i32> {
    (0..K::STRENGTHS).map(K::strength_degree).collect()
}

/// Degrees in length of the values of `K`.
pub(crate) fn value_degrees<K: Kernel>() -> Vec<i32> {
    (0..K::VALUES).map(K::value_degree).collect()
}
