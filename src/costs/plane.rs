//! Prices in the plane, on one core.

use super::built_in::{PLANE_EVALUATION_NANOSECONDS, PLANE_PAIR_NANOSECONDS, PLANE_POINT_NANOSECONDS};

/// The unit costs in the plane.
pub(crate) struct PlaneCosts;

impl PlaneCosts {
    /// Seconds of direct summation between `[sources, targets]` points.
    pub fn direct(&self, [n, m]: [usize; 2]) -> f64 {
        1e-9 * PLANE_PAIR_NANOSECONDS * n as f64 * m as f64
    }
    /// Seconds of a fast evaluation.
    pub fn fast(&self, order: usize, [n, m]: [usize; 2]) -> f64 {
        let [per_order, besides] = PLANE_POINT_NANOSECONDS;
        1e-9 * (PLANE_EVALUATION_NANOSECONDS + (besides + per_order * order as f64) * 0.5 * (n + m) as f64)
    }
}
