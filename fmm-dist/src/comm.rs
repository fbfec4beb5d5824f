//! Messages between ranks.
//!
//! A transport is four calls, and a fifth (`settle`) if messages do not move by themselves. Messages between two ranks
//! arrive in the order in which they were sent. Sending does not wait for the receiver.

use fmm_traits::Error;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::World;

/// One of several ranks, and its way to the others. A rank makes one call at a time, not always from the same thread.
pub trait Comm: Send + Sync {
    /// The number of this rank.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn size(&self) -> usize;
    /// Sends a message to another rank, without waiting for it. The same message may go to several ranks.
    ///
    /// # Errors
    /// [`Error::RankLost`].
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error>;
    /// Waits for the next message of another rank.
    ///
    /// # Errors
    /// [`Error::RankLost`] if that rank has ended, or is silent for too long.
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error>;
    /// Whether all ranks are threads of this process.
    fn one_process(&self) -> bool {
        false
    }
    /// Waits until the receivers have taken every message of this rank. Implement it if messages advance only while
    /// their sender calls the transport; by default it does nothing. The wait ends, because at this point of a joint
    /// call every receiver reads all its messages.
    fn settle(&self) {}
}

/// The only rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Comm for Alone {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn send(&self, to: usize, _: Arc<Vec<u8>>) -> Result<(), Error> {
        Err(Error::RankLost { rank: to, reason: "there is one rank".to_string() })
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        Err(Error::RankLost { rank: from, reason: "there is one rank".to_string() })
    }
    fn one_process(&self) -> bool {
        true
    }
}

/// How long a thread looks for a message before it sleeps: about as long as the system takes to wake it.
const LOOKING: Duration = Duration::from_micros(50);

/// The messages that wait for one rank.
#[derive(Default)]
struct Inbox {
    /// Messages by sender.
    from: Vec<VecDeque<Arc<Vec<u8>>>>,
    /// Senders that have ended.
    ended: Vec<bool>,
}

/// The inboxes of the ranks of one process.
struct Board {
    inboxes: Vec<(Mutex<Inbox>, Condvar)>,
    /// Silence after which a rank counts as lost; `None`: never.
    patience: Option<Duration>,
}

impl Board {
    fn new(ranks: usize, patience: Option<Duration>) -> Arc<Self> {
        let inbox = || Inbox { from: vec![VecDeque::new(); ranks], ended: vec![false; ranks] };
        let inboxes = (0..ranks).map(|_| (Mutex::new(inbox()), Condvar::new())).collect();
        Arc::new(Board { inboxes, patience })
    }
    fn inbox(&self, rank: usize) -> MutexGuard<'_, Inbox> {
        self.inboxes[rank].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank that is a thread.
struct Thread {
    rank: usize,
    board: Arc<Board>,
}

impl Comm for Thread {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.board.inboxes.len()
    }
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        self.board.inbox(to).from[self.rank].push_back(message);
        self.board.inboxes[to].1.notify_all();
        Ok(())
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        let lost = |reason: String| Err(Error::RankLost { rank: from, reason });
        let start = Instant::now();
        while start.elapsed() < LOOKING {
            // Nobody waits for the inbox while a message is copied.
            let message = self.board.inbox(self.rank).from[from].pop_front();
            if let Some(message) = message {
                return Ok(Arc::unwrap_or_clone(message));
            }
            std::thread::yield_now();
        }
        let mut inbox = self.board.inbox(self.rank);
        loop {
            if let Some(message) = inbox.from[from].pop_front() {
                drop(inbox);
                return Ok(Arc::unwrap_or_clone(message));
            }
            if inbox.ended[from] {
                return lost("it has ended".to_string());
            }
            let arrival = &self.board.inboxes[self.rank].1;
            inbox = match self.board.patience {
                None => arrival.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let Some(rest) = patience.checked_sub(start.elapsed()).filter(|rest| !rest.is_zero()) else {
                        return lost(format!("no message for {:.1} s", patience.as_secs_f64()));
                    };
                    arrival.wait_timeout(inbox, rest).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
    fn one_process(&self) -> bool {
        true
    }
}

/// Tells the other ranks, when dropped, that this one has ended.
struct Ending(Arc<Board>, usize);

impl Drop for Ending {
    fn drop(&mut self) {
        for to in 0..self.0.inboxes.len() {
            self.0.inbox(to).ended[self.1] = true;
            self.0.inboxes[to].1.notify_all();
        }
    }
}

/// Runs `work` on `ranks` threads, which are the ranks of a [`World`]. Returns the result of each rank; that of a rank
/// that panics is [`Error::RankLost`] with the words of the panic. A rank may be silent as long as it works: the others
/// notice its end.
pub fn threads<R: Send>(ranks: usize, work: impl Fn(World) -> R + Sync) -> Vec<Result<R, Error>> {
    threads_of(None, ranks, work)
}

/// [`threads`], where a rank counts as lost after a silence of `patience`.
pub fn threads_within<R: Send>(
    patience: Duration,
    ranks: usize,
    work: impl Fn(World) -> R + Sync,
) -> Vec<Result<R, Error>> {
    threads_of(Some(patience), ranks, work)
}

/// One [`World`] per rank, for a caller with its own threads. Use each on a thread of its own. A rank counts as running
/// until all are dropped.
pub fn worlds(ranks: usize) -> Vec<World> {
    let board = Board::new(ranks, None);
    (0..ranks).map(|rank| World::new(Arc::new(Thread { rank, board: board.clone() }))).collect()
}

fn threads_of<R: Send>(
    patience: Option<Duration>,
    ranks: usize,
    work: impl Fn(World) -> R + Sync,
) -> Vec<Result<R, Error>> {
    let (board, work) = (Board::new(ranks, patience), &work);
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let board = board.clone();
            scope.spawn(move || {
                let _ending = Ending(board.clone(), rank);
                let world = World::new(Arc::new(Thread { rank, board }));
                catch_unwind(AssertUnwindSafe(|| work(world)))
            })
        };
        let started: Vec<_> = (0..ranks).map(start).collect();
        let joined = started.into_iter().enumerate().map(|(rank, thread)| {
            let words = match thread.join() {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(words)) | Err(words) => words,
            };
            let text = words.downcast_ref::<String>().map(String::as_str);
            let text = text.or(words.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            Err(Error::RankLost { rank, reason: text.to_string() })
        });
        joined.collect()
    })
}
