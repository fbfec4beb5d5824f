//! What every application of a plan begins and ends with: the shapes of what comes in, and a workspace of its own.

use fmm_traits::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Workspaces of applications that run at the same time; those that are free wait for the next.
#[derive(Debug, Default)]
pub struct Workspaces<W>(Mutex<Vec<W>>);

impl<W: Default> Workspaces<W> {
    fn free(&self) -> MutexGuard<'_, Vec<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// One that is free, or a new one.
    pub fn take(&self) -> W {
        self.free().pop().unwrap_or_default()
    }
    /// Gives one back.
    pub fn put(&self, workspace: W) {
        self.free().push(workspace);
    }
    /// The sum of `bytes` over those that are free.
    pub fn bytes(&self, bytes: impl Fn(&W) -> u64) -> u64 {
        self.free().iter().map(bytes).sum()
    }
}

/// Refuses strengths and output of other lengths than expected.
pub(crate) fn check_shapes(strengths: [usize; 2], out: [usize; 2]) -> Result<(), Error> {
    let check = |array, [found, expected]: [usize; 2], why: &str| match found == expected {
        true => Ok(()),
        false => Err(Error::Shape { array, found, expected, why: why.into() }),
    };
    check("strengths", strengths, "sources × strengths of the kernel")?;
    check("out", out, "targets × values of the kernel")
}
