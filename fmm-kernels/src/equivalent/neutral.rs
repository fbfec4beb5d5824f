//! Densities without a net strength, for sources that have none.
//!
//! A dipole has no net charge and a stresslet no net force: their fields decay a power of r faster than those
//! of the densities that stand for them. A surface solve reproduces check values to its own
//! accuracy ε, and leaves a density with a net strength of ε times its size; at a distance R that spurious charge has a field
//! of ε/R beside the dipoles' 1/R², a relative error that grows with R without bound, and that M2M hands on from
//! box to box. The upward solve of such a family therefore takes the net strength out:
//!
//! Π = 1 − g t/(t·g): t the sum of a component over the surface, g the density that stands for a unit source of that
//! component at the centre of the box.
//!
//! Then t·Π = 0, so that every multipole is neutral to rounding, on each level anew; and what is taken out is the field
//! of one point source and nothing else, since g has no other moments. Π enters the first factor of the solve: no
//! operation more in any stage. Locals need no such thing (a constant potential is theirs to carry), so that
//! the downward solve stays the transpose of the upward one without Π.
//!
//! # Which components
//!
//! The dilation rule ([`fmm_traits::kernel`]) knows. The field of a net strength of component j is homogeneous in r, of
//! degree value_degree + strength_degree(j); that of a source strength s of value_degree + strength_degree(s). A homogeneous
//! kernel has no length that could make up for a difference of degrees: a source whose strengths are all of lower
//! degree than component j has no net strength of that component. (Stresslets have no net force, but they may have a net
//! sink.) A kernel that is not homogeneous has no such rule: it is left alone.

use super::Matrix;
use super::matrix::{kernel_columns, multiply_add};
use super::symmetry::Symmetry;
use fmm_traits::{Family, Kernel};

/// A component that is conserved: t as a vector over the densities, and the check values of a unit source at the centre.
pub(super) type Conserved = [Vec<f64>; 2];

/// The components of equivalent densities of which no source of `F` has a net strength.
pub(super) fn components<F: Family>(params: &[f64]) -> Vec<usize> {
    let homogeneous = F::Equivalent::dilated(params, 2.0).is_none() && F::Check::dilated(params, 2.0).is_none();
    let degree = F::Equivalent::strength_degree;
    let lower = |j: &usize| (0..F::Check::STRENGTHS).all(|s| F::Check::strength_degree(s) < degree(*j));
    (0..F::Equivalent::STRENGTHS).filter(|j| homogeneous && lower(j)).collect()
}

/// The [`components`] of `F`, with check values on the surface `outer`.
pub(super) fn conserved<F: Family>(params: &[f64], outer: &[[f64; 3]]) -> Vec<Conserved> {
    let of = |j: usize| {
        let sum = (0..F::Equivalent::STRENGTHS * outer.len()).map(|k| f64::from(k / outer.len() == j)).collect();
        [sum, kernel_columns::<F::Equivalent>(params, outer, &[[0.0; 3]], &[j]).data]
    };
    components::<F>(params).into_iter().map(of).collect()
}

/// Π times the first factors of the solve `factors`, by parity; nothing if nothing is `conserved`.
pub(super) fn first_factors(
    symmetry: &Symmetry,
    factors: &[[Matrix<f64>; 2]],
    conserved: &[Conserved],
) -> Vec<Matrix<f64>> {
    let mut first: Vec<Matrix<f64>> = factors.iter().map(|[first, _]| first.clone()).collect();
    first.truncate(first.len() * conserved.len());
    let (mut t, mut c) = (vec![0.0; symmetry.strengths.len()], vec![0.0; symmetry.values.len()]);
    for [sum, check] in conserved {
        symmetry.strengths.fold(sum, &mut t);
        symmetry.values.fold(check, &mut c);
        for (parity, (first, [_, second])) in symmetry.parities().zip(first.iter_mut().zip(factors)) {
            // A sum over the surface has one parity; the field of a source at the centre has the same.
            let (t, c) = (&t[symmetry.strengths.block(parity)], &c[symmetry.values.block(parity)]);
            // g has no net strength of the components before, which are taken out of `first` already.
            let g = product(first, &product(second, c));
            let net = dot(t, &g);
            if net.abs() > SMALLEST {
                for column in first.data.chunks_exact_mut(first.rows) {
                    let share = dot(t, column) / net;
                    column.iter_mut().zip(&g).for_each(|(x, g)| *x -= share * g);
                }
            }
        }
    }
    first
}

/// A net strength of g, which is 1 up to the error of the order, is not smaller than this but for a component without a field.
const SMALLEST: f64 = 0.1;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(matrix: &Matrix<f64>, x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; matrix.rows];
    multiply_add(matrix.view(), x, 1.0, &mut y);
    y
}
