//! Prices on a GPU.

use super::built_in::{
    DEVICE_DIRECT_PAIR_NANOSECONDS, DEVICE_EVALUATION_NANOSECONDS, DEVICE_LEAF, DEVICE_OPERATIONS,
    DEVICE_PAIR_NANOSECONDS, DEVICE_POINT_NANOSECONDS, TREECODE_LEAF,
};
use super::{BUILT_IN, Prices, pairs_in_a_treecode, pairs_of_an_expansion};
use crate::mesh::Mesh;
use crate::parts::Parts;
use fmm_families::Facts;
use fmm_kernels::equivalent::Lattice;
use fmm_traits::{Policy, Precision};

/// The unit costs of a GPU for one kernel and precision.
pub(crate) struct DeviceCosts<'a> {
    pub facts: &'a Facts,
    pub precision: Precision,
}

impl DeviceCosts<'_> {
    /// Nanoseconds of M2L and the other translations of one box. Equivalent densities: 26·8 complex products per
    /// frequency, and 12·points² operations. Spherical harmonics: 150 matrices of order² rows and columns, in tiles of
    /// 64.
    fn far(&self, parts: &Parts, order: usize) -> f64 {
        let single = self.precision == Precision::F32;
        match parts.expansion.lattice(order) {
            None => 300.0 * (order.pow(2) * order.pow(2).next_multiple_of(64)) as f64 / DEVICE_OPERATIONS[1],
            Some(lattice) => {
                let frequencies = ((2 * order - 1).pow(2) * order) as f64;
                let blocks = self.facts.densities_and_checks(lattice.fill).iter().product::<usize>() as f64;
                let operations = (1664.0 * frequencies + 12.0 * (lattice.len() as f64).powi(2)) * blocks;
                operations / DEVICE_OPERATIONS[usize::from(single)]
            }
        }
    }

    /// Nanoseconds of a pair.
    fn pair(&self) -> f64 {
        DEVICE_PAIR_NANOSECONDS[usize::from(self.precision == Precision::F32)] * self.numbers()
    }

    /// Strengths and values of a pair.
    fn numbers(&self) -> f64 {
        (self.facts.strengths + self.facts.values) as f64
    }

    /// Seconds of an evaluation with the given numbers of boxes and pairs.
    fn total(&self, parts: &Parts, order: usize, boxes: f64, pairs: f64, [n, m]: [usize; 2]) -> f64 {
        let (densities, more) = match parts.expansion.lattice(order) {
            Some(lattice) => {
                let more = lattice.len() as f64 / Lattice::surface(order).len() as f64;
                (self.facts.densities_and_checks(lattice.fill)[0], more)
            }
            None => (self.facts.densities, 1.0),
        };
        let components = densities.max(self.facts.strengths) as f64;
        let points = DEVICE_POINT_NANOSECONDS * order as f64 * more * components * (n + m) as f64;
        1e-9 * (DEVICE_EVALUATION_NANOSECONDS + points + boxes * self.far(parts, order) + pairs * self.pair())
    }
}

impl Prices for DeviceCosts<'_> {
    fn source(&self) -> &str {
        BUILT_IN
    }

    fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * DEVICE_DIRECT_PAIR_NANOSECONDS * self.numbers() * n as f64 * m as f64
    }

    /// Balances the far field of a box against its pairs with 27 leaves.
    fn occupancy(&self, parts: &Parts, order: usize) -> f64 {
        match parts.policy {
            Policy::Treecode { .. } => TREECODE_LEAF,
            _ => (self.far(parts, order) / (27.0 * self.pair())).sqrt().max(DEVICE_LEAF),
        }
    }

    fn forecast(&self, parts: &Parts, order: usize, leaf: f64, [n, m]: [usize; 2]) -> f64 {
        let leaves = n.max(m) as f64 / leaf;
        match parts.policy {
            Policy::Treecode { theta } => {
                let pairs = m as f64 * pairs_in_a_treecode(theta, parts.expansion, order);
                self.total(parts, order, 0.1 * leaves, pairs.min(n as f64 * m as f64), [n, m])
            }
            Policy::Uvwx | Policy::Stencil119 => {
                self.total(parts, order, leaves, 27.0 * leaf * n.max(m) as f64, [n, m])
            }
        }
    }

    fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        let pairs = mesh.near_pairs as f64 + pairs_of_an_expansion(parts.expansion, order) * mesh.far_points as f64;
        // The cost of a box assumes all 189 neighbours.
        let boxes = (mesh.edges.m2l as f64 / 189.0).max(0.1 * mesh.leaves as f64);
        self.total(parts, order, boxes, pairs, points)
    }
}
