//! Orders of equivalent densities for points that are known.
//!
//! The gradients of [`LAPLACE`](super::LAPLACE) are those of points on a lattice. Nothing there is near enough to dominate the norm of a gradient, as
//! close pairs do among points at random, and points lie on the faces of their boxes, where gradients err most. How far
//! points are from a lattice says their [closeness](fmm_tree::closeness) c: errors of normal strengths fall as 1/√c. Those of strengths
//! of one sign do not, for their norm is the field of all; they are below the ones of a lattice anyway.

use super::{MAX_ORDER, MIN_ORDER, ORDERS, Scene, error_at, margin, requested};
use fmm_traits::{Error, Outputs};

/// log₁₀ of the largest error of gradients over all clouds but grids and copies: of 8000 to 100 000 points from several seeds, and a million of
/// some, normal strengths and strengths in (0, 1).
const AT_RANDOM: [f64; ORDERS] =
    [-2.21, -2.91, -4.05, -4.86, -5.78, -6.53, -7.36, -7.99, -8.76, -9.40, -9.93, -10.60, -11.10, -11.70];

/// The same on surfaces and lines alone, and a tenth of a digit: few boxes meet few others.
const ON_SURFACES: [f64; ORDERS] =
    [-2.20, -3.10, -4.00, -5.25, -5.85, -6.65, -7.65, -8.40, -9.30, -10.20, -10.80, -11.40, -12.00, -12.40];

/// Closeness of lattices, and the least on surfaces (at random in space at most 500).
const LATTICE: f64 = 10.0;
const SURFACE: f64 = 1000.0;

/// Fewer points, or a leaf capacity that was given, were not measured.
const LEAST: usize = 4000;

/// The smallest order that keeps `tolerance` on points of some closeness, which is asked for where it matters: charges without
/// softening, targets at the sources. At most `safe`, which serves all points.
///
/// # Errors
/// That of the closeness.
pub(crate) fn order_of_scattered(
    kernel: &str,
    outputs: Outputs,
    tolerance: f64,
    scene: Scene,
    safe: usize,
    closeness: impl FnOnce() -> Result<f64, Error>,
) -> Result<usize, Error> {
    let known = ["laplace", "gravity"].contains(&kernel) && scene.sources >= LEAST && scene.ncrit.is_none();
    if !known || scene.apart || !outputs.contains(Outputs::GRADIENT) {
        return Ok(safe);
    }
    let smallest = |closeness: f64| {
        let share = (LATTICE / closeness).sqrt().min(1.0);
        let row = if closeness < SURFACE { &AT_RANDOM } else { &ON_SURFACES };
        let error = |i: usize, p: usize| match i {
            1 => (share * error_at(kernel, i, p)).max(10f64.powf(row[p - MIN_ORDER])),
            _ => error_at(kernel, i, p),
        };
        let enough = |p: &usize| requested(outputs).all(|(i, _)| error(i, *p) <= margin(kernel, i, scene) * tolerance);
        (MIN_ORDER..=MAX_ORDER).find(enough).unwrap_or(safe).min(safe)
    };
    if smallest(f64::INFINITY) == safe { Ok(safe) } else { Ok(smallest(closeness()?)) }
}
