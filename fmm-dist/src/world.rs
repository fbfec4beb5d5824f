//! What ranks do together, and how the error of one becomes the error of all.
//!
//! A *joint* call ([`World::together`]) does some work, with messages, and ends with a status from each rank to each
//! other rank. A rank that fails sends its status at once. Whoever waits for data from it then finds a status instead,
//! stops, and sends its own. So nobody waits for a rank that has failed, every rank ends the call with all statuses, and
//! messages that nobody read are dropped before the next joint call. All ranks return the error of the lowest rank that
//! failed by itself.

use crate::comm::{Alone, Comm};
use crate::wire::{Reader, Wire};
use fmm_traits::{Error, Messages};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Last byte of a message with data.
const DATA: u8 = 0;
/// Last byte of a status: all is well.
const WELL: u8 = 1;
/// Last byte of a status: this rank failed, with its error.
const FAILED: u8 = 2;
/// Last byte of a status: this rank stopped, because another one failed.
const STOPPED: u8 = 3;

/// The ranks of a computation, seen from one of them. All ranks make the same joint calls in the same order.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    comm: Arc<dyn Comm>,
    /// Held during a joint call.
    turn: Mutex<()>,
    heard: Mutex<Heard>,
    /// [`Messages::found_out`].
    found_out: Mutex<Option<Arc<[bool]>>>,
}

/// What a rank heard of others.
struct Heard {
    /// The status of each rank in the present joint call.
    status: Vec<Option<Status>>,
    /// Why a rank is lost, for ever.
    lost: Vec<Option<String>>,
}

#[derive(Clone)]
enum Status {
    Well,
    Failed(Error),
    Stopped,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Default for World {
    fn default() -> Self {
        World::new(Arc::new(Alone))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// The ranks of a transport.
    pub fn new(comm: Arc<dyn Comm>) -> Self {
        let none = Heard { status: vec![None; comm.size()], lost: vec![None; comm.size()] };
        World(Arc::new(Inner { comm, turn: Mutex::new(()), heard: Mutex::new(none), found_out: Mutex::default() }))
    }
    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.0.comm.rank()
    }
    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.comm.size()
    }
    /// The transport.
    pub fn transport(&self) -> Arc<dyn Comm> {
        self.0.comm.clone()
    }
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank();
        (0..self.size()).filter(move |&r| r != me)
    }

    /// A joint call: runs `work` on each rank. If it fails on one rank, all return its error; a joint call is not to be
    /// made inside another.
    ///
    /// # Errors
    /// [`Error::Rank`] with the error of the lowest rank that failed, [`Error::RankLost`], [`Error::RanksDiffer`]: the
    /// same on all ranks. With one rank, the error of `work`.
    pub fn together<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        if self.size() == 1 {
            return work();
        }
        let _turn = locked(&self.0.turn);
        // A panic says farewell, too, if the transport does not: whoever waits must not wait for ever.
        let farewell = Farewell(self);
        let result = work();
        std::mem::forget(farewell);
        let own = match &result {
            Ok(_) => Status::Well,
            Err(_) if self.heard_of_failure() => Status::Stopped,
            Err(e) => Status::Failed(e.clone()),
        };
        self.say(&own);
        let mut failures = Vec::new();
        for rank in 0..self.size() {
            match if rank == self.rank() { own.clone() } else { self.status_of(rank) } {
                Status::Failed(error) => failures.push((rank, error)),
                Status::Well | Status::Stopped => {}
            }
        }
        // Until others have read past this rank's messages, which they do before they have its status.
        self.0.comm.settle();
        locked(&self.0.heard).status.fill(None);
        let lost = |(_, e): &(usize, Error)| if let Error::RankLost { rank, .. } = e { Some(*rank) } else { None };
        let first = match failures.iter().filter_map(lost).min() {
            Some(gone) => failures.into_iter().find(|f| lost(f) == Some(gone)),
            None => failures.into_iter().next(),
        };
        match first {
            Some((_, error @ (Error::RankLost { .. } | Error::RanksDiffer { .. }))) => Err(error),
            Some((rank, error)) => Err(Error::Rank { rank, error: Box::new(error) }),
            None => result,
        }
    }

    /// Whether another rank failed or stopped in the present joint call.
    fn heard_of_failure(&self) -> bool {
        let failure = |s: &Option<Status>| matches!(s, Some(Status::Failed(_) | Status::Stopped));
        locked(&self.0.heard).status.iter().any(failure)
    }

    /// Sends the status to all other ranks.
    fn say(&self, status: &Status) {
        let message = match status {
            Status::Well => vec![WELL],
            Status::Stopped => vec![STOPPED],
            Status::Failed(error) => {
                let mut message = Vec::new();
                error.put(&mut message);
                message.push(FAILED);
                message
            }
        };
        let message = Arc::new(message);
        for to in self.others() {
            // A rank that is lost hears nothing.
            let _ = self.0.comm.send(to, message.clone());
        }
    }

    /// Waits for the status of a rank, past all data.
    fn status_of(&self, rank: usize) -> Status {
        loop {
            let heard = locked(&self.0.heard);
            if let Some(status) = &heard.status[rank] {
                return status.clone();
            }
            if let Some(reason) = &heard.lost[rank] {
                return Status::Failed(Error::RankLost { rank, reason: reason.clone() });
            }
            drop(heard);
            // Notes a status, or the loss of the rank.
            let _ = self.receive(rank);
        }
    }

    /// The next data of a rank.
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        let lost = |rank: usize, reason: String| {
            locked(&self.0.heard).lost[rank] = Some(reason.clone());
            Err(Error::RankLost { rank, reason })
        };
        {
            let heard = locked(&self.0.heard);
            if let Some(status) = &heard.status[from] {
                return Err(out_of_step(from, status));
            }
            if let Some(reason) = &heard.lost[from] {
                return Err(Error::RankLost { rank: from, reason: reason.clone() });
            }
        }
        let mut message = match self.0.comm.receive(from) {
            Ok(message) => message,
            Err(Error::RankLost { rank, reason }) => return lost(rank, reason),
            Err(e) => return lost(from, e.to_string()),
        };
        let status = match message.pop() {
            Some(DATA) => return Ok(message),
            Some(WELL) => Status::Well,
            Some(STOPPED) => Status::Stopped,
            Some(FAILED) => match Wire::get(&mut Reader::new(&message)) {
                Ok(error) => Status::Failed(error),
                Err(_) => return lost(from, "its error cannot be read".to_string()),
            },
            _ => return lost(from, "a message that does not say what it is".to_string()),
        };
        if let Status::Failed(Error::RankLost { rank, reason }) = &status {
            locked(&self.0.heard).lost[*rank].get_or_insert(reason.clone());
        }
        let error = out_of_step(from, &status);
        locked(&self.0.heard).status[from] = Some(status);
        Err(error)
    }

    /// Sends a message to some ranks, and receives one from some ranks, in their order. Messages to the rank itself
    /// arrive, too.
    ///
    /// # Errors
    /// [`Error::Rank`] or [`Error::RankLost`] if another rank failed.
    pub fn swap(&self, sends: Vec<(usize, Vec<u8>)>, from: &[usize]) -> Result<Vec<Vec<u8>>, Error> {
        let mut own = None;
        for (to, mut message) in sends {
            if to == self.rank() {
                own = Some(message);
                continue;
            }
            message.push(DATA);
            self.0.comm.send(to, Arc::new(message))?;
        }
        from.iter()
            .map(|&rank| if rank == self.rank() { Ok(own.take().unwrap_or_default()) } else { self.receive(rank) })
            .collect()
    }

    /// Sends one message to all other ranks, without a copy for each, and returns theirs, in the order of ranks. That of
    /// this rank is empty.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn give(&self, mut message: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        message.push(DATA);
        let message = Arc::new(message);
        self.others().try_for_each(|to| self.0.comm.send(to, message.clone()))?;
        drop(message);
        (0..self.size()).map(|rank| if rank == self.rank() { Ok(Vec::new()) } else { self.receive(rank) }).collect()
    }

    /// Sends `to[r]` to each rank r; returns what each rank sent here.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn all_to_all<T: Wire>(&self, to: Vec<T>) -> Result<Vec<T>, Error> {
        let mut own = None;
        let mut sends = Vec::with_capacity(self.size());
        for (rank, x) in to.into_iter().enumerate() {
            if rank == self.rank() {
                own = Some(x);
                continue;
            }
            let mut message = Vec::new();
            x.put(&mut message);
            sends.push((rank, message));
        }
        let others: Vec<usize> = self.others().collect();
        let came = self.swap(sends, &others)?;
        let read = |message: &Vec<u8>| Wire::get(&mut Reader::new(message));
        let mut all = came.iter().map(read).collect::<Result<Vec<T>, Error>>()?;
        if let Some(own) = own {
            all.insert(self.rank(), own);
        }
        Ok(all)
    }

    /// What each rank has.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn all_gather<T: Wire>(&self, mine: T) -> Result<Vec<T>, Error> {
        let mut message = Vec::new();
        mine.put(&mut message);
        let (came, mut own) = (self.give(message)?, Some(mine));
        let of = |(rank, message): (usize, &Vec<u8>)| match own.take_if(|_| rank == self.rank()) {
            Some(mine) => Ok(mine),
            None => Wire::get(&mut Reader::new(message)),
        };
        came.iter().enumerate().map(of).collect()
    }

    /// Sends `x` to a rank, which [gets](Self::get) it.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn put<T: Wire>(&self, to: usize, x: &T) -> Result<(), Error> {
        let mut message = Vec::new();
        x.put(&mut message);
        self.swap(vec![(to, message)], &[]).map(drop)
    }

    /// What a rank has [put](Self::put) here.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn get<T: Wire>(&self, from: usize) -> Result<T, Error> {
        Wire::get(&mut Reader::new(&self.swap(Vec::new(), &[from])?[0]))
    }

    /// What the rank `from` has. The others give anything.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn tell<T: Wire>(&self, from: usize, mine: T) -> Result<T, Error> {
        if self.rank() != from {
            return self.get(from);
        }
        self.others().try_for_each(|to| self.put(to, &mine))?;
        Ok(mine)
    }

    /// The numbers of this rank's items, of which it has `mine`, if the items of all ranks are counted in the order of
    /// ranks; and how many items there are.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn numbers(&self, mine: usize) -> Result<(Range<usize>, usize), Error> {
        let counts = self.all_gather(mine)?;
        let first = counts[..self.rank()].iter().sum();
        Ok((first..first + mine, counts.iter().sum()))
    }

    /// `numbers` of all ranks, joined entry by entry in the order of ranks.
    ///
    /// # Errors
    /// As [`swap`](Self::swap); [`Error::RanksDiffer`] if ranks give different counts of numbers.
    pub fn reduce<T: Wire + Copy>(&self, numbers: &mut [T], join: impl Fn(T, T) -> T) -> Result<(), Error>
    where
        Vec<T>: Wire,
    {
        if self.size() == 1 {
            return Ok(());
        }
        let all = self.all_gather(numbers.to_vec())?;
        if let Some(rank) = all.iter().position(|part| part.len() != all[0].len()) {
            let (found, expected) = (all[rank].len().to_string(), all[0].len().to_string());
            return Err(Error::RanksDiffer { what: "the count of numbers".to_string(), rank, found, expected });
        }
        for (k, x) in numbers.iter_mut().enumerate() {
            *x = all[1..].iter().fold(all[0][k], |sum, part| join(sum, part[k]));
        }
        Ok(())
    }

    /// Checks that all ranks have the same texts.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] with the name of the first text that differs, the same on all ranks.
    pub fn agree(&self, texts: &[(&str, String)]) -> Result<(), Error> {
        let mine: Vec<String> = texts.iter().map(|(_, text)| text.clone()).collect();
        let all = self.all_gather(mine)?;
        for (k, (what, _)) in texts.iter().enumerate() {
            if let Some(rank) = all.iter().position(|other| other.get(k) != all[0].get(k)) {
                let of = |rank: usize| all[rank].get(k).cloned().unwrap_or_default();
                return Err(Error::RanksDiffer { what: what.to_string(), rank, found: of(rank), expected: of(0) });
            }
        }
        Ok(())
    }
}

impl Messages for World {
    fn rank(&self) -> usize {
        World::rank(self)
    }
    fn size(&self) -> usize {
        World::size(self)
    }
    fn largest(&self, numbers: &mut [f64]) -> Result<(), Error> {
        self.reduce(numbers, f64::max)
    }
    fn swap(&self, sends: Vec<(usize, Vec<u8>)>, from: &[usize]) -> Result<Vec<Vec<u8>>, Error> {
        World::swap(self, sends, from)
    }
    fn give(&self, message: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        World::give(self, message)
    }
    fn one_process(&self) -> bool {
        self.0.comm.one_process()
    }
    fn found_out(&self, ask: &dyn Fn() -> Result<Vec<bool>, Error>) -> Result<Arc<[bool]>, Error> {
        let mut found = self.0.found_out.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none() {
            *found = Some(ask()?.into());
        }
        Ok(found.clone().unwrap_or_default())
    }
}

/// The error of a rank that waits for data and finds a status.
fn out_of_step(from: usize, status: &Status) -> Error {
    match status {
        Status::Failed(error @ (Error::RankLost { .. } | Error::RanksDiffer { .. })) => error.clone(),
        Status::Failed(error) => Error::Rank { rank: from, error: Box::new(error.clone()) },
        Status::Stopped => Error::RankLost { rank: from, reason: "it stopped after an error of another rank".into() },
        Status::Well => Error::RankLost { rank: from, reason: "it is ahead: ranks call in different orders".into() },
    }
}

/// Tells the other ranks that this one panics.
struct Farewell<'a>(&'a World);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        let rank = self.0.rank();
        self.0.say(&Status::Failed(Error::RankLost { rank, reason: "it panicked".to_string() }));
    }
}
