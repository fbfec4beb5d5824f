//! The Yukawa (screened Coulomb, modified Helmholtz) kernel G = e^(−κr)/(4πr), Δu = κ²u.

use crate::laplace::SCALE;
use fmm_traits::{Error, Kernel, Lane, lane::dot};

/// Charges → potential q·e^(−κr)/(4πr). κ = 0 is Laplace. A pair with κr beyond the range of the exponential
/// contributes exactly zero. The kernel is not homogeneous: a dilation by h turns κ into κh, so every tree level has
/// its own operators.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yukawa {
    /// Inverse screening length κ ≥ 0, in 1/length.
    pub kappa: f64,
}

impl Kernel for Yukawa {
    const NAME: &'static str = "yukawa";

    #[inline(always)]
    fn eval<V: Lane>(params: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = dot(r, r);
        let w = r2.rsqrt();
        u[0] = q[0] * w * (-(params[0] * (r2 * w))).exp();
    }
    /// ∇G = −(κ + 1/r) G r/r.
    #[inline(always)]
    fn eval_gradient<V: Lane>(params: &[V], r: &[V], q: &[V], out: &mut [V]) {
        let w = dot(r, r).rsqrt();
        Self::eval(params, r, q, out);
        let t = -(out[0] * w * (params[0] + w));
        out[0] = out[0].shared();
        for a in 0..3 {
            out[1 + a] = t * r[a];
        }
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(vec![params[0] * h])
    }
    fn parameters(&self) -> Vec<f64> {
        vec![self.kappa]
    }
    fn scale(&self) -> f64 {
        SCALE
    }
    fn validate(&self) -> Result<(), Error> {
        if self.kappa >= 0.0 && self.kappa.is_finite() {
            return Ok(());
        }
        Err(Error::Parameter { name: "kappa", value: self.kappa, requirement: "must be finite and ≥ 0" })
    }
}
