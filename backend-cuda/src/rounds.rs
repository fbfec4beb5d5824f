//! Rounds of messages between ranks, on the device: which rows of an array go to each rank, and which come from each.
//!
//! A *slot* is the number of a row in an array. A rank sends the rows of some slots, and writes the rows that arrive to slots of its
//! own. Row k of a message is slot k of the list at either end.

use crate::device::{Arg, Buffer, Device};
use fmm_traits::{Error, Round};
use std::ops::Range;
use std::sync::Arc;

/// How rows travel between the arrays of a caller on a rank and the points of its tree, which may belong to callers on
/// other ranks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    /// Numbers of the caller's sources and targets.
    pub given: [usize; 2],
    /// From the caller's sources to sources of trees.
    pub strengths: Round,
    /// From sources of the tree to the same sources in other trees, where they are ghosts.
    pub ghosts: Round,
    /// From targets of the tree to targets of callers.
    pub values: Round,
}

/// Some slots of an array of slots.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    of: Arc<Buffer<u32>>,
    range: Range<usize>,
}

impl Slots {
    /// The slots in a range of an array.
    pub fn new(of: &Arc<Buffer<u32>>, range: Range<usize>) -> Self {
        Slots { of: of.clone(), range }
    }
    /// The same range of another array.
    pub fn of(other: &Arc<Buffer<u32>>, slots: &Slots) -> Self {
        Slots::new(other, slots.range.clone())
    }
    /// All slots of an array.
    pub fn all(of: Buffer<u32>) -> Self {
        let range = 0..of.len();
        Slots { of: Arc::new(of), range }
    }
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.range.len()
    }
    /// The whole array, for a kernel.
    pub fn whole(&self) -> Arg {
        self.of.at(0)
    }
    /// The slots, for a kernel.
    pub fn arg(&self) -> Arg {
        self.of.at(self.range.start)
    }
}

/// A rank whose rows are put, their slots, and whether they are added.
pub(crate) type Receive = (usize, Slots, bool);

/// A [`Round`] on the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceRound {
    /// Ranks, and the slots of the rows that go there.
    pub sends: Vec<(usize, Slots)>,
    /// What comes in.
    pub receives: Vec<Receive>,
}

/// [`Routes`] on the device.
#[derive(Debug)]
pub(crate) struct DeviceRoutes {
    pub given: [usize; 2],
    pub strengths: DeviceRound,
    pub ghosts: DeviceRound,
    pub values: DeviceRound,
}

impl DeviceRound {
    /// Copies a round from the host.
    pub fn upload(device: &Device, round: &Round) -> Result<Self, Error> {
        let upload = |slots: &[u32]| device.upload(slots, "rows of other ranks").map(Slots::all);
        let sends = round.sends.iter().map(|(to, slots)| Ok((*to, upload(slots)?)));
        let receives = round.receives.iter().map(|r| Ok((r.from, upload(&r.slots)?, r.add)));
        Ok(DeviceRound {
            sends: sends.collect::<Result<_, Error>>()?,
            receives: receives.collect::<Result<_, Error>>()?,
        })
    }
    /// Sends rows to a rank, if there are any.
    pub fn send(&mut self, to: usize, slots: Slots) {
        if slots.len() > 0 {
            self.sends.push((to, slots));
        }
    }
    /// Puts rows that come from a rank, if there are any.
    pub fn receive(&mut self, from: usize, slots: Slots) {
        if slots.len() > 0 {
            self.receives.push((from, slots, false));
        }
    }
    /// The round that sends to each rank some slots, and receives from each rank some slots.
    pub fn of(sends: Vec<Slots>, receives: Vec<Slots>) -> DeviceRound {
        let mut round = DeviceRound::default();
        sends.into_iter().enumerate().for_each(|(to, slots)| round.send(to, slots));
        receives.into_iter().enumerate().for_each(|(from, slots)| round.receive(from, slots));
        round
    }
    /// The same round from the receivers to the senders.
    pub fn backwards(&self) -> DeviceRound {
        DeviceRound {
            sends: self.receives.iter().map(|(rank, slots, _)| (*rank, slots.clone())).collect(),
            receives: self.sends.iter().map(|(rank, slots)| (*rank, slots.clone(), false)).collect(),
        }
    }
    /// Number of rows that are sent.
    pub fn rows(&self) -> usize {
        self.sends.iter().map(|(_, slots)| slots.len()).sum()
    }
}

impl DeviceRoutes {
    /// Copies routes from the host.
    pub fn upload(device: &Device, routes: &Routes) -> Result<Self, Error> {
        let upload = |round: &Round| DeviceRound::upload(device, round);
        Ok(DeviceRoutes {
            given: routes.given,
            strengths: upload(&routes.strengths)?,
            ghosts: upload(&routes.ghosts)?,
            values: upload(&routes.values)?,
        })
    }
}
