//! What a contest asks about candidates. Engines answer by measurements, tests from tables.

use crate::candidates::{Candidate, Goal, expected};
use fmm_traits::Error;

/// The points of a sum, on which candidates compete.
pub(super) trait Field {
    type Attempt: Attempt;
    /// The accuracy that the request asks for.
    fn goal(&self) -> Goal;
    /// Whether a candidate has no error but that of direct sums in f64.
    fn is_exact(&self, candidate: &Candidate) -> bool;
    /// Whether fast methods have operators of their own for each level of boxes.
    fn has_operators_per_level(&self) -> bool;
    /// Mean points per leaf, and seconds of an evaluation, at an order: a forecast for points that fill a cube evenly.
    fn forecast(&self, candidate: &Candidate, order: usize) -> [f64; 2];
    /// Forecast seconds of a measurement at an order whose evaluation takes `evaluation` seconds. `levels` is the number of
    /// levels of the tree; `None` stands for that of points that fill a cube evenly. If the caller has given the order,
    /// nothing is measured, and the result is 0.
    fn measurement(&self, candidate: &Candidate, order: usize, evaluation: f64, levels: Option<usize>) -> f64;
    /// Forecast seconds of an evaluation of a candidate, from counts of the boxes of a candidate that was tried; `None` if the
    /// candidate would not have such boxes, or has other lists.
    fn on_boxes(&self, _candidate: &Candidate, _of: &Decided<Self>) -> Option<f64>
    where
        Self: Sized,
    {
        None
    }
    /// Builds the boxes of a candidate.
    fn place(&self, candidate: &Candidate) -> Result<Self::Attempt, Error>;

    /// The candidate with its forecast at an order, which may lie between two orders. The nearest is measured first.
    fn at(&self, candidate: &Candidate, guess: f64) -> Candidate {
        let seconds = expected(guess, |order| self.forecast(candidate, order)[1]);
        let occupancy = self.forecast(candidate, guess.round() as usize)[0];
        Candidate { guess, occupancy, seconds, ..candidate.clone() }
    }
}

/// What the contest makes of a candidate.
pub(super) type Decided<F> = <<F as Field>::Attempt as Attempt>::Decision;

/// A candidate whose boxes hold the points.
pub(super) trait Attempt {
    type Decision;
    /// Seconds of an evaluation at an order, from the counts of boxes and edges, and the number of levels of the boxes. The
    /// order may lie between two orders.
    fn counted(&mut self, order: f64) -> Result<(f64, usize), Error>;
    /// Forecast seconds of an evaluation of each candidate in `of`, at the candidate's guess. They rest on counts of the boxes of
    /// this attempt, with the lists of `order`, which was measured. A candidate without such boxes, or with other lists, has
    /// `None`.
    fn prices(&mut self, of: &[&Candidate], order: usize) -> Result<Vec<Option<f64>>, Error>;
    /// Mean points per leaf of the boxes.
    fn occupancy(&self) -> f64;
    /// The mean points per leaf that balance near and far field at an order; `None` if the leaves do not depend on it.
    fn balance(&self, order: usize) -> Option<f64>;
    /// Builds the boxes again, for an order and with another mean number of points per leaf.
    fn replace(&mut self, order: usize, occupancy: f64) -> Result<(), Error>;
    /// The largest error bound of all outputs at an order (infinite, not NaN, without a digit).
    fn measure(&mut self, order: usize) -> Result<f64, Error>;
    /// The number of values of each attribute in far fields that an order needs, with the error that they cause; `None`
    /// if one value serves, or is not the reason why `error`, just measured at this order, exceeds the tolerance.
    fn nodes(&mut self, order: usize, error: f64, tolerance: f64) -> Result<Option<(usize, f64)>, Error>;
    /// The candidate with an order.
    fn decide(self, order: usize) -> Result<Tried<Self::Decision>, Error>;
}

/// An error bound above the tolerance, and its output.
pub(super) type Floor = (f64, &'static str);

/// A candidate whose order is known.
pub(super) struct Tried<D> {
    pub decision: D,
    /// Seconds of an evaluation, from the counts of boxes and edges.
    pub seconds: f64,
    /// The smallest error bound, if no order keeps the tolerance.
    pub floor: Option<Floor>,
}
