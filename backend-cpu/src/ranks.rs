//! What stages ask of other ranks ([`fmm_traits::shared`]). On one machine there is nothing to ask.

use fmm_traits::{Edges, Error, Exchange, Lists, NumbersMut, Real, Shared, Tree};
use std::any::Any;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// How this rank reaches the others.
pub fn exchange(tree: &Tree) -> Option<&dyn Exchange> {
    tree.shared.as_ref()?.exchange.as_deref()
}

/// Whether this rank sends multipoles to others, or gets some.
pub fn active(tree: &Tree) -> bool {
    exchange(tree).is_some_and(|exchange| exchange.active())
}

/// Replaces each number by the largest on any rank.
pub fn largest(tree: &Tree, numbers: &mut [f64]) -> Result<(), Error> {
    exchange(tree).map_or(Ok(()), |exchange| exchange.messages().largest(numbers))
}

/// Sends `strengths` (component by component, in tree order) to the ranks on which the sources are ghosts.
pub fn lend(tree: &Tree, strengths: &[Vec<f64>]) -> Result<(), Error> {
    exchange(tree).map_or(Ok(()), |exchange| exchange.lend(strengths))
}

/// Sets the strengths of `ghosts`, which are the sources before and after the own ones.
pub fn put(shared: Option<&Shared>, ghosts: &[Vec<f64>], strengths: &mut [Vec<f64>]) {
    let first = shared.map_or(0, |shared| shared.first);
    for (to, ghosts) in strengths.iter_mut().zip(ghosts) {
        let (before, after) = ghosts.split_at(first);
        let end = to.len() - after.len();
        to[..first].copy_from_slice(before);
        to[end..].copy_from_slice(after);
    }
}

/// Whether the near field of a leaf is summed while this rank waits for others: it needs no source of theirs.
pub fn early(tree: &Tree, lists: &Lists, leaf: usize) -> bool {
    let own = || lists.p2p.row(leaf).iter().all(|&b| tree.gives(b as usize));
    exchange(tree).is_some_and(|exchange| exchange.waits()) && own()
}

/// Gets and returns `messages` on a thread of their own, while `work` runs on this one and its pool. Once they have
/// failed, the function that `work` gets says no: it should end. Returns also the seconds of `work`. If this rank waits
/// for no other one, there is nothing to do meanwhile, and `work` does not run.
pub fn beside<R: Send>(
    exchange: &dyn Exchange,
    messages: impl FnOnce() -> Result<R, Error> + Send,
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)),
) -> Result<(R, f64), Error> {
    if !exchange.waits() {
        return Ok((messages()?, 0.0));
    }
    let failed = AtomicBool::new(false);
    let talk = || messages().inspect_err(|_| failed.store(true, Ordering::Relaxed));
    thread::scope(|scope| {
        let talking = thread::Builder::new().name("exchange".to_string()).spawn_scoped(scope, talk);
        let talking = talking.map_err(|e| Error::Threads { threads: 1, reason: e.to_string() })?;
        let start = Instant::now();
        work(&|| !failed.load(Ordering::Relaxed));
        let seconds = start.elapsed().as_secs_f64();
        Ok((talking.join().unwrap_or_else(|panic| resume_unwind(panic))?, seconds))
    })
}

/// Completes `width` numbers for each box.
pub fn complete<T: Real>(tree: &Tree, rows: &mut Vec<T>, width: usize) -> Result<(), Error> {
    exchange(tree).map_or(Ok(()), |exchange| complete_by(exchange, rows, width))
}

/// Completes `width` numbers for each box by an `exchange`.
#[allow(clippy::ptr_arg, reason = "a slice has no `Any`")]
pub fn complete_by<T: Real>(exchange: &dyn Exchange, rows: &mut Vec<T>, width: usize) -> Result<(), Error> {
    let rows: &mut dyn Any = rows;
    if let Some(rows) = rows.downcast_mut::<Vec<f32>>() {
        return exchange.complete(NumbersMut::F32(rows), width);
    }
    match rows.downcast_mut::<Vec<f64>>() {
        Some(rows) => exchange.complete(NumbersMut::F64(rows), width),
        None => Err(Error::Unsupported { operation: "an exchange", reason: "numbers are f32 or f64".to_string() }),
    }
}

/// The M2M edges that follow the exchange, if there are any.
pub fn after(tree: &Tree) -> Option<&Edges> {
    exchange(tree).map(|exchange| exchange.after()).filter(|edges| !edges.is_empty())
}

/// Levels on which edges of `after` end, the deepest first.
pub fn levels_of(tree: &Tree, after: &Edges) -> impl Iterator<Item = usize> {
    (0..tree.levels()).rev().filter(move |&level| {
        let boxes = tree.level(level);
        after.starts[boxes.start] < after.starts[boxes.end]
    })
}
