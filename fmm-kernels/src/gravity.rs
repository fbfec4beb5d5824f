//! Newtonian gravity with Plummer softening: potential −G m/√(r² + ε²).

use crate::laplace::{Laplace, inverse_distance_gradient, inverse_distance_hessian};
use fmm_traits::{Error, Family, Kernel, Lane, lane::dot};

/// Masses → potential −G m/√(r² + ε²); the acceleration is −gradient.
///
/// The softened potential is not a fundamental solution: it solves Poisson's equation for a spread mass. No density
/// on a surface can reproduce it. Pairs closer than [`near_radius`](Family::near_radius) are therefore summed
/// directly. Beyond that radius the field is that of point masses, which Laplace charges reproduce. ε = 0 is plain
/// Newton.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gravity {
    /// Gravitational constant G.
    pub g: f64,
    /// Softening length ε ≥ 0.
    pub softening: f64,
}

/// The kernel 1/√(r² + ε²), ε = `params[0]`: the source member of [`Gravity`]. The factor −G is the family's `scale`.
///
/// Not singular when ε > 0: a coincident pair contributes m/ε. At ε = 0 a coincident pair contributes 0.
#[derive(Clone, Copy, Debug)]
pub enum Plummer {}

/// r² + ε².
#[inline(always)]
fn softened<V: Lane>(params: &[V], r: &[V]) -> V {
    params[0].mul_add(params[0], dot(r, r))
}

impl Kernel for Plummer {
    const NAME: &'static str = "gravity";
    const COMPILED: usize = 2;
    const SINGULAR: bool = false;

    #[inline(always)]
    fn eval<V: Lane>(params: &[V], r: &[V], m: &[V], u: &mut [V]) {
        u[0] = m[0] * softened(params, r).rsqrt();
    }
    #[inline(always)]
    fn eval_gradient<V: Lane>(params: &[V], r: &[V], m: &[V], out: &mut [V]) {
        inverse_distance_gradient(softened(params, r), r, m[0], out);
    }
    #[inline(always)]
    fn eval_hessian<V: Lane>(params: &[V], r: &[V], m: &[V], out: &mut [V]) {
        inverse_distance_hessian(softened(params, r), r, m[0], out);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(vec![params[0] / h])
    }
}

impl Family for Gravity {
    type Source = Plummer;
    type Check = Laplace;
    type Equivalent = Laplace;
    type Far = Laplace;

    fn name(&self) -> &'static str {
        Plummer::NAME
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.softening]
    }
    fn scale(&self) -> f64 {
        -self.g
    }
    fn validate(&self) -> Result<(), Error> {
        if !self.g.is_finite() {
            return Err(Error::Parameter { name: "g", value: self.g, requirement: "must be finite" });
        }
        if !(self.softening >= 0.0 && self.softening.is_finite()) {
            let requirement = "must be finite and ≥ 0";
            return Err(Error::Parameter { name: "softening", value: self.softening, requirement });
        }
        Ok(())
    }
    /// ε √(3/(2·tolerance)).
    ///
    /// With x = ε²/r², 1/√(r²+ε²) = (1/r)(1 − x/2 + O(x²)): replacing a softened by a point mass
    /// changes the potential of the pair by the fraction x/2 and its gradient r/(r²+ε²)^(3/2) by
    /// 3x/2. The radius follows from the larger change, 3ε²/(2r²) ≤ tolerance. (Second derivatives change by up to 3x:
    /// twice the tolerance at the radius, and less with the square of the distance.)
    fn near_radius(&self, tolerance: f64) -> f64 {
        self.softening * (1.5 / tolerance).sqrt()
    }
}
