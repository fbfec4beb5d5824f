//! Selection in place: the k-th smallest coordinate in its place, smaller ones before it, larger ones
//! behind it, in little more than one and a half passes (after Floyd & Rivest 1975).

/// A point on its way to its box.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Item {
    /// x, y.
    pub at: [f64; 2],
    /// The caller's index; targets follow the sources.
    pub id: u64,
}

/// Windows up to this long are sorted by insertion.
const SHORT: usize = 20;
/// Largest sample: its ranks are those of the window within ±5 %.
const SAMPLE: usize = 1023;
/// Distance of the pivot from the wanted rank in standard deviations of the sample's rank. Measured at
/// 3 million uniform points: 1.5 and 3 cost 5 % more.
const MARGIN: f64 = 2.0;

/// Rearranges `items` so that no key before position `k` exceeds that at `k`, and none behind it is smaller.
/// The key is coordinate `AXIS`; the result depends on the input only.
pub(crate) fn select<const AXIS: usize>(items: &mut [Item], k: usize) {
    debug_assert!(k < items.len());
    let (mut window, mut k) = (items, k);
    while window.len() > SHORT {
        let pivot = pivot::<AXIS>(window, k);
        let mut cut = partition(window, |p| p.at[AXIS] < pivot);
        if cut == 0 {
            // The pivot is the smallest key: set its copies aside, so that the window shrinks.
            cut = partition(window, |p| p.at[AXIS] <= pivot);
            if k < cut {
                return;
            }
        }
        let (below, above) = window.split_at_mut(cut);
        if k < cut {
            window = below;
        } else {
            (window, k) = (above, k - cut);
        }
    }
    for i in 1..window.len() {
        let item = window[i];
        let mut j = i;
        while j > 0 && window[j - 1].at[AXIS] > item.at[AXIS] {
            window[j] = window[j - 1];
            j -= 1;
        }
        window[j] = item;
    }
}

/// A key of `window` a little beyond rank `k`, on the side that leaves rank `k` in the smaller part.
fn pivot<const AXIS: usize>(window: &[Item], k: usize) -> f64 {
    let n = window.len();
    let size = (2.0 * (n as f64).sqrt()) as usize;
    let size = size.min(n / 3).min(SAMPLE) | 1;
    let mut sample = [0.0; SAMPLE];
    let sample = &mut sample[..size];
    for (i, s) in sample.iter_mut().enumerate() {
        *s = window[(2 * i + 1) * n / (2 * size)].at[AXIS];
    }
    let fraction = (k as f64 + 0.5) / n as f64;
    let margin = MARGIN * (fraction * (1.0 - fraction) * size as f64).sqrt();
    let rank = fraction * size as f64 + if fraction <= 0.5 { margin } else { -margin };
    let rank = (rank.max(0.0) as usize).min(size - 1);
    *sample.select_nth_unstable_by(rank, f64::total_cmp).1
}

/// Moves the items that satisfy `below` to the front; returns how many there are. One pass without a
/// branch on data.
fn partition(items: &mut [Item], below: impl Fn(&Item) -> bool) -> usize {
    let mut cut = 0;
    for i in 0..items.len() {
        let item = items[i];
        // SAFETY: `cut` grows by at most one a turn, so cut ≤ i < items.len().
        unsafe {
            *items.get_unchecked_mut(i) = *items.get_unchecked(cut);
            *items.get_unchecked_mut(cut) = item;
        }
        cut += usize::from(below(&item));
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_traits::testkit::clouds::Generator;

    fn items(n: usize, key: impl Fn(&mut Generator, usize) -> f64) -> Vec<Item> {
        let mut g = Generator::new(n as u64);
        (0..n).map(|i| Item { at: [0.0, key(&mut g, i)], id: i as u64 }).collect()
    }

    #[test]
    fn every_rank_of_every_order() {
        let keys: [fn(&mut Generator, usize) -> f64; 6] = [
            |g, _| g.uniform(),
            |_, i| i as f64,
            |_, i| -(i as f64),
            |g, _| (g.bits() % 3) as f64,
            |_, _| 0.25,
            |_, i| (i % 17) as f64,
        ];
        for (kind, key) in keys.into_iter().enumerate() {
            for n in [1, 2, 19, 21, 64, 300, 5000] {
                for k in [0, n / 3, n / 2, n - 1] {
                    let mut a = items(n, key);
                    select::<1>(&mut a, k);
                    let at = a[k].at[1];
                    assert!(a[..k].iter().all(|p| p.at[1] <= at), "kind {kind}, n {n}, k {k}");
                    assert!(a[k..].iter().all(|p| p.at[1] >= at), "kind {kind}, n {n}, k {k}");
                    let mut ids: Vec<u64> = a.iter().map(|p| p.id).collect();
                    ids.sort_unstable();
                    assert!(ids.iter().enumerate().all(|(i, &id)| id == i as u64));
                }
            }
        }
    }
}
