//! What ranks exchange between the upward and the downward pass: strengths of ghosts, and the multipoles of boxes that
//! several ranks share.
//!
//! A rank *reads* the multipoles that its M2L and M2P edges name. It asks the owners for what it does not have, once for
//! each set of lists, and gets a *schedule*: rounds of messages, each a list of rows. An evaluation then follows the
//! schedule, without names. The strategies differ in the schedule alone.

mod frontier;
mod routes;

use crate::local::{Local, Name, ranges};
use crate::wire::{Reader, Wire};
use crate::world::World;
use fmm_traits::tree::{Edges, Points};
use fmm_traits::{Error, Exchange, Lists, Messages, NumbersMut, Round};
use rayon::prelude::*;
use std::ops::AddAssign;
use std::sync::Arc;

/// How multipoles of shared boxes are completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Strategy {
    /// Only complete multipoles travel, from their owner to their readers. Boxes whose sources lie on several ranks are
    /// put together by each reader, from their children, as one rank would. Sums have the same bits on any number of
    /// ranks.
    #[default]
    Frontier,
    /// Each rank sends its part of a multipole to each reader, who adds the parts up.
    Direct,
    /// Parts travel along the edges of a hypercube and are added up on the way (Lashuk et al. 2009, Algorithm 3).
    /// Ranks beyond a power of two send through a partner.
    Hypercube,
    /// All parts go to rank 0, which adds them up and sends the sums to their readers (Hu et al. 2012).
    Manager,
}

impl Strategy {
    /// All strategies with their names on the command line.
    pub const ALL: [(Strategy, &'static str); 4] = [
        (Strategy::Frontier, "frontier"),
        (Strategy::Direct, "direct"),
        (Strategy::Hypercube, "hypercube"),
        (Strategy::Manager, "manager"),
    ];
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Strategy::ALL[self as usize].1
    }
    /// The default for a number of ranks.
    pub fn usual(ranks: usize) -> Self {
        if ranks <= 256 { Strategy::Frontier } else { Strategy::Direct }
    }
}

/// What a rank sends in one evaluation with one set of strengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Messages with multipoles.
    pub messages: usize,
    /// Multipoles in these messages.
    pub rows: usize,
    /// Strengths of own sources that are ghosts elsewhere, each counted once per rank.
    pub ghost_sources: usize,
    /// Sources of other ranks that are ghosts here.
    pub ghosts: usize,
}

/// A multipole that travels: its name, and who reads it, ascending.
type Item = (Name, Vec<u32>);

/// What an evaluation sends and receives. A *slot* is a box, or beyond the boxes a row that only passes through.
#[derive(Debug)]
struct Schedule {
    world: World,
    rounds: Vec<Round>,
    boxes: usize,
    /// Rows that only pass through.
    passing: usize,
    after: Edges,
    ghosts: Arc<Ghosts>,
}

impl Schedule {
    fn run<T: Wire + Copy + Default + AddAssign>(&self, rows: &mut [T], width: usize) -> Result<(), Error> {
        let mut passing = vec![T::default(); self.passing * width];
        for round in &self.rounds {
            let mut sends = Vec::with_capacity(round.sends.len());
            for (to, slots) in &round.sends {
                let mut message = Vec::with_capacity(slots.len() * width * size_of::<T>());
                for &slot in slots {
                    let row = match (slot as usize).checked_sub(self.boxes) {
                        None => &rows[slot as usize * width..][..width],
                        Some(k) => &passing[k * width..][..width],
                    };
                    row.iter().for_each(|x| x.put(&mut message));
                }
                sends.push((*to, message));
            }
            let from: Vec<usize> = round.receives.iter().map(|r| r.from).collect();
            for (message, incoming) in self.world.swap(sends, &from)?.iter().zip(&round.receives) {
                let mut reader = Reader::new(message);
                for &slot in &incoming.slots {
                    let row = match (slot as usize).checked_sub(self.boxes) {
                        None => &mut rows[slot as usize * width..][..width],
                        Some(k) => &mut passing[k * width..][..width],
                    };
                    for x in row {
                        let came = T::get(&mut reader)?;
                        if incoming.add { *x += came } else { *x = came }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Exchange for Schedule {
    fn messages(&self) -> Arc<dyn Messages> {
        Arc::new(self.world.clone())
    }
    fn lend(&self, strengths: &[Vec<f64>]) -> Result<(), Error> {
        self.ghosts.lend(&self.world, strengths)
    }
    fn ghosts(&self, components: usize) -> Result<Vec<Vec<f64>>, Error> {
        self.ghosts.borrowed(&self.world, components)
    }
    fn active(&self) -> bool {
        self.rounds.iter().any(|round| !round.sends.is_empty() || !round.receives.is_empty())
    }
    fn waits(&self) -> bool {
        !self.ghosts.from.is_empty() || self.rounds.iter().any(|round| !round.receives.is_empty())
    }
    fn complete(&self, rows: NumbersMut, width: usize) -> Result<(), Error> {
        match rows {
            NumbersMut::F32(rows) => self.run(rows, width),
            NumbersMut::F64(rows) => self.run(rows, width),
        }
    }
    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
    fn passing(&self) -> usize {
        self.passing
    }
    fn after(&self) -> &Edges {
        &self.after
    }
}

/// Which multipoles a rank still needs: box and the ranks that have parts of it, but this one.
type Wanted = Vec<(u32, Vec<u32>)>;

/// Makes the schedule for `lists`, and gives it to the tree. All ranks call it together.
pub(crate) fn connect(
    world: &World,
    local: &mut Local,
    lists: &Lists,
    ghosts: &Arc<Ghosts>,
    strategy: Strategy,
) -> Result<Traffic, Error> {
    let read = named([&lists.m2l, &lists.m2p], local.tree.len());
    let (wanted, after) = match strategy {
        Strategy::Frontier => frontier::wanted(world, local, &read),
        _ => (routes::wanted(world, local, &read), Edges::none(local.tree.len())),
    };
    let items = requests(world, local, &wanted)?;
    let (rounds, passing) = match strategy {
        Strategy::Frontier => routes::direct(local, &wanted, &items, false),
        Strategy::Direct => routes::direct(local, &wanted, &items, true),
        Strategy::Hypercube => routes::hypercube(world, local, &wanted, &items)?,
        Strategy::Manager => routes::manager(world, local, &wanted, &items)?,
    };
    let sends = rounds.iter().flat_map(|round| &round.sends);
    let rows = sends.clone().map(|(_, slots)| slots.len()).sum();
    let [ghost_sources, ghosts_here] = ghosts.counts();
    let traffic = Traffic { messages: sends.count(), rows, ghost_sources, ghosts: ghosts_here };
    let (world, ghosts) = (world.clone(), ghosts.clone());
    let schedule = Schedule { world, rounds, boxes: local.tree.len(), passing, after, ghosts };
    local.shared.exchange = Some(Arc::new(schedule));
    local.tree.shared = Some(Arc::new(local.shared.clone()));
    Ok(traffic)
}

/// The source boxes of edges, ascending.
fn named(edges: [&Edges; 2], boxes: usize) -> Vec<u32> {
    let mut found = vec![false; boxes];
    edges.into_iter().flat_map(|edges| &edges.sources).for_each(|&b| found[b as usize] = true);
    (0..boxes as u32).filter(|&b| found[b as usize]).collect()
}

/// What others read of this rank's multipoles.
fn requests(world: &World, local: &Local, wanted: &Wanted) -> Result<Vec<Item>, Error> {
    let mut ask: Vec<Vec<u64>> = vec![Vec::new(); world.size()];
    for (b, ranks) in wanted {
        ranks.iter().for_each(|&r| ask[r as usize].push(local.names[*b as usize].0));
    }
    let mut pairs = Vec::new();
    for (reader, names) in world.all_to_all(ask)?.into_iter().enumerate() {
        pairs.extend(names.into_iter().map(|name| (Name(name), reader as u32)));
    }
    pairs.sort_unstable();
    let group = |pairs: &[(Name, u32)]| (pairs[0].0, pairs.iter().map(|p| p.1).collect());
    Ok(pairs.chunk_by(|a, b| a.0 == b.0).map(group).collect())
}

/// The sources of other ranks that are summed point by point here, and own sources that are elsewhere.
#[derive(Debug, Default)]
pub struct Ghosts {
    /// Positions of own sources, counted from the first own one, that go to each rank.
    to: Vec<(usize, Vec<u32>)>,
    /// For each rank that sends, the ranges of positions of its sources.
    from: Vec<(usize, Vec<[u32; 2]>)>,
    /// Positions of own sources.
    own: [usize; 2],
    sources: usize,
}

impl Ghosts {
    /// Fetches the points of boxes of other ranks that P2P and P2L edges name, and inserts them into the tree.
    pub(crate) fn fetch(world: &World, local: &mut Local, lists: &Lists) -> Result<Ghosts, Error> {
        let mut boxes = named([&lists.p2p, &lists.p2l], local.tree.len());
        boxes.retain(|&b| !local.own[b as usize]);
        let mut ask: Vec<Vec<u32>> = vec![Vec::new(); world.size()];
        for &b in &boxes {
            let owner = local.contributors(b as usize);
            match owner[..] {
                [owner] if local.tree.is_leaf(b as usize) => ask[owner as usize].push(b),
                _ => {
                    let what = "sources of several ranks are not summed point by point".to_string();
                    return Err(Error::Edge { what, target: b, source_box: b });
                }
            }
        }
        let names = |boxes: &Vec<u32>| boxes.iter().map(|&b| local.names[b as usize].0).collect::<Vec<u64>>();
        let asked = world.all_to_all(ask.iter().map(names).collect())?;
        let (tree, mut ghosts) = (&local.tree, Ghosts::default());
        let mut points: Vec<Vec<[f64; 3]>> = Vec::new();
        for (rank, names) in asked.iter().enumerate() {
            let mut positions = Vec::new();
            for &name in names {
                let Some(&b) = local.by_name.get(&Name(name)) else {
                    let what = "another rank asks for a box that is not here".to_string();
                    return Err(Error::Edge { what, target: rank as u32, source_box: 0 });
                };
                positions.extend(tree.sources_of(b as usize).map(|i| i as u32));
            }
            let at = |&i: &u32| std::array::from_fn(|a| tree.sources.xyz[a][i as usize]);
            points.push(positions.iter().map(at).collect());
            if !positions.is_empty() {
                ghosts.to.push((rank, positions));
            }
        }
        let came = world.all_to_all(points)?;

        let own = tree.sources.len();
        let mut numbers: Vec<u32> = (0..tree.len()).map(|b| tree.sources_of(b).len() as u32).collect();
        let first_own = (0..tree.len()).find(|&b| tree.child_count[b] == 0 && local.own[b] && numbers[b] > 0);
        for &b in &boxes {
            numbers[b as usize] = tree.source_count(b as usize) as u32;
        }
        let new = ranges(tree, &numbers);
        // Own leaves are one interval of Morton order, so the first in tree order of any level will do.
        let shift = first_own.map_or(0, |b| (new[b][0] - tree.source_range[b][0]) as usize);
        ghosts.sources = new.first().map_or(0, |r| r[1] as usize);
        ghosts.own = [shift, shift + own];
        let mut xyz: [Vec<f64>; 3] = std::array::from_fn(|_| vec![0.0; ghosts.sources]);
        xyz.par_iter_mut().zip(&tree.sources.xyz).for_each(|(to, from)| to[shift..shift + own].copy_from_slice(from));
        for (rank, boxes) in ask.iter().enumerate().filter(|(_, boxes)| !boxes.is_empty()) {
            let ranges: Vec<[u32; 2]> = boxes.iter().map(|&b| new[b as usize]).collect();
            for (i, x) in ranges.iter().flat_map(|r| r[0]..r[1]).zip(&came[rank]) {
                (0..3).for_each(|a| xyz[a][i as usize] = x[a]);
            }
            ghosts.from.push((rank, ranges));
        }
        local.tree.source_range = new;
        local.tree.sources = Arc::new(Points { xyz, order: (0..ghosts.sources as u32).collect() });
        local.shared.first = shift;
        Ok(ghosts)
    }

    /// Strengths of own sources in tree order, `width` numbers each, at their places among all sources; 0 for ghosts.
    pub(crate) fn beside_own(&self, own: Vec<f64>, width: usize) -> Vec<f64> {
        if self.from.is_empty() {
            return own;
        }
        let mut all = vec![0.0; self.sources * width];
        all[self.own[0] * width..self.own[1] * width].copy_from_slice(&own);
        all
    }

    /// [`Exchange::lend`].
    fn lend(&self, world: &World, strengths: &[Vec<f64>]) -> Result<(), Error> {
        let pick = |(rank, positions): &(usize, Vec<u32>)| {
            let mut message = Vec::with_capacity(8 * strengths.len() * positions.len());
            for component in strengths {
                let own = &component[self.own[0]..self.own[1]];
                positions.iter().for_each(|&i| own[i as usize].put(&mut message));
            }
            (*rank, message)
        };
        world.swap(self.to.iter().map(pick).collect(), &[]).map(drop)
    }

    /// [`Exchange::ghosts`].
    fn borrowed(&self, world: &World, components: usize) -> Result<Vec<Vec<f64>>, Error> {
        let from: Vec<usize> = self.from.iter().map(|(rank, _)| *rank).collect();
        let [first, end] = self.own;
        let mut all = vec![vec![0.0; self.counts()[1]]; components];
        for (message, (_, ranges)) in world.swap(Vec::new(), &from)?.iter().zip(&self.from) {
            let mut reader = Reader::new(message);
            for component in &mut all {
                for i in ranges.iter().flat_map(|r| r[0] as usize..r[1] as usize) {
                    component[if i < first { i } else { i - (end - first) }] = f64::get(&mut reader)?;
                }
            }
        }
        Ok(all)
    }

    /// Sources of the tree whose strengths go to each rank, and come from each rank.
    pub(crate) fn ends(&self) -> [Vec<(usize, Vec<u32>)>; 2] {
        let first = self.own[0] as u32;
        let to = self.to.iter().map(|(rank, positions)| (*rank, positions.iter().map(|i| first + i).collect()));
        let from = self.from.iter().map(|(rank, ranges)| (*rank, ranges.iter().flat_map(|r| r[0]..r[1]).collect()));
        [to.collect(), from.collect()]
    }

    /// Numbers of own sources that go elsewhere, and of sources of others.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.to.iter().map(|(_, p)| p.len()).sum(), self.sources - (self.own[1] - self.own[0])]
    }
}
