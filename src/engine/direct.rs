//! Pair by pair.

use super::{Engine, Mesh, Placed, Watch};
use crate::choose::Choice;
use crate::family::AnyFamily;
use crate::near::NearBlock;
use crate::request::{Fmm, Targets};
use backend_cpu::{Isa, Precision, sum::together};
use fmm_traits::{Error, Outputs, Stage};
use std::time::Instant;

/// Pairs of one uninterruptible piece of a sum.
const PIECE: usize = 1 << 32;

/// Direct summation.
pub(crate) struct Direct {
    family: AnyFamily,
    outputs: Outputs,
    precision: Precision,
    isa: Isa,
    dim: usize,
    values: usize,
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
        Direct {
            family: request.family.clone(),
            outputs: request.outputs,
            precision: request.precision,
            isa: choice.isa,
            dim: choice.facts.dim,
            values: choice.facts.values,
            sources: Vec::new(),
            targets: At::Sources(Vec::new()),
        }
    }
    fn n_sources(&self) -> usize {
        self.sources.len() / self.dim
    }
    fn n_targets(&self) -> usize {
        match &self.targets {
            At::Sources(s) => s.len(),
            At::Points(t) => t.len() / self.dim,
        }
    }
}

impl Engine for Direct {
    fn place(&mut self, sources: &[f64], targets: Targets<'_>, _watch: Watch) -> Result<Placed, Error> {
        self.sources = sources.to_vec();
        self.targets = match targets {
            Targets::Sources => At::Sources((0..self.n_sources()).collect()),
            Targets::Subset(s) => At::Sources(s.to_vec()),
            Targets::Points(t) => At::Points(t.to_vec()),
        };
        Ok(Placed::default())
    }

    fn run(&self, strengths: &[f64], rows: &mut [f64], watch: Watch) -> Result<[f64; Stage::ALL.len()], Error> {
        self.run_batch(&[strengths], &mut [rows], watch)
    }

    /// In pieces, so that it can be watched.
    fn run_batch(
        &self,
        strengths: &[&[f64]],
        rows: &mut [&mut [f64]],
        watch: Watch,
    ) -> Result<[f64; Stage::ALL.len()], Error> {
        let (start, targets) = (Instant::now(), self.n_targets());
        let piece = (PIECE / self.n_sources() / strengths.len()).max(1024);
        for first in (0..targets).step_by(piece) {
            watch(Stage::P2p.name(), first as f64 / targets as f64)?;
            let range = first..targets.min(first + piece);
            let place = match &self.targets {
                At::Points(t) => backend_cpu::Targets::Points(&t[self.dim * range.start..self.dim * range.end]),
                At::Sources(s) => backend_cpu::Targets::Sources(Some(&s[range.clone()])),
            };
            let (outputs, precision) = (self.outputs, self.precision);
            let sums = self.family.0.direct(outputs, &self.sources, strengths, place, precision, self.isa)?;
            for (rows, sums) in rows.iter_mut().zip(&sums) {
                rows[self.values * range.start..self.values * range.end].copy_from_slice(sums);
            }
        }
        let mut seconds = [0.0; Stage::ALL.len()];
        seconds[Stage::P2p as usize] = start.elapsed().as_secs_f64();
        Ok(seconds)
    }

    fn together(&self) -> (usize, u64) {
        let bytes = 8 * (self.n_sources() + self.values * self.n_targets()) as u64;
        (if self.dim == 3 { together(self.values) } else { 1 }, bytes)
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
