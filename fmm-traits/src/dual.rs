//! Dual numbers: a value with its three partial derivatives. A kernel evaluated over `Dual<V>` yields its gradient,
//! over `Dual<Dual<V>>` its Hessian. Both are exact: no finite differences.

use crate::lane::Lane;
use std::fmt::{self, Debug};
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

/// A value and its derivatives with respect to the three target coordinates.
#[derive(Clone, Copy)]
pub struct Dual<V: Lane> {
    /// Value.
    pub v: V,
    d: [V::Derivative; 3],
}

/// A derivative of a [`Dual`] over `V`: `V` itself, or [`Known`].
pub trait Derivative<V: Lane>: Copy + 'static + Add<Output = Self> + Sub<Output = Self> + Neg<Output = Self> {
    /// The derivative of a number that does not depend on the target.
    fn zero() -> Self;
    /// The derivative `value`.
    fn of(value: V) -> Self;
    /// Its value.
    fn value(self) -> V;
    /// self·`factor`.
    fn times(self, factor: V) -> Self;
    /// self·`factor` + `rest`.
    fn times_plus(self, factor: V, rest: Self) -> Self;
    /// self/`divisor`.
    fn over(self, divisor: V) -> Self;
    /// `a` where `mask` holds, else `b`.
    fn select(mask: V::Mask, a: Self, b: Self) -> Self;
}

impl<V: Lane> Derivative<V> for V {
    #[inline(always)]
    fn zero() -> Self {
        V::splat(0.0)
    }
    #[inline(always)]
    fn of(value: V) -> Self {
        value
    }
    #[inline(always)]
    fn value(self) -> V {
        self
    }
    #[inline(always)]
    fn times(self, factor: V) -> Self {
        self * factor
    }
    #[inline(always)]
    fn times_plus(self, factor: V, rest: Self) -> Self {
        self.mul_add(factor, rest)
    }
    #[inline(always)]
    fn over(self, divisor: V) -> Self {
        self / divisor
    }
    #[inline(always)]
    fn select(mask: V::Mask, a: Self, b: Self) -> Self {
        Lane::select(mask, a, b)
    }
}

/// A derivative with a flag that is set if it is 0 for every target, such as a derivative of a parameter or of a
/// strength. Operations leave out flagged derivatives. The compiler may not do so by itself, because 0·x is NaN if x is
/// infinite. All code is inlined, so the flag is known at compile time and costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Known<V> {
    value: V,
    zero: bool,
}

impl<V: Lane> Derivative<V> for Known<V> {
    #[inline(always)]
    fn zero() -> Self {
        Known { value: V::splat(0.0), zero: true }
    }
    #[inline(always)]
    fn of(value: V) -> Self {
        Known { value, zero: false }
    }
    #[inline(always)]
    fn value(self) -> V {
        self.value
    }
    #[inline(always)]
    fn times(self, factor: V) -> Self {
        if self.zero { self } else { Self::of(self.value * factor) }
    }
    #[inline(always)]
    fn times_plus(self, factor: V, rest: Self) -> Self {
        if self.zero {
            rest
        } else if rest.zero {
            self.times(factor)
        } else {
            Self::of(self.value.mul_add(factor, rest.value))
        }
    }
    #[inline(always)]
    fn over(self, divisor: V) -> Self {
        if self.zero { self } else { Self::of(self.value / divisor) }
    }
    #[inline(always)]
    fn select(mask: V::Mask, a: Self, b: Self) -> Self {
        Known { value: V::select(mask, a.value, b.value), zero: a.zero && b.zero }
    }
}
impl<V: Lane> Add for Known<V> {
    type Output = Self;
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        if self.zero {
            o
        } else if o.zero {
            self
        } else {
            Self::of(self.value + o.value)
        }
    }
}
impl<V: Lane> Sub for Known<V> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        if o.zero {
            self
        } else if self.zero {
            -o
        } else {
            Self::of(self.value - o.value)
        }
    }
}
impl<V: Lane> Neg for Known<V> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Known { value: -self.value, ..self }
    }
}

impl<V: Lane + Debug> Debug for Dual<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dual").field("v", &self.v).field("gradient", &self.gradient()).finish()
    }
}

impl<V: Lane> Dual<V> {
    /// A quantity that does not depend on the target.
    #[inline(always)]
    pub fn constant(v: V) -> Self {
        Dual { v, d: [V::Derivative::zero(); 3] }
    }

    /// The coordinate `axis` of the target, with value `v`.
    #[inline(always)]
    pub fn variable(v: V, axis: usize) -> Self {
        let mut x = Self::constant(v);
        x.d[axis] = V::Derivative::of(V::splat(1.0));
        x
    }

    /// ∂v/∂x, ∂v/∂y, ∂v/∂z.
    #[inline(always)]
    pub fn gradient(self) -> [V; 3] {
        each!(i => self.d[i].value())
    }

    /// f(self) where `value` = f(v) and `slope` = f′(v).
    #[inline(always)]
    fn chain(self, value: V, slope: V) -> Self {
        Dual { v: value, d: each!(i => self.d[i].times(slope)) }
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
        Dual { v: self.v * o.v, d: each!(i => self.d[i].times_plus(o.v, o.d[i].times(self.v))) }
    }
}
/// (u/v)′ = (u′ − (u/v)v′)/v.
impl<V: Lane> Div for Dual<V> {
    type Output = Self;
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        let v = self.v / o.v;
        Dual { v, d: each!(i => (self.d[i] - o.d[i].times(v)).over(o.v)) }
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
    /// In a `Dual<Dual<V>>` the outer derivatives have no flag. It would seldom help: Hessians by dual numbers are
    /// usually interpreted from a recording ([`COMPILED`](crate::Kernel::COMPILED)), and recording removes operations
    /// on 0.
    type Derivative = Self;
    type Mask = V::Mask;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self::constant(V::splat(x))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        let d = each!(i => self.d[i].times_plus(a.v, a.d[i].times_plus(self.v, b.d[i])));
        Dual { v: self.v.mul_add(a.v, b.v), d }
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
        Dual { v: V::select(mask, a.v, b.v), d: each!(i => Derivative::select(mask, a.d[i], b.d[i])) }
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
                let [dx, dy, dz] = f.gradient();
                assert!((dy - slope).abs() < 1e-7 * (1.0 + slope.abs()), "{i} at {x}: {dy} {slope}");
                assert_eq!([dx, dz], [0.0; 2]);
            }
        }
    }
}
