//! A small problem cut out of the tree of all ranks.
//!
//! The probe of a plan measures errors on a sample of some thousand points. Each rank sends what it has of the sample –
//! boxes, edges and points – to rank 0, which joins the parts to the tree and the lists that [`fmm_tree::thin`] makes
//! on one rank. So what arrives grows with the sample and not with the points.

use crate::local::{Local, Name, ranges};
use crate::place::Placed;
use crate::wire::{Reader, Wire};
use fmm_traits::tree::{Edges, Lists, NONE, Points, Tree};
use fmm_traits::{Error, Hierarchy};
use fmm_tree::Thinned;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The rank that joins the parts.
const COLLECTOR: usize = 0;

/// The part of a rank: boxes, edges and points of the sample.
#[derive(Default)]
struct Part {
    /// Name, name of the parent (of the root: its own) and octant of each box.
    boxes: Vec<[u64; 3]>,
    /// Numbers of sources and targets in each box without smaller ones.
    points: Vec<[u32; 2]>,
    /// For each of [`kinds`], the lengths of the rows of all boxes, and the names of their sources.
    rows: Vec<(Vec<u32>, Vec<u64>)>,
    /// Sources and targets.
    ends: Vec<Vec<[f64; 3]>>,
}

/// The edges into targets. Those of multipoles follow from the tree.
fn kinds(lists: &Lists) -> [&Edges; 6] {
    [&lists.m2l, &lists.p2l, &lists.l2l, &lists.m2p, &lists.l2p, &lists.p2p]
}

impl Placed {
    /// The boxes of this rank that the `boxes` of any rank name, ascending: own boxes, and boxes above them. All ranks
    /// call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn named(&self, boxes: &[u32]) -> Result<Vec<u32>, Error> {
        let Local { names, by_name, .. } = &self.local;
        let mut ask: Vec<Vec<u64>> = vec![Vec::new(); self.world.size()];
        for b in BTreeSet::from_iter(boxes) {
            let owners = self.local.contributors(*b as usize);
            owners.into_iter().for_each(|rank| ask[rank as usize].push(names[*b as usize].0));
        }
        let came = self.world.all_to_all(ask)?;
        let here = came.iter().flatten().filter_map(|&name| by_name.get(&Name(name)).copied());
        Ok(BTreeSet::from_iter(here).into_iter().collect())
    }

    /// The boxes that this rank counts, so that all ranks together count each box of the tree once. Of the ranks with
    /// targets in a box above the leaves of the coarse tree, the first counts it.
    pub fn counted(&self) -> Vec<u32> {
        let Local { coarse, names, own, .. } = &self.local;
        let mut first = vec![NONE; coarse.boxes.len()];
        for (b, here) in coarse.boxes.iter().enumerate().rev() {
            first[b] = match here.is_leaf() {
                true if here.targets > 0 => here.owner,
                true => NONE,
                false => here.children().map(|c| first[c]).min().unwrap_or(NONE),
            };
        }
        // Boxes without targets have no rows.
        let counter = |c: usize| if first[c] == NONE { COLLECTOR } else { first[c] as usize };
        let counts = |b: usize| match names[b].in_coarse() {
            Some(c) if !coarse.boxes[c].is_leaf() => counter(c) == self.world.rank(),
            _ => own[b],
        };
        (0..names.len()).filter(|&b| counts(b)).map(|b| b as u32).collect()
    }

    /// The tree and the `lists` for a part of the sources and targets of all ranks: what [`fmm_tree::thin`] makes of
    /// the tree of one rank. `sources` and `targets` are ascending positions of points of this rank. The small problem
    /// is on rank 0, and `None` on others. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn thin(&self, lists: &Lists, sources: &[u32], targets: &[u32]) -> Result<Option<(Tree, Lists)>, Error> {
        let (tree, world) = (&self.local.tree, &self.world);
        let mut first = [fmm_tree::coarsest_read(tree, lists) as u64];
        world.reduce(&mut first, u64::min)?;
        let everyone: Vec<usize> = (0..world.size()).collect();
        let from = if world.rank() == COLLECTOR { &everyone[..] } else { &[] };
        let mut message = Vec::new();
        self.part(lists, sources, targets).put(&mut message);
        let came = world.swap(vec![(COLLECTOR, message)], from)?;
        if world.rank() != COLLECTOR {
            return Ok(None);
        }
        let parts = came.iter().map(|message| Part::get(&mut Reader::new(message))).collect::<Result<_, _>>()?;
        let (small, mut few) = joined(tree, parts);
        fmm_tree::upward(&small, &mut few, first[0] as usize);
        Ok(Some((small, few)))
    }

    fn part(&self, lists: &Lists, sources: &[u32], targets: &[u32]) -> Part {
        let Local { tree, names, .. } = &self.local;
        let Thinned { tree: small, kept } = fmm_tree::thin_boxes(tree, sources, targets);
        let name = |b: usize| names[kept[b] as usize].0;
        let above = |b: usize| if small.parent[b] == NONE { b } else { small.parent[b] as usize };
        let points = |b: usize| match small.child_count[b] {
            0 => [small.sources_of(b).len() as u32, small.targets_of(b).len() as u32],
            _ => [0, 0],
        };
        let rows_of = |edges: &Edges| {
            let row = |b: usize| if small.targets_of(b).is_empty() { &[] } else { edges.row(kept[b] as usize) };
            let lengths = (0..small.len()).map(|b| row(b).len() as u32).collect();
            (lengths, (0..small.len()).flat_map(row).map(|&s| names[s as usize].0).collect())
        };
        Part {
            boxes: (0..small.len()).map(|b| [name(b), name(above(b)), u64::from(small.octant[b])]).collect(),
            points: (0..small.len()).map(points).collect(),
            rows: kinds(lists).map(rows_of).to_vec(),
            ends: vec![
                sources.iter().map(|&i| tree.source(i as usize)).collect(),
                targets.iter().map(|&i| tree.target(i as usize)).collect(),
            ],
        }
    }
}

impl Wire for Part {
    fn put(&self, to: &mut Vec<u8>) {
        self.boxes.put(to);
        self.points.put(to);
        self.rows.put(to);
        self.ends.put(to);
    }
    fn get(from: &mut Reader) -> Result<Self, Error> {
        let (boxes, points) = (Wire::get(from)?, Wire::get(from)?);
        Ok(Part { boxes, points, rows: Wire::get(from)?, ends: Wire::get(from)? })
    }
}

/// The small tree and the edges into its targets, from the parts of all ranks. A box above the leaves of the coarse
/// tree may be in several parts, with the same rows wherever there are targets in it. `large` tells the place of the
/// root.
fn joined(large: &Tree, parts: Vec<Part>) -> (Tree, Lists) {
    let mut children: HashMap<u64, BTreeMap<u64, u64>> = HashMap::new();
    let mut points: HashMap<u64, [u32; 2]> = HashMap::new();
    let mut rows: [HashMap<u64, &[u64]>; 6] = Default::default();
    for part in &parts {
        for (&[name, parent, octant], &[sources, targets]) in part.boxes.iter().zip(&part.points) {
            let here = points.entry(name).or_default();
            *here = [here[0] + sources, here[1] + targets];
            if name != parent {
                children.entry(parent).or_default().insert(octant, name);
            }
        }
        for (rows, (lengths, names)) in rows.iter_mut().zip(&part.rows) {
            let mut rest = &names[..];
            for (&[name, ..], &length) in part.boxes.iter().zip(lengths) {
                let (row, after) = rest.split_at((length as usize).min(rest.len()));
                rest = after;
                if !row.is_empty() {
                    rows.insert(name, row);
                }
            }
        }
    }

    let mut tree = Tree { corner: large.corner, side: large.side, level_start: vec![0], ..Tree::default() };
    let mut names = vec![Name::coarse(0).0];
    (tree.parent, tree.octant, tree.anchor) = (vec![NONE], vec![0], vec![[0; 3]]);
    let mut level = 0..1;
    while !level.is_empty() {
        tree.level_start.push(level.end as u32);
        for b in level.clone() {
            let first = names.len();
            for (octant, name) in children.remove(&names[b]).into_iter().flatten() {
                tree.parent.push(b as u32);
                tree.octant.push(octant as u8);
                tree.anchor.push(std::array::from_fn(|a| 2 * tree.anchor[b][a] + (octant >> a & 1)));
                names.push(name);
            }
            tree.child_count.push((names.len() - first) as u8);
            tree.child_start.push(if names.len() > first { first as u32 } else { 0 });
        }
        level = level.end..names.len();
    }
    let of = |end: usize| -> Vec<u32> { names.iter().map(|name| points.get(name).map_or(0, |n| n[end])).collect() };
    tree.source_range = ranges(&tree, &of(0));
    tree.target_range = ranges(&tree, &of(1));
    // Ranks own intervals of tree order, one after the other.
    let all = |end: usize| {
        let points = || parts.iter().flat_map(|part| &part.ends[end]);
        let axis = |a: usize| points().map(|x| x[a]).collect();
        Arc::new(Points { xyz: [axis(0), axis(1), axis(2)], order: (0..points().count() as u32).collect() })
    };
    (tree.sources, tree.targets) = (all(0), all(1));

    let number: HashMap<u64, u32> = names.iter().enumerate().map(|(b, &name)| (name, b as u32)).collect();
    // As in `fmm_tree::thin`: edges of locals come from boxes with targets, the others from boxes with sources.
    let [m2l, p2l, l2l, m2p, l2p, p2p] = std::array::from_fn(|kind| {
        let gives = |b: &u32| match kind {
            2 | 4 => !tree.targets_of(*b as usize).is_empty(),
            _ => !tree.sources_of(*b as usize).is_empty(),
        };
        let mut edges = Edges { starts: vec![0], sources: Vec::new() };
        for name in &names {
            let row = rows[kind].get(name).into_iter().flat_map(|row| row.iter());
            edges.sources.extend(row.filter_map(|name| number.get(name).copied()).filter(gives));
            edges.starts.push(edges.sources.len());
        }
        edges
    });
    (tree, Lists { m2l, p2l, l2l, m2p, l2p, p2p, ..Lists::default() })
}
