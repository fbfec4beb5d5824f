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
/// 1/x² beyond (Cody 1969, *Mathematics of Computation* 23, tables II and III).
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

#[cfg(test)]
mod tests {
    use super::erf;

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
