//! Vectors as plain arrays: correct on every machine; the compiler vectorises them for the baseline
//! instruction set (SSE2 on x86-64, NEON on aarch64).

use super::{Vectorized, each_lane};
use fmm_traits::{Lane, Real, Simd, SimdLane};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// No instruction set beyond the target's baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable;
impl Simd for Portable {
    type F64 = Array<f64, 4>;
    type F32 = Array<f32, 8>;
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

/// `W` scalars.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Array<T, const W: usize>([T; W]);

/// One truth value a lane.
#[derive(Clone, Copy, Debug)]
pub struct Mask<const W: usize>([bool; W]);
impl<const W: usize> BitAnd for Mask<W> {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, o: Self) -> Self {
        Mask(std::array::from_fn(|i| self.0[i] & o.0[i]))
    }
}
impl<const W: usize> BitOr for Mask<W> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, o: Self) -> Self {
        Mask(std::array::from_fn(|i| self.0[i] | o.0[i]))
    }
}
impl<const W: usize> Not for Mask<W> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Mask(self.0.map(|m| !m))
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<T: Real, const W: usize> $trait for Array<T, W> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                Array(std::array::from_fn(|i| $trait::$method(self.0[i], o.0[i])))
            }
        }
    };
}
operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);
impl<T: Real, const W: usize> Neg for Array<T, W> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Array(self.0.map(|x| -x))
    }
}

impl<T: Real, const W: usize> Lane for Array<T, W> {
    type Mask = Mask<W>;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Array([T::of(x); W])
    }
    /// Two roundings: a fused operation would be a library call on a machine without one.
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self * a + b
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Array(self.0.map(Lane::sqrt))
    }
    #[inline(always)]
    fn rsqrt(self) -> Self {
        Array(self.0.map(Lane::rsqrt))
    }
    #[inline(always)]
    fn exp(self) -> Self {
        each_lane(self, Lane::exp)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        each_lane(self, Lane::ln)
    }
    #[inline(always)]
    fn sin(self) -> Self {
        each_lane(self, Lane::sin)
    }
    #[inline(always)]
    fn cos(self) -> Self {
        each_lane(self, Lane::cos)
    }
    #[inline(always)]
    fn lt(self, o: Self) -> Mask<W> {
        Mask(std::array::from_fn(|i| self.0[i] < o.0[i]))
    }
    #[inline(always)]
    fn le(self, o: Self) -> Mask<W> {
        Mask(std::array::from_fn(|i| self.0[i] <= o.0[i]))
    }
    #[inline(always)]
    fn eq(self, o: Self) -> Mask<W> {
        Mask(std::array::from_fn(|i| self.0[i] == o.0[i]))
    }
    #[inline(always)]
    fn select(mask: Mask<W>, a: Self, b: Self) -> Self {
        Array(std::array::from_fn(|i| if mask.0[i] { a.0[i] } else { b.0[i] }))
    }
}

impl<T: Real, const W: usize> SimdLane for Array<T, W> {
    type Scalar = T;
    const WIDTH: usize = W;
    #[inline(always)]
    fn broadcast(x: T) -> Self {
        Array([x; W])
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller vouches for WIDTH readable scalars.
        Array(unsafe { from.cast::<[T; W]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller vouches for WIDTH writable scalars.
        unsafe { to.cast::<[T; W]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn sum(self) -> T {
        self.0.into_iter().sum()
    }
}
