//! Points in the order of a tree.

use rayon::prelude::*;

/// Points in tree order, one array per axis.
#[derive(Clone, Debug, Default)]
pub struct PlanePoints {
    /// x by position.
    pub x: Vec<f64>,
    /// y by position.
    pub y: Vec<f64>,
    /// The caller's index by position.
    pub order: Vec<u32>,
}

impl PlanePoints {
    pub(crate) fn zeros(n: usize) -> Self {
        PlanePoints { x: vec![0.0; n], y: vec![0.0; n], order: vec![0; n] }
    }
    /// Number of points.
    pub fn len(&self) -> usize {
        self.order.len()
    }
    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// Writes `points` (N×2) from position `first` on.
pub(crate) fn fill(all: &mut PlanePoints, first: usize, points: &[f64]) {
    /// Points that a task writes.
    const TASK_POINTS: usize = 1 << 12;
    let (x, y, order) = (&mut all.x[first..], &mut all.y[first..], &mut all.order[first..]);
    let to = x.par_chunks_mut(TASK_POINTS).zip(y.par_chunks_mut(TASK_POINTS)).zip(order.par_chunks_mut(TASK_POINTS));
    points.par_chunks(2 * TASK_POINTS).zip(to).enumerate().for_each(|(run, (points, ((x, y), order)))| {
        for (i, p) in points.chunks_exact(2).enumerate() {
            (x[i], y[i], order[i]) = (p[0], p[1], (first + run * TASK_POINTS + i) as u32);
        }
    });
}

/// The points whose id satisfies `keep`, and the first point of each leaf. The new ids are counted from `from`.
pub(crate) fn pick(
    points: &PlanePoints,
    start: &[u32],
    from: u32,
    keep: impl Fn(u32) -> bool,
) -> (PlanePoints, Vec<u32>) {
    let mut kept = PlanePoints::default();
    let mut kept_start = Vec::with_capacity(start.len());
    kept_start.push(0);
    for w in start.windows(2) {
        for i in w[0] as usize..w[1] as usize {
            if keep(points.order[i]) {
                kept.x.push(points.x[i]);
                kept.y.push(points.y[i]);
                kept.order.push(points.order[i] - from);
            }
        }
        kept_start.push(kept.len() as u32);
    }
    (kept, kept_start)
}

/// The points at `positions`, numbered anew.
pub(crate) fn kept(points: &PlanePoints, positions: &[u32]) -> PlanePoints {
    let at = |x: &[f64]| positions.iter().map(|&i| x[i as usize]).collect();
    PlanePoints { x: at(&points.x), y: at(&points.y), order: (0..positions.len() as u32).collect() }
}

/// The first of the points at `positions` in each leaf. `start` holds the first point of each leaf among all points.
pub(crate) fn kept_starts(start: &[u32], positions: &[u32]) -> Vec<u32> {
    assert!(positions.is_sorted(), "positions of points must ascend");
    start.iter().map(|&first| positions.partition_point(|&i| i < first) as u32).collect()
}

/// The first place of `order` whose index is out of range or occurs before.
pub(crate) fn first_not_of_a_permutation(order: &[u32]) -> Option<usize> {
    let mut seen = vec![0u64; order.len().div_ceil(64)];
    order.iter().position(|&i| {
        let (word, bit) = (i as usize / 64, 1 << (i % 64));
        let own = (i as usize) < order.len() && seen[word] & bit == 0;
        if own {
            seen[word] |= bit;
        }
        !own
    })
}
