//! The measured error of each order.
//!
//! The table holds the largest relative ℓ2 error over all clouds of the testkit. The worst cloud is a grid, whose
//! points lie in the corners of boxes. Uniform points err much less, dipoles and small leaves up to four times more
//! (measured in docs/notes/spherical-errors.md).

use super::{MAX_ORDER, MIN_ORDER};
use fmm_traits::{Error, Family, Kernel, Real};

/// Order, and the measured errors of potential and gradient.
const MEASURED_ERRORS: [(usize, [f64; 2]); 23] = [
    (1, [1.0e-1, 7.4e-1]),
    (2, [2.0e-2, 1.1e-1]),
    (3, [5.8e-3, 3.7e-2]),
    (4, [2.2e-3, 1.6e-2]),
    (5, [8.7e-4, 6.3e-3]),
    (6, [3.3e-4, 3.3e-3]),
    (7, [1.3e-4, 1.6e-3]),
    (8, [5.8e-5, 8.2e-4]),
    (9, [3.5e-5, 5.4e-4]),
    (10, [1.7e-5, 2.9e-4]),
    (11, [1.1e-5, 1.8e-4]),
    (12, [5.0e-6, 1.1e-4]),
    (13, [2.8e-6, 5.8e-5]),
    (14, [1.1e-6, 4.0e-5]),
    (15, [8.7e-7, 3.1e-5]),
    (16, [6.0e-7, 2.3e-5]),
    (18, [3.9e-7, 1.1e-5]),
    (20, [1.7e-7, 5.7e-6]),
    (24, [2.5e-8, 1.9e-6]),
    (28, [9.7e-9, 4.9e-7]),
    (32, [3.0e-9, 1.8e-7]),
    (36, [8.0e-10, 5.0e-8]),
    (40, [2.0e-10, 1.8e-8]),
];
/// Rounding error of f32, which adds to the error of any order.
const ROUNDING_F32: f64 = 1.5e-6;
/// Rounding error of f64.
const ROUNDING_F64: f64 = 1e-14;

/// Expected relative ℓ2 error at order `p` in precision `T`, of the potential or, with `gradient`, of the gradient.
pub fn expected_error<T: Real>(p: usize, gradient: bool) -> f64 {
    let k = gradient as usize;
    let after = MEASURED_ERRORS.partition_point(|(q, _)| *q < p).min(MEASURED_ERRORS.len() - 1);
    let (q, errors) = MEASURED_ERRORS[after];
    let (q0, errors0) = MEASURED_ERRORS[after.saturating_sub(1)];
    // Between measured orders the error is geometric.
    let part = if q > q0 { (p.min(q) as f64 - q0 as f64) / (q - q0) as f64 } else { 1.0 };
    let rounding = if T::EPSILON < 1e-10 { ROUNDING_F64 } else { ROUNDING_F32 };
    errors0[k].powf(1.0 - part) * errors[k].powf(part) + rounding
}

/// Smallest order whose [`expected_error`] is at most `tolerance`.
///
/// # Errors
/// [`Error::Tolerance`]; [`Error::ToleranceFloor`] with the smallest reachable error.
pub fn order_for<F: Family, T: Real>(tolerance: f64, gradient: bool) -> Result<usize, Error> {
    if !(tolerance > 0.0 && tolerance.is_finite()) {
        return Err(Error::Tolerance { tolerance });
    }
    let error = |p| expected_error::<T>(p, gradient);
    (MIN_ORDER..=MAX_ORDER).find(|&p| error(p) <= tolerance).ok_or_else(|| Error::ToleranceFloor {
        tolerance,
        floor: error(MAX_ORDER),
        output: if gradient { "gradient" } else { "potential" },
        kernel: F::Source::NAME,
        precision: <T as Real>::NAME,
        hint: String::new(),
    })
}
