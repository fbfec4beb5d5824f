//! The decision for a method and its order.
//!
//! Candidates come with forecasts, the cheapest first. The decision builds boxes and edges for each candidate and finds
//! its order by measuring errors ([`crate::probe`]). It takes the cheapest candidate that keeps the tolerance.
//!
//! - A measurement has a price, too: its operators, and sums over some of the points. A candidate is measured, and
//!   measured at a further order, only while that [pays](Rivals::outbid): its evaluation must be cheaper than the best
//!   candidate so far, and than direct summation where that can take its place, by a part of what its measurements
//!   cost. Prices of evaluations are forecasts; beside a best candidate they count boxes and edges.
//! - A candidate waits until another one was tried if its error stalls, or if it needs so high an order that the other
//!   one is forecast to be [clearly cheaper](MIN_RATIO_TO_WAIT).
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

mod attempt;
mod forecast;
mod measured;
mod words;

pub(crate) use forecast::forecast;
pub(crate) use measured::{measured, reported};

use crate::candidates::{Candidate, Goal, Layout, Seen, Task, candidates};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::engine::{Engine, Watch};
use crate::mesh::Mesh;
use crate::probe::ProbeReport;
use crate::request::{Fmm, Method};
use crate::variant::Expansion;
use attempt::{Attempt, Ended, Pause, Rivals, Tried, attempt};
use fmm_traits::{Error, Precision};
use forecast::measurement;
use std::collections::VecDeque;
use words::{because, falls_short, forecasts, refusal, rounded_up};

/// Direct summation replaces fast methods that do not reach a tolerance if its forecast is at most this many times that
/// of the fast evaluation, or at most [`DIRECT_SECONDS`].
const DIRECT_FACTOR: f64 = 20.0;
/// See [`DIRECT_FACTOR`].
const DIRECT_SECONDS: f64 = 10.0;
/// If the next order of a candidate is forecast to cost this many times as much as another candidate, the other one is
/// tried first. The candidate is then placed again if its turn comes, so it does not wait for a few per cent.
const MIN_RATIO_TO_WAIT: f64 = 1.1;
/// Without a requested tolerance, a candidate that might err less than the best is tried if it is forecast to cost less
/// than this many times as much.
const MAX_RATIO_TO_ERR_LESS: f64 = 1.3;

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
    pub probe: Option<ProbeReport>,
}

/// A candidate that is still to be tried.
struct Waiting {
    candidate: Candidate,
    /// Why it waits, if it has been tried before.
    pause: Option<Pause>,
}

impl Waiting {
    fn expansion(&self) -> Option<Expansion> {
        expansion(&self.candidate)
    }

    /// Takes its place: before those that cost more, or at the end if it is tried again only if nothing else serves.
    fn join(self, waiting: &mut VecDeque<Waiting>) {
        let later = |w: &Waiting| w.candidate.seconds > self.candidate.seconds || w.pause.is_some();
        let last = self.pause.is_some_and(Pause::gives_up);
        let at = waiting.iter().position(later).filter(|_| !last).unwrap_or(waiting.len());
        waiting.insert(at, self);
    }
}

/// The expansion of a candidate on an octree.
fn expansion(candidate: &Candidate) -> Option<Expansion> {
    if let Layout::Octree(parts) = &candidate.layout { Some(parts.expansion) } else { None }
}

impl From<Candidate> for Waiting {
    fn from(candidate: Candidate) -> Self {
        Waiting { candidate, pause: None }
    }
}

/// Decides for given points. The engine of the decision holds the points, but is not settled.
pub(crate) fn decide(r: &Fmm, task: &Task, ends: Ends, watch: Watch) -> Result<Decision, Error> {
    let mut candidates = candidates(r, task, ends.seen)?;
    let direct = candidates.iter().position(|c| c.method == Method::Direct).map(|i| candidates.remove(i));
    if let Some(direct) = &direct
        && candidates.is_empty()
    {
        return named(r, task, direct, ends, watch);
    }
    let forecasts = forecasts(r, &candidates, direct.as_ref());
    // Forecasts of fast methods assume points that fill a cube. Where direct summation wins even then, no fast method
    // is tried.
    if let Some(direct) = direct.as_ref().filter(|d| candidates.iter().all(|c| d.seconds <= c.seconds)) {
        let tried = attempt(r, task, direct, ends, watch)?;
        if tried.floor.is_none() {
            return Ok(because(tried, format!("cheaper than the fast method for so few pairs{forecasts}")).decision);
        }
    }
    let affordable = |direct: &Candidate, fast: f64| direct.seconds <= (DIRECT_FACTOR * fast).max(DIRECT_SECONDS);
    // Direct sums in f32 err, too. Where fast methods have operators for each level, one measurement of direct sums costs
    // little beside those of candidates, and tells whether direct sums can take their place.
    let cheapest = candidates.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
    let direct_serves = match &direct {
        Some(_) if exact(r, Method::Direct) => true,
        Some(direct) if !task.facts.homogeneous && affordable(direct, cheapest) => {
            match attempt(r, task, direct, ends, watch) {
                Ok(tried) => tried.floor.is_none(),
                Err(e) if ends_all(&e) => return Err(e),
                Err(_) => false,
            }
        }
        _ => false,
    };
    let mut best: Option<Tried> = None;
    // The least error of candidates that stall and are not tried again.
    let mut reached: Option<f64> = None;
    // Whether direct summation is cheaper than to measure a candidate.
    let mut outbid_by_direct = false;
    let mut failed = Error::NoOutput;
    let mut report = ProbeReport::default();
    let mut waiting: VecDeque<Waiting> = candidates.into_iter().map(Waiting::from).collect();
    while let Some(Waiting { candidate, pause }) = waiting.pop_front() {
        let candidate = &candidate;
        let given_up = pause.filter(|pause| pause.gives_up());
        // If M2L does not reach the tolerance, M2P with the same expansion does not reach it at any angle worth its
        // price.
        let treecode = r.method == Method::Auto && candidate.method == Method::Treecode;
        let gives_up = |w: &Waiting| w.pause.is_some_and(Pause::gives_up) && w.expansion() == expansion(candidate);
        // A candidate waits once. A treecode has the expansion of another candidate. Without a requested tolerance, an
        // error that stalls may be accepted.
        let first_time = pause.is_none() && matches!(task.goal, Goal::Tolerance(_));
        let others = waiting.iter().filter(|w| w.pause.is_none() && w.candidate.method != Method::Treecode);
        let serves = |direct: &&Candidate| direct_serves && affordable(direct, candidate.seconds);
        let rivals = Rivals {
            fast: others.map(|w| w.candidate.seconds).filter(|_| first_time).reduce(f64::min),
            direct: direct.as_ref().filter(serves).map(|direct| direct.seconds),
            best: best.as_ref().filter(|best| best.floor.is_none()).map(|best| best.seconds),
        };
        let outbid =
            |seconds| rivals.outbid(seconds, measurement(r, task, candidate, candidate.first, seconds, ends.seen));
        let lost = |best: &Tried| match best.floor {
            None => given_up.is_some(),
            Some((floor, _)) if task.goal.accepts(floor) => {
                treecode || candidate.seconds >= MAX_RATIO_TO_ERR_LESS * best.seconds
            }
            Some(_) => treecode,
        };
        if best.as_ref().is_some_and(lost) || treecode && waiting.iter().any(gives_up) {
            continue;
        }
        // The floors of candidates are of no use where direct summation takes their place.
        if let (Some(pause), None, Some(_)) = (given_up, &best, rivals.direct) {
            match pause {
                Pause::Stalled(error) => reached = error.min(reached.unwrap_or(error)).into(),
                _ => outbid_by_direct = true,
            }
            continue;
        }
        if outbid(candidate.seconds) {
            outbid_by_direct |= rivals.direct.is_some();
            continue;
        }
        let tried = Attempt::new(r, task, candidate, ends, watch).and_then(|mut attempt| {
            // The edges of a first candidate are not counted for this alone: on a GPU that takes time.
            let lost = rivals.best.is_some() && outbid(attempt.price(candidate.first)?.0);
            if lost { Ok(None) } else { attempt.search(rivals, pause).map(Some) }
        });
        let tried = match tried {
            Ok(Some(Ended::Found(tried))) => *tried,
            Ok(Some(Ended::Paused { candidate, pause, spent })) => {
                report.took(spent);
                Waiting { candidate: *candidate, pause: Some(pause) }.join(&mut waiting);
                continue;
            }
            Ok(Some(Ended::Nodes { order, nodes, error, spent })) => {
                report.took(spent);
                let of = expansion(candidate);
                if task.goal.tolerance().is_some_and(|tolerance| error > tolerance) {
                    // One node may still keep the tolerance at a higher order.
                    let with_nodes = candidate.with_nodes(r, task, ends.seen, nodes, order);
                    for candidate in [with_nodes, candidate.clone()] {
                        Waiting { candidate, pause: Some(Pause::Stalled(error)) }.join(&mut waiting);
                    }
                    continue;
                }
                // What densities in a volume miss with one value, those on its surface miss, too.
                let misses = |e| e == of || of == Some(Expansion::Interpolation) && e == Some(Expansion::Equivalent);
                let (others, rest): (Vec<_>, Vec<_>) =
                    waiting.into_iter().partition(|w| w.pause.is_none() && misses(w.expansion()));
                waiting = rest.into();
                for candidate in others.iter().map(|w| &w.candidate).chain([candidate]) {
                    let first = if expansion(candidate) == of { order } else { candidate.first };
                    Waiting::from(candidate.with_nodes(r, task, ends.seen, nodes, first)).join(&mut waiting);
                }
                continue;
            }
            Ok(None) => continue,
            Err(e) if ends_all(&e) => return Err(e),
            // Another candidate may serve. For example, it may need less memory.
            Err(e) => {
                failed = e;
                continue;
            }
        };
        let spent = tried.decision.probe.as_ref().map_or([0.0; 2], |p| [p.seconds, p.operators]);
        report.took(spent);
        let better = best.as_ref().is_none_or(|best| match (best.floor, tried.floor) {
            (None, None) => tried.seconds < best.seconds,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((old, _)), Some((new, _))) => new < old,
        });
        if better {
            best = Some(tried);
        }
    }
    let Some(mut best) = best else {
        let why = match reached {
            _ if outbid_by_direct => format!("cheaper than to measure the errors of fast methods{forecasts}"),
            Some(floor) => falls_short(floor),
            None => return Err(failed),
        };
        let Some(direct) = &direct else { return Err(failed) };
        let mut tried = because(attempt(r, task, direct, ends, watch)?, why);
        tried.decision.probe = Some(report);
        return Ok(tried.decision);
    };
    if let Some(probe) = &mut best.decision.probe {
        (probe.seconds, probe.operators) = (report.seconds, report.operators);
    }
    match (best.floor, task.goal, direct) {
        (None, _, Some(direct)) if direct.seconds <= best.seconds => {
            let tried = attempt(r, task, &direct, ends, watch)?;
            match tried.floor {
                None => Ok(because(tried, format!("cheaper than the fast method on these points{forecasts}")).decision),
                Some(_) => Ok(because(best, "the only method that keeps the tolerance".to_string()).decision),
            }
        }
        (None, ..) => {
            let why = match r.method {
                Method::Auto => format!("cheaper than direct summation for so many pairs{forecasts}"),
                _ => "asked for".to_string(),
            };
            Ok(because(best, why).decision)
        }
        // Without a requested tolerance, the smallest error becomes the tolerance.
        (Some((floor, _)), goal, _) if goal.accepts(floor) => {
            best.decision.choice.tolerance = Some(rounded_up(floor));
            let why = if r.method == Method::Auto { "reaches furthest" } else { "asked for" };
            Ok(because(best, why.to_string()).decision)
        }
        (Some((floor, _)), _, Some(direct)) if affordable(&direct, best.seconds) => {
            let tried = attempt(r, task, &direct, ends, watch)?;
            match tried.floor {
                None => {
                    let mut tried = because(tried, falls_short(floor));
                    tried.decision.probe = best.decision.probe;
                    Ok(tried.decision)
                }
                Some(of_direct) => Err(refusal(
                    r,
                    task,
                    if of_direct.0 < floor { of_direct } else { (floor, best.floor.unwrap_or_default().1) },
                    None,
                )),
            }
        }
        (Some(floor), _, direct) => Err(refusal(r, task, floor, direct.map(|d| d.seconds))),
    }
}

/// The decision for a candidate that the caller named.
fn named(r: &Fmm, task: &Task, candidate: &Candidate, ends: Ends, watch: Watch) -> Result<Decision, Error> {
    let tried = attempt(r, task, candidate, ends, watch)?;
    match (tried.floor, task.goal) {
        (Some((floor, _)), goal) if goal.accepts(floor) => {
            let mut tried = because(tried, "asked for".to_string());
            tried.decision.choice.tolerance = Some(rounded_up(floor));
            Ok(tried.decision)
        }
        (Some(floor), _) => Err(refusal(r, task, floor, None)),
        (None, _) => Ok(because(tried, "asked for".to_string()).decision),
    }
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
