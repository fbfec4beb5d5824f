//! The constant-one oracle over locally essential trees: every target must receive each source once.

use backend_cpu::pairwise::Pairwise;
use fmm_dist::local::{Place, opens_uvwx};
use fmm_dist::{Asked, Placed, Strategy, World, place, threads_within};
use fmm_traits::constant_one::ConstantOne;
use fmm_traits::testkit::clouds::{CloudKind, any_cloud};
use fmm_traits::{Cube, Error, Hierarchy, Lists, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};
use proptest::prelude::*;
use std::time::Duration;

/// How lists are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Uvwx,
    Stencil,
    Treecode,
}

const THETA: f64 = 0.7;

impl Policy {
    fn lists(self, tree: &Tree, options: &ListOptions) -> Lists {
        match self {
            Policy::Uvwx => fmm_tree::uvwx(tree, options).unwrap(),
            Policy::Stencil => fmm_tree::stencil119(tree, options).unwrap(),
            Policy::Treecode => {
                let options = TreecodeOptions { theta: THETA, m2p_min_sources: options.m2p_min_sources };
                fmm_tree::treecode(tree, &options, |_, _| true).unwrap()
            }
        }
    }
    fn opens(self, target: &Place, source: &Place) -> bool {
        match self {
            Policy::Treecode => !fmm_tree::accepts(THETA * (1.0 - 1e-9), target.cube, source.cube),
            _ => opens_uvwx(target, source),
        }
    }
}

/// A case: points, how the array is cut into pieces, and options.
#[derive(Clone, Debug)]
struct Case {
    sources: Vec<f64>,
    targets: Option<Vec<f64>>,
    ranks: usize,
    strategy: Strategy,
    policy: Policy,
    ncrit: Option<usize>,
    options: ListOptions,
    /// Shares of the array on the ranks.
    shares: Vec<usize>,
}

impl Case {
    /// The piece of rank `r` of `points`.
    fn piece<'a>(&self, points: &'a [f64], width: usize, r: usize) -> &'a [f64] {
        let (n, total) = (points.len() / width, self.shares.iter().sum::<usize>().max(1));
        let end = |r: usize| if r == self.ranks { n } else { n * self.shares[..r].iter().sum::<usize>() / total };
        &points[end(r) * width..end(r + 1) * width]
    }
    fn build(&self) -> BuildOptions {
        BuildOptions { ncrit: self.ncrit, occupancy: 10.0, ..BuildOptions::default() }
    }
    fn placed(&self, world: &World) -> Result<Placed, Error> {
        let policy = self.policy;
        let opens = |t: &Place, s: &Place| policy.opens(t, s);
        let even = self.sources.len().is_multiple_of(2);
        let speeds: Vec<f64> = (0..world.size()).map(|r| if even { 1.0 } else { 1.0 + (r % 3) as f64 }).collect();
        let asked = Asked { options: self.build(), strategy: self.strategy, opens: &opens, speeds: &speeds };
        let r = world.rank();
        let targets = self.targets.as_ref().map(|t| self.piece(t, 3, r));
        let placed = place(world, self.piece(&self.sources, 3, r), targets, &asked)?;
        if even {
            return Ok(placed);
        }
        // Other cuts: as if the first leaves had most of the work.
        let (weights, _) = placed.weigh(|boxes| 1.0 / (1.0 + f64::from(boxes[0])))?;
        placed.again(self.piece(&self.sources, 3, r), targets, &weights, &asked)
    }

    /// The strengths of a source on each rank are a power of 16, so that a wrong sum names the rank.
    fn check(&self) -> Result<(), String> {
        let n = self.sources.len() / 3;
        let strengths: Vec<f64> = (0..n).map(|i| (1 + i % 5) as f64).collect();
        let (alone, _) = fmm_tree::build_reported(&self.sources, self.targets.as_deref(), &self.build()).unwrap();
        let whole = self.policy.lists(&alone, &self.options);
        let results = threads_within(Duration::from_secs(20), self.ranks, |world| {
            world.together(|| {
                let placed = self.placed(&world)?;
                let mut lists = self.policy.lists(placed.tree(), &self.options);
                let wrong = compare(&alone, &whole, placed.tree(), &lists);
                let ready = placed.settle(&mut lists)?;
                let r = world.rank();
                let held = ready.strengths(self.piece(&strengths, 1, r), 1)?;
                let mut run = Pairwise::new(&ready.tree, &lists, &ConstantOne)?;
                let mut values = Vec::new();
                for _ in 0..2 {
                    values = run.apply(&held, &mut |_, _| true)?;
                }
                let mine = self.piece(self.targets.as_ref().unwrap_or(&self.sources), 3, r).len() / 3;
                let mut out = vec![f64::NAN; mine];
                ready.values(&values, 1, &mut out)?;
                Ok((out, wrong))
            })
        });
        let total: f64 = strengths.iter().sum();
        let mut values = Vec::new();
        for (rank, result) in results.into_iter().enumerate() {
            let (out, wrong) = result.and_then(|r| r).map_err(|e| format!("rank {rank}: {e}"))?;
            if let Some(wrong) = wrong {
                return Err(format!("rank {rank}: {wrong}"));
            }
            values.extend(out);
        }
        let same = self.targets.is_none();
        for (i, found) in values.iter().enumerate() {
            let expected = if same { total - strengths[i] } else { total };
            if *found != expected {
                return Err(format!("target {i}: {found}, expected {expected}"));
            }
        }
        Ok(())
    }
}

/// The first difference of the rows of own targets from those of one rank; boxes go by level and anchor.
fn compare(alone: &Tree, whole: &Lists, tree: &Tree, lists: &Lists) -> Option<String> {
    let at = |tree: &Tree, b: u32| (tree.level_of(b as usize), tree.anchor[b as usize]);
    let known: std::collections::HashMap<_, _> = (0..alone.len() as u32).map(|b| (at(alone, b), b)).collect();
    let kinds = |l: &Lists| [l.m2l.clone(), l.p2l.clone(), l.m2p.clone(), l.p2p.clone(), l.l2l.clone(), l.l2p.clone()];
    let mut last = None;
    for b in 0..tree.len() {
        let Some(&same) = known.get(&at(tree, b as u32)) else { return Some(format!("box {b} is not of one rank")) };
        if last.is_some_and(|last| last >= same) {
            return Some(format!("box {b} is out of order"));
        }
        last = Some(same);
        let counts = (alone.source_count(same as usize), alone.is_leaf(same as usize));
        if counts != (tree.source_count(b), tree.is_leaf(b)) {
            return Some(format!(
                "box {b}: {counts:?} sources and leaf, found {:?}",
                (tree.source_count(b), tree.is_leaf(b))
            ));
        }
        if tree.targets_of(b).is_empty() {
            continue;
        }
        for (kind, (here, there)) in kinds(lists).iter().zip(&kinds(whole)).enumerate() {
            let names: Vec<_> = here.row(b).iter().map(|&s| at(tree, s)).collect();
            let expected: Vec<_> = there.row(same as usize).iter().map(|&s| at(alone, s)).collect();
            if names != expected {
                return Some(format!("row {kind} of box {:?}: {names:?}, expected {expected:?}", at(tree, b as u32)));
            }
        }
    }
    None
}

/// A small problem cut out of the trees of all ranks is the one cut out of the tree of one rank.
#[test]
fn a_small_problem_is_that_of_one_rank() {
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Clustered, CloudKind::Outlier] {
        for policy in [Policy::Uvwx, Policy::Stencil, Policy::Treecode] {
            for ranks in [2, 3, 8] {
                let apart = (ranks != 3).then(|| CloudKind::Plummer.points(1500, 7));
                let options = ListOptions { m2p_min_sources: 12, p2l_min_targets: 12 };
                let case = Case { policy, options, ..case(kind.points(2500, 6), apart, ranks) };
                let (alone, _) =
                    fmm_tree::build_reported(&case.sources, case.targets.as_deref(), &case.build()).unwrap();
                let whole = policy.lists(&alone, &options);
                // The points of a rank follow those of lower ranks.
                let some = |first: usize, n: usize, every: usize| -> Vec<u32> {
                    (0..n).filter(|i| (first + i).is_multiple_of(every)).map(|i| i as u32).collect()
                };
                let [s, t] = [some(0, alone.sources.len(), 7), some(0, alone.targets.len(), 31)];
                let (tree, lists) = fmm_tree::thin(&alone, &whole, &s, &t);
                let found = threads_within(Duration::from_secs(20), ranks, |world| {
                    let placed = case.placed(&world)?;
                    let here = placed.tree();
                    let counts = world.all_gather([here.sources.len(), here.targets.len()])?;
                    let first = |end: usize| counts[..world.rank()].iter().map(|c| c[end]).sum::<usize>();
                    let s = some(first(0), here.sources.len(), 7);
                    let t = some(first(1), here.targets.len(), 31);
                    let mut boxes = [placed.counted().len() as u64];
                    world.reduce(&mut boxes, |a, b| a + b)?;
                    assert_eq!(boxes[0], alone.len() as u64, "{} {policy:?} {ranks}", kind.name());
                    placed.thin(&policy.lists(here, &options), &s, &t)
                });
                for (rank, found) in found.into_iter().enumerate() {
                    let found = found.and_then(|found| found).unwrap();
                    let what = format!("{} {policy:?} {ranks}: rank {rank}", kind.name());
                    let Some((small, few)) = found else {
                        assert_ne!(rank, 0, "{what}");
                        continue;
                    };
                    let boxes = |t: &Tree| {
                        let ranges = (t.source_range.clone(), t.target_range.clone());
                        (t.level_start.clone(), t.parent.clone(), t.octant.clone(), t.anchor.clone(), ranges)
                    };
                    assert_eq!(boxes(&small), boxes(&tree), "{what}");
                    assert_eq!((&small.child_start, &small.child_count), (&tree.child_start, &tree.child_count));
                    assert_eq!((&small.sources.xyz, &small.targets.xyz), (&tree.sources.xyz, &tree.targets.xyz));
                    assert!(few == lists, "{what}: lists differ");
                    assert!(rank == 0 && few.have_multipoles(), "{what}");
                }
            }
        }
    }
}

fn case(sources: Vec<f64>, targets: Option<Vec<f64>>, ranks: usize) -> Case {
    Case {
        sources,
        targets,
        ranks,
        strategy: Strategy::Frontier,
        policy: Policy::Uvwx,
        ncrit: Some(8),
        options: ListOptions::default(),
        shares: vec![1; ranks],
    }
}

#[test]
fn every_pair_meets_once_on_any_number_of_ranks() {
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Plummer] {
        for ranks in [1, 2, 3, 4, 5, 7, 8, 9] {
            for (strategy, name) in Strategy::ALL {
                let one = Case { strategy, ..case(kind.points(3000, 3), None, ranks) };
                one.check().unwrap_or_else(|e| panic!("{} {ranks} {name}: {e}", kind.name()));
            }
        }
    }
}

#[test]
fn policies_thresholds_and_chosen_leaves_are_those_of_one_rank() {
    for kind in CloudKind::ALL {
        for policy in [Policy::Uvwx, Policy::Stencil, Policy::Treecode] {
            for ncrit in [None, Some(15)] {
                let options = ListOptions { m2p_min_sources: 12, p2l_min_targets: 12 };
                for ranks in [2, 5] {
                    let one = Case { policy, ncrit, options, ..case(kind.points(2500, 5), None, ranks) };
                    one.check().unwrap_or_else(|e| panic!("{} {policy:?} {ncrit:?} {ranks}: {e}", kind.name()));
                }
            }
        }
    }
}

#[test]
fn targets_may_lie_elsewhere() {
    let shifted = |points: Vec<f64>| points.into_iter().map(|x| x + 5.0).collect::<Vec<f64>>();
    for (strategy, name) in Strategy::ALL {
        for ranks in [2, 3, 8] {
            let sources = CloudKind::Uniform.points(2000, 1);
            for targets in [CloudKind::Ellipsoid.points(900, 2), shifted(CloudKind::Uniform.points(1500, 4)), vec![]] {
                let one = Case { strategy, ..case(sources.clone(), Some(targets), ranks) };
                one.check().unwrap_or_else(|e| panic!("{name} {ranks}: {e}"));
            }
        }
    }
}

#[test]
fn few_points_on_many_ranks() {
    for n in [1, 2, 9, 40] {
        for ranks in [2, 7, 9] {
            let one = case(CloudKind::Uniform.points(n, 1), None, ranks);
            one.check().unwrap_or_else(|e| panic!("{n} points, {ranks} ranks: {e}"));
            let mut last = vec![0; ranks];
            last[ranks - 1] = 1;
            let all_on_the_last = Case { shares: last, ..one };
            all_on_the_last.check().unwrap_or_else(|e| panic!("{n} points on the last of {ranks} ranks: {e}"));
        }
    }
    // All in one place, more than a leaf holds.
    for ranks in [1, 3] {
        case([0.3, 0.2, 0.1].repeat(50), None, ranks).check().unwrap();
        let mut far = CloudKind::Uniform.points(200, 1);
        far.extend([1e6, -1e6, 3.0]);
        case(far, None, ranks).check().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn every_pair_meets_once(
        (sk, sn, ss) in any_cloud(600),
        (tk, tn, ts) in any_cloud(600),
        separate in any::<bool>(),
        ranks in 1usize..10,
        strategy in 0usize..4,
        policy in 0usize..3,
        ncrit in 1usize..40,
        shares in prop::collection::vec(0usize..4, 10),
        (m2p_min_sources, p2l_min_targets) in (0usize..20, 0usize..20),
    ) {
        let one = Case {
            sources: sk.points(sn, ss),
            targets: separate.then(|| tk.points(tn, ts)),
            ranks,
            strategy: Strategy::ALL[strategy].0,
            policy: [Policy::Uvwx, Policy::Stencil, Policy::Treecode][policy],
            ncrit: Some(ncrit),
            options: ListOptions { m2p_min_sources, p2l_min_targets },
            shares: shares[..ranks].to_vec(),
        };
        prop_assert_eq!(one.check(), Ok(()));
    }
}

/// Cubes of a tree are those of [`Place`].
#[test]
fn a_box_is_opened_if_a_target_in_it_opens_it() {
    let tree = fmm_tree::build(
        &CloudKind::Plummer.points(800, 1),
        None,
        &BuildOptions { ncrit: Some(5), ..Default::default() },
    )
    .unwrap();
    let place = |b: usize| {
        let level = tree.level_of(b);
        Place { level, anchor: tree.anchor[b], cube: Cube { ..tree.cube(b, level) } }
    };
    for policy in [Policy::Uvwx, Policy::Treecode] {
        for t in (0..tree.len()).step_by(7) {
            for s in (1..tree.len()).step_by(11) {
                if policy.opens(&place(t), &place(s)) {
                    let up = |b: usize| place(tree.parent[b] as usize);
                    assert!(t == 0 || policy.opens(&up(t), &place(s)), "{policy:?} {t} {s}");
                    assert!(policy.opens(&place(t), &up(s)), "{policy:?} {t} {s}");
                }
            }
        }
    }
}
