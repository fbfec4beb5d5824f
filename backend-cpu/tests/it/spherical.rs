//! The stages of spherical harmonics against [`Pairwise`], for every list policy, and their errors.

use super::*;
use backend_cpu::pairwise::Pairwise;
use fmm_kernels::spherical::truncation::degrees;
use fmm_kernels::spherical::{SphericalExpansion, SphericalOptions, Translation, Truncation};
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Yukawa};
use fmm_traits::{Cloud, Cube, Expansion, Kernels, Real};
use fmm_tree::{TreecodeOptions, stencil119, treecode};

/// The values of `outputs`, pair by pair.
fn pair_by_pair<T: Real>(
    family: &impl Family,
    outputs: Outputs,
    order: usize,
    (tree, lists): &(Tree, Lists),
    options: SphericalOptions,
    strengths: &[f64],
) -> Vec<f64> {
    let kernels = Kernels::of(family, outputs).unwrap();
    let x = SphericalExpansion::<T>::new(&kernels, order, options).unwrap();
    let values = Pairwise::new(tree, lists, &x).unwrap().apply(strengths, &mut |_, _| true).unwrap();
    values.into_iter().map(|x| x * kernels.scale).collect()
}

fn fast<F: Known>(
    family: &F,
    outputs: Outputs,
    (tree, lists): &(Tree, Lists),
    settings: &Settings,
    options: SphericalOptions,
) -> Box<dyn OctreeSolver> {
    harmonics(family, outputs, tree.clone(), lists.clone(), settings, options).unwrap()
}

/// Asserts agreement of all `outputs` to `tolerance`. The options have no opening angle, so multipoles of a treecode keep all
/// degrees: [`Pairwise`] truncates no M2P edge.
fn agree<F: Known, T: Real>(
    family: &F,
    outputs: Outputs,
    order: usize,
    geometry: &(Tree, Lists),
    options: SphericalOptions,
    tolerance: f64,
    what: &str,
) {
    let q = normal_strengths(geometry.0.sources.len() * F::Source::STRENGTHS, 5);
    let precision = if T::EPSILON < 1e-10 { Precision::F64 } else { Precision::F32 };
    let expected = pair_by_pair::<T>(family, outputs, order, geometry, options, &q);
    let solver = fast(family, outputs, geometry, &settings(order, precision), options);
    let found = apply(&*solver, &q);
    for column in solver.columns() {
        let part = |v: &[f64]| -> Vec<f64> {
            v.chunks_exact(solver.values()).flat_map(|row| column.columns.iter().map(|&k| row[k])).collect()
        };
        let e = OutputError::of(column.output, &part(&found), &part(&expected), column.columns.len());
        assert!(
            e.rel_l2 <= tolerance,
            "{} {what}, order {order}, {}, {:?}: {:e}",
            family.name(),
            precision.name(),
            column.output.names(),
            e.rel_l2
        );
    }
}

/// The opening angle of the treecode.
const THETA: f64 = 0.7;

/// The lists of every policy.
fn policies(points: &[f64], targets: Option<&[f64]>) -> Vec<(&'static str, (Tree, Lists))> {
    let (tree, lists) = geometry(points, targets, 15);
    let stencil = stencil119(&tree, &ListOptions::default()).unwrap();
    let options = TreecodeOptions { theta: THETA, m2p_min_sources: 0 };
    let mac = treecode(&tree, &options, fmm_kernels::spherical::expansion::m2p_valid).unwrap();
    vec![("uvwx", (tree.clone(), lists)), ("stencil119", (tree.clone(), stencil)), ("treecode", (tree, mac))]
}

const CLOUDS: [CloudKind; 9] = [
    CloudKind::Uniform,
    CloudKind::Clustered,
    CloudKind::Ellipsoid,
    CloudKind::Plane,
    CloudKind::Grid,
    CloudKind::Outlier,
    CloudKind::FiftyCopies,
    CloudKind::Coincident,
    CloudKind::Single,
];

fn clouds<F: Known>(family: F) {
    let family = family;
    for kind in CLOUDS {
        for (policy, geometry) in policies(&kind.points(400, 3), None) {
            let what = format!("{} {policy}", kind.name());
            agree::<_, f64>(&family, both(), 5, &geometry, SphericalOptions::default(), 1e-12, &what);
            agree::<_, f32>(&family, both(), 5, &geometry, SphericalOptions::default(), 2e-4, &what);
        }
    }
    let (ellipsoid, plane) = (CloudKind::Ellipsoid.points(400, 1), CloudKind::Plane.points(300, 2));
    for (sources, targets) in [(&ellipsoid, &plane[..]), (&plane, &ellipsoid), (&Vec::new(), &plane), (&plane, &[])] {
        for (policy, geometry) in policies(sources, Some(targets)) {
            agree::<_, f64>(&family, both(), 5, &geometry, SphericalOptions::default(), 1e-12, policy);
        }
    }
}

#[test]
fn charges() {
    clouds(Laplace);
}

#[test]
fn dipoles() {
    clouds(LaplaceDipole);
}

#[test]
fn charges_and_dipoles() {
    clouds(LaplaceMixed);
}

#[test]
fn softened_masses() {
    clouds(Gravity { g: 2.0, softening: 1e-4 });
}

#[test]
fn every_order_and_variant() {
    let points = CloudKind::Ellipsoid.points(300, 3);
    for (policy, geometry) in policies(&points, None) {
        for order in (1..=14).chain([40]) {
            let options = SphericalOptions::default();
            agree::<_, f64>(&Laplace, both(), order, &geometry, options, 1e-12, policy);
        }
        for translation in [Translation::Rcr, Translation::Direct] {
            for truncation in [Truncation::Variable, Truncation::Fixed, Truncation::Bound] {
                let options = SphericalOptions { translation, truncation, ..Default::default() };
                let what = format!("{policy} {options:?}");
                agree::<_, f64>(&Laplace, both(), 6, &geometry, options, 1e-12, &what);
            }
        }
    }
}

#[test]
fn potentials_alone_and_second_derivatives() {
    let points = CloudKind::Ellipsoid.points(300, 3);
    for (policy, geometry) in policies(&points, None) {
        for outputs in [Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::HESSIAN] {
            agree::<_, f64>(&Laplace, outputs, 6, &geometry, SphericalOptions::default(), 1e-12, policy);
        }
    }
}

/// M2L to domains of children gives the same sums up to the truncation error, which falls with the order.
#[test]
fn domains_of_children_give_the_same_sums() {
    let family = Laplace;
    for kind in [CloudKind::Uniform, CloudKind::Clustered] {
        let points = kind.points(1500, 3);
        let q = normal_strengths(points.len() / 3, 5);
        for (policy, geometry) in policies(&points, None).into_iter().take(2) {
            let differences = [4, 10, 16].map(|order| {
                let [apart, domains] = [Translation::Rcr, Translation::Domains].map(|translation| {
                    let options = SphericalOptions { translation, truncation: Truncation::Fixed, ..Default::default() };
                    apply(&*fast(&family, both(), &geometry, &settings(order, Precision::F64), options), &q)
                });
                difference::<Laplace>(&domains, &apart)
            });
            let falls = differences.windows(2).all(|w| w[1] < 0.1 * w[0]);
            assert!(differences[0] < 0.1 && falls, "{} {policy}: {differences:?}", kind.name());
            assert!(differences[0] > 1e-6, "{} {policy}: no domain was used", kind.name());
        }
    }
}

/// The degrees of the edges of a treecode, edge by edge.
#[test]
fn far_boxes_take_fewer_degrees() {
    fn sums(outputs: Outputs, tree: &Tree, lists: &Lists, order: usize, q: &[f64]) -> Vec<f64> {
        let kernels = Kernels::of(&Laplace, outputs).unwrap();
        let cube = |b: usize| Cube { center: tree.center(b, tree.level_of(b)), side: tree.side_at(tree.level_of(b)) };
        let cubes: Vec<Cube> = (0..tree.len()).map(cube).collect();
        let expansion = |p: usize| SphericalExpansion::<f64>::new(&kernels, p, SphericalOptions::default()).unwrap();
        let (all, n): (Vec<_>, usize) = ((1..=order).map(expansion).collect(), kernels.near.values);
        let at = |k: usize| std::array::from_fn(|a| tree.sources.xyz[a][k]);
        let of = |b: usize| -> (Vec<[f64; 3]>, Vec<f64>) {
            tree.sources_of(b).map(|k| (at(k), q[tree.sources.order[k] as usize])).unzip()
        };
        let (mut out, mut taken) = (vec![0.0; q.len() * n], vec![0; order + 1]);
        for t in 0..tree.len() {
            let targets: Vec<[f64; 3]> = tree.targets_of(t).map(at).collect();
            let mut values = vec![0.0; targets.len() * n];
            for &s in lists.m2p.row(t) {
                let (xyz, strengths) = of(s as usize);
                let share = Truncation::Variable.of_m2p(Some(THETA), cubes[t], cubes[s as usize]);
                let degrees = degrees(order, share);
                let (x, mut row) = (&all[degrees - 1], vec![0.0; degrees * degrees]);
                x.p2m(cubes[s as usize], Cloud { xyz: &xyz, strengths: &strengths }, &mut row);
                x.m2p(cubes[s as usize], &row, &targets, &mut values);
                taken[degrees] += 1;
            }
            for &s in lists.p2p.row(t) {
                let (xyz, strengths) = of(s as usize);
                let cloud = Cloud { xyz: &xyz, strengths: &strengths };
                all[0].p2p(cloud, &targets, s as usize == t, &mut values);
            }
            for (k, values) in tree.targets_of(t).zip(values.chunks_exact(n)) {
                let to = &mut out[tree.targets.order[k] as usize * n..][..n];
                to.iter_mut().zip(values).for_each(|(to, x)| *to = x * kernels.scale);
            }
        }
        let fewer: usize = taken[..order].iter().sum();
        assert!(fewer > taken[order] && taken[order] > 0, "{taken:?}");
        out
    }
    let points = CloudKind::Ellipsoid.points(1000, 3);
    let q = normal_strengths(1000, 5);
    let (tree, lists) = policies(&points, None).swap_remove(2).1;
    let run = |outputs: Outputs, order: usize, truncation: Truncation| {
        let options = SphericalOptions { truncation, theta: Some(THETA), ..Default::default() };
        apply(&*fast(&Laplace, outputs, &(tree.clone(), lists.clone()), &settings(order, Precision::F64), options), &q)
    };
    let near = |a: &[f64], b: &[f64]| OutputError::of(Outputs::POTENTIAL, a, b, 1).rel_l2;
    for order in [4, 7, 12, 18] {
        let expected = sums(Outputs::POTENTIAL, &tree, &lists, order, &q);
        let found = run(Outputs::POTENTIAL, order, Truncation::Variable);
        assert!(near(&found, &expected) < 1e-12, "order {order}");
        assert!(
            near(&found, &run(Outputs::POTENTIAL, order, Truncation::Fixed)) > 1e-12,
            "order {order}: none was cut"
        );
    }
    for order in [5, 11] {
        let expected = sums(both(), &tree, &lists, order, &q);
        let d = difference::<Laplace>(&run(both(), order, Truncation::Variable), &expected);
        assert!(d < 1e-12, "order {order}: {d:e}");
    }
    // The error is about the same, because the nearest edges use all degrees.
    let exact = direct(&Laplace, both(), &points, &q, fmm_traits::Targets::Sources, Precision::F64, Isa::detect());
    let exact = exact.unwrap();
    for order in [4, 8, 14] {
        let [all, fewer] =
            [Truncation::Fixed, Truncation::Variable].map(|t| difference::<Laplace>(&run(both(), order, t), &exact));
        assert!(fewer < 3.0 * all, "order {order}: {fewer:e} {all:e}");
    }
}

/// The clouds of the other tests use every stage.
#[test]
fn every_kind_of_edge_is_tested() {
    let all = policies(&CloudKind::Ellipsoid.points(400, 3), None);
    for (name, edges) in all[0].1.1.kinds() {
        assert!(edges.len() > 10, "{name}: {}", edges.len());
    }
    assert!(all[1].1.1.m2l.len() < all[0].1.1.m2l.len() && all[2].1.1.m2p.len() > 1000);
}

#[test]
fn threads_instruction_sets_and_new_points() {
    let family = LaplaceMixed;
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for precision in [Precision::F64, Precision::F32] {
        for (policy, here) in policies(&CloudKind::Ellipsoid.points(2000, 4), None) {
            let q = normal_strengths(8000, 1);
            let settings = settings(5, precision);
            let theta = (policy == "treecode").then_some(THETA);
            let options = SphericalOptions { theta, ..Default::default() };
            let run = |isa, threads| {
                let settings = Settings { isa, ..settings.clone() };
                let run = || apply(&*fast(&family, both(), &here, &settings, options), &q);
                pool(threads).install(run)
            };
            let one = run(Isa::detect(), 1);
            assert!(one == run(Isa::detect(), 3), "{policy}: threads");
            let domains = |threads| {
                let options = SphericalOptions { translation: Translation::Domains, ..options };
                pool(threads).install(|| apply(&*fast(&family, both(), &here, &settings, options), &q))
            };
            assert!(domains(1) == domains(3), "{policy}: threads, domains");
            for isa in Isa::available() {
                let d = difference::<LaplaceMixed>(&run(isa, 1), &one);
                assert!(d < if precision == Precision::F64 { 1e-13 } else { 1e-4 }, "{policy} {}: {d:e}", isa.name());
            }
            let other = geometry(&uniform(500, 1), None, 15);
            let mut solver = fast(&family, both(), &other, &settings, options);
            solver.set_tree(here.0, here.1).unwrap();
            assert!(one == apply(&*solver, &q), "{policy}: new points");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused() {
    let points = uniform(500, 1);
    let plan = |lists: Lists, tree: Tree, order: usize| {
        let options = SphericalOptions::default();
        let settings = settings(order, Precision::F64);
        harmonics(&Laplace, both(), tree, lists, &settings, options).err()
    };
    let (tree, lists) = geometry(&points, None, 15);
    assert!(matches!(plan(lists.clone(), tree.clone(), 41), Some(Error::Order { order: 41, .. })));
    let yukawa = Yukawa { kappa: 1.0 };
    let settings = settings(4, Precision::F64);
    let options = SphericalOptions::default();
    let refused = harmonics(&yukawa, both(), tree.clone(), lists.clone(), &settings, options).err();
    assert!(matches!(refused, Some(Error::Unsupported { .. })), "{refused:?}");
    // P2P edges of neighbours as M2L, M2P and P2L edges.
    for kind in 0..3 {
        let mut wrong = lists.clone();
        let edges = [&mut wrong.m2l, &mut wrong.m2p, &mut wrong.p2l];
        for (i, edges) in edges.into_iter().enumerate() {
            if i == kind {
                *edges = lists.p2p.clone();
            }
        }
        let refused = plan(wrong, tree.clone(), 4);
        assert!(matches!(refused, Some(Error::Edge { .. })), "{kind}: {refused:?}");
    }
}
