//! What the stages of a rank ask of the other ranks ([`fmm_traits::Exchange`]), for rows in device memory:
//! `kernels/rows.cu`.
//!
//! Kernels pack the rows of a message into one buffer and put them into their places. Between threads of one process the
//! buffer travels from device to device, and the message that the ranks swap is its address, with an event after which
//! it is complete: no host waits for a device. Between processes the message holds the numbers themselves.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::equivalent::DeviceScalar;
use crate::error::failed;
use crate::lists::DeviceEdges;
use crate::programs;
use cudarc::driver::sys::{self, CUcontext, CUevent};
use cudarc::driver::{CudaEvent, DriverError, result};
use fmm_traits::{Error, Exchange, Round, Shared};
use std::collections::HashMap;
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

/// The part of a tree on a device that other trees do not have.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    /// The same on the host.
    pub host: Arc<Shared>,
    /// Number of sources of each box, on all ranks.
    pub sources: Buffer<u64>,
    /// The way to the callers; `None` if strengths and values are those of the points of the tree.
    pub routes: Option<Routes>,
}

impl DeviceShared {
    pub fn new(device: &Device, host: &Arc<Shared>) -> Result<Self, Error> {
        Ok(DeviceShared { host: host.clone(), sources: device.upload(&host.sources, "boxes")?, routes: None })
    }
}

/// The exchange of a rank, with its lists of slots on the device.
#[derive(Debug)]
pub(crate) struct Ranks {
    device: Device,
    functions: Functions,
    exchange: Arc<dyn Exchange>,
    rounds: Vec<DeviceRound>,
    boxes: usize,
    routes: Option<DeviceRoutes>,
    /// M2M edges that follow the exchange.
    pub after: DeviceEdges,
    /// Packed messages of the last evaluation, by kind of rows, round and place in the round. Other ranks read them
    /// until the evaluation ends on all ranks; the next one writes them anew.
    packed: Mutex<HashMap<(Row, usize, usize), Parcel>>,
    /// Contexts of other devices whose memory this device has asked to read.
    peers: Mutex<Vec<u64>>,
}

#[derive(Debug)]
struct DeviceRound {
    sends: Vec<(usize, Buffer<u32>)>,
    /// Ranks, slots, and whether rows are added.
    receives: Vec<(usize, Buffer<u32>, bool)>,
}

/// [`Routes`] on the device.
#[derive(Debug)]
struct DeviceRoutes {
    given: [usize; 2],
    strengths: DeviceRound,
    ghosts: DeviceRound,
    values: DeviceRound,
}

impl DeviceRound {
    fn new(device: &Device, round: &Round) -> Result<Self, Error> {
        let upload = |slots: &[u32]| device.upload(slots, "rows of other ranks");
        let sends = round.sends.iter().map(|(to, slots)| Ok((*to, upload(slots)?)));
        let receives = round.receives.iter().map(|r| Ok((r.from, upload(&r.slots)?, r.add)));
        Ok(DeviceRound {
            sends: sends.collect::<Result<_, Error>>()?,
            receives: receives.collect::<Result<_, Error>>()?,
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

/// Rows at both ends of a round.
#[derive(Clone, Copy)]
struct Ends<'a, T> {
    from: &'a Buffer<T>,
    to: &'a Buffer<T>,
    /// Rows that only pass through, whose slots begin at `first_passing`.
    passing: &'a Buffer<T>,
    first_passing: u32,
    width: usize,
}

impl<T> Ends<'_, T> {
    /// The first arguments of both kernels.
    fn args(&self, rows: &Buffer<T>, slots: &Buffer<u32>) -> [Arg; 6] {
        let (n, width) = ((slots.len() as u64).into(), (self.width as u32).into());
        [rows.into(), self.passing.into(), self.first_passing.into(), slots.into(), n, width]
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

/// Bytes of the elements of a buffer.
fn size<T>(of: &Buffer<T>) -> usize {
    of.len() * size_of::<T>()
}

impl Ranks {
    /// The exchange of a tree; `None` if the tree is not shared.
    pub fn new(device: &Device, shared: Option<&DeviceShared>, boxes: usize) -> Result<Option<Self>, Error> {
        let Some(exchange) = shared.and_then(|shared| shared.host.exchange.clone()) else { return Ok(None) };
        let upload = |round: &Round| DeviceRound::new(device, round);
        let routes = shared.and_then(|shared| shared.routes.as_ref()).map(|routes| {
            let (strengths, ghosts, values) = (&routes.strengths, &routes.ghosts, &routes.values);
            let given = routes.given;
            Ok::<_, Error>(DeviceRoutes {
                given,
                strengths: upload(strengths)?,
                ghosts: upload(ghosts)?,
                values: upload(values)?,
            })
        });
        Ok(Some(Ranks {
            functions: device.fixed("rows", programs::rows)?,
            after: DeviceEdges::upload(device, exchange.after())?,
            device: device.clone(),
            rounds: exchange.rounds().iter().map(upload).collect::<Result<_, _>>()?,
            routes: routes.transpose()?,
            exchange,
            boxes,
            packed: Mutex::default(),
            peers: Mutex::default(),
        }))
    }

    /// Whether this rank sends or gets rows.
    pub fn active(&self) -> bool {
        self.exchange.active()
    }

    /// Replaces a number on the device, given by its bits, by the largest on any rank. Waits for the device.
    pub fn largest(&self, number: &mut Buffer<u64>) -> Result<(), Error> {
        let mut largest = [f64::from_bits(self.device.download(number, "largest strength")?[0])];
        self.exchange.largest(&mut largest)?;
        self.device.write(number, 0, &[largest[0].to_bits()], "largest strength")
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// That of a rank that failed.
    pub fn agree(&self) -> Result<(), Error> {
        self.exchange.largest(&mut [])
    }

    /// Numbers of the caller's sources and targets, if their arrays are not those of the tree.
    pub fn given(&self) -> Option<[usize; 2]> {
        self.routes.as_ref().map(|routes| routes.given)
    }

    /// Completes rows of `width` numbers, one for each box: [`Exchange::complete`]. All ranks do it for the same kinds of
    /// rows in the same order.
    pub fn complete<T: DeviceScalar>(&self, kind: Row, rows: &Buffer<T>, width: usize) -> Result<(), Error> {
        let passing = &self.device.zeros(self.exchange.passing() * width, "rows of other ranks")?;
        let ends = Ends { from: rows, to: rows, passing, first_passing: self.boxes as u32, width };
        self.rounds.iter().enumerate().try_for_each(|(k, round)| self.travel((kind, k), round, ends))
    }

    /// Brings the caller's strengths to the sources of the tree, ghosts included.
    pub fn bring(&self, given: &Buffer<f64>, strengths: &Buffer<f64>, width: usize) -> Result<(), Error> {
        let Some(routes) = &self.routes else { return Ok(()) };
        let ends = Ends { from: given, to: strengths, passing: given, first_passing: u32::MAX, width };
        self.travel((Row::Strengths, 0), &routes.strengths, ends)?;
        self.travel((Row::Ghosts, 0), &routes.ghosts, Ends { from: strengths, ..ends })
    }

    /// Brings the values at the targets of the tree to the callers.
    pub fn bring_back(&self, values: &Buffer<f64>, out: &Buffer<f64>, width: usize) -> Result<(), Error> {
        let Some(routes) = &self.routes else { return Ok(()) };
        let ends = Ends { from: values, to: out, passing: values, first_passing: u32::MAX, width };
        self.travel((Row::Values, 0), &routes.values, ends)
    }

    /// Sends and puts the rows of a round.
    fn travel<T: DeviceScalar>(
        &self,
        (kind, k): (Row, usize),
        round: &DeviceRound,
        ends: Ends<T>,
    ) -> Result<(), Error> {
        let (near, width) = (self.exchange.one_process(), ends.width);
        let mut sends = Vec::new();
        for (at, (to, slots)) in round.sends.iter().enumerate() {
            let args = ends.args(ends.from, slots);
            let message = match near {
                true => self.packed::<T>((kind, k, at), slots, width, args)?,
                false => self.bytes::<T>(slots, width, args)?,
            };
            sends.push((*to, message));
        }
        let from: Vec<usize> = round.receives.iter().map(|r| r.0).collect();
        for (message, (_, slots, add)) in self.exchange.swap(sends, &from)?.iter().zip(&round.receives) {
            let came: Buffer<T> = self.device.alloc(slots.len() * width, "rows of other ranks")?;
            match near {
                true => self.fetch(message, &came)?,
                false => self.take(message, &came)?,
            }
            let rest = [u32::from(*add).into(), (&came).into()];
            let args: Vec<Arg> = ends.args(ends.to, slots).into_iter().chain(rest).collect();
            // SAFETY: arguments as in rows.cu; the slots are rows, or rows that pass through, and distinct.
            unsafe { self.launch::<T>(Step::Put, slots.len() * width, &args)? };
        }
        Ok(())
    }

    /// Enqueues a kernel with one thread for each of `numbers` numbers.
    ///
    /// # Safety
    /// As [`Device::launch`].
    unsafe fn launch<T: DeviceScalar>(&self, step: Step, numbers: usize, args: &[Arg]) -> Result<(), Error> {
        let grid = (blocks(numbers, BLOCK as usize)?, 1);
        // SAFETY: the caller promises what `launch` asks for.
        unsafe { self.device.launch(&self.functions, step.entry::<T>(), grid, BLOCK, args) }
    }

    /// Enqueues packing a message, and returns where it will be.
    fn packed<T: DeviceScalar>(
        &self,
        key: (Row, usize, usize),
        slots: &Buffer<u32>,
        width: usize,
        of: [Arg; 6],
    ) -> Result<Vec<u8>, Error> {
        // A poisoned lock is fine: parcels are inserted whole.
        let mut all = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = slots.len() * width * size_of::<T>();
        let parcel = match all.entry(key) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => free.insert(Parcel::new(&self.device, bytes)?),
        };
        let args: Vec<Arg> = of.into_iter().chain([Arg::address(parcel.address)]).collect();
        // SAFETY: arguments as in rows.cu; the parcel has room for the rows.
        unsafe { self.launch::<T>(Step::Pack, slots.len() * width, &args)? };
        parcel.seal()
    }

    /// Packs a message on the host.
    fn bytes<T: DeviceScalar>(&self, slots: &Buffer<u32>, width: usize, of: [Arg; 6]) -> Result<Vec<u8>, Error> {
        let message: Buffer<T> = self.device.alloc(slots.len() * width, "rows for other ranks")?;
        let args: Vec<Arg> = of.into_iter().chain([(&message).into()]).collect();
        // SAFETY: arguments as in rows.cu; the message has room for the rows.
        unsafe { self.launch::<T>(Step::Pack, slots.len() * width, &args)? };
        let mut bytes = vec![0u8; size(&message)];
        // SAFETY: the buffer has as many bytes.
        unsafe { self.device.receive(message.address(), &mut bytes, "rows for other ranks")? };
        Ok(bytes)
    }

    /// Enqueues the copy of a message of the host.
    fn take<T>(&self, message: &[u8], to: &Buffer<T>) -> Result<(), Error> {
        fits(message.len(), size(to))?;
        // SAFETY: the buffer has as many bytes.
        unsafe { self.device.send(message, to.address(), "rows of other ranks") }
    }

    /// Enqueues the copy of a message on another device, or on this one.
    fn fetch<T>(&self, message: &[u8], to: &Buffer<T>) -> Result<(), Error> {
        let failing = |e: DriverError| failed("a copy between devices", e);
        fits(message.len(), size_of::<Sealed>())?;
        let word = |k: usize| u64::from_ne_bytes(std::array::from_fn(|i| message[8 * k + i]));
        let [address, bytes, context, event] = std::array::from_fn(word);
        fits(bytes as usize, size(to))?;
        let mine = self.device.context();
        mine.bind_to_thread().map_err(failing)?;
        let (_, _, stream) = self.device.staging();
        let own = mine.cu_ctx() as u64;
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if context != own && !peers.contains(&context) {
            peers.push(context);
            // Without access, or with access that was given before, copies work too.
            // SAFETY: the context is live: it belongs to a plan that takes part in this evaluation.
            let _ = unsafe { sys::cuCtxEnablePeerAccess(context as CUcontext, 0) };
        }
        let now = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the sender keeps address, context and event until all ranks have ended the evaluation, and this
        // rank waits for its stream before; the sizes are equal.
        unsafe {
            result::stream::wait_event(stream.cu_stream(), event as CUevent, now).map_err(failing)?;
            let (from, to) = ((context as CUcontext, address), (mine.cu_ctx(), to.address()));
            result::memcpy_peer_async(to.0, to.1, from.0, from.1, bytes as usize, stream.cu_stream()).map_err(failing)
        }
    }
}

/// Address, bytes, context and event of a parcel, as a message has them.
type Sealed = [u64; 4];

/// Checks the length of a message.
fn fits(found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    let why = "the bytes of a message of another rank".to_string();
    Err(Error::Shape { array: "rows", found, expected, why })
}

/// A packed message in device memory. It does not come from the pool, whose memory other devices cannot read without
/// further ado.
#[derive(Debug)]
struct Parcel {
    device: Device,
    address: u64,
    bytes: usize,
    /// After the last packing.
    event: CudaEvent,
}

impl Parcel {
    fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let failing = |e: DriverError| failed("memory for rows of other ranks", e);
        let context = device.context();
        context.bind_to_thread().map_err(failing)?;
        let event = context.new_event(None).map_err(failing)?;
        // SAFETY: a kernel writes the memory before it is read.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(failing)?;
        Ok(Parcel { device: device.clone(), address, bytes, event })
    }

    /// Enqueues the event, and returns the message.
    fn seal(&self) -> Result<Vec<u8>, Error> {
        let (_, context, stream) = self.device.staging();
        // SAFETY: event and stream are live.
        unsafe { result::event::record(self.event.cu_event(), stream.cu_stream()) }
            .map_err(|e| failed("recording an event", e))?;
        let words = [self.address, self.bytes as u64, context.cu_ctx() as u64, self.event.cu_event() as u64];
        Ok(words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect())
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: from `malloc_sync`; no rank reads it after the evaluation.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
