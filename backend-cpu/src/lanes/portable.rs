//! Vectors as plain arrays: correct on every machine; the compiler vectorises them for the baseline
//! instruction set (SSE2 on x86-64, NEON on aarch64).

use super::Vectorized;
use fmm_traits::dual::Known;
use fmm_traits::{Lane, Simd, SimdLane};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// No instruction set beyond the target's baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable;
impl Simd for Portable {
    type F64 = F64x2;
    type F32 = F32x4;
}

/// [`run`] for work in f32.
pub mod single {
    use super::{Simd, Vectorized};

    /// As [`run`](super::run).
    #[inline(never)]
    pub fn run<S: Simd, W: Vectorized>(work: W) -> W::Output {
        work.run::<S>()
    }
}

/// Runs `work` with the vectors of `S`, which are [`Portable`] or scalars. Never inlined, because each caller would
/// compile it again.
#[inline(never)]
pub fn run<S: Simd, W: Vectorized>(work: W) -> W::Output {
    work.run::<S>()
}

macro_rules! operator {
    ($type:ident, $trait:ident, $method:ident, $($i:literal)*) => {
        impl $trait for $type {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                $type([$($trait::$method(self.0[$i], o.0[$i])),*])
            }
        }
    };
}

/// The array `$v` of scalars `$t` at `$i`. Operations name every element: a loop or a closure would be compiled again
/// for each operation of each kernel.
macro_rules! array {
    ($v:ident, $mask:ident, $t:ident, $width:literal, $($i:literal)*) => {
        /// Scalars side by side.
        #[derive(Clone, Copy, Debug)]
        #[repr(align(16))]
        pub struct $v([$t; $width]);
        /// One truth value a lane.
        #[derive(Clone, Copy, Debug)]
        pub struct $mask([bool; $width]);
        operator!($mask, BitAnd, bitand, $($i)*);
        operator!($mask, BitOr, bitor, $($i)*);
        operator!($v, Add, add, $($i)*);
        operator!($v, Sub, sub, $($i)*);
        operator!($v, Mul, mul, $($i)*);
        operator!($v, Div, div, $($i)*);
        impl Not for $mask {
            type Output = Self;
            #[inline(always)]
            fn not(self) -> Self {
                $mask([$(!self.0[$i]),*])
            }
        }
        impl Neg for $v {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                $v([$(-self.0[$i]),*])
            }
        }
        impl Lane for $v {
            type Derivative = Known<Self>;
            type Mask = $mask;
            #[inline(always)]
            fn splat(x: f64) -> Self {
                Self::broadcast(x as $t)
            }
            /// Two roundings: a fused operation would be a library call on a machine without one.
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                self * a + b
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $v([$(Lane::sqrt(self.0[$i])),*])
            }
            #[inline(always)]
            fn rsqrt(self) -> Self {
                $v([$(Lane::rsqrt(self.0[$i])),*])
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $v([$(Lane::exp(self.0[$i])),*])
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $v([$(Lane::ln(self.0[$i])),*])
            }
            #[inline(always)]
            fn sin(self) -> Self {
                $v([$(Lane::sin(self.0[$i])),*])
            }
            #[inline(always)]
            fn cos(self) -> Self {
                $v([$(Lane::cos(self.0[$i])),*])
            }
            #[inline(always)]
            fn lt(self, o: Self) -> $mask {
                $mask([$(self.0[$i] < o.0[$i]),*])
            }
            #[inline(always)]
            fn le(self, o: Self) -> $mask {
                $mask([$(self.0[$i] <= o.0[$i]),*])
            }
            #[inline(always)]
            fn eq(self, o: Self) -> $mask {
                $mask([$(self.0[$i] == o.0[$i]),*])
            }
            #[inline(always)]
            fn select(mask: $mask, a: Self, b: Self) -> Self {
                $v([$(if mask.0[$i] { a.0[$i] } else { b.0[$i] }),*])
            }
        }
        impl SimdLane for $v {
            type Scalar = $t;
            const WIDTH: usize = $width;
            #[inline(always)]
            fn broadcast(x: $t) -> Self {
                // `x` for each `$i`. The compiler would make a loop of `[x; N]`, again in every operation on constants.
                $v([$(($i, x).1),*])
            }
            #[inline(always)]
            unsafe fn load(from: *const $t) -> Self {
                // SAFETY: the caller vouches for WIDTH readable scalars.
                $v(unsafe { from.cast::<[$t; $width]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $t) {
                // SAFETY: the caller vouches for WIDTH writable scalars.
                unsafe { to.cast::<[$t; $width]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            fn sum(self) -> $t {
                self.0.into_iter().sum()
            }
        }
    };
}
array!(F64x2, MaskF64, f64, 2, 0 1);
array!(F32x4, MaskF32, f32, 4, 0 1 2 3);
