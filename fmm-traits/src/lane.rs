//! The numbers a kernel is written over, and the closed set of operations it may use.
//!
//! A Green's function is one generic Rust function over a [`Lane`]. The same body then runs over scalars (`f32`,
//! `f64`), SIMD vectors (`backend-cpu`), dual numbers ([`crate::dual::Dual`], which yield gradients and Hessians) and
//! the recorder ([`crate::record`](mod@crate::record), which prints the body as CUDA C). A kernel has only these
//! operations: + − × ÷, negation, fused multiply-add, square root and its reciprocal, exp, ln, sin, cos, erf, the
//! modified Bessel functions K₀ and K₁, comparison and selection. Loops over components and helper functions are plain
//! Rust. A branch on data goes through [`Lane::select`].

use crate::dual::Derivative;
use std::fmt::{Debug, Display};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// One number of a kernel: a scalar, a SIMD vector, a dual number or a recorded value.
pub trait Lane:
    Copy + 'static + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// A derivative of a [dual number](crate::dual::Dual) over this lane: `Self`, or, for vectors,
    /// [`Known`](crate::dual::Known), so that pair loops leave out derivatives that are 0.
    type Derivative: Derivative<Self>;
    /// Result of a comparison.
    type Mask: Copy + BitAnd<Output = Self::Mask> + BitOr<Output = Self::Mask> + Not<Output = Self::Mask>;

    /// The constant `x` in every element.
    fn splat(x: f64) -> Self;
    /// `self * a + b`, fused where the machine can.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// √self.
    fn sqrt(self) -> Self;
    /// 1/√self for self > 0 and **exactly 0 at self = 0**, so that a singular kernel built on it
    /// contributes nothing when a source and a target coincide.
    fn rsqrt(self) -> Self;
    /// e^self.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine of an angle in radians.
    fn cos(self) -> Self;
    /// The error function, (2/√π)∫₀^self e^(−t²) dt.
    #[inline(always)]
    fn erf(self) -> Self {
        crate::special::erf(self)
    }
    /// The modified Bessel function of the second kind K₀(self), for self > 0. Infinite at 0.
    #[inline(always)]
    fn bessel_k0(self) -> Self {
        crate::special::bessel_k0(self)
    }
    /// The modified Bessel function of the second kind K₁(self), for self > 0. Infinite at 0.
    #[inline(always)]
    fn bessel_k1(self) -> Self {
        crate::special::bessel_k1(self)
    }
    /// self < other.
    fn lt(self, other: Self) -> Self::Mask;
    /// self ≤ other.
    fn le(self, other: Self) -> Self::Mask;
    /// self = other.
    fn eq(self, other: Self) -> Self::Mask;
    /// `a` where `mask` holds, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// r·r, but a positive number instead of 0 at r = 0. A kernel that divides by r·r uses it, so that r/(r·r) is
    /// exactly 0 at r = 0, and not 0/0. The number is 1 by default; a lane may choose another.
    #[inline(always)]
    fn nonzero_square(r: &[Self]) -> Self {
        let square = dot(r, r);
        Self::select(square.eq(Self::splat(0.0)), Self::splat(1.0), square)
    }
    /// Returns `self`. Call it on a value of a kernel that is a product and also a factor of other values, such as
    /// q/r in the gradient of q/r. Without it the product is computed twice: once fused into the sum, once for the
    /// other values.
    #[inline(always)]
    fn shared(self) -> Self {
        self
    }
}

/// a·b of two vectors in space, or in the plane (two entries).
#[inline(always)]
pub fn dot<V: Lane>(a: &[V], b: &[V]) -> V {
    let rest = if a.len() == 2 { a[1] * b[1] } else { a[1].mul_add(b[1], a[2] * b[2]) };
    a[0].mul_add(b[0], rest)
}

/// A SIMD vector of `WIDTH` scalars.
pub trait SimdLane: Lane {
    /// The type of an element.
    type Scalar: Real;
    /// Number of scalars.
    const WIDTH: usize;
    /// Whether [`inverse`](Self::inverse) has fewer digits with `ROUGH`. Otherwise both are the same code.
    const ROUGH_INVERSES: bool = false;
    /// The scalar `x` in every element.
    fn broadcast(x: Self::Scalar) -> Self;
    /// Loads `WIDTH` consecutive scalars, aligned or not.
    ///
    /// # Safety
    /// `from` must be valid for reads of `WIDTH` scalars.
    unsafe fn load(from: *const Self::Scalar) -> Self;
    /// Scalars that [`repeat`](Self::repeat) reads: vectors of more than eight scalars hold several groups of
    /// eight.
    const REPEAT: usize = if Self::WIDTH > 8 { Self::WIDTH / 8 } else { 1 };
    /// Loads [`REPEAT`](Self::REPEAT) consecutive scalars, aligned or not, and repeats them over the vector.
    ///
    /// # Safety
    /// `from` must be valid for reads of `REPEAT` scalars.
    #[inline(always)]
    unsafe fn repeat(from: *const Self::Scalar) -> Self {
        // SAFETY: the caller vouches for REPEAT readable scalars; no vector has more than 16.
        unsafe {
            if Self::REPEAT == 1 {
                return Self::broadcast(from.read());
            }
            let all: [Self::Scalar; 16] = std::array::from_fn(|i| from.add(i % Self::REPEAT).read());
            Self::load(all.as_ptr())
        }
    }
    /// Stores `WIDTH` consecutive scalars, aligned or not.
    ///
    /// # Safety
    /// `to` must be valid for writes of `WIDTH` scalars.
    unsafe fn store(self, to: *mut Self::Scalar);
    /// Sum over the elements, always in the same order.
    fn sum(self) -> Self::Scalar;
    /// 1/self for normal numbers. With `ROUGH`, half the digits (28 bits of an f64) are enough.
    #[inline(always)]
    fn inverse<const ROUGH: bool>(self) -> Self {
        Self::splat(1.0) / self
    }
}

/// An instruction set: its vector types in f64 and f32, and the transpose of an 8 × 8 block.
pub trait Simd: Copy + Debug + Send + Sync + 'static {
    /// Vector of f64.
    type F64: SimdLane<Scalar = f64>;
    /// Vector of f32.
    type F32: SimdLane<Scalar = f32>;
    /// Sets `to[j][i]` to `rows[i][j]`.
    #[inline(always)]
    fn transpose(rows: [&[f64; 8]; 8], to: &mut [[f64; 8]; 8]) {
        for (j, to) in to.iter_mut().enumerate() {
            *to = rows.map(|row| row[j]);
        }
    }
}

/// One scalar at a time: the cheapest set to compile for.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;
impl Simd for Scalar {
    type F64 = f64;
    type F32 = f32;
}

/// The working precision: f32 or f64, a vector of one.
pub trait Real:
    Lane<Mask = bool>
    + SimdLane<Scalar = Self>
    + num_traits::Signed
    + num_traits::FromPrimitive
    + num_traits::ToPrimitive
    + num_traits::NumAssign
    + std::iter::Sum
    + PartialOrd
    + Default
    + Debug
    + Display
    + Send
    + Sync
{
    /// The vector of this scalar under instruction set `S`.
    type Vector<S: Simd>: SimdLane<Scalar = Self>;
    /// `"f32"` or `"f64"`.
    const NAME: &'static str;
    /// Unit roundoff times two: the distance from 1 to the next number.
    const EPSILON: f64;
    /// Rounds `x`.
    fn of(x: f64) -> Self;
    /// Widens `self`.
    fn f64(self) -> f64;
}

macro_rules! scalar {
    ($t:ident, $vector:ident) => {
        impl Lane for $t {
            type Derivative = Self;
            type Mask = bool;
            #[inline(always)]
            fn splat(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                <$t>::mul_add(self, a, b)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn rsqrt(self) -> Self {
                if self == 0.0 { 0.0 } else { 1.0 / <$t>::sqrt(self) }
            }
            #[inline(always)]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn sin(self) -> Self {
                <$t>::sin(self)
            }
            #[inline(always)]
            fn cos(self) -> Self {
                <$t>::cos(self)
            }
            #[inline(always)]
            fn lt(self, other: Self) -> bool {
                self < other
            }
            #[inline(always)]
            fn le(self, other: Self) -> bool {
                self <= other
            }
            #[inline(always)]
            fn eq(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn select(mask: bool, a: Self, b: Self) -> Self {
                if mask { a } else { b }
            }
        }

        impl SimdLane for $t {
            type Scalar = $t;
            const WIDTH: usize = 1;
            #[inline(always)]
            fn broadcast(x: $t) -> Self {
                x
            }
            #[inline(always)]
            unsafe fn load(from: *const $t) -> Self {
                // SAFETY: the caller vouches for one readable scalar.
                unsafe { from.read() }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $t) {
                // SAFETY: the caller vouches for one writable scalar.
                unsafe { to.write(self) }
            }
            #[inline(always)]
            fn sum(self) -> $t {
                self
            }
        }

        impl Real for $t {
            type Vector<S: Simd> = S::$vector;
            const NAME: &'static str = stringify!($t);
            const EPSILON: f64 = <$t>::EPSILON as f64;
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn f64(self) -> f64 {
                self as f64
            }
        }
    };
}
scalar!(f32, F32);
scalar!(f64, F64);
