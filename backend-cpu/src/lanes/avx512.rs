//! AVX-512 vectors: 8 × f64, 16 × f32.
//!
//! Every method is inlined into a function compiled for AVX-512F/DQ ([`super::dispatch`]). Values of these types are
//! made only there.

use super::Vectorized;
use super::elementary::{exp_to_parts, ln_of_parts, sin_plus_quarters};
use fmm_traits::dual::Known;
use fmm_traits::{Lane, Simd, SimdLane};
use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// The AVX-512 instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;
impl Simd for Avx512 {
    type F64 = F64x8;
    type F32 = F32x16;
    /// Exchanges split_exponent of rows, then pairs of columns, then columns: 24 shuffles.
    #[inline(always)]
    fn transpose(rows: [&[f64; 8]; 8], to: &mut [[f64; 8]; 8]) {
        // SAFETY: as for the operators; all places are inside the arrays.
        unsafe {
            let rows = rows.map(|row| _mm512_loadu_pd(row.as_ptr()));
            for half in 0..2 {
                // Columns 4·half … 4·half + 3 of rows i and i + 4.
                let join = |i: usize| match half {
                    0 => _mm512_shuffle_f64x2::<0x44>(rows[i], rows[i + 4]),
                    _ => _mm512_shuffle_f64x2::<0xee>(rows[i], rows[i + 4]),
                };
                let [a, b, c, d] = [join(0), join(1), join(2), join(3)];
                let even = (_mm512_unpacklo_pd(a, b), _mm512_unpacklo_pd(c, d));
                let odd = (_mm512_unpackhi_pd(a, b), _mm512_unpackhi_pd(c, d));
                for (parity, (ab, cd)) in [even, odd].into_iter().enumerate() {
                    for j in [0, 2] {
                        let at = j as i64;
                        let order = _mm512_setr_epi64(at, at + 1, at + 8, at + 9, at + 4, at + 5, at + 12, at + 13);
                        let column = _mm512_permutex2var_pd(ab, order, cd);
                        _mm512_storeu_pd(to[4 * half + parity + j].as_mut_ptr(), column);
                    }
                }
            }
        }
    }
}

/// [`run`] for work in f32.
pub mod single {
    use super::{Avx512, Vectorized};

    /// As [`run`](super::run).
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
    pub fn run<W: Vectorized>(work: W) -> W::Output {
        work.run::<Avx512>()
    }
}

/// Runs `work` in a function compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
pub fn run<W: Vectorized>(work: W) -> W::Output {
    work.run::<Avx512>()
}

/// Eight f64.
#[derive(Clone, Copy, Debug)]
pub struct F64x8(__m512d);
/// Sixteen f32.
#[derive(Clone, Copy, Debug)]
pub struct F32x16(__m512);

/// A lane mask, one bit per lane.
#[derive(Clone, Copy, Debug)]
pub struct Mask<M>(M);
impl<M: BitAnd<Output = M>> BitAnd for Mask<M> {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, o: Self) -> Self {
        Mask(self.0 & o.0)
    }
}
impl<M: BitOr<Output = M>> BitOr for Mask<M> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, o: Self) -> Self {
        Mask(self.0 | o.0)
    }
}
impl<M: Not<Output = M>> Not for Mask<M> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Mask(!self.0)
    }
}

macro_rules! operator {
    ($v:ident, $trait:ident, $method:ident, $intrinsic:ident) => {
        impl $trait for $v {
            type Output = Self;
            #[inline(always)]
            fn $method(self, o: Self) -> Self {
                // SAFETY: a value of this type exists only where AVX-512F/DQ was detected.
                unsafe { $v($intrinsic(self.0, o.0)) }
            }
        }
    };
}

macro_rules! avx512 {
    ($v:ident, $t:ty, $width:literal, $mask:ty, $suffix:tt,
     $add:ident, $sub:ident, $mul:ident, $div:ident, $set1:ident, $fmadd:ident, $sqrt:ident, $cmp:ident, $blend:ident,
     $load:ident, $store:ident, $reduce:ident, |$x:ident| $rsqrt:block, |$y:ident| $exp:block,
     |$w:ident| $ln:expr, |$z:ident, $rough:ident| $inverse:block, |$from:ident| $repeat:expr) => {
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
            type Mask = Mask<$mask>;
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
                // SAFETY: as for the operators.
                unsafe { $exp }
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
            fn lt(self, o: Self) -> Self::Mask {
                // SAFETY: as for the operators.
                unsafe { Mask($cmp::<_CMP_LT_OQ>(self.0, o.0)) }
            }
            #[inline(always)]
            fn le(self, o: Self) -> Self::Mask {
                // SAFETY: as for the operators.
                unsafe { Mask($cmp::<_CMP_LE_OQ>(self.0, o.0)) }
            }
            #[inline(always)]
            fn eq(self, o: Self) -> Self::Mask {
                // SAFETY: as for the operators.
                unsafe { Mask($cmp::<_CMP_EQ_OQ>(self.0, o.0)) }
            }
            #[inline(always)]
            fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
                // SAFETY: as for the operators.
                unsafe { $v($blend(mask.0, b.0, a.0)) }
            }
        }
        impl SimdLane for $v {
            type Scalar = $t;
            const WIDTH: usize = $width;
            const ROUGH_INVERSES: bool = true;
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
            unsafe fn repeat($from: *const $t) -> Self {
                // SAFETY: the caller vouches for WIDTH / 8 readable scalars.
                unsafe { $v($repeat) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $t) {
                // SAFETY: the caller vouches for WIDTH writable scalars.
                unsafe { $store(to, self.0) }
            }
            #[inline(always)]
            fn sum(self) -> $t {
                // SAFETY: as for the operators.
                unsafe { $reduce(self.0) }
            }
            #[inline(always)]
            fn inverse<const $rough: bool>(self) -> Self {
                let $z = self;
                // SAFETY: as for the operators.
                unsafe { $inverse }
            }
        }
    };
}

avx512!(
    F64x8,
    f64,
    8,
    __mmask8,
    pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_div_pd,
    _mm512_set1_pd,
    _mm512_fmadd_pd,
    _mm512_sqrt_pd,
    _mm512_cmp_pd_mask,
    _mm512_mask_blend_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_reduce_add_pd,
    // 14 bits from the table, then one step of order 4: with h = 1 − x·w², 1/√x = w·(1−h)^(−1/2) and
    // the first neglected term 35/128·h⁴ is below 2⁻⁵³.
    |x| {
        let zero = _mm512_setzero_pd();
        let w = _mm512_maskz_rsqrt14_pd(_mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(x.0, zero), x.0);
        let h = _mm512_fnmadd_pd(_mm512_mul_pd(x.0, w), w, _mm512_set1_pd(1.0));
        let c = _mm512_fmadd_pd(h, _mm512_set1_pd(0.3125), _mm512_set1_pd(0.375));
        let c = _mm512_fmadd_pd(h, c, _mm512_set1_pd(0.5));
        F64x8(_mm512_fmadd_pd(_mm512_mul_pd(h, w), c, w))
    },
    // 2000 is beyond the exponents of f64.
    |x| {
        let (n, p) = exp_to_parts(x, 2000.0);
        F64x8(_mm512_scalef_pd(p.0, n.0))
    },
    // SAFETY: as for the operators.
    |x| unsafe {
        let m = _mm512_getmant_pd::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_NAN>(x.0);
        ln_of_parts(F64x8(m), F64x8(_mm512_getexp_pd(x.0)))
    },
    // 14 bits w from the table. With h = 1 − x·w, 1/x = w(1 + h)(1 + h²)/(1 − h⁴); the factor 1/(1 − h⁴) is dropped,
    // an error of 2⁻⁵⁶.
    |x, ROUGH| {
        let w = _mm512_rcp14_pd(x.0);
        let h = _mm512_fnmadd_pd(x.0, w, _mm512_set1_pd(1.0));
        let w = _mm512_fmadd_pd(w, h, w);
        F64x8(if ROUGH { w } else { _mm512_fmadd_pd(w, _mm512_mul_pd(h, h), w) })
    },
    |from| _mm512_set1_pd(from.read())
);

avx512!(
    F32x16,
    f32,
    16,
    __mmask16,
    ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_sqrt_ps,
    _mm512_cmp_ps_mask,
    _mm512_mask_blend_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_reduce_add_ps,
    // 14 bits w from the table and one Newton step, w·(3/2 − x·w²/2), with an error of 3/8·2⁻²⁶. Multipliers are the
    // bottleneck of sums, so w/2 is computed on the exponent bits, and zero is detected by its bits.
    |x| {
        let nonzero = _mm512_test_epi32_mask(_mm512_castps_si512(x.0), _mm512_set1_epi32(0x7fff_ffff));
        let w = _mm512_rsqrt14_ps(x.0);
        let half = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(w), _mm512_set1_epi32(1 << 23)));
        let h = _mm512_fnmadd_ps(_mm512_mul_ps(x.0, w), half, _mm512_set1_ps(1.5));
        F32x16(_mm512_maskz_mul_ps(nonzero, w, h))
    },
    |x| {
        let (n, p) = exp_to_parts(x, 300.0);
        F32x16(_mm512_scalef_ps(p.0, n.0))
    },
    // SAFETY: as for the operators.
    |x| unsafe {
        let m = _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_NAN>(x.0);
        ln_of_parts(F32x16(m), F32x16(_mm512_getexp_ps(x.0)))
    },
    |x, ROUGH| {
        let w = _mm512_rcp14_ps(x.0);
        let h = _mm512_fnmadd_ps(x.0, w, _mm512_set1_ps(1.0));
        F32x16(if ROUGH { w } else { _mm512_fmadd_ps(w, h, w) })
    },
    // Two f32 are loaded and repeated as the bits of one f64.
    |from| _mm512_castpd_ps(_mm512_set1_pd(from.cast::<f64>().read_unaligned()))
);
