//! Counts of boxes and edges, and seconds of planning: plain data.

use crate::probe::on_host::corner_sums;
use crate::probe::sampled::End;
use fmm_dist::World;
use fmm_traits::{Error, Hierarchy, Lists, Tree};
use serde::Serialize;

/// Seconds of the parts of planning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlanSeconds {
    /// Building the tree.
    pub tree: f64,
    /// Building the edge lists.
    pub lists: f64,
    /// Making translation operators and workspaces.
    pub operators: f64,
    /// Measuring errors to choose the order.
    pub probe: f64,
    /// Planning as a whole.
    pub plan: f64,
}

/// Number of edges of each kind. An edge joins two boxes, not two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Edges {
    /// P2M: leaves with sources.
    pub p2m: usize,
    /// M2M: child to parent.
    pub m2m: usize,
    /// M2L: V list.
    pub m2l: usize,
    /// P2L: X list.
    pub p2l: usize,
    /// L2L: parent to child.
    pub l2l: usize,
    /// L2P: leaves with targets.
    pub l2p: usize,
    /// M2P: W list.
    pub m2p: usize,
    /// P2P: U list.
    pub p2p: usize,
}

impl Edges {
    /// The numbers of edges of `lists`.
    pub(crate) fn of(lists: &Lists) -> Self {
        Edges {
            p2m: lists.p2m.len(),
            m2m: lists.m2m.len(),
            m2l: lists.m2l.len(),
            p2l: lists.p2l.len(),
            l2l: lists.l2l.len(),
            l2p: lists.l2p.len(),
            m2p: lists.m2p.len(),
            p2p: lists.p2p.len(),
        }
    }
    /// Edges between points and expansions. There are more of them at low orders, where few points are worth an expansion.
    pub(crate) fn of_points(&self) -> usize {
        self.m2p + self.p2l
    }
    /// The points of M2P and P2L edges, if each edge has one mean leaf.
    pub(crate) fn far_points(&self, mean_leaf: f64) -> u64 {
        (self.of_points() as f64 * mean_leaf) as u64
    }
}

/// Counts of the tree and the lists of an engine; all zero without boxes.
#[derive(Clone, Default)]
pub(crate) struct Mesh {
    pub levels: usize,
    pub boxes: usize,
    pub leaves: usize,
    pub root_side: f64,
    pub edges: Edges,
    /// Pairs of points that are summed directly.
    pub near_pairs: u64,
    /// Targets of M2P edges plus sources of P2L edges; a point counts once per edge.
    pub far_points: u64,
    /// Mean over the targets of a high power of their distance from the centre of their leaf, in sides of the leaf
    /// ([`corner_sums`](crate::probe::sampled::Sampled::corner_sums)). Errors of expansions grow with it.
    pub corners: f64,
}

impl Mesh {
    /// The counts of a tree and its lists.
    pub fn of<H: Hierarchy>(tree: &H, lists: &Lists, leaves: usize, root_side: f64) -> Mesh {
        let [sources, targets] = [
            |tree: &H, b: u32| tree.sources_of(b as usize).len() as u64,
            |tree: &H, b: u32| tree.targets_of(b as usize).len() as u64,
        ];
        let m2p: u64 = lists.m2p.iter().map(|(t, _)| targets(tree, t)).sum();
        let p2l: u64 = lists.p2l.iter().map(|(_, s)| sources(tree, s)).sum();
        Mesh {
            levels: tree.levels(),
            boxes: tree.boxes(),
            leaves,
            root_side,
            edges: Edges::of(lists),
            near_pairs: lists.p2p.iter().map(|(t, s)| targets(tree, t) * sources(tree, s)).sum(),
            far_points: m2p + p2l,
            corners: corner_mean(tree),
        }
    }

    /// The counts of some boxes of a tree of one of several ranks, with the sources and targets of their leaves.
    /// Sources of other ranks count, whether or not their points are here.
    pub fn of_boxes(tree: &Tree, lists: &Lists, boxes: &[u32]) -> (Mesh, [usize; 2]) {
        let (mut mesh, mut points) = (Mesh::default(), [0, 0]);
        let sources = |s: &u32| tree.source_count(*s as usize);
        for b in boxes.iter().map(|&b| b as usize) {
            let targets = tree.targets_of(b).len();
            let (near, far) = (lists.p2p.row(b), lists.p2l.row(b));
            mesh.boxes += 1;
            mesh.edges.p2p += near.len();
            mesh.edges.m2l += lists.m2l.row(b).len();
            mesh.edges.m2p += lists.m2p.row(b).len();
            mesh.edges.p2l += far.len();
            mesh.edges.l2l += lists.l2l.row(b).len();
            mesh.edges.l2p += lists.l2p.row(b).len();
            mesh.near_pairs += (targets * near.iter().map(sources).sum::<usize>()) as u64;
            mesh.far_points += (targets * lists.m2p.row(b).len() + far.iter().map(sources).sum::<usize>()) as u64;
            if tree.is_leaf(b) {
                mesh.leaves += 1;
                points = [points[0] + tree.sources_of(b).len(), points[1] + targets];
            }
        }
        (mesh, points)
    }

    /// Adds up the counts of all ranks. All ranks call it together.
    pub fn add_up(&mut self, world: &World) -> Result<(), Error> {
        let Edges { m2l, p2l, l2l, l2p, m2p, p2p, .. } = self.edges;
        let mut all = [self.boxes, self.leaves, m2l, p2l, l2l, l2p, m2p, p2p].map(|count| count as u64).to_vec();
        all.extend([self.near_pairs, self.far_points]);
        world.reduce(&mut all, |a, b| a + b)?;
        let mut deepest = [self.levels as u64];
        world.reduce(&mut deepest, u64::max)?;
        self.levels = deepest[0] as usize;
        [self.boxes, self.leaves] = [all[0] as usize, all[1] as usize];
        let [m2l, p2l, l2l, l2p, m2p, p2p] = [2, 3, 4, 5, 6, 7].map(|k| all[k] as usize);
        self.edges = Edges { m2l, p2l, l2l, l2p, m2p, p2p, ..Edges::default() };
        [self.near_pairs, self.far_points] = [all[8], all[9]];
        Ok(())
    }

    /// Whether each count differs by at most a tenth from the same count of `other`, and the mean over the targets by
    /// at most a factor of 2. (It scatters by a fifth for some thousand random points.)
    pub fn resembles(&self, other: &Mesh) -> bool {
        let close = |a: f64, b: f64| (a - b).abs() <= 0.1 * a.max(b);
        let numbers = |m: &Mesh| {
            let e = &m.edges;
            let counts = [m.boxes, m.leaves, e.m2l, e.p2l, e.m2p, e.p2p].map(|k| k as f64);
            counts.into_iter().chain([m.root_side, m.near_pairs as f64]).collect::<Vec<_>>()
        };
        let alike = self.corners <= 2.0 * other.corners && other.corners <= 2.0 * self.corners;
        alike && self.levels == other.levels && numbers(self).into_iter().zip(numbers(other)).all(|(a, b)| close(a, b))
    }
}

/// [`Mesh::corners`] of a tree in the memory of the host.
fn corner_mean(tree: &impl Hierarchy) -> f64 {
    corner_sums(tree, End::Targets).iter().sum::<f64>() / tree.targets_of(0).len().max(1) as f64
}
