//! The cost of an evaluation: the model of Gumerov & Duraiswami (2008, §2.4) with the constants of a machine.
//!
//! With s points per leaf, N points have N/s leaves, and the time is (eq. 27)
//!
//! T = N (A₁ + A₂/s + B₁ s), smallest at s = √(A₂/B₁) (eq. 28).
//!
//! A₁ is the cost of a point in P2M and L2P. A₂ is the cost of a leaf whatever its points: 189 translations, and the
//! fixed cost of 27 pairs of leaves in P2P. B₁ is 27 times the cost of a pair of points, because a point meets s
//! points in each of 27 leaves. The constants here are the costs of single operations, so the same numbers serve
//! trees whose boxes have fewer neighbours.

mod built_in;
mod hybrid;
mod pair;
mod plane;
mod unit;

pub(crate) use built_in::{EVALUATION_NANOSECONDS, PLANE_THETA, ROUGH_NEAR_FIELD};
pub(crate) use hybrid::HybridPrices;
pub(crate) use plane::PlaneCosts;
pub(crate) use unit::UnitCosts;

use crate::mesh::Mesh;
use crate::parts::Parts;
use built_in::{
    IN_DIRECT_SUMS, INTERPRETED, OPERATIONS, OPERATORS_ON_A_DEVICE, OPERATORS_ON_CORES, Operations,
    SMALLEST_DEVICE_LEAF, SMALLEST_LEAF, TREECODE_ON_A_DEVICE, TREECODE_ON_CORES, costs, device_costs,
    device_operations,
};
use fmm_families::Facts;
use fmm_traits::{Error, Outputs, Precision, Tape};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Costs on one core or on a GPU, in nanoseconds. [`Method::Auto`](crate::Method::Auto) and the choice of leaf sizes
/// rest on these costs. The default model is built in and independent of the machine; [`CostModel::measure`] adds cases
/// measured on this machine. A cost model is plain data: a model stored in a file does not change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The machine on which the cases were measured. A plan that uses one of the cases reports this name.
    pub source: String,
    /// Measured cases. Costs of any other case are scaled from the built-in costs.
    pub cases: Vec<Costs>,
}

/// The costs of one kernel with its outputs in one precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Name of the GPU; `None` for one CPU core.
    pub device: Option<String>,
    /// Name of the family.
    pub kernel: String,
    /// `f32` or `f64`.
    pub precision: String,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// P2P: nanoseconds per pair of points.
    pub pair: f64,
    /// P2P: nanoseconds per pair of leaves, without their pairs of points.
    pub leaves: f64,
    /// Direct summation: nanoseconds per pair of points.
    pub direct: f64,
    /// Nanoseconds that an evaluation of a few points takes.
    pub evaluation: f64,
    /// Far field by equivalent densities, in ascending order p.
    pub equivalent: Vec<OrderCosts>,
    /// Far field by spherical harmonics, in ascending order p; empty if the kernel has no such expansion.
    pub spherical: Vec<OrderCosts>,
}

/// The costs of the far field at one order, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderCosts {
    /// Order p.
    pub order: usize,
    /// P2M and L2P: cost per point.
    pub point: f64,
    /// P2M, M2M, L2L and L2P: cost per leaf, without its points.
    pub leaf: f64,
    /// M2L: cost per pair of boxes.
    pub m2l: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel { source: BUILT_IN.to_string(), cases: Vec::new() }
    }
}

/// Prices of sums in space on one processor, for one kernel, set of outputs and precision.
pub(crate) trait Prices {
    /// Name of the cost model.
    fn source(&self) -> &str;
    /// Seconds of direct summation between `[sources, targets]` points.
    fn direct(&self, points: [usize; 2]) -> f64;
    /// Mean points per leaf that balance near and far field at an order.
    fn occupancy(&self, parts: &Parts, order: usize) -> f64;
    /// The smallest mean points per leaf that [`occupancy`](Self::occupancy) chooses.
    fn smallest_leaf(&self, parts: &Parts) -> f64;
    /// Seconds of a fast evaluation for points that fill a cube evenly, with `leaf` points per leaf. Infinite if the
    /// cost model has no costs for the expansion.
    fn forecast(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> f64;
    /// Seconds of a fast evaluation, from the counts of boxes and edges.
    fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64;
    /// Seconds to make the operators of all far fields of an order, for one level of the tree.
    fn operators(&self, parts: &Parts, order: usize) -> f64;
    /// Work in a part of a tree, in seconds that add up over the parts.
    fn work(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64;
}

/// Name of the built-in cost model.
pub(crate) const BUILT_IN: &str = "built-in";

impl CostModel {
    /// Refuses costs that make no sense: a file may hold any numbers.
    ///
    /// # Errors
    /// [`Error::Parameter`] with the wrong number.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |name, value, requirement| Err(Error::Parameter { name, value, requirement });
        for case in &self.cases {
            for (name, value) in [("costs: pair", case.pair), ("costs: direct", case.direct)] {
                if !(value > 0.0 && value.is_finite()) {
                    return refuse(name, value, "must be above 0");
                }
            }
            if case.equivalent.is_empty() {
                return refuse("costs: equivalent", 0.0, "must hold one order at least");
            }
            let rows = || case.equivalent.iter().chain(&case.spherical);
            let each = rows().flat_map(|r| [("costs: point", r.point), ("costs: leaf", r.leaf), ("costs: m2l", r.m2l)]);
            let fixed = [("costs: leaves", case.leaves), ("costs: evaluation", case.evaluation)];
            for (name, value) in fixed.into_iter().chain(each) {
                if !(value >= 0.0 && value.is_finite()) {
                    return refuse(name, value, "must not be negative");
                }
            }
            for rows in [&case.equivalent, &case.spherical] {
                if let Some(pair) = rows.windows(2).find(|w| w[0].order >= w[1].order) {
                    return refuse("costs: order", pair[1].order as f64, "must be above the one before");
                }
                if rows.first().is_some_and(|r| r.order == 0) {
                    return refuse("costs: order", 0.0, "must be at least 1");
                }
            }
        }
        Ok(())
    }

    /// The costs of a case on one core: the measured costs if there are any, else the built-in costs scaled to the
    /// kernel.
    pub(crate) fn of<'a>(
        &'a self,
        kernel: &str,
        precision: Precision,
        outputs: Outputs,
        facts: &'a Facts,
    ) -> UnitCosts<'a> {
        let (costs, source) = match self.case(None, kernel, precision, outputs) {
            Some(costs) => (Cow::Borrowed(costs), self.source.as_str()),
            None => {
                // f32 takes half the time.
                let half = if precision == Precision::F32 { 0.5 } else { 1.0 };
                let operations = if facts.interpreted { &INTERPRETED } else { &OPERATIONS };
                (Cow::Owned(scaled(costs(), half, facts, [operations; 2])), BUILT_IN)
            }
        };
        UnitCosts {
            costs,
            source,
            facts,
            of_treecode: TREECODE_ON_CORES,
            smallest_leaf: SMALLEST_LEAF,
            has_idle_operators: false,
            operators: OPERATORS_ON_CORES,
        }
    }

    /// Whether there are measured costs of a GPU.
    pub(crate) fn has_devices(&self) -> bool {
        self.cases.iter().any(|case| case.device.is_some())
    }

    /// The costs of a case on a GPU: the measured costs of the case on `device`. Else those of Laplace with both outputs
    /// there, or the built-in costs, scaled to the kernel.
    pub(crate) fn on_device<'a>(
        &'a self,
        device: Option<&str>,
        (kernel, precision, outputs): (&str, Precision, Outputs),
        facts: &'a Facts,
    ) -> UnitCosts<'a> {
        let of = |kernel, outputs| device.and_then(|name| self.case(Some(name), kernel, precision, outputs));
        let (both, operations) =
            (Outputs::POTENTIAL | Outputs::GRADIENT, [device_operations(precision), &IN_DIRECT_SUMS]);
        let named = |costs: &'a Costs| costs.device.as_deref().unwrap_or(&self.source);
        let (costs, source) = match (of(kernel, outputs), of("laplace", both)) {
            (Some(costs), _) => (Cow::Borrowed(costs), named(costs)),
            (None, Some(costs)) => (Cow::Owned(scaled(costs.clone(), 1.0, facts, operations)), named(costs)),
            (None, None) => (Cow::Owned(scaled(device_costs(precision), 1.0, facts, operations)), BUILT_IN),
        };
        UnitCosts {
            costs,
            source,
            facts,
            of_treecode: TREECODE_ON_A_DEVICE,
            smallest_leaf: SMALLEST_DEVICE_LEAF,
            has_idle_operators: true,
            operators: OPERATORS_ON_A_DEVICE,
        }
    }

    fn case(&self, device: Option<&str>, kernel: &str, precision: Precision, outputs: Outputs) -> Option<&Costs> {
        self.cases.iter().find(|c| {
            let same = (c.kernel.as_str(), c.precision.as_str()) == (kernel, precision.name());
            c.device.as_deref() == device && same && c.outputs == outputs.names()
        })
    }
}

/// Scales costs of Laplace with both outputs to another kernel, on a processor with these operations in pairs of P2P
/// and in direct sums. Pairs, and the points of equivalent densities, cost in proportion to the [work](pair::work) of
/// the kernels. Other costs of equivalent densities grow with the product of their components. `half` is a further
/// factor of all costs.
fn scaled(mut costs: Costs, half: f64, facts: &Facts, operations: [&Operations; 2]) -> Costs {
    let [strengths, values] = [facts.strengths, facts.values].map(|x| x as f64);
    let [near, check, far] = &facts.tapes[..] else { return costs };
    let times = |tape: &Tape, of: &Operations| half * pair::work(tape, of) / of.laplace()[1];
    costs.pair *= times(near, operations[0]);
    costs.direct *= times(near, operations[1]);
    let surface = [check, far].map(|tape| pair::work(tape, operations[0])).iter().sum::<f64>();
    let laplace = operations[0].laplace().iter().sum::<f64>();
    let [densities, checks] = [facts.densities, facts.checks].map(|x| x as f64);
    for row in &mut costs.equivalent {
        row.point *= half * surface / laplace;
        row.leaf *= half * densities * checks;
        row.m2l *= half * densities * checks;
    }
    for row in &mut costs.spherical {
        row.point *= half * 0.2 * (strengths + values);
        row.leaf *= half;
        row.m2l *= half;
    }
    costs
}

impl Costs {
    /// Costs of order p, by geometric interpolation between known orders and extrapolation beyond them.
    fn far(rows: &[OrderCosts], p: usize) -> OrderCosts {
        let Some(last) = rows.len().checked_sub(1) else {
            return OrderCosts { order: p, point: f64::INFINITY, leaf: f64::INFINITY, m2l: f64::INFINITY };
        };
        let b = rows.partition_point(|r| r.order < p).clamp(last.min(1), last);
        let (a, b) = (rows[b.saturating_sub(1)], rows[b]);
        let part = match a.order == b.order {
            true => 0.0,
            false => (p as f64 / a.order as f64).ln() / (b.order as f64 / a.order as f64).ln(),
        };
        let between = |x: f64, y: f64| x.max(1e-3).powf(1.0 - part) * y.max(1e-3).powf(part);
        OrderCosts {
            order: p,
            point: between(a.point, b.point),
            leaf: between(a.leaf, b.leaf),
            m2l: between(a.m2l, b.m2l),
        }
    }
}
