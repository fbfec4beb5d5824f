//! Ranks that are processes, over MPI (Open MPI, MPICH, or another one with `mpicc`).
//!
//! ```no_run
//! # struct Plan;
//! fn main() -> Result<(), fmm_traits::Error> {
//!     fmm_mpi::run(|world| {
//!         // Fmm::new(Laplace).ranks(&world).plan(&my_points, Targets::Sources)?
//!         world.together(|| world.all_gather(world.rank()))?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! [`run`] starts MPI and ends it. [`from_handle`] makes ranks of a communicator that exists, such as one of mpi4py. The
//! order of reading: `calls` (calls of MPI one at a time, with their errors; the C functions are in `calls.c`), `comm` (the
//! transport).

mod calls;
mod comm;

use comm::{End, Mpi};
use fmm_dist::World;
use fmm_traits::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// Seconds of silence after which a rank counts as lost, unless `FMM_RANK_TIMEOUT` says otherwise.
const PATIENCE: f64 = 300.0;
/// Exit status of the job if a rank panics.
const PANICKED: i32 = 101;
/// Exit status of the job if a rank is lost.
const LOST: i32 = 1;

/// Bytes of the messages of MPI into which long messages are cut, unless others are asked for. A rank that waits asks MPI
/// less and less often until a message has come. MPI moves a message a bit at each question, so the messages of a long one
/// must come at short intervals.
const USUAL_CUT: usize = 1 << 20;

/// How ranks talk. All ranks have the same settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Silence after which a rank counts as lost, while another one waits for it; `None`: never.
    pub patience: Option<Duration>,
    /// Bytes of the largest message of MPI; longer ones are cut. At most 2³¹ − 1.
    pub cut: usize,
}

impl Settings {
    /// The patience in seconds from the variable `FMM_RANK_TIMEOUT`, 0 for no limit, and messages of up to 2²⁰ bytes.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the variable is not a number of seconds.
    pub fn usual() -> Result<Self, Error> {
        let seconds = match std::env::var("FMM_RANK_TIMEOUT") {
            Ok(text) => text.trim().parse().unwrap_or(f64::NAN),
            Err(_) => PATIENCE,
        };
        let Ok(patience) = Duration::try_from_secs_f64(seconds) else {
            let requirement = "must be a number of seconds, at least 0";
            return Err(Error::Parameter { name: "FMM_RANK_TIMEOUT", value: seconds, requirement });
        };
        Ok(Settings { patience: Some(patience).filter(|p| !p.is_zero()), cut: USUAL_CUT })
    }
}

/// Whether a launcher of MPI (`mpirun`, `srun`) started this process.
pub fn launched() -> bool {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"];
    names.iter().any(|name| std::env::var_os(name).is_some())
}

/// Starts MPI, runs `work` with the ranks of the job, and ends MPI when all ranks have ended. A program calls it once.
///
/// - If `work` returns early, or an error, on one rank, ranks that wait for it get [`Error::RankLost`] with the text of
///   the error. If `work` fails on any rank, `run` fails on all.
/// - If a rank panics, the whole job ends, with exit status 101.
/// - If a rank is silent for too long while others wait for it ([`Settings::patience`]), they get [`Error::RankLost`]. When
///   `work` has returned, the whole job ends, with exit status 1.
///
/// # Errors
/// The error of `work`. [`Error::RankLost`] if `work` is well here and failed on another rank. [`Error::Unsupported`] if
/// MPI refuses, and if it does not let any thread make calls (`MPI_THREAD_SERIALIZED`): sums run on many threads.
pub fn run<R, E: From<Error> + Display>(work: impl FnOnce(World) -> Result<R, E>) -> Result<R, E> {
    run_with(Settings::usual()?, work, |_| {})
}

/// [`run`] with settings of one's own. `last` sees the result of all ranks before MPI ends. A launcher ends the job as soon
/// as one process has failed, so a rank that says why must say it in `last`. If MPI does not begin, `last` is not called;
/// if MPI does not end, its error comes later.
///
/// # Errors
/// As [`run`].
pub fn run_with<R, E: From<Error> + Display>(
    settings: Settings,
    work: impl FnOnce(World) -> Result<R, E>,
    last: impl FnOnce(&Result<R, E>),
) -> Result<R, E> {
    calls::start()?;
    // SAFETY: the handle of all ranks, from MPI itself.
    let comm = unsafe { placed(calls::world(), settings) };
    let result = match &comm {
        Err(e) => Err(e.clone().into()),
        Ok(comm) => ended(comm, guarded(comm, work)),
    };
    drop(comm);
    last(&result);
    calls::finish()?;
    result
}

/// Runs `work`; a panic ends the job. (Without it, the end of MPI in the panicking rank waits for the others for ever.)
fn guarded<R>(comm: &Arc<Mpi>, work: impl FnOnce(World) -> R) -> R {
    let before: Arc<dyn Fn(&std::panic::PanicHookInfo) + Send + Sync> = Arc::from(std::panic::take_hook());
    let usual = before.clone();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        calls::abort(PANICKED);
    }));
    let result = work(World::new(comm.clone()));
    std::panic::set_hook(Box::new(move |info| before(info)));
    result
}

/// Waits for the end of all ranks. An error of one is an error of all.
fn ended<R, E: From<Error> + Display>(comm: &Mpi, result: Result<R, E>) -> Result<R, E> {
    let text = result.as_ref().err().map(ToString::to_string);
    let ends = match comm.end(text.as_deref()) {
        Ok(ends) => ends,
        Err(lost) => {
            // The lost rank does not end, so neither would this one. The process is over: its last words go to the terminal.
            eprintln!("{}", text.unwrap_or_else(|| lost.to_string()));
            calls::abort(LOST);
            return Err(lost.into());
        }
    };
    let failed = ends.into_iter().enumerate().find_map(|(rank, end)| match end {
        Some(End::Failed(text)) => Some((rank, text)),
        _ => None,
    });
    match failed {
        Some((rank, text)) if result.is_ok() => {
            Err(Error::RankLost { rank, reason: format!("it ended with an error: {text}") }.into())
        }
        _ => result,
    }
}

/// The ranks of a communicator that exists, which is copied: `handle` is its Fortran handle, an integer with every MPI
/// (`MPI_Comm_c2f`; `comm.py2f()` of mpi4py). All its ranks call this together. MPI must end after the world and all
/// plans on it are dropped. When a rank drops its world, ranks that wait for it get [`Error::RankLost`]. Make one world for
/// a communicator and keep it: the copy is not given back, because MPI gives communicators back together, and ranks drop
/// their worlds one by one. Nothing here ends the job if a rank panics.
///
/// # Errors
/// [`Error::Unsupported`] if MPI does not run, lacks `MPI_THREAD_SERIALIZED`, or refuses.
///
/// # Safety
/// `handle` is the handle of a communicator of the MPI with which this crate was built.
pub unsafe fn from_handle(handle: i32, settings: Settings) -> Result<World, Error> {
    // SAFETY: the caller's.
    Ok(World::new(unsafe { placed(handle, settings) }?))
}

/// The transport of a communicator.
///
/// # Safety
/// `handle` is the Fortran handle of a communicator.
unsafe fn placed(handle: i32, settings: Settings) -> Result<Arc<Mpi>, Error> {
    if !calls::runs() {
        return Err(calls::refused("ranks over MPI", "MPI does not run"));
    }
    if !calls::serialized() {
        let reason = "this MPI lets one thread alone make calls (below MPI_THREAD_SERIALIZED), and sums run on many";
        return Err(calls::refused("ranks over MPI", reason));
    }
    if settings.cut == 0 || i32::try_from(settings.cut).is_err() {
        let (value, requirement) = (settings.cut as f64, "must be 1 to 2³¹ − 1 bytes");
        return Err(Error::Parameter { name: "cut", value, requirement });
    }
    // SAFETY: the caller's.
    Ok(Arc::new(unsafe { Mpi::new(handle, settings) }?))
}

/// The Fortran handle of all ranks of the job (`MPI_COMM_WORLD`).
///
/// # Errors
/// [`Error::Unsupported`] if MPI does not run.
pub fn all_ranks() -> Result<i32, Error> {
    if calls::runs() { Ok(calls::world()) } else { Err(calls::refused("the handle of all ranks", "MPI does not run")) }
}

/// The number of ranks on the host of this rank. All ranks call it together.
///
/// # Errors
/// Those of other ranks, and [`Error::Unsupported`] if MPI does not know the name of the host.
pub fn on_this_host(world: &World) -> Result<usize, Error> {
    let (name, all) = world.together(|| {
        let name = calls::host()?;
        Ok((name.clone(), world.all_gather(name)?))
    })?;
    Ok(all.iter().filter(|other| **other == name).count())
}
