//! A summary of the edges into each box: enough to tell kinds of leaves apart without the lists themselves.

use fmm_traits::tree::{Hierarchy, Lists, NONE};

/// A summary of the edges into a box, in one word: a tree may have millions of boxes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Incoming(u32);

impl Incoming {
    const M2P: u32 = 1;
    const P2L: u32 = 2;
    const JUMP: u32 = 4;

    /// The summary of a code: 8 · [`edges`](Self::edges), + 1 with [`m2p`](Self::m2p), + 2 with [`p2l`](Self::p2l), + 4 with
    /// [`jump`](Self::jump).
    pub fn of_code(code: u32) -> Incoming {
        Incoming(code)
    }
    /// Number of M2L, M2P and P2P edges into the box.
    pub fn edges(self) -> u32 {
        self.0 / 8
    }
    /// Whether the box has M2P edges.
    pub fn m2p(self) -> bool {
        self.0 & Incoming::M2P != 0
    }
    /// Whether the box or a box above it has P2L edges.
    pub fn p2l(self) -> bool {
        self.0 & Incoming::P2L != 0
    }
    /// Whether a P2P edge comes from a box whose level differs by two or more.
    pub fn jump(self) -> bool {
        self.0 & Incoming::JUMP != 0
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Incoming");
        shown.field("edges", &self.edges()).field("m2p", &self.m2p()).field("p2l", &self.p2l());
        shown.field("jump", &self.jump()).finish()
    }
}

/// A summary of the edges into each box of a tree.
///
/// Example: in a uniform tree of 8³ leaves, a leaf in the middle has 189 M2L and 27 P2P edges, so `edges()` is 216.
pub fn incoming<H: Hierarchy + ?Sized>(tree: &H, lists: &Lists) -> Vec<Incoming> {
    let mut level_of = vec![0u8; tree.boxes()];
    for level in 0..tree.levels() {
        level_of[tree.level(level)].fill(level as u8);
    }
    let mut all: Vec<Incoming> = Vec::with_capacity(tree.boxes());
    for b in 0..tree.boxes() {
        let edges = lists.m2l.row(b).len() + lists.m2p.row(b).len() + lists.p2p.row(b).len();
        let parent = tree.parent(b);
        let p2l = !lists.p2l.row(b).is_empty() || parent != NONE && all[parent as usize].p2l();
        let jump = lists.p2p.row(b).iter().any(|&s| level_of[s as usize].abs_diff(level_of[b]) > 1);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = [(!lists.m2p.row(b).is_empty(), Incoming::M2P), (p2l, Incoming::P2L), (jump, Incoming::JUMP)];
        let flags = flags.map(|(is, bit)| flag(is, bit)).iter().sum::<u32>();
        all.push(Incoming(8 * edges as u32 + flags));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ListOptions, build, uvwx};
    use fmm_traits::testkit::clouds::CloudKind;

    /// Every summary is compared with one that is counted edge by edge, on lists with edges of all kinds.
    #[test]
    fn a_summary_counts_edges() {
        let points = CloudKind::TwoClusters.points(3000, 3);
        let tree = build(&points, None, &BuildOptions { occupancy: 10.0, ..BuildOptions::default() }).unwrap();
        let lists = uvwx(&tree, &ListOptions { m2p_min_sources: 4, p2l_min_targets: 4 }).unwrap();
        let level = |b: usize| (0..tree.levels()).find(|&l| tree.level(l).contains(&b)).unwrap();
        let mut seen = [0; 3];
        for (b, found) in incoming(&tree, &lists).into_iter().enumerate() {
            let rows = [&lists.m2l, &lists.m2p, &lists.p2p].map(|edges| edges.row(b));
            let above = std::iter::successors(Some(b), |&b| (b > 0).then(|| tree.parent[b] as usize));
            let by_p2l = above.map(|b| lists.p2l.row(b).len()).sum::<usize>() > 0;
            let jumps = rows[2].iter().filter(|&&s| level(s as usize).abs_diff(level(b)) > 1).count();
            assert_eq!(found.edges() as usize, rows.iter().map(|row| row.len()).sum::<usize>(), "box {b}");
            let flags = [found.m2p(), found.p2l(), found.jump()];
            assert_eq!(flags, [!rows[1].is_empty(), by_p2l, jumps > 0], "box {b}");
            seen.iter_mut().zip(flags).for_each(|(seen, flag)| *seen += usize::from(flag));
        }
        assert!(seen.iter().all(|&seen| seen > 0), "{seen:?}");
    }
}
