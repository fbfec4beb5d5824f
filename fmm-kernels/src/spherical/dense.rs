//! Translations as dense matrices, for machines that are fastest at products of matrices.
//!
//! Rows are in units of a box of side 1 ([`Shift`]), so one p² × p² matrix serves an offset on all levels: one per
//! octant of the child for M2M and L2L, one per offset of the V list (316) for M2L. Reflecting an axis only changes the
//! sign of some harmonics ([`odd`]), so the matrices of 56 offsets ([`unmirrored`]) give those of all.

use super::basis::{cosine, sine, triangle};
use super::coaxial::Step;
use super::rcr::Rcr;
use super::rotation::Phases;
use super::shift::Shift;
use super::truncation::Truncation;
use crate::equivalent::spectra::offsets;
use fmm_traits::Cube;

/// The matrices of one order, made in f64.
#[derive(Debug)]
pub struct Dense {
    rcr: Rcr<f64>,
    order: usize,
}

/// The offsets of M2L without a negative coordinate. All others are mirror images of these.
pub fn unmirrored() -> impl Iterator<Item = [i32; 3]> {
    offsets().filter(|offset| offset.iter().all(|d| *d >= 0))
}

/// Whether the harmonic at `place` changes sign when x, y or z does. With some axes reflected, the entry of an M2L matrix
/// at a row and a column changes sign if exactly one of the two harmonics does.
pub fn odd(place: usize) -> [bool; 3] {
    let n = place.isqrt();
    let (m, sine) = if place - n * n <= n { (place - n * n, false) } else { (place - n * n - n, true) };
    [(m % 2 == 1) != sine, sine, (n + m) % 2 == 1]
}

impl Dense {
    /// Matrices for expansions of `order`.
    pub fn new(order: usize) -> Self {
        Dense { rcr: Rcr::new(order), order }
    }

    /// The M2M matrix from the child in an octant (bit a: the upper half of axis a).
    pub fn up(&self, octant: usize) -> Vec<f64> {
        let (parent, child) = family(octant);
        self.matrix(Step::Up, &Shift::up(parent, child, self.order))
    }

    /// The L2L matrix to the child in an octant.
    pub fn down(&self, octant: usize) -> Vec<f64> {
        let (parent, child) = family(octant);
        self.matrix(Step::Down, &Shift::down(child, parent, self.order))
    }

    /// The M2L matrix of an offset in sides of a box, target minus source.
    pub fn across(&self, offset: [i32; 3], truncation: Truncation) -> Vec<f64> {
        let at = |offset: [i32; 3]| Cube { center: offset.map(f64::from), side: 1.0 };
        self.between(at(offset), at([0; 3]), truncation)
    }

    /// The M2L matrix from `source` to `target`.
    pub fn between(&self, target: Cube, source: Cube, truncation: Truncation) -> Vec<f64> {
        self.matrix(Step::Across, &Shift::across(target, source, self.order, truncation))
    }

    /// The product of the five factors of [`Rcr`]: phases, rotation, translation along z, rotation back, phases back. The
    /// middle three take the harmonic (n, m), cosine or sine, to degree n' with Σᵢ Dₙ'[i, j] · Cᵢ[n', n] · Dₙ[i, m], where
    /// i is at most n and n'.
    fn matrix(&self, step: Step, shift: &Shift) -> Vec<f64> {
        let (p, len) = (self.order, self.order * self.order);
        let course = self.rcr.course(step, shift);
        let ([read, write], rotation) = (course.orders(), course.rotation());
        let [before, after] = course.phases().each_ref().map(Phases::turns);
        let along: Vec<&[f64]> = (0..read.min(write)).map(|m| self.rcr.coaxial().block(step, m)).collect();
        let mut columns = vec![0.0; len * len];
        // Images of a cosine and of the sine beside it, by degree and order.
        let mut images = [vec![0.0; triangle(write, 0)], vec![0.0; triangle(write, 0)]];
        for (n, m) in (0..read).flat_map(|n| (0..=n).map(move |m| (n, m))) {
            for (first, image) in images.iter_mut().enumerate().take(1 + m.min(1)) {
                let turned = rotation.block(n, first);
                for to in first..write {
                    let (size, back) = (to + 1 - first, rotation.block(to, first));
                    let image = &mut image[triangle(to, first)..][..size];
                    image.fill(0.0);
                    for i in first..=n.min(to) {
                        let factor =
                            along[i][(to - i) * (p - i) + n - i] * turned[(i - first) * (n + 1 - first) + m - first];
                        let row = &back[(i - first) * size..][..size];
                        image.iter_mut().zip(row).for_each(|(sum, x)| *sum += factor * x);
                    }
                }
            }
            let [c, s] = before[triangle(n, m)];
            for (place, x, y) in [(cosine(n, m), c, -s), (sine(n, m), s, c)].into_iter().take(1 + m.min(1)) {
                let column = &mut columns[place * len..][..len];
                for to in 0..write {
                    let at = triangle(to, 0);
                    column[cosine(to, 0)] = after[at][0] * x * images[0][at];
                    for j in 1..=to {
                        let ([c, s], u, v) = (after[at + j], x * images[0][at + j], y * images[1][at + j]);
                        column[cosine(to, j)] = c * u - s * v;
                        column[sine(to, j)] = c * v + s * u;
                    }
                }
            }
        }
        columns
    }
}

/// A box of side 1 at the origin, and its child in an octant.
pub fn family(octant: usize) -> (Cube, Cube) {
    let center = std::array::from_fn(|a| if octant >> a & 1 == 1 { 0.25 } else { -0.25 });
    (Cube { center: [0.0; 3], side: 1.0 }, Cube { center, side: 0.5 })
}

#[cfg(test)]
mod tests {
    use super::super::direct::Direct;
    use super::*;

    /// Largest difference of the products with a row, against `translate`.
    fn difference(matrix: &[f64], from: &[f64], translate: impl Fn(&mut [f64])) -> f64 {
        let mut expected = vec![0.0; from.len()];
        translate(&mut expected);
        for (column, x) in matrix.chunks_exact(from.len()).zip(from) {
            expected.iter_mut().zip(column).for_each(|(e, c)| *e -= c * x);
        }
        expected.iter().fold(0.0, |most, e| e.abs().max(most))
    }

    #[test]
    fn every_offset_is_an_image() {
        let all: Vec<[i32; 3]> = unmirrored().collect();
        assert!(all.len() == 56 && offsets().all(|offset| all.contains(&offset.map(i32::abs))));
    }

    /// Boxes of unequal sides, whose expansions have other orders if the truncation is variable.
    #[test]
    fn boxes_of_two_sizes() {
        let order = 7;
        let (dense, direct) = (Dense::new(order), Direct::<f64>::new(order));
        let from: Vec<f64> = (0..order * order).map(|i| (1.7 * i as f64 + 0.3).sin()).collect();
        let target = Cube { center: [0.0; 3], side: 1.0 };
        for (side, at) in [(2.0, [3.5, -1.5, 2.5]), (0.5, [-1.75, 0.25, 1.25]), (4.0, [0.5, 6.5, -4.5])] {
            let source = Cube { center: at, side };
            for truncation in [Truncation::Fixed, Truncation::Variable] {
                let shift = Shift::across(target, source, order, truncation);
                let matrix = dense.between(target, source, truncation);
                assert!(matrix.iter().any(|x| *x != 0.0));
                let error = difference(&matrix, &from, |to| direct.m2l(&shift, &from, to));
                assert!(error < 1e-11, "side {side}: {error}");
            }
        }
    }

    #[test]
    fn matrices_are_the_translations_term_by_term() {
        for order in [1, 4, 7] {
            let (dense, direct) = (Dense::new(order), Direct::<f64>::new(order));
            let from: Vec<f64> = (0..order * order).map(|i| (1.7 * i as f64 + 0.3).sin()).collect();
            for octant in 0..8 {
                let (parent, child) = family(octant);
                let up = Shift::up(parent, child, order);
                assert!(difference(&dense.up(octant), &from, |to| direct.m2m(&up, &from, to)) < 1e-12);
                let down = Shift::down(child, parent, order);
                assert!(difference(&dense.down(octant), &from, |to| direct.l2l(&down, &from, to)) < 1e-12);
            }
            for truncation in [Truncation::Fixed, Truncation::Variable] {
                let signs: Vec<[bool; 3]> = (0..order * order).map(odd).collect();
                for offset in offsets() {
                    let at = |d: [i32; 3]| Cube { center: d.map(f64::from), side: 1.0 };
                    let shift = Shift::across(at(offset), at([0; 3]), order, truncation);
                    let direct = |to: &mut [f64]| direct.m2l(&shift, &from, to);
                    assert!(difference(&dense.across(offset, truncation), &from, direct) < 1e-11, "{offset:?}");
                    let negative = |odd: &[bool; 3]| (0..3).filter(|&a| offset[a] < 0 && odd[a]).count() % 2 == 1;
                    let mut image = dense.across(offset.map(i32::abs), truncation);
                    for (column, of) in image.chunks_exact_mut(signs.len()).zip(&signs) {
                        let entries = column.iter_mut().zip(&signs).filter(|(_, row)| negative(row) != negative(of));
                        entries.for_each(|(x, _)| *x = -*x);
                    }
                    assert!(difference(&image, &from, direct) < 1e-11, "image {offset:?}");
                }
            }
        }
    }
}
