//! From errors at sampled targets to a bound of the error at all of them.
//!
//! A relative ℓ2 error is E/U with E² = Σᵢ |eᵢ|² and U² = Σᵢ |uᵢ|² over the targets. Both sums are estimated from the sample:
//! each stratum counts by its weight, and a drawn leaf by the mean over the targets drawn from it. How far such estimates scatter is
//! found by the bootstrap (Efron, *Ann. Statist.* 7 (1979) 1–26): leaves, and targets of a leaf, are drawn again with
//! replacement, [`DRAWS`] times. Where all targets were measured, as many are drawn as somebody looks at.
//!
//! The scatter of U matters for gradients. A few pairs of very close points can make up most of U², and a thousand other
//! targets may have none of them; draws without those few targets tell what U is then. Errors that come with large sums, as those of
//! rounding do, leave with them.
//!
//! Normal strengths scatter on their own ([`super::modes`]). A potential far from its sources, for example, follows their net
//! strength, so that U² is large or small with it.
//!
//! All these deviations are independent. So the bound of ln(E²/U²) is its estimate plus the root of the sum of squares of their
//! 99.5 % points.

use super::sample::{Draw, Sample, Stratum};
use crate::rng::Rng;

/// Draws of the bootstrap: enough for a point that moves by some per cent from seed to seed.
const DRAWS: usize = 200;
/// Targets of which errors are told: the promise is for any so many.
const LOOKED_AT: usize = 1000;
/// Part of the draws above the upper point.
const BEYOND: f64 = 0.005;
/// How likely the largest quotient of all targets may be above its bound. The tail is so long that half of this costs a factor of 1.4.
const BEYOND_LARGEST: f64 = 0.05;
/// Seed of the draws.
const SEED: u64 = 0x0042_4F4F_5453;

/// |e|² and |u|² of each sampled target.
pub(crate) struct Squares {
    pub error: Vec<f64>,
    pub sum: Vec<f64>,
}

impl Squares {
    /// Of rows of `values` numbers, of which only `columns` count: `exact` is what was `computed`, and `sums` what errors are
    /// compared with. `unit` keeps the squares in range.
    pub fn of(computed: &[f64], exact: &[f64], sums: &[f64], values: usize, columns: &[usize], unit: f64) -> Squares {
        let square = |row: &dyn Fn(usize) -> f64| columns.iter().map(|&c| (row(c) / unit).powi(2)).sum::<f64>();
        let rows = computed.chunks_exact(values).zip(exact.chunks_exact(values));
        let error = rows.map(|(computed, exact)| square(&|c| computed[c] - exact[c])).collect();
        let sum = sums.chunks_exact(values).map(|sum| square(&|c| sum[c])).collect();
        Squares { error, sum }
    }
}

/// The largest magnitude of some sums: a unit in which their squares are in range.
pub(crate) fn unit_of<'a>(sums: impl Iterator<Item = &'a f64>) -> f64 {
    let largest = sums.fold(0.0f64, |m, x| m.max(x.abs()));
    if largest > 0.0 && largest.is_finite() { largest } else { 1.0 }
}

/// E² and U² per target of one set of strengths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    pub error: f64,
    pub sum: f64,
    /// ln of the quotient of the 99.5 % point of E²/U² and its value, for other targets.
    pub deviation: f64,
}

impl Estimate {
    /// From a sample of `count` targets and its [weights](Sample::weights).
    pub fn of(sample: &Sample, weights: &[f64], squares: &Squares, count: usize) -> Estimate {
        let mean = |squares: &[f64]| squares.iter().zip(weights).map(|(s, w)| s * w).sum::<f64>();
        let (error, sum) = (mean(&squares.error), mean(&squares.sum));
        let mut rng = Rng::new(SEED);
        let mut quotients: Vec<f64> = if sample.targets.len() == count {
            // Nothing is left to chance but which targets somebody looks at.
            (0..DRAWS).map(|_| some(squares, &mut rng)).collect()
        } else {
            let of = |k: usize| sample.draws.iter().filter(|d| d.stratum == k && !d.targets.is_empty()).collect();
            let groups: Vec<Vec<&Draw>> = (0..sample.strata.len()).map(of).collect();
            (0..DRAWS).map(|_| drawn(&groups, &sample.strata, squares, &mut rng)).collect()
        };
        quotients.sort_unstable_by(f64::total_cmp);
        let point = quotients[DRAWS - 1 - (BEYOND * DRAWS as f64) as usize];
        let deviation = if error > 0.0 && sum > 0.0 { (point / (error / sum)).ln().max(0.0) } else { 0.0 };
        Estimate { error, sum, deviation }
    }

    /// The mean of several, whose deviations are alike.
    pub fn mean(of: &[Estimate]) -> Estimate {
        let mean = |f: fn(&Estimate) -> f64| of.iter().map(f).sum::<f64>() / of.len().max(1) as f64;
        Estimate { error: mean(|e| e.error), sum: mean(|e| e.sum), deviation: mean(|e| e.deviation) }
    }
}

/// The bound of the relative error: E² over U², and all that they may deviate.
pub(crate) fn relative(estimate: Estimate, deviations: &[f64]) -> f64 {
    if estimate.error == 0.0 {
        return 0.0;
    }
    let all = deviations.iter().chain([&estimate.deviation]).map(|d| d * d).sum::<f64>().sqrt();
    let bound = (0.5 * all).exp() * (estimate.error / estimate.sum).sqrt();
    if bound.is_nan() { f64::INFINITY } else { bound }
}

/// The bound of the largest |eᵢ|/|uᵢ| over `count` targets for normal strengths and complex u. Each uᵢ is normal, so that
/// P(|eᵢ|/|uᵢ| > x) = |eᵢ|²/(x² E|uᵢ|²); the sum of these over all targets bounds the probability that any of them is above x.
/// `squares`: those of several sets, whose means stand for |eᵢ|² and E|uᵢ|².
pub(crate) fn largest_of_normal(squares: &[Squares], count: usize) -> f64 {
    let targets = squares.first().map_or(0, |s| s.error.len());
    let mean = |of: &dyn Fn(&Squares) -> f64| squares.iter().map(of).sum::<f64>();
    let quotient = |i: usize| {
        let error = mean(&|s| s.error[i]);
        if error == 0.0 { 0.0 } else { error / mean(&|s| s.sum[i]) }
    };
    let quotients = (0..targets).map(quotient).sum::<f64>() / targets.max(1) as f64;
    (quotients * count as f64 / BEYOND_LARGEST).sqrt()
}

/// The bound of the largest |eᵢ|/|uᵢ| over `count` targets, where u is a complex number: one that is small happens with a
/// probability like |u|², so that the quotients q have P(q > x) ∼ (s/x)². Of n sampled targets the k-th largest quotient
/// tells s² ≈ k q₍ₖ₎²/n; the median over the largest twentieth of them is taken. The largest of all `count` targets stays
/// below s·√(count/[`BEYOND_LARGEST`]) with probability 1 − [`BEYOND_LARGEST`] at least.
pub(crate) fn largest(squares: &Squares, count: usize) -> f64 {
    if squares.error.is_empty() {
        return 0.0;
    }
    let quotient = |(&e, &u): (&f64, &f64)| if e == 0.0 { 0.0 } else { e / u };
    let mut squared: Vec<f64> = squares.error.iter().zip(&squares.sum).map(quotient).collect();
    squared.sort_unstable_by(|a, b| b.total_cmp(a));
    let n = squared.len();
    let mut scales: Vec<f64> = (1..=(n / 20).max(1)).map(|k| k as f64 * squared[k - 1] / n as f64).collect();
    scales.sort_unstable_by(f64::total_cmp);
    let scale = scales[scales.len() / 2];
    (scale * count as f64 / BEYOND_LARGEST).max(squared[0]).sqrt()
}

/// E²/U² of [`LOOKED_AT`] targets, of which none is weighed.
fn some(squares: &Squares, rng: &mut Rng) -> f64 {
    let (mut error, mut sum) = (0.0, 0.0);
    for _ in 0..LOOKED_AT.min(squares.error.len()) {
        let at = rng.below(squares.error.len());
        error += squares.error[at];
        sum += squares.sum[at];
    }
    error / sum
}

/// E²/U² of one draw of the draws.
fn drawn(groups: &[Vec<&Draw>], strata: &[Stratum], squares: &Squares, rng: &mut Rng) -> f64 {
    let (mut error, mut sum) = (0.0, 0.0);
    for (draws, stratum) in groups.iter().zip(strata) {
        for _ in 0..draws.len() {
            let targets = &draws[rng.below(draws.len())].targets;
            let weight = stratum.weight / (draws.len() * targets.len()) as f64;
            for _ in 0..targets.len() {
                let (at, factor) = targets[rng.below(targets.len())];
                error += weight * factor * squares.error[at as usize];
                sum += weight * factor * squares.sum[at as usize];
            }
        }
    }
    error / sum
}
