//! SIMD vectors and the choice among them at run time.
//!
//! A stage is a [`Vectorized`] operation, generic over the instruction set. [`dispatch`] runs it inside a function
//! compiled for one set, with every lane operation inlined. The set is chosen once per call of a stage; no
//! `target-cpu=native` is needed.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod elementary;
mod forgetful;
mod portable;
mod product;
mod room;
mod several;
mod terms;

pub use product::Product;
pub(crate) use room::Room;
pub use several::{Several, Two};
pub(crate) use terms::Terms;

use fmm_traits::{Simd, lane::Scalar};
use std::sync::OnceLock;

/// An instruction set that the lanes can use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isa {
    /// AVX-512F and DQ: 8 × f64, 16 × f32.
    Avx512,
    /// AVX2 and FMA: 4 × f64, 8 × f32.
    Avx2,
    /// The target's baseline (SSE2, NEON), through arrays that the compiler vectorises.
    Portable,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// All instruction sets of this machine, best first.
    pub fn available() -> Vec<Isa> {
        [Isa::Avx512, Isa::Avx2, Isa::Portable].into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has the instruction set, and this crate has code for it. A crate that was compiled with
    /// `--cfg without_avx512` has none for AVX-512.
    pub fn is_available(self) -> bool {
        static FOUND: OnceLock<[bool; 3]> = OnceLock::new();
        FOUND.get_or_init(|| [Isa::Avx512, Isa::Avx2, Isa::Portable].map(Isa::probe))[self as usize]
    }

    fn probe(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                !cfg!(without_avx512)
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Isa::Avx2.probe()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Isa::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2+fma",
            Isa::Portable => "portable",
        }
    }
}

/// Work that is generic over the instruction set. `run` must be `#[inline(always)]`, and so must
/// everything it calls in its inner loops.
pub trait Vectorized {
    /// Result.
    type Output;
    /// Whether the work is in f32.
    const SINGLE: bool = false;
    /// Does the work with vectors of the instruction set `S`.
    fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `$work` by the function `run` of a module, or by its twin for f32.
///
/// The compiler optimises the generic functions of one module in one piece. Instruction sets and precisions have
/// modules of their own, so that they are compiled side by side.
macro_rules! run {
    ($module:ident, [$($vectors:ty),*], $work:ident) => {
        if const { W::SINGLE } {
            $module::single::run::<$($vectors,)* W>($work)
        } else {
            $module::run::<$($vectors,)* W>($work)
        }
    };
}

/// As [`dispatch`], but with scalars instead of vectors unless `isa` is AVX-512. For work so large (Hessians) that
/// compiling it for every set would cost more time than the other sets gain.
#[inline]
pub fn dispatch_large<W: Vectorized>(isa: Isa, work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if isa.is_available() {
        match isa {
            // SAFETY: `is_available` has just found the features of this set.
            #[cfg(not(any(feature = "develop", without_avx512)))]
            Isa::Avx512 => return unsafe { run!(avx512, [], work) },
            #[cfg(feature = "develop")]
            // SAFETY: a machine with AVX-512 has AVX2.
            Isa::Avx512 => return unsafe { run!(avx2, [Scalar], work) },
            #[cfg(all(not(feature = "develop"), without_avx512))]
            Isa::Avx512 => {}
            // SAFETY: as above. (Scalars, but with the machine's fused multiply-add.)
            Isa::Avx2 => return unsafe { run!(avx2, [Scalar], work) },
            Isa::Portable => {}
        }
    }
    let _ = isa;
    run!(portable, [Scalar], work)
}

/// Runs `work` with the instruction set `isa`, or with the portable set if the machine lacks `isa`. With the feature
/// `develop` the only vectors are those of AVX2.
#[inline]
pub fn dispatch<W: Vectorized>(isa: Isa, work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if isa.is_available() {
        match isa {
            #[cfg(feature = "develop")]
            // SAFETY: a machine with AVX-512 has AVX2.
            Isa::Avx512 => return unsafe { run!(avx2, [avx2::Avx2], work) },
            // SAFETY: `is_available` has just found the features of this set.
            #[cfg(not(any(feature = "develop", without_avx512)))]
            Isa::Avx512 => return unsafe { run!(avx512, [], work) },
            #[cfg(all(not(feature = "develop"), without_avx512))]
            Isa::Avx512 => {}
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { run!(avx2, [avx2::Avx2], work) },
            Isa::Portable => {}
        }
    }
    let _ = isa;
    #[cfg(feature = "develop")]
    return run!(portable, [Scalar], work);
    #[cfg(not(feature = "develop"))]
    run!(portable, [portable::Portable], work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::{Lane, Real, SimdLane, dual::Dual};

    /// Results of N functions at each number of `input`. `functions` takes a vector of numbers.
    #[inline(always)]
    fn at_each<V: SimdLane, const N: usize>(input: &[V::Scalar], functions: impl Fn(V) -> [V; N]) -> Vec<[f64; N]> {
        let mut out = Vec::new();
        for chunk in input.chunks(V::WIDTH) {
            let (mut x, mut y) = ([V::Scalar::of(1.0); 16], [[V::Scalar::of(0.0); 16]; N]);
            x[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: all buffers have 16 entries, the widest vector.
            unsafe {
                let results = functions(V::load(x.as_ptr()));
                results.iter().zip(&mut y).for_each(|(f, y)| f.store(y.as_mut_ptr()));
            }
            out.extend((0..chunk.len()).map(|i| y.map(|f| f[i].f64())));
        }
        out
    }

    /// Applies every lane function to `input` and returns the results.
    struct Functions<'a, T>(&'a [T]);
    impl<T: Real> Vectorized for Functions<'_, T> {
        type Output = Vec<[f64; 7]>;
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            at_each::<T::Vector<S>, 7>(self.0, |v| {
                let trig = Lane::select(v.lt(Lane::splat(1.0)), v.sin(), v.cos());
                [v.rsqrt(), v.sqrt(), (-v).exp(), v.ln(), trig, v.inverse::<false>(), v.inverse::<true>()]
            })
        }
    }

    fn check<T: Real>() {
        let input: Vec<T> = (0..400).map(|i| T::of(10f64.powf(i as f64 / 50.0 - 6.0))).collect();
        for isa in Isa::available() {
            for (x, y) in input.iter().zip(dispatch(isa, Functions(&input))) {
                let x = x.f64();
                let trig = if x < 1.0 { x.sin() } else { x.cos() };
                let expected = [1.0 / x.sqrt(), x.sqrt(), (-x).exp(), x.ln(), trig, 1.0 / x, 1.0 / x];
                for (k, (a, b)) in y.into_iter().zip(expected).enumerate() {
                    let rough = if T::NAME == "f32" { 1e3 } else { 1e8 };
                    let slack = 4.0 * T::EPSILON * [1.0, 1.0, 1.0, 1.0, x.max(1.0), 1.0, rough][k];
                    let tiny = if T::NAME == "f32" { 1e-37 } else { 1e-300 };
                    assert!(
                        (a - b).abs() <= slack * b.abs().max(if k == 3 || k == 4 { 1.0 } else { 0.0 }) + tiny,
                        "{} {} function {k} at {x}: {a} vs {b}",
                        isa.name(),
                        T::NAME
                    );
                }
            }
            let zero = dispatch(isa, Functions(&[T::of(0.0)]));
            assert_eq!(zero[0][0], 0.0, "rsqrt(0) must be 0 on {}", isa.name());
        }
    }

    /// ln of numbers of all sizes, and of infinity and NaN.
    struct Logarithms<'a>(&'a [f64; 8]);
    impl Vectorized for Logarithms<'_> {
        type Output = [f64; 8];
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            let mut y = [0.0; 8];
            for i in (0..8).step_by(S::F64::WIDTH) {
                // SAFETY: widths of f64 divide 8.
                unsafe { S::F64::load(self.0[i..].as_ptr()).ln().store(y[i..].as_mut_ptr()) };
            }
            y
        }
    }

    #[test]
    fn logarithms_of_all_sizes() {
        for x in [
            [5e-324, 1e-310, 2.2e-308, 1e-300, 1.0 - 1e-16, 1.0, 1.0 + 3e-16, 2.0],
            [f64::MAX, 1e300, 0.999, std::f64::consts::SQRT_2, 0.0, f64::INFINITY, -1.0, f64::NAN],
        ] {
            for isa in Isa::available() {
                for (x, y) in x.into_iter().zip(dispatch(isa, Logarithms(&x))) {
                    let exact = x.ln();
                    let same = y == exact || (y.is_nan() && exact.is_nan());
                    assert!(same || (y - exact).abs() <= 2.0 * f64::EPSILON * exact.abs(), "{} {x:e}: {y}", isa.name());
                }
            }
        }
    }

    /// Sums, differences, products, quotients and choices of numbers that depend on x, on y, on both and on neither.
    #[inline(always)]
    fn combined<V: Lane>([x, y, q]: [V; 3], out: &mut [V; 128]) {
        let all = [x, y, q, x * y];
        for i in 0..16 {
            let (a, b) = (all[i / 4], all[i % 4]);
            let least = V::select(a.lt(b), a, b);
            let each = [a + b, a - b, a * b, a / b, least, a.mul_add(b, x), a.mul_add(b, q), (-a).exp()];
            out[8 * i..8 * i + 8].copy_from_slice(&each);
        }
    }

    /// [`combined`] with derivatives: values, then gradients.
    #[inline(always)]
    fn derived<V: SimdLane<Scalar = f64>>() -> Vec<f64> {
        let [x, y] = [0, 1].map(|axis| Dual::variable(V::splat(0.7 + axis as f64), axis));
        let mut out = [x; 128];
        combined([x, y, Dual::constant(V::splat(-1.3))], &mut out);
        let gradients = out.iter().flat_map(|u| u.gradient());
        out.iter().map(|u| u.v).chain(gradients).map(|x| x.sum() / V::WIDTH as f64).collect()
    }
    struct Derived;
    impl Vectorized for Derived {
        type Output = Vec<f64>;
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            derived::<S::F64>()
        }
    }

    /// Vectors leave out derivatives that are 0; scalars compute with them.
    #[test]
    fn derivatives_of_vectors_are_those_of_scalars() {
        let expected = derived::<f64>();
        assert_eq!(expected.len(), 512);
        for isa in Isa::available() {
            for (i, (a, b)) in dispatch(isa, Derived).into_iter().zip(&expected).enumerate() {
                assert!((a - b).abs() <= 1e-14 * b.abs(), "{} result {i}: {a} instead of {b}", isa.name());
            }
        }
    }

    /// Transposes.
    struct Transposed<'a>([&'a [f64; 8]; 8]);
    impl Vectorized for Transposed<'_> {
        type Output = [[f64; 8]; 8];
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            let mut to = [[0.0; 8]; 8];
            S::transpose(self.0, &mut to);
            to
        }
    }

    #[test]
    fn transposes() {
        let rows: [[f64; 8]; 8] = std::array::from_fn(|i| std::array::from_fn(|j| (10 * i + j) as f64));
        for isa in Isa::available() {
            let to = dispatch(isa, Transposed(rows.each_ref()));
            assert!((0..64).all(|k| to[k / 8][k % 8] == rows[k % 8][k / 8]), "{} {to:?}", isa.name());
        }
    }

    /// AVX2 takes a subnormal f32 for zero (`CONVENTIONS.md`), the other sets do not.
    #[test]
    fn reciprocal_roots_of_subnormals() {
        for isa in Isa::available() {
            let root = dispatch(isa, Functions(&[1e-40f32]))[0][0];
            let expected = if isa == Isa::Avx2 { 0.0 } else { 1e20 };
            assert!((root - expected).abs() <= 1e-4 * expected, "{}: {root:e}", isa.name());
            let root = dispatch(isa, Functions(&[1e-320f64]))[0][0];
            assert!((root * 1e-160 - 1.0).abs() < 1e-3, "{}: {root:e}", isa.name());
        }
    }

    /// Within an ulp of the standard library's, near 1, in the range of subnormals and at the ends.
    #[test]
    fn logarithms() {
        let mut input: Vec<f64> = (0..20_000).map(|i| 10f64.powf(i as f64 / 31.0 - 323.0)).collect();
        input.extend((0..20_000).map(|i| 0.6 + i as f64 * 5e-5));
        input.extend((0..60).flat_map(|i| [1.0 + 0.5f64.powi(i), 1.0 - 0.5f64.powi(i + 1)]));
        input.extend([f64::MAX, f64::MIN_POSITIVE, 5e-324, 2f64.sqrt(), 0.5f64.sqrt()]);
        for isa in Isa::available() {
            for (x, y) in input.iter().zip(dispatch(isa, Functions(&input))) {
                let (a, b) = (y[3], x.ln());
                let ulp = (b.abs().next_up() - b.abs()).max(f64::MIN_POSITIVE);
                assert!(a == b || (a - b).abs() <= ulp, "{} ln {x:e}: {a:e} vs {b:e}", isa.name());
            }
            let ends = dispatch(isa, Functions(&[0.0, f64::INFINITY, f64::NAN, -1.0]));
            assert_eq!((ends[0][3], ends[1][3]), (f64::NEG_INFINITY, f64::INFINITY));
            assert!(ends[2][3].is_nan() && ends[3][3].is_nan());
        }
    }

    /// Results of e^x, ln x, sin x and cos x.
    struct Elementary<'a, T>(&'a [T]);
    impl<T: Real> Vectorized for Elementary<'_, T> {
        type Output = Vec<[f64; 4]>;
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            at_each::<T::Vector<S>, 4>(self.0, |v| [v.exp(), v.ln(), v.sin(), v.cos()])
        }
    }

    /// Within 4 units in the last place of numbers of the precision, over the whole range; sines and cosines of large
    /// angles within a unit in the last place of 1 besides.
    fn elementary<T: Real>(largest_angle: f64, least: f64) {
        let mut input: Vec<f64> = (0..40_000).map(|k| (k as f64 - 20_000.0) * 0.0391).collect();
        input.extend((0..20_000).map(|k| 10f64.powf(k as f64 * 1e-3 - 10.0)));
        input.extend((0..200).map(|k| k as f64 * std::f64::consts::FRAC_PI_2));
        input.extend((0..80).map(|k| 1.0 + 0.7f64.powi(k)));
        let input: Vec<T> = input.into_iter().filter(|x| x.abs() < largest_angle).map(T::of).collect();
        for isa in Isa::available() {
            for (x, found) in input.iter().zip(dispatch(isa, Elementary(&input))) {
                let x = x.f64();
                let exact = [x.exp(), x.ln(), x.sin(), x.cos()];
                for (k, (a, b)) in found.into_iter().zip(exact).enumerate() {
                    // What the precision cannot hold.
                    let b = T::of(b).f64();
                    let absolute = if k >= 2 { 0.02 * T::EPSILON } else { least };
                    let near = (a - b).abs() <= 4.0 * T::EPSILON * b.abs() + absolute;
                    assert!(
                        a == b || near || a.is_nan() && b.is_nan(),
                        "{} {} function {k} at {x:e}: {a:e} vs {b:e}",
                        isa.name(),
                        T::NAME
                    );
                }
            }
            let ends = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300, 800.0, -800.0].map(T::of);
            let found = dispatch(isa, Elementary(&ends));
            let name = isa.name();
            assert!(found[0].iter().all(|f| f.is_nan()), "{name}");
            assert!(found[1][..2] == [f64::INFINITY; 2] && found[1][2].is_nan() && found[1][3].is_nan(), "{name}");
            assert!(found[2][0] == 0.0 && found[2][1..].iter().all(|f| f.is_nan()), "{name} {:?}", found[2]);
            assert_eq!(found[3], [1.0, f64::NEG_INFINITY, 0.0, 1.0], "{name}");
            assert!(found[4][1].is_nan());
            assert!(found[5][2].abs() <= 1.0 || T::NAME == "f32", "{name}");
            assert_eq!([found[6][0], found[7][0]], [f64::INFINITY, 0.0], "{name}");
        }
    }

    #[test]
    fn elementary_functions_of_vectors() {
        elementary::<f64>(1e9, 1e-307);
        elementary::<f32>(2e4, 1e-37);
    }

    #[test]
    fn lane_functions_agree_with_std() {
        check::<f64>();
        check::<f32>();
    }
}
