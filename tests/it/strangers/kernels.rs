//! Kernels that occur in no table of the library. Each shape of kernel is one type, whose parameter `[0]` selects the
//! formula: every type for [`fmm::Fmm::custom`] is compiled for all instruction sets and both precisions.
//!
//! Parameters are `[formula, length, weight, amplitude]`. With w the weight, a the length and A the amplitude, ρ² =
//! x² + w·y² + z² (+ a² in softened formulas). A dilation by h divides a by h and multiplies A by h^(degree + 1).
//! Every type states the degree −1; for a formula of another degree, A takes up the difference.

use fmm::{AnyFamily, Error, Family, Kernel, Lane, Outputs, Visitor};
use fmm_traits::kernel::{OutputColumns, check_outputs};
use fmm_traits::lane::dot;
use std::fmt::Debug;
use std::marker::PhantomData;

/// A formula of [`Scalar`] in ρ, a and A of the module header.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Formula {
    /// A/ρ, the only formula that is homogeneous without a change of A.
    Inverse,
    /// A/ρ².
    InverseSquare,
    /// A·ρ.
    Distance,
    /// A·e^(−ρ²/a²).
    Gauss,
    /// A·(1 + √3ρ/a)·e^(−√3ρ/a).
    Matern,
    /// A·cos(ρ/a)/ρ.
    Wave,
    /// A·(1 − ρ/a) for ρ < a, else 0.
    Tent,
    /// A·√(r² + a²).
    Multiquadric,
    /// A/√(r² + a²).
    InverseMultiquadric,
}
use Formula::*;

impl Formula {
    const ALL: [Formula; 9] =
        [Inverse, InverseSquare, Distance, Gauss, Matern, Wave, Tent, Multiquadric, InverseMultiquadric];

    /// The degree under dilation if a is dilated too.
    fn degree(self) -> i32 {
        match self {
            Inverse | Wave | InverseMultiquadric => -1,
            InverseSquare => -2,
            Distance | Multiquadric => 1,
            Gauss | Matern | Tent => 0,
        }
    }

    /// Whether the formula contains the length a.
    fn has_length(self) -> bool {
        !matches!(self, Inverse | InverseSquare | Distance)
    }

    /// `true` if `code` is the number of this formula.
    #[inline(always)]
    fn is<V: Lane>(self, code: V) -> V::Mask {
        code.eq(V::splat(self as usize as f64))
    }
}

/// Kernels with one strength and one value, even in r. They are not declared singular, because each is finite or
/// exactly 0 at r = 0: a kernel that is 0 at r = 0 by [`Lane::rsqrt`] skips itself anyway.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {}

impl Kernel for Scalar {
    const NAME: &'static str = "stranger";
    const SINGULAR: bool = false;
    const RECIPROCAL: bool = true;

    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let (code, length, zero, one) = (p[0], p[1], V::splat(0.0), V::splat(1.0));
        let bare = r[0] * r[0] + p[2] * r[1] * r[1] + r[2] * r[2];
        let soft = Multiquadric.is(code) | InverseMultiquadric.is(code);
        let square = V::select(soft, bare + length * length, bare);
        let inverse = square.rsqrt();
        let distance = square * inverse;
        let scaled = distance / length;
        let root3 = V::splat(3f64.sqrt()) * scaled;
        let decay = (-V::select(Gauss.is(code), scaled * scaled, root3)).exp();
        let mut value = inverse;
        value = V::select(InverseSquare.is(code), inverse * inverse, value);
        value = V::select(Distance.is(code) | Multiquadric.is(code), distance, value);
        value = V::select(Gauss.is(code), decay, value);
        value = V::select(Matern.is(code), (one + root3) * decay, value);
        value = V::select(Wave.is(code), cosine(scaled) * inverse, value);
        value = V::select(Tent.is(code), V::select(scaled.lt(one), one - scaled, zero), value);
        u[0] = q[0] * p[3] * value;
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(p: &[f64], h: f64) -> Option<Vec<f64>> {
        let formula = Formula::ALL[p[0] as usize];
        let length = if formula.has_length() { p[1] / h } else { p[1] };
        let homogeneous = formula == Inverse;
        (!homogeneous).then(|| vec![p[0], length, p[2], p[3] * h.powi(formula.degree() + 1)])
    }
}

/// The cosine for arguments up to 40: the series of v = 1 − cos at x/64, doubled six times by 1 − cos 2y = 2v(2 − v).
/// [`Lane::cos`] takes one number at a time, and every formula of [`Scalar`] would pay for it.
#[inline(always)]
fn cosine<V: Lane>(x: V) -> V {
    let (one, two, square) = (V::splat(1.0), V::splat(2.0), x * x * V::splat(1.0 / 4096.0));
    let mut series = one;
    for k in [182.0, 132.0, 90.0, 56.0, 30.0, 12.0] {
        series = one - square * series * V::splat(1.0 / k);
    }
    let mut v = square * series * V::splat(0.5);
    for _ in 0..6 {
        v = two * v * (two - v);
    }
    one - v
}

/// Kernels with three strengths and three values. Formula 0 is Kelvin's solution of elastostatics without its constant
/// factor, (κ f + (r·f) r/r²)/r with κ = 3 − 4ν, the length `p[1]`. Formula 1 is the law of Biot and Savart, A·(f ×
/// r)/r³. Both have K(−r) = K(r)ᵀ: the first is even and symmetric, the second odd and antisymmetric.
#[derive(Clone, Copy, Debug)]
pub enum Vector {}

impl Kernel for Vector {
    const NAME: &'static str = "stranger_vector";
    const STRENGTHS: usize = 3;
    const VALUES: usize = 3;
    const SINGULAR: bool = true;
    const RECIPROCAL: bool = true;

    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], f: &[V], u: &mut [V]) {
        let inverse = dot(r, r).rsqrt();
        let square = inverse * inverse;
        let along = dot(r, f) * square;
        let swirl = p[3] * square * inverse;
        let odd = p[0].eq(V::splat(1.0));
        for i in 0..3 {
            let (j, k) = ((i + 1) % 3, (i + 2) % 3);
            let kelvin = inverse * (p[1] * f[i] + along * r[i]);
            u[i] = V::select(odd, swirl * (f[j] * r[k] - f[k] * r[j]), kelvin);
        }
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(p: &[f64], h: f64) -> Option<Vec<f64>> {
        (p[0] == 1.0).then(|| vec![p[0], p[1], p[2], p[3] / h])
    }
}

/// A kernel with three strengths and one value: the potential (m·r)/r³ of magnets, written by an author who does not
/// know families.
#[derive(Clone, Copy, Debug)]
pub enum Magnet {}

impl Kernel for Magnet {
    const NAME: &'static str = "magnet";
    const STRENGTHS: usize = 3;

    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], m: &[V], u: &mut [V]) {
        let inverse = dot(r, r).rsqrt();
        u[0] = dot(m, r) * inverse * inverse * inverse;
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn strength_degree(_: usize) -> i32 {
        -1
    }
}

/// A kernel with parameters and a name given at run time. It has potentials only, because derivatives would be compiled
/// too.
#[derive(Clone, Debug)]
struct Named<K> {
    name: &'static str,
    parameters: Vec<f64>,
    kernel: PhantomData<K>,
}

impl<K: Kernel> Family for Named<K> {
    type Source = K;
    type Check = K;
    type Equivalent = K;
    type Far = K;
    fn name(&self) -> &'static str {
        self.name
    }
    fn parameters(&self) -> Vec<f64> {
        self.parameters.clone()
    }
    fn scale(&self) -> f64 {
        1.0
    }
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
    fn outputs(&self) -> Outputs {
        Outputs::POTENTIAL
    }
    fn visit<W: Visitor>(&self, outputs: Outputs, visitor: W) -> Result<W::Output, Error> {
        check_outputs(self, outputs)?;
        let columns = (0..K::VALUES).collect();
        Ok(visitor.visit::<K, K>(vec![OutputColumns { output: Outputs::POTENTIAL, columns }]))
    }
}

/// A kernel of the test bed.
pub struct Stranger {
    /// Name in the tests; the family may have another name.
    pub what: &'static str,
    /// The family for a plan.
    pub family: AnyFamily,
    /// Largest order in tests: operators of three components at high orders take minutes.
    pub most: usize,
    /// [`check_kernel`](fmm_traits::testkit::kernel::check_kernel) of the formula with a length of 1. At some hundred
    /// lengths, e^(−r²/h²) would have no digits to compare.
    pub facts: fn() -> Result<(), String>,
}

/// Makes kernels from rows of (what, name, type, parameters, largest order).
macro_rules! bed {
    ($(($what:literal, $name:literal, $kernel:ty, $parameters:expr, $most:literal)),* $(,)?) => {
        vec![$({
            fn of_length(length: Option<f64>) -> Named<$kernel> {
                let mut parameters: Vec<f64> = $parameters.to_vec();
                parameters.iter_mut().skip(1).take(1).for_each(|a| *a = length.unwrap_or(*a));
                Named { name: $name, parameters, kernel: PhantomData }
            }
            Stranger {
                what: $what,
                family: AnyFamily::new(of_length(None)),
                most: $most,
                facts: || fmm_traits::testkit::kernel::check_kernel(&of_length(Some(1.0))),
            }
        }),*]
    };
}

/// The parameters of a formula of [`Scalar`]: its length, the weight of y² and the amplitude.
fn scalar(formula: Formula, length: f64, weight: f64, amplitude: f64) -> [f64; 4] {
    [formula as usize as f64, length, weight, amplitude]
}

/// All kernels of the test bed.
pub fn strangers() -> Vec<Stranger> {
    bed![
        ("1/r²", "inverse_square", Scalar, scalar(InverseSquare, 1.0, 1.0, 1.0), 16),
        ("r", "distance", Scalar, scalar(Distance, 1.0, 1.0, 1.0), 16),
        ("√(r² + c²)", "multiquadric", Scalar, scalar(Multiquadric, 0.1, 1.0, 1.0), 16),
        ("1/√(r² + c²)", "inverse_multiquadric", Scalar, scalar(InverseMultiquadric, 0.1, 1.0, 1.0), 16),
        ("exp(−r²/h²)", "gauss", Scalar, scalar(Gauss, 0.3, 1.0, 1.0), 16),
        ("Matérn 3/2", "matern", Scalar, scalar(Matern, 0.3, 1.0, 1.0), 16),
        ("stiff in y", "stiff", Scalar, scalar(Inverse, 1.0, 100.0, 1.0), 16),
        ("soft in y", "soft", Scalar, scalar(Inverse, 1.0, 0.1, 1.0), 16),
        ("cos(20r)/r", "wave", Scalar, scalar(Wave, 0.05, 1.0, 1.0), 16),
        ("Laplace named mixed_media", "mixed_media", Scalar, scalar(Inverse, 1.0, 1.0, 1.0), 16),
        ("cos(20r)/r named laplace", "laplace", Scalar, scalar(Wave, 0.05, 1.0, 1.0), 16),
        ("1 − r/h", "tent", Scalar, scalar(Tent, 0.3, 1.0, 1.0), 16),
        ("1e8/r", "large", Scalar, scalar(Inverse, 1.0, 1.0, 1e8), 16),
        ("Kelvin", "kelvin", Vector, [0.0, 1.8, 1.0, 1.0], 12),
        ("Biot and Savart", "biot_savart", Vector, [1.0, 1.0, 1.0, 1.0], 12),
        ("magnet", "magnet", Magnet, [0.0; 0], 16),
    ]
}
