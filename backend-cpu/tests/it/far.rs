//! Targets far from all sources: errors do not grow with the distance.

use super::*;
use fmm_kernels::{Laplace, LaplaceDipole, LaplaceMixed, StokesPressure, Stresslet};

/// Targets in a cube of side 2 whose centre is `distance` sides of the unit cube away.
fn placed(distance: f64) -> Vec<f64> {
    let center = [0.5 + distance, 0.5 + 0.3 * distance, 0.5 - 0.6 * distance];
    uniform(300, 9).iter().enumerate().map(|(k, u)| center[k % 3] + 2.0 * (u - 0.5)).collect()
}

fn error<F: Known>(family: &F, sources: &[f64], distance: f64, order: usize, precision: Precision) -> f64 {
    let (q, targets, settings) = (strengths::<F>(sources), placed(distance), settings(order, precision));
    let found = solve(family, geometry(sources, Some(&targets), 20), &settings, &q);
    let at = Targets::Points(&targets);
    let expected = direct(family, both(), sources, &q, at, Precision::F64, settings.isa).unwrap();
    difference::<F>(&found, &expected)
}

/// Errors of potential and gradient at far targets, ten levels of boxes above, stay within 30 times the errors at 3
/// sides. They fall with the order; in f32 down to rounding.
fn far_is_as_near<F: Known>(family: F) {
    let (family, sources) = (family, uniform(1500, 3));
    for (precision, floor) in [(Precision::F64, 0.0), (Precision::F32, 2e-4)] {
        for order in [4, 6, 8] {
            let errors = [3.0, 100.0, 1000.0].map(|d| error(&family, &sources, d, order, precision));
            let near = errors[0].min(0.1 * 6f64.powi(4 - order as i32));
            let what = format!("{} {}, order {order}", family.name(), precision.name());
            assert!(errors.iter().all(|&e| e <= (30.0 * near).max(floor)), "{what}: {errors:?}");
        }
    }
}

#[test]
fn from_charges_and_forces() {
    far_is_as_near(Laplace);
    far_is_as_near(StokesPressure { mu: 0.7 });
}

#[test]
fn from_dipoles_and_stresslets() {
    far_is_as_near(LaplaceDipole);
    far_is_as_near(LaplaceMixed);
    far_is_as_near(Stresslet { mu: 0.7 });
}
