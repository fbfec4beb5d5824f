//! Operators kept in memory and, if asked, on disk.
//!
//! A set is found by its full `fingerprint`. The fingerprint contains the crate version, the file format, the
//! precision, the order, the sides of the lattices, and the type of the family. Of the kernels it contains the
//! shapes, all operations ([`Tape`](fmm_traits::Tape)), and a checksum of values of the equivalent kernel, but no
//! names, which say nothing about bodies. Last come the bits of the parameters on the unit box, which
//! depend on the side of the box for a kernel that is not homogeneous. A file holds its whole fingerprint. A file that
//! is foreign, truncated or altered is ignored and overwritten.

use super::gauge;
use super::lattice::{INNER, Lattice, OUTER, SPREAD};
use super::matrix::kernel_matrix;
use super::operators::Operators;
use super::solve;
use super::{Matrix, Scalar};
use fmm_traits::{Error, Member, Members};
use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Version of the file format. Increase it when the layout of a file or the meaning of an operator changes.
const FORMAT: u32 = 7;
const MAGIC: &[u8; 8] = b"fmm-equi";

/// Bytes of operators in memory above which unused operators are dropped.
const KEPT_BYTES: usize = 512 << 20;

struct Entry {
    bytes: usize,
    operators: Arc<dyn Any + Send + Sync>,
}

fn memory() -> MutexGuard<'static, HashMap<String, Entry>> {
    static MEMORY: OnceLock<Mutex<HashMap<String, Entry>>> = OnceLock::new();
    MEMORY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The operators of `family` with parameters `params` on a `lattice` for a box of side `side`. Operators come from
/// memory or from the folder `disk`. Otherwise they are built and stored in both. A folder that cannot be read or
/// written is ignored.
pub fn operators<T: Scalar>(
    family: &Members,
    params: &[f64],
    side: f64,
    lattice: Lattice,
    disk: Option<&Path>,
) -> Result<Arc<Operators<T>>, Error> {
    let params = gauge::parameters(&family.equivalent, params, side, lattice);
    let key = fingerprint::<T>(family, &params, lattice);
    let known = memory().get(&key).map(|entry| entry.operators.clone());
    if let Some(operators) = known.and_then(|o| o.downcast::<Operators<T>>().ok()) {
        return Ok(operators);
    }
    let file = disk.map(|folder| file_name(folder, &key));
    let stored =
        file.as_deref().and_then(|f| fs::read(f).ok()).and_then(|bytes| decode(&bytes, &key, family, &params, lattice));
    let found = match stored {
        Some(operators) => Arc::new(operators),
        None => {
            let built = Arc::new(Operators::build(family, &params, lattice)?);
            if let Some(file) = &file {
                // A cache that cannot be written costs time, not correctness.
                let _ = write(file, &encode(&built, &key));
            }
            built
        }
    };
    let bytes = found.bytes();
    let mut memory = memory();
    if memory.values().map(|entry| entry.bytes).sum::<usize>() + bytes > KEPT_BYTES {
        memory.retain(|_, entry| Arc::strong_count(&entry.operators) > 1);
    }
    memory.insert(key, Entry { bytes, operators: found.clone() });
    Ok(found)
}

/// Drops all operators in memory. Operators in use stay alive.
pub fn clear() {
    memory().clear();
}

/// Everything that determines a set of operators, as text.
fn fingerprint<T: Scalar>(family: &Members, params: &[f64], lattice: Lattice) -> String {
    let bits: Vec<String> = params.iter().map(|x| format!("{:016x}", x.to_bits())).collect();
    let shape =
        |kernel: &Member| format!("{}x{} {}", kernel.values, kernel.strengths, kernel.tape().cuda::<f64>("kernel"));
    let (check, equivalent) = (shape(&family.check), shape(&family.equivalent));
    format!(
        "format {FORMAT}, version {}, {}, {lattice:?}, sides {INNER} {OUTER} {SPREAD}, solve {}, {}, check {check}, equivalent {equivalent} {}, values {:016x}, parameters [{}]",
        env!("CARGO_PKG_VERSION"),
        <T as fmm_traits::Real>::NAME,
        solve::VERSION,
        family.family,
        family.equivalent.type_name,
        checksum(&sample(&family.equivalent, params)),
        bits.join(" ")
    )
}

/// Some values of `kernel`, its degrees and its flag, as bytes. They change when the body of the kernel does.
fn sample(kernel: &Member, params: &[f64]) -> Vec<u8> {
    let targets = [[0.9, -0.35, 1.1], [-1.3, 0.6, 0.25]];
    let values = kernel_matrix(kernel, params, &targets, &[[0.0; 3]], |_, _| 1.0);
    let degrees = kernel.value_degrees.iter().chain(&kernel.strength_degrees);
    let flags = [kernel.reciprocal as u8].into_iter();
    flags.chain(values.data.iter().flat_map(|v| v.to_le_bytes())).chain(degrees.flat_map(|d| d.to_le_bytes())).collect()
}

/// A file name for `key`; a collision is harmless because the file holds the key.
fn file_name(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("operators-{:016x}.bin", checksum(key.as_bytes())))
}

/// FNV-1a over words of eight bytes, then over the bytes of the rest. A word that differs always changes the result.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let all = words.iter().map(|word| u64::from_le_bytes(*word)).chain(rest.iter().map(|&b| u64::from(b)));
    all.fold(0xcbf2_9ce4_8422_2325, |h, x| {
        let h = (h ^ x).wrapping_mul(0x0000_0100_0000_01b3);
        // A product moves no bit down. The upper half has what the lower half of later words needs.
        h ^ h >> 32
    })
}

/// Writes a temporary file and renames it to `file`, so that no reader sees half a file.
fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, file));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// The contents of a file: magic, fingerprint, then rows, columns and little-endian numbers of every matrix, then a
/// checksum of everything before.
fn encode<T: Scalar>(operators: &Operators<T>, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(operators.bytes() + (1 << 16));
    bytes.extend(MAGIC);
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend(key.as_bytes());
    for m in operators.matrices() {
        bytes.extend((m.rows as u64).to_le_bytes());
        bytes.extend((m.cols as u64).to_le_bytes());
        for x in &m.data {
            match size_of::<T>() {
                4 => bytes.extend((x.f64() as f32).to_le_bytes()),
                _ => bytes.extend(x.f64().to_le_bytes()),
            }
        }
    }
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// The operators in a file; `None` if the file is damaged or its fingerprint is not `key`.
fn decode<T: Scalar>(
    bytes: &[u8],
    key: &str,
    family: &Members,
    params: &[f64],
    lattice: Lattice,
) -> Option<Operators<T>> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let body = body.strip_prefix(MAGIC)?.strip_prefix(&(key.len() as u64).to_le_bytes())?;
    let mut rest = body.strip_prefix(key.as_bytes())?;
    let mut matrix = || -> Option<Matrix<T>> {
        let rows = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?) as usize;
        let cols = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?) as usize;
        let data = rest.split_off(..rows.checked_mul(cols)?.checked_mul(size_of::<T>())?)?;
        let data = match size_of::<T>() {
            4 => data.as_chunks().0.iter().map(|b| T::of(f32::from_le_bytes(*b) as f64)).collect(),
            _ => data.as_chunks().0.iter().map(|b| T::of(f64::from_le_bytes(*b))).collect(),
        };
        Some(Matrix { rows, cols, data })
    };
    let operators = Operators::from_matrices(family, params, lattice, &mut matrix)?;
    rest.is_empty().then_some(operators)
}
