//! The *affine part* of a local: the field c + B·x, carried beside the density.
//!
//! Most of the field of far sources is a constant c and a slope B. A density on the outer surface reproduces the
//! constant only up to the error of the order. The gradient of this error is about (error)·u/h, with u the potential
//! and h the side of the box, so it grows as the leaves shrink. For charges of one sign this dominated the error of
//! gradients (measured in docs/notes/equivalent-densities.md).
//!
//! Therefore a fit of c + B·x is removed from the check values before the surface solve, and handed down beside the
//! density. Handing down is exact: the affine field of a child is the affine field of its parent about another centre.
//!
//! # Which kernels
//!
//! The part that is removed must itself be a field of the kernel's equation, or the rest is not a field either.
//! Constants and slopes are such fields if they are limits of fields of far sources: K(r + x) tends to K(r) + ∇K(r)·x
//! as r grows. This is tested at r = 10¹². Laplace passes with any slope. Stokes passes with slopes free of
//! divergence, found as the span of ∇K. Yukawa fails and carries no affine part. If values have several degrees
//! (velocity, then pressure), only the leading values of the first degree have an affine part.

use super::matrix::{Matrix, kernel_matrix, multiply_add, round};
use super::svd::Svd;
use super::{Lattice, Scalar};
use fmm_traits::kernel::{MAX_COMPONENTS, MAX_POTENTIALS};
use fmm_traits::{Member, Members};

/// Distance of the far sources, in sides of the box.
const FAR_DISTANCE: f64 = 1e12;
/// Largest relative change of a far field over a box that counts as no change. A decaying field changes by
/// 1/[`FAR_DISTANCE`].
const NEGLIGIBLE_CHANGE: f64 = 1e-9;
/// Singular values below this fraction of the largest are rounding, when the rank of unit vectors is counted.
const RANK_CUTOFF: f64 = 1e-6;
/// Directions of the far sources.
const DIRECTIONS: [[f64; 3]; 5] =
    [[0.9, -1.3, 0.7], [0.31, 0.77, -1.1], [-1.7, 0.23, 0.45], [0.52, 1.4, 0.83], [-0.6, -0.35, 1.2]];

/// The operations on affine parts: removal from check values, handing down to children, addition to values at
/// targets. For each of the [`components`](Affine::components), an affine part holds the value at the centre and
/// three slopes, in units of the box.
#[derive(Clone, Debug)]
pub struct Affine<T> {
    components: usize,
    /// Factor that converts a value from units of the parent to units of a child.
    factor: T,
    /// Coordinates of the inner points, by axis.
    xyz: [Vec<T>; 3],
    /// Σ x² over the inner points.
    squares: T,
    /// Projection of slopes, 3 per component, onto the slopes that fields of the kernel can have.
    slopes: Matrix<T>,
    /// For each value at a target: the place in the affine part that it equals, `4·component` (a value) or
    /// `4·component + 1 + axis` (a slope). `None` if the affine field does not contribute to the value.
    values: Vec<Option<usize>>,
}

impl<T: Scalar> Affine<T> {
    /// The affine parts of locals on a `lattice` for densities of `family`, evaluated by `far`. `params` are the kernel
    /// parameters on the unit box.
    pub fn new(family: &Members, far: &Member, params: &[f64], lattice: Lattice) -> Self {
        let (components, slopes, values) = found(family, far, params).unwrap_or_default();
        let points = lattice.inner();
        Affine {
            components,
            factor: T::of((family.equivalent.value_degrees[0] as f64).exp2()),
            xyz: std::array::from_fn(|a| points.iter().map(|x| T::of(x[a])).collect()),
            squares: T::of(points.iter().map(|x| x[0] * x[0]).sum()),
            slopes: round(&slopes),
            values,
        }
    }

    /// Number of check values per point that have an affine part.
    pub fn components(&self) -> usize {
        self.components
    }

    /// Numbers in an affine part.
    pub fn len(&self) -> usize {
        4 * self.components
    }

    /// Whether locals have no affine part.
    pub fn is_empty(&self) -> bool {
        self.components == 0
    }

    /// Factor that converts a value from units of the parent to units of a child.
    pub fn factor(&self) -> T {
        self.factor
    }

    /// Σ x² over the inner points.
    pub fn squares(&self) -> T {
        self.squares
    }

    /// Projection of slopes (3·component + axis), a symmetric matrix.
    pub fn slopes(&self) -> &Matrix<T> {
        &self.slopes
    }

    /// For each value at a target: the place in the affine part whose number it equals at the centre of the box.
    pub fn values(&self) -> &[Option<usize>] {
        &self.values
    }

    /// Fits an affine field to the `check` values (component-major, inner surface), subtracts it from them and adds
    /// it to `part`.
    pub fn separate(&self, check: &mut [T], part: &mut [T]) {
        let (n, m) = (self.xyz[0].len(), self.components);
        let mut means = [T::default(); MAX_COMPONENTS];
        let mut slopes = [T::default(); 3 * MAX_COMPONENTS];
        for (c, values) in check.chunks_exact(n).take(m).enumerate() {
            means[c] = values.iter().fold(T::default(), |sum, &u| sum + u) / T::of(n as f64);
            for (slope, x) in slopes[3 * c..].iter_mut().zip(&self.xyz) {
                *slope = values.iter().zip(x).fold(T::default(), |sum, (&u, &x)| sum + u * x) / self.squares;
            }
        }
        let all = slopes;
        slopes[..3 * m].fill(T::default());
        multiply_add(self.slopes.view(), &all, T::of(1.0), &mut slopes);
        for (c, values) in check.chunks_exact_mut(n).take(m).enumerate() {
            let (mean, slope) = (means[c], &slopes[3 * c..]);
            let [x, y, z] = &self.xyz;
            for (((u, &x), &y), &z) in values.iter_mut().zip(x).zip(y).zip(z) {
                *u -= mean + slope[0] * x + slope[1] * y + slope[2] * z;
            }
            part[4 * c] += mean;
            (0..3).for_each(|a| part[4 * c + 1 + a] += slope[a]);
        }
    }

    /// Adds the affine field of a parent to that of its child in `octant`.
    pub fn hand_down(&self, octant: usize, parent: &[T], child: &mut [T]) {
        for (from, to) in parent.chunks_exact(4).zip(child.chunks_exact_mut(4)) {
            to[0] += self.factor * from[0];
            for a in 0..3 {
                let half = self.factor * T::of(0.5) * from[1 + a];
                to[1 + a] += half;
                // The centre of the child is off by half a side of the child.
                to[0] += T::of(if octant >> a & 1 == 1 { 0.5 } else { -0.5 }) * half;
            }
        }
    }

    /// Calls `add(i, u)` for each value i that the affine field has at `x`. `x` is relative to the centre, in sides
    /// of the box; `u` is in units of the box.
    #[inline]
    pub fn at(&self, part: &[T], x: [f64; 3], mut add: impl FnMut(usize, f64)) {
        for (i, k) in self.values.iter().enumerate() {
            let Some(k) = *k else { continue };
            let mut u = part[k].f64();
            if k.is_multiple_of(4) {
                u += (0..3).map(|a| part[k + 1 + a].f64() * x[a]).sum::<f64>();
            }
            add(i, u);
        }
    }
}

/// The result of [`found`]: the number of components, the projection of slopes and [`Affine::values`].
type Found = (usize, Matrix<f64>, Vec<Option<usize>>);

/// Tests the equivalent kernel of `family` at far points (module header). `None` for a kernel whose far fields have no
/// affine limit.
fn found(family: &Members, far: &Member, params: &[f64]) -> Option<Found> {
    let degrees = family.equivalent.value_degrees.clone();
    let count = degrees.len();
    // Dual numbers differentiate no more values than this.
    (count <= MAX_POTENTIALS && !family.equivalent.piecewise).then_some(())?;
    let components = degrees.iter().take_while(|&d| *d == degrees[0]).count();
    let whole = |r: [f64; 3]| kernel_matrix(&family.slope, params, &[r], &[[0.0; 3]], |_, _| 1.0).data;
    let (mut constants, mut slopes, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for direction in DIRECTIONS {
        let r = direction.map(|x| FAR_DISTANCE * x);
        let here = whole(r);
        let beside = [0, 1, 2].map(|axis| whole(std::array::from_fn(|a| r[a] + (a == axis) as usize as f64)));
        for (j, here) in here.chunks_exact(4 * count).enumerate() {
            for range in [0..count, count..4 * count] {
                for there in &beside {
                    let there = &there[4 * count * j..][range.clone()];
                    let change = here[range.clone()].iter().zip(there).map(|(a, b)| (a - b).abs()).sum::<f64>();
                    let steady = change <= NEGLIGIBLE_CHANGE * norm(&here[range.clone()]);
                    // A NaN compares as false, so fields that are not finite are not steady.
                    steady.then_some(())?;
                }
            }
            constants.push(here[..components].to_vec());
            slopes.push(here[count..][..3 * components].to_vec());
            others.push(here[components..count].to_vec());
        }
    }
    (span(&constants)?.cols == components).then_some(())?;
    let basis = span(&slopes)?;
    independent(&slopes, &others, basis.cols)?;
    let entry = |(j, i): (usize, usize)| {
        (0..basis.cols).map(|k| basis.data[k * basis.rows + i] * basis.data[k * basis.rows + j]).sum()
    };
    let entries = (0..basis.rows).flat_map(|j| (0..basis.rows).map(move |i| (j, i)));
    let projection = Matrix { rows: basis.rows, cols: basis.rows, data: entries.map(entry).collect() };
    // Identify each value at a target with a value or a slope of the equivalent kernel, at near points where all are of
    // order one.
    let of_targets = |r: [f64; 3]| kernel_matrix(far, params, &[r], &[[0.0; 3]], |_, _| 1.0).data;
    let near = DIRECTIONS.map(|r| (whole(r), of_targets(r)));
    let same = |k: usize, i: usize| {
        near.iter().all(|(all, values)| {
            let pairs = all.chunks_exact(4 * count).zip(values.chunks_exact(far.values));
            pairs.into_iter().all(|(all, values)| (all[k] - values[i]).abs() <= 1e-10 * norm(all))
        })
    };
    let place = |k: usize| if k.is_multiple_of(4) { k / 4 } else { count + 3 * (k / 4) + k % 4 - 1 };
    let values: Vec<_> = (0..far.values).map(|i| (0..4 * components).find(|&k| same(place(k), i))).collect();
    (0..components).all(|c| values.contains(&Some(4 * c))).then_some((components, projection, values))
}

/// Tests that the values of other degrees do not follow from the slopes, which span `rank` dimensions. Otherwise what is
/// left after the affine part was taken from the first values is no field of the kernel. (The pressure of a flow is
/// independent of its slopes. In the field of (1/r, y/r³) the second value is a slope of the first.)
fn independent(slopes: &[Vec<f64>], others: &[Vec<f64>], rank: usize) -> Option<()> {
    let size = |all: &[Vec<f64>]| all.iter().map(|v| norm(v)).sum::<f64>();
    if size(others) == 0.0 {
        return Some(());
    }
    let unit = size(slopes) / size(others);
    let join = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().copied().chain(b.iter().map(|x| x * unit)).collect();
    let joined: Vec<Vec<f64>> = slopes.iter().zip(others).map(join).collect();
    (span(&joined)?.cols == rank + span(others)?.cols).then_some(())
}

/// Sum of magnitudes. (Squares of far fields might underflow.)
fn norm(v: &[f64]) -> f64 {
    v.iter().map(|x| x.abs()).sum()
}

/// An orthonormal basis of the span of vectors, whatever their lengths.
fn span(vectors: &[Vec<f64>]) -> Option<Matrix<f64>> {
    let data = vectors.iter().flat_map(|v| v.iter().map(|x| x / norm(v).max(f64::MIN_POSITIVE)));
    let matrix = Matrix { rows: vectors[0].len(), cols: vectors.len(), data: data.collect() };
    let Svd { mut u, sigma, .. } = Svd::of(&matrix)?;
    u.cols = sigma.iter().take_while(|&&s| s > RANK_CUTOFF * sigma[0]).count();
    u.data.truncate(u.rows * u.cols);
    Some(u)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equivalent::EquivalentExpansion;
    use crate::{Laplace, LaplaceMixed, Stokes, StokesPressure, Yukawa};
    use fmm_traits::{Cloud, Cube, Expansion, Family, Gradient, Hessian, Kernels, Outputs};

    fn of<F: Family>(family: &F) -> Affine<f64> {
        let far = Member::of::<F::Far>();
        Affine::new(&Members::of::<F>(), &far, &family.parameters(), Lattice::surface(4))
    }

    #[test]
    fn what_is_carried() {
        assert_eq!((of(&Laplace).components, of(&Laplace).values), (1, vec![Some(0)]));
        assert_eq!(of(&LaplaceMixed).components, 1);
        let (family, far) = (Members::of::<Laplace>(), Member::of::<Hessian<Laplace>>());
        let all = Affine::<f64>::new(&family, &far, &[], Lattice::surface(4));
        assert_eq!(all.values[..4], [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(all.values[4..], [None; 6]);
        assert!(all.slopes.data.iter().enumerate().all(|(k, x)| (x - (k % 4 == 0) as u8 as f64).abs() < 1e-12));
        assert!(of(&Yukawa { kappa: 1e-6 }).is_empty());
        assert_eq!(of(&Yukawa { kappa: 0.0 }).components, 1);
        for affine in [of(&Stokes { mu: 0.3 }), of(&StokesPressure { mu: 0.3 })] {
            assert_eq!(affine.components, 3);
            assert_eq!(affine.values[..3], [Some(0), Some(4), Some(8)]);
            assert!(affine.values[3..].iter().all(Option::is_none));
            // Free of divergence and otherwise any slope: I − δδᵀ/3.
            for (k, x) in affine.slopes.data.iter().enumerate() {
                let (i, j) = (k / 9, k % 9);
                let exact = (i == j) as u8 as f64 - if i % 4 == 0 && j % 4 == 0 { 1.0 / 3.0 } else { 0.0 };
                assert!((x - exact).abs() < 1e-9, "{i} {j}: {x}");
            }
        }
    }

    /// u = 3 + 2x − y + z/2 in a box is the same field in its children.
    #[test]
    fn an_affine_field_is_taken_out_and_handed_down_whole() {
        let affine = of(&Laplace);
        let field = |x: [f64; 3]| 3.0 + 2.0 * x[0] - x[1] + 0.5 * x[2];
        let mut check: Vec<f64> = Lattice::surface(4).inner().into_iter().map(field).collect();
        let mut part = [0.0; 4];
        affine.separate(&mut check, &mut part);
        assert!(check.iter().all(|u| u.abs() < 1e-14), "{check:?}");
        for octant in 0..8 {
            let mut child = [0.0; 4];
            affine.hand_down(octant, &part, &mut child);
            let x = [0.1, -0.4, 0.3];
            let center = |a: usize| if octant >> a & 1 == 1 { 0.25 } else { -0.25 };
            let exact = field(std::array::from_fn(|a| center(a) + 0.5 * x[a]));
            // 1/r in units of a child's side is half of that in units of the parent's.
            affine.at(&child, x, |_, u| assert!((u - 0.5 * exact).abs() < 1e-14, "{octant}: {u}"));
        }
    }

    /// Gradient of charges 10⁴ sides away, over u/h: 1.6e-4 at p = 4 if the density had to carry the constant.
    #[test]
    fn a_constant_has_no_gradient() {
        let kernels = Kernels::of(&Laplace, Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
        for p in [3, 4, 5, 6] {
            let x = EquivalentExpansion::<f64>::new(&kernels, p, &[1.0]).unwrap();
            let at = Cube { center: [0.0; 3], side: 1.0 };
            let (source, targets) = ([6e3, -7e3, 4e3], [[0.2, -0.45, 0.31], [-0.4, 0.1, 0.49]]);
            let mut local = vec![0.0; x.local_len()];
            x.p2l(at, at, Cloud { xyz: &[source], strengths: &[1e4] }, &mut local);
            x.finish_local(at, &mut local);
            let mut values = [0.0; 8];
            x.l2p(at, &local, &targets, &mut values);
            for (target, found) in targets.iter().zip(values.chunks_exact(4)) {
                let exact =
                    kernel_matrix(&Member::of::<Gradient<Laplace>>(), &[], &[*target], &[source], |_, _| 1e4).data;
                for (found, exact) in found.iter().zip(exact) {
                    assert!((found - exact).abs() < 1e-9, "p {p}: {found} {exact}");
                }
            }
        }
    }
}
