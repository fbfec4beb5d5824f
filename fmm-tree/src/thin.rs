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
    let Thinned { tree: mut small, kept } = thin_boxes(tree, sources, targets);
    let numbers = |ranges: &[[u32; 2]]| {
        let mut numbers = vec![NONE; tree.len()];
        for (number, (&b, _)) in kept.iter().zip(ranges).enumerate().filter(|(_, (_, range))| range[0] < range[1]) {
            numbers[b as usize] = number as u32;
        }
        numbers
    };
    let lists = restrict(lists, &kept, &numbers(&small.source_range), &numbers(&small.target_range));
    small.sources = Arc::new(some(&tree.sources, sources));
    small.targets = Arc::new(some(&tree.targets, targets));
    (small, lists)
}

/// The remaining boxes of a [thinned](thin_boxes) tree.
#[derive(Clone, Debug)]
pub struct Thinned {
    /// The small tree. It has no points; its ranges count the points that remain.
    pub tree: Tree,
    /// For each box of the small tree, its number in the large tree.
    pub kept: Vec<u32>,
}

/// The boxes of [`thin`], without points and lists. `tree` may lack its points, too. Takes time for the remaining boxes
/// only.
pub fn thin_boxes(tree: &Tree, sources: &[u32], targets: &[u32]) -> Thinned {
    let mut small = Tree { corner: tree.corner, side: tree.side, level_start: vec![0], ..Tree::default() };
    let mut kept = vec![0u32];
    (small.parent, small.octant, small.anchor) = (vec![NONE], vec![0], vec![[0; 3]]);
    (small.source_range, small.target_range) = (vec![[0, sources.len() as u32]], vec![[0, targets.len() as u32]]);
    // Where the points of a child end among the kept points `start..end` of its parent and of later children.
    let end_of = |child_end: u32, points: &[u32], start: u32, end: u32| {
        start + points[start as usize..end as usize].partition_point(|&k| k < child_end) as u32
    };
    let mut level = 0..1;
    while !level.is_empty() {
        small.level_start.push(level.end as u32);
        for b in level.clone() {
            let ([mut s, s_last], [mut t, t_last]) = (small.source_range[b], small.target_range[b]);
            let first = kept.len();
            for child in tree.children(kept[b] as usize) {
                let s_end = end_of(tree.source_range[child][1], sources, s, s_last);
                let t_end = end_of(tree.target_range[child][1], targets, t, t_last);
                if s < s_end || t < t_end {
                    small.parent.push(b as u32);
                    small.octant.push(tree.octant[child]);
                    small.anchor.push(tree.anchor[child]);
                    small.source_range.push([s, s_end]);
                    small.target_range.push([t, t_end]);
                    kept.push(child as u32);
                }
                (s, t) = (s_end, t_end);
            }
            small.child_count.push((kept.len() - first) as u8);
            small.child_start.push(if kept.len() > first { first as u32 } else { 0 });
        }
        level = level.end..kept.len();
    }
    Thinned { tree: small, kept }
}

/// The edges from boxes with sources to boxes with targets, in the rows of the boxes `kept`. For each box of the large
/// tree, `as_source` is its number in the small tree, or [`NONE`] if it keeps no source, and `as_target` likewise.
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
