//! Octree or pair by pair on an NVIDIA GPU.

use super::octree::{blocks, rows_of_sources};
use super::{Engine, Placed, Placement, ProbeSeconds, Watch};
use super::{build_options, list_options, picked};
use crate::choice::Choice;
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::Trial;
use crate::request::{Cuda, Fmm};
use crate::rng::Rng;
use crate::variant::Expansion;
use backend_cuda::{DeviceSolver, Settings, SphericalSettings};
use fmm_traits::{Error, Lists, Solver, Stage, StageSeconds, Targets, Tree};
use rayon::prelude::*;
use std::sync::OnceLock;
use std::time::Instant;

/// Targets at which errors are measured.
const MEASURED: usize = 1024;
/// Seeds of their choice, and of strengths.
const SEED: u64 = 0x4355_4441;
/// Numbers that one seed makes.
const SEEDED: usize = 1 << 12;

/// The fast method on the device, or the direct sum.
pub(crate) struct Device {
    cuda: Cuda,
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// None before the first points.
    points: Option<Points>,
    /// New points that are not settled.
    site: Option<Site>,
}

/// What the device holds, and the points in the caller's order.
struct Points {
    held: Held,
    sources: Vec<f64>,
    /// Points of their own.
    targets: Option<Vec<f64>>,
}

enum Held {
    /// `pick`: the sources that are shown, when an evaluation at all sources serves a subset. The copy of tree and
    /// lists is made when somebody asks for the near field.
    Fast { solver: Box<dyn DeviceSolver>, order: usize, pick: Option<Vec<usize>>, copy: OnceLock<Box<(Tree, Lists)>> },
    /// `chosen`: the sources that are targets; `None` for all.
    Direct { sum: Box<dyn Solver>, chosen: Option<Vec<usize>> },
}

/// Points before the order is known.
struct Site {
    sources: Vec<f64>,
    /// What the caller shows as points of their own.
    targets: Option<Vec<f64>>,
    /// Targets of the tree that are points of their own.
    own: Option<Vec<f64>>,
    /// The sources that are shown, or that are targets of a direct sum.
    pick: Option<Vec<usize>>,
    /// Their tree, until a solver takes it.
    tree: Option<backend_cuda::Placed>,
    /// Seconds that placing took.
    seconds: f64,
    /// The last one that was made, and its order.
    solver: Option<(usize, Box<dyn DeviceSolver>)>,
    /// Strengths and sums of a measurement.
    trial: Option<([Vec<f64>; 2], Trial)>,
}

impl Device {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        Device { cuda, request: request.clone(), choice: choice.clone(), parts, points: None, site: None }
    }

    /// The tree of the points of a site.
    fn tree(&self, site: &Site) -> Result<backend_cuda::Placed, Error> {
        let r = &self.request;
        let options = build_options(r, &self.choice, &self.parts);
        let device = self.cuda.open(r.cache.as_ref())?;
        backend_cuda::Placed::new(&device, &options, &site.sources, site.own.as_deref())
    }

    /// How a solver of an order computes.
    fn settings(&self, order: usize) -> Settings {
        let (r, parts) = (&self.request, &self.parts);
        let expansion = match parts.expansion {
            Expansion::Spherical => backend_cuda::Expansion::Spherical(SphericalSettings {
                truncation: parts.spherical.truncation,
                translation: Some(parts.translation_on_device(order, r.precision)),
            }),
            Expansion::Equivalent => backend_cuda::Expansion::Equivalent,
        };
        let beside = r.stages_apart.then_some(false);
        Settings {
            expansion,
            policy: parts.policy,
            order,
            lists: list_options(order, parts),
            beside,
            cache: r.cache.clone(),
        }
    }

    /// The solver of an order for a site, made if it is not there.
    fn solver<'a>(&self, site: &'a mut Site, order: usize) -> Result<&'a dyn DeviceSolver, Error> {
        if site.solver.as_ref().is_none_or(|(made, _)| *made != order) {
            // The memory of the old one serves the new one.
            site.solver = None;
            let tree = match site.tree.take() {
                Some(tree) => tree,
                None => self.tree(site)?,
            };
            let r = &self.request;
            let solver = r.family.in_space()?.device_solver(r.outputs, &self.settings(order), r.precision, tree)?;
            site.solver = Some((order, solver));
        }
        Ok(&*site.solver.as_ref().expect("just made").1)
    }

    /// Targets drawn at random, strengths of both kinds, and the direct sums.
    fn measured_at(&self, site: &Site) -> Result<([Vec<f64>; 2], Trial), Error> {
        let facts = &self.choice.facts;
        let n = site.sources.len() / facts.dim;
        let count = site.own.as_ref().map_or(n, |t| t.len() / facts.dim);
        let rows = Rng::new(SEED).sample(count, MEASURED);
        let strengths = [0, 1].map(|kind| random(n * facts.strengths, kind));
        let at: Vec<f64>;
        let targets = match &site.own {
            Some(t) => {
                at = rows.iter().flat_map(|&i| &t[facts.dim * i..facts.dim * (i + 1)]).copied().collect();
                Targets::Points(&at)
            }
            None => Targets::Subset(&rows),
        };
        let sum = self.sum(&site.sources, targets)?;
        let mut exact = vec![vec![0.0; rows.len() * facts.values]; 2];
        for (strengths, exact) in strengths.iter().zip(&mut exact) {
            sum.apply(strengths, exact, &mut |_, _| true)?;
        }
        let positions = rows.into_iter().map(|i| i as u32).collect();
        Ok((strengths, Trial::of_targets(positions, exact, facts.columns.len(), count)))
    }

    /// A direct sum that waits for strengths.
    fn sum(&self, sources: &[f64], targets: Targets<'_>) -> Result<Box<dyn Solver>, Error> {
        let r = &self.request;
        let device = self.cuda.open(r.cache.as_ref())?;
        r.family.in_space()?.device_sum(&device, r.outputs, sources, targets)
    }
}

/// Random strengths: of kind 0 uniform in (0, 1), else normal.
fn random(count: usize, kind: u64) -> Vec<f64> {
    let mut out = vec![0.0; count];
    out.par_chunks_mut(SEEDED).enumerate().for_each(|(k, out)| {
        let mut rng = Rng::new(SEED ^ (kind << 56) ^ ((k as u64) << 8));
        out.iter_mut().for_each(|q| *q = if kind == 0 { rng.uniform() } else { rng.normal() });
    });
    out
}

impl Points {
    /// Numbers of sources and targets of a direct sum.
    fn shape(&self, chosen: Option<&Vec<usize>>) -> [usize; 2] {
        let n = self.sources.len() / 3;
        [n, chosen.map_or(self.targets.as_ref().map_or(n, |t| t.len() / 3), Vec::len)]
    }
}

/// Counts of a plan on the device. Points that M2P and P2L evaluate are taken to be those of a mean leaf each.
fn mesh_of(solver: &dyn DeviceSolver) -> Mesh {
    let c = solver.counts();
    let [p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p] = c.edges;
    let edges = Edges { p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p };
    let far_points = ((p2l + m2p) as f64 * solver.report().mean_leaf) as u64;
    let (levels, boxes, leaves, near_pairs) = (c.levels, c.boxes, c.leaves, c.near_pairs);
    Mesh { levels, boxes, leaves, root_side: c.root_side, edges, near_pairs, far_points }
}

impl Engine for Device {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        let r = &self.request;
        self.cuda.open(r.cache.as_ref())?.free_memory().map(Some)
    }

    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        let facts = &self.choice.facts;
        let mut rows = vec![0.0; targets.count(sources.len() / facts.dim, facts.dim) * facts.values];
        self.sum(sources, targets)?.apply(strengths, &mut rows, &mut |_, _| true)?;
        Ok(rows)
    }

    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<(), Error> {
        watch("tree", 0.0)?;
        let start = Instant::now();
        let shown = if let Targets::Points(t) = targets { Some(t.to_vec()) } else { None };
        let mut site = Site {
            sources: sources.to_vec(),
            targets: shown,
            own: None,
            pick: None,
            tree: None,
            seconds: 0.0,
            solver: None,
            trial: None,
        };
        if self.choice.order.is_none() {
            site.pick = if let Targets::Subset(s) = targets { Some(s.to_vec()) } else { None };
        } else {
            let placement = Placement::of(&self.choice.facts, sources, targets);
            site.own = placement.points().map(<[f64]>::to_vec);
            site.pick = placement.into_pick();
            site.tree = Some(self.tree(&site)?);
        }
        site.seconds = start.elapsed().as_secs_f64();
        self.site = Some(site);
        Ok(())
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        let Some(mut site) = self.site.take() else { return Ok(Mesh::default()) };
        let mesh = mesh_of(self.solver(&mut site, order)?);
        self.site = Some(site);
        Ok(mesh)
    }

    /// The whole sum, at targets drawn at random: on a device it takes less than a small part of it elsewhere.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let Some(mut site) = self.site.take() else { return Ok(Default::default()) };
        let facts = &self.choice.facts;
        let mut seconds = ProbeSeconds::default();
        let start = Instant::now();
        self.solver(&mut site, order)?;
        seconds.operators = start.elapsed().as_secs_f64();
        let start = Instant::now();
        if site.trial.is_none() {
            site.trial = Some(self.measured_at(&site)?);
        }
        let ((_, solver), (strengths, trial)) =
            (site.solver.as_ref().expect("just made"), site.trial.as_ref().expect("just made"));
        let count = site.own.as_ref().map_or(site.sources.len(), Vec::len) / facts.dim;
        let mut rows = vec![0.0; count * facts.values];
        let mut computed = Vec::new();
        for strengths in strengths {
            solver.apply(strengths, &mut rows, &mut |_, _| true)?;
            let row = |&i: &u32| &rows[facts.values * i as usize..facts.values * (i as usize + 1)];
            computed.push(trial.sample.targets.iter().flat_map(row).copied().collect());
        }
        let bounds = trial.bounds(&computed, facts, self.request.norm);
        seconds.sums = start.elapsed().as_secs_f64();
        self.site = Some(site);
        Ok((bounds, seconds))
    }

    fn trial(&self) -> Option<&Trial> {
        self.site.as_ref()?.trial.as_ref().map(|(_, trial)| trial)
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(mut site) = self.site.take() else { return Ok(Placed::default()) };
        watch("operators", 0.5)?;
        let start = Instant::now();
        let mut placed = Placed::default();
        placed.seconds.tree = site.seconds;
        if self.choice.order.is_none() {
            let targets = match (&site.targets, &site.pick) {
                (Some(t), _) => Targets::Points(t),
                (None, Some(s)) => Targets::Subset(s),
                (None, None) => Targets::Sources,
            };
            let sum = self.sum(&site.sources, targets)?;
            let held = Held::Direct { sum, chosen: site.pick };
            self.points = Some(Points { held, sources: site.sources, targets: site.targets });
            return Ok(placed);
        }
        let solver = match (&mut self.points, site.tree.take()) {
            // The plan that is there takes the new points.
            (Some(Points { held: Held::Fast { solver, order: there, .. }, .. }), Some(tree)) if *there == order => {
                solver.set_points(tree)?;
                None
            }
            (_, tree) => {
                site.tree = tree;
                self.solver(&mut site, order)?;
                site.solver.take().map(|(_, solver)| solver)
            }
        };
        let copy = OnceLock::new();
        let solver = match (solver, self.points.take()) {
            (Some(solver), _) => solver,
            (None, Some(Points { held: Held::Fast { solver, .. }, .. })) => solver,
            (None, _) => return Ok(placed),
        };
        placed.report = solver.report().clone();
        placed.say_softening(build_options(&self.request, &self.choice, &self.parts).min_side);
        (placed.seconds.lists, placed.seconds.operators) = (solver.seconds().lists, start.elapsed().as_secs_f64());
        let held = Held::Fast { solver, order, pick: site.pick, copy };
        self.points = Some(Points { held, sources: site.sources, targets: site.targets });
        self.choice.order = Some(order);
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(Points { held, sources, .. }) = &self.points else { return Ok(StageSeconds::default()) };
        let (solver, pick): (&dyn Solver, _) = match held {
            Held::Fast { solver, pick, .. } => (&**solver, pick.as_deref()),
            Held::Direct { sum, .. } => (&**sum, None),
        };
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let (n_sources, values) = (sources.len() / self.choice.facts.dim, self.choice.facts.values);
        picked(pick, n_sources, values, rows, |rows| solver.apply_batch(strengths, rows, &mut observer))
    }

    fn points(&self) -> (Vec<f64>, Vec<f64>) {
        let Some(points) = &self.points else { return Default::default() };
        (points.sources.clone(), points.targets.clone().unwrap_or_default())
    }

    fn mesh(&self) -> Mesh {
        let Some(points) = &self.points else { return Mesh::default() };
        match &points.held {
            Held::Fast { solver, .. } => mesh_of(&**solver),
            Held::Direct { chosen, .. } => {
                let [n, m] = points.shape(chosen.as_ref());
                Mesh { near_pairs: n as u64 * m as u64, ..Mesh::default() }
            }
        }
    }

    /// Empty if the lists could not be copied from the device.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(points) = &self.points else { return Box::new(std::iter::empty()) };
        match &points.held {
            Held::Fast { solver, pick, copy, .. } => {
                if copy.get().is_none()
                    && let Ok(there) = solver.download()
                {
                    let _ = copy.set(Box::new(there));
                }
                match copy.get().map(|copy| &**copy) {
                    Some((tree, lists)) => blocks(tree, lists, rows_of_sources(pick.as_deref(), tree.sources.len())),
                    None => Box::new(std::iter::empty()),
                }
            }
            Held::Direct { chosen, .. } => {
                let [n, m] = points.shape(chosen.as_ref());
                Box::new(std::iter::once(NearBlock::whole(m, n)))
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self.points.as_ref().map(|p| &p.held) {
            Some(Held::Fast { solver, .. }) => solver.bytes(),
            Some(Held::Direct { sum, .. }) => sum.bytes(),
            None => 0,
        }
    }
}
