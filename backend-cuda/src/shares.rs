//! Devices that hold the same tree and share out its targets: `kernels/shares.cu`.
//!
//! Each rank has one device, with the boxes of the tree of all points and lists for a part of the targets. The rank takes
//! a *share*: an interval of the targets in tree order that cuts no leaf, with the sources of the same leaves. The ends of
//! shares are *cuts*. All ranks find the same cuts, from the same numbers. A rank gets the points of its share, and those
//! that it sums point by point, from their callers. A rank keeps the edges into boxes with targets of its share, and the
//! upward edges of boxes with sources of its share or of several shares; it keeps these boxes, the boxes that it reads,
//! and all boxes above them. It computes multipoles of boxes all of whose sources belong to its share, and gets the others
//! that it reads from the ranks that compute them. Some boxes have sources of several shares. Each rank computes the
//! multipoles of these boxes itself, from those of their children, as a single device does. So a target gets the sum that
//! one device would compute: to the bit, but for dense translations, which a device cuts into parts by the number of
//! boxes.

mod own;
mod points;
pub(crate) mod programs;
mod routes;

use crate::arrange::Arranger;
use crate::device::{Arg, Buffer, ByItem, Device, Functions};
use crate::joint::{JointPoints, OwnOrder};
use crate::link::Link;
use crate::lists::{DeviceEdges, DeviceLists, Scope};
use crate::primitives::Primitives;
use crate::programs::arrange;
use crate::ranks::Ranks;
use crate::rounds::{DeviceRound, DeviceRoutes, Slots};
use crate::tree::{DevicePoints, DeviceShared, DeviceTree, Mine};
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Messages};
use std::ops::Range;
use std::sync::Arc;

/// Threads per block.
const BLOCK: u32 = 256;
/// Largest number of bins in which the work at targets is added up. A cut lies at the first leaf behind the end of a bin.
const MAX_BINS: usize = 1 << 14;
/// Prices are scaled so that the largest is this integer. That of a pair, some thousand times lower, keeps enough digits.
const LARGEST_PRICE: f64 = (1u32 << 24) as f64;

/// Forecast seconds of the parts of an evaluation, by which targets are shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Works {
    /// Of a pair of points in the near field.
    pub pair: f64,
    /// Of an edge of P2P.
    pub near_edge: f64,
    /// Of an edge of M2L.
    pub far_edge: f64,
    /// Of a target of an edge of M2P, or a source of one of P2L.
    pub far_point: f64,
    /// Of a leaf with targets.
    pub leaf: f64,
    /// Of a target.
    pub target: f64,
}

/// How ranks share a tree. All ranks have the same numbers.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The sources of all ranks.
    pub sources: JointPoints,
    /// The targets, if they are separate points.
    pub targets: Option<JointPoints>,
    /// How fast the ranks are, relative to each other. A rank gets work in proportion.
    pub speeds: Vec<f64>,
    /// Prices of the work.
    pub works: Works,
}

impl Sharing {
    /// The targets.
    fn targets(&self) -> &JointPoints {
        self.targets.as_ref().unwrap_or(&self.sources)
    }
}

/// What a rank has of a shared tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// Number of sources of the share.
    pub sources: usize,
    /// Number of targets.
    pub targets: usize,
    /// Number of boxes of the tree of all points. All ranks have the same.
    pub boxes: usize,
    /// First source and first target of each share, then the numbers of both. All ranks have the same.
    pub cuts: Vec<[u32; 2]>,
    /// Messages with multipoles that the rank sends in an evaluation.
    pub messages: usize,
    /// Multipoles in these messages.
    pub rows: usize,
    /// Sources of this rank's caller that other ranks need, each counted once for each of these ranks: their strengths
    /// travel in an evaluation.
    pub lent: usize,
    /// Sources of other shares that this rank sums point by point.
    pub ghosts: usize,
    /// Forecast seconds of the rank's work.
    pub work: f64,
    /// Forecast time of the slowest rank over the time with work shared out perfectly.
    pub imbalance: f64,
}

/// The kinds of boxes in `shares.cu`.
#[derive(Clone, Copy)]
enum Kind {
    /// With targets of a share.
    Targets,
    /// With sources of one share alone.
    Sources,
    /// With sources of several shares.
    Several,
}

/// Before shares are known, a rank makes lists for its part and for a margin at both ends: an equal share over this number.
/// Cuts by work are that near to cuts by numbers of points for uniform points and for Plummer's sphere. For points on an
/// ellipsoid they are not, and lists are made twice (`runs/2026-11-26-h200x4/new-points-steps.txt`).
const MARGIN: usize = 32;

/// The order of the own points of a rank in a tree of all points, and the parts of the targets for which ranks make lists before
/// shares are known.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Of the own sources and, if they are separate points, of the own targets.
    pub own: Vec<OwnOrder>,
    pub cuts: Vec<Cut>,
    pub messages: Arc<dyn Messages>,
}

impl Parts {
    /// Parts of equal numbers of targets.
    pub fn new(tree: &DeviceTree, own: Vec<OwnOrder>, messages: &Arc<dyn Messages>) -> Result<Self, Error> {
        Ok(Parts { own, cuts: equal_cuts(tree, messages.size())?, messages: messages.clone() })
    }
    /// The targets of a rank's part, and some around them.
    fn around(&self, rank: usize) -> Range<u32> {
        let all = self.cuts[self.cuts.len() - 1][1];
        let margin = all / (MARGIN * (self.cuts.len() - 1)) as u32;
        let part = targets(&self.cuts, rank);
        part.start.saturating_sub(margin)..part.end.saturating_add(margin).min(all)
    }
    /// The targets for which this rank makes lists.
    pub fn scope(&self) -> Scope {
        Scope::Part { targets: self.around(self.messages.rank()), messages: self.messages.clone() }
    }
    /// Whether the lists of all ranks have the rows of their shares between these cuts.
    fn suffice(&self, cuts: &[Cut]) -> bool {
        (0..cuts.len() - 1).all(|rank| {
            let (share, there) = (targets(cuts, rank), self.around(rank));
            share.is_empty() || there.start <= share.start && share.end <= there.end
        })
    }
}

/// Of lists that ranks have made for their parts: edges of M2L, P2L, L2L, L2P, M2P and P2P, and pairs of points of P2P, of all
/// ranks. All ranks call it together.
pub(crate) fn sizes_of_all(tree: &DeviceTree, lists: &DeviceLists, parts: &Parts) -> Result<[u64; 7], Error> {
    let (device, n, what) = (&tree.device, tree.len(), "edges");
    let kernels = ByItem::new(device, device.fixed("shares", programs::shares)?, BLOCK);
    let (boxes, sums) = (tree.described()?, device.zeros::<u64>(7, what)?);
    let part = targets(&parts.cuts, parts.messages.rank());
    let kinds = [&lists.m2l, &lists.p2l, &lists.l2l, &lists.l2p, &lists.m2p, &lists.p2p];
    let rows = kinds.map(|edges| Arg::from((&edges.starts, &edges.sources)));
    let args = [(&boxes).into(), (n as u32).into(), part.start.into(), part.end.into()];
    // SAFETY: arguments as in shares.cu; there is a row for each box.
    unsafe { kernels.warps("part_counts", n, &[&args[..], &rows, &[(&sums).into()]].concat())? };
    let sums = summed(&*parts.messages, device.download_range(&sums, 0..7, what)?)?;
    Ok(std::array::from_fn(|k| sums[k]))
}

/// The targets of a rank between cuts.
fn targets(cuts: &[Cut], rank: usize) -> Range<u32> {
    cuts[rank][1]..cuts[rank + 1][1]
}

/// The share of this rank in a tree. `lists` are those of its part, and `make` makes lists for other targets.
pub(crate) fn share(
    mut tree: DeviceTree,
    mut lists: DeviceLists,
    parts: &Parts,
    with: &Sharing,
    make: impl FnOnce(&DeviceTree, &Scope) -> Result<DeviceLists, Error>,
) -> Result<(DeviceTree, DeviceLists, Share), Error> {
    let Parts { own: own_order, cuts, messages } = parts;
    let (device, me) = (tree.device.clone(), messages.rank());
    let (boxes, points) = (tree.len(), tree.sources.len().max(tree.targets.len()));
    let mut cutter = Cutter::new(&tree, messages.size(), me)?;
    let (work, imbalance) = cutter.cut(&tree, (&lists, cuts), with)?;
    if !parts.suffice(&cutter.cuts) {
        drop(lists);
        lists = make(&tree, &Scope::Part { targets: targets(&cutter.cuts, me), messages: messages.clone() })?;
    }
    let link = Link::new(&device, messages.clone())?;
    let (read, near) = (cutter.read(&link, &lists)?, cutter.near(&link, &lists)?);
    let own = cutter.own(&tree, [&read, &near])?;
    let multipoles = cutter.round(|reader, owner| own.slots(&cutter.owned(&read, reader, owner)?))?;
    let [p2m, m2m] = own.kept(Kind::Sources, [&lists.p2m, &lists.m2m])?;
    let [after] = own.kept(Kind::Several, [&lists.m2m])?;
    let [m2l, p2l, l2l] = own.kept(Kind::Targets, [&lists.m2l, &lists.p2l, &lists.l2l])?;
    let [m2p, l2p, p2p] = own.kept(Kind::Targets, [&lists.m2p, &lists.l2p, &lists.p2p])?;
    drop(lists);
    let source_leaves = cutter.leaves(&tree, 0, Some(&near))?;
    let separate = with.targets.is_some().then(|| cutter.leaves(&tree, 1, None)).transpose()?;
    let target_leaves = separate.as_ref().unwrap_or(&source_leaves);
    let (own_boxes, level_start, all_sources) = own.boxes(&tree, [&source_leaves, target_leaves])?;
    // Coordinates that are here already go before the kept ones come.
    (tree.boxes, tree.level_start) = (own_boxes, level_start);
    let elsewhere = |n: usize| DevicePoints::elsewhere(&device, n).map(Arc::new);
    (tree.sources, tree.targets) = (elsewhere(0)?, elsewhere(0)?);
    let (kept, strengths) = cutter.brought(&source_leaves, &with.sources, &own_order[0])?;
    tree.sources = Arc::new(kept);
    tree.targets = match &separate {
        None => tree.sources.clone(),
        Some(leaves) => Arc::new(cutter.brought(leaves, with.targets(), &own_order[1])?.0),
    };
    let (sources, targets) = (source_leaves.own(), target_leaves.own());
    let lent = strengths.sends.iter().enumerate().filter(|(to, _)| *to != me).map(|(_, slots)| slots.len()).sum();
    let order = &own_order[own_order.len() - 1];
    let values = cutter.values(target_leaves, order, with.targets())?;
    let share = Share {
        sources: sources.len(),
        targets: targets.len(),
        boxes,
        cuts: cutter.cuts.clone(),
        messages: multipoles.sends.len(),
        rows: multipoles.rows(),
        lent,
        ghosts: source_leaves.kept() - sources.len(),
        work,
        imbalance,
    };
    let given = [&with.sources, with.targets()].map(|points| points.counts()[me]);
    let routes = DeviceRoutes {
        given,
        strengths: DeviceRound::of(strengths.sends, strengths.receives),
        ghosts: DeviceRound::default(),
        values,
    };
    let ranks = Ranks::of_share(link, own.len(), multipoles, after, routes)?;
    let first = with.targets.is_none().then_some(0);
    let mine = Some(Mine { targets, sources, boxes, points });
    tree.shared = Some(DeviceShared { host: None, first, share: mine, sources: all_sources, ranks: Some(ranks) });
    Ok((tree, DeviceLists::of([p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p], &device), share))
}

/// Cuts a tree into shares.
struct Cutter {
    device: Device,
    kernels: ByItem,
    arrange: Functions,
    primitives: Primitives,
    /// The tree as kernels see it.
    boxes: Buffer<u64>,
    n: usize,
    shares: usize,
    /// The share of this rank.
    me: usize,
    /// First source and first target of each share, then the numbers of both.
    cuts: Vec<[u32; 2]>,
    /// The same on the device.
    cuts_there: Buffer<u32>,
}

impl Cutter {
    fn new(tree: &DeviceTree, shares: usize, me: usize) -> Result<Self, Error> {
        // A flag has a bit for each share.
        let limit = u32::BITS as usize;
        if shares > limit {
            return Err(Error::TooMany { what: "ranks that share a tree", found: shares, limit });
        }
        let device = tree.device.clone();
        Ok(Cutter {
            kernels: ByItem::new(&device, device.fixed("shares", programs::shares)?, BLOCK),
            arrange: device.fixed("arrange", arrange)?,
            primitives: Primitives::new(&device)?,
            boxes: tree.described()?,
            n: tree.len(),
            shares,
            me,
            cuts: Vec::new(),
            cuts_there: device.alloc(2 * (shares + 1), "cuts")?,
            device,
        })
    }

    /// An arranger for the boxes of the tree that is cut.
    fn arranger<'a>(&'a self, tree: &'a DeviceTree) -> Arranger<'a> {
        let (primitives, functions) = (self.primitives.clone(), self.arrange.clone());
        Arranger { tree, primitives, functions, boxes: &self.boxes }
    }

    /// The first arguments of kernels that look at boxes of a kind.
    fn of(&self, kind: Kind, share: usize) -> [Arg; 6] {
        let [n, kind, shares, share] = [self.n, kind as usize, self.shares, share].map(|x| Arg::from(x as u32));
        [(&self.boxes).into(), n, kind, (&self.cuts_there).into(), shares, share]
    }

    /// Cuts the targets so that the work of each share is in proportion to the speed of its rank. `lists` are those of the
    /// boxes with targets of this rank's part of `parts`, which cut the targets too. Returns the work of this rank in seconds,
    /// and the imbalance. All ranks call it together.
    fn cut(
        &mut self,
        tree: &DeviceTree,
        (lists, parts): (&DeviceLists, &[Cut]),
        with: &Sharing,
    ) -> Result<(f64, f64), Error> {
        let (device, ranks, m) = (self.device.clone(), self.shares, tree.targets.len());
        let bins = m.clamp(1, MAX_BINS);
        let Works { pair, near_edge, far_edge, far_point, leaf, target } = with.works;
        let prices = [pair, near_edge, far_edge, far_point, leaf, target];
        let largest = prices.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        let prices = prices.map(|p| Arg::from((p.max(0.0) / largest * LARGEST_PRICE).round() as u32));
        let work: Buffer<u64> = device.zeros(bins, "work of targets")?;
        let rows = |edges: &DeviceEdges| Arg::from((&edges.starts, &edges.sources));
        let kinds = [&lists.p2p, &lists.m2l, &lists.m2p, &lists.p2l].map(rows);
        let of = [Arg::from(&self.boxes), (self.n as u32).into()];
        let part = [parts[self.me], parts[self.me + 1]].map(|[_, target]| Arg::from(target));
        // SAFETY: arguments as in shares.cu; there is a row for each box, and a bin for each first target.
        unsafe {
            let bins = [(bins as u32).into(), (&work).into()];
            self.kernels.warps("weigh", self.n, &[&of[..], &part, &kinds, &prices, &bins].concat())?;
        }
        let work = summed(&**with.sources.messages(), device.download_range(&work, 0..bins, "work of targets")?)?;
        let bounds = bounds(&work, &with.speeds);
        let seconds =
            |k: usize| work[bounds[k]..bounds[k + 1]].iter().map(|&w| w as f64).sum::<f64>() * largest / LARGEST_PRICE;
        let wanted: Vec<u32> = bounds[1..ranks].iter().map(|bin| (bin * m).div_ceil(bins) as u32).collect();
        self.cuts = cuts(tree, &self.boxes, &wanted)?;
        device.write(&mut self.cuts_there, 0, self.cuts.as_flattened(), "cuts")?;
        let fastest = (0..ranks).map(|k| seconds(k) / with.speeds[k]).fold(0.0, f64::max);
        let perfect = (0..ranks).map(seconds).sum::<f64>() / with.speeds.iter().sum::<f64>();
        Ok((seconds(self.me), if perfect > 0.0 { fastest / perfect } else { 1.0 }))
    }

    /// The boxes that shares read, as flags: bit k is set if a row of a box of the kind of share k names the box. Each rank marks
    /// what its rows name. All ranks call it together.
    fn marked<const K: usize>(&self, link: &Link, rows: [(Kind, &DeviceEdges); K]) -> Result<Buffer<u32>, Error> {
        let flags = self.device.zeros(self.n, "boxes of other ranks")?;
        let [boxes, n] = [Arg::from(&self.boxes), (self.n as u32).into()];
        let [cuts, shares] = [Arg::from(&self.cuts_there), (self.shares as u32).into()];
        for (kind, edges) in rows.into_iter().filter(|(_, edges)| !edges.is_empty()) {
            let rows = (&edges.starts, &edges.sources).into();
            let args = [boxes, n, (kind as u32).into(), cuts, shares, rows, (&flags).into()];
            // SAFETY: arguments as in shares.cu; there is a flag for each box, with a bit for each share.
            unsafe { self.kernels.warps("mark", self.n, &args)? };
        }
        if self.shares == 1 {
            return Ok(flags);
        }
        let (all, _) = link.gathered(&flags, "boxes of other ranks")?;
        // SAFETY: as above; there are flags of all shares.
        unsafe { self.kernels.threads("join_flags", self.n, &[(&all).into(), n, shares, (&flags).into()])? };
        Ok(flags)
    }

    /// The boxes whose multipoles each share reads: those that its M2L and M2P edges name, and children of boxes with
    /// sources of several shares.
    fn read(&self, link: &Link, lists: &DeviceLists) -> Result<Buffer<u32>, Error> {
        self.marked(link, [(Kind::Targets, &lists.m2l), (Kind::Targets, &lists.m2p), (Kind::Several, &lists.m2m)])
    }

    /// The boxes whose sources each share reads: those that its P2P and P2L edges name.
    fn near(&self, link: &Link, lists: &DeviceLists) -> Result<Buffer<u32>, Error> {
        self.marked(link, [(Kind::Targets, &lists.p2p), (Kind::Targets, &lists.p2l)])
    }

    /// The boxes that `reader` reads, all of whose sources belong to `owner`.
    fn owned(&self, readers: &Buffer<u32>, reader: usize, owner: usize) -> Result<Slots, Error> {
        let flags = self.device.alloc(self.n, "boxes of other ranks")?;
        let flagged = [readers.into(), (reader as u32).into(), (&flags).into()];
        let args = [&self.of(Kind::Sources, owner)[..], &flagged].concat();
        // SAFETY: arguments as in shares.cu; there is a flag for each box.
        unsafe { self.kernels.threads("marked", self.n, &args)? };
        Ok(Slots::all(self.primitives.flagged(&flags, self.n, "boxes of other ranks")?.items))
    }

    /// What travels between the shares in an evaluation: the slots that `owned` lists for a reader and an owner.
    fn round(&self, owned: impl Fn(usize, usize) -> Result<Slots, Error>) -> Result<DeviceRound, Error> {
        let mut round = DeviceRound::default();
        for other in (0..self.shares).filter(|&other| other != self.me) {
            round.send(other, owned(other, self.me)?);
            round.receive(other, owned(self.me, other)?);
        }
        Ok(round)
    }
}

/// The sums of the numbers of all ranks. All ranks call it together.
fn summed(messages: &dyn Messages, mut numbers: Vec<u64>) -> Result<Vec<u64>, Error> {
    let came = messages.give(numbers.iter().flat_map(|n| n.to_ne_bytes()).collect())?;
    for message in came.iter().filter(|message| !message.is_empty()) {
        let (words, _) = message.as_chunks::<8>();
        numbers.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(u64::from_ne_bytes(*word)));
    }
    Ok(numbers)
}

/// A first source and a first target, in tree order.
pub(crate) type Cut = [u32; 2];

/// Cuts of equal numbers of targets between the leaves of a tree: the first source and the first target of each of some parts,
/// then the numbers of both.
pub(crate) fn equal_cuts(tree: &DeviceTree, parts: usize) -> Result<Vec<Cut>, Error> {
    let wanted: Vec<u32> = (1..parts).map(|k| (tree.targets.len() * k / parts) as u32).collect();
    cuts(tree, &tree.described()?, &wanted)
}

/// Cuts at the next leaves with targets behind some targets.
fn cuts(tree: &DeviceTree, boxes: &Buffer<u64>, wanted: &[u32]) -> Result<Vec<Cut>, Error> {
    let (device, n, what) = (&tree.device, wanted.len(), "cuts");
    let kernels = ByItem::new(device, device.fixed("shares", programs::shares)?, BLOCK);
    let there = device.upload(wanted, what)?;
    let (first_targets, first_sources) = (device.nones(n, what)?, device.nones(n, what)?);
    let (of, count) = ([Arg::from(boxes), (tree.len() as u32).into()], Arg::from(n as u32));
    // SAFETY: arguments as in shares.cu; there is a number for each cut.
    unsafe {
        let args = [(&there).into(), count, (&first_targets).into()];
        kernels.threads("first_targets", tree.len(), &[&of[..], &args].concat())?;
        let args = [(&first_targets).into(), count, (&first_sources).into()];
        kernels.threads("first_sources", tree.len(), &[&of[..], &args].concat())?;
    }
    let targets = device.download_range(&first_targets, 0..n, what)?;
    let sources = device.download_range(&first_sources, 0..n, what)?;
    let end = [tree.sources.len() as u32, tree.targets.len() as u32];
    let between = sources.iter().zip(&targets).map(|(&s, &t)| if t == NONE { end } else { [s, t] });
    Ok([[0, 0]].into_iter().chain(between).chain([end]).collect())
}

/// The first bin of each rank, then the number of bins, if each gets work in proportion to its speed.
fn bounds(work: &[u64], speeds: &[f64]) -> Vec<usize> {
    let (all, speed) = (work.iter().map(|&w| w as f64).sum::<f64>(), speeds.iter().sum::<f64>());
    let (mut bounds, mut bin, mut done, mut before) = (vec![0], 0, 0.0, 0.0);
    for s in &speeds[..speeds.len() - 1] {
        before += s;
        let goal = all * before / speed;
        // A bin goes to the side of the cut on which most of it lies.
        while bin < work.len() && done + 0.5 * work[bin] as f64 <= goal {
            done += work[bin] as f64;
            bin += 1;
        }
        bounds.push(bin);
    }
    bounds.push(work.len());
    bounds
}

#[cfg(test)]
mod tests {
    use super::bounds;

    #[test]
    fn work_is_shared_out_by_speed() {
        assert_eq!(bounds(&[1; 12], &[1.0, 1.0, 1.0]), [0, 4, 8, 12]);
        assert_eq!(bounds(&[1; 12], &[1.0, 3.0]), [0, 3, 12]);
        assert_eq!(bounds(&[10, 1, 1, 1], &[1.0, 1.0]), [0, 1, 4]);
        assert_eq!(bounds(&[0, 0], &[1.0, 1.0]), [0, 2, 2]);
        assert_eq!(bounds(&[7], &[1.0, 1.0, 1.0]), [0, 0, 1, 1]);
    }
}
