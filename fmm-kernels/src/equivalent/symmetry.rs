//! The reflections of a cube. They split the operators of symmetric kernels into small blocks.
//!
//! Let R reflect one axis. A kernel is symmetric under R if K(Rr) = D K(r) D′ with diagonal matrices D and D′ of ±1.
//! Every operator between concentric surfaces then commutes with R. A vector can be split into parts that are even or
//! odd under each such reflection, and operators do not mix the parts. With k reflections there are 2^k blocks.
//! Laplace, Stokes and all other isotropic kernels have eight blocks, each with an eighth of the rows and columns.
//! Surface solves then cost 8 times fewer operations, and their decompositions 64 times fewer. Reflections exchange
//! the eight children of a box, so M2M and L2L of all eight children together split into blocks too, and also cost 8
//! times less.
//!
//! [`Symmetry::of`] finds the signs from values of the kernel. A kernel without symmetry has whole operators (k = 0);
//! all other code is the same.
//!
//! # Notation
//!
//! A *parity* χ is a set of axes, as bits: the axes whose reflection changes the sign of a vector. Example: χ = 0b101
//! is odd in x and z and even in y. [`Side::fold`] transforms a vector over a surface to the orthonormal basis of
//! even and odd vectors, parity by parity; [`Side::unfold`] transforms it back. [`Side::fold_family`] does the same
//! for the vectors of eight children.

use super::lattice::{Lattice, Segment};
use super::matrix::kernel_matrix;
use fmm_traits::{Member, Real};
use std::ops::Range;

/// Largest difference, relative to the largest value, of two kernel values that count as equal.
const EQUAL_VALUES: f64 = 1e-12;

/// The reflections under which a kernel is symmetric, and how its values and strengths transform.
#[derive(Clone, Debug, PartialEq)]
pub struct Symmetry {
    /// The axes whose reflection is a symmetry, as bits.
    axes: usize,
    /// The folding of check values (for the adjoint kernel: of strengths).
    pub values: Side,
    /// The folding of densities.
    pub strengths: Side,
}

impl Symmetry {
    /// The symmetry of `kernel` on a `lattice`.
    pub fn of(kernel: &Member, params: &[f64], lattice: Lattice) -> Self {
        let Reflections { axes, values, strengths } = Reflections::of(kernel, params);
        let [values, strengths] = [values, strengths].map(|odd| Side::new(lattice, axes, &odd));
        Symmetry { axes, values, strengths }
    }

    /// The symmetry of the adjoint kernel K(−r)ᵀ.
    pub(super) fn adjoint(&self) -> Self {
        Symmetry { axes: self.axes, values: self.strengths.clone(), strengths: self.values.clone() }
    }

    /// The parities: all subsets of the symmetric axes.
    pub fn parities(&self) -> impl Iterator<Item = usize> + use<> {
        let axes = self.axes;
        (0..8).filter(move |x| x & !axes == 0)
    }

    /// One octant of each set of octants that the reflections exchange.
    pub fn octants(&self) -> impl Iterator<Item = usize> + use<> {
        let axes = self.axes;
        (0..self.values.octants).filter(move |o| o & axes == 0)
    }

    /// The octant among [`octants`](Self::octants) that reflections take to `octant`.
    pub(super) fn representative(&self, octant: usize) -> usize {
        octant & !self.axes
    }
}

/// The reflections under which a kernel is symmetric.
pub(super) struct Reflections {
    /// The axes, as bits.
    pub axes: usize,
    /// For each value: the axes whose reflection changes its sign.
    pub values: Vec<usize>,
    /// As `values`, for strengths.
    pub strengths: Vec<usize>,
}

impl Reflections {
    pub fn of(kernel: &Member, params: &[f64]) -> Self {
        let (mut axes, mut values, mut strengths) = (0, vec![0; kernel.values], vec![0; kernel.strengths]);
        for axis in 0..kernel.dim {
            if let Some([v, s]) = (!kernel.piecewise).then(|| signs(kernel, params, axis)).flatten() {
                axes |= 1 << axis;
                values.iter_mut().zip(v).for_each(|(mask, odd)| *mask |= (odd as usize) << axis);
                strengths.iter_mut().zip(s).for_each(|(mask, odd)| *mask |= (odd as usize) << axis);
            }
        }
        Reflections { axes, values, strengths }
    }
}

/// Whether a kernel with one value and one strength keeps its value when the coordinates are permuted.
pub(super) fn is_permutable(kernel: &Member, params: &[f64]) -> bool {
    let at = |r: [f64; 3]| kernel.column(params, r, 0)[0];
    let same = |[x, y, z]: [f64; 3]| {
        let here = at([x, y, z]);
        [at([y, z, x]), at([y, x, z])].iter().all(|there| (here - there).abs() <= EQUAL_VALUES * here.abs())
    };
    (kernel.dim, kernel.values, kernel.strengths) == (3, 1, 1) && !kernel.piecewise && PLACES.into_iter().all(same)
}

/// Points at which a kernel is compared with its images.
const PLACES: [[f64; 3]; 3] = [[0.9, -1.3, 0.7], [0.31, 0.77, -1.1], [-1.7, 0.23, 0.45]];

/// Whether each value and each strength of `kernel` changes sign when `axis` is reflected; `None` without that
/// symmetry.
fn signs(kernel: &Member, params: &[f64], axis: usize) -> Option<[Vec<bool>; 2]> {
    let at = |r: [f64; 3]| kernel_matrix(kernel, params, &[r], &[[0.0; 3]], |_, _| 1.0).data;
    let (rows, columns) = (kernel.values, kernel.strengths);
    let mut odd = vec![None; rows * columns];
    for r in PLACES {
        let mut image = r;
        image[axis] = -r[axis];
        let (here, there) = (at(r), at(image));
        let largest = here.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for ((x, y), odd) in here.iter().zip(&there).zip(&mut odd) {
            let tolerance = EQUAL_VALUES * largest;
            let (same, opposite) = ((x - y).abs() <= tolerance, (x + y).abs() <= tolerance);
            match (same, opposite, *odd) {
                (true, true, _) => {}
                (true, false, None | Some(false)) => *odd = Some(false),
                (false, true, None | Some(true)) => *odd = Some(true),
                _ => return None,
            }
        }
    }
    // A non-zero entry ties the sign of a value to the sign of a strength. Spread the signs along these ties.
    let (mut values, mut strengths) = (vec![None; rows], vec![None; columns]);
    for first in 0..rows {
        values[first].get_or_insert(false);
        for _ in 0..rows + columns {
            for (k, &odd) in odd.iter().enumerate() {
                let (Some(odd), (j, i)) = (odd, (k / rows, k % rows)) else { continue };
                match (values[i], strengths[j]) {
                    (Some(v), None) => strengths[j] = Some(v ^ odd),
                    (None, Some(s)) => values[i] = Some(s ^ odd),
                    (Some(v), Some(s)) if v ^ s != odd => return None,
                    _ => {}
                }
            }
        }
    }
    Some([values, strengths].map(|side| side.into_iter().map(|odd| odd.unwrap_or(false)).collect()))
}

/// A copy of consecutive numbers from one vector to another.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    from: usize,
    to: usize,
    len: usize,
}

/// Points and their images under one reflection, as offsets into a vector. Points that the reflection leaves in place
/// have `here` = `there`.
#[derive(Clone, Debug, PartialEq)]
struct Images {
    here: usize,
    there: usize,
    len: usize,
    odd: bool,
}

/// The folding of vectors over one surface, for components with given signs: from surface order to even and odd parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    len: usize,
    /// Octants in which points lie.
    octants: usize,
    /// Begin of each parity in a folded vector, and the end.
    starts: [usize; 9],
    /// Copies from surface order to folded order.
    pieces: Vec<Piece>,
    /// In folded order, `[a, b, length]`: two ranges that are replaced by their sum and their difference.
    pairs: Vec<[usize; 3]>,
    /// For each symmetric axis: the images of all points.
    reflections: Vec<(usize, Vec<Images>)>,
    /// For each row of a folded vector: an entry (point and component) whose images make up the row, and the number of
    /// images.
    rows: Vec<(usize, usize)>,
}

impl Side {
    fn new(lattice: Lattice, axes: usize, odd: &[usize]) -> Self {
        let (n, segments) = (lattice.len(), lattice.segments());
        let mut starts = [0; 9];
        let (mut pieces, mut rows) = (Vec::new(), Vec::new());
        for parity in 0..8 {
            starts[parity] = rows.len();
            for (c, sign) in odd.iter().enumerate() {
                for s in &segments {
                    // Combination q of the images changes sign under the reflections in q.
                    for image in s.images().filter(|q| (q & axes) ^ sign == parity) {
                        let size = 1 << (axes & !s.fixed).count_ones();
                        pieces.push(Piece { from: c * n + s.at(image), to: rows.len(), len: s.len });
                        let representative = c * n + s.at(image & !axes);
                        rows.extend((0..s.len).map(|k| (representative + k, size)));
                    }
                }
            }
        }
        starts[8] = rows.len();
        let folded = |from: usize| pieces.iter().find(|piece: &&Piece| piece.from == from).map_or(0, |piece| piece.to);
        let (mut pairs, mut reflections) = (Vec::new(), Vec::new());
        for axis in [1, 2, 4].into_iter().filter(|axis| axes & axis != 0) {
            let mut images = Vec::new();
            for (c, sign) in odd.iter().enumerate() {
                for s in &segments {
                    for image in s.images().filter(|image| image & axis == 0) {
                        let (here, there) = (c * n + s.at(image), c * n + s.at(image | axis & !s.fixed));
                        images.push(Images { here, there, len: s.len, odd: sign & axis != 0 });
                        if here != there {
                            pairs.push([folded(here), folded(there), s.len]);
                        }
                    }
                }
            }
            reflections.push((axis, images));
        }
        Side { len: n * odd.len(), octants: lattice.octants(), starts, pieces, pairs, reflections, rows }
    }

    /// Numbers in a vector: components × points.
    #[expect(clippy::len_without_is_empty, reason = "a lattice has points")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Octants in which points lie: the children of a family.
    pub fn octants(&self) -> usize {
        self.octants
    }

    /// The range of `parity` in a folded vector.
    pub fn block(&self, parity: usize) -> Range<usize> {
        self.starts[parity]..self.starts[parity + 1]
    }

    /// For each number in the block of `parity`: an entry of the vector that it is made of, and the number of its
    /// images.
    pub(super) fn representatives(&self, parity: usize) -> &[(usize, usize)] {
        &self.rows[self.block(parity)]
    }

    /// Writes `vector` in the basis of even and odd vectors to `folded`.
    #[inline(always)]
    pub fn fold<T: Real>(&self, vector: &[T], folded: &mut [T]) {
        for p in &self.pieces {
            folded[p.to..p.to + p.len].copy_from_slice(&vector[p.from..p.from + p.len]);
        }
        self.combine(folded);
    }

    /// The inverse of [`fold`](Self::fold); destroys `folded`.
    #[inline(always)]
    pub fn unfold<T: Real>(&self, folded: &mut [T], vector: &mut [T]) {
        self.combine(folded);
        for p in &self.pieces {
            vector[p.from..p.from + p.len].copy_from_slice(&folded[p.to..p.to + p.len]);
        }
    }

    /// Replaces pairs by sums and differences, times √½. It is its own inverse.
    #[inline(always)]
    fn combine<T: Real>(&self, folded: &mut [T]) {
        let half = T::of(std::f64::consts::FRAC_1_SQRT_2);
        for &[a, b, len] in &self.pairs {
            let (lower, upper) = folded.split_at_mut(a.max(b));
            let (x, y) = (&mut lower[a.min(b)..][..len], &mut upper[..len]);
            // The sum belongs to the even combination, which may come later.
            if a < b {
                for (x, y) in x.iter_mut().zip(y) {
                    (*x, *y) = (half * (*x + *y), half * (*x - *y));
                }
            } else {
                for (y, x) in x.iter_mut().zip(y) {
                    (*x, *y) = (half * (*x + *y), half * (*x - *y));
                }
            }
        }
    }

    /// Folds the vectors of the children of a box, in place. The child in octant o is at `family[o·stride..]`.
    /// Afterwards, place χ|o holds parity χ of the octants that are mirror images of o, over the surface of o.
    #[inline(always)]
    pub fn fold_family<T: Real>(&self, family: &mut [T], stride: usize) {
        self.for_each_reflection(family, stride, |[a, b, c, d], sign| {
            let half = T::of(std::f64::consts::FRAC_1_SQRT_2);
            let (a1, b1) = (half * (a + sign * d), half * (b + sign * c));
            (a1, b1, half * (a - sign * d), half * (b - sign * c))
        });
    }

    /// The inverse of [`fold_family`](Self::fold_family).
    #[inline(always)]
    pub fn unfold_family<T: Real>(&self, family: &mut [T], stride: usize) {
        self.for_each_reflection(family, stride, |[a, b, c, d], sign| {
            let half = T::of(std::f64::consts::FRAC_1_SQRT_2);
            (half * (a + c), half * (b + d), sign * half * (b - d), sign * half * (a - c))
        });
    }

    /// For each reflection, calls `of([u, u′, v, v′], sign)` and stores the four numbers that it returns. u and v are
    /// numbers of a lower and an upper octant at one point, u′ and v′ those at the image of the point.
    #[inline(always)]
    fn for_each_reflection<T: Real>(
        &self,
        family: &mut [T],
        stride: usize,
        of: impl Fn([T; 4], T) -> (T, T, T, T) + Copy,
    ) {
        for (axis, images) in &self.reflections {
            for octant in (0..self.octants).filter(|o| o & axis == 0) {
                let (lower, upper) = family.split_at_mut((octant | axis) * stride);
                let (u, v) = (&mut lower[octant * stride..][..self.len], &mut upper[..self.len]);
                for i in images {
                    let sign = T::of(if i.odd { -1.0 } else { 1.0 });
                    if i.here == i.there {
                        for (u, v) in u[i.here..][..i.len].iter_mut().zip(&mut v[i.here..][..i.len]) {
                            let (a, _, c, _) = of([*u, *u, *v, *v], sign);
                            (*u, *v) = (a, c);
                        }
                    } else {
                        let (u0, u1) = two(u, i.here, i.there, i.len);
                        let (v0, v1) = two(v, i.here, i.there, i.len);
                        for (((a, b), c), d) in u0.iter_mut().zip(u1).zip(v0).zip(v1) {
                            (*a, *b, *c, *d) = of([*a, *b, *c, *d], sign);
                        }
                    }
                }
            }
        }
    }

    /// Applies the reflections of `axes` to a vector, with the signs of the components.
    pub(super) fn reflect<T: Real>(&self, vector: &mut [T], axes: usize) {
        for (_, images) in self.reflections.iter().filter(|(axis, _)| axes & axis != 0) {
            for i in images {
                for k in 0..i.len {
                    let sign = T::of(if i.odd { -1.0 } else { 1.0 });
                    let (x, y) = (vector[i.here + k], vector[i.there + k]);
                    (vector[i.here + k], vector[i.there + k]) = (sign * y, sign * x);
                }
            }
        }
    }
}

/// Two disjoint ranges of `x`; the second lies behind the first.
#[inline(always)]
fn two<T>(x: &mut [T], first: usize, second: usize, len: usize) -> (&mut [T], &mut [T]) {
    let (lower, upper) = x.split_at_mut(second);
    (&mut lower[first..first + len], &mut upper[..len])
}

impl Segment {
    /// The images: sets of axes along which a point lies in the upper half.
    fn images(&self) -> impl Iterator<Item = usize> + use<> {
        let fixed = self.fixed;
        (0..8).filter(move |image| image & fixed == 0)
    }
    /// The first point of `image`.
    fn at(&self, image: usize) -> usize {
        self.start + self.len * self.images().take_while(|&i| i < image).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Laplace, Stokes, StokesPressure};
    use fmm_traits::{Family, Kernel, Lane, lane::dot};

    fn sine(n: usize, k: f64) -> Vec<f64> {
        (0..n).map(|i| (k * i as f64 + k).sin()).collect()
    }

    fn in_plane(text: &str) -> Member {
        let kernel = fmm_traits::Traced::parse(text).unwrap().in_plane();
        kernel.kernels(fmm_traits::Outputs::POTENTIAL).unwrap().members.equivalent
    }

    fn symmetry<F: Family>(family: F, lattice: impl Into<Lattice>) -> Symmetry {
        Symmetry::of(&Member::of::<F::Equivalent>(), &family.parameters(), lattice.into())
    }

    #[test]
    fn folding_is_orthogonal_and_separates_parities() {
        let in_space = || (3..=9).map(Lattice::surface).chain((3..=7).map(Lattice::volume));
        let flat = in_space().map(|p| Symmetry::of(&in_plane("value ln(r)"), &[1.0], p.in_plane()).values);
        for side in flat {
            let (x, mut folded) = (sine(side.len(), 1.7), vec![0.0; side.len()]);
            let mut back = folded.clone();
            side.fold(&x, &mut folded);
            assert_eq!((side.octants(), side.starts[4]), (4, side.len()));
            side.unfold(&mut folded, &mut back);
            assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-14));
        }
        for p in in_space() {
            for side in [symmetry(Laplace, p).values, symmetry(StokesPressure { mu: 1.0 }, p).strengths] {
                let x = sine(side.len(), 1.7);
                let (mut folded, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                side.fold(&x, &mut folded);
                let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
                assert!((norm(&x) - norm(&folded)).abs() < 1e-13 * norm(&x));
                for parity in 0..8 {
                    let mut part = vec![0.0; x.len()];
                    part[side.block(parity)].copy_from_slice(&folded[side.block(parity)]);
                    side.unfold(&mut part, &mut back);
                    for axes in 0..8usize {
                        let sign = if (axes & parity).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
                        let mut image = back.clone();
                        side.reflect(&mut image, axes);
                        assert!(image.iter().zip(&back).all(|(a, b)| (a - sign * b).abs() < 1e-14));
                    }
                }
                side.unfold(&mut folded, &mut back);
                assert!(x.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-14));
            }
        }
    }

    #[test]
    fn families_fold_and_unfold() {
        let side = symmetry(Stokes { mu: 1.0 }, 5).strengths;
        let stride = side.len() + 3;
        let x = sine(8 * stride, 0.3);
        let mut family = x.clone();
        side.fold_family(&mut family, stride);
        assert!(family.iter().zip(&x).any(|(a, b)| (a - b).abs() > 0.1));
        side.unfold_family(&mut family, stride);
        assert!(family.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-14));
    }

    /// 1/√(rᵀMr) with M coupling x and y: only z may be reflected, and x and y not.
    #[derive(Clone, Debug)]
    struct Tilted;
    impl Kernel for Tilted {
        const NAME: &'static str = "tilted";
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            u[0] = q[0] * (dot(r, r) + V::splat(0.5) * r[0] * r[1]).rsqrt();
        }
        fn value_degree(_: usize) -> i32 {
            -1
        }
    }

    #[test]
    fn signs_are_found() {
        assert_eq!(symmetry(Laplace, 4).axes, 7);
        assert_eq!(Symmetry::of(&Member::of::<Tilted>(), &[], 4.into()).axes, 4);
        let flat = Lattice::surface(4).in_plane();
        assert_eq!(Symmetry::of(&in_plane("value ln(r)"), &[1.0], flat).axes, 3);
        assert_eq!(Symmetry::of(&in_plane("value ln(x^2 + y^2 + x*y)"), &[1.0], flat).axes, 0);
        let stokes = symmetry(Stokes { mu: 1.0 }, 4);
        assert_eq!((stokes.axes, stokes.values == stokes.strengths), (7, true));
        assert_eq!(symmetry(StokesPressure { mu: 1.0 }, 4).axes, 7);
    }
}
