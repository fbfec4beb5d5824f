//! The contest of candidates for a sum: which of them are measured, and which one is best.

use super::ends_all;
use super::field::{Attempt, Decided, Field, Floor, Tried};
use super::order::{Ended, Pause, Rivals, search};
use crate::candidates::{Candidate, Goal, Layout};
use crate::request::Method;
use crate::variant::Expansion;
use fmm_traits::Error;
use std::collections::VecDeque;

/// Direct summation replaces fast methods that do not reach a tolerance if its forecast is at most this many times that
/// of the fast evaluation, or at most [`DIRECT_SECONDS`].
const DIRECT_FACTOR: f64 = 20.0;
/// See [`DIRECT_FACTOR`].
const DIRECT_SECONDS: f64 = 10.0;
/// Without a requested tolerance, a candidate that might err less than the best is tried if it is forecast to cost less
/// than this many times as much.
const MAX_RATIO_TO_ERR_LESS: f64 = 1.3;

/// Why a candidate has won.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Why {
    /// It is the only one.
    Alone,
    /// Direct summation is forecast to be cheaper than all fast methods.
    FewPairs,
    /// Direct summation is cheaper than measuring the errors of fast methods.
    DearToMeasure,
    /// Direct summation is cheaper than the fast method on the boxes of these points.
    ThesePoints,
    /// Fast methods reach no less than this error, and direct summation does.
    FallShort(f64),
    /// The fast method is cheaper than direct summation.
    ManyPairs,
    /// Direct summation is cheaper, but does not keep the tolerance.
    OnlyOne,
    /// No candidate keeps the default tolerance, and this one has the least error.
    LeastError,
}

/// The winner, and why.
pub(super) type Won<F> = (Tried<Decided<F>>, Why);

/// Why no candidate has won.
pub(super) enum Lost {
    /// No candidate keeps the tolerance. The number is the forecast of direct summation in seconds, which may be asked
    /// for.
    Floor(Floor, Option<f64>),
    Failed(Error),
}

impl From<Error> for Lost {
    fn from(e: Error) -> Self {
        Lost::Failed(e)
    }
}

/// The best of `candidates`, sorted by their forecasts. If the caller named a method, these are its candidates.
pub(super) fn best<F: Field>(field: &F, mut candidates: Vec<Candidate>, named: bool) -> Result<Won<F>, Lost> {
    let direct = candidates.iter().position(|c| c.method == Method::Direct).map(|i| candidates.remove(i));
    let direct = direct.map(|candidate| Direct { candidate, tried: None });
    let mut contest = Contest {
        field,
        named,
        direct,
        direct_serves: false,
        waiting: candidates.into_iter().map(Waiting::from).collect(),
        best: None,
        reached: None,
        outbid_by_direct: false,
        failed: Error::NoOutput,
        spent: 0.0,
    };
    if let Some(won) = contest.open()? {
        return Ok(won);
    }
    while let Some(next) = contest.waiting.pop_front() {
        contest.advance(next)?;
    }
    contest.close()
}

/// A fast candidate that is still to be tried.
struct Waiting {
    candidate: Candidate,
    /// Why it waits, if it has been tried before.
    pause: Option<Pause>,
}

impl From<Candidate> for Waiting {
    fn from(candidate: Candidate) -> Self {
        Waiting { candidate, pause: None }
    }
}

impl Waiting {
    fn expansion(&self) -> Option<Expansion> {
        expansion(&self.candidate)
    }

    fn gives_up(&self) -> bool {
        self.pause.is_some_and(Pause::gives_up)
    }

    /// Whether another candidate may wait for this one: this one is untried, and not a treecode. Treecodes do not count, because
    /// each has the expansion of another candidate.
    fn may_go_first(&self) -> bool {
        self.pause.is_none() && self.candidate.method != Method::Treecode
    }

    /// Takes `price` as the forecast if it is lower.
    fn lower(&mut self, price: Option<f64>) {
        self.candidate.seconds = self.candidate.seconds.min(price.unwrap_or(f64::INFINITY));
    }

    /// Takes its place: before those that cost more, or at the end if it is tried again only if nothing else serves.
    fn join(self, waiting: &mut VecDeque<Waiting>) {
        let later = |w: &Waiting| w.candidate.seconds > self.candidate.seconds || w.pause.is_some();
        let at = waiting.iter().position(later).filter(|_| !self.gives_up()).unwrap_or(waiting.len());
        waiting.insert(at, self);
    }
}

/// The expansion of a candidate on an octree.
fn expansion(candidate: &Candidate) -> Option<Expansion> {
    if let Layout::Octree(parts) = &candidate.layout { Some(parts.expansion) } else { None }
}

/// Direct summation, a rival of all fast candidates.
struct Direct<D> {
    candidate: Candidate,
    /// Its errors, if they were asked for.
    tried: Option<Tried<D>>,
}

impl<D> Direct<D> {
    /// Whether it may take the place of a candidate whose evaluation takes `fast` seconds.
    fn affordable(&self, fast: f64) -> bool {
        self.candidate.seconds <= (DIRECT_FACTOR * fast).max(DIRECT_SECONDS)
    }

    fn tried<F: Field>(&mut self, field: &F) -> Result<&Tried<D>, Error>
    where
        F::Attempt: Attempt<Decision = D>,
    {
        if self.tried.is_none() {
            self.tried = Some(alone(field, &self.candidate)?);
        }
        Ok(self.tried.as_ref().expect("just tried"))
    }
}

/// Direct summation, with its order, which is none.
fn alone<F: Field>(field: &F, direct: &Candidate) -> Result<Tried<Decided<F>>, Error> {
    match search(field, direct, &Rivals::default(), None, &mut 0.0)? {
        Ended::Found(tried) => Ok(tried),
        _ => unreachable!("direct summation has no rival and no nodes"),
    }
}

struct Contest<'a, F: Field> {
    field: &'a F,
    /// Whether the caller named the method.
    named: bool,
    direct: Option<Direct<Decided<F>>>,
    /// Whether direct summation is known to keep the tolerance.
    direct_serves: bool,
    waiting: VecDeque<Waiting>,
    best: Option<Tried<Decided<F>>>,
    /// The least error of candidates that stall and are not tried again.
    reached: Option<f64>,
    /// Whether direct summation was cheaper than measuring a candidate.
    outbid_by_direct: bool,
    /// The last error of a candidate that could not be tried.
    failed: Error,
    /// Forecast seconds of the measurements that search an order for the tolerance.
    spent: f64,
}

impl<F: Field> Contest<'_, F> {
    /// Tries direct summation where nothing else is to be tried before.
    fn open(&mut self) -> Result<Option<Won<F>>, Lost> {
        let (field, goal) = (self.field, self.field.goal());
        let Some(direct) = &mut self.direct else { return Ok(None) };
        let cheapest = self.waiting.iter().map(|w| w.candidate.seconds).fold(f64::INFINITY, f64::min);
        // Forecasts of fast methods assume points that fill a cube. Where direct summation wins even then, no fast method
        // is tried.
        if direct.candidate.seconds <= cheapest {
            let alone = self.waiting.is_empty();
            match direct.tried(field)?.floor {
                None => return Ok(direct.tried.take().map(|d| (d, if alone { Why::Alone } else { Why::FewPairs }))),
                Some(floor) if alone && !goal.accepts(floor.0) => return Err(Lost::Floor(floor, None)),
                Some(_) if alone => return Ok(direct.tried.take().map(|d| (d, Why::LeastError))),
                Some(_) => {}
            }
        }
        // Direct sums in f32 err, too. Where fast methods have operators for each level, one measurement of direct sums
        // costs little beside those of candidates, and tells whether direct sums can take their place.
        self.direct_serves = match field.is_exact(&direct.candidate) {
            true => true,
            false if !field.has_operators_per_level() || !direct.affordable(cheapest) => false,
            false => match direct.tried(field) {
                Ok(tried) => tried.floor.is_none(),
                Err(e) if ends_all(&e) => return Err(e.into()),
                Err(_) => false,
            },
        };
        Ok(None)
    }

    /// Tries a candidate, unless it cannot win.
    fn advance(&mut self, next: Waiting) -> Result<(), Error> {
        let rivals = self.rivals(&next);
        if self.is_beaten(&next) || self.is_outbid(&next, &rivals) {
            return Ok(());
        }
        let Waiting { candidate, pause } = next;
        match search(self.field, &candidate, &rivals, pause, &mut self.spent) {
            Ok(Ended::Found(tried)) => {
                self.look_at_boxes(&tried.decision);
                self.keep_better(tried);
            }
            Ok(Ended::Lost) => self.outbid_by_direct |= rivals.direct.is_some(),
            Ok(Ended::Paused { order, seconds, rival_prices, pause }) => {
                for (waiting, price) in self.waiting.iter_mut().filter(|w| w.may_go_first()).zip(rival_prices) {
                    waiting.lower(price);
                }
                let candidate = Candidate { seconds, ..self.field.at(&candidate, order as f64) };
                Waiting { candidate, pause: Some(pause) }.join(&mut self.waiting);
            }
            Ok(Ended::Nodes { order, nodes, error }) => self.take_nodes(candidate, order, nodes, error),
            Err(e) if ends_all(&e) => return Err(e),
            // Another candidate may serve. For example, it may need less memory.
            Err(e) => self.failed = e,
        }
        Ok(())
    }

    fn rivals(&self, next: &Waiting) -> Rivals {
        // A candidate waits once. Without a requested tolerance, an error that stalls may be accepted.
        let first_time = next.pause.is_none() && matches!(self.field.goal(), Goal::Tolerance(_));
        let others = self.waiting.iter().filter(|w| w.may_go_first());
        let serves = |direct: &&Direct<_>| self.direct_serves && direct.affordable(next.candidate.seconds);
        Rivals {
            fast: others.map(|w| w.candidate.clone()).filter(|_| first_time).collect(),
            direct: self.direct.as_ref().filter(serves).map(|direct| direct.candidate.seconds),
            best: self.best.as_ref().filter(|best| best.floor.is_none()).map(|best| best.seconds),
            spent: self.spent,
        }
    }

    /// Whether the best candidate, or one with the same expansion, makes it pointless to try another one.
    fn is_beaten(&self, next: &Waiting) -> bool {
        // If M2L does not reach the tolerance, M2P with the same expansion does not reach it at any angle worth its
        // price.
        let treecode = !self.named && next.candidate.method == Method::Treecode;
        let by_best = |best: &Tried<_>| match best.floor {
            None => next.gives_up(),
            Some((floor, _)) if self.field.goal().accepts(floor) => {
                treecode || next.candidate.seconds >= MAX_RATIO_TO_ERR_LESS * best.seconds
            }
            Some(_) => treecode,
        };
        let stalls = |w: &Waiting| w.gives_up() && w.expansion() == next.expansion();
        self.best.as_ref().is_some_and(by_best) || treecode && self.waiting.iter().any(stalls)
    }

    /// Whether a known way costs less than a candidate with its first measurement.
    fn is_outbid(&mut self, Waiting { candidate, pause }: &Waiting, rivals: &Rivals) -> bool {
        // The floors of candidates are of no use where direct summation takes their place.
        if let (Some(pause), Some(_)) = (pause.filter(|pause| pause.gives_up()), rivals.direct) {
            match pause {
                Pause::Stalled(error) => self.reached = Some(error.min(self.reached.unwrap_or(error))),
                _ => self.outbid_by_direct = true,
            }
            return true;
        }
        let measuring = self.field.measurement(candidate, candidate.first(), candidate.seconds, None);
        let outbid = rivals.outbid(candidate.seconds, measuring);
        self.outbid_by_direct |= outbid && rivals.direct.is_some();
        outbid
    }

    /// Lowers the forecasts of waiting candidates to their prices on boxes that are known. Forecasts assume points that fill a
    /// cube; boxes of points on a surface have fewer edges.
    fn look_at_boxes(&mut self, of: &Decided<F>) {
        for waiting in self.waiting.iter_mut().filter(|w| w.pause.is_none()) {
            waiting.lower(self.field.on_boxes(&waiting.candidate, of));
        }
    }

    fn keep_better(&mut self, tried: Tried<Decided<F>>) {
        let better = self.best.as_ref().is_none_or(|best| match (best.floor, tried.floor) {
            (None, None) => tried.seconds < best.seconds,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((old, _)), Some((new, _))) => new < old,
        });
        if better {
            self.best = Some(tried);
        }
    }

    /// One value of the attributes of sources causes too large an error: gives `nodes` nodes to a candidate, and to waiting
    /// candidates of expansions that err as much.
    fn take_nodes(&mut self, candidate: Candidate, order: usize, nodes: usize, error: f64) {
        let with_nodes = |candidate: &Candidate, guess| self.field.at(&candidate.with_nodes(nodes), guess);
        if self.field.goal().tolerance().is_some_and(|tolerance| error > tolerance) {
            // One node may still keep the tolerance at a higher order.
            for candidate in [with_nodes(&candidate, order as f64), candidate] {
                Waiting { candidate, pause: Some(Pause::Stalled(error)) }.join(&mut self.waiting);
            }
            return;
        }
        // What densities in a volume miss with one value, those on its surface miss, too.
        let of = expansion(&candidate);
        let misses = |e| e == of || of == Some(Expansion::Interpolation) && e == Some(Expansion::Equivalent);
        let (others, rest): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|w| w.pause.is_none() && misses(w.expansion()));
        self.waiting = rest.into();
        for candidate in others.into_iter().map(|w| w.candidate).chain([candidate]) {
            let guess = if expansion(&candidate) == of { order as f64 } else { candidate.guess };
            Waiting::from(with_nodes(&candidate, guess)).join(&mut self.waiting);
        }
    }

    /// The winner after all candidates were tried.
    fn close(self) -> Result<Won<F>, Lost> {
        let Contest { field, best, mut direct, outbid_by_direct, reached, failed, .. } = self;
        let Some(best) = best else {
            let why = match reached {
                _ if outbid_by_direct => Why::DearToMeasure,
                Some(floor) => Why::FallShort(floor),
                None => return Err(Lost::Failed(failed)),
            };
            let Some(Direct { candidate, tried }) = direct else { return Err(Lost::Failed(failed)) };
            let tried = tried.map_or_else(|| alone(field, &candidate), Ok)?;
            return Ok((tried, why));
        };
        let Some((floor, output)) = best.floor else {
            let Some(direct) = direct.as_mut().filter(|d| d.candidate.seconds <= best.seconds) else {
                return Ok((best, Why::ManyPairs));
            };
            return match direct.tried(field) {
                Err(e) if ends_all(&e) => Err(e.into()),
                Ok(Tried { floor: None, .. }) => Ok((direct.tried.take().expect("just tried"), Why::ThesePoints)),
                // It errs too much, or cannot be tried. For example, it lacks memory.
                _ => Ok((best, Why::OnlyOne)),
            };
        };
        if field.goal().accepts(floor) {
            return Ok((best, Why::LeastError));
        }
        // Where direct summation has taken the place of a candidate, it does so to the end.
        let instead = outbid_by_direct || reached.is_some();
        match direct {
            Some(mut direct) if instead || direct.affordable(best.seconds) => match direct.tried(field)?.floor {
                None => Ok((direct.tried.take().expect("just tried"), Why::FallShort(floor))),
                Some(of_direct) => {
                    let least = if of_direct.0 < floor { of_direct } else { (floor, output) };
                    Err(Lost::Floor(least, None))
                }
            },
            direct => Err(Lost::Floor((floor, output), direct.map(|d| d.candidate.seconds))),
        }
    }
}
