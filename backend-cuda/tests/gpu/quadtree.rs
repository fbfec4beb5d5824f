//! Kernels of the plane on quadtrees: trees, lists and sums against the CPU's.

use crate::Test;
use crate::far::difference;
use crate::topology::{equal_lists, equal_trees, with_ncrit};
use backend_cpu::pairwise::Pairwise;
use backend_cpu::{Isa, Pairs};
use backend_cuda::{
    CallerPoints, Device, DeviceLists, DeviceTargets, Direct, Expansion, Placed, Plan, Root, Settings, TreeOptions,
    build, build_reported, solver, uvwx,
};
use fmm_kernels::equivalent::{EquivalentExpansion, Fill, Lattice};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::testkit::plane::{Log, PlaneKind};
use fmm_traits::{Error, Kernels, Outputs, Policy, Precision, Targets, Traced};
use fmm_tree::ListOptions;
use std::sync::Arc;

pub const TESTS: &[Test] = &[
    ("quadtree::every_cloud_gives_the_tree_and_lists_of_the_cpu", trees),
    ("quadtree::sums_agree_with_the_cpu", sums),
    ("quadtree::single_precision", single),
    ("quadtree::spectra_in_parts_and_a_v_list_with_an_edge_missing", parts),
    ("quadtree::direct_sums_are_those_of_the_cpu", direct),
    ("quadtree::boxes_above_each_other_are_refused", layers),
];

/// Points of the plane on the device, at z = 0.
fn send(device: &Device, points: &[f64]) -> Arc<CallerPoints> {
    Arc::new(CallerPoints::of_dim(device, 2, "points", points).unwrap()).in_space().unwrap()
}

/// Points of the plane on the host, at z = 0.
fn lifted(points: &[f64]) -> Vec<f64> {
    points.chunks_exact(2).flat_map(|x| [x[0], x[1], 0.0]).collect()
}

fn same(device: &Device, s: &[f64], t: Option<&[f64]>, ncrit: usize, l: &ListOptions, what: &str) {
    let there = [Some(s), t].map(|points| points.map(|points| send(device, points)));
    let [s, t] = [Some(s), t].map(|points| points.map(lifted));
    let o = with_ncrit(ncrit);
    let (tree, report) = fmm_tree::build_reported(s.as_deref().unwrap(), t.as_deref(), &o).unwrap();
    assert!(tree.corner[2] == 0.0 && tree.anchor.iter().all(|a| a[2] == 0), "{what}");
    let given = TreeOptions { ncrit: report.ncrit, min_side: 0.0, root: Root::Given(tree.corner, tree.side) };
    let [Some(s), t] = &there else { unreachable!() };
    let built = build(device, s, t.as_deref(), &given).unwrap();
    equal_trees(&built.download().unwrap(), &tree, what);
    let lists = fmm_tree::uvwx(&tree, l).unwrap();
    equal_lists(&uvwx(&built, l).unwrap().download().unwrap(), &lists, what);
    // The device chooses the same root.
    let boxes = build_reported(device, s, t.as_deref(), &o).unwrap().0.download().unwrap();
    assert_eq!((boxes.corner, boxes.side, &boxes.level_start), (tree.corner, tree.side, &tree.level_start), "{what}");
    assert!(boxes.anchor == tree.anchor, "{what}");
}

fn trees(device: &Device) {
    let t = PlaneKind::Normal.points(700, 2);
    for kind in PlaneKind::ALL {
        for (n, ncrit) in [(0, 5), (1, 5), (9, 1), (3000, 7), (20_000, 40)] {
            let s = kind.points(n, 1);
            let what = format!("{} {n} {ncrit}", kind.name());
            same(device, &s, None, ncrit, &ListOptions::default(), &what);
            same(device, &s, Some(&t), ncrit, &ListOptions { m2p_min_sources: 12, p2l_min_targets: 12 }, &what);
        }
    }
}

/// The kernels of a text for some outputs.
fn kernels(text: &str, outputs: Outputs) -> Kernels {
    Traced::parse(text).unwrap().in_plane().kernels(outputs).unwrap()
}

const SCREENED: &str = "value bessel_k0(7*r)";
const LOGARITHM: &str = "value -ln(r)";
const STOKES: &str = include_str!("../../../src/catalog/stokes2d.fmm");
const GAUSSIAN: &str = "value exp(-(r/0.3)^2)";

/// The pair loops of a CPU.
fn pairs(kernels: &Kernels) -> Pairs {
    Pairs::traced(kernels).skipping_self(!kernels.near.singular && !kernels.include_self)
}

/// The settings of an order, with leaves of W and X edges of almost any size seen as a whole.
fn settings(fill: Fill, order: usize, policy: Policy) -> Settings {
    let lists = ListOptions { m2p_min_sources: 5, p2l_min_targets: 5 };
    Settings { expansion: Expansion::Equivalent(fill), policy, order, lists, beside: None, cache: None }
}

/// Sums on the device and on the CPU, on the same tree with the same lists.
fn both(
    device: &Device,
    kernels: &Kernels,
    settings: &Settings,
    precision: Precision,
    s: &[f64],
    t: Option<&[f64]>,
) -> [Vec<f64>; 2] {
    let placed = Placed::new(device, &with_ncrit(12), &send(device, s), t.map(|t| send(device, t)).as_deref()).unwrap();
    let plan = solver(kernels, settings, precision, placed).unwrap();
    let (tree, lists) = plan.download().unwrap();
    let q = normal_strengths(s.len() / 2 * kernels.near.strengths, 5);
    let mut u = vec![0.0; t.unwrap_or(s).len() / 2 * plan.values()];
    plan.apply(&q, &mut u, &mut |_, _| true).unwrap();
    let Expansion::Equivalent(fill) = settings.expansion else { unreachable!() };
    let host = backend_cpu::Settings { order: settings.order, precision, isa: Isa::detect(), cache: None, near: None };
    let plan = backend_cpu::plan(kernels.clone(), &pairs(kernels), tree, lists, &host, fill).unwrap();
    let mut v = u.clone();
    plan.apply(&q, &mut v, &mut |_, _| true).unwrap();
    assert!(v.iter().any(|&x| x != 0.0));
    [u, v]
}

/// Direct sums on the CPU with the strengths of [`both`].
fn exact(kernels: &Kernels, s: &[f64], t: Option<&[f64]>) -> Vec<f64> {
    let q = normal_strengths(s.len() / 2 * kernels.near.strengths, 5);
    let targets = t.map(lifted);
    let at = targets.as_deref().map_or(Targets::Sources, Targets::Points);
    let sums =
        backend_cpu::direct_batch(kernels, &pairs(kernels), &lifted(s), &[&q], at, Precision::F64, Isa::detect());
    sums.unwrap().remove(0)
}

/// Both sum the same terms with the same operators. Solves in volumes amplify rounding, by up to 1/cutoff.
fn sums(device: &Device) {
    let (s, t) = (PlaneKind::Normal.points(1500, 3), PlaneKind::Layer.points(600, 4));
    let values = Outputs::POTENTIAL | Outputs::GRADIENT;
    let cases = [
        (SCREENED, values | Outputs::HESSIAN, Fill::Surface),
        (LOGARITHM, values, Fill::Surface),
        (STOKES, values, Fill::Surface),
        (GAUSSIAN, values, Fill::Volume),
    ];
    for (text, outputs, fill) in cases {
        let kernels = kernels(text, outputs);
        let treecode = Policy::Treecode { theta: 0.8 };
        for (order, policy, t) in [(6, Policy::Uvwx, Some(&t[..])), (10, Policy::Uvwx, None), (6, treecode, None)] {
            let [u, v] = both(device, &kernels, &settings(fill, order, policy), Precision::F64, &s, t);
            let e = difference(&u, &v);
            println!("{} order {order} {policy:?}: {e:.1e}", kernels.name);
            let most = if fill == Fill::Surface { 1e-12 } else { 1e-10 };
            assert!(e <= most, "{text} order {order} {policy:?}: {e:e}");
        }
    }
}

/// Both have the error of the order, and the rounding of f32.
fn single(device: &Device) {
    let s = PlaneKind::Normal.points(3000, 3);
    for (text, fill, most) in [(LOGARITHM, Fill::Surface, 1e-5), (GAUSSIAN, Fill::Volume, 1e-4)] {
        let kernels = kernels(text, Outputs::POTENTIAL);
        let exact = exact(&kernels, &s, None);
        let sums = both(device, &kernels, &settings(fill, 5, Policy::Uvwx), Precision::F32, &s, None);
        let [device, host] = sums.map(|sums| difference(&sums, &exact));
        println!("{text}: {device:.1e} and {host:.1e}");
        assert!(device <= 1.5 * host + 1e-6 && host <= most, "{text}: {device:e} and {host:e}");
    }
}

/// M2L with a few frequencies at a time, and by dense matrices if the V list is not that of the rules.
fn parts(device: &Device) {
    let s = PlaneKind::Uniform.points(2000, 6);
    let q = normal_strengths(2000, 6);
    let tree = || {
        let options = TreeOptions { ncrit: 12, min_side: 0.0, root: Root::Smallest };
        build(device, &send(device, &s), None, &options).unwrap()
    };
    let plan = |lists| Plan::<f64, f64>::new(&Log, Outputs::POTENTIAL, 7, None, tree(), lists).unwrap();
    let sum = |lists: DeviceLists, most: Option<usize>| {
        let mut plan = plan(lists);
        most.into_iter().for_each(|most| plan.set_m2l_part(most));
        plan.apply(&q, &mut |_, _| true).unwrap().0
    };
    let lists = || uvwx(&tree(), &ListOptions::default()).unwrap();
    let whole = sum(lists(), None);
    for most in [1, 3] {
        let e = difference(&sum(lists(), Some(most)), &whole);
        assert!(e <= 1e-13, "{most}: {e:e}");
    }
    let mut few = lists().download().unwrap();
    crate::without_last_edge(&mut few);
    let here = tree().download().unwrap();
    let sides: Vec<f64> = (0..here.levels()).map(|l| here.side_at(l)).collect();
    let lattice = Lattice::surface(7).in_plane();
    let log = Kernels::of(&Log, Outputs::POTENTIAL).unwrap();
    let expansion = EquivalentExpansion::<f64>::new(&log, lattice, &sides).unwrap();
    let v = Pairwise::new(&here, &few, &expansion).unwrap().apply(&q, &mut |_, _| true).unwrap();
    let e = difference(&sum(DeviceLists::upload(device, &few).unwrap(), None), &v);
    assert!(e <= 1e-11, "dense: {e:e}");
}

fn direct(device: &Device) {
    let (s, t) = (PlaneKind::Layer.points(700, 7), PlaneKind::Uniform.points(200, 8));
    let q = normal_strengths(700, 5);
    let kernels = kernels(SCREENED, Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN);
    for at in [None, Some(&t)] {
        let targets = at.map_or(DeviceTargets::Sources, |t| DeviceTargets::Points(send(device, t)));
        let u = Direct::<f64>::of(device, &kernels, send(device, &s), targets, None).unwrap().apply(&q).unwrap();
        let e = difference(&u, &exact(&kernels, &s, at.map(|t| &t[..])));
        assert!(e <= 1e-12, "{e:e}");
    }
}

/// An octree of several layers is no tree for a kernel of the plane.
fn layers(device: &Device) {
    let points = crate::send(device, &CloudKind::Uniform.points(300, 1));
    let options = TreeOptions { ncrit: 10, min_side: 0.0, root: Root::Smallest };
    let tree = build(device, &points, None, &options).unwrap();
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let refused = Plan::<f64, f64>::new(&Log, Outputs::POTENTIAL, 4, None, tree, lists);
    assert!(matches!(refused, Err(Error::Unsupported { operation: "a tree of several layers", .. })));
    let flat = send(device, &[0.5, 0.25, f64::MIN_POSITIVE, 1.0]);
    assert_eq!(flat.bounds(), [[f64::MIN_POSITIVE, 0.25, 0.0], [0.5, 1.0, 0.0]]);
}
