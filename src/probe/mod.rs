//! The probe: what a sum on these points errs by, measured before it is promised.
//!
//! A plan for a tolerance takes the order from measurements, not from tables. The measurement is the sum itself – the same
//! tree, lists, kernel, expansion, precision and stages – for some sources and at some targets ([`sample`]), for both kinds
//! of strengths, against direct summation. [`bound`] makes of it a bound of the error at all targets, [`search`] finds the
//! order.
//!
//! Every choice is made with fixed seeds. So the decision is a function of points, request, backend and instruction set.

pub(crate) mod bound;
mod modes;
pub(crate) mod sample;
pub(crate) mod search;

use adaptive2d::Norm;
use bound::{Estimate, Squares};
use fmm_families::Facts;
use fmm_traits::{Error, Hierarchy, Lists, OutputColumns, Outputs};
use modes::Modes;
use sample::Sample;
use serde::Serialize;

/// What a probe measured of one output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeOutput {
    /// Name of the output.
    pub output: &'static str,
    /// Bound of its error at the order that was chosen: what the tolerance is compared with.
    pub error: f64,
    /// The same of the order below; none if that was not measured.
    pub below: Option<f64>,
}

/// Leaves of one kind, and how they were sampled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeStratum {
    /// What the leaves have in common.
    pub name: String,
    /// Part of all targets that lie in them.
    pub share: f64,
    /// Leaves that were drawn; where there is no tree, targets.
    pub leaves: usize,
}

/// What was measured before the order was chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProbeReport {
    /// One entry an output.
    pub outputs: Vec<ProbeOutput>,
    /// Orders that were measured, in that order; of the method that was chosen.
    pub orders: Vec<usize>,
    /// Kinds of leaves.
    pub strata: Vec<ProbeStratum>,
    /// Targets at which errors were measured.
    pub targets: usize,
    /// Sources that acted there.
    pub sources: usize,
    /// Seconds of all measurements, of methods that were not chosen, too. Without operators, which serve the plan.
    pub seconds: f64,
    /// Seconds of operators for orders that were measured.
    pub operators: f64,
    /// Whether the points have moved since, by less than the lists show.
    pub of_earlier_points: bool,
}

/// Direct sums in f64: sources, sets of strengths and targets → rows of each set.
pub(crate) type Direct<'a> = &'a dyn Fn(&[f64], &[&[f64]], &[f64]) -> Result<Vec<Vec<f64>>, Error>;

/// A sample with its strengths and direct sums: what any method is measured against.
pub(crate) struct Trial {
    pub sample: Sample,
    /// The first set is uniform in (0, 1), the others are normal.
    pub strengths: Vec<Vec<f64>>,
    /// The direct sums of each set.
    exact: Vec<Vec<f64>>,
    /// The direct sums without what a target has from itself, where that is not 0; else none.
    without_own: Option<Vec<Vec<f64>>>,
    /// For each output, its sums for other normal strengths, if that was asked.
    scatter: Vec<Option<Scatter>>,
    /// Number of all targets.
    count: usize,
}

/// Sets of normal strengths that tell how far sums scatter, and the targets at which they do.
const SCATTER_SETS: usize = 16;
const SCATTER_TARGETS: usize = 64;

/// U² for other normal strengths.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    /// Its mean, in units of that of the sets that errors are measured with.
    mean: f64,
    /// How far it may be below its mean: ln of the quotient.
    below: f64,
}

impl Trial {
    /// Of the points of a tree and its lists.
    pub fn new<H: Hierarchy>(tree: &H, lists: &Lists, facts: &Facts, direct: Direct) -> Result<Trial, Error> {
        let sample = Sample::new(tree, lists);
        let sources = coordinates(facts.dim, sample.sources.iter().map(|&i| tree.source(i as usize)));
        let targets = coordinates(facts.dim, sample.targets.iter().map(|&i| tree.target(i as usize)));
        let soft = tree.same_points() && !facts.singular;
        let others = Others::new(&sample, soft, &sources, &targets, facts, direct)?;
        let strengths = sample.strengths(facts.strengths);
        let sets: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
        let exact = direct(&sources, &sets, &targets)?;
        let without_own = match soft {
            true => {
                let own = own_parts(&sample, &sample.targets, &sets, &sources, facts, direct)?;
                Some(less(exact.clone(), &own))
            }
            false => None,
        };
        let sums = &without_own.as_ref().unwrap_or(&exact)[1..];
        let scatter = facts.columns.iter().map(|c| others.scatter(sums, facts.values, &c.columns)).collect();
        Ok(Trial { sample, strengths, exact, without_own, scatter, count: tree.target_order().len() })
    }

    /// Of targets drawn at random from all `count`, with rows of their direct sums: where no lists are at hand.
    pub fn of_targets(targets: Vec<u32>, exact: Vec<Vec<f64>>, outputs: usize, count: usize) -> Trial {
        let (sample, scatter) = (Sample::of_targets(targets), vec![None; outputs]);
        Trial { sample, strengths: Vec::new(), exact, without_own: None, scatter, count }
    }

    /// Bounds of the errors of the requested outputs, from rows that were computed for each set of strengths.
    pub fn bounds(&self, computed: &[Vec<f64>], facts: &Facts, norm: Norm) -> Vec<f64> {
        let weights = self.sample.weights();
        let sums = self.without_own.as_ref().unwrap_or(&self.exact);
        let of_output = |(c, scatter): (&OutputColumns, &Option<Scatter>)| {
            let of_kind = |sets: std::ops::Range<usize>, scatter: Option<&Scatter>| {
                let unit = bound::unit_of(self.exact[sets.clone()].iter().flatten());
                let squares =
                    |k: usize| Squares::of(&computed[k], &self.exact[k], &sums[k], facts.values, &c.columns, unit);
                let squares: Vec<Squares> = sets.clone().map(squares).collect();
                if norm == Norm::Max && c.output == Outputs::POTENTIAL {
                    return match scatter {
                        Some(_) => bound::largest_of_normal(&squares, self.count),
                        None => squares.iter().map(|s| bound::largest(s, self.count)).fold(0.0, f64::max),
                    };
                }
                let each: Vec<Estimate> =
                    squares.iter().map(|s| Estimate::of(&self.sample, &weights, s, self.count)).collect();
                let mut estimate = Estimate::mean(&each);
                let Some(scatter) = scatter else { return bound::relative(estimate, &[]) };
                estimate.sum *= scatter.mean;
                let errors = sets.map(|k| {
                    let pairs = computed[k].iter().zip(&self.exact[k]);
                    let row: Vec<f64> = pairs.map(|(a, b)| (a - b) / unit).collect();
                    modes::weighted(&row, facts.values, &c.columns, &weights, f64::INFINITY)
                });
                let above = Modes::of(&errors.collect::<Vec<_>>()).map_or(0.0, Modes::above);
                bound::relative(estimate, &[scatter.below, above])
            };
            of_kind(0..1, None).max(of_kind(1..self.exact.len(), scatter.as_ref()))
        };
        facts.columns.iter().zip(&self.scatter).map(of_output).collect()
    }

    /// Strata, targets and sources for a report.
    pub fn report(&self, report: &mut ProbeReport) {
        let leaves = |k: usize| self.sample.draws.iter().filter(|l| l.stratum == k).count();
        let strata = self.sample.strata.iter().enumerate();
        report.strata =
            strata.map(|(k, s)| ProbeStratum { name: s.name.clone(), share: s.share, leaves: leaves(k) }).collect();
        report.targets = self.sample.targets.len();
        report.sources = self.sample.sources.len();
    }
}

/// Points as rows of `dim` numbers.
fn coordinates(dim: usize, points: impl Iterator<Item = [f64; 3]>) -> Vec<f64> {
    points.flat_map(|x| x.into_iter().take(dim)).collect()
}

/// Sums of further sets of normal strengths at some of the targets of a sample.
struct Others {
    /// Every so many targets one is taken.
    every: usize,
    /// Weights of those.
    weights: Vec<f64>,
    rows: Vec<Vec<f64>>,
}

impl Others {
    /// `soft`: targets get something from themselves, which is no part of the sums.
    fn new(
        sample: &Sample,
        soft: bool,
        sources: &[f64],
        targets: &[f64],
        facts: &Facts,
        direct: Direct,
    ) -> Result<Others, Error> {
        let weights = sample.weights();
        let every = weights.len().div_ceil(SCATTER_TARGETS).max(1);
        let some: Vec<f64> = targets.chunks_exact(facts.dim).step_by(every).flatten().copied().collect();
        let weights: Vec<f64> = weights.into_iter().step_by(every).collect();
        let strengths = sample.normal(SCATTER_SETS, facts.strengths);
        let sets: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
        let mut rows = direct(sources, &sets, &some)?;
        if soft {
            let positions: Vec<u32> = sample.targets.iter().step_by(every).copied().collect();
            let own = own_parts(sample, &positions, &sets, sources, facts, direct)?;
            rows = less(rows, &own);
        }
        Ok(Others { every, weights, rows })
    }

    /// How sums of an output scatter; `measured`: those of the sets that errors are measured with, at all targets.
    fn scatter(&self, measured: &[Vec<f64>], values: usize, columns: &[usize]) -> Option<Scatter> {
        // Targets beside a very close source count no more than others: draws without them tell of those already.
        let square = |row: &[f64]| columns.iter().map(|&c| row[c].powi(2)).sum::<f64>();
        let mut all: Vec<f64> = self.rows.iter().flat_map(|r| r.chunks_exact(values).map(square)).collect();
        let nth = 9 * all.len() / 10;
        let most = *(nth < all.len()).then(|| all.select_nth_unstable_by(nth, f64::total_cmp).1)?;
        let row = |row: &Vec<f64>| modes::weighted(row, values, columns, &self.weights, most);
        let modes = Modes::of(&self.rows.iter().map(row).collect::<Vec<_>>())?;
        let square = |all: &Vec<f64>| {
            let some: Vec<f64> = all.chunks_exact(values).step_by(self.every).flatten().copied().collect();
            row(&some).iter().map(|x| x * x).sum::<f64>()
        };
        let mean = measured.iter().map(square).sum::<f64>() / measured.len() as f64;
        (mean > 0.0).then(|| Scatter { mean: modes.mean / mean, below: modes.below() })
    }
}

/// Rows less others.
fn less(mut rows: Vec<Vec<f64>>, others: &[Vec<f64>]) -> Vec<Vec<f64>> {
    rows.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(a, b)| *a -= b);
    rows
}

/// What each target at `positions` gets from itself, for each set.
fn own_parts(
    sample: &Sample,
    positions: &[u32],
    sets: &[&[f64]],
    sources: &[f64],
    facts: &Facts,
    direct: Direct,
) -> Result<Vec<Vec<f64>>, Error> {
    let (dim, c) = (facts.dim, facts.strengths);
    let mut own = vec![Vec::new(); sets.len()];
    for position in positions {
        // The sources of a sampled leaf are all there.
        let rows = match sample.sources.binary_search(position) {
            Ok(k) => {
                let x = &sources[dim * k..dim * (k + 1)];
                let q: Vec<&[f64]> = sets.iter().map(|q| &q[c * k..c * (k + 1)]).collect();
                direct(x, &q, x)?
            }
            Err(_) => vec![vec![0.0; facts.values]; sets.len()],
        };
        own.iter_mut().zip(rows).for_each(|(own, row)| own.extend(row));
    }
    Ok(own)
}
