//! Contests of candidates whose errors and prices are tables.

use super::contest::{Lost, Why, best};
use super::field::{Attempt, Field, Tried};
use crate::candidates::{Candidate, Goal, Seen, candidates, check, expected};
use crate::request::{Fmm, Method};
use fmm_kernels::Laplace;
use fmm_traits::Error;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::cell::RefCell;

/// The errors and prices of a candidate.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Forecast seconds of an evaluation at order 0.
    seconds: f64,
    /// Seconds from counted boxes and edges, by the forecast.
    counted: f64,
    /// The error falls by so many digits per order, as a part of the digits that the search assumes.
    digits: f64,
    /// The least error.
    floor: f64,
    /// Seconds of operators at order 1.
    operators: f64,
    /// Whether its boxes cannot be built.
    fails: bool,
}

impl Line {
    fn forecast(&self, order: usize) -> f64 {
        self.seconds * (1.0 + (order as f64 / 8.0).powi(2))
    }
    fn price(&self, order: usize) -> f64 {
        self.counted * self.forecast(order)
    }
    fn error(&self, candidate: &Candidate, order: usize) -> f64 {
        10f64.powf(-self.digits * candidate.digits * order as f64).max(self.floor)
    }
    fn measurement(&self, order: usize, evaluation: f64) -> f64 {
        0.3 * evaluation + self.operators * (order as f64).powi(3)
    }
    /// The smallest order that keeps a tolerance.
    fn order(&self, candidate: &Candidate, tolerance: f64) -> Option<usize> {
        candidate.orders.clone().find(|&order| self.error(candidate, order) <= tolerance)
    }
}

/// A field of candidates with tables. Direct summation has an error, too.
struct Tables {
    goal: Goal,
    lines: Vec<(Candidate, Line)>,
    direct: (Candidate, f64),
    /// Method and order of each measurement.
    measured: RefCell<Vec<(Method, usize)>>,
}

impl Tables {
    /// Direct summation comes with its seconds and its error.
    fn new(goal: Goal, lines: impl Iterator<Item = (Candidate, Line)>, direct: (Candidate, f64, f64)) -> Tables {
        let (candidate, seconds, error) = direct;
        let direct = (Candidate { seconds, ..candidate }, error);
        Tables { goal, lines: lines.collect(), direct, measured: RefCell::default() }
    }
    /// The candidates that keep a tolerance, each with its smallest order.
    fn keeps(&self, tolerance: f64) -> Vec<(&Candidate, &Line, usize)> {
        let working = self.lines.iter().filter(|(_, line)| !line.fails);
        working.filter_map(|(c, line)| line.order(c, tolerance).map(|order| (c, line, order))).collect()
    }
    fn candidates(&self) -> Vec<Candidate> {
        let seconds = |c: &Candidate, line: &Line| expected(c.guess, |order| line.forecast(order));
        let priced = |(c, line): &(Candidate, Line)| Candidate { seconds: seconds(c, line), ..c.clone() };
        let mut all: Vec<Candidate> = self.lines.iter().map(priced).collect();
        all.push(self.direct.0.clone());
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        all
    }
    /// Forecast seconds of all measurements of fast candidates.
    fn spent(&self) -> f64 {
        let price = |(method, order): &(Method, usize)| {
            self.line(*method).map_or(0.0, |line| line.measurement(*order, line.forecast(*order)))
        };
        self.measured.borrow().iter().map(price).sum()
    }
    /// The table of a method; `None` for direct summation.
    fn line(&self, method: Method) -> Option<&Line> {
        self.lines.iter().find(|(c, _)| c.method == method).map(|(_, line)| line)
    }
}

impl<'a> Field for &'a Tables {
    type Attempt = OnTable<'a>;
    fn goal(&self) -> Goal {
        self.goal
    }
    fn is_exact(&self, candidate: &Candidate) -> bool {
        candidate.method == Method::Direct && self.direct.1 == 0.0
    }
    fn has_operators_per_level(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.operators > 1e-3)
    }
    fn forecast(&self, candidate: &Candidate, order: usize) -> [f64; 2] {
        [10.0 * order as f64, self.line(candidate.method).map_or(candidate.seconds, |line| line.forecast(order))]
    }
    fn measurement(&self, candidate: &Candidate, order: usize, evaluation: f64, _: Option<usize>) -> f64 {
        self.line(candidate.method).map_or(0.0, |line| line.measurement(order, evaluation))
    }
    fn place(&self, candidate: &Candidate) -> Result<OnTable<'a>, Error> {
        if self.line(candidate.method).is_some_and(|line| line.fails) {
            return Err(Error::Memory { needed: 1, available: 0, what: "boxes".to_string() });
        }
        Ok(OnTable { tables: self, candidate: candidate.clone(), occupancy: candidate.occupancy })
    }
}

struct OnTable<'a> {
    tables: &'a Tables,
    candidate: Candidate,
    occupancy: f64,
}

impl OnTable<'_> {
    fn error(&self, order: usize) -> f64 {
        match self.tables.line(self.candidate.method) {
            Some(line) => line.error(&self.candidate, order),
            None => self.tables.direct.1,
        }
    }
}

impl Attempt for OnTable<'_> {
    type Decision = (Method, usize);
    fn counted(&mut self, order: f64) -> Result<(f64, usize), Error> {
        let price = |line: &Line| expected(order, |order| line.price(order));
        Ok((self.tables.line(self.candidate.method).map_or(self.candidate.seconds, price), 4))
    }
    fn prices(&mut self, of: &[&Candidate], _: usize) -> Result<Vec<Option<f64>>, Error> {
        let price =
            |c: &&Candidate| self.tables.line(c.method).map(|line| expected(c.guess, |order| line.price(order)));
        Ok(of.iter().map(price).collect())
    }
    fn occupancy(&self) -> f64 {
        self.occupancy
    }
    fn balance(&self, order: usize) -> Option<f64> {
        self.tables.line(self.candidate.method).map(|_| 10.0 * order as f64)
    }
    fn replace(&mut self, _: usize, occupancy: f64) -> Result<(), Error> {
        self.occupancy = occupancy;
        Ok(())
    }
    fn measure(&mut self, order: usize) -> Result<f64, Error> {
        self.tables.measured.borrow_mut().push((self.candidate.method, order));
        Ok(self.error(order))
    }
    fn nodes(&mut self, _: usize, _: f64, _: f64) -> Result<Option<(usize, f64)>, Error> {
        Ok(None)
    }
    fn decide(mut self, order: usize) -> Result<Tried<(Method, usize)>, Error> {
        let (seconds, _) = self.counted(order as f64)?;
        let above = |error: &f64| self.tables.goal.tolerance().is_some_and(|tolerance| *error > tolerance);
        let floor = Some(self.error(order)).filter(above).map(|error| (error, "potential"));
        Ok(Tried { decision: (self.candidate.method, order), seconds, floor })
    }
}

/// Candidates of a harmonic kernel for a tolerance: harmonics, equivalent densities, interpolation, direct summation.
fn of_laplace(tolerance: f64) -> (Vec<Candidate>, Candidate) {
    let request = Fmm::new(Laplace).tolerance(tolerance);
    let counts = [10_000; 2];
    let task = check(&request, counts).unwrap();
    let mut all = candidates(&request, &task, Seen { counts, apart: false, extent: 1.0 }).unwrap();
    all.retain(|c| c.method != Method::Treecode);
    let direct = all.iter().position(|c| c.method == Method::Direct).map(|i| all.remove(i)).unwrap();
    assert_eq!(all.len(), 3);
    (all, direct)
}

/// An order between two orders costs between them, and an order itself costs what it costs.
#[test]
fn an_expected_order_costs_between_its_neighbours() {
    let seconds = |order: usize| (order * order) as f64;
    assert_eq!(expected(5.0, seconds), 25.0);
    assert!((expected(5.25, seconds) - (0.75 * 25.0 + 0.25 * 36.0)).abs() < 1e-12);
}

fn line() -> impl Strategy<Value = Line> {
    let decades = |range: std::ops::Range<f64>| range.prop_map(|x| 10f64.powf(x));
    let fails = prop::bool::weighted(0.1);
    (decades(-3.0..1.0), 0.8f64..1.25, 0.4f64..1.3, decades(-14.0..-3.0), decades(-7.0..-1.0), fails).prop_map(
        |(seconds, counted, digits, floor, operators, fails)| Line {
            seconds,
            counted,
            digits,
            floor,
            operators,
            fails,
        },
    )
}

/// On a surface boxes have few edges, so prices on counted boxes are below forecasts. A candidate that needs a higher order than
/// expected waits for a rival that is cheaper on its boxes, and the rival is tried next. It does not wait for one that is cheaper by
/// its forecast alone.
#[test]
fn a_candidate_waits_for_one_that_is_cheaper_on_its_boxes() {
    let tolerance = 1e-4;
    let of = |counted: [f64; 3], of_rival: f64| {
        let (fast, of_direct) = of_laplace(tolerance);
        let line = |((seconds, counted), operators)| Line {
            seconds,
            counted,
            digits: 0.7,
            floor: 0.0,
            operators,
            fails: false,
        };
        // The third costs so much that it is never tried.
        let lines = [1.0, 1.1, 90.0].into_iter().zip(counted).zip([0.0, of_rival, 0.0]);
        let lines: Vec<Line> = lines.map(line).collect();
        let methods: Vec<Method> = fast.iter().map(|c| c.method).collect();
        // Scaled so that 1.0, 1.1 and 90 are the forecasts at the first orders.
        let scaled = fast.into_iter().zip(lines).map(|(c, line)| {
            let first = line.forecast(c.first());
            (c, Line { seconds: line.seconds * line.seconds / first, ..line })
        });
        let tables = Tables::new(Goal::Tolerance(tolerance), scaled, (of_direct, 1e6, 0.0));
        assert!(best(&&tables, tables.candidates(), false).is_ok());
        let measured = tables.measured.borrow().clone();
        let place = |method: Method| methods.iter().position(|m| *m == method).unwrap();
        measured.into_iter().map(|(method, _)| place(method)).collect::<Vec<usize>>()
    };
    // All prices are half of their forecasts, so the rival is cheaper on the boxes, too, and is tried second.
    assert_eq!(of([0.5, 0.5, 0.5], 0.0)[..2], [0, 1]);
    // Operators of the rival take longer than the rival saves.
    assert_eq!(of([0.5, 0.5, 0.5], 0.1)[..2], [0, 0]);
    // Only the first candidate is cheaper than its forecast, so it is measured again.
    assert_eq!(of([0.3, 1.0, 1.0], 0.0)[..2], [0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..Default::default()
    })]
    /// A winner keeps the tolerance. There is one if a candidate keeps the tolerance. No candidate costs clearly less.
    #[test]
    fn the_cheapest_that_keeps_the_tolerance_wins(
        lines in prop::array::uniform3(line()),
        tolerance in (-9.0f64..-2.0).prop_map(|x| 10f64.powf(x)),
        direct in (-3.0f64..3.0).prop_map(|x| 10f64.powf(x)),
        direct_error in prop_oneof![Just(0.0), Just(1e-6)],
    ) {
        let (fast, of_direct) = of_laplace(tolerance);
        let tables = Tables::new(Goal::Tolerance(tolerance), fast.into_iter().zip(lines), (of_direct, direct, direct_error));
        let keeps = tables.keeps(tolerance);
        let direct_keeps = direct_error <= tolerance;
        match best(&&tables, tables.candidates(), false) {
            Ok((Tried { decision: (method, order), seconds, floor }, why)) => {
                prop_assert!(floor.is_none());
                match tables.lines.iter().find(|(c, _)| c.method == method) {
                    Some((c, line)) => {
                        prop_assert!(line.error(c, order) <= tolerance);
                        prop_assert!(matches!(why, Why::ManyPairs | Why::OnlyOne), "{why:?}");
                        prop_assert!(!direct_keeps || seconds <= direct);
                    }
                    None => prop_assert!(method == Method::Direct && direct_keeps),
                }
                for (c, line, least) in keeps {
                    // The next higher order may be taken, forecasts err, and measurements are earned back.
                    let measurements = 6.0 * line.measurement(least + 2, line.forecast(least + 2));
                    let most = line.forecast(least + 2).max(line.price(least + 2)) + measurements / 4.0;
                    // Direct summation ends a plan whose measurements have cost as much as a few direct sums.
                    let ended = method == Method::Direct && tables.spent() >= 2.0 * direct;
                    let wins = ended || seconds <= 1.1 * most;
                    prop_assert!(wins, "{:?} of {most} s loses to {method:?} of {seconds} s", c.method);
                }
            }
            Err(Lost::Floor((floor, _), direct)) => {
                prop_assert!(keeps.is_empty(), "{keeps:?}");
                prop_assert!(floor > tolerance && (!direct_keeps || direct.is_some()));
            }
            Err(Lost::Failed(e)) => prop_assert!(tables.lines.iter().all(|(_, line)| line.fails), "{e}"),
        }
        // Where direct summation serves, searches for an order that keeps the tolerance cost at most about four direct sums.
        // Lower orders of the same candidate come on top.
        let affordable = direct <= 10.0;
        if direct_error == 0.0 && affordable {
            prop_assert!(tables.spent() <= 16.0 * direct, "{} s for direct sums of {direct} s", tables.spent());
        }
    }

    /// Without a requested tolerance, the least error is taken where nothing keeps the default.
    #[test]
    fn the_least_error_serves_where_none_was_asked_for(
        lines in prop::array::uniform3(line()),
        direct in (-3.0f64..3.0).prop_map(|x| 10f64.powf(x)),
        direct_error in prop_oneof![Just(0.0), Just(1e-3)],
    ) {
        let tolerance = 1e-6;
        let (fast, of_direct) = of_laplace(tolerance);
        let goal = Goal::Usual(tolerance);
        let tables = Tables::new(goal, fast.into_iter().zip(lines), (of_direct, direct, direct_error));
        match best(&&tables, tables.candidates(), false) {
            Ok((Tried { floor: None, .. }, _)) => {}
            Ok((Tried { floor: Some((floor, _)), .. }, why)) => {
                prop_assert_eq!(why, Why::LeastError);
                prop_assert!(goal.accepts(floor) && floor > tolerance);
            }
            Err(_) => prop_assert!(tables.lines.iter().all(|(_, line)| line.fails)),
        }
    }
}
