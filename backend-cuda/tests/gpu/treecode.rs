//! Treecodes on the device: lists against the CPU's, array by array, and whole runs against direct sums.

use crate::Test;
use crate::far::difference;
use crate::topology::{build, equal_lists};
use backend_cuda::{
    Acceptance, Device, Direct, Expansion, Root, Settings, SphericalSettings, TreeOptions, solver, treecode,
};
use fmm_kernels::equivalent::Fill;
use fmm_kernels::spherical::Truncation;
use fmm_kernels::{Laplace, Stokes, equivalent, spherical};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths};
use fmm_traits::{Cube, Error, Family, Kernels, Outputs, Policy, Precision, Targets};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};

pub const TESTS: &[Test] = &[
    ("treecode::lists_are_those_of_the_cpu", lists),
    ("treecode::deep_trees_and_softened_kernels", deep),
    ("treecode::errors_fall_with_the_angle", angles),
];

type Valid = fn(Cube, Cube) -> bool;

fn same(device: &Device, s: &[f64], t: Option<&[f64]>, theta: f64, near: f64, what: &str) {
    let chosen = BuildOptions { ncrit: Some(13), ..Default::default() };
    let tree = fmm_tree::build(s, t, &chosen).unwrap();
    let given = TreeOptions { ncrit: 13, min_side: 0.0, root: Root::Given(tree.corner, tree.side) };
    let there = build(device, s, t, &given);
    let apart = |t: Cube, s: Cube| {
        let gap = |a: usize| ((t.center[a] - s.center[a]).abs() - 0.5 * (t.side + s.side)).max(0.0);
        gap(0).hypot(gap(1)).hypot(gap(2)) >= near
    };
    let (ball, cube) = (spherical::expansion::M2P_RADIUS, equivalent::expansion::M2P_RADIUS);
    let rules: [(f64, f64, Valid); 3] = [
        (0.0, 0.0, |_, _| true),
        (ball, 0.0, spherical::expansion::m2p_valid),
        (0.0, cube, equivalent::expansion::m2p_valid),
    ];
    for (sphere, cube, valid) in rules {
        for m2p_min_sources in [0, 5] {
            let options = TreecodeOptions { theta, m2p_min_sources };
            let here = fmm_tree::treecode(&tree, &options, |t, s| valid(t, s) && (near == 0.0 || apart(t, s))).unwrap();
            let lists = treecode(&there, &options, Acceptance { sphere, cube, near }).unwrap();
            equal_lists(&lists.download().unwrap(), &here, what);
        }
    }
}

fn lists(device: &Device) {
    let t = CloudKind::Plummer.points(700, 6);
    for kind in CloudKind::ALL {
        for n in [0, 1, 40, 6000] {
            let s = kind.points(n, 5);
            for theta in [0.3, 2.0 / 3.0, 1.1] {
                let what = format!("{} {n} {theta}", kind.name());
                same(device, &s, None, theta, 0.0, &what);
                same(device, &s, Some(&t), theta, 0.0, &what);
            }
        }
    }
    let tree = build(device, &t, None, &TreeOptions { ncrit: 10, min_side: 0.0, root: Root::Smallest });
    let wrong = treecode(&tree, &TreecodeOptions { theta: 0.0, m2p_min_sources: 0 }, Acceptance::default());
    assert!(matches!(wrong, Err(Error::Parameter { name: "theta", .. })));
}

fn deep(device: &Device) {
    // Clusters within clusters, far below one key.
    let mut generator = Generator::new(9);
    let s: Vec<f64> = (0..3000).map(|i| 0.3 + (-((i / 3) as f64) / 20.0).exp2() * generator.uniform()).collect();
    same(device, &s, None, 0.6, 0.0, "deep");
    same(device, &CloudKind::Uniform.points(5000, 3), None, 0.8, 0.4, "near");
}

fn errors_of<F: Family>(device: &Device, family: &F, expansion: Expansion, order: usize, theta: f64) -> f64 {
    let (s, outputs) = (CloudKind::Uniform.points(6000, 1), Outputs::POTENTIAL);
    let tree = BuildOptions { ncrit: Some(40), ..Default::default() };
    let (lists, policy) = (ListOptions { m2p_min_sources: 8, p2l_min_targets: 8 }, Policy::Treecode { theta });
    let settings = Settings { expansion, policy, order, lists, beside: None, cache: None };
    let points = crate::placed(device, &tree, &s, None).unwrap();
    let plan = solver(&Kernels::of(family, outputs).unwrap(), &settings, Precision::F64, points).unwrap();
    let q = normal_strengths(6000 * plan_strengths::<F>(), 2);
    let mut u = vec![0.0; 6000 * plan.values()];
    plan.apply(&q, &mut u, &mut |_, _| true).unwrap();
    assert!(plan.counts().edges[6] > 0 && plan.counts().edges[2] == 0, "{:?}", plan.counts());
    let mut sum =
        Direct::<f64>::new(device, &Kernels::of(family, outputs).unwrap(), &s, Targets::Sources, None).unwrap();
    difference(&u, &sum.apply(&q).unwrap())
}

fn plan_strengths<F: Family>() -> usize {
    <F::Source as fmm_traits::Kernel>::STRENGTHS
}

fn angles(device: &Device) {
    let mut last = f64::INFINITY;
    for theta in [1.0, 0.6, 0.4] {
        let settings = SphericalSettings { truncation: Truncation::Fixed, translation: None, parents: false };
        let harmonics = errors_of(device, &Laplace, Expansion::Spherical(settings), 8, theta);
        let densities = errors_of(device, &Laplace, Expansion::Equivalent(Fill::Surface), 6, theta);
        let flow = errors_of(device, &Stokes { mu: 1.0 }, Expansion::Equivalent(Fill::Surface), 5, theta);
        println!("{theta}: {harmonics:.1e} {densities:.1e} {flow:.1e}");
        assert!(harmonics < 0.5 * last && densities < 1e-4 && flow < 1e-3);
        last = harmonics;
    }
    assert!(last < 1e-6, "{last:e}");
}
