//! Selection in place: puts the k-th smallest coordinate at position k, smaller coordinates before it and larger
//! coordinates behind it. Selection takes little more than one and a half passes (after Floyd & Rivest 1975).

use crate::partition::partition;

/// Points on their way to their boxes, one array per property.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    /// x and y.
    pub at: [&'a mut [f64]; 2],
    /// The caller's index; targets follow the sources.
    pub id: &'a mut [u32],
}

impl Items<'_> {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.id.len()
    }
    /// The points at `start..end`.
    pub fn part(&mut self, start: usize, end: usize) -> Items<'_> {
        let [x, y] = &mut self.at;
        Items { at: [&mut x[start..end], &mut y[start..end]], id: &mut self.id[start..end] }
    }
    /// The first `k` points and the others.
    pub fn split_at(&mut self, k: usize) -> (Items<'_>, Items<'_>) {
        let [x, y] = &mut self.at;
        let ((x0, x1), (y0, y1), (id0, id1)) = (x.split_at_mut(k), y.split_at_mut(k), self.id.split_at_mut(k));
        (Items { at: [x0, y0], id: id0 }, Items { at: [x1, y1], id: id1 })
    }
    /// Exchanges two points.
    pub fn swap(&mut self, i: usize, j: usize) {
        self.at[0].swap(i, j);
        self.at[1].swap(i, j);
        self.id.swap(i, j);
    }
}

/// Longest window in which ranks are found by counting keys. Such a window fits into first-level cache, where
/// counting keys is cheaper than moving points.
const COUNTING_LENGTH: usize = 2048;
/// Longest window that is sorted by insertion.
const INSERTION_LENGTH: usize = 16;
/// Distance of the pivot from the wanted rank, in standard deviations of a rank in the sample.
const PIVOT_MARGIN: f64 = 2.0;

/// Rearranges `items` around the coordinate of rank `k` along `axis`, which is returned. Coordinates before position
/// `k` are not larger, coordinates from `k` on are not smaller. The result depends on the input only.
pub(crate) fn select(items: &mut Items, axis: usize, k: usize) -> f64 {
    debug_assert!(k < items.len());
    let (mut start, mut end) = (0, items.len());
    while end - start > INSERTION_LENGTH {
        let window = &items.at[axis][start..end];
        let counted = if window.len() > COUNTING_LENGTH { None } else { key_of_rank(window, k - start) };
        let pivot = counted.unwrap_or_else(|| pivot(&items.at[axis][start..end], k - start));
        let mut cut = start + partition(&mut items.part(start, end), axis, pivot);
        if counted.is_some() && cut == k {
            return pivot;
        }
        if cut == start || counted.is_some() {
            // The pivot is the smallest key left. Its copies are moved next, so that the window shrinks.
            cut += partition(&mut items.part(cut, end), axis, pivot.next_up());
            if k < cut {
                return pivot;
            }
        }
        if k < cut {
            end = cut;
        } else {
            start = cut;
        }
    }
    for i in start + 1..end {
        let mut j = i;
        while j > start && items.at[axis][j - 1] > items.at[axis][j] {
            items.swap(j, j - 1);
            j -= 1;
        }
    }
    items.at[axis][k]
}

/// Number of remaining keys that are sorted to find the wanted one.
const SORTED_KEYS: usize = 8;
/// Largest number of passes over the keys.
const MAX_PASSES: usize = 16;

/// The key of rank `k`. `None` if the keys are spread so unevenly that it would take too many passes.
fn key_of_rank(keys: &[f64], k: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if crate::partition::avx512::available() {
        #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,popcnt")]
        fn wide(keys: &[f64], k: usize) -> Option<f64> {
            counted(keys, k)
        }
        // SAFETY: `available` has just found the features.
        return unsafe { wide(keys, k) };
    }
    counted(keys, k)
}

/// Regula falsi on the number of keys below a level.
#[inline(always)]
fn counted(keys: &[f64], k: usize) -> Option<f64> {
    let below = |level: f64| keys.iter().map(|&x| u64::from(x < level)).sum::<u64>() as usize;
    let least = |m: f64, &x: &f64| if x < m { x } else { m };
    let most = |m: f64, &x: &f64| if x > m { x } else { m };
    // The wanted key is in low..high; `first` keys are below low, `last` below high.
    let mut low = keys.iter().fold(f64::INFINITY, least);
    let mut high = keys.iter().fold(f64::NEG_INFINITY, most).next_up();
    let (mut first, mut last) = (0, keys.len());
    for _ in 0..MAX_PASSES {
        if last - first <= SORTED_KEYS {
            let (mut few, mut n) = ([0.0; SORTED_KEYS + 1], 0);
            for &x in keys {
                few[n] = x;
                n += usize::from(low <= x && x < high);
            }
            few[..n].sort_unstable_by(f64::total_cmp);
            return few.get(k - first).copied();
        }
        let level = low + (high - low) * ((k - first) as f64 + 0.5) / (last - first) as f64;
        if !(low < level && level < high) {
            return None;
        }
        let count = below(level);
        if count <= k {
            (low, first) = (level, count);
        } else {
            (high, last) = (level, count);
        }
    }
    None
}

/// A key a little beyond rank `k`, on the side that leaves rank `k` in the smaller part.
fn pivot(keys: &[f64], k: usize) -> f64 {
    // Ranks in a sample of √n keys are accurate to 1/n^¼. More than 1023 keys would cost more than they save.
    if keys.len() < 1 << 10 { pivot_of::<31>(keys, k) } else { pivot_of::<1023>(keys, k) }
}

/// As [`pivot`], with a sample of at most `N` keys.
fn pivot_of<const N: usize>(keys: &[f64], k: usize) -> f64 {
    let n = keys.len();
    let size = ((n as f64).sqrt() as usize).min(N) | 1;
    let mut sample = [0.0; N];
    let sample = &mut sample[..size];
    // Equal steps in units of 2⁻³² keys, so that one division is enough.
    let step = (n << 32) / size;
    for (i, s) in sample.iter_mut().enumerate() {
        *s = keys[(i * step + step / 2) >> 32];
    }
    let fraction = (k as f64 + 0.5) / n as f64;
    let margin = PIVOT_MARGIN * (fraction * (1.0 - fraction) * size as f64).sqrt();
    let rank = fraction * size as f64 + if fraction <= 0.5 { margin } else { -margin };
    let rank = (rank.max(0.0) as usize).min(size - 1);
    *sample.select_nth_unstable_by(rank, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::testkit::clouds::Generator;

    #[test]
    fn every_rank_of_every_order() {
        let keys: [fn(&mut Generator, usize) -> f64; 9] = [
            |g, _| g.uniform(),
            |_, i| i as f64,
            |_, i| -(i as f64),
            |g, _| (g.bits() % 3) as f64,
            |_, _| 0.25,
            |_, i| (i % 17) as f64,
            |_, i| if i % 2 == 0 { 0.0 } else { -0.0 },
            |g, _| 10f64.powf(600.0 * g.uniform() - 300.0),
            |g, _| if g.bits() % 5 == 0 { g.uniform() } else { -1e300 },
        ];
        for (kind, key) in keys.into_iter().enumerate() {
            for n in [1, 2, 15, 16, 17, 18, 23, 24, 64, 300, 5000] {
                for k in [0, n / 3, n / 2, n - 1] {
                    let mut g = Generator::new(n as u64);
                    let mut y: Vec<f64> = (0..n).map(|i| key(&mut g, i)).collect();
                    let before = y.clone();
                    let mut x: Vec<f64> = (0..n).map(|i| i as f64).collect();
                    let mut id: Vec<u32> = (0..n as u32).collect();
                    let key = select(&mut Items { at: [&mut x, &mut y], id: &mut id }, 1, k);
                    assert!(y[..k].iter().all(|&a| a <= key), "kind {kind}, n {n}, k {k}");
                    assert!(y[k..].iter().all(|&a| a >= key), "kind {kind}, n {n}, k {k}");
                    let mut sorted = before.clone();
                    sorted.sort_by(f64::total_cmp);
                    assert!(sorted[k] == key, "kind {kind}, n {n}, k {k}");
                    for i in 0..n {
                        assert_eq!((x[i], y[i]), (id[i] as f64, before[id[i] as usize]));
                    }
                    id.sort_unstable();
                    assert!(id.iter().enumerate().all(|(i, &id)| id == i as u32));
                }
            }
        }
    }
}
