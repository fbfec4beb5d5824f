//! Boxes and edge lists: the geometry on which every stage works, for any kind of tree.
//!
//! Invariants of [`Tree`] (`fmm_tree::invariants` checks the first two):
//! * boxes are stored level by level, in Morton order within a level, so the children of a box
//!   are consecutive; box 0 is the root;
//! * the source (target) points of a box are a contiguous range of the tree order, and the
//!   ranges of its children partition it;
//! * box centres and sides are exact in f64 for a root that `fmm_tree` chose: its side has a few bits
//!   and its corner is a multiple of side·2^−10, so that differences of centres are exact integer
//!   multiples of the side. A root that the caller gave is taken as it is.

use crate::Cube;
use crate::shared::Shared;
use std::ops::Range;
use std::sync::Arc;

/// Marks "no box" (the parent of the root).
pub const NONE: u32 = u32::MAX;

/// Points in tree order, one array per axis, in the user's units.
#[derive(Clone, Debug, Default)]
pub struct Points {
    /// `xyz[axis][position]`, `position` in tree order.
    pub xyz: [Vec<f64>; 3],
    /// `order[position]` = index of that point in the user's array.
    pub order: Vec<u32>,
}

impl Points {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.order.len()
    }
    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// An adaptive tree of cubes over the union of sources and targets.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Lower corner of the root cube.
    pub corner: [f64; 3],
    /// Side of the root cube; a box of level ℓ has side `side·2^−ℓ`.
    pub side: f64,
    /// `level_start[l]..level_start[l + 1]` are the boxes of level `l`; `levels + 1` entries.
    pub level_start: Vec<u32>,
    /// Parent of each box, [`NONE`] for the root.
    pub parent: Vec<u32>,
    /// First child of each box (meaningless when `child_count` is 0).
    pub child_start: Vec<u32>,
    /// Number of children; 0 for a leaf.
    pub child_count: Vec<u8>,
    /// Position of each box in its parent: bit 0 = upper half in x, bit 1 in y, bit 2 in z.
    pub octant: Vec<u8>,
    /// Integer coordinates of each box on the grid of its level: corner = root corner + anchor·side.
    pub anchor: Vec<[u64; 3]>,
    /// Range of source positions of each box.
    pub source_range: Vec<[u32; 2]>,
    /// Range of target positions of each box.
    pub target_range: Vec<[u32; 2]>,
    /// The sources in tree order.
    pub sources: Arc<Points>,
    /// The targets in tree order; the same allocation as `sources` when targets are the sources.
    pub targets: Arc<Points>,
    /// What other ranks have of the boxes; `None` on one rank.
    pub shared: Option<Arc<Shared>>,
}

impl Tree {
    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.parent.len()
    }
    /// Whether there is no box.
    pub fn is_empty(&self) -> bool {
        self.parent.is_empty()
    }
    /// Number of levels.
    pub fn levels(&self) -> usize {
        self.level_start.len().saturating_sub(1)
    }
    /// Boxes of level `l`.
    pub fn level(&self, l: usize) -> Range<usize> {
        self.level_start[l] as usize..self.level_start[l + 1] as usize
    }
    /// Level of box `b`.
    pub fn level_of(&self, b: usize) -> usize {
        self.level_start.partition_point(|&s| s as usize <= b) - 1
    }
    /// Whether box `b` has no children, on any rank.
    pub fn is_leaf(&self, b: usize) -> bool {
        self.child_count[b] == 0 && self.shared.as_ref().is_none_or(|shared| shared.leaf[b])
    }
    /// Number of sources of box `b`, on all ranks.
    pub fn source_count(&self, b: usize) -> usize {
        self.shared.as_ref().map_or_else(|| self.sources_of(b).len(), |shared| shared.sources[b] as usize)
    }
    /// Number of targets of box `b`, on all ranks.
    pub fn target_count(&self, b: usize) -> usize {
        self.shared.as_ref().map_or_else(|| self.targets_of(b).len(), |shared| shared.targets[b] as usize)
    }
    /// Whether this rank computes a multipole of box `b` from its own sources.
    pub fn gives(&self, b: usize) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.gives[b])
    }
    /// Children of box `b`.
    pub fn children(&self, b: usize) -> Range<usize> {
        let s = self.child_start[b] as usize;
        s..s + self.child_count[b] as usize
    }
    /// Side of the boxes of level `l`.
    pub fn side_at(&self, l: usize) -> f64 {
        self.side * (-(l as f64)).exp2()
    }
    /// Centre of box `b`, which lies on level `l`.
    pub fn center(&self, b: usize, l: usize) -> [f64; 3] {
        let h = self.side_at(l);
        std::array::from_fn(|a| self.corner[a] + (self.anchor[b][a] as f64 + 0.5) * h)
    }
    /// Source positions of box `b`.
    pub fn sources_of(&self, b: usize) -> Range<usize> {
        self.source_range[b][0] as usize..self.source_range[b][1] as usize
    }
    /// Target positions of box `b`.
    pub fn targets_of(&self, b: usize) -> Range<usize> {
        self.target_range[b][0] as usize..self.target_range[b][1] as usize
    }
    /// Whether targets are the sources (self terms may then be skipped by index).
    pub fn same_points(&self) -> bool {
        Arc::ptr_eq(&self.sources, &self.targets) || self.shared.as_ref().is_some_and(|shared| shared.same_points)
    }
    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        (0..self.len()).filter(|&b| self.is_leaf(b)).count()
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let points = |p: &Points| p.len() as u64 * 28;
        let boxes = self.len() as u64 * (4 + 4 + 1 + 1 + 24 + 8 + 8);
        boxes
            + points(&self.sources)
            + if Arc::ptr_eq(&self.sources, &self.targets) { 0 } else { points(&self.targets) }
    }
}

/// A tree of any shape and dimension, as seen by edge lists, by their oracle, and by stages that run one edge at a
/// time. Boxes are stored level by level; box 0 is the root. The points of a box are a contiguous range of the tree
/// order, and its children partition that range.
pub trait Hierarchy: Sync {
    /// Number of levels.
    fn levels(&self) -> usize;
    /// Boxes of level `l`. The levels follow each other, from box 0 on.
    fn level(&self, l: usize) -> Range<usize>;
    /// Parent of box `b`, [`NONE`] for the root.
    fn parent(&self, b: usize) -> u32;
    /// Whether box `b` has no children.
    fn is_leaf(&self, b: usize) -> bool;
    /// A cube that stands for box `b` of level `l` in the operators of an expansion.
    fn cube(&self, b: usize, l: usize) -> Cube;
    /// Source positions of box `b`.
    fn sources_of(&self, b: usize) -> Range<usize>;
    /// Target positions of box `b`.
    fn targets_of(&self, b: usize) -> Range<usize>;
    /// Whether targets are the sources.
    fn same_points(&self) -> bool;
    /// The user's index of each source position.
    fn source_order(&self) -> &[u32];
    /// The user's index of each target position.
    fn target_order(&self) -> &[u32];
    /// Source at `position`.
    fn source(&self, position: usize) -> [f64; 3];
    /// Target at `position`.
    fn target(&self, position: usize) -> [f64; 3];
    /// What other ranks have of the boxes; `None` on one rank.
    fn shared(&self) -> Option<&Shared> {
        None
    }
    /// Number of boxes.
    fn boxes(&self) -> usize {
        self.level(self.levels() - 1).end
    }
}

impl Hierarchy for Tree {
    fn levels(&self) -> usize {
        self.levels()
    }
    fn level(&self, l: usize) -> Range<usize> {
        self.level(l)
    }
    fn parent(&self, b: usize) -> u32 {
        self.parent[b]
    }
    fn is_leaf(&self, b: usize) -> bool {
        self.is_leaf(b)
    }
    fn cube(&self, b: usize, l: usize) -> Cube {
        Cube { center: self.center(b, l), side: self.side_at(l) }
    }
    fn sources_of(&self, b: usize) -> Range<usize> {
        self.sources_of(b)
    }
    fn targets_of(&self, b: usize) -> Range<usize> {
        self.targets_of(b)
    }
    fn same_points(&self) -> bool {
        self.same_points()
    }
    fn source_order(&self) -> &[u32] {
        &self.sources.order
    }
    fn target_order(&self) -> &[u32] {
        &self.targets.order
    }
    fn source(&self, position: usize) -> [f64; 3] {
        std::array::from_fn(|a| self.sources.xyz[a][position])
    }
    fn target(&self, position: usize) -> [f64; 3] {
        std::array::from_fn(|a| self.targets.xyz[a][position])
    }
    fn shared(&self) -> Option<&Shared> {
        self.shared.as_deref()
    }
}

/// Edges of one kind, grouped by target box (compressed sparse rows).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// `starts[t]..starts[t + 1]` are the edges into target box `t`; boxes + 1 entries.
    pub starts: Vec<usize>,
    /// Source box of each edge.
    pub sources: Vec<u32>,
}

impl Edges {
    /// No edges, for `boxes` boxes.
    pub fn none(boxes: usize) -> Self {
        Edges { starts: vec![0; boxes + 1], sources: Vec::new() }
    }
    /// Source boxes of the edges into target box `t`.
    pub fn row(&self, t: usize) -> &[u32] {
        &self.sources[self.starts[t]..self.starts[t + 1]]
    }
    /// Number of edges.
    pub fn len(&self) -> usize {
        self.sources.len()
    }
    /// Whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
    /// All edges as (target box, source box).
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.starts.len().saturating_sub(1)).flat_map(|t| self.row(t).iter().map(move |&s| (t as u32, s)))
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        8 * self.starts.len() as u64 + 4 * self.sources.len() as u64
    }
}

/// The eight edge lists: which boxes interact, and by which operator. Every row belongs to the box that *receives*.
///
/// `p2m` and `l2p` hold the edge (b, b) for each leaf b with that step. `m2m` holds (parent, child), `l2l` (child,
/// parent). A list policy may emit any (target, source) pair in the other four lists; an expansion may refuse it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Sources of a leaf → its multipole expansion.
    pub p2m: Edges,
    /// Multipole of a child → multipole of its parent.
    pub m2m: Edges,
    /// Multipole → local (V list).
    pub m2l: Edges,
    /// Sources → local (X list).
    pub p2l: Edges,
    /// Local of the parent → local of a child.
    pub l2l: Edges,
    /// Multipole → targets (W list).
    pub m2p: Edges,
    /// Local of a leaf → its targets.
    pub l2p: Edges,
    /// Sources → targets (U list).
    pub p2p: Edges,
}

impl Lists {
    /// No edges, for `boxes` boxes.
    pub fn none(boxes: usize) -> Self {
        let none = || Edges::none(boxes);
        let (p2m, m2m, m2l, p2l) = (none(), none(), none(), none());
        Lists { p2m, m2m, m2l, p2l, l2l: none(), m2p: none(), l2p: none(), p2p: none() }
    }
    /// The eight kinds with their names, in the order of the driver.
    pub fn kinds(&self) -> [(&'static str, &Edges); 8] {
        [
            ("p2m", &self.p2m),
            ("m2m", &self.m2m),
            ("m2l", &self.m2l),
            ("p2l", &self.p2l),
            ("l2l", &self.l2l),
            ("l2p", &self.l2p),
            ("m2p", &self.m2p),
            ("p2p", &self.p2p),
        ]
    }
    /// Whether any edge writes or reads a multipole.
    pub fn have_multipoles(&self) -> bool {
        [&self.p2m, &self.m2m, &self.m2l, &self.m2p].into_iter().any(|e| !e.is_empty())
    }
    /// Whether any edge writes or reads a local. No edge of a treecode does.
    pub fn have_locals(&self) -> bool {
        [&self.m2l, &self.p2l, &self.l2l, &self.l2p].into_iter().any(|e| !e.is_empty())
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.kinds().iter().map(|(_, e)| e.bytes()).sum()
    }
}
