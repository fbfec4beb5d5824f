//! Sums over the points of all ranks that do not depend on how many ranks there are, and places for draws.

use super::classes::BOXES_OF_A_TASK;
use fmm_dist::World;
use fmm_traits::Error;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Units of the weight 1. Sums of 2⁴⁰ weights of 2⁴⁰ fit the numbers in which they are counted.
pub(super) const UNITS: u128 = 1 << 40;

/// A weight in units, at most 2⁹⁵ of them, so that no sum overflows; what is not a number counts as 0. (Most weights fit in
/// 64 bits, for which a processor has an instruction. A tree may have a million leaves.)
pub(super) fn units(weight: f64) -> u128 {
    let units = weight * UNITS as f64;
    if units < (1u64 << 63) as f64 { u128::from(units as u64) } else { (units as u128).min(1 << 95) }
}

/// A sum over all ranks: of weights in units, or a count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// The part of lower ranks.
    pub before: u128,
    /// The part of all ranks.
    pub all: u128,
}

impl Span {
    /// The spans of K sums of each class. `mine` are those of this rank. All ranks call it together.
    pub(super) fn by_class<const K: usize>(
        world: &World,
        mine: &BTreeMap<u64, [u128; K]>,
    ) -> Result<BTreeMap<u64, [Span; K]>, Error> {
        // Each class, then the sums of its row in halves.
        let halves = |sum: &u128| [*sum as u64, (*sum >> 64) as u64];
        let row = |(class, sums): (&u64, &[u128; K])| {
            [*class].into_iter().chain(sums.iter().flat_map(halves).collect::<Vec<_>>())
        };
        let rows: Vec<u64> = mine.iter().flat_map(row).collect();
        let mut spans: BTreeMap<u64, [Span; K]> = BTreeMap::new();
        for (rank, theirs) in world.all_gather(rows)?.into_iter().enumerate() {
            for row in theirs.chunks_exact(1 + 2 * K) {
                let sums = row[1..].as_chunks().0.iter().map(|[low, high]| u128::from(*low) | u128::from(*high) << 64);
                let of_class = spans.entry(row[0]).or_insert([Span::default(); K]);
                for (span, sum) in of_class.iter_mut().zip(sums) {
                    span.before += if rank < world.rank() { sum } else { 0 };
                    span.all += sum;
                }
            }
        }
        Ok(spans)
    }

    /// The span of a sum, which is `mine` on this rank. All ranks call it together.
    pub fn of(world: &World, mine: u128) -> Result<Span, Error> {
        Ok(Span::by_class(world, &BTreeMap::from([(0, [mine])]))?[&0][0])
    }

    /// The sum of weights in units.
    pub fn sum(self) -> f64 {
        self.all as f64 / UNITS as f64
    }
}

/// The places of `count` draws in a row of weights with the sum `all`, at equal distances from `start` in 0..1 on
/// (systematic sampling). The item at a place is drawn; an item of large weight may be drawn several times.
pub(super) fn places(all: u128, count: usize, start: f64) -> Vec<u128> {
    let first = (start * all as f64) as u128;
    (0..count).map(|draw| (draw as u128 * all + first) / count as u128).collect()
}

/// Draws `count` points of a leaf with probabilities proportional to their weights, at [`places`]: indices, ascending.
pub(super) fn drawn_points(weights: &[f64], count: usize, start: f64) -> Vec<usize> {
    let ends: Vec<u128> = weights
        .iter()
        .scan(0, |sum, &weight| {
            *sum += units(weight);
            Some(*sum)
        })
        .collect();
    let all = ends.last().copied().unwrap_or(0);
    let point = |place: u128| ends.partition_point(|&end| end <= place);
    places(all, count, start).into_iter().map(point).filter(|&point| point < weights.len()).collect()
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
    let sum = Span::of(world, mine)?.sum() * largest;
    Ok(Some(sum).filter(|sum| *sum > 0.0 && sum.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_dist::threads;

    /// Each point is drawn as often as its weight says.
    #[test]
    fn points_are_drawn_by_weight() {
        let weights: Vec<f64> = (0..1000).map(|i| 0.5 + (0.1 * f64::from(i)).sin().powi(12) * 9.0).collect();
        let total = weights.iter().sum::<f64>();
        for (count, start) in [(1, 0.3), (7, 0.001), (500, 0.5), (4000, 0.999)] {
            let drawn = drawn_points(&weights, count, start);
            assert!(drawn.len() == count && drawn.is_sorted());
            for (point, weight) in weights.iter().enumerate() {
                let expected = weight / total * count as f64;
                let found = drawn.iter().filter(|drawn| **drawn == point).count() as f64;
                assert!((found - expected).abs() < 1.0 + 1e-6, "point {point}: {found} of {expected}");
            }
        }
        assert!(drawn_points(&[0.0; 3], 2, 0.5).is_empty() && drawn_points(&[], 2, 0.5).is_empty());
    }

    /// The sum over several ranks has the bits of that of one rank.
    #[test]
    fn a_sum_does_not_depend_on_the_number_of_ranks() {
        let terms: Vec<f64> = (0..1000).map(|i| (0.1 * f64::from(i)).sin().powi(12) * 1e-200).collect();
        let sum = |ranks: usize| {
            let of_rank = |world: World| {
                let first = terms.len() * world.rank() / ranks;
                let mine = &terms[first..terms.len() * (world.rank() + 1) / ranks];
                exact_sum(&world, mine.len(), |k| mine[k]).unwrap().unwrap()
            };
            threads(ranks, of_rank).into_iter().map(Result::unwrap).collect::<Vec<f64>>()
        };
        let expected = terms.iter().sum::<f64>();
        assert!((sum(1)[0] - expected).abs() < 1e-9 * expected);
        for ranks in [2, 3, 8] {
            assert!(sum(ranks).iter().all(|found| *found == sum(1)[0]), "{ranks} ranks");
        }
    }
}
