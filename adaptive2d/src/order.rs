//! The order for a tolerance.

use crate::Pyramid;
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
/// Errors are C·θ^p (Engblom 2011: p ∼ log TOL/log θ). Largest C at 1000 targets of 10⁵ points for p = 8 and 16 over both
/// kernels, potential and gradient, normal strengths and strengths in (0, 1), and the clouds of the testkit
/// (`stage_times_2d`):
///
/// | θ | ℓ2 | largest relative error of a harmonic potential |
/// |---|---|---|
/// | 0.5 | 0.069 | 0.68 (13 on fifty copies of each point) |
/// | 0.55 | 0.075 | 0.87 (5.1) |
/// | 0.6 | 0.070 | 0.35 (1.9) |
/// | 0.7 | 0.23 | 0.39 (2.2) |
///
/// The worst ℓ2 are those of fifty copies, and at θ = 0.7 of gradients on a grid; uniform, normal and layer stay below
/// 0.01. On 6000 points, fifty copies of each, ℓ2 reached 0.5·θ^p at θ = 0.5 and
/// 1.4·θ^p at 0.55 ([`terms_for_copies`]). M2L edges with fewer terms than others changed none of these constants. Copies whose strengths cancel leave a potential near 0, of which no relative error is bounded.
/// At 2 949 120 uniform points and θ = 1/2, p = 17 gives at most 3.8e-7, the paper's 1e-6.
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
        Norm::L2 if theta <= 0.6 => 0.1,
        Norm::L2 => 0.4,
        Norm::Max => 2.0,
    };
    let order = ((tolerance / constant).ln() / theta.ln()).ceil().max(1.0) as usize;
    if order > MAX_ORDER {
        return Err(Error::Order { order, min: 1, max: MAX_ORDER });
    }
    Ok(order)
}

/// Leaves that are looked at for copies.
const LOOKED_AT: usize = 64;
/// What copies multiply errors by.
const COPIES: f64 = 20.0;

/// Terms to add to [`order_for`] at θ where most sources stand at places of others: a leaf of copies has no near field, and
/// only the far field, with its error, is left in the norm.
pub fn terms_for_copies(pyramid: &Pyramid, theta: f64) -> usize {
    let leaves = pyramid.level(pyramid.depth());
    let places = |b: usize| {
        let range = pyramid.sources_of(b);
        let bits = |i: usize| (pyramid.sources.x[i].to_bits(), pyramid.sources.y[i].to_bits());
        let mut places: Vec<_> = range.map(bits).collect();
        let points = places.len();
        places.sort_unstable();
        places.dedup();
        [points, places.len()]
    };
    let every = (leaves.len() / LOOKED_AT).max(1);
    let [points, places] = leaves.step_by(every).map(places).fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    if 2 * places > points { 0 } else { (COPIES.ln() / -theta.ln()).ceil() as usize }
}
