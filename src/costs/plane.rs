//! Prices in the plane, on one core or on a GPU.

use super::built_in::{PLANE_ON_A_DEVICE, PLANE_ON_CORES, plane_population};

/// The unit costs in the plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneCosts {
    /// Nanoseconds per pair of points.
    pub pair: f64,
    /// Nanoseconds per point of a fast evaluation: for each term of the series, and besides.
    pub point: [f64; 2],
    /// Fixed nanoseconds of a fast evaluation, beyond those of a direct sum.
    pub evaluation: f64,
}

impl PlaneCosts {
    /// Of one core.
    pub const ON_CORES: PlaneCosts = PLANE_ON_CORES;
    /// Of a GPU.
    pub const ON_A_DEVICE: PlaneCosts = PLANE_ON_A_DEVICE;

    /// Seconds of direct summation between `[sources, targets]` points.
    pub fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * self.pair * n as f64 * m as f64
    }
    /// Seconds of a fast evaluation.
    pub fn fast(&self, order: usize, [n, m]: [usize; 2]) -> f64 {
        let [per_order, besides] = self.point;
        1e-9 * (self.evaluation + (besides + per_order * order as f64) * 0.5 * (n + m) as f64)
    }
    /// Desired population of a leaf of the pyramid.
    pub fn population(&self, order: usize) -> f64 {
        plane_population(order)
    }
}
