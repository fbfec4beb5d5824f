//! What a tree that is spread over several ranks knows of the other ranks.
//!
//! A rank is one of several holders of points that compute one sum together: a thread, or a process on another machine.
//! Its *locally essential tree* (Lashuk et al. 2009, §III-A) has its own boxes, their ancestors, and *ghosts*: boxes of
//! other ranks that act on its targets. Such a tree is an ordinary [`Tree`](crate::Tree) with [`Shared`].

use crate::tree::Edges;
use crate::{Error, NumbersMut};
use std::fmt::Debug;
use std::sync::Arc;

/// The part of a locally essential tree that other trees do not have. Arrays have one entry per box.
///
/// Targets are the rank's own. Sources are those of the rank, one interval of tree order, and those of ghosts whose
/// points are needed here.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Number of sources on all ranks.
    pub sources: Vec<u64>,
    /// Number of targets on all ranks.
    pub targets: Vec<u64>,
    /// Whether the box has no children on any rank. A ghost whose children are not here is no leaf.
    pub leaf: Vec<bool>,
    /// Whether this rank computes a multipole of the box from its own sources: that of all sources, or one of the parts
    /// that an [`Exchange`] adds up.
    pub gives: Vec<bool>,
    /// Whether the targets are the rank's own sources.
    pub same_points: bool,
    /// Position of the first own source among the sources.
    pub first: usize,
    /// How this rank gets the multipoles of other ranks; `None` before the lists are known.
    pub exchange: Option<Arc<dyn Exchange>>,
}

/// Rows that come from a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The rank.
    pub from: usize,
    /// Where the rows of its message belong, in the order of the message.
    pub slots: Vec<u32>,
    /// Whether the rows are added to what is there.
    pub add: bool,
}

/// A round of messages between ranks: each is a list of rows of numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// Receiving ranks, and the slots of the rows that go there.
    pub sends: Vec<(usize, Vec<u32>)>,
    /// What comes in, after everything was sent.
    pub receives: Vec<Incoming>,
}

/// How a rank talks to the others during a joint call. All ranks call the same methods in the same order.
pub trait Messages: Send + Sync + Debug {
    /// The number of this rank.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn size(&self) -> usize;
    /// Replaces each number by the largest of its kind on any rank.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn largest(&self, numbers: &mut [f64]) -> Result<(), Error>;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn wait(&self) -> Result<(), Error> {
        self.largest(&mut [])
    }
    /// Sends messages to ranks, and returns those of the ranks `from`, in their order. A rank may send to itself.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn swap(&self, sends: Vec<(usize, Vec<u8>)>, from: &[usize]) -> Result<Vec<Vec<u8>>, Error>;
    /// Sends one message to all other ranks, without a copy for each, and returns theirs, in the order of ranks. That of
    /// this rank is empty.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn give(&self, message: Vec<u8>) -> Result<Vec<Vec<u8>>, Error>;
    /// Whether all ranks are threads of this process, so that an address means the same to all of them.
    fn one_process(&self) -> bool;
    /// The answer of `ask`, which has an entry for each rank. The first call runs `ask`, on all ranks. Later calls return the
    /// same answer, whatever their `ask` is. Example: whether this process can open the device memory of each rank.
    ///
    /// # Errors
    /// Those of `ask`. The next call then asks again.
    fn found_out(&self, ask: &dyn Fn() -> Result<Vec<bool>, Error>) -> Result<Arc<[bool]>, Error>;
}

/// What stages ask of the other ranks in an evaluation. All ranks call the same methods in the same order.
///
/// Stages on cores find the largest strength by [`messages`](Self::messages), then call [`lend`](Self::lend),
/// [`ghosts`](Self::ghosts) and [`complete`](Self::complete), in this order; other threads of the rank may compute
/// meanwhile. Stages whose rows are in device memory carry out the [`rounds`](Self::rounds) themselves.
pub trait Exchange: Send + Sync + Debug {
    /// The way to the other ranks.
    fn messages(&self) -> Arc<dyn Messages>;
    /// Sends the strengths of own sources to the ranks on which these sources are ghosts. Does not wait. `strengths` has
    /// an array for each component, with one number for each source of the tree.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn lend(&self, strengths: &[Vec<f64>]) -> Result<(), Error>;
    /// Waits for the strengths that other ranks [lend](Self::lend): for each of `components` an array, with one number
    /// for each ghost among the sources, in tree order.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn ghosts(&self, components: usize) -> Result<Vec<Vec<f64>>, Error>;
    /// Whether this rank sends or gets rows in [`complete`](Self::complete).
    fn active(&self) -> bool;
    /// Whether this rank waits for others in [`ghosts`](Self::ghosts) or [`complete`](Self::complete).
    fn waits(&self) -> bool;
    /// Completes a row of numbers for each box: the rows of boxes that this rank [gives](Shared::gives) go to the ranks
    /// that read them, and rows that this rank reads come in. There are boxes × `width` numbers.
    ///
    /// # Errors
    /// The error of a rank that failed.
    fn complete(&self, rows: NumbersMut, width: usize) -> Result<(), Error>;
    /// The rounds of [`complete`](Self::complete), one after the other. A slot is a box, or beyond the boxes a row that
    /// only [passes through](Self::passing).
    fn rounds(&self) -> &[Round];
    /// Number of rows that only pass through; they start as zeros.
    fn passing(&self) -> usize;
    /// M2M edges (parent, child) to run after [`complete`](Self::complete). Their parents are boxes whose sources lie on
    /// several ranks. For such a parent only the multipoles of its children arrive; this rank adds them up.
    fn after(&self) -> &Edges;
}
