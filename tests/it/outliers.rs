//! Clouds in which few targets have nearly all of the error, and kernels that act on few targets.
//!
//! In a tight cluster nearly all pairs are summed directly. A point just so far beside it that its box does not touch those
//! of the others gets its sum from their expansions. Such outliers can be one target in a thousand, at any depth.

use crate::probe::Kept;
use crate::{both, difference, direct, in_turn};
use fmm::{Error, Fmm, Laplace, Method, Targets};
use fmm_traits::Traced;
use fmm_traits::testkit::clouds::{Generator, normal_strengths, uniform_strengths};

/// Normal clusters of size `spread` at the points of a lattice of k + 1 points a side, where boxes have their corners.
fn clusters(n: usize, k: usize, spread: f64, seed: u64) -> Vec<f64> {
    let mut g = Generator::new(seed);
    let corner = |g: &mut Generator| (g.uniform() * (k + 1) as f64).floor() / k as f64;
    (0..3 * n).map(|_| corner(&mut g) + spread * g.normal()).collect()
}

/// Sums over clusters of so many points, so many clusters a side, and so large, by all methods in turn.
fn keeps_tolerances(clouds: &[(usize, usize, f64)]) {
    let methods = [
        Method::Auto,
        Method::EquivalentDensities,
        Method::SphericalHarmonics,
        Method::Treecode,
        Method::Interpolation,
    ];
    let (mut kept, mut case) = (Kept::default(), 0);
    for &(n, k, spread) in clouds {
        for seed in (0..4).filter(|seed| in_turn(*seed as usize / 2, 2)) {
            let x = clusters(n, k, spread, seed);
            let q = if seed % 2 == 0 { uniform_strengths(n, seed) } else { normal_strengths(n, seed) };
            let builder = Fmm::new(Laplace).outputs(both());
            let exact = direct(&builder, &x, Targets::Sources, &q);
            for tolerance in [1e-4, 1e-6, 1e-9] {
                case += 1;
                let method = methods[case % methods.len()];
                let found = match builder.clone().method(method).tolerance(tolerance).plan(&x, Targets::Sources) {
                    Ok(plan) => plan.apply(&q).unwrap(),
                    Err(Error::ToleranceFloor { .. }) => continue,
                    Err(e) => panic!("{e}"),
                };
                for (found, exact) in [(&found.potential, &exact.potential), (&found.gradient, &exact.gradient)] {
                    kept.count(difference(found, exact), tolerance, || format!("{method:?} {n} {k} {spread:e} {seed}"));
                }
            }
        }
    }
    kept.judge();
}

#[test]
fn outliers_of_clusters_at_corners_keep_the_tolerance() {
    keeps_tolerances(&[(12_000, 4, 1e-10), (20_000, 8, 1e-11), (12_000, 2, 1e-4)]);
}

/// Which pairs of small boxes are summed directly depends on the order. At the lowest orders of equivalent densities the
/// outliers are those beside a box of at least so many sources.
#[test]
fn outliers_at_the_lowest_orders_keep_the_tolerance() {
    keeps_tolerances(&[(12_000, 4, 1e-7)]);
}

/// Where all sampled sums are 0, nothing is known of the errors at the other targets.
#[test]
fn sums_that_no_sampled_target_has_are_not_promised() {
    let (n, mut g) = (20_000, Generator::new(3));
    let x: Vec<f64> = (0..3 * n).map(|_| g.uniform()).collect();
    let builder = Fmm::new(Traced::expression("where(r > 1.64, 1, 0)").unwrap()).tolerance(1e-4);
    let refused = builder.clone().method(Method::Interpolation).plan(&x, Targets::Sources);
    assert!(matches!(refused, Err(Error::ToleranceFloor { .. })), "{:?}", refused.map(|plan| plan.describe()));
    let q = vec![1.0; n];
    let exact = direct(&builder, &x, Targets::Sources, &q);
    assert!(exact.potential.iter().any(|&u| u > 0.0));
    let found = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    assert!(difference(&found.potential, &exact.potential) <= 1e-4);
}

/// A gradient that is 0 everywhere has no error, and is no reason to refuse.
#[test]
fn a_gradient_that_is_zero_is_promised() {
    let x = crate::uniform(20_000, 1);
    let builder = Fmm::new(Traced::expression("3*q").unwrap()).outputs(both()).tolerance(1e-6);
    let plan = builder.method(Method::Interpolation).plan(&x, Targets::Sources).unwrap();
    let found = plan.apply(&crate::strengths(20_000, 2)).unwrap();
    assert!(found.gradient.iter().all(|&g| g == 0.0));
}
