//! Kernels that a dilation changes by a constant, such as ln r and the Stokeslet of the plane: K(h·r) = K(r) + C·ln h.
//!
//! # The problem
//!
//! By the rule of dilation such a kernel is not homogeneous: boxes of side h have the kernel K + C·ln h. A density on a
//! closed curve yields no constant, however, if h lies near a certain number. (The logarithm has this number where the
//! capacity of the curve is 1.) The solve for densities is then nearly singular, on one level of every tree.
//!
//! # The remedy
//!
//! A density has the same field outside its box under K and under K + const, up to a constant times its net strength.
//! So densities are solved for, and handed from parent to child and back, with the kernel of boxes of one side for all
//! levels, the *gauge*, at which the solve is far from singular. The kernel of the true side is used where a field goes
//! from box to box (M2L) and between boxes and points of other boxes (M2P, P2L). L2P evaluates what a solve has found,
//! so it uses the gauge. The constant of a local is in its affine part ([`affine`](super::affine)).
//!
//! As a bonus, one set of operators serves all levels.
//!
//! # Which kernels
//!
//! It is tested at a few points whether dilations by 2 and 4 add a constant and twice that constant. Densities that fill
//! a square can make a constant in many ways, and need no gauge. Neither does a kernel of space: no density on a closed
//! surface is without a field in the cases that matter there.

use super::matrix::kernel_matrix;
use super::{Fill, Lattice};
use fmm_traits::Member;

/// Points at which dilated kernels are compared.
const PLACES: [[f64; 3]; 4] = [[0.9, -1.3, 0.0], [0.31, 0.77, 0.0], [-1.7, 0.23, 0.0], [0.6, 1.4, 0.0]];
/// Largest difference of constants, relative to the constant.
const SAME: f64 = 1e-9;
/// How many doublings of the side lie between the gauge and the side at which the mean of the kernel is 0.
const DOUBLINGS: f64 = 3.0;
/// Doublings between the unit of length and the gauge, if the singular side lies further away.
const MOST_DOUBLINGS: f64 = 40.0;

/// The parameters of `kernel` with which the operators for boxes of side `side` are made: those of the gauge, or else
/// [`Member::unit_parameters`].
pub fn parameters(kernel: &Member, params: &[f64], side: f64, lattice: Lattice) -> Vec<f64> {
    let gauge = if lattice.fill == Fill::Surface { gauge(kernel, params) } else { None };
    kernel.unit_parameters(params, gauge.unwrap_or(side))
}

/// The side whose kernel solves. `None` for a kernel that a dilation does not change by a constant.
fn gauge(kernel: &Member, params: &[f64]) -> Option<f64> {
    let mut degrees = kernel.value_degrees.iter().chain(&kernel.strength_degrees);
    (kernel.dim == 2 && !kernel.piecewise && degrees.all(|&d| d == 0)).then_some(())?;
    let values = |params: &[f64]| -> Vec<Vec<f64>> {
        PLACES.map(|r| kernel_matrix(kernel, params, &[r], &[[0.0; 3]], |_, _| 1.0).data).into()
    };
    let (here, twice, fourfold) =
        (values(params), values(&kernel.dilated(params, 2.0)?), values(&kernel.dilated(params, 4.0)?));
    let difference = |a: &[Vec<f64>]| -> Vec<Vec<f64>> {
        a.iter().zip(&here).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect()).collect()
    };
    let (once, both) = (difference(&twice), difference(&fourfold));
    let constant = once[0].clone();
    let size = constant.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let largest = here.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
    let is = |found: &[Vec<f64>], times: f64| {
        found.iter().all(|row| row.iter().zip(&constant).all(|(a, b)| (a - times * b).abs() <= SAME * size))
    };
    (size > SAME * largest && size.is_finite() && is(&once, 1.0) && is(&both, 2.0)).then_some(())?;
    // The kernel is `mean` doublings of a constant, on average over the places.
    let square: f64 = constant.iter().map(|c| c * c).sum();
    let along = |row: &Vec<f64>| row.iter().zip(&constant).map(|(a, c)| a * c).sum::<f64>() / square;
    let mean = here.iter().map(along).sum::<f64>() / PLACES.len() as f64;
    let doublings = -mean.round() - DOUBLINGS;
    // A constant that is added to the logarithm may move the singular side to any length. Squares of lengths in units of
    // the gauge must stay in the range of f32.
    let far_below = doublings < -MOST_DOUBLINGS - 2.0 * DOUBLINGS;
    let doublings = if far_below { -MOST_DOUBLINGS } else { doublings.min(MOST_DOUBLINGS) };
    Some(doublings.exp2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::{Outputs, Traced};

    fn of(text: &str) -> Option<f64> {
        let kernels = Traced::parse(text).unwrap().in_plane().kernels(Outputs::POTENTIAL).unwrap();
        gauge(&kernels.members.equivalent, &kernels.params)
    }

    #[test]
    fn logarithms_have_a_gauge() {
        assert_eq!(of("value ln(r)"), Some(0.125));
        assert_eq!(of("value -3*ln(r)"), Some(0.125));
        // One unit of the constant is ln 2.
        assert_eq!(of("value ln(1000*r)"), Some(2f64.powi(-13)));
        assert_eq!(of("value ln(x^2 + 4*y^2)"), Some(0.0625));
        // Far from the singular side, and in the range of f32.
        for constant in ["-1000", "-60", "-29", "-27", "-25", "25", "27", "29", "31", "60", "1000"] {
            let side = of(&format!("value ln(r) + ({constant})")).unwrap();
            assert!((1e-14..1e13).contains(&side), "{constant}: {side}");
            let singular = -constant.parse::<f64>().unwrap() / std::f64::consts::LN_2;
            assert!((side.log2() - singular).abs() > 2.0, "{constant}: {side}");
        }
        let stokes = "strengths 2\ns = (q1*x + q2*y)/r^2\nvalue -ln(r)*q1 + s*x\nvalue -ln(r)*q2 + s*y";
        assert!(of(stokes).is_some());
        for text in ["value 1/r", "value bessel_k0(r)", "value ln(r) + exp(-r)", "value exp(-r^2)", "value r^2*ln(r)"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
