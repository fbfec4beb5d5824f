//! The command `fmm`: sums from files or demos, a look at the machine, a sweep with a plot.

mod args;
mod bench;
mod calibrate;
mod check;
mod compare;
mod doctor;
mod evaluate;
mod failure;
mod input;
mod kernel;
#[cfg(feature = "mpi")]
mod mpi;
mod npy;
mod npz;
mod page;
mod ranks;
mod report;
mod run;
mod save;
mod simulate;
mod tree;

use args::{Cli, Command};
use clap::{Parser, error::ErrorKind};
use failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;

/// Connections of the command to a GPU.
const CONNECTIONS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "2");

fn main() -> ExitCode {
    // A sum uses two streams of a GPU. Each further connection makes opening and leaving the GPU take longer
    // (docs/notes/gpu-performance.md).
    if std::env::var_os(CONNECTIONS.0).is_none() {
        // SAFETY: no other thread has begun.
        unsafe { std::env::set_var(CONNECTIONS.0, CONNECTIONS.1) };
    }
    let result = match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Run(args) => run::run(&args),
            Command::Doctor => doctor::doctor(),
            Command::Bench(args) => bench::bench(&args),
            Command::Compare(args) => compare::compare(&args),
            Command::Calibrate(args) => calibrate::calibrate(&args),
            Command::Ranks(args) => simulate::ranks(&args),
            Command::Tree(args) => tree::tree(&args),
            Command::Kernel(command) => check::kernel(&command),
        },
        Err(e) if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            print(&e.render().to_string())
        }
        Err(e) => Err(Failure::Usage(e.to_string())),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    if let Failure::Closed = failure {
        // Not an error.
        return ExitCode::SUCCESS;
    }
    failure.say();
    ExitCode::from(if let Failure::Usage(_) = failure { 2 } else { 1 })
}

/// Writes to standard output; a closed pipe is [`Failure::Closed`].
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Closed),
        Err(e) => Err(Failure::file("standard output", e)),
        Ok(()) => Ok(()),
    }
}
