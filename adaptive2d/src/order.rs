//! The order for a tolerance.

use crate::laurent::MAX_ORDER;
use fmm_traits::Error;

/// Order p at which the largest relative error stays below `tolerance` under the θ-criterion: errors decay as
/// θ^p (Engblom 2011), p ≈ log TOL/log θ.
///
/// # Errors
/// [`Error::Tolerance`] unless 0 < `tolerance` < ∞, [`Error::Order`] where more than 60 terms were needed.
pub fn order_for(tolerance: f64, theta: f64) -> Result<usize, Error> {
    if !(tolerance > 0.0 && tolerance.is_finite()) {
        return Err(Error::Tolerance { tolerance });
    }
    let order = (tolerance.ln() / theta.ln()).ceil().max(1.0) as usize;
    if order > MAX_ORDER {
        return Err(Error::Order { order, min: 1, max: MAX_ORDER });
    }
    Ok(order)
}
