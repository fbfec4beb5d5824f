//! Lists that the plan cannot carry out exactly as they stand are an error, or are carried out.

use super::oracle::pair_by_pair;
use super::*;
use fmm_kernels::Laplace;
use fmm_traits::Edges;

/// Without its edge `k`.
fn removed(edges: &Edges, k: usize) -> Edges {
    let mut edges = edges.clone();
    edges.sources.remove(k);
    edges.starts.iter_mut().filter(|s| **s > k).for_each(|s| *s -= 1);
    edges
}

/// With the edge `target` ← `source` in addition.
fn added(edges: &Edges, target: usize, source: usize) -> Edges {
    let mut edges = edges.clone();
    edges.sources.insert(edges.starts[target + 1], source as u32);
    edges.starts[target + 1..].iter_mut().for_each(|s| *s += 1);
    edges
}

fn refused(tree: &Tree, lists: Lists) -> bool {
    let made = plan(&WithGradient(Laplace), both(), tree.clone(), lists, &settings(3, Precision::F64));
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
            match plan(&WithGradient(Laplace), both(), tree.clone(), lists.clone(), &settings(3, Precision::F64)) {
                Err(Error::Edge { .. }) => seen += 1,
                Err(e) => panic!("{e}"),
                Ok(solver) => {
                    let expected = pair_by_pair::<_, f64>(&WithGradient(Laplace), 3, &(tree.clone(), lists), &q);
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
    let mut solver = plan(&WithGradient(Laplace), both(), tree.clone(), lists, &settings(4, Precision::F64)).unwrap();
    let before = apply(&*solver, &q);
    assert!(matches!(solver.set_tree(tree, wrong), Err(Error::Edge { .. })));
    assert!(before == apply(&*solver, &q));
}

#[test]
fn shapes_are_checked() {
    let (tree, lists) = geometry(&uniform(50, 1), None, 15);
    let solver = plan(&WithGradient(Laplace), both(), tree, lists, &settings(4, Precision::F64)).unwrap();
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
