//! A candidate at an order: what an engine is made of.

use crate::candidates::{self, Candidate, Goal, Layout, Task};
use crate::request::Method;
use adaptive2d::laurent;
use backend_cpu::Isa;
use fmm_families::Facts;
use std::ops::RangeInclusive;

/// A method with all that its engine must know.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub facts: Facts,
    /// How; never [`Method::Auto`].
    pub method: Method,
    pub why: String,
    /// Name of the costs that this was chosen by.
    pub costs: String,
    pub tolerance: Option<f64>,
    /// None when the sum is direct.
    pub order: Option<usize>,
    pub layout: Layout,
    pub isa: Isa,
    pub threads: usize,
    /// Mean points of a leaf; in the plane the desired population.
    pub occupancy: f64,
    /// Bytes of the plan and one evaluation.
    pub forecast: u64,
}

impl Choice {
    /// A candidate at an order.
    pub fn of(task: &Task, candidate: &Candidate, order: usize) -> Choice {
        let direct = candidate.method == Method::Direct;
        Choice {
            facts: task.facts.clone(),
            method: candidate.method,
            why: String::new(),
            costs: candidate.costs.clone(),
            tolerance: match task.goal {
                Goal::Order(_) => None,
                Goal::Tolerance(e) | Goal::Usual(e) => Some(e),
            },
            order: (!direct).then_some(order),
            layout: candidate.layout,
            isa: task.isa,
            threads: task.threads,
            occupancy: candidate.occupancy,
            forecast: 0,
        }
    }
}

impl Choice {
    /// The opening angle of a treecode, or θ of the criterion of separation.
    pub fn theta(&self) -> Option<f64> {
        match &self.layout {
            Layout::Octree(parts) => parts.policy.theta(),
            Layout::Pyramid { theta, .. } => Some(*theta),
        }
    }
    /// Orders there are.
    pub fn orders(&self) -> RangeInclusive<usize> {
        match &self.layout {
            Layout::Octree(parts) => candidates::orders(parts.expansion),
            Layout::Pyramid { .. } => 1..=laurent::MAX_ORDER,
        }
    }
    /// Digits that an order is taken to be worth before two were measured.
    pub fn digits(&self) -> f64 {
        match &self.layout {
            Layout::Octree(parts) => candidates::convergence(parts)[0],
            Layout::Pyramid { theta, .. } => -theta.log10(),
        }
    }
}
