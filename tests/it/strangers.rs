//! Untuned kernels. A named method keeps the tolerance without waste, or refuses it with the kernel's floor.
//! [`Method::Auto`] keeps the tolerance in any case.
//!
//! The cloud is small and its leaves hold few points, so that far pairs carry most of the sum. Every kernel must exceed
//! the smaller tolerance at the smallest order.

#[path = "strangers/kernels.rs"]
mod kernels;

use crate::probe::Probe;
use crate::{Own, both, in_turn, uniform};
use fmm::{AnyFamily, Error, Fmm, Method, Output, Outputs, Plan, Precision, Targets, demo};
use fmm_traits::testkit::clouds::CloudKind;
use kernels::{Stranger, strangers};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

/// Number of sources, which are the targets.
const N: usize = 5000;
/// Leaf capacity: three levels of boxes below the root for [`N`] uniform points.
const NCRIT: usize = 40;
/// Number of targets at which errors are measured.
const SAMPLES: usize = 1000;
/// Requested tolerances.
const TOLERANCES: [f64; 2] = [1e-3, 1e-6];
/// Largest ratio of tolerance to error where a smaller order would suffice.
const MAX_WASTE: f64 = 30.0;
/// Largest ratio, either way, between the floor in a refusal and the smallest error of any order.
const FLOOR_FACTOR: f64 = 3.0;
/// Smallest order.
const MIN_ORDER: usize = 3;
/// Orders that are searched for the smallest error.
const SEARCHED_ORDERS: [usize; 10] = [3, 4, 5, 6, 7, 8, 9, 12, 14, 16];

/// Number of sets of normal strengths.
const SETS: u64 = 12;
/// Number of sets with which the smallest error of any order is searched. The largest error of 4 sets is close to that
/// of all 13, and the errors of all orders are most of the time of a test.
const SEARCH_SETS: usize = 4;

/// Strengths uniform in (0, 1) and sets of normal strengths, with their direct sums at some targets.
struct Exact {
    strengths: Vec<Vec<f64>>,
    targets: Vec<usize>,
    sums: Vec<Output>,
}

impl Exact {
    /// Direct sums of a request without method and tolerance, at `samples` of the points.
    fn new(builder: Fmm, points: &[f64], samples: usize) -> Exact {
        let (n, components) = (points.len() / 3, builder.strengths().unwrap());
        let normal = (0..SETS).map(|set| demo::normal_strengths(n, components, 7 + set));
        let strengths: Vec<Vec<f64>> = std::iter::once(demo::strengths(n, components, 7)).chain(normal).collect();
        // A prime scatters the targets over points in any order.
        let targets: Vec<usize> = (0..samples.min(n)).map(|k| k * 7919 % n).collect();
        let plan = builder.method(Method::Direct).plan(points, Targets::Subset(&targets)).unwrap();
        let sums = plan.apply_batch(&strengths).unwrap();
        Exact { strengths, targets, sums }
    }

    /// The largest error of a plan over all outputs and sets of strengths; NaN if an error is NaN.
    fn error(&self, plan: &Plan) -> f64 {
        self.error_of(self.strengths.len(), plan)
    }

    /// As [`error`](Self::error), over the first `sets` sets.
    fn error_of(&self, sets: usize, plan: &Plan) -> f64 {
        let square = |row: &mut dyn Iterator<Item = f64>| row.map(|x| x * x).sum::<f64>();
        let of_output = |sum: &[f64], exact: &[f64]| {
            let c = exact.len() / self.targets.len();
            let sum: Vec<f64> = self.targets.iter().flat_map(|&t| &sum[c * t..c * (t + 1)]).copied().collect();
            let (e, u) = (square(&mut sum.iter().zip(exact).map(|(a, b)| a - b)), square(&mut exact.iter().copied()));
            if e == 0.0 { 0.0 } else { (e / u).sqrt() }
        };
        let of_set = |(sum, exact): (&Output, &Output)| {
            let outputs = [Outputs::POTENTIAL, Outputs::GRADIENT].map(|o| of_output(sum.get(o), exact.get(o)));
            outputs.into_iter().fold(0.0, larger)
        };
        plan.apply_batch(&self.strengths[..sets]).unwrap().iter().zip(&self.sums).map(of_set).fold(0.0, larger)
    }
}

/// The larger of two numbers; NaN if one is NaN.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// One kernel on one cloud, with the measured errors by order.
struct Case {
    builder: Fmm,
    points: Vec<f64>,
    exact: Exact,
    most: usize,
    errors: RefCell<BTreeMap<usize, f64>>,
}

impl Case {
    fn new(builder: Fmm, most: usize) -> Case {
        let points = uniform(N, 31);
        let exact = Exact::new(builder.clone(), &points, SAMPLES);
        let builder = builder.method(Method::EquivalentDensities).ncrit(NCRIT);
        Case { builder, points, exact, most, errors: RefCell::default() }
    }

    /// The error at `order` over [`SEARCH_SETS`]; infinite if no plan exists for this order.
    fn at(&self, order: usize) -> f64 {
        let measure = || {
            let plan = self.builder.clone().order(order).plan(&self.points, Targets::Sources);
            plan.map_or(f64::INFINITY, |plan| self.exact.error_of(SEARCH_SETS, &plan))
        };
        *self.errors.borrow_mut().entry(order).or_insert_with(measure)
    }

    /// The smallest error over the searched orders. The search ends after two orders that err ten times as much as the
    /// best order: from there on errors grow.
    fn best(&self) -> f64 {
        let (mut best, mut growing) = (f64::INFINITY, 0);
        for order in SEARCHED_ORDERS.into_iter().filter(|&order| order <= self.most) {
            let error = self.at(order);
            growing = if error > 10.0 * best { growing + 1 } else { 0 };
            best = best.min(error);
            if growing == 2 {
                break;
            }
        }
        best
    }

    /// The fault of the plan for `tolerance`, if any.
    fn named(&self, tolerance: f64) -> Option<String> {
        let plan = match self.builder.clone().tolerance(tolerance).plan(&self.points, Targets::Sources) {
            Ok(plan) => plan,
            Err(refused) => return self.refusal(tolerance, &refused),
        };
        let (e, d) = (self.exact.error(&plan), plan.describe());
        let order = d.order.unwrap();
        let probe = Probe::of(&d);
        let said = format!("order {order} errs by {e:.1e}, probe {probe:?}");
        let spent = order == MIN_ORDER || probe.and_then(|p| p.below()).is_some_and(|below| below > tolerance);
        match () {
            _ if d.edges.m2l == 0 => Some("no far field".into()),
            _ if e.is_nan() || e > tolerance => Some(format!("broken: {said}")),
            _ if e * MAX_WASTE < tolerance && !spent => {
                Some(format!("wasteful: {said}, order {} {:.1e}", order - 1, self.at(order - 1)))
            }
            _ => None,
        }
    }

    /// The fault of a refusal of `tolerance`, if any.
    fn refusal(&self, tolerance: f64, refused: &Error) -> Option<String> {
        let &Error::ToleranceFloor { tolerance: asked, floor, .. } = refused else { return Some(refused.to_string()) };
        let best = self.best();
        let near = floor > tolerance && floor <= FLOOR_FACTOR * best && best <= FLOOR_FACTOR * floor;
        let wrong = asked != tolerance || !near;
        let reached: Vec<_> = self.errors.borrow().iter().map(|(order, e)| format!("{order}: {e:.1e}")).collect();
        wrong.then(|| format!("refused with floor {floor:.1e}, orders err by {}", reached.join(", ")))
    }

    /// The fault of the plan with an automatic method, if any.
    fn automatic(&self, tolerance: f64) -> Option<String> {
        let builder = self.builder.clone().method(Method::Auto).tolerance(tolerance);
        match builder.plan(&self.points, Targets::Sources) {
            Err(refused) => Some(format!("auto: {refused}")),
            Ok(plan) => {
                let (e, d) = (self.exact.error(&plan), plan.describe());
                let kept = e <= tolerance;
                (!kept).then(|| format!("auto: {} of order {:?} errs by {e:.1e}", d.method, d.order))
            }
        }
    }
}

/// Panics with all faults of the plans of one kernel. One of the four checks runs, or all with `FMM_EVERY_CASE`.
fn judge(what: &str, builder: Fmm, most: usize) {
    let case = Case::new(builder, most);
    let [coarse, fine] = TOLERANCES;
    let named: &dyn Fn(f64) -> Option<String> = &|tolerance| case.named(tolerance);
    let automatic: &dyn Fn(f64) -> Option<String> = &|tolerance| case.automatic(tolerance);
    let checks = [(coarse, named), (fine, named), (coarse, automatic), (fine, automatic)];
    let turn = strangers().iter().position(|s| s.what == what).unwrap_or_default();
    let chosen = checks.iter().enumerate().filter(|(k, _)| in_turn(turn + k, checks.len()));
    let found = chosen.filter_map(|(_, (t, check))| check(*t).map(|fault| format!("{t:.0e}: {fault}")));
    let mut wrong: Vec<String> = found.collect();
    if case.at(MIN_ORDER) <= TOLERANCES[1] {
        wrong.push(format!("order {MIN_ORDER} errs by {:.1e}: the far field does not matter", case.at(MIN_ORDER)));
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// The kernel with the name `what` in the tests.
fn stranger(what: &str) -> Stranger {
    strangers().into_iter().find(|s| s.what == what).unwrap()
}

/// Makes a test for each kernel, so that a failure names the kernel.
macro_rules! judged {
    ($($(#[$attribute:meta])* $test:ident: $what:literal),* $(,)?) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $test() {
                let Stranger { what, family, most, .. } = stranger($what);
                judge(what, Fmm::new(family), most);
            }
        )*

        #[test]
        fn every_stranger_is_judged() {
            let judged = [$($what),*].into_iter().chain(DISGUISED.map(|(_, disguised)| disguised));
            let sorted = |names: Vec<&'static str>| names.into_iter().collect::<std::collections::BTreeSet<_>>();
            assert_eq!(sorted(strangers().iter().map(|s| s.what).collect()), sorted(judged.collect()));
        }
    };
}
judged! {
    inverse_square: "1/r²",
    distance: "r",
    multiquadric: "√(r² + c²)",
    inverse_multiquadric: "1/√(r² + c²)",
    gauss: "exp(−r²/h²)",
    matern: "Matérn 3/2",
    stiff: "stiff in y",
    soft: "soft in y",
    wave: "cos(20r)/r",
    tent: "1 − r/h",
    large: "1e8/r",
    kelvin: "Kelvin",
    biot_and_savart: "Biot and Savart",
    magnet: "magnet",
}

/// Kernels, and the same kernels under the name of another kernel.
const DISGUISED: [(&str, &str); 2] =
    [("cos(20r)/r", "cos(20r)/r named laplace"), ("1e8/r", "Laplace named mixed_media")];

/// With built-in costs a plan reads nothing from the name of its kernel: not the method, the order, the leaves or a
/// measured error. (Costs measured by `fmm calibrate` are kept by name, and decide times only.)
#[test]
fn a_name_decides_nothing() {
    let decided = |what: &str, method: Method| {
        let builder = Fmm::new(stranger(what).family).method(method).ncrit(NCRIT).tolerance(TOLERANCES[0]);
        match builder.plan(&uniform(N, 31), Targets::Sources) {
            Ok(plan) => {
                let d = plan.describe();
                let probe = Probe::of(&d).map(|probe| format!("{:.6e} {:?}", probe.error(), probe.outputs.len()));
                format!("{} {:?} {} {:?} {probe:?}", d.method, d.order, d.boxes, d.edges)
            }
            Err(Error::ToleranceFloor { floor, .. }) => format!("refused with floor {floor:.6e}"),
            Err(e) => panic!("{what}: {e}"),
        }
    };
    for (honest, disguised) in DISGUISED {
        for method in [Method::EquivalentDensities, Method::Auto] {
            assert_eq!(decided(honest, method), decided(disguised, method), "{disguised}");
        }
    }
}

/// A plain user's kernel with its gradient.
#[test]
fn own_with_gradient() {
    judge("own", Fmm::custom(Own).outputs(both()), 16);
}

/// Checks that the kernels of the test bed state right facts.
#[test]
fn facts_are_true() {
    let wrong: Vec<String> = strangers().iter().filter_map(|s| (s.facts)().err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The list in the environment variable `name`, or the list `usual`.
fn listed(name: &str, usual: &str) -> Vec<String> {
    std::env::var(name).unwrap_or_else(|_| usual.to_string()).split(',').map(str::to_string).collect()
}

/// Prints a row of JSON for each kernel, cloud, precision and tolerance, for `benches/promise.py`. The variables
/// `PROMISE_KERNELS`, `PROMISE_CLOUDS`, `PROMISE_PRECISIONS` and `PROMISE_TOLERANCES` hold lists, `PROMISE_N` the
/// number of points.
#[test]
#[ignore = "prints rows for benches/promise.py"]
fn rows() {
    let all: Vec<&str> = strangers().iter().map(|s| s.what).collect();
    let kernels = listed("PROMISE_KERNELS", &all.join(","));
    let n: usize = listed("PROMISE_N", "20000")[0].parse().unwrap();
    for cloud in listed("PROMISE_CLOUDS", "uniform,ellipsoid") {
        let points = CloudKind::named(&cloud).unwrap().points(n, 1);
        for Stranger { what, family, .. } in strangers().into_iter().filter(|s| kernels.iter().any(|k| k == s.what)) {
            for precision in listed("PROMISE_PRECISIONS", "f64") {
                for tolerance in listed("PROMISE_TOLERANCES", "1e-2,1e-4,1e-6,1e-8") {
                    let tolerance: f64 = tolerance.parse().unwrap();
                    let row = row(&family, &points, &precision, tolerance);
                    println!("{}", merged(row, &[("kernel", what), ("cloud", &cloud), ("precision", &precision)]));
                }
            }
        }
    }
}

/// `row` with additional texts.
fn merged(mut row: serde_json::Value, texts: &[(&str, &str)]) -> serde_json::Value {
    texts.iter().for_each(|(key, text)| row[*key] = (*text).into());
    row
}

/// The row of one plan by equivalent densities for `benches/promise.py`.
fn row(family: &AnyFamily, points: &[f64], precision: &str, tolerance: f64) -> serde_json::Value {
    let precision = if precision == "f32" { Precision::F32 } else { Precision::F64 };
    let builder = Fmm::new(family.clone()).precision(precision).tolerance(tolerance);
    let builder = builder.method(Method::EquivalentDensities);
    let error = |plan: &Plan, samples: usize| Exact::new(Fmm::new(family.clone()), points, samples).error(plan);
    let components = builder.strengths().unwrap();
    let start = Instant::now();
    let plan = match builder.plan(points, Targets::Sources) {
        Ok(plan) => plan,
        Err(refused) => return serde_json::json!({ "tolerance": tolerance, "refused": refused.to_string() }),
    };
    let seconds = start.elapsed().as_secs_f64();
    let (n, d) = (plan.n_sources(), plan.describe());
    let probe = Probe::of(&d);
    let apply = plan.apply(&demo::strengths(n, components, 7)).unwrap().seconds;
    serde_json::json!({
        "tolerance": tolerance, "n": n, "method": d.method, "order": d.order,
        "error_all": error(&plan, n), "error_1000": error(&plan, SAMPLES),
        "probed": probe.as_ref().map(Probe::error), "below": probe.as_ref().and_then(Probe::below),
        "plan_s": seconds, "probe_s": probe.map(|p| p.seconds), "apply_s": apply,
    })
}
