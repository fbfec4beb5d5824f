//! Sums to the caller's rows.

use super::near::VALUES;
use adaptive2d::PlaneKernel;
use std::ops::Range;

/// Rows of the caller's order that are fetched in advance: they lie anywhere.
const AHEAD: usize = 16;
/// −1/(2π).
const SCALE: f64 = -0.5 * std::f64::consts::FRAC_1_PI;

/// The `W` values of a target from its sums Re f, Im f, Re f′, Im f′ ([`PlaneKernel::add`]).
#[inline(always)]
pub(super) fn numbers<const W: usize>(kernel: PlaneKernel, [a, b, c, d]: [f64; VALUES]) -> [f64; W] {
    let all = match kernel {
        PlaneKernel::Harmonic => [a, b, c, d],
        PlaneKernel::Laplace => [a * SCALE, c * SCALE, -(d * SCALE), 0.0],
    };
    std::array::from_fn(|i| all[i])
}

/// The caller's rows of values, set by several tasks.
pub(super) struct Rows {
    first: *mut f64,
    rows: usize,
    width: usize,
    kernel: PlaneKernel,
}
// SAFETY: a task writes only rows of targets that are its own (`Rows::set`).
unsafe impl Sync for Rows {}

impl Rows {
    /// Rows of `width` numbers in `out`.
    pub fn new(out: &mut [f64], width: usize, kernel: PlaneKernel) -> Self {
        Rows { first: out.as_mut_ptr(), rows: out.len() / width, width, kernel }
    }

    /// Sets the rows of the targets at positions `range`, which are `order[position]`.
    ///
    /// # Safety
    /// `order` is a permutation of the rows of the array, which is still there, and no other task has positions of
    /// `range`.
    pub unsafe fn set(&self, order: &[u32], range: Range<usize>, sums: &[Vec<f64>; VALUES]) {
        // SAFETY: as for the caller, and these are the widths that rows can have.
        unsafe {
            match self.width {
                1 => self.set_as::<1>(order, range, sums),
                2 => self.set_as::<2>(order, range, sums),
                3 => self.set_as::<3>(order, range, sums),
                _ => self.set_as::<4>(order, range, sums),
            }
        }
    }

    /// As [`set`](Rows::set).
    ///
    /// # Safety
    /// As for [`set`](Rows::set), and `W` is the width of the rows.
    unsafe fn set_as<const W: usize>(&self, order: &[u32], range: Range<usize>, sums: &[Vec<f64>; VALUES]) {
        let sums = sums.each_ref().map(|s| &s[..range.len()]);
        let order = &order[range];
        for (i, &row) in order.iter().enumerate() {
            fetch(self.first, order, i, W);
            let numbers: [f64; W] = numbers(self.kernel, sums.map(|s| s[i]));
            assert!((row as usize) < self.rows, "target {row} of {}", self.rows);
            // SAFETY: `row` is a row of the array (asserted), and only this task has it.
            unsafe { self.first.add(row as usize * W).cast::<[f64; W]>().write(numbers) };
        }
    }
}

/// Fetches the row of `width` numbers, of those from `first` on, that `order` names some places behind `i`.
#[inline(always)]
pub(super) fn fetch(first: *const f64, order: &[u32], i: usize, width: usize) {
    if let Some(&later) = order.get(i + AHEAD) {
        prefetch(first.wrapping_add(later as usize * width));
    }
}

/// Fetches the cache line at `at`, wherever that points.
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
