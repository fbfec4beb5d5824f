//! Pair by pair.

use super::{Engine, Mesh, Placed, Seconds, Watch};
use crate::choose::Choice;
use crate::near::NearBlock;
use crate::request::{Fmm, Targets};
use backend_cpu::sum::together;
use fmm_families::Facts;
use fmm_traits::{Error, Stage};
use std::time::Instant;

/// Pairs of one uninterruptible piece of a sum.
const PIECE: usize = 1 << 32;

/// Direct summation.
pub(crate) struct Direct {
    request: Fmm,
    choice: Choice,
    sources: Vec<f64>,
    targets: At,
}

/// Where the sums are wanted.
enum At {
    /// At these sources.
    Sources(Vec<usize>),
    /// At points of their own.
    Points(Vec<f64>),
}

impl Direct {
    pub(super) fn new(request: &Fmm, choice: &Choice) -> Self {
        let (sources, targets) = (Vec::new(), At::Sources(Vec::new()));
        Direct { request: request.clone(), choice: choice.clone(), sources, targets }
    }
    fn n_sources(&self) -> usize {
        self.sources.len() / self.choice.facts.dim
    }
    fn n_targets(&self) -> usize {
        match &self.targets {
            At::Sources(s) => s.len(),
            At::Points(t) => t.len() / self.choice.facts.dim,
        }
    }
}

impl Engine for Direct {
    fn asked(&self) -> (&Fmm, &Choice) {
        (&self.request, &self.choice)
    }

    fn place(&mut self, sources: &[f64], targets: Targets<'_>, _watch: Watch) -> Result<Placed, Error> {
        self.sources = sources.to_vec();
        self.targets = match targets {
            Targets::Sources => At::Sources((0..self.n_sources()).collect()),
            Targets::Subset(s) => At::Sources(s.to_vec()),
            Targets::Points(t) => At::Points(t.to_vec()),
        };
        Ok(Placed::default())
    }

    /// In pieces, so that it can be watched.
    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<Seconds, Error> {
        let (start, targets) = (Instant::now(), self.n_targets());
        let (r, isa) = (&self.request, self.choice.isa);
        let Facts { dim, values, .. } = self.choice.facts;
        let piece = (PIECE / self.n_sources() / strengths.len()).max(1024);
        for first in (0..targets).step_by(piece) {
            watch(Stage::P2p.name(), first as f64 / targets as f64)?;
            let range = first..targets.min(first + piece);
            let place = match &self.targets {
                At::Points(t) => backend_cpu::Targets::Points(&t[dim * range.start..dim * range.end]),
                At::Sources(s) => backend_cpu::Targets::Sources(Some(&s[range.clone()])),
            };
            let sums = r.family.direct(r.outputs, &self.sources, strengths, place, r.precision, isa)?;
            for (rows, sums) in rows.iter_mut().zip(&sums) {
                rows[values * range.start..values * range.end].copy_from_slice(sums);
            }
        }
        let mut seconds = Seconds::default();
        seconds[Stage::P2p as usize] = start.elapsed().as_secs_f64();
        Ok(seconds)
    }

    fn together(&self) -> (usize, u64) {
        let Facts { dim, strengths, values, .. } = self.choice.facts;
        let bytes = 8 * (strengths * self.n_sources() + values * self.n_targets()) as u64;
        (if dim == 3 { together(values) } else { 1 }, bytes)
    }

    fn points(&self) -> (Vec<f64>, Vec<f64>) {
        let targets = if let At::Points(t) = &self.targets { t.clone() } else { Vec::new() };
        (self.sources.clone(), targets)
    }

    fn mesh(&self) -> Mesh {
        Mesh { near_pairs: self.n_sources() as u64 * self.n_targets() as u64, ..Mesh::default() }
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::once(NearBlock::whole(self.n_targets(), self.n_sources())))
    }

    fn bytes(&self) -> u64 {
        let targets = match &self.targets {
            At::Sources(s) => s.len(),
            At::Points(t) => t.len(),
        };
        8 * (self.sources.len() + targets) as u64
    }
}
