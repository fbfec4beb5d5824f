//! The ways of computing, one file each, behind one trait: a plan checks, chooses and keeps the caller's order, an
//! engine holds the points and computes.

mod cuda;
mod direct;
mod octree;
mod plane;

use crate::choose::{Choice, Layout};
use crate::describe::{Edges, PlanSeconds};
use crate::near::NearBlock;
use crate::request::{Backend, Fmm, Method, Targets};
use crate::variant::Parts;
use crate::{machine, tuning};
use backend_cpu::Precision;
use fmm_families::Facts;
use fmm_traits::{Error, Stage};
use fmm_tree::{BuildOptions, BuildReport};

/// Called before each phase with the fraction done; an error (cancellation) ends the work.
pub(crate) type Watch<'a> = &'a dyn Fn(&'static str, f64) -> Result<(), Error>;

/// Seconds of each stage.
pub(crate) type Seconds = [f64; Stage::ALL.len()];

/// What placing the points had to report.
#[derive(Default)]
pub(crate) struct Placed {
    pub report: BuildReport,
    /// All but the total.
    pub seconds: PlanSeconds,
}

impl Placed {
    /// Warns of pairs that are summed directly because their kernel is softened below `radius`, if it is.
    fn say_softening(&mut self, radius: f64) {
        if radius > 0.0 {
            self.report.warnings.push(format!("pairs closer than {radius:.3e} are summed directly (softening)"));
        }
    }
}

/// What an engine made of the points; all zero without boxes.
#[derive(Default)]
pub(crate) struct Mesh {
    pub levels: usize,
    pub boxes: usize,
    pub leaves: usize,
    pub root_side: f64,
    pub edges: Edges,
    pub near_pairs: u64,
}

/// Points in, then strengths → sums; everything in the caller's order. Points and strengths have been checked and
/// are not empty. Called inside the thread pool of the plan.
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
        let sums = r.family.direct(r.outputs, sources, &[strengths], on_cpu(targets), Precision::F64, c.isa)?;
        Ok(sums.into_iter().next().unwrap_or_default())
    }
    /// Takes the points; on an error the engine is as before.
    fn place(&mut self, sources: &[f64], targets: Targets<'_>, watch: Watch) -> Result<Placed, Error>;
    /// Overwrites the `rows` (targets × values of the kernel) of each set of strengths with its sums, which have the same bits
    /// in whatever company.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<Seconds, Error>;
    /// How many sets share work in [`run`](Self::run), and the bytes it takes for each beyond the first.
    fn together(&self) -> (usize, u64) {
        (1, 0)
    }
    /// The order of the expansion, where it is not the one that was chosen before the points were known.
    fn order(&self) -> Option<usize> {
        None
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

/// [`Engine::run`] one set at a time.
fn one_by_one(
    strengths: &[&[f64]],
    rows: &mut [&mut [f64]],
    run: impl Fn(&[f64], &mut [f64]) -> Result<Seconds, Error>,
) -> Result<Seconds, Error> {
    let mut seconds = Seconds::default();
    for (strengths, rows) in strengths.iter().zip(rows) {
        let once = run(strengths, rows)?;
        seconds.iter_mut().zip(once).for_each(|(sum, s)| *sum += s);
    }
    Ok(seconds)
}

/// The same targets for sums on the CPU.
fn on_cpu(targets: Targets<'_>) -> backend_cpu::Targets<'_> {
    match targets {
        Targets::Sources => backend_cpu::Targets::Sources(None),
        Targets::Subset(s) => backend_cpu::Targets::Sources(Some(s)),
        Targets::Points(t) => backend_cpu::Targets::Points(t),
    }
}

/// The engine of a choice, without points.
pub(crate) fn of(request: &Fmm, choice: &Choice) -> Box<dyn Engine> {
    match choice.layout {
        Layout::Octree(parts) if matches!(request.backend, Backend::Cuda(_)) => {
            Box::new(cuda::Cuda::new(request, choice, parts))
        }
        _ if choice.method == Method::Direct => Box::new(direct::Direct::new(request, choice)),
        Layout::Pyramid { kernel, theta } => Box::new(plane::Plane::new(request, choice, kernel, theta)),
        Layout::Octree(parts) => Box::new(octree::Octree::new(request, choice, parts)),
    }
}

/// How the boxes of a choice are split.
fn build_options(request: &Fmm, choice: &Choice, parts: &Parts) -> BuildOptions {
    let family = &request.family;
    let error = choice.tolerance.unwrap_or_else(|| {
        tuning::error_of_order(family.name(), request.outputs, choice.order.unwrap_or(tuning::MIN_ORDER), parts)
    });
    BuildOptions {
        ncrit: request.ncrit,
        occupancy: choice.occupancy,
        min_side: family.near_radius(error),
        root: request.root,
    }
}

/// The order of equivalent densities for `sources` points in their tree: with a tolerance the one that their closeness asks for, and
/// `usual` where that was not measured, as for treecodes, softened kernels, and unless `all` sources are the targets.
fn order_of_densities(
    (request, choice, parts): (&Fmm, &Choice, &Parts),
    sources: usize,
    all: bool,
    usual: usize,
    closeness: impl FnOnce() -> Result<f64, Error>,
) -> Result<usize, Error> {
    let family = &request.family;
    let Some(tolerance) = choice.tolerance else { return Ok(usual) };
    if !all || parts.policy.theta().is_some() || family.near_radius(1.0) > 0.0 {
        return Ok(usual);
    }
    let scene = tuning::Scene { sources, apart: false, ncrit: request.ncrit, again: false };
    tuning::order_of_scattered(family.name(), request.outputs, tolerance, scene, usual, closeness)
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
