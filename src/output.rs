//! The result of an evaluation.

use crate::validate::first_misfit;
use backend_cuda::{DeviceArray, DeviceScalar};
use fmm_families::Facts;
use fmm_traits::{Error, Number, OutputColumns, Outputs, Stage};
use rayon::prelude::*;
use std::any::Any;

/// The sums at the targets, in the caller's order of the targets. Arrays of outputs that were not requested are empty.
/// M targets, c components of the potential (1, or 3 for flows).
/// T is the type of the numbers, f32 or f64.
#[derive(Clone, Debug, Default)]
pub struct Output<T = f64> {
    /// M×c: potential, or velocity.
    pub potential: Vec<T>,
    /// M×c×3: ∂uₖ/∂x, ∂uₖ/∂y, ∂uₖ/∂z for each component k, with respect to the target.
    pub gradient: Vec<T>,
    /// M×c×3×3: all second derivatives of each component.
    pub hessian: Vec<T>,
    /// M: pressure.
    pub pressure: Vec<T>,
    /// Seconds of each stage, indexed by [`Stage`] as usize. All time of direct summation counts as P2P. If P2P runs beside
    /// other stages, the stages together take longer than the evaluation.
    pub stages: [f64; Stage::ALL.len()],
    /// Seconds of the whole evaluation.
    pub seconds: f64,
    /// Rows of kernel values, kept so that the next evaluation allocates nothing.
    pub(crate) raw: Vec<f64>,
}

impl<T> Output<T> {
    /// The array of one output.
    pub fn get(&self, output: Outputs) -> &[T] {
        match output {
            Outputs::POTENTIAL => &self.potential,
            Outputs::GRADIENT => &self.gradient,
            Outputs::HESSIAN => &self.hessian,
            _ => &self.pressure,
        }
    }

    pub(crate) fn get_mut(&mut self, output: Outputs) -> &mut Vec<T> {
        match output {
            Outputs::POTENTIAL => &mut self.potential,
            Outputs::GRADIENT => &mut self.gradient,
            Outputs::HESSIAN => &mut self.hessian,
            _ => &mut self.pressure,
        }
    }
}

impl<T: Number> Output<T> {
    /// The same output in f64.
    pub fn widened(&self) -> Output {
        let of = |x: &[T]| x.par_iter().map(|x| x.to_f64().unwrap_or(f64::NAN)).collect();
        Output {
            potential: of(&self.potential),
            gradient: of(&self.gradient),
            hessian: of(&self.hessian),
            pressure: of(&self.pressure),
            stages: self.stages,
            seconds: self.seconds,
            raw: Vec::new(),
        }
    }

    /// Refuses sums that are NaN or infinite, also after rounding to `T`.
    pub(crate) fn check(&self, facts: &Facts) -> Result<(), Error> {
        let fits = |x: &f64| T::from_f64(*x).is_some_and(|x| x.to_f64().is_some_and(f64::is_finite));
        let Some(at) = first_misfit(&self.raw, fits) else { return Ok(()) };
        let (row, column) = (at / facts.values, at % facts.values);
        let array = facts.columns.iter().find(|c| c.columns.contains(&column)).map_or("values", name);
        Err(Error::NotFinite { array, row, column, value: self.raw[at] })
    }

    /// Distributes `raw` to the arrays. Arrays of outputs that were not requested become empty.
    pub(crate) fn split(&mut self, facts: &Facts) {
        let mut raw = std::mem::take(&mut self.raw);
        for (output, _) in Outputs::ALL {
            let columns = facts.columns.iter().find(|c| c.output == output);
            let to = self.get_mut(output);
            let Some(c) = columns else {
                to.clear();
                continue;
            };
            let whole = c.columns.iter().copied().eq(0..facts.values);
            match (to as &mut dyn Any).downcast_mut::<Vec<f64>>().filter(|_| whole) {
                // A single output equals the rows. The swap keeps the memory of its old array for the next evaluation.
                Some(to) => std::mem::swap(to, &mut raw),
                None => columns_of(&raw, facts.values, &c.columns, to),
            }
        }
        self.raw = raw;
    }
}

/// The name of an output in errors.
pub(crate) fn name(of: &OutputColumns) -> &'static str {
    of.output.names().first().copied().unwrap_or("values")
}

/// Gives an array, all of whose numbers will be written, a length. The system makes the pages of a new array when they are
/// first written, by all threads at once. To extend an array would write its pages by one thread.
pub(crate) fn set_len<T: Number>(array: &mut Vec<T>, len: usize) {
    if array.len() != len {
        *array = vec![T::default(); len];
    }
}

/// Copies `columns` of `raw`, whose rows have `values` numbers, to `to`.
pub(crate) fn columns_of<T: Number>(raw: &[f64], values: usize, columns: &[usize], to: &mut Vec<T>) {
    set_len(to, raw.len() / values * columns.len());
    let rows = 4096;
    to.par_chunks_mut(rows * columns.len()).zip(raw.par_chunks(rows * values)).for_each(|(to, from)| {
        for (to, from) in to.chunks_exact_mut(columns.len()).zip(from.chunks_exact(values)) {
            for (x, &c) in to.iter_mut().zip(columns) {
                *x = T::from_f64(from[c]).unwrap_or_default();
            }
        }
    });
}

/// The device arrays that [`Plan::apply_on_device`](crate::Plan::apply_on_device) fills, one per requested output, in
/// the caller's order of the targets. [`Plan::device_output`](crate::Plan::device_output) or the caller makes them.
/// They must not overlap each other or the strengths.
#[derive(Clone, Debug, Default)]
pub struct DeviceOutput {
    /// M×c: potential, or velocity.
    pub potential: Option<DeviceArray>,
    /// M×c×3: first derivatives of each component.
    pub gradient: Option<DeviceArray>,
    /// M×c×3×3: second derivatives of each component.
    pub hessian: Option<DeviceArray>,
    /// M: pressure.
    pub pressure: Option<DeviceArray>,
}

impl DeviceOutput {
    /// The array of one output.
    pub fn get(&self, output: Outputs) -> Option<&DeviceArray> {
        match output {
            Outputs::POTENTIAL => self.potential.as_ref(),
            Outputs::GRADIENT => self.gradient.as_ref(),
            Outputs::HESSIAN => self.hessian.as_ref(),
            _ => self.pressure.as_ref(),
        }
    }

    /// The place of the array of one output.
    pub fn get_mut(&mut self, output: Outputs) -> &mut Option<DeviceArray> {
        match output {
            Outputs::POTENTIAL => &mut self.potential,
            Outputs::GRADIENT => &mut self.gradient,
            Outputs::HESSIAN => &mut self.hessian,
            _ => &mut self.pressure,
        }
    }

    /// Copies the arrays to the host, after the evaluations that were enqueued. Does not report NaN or infinity:
    /// [`Plan::synchronize`](crate::Plan::synchronize) does.
    ///
    /// # Errors
    /// [`Error::Array`] if an array does not have type `T` ([`DeviceArray::download`] copies one array), and errors of the
    /// device.
    pub fn download<T: DeviceScalar>(&self) -> Result<Output<T>, Error> {
        let mut out = Output::default();
        for (output, _) in Outputs::ALL {
            if let Some(array) = self.get(output) {
                *out.get_mut(output) = array.download()?;
            }
        }
        Ok(out)
    }
}
