//! The thread pool of a plan.

use fmm_traits::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The thread pool in which a plan works. A dropped pool is kept for the next plan of the process, because to start
/// sixteen threads takes half a millisecond. A first plan of few points on a GPU takes ten.
#[derive(Debug)]
pub(crate) struct Threads(Option<Pool>);

/// A thread pool, and the number of the process that started its threads. A process that is forked off gets a copy of the pool,
/// but none of the threads.
#[derive(Debug)]
struct Pool {
    pool: ThreadPool,
    process: u32,
}

impl Pool {
    /// Whether this process started the threads.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

/// A pool that no plan uses.
static IDLE: Mutex<Option<Pool>> = Mutex::new(None);

/// [`IDLE`], locked. A poisoned lock is fine: pools are moved whole.
fn idle() -> MutexGuard<'static, Option<Pool>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// A pool of `threads` threads: the idle one if it has as many, or a new one.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system has no more threads.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let taken = idle().take_if(|idle| !idle.is_here() || idle.pool.current_num_threads() == threads);
        match taken {
            Some(pool) if pool.is_here() => return Ok(Threads(Some(pool))),
            // To drop it would wake threads that this process does not have.
            Some(pool) => std::mem::forget(pool),
            None => {}
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| Error::Threads { threads, reason: e.to_string() })?;
        Ok(Threads(Some(Pool { pool, process: std::process::id() })))
    }
}

impl Deref for Threads {
    type Target = ThreadPool;
    fn deref(&self) -> &ThreadPool {
        &self.0.as_ref().expect("it is there until the drop").pool
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let before = match self.0.take() {
            Some(pool) if pool.is_here() => idle().replace(pool),
            pool => {
                std::mem::forget(pool);
                None
            }
        };
        // Dropped without the lock, a pool tells its threads to end.
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

    /// After a fork, work in a pool of the parent would wait for ever.
    #[test]
    fn a_pool_of_another_process_is_not_taken() {
        const THREADS: usize = 6;
        let of_another = || {
            let mut threads = Threads::new(THREADS).unwrap();
            threads.0.as_mut().unwrap().process ^= 1;
            threads
        };
        drop(of_another());
        assert!(idle().as_ref().is_none_or(Pool::is_here));
        let other = of_another().0.take();
        *idle() = other;
        assert_eq!(Threads::new(THREADS).unwrap().broadcast(|_| ()).len(), THREADS);
    }
}
