//! The engine of a rank on a GPU that has the boxes of all ranks, and sums at its share of the targets.

use super::ranks::{RanksReport, multipole_bytes, share_of_memory};
use super::{Device, Engine, Placed, Placement, ProbeSeconds, Watch, not_placed, picked};
use crate::backend::Cuda;
use crate::choice::Choice;
use crate::cloud::{Cloud, OfRanks};
use crate::mesh::{Edges, Mesh};
use crate::near::NearBlock;
use crate::parts::Parts;
use crate::probe::sample::Sample;
use crate::request::Fmm;
use backend_cuda::{DeviceArray, DeviceStream, DeviceSums, Share, Sharing, Works};
use fmm_dist::{Strategy, World};
use fmm_traits::{Error, StageSeconds, Targets};

/// Any large number: prices of so many items are not hidden by the fixed costs of an evaluation.
const MANY: usize = 1 << 30;

/// A fast method on the tree of all ranks. Every rank builds it on its GPU.
pub(crate) struct Shares {
    inner: Device,
    parts: Parts,
    world: World,
    /// `None` before there are current points.
    current: Option<Settled>,
    /// New points before they are settled.
    new: Option<New>,
    /// Settled points before they are the current points.
    ready: Option<Settled>,
}

/// New points.
struct New {
    points: OfRanks,
    /// Whether each rank has its own points alone in the tree.
    joint: bool,
    /// The sources of this rank that the output shows; `None` for all targets.
    pick: Option<Vec<usize>>,
}

struct Settled {
    /// Numbers of sources of the callers of all ranks.
    sources: Vec<usize>,
    /// As of [`New`].
    pick: Option<Vec<usize>>,
    report: RanksReport,
}

impl Shares {
    pub fn new(cuda: Cuda, request: &Fmm, choice: &Choice, parts: Parts, world: &World) -> Self {
        let inner = Device::new(cuda, request, choice, parts);
        Shares { inner, parts, world: world.clone(), current: None, new: None, ready: None }
    }

    /// The prices of the parts of an evaluation.
    fn works(&self, order: usize) -> Works {
        let (r, c) = self.inner.asked();
        let prices = r.backend.processor().prices(r, &c.facts);
        let of = |mesh: Mesh, points| prices.work(&self.parts, order, &mesh, points) / MANY as f64;
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
            bytes: share.rows as u64 * row + (share.lent * c.facts.strengths * r.precision.bytes()) as u64,
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

    /// Measured are sums over points of all ranks, which each rank has for it. Where nothing is measured, each rank has its own.
    /// New points of a plan are seldom measured.
    fn place(&mut self, cloud: &Cloud, watch: Watch) -> Result<(), Error> {
        let Some(points) = cloud.on_ranks().cloned() else { return not_placed() };
        let facts = &self.asked().1.facts;
        let pick = cloud.on_host().ok().and_then(|(x, targets)| Placement::of(facts, x, targets).into_pick());
        let measured = self.asked().0.order.is_none() && self.current.is_none();
        let joint = !measured && self.inner.place_jointly(&points, watch)?;
        if !joint {
            self.inner.place_there(points.gathered()?, watch)?;
        }
        self.new = Some(New { points, joint, pick });
        Ok(())
    }

    /// All ranks count the same boxes and edges. The mean over coordinates may differ in its last bits on another model of
    /// GPU, so all take that of rank 0.
    fn preview(&mut self, order: usize) -> Result<Mesh, Error> {
        if let Some(New { points, joint: true, .. }) = &self.new {
            self.inner.know_corners(points)?;
        }
        let mut mesh = self.inner.preview(order)?;
        mesh.corners = self.world.tell(0, mesh.corners)?;
        Ok(mesh)
    }

    /// Every rank measures, so that every rank has made operators. All take the bounds of rank 0.
    fn measure(&mut self, order: usize) -> Result<(Vec<f64>, ProbeSeconds), Error> {
        if let Some(New { points, joint: joint @ true, .. }) = &mut self.new {
            self.inner.forget();
            self.inner.place_there(points.gathered()?, &|_, _| Ok(()))?;
            *joint = false;
        }
        let (bounds, seconds) = self.inner.measure(order)?;
        let (bounds, [sums, operators]) = self.world.tell(0, (bounds, [seconds.sums, seconds.operators]))?;
        Ok((bounds, ProbeSeconds { sums, operators }))
    }
    fn sample(&self) -> Option<&Sample> {
        self.inner.sample()
    }
    fn forget(&mut self) {
        self.inner.forget();
        (self.new, self.ready) = (None, None);
    }

    fn settle(&mut self, order: usize, watch: Watch) -> Result<Placed, Error> {
        let Some(New { points, pick, .. }) = self.new.take() else { return not_placed() };
        let speeds = self.world.all_gather(self.asked().0.speed)?;
        let OfRanks { sources, targets, .. } = points.without_gathered();
        let counts = sources.counts().to_vec();
        let sharing = Sharing { sources, targets, speeds, works: self.works(order) };
        let (settings, mut mine) = (self.inner.settings(order), Share::default());
        let world = self.world.clone();
        // The callers' points go when the share has its own, before the solver needs memory.
        let placed = self.inner.settled(order, watch, |tree| {
            let (tree, share) = tree.share(&settings, sharing)?;
            // Slots of messages mean the same to all.
            let same = format!("{} boxes, cuts {:?}", share.boxes, share.cuts);
            world.agree(&[("the tree of all points", same)])?;
            mine = share;
            Ok(tree)
        })?;
        let report = self.report(mine, order);
        self.ready = Some(Settled { sources: counts, pick, report });
        Ok(placed)
    }
    fn commit(&mut self) {
        self.inner.commit();
        if let Some(ready) = self.ready.take() {
            self.current = Some(ready);
        }
    }

    fn run(&self, strengths: &[&[f64]], rows: &mut [&mut [f64]], watch: Watch) -> Result<StageSeconds, Error> {
        let Some(Settled { sources, pick, .. }) = &self.current else { return not_placed() };
        let values = self.asked().1.facts.values;
        let mine = sources[self.world.rank()];
        picked(pick.as_deref(), mine, values, rows, |rows| self.inner.run(strengths, rows, watch))
    }
    fn sums(&self) -> Option<&dyn DeviceSums> {
        self.current.as_ref().filter(|current| current.pick.is_none()).and_then(|_| self.inner.sums())
    }

    fn points(&self) -> Result<(Vec<f64>, Vec<f64>), Error> {
        self.inner.points()
    }

    /// Each rank asks the ranks whose callers have the sources of its share.
    fn adopt(&self, rows: &[f64], width: usize) -> Result<Vec<f64>, Error> {
        let Some(Settled { sources: counts, .. }) = &self.current else { return not_placed() };
        let ends: Vec<usize> = counts.iter().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n) + n)).collect();
        let owned = self.inner.owned()?;
        let holders: Vec<usize> =
            owned.iter().map(|&source| ends.partition_point(|&end| end <= source as usize)).collect();
        let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
        for (&source, &holder) in owned.iter().zip(&holders) {
            wanted[holder].push(source - (ends[holder] - counts[holder]) as u32);
        }
        let row = |i: &u32| rows[*i as usize * width..][..width].iter().copied();
        let given = self.world.all_to_all(wanted)?.iter().map(|asked| asked.iter().flat_map(row).collect()).collect();
        let came: Vec<Vec<f64>> = self.world.all_to_all(given)?;
        let mut rest: Vec<_> = came.iter().map(|rows| rows.chunks_exact(width.max(1))).collect();
        Ok(holders.iter().flat_map(|&holder| rest[holder].next().unwrap_or_default()).copied().collect())
    }
    fn adopt_on_device(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error> {
        self.inner.adopt(rows, width, stream)
    }
    /// Boxes are those of all ranks, edges those of this rank.
    fn mesh(&self) -> Mesh {
        self.inner.mesh()
    }
    fn on_ranks(&self) -> Option<RanksReport> {
        self.current.as_ref().map(|current| current.report.clone())
    }
    /// Empty: the sources of other ranks have no number on this rank.
    fn near_field(&self) -> Box<dyn Iterator<Item = NearBlock<'_>> + '_> {
        Box::new(std::iter::empty())
    }
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}
