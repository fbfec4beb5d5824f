//! The order of one candidate, found by measurements.

use super::field::{Attempt, Decided, Field, Tried};
use crate::candidates::Candidate;
use crate::probe::search::{Aim, Next, Search, least};
use fmm_traits::Error;

/// Evaluations in which a plan should earn back its measurements. A measurement takes about 0.3 evaluations, and its
/// operators. So a candidate whose operators cost nothing is measured if its forecast is 7 % below that of a known way.
/// Forecasts of two expansions err by up to a fifth against each other.
const EVALUATIONS: f64 = 4.0;
/// Ratio of costs above which a candidate waits for a rival. An evaluation at its next order then costs more than this many times
/// an evaluation of the rival. The same holds if 1 / [`EVALUATIONS`] of the next measurement is added to each. The boxes of a
/// candidate that has waited must be built again, which a gain of a few per cent does not pay.
pub(super) const MIN_RATIO_TO_WAIT: f64 = 1.1;
/// Ratio of occupancies above which the tree is rebuilt for an order.
const REBUILD_RATIO: f64 = 1.35;
/// Largest number of rebuilds of a tree in the search for an order.
const MAX_REBUILDS: usize = 2;

/// The end of a search.
pub(super) enum Ended<D> {
    Found(Tried<D>),
    /// Counted boxes and edges show that a known way costs less.
    Lost,
    /// Another candidate should be tried first. If this candidate is tried again, it has the forecast of `order`, which takes
    /// `seconds`. `rival_prices` are the prices of [`Rivals::fast`], in the same sequence, on the boxes of this candidate; empty if
    /// they were not asked for.
    Paused {
        order: usize,
        seconds: f64,
        rival_prices: Vec<Option<f64>>,
        pause: Pause,
    },
    /// One value of the attributes of sources in far fields is not enough at the last order that was measured. So many
    /// `nodes` are needed, and cause an `error` beside that of the order.
    Nodes {
        order: usize,
        nodes: usize,
        error: f64,
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

/// What else can compute the sum, while a candidate is tried.
#[derive(Clone, Default)]
pub(super) struct Rivals {
    /// Fast candidates, not treecodes, that are still untried. Empty if this candidate has waited before, or without a requested
    /// tolerance.
    pub fast: Vec<Candidate>,
    /// Seconds of direct summation, if it can take the place of the candidate.
    pub direct: Option<f64>,
    /// Seconds of an evaluation of the best candidate that keeps the tolerance.
    pub best: Option<f64>,
    /// Forecast seconds so far of measurements that search an order for the tolerance, of all candidates.
    pub spent: f64,
}

impl Rivals {
    /// Whether a way that is known to keep the tolerance costs less than a candidate whose evaluation takes
    /// `evaluation` seconds, with its part of `measuring` seconds of measurements. The searches of all candidates together
    /// take no more time than [`EVALUATIONS`] direct sums, where these serve.
    pub fn outbid(&self, evaluation: f64, measuring: f64) -> bool {
        let dear = |known: f64| evaluation + measuring / EVALUATIONS >= known;
        let all = |direct: f64| self.spent + measuring >= EVALUATIONS * direct;
        self.best.is_some_and(dear) || self.direct.is_some_and(|direct| dear(direct) || all(direct))
    }

    /// Whether something else may serve, so that the floor of a candidate is of no use yet.
    fn any(&self) -> bool {
        !self.fast.is_empty() || self.direct.is_some() || self.best.is_some()
    }
}

/// Finds the order of a candidate. `pause` is the reason for which the candidate has waited. Adds the forecast seconds of
/// its measurements to `spent`.
pub(super) fn search<F: Field>(
    field: &F,
    candidate: &Candidate,
    rivals: &Rivals,
    pause: Option<Pause>,
    spent: &mut f64,
) -> Result<Ended<Decided<F>>, Error> {
    let mut attempt = field.place(candidate)?;
    // The boxes of a first candidate are not counted without need: on a GPU that takes time.
    let per_level = field.has_operators_per_level() && (rivals.best.is_some() || rivals.direct.is_some());
    let mut levels = None;
    if rivals.best.is_some() || per_level {
        let (seconds, counted) = attempt.counted(candidate.guess)?;
        levels = Some(counted).filter(|_| per_level);
        if rivals.outbid(seconds, field.measurement(candidate, candidate.first(), seconds, levels)) {
            return Ok(Ended::Lost);
        }
    }
    let order = match field.goal().tolerance().filter(|_| !field.is_exact(candidate)) {
        None => candidate.first(),
        Some(_) if pause.is_some_and(Pause::gives_up) => order_of_least_error(candidate, &mut attempt)?,
        Some(tolerance) => {
            let below = match pause {
                Some(Pause::Behind(below)) => Some(below),
                _ => None,
            };
            match climb(field, candidate, (&mut attempt, levels), (rivals, spent), tolerance, below)? {
                Climbed::To(order) => order,
                Climbed::Stalled(_) if !rivals.any() => order_of_least_error(candidate, &mut attempt)?,
                Climbed::Stalled(least) => {
                    let (order, seconds) = (candidate.first(), candidate.seconds);
                    return Ok(Ended::Paused { order, seconds, rival_prices: vec![], pause: Pause::Stalled(least) });
                }
                Climbed::Halted(ended) => return Ok(ended),
            }
        }
    };
    attempt.decide(order).map(Ended::Found)
}

/// The end of a climb from order to order.
enum Climbed<D> {
    /// This order keeps the tolerance.
    To(usize),
    /// The error stalls above the tolerance. The number is the least error.
    Stalled(f64),
    Halted(Ended<D>),
}

/// Searches an order for a tolerance. When the search comes to an order that wants leaves of another size, it goes on
/// there with a new tree. This happens at most [`MAX_REBUILDS`] times. `below` is an order with an error that breaks
/// the tolerance, if one is known.
fn climb<F: Field>(
    field: &F,
    candidate: &Candidate,
    (attempt, mut levels): (&mut F::Attempt, Option<usize>),
    (rivals, spent): (&Rivals, &mut f64),
    tolerance: f64,
    below: Option<(usize, f64)>,
) -> Result<Climbed<Decided<F>>, Error> {
    let mut search = Search::new(tolerance, candidate.orders.clone(), candidate.digits, candidate.first());
    search.knows(below);
    let mut measured: Vec<(usize, f64)> = Vec::new();
    let mut rebuilds = 0;
    loop {
        let (order, aim) = match search.next() {
            Next::Measure(order, aim) => (order, aim),
            Next::Found(order) => return Ok(Climbed::To(order)),
            Next::Stalled => {
                return Ok(Climbed::Stalled(measured.iter().map(|m| m.1).fold(f64::INFINITY, f64::min)));
            }
        };
        let mut seconds = field.forecast(candidate, order)[1];
        if let (Aim::Further, Some(&last)) = (aim, measured.last().filter(|_| rivals.any())) {
            // Forecasts assume points that fill a cube. Boxes on which an error was measured tell more.
            let next = field.at(candidate, order as f64);
            let all: Vec<&Candidate> = [&next].into_iter().chain(&rivals.fast).collect();
            let mut rival_prices = attempt.prices(&all, last.0)?;
            let own = rival_prices.remove(0);
            let is_dearer = |own: f64, other: f64| own > MIN_RATIO_TO_WAIT * other;
            let is_behind = |(rival, price): (&Candidate, &Option<f64>)| {
                let [own, price] = own.zip(*price).map_or([next.seconds, rival.seconds], |(own, price)| [own, price]);
                let own_part = field.measurement(&next, order, own, levels) / EVALUATIONS;
                let part = field.measurement(rival, rival.first(), price, None) / EVALUATIONS;
                is_dearer(own, price) && is_dearer(own + own_part, price + part)
            };
            seconds = own.unwrap_or(seconds);
            let orders = measured.iter().map(|m| m.0).chain([order]);
            let measuring = orders.map(|order| field.measurement(candidate, order, seconds, levels)).sum();
            let pause = match rivals.fast.iter().zip(&rival_prices).any(is_behind) {
                true => Some(Pause::Behind(last)),
                false => rivals.outbid(seconds, measuring).then_some(Pause::Outbid),
            };
            if let Some(pause) = pause {
                return Ok(Climbed::Halted(Ended::Paused { order, seconds, rival_prices, pause }));
            }
        }
        let differs = |wanted: &f64| {
            let ratio = wanted / attempt.occupancy();
            ratio.max(1.0 / ratio) > REBUILD_RATIO
        };
        if let Some(occupancy) = attempt.balance(order).filter(differs)
            && rebuilds < MAX_REBUILDS
        {
            attempt.replace(order, occupancy)?;
            if levels.is_some() {
                levels = Some(attempt.counted(order as f64)?.1);
            }
            search.restart(order);
            rebuilds += 1;
        }
        let error = attempt.measure(order)?;
        measured.push((order, error));
        *spent += field.measurement(candidate, order, seconds, levels);
        if error > tolerance
            && let Some((nodes, error)) = attempt.nodes(order, error, tolerance)?
        {
            return Ok(Climbed::Halted(Ended::Nodes { order, nodes, error }));
        }
        search.measured(order, error);
    }
}

/// The order of the least error. Each order is measured on leaves of its own size, so that neither the tolerance nor the
/// measurements before have a part in the result. At the end, the boxes are those on which the order was measured.
fn order_of_least_error(candidate: &Candidate, attempt: &mut impl Attempt) -> Result<usize, Error> {
    // Order and mean points per leaf of each measurement.
    let mut leaves: Vec<(usize, f64)> = Vec::new();
    let (order, _) = least(candidate.orders.clone(), candidate.digits, |order| {
        let wanted = attempt.balance(order).unwrap_or(attempt.occupancy());
        if leaves.is_empty() || wanted != attempt.occupancy() {
            attempt.replace(order, wanted)?;
        }
        leaves.push((order, attempt.occupancy()));
        attempt.measure(order)
    })?;
    let (_, occupancy) = leaves.into_iter().find(|l| l.0 == order).expect("it was measured");
    if occupancy != attempt.occupancy() {
        attempt.replace(order, occupancy)?;
        // The sample belongs to boxes and lists, so the order is measured on them again.
        attempt.measure(order)?;
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate at half the price of a known way may spend as much on measurements as it saves in some evaluations.
    #[test]
    fn measurements_are_earned_back() {
        let rivals = Rivals { direct: Some(8.0), best: Some(2.0), ..Rivals::default() };
        assert!(!rivals.outbid(1.0, 0.99 * EVALUATIONS) && rivals.outbid(1.0, 1.01 * EVALUATIONS));
        assert!(rivals.outbid(2.0, 0.0));
        assert!(rivals.any() && !Rivals::default().any());
        let spent = Rivals { spent: 7.0 * EVALUATIONS, ..rivals };
        assert!(!spent.outbid(1.0, 0.9 * EVALUATIONS));
        assert!(Rivals { best: None, ..spent }.outbid(1.0, 1.1 * EVALUATIONS));
        assert!(!Rivals::default().outbid(1e9, 1e9));
    }
}
