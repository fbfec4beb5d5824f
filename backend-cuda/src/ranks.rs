//! What the stages of a rank ask of the other ranks, for rows in device memory: `kernels/rows.cu`. Kernels pack the
//! rows of a message into one array, which travels by a [`Link`], and put them into their places.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::ends::Form;
use crate::equivalent::DeviceScalar;
use crate::graph::Lane;
use crate::link::{Form as MessageForm, Link, Parcel};
use crate::lists::DeviceEdges;
use crate::programs;
use crate::rounds::{DeviceRound, DeviceRoutes, Receive, Routes, Slots};
use crate::tree::DevicePoints;
use fmm_traits::{Error, Exchange, Precision};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads per block.
const BLOCK: u32 = 256;

/// The exchange of a rank, with its lists of slots on the device.
#[derive(Debug)]
pub(crate) struct Ranks {
    functions: Functions,
    link: Link,
    rounds: Vec<DeviceRound>,
    /// Number of rows that only pass through.
    passing: usize,
    boxes: usize,
    /// One number from each rank to each other rank.
    each: DeviceRound,
    /// The way to the callers; `None` if strengths and values are those of the points of the tree.
    routes: Option<DeviceRoutes>,
    /// M2M edges that follow the exchange.
    pub after: DeviceEdges,
    /// Packed messages of the last evaluation, by kind of rows, round and place in the round. Other ranks read them
    /// until the evaluation ends on all ranks; the next one writes them anew.
    packed: Mutex<HashMap<(Row, usize, usize), Parcel>>,
}

/// The kinds of rows that travel in an evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Row {
    /// The largest strength.
    Largest,
    /// Strengths on their way to the tree.
    Strengths,
    /// Strengths of ghosts.
    Ghosts,
    /// Values on their way to the caller.
    Values,
    /// Coordinates on their way to the caller.
    Points,
    /// Rows of a caller on their way to the ranks that own its points.
    Adopted,
    /// Net strengths of boxes.
    Nets,
    /// Multipoles.
    Multipoles,
}

/// Rows of an array, and rows that only pass through, whose slots begin at `first_passing`.
#[derive(Clone, Copy)]
struct Rows {
    rows: Arg,
    passing: Arg,
    first_passing: u32,
    width: usize,
}

impl Rows {
    /// Rows of which none only passes through.
    fn all(rows: Arg, width: usize) -> Self {
        Rows { rows, passing: rows, first_passing: u32::MAX, width }
    }
    /// The first arguments of both kernels.
    fn args(&self, slots: &Slots) -> [Arg; 6] {
        let (n, width) = ((slots.len() as u64).into(), (self.width as u32).into());
        [self.rows, self.passing, self.first_passing.into(), slots.arg(), n, width]
    }
}

/// [`Way::put`].
pub(crate) type Put<'a> = &'a dyn Fn(usize, &Slots, bool, u64) -> Result<(), Error>;
/// [`Way::keep`].
pub(crate) type Keep<'a> = &'a dyn Fn(&Slots, &Slots) -> Result<(), Error>;

/// How rows of a kind travel in a round.
pub(crate) struct Way<'a> {
    /// Bytes of a message with some number of rows, from one rank to another.
    pub bytes: &'a dyn Fn([usize; 2], usize) -> usize,
    /// Enqueues the copy of the rows with some slots into a message to a rank, at an address.
    pub pack: &'a dyn Fn(usize, &Slots, u64) -> Result<(), Error>,
    /// Enqueues the copy of a message of a rank, from an address, into the rows with some slots, or its addition to
    /// them.
    pub put: Put<'a>,
    /// Enqueues the copy of rows that stay on this rank, from some slots to others.
    pub keep: Keep<'a>,
}

/// [`Way::keep`] in rounds where no rank sends rows to itself.
fn nothing_stays(_: &Slots, _: &Slots) -> Result<(), Error> {
    let reason = "only strengths and values stay on their rank".to_string();
    Err(Error::Unsupported { operation: "rows of a rank for itself", reason })
}

/// The kernels of `rows.cu`.
#[derive(Clone, Copy)]
enum Step {
    Pack,
    Put,
}

impl Step {
    fn entry(self, precision: Precision) -> &'static str {
        match (self, precision) {
            (Step::Pack, Precision::F32) => "pack_f32",
            (Step::Put, Precision::F32) => "put_f32",
            (Step::Pack, Precision::F64) => "pack_f64",
            (Step::Put, Precision::F64) => "put_f64",
        }
    }
}

impl Ranks {
    fn new(
        link: Link,
        (boxes, passing): (usize, usize),
        rounds: Vec<DeviceRound>,
        after: DeviceEdges,
        routes: Option<DeviceRoutes>,
    ) -> Result<Self, Error> {
        let functions = link.device().fixed("rows", programs::rows)?;
        let each = link.each()?;
        Ok(Ranks { functions, link, rounds, passing, boxes, each, routes, after, packed: Mutex::default() })
    }

    /// The exchange of a rank whose tree, of `boxes` boxes, the host has made.
    pub fn of_exchange(device: &Device, exchange: &dyn Exchange, boxes: usize) -> Result<Self, Error> {
        let upload = |round| DeviceRound::upload(device, round);
        let rounds = exchange.rounds().iter().map(upload).collect::<Result<_, _>>()?;
        let after = DeviceEdges::upload(device, exchange.after())?;
        let link = Link::new(device, exchange.messages())?;
        Ranks::new(link, (boxes, exchange.passing()), rounds, after, None)
    }

    /// The exchange of a rank with a share of a tree, of `boxes` boxes of its own: in one round.
    pub fn of_share(
        link: Link,
        boxes: usize,
        round: DeviceRound,
        after: DeviceEdges,
        routes: DeviceRoutes,
    ) -> Result<Self, Error> {
        Ranks::new(link, (boxes, 0), vec![round], after, Some(routes))
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

    /// Whether rows of other ranks are added to those that are here.
    pub fn adds(&self) -> bool {
        self.rounds.iter().flat_map(|round| &round.receives).any(|(.., add)| *add)
    }

    /// Brings a number on the device to all other ranks, each of which calls `put` with the address of its copy of each
    /// other number. Between threads no host waits.
    pub fn bring_to_all(&self, number: &Buffer<u64>, put: impl Fn(u64) -> Result<(), Error>) -> Result<(), Error> {
        let device = self.link.device();
        // SAFETY: the message has as many bytes.
        let pack = |_, _: &Slots, to| unsafe { device.copy_out(number, to, "largest strength") };
        let way =
            Way { bytes: &|_, _| size_of::<u64>(), pack: &pack, put: &|_, _, _, from| put(from), keep: &nothing_stays };
        self.travel((Row::Largest, 0), &self.each, &way)
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.link.messages().wait()
    }

    /// Tells the other ranks the form of the caller's arrays, and returns the forms of all ranks.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn forms(&self, mine: Form) -> Result<Vec<Form>, Error> {
        let messages = self.link.messages();
        let came = messages.give(mine.written())?;
        let form = |(rank, message): (usize, &Vec<u8>)| {
            if rank == messages.rank() { Ok(mine.clone()) } else { Form::read(message) }
        };
        came.iter().enumerate().map(form).collect()
    }

    /// Numbers of the caller's sources and targets, if their arrays are not those of the tree.
    pub fn given(&self) -> Option<[usize; 2]> {
        self.routes.as_ref().map(|routes| routes.given)
    }

    /// Completes rows of `width` numbers, one for each box: [`Exchange::complete`](fmm_traits::Exchange::complete). All
    /// ranks do it for the same kinds of rows in the same order.
    pub fn complete<T: DeviceScalar>(&self, kind: Row, rows: &Buffer<T>, width: usize) -> Result<(), Error> {
        let passing: Buffer<T> = self.link.device().zeros(self.passing * width, "rows of other ranks")?;
        let rows = Rows { rows: rows.into(), passing: (&passing).into(), first_passing: self.boxes as u32, width };
        self.rounds.iter().enumerate().try_for_each(|(k, round)| self.exchange((kind, k), round, rows, T::PRECISION))
    }

    /// Sends and puts the rows of a round, which are the same numbers on all ranks.
    fn exchange(&self, key: (Row, usize), round: &DeviceRound, rows: Rows, precision: Precision) -> Result<(), Error> {
        self.carry(key, round, (rows, rows), precision, &nothing_stays)
    }

    /// Brings the caller's strengths, numbers in `precision` at an address, to the sources of the tree, ghosts
    /// included. The other ranks get them as they are. `put` and `keep` are those of [`Way`], `precisions` those of the
    /// strengths of all ranks.
    pub fn bring(
        &self,
        (given, precisions): (u64, &[Precision]),
        (strengths, width): (&Buffer<f64>, usize),
        put: Put,
        keep: Keep,
    ) -> Result<(), Error> {
        let Some(routes) = &self.routes else { return Ok(()) };
        let (rows, mine) = (Rows::all(Arg::address(given), width), precisions[self.link.messages().rank()]);
        let way = Way {
            bytes: &|[from, _], n| n * width * precisions[from].bytes(),
            pack: &|_, slots, to| self.copy(Step::Pack, mine, rows, slots, &[Arg::address(to)]),
            put,
            keep,
        };
        self.travel((Row::Strengths, 0), &routes.strengths, &way)?;
        let rows = Rows::all(strengths.into(), width);
        self.exchange((Row::Ghosts, 0), &routes.ghosts, rows, Precision::F64)
    }

    /// Rows of `width` numbers, one for each source of this rank's caller, go the way of strengths, and those of the
    /// sources `own` into an array at an address. The tree has `n` sources. All ranks call it together.
    pub fn adopt(
        &self,
        (given, precision, width): (u64, Precision, usize),
        n: usize,
        own: Range<usize>,
        address: u64,
    ) -> Result<(), Error> {
        let Some(routes) = &self.routes else { return Ok(()) };
        let (device, bytes) = (self.link.device(), width * precision.bytes());
        let all: Buffer<u8> = device.alloc(n * bytes, "rows of other ranks")?;
        let (from, to) = (Rows::all(Arg::address(given), width), Rows::all(Arg::address(all.address()), width));
        self.carry_and_keep((Row::Adopted, 0), &routes.strengths, (from, to), precision)?;
        let some = all.address() + (own.start * bytes) as u64;
        // SAFETY: the array of the caller has room for the own rows, which are among all.
        unsafe { device.copy_bytes(some, address, own.len() * bytes, "rows of other ranks")? };
        device.synchronize()?;
        self.carried(Row::Adopted)
    }

    /// Copies rows of one array that travel in a round into rows of another, or adds them there.
    fn carry(
        &self,
        key: (Row, usize),
        round: &DeviceRound,
        (from, to): (Rows, Rows),
        precision: Precision,
        keep: Keep,
    ) -> Result<(), Error> {
        let way = Way {
            bytes: &|_, n| n * from.width * precision.bytes(),
            pack: &|_, slots, at| self.copy(Step::Pack, precision, from, slots, &[Arg::address(at)]),
            put: &|_, slots, add, at| {
                self.copy(Step::Put, precision, to, slots, &[u32::from(add).into(), Arg::address(at)])
            },
            keep,
        };
        self.travel(key, round, &way)
    }

    /// [`carry`](Self::carry) of rows some of which stay on this rank.
    fn carry_and_keep(
        &self,
        key: (Row, usize),
        round: &DeviceRound,
        (from, to): (Rows, Rows),
        precision: Precision,
    ) -> Result<(), Error> {
        let (device, bytes) = (self.link.device(), from.width * precision.bytes());
        self.carry(key, round, (from, to), precision, &|here, there| {
            let kept: Buffer<u8> = device.alloc(here.len() * bytes, "rows of other ranks")?;
            let at = Arg::address(kept.address());
            self.copy(Step::Pack, precision, from, here, &[at])?;
            self.copy(Step::Put, precision, to, there, &[0u32.into(), at])
        })
    }

    /// Frees the messages of a kind when all ranks have read them. The device has copied those of other ranks.
    fn carried(&self, kind: Row) -> Result<(), Error> {
        self.wait()?;
        self.parcels().retain(|(of, ..), _| *of != kind);
        Ok(())
    }

    /// The sources of this rank's caller, and its targets if they are separate points (else none), as rows of three
    /// coordinates: the way of strengths backwards, and the way of values.
    pub fn points_of_callers(&self, points: [&DevicePoints; 2], separate: bool) -> Result<[Vec<f64>; 2], Error> {
        let Some(routes) = &self.routes else { return Ok(Default::default()) };
        let [sources, targets] = points;
        match separate {
            false => Ok([self.brought_back(&routes.values, targets, routes.given[1])?, Vec::new()]),
            true => {
                let sources = self.brought_back(&routes.strengths.backwards(), sources, routes.given[0])?;
                Ok([sources, self.brought_back(&routes.values, targets, routes.given[1])?])
            }
        }
    }

    /// Coordinates that travel in a round from points to `n` rows of the caller.
    fn brought_back(&self, round: &DeviceRound, points: &DevicePoints, n: usize) -> Result<Vec<f64>, Error> {
        let (device, what, mut all) = (self.link.device(), "points of callers", vec![0.0; 3 * n]);
        for axis in 0..3 {
            let there: Buffer<f64> = device.zeros(n, what)?;
            let rows = (Rows::all(points.axis(axis), 1), Rows::all((&there).into(), 1));
            self.carry_and_keep((Row::Points, axis), round, rows, Precision::F64)?;
            let found = device.download_range(&there, 0..n, what)?;
            self.carried(Row::Points)?;
            all.iter_mut().skip(axis).step_by(3).zip(found).for_each(|(to, x)| *to = x);
        }
        Ok(all)
    }

    /// Brings the values at the targets of the tree to the callers.
    pub fn bring_back(&self, way: &Way) -> Result<(), Error> {
        self.routes.as_ref().map_or(Ok(()), |routes| self.travel((Row::Values, 0), &routes.values, way))
    }

    /// Sends and puts the rows of a round. If rows stay on this rank, messages of other ranks come while it packs its
    /// own and copies the rows that stay.
    fn travel(&self, (kind, k): (Row, usize), round: &DeviceRound, way: &Way) -> Result<(), Error> {
        let (device, me) = (self.link.device(), self.link.messages().rank());
        let (own, others): (Vec<_>, Vec<_>) = round.receives.iter().partition(|(from, ..)| *from == me);
        let stays = round.sends.iter().find(|(to, _)| *to == me).zip(own.first());
        let room = |(from, slots, _): &&Receive| -> Result<Buffer<u8>, Error> {
            device.alloc((way.bytes)([*from, me], slots.len()), "rows of other ranks")
        };
        // On the second stream there must be room from the start.
        let arrays = others.iter().map(room).collect::<Result<Vec<_>, _>>()?;
        let lane = if stays.is_some() { Lane::Beside } else { Lane::First };
        let pass = || {
            self.pass((kind, k), round, way, &others, &arrays, lane)?;
            stays.map_or(Ok(()), |((_, from), (_, to, _))| (way.keep)(from, to))
        };
        if stays.is_some() {
            device.fork()?;
            let done = pass();
            // Even after an error the arrays are freed in the order of the first stream.
            device.join_or_wait();
            done?;
        } else {
            pass()?;
        }
        others
            .iter()
            .zip(&arrays)
            .try_for_each(|((from, slots, add), array)| (way.put)(*from, slots, *add, array.address()))
    }

    /// Packs and sends the messages of a round, and enqueues the copies of those of other ranks into arrays.
    fn pass(
        &self,
        (kind, k): (Row, usize),
        round: &DeviceRound,
        way: &Way,
        others: &[&Receive],
        arrays: &[Buffer<u8>],
        lane: Lane,
    ) -> Result<(), Error> {
        let messages = self.link.messages();
        let (me, size) = (messages.rank(), messages.size());
        let mut to_others: Vec<_> = round.sends.iter().enumerate().filter(|(_, (to, _))| *to != me).collect();
        // The rank before this one fetches from it first.
        to_others.sort_by_key(|(_, (to, _))| (me + size - to) % size);
        let (mut sends, mut packed) = (Vec::new(), Vec::new());
        for (at, (to, slots)) in to_others {
            let (key, bytes) = ((kind, k, at), (way.bytes)([me, *to], slots.len()));
            let pack = |address| (way.pack)(*to, slots, address);
            match self.link.form(*to) {
                MessageForm::Numbers => sends.push((*to, self.link.bytes(bytes, pack)?)),
                form => {
                    self.packed(key, (bytes, form), pack)?;
                    match form {
                        MessageForm::Address => sends.push((*to, self.sealed(key, bytes)?)),
                        _ => packed.push((*to, key, bytes)),
                    }
                }
            }
        }
        // A message to another process waits until it is written, so all are packed before.
        for (to, key, bytes) in packed {
            sends.push((to, self.sealed(key, bytes)?));
        }
        let from: Vec<usize> = others.iter().map(|(from, ..)| *from).collect();
        let came = messages.swap(sends, &from)?;
        self.link.in_turn(&from).into_iter().try_for_each(|k| {
            let (message, to) = ((&came[k][..], self.link.form(from[k])), &arrays[k]);
            // SAFETY: the array has as many bytes; the sender keeps its parcel until all ranks have ended the
            // evaluation, and this rank waits for its streams before.
            unsafe { self.link.fetch(message, (to.address(), to.len()), lane) }
        })
    }

    /// Enqueues a kernel with one thread for each number of some rows. `rest` are its arguments behind the rows.
    fn copy(&self, step: Step, precision: Precision, rows: Rows, slots: &Slots, rest: &[Arg]) -> Result<(), Error> {
        let args = [&rows.args(slots)[..], rest].concat();
        let grid = (blocks(slots.len() * rows.width, BLOCK as usize)?, 1);
        // SAFETY: arguments as in rows.cu; the message has room for the rows. The slots are rows, or rows that pass
        // through, and distinct.
        unsafe { self.link.device().launch(&self.functions, step.entry(precision), grid, BLOCK, &args) }
    }

    /// The parcels. A poisoned lock is fine: parcels are inserted whole.
    fn parcels(&self) -> MutexGuard<'_, HashMap<(Row, usize, usize), Parcel>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message of a packed parcel.
    fn sealed(&self, key: (Row, usize, usize), bytes: usize) -> Result<Vec<u8>, Error> {
        self.parcels().get(&key).expect("packed before").seal(bytes)
    }

    /// Packs a parcel of so many bytes.
    fn packed(
        &self,
        key: (Row, usize, usize),
        (bytes, form): (usize, MessageForm),
        pack: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut all = self.parcels();
        if all.get(&key).is_some_and(|parcel| parcel.bytes() < bytes) {
            // Arrays of the caller in another precision. No rank reads the parcels of an evaluation that has ended.
            all.remove(&key);
        }
        let parcel = match all.entry(key) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Parcel::new(self.link.device(), bytes, form)?)
            }
        };
        pack(parcel.address)
    }
}
