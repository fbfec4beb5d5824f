//! The unit costs that are built in: what an operation takes, by backend. Every number here is a time that was measured, or
//! a size that balances such times. None says anything about errors.
//!
//! On a CPU they are those of one Zen 4 core (AVX-512) as `fmm calibrate` printed them on a quiet machine; on a GPU those of
//! one NVIDIA H200 (`docs/notes/gpu-performance.md`).

use super::{Costs, OrderCosts};

/// Nanoseconds of an evaluation that has no points.
pub(super) const EVALUATION: f64 = 1e6;
/// Fewest points a leaf is worth.
pub(super) const SMALLEST_LEAF: f64 = 8.0;

/// Laplace, potential and gradient, f64. Eq. 28 makes of them 57, 93 and 133 points a leaf of equivalent densities of order
/// 6, 8 and 10, where a sweep over leaf sizes found 57, 80 and 110 at a million points, and 26 and 41 of spherical harmonics
/// of order 6 and 10 (28 to 40, 35 to 50).
pub(super) fn costs() -> Costs {
    let orders = |rows: &[[f64; 4]]| {
        let row = |&[p, point, leaf, m2l]: &[f64; 4]| OrderCosts { order: p as usize, point, leaf, m2l };
        rows.iter().map(row).collect()
    };
    Costs {
        kernel: "laplace".to_string(),
        precision: "f64".to_string(),
        outputs: vec!["potential".to_string(), "gradient".to_string()],
        pair: 0.68,
        leaves: 60.0,
        equivalent: orders(&EQUIVALENT),
        spherical: orders(&SPHERICAL),
    }
}
/// Order, and nanoseconds of a point, a leaf and a translation.
const EQUIVALENT: [[f64; 4]; 4] = [
    [4.0, 72.4, 1655.0, 66.2],
    [6.0, 183.8, 3618.0, 289.6],
    [8.0, 342.3, 7963.0, 781.6],
    [10.0, 572.3, 14836.0, 1623.7],
];
/// The same of spherical harmonics.
const SPHERICAL: [[f64; 4]; 5] = [
    [4.0, 16.9, 832.0, 23.2],
    [8.0, 41.5, 1820.0, 88.8],
    [12.0, 86.1, 3486.0, 198.4],
    [16.0, 148.4, 6997.0, 388.3],
    [24.0, 385.5, 14558.0, 1261.2],
];

/// Mean points of a leaf of a treecode; a group of M2P on a GPU has as many.
pub(super) const TREECODE_LEAF: f64 = 64.0;
/// The same of spherical harmonics on CPUs. A million uniform points, θ = 0.9, p = 6: 1.38, 1.18, 1.12 s with 57, 37, 27
/// points a leaf, with gradients 2.24, 1.91, 1.91 s; smaller leaves make longer lists.
pub(super) const HARMONIC_TREECODE_LEAF: f64 = 36.0;
/// Boxes that a target of a treecode meets at θ = 1: of a million uniform points, θ = 0.9, p = 6, 1.24 s.
pub(super) const BOXES: f64 = 60.0;
/// Time of a harmonic of M2P, over that of a pair of points.
pub(super) const HARMONIC: f64 = 0.4;

/// θ in the plane: more edges against more terms. At a million uniform points (harmonic, one Zen 4 core, the other one busy)
/// the times of 0.5 and 0.6 over that of 0.55 were 1.04 and 1.00 at a tolerance of 1e-6 (17, 23, 20 terms), 1.02 and 1.18 at
/// 1e-12 (37, 50, 43).
pub(crate) const PLANE_THETA: f64 = 0.55;
/// Tolerance from which reciprocals of 28 bits serve the near field of the plane.
pub(crate) const ROUGH_NEAR_FIELD: f64 = 1e-7;
/// Desired population of a leaf of the pyramid. Leaves hold 0.4 to 1.6 of it: a pyramid is halved four times or not at all.
pub(crate) fn plane_population(order: usize) -> f64 {
    if order <= 24 { 45.0 } else { 60.0 }
}
/// Nanoseconds of one core in the plane for a pair, and in a fast evaluation for a point per order and besides: 300 and 600
/// points took 0.08 and 0.23 ms directly and 0.11 and 0.17 ms by Laurent series (harmonic, p = 20).
pub(super) const PLANE_PAIR: f64 = 0.6;
pub(super) const PLANE_POINT: [f64; 2] = [10.0, 80.0];
/// Nanoseconds of an evaluation in the plane that has no points.
pub(super) const PLANE_EVALUATION: f64 = 2e4;

/// Nanoseconds of a GPU: an evaluation that has no points; a point, beside its pairs, times order and components.
pub(super) const DEVICE_EVALUATION: f64 = 3e6;
pub(super) const DEVICE_POINT: f64 = 0.1;
/// A pair of points for each number that goes in or out, in f64.
pub(super) const DEVICE_PAIR: f64 = 0.7e-3;
/// A pair of direct summation, which has no leaves that are partly filled.
pub(super) const DEVICE_DIRECT_PAIR: f64 = 0.5e-3;
/// Operations a nanosecond of products of matrices: in f64, in f32.
pub(super) const DEVICE_OPERATIONS: [f64; 2] = [18e3, 28e3];
/// Fewest points of a leaf.
pub(super) const DEVICE_LEAF: f64 = 24.0;
