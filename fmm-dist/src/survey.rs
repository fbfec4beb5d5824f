//! What ranks find out about all points before they share them out: the root cube, and the coarse tree with its counts.
//! None of it depends on who owns which points, so points that are shared out again need no other survey.

use crate::coarse::Coarse;
use crate::world::World;
use fmm_traits::{Error, Tree};
use fmm_tree::{BuildOptions, BuildReport, CAPACITY_STEPS, Part, RootSample};
use rayon::prelude::*;
use std::collections::HashSet;

/// Deepest level of a coarse tree.
const KEY_LEVELS: usize = 21;
/// The most by which the leaf capacity may be raised after the coarse tree was made: twice, by a factor of two each.
const RAISE: usize = 4;
/// Coordinates that a thread looks at, one after the other.
const CHUNK: usize = 3 << 14;

/// Points of a box that a coarse tree does not split, for a tree whose leaf capacity was `given` or chosen.
pub fn coarse_capacity(report: &BuildReport, given: bool) -> usize {
    if given { report.ncrit } else { RAISE * report.first_ncrit }
}

/// What is known of the points of all ranks.
pub(crate) struct Survey {
    /// Keys of the caller's sources on this rank, and of the targets if they are separate.
    pub keys: Vec<Vec<u64>>,
    /// The coarse tree. Its leaves have no owners yet.
    pub coarse: Coarse,
    /// The choices of the tree, the same on all ranks.
    report: BuildReport,
    /// Lower corner and side of the root cube.
    root: ([f64; 3], f64),
    /// The deepest level of a box.
    limit: usize,
    /// Numbers of sources and targets on all ranks.
    totals: [u64; 2],
    /// Whether the leaf capacity is final: the caller gave it, or a tree was made.
    settled: bool,
}

impl Survey {
    /// Looks at `sources` and `targets` (N×3, row-major, finite; `None`: targets are the sources) of this rank. All ranks
    /// call it together.
    ///
    /// # Errors
    /// As [`build`](fmm_tree::build()), and those of other ranks.
    pub fn new(
        world: &World,
        sources: &[f64],
        targets: Option<&[f64]>,
        options: &BuildOptions,
    ) -> Result<Survey, Error> {
        let sets: Vec<&[f64]> = std::iter::once(sources).chain(targets).collect();
        for (set, name) in sets.iter().zip(["sources", "targets"]) {
            let finite = |part: &[f64]| part.iter().fold(true, |all, x| all & x.is_finite());
            if !set.par_chunks(CHUNK).all(finite) {
                let at = set.iter().position(|x| !x.is_finite()).unwrap_or(0);
                return Err(Error::NotFinite { array: name, row: at / 3, column: at % 3, value: set[at] });
            }
        }
        // The upper ends have the opposite sign.
        let signed = |p: &[f64; 3]| [p[0], p[1], p[2], -p[0], -p[1], -p[2]];
        let least = |a: [f64; 6], b: [f64; 6]| std::array::from_fn(|k| a[k].min(b[k]));
        let none = [f64::INFINITY; 6];
        let of = |part: &[f64]| part.as_chunks::<3>().0.iter().map(signed).fold(none, least);
        let mut ends = sets.par_iter().flat_map(|set| set.par_chunks(CHUNK)).map(of).reduce(|| none, least);
        world.reduce(&mut ends, f64::min)?;
        let (low, high) = ([ends[0], ends[1], ends[2]], [-ends[3], -ends[4], -ends[5]]);
        let counts = world.all_gather([sources.len() as u64 / 3, targets.unwrap_or(sources).len() as u64 / 3])?;
        let totals = counts.iter().fold([0, 0], |t, c| [t[0] + c[0], t[1] + c[1]]);
        let more = usize::from(targets.is_some() && totals[1] >= totals[0]);
        let numbers: Vec<usize> = counts.iter().map(|c| c[more] as usize).collect();
        let mut sample = Sample::gather(world, sets[more], &numbers)?;
        let (corner, side, report) = fmm_tree::root_for(totals[more] as usize, &mut sample, low, high, options)?;
        let largest = low.iter().chain(&high).fold(0.0f64, |m, x| m.max(x.abs()));
        let limit = fmm_tree::deepest_level(side, largest, options.min_side);

        let keys: Vec<Vec<u64>> = sets.iter().map(|set| fmm_tree::keys(set, corner, side)).collect();
        let mut sorted = keys.clone();
        sorted.iter_mut().for_each(|keys| keys.par_sort_unstable());
        let settled = options.ncrit.is_some();
        let coarse = Coarse::new(world, &sorted, coarse_capacity(&report, settled), limit.min(KEY_LEVELS))?;
        Ok(Survey { keys, coarse, report, root: (corner, side), limit, totals, settled })
    }

    /// The boxes of the points that this rank owns, `sources` and separate `targets`. All ranks call it together.
    ///
    /// # Errors
    /// [`Error::TooMany`] boxes, and those of other ranks.
    pub fn boxes(&mut self, world: &World, sources: &[f64], targets: Option<&[f64]>) -> Result<Tree, Error> {
        let (coarse, report, (corner, side)) = (&self.coarse, &mut self.report, self.root);
        let inner: HashSet<(usize, [u64; 3])> =
            coarse.boxes.iter().filter(|b| !b.is_leaf()).map(|b| (b.level, b.anchor)).collect();
        let forced = |level: usize, anchor: [u64; 3]| inner.contains(&(level, anchor));
        let mut part = Part::new(sources, targets, corner, side, self.limit);
        let mut tree = part.boxes(report.ncrit, &forced)?;
        for _ in 0..if self.settled { 0 } else { CAPACITY_STEPS } {
            let mut pairs = Part::pairs(&tree);
            world.reduce(&mut pairs, |a, b| a + b)?;
            let seen = |set: usize| pairs[set] / (self.totals[set] as f64).max(1.0);
            // A single box is kept.
            let single = coarse.boxes.len() == 1 && {
                let mut boxes = [tree.len() as u64];
                world.reduce(&mut boxes, u64::max)?;
                boxes[0] == 1
            };
            if single || !report.raise_capacity(seen(0).max(seen(1))) {
                break;
            }
            tree = part.boxes(report.ncrit, &forced)?;
        }
        self.settled = true;
        let (tree, groups) = part.finish(tree, report.ncrit, &forced)?;
        let mut coincident = [[groups.0 as u64, groups.1 as u64]];
        world.reduce(&mut coincident, |a, b| [a[0] + b[0], a[1].max(b[1])])?;
        (report.coincident_groups, report.largest_coincident) = (coincident[0][0] as usize, coincident[0][1] as usize);
        Ok(tree)
    }

    /// The report of a tree of so many leaves.
    pub fn reported(&self, leaves: usize) -> BuildReport {
        let mut report = self.report.clone();
        report.mean_leaf = self.totals[0].max(self.totals[1]) as f64 / leaves as f64;
        report.warn();
        report
    }
}

/// The sample of all points from which the root cube is chosen, the same as one rank would take.
struct Sample(Vec<[f64; 3]>);

impl Sample {
    fn gather(world: &World, points: &[f64], counts: &[usize]) -> Result<Self, Error> {
        let (n, points) = (counts.iter().sum::<usize>(), points.as_chunks::<3>().0);
        let first: usize = counts[..world.rank()].iter().sum();
        let size = fmm_tree::sample_size(n);
        let here = |i: usize| Some((i as u32, *points.get(fmm_tree::sample_index(i, n).checked_sub(first)?)?));
        let mine = (0..size).filter_map(here).collect::<Vec<_>>();
        let mut all = vec![[0.0; 3]; size];
        for (i, point) in world.all_gather(mine)?.into_iter().flatten() {
            all[i as usize] = point;
        }
        Ok(Sample(all))
    }
}

impl RootSample for Sample {
    fn pairs(&mut self, _: [f64; 3], _: f64) -> Result<Vec<u64>, Error> {
        Ok(Vec::new())
    }
    fn points(&mut self, most: usize) -> Result<Vec<[f64; 3]>, Error> {
        let size = self.0.len();
        if most >= size {
            return Ok(self.0.clone());
        }
        Ok((0..most).map(|i| self.0[fmm_tree::sample_index(i, size)]).collect())
    }
}
