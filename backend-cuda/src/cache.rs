//! Compiled programs on disk, each stored under its fingerprint.
//!
//! The name of a file is a hash of the fingerprint, and the file holds the whole fingerprint. A collision of hashes is
//! therefore a miss, never a wrong program. A checksum detects truncated files.

use fmm_traits::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of a file. A new layout gets a new number.
const MAGIC: &[u8] = b"fmm cubin 1\n";

/// The FNV-1a hash of `bytes`.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// The file of the program with `fingerprint`.
pub(crate) fn path(folder: &Path, fingerprint: &str) -> PathBuf {
    folder.join(format!("{:016x}.cubin", hash(fingerprint.as_bytes())))
}

/// The program stored under `fingerprint`; `None` if there is none or its file is damaged.
pub(crate) fn load(folder: &Path, fingerprint: &str) -> Option<Vec<u8>> {
    let file = std::fs::read(path(folder, fingerprint)).ok()?;
    let (head, rest) = file.strip_prefix(MAGIC)?.split_at_checked(16)?;
    let number = |i: usize| head[i..i + 8].iter().rev().fold(0u64, |n, &b| n << 8 | b as u64);
    let (stored, cubin) = rest.split_at_checked(usize::try_from(number(0)).ok()?)?;
    (stored == fingerprint.as_bytes() && hash(cubin) == number(8)).then(|| cubin.to_vec())
}

/// Stores a program. The file appears whole or not at all, also when several processes write it.
pub(crate) fn store(folder: &Path, fingerprint: &str, cubin: &[u8]) -> Result<(), Error> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let path = path(folder, fingerprint);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}-{count}", std::process::id()));
    let lengths = [fingerprint.len() as u64, hash(cubin)].map(u64::to_le_bytes).concat();
    let file = [MAGIC, &lengths, fingerprint.as_bytes(), cubin].concat();
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&part, file))
        .and_then(|()| std::fs::rename(&part, &path));
    written.map_err(|e| {
        // Remove the temporary file. It may not exist, so a failure here is ignored.
        let _ = std::fs::remove_file(&part);
        Error::Io { path: path.display().to_string(), reason: e.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_fingerprint_finds_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("new");
        assert_eq!(load(&at, "a"), None);
        store(&at, "a", &[1, 2, 3]).unwrap();
        store(&at, "b", &[4]).unwrap();
        assert_eq!(load(&at, "a"), Some(vec![1, 2, 3]));
        assert_eq!(load(&at, "b"), Some(vec![4]));
        // A collision of the names is not taken for a hit.
        std::fs::copy(path(&at, "a"), path(&at, "c")).unwrap();
        assert_eq!(load(&at, "c"), None);
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 3);
    }

    #[test]
    fn a_damaged_file_is_a_miss() {
        let folder = tempfile::tempdir().unwrap();
        store(folder.path(), "a", &[1, 2, 3, 4]).unwrap();
        let file = path(folder.path(), "a");
        let whole = std::fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(load(folder.path(), "a"), None, "{cut}");
            let mut bad = whole.clone();
            bad[cut] ^= 1;
            std::fs::write(&file, &bad).unwrap();
            assert_eq!(load(folder.path(), "a"), None, "{cut}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let e = store(file.path(), "a", &[1]).unwrap_err();
        assert!(matches!(e, Error::Io { .. }), "{e}");
    }
}
