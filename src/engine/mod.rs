//! The ways of computing, one file each, behind one trait: a plan checks, chooses and keeps the caller's order, an
//! engine holds the points and computes.

mod device;
mod direct;
mod octree;
mod plane;

pub(crate) use device::Device;
pub(crate) use direct::Direct;
pub(crate) use octree::Octree;

use crate::candidates::{self, Layout};
use crate::choice::Choice;
use crate::machine;
use crate::mesh::{Mesh, PlanSeconds};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::Trial;
use crate::request::{Fmm, Method};
use crate::variant::{Expansion, Truncation};
use fmm_families::Facts;
use fmm_kernels::equivalent::surface;
use fmm_traits::{Error, Hierarchy, Lists, Policy, Precision, Solver, StageSeconds, Targets};
use fmm_tree::{BuildOptions, BuildReport, ListOptions};

/// Called before each phase with the fraction done; an error (cancellation) ends the work.
pub(crate) type Watch<'a> = &'a dyn Fn(&'static str, f64) -> Result<(), Error>;

/// What placing the points had to report.
#[derive(Clone, Default)]
pub(crate) struct Placed {
    pub report: BuildReport,
    /// All but the total.
    pub seconds: PlanSeconds,
}

/// What a measurement took, in seconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProbeSeconds {
    /// Sums, and what they need of points and lists.
    pub sums: f64,
    /// Operators, which later plans find made.
    pub operators: f64,
}

impl Placed {
    /// Warns of pairs that are summed directly because their kernel is softened below `radius`, if it is.
    fn say_softening(&mut self, radius: f64) {
        if radius > 0.0 {
            self.report.warnings.push(format!("pairs closer than {radius:.3e} are summed directly (softening)"));
        }
    }
}

/// Points in, then strengths → sums; everything in the caller's order. Points and strengths have been checked and
/// are not empty. Called inside the thread pool of the plan.
///
/// Points enter in two steps: [`place`](Engine::place) takes them beside the ones that are there, so that orders can be
/// [measured](Engine::measure) on them; [`settle`](Engine::settle) makes them the points of the sums.
pub(crate) trait Engine: Send + Sync {
    /// What was asked for, and what was decided.
    fn asked(&self) -> (&Fmm, &Choice);
    /// Bytes that are left where it computes, if that is known.
    fn free_memory(&self) -> Result<Option<u64>, Error> {
        Ok(machine::available_memory())
    }
    /// Direct sums in f64 at `targets`, whatever the points of the engine.
    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        let (r, c) = self.asked();
        let sums = r.family.direct(r.outputs, sources, &[strengths], targets, Precision::F64, c.isa)?;
        Ok(sums.into_iter().next().unwrap_or_default())
    }
    /// Takes new points, beside those that are there.
    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<(), Error>;
    /// Boxes and edges of the new points at an order.
    fn preview(&mut self, order: usize) -> Result<Mesh, Error>;
    /// Bounds of the errors of the outputs at an order on the new points, one for each output of the facts.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error>;
    /// What errors were measured at.
    fn trial(&self) -> Option<&Trial>;
    /// Makes the new points those of the sums, at an order. On an error the sums are as before.
    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error>;
    /// Overwrites the `rows` (targets × values of the kernel) of each set of strengths with its sums, which have the same bits
    /// in whatever company.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error>;
    /// How many sets share work in [`run`](Self::run), and the bytes it takes for each beyond the first.
    fn together(&self) -> (usize, u64) {
        (1, 0)
    }
    /// The sources, and the targets if they are points of their own (else empty).
    fn points(&self) -> (Vec<f64>, Vec<f64>);
    /// Boxes and edges.
    fn mesh(&self) -> Mesh;
    /// Blocks of pairs that are summed directly.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_>;
    /// Bytes held.
    fn bytes(&self) -> u64;
}

/// What is wrong when a step needs points that were not placed.
fn not_placed<T>() -> Result<T, Error> {
    Err(Error::Unsupported { operation: "a sum", reason: "no points were placed".to_string() })
}

/// The points at which a tree with its lists is measured, with their direct sums, which CPU cores compute in f64.
fn trial_of<H: Hierarchy>(request: &Fmm, choice: &Choice, tree: &H, lists: &Lists) -> Result<Trial, Error> {
    let direct = |sources: &[f64], strengths: &[&[f64]], targets: &[f64]| {
        let at = Targets::Points(targets);
        request.family.direct(request.outputs, sources, strengths, at, Precision::F64, choice.isa)
    };
    Trial::new(tree, lists, &choice.facts, &direct)
}

/// Bounds of the errors of a solver for the points of a trial, one for each output of the facts.
fn bounds_of(request: &Fmm, choice: &Choice, trial: &Trial, solver: &dyn Solver) -> Result<Vec<f64>, Error> {
    let mut rows = vec![vec![0.0; trial.sample.targets.len() * choice.facts.values]; trial.strengths.len()];
    let strengths: Vec<&[f64]> = trial.strengths.iter().map(|q| &q[..]).collect();
    let mut out: Vec<&mut [f64]> = rows.iter_mut().map(|rows| &mut rows[..]).collect();
    solver.apply_batch(&strengths, &mut out, &mut |_, _| true)?;
    Ok(trial.bounds(&rows, &choice.facts, request.norm))
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

/// The engine of a choice, without points.
pub(crate) fn of(request: &Fmm, choice: &Choice) -> Box<dyn Engine> {
    match choice.layout {
        Layout::Octree(parts) => request.backend.processor().engine(request, choice, parts),
        Layout::Pyramid { .. } if choice.method == Method::Direct => Box::new(Direct::new(request, choice)),
        Layout::Pyramid { kernel, theta } => Box::new(plane::Plane::new(request, choice, kernel, theta)),
    }
}

/// How the boxes of a choice are split.
fn build_options(request: &Fmm, choice: &Choice, parts: &Parts) -> BuildOptions {
    let error = choice.tolerance.unwrap_or_else(|| candidates::error_of_order(parts, choice.order.unwrap_or(1)));
    BuildOptions {
        ncrit: request.ncrit,
        occupancy: choice.occupancy,
        min_side: request.family.near_radius(error),
        root: request.root,
    }
}

/// Small leaves of W and X edges are summed pair by pair: those with fewer points than the equivalent surface has, or than
/// harmonics; of a treecode half as many, and a quarter where far boxes take fewer degrees.
fn list_options(order: usize, parts: &Parts) -> ListOptions {
    let size = match (parts.expansion, parts.policy) {
        (Expansion::Equivalent, _) => surface::len(order),
        (Expansion::Spherical, Policy::Treecode { .. }) if parts.spherical.truncation == Truncation::Variable => {
            order * order / 4
        }
        (Expansion::Spherical, Policy::Treecode { .. }) => order * order / 2,
        (Expansion::Spherical, _) => order * order,
    };
    ListOptions { m2p_min_sources: size, p2l_min_targets: size }
}

/// How a subset of the sources is served by an engine that knows only points and whole sets.
pub(crate) enum Placement<'a> {
    /// All sources are targets, without self terms; `pick`: the ones that are shown.
    Sources { pick: Option<Vec<usize>> },
    /// Points of their own.
    Points(std::borrow::Cow<'a, [f64]>),
}

impl<'a> Placement<'a> {
    /// A kernel that is zero at r = 0 needs no index to skip self terms: its subsets are points.
    pub(crate) fn of(facts: &Facts, sources: &[f64], targets: Targets<'a>) -> Self {
        let dim = facts.dim;
        match targets {
            Targets::Points(t) => Placement::Points(t.into()),
            Targets::Sources => Placement::Sources { pick: None },
            Targets::Subset(s) if facts.singular => {
                Placement::Points(s.iter().flat_map(|&i| &sources[dim * i..dim * (i + 1)]).copied().collect())
            }
            Targets::Subset(s) => Placement::Sources { pick: Some(s.to_vec()) },
        }
    }
    /// The targets, when they are points of their own.
    pub(crate) fn points(&self) -> Option<&[f64]> {
        if let Placement::Points(t) = self { Some(t) } else { None }
    }
    /// The sources that are shown.
    pub(crate) fn into_pick(self) -> Option<Vec<usize>> {
        if let Placement::Sources { pick } = self { pick } else { None }
    }
}

/// `sum` (which fills sources × `values` numbers for each set) into `rows`, of which only those of `pick` are shown, if
/// given.
pub(crate) fn picked<T>(
    pick: Option<&[usize]>,
    n_sources: usize,
    values: usize,
    rows: &mut [&mut [f64]],
    sum: impl FnOnce(&mut [&mut [f64]]) -> Result<T, Error>,
) -> Result<T, Error> {
    let Some(pick) = pick else { return sum(rows) };
    let mut all = vec![0.0; rows.len() * n_sources * values];
    let mut sets: Vec<&mut [f64]> = all.chunks_exact_mut(n_sources * values).collect();
    let done = sum(&mut sets)?;
    for (rows, all) in rows.iter_mut().zip(&sets) {
        for (row, &i) in rows.chunks_exact_mut(values).zip(pick) {
            row.copy_from_slice(&all[i * values..(i + 1) * values]);
        }
    }
    Ok(done)
}
