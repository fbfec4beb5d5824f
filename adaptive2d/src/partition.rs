//! One pass of selection, in place: points below a pivot to the front, the others behind them.

use crate::select::Items;

/// Windows from this length on are moved in blocks of four vectors: the choice of the end to read from waits
/// for the count of the block before, and is then made a quarter as often.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 192;

/// Moves the points whose coordinate along `axis` is below `pivot` to the front; returns how many they are.
///
/// The order within the two parts depends on the instruction set, which only rounding notices.
pub(crate) fn partition(items: &mut Items, axis: usize, pivot: f64) -> usize {
    #[cfg(target_arch = "x86_64")]
    if items.len() >= 2 * avx512::WIDTH && avx512::available() {
        // SAFETY: the features have just been found, and the window holds two blocks.
        return unsafe {
            match items.len() {
                0..LONG => avx512::partition::<1>(items, axis, pivot),
                _ => avx512::partition::<4>(items, axis, pivot),
            }
        };
    }
    let mut cut = 0;
    for i in 0..items.len() {
        // No branch on data: the swap is done in any case, and undone by the next one below.
        let below = items.at[axis][i] < pivot;
        items.swap(i, cut);
        cut += usize::from(below);
    }
    cut
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use super::Items;
    use std::arch::x86_64::*;

    /// Points moved at a time.
    pub const WIDTH: usize = 8;

    /// For each mask, the lanes in it and then the others.
    static ORDER: [[u8; WIDTH]; 256] = {
        let mut table = [[0; WIDTH]; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut to, mut lane) = (0, 0);
            while lane < 2 * WIDTH {
                if (mask >> (lane % WIDTH) & 1 == 1) == (lane < WIDTH) {
                    table[mask][to] = (lane % WIDTH) as u8;
                    to += 1;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    };

    /// Whether this machine has what [`partition`] and the counting of keys need.
    pub fn available() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("popcnt")
    }

    /// Eight points: the coordinate that decides, the other one, the ids.
    #[derive(Clone, Copy)]
    struct Vectors(__m512d, __m512d, __m256i);

    /// The arrays of a window.
    #[derive(Clone, Copy)]
    struct Pointers(*mut f64, *mut f64, *mut u32);

    impl Pointers {
        /// # Safety
        /// `i..i + WIDTH` lies in the window.
        #[inline]
        #[target_feature(enable = "avx512f,avx2")]
        unsafe fn load(self, i: usize) -> Vectors {
            // SAFETY: the caller vouches for the range.
            unsafe {
                Vectors(
                    _mm512_loadu_pd(self.0.add(i)),
                    _mm512_loadu_pd(self.1.add(i)),
                    _mm256_loadu_si256(self.2.add(i).cast()),
                )
            }
        }

        /// # Safety
        /// `i..i + WIDTH` lies in the window.
        #[inline]
        #[target_feature(enable = "avx512f,avx2")]
        unsafe fn store(self, i: usize, v: Vectors) {
            // SAFETY: the caller vouches for the range.
            unsafe {
                _mm512_storeu_pd(self.0.add(i), v.0);
                _mm512_storeu_pd(self.1.add(i), v.1);
                _mm256_storeu_si256(self.2.add(i).cast(), v.2);
            }
        }

        /// Puts the lanes of `v` below `level` at `low` and the others before `high`, and returns where these are then.
        ///
        /// # Safety
        /// `low..high` lies in the window, has room for two vectors or just one, and what is in it is not needed.
        #[inline]
        #[target_feature(enable = "avx512f,avx2,popcnt")]
        unsafe fn place(self, v: Vectors, level: __m512d, low: usize, high: usize) -> (usize, usize) {
            let mask = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(v.0, level);
            // SAFETY: the table has eight bytes a mask; the caller vouches for the room.
            unsafe {
                let order = _mm_loadl_epi64(ORDER[mask as usize].as_ptr().cast());
                let wide = _mm512_cvtepu8_epi64(order);
                let sorted = Vectors(
                    _mm512_permutexvar_pd(wide, v.0),
                    _mm512_permutexvar_pd(wide, v.1),
                    _mm256_permutevar8x32_epi32(v.2, _mm256_cvtepu8_epi32(order)),
                );
                let count = mask.count_ones() as usize;
                self.store(low, sorted);
                self.store(high - WIDTH, sorted);
                (low + count, high - (WIDTH - count))
            }
        }

        /// Copies `n` points from position `i` to position `j` of `to`.
        ///
        /// # Safety
        /// Both ranges lie in their windows, which do not overlap.
        #[inline]
        unsafe fn copy(self, i: usize, to: Pointers, j: usize, n: usize) {
            // SAFETY: the caller vouches for the ranges.
            unsafe {
                self.0.add(i).copy_to_nonoverlapping(to.0.add(j), n);
                self.1.add(i).copy_to_nonoverlapping(to.1.add(j), n);
                self.2.add(i).copy_to_nonoverlapping(to.2.add(j), n);
            }
        }
    }

    /// Longest block, in points.
    const BLOCK: usize = 4 * WIDTH;

    /// As [`super::partition`], in blocks of `B` ≤ 4 vectors. Blocks are read from whichever end has less room,
    /// and written to both, the lanes below the pivot first; two blocks set aside beforehand are the room.
    ///
    /// # Safety
    /// The machine has the features, and there are at least two blocks.
    #[target_feature(enable = "avx512f,avx2,popcnt")]
    pub unsafe fn partition<const B: usize>(items: &mut Items, axis: usize, pivot: f64) -> usize {
        let (n, block) = (items.len(), B * WIDTH);
        let [x, y] = items.at.each_mut().map(|a| a.as_mut_ptr());
        let all = if axis == 0 { Pointers(x, y, items.id.as_mut_ptr()) } else { Pointers(y, x, items.id.as_mut_ptr()) };
        let level = _mm512_set1_pd(pivot);
        let mut aside = ([0.0; 3 * BLOCK], [0.0; 3 * BLOCK], [0; 3 * BLOCK]);
        let rest = Pointers(aside.0.as_mut_ptr(), aside.1.as_mut_ptr(), aside.2.as_mut_ptr());
        // SAFETY: block ≤ n − block; unread points are `left..right`, the room before them and behind them is
        // two blocks in all, so after a read from the side with less room both sides have at least a block, of
        // which each vector takes no more than its lanes. In the end right ≤ n − block, so that a whole block can be
        // copied from `left`, and the room is that of the points set aside.
        unsafe {
            all.copy(0, rest, 0, block);
            all.copy(n - block, rest, block, block);
            let (mut left, mut right) = (block, n - block);
            let (mut low, mut high) = (0, n);
            while right - left >= block {
                let from_right = high - right < left - low;
                right -= if from_right { block } else { 0 };
                let from = if from_right { right } else { left };
                left += if from_right { 0 } else { block };
                let vectors: [Vectors; B] = std::array::from_fn(|i| all.load(from + i * WIDTH));
                for v in vectors {
                    (low, high) = all.place(v, level, low, high);
                }
            }
            // What is left: less than a block of unread points, and the two blocks. They fit exactly.
            let count = 2 * block + right - left;
            all.copy(left, rest, 2 * block, block);
            let odd = count % WIDTH;
            for i in 0..odd {
                let below = *rest.0.add(i) < pivot;
                high -= usize::from(!below);
                rest.copy(i, all, if below { low } else { high }, 1);
                low += usize::from(below);
            }
            // The room is now of whole vectors, of which two do not overlap and one is written twice in the same place.
            for i in (odd..count).step_by(WIDTH) {
                (low, high) = all.place(rest.load(i), level, low, high);
            }
            low
        }
    }
}
