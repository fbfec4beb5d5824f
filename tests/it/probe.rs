//! What a plan says of the measurement that chose its order, and how tests judge it. The only place of the tests that knows the form
//! of the report.

use fmm::Description;
use serde_json::Value;

/// The measurement of one plan.
#[derive(Clone, Debug)]
pub struct Probe {
    /// For each output the upper bound of the error at the chosen order, and at one order less where that was measured.
    pub outputs: Vec<(String, f64, Option<f64>)>,
    /// Seconds that the measurement took.
    pub seconds: f64,
}

impl Probe {
    /// Of the plan that `described` describes; `None` for a plan that measured nothing (an order was given, or the sum is
    /// direct).
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

    /// The largest error that was measured with one order less.
    pub fn below(&self) -> Option<f64> {
        self.outputs.iter().filter_map(|(_, _, below)| *below).reduce(f64::max)
    }

    /// The largest error that was measured at the chosen order.
    pub fn error(&self) -> f64 {
        self.outputs.iter().fold(0.0, |worst, (_, error, _)| worst.max(*error))
    }
}

/// Errors of many sums beside their tolerances.
#[derive(Default)]
pub struct Kept {
    sums: usize,
    above: Vec<String>,
    far_above: bool,
}

impl Kept {
    /// Of 200 sets of strengths one may err by more than the bound that was measured.
    const SUMS_FOR_ONE_ABOVE: usize = 100;
    /// But by no more than this factor.
    const FAR_ABOVE: f64 = 1.5;

    /// Takes in the error of a sum.
    pub fn count(&mut self, error: f64, tolerance: f64, what: impl FnOnce() -> String) {
        self.sums += 1;
        if error.is_nan() || error > tolerance {
            self.above.push(format!("{tolerance:e}, errs by {error:e}: {}", what()));
            self.far_above |= error.is_nan() || error > Self::FAR_ABOVE * tolerance;
        }
    }

    /// Panics where more sums are above their tolerance than chance explains.
    pub fn judge(self) {
        let allowed = self.sums.div_ceil(Self::SUMS_FOR_ONE_ABOVE);
        let kept = self.above.len() <= allowed && !self.far_above;
        assert!(kept, "{} of {} sums:\n{}", self.above.len(), self.sums, self.above.join("\n"));
    }
}
