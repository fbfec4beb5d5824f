//! Edge lists from the θ-criterion, passed from parents to children (Goude & Engblom 2012, §2).
//!
//! Two boxes of radii r ≤ R at distance d > 0 are well separated if R + θr ≤ θd (eq. 2.1). They interact by M2L on
//! the first level where this holds. Leaves that are never well separated interact by P2P. If the criterion holds
//! with r and R exchanged, they interact by P2L into the smaller leaf and by M2P out of the smaller leaf instead.

use crate::pyramid::{Pyramid, level_start};
use fmm_traits::{Edges, Error, Lists};
use rayon::prelude::*;
use std::ops::Range;

/// θ, and the thresholds below which edges between leaves are summed directly.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// θ in (0, 1): multipoles converge as θ^p.
    pub theta: f64,
    /// A source leaf with fewer sources is summed directly instead of by M2P.
    pub m2p_min_sources: usize,
    /// A target leaf with fewer targets is summed directly instead of by P2L.
    pub p2l_min_targets: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions { theta: 0.5, m2p_min_sources: 0, p2l_min_targets: 0 }
    }
}

impl ConnectOptions {
    /// # Errors
    /// [`Error::Parameter`] when θ is outside (0, 1).
    pub fn check(&self) -> Result<(), Error> {
        let value = self.theta;
        if value > 0.0 && value < 1.0 {
            return Ok(());
        }
        Err(Error::Parameter { name: "theta", value, requirement: "must lie between 0 and 1" })
    }
}

/// The coupling of a target box and a source box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coupling {
    /// Eq. 2.1 holds: M2L.
    Weak,
    /// Eq. 2.1 holds only with the radii exchanged: P2L or M2P between leaves.
    Swapped,
    /// Neither holds: P2P between leaves.
    Strong,
}

/// The coupling of two boxes of the given radii. `d` is the vector between their centres.
pub fn coupling(theta: f64, radii: [f64; 2], d: [f64; 2]) -> Coupling {
    let [a, b] = radii;
    let (r, big) = if a < b { (a, b) } else { (b, a) };
    if separated(theta, big, r, d) {
        Coupling::Weak
    } else if separated(theta, r, big, d) {
        Coupling::Swapped
    } else {
        Coupling::Strong
    }
}

/// Whether R + θr ≤ θ|d|, computed in squares. It has no branch, so that many boxes are tested in one vector.
#[inline(always)]
fn separated(theta: f64, big: f64, r: f64, d: [f64; 2]) -> bool {
    let square = d[0] * d[0] + d[1] * d[1];
    let reach = big + theta * r;
    // If squares underflow or overflow, boxes stay strongly coupled. That is slow but never wrong.
    (square > 1e-290) & (square < f64::MAX) & (reach * reach <= theta * theta * square)
}

/// Boxes per task: parents whose children the task visits or, on the finest level, leaves.
const BOXES_PER_TASK: usize = 64;

/// The edge lists of `pyramid` under the θ-criterion. Boxes without sources are never a source box; boxes without
/// targets are never a target box.
///
/// # Errors
/// [`Error::Parameter`] when θ is outside (0, 1).
pub fn connect(pyramid: &Pyramid, options: &ConnectOptions) -> Result<Lists, Error> {
    options.check()?;
    let theta = options.theta;
    let (n, depth) = (pyramid.len(), pyramid.depth());
    let filled = filled(pyramid);
    let mut m2l = empty_rows(n, 1);
    // Strong couplings of the level above, one row per box. A box is strongly coupled to itself.
    let mut strong = empty_rows(1, 0);
    strong.sources.extend((filled[0][0] && filled[1][0]).then_some(0));
    strong.starts.push(strong.sources.len());
    for l in 1..=depth {
        let boxes = pyramid.level(l);
        let mut next = empty_rows(boxes.len(), 0);
        append([&mut m2l, &mut next], boxes.len(), 4 * BOXES_PER_TASK, |rows, candidates: &mut Candidates, take| {
            for k in rows.start / 4..rows.end / 4 {
                candidates.set(pyramid, &filled[0], strong.row(k));
                for t in boxes.start + 4 * k..boxes.start + 4 * k + 4 {
                    take(if filled[1][t] { candidates.sorted(theta, pyramid, t) } else { [&[], &[]] });
                }
            }
        });
        strong = next;
    }
    Ok(finest(pyramid, options, &strong, m2l, filled))
}

/// Source boxes that may couple to the children of one box, one array per property.
#[derive(Default)]
struct Candidates {
    name: Vec<u32>,
    x: Vec<f64>,
    y: Vec<f64>,
    radius: Vec<f64>,
    /// Whether each source box couples weakly to the current child.
    weak: Vec<bool>,
    /// The boxes that couple weakly, and the other boxes.
    sorted: [Vec<u32>; 2],
}

impl Candidates {
    /// Sets the candidates to the children, with sources, of the boxes `above`.
    fn set(&mut self, pyramid: &Pyramid, filled: &[bool], above: &[u32]) {
        self.name.clear();
        self.name.extend(above.iter().flat_map(|q| 4 * q + 1..4 * q + 5).filter(|&c| filled[c as usize]));
        self.x.clear();
        self.x.extend(self.name.iter().map(|&c| pyramid.center[c as usize][0]));
        self.y.clear();
        self.y.extend(self.name.iter().map(|&c| pyramid.center[c as usize][1]));
        self.radius.clear();
        self.radius.extend(self.name.iter().map(|&c| pyramid.radius[c as usize]));
    }

    /// The candidates that couple weakly to box `t`, and the other candidates.
    fn sorted(&mut self, theta: f64, pyramid: &Pyramid, t: usize) -> [&[u32]; 2] {
        let (center, radius) = (pyramid.center[t], pyramid.radius[t]);
        self.weak.clear();
        self.weak.extend(self.x.iter().zip(&self.y).zip(&self.radius).map(|((x, y), &r)| {
            let (small, large) = if radius < r { (radius, r) } else { (r, radius) };
            separated(theta, large, small, [x - center[0], y - center[1]])
        }));
        let n = self.name.len();
        let [weak, strong] = &mut self.sorted;
        weak.resize(n, 0);
        strong.resize(n, 0);
        // Every name is written to both arrays but counted in one. A branch would often be mispredicted.
        let (mut w, mut s) = (0, 0);
        for (&name, &is_weak) in self.name.iter().zip(&self.weak) {
            (weak[w], strong[s]) = (name, name);
            w += usize::from(is_weak);
            s += usize::from(!is_weak);
        }
        [&weak[..w], &strong[..s]]
    }
}

/// Turns the strong couplings of the finest level into P2P, P2L and M2P edges, and adds the edges between parents and
/// children. `filled` says which boxes have sources and which have targets.
fn finest(pyramid: &Pyramid, options: &ConnectOptions, strong: &Edges, m2l: Edges, filled: [Vec<bool>; 2]) -> Lists {
    let (n, first) = (pyramid.len(), level_start(pyramid.depth()));
    let [mut p2p, mut p2l, mut m2p] = [0; 3].map(|_| empty_rows(n, first));
    append([&mut p2p, &mut p2l, &mut m2p], n - first, BOXES_PER_TASK, |rows, sorted: &mut [Vec<u32>; 3], take| {
        for k in rows {
            sorted.iter_mut().for_each(Vec::clear);
            for &s in strong.row(k) {
                sorted[finest_kind(pyramid, options, first + k, s as usize)].push(s);
            }
            take(sorted.each_ref().map(|s| &s[..]));
        }
    });
    Lists { m2l, p2l, m2p, p2p, ..along_the_tree(pyramid, filled) }
}

/// Which boxes have sources, and which have targets.
fn filled(pyramid: &Pyramid) -> [Vec<bool>; 2] {
    let filled = |points: fn(&Pyramid, usize) -> Range<usize>| {
        let boxes = (0..pyramid.len()).into_par_iter().with_min_len(1 << 12);
        boxes.map(|b| !points(pyramid, b).is_empty()).collect::<Vec<bool>>()
    };
    [filled(Pyramid::sources_of), filled(Pyramid::targets_of)]
}

/// Lists with the given edges across the tree, and the edges along the tree that every pyramid has.
pub fn completed(pyramid: &Pyramid, m2l: Edges, p2l: Edges, m2p: Edges, p2p: Edges) -> Lists {
    Lists { m2l, p2l, m2p, p2p, ..along_the_tree(pyramid, filled(pyramid)) }
}

/// The edges of P2M, M2M, L2L and L2P. `filled` says which boxes have sources and which have targets.
fn along_the_tree(pyramid: &Pyramid, filled: [Vec<bool>; 2]) -> Lists {
    let (n, first) = (pyramid.len(), level_start(pyramid.depth()));
    let [has_sources, has_targets] = filled;
    let up = || {
        let p2m = along(n, |b, row| row.extend((b >= first && has_sources[b]).then_some(b as u32)));
        let m2m = along(n, |b, row| {
            if b < first {
                row.extend((4 * b as u32 + 1..4 * b as u32 + 5).filter(|&c| has_sources[c as usize]));
            }
        });
        (p2m, m2m)
    };
    let down = || {
        let l2l = along(n, |b, row| row.extend((b > 0 && has_targets[b]).then(|| (b as u32 - 1) / 4)));
        let l2p = along(n, |b, row| row.extend((b >= first && has_targets[b]).then_some(b as u32)));
        (l2l, l2p)
    };
    let ((p2m, m2m), (l2l, l2p)) = rayon::join(up, down);
    Lists { p2m, m2m, l2l, l2p, ..Lists::default() }
}

/// The kind of edge between a target leaf `t` and a source leaf `s` that are not weakly coupled. 0: P2P, 1: P2L, 2:
/// M2P.
fn finest_kind(pyramid: &Pyramid, options: &ConnectOptions, t: usize, s: usize) -> usize {
    let (c, o) = (pyramid.center[t], pyramid.center[s]);
    let (r_t, r_s) = (pyramid.radius[t], pyramid.radius[s]);
    if coupling(options.theta, [r_t, r_s], [o[0] - c[0], o[1] - c[1]]) != Coupling::Swapped {
        0
    } else if r_t < r_s {
        usize::from(pyramid.targets_of(t).len() >= options.p2l_min_targets)
    } else {
        2 * usize::from(pyramid.sources_of(s).len() >= options.m2p_min_sources)
    }
}

/// A list with `empty` empty rows, and room for `rows` rows.
fn empty_rows(rows: usize, empty: usize) -> Edges {
    let mut starts = Vec::with_capacity(rows + 1);
    starts.resize(empty + 1, 0);
    Edges { starts, sources: Vec::new() }
}

/// Appends `rows` rows to each of `K` lists, in tasks of `per_task` rows. `found(rows, scratch, take)` calls `take`
/// with the edges of each of its rows in turn.
///
/// `found` runs twice: first to count edges, then to write them. Lists have many megabytes, so this is cheaper than
/// collecting rows and copying them. (Rows of coarser levels are copied once per level.)
fn append<const K: usize, S: Default>(
    lists: [&mut Edges; K],
    rows: usize,
    per_task: usize,
    found: impl Fn(Range<usize>, &mut S, &mut dyn FnMut([&[u32]; K])) + Sync,
) {
    let range = |task: usize| task * per_task..((task + 1) * per_task).min(rows);
    let mut lengths = vec![[0u32; K]; rows];
    lengths.par_chunks_mut(per_task).enumerate().for_each_init(S::default, |scratch, (task, lengths)| {
        let mut row = 0;
        found(range(task), scratch, &mut |edges| {
            lengths[row] = edges.map(|e| e.len() as u32);
            row += 1;
        });
    });
    let mut k = 0;
    let mut rest = lists.map(|list| {
        let before = list.sources.len();
        let mut end = before;
        list.starts.extend(lengths.iter().map(|length| {
            end += length[k] as usize;
            end
        }));
        // A new allocation of zeros consists of untouched pages; the tasks below are the first to write them.
        let old = std::mem::replace(&mut list.sources, vec![0; end]);
        list.sources[..before].copy_from_slice(&old);
        k += 1;
        &mut list.sources[before..]
    });
    let mut parts = Vec::with_capacity(rows.div_ceil(per_task));
    for lengths in lengths.chunks(per_task) {
        parts.push(std::array::from_fn::<_, K, _>(|k| {
            let count = lengths.iter().map(|l| l[k] as usize).sum();
            split_off(&mut rest[k], count)
        }));
    }
    parts.into_par_iter().enumerate().for_each_init(S::default, |scratch, (task, mut part)| {
        found(range(task), scratch, &mut |edges| {
            for (part, edges) in part.iter_mut().zip(edges) {
                split_off(part, edges.len()).copy_from_slice(edges);
            }
        });
    });
}

/// Removes the first `n` entries from `rest` and returns them.
fn split_off<'a>(rest: &mut &'a mut [u32], n: usize) -> &'a mut [u32] {
    let (first, behind) = std::mem::take(rest).split_at_mut(n);
    *rest = behind;
    first
}

/// A list of `n` rows and at most `n` edges. `row(b, …)` pushes the sources of row `b`.
fn along(n: usize, row: impl Fn(usize, &mut Vec<u32>)) -> Edges {
    let mut edges = empty_rows(n, 0);
    edges.sources.reserve_exact(n);
    for b in 0..n {
        row(b, &mut edges.sources);
        edges.starts.push(edges.sources.len());
    }
    edges
}
