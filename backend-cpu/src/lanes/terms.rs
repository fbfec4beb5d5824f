//! A vector that remembers of which products it is the sum, and divides by reciprocals: the numbers of pair sums in the
//! plane.
//!
//! Fields of the plane are sums of products of complex numbers. Adding such a value to a sum then takes one fused
//! multiply-add per product, and no addition (compare [`Product`](super::Product)).

use super::forgetful::{comparisons, functions, operators};
use fmm_traits::dual::Known;
use fmm_traits::{Lane, SimdLane};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Added to a squared distance, so that 1/|r|² of a pair at one place is 10³⁰⁰, and r/|r|² is 0·10³⁰⁰. It costs
/// nothing, because it turns a product into a fused multiply-add.
const AT_ZERO: f64 = 1e-300;

/// `value` = ±(`terms[0]` + … (as many as `count`) + `rest` (if `whole`)), with − if `negative`. A term is a product.
/// Everything is inlined, so a field that is not used costs nothing. With `ROUGH`, reciprocals have 28 bits.
#[derive(Clone, Copy)]
pub struct Terms<V, const ROUGH: bool> {
    value: V,
    rest: V,
    whole: bool,
    terms: [[V; 2]; 3],
    count: u8,
    negative: bool,
}

impl<V: Lane, const ROUGH: bool> Terms<V, ROUGH> {
    /// A number that is no product.
    #[inline(always)]
    pub fn of(value: V) -> Self {
        Terms { value, rest: value, whole: true, terms: [[value; 2]; 3], count: 0, negative: false }
    }
    /// `sum` + self.
    #[inline(always)]
    pub fn add_to(self, sum: V) -> V {
        let [a, b, c] = self.terms;
        let mut sum = if self.whole { sum + self.signed(self.rest) } else { sum };
        if self.count > 2 {
            sum = self.signed(c[0]).mul_add(c[1], sum);
        }
        if self.count > 1 {
            sum = self.signed(b[0]).mul_add(b[1], sum);
        }
        if self.count > 0 {
            sum = self.signed(a[0]).mul_add(a[1], sum);
        }
        sum
    }
    /// `factor`, negated if `negative`.
    #[inline(always)]
    fn signed(&self, factor: V) -> V {
        if self.negative { -factor } else { factor }
    }
}

operators!(Terms<V, ROUGH>: [V: Lane, const ROUGH: bool]; Add add Sub sub);

impl<V: Lane, const ROUGH: bool> Mul for Terms<V, ROUGH> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        let value = self.value * o.value;
        Terms { value, rest: value, whole: false, terms: [[self.value, o.value]; 3], count: 1, negative: false }
    }
}
impl<V: SimdLane<Scalar = f64>, const ROUGH: bool> Div for Terms<V, ROUGH> {
    type Output = Self;
    #[allow(clippy::suspicious_arithmetic_impl, reason = "a quotient is a product with a reciprocal of fewer bits")]
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Self::of(self.value * o.value.inverse::<ROUGH>())
    }
}
impl<V: Lane, const ROUGH: bool> Neg for Terms<V, ROUGH> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Terms { value: -self.value, negative: !self.negative, ..self }
    }
}

impl<V: SimdLane<Scalar = f64>, const ROUGH: bool> Lane for Terms<V, ROUGH> {
    type Derivative = Known<Self>;
    type Mask = V::Mask;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self::of(V::splat(x))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        let value = self.value.mul_add(a.value, b.value);
        // A fourth term makes the others one number.
        let b = if b.count == 3 { Self::of(b.value) } else { b };
        let [c, d, _] = b.terms;
        let terms = [[self.value, a.value], [b.signed(c[0]), c[1]], [b.signed(d[0]), d[1]]];
        Terms { value, rest: b.signed(b.rest), whole: b.whole, terms, count: b.count + 1, negative: false }
    }
    functions!(sqrt rsqrt exp ln sin cos);
    comparisons!(lt le eq);
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Self::of(V::select(mask, a.value, b.value))
    }
    #[inline(always)]
    fn shared(self) -> Self {
        Self::of(self.value)
    }
    #[inline(always)]
    fn nonzero_square(r: &[Self]) -> Self {
        let rest = r[1].value.mul_add(r[1].value, V::splat(AT_ZERO));
        Self::of(r[0].value.mul_add(r[0].value, rest))
    }
}
