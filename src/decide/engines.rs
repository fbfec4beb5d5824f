//! The candidates of a request as engines that hold the points.

use super::field::{Attempt, Field, Tried};
use super::forecast::{bytes, choice, fits, measurement, price};
use super::measured::{Measured, measured, reported, worst};
use super::{Decision, Ends, ends_all, exact};
use crate::candidates::{self, Candidate, Goal, Layout, Task};
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::engine::{self, Engine, TREES_KEPT, Watch};
use crate::mesh::Mesh;
use crate::parts::Parts;
use crate::request::{Fmm, Method};
use fmm_families::Place;
use fmm_traits::{Error, MAX_NODES, Policy};
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// The points of a request, and what was spent on them.
pub(super) struct Engines<'a> {
    pub request: &'a Fmm,
    pub task: &'a Task,
    pub ends: Ends<'a>,
    pub watch: Watch<'a>,
    /// Seconds of sums and of operators of all measurements.
    pub spent: Cell<[f64; 2]>,
    /// Mean points per leaf of the trees that a GPU keeps, the latest last.
    pub trees: RefCell<Vec<f64>>,
}

/// On a GPU a candidate takes the tree of another one, and a sample of the same lists there, if the leaves that it wants
/// differ by at most this ratio. Near field and M2L of eq. 27 then take at most 2 % longer, while a tree and a sample take
/// as long as an evaluation. Several GPUs decide as one does, so this rests on the trees that were placed, not on those
/// that memory had room for.
const SHARED_RATIO: f64 = 1.2;

impl Engines<'_> {
    fn took(&self, [sums, operators]: [f64; 2]) {
        let [a, b] = self.spent.get();
        self.spent.set([a + sums, b + operators]);
    }

    /// Notes a tree as the latest.
    fn keeps(&self, occupancy: f64) {
        let mut trees = self.trees.borrow_mut();
        trees.retain(|of| *of != occupancy);
        trees.push(occupancy);
        let old = trees.len().saturating_sub(TREES_KEPT);
        trees.drain(..old);
    }

    /// Price of an order, which may lie between two orders, with counts of boxes and edges.
    fn expected(&self, candidate: &Candidate, order: f64, mesh: &Mesh) -> f64 {
        candidates::expected(order, |p| price(self.request, self.task, candidate, p, mesh, self.ends.seen))
    }

    /// Forecast seconds of an evaluation of `candidate` for the points of `mesh`. The boxes of `mesh` have the leaves of `choice`;
    /// the candidate wants leaves of another size. So its price on `mesh` is scaled by two forecasts for a cube:
    ///
    /// (price on `mesh`) · (forecast with the leaves of the candidate) / (forecast with the leaves of `choice`).
    ///
    /// Example: 24 ms · 20 / 30 = 16 ms. `None` for direct summation, without an octree, with other lists, or if the cost model lacks
    /// the expansion.
    fn on_boxes_like(&self, candidate: &Candidate, choice: &Choice, mesh: &Mesh) -> Option<f64> {
        let (Layout::Octree(parts), Layout::Octree(other)) = (&candidate.layout, &choice.layout) else { return None };
        if [candidate.method, choice.method].contains(&Method::Direct) || parts.policy != other.policy {
            return None;
        }
        let (r, task, seen, guess) = (self.request, self.task, self.ends.seen, candidate.guess);
        let in_a_cube = |p| candidates::in_a_cube(r, task, seen, parts, p, choice.occupancy);
        let own = candidates::expected(guess, |p| candidates::forecast(r, task, seen, candidate, p)[1]);
        let price = own * self.expected(candidate, guess, mesh) / candidates::expected(guess, in_a_cube);
        Some(price).filter(|price| price.is_finite())
    }
}

/// The mean points per leaf of the one of some trees that serves a candidate who wants `occupancy`, and more than `least`;
/// or else `occupancy`. Leaves of the least size are not the best ones, and the price of larger ones is not known.
fn shared(trees: &[f64], occupancy: f64, least: f64) -> f64 {
    if occupancy <= least {
        return occupancy;
    }
    let ratio = |of: &f64| (of / occupancy).max(occupancy / of);
    let serve = trees.iter().copied().filter(|of| *of >= least && ratio(of) <= SHARED_RATIO);
    serve.min_by(|a, b| ratio(a).total_cmp(&ratio(b))).unwrap_or(occupancy)
}

impl<'a> Field for &'a Engines<'a> {
    type Attempt = OnEngine<'a>;

    fn goal(&self) -> Goal {
        self.task.goal
    }

    fn is_exact(&self, candidate: &Candidate) -> bool {
        exact(self.request, candidate.method)
    }

    fn has_operators_per_level(&self) -> bool {
        !self.task.facts.homogeneous && matches!(self.request.family.place(), Place::Space)
    }

    fn forecast(&self, candidate: &Candidate, order: usize) -> [f64; 2] {
        candidates::forecast(self.request, self.task, self.ends.seen, candidate, order)
    }

    fn measurement(&self, candidate: &Candidate, order: usize, evaluation: f64, levels: Option<usize>) -> f64 {
        measurement(self.request, self.task, candidate, order, evaluation, (self.ends.seen, levels))
    }

    fn on_boxes(&self, candidate: &Candidate, of: &Decision) -> Option<f64> {
        self.on_boxes_like(candidate, &of.choice, &of.mesh)
    }

    fn place(&self, candidate: &Candidate) -> Result<OnEngine<'a>, Error> {
        let (r, seen) = (self.request, self.ends.seen);
        let mut choice = choice(r, self.task, candidate, candidate.first(), seen);
        if let Layout::Octree(parts) = &candidate.layout
            && candidate.method != Method::Direct
            && !matches!(parts.policy, Policy::Treecode { .. })
            && !matches!(self.ends.cloud, Cloud::Host(..))
        {
            let least = r.backend.processor().prices(r, &self.task.facts).smallest_leaf(parts);
            choice.occupancy = shared(&self.trees.borrow(), choice.occupancy, least);
            choice.forecast = bytes(r, &choice, seen);
        }
        let engine = engine::of(r, &choice);
        r.jointly(|| fits(&*engine, &choice, seen.counts))?;
        let mut attempt = OnEngine { field: self, candidate: candidate.clone(), choice, engine, records: Vec::new() };
        attempt.place()?;
        Ok(attempt)
    }
}

/// A candidate whose engine holds the points.
pub(super) struct OnEngine<'a> {
    field: &'a Engines<'a>,
    candidate: Candidate,
    choice: Choice,
    engine: Box<dyn Engine>,
    /// All measurements.
    records: Vec<Measured>,
}

impl OnEngine<'_> {
    fn place(&mut self) -> Result<(), Error> {
        self.field.request.jointly(|| self.engine.place(self.field.ends.cloud, self.field.watch))?;
        if !self.is_direct() {
            self.field.keeps(self.choice.occupancy);
        }
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.candidate.method == Method::Direct
    }

    /// The counts of boxes and edges at an order.
    fn mesh(&mut self, order: usize) -> Result<Mesh, Error> {
        match self.is_direct() {
            true => Ok(Mesh::default()),
            false => self.field.request.jointly(|| self.engine.preview(order)),
        }
    }

    /// The number of nodes that leaves half of the tolerance to the order, or else the one with the least error, with
    /// this error. `None` in three cases: one node causes less than half of `error`, one node keeps the tolerance, or no
    /// larger number of nodes has a smaller error.
    fn nodes_for(&mut self, order: usize, error: f64, tolerance: f64) -> Result<Option<(usize, f64)>, Error> {
        let one = worst(&self.engine.errors_of_attributes(order, 1)?);
        if one <= tolerance || one < 0.5 * error {
            return Ok(None);
        }
        let field = self.field;
        let mut least = (1, one);
        for nodes in 2..=MAX_NODES {
            // Leaves of more far fields are larger, and farther from each other.
            let candidate = field.at(&self.candidate.with_nodes(nodes), order as f64);
            let more = field.place(&candidate).and_then(|mut other| other.engine.errors_of_attributes(order, nodes));
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
}

impl Attempt for OnEngine<'_> {
    type Decision = Decision;

    fn counted(&mut self, guess: f64) -> Result<(f64, usize), Error> {
        let mesh = self.mesh(guess.round() as usize)?;
        Ok((self.field.expected(&self.candidate, guess, &mesh), mesh.levels))
    }

    fn prices(&mut self, of: &[&Candidate], order: usize) -> Result<Vec<Option<f64>>, Error> {
        let mesh = self.mesh(order)?;
        Ok(of.iter().map(|candidate| self.field.on_boxes_like(candidate, &self.choice, &mesh)).collect())
    }

    fn occupancy(&self) -> f64 {
        self.choice.occupancy
    }

    fn balance(&self, order: usize) -> Option<f64> {
        let (r, Layout::Octree(parts)) = (self.field.request, &self.candidate.layout) else { return None };
        if self.is_direct() || r.ncrit.is_some() {
            return None;
        }
        Some(r.backend.processor().prices(r, &self.field.task.facts).occupancy(parts, order))
    }

    fn replace(&mut self, order: usize, occupancy: f64) -> Result<(), Error> {
        (self.choice.order, self.choice.occupancy) = (Some(order), occupancy);
        self.engine = engine::of(self.field.request, &self.choice);
        self.place()
    }

    fn measure(&mut self, order: usize) -> Result<f64, Error> {
        let Engines { request: r, watch, .. } = *self.field;
        if self.records.is_empty() {
            r.jointly(|| watch("probe", 0.4))?;
        }
        let error = r.jointly(|| measured(&mut *self.engine, order, &mut self.records))?;
        self.field.took(self.records.last().expect("just measured").seconds());
        Ok(error)
    }

    fn nodes(&mut self, order: usize, error: f64, tolerance: f64) -> Result<Option<(usize, f64)>, Error> {
        let Layout::Octree(Parts { expansion, grid, .. }) = &self.candidate.layout else { return Ok(None) };
        let free = self.field.request.variant.nodes.is_none() && grid.nodes == 1 && grid.spreads > 0;
        if !free || self.is_direct() || expansion.fill().is_none() {
            return Ok(None);
        }
        let start = Instant::now();
        let found = self.nodes_for(order, error, tolerance);
        self.field.took([start.elapsed().as_secs_f64(), 0.0]);
        found
    }

    fn decide(mut self, order: usize) -> Result<Tried<Decision>, Error> {
        let Engines { request: r, task, ends, .. } = *self.field;
        self.choice.order = (!self.is_direct()).then_some(order);
        self.choice.forecast = bytes(r, &self.choice, ends.seen);
        r.jointly(|| fits(&*self.engine, &self.choice, ends.seen.counts))?;
        let mesh = self.mesh(order)?;
        let seconds = price(r, task, &self.candidate, order, &mesh, ends.seen);
        let measured = self.records.iter().rev().find(|m| m.order == order);
        let probe = measured.map(|_| reported(&*self.engine, task, order, &self.records));
        let above = |m: &&Measured| task.goal.tolerance().is_some_and(|tolerance| m.worst() > tolerance);
        let floor = measured.filter(above).and_then(|m| m.worst_of(&task.facts.columns));
        let OnEngine { engine, choice, .. } = self;
        Ok(Tried { decision: Decision { engine, choice, order, mesh, probe }, seconds, floor })
    }
}

#[cfg(test)]
mod tests {
    use super::shared;

    #[test]
    fn a_tree_of_nearly_the_same_leaves_serves() {
        assert_eq!(shared(&[], 60.0, 0.0), 60.0);
        let trees = [40.0, 55.0, 64.0];
        for (wanted, serves) in [(60.0, 64.0), (57.0, 55.0), (47.0, 55.0), (45.0, 40.0), (30.0, 30.0), (90.0, 90.0)] {
            assert_eq!(shared(&trees, wanted, 0.0), serves, "{wanted}");
        }
        assert_eq!((shared(&trees, 60.0, 59.0), shared(&trees[..2], 60.0, 59.0)), (64.0, 60.0));
        assert_eq!(shared(&trees, 60.0, 60.0), 60.0);
    }
}
