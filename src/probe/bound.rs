//! From errors at sampled targets to a bound of the error at all of them.
//!
//! A relative ℓ2 error is E/U with E² = Σᵢ |eᵢ|² and U² = Σᵢ |uᵢ|² over the targets. Both sums are estimated from the sample:
//! each stratum counts by its weight, and a drawn leaf by the mean over the targets drawn from it. How far such estimates scatter is
//! found by the bootstrap (Efron, *Ann. Statist.* 7 (1979) 1–26): leaves, and targets of a leaf, are drawn again with
//! replacement, [`DRAWS`] times. The bound is the upper 98 % point of E over the lower 2 % point of U.
//!
//! The lower point of U matters for gradients. A few pairs of very close points can make up most of U², and a thousand other
//! targets may have none of them; draws without those few targets tell what U is then.
//!
//! Normal strengths add chance of their own. A potential far from its sources follows their net strength, so that U² is large
//! or small with it. [`spread`] tells how small: it compares the sums of [`SETS`] further sets of strengths.

use super::sample::{Draw, Sample, Stratum};
use crate::rng::Rng;

/// Draws of the bootstrap: enough for a point that moves by some per cent from seed to seed.
const DRAWS: usize = 200;
/// Part of the draws above an upper bound, and below a lower one.
const BEYOND: f64 = 0.02;
/// How likely the largest quotient of all targets may be above its bound. The tail is so long that a bound for one case in
/// twenty would be 2.2 times as large.
const BEYOND_LARGEST: f64 = 0.25;
/// Seed of the draws.
const SEED: u64 = 0x0042_4F4F_5453;

/// |e|² and |u|² of each sampled target.
pub(crate) struct Squares {
    pub error: Vec<f64>,
    pub sum: Vec<f64>,
}

impl Squares {
    /// Of rows of `values` numbers, of which only `columns` count.
    ///
    /// `unit` keeps the squares in range.
    pub fn of(computed: &[f64], exact: &[f64], own: &[f64], values: usize, columns: &[usize], unit: f64) -> Squares {
        let rows = computed.chunks_exact(values).zip(exact.chunks_exact(values)).enumerate();
        let (mut error, mut sum) = (Vec::new(), Vec::new());
        for (i, (computed, exact)) in rows {
            let own = |c: usize| own.get(i * values + c).copied().unwrap_or(0.0);
            error.push(columns.iter().map(|&c| ((computed[c] - exact[c]) / unit).powi(2)).sum());
            sum.push(columns.iter().map(|&c| ((exact[c] - own(c)) / unit).powi(2)).sum());
        }
        Squares { error, sum }
    }
}

/// The largest magnitude of some sums: a unit in which their squares are in range.
pub(crate) fn unit_of<'a>(sums: impl Iterator<Item = &'a f64>) -> f64 {
    let largest = sums.fold(0.0f64, |m, x| m.max(x.abs()));
    if largest > 0.0 && largest.is_finite() { largest } else { 1.0 }
}

/// The upper 98 % point of E² and the lower 2 % point of U².
pub(crate) fn points(sample: &Sample, squares: &Squares) -> [f64; 2] {
    let of = |k: usize| sample.draws.iter().filter(|d| d.stratum == k && !d.targets.is_empty()).collect();
    let groups: Vec<Vec<&Draw>> = (0..sample.strata.len()).map(of).collect();
    let mut rng = Rng::new(SEED);
    let (mut errors, mut sums) = (Vec::with_capacity(DRAWS), Vec::with_capacity(DRAWS));
    for _ in 0..DRAWS {
        let (error, sum) = drawn(&groups, &sample.strata, squares, &mut rng);
        errors.push(error);
        sums.push(sum);
    }
    errors.sort_unstable_by(f64::total_cmp);
    sums.sort_unstable_by(f64::total_cmp);
    let beyond = (BEYOND * DRAWS as f64) as usize;
    [errors[DRAWS - 1 - beyond], sums[beyond]]
}

/// How much larger than the mean over some sets of strengths E² may be for another one: three standard deviations of its
/// logarithm. Of many sources it is 1, as each adds its own part to E²; one set tells nothing.
pub(crate) fn growth(sets: &[[f64; 2]]) -> f64 {
    let logs: Vec<f64> = sets.iter().map(|s| s[0].ln()).filter(|l| l.is_finite()).collect();
    if logs.len() < 2 {
        return 1.0;
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (logs.len() - 1) as f64;
    (3.0 * variance.sqrt()).exp()
}

/// The bound of the relative error from the points of E² and U² of each of several sets of strengths of one kind. E² may
/// grow by a factor for other strengths, and U² fall to a `spread` of its mean.
pub(crate) fn relative(sets: &[[f64; 2]], growth: f64, spread: f64) -> f64 {
    let mean = |k: usize| sets.iter().map(|s| s[k]).sum::<f64>() / sets.len() as f64;
    let error = growth * mean(0);
    if error == 0.0 {
        return 0.0;
    }
    let bound = (error / (spread * mean(1))).sqrt();
    if bound.is_nan() { f64::INFINITY } else { bound }
}

/// Sets of strengths by which [`spread`] is told; the least of them is about the lower 5 % point.
pub(crate) const SETS: usize = 16;

/// The least U² over their mean, from the rows of several sets of normal strengths at targets of some weights. Targets beside
/// a very close source count no more than others: draws without them tell of those already.
pub(crate) fn spread(rows: &[Vec<f64>], values: usize, columns: &[usize], weights: &[f64]) -> f64 {
    let unit = unit_of(rows.iter().flatten());
    let squares = |rows: &Vec<f64>| -> Vec<f64> {
        let of = |row: &[f64]| columns.iter().map(|&c| (row[c] / unit).powi(2)).sum();
        rows.chunks_exact(values).map(of).collect()
    };
    let squares: Vec<Vec<f64>> = rows.iter().map(squares).collect();
    let mut all: Vec<f64> = squares.iter().flatten().copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    let Some(&most) = all.get(9 * all.len() / 10) else { return 1.0 };
    let sum = |squares: &Vec<f64>| -> f64 { squares.iter().zip(weights).map(|(u, w)| w * u.min(most)).sum() };
    let sums: Vec<f64> = squares.iter().map(sum).collect();
    let mean = sums.iter().sum::<f64>() / sums.len() as f64;
    let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
    if mean > 0.0 && mean.is_finite() { least / mean } else { 1.0 }
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

/// E² and U² per target, of one draw of the draws.
fn drawn(groups: &[Vec<&Draw>], strata: &[Stratum], squares: &Squares, rng: &mut Rng) -> (f64, f64) {
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
    (error, sum)
}
