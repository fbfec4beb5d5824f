//! A vector that remembers of which product it is the result, so that adding it to a sum is one fused multiply-add.
//!
//! The values of most kernels end in a product, such as −t·r in a gradient. The kernel does not know the sum to which
//! a value is added, and the compiler may not fuse the last multiplication with the addition, because fusing changes
//! the rounding.

use super::forgetful::{comparisons, functions, operators};
use fmm_traits::Lane;
use fmm_traits::dual::Known;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// `value`, and if it is a product its two factors: `value` = `first`·`second`. Everything is inlined, so a field that
/// is not used costs nothing.
#[derive(Clone, Copy)]
pub struct Product<V> {
    value: V,
    first: V,
    second: V,
    is_product: bool,
}

impl<V: Lane> Product<V> {
    /// A number that is no product.
    #[inline(always)]
    pub fn of(value: V) -> Self {
        Product { value, first: value, second: value, is_product: false }
    }
    /// `sum` + self.
    #[inline(always)]
    pub fn add_to(self, sum: V) -> V {
        if self.is_product { self.first.mul_add(self.second, sum) } else { self.value + sum }
    }
}

operators!(Product<V>: [V: Lane]; Add add Sub sub Div div);

impl<V: Lane> Mul for Product<V> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Product { value: self.value * o.value, first: self.value, second: o.value, is_product: true }
    }
}
impl<V: Lane> Neg for Product<V> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        // Negate the second factor: a multiply-add includes this for free. A negated first factor would need an
        // operation.
        Product { value: -self.value, second: -self.second, ..self }
    }
}

impl<V: Lane> Lane for Product<V> {
    type Derivative = Known<Self>;
    type Mask = V::Mask;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self::of(V::splat(x))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        Self::of(self.value.mul_add(a.value, b.value))
    }
    functions!(sqrt rsqrt exp ln sin cos);
    comparisons!(lt le eq);
    #[inline(always)]
    fn shared(self) -> Self {
        Self::of(self.value)
    }
    #[inline(always)]
    fn select(mask: V::Mask, a: Self, b: Self) -> Self {
        Self::of(V::select(mask, a.value, b.value))
    }
}
