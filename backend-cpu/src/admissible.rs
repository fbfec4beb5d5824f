//! What batched stages assume of trees and edge lists, and what an expansion admits, checked once a plan.

use fmm_traits::tree::{Edges, Hierarchy, Lists, Tree};
use fmm_traits::{Cube, Error};
use fmm_tree::invariants;
use rayon::prelude::*;

/// Where an expansion is valid: (target, source).
pub struct Region {
    /// Multipole of the source at targets.
    pub m2p: fn(Cube, Cube) -> bool,
    /// Multipole of the source into the local of the target.
    pub m2l: fn(Cube, Cube) -> bool,
    /// Sources into the local of the target.
    pub p2l: fn(Cube, Cube) -> bool,
}

/// Whether box `a` is an ancestor of box `b`.
fn contains(tree: &impl Hierarchy, a: u32, b: u32) -> bool {
    let mut b = b;
    while b > a {
        b = tree.parent(b as usize);
    }
    b == a
}

/// Why an edge is refused.
pub fn refuse(what: &str, target: u32, source_box: u32) -> Result<(), Error> {
    Err(Error::Edge { what: what.into(), target, source_box })
}

/// The first edge (target, source) that is `wrong`.
fn first(edges: &Edges, wrong: impl Fn(u32, u32) -> bool + Sync) -> Option<(u32, u32)> {
    let rows = (0..edges.starts.len().saturating_sub(1)).into_par_iter().with_min_len(1024);
    rows.find_map_first(|t| {
        let row = edges.row(t).iter();
        row.map(|&s| (t as u32, s)).find(|&(t, s)| wrong(t, s))
    })
}

/// Checks that `lists` are rows for so many boxes, and name no others.
pub fn well_formed(boxes: usize, lists: &Lists) -> Result<(), Error> {
    for (name, edges) in lists.kinds() {
        let (found, expected) = (edges.starts.len(), boxes + 1);
        if found != expected {
            let why = format!("{boxes} boxes");
            return Err(Error::Shape { array: "row starts of the lists", found, expected, why });
        }
        let (ends, found) = (edges.starts[boxes], edges.sources.len());
        if edges.starts[0] != 0 || ends != found || !edges.starts.is_sorted() {
            let why = format!("rows of {name}, one behind the other");
            return Err(Error::Shape { array: "edges of the lists", found, expected: ends, why });
        }
        // No early exit: the test is one of vectors.
        let most = edges.sources.iter().fold(0, |most, &s| most.max(s));
        if most as usize >= boxes && !edges.is_empty() {
            let target = edges.iter().find(|e| e.1 == most).map_or(0, |e| e.0);
            let what = format!("{name} from a box that is not there");
            return Err(Error::Edge { what, target, source_box: most });
        }
    }
    Ok(())
}

/// Checks that points enter and leave the sums at leaves, each once and with a far field to meet there, and that M2M
/// and L2L join a box and its children. The lists are well formed.
pub fn at_their_boxes(tree: &impl Hierarchy, lists: &Lists) -> Result<(), Error> {
    let leaf = |b: u32| tree.is_leaf(b as usize);
    let parent = |b: u32| tree.parent(b as usize);
    for e in [&lists.p2m, &lists.l2p] {
        if let Some((t, s)) = first(e, |t, s| t != s || !leaf(t)) {
            return refuse("P2M and L2P are between a leaf and itself", t, s);
        }
    }
    for e in [&lists.m2p, &lists.p2p] {
        if let Some((t, s)) = first(e, |t, _| !leaf(t)) {
            return refuse("targets are met at leaves", t, s);
        }
    }
    if let Some((t, s)) = first(&lists.m2m, |t, s| parent(s) != t) {
        return refuse("M2M is from a child to its parent", t, s);
    }
    if let Some((t, s)) = first(&lists.l2l, |t, s| parent(t) != s) {
        return refuse("L2L is from a parent to its child", t, s);
    }
    if let Some((t, s)) = first(&lists.p2p, |t, s| t != s && contains(tree, s, t)) {
        return refuse("the sources of a P2P edge include the targets", t, s);
    }
    let mut far = lists.m2l.iter().chain(lists.m2p.iter()).chain(lists.p2l.iter());
    // Multipoles may come from other ranks, and treecodes have no locals.
    let nothing = lists.p2m.is_empty() && lists.l2p.is_empty() && tree.shared().is_none();
    if let (true, Some((t, s))) = (nothing, far.next()) {
        return refuse("a far field without P2M and L2P", t, s);
    }
    Ok(())
}

/// Checks that `tree` has the invariants that stages rely on ([`invariants::check_boxes`]), that `lists` are well
/// formed and [`at_their_boxes`], and that the far edges lie in `region`.
pub fn check(tree: &Tree, lists: &Lists, region: &Region) -> Result<(), Error> {
    invariants::check_boxes(tree)?;
    well_formed(tree.len(), lists)?;
    at_their_boxes(tree, lists)?;
    let cubes: Vec<Cube> = (0..tree.levels())
        .flat_map(|l| tree.level(l).map(move |b| Cube { center: tree.center(b, l), side: tree.side_at(l) }))
        .collect();
    let cube = |b: u32| cubes[b as usize];
    let kinds = [
        (&lists.m2p, region.m2p, "the multipole is not valid on all of the target box"),
        (&lists.m2l, region.m2l, "the boxes are too close for M2L"),
        (&lists.p2l, region.p2l, "the sources are too close for a local expansion"),
    ];
    for (edges, valid, what) in kinds {
        if let Some((t, s)) = first(edges, |t, s| !valid(cube(t), cube(s))) {
            return refuse(what, t, s);
        }
    }
    Ok(())
}
