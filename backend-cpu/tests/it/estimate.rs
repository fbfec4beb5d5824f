//! Estimates of the error of spherical harmonics against errors.

use backend_cpu::spherical::estimate::{Estimate, Question};
use backend_cpu::{Isa, Precision, Settings, Targets, direct, spherical};
use fmm_kernels::Laplace;
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Lists, Outputs, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build, stencil119, treecode, uvwx};

const N: usize = 3000;

fn by_uvwx(tree: &Tree) -> Lists {
    uvwx(tree, &ListOptions::default()).unwrap()
}
fn by_stencil(tree: &Tree) -> Lists {
    stencil119(tree, &ListOptions::default()).unwrap()
}
fn by_treecode(tree: &Tree) -> Lists {
    let valid = fmm_kernels::spherical::expansion::m2p_valid;
    treecode(tree, &TreecodeOptions { theta: 0.7, m2p_min_sources: 0 }, valid).unwrap()
}

/// Errors over estimates of potential, gradient and Hessian for normal strengths.
fn ratios(
    x: &[f64],
    targets: Option<&[f64]>,
    lists: fn(&Tree) -> Lists,
    truncation: Truncation,
    order: usize,
) -> [f64; 3] {
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
    let q = normal_strengths(x.len() / 3, 3);
    let tree = build(x, targets, &BuildOptions { ncrit: Some(30), ..Default::default() }).unwrap();
    let lists = lists(&tree);
    let question = Question { truncation, least: 1, orders: order, outputs: 3, soft: 0.0, isa: Isa::detect() };
    let estimate = Estimate::new(&tree, &lists, question);
    let settings = Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None };
    let options = SphericalOptions { translation: Translation::Rcr, truncation };
    let plan = spherical::plan(&Laplace, outputs, tree, lists, &settings, options).unwrap();
    let mut out = vec![0.0; plan.tree().targets.len() * 10];
    plan.apply(&q, &mut out, &mut |_, _| true).unwrap();
    let at = targets.map_or(Targets::Sources(None), Targets::Points);
    let exact = direct(&Laplace, outputs, x, &q, at, Precision::F64, Isa::detect()).unwrap().0;
    // Entries of the Hessian beside the diagonal count twice.
    let weights = [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 2.0, 1.0];
    let mut k = 0;
    [0..1, 1..4, 4..10].map(|range| {
        let square = |row: &[f64]| range.clone().map(|i| weights[i] * row[i] * row[i]).sum::<f64>();
        let rows = || out.chunks_exact(10).zip(exact.chunks_exact(10));
        let errors = rows().map(|(a, b)| square(&std::array::from_fn::<f64, 10, _>(|i| a[i] - b[i]))).sum::<f64>();
        let sums = rows().map(|(_, b)| square(b)).sum::<f64>();
        k += 1;
        (errors / sums).sqrt() / estimate.error(k - 1, order)
    })
}

#[test]
fn errors_are_those_to_be_expected() {
    for kind in
        CloudKind::ALL.into_iter().filter(|k| ![CloudKind::Coincident, CloudKind::Single, CloudKind::Line].contains(k))
    {
        let x = kind.points(N, 21);
        for (lists, truncation) in [
            (by_uvwx as fn(&Tree) -> Lists, Truncation::Variable),
            (by_stencil, Truncation::Variable),
            (by_uvwx, Truncation::Fixed),
            (by_treecode, Truncation::Fixed),
            (by_treecode, Truncation::Variable),
        ] {
            for order in [3, 8, 14] {
                let found = ratios(&x, None, lists, truncation, order);
                // Of a derivative the sums are those of a few close pairs, some of which an estimate leaves away.
                let least = [0.1, 0.02, 1e-3];
                for k in 0..3 {
                    assert!((least[k]..2.5).contains(&found[k]), "{} {order} {truncation:?}: {found:?}", kind.name());
                }
            }
        }
    }
}

#[test]
fn targets_apart_are_seen() {
    let x = CloudKind::Ellipsoid.points(N, 21);
    for shift in [0.0, 1.2, 30.0] {
        let targets: Vec<f64> = CloudKind::Uniform.points(N, 22).iter().map(|t| t + shift).collect();
        let found = ratios(&x, Some(&targets), by_uvwx, Truncation::Variable, 6);
        let least = [0.1, 0.02, 1e-3];
        assert!((0..3).all(|k| (least[k]..2.5).contains(&found[k])), "{shift}: {found:?}");
    }
}

#[test]
fn what_is_summed_directly_has_no_error() {
    let tree = build(&CloudKind::Uniform.points(50, 1), None, &BuildOptions { ncrit: Some(60), ..Default::default() })
        .unwrap();
    let question =
        Question { truncation: Truncation::Fixed, least: 1, orders: 5, outputs: 2, soft: 0.0, isa: Isa::Portable };
    let estimate = Estimate::new(&tree, &by_uvwx(&tree), question);
    assert_eq!([estimate.error(0, 1), estimate.error(1, 5)], [0.0; 2]);
    assert_eq!(estimate.error(0, 6), f64::INFINITY);
}
