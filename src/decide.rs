//! The decision for a method and its order.
//!
//! Candidates come with forecasts, the cheapest first. The decision builds boxes and edges for each candidate and finds
//! its order by measuring errors ([`crate::probe`]). It takes the cheapest candidate that keeps the tolerance. It skips
//! a candidate whose forecast, or whose price at its first order, is not [clearly below](WORTH_MEASURING) the price of
//! the best candidate so far. (The price counts boxes and edges.) A candidate whose error stalls, or which needs so
//! high an order that another one is forecast to be [clearly cheaper](OVERTAKEN), waits until the other one was tried.
//! Where direct summation can take the place of a candidate, the candidate is given up if its error stalls, or if its
//! operators come to cost [several evaluations by direct summation](PATIENCE).
//!
//! If no candidate keeps the tolerance, the least error of a candidate is its floor ([`crate::probe::search::least`]).

use crate::candidates::{self, Candidate, Goal, Layout, Seen, Task, candidates};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::costs;
use crate::engine::{self, Engine, Watch};
use crate::memory::{self, Size};
use crate::mesh::Mesh;
use crate::probe::search::{Aim, Found, Search, least};
use crate::probe::{ProbeOutput, ProbeReport};
use crate::request::{Fmm, Method};
use crate::variant::Expansion;
use fmm_traits::tape::Op;
use fmm_traits::{Error, Precision};
use std::collections::VecDeque;

/// Direct summation replaces fast methods that do not reach a tolerance if its forecast is at most this many times that
/// of the fast evaluation, or at most [`DIRECT_SECONDS`].
const DIRECT_FACTOR: f64 = 20.0;
/// See [`DIRECT_FACTOR`].
const DIRECT_SECONDS: f64 = 10.0;
/// Ratio of prices above which a second candidate is not worth its measurement. A measurement costs 0.1 to 0.5 of an
/// evaluation, and prices of two expansions err by up to a fifth against each other.
const WORTH_MEASURING: f64 = 0.93;
/// If the next order of a candidate is forecast to cost this many times as much as another candidate, the other one is
/// tried first.
const OVERTAKEN: f64 = 1.3;
/// A candidate measures no further order if the operators of its measured orders are forecast to cost more than this many
/// evaluations by direct summation, and direct summation can take its place.
const PATIENCE: f64 = 4.0;
/// Ratio of occupancies above which the tree is rebuilt for an order.
const REBUILD_RATIO: f64 = 1.35;
/// Largest number of rebuilds of a tree in the search for an order.
const MAX_REBUILDS: usize = 2;

/// An order whose error exceeds the tolerance by more than this factor is not measured again on a tree with leaves of
/// another size.
const REMEASURE_RATIO: f64 = 3.0;

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

/// The forecast from counts alone: the cheapest candidate, with its bytes.
pub(crate) fn forecast(r: &Fmm, seen: Seen) -> Result<Choice, Error> {
    let task = candidates::check(r, seen.counts)?;
    let candidates = candidates(r, &task, seen)?;
    Ok(choice(r, &task, &candidates[0], candidates[0].first, seen))
}

/// The choice of `candidate` with `order`, with its bytes.
fn choice(r: &Fmm, task: &Task, candidate: &Candidate, order: usize, seen: Seen) -> Choice {
    let mut choice = Choice::of(task, candidate, order);
    if let Some(inherited) = r.inherited {
        choice.occupancy = inherited.occupancy;
    }
    choice.forecast = bytes(r, &choice, seen);
    choice
}

/// Forecast bytes of the plan of a choice and one evaluation.
fn bytes(r: &Fmm, choice: &Choice, seen: Seen) -> u64 {
    // Leaves of at most ncrit points hold about a third of it on average.
    let mean = r.ncrit.map_or(choice.occupancy, |k| k as f64 / 3.0);
    let leaf = if let Layout::Octree(_) = choice.layout { mean } else { choice.occupancy };
    let size = Size { counts: seen.counts, order: choice.order, leaf, precision: r.precision };
    match &choice.layout {
        Layout::Pyramid { .. } => memory::in_the_plane(&choice.facts, &size),
        Layout::Octree(parts) => r.backend.processor().memory(&choice.facts, &size, choice.threads, parts),
    }
}

/// Refuses a choice that does not fit into the free memory.
fn fits(engine: &dyn Engine, choice: &Choice, [n_sources, n_targets]: [usize; 2]) -> Result<(), Error> {
    match engine.free_memory()? {
        Some(available) if choice.forecast > available => {
            let what = format!("{n_sources} sources and {n_targets} targets");
            Err(Error::Memory { needed: choice.forecast, available, what })
        }
        _ => Ok(()),
    }
}

/// The result of trying a candidate.
struct Tried {
    decision: Decision,
    seconds: f64,
    /// The smallest error bound of the method and its output, if no order keeps the tolerance.
    floor: Option<(f64, &'static str)>,
}

/// The end of a search.
enum Ended {
    Found(Box<Tried>),
    /// Another candidate should be tried first.
    Paused {
        /// The candidate, with the next order to measure as its first.
        candidate: Box<Candidate>,
        pause: Pause,
        /// Seconds of sums and operators.
        spent: [f64; 2],
    },
}

/// Why a candidate lets others go first.
#[derive(Clone, Copy, Debug)]
enum Pause {
    /// All orders up to this one break the tolerance (order, error), and the next one costs more than another
    /// candidate.
    Behind((usize, f64)),
    /// The error stalls above the tolerance, or further orders are not worth their operators. The number is the least
    /// error so far.
    Stalled(f64),
}

/// What else can compute the sum, while a candidate is tried.
#[derive(Clone, Copy, Debug, Default)]
struct Rivals {
    /// Forecast of the cheapest fast candidate that is untried.
    fast: Option<f64>,
    /// Whether direct summation can take the place of the candidate.
    direct: bool,
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
    let mut best: Option<Tried> = None;
    // The least error of candidates that stall and are not tried again.
    let mut reached: Option<f64> = None;
    let mut failed = Error::NoOutput;
    let mut report = ProbeReport::default();
    let mut waiting: VecDeque<Waiting> = candidates.into_iter().map(Waiting::from).collect();
    while let Some(Waiting { candidate, pause }) = waiting.pop_front() {
        let candidate = &candidate;
        let stalled = matches!(pause, Some(Pause::Stalled(_)));
        // If M2L does not reach the tolerance, M2P with the same expansion does not reach it at any angle worth its
        // price.
        let treecode = r.method == Method::Auto && candidate.method == Method::Treecode;
        let stalls = |w: &Waiting| matches!(w.pause, Some(Pause::Stalled(_))) && w.expansion() == expansion(candidate);
        let lost = |best: &Tried| match best.floor {
            None => stalled || candidate.seconds >= WORTH_MEASURING * best.seconds,
            Some((floor, _)) if task.goal.accepts(floor) => treecode || candidate.seconds >= OVERTAKEN * best.seconds,
            Some(_) => treecode,
        };
        if best.as_ref().is_some_and(lost) || treecode && waiting.iter().any(stalls) {
            continue;
        }
        let limit = best.as_ref().filter(|best| best.floor.is_none()).map(|best| WORTH_MEASURING * best.seconds);
        // A candidate waits once. A treecode has the expansion of another candidate. Without a requested tolerance, an
        // error that stalls may be accepted.
        let first_time = pause.is_none() && matches!(task.goal, Goal::Tolerance(_));
        let rivals = waiting.iter().filter(|w| w.pause.is_none() && w.candidate.method != Method::Treecode);
        let rival = rivals.map(|w| w.candidate.seconds).filter(|_| first_time).reduce(f64::min);
        let serves = |direct: &Candidate| exact(r, Method::Direct) && affordable(direct, candidate.seconds);
        let rivals = Rivals { fast: rival, direct: direct.as_ref().is_some_and(serves) };
        // The floors of candidates are of no use where direct summation takes their place.
        if let (Some(Pause::Stalled(error)), None, true) = (pause, &best, rivals.direct) {
            reached = error.min(reached.unwrap_or(error)).into();
            continue;
        }
        let tried = Attempt::new(r, task, candidate, ends, watch).and_then(|mut attempt| match limit {
            Some(limit) if attempt.price(candidate.first)?.0 >= limit => Ok(None),
            _ => attempt.search(rivals, pause).map(Some),
        });
        let tried = match tried {
            Ok(Some(Ended::Found(tried))) => *tried,
            Ok(Some(Ended::Paused { candidate, pause, spent })) => {
                (report.seconds, report.operators) = (report.seconds + spent[0], report.operators + spent[1]);
                let later = |w: &Waiting| w.candidate.seconds > candidate.seconds || w.pause.is_some();
                let at = match pause {
                    Pause::Behind(_) => waiting.iter().position(later).unwrap_or(waiting.len()),
                    Pause::Stalled(_) => waiting.len(),
                };
                waiting.insert(at, Waiting { candidate: *candidate, pause: Some(pause) });
                continue;
            }
            Ok(None) => continue,
            Err(e @ Error::Cancelled { .. }) => return Err(e),
            // Another candidate may serve. For example, it may need less memory.
            Err(e) => {
                failed = e;
                continue;
            }
        };
        let spent = tried.decision.probe.as_ref().map_or([0.0; 2], |p| [p.seconds, p.operators]);
        (report.seconds, report.operators) = (report.seconds + spent[0], report.operators + spent[1]);
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
        let (Some(floor), Some(direct)) = (reached, &direct) else { return Err(failed) };
        let mut tried = because(attempt(r, task, direct, ends, watch)?, falls_short(floor));
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

fn because(mut tried: Tried, why: String) -> Tried {
    tried.decision.choice.why = why;
    tried
}

/// Why direct summation replaces fast methods whose least error is `floor`.
fn falls_short(floor: f64) -> String {
    format!("fast methods reach {floor:.1e} for this kernel on these points")
}

/// An error, rounded up to one digit.
fn rounded_up(error: f64) -> f64 {
    let unit = 10f64.powf(error.log10().floor());
    (error / unit).ceil() * unit
}

/// The [`Error::ToleranceFloor`] that reports the smallest error and a way out.
fn refusal(r: &Fmm, task: &Task, (floor, output): (f64, &'static str), direct: Option<f64>) -> Error {
    let further = match (r.precision, r.method) {
        (Precision::F32, _) => "; f64 may reach further",
        (_, Method::Treecode) => "; a smaller θ, or the fast multipole method, may reach further",
        (_, Method::SphericalHarmonics | Method::EquivalentDensities) => "; interpolation may reach further",
        _ => "",
    };
    let oscillates = task.facts.members.iter().any(|m| m.tape().any(|op| matches!(op, Op::Sin | Op::Cos)));
    let waves = match r.method {
        Method::EquivalentDensities | Method::Auto if oscillates => {
            "; the kernel oscillates, and densities on the surface of a cube of side h fail at its resonances, k·h ≥ π√3"
        }
        _ => "",
    };
    let direct = match direct {
        Some(seconds) => format!("; direct summation is forecast to take {seconds:.0} s: ask for it by its name"),
        None if r.method == Method::Direct => String::new(),
        None => "; direct summation in f64 has no such floor".to_string(),
    };
    Error::ToleranceFloor {
        tolerance: task.goal.tolerance().unwrap_or_default(),
        floor,
        output,
        kernel: r.family.name().into(),
        precision: r.precision.name(),
        hint: format!(" for this kernel on these points, as measured{waves}{further}{direct}"),
    }
}

/// The compared forecasts as text.
fn forecasts(r: &Fmm, candidates: &[Candidate], direct: Option<&Candidate>) -> String {
    let time = |x: f64| if x < 1.0 { format!("{:.2} ms", 1e3 * x) } else { format!("{x:.2} s") };
    let each = candidates.iter().map(|c| format!("{} {} at order {}", c.method.name(), time(c.seconds), c.first));
    let direct = direct.map(|d| format!("direct {}", time(d.seconds)));
    let what = r.backend.processor().unit();
    format!("; forecast for {what}: {}", each.chain(direct).collect::<Vec<_>>().join(", "))
}

/// Whether a method has no error but that of direct sums in f64.
pub(crate) fn exact(r: &Fmm, method: Method) -> bool {
    method == Method::Direct && r.backend.processor().direct_precision(r.precision) == Precision::F64
}

/// Finds the order of a candidate.
fn attempt(r: &Fmm, task: &Task, candidate: &Candidate, ends: Ends, watch: Watch) -> Result<Tried, Error> {
    match Attempt::new(r, task, candidate, ends, watch)?.search(Rivals::default(), None)? {
        Ended::Found(tried) => Ok(*tried),
        Ended::Paused { .. } => unreachable!("without a rival nothing pauses"),
    }
}

/// A candidate whose boxes hold the points, before its order is known.
struct Attempt<'a> {
    request: &'a Fmm,
    task: &'a Task,
    candidate: &'a Candidate,
    ends: Ends<'a>,
    watch: Watch<'a>,
    choice: Choice,
    engine: Box<dyn Engine>,
}

impl<'a> Attempt<'a> {
    /// Builds the boxes of a candidate.
    fn new(
        request: &'a Fmm,
        task: &'a Task,
        candidate: &'a Candidate,
        ends: Ends<'a>,
        watch: Watch<'a>,
    ) -> Result<Self, Error> {
        let choice = choice(request, task, candidate, candidate.first, ends.seen);
        let engine = engine::of(request, &choice);
        fits(&*engine, &choice, ends.seen.counts)?;
        let mut attempt = Attempt { request, task, candidate, ends, watch, choice, engine };
        attempt.place()?;
        Ok(attempt)
    }

    fn place(&mut self) -> Result<(), Error> {
        self.engine.place(self.ends.cloud, self.watch)
    }

    /// The price of an order in seconds, with the counts of its boxes and edges.
    fn price(&mut self, order: usize) -> Result<(f64, Mesh), Error> {
        let direct = self.candidate.method == Method::Direct;
        let mesh = if direct { Mesh::default() } else { self.engine.preview(order)? };
        Ok((price(self.request, self.task, self.candidate, order, &mesh, self.ends.seen), mesh))
    }

    /// The mean points per leaf that balance near and far field at an order; `None` if the leaves do not depend on it.
    fn occupancy(&self, order: usize) -> Option<f64> {
        let (r, Layout::Octree(parts)) = (self.request, &self.candidate.layout) else { return None };
        if self.candidate.method == Method::Direct || r.ncrit.is_some() {
            return None;
        }
        Some(r.backend.processor().prices(r, &self.task.facts).occupancy(parts, order))
    }

    /// [`occupancy`](Self::occupancy), if it differs enough from that of the tree.
    fn other_occupancy(&self, order: usize) -> Option<f64> {
        self.occupancy(order).filter(|wanted| {
            let ratio = wanted / self.choice.occupancy;
            ratio.max(1.0 / ratio) > REBUILD_RATIO
        })
    }

    /// Searches an order for a tolerance, and appends all measurements to `records`. When the search comes to an order
    /// that wants leaves of another size, it starts again there, with a new tree. This happens at most
    /// [`MAX_REBUILDS`] times. If the error stalls, the order is that of the least error.
    fn found(
        &mut self,
        tolerance: f64,
        rivals: Rivals,
        pause: Option<Pause>,
        records: &mut Vec<Measured>,
    ) -> Result<usize, Halt> {
        let known = match pause {
            None => None,
            Some(Pause::Behind(below)) => Some(below),
            Some(Pause::Stalled(_)) => return self.least(records).map_err(Halt::Failed),
        };
        let candidate = self.candidate;
        let mut search = Search {
            tolerance,
            orders: candidate.orders.clone(),
            first: candidate.first,
            digits: candidate.digits,
            below: known.filter(|(order, _)| *order < candidate.first),
        };
        let mut rebuilds = 0;
        loop {
            let result = search.run(|order, aim| {
                let last = records.iter().max_by_key(|m| m.order).map(|m| (m.order, m.worst()));
                match (aim, rivals.fast, last) {
                    (Aim::Further, Some(rival), Some(last)) if self.forecast(order)[1] > OVERTAKEN * rival => {
                        return Err(Halt::Paused { order, pause: Pause::Behind(last) });
                    }
                    (Aim::Further, ..) if rivals.direct && self.exhausted(records, order) => {
                        return Err(self.stalled(records));
                    }
                    _ => {}
                }
                match self.other_occupancy(order).filter(|_| rebuilds < MAX_REBUILDS) {
                    Some(occupancy) => Err(Halt::OtherLeaves { order, occupancy }),
                    None => measured(&mut *self.engine, order, records).map_err(Halt::Failed),
                }
            });
            match result {
                Ok(Found::Order(order)) => return Ok(order),
                Ok(Found::Stalled) if rivals.direct || rivals.fast.is_some() => return Err(self.stalled(records)),
                Ok(Found::Stalled) => return self.least(records).map_err(Halt::Failed),
                Err(Halt::OtherLeaves { order, occupancy }) => {
                    self.replace(order, occupancy).map_err(Halt::Failed)?;
                    rebuilds += 1;
                    search.first = order;
                    let broken = records.iter().filter(|m| m.order < order && m.worst() > REMEASURE_RATIO * tolerance);
                    search.below = broken.max_by_key(|m| m.order).map(|m| (m.order, m.worst()));
                }
                Err(halt) => return Err(halt),
            }
        }
    }

    /// Whether the operators of the measured orders, and those of a further `order`, cost too much beside direct summation.
    fn exhausted(&self, records: &[Measured], order: usize) -> bool {
        let Layout::Octree(parts) = &self.candidate.layout else { return false };
        let [n, m] = self.ends.seen.counts.map(|count| count as f64);
        // The operators of a homogeneous kernel serve all levels.
        let boxes = (n.max(m) / self.choice.occupancy).max(1.0);
        let levels =
            if self.task.facts.homogeneous { 1.0 } else { boxes.log(2f64.powi(parts.dim as i32)).ceil().max(1.0) };
        let orders = records.iter().map(|record| record.order).chain([order]);
        levels * orders.map(|order| costs::pairs_of_operators(parts, order)).sum::<f64>() > PATIENCE * n * m
    }

    /// The pause of a candidate that is given up unless no other one serves.
    fn stalled(&self, records: &[Measured]) -> Halt {
        let error = records.iter().map(Measured::worst).fold(f64::INFINITY, f64::min);
        Halt::Paused { order: self.candidate.first, pause: Pause::Stalled(error) }
    }

    /// Builds the boxes again, for an order and with another mean number of points per leaf.
    fn replace(&mut self, order: usize, occupancy: f64) -> Result<(), Error> {
        (self.choice.order, self.choice.occupancy) = (Some(order), occupancy);
        self.engine = engine::of(self.request, &self.choice);
        self.place()
    }

    /// Finds the order of the least error, and appends all measurements to `records`. Each order is measured on leaves of
    /// its own size, so that neither the tolerance nor the measurements before have a part in the result. At the end, the
    /// boxes are those on which the order was measured.
    fn least(&mut self, records: &mut Vec<Measured>) -> Result<usize, Error> {
        let Candidate { orders, digits, .. } = self.candidate;
        let start = records.len();
        // Mean points per leaf at each measurement.
        let mut leaves = Vec::new();
        let (order, _) = least(orders.clone(), *digits, |order| {
            let wanted = self.occupancy(order).unwrap_or(self.choice.occupancy);
            if leaves.is_empty() || wanted != self.choice.occupancy {
                self.replace(order, wanted)?;
            }
            leaves.push(self.choice.occupancy);
            measured(&mut *self.engine, order, records)
        })?;
        let at = records[start..].iter().position(|m| m.order == order).expect("it was measured");
        if leaves[at] != self.choice.occupancy {
            self.replace(order, leaves[at])?;
            // The sample belongs to the boxes. The bounds are those of the search.
            self.engine.measure(order)?;
        }
        Ok(order)
    }

    /// Occupancy and seconds at an order, without boxes.
    fn forecast(&self, order: usize) -> [f64; 2] {
        let Layout::Octree(parts) = &self.candidate.layout else { return [self.choice.occupancy, 0.0] };
        candidates::forecast(self.request, self.task, self.ends.seen, parts, order)
    }

    /// Finds the order by measuring errors. `pause` is the reason for which the candidate has waited.
    fn search(mut self, rivals: Rivals, pause: Option<Pause>) -> Result<Ended, Error> {
        let (r, task, candidate) = (self.request, self.task, self.candidate);
        let (mut order, mut floor, mut report) = (candidate.first, None, None);
        if let Some(tolerance) = task.goal.tolerance().filter(|_| !exact(r, candidate.method)) {
            let mut records = Vec::new();
            (self.watch)("probe", 0.4)?;
            let found = self.found(tolerance, rivals, pause, &mut records);
            order = match found {
                Err(Halt::Paused { order, pause }) => {
                    let [occupancy, seconds] = self.forecast(order);
                    let candidate = Candidate { first: order, occupancy, seconds, ..candidate.clone() };
                    return Ok(Ended::Paused { candidate: candidate.into(), pause, spent: spent(&records) });
                }
                Err(Halt::Failed(e)) => return Err(e),
                Err(Halt::OtherLeaves { .. }) => unreachable!("the search goes on with other leaves"),
                Ok(order) => order,
            };
            let measured = records.iter().rev().find(|m| m.order == order).expect("it was measured");
            if measured.worst() > tolerance {
                let worst = measured.bounds.iter().zip(&task.facts.columns).max_by(|a, b| a.0.total_cmp(b.0));
                let name = |c: &fmm_traits::OutputColumns| c.output.names().first().copied().unwrap_or("");
                floor = worst.map(|(bound, c)| (*bound, name(c)));
            }
            report = Some(reported(&*self.engine, task, order, &records));
        }
        self.choice.order = (candidate.method != Method::Direct).then_some(order);
        self.choice.forecast = bytes(r, &self.choice, self.ends.seen);
        fits(&*self.engine, &self.choice, self.ends.seen.counts)?;
        let (seconds, mesh) = self.price(order)?;
        let Attempt { engine, choice, .. } = self;
        let decision = Decision { engine, choice, order, mesh, probe: report };
        Ok(Ended::Found(Box::new(Tried { decision, seconds, floor })))
    }
}

/// Why a search ends without a result.
enum Halt {
    /// The next order wants leaves with other numbers of points.
    OtherLeaves {
        order: usize,
        occupancy: f64,
    },
    /// A rival should be tried before this order.
    Paused {
        order: usize,
        pause: Pause,
    },
    Failed(Error),
}

/// The result of one measurement: error bounds of all outputs at an order, and seconds.
pub(crate) struct Measured {
    order: usize,
    bounds: Vec<f64>,
    sums: f64,
    operators: f64,
}

impl Measured {
    /// The largest bound; infinite if one is not a number.
    fn worst(&self) -> f64 {
        let bounds = self.bounds.iter().map(|&b| if b.is_nan() { f64::INFINITY } else { b });
        bounds.fold(0.0, f64::max)
    }
}

/// Measures the error bounds at `order`, appends them to `records` and returns the largest.
pub(crate) fn measured(engine: &mut dyn Engine, order: usize, records: &mut Vec<Measured>) -> Result<f64, Error> {
    let (bounds, seconds) = engine.measure(order)?;
    let measured = Measured { order, bounds, sums: seconds.sums, operators: seconds.operators };
    let worst = measured.worst();
    records.push(measured);
    Ok(worst)
}

/// Total seconds of sums and of operators.
fn spent(records: &[Measured]) -> [f64; 2] {
    records.iter().fold([0.0; 2], |[a, b], m| [a + m.sums, b + m.operators])
}

/// The report of the probe for a plan of order `order`.
pub(crate) fn reported(engine: &dyn Engine, task: &Task, order: usize, records: &[Measured]) -> ProbeReport {
    let of = |order: usize, k: usize| records.iter().rev().find(|m| m.order == order).map(|m| m.bounds[k]);
    let outputs = task.facts.columns.iter().enumerate().map(|(k, c)| ProbeOutput {
        output: c.output.names().first().copied().unwrap_or(""),
        error: of(order, k).unwrap_or(f64::NAN),
        below: order.checked_sub(1).and_then(|below| of(below, k)),
    });
    let [seconds, operators] = spent(records);
    let orders = records.iter().map(|m| m.order).collect();
    let mut report = ProbeReport { outputs: outputs.collect(), orders, seconds, operators, ..ProbeReport::default() };
    if let Some(trial) = engine.trial() {
        trial.report(&mut report);
    }
    report
}

/// Price of an evaluation in seconds, from the counts of boxes and edges.
fn price(r: &Fmm, task: &Task, candidate: &Candidate, order: usize, mesh: &Mesh, seen: Seen) -> f64 {
    let Layout::Octree(parts) = &candidate.layout else { return candidate.seconds };
    if candidate.method == Method::Direct {
        return candidate.seconds;
    }
    r.backend.processor().prices(r, &task.facts).price(parts, order, mesh, seen.counts)
}
