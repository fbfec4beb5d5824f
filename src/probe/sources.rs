//! The sources of a sample, and their strengths.
//!
//! Sums over all sources would cost as much as an evaluation, so the sample draws sources leaf by leaf. A source that
//! is taken with probability π stands for 1/π sources. The sample has two sets of sources, both from one draw:
//!
//! - The sources whose sums give the norm are all near sources, and a random part of the other sources. Near sources
//!   lie in leaves that a sampled leaf meets in P2P. The closest pairs can make up most of a norm, so they are not left
//!   to chance.
//! - The sources whose expansions give the errors are a random part of all sources. (A near pair has no error but
//!   rounding. If near pairs are summed with less than the precision of f64, all near sources are taken here, too.)
//!
//! Half of the draws are made among all sources, the other half among *close* sources only. An M2L, M2P or P2L edge leads
//! from them to a sampled leaf itself, and not only to a box above it. In a large tree few sources are close, and the
//! closest translations err most. Leaves, and sources in leaves, are drawn with a probability that grows towards the
//! corners of boxes ([`super::corners`]).
//!
//! The strengths of a source make up for its probability:
//!
//! - Normal strengths are multiplied by π^−½. The mean squares of the error and of the sum are then equal to the
//!   mean squares for all sources, because both are sums of squares over independent strengths.
//! - Strengths uniform in (0, 1) are multiplied by 1/π. The mean of the sum is then that of all sources. The random
//!   choice of sources increases both mean squares: that of the error, and that of the sum. The latter increases little
//!   unless the terms of the sum cancel.

use super::corners::Weights;
use super::draw::{UNITS, drawn_points, units};
use super::sampled::{End, Request, Sampled};
use crate::rng::Rng;
use fmm_traits::Error;
use fmm_tree::Leaf;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seed of all samples. Plans for the same points and request measure the same errors.
pub(super) const SEED: u64 = 0x0050_524F_4245;
/// Approximate number of drawn sources. With half as many, bounds at high orders scatter by some tens of per cent more.
pub(super) const SOURCES: f64 = 32_000.0;
/// Approximate least number of drawn leaves. A drawn leaf gives `SOURCES` / `DRAWN_LEAVES` sources, or all if it has fewer,
/// or more if it expects more draws. It balances the scatter of errors, which falls with the number of leaves, against the
/// translations of their boxes.
const DRAWN_LEAVES: f64 = 250.0;

/// Sources whose strengths a thread draws at once: some tens of microseconds.
const SOURCES_OF_A_TASK: usize = 4096;

/// Drawn sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Positions, ascending.
    pub positions: Vec<u32>,
    /// For each source, the probability with which the sample takes it.
    pub probability: Vec<f64>,
}

impl Sources {
    /// The seed of a set of normal strengths, counted from 0.
    pub fn seed_of_normal(set: usize) -> u64 {
        SEED ^ (2 + set as u64)
    }

    /// Sets of strengths, `components` numbers per source: the first set is uniform in (0, 1) and divided by the
    /// probability, the others are `normal_sets` sets of [`normal`](Self::normal) strengths.
    pub fn strengths(&self, normal_sets: usize, components: usize) -> Vec<Vec<f64>> {
        let uniform = || self.numbers(components, (SEED ^ 1, 1), |p| 1.0 / p, Rng::uniform);
        let (uniform, mut sets) = rayon::join(uniform, || self.normal(normal_sets, components));
        sets.insert(0, uniform);
        sets
    }

    /// Sets of normal strengths (drawn by [`Rng::binomial`], which is fast and close enough: bounds rest on second and
    /// fourth moments), `components` numbers per source, divided by the root of the probability.
    pub fn normal(&self, sets: usize, components: usize) -> Vec<Vec<f64>> {
        let of_set =
            |set: usize| self.numbers(components, (Sources::seed_of_normal(set), 2), |p| 1.0 / p.sqrt(), Rng::binomial);
        (0..sets).into_par_iter().map(of_set).collect()
    }

    /// `components` random numbers per source, times a factor of its probability. A number takes so many `calls` of
    /// [`Rng::bits`]. Parts of the sources are drawn side by side.
    fn numbers(
        &self,
        components: usize,
        (seed, calls): (u64, u64),
        factor: impl Fn(f64) -> f64 + Sync,
        number: impl Fn(&mut Rng) -> f64 + Sync,
    ) -> Vec<f64> {
        let mut all = vec![0.0; self.probability.len() * components];
        let parts =
            all.par_chunks_mut(SOURCES_OF_A_TASK * components).zip(self.probability.par_chunks(SOURCES_OF_A_TASK));
        parts.enumerate().for_each(|(part, (to, probability))| {
            let before = part * SOURCES_OF_A_TASK * components;
            let mut rng = Rng::new(seed).after(calls * before as u64);
            for (to, &probability) in to.chunks_exact_mut(components).zip(probability) {
                let factor = factor(probability);
                to.fill_with(|| factor * number(&mut rng));
            }
        });
        all
    }

    /// No sources, with room for `count`.
    fn with_room(count: usize) -> Sources {
        Sources { positions: Vec::with_capacity(count), probability: Vec::with_capacity(count) }
    }

    /// Appends the source at a position, with its probability.
    fn take(&mut self, position: usize, probability: f64) {
        self.positions.push(position as u32);
        self.probability.push(probability);
    }
}

/// What a leaf gives for errors.
#[derive(Clone, Copy)]
struct Given {
    /// The chance with which the leaf is drawn; 1 if it is taken.
    chance: f64,
    /// Number of sources that it gives.
    picks: usize,
    /// Where the draws of its sources start ([`drawn_points`]).
    start: f64,
}

/// The chances with which leaves give sources for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chances {
    /// The expected number of draws for each unit of weight.
    pub share: f64,
    /// The number of draws that a close source expects in addition, for each unit of weight.
    pub share_of_close: f64,
    /// Number of sources that a leaf gives at least, if it has them.
    pub of_a_leaf: usize,
    /// Whether all sources are taken.
    takes_all: bool,
    /// Whether all near sources are taken.
    pub takes_near: bool,
}

impl Chances {
    /// Whether a leaf gives all its sources.
    pub fn takes(&self, near: bool) -> bool {
        self.takes_all || near && self.takes_near
    }

    /// The chance with which a leaf is drawn if it is not taken, and the number of its draws. `weight` is that of its
    /// sources.
    pub fn of(&self, weight: f64, sources: usize, close: bool) -> (f64, usize) {
        let share = if close { self.share + self.share_of_close } else { self.share };
        let expected = share * weight;
        let picks = sources.min(self.of_a_leaf.max(expected.ceil() as usize));
        ((expected / picks as f64).min(1.0), picks)
    }
}

/// Draws about `most` of all `count` sources, or takes all if there are fewer. Returns the sources of this rank that
/// give the norm, and those that give the errors. `sampled` are the sampled leaves. If `near_errs`, all near sources
/// give errors. `weights` are those of the targets.
pub(super) fn sources<S: Sampled>(
    site: &S,
    (sampled, weights): (&[u32], &Weights<S::Numbers>),
    near_errs: bool,
    (count, most): (usize, f64),
    rng: &mut Rng,
) -> Result<[Arc<Sources>; 2], Error> {
    let near_and_close = site.near_and_close(sampled)?;
    let of_sources: Weights<S::Numbers>;
    let weights = if site.same_points() {
        weights
    } else {
        of_sources = Weights::new(site, End::Sources, count)?;
        &of_sources
    };
    let [all, all_close] = site.weights_of_sources(weights, &near_and_close)?;
    let chances = Chances {
        share: 0.5 * most / all,
        share_of_close: if all_close > 0.0 { 0.5 * most / all_close } else { 0.0 },
        of_a_leaf: (most / DRAWN_LEAVES).ceil() as usize,
        takes_all: most >= count as f64,
        takes_near: near_errs,
    };
    // Leaves are drawn by systematic sampling, one for each unit of the sum of chances.
    let start = units(rng.uniform());
    let row = (!chances.takes_all).then(|| site.by_chance(weights, &near_and_close, &chances)).transpose()?;
    let lengths = row.as_ref().map(|row| row.lengths()).unwrap_or_default();
    let length: u128 = lengths.values().map(|span| span.all).sum();
    let places: Vec<u128> = (0..).map(|k| start + k * UNITS).take_while(|place| *place < length).collect();
    // One number for each draw, on whatever rank the leaf is.
    let starts: Vec<f64> = places.iter().map(|_| rng.uniform()).collect();
    // The leaves that give sources for the norm or for errors, in tree order.
    let mut given: BTreeMap<usize, (Leaf, Option<Given>)> = BTreeMap::new();
    for leaf in site.leaves_with_sources(&near_and_close, chances.takes_all)? {
        let all = Given { chance: 1.0, picks: leaf.sources.len(), start: 0.0 };
        let taken = chances.takes(leaf.near);
        given.insert(leaf.sources.start, (leaf, taken.then_some(all)));
    }
    let rows = row.map(|row| row.at(&[Request { classes: lengths.into_keys().collect(), places }]));
    for (draw, leaf) in rows.transpose()?.into_iter().flatten().flatten() {
        let weight = weights.of_leaf(leaf.sources.len(), leaf.corners);
        let (chance, picks) = chances.of(weight, leaf.sources.len(), leaf.close);
        given.insert(leaf.sources.start, (leaf, Some(Given { chance, picks, start: starts[draw] })));
    }
    // Sources of leaves that are taken as a whole need no weights.
    let in_part = |leaf: &Leaf, from: Given| from.picks < leaf.sources.len();
    let parts = given.values().filter(|(leaf, from)| from.is_some_and(|from| in_part(leaf, from)));
    let parts: Vec<&Leaf> = parts.map(|(leaf, _)| leaf).collect();
    let mut of_points = weights.of_points(site, &parts)?.into_iter();
    let for_errors = |(_, from): &(Leaf, Option<Given>)| from.map_or(0, |from| from.picks);
    let for_norm = |one: &(Leaf, _)| if one.0.near { one.0.sources.len() } else { for_errors(one) };
    // If all near sources are taken for errors, the norm has the same sources, and `of_norm` stays empty.
    let apart = !chances.takes(true);
    let mut of_norm = Sources::with_room(if apart { given.values().map(for_norm).sum() } else { 0 });
    let mut of_errors = Sources::with_room(given.values().map(for_errors).sum());
    for (leaf, from) in given.into_values() {
        let range = leaf.sources.clone();
        if apart && leaf.near {
            range.clone().for_each(|at| of_norm.take(at, 1.0));
        }
        let Some(from) = from else { continue };
        let Given { chance, picks, start } = from;
        let mut give = |at: usize, probability: f64| {
            of_errors.take(at, probability);
            if apart && !leaf.near {
                of_norm.take(at, probability);
            }
        };
        let weights = if in_part(&leaf, from) { of_points.next() } else { None };
        match weights {
            None => range.for_each(|at| give(at, chance)),
            Some(weights) => {
                let step = weights.iter().sum::<f64>() / picks as f64;
                let mut picked = drawn_points(&weights, picks, start);
                picked.dedup();
                picked.into_iter().for_each(|i| give(range.start + i, chance * (weights[i] / step).min(1.0)));
            }
        }
    }
    let of_errors = Arc::new(of_errors);
    Ok([if apart { Arc::new(of_norm) } else { of_errors.clone() }, of_errors])
}

#[cfg(test)]
mod tests {
    use super::super::on_host::OnHost;
    use super::*;
    use fmm_traits::Hierarchy;
    use fmm_tree::{BuildOptions, ListOptions};
    use std::collections::BTreeSet;

    /// Strengths are drawn in parts, and are those of one generator for each set.
    #[test]
    fn strengths_do_not_depend_on_their_parts() {
        let count = 2 * SOURCES_OF_A_TASK + 5;
        let probability: Vec<f64> = (1..=count).map(|k| 1.0 / k as f64).collect();
        let sources = Sources { positions: (0..count as u32).collect(), probability };
        for components in [1, 3] {
            let sets = sources.strengths(2, components);
            for (set, found) in sets.iter().enumerate() {
                let mut rng = Rng::new(SEED ^ (set as u64 + 1));
                let one = |p: f64, rng: &mut Rng| match set {
                    0 => 1.0 / p * rng.uniform(),
                    _ => 1.0 / p.sqrt() * rng.binomial(),
                };
                let expected = sources.probability.iter().flat_map(|&p| std::iter::repeat_n(p, components));
                let expected: Vec<f64> = expected.map(|p| one(p, &mut rng)).collect();
                assert_eq!(*found, expected, "set {set} of {components} components");
            }
        }
    }

    /// A part of 3000 sources, drawn many times: in many small leaves, and in few large leaves.
    #[test]
    fn a_source_is_drawn_as_often_as_its_probability_says() {
        let mut rng = Rng::new(7);
        let n = 3000;
        // The density grows towards one corner.
        let xyz: Vec<f64> = (0..3 * n).map(|_| rng.uniform().powi(3)).collect();
        for occupancy in [8.0, 400.0] {
            let tree = fmm_tree::build(&xyz, None, &BuildOptions { occupancy, ..BuildOptions::default() }).unwrap();
            let lists = fmm_tree::uvwx(&tree, &ListOptions::default()).unwrap();
            let site = OnHost::new(&tree, &lists, None);
            let weights = Weights::new(&site, End::Targets, n).unwrap();
            let leaf = (0..tree.boxes()).rfind(|&b| tree.is_leaf(b) && !tree.targets_of(b).is_empty()).unwrap() as u32;
            let mut of_near = BTreeSet::new();
            for near in site.leaves_with_sources(&site.near_and_close(&[leaf]).unwrap(), false).unwrap() {
                of_near.extend(near.sources.map(|i| i as u32));
            }
            assert!(tree.sources_of(leaf as usize).all(|i| of_near.contains(&(i as u32))));
            assert!(of_near.len() < 9 * n / 10, "{}", of_near.len());

            let draws = 4000;
            let (mut taken, mut probability) = (vec![0u32; n], vec![0.0; n]);
            let mut count = 0.0;
            for _ in 0..draws {
                let [of_norm, of_errors] = sources(&site, (&[leaf], &weights), false, (n, 200.0), &mut rng).unwrap();
                assert!(!of_errors.positions.is_empty());
                for s in [&of_norm, &of_errors] {
                    assert!(s.positions.is_sorted() && s.positions.len() == s.probability.len());
                }
                let whole = of_norm.positions.iter().zip(&of_norm.probability).filter(|p| *p.1 == 1.0);
                assert!(of_near.is_subset(&whole.map(|p| *p.0).collect()));
                let far = of_errors.positions.iter().filter(|i| !of_near.contains(i));
                assert!(far.eq(of_norm.positions.iter().filter(|i| !of_near.contains(i))));
                for (&i, &p) in of_errors.positions.iter().zip(&of_errors.probability) {
                    taken[i as usize] += 1;
                    assert!(probability[i as usize] == 0.0 || probability[i as usize] == p);
                    probability[i as usize] = p;
                }
                count += of_errors.positions.len() as f64 / draws as f64;
            }
            assert!((90.0..220.0).contains(&count), "{count} of 200");
            for (i, (&taken, &p)) in taken.iter().zip(&probability).enumerate() {
                let (mean, deviation) = (p * draws as f64, (p * (1.0 - p) * draws as f64).sqrt());
                assert!(
                    p > 0.0 && (taken as f64 - mean).abs() < 5.5 * deviation + 0.5,
                    "source {i}: {taken} of {mean}"
                );
            }

            // Near pairs that err, and fewer sources than asked for.
            let [of_norm, of_errors] = sources(&site, (&[leaf], &weights), true, (n, 200.0), &mut rng).unwrap();
            assert!(of_near.iter().all(|i| of_errors.positions.contains(i)) && Arc::ptr_eq(&of_norm, &of_errors));
            let [of_norm, of_errors] = sources(&site, (&[leaf], &weights), false, (n, n as f64), &mut rng).unwrap();
            assert!(of_errors.positions.len() == n && Arc::ptr_eq(&of_norm, &of_errors));
        }
    }
}
