//! Measures the constants of the cost model on this machine.

use crate::backend::Backend;
use crate::costs::{CostModel, Costs, EVALUATION_NANOSECONDS, OrderCosts};
use crate::describe::Description;
use crate::request::{Fmm, Method};
use crate::{demo, machine};
use fmm_traits::{Error, Stage, Targets};
use std::time::Instant;

/// The sizes of measurements on a kind of processor. Points fill the root cube, and all leaves lie on one level: a GPU
/// translates families of eight children together, and takes longer per edge where children are missing.
struct Sizes {
    /// The level of the leaves.
    level: u32,
    /// Mean points per leaf in the measurements. Two occupancies separate the cost of a point from the cost of a leaf.
    occupancies: [usize; 2],
    /// Measured orders of spherical harmonics.
    spherical: &'static [usize],
}

/// On a core: few enough points for 18 measurements in seconds, enough for leaves with all neighbours.
const ON_A_CORE: Sizes = Sizes { level: 3, occupancies: [24, 80], spherical: &[4, 8, 12, 16, 24] };
/// On a GPU: enough points to fill the largest devices, and the leaf sizes that win there. M2L of harmonics has
/// unrolled code up to order 12 only.
const ON_A_DEVICE: Sizes = Sizes { level: 5, occupancies: [40, 100], spherical: &[4, 8, 12, 13, 16, 24] };
/// Number of points of a direct sum on a GPU: enough to fill the device.
const DIRECT_POINTS: usize = 1 << 17;
/// Number of points of a sum whose time is that of an evaluation without points.
const FEW_POINTS: usize = 4096;
/// Evaluations per measurement; the shortest time counts.
const REPETITIONS: usize = 4;
/// Measured orders of equivalent densities.
const EQUIVALENT_ORDERS: [usize; 4] = [4, 6, 8, 10];

/// One measured evaluation.
struct Sample {
    plan: Description,
    /// Shortest time of each stage, in nanoseconds.
    stages: [f64; Stage::ALL.len()],
}

impl CostModel {
    /// The name of this machine in cost models: processor, instruction set and version of this crate. A cost model with
    /// another fingerprint was measured on another machine.
    pub fn fingerprint() -> String {
        let processor = machine::processor().unwrap_or_else(|| std::env::consts::ARCH.to_string());
        format!("{processor}, {}, fmm {}", backend_cpu::Isa::detect().name(), env!("CARGO_PKG_VERSION"))
    }

    /// Measures the costs for the kernel, outputs and precision of `builder` on one core of this machine or on the GPU
    /// of the builder, in a few seconds. The result replaces older costs of the same case. Costs of another machine are
    /// dropped. Costs of Laplace with potential and gradient on a GPU serve all kernels there that were not measured.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for kernels of the plane; else as [`Fmm::plan`].
    pub fn measure(&mut self, builder: &Fmm) -> Result<(), Error> {
        if builder.family.dim() != 3 {
            let reason = "it is of octrees".to_string();
            return Err(Error::Unsupported { operation: "the cost model", reason });
        }
        if let Backend::Hybrid(_) = builder.backend {
            let reason = "cores and a GPU are measured each alone".to_string();
            return Err(Error::Unsupported { operation: "a measurement of costs", reason });
        }
        let facts = builder.family.facts(builder.outputs)?;
        if facts.attributes > 0 {
            let reason = "the costs of a kernel whose sources have attributes are those without".to_string();
            return Err(Error::Unsupported { operation: "a measurement of costs", reason });
        }
        // The measurement uses defaults for all other options of `builder`.
        let mut plain = Fmm::new(builder.family.clone()).outputs(builder.outputs).precision(builder.precision);
        (plain.cache, plain.backend) = (builder.cache.clone(), builder.backend.clone());
        let device = plain.backend.processor().opened(&plain).transpose()?.map(|device| device.info().name.clone());
        let sizes = if device.is_some() { ON_A_DEVICE } else { ON_A_CORE };
        plain = if device.is_some() { plain.stages_apart() } else { plain.threads(1) };
        let most = (sizes.occupancies[1] << (3 * sizes.level)).max(DIRECT_POINTS);
        let points = demo::points(demo::Demo::Uniform, most, 1);
        let strengths = demo::strengths(most, facts.strengths, 1);
        let first = |n: usize| (&points[..3 * n], &strengths[..facts.strengths * n]);
        let mut near = Vec::new();
        let mut orders = |method: Method, orders: &[usize]| -> Result<Vec<OrderCosts>, Error> {
            let mut rows = Vec::new();
            for &order in orders {
                let plain = plain.clone().method(method).order(order);
                let mut samples = Vec::new();
                for occupancy in sizes.occupancies {
                    samples.push(sample(&plain, occupancy, first(occupancy << (3 * sizes.level)))?);
                }
                rows.push(far(order, &samples));
                near.append(&mut samples);
            }
            Ok(rows)
        };
        let equivalent = orders(Method::EquivalentDensities, &EQUIVALENT_ORDERS)?;
        let spherical =
            if facts.harmonic.is_ok() { orders(Method::SphericalHarmonics, sizes.spherical)? } else { vec![] };
        let row = |s: &Sample| ([s.plan.near_pairs as f64, s.plan.edges.p2p as f64], s.stages[Stage::P2p as usize]);
        let [pair, leaves] = fit(near.iter().map(row));
        // On a core a pair of a direct sum costs as much as a pair of P2P.
        let (mut direct, mut evaluation) = (pair, EVALUATION_NANOSECONDS);
        if device.is_some() {
            let time = |builder: Fmm, n: usize| shortest(&builder, first(n));
            evaluation =
                time(plain.clone().method(Method::EquivalentDensities).order(EQUIVALENT_ORDERS[0]), FEW_POINTS)?;
            let pairs = (DIRECT_POINTS as f64).powi(2);
            direct = time(plain.clone().method(Method::Direct), DIRECT_POINTS)? / pairs;
        }
        let costs = Costs {
            device,
            kernel: builder.family.name().to_string(),
            precision: builder.precision.name().to_string(),
            outputs: builder.outputs.names().iter().map(|name| name.to_string()).collect(),
            pair,
            leaves,
            direct,
            evaluation,
            equivalent,
            spherical,
        };
        let here = CostModel::fingerprint();
        if self.source != here {
            *self = CostModel { source: here, cases: Vec::new() };
        }
        fn case(c: &Costs) -> (&Option<String>, &String, &String, &Vec<String>) {
            (&c.device, &c.kernel, &c.precision, &c.outputs)
        }
        self.cases.retain(|c| case(c) != case(&costs));
        self.cases.push(costs);
        Ok(())
    }
}

/// Evaluates at points of the unit cube, on a tree whose leaves lie on one level and hold `occupancy` points on average.
fn sample(builder: &Fmm, occupancy: usize, (points, strengths): (&[f64], &[f64])) -> Result<Sample, Error> {
    // Some leaves hold more than the mean, but their parents hold eight times the mean and must be split.
    let plan = builder.clone().ncrit(4 * occupancy).root_cube([0.0; 3], 1.0).plan(points, Targets::Sources)?;
    let mut stages = [f64::INFINITY; Stage::ALL.len()];
    for _ in 0..REPETITIONS {
        let out = plan.apply(strengths)?;
        stages.iter_mut().zip(out.stages).for_each(|(least, s)| *least = least.min(1e9 * s));
    }
    Ok(Sample { plan: plan.describe(), stages })
}

/// Shortest time of an evaluation, in nanoseconds.
fn shortest(builder: &Fmm, (points, strengths): (&[f64], &[f64])) -> Result<f64, Error> {
    let plan = builder.plan(points, Targets::Sources)?;
    let mut least = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        plan.apply(strengths)?;
        least = least.min(1e9 * start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// The unit costs of one order, fitted to its samples.
fn far(order: usize, samples: &[Sample]) -> OrderCosts {
    let sum = |s: &Sample, stages: &[Stage]| stages.iter().map(|&stage| s.stages[stage as usize]).sum::<f64>();
    let m2l: f64 = samples.iter().map(|s| sum(s, &[Stage::M2l])).sum();
    let edges: usize = samples.iter().map(|s| s.plan.edges.m2l).sum();
    let rest = |s: &Sample| {
        let counts = [s.plan.n_sources as f64, s.plan.leaves as f64];
        (counts, sum(s, &[Stage::P2m, Stage::M2m, Stage::L2l, Stage::L2p]))
    };
    let [point, leaf] = fit(samples.iter().map(rest));
    OrderCosts { order, point, leaf, m2l: m2l / edges.max(1) as f64 }
}

/// The two costs a, b ≥ 0 for which a·x + b·y is closest to the times in relative least squares; (x, y) are the counts
/// of a sample.
fn fit(samples: impl Iterator<Item = ([f64; 2], f64)>) -> [f64; 2] {
    let [mut aa, mut ab, mut bb, mut a, mut b] = [0.0; 5];
    for (counts, time) in samples {
        let [x, y] = counts.map(|c| c / time.max(1.0));
        (aa, ab, bb, a, b) = (aa + x * x, ab + x * y, bb + y * y, a + x, b + y);
    }
    let determinant = aa * bb - ab * ab;
    let [x, y] = [(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant];
    match (x >= 0.0, y >= 0.0) {
        (true, true) => [x, y],
        (false, true) => [0.0, b / bb],
        _ => [a / aa, 0.0],
    }
}
