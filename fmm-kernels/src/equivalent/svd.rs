//! Singular value decompositions.
//!
//! The decomposition of nalgebra is fast, but loses digits where two singular values nearly coincide: for kernels
//! between two spheres of 728 points its factors differ from the matrix by 3e-11. A pseudo-inverse amplifies that. So
//! only its right vectors V are taken. The columns of A·V are nearly orthogonal, and rotations by Jacobi make them
//! orthogonal to rounding (Hestenes, *J. Soc. Indust. Appl. Math.* 6 (1958) 51–90): A·V = U·Σ.

use super::matrix::Matrix;
use nalgebra::DMatrix;

/// Steps of nalgebra's decomposition for each column; two are usual.
const MAX_STEPS: usize = 100;
/// Rounds over all pairs of columns; a few are usual.
const MAX_ROUNDS: usize = 30;
/// Two columns are rotated if the cosine of their angle is larger.
const MIN_COSINE: f64 = 1e-15;
/// Rounds end after one that met no larger cosine. Among nearly equal singular values one round may hardly reduce them.
const LAST_COSINE: f64 = 1e-13;
/// A column whose squared length is at most this part of the largest is rounding alone, and is not rotated. Every cutoff
/// of the solves drops it.
const MIN_SQUARE: f64 = 1e-32;

/// The thin decomposition A = U·diag(σ)·Vᵀ of an m × n matrix, with k = min(m, n) singular values.
pub(super) struct Svd {
    /// The left vectors: m × k. Columns of singular values that are rounding alone need not be orthogonal; that of a value 0
    /// is 0.
    pub u: Matrix<f64>,
    /// The singular values, descending.
    pub sigma: Vec<f64>,
    /// The right vectors: n × k. All are 0 if A is 0.
    pub v: Matrix<f64>,
}

impl Svd {
    /// Decomposes `a`. `None` if a number is not finite, or if the rotations do not converge.
    pub fn of(a: &Matrix<f64>) -> Option<Svd> {
        let (m, n, k) = (a.rows, a.cols, a.rows.min(a.cols));
        let largest = a.data.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        if a.data.iter().any(|x| !x.is_finite()) {
            return None;
        }
        if largest == 0.0 {
            let zeros = |rows: usize| Matrix { rows, cols: k, data: vec![0.0; rows * k] };
            return Some(Svd { u: zeros(m), sigma: vec![0.0; k], v: zeros(n) });
        }
        // Squares of tiny numbers would be 0.
        let start = DMatrix::from_iterator(m, n, a.data.iter().map(|x| x / largest));
        let v = start.clone().try_svd_unordered(false, true, f64::EPSILON, MAX_STEPS * k)?.v_t?.transpose();
        let [mut u, mut v] = [&start * &v, v].map(|matrix| Vec::from(matrix.data));
        let squares = orthogonalize(&mut u, m, &mut v, n)?;
        let mut order: Vec<usize> = (0..k).collect();
        order.sort_by(|&i, &j| squares[j].total_cmp(&squares[i]));
        let sorted = |data: &[f64], rows: usize, factor: &dyn Fn(usize) -> f64| {
            let columns = order.iter().flat_map(|&j| data[j * rows..(j + 1) * rows].iter().map(move |x| x * factor(j)));
            Matrix { rows, cols: k, data: columns.collect() }
        };
        let inverse = |j: usize| if squares[j] > 0.0 { squares[j].sqrt().recip() } else { 0.0 };
        Some(Svd {
            u: sorted(&u, m, &inverse),
            sigma: order.iter().map(|&j| largest * squares[j].sqrt()).collect(),
            v: sorted(&v, n, &|_| 1.0),
        })
    }
}

/// Rotates pairs of columns of `u` (m numbers each), but tiny ones, until they are orthogonal, and those of `v` (n numbers
/// each) by the same angles. Returns the squared lengths of the columns of `u`, or `None` if rounds run out.
fn orthogonalize(u: &mut [f64], m: usize, v: &mut [f64], n: usize) -> Option<Vec<f64>> {
    for _ in 0..MAX_ROUNDS {
        let mut squares: Vec<f64> = u.chunks_exact(m).map(|x| dot(x, x)).collect();
        let least = MIN_SQUARE * squares.iter().copied().fold(0.0, f64::max);
        let mut largest: f64 = 0.0;
        for j in 1..squares.len() {
            for i in 0..j {
                if squares[i].min(squares[j]) <= least {
                    continue;
                }
                let (x, y) = pair(u, m, i, j);
                let product = dot(x, y);
                let cosine = product.abs() / (squares[i].sqrt() * squares[j].sqrt());
                if cosine <= MIN_COSINE {
                    continue;
                }
                largest = largest.max(cosine);
                // The smaller of the two angles after which x and y are orthogonal, by its tangent.
                let ratio = (squares[j] - squares[i]) / (2.0 * product);
                let tangent = ratio.signum() / (ratio.abs() + ratio.hypot(1.0));
                rotate(x, y, tangent);
                let (x, y) = pair(v, n, i, j);
                rotate(x, y, tangent);
                squares[i] -= tangent * product;
                squares[j] += tangent * product;
            }
        }
        if largest <= LAST_COSINE {
            return Some(u.chunks_exact(m).map(|x| dot(x, x)).collect());
        }
    }
    None
}

/// Columns `i` < `j`, of `len` numbers each.
fn pair(data: &mut [f64], len: usize, i: usize, j: usize) -> (&mut [f64], &mut [f64]) {
    let (before, after) = data.split_at_mut(j * len);
    (&mut before[i * len..][..len], &mut after[..len])
}

/// (x, y) ← (c·x − s·y, s·x + c·y) for the angle with this tangent.
fn rotate(x: &mut [f64], y: &mut [f64], tangent: f64) {
    let c = tangent.hypot(1.0).recip();
    let s = tangent * c;
    for (x, y) in x.iter_mut().zip(y) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

/// x·y, in eight sums, which the compiler adds up in vectors.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (x, y) in xs.iter().zip(ys) {
        for k in 0..8 {
            sums[k] += x[k] * y[k];
        }
    }
    sums.iter().sum::<f64>() + x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that UΣVᵀ is `a` and that the columns of V and of U are orthonormal. Columns of U for singular values below
    /// 1e-14 of the largest may be rounding alone, and are left out.
    fn check(what: &str, a: &Matrix<f64>) -> Svd {
        let svd = Svd::of(a).unwrap();
        let Svd { u, sigma, v } = &svd;
        assert!(sigma.is_sorted_by(|a, b| a >= b), "{what}");
        let scaled = u.data.chunks(u.rows).zip(sigma).flat_map(|(c, s)| c.iter().map(move |x| x * s)).collect();
        let back = Matrix { data: scaled, ..*u }.times(&v.transposed());
        let error = back.data.iter().zip(&a.data).fold(0.0, |e: f64, (x, y)| e.max((x - y).abs())) / sigma[0];
        let rank = sigma.iter().take_while(|&&s| s > 1e-14 * sigma[0]).count();
        let turned = [(u, rank), (v, v.cols)].map(|(m, count)| {
            let gram = m.transposed().times(m);
            let entries = (0..count).flat_map(|j| (0..count).map(move |i| (i, j)));
            entries.fold(0.0, |e: f64, (i, j)| e.max((gram.view().at(i, j) - f64::from(i == j)).abs()))
        });
        println!("{what}: {error:.1e} {turned:?}, rank {rank}");
        assert!(error < 1e-14 && turned[0] < 1e-13 && turned[1] < 1e-13, "{what}: {error:e} {turned:?}");
        svd
    }

    /// `n` points on a sphere of radius `r`, in a spiral.
    fn sphere(n: usize, r: f64) -> Vec<[f64; 3]> {
        let point = |i: usize| {
            let z = 1.0 - (2 * i + 1) as f64 / n as f64;
            let (s, c) = (2.399_963 * i as f64).sin_cos();
            let across = (1.0 - z * z).sqrt();
            [r * across * c, r * across * s, r * z]
        };
        (0..n).map(point).collect()
    }

    fn between(targets: &[[f64; 3]], sources: &[[f64; 3]]) -> Matrix<f64> {
        let inverse = |x: &[f64; 3], y: &[f64; 3]| (0..3).map(|a| (x[a] - y[a]).powi(2)).sum::<f64>().sqrt().recip();
        let data = sources.iter().flat_map(|y| targets.iter().map(move |x| inverse(x, y))).collect();
        Matrix { rows: targets.len(), cols: sources.len(), data }
    }

    /// Kernels between spheres have multiplets of 1, 3, 5, … nearly equal singular values.
    #[test]
    fn factors_give_back_the_matrix() {
        for n in [1, 2, 3, 19, 125, 364] {
            check(&format!("two spheres of {n}"), &between(&sphere(n, 2.9), &sphere(n, 1.0)));
        }
        check("more rows", &between(&sphere(90, 2.9), &sphere(40, 1.0)));
        check("more columns", &between(&sphere(40, 2.9), &sphere(90, 1.0)));
        check("one row", &between(&sphere(1, 2.9), &sphere(9, 1.0)));
        let numbers = |n: usize| (0..n).map(|i| (i as f64 * i as f64 * 0.7).sin()).collect();
        check("no order", &Matrix { rows: 60, cols: 60, data: numbers(3600) });
        let identity: Vec<f64> = (0..400).map(|i| f64::from(i % 21 == 0)).collect();
        let svd = check("identity", &Matrix { rows: 20, cols: 20, data: identity });
        assert!(svd.sigma.iter().all(|s| (s - 1.0).abs() < 1e-15));
        let mut twice: Vec<f64> = numbers(300);
        twice.extend_from_within(..);
        let svd = check("columns that occur twice", &Matrix { rows: 30, cols: 20, data: twice });
        assert!(svd.sigma[9] > 1e-3 && svd.sigma[10] < 1e-14 * svd.sigma[0]);
        let mut tiny = between(&sphere(30, 2.9), &sphere(30, 1.0));
        tiny.data.iter_mut().for_each(|x| *x *= 1e-200);
        check("tiny", &tiny);
    }

    /// The case for which nalgebra alone errs by 3e-11.
    #[test]
    fn values_that_nearly_coincide() {
        check("two spheres of 728", &between(&sphere(728, 2.9), &sphere(728, 1.0)));
    }

    /// Nine singular values at 1e-8 of the largest that differ by 1e-9 of themselves.
    #[test]
    fn a_cluster_of_small_values() {
        let numbers = |n: usize, step: f64| (0..n * n).map(|i| (i as f64 * i as f64 * step).sin()).collect();
        let [left, right] =
            [0.7, 1.3].map(|step| Svd::of(&Matrix { rows: 40, cols: 40, data: numbers(40, step) }).unwrap().u);
        let sigma = |k: usize| match k {
            0..20 => 0.5f64.powi(k as i32),
            20..29 => 1e-8 * (1.0 + 1e-9 * k as f64),
            _ => 1e-10 * 0.5f64.powi(k as i32 - 29),
        };
        let scaled = left.data.chunks(40).enumerate().flat_map(|(k, c)| c.iter().map(move |x| x * sigma(k))).collect();
        let svd = check("a cluster", &Matrix { data: scaled, ..left }.times(&right.transposed()));
        assert!(svd.sigma.iter().enumerate().all(|(k, s)| (s - sigma(k)).abs() < 1e-15), "{:?}", svd.sigma);
    }

    /// Singular values that fall by dozens of orders, in part below the smallest number.
    #[test]
    fn values_that_vanish() {
        for decay in [3.0, 10.0, 40.0, 200.0, 300.0, 600.0] {
            for squared in [false, true] {
                let (targets, sources) = (sphere(60, 2.9), sphere(60, 1.0));
                let mut a = between(&targets, &sources);
                let decayed = |x: f64| (-decay * if squared { x.powi(-2) } else { x.recip() }).exp();
                a.data.iter_mut().for_each(|x| *x = decayed(*x));
                if a.data.iter().any(|x| *x > 0.0) {
                    check(&format!("decay {decay} {squared}"), &a);
                }
            }
        }
    }

    #[test]
    fn nothing_and_zeros() {
        for (rows, cols) in [(0, 0), (0, 3), (3, 0), (4, 3)] {
            let svd = Svd::of(&Matrix { rows, cols, data: vec![0.0; rows * cols] }).unwrap();
            assert_eq!((svd.sigma.len(), svd.u.rows, svd.v.rows), (rows.min(cols), rows, cols));
        }
        for x in [f64::NAN, f64::INFINITY] {
            assert!(Svd::of(&Matrix { rows: 2, cols: 2, data: vec![1.0, 0.0, x, 1.0] }).is_none());
        }
    }
}
