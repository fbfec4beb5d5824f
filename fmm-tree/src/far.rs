//! Where in a tree the errors of expansions are largest, without the expansions themselves.

use fmm_traits::Cube;
use fmm_traits::tree::{Hierarchy, Lists};
use rayon::prelude::*;

/// Number of distances that [`far_squares`] tells apart. Each is half of the one before; the last has all smaller ones.
pub const DISTANCES: usize = 64;

/// For each leaf with targets the mean of E² over its targets, and 0 for other boxes: one array for each of `weights`.
/// E follows the errors of expansions, up to a factor: it is the sum over all edges of M2L, P2L and M2P that reach the
/// target, of
///
/// ```text
/// (sources of the source box) · weights[k] · (h/d)^(2·half_power)
/// ```
///
/// with sizes h and distances d as if boxes were balls, with half a side as radius:
/// - M2P: d from the centre of the source box to the target, h the radius of the source box.
/// - M2L: d between the centres of both boxes, h the sum of their radii.
/// - P2L: d from the centre of the target box to the source box, h the radius of the target box.
///
/// The number k says by how many powers of two d is smaller than the side of the root, from 0 to [`DISTANCES`] − 1. A
/// ratio h/d above 1 counts as 1.
///
/// Example: `weights[k]` = 2^k follows 1/r. With `half_power` 0, E is about the sum of 1/r over all sources that act by
/// expansions. With `half_power` 6, E follows errors of order 12.
pub fn far_squares<H: Hierarchy + ?Sized>(
    tree: &H,
    lists: &Lists,
    weights: &[[f64; DISTANCES]],
    half_power: u32,
) -> Vec<Vec<f64>> {
    let levels = (0..tree.levels()).flat_map(|level| tree.level(level).map(move |b| (b, level)));
    let cubes: Vec<Cube> = levels.map(|(b, level)| tree.cube(b, level)).collect();
    let root = exponent_of_root(cubes[0].side * cubes[0].side);
    let count = |s: usize| tree.shared().map_or_else(|| tree.sources_of(s).len() as u64, |all| all.sources[s]) as f64;
    let square = |x: &[f64; 3], y: &Cube| (0..3).map(|a| (x[a] - y.center[a]).powi(2)).sum::<f64>();
    // Adds the part of a source box at the squared distance d2 to the sums.
    let add = |sums: &mut [f64], s: u32, d2: f64, h: f64| {
        let k = root.saturating_sub(exponent_of_root(d2)).min(DISTANCES - 1);
        let part = count(s as usize) * (h * h / d2).min(1.0).powi(half_power as i32);
        sums.iter_mut().zip(weights).for_each(|(sum, weights)| *sum += part * weights[k]);
    };
    let by_locals = |b: usize, sums: &mut [f64]| {
        let x = &cubes[b];
        for &s in lists.m2l.row(b) {
            let y = &cubes[s as usize];
            add(sums, s, square(&x.center, y), 0.5 * (x.side + y.side));
        }
        for &s in lists.p2l.row(b) {
            let y = &cubes[s as usize];
            let d = (square(&x.center, y).sqrt() - 0.5 * y.side).max(0.0);
            add(sums, s, d * d, 0.5 * x.side);
        }
    };
    let width = weights.len();
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
        let (mean, mut squares) = (1.0 / targets.len() as f64, vec![0.0; width]);
        let mut of_target = vec![0.0; width];
        for t in targets {
            let x = tree.target(t);
            of_target.copy_from_slice(sums);
            for &s in m2p {
                let y = &cubes[s as usize];
                add(&mut of_target, s, square(&x, y), 0.5 * y.side);
            }
            squares.iter_mut().zip(&of_target).for_each(|(square, sum)| *square += mean * sum * sum);
        }
        sums.copy_from_slice(&squares);
    };
    sums.par_chunks_mut(width).enumerate().with_min_len(256).for_each(|(b, sums)| of_leaf(b, sums));
    (0..width).map(|k| sums.iter().skip(k).step_by(width).copied().collect()).collect()
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

    fn check(tree: &Tree, lists: &Lists) {
        let ones = &far_squares(tree, lists, &[[1.0; DISTANCES]], 0)[0];
        let weights: [f64; DISTANCES] = std::array::from_fn(|k| 3f64.powi(k as i32));
        let found = &far_squares(tree, lists, &[[0.5; DISTANCES], weights], 2)[1];
        let cube = |b: usize| Hierarchy::cube(tree, b, tree.level_of(b));
        let norm = |x: [f64; 3]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let term = |d: f64, h: f64| {
            let k = (tree.side.log2().floor() - d.log2().floor()).clamp(0.0, DISTANCES as f64 - 1.0);
            3f64.powf(k) * (h / d).min(1.0).powi(4)
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
                            sources += n;
                            sum += n as f64
                                * match kind {
                                    0 => term(to_center(x.center), 0.5 * (x.side + y.side)),
                                    1 => term(to_center(x.center) - 0.5 * y.side, 0.5 * x.side),
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
