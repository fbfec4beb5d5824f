//! Right kernels pass on points of any extent. Each wrong kernel is refused with its wrong fact.

use super::*;
use crate::kernel::{gradient_by_dual, hessian_by_dual};
use crate::{Gradient, Hessian, Kernel, Lane, lane::dot};

/// Extents of points, up to the smallest and largest that a plan accepts; 0 is unknown.
const EXTENTS: [f64; 7] = [1.0, 0.0, 1e-9, 37.0, 1e12, 1e-100, 1e100];

/// The fault of a [`Faulty`] kernel.
mod fault {
    pub const NONE: usize = 0;
    pub const DEGREE: usize = 1;
    pub const STRENGTH_DEGREE: usize = 2;
    pub const DILATED: usize = 3;
    pub const FEWER_PARAMETERS: usize = 4;
    pub const SQUARED: usize = 5;
    pub const AFFINE: usize = 6;
    pub const ROOT: usize = 7;
    pub const ODD: usize = 8;
    pub const INFINITE_AT_ZERO: usize = 9;
    pub const FINITE_AT_ZERO: usize = 10;
    pub const NAN_FAR_AWAY: usize = 11;
    pub const GRADIENT: usize = 12;
    pub const HESSIAN: usize = 13;
    pub const VALUE_OF_GRADIENT: usize = 14;
}
use fault::*;

/// A screened charge q e^(−κr)/r and a dipole v·r/r³, κ the first parameter, with one fault.
#[derive(Clone, Debug)]
struct Faulty<const FAULT: usize>;

impl<const FAULT: usize> Kernel for Faulty<FAULT> {
    const NAME: &'static str = "faulty";
    const STRENGTHS: usize = if FAULT == STRENGTH_DEGREE { 2 } else { 1 };
    const SINGULAR: bool = FAULT != INFINITE_AT_ZERO;
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = dot(r, r);
        let w = r2.rsqrt();
        let plain = w * (-(p[0] * (r2 * w))).exp();
        u[0] = match FAULT {
            STRENGTH_DEGREE => q[0] * plain + q[1] * r[0] * w * w * w,
            SQUARED => q[0] * q[0] * plain,
            AFFINE => (q[0] + V::splat(1e-3)) * plain,
            ROOT => q[0].sqrt() * plain,
            ODD => q[0] * plain * r[0] * w,
            INFINITE_AT_ZERO => q[0] / r2.sqrt() * plain * r2.sqrt(),
            FINITE_AT_ZERO => q[0] * (plain + p[0]),
            NAN_FAR_AWAY => q[0] * (plain + (V::splat(0.9) - p[0] * p[0] * r2).sqrt() * V::splat(0.0)),
            _ => q[0] * plain,
        };
    }
    fn eval_gradient<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
        gradient_by_dual::<Self, V>(p, r, q, out);
        match FAULT {
            GRADIENT => out[2] = -out[2],
            VALUE_OF_GRADIENT => out[0] = out[0] + out[0],
            _ => {}
        }
    }
    fn eval_hessian<V: Lane>(p: &[V], r: &[V], q: &[V], out: &mut [V]) {
        hessian_by_dual::<Self, V>(p, r, q, out);
        if FAULT == HESSIAN {
            out[5] = out[4];
        }
    }
    fn value_degree(_: usize) -> i32 {
        if FAULT == DEGREE { -2 } else { -1 }
    }
    fn dilated(p: &[f64], h: f64) -> Option<Vec<f64>> {
        match FAULT {
            DILATED => None,
            FEWER_PARAMETERS => Some(vec![]),
            _ => Some(vec![p[0] * h]),
        }
    }
}

/// The name of the fact that the check finds wrong in the values of a kernel, and the text of the error. Derivatives of
/// each kernel would be most of what is compiled.
fn fact<K: Kernel>(params: &[f64], extent: f64) -> (&'static str, String) {
    wrong(&[Member::of::<K>()], params, extent)
}

/// As [`fact`], for values and derivatives.
fn fact_with_derivatives<K: Kernel>(params: &[f64], extent: f64) -> (&'static str, String) {
    wrong(&[Member::of::<K>(), Member::of::<Gradient<K>>(), Member::of::<Hessian<K>>()], params, extent)
}

fn wrong(members: &[Member], params: &[f64], extent: f64) -> (&'static str, String) {
    match check(members, params, extent) {
        Err(e @ Error::Fact { fact, .. }) => (fact, e.to_string()),
        Err(e) => ("another error", e.to_string()),
        Ok(()) => ("", String::new()),
    }
}

#[test]
fn a_wrong_fact_is_named() {
    for (expected, (found, words)) in [
        ("", fact_with_derivatives::<Faulty<NONE>>(&[1.5], 2.0)),
        ("value_degree", fact::<Faulty<DEGREE>>(&[0.0], 2.0)),
        ("strength_degree", fact::<Faulty<STRENGTH_DEGREE>>(&[1.5], 2.0)),
        ("dilated", fact::<Faulty<DILATED>>(&[1.5], 2.0)),
        ("dilated", fact::<Faulty<FEWER_PARAMETERS>>(&[1.5], 2.0)),
        ("linearity in the strengths", fact::<Faulty<SQUARED>>(&[1.5], 2.0)),
        ("linearity in the strengths", fact::<Faulty<AFFINE>>(&[1.5], 2.0)),
        ("linearity in the strengths", fact::<Faulty<ROOT>>(&[1.5], 2.0)),
        ("RECIPROCAL", fact::<Faulty<ODD>>(&[1.5], 2.0)),
        ("SINGULAR", fact::<Faulty<INFINITE_AT_ZERO>>(&[1.5], 2.0)),
        ("SINGULAR", fact::<Faulty<FINITE_AT_ZERO>>(&[1.5], 2.0)),
        ("a finite value", fact::<Faulty<NAN_FAR_AWAY>>(&[1.5], 2.0)),
        ("eval_gradient", fact_with_derivatives::<Faulty<GRADIENT>>(&[1.5], 2.0)),
        ("eval_gradient", fact_with_derivatives::<Faulty<VALUE_OF_GRADIENT>>(&[1.5], 2.0)),
        ("eval_hessian", fact_with_derivatives::<Faulty<HESSIAN>>(&[1.5], 2.0)),
    ] {
        assert_eq!(found, expected, "{words}");
        assert_eq!(words.lines().count(), usize::from(!expected.is_empty()), "{words}");
    }
}

#[test]
fn an_error_carries_the_numbers() {
    let (_, words) = fact::<Faulty<DEGREE>>(&[0.0], 2.0);
    for part in ["value_degree of kernel faulty does not hold at r = [", "value_degree(0) = -2", "gives ", "found "] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn facts_hold_at_any_extent_and_parameter() {
    for extent in EXTENTS {
        for kappa in [0.0, 1e-30, 1e-3, 1.0, 20.0, 1e5, 1e50] {
            assert_eq!(
                fact_with_derivatives::<Faulty<NONE>>(&[kappa], extent),
                ("", String::new()),
                "{kappa:e} {extent:e}"
            );
        }
    }
}

#[test]
fn a_parameter_is_tried_where_it_matters() {
    // A screening length of a millionth of the points: no length of the table is near it.
    for kappa in [1e6, 1.0, 1e-2] {
        assert_eq!(fact::<Faulty<DILATED>>(&[kappa], 1.0).0, "dilated", "{kappa:e}");
    }
}

/// Legal kernels that are hard to compare, by `CASE`: with a cut-off, fast waves, a steep core, cancelled terms.
#[derive(Clone, Debug)]
struct Legal<const CASE: usize>;

impl<const CASE: usize> Kernel for Legal<CASE> {
    const NAME: &'static str = "legal";
    const SINGULAR: bool = CASE == 1 || CASE == 2;
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let (r2, a) = (dot(r, r), p[0]);
        let w = r2.rsqrt();
        let scaled = r2 * w / a;
        u[0] = match CASE {
            0 => V::select(scaled.lt(V::splat(1.0)), q[0] * (V::splat(1.0) - scaled), V::splat(0.0)),
            1 => q[0] * scaled.cos() * w,
            2 => {
                let w6 = (a * a * w * w) * (a * a * w * w) * (a * a * w * w);
                q[0] * (w6 * w6 - w6) * w
            }
            3 => q[0] * (r2 + a * a).sqrt() - q[0] * a,
            _ => q[0] * (-(scaled * scaled)).exp(),
        };
    }
    fn value_degree(_: usize) -> i32 {
        [0, -1, -1, 1, 0][CASE]
    }
    fn dilated(p: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(vec![p[0] / h])
    }
}

#[test]
fn legal_kernels_pass() {
    for extent in EXTENTS {
        for a in [1e-5, 0.03, 1.0, 50.0] {
            let a = a * if extent > 0.0 { extent } else { 1.0 };
            for (case, found) in [
                fact_with_derivatives::<Legal<0>>(&[a], extent),
                fact_with_derivatives::<Legal<1>>(&[a], extent),
                fact_with_derivatives::<Legal<2>>(&[a], extent),
                fact_with_derivatives::<Legal<3>>(&[a], extent),
                fact_with_derivatives::<Legal<4>>(&[a], extent),
            ]
            .iter()
            .enumerate()
            {
                assert_eq!(found.0, "", "case {case}, a = {a:e}, extent {extent:e}: {}", found.1);
            }
        }
    }
}

/// The kernel q/r with a given number of parameters.
#[derive(Clone, Debug)]
struct Parameters(Vec<f64>);
impl Kernel for Parameters {
    const NAME: &'static str = "parameters";
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * dot(r, r).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn parameters(&self) -> Vec<f64> {
        self.0.clone()
    }
}

#[test]
fn too_many_parameters_are_an_error() {
    let (most, more) = (vec![0.5; MAX_PARAMETERS], vec![0.5; MAX_PARAMETERS + 1]);
    assert_eq!(validate(&Parameters(most.clone())), Ok(()));
    assert_eq!(fact::<Parameters>(&most, 1.0).0, "");
    let error = Error::TooMany { what: "parameters of a kernel", found: MAX_PARAMETERS + 1, limit: MAX_PARAMETERS };
    assert_eq!(validate(&Parameters(more.clone())), Err(error.clone()));
    assert_eq!(check(&[Member::of::<Parameters>()], &more, 1.0), Err(error));
}

/// A kernel with six values per charge, the largest number.
#[derive(Clone, Debug)]
struct Six;
impl Kernel for Six {
    const NAME: &'static str = "six";
    const VALUES: usize = 6;
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let w = dot(r, r).rsqrt();
        for i in 0..6 {
            u[i] = if i < 3 { q[0] * w } else { q[0] * r[i - 3] * w * w * w };
        }
    }
    fn value_degree(i: usize) -> i32 {
        if i < 3 { -1 } else { -2 }
    }
}

#[test]
fn six_values_have_all_derivatives() {
    assert_eq!(fact_with_derivatives::<Six>(&[], 1.0), ("", String::new()));
}

/// Prints the time of a check: `cargo test -p fmm-traits --release -- --ignored --nocapture time_of_a_check`.
#[test]
#[ignore = "prints times"]
fn time_of_a_check() {
    fn time<K: Kernel>(what: &str, params: &[f64]) {
        let members = [Member::of::<K>(), Member::of::<Gradient<K>>(), Member::of::<Hessian<K>>()];
        for count in 1..=3 {
            let start = std::time::Instant::now();
            (0..100).for_each(|_| check(&members[..count], params, 1.0).unwrap());
            println!("{what}, derivatives up to {}: {:.1} µs", count - 1, start.elapsed().as_secs_f64() * 1e4);
        }
    }
    time::<Faulty<NONE>>("one value", &[1.5]);
    time::<Six>("six values", &[]);
}
