//! The engine on an NVIDIA GPU: fast methods on an octree, and direct summation.

mod measure;
mod sampled;
mod site;

pub(crate) use sampled::OnDevice;
pub(crate) use site::{TREES_KEPT, Trees};

use self::sampled::mean_over_targets;
use self::site::{Shared, Site, into_placed, locked, mesh_of};
use super::octree::{blocks, rows_of_sources};
use super::{Engine, Placed, ProbeSeconds, Watch};
use super::{build_options, errors_of_attributes, list_options, not_placed, picked};
use crate::backend::Cuda;
use crate::candidates::Layout;
use crate::choice::Choice;
use crate::cloud::{Cloud, OfRanks, There};
use crate::mesh::Mesh;
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::Trial;
use crate::probe::sample::Sample;
use crate::probe::sampled::HALF_CORNER_POWER;
use crate::request::Fmm;
use crate::variant::Expansion;
use backend_cuda::{
    CallerPoints, DeviceArray, DeviceMethod, DeviceSolver, DeviceStream, DeviceSums, DeviceTargets, Ground, Settings,
    SphericalSettings, StrengthSets,
};
use fmm_kernels::equivalent::Fill;
use fmm_traits::{Error, Lists, Policy, Precision, Solver, Stage, StageSeconds, Targets, Tree};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// Largest number of solvers that are kept after their errors were measured. One of them becomes the solver of the plan,
/// most often the last or the one before.
const MEASURED_SOLVERS_KEPT: usize = 2;

/// A fast method or a direct sum on the device.
pub(crate) struct Device {
    cuda: Cuda,
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// `None` before the first points are settled.
    points: Option<Points>,
    /// New points before they are settled.
    new: Option<New>,
    /// Settled points before they are the current points.
    ready: Option<Ready>,
}

/// Settled points, in their solver.
enum Ready {
    /// In the solver of the current points.
    There { pick: Option<Vec<usize>>, counts: [usize; 2] },
    /// In another one.
    Apart(Points),
}

/// The solver on the device.
struct Points {
    held: Held,
    /// Numbers of sources and targets. A fast method has all sources as targets if its output shows a part of them.
    counts: [usize; 2],
}

/// The solver on the device.
enum Held {
    /// `pick` holds the sources that the output shows, if an evaluation at all sources serves a subset. `copy` holds
    /// tree and lists on the host, copied at the first request for the near field.
    Fast {
        solver: Box<dyn DeviceSolver>,
        order: usize,
        pick: Option<Vec<usize>>,
        copy: OnceLock<Box<(Tree, Lists)>>,
    },
    Direct(Box<dyn DeviceSums>),
}

impl Held {
    /// The sums, and the sources that the output shows.
    fn sums(&self) -> (&dyn DeviceSums, Option<&[usize]>) {
        match self {
            Held::Fast { solver, pick, .. } => (&**solver, pick.as_deref()),
            Held::Direct(sum) => (&**sum, None),
        }
    }
}

/// New points, before the order is known.
struct New {
    sources: Arc<CallerPoints>,
    targets: DeviceTargets,
    /// The tree of the points; `None` for a direct sum.
    tree: Option<Shared>,
    /// Seconds of [`Engine::place`].
    seconds: f64,
    /// The sample on which errors are measured.
    trial: Option<Arc<Trial>>,
    /// Solvers whose errors were measured, with their orders.
    solvers: Vec<(usize, Box<dyn DeviceSolver>)>,
}

/// The settings of a solver of an order.
fn settings(r: &Fmm, parts: &Parts, order: usize) -> Settings {
    let expansion = match parts.expansion {
        Expansion::Spherical => backend_cuda::Expansion::Spherical(SphericalSettings {
            truncation: parts.truncation,
            translation: Some(parts.translation_on_device(order, r.precision)),
            parents: parts.policy == Policy::Stencil119,
        }),
        Expansion::Equivalent => backend_cuda::Expansion::Equivalent(Fill::Surface),
        Expansion::Interpolation => backend_cuda::Expansion::Equivalent(Fill::Volume),
    };
    let (beside, cache) = (r.stages_apart.then_some(false), r.cache.clone());
    Settings { expansion, policy: parts.policy, order, lists: list_options(order, parts), beside, cache }
}

/// A solver of an order for points in their tree.
pub(crate) fn solver(
    r: &Fmm,
    parts: &Parts,
    order: usize,
    tree: backend_cuda::Placed,
) -> Result<Box<dyn DeviceSolver>, Error> {
    method(r, parts, order, &tree.ground())?.place(tree)
}

/// What `work` returns, and its seconds.
fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

/// A method of an order, ready for points.
fn method(r: &Fmm, parts: &Parts, order: usize, ground: &Ground) -> Result<Box<dyn DeviceMethod>, Error> {
    let mut kernels = match parts.expansion {
        Expansion::Interpolation => r.family.in_volume(r.outputs)?,
        Expansion::Equivalent | Expansion::Spherical => r.family.in_space(r.outputs)?,
    };
    kernels.kernels.nodes = r.attributes.nodes(&kernels.kernels, parts.grid.nodes);
    kernels.device_method(&settings(r, parts, order), r.precision, ground)
}

/// Loads the programs of the method and the order of a choice, and those of the direct sums that measure its errors. The method
/// is made without points and dropped; its programs stay loaded.
pub(crate) fn load_programs(device: &backend_cuda::Device, r: &Fmm, choice: &Choice) -> Result<(), Error> {
    let Layout::Octree(parts) = &choice.layout else { return Ok(()) };
    let of_order = || match choice.order {
        Some(order) => method(r, parts, order, &Ground::without_points(device)).map(drop),
        None => Ok(()),
    };
    let (sums, of_order) = rayon::join(|| r.family.in_space(r.outputs)?.load_device_sum(device), of_order);
    sums.and(of_order)
}

impl Device {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        Device { cuda, request: request.clone(), choice: choice.clone(), parts, points: None, new: None, ready: None }
    }

    /// The settings of a solver of an order.
    pub fn settings(&self, order: usize) -> Settings {
        settings(&self.request, &self.parts, order)
    }

    /// A solver of an order for points in their tree.
    fn solver(&self, order: usize, tree: backend_cuda::Placed) -> Result<Box<dyn DeviceSolver>, Error> {
        solver(&self.request, &self.parts, order, tree)
    }

    /// A direct sum, ready for strengths.
    fn sum(&self, sources: Arc<CallerPoints>, targets: DeviceTargets) -> Result<Box<dyn DeviceSums>, Error> {
        let r = &self.request;
        let device = self.cuda.open(r.cache.as_ref())?;
        r.family.in_space(r.outputs)?.device_sum(&device, sources, targets)
    }

    /// [`sum`](Self::sum) of points on the host.
    fn sum_of(&self, sources: &[f64], targets: Targets<'_>) -> Result<Box<dyn DeviceSums>, Error> {
        let device = self.cuda.open(self.request.cache.as_ref())?;
        let dim = self.parts.dim;
        let sources = Arc::new(CallerPoints::of_dim(&device, dim, "sources", sources)?);
        self.sum(sources.in_space()?, DeviceTargets::new(&device, dim, targets)?.in_space()?)
    }

    /// [`DeviceSolver::owned`] of the current points; none for a direct sum.
    pub fn owned(&self) -> Result<Vec<u32>, Error> {
        match self.points.as_ref().map(|points| &points.held) {
            Some(Held::Fast { solver, .. }) => solver.owned(),
            _ => Ok(Vec::new()),
        }
    }

    /// [`DeviceSolver::adopt`] for the current points; for a direct sum, the rows as they are.
    pub fn adopt(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error> {
        match self.points.as_ref().map(|points| &points.held) {
            Some(Held::Fast { solver, .. }) => solver.adopt(rows, width, stream),
            _ => Ok(rows.clone()),
        }
    }

    /// [`Engine::settle`]. `part` makes of the tree what the solver gets.
    pub fn settled(
        &mut self,
        order: usize,
        watch: Watch,
        part: impl FnOnce(backend_cuda::Placed) -> Result<backend_cuda::Placed, Error>,
    ) -> Result<Placed, Error> {
        let Some(New { sources, targets, tree, seconds, mut solvers, .. }) = self.new.take() else {
            return not_placed();
        };
        watch("operators", 0.5)?;
        let start = Instant::now();
        let mut placed = Placed::default();
        placed.seconds.tree = seconds;
        let counts = [sources.len(), targets.count(sources.len())];
        let Some(tree) = tree else {
            let held = Held::Direct(self.sum(sources, targets)?);
            self.ready = Some(Ready::Apart(Points { held, counts }));
            return Ok(placed);
        };
        let tree = match into_placed(tree) {
            Some(tree) => tree,
            None => {
                let options = build_options(&self.request, &self.choice, &self.parts);
                let device = self.cuda.open(self.request.cache.as_ref())?;
                backend_cuda::Placed::new(&device, &options, &sources, targets.points().map(|points| &**points))?
            }
        };
        // The tree has the points, in its own order.
        drop(sources);
        let tree = part(tree)?;
        let pick = if let DeviceTargets::Subset(s) = targets { Some(s) } else { None };
        let measured = solvers.iter().position(|(of, _)| *of == order).map(|at| solvers.swap_remove(at).1);
        drop(solvers);
        placed.report = tree.report().clone();
        placed.say_softening(build_options(&self.request, &self.choice, &self.parts).min_side);
        let (ready, lists) = match self.points.as_mut().map(|points| &mut points.held) {
            // A solver of the same order takes the new points.
            Some(Held::Fast { solver, order: there, .. }) if *there == order => {
                let lists = solver.make(tree)?.lists;
                (Ready::There { pick, counts }, lists)
            }
            _ => {
                let solver = match measured {
                    Some(mut solver) => solver.set_points(tree).map(|()| solver)?,
                    None => self.solver(order, tree)?,
                };
                let lists = solver.seconds().lists;
                let held = Held::Fast { solver, order, pick, copy: OnceLock::new() };
                (Ready::Apart(Points { held, counts }), lists)
            }
        };
        (placed.seconds.lists, placed.seconds.operators) = (lists, start.elapsed().as_secs_f64());
        self.ready = Some(ready);
        Ok(placed)
    }

    /// [`Engine::place`] for points on the device.
    pub fn place_there(&mut self, there: &There, watch: Watch) -> Result<(), Error> {
        watch("tree", 0.0)?;
        let start = Instant::now();
        let tree = self.choice.order.map(|_| self.tree(there)).transpose()?;
        let (sources, targets, seconds) = (there.sources.clone(), there.targets.clone(), start.elapsed().as_secs_f64());
        self.new = Some(New { sources, targets, tree, seconds, trial: None, solvers: Vec::new() });
        Ok(())
    }

    /// [`Engine::place`] for points of all ranks, of which each has its own. Returns false if each rank needs those of all. All
    /// ranks call it together.
    pub fn place_jointly(&mut self, all: &OfRanks, watch: Watch) -> Result<bool, Error> {
        watch("tree", 0.0)?;
        let start = Instant::now();
        let options = build_options(&self.request, &self.choice, &self.parts);
        let device = self.cuda.open(self.request.cache.as_ref())?;
        let Some(site) = Site::joint(&device, &options, &all.sources, all.targets.as_ref())? else { return Ok(false) };
        let sources = all.sources.own().clone();
        let targets = match &all.targets {
            None => DeviceTargets::Sources,
            Some(targets) => DeviceTargets::Points(targets.own().clone()),
        };
        let (tree, seconds) = (Some(Arc::new(Mutex::new(site))), start.elapsed().as_secs_f64());
        self.new = Some(New { sources, targets, tree, seconds, trial: None, solvers: Vec::new() });
        Ok(true)
    }

    /// Knows [`Mesh::corners`] of points that were [placed jointly](Self::place_jointly). All ranks call it together.
    pub fn know_corners(&self, all: &OfRanks) -> Result<(), Error> {
        let Some(tree) = self.new.as_ref().and_then(|new| new.tree.as_ref()) else { return not_placed() };
        let site = locked(tree);
        if site.corners.get().is_none() {
            let corners = site.placed.corners(all.targets(), HALF_CORNER_POWER)?;
            site.corners.get_or_init(|| corners);
        }
        Ok(())
    }

    /// A tree of new points, built or shared.
    fn tree(&self, there: &There) -> Result<Shared, Error> {
        let options = build_options(&self.request, &self.choice, &self.parts);
        let device = self.cuda.open(self.request.cache.as_ref())?;
        there.trees.tree(&device, &options, &there.sources, there.targets.points().map(|points| &**points))
    }
}

impl Engine for Device {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        self.cuda.memory_of_a_plan(self.request.cache.as_ref()).map(Some)
    }

    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        let facts = &self.choice.facts;
        let mut rows = vec![0.0; targets.count(sources.len() / facts.dim, facts.dim) * facts.values];
        self.sum_of(sources, targets)?.apply(strengths, &mut rows, &mut |_, _| true)?;
        Ok(rows)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        self.place_there(cloud.on_device()?, watch)
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        if self.choice.order.is_none() {
            return Ok(Mesh::default());
        }
        let settings = self.settings(order);
        let Some(tree) = self.new.as_ref().and_then(|new| new.tree.as_ref()) else { return not_placed() };
        let mut site = locked(tree);
        let mut mesh = mesh_of(&site.placed.counts(&settings)?, site.placed.report());
        mesh.corners = match site.corners.get() {
            Some(&known) => known,
            None => {
                let cut = site.placed.cut(&settings)?;
                let mean = mean_over_targets(&cut, cut.corner_sums(false, HALF_CORNER_POWER)?.1);
                *site.corners.get_or_init(|| mean)
            }
        };
        Ok(mesh)
    }

    /// The device draws the sample, cuts out the small tree with its lists, and computes all sums. A direct sum is in f64,
    /// and its error counts as zero.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        if self.choice.order.is_none() {
            return Ok((vec![0.0; self.choice.facts.columns.len()], ProbeSeconds::default()));
        }
        let start = Instant::now();
        let settings = self.settings(order);
        let Some(mut new) = self.new.take() else { return not_placed() };
        let Some(tree) = &new.tree else { return not_placed() };
        let mut guard = locked(tree);
        let site = &mut *guard;
        let ground = site.placed.ground();
        let edges = mesh_of(&site.placed.sizes(&settings)?, site.placed.report()).edges.of_points();
        let kept = site.trial(settings.policy, edges);
        let direct = |s, q: &StrengthSets, t| self.sums_at(s, q, t);
        let there = OnDevice { cut: site.placed.cut(&settings)?, direct: &direct, corners: &site.corners };
        let (small, fresh) = self.sums_of_sample(order, &ground, &there, kept.as_deref())?;
        let trial = match (kept, fresh) {
            (_, Some(fresh)) => site.keep(settings.policy, edges, fresh),
            (Some(kept), None) => kept,
            (None, None) => return not_placed(),
        };
        drop(guard);
        let small = small?;
        let bounds = trial.bounds(small.rows, &self.choice.facts, self.request.norm);
        if new.solvers.len() == MEASURED_SOLVERS_KEPT {
            new.solvers.remove(0);
        }
        new.solvers.push((order, small.solver));
        new.trial = Some(trial);
        self.new = Some(new);
        let [made, placed] = small.operators;
        Ok((bounds, ProbeSeconds { sums: start.elapsed().as_secs_f64() - placed, operators: made + placed }))
    }

    fn errors_of_attributes(&mut self, order: usize, nodes: usize) -> Result<Vec<f64>, Error> {
        let settings = self.settings(order);
        let Some(New { tree: Some(tree), solvers, .. }) = &self.new else { return not_placed() };
        let site = &mut *locked(tree);
        let trial = self.trial(site, &settings)?;
        let sample = &trial.drawn.sample;
        let measured = solvers.iter().find(|(of, _)| *of == order && self.request.precision == Precision::F64);
        let made = match measured {
            None if nodes == 1 => {
                let small = site.placed.cut(&settings)?.thin([&sample.of_errors.positions, &sample.targets])?;
                let exact = self.request.clone().precision(Precision::F64);
                Some(solver(&exact, &self.parts, order, small)?)
            }
            _ => None,
        };
        let one = made.as_ref().or(measured.map(|(_, solver)| solver)).filter(|_| nodes == 1);
        let direct = |s, q: &StrengthSets, t| self.sums_at(s, q, t);
        let cut = site.placed.cut(&settings)?;
        let there = OnDevice { cut, direct: &direct, corners: &site.corners };
        let asked = (&self.request, &self.choice);
        errors_of_attributes(asked, &trial, &there, nodes, one.map(|solver| &**solver as &dyn Solver))
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.new.as_ref()?.trial.as_deref()?.drawn.sample)
    }

    fn forget(&mut self) {
        (self.new, self.ready) = (None, None);
        if let Some(Points { held: Held::Fast { solver, .. }, .. }) = &mut self.points {
            solver.forget();
        }
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        self.settled(order, watch, Ok)
    }
    fn commit(&mut self) {
        match (self.ready.take(), &mut self.points) {
            (Some(Ready::There { pick, counts }), Some(points)) => {
                points.counts = counts;
                if let Held::Fast { solver, pick: there, copy, .. } = &mut points.held {
                    solver.commit();
                    (*there, *copy) = (pick, OnceLock::new());
                }
            }
            (Some(Ready::Apart(fresh)), points) => *points = Some(fresh),
            (Some(Ready::There { .. }) | None, _) => return,
        }
        if let Some(Points { held: Held::Fast { order, .. }, .. }) = &self.points {
            self.choice.order = Some(*order);
        }
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(Points { held, counts }) = &self.points else { return Ok(StageSeconds::default()) };
        let (sums, pick) = held.sums();
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        let values = self.choice.facts.values;
        picked(pick, counts[0], values, rows, |rows| sums.apply_batch(strengths, rows, &mut observer))
    }

    fn sums(&self) -> Option<&dyn DeviceSums> {
        let (sums, pick) = self.points.as_ref()?.held.sums();
        pick.is_none().then_some(sums)
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(points) = &self.points else { return Ok(Default::default()) };
        let [sources, targets] = points.held.sums().0.points()?;
        // On the device, points of the plane lie at z = 0.
        let own = |points: Vec<f64>| match self.parts.dim {
            3 => points,
            dim => points.chunks_exact(3).flat_map(|x| &x[..dim]).copied().collect(),
        };
        Ok((own(sources), own(targets)))
    }

    fn mesh(&self) -> Mesh {
        let Some(points) = &self.points else { return Mesh::default() };
        match &points.held {
            Held::Fast { solver, .. } => mesh_of(solver.counts(), solver.report()),
            Held::Direct(_) => {
                let [n, m] = points.counts;
                Mesh { near_pairs: n as u64 * m as u64, ..Mesh::default() }
            }
        }
    }

    /// The near field; empty if the device cannot copy its lists to the host.
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
            Held::Direct(_) => {
                let [n, m] = points.counts;
                Box::new(std::iter::once(NearBlock::whole(m, n)))
            }
        }
    }

    fn pieces(&self) -> usize {
        match self.points.as_ref().map(|points| &points.held) {
            Some(Held::Fast { solver, .. }) => solver.pieces(),
            Some(Held::Direct(_)) | None => 1,
        }
    }

    fn bytes(&self) -> u64 {
        self.points.as_ref().map_or(0, |p| p.held.sums().0.bytes())
    }
}
