//! The measurement that chose the order of a plan, and how tests judge it. No other file of the tests knows the form of
//! the report.

use fmm::Description;
use serde_json::Value;

/// The measurement of one plan.
#[derive(Clone, Debug)]
pub struct Probe {
    /// For each output: its name, the upper bound of the error at the chosen order, and the bound at one order less if
    /// it was measured.
    pub outputs: Vec<(String, f64, Option<f64>)>,
    /// Seconds of the measurement.
    pub seconds: f64,
}

impl Probe {
    /// The measurement of the plan that `described` describes. `None` for a plan that measured nothing, because its
    /// order was given or its sum is direct.
    pub fn of(described: &Description) -> Option<Probe> {
        let plan = serde_json::to_value(described).expect("descriptions are plain data");
        let probe = plan.get("probe").filter(|p| !p.is_null())?;
        let number = |v: &Value, key: &str| v[key].as_f64();
        let outputs = probe["outputs"].as_array().expect("a probe names its outputs").iter().map(|o| {
            let name = o["output"].as_str().expect("an output has a name").to_string();
            (name, number(o, "error").expect("an output has an error"), number(o, "below"))
        });
        Some(Probe { outputs: outputs.collect(), seconds: number(probe, "seconds").expect("a probe takes time") })
    }

    /// The largest measured error with one order less.
    pub fn below(&self) -> Option<f64> {
        self.outputs.iter().filter_map(|(_, _, below)| *below).reduce(f64::max)
    }

    /// The largest measured error at the chosen order.
    pub fn error(&self) -> f64 {
        self.outputs.iter().fold(0.0, |worst, (_, error, _)| worst.max(*error))
    }
}

/// Errors of many sums, compared with their tolerances.
#[derive(Default)]
pub struct Kept {
    sums: usize,
    above: Vec<String>,
    far_above: bool,
}

impl Kept {
    /// One sum of this many may exceed its tolerance: bounds hold for 99.5 % of all strengths, and few sums scatter.
    const SUMS_FOR_ONE_ABOVE: usize = 100;
    /// Largest ratio of an error to its tolerance.
    const FAR_ABOVE: f64 = 1.5;

    /// Records the error of a sum.
    pub fn count(&mut self, error: f64, tolerance: f64, what: impl FnOnce() -> String) {
        self.sums += 1;
        if error.is_nan() || error > tolerance {
            self.above.push(format!("{tolerance:e}, errs by {error:e}: {}", what()));
            self.far_above |= error.is_nan() || error > Self::FAR_ABOVE * tolerance;
        }
    }

    /// Panics if more sums exceed their tolerance than chance explains.
    pub fn judge(self) {
        let allowed = self.sums.div_ceil(Self::SUMS_FOR_ONE_ABOVE);
        let kept = self.above.len() <= allowed && !self.far_above;
        assert!(kept, "{} of {} sums:\n{}", self.above.len(), self.sums, self.above.join("\n"));
    }
}
