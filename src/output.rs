//! The result of an evaluation.

use fmm_families::Facts;
use fmm_traits::{Error, Outputs, Stage};
use rayon::prelude::*;

/// The sums at the targets, in the caller's order of the targets. Arrays of outputs that were not requested are empty.
/// M targets, c components of the potential (1, or 3 for flows).
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// M×c: potential, or velocity.
    pub potential: Vec<f64>,
    /// M×c×3: ∂uₖ/∂x, ∂uₖ/∂y, ∂uₖ/∂z for each component k, with respect to the target.
    pub gradient: Vec<f64>,
    /// M×c×3×3: all second derivatives of each component.
    pub hessian: Vec<f64>,
    /// M: pressure.
    pub pressure: Vec<f64>,
    /// Seconds of each stage, indexed by [`Stage`] as usize. All time of direct summation counts as P2P.
    pub stages: [f64; Stage::ALL.len()],
    /// Seconds of the whole evaluation.
    pub seconds: f64,
    /// Rows of kernel values, kept so that the next evaluation allocates nothing.
    pub(crate) raw: Vec<f64>,
}

impl Output {
    /// The array of one output.
    pub fn get(&self, output: Outputs) -> &[f64] {
        match output {
            Outputs::POTENTIAL => &self.potential,
            Outputs::GRADIENT => &self.gradient,
            Outputs::HESSIAN => &self.hessian,
            _ => &self.pressure,
        }
    }

    fn get_mut(&mut self, output: Outputs) -> &mut Vec<f64> {
        match output {
            Outputs::POTENTIAL => &mut self.potential,
            Outputs::GRADIENT => &mut self.gradient,
            Outputs::HESSIAN => &mut self.hessian,
            _ => &mut self.pressure,
        }
    }

    /// Refuses sums that are NaN or infinite.
    pub(crate) fn check(&self, facts: &Facts) -> Result<(), Error> {
        let Some(at) = self.raw.par_iter().position_first(|x| !x.is_finite()) else { return Ok(()) };
        let (row, column) = (at / facts.values, at % facts.values);
        let of = facts.columns.iter().find(|c| c.columns.contains(&column));
        let array = of.and_then(|c| c.output.names().first().copied()).unwrap_or("values");
        Err(Error::NotFinite { array, row, column, value: self.raw[at] })
    }

    /// Distributes `raw` to the arrays. Arrays of outputs that were not requested become empty.
    pub(crate) fn split(&mut self, facts: &Facts) {
        let mut raw = std::mem::take(&mut self.raw);
        for (output, _) in Outputs::ALL {
            let columns = facts.columns.iter().find(|c| c.output == output);
            let to = self.get_mut(output);
            match columns {
                None => to.clear(),
                // A single output equals the rows. The swap keeps the memory of its old array for the next evaluation.
                Some(c) if c.columns.iter().copied().eq(0..facts.values) => std::mem::swap(to, &mut raw),
                Some(c) => columns_of(&raw, facts.values, &c.columns, to),
            }
        }
        self.raw = raw;
    }
}

/// Copies `columns` of `raw`, whose rows have `values` numbers, to `to`.
pub(crate) fn columns_of(raw: &[f64], values: usize, columns: &[usize], to: &mut Vec<f64>) {
    to.resize(raw.len() / values * columns.len(), 0.0);
    let rows = 4096;
    to.par_chunks_mut(rows * columns.len()).zip(raw.par_chunks(rows * values)).for_each(|(to, from)| {
        for (to, from) in to.chunks_exact_mut(columns.len()).zip(from.chunks_exact(values)) {
            for (x, &c) in to.iter_mut().zip(columns) {
                *x = from[c];
            }
        }
    });
}
