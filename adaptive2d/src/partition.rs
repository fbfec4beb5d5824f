//! One pass of selection, in place: moves points below a pivot to the front and the others behind them.
//!
//! Points move eight at a time, by AVX-512 vectors or by scalar code. Both versions move every point to the same place,
//! so the instruction set changes no bit of the result.

use crate::select::Items;

/// Smallest window that is moved in blocks of four vectors. Each choice of the end to read from waits for the count of
/// the previous block; blocks of four vectors need a quarter as many choices.
const LONG_WINDOW: usize = 192;
/// Points in a vector.
const WIDTH: usize = 8;
/// Points in the longest block.
const MAX_BLOCK: usize = 4 * WIDTH;

/// Moves the points whose coordinate along `axis` is below `pivot` to the front. Returns their number.
pub(crate) fn partition(items: &mut Items, axis: usize, pivot: f64) -> usize {
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: `available` has just found the features.
        return unsafe { avx512::partition(items, axis, pivot) };
    }
    partition_by::<Eight>(items, axis, pivot)
}

/// As [`partition`], with eight points in a `V`.
#[inline(always)]
fn partition_by<V: Points>(items: &mut Items, axis: usize, pivot: f64) -> usize {
    match items.len() {
        n if n < 2 * WIDTH => one_by_one(items, axis, pivot),
        // SAFETY: the window holds at least two blocks: at least 16 points for blocks of 8, at least 192 for blocks of
        // 32.
        n if n < LONG_WINDOW => unsafe { in_blocks::<V, 1>(items, axis, pivot) },
        // SAFETY: as above.
        _ => unsafe { in_blocks::<V, 4>(items, axis, pivot) },
    }
}

/// As [`partition`], for a window too short for blocks.
#[inline(always)]
fn one_by_one(items: &mut Items, axis: usize, pivot: f64) -> usize {
    let mut cut = 0;
    for i in 0..items.len() {
        // No branch on data: every point is swapped to `cut`, and `cut` advances only past points below the pivot.
        let below = items.at[axis][i] < pivot;
        items.swap(i, cut);
        cut += usize::from(below);
    }
    cut
}

/// As [`partition`], in blocks of `B` ≤ 4 times eight points. The first and the last block are set aside, which leaves
/// room at both ends. Each block is read from the end with less room. Its points below the pivot are written to the
/// front, the others to the back.
///
/// # Safety
/// The window holds at least two blocks, and the machine has the instructions of `V`.
#[inline(always)]
unsafe fn in_blocks<V: Points, const B: usize>(items: &mut Items, axis: usize, pivot: f64) -> usize {
    let (n, block) = (items.len(), B * WIDTH);
    let [x, y] = items.at.each_mut().map(|a| a.as_mut_ptr());
    let all = if axis == 0 { Pointers(x, y, items.id.as_mut_ptr()) } else { Pointers(y, x, items.id.as_mut_ptr()) };
    let mut aside = ([0.0; 3 * MAX_BLOCK], [0.0; 3 * MAX_BLOCK], [0; 3 * MAX_BLOCK]);
    let rest = Pointers(aside.0.as_mut_ptr(), aside.1.as_mut_ptr(), aside.2.as_mut_ptr());
    // SAFETY: the window holds two blocks, so block ≤ n − block. The unread points are `left..right`. The room before
    // and behind them is two blocks in all. A block is read from the side with less room, so both sides then have room
    // for at least a block. Eight points take no more than eight places of this room. At the end right ≤ n − block, so
    // a whole block can be copied from `left`; the room then is as large as the number of points set aside.
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
            // All points of the block are read before any is written.
            let mut points = [V::load(all, from); B];
            for i in 1..B {
                points[i] = V::load(all, from + i * WIDTH);
            }
            for v in points {
                (low, high) = v.place(all, pivot, low, high);
            }
        }
        // Less than a block of unread points is left, and the two blocks set aside. Together they fill the room
        // exactly.
        let count = 2 * block + right - left;
        all.copy(left, rest, 2 * block, block);
        let odd = count % WIDTH;
        for i in 0..odd {
            let below = *rest.0.add(i) < pivot;
            high -= usize::from(!below);
            rest.copy(i, all, if below { low } else { high }, 1);
            low += usize::from(below);
        }
        // The room now consists of whole vectors. With two or more, the two stores of `place` do not overlap; with one,
        // both stores write the same place.
        for i in (odd..count).step_by(WIDTH) {
            (low, high) = V::load(rest, i).place(all, pivot, low, high);
        }
        low
    }
}

/// The arrays of a window: the coordinate along the axis, the other coordinate, the ids.
#[derive(Clone, Copy)]
struct Pointers(*mut f64, *mut f64, *mut u32);

impl Pointers {
    /// Copies `n` points from position `i` to position `j` of `to`.
    ///
    /// # Safety
    /// Both ranges lie in their windows, which do not overlap.
    #[inline(always)]
    unsafe fn copy(self, i: usize, to: Pointers, j: usize, n: usize) {
        // SAFETY: the caller vouches for the ranges.
        unsafe {
            self.0.add(i).copy_to_nonoverlapping(to.0.add(j), n);
            self.1.add(i).copy_to_nonoverlapping(to.1.add(j), n);
            self.2.add(i).copy_to_nonoverlapping(to.2.add(j), n);
        }
    }
}

/// Eight points.
trait Points: Copy {
    /// Loads the points at `i..i + WIDTH`.
    ///
    /// # Safety
    /// The range lies in the window, and the machine has the instructions of this type.
    unsafe fn load(from: Pointers, i: usize) -> Self;

    /// Writes the points below `pivot` from `low` on and the others before `high`, each kind in its order. Returns the
    /// new `low` and `high`.
    ///
    /// # Safety
    /// `low..high` lies in the window. It has exactly eight places, or room for eight points at each end. The contents
    /// of this room are not needed. The machine has the instructions of this type.
    unsafe fn place(self, to: Pointers, pivot: f64, low: usize, high: usize) -> (usize, usize);
}

/// Eight points on any machine.
#[derive(Clone, Copy)]
struct Eight([f64; WIDTH], [f64; WIDTH], [u32; WIDTH]);

impl Points for Eight {
    #[inline(always)]
    unsafe fn load(from: Pointers, i: usize) -> Self {
        // SAFETY: the caller vouches for the range. An array has the alignment of its elements.
        unsafe {
            let (keys, others) = (from.0.add(i).cast::<[f64; WIDTH]>(), from.1.add(i).cast::<[f64; WIDTH]>());
            Eight(keys.read(), others.read(), from.2.add(i).cast::<[u32; WIDTH]>().read())
        }
    }

    #[inline(always)]
    unsafe fn place(self, to: Pointers, pivot: f64, low: usize, high: usize) -> (usize, usize) {
        let count: usize = self.0.iter().map(|&x| usize::from(x < pivot)).sum();
        let (mut below, mut above) = (low, high - (WIDTH - count));
        for lane in 0..WIDTH {
            let is_below = self.0[lane] < pivot;
            // No branch on data.
            let at = if is_below { below } else { above };
            // SAFETY: the points go to `count` places from `low` on and to the other places before `high`. The caller
            // vouches for these places.
            unsafe {
                to.0.add(at).write(self.0[lane]);
                to.1.add(at).write(self.1[lane]);
                to.2.add(at).write(self.2[lane]);
            }
            below += usize::from(is_below);
            above += usize::from(!is_below);
        }
        (low + count, high - (WIDTH - count))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use super::{Items, Pointers, Points, WIDTH, partition_by};
    use std::arch::x86_64::*;

    /// For each mask: the lanes in the mask, then the other lanes.
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

    /// Whether this machine has the features that [`partition`] and the counting of keys need.
    pub fn available() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("popcnt")
    }

    /// As [`super::partition`].
    ///
    /// # Safety
    /// The machine has the features.
    #[target_feature(enable = "avx512f,avx2,popcnt")]
    pub unsafe fn partition(items: &mut Items, axis: usize, pivot: f64) -> usize {
        partition_by::<Vectors>(items, axis, pivot)
    }

    /// Eight points: the coordinate along the axis, the other coordinate, the ids.
    #[derive(Clone, Copy)]
    struct Vectors(__m512d, __m512d, __m256i);

    impl Vectors {
        /// # Safety
        /// `i..i + WIDTH` lies in the window, and the machine has AVX-512F.
        #[inline(always)]
        unsafe fn store(self, to: Pointers, i: usize) {
            // SAFETY: the caller vouches for the range and the instructions.
            unsafe {
                _mm512_storeu_pd(to.0.add(i), self.0);
                _mm512_storeu_pd(to.1.add(i), self.1);
                _mm256_storeu_si256(to.2.add(i).cast(), self.2);
            }
        }
    }

    // Functions inlined into `partition` are compiled for its features.
    impl Points for Vectors {
        #[inline(always)]
        unsafe fn load(from: Pointers, i: usize) -> Self {
            // SAFETY: the caller vouches for the range and the instructions.
            unsafe {
                Vectors(
                    _mm512_loadu_pd(from.0.add(i)),
                    _mm512_loadu_pd(from.1.add(i)),
                    _mm256_loadu_si256(from.2.add(i).cast()),
                )
            }
        }

        #[inline(always)]
        unsafe fn place(self, to: Pointers, pivot: f64, low: usize, high: usize) -> (usize, usize) {
            // SAFETY: the table has eight bytes per mask. The caller vouches for the room and the instructions.
            unsafe {
                let mask = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(self.0, _mm512_set1_pd(pivot));
                let order = _mm_loadl_epi64(ORDER[mask as usize].as_ptr().cast());
                let wide = _mm512_cvtepu8_epi64(order);
                let sorted = Vectors(
                    _mm512_permutexvar_pd(wide, self.0),
                    _mm512_permutexvar_pd(wide, self.1),
                    _mm256_permutevar8x32_epi32(self.2, _mm256_cvtepu8_epi32(order)),
                );
                let count = mask.count_ones() as usize;
                // Each store also writes the lanes of the other kind. These lanes go to room that is not needed, or to
                // places where the second store writes the same points.
                sorted.store(to, low);
                sorted.store(to, high - WIDTH);
                (low + count, high - (WIDTH - count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::testkit::clouds::Generator;

    type Partition = fn(&mut Items, usize, f64) -> usize;

    /// The number of points below the pivot, and the points of a window in their new order.
    fn places(n: usize, pivot: f64, by: Partition) -> (usize, Vec<u32>) {
        let mut g = Generator::new(n as u64);
        let mut y: Vec<f64> = (0..n).map(|_| g.uniform()).collect();
        let mut x: Vec<f64> = y.iter().map(|y| 3.0 * y).collect();
        let mut id: Vec<u32> = (0..n as u32).collect();
        let cut = by(&mut Items { at: [&mut x, &mut y], id: &mut id }, 1, pivot);
        assert!(y[..cut].iter().all(|&y| y < pivot) && y[cut..].iter().all(|&y| y >= pivot));
        assert!(x.iter().zip(&y).all(|(x, y)| *x == 3.0 * y));
        (cut, id)
    }

    /// A model of the algorithm without arrays: a queue of unread points, and outputs written from both ends.
    fn model(n: usize, pivot: f64) -> (usize, Vec<u32>) {
        if n < 16 {
            return places(n, pivot, one_by_one);
        }
        let mut g = Generator::new(n as u64);
        let key: Vec<f64> = (0..n).map(|_| g.uniform()).collect();
        let block = if n < 192 { 8 } else { 32 };
        let mut unread: std::collections::VecDeque<u32> = (block as u32..(n - block) as u32).collect();
        // Room before and behind the unread points.
        let mut room = [block, block];
        // Points below the pivot are written from the front on, the others from the back on, eight by eight.
        let (mut front, mut back) = (Vec::new(), Vec::new());
        let mut take = |points: &[u32], room: &mut [usize; 2]| {
            let (low, mut high): (Vec<u32>, Vec<u32>) = points.iter().partition(|&&i| key[i as usize] < pivot);
            room[0] = room[0].wrapping_sub(low.len());
            room[1] = room[1].wrapping_sub(high.len());
            front.extend(low);
            high.reverse();
            back.extend(high);
        };
        while unread.len() >= block {
            let from_right = room[1] < room[0];
            let mut points: Vec<u32> = match from_right {
                true => unread.split_off(unread.len() - block).into(),
                false => unread.drain(..block).collect(),
            };
            room[usize::from(from_right)] += block;
            points.chunks_mut(8).for_each(|eight| take(eight, &mut room));
        }
        let ends = (0..block as u32).chain((n - block) as u32..n as u32);
        let rest: Vec<u32> = ends.chain(unread.iter().copied()).collect();
        let (odd, whole) = rest.split_at(rest.len() % 8);
        odd.chunks(1).chain(whole.chunks(8)).for_each(|points| take(points, &mut room));
        let cut = front.len();
        back.reverse();
        front.extend(back);
        (cut, front)
    }

    #[test]
    fn every_instruction_set_moves_points_to_the_same_places() {
        for n in (0..70).chain([100, 191, 192, 193, 224, 255, 300, 1000, 4097]) {
            for pivot in [0.0, 0.1, 0.5, 0.97, 2.0] {
                let expected = model(n, pivot);
                assert!(places(n, pivot, partition) == expected, "the best of this machine: {n} {pivot}");
                assert!(places(n, pivot, partition_by::<Eight>) == expected, "{n} {pivot}");
            }
        }
    }
}
