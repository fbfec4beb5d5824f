//! The engine of a rank that sums together with others by a fast method.

use super::octree::{lists, seen_whole, solver};
use super::{Engine, Placed, Placement, ProbeSeconds, Watch};
use super::{bounds_of, build_options, drawn_with, list_options, not_placed, picked, sample_of, trial_with};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::machine;
use crate::mesh::{Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::Trial;
use crate::probe::on_host::OnHost;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use backend_cpu::OctreeSolver;
use backend_cuda::{DeviceSolver, DeviceSums};
use fmm_dist::coarse::{better_owners, imbalance};
use fmm_dist::local::{Place, opens_uvwx};
use fmm_dist::{Asked, Ready, Route, Strategy, World};
use fmm_traits::{
    Error, Lists, Observer, OutputColumns, Policy, Precision, Solver, Stage, StageSeconds, Targets, Tree,
};
use fmm_tree::{BuildOptions, ListOptions};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// The part of a rank in a sum over several ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RanksReport {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of this rank.
    pub rank: usize,
    /// Number of its GPU; `None` on cores.
    pub device: Option<usize>,
    /// How multipoles are exchanged; `gather` for direct sums, where every rank gets all sources.
    pub exchange: &'static str,
    /// Sources that this rank owns.
    pub owned_sources: usize,
    /// Targets that this rank owns.
    pub owned_targets: usize,
    /// Sources of other ranks that this rank sums point by point.
    pub ghosts: usize,
    /// Messages with multipoles that this rank sends in an evaluation.
    pub messages: usize,
    /// Multipoles in these messages.
    pub rows: usize,
    /// Bytes of these multipoles, and of the strengths of sources that are ghosts elsewhere. On GPUs that share a tree, also of
    /// the strengths of sources that other ranks own.
    pub bytes: u64,
    /// Forecast seconds of this rank's work, on one core or on its GPU; 0 for direct sums, which have no forecast.
    pub work: f64,
    /// Forecast time of the slowest rank over the time with work shared out perfectly, by [`Fmm::speed`].
    pub imbalance: f64,
    /// The imbalance of the first division, by numbers of points; `None` if it was kept.
    pub imbalance_by_points: Option<f64>,
}

/// A fast method on the locally essential tree of a rank.
pub(crate) struct Ranks {
    request: Fmm,
    choice: Choice,
    parts: Parts,
    world: World,
    strategy: Strategy,
    /// `None` before points are settled.
    settled: Option<Settled>,
    /// New points before they are settled.
    site: Option<Site>,
}

/// Points in the caller's order.
struct Given {
    sources: Vec<f64>,
    targets: Vec<f64>,
    pick: Option<Vec<usize>>,
}

struct Site {
    placed: fmm_dist::Placed,
    given: Given,
    report: Placed,
    options: BuildOptions,
    /// Whether targets are points of their own.
    apart: bool,
    /// How fast each rank is.
    speeds: Vec<f64>,
    /// The last lists, with their options.
    lists: Option<(ListOptions, Lists)>,
    probe: Option<Probe>,
}

impl Site {
    /// Makes the lists of an order, unless those with the same options are here.
    fn make_lists(&mut self, parts: &Parts, order: usize) -> Result<(), Error> {
        let options = list_options(order, parts);
        if self.lists.as_ref().is_none_or(|(made, _)| *made != options) {
            self.lists = Some((options, lists(self.placed.tree(), parts, &options, self.options.min_side)?));
        }
        Ok(())
    }
}

/// The sample on which errors are measured.
struct Probe {
    /// Edges between points and expansions in the lists of all ranks from which the sample was drawn.
    edges: usize,
    /// The part of this rank.
    mine: Sample,
    whole: Sample,
    /// On rank 0, the whole sample with its sums, once it was measured.
    trial: Option<Trial>,
}

/// The sums of a rank.
pub(crate) enum OnARank {
    /// In rows of f64.
    Rows(Box<dyn Solver>),
    /// Also in one array for each output.
    Arrays(Box<dyn DeviceSolver>),
}

impl OnARank {
    fn solver(&self) -> &dyn Solver {
        match self {
            OnARank::Rows(solver) => &**solver,
            OnARank::Arrays(solver) => &**solver,
        }
    }
}

struct Settled {
    sums: OnARank,
    mesh: Mesh,
    given: Given,
    /// The way of the sources to their owners.
    way: Arc<Route>,
    report: RanksReport,
}

impl Ranks {
    pub fn new(request: &Fmm, choice: &Choice, parts: Parts, world: &World) -> Self {
        let strategy = request.exchange.unwrap_or(Strategy::usual(world.size()));
        let (request, choice, world) = (request.clone(), choice.clone(), world.clone());
        Ranks { request, choice, parts, world, strategy, settled: None, site: None }
    }

    /// Calls `work` with what is asked of points that are shared out.
    fn asking<R>(&self, options: BuildOptions, speeds: &[f64], work: impl FnOnce(&Asked) -> R) -> R {
        let (parts, near) = (self.parts, options.min_side);
        // A slightly smaller angle: a box that a rounding error might open is sent.
        let opens = |target: &Place, source: &Place| match parts.policy {
            Policy::Uvwx | Policy::Stencil119 => opens_uvwx(target, source),
            Policy::Treecode { theta } => {
                let (t, s) = (target.cube, source.cube);
                !(fmm_tree::accepts(theta * (1.0 - 1e-9), t, s) && seen_whole(&parts, near * (1.0 + 1e-9), t, s))
            }
        };
        work(&Asked { options, strategy: self.strategy, opens: &opens, speeds })
    }

    /// The forecast work of each leaf of the coarse tree, and its owner.
    fn works(&self, placed: &fmm_dist::Placed, lists: &Lists, order: usize) -> Result<(Vec<f64>, Vec<u32>), Error> {
        placed.weigh(work_of_boxes(&self.request, &self.choice, (&self.parts, order), placed.tree(), lists))
    }
}

/// The free memory of a processor, shared out among the ranks that use it. All ranks call it together.
pub(super) fn share_of_memory(alone: &dyn Engine, world: &World) -> Result<Option<u64>, Error> {
    let number = alone.asked().0.backend.processor().number();
    let processors = world.all_gather((machine::host(), number))?;
    let sharing = processors.iter().filter(|p| **p == processors[world.rank()]).count() as u64;
    Ok(alone.free_memory()?.map(|free| free / sharing))
}

/// Bytes of a multipole.
pub(super) fn multipole_bytes(request: &Fmm, choice: &Choice, parts: &Parts, order: usize) -> u64 {
    let numbers = match (parts.lattice(order), parts.expansion.fill()) {
        (Some(lattice), Some(fill)) => parts.fields() * lattice.len() * choice.facts.densities_and_checks(fill)[0],
        _ => order * order,
    };
    (numbers * request.precision.bytes()) as u64
}

/// The forecast seconds of some boxes of a tree, on the processor of a request.
pub(super) fn work_of_boxes<'a>(
    request: &'a Fmm,
    choice: &'a Choice,
    (parts, order): (&'a Parts, usize),
    tree: &'a Tree,
    lists: &'a Lists,
) -> impl Fn(&[u32]) -> f64 + 'a {
    let prices = request.backend.processor().prices(request, &choice.facts);
    move |boxes| {
        let (mesh, points) = Mesh::of_boxes(tree, lists, boxes);
        prices.work(parts, order, &mesh, points)
    }
}

impl Engine for Ranks {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        super::of(&self.request.alone(), &self.choice).reference(sources, strengths, targets)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let (sources, targets) = cloud.on_host()?;
        let options = build_options(&self.request, &self.choice, &self.parts);
        let placement = Placement::of(&self.choice.facts, sources, targets);
        watch("tree", 0.0)?;
        let start = Instant::now();
        let speeds = self.world.all_gather(self.request.speed)?;
        let targets = placement.points();
        let placed = self.asking(options, &speeds, |asked| fmm_dist::place(&self.world, sources, targets, asked))?;
        let seconds = PlanSeconds { tree: start.elapsed().as_secs_f64(), ..PlanSeconds::default() };
        let mut report = Placed { report: placed.report.clone(), seconds };
        report.say_softening(options.min_side);
        let apart = targets.is_some();
        let targets = targets.map(<[f64]>::to_vec).unwrap_or_default();
        let given = Given { sources: sources.to_vec(), targets, pick: placement.into_pick() };
        self.site = Some(Site { placed, given, report, options, apart, speeds, lists: None, probe: None });
        Ok(())
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        let Some(site) = &mut self.site else { return not_placed() };
        site.make_lists(&self.parts, order)?;
        let (placed, (_, lists)) = (&site.placed, site.lists.as_ref().expect("just made"));
        let tree = placed.tree();
        let (mut mesh, _) = Mesh::of_boxes(tree, lists, &placed.counted());
        (mesh.levels, mesh.root_side) = (tree.levels(), tree.side);
        mesh.add_up(&self.world)?;
        mesh.far_points = self.request.backend.processor().far_points(&mesh, placed.report.mean_leaf);
        Ok(mesh)
    }

    /// Each rank draws its part of the sample. Rank 0 gets the small problem of the sample, and measures.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let start = Instant::now();
        let (r, c, parts, world) = (&self.request, &self.choice, &self.parts, &self.world);
        let Some(site) = &mut self.site else { return not_placed() };
        site.make_lists(parts, order)?;
        let (placed, (_, lists)) = (&site.placed, site.lists.as_ref().expect("just made"));
        let here = Mesh::of_boxes(placed.tree(), lists, &placed.counted()).0.edges.of_points();
        let mut edges = [here as u64];
        world.reduce(&mut edges, |a, b| a + b)?;
        let edges = edges[0] as usize;
        site.probe = site.probe.take().filter(|probe| probe.edges == edges);
        let probe = match &mut site.probe {
            Some(probe) => probe,
            none => {
                let there = OnHost::of_rank(placed, lists, parts.policy.theta());
                let mine = sample_of(r, c, &there, r.precision == Precision::F32)?;
                let whole = mine.whole(world)?;
                none.insert(Probe { edges, mine, whole, trial: None })
            }
        };
        let cut = placed.thin(lists, &probe.mine.of_norm.positions, &probe.mine.targets)?;
        let mut told = (Vec::new(), [0.0; 2]);
        if let Some((tree, lists)) = cut {
            let trial = match probe.trial.take() {
                Some(trial) => trial,
                None => {
                    let site = OnHost::new(&tree, &lists, parts.policy.theta());
                    trial_with(drawn_with(probe.whole.clone(), r, c, &site)?, r, c, &site)?
                }
            };
            let sample = &trial.drawn.sample;
            let small = fmm_tree::thin(&tree, &lists, &sample.of_errors.positions, &sample.targets);
            let sums = start.elapsed().as_secs_f64();
            let solver = r.backend.processor().on_a_sample(r, c, parts, order, small)?;
            let operators = start.elapsed().as_secs_f64() - sums;
            let bounds = bounds_of(r, c, &trial, &*solver)?;
            told = (bounds, [start.elapsed().as_secs_f64() - operators, operators]);
            probe.trial = Some(trial);
        }
        let (bounds, [sums, operators]) = world.tell(0, told)?;
        Ok((bounds, ProbeSeconds { sums, operators }))
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.site.as_ref()?.probe.as_ref()?.whole)
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        share_of_memory(&*super::of(&self.request.alone(), &self.choice), &self.world)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(mut site) = self.site.take() else { return not_placed() };
        watch("lists", 0.3)?;
        let start = Instant::now();
        site.make_lists(&self.parts, order)?;
        let Site { mut placed, given, mut report, options, apart, speeds, lists: made, .. } = site;
        let (of_order, mut lists) = made.expect("just made");
        let (works, mut owners) = self.works(&placed, &lists, order)?;
        let better = better_owners(&works, &owners, &speeds);
        let by_points = better.is_some().then(|| imbalance(&works, &owners, &speeds));
        if let Some(better) = better {
            drop(lists);
            let targets = apart.then_some(&given.targets[..]);
            placed = self.asking(options, &speeds, |asked| placed.again(&given.sources, targets, &works, asked))?;
            lists = super::octree::lists(placed.tree(), &self.parts, &of_order, options.min_side)?;
            // The boxes and edges of a leaf are the same on any rank, and so is their work.
            owners = better;
        }
        let leaves = placed.leaves();
        let ready = placed.settle(&mut lists)?;
        report.seconds.lists = start.elapsed().as_secs_f64();
        watch("operators", 0.5)?;
        let start = Instant::now();
        let (tree, traffic, way) = (&ready.tree, ready.traffic, ready.way_of_sources());
        let owned = [tree.sources.len() - traffic.ghosts, tree.targets.len()];
        let mut mesh = Mesh::of(tree, &lists, leaves, tree.side);
        mesh.leaves = tree.leaves();
        let processor = self.request.backend.processor();
        let sums = processor.on_a_rank(&self.request, &self.choice, &self.parts, order, (ready, lists))?;
        report.seconds.operators = start.elapsed().as_secs_f64();
        let ghost = 8 * self.choice.facts.strengths as u64;
        let of_rank = RanksReport {
            ranks: self.world.size(),
            rank: self.world.rank(),
            device: processor.gpu(),
            exchange: self.strategy.name(),
            owned_sources: owned[0],
            owned_targets: owned[1],
            ghosts: traffic.ghosts,
            messages: traffic.messages,
            rows: traffic.rows,
            bytes: traffic.rows as u64 * multipole_bytes(&self.request, &self.choice, &self.parts, order)
                + traffic.ghost_sources as u64 * ghost,
            work: works.iter().zip(&owners).filter(|(_, r)| **r as usize == self.world.rank()).map(|(w, _)| w).sum(),
            imbalance: imbalance(&works, &owners, &speeds),
            imbalance_by_points: by_points,
        };
        self.settled = Some(Settled { sums, mesh, given, way, report: of_rank });
        self.choice.order = Some(order);
        Ok(report)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(Settled { sums, given, .. }) = &self.settled else { return not_placed() };
        let facts = &self.choice.facts;
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let n_sources = given.sources.len() / facts.dim;
        picked(given.pick.as_deref(), n_sources, facts.values, rows, |rows| {
            sums.solver().apply_batch(strengths, rows, &mut observer)
        })
    }

    fn together(&self) -> (usize, u64) {
        self.settled.as_ref().map_or((1, 0), |s| (s.sums.solver().together(), s.sums.solver().bytes_of_a_set()))
    }

    fn sums(&self) -> Option<&dyn DeviceSums> {
        match self.settled.as_ref()? {
            Settled { sums: OnARank::Arrays(solver), given: Given { pick: None, .. }, .. } => Some(&**solver),
            _ => None,
        }
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(Settled { given, .. }) = &self.settled else { return Ok(Default::default()) };
        Ok((given.sources.clone(), given.targets.clone()))
    }

    fn mesh(&self) -> Mesh {
        self.settled.as_ref().map(|s| s.mesh.clone()).unwrap_or_default()
    }

    fn on_ranks(&self) -> Option<RanksReport> {
        self.settled.as_ref().map(|s| s.report.clone())
    }

    fn adopt(&self, rows: &[f64], width: usize) -> Result<Vec<f64>, Error> {
        let Some(Settled { way, .. }) = &self.settled else { return not_placed() };
        way.forward(&self.world, rows, width)
    }

    /// None: the sources of ghosts have no number on this rank.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::empty())
    }

    fn bytes(&self) -> u64 {
        let of = |s: &Settled| s.sums.solver().bytes() + 8 * (s.given.sources.len() + s.given.targets.len()) as u64;
        self.settled.as_ref().map_or(0, of)
    }
}

/// A solver on cores for the tree of a rank. Strengths and values travel between callers and trees on the host.
struct OnCores {
    solver: Box<dyn OctreeSolver>,
    ready: Ready,
    /// Strengths of a source.
    strengths: usize,
}

/// [`Processor::on_a_rank`](crate::processor::Processor::on_a_rank) on cores.
pub(crate) fn on_cores(
    r: &Fmm,
    choice: &Choice,
    parts: &Parts,
    order: usize,
    mut ready: Ready,
    lists: Lists,
) -> Result<Box<dyn Solver>, Error> {
    let solver = solver(r, choice, parts, order, std::mem::take(&mut ready.tree), lists)?;
    Ok(Box::new(OnCores { solver, ready, strengths: choice.facts.strengths }))
}

impl Solver for OnCores {
    fn values(&self) -> usize {
        self.solver.values()
    }
    fn columns(&self) -> &[OutputColumns] {
        self.solver.columns()
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        self.apply_batch(&[strengths], &mut [out], observer)
    }
    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        let ready = &self.ready;
        let held = strengths.iter().map(|q| ready.strengths(q, self.strengths)).collect::<Result<Vec<_>, _>>()?;
        let held: Vec<&[f64]> = held.iter().map(|q| &q[..]).collect();
        let mut values = vec![vec![0.0; self.solver.tree().targets.len() * self.values()]; strengths.len()];
        let mut sets: Vec<&mut [f64]> = values.iter_mut().map(|v| &mut v[..]).collect();
        let seconds = self.solver.apply_batch(&held, &mut sets, observer)?;
        values.iter().zip(out).try_for_each(|(values, out)| ready.values(values, self.values(), out))?;
        Ok(seconds)
    }
    fn together(&self) -> usize {
        self.solver.together()
    }
    fn bytes_of_a_set(&self) -> u64 {
        self.solver.bytes_of_a_set()
    }
    fn bytes(&self) -> u64 {
        self.solver.bytes()
    }
}
