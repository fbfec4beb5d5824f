//! The probe: what a sum on these points errs by, measured before it is promised.
//!
//! A plan for a tolerance takes the order from measurements, not from tables. The measurement is the sum itself – the same
//! tree, lists, kernel, expansion, precision and stages – for some sources and at some targets ([`sample`]), for both kinds
//! of strengths, against direct summation. [`bound`] makes of it a bound of the error at all targets, [`search`] finds the
//! order.
//!
//! Every choice is made with fixed seeds. So the decision is a function of points, request, backend and instruction set.

pub(crate) mod bound;
pub(crate) mod sample;
pub(crate) mod search;

use adaptive2d::Norm;
use bound::Squares;
use fmm_families::Facts;
use fmm_traits::{Error, Hierarchy, Lists, Outputs};
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
    /// The part of the direct sums that a target has from itself, where that is not 0.
    own: Vec<Vec<f64>>,
    /// For each output, how small its squares can be for other normal strengths ([`bound::spread`]).
    spread: Vec<f64>,
    /// Number of all targets.
    count: usize,
}

/// Targets at which the [spread](bound::spread) of sums is told.
const SPREAD_TARGETS: usize = 128;

impl Trial {
    /// Of the points of a tree and its lists.
    pub fn new<H: Hierarchy>(tree: &H, lists: &Lists, facts: &Facts, direct: Direct) -> Result<Trial, Error> {
        let sample = Sample::new(tree, lists);
        let strengths = sample.strengths(facts.strengths);
        let sets: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
        let sources = coordinates(facts.dim, sample.sources.iter().map(|&i| tree.source(i as usize)));
        let targets = coordinates(facts.dim, sample.targets.iter().map(|&i| tree.target(i as usize)));
        let exact = direct(&sources, &sets, &targets)?;
        let own = match tree.same_points() && !facts.singular {
            true => own_parts(&sample, &sets, &sources, facts, direct)?,
            false => vec![Vec::new(); sets.len()],
        };
        let spread = spread(&sample, &sources, &targets, facts, direct)?;
        Ok(Trial { sample, strengths, exact, own, spread, count: tree.target_order().len() })
    }

    /// Of targets drawn at random from all `count`, with rows of their direct sums: where no lists are at hand.
    pub fn of_targets(targets: Vec<u32>, exact: Vec<Vec<f64>>, spread: Vec<f64>, count: usize) -> Trial {
        let own = vec![Vec::new(); exact.len()];
        Trial { sample: Sample::of_targets(targets), strengths: Vec::new(), exact, own, spread, count }
    }

    /// Bounds of the errors of the requested outputs, from rows that were computed for each set of strengths.
    pub fn bounds(&self, computed: &[Vec<f64>], facts: &Facts, norm: Norm) -> Vec<f64> {
        let of_output = |(c, &spread): (&fmm_traits::OutputColumns, &f64)| {
            let kinds = [0..1, 1..self.exact.len()].map(|sets| {
                let unit = bound::unit_of(self.exact[sets.clone()].iter().flatten());
                let squares =
                    |k: usize| Squares::of(&computed[k], &self.exact[k], &self.own[k], facts.values, &c.columns, unit);
                sets.map(squares).collect::<Vec<Squares>>()
            });
            if norm == Norm::Max && c.output == Outputs::POTENTIAL {
                let largest = kinds.iter().flatten().map(|s| bound::largest(s, self.count));
                return largest.fold(0.0, f64::max);
            }
            let points = |squares: &Vec<Squares>| -> Vec<[f64; 2]> {
                squares.iter().map(|s| bound::points(&self.sample, s)).collect()
            };
            let [uniform, normal] = kinds.each_ref().map(points);
            let growth = bound::growth(&normal);
            bound::relative(&uniform, growth, 1.0).max(bound::relative(&normal, growth, spread))
        };
        facts.columns.iter().zip(&self.spread).map(of_output).collect()
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

/// [`bound::spread`] of each output, at some of the targets of a sample.
fn spread(sample: &Sample, sources: &[f64], targets: &[f64], facts: &Facts, direct: Direct) -> Result<Vec<f64>, Error> {
    let weights = sample.weights();
    let every = weights.len().div_ceil(SPREAD_TARGETS).max(1);
    let some: Vec<f64> = targets.chunks_exact(facts.dim).step_by(every).flatten().copied().collect();
    let weights: Vec<f64> = weights.into_iter().step_by(every).collect();
    let strengths = sample.normal(bound::SETS, facts.strengths);
    let sets: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
    let rows = direct(sources, &sets, &some)?;
    Ok(facts.columns.iter().map(|c| bound::spread(&rows, facts.values, &c.columns, &weights)).collect())
}

/// What each sampled target gets from itself, for each set.
fn own_parts(
    sample: &Sample,
    sets: &[&[f64]],
    sources: &[f64],
    facts: &Facts,
    direct: Direct,
) -> Result<Vec<Vec<f64>>, Error> {
    let (dim, c) = (facts.dim, facts.strengths);
    let mut own = vec![Vec::new(); sets.len()];
    for position in &sample.targets {
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
