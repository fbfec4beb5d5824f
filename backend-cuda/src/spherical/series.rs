//! Tables for the evaluation of a row of harmonics in `kernels/shared/series.cuh`.

use crate::device::{Buffer, Device};
use crate::equivalent::DeviceScalar;
use fmm_kernels::spherical::basis::Basis;
use fmm_kernels::spherical::sparse;
use fmm_traits::Error;

/// The map from a row to the coefficients of potential and derivatives: coefficient i is Σ_j
/// factors[j][i]·row[columns[j][i]]. Coefficients have the order in which they are summed: by m, then by degree, then
/// cosine and sine, then by value.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    columns: Vec<Vec<u32>>,
    factors: Vec<Vec<f64>>,
    /// The coefficient β of the recursion for each (n, m), in a triangle.
    betas: Vec<f64>,
}

/// Number of values, by highest derivative: potential, with gradient, with Hessian.
const VALUES: [usize; 3] = [1, 4, 10];

impl Series {
    /// The map for rows of order `p` and values with up to `derivatives` derivatives.
    fn new(derivatives: usize, p: usize) -> Self {
        let (basis, values) = (Basis::<f64>::new(p), VALUES[derivatives]);
        let step = |n: usize, m: usize| basis.coefficients(n, m);
        // The constant by which R_n^m exceeds the polynomial of the recursion without roots.
        let leading = |n: usize, m: usize| -> f64 {
            (1..=m).map(|k| step(k, k)[0]).chain((m + 1..=n).map(|k| step(k, m)[0])).product()
        };
        let matrix = sparse::values(derivatives, p);
        let mut series = Series {
            columns: vec![Vec::new(); derivatives + 1],
            factors: vec![Vec::new(); derivatives + 1],
            betas: Vec::new(),
        };
        let mut first = 0;
        for m in 0..p {
            let count = p - m;
            for n in m..p {
                for sine in 0..if m > 0 { 2 } else { 1 } {
                    let harmonic = first + sine * count + n - m;
                    for row in harmonic * values..(harmonic + 1) * values {
                        let mut entries = matrix.starts[row] as usize..matrix.starts[row + 1] as usize;
                        for (columns, factors) in series.columns.iter_mut().zip(&mut series.factors) {
                            let [column, factor] =
                                entries.next().map_or([0.0; 2], |e| [f64::from(matrix.columns[e]), matrix.values[e]]);
                            columns.push(column as u32);
                            factors.push(factor * leading(n, m));
                        }
                        debug_assert!(entries.is_empty());
                    }
                }
            }
            first += count * if m > 0 { 2 } else { 1 };
        }
        for (n, m) in (0..p).flat_map(|n| (0..=n).map(move |m| (n, m))) {
            series.betas.push(if m + 1 < n { step(n, m)[1] / (step(n, m)[0] * step(n - 1, m)[0]) } else { 0.0 });
        }
        series
    }
}

/// A [`Series`] on the device.
#[derive(Debug)]
pub(super) struct DeviceSeries<T> {
    pub columns: Buffer<u32>,
    pub factors: Buffer<T>,
    pub betas: Buffer<T>,
}

impl<T: DeviceScalar> DeviceSeries<T> {
    /// The map for rows of order `p` and values with up to `derivatives` derivatives.
    pub fn new(device: &Device, derivatives: usize, p: usize) -> Result<Self, Error> {
        let Series { columns, factors, betas } = Series::new(derivatives, p);
        let rounded = |x: &[f64]| x.iter().map(|&x| T::of(x)).collect::<Vec<T>>();
        Ok(DeviceSeries {
            columns: device.upload(&columns.concat(), "operators")?,
            factors: device.upload(&rounded(&factors.concat()), "operators")?,
            betas: device.upload(&rounded(&betas), "operators")?,
        })
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.columns.bytes() + self.factors.bytes() + self.betas.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmm_kernels::Laplace;
    use fmm_kernels::spherical::{SphericalExpansion, SphericalOptions};
    use fmm_traits::{Cube, Expansion, Kernels, Outputs};

    /// The computation of `series.cuh`, statement by statement.
    fn evaluate(series: &Series, p: usize, row: &[f64], x: [f64; 3], singular: bool) -> Vec<f64> {
        let values = VALUES[series.columns.len() - 1];
        let coefficient = |i: usize| -> f64 {
            series.columns.iter().zip(&series.factors).map(|(c, f)| f[i] * row[c[i] as usize]).sum()
        };
        let (mut y, mut r2) = (x, x.iter().map(|c| c * c).sum::<f64>());
        let rho = r2.sqrt().recip();
        if singular {
            y = y.map(|c| c * rho * rho);
            r2 = rho * rho;
        }
        let (mut v, mut power, mut at) = (vec![0.0; values], [1.0, 0.0], 0);
        for m in 0..p {
            let (mut c, mut s, mut q) = (vec![0.0; values], vec![0.0; values], [1.0, 0.0]);
            if m > 0 {
                power = [y[0] * power[0] - y[1] * power[1], y[0] * power[1] + y[1] * power[0]];
            }
            for n in m..p {
                if n > m {
                    q = [y[2] * q[0] - series.betas[n * (n + 1) / 2 + m] * (r2 * q[1]), q[0]];
                }
                for sums in if m > 0 { vec![&mut c, &mut s] } else { vec![&mut c] } {
                    for sum in sums {
                        *sum += coefficient(at) * q[0];
                        at += 1;
                    }
                }
            }
            (0..values).for_each(|k| v[k] += c[k] * power[0] + s[k] * power[1]);
        }
        assert_eq!(at, values * p * p);
        if !singular {
            return v;
        }
        let second = |a: usize, b: usize| {
            if a == 0 {
                4 + b
            } else if a == 1 {
                6 + b
            } else {
                9
            }
        };
        let of = v.clone();
        if values >= 4 {
            let e: f64 = (0..3).map(|i| y[i] * of[1 + i]).sum();
            let a = of[0] + 2.0 * e;
            if values >= 10 {
                let h: Vec<f64> = (0..3).map(|i| (0..3).map(|j| of[second(i.min(j), i.max(j))] * y[j]).sum()).collect();
                let both = 3.0 * a + 6.0 * e + 4.0 * (0..3).map(|i| y[i] * h[i]).sum::<f64>();
                let g: Vec<f64> = (0..3).map(|i| 3.0 * of[1 + i] + 2.0 * h[i]).collect();
                for (i, j) in (0..3).flat_map(|i| (i..3).map(move |j| (i, j))) {
                    let same = if i == j { a } else { 0.0 };
                    let inner = r2 * of[second(i, j)] - (y[j] * g[i] + y[i] * g[j]) - same;
                    v[second(i, j)] = rho * (r2 * inner + y[i] * y[j] * both);
                }
            }
            (0..3).for_each(|i| v[1 + i] = rho * (r2 * of[1 + i] - y[i] * a));
        }
        v[0] *= rho;
        v
    }

    fn agrees(derivatives: usize, outputs: Outputs) {
        let kernels = Kernels::of(&Laplace, outputs).unwrap();
        for p in [1, 2, 3, 8, 17] {
            let expansion = SphericalExpansion::<f64>::new(&kernels, p, SphericalOptions::default()).unwrap();
            let row: Vec<f64> = (0..p * p).map(|i| (1.3 * i as f64 + 0.2).cos()).collect();
            let (series, unit) = (Series::new(derivatives, p), Cube { center: [0.0; 3], side: 1.0 });
            for (x, singular) in [([0.3, -0.2, 0.4], false), ([1.4, -0.9, 2.2], true), ([0.0, 0.0, -1.1], true)] {
                let mut expected = vec![0.0; kernels.far.values];
                if singular {
                    expansion.m2p(unit, &row, &[x], &mut expected);
                } else {
                    expansion.l2p(unit, &row, &[x], &mut expected);
                }
                let found = evaluate(&series, p, &row, x, singular);
                let largest = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-13 * largest * (p * p) as f64);
                assert!(close && found.len() == expected.len(), "p {p} at {x:?}: {found:?} {expected:?}");
                assert!(largest > 1e-3);
            }
        }
    }

    #[test]
    fn values_and_derivatives_are_those_of_the_expansion() {
        agrees(0, Outputs::POTENTIAL);
        agrees(1, Outputs::POTENTIAL | Outputs::GRADIENT);
        agrees(2, Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN);
    }

    /// Where the device knows n and m, it computes β by this formula.
    #[test]
    fn betas_are_rational() {
        let p = 40;
        let series = Series::new(0, p);
        for (n, m) in (2..p).flat_map(|n| (0..n - 1).map(move |m| (n, m))) {
            let expected = ((n + m - 1) * (n - m - 1)) as f64 / ((2 * n - 1) * (2 * n - 3)) as f64;
            assert!((series.betas[n * (n + 1) / 2 + m] - expected).abs() < 1e-14);
        }
    }

    /// Coefficients grow with the degree. At order 40, coefficients must stay far from the limits of f32.
    #[test]
    fn the_largest_order_fits_into_f32() {
        let series = Series::new(2, 40);
        assert!(series.factors.iter().flatten().all(|f| f.abs() < 1e16));
    }
}
