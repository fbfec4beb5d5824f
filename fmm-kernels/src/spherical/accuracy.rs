//! The error of each order, as measured.
//!
//! Relative ℓ2 errors against direct summation fall from order 1 to 40, over 13 decades, like
//!
//! error(p) = C e^(−a√p − bp).
//!
//! a and b fit 512 leaves of 60 uniform sources, interactions on levels 2 and 3, targets in three leaves, variable
//! truncation, normal strengths and uniform ones in (0, 1) (`cargo run --release -p backend-cpu --example
//! spherical_errors`), with residuals of a factor of 2.3. C is an upper bound for those and for leaves of 20 points,
//! where the near field is less of the sum, in clouds of all kinds: up to nine times the fit (a plane). Dipoles stay
//! below it too. The bound η^p of [`truncation`](super::truncation), η = 0.76, is that of the worst pair of
//! points and falls much more slowly.

use super::{MAX_ORDER, MIN_ORDER};
use fmm_traits::{Error, Family, Kernel, Real};

/// C, a, b of the potential and of the gradient.
const MODEL: [[f64; 3]; 2] = [[160.0, 4.0, 0.20], [580.0, 4.85, 0.09]];
/// What f32 adds, whatever the order.
const ROUNDING_F32: f64 = 1.5e-6;
/// What f64 adds.
const ROUNDING_F64: f64 = 1e-14;

/// Expected relative ℓ2 error at order `p` in precision `T`: of the potential, or with `gradient` of its gradient.
pub fn expected_error<T: Real>(p: usize, gradient: bool) -> f64 {
    let [c, a, b] = MODEL[gradient as usize];
    let x = p as f64;
    let rounding = if T::EPSILON < 1e-10 { ROUNDING_F64 } else { ROUNDING_F32 };
    c * (-a * x.sqrt() - b * x).exp() + rounding
}

/// Smallest order whose [`expected_error`] is at most `tolerance`.
///
/// # Errors
/// [`Error::Tolerance`]; [`Error::ToleranceFloor`] with the smallest error there is.
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
