//! Tasks over leaves, and the permutation of strengths and values between user order and tree order.

use crate::pairs::Pair;
use fmm_traits::{Nodes, Tree, weight};
use rayon::prelude::*;

/// Smallest number of targets in a task of L2P, M2P or P2P (the last task may have fewer).
const TARGETS_PER_TASK: usize = 256;

/// The leaves of a tree that have targets.
#[derive(Debug)]
pub struct Leaves {
    /// (leaf, level), in the order of their targets.
    all: Vec<(u32, u8)>,
    /// `all[groups[g]..groups[g+1]]` is one task.
    groups: Vec<usize>,
    /// Tree position of each target of the user.
    position: Vec<u32>,
}

impl Leaves {
    /// The leaves of `tree` that have targets.
    pub fn new(tree: &Tree) -> Self {
        let mut all = Vec::new();
        for level in 0..tree.levels() {
            let has_targets = |&b: &usize| tree.is_leaf(b) && !tree.targets_of(b).is_empty();
            all.extend(tree.level(level).filter(has_targets).map(|b| (b as u32, level as u8)));
        }
        all.sort_unstable_by_key(|&(b, _)| tree.target_range[b as usize][0]);
        let mut groups = vec![0];
        let mut count = 0;
        for (i, &(b, _)) in all.iter().enumerate() {
            count += tree.targets_of(b as usize).len();
            if count >= TARGETS_PER_TASK || i + 1 == all.len() {
                groups.push(i + 1);
                count = 0;
            }
        }
        let mut position = vec![0; tree.targets.len()];
        for (i, &user) in tree.targets.order.iter().enumerate() {
            position[user as usize] = i as u32;
        }
        Leaves { all, groups, position }
    }

    /// Calls `work(leaf, level, values of its targets)` for each leaf, on the current rayon pool. A task has
    /// consecutive leaves. `values` holds `width` numbers per target, in tree order.
    pub fn for_each(
        &self,
        tree: &Tree,
        width: usize,
        values: &mut [f64],
        work: impl Fn(usize, usize, &mut [f64]) + Sync,
    ) {
        let mut rest = values;
        let mut tasks = Vec::with_capacity(self.groups.len());
        for group in self.groups.windows(2) {
            let leaves = &self.all[group[0]..group[1]];
            let count: usize = leaves.iter().map(|&(b, _)| tree.targets_of(b as usize).len()).sum();
            let (here, after) = rest.split_at_mut(count * width);
            tasks.push((leaves, here));
            rest = after;
        }
        tasks.into_par_iter().with_max_len(1).for_each(|(leaves, mut values)| {
            for &(b, level) in leaves {
                let (here, after) = values.split_at_mut(tree.targets_of(b as usize).len() * width);
                work(b as usize, level as usize, here);
                values = after;
            }
        });
    }

    /// Copies values times `factor` into user order. Each target has `sets` sets of `width` numbers in `values`; set
    /// `set` is copied.
    pub fn gather(&self, values: &[f64], factor: f64, width: usize, [set, sets]: [usize; 2], out: &mut [f64]) {
        out.par_chunks_mut(width).zip(&self.position).with_min_len(4096).for_each(|(to, &at)| {
            let from = &values[(at as usize * sets + set) * width..][..width];
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x * factor);
        });
    }
}

/// Copies sets of strengths into tree order. A set is (strengths, unit): `count` strengths per source, which are
/// divided by the unit. `to` gets one array per set and component.
pub fn scatter(tree: &Tree, sets: &[(&[f64], f64)], pair: &Pair<f64>, to: &mut Vec<Vec<f64>>) {
    let count = pair.strengths();
    to.resize_with(sets.len() * count, Vec::new);
    for (row, to) in to.iter_mut().enumerate() {
        let ((strengths, unit), c) = (sets[row / count], row % count);
        let unit = if pair.is_attribute(c) { 1.0 } else { unit };
        to.resize(tree.sources.len(), 0.0);
        to.par_iter_mut().zip(&tree.sources.order).with_min_len(4096).for_each(|(to, &user)| {
            *to = strengths[user as usize * count + c] / unit;
        });
    }
}

/// Sets of strengths in tree order as those of far field `k` of some nodes: times the [`weight`] of each source, with the
/// attributes of the node.
pub fn take_part(sets: &[Vec<f64>], pair: &Pair<f64>, (nodes, k): (&Nodes, usize), to: &mut Vec<Vec<f64>>) {
    to.resize_with(sets.len(), Vec::new);
    let factors = nodes.factors(k);
    for (set, to) in sets.chunks_exact(pair.strengths()).zip(to.chunks_exact_mut(pair.strengths())) {
        let (given, attributes) = set.split_at(pair.linear());
        let (to, to_attributes) = to.split_at_mut(pair.linear());
        for (given, to) in given.iter().zip(to) {
            to.resize(given.len(), 0.0);
            let of_source = |i: usize| given[i] * weight(&factors, |a| attributes[a][i]);
            to.par_iter_mut().enumerate().with_min_len(4096).for_each(|(i, to)| *to = of_source(i));
        }
        for (own, to) in attributes.iter().zip(&mut *to_attributes) {
            to.clone_from(own);
        }
        factors.iter().for_each(|factor| to_attributes[factor.attribute].fill(factor.value));
    }
}

/// Makes `v` a vector of `len` zeros.
pub fn clear<T: Default + Clone + Send>(v: &mut Vec<T>, len: usize) {
    v.resize(len, T::default());
    v.par_chunks_mut(1 << 16).for_each(|v| v.fill(T::default()));
}
