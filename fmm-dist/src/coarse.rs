//! The coarse tree: the upper boxes of the tree of all points, which every rank knows, with counts over all ranks.
//!
//! Its leaves are small parts of the work, and each belongs to one rank. A box of the coarse tree is split only if one
//! rank with all points would split it. So the tree of all ranks is the tree of one rank, box for box. (The coarse tree
//! is the partition level of Hu et al. (2012), made adaptive: a fixed level puts the points of a surface on few ranks.)

use crate::World;
use fmm_traits::Error;
use fmm_traits::tree::NONE;
use fmm_tree::octant_of;
use rayon::prelude::*;

/// Leaves of the coarse tree that each rank gets, if there are enough points.
pub const LEAVES_PER_RANK: usize = 128;
/// Levels of the keys.
const KEY_LEVELS: usize = 21;
/// Points that a thread shares out at a time.
const CHUNK: usize = 1 << 16;

/// A box of the coarse tree.
#[derive(Clone, Debug)]
pub struct Coarsest {
    /// Level.
    pub level: usize,
    /// Integer coordinates on the grid of its level.
    pub anchor: [u64; 3],
    /// Position in its parent.
    pub octant: u8,
    /// First child.
    pub child_start: u32,
    /// Number of children; 0 for a leaf of the coarse tree.
    pub child_count: u8,
    /// Smallest key of a point in the box.
    pub key: u64,
    /// Sources on all ranks.
    pub sources: u64,
    /// Targets on all ranks.
    pub targets: u64,
    /// For a leaf, the rank that owns its points.
    pub owner: u32,
}

impl Coarsest {
    /// Children.
    pub fn children(&self) -> std::ops::Range<usize> {
        self.child_start as usize..self.child_start as usize + self.child_count as usize
    }
    /// Whether the coarse tree ends here.
    pub fn is_leaf(&self) -> bool {
        self.child_count == 0
    }
}

/// The coarse tree, level by level, in Morton order within a level.
#[derive(Clone, Debug, Default)]
pub struct Coarse {
    /// The boxes; the root is the first.
    pub boxes: Vec<Coarsest>,
    /// The leaves in Morton order.
    pub leaves: Vec<u32>,
}

/// The points of a rank as the coarse tree sees them: sorted keys of one kind of points.
type Keys = [u64];

/// Number, smallest and largest key of some points.
type Census = [u64; 3];

/// The keys that lie in a box.
fn within(keys: &Keys, first: u64, level: usize) -> &Keys {
    let last = first + ((1u64 << (3 * (KEY_LEVELS - level))) - 1);
    let start = keys.partition_point(|&k| k < first);
    &keys[start..start + keys[start..].partition_point(|&k| k <= last)]
}

fn census(keys: &Keys) -> Census {
    match keys {
        [] => [0, u64::MAX, 0],
        [first, .., last] => [keys.len() as u64, *first, *last],
        [one] => [1, *one, *one],
    }
}

/// Work of a leaf of the coarse tree before there are lists. Most work is proportional to the points: near pairs and
/// translations of boxes with about as many points each.
pub(crate) fn by_points(sources: usize, targets: usize) -> f64 {
    targets as f64 + 0.25 * sources as f64
}

/// The rank of each of the leaves with these `weights`, which are in Morton order: each rank gets an interval whose
/// weight is in proportion to its speed. `speeds` has a positive number for each rank.
pub fn owners(weights: &[f64], speeds: &[f64]) -> Vec<u32> {
    let (total, together): (f64, f64) = (weights.iter().sum(), speeds.iter().sum());
    let ends: Vec<f64> = speeds
        .iter()
        .scan(0.0, |sum, speed| {
            *sum += speed / together;
            Some(*sum)
        })
        .collect();
    let mut before = 0.0;
    let owner = |weight: &f64| {
        let middle = if total > 0.0 { (before + 0.5 * weight) / total } else { 0.0 };
        before += weight;
        ends.partition_point(|end| *end <= middle).min(ends.len() - 1) as u32
    };
    weights.iter().map(owner).collect()
}

/// The longest time of a rank over the time that they would all take if the weight were shared out perfectly. The
/// leaves have these `weights` and `owners`, and the ranks these `speeds`.
pub fn imbalance(weights: &[f64], owners: &[u32], speeds: &[f64]) -> f64 {
    let mut loads = vec![0.0; speeds.len()];
    weights.iter().zip(owners).for_each(|(weight, &owner)| loads[owner as usize] += weight);
    let perfect = loads.iter().sum::<f64>() / speeds.iter().sum::<f64>();
    let longest = loads.iter().zip(speeds).fold(0.0, |m: f64, (load, speed)| m.max(load / speed));
    if perfect > 0.0 { longest / perfect } else { 1.0 }
}

/// If the imbalance of leaves that were shared out by their points exceeds the best possible by more than this factor,
/// they are shared out again, by their work. That costs another tree.
const MAX_IMBALANCE_OVER_BEST: f64 = 1.05;

/// The owners of leaves shared out by these `works` ([`owners`]), if that is clearly better balanced than `so_far`.
pub fn better_owners(works: &[f64], so_far: &[u32], speeds: &[f64]) -> Option<Vec<u32>> {
    let best = owners(works, speeds);
    let worth = imbalance(works, so_far, speeds) > MAX_IMBALANCE_OVER_BEST * imbalance(works, &best, speeds);
    worth.then_some(best)
}

/// The boxes in each of `leaves` leaves of a coarse tree, level by level. `leaf_of` has the leaf of each box that is
/// one, and [`NONE`] for the others; it gets the leaf of the boxes below.
pub(crate) fn boxes_of_leaves(parent: &[u32], leaf_of: &mut [u32], leaves: usize) -> Vec<Vec<u32>> {
    let mut boxes = vec![Vec::new(); leaves];
    for (b, &parent) in parent.iter().enumerate() {
        if leaf_of[b] == NONE && parent != NONE {
            leaf_of[b] = leaf_of[parent as usize];
        }
        if leaf_of[b] != NONE {
            boxes[leaf_of[b] as usize].push(b as u32);
        }
    }
    boxes
}

impl Coarse {
    /// Splits boxes that hold more than `ncrit` sources or targets, and more than a part of the points that suits the
    /// number of ranks. `keys` are the sorted keys of the sources of this rank and, if they are separate, of its
    /// targets. No box is deeper than `max_level`.
    ///
    /// # Errors
    /// Those of another rank.
    pub fn new(world: &World, keys: &[Vec<u64>], ncrit: usize, max_level: usize) -> Result<Coarse, Error> {
        let last = keys.len() - 1;
        let count = |mut all: Vec<Census>| -> Result<Vec<Census>, Error> {
            world.reduce(&mut all, |a, b| [a[0] + b[0], a[1].min(b[1]), a[2].max(b[2])])?;
            Ok(all)
        };
        let whole = count(keys.iter().map(|k| census(k)).collect())?;
        let most = whole.iter().map(|c| c[0]).max().unwrap_or(0);
        let share = most / (LEAVES_PER_RANK * world.size()) as u64;
        let threshold = share.max(ncrit as u64);
        // One rank splits a box with more points than its capacity, unless they have one key.
        let splits = |c: &[Census]| c.iter().any(|&[n, low, high]| n > threshold && low < high);
        let root = Coarsest {
            level: 0,
            anchor: [0; 3],
            octant: 0,
            child_start: 0,
            child_count: 0,
            key: 0,
            sources: whole[0][0],
            targets: whole[last][0],
            owner: NONE,
        };
        let mut coarse = Coarse { boxes: vec![root], leaves: Vec::new() };
        let mut split: Vec<usize> = if max_level > 0 && splits(&whole) { vec![0] } else { vec![] };
        while !split.is_empty() {
            let mut mine = Vec::new();
            for &b in &split {
                let b = &coarse.boxes[b];
                for set in keys {
                    let here = within(set, b.key, b.level);
                    mine.extend((0..8).map(|o| {
                        let start = here.partition_point(|&k| octant_of(k, b.level) < o);
                        let end = here.partition_point(|&k| octant_of(k, b.level) <= o);
                        census(&here[start..end])
                    }));
                }
            }
            let all = count(mine)?;
            let mut next = Vec::new();
            for (&b, counts) in split.iter().zip(all.chunks_exact(8 * keys.len())) {
                let (level, anchor, key) = (coarse.boxes[b].level, coarse.boxes[b].anchor, coarse.boxes[b].key);
                coarse.boxes[b].child_start = coarse.boxes.len() as u32;
                for o in 0..8 {
                    let of: Vec<Census> = (0..keys.len()).map(|set| counts[8 * set + o]).collect();
                    if of.iter().all(|c| c[0] == 0) {
                        continue;
                    }
                    if level + 1 < max_level && splits(&of) {
                        next.push(coarse.boxes.len());
                    }
                    coarse.boxes[b].child_count += 1;
                    coarse.boxes.push(Coarsest {
                        level: level + 1,
                        anchor: std::array::from_fn(|a| 2 * anchor[a] + (o >> a & 1) as u64),
                        octant: o as u8,
                        child_start: 0,
                        child_count: 0,
                        key: key + ((o as u64) << (3 * (KEY_LEVELS - 1 - level))),
                        sources: of[0][0],
                        targets: of[last][0],
                        owner: NONE,
                    });
                }
            }
            split = next;
        }
        coarse.leaves = (0..coarse.boxes.len() as u32).filter(|&b| coarse.boxes[b as usize].is_leaf()).collect();
        coarse.leaves.sort_by_key(|&b| coarse.boxes[b as usize].key);
        Ok(coarse)
    }

    /// Shares out the leaves by their `weights` and the `speeds` of the ranks ([`owners`]).
    pub fn share(&mut self, weights: &[f64], speeds: &[f64]) {
        for (&leaf, owner) in self.leaves.iter().zip(owners(weights, speeds)) {
            self.boxes[leaf as usize].owner = owner;
        }
    }

    /// The points that go to each rank, ascending, for the keys of all points of this rank.
    pub fn shares(&self, keys: &[u64], ranks: usize) -> Vec<Vec<u32>> {
        let leaf = |&b: &u32| &self.boxes[b as usize];
        let (starts, owners): (Vec<u64>, Vec<usize>) =
            self.leaves.iter().map(leaf).map(|b| (b.key, b.owner as usize)).unzip();
        let of_chunk = |(chunk, keys): (usize, &[u64])| {
            let mut shares = vec![Vec::new(); ranks];
            for (i, key) in keys.iter().enumerate() {
                let leaf = starts.partition_point(|start| start <= key).saturating_sub(1);
                shares[owners[leaf]].push((chunk * CHUNK + i) as u32);
            }
            shares
        };
        let chunks: Vec<Vec<Vec<u32>>> = keys.par_chunks(CHUNK).enumerate().map(of_chunk).collect();
        let of_rank = |rank: usize| chunks.iter().map(|shares| &shares[rank][..]).collect::<Vec<_>>().concat();
        (0..ranks).into_par_iter().map(of_rank).collect()
    }

    /// The ranks that own sources of a box, ascending.
    pub fn contributors(&self, b: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut stack = vec![b];
        while let Some(b) = stack.pop() {
            let here = &self.boxes[b];
            if here.is_leaf() && here.sources > 0 {
                found.push(here.owner);
            }
            stack.extend(here.children());
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}
