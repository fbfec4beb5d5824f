//! The 119 stencil (Gumerov & Duraiswami 2008, §2.2.3): distant M2L edges of siblings end at their parent.
//!
//! The V list of a box has up to 189 boxes among the 216 children of its parent's colleagues. A source box that is far
//! enough from the *parent* sends its multipole to the parent once, instead of to each of the eight children. L2L then
//! hands it down.
//!
//! How far is enough? In sides of the source, the spheres around source and parent have the radii R₁ = √3/2 and
//! R₂ = √3. By eqs. 22 and 23 their centres must be more than
//!
//! D* = min(R₁, R₂) + max(R₁, R₂)/η* = √3/2 + 4 − √3 = 3.134, η* = √3/(4 − √3)
//!
//! apart. The error bound is then no worse than for the nearest boxes of the V list. 80 of the 216 boxes qualify. A box
//! keeps 109 edges and its parent receives 80, so there are 109 + 80/8 = 119 translations per box instead of 189.
//!
//! The worst-case bound is kept, but the error of typical points grows by a factor of 1.2 to 4. One or two orders more
//! make up for it (measured in docs/notes/spherical-errors.md).
//!
//! A moved edge joins a box with a box of twice its side. In the maximum norm their centres are at most 1.25 of the
//! larger sides apart, so the smaller box reaches inside the outer surface of the larger box (1.495 sides from its
//! centre). Multipoles that are valid outside their sphere allow that. The `admissible_m2l` of equivalent densities
//! refuses such edges.

use crate::lists::{ListOptions, across, complete, levels, rows};
use fmm_traits::Error;
use fmm_traits::tree::{Edges, Lists, Tree};

/// The U, V, W, X lists of `tree` with the distant V edges of siblings moved to their parent.
///
/// Correct for any tree, and meant for trees of uniform depth ([`build_uniform`](crate::build_uniform)), where every
/// box profits. A family with a single receiving child keeps its edges at that child.
///
/// # Errors
/// As [`uvwx`](crate::uvwx).
pub fn stencil119(tree: &Tree, options: &ListOptions) -> Result<Lists, Error> {
    let mut lists = across(tree, options)?;
    if !tree.is_empty() {
        lists.m2l = consolidated(tree, &lists.m2l);
    }
    complete(tree, &mut lists);
    Ok(lists)
}

/// Whether the centres of `target` and of `source`, one level below it, are more than D* apart. In halves of the
/// smaller side all three offsets are odd, so the squared distance is at most 35 or at least 43, and (2 D*)² = 39.3.
fn is_distant(tree: &Tree, target: usize, source: u32) -> bool {
    let offset = |a: usize| {
        let (t, s) = (tree.anchor[target][a], tree.anchor[source as usize][a]);
        (4 * t + 2).abs_diff(2 * s + 1)
    };
    (0..3).map(|a| offset(a).pow(2)).sum::<u64>() > 39
}

/// The M2L edges after distant edges have moved from children to their parent.
fn consolidated(tree: &Tree, m2l: &Edges) -> Edges {
    let level = levels(tree);
    let receivers = |b: usize| tree.children(b).filter(|&c| !tree.targets_of(c).is_empty());
    let families: Vec<bool> =
        (0..tree.len()).map(|b| tree.children(b).filter(|&c| tree.target_count(c) > 0).count() > 1).collect();
    // V edges join boxes of one level.
    let moves = |child: usize, s: u32| {
        level[child] > 0 && families[tree.parent[child] as usize] && is_distant(tree, tree.parent[child] as usize, s)
    };
    rows(tree, |b, row| {
        let start = row.len();
        row.extend(m2l.row(b).iter().filter(|&&s| !moves(b, s)));
        if families[b] {
            // All children that receive anything have the same distant boxes.
            let first = receivers(b).next();
            row.extend(first.into_iter().flat_map(|c| m2l.row(c)).filter(|&&s| is_distant(tree, b, s)));
        }
        row[start..].sort_unstable();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, build, build_uniform, uvwx};
    use fmm_traits::constant_one::wrong_pairs;
    use fmm_traits::testkit::clouds::{CloudKind, any_cloud};
    use proptest::prelude::*;

    /// A tree of depth 4 with a point in each of its 16³ leaves.
    fn full() -> Tree {
        let at = |i: usize| [i % 16, i / 16 % 16, i / 256].map(|k| (k as f64 + 0.5) / 16.0);
        let points: Vec<f64> = (0..4096).flat_map(at).collect();
        build_uniform(&points, None, 4, Some(([0.0; 3], 1.0))).unwrap()
    }

    /// The boxes of level `l` that do not touch a face of the root.
    fn interior(tree: &Tree, l: usize) -> impl Iterator<Item = usize> {
        let inside = move |b: &usize| tree.anchor[*b].iter().all(|&i| (1..(1 << l) - 1).contains(&i));
        tree.level(l).filter(inside)
    }

    #[test]
    fn an_interior_box_has_119_translations_instead_of_189() {
        let tree = full();
        let [plain, stencil] = [uvwx, stencil119].map(|policy| policy(&tree, &ListOptions::default()).unwrap());
        for parent in interior(&tree, 3) {
            let fine = |e: &Edges, b: usize| e.row(b).iter().filter(|&&s| tree.level_of(s as usize) == 4).count();
            assert_eq!(fine(&stencil.m2l, parent), 80);
            assert_eq!(fine(&plain.m2l, parent), 0);
            for child in tree.children(parent) {
                assert_eq!((plain.m2l.row(child).len(), stencil.m2l.row(child).len()), (189, 109));
            }
        }
        // Each parent of level 3 receives the common sources of its eight children.
        assert!(interior(&tree, 3).count() == 216 && stencil.m2l.len() < plain.m2l.len());
        assert_eq!(wrong_pairs(&tree, &stencil, 3), []);
    }

    /// Eqs. 20–23 in floating point: the boxes of the neighbourhood whose ratio is no worse than the V list's.
    #[test]
    fn the_80_follow_from_the_error_bound() {
        let (r1, r2) = (3f64.sqrt() / 2.0, 3f64.sqrt());
        let worst = 3f64.sqrt() / (4.0 - 3f64.sqrt());
        let nearest = r1 / (2.0 - r1);
        assert!((worst - 0.7637).abs() < 1e-4 && (nearest - worst).abs() < 1e-15);
        let least = r1.min(r2) + r1.max(r2) / worst;
        assert!((least - 3.134).abs() < 1e-3);
        let tree = full();
        let stencil = stencil119(&tree, &ListOptions::default()).unwrap();
        let steps = [-2.5f64, -1.5, -0.5, 0.5, 1.5, 2.5];
        let (mut distant, mut all) = (0, 0);
        let parent = interior(&tree, 3).next().unwrap();
        for x in steps {
            for y in steps {
                for z in steps {
                    let d = x.hypot(y).hypot(z);
                    let eta = r1.max(r2) / (d - r1.min(r2));
                    assert_eq!(d >= least, (0.0..=worst).contains(&eta));
                    let offset = [x, y, z];
                    let anchor = |a: usize| (2.0 * tree.anchor[parent][a] as f64 + 0.5 + offset[a]) as u64;
                    let source = tree.level(4).find(|&b| tree.anchor[b] == std::array::from_fn(anchor)).unwrap();
                    let moved = stencil.m2l.row(parent).contains(&(source as u32));
                    assert_eq!(moved, d >= least, "{x} {y} {z}");
                    distant += moved as usize;
                    all += 1;
                }
            }
        }
        assert_eq!((distant, all), (80, 216));
    }

    #[test]
    fn every_pair_meets_once_on_every_cloud() {
        for kind in CloudKind::ALL {
            for n in [0, 1, 2, 40, 3000] {
                let points = kind.points(n, 11);
                let options = BuildOptions { ncrit: Some(13), ..Default::default() };
                let uniform = [0, 3].map(|depth| build_uniform(&points, None, depth, None).unwrap());
                for tree in uniform.into_iter().chain([build(&points, None, &options).unwrap()]) {
                    let lists = stencil119(&tree, &ListOptions::default()).unwrap();
                    assert_eq!(wrong_pairs(&tree, &lists, 3), [], "{} {n}", kind.name());
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
        #[test]
        fn every_pair_meets_once_on_pairs_of_clouds(
            (sk, sn, ss) in any_cloud(1500),
            (tk, tn, ts) in any_cloud(1500),
            ncrit in 1usize..200,
        ) {
            let options = BuildOptions { ncrit: Some(ncrit), ..Default::default() };
            let tree = build(&sk.points(sn, ss), Some(&tk.points(tn, ts)), &options).unwrap();
            let lists = stencil119(&tree, &ListOptions::default()).unwrap();
            prop_assert_eq!(wrong_pairs(&tree, &lists, 3), []);
        }
    }
}
