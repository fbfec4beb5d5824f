//! Tests for the author of a Green's function. [`check_kernel`] tries every promise of [`Kernel`] and [`Family`],
//! [`check_equation`] the differential equation. Both name the first property that fails, with the numbers.
//!
//! A kernel takes eight lines and its facts. Example: displacements in an elastic solid (Kelvin's solution).
//!
//! ```
//! use fmm_traits::{Kernel, Lane, lane::dot, testkit::kernel::{check_equation, check_kernel}};
//!
//! #[derive(Clone, Debug)]
//! struct Kelvin { shear: f64, poisson: f64 }
//!
//! impl Kernel for Kelvin {
//!     const NAME: &'static str = "kelvin";
//!     const STRENGTHS: usize = 3;
//!     const VALUES: usize = 3;
//!     #[inline(always)]
//!     fn eval<V: Lane>(params: &[V], r: &[V], f: &[V], u: &mut [V]) {
//!         let w = dot(r, r).rsqrt();
//!         let s = dot(r, f) * (w * w);
//!         for i in 0..3 {
//!             u[i] = w * (params[0] * f[i] + s * r[i]);
//!         }
//!     }
//!     fn value_degree(_: usize) -> i32 { -1 }
//!     fn parameters(&self) -> Vec<f64> { vec![3.0 - 4.0 * self.poisson] }
//!     fn scale(&self) -> f64 { 1.0 / (16.0 * std::f64::consts::PI * self.shear * (1.0 - self.poisson)) }
//! }
//!
//! let kelvin = Kelvin { shear: 2.0, poisson: 0.3 };
//! check_kernel(&kelvin)?;
//! // Navier's equation: (1 − 2ν) Δu + ∇(∇·u) = 0.
//! check_equation::<Kelvin>(&Kernel::parameters(&kelvin), |u| {
//!     (0..3)
//!         .map(|i| {
//!             let grad_div: f64 = (0..3).map(|j| u[j].hessian[i][j]).sum();
//!             (1.0 - 2.0 * 0.3) * u[i].laplacian() + grad_div
//!         })
//!         .collect()
//! })?;
//! # Ok::<(), String>(())
//! ```

use super::clouds::Generator;
use crate::kernel::{MAX_PARAMETERS, gradient_by_dual, hessian_by_dual};
use crate::{Family, Gradient, Hessian, Kernel, Member, OutputColumns, Outputs, Real, Tape, Visitor};

/// Pairs tried per property.
const PAIRS_PER_PROPERTY: u64 = 12;

/// Checks a kernel, or a family with all its members and outputs: values and derivatives,
/// dilation, reciprocity, coincident points, linearity, the recorded tape, f32 against f64.
pub fn check_kernel<F: Family>(family: &F) -> Result<(), String> {
    family.validate().map_err(|e| format!("{}: validate: {e}", family.name()))?;
    let params = family.parameters();
    check_member::<F::Source>(&params)?;
    check_member::<F::Check>(&params)?;
    check_member::<F::Equivalent>(&params)?;
    check_member::<F::Far>(&params)?;
    let fact = |ok: bool, what: &str| if ok { Ok(()) } else { Err(format!("{}: {what}", family.name())) };
    fact(family.scale().is_finite(), "scale is not finite")?;
    fact(F::Source::STRENGTHS == F::Check::STRENGTHS, "source and check kernels differ in strengths")?;
    fact(F::Check::VALUES == F::Equivalent::VALUES, "check and equivalent kernels differ in values")?;
    fact(F::Equivalent::STRENGTHS == F::Far::STRENGTHS, "equivalent and far kernels differ in strengths")?;
    for (output, name) in Outputs::ALL {
        if !family.outputs().contains(output) {
            fact(family.visit(output, Outline).is_err(), &format!("gives {name}, which it says it has not"))?;
            continue;
        }
        let outline = family.visit(output | Outputs::POTENTIAL, Outline).map_err(|e| format!("{name}: {e}"))?;
        fact(outline.values[0] == outline.values[1], &format!("{name}: near and far values differ in number"))?;
        fact(outline.strengths == [F::Source::STRENGTHS, F::Far::STRENGTHS], &format!("{name}: other strengths"))?;
        let inside = outline.columns.iter().flat_map(|c| &c.columns).all(|&c| c < outline.values[0]);
        fact(inside, &format!("{name}: a column beyond the values"))?;
        let found = outline.columns.iter().any(|c| c.output == output && !c.columns.is_empty());
        fact(found, &format!("{name}: no columns"))?;
    }
    Ok(())
}

/// The shapes of the kernels that a family gives to a plan: near (source), then far (equivalent).
struct Outline;
struct Shapes {
    values: [usize; 2],
    strengths: [usize; 2],
    columns: Vec<OutputColumns>,
}
impl Visitor for Outline {
    type Output = Shapes;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Shapes {
        Shapes { values: [S::VALUES, E::VALUES], strengths: [S::STRENGTHS, E::STRENGTHS], columns }
    }
}

/// Checks one member of a family, under the parameters of the family.
pub fn check_member<K: Kernel>(params: &[f64]) -> Result<(), String> {
    Checked::of::<K>().check(params)
}

/// Values for parameters, r and strengths.
type Values = fn(&[f64], [f64; 3], &[f64]) -> Vec<f64>;

/// A kernel as data, in f32 and as a tape too. The checks get this instead of a type, and so are compiled once for all
/// kernels.
struct Tried {
    member: Member,
    single: Values,
    tape: Tape,
}

impl Tried {
    fn of<K: Kernel>() -> Tried {
        let member = Member::of::<K>();
        Tried { tape: member.tape(), member, single: values::<K, f32> }
    }

    /// The values in f64.
    fn double(&self, params: &[f64], r: [f64; 3], s: &[f64]) -> Vec<f64> {
        let mut u = vec![0.0; self.member.values];
        self.member.eval(params, &r, s, &mut u);
        u
    }
}

/// A kernel with its derivatives, as it states them and by dual numbers.
struct Checked {
    kernel: Tried,
    gradient: Tried,
    hessian: Tried,
    gradient_by_dual: Values,
    hessian_by_dual: Values,
}

impl Checked {
    fn of<K: Kernel>() -> Checked {
        Checked {
            kernel: Tried::of::<K>(),
            gradient: Tried::of::<Gradient<K>>(),
            hessian: Tried::of::<Hessian<K>>(),
            gradient_by_dual: |params, r, s| {
                let mut out = vec![0.0; 4 * K::VALUES];
                gradient_by_dual::<K, f64>(params, &r, s, &mut out);
                out
            },
            hessian_by_dual: |params, r, s| {
                let mut out = vec![0.0; 10 * K::VALUES];
                hessian_by_dual::<K, f64>(params, &r, s, &mut out);
                out
            },
        }
    }

    fn check(&self, params: &[f64]) -> Result<(), String> {
        let k = &self.kernel;
        if params.len() > MAX_PARAMETERS {
            let (name, count) = (&k.member.name, params.len());
            return Err(format!("{name}: {count} parameters, at most {MAX_PARAMETERS} are supported"));
        }
        coincident(self, params)?;
        for pair in 0..PAIRS_PER_PROPERTY {
            let (r, s) = sample(k.member.strengths, pair);
            linearity(k, params, r, &s)?;
            derivatives(self, params, r, &s)?;
            let all = [k, &self.gradient, &self.hessian];
            all.into_iter().try_for_each(|kernel| dilation(kernel, params, r, &s))?;
            reciprocity(k, params, r)?;
            all.into_iter().try_for_each(|kernel| precisions(kernel, params, r, &s))?;
        }
        Ok(())
    }
}

/// A value of a kernel at a target with its derivatives there.
#[derive(Clone, Copy, Debug)]
pub struct Jet {
    /// u.
    pub value: f64,
    /// ∂u/∂x_a.
    pub gradient: [f64; 3],
    /// ∂²u/∂x_a∂x_b.
    pub hessian: [[f64; 3]; 3],
}

impl Jet {
    /// Δu.
    pub fn laplacian(&self) -> f64 {
        (0..3).map(|a| self.hessian[a][a]).sum()
    }
}

/// Checks that `residual` of the values of `K` (its differential equation, without the factor
/// `scale`) vanishes away from the source, to rounding.
pub fn check_equation<K: Kernel>(params: &[f64], residual: impl Fn(&[Jet]) -> Vec<f64>) -> Result<(), String> {
    let n = K::VALUES;
    for pair in 0..PAIRS_PER_PROPERTY {
        let (r, s) = sample(K::STRENGTHS, pair);
        let out = values::<Hessian<K>, f64>(params, r, &s);
        let jets: Vec<Jet> = (0..n)
            .map(|i| {
                let h = &out[4 * n + 6 * i..];
                Jet {
                    value: out[i],
                    gradient: std::array::from_fn(|a| out[n + 3 * i + a]),
                    hessian: [[h[0], h[1], h[2]], [h[1], h[3], h[4]], [h[2], h[4], h[5]]],
                }
            })
            .collect();
        let left = residual(&jets);
        same(K::NAME, "differential equation", r, &left, &vec![0.0; left.len()], 1e-11 * largest(&out))?;
    }
    Ok(())
}

/// A separation of length 0.5 to 2 and strengths in (−1, 1), the same for every run.
fn sample(strengths: usize, pair: u64) -> ([f64; 3], Vec<f64>) {
    let mut generator = Generator::new(pair);
    let mut uniform = || 2.0 * generator.uniform() - 1.0;
    let direction = [uniform(), uniform(), 0.1 + uniform()];
    let length = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
    let distance = 1.25 + 0.75 * uniform();
    (direction.map(|x| x * distance / length), (0..strengths).map(|_| uniform()).collect())
}

/// `K` in precision `T`, widened.
#[inline(never)]
fn values<K: Kernel, T: Real>(params: &[f64], r: [f64; 3], s: &[f64]) -> Vec<f64> {
    let of = |x: &[f64]| x.iter().map(|&x| T::of(x)).collect::<Vec<T>>();
    let mut u = vec![T::of(0.0); K::VALUES];
    K::eval(&of(params), &of(&r[..K::DIM]), &of(s), &mut u);
    u.into_iter().map(|x| x.f64()).collect()
}

fn largest(u: &[f64]) -> f64 {
    u.iter().fold(0.0, |m: f64, x| m.max(x.abs()))
}

/// Compares entry by entry; `tolerance` is absolute.
fn same(name: &str, what: &str, r: [f64; 3], got: &[f64], want: &[f64], tolerance: f64) -> Result<(), String> {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (g - w).abs();
        if error.is_nan() || error > tolerance {
            return Err(format!("{name}: {what}: entry {i} is {g:e}, not {w:e} (± {tolerance:.1e}), r = {r:?}"));
        }
    }
    Ok(())
}

fn linearity(k: &Tried, params: &[f64], r: [f64; 3], s: &[f64]) -> Result<(), String> {
    let mut sum = vec![0.0; k.member.values];
    for j in 0..k.member.strengths {
        let unit: Vec<f64> = (0..k.member.strengths).map(|k| if k == j { 1.0 } else { 0.0 }).collect();
        let column = k.double(params, r, &unit);
        sum.iter_mut().zip(column).for_each(|(u, c)| *u += s[j] * c);
    }
    let found = k.double(params, r, s);
    same(&k.member.name, "linear in the strengths", r, &found, &sum, 1e-13 * (largest(&sum) + 1e-3))
}

fn derivatives(k: &Checked, params: &[f64], r: [f64; 3], s: &[f64]) -> Result<(), String> {
    let (n, name) = (k.kernel.member.values, &k.kernel.member.name);
    let own_gradient = k.gradient.double(params, r, s);
    let own_hessian = k.hessian.double(params, r, s);
    let (gradient, hessian) = ((k.gradient_by_dual)(params, r, s), (k.hessian_by_dual)(params, r, s));
    same(name, "eval_gradient against dual numbers", r, &own_gradient, &gradient, 1e-13 * largest(&gradient))?;
    same(name, "eval_hessian against dual numbers", r, &own_hessian, &hessian, 1e-13 * largest(&hessian))?;
    let value = k.kernel.double(params, r, s);
    same(name, "eval_gradient against eval", r, &own_gradient[..n], &value, 1e-13 * largest(&gradient))?;

    // Central differences: error (step²/6)·(third derivative) + rounding/step.
    let step = 1e-5;
    for a in 0..k.kernel.member.dim {
        let at = |t: f64| k.gradient.double(params, std::array::from_fn(|i| r[i] + if i == a { t } else { 0.0 }), s);
        let (plus, minus) = (at(step), at(-step));
        let difference = |i: usize| (plus[i] - minus[i]) / (2.0 * step);
        let slope: Vec<f64> = (0..n).map(difference).collect();
        let column: Vec<f64> = (0..n).map(|i| own_gradient[n + 3 * i + a]).collect();
        same(name, "gradient against differences", r, &column, &slope, 1e-7 * largest(&hessian))?;
        for b in a..3 {
            let packed = [[0, 1, 2], [1, 3, 4], [2, 4, 5]][a][b];
            let slope: Vec<f64> = (0..n).map(|i| difference(n + 3 * i + b)).collect();
            let column: Vec<f64> = (0..n).map(|i| own_hessian[4 * n + 6 * i + packed]).collect();
            same(name, "Hessian against differences", r, &column, &slope, 1e-7 * largest(&hessian))?;
        }
    }
    Ok(())
}

/// Checks the rule of the module [`kernel`](crate::kernel).
fn dilation(k: &Tried, params: &[f64], r: [f64; 3], s: &[f64]) -> Result<(), String> {
    for h in [0.25f64, 3.0] {
        let inside = k.member.unit_parameters(params, h);
        let s_: Vec<f64> = s.iter().enumerate().map(|(j, x)| x * h.powi(k.member.strength_degrees[j])).collect();
        let mut want = k.double(&inside, r, &s_);
        want.iter_mut().enumerate().for_each(|(i, u)| *u *= h.powi(k.member.value_degrees[i]));
        let got = k.double(params, r.map(|x| h * x), s);
        same(&k.member.name, &format!("dilation by {h}"), r, &got, &want, 1e-13 * largest(&want))?;
    }
    Ok(())
}

fn reciprocity(k: &Tried, params: &[f64], r: [f64; 3]) -> Result<(), String> {
    if !k.member.reciprocal {
        return Ok(());
    }
    if k.member.values != k.member.strengths {
        return Err(format!(
            "{}: RECIPROCAL with {} strengths and {} values",
            k.member.name, k.member.strengths, k.member.values
        ));
    }
    let matrix = |r: [f64; 3]| -> Vec<Vec<f64>> {
        let unit = |j: usize| (0..k.member.strengths).map(|k| if k == j { 1.0 } else { 0.0 }).collect::<Vec<_>>();
        (0..k.member.strengths).map(|j| k.double(params, r, &unit(j))).collect()
    };
    let (forward, back) = (matrix(r), matrix(r.map(|x| -x)));
    for j in 0..k.member.strengths {
        let transposed: Vec<f64> = (0..k.member.values).map(|i| forward[i][j]).collect();
        same(&k.member.name, "K(−r) = K(r)ᵀ", r, &back[j], &transposed, 1e-13 * largest(&forward.concat()))?;
    }
    Ok(())
}

/// Checks the values at r = 0: zero with all derivatives for a singular kernel, finite otherwise.
fn coincident(k: &Checked, params: &[f64]) -> Result<(), String> {
    let (zero, (_, s)) = ([0.0; 3], sample(k.kernel.member.strengths, 0));
    let name = &k.kernel.member.name;
    let of = |k: &Tried| [k.double(params, zero, &s), (k.single)(params, zero, &s)];
    for out in of(&k.hessian).into_iter().chain(of(&k.gradient)) {
        if k.kernel.member.singular {
            same(name, "exactly 0 at r = 0 (singular)", zero, &out, &vec![0.0; out.len()], 0.0)?;
        } else if let Some(u) = out.iter().find(|u| !u.is_finite()) {
            return Err(format!("{name}: {u} at r = 0 though not singular"));
        }
    }
    Ok(())
}

/// Checks that the tape gives the values of the kernel in both precisions, and that f32 agrees with f64 to the rounding
/// of f32.
fn precisions(k: &Tried, params: &[f64], r: [f64; 3], s: &[f64]) -> Result<(), String> {
    fn taped<T: Real>(tape: &Tape, params: &[f64], r: [f64; 3], s: &[f64]) -> Vec<f64> {
        let of = |x: &[f64]| x.iter().map(|&x| T::of(x)).collect::<Vec<T>>();
        let mut u = vec![T::of(0.0); tape.values().len()];
        tape.evaluate(&of(params), &of(&r), &of(s), &mut u);
        u.into_iter().map(|x| x.f64()).collect()
    }
    let (double, single, tape) = (k.double(params, r, s), (k.single)(params, r, s), &k.tape);
    let size = largest(&double);
    same(&k.member.name, "recorded tape in f64", r, &taped::<f64>(tape, params, r, s), &double, 1e-13 * size)?;
    same(&k.member.name, "recorded tape in f32", r, &taped::<f32>(tape, params, r, s), &single, 1e-4 * size)?;
    same(&k.member.name, "f32 against f64", r, &single, &double, 1e-4 * size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lane, lane::dot};

    /// The kernel 1/r with one broken promise, selected by `FAULT`.
    #[derive(Clone, Debug)]
    struct Faulty<const FAULT: usize>;
    impl<const FAULT: usize> Kernel for Faulty<FAULT> {
        const NAME: &'static str = "faulty";
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            let r2 = dot(r, r);
            u[0] = match FAULT {
                1 => q[0] * q[0] * r2.rsqrt(),
                2 => q[0] / r2.sqrt(),
                3 => q[0] * r2.rsqrt() * (V::splat(2.0) + r[0]),
                4 => q[0] * (r2 + V::splat(1.0)).rsqrt(),
                _ => q[0] * r2.rsqrt(),
            };
        }
        fn eval_gradient<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
            gradient_by_dual::<Self, V>(p, r, q, out);
            if FAULT == 5 {
                out[2] = -out[2];
            }
        }
        fn eval_hessian<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
            hessian_by_dual::<Self, V>(p, r, q, out);
            if FAULT == 6 {
                out[5] = out[4];
            }
        }
        fn value_degree(_: usize) -> i32 {
            if FAULT == 7 { -2 } else { -1 }
        }
    }

    #[test]
    fn a_broken_promise_is_named() {
        assert_eq!(check_kernel(&Faulty::<0>), Ok(()));
        let failure = |r: Result<(), String>| r.err().unwrap_or_else(|| "nothing found".into());
        for (found, expected) in [
            (failure(check_kernel(&Faulty::<1>)), "linear in the strengths"),
            (failure(check_kernel(&Faulty::<2>)), "exactly 0 at r = 0"),
            (failure(check_kernel(&Faulty::<3>)), "dilation by 0.25"),
            (failure(check_kernel(&Faulty::<4>)), "exactly 0 at r = 0"),
            (failure(check_kernel(&Faulty::<5>)), "eval_gradient against dual"),
            (failure(check_kernel(&Faulty::<6>)), "eval_hessian against dual"),
            (failure(check_kernel(&Faulty::<7>)), "dilation by 0.25"),
            (failure(check_equation::<Faulty<3>>(&[], |u| vec![u[0].laplacian()])), "differential equation"),
        ] {
            assert!(found.contains(expected), "{found} instead of {expected}");
        }
        assert_eq!(check_equation::<Faulty<0>>(&[], |u| vec![u[0].laplacian()]), Ok(()));
    }
}
