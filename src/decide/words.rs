//! The words of a decision: reasons, refusals, forecasts as text.

use super::attempt::Tried;
use crate::candidates::{Candidate, Layout, Task};
use crate::parts::{Grid, Parts};
use crate::request::{Fmm, Method};
use fmm_traits::tape::Op;
use fmm_traits::{Error, Precision};

/// A result with the reason for which it is taken.
pub(super) fn because(mut tried: Tried, why: String) -> Tried {
    tried.decision.choice.why = why;
    tried
}

/// Why direct summation replaces fast methods whose least error is `floor`.
pub(super) fn falls_short(floor: f64) -> String {
    format!("fast methods reach {floor:.1e} for this kernel on these points")
}

/// An error, rounded up to one digit.
pub(super) fn rounded_up(error: f64) -> f64 {
    let unit = 10f64.powf(error.log10().floor());
    (error / unit).ceil() * unit
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
        floor,
        output,
        kernel: r.family.name().into(),
        precision: r.precision.name(),
        hint: format!(" for this kernel on these points, as measured{waves}{further}{direct}"),
    }
}

/// The compared forecasts as text.
pub(super) fn forecasts(r: &Fmm, candidates: &[Candidate], direct: Option<&Candidate>) -> String {
    let time = |x: f64| if x < 1.0 { format!("{:.2} ms", 1e3 * x) } else { format!("{x:.2} s") };
    let nodes = |c: &Candidate| match c.layout {
        Layout::Octree(Parts { grid: Grid { nodes, .. }, .. }) if nodes > 1 => format!(" with {nodes} nodes"),
        _ => String::new(),
    };
    let name = |c: &Candidate| format!("{}{}", c.method.name(), nodes(c));
    let each = candidates.iter().map(|c| format!("{} {} at order {}", name(c), time(c.seconds), c.first));
    let direct = direct.map(|d| format!("direct {}", time(d.seconds)));
    let what = r.backend.processor().unit();
    format!("; forecast for {what}: {}", each.chain(direct).collect::<Vec<_>>().join(", "))
}
