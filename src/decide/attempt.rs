//! The search for the order of one candidate.

use super::forecast::{bytes, choice, fits, measurement, price};
use super::measured::{Measured, measured, reported, spent, worst};
use super::{Decision, Ends, MIN_RATIO_TO_WAIT, ends_all, exact};
use crate::candidates::{self, Candidate, Layout, Task};
use crate::choice::Choice;
use crate::engine::{self, Engine, Watch};
use crate::mesh::Mesh;
use crate::parts::Parts;
use crate::probe::search::{Aim, Found, Search, least};
use crate::request::{Fmm, Method};
use fmm_traits::{Error, MAX_NODES};
use std::time::Instant;

/// Evaluations in which a plan should earn back its measurements. Where operators cost nothing, a candidate is then
/// measured if it is 7 % cheaper; prices of two expansions err by up to a fifth against each other.
const EVALUATIONS: f64 = 4.0;
/// Ratio of occupancies above which the tree is rebuilt for an order.
const REBUILD_RATIO: f64 = 1.35;
/// Largest number of rebuilds of a tree in the search for an order.
const MAX_REBUILDS: usize = 2;
/// An order whose error exceeds the tolerance by more than this factor is not measured again on a tree with leaves of
/// another size.
const REMEASURE_RATIO: f64 = 3.0;

/// The result of trying a candidate.
pub(super) struct Tried {
    pub decision: Decision,
    pub seconds: f64,
    /// The smallest error bound of the method and its output, if no order keeps the tolerance.
    pub floor: Option<(f64, &'static str)>,
}

/// The end of a search.
pub(super) enum Ended {
    Found(Box<Tried>),
    /// Another candidate should be tried first.
    Paused {
        /// The candidate, with the next order to measure as its first.
        candidate: Box<Candidate>,
        pause: Pause,
        /// Seconds of sums and operators.
        spent: [f64; 2],
    },
    /// One value of the attributes of sources in far fields is not enough.
    Nodes {
        /// The last order that was measured.
        order: usize,
        /// The number of nodes to take, which cause an `error` beside that of the order.
        nodes: usize,
        error: f64,
        /// Seconds of sums and operators.
        spent: [f64; 2],
    },
}

/// Why a candidate lets others go first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// All orders up to this one break the tolerance (order, error), and the next one costs more than another
    /// candidate.
    Behind((usize, f64)),
    /// The error stalls above the tolerance. The number is the least error so far.
    Stalled(f64),
    /// Measurements of further orders cost more than the candidate can save.
    Outbid,
}

impl Pause {
    /// Whether the candidate is tried again only if nothing else serves.
    pub fn gives_up(self) -> bool {
        !matches!(self, Pause::Behind(_))
    }
}

/// What else can compute the sum, while a candidate is tried. Each is the price of an evaluation in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivals {
    /// Forecast of the cheapest fast candidate that is untried.
    pub fast: Option<f64>,
    /// Direct summation, if it can take the place of the candidate.
    pub direct: Option<f64>,
    /// The best candidate that keeps the tolerance.
    pub best: Option<f64>,
}

impl Rivals {
    /// Whether a way that is known to keep the tolerance costs less than a candidate whose evaluation takes
    /// `evaluation` seconds, with its part of `measuring` seconds of measurements.
    pub fn outbid(&self, evaluation: f64, measuring: f64) -> bool {
        [self.direct, self.best].into_iter().flatten().any(|known| evaluation + measuring / EVALUATIONS >= known)
    }

    /// Whether something else may serve, so that the floor of a candidate is of no use yet.
    fn any(&self) -> bool {
        [self.fast, self.direct, self.best].iter().any(Option::is_some)
    }
}

/// Finds the order of a candidate.
pub(super) fn attempt(r: &Fmm, task: &Task, candidate: &Candidate, ends: Ends, watch: Watch) -> Result<Tried, Error> {
    match Attempt::new(r, task, candidate, ends, watch)?.search(Rivals::default(), None)? {
        Ended::Found(tried) => Ok(*tried),
        Ended::Paused { .. } | Ended::Nodes { .. } => unreachable!("direct summation has no rival and no nodes"),
    }
}

/// A candidate whose boxes hold the points, before its order is known.
pub(super) struct Attempt<'a> {
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
    pub fn new(
        request: &'a Fmm,
        task: &'a Task,
        candidate: &'a Candidate,
        ends: Ends<'a>,
        watch: Watch<'a>,
    ) -> Result<Self, Error> {
        let choice = choice(request, task, candidate, candidate.first, ends.seen);
        let engine = engine::of(request, &choice);
        request.jointly(|| fits(&*engine, &choice, ends.seen.counts))?;
        let mut attempt = Attempt { request, task, candidate, ends, watch, choice, engine };
        attempt.place()?;
        Ok(attempt)
    }

    fn place(&mut self) -> Result<(), Error> {
        self.request.jointly(|| self.engine.place(self.ends.cloud, self.watch))
    }

    /// The price of an order in seconds, with the counts of its boxes and edges.
    pub fn price(&mut self, order: usize) -> Result<(f64, Mesh), Error> {
        let direct = self.candidate.method == Method::Direct;
        let mesh = match direct {
            true => Mesh::default(),
            false => self.request.jointly(|| self.engine.preview(order))?,
        };
        Ok((price(self.request, self.task, self.candidate, order, &mesh, self.ends.seen), mesh))
    }

    /// Measures the error bounds at an order, appends them to `records` and returns the largest.
    fn measured(&mut self, order: usize, records: &mut Vec<Measured>) -> Result<f64, Error> {
        self.request.jointly(|| measured(&mut *self.engine, order, records))
    }

    /// [`measured`](Self::measured), unless one value of the attributes of sources is seen to break the tolerance.
    fn measured_with_one_node(
        &mut self,
        order: usize,
        tolerance: f64,
        records: &mut Vec<Measured>,
    ) -> Result<f64, Halt> {
        let error = self.measured(order, records).map_err(Halt::Failed)?;
        let Layout::Octree(Parts { expansion, grid, .. }) = &self.candidate.layout else { return Ok(error) };
        let free = self.request.variant.nodes.is_none() && grid.nodes == 1 && grid.spreads > 0;
        let nodeless = self.candidate.method == Method::Direct || expansion.fill().is_none();
        if error <= tolerance || !free || nodeless {
            return Ok(error);
        }
        let start = Instant::now();
        let found = self.nodes(order, error, tolerance);
        records.last_mut().expect("just measured").took(start.elapsed().as_secs_f64());
        match found.map_err(Halt::Failed)? {
            Some((nodes, error)) => Err(Halt::Nodes { order, nodes, error }),
            None => Ok(error),
        }
    }

    /// The number of nodes that leaves half of the tolerance to the order, or else the one with the least error, with
    /// this error. `None` if one value causes less than half of the `error` at an order, or no more than the tolerance,
    /// or others err more.
    fn nodes(&mut self, order: usize, error: f64, tolerance: f64) -> Result<Option<(usize, f64)>, Error> {
        let one = worst(&self.engine.errors_of_attributes(order, 1)?);
        if one <= tolerance || one < 0.5 * error {
            return Ok(None);
        }
        let (r, task, ends, watch) = (self.request, self.task, self.ends, self.watch);
        let mut least = (1, one);
        for nodes in 2..=MAX_NODES {
            // Leaves of more far fields are larger, and farther from each other.
            let candidate = self.candidate.with_nodes(r, task, ends.seen, nodes, order);
            let more = Attempt::new(r, task, &candidate, ends, watch)
                .and_then(|mut other| other.engine.errors_of_attributes(order, nodes));
            let error = match more {
                Ok(errors) => worst(&errors),
                Err(e) if ends_all(&e) => return Err(e),
                // For example, memory for so many far fields is missing.
                Err(_) => break,
            };
            if error < least.1 {
                least = (nodes, error);
            }
            if error <= 0.5 * tolerance {
                break;
            }
        }
        Ok(Some(least).filter(|(nodes, _)| *nodes > 1))
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
            Some(Pause::Stalled(_) | Pause::Outbid) => return self.least(records).map_err(Halt::Failed),
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
                    (Aim::Further, Some(rival), Some(last)) if self.forecast(order)[1] > MIN_RATIO_TO_WAIT * rival => {
                        return Err(Halt::Paused { order, pause: Pause::Behind(last) });
                    }
                    (Aim::Further, ..) if self.outbid(rivals, records, order) => {
                        return Err(Halt::Paused { order, pause: Pause::Outbid });
                    }
                    _ => {}
                }
                match self.other_occupancy(order).filter(|_| rebuilds < MAX_REBUILDS) {
                    Some(occupancy) => Err(Halt::OtherLeaves { order, occupancy }),
                    None => self.measured_with_one_node(order, tolerance, records),
                }
            });
            match result {
                Ok(Found::Order(order)) => return Ok(order),
                Ok(Found::Stalled) if rivals.any() => return Err(self.stalled(records)),
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

    /// Whether the measurements so far and one of a further `order` cost more than the candidate can save.
    fn outbid(&self, rivals: Rivals, records: &[Measured], order: usize) -> bool {
        let (r, task, seen, seconds) = (self.request, self.task, self.ends.seen, self.forecast(order)[1]);
        let orders = records.iter().map(|record| record.order).chain([order]);
        rivals.outbid(seconds, orders.map(|order| measurement(r, task, self.candidate, order, seconds, seen)).sum())
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
            self.measured(order, records)
        })?;
        let at = records[start..].iter().position(|m| m.order == order).expect("it was measured");
        if leaves[at] != self.choice.occupancy {
            self.replace(order, leaves[at])?;
            // The sample belongs to the boxes. The bounds are those of the search.
            self.request.jointly(|| self.engine.measure(order))?;
        }
        Ok(order)
    }

    /// Occupancy and seconds at an order, without boxes.
    fn forecast(&self, order: usize) -> [f64; 2] {
        let Layout::Octree(parts) = &self.candidate.layout else { return [self.choice.occupancy, 0.0] };
        candidates::forecast(self.request, self.task, self.ends.seen, parts, order)
    }

    /// Finds the order by measuring errors. `pause` is the reason for which the candidate has waited.
    pub fn search(mut self, rivals: Rivals, pause: Option<Pause>) -> Result<Ended, Error> {
        let (r, task, candidate) = (self.request, self.task, self.candidate);
        let (mut order, mut floor, mut report) = (candidate.first, None, None);
        if let Some(tolerance) = task.goal.tolerance().filter(|_| !exact(r, candidate.method)) {
            let mut records = Vec::new();
            r.jointly(|| (self.watch)("probe", 0.4))?;
            let found = self.found(tolerance, rivals, pause, &mut records);
            order = match found {
                Err(Halt::Paused { order, pause }) => {
                    let [occupancy, seconds] = self.forecast(order);
                    let candidate = Candidate { first: order, occupancy, seconds, ..candidate.clone() };
                    return Ok(Ended::Paused { candidate: candidate.into(), pause, spent: spent(&records) });
                }
                Err(Halt::Nodes { order, nodes, error }) => {
                    return Ok(Ended::Nodes { order, nodes, error, spent: spent(&records) });
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
        r.jointly(|| fits(&*self.engine, &self.choice, self.ends.seen.counts))?;
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
    /// So many values of the attributes of sources are needed in far fields, and cause an error.
    Nodes {
        order: usize,
        nodes: usize,
        error: f64,
    },
    Failed(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate at half the price of a known way may spend as much on measurements as it saves in some evaluations.
    #[test]
    fn measurements_are_earned_back() {
        let rivals = Rivals { direct: Some(8.0), best: Some(2.0), fast: Some(0.1) };
        assert!(!rivals.outbid(1.0, 0.99 * EVALUATIONS) && rivals.outbid(1.0, 1.01 * EVALUATIONS));
        assert!(rivals.outbid(2.0, 0.0));
        let alone = Rivals { fast: Some(0.1), ..Rivals::default() };
        assert!(!alone.outbid(1e9, 1e9) && alone.any() && !Rivals::default().any());
    }
}
