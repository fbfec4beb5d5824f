//! A small problem cut out of a large problem: the boxes of a tree, and the edges of its lists, that a few targets and
//! a few sources need.
//!
//! The probe of a plan measures the error of the real sum at some targets. It runs the same stages on a [`thin`]ned
//! tree: boxes keep their places, sides and levels, and edges keep their kinds. Only points, and boxes without points,
//! are left out.
//!
//! Example: of a million sources in 20 000 leaves, 800 targets and 50 000 sources keep some 3000 boxes.

use fmm_traits::tree::{Edges, Lists, NONE, Points, Tree};
use std::sync::Arc;

/// The tree and the lists for a part of the sources and targets, given by their positions in tree order.
///
/// `sources` and `targets` are ascending positions. The points of the small tree are numbered in that order: its source
/// `k` is the source at position `sources[k]`. Its targets are separate points, even where they are sources of the
/// large tree. Levels below the deepest remaining box are dropped.
///
/// Example: `thin(&tree, &lists, &[0, 7], &[3])` has two sources and one target.
pub fn thin(tree: &Tree, lists: &Lists, sources: &[u32], targets: &[u32]) -> (Tree, Lists) {
    let Thinned { tree: mut small, kept, as_source, as_target } = thin_boxes(tree, sources, targets);
    small.sources = Arc::new(some(&tree.sources, sources));
    small.targets = Arc::new(some(&tree.targets, targets));
    (small, restrict(lists, &kept, &as_source, &as_target))
}

/// The remaining boxes of a [thinned](thin_boxes) tree.
#[derive(Clone, Debug)]
pub struct Thinned {
    /// The small tree. It has no points; its ranges count the points that remain.
    pub tree: Tree,
    /// For each box of the small tree, its number in the large tree.
    pub kept: Vec<u32>,
    /// For each box of the large tree, its number in the small tree; [`NONE`] if it keeps no source.
    pub as_source: Vec<u32>,
    /// As `as_source`, for boxes that keep a target.
    pub as_target: Vec<u32>,
}

/// The boxes of [`thin`], without points and lists. `tree` may lack its points, too.
pub fn thin_boxes(tree: &Tree, sources: &[u32], targets: &[u32]) -> Thinned {
    let ranges = |of: &[[u32; 2]], kept: &[u32]| -> Vec<[u32; 2]> {
        let rank = |position: u32| kept.partition_point(|&k| k < position) as u32;
        of.iter().map(|&[start, end]| [rank(start), rank(end)]).collect()
    };
    let (source_range, target_range) = (ranges(&tree.source_range, sources), ranges(&tree.target_range, targets));
    let occupied = |[start, end]: [u32; 2]| start < end;

    // The remaining boxes, in the order of the large tree: children of a box stay consecutive.
    let mut number = vec![NONE; tree.len()];
    let mut kept = Vec::new();
    for b in (0..tree.len()).filter(|&b| b == 0 || occupied(source_range[b]) || occupied(target_range[b])) {
        number[b] = kept.len() as u32;
        kept.push(b as u32);
    }
    let mut small = Tree { corner: tree.corner, side: tree.side, ..Tree::default() };
    small.level_start = (0..=tree.levels())
        .map(|l| tree.level_start.get(l).map_or(0, |&first| kept.partition_point(|&b| b < first) as u32))
        .collect();
    while small.level_start.len() > 2 && small.level_start[small.level_start.len() - 2] as usize == kept.len() {
        small.level_start.pop();
    }
    for b in kept.iter().map(|&b| b as usize) {
        let left: Vec<u32> = tree.children(b).map(|child| number[child]).filter(|&child| child != NONE).collect();
        small.parent.push(if tree.parent[b] == NONE { NONE } else { number[tree.parent[b] as usize] });
        small.child_start.push(left.first().copied().unwrap_or(0));
        small.child_count.push(left.len() as u8);
        small.octant.push(tree.octant[b]);
        small.anchor.push(tree.anchor[b]);
        small.source_range.push(source_range[b]);
        small.target_range.push(target_range[b]);
    }
    let with = |ranges: &[[u32; 2]]| {
        let each = number.iter().zip(ranges);
        each.map(|(&number, &range)| if occupied(range) { number } else { NONE }).collect()
    };
    let (as_source, as_target) = (with(&source_range), with(&target_range));
    Thinned { tree: small, kept, as_source, as_target }
}

/// The edges from boxes with sources to boxes with targets, in the rows of the boxes `kept`. The numbers of boxes are
/// as in [`Thinned`].
pub fn restrict(lists: &Lists, kept: &[u32], as_source: &[u32], as_target: &[u32]) -> Lists {
    let edges = |of: &Edges, receives: &[u32], gives: &[u32]| -> Edges {
        let mut left = Edges { starts: vec![0], sources: Vec::new() };
        for b in kept.iter().map(|&b| b as usize) {
            if receives[b] != NONE {
                left.sources.extend(of.row(b).iter().map(|&s| gives[s as usize]).filter(|&s| s != NONE));
            }
            left.starts.push(left.sources.len());
        }
        left
    };
    let (s, t) = (as_source, as_target);
    Lists {
        p2m: edges(&lists.p2m, s, s),
        m2m: edges(&lists.m2m, s, s),
        m2l: edges(&lists.m2l, t, s),
        p2l: edges(&lists.p2l, t, s),
        l2l: edges(&lists.l2l, t, t),
        m2p: edges(&lists.m2p, t, s),
        l2p: edges(&lists.l2p, t, t),
        p2p: edges(&lists.p2p, t, s),
    }
}

/// The points at some positions, numbered anew.
fn some(points: &Points, kept: &[u32]) -> Points {
    let axis = |a: usize| kept.iter().map(|&k| points.xyz[a][k as usize]).collect();
    Points { xyz: [axis(0), axis(1), axis(2)], order: (0..kept.len() as u32).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ListOptions, build, uvwx};
    use fmm_traits::testkit::clouds::CloudKind;

    #[test]
    fn every_kept_pair_meets_once() {
        for kind in CloudKind::ALL {
            let (x, y) = (kind.points(3000, 1), kind.points(2000, 2));
            for targets in [None, Some(&y[..])] {
                let tree = build(&x, targets, &BuildOptions { ncrit: Some(20), ..BuildOptions::default() }).unwrap();
                let lists = uvwx(&tree, &ListOptions { m2p_min_sources: 12, p2l_min_targets: 12 }).unwrap();
                let some = |n: usize, every: usize| (0..n as u32).step_by(every).collect::<Vec<_>>();
                let (s, t) = (some(tree.sources.len(), 7), some(tree.targets.len(), 31));
                let (small, few) = thin(&tree, &lists, &s, &t);
                assert_eq!((small.sources.len(), small.targets.len()), (s.len(), t.len()));
                let wrong = fmm_traits::constant_one::wrong_pairs(&small, &few, 3);
                assert!(wrong.is_empty(), "{}: {wrong:?}", kind.name());
                let whole = thin(&tree, &lists, &some(tree.sources.len(), 1), &some(tree.targets.len(), 1));
                assert_eq!((whole.0.len(), whole.1), (tree.len(), lists));
            }
        }
    }
}
