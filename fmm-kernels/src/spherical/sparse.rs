//! Dipoles and derivatives as sparse matrices on rows of harmonics.
//!
//! P2M and P2L first sum the harmonics of the sources, one sum per strength (charge, dipole x, y, z). The matrix of
//! [`sources`] turns these sums into one row. L2P goes the other way: the matrix of [`values`] turns a row into one row
//! per value (potential, ∂x, ∂y, …), which is then evaluated. M2P does the same at the inverted point. The entries come
//! from [`Gradient`].

use super::basis::{cosine, sine};
use super::gradient::Gradient;
use super::layout::Layout;

/// A sparse matrix in compressed rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparse {
    /// First entry of each row; at the end, the number of entries.
    pub starts: Vec<u32>,
    /// Columns of the entries.
    pub columns: Vec<u32>,
    /// Entries.
    pub values: Vec<f64>,
}

impl Sparse {
    /// The sparse form of a dense matrix with the given `columns`, of `rows` numbers each.
    fn of(columns: &[Vec<f64>], rows: usize) -> Self {
        let mut sparse = Sparse { starts: vec![0], ..Default::default() };
        for row in 0..rows {
            for (column, numbers) in columns.iter().enumerate().filter(|(_, numbers)| numbers[row] != 0.0) {
                sparse.columns.push(column as u32);
                sparse.values.push(numbers[row]);
            }
            sparse.starts.push(sparse.columns.len() as u32);
        }
        sparse
    }
}

/// The two kinds of harmonics of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harmonics {
    /// R: P2M.
    Regular,
    /// S: P2L.
    Singular,
}

/// Order of the sums over sources that make a row of order `p`. Sums of singular harmonics for dipoles have one degree
/// more.
pub fn source_order(layout: Layout, harmonics: Harmonics, p: usize) -> usize {
    p + usize::from(layout.dipole.is_some() && harmonics == Harmonics::Singular)
}

/// One matrix per strength, from the sums of order [`source_order`] to a row of order `p`. The rows of the matrices
/// follow each other.
pub fn sources(layout: Layout, harmonics: Harmonics, p: usize, strengths: usize) -> Sparse {
    let order = source_order(layout, harmonics, p);
    let gradient = Gradient::<f64>::new(p + 1);
    let mut all = Sparse { starts: vec![0], ..Default::default() };
    for strength in 0..strengths {
        let axis = layout.dipole.and_then(|first| strength.checked_sub(first)).filter(|&axis| axis < 3);
        let columns = units(order).map(|(i, unit)| {
            let mut to = vec![0.0; p * p];
            match axis {
                Some(axis) if harmonics == Harmonics::Regular => gradient.raise(axis, p, 1.0, &unit, &mut to),
                Some(axis) => {
                    let mut below = vec![0.0; order * order];
                    gradient.lower(axis, order, -1.0, &unit, &mut below);
                    to.copy_from_slice(&below[..p * p]);
                }
                None => to.iter_mut().skip(i).take(1).for_each(|x| *x = 1.0),
            }
            to
        });
        let one = Sparse::of(&columns.collect::<Vec<_>>(), p * p);
        let before = all.columns.len() as u32;
        all.starts.extend(one.starts[1..].iter().map(|s| s + before));
        all.columns.extend(one.columns);
        all.values.extend(one.values);
    }
    all
}

/// The matrix from a local of order `p` to the coefficients of the potential and of its derivatives: with
/// `derivatives` ≥ 1 the gradient (x, y, z), with 2 the Hessian (xx, xy, xz, yy, yz, zz). The matrix rows are ordered
/// by harmonic, sorted by m as [`column`](super::basis::column) says; the values of one harmonic follow each other.
pub fn values(derivatives: usize, p: usize) -> Sparse {
    let gradient = Gradient::<f64>::new(p);
    let derive = |axis: usize, from: &[f64]| {
        let mut to = vec![0.0; p * p];
        gradient.lower(axis, p, 1.0, from, &mut to);
        to
    };
    let count = [1, 4, 10][derivatives];
    let places: Vec<usize> = (0..p).flat_map(|m| of_column(p, m)).collect();
    let columns = units(p).map(|(_, unit)| {
        let mut rows = vec![unit];
        if derivatives > 0 {
            let first: Vec<_> = (0..3).map(|a| derive(a, &rows[0])).collect();
            let second = |a: usize| (a..3).map(|b| derive(b, &first[a])).collect::<Vec<_>>();
            let second: Vec<_> = if derivatives > 1 { (0..3).flat_map(second).collect() } else { Vec::new() };
            rows.extend(first.into_iter().chain(second));
        }
        places.iter().flat_map(|&i| rows.iter().map(move |row| row[i])).collect()
    });
    Sparse::of(&columns.collect::<Vec<_>>(), count * p * p)
}

/// Places of the harmonics of m, in the order of [`column`](super::basis::column).
fn of_column(order: usize, m: usize) -> impl Iterator<Item = usize> {
    let sines = if m > 0 { m..order } else { 0..0 };
    (m..order).map(move |n| cosine(n, m)).chain(sines.map(move |n| sine(n, m)))
}

/// The unit vectors of an order.
fn units(order: usize) -> impl Iterator<Item = (usize, Vec<f64>)> {
    (0..order * order).map(move |i| (i, (0..order * order).map(|j| f64::from(u8::from(i == j))).collect()))
}

#[cfg(test)]
mod tests {
    use super::super::basis::Basis;
    use super::super::{SphericalExpansion, SphericalOptions};
    use super::*;
    use crate::{Laplace, LaplaceMixed};
    use fmm_traits::{Cloud, Cube, Expansion, Kernels, Outputs};

    const P: usize = 5;
    const BOX: Cube = Cube { center: [0.0; 3], side: 1.0 };
    const NEAR: [f64; 3] = [0.3, -0.2, 0.4];
    const FAR: [f64; 3] = [1.4, -0.9, 2.2];

    fn harmonics(kind: Harmonics, order: usize, at: [f64; 3]) -> Vec<f64> {
        let (basis, mut row) = (Basis::new(order), vec![0.0; order * order]);
        match kind {
            Harmonics::Regular => basis.regular(order, at, &mut row),
            Harmonics::Singular => basis.singular(order, at, &mut row),
        }
        row
    }

    fn product(matrix: &Sparse, rows: std::ops::Range<usize>, x: &[f64]) -> Vec<f64> {
        let entries = |r: usize| matrix.starts[r] as usize..matrix.starts[r + 1] as usize;
        rows.map(|r| entries(r).map(|e| matrix.values[e] * x[matrix.columns[e] as usize]).sum()).collect()
    }

    fn close(a: &[f64], b: &[f64]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12 * (1.0 + b.abs())), "{a:?} {b:?}");
        assert!(b.iter().any(|b| b.abs() > 1e-3));
    }

    #[test]
    fn sums_over_charges_and_dipoles_become_the_rows_of_the_expansion() {
        let kernels = Kernels::of(&LaplaceMixed, Outputs::POTENTIAL).unwrap();
        let expansion = SphericalExpansion::<f64>::new(&kernels, P, SphericalOptions::default()).unwrap();
        let layout = Layout { charge: Some(0), dipole: Some(1) };
        let strengths = [0.7, -1.1, 0.4, 2.0];
        for (kind, at) in [(Harmonics::Regular, NEAR), (Harmonics::Singular, FAR)] {
            let cloud = Cloud { xyz: &[at], strengths: &strengths };
            let mut expected = vec![0.0; P * P];
            match kind {
                Harmonics::Regular => expansion.p2m(BOX, cloud, &mut expected),
                Harmonics::Singular => expansion.p2l(BOX, BOX, cloud, &mut expected),
            }
            let (matrix, sums) = (sources(layout, kind, P, 4), harmonics(kind, source_order(layout, kind, P), at));
            let mut found = vec![0.0; P * P];
            for (k, q) in strengths.iter().enumerate() {
                let one = product(&matrix, k * P * P..(k + 1) * P * P, &sums);
                found.iter_mut().zip(one).for_each(|(to, x)| *to += q * x);
            }
            close(&found, &expected);
        }
    }

    fn of_values(derivatives: usize, outputs: Outputs) {
        let kernels = Kernels::of(&Laplace, outputs).unwrap();
        let expansion = SphericalExpansion::<f64>::new(&kernels, P, SphericalOptions::default()).unwrap();
        let row: Vec<f64> = (0..P * P).map(|i| (1.3 * i as f64 + 0.2).cos()).collect();
        let n = expansion.values();
        let mut expected = vec![0.0; n];
        expansion.l2p(BOX, &row, &[NEAR], &mut expected);
        let (matrix, at) = (values(derivatives, P), harmonics(Harmonics::Regular, P, NEAR));
        let coefficients = product(&matrix, 0..n * P * P, &row);
        let places = (0..P).flat_map(|m| of_column(P, m));
        let mut found = vec![0.0; n];
        for (place, all) in places.zip(coefficients.chunks_exact(n)) {
            found.iter_mut().zip(all).for_each(|(to, c)| *to += c * at[place]);
        }
        close(&found, &expected);
    }

    #[test]
    fn values_and_derivatives_are_those_of_the_expansion() {
        of_values(0, Outputs::POTENTIAL);
        of_values(1, Outputs::POTENTIAL | Outputs::GRADIENT);
        of_values(2, Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN);
    }
}
