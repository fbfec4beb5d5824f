//! Every cloud of the testkit: invariants, repeatability, occupancy, odd input.

use fmm_traits::testkit::clouds::{CloudKind, any_cloud};
use fmm_traits::tree::Lists;
use fmm_traits::{Error, Tree};
use fmm_tree::{
    BuildOptions, ListOptions, build, build_reported, build_uniform, deepest_level, invariants, smallest_root, uvwx,
};
use proptest::prelude::*;

fn with_ncrit(ncrit: usize) -> BuildOptions {
    BuildOptions { ncrit: Some(ncrit), ..Default::default() }
}

fn both(s: &[f64], t: Option<&[f64]>, o: &BuildOptions, l: &ListOptions) -> (Tree, Lists) {
    let tree = build(s, t, o).unwrap();
    let lists = uvwx(&tree, l).unwrap();
    (tree, lists)
}

/// Centres carry no rounding: what was added to the corner can be taken off again.
fn assert_exact_centres(tree: &Tree, of: &str) {
    for l in 0..tree.levels() {
        for b in tree.level(l) {
            let (c, h) = (tree.center(b, l), tree.side_at(l));
            for a in 0..3 {
                assert_eq!((c[a] - tree.corner[a]) / h, tree.anchor[b][a] as f64 + 0.5, "{of}: box {b}, level {l}");
            }
        }
    }
}

#[test]
fn invariants_hold_on_every_cloud() {
    for kind in CloudKind::ALL {
        for n in [0, 1, 2, 9, 300, 2000] {
            for ncrit in [1, 7, 60] {
                let p = kind.points(n, 5);
                let (tree, lists) = both(&p, None, &with_ncrit(ncrit), &ListOptions::default());
                assert!(tree.same_points());
                assert_exact_centres(&tree, kind.name());
                invariants::check(&tree, &lists).unwrap_or_else(|e| panic!("{} {n} {ncrit}: {e}", kind.name()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]
    #[test]
    fn invariants_hold_on_pairs_of_clouds(
        (sk, sn, ss) in any_cloud(1500),
        (tk, tn, ts) in any_cloud(1500),
        ncrit in 1usize..200,
        (m2p_min_sources, p2l_min_targets) in (0usize..40, 0usize..40),
        (shift, scale) in (prop_oneof![Just(0.0), -3.0..3.0], prop_oneof![Just(1.0), Just(1e-3), Just(30.0)]),
    ) {
        let s = sk.points(sn, ss);
        let t: Vec<f64> = tk.points(tn, ts).iter().map(|x| shift + scale * x).collect();
        let l = ListOptions { m2p_min_sources, p2l_min_targets };
        let (tree, lists) = both(&s, Some(&t), &with_ncrit(ncrit), &l);
        invariants::check(&tree, &lists).unwrap();
    }
}

#[test]
fn threads_do_not_change_the_result() {
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::TwoClusters] {
        let p = kind.points(80_000, 1);
        let run = || both(&p, None, &BuildOptions::default(), &ListOptions::default());
        let (a, la) = pool(1).install(run);
        let (b, lb) = pool(3).install(run);
        assert_eq!(la, lb);
        assert_eq!((a.side, &a.anchor, &a.source_range), (b.side, &b.anchor, &b.source_range));
        assert_eq!(a.sources.order, b.sources.order);
        invariants::check_tree(&a).unwrap();
    }
}

/// Roots fill families of eight, so that a small cloud has few sizes to choose from.
#[test]
fn occupancy_is_near_the_wanted_at_any_number_of_points() {
    for n in [20_000, 30_000, 45_000, 70_000, 100_000, 150_000, 230_000] {
        for wanted in [40.0, 64.0, 110.0] {
            let p = CloudKind::Uniform.points(n, n as u64);
            let o = BuildOptions { occupancy: wanted, ..Default::default() };
            let (tree, report) = build_reported(&p, None, &o).unwrap();
            let ratio = report.mean_leaf / wanted;
            assert!((0.6..1.5).contains(&ratio), "{n} {wanted}: {} {report:?}", tree.leaves());
        }
    }
}

/// The boxes at the poles of the ellipsoid are so dense that the sample errs there. In six such clouds the leaf of a point had
/// 74 to 91 points, on average over the points.
#[test]
fn occupancy_is_near_the_wanted_on_other_clouds() {
    use CloudKind::*;
    for kind in [Plummer, Clustered, Ellipsoid, Sphere, Plane, Line, Outlier, TwoClusters] {
        let p = kind.points(100_000, 3);
        let (tree, report) = build_reported(&p, None, &BuildOptions::default()).unwrap();
        let leaves = (0..tree.len()).filter(|&b| tree.is_leaf(b)).map(|b| tree.sources_of(b).len());
        let seen = leaves.map(|n| n * n).sum::<usize>() as f64 / 1e5;
        let most = if matches!(kind, Ellipsoid) { 95.0 } else { 85.0 };
        assert!((50.0..most).contains(&seen), "{} {seen} {report:?}", kind.name());
    }
}

#[test]
fn scales_from_tiny_to_huge() {
    for scale in [1e-300, 1e-30, 1e30, 1e150, 1e298] {
        for shift in [0.0, 1e3, 1e9] {
            let p: Vec<f64> = CloudKind::Clustered.points(1000, 8).iter().map(|x| (x + shift) * scale).collect();
            let (tree, lists) = both(&p, None, &with_ncrit(20), &ListOptions::default());
            invariants::check(&tree, &lists).unwrap_or_else(|e| panic!("{scale:e} {shift}: {e}"));
            assert_exact_centres(&tree, &format!("{scale:e} {shift}"));
            assert!(scale < 1e-100 || tree.levels() > 5, "{scale:e} {shift}");
        }
    }
}

#[test]
fn distinct_points_are_separated_below_level_21() {
    // 400 points in 1e-10 of a unit cube, and a pair of far ones.
    let mut p: Vec<f64> = CloudKind::Uniform.points(400, 2).iter().map(|x| 1e-10 * x).collect();
    p.extend([1.0; 6]);
    let (tree, lists) = both(&p, None, &with_ncrit(10), &ListOptions::default());
    invariants::check(&tree, &lists).unwrap();
    assert!(tree.levels() > 33, "{}", tree.levels());
    let largest = (0..tree.len()).filter(|&b| tree.is_leaf(b)).map(|b| tree.sources_of(b).len()).max();
    assert!(largest <= Some(10));
}

#[test]
fn coincident_points_are_counted_and_do_not_deepen_the_tree() {
    let p = CloudKind::FiftyCopies.points(5000, 4);
    let (tree, report) = build_reported(&p, None, &with_ncrit(10)).unwrap();
    assert_eq!((report.coincident_groups, report.largest_coincident), (100, 50));
    assert!(tree.levels() < 12 && report.warnings.len() == 1);
    let (tree, report) = build_reported(&CloudKind::Coincident.points(5000, 4), None, &with_ncrit(10)).unwrap();
    assert_eq!((tree.len(), report.coincident_groups, report.largest_coincident), (1, 1, 5000));
}

#[test]
fn no_box_is_smaller_than_the_minimum() {
    let p = CloudKind::Uniform.points(5000, 4);
    let o = BuildOptions { ncrit: Some(1), min_side: 0.09, ..Default::default() };
    let (tree, lists) = both(&p, None, &o, &ListOptions::default());
    invariants::check(&tree, &lists).unwrap();
    let smallest = tree.side_at(tree.levels() - 1);
    assert!((0.09..0.19).contains(&smallest), "{smallest}");
}

#[test]
fn small_far_leaves_meet_pair_by_pair() {
    let p = CloudKind::Clustered.points(2000, 4);
    let count = |m2p_min_sources, p2l_min_targets| {
        let l = ListOptions { m2p_min_sources, p2l_min_targets };
        let (tree, lists) = both(&p, None, &with_ncrit(10), &l);
        invariants::check(&tree, &lists).unwrap();
        (lists.m2p.len(), lists.p2l.len(), lists.p2p.len())
    };
    let (w, x, u) = count(0, 0);
    let (w9, x9, u9) = count(9, 9);
    assert!(w > 0 && w == x);
    assert!(w9 < w && x9 < x && u9 == u + (w - w9) + (x - x9));
}

/// A leaf with exactly as many points as a threshold keeps its expansion; a leaf with one point fewer does not.
#[test]
fn leaves_at_a_threshold_keep_their_edges() {
    let p = CloudKind::Clustered.points(2000, 4);
    let (tree, all) = both(&p, None, &with_ncrit(10), &ListOptions::default());
    for least in 1..=10 {
        let options = ListOptions { m2p_min_sources: least, p2l_min_targets: least };
        let (_, lists) = both(&p, None, &with_ncrit(10), &options);
        let enough = |b: u32| !tree.is_leaf(b as usize) || tree.sources_of(b as usize).len() >= least;
        assert!(lists.m2p.iter().eq(all.m2p.iter().filter(|&(_, s)| enough(s))), "M2P {least}");
        assert!(lists.p2l.iter().eq(all.p2l.iter().filter(|&(t, _)| enough(t))), "P2L {least}");
    }
}

#[test]
fn a_root_that_is_a_leaf_has_only_p2p() {
    let (tree, lists) = both(&CloudKind::Uniform.points(30, 4), None, &with_ncrit(30), &ListOptions::default());
    assert_eq!(tree.len(), 1);
    assert_eq!(lists.kinds().map(|(_, e)| e.len()), [0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn bad_input_is_an_error() {
    let p = CloudKind::Uniform.points(30, 4);
    let fails = |p: &[f64], o: BuildOptions| build(p, None, &o).unwrap_err();
    assert!(matches!(fails(&p[1..], Default::default()), Error::Shape { found: 89, .. }));
    assert!(matches!(fails(&[0.0, f64::INFINITY, 0.0], Default::default()), Error::NotFinite { column: 1, .. }));
    assert!(matches!(fails(&p, with_ncrit(0)), Error::Parameter { name: "ncrit", .. }));
    for occupancy in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let o = BuildOptions { occupancy, ..Default::default() };
        assert!(matches!(fails(&p, o), Error::Parameter { name: "occupancy", .. }));
    }
    for root in [([0.0; 3], 0.1), ([0.0; 3], f64::NAN), ([0.5; 3], 10.0)] {
        let o = BuildOptions { root: Some(root), ..Default::default() };
        assert!(matches!(fails(&p, o), Error::Parameter { name: "root side", .. }));
    }
    let huge = [-1.7e308, 0.0, 0.0, 1.7e308, 0.0, 0.0];
    assert!(matches!(fails(&huge, Default::default()), Error::Parameter { name: "extent", .. }));
    // NaN is the facade's to name; here it only must not panic.
    let mut nan = p.clone();
    nan[7] = f64::NAN;
    assert_eq!(build(&nan, None, &with_ncrit(3)).unwrap().sources.len(), 30);
}

#[test]
fn uniform_depth_whatever_the_boxes_hold() {
    for kind in CloudKind::ALL {
        for (n, depth) in [(0, 2), (1, 3), (300, 0), (300, 4)] {
            let p = kind.points(n, 5);
            let tree = build_uniform(&p, None, depth, None).unwrap();
            let lists = uvwx(&tree, &ListOptions::default()).unwrap();
            invariants::check(&tree, &lists).unwrap_or_else(|e| panic!("{} {n} {depth}: {e}", kind.name()));
            let depth = if n == 0 { 0 } else { depth };
            let leaves = (0..tree.len()).filter(|&b| tree.is_leaf(b));
            assert!(leaves.clone().all(|b| tree.level_of(b) == depth), "{} {n}", kind.name());
            assert!(lists.p2l.is_empty() && lists.m2p.is_empty());
        }
    }
    let p = CloudKind::Uniform.points(30, 5);
    let root = Some(([-1.0; 3], 4.0));
    let tree = build_uniform(&p, Some(&p[..6]), 3, root).unwrap();
    assert_eq!((tree.side, tree.targets.len(), tree.levels()), (4.0, 2, 4));
    assert!(matches!(build_uniform(&p, None, 90, None), Err(Error::Parameter { name: "depth", .. })));
    assert!(build_uniform(&p, None, 2, Some(([0.0; 3], 0.1))).is_err());
}

#[test]
fn a_given_root_is_kept() {
    let p = CloudKind::Uniform.points(3000, 4);
    let root = Some(([-1.0; 3], 4.0));
    let (tree, lists) =
        both(&p, None, &BuildOptions { ncrit: Some(20), root, ..Default::default() }, &ListOptions::default());
    assert_eq!((tree.corner, tree.side), ([-1.0; 3], 4.0));
    invariants::check(&tree, &lists).unwrap();
}

#[test]
fn the_checker_sees_damage() {
    let p = CloudKind::Clustered.points(1000, 4);
    let (tree, lists) = both(&p, None, &with_ncrit(10), &ListOptions::default());
    for kind in 0..8 {
        let mut damaged = lists.clone();
        let e = [
            &mut damaged.p2m,
            &mut damaged.m2m,
            &mut damaged.m2l,
            &mut damaged.p2l,
            &mut damaged.l2l,
            &mut damaged.m2p,
            &mut damaged.l2p,
            &mut damaged.p2p,
        ];
        let e = e.into_iter().nth(kind).unwrap();
        let at = e.len() / 2;
        e.sources.remove(at);
        e.starts.iter_mut().filter(|s| **s > at).for_each(|s| *s -= 1);
        assert!(matches!(invariants::check(&tree, &damaged), Err(Error::Edge { .. })), "kind {kind}");
    }
    let mut damaged = tree.clone();
    damaged.source_range[tree.len() - 1][0] += 1;
    assert!(invariants::check_tree(&damaged).is_err());
    assert!(invariants::check_boxes(&Tree::default()).is_err());
    // Two ranges that meet and do not ascend: [a, b] and [b, a'] instead of [a, a'] with a' between.
    let mut damaged = tree.clone();
    let (child, end) = (tree.children(0).start, tree.source_range[0][1]);
    (damaged.source_range[child][1], damaged.source_range[child + 1][0]) = (end, end);
    assert!(invariants::check_boxes(&damaged).is_err());
}

#[test]
fn the_root_and_the_depth_of_a_tree_can_be_asked_for() {
    let p = CloudKind::Plummer.points(500, 9);
    let end = |start: f64, f: fn(f64, f64) -> f64| {
        std::array::from_fn(|a| p.iter().skip(a).step_by(3).copied().fold(start, f))
    };
    let (corner, side) = smallest_root(end(f64::INFINITY, f64::min), end(f64::NEG_INFINITY, f64::max));
    let tree = build(&p, None, &with_ncrit(500)).unwrap();
    assert_eq!((corner, side), (tree.corner, tree.side));
    let limit = deepest_level(side, 1.0, side / 5.0);
    assert_eq!(limit, 2);
    let o = BuildOptions { ncrit: Some(1), min_side: side / 5.0, root: Some((corner, side)), ..Default::default() };
    assert_eq!(build(&p, None, &o).unwrap().levels(), limit + 1);
}
