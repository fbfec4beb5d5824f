//! The sample of a probe: targets at which errors are measured, and sources that act on these targets.
//!
//! The targets are stratified. A stratum holds the leaves of one level, one class of population and the same
//! kinds of incoming edges. The sample takes leaves from every stratum, and each stratum counts by its share of all
//! targets. So the sample contains rare kinds of leaves, and these count no more than they do among all leaves.
//!
//! Leaves are drawn with a probability that grows towards the corners of boxes ([`super::corners`]), where errors are
//! largest, and with an estimated error at the leaf ([`super::decay`]). Targets in leaves are drawn with a probability
//! that grows towards the corners. Each drawn target counts by the inverse of its probability (Hansen & Hurwitz,
//! *Ann. Math. Statist.* 14 (1943) 333–362). The estimator of a mean square over all targets then has no bias.
//!
//! The sources of a sample are drawn in [`super::sources`].
//!
//! Several ranks that share the points draw the sample that one rank draws ([`super::draw`]), each its part.

use super::corners::Weights;
use super::decay::Decay;
use super::draw::{Span, drawn_points, exact_sum, totals, units};
use super::sampled::{BOXES_OF_A_TASK, End, Sampled, leaves, level_of, within};
use super::sources::{SEED, SOURCES, Sources, sources};
use super::{ProbeReport, ProbeStratum};
use crate::rng::Rng;
use fmm_dist::World;
use fmm_traits::{Error, Hierarchy};
use fmm_tree::DISTANCES;
use rayon::prelude::*;
use std::collections::BTreeMap;

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
    /// Number of all targets of which the sample is one.
    pub count: usize,
    /// The sources whose sums give the norm.
    pub of_norm: Sources,
    /// The sources whose expansions give the errors, a part of those of the norm.
    pub of_errors: Sources,
    /// The drawn leaves. A leaf may occur more than once.
    pub draws: Vec<Draw>,
    /// The strata, at the indices that [`Draw::stratum`] uses.
    pub strata: Vec<Stratum>,
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

/// A stratum: leaves of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stratum {
    pub name: String,
    /// Fraction of all targets that lie in these leaves.
    pub share: f64,
    /// Fraction of the weight of all targets. The mean over the draws of the stratum counts by this fraction.
    pub weight: f64,
}

/// The properties that the leaves of a stratum share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Kind {
    level: u8,
    /// 0: less than a quarter of the mean number of targets per leaf; 2: more than four times the mean; 1: between.
    population: u8,
    /// Bit set: bit k stands for `REACH_NAMES[k]`.
    reached: u8,
}

/// Names of the properties of a leaf that depend on its edges and sources.
const REACH_NAMES: [&str; 5] = ["M2P", "P2L", "more edges than 98 %", "P2P over two levels or more", "no sources"];

/// The number that is exceeded by as many of the `numbers` of all ranks as `places` says for their count.
fn exceeded(world: &World, numbers: &[u32], places: impl Fn(usize) -> usize) -> Result<u32, Error> {
    let mut most = [numbers.par_iter().with_min_len(BOXES_OF_A_TASK).max().map_or(0, |&most| u64::from(most))];
    world.reduce(&mut most, u64::max)?;
    let mut counts = vec![0u64; most[0] as usize + 1];
    numbers.iter().for_each(|&number| counts[number as usize] += 1);
    world.reduce(&mut counts, |a, b| a + b)?;
    let mut left = places(counts.iter().sum::<u64>() as usize) as u64;
    let found = counts.iter().rposition(|&count| {
        let here = left < count;
        left = left.saturating_sub(count);
        here
    });
    Ok(found.unwrap_or(0) as u32)
}

/// The leaves of this rank with targets, by kind. The leaves of a kind are in the order of their numbers, which is tree
/// order. (A tree may have a million leaves, and fresh memory costs more time than the arithmetic, so arrays are
/// small.)
fn kinds(site: &impl Sampled) -> Result<BTreeMap<Kind, Vec<u32>>, Error> {
    let (tree, incoming) = (site.boxes(), site.incoming()?);
    let by_p2l = within(tree, |b| incoming[b].p2l);
    let leaves = leaves(tree, |b| !tree.targets_of(b).is_empty());
    let all = || leaves.par_iter().with_min_len(BOXES_OF_A_TASK);
    let [targets, count] = totals(site.world(), [tree.targets_of(0).len(), leaves.len()])?;
    let mean = targets / count.max(1);
    let rows: Vec<u32> = all().map(|&leaf| incoming[leaf as usize].edges).collect();
    let long = exceeded(site.world(), &rows, |count| count.saturating_sub(1) / 50)?;
    let starts: Vec<usize> = (1..tree.levels()).map(|level| tree.level(level).start).collect();
    let kind = |&leaf: &u32| {
        let b = leaf as usize;
        let (here, targets) = (incoming[b], tree.targets_of(b).len());
        let facts = [here.m2p, by_p2l[b], here.edges > long, here.jump, tree.sources_of(b).is_empty()];
        let reached = facts.iter().enumerate().map(|(bit, &is)| u8::from(is) << bit).sum();
        let population = u8::from(4 * targets >= mean) + u8::from(targets > 4 * mean.max(1));
        Kind { level: starts.partition_point(|&start| start <= b) as u8, population, reached }
    };
    // Most leaves are of one kind, so the kind of the leaf before is looked at first.
    let of_leaves: Vec<Kind> = all().map(kind).collect();
    let mut kinds: Vec<(Kind, Vec<u32>)> = Vec::new();
    let mut last = 0;
    for (leaf, kind) in leaves.into_iter().zip(of_leaves) {
        if kinds.get(last).is_none_or(|(k, _)| *k != kind) {
            last = kinds.iter().position(|(k, _)| *k == kind).unwrap_or(kinds.len());
            if last == kinds.len() {
                kinds.push((kind, Vec::new()));
            }
        }
        kinds[last].1.push(leaf);
    }
    Ok(kinds.into_iter().collect())
}

impl Kind {
    /// A number that ascends as kinds do.
    fn code(self) -> u64 {
        u64::from_be_bytes([0, 0, 0, 0, 0, self.level, self.population, self.reached])
    }
    fn of_code(code: u64) -> Kind {
        let [.., level, population, reached] = code.to_be_bytes();
        Kind { level, population, reached }
    }
    fn name(self) -> String {
        let reached = (0..REACH_NAMES.len()).filter(|bit| self.reached >> bit & 1 == 1).map(|bit| REACH_NAMES[bit]);
        let population = ["few points", "", "many points"][usize::from(self.population)];
        let words: Vec<&str> = [population].into_iter().filter(|w| !w.is_empty()).chain(reached).collect();
        match words.is_empty() {
            true => format!("level {}", self.level),
            false => format!("level {}: {}", self.level, words.join(", ")),
        }
    }
}

/// Leaves that are sampled together.
struct Group {
    name: String,
    /// The leaves of this rank, in tree order.
    leaves: Vec<u32>,
    /// Targets in the leaves of all ranks.
    targets: usize,
}

/// The leaves of all kinds, those with the most targets first.
fn groups(site: &impl Sampled) -> Result<Vec<Group>, Error> {
    let (tree, mut here) = (site.boxes(), kinds(site)?);
    let targets = |leaves: &Vec<u32>| {
        let all = leaves.par_iter().with_min_len(BOXES_OF_A_TASK);
        all.map(|&leaf| tree.targets_of(leaf as usize).len()).sum::<usize>()
    };
    let mine: Vec<[u64; 2]> = here.iter().map(|(kind, leaves)| [kind.code(), targets(leaves) as u64]).collect();
    let mut known: BTreeMap<u64, usize> = BTreeMap::new();
    for [kind, targets] in site.world().all_gather(mine)?.into_iter().flatten() {
        *known.entry(kind).or_default() += targets as usize;
    }
    let group = |(code, targets)| {
        let kind = Kind::of_code(code);
        Group { name: kind.name(), leaves: here.remove(&kind).unwrap_or_default(), targets }
    };
    let mut groups: Vec<Group> = known.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.targets));
    if groups.len() > MAX_STRATA {
        let mut rare = Group { name: "rare kinds".to_string(), leaves: Vec::new(), targets: 0 };
        for group in groups.split_off(MAX_STRATA - 1) {
            rare.leaves.extend(group.leaves);
            rare.targets += group.targets;
        }
        rare.leaves.sort_unstable_by_key(|&leaf| tree.targets_of(leaf as usize).start);
        groups.push(rare);
    }
    Ok(groups)
}

/// A factor for the weights of the targets of each box, whose mean over all `count` targets is 1. One half is the same
/// for all leaves. The other half grows with the square of the estimated error, alike for all outputs. Also tells whether
/// any expansion acts on targets.
fn factors(site: &impl Sampled, decay: &Decay, count: usize) -> Result<(Vec<f64>, bool), Error> {
    let tree = site.boxes();
    let mut parts = Vec::new();
    for squares in decay.far_squares(site)? {
        let of_leaf = |b: usize| tree.targets_of(b).len() as f64 * squares[b];
        let mean = exact_sum(site.world(), squares.len(), of_leaf)?.map(|sum| sum / count as f64);
        parts.extend(mean.filter(|mean| mean.is_normal()).map(|mean| (squares, mean)));
    }
    let share = 0.5 / parts.len().max(1) as f64;
    let rest = if parts.is_empty() { 1.0 } else { 0.5 };
    let of_box = |b: usize| rest + parts.iter().map(|(squares, mean)| share * squares[b] / mean).sum::<f64>();
    // Where the kernel is 0 at the distances of all edges, the edges themselves are counted.
    let reached = |squares: Vec<Vec<f64>>| usize::from(squares.iter().flatten().any(|square| *square > 0.0));
    let has_far =
        !parts.is_empty() || totals(site.world(), [reached(site.far_squares(&[[1.0; DISTANCES]], 0)?)])? != [0];
    let factors = (0..tree.boxes()).into_par_iter().with_min_len(BOXES_OF_A_TASK).map(of_box).collect();
    Ok((factors, has_far))
}

impl Sample {
    /// Draws a sample from a tree with its lists. `near_errs` tells whether near pairs are summed with less than the
    /// precision of f64.
    pub fn new(site: &impl Sampled, decay: &Decay, near_errs: bool) -> Result<Sample, Error> {
        let (mut rng, tree, world) = (Rng::new(SEED), site.boxes(), site.world());
        let [all, all_sources] = totals(world, [tree.targets_of(0).len(), tree.sources_of(0).len()])?;
        let weights = Weights::new(site, End::Targets, all)?;
        let (factors, has_far) = factors(site, decay, all)?;
        let may_vanish: Vec<bool> = decay.vanishes.iter().map(|vanishes| *vanishes || !has_far).collect();
        let of_leaf = |leaf: u32| units(factors[leaf as usize] * weights.of_leaf(leaf as usize, tree));
        let targets_of = |&leaf: &u32| tree.targets_of(leaf as usize);
        let groups = groups(site)?;
        let in_units = |group: &Group| {
            let all = group.leaves.par_iter().with_min_len(BOXES_OF_A_TASK);
            all.map(|&leaf| of_leaf(leaf)).sum()
        };
        let spans = Span::of(world, &groups.iter().map(in_units).collect::<Vec<u128>>())?;
        let strata = groups.iter().zip(&spans).map(|(group, span)| Stratum {
            name: group.name.clone(),
            share: group.targets as f64 / all as f64,
            weight: span.sum() / all as f64,
        });
        let strata: Vec<Stratum> = strata.collect();
        if all.max(1).saturating_mul(all_sources) <= ALL_TARGETS * ALL_TARGETS {
            return Sample::of_all(site, near_errs, (&groups, strata), ([all, all_sources], &weights), &mut rng);
        }

        // Every stratum gets one leaf, and a part of the further leaves by its share of all targets or of all weight.
        let further = |s: &Stratum| (FURTHER_LEAVES * s.share.max(s.weight)).round() as usize;
        let counts: Vec<usize> = strata.iter().map(|s| 1 + further(s)).collect();
        let of_a_draw = (SAMPLE_TARGETS / counts.iter().sum::<usize>().max(1)).max(4);
        // Each draw: its stratum, and the positions of its targets with the factors of their squares.
        let mut drawn: Vec<(usize, Vec<(u32, f64)>)> = Vec::new();
        let mut sampled = Vec::new();
        for (stratum, (Group { leaves, .. }, span)) in groups.iter().zip(&spans).enumerate() {
            let each = leaves.iter().map(|&leaf| of_leaf(leaf));
            let picked = span.draw(each, counts[stratum], rng.uniform());
            // One number for each draw, on whatever rank the leaf is.
            let starts: Vec<f64> = (0..counts[stratum]).map(|_| rng.uniform()).collect();
            sampled.extend(picked.iter().map(|&(k, _)| leaves[k]));
            let place = |&(k, _): &(usize, usize)| (leaves[k] as usize, level_of(tree, leaves[k] as usize));
            let places: Vec<(usize, usize)> = picked.iter().map(place).collect();
            for ((k, draw), weights) in picked.into_iter().zip(weights.of_points(site, &places)?) {
                let first = targets_of(&leaves[k]).start;
                let targets = drawn_points(&weights, of_a_draw, starts[draw]).into_iter();
                let weight = |i: usize| factors[leaves[k] as usize] * weights[i];
                drawn.push((stratum, targets.map(|i| ((first + i) as u32, 1.0 / weight(i))).collect()));
            }
        }
        let mut positions: Vec<u32> = drawn.iter().flat_map(|(_, targets)| targets.iter().map(|t| t.0)).collect();
        positions.sort_unstable();
        positions.dedup();
        let rank = |(at, factor): (u32, f64)| (positions.partition_point(|&p| p < at) as u32, factor);
        let draws = drawn
            .into_iter()
            .map(|(stratum, targets)| Draw { stratum, targets: targets.into_iter().map(rank).collect() })
            .collect();
        sampled.sort_unstable();
        sampled.dedup();
        let found = sources(site, (&sampled, &weights), near_errs, (all_sources, SOURCES), &mut rng)?;
        let sample = Sample::of(site, positions, found, (draws, strata), all);
        Ok(Sample { may_vanish, ..sample })
    }

    /// A sample of these targets and sources.
    fn of(
        site: &impl Sampled,
        targets: Vec<u32>,
        [of_norm, of_errors]: [Sources; 2],
        (draws, strata): (Vec<Draw>, Vec<Stratum>),
        count: usize,
    ) -> Sample {
        // The sources of the norm contain all sources of a sampled leaf.
        let own = |target: &u32| of_norm.positions.partition_point(|source| source < target) as u32;
        let selves = site.boxes().same_points().then(|| targets.iter().map(own).collect());
        Sample { targets, selves, count, of_norm, of_errors, draws, strata, may_vanish: Vec::new() }
    }

    /// The sample of all targets. Each leaf is one draw, which counts by its number of targets.
    fn of_all(
        site: &impl Sampled,
        near_errs: bool,
        (groups, mut strata): (&[Group], Vec<Stratum>),
        ([all, all_sources], weights): ([usize; 2], &Weights),
        rng: &mut Rng,
    ) -> Result<Sample, Error> {
        let tree = site.boxes();
        let numbers: Vec<u128> = groups.iter().map(|group| group.leaves.len() as u128).collect();
        let numbers = Span::of(site.world(), &numbers)?;
        let mut draws = Vec::new();
        for (stratum, (group, number)) in groups.iter().zip(numbers).enumerate() {
            strata[stratum].weight = strata[stratum].share;
            let mean = strata[stratum].share * all as f64 / number.all as f64;
            draws.extend(group.leaves.iter().map(|&leaf| {
                let targets = tree.targets_of(leaf as usize);
                let factor = targets.len() as f64 / mean;
                Draw { stratum, targets: targets.map(|at| (at as u32, factor)).collect() }
            }));
        }
        let leaves: Vec<u32> = groups.iter().flat_map(|group| &group.leaves).copied().collect();
        let found = sources(site, (&leaves, weights), near_errs, (all_sources, SOURCES), rng)?;
        let targets = tree.targets_of(0).map(|target| target as u32).collect();
        Ok(Sample::of(site, targets, found, (draws, strata), all))
    }

    /// The sample of all ranks, of which this one is the part of a rank. Its points have numbers of their own: the
    /// targets, and the sources of the norm, count from 0. All ranks call it together.
    pub fn whole(&self, world: &World) -> Result<Sample, Error> {
        let index = |source: &u32| self.of_norm.positions.partition_point(|at| at < source) as u32;
        let errors: Vec<u32> = self.of_errors.positions.iter().map(index).collect();
        let draws: Vec<(usize, Vec<(u32, f64)>)> =
            self.draws.iter().map(|draw| (draw.stratum, draw.targets.clone())).collect();
        let sources = (self.of_norm.probability.clone(), (errors, self.of_errors.probability.clone()));
        let targets = (self.targets.len() as u32, self.selves.clone());
        let (strata, may_vanish) = (self.strata.clone(), self.may_vanish.clone());
        let mut all = Sample { strata, may_vanish, count: self.count, ..Sample::of_targets(Vec::new(), 0) };
        all.selves = self.selves.as_ref().map(|_| Vec::new());
        for ((draws, (targets, selves)), (norm, (errors, of_errors))) in
            world.all_gather(((draws, targets), sources))?
        {
            let [first_target, first_source] = [all.targets.len(), all.of_norm.positions.len()].map(|n| n as u32);
            let renumbered =
                |targets: Vec<(u32, f64)>| targets.into_iter().map(|(t, f)| (first_target + t, f)).collect();
            all.draws.extend(draws.into_iter().map(|(stratum, t)| Draw { stratum, targets: renumbered(t) }));
            all.targets.extend(first_target..first_target + targets);
            if let (Some(all), Some(selves)) = (&mut all.selves, selves) {
                all.extend(selves.into_iter().map(|own| first_source + own));
            }
            all.of_norm.positions.extend(first_source..first_source + norm.len() as u32);
            all.of_norm.probability.extend::<Vec<f64>>(norm);
            all.of_errors.positions.extend(errors.into_iter().map(|k: u32| first_source + k));
            all.of_errors.probability.extend::<Vec<f64>>(of_errors);
        }
        // As one rank draws: stratum by stratum.
        all.draws.sort_by_key(|draw| draw.stratum);
        Ok(all)
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
        Sample { targets, selves: None, count, of_norm, of_errors, draws, strata, may_vanish: Vec::new() }
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
