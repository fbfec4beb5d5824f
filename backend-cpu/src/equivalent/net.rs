//! Net strengths of boxes, kept exactly beside the densities ([`fmm_kernels::equivalent::net`]).

use crate::ranks;
use fmm_kernels::equivalent::{Operators, Scalar};
use fmm_traits::{Edges, Error, Lists, Tree};
use rayon::prelude::*;

/// The net strength of each box: component `component` of `strengths` (tree order) summed over the sources of the box.
/// On several ranks: over the sources that this rank [gives](Tree::gives).
pub fn sums(tree: &Tree, lists: &Lists, strengths: &[Vec<f64>], component: usize) -> Vec<f64> {
    let strengths = &strengths[component];
    let of_leaf = |b: usize| match tree.is_leaf(b) && tree.gives(b) {
        true => strengths[tree.sources_of(b)].iter().sum(),
        false => 0.0,
    };
    let mut sums: Vec<f64> = (0..tree.len()).into_par_iter().map(of_leaf).collect();
    match ranks::exchange(tree) {
        None => (1..tree.len()).rev().for_each(|b| sums[tree.parent[b] as usize] += sums[b]),
        Some(_) => add_children(&lists.m2m, &mut sums),
    }
    sums
}

/// Adds the sums of children to those of their parents, the last child first, as without ranks.
fn add_children(edges: &Edges, sums: &mut [f64]) {
    for b in (0..sums.len()).rev() {
        edges.row(b).iter().rev().for_each(|&c| sums[b] += sums[c as usize]);
    }
}

/// Completes `sums` by those of other ranks.
pub fn complete(tree: &Tree, sums: &mut Vec<f64>) -> Result<(), Error> {
    ranks::complete(tree, sums, 1)?;
    ranks::after(tree).into_iter().for_each(|after| add_children(after, sums));
    Ok(())
}

/// Sums times side^`degree` (hatted).
pub fn hatted<T: Scalar>(tree: &Tree, sums: &[f64], degree: i32) -> Vec<T> {
    let of_level = |level: usize| {
        let (factor, boxes) = (tree.side_at(level).powi(degree), tree.level(level));
        sums[boxes].iter().map(move |x| T::of(x * factor))
    };
    (0..tree.levels()).flat_map(of_level).collect()
}

/// Adds the net strengths of box `b` to the `density` of this box, each times the density of a unit source.
pub fn add<T: Scalar>(operators: &Operators<T>, net: &[Vec<T>], b: usize, density: &mut [T]) {
    for ((_, unit), net) in operators.units().zip(net) {
        density.iter_mut().zip(unit).for_each(|(x, unit)| *x += net[b] * *unit);
    }
}

/// Appends the density of box `b` to `wide` in f64, corrected so that each component sums to the net strength of the
/// box in f64. Far from the box the entries of a density cancel, and without the correction the rounding of f32
/// remains.
pub fn in_f64<T: Scalar>(operators: &Operators<T>, net: &[Vec<T>], b: usize, density: &[T], wide: &mut Vec<f64>) {
    let first = wide.len();
    wide.extend(density.iter().map(|x| x.f64()));
    let mut net = net.iter();
    for (component, source) in wide[first..].chunks_exact_mut(operators.points).zip(&operators.kept) {
        let expected = source.and_then(|_| net.next()).map_or(0.0, |net| net[b].f64());
        let excess = (component.iter().sum::<f64>() - expected) / operators.points as f64;
        component.iter_mut().for_each(|x| *x -= excess);
    }
}
