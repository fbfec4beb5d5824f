//! Who meets whom: the θ-criterion, passed from parents to children (Goude & Engblom 2012, §2).
//!
//! Boxes of radii r ≤ R at distance d > 0 are well separated when R + θr ≤ θd (eq. 2.1): they meet by M2L
//! at the level where this first holds. Leaves that stay coupled meet by P2P, or, when the criterion holds
//! with r and R interchanged, by P2L into the smaller and M2P out of the smaller.

use crate::pyramid::{Pyramid, level_start};
use fmm_traits::{Edges, Error, Lists};
use rayon::prelude::*;

/// The θ-criterion and what pays at the finest level.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// θ in (0, 1): multipoles converge as θ^p.
    pub theta: f64,
    /// Fewer sources than this in a leaf are summed directly where M2P were possible.
    pub m2p_min_sources: usize,
    /// Fewer targets than this in a leaf are summed directly where P2L were possible.
    pub p2l_min_targets: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions { theta: 0.5, m2p_min_sources: 0, p2l_min_targets: 0 }
    }
}

/// How a target box takes a source box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coupling {
    /// Eq. 2.1 holds.
    Weak,
    /// It holds with the radii interchanged.
    Swapped,
    /// Neither.
    Strong,
}

/// Coupling of two boxes of the given radii whose centres are `d` apart (as a vector).
pub fn coupling(theta: f64, radii: [f64; 2], d: [f64; 2]) -> Coupling {
    let [a, b] = radii;
    let (r, big) = if a < b { (a, b) } else { (b, a) };
    let square = d[0] * d[0] + d[1] * d[1];
    let reach = theta * theta * square;
    // Where squares underflow or overflow, boxes stay strongly coupled: slow, never wrong.
    let usable = square > 1e-290 && square < f64::MAX;
    let holds = |x: f64, y: f64| usable && (x + theta * y) * (x + theta * y) <= reach;
    if holds(big, r) {
        Coupling::Weak
    } else if holds(r, big) {
        Coupling::Swapped
    } else {
        Coupling::Strong
    }
}

/// Edges into the boxes of one level: a row per box.
#[derive(Default)]
struct Rows {
    lengths: Vec<u32>,
    sources: Vec<u32>,
}

impl Rows {
    fn end_row(&mut self, before: usize) {
        self.lengths.push((self.sources.len() - before) as u32);
    }
}

/// What a chunk of target boxes of one level couples to.
#[derive(Default)]
struct Found {
    weak: Rows,
    strong: Rows,
}

/// Parents a task visits.
const CHUNK: usize = 64;

/// The edge lists of `pyramid` under the θ-criterion. Boxes without sources (targets) take no part as
/// source (target).
///
/// # Errors
/// [`Error::Parameter`] when θ is outside (0, 1).
pub fn connect(pyramid: &Pyramid, options: &ConnectOptions) -> Result<Lists, Error> {
    let theta = options.theta;
    if !(theta > 0.0 && theta < 1.0) {
        return Err(Error::Parameter { name: "theta", value: theta, requirement: "must lie between 0 and 1" });
    }
    let (n, depth) = (pyramid.len(), pyramid.depth());
    let mut m2l = Builder::new(n);
    let root = pyramid.sources_of(0).is_empty() || pyramid.targets_of(0).is_empty();
    // Strong couplings of the level above, a row per box; a box is strongly coupled to itself.
    let mut strong = Edges { starts: vec![0, usize::from(!root)], sources: if root { vec![] } else { vec![0] } };
    m2l.empty_rows(1);
    for l in 1..=depth {
        let above = level_start(l - 1);
        let tasks = (level_start(l) - above).div_ceil(CHUNK);
        let found: Vec<Found> = (0..tasks)
            .into_par_iter()
            .map(|t| {
                let parents = t * CHUNK..((t + 1) * CHUNK).min(level_start(l) - above);
                split_coupling(pyramid, theta, above, parents, &strong)
            })
            .collect();
        let mut next = Builder::new(level_start(l + 1) - level_start(l));
        for f in found {
            m2l.append(f.weak);
            next.append(f.strong);
        }
        strong = next.edges;
    }
    finest(pyramid, options, &strong, m2l.edges)
}

/// Children of the boxes `parents` (counted from `above`) against the children of what these couple to.
fn split_coupling(
    pyramid: &Pyramid,
    theta: f64,
    above: usize,
    parents: std::ops::Range<usize>,
    strong: &Edges,
) -> Found {
    let mut found = Found::default();
    let mut candidates: Vec<(u32, [f64; 2], f64)> = Vec::new();
    for k in parents {
        let parent = above + k;
        candidates.clear();
        for &q in strong.row(k) {
            for c in 4 * q + 1..4 * q + 5 {
                if !pyramid.sources_of(c as usize).is_empty() {
                    candidates.push((c, pyramid.center[c as usize], pyramid.radius[c as usize]));
                }
            }
        }
        for t in 4 * parent + 1..4 * parent + 5 {
            let (weak, near) = (&mut found.weak, &mut found.strong);
            let before = (weak.sources.len(), near.sources.len());
            if !pyramid.targets_of(t).is_empty() {
                let (center, radius) = (pyramid.center[t], pyramid.radius[t]);
                for &(s, at, r) in &candidates {
                    let d = [at[0] - center[0], at[1] - center[1]];
                    let rows = if coupling(theta, [radius, r], d) == Coupling::Weak { &mut *weak } else { &mut *near };
                    rows.sources.push(s);
                }
            }
            weak.end_row(before.0);
            near.end_row(before.1);
        }
    }
    found
}

/// Sorts the couplings that are left at the finest level, and adds the edges along the pyramid.
fn finest(pyramid: &Pyramid, options: &ConnectOptions, strong: &Edges, m2l: Edges) -> Result<Lists, Error> {
    let (n, first) = (pyramid.len(), level_start(pyramid.depth()));
    let leaves = n - first;
    let tasks = leaves.div_ceil(CHUNK);
    let found: Vec<[Rows; 3]> = (0..tasks)
        .into_par_iter()
        .map(|task| {
            let mut rows: [Rows; 3] = Default::default();
            for k in task * CHUNK..((task + 1) * CHUNK).min(leaves) {
                let before = [0, 1, 2].map(|i| rows[i].sources.len());
                for &s in strong.row(k) {
                    rows[finest_kind(pyramid, options, first + k, s as usize)].sources.push(s);
                }
                for (rows, before) in rows.iter_mut().zip(before) {
                    rows.end_row(before);
                }
            }
            rows
        })
        .collect();
    let mut builders = [0; 3].map(|_| Builder::new(n));
    for builder in &mut builders {
        builder.empty_rows(first);
    }
    for rows in found {
        for (builder, rows) in builders.iter_mut().zip(rows) {
            builder.append(rows);
        }
    }
    let [p2p, p2l, m2p] = builders.map(|b| b.edges);
    let has_sources = |b: usize| !pyramid.sources_of(b).is_empty();
    let has_targets = |b: usize| !pyramid.targets_of(b).is_empty();
    let lists = Lists {
        p2m: along(n, |b, row| row.extend((b >= first && has_sources(b)).then_some(b as u32))),
        m2m: along(n, |b, row| {
            if b < first {
                row.extend((4 * b + 1..4 * b + 5).filter(|&c| has_sources(c)).map(|c| c as u32));
            }
        }),
        l2l: along(n, |b, row| row.extend((b > 0 && has_targets(b)).then(|| (b as u32 - 1) / 4))),
        l2p: along(n, |b, row| row.extend((b >= first && has_targets(b)).then_some(b as u32))),
        m2l,
        p2l,
        m2p,
        p2p,
    };
    Ok(lists)
}

/// 0: P2P, 1: P2L, 2: M2P, for target leaf `t` and source leaf `s` that are strongly coupled.
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

/// Compressed rows in the making.
struct Builder {
    edges: Edges,
}

impl Builder {
    fn new(rows: usize) -> Self {
        let mut starts = Vec::with_capacity(rows + 1);
        starts.push(0);
        Builder { edges: Edges { starts, sources: Vec::new() } }
    }
    fn empty_rows(&mut self, rows: usize) {
        let end = self.edges.sources.len();
        self.edges.starts.extend(std::iter::repeat_n(end, rows));
    }
    fn append(&mut self, rows: Rows) {
        let mut end = self.edges.sources.len();
        self.edges.starts.extend(rows.lengths.iter().map(|&n| {
            end += n as usize;
            end
        }));
        self.edges.sources.extend_from_slice(&rows.sources);
    }
}

/// Edges of which `row(b, …)` pushes the sources of row `b`.
fn along(n: usize, row: impl Fn(usize, &mut Vec<u32>)) -> Edges {
    let mut edges = Edges { starts: Vec::with_capacity(n + 1), sources: Vec::new() };
    edges.starts.push(0);
    for b in 0..n {
        row(b, &mut edges.sources);
        edges.starts.push(edges.sources.len());
    }
    edges
}
