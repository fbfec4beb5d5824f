//! The operators of the expansion, one box or one pair of boxes at a time. Every batched implementation is compared
//! with them.

use super::Scalar;
use super::affine::Affine;
use super::dense::Dense;
use super::gauge;
use super::lattice::{INNER, Lattice, OUTER};
use super::matrix::{Matrix, multiply_add};
use super::operators::{OperatorSet, Operators};
use fmm_traits::{Cloud, Cube, Error, Expansion, Kernels, Member};
use std::sync::Arc;

/// Equivalent densities for the kernels of a plan, also for kernels that are made at run time. Attributes of sources have
/// one value in far fields, that among the parameters.
///
/// A multipole row holds upward check values until [`finish_multipole`](Expansion::finish_multipole) turns them into a
/// density. Hatted net strengths ([`net`](super::net)) follow. A local row holds downward check values until
/// [`finish_local`](Expansion::finish_local) turns them into a density. The affine part ([`affine`](super::affine))
/// follows. Values are those of the kernel, without the family's `scale`.
///
/// Rows and matrices are in `T`. Kernels are evaluated in f64 and rounded, pair by pair.
#[derive(Debug)]
pub struct EquivalentExpansion<T> {
    kernels: Kernels,
    operators: Vec<(Arc<Operators<T>>, Dense<T>)>,
    affine: Affine<T>,
    lattice: Lattice,
    inner: Vec<[f64; 3]>,
    outer: Vec<[f64; 3]>,
}

impl<T: Scalar> EquivalentExpansion<T> {
    /// The expansion on a `lattice` for boxes of the given `sides`. A homogeneous kernel needs one side only.
    ///
    /// # Errors
    /// [`Error::Order`]; [`Error::Shape`] without a side; errors of [`Operators::build`].
    pub fn new(kernels: &Kernels, lattice: impl Into<Lattice>, sides: &[f64]) -> Result<Self, Error> {
        let lattice = lattice.into();
        if sides.is_empty() {
            let why = "operators are those of boxes of some side".to_string();
            return Err(Error::Shape { array: "sides", found: 0, expected: 1, why });
        }
        let set = OperatorSet::of(&kernels.members, &kernels.params, sides, lattice, None)?;
        Ok(EquivalentExpansion {
            affine: Affine::new(&kernels.members, &kernels.far, &set.level(0).params, lattice),
            operators: set.distinct().map(|(_, operators)| (operators.clone(), Dense::of(operators))).collect(),
            lattice,
            inner: lattice.inner(),
            outer: lattice.outer(),
            kernels: kernels.clone(),
        })
    }

    /// The operators for boxes of the side of `at`. Panics if the side was not given to [`new`](Self::new).
    pub fn operators(&self, at: Cube) -> &Operators<T> {
        &self.both(at).0
    }

    fn check(&self) -> &Member {
        &self.kernels.members.check
    }

    fn equivalent(&self) -> &Member {
        &self.kernels.members.equivalent
    }

    /// Numbers in a row without net strengths and without the affine part.
    fn row(&self) -> usize {
        self.inner.len() * self.equivalent().values.max(self.equivalent().strengths)
    }

    fn both(&self, at: Cube) -> &(Arc<Operators<T>>, Dense<T>) {
        let unit = gauge::parameters(self.equivalent(), &self.kernels.params, at.side, self.lattice);
        let found = self.operators.iter().find(|(o, _)| o.params == unit);
        found.expect("the expansion was not built for boxes of this side")
    }

    /// Kernel parameters after dilating the box `at` to side 1.
    fn params(&self, at: Cube) -> Vec<f64> {
        self.equivalent().unit_parameters(&self.kernels.params, at.side)
    }
}

/// `x` relative to the centre of `at`, in sides of `at`.
fn to_unit(at: Cube, x: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|a| (x[a] - at.center[a]) / at.side)
}

/// A surface point `x` of the box `of` (in units of `of`), in units of the box `at`.
fn surface_point(of: Cube, at: Cube, x: [f64; 3]) -> [f64; 3] {
    to_unit(at, std::array::from_fn(|a| of.center[a] + of.side * x[a]))
}

/// side^degree, for each of the degrees.
fn powers(side: f64, degrees: &[i32]) -> Vec<f64> {
    degrees.iter().map(|&degree| side.powi(degree)).collect()
}

/// For every target and source: `add(target, value, K(target − source)·strength)`.
fn sum(
    kernel: &Member,
    params: &[f64],
    targets: &[[f64; 3]],
    sources: &[[f64; 3]],
    strength: impl Fn(usize, usize) -> f64,
    mut add: impl FnMut(usize, usize, f64),
) {
    let (mut q, mut u) = (vec![0.0; kernel.strengths], vec![0.0; targets.len() * kernel.values]);
    for (s, y) in sources.iter().enumerate() {
        let r: Vec<[f64; 3]> = targets.iter().map(|x| std::array::from_fn(|a| x[a] - y[a])).collect();
        q.iter_mut().enumerate().for_each(|(j, q)| *q = strength(s, j));
        kernel.eval_many(params, &r, &q, &mut u);
        for (t, u) in u.chunks_exact(kernel.values).enumerate() {
            u.iter().enumerate().for_each(|(i, &u)| add(t, i, u));
        }
    }
}

/// row ← factors\[0\]·(factors\[1\]·row), in place.
fn solve<T: Scalar>(factors: &[Matrix<T>; 2], row: &mut [T]) {
    let mut middle = vec![T::of(0.0); factors[1].rows];
    multiply_add(factors[1].view(), row, T::of(1.0), &mut middle);
    row.fill(T::of(0.0));
    multiply_add(factors[0].view(), &middle, T::of(1.0), row);
}

/// Distance of the centres in the maximum norm.
fn distance(a: Cube, b: Cube) -> f64 {
    (0..3).fold(0.0, |m: f64, i| m.max((a.center[i] - b.center[i]).abs()))
}

/// Slack for the rounding of centres and sides.
const ROUNDING: f64 = 1.0 - 1e-9;

/// Half the side of the outer surface in [`m2p_valid`], in sides of the source.
pub const M2P_RADIUS: f64 = 0.5 * OUTER * ROUNDING;

/// Whether the multipole of `source` may be evaluated in all of `at`: `at` lies outside the outer surface of `source`,
/// [`OUTER`]/2 sides from the centre of `source`.
pub fn m2p_valid(at: Cube, source: Cube) -> bool {
    distance(at, source) - 0.5 * at.side >= 0.5 * OUTER * source.side * ROUNDING
}

/// Whether sources anywhere in `source` may enter the local of `at`: `source` lies outside the outer surface of `at`.
pub fn p2l_valid(at: Cube, source: Cube) -> bool {
    m2p_valid(source, at)
}

/// Whether the multipole of `source` may enter the local of `at`: the inner surface of each box lies outside the outer
/// surface of the other box.
pub fn m2l_valid(at: Cube, source: Cube) -> bool {
    let clear = |a: Cube, b: Cube| distance(a, b) - 0.5 * INNER * a.side >= 0.5 * OUTER * b.side * ROUNDING;
    clear(at, source) && clear(source, at)
}

impl<T: Scalar> Expansion<T> for EquivalentExpansion<T> {
    fn multipole_len(&self) -> usize {
        self.row() + self.operators.first().map_or(0, |(o, _)| o.units().count())
    }
    fn local_len(&self) -> usize {
        self.row() + self.affine.len()
    }
    fn strengths(&self) -> usize {
        self.kernels.near.strengths
    }
    fn values(&self) -> usize {
        self.kernels.near.values
    }

    fn p2m(&self, at: Cube, sources: Cloud<T>, multipole: &mut [T]) {
        let (check, net) = multipole.split_at_mut(self.row());
        self.check_values(at, &self.operators(at).params, sources, &self.outer, check);
        let hat = powers(at.side, &self.check().strength_degrees);
        for (net, (s, _)) in net.iter_mut().zip(self.operators(at).units()) {
            sources.strengths.iter().skip(s).step_by(hat.len()).for_each(|q| *net += T::of(hat[s]) * *q);
        }
    }

    fn finish_multipole(&self, at: Cube, multipole: &mut [T]) {
        let (operators, dense) = self.both(at);
        let (row, net) = multipole.split_at_mut(self.row());
        solve(&dense.upward, row);
        for (net, (_, unit)) in net.iter().zip(operators.units()) {
            row.iter_mut().zip(unit).for_each(|(x, unit)| *x += *net * *unit);
        }
    }

    fn m2m(&self, at: Cube, child: Cube, from: &[T], multipole: &mut [T]) {
        let (operators, dense) = self.both(at);
        let (row, net) = multipole.split_at_mut(self.row());
        multiply_add(dense.m2m[octant(self.lattice.dim, at, child)].view(), from, T::of(1.0), row);
        let hat = powers(at.side / child.side, &self.check().strength_degrees);
        for ((net, from), (s, _)) in net.iter_mut().zip(&from[self.row()..]).zip(operators.units()) {
            *net += T::of(hat[s]) * *from;
        }
    }

    fn m2l(&self, at: Cube, source: Cube, from: &[T], local: &mut [T]) {
        let n = self.inner.len();
        // The kernel is evaluated in units of the source box; the factors convert values to units of the target box.
        let factors = powers(source.side / at.side, &self.equivalent().value_degrees);
        let targets: Vec<[f64; 3]> = self.inner.iter().map(|&x| surface_point(at, source, x)).collect();
        let strength = |s: usize, j: usize| from[j * n + s].f64();
        sum(self.equivalent(), &self.params(source), &targets, &self.inner, strength, |t, i, v| {
            local[i * n + t] += T::of(factors[i] * v);
        });
    }

    fn p2l(&self, at: Cube, _: Cube, sources: Cloud<T>, local: &mut [T]) {
        self.check_values(at, &self.params(at), sources, &self.inner, local);
    }

    fn l2l(&self, at: Cube, parent: Cube, from: &[T], local: &mut [T]) {
        let (operators, dense) = self.both(parent);
        let (octant, split) = (octant(self.lattice.dim, parent, at), self.row());
        multiply_add(dense.l2l[octant].view(), from, operators.l2l_factor, local);
        self.affine.hand_down(octant, &from[split..], &mut local[split..]);
    }

    fn finish_local(&self, at: Cube, local: &mut [T]) {
        let (row, affine) = local.split_at_mut(self.row());
        self.affine.separate(row, affine);
        solve(&self.both(at).1.downward, row);
    }

    fn l2p(&self, at: Cube, local: &[T], targets: &[[f64; 3]], values: &mut [T]) {
        let (row, affine) = local.split_at(self.row());
        self.evaluate(at, &self.operators(at).params, &self.outer, row, targets, values);
        let factors = powers(at.side, &self.kernels.far.value_degrees);
        for (x, values) in targets.iter().zip(values.chunks_exact_mut(factors.len())) {
            self.affine.at(affine, to_unit(at, *x), |i, u| values[i] += T::of(u * factors[i]));
        }
    }

    fn m2p(&self, source: Cube, multipole: &[T], targets: &[[f64; 3]], values: &mut [T]) {
        self.evaluate(source, &self.params(source), &self.inner, multipole, targets, values);
    }

    fn p2p(&self, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]) {
        crate::pairs::add(&self.kernels, sources, targets, same, values);
    }

    fn admissible(&self, at: Cube, source: Cube) -> bool {
        m2p_valid(at, source)
    }

    fn admissible_m2l(&self, at: Cube, source: Cube) -> bool {
        m2l_valid(at, source)
    }
}

impl<T: Scalar> EquivalentExpansion<T> {
    /// Hatted check values of `sources` on a surface of `at`, added to `row`.
    fn check_values(&self, at: Cube, params: &[f64], sources: Cloud<T>, surface: &[[f64; 3]], row: &mut [T]) {
        let n = surface.len();
        let hat = powers(at.side, &self.check().strength_degrees);
        let points: Vec<[f64; 3]> = sources.xyz.iter().map(|&y| to_unit(at, y)).collect();
        let strength = |s: usize, j: usize| hat[j] * sources.strengths[s * hat.len() + j].f64();
        sum(self.check(), params, surface, &points, strength, |t, i, v| row[i * n + t] += T::of(v));
    }

    /// Values at `targets` of the hatted `density` on a surface of `of`.
    fn evaluate(
        &self,
        of: Cube,
        params: &[f64],
        surface: &[[f64; 3]],
        density: &[T],
        targets: &[[f64; 3]],
        values: &mut [T],
    ) {
        let (n, far) = (surface.len(), &self.kernels.far);
        let factors = powers(of.side, &far.value_degrees);
        let points: Vec<[f64; 3]> = targets.iter().map(|&x| to_unit(of, x)).collect();
        sum(
            far,
            params,
            &points,
            surface,
            |s, j| density[j * n + s].f64(),
            |t, i, v| {
                values[t * far.values + i] += T::of(factors[i] * v);
            },
        );
    }
}

/// The octant of `parent` in which `child` lies.
fn octant(dim: usize, parent: Cube, child: Cube) -> usize {
    (0..dim).filter(|&a| child.center[a] > parent.center[a]).map(|a| 1 << a).sum()
}
