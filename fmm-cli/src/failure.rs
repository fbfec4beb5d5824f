//! The reason why the command stops: always one line.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// A reason to stop.
#[derive(Debug)]
pub enum Failure {
    /// Wrong options. The text comes from clap; its lines before "Usage" are shown as one.
    Usage(String),
    /// Input that makes no sense, in the command's own words.
    Input(String),
    /// An error of the library.
    Library(fmm::Error),
    /// Standard output was closed.
    Closed,
    /// A rank has said why.
    #[cfg(feature = "mpi")]
    Said,
}

impl Failure {
    /// A file that could not be read or written.
    pub fn file(path: impl AsRef<Path>, reason: impl ToString) -> Self {
        let path = path.as_ref().display().to_string();
        Failure::Library(fmm::Error::Io { path, reason: reason.to_string() })
    }

    /// Writes the line to standard error, unless nobody is to be told.
    pub fn say(&self) {
        match self {
            Failure::Closed => {}
            #[cfg(feature = "mpi")]
            Failure::Said => {}
            // One write, because other processes may write to the same place.
            _ => drop(io::stderr().write_all(format!("{self}\n").as_bytes())),
        }
    }
}

impl From<fmm::Error> for Failure {
    fn from(e: fmm::Error) -> Self {
        Failure::Library(e)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Failure::Usage(text) => {
                // Clap lists missing arguments on separate lines.
                let lines: Vec<&str> = text.lines().take_while(|l| !l.starts_with("Usage")).collect();
                lines.join(" ").trim_start_matches("error: ").to_string()
            }
            Failure::Input(text) => text.clone(),
            Failure::Library(e) => e.to_string(),
            Failure::Closed => "standard output is closed".to_string(),
            #[cfg(feature = "mpi")]
            Failure::Said => "a rank has said why".to_string(),
        };
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "error: {line}")
    }
}
