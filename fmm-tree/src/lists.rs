//! U, V, W and X lists (Lashuk et al. 2009, §II, Table I) as edge lists.
//!
//! The lists are found in one pass from the root down. A box that is split hands two lists to its children: its
//! *colleagues* C (adjacent boxes of its level, itself included) and its *coarse neighbours* A (adjacent leaves of
//! coarser levels). For a child b of this box:
//! * children of C adjacent to b are the colleagues of b, the other children are **V**(b);
//! * leaves of C, and members of A, adjacent to b are the coarse neighbours of b, the others are **X**(b);
//! * if b is a leaf, its coarse neighbours, its colleagues that are leaves and the adjacent leaves below its other
//!   colleagues are **U**(b). Boxes on the way down to these leaves that are not adjacent are **W**(b).
//!
//! Boxes without sources never enter C or A; the rows of boxes without targets
//! are empty.

use fmm_traits::Error;
use fmm_traits::tree::{Edges, Lists, NONE, Tree};
use rayon::prelude::*;

/// Thresholds below which a W or X edge of a small leaf becomes a P2P edge. Summing few points pair by pair is exact,
/// and cheaper than an expansion with more coefficients than the leaf has points.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListOptions {
    /// A W edge becomes a P2P edge if its source box is a leaf with fewer sources.
    pub m2p_min_sources: usize,
    /// An X edge becomes a P2P edge if its target box is a leaf with fewer targets.
    pub p2l_min_targets: usize,
}

/// The edge lists of `tree` by the U, V, W, X rules. Rows are sorted. Edges without an effect are left out: source
/// boxes without sources, target boxes without targets, L2L and L2P of a local that received nothing, and P2M and M2M
/// above the coarsest level whose multipoles are read.
///
/// The result does not depend on the number of threads; work runs on the current rayon pool.
///
/// # Errors
/// [`Error::Edge`] when the child ranges of `tree` are not those of an octree.
pub fn uvwx(tree: &Tree, options: &ListOptions) -> Result<Lists, Error> {
    let mut lists = across(tree, options)?;
    complete(tree, &mut lists);
    Ok(lists)
}

/// The rows of M2L, P2L, M2P and P2P by the U, V, W, X rules.
pub(crate) fn across(tree: &Tree, options: &ListOptions) -> Result<Lists, Error> {
    if tree.is_empty() {
        return Ok(Lists::default());
    }
    for b in 0..tree.len() {
        if tree.child_count[b] > 8 || (!tree.is_leaf(b) && tree.children(b).end > tree.len()) {
            return Err(Error::Edge { what: "children out of range".into(), target: b as u32, source_box: NONE });
        }
    }
    let level = levels(tree);
    let geometry = Geometry { tree, level: &level, options: *options };

    let mut parts = Vec::new();
    let mut parents = geometry.root(&mut parts);
    while !parents.boxes.is_empty() {
        let chunk = (parents.boxes.len() / (8 * rayon::current_num_threads())).max(8);
        let count = parents.boxes.len().div_ceil(chunk);
        let found: Vec<(Rows, Parents)> = (0..count)
            .into_par_iter()
            .map(|c| {
                let end = ((c + 1) * chunk).min(parents.boxes.len());
                let mut finder = Finder::new(&geometry);
                for i in c * chunk..end {
                    finder.family(&parents, i);
                }
                (finder.rows, finder.parents)
            })
            .collect();
        let mut next = Parents::default();
        for (rows, p) in found {
            parts.push(rows);
            next.append(&p);
        }
        parents = next;
    }

    let n = tree.len();
    Ok(Lists {
        m2l: concatenate(n, &parts, 0),
        p2l: concatenate(n, &parts, 1),
        m2p: concatenate(n, &parts, 2),
        p2p: concatenate(n, &parts, 3),
        ..Default::default()
    })
}

/// Fills in the P2M, M2M, L2L and L2P edges that the M2L, P2L, M2P and P2P edges (sorted rows) need.
pub(crate) fn complete(tree: &Tree, lists: &mut Lists) {
    if !tree.is_empty() {
        upward(tree, lists, coarsest_read(tree, lists));
        downward(tree, lists);
    }
}

/// Level of each box.
pub(crate) fn levels(tree: &Tree) -> Vec<u8> {
    let mut level = vec![0; tree.len()];
    for l in 0..tree.levels() {
        level[tree.level(l)].fill(l as u8);
    }
    level
}

/// Whether two cubes (anchor, level) share at least a point.
pub(crate) fn touch(a: [u64; 3], a_level: u8, b: [u64; 3], b_level: u8) -> bool {
    if a_level > b_level {
        return touch(b, b_level, a, a_level);
    }
    let d = b_level - a_level;
    (0..3).all(|x| (a[x] << d) <= b[x] + 1 && b[x] <= (a[x] + 1) << d)
}

/// The coarsest level of a multipole that is read; `usize::MAX` if none is.
pub fn coarsest_read(tree: &Tree, lists: &Lists) -> usize {
    let first = |e: &Edges| (0..tree.len()).into_par_iter().filter_map(|t| e.row(t).first()).min().copied();
    let coarsest = [&lists.m2l, &lists.m2p].into_iter().filter_map(first).min();
    coarsest.map_or(usize::MAX, |s| tree.level_of(s as usize))
}

/// Fills in P2M and M2M of the boxes of the levels from `first` on. Ranks that share a tree agree on the level: some
/// rank may read what another one has no use for.
pub fn upward(tree: &Tree, lists: &mut Lists, first: usize) {
    let level = levels(tree);
    let used = |b: usize| usize::from(level[b]) >= first && tree.source_count(b) > 0 && tree.gives(b);
    lists.p2m = rows(tree, |b, row| row.extend((used(b) && tree.is_leaf(b)).then_some(b as u32)));
    lists.m2m = rows(tree, |b, row| {
        if used(b) {
            row.extend(tree.children(b).filter(|&c| used(c)).map(|c| c as u32));
        }
    });
}

/// L2L and L2P where a local has received something.
fn downward(tree: &Tree, lists: &mut Lists) {
    let mut reached = vec![false; tree.len()];
    for b in 0..tree.len() {
        let parent = tree.parent[b];
        let above = parent != NONE && reached[parent as usize];
        reached[b] =
            !tree.targets_of(b).is_empty() && (above || !lists.m2l.row(b).is_empty() || !lists.p2l.row(b).is_empty());
    }
    lists.l2l = rows(tree, |b, row| {
        let parent = tree.parent[b];
        if reached[b] && parent != NONE && reached[parent as usize] {
            row.push(parent);
        }
    });
    lists.l2p = rows(tree, |b, row| row.extend((reached[b] && tree.is_leaf(b)).then_some(b as u32)));
}

/// Edges from a function that appends the row of a box.
pub(crate) fn rows(tree: &Tree, mut row: impl FnMut(usize, &mut Vec<u32>)) -> Edges {
    let mut e = Edges { starts: Vec::with_capacity(tree.len() + 1), sources: Vec::new() };
    e.starts.push(0);
    for b in 0..tree.len() {
        row(b, &mut e.sources);
        e.starts.push(e.sources.len());
    }
    e
}

/// Rows of consecutive boxes: V, X, W, U.
#[derive(Default)]
struct Rows {
    lengths: [Vec<u32>; 4],
    sources: [Vec<u32>; 4],
}

/// The rows of one kind, parts in box order.
fn concatenate(boxes: usize, parts: &[Rows], kind: usize) -> Edges {
    let total: usize = parts.iter().map(|p| p.sources[kind].len()).sum();
    let mut e = Edges { starts: Vec::with_capacity(boxes + 1), sources: vec![0; total] };
    let mut end = 0;
    e.starts.push(0);
    for &length in parts.iter().flat_map(|p| &p.lengths[kind]) {
        end += length as usize;
        e.starts.push(end);
    }
    let mut rest = &mut e.sources[..];
    let mut copies = Vec::with_capacity(parts.len());
    for p in parts {
        let (to, more) = rest.split_at_mut(p.sources[kind].len());
        copies.push((to, &p.sources[kind]));
        rest = more;
    }
    copies.into_par_iter().for_each(|(to, from)| to.copy_from_slice(from));
    e
}

/// Split boxes of one level, in box order, and the lists their children need.
#[derive(Default)]
struct Parents {
    boxes: Vec<u32>,
    colleagues: Ragged,
    coarse: Ragged,
}

impl Parents {
    fn append(&mut self, o: &Parents) {
        self.boxes.extend_from_slice(&o.boxes);
        self.colleagues.append(&o.colleagues);
        self.coarse.append(&o.coarse);
    }
}

/// Rows of different lengths.
#[derive(Default)]
struct Ragged {
    ends: Vec<usize>,
    data: Vec<u32>,
}

impl Ragged {
    fn push(&mut self, row: &[u32]) {
        self.data.extend_from_slice(row);
        self.ends.push(self.data.len());
    }
    fn row(&self, i: usize) -> &[u32] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.data[start..self.ends[i]]
    }
    fn append(&mut self, o: &Ragged) {
        let before = self.data.len();
        self.data.extend_from_slice(&o.data);
        self.ends.extend(o.ends.iter().map(|e| e + before));
    }
}

/// The tree and the options, shared by all chunks.
struct Geometry<'a> {
    tree: &'a Tree,
    level: &'a [u8],
    options: ListOptions,
}

impl Geometry<'_> {
    fn has_sources(&self, b: u32) -> bool {
        self.tree.source_count(b as usize) > 0
    }
    fn touch(&self, a: u32, b: u32) -> bool {
        let (a, b) = (a as usize, b as usize);
        touch(self.tree.anchor[a], self.level[a], self.tree.anchor[b], self.level[b])
    }
    /// Rows of the root, and the root as first parent.
    fn root(&self, parts: &mut Vec<Rows>) -> Parents {
        let mut finder = Finder::new(self);
        if self.has_sources(0) {
            finder.colleagues.push(0);
        }
        finder.finish(0);
        parts.push(finder.rows);
        finder.parents
    }
}

/// A box that may be a colleague or a V box of the children of one parent.
struct Candidate {
    id: u32,
    /// Bit o: adjacent to the child in octant o.
    adjacent: u8,
    /// Whether the candidate lies on the parent's level. Otherwise it lies on the children's level.
    coarse: bool,
}

/// Finds the rows of one chunk of boxes.
struct Finder<'a> {
    g: &'a Geometry<'a>,
    rows: Rows,
    parents: Parents,
    // Scratch for the current family and box, kept so that its memory is reused.
    candidates: Vec<Candidate>,
    colleagues: Vec<u32>,
    coarse: Vec<u32>,
    /// V, X, W, U.
    row: [Vec<u32>; 4],
    stack: Vec<u32>,
}

const V: usize = 0;
const X: usize = 1;
const W: usize = 2;
const U: usize = 3;

/// Octants of a box, as bits, adjacent to the interval `from..=to` on one axis, in units of a
/// child counted from the lower corner of the box.
fn octants_touching(axis: usize, from: i64, to: i64) -> u8 {
    const UPPER: [u8; 3] = [0b1010_1010, 0b1100_1100, 0b1111_0000];
    let lower = if from <= 1 && to >= 0 { !UPPER[axis] } else { 0 };
    let upper = if from <= 2 && to >= 1 { UPPER[axis] } else { 0 };
    lower | upper
}

impl<'a> Finder<'a> {
    fn new(g: &'a Geometry<'a>) -> Self {
        Finder {
            g,
            rows: Rows::default(),
            parents: Parents::default(),
            candidates: Vec::new(),
            colleagues: Vec::new(),
            coarse: Vec::new(),
            row: Default::default(),
            stack: Vec::new(),
        }
    }

    /// Rows of the children of the `i`-th parent.
    fn family(&mut self, parents: &Parents, i: usize) {
        let t = self.g.tree;
        let parent = parents.boxes[i] as usize;
        self.candidates.clear();
        for &c in parents.colleagues.row(i) {
            // Lower corner of the colleague, in units of a child of the parent.
            let at = |a: usize| 2 * (t.anchor[c as usize][a] as i64 - t.anchor[parent][a] as i64);
            if t.is_leaf(c as usize) {
                let adjacent = (0..3).fold(!0, |m, a| m & octants_touching(a, at(a), at(a) + 2));
                self.candidates.push(Candidate { id: c, adjacent, coarse: true });
            }
            for k in t.children(c as usize).filter(|&k| self.g.has_sources(k as u32)) {
                let from = |a: usize| at(a) + (t.octant[k] >> a & 1) as i64;
                let adjacent = (0..3).fold(!0, |m, a| m & octants_touching(a, from(a), from(a) + 1));
                self.candidates.push(Candidate { id: k as u32, adjacent, coarse: false });
            }
        }
        for child in t.children(parent) {
            if !t.targets_of(child).is_empty() {
                for &a in parents.coarse.row(i) {
                    if self.g.touch(a, child as u32) { &mut self.coarse } else { &mut self.row[X] }.push(a);
                }
                let bit = 1 << t.octant[child];
                for c in &self.candidates {
                    match (c.adjacent & bit != 0, c.coarse) {
                        (false, false) => &mut self.row[V],
                        (true, false) => &mut self.colleagues,
                        (false, true) => &mut self.row[X],
                        (true, true) => &mut self.coarse,
                    }
                    .push(c.id);
                }
            }
            self.finish(child);
        }
    }

    /// Completes box `b`, whose colleagues, coarse neighbours, V and X rows are known. A leaf gets its U and W rows; a
    /// split box becomes a parent of the next level. Then appends the four rows.
    fn finish(&mut self, b: usize) {
        let (t, o) = (self.g.tree, self.g.options);
        if !t.is_leaf(b) {
            self.parents.boxes.push(b as u32);
            self.parents.colleagues.push(&self.colleagues);
            self.parents.coarse.push(&self.coarse);
        } else if !t.targets_of(b).is_empty() {
            self.near(b as u32);
            let few = |s: u32| t.is_leaf(s as usize) && t.source_count(s as usize) < o.m2p_min_sources;
            let [_, x, w, u] = &mut self.row;
            u.extend(w.extract_if(.., |s| few(*s)));
            if t.targets_of(b).len() < o.p2l_min_targets {
                u.append(x);
            }
            u.sort_unstable();
            w.sort_unstable();
        }
        for (kind, row) in self.row.iter_mut().enumerate() {
            self.rows.lengths[kind].push(row.len() as u32);
            self.rows.sources[kind].append(row);
        }
        self.colleagues.clear();
        self.coarse.clear();
    }

    /// U and W of the leaf `b`.
    fn near(&mut self, b: u32) {
        let (g, t) = (self.g, self.g.tree);
        self.row[U].append(&mut self.coarse);
        self.stack.append(&mut self.colleagues);
        while let Some(c) = self.stack.pop() {
            if t.is_leaf(c as usize) {
                self.row[U].push(c);
                continue;
            }
            for k in t.children(c as usize).map(|k| k as u32).filter(|&k| g.has_sources(k)) {
                if g.touch(b, k) { &mut self.stack } else { &mut self.row[W] }.push(k);
            }
        }
    }
}
