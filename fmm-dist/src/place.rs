//! Points travel to the ranks that own their boxes.
//!
//! The order of all points is that of one array in pieces: the points of rank 0, then those of rank 1, and so on.
//! Points of one key keep this order, as they do on one rank.

use crate::coarse::{boxes_of_leaves, by_points};
use crate::exchange::{self, Strategy};
use crate::local::{Local, Name, Opens};
use crate::survey::Survey;
use crate::world::World;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Incoming, Lists, Round, Tree};
use fmm_tree::{BuildOptions, BuildReport};
use rayon::prelude::*;
use std::sync::Arc;

/// How points are shared out.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// How boxes are split.
    pub options: BuildOptions,
    /// How multipoles of shared boxes are completed.
    pub strategy: Strategy,
    /// Which boxes a target may look into.
    pub opens: Opens<'a>,
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
    /// Rows of the caller, `width` numbers each, to the owners: rows of the points that this rank owns, in tree order. All
    /// ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn forward(&self, world: &World, rows: &[f64], width: usize) -> Result<Vec<f64>, Error> {
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
    /// Without the coarse tree, which is in `local`.
    survey: Survey,
}

/// A locally essential tree with the points of its ghosts, for given lists.
pub struct Ready {
    world: World,
    routes: Vec<Arc<Route>>,
    ghosts: Arc<exchange::Ghosts>,
    /// The tree. Its points are numbered in tree order.
    pub tree: Tree,
    /// What an evaluation sends.
    pub traffic: exchange::Traffic,
}

/// Places `sources` and `targets` (N×3, row-major, finite; `None`: targets are the sources) of this rank, by their
/// numbers. All ranks call it together.
///
/// # Errors
/// As [`build`](fmm_tree::build()), and those of other ranks.
pub fn place(world: &World, sources: &[f64], targets: Option<&[f64]>, asked: &Asked) -> Result<Placed, Error> {
    let survey = Survey::new(world, sources, targets, &asked.options)?;
    let points = |&b: &u32| [survey.coarse.boxes[b as usize].sources, survey.coarse.boxes[b as usize].targets];
    let weights: Vec<f64> =
        survey.coarse.leaves.iter().map(points).map(|[s, t]| by_points(s as usize, t as usize)).collect();
    share_out(world, survey, sources, targets, &weights, asked)
}

/// Brings the points to the ranks that own them, if the leaves of the coarse tree have these `weights`.
fn share_out(
    world: &World,
    mut survey: Survey,
    sources: &[f64],
    targets: Option<&[f64]>,
    weights: &[f64],
    asked: &Asked,
) -> Result<Placed, Error> {
    survey.coarse.share(weights, asked.speeds);
    let mut routes = Vec::new();
    let mut owned = Vec::new();
    for (set, keys) in std::iter::once(sources).chain(targets).zip(&survey.keys) {
        let to = survey.coarse.shares(keys, world.size());
        let came = world.all_to_all(to.iter().map(|indices| picked(set, indices, 3)).collect())?;
        routes.push(Route { to, from: came.iter().map(|points| points.len() / 3).collect(), order: Vec::new() });
        owned.push(came.concat());
    }
    let tree = survey.boxes(world, &owned[0], owned.get(1).map(|targets| &targets[..]))?;
    drop(owned);
    routes[0].order = tree.sources.order.clone();
    if let Some(route) = routes.get_mut(1) {
        route.order = tree.targets.order.clone();
    }
    let local = Local::new(world, tree, std::mem::take(&mut survey.coarse), asked.strategy, &asked.opens)?;
    let report = survey.reported(local.leaves);
    Ok(Placed { world: world.clone(), local, strategy: asked.strategy, routes, report, survey })
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

    /// Shares the same points out again, by the work of the leaves of the coarse tree ([`weigh`](Self::weigh)). `sources`,
    /// `targets` and `asked` are those of [`place`], but for the speeds. Boxes are those of the tree that was: only their
    /// owners change. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn again(
        self,
        sources: &[f64],
        targets: Option<&[f64]>,
        works: &[f64],
        asked: &Asked,
    ) -> Result<Placed, Error> {
        let Placed { world, mut local, mut survey, routes, .. } = self;
        survey.coarse = std::mem::take(&mut local.coarse);
        drop((local, routes));
        share_out(&world, survey, sources, targets, works, asked)
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
        let routes = routes.into_iter().map(Arc::new).collect();
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

    /// The way of the caller's sources to their owners.
    pub fn way_of_sources(&self) -> Arc<Route> {
        self.routes[0].clone()
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
        [&self.routes[0], self.routes.last().unwrap_or(&self.routes[0])].map(|route| route.given())
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
