//! Whole evaluations and their stages at 100 000 points, on one thread.
//!
//! `cargo bench -p fmm-benches` runs all benchmarks, `cargo bench -p fmm-benches -- m2l` runs one. A stage is timed inside whole evaluations, with
//! the clock that `fmm run` reports. So the caches are in the same state as in real runs.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fmm::{Fmm, Laplace, Method, Output, Outputs, Plan, Stage, Targets, demo};
use std::time::{Duration, Instant};

const N: usize = 100_000;

/// A request for the Laplace potential and gradient of charges.
fn request(tolerance: f64) -> Fmm {
    Fmm::new(Laplace)
        .tolerance(tolerance)
        .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
        .method(Method::EquivalentDensities)
        .threads(1)
}

/// Runs `plan` `runs` times and adds up the seconds that `clock` reads from each output.
fn timed(plan: &Plan, strengths: &[f64], runs: u64, clock: impl Fn(&Output) -> f64) -> Duration {
    let mut out = Output::default();
    let mut seconds = 0.0;
    for _ in 0..runs {
        plan.apply_into(strengths, &mut out).expect("a valid request");
        seconds += clock(&out);
    }
    Duration::from_secs_f64(seconds)
}

fn evaluations(c: &mut Criterion) {
    for (cloud, name) in [(demo::Demo::Uniform, "uniform"), (demo::Demo::Ellipsoid, "ellipsoid")] {
        let points = demo::points(cloud, N, 1);
        let charges = demo::strengths(N, 1, 1);
        let mut group = c.benchmark_group(name);
        for tolerance in [1e-3, 1e-6, 1e-9] {
            let plan = request(tolerance).plan(&points, Targets::Sources).expect("a valid request");
            let id = |what: &str| BenchmarkId::new(what, format!("{tolerance:e}"));
            group.bench_function(id("apply"), |b| b.iter_custom(|runs| timed(&plan, &charges, runs, |o| o.seconds)));
            for stage in [Stage::P2m, Stage::M2m, Stage::M2l, Stage::L2l, Stage::L2p, Stage::P2p] {
                group.bench_function(id(stage.name()), |b| {
                    b.iter_custom(|runs| timed(&plan, &charges, runs, |o| o.stages[stage as usize]))
                });
            }
        }
        group.finish();
    }
}

fn plans(c: &mut Criterion) {
    let points = demo::points(demo::Demo::Uniform, N, 1);
    let mut plan = request(1e-6).plan(&points, Targets::Sources).expect("a valid request");
    c.bench_function("plan/set_points", |b| {
        b.iter_custom(|runs| {
            let start = Instant::now();
            for _ in 0..runs {
                plan.set_points(&points, Targets::Sources).expect("a valid request");
            }
            start.elapsed()
        })
    });
}

criterion_group! {
    name = stages;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2));
    targets = evaluations, plans
}
criterion_main!(stages);
