//! Trees and lists against the CPU's, array by array.

use crate::{Test, in_turn};
use backend_cuda::{Device, DeviceTree, Root, TreeOptions, uvwx};
use fmm_traits::testkit::clouds::{CloudKind, Generator};
use fmm_traits::{Lists, Tree};
use fmm_tree::{BuildOptions, BuildReport, ListOptions, invariants};

pub const TESTS: &[Test] = &[
    ("topology::every_cloud_gives_the_tree_and_lists_of_the_cpu", clouds),
    ("topology::sources_and_targets_of_different_clouds", two_clouds),
    ("topology::a_million_points", million),
    ("topology::many_points_that_agree_in_most_of_their_keys", alike),
    ("topology::deeper_than_one_key", deep),
    ("topology::roots_of_the_caller_and_smallest_sides", options),
    ("topology::chosen_roots_are_those_of_the_cpu", chosen),
];

pub fn build(device: &Device, s: &[f64], t: Option<&[f64]>, o: &TreeOptions) -> DeviceTree {
    let send = |x: &[f64]| crate::send(device, x);
    backend_cuda::build(device, &send(s), t.map(send).as_ref(), o).unwrap()
}

fn same(device: &Device, s: &[f64], t: Option<&[f64]>, o: &BuildOptions, l: &ListOptions, what: &str) -> usize {
    let tree = fmm_tree::build(s, t, o).unwrap();
    let lists = fmm_tree::uvwx(&tree, l).unwrap();
    let given =
        TreeOptions { ncrit: o.ncrit.unwrap(), min_side: o.min_side, root: Root::Given(tree.corner, tree.side) };
    let there = build(device, s, t, &given);
    equal_trees(&there.download().unwrap(), &tree, what);
    let lists_there = uvwx(&there, l).unwrap();
    equal_lists(&lists_there.download().unwrap(), &lists, what);
    // Lists know for which other thresholds they are the same.
    let near = |x: usize| [0, x.saturating_sub(1), x + 1, 2 * x + 1, usize::MAX];
    let of_w = near(l.m2p_min_sources).map(|m2p_min_sources| ListOptions { m2p_min_sources, ..*l });
    let of_x = near(l.p2l_min_targets).map(|p2l_min_targets| ListOptions { p2l_min_targets, ..*l });
    for other in of_w.into_iter().chain(of_x).chain([*l]) {
        let equal = fmm_tree::uvwx(&tree, &other).unwrap() == lists;
        assert_eq!(lists_there.hold_for(&other).unwrap(), equal, "{what}: {l:?} and {other:?}");
    }
    tree.levels()
}

pub fn equal_trees(a: &Tree, b: &Tree, what: &str) {
    assert_eq!((a.corner, a.side), (b.corner, b.side), "{what}");
    assert_eq!(a.level_start, b.level_start, "{what}: level_start");
    assert!(a.parent == b.parent, "{what}: parent");
    assert!(a.child_count == b.child_count, "{what}: child_count");
    assert!(a.child_start == b.child_start, "{what}: child_start");
    assert!(a.octant == b.octant, "{what}: octant");
    assert!(a.anchor == b.anchor, "{what}: anchor");
    assert!(a.source_range == b.source_range, "{what}: source_range");
    assert!(a.target_range == b.target_range, "{what}: target_range");
    assert!(a.sources.order == b.sources.order, "{what}: order of sources");
    assert!(a.sources.xyz == b.sources.xyz, "{what}: sources");
    assert!(a.targets.order == b.targets.order, "{what}: order of targets");
    assert!(a.targets.xyz == b.targets.xyz, "{what}: targets");
    assert_eq!(a.same_points(), b.same_points(), "{what}");
}

pub fn equal_lists(a: &Lists, b: &Lists, what: &str) {
    for ((name, a), (_, b)) in a.kinds().into_iter().zip(b.kinds()) {
        assert!(a.starts == b.starts, "{what}: {name}, {} edges for {}", a.len(), b.len());
        assert!(a.sources == b.sources, "{what}: sources of {name}");
    }
}

pub fn with_ncrit(ncrit: usize) -> BuildOptions {
    BuildOptions { ncrit: Some(ncrit), ..Default::default() }
}

fn clouds(device: &Device) {
    let mut case = 0;
    for (k, kind) in CloudKind::ALL.into_iter().enumerate() {
        for n in [0, 1, 2, 9, 300, 5000] {
            for ncrit in [1, 7, 60] {
                case += 1;
                if in_turn(device, case, 5) {
                    let p = kind.points(n, 5);
                    let what = format!("{} {n} {ncrit}", kind.name());
                    same(device, &p, None, &with_ncrit(ncrit), &ListOptions::default(), &what);
                }
            }
        }
        if in_turn(device, k, 4) {
            let p = kind.points(100_000, 6);
            let few = ListOptions { m2p_min_sources: 30, p2l_min_targets: 30 };
            same(device, &p, None, &with_ncrit(50), &few, kind.name());
        }
    }
}

fn two_clouds(device: &Device) {
    let mut g = Generator::new(11);
    for case in (0..150).filter(|case| in_turn(device, *case, 5)) {
        let mut cloud = |shift: f64, scale: f64| -> (CloudKind, Vec<f64>) {
            let kind = CloudKind::ALL[(g.bits() % 13) as usize];
            let n = (g.bits() % if case % 3 == 0 { 20 } else { 1500 }) as usize;
            (kind, kind.points(n, g.bits()).iter().map(|x| shift + scale * x).collect())
        };
        let (source_kind, s) = cloud(0.0, 1.0);
        let (target_kind, t) = cloud([0.0, 0.4, -2.0][case % 3], [1.0, 1e-3, 30.0][case / 3 % 3]);
        let ncrit = 1 + (case * case) % 190;
        let few = ListOptions { m2p_min_sources: case % 40, p2l_min_targets: (7 * case) % 40 };
        let what = format!("case {case}: {} to {}, ncrit {ncrit}, {few:?}", source_kind.name(), target_kind.name());
        same(device, &s, Some(&t), &with_ncrit(ncrit), &few, &what);
    }
}

fn million(device: &Device) {
    for kind in [CloudKind::Uniform, CloudKind::Plummer, CloudKind::Ellipsoid] {
        let p = kind.points(1 << 20, 12);
        same(device, &p, None, &with_ncrit(64), &ListOptions::default(), kind.name());
    }
}

/// Points whose keys agree in their upper digits: ties of a stable sort.
fn alike(device: &Device) {
    let kinds = [CloudKind::FiftyCopies, CloudKind::TwoClusters, CloudKind::Line, CloudKind::Coincident];
    for (_, kind) in kinds.into_iter().enumerate().filter(|(k, _)| in_turn(device, *k, 3)) {
        let p = kind.points((1 << 18) + 4321, 18);
        same(device, &p, None, &with_ncrit(64), &ListOptions::default(), kind.name());
    }
    // Clusters of many sizes.
    let mut p = Vec::new();
    for (i, length) in [1, 2, 31, 500, 2047, 2048, 2049, 4095].into_iter().enumerate() {
        let mut g = Generator::new(19);
        p.extend((0..length).flat_map(|_| [0.1 * i as f64, 0.3, 0.5].map(|x| x + 1e-6 * g.uniform())));
    }
    p.extend(CloudKind::Uniform.points(1 << 18, 20));
    same(device, &p, None, &with_ncrit(20), &ListOptions::default(), "runs");
}

fn deep(device: &Device) {
    // Clusters inside clusters: levels beyond 21 and beyond 42.
    let mut g = Generator::new(13);
    for (scale, levels) in [(1e-7, 21), (1e-9, 21), (3e-13, 39)] {
        let mut p = Vec::new();
        for i in 0..3000 {
            let center = [[0.0; 3], [0.5, 0.25, 0.75], [1e-3, 0.0, 0.0]][i % 3];
            let wide = if i % 10 == 0 { 1.0 } else { scale };
            p.extend(center.map(|c| c + wide * g.uniform()));
        }
        let what = format!("clusters of {scale:e}");
        let found = same(device, &p, None, &with_ncrit(4), &ListOptions::default(), &what);
        assert!(found > levels, "{what}: {found} levels");
        let t = CloudKind::TwoClusters.points(2000, 14);
        same(device, &p, Some(&t), &with_ncrit(3), &ListOptions::default(), &what);
    }
    // Around the origin coordinates are exact far below 2^-42.
    let p: Vec<f64> = (0..3000).map(|i| g.uniform() * if i < 1500 { 1e-14 } else { 1.0 }).collect();
    let found = same(device, &p, None, &with_ncrit(2), &ListOptions::default(), "around the origin");
    assert!(found > 43, "{found} levels");
}

fn options(device: &Device) {
    let p = CloudKind::Plummer.points(20_000, 15);
    for (min_side, root) in [(0.1, None), (0.0, Some(([-3.0, -2.0, -1.5], 8.0))), (0.3, Some(([-1.0; 3], 4.0)))] {
        let o = BuildOptions { ncrit: Some(20), min_side, root, ..Default::default() };
        same(device, &p, None, &o, &ListOptions::default(), "options");
    }
    // The smallest root, from the bounding box found on the device.
    for kind in CloudKind::ALL {
        let p = kind.points(1000, 16);
        let t = CloudKind::Uniform.points(500, 17);
        for t in [None, Some(&t[..])] {
            let o = TreeOptions { ncrit: 2000, min_side: 0.0, root: Root::Smallest };
            let here = fmm_tree::build(&p, t, &with_ncrit(2000)).unwrap();
            equal_trees(&build(device, &p, t, &o).download().unwrap(), &here, kind.name());
            let split = build(device, &p, t, &TreeOptions { ncrit: 9, ..o });
            let lists = uvwx(&split, &ListOptions::default()).unwrap();
            invariants::check(&split.download().unwrap(), &lists.download().unwrap()).unwrap();
        }
    }
}

/// The root cube and the report that the device chooses from its sample. Outliers are on all sides of some clouds.
fn chosen(device: &Device) {
    let outlier = |x: &mut Vec<f64>, at: [f64; 3]| x.extend(at);
    for (k, kind) in CloudKind::ALL.into_iter().enumerate() {
        for (n, targets) in [(0, 40), (150, 0), (2500, 300), (20_000, 0)] {
            let mut x = kind.points(n, 21);
            if k % 2 == 1 && n > 0 {
                outlier(&mut x, [-40.0, 0.1, -0.0]);
                outlier(&mut x, [0.3, 70.0, -9.0]);
            }
            let t = (targets > 0).then(|| CloudKind::Ellipsoid.points(targets, 22));
            let what = format!("{} {n} {targets}", kind.name());
            let options = BuildOptions { occupancy: 30.0, ..Default::default() };
            let (here, expected) = fmm_tree::build_reported(&x, t.as_deref(), &options).unwrap();
            let sent = [Some(&x[..]), t.as_deref()].map(|x| x.map(|x| crate::send(device, x)));
            let sources = sent[0].as_ref().unwrap();
            let (tree, report) = backend_cuda::build_reported(device, sources, sent[1].as_ref(), &options).unwrap();
            assert_eq!((tree.corner, tree.side), (here.corner, here.side), "{what}");
            let of =
                |r: &BuildReport| [r.root_stretch, r.outlier_stretch, r.occupancy, r.ncrit as f64].map(f64::to_bits);
            assert_eq!(of(&report), of(&expected), "{what}: {report:?} for {expected:?}");
        }
    }
}
