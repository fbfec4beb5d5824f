//! What the stages of a rank ask of the other ranks, for rows in device memory: `kernels/rows.cu`. Kernels pack the rows
//! of a message into one array, which travels by a [`Link`], and put them into their places.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::equivalent::DeviceScalar;
use crate::link::{Link, Parcel};
use crate::lists::DeviceEdges;
use crate::programs;
use fmm_traits::{Error, Round, Shared};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Threads per block.
const BLOCK: u32 = 256;

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

/// The part of a tree on a device that trees of one rank do not have.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    /// The same on the host; `None` if the tree was made on the device.
    pub host: Option<Arc<Shared>>,
    /// Position of the first target among the sources, if the targets are consecutive sources.
    pub first: Option<u32>,
    /// Number of sources of each box on all ranks; `None` if the tree has the sources of all ranks.
    pub sources: Option<Buffer<u64>>,
    /// The way to the other ranks; `None` for a small problem that a rank sums alone.
    pub ranks: Option<Ranks>,
}

impl DeviceShared {
    /// The part of a tree of `boxes` boxes that the host has made.
    pub fn new(device: &Device, host: &Arc<Shared>, boxes: usize) -> Result<Self, Error> {
        let ranks = match &host.exchange {
            None => None,
            Some(exchange) => Some(Ranks {
                functions: device.fixed("rows", programs::rows)?,
                link: Link::new(device, exchange.messages()),
                rounds: exchange.rounds().iter().map(|r| DeviceRound::upload(device, r)).collect::<Result<_, _>>()?,
                passing: exchange.passing(),
                after: DeviceEdges::upload(device, exchange.after())?,
                boxes,
                routes: None,
                packed: Mutex::default(),
            }),
        };
        let first = host.same_points.then_some(host.first as u32);
        Ok(DeviceShared {
            host: Some(host.clone()),
            first,
            sources: Some(device.upload(&host.sources, "boxes")?),
            ranks,
        })
    }
}

/// The exchange of a rank, with its lists of slots on the device.
#[derive(Debug)]
pub(crate) struct Ranks {
    functions: Functions,
    link: Link,
    rounds: Vec<DeviceRound>,
    /// Number of rows that only pass through.
    passing: usize,
    boxes: usize,
    /// The way to the callers; `None` if strengths and values are those of the points of the tree.
    routes: Option<DeviceRoutes>,
    /// M2M edges that follow the exchange.
    pub after: DeviceEdges,
    /// Packed messages of the last evaluation, by kind of rows, round and place in the round. Other ranks read them
    /// until the evaluation ends on all ranks; the next one writes them anew.
    packed: Mutex<HashMap<(Row, usize, usize), Parcel>>,
}

/// Some slots of an array of slots.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    of: Arc<Buffer<u32>>,
    range: Range<usize>,
}

impl Slots {
    pub fn new(of: &Arc<Buffer<u32>>, range: Range<usize>) -> Self {
        Slots { of: of.clone(), range }
    }
    pub fn all(of: Buffer<u32>) -> Self {
        let range = 0..of.len();
        Slots { of: Arc::new(of), range }
    }
    pub fn len(&self) -> usize {
        self.range.len()
    }
    pub fn arg(&self) -> Arg {
        self.of.at(self.range.start)
    }
}

/// A [`Round`] on the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceRound {
    /// Ranks, and the slots of the rows that go there.
    pub sends: Vec<(usize, Slots)>,
    /// Ranks, slots, and whether rows are added.
    pub receives: Vec<(usize, Slots, bool)>,
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
    fn upload(device: &Device, round: &Round) -> Result<Self, Error> {
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
    /// Number of rows that are sent.
    pub fn rows(&self) -> usize {
        self.sends.iter().map(|(_, slots)| slots.len()).sum()
    }
}

impl DeviceRoutes {
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

/// The kinds of rows that travel in an evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Row {
    /// Strengths on their way to the tree.
    Strengths,
    /// Strengths of ghosts.
    Ghosts,
    /// Values on their way to the caller.
    Values,
    /// Net strengths of boxes.
    Nets,
    /// Multipoles.
    Multipoles,
}

/// Rows of an array, and rows that only pass through, whose slots begin at `first_passing`.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    rows: &'a Buffer<T>,
    passing: &'a Buffer<T>,
    first_passing: u32,
    width: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Rows of which none only passes through.
    fn all(rows: &'a Buffer<T>, width: usize) -> Self {
        Rows { rows, passing: rows, first_passing: u32::MAX, width }
    }
    /// The first arguments of both kernels.
    fn args(&self, slots: &Slots) -> [Arg; 6] {
        let (n, width) = ((slots.len() as u64).into(), (self.width as u32).into());
        [self.rows.into(), self.passing.into(), self.first_passing.into(), slots.arg(), n, width]
    }
}

/// The kernels of `rows.cu`.
#[derive(Clone, Copy)]
enum Step {
    Pack,
    Put,
}

impl Step {
    fn entry<T: DeviceScalar>(self) -> &'static str {
        match (self, T::NAME) {
            (Step::Pack, "f32") => "pack_f32",
            (Step::Put, "f32") => "put_f32",
            (Step::Pack, _) => "pack_f64",
            (Step::Put, _) => "put_f64",
        }
    }
}

impl Ranks {
    /// The exchange of a rank that has the whole tree, of `boxes` boxes: in one round.
    pub fn of_share(
        link: Link,
        boxes: usize,
        round: DeviceRound,
        after: DeviceEdges,
        routes: DeviceRoutes,
    ) -> Result<Self, Error> {
        let (functions, rounds) = (link.device().fixed("rows", programs::rows)?, vec![round]);
        let (routes, packed) = (Some(routes), Mutex::default());
        Ok(Ranks { functions, link, rounds, passing: 0, boxes, routes, after, packed })
    }

    /// Lets strengths and values belong to points of callers.
    pub fn route(&mut self, routes: &Routes) -> Result<(), Error> {
        self.routes = Some(DeviceRoutes::upload(self.link.device(), routes)?);
        Ok(())
    }

    /// Whether this rank sends or gets rows.
    pub fn active(&self) -> bool {
        self.rounds.iter().any(|round| !round.sends.is_empty() || !round.receives.is_empty())
    }

    /// Replaces a number on the device, given by its bits, by the largest on any rank. Waits for the device.
    pub fn largest(&self, number: &mut Buffer<u64>) -> Result<(), Error> {
        let device = self.link.device();
        let mut largest = [f64::from_bits(device.download(number, "largest strength")?[0])];
        self.link.messages().largest(&mut largest)?;
        device.write(number, 0, &[largest[0].to_bits()], "largest strength")
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.link.messages().wait()
    }

    /// Waits for all ranks, and returns whether any says yes.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn any(&self, here: bool) -> Result<bool, Error> {
        let mut flags = [f64::from(u8::from(here))];
        self.link.messages().largest(&mut flags)?;
        Ok(flags[0] > 0.0)
    }

    /// Numbers of the caller's sources and targets, if their arrays are not those of the tree.
    pub fn given(&self) -> Option<[usize; 2]> {
        self.routes.as_ref().map(|routes| routes.given)
    }

    /// Completes rows of `width` numbers, one for each box: [`Exchange::complete`](fmm_traits::Exchange::complete). All
    /// ranks do it for the same kinds of rows in the same order.
    pub fn complete<T: DeviceScalar>(&self, kind: Row, rows: &Buffer<T>, width: usize) -> Result<(), Error> {
        let passing = &self.link.device().zeros(self.passing * width, "rows of other ranks")?;
        let rows = Rows { rows, passing, first_passing: self.boxes as u32, width };
        let travel = |(k, round)| {
            let (pack, put) = (
                |slots: &Slots, to| self.pack(rows, slots, to),
                |slots: &Slots, add, from| self.put(rows, slots, add, from),
            );
            self.travel::<T>((kind, k), round, width, pack, put)
        };
        self.rounds.iter().enumerate().try_for_each(travel)
    }

    /// Brings the caller's strengths to the sources of the tree, ghosts included. `pack` enqueues the copy of the caller's
    /// strengths with some slots into a message.
    pub fn bring(
        &self,
        strengths: &Buffer<f64>,
        width: usize,
        pack: impl Fn(&Slots, Arg) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (Some(routes), rows) = (&self.routes, Rows::all(strengths, width)) else { return Ok(()) };
        let put = |slots: &Slots, add, from| self.put(rows, slots, add, from);
        self.travel::<f64>((Row::Strengths, 0), &routes.strengths, width, pack, put)?;
        let pack = |slots: &Slots, to| self.pack(rows, slots, to);
        self.travel::<f64>((Row::Ghosts, 0), &routes.ghosts, width, pack, put)
    }

    /// Brings the values at the targets of the tree to the callers. `put` enqueues the copy of a message into the caller's
    /// rows with some slots.
    pub fn bring_back(
        &self,
        values: &Buffer<f64>,
        width: usize,
        put: impl Fn(&Slots, Arg) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(routes) = &self.routes else { return Ok(()) };
        let pack = |slots: &Slots, to| self.pack(Rows::all(values, width), slots, to);
        self.travel::<f64>((Row::Values, 0), &routes.values, width, pack, |slots: &Slots, _, from| put(slots, from))
    }

    /// Sends and puts the rows of a round, of `width` numbers each. `pack` enqueues the copy of rows into a message, `put`
    /// the copy of a message into rows, or its addition to them.
    fn travel<T: DeviceScalar>(
        &self,
        (kind, k): (Row, usize),
        round: &DeviceRound,
        width: usize,
        pack: impl Fn(&Slots, Arg) -> Result<(), Error>,
        put: impl Fn(&Slots, bool, Arg) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (device, messages) = (self.link.device(), self.link.messages());
        let mut sends = Vec::new();
        for (at, (to, slots)) in round.sends.iter().enumerate() {
            let (numbers, pack) = (slots.len() * width, |to| pack(slots, to));
            let message = match messages.one_process() {
                true => self.packed((kind, k, at), numbers * size_of::<T>(), pack)?,
                false => self.bytes::<T>(numbers, pack)?,
            };
            sends.push((*to, message));
        }
        let from: Vec<usize> = round.receives.iter().map(|r| r.0).collect();
        for (message, (from, slots, add)) in messages.swap(sends, &from)?.iter().zip(&round.receives) {
            let numbers = slots.len() * width;
            if let Some(address) = self.link.own(message).filter(|_| *from == messages.rank()) {
                put(slots, *add, Arg::address(address))?;
                continue;
            }
            let came: Buffer<T> = device.alloc(numbers, "rows of other ranks")?;
            // SAFETY: the array has as many bytes; the sender keeps its parcel until all ranks have ended the evaluation,
            // and this rank waits for its stream before.
            unsafe { self.link.fetch(message, came.address(), numbers * size_of::<T>())? };
            put(slots, *add, (&came).into())?;
        }
        Ok(())
    }

    /// Enqueues the copy of rows into a message.
    fn pack<T: DeviceScalar>(&self, rows: Rows<T>, slots: &Slots, to: Arg) -> Result<(), Error> {
        self.copy(Step::Pack, rows, slots, &[to])
    }

    /// Enqueues the copy of a message into rows, or its addition to them.
    fn put<T: DeviceScalar>(&self, rows: Rows<T>, slots: &Slots, add: bool, from: Arg) -> Result<(), Error> {
        self.copy(Step::Put, rows, slots, &[u32::from(add).into(), from])
    }

    /// Enqueues a kernel with one thread for each number of some rows. `rest` are its arguments behind the rows.
    fn copy<T: DeviceScalar>(&self, step: Step, rows: Rows<T>, slots: &Slots, rest: &[Arg]) -> Result<(), Error> {
        let args = [&rows.args(slots)[..], rest].concat();
        let grid = (blocks(slots.len() * rows.width, BLOCK as usize)?, 1);
        // SAFETY: arguments as in rows.cu; the message has room for the rows. The slots are rows, or rows that pass
        // through, and distinct.
        unsafe { self.link.device().launch(&self.functions, step.entry::<T>(), grid, BLOCK, &args) }
    }

    /// Packs a message of so many bytes, and returns where it will be.
    fn packed(
        &self,
        key: (Row, usize, usize),
        bytes: usize,
        pack: impl FnOnce(Arg) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        // A poisoned lock is fine: parcels are inserted whole.
        let mut all = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let parcel = match all.entry(key) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => free.insert(Parcel::new(self.link.device(), bytes)?),
        };
        pack(Arg::address(parcel.address))?;
        parcel.seal()
    }

    /// Packs a message of so many numbers on the host.
    fn bytes<T: DeviceScalar>(
        &self,
        numbers: usize,
        pack: impl FnOnce(Arg) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let device = self.link.device();
        let message: Buffer<T> = device.alloc(numbers, "rows for other ranks")?;
        pack((&message).into())?;
        let mut bytes = vec![0u8; numbers * size_of::<T>()];
        // SAFETY: the buffer has as many bytes.
        unsafe { device.receive(message.address(), &mut bytes, "rows for other ranks")? };
        Ok(bytes)
    }
}
