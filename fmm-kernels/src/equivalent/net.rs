//! Densities with the net strength of their sources, to rounding.
//!
//! A dipole has no net charge and a stresslet no net force: their fields decay a power of r faster than those
//! of the densities that stand for them. A surface solve reproduces check values to its own
//! accuracy ε, and leaves a density with a net strength of ε times its size; at a distance R that spurious charge has a field
//! of ε/R beside the dipoles' 1/R², a relative error that grows with R without bound, and that M2M hands on from
//! box to box. Where a source has such strengths, the upward solve therefore takes the net strength out, and what the sources
//! have of it is put back:
//!
//! density = Π·solve(check) + Σ_j Q_j g_j,  Π = 1 − Σ_j g_j t_j.
//!
//! t_j is the sum of component j over the surface, g_j the density that stands for a unit source of that component at the
//! centre of the box, with t_i·g_j = δ_ij, and Q_j the net strength of the sources in the box, which is 0 for dipoles
//! alone. Then t_j·density = Q_j to rounding, on each level anew, and what is taken out is the field
//! of point sources and nothing else. Π enters the first factor of the solve: no operation more in any stage. Locals need no such
//! thing (what they carry beside a density is [`affine`](super::affine)): the downward solve is the transpose of the upward one
//! without Π.
//!
//! # Which components
//!
//! The dilation rule ([`fmm_traits::kernel`]) knows. The field of a net strength of component j is homogeneous in r, of
//! degree value_degree + strength_degree(j); that of a source strength s of value_degree + strength_degree(s). A homogeneous
//! kernel has no length that could make up for a difference of degrees: a strength of lower degree than component j has
//! no net strength of that component. (Stresslets have no net force, but they may have a net sink.) One of the same
//! degree has one, and the same field: its number is Q_j. The components meant are those of the highest degree. Kernels that
//! are not homogeneous are left alone, and so are families without strengths of lower degree: charges, forces, every [`Kernel`]
//! that is a family by itself.

use super::matrix::{Matrix, kernel_columns, kernel_matrix, multiply_add};
use super::symmetry::Symmetry;
use fmm_traits::{Family, Kernel};

/// The components of densities of `K` with the highest degree, if they come first.
fn highest<K: Kernel>() -> usize {
    let top = (0..K::STRENGTHS).map(K::strength_degree).max();
    let of_top = |j: &usize| Some(K::strength_degree(*j)) == top;
    let first = (0..K::STRENGTHS).take_while(of_top).count();
    if (first..K::STRENGTHS).any(|j| of_top(&j)) { 0 } else { first }
}

/// For each component of multipoles of `F` whose net strength is kept, the strength of a source that it is, or `None` if it
/// is always 0; empty if none is kept.
pub fn of_sources<F: Family>(params: &[f64]) -> Vec<Option<usize>> {
    let count = highest::<F::Equivalent>();
    let homogeneous = F::Equivalent::dilated(params, 2.0).is_none() && F::Check::dilated(params, 2.0).is_none();
    let (given, top) = (F::Check::strength_degree, F::Equivalent::strength_degree(0));
    let lower = (0..F::Check::STRENGTHS).any(|s| given(s) < top);
    if count == 0 || !lower || !homogeneous {
        return Vec::new();
    }
    let (source, density) = (sample::<F::Check>(params), sample::<F::Equivalent>(params));
    let mut found = vec![None; count];
    for s in (0..F::Check::STRENGTHS).filter(|&s| given(s) >= top) {
        match (0..count).find(|&j| found[j].is_none() && source.columns(&[s]) == density.columns(&[j])) {
            Some(j) => found[j] = Some(s),
            None => return Vec::new(),
        }
    }
    found
}

/// Where kernels are compared.
const PLACES: [[f64; 3]; 3] = [[0.9, -1.3, 0.7], [0.31, 0.77, -1.1], [-1.7, 0.23, 0.45]];

/// Values of `K` at some places.
fn sample<K: Kernel>(params: &[f64]) -> Matrix<f64> {
    kernel_matrix::<K>(params, &PLACES, &[[0.0; 3]], |_, _| 1.0)
}

/// What [`of_factors`] needs of a component: t over the densities, and the check values of a unit source at the centre.
pub(super) type Sum = [Vec<f64>; 2];

/// Of the components of `F` that are kept, with check values on the surface `outer`.
pub(super) fn sums<F: Family>(params: &[f64], outer: &[[f64; 3]]) -> Vec<Sum> {
    let ones =
        |j: usize| (0..F::Equivalent::STRENGTHS * outer.len()).map(|k| f64::from(k / outer.len() == j)).collect();
    let check = |j| kernel_columns::<F::Equivalent>(params, outer, &[[0.0; 3]], &[j]).data;
    (0..of_sources::<F>(params).len()).map(|j| [ones(j), check(j)]).collect()
}

/// For the solve `factors` by parity: Π times the first factors, and g of each component; nothing for no `components`.
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
        // A component without a field.
        let factor = if net.abs() > SMALLEST { net.recip() } else { 0.0 };
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
            // A sum over the surface has one parity, and so has the field of a source at the centre.
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

/// The net strength of a density for a unit source is 1 up to the error of the order.
const SMALLEST: f64 = 0.1;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(matrix: &Matrix<f64>, x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; matrix.rows];
    multiply_add(matrix.view(), x, 1.0, &mut y);
    y
}
