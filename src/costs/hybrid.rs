//! Prices of sums whose near field is on a GPU while cores translate.

use super::{Prices, UnitCosts};
use crate::mesh::Mesh;
use crate::parts::Parts;
use fmm_traits::Policy;

/// Prices of a far field on cores beside a near field on a GPU. Both run at the same time, so that the slower one is the
/// price, and leaves have the best size if both take equally long (Hu, Gumerov & Duraiswami 2012, §III-B).
pub(crate) struct HybridPrices<'a> {
    cores: UnitCosts<'a>,
    /// Number of cores, the same on all ranks.
    threads: usize,
    device: UnitCosts<'a>,
    source: String,
}

impl<'a> HybridPrices<'a> {
    pub fn new(cores: UnitCosts<'a>, threads: usize, device: UnitCosts<'a>) -> Self {
        let [of_cores, of_device] = [cores.source, device.source];
        let source = if of_cores == of_device { of_cores.to_string() } else { format!("{of_cores} and {of_device}") };
        HybridPrices { cores, threads, device, source }
    }
}

/// Largest mean points per leaf that are considered.
const LARGEST_LEAF: f64 = 32_768.0;
/// The size of leaves is computed for so many sources and targets. It would be about the same for another number.
const POINTS: [usize; 2] = [1 << 20; 2];

impl HybridPrices<'_> {
    /// Seconds of the far field on all cores, and of the near field on the device, from the seconds of both fields on one core
    /// and on the device.
    fn both(&self, on_a_core: [f64; 2], on_the_device: [f64; 2]) -> [f64; 2] {
        [on_a_core[0] / self.threads as f64, on_the_device[1]]
    }
    fn forecasts(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> [f64; 2] {
        let of = |costs: &UnitCosts| costs.forecast_of_fields(parts, order, leaf, points);
        self.both(of(&self.cores), of(&self.device))
    }
    fn prices(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> [f64; 2] {
        let of = |costs: &UnitCosts| costs.price_of_fields(parts, order, mesh, points);
        self.both(of(&self.cores), of(&self.device))
    }
    /// Seconds of a sum whose fields take so many seconds.
    fn slower(&self, [far, near]: [f64; 2]) -> f64 {
        1e-9 * (self.cores.costs.evaluation + self.device.costs.evaluation) + far.max(near)
    }
}

impl Prices for HybridPrices<'_> {
    fn source(&self) -> &str {
        &self.source
    }

    /// Cores compute direct sums.
    fn direct(&self, points: [usize; 2]) -> f64 {
        self.cores.direct(points) / self.threads as f64
    }

    /// The size at which both fields take equally long, by bisection: near fields grow with the leaves, far fields shrink. A
    /// treecode has no M2L to balance, so it has the leaves that it has on cores.
    fn occupancy(&self, parts: &Parts, order: usize) -> f64 {
        if let Policy::Treecode { .. } = parts.policy {
            return self.cores.occupancy(parts, order);
        }
        let [mut small, mut large] = [self.cores.smallest_leaf(parts), LARGEST_LEAF];
        for _ in 0..30 {
            let middle = (small * large).sqrt();
            let [far, near] = self.forecasts(parts, order, middle, POINTS);
            *(if far > near { &mut small } else { &mut large }) = middle;
        }
        small
    }

    fn smallest_leaf(&self, parts: &Parts) -> f64 {
        self.cores.smallest_leaf(parts)
    }

    /// Cores make the operators.
    fn operators(&self, parts: &Parts, order: usize) -> f64 {
        self.cores.operators(parts, order) / self.threads as f64
    }

    fn forecast(&self, parts: &Parts, order: usize, leaf: f64, points: [usize; 2]) -> f64 {
        self.slower(self.forecasts(parts, order, leaf, points))
    }

    fn price(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        self.slower(self.prices(parts, order, mesh, points))
    }

    /// Far field plus near field. Work must be a sum over boxes, and the larger one of two fields is none.
    fn work(&self, parts: &Parts, order: usize, mesh: &Mesh, points: [usize; 2]) -> f64 {
        self.prices(parts, order, mesh, points).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::CostModel;
    use crate::parts::parts;
    use crate::request::Method;
    use crate::variant::Variant;
    use fmm_families::AnyFamily;
    use fmm_kernels::Laplace;
    use fmm_traits::{Outputs, Precision};

    #[test]
    fn leaves_grow_with_the_speed_of_the_device_and_fields_balance() {
        let (model, outputs) = (CostModel::default(), Outputs::POTENTIAL | Outputs::GRADIENT);
        let facts = AnyFamily::from(Laplace).facts(outputs).unwrap();
        let what = ("laplace", Precision::F32, outputs);
        let prices = |threads| {
            let cores = model.of(what.0, what.1, what.2, &facts);
            HybridPrices::new(cores, threads, model.on_device(None, what, &facts))
        };
        let parts = parts(&Variant::default(), Method::EquivalentDensities, 3, &facts.harmonic).unwrap();
        let leaf = |threads| prices(threads).occupancy(&parts, 6);
        let alone = prices(8).cores.occupancy(&parts, 6);
        assert!(leaf(1) > leaf(8) && leaf(8) > alone && alone > leaf(1 << 12), "{} {alone} {}", leaf(1), leaf(8));
        let [far, near] = prices(8).forecasts(&parts, 6, leaf(8), POINTS);
        assert!((far / near - 1.0).abs() < 1e-3, "{far} {near}");
        // Either neighbour is slower.
        let time = |leaf| prices(8).forecast(&parts, 6, leaf, POINTS);
        assert!(time(leaf(8)) < time(1.5 * leaf(8)) && time(leaf(8)) < time(leaf(8) / 1.5));
        let mesh = Mesh { near_pairs: 1 << 40, ..Mesh::default() };
        let [few, many] = [1, 64].map(|threads| prices(threads).price(&parts, 6, &mesh, POINTS));
        assert!((few / many - 1.0).abs() < 0.2, "near pairs alone do not depend on the cores: {few} {many}");
    }
}
