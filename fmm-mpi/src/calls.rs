//! Calls of MPI, one at a time, with their errors.

use fmm_traits::Error;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// `MPI_THREAD_SERIALIZED`: calls of different threads must not overlap.
static TURN: Mutex<()> = Mutex::new(());

/// Bytes for the text of an error or the name of a host.
const TEXT: usize = 512;

unsafe extern "C" {
    fn fmm_mpi_expected() -> c_int;
    fn fmm_mpi_runs() -> c_int;
    fn fmm_mpi_start() -> c_int;
    fn fmm_mpi_serialized() -> c_int;
    fn fmm_mpi_finish() -> c_int;
    fn fmm_mpi_abort(code: c_int);
    fn fmm_mpi_world() -> c_int;
    fn fmm_mpi_duplicate(comm: c_int, own: *mut c_int, rank: *mut c_int, size: *mut c_int) -> c_int;
    fn fmm_mpi_send(comm: c_int, bytes: *const c_void, n: c_int, to: c_int, tag: c_int, request: *mut u64) -> c_int;
    fn fmm_mpi_receive(comm: c_int, bytes: *mut c_void, n: c_int, from: c_int, tag: c_int, request: *mut u64) -> c_int;
    fn fmm_mpi_test(request: *mut u64, done: *mut c_int) -> c_int;
    fn fmm_mpi_probe(comm: c_int, from: c_int, tag: c_int, there: *mut c_int, count: *mut c_int) -> c_int;
    fn fmm_mpi_host(text: *mut c_char, size: c_int) -> c_int;
    fn fmm_mpi_text(code: c_int, text: *mut c_char, size: c_int);
}

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of MPI that no code describes.
pub fn refused(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Unsupported { operation, reason: reason.into() }
}

/// The text that C wrote.
fn text(bytes: &[u8; TEXT]) -> String {
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// An error if a call returned a code other than 0. The caller has the [`turn`].
fn checked(operation: &'static str, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    let mut words = [0u8; TEXT];
    // SAFETY: `words` has TEXT bytes.
    unsafe { fmm_mpi_text(code, words.as_mut_ptr().cast(), TEXT as c_int) };
    Err(refused(operation, text(&words)))
}

/// Whether MPI was started and has not ended.
pub fn runs() -> bool {
    let _turn = turn();
    // SAFETY: MPI allows this question at any time.
    unsafe { fmm_mpi_runs() != 0 }
}

/// Starts MPI.
pub fn start() -> Result<(), Error> {
    if runs() {
        return Err(refused("MPI_Init_thread", "MPI runs already: use from_handle"));
    }
    let _turn = turn();
    // SAFETY: MPI allows this question at any time.
    if unsafe { fmm_mpi_expected() } == 0 {
        return Err(refused("MPI_Init_thread", "the library of another MPI than that of the header answers"));
    }
    // SAFETY: MPI does not run.
    checked("MPI_Init_thread", unsafe { fmm_mpi_start() })
}

/// Whether any thread may make calls, one at a time. MPI runs.
pub fn serialized() -> bool {
    let _turn = turn();
    // SAFETY: MPI runs.
    unsafe { fmm_mpi_serialized() != 0 }
}

/// Ends MPI, which runs.
pub fn finish() -> Result<(), Error> {
    let _turn = turn();
    // SAFETY: MPI runs.
    checked("MPI_Finalize", unsafe { fmm_mpi_finish() })
}

/// Ends all ranks of the job. Returns only if MPI does not run.
pub fn abort(code: i32) {
    // The thread that has the turn may be the one that panicked, or wait for ever.
    for _ in 0..100 {
        match TURN.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            _ => break,
        }
    }
    // SAFETY: both calls take plain numbers. MPI does not answer for a call beside another one, but this one ends the
    // process.
    unsafe {
        if fmm_mpi_runs() != 0 {
            fmm_mpi_abort(code);
        }
    }
}

/// The handle of all ranks of the job. MPI runs.
pub fn world() -> i32 {
    let _turn = turn();
    // SAFETY: MPI runs.
    unsafe { fmm_mpi_world() }
}

/// A new communicator of the same ranks, its rank and its size. All ranks call it together.
///
/// # Safety
/// `comm` is the Fortran handle of a communicator.
pub unsafe fn duplicate(comm: i32) -> Result<(i32, usize, usize), Error> {
    let _turn = turn();
    let (mut own, mut rank, mut size) = (0, 0, 0);
    // SAFETY: the caller gives a handle, and the rest are three integers.
    checked("MPI_Comm_dup", unsafe { fmm_mpi_duplicate(comm, &mut own, &mut rank, &mut size) })?;
    Ok((own, rank as usize, size as usize))
}

/// The name of this host. MPI runs.
pub fn host() -> Result<String, Error> {
    let _turn = turn();
    let mut name = [0u8; TEXT];
    // SAFETY: `name` has TEXT bytes.
    checked("MPI_Get_processor_name", unsafe { fmm_mpi_host(name.as_mut_ptr().cast(), TEXT as c_int) })?;
    Ok(text(&name))
}

/// Bytes on their way to or from a rank, in messages of at most `cut` bytes. The memory of `bytes` is MPI's until
/// [`done`](Self::done), and leaks if dropped before.
pub struct Transfer {
    bytes: Arc<Vec<u8>>,
    requests: VecDeque<u64>,
}

impl Transfer {
    /// Sends bytes, which may go to several ranks, without waiting. `comm` is a communicator of [`duplicate`].
    pub fn send(comm: i32, bytes: Arc<Vec<u8>>, to: usize, tag: i32, cut: usize) -> Result<Self, Error> {
        let mut transfer = Transfer { bytes, requests: VecDeque::new() };
        let _turn = turn();
        for start in (0..transfer.bytes.len()).step_by(cut) {
            let part = &transfer.bytes[start..transfer.bytes.len().min(start + cut)];
            let (mut request, address) = (0, part.as_ptr().cast());
            // SAFETY: `part` stays where it is, unchanged, until the request is done, because `transfer` has a share of it,
            // which leaks otherwise.
            let code = unsafe { fmm_mpi_send(comm, address, part.len() as c_int, to as c_int, tag, &mut request) };
            checked("MPI_Isend", code)?;
            transfer.requests.push_back(request);
        }
        Ok(transfer)
    }

    /// Receives `length` bytes that come in messages of `cut` bytes, without waiting.
    pub fn receive(comm: i32, length: usize, from: usize, tag: i32, cut: usize) -> Result<Self, Error> {
        let mut bytes = vec![0u8; length];
        let address = bytes.as_mut_ptr();
        let mut transfer = Transfer { bytes: Arc::new(bytes), requests: VecDeque::new() };
        let _turn = turn();
        for start in (0..length).step_by(cut) {
            let count = cut.min(length - start);
            let mut request = 0;
            // SAFETY: the `count` bytes from `start` are in `bytes`, which nobody touches until the request is done, and
            // which leaks otherwise.
            let code = unsafe {
                let part = address.add(start).cast();
                fmm_mpi_receive(comm, part, count as c_int, from as c_int, tag, &mut request)
            };
            checked("MPI_Irecv", code)?;
            transfer.requests.push_back(request);
        }
        Ok(transfer)
    }

    /// Number of messages that are not done. MPI makes progress.
    pub fn rest(&mut self) -> Result<usize, Error> {
        let _turn = turn();
        // Messages of one sender arrive in their order.
        while let Some(request) = self.requests.front_mut() {
            let mut done = 0;
            // SAFETY: the request was made above and is not done yet.
            checked("MPI_Test", unsafe { fmm_mpi_test(request, &mut done) })?;
            if done == 0 {
                break;
            }
            self.requests.pop_front();
        }
        Ok(self.requests.len())
    }

    /// The bytes, if all messages are done.
    pub fn done(mut self) -> Option<Vec<u8>> {
        self.requests.is_empty().then(|| Arc::unwrap_or_clone(std::mem::take(&mut self.bytes)))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// The bytes of the next message of a rank, if it is there. `comm` is a communicator of [`duplicate`].
pub fn probe(comm: i32, from: usize, tag: i32) -> Result<Option<usize>, Error> {
    let _turn = turn();
    let (mut there, mut count) = (0, 0);
    // SAFETY: the arguments are two integers to write to.
    checked("MPI_Iprobe", unsafe { fmm_mpi_probe(comm, from as c_int, tag, &mut there, &mut count) })?;
    Ok((there != 0).then_some(count as usize))
}
