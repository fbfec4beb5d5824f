//! A plan: everything that depends on the points, ready for many sets of strengths.

mod devices;
mod new_points;
mod ranks;
mod transposed;
mod verify;

pub(crate) use devices::Several;

use crate::attributes;
use crate::candidates::{self, Seen, Task};
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::coordinates::{self, Mapped};
use crate::decide::{self, Decision, Ends, decide, measured, reported};
use crate::engine::{self, Engine, Placed};
use crate::mesh::{Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::output::Output;
use crate::probe::ProbeReport;
use crate::request::{Fmm, Progress};
use crate::threads::Threads;
use backend_cuda::{DeviceArray, DeviceStream};
use fmm_families::AnyFamily;
use fmm_traits::{Error, Outputs, Targets};
use fmm_tree::BuildReport;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Sums over given points, ready for strengths. `Plan` is `Sync`: several threads may evaluate at once.
pub struct Plan {
    pub(crate) request: Fmm,
    pub(crate) choice: Choice,
    /// `None` without sources or without targets.
    pub(crate) engine: Option<Box<dyn Engine>>,
    pub(crate) report: BuildReport,
    pub(crate) seconds: PlanSeconds,
    pub(crate) n_sources: usize,
    pub(crate) n_targets: usize,
    /// The indices of the targets, if the targets are a subset of the sources.
    subset: Option<Vec<usize>>,
    /// Whether the targets are separate points.
    separate: bool,
    /// Whether the arrays of the caller are on a device.
    pub(crate) on_device: bool,
    pub(crate) pool: Threads,
    /// Plans with sources and targets exchanged, by their outputs.
    transposed: Mutex<Vec<(Outputs, Arc<Plan>)>>,
    /// The measurements that chose the order; `None` if the caller gave the order.
    pub(crate) probe: Option<ProbeReport>,
    /// Counts of boxes and edges of the points on which the probe measured.
    probed: Mesh,
}

impl Fmm {
    /// Plans sums from `sources` (N×3; in the plane N×2) to `targets`.
    ///
    /// # Errors
    /// Arguments outside their domain, NaN or infinity in the points, an output that the kernel does not have, a
    /// forecast beyond the free memory. [`Error::Fact`] for a kernel that contradicts its own stated facts.
    /// [`Error::ToleranceFloor`] with the measured error, if no order of the method keeps the tolerance for this kernel
    /// on these points.
    pub fn plan<'a>(&self, sources: &[f64], targets: impl Into<Targets<'a>>) -> Result<Plan, Error> {
        Plan::new(self.clone(), Given::Host(sources, targets.into()))
    }
    /// Plans sums from points on the device of a [`Cuda`](crate::Cuda) backend: `sources` (N×3) to `targets` (M×3), or
    /// to the sources themselves (`None`; the same array given as targets counts as separate points). Coordinates are
    /// f32 or f64. The points are copied after the work that is already in `stream`. When the call returns, the caller
    /// may change the arrays. Such a plan is applied by [`Plan::apply_on_device`].
    ///
    /// # Errors
    /// As [`Fmm::plan`]; [`Error::Unsupported`] with another backend, or if sources have
    /// [attributes](Fmm::attribute), which are on the host; [`Error::Array`] for an array or stream of another device.
    pub fn plan_on_device(
        &self,
        sources: &DeviceArray,
        targets: Option<&DeviceArray>,
        stream: &DeviceStream,
    ) -> Result<Plan, Error> {
        Plan::new(self.clone(), Given::Device(sources, targets, stream))
    }
    /// Forecast bytes of a plan and one evaluation for `n_sources` and `n_targets` distinct points, with all targets in
    /// one piece, on arrays in the precision of the plan. The forecast uses counts alone; its order is a first guess from
    /// the tolerance. The counts are those of all [`ranks`](Fmm::ranks), the bytes those of one.
    ///
    /// # Errors
    /// As [`Fmm::plan`], except for the errors of the points.
    pub fn memory(&self, n_sources: usize, n_targets: usize) -> Result<u64, Error> {
        Ok(decide::forecast(self, Seen { counts: [n_sources, n_targets], apart: true, extent: 0.0 })?.forecast.bytes)
    }
}

/// Plans, evaluates once and drops the plan. Returns the potential, or the requested `outputs`, at `targets` of
/// `sources` (N×3) with `strengths` (N×s), to a relative error of `tolerance`.
///
/// # Errors
/// As [`Fmm::plan`] and [`Plan::apply`].
pub fn evaluate<'a>(
    family: impl Into<AnyFamily>,
    sources: &[f64],
    strengths: &[f64],
    targets: impl Into<Targets<'a>>,
    outputs: Outputs,
    tolerance: f64,
) -> Result<Output, Error> {
    Fmm::new(family).tolerance(tolerance).outputs(outputs).plan(sources, targets)?.apply(strengths)
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.describe().fmt(f)
    }
}

impl Plan {
    pub(crate) fn new(request: Fmm, given: Given<'_>) -> Result<Plan, Error> {
        if let Some(world) = request.world.clone() {
            return Plan::on_ranks(request, given, &world);
        }
        let several = request.backend.several();
        if !several.is_empty() {
            return Plan::on_devices(request, given, several);
        }
        let start = Instant::now();
        let [n_sources, _] = given.counts(request.family.dim())?;
        let request = coordinates::resolve(attributes::resolve(request, n_sources)?, &given);
        let mapped = Mapped::of(&request, given)?;
        let mut plan = Plan::at(request, Mapped::instead_of(&mapped, given))?;
        plan.seconds.plan = start.elapsed().as_secs_f64();
        Ok(plan)
    }

    /// A plan for points in the coordinates of the family of the request.
    fn at(request: Fmm, given: Given<'_>) -> Result<Plan, Error> {
        let counts = given.counts(request.family.dim())?;
        let task = candidates::check(&request, counts)?;
        let pool = Threads::new(task.threads)?;
        let (cloud, seen) = pool.install(|| Plan::look(&request, &task, given, counts))?;
        let request = attributes::spread(request, seen.extent)?;
        if counts.contains(&0) {
            let choice = Choice { why: "there is nothing to sum".to_string(), ..decide::forecast(&request, seen)? };
            let mut plan = Plan::without_engine(request, choice, pool);
            plan.took(Placed::default(), counts, given);
            return Ok(plan);
        }
        let watch = |phase, fraction| watch(&request, phase, fraction);
        let (placed, decision) = pool.install(|| -> Result<_, Error> {
            let mut decision = decide(&request, &task, Ends { cloud: &cloud, seen }, &watch)?;
            // The engine holds what it needs of the points.
            drop(cloud);
            let placed = decision.engine.settle(decision.order, &watch)?;
            decision.engine.commit();
            Ok((placed, decision))
        })?;
        let Decision { engine, choice, mesh, probe, .. } = decision;
        let mut plan = Plan::without_engine(request, choice, pool);
        (plan.engine, plan.probe, plan.probed) = (Some(engine), probe, mesh);
        plan.took(placed, counts, given);
        Ok(plan)
    }

    /// The points where the processor of the plan reads them, checked.
    fn look<'a>(r: &Fmm, task: &Task, given: Given<'a>, counts: [usize; 2]) -> Result<(Cloud<'a>, Seen), Error> {
        let cloud = Cloud::of(r, &task.facts, given, counts)?;
        let seen = Seen { counts, apart: given.separate(), extent: cloud.extent(task.facts.dim)? };
        task.facts.check(seen.extent)?;
        Ok((cloud, seen))
    }

    /// A plan without an engine.
    fn without_engine(request: Fmm, choice: Choice, pool: Threads) -> Plan {
        Plan {
            choice,
            request,
            engine: None,
            report: BuildReport::default(),
            seconds: PlanSeconds::default(),
            n_sources: 0,
            n_targets: 0,
            subset: None,
            separate: false,
            on_device: false,
            pool,
            transposed: Mutex::default(),
            probe: None,
            probed: Mesh::default(),
        }
    }

    /// Whether several ranks, or several devices, share the sums.
    pub(crate) fn is_shared(&self) -> bool {
        self.request.world.is_some() || !self.request.backend.several().is_empty()
    }

    /// Records the counts and times of points on which the engine was settled.
    fn took(&mut self, placed: Placed, [n_sources, n_targets]: [usize; 2], given: Given<'_>) {
        (self.report, self.seconds) = (placed.report, placed.seconds);
        self.seconds.probe = self.probe.as_ref().map_or(0.0, |p| p.seconds);
        (self.n_sources, self.n_targets) = (n_sources, n_targets);
        self.subset = given.subset().map(<[usize]>::to_vec);
        (self.separate, self.on_device) = (given.separate(), given.on_device());
        self.transposed = Mutex::default();
    }

    /// Repeats the measurement of the error on the points of the plan; `None` without points.
    ///
    /// # Errors
    /// As [`Plan::apply`].
    pub fn probe(&self) -> Result<Option<ProbeReport>, Error> {
        self.one_rank_only("probe")?;
        let Some(engine) = &self.engine else { return Ok(None) };
        let task = candidates::check(&self.request, [self.n_sources, self.n_targets])?;
        let (sources, points) = engine.points()?;
        let targets = match (&self.subset, self.separate) {
            (Some(subset), _) => Targets::Subset(subset),
            (None, true) => Targets::Points(&points),
            (None, false) => Targets::Sources,
        };
        let mut fresh = engine::of(&self.request, engine.asked().1);
        let order = self.choice.order.unwrap_or_default();
        self.pool.install(|| {
            let (given, counts) = (Given::Host(&sources, targets), [self.n_sources, self.n_targets]);
            fresh.place(&Cloud::of(&self.request, &task.facts, given, counts)?, &|_, _| Ok(()))?;
            let mut records = Vec::new();
            measured(&mut *fresh, order, &mut records)?;
            Ok(Some(reported(&*fresh, &task, order, &records)))
        })
    }

    /// Number of sources N.
    pub fn n_sources(&self) -> usize {
        self.n_sources
    }
    /// Number of targets M.
    pub fn n_targets(&self) -> usize {
        self.n_targets
    }
    /// Coordinates per point: 3, or 2 in the plane.
    pub fn dim(&self) -> usize {
        self.choice.facts.dim
    }
    /// Strengths per source s.
    pub fn strengths(&self) -> usize {
        self.choice.facts.linear()
    }
    /// Components per target of a requested output; 0 for any other output.
    pub fn components(&self, output: Outputs) -> usize {
        self.choice.facts.components(output)
    }
    /// Bytes that the plan holds.
    pub fn memory(&self) -> u64 {
        self.engine.as_ref().map_or(0, |e| e.bytes())
    }

    /// The blocks of pairs that are summed directly, in the caller's indices. No pair is in two blocks. If the targets
    /// are the sources, the pair (i, i) is in a block, but the sum skips it unless it includes self terms. A direct
    /// plan has one block. On several ranks there is none: sources of other ranks have no index here.
    pub fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        match &self.engine {
            Some(engine) => engine.near_field(),
            None => Box::new(std::iter::empty()),
        }
    }
}

/// Reports the next phase to the callback of the caller; an error if the callback cancels.
pub(crate) fn watch(request: &Fmm, phase: &'static str, fraction: f64) -> Result<(), Error> {
    match &request.watch {
        Some(watch) if !watch(Progress { phase, fraction }) => Err(Error::Cancelled { stage: phase }),
        _ => Ok(()),
    }
}
