//! Where in a tree the errors of expansions are largest, without the expansions themselves.

use fmm_traits::Cube;
use fmm_traits::tree::{Hierarchy, Lists};
use rayon::prelude::*;
use std::iter::StepBy;
use std::ops::Range;

/// Number of distances that [`far_squares`] tells apart. Each is half of the one before; the last has all smaller ones.
pub const DISTANCES: usize = 64;

/// A leaf of a treecode with more M2P edges times targets than this is represented by some of its targets, at least
/// [`FEWEST_TARGETS`]. It has hundreds of edges, and all its targets lie about as far from each of their boxes.
pub const TARGETS_TIMES_EDGES: usize = 1024;
/// Smallest number of targets that represent a leaf with more.
pub const FEWEST_TARGETS: usize = 8;

/// (h/d)² of the nearest boxes of the V list, whose centres are two sides apart.
const SQUARED_RATIO_OF_NEAREST: f64 = 0.25;

/// For each leaf with targets the mean of E² over its targets, and 0 for other boxes. In a treecode (lists without M2L), some
/// targets stand for those of a leaf with more than [`TARGETS_TIMES_EDGES`]. E follows the errors of
/// expansions, up to a factor: it is the sum over all edges of M2L, P2L and M2P that reach the target, of
///
/// ```text
/// (sources of the source box) · weights[k] · (h/d)^(2·half_power·share)
/// ```
///
/// with `share` at most 1 (below), and with sizes h and distances d as if boxes were balls, with half a side as radius:
/// - M2P: d from the centre of the source box to the target, h the radius of the source box.
/// - M2L: d between the centres of both boxes, h the sum of their radii.
/// - P2L: d from the centre of the target box to the source box, h the radius of the target box.
///
/// The number k says by how many powers of two d is smaller than the side of the root, from 0 to [`DISTANCES`] − 1. A
/// ratio h/d above 1 counts as 1.
///
/// For each of `weights` there are two arrays, one for each of two kinds of expansions. In the first kind each edge takes
/// all degrees: `share` is 1. In the second kind far edges take only as many degrees as they need for the error of the
/// nearest edge. There, an M2P edge takes `share(target box, source box)` of the degrees. An M2L edge counts as if its boxes
/// were the nearest ones, with h/d = 1/2. A P2L edge takes all degrees. The result holds the arrays of the first kind for
/// all of `weights`, then those of the second kind.
///
/// Example: `weights[k]` = 2^k follows 1/r. With `half_power` 0, E is about the sum of 1/r over all sources that act by
/// expansions. With `half_power` 6, E follows errors of order 12.
pub fn far_squares<H: Hierarchy + ?Sized>(
    tree: &H,
    lists: &Lists,
    weights: &[[f64; DISTANCES]],
    half_power: u32,
    share: impl Fn(Cube, Cube) -> f64 + Sync,
) -> Vec<Vec<f64>> {
    let levels = (0..tree.levels()).flat_map(|level| tree.level(level).map(move |b| (b, level)));
    let cubes: Vec<Cube> = levels.map(|(b, level)| tree.cube(b, level)).collect();
    let root = exponent_of_root(cubes[0].side * cubes[0].side);
    let count = |s: usize| tree.shared().map_or_else(|| tree.sources_of(s).len() as u64, |all| all.sources[s]) as f64;
    let square = |x: &[f64; 3], y: &Cube| (0..3).map(|a| (x[a] - y.center[a]).powi(2)).sum::<f64>();
    let all_degrees = |h: f64, d2: f64| (h * h / d2).min(1.0).powi(half_power as i32);
    let of_nearest = SQUARED_RATIO_OF_NEAREST.powi(half_power as i32);
    // Adds the part of a source box at the squared distance d2 to the sums of both kinds.
    let add = |sums: &mut [f64], s: u32, d2: f64, powers: [f64; 2]| {
        let k = root.saturating_sub(exponent_of_root(d2)).min(DISTANCES - 1);
        let count = count(s as usize);
        for (sums, power) in sums.chunks_exact_mut(weights.len()).zip(powers) {
            sums.iter_mut().zip(weights).for_each(|(sum, weights)| *sum += count * power * weights[k]);
        }
    };
    let by_locals = |b: usize, sums: &mut [f64]| {
        let x = &cubes[b];
        for &s in lists.m2l.row(b) {
            let y = &cubes[s as usize];
            let d2 = square(&x.center, y);
            add(sums, s, d2, [all_degrees(0.5 * (x.side + y.side), d2), of_nearest]);
        }
        for &s in lists.p2l.row(b) {
            let y = &cubes[s as usize];
            let d = (square(&x.center, y).sqrt() - 0.5 * y.side).max(0.0);
            add(sums, s, d * d, [all_degrees(0.5 * x.side, d * d); 2]);
        }
    };
    let width = 2 * weights.len();
    if width == 0 {
        return Vec::new();
    }
    let mut sums = vec![0.0; cubes.len() * width];
    sums.par_chunks_mut(width).enumerate().with_min_len(256).for_each(|(b, sums)| by_locals(b, sums));
    // A target has also what reaches the boxes above its leaf.
    for b in 1..cubes.len() {
        for k in 0..width {
            sums[width * b + k] += sums[width * tree.parent(b) as usize + k];
        }
    }
    let is_treecode = lists.m2l.is_empty();
    let of_leaf = |b: usize, sums: &mut [f64]| {
        let (targets, m2p) = (tree.targets_of(b), lists.m2p.row(b));
        if !tree.is_leaf(b) || targets.is_empty() {
            sums.fill(0.0);
            return;
        }
        if m2p.is_empty() {
            sums.iter_mut().for_each(|sum| *sum *= *sum);
            return;
        }
        let targets = represented(targets, if is_treecode { m2p.len() } else { 0 });
        let (mean, mut squares) = (1.0 / targets.len() as f64, vec![0.0; width]);
        let mut of_target = vec![0.0; width];
        let shares: Vec<f64> = m2p.iter().map(|&s| share(cubes[b], cubes[s as usize])).collect();
        for t in targets {
            let x = tree.target(t);
            of_target.copy_from_slice(sums);
            for (&s, &share) in m2p.iter().zip(&shares) {
                let y = &cubes[s as usize];
                let (h, d2) = (0.5 * y.side, square(&x, y));
                let all = all_degrees(h, d2);
                let fewer = if share == 1.0 { all } else { power(h * h / d2, share * f64::from(half_power)) };
                add(&mut of_target, s, d2, [all, fewer]);
            }
            squares.iter_mut().zip(&of_target).for_each(|(square, sum)| *square += mean * sum * sum);
        }
        sums.copy_from_slice(&squares);
    };
    sums.par_chunks_mut(width).enumerate().with_min_len(256).for_each(|(b, sums)| of_leaf(b, sums));
    (0..width).map(|k| sums.iter().skip(k).step_by(width).copied().collect()).collect()
}

/// The targets that represent a leaf of a treecode with so many edges: all, or every k-th.
fn represented(targets: Range<usize>, edges: usize) -> StepBy<Range<usize>> {
    let count = targets.len();
    let step = (count * edges).div_ceil(TARGETS_TIMES_EDGES).min(count / FEWEST_TARGETS);
    targets.step_by(step.max(1))
}

/// x^power, or 1 if x is above 1. The logarithm of a number is interpolated linearly between powers of two, which is fast:
/// bits of a floating-point number, read as a whole number, are such a logarithm.
fn power(x: f64, power: f64) -> f64 {
    let one = 1.0f64.to_bits() as i64;
    let logarithm = (power * (x.min(1.0).to_bits() as i64 - one) as f64) as i64;
    f64::from_bits((one + logarithm).max(0) as u64)
}

/// The exponent of √x for an x that is not subnormal. (It spares the root.)
fn exponent_of_root(x: f64) -> usize {
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i64 - 1023;
    ((exponent >> 1) + 1023) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ListOptions, TreecodeOptions, accepts, build, treecode, uvwx};
    use fmm_traits::Tree;
    use fmm_traits::testkit::clouds::CloudKind;

    /// With power 0 and weights 1, E counts sources. With a power, E is compared with a sum written out for each target.
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

    #[test]
    fn some_targets_represent_a_leaf_with_many_edges() {
        for count in 1..200 {
            assert!(represented(5..5 + count, 0).eq(5..5 + count));
            for edges in [1, 10, 100, 10_000] {
                let chosen: Vec<usize> = represented(5..5 + count, edges).collect();
                assert!(chosen[0] == 5 && chosen.len() >= count.min(FEWEST_TARGETS), "{count} {edges}");
                let few = 2 * FEWEST_TARGETS.max(TARGETS_TIMES_EDGES / edges);
                assert!(chosen.len() <= few, "{count} {edges}: {}", chosen.len());
            }
        }
    }

    fn check(tree: &Tree, lists: &Lists) {
        // Half of the degrees for small boxes.
        let half = |target: Cube, source: Cube| if source.side <= target.side { 0.5 } else { 1.0 };
        let ones = &far_squares(tree, lists, &[[1.0; DISTANCES]], 0, half)[1];
        let weights: [f64; DISTANCES] = std::array::from_fn(|k| 3f64.powi(k as i32));
        let kinds = far_squares(tree, lists, &[[0.5; DISTANCES], weights], 2, half);
        let cube = |b: usize| Hierarchy::cube(tree, b, tree.level_of(b));
        let norm = |x: [f64; 3]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        // ln x by linear interpolation between powers of two, and its inverse.
        let log = |x: f64| x.log2().floor() + x / x.log2().floor().exp2() - 1.0;
        let exp = |y: f64| (1.0 + y - y.floor()) * y.floor().exp2();
        let term = |d: f64, ratio: f64, share: f64| {
            let k = (tree.side.log2().floor() - d.log2().floor()).clamp(0.0, DISTANCES as f64 - 1.0);
            let x = ratio.min(1.0).powi(2);
            3f64.powf(k) * if share == 1.0 { x * x } else { exp(2.0 * share * log(x)) }
        };
        let mut total = 0;
        for leaf in 0..tree.len() {
            let found = [ones[leaf], kinds[1][leaf], kinds[3][leaf]];
            let targets = Hierarchy::targets_of(tree, leaf);
            if !Hierarchy::is_leaf(tree, leaf) || targets.is_empty() {
                assert_eq!(found, [0.0; 3]);
                continue;
            }
            let edges = if lists.m2l.is_empty() { lists.m2p.row(leaf).len() } else { 0 };
            let targets = represented(targets, edges);
            let mut squares = [0.0; 3];
            for t in targets.clone() {
                let (mut sources, mut sums, mut b) = (0, [0.0; 2], leaf);
                loop {
                    let x = cube(b);
                    for (kind, edges) in [&lists.m2l, &lists.p2l, &lists.m2p].into_iter().enumerate() {
                        for &s in edges.row(b) {
                            let (y, n) = (cube(s as usize), tree.source_count(s as usize));
                            let to_center = |from: [f64; 3]| norm(std::array::from_fn(|a| from[a] - y.center[a]));
                            let (d, h, share) = match kind {
                                0 => (to_center(x.center), 0.5 * (x.side + y.side), 1.0),
                                1 => (to_center(x.center) - 0.5 * y.side, 0.5 * x.side, 1.0),
                                _ => (to_center(Hierarchy::target(tree, t)), 0.5 * y.side, half(x, y)),
                            };
                            let of_nearest = if kind == 0 { 0.5 } else { h / d };
                            sources += n;
                            sums[0] += n as f64 * term(d, h / d, 1.0);
                            sums[1] += n as f64 * term(d, of_nearest, share);
                        }
                    }
                    if b == 0 {
                        break;
                    }
                    b = tree.parent[b] as usize;
                }
                total += sources;
                let all = [sources as f64, sums[0], sums[1]];
                squares = std::array::from_fn(|k| squares[k] + all[k].powi(2) / targets.len() as f64);
            }
            for (found, square) in found.iter().zip(squares) {
                assert!((found - square).abs() <= 1e-9 * square, "{found} for {square}");
            }
        }
        assert!(total > 0);
    }
}
