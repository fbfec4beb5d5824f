//! Orders of spherical harmonics for a tolerance: a typical one before the points are known, and the one that the
//! [`Estimate`] of a tree with its lists asks for.
//!
//! Errors over estimates, as `cargo run --release -p backend-cpu --example spherical_estimates` prints them (clouds of the testkit,
//! normal strengths, then uniform ones in (0, 1), orders 3 to 26): potentials up to 1.2 and 0.5 where they are above 1e-9, gradients up to 1 and
//! 2.9 (from order 16 on 1.4), Hessians up to 1 and 4.4, these from grids and surfaces, whose points lie so evenly that strengths of one sign
//! cancel in the sums and not in the errors.

use super::{OF_TREECODES, Scene, dipolar, floor_at, requested};
use crate::variant::{Parts, Policy};
use backend_cpu::Precision;
use backend_cpu::spherical::estimate::Estimate;
use fmm_kernels::spherical::{MAX_ORDER, MIN_ORDER, Truncation};
use fmm_traits::{Error, Outputs};

/// log₁₀ of the errors of potential and gradient of 4000 uniform points by order from 1 to 40, in steps of 3, strengths of either kind.
const TYPICAL: [[f64; 14]; 2] = [
    [-1.24, -3.00, -4.20, -5.33, -6.49, -7.49, -8.30, -9.15, -10.05, -10.83, -11.57, -12.40, -13.25, -14.10],
    [-0.23, -2.38, -3.68, -4.68, -5.76, -6.70, -7.47, -8.27, -9.08, -9.82, -10.58, -11.35, -12.20, -13.05],
];

/// The error of random points, for a first choice of the order.
pub(super) fn typical(output: usize, p: usize) -> f64 {
    let row = &TYPICAL[output.min(1)];
    let place = (p.clamp(MIN_ORDER, MAX_ORDER) - 1) as f64 / 3.0;
    let i = (place as usize).min(row.len() - 2);
    10f64.powf(row[i] + (place - i as f64) * (row[i + 1] - row[i]))
}

/// Part of the tolerance that an estimate of potential, gradient or Hessian may take.
pub(super) const SHARES: [f64; 3] = [0.25, 0.25, 0.2];

/// With U, V, W and X lists and variable truncation, where leaves are not small, targets are the sources, and these have no dipoles,
/// potential and gradient may take ASSURED/p of that part from order FROM on: strengths of one sign err less there than normal ones. Errors over estimates: potentials at most 1.3 at 2500 points and 2.1 at 1e5 (two
/// clusters, order 24), gradients 1.4 (orders 16 to 40, all clouds).
const ASSURED: [f64; 2] = [25.0, 32.0];
const FROM: usize = 16;
/// Elsewhere the part shrinks beyond this order, by its square: fewer and fewer pairs make up the error, and a sample misses them.
const SURE: f64 = 20.0;
/// Leaf capacity below which leaves are small.
const SMALL: usize = 20;
/// Part that is left of it for targets that are not the sources: beside a Plummer cloud errors were 4 times the estimate.
const APART: f64 = 0.6;

/// Part that is left of it where strengths are dipoles: an estimate for them is that of the next derivative of charges.
const DIPOLES: f64 = 0.5;

/// What f32 adds to output number `output`.
pub(super) fn rounding(precision: Precision, output: usize) -> f64 {
    if precision == Precision::F64 { 0.0 } else { [1.5e-6, 1.5e-5, 1e-3, 1.0][output] }
}

/// How many derivatives an [`Estimate`] must have for `outputs` of `kernel`.
pub(crate) fn derivatives(kernel: &str, outputs: Outputs) -> usize {
    let most = requested(outputs).fold(0, |most, (i, _)| most.max(i));
    most + usize::from(dipolar(kernel))
}

/// The smallest order whose estimated errors keep a tolerance.
///
/// # Errors
/// [`Error::ToleranceFloor`] with what the largest order of the estimate reaches.
pub(crate) fn order_on(
    estimate: &Estimate,
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    precision: Precision,
    scene: Scene,
    parts: &Parts,
) -> Result<usize, Error> {
    let (dipoles, apart) = (dipolar(kernel), if scene.apart { APART } else { 1.0 });
    let treecode = parts.policy.theta().is_some();
    let part = if treecode { OF_TREECODES } else { 1.0 };
    let measured = parts.policy == Policy::Uvwx && parts.spherical.truncation == Truncation::Variable;
    let usual = measured && !dipoles && !scene.apart && scene.ncrit.is_none_or(|k| k >= SMALL);
    let share = |i: usize, p: usize| match usual {
        true if p >= FROM && i < ASSURED.len() => SHARES[i] * ASSURED[i] / p as f64,
        true => SHARES[i],
        false => apart * SHARES[i] * (SURE / p as f64).min(1.0).powi(2),
    };
    let reach = |i: usize, p: usize| {
        let error = match dipoles {
            true => estimate.error(i, p).max(estimate.error(i + 1, p)) / DIPOLES,
            false => estimate.error(i, p),
        };
        error / share(i, p) + rounding(precision, i)
    };
    let enough = |&p: &usize| requested(outputs).all(|(i, _)| reach(i, p) <= part * tolerance);
    if let Some(p) = (MIN_ORDER..=MAX_ORDER).find(enough) {
        return Ok(p);
    }
    let worst = requested(outputs).map(|(i, name)| {
        let least = (MIN_ORDER..=MAX_ORDER).map(|p| reach(i, p) / part).fold(f64::INFINITY, f64::min);
        (least.max(floor_at(kernel, precision, scene, i)), name)
    });
    let (floor, output) = worst.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, ""));
    let further = if treecode { "a smaller θ reaches" } else { "equivalent densities reach" };
    let hint = format!(" on these points; {further} further, and an order may be given instead");
    Err(Error::ToleranceFloor { tolerance, floor, output, kernel, precision: precision.name(), hint })
}
