//! The solves for densities: pseudo-inverses, and the choice of singular values to drop.
//!
//! The matrix from densities to check values is nearly singular, because check values far from a density say little
//! about its details. Singular values below a cutoff are dropped.
//!
//! - On a surface the cutoff is 10^−(p+2): a surface of order p resolves fields to about 10^−p, so smaller singular
//!   values carry only the error of the discretisation, amplified. Example: forces along the normals of the surface
//!   have no field. At p = 7 the Stokeslet then has a singular value of 1e-13 whose left vector is not orthogonal to
//!   physical check values. Kept, it would cost hundreds of times the error of the neighbouring orders (measured in
//!   docs/notes/equivalent-densities.md).
//! - In a volume the best cutoff depends on the kernel: a narrow Gaussian wants 1e-7, 1/r wants 1e-15. It is measured:
//!   for some sources in the box and targets outside, the errors of all cutoffs follow from one decomposition
//!   ([`Trial`]). Values count in units of the box, so a small value beside large ones has no say. The rounding of f32
//!   is no part of a trial.

use super::Scalar;
use super::lattice::{Fill, Lattice, OUTER, SPREAD};
use super::matrix::{Matrix, kernel_matrix};
use super::svd::Svd;
use super::symmetry::{Side, Symmetry};
use fmm_traits::{Error, Member};
use rayon::prelude::*;

/// Version of the solves. Increase it when a number or a rule of this file or of [`super::svd`] changes: operators on
/// disk are found by it.
pub(super) const VERSION: u32 = 3;
/// Smallest singular value kept in f64, as a fraction of the largest. It balances the accuracy of high orders against
/// rounding; measured in docs/notes/equivalent-densities.md.
const CUTOFF_F64: f64 = 1e-15;
/// Smallest singular value kept in f32, as a fraction of the largest. See [`CUTOFF_F64`].
const CUTOFF_F32: f64 = 1e-7;
/// If the largest singular value is below this number, the kernel counts as zero outside its box. The square roots of
/// all kept singular values must stay in the range of f32.
const MIN_FAR_FIELD: f64 = 1e-30;
/// Sources of a trial. A few are enough: errors of neighbouring cutoffs differ by factors.
const TRIAL_SOURCES: usize = 24;
/// Targets of a trial. See [`TRIAL_SOURCES`].
const TRIAL_TARGETS: usize = 48;
/// A larger cutoff is taken if its error in a trial is at most this many times the smallest error. A larger cutoff
/// amplifies less rounding.
const TRIAL_MARGIN: f64 = 1.3;

/// Which singular values are kept, as fractions of the largest.
#[derive(Clone, Debug)]
pub(super) enum Cutoff {
    /// Those above a number.
    Fixed(f64),
    /// Those with which a trial errs least, but none below `floor`.
    Measured {
        /// Smallest fraction.
        floor: f64,
        /// The trial.
        trial: Trial,
    },
}

/// Sources and targets for which a solve is tried.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Check values of each source, one column per source and strength.
    pub check: Matrix<f64>,
    /// What a density contributes to each target, one column per target and value.
    pub targets: Matrix<f64>,
    /// The fields of the sources at the targets: targets × sources.
    pub exact: Matrix<f64>,
}

impl Cutoff {
    /// The rules of the [module header](self) for the upward solve, or for the downward solve (as the upward solve of
    /// the adjoint kernel).
    pub fn of<T: Scalar>(kernel: &Member, params: &[f64], lattice: Lattice, downward: bool) -> Self {
        let floor = if T::EPSILON < 1e-10 { CUTOFF_F64 } else { CUTOFF_F32 };
        match lattice.fill {
            Fill::Surface => Cutoff::Fixed(10f64.powi(-(lattice.order as i32) - 2).max(floor)),
            Fill::Volume => Cutoff::Measured { floor, trial: Trial::of(kernel, params, lattice, downward) },
        }
    }
}

impl Trial {
    fn of(kernel: &Member, params: &[f64], lattice: Lattice, downward: bool) -> Self {
        let matrix = |to: &[[f64; 3]], from: &[[f64; 3]]| kernel_matrix(kernel, params, to, from, |_, _| 1.0);
        let inside: Vec<[f64; 3]> = (0..TRIAL_SOURCES).map(|k| quasi_random(k).map(|x| x - 0.5)).collect();
        let outside: Vec<[f64; 3]> =
            (0..TRIAL_TARGETS).map(|k| around(lattice.dim, quasi_random(k + TRIAL_SOURCES))).collect();
        let (inner, outer) = (lattice.inner(), lattice.outer());
        match downward {
            false => Trial {
                check: matrix(&outer, &inside),
                targets: matrix(&outside, &inner).transposed(),
                exact: matrix(&outside, &inside),
            },
            true => Trial {
                check: matrix(&inside, &outer).transposed(),
                targets: matrix(&inner, &outside),
                exact: matrix(&inside, &outside).transposed(),
            },
        }
    }
}

/// Point k of a sequence that fills the unit cube evenly (Roberts: multiples of the powers of 1/1.2207…, modulo 1).
fn quasi_random(k: usize) -> [f64; 3] {
    let g: f64 = 1.220_744_084_605_759_5;
    [1, 2, 3].map(|a| (0.5 + (k + 1) as f64 * g.powi(-a)).fract())
}

/// A point of the unit cube taken to the space between the smallest and the largest cube of outer points. Most lie near
/// the smallest cube, where fields vary most. In two dimensions z is 0.
fn around(dim: usize, x: [f64; 3]) -> [f64; 3] {
    let y: [f64; 3] = std::array::from_fn(|a| if a < dim { 2.0 * x[a] - 1.0 } else { 0.0 });
    let m = y.iter().fold(1e-3f64, |m, y| m.max(y.abs()));
    let side = OUTER + SPREAD * m.powi(6);
    y.map(|y| 0.5 * side * y / m)
}

/// The decomposition of a matrix from densities to check values: one per parity.
pub(super) struct Decomposition {
    blocks: Vec<Svd>,
    largest: f64,
}

impl Decomposition {
    /// Decomposes the blocks of all parities.
    ///
    /// # Errors
    /// [`Error::Numerical`] for values that are not finite, or if a decomposition does not converge.
    pub fn new(blocks: &[Matrix<f64>]) -> Result<Self, Error> {
        let decompose = |a: &Matrix<f64>| {
            let failed = Error::Numerical { routine: "singular value decomposition", rows: a.rows, columns: a.cols };
            Svd::of(a).ok_or(failed)
        };
        let blocks: Vec<_> = blocks.par_iter().map(decompose).collect::<Result<_, _>>()?;
        let sigma = blocks.iter().flat_map(|b| &b.sigma);
        Ok(Decomposition { largest: sigma.copied().fold(0.0, f64::max), blocks })
    }

    /// The pseudo-inverse of each block as two factors `V·Σ^(−1/2)` and `Σ^(−1/2)·Uᵀ`. The symmetric split keeps both
    /// factors in the range of f32; and the factors of the transposed matrix are their transposes.
    pub fn factors(&self, cutoff: &Cutoff, symmetry: &Symmetry) -> Vec<[Matrix<f64>; 2]> {
        let fraction = match cutoff {
            Cutoff::Fixed(fraction) => *fraction,
            Cutoff::Measured { floor, trial } => self.measured(*floor, trial, symmetry),
        };
        // A kernel that underflows on the scale of the box (Yukawa, κh ≫ 1) has no far field.
        let smallest = if self.largest < MIN_FAR_FIELD { f64::INFINITY } else { fraction * self.largest };
        let factors = |k: usize| {
            let Svd { u, sigma, v } = &self.blocks[k];
            let weights: Vec<f64> = sigma.iter().take_while(|&&s| s > smallest).map(|s| s.sqrt().recip()).collect();
            let weighted = |m: &Matrix<f64>| {
                let columns = m.data.chunks_exact(m.rows.max(1)).zip(&weights);
                let data = columns.flat_map(|(column, w)| column.iter().map(move |x| x * w)).collect();
                Matrix { rows: m.rows, cols: weights.len(), data }
            };
            [weighted(v), weighted(u).transposed()]
        };
        (0..self.blocks.len()).map(factors).collect()
    }

    /// The largest cutoff with about the smallest error in a trial.
    ///
    /// The solve is Σ v σ⁻¹ uᵀ. Its terms are added in the order of falling σ to the fields at the targets. After each
    /// term the error is that of the cutoff just below this σ.
    fn measured(&self, floor: f64, trial: &Trial, symmetry: &Symmetry) -> f64 {
        let (check, targets) = (folded(&symmetry.values, &trial.check), folded(&symmetry.strengths, &trial.targets));
        let mut terms: Vec<(f64, usize, usize)> = Vec::new();
        for k in 0..self.blocks.len() {
            terms.extend(self.blocks[k].sigma.iter().enumerate().map(|(i, s)| (*s, k, i)));
        }
        terms.retain(|(s, ..)| *s > floor * self.largest);
        terms.sort_by(|a, b| b.0.total_cmp(&a.0));
        let blocks: Vec<usize> = symmetry.parities().collect();
        let mut rest = trial.exact.clone();
        let mut errors = Vec::with_capacity(terms.len());
        for &(s, k, i) in &terms {
            let along = |side: &Side, m: &Matrix<f64>, vectors: &Matrix<f64>| -> Vec<f64> {
                let (block, vector) = (side.block(blocks[k]), &vectors.data[i * vectors.rows..][..vectors.rows]);
                let dot = |column: &[f64]| column[block.clone()].iter().zip(vector).map(|(a, b)| a * b).sum();
                m.data.chunks_exact(m.rows).map(dot).collect()
            };
            let from = along(&symmetry.values, &check, &self.blocks[k].u);
            let to = along(&symmetry.strengths, &targets, &self.blocks[k].v);
            for (column, a) in rest.data.chunks_exact_mut(rest.rows).zip(&from) {
                column.iter_mut().zip(&to).for_each(|(x, b)| *x -= a / s * b);
            }
            errors.push(rest.data.iter().map(|x| x * x).sum::<f64>());
        }
        let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
        let found = errors.iter().position(|&e| e <= TRIAL_MARGIN * TRIAL_MARGIN * least).filter(|_| least.is_finite());
        // Just below the last singular value that is kept.
        found.map_or(floor, |k| (1.0 - 1e-9) * terms[k].0 / self.largest)
    }
}

/// The columns of a matrix, each folded.
fn folded(side: &Side, matrix: &Matrix<f64>) -> Matrix<f64> {
    let mut data = vec![0.0; matrix.data.len()];
    for (to, from) in data.chunks_exact_mut(matrix.rows).zip(matrix.data.chunks_exact(matrix.rows)) {
        side.fold(from, to);
    }
    Matrix { rows: matrix.rows, cols: matrix.cols, data }
}
