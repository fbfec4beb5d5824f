//! Errors of an order, in both norms, of potential and gradient.

use adaptive2d::{ConnectOptions, Laurent, Norm, Pyramid, PyramidOptions, connect};
use backend_cpu::Isa;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace, PlanePairs};
use fmm_kernels::{Harmonic2d, Laplace2d};
use fmm_traits::testkit::clouds::{normal_strengths, uniform_strengths};
use fmm_traits::testkit::{in_turn, plane::PlaneKind};
use fmm_traits::{Cloud, ErrorReport, Expansion, OutputError, Outputs};

/// Columns `from..to` of rows of `width`.
fn columns(rows: &[f64], width: usize, from: usize, to: usize) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[from..to]).copied().collect()
}

/// Tolerances from 1e-3 to the floor of a gradient's 1e-10 and of a potential's 1e-12.
const TOLERANCES: [f64; 10] = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12];

/// The order p of an error C·θ^p (Engblom 2011). C was measured over all clouds of the testkit, and is 20 times as
/// large if most sources coincide: their leaves have no near field, so only the far field is left in the norm.
fn order_of(tolerance: f64, theta: f64, norm: Norm, kind: PlaneKind) -> usize {
    let constant = if norm == Norm::L2 { 0.1 } else { 2.0 };
    let copies = if matches!(kind, PlaneKind::FiftyCopies | PlaneKind::Coincident) { 20.0 } else { 1.0 };
    let terms = ((tolerance / constant).ln() / theta.ln()).ceil() + (f64::ln(copies) / -theta.ln()).ceil();
    terms.max(1.0) as usize
}

#[test]
fn errors_stay_below_those_of_the_order() {
    for (k, kernel) in [PlanePairs::from(Harmonic2d), Laplace2d.into()].into_iter().enumerate() {
        let kinds = PlaneKind::ALL.into_iter().filter(|kind| *kind != PlaneKind::Single).enumerate();
        for (_, kind) in kinds.filter(|(cloud, _)| in_turn(k + cloud, 2)) {
            let points = kind.points(6000, 9);
            let xyz: Vec<[f64; 3]> = points.chunks(2).map(|p| [p[0], p[1], 0.0]).collect();
            let count = 6000 * kernel.strengths();
            let both = [("normal", normal_strengths(count, 10)), ("(0, 1)", uniform_strengths(count, 10))];
            // Each tolerance at both θ, one with either kind of strengths.
            for ((drawn, strengths), thetas) in both.into_iter().zip([[0.5, 0.55], [0.55, 0.5]]) {
                let series = |order| Laurent::new(kernel.kernel, order, 1).unwrap();
                let (width, first) = (series(1).values(), kernel.strengths());
                let mut exact = vec![0.0; 500 * width];
                series(1).p2p(Cloud { xyz: &xyz, strengths: &strengths }, &xyz[..500], true, &mut exact);
                for (tolerance, theta) in TOLERANCES.into_iter().zip(thetas.into_iter().cycle()) {
                    for norm in [Norm::L2, Norm::Max] {
                        let pyramid = Pyramid::build(&points, None, &PyramidOptions::default()).unwrap();
                        let order = order_of(tolerance, theta, norm, kind);
                        let lists = connect(&pyramid, &ConnectOptions { theta, ..Default::default() }).unwrap();
                        let rough = tolerance >= 1e-7;
                        let plan = LaurentPlan::new(kernel, (order, 1), pyramid, lists, Isa::detect(), rough).unwrap();
                        let plan = plan.shortened(theta);
                        let mut out = vec![0.0; 6000 * width];
                        plan.apply(&mut LaurentWorkspace::default(), &strengths, &mut out, &mut |_, _| true).unwrap();
                        let what = format!(
                            "{} {} {drawn} {tolerance:e} {norm:?} θ {theta} p {order}",
                            kernel.name(),
                            kind.name()
                        );
                        let rows = |from, to| {
                            (columns(&out[..500 * width], width, from, to), columns(&exact, width, from, to))
                        };
                        for (from, to) in [(0, first), (first, width)] {
                            let (found, exact) = rows(from, to);
                            let error = OutputError::of(Outputs::POTENTIAL, &found, &exact, to - from);
                            assert!(error.rel_l2 < tolerance, "{what}: {:e}", error.rel_l2);
                        }
                        // Copies that cancel have no bound; of all at one place the potential is 0.
                        let copies = matches!(kind, PlaneKind::FiftyCopies | PlaneKind::Coincident);
                        if norm == Norm::Max && kernel.complex() && !copies {
                            let (found, exact) = rows(0, 2);
                            let error = OutputError::of(Outputs::POTENTIAL, &found, &exact, 2);
                            assert!(error.max_rel < tolerance, "{what}: {:e}", error.max_rel);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn errors_of_rows() {
    let of = |found: &[f64], exact: &[f64]| OutputError::of(Outputs::POTENTIAL, found, exact, 2);
    let e = of(&[3.0, 4.0, 0.3, 0.1], &[3.0, 4.5, 0.3, 0.4]);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-15;
    // Differences 0.5 and 0.3 of rows of lengths √29.25 and 0.5.
    assert!(close(e.max_rel, 0.6) && close(e.rel_l2, (0.34f64 / 29.5).sqrt()) && close(e.rms, 0.17f64.sqrt()));
    assert!(close(e.max_over_rms, 0.5 / 14.75f64.sqrt()));
    assert_eq!(of(&[0.0; 2], &[0.0; 2]).max_rel, 0.0);
    assert_eq!(of(&[0.0, 1.0], &[0.0; 2]).max_rel, f64::INFINITY);
    let report = |e| ErrorReport { samples: 2, outputs: vec![e] };
    let both = report(e).worse(&report(of(&[1.0, 0.0], &[0.5, 0.0])));
    assert_eq!((both.outputs[0].rel_l2, both.outputs[0].max_rel), (1.0, 1.0));
}
