//! Spherical harmonics on the device: each group of stages against the plain form on the CPU, whole runs against
//! direct sums.

use crate::Test;
use crate::far::{difference, errors_with, groups, ten_runs_give_the_same_bits, tree_of};
use backend_cpu::pairwise::Pairwise;
use backend_cuda::{
    Device, DeviceLists, DeviceScalar, Direct, Expansion, Plan, Settings, SphericalSettings, Translation, solver, uvwx,
};
use fmm_kernels::spherical::{self, SphericalExpansion, SphericalOptions, Truncation};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::tree::Lists;
use fmm_traits::{Error, Family, Kernel, Kernels, Outputs, Policy, Precision, Real, Targets, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};

pub const TESTS: &[Test] = &[
    ("spherical::each_group_of_stages_agrees_with_the_cpu", stages),
    ("spherical::rotations_are_the_dense_products", rotations),
    ("spherical::every_cloud_in_both_precisions", clouds),
    ("spherical::every_family_with_harmonics", families),
    ("spherical::errors_fall_with_the_order", orders),
    ("spherical::a_solver_moves_its_points", solvers),
    ("spherical::ten_runs_give_the_same_bits", repeatable),
    ("spherical::kernels_orders_and_edges_without_harmonics", errors),
];

/// All degrees, as is fastest.
const ALL: SphericalSettings = SphericalSettings { truncation: Truncation::Fixed, translation: None, parents: false };

/// The plain form on the CPU: values in the caller's order.
fn plain(kernels: &Kernels, tree: &Tree, lists: &Lists, p: usize, truncation: Truncation, q: &[f64]) -> Vec<f64> {
    let options = SphericalOptions { translation: spherical::Translation::Direct, truncation, ..Default::default() };
    let expansion = SphericalExpansion::<f64>::new(kernels, p, options).unwrap();
    let values = Pairwise::new(tree, lists, &expansion).unwrap().apply(q, &mut |_, _| true).unwrap();
    values.iter().map(|x| x * kernels.scale).collect()
}

fn stages_of<F: Family>(device: &Device, family: &F, outputs: Outputs, kind: CloudKind, other: bool) {
    let s = kind.points(1500, 30);
    let t = other.then(|| CloudKind::Uniform.points(700, 31));
    let q = normal_strengths(1500 * F::Source::STRENGTHS, 30);
    let kernels = Kernels::of(family, outputs).unwrap();
    let here = tree_of(device, &s, t.as_deref(), 12).download().unwrap();
    let all = fmm_tree::uvwx(&here, &ListOptions::default()).unwrap();
    let theta = TreecodeOptions { theta: 0.6, m2p_min_sources: 4 };
    let treecode = fmm_tree::treecode(&here, &theta, fmm_kernels::spherical::expansion::m2p_valid).unwrap();
    let all: Vec<(&str, Lists)> = groups(&all).into_iter().chain([("treecode", treecode)]).collect();
    for (p, truncation) in [(5, Truncation::Fixed), (8, Truncation::Variable), (1, Truncation::Fixed)] {
        for (name, lists) in &all {
            let v = plain(&kernels, &here, lists, p, truncation, &q);
            let of =
                |lists: &Lists| (tree_of(device, &s, t.as_deref(), 12), DeviceLists::upload(device, lists).unwrap());
            let what = format!("{} {} p {p} {name}", family.name(), kind.name());
            for translation in [Translation::Dense, Translation::Rcr] {
                let (what, settings) = (
                    format!("{what} {}", translation.name()),
                    SphericalSettings { truncation, translation: Some(translation), parents: false },
                );
                let (tree, there) = of(lists);
                let mut plan = Plan::<f64, f64>::spherical(family, outputs, p, settings, tree, there).unwrap();
                let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
                let e = difference(&u, &v);
                // Both sum the same terms.
                assert!(e <= 1e-11, "{what}: {e:e}");
                let (tree, there) = of(lists);
                let mut plan = Plan::<f32, f64>::spherical(family, outputs, p, settings, tree, there).unwrap();
                let single = difference(&plan.apply(&q, &mut |_, _| true).unwrap().0, &v);
                println!("{what}: {e:.1e} {single:.1e}");
                let bound = if outputs.contains(Outputs::HESSIAN) { 1e-3 } else { 2e-5 };
                assert!(single <= bound, "{what} in f32: {single:e}");
            }
            // A field of monopoles alone has no multipoles of dipoles.
            assert!(p == 1 || v.iter().any(|&x| x != 0.0), "{what} does nothing");
        }
    }
}

fn stages(device: &Device) {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    stages_of(device, &Laplace, Outputs::POTENTIAL, CloudKind::Clustered, false);
    stages_of(device, &Laplace, both, CloudKind::Plummer, true);
    stages_of(device, &Laplace, both | Outputs::HESSIAN, CloudKind::Plummer, false);
    stages_of(device, &LaplaceDipole, both, CloudKind::Clustered, true);
    stages_of(device, &LaplaceMixed, both, CloudKind::Plummer, true);
}

/// Over whole trees, in both precisions, from the smallest to the largest order.
fn rotations(device: &Device) {
    fn of<T: DeviceScalar>(device: &Device, p: usize, truncation: Truncation, n: usize, other: bool) -> f64 {
        let s = CloudKind::Clustered.points(n, 33);
        let t = other.then(|| CloudKind::Uniform.points(n / 3, 34));
        let q = normal_strengths(n, 33);
        let run = |translation| {
            let tree = tree_of(device, &s, t.as_deref(), 20);
            let lists = uvwx(&tree, &ListOptions::default()).unwrap();
            let settings = SphericalSettings { truncation, translation: Some(translation), parents: false };
            let mut plan = Plan::<T, f64>::spherical(&Laplace, Outputs::POTENTIAL, p, settings, tree, lists).unwrap();
            plan.apply(&q, &mut |_, _| true).unwrap().0
        };
        difference(&run(Translation::Rcr), &run(Translation::Dense))
    }
    for (p, n, other) in [(1, 900, true), (2, 3000, false), (3, 3000, true), (7, 20_000, false), (13, 5000, true)] {
        let e = [Truncation::Fixed, Truncation::Variable, Truncation::Bound]
            .map(|how| [of::<f64>(device, p, how, n, other), of::<f32>(device, p, how, n, other)]);
        println!("p {p}: {e:?}");
        assert!(e.iter().all(|e| e[0] <= 1e-13 && e[1] <= 1e-5), "p {p}: {e:?}");
    }
    // Dense matrices of high orders would take gigabytes.
    let s = CloudKind::Uniform.points(4000, 35);
    let settings = SphericalSettings { translation: Some(Translation::Rcr), ..ALL };
    let mut last = 1.0;
    for p in [20, 30, 40] {
        let run =
            |tree, lists| Plan::<f64, f64>::spherical(&Laplace, Outputs::POTENTIAL, p, settings, tree, lists).unwrap();
        let e = errors_with(device, &Laplace, Outputs::POTENTIAL, &s, None, 25, run)[0];
        let single =
            |tree, lists| Plan::<f32, f64>::spherical(&Laplace, Outputs::POTENTIAL, p, settings, tree, lists).unwrap();
        let single = errors_with(device, &Laplace, Outputs::POTENTIAL, &s, None, 25, single)[0];
        println!("p {p}: {e:.1e} {single:.1e}");
        assert!(e < 0.05 * last && single < 1e-5, "p {p}: {e:e} after {last:e}, in f32 {single:e}");
        last = e;
    }
}

/// Relative errors of the outputs of a whole run.
fn errors_of<T: DeviceScalar, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    p: usize,
    (s, t): (&[f64], Option<&[f64]>),
) -> Vec<f64> {
    errors_with(device, family, outputs, s, t, 25, |tree, lists| {
        Plan::<T, f64>::spherical(family, outputs, p, ALL, tree, lists).unwrap()
    })
}

/// Twice the largest relative ℓ2 error of charges at order `p` over the clouds of the testkit, of the potential or the
/// gradient, measured with leaves three times as large (docs/notes/spherical-errors.md).
fn bound<T: Real>(p: usize, gradient: bool) -> f64 {
    let [potential, of_gradient] = match p {
        7 => [1.3e-4, 1.6e-3],
        8 => [5.8e-5, 8.2e-4],
        10 => [1.7e-5, 2.9e-4],
        12 => [5.0e-6, 1.1e-4],
        _ => panic!("order {p} was not measured"),
    };
    let rounding = if T::EPSILON < 1e-10 { 1e-14 } else { 1.5e-6 };
    2.0 * (rounding + if gradient { of_gradient } else { potential })
}

fn clouds(device: &Device) {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for kind in CloudKind::ALL {
        for n in [0, 1, 20, 6000] {
            let (s, t) = (kind.points(n, 24), CloudKind::Plummer.points(500, 25));
            for t in [None, Some(&t[..])] {
                let double = errors_of::<f64, _>(device, &Laplace, both, 10, (&s, t));
                let single = errors_of::<f32, _>(device, &Laplace, both, 7, (&s, t));
                let what = format!("{} {n} {}: {double:?} {single:?}", kind.name(), t.is_some());
                println!("{what}");
                // Targets apart see the far field alone.
                let more = if t.is_some() { 10.0 } else { 1.0 };
                for k in [0, 1] {
                    assert!(double[k] <= more * bound::<f64>(10, k > 0), "{what}");
                    assert!(single[k] <= more * bound::<f32>(7, k > 0), "{what}");
                }
            }
        }
    }
}

fn families(device: &Device) {
    fn one<F: Family>(device: &Device, family: F) {
        let both = Outputs::POTENTIAL | Outputs::GRADIENT;
        let (s, t) = (CloudKind::Uniform.points(3000, 22), CloudKind::Uniform.points(1000, 23));
        for t in [None, Some(&t[..])] {
            let e = errors_of::<f64, F>(device, &family, both, 12, (&s, t));
            println!("{}: {e:?}", family.name());
            let dipoles = if F::Source::STRENGTHS > 1 { 4.0 } else { 1.0 };
            assert!((0..2).all(|k| e[k] <= dipoles * bound::<f64>(12, k > 0)), "{}: {e:?}", family.name());
        }
    }
    one(device, Laplace);
    one(device, LaplaceDipole);
    one(device, LaplaceMixed);
    one(device, Gravity { g: 2.0, softening: 0.0 });
}

fn orders(device: &Device) {
    let s = CloudKind::Uniform.points(20_000, 26);
    let mut last = 1.0;
    for p in [2, 5, 9, 14, 20] {
        let e = errors_of::<f64, _>(device, &Laplace, Outputs::POTENTIAL, p, (&s, None))[0];
        println!("p {p}: {e:.2e}");
        assert!(e < 0.2 * last, "p {p}: {e:e} after {last:e}");
        last = e;
    }
    assert!(last < 1e-8, "{last:e}");
}

fn solvers(device: &Device) {
    let tree = BuildOptions { occupancy: 40.0, ..Default::default() };
    let lists = ListOptions { m2p_min_sources: 20, p2l_min_targets: 20 };
    let expansion = Expansion::Spherical(ALL);
    let settings = Settings { expansion, policy: Policy::Uvwx, order: 8, lists, beside: None, cache: None };
    let first = CloudKind::Uniform.points(200, 40);
    let (outputs, t) = (Outputs::POTENTIAL, CloudKind::Uniform.points(3000, 42));
    let points = |s: &[f64], t: Option<&[f64]>| crate::placed(device, &tree, s, t);
    let mut plan =
        solver(&Kernels::of(&Laplace, outputs).unwrap(), &settings, Precision::F32, points(&first, None).unwrap())
            .unwrap();
    for kind in CloudKind::ALL {
        let s = kind.points(8000, 41);
        for t in [None, Some(&t[..])] {
            plan.set_points(points(&s, t).unwrap()).unwrap();
            let q = normal_strengths(s.len() / 3, 43);
            let mut u = vec![0.0; t.unwrap_or(&s).len() / 3 * plan.values()];
            plan.apply(&q, &mut u, &mut |_, _| true).unwrap();
            let at = t.map_or(Targets::Sources, Targets::Points);
            let v = Direct::<f64>::new(device, &Kernels::of(&Laplace, outputs).unwrap(), &s, at, None)
                .unwrap()
                .apply(&q)
                .unwrap();
            let e = difference(&u, &v);
            assert!(e <= 10.0 * bound::<f32>(8, false), "{}: {e:e}", kind.name());
            assert!(plan.bytes() > 0 && points(&[f64::NAN; 3], None).is_err());
            let mut again = u.clone();
            plan.apply(&q, &mut again, &mut |_, _| true).unwrap();
            assert_eq!(u, again, "{}: after a refused set of points", kind.name());
        }
    }
}

fn repeatable(device: &Device) {
    let s = CloudKind::Clustered.points(20_000, 28);
    let q = normal_strengths(20_000, 28);
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT;
    for translation in [Translation::Dense, Translation::Rcr] {
        let settings = SphericalSettings { translation: Some(translation), ..ALL };
        let tree = tree_of(device, &s, None, 30);
        let lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let mut plan = Plan::<f32, f32>::spherical(&Laplace, outputs, 6, settings, tree, lists).unwrap();
        ten_runs_give_the_same_bits(&mut plan, &q);
    }
}

fn errors(device: &Device) {
    let s = CloudKind::Uniform.points(2000, 29);
    let tree = || tree_of(device, &s, None, 10);
    let host = uvwx(&tree(), &ListOptions::default()).unwrap().download().unwrap();
    let plan = |lists: &Lists, p| {
        let lists = DeviceLists::upload(device, lists).unwrap();
        Plan::<f64, f64>::spherical(&Laplace, Outputs::POTENTIAL, p, ALL, tree(), lists)
    };
    for p in [0, 41] {
        assert!(matches!(plan(&host, p), Err(Error::Order { order, .. }) if order == p));
    }
    let mut adjacent = host.clone();
    adjacent.m2l = host.p2p.clone();
    assert!(matches!(plan(&adjacent, 4), Err(Error::Edge { .. })));
    let lists = DeviceLists::upload(device, &host).unwrap();
    let flow = Plan::<f64, f64>::spherical(&Stokes { mu: 1.0 }, Outputs::POTENTIAL, 4, ALL, tree(), lists);
    assert!(matches!(flow, Err(Error::Unsupported { .. })));
    assert!(plan(&host, 4).unwrap().apply(&[1.0; 2000], &mut |_, _| true).is_ok());
}
