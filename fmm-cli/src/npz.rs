//! Writes results to a `.npz` file, or one array to a `.npy` file, whole or not at all.

use crate::failure::Failure;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use zip::{CompressionMethod, ZipWriter, write::FileOptions};

/// An output file that appears under its name only when finished. If it is dropped before, it is removed.
pub struct Pending {
    path: PathBuf,
    temporary: PathBuf,
    to: Option<To>,
    /// Whether this process gives the file its name.
    owner: bool,
}

/// An open file.
enum To {
    Npz(ZipWriter<BufWriter<File>>),
    /// Its rows from `first` on, of `total` rows; `None`: all rows.
    Npy(File, Option<Rows>),
}

/// Some rows of an array.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First row.
    pub first: usize,
    /// Rows of the whole array.
    pub total: usize,
}

/// Whether a file holds a single array.
pub fn holds_one(path: &Path) -> bool {
    ends_in(path, "npy")
}

fn ends_in(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

impl Pending {
    /// Makes a temporary file beside `path`, so that a place that cannot be written is known before the work starts.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        if path.exists() && !path.is_file() {
            // A folder or special file cannot be replaced.
            return Err(Failure::file(path, if path.is_dir() { "is a folder" } else { "is not a regular file" }));
        }
        if !ends_in(path, "npy") && !ends_in(path, "npz") {
            return Err(Failure::file(path, "ends neither in .npz nor in .npy"));
        }
        let name = path.file_name().ok_or_else(|| Failure::file(path, "is not a file name"))?;
        let temporary = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let file = File::create(&temporary).map_err(|e| Failure::file(path, e))?;
        let to = match holds_one(path) {
            true => To::Npy(file, None),
            false => To::Npz(ZipWriter::new(BufWriter::new(file))),
        };
        Ok(Pending { path: path.to_path_buf(), temporary, to: Some(to), owner: true })
    }

    /// The temporary file.
    #[cfg(feature = "mpi")]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// The `.npy` file whose temporary file another process has made.
    #[cfg(feature = "mpi")]
    pub fn of_another(path: &Path, temporary: &Path) -> Result<Self, Failure> {
        let file = File::options().write(true).open(temporary).map_err(|e| Failure::file(path, e))?;
        let (path, temporary) = (path.to_path_buf(), temporary.to_path_buf());
        Ok(Pending { path, temporary, to: Some(To::Npy(file, None)), owner: false })
    }

    /// Arrays that are added are rows of longer ones.
    #[cfg(feature = "mpi")]
    pub fn of_rows(mut self, some: Rows) -> Self {
        if let Some(To::Npy(_, rows)) = &mut self.to {
            *rows = Some(some);
        }
        self
    }

    /// Adds a row-major array of f64.
    pub fn add(&mut self, name: &str, shape: &[usize], values: &[f64]) -> Result<(), Failure> {
        self.write(name, "<f8", shape, values)
    }

    /// Adds a row-major array of complex numbers, given as alternating real and imaginary parts.
    pub fn add_complex(&mut self, name: &str, shape: &[usize], values: &[f64]) -> Result<(), Failure> {
        self.write(name, "<c16", shape, values)
    }

    /// Adds an array whose elements have the type `descr` and the numbers `values`.
    fn write(&mut self, name: &str, descr: &str, shape: &[usize], values: &[f64]) -> Result<(), Failure> {
        let put = |to: &mut dyn Write| {
            values.chunks(8192).try_for_each(|part| {
                let bytes: Vec<u8> = part.iter().flat_map(|x| x.to_le_bytes()).collect();
                to.write_all(&bytes)
            })
        };
        let written = match &mut self.to {
            None => Ok(()),
            Some(To::Npz(zip)) => {
                let options = FileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
                let started = zip.start_file(format!("{name}.npy"), options).map_err(std::io::Error::from);
                started.and_then(|()| zip.write_all(&header(descr, shape))).and_then(|()| put(zip))
            }
            Some(To::Npy(file, rows)) => {
                let Rows { first, total } = rows.unwrap_or(Rows { first: 0, total: shape[0] });
                let head = header(descr, &[&[total], &shape[1..]].concat());
                let row = (8 * values.len()).checked_div(shape[0]).unwrap_or(0);
                let at = SeekFrom::Start((head.len() + first * row) as u64);
                // Each process writes the same head.
                file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&head)).and_then(|()| file.seek(at)).and_then(
                    |_| {
                        let mut buffer = BufWriter::new(file);
                        put(&mut buffer).and_then(|()| buffer.flush())
                    },
                )
            }
        };
        written.map_err(|e| Failure::file(&self.path, e))
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let closed = match self.to.take() {
            Some(To::Npz(mut zip)) => zip.finish().map_err(std::io::Error::from).and_then(|mut buffer| buffer.flush()),
            Some(To::Npy(..)) | None => Ok(()),
        };
        let named = || if self.owner { std::fs::rename(&self.temporary, &self.path) } else { Ok(()) };
        closed.and_then(|()| named()).map_err(|e| Failure::file(&self.path, e))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After a rename no temporary file is left.
        if self.owner {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// The header of a `.npy` file of elements `descr` (format version 1), padded to 64 bytes.
fn header(descr: &str, shape: &[usize]) -> Vec<u8> {
    let entries: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", entries.trim_end());
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}
