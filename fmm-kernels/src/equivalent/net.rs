//! Net strengths: the total charge (or force) of a multipole's density, kept exact to rounding.
//!
//! # The problem
//!
//! Take dipoles, carried by a density of charges. Dipoles have no net charge, so their field decays like 1/R². A
//! surface solve has a relative error ε and leaves a density with a net charge of about ε. At a distance R this
//! spurious charge has the field ε/R. Compared with the dipoles' 1/R² the error grows with R without bound, and M2M
//! hands it on from box to box. Stresslets carried by forces have the same problem.
//!
//! # The remedy
//!
//! The upward solve removes the net strength of the density and puts back the exact net strength of the sources:
//!
//! density = Π·solve(check) + Σ_j Q_j g_j,  Π = 1 − Σ_j g_j t_j.
//!
//! * t_j is the sum of component j over the surface.
//! * g_j is the density of a unit source of component j at the centre of the box, scaled so that t_i·g_j = δ_ij.
//! * Q_j is the net strength of the sources in the box: 0 for dipoles alone, the total charge for charges and dipoles.
//!
//! Then t_j·density = Q_j to rounding, anew on each level. Only the field of point sources is removed. Π is
//! multiplied into the first factor of the solve, so no stage needs more operations. Locals have no such problem: the
//! downward solve is the transpose of the upward solve without Π. (Locals carry an [`affine`](super::affine) part
//! instead.)
//!
//! # Which components
//!
//! Net strengths are kept for the components of a density with the highest strength degree. The dilation rule
//! ([`fmm_traits::kernel`]) then tells the net strength of each source strength:
//!
//! * A source strength of lower degree has none. (Its field would decay like that of the component only if a length
//!   made up for the difference of degrees, and a homogeneous kernel has no length.) Example: a dipole has no net
//!   charge; a stresslet has no net force, but may have a net sink.
//! * A source strength of the same degree must have the same field as the component, and its number is Q_j. Example:
//!   the charge of `LaplaceMixed`.
//!
//! Nothing is kept for kernels that are not homogeneous, nor for families without strengths of lower degree: charges,
//! forces, and every [`Kernel`](fmm_traits::Kernel) that is a family by itself.

use super::matrix::{Matrix, kernel_columns, kernel_matrix, multiply_add};
use super::symmetry::Symmetry;
use fmm_traits::{Member, Members};

/// Number of components of a density of `kernel` that have the highest degree. They must come first; otherwise 0.
fn highest(kernel: &Member) -> usize {
    let degrees = &kernel.strength_degrees;
    let top = degrees.iter().max();
    let first = degrees.iter().take_while(|&d| Some(d) == top).count();
    if degrees[first..].iter().any(|d| Some(d) == top) { 0 } else { first }
}

/// The components of multipoles of `family` whose net strength is kept. The entry of a component is the number of the
/// source strength that adds up to it, or `None` if the net strength is always 0. Empty if nothing is kept.
pub fn of_sources(family: &Members, params: &[f64]) -> Vec<Option<usize>> {
    let Members { check, equivalent, .. } = family;
    let count = highest(equivalent);
    let homogeneous = equivalent.dilated(params, 2.0).is_none() && check.dilated(params, 2.0).is_none();
    let (given, top) = (&check.strength_degrees, equivalent.strength_degrees[0]);
    let lower = (0..check.strengths).any(|s| given[s] < top);
    if count == 0 || !lower || !homogeneous {
        return Vec::new();
    }
    let (source, density) = (sample(check, params), sample(equivalent, params));
    let mut found = vec![None; count];
    for s in (0..check.strengths).filter(|&s| given[s] >= top) {
        match (0..count).find(|&j| found[j].is_none() && source.columns(&[s]) == density.columns(&[j])) {
            Some(j) => found[j] = Some(s),
            None => return Vec::new(),
        }
    }
    found
}

/// Points at which two kernels are compared.
const SAMPLE_POINTS: [[f64; 3]; 3] = [[0.9, -1.3, 0.7], [0.31, 0.77, -1.1], [-1.7, 0.23, 0.45]];

/// Values of `kernel` at the [`SAMPLE_POINTS`].
fn sample(kernel: &Member, params: &[f64]) -> Matrix<f64> {
    kernel_matrix(kernel, params, &SAMPLE_POINTS, &[[0.0; 3]], |_, _| 1.0)
}

/// A component as [`of_factors`] needs it: the row vector t, and the check values of a unit source at the centre.
pub(super) type Sum = [Vec<f64>; 2];

/// The [`Sum`] of each component of `family` that is kept, with check values on the surface `outer`.
pub(super) fn sums(family: &Members, params: &[f64], outer: &[[f64; 3]]) -> Vec<Sum> {
    let kernel = &family.equivalent;
    let ones = |j: usize| (0..kernel.strengths * outer.len()).map(|k| f64::from(k / outer.len() == j)).collect();
    let check = |j| kernel_columns(kernel, params, outer, &[[0.0; 3]], &[j]).data;
    (0..of_sources(family, params).len()).map(|j| [ones(j), check(j)]).collect()
}

/// From the solve `factors` by parity: Π times the first factors, and the density g of each component. Both are empty
/// if `components` is.
pub(super) fn of_factors(
    symmetry: &Symmetry,
    factors: &[[Matrix<f64>; 2]],
    components: &[Sum],
) -> (Vec<Matrix<f64>>, Vec<Matrix<f64>>) {
    let side = &symmetry.strengths;
    let mut folded_check = vec![0.0; symmetry.values.len()];
    let (mut sums, mut densities) = (Vec::new(), Vec::new());
    for [sum, check] in components {
        let (mut t, mut g) = (vec![0.0; side.len()], vec![0.0; side.len()]);
        side.fold(sum, &mut t);
        symmetry.values.fold(check, &mut folded_check);
        for (parity, [first, second]) in symmetry.parities().zip(factors) {
            let part = product(first, &product(second, &folded_check[symmetry.values.block(parity)]));
            g[side.block(parity)].copy_from_slice(&part);
        }
        sums.push(t);
        densities.push(g);
    }
    // Gauss–Jordan elimination of the matrix t_i·g_j, which is near 1.
    for i in 0..densities.len() {
        let net = dot(&sums[i], &densities[i]);
        // A component without a field keeps no net strength.
        let factor = if net.abs() > MIN_NET_STRENGTH { net.recip() } else { 0.0 };
        densities[i].iter_mut().for_each(|x| *x *= factor);
        let g = densities[i].clone();
        for (_, other) in densities.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let share = dot(&sums[i], other);
            other.iter_mut().zip(&g).for_each(|(x, g)| *x -= share * g);
        }
    }
    let mut firsts = Vec::new();
    for (parity, [first, _]) in symmetry.parities().zip(factors).filter(|_| !components.is_empty()) {
        let mut first = first.clone();
        for (t, g) in sums.iter().zip(&densities) {
            // A sum over the surface has a single parity, like the field of a source at the centre.
            let (t, g) = (&t[side.block(parity)], &g[side.block(parity)]);
            for column in first.data.chunks_exact_mut(first.rows.max(1)) {
                let share = dot(t, column);
                column.iter_mut().zip(g).for_each(|(x, g)| *x -= share * g);
            }
        }
        firsts.push(first);
    }
    let unfolded = |mut g: Vec<f64>| {
        let mut data = vec![0.0; side.len()];
        side.unfold(&mut g, &mut data);
        Matrix { rows: data.len(), cols: 1, data }
    };
    (firsts, densities.into_iter().map(unfolded).collect())
}

/// Smallest net strength of the density of a unit source. It is 1 up to the error of the order, or 0 for a component
/// without a field.
const MIN_NET_STRENGTH: f64 = 0.1;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(matrix: &Matrix<f64>, x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; matrix.rows];
    multiply_add(matrix.view(), x, 1.0, &mut y);
    y
}
