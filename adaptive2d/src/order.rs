//! The order for a tolerance.

use crate::Pyramid;
use crate::laurent::MAX_ORDER;
use fmm_traits::Error;

/// The error that a tolerance bounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Norm {
    /// ‖e‖/‖u‖ over all targets, for the potential and for the gradient.
    #[default]
    L2,
    /// The largest |e_i|/|u_i| of a complex potential (Goude & Engblom 2012, eq. 5.3). It grows with the number of
    /// targets, and has no bound if the potential passes through 0.
    Max,
}

/// The order p for `tolerance` under the θ-criterion.
///
/// Errors are C·θ^p (Engblom 2011), so p = ln(tolerance/C)/ln θ, rounded up. C depends on the norm and on θ; it is a
/// little above the largest value over all clouds of the testkit (measured in docs/notes/plane-errors.md).
///
/// # Errors
/// [`Error::Tolerance`] unless 0 < `tolerance` < ∞, [`Error::Parameter`] unless 0 < θ < 1, [`Error::Order`] if more
/// than 60 terms would be needed.
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

/// Number of leaves that are searched for coincident sources.
const SAMPLED_LEAVES: usize = 64;
/// Factor by which coincident sources raise the error (measured in docs/notes/plane-errors.md).
const COPIES_FACTOR: f64 = 20.0;

/// Terms to add to [`order_for`] if most sources coincide with other sources. A leaf of coincident sources has no near
/// field, so only the far field, with its error, is left in the norm.
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
    let every = (leaves.len() / SAMPLED_LEAVES).max(1);
    let [points, places] = leaves.step_by(every).map(places).fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
    if 2 * places > points { 0 } else { (COPIES_FACTOR.ln() / -theta.ln()).ceil() as usize }
}
