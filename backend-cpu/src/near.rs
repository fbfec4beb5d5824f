//! P2P of every method in space: the near field of each leaf.

use crate::frame::{Fill, Frame, Scratch, add_scaled};
use crate::lanes::{Isa, dispatch};
use crate::pairs::Pair;
use crate::pool::Pool;
use crate::sum::HELD;
use fmm_traits::{Lists, Real, Tree, kernel::MAX_COMPONENTS};

/// Sources per pass: the rows of a tile stay in the first-level cache (with 8 sets of strengths in the second), and f32
/// partial sums short.
const TILE: usize = 1024;

/// The near field of one leaf.
pub struct Near<'a> {
    /// Tree.
    pub tree: &'a Tree,
    /// Its lists, of which P2P is used.
    pub lists: &'a Lists,
    /// In tree order, one set after the other.
    pub strengths: &'a [Vec<f64>],
    /// The leaf.
    pub leaf: usize,
    /// Instruction set.
    pub isa: Isa,
}

impl Near<'_> {
    /// Adds the sums to `out` (values of each set for each target), in precision `T` on the unit box of `frame` with
    /// the parameters `unit`; in f64 with the user's coordinates ([`Frame::plain`], of which `plain` are the
    /// parameters) where the sums of a set are not [`HELD`] by `T` and where it is f64.
    pub fn add<T: Real>(
        &self,
        pairs: (&Pair<T>, &Pair<f64>),
        frame: Frame,
        (unit, plain): (&[T], &[f64]),
        pools: (&Pool<Scratch<T>>, &Pool<Scratch<f64>>),
        out: &mut [f64],
    ) {
        let (values, sets) = (pairs.1.values(), self.strengths.len() / pairs.1.strengths());
        let count = out.len() / sets;
        let mut add = |sums: &[f64], set: usize| {
            add_scaled(&sums[set * count..][..count], &[1.0; MAX_COMPONENTS], values, [set, sets], out);
        };
        let mut rest = pools.1.with(|scratch| std::mem::take(&mut scratch.sets));
        rest.clear();
        rest.extend(0..sets);
        if T::EPSILON > 1e-10 {
            pools.0.with(|scratch| {
                let sums = self.sums(pairs.0, frame, unit, scratch);
                let factors = pairs.0.value_factors(frame.side);
                let small = |row: &[f64]| row.iter().zip(&factors).all(|(x, f)| x.abs() < HELD * f);
                rest.retain(|&set| {
                    let held = sums[set * count..][..count].chunks_exact(values).all(small);
                    if held {
                        add(sums, set);
                    }
                    !held
                });
            });
        }
        pools.1.with(|scratch| {
            if !rest.is_empty() {
                let sums = self.sums(pairs.1, Frame::plain(self.tree), plain, scratch);
                rest.iter().for_each(|&set| add(sums, set));
            }
            scratch.sets = rest;
        });
    }

    /// The sums (sets × targets × values of `pair`), with points taken relative to `frame`, to which `params` belong.
    fn sums<'s, N: Real>(&self, pair: &Pair<N>, frame: Frame, params: &[N], scratch: &'s mut Scratch<N>) -> &'s [f64] {
        let Near { tree, strengths, leaf, isa, .. } = *self;
        let boxes = self.lists.p2p.row(leaf);
        let own = (tree.same_points() && pair.skips_self).then(|| {
            let before = boxes.iter().take_while(|&&b| b as usize != leaf);
            before.map(|&b| tree.sources_of(b as usize).len()).sum()
        });
        let Scratch { sources, targets, sums, totals, .. } = scratch;
        let (pieces, factors) = (pair.pieces, &pair.strength_factors(frame.side)[..pair.strengths()]);
        let ranges = boxes.iter().map(|&b| tree.sources_of(b as usize));
        let points = &tree.sources;
        dispatch(
            isa,
            Fill { points, strengths, factors, attributes: &pair.attributes, frame, ranges, pieces, to: sources },
        );
        let (points, ranges) = (&tree.targets, std::iter::once(tree.targets_of(leaf)));
        dispatch(isa, Fill::targets(points, frame, ranges, pieces, targets));
        let factors = pair.value_factors(frame.side);
        let count = strengths.len() / pair.strengths() * targets.len() * pair.values();
        totals.clear();
        totals.resize(count, 0.0);
        for begin in (0..sources.len()).step_by(TILE) {
            sums.clear();
            sums.resize(count, N::default());
            let range = begin..(begin + TILE).min(sources.len());
            pair.sum(isa, params, targets.targets(0..targets.len()), sources, range, own, sums);
            add_scaled(sums, &factors, pair.values(), [0, 1], totals);
        }
        totals
    }
}
