//! Every number that was measured rather than derived: tolerance → order, direct or fast, forecast of memory. Nothing here depends on the number of threads.
//!
//! The error table is printed by `cargo run --release --example calibrate`, potentials and gradients of Laplace also by the
//! example `equivalent_errors` of `backend-cpu`: for each order the largest relative ℓ2
//! error, against direct summation at 1000 random targets, over the clouds of
//! the testkit and over strengths uniform in (0, 1) and normal.

mod memory;
mod plane;
mod scattered;
mod spherical;
mod treecode;
mod variants;

use crate::variant::{Expansion, Parts, Policy, Truncation};
use backend_cpu::Precision;
use fmm_families::Facts;
use fmm_kernels::equivalent::surface;
use fmm_traits::{Error, Outputs};
use fmm_tree::ListOptions;
pub(crate) use memory::{forecast, forecast_on_gpu, plane_forecast};
pub use plane::THETA;
pub(crate) use plane::{
    PLANE_ORDERS, ROUGH_NEAR_FIELD, plane_direct_is_cheaper, plane_order, plane_population, too_many_terms,
};
pub(crate) use scattered::order_of_scattered;
pub(crate) use spherical::{derivatives, order_on};
pub(crate) use variants::{chosen, error_of_order, given};

/// Smallest order.
pub const MIN_ORDER: usize = 3;
/// Largest order.
pub const MAX_ORDER: usize = 16;
const ORDERS: usize = MAX_ORDER - MIN_ORDER + 1;

/// log₁₀ of the largest error of each output ([`Outputs::ALL`]) for the orders from [`MIN_ORDER`].
struct Row {
    kernel: &'static str,
    /// Part of the [`margin`] that is used: less where the row was not measured on all clouds.
    trust: f64,
    /// Whether gradients get worse with more points: those of kernels whose locals carry no affine part
    /// ([`fmm_kernels::equivalent::affine`]).
    grows: bool,
    errors: [[f64; ORDERS]; 4],
}

/// A row measured for the first orders only, and 0.6 digits for each further one (the measured rows
/// gain 0.6 to 0.9 there).
const fn extended<const N: usize>(measured: [f64; N]) -> [f64; ORDERS] {
    let mut errors = [0.0; ORDERS];
    let mut i = 0;
    while i < ORDERS {
        errors[i] = if i < N { measured[i] } else { errors[i - 1] - 0.6 };
        i += 1;
    }
    errors
}

/// Velocity and its derivatives. Orders 3 and 4 over all clouds; the others are those of one
/// uniform two-level sum, with the 0.5 digits by which the clouds were worse there.
const STOKES: [[f64; ORDERS]; 4] = [
    extended([-1.40, -2.50, -3.15, -4.45, -5.30, -6.05, -6.75, -7.60]),
    extended([-1.20, -2.00, -2.90, -3.90, -4.70, -5.45, -6.10, -6.90]),
    extended([-0.40, -1.10, -1.90, -2.80, -3.60, -4.30, -4.90, -5.60]),
    extended([-1.20, -2.00, -2.90, -3.90, -4.70, -5.45, -6.10, -6.90]),
];

/// All orders over all clouds; potential and gradient also at 1e5 points, and on a grid and uniform points at 1e6.
const LAPLACE: [[f64; ORDERS]; 4] = [
    [-2.49, -3.42, -4.45, -5.36, -6.32, -7.08, -8.00, -8.78, -9.50, -10.29, -11.00, -11.42, -12.21, -12.85],
    [-1.95, -2.82, -3.72, -4.46, -5.33, -6.15, -6.94, -7.66, -8.36, -9.06, -9.76, -10.29, -10.96, -11.40],
    [-0.93, -1.23, -2.49, -3.13, -4.16, -5.52, -6.43, -7.48, -8.23, -8.79, -9.29, -9.53, -10.28, -10.53],
    [0.0; ORDERS],
];

/// By family name.
const ERRORS: [Row; 8] = [
    Row { kernel: "laplace", trust: 1.0, grows: false, errors: LAPLACE },
    Row { kernel: "gravity", trust: 1.0, grows: false, errors: LAPLACE },
    Row {
        kernel: "laplace_dipole",
        trust: ESTIMATED,
        grows: false,
        errors: [
            extended([-1.98, -2.79, -3.63, -4.40, -5.35, -6.31, -7.03, -7.62, -8.26]),
            extended([-1.66, -2.50, -3.34, -4.07, -5.25, -6.14, -6.75, -7.33, -7.86]),
            extended([-1.74, -2.34, -3.17, -3.77, -5.11, -6.05, -6.70, -7.00, -7.53]),
            [0.0; ORDERS],
        ],
    },
    Row {
        kernel: "laplace_mixed",
        trust: ESTIMATED,
        grows: false,
        errors: [
            extended([-1.99, -2.73, -3.61, -4.40, -5.57, -6.26, -6.99, -7.61, -8.27]),
            extended([-1.70, -2.47, -3.35, -4.05, -5.30, -6.20, -6.80, -7.30, -7.87]),
            extended([-1.74, -2.27, -3.12, -3.70, -5.13, -6.06, -6.74, -7.00, -7.55]),
            [0.0; ORDERS],
        ],
    },
    Row {
        kernel: "yukawa",
        trust: ESTIMATED,
        grows: true,
        errors: [
            extended([-2.56, -3.43, -4.53, -5.48, -6.20, -7.01, -7.83, -8.90, -9.78]),
            extended([-2.03, -2.52, -3.56, -4.24, -5.44, -6.37, -7.10, -7.68, -8.31]),
            extended([-1.38, -1.64, -2.72, -3.20, -4.85, -5.55, -6.40, -6.78, -7.54]),
            [0.0; ORDERS],
        ],
    },
    Row { kernel: "stokes", trust: ESTIMATED, grows: false, errors: STOKES },
    Row { kernel: "stokes_pressure", trust: ESTIMATED, grows: false, errors: STOKES },
    Row { kernel: "stresslet_pressure", trust: ESTIMATED, grows: false, errors: STOKES },
];

/// What is known of the points when the order is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scene {
    /// Number of sources.
    pub sources: usize,
    /// Whether the targets are points of their own.
    pub apart: bool,
    /// Leaf capacity, if it was given.
    pub ncrit: Option<usize>,
    /// Whether the order of spherical harmonics is chosen again once the points are known, as on CPUs.
    pub again: bool,
}

impl Scene {
    /// Part of a margin that is left; `cancelling` if densities stand for sources without a net charge.
    fn share(self, cancelling: bool) -> f64 {
        match self.apart {
            true if cancelling => APART_FROM_DIPOLES,
            true => APART,
            false => 1.0,
        }
    }
}

/// Whether sources have strengths without a net charge.
fn dipolar(kernel: &str) -> bool {
    ["dipole", "mixed", "stresslet"].iter().any(|sources| kernel.contains(sources))
}

/// The promise is kept with this much in hand: an order serves a tolerance when its table entry is
/// at most `margin` × tolerance.
///
/// Potentials: normal strengths may add up to little, and the error is relative to that. Gradients: the table is that of
/// points on a grid, half a digit above all other clouds. Kernels that carry no affine part, and second derivatives,
/// get worse with more points, and their rows are of clouds of 4000 to 10 000.
///
/// Targets apart from the sources lack the near pairs that dominate the norm otherwise: their share is [`APART`].
fn margin(kernel: &str, output: usize, scene: Scene) -> f64 {
    let row = row(kernel);
    let growth = (scene.sources as f64 / 5e4).powf(0.35).max(1.0);
    let own = match output {
        0 => 0.6,
        1 if !row.grows => 0.85,
        _ => 0.4 / growth,
    };
    scene.share(dipolar(kernel)) * row.trust * own
}

/// Part of the margin that is left for targets that are not the sources: about an order. The largest error seen over clouds
/// of sources with targets inside, around and far from them was 4.5 × that at the sources.
const APART: f64 = 0.15;

/// As [`APART`], of sources without a net charge: at order 9 potentials and gradients had up to 5 and 7 times the error of [`APART`] alone,
/// on clouds with most of their points in one place.
const APART_FROM_DIPOLES: f64 = 0.015;

/// [`Row::trust`] of rows that were measured on some clouds or orders only.
const ESTIMATED: f64 = 0.4;
/// [`Row::trust`] of a kernel that was not measured: anisotropic ones need an order more than Laplace.
const UNKNOWN: f64 = 0.1;

/// Smallest tolerance that can be promised for each output ([`Outputs::ALL`]).
fn floors(precision: Precision) -> [f64; 4] {
    match precision {
        Precision::F64 => [1e-12, 1e-10, 1e-8, 1e-10],
        Precision::F32 => [1e-5, 1e-4, 1e-2, 1e-4],
    }
}

/// [`floors`] of output number `output` where the scene raises it: in f32 the densities that stand for dipoles cancel to fewer
/// digits at targets apart (at 1000 extents and beside an outlier 5e-4 and 2e-3).
fn floor_at(kernel: &str, precision: Precision, scene: Scene, output: usize) -> f64 {
    let cancelling = precision == Precision::F32 && scene.apart && dipolar(kernel);
    floors(precision)[output] * if cancelling { 100.0 } else { 1.0 }
}

/// The row of a kernel. A kernel of the user has the errors of Laplace, with little trust.
fn row(kernel: &str) -> &'static Row {
    const OTHER: Row = Row { kernel: "", trust: UNKNOWN, grows: true, errors: LAPLACE };
    ERRORS.iter().find(|r| r.kernel == kernel).unwrap_or(&OTHER)
}

/// Table error of output number `output` at `order`.
fn error_at(kernel: &str, output: usize, order: usize) -> f64 {
    10f64.powf(row(kernel).errors[output][order - MIN_ORDER])
}

/// The numbers in [`Outputs::ALL`] of the requested outputs.
fn requested(outputs: Outputs) -> impl Iterator<Item = (usize, &'static str)> {
    Outputs::ALL.iter().enumerate().filter(move |(_, (o, _))| outputs.contains(*o)).map(|(i, (_, n))| (i, *n))
}

/// The tolerance when neither it nor an order is given: 1e-6, or the floor where that is higher.
pub(crate) fn default_tolerance(kernel: &str, outputs: Outputs, precision: Precision, scene: Scene) -> f64 {
    requested(outputs).fold(1e-6, |e, (i, _)| floor_at(kernel, precision, scene, i).max(e))
}

/// Refuses a tolerance that is not positive and finite.
pub(crate) fn check_positive(tolerance: f64) -> Result<(), Error> {
    if tolerance > 0.0 && tolerance.is_finite() { Ok(()) } else { Err(Error::Tolerance { tolerance }) }
}

/// Small leaves of W and X edges are summed pair by pair: those with fewer points than the
/// equivalent surface has, or than harmonics; of a treecode half as many, and a quarter where far boxes take fewer degrees.
pub(crate) fn list_options(order: usize, parts: &Parts) -> ListOptions {
    let size = match (parts.expansion, parts.policy) {
        (Expansion::Equivalent, _) => surface::len(order),
        (Expansion::Spherical, Policy::Treecode { .. }) if parts.spherical.truncation == Truncation::Variable => {
            order * order / 4
        }
        (Expansion::Spherical, Policy::Treecode { .. }) => order * order / 2,
        (Expansion::Spherical, _) => order * order,
    };
    ListOptions { m2p_min_sources: size, p2l_min_targets: size }
}

/// Refuses a tolerance that is not positive and finite, or that no order reaches.
pub fn check_tolerance(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    precision: Precision,
    scene: Scene,
) -> Result<(), Error> {
    check_positive(tolerance)?;
    for (i, output) in requested(outputs) {
        let reach = error_at(kernel, i, MAX_ORDER) / margin(kernel, i, scene);
        let floor = floor_at(kernel, precision, scene, i).max(reach);
        if tolerance < floor {
            let hint = match precision {
                Precision::F32 if tolerance >= floors(Precision::F64)[i].max(reach) => "; f64 reaches it",
                _ => "; direct summation in f64 has no such floor, and an order may be given instead",
            };
            return Err(Error::ToleranceFloor {
                tolerance,
                floor,
                output,
                kernel,
                precision: precision.name(),
                hint: hint.to_string(),
            });
        }
    }
    Ok(())
}

/// Smallest order that keeps the error of each of `outputs` below `tolerance`.
///
/// # Errors
/// As [`check_tolerance`].
pub fn order_for(
    kernel: &'static str,
    outputs: Outputs,
    tolerance: f64,
    precision: Precision,
    scene: Scene,
) -> Result<usize, Error> {
    check_tolerance(kernel, outputs, tolerance, precision, scene)?;
    let enough =
        |p: &usize| requested(outputs).all(|(i, _)| error_at(kernel, i, *p) <= margin(kernel, i, scene) * tolerance);
    Ok((MIN_ORDER..=MAX_ORDER).find(enough).unwrap_or(MAX_ORDER))
}

/// The largest table error of `outputs` at `order`.
fn equivalent_error(kernel: &str, outputs: Outputs, order: usize) -> f64 {
    requested(outputs).fold(0.0, |worst, (i, _)| error_at(kernel, i, order).max(worst))
}

/// Part of the tolerance that estimates of a treecode may take, besides [`spherical::SHARES`]: at 2500 clustered points and θ = 0.6 gradients of 6e-8 and
/// 2e-10 were 5 and 8 times the estimate, the largest of all clouds, θ = 0.6 and 0.9, leaves of 8 and 60.
const OF_TREECODES: f64 = 0.3;
/// Mean points of a leaf of a treecode, on a GPU as many as a group of M2P has.
pub(crate) const TREECODE_LEAF: f64 = 64.0;
/// The same of spherical harmonics on CPUs. A million uniform points, θ = 0.9, p = 6: 1.38, 1.18, 1.12 s with 57, 37, 27 points a
/// leaf, with gradients 2.24, 1.91, 1.91 s; smaller ones make longer lists.
pub(crate) const HARMONIC_TREECODE_LEAF: f64 = 36.0;

/// Mean points of a leaf that balance near and far field on a GPU: from the rates of one NVIDIA H200
/// (`docs/notes/gpu-performance.md`). M2L of a box costs 26·8 products of complex numbers a frequency, the translations and
/// solves 12·surface² operations, at 18 (f32: 28) operations a picosecond; a box meets 27 leaves, at 0.7 ps for a pair and a
/// component of it in f64. M2L of harmonics takes 150 matrices of order² columns and rows in tiles of 64, at 28 operations.
pub(crate) fn occupancy_on_gpu(facts: &Facts, order: usize, precision: Precision, parts: &Parts) -> f64 {
    if parts.policy.theta().is_some() {
        return TREECODE_LEAF;
    }
    let far = match parts.expansion {
        Expansion::Spherical => 300.0 * (order.pow(2) * order.pow(2).next_multiple_of(64)) as f64 / 28.0,
        Expansion::Equivalent => {
            let frequencies = ((2 * order - 1).pow(2) * order) as f64;
            let surface = surface::len(order) as f64;
            let operations = (1664.0 * frequencies + 12.0 * surface.powi(2)) * (facts.densities * facts.checks) as f64;
            operations / if precision == Precision::F32 { 28.0 } else { 18.0 }
        }
    };
    let near = 27.0 * 0.7 * (facts.strengths + facts.values) as f64;
    (far / near).sqrt().max(24.0)
}

/// Whether direct summation on a GPU is the cheaper way: 1e12 pairs of f64 a second against 3 ms and 10 ns a point, order 6 and one component.
pub(crate) fn direct_is_cheaper_on_gpu(facts: &Facts, order: usize, n: usize, m: usize) -> bool {
    let pair = 0.5e-3 * (facts.strengths + facts.values) as f64;
    let components = facts.densities.max(facts.strengths) as f64;
    pair * n as f64 * m as f64 <= 3e6 + order as f64 * components * (n + m) as f64
}
