//! Work that Ctrl-C and a progress callback of the caller can end.

use crate::errors::{cause, raised, said};
use fmm::{Error, Progress};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the main thread waits before it looks for signals again.
const POLL: Duration = Duration::from_millis(50);

/// What ends the work of a plan, shared with the callback of the library.
#[derive(Clone, Default)]
pub struct Watch(Arc<State>);

#[derive(Default)]
struct State {
    /// Whether a signal asked the work that runs now to end.
    cancelled: AtomicBool,
    /// The callback of the caller.
    callback: Option<Py<PyAny>>,
    /// An exception of the callback.
    failed: Mutex<Option<PyErr>>,
    /// Whether the callback runs.
    inside: AtomicBool,
}

impl Watch {
    pub fn new(callback: Option<Py<PyAny>>) -> Self {
        Watch(Arc::new(State { callback, ..State::default() }))
    }

    /// Whether the work goes on. Called before each phase.
    pub fn goes_on(&self, p: Progress) -> bool {
        if self.0.cancelled.load(Ordering::Relaxed) {
            return false;
        }
        let Some(callback) = &self.0.callback else { return true };
        Python::attach(|py| {
            self.0.inside.store(true, Ordering::Relaxed);
            let answer = callback.call1(py, (p.phase, p.fraction));
            self.0.inside.store(false, Ordering::Relaxed);
            match answer.and_then(|answer| Ok(answer.is_none(py) || answer.is_truthy(py)?)) {
                Ok(goes_on) => goes_on,
                Err(e) => {
                    *self.0.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    false
                }
            }
        })
    }

    /// Runs `work` without the lock of the interpreter. `long` work runs in a thread of its own, while this thread looks
    /// for signals. A panic becomes a `RuntimeError`.
    pub fn run<T: Send>(
        &self,
        py: Python<'_>,
        long: bool,
        work: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let state = &self.0;
        if state.inside.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err("a progress callback cannot use its own plan"));
        }
        let caught = || catch_unwind(AssertUnwindSafe(work));
        let mut interrupted = None;
        let done = if long {
            py.detach(|| {
                std::thread::scope(|scope| {
                    let (sender, receiver) = sync_channel(1);
                    // The receiver outlives the thread, so the message always arrives.
                    scope.spawn(move || drop(sender.send(caught())));
                    loop {
                        match receiver.recv_timeout(POLL) {
                            Ok(done) => break done,
                            Err(RecvTimeoutError::Disconnected) => {
                                break Err(Box::new("no result") as Box<dyn Any + Send>);
                            }
                            Err(RecvTimeoutError::Timeout) => {
                                if let Err(e) = Python::attach(|py| py.check_signals()) {
                                    state.cancelled.store(true, Ordering::Relaxed);
                                    interrupted = Some(e);
                                }
                            }
                        }
                    }
                })
            })
        } else {
            py.detach(caught)
        };
        // Work of another thread may run at the same time; the signal was for the main thread alone.
        if interrupted.is_some() {
            state.cancelled.store(false, Ordering::Relaxed);
        }
        let failed = state.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cancelled = matches!(&done, Ok(Err(e)) if matches!(cause(e), Error::Cancelled { .. }));
        match (done, failed, interrupted) {
            (_, _, Some(e)) => Err(e),
            (_, Some(e), None) if cancelled => Err(e),
            (Ok(done), ..) => done.map_err(raised),
            (Err(panic), ..) => Err(PyRuntimeError::new_err(format!("internal error: {}", said(&*panic)))),
        }
    }
}
