//! Two vectors as one lane. A kernel over this lane works on two targets at once, operation by operation. The
//! operations of different targets do not depend on each other, so the processor always finds work within its window
//! (64 vector operations on Zen 4, about one evaluation).
//!
//! Sums and translations of spherical harmonics use two vectors as one of twice the width.
//!
//! Every operation is written out for both vectors. A loop over an array would have to be unrolled in every operation of
//! every kernel, which takes time to compile.

use fmm_traits::dual::Known;
use fmm_traits::{Lane, SimdLane};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// One vector of type `V` for each of [`COUNT`](Self::COUNT) targets: `V` itself for one target, [`Two`] for two.
pub trait Several<V>: Lane {
    /// Number of vectors.
    const COUNT: usize;
    /// The same vector for each target.
    fn all(v: V) -> Self;
    /// The vector of target `b`.
    fn get(self, b: usize) -> V;
    /// Replaces the vector of target `b`.
    fn set(&mut self, b: usize, v: V);
}

impl<V: Lane> Several<V> for V {
    const COUNT: usize = 1;
    #[inline(always)]
    fn all(v: V) -> Self {
        v
    }
    #[inline(always)]
    fn get(self, _: usize) -> V {
        self
    }
    #[inline(always)]
    fn set(&mut self, _: usize, v: V) {
        *self = v;
    }
}

impl<V: Lane> Several<V> for Two<V> {
    const COUNT: usize = 2;
    #[inline(always)]
    fn all(v: V) -> Self {
        Two(v, v)
    }
    #[inline(always)]
    fn get(self, b: usize) -> V {
        if b == 0 { self.0 } else { self.1 }
    }
    #[inline(always)]
    fn set(&mut self, b: usize, v: V) {
        if b == 0 {
            self.0 = v;
        } else {
            self.1 = v;
        }
    }
}

/// Two vectors.
#[derive(Clone, Copy)]
pub struct Two<V>(V, V);

/// A mask for each of two vectors.
#[derive(Clone, Copy)]
pub struct Masks<M>(M, M);

macro_rules! operator {
    ($type:ident: $($trait:ident $method:ident)*) => {
        $(impl<V: $trait<Output = V>> $trait for $type<V> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                $type(self.0.$method(o.0), self.1.$method(o.1))
            }
        })*
    };
}
operator!(Two: Add add Sub sub Mul mul Div div);
operator!(Masks: BitAnd bitand BitOr bitor);

impl<V: Neg<Output = V>> Neg for Two<V> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Two(-self.0, -self.1)
    }
}
impl<M: Not<Output = M>> Not for Masks<M> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Masks(!self.0, !self.1)
    }
}

macro_rules! function {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self) -> Self {
            Two(self.0.$name(), self.1.$name())
        })*
    };
}

macro_rules! comparison {
    ($($name:ident)*) => {
        $(#[inline(always)]
        fn $name(self, o: Self) -> Self::Mask {
            Masks(self.0.$name(o.0), self.1.$name(o.1))
        })*
    };
}

impl<V: Lane> Lane for Two<V> {
    type Derivative = Known<Self>;
    type Mask = Masks<V::Mask>;
    #[inline(always)]
    fn splat(x: f64) -> Self {
        Self::all(V::splat(x))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        Two(self.0.mul_add(a.0, b.0), self.1.mul_add(a.1, b.1))
    }
    function!(sqrt rsqrt exp ln sin cos);
    comparison!(lt le eq);
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        Two(V::select(mask.0, a.0, b.0), V::select(mask.1, a.1, b.1))
    }
}

impl<V: SimdLane> SimdLane for Two<V> {
    type Scalar = V::Scalar;
    const WIDTH: usize = 2 * V::WIDTH;
    const REPEAT: usize = V::REPEAT;
    #[inline(always)]
    fn broadcast(x: V::Scalar) -> Self {
        Self::all(V::broadcast(x))
    }
    #[inline(always)]
    unsafe fn load(from: *const V::Scalar) -> Self {
        // SAFETY: the caller vouches for WIDTH readable scalars, twice those of a vector.
        unsafe { Two(V::load(from), V::load(from.add(V::WIDTH))) }
    }
    #[inline(always)]
    unsafe fn repeat(from: *const V::Scalar) -> Self {
        // SAFETY: the caller vouches for REPEAT readable scalars, the number that one vector reads.
        Self::all(unsafe { V::repeat(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut V::Scalar) {
        // SAFETY: the caller vouches for WIDTH writable scalars, twice those of a vector.
        unsafe {
            self.0.store(to);
            self.1.store(to.add(V::WIDTH));
        }
    }
    #[inline(always)]
    fn sum(self) -> V::Scalar {
        (self.0 + self.1).sum()
    }
}
