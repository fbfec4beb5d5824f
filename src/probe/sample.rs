//! The sample of a probe: targets at which errors are measured, and sources that act on these targets.
//!
//! The targets are stratified. A stratum holds the leaves of one [kind](super::kind): of one level, one class of population
//! and the same kinds of incoming edges. The rarest kinds share one stratum. The sample takes leaves from every stratum,
//! and each stratum counts by its share of all targets. So the sample contains rare kinds of leaves, and these count no
//! more than they do among all leaves.
//!
//! Leaves are drawn with a probability that grows towards the corners of boxes ([`super::corners`]), where errors are
//! largest, and with an estimated error at the leaf ([`super::decay`]). Targets in leaves are drawn with a probability
//! that grows towards the corners. Each drawn target counts by the inverse of its probability (Hansen & Hurwitz,
//! *Ann. Math. Statist.* 14 (1943) 333–362). The estimator of a mean square over all targets then has no bias.
//!
//! The sources of a sample are drawn in [`super::sources`].
//!
//! Several ranks that share the points together draw the sample of one rank ([`super::classes`]). Each has its part.

use super::corners::Weights;
use super::decay::Decay;
use super::draw::{UNITS, drawn_points, places, totals};
use super::kind::Kind;
use super::sampled::{End, Kinds, Request, Sampled};
use super::sources::{SEED, SOURCES, Sources, sources};
use super::{ProbeReport, ProbeStratum};
use crate::rng::Rng;
use fmm_dist::World;
use fmm_traits::Error;
use fmm_tree::{DISTANCES, Leaf};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Largest root of targets × sources for which the sample takes all targets. Then only the strengths are random.
const ALL_TARGETS: usize = 6000;
/// Approximate number of sources times sets of normal strengths. With few sources the error varies from set to set.
/// With many sources it hardly varies, and two sets suffice.
const NORMAL_STRENGTHS: usize = 24_000;
/// Smallest and largest number of sets of normal strengths.
const NORMAL_SETS: [usize; 2] = [2, 6];
/// Approximate number of sampled leaves beyond the first leaf of each stratum. Each leaf costs the M2L along its path
/// from the root, and the sums over some 2000 sources around the leaf. Fewer leaves make wider bounds.
const FURTHER_LEAVES: f64 = 24.0;
/// Largest number of strata. The rarest kinds of leaves share one stratum.
const MAX_STRATA: usize = 16;
/// Approximate number of targets of a sample.
const SAMPLE_TARGETS: usize = 640;

/// A sample of the targets and sources of a tree. If several ranks share the points, it has the part of a rank, or the
/// whole ([`Sample::whole`]).
#[derive(Clone)]
pub(crate) struct Sample {
    /// Positions of the targets, ascending.
    pub targets: Vec<u32>,
    /// If the targets are the sources, for each target its index among the sources of the norm.
    pub selves: Option<Vec<u32>>,
    /// Number of targets in the tree, on all ranks.
    pub count: usize,
    /// The sources whose sums give the norm.
    pub of_norm: Arc<Sources>,
    /// The sources whose expansions give the errors: those of the norm ([`has_same_sources`](Self::has_same_sources)), or a part of
    /// them.
    pub of_errors: Arc<Sources>,
    /// The drawn leaves. A leaf may occur more than once.
    pub draws: Vec<Draw>,
    /// The strata, at the indices that [`Draw::stratum`] uses.
    pub strata: Vec<Stratum>,
    /// The sampled leaves of this rank, with the positions of all their targets. No leaf occurs more than once. Empty in a
    /// [`whole`](Sample::whole) sample and without a tree.
    pub leaves: Vec<(u32, Range<usize>)>,
    /// For each output, whether sums that are 0 at all sampled targets may be 0 at all targets: no expansion acts on any
    /// target, or the kernel [vanishes](Decay::vanishes). Empty if the sample has all targets.
    pub may_vanish: Vec<bool>,
}

/// A drawn leaf.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub stratum: usize,
    /// The targets drawn from the leaf: index among [`Sample::targets`], and factor of the squares |e|² and |u|².
    pub targets: Vec<(u32, f64)>,
}

/// A stratum: the leaves of one kind, or of all rare kinds together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stratum {
    pub name: String,
    /// Fraction of all targets that lie in these leaves.
    pub share: f64,
    /// Fraction of the weight of all targets, by which the mean over the draws of the stratum is multiplied. The squares of a
    /// draw carry the inverse of the weight of a target, so that in the end each target counts once.
    pub weight: f64,
}

/// Leaves of all ranks that are sampled together.
struct Group {
    name: String,
    /// The kinds of the leaves.
    kinds: Vec<u64>,
    /// Number of targets in the leaves.
    targets: usize,
    /// Number of leaves.
    leaves: usize,
    /// The sum of the weights of the leaves, in units.
    units: u128,
}

/// Groups of leaves, those with the most targets first.
fn groups(kinds: &dyn Kinds) -> Vec<Group> {
    let lengths = kinds.lengths();
    let group = |(code, [targets, leaves]): (u64, [usize; 2])| {
        let units = lengths[&code].all;
        Group { name: Kind::of_code(code).name(), kinds: vec![code], targets, leaves, units }
    };
    let mut groups: Vec<Group> = kinds.counts().into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.targets));
    if groups.len() > MAX_STRATA {
        let rare = groups.split_off(MAX_STRATA - 1).into_iter().reduce(|mut rare, group| {
            rare.kinds.extend(group.kinds);
            rare.targets += group.targets;
            rare.leaves += group.leaves;
            rare.units += group.units;
            rare
        });
        groups.extend(rare.map(|rare| Group { name: "rare kinds".to_string(), ..rare }));
    }
    groups
}

impl Sample {
    /// Draws a sample from a tree with its lists. `near_errs` tells whether near pairs are summed with less than the
    /// precision of f64.
    pub fn new(site: &impl Sampled, decay: &Decay, near_errs: bool) -> Result<Sample, Error> {
        let (mut rng, world) = (Rng::new(SEED), site.world());
        let [all, all_sources] = totals(world, [End::Targets, End::Sources].map(|end| site.count(end)))?;
        let weights = Weights::new(site, End::Targets, all)?;
        let factors = decay.far_factors(site)?;
        // Where the kernel is 0 at the distances of all edges, the edges themselves are counted.
        let has_far = factors.is_some() || site.far_factors(&[[1.0; DISTANCES]], 0)?.is_some();
        let may_vanish: Vec<bool> = decay.vanishes.iter().map(|vanishes| *vanishes || !has_far).collect();
        let kinds = site.by_kind(&weights, factors.as_ref(), all)?;
        let groups = groups(&*kinds);
        let strata = groups.iter().map(|group| Stratum {
            name: group.name.clone(),
            share: group.targets as f64 / all as f64,
            weight: group.units as f64 / UNITS as f64 / all as f64,
        });
        let strata: Vec<Stratum> = strata.collect();
        if all.max(1).saturating_mul(all_sources) <= ALL_TARGETS * ALL_TARGETS {
            return Sample::of_all(
                site,
                near_errs,
                (&groups, strata, &*kinds),
                ([all, all_sources], &weights),
                &mut rng,
            );
        }

        // Every stratum gets one leaf, and a part of the further leaves by its share of all targets or of all weight.
        let further = |s: &Stratum| (FURTHER_LEAVES * s.share.max(s.weight)).round() as usize;
        let counts: Vec<usize> = strata.iter().map(|s| 1 + further(s)).collect();
        let of_a_draw = (SAMPLE_TARGETS / counts.iter().sum::<usize>().max(1)).max(4);
        let row = |(group, &count): (&Group, &usize)| {
            // One number for each draw, on whatever rank the leaf is.
            let places = places(group.units, count, rng.uniform());
            (Request { classes: group.kinds.clone(), places }, (0..count).map(|_| rng.uniform()).collect())
        };
        let (rows, starts): (Vec<Request>, Vec<Vec<f64>>) = groups.iter().zip(&counts).map(row).unzip();
        // Each draw: its stratum, its leaf, and where the draws of its targets start.
        let mut picked: Vec<(usize, Leaf, f64)> = Vec::new();
        for (stratum, leaves) in kinds.at(&rows)?.into_iter().enumerate() {
            let of_stratum = picked.len();
            picked.extend(leaves.into_iter().map(|(draw, leaf)| (stratum, leaf, starts[stratum][draw])));
            // By position: in `whole` the draws of a rank follow those of lower ranks, and must be in the order of one rank.
            picked[of_stratum..].sort_by_key(|(_, leaf, _)| leaf.targets.start);
        }
        // Each draw: its stratum, and the positions of its targets with the factors of their squares.
        let mut drawn: Vec<(usize, Vec<(u32, f64)>)> = Vec::new();
        let leaves: Vec<&Leaf> = picked.iter().map(|(_, leaf, _)| leaf).collect();
        for ((stratum, leaf, start), weights) in picked.iter().zip(weights.of_points(site, &leaves)?) {
            let targets = drawn_points(&weights, of_a_draw, *start).into_iter();
            let weight = |i: usize| leaf.factor * weights[i];
            drawn.push((*stratum, targets.map(|i| ((leaf.targets.start + i) as u32, 1.0 / weight(i))).collect()));
        }
        let mut positions: Vec<u32> = drawn.iter().flat_map(|(_, targets)| targets.iter().map(|t| t.0)).collect();
        positions.sort_unstable();
        positions.dedup();
        let rank = |(at, factor): (u32, f64)| (positions.partition_point(|&p| p < at) as u32, factor);
        let draws = drawn
            .into_iter()
            .map(|(stratum, targets)| Draw { stratum, targets: targets.into_iter().map(rank).collect() })
            .collect();
        let mut sampled: Vec<(u32, Range<usize>)> =
            leaves.into_iter().map(|leaf| (leaf.number, leaf.targets.clone())).collect();
        sampled.sort_unstable_by_key(|(leaf, _)| *leaf);
        sampled.dedup();
        let numbers: Vec<u32> = sampled.iter().map(|(leaf, _)| *leaf).collect();
        let found = sources(site, (&numbers, &weights), near_errs, (all_sources, SOURCES), &mut rng)?;
        let sample = Sample::of(site, positions, found, (draws, strata), all);
        Ok(Sample { may_vanish, leaves: sampled, ..sample })
    }

    /// A sample of these targets and sources.
    fn of(
        site: &impl Sampled,
        targets: Vec<u32>,
        [of_norm, of_errors]: [Arc<Sources>; 2],
        (draws, strata): (Vec<Draw>, Vec<Stratum>),
        count: usize,
    ) -> Sample {
        // The sources of the norm contain all sources of a sampled leaf.
        let own = |target: &u32| of_norm.positions.partition_point(|source| source < target) as u32;
        let selves = site.same_points().then(|| targets.iter().map(own).collect());
        let (leaves, may_vanish) = Default::default();
        Sample { targets, selves, count, of_norm, of_errors, draws, strata, leaves, may_vanish }
    }

    /// The sample of all targets. Each leaf is one draw, which counts by its number of targets.
    fn of_all<S: Sampled>(
        site: &S,
        near_errs: bool,
        (groups, mut strata, kinds): (&[Group], Vec<Stratum>, &dyn Kinds),
        ([all, all_sources], weights): ([usize; 2], &Weights<S::Numbers>),
        rng: &mut Rng,
    ) -> Result<Sample, Error> {
        let numbered =
            groups.iter().enumerate().flat_map(|(stratum, group)| group.kinds.iter().map(move |k| (*k, stratum)));
        let stratum_of: HashMap<u64, usize> = numbered.collect();
        strata.iter_mut().for_each(|stratum| stratum.weight = stratum.share);
        let mut leaves = kinds.leaves()?;
        leaves.sort_by_key(|(_, leaf)| leaf.targets.start);
        let draw = |(kind, leaf): &(u64, Leaf)| {
            let (stratum, targets) = (stratum_of[kind], leaf.targets.clone());
            let factor = (targets.len() * groups[stratum].leaves) as f64 / groups[stratum].targets as f64;
            Draw { stratum, targets: targets.map(|at| (at as u32, factor)).collect() }
        };
        let mut draws: Vec<Draw> = leaves.iter().map(draw).collect();
        draws.sort_by_key(|draw| draw.stratum);
        let leaves: Vec<_> = leaves.into_iter().map(|(_, leaf)| (leaf.number, leaf.targets)).collect();
        let numbers: Vec<u32> = leaves.iter().map(|(leaf, _)| *leaf).collect();
        let found = sources(site, (&numbers, weights), near_errs, (all_sources, SOURCES), rng)?;
        let targets = (0..site.count(End::Targets) as u32).collect();
        Ok(Sample { leaves, ..Sample::of(site, targets, found, (draws, strata), all) })
    }

    /// The sample of all ranks, of which this one is the part of a rank. Its points have numbers of their own: the
    /// targets, and the sources of the norm, count from 0. All ranks call it together.
    pub fn whole(&self, world: &World) -> Result<Sample, Error> {
        let index = |source: &u32| self.of_norm.positions.partition_point(|at| at < source) as u32;
        let of_errors = || -> (Vec<u32>, Vec<f64>) {
            (self.of_errors.positions.iter().map(index).collect(), self.of_errors.probability.clone())
        };
        // Whether there are such sources is the same on all ranks.
        let apart = (!self.has_same_sources()).then(of_errors);
        let draws: Vec<(usize, Vec<(u32, f64)>)> =
            self.draws.iter().map(|draw| (draw.stratum, draw.targets.clone())).collect();
        let sources = (self.of_norm.probability.clone(), apart);
        let targets = (self.targets.len() as u32, self.selves.clone());
        let (strata, may_vanish) = (self.strata.clone(), self.may_vanish.clone());
        let mut all = Sample { strata, may_vanish, count: self.count, ..Sample::of_targets(Vec::new(), 0) };
        all.selves = self.selves.as_ref().map(|_| Vec::new());
        let (mut all_norm, mut all_errors) = (Sources::default(), Sources::default());
        for ((draws, (targets, selves)), (norm, apart)) in world.all_gather(((draws, targets), sources))? {
            let [first_target, first_source] = [all.targets.len(), all_norm.positions.len()].map(|n| n as u32);
            let renumbered =
                |targets: Vec<(u32, f64)>| targets.into_iter().map(|(t, f)| (first_target + t, f)).collect();
            all.draws.extend(draws.into_iter().map(|(stratum, t)| Draw { stratum, targets: renumbered(t) }));
            all.targets.extend(first_target..first_target + targets);
            if let (Some(all), Some(selves)) = (&mut all.selves, selves) {
                all.extend(selves.into_iter().map(|own| first_source + own));
            }
            all_norm.positions.extend(first_source..first_source + norm.len() as u32);
            all_norm.probability.extend::<Vec<f64>>(norm);
            if let Some((errors, of_errors)) = apart {
                all_errors.positions.extend(errors.into_iter().map(|k: u32| first_source + k));
                all_errors.probability.extend::<Vec<f64>>(of_errors);
            }
        }
        all.of_norm = Arc::new(all_norm);
        all.of_errors = if self.has_same_sources() { all.of_norm.clone() } else { Arc::new(all_errors) };
        // As one rank draws: stratum by stratum.
        all.draws.sort_by_key(|draw| draw.stratum);
        Ok(all)
    }

    /// Whether norm and errors have the same sources: one shared array, not two equal ones.
    pub fn has_same_sources(&self) -> bool {
        Arc::ptr_eq(&self.of_norm, &self.of_errors)
    }

    /// Writes strata and the numbers of targets and sources into a report.
    pub fn report(&self, report: &mut ProbeReport) {
        let leaves = |k: usize| self.draws.iter().filter(|l| l.stratum == k).count();
        let strata = self.strata.iter().enumerate();
        report.strata =
            strata.map(|(k, s)| ProbeStratum { name: s.name.clone(), share: s.share, leaves: leaves(k) }).collect();
        report.targets = self.targets.len();
        report.sources = self.of_norm.positions.len();
    }

    /// The sample of targets drawn at random from all `count` targets, with equal weights.
    pub fn of_targets(targets: Vec<u32>, count: usize) -> Sample {
        let draws = (0..targets.len() as u32).map(|i| Draw { stratum: 0, targets: vec![(i, 1.0)] }).collect();
        let strata = vec![Stratum { name: "all".to_string(), share: 1.0, weight: 1.0 }];
        let [of_norm, of_errors] = Default::default();
        let (leaves, may_vanish) = Default::default();
        Sample { targets, selves: None, count, of_norm, of_errors, draws, strata, leaves, may_vanish }
    }

    /// Number of sets of normal strengths with which errors are measured.
    pub fn normal_sets(&self) -> usize {
        (NORMAL_STRENGTHS / self.of_errors.positions.len().max(1)).clamp(NORMAL_SETS[0], NORMAL_SETS[1])
    }

    /// The weight of each sampled target in the estimator of the mean over all targets.
    pub fn weights(&self) -> Vec<f64> {
        let mut draws = vec![0usize; self.strata.len()];
        self.draws.iter().for_each(|d| draws[d.stratum] += 1);
        let mut weights = vec![0.0; self.targets.len()];
        for d in &self.draws {
            let part = self.strata[d.stratum].weight / (draws[d.stratum] * d.targets.len()) as f64;
            d.targets.iter().for_each(|&(at, factor)| weights[at as usize] += part * factor);
        }
        weights
    }
}
