//! The error of an evaluation, against direct sums in f64 at a sample of the targets.
//!
//! Direct sums are made block by block of the sources, and added up in the order of the blocks. So they do not depend
//! on how ranks share the sources, and no rank needs the sources of the others.

use super::Plan;
use crate::engine::Engine;
use crate::output::{Output, columns_of};
use crate::{rng::Rng, validate};
use fmm_dist::World;
use fmm_traits::{Error, ErrorReport, OutputError, Targets};
use std::collections::BTreeMap;

/// Seed of the targets that [`Plan::verify`] samples.
const SAMPLE_SEED: u64 = 0x5EED;

/// Number of sources in a block: enough that a call costs little beside its sums, and few enough that ranks get blocks
/// alike.
const BLOCK: usize = 1 << 16;

/// Sources, and their strengths.
type Block = (Vec<f64>, Vec<f64>);

/// The sampled targets of all ranks.
struct Sampled {
    points: Vec<f64>,
    /// The numbers of these targets among the sources of all ranks; empty for separate points.
    numbers: Vec<usize>,
}

impl Plan {
    /// The error of an evaluation for `strengths`, against direct summation in f64 at `samples` random targets (the
    /// same targets in each call). The strengths are on the host, also for points on a device.
    ///
    /// # Errors
    /// As [`Plan::apply`].
    pub fn verify(&self, strengths: &[f64], samples: usize) -> Result<ErrorReport, Error> {
        let mut out = [Output::default()];
        self.apply_together(&[strengths], &mut out)?;
        self.verify_output(strengths, &out[0], samples)
    }

    /// [`Plan::verify`] for the existing result `out` of an evaluation.
    ///
    /// # Errors
    /// [`Error::Shape`] if `out` does not fit this plan; else as [`Plan::apply`].
    pub fn verify_output(&self, strengths: &[f64], out: &Output, samples: usize) -> Result<ErrorReport, Error> {
        self.jointly(|| self.verified(strengths, out, samples))
    }

    /// The error of `out` on all ranks.
    fn verified(&self, strengths: &[f64], out: &Output, samples: usize) -> Result<ErrorReport, Error> {
        let facts = &self.choice.facts;
        let kernel = self.request.family.name();
        validate::matrix("strengths", strengths, self.n_sources, facts.linear(), kernel)?;
        let joined = self.request.attributes.join(strengths, facts);
        let strengths = joined.as_deref().unwrap_or(strengths);
        for c in &facts.columns {
            let (found, expected) = (out.get(c.output).len(), self.n_targets * c.columns.len());
            if found != expected {
                let why = "the output of another plan?".to_string();
                return Err(Error::Shape { array: "output", found, expected, why });
            }
        }
        let world = self.request.world.clone().unwrap_or_default();
        world.agree(&[("the number of samples", samples.to_string())])?;
        let (mine, total) = world.numbers(self.n_targets)?;
        let rows = Rng::new(SAMPLE_SEED).sample(total, samples);
        let here: Vec<usize> = rows.iter().filter(|i| mine.contains(i)).map(|i| i - mine.start).collect();
        let exact = match &self.engine {
            None => vec![0.0; rows.len() * facts.values],
            Some(engine) => self.pool.install(|| self.exact(&**engine, &world, strengths, &here))?,
        };
        let mut outputs = Vec::new();
        for c in &facts.columns {
            let k = c.columns.len();
            let found = rows_at(out.get(c.output), here.iter(), k);
            let mut expected = Vec::new();
            columns_of(&exact, facts.values, &c.columns, &mut expected);
            outputs.push(OutputError::of(c.output, &world.all_gather(found)?.concat(), &expected, k));
        }
        Ok(ErrorReport { samples: rows.len(), outputs })
    }

    /// Direct sums at some targets of all ranks, one row of values per target. `here` are those of this rank.
    fn exact(&self, engine: &dyn Engine, world: &World, strengths: &[f64], here: &[usize]) -> Result<Vec<f64>, Error> {
        let (facts, (sources, targets)) = (&self.choice.facts, engine.points()?);
        let first = world.numbers(self.n_sources)?.0.start;
        let source = |&i: &usize| self.subset.as_ref().map_or(i, |subset| subset[i]);
        let (own, points): (Vec<usize>, &[f64]) = match self.separate {
            true => (here.to_vec(), &targets),
            false => (here.iter().map(source).collect(), &sources),
        };
        let numbers = if self.separate { Vec::new() } else { own.iter().map(|i| first + i).collect() };
        let at = Sampled {
            points: world.all_gather(rows_at(points, own.iter(), facts.dim))?.concat(),
            numbers: world.all_gather(numbers)?.concat(),
        };
        let blocks = blocks(world, first, (&sources, facts.dim), (strengths, facts.strengths))?;
        let sums = blocks.into_iter().map(|(block, part)| self.of_block(engine, block, &part, &at));
        let sums = sums.collect::<Result<Vec<_>, Error>>()?;
        // The sum goes from rank to rank.
        let (rank, last) = (world.rank(), world.size() - 1);
        let mut exact = match rank {
            0 => vec![0.0; at.points.len() / facts.dim * facts.values],
            _ => world.get(rank - 1)?,
        };
        sums.iter().for_each(|rows| exact.iter_mut().zip(rows).for_each(|(sum, x)| *sum += x));
        if rank < last {
            world.put(rank + 1, &exact)?;
        }
        let mut exact = world.tell(last, exact)?;
        facts.pull_back(std::slice::from_mut(&mut exact));
        Ok(exact)
    }

    /// Direct sums over a block. Targets among its sources have a number there, by which a sum skips them.
    fn of_block(
        &self,
        engine: &dyn Engine,
        block: usize,
        (sources, strengths): &Block,
        at: &Sampled,
    ) -> Result<Vec<f64>, Error> {
        let (dim, values) = (self.choice.facts.dim, self.choice.facts.values);
        let count = at.points.len() / dim;
        let inside = |k: &usize| at.numbers.get(*k).is_some_and(|number| number / BLOCK == block);
        let (among, apart): (Vec<usize>, Vec<usize>) = (0..count).partition(inside);
        let indices: Vec<usize> = among.iter().map(|&k| at.numbers[k] - block * BLOCK).collect();
        let places = rows_at(&at.points, apart.iter(), dim);
        let mut rows = vec![0.0; count * values];
        for (which, targets) in [(among, Targets::Subset(&indices)), (apart, Targets::Points(&places))] {
            if !which.is_empty() {
                let found = engine.reference(sources, strengths, targets)?;
                for (k, row) in which.into_iter().zip(found.chunks_exact(values)) {
                    rows[k * values..(k + 1) * values].copy_from_slice(row);
                }
            }
        }
        Ok(rows)
    }
}

/// The blocks of sources that this rank sums over: those of which it has the first source. It gets the others. `first`
/// is the number of its first source. Sources and strengths come with their numbers per row.
fn blocks(
    world: &World,
    first: usize,
    (sources, dim): (&[f64], usize),
    (strengths, width): (&[f64], usize),
) -> Result<BTreeMap<usize, Block>, Error> {
    let firsts: Vec<usize> = world.all_gather(first)?;
    let owner = |block: usize| firsts.partition_point(|&first| first <= block * BLOCK) - 1;
    let (mut parts, end) = (vec![Vec::new(); world.size()], first + sources.len() / dim);
    for block in first / BLOCK..end.div_ceil(BLOCK) {
        let here = (block * BLOCK).max(first) - first..((block + 1) * BLOCK).min(end) - first;
        let rows = |all: &[f64], width: usize| all[width * here.start..width * here.end].to_vec();
        parts[owner(block)].push((block, (rows(sources, dim), rows(strengths, width))));
    }
    let mut blocks: BTreeMap<usize, Block> = BTreeMap::new();
    for (block, (sources, strengths)) in world.all_to_all(parts)?.into_iter().flatten() {
        let (all_sources, all_strengths) = blocks.entry(block).or_default();
        all_sources.extend(sources);
        all_strengths.extend::<Vec<f64>>(strengths);
    }
    Ok(blocks)
}

/// The rows with some indices, `width` numbers each.
fn rows_at<'a>(all: &[f64], indices: impl Iterator<Item = &'a usize>, width: usize) -> Vec<f64> {
    indices.flat_map(|&i| &all[width * i..width * (i + 1)]).copied().collect()
}
