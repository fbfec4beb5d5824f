//! The engine of a rank that sums together with others directly.

use super::ranks::{RanksReport, share_of_memory};
use super::{Engine, Placed, ProbeSeconds, Watch};
use crate::candidates::Layout;
use crate::choice::Choice;
use crate::cloud::{Cloud, Given};
use crate::mesh::Mesh;
use crate::near::NearBlock;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use fmm_dist::World;
use fmm_traits::{Error, StageSeconds, Targets};

/// Direct summation: each rank gets all sources, and sums at its own targets.
pub(crate) struct DirectOnRanks {
    inner: Box<dyn Engine>,
    world: World,
    own: Vec<f64>,
    targets: Vec<f64>,
    n_targets: usize,
}

impl DirectOnRanks {
    pub fn new(request: &Fmm, choice: &Choice, world: &World) -> Self {
        let processor = request.backend.processor();
        let inner = match choice.layout {
            Layout::Octree(parts) => processor.engine(request, choice, parts),
            Layout::Pyramid { pairs, theta } => processor.engine_of_plane(request, choice, pairs, theta),
        };
        let world = world.clone();
        DirectOnRanks { inner, world, own: Vec::new(), targets: Vec::new(), n_targets: 0 }
    }
}

impl Engine for DirectOnRanks {
    fn asked(&self) -> (&Fmm, &Choice) {
        self.inner.asked()
    }

    fn free_memory(&self) -> Result<Option<u64>, Error> {
        share_of_memory(&*self.inner, &self.world)
    }

    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        self.inner.reference(sources, strengths, targets)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let (sources, targets) = cloud.on_host().map_err(|_| {
            let reason = "the points are on devices: name a fast method, or give arrays of the host".to_string();
            Error::Unsupported { operation: "a direct sum on several ranks", reason }
        })?;
        let dim = self.asked().1.facts.dim;
        let all = self.world.all_gather(sources.to_vec())?;
        let first = all[..self.world.rank()].iter().map(|part| part.len() / dim).sum::<usize>();
        let indices: Vec<usize> = match targets {
            Targets::Sources => (first..first + sources.len() / dim).collect(),
            Targets::Subset(s) => s.iter().map(|i| first + i).collect(),
            Targets::Points(_) => Vec::new(),
        };
        let mine = if let Targets::Points(_) = targets { targets } else { Targets::Subset(&indices) };
        self.own = sources.to_vec();
        self.n_targets = targets.count(sources.len() / dim, dim);
        self.targets = if let Targets::Points(t) = targets { t.to_vec() } else { Vec::new() };
        let (all, (request, choice)) = (all.concat(), self.inner.asked());
        let given = Given::Host(&all, mine);
        let cloud = Cloud::of(request, &choice.facts, given, given.counts(dim)?)?;
        self.inner.place(&cloud, watch)
    }

    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        self.inner.preview(order)
    }
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        self.inner.measure(order)
    }
    fn sample(&self) -> Option<&Sample> {
        self.inner.sample()
    }
    fn forget(&mut self) {
        self.inner.forget();
    }
    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        self.inner.settle(order, watch)
    }
    fn commit(&mut self) {
        self.inner.commit();
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let mut all = Vec::new();
        for q in strengths {
            all.push(self.world.all_gather(q.to_vec())?.concat());
        }
        let all: Vec<&[f64]> = all.iter().map(|q| &q[..]).collect();
        self.inner.run(&all, rows, watch)
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        Ok((self.own.clone(), self.targets.clone()))
    }
    fn mesh(&self) -> Mesh {
        self.inner.mesh()
    }

    fn on_ranks(&self) -> Option<RanksReport> {
        let dim = self.asked().1.facts.dim;
        Some(RanksReport {
            ranks: self.world.size(),
            rank: self.world.rank(),
            device: self.asked().0.backend.processor().gpu(),
            exchange: "gather",
            owned_sources: self.own.len() / dim,
            owned_targets: self.n_targets,
            ghosts: 0,
            messages: 0,
            rows: 0,
            bytes: 0,
            work: 0.0,
            imbalance: 1.0,
            imbalance_by_points: None,
        })
    }

    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::empty())
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes() + 8 * (self.own.len() + self.targets.len()) as u64
    }
}
