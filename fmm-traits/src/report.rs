//! Errors against direct summation: the definitions that every part of the project uses.

use crate::kernel::Outputs;

/// Error of one output at the sampled targets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OutputError {
    /// The output.
    pub output: Outputs,
    /// ‖computed − direct‖₂ / ‖direct‖₂ over the sample: the headline. 0 when both are 0.
    pub rel_l2: f64,
    /// Root mean square of the difference.
    pub rms: f64,
    /// Largest difference divided by the root mean square of the direct values.
    pub max_over_rms: f64,
    /// Largest ratio ‖difference‖/‖direct‖ of a single target (Goude & Engblom 2012, eq. 5.3). Infinite if a value
    /// that should be 0 is not.
    pub max_rel: f64,
}

impl OutputError {
    /// Compares rows of `components` numbers.
    pub fn of(output: Outputs, computed: &[f64], direct: &[f64], components: usize) -> Self {
        let (mut diff2, mut ref2, mut worst2, mut relative2) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        // In units of the largest value, so that squares stay in range.
        let largest = direct.iter().fold(0.0f64, |m, y| m.max(y.abs()));
        let unit = if largest > 0.0 && largest.is_finite() { largest } else { 1.0 };
        let ratio = |x: f64, y: f64| if x == 0.0 { 0.0 } else { x / y };
        let c = components.max(1);
        for (a, b) in computed.chunks(c).zip(direct.chunks(c)) {
            let d2: f64 = a.iter().zip(b).map(|(x, y)| ((x - y) / unit).powi(2)).sum();
            diff2 += d2;
            let b2 = b.iter().map(|y| (y / unit).powi(2)).sum::<f64>();
            ref2 += b2;
            worst2 = worst2.max(d2);
            relative2 = relative2.max(ratio(d2, b2));
        }
        let rows = (direct.len() / c).max(1) as f64;
        OutputError {
            output,
            rel_l2: ratio(diff2.sqrt(), ref2.sqrt()),
            rms: unit * (diff2 / rows).sqrt(),
            max_over_rms: ratio(worst2.sqrt(), (ref2 / rows).sqrt()),
            max_rel: relative2.sqrt(),
        }
    }
}

/// Errors of all requested outputs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ErrorReport {
    /// Number of targets that were compared.
    pub samples: usize,
    /// One entry per requested output.
    pub outputs: Vec<OutputError>,
}

impl ErrorReport {
    /// Combines the reports of two evaluations with the same outputs: the larger of each error.
    pub fn worse(&self, other: &ErrorReport) -> ErrorReport {
        let larger = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        let outputs = self.outputs.iter().zip(&other.outputs).map(|(a, b)| OutputError {
            output: a.output,
            rel_l2: larger(a.rel_l2, b.rel_l2),
            rms: larger(a.rms, b.rms),
            max_over_rms: larger(a.max_over_rms, b.max_over_rms),
            max_rel: larger(a.max_rel, b.max_rel),
        });
        ErrorReport { samples: self.samples, outputs: outputs.collect() }
    }

    /// The largest relative ℓ2 error over the outputs.
    pub fn worst(&self) -> f64 {
        self.outputs.iter().fold(0.0, |m, e| if e.rel_l2.is_nan() { f64::NAN } else { e.rel_l2.max(m) })
    }
}
