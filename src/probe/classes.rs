//! Sums over the leaves of each class, and draws of leaves with probabilities proportional to weights.
//!
//! A tree may have a million leaves, and memory that a process touches for the first time costs it more than the
//! arithmetic on it. So leaves are not listed. One pass over all boxes adds up weights by class, chunk by chunk. A draw
//! finds the chunk of a place in the row of all weights, and passes over the boxes of this chunk again.
//!
//! A sample must not depend on how many ranks share the points. Sums of floating-point numbers depend on the order of
//! their terms, so weights are counted in [`UNITS`](super::draw::UNITS), whole numbers whose sums are exact. Ranks own
//! intervals of tree order, and the boxes of a level are in tree order. So if all leaves of a class are of one level,
//! the place of a leaf among those of its class is its place on its rank, plus what lower ranks have.

use super::draw::Span;
use fmm_dist::World;
use fmm_traits::Error;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Smallest number of boxes for a task of a thread.
pub(super) const BOXES_OF_A_TASK: usize = 4096;
/// Boxes of a chunk. A draw passes over one chunk again, and the sums of each chunk are kept.
const CHUNK: usize = 512;

/// K sums for each class.
type Sums<const K: usize> = BTreeMap<u64, [u128; K]>;

/// Adds terms to the sums of a class.
fn add<const K: usize>(mut to: Sums<K>, (class, terms): (u64, [u128; K])) -> Sums<K> {
    let sums = to.entry(class).or_insert([0; K]);
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    to
}

/// Sums over boxes 0 to `boxes` − 1 of this rank and over those of the other ranks, by class. `of` gives the class of a box
/// and its terms; `None` if the box does not count. All ranks call it together.
pub(super) fn sums<const K: usize>(
    world: &World,
    boxes: usize,
    of: impl Fn(usize) -> Option<(u64, [u128; K])> + Sync,
) -> Result<BTreeMap<u64, [Span; K]>, Error> {
    let boxes = (0..boxes).into_par_iter().with_min_len(BOXES_OF_A_TASK);
    let parts = boxes.filter_map(&of).fold(Sums::new, add);
    Span::by_class(world, &parts.reduce(Sums::new, |to, from| from.into_iter().fold(to, add)))
}

/// The sums of [`sums`], from whose classes leaves can be drawn.
pub(super) struct Classes<F, const K: usize> {
    of: F,
    boxes: usize,
    /// The sums over the boxes of each chunk.
    chunks: Vec<Sums<K>>,
    /// The sums over all boxes of all ranks.
    pub all: BTreeMap<u64, [Span; K]>,
}

impl<F: Fn(usize) -> Option<(u64, [u128; K])> + Sync, const K: usize> Classes<F, K> {
    /// As [`sums`]. If the boxes of each class are of one level, draws do not depend on the number of ranks. All ranks call
    /// it together.
    pub fn new(world: &World, boxes: usize, of: F) -> Result<Self, Error> {
        let chunks = (0..boxes.div_ceil(CHUNK)).into_par_iter().with_min_len(BOXES_OF_A_TASK / CHUNK);
        let chunks: Vec<Sums<K>> =
            chunks.map(|chunk| Self::range(boxes, chunk).filter_map(&of).fold(Sums::new(), add)).collect();
        let mine = chunks.iter().flatten().map(|(class, sums)| (*class, *sums)).fold(Sums::new(), add);
        Ok(Classes { all: Span::by_class(world, &mine)?, of, boxes, chunks })
    }

    /// The boxes of a chunk.
    fn range(boxes: usize, chunk: usize) -> Range<usize> {
        CHUNK * chunk..boxes.min(CHUNK * (chunk + 1))
    }

    /// The boxes of this rank that count, with their classes.
    pub fn members(&self) -> impl Iterator<Item = (u64, usize)> {
        (0..self.boxes).filter_map(|b| (self.of)(b).map(|(class, _)| (class, b)))
    }

    /// The boxes at some places of a row. The row has the boxes of `classes`, class by class, each class with the boxes of all
    /// ranks; a box is as long as its first term. The places ascend. Returns for each place that belongs to a box of this
    /// rank the number of the place and the box, in the order of the places.
    pub fn at(&self, classes: &[u64], places: &[u128]) -> Vec<(usize, usize)> {
        // Chunk and class, where the chunk begins in the row, and the numbers of the places in it.
        let mut found: Vec<(usize, u64, u128, Range<usize>)> = Vec::new();
        let mut start = 0;
        for class in classes {
            let Some([span, ..]) = self.all.get(class).map(|spans| &spans[..]) else { continue };
            let mut sum = start + span.before;
            let mut next = places.partition_point(|&place| place < sum);
            for (chunk, sums) in self.chunks.iter().enumerate() {
                let Some(sums) = sums.get(class) else { continue };
                let first = next;
                next += places[first..].partition_point(|&place| place < sum + sums[0]);
                if first < next {
                    found.push((chunk, *class, sum, first..next));
                }
                sum += sums[0];
            }
            start += span.all;
        }
        let in_chunk = |(chunk, class, mut sum, mut numbers): (usize, u64, u128, Range<usize>)| {
            let mut drawn = Vec::with_capacity(numbers.len());
            for b in Self::range(self.boxes, chunk) {
                let Some(terms) = (self.of)(b).filter(|(of, _)| *of == class).map(|(_, terms)| terms) else { continue };
                sum += terms[0];
                while numbers.start < numbers.end && places[numbers.start] < sum {
                    drawn.push((numbers.start, b));
                    numbers.start += 1;
                }
                if numbers.is_empty() {
                    break;
                }
            }
            drawn
        };
        found.into_par_iter().flat_map_iter(in_chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::{places, units};
    use super::*;
    use fmm_dist::threads;

    /// Draws of several ranks are those of one rank, and each leaf is drawn as often as its weight says.
    #[test]
    fn ranks_draw_what_one_rank_draws() {
        const COUNT: usize = 60_000;
        let weights: Vec<f64> = (0..COUNT).map(|i| 0.5 + (0.1 * i as f64).sin().powi(12) * 9.0).collect();
        // Boxes of two classes, and some that are no leaves.
        let class = |i: usize| [Some(3), Some(8), Some(8), None][i / 7 % 4];
        let draws = |ranks: usize, classes: &[u64], count: usize, start: f64| {
            let of_rank = |world: World| {
                let first = COUNT * world.rank() / ranks;
                let mine = COUNT * (world.rank() + 1) / ranks - first;
                let of = |b: usize| class(first + b).map(|class| (class, [units(weights[first + b])]));
                let sums = Classes::new(&world, mine, of).unwrap();
                let all = classes.iter().map(|class| sums.all[class][0].all).sum();
                let drawn = sums.at(classes, &places(all, count, start)).into_iter();
                drawn.map(|(k, b)| (k, first + b)).collect::<Vec<_>>()
            };
            let found = threads(ranks, of_rank).into_iter().flat_map(Result::unwrap);
            let mut found: Vec<(usize, usize)> = found.collect();
            found.sort_unstable();
            found
        };
        for (classes, count, start) in
            [(&[3][..], 1, 0.3), (&[8], 7, 0.001), (&[3, 8], 500, 0.5), (&[8, 3], 150_000, 0.999)]
        {
            let one = draws(1, classes, count, start);
            assert!(one.iter().map(|draw| draw.0).eq(0..count));
            let in_row = |i: usize| class(i).filter(|class| classes.contains(class));
            let total: f64 = (0..COUNT).filter(|&i| in_row(i).is_some()).map(|i| weights[i]).sum();
            let mut drawn = vec![0.0; COUNT];
            one.iter().for_each(|&(_, b)| drawn[b] += 1.0);
            for (b, drawn) in drawn.into_iter().enumerate() {
                let expected = in_row(b).map_or(0.0, |_| weights[b] / total * count as f64);
                assert!((drawn - expected).abs() < 1.0 + 1e-6, "{b}: {drawn} of {expected}");
                assert!(expected > 0.0 || drawn == 0.0, "{b} is no leaf of the row");
            }
            // Class by class, each in the order of boxes.
            let place = |b: usize| (classes.iter().position(|c| Some(*c) == class(b)), b);
            assert!(one.is_sorted_by_key(|&(_, b)| place(b)));
            for ranks in [2, 3, 8] {
                assert_eq!(draws(ranks, classes, count, start), one, "{ranks} ranks");
            }
        }
    }
}
