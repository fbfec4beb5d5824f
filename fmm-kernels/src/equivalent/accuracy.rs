//! The measured error of each order: relative ℓ2 errors for uniform points (measured in
//! docs/notes/equivalent-densities.md).

use super::{MAX_ORDER, MIN_ORDER, Scalar};
use fmm_traits::{Error, Family, Kernel};

const ORDERS: usize = MAX_ORDER - MIN_ORDER + 1;

/// Potential and gradient errors of one-component kernels, from order [`MIN_ORDER`] on. Measured with Laplace.
const SCALAR_ERRORS: [[f64; ORDERS]; 2] = [
    [
        1.0e-3, 1.3e-4, 1.1e-5, 1.5e-6, 1.3e-7, 2.2e-8, 3.1e-9, 4.9e-10, 1.2e-10, 1.8e-11, 4.3e-12, 1.2e-12, 3.9e-13,
        5.2e-14,
    ],
    [
        3.6e-3, 5.6e-4, 5.5e-5, 1.2e-5, 1.4e-6, 2.8e-7, 4.8e-8, 1.4e-8, 1.9e-9, 7.2e-10, 9.5e-11, 5.3e-11, 6.4e-12,
        2.4e-12,
    ],
];

/// As [`SCALAR_ERRORS`], for kernels of several components. Measured with Stokeslets up to order 10; extrapolated
/// beyond, a factor of five per order.
const VECTOR_ERRORS: [[f64; ORDERS]; 2] = [
    [
        1.3e-2, 1.0e-3, 2.2e-4, 1.1e-5, 1.5e-6, 2.8e-7, 5.4e-8, 7.7e-9, 1.5e-9, 3.1e-10, 6.2e-11, 1.2e-11, 2.5e-12,
        4.9e-13,
    ],
    [
        2.0e-2, 2.8e-3, 3.7e-4, 3.9e-5, 6.2e-6, 1.1e-6, 2.4e-7, 3.8e-8, 7.6e-9, 1.5e-9, 3.0e-10, 6.1e-11, 1.2e-11,
        2.4e-12,
    ],
];

/// Errors of a kernel that is not homogeneous, over the tables. Measured with Yukawa.
const INHOMOGENEOUS_FACTOR: f64 = 4.0;
/// Errors of sources that are not of the kind of the equivalent densities, over the tables. Measured with dipoles.
const DIPOLE_FACTOR: f64 = 15.0;

/// Rounding error of f32, for potential and gradient. It adds to the error of any order.
const ROUNDING_F32: [f64; 2] = [2.5e-6, 1.3e-5];

/// Expected relative ℓ2 error of family `F` at order `p` in precision `T`, of the potential or, with `gradient`, of the
/// gradient.
pub fn expected_error<F: Family, T: Scalar>(p: usize, gradient: bool) -> f64 {
    let table = if F::Equivalent::VALUES == 1 { SCALAR_ERRORS } else { VECTOR_ERRORS };
    let homogeneous = F::Equivalent::dilated(&[1.0; fmm_traits::kernel::MAX_COMPONENTS], 2.0).is_none();
    let factor = if homogeneous { 1.0 } else { INHOMOGENEOUS_FACTOR };
    let factor = if F::Source::STRENGTHS == F::Equivalent::STRENGTHS { factor } else { DIPOLE_FACTOR * factor };
    let rounding = if T::EPSILON < 1e-10 { 0.0 } else { ROUNDING_F32[gradient as usize] };
    factor * table[gradient as usize][p.clamp(MIN_ORDER, MAX_ORDER) - MIN_ORDER] + rounding
}

/// Smallest order whose [`expected_error`] is at most `tolerance`.
///
/// Errors: [`Error::Tolerance`]; [`Error::ToleranceFloor`] with the smallest reachable error.
pub fn order_for<F: Family, T: Scalar>(tolerance: f64, gradient: bool) -> Result<usize, Error> {
    if !(tolerance > 0.0 && tolerance.is_finite()) {
        return Err(Error::Tolerance { tolerance });
    }
    let error = |p| expected_error::<F, T>(p, gradient);
    (MIN_ORDER..=MAX_ORDER).find(|&p| error(p) <= tolerance).ok_or_else(|| Error::ToleranceFloor {
        tolerance,
        floor: error(MAX_ORDER),
        output: if gradient { "gradient" } else { "potential" },
        kernel: F::Equivalent::NAME,
        precision: <T as fmm_traits::Real>::NAME,
        hint: String::new(),
    })
}
