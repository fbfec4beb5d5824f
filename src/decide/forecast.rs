//! Forecasts from counts: the choice of a candidate, its bytes, its price.

use crate::candidates::{self, Candidate, Layout, Seen, Task, candidates};
use crate::choice::Choice;
use crate::engine::Engine;
use crate::memory::{self, Forecast, Size};
use crate::mesh::Mesh;
use crate::request::{Fmm, Method};
use fmm_traits::Error;

/// The forecast from counts alone: the cheapest candidate, with its bytes.
pub(crate) fn forecast(r: &Fmm, seen: Seen) -> Result<Choice, Error> {
    let task = candidates::check(r, seen.counts)?;
    let candidates = candidates(r, &task, seen)?;
    Ok(choice(r, &task, &candidates[0], candidates[0].first, seen))
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

/// Forecast bytes of the plan of a choice and one evaluation.
pub(super) fn bytes(r: &Fmm, choice: &Choice, seen: Seen) -> Forecast {
    // Leaves of at most ncrit points hold about a third of it on average.
    let mean = r.ncrit.map_or(choice.occupancy, |k| k as f64 / 3.0);
    let leaf = if let Layout::Octree(_) = choice.layout { mean } else { choice.occupancy };
    let size = Size { counts: seen.counts, apart: seen.apart, order: choice.order, leaf, precision: r.precision };
    match &choice.layout {
        Layout::Pyramid { .. } => memory::in_the_plane(&choice.facts, &size).into(),
        Layout::Octree(parts) => r.backend.processor().memory(&choice.facts, &size, choice.threads, parts),
    }
}

/// Refuses a choice that does not fit into the free memory, even with the targets in small pieces.
pub(super) fn fits(engine: &dyn Engine, choice: &Choice, [n_sources, n_targets]: [usize; 2]) -> Result<(), Error> {
    match engine.free_memory()? {
        Some(available) if choice.forecast.least() > available => {
            let what = format!("{n_sources} sources and {n_targets} targets");
            Err(Error::Memory { needed: choice.forecast.least(), available, what })
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
