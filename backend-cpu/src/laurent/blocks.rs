//! Independent blocks on all threads, watched by the calling thread.

use fmm_traits::{Error, Progress};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` once for each of `blocks`, on as many threads as the current rayon pool has. Each thread has scratch of
/// its own. The calling thread is one of them, and tells `progress` after each of its blocks how many are done. Once
/// that fails, no thread begins another block.
pub(super) fn each_block<S: Default>(
    blocks: Range<usize>,
    work: impl Fn(&mut S, usize) + Sync,
    progress: &mut Progress,
) -> Result<(), Error> {
    let (next, done) = (AtomicUsize::new(blocks.start), AtomicUsize::new(0));
    let (end, count) = (blocks.end, blocks.len().max(1) as f64);
    let take = |scratch: &mut S| {
        let block = next.fetch_add(1, Ordering::Relaxed);
        if block < end {
            work(scratch, block);
            done.fetch_add(1, Ordering::Relaxed);
        }
        block < end
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..rayon::current_num_threads().min(blocks.len()) {
            scope.spawn(|_| {
                let mut scratch = S::default();
                while take(&mut scratch) {}
            });
        }
        let mut scratch = S::default();
        while take(&mut scratch) {
            if let Err(stopped) = progress.done(done.load(Ordering::Relaxed) as f64 / count) {
                next.store(end, Ordering::Relaxed);
                return Err(stopped);
            }
        }
        Ok(())
    })
}
