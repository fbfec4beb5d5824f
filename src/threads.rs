//! The thread pool of a plan.

use fmm_traits::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The thread pool in which a plan works. A dropped pool is kept for the next plan of the process, because to start sixteen
/// threads takes about half a millisecond, and a plan on a GPU not many more.
#[derive(Debug)]
pub(crate) struct Threads(Option<ThreadPool>);

/// A pool that no plan uses.
struct Idle {
    pool: ThreadPool,
    /// The process whose threads they are. A process that was forked off does not have them.
    process: u32,
}

static IDLE: Mutex<Option<Idle>> = Mutex::new(None);

/// The idle pool. A poisoned lock is fine: pools are moved whole.
fn idle() -> MutexGuard<'static, Option<Idle>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// A pool of so many threads: the idle one, or a new one.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system has no more threads.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let here = std::process::id();
        let serves = |idle: &mut Idle| idle.process != here || idle.pool.current_num_threads() == threads;
        let taken = idle().take_if(serves);
        match taken {
            Some(Idle { pool, process }) if process == here => return Ok(Threads(Some(pool))),
            // To drop it would wake its threads.
            Some(Idle { pool, .. }) => std::mem::forget(pool),
            None => {}
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        pool.map(|pool| Threads(Some(pool))).map_err(|e| Error::Threads { threads, reason: e.to_string() })
    }
}

impl Deref for Threads {
    type Target = ThreadPool;
    fn deref(&self) -> &ThreadPool {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let process = std::process::id();
        let before = self.0.take().and_then(|pool| idle().replace(Idle { pool, process }));
        // Its threads are told to end without the lock.
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of the process drop their pools, too. So this one has a number of threads of its own.
    #[test]
    fn a_dropped_pool_serves_again() {
        const THREADS: usize = 5;
        let names = |threads: &Threads| threads.broadcast(|_| std::thread::current().id());
        let served = |_| {
            let first = Threads::new(THREADS).unwrap();
            let (before, one) = (names(&first), Threads::new(1).unwrap());
            assert_eq!((before.len(), one.current_num_threads()), (THREADS, 1));
            drop(one);
            drop(first);
            names(&Threads::new(THREADS).unwrap()) == before
        };
        assert!((0..100).any(served));
    }
}
