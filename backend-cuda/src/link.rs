//! Messages between ranks, from device memory to device memory.
//!
//! Between threads of one process a message holds the address of an array and an event that says that the array is written. The
//! array is copied from device to device, and no host waits for a device. Between processes of one machine a message holds a
//! handle of the array. The sender waits until the array is written before it sends the handle. Between machines, and where devices cannot read each
//! other, a message holds the numbers themselves.

use crate::device::{Buffer, Device, Handle, machine};
use crate::error::failed;
use crate::graph::Lane;
use crate::rounds::{DeviceRound, Slots};
use cudarc::driver::sys::{self, CUcontext, CUevent};
use cudarc::driver::{CudaEvent, DeviceRepr, DriverError, result};
use fmm_traits::{Error, Messages};
use std::sync::{Arc, Mutex, PoisonError};

/// What a message between two ranks holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// The address of an array in the same process.
    Address,
    /// The handle of an array of another process.
    Handle,
    /// Numbers.
    Numbers,
}

/// The way from a device to the devices of other ranks.
#[derive(Debug)]
pub(crate) struct Link {
    device: Device,
    messages: Arc<dyn Messages>,
    /// The form of messages between this rank and each rank.
    forms: Vec<Form>,
    /// Contexts of other devices whose memory this device has asked to read.
    peers: Mutex<Vec<u64>>,
}

/// A number that travels as its bytes.
pub(crate) trait Number: DeviceRepr {}
impl Number for f64 {}
impl Number for u32 {}
impl Number for u64 {}

/// Address, bytes, context and event of a [`Parcel`], as a message in the same process has them.
type Sealed = [u64; 4];
/// Bytes of a message with a handle: the handle, then the number of bytes of the array.
const HANDLE_BYTES: usize = size_of::<Handle>() + size_of::<u64>();

/// Number `k` of a message.
fn word(message: &[u8], k: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| message[8 * k + i]))
}

/// Checks the length of a message.
fn fits(found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    let why = "the bytes of a message of another rank".to_string();
    Err(Error::Shape { array: "rows", found, expected, why })
}

/// For each rank, whether this process opens memory of that one. True if both ranks are on one machine. All entries are false if
/// any rank cannot open memory of another rank on its machine. All ranks call it together.
fn opens(device: &Device, messages: &dyn Messages) -> Result<Vec<bool>, Error> {
    let (me, here) = (messages.rank(), machine());
    let parcel = Parcel::new(device, 1, Form::Handle).and_then(|parcel| Ok((parcel.seal(1)?, parcel)));
    // Where there are no handles, the empty message says so.
    let message = parcel.as_ref().map_or_else(|_| Vec::new(), |(sealed, _)| [&sealed[..], here.as_bytes()].concat());
    let came = messages.give(message)?;
    let mut failed = f64::from(u8::from(parcel.is_err()));
    let mut opens = vec![false; came.len()];
    for (rank, message) in came.iter().enumerate().filter(|(rank, _)| *rank != me) {
        if let Some((sealed, there)) = message.split_at_checked(HANDLE_BYTES) {
            opens[rank] = there == here.as_bytes() && !here.is_empty();
            if opens[rank] && device.opened(&handle_in(sealed)).is_err() {
                failed = 1.0;
            }
        }
    }
    messages.largest(std::slice::from_mut(&mut failed))?;
    Ok(if failed == 0.0 { opens } else { vec![false; came.len()] })
}

/// The handle in a message.
fn handle_in(message: &[u8]) -> Handle {
    std::array::from_fn(|i| message[i])
}

impl Link {
    /// Finds the form of messages to each rank. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn new(device: &Device, messages: Arc<dyn Messages>) -> Result<Self, Error> {
        let forms = if messages.one_process() {
            vec![Form::Address; messages.size()]
        } else {
            let opens = messages.found_out(&|| opens(device, &*messages))?;
            opens.iter().map(|&opens| if opens { Form::Handle } else { Form::Numbers }).collect()
        };
        Ok(Link { device: device.clone(), messages, forms, peers: Mutex::default() })
    }

    /// The form of messages between this rank and another one.
    pub fn form(&self, rank: usize) -> Form {
        self.forms[rank]
    }

    /// The form of a message that all other ranks get: handles if all ranks are on one machine, else numbers. (Between threads,
    /// addresses.)
    fn form_of_all(&self) -> Form {
        let mut others =
            (0..self.forms.len()).filter(|&rank| rank != self.messages.rank()).map(|rank| self.forms[rank]);
        let first = others.next().unwrap_or(Form::Numbers);
        if others.all(|form| form == first) { first } else { Form::Numbers }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }
    pub fn messages(&self) -> &dyn Messages {
        &*self.messages
    }

    /// The order in which this rank fetches from some ranks, as positions in `from`. Ranks that fetch in this order do not
    /// all fetch from the same rank at a time.
    pub fn in_turn(&self, from: &[usize]) -> Vec<usize> {
        let (me, size) = (self.messages.rank(), self.messages.size());
        let mut order: Vec<usize> = (0..from.len()).collect();
        order.sort_by_key(|&k| (from[k] + size - me) % size);
        order
    }

    /// The bytes of the array that a message of a form brings.
    fn bytes_of(message: &[u8], form: Form) -> Result<usize, Error> {
        match form {
            Form::Address => {
                fits(message.len(), size_of::<Sealed>())?;
                Ok(word(message, 1) as usize)
            }
            Form::Handle => {
                fits(message.len(), HANDLE_BYTES)?;
                Ok(word(message, size_of::<Handle>() / size_of::<u64>()) as usize)
            }
            Form::Numbers => Ok(message.len()),
        }
    }

    /// A round in which each rank sends one row to each other rank.
    pub fn each(&self) -> Result<DeviceRound, Error> {
        let (slot, mut round) = (Slots::all(self.device.zeros(1, "rows of other ranks")?), DeviceRound::default());
        for other in (0..self.messages.size()).filter(|&other| other != self.messages.rank()) {
            round.send(other, slot.clone());
            round.receive(other, slot.clone());
        }
        Ok(round)
    }

    /// Enqueues the copy of the array that a message brings, to the `bytes` bytes at `to`: on the first stream if the message
    /// holds numbers, else on the stream `lane`.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes until the copy has run. The sender keeps its [`Parcel`] until then.
    pub unsafe fn fetch(
        &self,
        (message, form): (&[u8], Form),
        (to, bytes): (u64, usize),
        lane: Lane,
    ) -> Result<(), Error> {
        fits(Link::bytes_of(message, form)?, bytes)?;
        let failing = |e: DriverError| failed("a copy between devices", e);
        match form {
            Form::Address => {}
            // SAFETY: as promised.
            Form::Numbers => return unsafe { self.device.send(message, to, "rows of other ranks") },
            Form::Handle => {
                let from = self.device.opened(&handle_in(message))?;
                let stream = self.device.stream(lane).cu_stream();
                // SAFETY: the sender keeps the memory, and has written it.
                return unsafe { result::memcpy_dtod_async(to, from, bytes, stream) }.map_err(failing);
            }
        }
        let [address, context, event] = [0, 2, 3].map(|k| word(message, k));
        let mine = self.device.context();
        mine.bind_to_thread().map_err(failing)?;
        let (stream, own) = (self.device.stream(lane), mine.cu_ctx() as u64);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if context != own && !peers.contains(&context) {
            peers.push(context);
            // Without access, or with access that was given before, copies work too.
            // SAFETY: the context is live: it belongs to a rank that takes part in this call.
            let _ = unsafe { sys::cuCtxEnablePeerAccess(context as CUcontext, 0) };
        }
        let now = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the sender keeps address, context and event, as promised; the sizes are equal.
        unsafe {
            result::stream::wait_event(stream.cu_stream(), event as CUevent, now).map_err(failing)?;
            let (from, to) = ((context as CUcontext, address), (mine.cu_ctx(), to));
            result::memcpy_peer_async(to.0, to.1, from.0, from.1, bytes, stream.cu_stream()).map_err(failing)
        }
    }

    /// The arrays of all ranks, one after the other, and how many numbers each has. All ranks call it together. Waits for
    /// the copies, and for all ranks.
    pub fn gathered<T: Number>(&self, mine: &Buffer<T>, what: &str) -> Result<(Buffer<T>, Vec<usize>), Error> {
        let (device, messages, me) = (&self.device, self.messages(), self.messages.rank());
        let bytes = mine.len() * size_of::<T>();
        let (mut parcel, form) = (None, self.form_of_all());
        let message = if form == Form::Numbers {
            let mut numbers = vec![0u8; bytes];
            // SAFETY: the array has as many bytes.
            unsafe { device.receive(mine.address(), &mut numbers, what)? };
            numbers
        } else {
            let parcel = parcel.insert(Parcel::new(device, bytes, form)?);
            // SAFETY: the parcel has as many bytes.
            unsafe { device.copy_bytes(mine.address(), parcel.address, bytes, what)? };
            parcel.seal(bytes)?
        };
        let came = messages.give(message)?;
        let count = |(rank, message): (usize, &Vec<u8>)| match rank == me {
            true => Ok(mine.len()),
            false => Ok(Link::bytes_of(message, form)? / size_of::<T>()),
        };
        let counts = came.iter().enumerate().map(count).collect::<Result<Vec<usize>, Error>>()?;
        let mut all: Buffer<T> = device.alloc(counts.iter().sum(), what)?;
        let ranks: Vec<usize> = (0..counts.len()).collect();
        let first = |rank: usize| counts[..rank].iter().sum::<usize>();
        let copy = |rank: usize| {
            let (message, count) = (&came[rank], counts[rank]);
            // SAFETY: there is room for the numbers of all ranks; parcels live until all ranks have copied.
            unsafe {
                match rank == me {
                    true => device.copy_into(mine.address(), &mut all, (first(rank), count), what),
                    false => {
                        let to = all.address() + (first(rank) * size_of::<T>()) as u64;
                        self.fetch((message, form), (to, count * size_of::<T>()), Lane::First)
                    }
                }
            }
        };
        let mut in_turn = self.in_turn(&ranks).into_iter().filter(|&rank| counts[rank] > 0);
        self.all_copied(parcel, || in_turn.try_for_each(copy))?;
        Ok((all, counts))
    }

    /// Enqueues copies of messages of other ranks by `copy`, and waits until all ranks have copied theirs. `parcels` are what
    /// other ranks copy of this one. All ranks call it together, when each has room.
    fn all_copied<P>(&self, parcels: P, copy: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // No rank copies before all have room.
        self.messages.wait()?;
        let copied = copy();
        let done = self.device.synchronize().and(copied).and_then(|()| self.messages.wait());
        if done.is_err() {
            // Another rank may still copy.
            std::mem::forget(parcels);
        }
        done
    }

    /// A message of so many bytes on the host, which `pack` writes on the device at an address.
    pub fn bytes(&self, bytes: usize, pack: impl FnOnce(u64) -> Result<(), Error>) -> Result<Vec<u8>, Error> {
        let (device, what) = (&self.device, "rows for other ranks");
        let message: Buffer<u8> = device.alloc(bytes, what)?;
        pack(message.address())?;
        let mut bytes = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes.
        unsafe { device.receive(message.address(), &mut bytes, what)? };
        Ok(bytes)
    }

    /// Sends each other rank as many bytes as `bytes` says, which `fill` writes at an address, and returns those that come,
    /// by rank; `None` for this rank. All ranks call it together. Waits for the copies, and for all ranks.
    pub fn swapped(
        &self,
        bytes: &[usize],
        fill: impl Fn(usize, u64) -> Result<(), Error>,
    ) -> Result<Vec<Option<Buffer<u8>>>, Error> {
        let (device, messages, me, what) =
            (&self.device, self.messages(), self.messages.rank(), "points of other ranks");
        let others: Vec<usize> = (0..messages.size()).filter(|&rank| rank != me).collect();
        let (mut parcels, mut sends) = (Vec::new(), Vec::new());
        for &rank in &others {
            match self.form(rank) {
                Form::Numbers => sends.push((rank, self.bytes(bytes[rank], |address| fill(rank, address))?)),
                form => {
                    let parcel = Parcel::new(device, bytes[rank], form)?;
                    fill(rank, parcel.address)?;
                    parcels.push((rank, parcel));
                }
            }
        }
        for (rank, parcel) in &parcels {
            sends.push((*rank, parcel.seal(bytes[*rank])?));
        }
        let came = messages.swap(sends, &others)?;
        let room =
            |(message, &rank): (&Vec<u8>, &usize)| device.alloc::<u8>(Link::bytes_of(message, self.form(rank))?, what);
        let room = came.iter().zip(&others).map(room).collect::<Result<Vec<_>, Error>>()?;
        self.all_copied(parcels, || {
            self.in_turn(&others).into_iter().filter(|&k| room[k].len() > 0).try_for_each(|k| {
                // SAFETY: there is room for the message; parcels live until all ranks have copied.
                unsafe {
                    let to = (room[k].address(), room[k].len());
                    self.fetch((&came[k], self.form(others[k])), to, Lane::First)
                }
            })
        })?;
        let mut room = room.into_iter();
        Ok((0..messages.size()).map(|rank| if rank == me { None } else { room.next() }).collect())
    }
}

/// An array that other devices copy. Memory of the driver's pool would need a grant for each reading device, so a parcel has
/// memory of its own.
#[derive(Debug)]
pub(crate) struct Parcel {
    device: Device,
    pub address: u64,
    bytes: usize,
    /// After the last write.
    event: CudaEvent,
    /// For a parcel that another process reads.
    handle: Option<Handle>,
}

impl Parcel {
    /// A parcel for messages of a form, which is not [`Form::Numbers`].
    pub fn new(device: &Device, bytes: usize, form: Form) -> Result<Self, Error> {
        let (failing, what) = (|e: DriverError| failed("memory for rows of other ranks", e), "rows of other ranks");
        let context = device.context();
        context.bind_to_thread().map_err(failing)?;
        let event = context.new_event(None).map_err(failing)?;
        if form != Form::Handle {
            let address = device.alloc_for_others(bytes, what)?;
            return Ok(Parcel { device: device.clone(), address, bytes, event, handle: None });
        }
        let address = device.alloc_for_processes(bytes, what)?;
        let handle = device.handle_of(address).inspect_err(|_| device.free_for_processes(address))?;
        Ok(Parcel { device: device.clone(), address, bytes, event, handle: Some(handle) })
    }

    /// Bytes for which there is room.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The message that brings the first `bytes` bytes. Enqueues the event; for another process, waits for it.
    pub fn seal(&self, bytes: usize) -> Result<Vec<u8>, Error> {
        let (_, context, stream) = self.device.staging();
        let failing = |e: DriverError| failed("recording an event", e);
        // SAFETY: event and stream are live.
        unsafe { result::event::record(self.event.cu_event(), stream.cu_stream()) }.map_err(failing)?;
        if let Some(handle) = &self.handle {
            self.event.synchronize().map_err(failing)?;
            return Ok([&handle[..], &(bytes as u64).to_ne_bytes()].concat());
        }
        let sealed: Sealed = [self.address, bytes as u64, context.cu_ctx() as u64, self.event.cu_event() as u64];
        Ok(sealed.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect())
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        // No rank reads it after the call in which it was sent; if that call failed, a rank may, but does not use the numbers.
        match self.handle {
            None => self.device.free_for_others(self.address, self.bytes),
            Some(_) => self.device.free_for_processes(self.address),
        }
    }
}
