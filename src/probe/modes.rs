//! How far sums of random strengths scatter from one set of strengths to another.
//!
//! Sums are linear in the strengths q, so for independent normal strengths S = Σᵢ wᵢ|uᵢ|² is distributed as Σₖ λₖ zₖ² with normal zₖ:
//! λ are the eigenvalues of the covariance of √w u. Where one λ outweighs the others – targets far from all sources see little but the
//! net strength – S is often close to 0; where many are alike it hardly moves. The same holds for errors.
//!
//! Moments of λ come from rows of several sets s, t, r, without eigenvalues: E|uₛ|² = Σλ, E(uₛ·uₜ)² = Σλ², and
//! E(uₛ·uₜ)(uₜ·uᵣ)(uᵣ·uₛ) = Σλ³ for s ≠ t ≠ r. The points of S follow from them as those of a + b χ²_ν with the same moments (Imhof,
//! *Biometrika* 48 (1961) 419–426, §4).

/// Standard deviations at the upper 99.5 % point of a normal variable: errors are above theirs once in 200 sets.
const ERROR_POINT: f64 = 2.576;
/// How likely the norm of the sums may be below its lower point, and the standard deviations there. Strengths that cancel more than
/// 98 in 100 sets do are no longer called normal: one mode alone would make the bound ten times as large for each further digit.
const NORM_BELOW: f64 = 0.02;
const NORM_POINT: f64 = 2.054;

/// Moments of λ, in units of Σλ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// Σλ.
    pub mean: f64,
    second: f64,
    third: f64,
    /// Sets of strengths that told.
    sets: usize,
}

impl Modes {
    /// Of the rows √w u of several sets; none of fewer than two, or where sums vanish.
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

    /// How many modes of equal weight would scatter as much: 1/Σλ².
    pub fn number(self) -> f64 {
        1.0 / self.second
    }

    /// ln of the quotient of Σλ and the lower 2 % point of S.
    pub fn below(self) -> f64 {
        let plain = lower_point(self.number());
        // The third moment tells a floor of many small modes from one mode alone.
        let skew = (self.second.powi(3) / self.third.powi(2)).min(self.number()).max(1.0);
        let shifted = 1.0 - self.second.sqrt() * (1.0 - lower_point(skew)) * skew.sqrt();
        let point = if self.third > 0.0 { plain.max(shifted) } else { plain };
        -point.min(1.0).ln()
    }

    /// ln of the quotient of the upper 99.5 % point of S of a further set and the mean over the sets there are: a quotient of two χ²,
    /// whose logarithm is nearly normal (Fisher's z).
    pub fn above(self) -> f64 {
        ERROR_POINT * (2.0 * self.second * (1.0 + 1.0 / self.sets as f64)).sqrt()
    }
}

/// √w u of some columns of rows of `values` numbers; targets with |u|² above `most` are shortened to that.
pub(crate) fn weighted(rows: &[f64], values: usize, columns: &[usize], weights: &[f64], most: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(weights.len() * columns.len());
    for (row, weight) in rows.chunks_exact(values).zip(weights) {
        let square: f64 = columns.iter().map(|&c| row[c].powi(2)).sum();
        let factor = weight.sqrt() * if square > most { (most / square).sqrt() } else { 1.0 };
        out.extend(columns.iter().map(|&c| factor * row[c]));
    }
    out
}

/// The lower 2 % point of χ²_ν/ν: from the first term of its series for small ν, by Wilson and Hilferty for others.
fn lower_point(nu: f64) -> f64 {
    if nu < 4.85 {
        2.0 * (NORM_BELOW * gamma_of_next(0.5 * nu)).powf(2.0 / nu) / nu
    } else {
        let variance = 2.0 / (9.0 * nu);
        (1.0 - variance - NORM_POINT * variance.sqrt()).powi(3)
    }
}

/// Γ(1 + x) = Σ terms xᵏ for x in 0..1, to 5e-5 (Abramowitz and Stegun 6.1.35).
const TERMS: [f64; 6] = [1.0, -0.574_864_6, 0.951_236_3, -0.699_858_8, 0.424_554_9, -0.101_067_8];

/// Γ(1 + x) for x ≥ 0.
fn gamma_of_next(mut x: f64) -> f64 {
    let mut factor = 1.0;
    while x > 1.0 {
        factor *= x;
        x -= 1.0;
    }
    factor * TERMS.iter().rev().fold(0.0, |sum, term| sum * x + term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The points of Σ λ z² that are told from 16 sets are those of many draws.
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
            // Roots of these quotients enter a bound.
            assert!(
                (0.4..1.35).contains(&mean.exp()) && most < 2.5 && least > 0.1,
                "{what}: {} {least} {most}",
                mean.exp()
            );
        }
    }
}
