//! What the buffers of a device take, and by name on request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes in the buffers of a device.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    now: AtomicU64,
    /// `None` unless buffers are entered by name.
    names: Mutex<Option<Names>>,
}

#[derive(Debug, Default)]
struct Names {
    /// What each buffer is for, and its bytes, by address.
    held: HashMap<u64, (String, u64)>,
    now: u64,
    most: u64,
    /// The buffers when they had `most` bytes.
    at_most: Vec<(String, u64)>,
}

impl Ledger {
    /// Bytes in all buffers.
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    // A poisoned lock is fine: entries are inserted whole.
    fn names(&self) -> MutexGuard<'_, Option<Names>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters buffers by name from now on.
    pub fn begin(&self) {
        *self.names() = Some(Names::default());
    }

    /// The buffers that were held at once when they had the most bytes, since [`begin`](Ledger::begin); the largest
    /// first.
    pub fn at_most(&self) -> Vec<(String, u64)> {
        let names = self.names();
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for (name, bytes) in names.iter().flat_map(|names| &names.at_most) {
            *sums.entry(name).or_default() += bytes;
        }
        let mut rows: Vec<(String, u64)> = sums.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect();
        rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        rows
    }

    pub fn add(&self, address: u64, bytes: u64, what: &str) {
        self.now.fetch_add(bytes, Relaxed);
        if let Some(names) = &mut *self.names() {
            names.held.insert(address, (what.to_string(), bytes));
            names.now += bytes;
            if names.now > names.most {
                names.most = names.now;
                names.at_most = names.held.values().cloned().collect();
            }
        }
    }

    pub fn remove(&self, address: u64, bytes: u64) {
        self.now.fetch_sub(bytes, Relaxed);
        if let Some(names) = &mut *self.names()
            && names.held.remove(&address).is_some()
        {
            names.now -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_moment_is_kept() {
        let ledger = Ledger::default();
        ledger.add(1, 10, "before");
        ledger.begin();
        ledger.add(2, 5, "keys");
        ledger.add(3, 7, "points");
        ledger.add(4, 5, "keys");
        ledger.remove(3, 7);
        ledger.remove(1, 10);
        ledger.add(5, 6, "edges");
        assert_eq!(ledger.now(), 16);
        assert_eq!(ledger.at_most(), [("keys".to_string(), 10), ("points".to_string(), 7)]);
    }
}
