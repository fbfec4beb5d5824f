//! Prices from the unit costs of a [`CostModel`](crate::CostModel), on one CPU core or on a GPU.

use super::built_in::{SmallestLeaf, TREECODE_LEAF};
use super::{Costs, OrderCosts, Prices, pairs_in_a_treecode, pairs_of_an_expansion};
use crate::mesh::Mesh;
use crate::parts::Parts;
use crate::variant::Expansion;
use fmm_families::Facts;
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_traits::Policy;
use std::borrow::Cow;

/// The unit costs of one case, with the name of the processor on which they were measured.
pub(crate) struct UnitCosts<'a> {
    pub costs: Cow<'a, Costs>,
    pub source: &'a str,
    /// Facts of the kernel.
    pub facts: &'a Facts,
    /// Mean points per leaf of a treecode with spherical harmonics.
    pub treecode_leaf: f64,
    /// Smallest mean points per leaf.
    pub smallest_leaf: SmallestLeaf,
    /// Whether M2L of lattices transforms and multiplies the spectra of whole families, absent children included.
    pub by_families: bool,
}

impl UnitCosts<'_> {
    /// Costs of the far fields at order p: so many times those of one.
    fn far(&self, parts: &Parts, p: usize) -> OrderCosts {
        let (one, fields) = (self.far_field(parts, p), parts.fields() as f64);
        OrderCosts { order: p, point: fields * one.point, leaf: fields * one.leaf, m2l: fields * one.m2l }
    }

    /// Costs of a far field at order p. All lattices have the transforms of surfaces in space, with more or fewer
    /// points, and in the plane fewer frequencies and half the children. The cost per leaf is that of transforms and of
    /// products of matrices, in which points count once and twice.
    fn far_field(&self, parts: &Parts, p: usize) -> OrderCosts {
        let Some(lattice) = parts.lattice(p) else { return Costs::far(&self.costs.spherical, p) };
        let row = Costs::far(&self.costs.equivalent, p);
        if lattice == Lattice::surface(p) {
            return row;
        }
        let components = |fill| self.facts.densities_and_checks(fill).map(|c| c as f64);
        let (own, surface) = (components(lattice.fill), components(Fill::Surface));
        let points = lattice.len() as f64 / Lattice::surface(p).len() as f64;
        let products = own[0] * own[1] / (surface[0] * surface[1]);
        let sums = (own[0] + own[1]) / (surface[0] + surface[1]);
        let frequencies = if lattice.dim == 3 { 1.0 } else { 2.0 / (2 * p - 1) as f64 };
        OrderCosts {
            order: p,
            point: row.point * points * sums,
            leaf: row.leaf * points.powf(1.5) * products,
            m2l: row.m2l * products * frequencies,
        }
    }

    /// Seconds of the far field and of the near field of a treecode for points that fill a cube or a square evenly.
    fn treecode(&self, parts: &Parts, theta: f64, order: usize, [n, m]: [usize; 2]) -> [f64; 2] {
        let far = self.far(parts, order);
        let of_target = pairs_in_a_treecode(theta, parts, order);
        let pairs = (m as f64 * of_target[0], m as f64 * of_target[1]);
        let most = (n as f64 * m as f64 / (pairs.0 + pairs.1)).min(1.0);
        let points = 0.25 * far.point * (n + m) as f64;
        [points + most * self.costs.pair * pairs.0, most * self.costs.pair * pairs.1].map(|x| 1e-9 * x)
    }

    /// Seconds of the far field and of the near field of the FMM by eq. 27 for points that fill a cube or a square evenly.
    /// Boxes at its faces have fewer neighbours.
    fn multipole(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        let (costs, far) = (&self.costs, self.far(parts, order));
        let [n, m] = points.map(|k| k as f64);
        let leaves = (n.max(m) / leaf).max(1.0);
        let (side, dim) = (leaves.powf(1.0 / parts.dim as f64), parts.dim as i32);
        let near = (3.0 - 2.0 / side).powi(dim);
        let across = ((6.0 - 8.0 / side).max(0.0).powi(dim) - near).max(0.0);
        let points = 0.5 * (n + m) * far.point;
        let pairs = near * (costs.leaves * leaves + costs.pair * n * m / leaves);
        // No finite costs: the cost model has none for the expansion.
        let boxes = if far.m2l.is_infinite() { f64::INFINITY } else { far.leaf + across * far.m2l };
        [points + leaves * boxes, pairs].map(|x| 1e-9 * x)
    }

    /// Seconds of the far field and of the near field of a fast evaluation, as in [`Prices::forecast`].
    pub fn forecast_of_fields(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        match parts.policy {
            Policy::Treecode { theta } => self.treecode(parts, theta, order, points),
            Policy::Uvwx | Policy::Stencil119 => self.multipole(parts, order, leaf, points),
        }
    }

    /// Seconds of the far field and of the near field of a fast evaluation, as in [`Prices::price`].
    pub fn price_of_fields(&self, parts: &Parts, order: usize, mesh: &Mesh, [n, m]: [usize; 2]) -> [f64; 2] {
        let (costs, far) = (&self.costs, self.far(parts, order));
        let locals = if matches!(parts.policy, Policy::Treecode { .. }) { 0.5 } else { 1.0 };
        let near = costs.pair * mesh.near_pairs as f64 + costs.leaves * mesh.edges.p2p as f64;
        let absent = if self.by_families && parts.lattice(order).is_some() { mesh.absent(parts.dim) } else { 1.0 };
        let far = locals * (0.5 * far.point * (n + m) as f64 + absent * far.leaf * mesh.leaves as f64)
            + absent.powi(2) * far.m2l * mesh.edges.m2l as f64
            + costs.pair * pairs_of_an_expansion(parts, order) * mesh.far_points as f64;
        [far, near].map(|x| 1e-9 * x)
    }

    /// Seconds of an evaluation whose fields take so many seconds.
    fn whole(&self, [far, near]: [f64; 2]) -> f64 {
        1e-9 * self.costs.evaluation + far + near
    }
}

impl Prices for UnitCosts<'_> {
    fn source(&self) -> &str {
        self.source
    }

    fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * self.costs.direct * n as f64 * m as f64
    }

    /// Eq. 28. A treecode has no M2L to balance, so its leaf size is a constant.
    fn occupancy(&self, parts: &Parts, order: usize) -> f64 {
        match (parts.policy, parts.expansion) {
            (Policy::Treecode { .. }, Expansion::Spherical) => self.treecode_leaf,
            (Policy::Treecode { .. }, _) => TREECODE_LEAF,
            _ => {
                let (costs, far) = (&self.costs, self.far(parts, order));
                // The boxes around a box, and those of its V list.
                let near = 3f64.powi(parts.dim as i32);
                let across = 6f64.powi(parts.dim as i32) - near;
                let boxes = far.leaf + across * far.m2l + near * costs.leaves;
                (boxes / (near * costs.pair)).sqrt().max(self.smallest_leaf(parts))
            }
        }
    }

    fn smallest_leaf(&self, parts: &Parts) -> f64 {
        let SmallestLeaf { curves, volumes, others } = self.smallest_leaf;
        match parts.expansion {
            Expansion::Interpolation => volumes,
            Expansion::Equivalent if parts.dim == 2 => curves,
            Expansion::Equivalent | Expansion::Spherical => others,
        }
    }

    fn forecast(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> f64 {
        self.whole(self.forecast_of_fields(parts, order, leaf, points))
    }

    fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        self.whole(self.price_of_fields(parts, order, mesh, points))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::CostModel;
    use crate::mesh::Edges;
    use crate::parts::parts;
    use crate::request::Method;
    use crate::variant::Variant;
    use fmm_families::AnyFamily;
    use fmm_kernels::Laplace;
    use fmm_traits::{Outputs, Precision};

    /// On a GPU, absent children of families cost as much as those that are there.
    #[test]
    fn m2l_on_a_surface_costs_more_for_an_edge() {
        let (model, outputs) = (CostModel::default(), Outputs::POTENTIAL | Outputs::GRADIENT);
        let facts = AnyFamily::from(Laplace).facts(outputs).unwrap();
        let device = model.on_device(None, ("laplace", Precision::F32, outputs), &facts);
        let cores = model.of("laplace", Precision::F32, outputs, &facts);
        let of = |method| parts(&Variant::default(), method, 3, &facts.harmonic).unwrap();
        let mesh = |boxes, leaves| Mesh {
            boxes,
            leaves,
            edges: Edges { m2l: 1 << 20, ..Edges::default() },
            ..Mesh::default()
        };
        // Eight children of each box, and eight of the root but four of each other box.
        let (volume, surface) = (mesh(1 + 8 + 64 + 512, 512), mesh(1 + 8 + 32 + 128, 128));
        assert_eq!((volume.absent(3), mesh(1, 1).absent(3)), (1.0, 1.0));
        let absent = surface.absent(3);
        assert!((absent - 8.0 * 41.0 / 168.0).abs() < 1e-12);
        for (costs, method, factor) in [
            (&device, Method::EquivalentDensities, absent),
            (&device, Method::SphericalHarmonics, 1.0),
            (&cores, Method::EquivalentDensities, 1.0),
        ] {
            let (parts, order) = (of(method), 6);
            let far = costs.far(&parts, order);
            let price = |mesh| costs.price_of_fields(&parts, order, mesh, [0, 0])[0];
            let expected = 1e-9 * (factor * far.leaf * 128.0 + factor.powi(2) * far.m2l * (1 << 20) as f64);
            assert!((price(&surface) / expected - 1.0).abs() < 1e-12, "{method:?}");
            let expected = 1e-9 * (far.leaf * 512.0 + far.m2l * (1 << 20) as f64);
            assert!((price(&volume) / expected - 1.0).abs() < 1e-12, "{method:?}");
        }
    }
}
