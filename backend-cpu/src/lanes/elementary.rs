//! Elementary functions of vectors with a fused multiply-add: parts that all instruction sets share.

use fmm_traits::{Real, SimdLane};

/// The constants of a precision.
struct Constants {
    /// Two positive numbers that add up to ln 2. The first times any exponent of the precision is exact.
    ln2: [f64; 2],
    /// Three numbers of the precision that add up to π/2.
    half_pi: [f64; 3],
    /// Adding this number and subtracting it again rounds to an integer.
    rounder: f64,
}

const DOUBLE: Constants = Constants {
    ln2: [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10],
    half_pi: [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33],
    rounder: 1.5 * (1u64 << 52) as f64,
};
const SINGLE: Constants = Constants {
    ln2: [0.693_115_234_375, 3.194_618_494_531e-5],
    half_pi: [1.570_796_370_506_286_6, -4.371_138_828_673_793e-8, -1.715_124_510_005_881_9e-15],
    rounder: 1.5 * (1u64 << 23) as f64,
};

const fn constants<V: SimdLane>() -> Constants {
    if V::Scalar::EPSILON > 1e-10 { SINGLE } else { DOUBLE }
}

/// Σ cₖ xᵏ. A loop, because a closure is not always compiled into the function that enables the instruction set, and
/// every operation is then a call.
#[inline(always)]
fn polynomial<V: SimdLane>(x: V, c: &[f64]) -> V {
    let mut k = c.len() - 1;
    let mut sum = V::splat(c[k]);
    while k > 0 {
        k -= 1;
        sum = sum.mul_add(x, V::splat(c[k]));
    }
    sum
}

/// The nearest integer to numbers below 2⁵¹ (f64) or 2²² (f32). Larger numbers give an integer.
#[inline(always)]
fn nearest<V: SimdLane>(x: V) -> V {
    let rounder = V::splat(const { constants::<V>() }.rounder);
    (x + rounder) - rounder
}

/// ln(2^e·m) for 1 ≤ m < 2. After moving m into [√½, √2): with f = m − 1, s = f/(2 + f) and z = s²,
/// ln m = 2 artanh s = f − s(f − z·p(z)).
#[inline(always)]
pub fn ln_of_parts<V: SimdLane>(m: V, e: V) -> V {
    let ln2 = const { constants::<V>() }.ln2;
    let one = V::splat(1.0);
    let small = m.lt(V::splat(std::f64::consts::SQRT_2));
    let m = V::select(small, m, m * V::splat(0.5));
    let e = V::select(small, e, e + one);
    let f = m - one;
    let s = f / (m + one);
    let z = s * s;
    let rest = (-polynomial(z, &LN_REMAINDER)).mul_add(z, f);
    let low = s.mul_add(rest, -(e * V::splat(ln2[1])));
    e.mul_add(V::splat(ln2[0]), f - low)
}

/// n and e^r with n an integer, |r| ≤ ln 2/2 and e^x = 2ⁿ·e^r, for |x| up to `limit`; beyond, those of ±`limit`.
/// The Taylor series ends at r¹³ (f64) or r⁷ (f32).
#[inline(always)]
pub fn exp_to_parts<V: SimdLane>(x: V, limit: f64) -> (V, V) {
    let ln2 = const { constants::<V>() }.ln2;
    let terms = if V::Scalar::EPSILON > 1e-10 { 8 } else { 14 };
    let most = V::splat(limit);
    let x = V::select(most.lt(x), most, V::select(x.lt(-most), -most, x));
    let n = nearest(x * V::splat(std::f64::consts::LOG2_E));
    let r = (-n).mul_add(V::splat(ln2[0]), x);
    let r = (-n).mul_add(V::splat(ln2[1]), r);
    (n, polynomial(r, &INVERSE_FACTORIALS[..terms]))
}

/// Two integers that add up to the exponent n. Powers of two of both are in range where 2ⁿ is not.
#[inline(always)]
pub fn split_exponent<V: SimdLane>(n: V) -> [V; 2] {
    let a = nearest(V::splat(0.5) * n);
    [a, n - a]
}

/// sin(x + k·π/2) in radians for a small integer k, within four units in the last place (tested to |x| = 1e9 in f64 and
/// 2e4 in f32), and next to a zero of the function within 0.02 units in the last place of 1. Beyond 2⁴⁷ (f64) or 2¹⁸
/// (f32) digits are lost; the result stays between −1 and 1.
///
/// With n the integer nearest to x·2/π and r = x − n·π/2, it is ±sin r for even n + k and ±cos r for odd ones.
#[inline(always)]
pub fn sin_plus_quarters<V: SimdLane>(x: V, k: f64) -> V {
    let half_pi = const { constants::<V>() }.half_pi;
    let (half, one) = (V::splat(0.5), V::splat(1.0));
    let n = nearest(x * V::splat(std::f64::consts::FRAC_2_PI));
    let mut r = x;
    for part in half_pi {
        r = (-n).mul_add(V::splat(part), r);
    }
    let r = V::select(one.lt(r), one, V::select(r.lt(-one), -one, r));
    let z = r * r;
    let sine = (z * r).mul_add(polynomial(z, &SINE), r);
    let cosine = (z * z).mul_add(polynomial(z, &COSINE), half.mul_add(-z, one));
    // n + k = 4a + 2b + c with b and c of 0 and 1.
    let quarters = n + V::splat(k);
    let halves = V::splat(0.5) * quarters;
    let even = nearest(halves).eq(halves);
    let whole = V::select(even, halves, halves - half);
    let positive = nearest(half * whole).eq(half * whole);
    let value = V::select(even, sine, cosine);
    V::select(positive, value, -value)
}

/// 1/k!, k = 0 … 13.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut t = [1.0; 14];
    let mut k = 1;
    while k < 14 {
        t[k] = t[k - 1] / k as f64;
        k += 1;
    }
    t
};

/// Coefficients of p(z) = (2 artanh √z/√z − 2)/z for 0 ≤ z ≤ (√2 − 1)²/(√2 + 1)², interpolated at seven Chebyshev
/// points. The relative error of 2 artanh s is 5e-18.
const LN_REMAINDER: [f64; 7] = [
    0.666_666_666_666_667,
    0.399_999_999_998_995,
    0.285_714_286_259_754_87,
    0.222_222_111_347_950_8,
    0.181_828_891_252_617_23,
    0.153_317_216_005_560_42,
    0.146_164_496_850_434_06,
];

/// Coefficients of (sin √z/√z − 1)/z for 0 ≤ z ≤ (π/4)², interpolated at six Chebyshev points. The relative error of
/// the sine is 2e-17.
const SINE: [f64; 6] = [
    -0.166_666_666_666_666_66,
    0.008_333_333_333_330_925,
    -0.000_198_412_698_367_224_18,
    2.755_731_608_381_636e-6,
    -2.505_112_794_401_418_8e-8,
    1.591_784_852_480_826_2e-10,
];

/// Coefficients of (cos √z − 1 + z/2)/z² for 0 ≤ z ≤ (π/4)², interpolated at six Chebyshev points. The error of the
/// cosine is 7e-19.
const COSINE: [f64; 6] = [
    0.041_666_666_666_666_664,
    -0.001_388_888_888_888_738_2,
    2.480_158_729_874_307e-5,
    -2.755_731_726_000_883_7e-7,
    2.087_614_382_799_313_3e-9,
    -1.138_245_677_806_130_6e-11,
];
