//! Several vectors as one lane. A kernel over this lane works on several targets at once, operation by operation. The
//! operations of different targets do not depend on each other, so the processor always finds work within its window
//! (64 vector operations on Zen 4, about one evaluation).
//!
//! The code uses loops instead of closures, because only inlined code is compiled for the instruction set.

use fmm_traits::{Lane, SimdLane};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// `N` vectors.
#[derive(Clone, Copy)]
pub struct Several<V, const N: usize>(pub [V; N]);

/// A mask for each vector.
#[derive(Clone, Copy)]
pub struct Masks<M, const N: usize>([M; N]);

macro_rules! operator {
    ($type:ident: $($trait:ident $method:ident)*) => {
        $(impl<V: Copy + $trait<Output = V>, const N: usize> $trait for $type<V, N> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                let mut all = self.0;
                for i in 0..N {
                    all[i] = self.0[i].$method(o.0[i]);
                }
                $type(all)
            }
        })*
    };
}
operator!(Several: Add add Sub sub Mul mul Div div);
operator!(Masks: BitAnd bitand BitOr bitor);

impl<V: Copy + Neg<Output = V>, const N: usize> Neg for Several<V, N> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        let mut all = self.0;
        for x in &mut all {
            *x = -*x;
        }
        Several(all)
    }
}
impl<M: Copy + Not<Output = M>, const N: usize> Not for Masks<M, N> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        let mut all = self.0;
        for m in &mut all {
            *m = !*m;
        }
        Masks(all)
    }
}

macro_rules! function {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self) -> Self {
            let mut all = self.0;
            for x in &mut all {
                *x = x.$name();
            }
            Several(all)
        })*
    };
}

macro_rules! comparison {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self, o: Self) -> Self::Mask {
            let mut all = [self.0[0].$name(o.0[0]); N];
            for i in 1..N {
                all[i] = self.0[i].$name(o.0[i]);
            }
            Masks(all)
        })*
    };
}

impl<V: Lane, const N: usize> Lane for Several<V, N> {
    type Mask = Masks<V::Mask, N>;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Several([V::splat(x); N])
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        let mut all = self.0;
        for i in 0..N {
            all[i] = self.0[i].mul_add(a.0[i], b.0[i]);
        }
        Several(all)
    }
    function!(sqrt rsqrt exp ln sin cos);
    comparison!(lt le eq);
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        let mut all = a.0;
        for i in 0..N {
            all[i] = V::select(mask.0[i], a.0[i], b.0[i]);
        }
        Several(all)
    }
}

impl<V: SimdLane, const N: usize> SimdLane for Several<V, N> {
    type Scalar = V::Scalar;
    const WIDTH: usize = V::WIDTH * N;
    const REPEAT: usize = V::REPEAT;
    #[inline(always)]
    fn broadcast(x: V::Scalar) -> Self {
        Several([V::broadcast(x); N])
    }
    #[inline(always)]
    unsafe fn load(from: *const V::Scalar) -> Self {
        let mut all = [V::splat(0.0); N];
        for (i, v) in all.iter_mut().enumerate() {
            // SAFETY: the caller vouches for WIDTH readable scalars.
            *v = unsafe { V::load(from.add(i * V::WIDTH)) };
        }
        Several(all)
    }
    #[inline(always)]
    unsafe fn repeat(from: *const V::Scalar) -> Self {
        // SAFETY: the caller vouches for REPEAT readable scalars, the number that one vector reads.
        Several([unsafe { V::repeat(from) }; N])
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut V::Scalar) {
        for (i, v) in self.0.iter().enumerate() {
            // SAFETY: the caller vouches for WIDTH writable scalars.
            unsafe { v.store(to.add(i * V::WIDTH)) };
        }
    }
    #[inline(always)]
    fn sum(self) -> V::Scalar {
        let mut sum = self.0[0];
        for v in &self.0[1..] {
            sum = sum + *v;
        }
        sum.sum()
    }
}
