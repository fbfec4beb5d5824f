//! Complex numbers over any [`Lane`]. With them, the same code shifts one series or a vector of series.

use fmm_traits::Lane;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

/// re + i·im.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Complex<V> {
    /// Real part.
    pub re: V,
    /// Imaginary part.
    pub im: V,
}

impl<V: Lane> Complex<V> {
    /// A complex number.
    #[inline(always)]
    pub fn new(re: V, im: V) -> Self {
        Complex { re, im }
    }
    /// 0.
    #[inline(always)]
    pub fn zero() -> Self {
        Complex { re: V::splat(0.0), im: V::splat(0.0) }
    }
    /// 1.
    #[inline(always)]
    pub fn one() -> Self {
        Complex { re: V::splat(1.0), im: V::splat(0.0) }
    }
    /// The square of the modulus.
    #[inline(always)]
    pub fn square(self) -> V {
        self.re.mul_add(self.re, self.im * self.im)
    }
    /// 1/z; NaN at z = 0.
    #[inline(always)]
    pub fn inverse(self) -> Self {
        let w = V::splat(1.0) / self.square();
        Complex { re: self.re * w, im: -(self.im * w) }
    }
    /// Times a real number.
    #[inline(always)]
    pub fn scaled(self, s: V) -> Self {
        Complex { re: self.re * s, im: self.im * s }
    }
    /// `self·a + b`.
    #[inline(always)]
    pub fn mul_add(self, a: Self, b: Self) -> Self {
        let re = self.re.mul_add(a.re, b.re);
        let im = self.re.mul_add(a.im, b.im);
        Complex { re: (-self.im).mul_add(a.im, re), im: self.im.mul_add(a.re, im) }
    }
}

impl<V: Lane> Add for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Complex { re: self.re + o.re, im: self.im + o.im }
    }
}

impl<V: Lane> Sub for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Complex { re: self.re - o.re, im: self.im - o.im }
    }
}

impl<V: Lane> Mul for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Complex { re: (-self.im).mul_add(o.im, self.re * o.re), im: self.im.mul_add(o.re, self.re * o.im) }
    }
}

impl<V: Lane> AddAssign for Complex<V> {
    #[inline(always)]
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

impl<V: Lane> SubAssign for Complex<V> {
    #[inline(always)]
    fn sub_assign(&mut self, o: Self) {
        *self = *self - o;
    }
}
