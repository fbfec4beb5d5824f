//! Targets far from sources whose strengths cancel or have no charge.

use super::*;
use backend_cpu::{Targets, direct};
use fmm_kernels::{Laplace, LaplaceDipole, LaplaceMixed, StokesPressure, Stresslet};

/// Targets in a cube of side 2 whose centre is `distance` sides of the unit cube away.
fn placed(distance: f64) -> Vec<f64> {
    let center = [0.5 + distance, 0.5 + 0.3 * distance, 0.5 - 0.6 * distance];
    uniform(300, 9).iter().enumerate().map(|(k, u)| center[k % 3] + 2.0 * (u - 0.5)).collect()
}

fn error<F: Family>(family: &F, kind: CloudKind, targets: &[f64], order: usize, precision: Precision) -> f64 {
    let sources = kind.points(1500, 3);
    let q = strengths::<F>(&sources);
    let settings = settings(order, precision);
    let found = solve(family, geometry(&sources, Some(targets), 20), &settings, &q);
    let (expected, _) =
        direct(family, both(), &sources, &q, Targets::Points(targets), Precision::F64, settings.isa).unwrap();
    difference::<F>(&found, &expected)
}

fn print<F: Family>(family: F) {
    let family = WithGradient(family);
    for precision in [Precision::F64, Precision::F32] {
        for kind in [CloudKind::Uniform, CloudKind::TwoClusters, CloudKind::Outlier] {
            for order in [4, 6, 8] {
                let at = |t: &[f64]| format!("{:.1e}", error(&family, kind, t, order, precision));
                let inside = at(&uniform(300, 8));
                let e: Vec<String> = [3.0, 10.0, 100.0, 1000.0].map(|d| at(&placed(d))).to_vec();
                println!("{} {} {} p {order}: {inside} | {}", family.name(), precision.name(), kind.name(), e.join(" "));
            }
        }
    }
}

#[test]
fn figures() {
    print(Laplace);
    print(LaplaceDipole);
    print(LaplaceMixed);
    print(Stresslet { mu: 0.7 });
    print(StokesPressure { mu: 0.7 });
}
