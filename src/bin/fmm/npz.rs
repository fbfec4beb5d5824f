//! Writes results to a `.npz` file, whole or not at all.

use crate::failure::Failure;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use zip::{CompressionMethod, ZipWriter, write::FileOptions};

/// An output file that appears under its name only when finished. If it is dropped before, it is removed.
pub struct Pending {
    path: PathBuf,
    temporary: PathBuf,
    zip: Option<ZipWriter<BufWriter<File>>>,
}

impl Pending {
    /// Makes a temporary file beside `path`, so that a place that cannot be written is known before the work starts.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        if path.exists() && !path.is_file() {
            // A folder or special file cannot be replaced.
            return Err(Failure::file(path, if path.is_dir() { "is a folder" } else { "is not a regular file" }));
        }
        let name = path.file_name().ok_or_else(|| Failure::file(path, "is not a file name"))?;
        let temporary = path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
        let file = File::create(&temporary).map_err(|e| Failure::file(path, e))?;
        let zip = Some(ZipWriter::new(BufWriter::new(file)));
        Ok(Pending { path: path.to_path_buf(), temporary, zip })
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
        let Some(zip) = &mut self.zip else { return Ok(()) };
        let options = FileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
        zip.start_file(format!("{name}.npy"), options)
            .map_err(std::io::Error::from)
            .and_then(|()| zip.write_all(&header(descr, shape)))
            .and_then(|()| {
                values.chunks(8192).try_for_each(|part| {
                    let bytes: Vec<u8> = part.iter().flat_map(|x| x.to_le_bytes()).collect();
                    zip.write_all(&bytes)
                })
            })
            .map_err(|e| Failure::file(&self.path, e))
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let Some(mut zip) = self.zip.take() else { return Ok(()) };
        zip.finish()
            .map_err(std::io::Error::from)
            .and_then(|mut buffer| buffer.flush())
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|e| Failure::file(&self.path, e))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After a rename no temporary file is left.
        let _ = std::fs::remove_file(&self.temporary);
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
