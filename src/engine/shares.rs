//! The engine of a rank on a GPU that has the points of all ranks, and sums at its share of the targets.

use super::ranks::{RanksReport, multipole_bytes, share_of_memory};
use super::{Device, Engine, Placed, Placement, ProbeSeconds, Watch, not_placed, picked};
use crate::choice::Choice;
use crate::cloud::{Cloud, OfRanks};
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::sample::Sample;
use crate::request::{Cuda, Fmm};
use backend_cuda::{CallerPoints, DeviceSums, Share, Sharing, Works};
use fmm_dist::{Strategy, World};
use fmm_traits::{Error, Messages, StageSeconds, Targets};
use std::ops::Range;
use std::sync::Arc;

/// Any large number: prices of so many items are not hidden by the fixed costs of an evaluation.
const MANY: usize = 1 << 30;

/// A fast method on the tree of all ranks. Every rank builds it on its GPU.
pub(crate) struct Shares {
    inner: Device,
    parts: Parts,
    world: World,
    /// `None` before points are settled.
    settled: Option<Settled>,
    /// New points before they are settled, with the numbers of the points of each rank.
    new: Option<(Own, [Vec<usize>; 2])>,
}

/// The points of this rank.
struct Own {
    /// The numbers of its sources among those of all ranks.
    sources: Range<usize>,
    /// Targets that are separate points.
    targets: Option<Arc<CallerPoints>>,
    /// The sources that the output shows; `None` for all targets.
    pick: Option<Vec<usize>>,
}

struct Settled {
    own: Own,
    report: RanksReport,
}

impl Shares {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, parts: Parts, world: &World) -> Self {
        let inner = Device::new(cuda, request, choice, parts);
        Shares { inner, parts, world: world.clone(), settled: None, new: None }
    }

    /// The prices of the parts of an evaluation.
    fn works(&self, order: usize) -> Works {
        let (r, c) = self.inner.asked();
        let prices = r.backend.processor().prices(r, &c.facts);
        let price = |mesh: &Mesh, points| prices.price(&self.parts, order, mesh, points);
        let nothing = price(&Mesh::default(), [0, 0]);
        let of = |mesh: Mesh, points| (price(&mesh, points) - nothing) / MANY as f64;
        let edges = |edges: Edges| Mesh { edges, ..Mesh::default() };
        Works {
            pair: of(Mesh { near_pairs: MANY as u64, ..Mesh::default() }, [0, 0]),
            near_edge: of(edges(Edges { p2p: MANY, ..Edges::default() }), [0, 0]),
            far_edge: of(edges(Edges { m2l: MANY, ..Edges::default() }), [0, 0]),
            far_point: of(Mesh { far_points: MANY as u64, ..Mesh::default() }, [0, 0]),
            leaf: of(Mesh { leaves: MANY, ..Mesh::default() }, [0, 0]),
            target: of(Mesh::default(), [0, MANY]),
        }
    }

    fn report(&self, share: Share, order: usize) -> RanksReport {
        let (r, c) = self.inner.asked();
        let row = multipole_bytes(r, c, &self.parts, order);
        RanksReport {
            ranks: self.world.size(),
            rank: self.world.rank(),
            device: r.backend.processor().number(),
            exchange: Strategy::Frontier.name(),
            owned_sources: share.sources,
            owned_targets: share.targets,
            ghosts: share.ghosts,
            messages: share.messages,
            rows: share.rows,
            bytes: share.rows as u64 * row + (share.lent * c.facts.strengths * size_of::<f64>()) as u64,
            work: share.work,
            imbalance: share.imbalance,
            imbalance_by_points: None,
        }
    }
}

impl Engine for Shares {
    fn asked(&self) -> (&Fmm, &Choice) {
        self.inner.asked()
    }
    fn free_memory(&self) -> Result<Option<u64>, Error> {
        share_of_memory(&self.inner, &self.world)
    }
    fn reference(&self, sources: &[f64], strengths: &[f64], targets: Targets<'_>) -> Result<Vec<f64>, Error> {
        self.inner.reference(sources, strengths, targets)
    }

    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let Some(OfRanks { counts, targets, .. }) = &cloud.on_device()?.of_ranks else { return not_placed() };
        self.inner.place(cloud, watch)?;
        let facts = &self.asked().1.facts;
        let pick = cloud.on_host().ok().and_then(|(x, targets)| Placement::of(facts, x, targets).into_pick());
        let (before, rank) = (|rank: usize| counts[0][..rank].iter().sum::<usize>(), self.world.rank());
        let own = Own { sources: before(rank)..before(rank + 1), targets: targets.clone(), pick };
        self.new = Some((own, counts.clone()));
        Ok(())
    }

    /// All ranks count the same boxes and edges. The mean over coordinates may differ in its last bits on another model of
    /// GPU, so all take that of rank 0.
    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        let mut mesh = self.inner.preview(order)?;
        mesh.corners = self.world.tell(0, mesh.corners)?;
        Ok(mesh)
    }

    /// Every rank measures, so that every rank has made operators. All take the bounds of rank 0.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        let (bounds, seconds) = self.inner.measure(order)?;
        let (bounds, [sums, operators]) = self.world.tell(0, (bounds, [seconds.sums, seconds.operators]))?;
        Ok((bounds, ProbeSeconds { sums, operators }))
    }
    fn sample(&self) -> Option<&Sample> {
        self.inner.sample()
    }
    fn forget(&mut self) {
        self.inner.forget();
        self.new = None;
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some((own, given)) = self.new.take() else { return not_placed() };
        let speeds = self.world.all_gather(self.asked().0.speed)?;
        let messages: Arc<dyn Messages> = Arc::new(self.world.clone());
        let sharing = Sharing { messages, given, speeds, works: self.works(order) };
        let (settings, mut mine) = (self.inner.settings(order), Share::default());
        let placed = self.inner.settled(order, watch, |tree| {
            let (tree, share) = tree.share(&settings, &sharing)?;
            // Slots of messages mean the same to all.
            let same = format!("{} boxes, cuts {:?}", share.boxes, share.cuts);
            self.world.agree(&[("the tree of all points", same)])?;
            mine = share;
            Ok(tree)
        })?;
        let report = self.report(mine, order);
        self.settled = Some(Settled { own, report });
        Ok(placed)
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(Settled { own, .. }) = &self.settled else { return not_placed() };
        let values = self.asked().1.facts.values;
        picked(own.pick.as_deref(), own.sources.len(), values, rows, |rows| self.inner.run(strengths, rows, watch))
    }
    fn sums(&self) -> Option<&dyn DeviceSums> {
        self.settled.as_ref().filter(|settled| settled.own.pick.is_none()).and_then(|_| self.inner.sums())
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let Some(Settled { own: Own { sources, targets, .. }, .. }) = &self.settled else { return not_placed() };
        let (all, dim) = (self.inner.points()?.0, self.parts.dim);
        let mine = all[dim * sources.start..dim * sources.end].to_vec();
        Ok((mine, targets.as_ref().map(|targets| targets.download()).transpose()?.unwrap_or_default()))
    }
    /// Boxes are those of all ranks, edges those of this rank.
    fn mesh(&self) -> Mesh {
        self.inner.mesh()
    }
    fn on_ranks(&self) -> Option<RanksReport> {
        self.settled.as_ref().map(|settled| settled.report.clone())
    }
    /// Empty: the sources of other ranks have no number on this rank.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::empty())
    }
    fn bytes(&self) -> u64 {
        let targets = self.settled.as_ref().and_then(|settled| settled.own.targets.as_deref());
        let own = targets.map_or(0, |points| (points.len() * points.dim() * size_of::<f64>()) as u64);
        self.inner.bytes() + own
    }
}
