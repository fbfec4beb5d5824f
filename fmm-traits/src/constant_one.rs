//! The constant-one oracle: the kernel that is 1 everywhere.
//!
//! Every operator of [`ConstantOne`] adds strengths, so each target must receive exactly the sum of all strengths.
//! (If targets are the sources, its own strength is left out.) With integer strengths the sums are exact. A missed or
//! doubled pair then shows as a wrong integer, for any tree, list policy and backend. [`wrong_pairs`] names the
//! boxes. The idea comes from `boxtree`.

use crate::tree::{Hierarchy, Lists, NONE};
use crate::{Cloud, Cube, Expansion};

/// An expansion whose only coefficient is the sum of strengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConstantOne;

/// Sum of the strengths.
fn total(strengths: &[f64]) -> f64 {
    strengths.iter().sum()
}

/// Adds `x` to every value.
fn add(values: &mut [f64], x: f64) {
    values.iter_mut().for_each(|v| *v += x);
}

impl Expansion<f64> for ConstantOne {
    fn multipole_len(&self) -> usize {
        1
    }
    fn local_len(&self) -> usize {
        1
    }
    fn strengths(&self) -> usize {
        1
    }
    fn values(&self) -> usize {
        1
    }
    fn p2m(&self, _: Cube, sources: Cloud<f64>, multipole: &mut [f64]) {
        add(multipole, total(sources.strengths));
    }
    fn m2m(&self, _: Cube, _: Cube, from: &[f64], multipole: &mut [f64]) {
        add(multipole, from[0]);
    }
    fn m2l(&self, _: Cube, _: Cube, from: &[f64], local: &mut [f64]) {
        add(local, from[0]);
    }
    fn p2l(&self, _: Cube, _: Cube, sources: Cloud<f64>, local: &mut [f64]) {
        add(local, total(sources.strengths));
    }
    fn l2l(&self, _: Cube, _: Cube, from: &[f64], local: &mut [f64]) {
        add(local, from[0]);
    }
    fn l2p(&self, _: Cube, local: &[f64], _: &[[f64; 3]], values: &mut [f64]) {
        add(values, local[0]);
    }
    fn m2p(&self, _: Cube, multipole: &[f64], _: &[[f64; 3]], values: &mut [f64]) {
        add(values, multipole[0]);
    }
    fn p2p(&self, sources: Cloud<f64>, _: &[[f64; 3]], same: bool, values: &mut [f64]) {
        add(values, total(sources.strengths));
        if same {
            values.iter_mut().zip(sources.strengths).for_each(|(v, s)| *v -= s);
        }
    }
    fn admissible(&self, _: Cube, _: Cube) -> bool {
        true
    }
}

/// The exact value of each target: `targets` numbers in user order. With `same`, targets are the sources and skip
/// themselves.
pub fn expected(strengths: &[f64], targets: usize, same: bool) -> Vec<f64> {
    let all = total(strengths);
    (0..targets).map(|i| if same { all - strengths[i] } else { all }).collect()
}

/// A pair of leaves that do not meet exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongPair {
    /// Target leaf.
    pub target: u32,
    /// Source leaf.
    pub source_box: u32,
    /// How often its sources reach the targets: 0 = missed, 2 = doubled.
    pub times: usize,
}

/// Ranges of source positions.
type Ranges = Vec<[u32; 2]>;

/// Checks `lists` of any policy. Runs the stages in the order of the driver, with sets of sources instead of numbers,
/// and returns up to `limit` pairs of leaves that do not meet exactly once. The lists are correct if the result is
/// empty. A missing M2M or L2L edge shows here too.
pub fn wrong_pairs<H: Hierarchy>(tree: &H, lists: &Lists, limit: usize) -> Vec<WrongPair> {
    let range = |s: &u32| {
        let r = tree.sources_of(*s as usize);
        [r.start as u32, r.end as u32]
    };
    let n = tree.boxes();
    let mut multipole: Vec<Ranges> = vec![Vec::new(); n];
    for b in (0..n).rev() {
        let mut r: Ranges = lists.p2m.row(b).iter().map(range).collect();
        r.extend(lists.m2m.row(b).iter().flat_map(|&c| multipole[c as usize].clone()));
        multipole[b] = merged(r);
    }
    let mut local: Vec<Ranges> = vec![Vec::new(); n];
    for b in 0..n {
        let mut r: Ranges = lists.p2l.row(b).iter().map(range).collect();
        r.extend(lists.m2l.row(b).iter().flat_map(|&s| &multipole[s as usize]));
        r.extend(lists.l2l.row(b).iter().flat_map(|&p| &local[p as usize]));
        local[b] = merged(r);
    }

    let mut source_leaves: Vec<u32> = (0..n as u32).filter(|&b| tree.is_leaf(b as usize)).collect();
    source_leaves.retain(|&b| !tree.sources_of(b as usize).is_empty());
    source_leaves.sort_by_key(|b| range(b));
    let mut wrong = Vec::new();
    for t in (0..n).filter(|&t| tree.is_leaf(t) && !tree.targets_of(t).is_empty()) {
        let mut r: Ranges = lists.l2p.row(t).iter().flat_map(|&b| local[b as usize].clone()).collect();
        // Edges into an ancestor reach all its targets.
        let mut b = t as u32;
        while b != NONE {
            r.extend(lists.m2p.row(b as usize).iter().flat_map(|&s| &multipole[s as usize]));
            r.extend(lists.p2p.row(b as usize).iter().map(range));
            b = tree.parent(b as usize);
        }
        if merged(r.clone()) == [[0, tree.source_order().len() as u32]] {
            continue;
        }
        for &s in &source_leaves {
            let [lo, hi] = range(&s);
            let times = r.iter().filter(|x| x[0] <= lo && hi <= x[1]).count();
            if times != 1 {
                wrong.push(WrongPair { target: t as u32, source_box: s, times });
                if wrong.len() >= limit {
                    return wrong;
                }
            }
        }
    }
    wrong
}

/// Sorts ranges and joins a range that ends where the next begins. Overlapping ranges stay separate.
fn merged(mut r: Ranges) -> Ranges {
    r.retain(|x| x[0] < x[1]);
    r.sort_unstable();
    let mut out: Ranges = Vec::with_capacity(r.len());
    for x in r {
        match out.last_mut() {
            Some(last) if last[1] == x[0] => last[1] = x[1],
            _ => out.push(x),
        }
    }
    out
}
