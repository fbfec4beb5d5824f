//! The operators of the expansion, one box or one pair of boxes at a time. Every batched implementation is compared
//! with them.

use super::Scalar;
use super::affine::Affine;
use super::dense::Dense;
use super::gauge;
use super::lattice::{INNER, Lattice, OUTER};
use super::matrix::{Matrix, multiply_add};
use super::operators::{OperatorSet, Operators, unit_parameters};
use fmm_traits::kernel::MAX_COMPONENTS;
use fmm_traits::{Cloud, Cube, Error, Expansion, Family, Kernel, Member};
use std::marker::PhantomData;
use std::sync::Arc;

/// Equivalent densities for family `F`. `S` is the kernel from the strengths to the requested values, `E` the kernel
/// from densities to the same values (the two kernels of [`Family::visit`]).
///
/// A multipole row holds upward check values until [`finish_multipole`](Expansion::finish_multipole) turns them into a
/// density. Hatted net strengths ([`net`](super::net)) follow. A local row holds downward check values until
/// [`finish_local`](Expansion::finish_local) turns them into a density. The affine part ([`affine`](super::affine))
/// follows. Values are those of the kernel, without the family's `scale`.
#[derive(Debug)]
pub struct EquivalentExpansion<F: Family, T, S, E> {
    params: Vec<f64>,
    operators: Vec<(Arc<Operators<T>>, Dense<T>)>,
    affine: Affine<T>,
    lattice: Lattice,
    inner: Vec<[T; 3]>,
    outer: Vec<[T; 3]>,
    kernels: PhantomData<(F, S, E)>,
}

impl<F: Family, T: Scalar, S: Kernel, E: Kernel> EquivalentExpansion<F, T, S, E> {
    /// The expansion on a `lattice` for boxes of the given `sides`. A homogeneous kernel needs one side only.
    ///
    /// # Errors
    /// [`Error::Parameter`] of the kernel, [`Error::Order`], [`Error::Shape`] without a side.
    pub fn new(family: &F, lattice: impl Into<Lattice>, sides: &[f64]) -> Result<Self, Error> {
        let lattice = lattice.into();
        family.validate()?;
        if sides.is_empty() {
            let why = "operators are those of boxes of some side".to_string();
            return Err(Error::Shape { array: "sides", found: 0, expected: 1, why });
        }
        let params = family.parameters();
        let set = OperatorSet::build::<F>(&params, sides, lattice, None)?;
        let of = |points: Vec<[f64; 3]>| points.into_iter().map(|x| x.map(T::of)).collect();
        Ok(EquivalentExpansion {
            affine: Affine::of::<F, E>(&set.level(0).params, lattice),
            operators: set.distinct().map(|(_, operators)| (operators.clone(), Dense::of(operators))).collect(),
            params,
            lattice,
            inner: of(lattice.inner()),
            outer: of(lattice.outer()),
            kernels: PhantomData,
        })
    }

    /// The operators for boxes of the side of `at`. Panics if the side was not given to [`new`](Self::new).
    pub fn operators(&self, at: Cube) -> &Operators<T> {
        &self.both(at).0
    }

    /// Numbers in a row without net strengths and without the affine part.
    fn row(&self) -> usize {
        self.inner.len() * F::Equivalent::VALUES.max(F::Equivalent::STRENGTHS)
    }

    fn both(&self, at: Cube) -> &(Arc<Operators<T>>, Dense<T>) {
        let unit = gauge::parameters(&Member::of::<F::Equivalent>(), &self.params, at.side, self.lattice);
        let found = self.operators.iter().find(|(o, _)| o.params == unit);
        found.expect("the expansion was not built for boxes of this side")
    }

    /// Kernel parameters after dilating the box `at` to side 1.
    fn params(&self, at: Cube) -> Vec<T> {
        unit_parameters::<F>(&self.params, at.side).into_iter().map(T::of).collect()
    }

    /// The parameters with which densities of `at` are solved for.
    fn own_params(&self, at: Cube) -> Vec<T> {
        self.operators(at).params.iter().map(|&x| T::of(x)).collect()
    }
}

/// `x` relative to the centre of `at`, in sides of `at`.
fn to_unit<T: Scalar>(at: Cube, x: [f64; 3]) -> [T; 3] {
    std::array::from_fn(|a| T::of((x[a] - at.center[a]) / at.side))
}

/// A surface point `x` of the box `of` (in units of `of`), in units of the box `at`.
fn surface_point<T: Scalar>(of: Cube, at: Cube, x: [T; 3]) -> [T; 3] {
    let user: [f64; 3] = std::array::from_fn(|a| of.center[a] + of.side * x[a].f64());
    to_unit(at, user)
}

/// side^degree, rounded.
fn power<T: Scalar>(side: f64, degree: i32) -> T {
    T::of(side.powi(degree))
}

/// For every target and source: `add(target, value, K(target − source)·strength)`.
fn sum<K: Kernel, T: Scalar>(
    params: &[T],
    targets: impl Iterator<Item = [T; 3]>,
    sources: &[[T; 3]],
    strength: impl Fn(usize, usize) -> T,
    mut add: impl FnMut(usize, usize, T),
) {
    let (mut q, mut u) = ([T::of(0.0); MAX_COMPONENTS], [T::of(0.0); MAX_COMPONENTS]);
    for (t, x) in targets.enumerate() {
        for (s, y) in sources.iter().enumerate() {
            let r: [T; 3] = std::array::from_fn(|a| x[a] - y[a]);
            (0..K::STRENGTHS).for_each(|j| q[j] = strength(s, j));
            K::eval(params, &r[..K::DIM], &q[..K::STRENGTHS], &mut u[..K::VALUES]);
            (0..K::VALUES).for_each(|i| add(t, i, u[i]));
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

impl<F: Family, T: Scalar, S: Kernel, E: Kernel> Expansion<T> for EquivalentExpansion<F, T, S, E> {
    fn multipole_len(&self) -> usize {
        self.row() + self.operators.first().map_or(0, |(o, _)| o.units().count())
    }
    fn local_len(&self) -> usize {
        self.row() + self.affine.len()
    }
    fn strengths(&self) -> usize {
        S::STRENGTHS
    }
    fn values(&self) -> usize {
        S::VALUES
    }

    fn p2m(&self, at: Cube, sources: Cloud<T>, multipole: &mut [T]) {
        let (check, net) = multipole.split_at_mut(self.row());
        self.check_values(at, &self.own_params(at), sources, &self.outer, check);
        for (net, (s, _)) in net.iter_mut().zip(self.operators(at).units()) {
            let hat = power::<T>(at.side, F::Check::strength_degree(s));
            sources.strengths.iter().skip(s).step_by(F::Check::STRENGTHS).for_each(|q| *net += hat * *q);
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
        for ((net, from), (s, _)) in net.iter_mut().zip(&from[self.row()..]).zip(operators.units()) {
            *net += power::<T>(at.side / child.side, F::Check::strength_degree(s)) * *from;
        }
    }

    fn m2l(&self, at: Cube, source: Cube, from: &[T], local: &mut [T]) {
        let n = self.inner.len();
        // The kernel is evaluated in units of the source box; the factor converts values to units of the target box.
        let factor = |i| power::<T>(source.side / at.side, F::Equivalent::value_degree(i));
        let factors: Vec<T> = (0..F::Equivalent::VALUES).map(factor).collect();
        let targets = self.inner.iter().map(|&x| surface_point(at, source, x));
        sum::<F::Equivalent, T>(
            &self.params(source),
            targets,
            &self.inner,
            |s, j| from[j * n + s],
            |t, i, v| {
                local[i * n + t] += factors[i] * v;
            },
        );
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
        self.evaluate(at, &self.own_params(at), &self.outer, row, targets, values);
        for (x, values) in targets.iter().zip(values.chunks_exact_mut(E::VALUES)) {
            let x = to_unit::<f64>(at, *x);
            self.affine.at(affine, x, |i, u| {
                let u: T = T::of(u * at.side.powi(E::value_degree(i)));
                values[i] += u;
            });
        }
    }

    fn m2p(&self, source: Cube, multipole: &[T], targets: &[[f64; 3]], values: &mut [T]) {
        self.evaluate(source, &self.params(source), &self.inner, multipole, targets, values);
    }

    fn p2p(&self, sources: Cloud<T>, targets: &[[f64; 3]], same: bool, values: &mut [T]) {
        crate::pairs::add::<S, T>(&self.params, sources, targets, same, values);
    }

    fn admissible(&self, at: Cube, source: Cube) -> bool {
        m2p_valid(at, source)
    }

    fn admissible_m2l(&self, at: Cube, source: Cube) -> bool {
        m2l_valid(at, source)
    }
}

impl<F: Family, T: Scalar, S: Kernel, E: Kernel> EquivalentExpansion<F, T, S, E> {
    /// Hatted check values of `sources` on a surface of `at`, added to `row`.
    fn check_values(&self, at: Cube, params: &[T], sources: Cloud<T>, surface: &[[T; 3]], row: &mut [T]) {
        let n = surface.len();
        let hat: Vec<T> = (0..F::Check::STRENGTHS).map(|j| power(at.side, F::Check::strength_degree(j))).collect();
        let points: Vec<[T; 3]> = sources.xyz.iter().map(|&y| to_unit(at, y)).collect();
        let strength = |s: usize, j: usize| hat[j] * sources.strengths[s * F::Check::STRENGTHS + j];
        sum::<F::Check, T>(params, surface.iter().copied(), &points, strength, |t, i, v| {
            row[i * n + t] += v;
        });
    }

    /// Values at `targets` of the hatted `density` on a surface of `of`.
    fn evaluate(
        &self,
        of: Cube,
        params: &[T],
        surface: &[[T; 3]],
        density: &[T],
        targets: &[[f64; 3]],
        values: &mut [T],
    ) {
        let n = surface.len();
        let factors: Vec<T> = (0..E::VALUES).map(|i| power(of.side, E::value_degree(i))).collect();
        let points = targets.iter().map(|&x| to_unit(of, x));
        sum::<E, T>(
            params,
            points,
            surface,
            |s, j| density[j * n + s],
            |t, i, v| {
                values[t * E::VALUES + i] += factors[i] * v;
            },
        );
    }
}

/// The octant of `parent` in which `child` lies.
fn octant(dim: usize, parent: Cube, child: Cube) -> usize {
    (0..dim).filter(|&a| child.center[a] > parent.center[a]).map(|a| 1 << a).sum()
}
