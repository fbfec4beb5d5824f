//! The engine of direct summation.

use super::{Engine, Placed, ProbeSeconds, Watch};
use crate::candidates::Layout;
use crate::choice::Choice;
use crate::cloud::Cloud;
use crate::mesh::Mesh;
use crate::near::NearBlock;
use crate::probe::sample::Sample;
use crate::probe::{SCATTER_SETS, Trial};
use crate::request::Fmm;
use crate::rng::Rng;
use backend_cpu::sum::together;
use fmm_families::Facts;
use fmm_traits::{Error, Precision, Stage, StageSeconds, Targets};
use std::time::Instant;

/// Number of pairs of each thread in one part of a sum: a few seconds. Cancellation takes effect between parts. Each part
/// arranges the sources anew, so that shorter parts cost more.
const PAIRS_OF_A_THREAD: usize = 1 << 30;

/// Number of targets at which the rounding error of direct sums is measured.
const MEASURED_TARGETS: usize = 256;
/// Number of sets of strengths with which errors are measured: one uniform in (0, 1), the others normal.
const MEASURED_SETS: usize = 3;
/// Seed of the choice of targets and of the strengths in this measurement.
const SEED: u64 = 0x4449_5245;

/// Direct summation.
pub(crate) struct Direct {
    request: Fmm,
    choice: Choice,
    points: Ends,
    /// New points before they are settled, and the sample on which errors were measured.
    site: Option<(Ends, Option<Trial>)>,
}

/// Sources and targets.
struct Ends {
    sources: Vec<f64>,
    targets: At,
}

/// The targets of the sums.
enum At {
    /// The sources with these indices.
    Sources(Vec<usize>),
    /// Separate points.
    Points(Vec<f64>),
}

impl Direct {
    pub fn new(request: &Fmm, choice: &Choice) -> Self {
        let points = Ends { sources: Vec::new(), targets: At::Sources(Vec::new()) };
        Direct { request: request.clone(), choice: choice.clone(), points, site: None }
    }
    fn n_sources(&self) -> usize {
        self.points.sources.len() / self.choice.facts.dim
    }
    fn n_targets(&self) -> usize {
        self.points.count(self.choice.facts.dim)
    }
}

impl Ends {
    /// Number of targets.
    fn count(&self, dim: usize) -> usize {
        match &self.targets {
            At::Sources(s) => s.len(),
            At::Points(t) => t.len() / dim,
        }
    }
    fn mesh(&self, dim: usize) -> Mesh {
        let near_pairs = (self.sources.len() / dim) as u64 * self.count(dim) as u64;
        Mesh { near_pairs, ..Mesh::default() }
    }
}

impl Engine for Direct {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, cloud: &Cloud, _watch: Watch) -> Result<(), Error> {
        let (sources, targets) = cloud.on_host()?;
        let targets = match targets {
            Targets::Sources => At::Sources((0..sources.len() / self.choice.facts.dim).collect()),
            Targets::Subset(s) => At::Sources(s.to_vec()),
            Targets::Points(t) => At::Points(t.to_vec()),
        };
        self.site = Some((Ends { sources: sources.to_vec(), targets }, None));
        Ok(())
    }

    fn preview(&mut self, _: usize) -> Result<Mesh, Error> {
        Ok(self.site.as_ref().map_or_else(Mesh::default, |(ends, _)| ends.mesh(self.choice.facts.dim)))
    }

    /// Measures the rounding error: compares sums in the requested precision with sums in f64. The error of sums in f64
    /// counts as zero.
    fn measure(&mut self, _: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let (r, c, start) = (&self.request, &self.choice, Instant::now());
        let Some((ends, trial)) = &mut self.site else { return Ok(Default::default()) };
        if r.precision == Precision::F64 {
            return Ok((vec![0.0; c.facts.columns.len()], ProbeSeconds::default()));
        }
        let (dim, mut rng) = (c.facts.dim, Rng::new(SEED));
        // Several ranks have all sources, each its own targets.
        let world = r.world.clone().unwrap_or_default();
        let (mine, count) = world.numbers(ends.count(dim))?;
        let picked = rng.sample(count, MEASURED_TARGETS);
        let here = picked.iter().filter(|i| mine.contains(i)).map(|i| i - mine.start);
        let at: (Vec<usize>, Vec<f64>);
        let targets = match &ends.targets {
            At::Points(t) => {
                let mine: Vec<f64> = here.flat_map(|i| &t[dim * i..dim * (i + 1)]).copied().collect();
                at = (vec![], world.all_gather(mine)?.concat());
                fmm_traits::Targets::Points(&at.1)
            }
            At::Sources(s) => {
                at = (world.all_gather(here.map(|i| s[i]).collect::<Vec<_>>())?.concat(), vec![]);
                fmm_traits::Targets::Subset(&at.0)
            }
        };
        let n = ends.sources.len() / dim * c.facts.linear();
        // Further normal sets show how much the norm scatters.
        let mut set = |k: usize| {
            let strengths: Vec<f64> = (0..n).map(|_| if k == 0 { rng.uniform() } else { rng.binomial() }).collect();
            r.attributes.join(&strengths, &c.facts).unwrap_or(strengths)
        };
        let strengths: Vec<Vec<f64>> = (0..MEASURED_SETS + SCATTER_SETS).map(&mut set).collect();
        let sets: Vec<&[f64]> = strengths.iter().map(|q| &q[..]).collect();
        let sums =
            |sets: &[&[f64]], precision| r.family.direct(r.outputs, &ends.sources, sets, targets, precision, c.isa);
        let mut exact = sums(&sets, Precision::F64)?;
        c.facts.pull_back(&mut exact);
        let computed = sums(&sets[..MEASURED_SETS], r.precision)?;
        let others = exact.split_off(MEASURED_SETS);
        let positions = picked.iter().map(|&i| i as u32).collect();
        let trial = trial.insert(Trial::of_targets(positions, exact, others, &c.facts, count));
        let seconds = ProbeSeconds { sums: start.elapsed().as_secs_f64(), operators: 0.0 };
        Ok((trial.bounds(computed, &c.facts, r.norm), seconds))
    }

    fn sample(&self) -> Option<&Sample> {
        Some(&self.site.as_ref()?.1.as_ref()?.drawn.sample)
    }

    fn forget(&mut self) {
        self.site = None;
    }

    fn settle(&mut self, _: usize, _watch: Watch) -> Result<Placed, Error> {
        if let Some((points, _)) = self.site.take() {
            self.points = points;
        }
        Ok(Placed::default())
    }

    /// Computes the sums in parts of the targets, and calls `watch` before each part.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let (start, targets) = (Instant::now(), self.n_targets());
        let (r, isa) = (&self.request, self.choice.isa);
        let Facts { dim, values, .. } = self.choice.facts;
        let pairs = PAIRS_OF_A_THREAD.saturating_mul(rayon::current_num_threads());
        let piece = (pairs / self.n_sources() / strengths.len()).max(1024);
        for first in (0..targets).step_by(piece) {
            watch(Stage::P2p.name(), first as f64 / targets as f64)?;
            let range = first..targets.min(first + piece);
            let place = match &self.points.targets {
                At::Points(t) => fmm_traits::Targets::Points(&t[dim * range.start..dim * range.end]),
                At::Sources(s) => fmm_traits::Targets::Subset(&s[range.clone()]),
            };
            let sums = r.family.direct(r.outputs, &self.points.sources, strengths, place, r.precision, isa)?;
            for (rows, sums) in rows.iter_mut().zip(&sums) {
                rows[values * range.start..values * range.end].copy_from_slice(sums);
            }
        }
        let mut seconds = StageSeconds::default();
        seconds[Stage::P2p as usize] = start.elapsed().as_secs_f64();
        Ok(seconds)
    }

    fn together(&self) -> (usize, u64) {
        let Facts { strengths, values, .. } = self.choice.facts;
        let bytes = 8 * (strengths * self.n_sources() + values * self.n_targets()) as u64;
        (if matches!(self.choice.layout, Layout::Octree(_)) { together(values) } else { 1 }, bytes)
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let targets = if let At::Points(t) = &self.points.targets { t.clone() } else { Vec::new() };
        Ok((self.points.sources.clone(), targets))
    }

    fn mesh(&self) -> Mesh {
        self.points.mesh(self.choice.facts.dim)
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::once(NearBlock::whole(self.n_targets(), self.n_sources())))
    }

    fn bytes(&self) -> u64 {
        let targets = match &self.points.targets {
            At::Sources(s) => s.len(),
            At::Points(t) => t.len(),
        };
        8 * (self.points.sources.len() + targets) as u64
    }
}
