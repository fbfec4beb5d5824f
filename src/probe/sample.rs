//! The sample of a probe: targets at which errors are measured, and sources that act on these targets.
//!
//! The targets are stratified. A stratum holds the leaves of one level, one class of population and the same
//! kinds of incoming edges. The sample takes leaves from every stratum, and each stratum counts by its share of all
//! targets. So the sample contains rare kinds of leaves, and these count no more than they do among all leaves.
//!
//! Leaves, and targets in leaves, are drawn with a probability that grows towards the corners of boxes
//! ([`super::corners`]), where errors are largest. Each drawn target counts by the inverse of its probability (Hansen &
//! Hurwitz, *Ann. Math. Statist.* 14 (1943) 333–362). The estimator of a mean
//! square over all targets then has no bias.
//!
//! The sources of a sample are drawn in [`super::sources`].

use super::corners::{Weights, proportional};
use super::sampled::{BOXES_OF_A_TASK, End, Sampled, leaves, level_of};
use super::sources::{SEED, SOURCES, Sources, sources};
use crate::rng::Rng;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Hierarchy};
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

/// A sample of the targets and sources of a tree.
pub(crate) struct Sample {
    /// Positions of the targets, ascending.
    pub targets: Vec<u32>,
    /// The sources whose sums give the norm.
    pub of_norm: Sources,
    /// The sources whose expansions give the errors.
    pub of_errors: Sources,
    /// The drawn leaves. A leaf may occur more than once.
    pub draws: Vec<Draw>,
    /// The strata, at the indices that [`Draw::stratum`] uses.
    pub strata: Vec<Stratum>,
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

/// All leaves with targets, by kind. The leaves of a kind are in the order of their numbers. (A tree may have a million
/// leaves, and fresh memory costs more time than the arithmetic, so arrays are small.)
fn kinds(site: &impl Sampled) -> Result<BTreeMap<Kind, Vec<u32>>, Error> {
    let (tree, incoming) = (site.boxes(), site.incoming()?);
    let mut by_p2l = vec![false; tree.boxes()];
    for b in 0..tree.boxes() {
        let parent = tree.parent(b);
        by_p2l[b] = incoming[b].p2l || parent != NONE && by_p2l[parent as usize];
    }
    let leaves = leaves(tree, |b| !tree.targets_of(b).is_empty());
    let all = || leaves.par_iter().with_min_len(BOXES_OF_A_TASK);
    let mean = tree.targets_of(0).len() / leaves.len().max(1);
    let mut rows: Vec<u32> = all().map(|&leaf| incoming[leaf as usize].edges).collect();
    let last = rows.len().saturating_sub(1);
    let long = if rows.is_empty() { 0 } else { *rows.select_nth_unstable(last - last / 50).1 };
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

impl Sample {
    /// Draws a sample from a tree with its lists. `near_errs` tells whether near pairs are summed with less than the
    /// precision of f64.
    pub fn new(site: &impl Sampled, near_errs: bool) -> Result<Sample, Error> {
        let (mut rng, tree) = (Rng::new(SEED), site.boxes());
        let weights = Weights::new(site, End::Targets)?;
        let targets_of = |&leaf: &u32| tree.targets_of(leaf as usize);
        let targets = |leaves: &[u32]| {
            let all = leaves.par_iter().with_min_len(BOXES_OF_A_TASK);
            all.map(|leaf| targets_of(leaf).len()).sum::<usize>()
        };
        let mut groups: Vec<(String, Vec<u32>)> = kinds(site)?.into_iter().map(|(k, l)| (k.name(), l)).collect();
        groups.sort_by_cached_key(|(_, leaves)| std::cmp::Reverse(targets(leaves)));
        if groups.len() > MAX_STRATA {
            let rest = groups.split_off(MAX_STRATA - 1).into_iter().flat_map(|(_, leaves)| leaves);
            let mut rest: Vec<u32> = rest.collect();
            rest.sort_unstable();
            groups.push(("rare kinds".to_string(), rest));
        }
        let all = tree.targets_of(0).len();
        let strata = groups.iter().map(|(name, leaves)| Stratum {
            name: name.clone(),
            share: targets(leaves) as f64 / all as f64,
            weight: leaves.iter().map(|&leaf| weights.of_leaf(leaf as usize, tree)).sum::<f64>() / all as f64,
        });
        let strata: Vec<Stratum> = strata.collect();
        if all.max(1) * tree.sources_of(0).len() <= ALL_TARGETS * ALL_TARGETS {
            return Sample::of_all(site, near_errs, (&groups, strata), &weights, &mut rng);
        }

        // Every stratum gets one leaf, and a part of the further leaves by its share of all targets.
        let counts: Vec<usize> = strata.iter().map(|s| 1 + (FURTHER_LEAVES * s.share).round() as usize).collect();
        let of_a_draw = (SAMPLE_TARGETS / counts.iter().sum::<usize>().max(1)).max(4);
        // Each draw: its stratum, and the positions of its targets with the factors of their squares.
        let mut drawn: Vec<(usize, Vec<(u32, f64)>)> = Vec::new();
        let mut sampled = Vec::new();
        for (stratum, (_, leaves)) in groups.iter().enumerate() {
            let each = leaves.iter().map(|&leaf| weights.of_leaf(leaf as usize, tree));
            let picked: Vec<u32> =
                proportional(each, counts[stratum], &mut rng).into_iter().map(|k| leaves[k]).collect();
            sampled.extend(&picked);
            let places: Vec<(usize, usize)> =
                picked.iter().map(|&leaf| (leaf as usize, level_of(tree, leaf as usize))).collect();
            for (leaf, weights) in picked.iter().zip(weights.of_points(site, &places)?) {
                let start = targets_of(leaf).start;
                let targets = proportional(weights.iter().copied(), of_a_draw, &mut rng).into_iter();
                drawn.push((stratum, targets.map(|i| ((start + i) as u32, 1.0 / weights[i])).collect()));
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
        let [of_norm, of_errors] = sources(site, (&sampled, &weights), near_errs, SOURCES, &mut rng)?;
        Ok(Sample { targets: positions, of_norm, of_errors, draws, strata })
    }

    /// The sample of all targets. Each leaf is one draw, which counts by its number of targets.
    fn of_all(
        site: &impl Sampled,
        near_errs: bool,
        (groups, mut strata): (&[(String, Vec<u32>)], Vec<Stratum>),
        weights: &Weights,
        rng: &mut Rng,
    ) -> Result<Sample, Error> {
        let tree = site.boxes();
        let all = tree.targets_of(0).len();
        let mut draws = Vec::new();
        for (stratum, (_, leaves)) in groups.iter().enumerate() {
            strata[stratum].weight = strata[stratum].share;
            let mean = strata[stratum].share * all as f64 / leaves.len() as f64;
            draws.extend(leaves.iter().map(|&leaf| {
                let targets = tree.targets_of(leaf as usize);
                let factor = targets.len() as f64 / mean;
                Draw { stratum, targets: targets.map(|at| (at as u32, factor)).collect() }
            }));
        }
        let leaves: Vec<u32> = groups.iter().flat_map(|(_, leaves)| leaves).copied().collect();
        let [of_norm, of_errors] = sources(site, (&leaves, weights), near_errs, SOURCES, rng)?;
        Ok(Sample { targets: (0..all as u32).collect(), of_norm, of_errors, draws, strata })
    }

    /// The sample of targets drawn at random from all targets, with equal weights.
    pub fn of_targets(targets: Vec<u32>) -> Sample {
        let draws = (0..targets.len() as u32).map(|i| Draw { stratum: 0, targets: vec![(i, 1.0)] }).collect();
        let strata = vec![Stratum { name: "all".to_string(), share: 1.0, weight: 1.0 }];
        Sample { targets, of_norm: Sources::default(), of_errors: Sources::default(), draws, strata }
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
