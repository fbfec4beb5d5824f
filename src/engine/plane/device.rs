//! The engine of the plane on an NVIDIA GPU: every phase of the method, and direct summation.

use super::Sampled;
use crate::backend::Cuda;
use crate::choice::Choice;
use crate::cloud::{Cloud, There};
use crate::engine::{Engine, OnDevice, Placed, ProbeSeconds, Watch, bounds_of, not_placed, trial_of};
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions};
use backend_cpu::laurent::{LaurentPlan, PlanePairs};
use backend_cuda::{
    DeviceSums, PlaneCounts, PlanePlaced, PlaneSettings, PlaneSolver, StrengthSets, plane_solver, plane_sums,
};
use fmm_families::derivatives;
use fmm_traits::{Error, Lists, Precision, Stage, StageSeconds};
use std::sync::OnceLock;
use std::time::Instant;

/// The method in the plane, or direct sums, on a device.
pub(crate) struct PlaneOnDevice {
    cuda: Cuda,
    pairs: PlanePairs,
    request: Fmm,
    choice: Choice,
    theta: f64,
    /// `None` before the first points are settled.
    held: Option<Held>,
    /// New points before they are settled.
    site: Option<Site>,
}

/// Settled points.
struct Held {
    solver: Box<dyn PlaneSolver>,
    order: Option<usize>,
    mesh: Mesh,
    /// Pyramid and lists on the host, copied at the first request for the near field.
    copy: OnceLock<Box<(Pyramid, Lists)>>,
}

/// New points in their pyramid, before the order is known.
struct Site {
    there: PlanePlaced,
    placed: Placed,
    sampled: Option<Sampled>,
}

impl PlaneOnDevice {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, pairs: PlanePairs, theta: f64) -> Self {
        let (request, choice) = (request.clone(), choice.clone());
        PlaneOnDevice { cuda, pairs, request, choice, theta, held: None, site: None }
    }

    fn derivatives(&self) -> usize {
        derivatives(self.request.outputs)
    }

    /// The settings of a solver of an order. Direct sums are in f64 for either precision. So is the near field of second
    /// derivatives of poles, because cubes of 1/r of close pairs leave the range of f32.
    fn settings(&self, order: Option<usize>) -> PlaneSettings {
        let precision = if order.is_some() { self.request.precision } else { Precision::F64 };
        PlaneSettings {
            kernel: self.pairs.kernel,
            columns: self.choice.facts.columns.clone(),
            derivatives: self.derivatives(),
            order,
            precision,
            near: if self.pairs.poles() && self.derivatives() == 2 { Precision::F64 } else { precision },
        }
    }

    /// A sample of placed points, and the small problem of its points. The device draws the sample, computes its direct
    /// sums, and cuts the small problem out. That is copied, with all boxes.
    fn sampled(&self, there: &PlanePlaced) -> Result<Sampled, Error> {
        let device = self.cuda.open(self.request.cache.as_ref())?;
        let (kernel, derivatives) = (self.pairs.kernel, self.derivatives());
        let direct = |s, q: &StrengthSets, t| plane_sums(&device, kernel, derivatives, (s, t), q);
        let site = OnDevice { cut: there.cut()?, direct: &direct, corners: &OnceLock::new() };
        let trial = trial_of(&self.request, &self.choice, &site, self.request.precision == Precision::F32)?;
        let kept = [&trial.drawn.sample.of_errors.positions[..], &trial.drawn.sample.targets];
        let thin = site.cut.thin_pyramid(&there.boxes()?, kept)?;
        Ok(Sampled::new(trial, thin))
    }

    /// Error bounds of an order in f64, measured on the host: the arithmetic of the device is the same up to rounding,
    /// and no program is compiled for an order that is not taken.
    fn bounds_on_host(&self, order: usize, sampled: &mut Sampled) -> Result<Vec<f64>, Error> {
        let (shape, (pyramid, lists)) = ((order, self.derivatives()), sampled.thin.clone());
        let plan = LaurentPlan::new(self.pairs, shape, pyramid, lists, self.choice.isa, false)?;
        sampled.bounds(&plan, &self.request, &self.choice)
    }
}

impl Engine for PlaneOnDevice {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        self.cuda.memory_of_a_plan(self.request.cache.as_ref()).map(Some)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        watch("tree", 0.0)?;
        let There { sources, targets, .. } = cloud.on_device()?;
        let device = self.cuda.open(self.request.cache.as_ref())?;
        let depth = if self.choice.order.is_none() { Some(0) } else { None };
        let options = PyramidOptions { population: self.choice.occupancy.max(1.0), depth };
        let connection = ConnectOptions { theta: self.theta, ..ConnectOptions::default() };
        let targets = targets.points().map(|points| &**points);
        let there = PlanePlaced::new(&device, sources, targets, &options, &connection)?;
        let mut placed = Placed::default();
        placed.report.ncrit = self.choice.occupancy.ceil() as usize;
        (placed.seconds.tree, placed.seconds.lists) = (there.seconds().tree, there.seconds().lists);
        self.site = Some(Site { there, placed, sampled: None });
        Ok(())
    }

    fn preview(&mut self, _: usize) -> Result<Mesh, Error> {
        Ok(self.site.as_ref().map_or_else(Mesh::default, |s| mesh_of(&s.there.counts(), s.there.radius())))
    }

    /// A direct sum is in f64, and its error counts as zero.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        if self.choice.order.is_none() {
            return Ok((vec![0.0; self.choice.facts.columns.len()], ProbeSeconds::default()));
        }
        let start = Instant::now();
        let Some(mut site) = self.site.take() else { return not_placed() };
        let mut sampled = site.sampled.take().map_or_else(|| self.sampled(&site.there), Ok)?;
        let bounds = match self.request.precision {
            Precision::F64 => self.bounds_on_host(order, &mut sampled)?,
            Precision::F32 => {
                let device = self.cuda.open(self.request.cache.as_ref())?;
                let points = PlanePlaced::upload(&device, &sampled.thin.0, &sampled.thin.1)?;
                let solver = plane_solver(&self.settings(Some(order)), points)?;
                bounds_of(&self.request, &self.choice, &sampled.trial, &*solver)?
            }
        };
        self.site = Some(Site { sampled: Some(sampled), ..site });
        Ok((bounds, ProbeSeconds { sums: start.elapsed().as_secs_f64(), operators: 0.0 }))
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.site.as_ref()?.sampled.as_ref()?.trial.drawn.sample)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(Site { there, mut placed, .. }) = self.site.take() else { return not_placed() };
        watch("operators", 0.5)?;
        let start = Instant::now();
        let order = self.choice.order.map(|_| order);
        let mesh = mesh_of(&there.counts(), there.radius());
        let solver = match self.held.take() {
            // A solver of the same order takes the new points.
            Some(mut held) if held.order == order => {
                if let Err(e) = held.solver.set_points(there) {
                    self.held = Some(held);
                    return Err(e);
                }
                held.solver
            }
            // The current points and solver stay if the new solver fails.
            held => match plane_solver(&self.settings(order), there) {
                Ok(solver) => solver,
                Err(e) => {
                    self.held = held;
                    return Err(e);
                }
            },
        };
        placed.seconds.operators = start.elapsed().as_secs_f64();
        self.held = Some(Held { solver, order, mesh, copy: OnceLock::new() });
        self.choice.order = order;
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(held) = &self.held else { return Ok(StageSeconds::default()) };
        let mut observer = |stage: Stage, done: f64| watch(stage.name(), done).is_ok();
        held.solver.apply_batch(strengths, rows, &mut observer)
    }

    fn sums(&self) -> Option<&dyn DeviceSums> {
        self.held.as_ref().map(|held| &*held.solver as &dyn DeviceSums)
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(held) = &self.held else { return Ok(Default::default()) };
        held.solver.points().map(|[sources, targets]| (sources, targets))
    }

    fn mesh(&self) -> Mesh {
        self.held.as_ref().map_or_else(Mesh::default, |held| held.mesh.clone())
    }

    /// The near field; empty if the device cannot copy its lists to the host.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        let Some(held) = &self.held else { return Box::new(std::iter::empty()) };
        if held.copy.get().is_none()
            && let Ok(there) = held.solver.download()
        {
            let _ = held.copy.set(Box::new(there));
        }
        match held.copy.get().map(|copy| &**copy) {
            Some((pyramid, lists)) => super::near_blocks(pyramid, lists),
            None => Box::new(std::iter::empty()),
        }
    }

    fn bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.solver.bytes())
    }
}

/// Counts of a pyramid and its lists on a device. Edges along the tree are counted as if no box were empty, points of M2P
/// and P2L as if all leaves were equal.
fn mesh_of(c: &PlaneCounts, radius: f64) -> Mesh {
    let leaves = 1usize << (2 * (c.levels - 1));
    let [m2l, p2l, m2p, p2p] = c.edges;
    let (p2m, m2m) = (leaves, c.boxes - 1);
    let edges = Edges { p2m, m2m, m2l, p2l, l2l: m2m, l2p: leaves, m2p, p2p };
    let mean = if p2p > 0 { (c.near_pairs as f64 / p2p as f64).sqrt() } else { 0.0 };
    Mesh {
        levels: c.levels,
        boxes: c.boxes,
        leaves,
        root_side: 2.0 * radius,
        edges,
        near_pairs: c.near_pairs,
        far_points: ((m2p + p2l) as f64 * mean) as u64,
        corners: 0.0,
    }
}
