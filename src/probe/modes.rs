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
//! **Estimator.** The power sums of λ follow from the rows √w u of several sets, without eigenvalues. Let uₛ be the row
//! of set s. Then E|uₛ|² = Σλ, E(uₛ·uₜ)² = Σλ² and E(uₛ·uₜ)(uₜ·uᵣ)(uᵣ·uₛ) = Σλ³ for three different sets s, t, r.
//!
//! **Confidence.** The variable a + b χ²_ν with the same three moments stands for S (Imhof, *Biometrika* 48 (1961)
//! 419–426, §4). The lower 2 % point of a norm is a point of this variable. The upper 99.5 % point of an error needs
//! only the first two moments ([`Modes::above`]).

/// Upper 99.5 % point of a normal variable, in standard deviations. An error exceeds its upper point in one of 200
/// sets.
const ERROR_POINT: f64 = 2.576;
/// Probability that the norm of the sums is below its lower point. The 2 of 100 sets with the smallest norm
/// count as cancellation, and the bound does not cover them. If one mode dominates, each further digit of this
/// probability would make the bound ten times as large.
const SMALL_NORM_PROBABILITY: f64 = 0.02;
/// Distance of the lower 2 % point of a normal variable from its mean, in standard deviations.
const NORM_POINT: f64 = 2.054;

/// Power sums of the eigenvalues λ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// Σλ.
    pub mean: f64,
    /// Σλ²/(Σλ)².
    second: f64,
    /// Σλ³/(Σλ)³.
    third: f64,
    /// Number of sets of strengths behind the estimates.
    sets: usize,
}

impl Modes {
    /// Estimates from the rows √w u of several sets, one row per set. `None` for fewer than two sets, and if the sums
    /// vanish.
    pub fn of(rows: &[Vec<f64>]) -> Option<Modes> {
        let sets = rows.len();
        let dot = |s: usize, t: usize| rows[s].iter().zip(&rows[t]).map(|(a, b)| a * b).sum::<f64>();
        let gram: Vec<Vec<f64>> = (0..sets).map(|s| (0..sets).map(|t| dot(s, t)).collect()).collect();
        let (mut pairs, mut triples) = ([0.0; 2], [0.0; 2]);
        for s in 0..sets {
            for t in 0..s {
                pairs[0] += gram[s][t].powi(2);
                pairs[1] += gram[s][s] * gram[t][t];
                for r in 0..t {
                    triples[0] += gram[s][t] * gram[t][r] * gram[r][s];
                    triples[1] += gram[s][s] * gram[t][t] * gram[r][r];
                }
            }
        }
        let second = pairs[0] / pairs[1];
        let third = if triples[1] > 0.0 { triples[0] / triples[1] } else { 0.0 };
        let mean = (0..sets).map(|s| gram[s][s]).sum::<f64>() / sets as f64;
        let normal = second > 0.0 && second <= 1.0 + 1e-9 && third.is_finite();
        normal.then_some(Modes { mean, second, third, sets })
    }

    /// The number of equal modes with the same variance of S/Σλ: (Σλ)²/Σλ².
    pub fn number(self) -> f64 {
        1.0 / self.second
    }

    /// ln(Σλ / lower 2 % point of S). The larger of two estimates of the point counts: by two moments, and by three.
    pub fn below(self) -> f64 {
        let plain = lower_point(self.number());
        // Many small modes beside a large mode give S a floor, which the large mode alone does not have. The third
        // moment tells the two cases apart.
        let skew = (self.second.powi(3) / self.third.powi(2)).min(self.number()).max(1.0);
        let shifted = 1.0 - self.second.sqrt() * (1.0 - lower_point(skew)) * skew.sqrt();
        let point = if self.third > 0.0 { plain.max(shifted) } else { plain };
        -point.min(1.0).ln()
    }

    /// ln(upper 99.5 % point of S of a further set / mean of S over the measured sets). This quotient is one of two χ²
    /// variables, so its logarithm is nearly normal (Fisher's z).
    pub fn above(self) -> f64 {
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

/// The lower 2 % point of χ²_ν/ν: from the first term of its series for small ν, by Wilson and Hilferty for larger ν.
fn lower_point(nu: f64) -> f64 {
    if nu < 4.85 {
        2.0 * (SMALL_NORM_PROBABILITY * gamma_of_next(0.5 * nu)).powf(2.0 / nu) / nu
    } else {
        let variance = 2.0 / (9.0 * nu);
        (1.0 - variance - NORM_POINT * variance.sqrt()).powi(3)
    }
}

/// Coefficients cₖ of Γ(1 + x) = Σ cₖ xᵏ for x in 0..1, to 5e-5 (Abramowitz and Stegun 6.1.35).
const GAMMA_COEFFICIENTS: [f64; 6] = [1.0, -0.574_864_6, 0.951_236_3, -0.699_858_8, 0.424_554_9, -0.101_067_8];

/// Γ(1 + x) for x ≥ 0.
fn gamma_of_next(mut x: f64) -> f64 {
    let mut factor = 1.0;
    while x > 1.0 {
        factor *= x;
        x -= 1.0;
    }
    factor * GAMMA_COEFFICIENTS.iter().rev().fold(0.0, |sum, term| sum * x + term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The lower 2 % point of Σ λ z², estimated from 16 sets, against the point of 20 000 draws. On average the
    /// estimate is at most 1.4 times too large (falling λ, whose small modes 16 sets hardly show): a fifth of a norm.
    #[test]
    fn points_are_those_of_the_distribution() {
        let spectra: [(&str, Vec<f64>); 5] = [
            ("one", vec![1.0]),
            ("three", vec![1.0; 3]),
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
                (0.4..1.45).contains(&mean.exp()) && most < 2.5 && least > 0.1,
                "{what}: {} {least} {most}",
                mean.exp()
            );
        }
    }
}
