//! Measurements of the errors of a candidate, and their report.

use crate::candidates::Task;
use crate::engine::Engine;
use crate::probe::{ProbeOutput, ProbeReport};
use fmm_traits::{Error, OutputColumns};

/// The result of one measurement: error bounds of all outputs at an order, and seconds.
pub(crate) struct Measured {
    pub(super) order: usize,
    pub(super) bounds: Vec<f64>,
    sums: f64,
    operators: f64,
}

impl Measured {
    /// The largest bound.
    pub(super) fn worst(&self) -> f64 {
        worst(&self.bounds)
    }

    /// The largest bound, with the name of its output.
    pub(super) fn worst_of(&self, columns: &[OutputColumns]) -> Option<(f64, &'static str)> {
        let worst = self.bounds.iter().zip(columns).max_by(|a, b| a.0.total_cmp(b.0));
        worst.map(|(bound, c)| (*bound, name(c)))
    }

    /// Seconds of sums and of operators.
    pub(super) fn seconds(&self) -> [f64; 2] {
        [self.sums, self.operators]
    }
}

/// The largest bound; infinite if one is not a number.
pub(super) fn worst(bounds: &[f64]) -> f64 {
    bounds.iter().map(|&b| if b.is_nan() { f64::INFINITY } else { b }).fold(0.0, f64::max)
}

/// Measures the error bounds at `order`, appends them to `records` and returns the largest.
pub(crate) fn measured(engine: &mut dyn Engine, order: usize, records: &mut Vec<Measured>) -> Result<f64, Error> {
    let (bounds, seconds) = engine.measure(order)?;
    let measured = Measured { order, bounds, sums: seconds.sums, operators: seconds.operators };
    let worst = measured.worst();
    records.push(measured);
    Ok(worst)
}

fn name(column: &OutputColumns) -> &'static str {
    column.output.names().first().copied().unwrap_or("")
}

/// The report of the probe for a plan of order `order`.
pub(crate) fn reported(engine: &dyn Engine, task: &Task, order: usize, records: &[Measured]) -> ProbeReport {
    let of = |order: usize, k: usize| records.iter().rev().find(|m| m.order == order).map(|m| m.bounds[k]);
    let outputs = task.facts.columns.iter().enumerate().map(|(k, c)| ProbeOutput {
        output: name(c),
        error: of(order, k).unwrap_or(f64::NAN),
        below: order.checked_sub(1).and_then(|below| of(below, k)),
    });
    let [seconds, operators] = [0, 1].map(|k| records.iter().map(|m| m.seconds()[k]).sum::<f64>());
    let orders = records.iter().map(|m| m.order).collect();
    let mut report = ProbeReport { outputs: outputs.collect(), orders, seconds, operators, ..ProbeReport::default() };
    if let Some(sample) = engine.sample() {
        sample.report(&mut report);
    }
    report
}
