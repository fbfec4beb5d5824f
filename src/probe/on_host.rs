//! A tree with its lists in the memory of the host, of which several ranks may have parts.

use super::classes::{BOXES_OF_A_TASK, Classes, sums};
use super::corners::Weights;
use super::draw::{Span, exact_sum, totals, units};
use super::kind::{Kind, Thresholds};
use super::sampled::{ALONE, End, HALF_CORNER_POWER, Kinds, Request, Row, Sampled, corner_square};
use super::sources::Chances;
use crate::variant::Truncation;
use fmm_dist::{Placed, World};
use fmm_traits::tree::{NONE, Tree};
use fmm_traits::{Error, Hierarchy, Lists};
use fmm_tree::{DISTANCES, Leaf};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Access to a tree and its lists on the host.
pub(crate) struct OnHost<'a, H> {
    tree: &'a H,
    lists: &'a Lists,
    /// The opening angle θ of a treecode, whatever its expansion: one sample serves all expansions.
    theta: Option<f64>,
    /// The part of this rank, if several ranks share the points. Sources of the tree are then those that the rank owns.
    placed: Option<&'a Placed>,
}

impl<'a, H: Hierarchy> OnHost<'a, H> {
    /// The tree of all points. `theta` is the opening angle of a treecode.
    pub fn new(tree: &'a H, lists: &'a Lists, theta: Option<f64>) -> Self {
        OnHost { tree, lists, theta, placed: None }
    }

    /// The level of a box.
    fn level_of(&self, b: usize) -> usize {
        (0..self.tree.levels()).find(|&level| self.tree.level(level).contains(&b)).unwrap_or_default()
    }

    /// The leaves that `has` chooses, by number.
    fn leaves(&self, has: impl Fn(usize) -> bool + Sync) -> Vec<usize> {
        let boxes = (0..self.tree.boxes()).into_par_iter().with_min_len(BOXES_OF_A_TASK);
        boxes.filter(|&b| self.tree.is_leaf(b) && has(b)).collect()
    }

    /// A leaf without what depends on weights and chosen leaves.
    fn leaf(&self, b: usize) -> Leaf {
        let (tree, cube) = (self.tree, self.tree.cube(b, self.level_of(b)));
        let (sources, targets) = (tree.sources_of(b), tree.targets_of(b));
        Leaf { number: b as u32, cube, sources, targets, corners: 0.0, factor: 1.0, near: false, close: false }
    }

    fn is_target(&self, b: usize) -> bool {
        self.tree.is_leaf(b) && !self.tree.targets_of(b).is_empty()
    }

    fn is_source(&self, b: usize) -> bool {
        self.tree.is_leaf(b) && !self.tree.sources_of(b).is_empty()
    }

    /// Some boxes and all boxes above them.
    fn with_ancestors(&self, boxes: &[u32]) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for &b in boxes {
            let mut above = b;
            while above != NONE && found.insert(above) {
                above = self.tree.parent(above as usize);
            }
        }
        found
    }

    /// For each box, whether it or a box above it is one of `boxes`, or of the boxes that other ranks ask for.
    fn in_or_below(&self, boxes: Vec<u32>) -> Result<Vec<bool>, Error> {
        let boxes = match self.placed {
            Some(placed) => placed.named(&boxes)?,
            None => boxes,
        };
        let tree = self.tree;
        let mut found = vec![false; tree.boxes()];
        boxes.iter().for_each(|&b| found[b as usize] = true);
        for level in 0..tree.levels() {
            let boxes = tree.level(level);
            let (above, here) = found.split_at_mut(boxes.start);
            let here = here[..boxes.len()].par_iter_mut().enumerate().with_min_len(BOXES_OF_A_TASK);
            here.for_each(|(k, found)| {
                let parent = tree.parent(boxes.start + k);
                *found = *found || parent != NONE && above[parent as usize];
            });
        }
        Ok(found)
    }
}

impl<'a> OnHost<'a, Tree> {
    /// The tree of one of several ranks.
    pub fn of_rank(placed: &'a Placed, lists: &'a Lists, theta: Option<f64>) -> Self {
        OnHost { tree: placed.tree(), lists, theta, placed: Some(placed) }
    }
}

/// The boxes that are near or close to some leaves.
pub(crate) struct NearAndClose {
    near: Vec<bool>,
    close: Vec<bool>,
}

/// Leaves in classes; the first sum of a class is its length. `leaf` describes a box.
struct Leaves<F, G, const K: usize> {
    classes: Classes<F, K>,
    leaf: G,
}

impl<F, G, const K: usize> Row for Leaves<F, G, K>
where
    F: Fn(usize) -> Option<(u64, [u128; K])> + Sync,
    G: Fn(usize) -> Leaf,
{
    fn lengths(&self) -> BTreeMap<u64, Span> {
        self.classes.all.iter().map(|(class, sums)| (*class, sums[0])).collect()
    }
    fn at(&self, rows: &[Request]) -> Result<Vec<Vec<(usize, Leaf)>>, Error> {
        let drawn = |Request { classes, places }: &Request| self.classes.at(classes, places);
        Ok(rows.iter().map(|row| drawn(row).into_iter().map(|(k, b)| (k, (self.leaf)(b))).collect()).collect())
    }
}

/// Leaves with targets. The further sums of a kind are its targets and its leaves.
impl<F, G> Kinds for Leaves<F, G, 3>
where
    F: Fn(usize) -> Option<(u64, [u128; 3])> + Sync,
    G: Fn(usize) -> Leaf,
{
    fn counts(&self) -> BTreeMap<u64, [usize; 2]> {
        let counts = |[_, counts @ ..]: &[Span; 3]| counts.map(|count| count.all as usize);
        self.classes.all.iter().map(|(class, sums)| (*class, counts(sums))).collect()
    }
    fn leaves(&self) -> Result<Vec<(u64, Leaf)>, Error> {
        Ok(self.classes.members().map(|(class, b)| (class, (self.leaf)(b))).collect())
    }
}

impl<H: Hierarchy> Sampled for OnHost<'_, H> {
    type Numbers = Vec<f64>;
    type NearAndClose = NearAndClose;

    fn world(&self) -> &World {
        self.placed.map_or(&ALONE, |placed| placed.world())
    }

    fn count(&self, of: End) -> usize {
        of.range(self.tree, 0).len()
    }

    fn same_points(&self) -> bool {
        self.tree.same_points()
    }

    fn root_side(&self) -> f64 {
        self.tree.cube(0, 0).side
    }

    fn corner_sums(&self, of: End) -> Result<(Vec<f64>, Option<f64>), Error> {
        let sums = corner_sums(self.tree, of);
        let all = exact_sum(self.world(), sums.len(), |b| sums[b])?;
        Ok((sums, all))
    }

    fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error> {
        let (tree, world) = (self.tree, self.world());
        let share = |target, source| Truncation::Variable.of_m2p(self.theta, target, source);
        let [count] = totals(world, [tree.targets_of(0).len()])?;
        let mut parts = Vec::new();
        for squares in fmm_tree::far_squares(tree, self.lists, weights, half_power, share) {
            let of_leaf = |b: usize| tree.targets_of(b).len() as f64 * squares[b];
            let mean = exact_sum(world, squares.len(), of_leaf)?.map(|sum| sum / count as f64);
            parts.extend(mean.filter(|mean| mean.is_normal()).map(|mean| (squares, mean)));
        }
        let share = 0.5 / parts.len() as f64;
        let of_box = |b: usize| 0.5 + parts.iter().map(|(squares, mean)| share * squares[b] / mean).sum::<f64>();
        let boxes = (0..tree.boxes()).into_par_iter().with_min_len(BOXES_OF_A_TASK);
        Ok((!parts.is_empty()).then(|| boxes.map(of_box).collect()))
    }

    fn by_kind<'a>(
        &'a self,
        weights: &'a Weights<Vec<f64>>,
        factors: Option<&'a Vec<f64>>,
        targets: usize,
    ) -> Result<Box<dyn Kinds + 'a>, Error> {
        let (tree, incoming) = (self.tree, fmm_tree::incoming(self.tree, self.lists));
        let edges = |b: usize| self.is_target(b).then(|| (u64::from(incoming[b].edges()), [1]));
        let by_edges = sums(self.world(), tree.boxes(), edges)?;
        let count = by_edges.values().map(|[leaves]| leaves.all as usize).sum::<usize>();
        let mut left = count.saturating_sub(1) / 50;
        let long = by_edges.iter().rev().find(|(_, [leaves])| {
            let here = left < leaves.all as usize;
            left = left.saturating_sub(leaves.all as usize);
            here
        });
        let thresholds =
            Thresholds { targets: targets / count.max(1), edges: long.map_or(0, |(&edges, _)| edges as u32) };
        let factor = move |b: usize| factors.map_or(1.0, |factors| factors[b]);
        let of = move |b: usize| {
            let counts = [tree.sources_of(b).len(), tree.targets_of(b).len()];
            let kind = |b| Kind::of(self.level_of(b), incoming[b], counts, &thresholds).code();
            let weight = |b| factor(b) * weights.of_leaf(counts[1], weights.sums[b]);
            self.is_target(b).then(|| (kind(b), [units(weight(b)), counts[1] as u128, 1]))
        };
        let leaf = move |b: usize| Leaf { factor: factor(b), ..self.leaf(b) };
        Ok(Box::new(Leaves { classes: Classes::new(self.world(), tree.boxes(), of)?, leaf }))
    }

    fn near_and_close(&self, leaves: &[u32]) -> Result<NearAndClose, Error> {
        let l = self.lists;
        let near = self.with_ancestors(leaves).into_iter().flat_map(|b| l.p2p.row(b as usize)).copied();
        let far = |&b: &u32| [&l.m2l, &l.m2p, &l.p2l].into_iter().flat_map(move |e| e.row(b as usize));
        let (near, close) = (near.collect(), leaves.iter().flat_map(far).copied().collect());
        Ok(NearAndClose { near: self.in_or_below(near)?, close: self.in_or_below(close)? })
    }

    fn weights_of_sources(
        &self,
        weights: &Weights<Vec<f64>>,
        near_and_close: &NearAndClose,
    ) -> Result<[f64; 2], Error> {
        let in_units = |b: usize| {
            let weight = units(weights.of_leaf(self.tree.sources_of(b).len(), weights.sums[b]));
            (0, [weight, if near_and_close.close[b] { weight } else { 0 }])
        };
        let sums = sums(self.world(), self.tree.boxes(), |b| self.is_source(b).then(|| in_units(b)))?;
        Ok(sums.get(&0).map_or([0.0; 2], |sums| sums.map(Span::sum)))
    }

    fn by_chance<'a>(
        &'a self,
        weights: &'a Weights<Vec<f64>>,
        near_and_close: &'a NearAndClose,
        chances: &'a Chances,
    ) -> Result<Box<dyn Row + 'a>, Error> {
        // By level, so that draws do not depend on the number of ranks.
        let of = move |b: usize| {
            let (sources, near) = (self.tree.sources_of(b).len(), near_and_close.near[b]);
            let weight = |b| weights.of_leaf(sources, weights.sums[b]);
            let chance = |b: usize| chances.of(weight(b), sources, near_and_close.close[b]).0;
            (self.is_source(b) && !chances.takes(near)).then(|| (self.level_of(b) as u64, [units(chance(b))]))
        };
        let (near, close) = (&near_and_close.near, &near_and_close.close);
        let leaf = move |b: usize| Leaf { corners: weights.sums[b], near: near[b], close: close[b], ..self.leaf(b) };
        Ok(Box::new(Leaves { classes: Classes::new(self.world(), self.tree.boxes(), of)?, leaf }))
    }

    fn leaves_with_sources(&self, near_and_close: &NearAndClose, all: bool) -> Result<Vec<Leaf>, Error> {
        let leaves = self.leaves(|b| self.is_source(b) && (all || near_and_close.near[b]));
        let leaf = |b: usize| Leaf { near: near_and_close.near[b], close: near_and_close.close[b], ..self.leaf(b) };
        Ok(leaves.into_iter().map(leaf).collect())
    }

    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        Ok(positions.iter().map(|&i| of.point(self.tree, i as usize)).collect())
    }

    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        let order = self.tree.source_order();
        Ok(positions.iter().map(|&i| order[i as usize]).collect())
    }
}

/// The sums of [`Sampled::corner_sums`] of a tree in the memory of the host.
pub(crate) fn corner_sums<H: Hierarchy>(tree: &H, of: End) -> Vec<f64> {
    let of_box = |(b, level): (usize, usize)| {
        let cube = tree.cube(b, level);
        let points = if tree.is_leaf(b) { of.range(tree, b) } else { 0..0 };
        points.map(|at| corner_square(of.point(tree, at), &cube).powi(HALF_CORNER_POWER as i32)).sum()
    };
    let levels = 0..tree.levels();
    let boxes: Vec<(usize, usize)> = levels.flat_map(|l| tree.level(l).map(move |b| (b, l))).collect();
    boxes.into_par_iter().map(of_box).collect()
}
