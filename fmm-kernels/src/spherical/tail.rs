//! What a translation loses of one pair of points, exactly: 1/|x − y| less the terms of its double series that are kept.
//!
//! With x about the centre of its box, y about that of its own and d from the second to the first,
//!
//! |d + t x − s y|^(2a) = Q(s, t)^a = Σ f_nl sⁿ tˡ, Q = Σ c_ij sⁱ tʲ a quadratic,
//!
//! and f_nl at a = −1/2 is what degree n of the multipole gives to degree l of the local. From Q ∂f/∂s = a f ∂Q/∂s, with c₀₀ = 1,
//!
//! (n + 1) f_(n+1)l = (a − n)(c₁₀ f_nl + c₁₁ f_n(l−1)) + (2a − n + 1) c₂₀ f_(n−1)l − (n + 1)(c₀₁ f_(n+1)(l−1) + c₀₂ f_(n+1)(l−2)):
//!
//! no harmonics, no rotations. Derivatives by x are −t w Q^(−3/2) and t²(3 w wᵀ Q^(−5/2) − Q^(−3/2)), w = d + t x − s y: sums of
//! the terms of two further powers.

use fmm_traits::SimdLane;

/// The powers of Q behind value, gradient and Hessian, doubled.
const POWERS: [f64; 3] = [-1.0, -3.0, -5.0];

/// The lanes of a vector, at most.
pub const LANES: usize = 16;

/// A pair of points.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pair {
    /// From the centre of the source box to that of the target.
    pub d: [f64; 3],
    /// Target about its centre; 0 if there is no local.
    pub x: [f64; 3],
    /// Source about its centre; 0 if there is no multipole.
    pub y: [f64; 3],
}

impl Pair {
    fn w(&self) -> [f64; 3] {
        std::array::from_fn(|a| self.d[a] + self.x[a] - self.y[a])
    }

    /// Squares of 1/|x − y|, of its gradient and of its Hessian (all nine entries).
    pub fn whole(&self) -> [f64; 3] {
        let [a, b, c] = self.w();
        let r = 1.0 / (a * a + b * b + c * c);
        [r, r * r, 6.0 * r * r * r]
    }
}

/// Sums of terms, of as many pairs as a vector has lanes.
#[derive(Clone, Debug, Default)]
pub struct Series {
    degrees: usize,
    width: usize,
    outputs: usize,
    /// By output: Σ of the terms below n and l, (degrees + 1)² vectors.
    sums: [Vec<f64>; 3],
    pairs: [Pair; LANES],
}

impl Series {
    /// The terms below `degrees` (at least 3) in either box of up to [`LANES`] pairs, as many as V has lanes, for value (`outputs` = 1), gradient (2)
    /// and Hessian (3).
    #[inline(always)]
    pub fn fill<V: SimdLane<Scalar = f64>>(
        &mut self,
        degrees: usize,
        outputs: usize,
        pairs: &[Pair],
        terms: &mut Vec<V>,
    ) {
        const { assert!(V::WIDTH <= LANES) };
        (self.degrees, self.width, self.outputs) = (degrees.max(3), V::WIDTH, outputs.min(3));
        self.pairs[..V::WIDTH].copy_from_slice(&pairs[..V::WIDTH]);
        let mut lanes = [[0.0; LANES]; 6];
        for (k, Pair { d, x, y }) in self.pairs.iter().enumerate() {
            let dot = |a: &[f64; 3], b: &[f64; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
            let all = [dot(d, d), -2.0 * dot(d, y), 2.0 * dot(d, x), dot(y, y), -2.0 * dot(x, y), dot(x, x)];
            (0..6).for_each(|i| lanes[i][k] = all[i]);
        }
        // SAFETY: each row has LANES numbers, and V has no more (asserted above).
        let [c00, rest @ ..] = lanes.map(|row| unsafe { V::load(row.as_ptr()) });
        let inverse = V::splat(1.0) / c00;
        let c = rest.map(|c| c * inverse);
        for k in 0..self.outputs {
            let mut first = inverse.sqrt();
            (0..k).for_each(|_| first = first * inverse);
            self.power(k, first, c, terms);
        }
    }

    /// The sums of output `k`.
    #[inline(always)]
    fn power<V: SimdLane<Scalar = f64>>(
        &mut self,
        k: usize,
        first: V,
        [c10, c01, c20, c11, c02]: [V; 5],
        terms: &mut Vec<V>,
    ) {
        let (p, a) = (self.degrees, 0.5 * POWERS[k]);
        let zero = V::splat(0.0);
        terms.clear();
        // Two columns of zeros in front of each row, a row of them before the first; sums of the rows so far.
        let stride = p + 2;
        terms.resize((p + 2) * stride, zero);
        let at = |n: usize, l: usize| (n + 1) * stride + l + 2;
        terms[at(0, 0)] = first;
        for l in 1..p {
            let k = l as f64;
            let [one, two] = [(a - k + 1.0) / k, (2.0 * a - k + 2.0) / k].map(V::splat);
            terms[at(0, l)] = (one * c01).mul_add(terms[at(0, l) - 1], two * c02 * terms[at(0, l) - 2]);
        }
        for n in 1..p {
            let k = n as f64;
            let [one, two] = [(a - k + 1.0) / k, (2.0 * a - k + 2.0) / k].map(V::splat);
            let [c10, c11, c20] = [one * c10, one * c11, two * c20];
            let before = if n > 1 { at(n - 2, 0) } else { 2 };
            for l in 0..p {
                let (i, j) = (at(n, l), at(n - 1, l));
                let known = c10.mul_add(terms[j], c11.mul_add(terms[j - 1], c20 * terms[before + l]));
                terms[i] = known - c01.mul_add(terms[i - 1], c02 * terms[i - 2]);
            }
        }
        let sums = &mut self.sums[k];
        sums.clear();
        sums.resize((p + 1) * (p + 1) * V::WIDTH, 0.0);
        let mut above = vec![zero; p + 1];
        for n in 0..p {
            let mut row = zero;
            for l in 0..p {
                row = row + terms[at(n, l)];
                above[l + 1] = above[l + 1] + row;
                let to = &mut sums[((n + 1) * (p + 1) + l + 1) * V::WIDTH..][..V::WIDTH];
                // SAFETY: `to` has as many numbers as V.
                unsafe { above[l + 1].store(to.as_mut_ptr()) };
            }
        }
    }

    /// Squares of what `n` degrees of the source and `l` of the target leave of value, gradient and Hessian in lane `lane`.
    #[inline(always)]
    pub fn left(&self, lane: usize, n: usize, l: usize) -> [f64; 3] {
        let Pair { d, x, y } = self.pairs[lane];
        let sum = |k: usize, n: usize, l: usize| self.sums[k][(n * (self.degrees + 1) + l) * self.width + lane];
        let w = self.pairs[lane].w();
        let r2 = w[0] * w[0] + w[1] * w[1] + w[2] * w[2];
        let r = 1.0 / r2.sqrt();
        let mut left = [0.0; 3];
        left[0] = (r - sum(0, n, l)).powi(2);
        if self.outputs > 1 {
            let [a, b, c] =
                [sum(1, n, l.saturating_sub(1)), sum(1, n, l.saturating_sub(2)), sum(1, n - 1, l.saturating_sub(1))];
            let whole = r / r2;
            left[1] = (0..3).map(|i| (whole * w[i] - (a * d[i] + b * x[i] - c * y[i])).powi(2)).sum();
        }
        if self.outputs > 2 {
            let h = |dn: usize, dl: usize| sum(2, n.saturating_sub(dn), l.saturating_sub(dl));
            let [dd, dx, dy, xx, xy, yy] = [h(0, 2), h(0, 3), h(1, 2), h(0, 4), h(1, 3), h(2, 2)];
            let (trace, fifth, third) = (sum(1, n, l.saturating_sub(2)), 3.0 * r / (r2 * r2), r / r2);
            for i in 0..3 {
                for j in 0..3 {
                    let kept = dd * d[i] * d[j] + dx * (d[i] * x[j] + x[i] * d[j]) - dy * (d[i] * y[j] + y[i] * d[j])
                        + xx * x[i] * x[j]
                        - xy * (x[i] * y[j] + y[i] * x[j])
                        + yy * y[i] * y[j];
                    let diagonal = if i == j { third - trace } else { 0.0 };
                    left[2] += (fifth * w[i] * w[j] - 3.0 * kept - diagonal).powi(2);
                }
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SphericalExpansion, SphericalOptions, Translation, Truncation};
    use super::*;
    use crate::Laplace;
    use fmm_traits::testkit::clouds::Generator;
    use fmm_traits::{Cloud, Cube, Expansion, Hessian};

    type Harmonics = SphericalExpansion<Laplace, f64, Hessian<Laplace>, Hessian<Laplace>>;

    /// Value, gradient and Hessian as squares.
    fn squares(v: &[f64]) -> [f64; 3] {
        let square = |x: f64| x * x;
        let sum = |range: std::ops::Range<usize>| v[range].iter().map(|&x| square(x)).sum::<f64>();
        [sum(0..1), sum(1..4), sum(4..10) + square(v[5]) + square(v[6]) + square(v[8])]
    }

    #[test]
    fn what_is_left_is_the_error_of_the_operators() {
        let mut g = Generator::new(3);
        let options = SphericalOptions { translation: Translation::Rcr, truncation: Truncation::Fixed };
        for d in [[2.0, 0.0, 0.0], [2.0, -1.0, 1.0], [0.0, 3.0, 2.0], [-2.0, 2.0, 2.0]] {
            let [source, target] = [[0.0; 3], d].map(|center| Cube { center, side: 1.0 });
            let mut inside = |c: Cube| -> [f64; 3] { c.center.map(|c| c + 0.98 * (g.uniform() - 0.5)) };
            let (y, at) = (inside(source), inside(target));
            let pair = Pair { d, x: std::array::from_fn(|a| at[a] - d[a]), y };
            let mut series = Series::default();
            series.fill::<f64>(20, 3, &[pair], &mut Vec::new());
            let sources = Cloud { xyz: &[y], strengths: &[1.0] };
            for p in [1, 2, 3, 5, 8, 13, 20] {
                let x = Harmonics::new(&Laplace, p, options).unwrap();
                let (mut m, mut l, mut found, mut exact) = (vec![0.0; p * p], vec![0.0; p * p], [0.0; 10], [0.0; 10]);
                x.p2m(source, sources, &mut m);
                x.m2l(target, source, &m, &mut l);
                x.l2p(target, &l, &[at], &mut found);
                x.p2p(sources, &[at], false, &mut exact);
                let expected = squares(&std::array::from_fn::<f64, 10, _>(|i| found[i] - exact[i]));
                let left = series.left(0, p, p);
                for k in 0..3 {
                    let [a, b] = [left[k].sqrt(), expected[k].sqrt()];
                    assert!((a - b).abs() < 1e-6 * b + 1e-13, "{d:?} {p} {k}: {a} {b}");
                }
                // A multipole alone, and a local alone.
                let [mut found, mut other] = [[0.0; 10]; 2];
                x.m2p(source, &m, &[at], &mut found);
                l.fill(0.0);
                x.p2l(target, source, sources, &mut l);
                x.l2p(target, &l, &[at], &mut other);
                let alone = [
                    Pair { d: at, x: [0.0; 3], y },
                    Pair { d: std::array::from_fn(|a| d[a] - y[a]), x: pair.x, y: [0.0; 3] },
                ];
                for (found, pair, [n, l]) in [(found, alone[0], [p, 20]), (other, alone[1], [20, p])] {
                    let mut series = Series::default();
                    series.fill::<f64>(20, 3, &[pair], &mut Vec::new());
                    let (left, expected) =
                        (series.left(0, n, l), squares(&std::array::from_fn::<f64, 10, _>(|i| found[i] - exact[i])));
                    for k in 0..3 {
                        let [a, b] = [left[k].sqrt(), expected[k].sqrt()];
                        assert!((a - b).abs() < 1e-6 * b + 1e-13, "{d:?} {p} {k} alone: {a} {b}");
                    }
                }
            }
            let whole = squares(&{
                let (x, mut exact) = (Harmonics::new(&Laplace, 1, options).unwrap(), [0.0; 10]);
                x.p2p(sources, &[at], false, &mut exact);
                exact
            });
            assert!(pair.whole().iter().zip(whole).all(|(a, b)| (a - b).abs() < 1e-12 * b), "{d:?}");
        }
    }
}
