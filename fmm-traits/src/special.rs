//! Functions of a [`Lane`] that are made of its operations, so that every lane has them.

use crate::lane::Lane;

/// c₀·xⁿ + c₁·xⁿ⁻¹ + … + cₙ.
#[inline(always)]
fn polynomial<V: Lane, const N: usize>(x: V, coefficients: [f64; N]) -> V {
    let mut sum = V::splat(coefficients[0]);
    for &c in &coefficients[1..] {
        sum = sum.mul_add(x, V::splat(c));
    }
    sum
}

/// The error function by rational approximations: of erf x/x in x² up to 0.5, of e^(x²)·(1 − erf x) in x up to 4 and in
/// 1/x² beyond, with an error of about 4·2⁻⁵² (Cody 1969, *Mathematics of Computation* 23, tables II and III).
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "coefficients as published")]
pub fn erf<V: Lane>(x: V) -> V {
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let negative = x.lt(zero);
    let y = V::select(negative, -x, x);
    let small = y.le(V::splat(0.5));
    // Beyond 6 the function is 1 in f64. The limit keeps all branches finite.
    let y = V::select(V::splat(6.0).lt(y), V::splat(6.0), y);
    let s = y * y;
    let core = polynomial(
        s,
        [
            1.85777706184603153e-1,
            3.16112374387056560,
            1.13864154151050156e2,
            3.77485237685302021e2,
            3.20937758913846947e3,
        ],
    ) / polynomial(
        s,
        [1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3],
    );
    let middle = polynomial(
        y,
        [
            2.15311535474403846e-8,
            5.64188496988670089e-1,
            8.88314979438837594,
            6.61191906371416295e1,
            2.98635138197400131e2,
            8.81952221241769090e2,
            1.71204761263407058e3,
            2.05107837782607147e3,
            1.23033935479799725e3,
        ],
    ) / polynomial(
        y,
        [
            1.0,
            1.57449261107098347e1,
            1.17693950891312499e2,
            5.37181101862009858e2,
            1.62138957456669019e3,
            3.29079923573345963e3,
            4.36261909014324716e3,
            3.43936767414372164e3,
            1.23033935480374942e3,
        ],
    );
    let far = y.le(V::splat(4.0));
    let t = one / V::select(far, one, s);
    let tail = polynomial(
        t,
        [
            1.63153871373020978e-2,
            3.05326634961232344e-1,
            3.60344899949804439e-1,
            1.25781726111229246e-1,
            1.60837851487422766e-2,
            6.58749161529837803e-4,
        ],
    ) / polynomial(
        t,
        [
            1.0,
            2.56852019228982242,
            1.87295284992346725,
            5.27905102951428412e-1,
            6.05183413124413191e-2,
            2.33520497626869185e-3,
        ],
    );
    let tail = (V::splat(std::f64::consts::FRAC_2_SQRT_PI * 0.5) - t * tail) / V::select(far, one, y);
    let large = one - (-s).exp() * V::select(far, middle, tail);
    V::select(small, x * core, V::select(negative, -large, large))
}

/// Euler's constant γ.
const EULER: f64 = 0.577_215_664_901_532_9;
/// Terms of the series of K₀ and K₁ up to x = 1; the next one is below 2⁻⁶⁰ of the sum.
const TERMS: usize = 10;
/// The factors (k!)⁻² and H_k·(k!)⁻², with H_k = 1 + ½ + … + 1/k, highest k first.
const SERIES_0: [[f64; TERMS]; 2] = series(0);
/// The factors (k!·(k + 1)!)⁻¹ and ½(H_k + H_(k+1))·(k!·(k + 1)!)⁻¹, highest k first.
const SERIES_1: [[f64; TERMS]; 2] = series(1);

const fn series(order: usize) -> [[f64; TERMS]; 2] {
    let mut out = [[0.0; TERMS]; 2];
    let (mut factor, mut harmonic, mut k) = (1.0, 0.0, 0);
    while k < TERMS {
        if k > 0 {
            factor /= (k * (k + order)) as f64;
            harmonic += 1.0 / k as f64;
        }
        out[0][TERMS - 1 - k] = factor;
        let next = if order == 0 { harmonic } else { harmonic + 0.5 / (k + 1) as f64 };
        out[1][TERMS - 1 - k] = factor * next;
        k += 1;
    }
    out
}

/// y = min(x, 1), (y/2)² and ln(y/2) + γ.
#[inline(always)]
fn parts_of_series<V: Lane>(x: V) -> [V; 3] {
    let one = V::splat(1.0);
    let x = V::select(x.le(one), x, one);
    let half = V::splat(0.5) * x;
    [x, half * half, half.ln() + V::splat(EULER)]
}

/// e^(−x)/√x·p(1/x)/q(1/x) for x ≥ 1. Smaller x count as 1.
#[inline(always)]
fn bessel_tail<V: Lane, const N: usize>(x: V, p: [f64; N], q: [f64; N]) -> V {
    let one = V::splat(1.0);
    let x = V::select(x.lt(one), one, x);
    let t = one / x;
    (-x).exp() * t.sqrt() * (polynomial(t, p) / polynomial(t, q))
}

/// K₀(x) for x > 0, and ∞ at 0. Up to 1 by its series (Abramowitz & Stegun 9.6.13) Σ H_k s^k/(k!)² − (ln(x/2) + γ) Σ
/// s^k/(k!)², s = x²/4. Beyond, √x·e^x·K₀(x) is taken as a rational function of 1/x that interpolates it at 19 points;
/// with its coefficients in f64 it errs by 7e-17 up to x = 700. In f64 the relative error is about (6 + x)·2⁻⁵²,
/// because x is the argument of an exponential.
#[inline(always)]
pub fn bessel_k0<V: Lane>(x: V) -> V {
    let [_, s, logarithm] = parts_of_series(x);
    let near = polynomial(s, SERIES_0[1]) - logarithm * polynomial(s, SERIES_0[0]);
    let far = bessel_tail(
        x,
        [
            0.114954150262064,
            9.587404720060304,
            126.51038621091696,
            571.7381220515396,
            1149.2709233404134,
            1158.7550720862791,
            616.9065854980665,
            173.1763343673259,
            23.858982222629646,
            1.2533141373155003,
        ],
        [
            0.2933671426025579,
            12.914371378690394,
            134.54518482752033,
            539.0792239128323,
            1012.0406912708347,
            979.5287740137023,
            508.50862737766323,
            140.49962518211225,
            19.161713551906228,
            1.0,
        ],
    );
    V::select(x.le(V::splat(1.0)), near, far)
}

/// K₁(x) for x > 0, and ∞ at 0. Up to 1 by its series (Abramowitz & Stegun 9.6.11)
/// 1/x + (x/2)·Σ (ln(x/2) + γ − ½(H_k + H_(k+1)))·s^k/(k!(k + 1)!), s = x²/4; beyond as [`bessel_k0`].
#[inline(always)]
pub fn bessel_k1<V: Lane>(x: V) -> V {
    // The logarithm is multiplied by x, and 0·ln 0 is 0. The number is close to the smallest normal one of f32.
    // Negative numbers keep their logarithm, NaN.
    let least = V::splat(1e-37);
    let tiny = V::splat(0.0).le(x) & x.lt(least);
    let [y, s, logarithm] = parts_of_series(V::select(tiny, least, x));
    let sum = logarithm * polynomial(s, SERIES_1[0]) - polynomial(s, SERIES_1[1]);
    let near = V::splat(1.0) / V::select(x.le(y), x, y) + V::splat(0.5) * y * sum;
    let far = bessel_tail(
        x,
        [
            0.6799337789837975,
            22.332697913826134,
            194.40804500810245,
            700.1033017005709,
            1242.7619694530313,
            1176.1107851070035,
            609.4443075275057,
            170.06995315055866,
            23.56981977793589,
            1.2533141373155003,
        ],
        [
            0.04631055069032974,
            4.797848429934102,
            70.22084359888235,
            343.3576992976189,
            737.2667186780101,
            786.7660892293625,
            439.9853890433824,
            128.90175413715195,
            18.43099530172107,
            1.0,
        ],
    );
    V::select(x.le(V::splat(1.0)), near, far)
}

#[cfg(test)]
mod tests {
    use super::{bessel_k0, bessel_k1, erf};

    /// K₀ and K₁ by the trapezoidal rule for ∫₀^∞ e^(−x cosh t)·(1, cosh t) dt. All terms are positive, and the error
    /// of the rule decays exponentially with 1/h.
    fn bessel_integrals(x: f64) -> [f64; 2] {
        let h = 1.0 / 64.0;
        // Sums with the digits that the sums have lost.
        let (mut sums, mut lost) = ([0.5 * h * (-x).exp(); 2], [0.0; 2]);
        for k in 1..4000 {
            let c = (h * k as f64).cosh();
            let term = h * (-x * c).exp();
            for (i, term) in [term, c * term].into_iter().enumerate() {
                let before = sums[i];
                sums[i] += term;
                lost[i] += if before > term { (before - sums[i]) + term } else { (term - sums[i]) + before };
            }
        }
        [sums[0] + lost[0], sums[1] + lost[1]]
    }

    #[test]
    fn bessel_functions_are_their_integrals() {
        for k in 0..=700 {
            let x = 10f64.powf(k as f64 * 0.01 - 4.3);
            let [k0, k1] = bessel_integrals(x);
            // The exponent x·cosh t is rounded, which counts x times.
            let rounding = (6.0 + x.max(1.0)) * f64::EPSILON;
            assert!((bessel_k0(x) - k0).abs() <= rounding * k0, "K₀({x}): {} {k0}", bessel_k0(x));
            assert!((bessel_k1(x) - k1).abs() <= rounding * k1, "K₁({x}): {} {k1}", bessel_k1(x));
            let single = 1e-6 * (1.0 + x);
            assert!(
                x > 80.0
                    || (f64::from(bessel_k0(x as f32)) - k0).abs() <= single * k0
                        && (f64::from(bessel_k1(x as f32)) - k1).abs() <= single * k1,
                "{x} in f32"
            );
        }
        // Abramowitz & Stegun, table 9.8.
        for (x, k0, k1) in [(0.1f64, 2.427_069_024_7, 9.853_844_780_9), (2.0, 0.113_893_872_7, 0.139_865_881_8)] {
            assert!((bessel_k0(x) - k0).abs() < 1e-10 && (bessel_k1(x) - k1).abs() < 1e-10, "{x}");
        }
        assert_eq!([bessel_k0(0.0), bessel_k1(0.0)], [f64::INFINITY; 2]);
        assert_eq!([bessel_k0(800.0), bessel_k1(f64::INFINITY)], [0.0; 2]);
        assert!([f64::NAN, -1.0, -1e-200, -50.0].iter().all(|&x| bessel_k0(x).is_nan() && bessel_k1(x).is_nan()));
        assert!((bessel_k1(1e-200f64) * 1e-200 - 1.0).abs() < 1e-15);
    }

    /// The Taylor series of the error function; the terms cancel too much beyond 3.
    fn series(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..120 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn the_error_function_is_its_series() {
        for k in -300..=300 {
            let x = k as f64 * 0.01;
            let rounding = 4.0 * f64::EPSILON * series(x).abs() + 3e-17 * (x * x).exp();
            assert!((erf(x) - series(x)).abs() <= rounding, "{x}: {} {}", erf(x), series(x));
        }
        // Abramowitz & Stegun, table 7.3: 1 − erf at 4 and 5.
        for (x, rest) in [(4.0f64, 1.541_725_790_028_002e-8f64), (5.0, 1.537_459_794_428_035e-12)] {
            assert!((1.0 - erf(x) - rest).abs() <= 2e-16, "{x}");
        }
        assert_eq!([erf(0.0), erf(40.0), erf(-40.0), erf(f64::INFINITY)], [0.0, 1.0, -1.0, 1.0]);
        assert!(erf(f64::NAN).is_nan());
        assert_eq!(erf(1e-300), 1e-300 * std::f64::consts::FRAC_2_SQRT_PI);
    }
}
