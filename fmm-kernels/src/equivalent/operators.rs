//! The translation operators of one unit box: surface solves, M2M and L2L.

use super::matrix::{Matrix, kernel_matrix, round};
use super::{Scalar, cache, surface};
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

/// The factors of a surface solve, and the eight translations: one direction.
type Half<T> = ([Matrix<T>; 2], Vec<Matrix<T>>);

/// The operators of order `order` on a box of side 1 for one set of kernel parameters; see the
/// [module header](super) for units and the order of vectors. n = `points`, C = `values`,
/// E = `strengths`.
///
/// For a reciprocal kernel the downward operators are the transposes of the upward ones and are
/// not stored: the accessors return transposed views.
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
    /// [`Operators::l2l`] is to be multiplied by this number.
    pub l2l_factor: T,
    pub(super) upward: [Matrix<T>; 2],
    pub(super) m2m: Vec<Matrix<T>>,
    /// Downward solve and L2L, stored only when they are not transposes.
    pub(super) down: Option<Half<T>>,
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
        let (c, e) = (F::Equivalent::VALUES, F::Equivalent::STRENGTHS);
        let (inner, outer) = (surface::points(p, surface::INNER), surface::points(p, surface::OUTER));
        let matrix = |targets: &[[f64; 3]], sources: &[[f64; 3]], factor: &dyn Fn(usize, usize) -> f64| {
            kernel_matrix::<F::Equivalent>(params, targets, sources, factor)
        };
        let one = |_: usize, _: usize| 1.0;
        let strength_degree = F::Equivalent::strength_degree;
        let value_degree = F::Equivalent::value_degree;

        let upward = pseudo_inverse(&matrix(&outer, &inner, &one), cutoff)?;
        let children: Vec<Vec<[f64; 3]>> = (0..8).map(|octant| in_child(&inner, octant)).collect();
        // Strengths hatted for the child become hatted for the parent.
        let m2m = |child: &Vec<[f64; 3]>| round(&matrix(&outer, child, &|_, j| power(strength_degree(j))));
        let (shared, l2l_factor) = l2l_factor::<F::Equivalent>();
        let down = if shared {
            None
        } else {
            let downward = pseudo_inverse(&matrix(&inner, &outer, &one), cutoff)?;
            // Values in the parent's units become values in the child's.
            let l2l = |child: &Vec<[f64; 3]>| round(&matrix(child, &outer, &|i, _| power(value_degree(i))));
            Some((downward.each_ref().map(round), children.iter().map(l2l).collect()))
        };
        Ok(Operators {
            order: p,
            points: surface::len(p),
            values: c,
            strengths: e,
            params: params.to_vec(),
            l2l_factor: T::of(l2l_factor),
            upward: upward.each_ref().map(round),
            m2m: children.iter().map(m2m).collect(),
            down,
        })
    }

    /// The upward solve as two factors: multipole = `[0]·([1]·check)`; shapes E·n × rank and
    /// rank × C·n. One product matrix would lose half the digits.
    pub fn upward(&self) -> [MatRef<'_, T>; 2] {
        self.upward.each_ref().map(Matrix::view)
    }

    /// The downward solve as two factors: local = `[0]·([1]·check)`; shapes E·n × rank and
    /// rank × C·n. May be transposed views (rows contiguous).
    pub fn downward(&self) -> [MatRef<'_, T>; 2] {
        match &self.down {
            Some((factors, _)) => factors.each_ref().map(Matrix::view),
            None => [self.upward[1].view().transpose(), self.upward[0].view().transpose()],
        }
    }

    /// Multipole of the child in `octant` (bit 0: upper half in x, bit 1: y, bit 2: z) → upward
    /// check values of its parent; C·n × E·n.
    pub fn m2m(&self, octant: usize) -> MatRef<'_, T> {
        self.m2m[octant].view()
    }

    /// Local of the parent → downward check values of the child in `octant`, **divided by**
    /// [`l2l_factor`](Operators::l2l_factor); C·n × E·n. May be a transposed view.
    pub fn l2l(&self, octant: usize) -> MatRef<'_, T> {
        match &self.down {
            Some((_, l2l)) => l2l[octant].view(),
            None => self.m2m[octant].view().transpose(),
        }
    }

    /// Every stored matrix: the upward solve, M2M, and if stored the downward solve and L2L.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix<T>> {
        let down = self.down.iter().flat_map(|(factors, l2l)| factors.iter().chain(l2l));
        self.upward.iter().chain(&self.m2m).chain(down)
    }

    /// The operators whose [`matrices`](Self::matrices) are those of `next`; `None` if it runs out
    /// or a shape is wrong.
    pub(super) fn from_matrices<F: Family>(
        params: &[f64],
        p: usize,
        next: &mut dyn FnMut() -> Option<Matrix<T>>,
    ) -> Option<Self> {
        let (points, values, strengths) = (surface::len(p), F::Equivalent::VALUES, F::Equivalent::STRENGTHS);
        let (c, e) = (values * points, strengths * points);
        let mut half = || -> Option<Half<T>> {
            let solve = [next()?, next()?];
            let translate = (0..8).map(|_| next()).collect::<Option<Vec<_>>>()?;
            let rank = solve[0].cols;
            let fits = |m: &Matrix<T>, rows, cols| (m.rows, m.cols, m.data.len()) == (rows, cols, rows * cols);
            let good = fits(&solve[0], e, rank) && fits(&solve[1], rank, c) && translate.iter().all(|m| fits(m, c, e));
            good.then_some((solve, translate))
        };
        let (upward, m2m) = half()?;
        let (shared, l2l_factor) = l2l_factor::<F::Equivalent>();
        let down = if shared { None } else { Some(half()?) };
        let (params, l2l_factor) = (params.to_vec(), T::of(l2l_factor));
        Some(Operators { order: p, points, values, strengths, params, l2l_factor, upward, m2m, down })
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
fn in_child(points: &[[f64; 3]], octant: usize) -> Vec<[f64; 3]> {
    let center = |axis: usize| if octant >> axis & 1 == 1 { 0.25 } else { -0.25 };
    points.iter().map(|x| std::array::from_fn(|a| 0.5 * x[a] + center(a))).collect()
}

/// The pseudo-inverse of `a` as two factors, `V·Σ^(−1/2)` and `Σ^(−1/2)·Uᵀ`, without the singular
/// values below `cutoff` times the largest. The split keeps both in the range of f32 and makes
/// the factors of aᵀ the transposes of these.
fn pseudo_inverse(a: &Matrix<f64>, cutoff: f64) -> Result<[Matrix<f64>; 2], Error> {
    let (m, n) = (a.rows, a.cols);
    let failed = Error::Numerical { routine: "singular value decomposition", rows: m, columns: n };
    if a.data.iter().any(|x| !x.is_finite()) {
        return Err(failed);
    }
    let svd = a.view().thin_svd().map_err(|_| failed)?;
    let (u, v) = (svd.U(), svd.V());
    let sigma: Vec<f64> = svd.S().column_vector().iter().copied().collect();
    let largest = sigma.first().copied().unwrap_or(0.0);
    // A kernel that underflows on the scale of the box (Yukawa, κh ≫ 1) has no far field to carry.
    let rank = if largest < SMALLEST { 0 } else { sigma.iter().take_while(|&&s| s > cutoff * largest).count() };
    let mut factors =
        [Matrix { rows: n, cols: rank, data: Vec::new() }, Matrix { rows: rank, cols: m, data: Vec::new() }];
    for k in 0..rank {
        let weight = sigma[k].sqrt().recip();
        factors[0].data.extend((0..n).map(|i| v[(i, k)] * weight));
    }
    let weights: Vec<f64> = sigma[..rank].iter().map(|s| s.sqrt().recip()).collect();
    for j in 0..m {
        factors[1].data.extend((0..rank).map(|k| u[(j, k)] * weights[k]));
    }
    Ok(factors)
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
