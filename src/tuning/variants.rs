//! Order and opening angle of the variants: spherical harmonics, and treecodes of both expansions.
//!
//! Of spherical harmonics the order is the one of typical points ([`spherical`](super::spherical), [`treecode`]) until theirs are known, and where they are
//! not looked at the one of the worst ([`accuracy`]). The angle of
//! a treecode comes from the errors of [`treecode`]; one of equivalent densities, of any other kernel than Laplace's, has the errors of
//! Laplace's, with less trust.

use super::spherical::{SHARES, rounding, typical};
use super::treecode::{self, ANGLES};
use super::{
    MAX_ORDER, MIN_ORDER, OF_TREECODES, Scene, check_positive, dipolar, equivalent_error, error_at, floor_at,
    requested, row,
};
use crate::variant::{Expansion, Parts, Policy};
use backend_cpu::Precision;
use fmm_kernels::equivalent::surface;
use fmm_kernels::spherical::{self, accuracy, horner};
use fmm_traits::{Error, Outputs};

/// Opening angle where an order was given and no angle.
const THETA: f64 = 0.6;

/// The orders of an expansion.
fn orders(expansion: Expansion) -> std::ops::RangeInclusive<usize> {
    match expansion {
        Expansion::Spherical => spherical::MIN_ORDER..=spherical::MAX_ORDER,
        Expansion::Equivalent => MIN_ORDER..=MAX_ORDER,
    }
}

/// Checks an order that was given; a treecode gets the usual angle.
pub(crate) fn given(order: usize, mut parts: Parts) -> Result<(usize, Parts), Error> {
    let range = orders(parts.expansion);
    if !range.contains(&order) {
        return Err(Error::Order { order, min: *range.start(), max: *range.end() });
    }
    if let Policy::Treecode { theta: theta @ 0.0 } = &mut parts.policy {
        *theta = THETA;
    }
    Ok((order, parts))
}

/// Order, and angle of a treecode, for a tolerance.
///
/// # Errors
/// As [`super::check_tolerance`]; second derivatives of treecodes of equivalent densities and of dipoles were not measured.
pub(crate) fn chosen(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    precision: Precision,
    scene: Scene,
    mut parts: Parts,
) -> Result<(usize, Parts), Error> {
    if parts.expansion == Expansion::Equivalent && parts.policy == Policy::Uvwx {
        return Ok((super::order_for(kernel, outputs, tolerance, precision, scene)?, parts));
    }
    check_positive(tolerance)?;
    let by_spherical = scene.again && parts.expansion == Expansion::Spherical && !dipolar(kernel);
    if outputs.contains(Outputs::HESSIAN) && !by_spherical || outputs.contains(Outputs::PRESSURE) {
        let reason =
            "errors of second derivatives (of charges by spherical harmonics they are known on CPUs) and pressures were not \
             measured: give an order"
                .to_string();
        return Err(Error::Unsupported { operation: "a tolerance for this method", reason });
    }
    let most = ANGLES.iter().copied().fold(0.0, f64::max);
    let angles = match parts.policy {
        Policy::Treecode { theta } if theta > most => {
            let requirement = "must be at most 1 with a tolerance: no errors were measured above";
            return Err(Error::Parameter { name: "theta", value: theta, requirement });
        }
        Policy::Treecode { theta } if theta > 0.0 => vec![theta],
        Policy::Treecode { .. } => ANGLES.to_vec(),
        _ => vec![0.0],
    };
    let enough = |theta: f64, p: usize| {
        requested(outputs).all(|(i, _)| {
            let error = expected(kernel, &parts, theta, i, p, scene) / margin(kernel, i, scene, &parts);
            floor_at(kernel, precision, scene, i) <= tolerance && error + rounding(precision, i) <= tolerance
        })
    };
    // Where other points than typical ones will ask for more, an angle must have it: the smallest has most.
    let last = *orders(parts.expansion).end();
    let worst = Scene { again: false, ..scene };
    let safe = |theta: f64| {
        let reach = |i: usize| expected(kernel, &parts, theta, i, last, worst) / margin(kernel, i, worst, &parts);
        theta <= angles[0] || requested(outputs).all(|(i, _)| reach(i) <= tolerance)
    };
    let found = angles.iter().filter(|&&theta| safe(theta)).filter_map(|&theta| {
        let p = orders(parts.expansion).find(|&p| enough(theta, p))?;
        Some((cost(&parts, theta, p, outputs, scene.again), theta, p))
    });
    let Some((_, theta, p)) = found.min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Err(floor(kernel, outputs, tolerance, precision, scene, &parts, &angles));
    };
    if let Policy::Treecode { theta: chosen } = &mut parts.policy {
        *chosen = theta;
    }
    Ok((p, parts))
}

/// The error that says what can be promised.
fn floor(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    precision: Precision,
    scene: Scene,
    parts: &Parts,
    angles: &[f64],
) -> Error {
    let last = *orders(parts.expansion).end();
    let theta = angles.iter().copied().fold(f64::INFINITY, f64::min);
    let reach = |i: usize| {
        let error = expected(kernel, parts, theta, i, last, scene) / margin(kernel, i, scene, parts);
        floor_at(kernel, precision, scene, i).max(error + rounding(precision, i))
    };
    let worst = requested(outputs).map(|(i, name)| (reach(i), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    let (floor, output) = worst.unwrap_or((0.0, ""));
    let hint = match (precision, parts.expansion, parts.policy) {
        (Precision::F32, ..) => "; f64 reaches further, and an order may be given instead",
        (_, Expansion::Equivalent, _) => {
            "; the fast multipole method reaches further, and an order may be given instead"
        }
        _ => "; equivalent densities reach further, and an order may be given instead",
    };
    let hint = hint.to_string();
    Error::ToleranceFloor { tolerance, floor, output, kernel, precision: precision.name(), hint }
}

/// The largest error that an order which was given stands for.
pub(crate) fn error_of_order(kernel: &str, outputs: Outputs, order: usize, parts: &Parts) -> f64 {
    if parts.expansion == Expansion::Equivalent && parts.policy == Policy::Uvwx {
        return equivalent_error(kernel, outputs, order);
    }
    let error = |i: usize| match parts.policy.theta() {
        Some(theta) => of_treecode(kernel, parts.expansion, theta, i, order),
        None => typical(i, order),
    };
    requested(outputs).fold(0.0, |worst, (i, _)| error(i).max(worst))
}

/// Part of the tolerance that an error may take before the points are known. Other tables than that of typical points are of 4000 points: gradients of
/// strengths in (0, 1) get worse with more; sources with dipoles err up to four times as much; boxes that a treecode just accepts in one
/// tree and not in another make a factor of 3, leaves of a few points as much.
fn margin(kernel: &str, output: usize, scene: Scene, parts: &Parts) -> f64 {
    let treecode = parts.policy.theta().is_some();
    let dipolar = dipolar(kernel);
    // Of dipoles the factor was measured; of other kernels the row says how far it was.
    let kind = if dipolar { 0.25 } else { row(kernel).trust };
    if scene.again && parts.expansion == Expansion::Spherical {
        // What the estimate will say, not the error: it is about twice as much for a treecode.
        return SHARES[output] * kind * if treecode { 0.5 * OF_TREECODES } else { 1.0 };
    }
    let growth = if output == 0 { 1.0 } else { (scene.sources as f64 / 1e5).powf(0.2).max(1.0) };
    let small = if scene.ncrit.is_some_and(|k| k < 20) { 0.3 } else { 1.0 };
    let cancelling = parts.expansion == Expansion::Equivalent && dipolar;
    let accepted = if treecode { 0.2 } else { 1.0 };
    0.6 * scene.share(cancelling) * accepted * small * kind / growth
}

/// Expected error of output number `output`: 0 the potential, 1 the gradient, 2 the Hessian, for which the gradient stands.
fn expected(kernel: &str, parts: &Parts, theta: f64, output: usize, p: usize, scene: Scene) -> f64 {
    match (parts.policy, parts.expansion) {
        (Policy::Treecode { .. }, Expansion::Spherical) if scene.again => treecode::typical(theta, output, p),
        (Policy::Treecode { .. }, expansion) => of_treecode(kernel, expansion, theta, output, p),
        _ if scene.again => typical(output, p),
        _ => accuracy::expected_error::<f64>(p, output > 0),
    }
}

/// [`expected`] of a treecode on the worst points.
fn of_treecode(kernel: &str, expansion: Expansion, theta: f64, output: usize, p: usize) -> f64 {
    match expansion {
        Expansion::Spherical => treecode::spherical(theta, output, p),
        // The table is that of Laplace; other kernels err more by as much as in the fast multipole method.
        Expansion::Equivalent => {
            let more = error_at(kernel, output, p) / error_at("laplace", output, p);
            more.max(1.0) * treecode::equivalent(theta, output, p)
        }
    }
}

/// Relative time of a treecode, of one by harmonics on a CPU in pairs, or of a fast multipole method. A treecode sees θ^−3 boxes
/// a level, on about three levels, and sums the pairs of the leaves around.
fn cost(parts: &Parts, theta: f64, p: usize, outputs: Outputs, on_cpu: bool) -> f64 {
    let derivatives = requested(outputs).fold(0, |most, (i, _)| most.max(i));
    let more = derivatives as f64;
    if on_cpu && parts.expansion == Expansion::Spherical && theta > 0.0 {
        // In pairs, of which there are 9 for each box: at order 6 and θ = 0.9 a box takes the time of 5, most of them with
        // two thirds of the degrees.
        let far = match p <= horner::MOST && derivatives < 2 {
            true => 2.0 + 0.12 * horner::len((2 * p).div_ceil(3)) as f64,
            false => 0.3 * (p as f64 + more).powi(2),
        };
        return (far + 9.0) / theta.powi(3);
    }
    let far = match parts.expansion {
        // A harmonic takes about 0.4 of the time of a pair.
        Expansion::Spherical => 0.4 * (p as f64 + more).powi(2),
        Expansion::Equivalent => surface::len(p) as f64,
    };
    if theta > 0.0 { (3.0 * far + 40.0) / theta.powi(3) } else { far }
}
