//! Errors of the equivalent-density method for Laplace by order:
//! `cargo run --release -p backend-cpu --example equivalent_errors -- [n] [cloud …]` (all clouds of the testkit).
//!
//! For each cloud and order log₁₀ of the relative ℓ2 error against direct summation at 1000 targets: potential and gradient for
//! normal strengths, then for uniform ones in (0, 1). The last line is the largest of each order.

use backend_cpu::{Isa, Precision, Settings, Targets, direct, plan};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::surface;
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths, uniform_strengths};
use fmm_traits::{Error, OutputError, Outputs};
use fmm_tree::{BuildOptions, ListOptions, build, uvwx};

const ORDERS: std::ops::RangeInclusive<usize> = 3..=16;
const SAMPLE: usize = 1000;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let n = args.next().and_then(|n| n.parse().ok()).unwrap_or(8000);
    let named: Vec<CloudKind> = args.filter_map(|name| CloudKind::named(&name)).collect();
    let kinds = if named.is_empty() { CloudKind::ALL.to_vec() } else { named };
    let mut worst = vec![[0f64; 4]; ORDERS.count()];
    for kind in kinds {
        let points = kind.points(n, 8);
        let strengths = [normal_strengths(points.len() / 3, 5), uniform_strengths(points.len() / 3, 5)];
        for (order, worst) in ORDERS.zip(&mut worst) {
            let errors = errors(&points, &strengths, order)?;
            worst.iter_mut().zip(errors).for_each(|(w, e)| *w = w.max(e));
            print(kind.name(), order, errors);
        }
    }
    ORDERS.zip(worst).for_each(|(order, worst)| print("largest", order, worst));
    Ok(())
}

fn print(cloud: &str, order: usize, errors: [f64; 4]) {
    let logs = errors.map(|e| format!("{:6.2}", e.max(1e-16).log10())).join(" ");
    println!("{cloud:>13} p {order:2}: {logs}");
}

/// Of potential and gradient, for each of the strengths.
fn errors(points: &[f64], strengths: &[Vec<f64>; 2], order: usize) -> Result<[f64; 4], Error> {
    let (n, outputs) = (points.len() / 3, Outputs::POTENTIAL | Outputs::GRADIENT);
    let mut random = Generator::new(7);
    let sample: Vec<usize> = (0..SAMPLE.min(n)).map(|_| (random.uniform() * n as f64) as usize).collect();
    let occupancy = (4.2 * (order as f64).powf(1.46)).max(16.0);
    let tree = build(points, None, &BuildOptions { occupancy, ..Default::default() })?;
    let size = surface::len(order);
    let lists = uvwx(&tree, &ListOptions { m2p_min_sources: size, p2l_min_targets: size })?;
    let settings = Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None };
    let solver = plan(&Laplace, outputs, tree, lists, &settings)?;
    let (mut out, mut errors) = (vec![0.0; 4 * n], [0.0; 4]);
    for (q, errors) in strengths.iter().zip(errors.chunks_exact_mut(2)) {
        solver.apply(q, &mut out, &mut |_, _| true)?;
        let at = Targets::Sources(Some(&sample));
        let (exact, columns) = direct(&Laplace, outputs, points, q, at, settings.precision, settings.isa)?;
        for (column, error) in columns.iter().zip(errors) {
            let pick = |row: &[f64]| column.columns.iter().map(|&c| row[c]).collect::<Vec<_>>();
            let found: Vec<f64> = sample.iter().flat_map(|i| pick(&out[4 * i..][..4])).collect();
            let exact: Vec<f64> = exact.chunks_exact(4).flat_map(pick).collect();
            *error = OutputError::of(column.output, &found, &exact, column.columns.len()).rel_l2;
        }
    }
    Ok(errors)
}
