//! The words of a decision: reasons, refusals, forecasts as text.

use super::contest::Why;
use crate::candidates::{Candidate, Layout, Task};
use crate::request::{Fmm, Method};
use fmm_traits::tape::Op;
use fmm_traits::{Error, Precision};

/// The reason for a choice.
pub(super) fn because(r: &Fmm, why: Why, forecasts: &str) -> String {
    let named = r.method != Method::Auto;
    match why {
        Why::FewPairs => format!("cheaper than the fast method for so few pairs{forecasts}"),
        Why::DearToMeasure => format!("cheaper than measuring the errors of fast methods{forecasts}"),
        Why::ThesePoints => format!("cheaper than the fast method on these points{forecasts}"),
        Why::FallShort(floor) => format!("fast methods reach {floor:.1e} for this kernel on these points"),
        Why::OnlyOne => "the only method that keeps the tolerance".to_string(),
        Why::ManyPairs if !named => format!("cheaper than direct summation for so many pairs{forecasts}"),
        Why::LeastError if !named => "reaches furthest".to_string(),
        Why::Alone | Why::ManyPairs | Why::LeastError => "asked for".to_string(),
    }
}

/// An error, rounded up to so many decimal digits. It is the number nearest to these digits, so it prints as them.
pub(super) fn rounded_up(error: f64, digits: usize) -> f64 {
    let printed = |x: f64| format!("{x:.*e}", digits - 1).parse().unwrap_or(error);
    let near = printed(error);
    let unit = 10f64.powi(error.log10().floor() as i32 + 1 - digits as i32);
    if near >= error { near } else { printed(near + unit) }
}

/// The [`Error::ToleranceFloor`] that reports the smallest error and a way out.
pub(super) fn refusal(r: &Fmm, task: &Task, (floor, output): (f64, &'static str), direct: Option<f64>) -> Error {
    let further = match (r.precision, r.method) {
        (Precision::F32, _) => "; f64 may reach further",
        (_, Method::Treecode) => "; a smaller θ, or the fast multipole method, may reach further",
        (_, Method::SphericalHarmonics | Method::EquivalentDensities) => "; interpolation may reach further",
        _ => "",
    };
    let oscillates = task.facts.members.iter().any(|m| m.tape().any(|op| matches!(op, Op::Sin | Op::Cos)));
    let waves = match r.method {
        Method::EquivalentDensities | Method::Auto if oscillates => {
            "; the kernel oscillates, and densities on the surface of a cube of side h fail at its resonances, k·h ≥ π√3"
        }
        _ => "",
    };
    let direct = match direct {
        Some(seconds) => format!("; direct summation is forecast to take {seconds:.0} s: ask for it by its name"),
        None if r.method == Method::Direct => String::new(),
        None => "; direct summation in f64 has no such floor".to_string(),
    };
    Error::ToleranceFloor {
        tolerance: task.goal.tolerance().unwrap_or_default(),
        floor: if floor.is_normal() { rounded_up(floor, 2) } else { floor },
        output,
        kernel: r.family.name().into(),
        precision: r.precision.name(),
        hint: format!(" for this kernel on these points, as measured{waves}{further}{direct}"),
    }
}

/// The compared forecasts as text, direct summation last.
pub(super) fn forecasts(r: &Fmm, candidates: &[Candidate]) -> String {
    let time = |x: f64| if x < 1.0 { format!("{:.2} ms", 1e3 * x) } else { format!("{x:.2} s") };
    let parts = |c: &Candidate| match &c.layout {
        Layout::Octree(parts) => match (parts.policy.theta(), parts.grid.nodes) {
            (Some(theta), _) => format!(" with θ = {theta}"),
            (None, nodes) if nodes > 1 => format!(" with {nodes} nodes"),
            (None, _) => String::new(),
        },
        _ => String::new(),
    };
    let (direct, fast): (Vec<_>, Vec<_>) = candidates.iter().partition(|c| c.method == Method::Direct);
    let order = |c: &Candidate| (10.0 * c.guess).round() / 10.0;
    let fast =
        fast.iter().map(|c| format!("{}{} {} at order {}", c.method.name(), parts(c), time(c.seconds), order(c)));
    let direct = direct.iter().map(|d| format!("direct {}", time(d.seconds)));
    let what = r.backend.processor().unit();
    format!("; forecasts for {what}, before errors are measured: {}", fast.chain(direct).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_rounded_up_to_digits() {
        for (error, two, one) in [
            (8.145721216212085e-3, 8.2e-3, 9e-3),
            (8.2e-3, 8.2e-3, 9e-3),
            (9.96e-7, 1e-6, 1e-6),
            (1e-5, 1e-5, 1e-5),
            (1.0, 1.0, 1.0),
            (123.0, 130.0, 200.0),
            (0.07, 0.07, 0.07),
            (3.1e-300, 3.1e-300, 4e-300),
        ] {
            assert_eq!((rounded_up(error, 2), rounded_up(error, 1)), (two, one), "{error:e}");
        }
        for k in 0..10_000 {
            let error = 10f64.powf(-12.0 + 1e-3 * k as f64);
            let up = rounded_up(error, 2);
            assert!(up >= error && up <= 1.1001 * error, "{error:e}: {up:e}");
        }
    }
}
