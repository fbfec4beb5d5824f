//! Seeded point clouds in the plane, and a kernel there.

use super::clouds::Generator;
use crate::{Kernel, Lane};
use std::f64::consts::TAU;

/// The kinds of cloud in the plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlaneKind {
    /// Uniform in the unit square.
    Uniform,
    /// Normal about the centre of the unit square, variance 1/100, without points outside the square (Goude & Engblom
    /// 2012, fig. 5.8).
    Normal,
    /// x uniform, y normal with variance 1/100, without points outside the unit square (fig. 5.8).
    Layer,
    /// On a spiral of five turns: a curve.
    Spiral,
    /// Two clusters of size 1e-8, at distance 1.
    TwoClusters,
    /// On a line that is not parallel to an axis.
    Line,
    /// On a line parallel to an axis.
    Axis,
    /// On a square grid.
    Grid,
    /// Uniform, and one point 1e6 away.
    Outlier,
    /// 50 copies of each position, uniform.
    FiftyCopies,
    /// All at one position.
    Coincident,
    /// One point for any `n` > 0, none for `n` = 0.
    Single,
}

impl PlaneKind {
    /// All kinds.
    pub const ALL: [PlaneKind; 12] = [
        PlaneKind::Uniform,
        PlaneKind::Normal,
        PlaneKind::Layer,
        PlaneKind::Spiral,
        PlaneKind::TwoClusters,
        PlaneKind::Line,
        PlaneKind::Axis,
        PlaneKind::Grid,
        PlaneKind::Outlier,
        PlaneKind::FiftyCopies,
        PlaneKind::Coincident,
        PlaneKind::Single,
    ];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            PlaneKind::Uniform => "uniform",
            PlaneKind::Normal => "normal",
            PlaneKind::Layer => "layer",
            PlaneKind::Spiral => "spiral",
            PlaneKind::TwoClusters => "two-clusters",
            PlaneKind::Line => "line",
            PlaneKind::Axis => "axis",
            PlaneKind::Grid => "grid",
            PlaneKind::Outlier => "outlier",
            PlaneKind::FiftyCopies => "fifty-copies",
            PlaneKind::Coincident => "coincident",
            PlaneKind::Single => "single",
        }
    }

    /// The kind called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// `n` points, N×2 row-major.
    pub fn points(self, n: usize, seed: u64) -> Vec<f64> {
        let mut g = Generator::new(seed);
        let n = if self == PlaneKind::Single { n.min(1) } else { n };
        let mut last = [0.0; 2];
        let mut points = Vec::with_capacity(2 * n);
        for i in 0..n {
            last = self.point(&mut g, i, n, last);
            points.extend(last);
        }
        points
    }

    /// Point `i` of `n`; `last` is the previous point.
    fn point(self, g: &mut Generator, i: usize, n: usize, last: [f64; 2]) -> [f64; 2] {
        let normal = |g: &mut Generator| loop {
            let x = 0.5 + 0.1 * g.normal();
            if (0.0..=1.0).contains(&x) {
                return x;
            }
        };
        match self {
            PlaneKind::Uniform | PlaneKind::Single => [g.uniform(), g.uniform()],
            PlaneKind::Normal => [normal(g), normal(g)],
            PlaneKind::Layer => [g.uniform(), normal(g)],
            PlaneKind::Spiral => {
                let s = g.uniform();
                let (sin, cos) = (5.0 * TAU * s).sin_cos();
                [0.5 + 0.5 * s * cos, 0.5 + 0.5 * s * sin]
            }
            PlaneKind::TwoClusters => {
                let at = if g.bits() & 1 == 0 { 0.0 } else { 0.5f64.sqrt() };
                [at + 1e-8 * g.uniform(), at + 1e-8 * g.uniform()]
            }
            PlaneKind::Line => {
                let s = g.uniform();
                [s, 0.1 + 0.7 * s]
            }
            PlaneKind::Axis => [g.uniform(), 0.3],
            PlaneKind::Grid => {
                let side = (n as f64).sqrt().ceil().max(1.0) as usize;
                [(i % side) as f64 / side as f64, (i / side) as f64 / side as f64]
            }
            PlaneKind::Outlier if i == n / 2 => [1e6, 0.3],
            PlaneKind::Outlier => [g.uniform(), g.uniform()],
            PlaneKind::FiftyCopies if !i.is_multiple_of(50) => last,
            PlaneKind::FiftyCopies => [g.uniform(), g.uniform()],
            PlaneKind::Coincident => [0.1, 0.2],
        }
    }
}

/// −ln r, compiled. Its parameter is the unit of length.
#[derive(Clone, Debug)]
pub struct Log;

impl Kernel for Log {
    const NAME: &'static str = "log";
    const DIM: usize = 2;
    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let r2 = r[0] * r[0] + r[1] * r[1];
        let log = (r2 * p[0] * p[0]).ln() * V::splat(-0.5);
        u[0] = q[0] * V::select(r2.eq(V::splat(0.0)), V::splat(0.0), log);
    }
    fn value_degree(_: usize) -> i32 {
        0
    }
    fn parameters(&self) -> Vec<f64> {
        vec![1.0]
    }
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(vec![params[0] * h])
    }
}
