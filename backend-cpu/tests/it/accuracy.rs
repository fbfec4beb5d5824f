//! Errors against direct summation.

use super::*;
use fmm_kernels::{Laplace, LaplaceDipole, Stokes, Yukawa};

/// Error bounds of the gradient at orders 4, 6 and 8 in f64, and at order 5 in f32: twice the errors measured for
/// uniform points.
fn bounds<F: Known>(family: &F) -> [f64; 4] {
    match family.name() {
        "stokes" => [5.6e-3, 7.8e-5, 2.2e-6, 7.7e-4],
        "laplace" => [1.2e-3, 2.4e-5, 6.0e-7, 1.4e-4],
        "yukawa" => [4.5e-3, 1.0e-4, 2.3e-6, 4.7e-4],
        _ => [1.7e-2, 3.6e-4, 8.5e-6, 1.7e-3],
    }
}

/// Relative errors of potential and gradient at orders 4, 6 and 8 in f64, and at order 5 in f32.
fn errors<F: Known>(family: F) -> [f64; 4] {
    let family = family;
    let points = CloudKind::Uniform.points(3000, 8);
    let q = strengths::<F>(&points);
    let all = Targets::Sources;
    let exact = direct(&family, both(), &points, &q, all, Precision::F64, Isa::detect()).unwrap();
    let error =
        |settings: Settings| difference::<F>(&solve(&family, geometry(&points, None, 50), &settings, &q), &exact);
    let mut result = [4, 6, 8, 5].map(|p| settings(p, Precision::F64));
    result[3].precision = Precision::F32;
    let errors = result.map(error);
    for (k, (error, promise)) in errors.iter().zip(bounds(&family)).enumerate() {
        assert!(*error < promise, "{} {k}: {error:e} above {promise:e}", family.name());
    }
    errors
}

fn fall<F: Known>(family: F) {
    let name = family.name();
    let e = errors(family);
    assert!(e[1] < 0.2 * e[0] && e[2] < 0.2 * e[1], "{name}: errors do not fall with the order: {e:?}");
}

#[test]
fn errors_fall_with_the_order() {
    fall(Laplace);
    fall(LaplaceDipole);
    fall(Yukawa { kappa: 2.0 });
    fall(Stokes { mu: 1.0 });
}

/// Powers of distances of 1e-10 overflow in f32, and f32 coordinates do not resolve such distances, unless each box has
/// its own units and origin.
#[test]
fn clusters_below_the_resolution_of_f32() {
    fn check<F: Known>(family: F) {
        let family = family;
        let points = CloudKind::TwoClusters.points(1000, 8);
        let q = strengths::<F>(&points);
        let all = Targets::Sources;
        let exact = direct(&family, both(), &points, &q, all, Precision::F64, Isa::detect()).unwrap();
        let found = solve(&family, geometry(&points, None, 20), &settings(5, Precision::F32), &q);
        let (d, promised) = (difference::<F>(&found, &exact), bounds(&family)[3]);
        assert!(d < promised, "{}: {d:e} above {promised:e}", family.name());
    }
    check(LaplaceDipole);
    check(Stokes { mu: 1.0 });
}

/// Squares of lengths of 1e±30 leave the range of f32, unless each box has its own units.
#[test]
fn huge_and_tiny_lengths_in_f32() {
    for h in [1e30, 1e-30] {
        let points: Vec<f64> = CloudKind::Ellipsoid.points(1000, 8).iter().map(|x| x * h).collect();
        let family = Yukawa { kappa: 2.0 / h };
        let q = strengths::<Yukawa>(&points);
        let all = Targets::Sources;
        let exact = direct(&family, both(), &points, &q, all, Precision::F64, Isa::detect()).unwrap();
        let found = solve(&family, geometry(&points, None, 20), &settings(6, Precision::F32), &q);
        let d = difference::<Yukawa>(&found, &exact);
        assert!(d < 1e-4, "{h}: {d:e}");
    }
}
