//! Forecasts from counts: the choice of a candidate, its bytes, prices of its evaluation and its measurements.

use crate::candidates::{self, Candidate, Layout, Seen, Task, candidates};
use crate::choice::Choice;
use crate::engine::Engine;
use crate::memory::{self, Forecast, Size};
use crate::mesh::Mesh;
use crate::request::{Fmm, Method};
use fmm_traits::Error;

/// Time of the sums of a measurement, divided by the time of an evaluation. Measured ratios are 0.1 to 0.5
/// (`runs/2026-11-23-zen4x2/probe-seconds.txt`).
const SUMS_IN_EVALUATIONS: f64 = 0.3;

/// The forecast from counts alone: the cheapest candidate, with its bytes.
pub(crate) fn forecast(r: &Fmm, seen: Seen) -> Result<Choice, Error> {
    let task = candidates::check(r, seen.counts)?;
    let candidates = candidates(r, &task, seen)?;
    Ok(choice(r, &task, &candidates[0], candidates[0].first(), seen))
}

/// The choice of `candidate` with `order`, with its bytes.
pub(super) fn choice(r: &Fmm, task: &Task, candidate: &Candidate, order: usize, seen: Seen) -> Choice {
    let mut choice = Choice::of(task, candidate, order);
    if let Some(inherited) = r.inherited {
        choice.occupancy = inherited.occupancy;
    }
    choice.forecast = bytes(r, &choice, seen);
    choice
}

/// Forecast bytes of the plan of a choice and one evaluation; on several ranks, of the part of one.
pub(super) fn bytes(r: &Fmm, choice: &Choice, seen: Seen) -> Forecast {
    // Leaves of at most ncrit points hold about a third of it on average.
    let mean = r.ncrit.map_or(choice.occupancy, |k| k as f64 / 3.0);
    let leaf = if let Layout::Octree(_) = choice.layout { mean } else { choice.occupancy };
    // Where errors are measured on GPUs, each rank has the points of all for it.
    let whole = r.has_whole_trees() && choice.order.is_some();
    let (counts, keys) = match &r.world {
        Some(_) if whole && r.order.is_none() => (seen.counts, 0),
        Some(world) => {
            let counts = memory::of_a_rank(seen.counts, world.size(), choice.order.map(|_| leaf));
            (counts, if whole { memory::keys_of_all(seen.counts, seen.apart) } else { 0 })
        }
        None => (seen.counts, 0),
    };
    let size = Size { counts, apart: seen.apart, order: choice.order, leaf, precision: r.precision };
    let forecast: Forecast = match &choice.layout {
        Layout::Pyramid { .. } => memory::in_the_plane(&choice.facts, &size).into(),
        Layout::Octree(parts) => r.backend.processor().memory(&choice.facts, &size, choice.threads, parts),
    };
    Forecast { bytes: forecast.bytes.max(keys), least: forecast.least.max(keys) }
}

/// Refuses a choice that cannot fit into the free memory.
pub(super) fn fits(engine: &dyn Engine, choice: &Choice, [n_sources, n_targets]: [usize; 2]) -> Result<(), Error> {
    match engine.free_memory()? {
        Some(available) if choice.forecast.least > available => {
            let what = format!("{n_sources} sources and {n_targets} targets");
            Err(Error::Memory { needed: choice.forecast.least, available, what })
        }
        _ => Ok(()),
    }
}

/// Price of an evaluation in seconds, from the counts of boxes and edges.
pub(super) fn price(r: &Fmm, task: &Task, candidate: &Candidate, order: usize, mesh: &Mesh, seen: Seen) -> f64 {
    let Layout::Octree(parts) = &candidate.layout else { return candidate.seconds };
    if candidate.method == Method::Direct {
        return candidate.seconds;
    }
    r.backend.processor().prices(r, &task.facts).price(parts, order, mesh, seen.counts)
}

/// Forecast seconds of a measurement at an order, whose evaluation takes `evaluation` seconds: sums over some of the
/// points, and operators. `levels` is the number of levels of the tree; `None` stands for that of points that
/// fill a cube evenly. If the caller has given the order, nothing is measured, and the result is 0.
pub(super) fn measurement(
    r: &Fmm,
    task: &Task,
    candidate: &Candidate,
    order: usize,
    evaluation: f64,
    (seen, levels): (Seen, Option<usize>),
) -> f64 {
    if task.goal.tolerance().is_none() {
        return 0.0;
    }
    let sums = SUMS_IN_EVALUATIONS * evaluation;
    let Layout::Octree(parts) = &candidate.layout else { return sums };
    let [n, m] = seen.counts.map(|count| count as f64);
    let boxes = (n.max(m) / candidate.occupancy).max(1.0);
    // The operators of a homogeneous kernel serve all levels. The root and its children have no far fields.
    let levels = match levels {
        _ if task.facts.homogeneous => 1.0,
        Some(levels) => levels.saturating_sub(2).max(1) as f64,
        None => (boxes.log(2f64.powi(parts.dim as i32)).ceil() - 1.0).max(1.0),
    };
    sums + levels * r.backend.processor().prices(r, &task.facts).operators(parts, order)
}
