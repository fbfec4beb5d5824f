//! Tests that read a clock. They are ignored, because other work on the machine slows them; `scripts/timing-tests.sh`
//! runs them one by one.

use crate::{Own, both, uniform};
use fmm::{CostModel, Fmm, Laplace, Method, OrderCosts, Targets, demo};

/// The shortest time of five evaluations, in seconds.
fn seconds(builder: Fmm, n: usize) -> f64 {
    let builder = builder.order(6).outputs(both()).method(Method::EquivalentDensities);
    let plan = builder.plan(&uniform(n, 1), Targets::Sources).unwrap();
    let q = demo::strengths(n, 1, 1);
    (0..5).map(|_| plan.apply(&q).unwrap().seconds).fold(f64::INFINITY, f64::min)
}

/// A gradient by dual numbers costs as much as a gradient written by hand, because the compiler finds common
/// subexpressions. A kernel that is not inlined takes 20 times as long.
#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn an_own_kernel_is_as_fast_as_a_built_in_one() {
    let [own, built_in] = [Fmm::custom(Own), Fmm::new(Laplace)].map(|builder| seconds(builder, 50_000));
    println!("own {own:.4} s, built-in {built_in:.4} s");
    assert!(own < 2.0 * built_in, "{own} s against {built_in} s");
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
