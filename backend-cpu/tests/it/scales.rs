//! Units of length far beyond the range of f32, in both precisions, by every method.

use super::*;
use fmm_kernels::spherical::SphericalOptions;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};

/// Checks that the error in units of `h` equals the error in units of 1, up to the positions of boxes. `family(h)` is
/// the kernel in units of h; strengths are dilated, so the problem is the same.
fn same_error<F: Known>(family: impl Fn(f64) -> F, harmonic: bool) {
    let (sources, targets) = (CloudKind::Ellipsoid.points(700, 1), uniform(300, 2));
    let q = strengths::<F>(&sources);
    let at = |h: f64, precision, by: &str| {
        let family = family(h);
        let dilate = |points: &[f64]| -> Vec<f64> { points.iter().map(|x| x * h).collect() };
        let (sources, targets) = (dilate(&sources), dilate(&targets));
        let (settings, geometry) = (settings(5, precision), geometry(&sources, Some(&targets), 20));
        let sums = |precision| {
            direct(&family, both(), &sources, &q, Targets::Points(&targets), precision, settings.isa).unwrap()
        };
        let found = match by {
            "direct sums" => sums(precision),
            "equivalent densities" => solve(&family, geometry, &settings, &q),
            _ => {
                let (tree, lists) = geometry;
                let options = SphericalOptions::default();
                apply(&*harmonics(&family, both(), tree, lists, &settings, options).unwrap(), &q)
            }
        };
        difference::<F>(&found, &sums(Precision::F64))
    };
    for precision in [Precision::F32, Precision::F64] {
        for by in ["direct sums", "equivalent densities", "spherical harmonics"] {
            if by == "spherical harmonics" && !harmonic {
                continue;
            }
            let one = at(1.0, precision, by);
            for h in [1e-39, 1e-30, 1e35, 1e39, 1e90, 1e-70] {
                let error = at(h, precision, by);
                let floor = if precision == Precision::F32 { 2e-5 } else { 1e-12 };
                assert!(
                    error <= 10.0 * one + floor,
                    "{} {} {by} {h:e}: {error:e}, in units of 1 {one:e}",
                    family(1.0).name(),
                    precision.name()
                );
            }
        }
    }
}

#[test]
fn of_charges_and_dipoles() {
    same_error(|_| Laplace, true);
    same_error(|_| LaplaceDipole, true);
    same_error(|_| LaplaceMixed, true);
    same_error(|h| Gravity { g: 1.0, softening: 0.001 * h }, false);
    same_error(|h| Yukawa { kappa: 2.0 / h }, false);
}

#[test]
fn of_flows() {
    same_error(|_| Stokes { mu: 0.7 }, false);
    same_error(|_| StokesPressure { mu: 0.7 }, false);
    same_error(|_| Stresslet { mu: 0.7 }, false);
}
