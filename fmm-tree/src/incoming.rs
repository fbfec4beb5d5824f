//! A summary of the edges into each box: enough to tell kinds of leaves apart without the lists themselves.

use fmm_traits::Cube;
use fmm_traits::tree::{Hierarchy, Lists};
use rayon::prelude::*;

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

/// Number of distances that [`far_sums`] tells apart. Each is half of the one before; the last has all smaller ones.
pub const DISTANCES: usize = 64;

/// For each box the sum over its edges of the number of sources of the source box times `weights[k]`. Here
/// k is the number of powers of two by which the two boxes are closer than the side of the root. They are as
/// close as the widest gap between them along an axis, but not closer than the side of the smaller box.
///
/// All M2L, M2P and P2L edges count, and the P2P edges between boxes that do not touch. Whether an expansion carries
/// such a pair depends on the order, since few sources are summed directly. The result hardly depends on it.
pub fn far_sums<H: Hierarchy + ?Sized>(tree: &H, lists: &Lists, weights: &[f64; DISTANCES]) -> Vec<f64> {
    // Exponents of numbers that are not subnormal.
    let exponent = |x: f64| (x.to_bits() >> 52 & 0x7ff) as usize;
    let levels = (0..tree.levels()).flat_map(|level| tree.level(level).map(move |b| (b, level)));
    let cubes: Vec<Cube> = levels.map(|(b, level)| tree.cube(b, level)).collect();
    let root = exponent(cubes[0].side);
    let count = |s: usize| tree.shared().map_or_else(|| tree.sources_of(s).len() as u64, |all| all.sources[s]);
    let of = |b: usize| {
        let term = |s: u32, far: bool| {
            let (x, y) = (&cubes[b], &cubes[s as usize]);
            let half = 0.5 * (x.side + y.side);
            let gap = (0..3).map(|a| (x.center[a] - y.center[a]).abs() - half).fold(f64::NEG_INFINITY, f64::max);
            let k = root.saturating_sub(exponent(gap.max(x.side.min(y.side)))).min(DISTANCES - 1);
            if far || gap > 0.0 { count(s as usize) as f64 * weights[k] } else { 0.0 }
        };
        let far = [&lists.m2l, &lists.p2l, &lists.m2p].into_iter().flat_map(|edges| edges.row(b));
        let near = lists.p2p.row(b).iter().map(|&s| term(s, false));
        far.map(|&s| term(s, true)).sum::<f64>() + near.sum::<f64>()
    };
    (0..cubes.len()).into_par_iter().with_min_len(256).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ListOptions, build, uvwx};
    use fmm_traits::testkit::clouds::CloudKind;

    /// An edge counts by the sources of its source box and by the gap between its boxes, in sides of the smaller one.
    #[test]
    fn far_sums_count_sources_by_distance() {
        let few = ListOptions { m2p_min_sources: 4, p2l_min_targets: 4 };
        for (kind, options) in [(CloudKind::Uniform, ListOptions::default()), (CloudKind::TwoClusters, few)] {
            let occupancy = BuildOptions { occupancy: 10.0, ..BuildOptions::default() };
            let tree = build(&kind.points(2000, 3), None, &occupancy).unwrap();
            let lists = uvwx(&tree, &options).unwrap();
            let weights = std::array::from_fn(|k| 3f64.powi(k as i32));
            let mut expected = vec![0.0; tree.len()];
            for (edges, far) in [(&lists.m2l, true), (&lists.p2l, true), (&lists.m2p, true), (&lists.p2p, false)] {
                for b in 0..tree.len() {
                    for &s in edges.row(b) {
                        // Integer coordinates in sides of the boxes of the finer level.
                        let levels = [b, s as usize].map(|b| tree.level_of(b));
                        let finest = levels[0].max(levels[1]);
                        let range = |k: usize, b: usize, a: usize| {
                            let side = 1 << (finest - levels[k]);
                            [tree.anchor[b][a] * side, (tree.anchor[b][a] + 1) * side]
                        };
                        let gap = |a: usize| {
                            let [x, y] = [range(0, b, a), range(1, s as usize, a)];
                            x[0].saturating_sub(y[1]).max(y[0].saturating_sub(x[1]))
                        };
                        let widest = gap(0).max(gap(1)).max(gap(2));
                        if widest == 0 && !far {
                            continue;
                        }
                        let k = finest as i32 - widest.max(1).ilog2() as i32;
                        expected[b] += tree.source_count(s as usize) as f64 * 3f64.powi(k);
                    }
                }
            }
            let found = far_sums(&tree, &lists, &weights);
            assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-12 * b));
            assert!(expected.iter().sum::<f64>() > 0.0);
        }
    }
}
