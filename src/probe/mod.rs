//! The probe: measures the error of the fast sum on the points of a plan, before the plan promises a tolerance.
//!
//! A plan with a tolerance takes the order from measurements, not from tables. A measurement runs the real sum – the
//! same tree, lists, kernel, expansion, precision and stages – with some sources ([`sources`]) and at some targets
//! ([`sample`]), and compares it with direct summation. The strengths are of both kinds, uniform in (0, 1) and
//! normal. [`bound`] turns the measured errors into a bound of the error at all targets. [`search`] finds the order.
//!
//! All seeds are fixed. So the chosen order is a function of points, request, backend and instruction set.

mod attributes;
pub(crate) mod bound;
mod classes;
pub(crate) mod corners;
pub(crate) mod decay;
pub(crate) mod draw;
pub(crate) mod kind;
mod modes;
pub(crate) mod on_host;
pub(crate) mod sample;
pub(crate) mod sampled;
pub(crate) mod search;
pub(crate) mod sources;

use crate::attributes::Attributes;
use adaptive2d::Norm;
use bound::{Bootstrap, Estimate, Squares};
use fmm_families::Facts;
use fmm_traits::{Error, OutputColumns, Outputs};
use modes::Modes;
use rayon::prelude::*;
use sample::Sample;
use sampled::{Direct, Sampled, slices};
use serde::Serialize;
use sources::Sources;
use std::sync::Arc;

/// The error of one output, as the probe measured it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeOutput {
    /// Name of the output.
    pub output: &'static str,
    /// Bound of the error at the chosen order. The tolerance is compared with this bound.
    pub error: f64,
    /// Bound of the error at the order below, perhaps with leaves of another size; `None` if the order below was not
    /// measured.
    pub below: Option<f64>,
}

/// A stratum: leaves of one kind, and the size of their sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeStratum {
    /// The kind of the leaves, in words.
    pub name: String,
    /// Fraction of all targets that lie in these leaves.
    pub share: f64,
    /// Number of drawn leaves. Without a tree, the number of drawn targets.
    pub leaves: usize,
}

/// The measurements behind the choice of an order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProbeReport {
    /// One entry per output.
    pub outputs: Vec<ProbeOutput>,
    /// Measured orders of the chosen method, in the sequence of their measurement. An order occurs twice if it was
    /// measured again with leaves of another size.
    pub orders: Vec<usize>,
    /// The strata of the sample.
    pub strata: Vec<ProbeStratum>,
    /// Number of targets at which errors were measured.
    pub targets: usize,
    /// Number of sources whose direct sums give the norm. Errors are measured with these or a part of them.
    pub sources: usize,
    /// Seconds of all measurements, including the methods that were not chosen, without the time for operators.
    pub seconds: f64,
    /// Seconds spent on operators of the measured orders. The plan uses these operators.
    pub operators: f64,
    /// Whether the points have moved since the measurement. The order was kept, because no count of boxes, edges or
    /// near pairs changed by more than a tenth.
    pub of_earlier_points: bool,
}

/// A sample with its strengths and direct sums, against which errors of orders are measured. It serves all orders that
/// have the same lists on one tree. Lists of two orders differ where a box has so few points that one of the orders sums
/// them directly.
pub(crate) struct Trial {
    pub drawn: Arc<Drawn>,
    bootstrap: Bootstrap,
    /// The direct sums of each set, targets × values.
    exact: Vec<Vec<f64>>,
    /// The direct sums that give the norm, without self terms, targets × values; `None` if these are `exact`.
    sums: Option<Vec<Vec<f64>>>,
    /// For each output, the scatter of U² over normal strengths; `None` if the sums vanish.
    scatter: Vec<Option<Scatter>>,
}

/// What a fast sum needs of a trial.
pub(crate) struct Drawn {
    pub sample: Sample,
    /// Sets of strengths of the sources that give the errors: the first is uniform in (0, 1), the others are normal.
    pub strengths: Vec<Vec<f64>>,
}

/// Number of sets of normal strengths that measure the scatter of U².
pub(crate) const SCATTER_SETS: usize = 16;
/// Largest number of targets at which the scatter of U² is measured.
const SCATTER_TARGETS: usize = 64;

/// The scatter of U² from one set of normal strengths to another ([`modes`]).
#[derive(Clone, Copy, Debug)]
struct Scatter {
    /// Mean of U² over [`SCATTER_SETS`] sets, divided by its mean over the sets with which errors are measured.
    mean: f64,
    /// ln(mean / lower 2 % point) of U².
    below: f64,
}

/// The strengths of some sources of a sample, with their attributes: one uniform set, then normal sets.
fn strengths_of(
    sources: &Sources,
    sample: &Sample,
    site: &impl Sampled,
    facts: &Facts,
    attributes: &Attributes,
) -> Result<Vec<Vec<f64>>, Error> {
    let sets = sources.strengths(sample.normal_sets(), facts.linear());
    attributes.join_some(sets, facts, || site.indices(&sources.positions))
}

impl Drawn {
    /// Draws strengths for a sample of the points of a tree.
    pub fn new(sample: Sample, site: &impl Sampled, facts: &Facts, attributes: &Attributes) -> Result<Drawn, Error> {
        let strengths = strengths_of(&sample.of_errors, &sample, site, facts, attributes)?;
        Ok(Drawn { sample, strengths })
    }
}

impl Trial {
    /// The trial of a sample of the points of a tree: computes its direct sums.
    pub fn new(
        drawn: Arc<Drawn>,
        site: &impl Sampled,
        facts: &Facts,
        attributes: &Attributes,
        direct: Direct,
    ) -> Result<Trial, Error> {
        let Drawn { sample, strengths } = &*drawn;
        let host = (facts.dim, direct);
        let sums = |sources: &Sources, strengths: &[Vec<f64>]| {
            let mut rows = site.sums(&sources.positions, &slices(strengths), &sample.targets, host)?;
            facts.pull_back(&mut rows);
            Ok::<_, Error>(rows)
        };
        let mut bootstrap = Bootstrap::default();
        let soft = sample.selves.as_deref().filter(|_| facts.skips_self);
        let others = || Others::new(site, (sample, soft), facts, attributes, direct);
        let exact = || {
            let exact = sums(&sample.of_errors, strengths)?;
            let same = sample.has_same_sources();
            let sums = if same && soft.is_none() {
                None
            } else {
                let strengths = strengths_of(&sample.of_norm, sample, site, facts, attributes)?;
                let sums = if same { exact.clone() } else { sums(&sample.of_norm, &strengths)? };
                Some(match soft {
                    Some(selves) => less(sums, &own_parts(selves, &slices(&strengths), facts, direct)?),
                    None => sums,
                })
            };
            Ok::<_, Error>((exact, sums))
        };
        let (others, sums) = rayon::in_place_scope(|scope| {
            scope.spawn(|_| bootstrap = Bootstrap::new(sample));
            // `others` has few targets and takes less time.
            site.both_sums(others, exact)
        });
        let (others, (exact, sums)) = (others?, sums?);
        let normal = &sums.as_ref().unwrap_or(&exact)[1..];
        let scatter = facts.columns.iter().map(|c| others.scatter(normal, facts.values, &c.columns)).collect();
        Ok(Trial { drawn, bootstrap, exact, sums, scatter })
    }

    /// A trial without lists: `targets` are drawn at random from all `count` targets, `exact` are their direct sums for
    /// one set of uniform and some sets of normal strengths, and `others` those for further normal sets.
    pub fn of_targets(
        targets: Vec<u32>,
        exact: Vec<Vec<f64>>,
        others: Vec<Vec<f64>>,
        facts: &Facts,
        count: usize,
    ) -> Trial {
        let sample = Sample::of_targets(targets, count);
        let bootstrap = Bootstrap::new(&sample);
        let others = Others { every: 1, weights: sample.weights(), rows: others };
        let scatter = facts.columns.iter().map(|c| others.scatter(&exact[1..], facts.values, &c.columns)).collect();
        let drawn = Arc::new(Drawn { sample, strengths: Vec::new() });
        Trial { drawn, bootstrap, exact, sums: None, scatter }
    }

    /// Bounds of the errors, one per requested output. `computed` holds the rows of the sampled targets for each set of
    /// strengths.
    pub fn bounds(&self, mut computed: Vec<Vec<f64>>, facts: &Facts, norm: Norm) -> Vec<f64> {
        facts.pull_back(&mut computed);
        self.bounds_of(&computed, facts, norm)
    }

    /// [`bounds`](Self::bounds) of rows in the coordinates of the caller.
    fn bounds_of(&self, computed: &[Vec<f64>], facts: &Facts, norm: Norm) -> Vec<f64> {
        let (weights, count) = (self.drawn.sample.weights(), self.drawn.sample.count);
        let sums = self.sums.as_ref().unwrap_or(&self.exact);
        let of_output = |(k, (c, scatter)): (usize, (&OutputColumns, &Option<Scatter>))| {
            let of_kind = |sets: std::ops::Range<usize>, scatter: Option<&Scatter>| {
                // Where all sums are 0 and the kernel is not, no target of the sample says what errors are.
                let is_zero = |row: &[f64]| c.columns.iter().all(|&c| row[c] == 0.0);
                if self.drawn.sample.may_vanish.get(k) == Some(&false)
                    && sums[sets.clone()].iter().all(|sums| sums.chunks_exact(facts.values).all(is_zero))
                {
                    return f64::INFINITY;
                }
                let unit = bound::unit_of(self.exact[sets.clone()].iter().chain(&sums[sets.clone()]).flatten());
                let squares =
                    |k: usize| Squares::of(&computed[k], &self.exact[k], &sums[k], facts.values, &c.columns, unit);
                let squares: Vec<Squares> = sets.clone().map(squares).collect();
                if norm == Norm::Max && c.output == Outputs::POTENTIAL {
                    return match scatter {
                        Some(_) => bound::largest_of_normal(&squares, &weights, count),
                        None => squares.iter().map(|s| bound::largest(s, &weights, count)).fold(0.0, f64::max),
                    };
                }
                let each: Vec<Estimate> =
                    squares.par_iter().map(|s| Estimate::of(&self.bootstrap, &weights, s)).collect();
                let mut estimate = Estimate::mean(&each);
                let Some(scatter) = scatter else { return bound::relative(estimate, &[]) };
                estimate.sum *= scatter.mean;
                let errors = sets.map(|k| {
                    let pairs = computed[k].iter().zip(&self.exact[k]);
                    let row: Vec<f64> = pairs.map(|(a, b)| (a - b) / unit).collect();
                    modes::weighted(&row, facts.values, &c.columns, &weights, f64::INFINITY)
                });
                let above = Modes::of(&errors.collect::<Vec<_>>()).map_or(0.0, |modes| modes.above());
                bound::relative(estimate, &[scatter.below, above])
            };
            let (uniform, normal) =
                rayon::join(|| of_kind(0..1, None), || of_kind(1..self.exact.len(), scatter.as_ref()));
            uniform.max(normal)
        };
        facts.columns.par_iter().zip(&self.scatter).enumerate().map(of_output).collect()
    }
}

/// Direct sums of [`SCATTER_SETS`] sets of normal strengths, at some of the targets of a sample.
struct Others {
    /// Step between the chosen targets of the sample.
    every: usize,
    /// Weights of the chosen targets.
    weights: Vec<f64>,
    /// The sums of each set at the chosen targets.
    rows: Vec<Vec<f64>>,
}

impl Others {
    /// Computes the sums. `soft`: targets have self terms, which are subtracted ([`own_parts`]).
    fn new(
        site: &impl Sampled,
        (sample, soft): (&Sample, Option<&[u32]>),
        facts: &Facts,
        attributes: &Attributes,
        direct: Direct,
    ) -> Result<Others, Error> {
        let weights = sample.weights();
        let every = weights.len().div_ceil(SCATTER_TARGETS).max(1);
        let targets: Vec<u32> = sample.targets.iter().step_by(every).copied().collect();
        let weights: Vec<f64> = weights.into_iter().step_by(every).collect();
        let (sources, host) = (&sample.of_norm, (facts.dim, direct));
        if soft.is_none() && facts.attributes == 0 {
            let mut rows = site.sums_of_normal(sources, (SCATTER_SETS, facts.linear()), &targets, host)?;
            facts.pull_back(&mut rows);
            return Ok(Others { every, weights, rows });
        }
        let normal = sources.normal(SCATTER_SETS, facts.linear());
        let normal = attributes.join_some(normal, facts, || site.indices(&sources.positions))?;
        let sets = slices(&normal);
        let mut rows = site.sums(&sources.positions, &sets, &targets, host)?;
        facts.pull_back(&mut rows);
        if let Some(selves) = soft {
            let selves: Vec<u32> = selves.iter().step_by(every).copied().collect();
            rows = less(rows, &own_parts(&selves, &sets, facts, direct)?);
        }
        Ok(Others { every, weights, rows })
    }

    /// The scatter of U² of an output. `measured` holds the sums of the sets with which errors are measured, at all
    /// targets of the sample.
    fn scatter(&self, measured: &[Vec<f64>], values: usize, columns: &[usize]) -> Option<Scatter> {
        // A target beside a very close source counts no more than other targets. The bootstrap already draws samples
        // without it.
        let square = |row: &[f64]| columns.iter().map(|&c| row[c].powi(2)).sum::<f64>();
        let all = self.rows.iter().flat_map(|r| r.chunks_exact(values).map(square));
        let mut all: Vec<f64> = all.filter(|square| *square > 0.0).collect();
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

/// The difference of two arrays of rows.
fn less(mut rows: Vec<Vec<f64>>, others: &[Vec<f64>]) -> Vec<Vec<f64>> {
    rows.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(a, b)| *a -= b);
    rows
}

/// The self terms of some targets, for each set of strengths. `selves` has the index of each target among the sources.
/// A kernel depends on the difference of two points, so the self term of any point is that of the origin.
fn own_parts(selves: &[u32], sets: &[&[f64]], facts: &Facts, direct: Direct) -> Result<Vec<Vec<f64>>, Error> {
    let (origin, c) = (vec![0.0; facts.dim], facts.strengths);
    let mut own = vec![Vec::new(); sets.len()];
    for k in selves.iter().map(|&k| k as usize) {
        let q: Vec<&[f64]> = sets.iter().map(|q| &q[c * k..c * (k + 1)]).collect();
        own.iter_mut().zip(direct(&origin, &q, &origin)?).for_each(|(own, row)| own.extend(row));
    }
    facts.pull_back(&mut own);
    Ok(own)
}
