//! The transport over MPI.
//!
//! A message begins with a head: its kind, its length, and its bytes if they are few. The bytes of a long message
//! follow in parts below 2³¹ bytes, because MPI counts in 32 bits. Nothing blocks inside MPI: this rank asks whether a
//! message is there, so it notices a deadline, and its own messages move meanwhile.

use crate::Settings;
use crate::calls::{self, Transfer};
use fmm_dist::Comm;
use fmm_traits::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tag of heads.
const HEAD: i32 = 1;
/// Tag of the parts of long messages.
const PART: i32 = 2;
/// Bytes that travel with the head. MPIs send about this much without asking the receiver.
const FEW: usize = 4000;
/// Kind of a message.
const MESSAGE: u8 = 0;
/// Kind of the last message of a rank that ended well.
const ENDED: u8 = 1;
/// Kind of the last message of a rank that ended with an error, whose text it holds.
const FAILED: u8 = 2;

/// How a rank ended.
#[derive(Clone, Debug)]
pub enum End {
    Well,
    Failed(String),
    /// It was silent for too long, or MPI failed.
    Lost(String),
}

impl End {
    /// What another rank says of a rank that it waits for.
    fn reason(&self) -> String {
        match self {
            End::Well => "it has ended".to_string(),
            End::Failed(text) => format!("it has ended: {text}"),
            End::Lost(reason) => reason.clone(),
        }
    }
}

/// A rank that is a process.
pub struct Mpi {
    comm: i32,
    rank: usize,
    size: usize,
    settings: Settings,
    state: Mutex<State>,
}

struct State {
    /// Messages that were sent and not taken yet, with their receivers.
    on_way: Vec<Transfer>,
    /// How other ranks ended.
    ends: Vec<Option<End>>,
    /// Whether this rank has said that it ends.
    ended: bool,
}

/// Waits a little longer each time: other ranks may need this core.
struct Pause(u32);

impl Pause {
    fn once(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            ..100 => std::hint::spin_loop(),
            100..200 => std::thread::yield_now(),
            n => std::thread::sleep(Duration::from_micros(u64::from(n - 190).min(500))),
        }
    }
}

impl Mpi {
    /// The ranks of a communicator, which is copied. All ranks call it together.
    ///
    /// # Safety
    /// `handle` is the Fortran handle of a communicator.
    pub unsafe fn new(handle: i32, settings: Settings) -> Result<Self, Error> {
        // SAFETY: the caller's.
        let (comm, rank, size) = unsafe { calls::duplicate(handle) }?;
        let state = State { on_way: Vec::new(), ends: vec![None; size], ended: false };
        Ok(Mpi { comm, rank, size, settings, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of messages that were sent and not taken yet.
    fn on_way(&self) -> Result<usize, Error> {
        let mut state = self.state();
        let mut still = Vec::new();
        for mut transfer in std::mem::take(&mut state.on_way) {
            if transfer.rest()? > 0 {
                still.push(transfer);
            }
        }
        state.on_way = still;
        Ok(state.on_way.len())
    }

    /// Waits until `ready` has something; `None` after a silence of `patience`.
    fn wait<T>(
        &self,
        patience: Option<Duration>,
        mut ready: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let (start, mut pause) = (Instant::now(), Pause(0));
        loop {
            if let Some(found) = ready()? {
                return Ok(Some(found));
            }
            self.on_way()?;
            if patience.is_some_and(|patience| start.elapsed() > patience) {
                return Ok(None);
            }
            pause.once();
        }
    }

    fn post(&self, to: usize, kind: u8, message: Arc<Vec<u8>>) -> Result<(), Error> {
        let few = message.len() <= FEW;
        let mut head = Vec::with_capacity(9 + if few { message.len() } else { 0 });
        head.push(kind);
        head.extend((message.len() as u64).to_le_bytes());
        if few {
            head.extend(&*message);
        }
        let mut sent = vec![Transfer::send(self.comm, Arc::new(head), to, HEAD, usize::MAX)?];
        if !few {
            sent.push(Transfer::send(self.comm, message, to, PART, self.settings.cut)?);
        }
        self.state().on_way.extend(sent);
        Ok(())
    }

    /// The next message of a rank and its kind; `None` after a silence of `patience`.
    fn next(&self, from: usize, patience: Option<Duration>) -> Result<Option<(u8, Vec<u8>)>, Error> {
        let arrived = |mut transfer: Transfer| -> Result<Option<Vec<u8>>, Error> {
            // A part that arrives is a sign of life.
            let mut rest = transfer.rest()?;
            while rest > 0 {
                let fewer = || Ok(Some(transfer.rest()?).filter(|&now| now < rest));
                match self.wait(patience, fewer)? {
                    Some(now) => rest = now,
                    None => return Ok(None),
                }
            }
            Ok(transfer.done())
        };
        let Some(count) = self.wait(patience, || calls::probe(self.comm, from, HEAD))? else { return Ok(None) };
        let Some(mut head) = arrived(Transfer::receive(self.comm, count, from, HEAD, usize::MAX)?)? else {
            return Ok(None);
        };
        let (Some(&kind), Some(length)) = (head.first(), head.get(1..9)) else {
            return Err(calls::refused("reading a message of another rank", "it has no head"));
        };
        let length = length.iter().rev().fold(0, |n: u64, &byte| n << 8 | u64::from(byte)) as usize;
        if length <= FEW {
            head.drain(..9);
            return Ok(Some((kind, head)));
        }
        let parts = arrived(Transfer::receive(self.comm, length, from, PART, self.settings.cut)?)?;
        Ok(parts.map(|message| (kind, message)))
    }

    /// Notes how a rank ended.
    fn ends(&self, rank: usize, kind: u8, message: &[u8]) -> End {
        let text = || String::from_utf8_lossy(message).into_owned();
        let end = if kind == ENDED { End::Well } else { End::Failed(text()) };
        self.state().ends[rank] = Some(end.clone());
        end
    }

    /// Says to all other ranks that this one ends, with the text of its error.
    fn say_end(&self, error: Option<&str>) -> Result<(), Error> {
        if std::mem::replace(&mut self.state().ended, true) {
            return Ok(());
        }
        let kind = if error.is_some() { FAILED } else { ENDED };
        let text: String = error.unwrap_or_default().chars().take(1000).collect();
        let message = Arc::new(text.into_bytes());
        for to in (0..self.size).filter(|&r| r != self.rank) {
            self.post(to, kind, message.clone())?;
        }
        Ok(())
    }

    /// Ends together with all other ranks, each in its own time: without a deadline. Returns how they ended, or the first
    /// that is lost.
    pub fn end(&self, error: Option<&str>) -> Result<Vec<Option<End>>, Error> {
        self.say_end(error)?;
        for from in (0..self.size).filter(|&r| r != self.rank) {
            loop {
                match &self.state().ends[from] {
                    Some(End::Lost(reason)) => return Err(Error::RankLost { rank: from, reason: reason.clone() }),
                    Some(_) => break,
                    None => {}
                }
                match self.next(from, None)? {
                    // Nobody reads it any more.
                    Some((MESSAGE, _)) | None => {}
                    Some((kind, message)) => drop(self.ends(from, kind, &message)),
                }
            }
        }
        self.wait(None, || Ok((self.on_way()? == 0).then_some(())))?;
        Ok(self.state().ends.clone())
    }
}

impl Comm for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }

    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        let lost = |reason: String| Err(Error::RankLost { rank: to, reason });
        if self.state().ended {
            return lost("this rank has ended".to_string());
        }
        self.post(to, MESSAGE, message).or_else(|e| lost(e.to_string()))
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        if self.state().ended {
            return Err(Error::RankLost { rank: from, reason: "this rank has ended".to_string() });
        }
        let known = self.state().ends[from].clone();
        let end = match known {
            Some(end) => end,
            None => match self.next(from, self.settings.patience) {
                Ok(Some((MESSAGE, message))) => return Ok(message),
                Ok(Some((kind, message))) => self.ends(from, kind, &message),
                silent => {
                    let seconds = self.settings.patience.unwrap_or_default().as_secs_f64();
                    let reason = silent.err().map_or(format!("no message for {seconds:.1} s"), |e| e.to_string());
                    let end = End::Lost(reason);
                    self.state().ends[from] = Some(end.clone());
                    end
                }
            },
        };
        Err(Error::RankLost { rank: from, reason: end.reason() })
    }

    /// A rank that takes no messages for too long is noticed by the next call that waits for it.
    fn settle(&self) {
        let _ = self.wait(self.settings.patience, || Ok((self.on_way()? == 0).then_some(())));
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if calls::runs() {
            // Whoever still waits for this rank must not wait for ever.
            let _ = self.say_end(None);
            // Messages that nobody took stay in memory.
            let _ = self.on_way();
        }
    }
}
