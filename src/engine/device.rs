//! The engine on an NVIDIA GPU: fast methods on an octree, and direct summation.

use super::octree::{blocks, rows_of_sources};
use super::{Engine, Placed, ProbeSeconds, Watch};
use super::{bounds_of, build_options, list_options, not_placed, picked};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::sampled::{End, HALF_CORNER_POWER};
use crate::probe::{self, Trial};
use crate::request::{Cuda, Fmm};
use crate::variant::Expansion;
use backend_cuda::{CallerPoints, Counts, Cut, DeviceSolver, DeviceSums, DeviceTargets, Settings, SphericalSettings};
use fmm_kernels::equivalent::Fill;
use fmm_traits::{Error, Hierarchy, Lists, Precision, Stage, StageSeconds, Targets, Tree};
use fmm_tree::{BuildReport, Incoming};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Number of pairs of points that a CPU core sums in the time of a launch on the device with its transfers, about 50
/// µs.
const LAUNCH_PAIRS: usize = 50_000;

/// A fast method or a direct sum on the device.
pub(crate) struct Device {
    cuda: Cuda,
    request: Fmm,
    choice: Choice,
    parts: Parts,
    /// `None` before the first points are settled.
    points: Option<Points>,
    /// New points before they are settled.
    site: Option<Site>,
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
struct Site {
    sources: Arc<CallerPoints>,
    targets: DeviceTargets,
    /// The tree of the points; `None` for a direct sum.
    tree: Option<backend_cuda::Placed>,
    /// Seconds of [`Engine::place`].
    seconds: f64,
    /// A copy of the boxes on the host, and the sample on which errors are measured.
    trial: Option<(Tree, Trial)>,
}

impl Device {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, parts: Parts) -> Self {
        Device { cuda, request: request.clone(), choice: choice.clone(), parts, points: None, site: None }
    }

    /// The settings of a solver of an order.
    fn settings(&self, order: usize) -> Settings {
        let (r, parts) = (&self.request, &self.parts);
        let expansion = match parts.expansion {
            Expansion::Spherical => backend_cuda::Expansion::Spherical(SphericalSettings {
                truncation: parts.spherical.truncation,
                translation: Some(parts.translation_on_device(order, r.precision)),
            }),
            Expansion::Equivalent => backend_cuda::Expansion::Equivalent(Fill::Surface),
            Expansion::Interpolation => backend_cuda::Expansion::Equivalent(Fill::Volume),
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

    /// A solver of an order for points in their tree.
    fn solver(&self, order: usize, tree: backend_cuda::Placed) -> Result<Box<dyn DeviceSolver>, Error> {
        let r = &self.request;
        let kernels = match self.parts.expansion {
            Expansion::Interpolation => r.family.in_volume(r.outputs)?,
            Expansion::Equivalent | Expansion::Spherical => r.family.in_space(r.outputs)?,
        };
        kernels.device_solver(&self.settings(order), r.precision, tree)
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
        let sources = Arc::new(CallerPoints::new(&device, "sources", sources)?);
        self.sum(sources, DeviceTargets::new(&device, targets)?)
    }

    /// Direct sums of sets of strengths at points: the rows of each set.
    fn sums(&self, sources: &[f64], strengths: &[&[f64]], targets: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let (r, c) = (&self.request, &self.choice);
        let at = Targets::Points(targets);
        if (sources.len() / 3) * (targets.len() / 3) < LAUNCH_PAIRS {
            return r.family.direct(r.outputs, sources, strengths, at, Precision::F64, c.isa);
        }
        let sum = self.sum_of(sources, at)?;
        let mut rows = vec![vec![0.0; targets.len() / 3 * c.facts.values]; strengths.len()];
        let mut out: Vec<&mut [f64]> = rows.iter_mut().map(|rows| &mut rows[..]).collect();
        sum.apply_batch(strengths, &mut out, &mut |_, _| true)?;
        Ok(rows)
    }
}

/// Placed points on the device, for a sample.
struct OnDevice<'a> {
    cut: Cut<'a>,
    boxes: &'a Tree,
}

impl probe::sampled::Sampled for OnDevice<'_> {
    fn boxes(&self) -> &dyn Hierarchy {
        self.boxes
    }
    fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        self.cut.incoming()
    }
    fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        self.cut.near_rows(of)
    }
    fn far_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        self.cut.far_rows(of)
    }
    fn corner_sums(&self, of: End, half_power: u32) -> Result<Vec<f64>, Error> {
        match of {
            End::Sources => self.cut.corner_sums_of_sources(half_power),
            End::Targets => self.cut.corner_sums(half_power),
        }
    }
    fn points(&self, of: End, positions: &[u32]) -> Result<Vec<[f64; 3]>, Error> {
        Ok(rows(match of {
            End::Sources => self.cut.sources(positions)?,
            End::Targets => self.cut.targets(positions)?,
        }))
    }
    fn indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        self.cut.source_indices(positions)
    }
}

/// Arrays of x, y and z as points.
fn rows([x, y, z]: [Vec<f64>; 3]) -> Vec<[f64; 3]> {
    x.into_iter().zip(y).zip(z).map(|((x, y), z)| [x, y, z]).collect()
}

/// Counts of a tree and its lists on the device, without the mean over the targets. The count of points in M2P and P2L
/// assumes one mean leaf per edge.
fn mesh_of(c: &Counts, report: &BuildReport) -> Mesh {
    let [p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p] = c.edges;
    let edges = Edges { p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p };
    let far_points = ((p2l + m2p) as f64 * report.mean_leaf) as u64;
    let (levels, boxes, leaves, near_pairs) = (c.levels, c.boxes, c.leaves, c.near_pairs);
    Mesh { levels, boxes, leaves, root_side: c.root_side, edges, near_pairs, far_points, corners: 0.0 }
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
        self.sum_of(sources, targets)?.apply(strengths, &mut rows, &mut |_, _| true)?;
        Ok(rows)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        watch("tree", 0.0)?;
        let start = Instant::now();
        let (sources, targets) = cloud.on_device()?;
        let tree = match self.choice.order {
            None => None,
            Some(_) => {
                let options = build_options(&self.request, &self.choice, &self.parts);
                let device = self.cuda.open(self.request.cache.as_ref())?;
                let others = targets.points().map(|points| &**points);
                Some(backend_cuda::Placed::new(&device, &options, sources, others)?)
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        self.site = Some(Site { sources: sources.clone(), targets: targets.clone(), tree, seconds, trial: None });
        Ok(())
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        if self.choice.order.is_none() {
            return Ok(Mesh::default());
        }
        let settings = self.settings(order);
        let Some(tree) = self.site.as_mut().and_then(|site| site.tree.as_mut()) else { return not_placed() };
        let mut mesh = mesh_of(&tree.counts(&settings)?, tree.report());
        let cut = tree.cut(&settings)?;
        mesh.corners = cut.corner_sums(HALF_CORNER_POWER)?.iter().sum::<f64>() / cut.n_targets().max(1) as f64;
        Ok(mesh)
    }

    /// The host draws the sample from a copy of the boxes. The device cuts out the small tree with its lists and
    /// computes all sums. A direct sum is in f64, and its error counts as zero.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        if self.choice.order.is_none() {
            return Ok((vec![0.0; self.choice.facts.columns.len()], ProbeSeconds::default()));
        }
        let (start, settings) = (Instant::now(), self.settings(order));
        let Some(mut site) = self.site.take() else { return not_placed() };
        let Some(placed) = &mut site.tree else { return not_placed() };
        let (boxes, trial) = match site.trial.take() {
            Some(made) => made,
            None => {
                let boxes = placed.boxes()?;
                let there = OnDevice { cut: placed.cut(&settings)?, boxes: &boxes };
                let direct = |s: &[f64], q: &[&[f64]], t: &[f64]| self.sums(s, q, t);
                let near_errs = self.request.precision == Precision::F32;
                let trial = Trial::new(&there, &self.choice.facts, &self.request.attributes, near_errs, &direct)?;
                (boxes, trial)
            }
        };
        let small = placed.thin(&settings, &boxes, &trial.sample.of_errors.positions, &trial.sample.targets)?;
        let mut seconds = ProbeSeconds { sums: start.elapsed().as_secs_f64(), operators: 0.0 };
        let start = Instant::now();
        let solver = self.solver(order, small)?;
        seconds.operators = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let bounds = bounds_of(&self.request, &self.choice, &trial, &*solver)?;
        seconds.sums += start.elapsed().as_secs_f64();
        site.trial = Some((boxes, trial));
        self.site = Some(site);
        Ok((bounds, seconds))
    }

    fn trial(&self) -> Option<&Trial> {
        self.site.as_ref()?.trial.as_ref().map(|(_, trial)| trial)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(site) = self.site.take() else { return not_placed() };
        watch("operators", 0.5)?;
        let start = Instant::now();
        let mut placed = Placed::default();
        placed.seconds.tree = site.seconds;
        let n_sources = site.sources.len();
        let counts = [n_sources, site.targets.count(n_sources)];
        if self.choice.order.is_none() {
            let held = Held::Direct(self.sum(site.sources, site.targets)?);
            self.points = Some(Points { held, counts });
            return Ok(placed);
        }
        let pick = if let DeviceTargets::Subset(s) = site.targets { Some(s) } else { None };
        // The tree has the points, in its own order.
        drop(site.sources);
        let Some(tree) = site.tree else { return not_placed() };
        let solver = match self.points.take() {
            // A solver of the same order takes the new points.
            Some(Points { held: Held::Fast { mut solver, order: there, pick, copy }, counts }) if there == order => {
                if let Err(e) = solver.set_points(tree) {
                    let held = Held::Fast { solver, order, pick, copy };
                    self.points = Some(Points { held, counts });
                    return Err(e);
                }
                solver
            }
            // The current points and solver stay if the new solver fails.
            there => match self.solver(order, tree) {
                Ok(solver) => solver,
                Err(e) => {
                    self.points = there;
                    return Err(e);
                }
            },
        };
        placed.report = solver.report().clone();
        placed.say_softening(build_options(&self.request, &self.choice, &self.parts).min_side);
        (placed.seconds.lists, placed.seconds.operators) = (solver.seconds().lists, start.elapsed().as_secs_f64());
        let held = Held::Fast { solver, order, pick, copy: OnceLock::new() };
        self.points = Some(Points { held, counts });
        self.choice.order = Some(order);
        Ok(placed)
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
        points.held.sums().0.points().map(|[sources, targets]| (sources, targets))
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

    fn bytes(&self) -> u64 {
        self.points.as_ref().map_or(0, |p| p.held.sums().0.bytes())
    }
}
