//! Translations as dense matrices, for machines that are fastest at products of matrices.
//!
//! Rows are in units of a box of side 1 ([`Shift`]), so one p² × p² matrix serves an offset on all levels: one per
//! octant of the child for M2M and L2L, one per offset of the V list (316) for M2L. Each column is [`Rcr`] applied to
//! a unit vector. Reflecting an axis only changes the sign of some harmonics ([`odd`]), so the matrices of 56 offsets
//! ([`unmirrored`]) give those of all.

use super::coaxial::Step;
use super::rcr::Rcr;
use super::shift::Shift;
use super::truncation::Truncation;
use crate::equivalent::spectra::offsets;
use fmm_traits::Cube;

/// The matrices of one order, made column by column in f64.
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

    fn matrix(&self, step: Step, shift: &Shift) -> Vec<f64> {
        let len = self.order * self.order;
        let course = self.rcr.course(step, shift);
        let (mut columns, mut unit, mut work) = (vec![0.0; len * len], vec![0.0; len], vec![0.0; 2 * len]);
        for (i, column) in columns.chunks_exact_mut(len).enumerate() {
            unit[i] = 1.0;
            self.rcr.add(&course, &unit, column, &mut work);
            unit[i] = 0.0;
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
