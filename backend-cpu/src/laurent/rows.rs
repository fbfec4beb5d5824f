//! Writing sums in tree order to rows in the caller's order.

use super::near::VALUES;
use adaptive2d::PlaneKernel;
use std::ops::Range;

/// Rows in the caller's order are prefetched this many positions ahead, because they lie anywhere in memory.
const ROWS_AHEAD: usize = 16;

/// The caller's rows of values, shared by tasks that write different targets.
pub(super) struct Rows {
    first: *mut f64,
    rows: usize,
    width: usize,
    kernel: PlaneKernel,
}
// SAFETY: a task writes only the rows of its own targets (`Rows::set`).
unsafe impl Sync for Rows {}

impl Rows {
    /// The rows of `out`, `width` numbers each.
    pub fn new(out: &mut [f64], width: usize, kernel: PlaneKernel) -> Self {
        Rows { first: out.as_mut_ptr(), rows: out.len() / width, width, kernel }
    }

    /// Sets the rows of the targets at positions `range` from `sums`. The row of a position is `order[position]`.
    ///
    /// # Safety
    /// `order` must be a permutation of the rows of the array, the array must still be alive, and no other task may
    /// write positions in `range`.
    pub unsafe fn set(&self, order: &[u32], range: Range<usize>, sums: &[Vec<f64>; VALUES]) {
        // SAFETY: the caller vouches for the rows, and these are all widths that rows can have.
        unsafe {
            match self.width {
                1 => self.set_as::<1>(order, range, sums),
                2 => self.set_as::<2>(order, range, sums),
                3 => self.set_as::<3>(order, range, sums),
                6 => self.set_as::<6>(order, range, sums),
                _ => self.set_as::<12>(order, range, sums),
            }
        }
    }

    /// As [`set`](Rows::set).
    ///
    /// # Safety
    /// As for [`set`](Rows::set), and `W` must be the width of the rows.
    unsafe fn set_as<const W: usize>(&self, order: &[u32], range: Range<usize>, sums: &[Vec<f64>; VALUES]) {
        let sums = sums.each_ref().map(|s| &s[..range.len()]);
        let order = &order[range];
        for (i, &row) in order.iter().enumerate() {
            fetch(self.first, order, i, W);
            let all = self.kernel.numbers(sums.map(|s| s[i]));
            let numbers: [f64; W] = std::array::from_fn(|c| all[c]);
            assert!((row as usize) < self.rows, "target {row} of {}", self.rows);
            // SAFETY: `row` is a row of the array (asserted), and no other task writes it (as for `set`).
            unsafe { self.first.add(row as usize * W).cast::<[f64; W]>().write(numbers) };
        }
    }
}

/// Prefetches a row of `width` numbers in the array at `first`: the row of the position `i + ROWS_AHEAD` in `order`.
#[inline(always)]
pub(super) fn fetch(first: *const f64, order: &[u32], i: usize, width: usize) {
    if let Some(&later) = order.get(i + ROWS_AHEAD) {
        prefetch(first.wrapping_add(later as usize * width));
    }
}

/// Prefetches the cache line at `at`, which may be any address.
#[inline(always)]
fn prefetch(at: *const f64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
