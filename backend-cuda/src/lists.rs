//! The edge lists of `fmm_tree::uvwx` and `fmm_tree::stencil119`, made on the device and equal row by row:
//! `kernels/lists.cu`.

mod treecode;

pub(crate) use treecode::treecode_of;
pub use treecode::{Acceptance, treecode};

use crate::cut::Cut;
use crate::device::{Arg, Buffer, ByItem, Device};
use crate::primitives::Primitives;
use crate::programs;
use crate::tree::DeviceTree;
use fmm_traits::tree::{Edges, Lists};
use fmm_traits::{Error, Messages};
use fmm_tree::ListOptions;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Threads per block.
const BLOCK: u32 = 128;
/// Cubes of the size of a box that touch the box, itself included. No box has more colleagues and coarse neighbours.
const MAX_NEIGHBOURS: usize = 27;

/// Edges of one kind in device memory: see [`Edges`].
#[derive(Debug)]
pub struct DeviceEdges {
    pub(crate) starts: Buffer<u64>,
    pub(crate) sources: Buffer<u32>,
    pub(crate) boxes: usize,
    edges: usize,
}

/// Edge lists in device memory: see [`Lists`].
#[derive(Debug)]
pub struct DeviceLists {
    pub(crate) device: Device,
    /// Sources of a leaf → its multipole.
    pub p2m: DeviceEdges,
    /// Multipole of a child → its parent.
    pub m2m: DeviceEdges,
    /// V list.
    pub m2l: DeviceEdges,
    /// X list.
    pub p2l: DeviceEdges,
    /// Local of the parent → a child.
    pub l2l: DeviceEdges,
    /// W list.
    pub m2p: DeviceEdges,
    /// Local of a leaf → its targets.
    pub l2p: DeviceEdges,
    /// U list.
    pub p2p: DeviceEdges,
    /// The thresholds that give these lists. `None` if they are not known: of copies, of treecodes, and of a part of a tree.
    decided: Option<Decided>,
}

/// For each of two thresholds the sizes of the leaves next to it: the largest size below the threshold (0 if there is none), and
/// the smallest other size. All thresholds above the first and up to the second size give the same lists. The first threshold
/// is compared with the sources of leaves in W lists, the second with the targets of leaves that have an X list.
#[derive(Debug)]
struct Decided {
    on_device: Buffer<u32>,
    /// A copy, made when it is first needed.
    on_host: OnceLock<[u32; 4]>,
}

impl Decided {
    /// The sizes before any leaf is entered.
    fn new(device: &Device) -> Result<Self, Error> {
        let on_device = device.upload(&[0, u32::MAX, 0, u32::MAX], "thresholds")?;
        Ok(Decided { on_device, on_host: OnceLock::new() })
    }

    /// Whether the thresholds of `options` give the same lists.
    fn same_for(&self, device: &Device, options: &ListOptions) -> Result<bool, Error> {
        let sizes = match self.on_host.get() {
            Some(sizes) => sizes,
            None => {
                let sizes = device.download(&self.on_device, "thresholds")?;
                self.on_host.get_or_init(|| std::array::from_fn(|k| sizes[k]))
            }
        };
        let same = |(threshold, sizes): (u32, &[u32])| {
            let [below, others] = [sizes[0], sizes[1]];
            (below == 0 || below < threshold) && threshold <= others
        };
        Ok(thresholds(options).into_iter().zip(sizes.chunks(2)).all(same))
    }
}

/// The thresholds as kernels take them.
fn thresholds(options: &ListOptions) -> [u32; 2] {
    [options.m2p_min_sources, options.p2l_min_targets].map(|x| x.min(u32::MAX as usize) as u32)
}

impl DeviceEdges {
    /// Number of edges.
    pub fn len(&self) -> usize {
        self.edges
    }
    /// Whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.edges == 0
    }
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.starts.bytes() + self.sources.bytes()
    }
    pub(crate) fn download(&self, device: &Device) -> Result<Edges, Error> {
        let starts = device.download_range(&self.starts, 0..self.boxes + 1, "edges")?;
        let sources = device.download_range(&self.sources, 0..self.edges, "edges")?;
        Ok(Edges { starts: starts.into_iter().map(|s| s as usize).collect(), sources })
    }
}

impl DeviceEdges {
    pub(crate) fn upload(device: &Device, edges: &Edges) -> Result<DeviceEdges, Error> {
        let starts: Vec<u64> = edges.starts.iter().map(|&s| s as u64).collect();
        let (boxes, count) = (starts.len().saturating_sub(1), edges.len());
        let sources = device.upload(&edges.sources, "edges")?;
        Ok(DeviceEdges { starts: device.upload(&starts, "edges")?, sources, boxes, edges: count })
    }
}

impl DeviceLists {
    /// Copies lists from the host to the device.
    pub fn upload(device: &Device, lists: &Lists) -> Result<DeviceLists, Error> {
        let kinds = lists.kinds();
        Ok(DeviceLists::of(each(|k| DeviceEdges::upload(device, kinds[k].1))?, device))
    }
    /// Lists of these edges, in the order of [`kinds`](Self::kinds).
    pub(crate) fn of([p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p]: [DeviceEdges; 8], device: &Device) -> DeviceLists {
        DeviceLists { device: device.clone(), p2m, m2m, m2l, p2l, l2l, m2p, l2p, p2p, decided: None }
    }
    /// Whether lists with other thresholds are the same. False if that is not known.
    pub fn hold_for(&self, options: &ListOptions) -> Result<bool, Error> {
        self.decided.as_ref().map_or(Ok(false), |decided| decided.same_for(&self.device, options))
    }
    /// The edges of all kinds, in the order of [`Lists::kinds`].
    pub fn kinds(&self) -> [&DeviceEdges; 8] {
        [&self.p2m, &self.m2m, &self.m2l, &self.p2l, &self.l2l, &self.l2p, &self.m2p, &self.p2p]
    }
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let decided = self.decided.as_ref().map_or(0, |decided| decided.on_device.bytes());
        self.kinds().iter().map(|edges| edges.bytes()).sum::<u64>() + decided
    }
    /// A copy on the host.
    pub fn download(&self) -> Result<Lists, Error> {
        let of = |edges: &DeviceEdges| edges.download(&self.device);
        Ok(Lists {
            p2m: of(&self.p2m)?,
            m2m: of(&self.m2m)?,
            m2l: of(&self.m2l)?,
            p2l: of(&self.p2l)?,
            l2l: of(&self.l2l)?,
            m2p: of(&self.m2p)?,
            l2p: of(&self.l2p)?,
            p2p: of(&self.p2p)?,
        })
    }
}

/// Number of pairs of points that the U list of `lists` joins.
///
/// # Errors
/// Errors of the device.
pub fn near_pairs(tree: &DeviceTree, lists: &DeviceLists) -> Result<u64, Error> {
    Ok(tree.device.download(&near_pairs_there(tree, lists)?, "pairs")?[0])
}

/// [`near_pairs`] on the device. Does not wait.
pub(crate) fn near_pairs_there(tree: &DeviceTree, lists: &DeviceLists) -> Result<Buffer<u64>, Error> {
    let n = lists.p2p.boxes;
    if n != tree.len() {
        let why = "as many rows as the tree has boxes".to_string();
        return Err(Error::Shape { array: "lists", found: n, expected: tree.len(), why });
    }
    Cut::new(tree, lists)?.near_pairs()
}

/// The edge lists of `tree` by the U, V, W, X rules, as `fmm_tree::uvwx` makes them.
///
/// # Errors
/// Errors of the device.
pub fn uvwx(tree: &DeviceTree, options: &ListOptions) -> Result<DeviceLists, Error> {
    uvwx_of(tree, &Scope::All, options)
}

/// [`uvwx`] for some targets.
pub(crate) fn uvwx_of(tree: &DeviceTree, scope: &Scope, options: &ListOptions) -> Result<DeviceLists, Error> {
    across(tree, scope, options, |_, v| Ok(v))
}

/// As [`uvwx`], with the distant V edges of siblings moved to their parent, as `fmm_tree::stencil119` makes them.
///
/// # Errors
/// Errors of the device.
pub fn stencil119(tree: &DeviceTree, options: &ListOptions) -> Result<DeviceLists, Error> {
    stencil119_of(tree, &Scope::All, options)
}

/// [`stencil119`] for some targets.
pub(crate) fn stencil119_of(tree: &DeviceTree, scope: &Scope, options: &ListOptions) -> Result<DeviceLists, Error> {
    across(tree, scope, options, |finder, v| finder.consolidated(&v))
}

/// The lists by the U, V, W, X rules, with the edges of M2L that `far` makes of the V list.
fn across(
    tree: &DeviceTree,
    scope: &Scope,
    options: &ListOptions,
    far: impl FnOnce(&Finder, DeviceEdges) -> Result<DeviceEdges, Error>,
) -> Result<DeviceLists, Error> {
    let finder = Finder::new(tree, scope)?;
    let (neighbours, lengths) = finder.families(tree)?;
    let decided = Decided::new(&tree.device)?;
    let [v, p2l, m2p, p2p] = finder.rows(&neighbours, lengths, options, &decided)?;
    let m2l = far(&finder, v)?;
    let [p2m, m2m, l2l, l2p] = finder.own([&m2l, &p2l, &m2p])?;
    let lists = DeviceLists::of([p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p], &tree.device);
    // A rank enters the leaves of its part only. Ranks with different sizes would not agree on whether lists serve again.
    Ok(DeviceLists { decided: Some(decided).filter(|_| matches!(scope, Scope::All)), ..lists })
}

/// The targets for which lists are made.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// All.
    All,
    /// An interval of the targets in tree order. Other ranks make lists for the other targets of the same tree at the same
    /// time. Lists then have all edges of P2M and M2M, and of the other kinds the rows of boxes with targets of the interval.
    /// Siblings of these boxes may have rows too.
    Part { targets: Range<u32>, messages: Arc<dyn Messages> },
}

/// Colleagues and coarse neighbours of all boxes: see `lists.cu`.
struct Neighbours {
    /// Room for [`MAX_NEIGHBOURS`] boxes per box.
    data: Buffer<u32>,
    /// Two numbers per box: its colleagues and its coarse neighbours.
    counts: Buffer<u8>,
}

impl Neighbours {
    fn arg(&self) -> Arg {
        (&self.data, &self.counts).into()
    }
}

struct Finder<'a> {
    device: &'a Device,
    primitives: Primitives,
    kernels: ByItem,
    /// The tree as kernels see it.
    boxes: Buffer<u64>,
    n: usize,
    scope: &'a Scope,
    /// The ranges of the targets of the scope, for as long as `boxes` are read.
    _ranges: Option<Buffer<u32>>,
}

impl<'a> Finder<'a> {
    fn new(tree: &'a DeviceTree, scope: &'a Scope) -> Result<Self, Error> {
        let (device, n) = (&tree.device, tree.len());
        let kernels = ByItem::new(device, device.fixed("lists", programs::lists)?, BLOCK);
        let (mut boxes, mut some) = (tree.described()?, None);
        if let Scope::Part { targets, .. } = scope {
            let ranges: &Buffer<u32> = some.insert(device.alloc(2 * n, "targets of a rank")?);
            let args = [(&boxes).into(), (n as u32).into(), targets.start.into(), targets.end.into(), ranges.into()];
            // SAFETY: arguments as in lists.cu; there is a range for each box.
            unsafe { kernels.threads("part_ranges", n, &args)? };
            boxes = tree.boxes.described(device, (tree.corner, tree.side), ranges)?;
        }
        Ok(Finder { device, primitives: Primitives::new(device)?, kernels, boxes, n, scope, _ranges: some })
    }

    /// An array of zeros, one number per box.
    fn counts(&self) -> Result<Buffer<u32>, Error> {
        self.device.zeros(self.n, "lengths of rows")
    }

    /// [`filled`] with one row per box.
    fn filled<const K: usize>(
        &self,
        counts: &[Buffer<u32>; K],
        fill: impl FnOnce(&[DeviceEdges; K]) -> Result<(), Error>,
    ) -> Result<[DeviceEdges; K], Error> {
        filled(self.device, &self.primitives, self.n, counts, fill)
    }

    /// The neighbours of every box with targets, and the lengths of its V and X rows.
    fn families(&self, tree: &DeviceTree) -> Result<(Neighbours, [Buffer<u32>; 2]), Error> {
        let device = self.device;
        let near = Neighbours {
            data: device.alloc(MAX_NEIGHBOURS * self.n, "neighbours")?,
            counts: device.alloc(2 * self.n, "neighbours")?,
        };
        let [v, x] = [self.counts()?, self.counts()?];
        let (boxes, rows) = (Arg::from(&self.boxes), near.arg());
        // SAFETY: arguments as in lists.cu; there is room for all neighbours of a box.
        unsafe { device.launch(&self.kernels.functions, "root_neighbours", (1, 1), 1, &[boxes, rows])? };
        for level in tree.level_start.windows(3) {
            let (first, count) = (level[0], level[1] - level[0]);
            let args = [boxes, first.into(), count.into(), rows, (&v).into(), (&x).into()];
            // SAFETY: as above; the neighbours of the parents are there.
            unsafe { self.kernels.warps("family_neighbours", count as usize, &args)? };
        }
        Ok((near, [v, x]))
    }

    /// The V, X, W and U lists.
    fn rows(
        &self,
        near: &Neighbours,
        [v, x]: [Buffer<u32>; 2],
        options: &ListOptions,
        decided: &Decided,
    ) -> Result<[DeviceEdges; 4], Error> {
        let n = self.n;
        let [w, u, taken] = [self.counts()?, self.counts()?, self.counts()?];
        let common: [Arg; 4] = [(&self.boxes).into(), (n as u32).into(), near.arg(), thresholds(options).into()];
        let with = |rest: &[Arg]| -> Vec<Arg> { common.iter().chain(rest).copied().collect() };
        let lengths = with(&[(&x).into(), (&w).into(), (&u).into(), (&taken).into(), (&decided.on_device).into()]);
        // SAFETY: arguments as in lists.cu; all arrays have an entry for each box.
        unsafe { self.kernels.warps("rows_count", n, &lengths)? };
        self.filled(&[v, x, w, u], |[v, x, w, u]| {
            let starts = |e: &DeviceEdges| Arg::from(&e.starts);
            let data = |e: &DeviceEdges| Arg::from(&e.sources);
            let far = with(&[starts(v), starts(x), starts(u), data(v), data(x), data(u)]);
            let near = with(&[starts(w), starts(u), (&taken).into(), data(w), data(u)]);
            // SAFETY: as above; the rows have the lengths that were counted.
            unsafe {
                self.kernels.warps("far_fill", n, &far)?;
                self.kernels.warps("near_fill", n, &near)
            }
        })
    }

    /// The V list with distant edges of siblings moved to their parent.
    fn consolidated(&self, v: &DeviceEdges) -> Result<DeviceEdges, Error> {
        let common: [Arg; 4] = [(&self.boxes).into(), (self.n as u32).into(), (&v.starts).into(), (&v.sources).into()];
        let with = |rest: &[Arg]| -> Vec<Arg> { common.iter().chain(rest).copied().collect() };
        let counts = [self.counts()?];
        // SAFETY: arguments as in lists.cu; the counts have an entry for each box.
        unsafe { self.kernels.warps("stencil_count", self.n, &with(&[(&counts[0]).into()]))? };
        let [m2l] = self.filled(&counts, |[m2l]| {
            let args = with(&[(&m2l.starts).into(), (&m2l.sources).into()]);
            // SAFETY: as above; the rows have the lengths that were counted.
            unsafe { self.kernels.warps("stencil_fill", self.n, &args) }
        })?;
        Ok(m2l)
    }

    /// Replaces a number by the least on any rank.
    fn agree_on(&self, least: &mut Buffer<u32>) -> Result<(), Error> {
        let Scope::Part { messages, .. } = self.scope else { return Ok(()) };
        let mut mine = [-f64::from(self.device.download(least, "first level")?[0])];
        messages.largest(&mut mine)?;
        self.device.write(least, 0, &[-mine[0] as u32], "first level")
    }

    /// The lists within a family or a leaf: P2M and M2M on the levels at or below the coarsest on which a multipole is
    /// read, and L2L and L2P for locals that have received something.
    fn own(&self, [m2l, p2l, m2p]: [&DeviceEdges; 3]) -> Result<[DeviceEdges; 4], Error> {
        let (boxes, n) = (Arg::from(&self.boxes), Arg::from(self.n as u32));
        let mut first = self.device.upload(&[u8::MAX as u32], "first level")?;
        let reached: Buffer<u8> = self.device.alloc(self.n, "boxes reached")?;
        let counts = [self.counts()?, self.counts()?, self.counts()?, self.counts()?];
        let (up, down) = ([boxes, n, Arg::from(&first)], [boxes, n, (&reached).into()]);
        let with = |common: [Arg; 3], rest: &[Arg]| -> Vec<Arg> { common.iter().chain(rest).copied().collect() };
        let of = |i: usize| Arg::from(&counts[i]);
        let args = [boxes, n, (&m2l.starts, &m2l.sources).into(), (&m2p.starts, &m2p.sources).into(), (&first).into()];
        // SAFETY: arguments as in lists.cu; all arrays have an entry for each box.
        unsafe {
            self.kernels.threads("first_level", self.n, &args)?;
            self.agree_on(&mut first)?;
            self.kernels.threads("up_count", self.n, &with(up, &[of(0), of(1)]))?;
            let args = [boxes, n, (&m2l.starts).into(), (&p2l.starts).into(), (&reached).into()];
            self.kernels.threads("reach", self.n, &args)?;
            self.kernels.threads("down_count", self.n, &with(down, &[of(2), of(3)]))?;
        }
        self.filled(&counts, |edges| {
            let rows = |i: usize| -> [Arg; 4] {
                let [a, b] = [&edges[i], &edges[i + 1]];
                [(&a.starts).into(), (&b.starts).into(), (&a.sources).into(), (&b.sources).into()]
            };
            // SAFETY: as above; the rows have the lengths that were counted.
            unsafe {
                self.kernels.threads("up_fill", self.n, &with(up, &rows(0)))?;
                self.kernels.threads("down_fill", self.n, &with(down, &rows(2)))
            }
        })
    }
}

/// An array of what `make` returns for each index.
pub(crate) fn each<T, const K: usize>(make: impl FnMut(usize) -> Result<T, Error>) -> Result<[T; K], Error> {
    let mut made = (0..K).map(make).collect::<Result<Vec<_>, _>>()?.into_iter();
    Ok(std::array::from_fn(|_| made.next().expect("one for each index")))
}

/// Edge lists of `n` rows with the lengths `counts`. `fill` writes the rows.
pub(crate) fn filled<const K: usize>(
    device: &Device,
    primitives: &Primitives,
    n: usize,
    counts: &[Buffer<u32>; K],
    fill: impl FnOnce(&[DeviceEdges; K]) -> Result<(), Error>,
) -> Result<[DeviceEdges; K], Error> {
    let starts: [Buffer<u64>; K] = each(|_| device.alloc(n + 1, "edges"))?;
    primitives.scan::<K>(std::array::from_fn(|k| (&counts[k], &starts[k])), n)?;
    let totals = device.entries(&starts.iter().map(|s| (s, n)).collect::<Vec<_>>(), "edges")?;
    let mut rows = Vec::new();
    for (starts, &edges) in starts.into_iter().zip(&totals) {
        let sources = device.alloc(edges as usize, "edges")?;
        rows.push(DeviceEdges { starts, sources, boxes: n, edges: edges as usize });
    }
    let mut rows = rows.into_iter();
    let rows = std::array::from_fn(|_| rows.next().expect("as many as there are counts"));
    fill(&rows)?;
    Ok(rows)
}
