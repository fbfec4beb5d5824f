//! Seconds per stage of the run of median total among five, and the error at 1000 targets of the two-dimensional
//! method: `cargo run --release -p adaptive2d --example stage_times_2d -- N POPULATION ORDER [cloud] [kernel]
//! [derivatives] [threads] [theta] [positive]` with `kernel` harmonic, harmonic-real (real strengths), laplace, dipole
//! or mixed, `derivatives` 0 to 2. Targets are the sources; strengths are normal, or (any ninth argument) uniform in (0, 1).
//! Pyramid and lists are new each time; the workspace is kept, as plans keep theirs (`first`: total of the first
//! evaluation, which has none). The peak of memory is that of the first evaluation.

use adaptive2d::{ConnectOptions, Laurent, Pyramid, PyramidOptions, connect};
use backend_cpu::Isa;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace, PlanePairs};
use fmm_kernels::{Harmonic2d, Laplace2d, Laplace2dDipole, Laplace2dMixed};
use fmm_traits::testkit::clouds::{Generator, normal_strengths, uniform_strengths};
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Expansion, OutputError, Outputs, Stage};
use std::time::Instant;

/// Sources that are summed at a time.
const RUN: usize = 4096;
/// Evaluations, from points in to answer out.
const EVALUATIONS: usize = 5;

/// A line of this process's status, in bytes; 0 where the system does not say.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(key)).unwrap_or("");
    1024 * line.split_whitespace().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let (n, population, order) = (number(1, 100_000), number(2, 40), number(3, 17));
    let kind = PlaneKind::named(args.get(4).map_or("uniform", String::as_str)).expect("a cloud of the testkit");
    let kernel: PlanePairs = match args.get(5).map(String::as_str) {
        Some("laplace") => Laplace2d.into(),
        Some("dipole") => Laplace2dDipole.into(),
        Some("mixed") => Laplace2dMixed.into(),
        _ => Harmonic2d.into(),
    };
    let series = Laurent::new(kernel.kernel, order, number(6, 0)).expect("order");
    let shape = (order, series.derivatives);
    let points = kind.points(n, 1);
    let mut strengths = match args.get(9) {
        Some(_) => uniform_strengths(n * kernel.strengths(), 2),
        None => normal_strengths(n * kernel.strengths(), 2),
    };
    if args.get(5).is_some_and(|k| k == "harmonic-real") {
        strengths.iter_mut().skip(1).step_by(2).for_each(|im| *im = 0.0);
    }
    let mut out = vec![0.0; n * series.values()];
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(7, 1)).build().expect("threads");

    let theta = args.get(8).and_then(|s| s.parse().ok()).unwrap_or(0.5);
    let connection = ConnectOptions { theta, ..Default::default() };

    out.fill(1.0);
    let callers = status("VmRSS");
    let mut runs = Vec::new();
    let mut workspace = LaurentWorkspace::default();
    for _ in 0..EVALUATIONS {
        pool.install(|| {
            let clock = Instant::now();
            let options = PyramidOptions { population: population as f64, depth: None };
            let pyramid = Pyramid::build(&points, None, &options).expect("pyramid");
            let built = clock.elapsed().as_secs_f64();
            let lists = connect(&pyramid, &connection).expect("lists");
            let connected = clock.elapsed().as_secs_f64();
            let plan = LaurentPlan::new(kernel, shape, pyramid, lists, Isa::detect(), order <= 24).expect("plan");
            let plan = plan.shortened(theta);
            let seconds = plan.apply(&mut workspace, &strengths, &mut out, &mut |_, _| true).expect("apply");
            let total = clock.elapsed().as_secs_f64();
            let mut shown = format!("total {total:.3} pyramid {built:.3} connect {:.3}", connected - built);
            for stage in Stage::ALL {
                shown += &format!(" {} {:.3}", stage.name(), seconds[stage as usize]);
            }
            let (lists, bytes) = (plan.lists(), plan.bytes() + workspace.bytes());
            shown += &format!(
                "\ndepth {} m2l_edges {} p2p_edges {}",
                plan.pyramid().depth(),
                lists.m2l.len(),
                lists.p2p.len()
            );
            shown +=
                &format!(" p2l_edges {} m2p_edges {} held_MB {}", lists.p2l.len(), lists.m2p.len(), bytes / 1_000_000);
            runs.push((total, status("VmHWM").saturating_sub(callers) / 1_000_000, shown));
        });
    }
    let (first, beyond, _) = runs[0];
    let later = runs[EVALUATIONS - 1].1;
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let shown = &runs[EVALUATIONS / 2].2;
    println!("{shown} first {first:.3} peak_MB_beyond_the_caller's_arrays {beyond} (all evaluations {later})");

    // Direct sums: pyramids of one box over the sampled targets and some sources each, so that long sums lose nothing.
    let mut random = Generator::new(7);
    let sample: Vec<usize> = (0..1000.min(n)).map(|_| (random.uniform() * n as f64) as usize).collect();
    let at: Vec<f64> = sample.iter().flat_map(|&i| [points[2 * i], points[2 * i + 1]]).collect();
    let flat = PyramidOptions { population: 1.0, depth: Some(0) };
    let mut exact = vec![0.0; sample.len() * series.values()];
    for (points, strengths) in points.chunks(2 * RUN).zip(strengths.chunks(RUN * kernel.strengths())) {
        let pyramid = Pyramid::build(points, Some(&at), &flat).expect("pyramid");
        let lists = connect(&pyramid, &ConnectOptions::default()).expect("lists");
        let plan = LaurentPlan::new(kernel, shape, pyramid, lists, Isa::detect(), false).expect("plan");
        let mut part = vec![0.0; exact.len()];
        plan.apply(&mut LaurentWorkspace::default(), strengths, &mut part, &mut |_, _| true).expect("apply");
        exact.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    let found: Vec<f64> =
        sample.iter().flat_map(|&i| &out[i * series.values()..][..series.values()]).copied().collect();
    let [first, second] = [kernel.potentials(), kernel.values(1)];
    let ends = [first, second.min(series.values()), series.values()];
    for (name, columns) in [("potential", 0..ends[0]), ("derivative", ends[0]..ends[1]), ("second", ends[1]..ends[2])] {
        if columns.is_empty() {
            continue;
        }
        let pick = |rows: &[f64]| -> Vec<f64> {
            rows.chunks_exact(series.values()).flat_map(|row| &row[columns.clone()]).copied().collect()
        };
        let (found, exact) = (pick(&found), pick(&exact));
        let error = OutputError::of(Outputs::POTENTIAL, &found, &exact, columns.len());
        let size = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let rows = found.chunks_exact(columns.len()).zip(exact.chunks_exact(columns.len()));
        let worst = rows.map(|(a, b)| {
            let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            size(&difference) / size(b)
        });
        println!("{name} rel_l2 {:.2e} largest relative {:.2e}", error.rel_l2, worst.fold(0.0, f64::max));
    }
}
