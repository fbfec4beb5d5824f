//! Where in a tree the errors of expansions are largest, without the expansions themselves.

use fmm_traits::Cube;
use fmm_traits::tree::{Hierarchy, Lists};
use rayon::prelude::*;

/// Number of distances that [`far_squares`] tells apart. Each is half of the one before; the last has all smaller ones.
pub const DISTANCES: usize = 64;

/// For each leaf with targets the mean of E² over its targets, and 0 for other boxes. E follows the errors of expansions,
/// up to a factor: it is the sum over all edges of M2L, P2L and M2P that reach the target, of
///
/// ```text
/// (sources of the source box) · weights[k] · (h/d)^power
/// ```
///
/// Here d is a distance, and k the number of powers of two by which d is smaller than the side of the root. The ratio
/// h/d is at most 1.
/// - M2P: d from the centre of the source box to the target, h half the side of the source box.
/// - M2L: d between the centres of both boxes, h half the sum of their sides.
/// - P2L: d from the centre of the target box to the closest place of the source box, h half the side of the target box.
///
/// Example: `weights[k]` = 2^k follows 1/r. With `power` 0, E is about the sum of 1/r over all sources that act by
/// expansions. With `power` 12, E follows errors of order 12.
pub fn far_squares<H: Hierarchy + ?Sized>(tree: &H, lists: &Lists, weights: &[f64; DISTANCES], power: u32) -> Vec<f64> {
    // Exponents of numbers that are not subnormal.
    let exponent = |x: f64| (x.to_bits() >> 52 & 0x7ff) as usize;
    let levels = (0..tree.levels()).flat_map(|level| tree.level(level).map(move |b| (b, level)));
    let cubes: Vec<Cube> = levels.map(|(b, level)| tree.cube(b, level)).collect();
    let root = exponent(cubes[0].side);
    let count = |s: usize| tree.shared().map_or_else(|| tree.sources_of(s).len() as u64, |all| all.sources[s]) as f64;
    // Along each axis the distance between two centres. A device computes the same, to the bit.
    let apart = |x: &[f64; 3], y: &Cube| -> [f64; 3] { std::array::from_fn(|a| (x[a] - y.center[a]).abs()) };
    let of_one = |apart: [f64; 3], h: f64| {
        let d = apart.iter().map(|d| d * d).sum::<f64>().sqrt();
        weights[root.saturating_sub(exponent(d)).min(DISTANCES - 1)] * (h / d).min(1.0).powi(power as i32)
    };
    let by_locals = |b: usize| {
        let x = &cubes[b];
        let m2l = lists.m2l.row(b).iter().map(|&s| {
            let y = &cubes[s as usize];
            count(s as usize) * of_one(apart(&x.center, y), 0.5 * (x.side + y.side))
        });
        let p2l = lists.p2l.row(b).iter().map(|&s| {
            let y = &cubes[s as usize];
            let gaps = apart(&x.center, y).map(|d| (d - 0.5 * y.side).max(0.0));
            count(s as usize) * of_one(gaps, 0.5 * x.side)
        });
        m2l.sum::<f64>() + p2l.sum::<f64>()
    };
    let boxes = || (0..cubes.len()).into_par_iter().with_min_len(256);
    let mut sums: Vec<f64> = boxes().map(by_locals).collect();
    // A target has also what reaches the boxes above its leaf.
    for b in 1..sums.len() {
        sums[b] += sums[tree.parent(b) as usize];
    }
    let of_leaf = |b: usize| {
        let (targets, m2p) = (tree.targets_of(b), lists.m2p.row(b));
        let of_target = |t: usize| {
            let x = tree.target(t);
            let of_edge = |&s: &u32| {
                let y = &cubes[s as usize];
                count(s as usize) * of_one(apart(&x, y), 0.5 * y.side)
            };
            (sums[b] + m2p.iter().map(of_edge).sum::<f64>()).powi(2)
        };
        match (tree.is_leaf(b), targets.len(), m2p) {
            (false, ..) | (_, 0, _) => 0.0,
            (_, _, []) => sums[b].powi(2),
            (_, count, _) => targets.map(of_target).sum::<f64>() / count as f64,
        }
    };
    boxes().map(of_leaf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ListOptions, TreecodeOptions, accepts, build, treecode, uvwx};
    use fmm_traits::Tree;
    use fmm_traits::testkit::clouds::CloudKind;

    /// Exact numbers of sources by power 0; and by hand, target by target, with a power.
    #[test]
    fn every_edge_counts_at_every_target() {
        let few = ListOptions { m2p_min_sources: 4, p2l_min_targets: 4 };
        for (kind, options) in [(CloudKind::Uniform, ListOptions::default()), (CloudKind::TwoClusters, few)] {
            let occupancy = BuildOptions { occupancy: 10.0, ..BuildOptions::default() };
            let tree = build(&kind.points(2000, 3), None, &occupancy).unwrap();
            let codes = treecode(&tree, &TreecodeOptions { theta: 0.7, m2p_min_sources: 4 }, |t, s| accepts(0.7, t, s))
                .unwrap();
            for lists in [uvwx(&tree, &options).unwrap(), codes] {
                check(&tree, &lists);
            }
        }
    }

    fn check(tree: &Tree, lists: &Lists) {
        let ones = far_squares(tree, lists, &[1.0; DISTANCES], 0);
        let weights = std::array::from_fn(|k| 3f64.powi(k as i32));
        let found = far_squares(tree, lists, &weights, 3);
        let cube = |b: usize| Hierarchy::cube(tree, b, tree.level_of(b));
        let norm = |x: [f64; 3]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let term = |d: f64, h: f64| {
            let k = (tree.side.log2().floor() - d.log2().floor()).clamp(0.0, DISTANCES as f64 - 1.0);
            3f64.powf(k) * (h / d).min(1.0).powi(3)
        };
        let mut total = 0;
        for leaf in 0..tree.len() {
            let targets = Hierarchy::targets_of(tree, leaf);
            if !Hierarchy::is_leaf(tree, leaf) || targets.is_empty() {
                assert_eq!([ones[leaf], found[leaf]], [0.0; 2]);
                continue;
            }
            let mut squares = [0.0; 2];
            for t in targets.clone() {
                let (mut sources, mut sum, mut b) = (0, 0.0, leaf);
                loop {
                    let x = cube(b);
                    for (kind, edges) in [&lists.m2l, &lists.p2l, &lists.m2p].into_iter().enumerate() {
                        for &s in edges.row(b) {
                            let (y, n) = (cube(s as usize), tree.source_count(s as usize));
                            let to_center = |from: [f64; 3]| norm(std::array::from_fn(|a| from[a] - y.center[a]));
                            let gap = |a: usize| ((x.center[a] - y.center[a]).abs() - 0.5 * y.side).max(0.0);
                            sources += n;
                            sum += n as f64
                                * match kind {
                                    0 => term(to_center(x.center), 0.5 * (x.side + y.side)),
                                    1 => term(norm(std::array::from_fn(gap)), 0.5 * x.side),
                                    _ => term(to_center(Hierarchy::target(tree, t)), 0.5 * y.side),
                                };
                        }
                    }
                    if b == 0 {
                        break;
                    }
                    b = tree.parent[b] as usize;
                }
                total += sources;
                let mean = 1.0 / targets.len() as f64;
                squares = [squares[0] + mean * (sources as f64).powi(2), squares[1] + mean * sum * sum];
            }
            assert!((ones[leaf] - squares[0]).abs() <= 1e-12 * squares[0], "{} for {}", ones[leaf], squares[0]);
            assert!((found[leaf] - squares[1]).abs() <= 1e-9 * squares[1], "{} for {}", found[leaf], squares[1]);
        }
        assert!(total > 0);
    }
}
