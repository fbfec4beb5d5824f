//! Parallel radix sort of (Morton key, index). One parallel pass sorts by the leading bits; then each bucket is sorted
//! in cache. The sort is stable, so its result depends on the keys alone.

use crate::morton::KEY_BITS;
use rayon::prelude::*;

/// A key and the index of its point.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(crate) struct Item {
    pub key: u64,
    pub index: u32,
}

/// Longest slice that insertion sort handles; radix passes are faster on longer ones.
const INSERTION_LENGTH: usize = 24;
/// Longest slice whose buckets are sorted by one thread. The buckets of longer slices are sorted in parallel.
const SERIAL_LENGTH: usize = 1 << 15;
/// Most bits of one pass inside a bucket: 2^10 counters stay in first-level cache.
const MAX_DIGIT: u32 = 10;

/// The points 0..n sorted by (`key_of`, index).
pub(crate) fn sorted(n: usize, key_of: impl Fn(usize) -> u64 + Sync) -> Vec<Item> {
    if n <= SERIAL_LENGTH {
        let mut items: Vec<Item> = (0..n).map(|i| Item { key: key_of(i), index: i as u32 }).collect();
        sort(&mut items, &mut vec![Item::default(); n], KEY_BITS);
        return items;
    }

    // Keys and, per chunk, how many fall into each bucket.
    let digit = (n.ilog2() - 9).min(12);
    let shift = KEY_BITS - digit;
    let chunk = n.div_ceil(4 * rayon::current_num_threads());
    let mut keys = vec![0u64; n];
    let mut counts: Vec<Vec<u32>> = keys
        .par_chunks_mut(chunk)
        .enumerate()
        .map(|(c, part)| {
            let mut count = vec![0u32; 1 << digit];
            for (i, key) in part.iter_mut().enumerate() {
                *key = key_of(c * chunk + i);
                count[(*key >> shift) as usize] += 1;
            }
            count
        })
        .collect();

    // From counts to the first position of each (bucket, chunk), bucket by bucket.
    let mut ends = Vec::with_capacity(1 << digit);
    let mut total = 0u32;
    for bucket in 0..1usize << digit {
        for count in &mut counts {
            total += std::mem::replace(&mut count[bucket], total);
        }
        ends.push(total as usize);
    }

    let mut out: Vec<Item> = Vec::with_capacity(n);
    let to = Target(out.as_mut_ptr());
    keys.par_chunks(chunk).zip(&mut counts).enumerate().for_each(|(c, (part, next))| {
        let to = &to;
        for (i, &key) in part.iter().enumerate() {
            let position = &mut next[(key >> shift) as usize];
            // SAFETY: the (bucket, chunk) intervals computed above partition 0..n, and a chunk
            // writes into one of its own exactly as many items as it counted; so every position
            // is below n and written by one thread only.
            unsafe { to.0.add(*position as usize).write(Item { key, index: (c * chunk + i) as u32 }) };
            *position += 1;
        }
    });
    // SAFETY: the scatter above has written each of the first n positions.
    unsafe { out.set_len(n) };
    drop(keys);

    parts(&mut out, &ends).into_par_iter().for_each(|a| sort(a, &mut vec![Item::default(); a.len()], shift));
    out
}

/// The array that the scatter writes.
struct Target(*mut Item);
// SAFETY: shared only inside `sorted`, whose threads write disjoint positions.
unsafe impl Sync for Target {}

/// The non-empty buckets of `a`; `ends` are the ends of all buckets.
fn parts<'a>(mut a: &'a mut [Item], ends: &[usize]) -> Vec<&'a mut [Item]> {
    let (mut out, mut start) = (Vec::with_capacity(ends.len()), 0);
    for &end in ends {
        let (x, rest) = a.split_at_mut(end - start);
        (a, start) = (rest, end);
        if !x.is_empty() {
            out.push(x);
        }
    }
    out
}

/// Stable sort of `a` by the lowest `bits` bits of the keys. The higher bits are equal.
fn sort(a: &mut [Item], scratch: &mut [Item], mut bits: u32) {
    while bits > 0 && a.len() > INSERTION_LENGTH {
        let digit = (a.len().ilog2() - 2).clamp(2, MAX_DIGIT).min(bits);
        bits -= digit;
        let mask = (1usize << digit) - 1;
        let bucket = |x: &Item| (x.key >> bits) as usize & mask;
        let mut ends = [0usize; 1 << MAX_DIGIT];
        let ends = &mut ends[..=mask];
        for x in a.iter() {
            ends[bucket(x)] += 1;
        }
        if ends[bucket(&a[0])] == a.len() {
            continue;
        }
        let mut total = 0;
        for e in ends.iter_mut() {
            total += std::mem::replace(e, total);
        }
        for x in a.iter() {
            let e = &mut ends[bucket(x)];
            scratch[*e] = *x;
            *e += 1;
        }
        a.copy_from_slice(scratch);
        if a.len() > SERIAL_LENGTH {
            let both = parts(a, ends).into_par_iter().zip(parts(scratch, ends));
            return both.for_each(|(x, y)| sort(x, y, bits));
        }
        let mut start = 0;
        for &end in ends.iter() {
            sort(&mut a[start..end], &mut scratch[start..end], bits);
            start = end;
        }
        return;
    }
    if bits > 0 {
        for i in 1..a.len() {
            let x = a[i];
            let mut j = i;
            while j > 0 && a[j - 1].key > x.key {
                a[j] = a[j - 1];
                j -= 1;
            }
            a[j] = x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(i: usize) -> u64 {
        let z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (z ^ z >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn equals_a_stable_comparison_sort() {
        let masks: [u64; 4] = [u64::MAX >> 1, 0xff, 0x7fff_0000_0000_0000, 0x0003_0000_0000_0f00];
        for n in [0, 1, 2, 25, 1000, 40_000, 200_000] {
            for mask in masks {
                let mut expected: Vec<Item> = (0..n).map(|i| Item { key: hash(i) & mask, index: i as u32 }).collect();
                expected.sort_by_key(|x| x.key);
                assert_eq!(sorted(n, |i| hash(i) & mask), expected, "n {n}, mask {mask:x}");
            }
        }
    }
}
