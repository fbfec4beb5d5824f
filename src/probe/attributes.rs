//! The errors that attributes of sources cause in far fields, apart from that of an order.
//!
//! With one value of the attributes in far fields, the fast sum is computed twice at one order: with the attributes of
//! the sources, and with this value for all sources. Both errors contain nearly the same truncation error. Their
//! difference is the error that attributes cause.
//!
//! With several [nodes](fmm_traits::Nodes) there are two errors: that of each far field, as without attributes, and that
//! of interpolation in the attribute. The second does not depend on the expansion. It is measured by direct sums of
//! Σₖ Lₖ(e) K(r; eₖ) q − K(r; e) q over the pairs of the sample that P2P does not sum. It needs no operators.

use super::sample::Sample;
use super::sampled::{Direct, Sampled};
use super::{Trial, slices};
use adaptive2d::Norm;
use fmm_families::Facts;
use fmm_traits::{Error, Factor, Kernels, Nodes, weight};
use std::ops::Range;

/// Sums of sets of strengths at the targets of a sample, by a fast method.
pub(crate) type Fast<'a> = &'a dyn Fn(&[Vec<f64>]) -> Result<Vec<Vec<f64>>, Error>;

impl Trial {
    /// Bounds of the errors that one value in far fields causes, one per output.
    pub fn errors_of_one_value(
        &self,
        site: &impl Sampled,
        kernels: &Kernels,
        (facts, norm): (&Facts, Norm),
        direct: Direct,
        fast: Fast,
    ) -> Result<Vec<f64>, Error> {
        let usual = |set: &Vec<f64>| {
            let mut set = set.clone();
            for source in set.chunks_exact_mut(facts.strengths) {
                source[facts.linear()..].copy_from_slice(&kernels.near.attributes);
            }
            set
        };
        let usual: Vec<Vec<f64>> = self.drawn.strengths.iter().map(usual).collect();
        let sample = &self.drawn.sample;
        let exact = site.sums(&sample.of_errors.positions, &slices(&usual), &sample.targets, (facts.dim, direct))?;
        let mut computed = fast(&self.drawn.strengths)?;
        for ((computed, usual), exact) in computed.iter_mut().zip(fast(&usual)?).zip(exact) {
            computed.iter_mut().zip(usual.iter().zip(exact)).for_each(|(own, (usual, exact))| *own += exact - usual);
        }
        Ok(self.bounds(computed, facts, norm))
    }

    /// Bounds of the errors of interpolation between nodes, one per output.
    pub fn errors_of_interpolation(
        &self,
        site: &impl Sampled,
        nodes: &Nodes,
        (facts, norm): (&Facts, Norm),
        direct: Direct,
    ) -> Result<Vec<f64>, Error> {
        let fields: Vec<Vec<Factor>> = (0..nodes.count()).map(|k| nodes.factors(k)).collect();
        let sample = &self.drawn.sample;
        let (width, values) = (facts.strengths, facts.values);
        let mut errors = vec![vec![0.0; sample.targets.len() * values]; self.drawn.strengths.len()];
        for (at, far) in far_pairs(site, sample)? {
            if far.is_empty() {
                continue;
            }
            let positions: Vec<u32> = far.iter().map(|&i| sample.of_errors.positions[i]).collect();
            let targets = &sample.targets[at.clone()];
            // The sources as each far field has them, and minus themselves.
            let part = |field: Option<&Vec<Factor>>, set: &Vec<f64>| {
                let mut part = Vec::with_capacity(far.len() * width);
                for own in far.iter().map(|i| &set[i * width..(i + 1) * width]) {
                    match field {
                        Some(field) => push_part(own, facts.linear(), field, &mut part),
                        None => push_times(own, facts.linear(), -1.0, &mut part),
                    }
                }
                part
            };
            let parts = fields.iter().map(Some).chain([None]);
            let sets: Vec<Vec<f64>> =
                parts.flat_map(|field| self.drawn.strengths.iter().map(move |set| part(field, set))).collect();
            let rows = site.sums(&positions, &slices(&sets), targets, (facts.dim, direct))?;
            for (k, rows) in rows.into_iter().enumerate() {
                let errors = &mut errors[k % self.drawn.strengths.len()][at.start * values..at.end * values];
                errors.iter_mut().zip(rows).for_each(|(error, row)| *error += row);
            }
        }
        facts.pull_back(&mut errors);
        for (errors, exact) in errors.iter_mut().zip(&self.exact) {
            errors.iter_mut().zip(exact).for_each(|(error, exact)| *error += exact);
        }
        Ok(self.bounds_of(&errors, facts, norm))
    }
}

/// Appends a source, its strengths times a `factor`.
fn push_times(source: &[f64], linear: usize, factor: f64, to: &mut Vec<f64>) {
    to.extend(source[..linear].iter().map(|q| factor * q));
    to.extend_from_slice(&source[linear..]);
}

/// Appends a source as a far field has it.
fn push_part(source: &[f64], linear: usize, field: &[Factor], to: &mut Vec<f64>) {
    let at = to.len() + linear;
    push_times(source, linear, weight(field, |a| source[linear + a]), to);
    field.iter().for_each(|factor| to[at + factor.attribute] = factor.value);
}

/// Targets of a leaf, with the sources that give errors and are not summed pair by pair: indices in the arrays of a sample.
type FarPairs = (Range<usize>, Vec<usize>);

/// The pairs of a sample that are far from each other, leaf by leaf.
fn far_pairs(site: &impl Sampled, sample: &Sample) -> Result<Vec<FarPairs>, Error> {
    let within = |positions: &[u32], range: &Range<usize>| {
        let [start, end] = [range.start, range.end].map(|end| positions.partition_point(|&at| (at as usize) < end));
        start..end
    };
    let of_leaf = |(leaf, targets): &(u32, Range<usize>)| {
        let mut far = vec![true; sample.of_errors.positions.len()];
        for near in site.leaves_with_sources(&site.near_and_close(&[*leaf])?, false)? {
            far[within(&sample.of_errors.positions, &near.sources)].fill(false);
        }
        Ok((within(&sample.targets, targets), (0..far.len()).filter(|&i| far[i]).collect()))
    };
    sample.leaves.iter().map(of_leaf).collect()
}
