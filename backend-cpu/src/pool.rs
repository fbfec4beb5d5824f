//! Scratch memory that outlives the tasks of a stage: one slot a thread.

use std::sync::{Mutex, PoisonError};

/// One `S` per thread of the rayon pool.
pub struct Pool<S>(Vec<Mutex<S>>);

impl<S> Pool<S> {
    /// A slot for each thread of the current rayon pool.
    pub fn new(make: impl Fn() -> S) -> Self {
        Pool((0..rayon::current_num_threads().max(1)).map(|_| Mutex::new(make())).collect())
    }

    /// The sum of `bytes` over the slots.
    pub fn bytes(&self, bytes: impl Fn(&S) -> u64) -> u64 {
        self.0.iter().map(|slot| bytes(&slot.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    /// Runs `f` with the slot of this thread. `f` must not start parallel work: a thread that waits
    /// may pick up a task that wants the same slot.
    pub fn with<R>(&self, f: impl FnOnce(&mut S) -> R) -> R {
        let i = rayon::current_thread_index().unwrap_or(0) % self.0.len();
        f(&mut self.0[i].lock().unwrap_or_else(PoisonError::into_inner))
    }
}
