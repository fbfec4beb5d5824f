//! Unusual trees and lists: a plan carries them out exactly as they are, or refuses them with an error.

use super::oracle::pair_by_pair;
use super::*;
use fmm_kernels::Laplace;
use fmm_kernels::spherical::SphericalOptions;
use fmm_traits::tree::{Edges, NONE, Points};
use std::sync::Arc;

/// `edges` without edge `k`.
fn removed(edges: &Edges, k: usize) -> Edges {
    let mut edges = edges.clone();
    edges.sources.remove(k);
    edges.starts.iter_mut().filter(|s| **s > k).for_each(|s| *s -= 1);
    edges
}

/// `edges` with the additional edge `target` ← `source`.
fn added(edges: &Edges, target: usize, source: usize) -> Edges {
    let mut edges = edges.clone();
    edges.sources.insert(edges.starts[target + 1], source as u32);
    edges.starts[target + 1..].iter_mut().for_each(|s| *s += 1);
    edges
}

fn refused(tree: &Tree, lists: Lists) -> bool {
    let made = plan(&Laplace, both(), tree.clone(), lists, &settings(3, Precision::F64));
    match made {
        Ok(_) => false,
        Err(Error::Edge { .. }) => true,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn every_missing_m2l_edge_is_seen() {
    for kind in [CloudKind::Line, CloudKind::TwoClusters, CloudKind::Uniform] {
        let points = kind.points(150, 1);
        let (tree, lists) = geometry(&points, None, 8);
        let q = strengths::<Laplace>(&points);
        let step = lists.m2l.len().div_ceil(60);
        let mut seen = 0;
        for k in (0..lists.m2l.len()).step_by(step) {
            let lists = Lists { m2l: removed(&lists.m2l, k), ..lists.clone() };
            match plan(&Laplace, both(), tree.clone(), lists.clone(), &settings(3, Precision::F64)) {
                Err(Error::Edge { .. }) => seen += 1,
                Err(e) => panic!("{e}"),
                Ok(solver) => {
                    let expected = pair_by_pair::<f64>(&Laplace, 3, &(tree.clone(), lists), &q);
                    let d = difference::<Laplace>(&apply(&*solver, &q), &expected);
                    assert!(d < 1e-8, "{}: edge {k} is missing and yet in the sum: {d:e}", kind.name());
                }
            }
        }
        assert!(seen > 10, "{}: {seen} of {} edges", kind.name(), lists.m2l.len());
    }
}

#[test]
fn edges_out_of_place_are_refused() {
    let points = CloudKind::Ellipsoid.points(600, 1);
    let (tree, lists) = geometry(&points, None, 15);
    assert!(!refused(&tree, lists.clone()));
    let m2l = |target, source| Lists { m2l: added(&lists.m2l, target, source), ..lists.clone() };
    let last = tree.len() - 1;
    let parent = tree.parent[last] as usize;
    assert!(refused(&tree, m2l(0, 0)), "root to itself");
    assert!(refused(&tree, m2l(0, last)), "leaf to root");
    assert!(refused(&tree, m2l(last, 0)), "root to leaf");
    assert!(refused(&tree, m2l(last, last)), "a box to itself");
    assert!(refused(&tree, m2l(last, parent)), "another level");
    let colleague = tree.children(parent).find(|&b| b != last && !tree.sources_of(b).is_empty()).unwrap();
    assert!(refused(&tree, m2l(last, colleague)), "adjacent");
    let (t, s) = lists.m2l.iter().nth(5).unwrap();
    assert!(refused(&tree, m2l(t as usize, s as usize)), "twice");
    let near = Lists { m2p: added(&lists.m2p, last, last), ..lists.clone() };
    assert!(refused(&tree, near), "a multipole inside its own box");
    let near = Lists { p2l: added(&lists.p2l, last, last), ..lists.clone() };
    assert!(refused(&tree, near), "sources inside the box of the local");
    let p2p = |target, source| Lists { p2p: added(&lists.p2p, target, source), ..lists.clone() };
    assert!(refused(&tree, p2p(0, last)), "sources to targets of a box that is no leaf");
    assert!(refused(&tree, p2p(last, 0)), "sources of a box that holds the target box");
    let twice = Lists { p2m: added(&lists.p2m, parent, parent), ..lists.clone() };
    assert!(refused(&tree, twice), "sources of a box that is no leaf");
    let none = fmm_traits::Edges::none(tree.len());
    assert!(refused(&tree, Lists { p2m: none.clone(), l2p: none, ..lists.clone() }), "multipoles of nothing");
}

/// A refused exchange of points leaves the plan as it was.
#[test]
fn a_refused_tree_is_not_taken() {
    let points = uniform(500, 1);
    let (tree, lists) = geometry(&points, None, 15);
    let q = strengths::<Laplace>(&points);
    let wrong = Lists { m2l: removed(&lists.m2l, 3), ..lists.clone() };
    let mut solver = plan(&Laplace, both(), tree.clone(), lists, &settings(4, Precision::F64)).unwrap();
    let before = apply(&*solver, &q);
    assert!(matches!(solver.set_tree(tree, wrong), Err(Error::Edge { .. })));
    assert!(before == apply(&*solver, &q));
}

#[test]
fn shapes_are_checked() {
    let (tree, lists) = geometry(&uniform(50, 1), None, 15);
    let solver = plan(&Laplace, both(), tree, lists, &settings(4, Precision::F64)).unwrap();
    let mut out = vec![0.0; 200];
    let apply = |q: &[f64], out: &mut [f64]| solver.apply(q, out, &mut |_, _| true);
    assert!(matches!(
        apply(&[1.0; 49], &mut out),
        Err(Error::Shape { array: "strengths", found: 49, expected: 50, .. })
    ));
    assert!(matches!(
        apply(&[1.0; 50], &mut out[1..]),
        Err(Error::Shape { array: "out", found: 199, expected: 200, .. })
    ));
}

/// Plans of both expansions on `tree`.
fn plans(tree: &Tree, lists: &Lists, order: usize) -> [Result<Box<dyn OctreeSolver>, Error>; 2] {
    let (settings, options) = (settings(order, Precision::F64), SphericalOptions::default());
    let spherical = harmonics(&Laplace, both(), tree.clone(), lists.clone(), &settings, options);
    [plan(&Laplace, both(), tree.clone(), lists.clone(), &settings), spherical]
}

/// One task per parent writes the rows of its children. Trees whose families overlap would cause a race.
#[test]
fn trees_whose_boxes_share_children_or_points_are_refused() {
    let points = CloudKind::Ellipsoid.points(600, 1);
    let (tree, lists) = geometry(&points, None, 15);
    let parents: Vec<usize> = (1..tree.len()).filter(|&b| tree.child_count[b] > 1).collect();
    let [a, b] = [parents[0], parents[1]];
    let last = tree.len() - 1;
    let child = tree.children(a).start;
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Tree));
    let damages: [Damage; 11] = [
        ("children of two boxes", &|t| (t.child_start[b], t.child_count[b]) = (t.child_start[a], t.child_count[a])),
        ("children that overlap", &|t| t.child_start[b] -= 1),
        ("a child that two boxes have", &|t| t.child_count[a] += 1),
        ("children out of bounds", &|t| t.child_count[*parents.last().unwrap()] += 8),
        ("a leaf with children", &|t| (t.child_start[last], t.child_count[last]) = (1, 2)),
        ("another parent", &|t| t.parent[child] = b as u32),
        ("one octant twice", &|t| t.octant[child + 1] = t.octant[child]),
        ("another anchor", &|t| t.anchor[child][0] += 1),
        ("points of two boxes", &|t| t.source_range[child][1] += 1),
        ("a range that ends before it starts", &|t| t.target_range[child + 1][1] = t.target_range[child][0]),
        ("a level that is not there", &|t| t.level_start[1] = 2),
    ];
    let mut solvers = plans(&tree, &lists, 3).map(Result::unwrap);
    for (what, damage) in damages {
        let mut damaged = tree.clone();
        damage(&mut damaged);
        for (made, solver) in plans(&damaged, &lists, 3).into_iter().zip(&mut solvers) {
            assert!(matches!(made.err(), Some(Error::Edge { .. })), "{what}");
            let exchanged = solver.set_tree(damaged.clone(), lists.clone());
            assert!(matches!(exchanged, Err(Error::Edge { .. })), "{what}");
        }
    }
    for made in plans(&Tree::default(), &Lists::default(), 3) {
        assert!(matches!(made.err(), Some(Error::Edge { .. })), "no box");
    }
    let unknown = Lists { p2p: added(&lists.p2p, last, tree.len()), ..lists.clone() };
    assert!(plans(&tree, &unknown, 3).into_iter().all(|made| matches!(made.err(), Some(Error::Edge { .. }))));
    let mut short = lists.clone();
    short.m2m.sources.pop();
    assert!(plans(&tree, &short, 3).into_iter().all(|made| matches!(made.err(), Some(Error::Shape { .. }))));
}

/// The octree of every `step`-th source of `tree` as sources, and of the point behind each as targets. Boxes without
/// points are left out.
fn thinned(tree: &Tree, step: usize) -> Tree {
    let at = |first: usize| (first..tree.sources.len()).step_by(step).collect::<Vec<usize>>();
    let [sources, targets] = [at(0), at(1)];
    let range =
        |kept: &[usize], [start, end]: [u32; 2]| [start, end].map(|x| kept.partition_point(|&i| i < x as usize) as u32);
    let source_range: Vec<_> = tree.source_range.iter().map(|&r| range(&sources, r)).collect();
    let target_range: Vec<_> = tree.target_range.iter().map(|&r| range(&targets, r)).collect();
    let filled = |b: usize| source_range[b][0] < source_range[b][1] || target_range[b][0] < target_range[b][1];
    let kept: Vec<usize> = (0..tree.len()).filter(|&b| b == 0 || filled(b)).collect();
    let place = |b: usize| kept.partition_point(|&k| k < b) as u32;
    let points = |kept: &[usize]| Points {
        xyz: std::array::from_fn(|a| kept.iter().map(|&i| tree.sources.xyz[a][i]).collect()),
        order: (0..kept.len() as u32).collect(),
    };
    Tree {
        level_start: tree.level_start.iter().map(|&b| place(b as usize)).collect(),
        parent: kept.iter().map(|&b| if b == 0 { NONE } else { place(tree.parent[b] as usize) }).collect(),
        child_start: kept.iter().map(|&b| place(tree.children(b).start)).collect(),
        child_count: kept.iter().map(|&b| tree.children(b).filter(|&c| filled(c)).count() as u8).collect(),
        octant: kept.iter().map(|&b| tree.octant[b]).collect(),
        anchor: kept.iter().map(|&b| tree.anchor[b]).collect(),
        source_range: kept.iter().map(|&b| source_range[b]).collect(),
        target_range: kept.iter().map(|&b| target_range[b]).collect(),
        sources: Arc::new(points(&sources)),
        targets: Arc::new(points(&targets)),
        ..Tree { corner: tree.corner, side: tree.side, ..Tree::default() }
    }
}

#[test]
fn octrees_of_which_boxes_are_left_out_are_taken() {
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Plummer] {
        let (all, _) = geometry(&kind.points(4000, 1), None, 8);
        let tree = thinned(&all, 7);
        assert!(tree.len() < all.len() && (1..tree.len()).any(|b| tree.sources_of(b).is_empty()));
        let lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let user = |p: &Points| (0..p.len()).flat_map(|i| [0, 1, 2].map(|a| p.xyz[a][i])).collect::<Vec<f64>>();
        let (sources, targets) = (user(&tree.sources), user(&tree.targets));
        let q = strengths::<Laplace>(&sources);
        let exact =
            direct(&Laplace, both(), &sources, &q, Targets::Points(&targets), Precision::F64, Isa::detect()).unwrap();
        let (fresh, its_lists) = geometry(&sources, Some(&targets), 8);
        for order in [5, 12] {
            // A new tree of these points has about the same error, with more points per leaf.
            for (of_thin, of_fresh) in plans(&tree, &lists, order).into_iter().zip(plans(&fresh, &its_lists, order)) {
                let [d, usual] = [of_thin, of_fresh].map(|s| difference::<Laplace>(&apply(&*s.unwrap(), &q), &exact));
                assert!(
                    d < 8.0 * usual && usual < 0.05 * 0.6f64.powi(order as i32),
                    "{}, {order}: {d:e}, {usual:e}",
                    kind.name()
                );
            }
        }
    }
}
