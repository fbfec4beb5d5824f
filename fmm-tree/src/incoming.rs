//! A summary of the edges into each box: enough to tell kinds of leaves apart without the lists themselves.

use fmm_traits::tree::{Hierarchy, Lists};

/// A summary of the edges into a box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Number of M2L, M2P and P2P edges.
    pub edges: u32,
    /// Whether the box has M2P edges.
    pub m2p: bool,
    /// Whether the box has P2L edges.
    pub p2l: bool,
    /// Whether a P2P edge comes from a box whose level differs by two or more.
    pub jump: bool,
}

/// A summary of the edges into each box of a tree.
///
/// Example: in a uniform tree of 8³ leaves, a leaf in the middle has 189 M2L and 27 P2P edges, so `edges` is 216.
pub fn incoming<H: Hierarchy + ?Sized>(tree: &H, lists: &Lists) -> Vec<Incoming> {
    let mut level_of = vec![0u8; tree.boxes()];
    for level in 0..tree.levels() {
        level_of[tree.level(level)].fill(level as u8);
    }
    let of = |b: usize| Incoming {
        edges: (lists.m2l.row(b).len() + lists.m2p.row(b).len() + lists.p2p.row(b).len()) as u32,
        m2p: !lists.m2p.row(b).is_empty(),
        p2l: !lists.p2l.row(b).is_empty(),
        jump: lists.p2p.row(b).iter().any(|&s| level_of[s as usize].abs_diff(level_of[b]) > 1),
    };
    (0..tree.boxes()).map(of).collect()
}
