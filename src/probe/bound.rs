//! The bound of the error at all targets, from errors at sampled targets.
//!
//! **Random variable.** The relative ℓ2 error is E/U with E² = Σᵢ |eᵢ|² and U² = Σᵢ |uᵢ|² over the targets i. Here uᵢ
//! is the direct sum at target i and eᵢ its error. The choice of targets and the strengths are random. (The choice of
//! sources is random, too. Its scatter is not in the bound: it is kept small by the number of drawn leaves,
//! [`super::sources`].)
//!
//! **Estimator.** The sample estimates E² and U² per target. Each stratum counts by its weight, and a drawn leaf by the
//! mean over the targets drawn from this leaf.
//!
//! **Confidence.** A deviation is the distance, in ln(E²/U²), from the estimate to a percentage point. Three
//! independent deviations enter, the last two for normal strengths only:
//!
//! - Other targets, at the 99.5 % point of E²/U². The bootstrap (Efron, *Ann. Statist.* 7 (1979) 1–26) measures the
//!   scatter of E²/U²: the leaves, and the targets of each leaf, are drawn again with replacement, [`BOOTSTRAP_DRAWS`]
//!   times. From their targets it draws as many as a caller may look at, [`BOOTSTRAP_TARGETS`], each with the
//!   probability of a target among all targets. So a target that makes up most of U², because a source lies very close,
//!   is missing from as many draws as it is from the targets of callers.
//! - A smaller U² for other strengths, at the 2 % point of U² ([`super::modes`]). For example, a potential far from
//!   its sources follows their net strength, so U² is small whenever the net strength is small.
//! - A larger E² for other strengths, at the 99.5 % point of E² ([`super::modes`]).
//!
//! **Bound.** The variances of independent variables add, so the deviations add as squares. The bound of ln(E²/U²) is
//! its estimate plus the root of the sum of the squared deviations.
//!
//! The scatter of U matters for gradients. A few pairs of very close points can make up most of U², and a thousand
//! other targets may contain none of these pairs. Bootstrap draws without the close pairs show how small U is then.
//! Errors that grow with the sums, such as rounding errors, are absent from the same draws.

use super::sample::{Draw, Sample, Stratum};
use crate::rng::Rng;

/// Number of bootstrap draws. With so many draws the 99.5 % point moves by some per cent from seed to seed.
const BOOTSTRAP_DRAWS: usize = 200;
/// Number of targets of a bootstrap draw: as many as a caller may look at.
const BOOTSTRAP_TARGETS: usize = 1000;
/// Fraction of the bootstrap draws above the upper point (the 99.5 % point).
const UPPER_TAIL: f64 = 0.005;
/// Probability that the largest quotient |eᵢ|/|uᵢ| of all targets exceeds its bound. The tail is long: half of this
/// probability makes the bound 1.4 times as large.
const EXCEEDING_PROBABILITY: f64 = 0.05;
/// Seed of the bootstrap.
const SEED: u64 = 0x0042_4F4F_5453;

/// The squares |e|² of the error and |u|² of the sum, for each sampled target.
pub(crate) struct Squares {
    pub error: Vec<f64>,
    pub sum: Vec<f64>,
}

impl Squares {
    /// The squares over the given `columns` of each row of `values` numbers. The error is `computed` − `exact`. The sum
    /// u is a row of `sums`. All numbers are first divided by `unit`, which keeps the squares in range.
    pub fn of(computed: &[f64], exact: &[f64], sums: &[f64], values: usize, columns: &[usize], unit: f64) -> Squares {
        let square = |row: &dyn Fn(usize) -> f64| columns.iter().map(|&c| (row(c) / unit).powi(2)).sum::<f64>();
        let rows = computed.chunks_exact(values).zip(exact.chunks_exact(values));
        let error = rows.map(|(computed, exact)| square(&|c| computed[c] - exact[c])).collect();
        let sum = sums.chunks_exact(values).map(|sum| square(&|c| sum[c])).collect();
        Squares { error, sum }
    }

    /// E²/U² of some targets of equal weight, given by their indices.
    fn quotient(&self, targets: &[u32]) -> f64 {
        let (mut error, mut sum) = (0.0, 0.0);
        for &at in targets {
            error += self.error[at as usize];
            sum += self.sum[at as usize];
        }
        quotient(error, sum)
    }
}

/// The bootstrap draws of a sample. They depend on no error and no sum, so all orders, outputs and strengths share them.
#[derive(Default)]
pub(crate) struct Bootstrap {
    /// The targets of all draws, one draw behind the other: indices among the targets of the sample.
    targets: Vec<u32>,
    /// The end of each draw among `targets`.
    ends: Vec<usize>,
}

impl Bootstrap {
    /// Draws from a sample, with replacement: in each stratum as many leaves as the sample has, and in each leaf as many
    /// targets. Of these, it keeps as many as a caller may look at, by their weights (systematic sampling).
    pub fn new(sample: &Sample) -> Bootstrap {
        let mut rng = Rng::new(SEED);
        let most = BOOTSTRAP_TARGETS.min(sample.count);
        let (mut kept, mut ends) = (Vec::with_capacity(BOOTSTRAP_DRAWS * (most + 1)), Vec::new());
        let of = |k: usize| sample.draws.iter().filter(|d| d.stratum == k && !d.targets.is_empty()).collect();
        let groups: Vec<Vec<&Draw>> = (0..sample.strata.len()).map(of).collect();
        for _ in 0..BOOTSTRAP_DRAWS {
            if sample.targets.len() == sample.count {
                // The sample holds all targets. Only the choice of targets at which a caller looks is random.
                kept.extend((0..most).map(|_| rng.below(sample.count) as u32));
            } else {
                resample(&groups, &sample.strata, most, &mut rng, &mut kept);
            }
            ends.push(kept.len());
        }
        Bootstrap { targets: kept, ends }
    }

    /// The targets of each draw.
    fn draws(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.targets[start..end])
    }
}

/// Appends the targets of one bootstrap draw to `kept`. `groups` holds the leaves of each stratum.
fn resample(groups: &[Vec<&Draw>], strata: &[Stratum], most: usize, rng: &mut Rng, kept: &mut Vec<u32>) {
    let step = 1.0 / most as f64;
    let (mut weights, mut next) = (0.0, step * rng.uniform());
    for (draws, stratum) in groups.iter().zip(strata) {
        for _ in 0..draws.len() {
            let targets = &draws[rng.below(draws.len())].targets;
            let weight = stratum.weight / (draws.len() * targets.len()) as f64;
            for _ in 0..targets.len() {
                let (at, factor) = targets[rng.below(targets.len())];
                weights += weight * factor;
                while next < weights {
                    kept.push(at);
                    next += step;
                }
            }
        }
    }
}

/// The largest magnitude of some sums; 1 if that is 0 or not finite. In this unit the squares are in range.
pub(crate) fn unit_of<'a>(sums: impl Iterator<Item = &'a f64>) -> f64 {
    let largest = sums.fold(0.0f64, |m, x| m.max(x.abs()));
    if largest > 0.0 && largest.is_finite() { largest } else { 1.0 }
}

/// E² and U² per target of one set of strengths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    pub error: f64,
    pub sum: f64,
    /// ln(99.5 % point of E²/U² for other targets / estimate of E²/U²), at least 0.
    pub deviation: f64,
}

impl Estimate {
    /// The estimate from the squares at the targets of a sample, with its bootstrap. `weights` are [`Sample::weights`].
    pub fn of(bootstrap: &Bootstrap, weights: &[f64], squares: &Squares) -> Estimate {
        let mean = |squares: &[f64]| squares.iter().zip(weights).map(|(s, w)| s * w).sum::<f64>();
        let (error, sum) = (mean(&squares.error), mean(&squares.sum));
        let mut quotients: Vec<f64> = bootstrap.draws().map(|targets| squares.quotient(targets)).collect();
        quotients.sort_unstable_by(f64::total_cmp);
        let point = quotients[BOOTSTRAP_DRAWS - 1 - (UPPER_TAIL * BOOTSTRAP_DRAWS as f64) as usize];
        let deviation = if error > 0.0 && sum > 0.0 { (point / (error / sum)).ln().max(0.0) } else { 0.0 };
        Estimate { error, sum, deviation }
    }

    /// The mean of the estimates of several sets of strengths. Their deviations are alike, so they are averaged too.
    pub fn mean(of: &[Estimate]) -> Estimate {
        let mean = |f: fn(&Estimate) -> f64| of.iter().map(f).sum::<f64>() / of.len().max(1) as f64;
        Estimate { error: mean(|e| e.error), sum: mean(|e| e.sum), deviation: mean(|e| e.deviation) }
    }
}

/// The bound of the relative error E/U, from the estimate of E²/U² and independent `deviations` of ln(E²/U²).
pub(crate) fn relative(estimate: Estimate, deviations: &[f64]) -> f64 {
    if estimate.error == 0.0 {
        return 0.0;
    }
    let all = deviations.iter().chain([&estimate.deviation]).map(|d| d * d).sum::<f64>().sqrt();
    let bound = (0.5 * all).exp() * (estimate.error / estimate.sum).sqrt();
    finite_or_infinite(bound)
}

/// error/sum; 0 without an error.
fn quotient(error: f64, sum: f64) -> f64 {
    finite_or_infinite(if error == 0.0 { 0.0 } else { error / sum })
}

/// A number, or infinity in place of one that is not a number: such a sum keeps no tolerance.
fn finite_or_infinite(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x }
}

/// The bound of the largest quotient |eᵢ|/|uᵢ| over all `count` targets, for normal strengths and complex u.
///
/// Each uᵢ is a complex normal variable, small with a probability like |uᵢ|². So for large x the quotient has the
/// tail P(|eᵢ|/|uᵢ| > x) = |eᵢ|²/(x² E|uᵢ|²). The sum of these tails over all targets bounds the probability that any
/// quotient exceeds x. The bound is the x at which the sum is [`EXCEEDING_PROBABILITY`]. `squares` has one entry per
/// set of strengths. The means over these sets estimate |eᵢ|² and E|uᵢ|². `weights` are [`Sample::weights`].
///
/// The mean of |uᵢ|² over K sets is a χ² variable with 2K degrees of freedom, and the expectation of its inverse is
/// K/(K − 1) times 1/E|uᵢ|². So (K − 1)/K times the quotient of both means has no bias (K = 1: no factor, for want of a
/// better one).
pub(crate) fn largest_of_normal(squares: &[Squares], weights: &[f64], count: usize) -> f64 {
    let mean = |of: &dyn Fn(&Squares) -> f64| squares.iter().map(of).sum::<f64>();
    let of_target = |(i, weight): (usize, &f64)| weight * quotient(mean(&|s| s.error[i]), mean(&|s| s.sum[i]));
    let quotients = weights.iter().enumerate().map(of_target).sum::<f64>();
    let unbiased = if squares.len() > 1 { 1.0 - 1.0 / squares.len() as f64 } else { 1.0 };
    (unbiased * quotients * count as f64 / EXCEEDING_PROBABILITY).sqrt()
}

/// The bound of the largest quotient |eᵢ|/|uᵢ| over all `count` targets, for one set of strengths and complex u.
///
/// A complex u is small with a probability like |u|². So the quotient q of a random target has the tail P(q > x) ∼
/// (s/x)² with an unknown scale s. Let Wₖ be the summed weights ([`Sample::weights`]) of the targets with the k largest
/// quotients. The k-th largest quotient q₍ₖ₎ gives the estimate s² ≈ Wₖ q₍ₖ₎². The estimator of s² is the median of
/// these estimates over the largest twentieth of the quotients. At x = s·√(count/[`EXCEEDING_PROBABILITY`]) the tails
/// of all targets add up to [`EXCEEDING_PROBABILITY`]. So the largest quotient of all targets stays below this x with a
/// probability of at least 1 − [`EXCEEDING_PROBABILITY`].
pub(crate) fn largest(squares: &Squares, weights: &[f64], count: usize) -> f64 {
    if squares.error.is_empty() {
        return 0.0;
    }
    let squared = squares.error.iter().zip(&squares.sum).map(|(&e, &u)| quotient(e, u));
    let mut squared: Vec<(f64, f64)> = squared.zip(weights.iter().copied()).collect();
    squared.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut above = 0.0;
    let estimate = |&(squared, weight): &(f64, f64)| {
        above += weight;
        above * squared
    };
    let mut scales: Vec<f64> = squared[..(squared.len() / 20).max(1)].iter().map(estimate).collect();
    scales.sort_unstable_by(f64::total_cmp);
    let scale = scales[scales.len() / 2];
    (scale * count as f64 / EXCEEDING_PROBABILITY).max(squared[0].0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of a hundred thousand targets has a very close source, and most of the norm. A caller who looks at a
    /// thousand targets hardly sees it, so it must not hide the errors of the others.
    #[test]
    fn a_rare_target_does_not_hide_errors() {
        let (count, others) = (100_000, 400);
        let leaf = |k: u32| Draw { stratum: 0, targets: (8 * k..8 * k + 8).map(|i| (i, 1.0)).collect() };
        let mut draws: Vec<Draw> = (0..others / 8).map(leaf).collect();
        draws.push(Draw { stratum: 1, targets: vec![(others, 1.0)] });
        let rare = 1.0 / count as f64;
        let stratum = |name: &str, share| Stratum { name: name.to_string(), share, weight: share };
        let strata = vec![stratum("most", 1.0 - rare), stratum("rare", rare)];
        let (of_norm, of_errors) = Default::default();
        let targets = (0..=others).collect();
        let (leaves, may_vanish) = Default::default();
        let sample = Sample { targets, selves: None, count, of_norm, of_errors, draws, strata, leaves, may_vanish };
        let mut squares = Squares { error: vec![1e-6; others as usize + 1], sum: vec![1.0; others as usize + 1] };
        squares.sum[others as usize] = 1e12;
        let bound = relative(Estimate::of(&Bootstrap::new(&sample), &sample.weights(), &squares), &[]);
        assert!((0.99e-3..1.1e-3).contains(&bound), "{bound:e}");
        // If it is no rare target, all callers see it.
        squares.sum.fill(1e12);
        let bound = relative(Estimate::of(&Bootstrap::new(&sample), &sample.weights(), &squares), &[]);
        assert!((0.99e-9..1.1e-9).contains(&bound), "{bound:e}");
    }
}
