//! Unusual input that must work.

use crate::{both, difference, direct, fast, in_turn, strengths, uniform};
use fmm::{
    AnyFamily, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, Method, Outputs, Precision, Stokes, StokesPressure,
    Stresslet, Targets, Yukawa,
};
use fmm_traits::testkit::clouds::CloudKind;

#[test]
fn nothing_in_or_nothing_out() {
    let x = uniform(50, 1);
    for method in [Method::Auto, Method::Direct, Method::EquivalentDensities] {
        let builder = Fmm::new(Stokes { mu: 1.0 }).method(method).outputs(both());
        let none = builder.plan(&[], &x).unwrap();
        let out = none.apply(&[]).unwrap();
        assert_eq!(none.verify_output(&[], &out, 10).unwrap().worst(), 0.0);
        assert_eq!((out.potential, out.gradient), (vec![0.0; 150], vec![0.0; 450]));
        assert!(none.apply_transpose(&[1.0; 150]).unwrap().is_empty());
        let empty: &[f64] = &[];
        let none = builder.plan(&x, empty).unwrap();
        let out = none.apply(&strengths(150, 1)).unwrap();
        assert_eq!((out.potential.len(), out.gradient.len()), (0, 0));
        assert_eq!(none.apply_transpose(&[]).unwrap(), vec![0.0; 150]);
        let none = builder.plan(&[], Targets::Sources).unwrap();
        assert_eq!(none.verify(&[], 10).unwrap().worst(), 0.0);
        assert_eq!(none.near_field().count(), 0);
        assert!(
            builder.plan(&x, Targets::Subset(&[])).unwrap().apply(&strengths(150, 1)).unwrap().potential.is_empty()
        );
    }
}

#[test]
fn one_point() {
    for method in [Method::Auto, Method::Direct, Method::EquivalentDensities] {
        let builder = Fmm::new(Laplace).method(method).outputs(both());
        let alone = builder.plan(&[1.0, 2.0, 3.0], Targets::Sources).unwrap().apply(&[5.0]).unwrap();
        assert_eq!((alone.potential, alone.gradient), (vec![0.0], vec![0.0; 3]));
        let pair = builder.plan(&[0.0; 3], &[0.0, 0.0, 2.0]).unwrap().apply(&[8.0 * std::f64::consts::PI]).unwrap();
        assert!((pair.potential[0] - 1.0).abs() < 1e-6 && (pair.gradient[2] + 0.5).abs() < 1e-6);
    }
}

#[test]
fn coincident_points() {
    let x = CloudKind::Coincident.points(300, 1);
    for method in [Method::Direct, Method::EquivalentDensities] {
        let with = |b: Fmm| b.method(method).outputs(both());
        let out = with(Fmm::new(Laplace)).plan(&x, Targets::Sources).unwrap().apply(&strengths(300, 1)).unwrap();
        assert!(out.potential.iter().chain(&out.gradient).all(|u| *u == 0.0));
        let out = with(Fmm::new(Laplace)).plan(&x, &x).unwrap().apply(&strengths(300, 1)).unwrap();
        assert!(out.potential.iter().chain(&out.gradient).all(|u| *u == 0.0));
        // A softened mass at the same position counts, but the target itself does not.
        let plan = with(Fmm::new(Gravity { g: 1.0, softening: 0.5 })).plan(&x, Targets::Sources).unwrap();
        let out = plan.apply(&[1.0f64; 300]).unwrap();
        assert!(out.potential.iter().all(|u| (u + 299.0 / 0.5).abs() < 1e-6 * 600.0));
    }
}

#[test]
fn fifty_copies_of_each_point() {
    let x = CloudKind::FiftyCopies.points(5000, 2);
    let q = strengths(5000, 3);
    let builder = fast(Laplace).outputs(both()).ncrit(20);
    let plan = builder.plan(&x, Targets::Sources).unwrap();
    let out = plan.apply(&q).unwrap();
    let exact = direct(&builder, &x, Targets::Sources, &q);
    assert!(difference(&out.potential, &exact.potential) <= 1e-6);
    assert!(difference(&out.gradient, &exact.gradient) <= 1e-6);
    let d = plan.describe();
    assert_eq!(d.coincident_groups, 100);
    let about: Vec<_> = d.warnings.iter().filter(|w| w.contains("100 ")).collect();
    assert_eq!(about.len(), 1, "{:?}", d.warnings);
}

#[test]
fn a_far_outlier_and_two_tiny_clusters() {
    for kind in [CloudKind::Outlier, CloudKind::TwoClusters, CloudKind::Grid, CloudKind::Line] {
        let x = kind.points(3000, 4);
        let q = strengths(3000, 5);
        let builder = fast(Laplace).outputs(both());
        let plan = builder.plan(&x, Targets::Sources).unwrap();
        let report = plan.verify(&q, 1000).unwrap();
        assert!(report.worst() <= 1e-6, "{}: {report:?}", kind.name());
    }
}

#[test]
fn huge_and_tiny_coordinates() {
    let (unit, q) = (uniform(3000, 6), strengths(3000, 7));
    for method in [Method::Direct, Method::EquivalentDensities] {
        let builder = Fmm::new(Laplace).method(method).outputs(both());
        let one = builder.plan(&unit, Targets::Sources).unwrap().apply(&q).unwrap();
        for scale in [1e30, 1e-30] {
            let x: Vec<f64> = unit.iter().map(|c| c * scale).collect();
            let out = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
            let (u, g): (Vec<f64>, Vec<f64>) = (
                out.potential.iter().map(|u| u * scale).collect(),
                out.gradient.iter().map(|g| g * scale * scale).collect(),
            );
            assert!(difference(&u, &one.potential) <= 2e-6, "{method:?} {scale:e}");
            assert!(difference(&g, &one.gradient) <= 2e-6, "{method:?} {scale:e}");
        }
    }
}

/// Units of length whose powers leave the range of f32, and in products the range of f64, for sources of every kind.
#[test]
fn huge_and_tiny_units_for_every_kernel() {
    let (unit, other) = (uniform(1200, 6), uniform(500, 8));
    for (u, h) in [1e35, 1e30, 1e-30, 1e-35].into_iter().enumerate() {
        let dilate = |points: &[f64]| -> Vec<f64> { points.iter().map(|c| c * h).collect() };
        let (x, t) = (dilate(&unit), dilate(&other));
        let families: [AnyFamily; 8] = [
            Laplace.into(),
            LaplaceDipole.into(),
            LaplaceMixed.into(),
            Yukawa { kappa: 2.0 / h }.into(),
            Gravity { g: 1.0, softening: 1e-3 * h }.into(),
            Stokes { mu: 0.7 }.into(),
            StokesPressure { mu: 0.7 }.into(),
            Stresslet { mu: 0.7 }.into(),
        ];
        for (_, family) in families.into_iter().enumerate().filter(|(f, _)| in_turn(u + f, 4)) {
            for (precision, tolerance) in [(Precision::F64, 1e-5), (Precision::F32, 1e-2)] {
                for method in [Method::Direct, Method::EquivalentDensities] {
                    let builder = Fmm::new(family.clone()).outputs(both()).precision(precision).tolerance(tolerance);
                    let builder = builder.method(method);
                    let q = strengths(1200 * builder.strengths().unwrap(), 7);
                    for targets in [Targets::Sources, Targets::Points(&t)] {
                        let plan = builder.plan(&x, targets).unwrap();
                        let worst = plan.verify(&q, 1000).unwrap().worst();
                        assert!(worst <= tolerance, "{} {precision:?} {method:?} {h:e}: {worst:e}", family.name());
                    }
                }
            }
        }
    }
}

#[test]
fn far_from_the_origin() {
    let x: Vec<f64> = uniform(3000, 8).iter().map(|c| 1e6 + c).collect();
    let q = strengths(3000, 9);
    let plan = fast(Laplace).outputs(both()).plan(&x, Targets::Sources).unwrap();
    assert!(plan.verify(&q, 500).unwrap().worst() <= 1e-6);
}

#[test]
fn yukawa_without_screening_is_laplace_and_with_much_is_finite() {
    let (x, q) = (uniform(3000, 10), strengths(3000, 11));
    for method in [Method::Direct, Method::EquivalentDensities] {
        let with = |b: Fmm| b.method(method).outputs(both()).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        let (a, b) = (with(Fmm::new(Yukawa { kappa: 0.0 })), with(Fmm::new(Laplace)));
        assert!(difference(&a.potential, &b.potential) <= 2e-6);
        assert!(difference(&a.gradient, &b.gradient) <= 2e-6);
        let far = with(Fmm::new(Yukawa { kappa: 1e5 }));
        assert!(far.potential.iter().chain(&far.gradient).all(|u| u.is_finite()));
    }
}

#[test]
fn many_more_targets_than_sources_and_the_reverse() {
    let (few, many) = (uniform(20, 12), uniform(20_000, 13));
    let q = strengths(20_000, 14);
    for (x, y) in [(&few, &many), (&many, &few)] {
        let builder = fast(Laplace).outputs(Outputs::POTENTIAL);
        let q = &q[..x.len() / 3];
        let out = builder.plan(x, y).unwrap().apply(q).unwrap();
        assert!(difference(&out.potential, &direct(&builder, x, y, q).potential) <= 1e-6);
    }
}

#[test]
fn softening_wider_than_the_leaves() {
    let (x, q) = (uniform(4000, 15), fmm::demo::strengths(4000, 1, 16));
    for softening in [1e-6, 1e-3, 0.05, 10.0] {
        let builder = fast(Gravity { g: 1.0, softening }).outputs(both()).tolerance(1e-5);
        let plan = builder.plan(&x, Targets::Sources).unwrap();
        let report = plan.verify(&q, 500).unwrap();
        assert!(report.worst() <= 1e-5, "{softening}: {report:?}");
    }
}

#[test]
fn points_that_differ_in_the_last_bits() {
    let mut x = uniform(500, 17);
    for i in 0..250 {
        for a in 0..3 {
            x[3 * (i + 250) + a] = x[3 * i + a] * (1.0 + 4.0 * f64::EPSILON);
        }
    }
    let plan = fast(Laplace).ncrit(1).plan(&x, Targets::Sources).unwrap();
    assert!(plan.verify(&strengths(500, 18), 500).unwrap().worst() <= 1e-6);
}

#[test]
fn strengths_in_any_unit_fit_f32() {
    let x = uniform(3000, 1);
    let kilograms: Vec<f64> = strengths(3000, 1).iter().map(|q| (q + 1.0) * 2e33).collect();
    for method in [Method::Direct, Method::EquivalentDensities] {
        let plan = Fmm::new(Laplace).method(method).precision(fmm::Precision::F32).tolerance(1e-3);
        let plan = plan.plan(&x, Targets::Sources).unwrap();
        for unit in [1.0, 1e-80, 1e80] {
            let q: Vec<f64> = kilograms.iter().map(|m| m * unit).collect();
            let out = plan.apply(&q).unwrap().potential;
            let exact = direct(&Fmm::new(Laplace), &x, Targets::Sources, &q).potential;
            assert!(difference(&out, &exact) < 1e-3);
        }
    }
}
