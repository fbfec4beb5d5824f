//! Seconds of an evaluation: exact counts of boxes and edges, times unit costs.

use super::Costs;
use super::built_in::{
    BOXES, DEVICE_DIRECT_PAIR, DEVICE_EVALUATION, DEVICE_LEAF, DEVICE_OPERATIONS, DEVICE_PAIR, DEVICE_POINT,
    EVALUATION, HARMONIC, PLANE_EVALUATION, PLANE_PAIR, PLANE_POINT, TREECODE_LEAF,
};
use crate::mesh::Mesh;
use crate::parts::{Parts, Policy};
use crate::variant::Expansion;
use backend_cpu::Precision;
use fmm_families::Facts;
use fmm_kernels::equivalent::surface;

/// Numbers of an expansion that M2P and P2L evaluate at a point, each in the time of so much of a pair.
fn of_an_expansion(expansion: Expansion, order: usize) -> f64 {
    match expansion {
        Expansion::Equivalent => surface::len(order) as f64,
        Expansion::Spherical => HARMONIC * order.pow(2) as f64,
    }
}

impl Costs {
    /// Seconds of an evaluation on one core, from the counts of its lists.
    pub(crate) fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        let far = self.far(parts.expansion, order);
        let locals = if matches!(parts.policy, Policy::Treecode { .. }) { 0.5 } else { 1.0 };
        let nanoseconds = EVALUATION
            + self.pair * mesh.near_pairs as f64
            + self.leaves * mesh.edges.p2p as f64
            + locals * (0.5 * far.point * (points[0] + points[1]) as f64 + far.leaf * mesh.leaves as f64)
            + far.m2l * mesh.edges.m2l as f64
            + self.pair * of_an_expansion(parts.expansion, order) * mesh.far_points as f64;
        1e-9 * nanoseconds
    }
}

impl Costs {
    /// Seconds of a treecode with points everywhere, in pairs: a target sees [`BOXES`]/θ³ boxes, and sums nine pairs for each.
    pub(crate) fn treecode(&self, parts: &Parts, theta: f64, order: usize, [n, m]: [usize; 2]) -> f64 {
        let far = self.far(parts.expansion, order);
        let seen = BOXES / theta.powi(3) * (of_an_expansion(parts.expansion, order) + 9.0);
        let points = 0.25 * far.point * (n + m) as f64;
        1e-9 * (EVALUATION + points + self.pair * (m as f64 * seen).min(n as f64 * m as f64))
    }
}

/// Unit costs of a GPU, for one kernel and precision.
pub(crate) struct DeviceCosts<'a> {
    pub facts: &'a Facts,
    pub precision: Precision,
}

impl DeviceCosts<'_> {
    /// Nanoseconds of M2L and the translations of one box: 26·8 products of complex numbers a frequency, and
    /// 12·surface² operations, or 150 matrices of order² rows and columns in tiles of 64.
    fn far(&self, parts: &Parts, order: usize) -> f64 {
        let single = self.precision == Precision::F32;
        match parts.expansion {
            Expansion::Spherical => {
                300.0 * (order.pow(2) * order.pow(2).next_multiple_of(64)) as f64 / DEVICE_OPERATIONS[1]
            }
            Expansion::Equivalent => {
                let frequencies = ((2 * order - 1).pow(2) * order) as f64;
                let blocks = (self.facts.densities * self.facts.checks) as f64;
                let operations = (1664.0 * frequencies + 12.0 * (surface::len(order) as f64).powi(2)) * blocks;
                operations / DEVICE_OPERATIONS[usize::from(single)]
            }
        }
    }
    /// Numbers of a pair.
    fn numbers(&self) -> f64 {
        (self.facts.strengths + self.facts.values) as f64
    }
    /// Mean points of a leaf that balance near and far field, where a box meets 27 leaves.
    pub fn occupancy(&self, parts: &Parts, order: usize) -> f64 {
        match parts.policy {
            Policy::Treecode { .. } => TREECODE_LEAF,
            _ => (self.far(parts, order) / (27.0 * DEVICE_PAIR * self.numbers())).sqrt().max(DEVICE_LEAF),
        }
    }
    /// Seconds of direct summation.
    pub fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * DEVICE_DIRECT_PAIR * self.numbers() * n as f64 * m as f64
    }
    /// Seconds of a fast evaluation with `leaf` points a leaf and points everywhere.
    pub fn fast(&self, parts: &Parts, order: usize, leaf: f64, [n, m]: [usize; 2]) -> f64 {
        let leaves = n.max(m) as f64 / leaf;
        let pairs = 27.0 * leaf * n.max(m) as f64;
        self.total(parts, order, leaves, pairs, [n, m])
    }
    /// Seconds of a fast evaluation from the counts of its lists.
    pub fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        let pairs = mesh.near_pairs as f64 + of_an_expansion(parts.expansion, order) * mesh.far_points as f64;
        // Costs are those of a box with all 189 neighbours.
        let boxes = (mesh.edges.m2l as f64 / 189.0).max(0.1 * mesh.leaves as f64);
        self.total(parts, order, boxes, pairs, points)
    }
    fn total(&self, parts: &Parts, order: usize, boxes: f64, pairs: f64, [n, m]: [usize; 2]) -> f64 {
        let components = self.facts.densities.max(self.facts.strengths) as f64;
        let points = DEVICE_POINT * order as f64 * components * (n + m) as f64;
        1e-9 * (DEVICE_EVALUATION + points + boxes * self.far(parts, order) + pairs * DEVICE_PAIR * self.numbers())
    }
}

/// Unit costs of the plane, on one core.
pub(crate) struct PlaneCosts;

impl PlaneCosts {
    /// Seconds of direct summation.
    pub fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * PLANE_PAIR * n as f64 * m as f64
    }
    /// Seconds of a fast evaluation.
    pub fn fast(&self, order: usize, [n, m]: [usize; 2]) -> f64 {
        let [per_order, besides] = PLANE_POINT;
        1e-9 * (PLANE_EVALUATION + (besides + per_order * order as f64) * 0.5 * (n + m) as f64)
    }
}
