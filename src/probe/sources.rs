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
//! The strengths of a source make up for its probability:
//!
//! - Normal strengths are multiplied by π^−½. The mean squares of the error and of the sum are then equal to the
//!   mean squares for all sources, because both are sums of squares over independent strengths.
//! - Strengths uniform in (0, 1) are multiplied by 1/π. The mean of the sum is then that of all sources. The random
//!   choice of sources increases both mean squares: that of the error, and a little that of the sum.

use super::sampled::Sampled;
use crate::rng::Rng;
use fmm_traits::Error;
use fmm_traits::tree::NONE;
use rayon::prelude::*;

/// Seed of all samples. Plans for the same points and request measure the same errors.
pub(super) const SEED: u64 = 0x0050_524F_4245;
/// Approximate number of drawn sources. With half as many, bounds at high orders scatter by some tens of per cent more.
pub(super) const SOURCES: f64 = 32_000.0;
/// A leaf with more sources than this multiple of the mean gives a random part of its sources.
const LARGE_LEAF: f64 = 8.0;

/// Drawn sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sources {
    /// Positions, ascending.
    pub positions: Vec<u32>,
    /// For each source, the probability with which the sample takes it.
    pub probability: Vec<f64>,
}

impl Sources {
    /// Sets of strengths, `components` numbers per source: the first set is uniform in (0, 1) and divided by the
    /// probability, the others are `normal_sets` sets of [`normal`](Self::normal) strengths.
    pub fn strengths(&self, normal_sets: usize, components: usize) -> Vec<Vec<f64>> {
        let mut rng = Rng::new(SEED ^ 1);
        let mut uniform = Vec::with_capacity(self.positions.len() * components);
        for &probability in &self.probability {
            uniform.extend((0..components).map(|_| rng.uniform() / probability));
        }
        let mut sets = self.normal(normal_sets, components);
        sets.insert(0, uniform);
        sets
    }

    /// Sets of normal strengths (drawn by [`Rng::binomial`], which is fast and close enough: bounds rest on second and
    /// fourth moments), `components` numbers per source, divided by the root of the probability.
    pub fn normal(&self, sets: usize, components: usize) -> Vec<Vec<f64>> {
        let of_set = |set: usize| {
            let mut rng = Rng::new(SEED ^ (2 + set as u64));
            let factors = self.probability.iter().flat_map(|p| std::iter::repeat_n(1.0 / p.sqrt(), components));
            factors.map(|factor| factor * rng.binomial()).collect()
        };
        (0..sets).into_par_iter().map(of_set).collect()
    }

    /// Appends the sources at some positions, each taken with a probability.
    fn push(&mut self, positions: impl ExactSizeIterator<Item = u32>, probability: f64) {
        self.probability.resize(self.probability.len() + positions.len(), probability);
        self.positions.extend(positions);
    }
}

/// Draws about `most` sources, or takes all sources if there are fewer. Returns the sources that give the norm, and
/// those that give the errors. `sampled` are the sampled leaves. If `near_errs`, all near sources give errors.
pub(super) fn sources(
    site: &dyn Sampled,
    sampled: &[u32],
    near_errs: bool,
    most: f64,
    rng: &mut Rng,
) -> Result<[Sources; 2], Error> {
    let tree = site.boxes();
    let mut leaves: Vec<usize> =
        (0..tree.boxes()).filter(|&b| tree.is_leaf(b) && !tree.sources_of(b).is_empty()).collect();
    leaves.sort_unstable_by_key(|&b| tree.sources_of(b).start);
    let n = leaves.iter().map(|&b| tree.sources_of(b).len()).sum::<usize>() as f64;
    let (mean, part) = (n / leaves.len().max(1) as f64, most / n);
    let near = near_leaves(site, sampled)?;
    let (mut sum, mut next) = (0.0, rng.uniform());
    let (mut of_norm, mut of_errors) = (Sources::default(), Sources::default());
    for b in leaves {
        let range = tree.sources_of(b);
        let whole = || range.clone().map(|i| i as u32);
        if part >= 1.0 || near[b] && near_errs {
            of_norm.push(whole(), 1.0);
            of_errors.push(whole(), 1.0);
            continue;
        }
        // Systematic sampling. A leaf with many sources is more likely to be drawn.
        let chance = (part * (range.len() as f64 / mean).max(1.0)).min(1.0);
        sum += chance;
        let taken = sum > next;
        next += f64::from(u8::from(taken));
        if near[b] {
            of_norm.push(whole(), 1.0);
        }
        if taken {
            let picked = rng.sample(range.len(), (LARGE_LEAF * mean).ceil() as usize);
            let chance = chance * picked.len() as f64 / range.len() as f64;
            let positions = || picked.iter().map(|&i| (range.start + i) as u32);
            of_errors.push(positions(), chance);
            if !near[b] {
                of_norm.push(positions(), chance);
            }
        }
    }
    Ok([of_norm, of_errors])
}

/// For each box, whether it or a box above it is in the P2P row of a sampled leaf or of a box above that.
fn near_leaves(site: &dyn Sampled, sampled: &[u32]) -> Result<Vec<bool>, Error> {
    let tree = site.boxes();
    let mut reached = vec![false; tree.boxes()];
    for &b in sampled {
        let mut above = b;
        while above != NONE && !reached[above as usize] {
            reached[above as usize] = true;
            above = tree.parent(above as usize);
        }
    }
    let reached: Vec<u32> = (0..tree.boxes() as u32).filter(|&b| reached[b as usize]).collect();
    let mut near = vec![false; tree.boxes()];
    site.near_rows(&reached)?.iter().for_each(|&s| near[s as usize] = true);
    // A row may name a box with children.
    for b in 1..tree.boxes() {
        near[b] |= near[tree.parent(b) as usize];
    }
    Ok(near)
}

#[cfg(test)]
mod tests {
    use super::super::sampled::OnHost;
    use super::*;
    use fmm_traits::Hierarchy;
    use fmm_tree::{BuildOptions, ListOptions};
    use std::collections::BTreeSet;

    /// A part of 3000 sources in leaves of unequal numbers, drawn many times.
    #[test]
    fn a_source_is_drawn_as_often_as_its_probability_says() {
        let mut rng = Rng::new(7);
        let n = 3000;
        // Density grows towards one corner.
        let xyz: Vec<f64> = (0..3 * n).map(|_| rng.uniform().powi(3)).collect();
        let tree = fmm_tree::build(&xyz, None, &BuildOptions { occupancy: 8.0, ..BuildOptions::default() }).unwrap();
        let lists = fmm_tree::uvwx(&tree, &ListOptions::default()).unwrap();
        let site = OnHost { tree: &tree, lists: &lists };
        let leaf = (0..tree.boxes()).find(|&b| tree.is_leaf(b) && !tree.targets_of(b).is_empty()).unwrap();
        let of_leaf = tree.sources_of(leaf).map(|i| i as u32);
        let near = near_leaves(&site, &[leaf as u32]).unwrap();
        let mut expected = BTreeSet::new();
        for b in (0..tree.boxes()).filter(|&b| tree.is_leaf(b) && near[b]) {
            expected.extend(tree.sources_of(b).map(|i| i as u32));
        }
        assert!(of_leaf.clone().all(|i| expected.contains(&i)) && expected.len() < n / 2, "{}", expected.len());

        let draws = 4000;
        let (mut taken, mut probability) = (vec![0u32; n], vec![0.0; n]);
        let mut count = 0.0;
        for _ in 0..draws {
            let [of_norm, of_errors] = sources(&site, &[leaf as u32], false, 200.0, &mut rng).unwrap();
            for s in [&of_norm, &of_errors] {
                assert!(s.positions.is_sorted() && s.positions.len() == s.probability.len());
            }
            let whole: BTreeSet<u32> =
                of_norm.positions.iter().zip(&of_norm.probability).filter(|p| *p.1 == 1.0).map(|p| *p.0).collect();
            assert!(expected.is_subset(&whole));
            let far = of_errors.positions.iter().filter(|i| !expected.contains(i));
            assert!(far.eq(of_norm.positions.iter().filter(|i| !expected.contains(i))));
            for (&i, &p) in of_errors.positions.iter().zip(&of_errors.probability) {
                taken[i as usize] += 1;
                assert!(probability[i as usize] == 0.0 || probability[i as usize] == p);
                probability[i as usize] = p;
            }
            count += of_errors.positions.len() as f64 / draws as f64;
        }
        assert!((100.0..400.0).contains(&count), "{count}");
        for (i, (&taken, &p)) in taken.iter().zip(&probability).enumerate() {
            let (mean, deviation) = (p * draws as f64, (p * (1.0 - p) * draws as f64).sqrt());
            assert!(p > 0.0 && (taken as f64 - mean).abs() < 5.5 * deviation, "source {i}: {taken} of {mean}");
        }

        // Near pairs that err, and fewer sources than asked for.
        let [of_norm, of_errors] = sources(&site, &[leaf as u32], true, 200.0, &mut rng).unwrap();
        assert!(expected.iter().all(|i| of_errors.positions.contains(i)) && of_norm == of_errors);
        let [of_norm, of_errors] = sources(&site, &[leaf as u32], false, n as f64, &mut rng).unwrap();
        assert!(of_errors.positions.len() == n && of_norm == of_errors);
    }
}
