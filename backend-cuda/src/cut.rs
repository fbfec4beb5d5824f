//! What the probe of a plan reads of a tree and lists in device memory, and the small problem that it cuts out:
//! `kernels/cut.cu`. Neither the points nor the lists are copied to the host. Octrees and pyramids go the same way.

use crate::device::{Arg, Buffer, ByItem, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use crate::lists::{DeviceEdges, DeviceLists, each, filled};
use crate::placed::Placed;
use crate::plane::{DevicePyramid, LEAST_SCALE, points_of};
use crate::points::CallerPoints;
use crate::primitives::Primitives;
use crate::programs;
use crate::tree::{DevicePoints, DeviceTree};
use adaptive2d::Pyramid;
use adaptive2d::connect::completed;
use fmm_traits::tree::{NONE, Tree};
use fmm_traits::{Error, Lists, Points};
use fmm_tree::{DISTANCES, Incoming, Thinned, thin_boxes};
use std::sync::Arc;
use std::time::Instant;

/// Threads per block.
const BLOCK: u32 = 128;
/// Number of parts of a sum over boxes, each the part of a warp. It is fixed, so that the sum does not depend on the device.
const PARTS_OF_A_SUM: usize = 1024;
/// Largest number of outputs that `far_sums` and `far_squares` take.
pub(crate) const OUTPUTS: usize = 4;
/// Boxes of a block of `near_pairs`, which has one warp per box.
const WARPS_PER_BLOCK: usize = BLOCK as usize / 32;

/// A tree of either kind with its lists, from which a small problem can be cut out.
pub struct Cut<'a> {
    device: &'a Device,
    /// The tree as kernels see it.
    tree: Buffer<u64>,
    /// Number of boxes.
    boxes: usize,
    sources: &'a DevicePoints,
    targets: &'a DevicePoints,
    /// M2L, P2L, M2P and P2P.
    edges: [&'a DeviceEdges; 4],
    /// All lists of an octree.
    lists: Option<&'a DeviceLists>,
    kernels: ByItem,
    primitives: Primitives,
}

/// An error for a position beyond the points.
fn within(points: &DevicePoints, positions: &[u32]) -> Result<(), Error> {
    match positions.iter().map(|&p| p as usize).find(|&p| p >= points.n) {
        Some(found) => Err(Error::TooMany { what: "position of a point", found, limit: points.n.saturating_sub(1) }),
        None => Ok(()),
    }
}

impl<'a> Cut<'a> {
    /// For an octree and its lists.
    pub(crate) fn new(tree: &'a DeviceTree, lists: &'a DeviceLists) -> Result<Self, Error> {
        let (device, edges) = (&tree.device, [&lists.m2l, &lists.p2l, &lists.m2p, &lists.p2p]);
        let functions = device.fixed("cut", programs::cut)?;
        let (described, points) = (tree.described()?, [&*tree.sources, &*tree.targets]);
        let cut = Cut::of(device, functions, described, tree.len(), points, edges)?;
        Ok(Cut { lists: Some(lists), ..cut })
    }

    /// For a pyramid with M2L, P2L, M2P and P2P edges.
    pub(crate) fn of_pyramid(pyramid: &'a DevicePyramid, edges: [&'a DeviceEdges; 4]) -> Result<Self, Error> {
        let device = &pyramid.device;
        let functions = device.fixed("cut of a pyramid", programs::cut_of_pyramid)?;
        let (described, points) = (pyramid.described(LEAST_SCALE)?, [&*pyramid.sources, &*pyramid.targets]);
        Cut::of(device, functions, described, pyramid.len(), points, edges)
    }

    fn of(
        device: &'a Device,
        functions: Functions,
        tree: Buffer<u64>,
        boxes: usize,
        [sources, targets]: [&'a DevicePoints; 2],
        edges: [&'a DeviceEdges; 4],
    ) -> Result<Self, Error> {
        let (kernels, primitives) = (ByItem::new(device, functions, BLOCK), Primitives::new(device)?);
        Ok(Cut { device, tree, boxes, sources, targets, edges, lists: None, kernels, primitives })
    }

    /// A summary of the edges into each box, as `fmm_tree::incoming` makes it.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        let (device, n) = (self.device, self.boxes);
        let brief: Buffer<u32> = device.alloc(n, "incoming edges")?;
        let starts = self.edges.map(|e| Arg::from(&e.starts));
        let args = [
            (&self.tree).into(),
            (n as u32).into(),
            starts[0],
            starts[1],
            starts[2],
            starts[3],
            (&self.edges[3].sources).into(),
            (&brief).into(),
        ];
        // SAFETY: arguments as in cut.cu; all arrays have an entry for each box.
        unsafe { self.kernels.warps("incoming", n, &args)? };
        Ok(device.download(&brief, "incoming edges")?.into_iter().map(Incoming::of_code).collect())
    }

    /// A factor for each box, whose mean over all targets is 1: one half is the same for all boxes, the other half is made up
    /// of the numbers of `fmm_tree::far_squares`, each array divided by its mean over all targets, with equal shares. Arrays
    /// whose mean is no normal number (0, infinite) are left out; `None` if that leaves none. M2P edges take all degrees, as
    /// they do in the solvers on a device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Vec<f64>>, Error> {
        let (device, n) = (self.device, self.boxes);
        if weights.is_empty() {
            return Ok(None);
        }
        let squares = weights.chunks(OUTPUTS).map(|weights| self.far_squares(weights, half_power));
        let squares: Vec<Buffer<f64>> = squares.collect::<Result<_, Error>>()?;
        let arrays: Vec<Arg> = squares.iter().flat_map(|all| (0..all.len() / n).map(|k| all.at(k * n))).collect();
        let means = self.sums(&arrays)?.into_iter().map(|sum| sum / self.targets.len() as f64);
        let means: Vec<f64> = means.map(|mean| if mean.is_normal() { mean } else { f64::INFINITY }).collect();
        let used = means.iter().filter(|mean| mean.is_finite()).count();
        if used == 0 {
            return Ok(None);
        }
        let factors: Buffer<f64> = device.zeros(n, "factors of boxes")?;
        for (k, (both, means)) in arrays.as_chunks().0.iter().zip(means.as_chunks().0).enumerate() {
            let [all, fewer] = means.map(|mean| Arg::from(0.5 / (used as f64 * mean)));
            let ([of_all, _], same): (&[Arg; 2], f64) = (both, if k == 0 { 0.5 } else { 0.0 });
            let args = [(&self.tree).into(), (n as u32).into(), *of_all, same.into(), all, fewer, (&factors).into()];
            // SAFETY: arguments as in cut.cu; the two arrays of an output lie one behind the other.
            unsafe { self.kernels.threads("far_factors", n, &args)? };
        }
        device.download(&factors, "factors of boxes").map(Some)
    }

    /// The sums of some arrays with one number for each box.
    fn sums(&self, arrays: &[Arg]) -> Result<Vec<f64>, Error> {
        let parts: Buffer<f64> = self.device.alloc(arrays.len() * PARTS_OF_A_SUM, "parts of sums")?;
        for (k, array) in arrays.iter().enumerate() {
            let args = [*array, (self.boxes as u32).into(), parts.at(k * PARTS_OF_A_SUM)];
            // SAFETY: arguments as in cut.cu; the array has an entry for each box, and each warp has a part.
            unsafe { self.kernels.warps("sum_in_parts", PARTS_OF_A_SUM, &args)? };
        }
        let parts = self.device.download(&parts, "parts of sums")?;
        Ok(parts.chunks_exact(PARTS_OF_A_SUM).map(|parts| parts.iter().sum()).collect())
    }

    /// The numbers of `fmm_tree::far_squares` for at most [`OUTPUTS`] arrays of weights, each times the number of targets of
    /// the box: for each array first for all boxes with all degrees, then for all boxes with fewer degrees on far edges.
    fn far_squares(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Buffer<f64>, Error> {
        let (device, n, outputs) = (self.device, self.boxes, weights.len());
        let sums: Buffer<f64> = device.alloc(2 * outputs * n, "sums over edges")?;
        let squares: Buffer<f64> = device.alloc(2 * outputs * n, "squares of leaves")?;
        let weights: Buffer<f64> = device.upload(weights.as_flattened(), "weights of edges")?;
        let [m2l, p2l, m2p, _] = self.edges;
        let of_sums = [
            (&self.tree).into(),
            (n as u32).into(),
            (&m2l.starts).into(),
            (&p2l.starts).into(),
            (&m2l.sources).into(),
            (&p2l.sources).into(),
            (&weights).into(),
            (outputs as u32).into(),
            half_power.into(),
            (&sums).into(),
        ];
        let of_squares = [
            (&self.tree).into(),
            (n as u32).into(),
            (&m2p.starts).into(),
            (&m2p.sources).into(),
            (&self.targets.xyz).into(),
            (self.targets.n as u64).into(),
            (self.targets.axes as u32).into(),
            u32::from(m2l.is_empty()).into(),
            (&weights).into(),
            (outputs as u32).into(),
            half_power.into(),
            (&sums).into(),
            (&squares).into(),
        ];
        // SAFETY: arguments as in cut.cu; `sums` and `squares` have two entries for each box and output, `weights` one for each
        // distance and output, and the ranges of the boxes lie within the targets.
        unsafe {
            self.kernels.warps("far_sums", n, &of_sums)?;
            self.kernels.warps("far_squares", n, &of_squares)?;
        }
        Ok(squares)
    }

    /// For each leaf the sum over its targets of ρ^(2·`half_power`), where ρ is the distance from the centre of the
    /// leaf in sides of the leaf; 0 for other boxes.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn corner_sums(&self, half_power: u32) -> Result<Vec<f64>, Error> {
        self.device.download(&self.sums_of_corners(self.targets, false, half_power)?, "sums over leaves")
    }

    /// As [`corner_sums`](Cut::corner_sums), over the sources of each leaf.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn corner_sums_of_sources(&self, half_power: u32) -> Result<Vec<f64>, Error> {
        self.device.download(&self.sums_of_corners(self.sources, true, half_power)?, "sums over leaves")
    }

    /// The mean over all targets: the sum of [`corner_sums`](Cut::corner_sums) divided by the number of targets; 0 without
    /// targets.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn corner_mean(&self, half_power: u32) -> Result<f64, Error> {
        let sums = self.sums_of_corners(self.targets, false, half_power)?;
        Ok(self.sums(&[(&sums).into()])?[0] / self.targets.len().max(1) as f64)
    }

    fn sums_of_corners(&self, points: &DevicePoints, of_sources: bool, half_power: u32) -> Result<Buffer<f64>, Error> {
        let sums: Buffer<f64> = self.device.alloc(self.boxes, "sums over leaves")?;
        let args = [
            (&self.tree).into(),
            (self.boxes as u32).into(),
            (&points.xyz).into(),
            (points.n as u64).into(),
            (points.axes as u32).into(),
            u32::from(of_sources).into(),
            half_power.into(),
            (&sums).into(),
        ];
        // SAFETY: arguments as in cut.cu; the ranges of the boxes lie within the points of their kind.
        unsafe { self.kernels.warps("corner_sums", self.boxes, &args)? };
        Ok(sums)
    }

    /// The boxes in the P2P rows of some boxes.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a box beyond those of the tree, and errors of the device.
    pub fn near_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        self.boxes_in([self.edges[3]], of)
    }

    /// The boxes in the M2L, M2P and P2L rows of some boxes.
    ///
    /// # Errors
    /// As [`near_rows`](Cut::near_rows).
    pub fn far_rows(&self, of: &[u32]) -> Result<Vec<u32>, Error> {
        let [m2l, p2l, m2p, _] = self.edges;
        self.boxes_in([m2l, m2p, p2l], of)
    }

    /// The boxes in the rows of some boxes.
    fn boxes_in<const K: usize>(&self, edges: [&DeviceEdges; K], of: &[u32]) -> Result<Vec<u32>, Error> {
        if let Some(&found) = of.iter().find(|&&b| b as usize >= self.boxes) {
            return Err(Error::TooMany { what: "box", found: found as usize, limit: self.boxes - 1 });
        }
        let kept = self.device.upload(of, "boxes")?;
        let all = self.primitives.iota(self.boxes, "boxes")?;
        let mut boxes = Vec::new();
        for rows in self.rows(&kept, edges.map(|e| (e, &all, &all)))? {
            boxes.extend(self.device.download(&rows.sources, "edges")?);
        }
        Ok(boxes)
    }

    /// The sources at some positions, as arrays of x, y and z.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a position beyond the sources, and errors of the device.
    pub fn sources(&self, positions: &[u32]) -> Result<[Vec<f64>; 3], Error> {
        self.host_points(self.sources, positions)
    }

    /// The indices of the sources at some positions, in the array of the caller.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a position beyond the sources, and errors of the device.
    pub fn source_indices(&self, positions: &[u32]) -> Result<Vec<u32>, Error> {
        within(self.sources, positions)?;
        let (device, n) = (self.device, positions.len());
        let (at, indices) = (device.upload(positions, "positions")?, device.alloc::<u32>(n, "indices")?);
        let args = [(&self.sources.order).into(), (&at).into(), (n as u32).into(), (&indices).into()];
        // SAFETY: arguments as in cut.cu; all positions lie within the points.
        unsafe { self.kernels.threads("take_indices", n, &args)? };
        device.download(&indices, "indices")
    }

    /// As [`sources`](Cut::sources), for targets.
    ///
    /// # Errors
    /// As [`sources`](Cut::sources).
    pub fn targets(&self, positions: &[u32]) -> Result<[Vec<f64>; 3], Error> {
        self.host_points(self.targets, positions)
    }

    /// The sources at some positions, as points of a direct sum.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a position beyond the sources, and errors of the device.
    pub fn some_sources(&self, positions: &[u32]) -> Result<CallerPoints, Error> {
        self.some(self.sources, positions)
    }

    /// As [`some_sources`](Cut::some_sources), for targets.
    ///
    /// # Errors
    /// As [`some_sources`](Cut::some_sources).
    pub fn some_targets(&self, positions: &[u32]) -> Result<CallerPoints, Error> {
        self.some(self.targets, positions)
    }

    fn some(&self, of: &DevicePoints, positions: &[u32]) -> Result<CallerPoints, Error> {
        within(of, positions)?;
        let (device, n) = (self.device, positions.len());
        let at = device.upload(positions, "positions")?;
        // SAFETY: all positions lie within the points.
        let rows = unsafe { of.taken(&self.kernels, (&at).into(), n)? };
        CallerPoints::of(device, 3, "points", rows)
    }

    fn host_points(&self, of: &DevicePoints, positions: &[u32]) -> Result<[Vec<f64>; 3], Error> {
        let Points { xyz, .. } = self.points(of, positions)?.download(self.device)?;
        Ok(xyz.map(|axis| if axis.is_empty() { vec![0.0; positions.len()] } else { axis }))
    }

    /// Some points, numbered anew.
    ///
    /// # Errors
    /// [`Error::TooMany`] for a position beyond the points, and errors of the device.
    fn points(&self, of: &DevicePoints, positions: &[u32]) -> Result<DevicePoints, Error> {
        within(of, positions)?;
        let (device, n) = (self.device, positions.len());
        let at = device.upload(positions, "positions")?;
        let taken =
            DevicePoints { order: self.primitives.iota(n, "order")?, ..DevicePoints::alloc(device, of.axes, n)? };
        let shape = [(&of.xyz).into(), (of.n as u64).into(), (of.axes as u32).into()];
        let args = [shape[0], shape[1], shape[2], (&at).into(), (n as u32).into(), (&taken.xyz).into()];
        // SAFETY: arguments as in cut.cu; all positions lie within the points.
        unsafe { self.kernels.threads("take_points", n, &args)? };
        Ok(taken)
    }

    /// The number of pairs of points of the P2P edges, on the device. Does not wait.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn near_pairs(&self) -> Result<Buffer<u64>, Error> {
        let pairs: Buffer<u64> = self.device.zeros(1, "pairs")?;
        let p2p = self.edges[3];
        let edges = [(&p2p.starts).into(), (&p2p.sources).into()];
        let args = [(&self.tree).into(), (self.boxes as u32).into(), edges[0], edges[1], (&pairs).into()];
        let grid = (blocks(self.boxes, WARPS_PER_BLOCK)?.min(MAX_WALKING_BLOCKS), 1);
        // SAFETY: arguments as in cut.cu; there is one row per box of the tree.
        unsafe { self.device.launch(&self.kernels.functions, "near_pairs", grid, BLOCK, &args)? };
        Ok(pairs)
    }

    /// A small problem: a part of the sources and targets of an octree with its lists, as `fmm_tree::thin` makes them. The
    /// small lists serve any settings. `boxes` is a copy of the boxes of the octree, and the positions ascend.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a pyramid, [`Error::Shape`] if `boxes` are not those of this tree, and errors of the
    /// device.
    pub fn thin(&self, boxes: &Tree, [sources, targets]: [&[u32]; 2]) -> Result<Placed, Error> {
        let (device, start) = (self.device, Instant::now());
        self.has(boxes.len())?;
        let Some(l) = self.lists else {
            let reason = "it is cut by another function".to_string();
            return Err(Error::Unsupported { operation: "a part of a pyramid", reason });
        };
        let Thinned { tree, kept } = thin_boxes(boxes, sources, targets);
        let points = [(self.sources, sources), (self.targets, targets)];
        let [s, t] = points.map(|(of, positions)| self.points(of, positions).map(Arc::new));
        let small = DeviceTree::with_points(device, &tree, s?, t?)?;
        let kept = device.upload(&kept, "boxes")?;
        let (s, t) = (self.numbers(&kept, &small.boxes.source_range)?, self.numbers(&kept, &small.boxes.target_range)?);
        let [p2m, m2m, m2l, p2l, l2l, m2p, l2p, p2p] = self.rows(
            &kept,
            [
                (&l.p2m, &s, &s),
                (&l.m2m, &s, &s),
                (&l.m2l, &t, &s),
                (&l.p2l, &t, &s),
                (&l.l2l, &t, &t),
                (&l.m2p, &t, &s),
                (&l.l2p, &t, &t),
                (&l.p2p, &t, &s),
            ],
        )?;
        let lists = DeviceLists { device: device.clone(), p2m, m2m, m2l, p2l, l2l, m2p, l2p, p2p };
        let mean_leaf = sources.len().max(targets.len()) as f64 / tree.leaves().max(1) as f64;
        Placed::fixed(small, lists, mean_leaf, start)
    }

    /// A part of the sources and targets of a pyramid in all its boxes, with the edges between those that keep points,
    /// on the host. `boxes` is a copy of the pyramid, whose points may be missing.
    ///
    /// # Errors
    /// [`Error::Shape`] if `boxes` are not those of this pyramid, and errors of the device.
    pub fn thin_pyramid(&self, boxes: &Pyramid, [sources, targets]: [&[u32]; 2]) -> Result<(Pyramid, Lists), Error> {
        let device = self.device;
        self.has(boxes.len())?;
        let points = [(self.sources, sources), (self.targets, targets)];
        let [s, t] =
            points.map(|(of, positions)| Ok::<_, Error>(points_of(self.points(of, positions)?.download(device)?)));
        let small = boxes.holding([sources, targets], [s?, t?]);
        let numbers = |filled: &dyn Fn(usize) -> bool| {
            let of = |b: usize| if filled(b) { b as u32 } else { NONE };
            device.upload(&(0..self.boxes).map(of).collect::<Vec<_>>(), "numbers of boxes")
        };
        let s = numbers(&|b| !small.sources_of(b).is_empty())?;
        let t = numbers(&|b| !small.targets_of(b).is_empty())?;
        let all = self.primitives.iota(self.boxes, "boxes")?;
        let rows = self.rows(&all, self.edges.map(|e| (e, &t, &s)))?;
        let [m2l, p2l, m2p, p2p] = each(|k| rows[k].download(device))?;
        let lists = completed(&small, m2l, p2l, m2p, p2p);
        Ok((small, lists))
    }

    /// Returns an error unless `found` is the number of boxes.
    fn has(&self, found: usize) -> Result<(), Error> {
        let (expected, why) = (self.boxes, "the boxes of this tree".to_string());
        if found == expected { Ok(()) } else { Err(Error::Shape { array: "boxes", found, expected, why }) }
    }

    /// For each box of the tree, its number among the boxes `kept` if its range there has points, else `NONE`.
    fn numbers(&self, kept: &Buffer<u32>, ranges: &Buffer<u32>) -> Result<Buffer<u32>, Error> {
        let device = self.device;
        let numbers = device.nones(self.boxes, "numbers of boxes")?;
        let args = [kept.into(), (kept.len() as u32).into(), ranges.into(), (&numbers).into()];
        // SAFETY: arguments as in cut.cu; `kept` are boxes of the tree, and each has a range.
        unsafe { self.kernels.threads("number_boxes", kept.len(), &args)? };
        Ok(numbers)
    }

    /// The rows of the boxes `kept`, for each kind of edges with the numbers of boxes that receive and that give.
    fn rows<const K: usize>(
        &self,
        kept: &Buffer<u32>,
        of: [(&DeviceEdges, &Buffer<u32>, &Buffer<u32>); K],
    ) -> Result<[DeviceEdges; K], Error> {
        let (device, n) = (self.device, kept.len());
        let common = |(e, receives, gives): (&DeviceEdges, &Buffer<u32>, &Buffer<u32>)| -> [Arg; 6] {
            let (starts, sources) = ((&e.starts).into(), (&e.sources).into());
            [kept.into(), (n as u32).into(), starts, sources, receives.into(), gives.into()]
        };
        let mut lengths = Vec::new();
        for one in of {
            let counts = device.zeros(n, "lengths of rows")?;
            let args: Vec<Arg> = common(one).into_iter().chain([(&counts).into()]).collect();
            // SAFETY: arguments as in cut.cu; boxes have an entry in `receives` and `gives`, and `kept` are boxes.
            unsafe { self.kernels.warps("cut_count", n, &args)? };
            lengths.push(counts);
        }
        let mut lengths = lengths.into_iter();
        let lengths = std::array::from_fn(|_| lengths.next().expect("as many as there are kinds"));
        filled(device, &self.primitives, n, &lengths, |rows: &[DeviceEdges; K]| {
            for (one, to) in of.into_iter().zip(rows) {
                let rest = [(&to.starts).into(), (&to.sources).into()];
                let args: Vec<Arg> = common(one).into_iter().chain(rest).collect();
                // SAFETY: as above; the rows have the lengths that were counted.
                unsafe { self.kernels.warps("cut_fill", n, &args)? };
            }
            Ok(())
        })
    }
}
