//! The method of the plane: its orders, leaves and angle, and when pairs are summed directly instead.

use super::{check_positive, floors, requested};
use adaptive2d::{Norm, laurent};
use backend_cpu::Precision;
use fmm_traits::{Error, Outputs};

/// θ in the plane: more edges against more terms. At a million uniform points (harmonic, one Zen 4 core, the other one busy) the times
/// of 0.5 and 0.6 over that of 0.55 were 1.04 and 1.00 with the orders for 1e-6 (17, 23, 20), 1.02 and 1.18 for 1e-12 (37, 50, 43).
pub const THETA: f64 = 0.55;
/// Tolerance from which reciprocals of 28 bits serve the near field of the plane.
pub(crate) const ROUGH_NEAR_FIELD: f64 = 1e-7;
/// Nanoseconds of one core in the plane for a pair, and in a fast evaluation for a point per order and besides: 300 and 600 points took
/// 0.08 and 0.23 ms directly and 0.11 and 0.17 ms by Laurent series (harmonic, p = 20).
const PLANE_PAIR_NS: f64 = 0.6;
const PLANE_POINT_NS: [f64; 2] = [10.0, 80.0];

/// Smallest order in the plane that keeps the error of each of `outputs` below `tolerance`.
pub(crate) fn plane_order(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    theta: f64,
    norm: Norm,
    population: Option<usize>,
) -> Result<usize, Error> {
    check_positive(tolerance)?;
    let (floor, output) = plane_floor(outputs);
    if tolerance < floor {
        let hint = "; direct summation has no such floor, and an order may be given instead".to_string();
        let precision = Precision::F64.name();
        return Err(Error::ToleranceFloor { tolerance, floor, output, kernel, precision, hint });
    }
    // Orders are calibrated for leaves of some 40 points; with fewer the far field is more of the sum (5 instead of 40: a layer of 3000
    // points had 0.24·θ^p instead of 0.01).
    let share = population.map_or(1.0, |k| (k as f64 / 40.0).min(1.0));
    adaptive2d::order_for(tolerance * share, theta, norm).map_err(|e| match e {
        Error::Order { order, .. } => too_many_terms(kernel, outputs, tolerance, theta, order),
        e => e,
    })
}

/// The floor in the plane, and the output that sets it.
fn plane_floor(outputs: Outputs) -> (f64, &'static str) {
    requested(outputs)
        .map(|(i, name)| (floors(Precision::F64)[i], name))
        .fold((0.0, ""), |a, b| if b.0 > a.0 { b } else { a })
}

/// Why `tolerance` is refused, for which a series would need `order` terms.
pub(crate) fn too_many_terms(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    theta: f64,
    order: usize,
) -> Error {
    let max = laurent::MAX_ORDER;
    Error::ToleranceFloor {
        tolerance,
        floor: tolerance * theta.powi(max as i32 - order as i32),
        output: plane_floor(outputs).1,
        kernel,
        precision: Precision::F64.name(),
        hint: format!("; that needs {order} terms, and {max} is the most: a smaller θ reaches it"),
    }
}

/// Orders in the plane.
pub(crate) const PLANE_ORDERS: std::ops::RangeInclusive<usize> = 1..=laurent::MAX_ORDER;

/// Desired population of a leaf of the pyramid. Leaves hold 0.4 to 1.6 of it: a pyramid is halved four times or not at all.
pub(crate) fn plane_population(order: usize) -> f64 {
    if order <= 24 { 45.0 } else { 60.0 }
}

/// Whether direct summation in the plane is the cheaper way.
pub(crate) fn plane_direct_is_cheaper(order: usize, n: usize, m: usize) -> bool {
    let [per_order, besides] = PLANE_POINT_NS;
    let fast = 2e4 + (besides + per_order * order as f64) * 0.5 * (n + m) as f64;
    PLANE_PAIR_NS * n as f64 * m as f64 <= fast
}
