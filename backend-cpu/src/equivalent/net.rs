//! Net strengths of boxes: what densities keep to rounding ([`fmm_kernels::equivalent::net`]).

use fmm_kernels::equivalent::{Operators, Scalar};
use fmm_traits::Tree;
use rayon::prelude::*;

/// Component `component` of `strengths` (tree order) summed over the sources of each box, hatted: times
/// side^`degree`.
pub fn strengths<T: Scalar>(tree: &Tree, strengths: &[Vec<f64>], component: usize, degree: i32) -> Vec<T> {
    let strengths = &strengths[component];
    let of_leaf = |b: usize| match tree.is_leaf(b) {
        true => strengths[tree.sources_of(b)].iter().sum(),
        false => 0.0,
    };
    let mut sums: Vec<f64> = (0..tree.len()).into_par_iter().map(of_leaf).collect();
    for b in (1..tree.len()).rev() {
        sums[tree.parent[b] as usize] += sums[b];
    }
    let hatted = |level: usize| {
        let (factor, boxes) = (tree.side_at(level).powi(degree), tree.level(level));
        sums[boxes].iter().map(move |x| T::of(x * factor))
    };
    (0..tree.levels()).flat_map(hatted).collect()
}

/// Puts the net strengths of box `b` into its density.
pub fn add<T: Scalar>(operators: &Operators<T>, net: &[Vec<T>], b: usize, density: &mut [T]) {
    for ((_, unit), net) in operators.units().zip(net) {
        density.iter_mut().zip(unit).for_each(|(x, unit)| *x += net[b] * *unit);
    }
}

/// The density of box `b` in f64, behind what `wide` holds, with its net strengths to the last bits of that: far from the box its numbers
/// cancel, the more the further, and the rounding of f32 would be left.
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
