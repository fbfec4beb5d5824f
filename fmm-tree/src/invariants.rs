//! Checks every invariant of a tree and of its U, V, W, X lists.

use crate::lists::{levels, touch};
use fmm_traits::Error;
use fmm_traits::constant_one::wrong_pairs;
use fmm_traits::tree::{Edges, Lists, NONE, Points, Tree};

/// Checks all invariants of a tree and its lists. The first violation is an [`Error::Edge`] that names the boxes; an
/// invariant of a single box names no source box.
///
/// Tree: array lengths; levels contiguous; Morton order; parents, octants and anchors consistent;
/// permutations valid; ranges of children partition those of the parent; points inside their
/// boxes. Lists: rows sorted and inside the tree; P2P between leaves; P2P among adjacent boxes
/// symmetric; M2L between boxes of one level that are not adjacent but have adjacent parents; M2P
/// edges are W edges and P2L edges are X edges; each source leaf reaches each target leaf exactly once.
pub fn check(tree: &Tree, lists: &Lists) -> Result<(), Error> {
    check_tree(tree)?;
    check_lists(tree, lists)
}

fn violated(what: impl Into<String>, target: usize, source_box: u32) -> Error {
    Error::Edge { what: what.into(), target: target as u32, source_box }
}

fn require(holds: bool, what: &str, b: usize) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(violated(what, b, NONE)) }
}

/// Checks the invariants of the tree alone: the invariants of [`check_boxes`], and of the points and boxes of an
/// octree.
pub fn check_tree(t: &Tree) -> Result<(), Error> {
    check_boxes(t)?;
    require(t.level_start.windows(2).all(|w| w[0] < w[1]), "a level without boxes", 0)?;
    permutation(&t.sources, "source order is not a permutation")?;
    permutation(&t.targets, "target order is not a permutation")?;
    for l in 0..t.levels() {
        for b in t.level(l) {
            require(b == 0 || !(t.sources_of(b).is_empty() && t.targets_of(b).is_empty()), "box without points", b)?;
            if t.is_leaf(b) {
                inside(t, b, l, &t.sources, t.source_range[b])?;
                inside(t, b, l, &t.targets, t.target_range[b])?;
            }
        }
    }
    Ok(())
}

/// Checks, in O(boxes), the invariants on which stages over many boxes rely. Array lengths agree. Levels are
/// contiguous, and the first level is the root alone. Every other box is the child of one box, in the order of parents
/// and octants; its anchor follows from parent and octant. The ranges of the root hold all points, and the ranges of
/// children partition the ranges of their parent.
///
/// Octrees with some boxes left out, and with boxes without points, have these invariants too.
pub fn check_boxes(t: &Tree) -> Result<(), Error> {
    let n = t.len();
    let lengths = [t.child_start.len(), t.child_count.len(), t.octant.len(), t.anchor.len()];
    let ranges = [t.source_range.len(), t.target_range.len()];
    require(n > 0 && lengths == [n; 4] && ranges == [n; 2], "array lengths differ", 0)?;
    let starts = t.level_start.get(..2) == Some(&[0, 1]) && t.level_start.last() == Some(&(n as u32));
    require(starts && t.level_start.is_sorted(), "levels are not contiguous", 0)?;
    require(t.parent[0] == NONE && t.anchor[0] == [0; 3], "box 0 is not the root", 0)?;
    require(t.source_range[0] == [0, t.sources.len() as u32], "the root misses sources", 0)?;
    require(t.target_range[0] == [0, t.targets.len() as u32], "the root misses targets", 0)?;
    for points in [&t.sources, &t.targets] {
        require(points.xyz.iter().all(|x| x.len() == points.len()), "coordinates and order differ in length", 0)?;
    }
    let mut next = 1;
    for l in 0..t.levels() {
        // Boxes of the last level have no children.
        let below = if l + 1 < t.levels() { t.level(l + 1) } else { n..n };
        for b in t.level(l).filter(|&b| t.child_count[b] > 0) {
            let own = t.children(b);
            require(own.start == next, "children do not follow those of the box before", b)?;
            require(below.start <= own.start && own.end <= below.end, "children not on the next level", b)?;
            next = own.end;
            children(t, b)?;
        }
    }
    require(next == n, "a box without parent", next)
}

fn permutation(p: &Points, what: &str) -> Result<(), Error> {
    let mut seen = vec![false; p.len()];
    for &i in &p.order {
        require((i as usize) < seen.len() && !std::mem::replace(&mut seen[i as usize], true), what, 0)?;
    }
    Ok(())
}

/// Checks the children of `b`: Morton order, anchors, ranges.
fn children(t: &Tree, b: usize) -> Result<(), Error> {
    let (mut s, mut q, mut least) = (t.source_range[b][0], t.target_range[b][0], 0);
    for c in t.children(b) {
        require(t.parent[c] as usize == b, "child does not know its parent", c)?;
        require(t.octant[c] >= least && t.octant[c] < 8, "children not in Morton order", c)?;
        least = t.octant[c] + 1;
        let bit = |a: usize| u64::from(t.octant[c] >> a & 1);
        let follows = |a: usize| t.anchor[b][a].checked_mul(2).map(|x| x + bit(a)) == Some(t.anchor[c][a]);
        require((0..3).all(follows), "anchor does not follow from parent and octant", c)?;
        let [sources, targets] = [t.source_range[c], t.target_range[c]];
        require(sources[0] == s && targets[0] == q, "ranges of children leave gaps", c)?;
        require(sources.is_sorted() && targets.is_sorted(), "a range of points ends before it starts", c)?;
        [s, q] = [sources[1], targets[1]];
    }
    require([s, q] == [t.source_range[b][1], t.target_range[b][1]], "ranges of children leave a rest", b)
}

/// Checks that the points of leaf `b` lie in it, up to the rounding of coordinates at its faces.
fn inside(t: &Tree, b: usize, l: usize, p: &Points, [lo, hi]: [u32; 2]) -> Result<(), Error> {
    let (center, half) = (t.center(b, l), 0.5 * t.side_at(l));
    for a in 0..3 {
        let slack = 4.0 * f64::EPSILON * (center[a].abs() + t.side);
        let outside = |x: &f64| (x - center[a]).abs() > half + slack;
        require(!p.xyz[a][lo as usize..hi as usize].iter().any(outside), "point outside its box", b)?;
    }
    Ok(())
}

fn check_lists(t: &Tree, lists: &Lists) -> Result<(), Error> {
    for (name, e) in lists.kinds() {
        let starts = e.starts.first() == Some(&0) && e.starts.last() == Some(&e.sources.len());
        let rising = e.starts.windows(2).all(|w| w[0] <= w[1]);
        require(e.starts.len() == t.len() + 1 && starts && rising, &format!("{name}: malformed starts"), 0)?;
        for b in 0..t.len() {
            let sorted = e.row(b).windows(2).all(|w| w[0] < w[1]);
            let known = e.row(b).last().is_none_or(|&s| (s as usize) < t.len());
            require(sorted && known, &format!("{name}: row not sorted or out of range"), b)?;
        }
    }
    let level = levels(t);
    let adjacent = |a: u32, b: u32| {
        let (a, b) = (a as usize, b as usize);
        touch(t.anchor[a], level[a], t.anchor[b], level[b])
    };
    let parent = |b: u32| t.parent[b as usize];
    let leaf = |b: u32| t.is_leaf(b as usize);
    let every = |e: &Edges, what: &str, holds: &dyn Fn(u32, u32) -> bool| match e.iter().find(|&(a, b)| !holds(a, b)) {
        Some((a, b)) => Err(violated(what, a as usize, b)),
        None => Ok(()),
    };
    every(&lists.p2m, "P2M edge is not (leaf, same leaf)", &|a, b| a == b && leaf(a))?;
    every(&lists.l2p, "L2P edge is not (leaf, same leaf)", &|a, b| a == b && leaf(a))?;
    every(&lists.m2m, "M2M edge is not (parent, child)", &|a, b| parent(b) == a)?;
    every(&lists.l2l, "L2L edge is not (child, parent)", &|a, b| parent(a) == b)?;
    every(&lists.m2l, "M2L edge is not a V edge", &|a, b| {
        let offset = |x: usize| t.anchor[a as usize][x].abs_diff(t.anchor[b as usize][x]);
        let near = (0..3).all(|x| offset(x) <= 3) && level[a as usize] == level[b as usize];
        near && !adjacent(a, b) && adjacent(parent(a), parent(b))
    })?;
    // α ∈ W(β): β is a leaf; α is finer and not adjacent; the parent of α is adjacent. X is W with the roles exchanged.
    let w = |fine: u32, coarse: u32| {
        let finer = level[fine as usize] > level[coarse as usize];
        finer && leaf(coarse) && !adjacent(fine, coarse) && adjacent(parent(fine), coarse)
    };
    every(&lists.m2p, "M2P edge is not a W edge", &|a, b| w(b, a))?;
    every(&lists.p2l, "P2L edge is not an X edge", &|a, b| w(a, b))?;
    every(&lists.p2p, "P2P edge between boxes that are not leaves or not near", &|a, b| {
        leaf(a) && leaf(b) && (adjacent(a, b) || w(a, b) || w(b, a))
    })?;
    // Duality, where both directions carry something: U is symmetric, and X is W with the roles exchanged.
    let both = |b: u32| !t.sources_of(b as usize).is_empty() && !t.targets_of(b as usize).is_empty();
    let has = |e: &Edges, a: u32, b: u32| e.row(a as usize).binary_search(&b).is_ok();
    every(&lists.p2p, "P2P edge whose dual is missing", &|a, b| {
        !both(a) || !both(b) || has(&lists.p2p, b, a) || has(&lists.p2l, b, a) || has(&lists.m2p, b, a)
    })?;
    every(&lists.m2p, "W edge without X edge", &|a, b| {
        !both(a) || !both(b) || has(&lists.p2l, b, a) || has(&lists.p2p, b, a)
    })?;
    every(&lists.p2l, "X edge without W edge", &|a, b| {
        !both(a) || !both(b) || has(&lists.m2p, b, a) || has(&lists.p2p, b, a)
    })?;
    match wrong_pairs(t, lists, 1).first() {
        Some(w) => Err(violated(format!("sources meet targets {} times", w.times), w.target as usize, w.source_box)),
        None => Ok(()),
    }
}
