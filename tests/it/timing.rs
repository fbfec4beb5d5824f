//! What reads a clock: ignored, since other work on the machine slows any of it. `scripts/timing-tests.sh` runs them one by one.

use crate::{Own, both, uniform};
use fmm::{CostModel, Fmm, Laplace, Method, OrderCosts, Targets, demo};

/// The least seconds of an evaluation, of five.
fn seconds(builder: Fmm, n: usize) -> f64 {
    let builder = builder.order(6).outputs(both()).method(Method::EquivalentDensities);
    let plan = builder.plan(&uniform(n, 1), Targets::Sources).unwrap();
    let q = demo::strengths(n, 1, 1);
    (0..5).map(|_| plan.apply(&q).unwrap().seconds).fold(f64::INFINITY, f64::min)
}

/// Dual numbers cost what a gradient by hand costs: the compiler finds what they share. A kernel that was not inlined takes 20 times
/// as long.
#[test]
#[ignore = "a clock: scripts/timing-tests.sh"]
fn an_own_kernel_is_as_fast_as_a_built_in_one() {
    let [own, built_in] = [Fmm::custom(Own), Fmm::new(Laplace)].map(|builder| seconds(builder, 50_000));
    println!("own {own:.4} s, built-in {built_in:.4} s");
    assert!(own < 2.0 * built_in, "{own} s against {built_in} s");
}

/// Costs grow with the order, as operations do: M2L from order 4 to the highest one by far more than 2.
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
        // How a busy machine splits them between points and leaves is another matter.
        let of_a_leaf = |costs: &OrderCosts| 50.0 * costs.point + costs.leaf;
        assert!(first.m2l > 0.0 && last.m2l > 2.0 * first.m2l && of_a_leaf(&last) > of_a_leaf(&first), "{rows:?}");
    }
}
