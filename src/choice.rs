//! The choice behind an engine: a candidate with its order.

use crate::candidates::{self, Candidate, Layout, Task};
use crate::memory::Forecast;
use crate::request::Method;
use adaptive2d::laurent;
use backend_cpu::Isa;
use fmm_families::Facts;
use std::ops::RangeInclusive;

/// A method, with the options that its engine needs.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub facts: Facts,
    /// The method; never [`Method::Auto`].
    pub method: Method,
    pub why: String,
    /// Name of the cost model that selected the method.
    pub costs: String,
    pub tolerance: Option<f64>,
    /// `None` for direct summation.
    pub order: Option<usize>,
    pub layout: Layout,
    pub isa: Isa,
    pub threads: usize,
    /// Mean points per leaf; in the plane the desired population.
    pub occupancy: f64,
    /// Forecast bytes of the plan and one evaluation.
    pub forecast: Forecast,
}

impl Choice {
    /// The choice of `candidate` with `order`.
    pub fn of(task: &Task, candidate: &Candidate, order: usize) -> Choice {
        let direct = candidate.method == Method::Direct;
        Choice {
            facts: task.facts.clone(),
            method: candidate.method,
            why: String::new(),
            costs: candidate.costs.clone(),
            tolerance: task.goal.tolerance(),
            order: (!direct).then_some(order),
            layout: candidate.layout,
            isa: task.isa,
            threads: task.threads,
            occupancy: candidate.occupancy,
            forecast: Forecast::default(),
        }
    }
}

impl Choice {
    /// The opening angle of a treecode; in the plane the θ of the criterion of separation.
    pub fn theta(&self) -> Option<f64> {
        match &self.layout {
            Layout::Octree(parts) => parts.policy.theta(),
            Layout::Pyramid { theta, .. } => Some(*theta),
        }
    }
    /// The orders that the expansion supports; 0 for direct summation.
    pub fn orders(&self) -> RangeInclusive<usize> {
        match &self.layout {
            _ if self.method == Method::Direct => 0..=0,
            Layout::Octree(parts) => candidates::orders(parts),
            Layout::Pyramid { .. } => 1..=laurent::MAX_ORDER,
        }
    }
    /// Assumed digits gained per order, until the probe has measured two orders.
    pub fn digits(&self) -> f64 {
        match &self.layout {
            Layout::Octree(parts) => candidates::convergence(parts)[0],
            Layout::Pyramid { theta, .. } => -theta.log10(),
        }
    }
}
