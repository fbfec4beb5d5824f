//! The smallest order that keeps a tolerance, from measurements at a few orders.
//!
//! The error of an expansion of order p falls like 10^(−d·p). Two measurements give the digits per order d, and d gives
//! the next order to measure. The search ends at an order p that keeps the tolerance in two cases: order p − 1 was
//! measured and breaks the tolerance, or the error at p is so close to the tolerance that order p − 1 would break it.
//!
//! The error may stop falling because the kernel is no solution of an elliptic equation, or because of rounding. Then
//! [`least`] finds the order with the least error instead. The least error is the floor.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Digits that define a stall: the error does not halve over a range of orders that should gain so many digits. A
/// shorter range may be one step of a staircase. For example, spherical harmonics of points on a lattice gain next to
/// nothing from order 19 to 21, and two digits to order 28.
const STALL_DIGITS: f64 = 2.2;
/// Fewest digits per order that the search assumes between an order that breaks the tolerance and an order that keeps
/// it.
const FEWEST_DIGITS: f64 = 0.08;
/// Part of the digits of one order. If the error is below the tolerance by at most this part, the search does not
/// measure the order below.
const ACCEPTED_MARGIN: f64 = 0.75;
/// Number of measured orders after which the search tries no new order. (An order known from other leaves counts.)
const MAX_MEASUREMENTS: usize = 12;

/// An order whose error exceeds the tolerance by more than this factor is not measured again on a tree with leaves of
/// another size.
const REMEASURE_RATIO: f64 = 3.0;

/// A search for the smallest order that keeps a tolerance.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    tolerance: f64,
    /// Available orders.
    orders: RangeInclusive<usize>,
    /// Digits per order that the search assumes before two measurements.
    digits: f64,
    /// The first order to measure.
    first: usize,
    /// The errors of orders.
    tried: BTreeMap<usize, f64>,
    /// Whether an order was measured since the start.
    started: bool,
}

/// Why an order is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// It is the first.
    First,
    /// An order that keeps the tolerance is known, and this one may be the smallest.
    Tolerance,
    /// All orders up to the last one break the tolerance.
    Further,
}

/// What a search wants next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Next {
    /// The error at an order.
    Measure(usize, Aim),
    /// Nothing: this order keeps the tolerance.
    Found(usize),
    /// Nothing: the error stalls above the tolerance, or no order or measurement is left.
    Stalled,
}

impl Search {
    /// A search that begins at the order `first`.
    pub fn new(tolerance: f64, orders: RangeInclusive<usize>, digits: f64, first: usize) -> Search {
        let first = first.clamp(*orders.start(), *orders.end());
        Search { tolerance, orders, digits, first, tried: BTreeMap::new(), started: false }
    }

    /// Adds an order below the first, with an error that breaks the tolerance.
    pub fn knows(&mut self, below: Option<(usize, f64)>) {
        self.tried.extend(below.filter(|(order, _)| *order < self.first));
    }

    /// Records the error at an order (infinite, not NaN, without a digit).
    pub fn measured(&mut self, order: usize, error: f64) {
        self.tried.insert(order, error);
        self.started = true;
    }

    /// Begins again at an order, on a tree with leaves of another size. Lower orders that clearly break the tolerance are
    /// not measured again.
    pub fn restart(&mut self, order: usize) {
        self.tried.retain(|&p, error| p < order && *error > REMEASURE_RATIO * self.tolerance);
        (self.first, self.started) = (order, false);
    }

    /// The next order to measure, or the end of the search.
    pub fn next(&self) -> Next {
        if !self.started {
            return Next::Measure(self.first, Aim::First);
        }
        let (min, max) = (*self.orders.start(), *self.orders.end());
        let kept = self.tried.iter().find(|(_, e)| **e <= self.tolerance).map(|(&p, &e)| (p, e));
        let broken = |below: usize| self.tried.range(..below).next_back().map(|(&p, &e)| (p, e));
        if let Some((p, error)) = kept {
            let left = self.tolerance / error;
            let lower = match broken(p) {
                _ if p == min || self.tried.len() >= MAX_MEASUREMENTS => return Next::Found(p),
                Some((q, _)) if q + 1 == p => return Next::Found(p),
                _ if left.log10() <= ACCEPTED_MARGIN * self.digits => return Next::Found(p),
                Some((q, e)) => {
                    let digits = ((e / error).log10() / (p - q) as f64).max(FEWEST_DIGITS);
                    ((p as f64 - (left.log10() / digits).floor()) as usize).clamp(q + 1, p - 1)
                }
                None => {
                    let down = if left.is_finite() { (left.log10() / self.digits).floor() as usize } else { p };
                    p.saturating_sub(down.max(1)).max(min)
                }
            };
            return Next::Measure(lower, Aim::Tolerance);
        }
        let (p, error) = broken(max + 1).expect("one was tried");
        if self.tried.len() >= MAX_MEASUREMENTS || p == max {
            return Next::Stalled;
        }
        let span = span(self.digits);
        let lower = self.tried.range(..=p.saturating_sub(span)).map(|(_, &e)| e).reduce(f64::min);
        if lower.is_some_and(|lower| error > 0.5 * lower) {
            return Next::Stalled;
        }
        let measured = broken(p).map(|(q, e)| (e / error).log10() / (p - q) as f64).filter(|d| d.is_finite());
        let digits = measured.unwrap_or(self.digits).max(0.5 * self.digits);
        let steps = ((error / self.tolerance).log10() / digits).ceil().max(1.0);
        let further = if steps.is_finite() { p + steps as usize } else { p + 2 };
        Next::Measure(further.min(max), Aim::Further)
    }
}

/// Number of orders over which a stalled error does not halve.
fn span(digits: f64) -> usize {
    (STALL_DIGITS / digits).ceil() as usize
}

/// The order with the least error among `orders`, and this error. `digits` are the digits per order that the expansion
/// gains where it converges, and `at` measures the error at an order (infinite, not NaN, without a digit).
///
/// The search starts at the smallest order. While the error falls at least half as fast as `digits` says, the step between
/// orders grows. Otherwise the step is 1, because errors of an expansion that does not suit the kernel jump by a factor of
/// ten from order to order. The search ends when the error stalls. Then the orders beside the best order are measured.
///
/// The path depends on the errors alone, on no tolerance and no first guess. So a plan whose tolerance is just above the
/// least error finds the same order again.
pub(crate) fn least<E>(
    orders: RangeInclusive<usize>,
    digits: f64,
    mut at: impl FnMut(usize) -> Result<f64, E>,
) -> Result<(usize, f64), E> {
    let (min, max, span) = (*orders.start(), *orders.end(), span(digits));
    let mut tried: BTreeMap<usize, f64> = BTreeMap::new();
    let (mut order, mut step) = (min, 1);
    loop {
        let error = at(order)?;
        let last = tried.last_key_value().map(|(&p, &e)| (p, e));
        tried.insert(order, error);
        let least = |range: RangeInclusive<usize>| tried.range(range).map(|(_, &e)| e).fold(f64::INFINITY, f64::min);
        let stalls = order >= min + span && least(order + 1 - span..=order) >= 0.5 * least(min..=order - span);
        if stalls || order == max || error == 0.0 {
            break;
        }
        let falls = last.is_some_and(|(p, e)| (e / error).log10() >= 0.5 * digits * (order - p) as f64);
        step = if falls { (2 * step).min(span) } else { 1 };
        order = (order + step).min(max);
    }
    loop {
        let (&best, &error) = tried.iter().min_by(|a, b| a.1.total_cmp(b.1)).expect("one was tried");
        let beside = best.saturating_sub(1)..=best + 1;
        let Some(order) = beside.into_iter().find(|p| orders.contains(p) && !tried.contains_key(p)) else {
            return Ok((best, error));
        };
        tried.insert(order, at(order)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(tolerance: f64, first: usize) -> Search {
        Search::new(tolerance, 3..=16, 0.8, first)
    }

    /// The end of a search, and what it measured.
    fn run(mut search: Search, error: &dyn Fn(usize) -> f64) -> (Next, Vec<(usize, Aim)>) {
        let mut measured = Vec::new();
        loop {
            match search.next() {
                Next::Measure(order, aim) => {
                    measured.push((order, aim));
                    search.measured(order, error(order));
                }
                end => return (end, measured),
            }
        }
    }

    #[test]
    fn finds_the_smallest_order_from_anywhere() {
        for first in 3..=16 {
            for k in 1..=9 {
                let tolerance = 2.5 * 10f64.powi(-k);
                let error = |p: usize| 3.0 * 10f64.powf(-0.7 * p as f64);
                let (Next::Found(p), _) = run(search(tolerance, first), &error) else { panic!("{first} {k}") };
                assert!(error(p) <= tolerance);
                assert!(p == 3 || error(p - 1) > tolerance || tolerance / error(p) <= 4.0, "{first} {k}: {p}");
            }
        }
    }

    #[test]
    fn says_why_it_measures() {
        let aims = |error: &dyn Fn(usize) -> f64, first| run(search(1e-6, first), error).1;
        let falls = |p: usize| 10f64.powf(-0.7 * p as f64);
        assert!(aims(&falls, 4)[1..].iter().all(|(p, _)| *p > 4));
        assert_eq!(aims(&falls, 4)[1].1, Aim::Further);
        assert!(aims(&falls, 16)[1..].iter().all(|(_, aim)| *aim == Aim::Tolerance));
        let stalls = aims(&|_| 1e-3, 5);
        assert!(stalls.len() > 1 && stalls[0].1 == Aim::First && stalls[1..].iter().all(|s| s.1 == Aim::Further));
    }

    /// The least error of `errors`, the order, and the number of measurements.
    fn floor(errors: &dyn Fn(usize) -> f64) -> (usize, f64, usize) {
        let mut count = 0;
        let at = |p: usize| {
            count += 1;
            Ok::<_, ()>(errors(p))
        };
        let (order, error) = least(3..=16, 0.8, at).unwrap();
        (order, error, count)
    }

    #[test]
    fn finds_the_least_of_errors_that_jump() {
        // A kernel of compact support, and equivalent densities of 1/r² on 20 000 points.
        let compact = [6.4, 0.065, 32.0, 2.1, 6.6, 40.0, 6.7e4];
        let (order, error, count) = floor(&|p| compact.get(p - 3).copied().unwrap_or(1e5));
        assert_eq!((order, error), (4, 0.065));
        assert!(count <= 6, "{count}");
        let squares = [3.0, 5.4, 1.2, 2.7, 3.2, 18.0, 11.4, 8.5, 1.3, 230.0, 33.8, 685.0, 240.0, 89.0];
        let (order, error, _) = floor(&|p| 1e-3 * squares[p - 3]);
        assert_eq!((order, error), (5, 1.2e-3));
        assert_eq!(floor(&|_| f64::INFINITY).1, f64::INFINITY);
    }

    #[test]
    fn tells_the_least_error_where_errors_stall_or_grow() {
        let stall = |p: usize| 10f64.powf(-0.7 * p as f64).max(2e-6);
        let grow = |p: usize| 1e-3 * 10f64.powf(0.3 * (p as f64 - 5.0).abs());
        for first in 3..=16 {
            for errors in [&stall as &dyn Fn(usize) -> f64, &grow] {
                assert_eq!(run(search(1e-7, first), errors).0, Next::Stalled, "{first}");
            }
        }
        let (order, error, count) = floor(&stall);
        assert!(order == 9 && error == 2e-6 && count <= 9, "{order} {error} {count}");
        let (order, error, count) = floor(&grow);
        assert!(order == 5 && error == 1e-3 && count <= 7, "{order} {error} {count}");
        // Rounding errors that grow, after an error that falls to the end.
        let (order, _, count) = floor(&|p| 10f64.powf(-0.8 * p as f64));
        assert!(order == 16 && count <= 9, "{order} {count}");
    }

    #[test]
    fn an_order_known_to_break_is_not_measured_again() {
        let mut known = search(1e-6, 7);
        known.knows(Some((6, 1e-5)));
        assert_eq!(run(known, &|_| 1e-9), (Next::Found(7), vec![(7, Aim::First)]));
    }

    #[test]
    fn other_leaves_keep_what_clearly_breaks() {
        let mut search = search(1e-6, 5);
        [(5, 1e-3), (6, 1e-5), (7, 2e-6)].into_iter().for_each(|(p, e)| search.measured(p, e));
        assert_eq!(search.next(), Next::Measure(8, Aim::Further));
        search.restart(8);
        assert_eq!(search.next(), Next::Measure(8, Aim::First));
        // Order 7 may keep the tolerance on these leaves, order 6 does not.
        assert_eq!(
            run(search, &|p| if p < 7 { 1.0 } else { 1e-7 }),
            (Next::Found(7), vec![(8, Aim::First), (7, Aim::Tolerance)])
        );
    }
}
