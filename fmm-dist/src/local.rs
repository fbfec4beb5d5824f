//! The locally essential tree of a rank (Lashuk et al. 2009, §III-A, Algorithm 2).
//!
//! It has the boxes of the coarse tree, the rank's own boxes below, and *ghosts*: boxes of other ranks that lists of
//! own targets may name. An owner sends the children of a box to a rank if some target there may look into the box
//! ([`Opens`]). Boxes stay level by level in Morton order. So they are a sub-sequence of the tree of one rank, and
//! lists of own targets are those of one rank, edge for edge and in the same order.

use crate::coarse::Coarse;
use crate::exchange::Strategy;
use crate::world::World;
use fmm_traits::tree::{NONE, Points, Tree};
use fmm_traits::{Cube, Error, Shared};
use std::collections::HashMap;
use std::sync::Arc;

/// A box of a tree, with its geometry.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Level.
    pub level: usize,
    /// Integer coordinates on the grid of its level.
    pub anchor: [u64; 3],
    /// The cube.
    pub cube: Cube,
}

/// `opens(target, source)`: whether the lists of some box inside `target` may name children of `source`. If it holds
/// for two boxes, it must hold for the parents of either.
pub type Opens<'a> = &'a (dyn Fn(&Place, &Place) -> bool + Sync);

/// [`Opens`] of the U, V, W, X lists and of the 119 stencil: children of a source box are named by boxes inside its
/// colleagues, and by leaves that touch it.
pub fn opens_uvwx(target: &Place, source: &Place) -> bool {
    let up = target.level.saturating_sub(source.level);
    let down = source.level.saturating_sub(target.level);
    (0..3).all(|a| {
        let (t, s) = (target.anchor[a] >> up, source.anchor[a]);
        t << down <= s + 1 && s <= (t + 1) << down
    })
}

/// The name of a box on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(pub u64);

/// Marks boxes of the coarse tree.
const COARSE: u64 = 1 << 63;

impl Name {
    /// Box `b` of the coarse tree.
    pub fn coarse(b: usize) -> Self {
        Name(COARSE | b as u64)
    }
    /// Box `b` of the part of `rank`.
    pub fn of(rank: usize, b: u32) -> Self {
        Name((rank as u64) << 32 | u64::from(b))
    }
    /// The box of the coarse tree, if it is one.
    pub fn in_coarse(self) -> Option<usize> {
        (self.0 & COARSE != 0).then_some((self.0 & !COARSE) as usize)
    }
    /// The rank of a box below the coarse tree.
    pub fn rank(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// A box of another rank, as it travels: the name of its parent, its number there, its octant, whether it is a leaf,
/// its sources.
type Record = [u64; 5];

/// A locally essential tree, and where its boxes come from.
pub struct Local {
    /// The tree; the points of ghosts are missing at first.
    pub tree: Tree,
    /// The part of [`Tree`] that knows of other ranks.
    pub shared: Shared,
    /// The coarse tree.
    pub coarse: Coarse,
    /// The name of each box.
    pub names: Vec<Name>,
    /// The boxes by name.
    pub by_name: HashMap<Name, u32>,
    /// Whether this rank owns all points of a box.
    pub own: Vec<bool>,
    /// Leaves of the tree of all ranks.
    pub leaves: usize,
}

/// Where a box of the new tree comes from.
#[derive(Clone, Copy)]
enum Origin {
    Coarse(usize),
    Own(usize),
    Ghost { rank: usize, record: usize },
}

/// What is known of a box of the new tree.
struct Known {
    name: Name,
    octant: u8,
    /// Numbers of sources and targets on all ranks.
    sources: u64,
    targets: u64,
    leaf: bool,
    /// [`Local::own`].
    mine: bool,
    /// [`Shared::gives`].
    gives: bool,
}

impl Local {
    /// The locally essential tree of a rank, from its `part` of the boxes. All ranks call it together.
    ///
    /// # Errors
    /// Those of other ranks.
    pub fn new(
        world: &World,
        mut part: Tree,
        coarse: Coarse,
        strategy: Strategy,
        opens: Opens,
    ) -> Result<Local, Error> {
        let me = world.rank();
        let part_of = counterparts(&coarse, &part);
        let flags: Vec<u8> = {
            let mine = coarse.leaves.iter().filter(|&&b| coarse.boxes[b as usize].owner as usize == me);
            mine.map(|&b| u8::from(part.is_leaf(part_of[b as usize] as usize))).collect()
        };
        let flags = world.all_gather(flags)?;
        let mut next = vec![0; world.size()];
        let mut is_leaf = vec![false; coarse.boxes.len()];
        for &b in &coarse.leaves {
            let owner = coarse.boxes[b as usize].owner as usize;
            is_leaf[b as usize] = flags[owner][next[owner]] == 1;
            next[owner] += 1;
        }
        let records = world.all_to_all(ghosts(world, &part, &coarse, &part_of, opens))?;
        let mut below: HashMap<Name, Vec<Origin>> = HashMap::new();
        for (rank, records) in records.iter().enumerate() {
            for (record, r) in records.iter().enumerate() {
                below.entry(Name(r[0])).or_default().push(Origin::Ghost { rank, record });
            }
        }

        let mut tree = Tree { corner: part.corner, side: part.side, level_start: vec![0], ..Tree::default() };
        let mut shared = Shared { same_points: part.same_points(), ..Shared::default() };
        let (mut from, mut names, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let mut level: Vec<(Origin, u32)> = vec![(Origin::Coarse(0), NONE)];
        while !level.is_empty() {
            let start = from.len();
            for &(box_, parent) in &level {
                let Known { name, octant, sources, targets, leaf, mine, gives } = match box_ {
                    Origin::Coarse(c) => {
                        let here = &coarse.boxes[c];
                        let contributors = coarse.contributors(c);
                        Known {
                            name: Name::coarse(c),
                            octant: here.octant,
                            sources: here.sources,
                            targets: here.targets,
                            leaf: is_leaf[c],
                            mine: here.is_leaf() && here.owner as usize == me,
                            gives: match strategy {
                                Strategy::Frontier => contributors == [me as u32],
                                _ => contributors.contains(&(me as u32)),
                            },
                        }
                    }
                    Origin::Own(c) => {
                        let sources = part.sources_of(c).len() as u64;
                        Known {
                            name: Name::of(me, c as u32),
                            octant: part.octant[c],
                            sources,
                            targets: part.targets_of(c).len() as u64,
                            leaf: part.is_leaf(c),
                            mine: true,
                            gives: sources > 0,
                        }
                    }
                    Origin::Ghost { rank, record } => {
                        let [_, number, octant, leaf, sources] = records[rank][record];
                        Known {
                            name: Name::of(rank, number as u32),
                            octant: octant as u8,
                            sources,
                            targets: 0,
                            leaf: leaf == 1,
                            mine: false,
                            gives: false,
                        }
                    }
                };
                shared.sources.push(sources);
                shared.targets.push(targets);
                shared.leaf.push(leaf);
                shared.gives.push(gives);
                own.push(mine);
                names.push(name);
                from.push(box_);
                tree.parent.push(parent);
                tree.octant.push(octant);
                let anchor = match parent {
                    NONE => [0; 3],
                    p => {
                        let above: [u64; 3] = tree.anchor[p as usize];
                        std::array::from_fn(|a| 2 * above[a] + u64::from(octant >> a & 1))
                    }
                };
                tree.anchor.push(anchor);
                tree.child_start.push(0);
                tree.child_count.push(0);
            }
            let end = from.len();
            tree.level_start.push(end as u32);
            let mut next = Vec::new();
            for b in start..end {
                let children: Vec<Origin> = match from[b] {
                    Origin::Coarse(c) if !coarse.boxes[c].is_leaf() => {
                        coarse.boxes[c].children().map(Origin::Coarse).collect()
                    }
                    Origin::Coarse(c) if coarse.boxes[c].owner as usize == me => {
                        part.children(part_of[c] as usize).map(Origin::Own).collect()
                    }
                    Origin::Own(c) => part.children(c).map(Origin::Own).collect(),
                    Origin::Coarse(_) | Origin::Ghost { .. } => below.remove(&names[b]).unwrap_or_default(),
                };
                if !children.is_empty() {
                    tree.child_start[b] = (end + next.len()) as u32;
                    tree.child_count[b] = children.len() as u8;
                    next.extend(children.into_iter().map(|c| (c, b as u32)));
                }
            }
            level = next;
            if from.len() + level.len() >= NONE as usize {
                let found = from.len() + level.len();
                return Err(Error::TooMany { what: "boxes", found, limit: NONE as usize - 1 });
            }
        }
        // A rank without points has a root, and no leaf.
        let empty = part.sources.is_empty() && part.targets.is_empty();
        let mut leaves = [if empty { 0 } else { part.leaves() as u64 }];
        world.reduce(&mut leaves, |a, b| a + b)?;
        let by_name = names.iter().enumerate().map(|(b, &name)| (name, b as u32)).collect();

        let here = |from: &Origin| match from {
            Origin::Coarse(c) if coarse.boxes[*c].owner as usize == me => Some(part_of[*c] as usize),
            Origin::Own(c) => Some(*c),
            _ => None,
        };
        let numbers = |ranges: &[[u32; 2]]| -> Vec<u32> {
            let of = |from: &Origin| here(from).map_or(0, |c| ranges[c][1] - ranges[c][0]);
            from.iter().map(of).collect()
        };
        let (sources, targets) = (numbers(&part.source_range), numbers(&part.target_range));
        tree.source_range = ranges(&tree, &sources);
        tree.target_range = ranges(&tree, &targets);
        // Points get numbers in tree order; what the caller calls them is in the routes.
        let renamed = |points: &mut Arc<Points>| {
            let points = Arc::make_mut(points);
            points.order = (0..points.order.len() as u32).collect();
            Arc::new(std::mem::take(points))
        };
        tree.targets = std::mem::take(&mut part.targets);
        if shared.same_points {
            // The same points, which are renamed where they are.
            part.sources = Arc::default();
        }
        tree.targets = renamed(&mut tree.targets);
        tree.sources = if shared.same_points { tree.targets.clone() } else { renamed(&mut part.sources) };
        tree.shared = Some(Arc::new(shared.clone()));
        Ok(Local { tree, shared, coarse, names, by_name, own, leaves: leaves[0] as usize })
    }

    /// The ranks that own sources of a box, ascending.
    pub fn contributors(&self, b: usize) -> Vec<u32> {
        match self.names[b].in_coarse() {
            Some(c) => self.coarse.contributors(c),
            None => vec![self.names[b].rank() as u32],
        }
    }
}

/// For each box of the coarse tree, the same box in `part`, or [`NONE`].
fn counterparts(coarse: &Coarse, part: &Tree) -> Vec<u32> {
    let mut found = vec![NONE; coarse.boxes.len()];
    found[0] = 0;
    for (b, here) in coarse.boxes.iter().enumerate().filter(|(_, b)| !b.is_leaf()) {
        if found[b] != NONE {
            for c in here.children() {
                let same = |&k: &usize| part.octant[k] == coarse.boxes[c].octant;
                found[c] = part.children(found[b] as usize).find(same).map_or(NONE, |k| k as u32);
            }
        }
    }
    found
}

/// The boxes that this rank sends to each other rank.
fn ghosts(world: &World, part: &Tree, coarse: &Coarse, part_of: &[u32], opens: Opens) -> Vec<Vec<Record>> {
    let me = world.rank();
    let place = |level: usize, anchor: [u64; 3]| {
        let side = part.side_at(level);
        let center = std::array::from_fn(|a| part.corner[a] + (anchor[a] as f64 + 0.5) * side);
        Place { level, anchor, cube: Cube { center, side } }
    };
    let leaves = coarse.leaves.iter().map(|&b| b as usize);
    let others: Vec<(usize, Place)> = leaves
        .clone()
        .map(|b| &coarse.boxes[b])
        .filter(|b| b.owner as usize != me && b.targets > 0)
        .map(|b| (b.owner as usize, place(b.level, b.anchor)))
        .collect();
    let mut records: Vec<Vec<Record>> = vec![Vec::new(); world.size()];
    for c in leaves.filter(|&c| coarse.boxes[c].owner as usize == me) {
        let level = coarse.boxes[c].level;
        // Boxes with the targets of others that may look into them.
        let mut stack = vec![(Name::coarse(c), part_of[c] as usize, level, others.clone())];
        while let Some((name, b, level, mut seen)) = stack.pop() {
            if part.is_leaf(b) || part.sources_of(b).is_empty() {
                continue;
            }
            let here = place(level, part.anchor[b]);
            seen.retain(|(_, target)| opens(target, &here));
            let mut ranks: Vec<usize> = seen.iter().map(|(rank, _)| *rank).collect();
            ranks.dedup();
            ranks.sort_unstable();
            ranks.dedup();
            for &rank in &ranks {
                for k in part.children(b).filter(|&k| !part.sources_of(k).is_empty()) {
                    let leaf = u64::from(part.is_leaf(k));
                    let sources = part.sources_of(k).len() as u64;
                    records[rank].push([name.0, k as u64, u64::from(part.octant[k]), leaf, sources]);
                }
            }
            if !seen.is_empty() {
                stack.extend(part.children(b).map(|k| (Name::of(me, k as u32), k, level + 1, seen.clone())));
            }
        }
    }
    records
}

/// The ranges of points of all boxes: `numbers` are the points of leaves, and boxes without children here.
pub fn ranges(tree: &Tree, numbers: &[u32]) -> Vec<[u32; 2]> {
    let mut counts: Vec<u32> = (0..tree.len()).map(|b| if tree.child_count[b] == 0 { numbers[b] } else { 0 }).collect();
    for b in (1..tree.len()).rev() {
        counts[tree.parent[b] as usize] += counts[b];
    }
    let mut ranges = vec![[0, 0]; tree.len()];
    if let Some(root) = ranges.first_mut() {
        *root = [0, counts[0]];
    }
    for b in 0..tree.len() {
        let mut at = ranges[b][0];
        for c in tree.children(b) {
            ranges[c] = [at, at + counts[c]];
            at += counts[c];
        }
    }
    ranges
}
