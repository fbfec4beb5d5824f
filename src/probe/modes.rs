//! Percentage points of a weighted square sum over targets, for random normal strengths.
//!
//! **Random variable.** S = Σᵢ wᵢ|uᵢ|², with the sum uᵢ at target i and its weight wᵢ. S varies from one set of
//! strengths to the next. The sums u are linear in the strengths. So for independent normal strengths S is distributed
//! as Σₖ λₖ zₖ² with independent standard normal zₖ. The λₖ are the eigenvalues of the covariance of √w u. A *mode* is
//! one term of this sum.
//!
//! If one λ outweighs the others, S is often close to 0. For example, targets far from all sources see little but the
//! net strength. If many λ are alike, S hardly varies. The same holds for errors e in place of u.
//!
//! **Estimator.** The power sums of λ follow from the rows √w u of several sets. Let uₛ be the row
//! of set s. Then E|uₛ|² = Σλ, E(uₛ·uₜ)² = Σλ² and E(uₛ·uₜ)(uₜ·uᵣ)(uᵣ·uₛ) = Σλ³ for three different sets s, t, r.
//!
//! **Confidence.** The lower 2 % point of a norm is the larger of two points. One is that of a sum with the same three
//! moments: one mode beside equal modes. It is close for many modes. The other takes the eigenvalues of the Gram matrix
//! of the rows for the λₖ. It is close for few modes, of which 16 sets show each. Either estimate errs towards 0 where
//! the other one is close. Both points are those of the saddlepoint approximation of Barndorff-Nielsen (*Biometrika* 73
//! (1986) 307–322). The upper 99.5 % point of an error needs only the first two moments ([`Modes::above`]).

use nalgebra::{DMatrix, SymmetricEigen};

/// Upper 99.5 % point of a normal variable, in standard deviations. An error exceeds its upper point in one of 200
/// sets.
const ERROR_POINT: f64 = 2.576;
/// Distance of the lower 2 % point of a normal variable from its mean, in standard deviations. The 2 of 100 sets with the
/// smallest norm count as cancellation, and the bound does not cover them. If one mode dominates, each further digit of
/// this probability would make the bound ten times as large.
const NORM_POINT: f64 = 2.054;
/// Steps of an eigenvalue decomposition; fewer than a hundred are usual.
const MAX_EIGEN_STEPS: usize = 10_000;

/// What the rows of several sets tell of the eigenvalues λ.
#[derive(Clone, Debug)]
pub(crate) struct Modes {
    /// Σλ.
    pub mean: f64,
    /// Σλ²/(Σλ)².
    second: f64,
    /// Σλ³/(Σλ)³.
    third: f64,
    /// Eigenvalues of the Gram matrix of the rows, divided by their sum.
    of_gram: Vec<f64>,
    /// Number of sets of strengths behind the estimates.
    sets: usize,
}

impl Modes {
    /// Estimates from the rows √w u of several sets, one row per set. `None` for fewer than two sets, if the sums
    /// vanish, and if the eigenvalues do not converge.
    pub fn of(rows: &[Vec<f64>]) -> Option<Modes> {
        let sets = rows.len();
        let dot = |s: usize, t: usize| rows[s].iter().zip(&rows[t]).map(|(a, b)| a * b).sum::<f64>();
        let gram = DMatrix::from_fn(sets, sets, dot);
        let (mut pairs, mut triples) = ([0.0; 2], [0.0; 2]);
        for s in 0..sets {
            for t in 0..s {
                pairs[0] += gram[(s, t)].powi(2);
                pairs[1] += gram[(s, s)] * gram[(t, t)];
                for r in 0..t {
                    triples[0] += gram[(s, t)] * gram[(t, r)] * gram[(r, s)];
                    triples[1] += gram[(s, s)] * gram[(t, t)] * gram[(r, r)];
                }
            }
        }
        let second = pairs[0] / pairs[1];
        let third = if triples[1] > 0.0 { triples[0] / triples[1] } else { 0.0 };
        let trace = (0..sets).map(|s| gram[(s, s)]).sum::<f64>();
        let normal = second > 0.0 && second <= 1.0 + 1e-9 && third.is_finite() && trace.is_finite();
        if !normal {
            return None;
        }
        let of_gram = SymmetricEigen::try_new(gram / trace, f64::EPSILON, MAX_EIGEN_STEPS)?.eigenvalues;
        Some(Modes {
            mean: trace / sets as f64,
            second: second.min(1.0),
            third,
            of_gram: of_gram.iter().map(|lambda| lambda.max(0.0)).collect(),
            sets,
        })
    }

    /// ln(Σλ / lower 2 % point of S).
    pub fn below(&self) -> f64 {
        let of_gram: Vec<Equal> = self.of_gram.iter().map(|&value| Equal { value, number: 1.0 }).collect();
        let point = lower_point(&one_beside_equals(self.second, self.third)).max(lower_point(&of_gram));
        -point.min(1.0).ln()
    }

    /// ln(upper 99.5 % point of S of a further set / mean of S over the measured sets). This quotient is one of two χ²
    /// variables, so its logarithm is nearly normal (Fisher's z).
    pub fn above(&self) -> f64 {
        ERROR_POINT * (2.0 * self.second * (1.0 + 1.0 / self.sets as f64)).sqrt()
    }
}

/// The row √w u over the given `columns`, from one row of `values` numbers per target. A target with |u|² above `most`
/// is scaled to |u|² = `most`.
pub(crate) fn weighted(rows: &[f64], values: usize, columns: &[usize], weights: &[f64], most: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(weights.len() * columns.len());
    for (row, weight) in rows.chunks_exact(values).zip(weights) {
        let square: f64 = columns.iter().map(|&c| row[c].powi(2)).sum();
        let factor = weight.sqrt() * if square > most { (most / square).sqrt() } else { 1.0 };
        out.extend(columns.iter().map(|&c| factor * row[c]));
    }
    out
}

/// Some equal eigenvalues, of which there need not be a whole number.
#[derive(Clone, Copy, Debug)]
struct Equal {
    value: f64,
    number: f64,
}

/// One eigenvalue beside equal ones, with Σλ = 1, Σλ² = `second` and Σλ³ as close to `third` as can be. The one is x,
/// and each of the others is y with y(1 − x) = Σλ² − x². So Σλ³ = x³ + (Σλ² − x²)²/(1 − x), which grows from (Σλ²)² at
/// x = Σλ² to the largest possible number at x² = Σλ².
fn one_beside_equals(second: f64, third: f64) -> [Equal; 2] {
    let cubes = |x: f64| if x < 1.0 { x.powi(3) + (second - x * x).powi(2) / (1.0 - x) } else { 1.0 };
    let one = bisect(second, second.sqrt(), |x| cubes(x) < third);
    let rest = 1.0 - one;
    let value = if rest > 0.0 { (second - one * one).max(0.0) / rest } else { 0.0 };
    // Infinitely many eigenvalues 0 make up a constant. So many have the same effect.
    let value = value.max(1e-9 * rest);
    [Equal { value: one, number: 1.0 }, Equal { value, number: if value > 0.0 { rest / value } else { 0.0 } }]
}

/// The lower 2 % point of Σ λ z². At −t the cumulant function is K = −½ Σ ln(1 + 2λt) and the point is K′. With the signed
/// root w of 2(−tK′ − K) and u = −t√K″, the variable w + ln(u/w)/w is standard normal to third order.
fn lower_point(modes: &[Equal]) -> f64 {
    let sum = |of: &dyn Fn(f64) -> f64| modes.iter().map(|m| m.number * of(m.value)).sum::<f64>();
    let point = |t: f64| sum(&|value| value / (1.0 + 2.0 * value * t));
    let deviations = |t: f64| {
        let cumulant = -0.5 * sum(&|value| (2.0 * value * t).ln_1p());
        let variance = 2.0 * sum(&|value| (value / (1.0 + 2.0 * value * t)).powi(2));
        let (w, u) = (-(2.0 * (-t * point(t) - cumulant)).sqrt(), -t * variance.sqrt());
        w + (u / w).ln() / w
    };
    let deviation = (2.0 * sum(&|value| value * value)).sqrt();
    if deviation.is_nan() || deviation <= 0.0 {
        return 0.0;
    }
    let logarithm = bisect((0.1 / deviation).ln(), 30.0, |log| deviations(log.exp()) > -NORM_POINT);
    point(logarithm.exp())
}

/// The place in `low..high` at which `below` turns from true to false.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The lower 2 % point of Σ λ z², estimated from 16 sets, against the point of 20 000 draws. On average the
    /// estimate is at most 1.1 times too large, and at most 1.5 times too small (one mode above many).
    #[test]
    fn points_are_those_of_the_distribution() {
        let spectra: [(&str, Vec<f64>); 7] = [
            ("one", vec![1.0]),
            ("three", vec![1.0; 3]),
            ("two of different size", vec![0.74, 0.25, 0.009, 0.001]),
            ("one far above few", vec![0.89, 0.08, 0.009, 0.0086, 0.0079]),
            ("one above many", [vec![1.0], vec![0.01; 100]].concat()),
            ("falling", (1..40).map(|k| f64::from(k).powi(-2)).collect()),
            ("many", vec![1.0; 300]),
        ];
        for (what, lambda) in spectra {
            let mut rng = Rng::new(5);
            let mut sums: Vec<f64> =
                (0..20_000).map(|_| lambda.iter().map(|l| l * rng.normal().powi(2)).sum()).collect();
            sums.sort_unstable_by(f64::total_cmp);
            let point = sums[sums.len() / 50] / lambda.iter().sum::<f64>();
            let told: Vec<f64> = (0..40)
                .map(|_| {
                    let row = |rng: &mut Rng| lambda.iter().map(|l| l.sqrt() * rng.normal()).collect();
                    let rows: Vec<Vec<f64>> = (0..16).map(|_| row(&mut rng)).collect();
                    (-Modes::of(&rows).unwrap().below()).exp() / point
                })
                .collect();
            let (least, most) = told.iter().fold((f64::INFINITY, 0.0f64), |(a, b), &t| (a.min(t), b.max(t)));
            let mean = told.iter().map(|t| t.ln()).sum::<f64>() / told.len() as f64;
            println!("{what}: {point:.5}, told {:.3} ({least:.3} to {most:.3})", mean.exp());
            // The root of each quotient enters a bound.
            assert!(
                (0.6..1.2).contains(&mean.exp()) && most < 2.0 && least > 0.3,
                "{what}: {} {least} {most}",
                mean.exp()
            );
        }
    }
}
