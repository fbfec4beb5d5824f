//! The translation operators of one unit box: surface solves, M2M and L2L.

use super::matrix::{Matrix, kernel_columns, kernel_matrix, round};
use super::symmetry::{Side, Symmetry};
use super::{Scalar, cache, net, surface};
use faer::MatRef;
use fmm_traits::{Error, Family, Kernel, kernel::reciprocal_at};
use std::path::Path;
use std::sync::Arc;

/// Smallest order.
pub const MIN_ORDER: usize = 3;
/// Largest order.
pub const MAX_ORDER: usize = 16;

/// Singular values below this fraction of the largest are dropped, whatever the order, when the
/// sum is in f64 (below lies rounding; 1e-14 to 2e-16 differ by less than a factor of three).
pub const CUTOFF_F64: f64 = 1e-15;
/// As [`CUTOFF_F64`] for sums in f32 (1e-6 to 1e-8 differ by less than a factor of three; 1e-5
/// costs an order).
pub const CUTOFF_F32: f64 = 1e-7;

/// The cutoff for order `p`. At low orders it is 10^−(p+2) in either precision: the surfaces
/// resolve fields to about 10^−p, so that smaller singular values carry only the error of that
/// discretisation, amplified. Without this bound, Stokeslets at p = 7 are hundreds of times less
/// accurate than their neighbours in p: the density along the normals, which has no field, leaves a
/// singular value of 1e-13 whose left vector is not orthogonal to physical check values.
/// 10^−(p+1) and 10^−(p+3) give the same errors to a factor of three.
pub(super) fn cutoff<T: Scalar>(p: usize) -> f64 {
    let rounding = if T::EPSILON < 1e-10 { CUTOFF_F64 } else { CUTOFF_F32 };
    10f64.powi(-(p as i32) - 2).max(rounding)
}

/// The operators of one direction, in the bases of [`Side::fold`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Half<T> {
    symmetry: Symmetry,
    /// By parity: the two factors of the surface solve.
    solve: Vec<[Matrix<T>; 2]>,
    /// By parity: what stands for the first factors where net strengths are kept ([`net`]); empty where they are not.
    neutral: Vec<Matrix<T>>,
    /// The density of a unit source of each component that is kept.
    units: Vec<Matrix<T>>,
    /// By parity, then by octant ([`Symmetry::octants`]): the translation between a box and a family of children.
    shift: Vec<Matrix<T>>,
}

/// The operators of order `order` on a box of side 1 for one set of kernel parameters; see the
/// [module header](super) for units and the order of vectors. n = `points`, C = `values`,
/// E = `strengths`.
///
/// The downward operators are the transposes of the upward ones of the adjoint kernel K(−r)ᵀ. For a reciprocal kernel
/// that is the kernel itself, and nothing more is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Operators<T> {
    /// Order p: points per edge of a surface.
    pub order: usize,
    /// Points n on a surface.
    pub points: usize,
    /// Check values C per point.
    pub values: usize,
    /// Equivalent strengths E per point.
    pub strengths: usize,
    /// Kernel parameters on the unit box (already dilated).
    pub params: Vec<f64>,
    /// L2L is to be multiplied by this number.
    pub l2l_factor: T,
    /// Of multipoles: for each component whose net strength is kept ([`net`]), the strength of a source that it is, if any.
    pub kept: Vec<Option<usize>>,
    upward: Half<T>,
    /// Of the adjoint kernel, if it is another.
    adjoint: Option<Half<T>>,
}

/// The operators of one direction, by parity χ of folded vectors ([`super::symmetry`]).
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a, T> {
    pub(super) half: &'a Half<T>,
    /// Whether these are the transposes of `half`.
    pub(super) downward: bool,
    /// Whether the solve is that for densities without net strengths.
    pub(super) neutral: bool,
}

impl<'a, T: Scalar> Direction<'a, T> {
    /// How check values fold.
    pub fn check(&self) -> &'a Side {
        if self.downward { &self.half.symmetry.strengths } else { &self.half.symmetry.values }
    }
    /// How densities fold.
    pub fn density(&self) -> &'a Side {
        if self.downward { &self.half.symmetry.values } else { &self.half.symmetry.strengths }
    }
    /// Whether `representative` stands for `octant`.
    pub(super) fn represents(&self, representative: usize, octant: usize) -> bool {
        self.half.symmetry.representative(octant) == representative
    }
    /// For each parity χ: χ, and the surface solve as two factors: density = `[0]·([1]·check)`, folded. One product matrix
    /// would lose half the digits.
    pub fn solves(&self) -> impl Iterator<Item = (usize, [MatRef<'a, T>; 2])> + use<'a, T> {
        let Direction { half, downward, neutral } = *self;
        half.symmetry.parities().enumerate().map(move |(k, parity)| {
            let [a, b] = &half.solve[k];
            let a = if neutral { &half.neutral[k] } else { a };
            match downward {
                false => (parity, [a.view(), b.view()]),
                true => (parity, [b.view().transpose(), a.view().transpose()]),
            }
        })
    }
    /// For each parity χ and each octant o that stands for its images: χ, o, and the translation between parity χ
    /// of a box and place χ|o of the folded family of its children ([`Side::fold_family`]).
    /// Upward: M2M, density of the family → check values of the box. Downward: L2L, density of the box → check values of
    /// the family, **divided by** [`Operators::l2l_factor`].
    pub fn shifts(&self) -> impl Iterator<Item = (usize, usize, MatRef<'a, T>)> + use<'a, T> {
        let Direction { half, downward, .. } = *self;
        let places = half.symmetry.parities().flat_map(|x| half.symmetry.octants().map(move |o| (x, o)));
        places.zip(&half.shift).map(move |((parity, octant), m)| match downward {
            false => (parity, octant, m.view()),
            true => (parity, octant, m.view().transpose()),
        })
    }
}

impl<T: Scalar> Half<T> {
    /// From the matrix `solve` between concentric surfaces (density → check values) and `shift(octant)` (density of
    /// a child → check values), of which only columns named are asked for; `sums` are those of [`net`].
    fn build(
        symmetry: Symmetry,
        cutoff: f64,
        solve: impl Fn(&[usize]) -> Matrix<f64>,
        shift: impl Fn(usize) -> Matrix<f64>,
        sums: &[net::Sum],
    ) -> Result<Self, Error> {
        let mut folded = vec![0.0; symmetry.values.len()];
        // A reflection takes column j to that of an image of j: the columns of parity χ are the parity χ of
        // one column each, times the root of the number of images.
        let mut block = |matrix: &Matrix<f64>, parity: usize, sizes: &mut dyn Iterator<Item = usize>| {
            let rows = symmetry.values.block(parity);
            let mut data = Vec::with_capacity(rows.len() * matrix.cols);
            for (column, size) in matrix.data.chunks_exact(matrix.rows).zip(sizes) {
                symmetry.values.fold(column, &mut folded);
                data.extend(folded[rows.clone()].iter().map(|x| x * (size as f64).sqrt()));
            }
            Matrix { rows: rows.len(), cols: matrix.cols, data }
        };
        let blocks = symmetry.parities().map(|parity| {
            let (columns, sizes): (Vec<_>, Vec<_>) = symmetry.strengths.representatives(parity).iter().copied().unzip();
            block(&solve(&columns), parity, &mut sizes.into_iter())
        });
        let factors = pseudo_inverses(blocks.collect(), cutoff)?;
        let octants: Vec<(usize, Matrix<f64>)> = symmetry.octants().map(|o| (o, shift(o))).collect();
        let images = symmetry.parities().count();
        let mut shifts = Vec::new();
        for parity in symmetry.parities() {
            for (_, matrix) in &octants {
                shifts.push(round(&block(matrix, parity, &mut std::iter::repeat(images))));
            }
        }
        let (neutral, units) = net::of_factors(&symmetry, &factors, sums);
        let [neutral, units] = [neutral, units].map(|of| of.iter().map(round).collect());
        let solve = factors.iter().map(|f| f.each_ref().map(round)).collect();
        Ok(Half { symmetry, solve, neutral, units, shift: shifts })
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix<T>> {
        self.solve.iter().flatten().chain(&self.neutral).chain(&self.units).chain(&self.shift)
    }

    /// From the [`matrices`](Self::matrices); `None` if they run out or a shape is wrong.
    fn from_matrices(symmetry: Symmetry, sums: usize, next: &mut dyn FnMut() -> Option<Matrix<T>>) -> Option<Self> {
        let fits = |m: &Matrix<T>, rows, cols| (m.rows, m.cols, m.data.len()) == (rows, cols, rows * cols);
        let mut solve: Vec<[Matrix<T>; 2]> = Vec::new();
        let (mut neutral, mut units, mut shift) = (Vec::new(), Vec::new(), Vec::new());
        for parity in symmetry.parities() {
            let pair = [next()?, next()?];
            let rank = pair[0].cols;
            let (e, c) = (symmetry.strengths.block(parity).len(), symmetry.values.block(parity).len());
            solve.push(pair);
            (fits(&solve.last()?[0], e, rank) && fits(&solve.last()?[1], rank, c)).then_some(())?;
        }
        for [first, _] in solve.iter().filter(|_| sums > 0) {
            neutral.push(next()?);
            fits(neutral.last()?, first.rows, first.cols).then_some(())?;
        }
        for _ in 0..sums {
            units.push(next()?);
            fits(units.last()?, symmetry.strengths.len(), 1).then_some(())?;
        }
        for parity in symmetry.parities() {
            for _ in symmetry.octants() {
                shift.push(next()?);
                fits(shift.last()?, symmetry.values.block(parity).len(), symmetry.strengths.len()).then_some(())?;
            }
        }
        Some(Half { symmetry, solve, neutral, units, shift })
    }
}

impl<T: Scalar> Operators<T> {
    /// Builds the operators of family `F` at order `p` for a unit box; `params` are the kernel
    /// parameters *after* dilation to that box ([`unit_parameters`]).
    ///
    /// Errors: [`Error::Order`], [`Error::Unsupported`] for a kernel that is not [`Kernel::RECIPROCAL`] though it
    /// says so, and [`Error::Numerical`] if the singular value decomposition fails
    /// (not finite kernel values).
    pub fn build<F: Family>(params: &[f64], p: usize) -> Result<Self, Error> {
        Self::with_cutoff::<F>(params, p, cutoff::<T>(p))
    }

    /// [`build`](Self::build) with singular values below `cutoff` times the largest dropped.
    pub fn with_cutoff<F: Family>(params: &[f64], p: usize, cutoff: f64) -> Result<Self, Error> {
        if !(MIN_ORDER..=MAX_ORDER).contains(&p) {
            return Err(Error::Order { order: p, min: MIN_ORDER, max: MAX_ORDER });
        }
        if F::Equivalent::RECIPROCAL && !reciprocal_at::<F::Equivalent>(params, [0.9, -1.3, 0.7]) {
            let reason = format!("kernel {} is declared RECIPROCAL, and K(−r) is not K(r)ᵀ", F::Equivalent::NAME);
            return Err(Error::Unsupported { operation: "the equivalent-density method", reason });
        }
        let (inner, outer) = (surface::points(p, surface::INNER), surface::points(p, surface::OUTER));
        let child = |octant| in_child(&inner, octant);
        let (shared, _) = l2l_factor::<F::Equivalent>();
        let symmetry = Symmetry::of::<F::Equivalent>(params, p);
        let upward = Half::build(
            symmetry.clone(),
            cutoff,
            |columns| kernel_columns::<F::Equivalent>(params, &outer, &inner, columns),
            // Strengths hatted for the child become hatted for the parent.
            |octant| {
                let factor = |_: usize, j: usize| power(F::Equivalent::strength_degree(j));
                kernel_matrix::<F::Equivalent>(params, &outer, &child(octant), factor)
            },
            &net::sums::<F>(params, &outer),
        )?;
        let adjoint = if shared {
            None
        } else {
            let downward = kernel_matrix::<F::Equivalent>(params, &inner, &outer, |_, _| 1.0).transposed();
            let half = Half::build(
                symmetry.adjoint(),
                cutoff,
                |columns| downward.columns(columns),
                // Values in the parent's units become values in the child's.
                |octant| {
                    let factor = |i: usize, _: usize| power(F::Equivalent::value_degree(i));
                    kernel_matrix::<F::Equivalent>(params, &child(octant), &outer, factor).transposed()
                },
                &[],
            )?;
            Some(half)
        };
        Ok(Self::of_halves::<F>(params, p, upward, adjoint))
    }

    fn of_halves<F: Family>(params: &[f64], p: usize, upward: Half<T>, adjoint: Option<Half<T>>) -> Self {
        Operators {
            order: p,
            points: surface::len(p),
            values: F::Equivalent::VALUES,
            strengths: F::Equivalent::STRENGTHS,
            params: params.to_vec(),
            l2l_factor: T::of(l2l_factor::<F::Equivalent>().1),
            kept: net::of_sources::<F>(params),
            upward,
            adjoint,
        }
    }

    /// From check values on the outer surface to densities on the inner one, and from children to parents.
    pub fn upward(&self) -> Direction<'_, T> {
        Direction { half: &self.upward, downward: false, neutral: !self.kept.is_empty() }
    }

    /// From check values on the inner surface to densities on the outer one, and from parents to children.
    pub fn downward(&self) -> Direction<'_, T> {
        Direction { half: self.adjoint.as_ref().unwrap_or(&self.upward), downward: true, neutral: false }
    }

    /// For each component whose net strength sources have: the number of the strength, and the density that stands for a
    /// unit of it. Net strength times density is to be added to what the upward solve yields.
    pub fn units(&self) -> impl Iterator<Item = (usize, &[T])> {
        self.kept.iter().zip(&self.upward.units).filter_map(|(source, unit)| Some(((*source)?, &unit.data[..])))
    }

    /// Every stored matrix.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix<T>> {
        self.upward.matrices().chain(self.adjoint.iter().flat_map(Half::matrices))
    }

    /// The operators whose [`matrices`](Self::matrices) are those of `next`; `None` if it runs out
    /// or a shape is wrong.
    pub(super) fn from_matrices<F: Family>(
        params: &[f64],
        p: usize,
        next: &mut dyn FnMut() -> Option<Matrix<T>>,
    ) -> Option<Self> {
        let symmetry = Symmetry::of::<F::Equivalent>(params, p);
        let upward = Half::from_matrices(symmetry.clone(), net::of_sources::<F>(params).len(), next)?;
        let (shared, _) = l2l_factor::<F::Equivalent>();
        let adjoint = if shared { None } else { Some(Half::from_matrices(symmetry.adjoint(), 0, next)?) };
        Some(Self::of_halves::<F>(params, p, upward, adjoint))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.matrices().map(|m| m.data.len() * size_of::<T>()).sum()
    }
}

/// 2^degree: what a dilation by 2 does.
fn power(degree: i32) -> f64 {
    (degree as f64).exp2()
}

/// Whether the downward matrices are the transposes of the upward ones, and the factor of L2L.
/// K(−r) = K(r)ᵀ makes them so up to the factor between levels, which is one number if the degrees
/// are reciprocal too.
fn l2l_factor<K: Kernel>() -> (bool, f64) {
    let degree = |i: usize| K::value_degree(i) - K::strength_degree(i);
    let shared = K::RECIPROCAL && K::VALUES == K::STRENGTHS && (0..K::VALUES).all(|i| degree(i) == degree(0));
    (shared, if shared { power(degree(0)) } else { 1.0 })
}

/// The points of a child's copy of a surface, in units of the parent's side around its centre.
pub(super) fn in_child(points: &[[f64; 3]], octant: usize) -> Vec<[f64; 3]> {
    let center = |axis: usize| if octant >> axis & 1 == 1 { 0.25 } else { -0.25 };
    points.iter().map(|x| std::array::from_fn(|a| 0.5 * x[a] + center(a))).collect()
}

/// The pseudo-inverse of each block of a block-diagonal matrix as two factors, `V·Σ^(−1/2)` and `Σ^(−1/2)·Uᵀ`,
/// without the singular values below `cutoff` times the largest of all. The split keeps both in the range of f32
/// and makes the factors of the transpose the transposes of these.
fn pseudo_inverses(blocks: Vec<Matrix<f64>>, cutoff: f64) -> Result<Vec<[Matrix<f64>; 2]>, Error> {
    let decompose = |a: &Matrix<f64>| {
        let failed = Error::Numerical { routine: "singular value decomposition", rows: a.rows, columns: a.cols };
        let finite = a.data.iter().all(|x| x.is_finite());
        finite.then(|| a.view().thin_svd().ok()).flatten().ok_or(failed)
    };
    let all: Vec<_> = blocks.iter().map(decompose).collect::<Result<_, _>>()?;
    let sigma = |k: usize| all[k].S().column_vector().iter().copied();
    let largest = (0..all.len()).flat_map(sigma).fold(0.0, f64::max);
    // A kernel that underflows on the scale of the box (Yukawa, κh ≫ 1) has no far field to carry.
    let smallest = if largest < SMALLEST { f64::INFINITY } else { cutoff * largest };
    let factors = |k: usize| {
        let (u, v) = (all[k].U(), all[k].V());
        let weights: Vec<f64> = sigma(k).take_while(|&s| s > smallest).map(|s| s.sqrt().recip()).collect();
        let (m, n, rank) = (u.nrows(), v.nrows(), weights.len());
        let right = (0..rank).flat_map(|k| (0..n).map(move |i| (i, k))).map(|(i, k)| v[(i, k)] * weights[k]);
        let left = (0..m).flat_map(|j| (0..rank).map(move |k| (j, k))).map(|(j, k)| u[(j, k)] * weights[k]);
        [Matrix { rows: n, cols: rank, data: right.collect() }, Matrix { rows: rank, cols: m, data: left.collect() }]
    };
    Ok((0..all.len()).map(factors).collect())
}

/// Largest singular value below which a kernel counts as zero outside its box; its square root
/// and those of the smaller values must stay in the range of f32.
const SMALLEST: f64 = 1e-30;

/// Parameters of family `F` on the unit box that stands for a box of side `side`.
pub fn unit_parameters<F: Family>(params: &[f64], side: f64) -> Vec<f64> {
    F::Equivalent::unit_parameters(params, side)
}

/// The operators of every level of a tree: one shared set for a homogeneous kernel, one per level
/// otherwise.
#[derive(Clone, Debug)]
pub struct OperatorSet<T> {
    levels: Vec<Arc<Operators<T>>>,
}

impl<T: Scalar> OperatorSet<T> {
    /// The operators of family `F` with parameters `params` at order `p` for boxes of the sides
    /// `sides[level]`, from the [`cache`](super::cache) or built; `disk` is a folder that keeps them
    /// between runs.
    pub fn build<F: Family>(params: &[f64], sides: &[f64], p: usize, disk: Option<&Path>) -> Result<Self, Error> {
        let level = |&side: &f64| cache::operators::<F, T>(params, side, p, disk);
        Ok(OperatorSet { levels: sides.iter().map(level).collect::<Result<_, _>>()? })
    }

    /// The operators of `level`. Panics if the set was built for fewer levels.
    pub fn level(&self, level: usize) -> &Arc<Operators<T>> {
        &self.levels[level]
    }

    /// The distinct operators, with the first level that uses each.
    pub fn distinct(&self) -> impl Iterator<Item = (usize, &Arc<Operators<T>>)> {
        let new = |l: usize| l == 0 || !Arc::ptr_eq(&self.levels[l], &self.levels[l - 1]);
        self.levels.iter().enumerate().filter(move |(l, _)| new(*l))
    }
}
