//! The fast multipole method: one driver for every tree, list policy, expansion and backend.
//!
//! [`evaluate`] walks the steps of a [`Schedule`]. [`Step::in_order`] is the usual one.

pub use crate::step::{Stage, Step};

use crate::Error;
use std::ops::Range;

/// An evaluation as the driver sees it: steps, and a function that carries out one of them. A backend that runs each
/// stage separately implements [`Stages`]; the implementation below then makes it a `Schedule`. A backend that joins
/// several stages into one step implements `Schedule`.
pub trait Schedule {
    /// The edge lists in the backend's own memory.
    type Lists: ?Sized;
    /// The steps, in the order in which they run.
    fn steps(&self) -> Vec<Step>;
    /// Carries out a step of [`steps`](Schedule::steps). A long step tells `progress` from time to time how much of it
    /// is done, and ends early if that fails.
    fn run(&mut self, step: Step, lists: &Self::Lists, progress: &mut Progress) -> Result<(), Error>;
}

/// The stages of one evaluation, implemented by a backend for an expansion. Each stage is one bulk call over whole
/// lists, never a call per box. A stage *enqueues* its work. A backend may overlap stages if the result is the same
/// as in the order of the driver. The backend also measures times (by host clock or device events).
pub trait Stages {
    /// The edge lists in the backend's own memory.
    type Lists: ?Sized;
    /// Number of tree levels.
    fn levels(&self) -> usize;
    /// The order of the stages. A backend may choose another order in which no stage misses what it needs.
    fn order(&self) -> Vec<Step> {
        Step::in_order(self.levels())
    }
    /// Strengths into tree order; accumulators cleared.
    fn scatter(&mut self) -> Result<(), Error>;
    /// Multipoles of all leaves from their sources.
    fn p2m(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Multipoles of children → multipoles of their parents, the non-leaf boxes of `level`.
    fn m2m(&mut self, lists: &Self::Lists, level: usize) -> Result<(), Error>;
    /// Completes the multipoles of boxes whose sources lie on several ranks, and fetches the strengths of sources of
    /// other ranks. A backend may do a part of P2P while it waits for them. On one rank there is nothing to do.
    fn exchange(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Multipoles into locals, all levels.
    fn m2l(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Sources into locals, all levels.
    fn p2l(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Locals of parents → locals of their children, the boxes of `level`. Completes these locals.
    fn l2l(&mut self, lists: &Self::Lists, level: usize) -> Result<(), Error>;
    /// Locals of leaves to their targets.
    fn l2p(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Multipoles to targets.
    fn m2p(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Sources to targets.
    fn p2p(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Values into the caller's order.
    fn gather(&mut self) -> Result<(), Error>;
}

impl<S: Stages> Schedule for S {
    type Lists = S::Lists;

    fn steps(&self) -> Vec<Step> {
        self.order()
    }

    fn run(&mut self, step: Step, lists: &S::Lists, _: &mut Progress) -> Result<(), Error> {
        match step {
            Step::Whole(Stage::Scatter) => self.scatter(),
            Step::Whole(Stage::P2m) => self.p2m(lists),
            Step::Whole(Stage::M2l) => self.m2l(lists),
            Step::Whole(Stage::P2l) => self.p2l(lists),
            Step::Whole(Stage::L2p) => self.l2p(lists),
            Step::Whole(Stage::M2p) => self.m2p(lists),
            Step::Whole(Stage::P2p) => self.p2p(lists),
            Step::Whole(Stage::Gather) => self.gather(),
            Step::Level(Stage::M2m, level) => self.m2m(lists, level),
            Step::Level(Stage::L2l, level) => self.l2l(lists, level),
            Step::Exchange => self.exchange(),
            Step::Whole(_) | Step::Level(..) | Step::Fused(..) => Err(step.unknown()),
        }
    }
}

/// Watches a run: called with a stage and the fraction of stages done, before each stage and within long steps.
/// Returning `false` cancels; the driver then stops with [`Error::Cancelled`]. Fused stages bear the name of the first.
pub type Observer<'a> = &'a mut dyn FnMut(Stage, f64) -> bool;

/// How far an evaluation is.
pub struct Progress<'a> {
    observer: Observer<'a>,
    /// The stages of the current step.
    stages: Range<usize>,
    /// Number of stages of earlier steps, and of all.
    before: usize,
    all: usize,
}

impl Progress<'_> {
    /// Says that the fraction `part` of the current step is done.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the observer wants no more.
    pub fn done(&mut self, part: f64) -> Result<(), Error> {
        let stage = Stage::ALL[self.stages.start];
        let done = (self.before as f64 + part * self.stages.len() as f64) / self.all as f64;
        if (self.observer)(stage, done) { Ok(()) } else { Err(Error::Cancelled { stage: stage.name() }) }
    }
}

/// Runs one evaluation.
pub fn evaluate<S: Schedule + ?Sized>(s: &mut S, lists: &S::Lists, observer: Observer) -> Result<(), Error> {
    let steps = s.steps();
    let begins = |k: usize| !steps[k].stages().is_empty() && (k == 0 || steps[k].stages() != steps[k - 1].stages());
    let all = (0..steps.len()).filter(|&k| begins(k)).map(|k| steps[k].stages().len()).sum();
    let mut progress = Progress { observer, stages: 0..0, before: 0, all };
    for (k, &step) in steps.iter().enumerate() {
        if begins(k) {
            progress.before += progress.stages.len();
            progress.stages = step.stages();
            progress.done(0.0)?;
        }
        s.run(step, lists, &mut progress)?;
    }
    Ok(())
}
