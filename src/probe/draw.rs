//! Sums and draws over the points of all ranks.
//!
//! A sample must not depend on how many ranks share the points. Sums of floating-point numbers depend on the order of
//! their terms, so weights are counted in [`UNITS`], whole numbers whose sums are exact. Ranks own intervals of tree
//! order. So the place of a weight among all weights is its place on its rank, plus what lower ranks have.

use super::sampled::BOXES_OF_A_TASK;
use fmm_dist::World;
use fmm_traits::Error;
use rayon::prelude::*;

/// Units of the weight 1. Sums of 2⁴⁰ weights of 2⁴⁰ fit the numbers in which they are counted.
pub(super) const UNITS: u128 = 1 << 40;

/// A weight in units; what is not a number counts as 0. (Most weights fit in 64 bits, for which a processor has an
/// instruction. A tree may have a million leaves.)
pub(super) fn units(weight: f64) -> u128 {
    let units = weight * UNITS as f64;
    if units < (1u64 << 63) as f64 { u128::from(units as u64) } else { units as u128 }
}

/// The units of some weights in a row of weights over all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// Units on lower ranks.
    pub before: u128,
    /// Units on all ranks.
    pub all: u128,
}

impl Span {
    /// The spans of several sums, each of which is `mine` on this rank. All ranks call it together.
    pub fn of(world: &World, mine: &[u128]) -> Result<Vec<Span>, Error> {
        let halves = |x: &u128| [*x as u64, (*x >> 64) as u64];
        let whole = |[low, high]: [u64; 2]| u128::from(low) | u128::from(high) << 64;
        let mut spans = vec![Span::default(); mine.len()];
        for (rank, theirs) in world.all_gather(mine.iter().map(halves).collect::<Vec<_>>())?.into_iter().enumerate() {
            for (span, sum) in spans.iter_mut().zip(theirs.into_iter().map(whole)) {
                span.before += if rank < world.rank() { sum } else { 0 };
                span.all += sum;
            }
        }
        Ok(spans)
    }

    /// The sum of all weights.
    pub fn sum(self) -> f64 {
        self.all as f64 / UNITS as f64
    }

    /// Draws `count` items of all ranks with probabilities proportional to their weights (systematic sampling from
    /// `start` in 0..1). `weights` are the units of the items of this rank. Returns for each draw of one of them the
    /// item and the number of the draw. An item of large weight may be drawn several times.
    pub fn draw(self, weights: impl Iterator<Item = u128>, count: usize, start: f64) -> Vec<(usize, usize)> {
        let first = (start * self.all as f64) as u128;
        let place = |draw: usize| (draw as u128 * self.all + first) / count.max(1) as u128;
        let mut draw = (0..count).find(|&k| place(k) >= self.before).unwrap_or(count);
        let (mut sum, mut drawn) = (self.before, Vec::with_capacity(count));
        let mut next = place(draw);
        for (item, weight) in weights.enumerate() {
            sum += weight;
            while draw < count && next < sum {
                drawn.push((item, draw));
                draw += 1;
                next = place(draw);
            }
        }
        drawn
    }
}

/// Draws `count` points of a leaf with probabilities proportional to their weights, as [`Span::draw`]: indices,
/// ascending.
pub(super) fn drawn_points(weights: &[f64], count: usize, start: f64) -> Vec<usize> {
    let weights = weights.iter().map(|&weight| units(weight));
    let span = Span { before: 0, all: weights.clone().sum() };
    span.draw(weights, count, start).into_iter().map(|(point, _)| point).collect()
}

/// Sums of `mine` over all ranks. All ranks call it together.
pub(super) fn totals<const N: usize>(world: &World, mine: [usize; N]) -> Result<[usize; N], Error> {
    let mut all = mine.map(|k| k as u64);
    world.reduce(&mut all, |a, b| a + b)?;
    Ok(all.map(|k| k as usize))
}

/// The sum of some terms of all ranks, none of which is negative; `None` if it is 0 or not finite. This rank has the
/// terms `term(0)` to `term(count − 1)`. The units of the sum are parts of its largest term. All ranks call it together.
pub(super) fn exact_sum(world: &World, count: usize, term: impl Fn(usize) -> f64 + Sync) -> Result<Option<f64>, Error> {
    let terms = (0..count).into_par_iter().with_min_len(BOXES_OF_A_TASK).map(&term);
    let largest = terms.clone().map(|x| if x.is_nan() { f64::INFINITY } else { x }).reduce(|| 0.0, f64::max);
    let mut largest = [largest];
    world.reduce(&mut largest, f64::max)?;
    let [largest] = largest;
    let mine = terms.map(|x| units(x / largest)).sum();
    let sum = Span::of(world, &[mine])?[0].sum() * largest;
    Ok(Some(sum).filter(|sum| *sum > 0.0 && sum.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_dist::threads;

    /// Draws of several ranks are those of one rank, and each item is drawn as often as its weight says.
    #[test]
    fn ranks_draw_what_one_rank_draws() {
        let weights: Vec<f64> = (0..1000).map(|i| 0.5 + (0.1 * f64::from(i)).sin().powi(12) * 9.0).collect();
        let draws = |ranks: usize, count: usize, start: f64| -> (Vec<(usize, usize)>, f64) {
            let of_rank = |world: World| {
                let first = weights.len() * world.rank() / ranks;
                let mine = &weights[first..weights.len() * (world.rank() + 1) / ranks];
                let all = || mine.iter().map(|&w| units(w));
                let span = Span::of(&world, &[all().sum()]).unwrap()[0];
                let drawn: Vec<_> = span.draw(all(), count, start).into_iter().map(|(i, k)| (first + i, k)).collect();
                (drawn, exact_sum(&world, mine.len(), |k| mine[k]).unwrap().unwrap())
            };
            let found: Vec<_> = threads(ranks, of_rank).into_iter().map(Result::unwrap).collect();
            (found.iter().flat_map(|f| f.0.clone()).collect(), found[0].1)
        };
        for (count, start) in [(1, 0.3), (7, 0.001), (500, 0.5), (4000, 0.999)] {
            let (one, sum) = draws(1, count, start);
            assert_eq!(one.iter().map(|d| d.1).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            let total = weights.iter().sum::<f64>();
            assert!((sum - total).abs() < 1e-9 * total);
            for (item, weight) in weights.iter().enumerate() {
                let (expected, found) =
                    (weight / total * count as f64, one.iter().filter(|d| d.0 == item).count() as f64);
                assert!((found - expected).abs() < 1.0 + 1e-6, "item {item}: {found} of {expected}");
            }
            for ranks in [2, 3, 8] {
                assert_eq!(draws(ranks, count, start), (one.clone(), sum), "{ranks} ranks");
            }
        }
    }
}
