//! Dual numbers: a value with its three partial derivatives. A kernel evaluated over `Dual<V>` yields its gradient,
//! over `Dual<Dual<V>>` its Hessian. Both are exact: no finite differences.

use crate::lane::Lane;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// `[e(0), e(1), e(2)]` without a closure. A closure that the compiler does not inline would be compiled without the
/// instruction set that the calling function enables.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [
            {
                let $i = 0;
                $e
            },
            {
                let $i = 1;
                $e
            },
            {
                let $i = 2;
                $e
            },
        ]
    };
}

/// A value `v` and its derivatives `d` with respect to the three target coordinates.
#[derive(Clone, Copy, Debug)]
pub struct Dual<V> {
    /// Value.
    pub v: V,
    /// ∂v/∂x, ∂v/∂y, ∂v/∂z.
    pub d: [V; 3],
}

impl<V: Lane> Dual<V> {
    /// A quantity that does not depend on the target.
    #[inline(always)]
    pub fn constant(v: V) -> Self {
        Dual { v, d: [V::splat(0.0); 3] }
    }

    /// The coordinate `axis` of the target, with value `v`.
    #[inline(always)]
    pub fn variable(v: V, axis: usize) -> Self {
        let mut x = Self::constant(v);
        x.d[axis] = V::splat(1.0);
        x
    }

    /// f(self) where `value` = f(v) and `slope` = f′(v).
    #[inline(always)]
    fn chain(self, value: V, slope: V) -> Self {
        Dual { v: value, d: each!(i => self.d[i] * slope) }
    }
}

impl<V: Lane> Add for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Dual { v: self.v + o.v, d: each!(i => self.d[i] + o.d[i]) }
    }
}
impl<V: Lane> Sub for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Dual { v: self.v - o.v, d: each!(i => self.d[i] - o.d[i]) }
    }
}
impl<V: Lane> Mul for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Dual { v: self.v * o.v, d: each!(i => self.d[i].mul_add(o.v, self.v * o.d[i])) }
    }
}
impl<V: Lane> Div for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        let v = self.v / o.v;
        Dual { v, d: each!(i => (self.d[i] - v * o.d[i]) / o.v) }
    }
}
impl<V: Lane> Neg for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Dual { v: -self.v, d: each!(i => -self.d[i]) }
    }
}

impl<V: Lane> Lane for Dual<V> {
    type Mask = V::Mask;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self::constant(V::splat(x))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        Dual { v: self.v.mul_add(a.v, b.v), d: each!(i => self.d[i].mul_add(a.v, self.v.mul_add(a.d[i], b.d[i]))) }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.chain(self.v.sqrt(), V::splat(0.5) * self.v.rsqrt())
    }
    #[inline(always)]
    fn rsqrt(self) -> Self {
        let w = self.v.rsqrt();
        self.chain(w, V::splat(-0.5) * (w * w * w))
    }
    #[inline(always)]
    fn exp(self) -> Self {
        let e = self.v.exp();
        self.chain(e, e)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        self.chain(self.v.ln(), V::splat(1.0) / self.v)
    }
    #[inline(always)]
    fn sin(self) -> Self {
        self.chain(self.v.sin(), self.v.cos())
    }
    #[inline(always)]
    fn cos(self) -> Self {
        self.chain(self.v.cos(), -self.v.sin())
    }
    #[inline(always)]
    fn erf(self) -> Self {
        let slope = V::splat(std::f64::consts::FRAC_2_SQRT_PI) * (-(self.v * self.v)).exp();
        self.chain(self.v.erf(), slope)
    }
    /// K₀′ = −K₁.
    #[inline(always)]
    fn bessel_k0(self) -> Self {
        self.chain(self.v.bessel_k0(), -self.v.bessel_k1())
    }
    /// K₁′ = −K₀ − K₁/x.
    #[inline(always)]
    fn bessel_k1(self) -> Self {
        let k1 = self.v.bessel_k1();
        self.chain(k1, -self.v.bessel_k0() - k1 / self.v)
    }
    #[inline(always)]
    fn lt(self, other: Self) -> V::Mask {
        self.v.lt(other.v)
    }
    #[inline(always)]
    fn le(self, other: Self) -> V::Mask {
        self.v.le(other.v)
    }
    #[inline(always)]
    fn eq(self, other: Self) -> V::Mask {
        self.v.eq(other.v)
    }
    #[inline(always)]
    fn select(mask: V::Mask, a: Self, b: Self) -> Self {
        Dual { v: V::select(mask, a.v, b.v), d: each!(i => V::select(mask, a.d[i], b.d[i])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The derivative of each function and of a quotient is the limit of its differences.
    #[test]
    fn derivatives_are_those_of_differences() {
        fn all<V: Lane>(x: V) -> [V; 11] {
            let [k0, k1] = [x.bessel_k0(), x.bessel_k1()];
            [x.sqrt(), x.rsqrt(), x.exp(), x.ln(), x.sin(), x.cos(), x.erf(), x.sin() / x, V::splat(2.0) / x, k0, k1]
        }
        let h = 1e-5f64;
        for x in [0.3f64, 1.7, 4.0] {
            let (below, above) = (all(x - h), all(x + h));
            for (i, f) in all(Dual::variable(x, 1)).iter().enumerate() {
                let slope = (above[i] - below[i]) / (2.0 * h);
                assert!((f.d[1] - slope).abs() < 1e-7 * (1.0 + slope.abs()), "{i} at {x}: {} {slope}", f.d[1]);
                assert_eq!([f.d[0], f.d[2]], [0.0; 2]);
            }
        }
    }
}
