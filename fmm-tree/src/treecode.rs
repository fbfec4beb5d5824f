//! The treecode (Barnes & Hut; Yokota & Barba 2011, §2): multipoles straight to targets, no locals.
//!
//! A *multipole acceptance criterion* decides, from the root down, which source boxes a target leaf sees as a whole.
//! With the opening angle θ, a source box of side l is accepted if
//!
//! l ≤ θ·d, d the distance from its centre to the nearest point of the target leaf.
//!
//! A larger θ accepts fewer and nearer boxes, and errs more. The sources lie in a sphere of radius √3/2·l, so the
//! terms of an accepted multipole fall by a factor of at most √3/2·θ per degree. They fall at all only for θ below
//! 2/√3, which [`treecode`] leaves to its caller. In the FMM one box lies between interacting boxes, so d ≥ 3/2·l.
//! That is θ = 2/3, which Yokota & Barba use.

use crate::lists::{complete, levels, rows};
use fmm_traits::tree::{Edges, Lists, Tree};
use fmm_traits::{Cube, Error};
use rayon::prelude::*;

/// Options of a treecode.
#[derive(Clone, Copy, Debug)]
pub struct TreecodeOptions {
    /// Opening angle θ > 0 (module header).
    pub theta: f64,
    /// A leaf with fewer sources is summed pair by pair even if it is accepted. That is exact, and cheaper than an
    /// expansion with more coefficients than the leaf has sources.
    pub m2p_min_sources: usize,
}

impl Default for TreecodeOptions {
    fn default() -> Self {
        TreecodeOptions { theta: 0.5, m2p_min_sources: 0 }
    }
}

/// Whether a target leaf `t` sees a source box `s` as a whole, by the opening angle alone.
pub fn accepts(theta: f64, t: Cube, s: Cube) -> bool {
    // Sides and centres are exact; the slack covers the rounding of θ·d.
    let theta2 = (theta * (1.0 + 1e-12)).powi(2);
    let gap2 = |a: usize| ((t.center[a] - s.center[a]).abs() - 0.5 * t.side).max(0.0).powi(2);
    s.side.powi(2) <= theta2 * (gap2(0) + gap2(1) + gap2(2))
}

/// The edges of a treecode: P2M, M2M, M2P and P2P only.
///
/// A source box is accepted if it meets the criterion *and* `admissible(target, source)` holds. `admissible` says
/// where a multipole is valid (`Expansion::admissible`; a softened kernel adds its near radius). A refused box is
/// opened, whatever θ; a refused leaf is summed pair by pair. Rows belong to target leaves and are sorted. Work runs
/// on the current rayon pool.
///
/// # Errors
/// [`Error::Parameter`] when θ is not positive and finite.
pub fn treecode(
    tree: &Tree,
    options: &TreecodeOptions,
    admissible: impl Fn(Cube, Cube) -> bool + Sync,
) -> Result<Lists, Error> {
    let theta = options.theta;
    if !(theta > 0.0 && theta.is_finite()) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must be positive and finite" });
    }
    if tree.is_empty() {
        return Ok(Lists::default());
    }
    let cube = |(b, &l): (usize, &u8)| Cube { center: tree.center(b, l as usize), side: tree.side_at(l as usize) };
    let cubes: Vec<Cube> = levels(tree).iter().enumerate().map(cube).collect();
    let accepts = |t: Cube, s: Cube| accepts(theta, t, s) && admissible(t, s);
    let found: Vec<[Vec<u32>; 2]> = (0..tree.len())
        .into_par_iter()
        .map(|b| {
            let [mut m2p, mut p2p] = [Vec::new(), Vec::new()];
            if !tree.is_leaf(b) || tree.targets_of(b).is_empty() {
                return [m2p, p2p];
            }
            let target = cubes[b];
            let mut stack = vec![0u32];
            while let Some(s) = stack.pop() {
                let (source, leaf) = (s as usize, tree.is_leaf(s as usize));
                let count = tree.source_count(source);
                if count == 0 {
                    continue;
                }
                if accepts(target, cubes[source]) && !(leaf && count < options.m2p_min_sources) {
                    m2p.push(s);
                } else if leaf {
                    p2p.push(s);
                } else {
                    stack.extend(tree.children(source).map(|c| c as u32));
                }
            }
            m2p.sort_unstable();
            p2p.sort_unstable();
            [m2p, p2p]
        })
        .collect();
    let edges = |kind: usize| rows(tree, |b, row| row.extend_from_slice(&found[b][kind]));
    let none = || Edges::none(tree.len());
    let mut lists = Lists { m2p: edges(0), p2p: edges(1), m2l: none(), p2l: none(), ..Default::default() };
    complete(tree, &mut lists);
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, build};
    use fmm_traits::constant_one::wrong_pairs;
    use fmm_traits::testkit::clouds::{CloudKind, any_cloud};
    use proptest::prelude::*;

    const ANY: fn(Cube, Cube) -> bool = |_, _| true;

    fn tree(points: &[f64], targets: Option<&[f64]>, ncrit: usize) -> Tree {
        build(points, targets, &BuildOptions { ncrit: Some(ncrit), ..Default::default() }).unwrap()
    }

    #[test]
    fn every_pair_meets_once_on_every_cloud() {
        for kind in CloudKind::ALL {
            for n in [0, 1, 2, 40, 2000] {
                for (theta, m2p_min_sources) in [(0.3, 0), (2.0 / 3.0, 4), (1.1, 0), (40.0, 0)] {
                    let tree = tree(&kind.points(n, 11), None, 13);
                    let lists = treecode(&tree, &TreecodeOptions { theta, m2p_min_sources }, ANY).unwrap();
                    assert_eq!(wrong_pairs(&tree, &lists, 3), [], "{} {n} {theta}", kind.name());
                    let empty = [&lists.m2l, &lists.p2l, &lists.l2l, &lists.l2p];
                    assert!(empty.iter().all(|e| e.is_empty() && e.starts.len() == tree.len() + 1));
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
            theta in 0.1f64..1.2,
            m2p_min_sources in 0usize..40,
        ) {
            let tree = tree(&sk.points(sn, ss), Some(&tk.points(tn, ts)), ncrit);
            let lists = treecode(&tree, &TreecodeOptions { theta, m2p_min_sources }, ANY).unwrap();
            prop_assert_eq!(wrong_pairs(&tree, &lists, 3), []);
        }
    }

    #[test]
    fn the_criterion_holds_and_its_parents_fail_it() {
        let tree = tree(&CloudKind::Clustered.points(3000, 2), None, 20);
        let cube = |b: u32| {
            let l = tree.level_of(b as usize);
            Cube { center: tree.center(b as usize, l), side: tree.side_at(l) }
        };
        // Side of the source box over the distance of its centre from the nearest point of the target leaf.
        let ratio = |t: u32, s: u32| {
            let (t, s) = (cube(t), cube(s));
            let inside = |a: usize| s.center[a].clamp(t.center[a] - 0.5 * t.side, t.center[a] + 0.5 * t.side);
            let d2: f64 = (0..3).map(|a| (inside(a) - s.center[a]).powi(2)).sum();
            s.side / d2.sqrt()
        };
        let mut counts = Vec::new();
        for theta in [0.3, 0.5, 2.0 / 3.0, 1.0] {
            let lists = treecode(&tree, &TreecodeOptions { theta, ..Default::default() }, ANY).unwrap();
            for (t, s) in lists.m2p.iter() {
                assert!(ratio(t, s) <= theta * (1.0 + 1e-9));
                assert!(ratio(t, tree.parent[s as usize]) > theta * (1.0 - 1e-9));
            }
            assert!(lists.p2p.iter().all(|(t, s)| ratio(t, s) > theta * (1.0 - 1e-9)));
            counts.push(lists.p2p.len());
        }
        assert!(counts.windows(2).all(|w| w[0] > w[1]), "{counts:?}");
    }

    /// Boxes that the expansion does not admit are opened.
    #[test]
    fn inadmissible_boxes_are_not_used() {
        let tree = tree(&CloudKind::Uniform.points(3000, 2), None, 20);
        let far = |t: Cube, s: Cube| (0..3).any(|a| (t.center[a] - s.center[a]).abs() >= 2.5 * s.side);
        let options = TreecodeOptions { theta: 1.0, m2p_min_sources: 0 };
        let lists = treecode(&tree, &options, far).unwrap();
        assert_eq!(wrong_pairs(&tree, &lists, 3), []);
        assert!(lists.m2p.len() > 100);
        let nothing = treecode(&tree, &options, |_, _| false).unwrap();
        assert!(nothing.m2p.is_empty() && nothing.p2m.is_empty());
        assert_eq!(wrong_pairs(&tree, &nothing, 3), []);
    }

    #[test]
    fn bad_angles_are_errors() {
        let tree = tree(&[0.0; 3], None, 1);
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let found = treecode(&tree, &TreecodeOptions { theta, ..Default::default() }, ANY);
            assert!(matches!(found, Err(Error::Parameter { name: "theta", .. })));
        }
    }
}
