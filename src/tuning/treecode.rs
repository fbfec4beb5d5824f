//! Errors of treecodes by opening angle and order: the largest over the clouds of the testkit (4000 points, leaves of up
//! to 60) and over normal strengths and uniform ones in (0, 1), as
//! `cargo run --release -p backend-cpu --example spherical_clouds -- treecode` prints them (all degrees: `fixed`).

/// Opening angles of the rows.
pub(super) const ANGLES: [f64; 8] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Orders of the columns.
const ORDERS_SPHERICAL: [usize; 10] = [2, 3, 4, 6, 8, 10, 12, 16, 20, 24];
const ORDERS_EQUIVALENT: [usize; 8] = [3, 4, 5, 6, 7, 8, 9, 10];

/// log₁₀ of the errors of spherical harmonics: potentials, then gradients, a row an angle.
const SPHERICAL: [[[f64; 10]; 8]; 2] = [
    [
        [-2.74, -3.68, -4.54, -6.12, -7.52, -8.92, -10.25, -12.82, -13.00, -13.00],
        [-2.43, -3.17, -3.89, -5.18, -6.38, -7.41, -8.46, -10.44, -12.43, -13.00],
        [-2.21, -2.96, -3.54, -4.68, -5.74, -6.70, -7.66, -9.35, -10.96, -12.57],
        [-2.10, -2.85, -3.39, -4.37, -5.29, -6.12, -7.15, -8.43, -10.11, -11.33],
        [-2.00, -2.46, -2.96, -3.82, -4.52, -5.20, -5.80, -6.96, -7.85, -8.96],
        [-1.85, -2.28, -2.74, -3.57, -4.16, -4.72, -5.34, -6.39, -7.38, -8.26],
        [-1.64, -2.07, -2.43, -3.17, -3.66, -4.10, -4.57, -5.33, -6.10, -6.55],
        [-1.46, -1.85, -2.15, -2.54, -2.89, -3.24, -3.57, -4.14, -4.68, -5.05],
    ],
    [
        [-2.68, -3.48, -4.24, -5.52, -6.85, -8.12, -9.39, -11.82, -13.00, -13.00],
        [-2.27, -2.85, -3.47, -4.54, -5.49, -6.51, -7.47, -9.33, -11.17, -13.00],
        [-2.09, -2.60, -3.12, -4.10, -5.02, -5.85, -6.64, -8.22, -9.77, -11.35],
        [-1.96, -2.43, -2.96, -3.80, -4.70, -5.52, -6.34, -7.82, -9.18, -10.49],
        [-1.59, -1.96, -2.33, -2.96, -3.55, -4.09, -4.57, -5.55, -6.52, -7.48],
        [-1.55, -1.89, -2.28, -2.92, -3.49, -4.00, -4.51, -5.46, -6.38, -7.21],
        [-1.42, -1.70, -2.03, -2.57, -3.00, -3.37, -3.70, -4.22, -4.68, -5.21],
        [-1.30, -1.52, -1.82, -2.21, -2.51, -2.82, -3.04, -3.44, -3.70, -3.96],
    ],
];
/// log₁₀ of the errors of equivalent densities: potentials, then gradients, a row an angle.
const EQUIVALENT: [[[f64; 8]; 8]; 2] = [
    [
        [-4.32, -5.22, -6.74, -7.27, -8.70, -9.25, -10.68, -11.60],
        [-3.82, -4.89, -6.17, -6.96, -8.15, -8.96, -10.10, -11.17],
        [-3.62, -4.80, -5.77, -6.89, -7.70, -8.85, -9.64, -10.74],
        [-3.54, -4.77, -5.55, -6.89, -7.51, -8.57, -9.49, -10.40],
        [-3.13, -4.17, -5.01, -6.01, -6.85, -7.66, -8.48, -9.14],
        [-3.13, -4.17, -5.01, -6.01, -6.85, -7.66, -8.48, -9.14],
        [-3.13, -4.17, -5.01, -6.01, -6.85, -7.66, -8.48, -9.14],
        [-3.13, -4.17, -5.01, -6.01, -6.85, -7.66, -8.48, -9.14],
    ],
    [
        [-4.39, -5.47, -6.72, -7.28, -8.92, -9.27, -10.77, -11.51],
        [-3.74, -4.72, -5.89, -6.92, -8.00, -8.92, -9.92, -10.92],
        [-3.43, -4.60, -5.68, -6.64, -7.70, -8.60, -9.57, -10.44],
        [-3.20, -4.38, -5.59, -6.38, -7.29, -8.39, -9.24, -10.17],
        [-2.68, -3.92, -4.46, -5.38, -6.04, -6.60, -7.38, -7.96],
        [-2.68, -3.92, -4.46, -5.38, -6.04, -6.60, -7.38, -7.96],
        [-2.68, -3.92, -4.46, -5.38, -6.04, -6.60, -7.38, -7.96],
        [-2.68, -3.92, -4.46, -5.38, -6.04, -6.60, -7.38, -7.96],
    ],
];

/// Orders of the columns of [`TYPICAL`].
const ORDERS_TYPICAL: [usize; 7] = [2, 3, 4, 6, 8, 10, 12];

/// log₁₀ of the errors of spherical harmonics at 4000 uniform points, far boxes with fewer degrees, the larger of both strengths: a first choice, until
/// the points are known.
const TYPICAL: [[[f64; 7]; 8]; 2] = [
    [
        [-2.56, -3.45, -4.34, -5.95, -7.49, -8.97, -10.35],
        [-2.18, -2.92, -3.58, -4.98, -6.17, -7.41, -8.54],
        [-1.91, -2.57, -3.19, -4.42, -5.33, -6.35, -7.32],
        [-1.82, -2.44, -2.95, -4.05, -4.94, -5.73, -6.61],
        [-1.53, -2.07, -2.53, -3.44, -4.25, -4.92, -5.55],
        [-1.42, -1.83, -2.20, -3.00, -3.69, -4.29, -4.74],
        [-1.26, -1.66, -2.04, -2.75, -3.32, -3.86, -4.27],
        [-1.12, -1.40, -1.79, -2.35, -2.86, -3.20, -3.59],
    ],
    [
        [-3.17, -3.95, -4.73, -6.22, -7.63, -9.00, -10.35],
        [-2.72, -3.34, -3.94, -5.15, -6.25, -7.37, -8.43],
        [-2.48, -3.04, -3.56, -4.61, -5.41, -6.38, -7.26],
        [-2.41, -2.94, -3.35, -4.23, -5.08, -5.80, -6.61],
        [-2.00, -2.40, -2.77, -3.52, -4.25, -4.84, -5.40],
        [-1.95, -2.28, -2.47, -3.20, -3.69, -4.30, -4.73],
        [-1.82, -2.09, -2.35, -2.88, -3.34, -3.77, -4.15],
        [-1.66, -1.84, -2.10, -2.49, -2.88, -3.16, -3.43],
    ],
];

/// Error of output 0 (potential) or 1 (gradient) by spherical harmonics.
pub(super) fn spherical(theta: f64, output: usize, p: usize) -> f64 {
    look_up(&SPHERICAL[output.min(1)], &ORDERS_SPHERICAL, theta, p)
}

/// The same of typical points, where far boxes take fewer degrees; beyond the last order as between the last two.
pub(super) fn typical(theta: f64, output: usize, p: usize) -> f64 {
    let error = |p: usize| look_up(&TYPICAL[output.min(1)], &ORDERS_TYPICAL, theta, p);
    let [before, last] = [8, 12].map(error);
    if p <= 12 { error(p) } else { last * (last / before).powf((p - 12) as f64 / 4.0) }
}

/// The same by equivalent densities.
pub(super) fn equivalent(theta: f64, output: usize, p: usize) -> f64 {
    look_up(&EQUIVALENT[output.min(1)], &ORDERS_EQUIVALENT, theta, p)
}

/// The row of the next larger angle, geometric between orders; 1 where nothing was measured, the last error beyond the last
/// order.
fn look_up<const N: usize>(table: &[[f64; N]; 8], orders: &[usize; N], theta: f64, p: usize) -> f64 {
    let Some(row) = ANGLES.iter().position(|&t| theta <= t * (1.0 + 1e-9)).map(|i| &table[i]) else { return 1.0 };
    if p < orders[0] {
        return 1.0;
    }
    let after = orders.partition_point(|&q| q < p).clamp(1, N - 1);
    let (q0, q) = (orders[after - 1] as f64, orders[after] as f64);
    let part = ((p as f64 - q0) / (q - q0)).min(1.0);
    10f64.powf(row[after - 1] * (1.0 - part) + row[after] * part)
}
