//! AVX2 + FMA vectors: 4 × f64, 8 × f32. As for AVX-512, values exist only inside functions compiled for these
//! instructions ([`super::dispatch`]).

use super::Vectorized;
use super::elementary::{exp_to_parts, ln_of_parts, sin_plus_quarters, split_exponent};
use fmm_traits::dual::Known;
use fmm_traits::{Lane, Simd, SimdLane};
use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// The AVX2 and FMA instruction sets.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;
impl Simd for Avx2 {
    type F64 = F64x4;
    type F32 = F32x8;
}

/// [`run`] for work in f32.
pub mod single {
    use super::{Simd, Vectorized};

    /// As [`run`](super::run).
    #[target_feature(enable = "avx2,fma")]
    pub fn run<S: Simd, W: Vectorized>(work: W) -> W::Output {
        work.run::<S>()
    }
}

/// Runs `work` in a function compiled for AVX2 and FMA. `S` is [`Avx2`] or scalar.
#[target_feature(enable = "avx2,fma")]
pub fn run<S: Simd, W: Vectorized>(work: W) -> W::Output {
    work.run::<S>()
}

/// Four f64.
#[derive(Clone, Copy, Debug)]
pub struct F64x4(__m256d);
/// Eight f32.
#[derive(Clone, Copy, Debug)]
pub struct F32x8(__m256);

macro_rules! operator {
    ($v:ident, $trait:ident, $method:ident, $intrinsic:ident) => {
        impl $trait for $v {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                // SAFETY: a value of this type exists only where AVX2 and FMA were detected.
                unsafe { $v($intrinsic(self.0, o.0)) }
            }
        }
    };
}

macro_rules! avx2 {
    ($v:ident, $mask:ident, $t:ty, $width:literal,
     $add:ident, $sub:ident, $mul:ident, $div:ident, $set1:ident, $fmadd:ident, $sqrt:ident, $cmp:ident, $blend:ident,
     $load:ident, $store:ident, $and:ident, $or:ident, $xor:ident, $not:expr, |$x:ident| $rsqrt:block,
     |$y:ident| $exp:block, |$w:ident| $ln:expr) => {
        /// A lane mask: all bits of a lane set or clear.
        #[derive(Clone, Copy, Debug)]
        pub struct $mask($v);
        impl BitAnd for $mask {
            type Output = Self;
            #[inline(always)]
            fn bitand(self, o: Self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $mask($v($and(self.0.0, o.0.0))) }
            }
        }
        impl BitOr for $mask {
            type Output = Self;
            #[inline(always)]
            fn bitor(self, o: Self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $mask($v($or(self.0.0, o.0.0))) }
            }
        }
        impl Not for $mask {
            type Output = Self;
            #[inline(always)]
            fn not(self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $mask($v($xor(self.0.0, $not))) }
            }
        }
        operator!($v, Add, add, $add);
        operator!($v, Sub, sub, $sub);
        operator!($v, Mul, mul, $mul);
        operator!($v, Div, div, $div);
        impl Neg for $v {
            type Output = Self;
            #[inline(always)]
            fn neg(self) -> Self {
                // The compiler recognises −0 − x as a negation, which a multiply-add includes for free.
                Self::broadcast(-0.0) - self
            }
        }
        impl Lane for $v {
            type Derivative = Known<Self>;
            type Mask = $mask;
            #[inline(always)]
            fn splat(x: f64) -> Self {
                Self::broadcast(x as $t)
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $v($fmadd(self.0, a.0, b.0)) }
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $v($sqrt(self.0)) }
            }
            #[inline(always)]
            fn rsqrt(self) -> Self {
                let $x = self;
                // SAFETY: as for the operators.
                unsafe { $rsqrt }
            }
            #[inline(always)]
            fn exp(self) -> Self {
                let $y = self;
                $exp
            }
            #[inline(always)]
            fn ln(self) -> Self {
                let $w = self;
                $ln
            }
            #[inline(always)]
            fn sin(self) -> Self {
                sin_plus_quarters(self, 0.0)
            }
            #[inline(always)]
            fn cos(self) -> Self {
                sin_plus_quarters(self, 1.0)
            }
            #[inline(always)]
            fn lt(self, o: Self) -> $mask {
                // SAFETY: as for the operators.
                unsafe { $mask($v($cmp::<_CMP_LT_OQ>(self.0, o.0))) }
            }
            #[inline(always)]
            fn le(self, o: Self) -> $mask {
                // SAFETY: as for the operators.
                unsafe { $mask($v($cmp::<_CMP_LE_OQ>(self.0, o.0))) }
            }
            #[inline(always)]
            fn eq(self, o: Self) -> $mask {
                // SAFETY: as for the operators.
                unsafe { $mask($v($cmp::<_CMP_EQ_OQ>(self.0, o.0))) }
            }
            #[inline(always)]
            fn select(mask: $mask, a: Self, b: Self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $v($blend(b.0, a.0, mask.0.0)) }
            }
        }
        impl SimdLane for $v {
            type Scalar = $t;
            const WIDTH: usize = $width;
            #[inline(always)]
            fn broadcast(x: $t) -> Self {
                // SAFETY: as for the operators.
                unsafe { $v($set1(x)) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $t) -> Self {
                // SAFETY: the caller vouches for WIDTH readable scalars.
                unsafe { $v($load(from)) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $t) {
                // SAFETY: the caller vouches for WIDTH writable scalars.
                unsafe { $store(to, self.0) }
            }
            #[inline(always)]
            fn sum(self) -> $t {
                let mut lanes = [0.0; $width];
                // SAFETY: `lanes` has WIDTH entries.
                unsafe { self.store(lanes.as_mut_ptr()) };
                lanes.iter().sum()
            }
        }
    };
}

avx2!(
    F64x4,
    MaskF64,
    f64,
    4,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    _mm256_div_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd,
    _mm256_sqrt_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_and_pd,
    _mm256_or_pd,
    _mm256_xor_pd,
    _mm256_castsi256_pd(_mm256_set1_epi64x(-1)),
    |x| {
        let w = _mm256_div_pd(_mm256_set1_pd(1.0), _mm256_sqrt_pd(x.0));
        F64x4(_mm256_and_pd(w, _mm256_cmp_pd::<_CMP_NEQ_UQ>(x.0, _mm256_setzero_pd())))
    },
    // The integer a + 1023 in the low bits of a number from 2⁵² on becomes the exponent of 2ᵃ. A result may be
    // subnormal where 2ⁿ is not a number, so 2ⁿ is a product of two powers.
    |x| {
        let (n, p) = exp_to_parts(x, 746.0);
        let power = |a: F64x4| {
            let biased = a + F64x4::broadcast(1023.0 + (1u64 << 52) as f64);
            // SAFETY: as for the operators.
            unsafe { F64x4(_mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(biased.0)))) }
        };
        let [a, b] = split_exponent(n);
        p * power(a) * power(b)
    },
    // Exponent and mantissa come from the bits; subnormals are multiplied by 2⁵⁴ first.
    // SAFETY: as for the operators.
    |x| unsafe {
        let tiny = x.lt(F64x4::broadcast(f64::MIN_POSITIVE));
        let large = F64x4::select(tiny, x * F64x4::broadcast((1u64 << 54) as f64), x);
        let bias = F64x4::select(tiny, F64x4::broadcast(1023.0 + 54.0), F64x4::broadcast(1023.0));
        let bits = _mm256_castpd_si256(large.0);
        let mantissa = _mm256_and_si256(bits, _mm256_set1_epi64x((1 << 52) - 1));
        let m = _mm256_castsi256_pd(_mm256_or_si256(mantissa, _mm256_set1_epi64x(1023 << 52)));
        // From integer to f64: an integer below 2⁵² in the mantissa bits of 2⁵² is that integer plus 2⁵².
        let shift = F64x4::broadcast((1u64 << 52) as f64);
        let exponent = _mm256_or_si256(_mm256_srli_epi64::<52>(bits), _mm256_castpd_si256(shift.0));
        let e = F64x4(_mm256_castsi256_pd(exponent)) - shift - bias;
        let zero = F64x4::broadcast(0.0);
        let other = F64x4::select(x.lt(zero), F64x4::broadcast(f64::NAN), x);
        let other = F64x4::select(x.eq(zero), F64x4::broadcast(f64::NEG_INFINITY), other);
        let usual = zero.lt(x) & x.lt(F64x4::broadcast(f64::INFINITY));
        F64x4::select(usual, ln_of_parts(F64x4(m), e), other)
    }
);

avx2!(
    F32x8,
    MaskF32,
    f32,
    8,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_sqrt_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_and_ps,
    _mm256_or_ps,
    _mm256_xor_ps,
    _mm256_castsi256_ps(_mm256_set1_epi32(-1)),
    // 12 bits from the table, then one step of order 3. If the table has no finite answer (zero and subnormals), the
    // result is 0: f32 treats such a distance as zero.
    |x| {
        let normal = _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, _mm256_set1_ps(f32::MIN_POSITIVE));
        let w = _mm256_and_ps(_mm256_rsqrt_ps(x.0), normal);
        let h = _mm256_fnmadd_ps(_mm256_mul_ps(x.0, w), w, _mm256_set1_ps(1.0));
        let c = _mm256_fmadd_ps(h, _mm256_set1_ps(0.375), _mm256_set1_ps(0.5));
        F32x8(_mm256_fmadd_ps(_mm256_mul_ps(h, w), c, w))
    },
    |x| {
        let (n, p) = exp_to_parts(x, 104.0);
        let power = |a: F32x8| {
            let biased = a + F32x8::broadcast(127.0 + (1u32 << 23) as f32);
            // SAFETY: as for the operators.
            unsafe { F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(biased.0)))) }
        };
        let [a, b] = split_exponent(n);
        p * power(a) * power(b)
    },
    // SAFETY: as for the operators.
    |x| unsafe {
        let tiny = x.lt(F32x8::broadcast(f32::MIN_POSITIVE));
        let large = F32x8::select(tiny, x * F32x8::broadcast((1u32 << 25) as f32), x);
        let bias = F32x8::select(tiny, F32x8::broadcast(127.0 + 25.0), F32x8::broadcast(127.0));
        let bits = _mm256_castps_si256(large.0);
        let mantissa = _mm256_and_si256(bits, _mm256_set1_epi32((1 << 23) - 1));
        let m = _mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(127 << 23)));
        let shift = F32x8::broadcast((1u32 << 23) as f32);
        let exponent = _mm256_or_si256(_mm256_srli_epi32::<23>(bits), _mm256_castps_si256(shift.0));
        let e = F32x8(_mm256_castsi256_ps(exponent)) - shift - bias;
        let zero = F32x8::broadcast(0.0);
        let other = F32x8::select(x.lt(zero), F32x8::broadcast(f32::NAN), x);
        let other = F32x8::select(x.eq(zero), F32x8::broadcast(f32::NEG_INFINITY), other);
        let usual = zero.lt(x) & x.lt(F32x8::broadcast(f32::INFINITY));
        F32x8::select(usual, ln_of_parts(F32x8(m), e), other)
    }
);
