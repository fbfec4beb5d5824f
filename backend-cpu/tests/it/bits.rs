//! Changes that must not alter a bit of the result, and changes that may alter only the last bits.

use super::*;
use fmm_kernels::{Laplace, Stokes, Yukawa};

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

fn threads<F: Known>(family: F, precision: Precision) {
    let family = family;
    let points = CloudKind::Ellipsoid.points(3000, 4);
    let q = strengths::<F>(&points);
    let run = || solve(&family, geometry(&points, None, 20), &settings(4, precision), &q);
    let one = pool(1).install(run);
    for n in [2, 3] {
        assert!(one == pool(n).install(run), "{} {}: {n} threads", family.name(), precision.name());
    }
    let (tree, lists) = geometry(&points, None, 20);
    let elsewhere = pool(2).install(|| plan(&family, both(), tree, lists, &settings(4, precision)).unwrap());
    assert!(one == pool(3).install(|| apply(&*elsewhere, &q)), "{}: plan made in another pool", family.name());
}

#[test]
fn threads_change_no_bit() {
    threads(Laplace, Precision::F64);
    threads(Laplace, Precision::F32);
    threads(Stokes { mu: 1.0 }, Precision::F64);
    threads(Yukawa { kappa: 1.0 }, Precision::F32);
}

#[test]
fn repeated_and_concurrent_applications_change_no_bit() {
    let family = Stokes { mu: 1.0 };
    let points = CloudKind::Ellipsoid.points(2000, 4);
    let (tree, lists) = geometry(&points, None, 20);
    let solver = plan(&family, both(), tree, lists, &settings(4, Precision::F64)).unwrap();
    let first = strengths::<Stokes>(&points);
    let second: Vec<f64> = first.iter().map(|q| 1.0 - q * q).collect();
    let expected = [&first, &second].map(|q| apply(&*solver, q));
    assert_ne!(expected[0], expected[1]);
    assert!(expected[0] == apply(&*solver, &first), "a repetition");
    std::thread::scope(|scope| {
        for (q, expected) in [&first, &second].into_iter().zip(&expected) {
            let solver = &solver;
            scope.spawn(move || {
                for _ in 0..4 {
                    assert!(*expected == apply(&**solver, q), "two applications at once");
                }
            });
        }
    });
}

#[test]
fn a_cancelled_application_leaves_no_trace() {
    let family = Laplace;
    let points = uniform(1000, 4);
    let (tree, lists) = geometry(&points, None, 20);
    let solver = plan(&family, both(), tree, lists, &settings(4, Precision::F64)).unwrap();
    let q = strengths::<Laplace>(&points);
    let expected = apply(&*solver, &q);
    for limit in [0.05, 0.35, 0.75] {
        let mut out = vec![0.0; expected.len()];
        let stopped = solver.apply(&q, &mut out, &mut |_, done| done < limit);
        assert!(matches!(stopped, Err(Error::Cancelled { .. })));
        assert!(expected == apply(&*solver, &q), "after a stop at {limit}");
    }
}

#[test]
fn moved_points_are_a_new_plan() {
    fn check<F: Known>(family: F) {
        let family = family;
        // One leaf, a shallow tree, a deep tree, separate targets, no points, and back.
        let clouds = [uniform(10, 1), uniform(800, 2), CloudKind::TwoClusters.points(500, 3), uniform(1200, 4)];
        let (tree, lists) = geometry(&clouds[3], None, 20);
        let settings = settings(4, Precision::F64);
        let mut solver = plan(&family, both(), tree, lists, &settings).unwrap();
        for (sources, targets) in [(0, None), (1, None), (2, None), (1, Some(3)), (2, Some(0)), (3, None)]
            .map(|(s, t): (usize, Option<usize>)| (&clouds[s], t.map(|t| &clouds[t][..])))
        {
            let q = strengths::<F>(sources);
            let (tree, lists) = geometry(sources, targets, 20);
            solver.set_tree(tree, lists).unwrap();
            let fresh = solve(&family, geometry(sources, targets, 20), &settings, &q);
            assert!(fresh == apply(&*solver, &q), "{} sources", sources.len() / 3);
        }
    }
    check(Laplace);
    check(Yukawa { kappa: 1.0 });
}

#[test]
fn instruction_sets_agree_to_rounding() {
    let family = Stokes { mu: 1.0 };
    let points = CloudKind::Ellipsoid.points(2000, 4);
    let q = strengths::<Stokes>(&points);
    for (precision, tolerance) in [(Precision::F64, 1e-12), (Precision::F32, 2e-5)] {
        let run = |isa| solve(&family, geometry(&points, None, 20), &Settings { isa, ..settings(4, precision) }, &q);
        let portable = run(Isa::Portable);
        for isa in Isa::available() {
            let d = difference::<Stokes>(&run(isa), &portable);
            assert!(d < tolerance, "{} {}: {d:e}", isa.name(), precision.name());
        }
    }
}
