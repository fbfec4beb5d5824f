//! Tests that read a clock. They are ignored, because other work on the machine slows them; `scripts/timing-tests.sh`
//! runs them one by one.

use crate::{Own, both, uniform};
use fmm::{CostModel, Fmm, Kernel, Lane, Laplace, Method, OrderCosts, Targets, demo};
use fmm_traits::{Gradient, Hessian, Member, facts};

/// The shortest time of five evaluations, in seconds.
fn seconds(builder: Fmm, n: usize) -> f64 {
    let plan = builder.outputs(both()).plan(&uniform(n, 1), Targets::Sources).unwrap();
    let q = demo::strengths(n, 1, 1);
    (0..5).map(|_| plan.apply(&q).unwrap().seconds).fold(f64::INFINITY, f64::min)
}

/// With a gradient by dual numbers a pair takes little longer than with a gradient written by hand, because operations
/// on derivatives that are 0 are left out. The bound has room for noise; with those operations the direct sum of 1/r
/// exceeds it.
#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn an_own_kernel_is_nearly_as_fast_as_a_built_in_one() {
    let fast = |builder: Fmm| seconds(builder.order(6).method(Method::EquivalentDensities), 50_000);
    let direct = |builder: Fmm| seconds(builder.method(Method::Direct), 20_000);
    for (what, seconds) in [("equivalent densities", &fast as &dyn Fn(Fmm) -> f64), ("direct", &direct)] {
        let [own, built_in] = [Fmm::custom(Own), Fmm::new(Laplace)].map(seconds);
        println!("{what}: own {own:.4} s, built-in {built_in:.4} s");
        assert!(own < 1.45 * built_in, "{what}: {own} s against {built_in} s");
    }
}

/// Costs grow with the order like the operations: M2L from order 4 to the highest order by far more than 2.
#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn measured_costs_grow_with_the_order() {
    let mut model = CostModel::default();
    model.measure(&Fmm::new(Laplace).outputs(both())).unwrap();
    let costs = &model.cases[0];
    println!("{costs:?}");
    assert!(costs.pair > 0.01 && costs.pair < 1e3, "{costs:?}");
    for rows in [&costs.equivalent, &costs.spherical] {
        let [first, last] = [rows[0], rows[rows.len() - 1]];
        // On a busy machine, the split of costs between points and leaves is arbitrary.
        let of_a_leaf = |costs: &OrderCosts| 50.0 * costs.point + costs.leaf;
        assert!(first.m2l > 0.0 && last.m2l > 2.0 * first.m2l && of_a_leaf(&last) > of_a_leaf(&first), "{rows:?}");
    }
}

/// 1/r times the mean of sixteen parameters.
#[derive(Clone, Debug)]
struct Sixteen;

impl Kernel for Sixteen {
    const NAME: &'static str = "sixteen";
    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let mut sum = p[0];
        for k in 1..16 {
            sum = sum + p[k];
        }
        u[0] = q[0] * sum * V::splat(1.0 / 16.0) * (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn parameters(&self) -> Vec<f64> {
        (1..=16).map(|k| 0.1 * f64::from(k)).collect()
    }
}

/// Every plan tries the facts of its kernel, so that must cost next to nothing beside the smallest plan.
#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn facts_are_tried_in_microseconds() {
    let sixteen = Sixteen.parameters();
    let cases = [
        ("1/r", Member::of::<Laplace>(), vec![]),
        ("its gradient", Member::of::<Gradient<Laplace>>(), vec![]),
        ("its Hessian", Member::of::<Hessian<Laplace>>(), vec![]),
        ("sixteen parameters", Member::of::<Sixteen>(), sixteen.clone()),
        ("Hessian, sixteen parameters", Member::of::<Hessian<Sixteen>>(), sixteen),
    ];
    for (what, member, params) in cases {
        let once = |_| {
            let start = std::time::Instant::now();
            facts::check(std::slice::from_ref(&member), &params, 1.0).unwrap();
            start.elapsed().as_secs_f64()
        };
        let least = (0..20).map(once).fold(f64::INFINITY, f64::min);
        println!("{what}: {:.0} µs", 1e6 * least);
        assert!(least < 1e-3, "{what}: {least} s");
    }
}
