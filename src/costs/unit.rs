//! Prices from the unit costs of a [`CostModel`](crate::CostModel), on one CPU core or on a GPU.

use super::built_in::{
    HarmonicTreecode, IDLE_IN_FAMILIES, IDLE_IN_TILES, OperatorCosts, PAIRS_PER_HARMONIC, SmallestLeaf, TREECODE_LEAF,
};
use super::{Costs, OrderCosts, Prices};
use crate::mesh::Mesh;
use crate::parts::Parts;
use crate::variant::{Expansion, Truncation};
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
    pub of_treecode: HarmonicTreecode,
    /// Smallest mean points per leaf.
    pub smallest_leaf: SmallestLeaf,
    /// Whether M2L takes time for operators of which a box has no edge, as on a GPU ([`IDLE_IN_TILES`]).
    pub has_idle_operators: bool,
    /// What it takes to make operators.
    pub operators: OperatorCosts,
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

    /// Time of M2P or P2L for one point and one box, in units of the time of a pair of points.
    fn pairs_of_an_expansion(&self, parts: &Parts, order: usize) -> f64 {
        let of_harmonic = match parts.policy {
            Policy::Treecode { .. } if parts.truncation == Truncation::Variable => self.of_treecode.pairs_per_harmonic,
            _ => PAIRS_PER_HARMONIC,
        };
        match parts.lattice(order) {
            Some(lattice) => (parts.fields() * lattice.len()) as f64,
            None => of_harmonic * order.pow(2) as f64,
        }
    }

    /// Seconds of the far field and of the near field of a treecode for points that fill a cube or a square evenly. A
    /// target sums [`near_leaves`] pair by pair, and on each level meets about 3ᵈ/θᵈ boxes, fewer near the root (counted
    /// for 3·10⁴ to 2²⁴ points and θ from 0.5 to 1; the fit errs by up to a fifth).
    fn treecode(&self, parts: &Parts, theta: f64, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        let (costs, far, dim) = (&self.costs, self.far(parts, order), parts.dim as i32);
        let [n, m] = points.map(|k| k as f64);
        let leaves = (n.max(m) / leaf).max(1.0);
        let side = leaves.powf(1.0 / f64::from(dim));
        let near = near_leaves(theta, dim, side);
        let boxes = (3.0 / theta).powi(dim) * (side.log2() - 0.5 / theta).max(0.0);
        // A box has one leaf at least.
        let boxes = boxes.min(leaves - near).max(0.0);
        let seconds = [
            0.25 * far.point * (n + m) + costs.pair * self.pairs_of_an_expansion(parts, order) * m * boxes,
            near * (costs.leaves * leaves + costs.pair * n * m / leaves),
        ];
        seconds.map(|x| 1e-9 * x)
    }

    /// Seconds of the far field and of the near field of the FMM by eq. 27 for points that fill a cube or a square evenly.
    /// Boxes at its faces have fewer neighbours.
    fn multipole(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        let (costs, far) = (&self.costs, self.far(parts, order));
        let [n, m] = points.map(|k| k as f64);
        let leaves = (n.max(m) / leaf).max(1.0);
        let (side, dim) = (leaves.powf(1.0 / parts.dim as f64), parts.dim as i32);
        let (near, across) = (around(side, dim), across(side, dim));
        let points = 0.5 * (n + m) * far.point;
        let pairs = near * (costs.leaves * leaves + costs.pair * n * m / leaves);
        // No finite costs: the cost model has none for the expansion.
        let boxes = if far.m2l.is_infinite() { f64::INFINITY } else { far.leaf + across * far.m2l };
        [points + leaves * boxes, pairs].map(|x| 1e-9 * x)
    }

    /// Seconds of the far field and of the near field of a fast evaluation, as in [`Prices::forecast`].
    pub fn forecast_of_fields(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        match parts.policy {
            Policy::Treecode { theta } => self.treecode(parts, theta, order, leaf, points),
            Policy::Uvwx | Policy::Stencil119 => self.multipole(parts, order, leaf, points),
        }
    }

    /// Seconds of the far field and of the near field of a fast evaluation, as in [`Prices::price`].
    pub fn price_of_fields(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> [f64; 2] {
        self.fields(parts, order, mesh, points, self.translations(parts, order, mesh))
    }

    /// As [`price_of_fields`](Self::price_of_fields), with a number of M2L translations.
    fn fields(&self, parts: &Parts, order: usize, mesh: &Mesh, [n, m]: [usize; 2], translations: f64) -> [f64; 2] {
        let (costs, far) = (&self.costs, self.far(parts, order));
        let locals = if matches!(parts.policy, Policy::Treecode { .. }) { 0.5 } else { 1.0 };
        let near = costs.pair * mesh.near_pairs as f64 + costs.leaves * mesh.edges.p2p as f64;
        let far = locals * (0.5 * far.point * (n + m) as f64 + far.leaf * mesh.leaves as f64)
            + far.m2l * translations
            + costs.pair * self.pairs_of_an_expansion(parts, order) * mesh.far_points as f64;
        [far, near].map(|x| 1e-9 * x)
    }

    /// M2L of a tree, as the number of edges of a full cube (or square) that take as long. On cores this is the number of edges.
    /// On a GPU it is (1 − idle) · edges + idle · (edges that as many boxes have in a full cube). For lattices the boxes are those
    /// of whole families: absent children count.
    fn translations(&self, parts: &Parts, order: usize, mesh: &Mesh) -> f64 {
        let (edges, dim) = (mesh.edges.m2l as f64, parts.dim as i32);
        if !self.has_idle_operators || mesh.edges.m2l == 0 {
            return edges;
        }
        // About the boxes that receive: those with an L2L edge, or in a tree of two levels the leaves.
        let boxes = mesh.edges.l2l.max(mesh.edges.l2p) as f64;
        let (idle, boxes) = match parts.lattice(order) {
            Some(_) => {
                let (families, children) = (mesh.boxes.saturating_sub(mesh.leaves), mesh.boxes.saturating_sub(1));
                (IDLE_IN_FAMILIES, boxes * 2f64.powi(dim) * families.max(1) as f64 / children.max(1) as f64)
            }
            None => (IDLE_IN_TILES, boxes),
        };
        let stencil = if parts.policy == Policy::Stencil119 { 119.0 / 189.0 } else { 1.0 };
        let side = (mesh.leaves.max(1) as f64).powf(1.0 / f64::from(dim));
        (1.0 - idle) * edges + idle * stencil * boxes * across(side, dim)
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
            (Policy::Treecode { .. }, Expansion::Spherical) => self.of_treecode.leaf,
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

    fn operators(&self, parts: &Parts, order: usize) -> f64 {
        let p = order as f64;
        let one = match (self.operators, parts.expansion.fill()) {
            (OperatorCosts::Pairs { .. }, None) => 0.0,
            (OperatorCosts::Pairs { surface, .. }, Some(Fill::Surface)) => self.direct([1, 1]) * surface * p.powi(5),
            (OperatorCosts::Pairs { volume, .. }, Some(Fill::Volume)) => self.direct([1, 1]) * volume * p.powi(5),
            (OperatorCosts::Nanoseconds { harmonics, .. }, None) => match parts.policy {
                Policy::Treecode { .. } => 0.0,
                Policy::Uvwx | Policy::Stencil119 => 1e-9 * harmonics * p.powi(4),
            },
            (OperatorCosts::Nanoseconds { densities, .. }, Some(fill)) => {
                let components = self.facts.densities_and_checks(fill).iter().product::<usize>() as f64;
                let points = parts.lattice(order).map_or(0.0, |lattice| lattice.len() as f64);
                1e-9 * densities * components * points.powi(2)
            }
        };
        parts.fields() as f64 * one
    }

    fn forecast(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> f64 {
        self.whole(self.forecast_of_fields(parts, order, leaf, points))
    }

    fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        self.whole(self.price_of_fields(parts, order, mesh, points))
    }

    /// Prices M2L by its edges alone. The time of idle operators depends on the leaves of the whole tree, so it does not add up over
    /// parts.
    fn work(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        self.fields(parts, order, mesh, points, mesh.edges.m2l as f64).iter().sum()
    }
}

/// Mean number of boxes that a box and its neighbours are, in a full cube or square with `side` boxes along a side.
fn around(side: f64, dim: i32) -> f64 {
    (3.0 - 2.0 / side).powi(dim)
}

/// Mean number of boxes in the V list of a box, in a full cube or square with `side` boxes along a side.
fn across(side: f64, dim: i32) -> f64 {
    ((6.0 - 8.0 / side).max(0.0).powi(dim) - around(side, dim)).max(0.0)
}

/// Mean number of leaves that a leaf of a treecode sums pair by pair, in a full cube or square with so many leaves along a
/// `side`. A box k sides away is seen as a whole if θ (k − 1/2) is at least 1. Boxes in the corners of that reach are farther
/// away, which counts unless the reach is the nearest boxes or covers the whole cube.
fn near_leaves(theta: f64, dim: i32, side: f64) -> f64 {
    let reach = ((1.0 / theta + 0.5).ceil() - 1.0).clamp(1.0, side);
    let row = (2.0 * reach + 1.0 - reach * (reach + 1.0) / side).clamp(1.0, side);
    let corners = if reach > 1.0 { 0.8f64.powi(dim - 1) } else { 1.0 };
    (row.powi(dim) * (corners + (1.0 - corners) * reach / side)).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::CostModel;
    use crate::mesh::Edges;
    use crate::parts::parts;
    use crate::request::Method;
    use crate::request::Method::{EquivalentDensities, Interpolation, SphericalHarmonics};
    use crate::variant::Variant;
    use fmm_families::AnyFamily;
    use fmm_kernels::Laplace;
    use fmm_traits::Precision::{F32, F64};
    use fmm_traits::{Outputs, Precision};

    /// Leaves counted in trees of 2¹⁸ and 2²⁴ uniform points, of 2²⁰ points in the plane, and by the rule in small cubes.
    #[test]
    fn near_leaves_of_a_treecode_are_those_of_a_full_cube() {
        for (theta, dim, side, counted) in [
            (1.0, 3, 20.0, 24.4),
            (0.7, 3, 64.0, 26.2),
            (0.6, 3, 20.0, 69.8),
            (0.5, 3, 20.0, 69.8),
            (0.5, 2, 128.0, 20.7),
        ] {
            let near = near_leaves(theta, dim, side);
            assert!((near / counted - 1.0).abs() < 0.1, "θ = {theta} in {dim} dimensions: {near} for {counted}");
        }
        assert_eq!(near_leaves(0.5, 3, 1.0), 1.0);
    }

    /// Times to make the operators of one order on one NVIDIA H200: method, order, and milliseconds less the 3 that every order
    /// takes (`runs/2026-11-28-h200/operators-by-order.txt`, plans that measured one order).
    const MEASURED_OPERATORS: [(Method, usize, f64); 6] = [
        (SphericalHarmonics, 13, 8.8),
        (SphericalHarmonics, 19, 41.0),
        (EquivalentDensities, 7, 3.0),
        (EquivalentDensities, 8, 5.0),
        (Interpolation, 8, 10.6),
        (Interpolation, 9, 23.3),
    ];

    #[test]
    fn operators_cost_what_they_take_on_a_device() {
        let (model, outputs) = (CostModel::default(), Outputs::POTENTIAL | Outputs::GRADIENT);
        let facts = AnyFamily::from(Laplace).facts(outputs).unwrap();
        let device = model.on_device(None, ("laplace", F64, outputs), &facts);
        for (method, order, milliseconds) in MEASURED_OPERATORS {
            let parts = parts(&Variant::default(), method, 3, &facts.harmonic).unwrap();
            let ratio = 1e3 * device.operators(&parts, order) / milliseconds;
            assert!((0.65..1.5).contains(&ratio), "{method:?} of order {order}: {ratio}");
        }
    }

    /// M2L of 2²⁴ points on one NVIDIA H200: method, precision and order; boxes, leaves and edges; milliseconds. Three rows with the
    /// same method and order are a cube, an ellipsoid and Plummer's sphere. Rows of harmonics are from
    /// `runs/2026-11-28-h200/stages-with-sorted-families.txt`, the others from `stages.txt` in the same folder.
    const MEASURED_M2L: [(Method, Precision, usize, [usize; 3], f64); 15] = [
        (SphericalHarmonics, F32, 6, [585_169, 512_007, 103_852_834], 8.06),
        (SphericalHarmonics, F32, 6, [872_573, 690_058, 30_524_078], 5.53),
        (SphericalHarmonics, F32, 6, [1_058_431, 926_120, 180_897_632], 14.34),
        (SphericalHarmonics, F32, 9, [299_594, 262_144, 52_337_880], 9.91),
        (SphericalHarmonics, F32, 9, [534_175, 424_008, 18_803_320], 8.96),
        (SphericalHarmonics, F32, 9, [647_178, 566_280, 111_209_232], 21.33),
        (SphericalHarmonics, F64, 16, [111_483, 97_336, 18_820_384], 70.08),
        (SphericalHarmonics, F64, 16, [238_092, 190_172, 8_332_398], 60.10),
        (SphericalHarmonics, F64, 16, [271_708, 237_741, 46_181_254], 182.56),
        (EquivalentDensities, F32, 6, [299_594, 262_144, 52_337_880], 10.73),
        (EquivalentDensities, F32, 6, [468_303, 372_411, 16_506_006], 22.29),
        (EquivalentDensities, F32, 6, [564_385, 493_836, 96_985_282], 20.38),
        (EquivalentDensities, F64, 9, [160_797, 140_608, 27_555_046], 27.74),
        (EquivalentDensities, F64, 9, [320_889, 255_781, 11_222_526], 74.42),
        (EquivalentDensities, F64, 9, [375_035, 328_154, 64_194_648], 66.75),
    ];

    #[test]
    fn m2l_costs_what_it_takes_in_volumes_and_on_surfaces() {
        let (model, outputs) = (CostModel::default(), Outputs::POTENTIAL | Outputs::GRADIENT);
        let facts = AnyFamily::from(Laplace).facts(outputs).unwrap();
        let cores = model.of("laplace", Precision::F32, outputs, &facts);
        for clouds in MEASURED_M2L.as_chunks::<3>().0 {
            let mut in_a_cube = None;
            for &(method, precision, order, [boxes, leaves, m2l], milliseconds) in clouds {
                let device = model.on_device(None, ("laplace", precision, outputs), &facts);
                let parts = parts(&Variant::default(), method, 3, &facts.harmonic).unwrap();
                let edges = |m2l| Edges { m2l, l2l: boxes - 1, ..Edges::default() };
                let mesh = |m2l| Mesh { boxes, leaves, edges: edges(m2l), ..Mesh::default() };
                let price = |costs: &UnitCosts| {
                    let [all, without] =
                        [m2l, 0].map(|m2l| costs.price_of_fields(&parts, order, &mesh(m2l), [0, 0])[0]);
                    all - without
                };
                let by_edges = |costs: &UnitCosts| 1e-9 * costs.far(&parts, order).m2l * m2l as f64;
                let ratio = 1e3 * price(&device) / milliseconds;
                assert!((0.7..1.4).contains(&ratio), "{method:?} of order {order}, {m2l} edges: {ratio}");
                assert!((0.85..1.15).contains(&(ratio / *in_a_cube.get_or_insert(ratio))), "{method:?}, {m2l} edges");
                // Work in a part of a tree counts edges alone.
                let work = device.work(&parts, order, &Mesh { edges: edges(m2l), ..Mesh::default() }, [0, 0]);
                assert!((work / by_edges(&device) - 1.0).abs() < 1e-9, "{work}");
                assert!((price(&cores) / by_edges(&cores) - 1.0).abs() < 1e-9, "on cores every edge costs the same");
            }
        }
    }
}
