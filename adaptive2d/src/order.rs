//! The order for a tolerance.

use crate::laurent::MAX_ORDER;
use fmm_traits::Error;

/// What a tolerance bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Norm {
    /// ‖e‖/‖u‖ over all targets, of the potential and of the gradient.
    #[default]
    L2,
    /// The largest |e_i|/|u_i| of a complex potential (Goude & Engblom 2012, eq. 5.3). Its tail is long: it grows
    /// with the number of targets that are looked at, and a potential that passes through 0 has no bound.
    Max,
}

/// Order p for `tolerance` under the θ-criterion.
///
/// Errors are C·θ^p (Engblom 2011: p ∼ log TOL/log θ). Largest C of potential and gradient, both kernels, over
/// uniform, normal, layer, spiral, line and grid clouds of 10⁵ points at p = 12, and the first three at 10⁶ with
/// p = 17 and 37 (`stage_times_2d`, θ = 1/2, 1000 targets): 0.018 in ℓ2, from gradients on a grid (0.054 at p = 2, where that of 6000 points was measured); for the largest
/// relative error of a harmonic potential 0.05 to 0.29. On uniform points p = 17 gives 1.6e-7 at 10⁶ and 3.8e-7 at
/// 2 949 120 points, the paper's 1e-6. At θ = 0.4, 0.65 and 0.7 C is smaller.
///
/// # Errors
/// [`Error::Tolerance`] unless 0 < `tolerance` < ∞, [`Error::Parameter`] unless 0 < θ < 1, [`Error::Order`] where
/// more than 60 terms were needed.
pub fn order_for(tolerance: f64, theta: f64, norm: Norm) -> Result<usize, Error> {
    if !(tolerance > 0.0 && tolerance.is_finite()) {
        return Err(Error::Tolerance { tolerance });
    }
    if !(theta > 0.0 && theta < 1.0) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must lie between 0 and 1" });
    }
    let constant = match norm {
        Norm::L2 => 0.1,
        Norm::Max => 0.5,
    };
    let order = ((tolerance / constant).ln() / theta.ln()).ceil().max(1.0) as usize;
    if order > MAX_ORDER {
        return Err(Error::Order { order, min: 1, max: MAX_ORDER });
    }
    Ok(order)
}
