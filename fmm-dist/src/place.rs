//! Points travel to the ranks that own their boxes.
//!
//! The order of all points is that of one array in pieces: the points of rank 0, then those of rank 1, and so on.
//! Points of one key keep this order, as they do on one rank.

use crate::coarse::{Coarse, boxes_of_leaves, by_points};
use crate::exchange::{self, Strategy};
use crate::local::{Local, Name, Opens};
use crate::world::World;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Incoming, Lists, Round, Tree};
use fmm_tree::{BuildOptions, BuildReport, CAPACITY_STEPS, Part, RootSample};
use rayon::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

/// Deepest level of a coarse tree.
const KEY_LEVELS: usize = 21;
/// The most by which the leaf capacity may be raised after the coarse tree was made: twice, by a factor of two each.
const RAISE: usize = 4;

/// Points of a box that a coarse tree does not split, for a tree whose leaf capacity was `given` or chosen.
pub fn coarse_capacity(report: &BuildReport, given: bool) -> usize {
    if given { report.ncrit } else { RAISE * report.first_ncrit }
}

/// Coordinates that a thread looks at, one after the other.
const CHUNK: usize = 3 << 14;

/// How points are shared out.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// How boxes are split.
    pub options: BuildOptions,
    /// How multipoles of shared boxes are completed.
    pub strategy: Strategy,
    /// Which boxes a target may look into.
    pub opens: Opens<'a>,
    /// Work of the leaves of the coarse tree, which an earlier call for the same points has made
    /// ([`Placed::weigh`]); `None`: by the numbers of points.
    pub weights: Option<&'a [f64]>,
    /// How fast the ranks are, relative to each other: a positive number for each, the same on all ranks. A rank gets
    /// work in proportion.
    pub speeds: &'a [f64],
}

/// How rows travel between the caller's points on this rank and the points that it owns.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// The caller's indices that go to each rank, ascending.
    to: Vec<Vec<u32>>,
    /// Number of points that come from each rank.
    from: Vec<usize>,
    /// For each owned point in tree order, its place among those that came.
    order: Vec<u32>,
}

impl Route {
    /// Rows of the caller, `width` numbers each, to the owners: rows in tree order.
    pub(crate) fn forward(&self, world: &World, rows: &[f64], width: usize) -> Result<Vec<f64>, Error> {
        let came = world.all_to_all(self.to.iter().map(|indices| picked(rows, indices, width)).collect())?.concat();
        Ok(picked(&came, &self.order, width))
    }

    /// Rows in tree order back to the caller.
    pub(crate) fn back(&self, world: &World, rows: &[f64], width: usize, out: &mut [f64]) -> Result<(), Error> {
        let mut sorted = vec![0.0; rows.len()];
        for (row, &k) in rows.chunks_exact(width.max(1)).zip(&self.order) {
            sorted[k as usize * width..][..width].copy_from_slice(row);
        }
        let mut rest = &sorted[..];
        let cut = |&count: &usize| {
            let (part, after) = rest.split_at(count * width);
            rest = after;
            part.to_vec()
        };
        let came = world.all_to_all(self.from.iter().map(cut).collect())?;
        for (indices, rows) in self.to.iter().zip(&came) {
            for (&i, row) in indices.iter().zip(rows.chunks_exact(width.max(1))) {
                out[i as usize * width..][..width].copy_from_slice(row);
            }
        }
        Ok(())
    }

    /// The caller's points that go to each rank, and the points in tree order that come from each rank, in the same
    /// order on both sides. Points in tree order are counted from `first`.
    fn ends(&self, first: usize) -> [Vec<(usize, Vec<u32>)>; 2] {
        let mut places = vec![0; self.order.len()];
        for (t, &k) in self.order.iter().enumerate() {
            places[k as usize] = (first + t) as u32;
        }
        let mut rest = &places[..];
        let cut = |(rank, &count): (usize, &usize)| {
            let (part, after) = rest.split_at(count);
            rest = after;
            (rank, part.to_vec())
        };
        let came: Vec<_> = self.from.iter().enumerate().map(cut).collect();
        let some = |all: Vec<(usize, Vec<u32>)>| all.into_iter().filter(|(_, slots)| !slots.is_empty()).collect();
        [some(self.to.iter().cloned().enumerate().collect()), some(came)]
    }

    /// Number of the caller's points.
    fn given(&self) -> usize {
        self.to.iter().map(Vec::len).sum()
    }
}

/// The rows of `all` with these indices, `width` numbers each.
fn picked(all: &[f64], indices: &[u32], width: usize) -> Vec<f64> {
    let mut rows = vec![0.0; indices.len() * width];
    let to = rows.par_chunks_exact_mut(width.max(1)).with_min_len(1024);
    to.zip(indices).for_each(|(row, &i)| row.copy_from_slice(&all[i as usize * width..][..width]));
    rows
}

/// Rows that go to `sends`, and come from `comes`.
fn round(sends: Vec<(usize, Vec<u32>)>, comes: Vec<(usize, Vec<u32>)>) -> Round {
    let receives = comes.into_iter().map(|(from, slots)| Incoming { from, slots, add: false }).collect();
    Round { sends, receives }
}

/// Points on the ranks that own them, in a locally essential tree.
pub struct Placed {
    pub(crate) world: World,
    pub(crate) local: Local,
    strategy: Strategy,
    routes: Vec<Route>,
    /// The choices of the tree, the same on all ranks.
    pub report: BuildReport,
}

/// A locally essential tree with the points of its ghosts, for given lists.
pub struct Ready {
    world: World,
    routes: Vec<Route>,
    ghosts: Arc<exchange::Ghosts>,
    /// The tree. Its points are numbered in tree order.
    pub tree: Tree,
    /// What an evaluation sends.
    pub traffic: exchange::Traffic,
}

/// Places `sources` and `targets` (N×3, row-major, finite; `None`: targets are the sources) of this rank. All ranks
/// call it together.
///
/// # Errors
/// As [`build`](fmm_tree::build()), and those of other ranks.
pub fn place(world: &World, sources: &[f64], targets: Option<&[f64]>, asked: &Asked) -> Result<Placed, Error> {
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
    let n = totals[more] as usize;
    let (corner, side, mut report) = fmm_tree::root_for(n, &mut sample, low, high, &asked.options)?;
    let largest = low.iter().chain(&high).fold(0.0f64, |m, x| m.max(x.abs()));
    let limit = fmm_tree::deepest_level(side, largest, asked.options.min_side);

    let unsorted: Vec<Vec<u64>> = sets.iter().map(|set| fmm_tree::keys(set, corner, side)).collect();
    let mut keys = unsorted.clone();
    keys.iter_mut().for_each(|keys| keys.par_sort_unstable());
    let given = asked.options.ncrit.is_some();
    let capacity = coarse_capacity(&report, given);
    let mut coarse = Coarse::new(world, &keys, capacity, limit.min(KEY_LEVELS))?;
    drop(keys);
    match asked.weights {
        Some(weights) => coarse.share(weights, asked.speeds),
        None => {
            let points = |&b: &u32| [coarse.boxes[b as usize].sources, coarse.boxes[b as usize].targets];
            let weights: Vec<f64> =
                coarse.leaves.iter().map(points).map(|[s, t]| by_points(s as usize, t as usize)).collect();
            coarse.share(&weights, asked.speeds);
        }
    }

    let mut routes = Vec::new();
    let mut owned = Vec::new();
    for (set, keys) in sets.iter().zip(&unsorted) {
        let to = coarse.shares(keys, world.size());
        let came = world.all_to_all(to.iter().map(|indices| picked(set, indices, 3)).collect())?;
        routes.push(Route { to, from: came.iter().map(|points| points.len() / 3).collect(), order: Vec::new() });
        owned.push(came.concat());
    }

    let inner: HashSet<(usize, [u64; 3])> =
        coarse.boxes.iter().filter(|b| !b.is_leaf()).map(|b| (b.level, b.anchor)).collect();
    let forced = |level: usize, anchor: [u64; 3]| inner.contains(&(level, anchor));
    let apart = owned.get(1).map(|t| &t[..]);
    let mut part = Part::new(&owned[0], apart, corner, side, limit);
    let mut tree = part.boxes(report.ncrit, &forced)?;
    for _ in 0..CAPACITY_STEPS {
        let mut pairs = Part::pairs(&tree);
        world.reduce(&mut pairs, |a, b| a + b)?;
        let seen = |set: usize| pairs[set] / (totals[set] as f64).max(1.0);
        // A single box is kept.
        let single = coarse.boxes.len() == 1 && {
            let mut boxes = [tree.len() as u64];
            world.reduce(&mut boxes, u64::max)?;
            boxes[0] == 1
        };
        if given || single || !report.raise_capacity(seen(0).max(seen(1))) {
            break;
        }
        tree = part.boxes(report.ncrit, &forced)?;
    }
    let (tree, groups) = part.finish(tree, report.ncrit, &forced)?;
    let mut coincident = [[groups.0 as u64, groups.1 as u64]];
    world.reduce(&mut coincident, |a, b| [a[0] + b[0], a[1].max(b[1])])?;
    (report.coincident_groups, report.largest_coincident) = (coincident[0][0] as usize, coincident[0][1] as usize);
    routes[0].order = tree.sources.order.clone();
    if let Some(route) = routes.get_mut(1) {
        route.order = tree.targets.order.clone();
    }

    let local = Local::new(world, tree, coarse, asked.strategy, &asked.opens)?;
    report.mean_leaf = n as f64 / local.leaves as f64;
    report.warn();
    Ok(Placed { world: world.clone(), local, strategy: asked.strategy, routes, report })
}

impl Placed {
    /// The ranks.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The tree, without the points of ghosts.
    pub fn tree(&self) -> &Tree {
        &self.local.tree
    }

    /// Number of leaves of the tree of all ranks.
    pub fn leaves(&self) -> usize {
        self.local.leaves
    }

    /// The work of each leaf of the coarse tree, in Morton order, and the rank that owns it. `work` gets the boxes of
    /// the tree in a leaf of this rank. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn weigh(&self, work: impl Fn(&[u32]) -> f64) -> Result<(Vec<f64>, Vec<u32>), Error> {
        let Local { tree, coarse, names, .. } = &self.local;
        let mut leaf_of_coarse = vec![NONE; coarse.boxes.len()];
        coarse.leaves.iter().enumerate().for_each(|(k, &b)| leaf_of_coarse[b as usize] = k as u32);
        let owner = |k: usize| coarse.boxes[coarse.leaves[k] as usize].owner;
        let in_coarse = |name: &Name| name.in_coarse().map_or(NONE, |c| leaf_of_coarse[c]);
        let mut leaf_of: Vec<u32> = names.iter().map(in_coarse).collect();
        let boxes = boxes_of_leaves(&tree.parent, &mut leaf_of, coarse.leaves.len());
        let me = self.world.rank() as u32;
        let mine = (0..boxes.len()).filter(|&k| owner(k) == me).map(|k| work(&boxes[k])).collect::<Vec<f64>>();
        // Ranks own intervals of the leaves, in their order.
        let weights = self.world.all_gather(mine)?.concat();
        Ok((weights, (0..boxes.len()).map(owner).collect()))
    }

    /// Completes `lists`, which were made for [`tree`](Self::tree), and fetches what they need: the points of ghosts,
    /// and the ways of multipoles. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn settle(mut self, lists: &mut Lists) -> Result<Ready, Error> {
        let mut first = [fmm_tree::coarsest_read(&self.local.tree, lists) as u64];
        self.world.reduce(&mut first, u64::min)?;
        fmm_tree::upward(&self.local.tree, lists, first[0] as usize);
        let ghosts = Arc::new(exchange::Ghosts::fetch(&self.world, &mut self.local, lists)?);
        let traffic = exchange::connect(&self.world, &mut self.local, lists, &ghosts, self.strategy)?;
        let Placed { world, local, routes, .. } = self;
        Ok(Ready { world, routes, ghosts, tree: local.tree, traffic })
    }
}

impl Ready {
    /// Strengths of the caller's sources on this rank, `width` numbers each, as strengths of the sources of
    /// [`tree`](Self::tree), in tree order. Those of ghosts are 0: the stages of an evaluation fetch them
    /// ([`Exchange`](fmm_traits::Exchange)). All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn strengths(&self, strengths: &[f64], width: usize) -> Result<Vec<f64>, Error> {
        let own = self.routes[0].forward(&self.world, strengths, width)?;
        Ok(self.ghosts.beside_own(own, width))
    }

    /// The messages with rows of points, for rows that are elsewhere: strengths of the caller's sources to sources of the
    /// tree, strengths of sources of the tree to ghosts, values at targets of the tree to the caller's targets.
    pub fn rounds(&self) -> [Round; 3] {
        let first = self.tree.shared.as_ref().map_or(0, |shared| shared.first);
        let [from_caller, to_tree] = self.routes[0].ends(first);
        let [to_caller, from_tree] = self.routes.last().unwrap_or(&self.routes[0]).ends(0);
        let [sends, comes] = self.ghosts.ends();
        [round(from_caller, to_tree), round(sends, comes), round(from_tree, to_caller)]
    }

    /// Numbers of the caller's sources and targets on this rank.
    pub fn given(&self) -> [usize; 2] {
        [&self.routes[0], self.routes.last().unwrap_or(&self.routes[0])].map(Route::given)
    }

    /// Values at the targets of [`tree`](Self::tree), in tree order, to the caller's targets on this rank, `width`
    /// numbers each. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn values(&self, values: &[f64], width: usize, out: &mut [f64]) -> Result<(), Error> {
        let route = self.routes.last().unwrap_or(&self.routes[0]);
        route.back(&self.world, values, width, out)
    }
}

/// The sample of all points from which the root cube is chosen, the same as one rank would take.
struct Sample(Vec<[f64; 3]>);

impl Sample {
    fn gather(world: &World, points: &[f64], counts: &[usize]) -> Result<Self, Error> {
        let (n, points) = (counts.iter().sum::<usize>(), points.as_chunks::<3>().0);
        let first: usize = counts[..world.rank()].iter().sum();
        let size = fmm_tree::sample_size(n);
        let taken = (0..size).map(|i| fmm_tree::sample_index(i, size, n));
        let mine = taken.filter_map(|i| points.get(i.checked_sub(first)?).copied()).collect::<Vec<_>>();
        Ok(Sample(world.all_gather(mine)?.concat()))
    }
}

impl RootSample for Sample {
    fn pairs(&mut self, _: [f64; 3], _: f64) -> Result<Vec<u64>, Error> {
        Ok(Vec::new())
    }
    fn points(&mut self, most: usize) -> Result<Vec<[f64; 3]>, Error> {
        let size = self.0.len();
        let m = size.min(most);
        Ok((0..m).map(|i| self.0[fmm_tree::sample_index(i, m, size)]).collect())
    }
}
