//! The translation operators of one unit box: surface solves, M2M and L2L.

use super::matrix::{Matrix, View, kernel_columns, kernel_matrix, round};
use super::solve::{Cutoff, Decomposition};
use super::symmetry::{Side, Symmetry};
use super::{Lattice, Scalar, net};
use fmm_traits::{Error, Member, Members};
use std::path::Path;
use std::sync::Arc;

/// The operators of one direction, in the bases of [`Side::fold`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Half<T> {
    symmetry: Symmetry,
    /// By parity: the two factors of the solve.
    solve: Vec<[Matrix<T>; 2]>,
    /// By parity: replacements of the first factors that yield densities without net strength ([`net`]). Empty if the
    /// family keeps no net strengths.
    neutral: Vec<Matrix<T>>,
    /// For each component whose net strength is kept: the density of a unit source.
    units: Vec<Matrix<T>>,
    /// By parity, then by octant ([`Symmetry::octants`]): the translation between a box and a family of children.
    shift: Vec<Matrix<T>>,
}

/// The operators on a box of side 1 for one set of kernel parameters; see the
/// [module header](super) for units and the order of vectors. n = `points`, C = `values`,
/// E = `strengths`.
///
/// The downward operators are the transposes of the upward operators of the adjoint kernel K(−r)ᵀ. A reciprocal
/// kernel is its own adjoint, so nothing more is stored for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Operators<T> {
    /// The points of densities and check values.
    pub lattice: Lattice,
    /// Points n of the lattice.
    pub points: usize,
    /// Check values C per point.
    pub values: usize,
    /// Equivalent strengths E per point.
    pub strengths: usize,
    /// Kernel parameters on the unit box (already dilated).
    pub params: Vec<f64>,
    /// The factor by which a caller must multiply the result of an L2L matrix.
    pub l2l_factor: T,
    /// For each component of a multipole whose net strength is kept ([`net`]): the number of the source strength that
    /// adds up to it, or `None` if the net strength is always 0.
    pub kept: Vec<Option<usize>>,
    upward: Half<T>,
    /// The operators of the adjoint kernel, unless the kernel is its own adjoint.
    adjoint: Option<Half<T>>,
}

/// The operators of one direction, by parity χ of folded vectors ([`super::symmetry`]).
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a, T> {
    pub(super) half: &'a Half<T>,
    /// Whether the operators are the transposes of `half`.
    pub(super) downward: bool,
    /// Whether the solve yields densities without net strength.
    pub(super) neutral: bool,
}

impl<'a, T: Scalar> Direction<'a, T> {
    /// The folding of check values.
    pub fn check(&self) -> &'a Side {
        if self.downward { &self.half.symmetry.strengths } else { &self.half.symmetry.values }
    }
    /// The folding of densities.
    pub fn density(&self) -> &'a Side {
        if self.downward { &self.half.symmetry.values } else { &self.half.symmetry.strengths }
    }
    /// Whether reflections take the octant `representative` to `octant`.
    pub(super) fn represents(&self, representative: usize, octant: usize) -> bool {
        self.half.symmetry.representative(octant) == representative
    }
    /// For each parity: the parity, and the two factors of the surface solve, density = `[0]·([1]·check)` on folded
    /// vectors. A single product matrix would lose half the digits.
    pub fn solves(&self) -> impl Iterator<Item = (usize, [View<'a, T>; 2])> + use<'a, T> {
        let Direction { half, downward, neutral } = *self;
        half.symmetry.parities().enumerate().map(move |(k, parity)| {
            let [a, b] = &half.solve[k];
            let a = if neutral { &half.neutral[k] } else { a };
            match downward {
                false => (parity, [a.view(), b.view()]),
                true => (parity, [b.view().transposed(), a.view().transposed()]),
            }
        })
    }
    /// The translations between a box and its family of children, as (parity χ, octant o, matrix). There is one for
    /// each parity and for each octant that represents its mirror images. The matrix connects parity χ of the box
    /// with place χ|o of the folded family ([`Side::fold_family`]).
    ///
    /// * Upward it is M2M: density of the family → check values of the box.
    /// * Downward it is L2L: density of the box → check values of the family, **divided by** [`Operators::l2l_factor`].
    pub fn shifts(&self) -> impl Iterator<Item = (usize, usize, View<'a, T>)> + use<'a, T> {
        let Direction { half, downward, .. } = *self;
        let places = half.symmetry.parities().flat_map(|x| half.symmetry.octants().map(move |o| (x, o)));
        places.zip(&half.shift).map(move |((parity, octant), m)| match downward {
            false => (parity, octant, m.view()),
            true => (parity, octant, m.view().transposed()),
        })
    }
}

impl<T: Scalar> Half<T> {
    /// Builds the operators. `solve(columns)` are columns of the matrix between concentric surfaces (density → check
    /// values); `shift(octant)` is the matrix from the density of a child to check values; `sums` come from
    /// [`net::sums`].
    fn build(
        symmetry: Symmetry,
        cutoff: &Cutoff,
        solve: impl Fn(&[usize]) -> Matrix<f64>,
        shift: impl Fn(usize) -> Matrix<f64>,
        sums: &[net::Sum],
    ) -> Result<Self, Error> {
        let mut folded = vec![0.0; symmetry.values.len()];
        // A reflection takes column j to the column of an image of j. So one column per set of images is enough: column
        // of parity χ = parity χ of that column, times √(number of images).
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
        let blocks: Vec<_> = blocks.collect();
        let factors = Decomposition::new(&blocks)?.factors(cutoff, &symmetry);
        let octants: Vec<usize> = symmetry.octants().collect();
        let images = (symmetry.parities().count() as f64).sqrt();
        let empty = |parity| {
            let (rows, cols) = (symmetry.values.block(parity).len(), symmetry.strengths.len());
            Matrix { rows, cols, data: Vec::with_capacity(rows * cols) }
        };
        let mut shifts: Vec<Matrix<T>> =
            symmetry.parities().flat_map(|parity| octants.iter().map(move |_| empty(parity))).collect();
        for (at, &octant) in octants.iter().enumerate() {
            let matrix = shift(octant);
            for column in matrix.data.chunks_exact(matrix.rows) {
                symmetry.values.fold(column, &mut folded);
                for (parity, block) in symmetry.parities().zip(shifts.iter_mut().skip(at).step_by(octants.len())) {
                    block.data.extend(folded[symmetry.values.block(parity)].iter().map(|x| T::of(x * images)));
                }
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

    /// Rebuilds the operators from their [`matrices`](Self::matrices). `None` if they run out or have a wrong shape.
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
    /// Builds the operators of a `family` on a `lattice` for a unit box; `params` are the kernel parameters *after*
    /// dilation to that box ([`Member::unit_parameters`]).
    ///
    /// # Errors
    /// [`Error::Order`]; [`Error::Unsupported`] for a kernel that is declared
    /// [`RECIPROCAL`](fmm_traits::Kernel::RECIPROCAL) and is not; [`Error::Numerical`] if the singular value decomposition
    /// fails, because kernel values are not finite or because it does not converge.
    pub fn build(family: &Members, params: &[f64], lattice: Lattice) -> Result<Self, Error> {
        let kernel = &family.equivalent;
        lattice.validate()?;
        if kernel.reciprocal && !kernel.reciprocal_at(params, [0.9, -1.3, 0.7]) {
            let reason = format!("kernel {} is declared RECIPROCAL, and K(−r) is not K(r)ᵀ", kernel.name);
            return Err(Error::Unsupported { operation: "the equivalent-density method", reason });
        }
        let (inner, outer) = (lattice.inner(), lattice.outer());
        let child = |octant| in_child(&inner, octant);
        let (shared, _) = l2l_factor(kernel);
        let symmetry = Symmetry::of(kernel, params, lattice);
        let rule = |downward| Cutoff::of::<T>(kernel, params, lattice, downward);
        let upward = Half::build(
            symmetry.clone(),
            &rule(false),
            |columns| kernel_columns(kernel, params, &outer, &inner, columns),
            // The factor turns strengths hatted for the child into strengths hatted for the parent.
            |octant| {
                let factor = |_: usize, j: usize| power(kernel.strength_degrees[j]);
                kernel_matrix(kernel, params, &outer, &child(octant), factor)
            },
            &net::sums(family, params, &outer),
        )?;
        let adjoint = if shared {
            None
        } else {
            let downward = kernel_matrix(kernel, params, &inner, &outer, |_, _| 1.0).transposed();
            let half = Half::build(
                symmetry.adjoint(),
                &rule(true),
                |columns| downward.columns(columns),
                // The factor turns values in units of the parent into values in units of the child.
                |octant| {
                    let factor = |i: usize, _: usize| power(kernel.value_degrees[i]);
                    kernel_matrix(kernel, params, &child(octant), &outer, factor).transposed()
                },
                &[],
            )?;
            Some(half)
        };
        Ok(Self::of_halves(family, params, lattice, upward, adjoint))
    }

    fn of_halves(
        family: &Members,
        params: &[f64],
        lattice: Lattice,
        upward: Half<T>,
        adjoint: Option<Half<T>>,
    ) -> Self {
        let kernel = &family.equivalent;
        Operators {
            lattice,
            points: lattice.len(),
            values: kernel.values,
            strengths: kernel.strengths,
            params: params.to_vec(),
            l2l_factor: T::of(l2l_factor(kernel).1),
            kept: net::of_sources(family, params),
            upward,
            adjoint,
        }
    }

    /// The upward operators: check values on the outer surface → density on the inner surface, and children → parent.
    pub fn upward(&self) -> Direction<'_, T> {
        Direction { half: &self.upward, downward: false, neutral: !self.kept.is_empty() }
    }

    /// The downward operators: check values on the inner surface → density on the outer surface, and parent → children.
    pub fn downward(&self) -> Direction<'_, T> {
        Direction { half: self.adjoint.as_ref().unwrap_or(&self.upward), downward: true, neutral: false }
    }

    /// The source strengths whose net strength is kept, as (number of the strength, density of a unit of it). The
    /// caller adds net strength times density to the result of the upward solve.
    pub fn units(&self) -> impl Iterator<Item = (usize, &[T])> {
        self.kept.iter().zip(&self.upward.units).filter_map(|(source, unit)| Some(((*source)?, &unit.data[..])))
    }

    /// Every stored matrix.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix<T>> {
        self.upward.matrices().chain(self.adjoint.iter().flat_map(Half::matrices))
    }

    /// Rebuilds the operators from their [`matrices`](Self::matrices). `None` if `next` runs out or a shape is wrong.
    pub(super) fn from_matrices(
        family: &Members,
        params: &[f64],
        lattice: Lattice,
        next: &mut dyn FnMut() -> Option<Matrix<T>>,
    ) -> Option<Self> {
        let symmetry = Symmetry::of(&family.equivalent, params, lattice);
        let upward = Half::from_matrices(symmetry.clone(), net::of_sources(family, params).len(), next)?;
        let (shared, _) = l2l_factor(&family.equivalent);
        let adjoint = if shared { None } else { Some(Half::from_matrices(symmetry.adjoint(), 0, next)?) };
        Some(Self::of_halves(family, params, lattice, upward, adjoint))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.matrices().map(|m| m.data.len() * size_of::<T>()).sum()
    }
}

/// 2^degree: the factor of a dilation by 2.
fn power(degree: i32) -> f64 {
    (degree as f64).exp2()
}

/// Whether the downward matrices are the transposes of the upward matrices, and the factor of L2L. If K(−r) = K(r)ᵀ,
/// the matrices are transposes up to factors between levels. The factors are a single number if value_degree −
/// strength_degree is the same for all components.
fn l2l_factor(kernel: &Member) -> (bool, f64) {
    let degree = |i: usize| kernel.value_degrees[i] - kernel.strength_degrees[i];
    let square = kernel.values == kernel.strengths;
    let shared = kernel.reciprocal && square && (0..kernel.values).all(|i| degree(i) == degree(0));
    (shared, if shared { power(degree(0)) } else { 1.0 })
}

/// The points of a child's copy of a surface, in units of the parent's side around its centre.
pub(super) fn in_child(points: &[[f64; 3]], octant: usize) -> Vec<[f64; 3]> {
    let center = |axis: usize| if octant >> axis & 1 == 1 { 0.25 } else { -0.25 };
    points.iter().map(|x| std::array::from_fn(|a| 0.5 * x[a] + center(a))).collect()
}

/// The operators of all levels of a tree. A homogeneous kernel has one set for all levels, other kernels one per level.
#[derive(Clone, Debug)]
pub struct OperatorSet<T> {
    levels: Vec<Arc<Operators<T>>>,
}

impl<T: Scalar> OperatorSet<T> {
    /// The operators of a `family` with parameters `params` on a `lattice`, for boxes of the sides `sides[level]`. They
    /// come from the [`cache`](super::cache) or are built. `disk` is a folder that keeps them between runs.
    ///
    /// # Errors
    /// Errors of [`Operators::build`].
    pub fn of(
        family: &Members,
        params: &[f64],
        sides: &[f64],
        lattice: Lattice,
        disk: Option<&Path>,
    ) -> Result<Self, Error> {
        let level = |&side: &f64| T::operators(family, params, side, lattice, disk);
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
