//! The stencils of Gumerov & Duraiswami on the device: lists against the CPU's, array by array, and sums against those of
//! the CPU, which sum the same terms.

use crate::Test;
use crate::far::{difference, ten_runs_give_the_same_bits, tree_of};
use crate::topology::{build, equal_lists, with_ncrit};
use backend_cpu::{Isa, Pairs};
use backend_cuda::{Device, DeviceLists, Plan, Root, SphericalSettings, Translation, TreeOptions, stencil119, uvwx};
use fmm_kernels::spherical::Truncation;
use fmm_kernels::{Laplace, LaplaceMixed, spherical};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Kernels, Lists, Outputs, Precision, Tree};
use fmm_tree::ListOptions;

pub const TESTS: &[Test] = &[
    ("stencil::lists_are_those_of_the_cpu", lists),
    ("stencil::sums_are_those_of_the_cpu", sums),
    ("stencil::families_that_are_not_whole", sparse),
    ("stencil::a_larger_tree_in_both_precisions", larger),
    ("stencil::ten_runs_give_the_same_bits", repeatable),
    ("stencil::edges_without_operators_are_refused", refused),
];

fn lists(device: &Device) {
    let mut g = Generator::new(51);
    for kind in CloudKind::ALL {
        for (n, ncrit) in [(0, 5), (1, 5), (40, 1), (5000, 7), (20_000, 40)] {
            let s = kind.points(n, 50);
            let t = CloudKind::ALL[(g.bits() % 13) as usize].points(n / 3, 52);
            for t in [None, Some(&t[..])] {
                let tree = fmm_tree::build(&s, t, &with_ncrit(ncrit)).unwrap();
                let root = Root::Given(tree.corner, tree.side);
                let there = build(device, &s, t, &TreeOptions { ncrit, min_side: 0.0, root });
                let few = ListOptions { m2p_min_sources: ncrit / 2, p2l_min_targets: ncrit / 3 };
                let here = fmm_tree::stencil119(&tree, &few).unwrap();
                let what = format!("{} {n} {ncrit} {}", kind.name(), t.is_some());
                let lists = stencil119(&there, &few).unwrap();
                equal_lists(&lists.download().unwrap(), &here, &what);
                assert!(lists.hold_for(&few).unwrap(), "{what}");
            }
        }
    }
}

/// The relative difference of the sums of a plan on the device from those of the CPU's driver on the same tree and lists.
fn compared<F: Family>(
    device: &Device,
    family: &F,
    (s, t): (&[f64], Option<&[f64]>),
    ncrit: usize,
    p: usize,
    settings: SphericalSettings,
    precision: Precision,
) -> f64 {
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT;
    let few = ListOptions::default();
    let tree = || tree_of(device, s, t, ncrit);
    let here = tree().download().unwrap();
    let [there, lists] = [0, 1].map(|_| {
        let tree = tree();
        if settings.parents { stencil119(&tree, &few) } else { uvwx(&tree, &few) }.unwrap()
    });
    let lists = lists.download().unwrap();
    let q = normal_strengths(s.len() / 3 * F::Source::STRENGTHS, 53);
    let domains = settings.translation == Some(Translation::Domains);
    let translation = if domains { spherical::Translation::Domains } else { spherical::Translation::Rcr };
    let options = spherical::SphericalOptions { translation, truncation: settings.truncation, ..Default::default() };
    let expected = cpu(family, outputs, (here, lists), p, options, &q);
    let found = match precision {
        Precision::F64 => Plan::<f64, f64>::spherical(family, outputs, p, settings, tree(), there)
            .unwrap()
            .apply(&q, &mut |_, _| true),
        Precision::F32 => Plan::<f32, f64>::spherical(family, outputs, p, settings, tree(), there)
            .unwrap()
            .apply(&q, &mut |_, _| true),
    };
    difference(&found.unwrap().0, &expected)
}

/// The sums of the CPU, in f64.
fn cpu<F: Family>(
    family: &F,
    outputs: Outputs,
    (tree, lists): (Tree, Lists),
    order: usize,
    options: spherical::SphericalOptions,
    q: &[f64],
) -> Vec<f64> {
    let (kernels, pairs) = (Kernels::of(family, outputs).unwrap(), Pairs::of(family, outputs).unwrap());
    let settings =
        backend_cpu::Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None, near: None };
    let targets = tree.targets.len();
    let plan = backend_cpu::spherical::plan(kernels, &pairs, tree, lists, &settings, options).unwrap();
    let mut values = vec![0.0; targets * plan.values()];
    plan.apply(q, &mut values, &mut |_, _| true).unwrap();
    values
}

/// The four choices of ends: boxes, also parents, also domains, and both.
fn ends() -> impl Iterator<Item = (bool, Translation)> {
    let translations = [Translation::Dense, Translation::Rcr, Translation::Domains];
    [false, true].into_iter().flat_map(move |parents| translations.map(|translation| (parents, translation)))
}

fn sums_of<F: Family>(device: &Device, family: &F, points: (&[f64], Option<&[f64]>), ncrit: usize, what: &str) {
    for (p, truncation) in [(5, Truncation::Fixed), (8, Truncation::Variable)] {
        for (parents, translation) in ends() {
            let settings = SphericalSettings { truncation, translation: Some(translation), parents };
            let of = |precision| compared(device, family, points, ncrit, p, settings, precision);
            let [double, single] = [Precision::F64, Precision::F32].map(of);
            println!("{what} p {p} {} {parents}: {double:.1e} {single:.1e}", translation.name());
            assert!(double <= 1e-11 && single <= 2e-5, "{what} {p} {settings:?}: {double:e} {single:e}");
        }
    }
}

fn sums(device: &Device) {
    for kind in [CloudKind::Uniform, CloudKind::Clustered, CloudKind::Ellipsoid] {
        sums_of(device, &Laplace, (&kind.points(1500, 54), None), 9, kind.name());
    }
    let (s, t) = (CloudKind::Plummer.points(1500, 55), CloudKind::Uniform.points(700, 56));
    sums_of(device, &LaplaceMixed, (&s, Some(&t)), 9, "dipoles and charges");
}

/// Targets in few boxes: families with one receiver, with children on one side only, and with targets where there are no
/// sources.
fn sparse(device: &Device) {
    let s = CloudKind::Uniform.points(2000, 57);
    let half: Vec<f64> =
        s.chunks_exact(3).filter(|x| ((8.0 * x[0]) as usize).is_multiple_of(2)).flatten().copied().collect();
    let few: Vec<f64> = half.chunks_exact(3).take(25).flatten().copied().collect();
    let away: Vec<f64> = few.iter().map(|x| 1.2 + 0.3 * x).collect();
    for (t, what) in [(&half, "slabs"), (&few, "few"), (&away, "away")] {
        sums_of(device, &Laplace, (&s, Some(t)), 6, what);
    }
    // A tree without far sources, and one box.
    sums_of(device, &Laplace, (&s[..30], None), 6, "ten points");
    sums_of(device, &Laplace, (&s[..30], None), 60, "one box");
}

fn larger(device: &Device) {
    let s = CloudKind::Clustered.points(30_000, 58);
    for (p, truncation) in [(3, Truncation::Fixed), (13, Truncation::Variable)] {
        for (parents, translation) in [(true, Translation::Rcr), (true, Translation::Domains)] {
            let settings = SphericalSettings { truncation, translation: Some(translation), parents };
            let of = |precision| compared(device, &Laplace, (&s, None), 20, p, settings, precision);
            let [double, single] = [Precision::F64, Precision::F32].map(of);
            println!("p {p} {}: {double:.1e} {single:.1e}", translation.name());
            assert!(double <= 1e-11 && single <= 2e-5, "{settings:?}: {double:e} {single:e}");
        }
    }
}

fn repeatable(device: &Device) {
    let s = CloudKind::Clustered.points(8000, 59);
    let q = normal_strengths(8000, 59);
    for (parents, translation) in [(true, Translation::Dense), (true, Translation::Domains)] {
        let settings = SphericalSettings { truncation: Truncation::Fixed, translation: Some(translation), parents };
        let tree = tree_of(device, &s, None, 30);
        let lists = stencil119(&tree, &ListOptions::default()).unwrap();
        let mut plan = Plan::<f32, f32>::spherical(&Laplace, Outputs::GRADIENT, 6, settings, tree, lists).unwrap();
        ten_runs_give_the_same_bits(&mut plan, &q);
    }
}

fn refused(device: &Device) {
    let s = CloudKind::Uniform.points(3000, 60);
    let tree = || tree_of(device, &s, None, 10);
    let host = |stencil: bool| {
        let tree = tree();
        let make = if stencil { stencil119 } else { uvwx };
        make(&tree, &ListOptions::default()).unwrap().download().unwrap()
    };
    let plan = |lists: &Lists, translation, parents| {
        let lists = DeviceLists::upload(device, lists).unwrap();
        let settings = SphericalSettings { truncation: Truncation::Fixed, translation: Some(translation), parents };
        Plan::<f32, f32>::spherical(&Laplace, Outputs::POTENTIAL, 4, settings, tree(), lists).map(|_| ())
    };
    let [plain, stencil] = [false, true].map(host);
    for translation in [Translation::Dense, Translation::Rcr, Translation::Domains] {
        assert_eq!(plan(&plain, translation, false), Ok(()));
        assert_eq!(plan(&plain, translation, true), Ok(()));
        assert_eq!(plan(&stencil, translation, true), Ok(()));
        // Without operators for parents.
        assert!(matches!(plan(&stencil, translation, false), Err(Error::Edge { .. })));
        // From a child of a box into the box, and from the children of neighbours.
        let mut wrong = plain.clone();
        wrong.m2l = plain.m2m.clone();
        assert!(matches!(plan(&wrong, translation, true), Err(Error::Edge { .. })));
        wrong.m2l = plain.p2p.clone();
        assert!(matches!(plan(&wrong, translation, true), Err(Error::Edge { .. })));
    }
}
