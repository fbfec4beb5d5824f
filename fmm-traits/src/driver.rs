//! The fast multipole method: one driver for every tree, list policy, expansion and backend.
//!
//! [`evaluate`] follows Lashuk et al. (2009), Algorithm 1. Their S2U, U2U, VLI, XLI, D2D, D2T, WLI, ULI are called P2M,
//! M2M, M2L, P2L, L2L, L2P, M2P, P2P here.

use crate::Error;

/// The stages in the order in which the driver enqueues them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Stage {
    /// Strengths from user order to tree order; accumulators cleared.
    Scatter,
    /// Sources → multipoles of leaves.
    P2m,
    /// Multipoles of children → parents.
    M2m,
    /// Multipoles → locals.
    M2l,
    /// Sources → locals.
    P2l,
    /// Locals of parents → children.
    L2l,
    /// Locals → targets.
    L2p,
    /// Multipoles → targets.
    M2p,
    /// Sources → targets.
    P2p,
    /// Values from tree order to user order.
    Gather,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 10] = [
        Stage::Scatter,
        Stage::P2m,
        Stage::M2m,
        Stage::M2l,
        Stage::P2l,
        Stage::L2l,
        Stage::L2p,
        Stage::M2p,
        Stage::P2p,
        Stage::Gather,
    ];
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        ["scatter", "p2m", "m2m", "m2l", "p2l", "l2l", "l2p", "m2p", "p2p", "gather"][self as usize]
    }
}

/// The stages of one evaluation, implemented by a backend for an expansion. Each stage is one bulk call over whole
/// lists, never a call per box. A stage *enqueues* its work. A backend may overlap stages if the result is the same
/// as in the order of the driver. The backend also measures times (by host clock or device events).
pub trait Stages {
    /// The edge lists in the backend's own memory.
    type Lists: ?Sized;
    /// Number of tree levels.
    fn levels(&self) -> usize;
    /// Strengths into tree order; accumulators cleared.
    fn scatter(&mut self) -> Result<(), Error>;
    /// Multipoles of all leaves from their sources.
    fn p2m(&mut self, lists: &Self::Lists) -> Result<(), Error>;
    /// Multipoles of children → multipoles of their parents, the non-leaf boxes of `level`.
    fn m2m(&mut self, lists: &Self::Lists, level: usize) -> Result<(), Error>;
    /// Completes the multipoles of boxes that several machines share. On one machine there is nothing to do.
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
    /// Values into user order.
    fn gather(&mut self) -> Result<(), Error>;
}

/// Watches a run: called before each stage with the stage and the fraction of stages done.
/// Returning `false` cancels; the driver then stops with [`Error::Cancelled`].
pub type Observer<'a> = &'a mut dyn FnMut(Stage, f64) -> bool;

/// Runs one evaluation.
pub fn evaluate<S: Stages + ?Sized>(s: &mut S, lists: &S::Lists, observer: Observer) -> Result<(), Error> {
    let mut begin = |stage: Stage| {
        let done = stage as usize as f64 / Stage::ALL.len() as f64;
        if observer(stage, done) { Ok(()) } else { Err(Error::Cancelled { stage: stage.name() }) }
    };
    let levels = s.levels();

    begin(Stage::Scatter)?;
    s.scatter()?;

    // Upward: multipoles of leaves, then level by level towards the root.
    begin(Stage::P2m)?;
    s.p2m(lists)?;
    begin(Stage::M2m)?;
    for level in (0..levels).rev() {
        s.m2m(lists, level)?;
    }
    s.exchange()?;

    // Across: well-separated boxes (V), and coarse sources of fine targets (X).
    begin(Stage::M2l)?;
    s.m2l(lists)?;
    begin(Stage::P2l)?;
    s.p2l(lists)?;

    // Downward: from the root, each level completed before the next uses it.
    begin(Stage::L2l)?;
    for level in 0..levels {
        s.l2l(lists, level)?;
    }
    begin(Stage::L2p)?;
    s.l2p(lists)?;

    // Direct to targets, without locals: fine sources of coarse targets (W), and the near field (U).
    begin(Stage::M2p)?;
    s.m2p(lists)?;
    begin(Stage::P2p)?;
    s.p2p(lists)?;

    begin(Stage::Gather)?;
    s.gather()
}
