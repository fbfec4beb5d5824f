//! Prefix sums and radix sort on the device: `kernels/scan.cu`, `kernels/sort.cu`.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::programs;
use fmm_traits::Error;
use std::ops::Range;

/// Threads per block in `scan.cu`.
const SCAN_BLOCK: usize = 256;
/// Counts per thread in `scan.cu`.
const SCAN_ITEMS: usize = 8;
/// Largest number of columns of counts in one scan, as in `scan.cu`.
const MAX_COLUMNS: usize = 8;
/// Threads per block in `sort.cu`.
const SORT_BLOCK: usize = 256;
/// Keys per block in `sort.cu`.
const SORT_TILE: usize = 256 * 16;
/// Bits of a digit.
const DIGIT_BITS: u32 = 8;
/// Number of different digits.
const DIGITS: usize = 1 << DIGIT_BITS;
/// Leading bits, beyond log₂ of the number of keys, that tell nearly all evenly spread keys apart.
const EXTRA_BITS: u32 = 8;
/// Keys in the sample that `sort_sample` compares.
const SAMPLE_KEYS: usize = 4096;
/// Largest mean number of other keys that agree with a key in the leading bits, if runs of agreeing keys are to be
/// sorted one by one. Plummer's sphere has 4; points that pile up on a surface have hundreds
/// (docs/notes/gpu-performance.md).
const MAX_AGREEING: f64 = 8.0;
/// Largest number of blocks that count digits.
const MAX_COUNTING_BLOCKS: u32 = 1024;
/// Smallest number of keys for which a sample is taken. Sorting fewer keys by all digits takes less time than waiting
/// for the sample.
const MIN_SAMPLED_KEYS: usize = 8 * SAMPLE_KEYS;

/// The compiled prefix sum and radix sort.
#[derive(Clone, Debug)]
pub(crate) struct Primitives {
    device: Device,
    scan: Functions,
    sort: Functions,
}

/// The bits by which some sets of keys are sorted before runs of agreeing keys are sorted one by one.
pub(crate) struct Leading<const K: usize> {
    /// The first of the leading bits of each set; 0: all bits.
    pub from: [u32; K],
    /// For each set the keys of a sample that agree in the leading bits; then whether a run was too long.
    found: Buffer<u32>,
}

impl<const K: usize> Leading<K> {
    /// All bits of all sets.
    pub fn all(self) -> Self {
        Leading { from: [0; K], ..self }
    }
}

/// Whether leading bits tell most of `n` keys apart, if `agree` keys of the sample agree in them.
fn differ(n: usize, agree: u32) -> bool {
    // The number to expect if each key agrees with MAX_AGREEING other keys, but at most half of the sample.
    let sample = SAMPLE_KEYS as f64;
    let most = (MAX_AGREEING * (1.0 + sample * sample / n as f64)).min(0.5 * sample);
    agree as f64 <= most
}

/// The items with a flag.
pub(crate) struct Flagged {
    /// Their numbers, ascending.
    pub items: Buffer<u32>,
    /// The prefix sums of all flags.
    pub starts: Buffer<u64>,
    /// How many there are.
    pub count: usize,
}

impl Primitives {
    pub fn new(device: &Device) -> Result<Primitives, Error> {
        let (scan, sort) = (device.fixed("scan", programs::scan)?, device.fixed("sort", programs::sort)?);
        Ok(Primitives { device: device.clone(), scan, sort })
    }

    /// Enqueues prefix sums of up to eight columns of `n` counts (u32): starts\[i\] = the sum of the first i counts, for
    /// i = 0 … n.
    pub fn scan<const K: usize>(&self, columns: [(&Buffer<u32>, &Buffer<u64>); K], n: usize) -> Result<(), Error> {
        const { assert!(K > 0 && K <= MAX_COLUMNS) };
        let tiles = blocks(n + 1, SCAN_BLOCK * SCAN_ITEMS)?;
        let sums: Buffer<u64> = self.device.alloc(K * tiles as usize, "sums of a scan")?;
        // A column that is not used has two null addresses.
        let mut args = [Arg::from([0u32; 2]); MAX_COLUMNS + 2];
        args.iter_mut().zip(columns).for_each(|(arg, column)| *arg = column.into());
        (args[MAX_COLUMNS], args[MAX_COLUMNS + 1]) = ((n as u64).into(), (&sums).into());
        let (grid, block) = ((tiles, K as u32), SCAN_BLOCK as u32);
        // SAFETY: arguments as in scan.cu; sums has an entry for each block, and each starts has n + 1 entries.
        unsafe {
            self.device.launch(&self.scan, "scan_blocks", grid, block, &args)?;
            self.device.launch(&self.scan, "scan_finish", grid, block, &args)
        }
    }

    /// The items with a flag, of `n` items. Waits for the device.
    pub fn flagged(&self, flags: &Buffer<u32>, n: usize, what: &str) -> Result<Flagged, Error> {
        let starts = self.device.alloc(n + 1, what)?;
        self.scan([(flags, &starts)], n)?;
        let count = self.device.download_range(&starts, n..n + 1, what)?[0] as usize;
        let items = self.device.alloc(count, what)?;
        self.list_flagged(&starts, n, &items)?;
        Ok(Flagged { items, starts, count })
    }

    /// Enqueues the list of the numbers of the items with a flag. `starts` are the prefix sums of their `n` flags, and `to`
    /// has room for the list.
    pub fn list_flagged(&self, starts: &Buffer<u64>, n: usize, to: &Buffer<u32>) -> Result<(), Error> {
        let (grid, args) = ((blocks(n, SCAN_BLOCK)?, 1), [(n as u32).into(), starts.into(), to.into()]);
        // SAFETY: arguments as in scan.cu; there are n + 1 starts, and `to` has room for all items with a flag.
        unsafe { self.device.launch(&self.scan, "list_flagged", grid, SCAN_BLOCK as u32, &args) }
    }

    /// The numbers 0, 1, 2, … n − 1.
    pub fn iota(&self, n: usize, what: &str) -> Result<Buffer<u32>, Error> {
        let numbers = self.device.alloc(n, what)?;
        let (grid, args) = ((blocks(n, SORT_BLOCK)?, 1), [(&numbers).into(), (n as u64).into()]);
        // SAFETY: arguments as in sort.cu.
        unsafe { self.device.launch(&self.sort, "iota", grid, SORT_BLOCK as u32, &args)? };
        Ok(numbers)
    }

    /// The leading bits of sets of `n` keys with so many `bits`: those that tell most keys apart, by a sample. Waits for
    /// the device, unless the sets are small.
    pub fn leading<const K: usize>(
        &self,
        keys: [&Buffer<u64>; K],
        n: usize,
        bits: [u32; K],
    ) -> Result<Leading<K>, Error> {
        let device = &self.device;
        let wanted = (n.max(1).ilog2() + EXTRA_BITS).next_multiple_of(DIGIT_BITS);
        let mut from = bits.map(|bits| if n < MIN_SAMPLED_KEYS { 0 } else { bits.saturating_sub(wanted) });
        let found: Buffer<u32> = device.zeros(K + 1, "runs of a sort")?;
        for (k, &from) in from.iter().enumerate().filter(|(_, from)| **from > 0) {
            let args = [keys[k].into(), (n as u64).into(), from.into(), found.at(k)];
            // SAFETY: arguments as in sort.cu; there are n keys, at least as many as in the sample.
            unsafe { device.launch(&self.sort, "sort_sample", (1, 1), 1024, &args)? };
        }
        if from != [0; K] {
            let agreeing = device.download_range(&found, 0..K, "runs of a sort")?;
            from.iter_mut().zip(agreeing).filter(|(_, agree)| !differ(n, *agree)).for_each(|(from, _)| *from = 0);
        }
        Ok(Leading { from, found })
    }

    /// Enqueues a stable sort of set `k` of `leading`, which has so many `bits`, by its leading bits and then within runs.
    /// `fresh` as for [`sort`](Primitives::sort). [`complete`](Primitives::complete) tells whether no run was too long.
    pub fn sort_leading<const K: usize>(
        &self,
        leading: &Leading<K>,
        (k, bits): (usize, u32),
        (keys, values): (&mut Buffer<u64>, &mut Buffer<u32>),
        fresh: bool,
        n: usize,
    ) -> Result<(), Error> {
        let from = leading.from[k];
        self.sort(keys, values, fresh, n, from..bits)?;
        if from == 0 {
            return Ok(());
        }
        let args = [(&*keys).into(), (&*values).into(), (n as u64).into(), from.into(), leading.found.at(K)];
        // SAFETY: arguments as in sort.cu; there are n keys and values.
        unsafe { self.device.launch(&self.sort, "sort_runs", (blocks(n, SORT_BLOCK)?, 1), SORT_BLOCK as u32, &args) }
    }

    /// Whether the sets sorted by their leading bits have become sorted. Waits for the device, unless all bits were
    /// sorted by.
    pub fn complete<const K: usize>(&self, leading: &Leading<K>) -> Result<bool, Error> {
        let known = leading.from == [0; K];
        Ok(known || self.device.download_range(&leading.found, K..K + 1, "runs of a sort")?[0] == 0)
    }

    /// Sorts keys stably; values become the original positions. If the leading bits tell most keys apart, only these
    /// bits are sorted, and each run of keys that agree in them is then sorted by one thread. Waits for the device twice.
    pub fn sort_fresh(
        &self,
        keys: &mut Buffer<u64>,
        values: &mut Buffer<u32>,
        n: usize,
        bits: u32,
    ) -> Result<(), Error> {
        let leading = self.leading([&*keys], n, [bits])?;
        self.sort_leading(&leading, (0, bits), (keys, values), true, n)?;
        if !self.complete(&leading)? {
            // The partial sort has kept equal keys in their original order, so sort again.
            self.sort(keys, values, false, n, 0..bits)?;
        }
        Ok(())
    }

    /// Enqueues a stable sort of the first `n` keys by the given `bits`, together with their values. With `fresh`,
    /// values are ignored on input and become the positions of the keys.
    pub fn sort(
        &self,
        keys: &mut Buffer<u64>,
        values: &mut Buffer<u32>,
        fresh: bool,
        n: usize,
        bits: Range<u32>,
    ) -> Result<(), Error> {
        let (tiles, passes) = (blocks(n, SORT_TILE)?, (bits.end - bits.start).div_ceil(DIGIT_BITS));
        if n == 0 || passes == 0 {
            return Ok(());
        }
        let (block, number) = (SORT_BLOCK as u32, Arg::from(n as u64));
        // The starts of the digits of each pass; then twice the states of the tiles and the number of the next tile. A
        // pass uses one half of these, and clears the other half for the next pass.
        let (counted, half) = (DIGITS * passes as usize, DIGITS * tiles as usize + 1);
        let work: Buffer<u64> = self.device.zeros(counted + 2 * half, "work of a sort")?;
        let args = [(&*keys).into(), number, bits.start.into(), passes.into(), work.at(0)];
        let grid = (tiles.min(MAX_COUNTING_BLOCKS), 1);
        // SAFETY: arguments as in sort.cu; there is an entry for each digit of each pass.
        unsafe {
            self.device.launch(&self.sort, "sort_count", grid, block, &args)?;
            self.device.launch(&self.sort, "sort_starts", (passes, 1), DIGITS as u32, &[work.at(0)])?;
        }
        let mut keys_out = self.device.alloc(keys.len(), "sorted keys")?;
        let mut values_out = self.device.alloc(values.len(), "sorted values")?;
        for pass in 0..passes {
            let from = if fresh && pass == 0 { Arg::NULL } else { Arg::from(&*values) };
            let halves = [0, 1].map(|k| work.at(counted + (pass as usize + k) % 2 * half));
            let args = [
                (&*keys).into(),
                from,
                number,
                (bits.start + pass * DIGIT_BITS).into(),
                work.at(DIGITS * pass as usize),
                halves[0],
                halves[1],
                (&keys_out).into(),
                (&values_out).into(),
            ];
            // SAFETY: as above; each half has an entry for each digit and tile and one more, and the n positions written
            // are distinct and below n.
            unsafe { self.device.launch(&self.sort, "sort_pass", (tiles, 1), block, &args)? };
            std::mem::swap(keys, &mut keys_out);
            std::mem::swap(values, &mut values_out);
        }
        Ok(())
    }
}
