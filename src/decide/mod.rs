//! The decision for a method and its order.
//!
//! Candidates come with forecasts, the cheapest first. The [contest] builds boxes and edges for each candidate, and finds
//! its [order] by measuring errors ([`crate::probe`]). The cheapest candidate that keeps the tolerance wins.
//!
//! - A measurement has a price, too: its operators, and sums over some of the points. A candidate is measured, and
//!   measured at a further order, only while that [pays](order::Rivals::outbid): its evaluation and a quarter of its
//!   measurements together must cost less than each known way. Known ways are the best candidate so far, and direct
//!   summation where it can take the place of the candidate. There, all searches together cost at most four direct sums.
//!   At first, prices of evaluations assume points that fill a cube. They count boxes and edges once there is a best
//!   candidate, or once an order of the candidate has failed while something else may serve.
//! - On a GPU, candidates that want leaves of nearly the same size share a tree. If their lists are the same, they also
//!   share the sample on which errors are measured.
//! - A candidate waits until another one was tried if its error stalls, or if it needs so high an order that the other
//!   one is [clearly cheaper](order::MIN_RATIO_TO_WAIT) on boxes like those of the candidate.
//! - Where sources have attributes, far fields have one value of them at first. If this value causes an error above the
//!   tolerance, and most of the error at an order, candidates of the same expansion get as many
//!   [nodes](crate::Fmm::nodes) as they need. If no number of nodes keeps the tolerance, the candidate stalls, with these
//!   nodes and with one.
//! - A candidate whose error stalls, or whose measurements do not pay, is given up where direct summation can take its
//!   place.
//!
//! Several ranks decide alike: each asks its engine the same, and engines answer the same on all ranks
//! ([`Fmm::jointly`]).
//!
//! If no candidate keeps the tolerance, the least error of a candidate is its floor ([`crate::probe::search::least`]).

mod contest;
mod engines;
mod field;
mod forecast;
mod measured;
mod order;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use forecast::forecast;
pub(crate) use measured::{measured, reported};

use crate::candidates::{Seen, Task, candidates};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::engine::{Engine, Watch};
use crate::mesh::Mesh;
use crate::probe::ProbeReport;
use crate::request::{Fmm, Method};
use contest::{Lost, best};
use engines::Engines;
use fmm_traits::{Error, Precision};
use std::cell::{Cell, RefCell};
use words::{because, forecasts, refusal, rounded_up};

/// The points of a plan before the decision.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub cloud: &'a Cloud<'a>,
    pub seen: Seen,
}

/// A decided method whose engine holds the points, ready for [`Engine::settle`].
pub(crate) struct Decision {
    pub engine: Box<dyn Engine>,
    pub choice: Choice,
    pub order: usize,
    pub mesh: Mesh,
    /// The measurements; `None` for a given order, and where nothing was measured. Without outputs for direct sums that
    /// have no error.
    pub probe: Option<ProbeReport>,
}

/// Decides for given points. The engine of the decision holds the points, but is not settled.
pub(crate) fn decide(r: &Fmm, task: &Task, ends: Ends, watch: Watch) -> Result<Decision, Error> {
    let candidates = candidates(r, task, ends.seen)?;
    let forecasts = forecasts(r, &candidates);
    let engines = Engines { request: r, task, ends, watch, spent: Cell::default(), trees: RefCell::default() };
    let (tried, why) = match best(&&engines, candidates, r.method != Method::Auto) {
        Ok(won) => won,
        Err(Lost::Floor(floor, direct)) => return Err(refusal(r, task, floor, direct)),
        Err(Lost::Failed(e)) => return Err(e),
    };
    let mut decision = tried.decision;
    decision.choice.why = because(r, why, &forecasts);
    // Without a requested tolerance, the smallest error becomes the tolerance.
    if let Some((floor, _)) = tried.floor {
        decision.choice.tolerance = Some(rounded_up(floor, 1));
    }
    let spent @ [seconds, operators] = engines.spent.get();
    if spent != [0.0; 2] {
        // Direct sums in f64 have no error to report, only the seconds of the measurements before.
        let probe = decision.probe.get_or_insert_default();
        (probe.seconds, probe.operators) = (seconds, operators);
    }
    Ok(decision)
}

/// Whether after an error there is no other candidate to try: the caller cancelled, or a rank is lost.
fn ends_all(e: &Error) -> bool {
    match e {
        Error::Rank { error, .. } => ends_all(error),
        Error::Cancelled { .. } | Error::RankLost { .. } | Error::RanksDiffer { .. } => true,
        _ => false,
    }
}

/// Whether a method has no error but that of direct sums in f64.
pub(crate) fn exact(r: &Fmm, method: Method) -> bool {
    method == Method::Direct && r.backend.processor().direct_precision(r.precision) == Precision::F64
}
