//! Engines. An engine holds points and computes sums, with arrays in the caller's order. A plan checks the input,
//! chooses method and order, and then calls an engine. All engines share the trait [`Engine`]. Each engine has one
//! file.

mod census;
mod device;
mod direct;
mod direct_on_ranks;
mod octree;
mod plane;
mod ranks;
mod shares;

pub use census::Counted;
pub(crate) use device::{Device, OnDevice, TREES_KEPT, Trees, load_programs, solver as device_solver};
pub(crate) use direct::Direct;
use direct_on_ranks::DirectOnRanks;
pub(crate) use octree::{Octree, Sites, solver as host_solver};
pub(crate) use plane::{Plane, PlaneOnDevice};
use ranks::Ranks;
pub use ranks::RanksReport;
pub(crate) use ranks::{OnARank, on_cores};
pub(crate) use shares::Shares;

use crate::candidates::{self, Layout};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::machine;
use crate::mesh::{Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::plan::Several;
use crate::probe::decay::Decay;
use crate::probe::sample::Sample;
use crate::probe::sampled::Sampled;
use crate::probe::{Drawn, Trial};
use crate::request::{Fmm, Method};
use crate::variant::Truncation;
use backend_cuda::{DeviceArray, DeviceStream, DeviceSums};
use fmm_families::Facts;
use fmm_traits::{Error, Policy, Precision, Solver, StageSeconds, Targets};
use fmm_tree::{BuildOptions, BuildReport, ListOptions};
use std::sync::Arc;

/// A callback before each phase: the name of the phase and the fraction of the work already done. An error
/// (cancellation) ends the work.
pub(crate) type Watch<'a> = &'a dyn Fn(&'static str, f64) -> Result<(), Error>;

/// Report about placed points.
#[derive(Clone, Default)]
pub(crate) struct Placed {
    pub report: BuildReport,
    /// Seconds of the steps of a plan, without the total.
    pub seconds: PlanSeconds,
}

/// Seconds of a measurement.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ProbeSeconds {
    /// Sums, with the preparation of their points and lists.
    pub sums: f64,
    /// Operators, which later plans reuse.
    pub operators: f64,
}

impl Placed {
    /// Adds a warning if a softened kernel needs direct sums of pairs closer than `radius`. A `radius` of 0 gives no
    /// warning.
    fn say_softening(&mut self, radius: f64) {
        if radius > 0.0 {
            self.report.warnings.push(format!("pairs closer than {radius:.3e} are summed directly (softening)"));
        }
    }
}

/// An engine holds points and turns strengths into sums, all in the caller's order. The caller has checked points and
/// strengths; neither is empty. The plan calls an engine inside its thread pool.
///
/// New points enter in two steps. [`place`](Engine::place) stores the new points beside the current points, so that
/// orders can be [measured](Engine::measure) on the new points. [`settle`](Engine::settle) and [`commit`](Engine::commit)
/// make the new points the current points.
pub(crate) trait Engine: Send + Sync {
    /// The request of the caller, and the choice of the plan.
    fn asked(&self) -> (&Fmm, &Choice);
    /// Bytes in the memory of the processor that a plan may take, if known.
    fn free_memory(&self) -> Result<Option<u64>, Error> {
        Ok(machine::available_memory())
    }
    /// Direct sums in f64 at `targets`, independent of the points of the engine.
    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        let (r, c) = self.asked();
        let sums = r.family.direct(r.outputs, sources, &[strengths], targets, Precision::F64, c.isa)?;
        Ok(sums.into_iter().next().unwrap_or_default())
    }
    /// Stores new points beside the current points.
    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error>;
    /// Counts of boxes and edges of the new points at an order.
    fn preview(&mut self, order: usize) -> Result<Mesh, Error>;
    /// Bounds of the errors at an order on the new points, one per output of the facts.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error>;
    /// Bounds of the errors that attributes of sources cause with a number of values in far fields, one per output. For
    /// one value they depend on the `order`, which must have been measured; for more they do not.
    fn errors_of_attributes(&mut self, _order: usize, _nodes: usize) -> Result<Vec<f64>, Error> {
        not_placed()
    }
    /// The sample on which errors were measured.
    fn sample(&self) -> Option<&Sample>;
    /// Drops the new points, also if they are settled but not committed.
    fn forget(&mut self);
    /// Makes all that the new points need at an order. After an error the sums are as before.
    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error>;
    /// Makes the settled points the current points. Many engines did so when they settled the points; then there is
    /// nothing to do.
    fn commit(&mut self) {}
    /// Overwrites the `rows` (targets × values of the kernel) of each set of strengths with the sums of this set. The
    /// other sets of a call change no bit of the sums.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error>;
    /// The number of sets that share work in [`run`](Self::run), and the bytes of each set beyond the first.
    fn together(&self) -> (usize, u64) {
        (1, 0)
    }
    /// The sums of this engine on arrays of either precision, on a device or on the host. `None` if the engine has only
    /// [`run`](Self::run).
    fn sums(&self) -> Option<&dyn DeviceSums> {
        None
    }
    /// The sources, and the targets if the targets are separate points (else empty). On several ranks, those of the caller of
    /// this rank; all ranks call it together.
    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error>;
    /// Counts of boxes and edges of the current points.
    fn mesh(&self) -> Mesh;
    /// The part of this rank in a sum over several ranks; `None` for sums on one rank.
    fn on_ranks(&self) -> Option<RanksReport> {
        None
    }
    /// Moves rows of `width` numbers, one for each source of this rank, to the ranks that own the sources. Returns those of
    /// the sources that this rank owns, in tree order. If each rank owns its own sources, the rows stay as they are.
    fn adopt(&self, rows: &[f64], _width: usize) -> Result<Vec<f64>, Error> {
        Ok(rows.to_vec())
    }
    /// [`adopt`](Self::adopt) for rows on the device of this rank, in the order of a stream.
    fn adopt_on_device(&self, rows: &DeviceArray, _: usize, _: &DeviceStream) -> Result<DeviceArray, Error> {
        Ok(rows.clone())
    }
    /// The parts of several devices in a sum of this process; empty for others.
    fn on_devices(&self) -> Vec<RanksReport> {
        Vec::new()
    }
    /// The plans of several devices, if this is their sum.
    fn several(&mut self) -> Option<&mut Several> {
        None
    }
    /// The pairs that are summed directly, block by block.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_>;
    /// Pieces in which an evaluation takes the targets, one after the other.
    fn pieces(&self) -> usize {
        1
    }
    /// Bytes held.
    fn bytes(&self) -> u64;
}

/// The error of a step that needs placed points.
fn not_placed<T>() -> Result<T, Error> {
    Err(Error::Unsupported { operation: "a sum", reason: "no points were placed".to_string() })
}

/// A sample of a tree and its lists, with direct sums. `near_errs` tells whether near pairs are summed with less than
/// the precision of f64.
fn trial_of(request: &Fmm, choice: &Choice, site: &impl Sampled, near_errs: bool) -> Result<Trial, Error> {
    trial_with(drawn_of(request, choice, site, near_errs)?, request, choice, site)
}

/// [`trial_of`] before its direct sums.
fn drawn_of(request: &Fmm, choice: &Choice, site: &impl Sampled, near_errs: bool) -> Result<Arc<Drawn>, Error> {
    drawn_with(sample_of(request, choice, site, near_errs)?, request, choice, site)
}

/// Strengths for a sample of `site`.
fn drawn_with(sample: Sample, request: &Fmm, choice: &Choice, site: &impl Sampled) -> Result<Arc<Drawn>, Error> {
    Drawn::new(sample, site, &choice.facts, &request.attributes).map(Arc::new)
}

/// A sample of a tree and its lists: see [`trial_of`].
fn sample_of(request: &Fmm, choice: &Choice, site: &impl Sampled, near_errs: bool) -> Result<Sample, Error> {
    let attributes = request.attributes.usual();
    let decay = Decay::new(site, &choice.facts, &attributes, &direct_in_f64(request, choice))?;
    Sample::new(site, &decay, near_errs)
}

/// Direct sums at the points of a sample of `site`. CPU cores compute them in f64.
fn trial_with(drawn: Arc<Drawn>, request: &Fmm, choice: &Choice, site: &impl Sampled) -> Result<Trial, Error> {
    Trial::new(drawn, site, &choice.facts, &request.attributes, &direct_in_f64(request, choice))
}

/// Rows of values for each set of strengths.
type Sums = Result<Vec<Vec<f64>>, Error>;

/// A function that computes direct sums by CPU cores in f64.
fn direct_in_f64(request: &Fmm, choice: &Choice) -> impl Fn(&[f64], &[&[f64]], &[f64]) -> Sums {
    |sources, strengths, targets| {
        let at = Targets::Points(targets);
        request.family.direct(request.outputs, sources, strengths, at, Precision::F64, choice.isa)
    }
}

/// The sums of a solver for the targets of a sample.
fn sums_of(
    choice: &Choice,
    drawn: &Drawn,
    solver: &dyn Solver,
    strengths: &[Vec<f64>],
) -> Result<Vec<Vec<f64>>, Error> {
    let mut rows = vec![vec![0.0; drawn.sample.targets.len() * choice.facts.values]; strengths.len()];
    let strengths: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
    let mut out: Vec<&mut [f64]> = rows.iter_mut().map(|rows| &mut rows[..]).collect();
    solver.apply_batch(&strengths, &mut out, &mut |_, _| true)?;
    Ok(rows)
}

/// Bounds of the errors of a solver for the points of a trial, one per output of the facts.
fn bounds_of(request: &Fmm, choice: &Choice, trial: &Trial, solver: &dyn Solver) -> Result<Vec<f64>, Error> {
    let rows = sums_of(choice, &trial.drawn, solver, &trial.drawn.strengths)?;
    Ok(trial.bounds(rows, &choice.facts, request.norm))
}

/// [`Engine::errors_of_attributes`] for a trial of `site`. For one value, `solver` is one in f64 with this value for its
/// points: differences of sums in f32 would show their rounding.
fn errors_of_attributes(
    (request, choice): (&Fmm, &Choice),
    trial: &Trial,
    site: &impl Sampled,
    nodes: usize,
    solver: Option<&dyn Solver>,
) -> Result<Vec<f64>, Error> {
    let (family, facts) = (request.family.in_space(request.outputs)?, (&choice.facts, request.norm));
    let direct = |sources: &[f64], strengths: &[&[f64]], targets: &[f64]| {
        family.direct(sources, strengths, Targets::Points(targets), Precision::F64, choice.isa)
    };
    let Some(solver) = solver else {
        let nodes = request.attributes.nodes(&family.kernels, nodes);
        return trial.errors_of_interpolation(site, &nodes, facts, &direct);
    };
    trial
        .errors_of_one_value(site, &family.kernels, facts, &direct, &|sets| sums_of(choice, &trial.drawn, solver, sets))
}

/// [`Engine::run`] one set at a time.
fn one_by_one(
    strengths: &[&[f64]],
    rows: &mut [&mut [f64]],
    run: impl Fn(&[f64], &mut [f64]) -> Result<StageSeconds, Error>,
) -> Result<StageSeconds, Error> {
    let mut seconds = StageSeconds::default();
    for (strengths, rows) in strengths.iter().zip(rows) {
        let once = run(strengths, rows)?;
        seconds.iter_mut().zip(once).for_each(|(sum, s)| *sum += s);
    }
    Ok(seconds)
}

/// The engine of a choice, without points. On several ranks, each has one, and all call its methods together.
pub(crate) fn of(request: &Fmm, choice: &Choice) -> Box<dyn Engine> {
    if let Some(world) = &request.world {
        return match choice.layout {
            Layout::Octree(parts) if choice.method != Method::Direct => {
                let share = || request.backend.processor().engine_of_share(request, choice, parts, world);
                match request.has_whole_trees().then(share).flatten() {
                    Some(engine) => engine,
                    None => Box::new(Ranks::new(request, choice, parts, world)),
                }
            }
            _ => Box::new(DirectOnRanks::new(request, choice, world)),
        };
    }
    match choice.layout {
        Layout::Octree(parts) => request.backend.processor().engine(request, choice, parts),
        Layout::Pyramid { pairs, theta } => request.backend.processor().engine_of_plane(request, choice, pairs, theta),
    }
}

/// The options by which the tree of a choice splits boxes.
fn build_options(request: &Fmm, choice: &Choice, parts: &Parts) -> BuildOptions {
    let estimate = || candidates::error_of_order(parts, choice.order.unwrap_or(1));
    let error = choice.tolerance.or(request.inherited.and_then(|i| i.error)).unwrap_or_else(estimate);
    BuildOptions {
        ncrit: request.ncrit,
        // A given capacity decides alone, so that candidates with other wishes share a tree.
        occupancy: request.ncrit.map_or(choice.occupancy, |_| BuildOptions::default().occupancy),
        min_side: request.family.near_radius(error),
        // The points of a plane lie in its lowest layer of boxes, whatever the root.
        root: request.root.map(|([x, y, z], side)| ([x, y, if parts.dim == 3 { z } else { 0.0 }], side)),
    }
}

/// The sizes below which leaves of W and X edges are summed pair by pair. For equivalent densities the size is their
/// number in all far fields, for spherical harmonics the number of harmonics. For treecodes with spherical harmonics
/// the size is half the number of harmonics, or a quarter if far boxes use fewer degrees.
fn list_options(order: usize, parts: &Parts) -> ListOptions {
    let size = match (parts.lattice(order), parts.policy) {
        (Some(lattice), _) => parts.fields() * lattice.len(),
        (None, Policy::Treecode { .. }) if parts.truncation == Truncation::Variable => order * order / 4,
        (None, Policy::Treecode { .. }) => order * order / 2,
        (None, _) => order * order,
    };
    ListOptions { m2p_min_sources: size, p2l_min_targets: size }
}

/// The targets for an engine that knows only two cases, all sources or separate points. A subset of the sources becomes
/// one of the two.
pub(crate) enum Placement<'a> {
    /// All sources are targets. The output shows the sources in `pick`, or all sources for `None`.
    Sources { pick: Option<Vec<usize>> },
    /// Separate points.
    Points(std::borrow::Cow<'a, [f64]>),
}

impl<'a> Placement<'a> {
    /// Chooses the case. A kernel that is zero at r = 0 needs no index to skip self terms, so a subset becomes separate
    /// points.
    pub(crate) fn of(facts: &Facts, sources: &[f64], targets: Targets<'a>) -> Self {
        let dim = facts.dim;
        match targets {
            Targets::Points(t) => Placement::Points(t.into()),
            Targets::Sources => Placement::Sources { pick: None },
            Targets::Subset(s) if !facts.skips_self => {
                Placement::Points(s.iter().flat_map(|&i| &sources[dim * i..dim * (i + 1)]).copied().collect())
            }
            Targets::Subset(s) => Placement::Sources { pick: Some(s.to_vec()) },
        }
    }
    /// The targets of these two cases, and the shown sources as a subset.
    pub(crate) fn targets(&self) -> Targets<'_> {
        match self {
            Placement::Points(points) => Targets::Points(points),
            Placement::Sources { pick } => pick.as_deref().map_or(Targets::Sources, Targets::Subset),
        }
    }
    /// The separate points, if any.
    pub(crate) fn points(&self) -> Option<&[f64]> {
        if let Placement::Points(t) = self { Some(t) } else { None }
    }
    /// The sources that the output shows; `None` for all targets.
    pub(crate) fn into_pick(self) -> Option<Vec<usize>> {
        if let Placement::Sources { pick } = self { pick } else { None }
    }
}

/// Calls `sum`, and copies the rows of the sources in `pick` into `rows`. `sum` fills sources × `values` numbers per
/// set. Without a `pick`, `sum` writes straight into `rows`.
pub(crate) fn picked<T>(
    pick: Option<&[usize]>,
    n_sources: usize,
    values: usize,
    rows: &mut [&mut [f64]],
    sum: impl FnOnce(&mut [&mut [f64]]) -> Result<T, Error>,
) -> Result<T, Error> {
    let Some(pick) = pick else { return sum(rows) };
    let mut all = vec![vec![0.0; n_sources * values]; rows.len()];
    let mut sets: Vec<&mut [f64]> = all.iter_mut().map(|rows| &mut rows[..]).collect();
    let done = sum(&mut sets)?;
    for (rows, all) in rows.iter_mut().zip(&sets) {
        for (row, &i) in rows.chunks_exact_mut(values).zip(pick) {
            row.copy_from_slice(&all[i * values..(i + 1) * values]);
        }
    }
    Ok(done)
}
