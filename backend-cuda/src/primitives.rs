//! Prefix sums and radix sort on the device: `kernels/scan.cu`, `kernels/sort.cu`.

use crate::device::{Buffer, Device, Functions, blocks};
use crate::programs;
use fmm_traits::Error;

/// Counts of a block of `scan.cu`.
const SCAN_BLOCK: usize = 256;
const SCAN_ITEMS: usize = 8;
/// Threads and items of a tile of `sort.cu`.
const SORT_BLOCK: usize = 256;
const SORT_TILE: usize = 256 * 16;
/// Bits and values of a digit.
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;

/// Both, compiled.
#[derive(Debug)]
pub(crate) struct Primitives {
    device: Device,
    scan: Functions,
    sort: Functions,
}

impl Primitives {
    pub fn new(device: &Device) -> Result<Primitives, Error> {
        let (scan, sort) = (device.load(&programs::scan())?, device.load(&programs::sort())?);
        Ok(Primitives { device: device.clone(), scan, sort })
    }

    /// Enqueues starts\[at + i\] = base + the sum of the first i counts, for i = 0 … n.
    pub fn scan(
        &self,
        counts: &Buffer<u32>,
        n: usize,
        base: u64,
        starts: &mut Buffer<u64>,
        at: usize,
    ) -> Result<(), Error> {
        let grid = (blocks(n + 1, SCAN_BLOCK * SCAN_ITEMS)?, 1);
        let sums: Buffer<u64> = self.device.alloc(grid.0 as usize, "sums of a scan")?;
        let (n, block) = (n as u64, SCAN_BLOCK as u32);
        // SAFETY: arguments as in scan.cu; sums has one entry a block, starts n + 1 from `at` on.
        unsafe {
            self.device.launch(&self.scan, "scan_blocks", grid, block, &[counts.into(), n.into(), (&sums).into()])?;
            let args = [(&sums).into(), (grid.0 as u64).into()];
            self.device.launch(&self.scan, "scan_sums", (1, 1), 1024, &args)?;
            let args = [counts.into(), n.into(), (&sums).into(), base.into(), starts.at(at)];
            self.device.launch(&self.scan, "scan_finish", grid, block, &args)
        }
    }

    /// 0, 1, 2, … n − 1.
    pub fn iota(&self, n: usize, what: &str) -> Result<Buffer<u32>, Error> {
        let numbers = self.device.alloc(n, what)?;
        let (grid, args) = ((blocks(n, SORT_BLOCK)?, 1), [(&numbers).into(), (n as u64).into()]);
        // SAFETY: arguments as in sort.cu.
        unsafe { self.device.launch(&self.sort, "iota", grid, SORT_BLOCK as u32, &args)? };
        Ok(numbers)
    }

    /// Enqueues the stable sort of the first `n` keys, by their lowest `bits` bits, and of their values.
    pub fn sort(&self, keys: &mut Buffer<u64>, values: &mut Buffer<u32>, n: usize, bits: u32) -> Result<(), Error> {
        let tiles = blocks(n, SORT_TILE)?;
        let entries = DIGITS * tiles as usize;
        let counts = self.device.alloc(entries, "counts of a sort")?;
        let mut starts = self.device.alloc(entries + 1, "starts of a sort")?;
        let mut keys_out = self.device.alloc(keys.len(), "sorted keys")?;
        let mut values_out = self.device.alloc(values.len(), "sorted values")?;
        for shift in (0..bits).step_by(DIGIT_BITS as usize) {
            let args = [(&*keys).into(), (n as u64).into(), shift.into(), (&counts).into()];
            // SAFETY: arguments as in sort.cu; counts has an entry for each digit and tile.
            unsafe { self.device.launch(&self.sort, "sort_count", (tiles, 1), SORT_BLOCK as u32, &args)? };
            self.scan(&counts, entries, 0, &mut starts, 0)?;
            let args = [
                (&*keys).into(),
                (&*values).into(),
                (n as u64).into(),
                shift.into(),
                (&starts).into(),
                (&keys_out).into(),
                (&values_out).into(),
            ];
            // SAFETY: as above; the starts make the n positions written distinct and below n.
            unsafe { self.device.launch(&self.sort, "sort_scatter", (tiles, 1), SORT_BLOCK as u32, &args)? };
            std::mem::swap(keys, &mut keys_out);
            std::mem::swap(values, &mut values_out);
        }
        Ok(())
    }
}
