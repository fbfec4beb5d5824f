//! A plan: everything that depends on the points, ready for many sets of strengths.

mod devices;
mod ranks;
mod verify;

pub(crate) use devices::Several;

use crate::attributes;
use crate::candidates::{self, Goal, Seen, Task};
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::coordinates::{self, Mapped};
use crate::decide::{self, Decision, Ends, decide, exact, measured, reported};
use crate::engine::{self, Engine, Placed};
use crate::mesh::{Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::output::Output;
use crate::probe::ProbeReport;
use crate::probe::search::{Next, Search};
use crate::request::{Fmm, Inherited, Method, Progress};
use crate::validate;
use backend_cuda::{DeviceArray, DeviceStream};
use fmm_families::AnyFamily;
use fmm_traits::{Error, Outputs, Targets};
use fmm_tree::BuildReport;
use rayon::ThreadPool;
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
    pub(crate) pool: Arc<ThreadPool>,
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
        let pool = Plan::pool(task.threads)?;
        let (cloud, seen) = pool.install(|| Plan::look(&request, &task, given, counts))?;
        let request = attributes::spread(request, seen.extent)?;
        let mut plan = Plan::without_engine(request, seen, pool)?;
        if counts.contains(&0) {
            plan.choice.why = "there is nothing to sum".to_string();
            plan.took(Placed::default(), counts, given);
        } else {
            let r = &plan.request;
            let watch = |phase, fraction| watch(r, phase, fraction);
            let (placed, decision) = plan.pool.install(|| -> Result<_, Error> {
                let mut decision = decide(r, &task, Ends { cloud: &cloud, seen }, &watch)?;
                // The engine holds what it needs of the points.
                drop(cloud);
                let placed = decision.engine.settle(decision.order, &watch)?;
                decision.engine.commit();
                Ok((placed, decision))
            })?;
            let Decision { engine, choice, mesh, probe, .. } = decision;
            (plan.engine, plan.choice, plan.probe, plan.probed) = (Some(engine), choice, probe, mesh);
            plan.took(placed, counts, given);
        }
        Ok(plan)
    }

    /// The points where the processor of the plan reads them, checked.
    fn look<'a>(r: &Fmm, task: &Task, given: Given<'a>, counts: [usize; 2]) -> Result<(Cloud<'a>, Seen), Error> {
        let cloud = Cloud::of(r, &task.facts, given, counts)?;
        let seen = Seen { counts, apart: given.separate(), extent: cloud.extent(task.facts.dim)? };
        task.facts.check(seen.extent)?;
        Ok((cloud, seen))
    }

    /// A plan without an engine, with the choice that is forecast from counts alone.
    fn without_engine(request: Fmm, seen: Seen, pool: rayon::ThreadPool) -> Result<Plan, Error> {
        Ok(Plan {
            choice: decide::forecast(&request, seen)?,
            request,
            engine: None,
            report: BuildReport::default(),
            seconds: PlanSeconds::default(),
            n_sources: 0,
            n_targets: 0,
            subset: None,
            separate: false,
            on_device: false,
            pool: Arc::new(pool),
            transposed: Mutex::default(),
            probe: None,
            probed: Mesh::default(),
        })
    }

    /// The thread pool in which a plan works.
    fn pool(threads: usize) -> Result<rayon::ThreadPool, Error> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map_err(|e| Error::Threads { threads, reason: e.to_string() })
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

    /// Replaces the points; the method and its operators stay. After an error the plan is as before.
    ///
    /// With a tolerance, the order is measured again if the counts of boxes, edges or near pairs differ by more than a
    /// tenth from the counts at the last measurement (direct sums in f32: always). The order then changes if it must;
    /// [`describe`](Plan::describe) reports the order and the points for which it was measured. If the number of points
    /// doubles or halves, or if targets become separate points, a new plan is made. A given order stays. The old points
    /// and the new points are in memory at once. On several [`ranks`](Fmm::ranks) every call plans anew, and may choose
    /// another method, but for fast methods on up to 32 GPUs.
    ///
    /// # Errors
    /// As [`Fmm::plan`].
    pub fn set_points<'a>(&mut self, sources: &[f64], targets: impl Into<Targets<'a>>) -> Result<(), Error> {
        self.set_given(Given::Host(sources, targets.into()))
    }

    /// [`set_points`](Plan::set_points) with points on a device, as for [`Fmm::plan_on_device`]. Waits for the
    /// evaluations on the old points. Points of a plan may be on the host first and then on a device, and the other way
    /// round.
    ///
    /// # Errors
    /// As [`Fmm::plan_on_device`]. The errors of [`Plan::synchronize`] on the old points; the plan then keeps its
    /// points.
    pub fn set_points_on_device(
        &mut self,
        sources: &DeviceArray,
        targets: Option<&DeviceArray>,
        stream: &DeviceStream,
    ) -> Result<(), Error> {
        self.set_given(Given::Device(sources, targets, stream))
    }

    fn set_given(&mut self, given: Given<'_>) -> Result<(), Error> {
        let start = Instant::now();
        if !self.request.backend.several().is_empty() {
            return self.set_on_devices(given);
        }
        let on_ranks = self.request.world.is_some();
        // On ranks, no evaluation runs after its call.
        if self.on_device && !on_ranks {
            self.synchronize()?;
        }
        let anew = on_ranks && (!self.request.has_whole_trees() || self.choice.method == Method::Direct);
        if anew || (given.on_device() || on_ranks) && self.request.unmapped.is_some() {
            *self = Plan::new(self.request.clone(), given)?;
            return Ok(());
        }
        let mapped = Mapped::of(&self.request, given)?;
        let given = Mapped::instead_of(&mapped, given);
        let (counts, kept) = self.request.jointly(|| self.resembles(given))?;
        let own @ [n_sources, _] = given.counts(self.choice.facts.dim)?;
        self.request.attributes.check_count(n_sources)?;
        let task = candidates::check_with(&self.request, counts, self.choice.facts.clone())?;
        let Some(engine) = self.engine.as_deref_mut().filter(|_| kept) else { return self.plan_again(given, start) };
        let r = &self.request;
        let watch = |phase, fraction| watch(r, phase, fraction);
        let old = (self.choice.order.unwrap_or_default(), &self.probed);
        let move_points = || {
            let cloud = match &r.world {
                Some(world) => Cloud::of_all_ranks(r, &task.facts, given, world)?,
                None => Cloud::of(r, &task.facts, given, counts)?,
            };
            cloud.extent(task.facts.dim)?;
            engine.place(&cloud, &watch)?;
            // The engine holds what it needs of the points.
            drop(cloud);
            match order_again(engine, r, &task, &self.choice, old)? {
                Again::None => Ok(None),
                Again::Kept(order) => Ok(Some((engine.settle(order, &watch)?, order, None))),
                Again::Found(order, found) => Ok(Some((engine.settle(order, &watch)?, order, Some(*found)))),
            }
        };
        let moved = self.pool.install(|| r.jointly(move_points));
        // All ranks have new points, or none.
        if let Ok(Some(_)) = moved {
            engine.commit();
        }
        engine.forget();
        // Without an order of the method that keeps the tolerance on these points, another method may.
        let Some((placed, order, found)) = moved? else { return self.plan_again(given, start) };
        if let Some(old) = self.choice.order {
            self.choice.why = match old == order {
                true => format!("kept at order {order} for points that moved"),
                false => format!("order {order} as the new points ask, {old} before"),
            };
        }
        self.choice.order = self.choice.order.map(|_| order);
        match (found, &mut self.probe) {
            (Some((report, mesh)), probe) => (*probe, self.probed) = (Some(report), mesh),
            (None, Some(probe)) => probe.of_earlier_points = true,
            (None, None) => {}
        }
        self.took(placed, own, given);
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Plans anew, for points in the coordinates of the family of the request.
    fn plan_again(&mut self, given: Given<'_>, start: Instant) -> Result<(), Error> {
        let request = self.request.clone();
        *self = if self.is_shared() { Plan::new(request, given)? } else { Plan::at(request, given)? };
        self.seconds.plan = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Numbers of sources and targets on all ranks, and whether new points are so much like the present ones that the
    /// method stays.
    fn resembles(&self, given: Given<'_>) -> Result<([usize; 2], bool), Error> {
        let own @ [n, m] = given.counts(self.choice.facts.dim)?;
        let alike = |old: usize, new: usize| new <= 2 * old && old <= 2 * new;
        let kept = alike(self.n_sources, n) && alike(self.n_targets, m) && self.separate == given.separate();
        let Some(world) = &self.request.world else { return Ok((own, kept && !own.contains(&0))) };
        let all = world.all_gather([n as u64, m as u64, u64::from(kept)])?;
        let [n, m, kept] = [0, 1, 2].map(|k| all.iter().map(|rank| rank[k] as usize).sum::<usize>());
        Ok(([n, m], kept == all.len() && n > 0 && m > 0))
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

    /// Aᵀv, where A is the matrix from strengths to potentials. `v` is M×c, the result N×s. The first call may make a
    /// plan with sources and targets exchanged, the [`transposed`](Plan::transposed) plan for the potential.
    ///
    /// # Errors
    /// As [`Plan::transposed`] and [`Plan::apply`].
    pub fn apply_transpose(&self, v: &[f64]) -> Result<Vec<f64>, Error> {
        self.one_rank_only("apply_transpose")?;
        self.host_only("apply_transpose")?;
        let (kernel, facts) = (self.request.family.name(), self.request.family.facts(Outputs::POTENTIAL)?);
        let values = facts.values;
        validate::matrix("values", v, self.n_targets, values, kernel)?;
        let plan = self.transposed(Outputs::POTENTIAL)?;
        if self.engine.is_none() {
            return Ok(vec![0.0; self.n_sources * facts.strengths]);
        }
        let mut spread = Vec::new();
        let mut v = v;
        if let Some(subset) = &self.subset {
            // Spreads `v` over all sources: the targets are a subset of the rows of the full matrix.
            spread.resize(self.n_sources * values, 0.0);
            for (from, &i) in v.chunks_exact(values).zip(subset) {
                for (k, x) in from.iter().enumerate() {
                    spread[i * values + k] += x;
                }
            }
            v = &spread;
        }
        Ok(plan.apply(v)?.potential)
    }

    /// The plan of the transposed sums w_j = Σ_i K(x_i − y_j)ᵀ·v_i, from the targets x_i of this plan to its sources
    /// y_j. Its strengths are the v_i, its potential are the w_j, its gradient is ∂w_j/∂y_j (components of w, then
    /// axes). With them a program has all derivatives of L = Σ_i v_i·u_i, where u_i are the sums of this plan: ∂L/∂q_j
    /// = w_j, ∂L/∂y_j = q_j·∂w_j/∂y_j, and ∂L/∂x_i = v_i·∂u_i/∂x_i with the gradient of this plan.
    ///
    /// The transposed plan has the points of this plan and the same processor. It measures its own order for the
    /// tolerance of this plan, or takes the given order. A method that the transposed kernel does not have is chosen
    /// anew. If K(−r) = K(r)ᵀ, the transposed plan for the potential has the leaves and the order of this plan, so that
    /// one matrix is the transpose of the other to the last digits. If the targets are a subset of the sources, the
    /// transposed plan takes values at all sources, which are 0 at sources that are no targets.
    ///
    /// The first call makes the transposed plan and keeps it. [`set_points`](Plan::set_points) drops it, and the next
    /// call makes a new one. A transposed plan that you still hold keeps the old points.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if sources have attributes, and for kernels with Laurent series without K(−r) = K(r)ᵀ;
    /// else as [`Fmm::plan`].
    pub fn transposed(&self, outputs: Outputs) -> Result<Arc<Plan>, Error> {
        self.one_rank_only("transposed sums")?;
        let mut slot = self.transposed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, plan)) = slot.iter().find(|(known, _)| *known == outputs) {
            return Ok(plan.clone());
        }
        let facts = self.request.family.facts(Outputs::POTENTIAL)?;
        let mut request = self.request.transposed(outputs)?;
        if let Some(engine) = self.engine.as_ref().filter(|_| facts.reciprocal && outputs == Outputs::POTENTIAL) {
            self.inherit(engine.asked().1, &mut request);
        }
        let (sources, targets) = match &self.engine {
            Some(engine) => engine.points()?,
            // Sums over nothing have no points.
            None => (vec![0.0; self.n_sources * facts.dim], vec![0.0; self.n_targets * facts.dim]),
        };
        let here = Targets::Points(&sources);
        let plan = match (self.separate, self.request.backend.processor().opened(&request).transpose()?) {
            (true, Some(device)) if self.on_device => {
                let [x, y] = [&targets, &sources].map(|points| DeviceArray::new(&device, points));
                Plan::at(request, Given::Device(&x?, Some(&y?), &DeviceStream::Null))?
            }
            (false, Some(device)) if self.on_device => {
                Plan::at(request, Given::Device(&DeviceArray::new(&device, &sources)?, None, &DeviceStream::Null))?
            }
            (true, _) => Plan::at(request, Given::Host(&targets, here))?,
            (false, _) => Plan::at(request, Given::Host(&sources, Targets::Sources))?,
        };
        let plan = Arc::new(plan);
        slot.push((outputs, plan.clone()));
        Ok(plan)
    }

    /// Gives a transposed `request` the order, the leaves and the near pairs of this plan, so that one matrix is the
    /// transpose of the other. (Plans for a subset agree to the tolerance only: their targets are separate points.)
    fn inherit(&self, choice: &Choice, request: &mut Fmm) {
        request.method = self.choice.method;
        request.inherited = Some(Inherited { error: choice.tolerance, occupancy: choice.occupancy });
        if let Some(order) = self.choice.order {
            (request.tolerance, request.order) = (None, Some(order));
            request.variant.theta = self.choice.theta();
        }
        if request.method == Method::Direct {
            request.variant = Default::default();
        }
    }
}

/// The order of a plan after its points have moved.
enum Again {
    /// The old order holds: the caller gave it, or the counts of the lists have changed too little.
    Kept(usize),
    /// A new measurement found this order. The probe and the counts of the points come with it.
    Found(usize, Box<(ProbeReport, Mesh)>),
    /// No order keeps the tolerance.
    None,
}

/// The order for newly placed points, from the old `order` and the counts `probed` of the points on which it was
/// measured.
fn order_again(
    engine: &mut dyn Engine,
    request: &Fmm,
    task: &Task,
    choice: &Choice,
    (order, probed): (usize, &Mesh),
) -> Result<Again, Error> {
    let tolerance = match (task.goal, choice.tolerance) {
        (Goal::Order(_), _) | (_, None) => return Ok(Again::Kept(order)),
        (_, Some(tolerance)) => tolerance,
    };
    // Rounding errors of direct sums in f32 depend on the points in a way that no count shows.
    let direct = choice.method == Method::Direct;
    if exact(request, choice.method) || !direct && engine.preview(order)?.resembles(probed) {
        return Ok(Again::Kept(order));
    }
    let mut search = Search::new(tolerance, choice.orders(), choice.digits(), order);
    let mut records = Vec::new();
    loop {
        match search.next() {
            Next::Measure(order, _) => search.measured(order, measured(engine, order, &mut records)?),
            Next::Stalled => return Ok(Again::None),
            Next::Found(order) => {
                let report = reported(engine, task, order, &records);
                return Ok(Again::Found(order, Box::new((report, engine.preview(order)?))));
            }
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
