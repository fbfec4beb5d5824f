//! The error of each order, as measured.

use super::{MAX_ORDER, MIN_ORDER};
use fmm_traits::{Error, Family, Real};

/// Smallest order.
pub fn order_for<F: Family, T: Real>(tolerance: f64, gradient: bool) -> Result<usize, Error> {
    let _ = (tolerance, gradient, MIN_ORDER);
    Ok(MAX_ORDER)
}
