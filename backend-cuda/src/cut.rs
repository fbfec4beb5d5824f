//! A tree and its lists in device memory, as the probe of a plan reads them: `kernels/cut.cu`. This module reads points and
//! sums over boxes. The module `draw` draws leaves, the module `thin` makes the small problem of a sample. Boxes, points and
//! lists of octrees stay on the device. A pyramid goes the same way, but for its small problem, which is made on the host.

use crate::device::{Arg, Buffer, ByItem, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use crate::draw::Numbers;
use crate::lists::{DeviceEdges, DeviceLists};
use crate::plane::{DevicePyramid, LEAST_SCALE};
use crate::points::CallerPoints;
use crate::primitives::Primitives;
use crate::programs::{self, Named};
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::{Error, Points};
use fmm_tree::{DISTANCES, Incoming};

/// Threads per block.
const BLOCK: u32 = 128;
/// Numbers of a frame: three of its centre, and its side.
const FRAME: usize = 4;
/// Number of parts of a sum over boxes, each the part of a warp. It is fixed, so that the sum does not depend on the device.
const PARTS_OF_A_SUM: usize = 1024;
/// Largest number of outputs that `far_sums` and `far_squares` take.
pub(crate) const OUTPUTS: usize = 4;
/// Boxes of a block of `near_pairs`, which has one warp per box.
const WARPS_PER_BLOCK: usize = BLOCK as usize / 32;

/// A tree of either kind with its lists, from which a small problem can be cut out.
pub struct Cut<'a> {
    pub(crate) device: &'a Device,
    /// The tree as kernels see it.
    pub(crate) tree: Buffer<u64>,
    /// Number of boxes.
    pub(crate) boxes: usize,
    /// Number of levels.
    pub(crate) levels: usize,
    /// Side of the root.
    root_side: f64,
    pub(crate) sources: &'a DevicePoints,
    pub(crate) targets: &'a DevicePoints,
    /// M2L, P2L, M2P and P2P.
    pub(crate) edges: [&'a DeviceEdges; 4],
    /// An octree with all its lists.
    pub(crate) octree: Option<(&'a DeviceTree, &'a DeviceLists)>,
    pub(crate) kernels: ByItem,
    /// The program of draws.
    pub(crate) draws: Named,
    pub(crate) primitives: Primitives,
}

/// An error for a box beyond `boxes`.
pub(crate) fn within_boxes(boxes: usize, of: &[u32]) -> Result<(), Error> {
    match of.iter().find(|&&b| b as usize >= boxes) {
        Some(&found) => Err(Error::TooMany { what: "box", found: found as usize, limit: boxes - 1 }),
        None => Ok(()),
    }
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
        let shape = (tree.len(), tree.level_start.len() - 1, tree.side);
        let cut = Cut::of(device, (functions, ("draw", programs::draw)), described, shape, points, edges)?;
        Ok(Cut { octree: Some((tree, lists)), ..cut })
    }

    /// For a pyramid with M2L, P2L, M2P and P2P edges.
    pub(crate) fn of_pyramid(pyramid: &'a DevicePyramid, edges: [&'a DeviceEdges; 4]) -> Result<Self, Error> {
        let device = &pyramid.device;
        let functions = device.fixed("cut of a pyramid", programs::cut_of_pyramid)?;
        let (described, points) = (pyramid.described(LEAST_SCALE)?, [&*pyramid.sources, &*pyramid.targets]);
        let draws: Named = ("draw of a pyramid", programs::draw_of_pyramid);
        let shape = (pyramid.len(), pyramid.depth + 1, pyramid.root_side());
        Cut::of(device, (functions, draws), described, shape, points, edges)
    }

    fn of(
        device: &'a Device,
        (functions, draws): (Functions, Named),
        tree: Buffer<u64>,
        (boxes, levels, root_side): (usize, usize, f64),
        [sources, targets]: [&'a DevicePoints; 2],
        edges: [&'a DeviceEdges; 4],
    ) -> Result<Self, Error> {
        let (kernels, primitives) = (ByItem::new(device, functions, BLOCK), Primitives::new(device)?);
        let octree = None;
        Ok(Cut { device, tree, boxes, levels, root_side, sources, targets, edges, octree, kernels, draws, primitives })
    }

    /// A summary of the edges into each box, as `fmm_tree::incoming` makes it.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn incoming(&self) -> Result<Vec<Incoming>, Error> {
        let brief = self.device.download(&self.incoming_there()?, "incoming edges")?;
        Ok(brief.into_iter().map(Incoming::of_code).collect())
    }

    /// The codes of [`incoming`](Cut::incoming), on the device.
    pub(crate) fn incoming_there(&self) -> Result<Buffer<u32>, Error> {
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
        Ok(brief)
    }

    /// A factor for each box, whose mean over all targets is 1: one half is the same for all boxes, the other half is made up
    /// of the numbers of `fmm_tree::far_squares`, each array divided by its mean over all targets, with equal shares. Arrays
    /// whose mean is no normal number (0, infinite) are left out; `None` if that leaves none. M2P edges take all degrees, as
    /// they do in the solvers on a device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn far_factors(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Option<Numbers>, Error> {
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
        Ok(Some(Numbers(factors)))
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

    /// Numbers of sources and targets.
    pub fn counts(&self) -> [usize; 2] {
        [self.sources.len(), self.targets.len()]
    }

    /// Whether targets are the sources.
    pub fn same_points(&self) -> bool {
        std::ptr::eq(self.sources, self.targets)
    }

    /// The side of the root.
    pub fn root_side(&self) -> f64 {
        self.root_side
    }

    /// The numbers of `fmm_tree::far_squares` for at most [`OUTPUTS`] arrays of weights, each times the number of targets of
    /// the box: for each array first for all boxes with all degrees, then for all boxes with fewer degrees on far edges.
    fn far_squares(&self, weights: &[[f64; DISTANCES]], half_power: u32) -> Result<Buffer<f64>, Error> {
        let (device, n, outputs) = (self.device, self.boxes, weights.len());
        let sums: Buffer<f64> = device.alloc(2 * outputs * n, "sums over edges")?;
        let squares: Buffer<f64> = device.alloc(2 * outputs * n, "squares of leaves")?;
        let weights: Buffer<f64> = device.upload(weights.as_flattened(), "weights of edges")?;
        let frames: Buffer<f64> = device.alloc(FRAME * n, "frames of boxes")?;
        let points: Buffer<u32> = device.alloc(n, "points of boxes")?;
        let [m2l, p2l, m2p, _] = self.edges;
        let of_sources = [(&self.tree).into(), (n as u32).into(), (&frames).into(), (&points).into()];
        let of_sums = [
            (&self.tree).into(),
            (n as u32).into(),
            (&frames).into(),
            (&points).into(),
            (&m2l.starts).into(),
            (&p2l.starts).into(),
            (&m2l.sources).into(),
            (&p2l.sources).into(),
            (&weights).into(),
            (outputs as u32).into(),
            half_power.into(),
            (&sums).into(),
        ];
        let of_above = [
            (&self.tree).into(),
            (n as u32).into(),
            (&m2p.starts).into(),
            (outputs as u32).into(),
            (&sums).into(),
            (&squares).into(),
        ];
        let of_squares = [
            (&self.tree).into(),
            (n as u32).into(),
            (&frames).into(),
            (&points).into(),
            (&m2p.starts).into(),
            (&m2p.sources).into(),
            (&self.targets.xyz).into(),
            (self.targets.n as u64).into(),
            (self.targets.axes as u32).into(),
            u32::from(m2l.is_empty()).into(),
            (&weights).into(),
            (outputs as u32).into(),
            half_power.into(),
            (&squares).into(),
        ];
        // SAFETY: arguments as in cut.cu; there is a frame and a number of points for each box, `sums` and `squares` have two
        // entries for each box and output, `weights` one for each distance and output, and the ranges of the boxes lie within
        // the targets.
        unsafe {
            self.kernels.threads("far_sources", n, &of_sources)?;
            self.kernels.warps("far_sums", n, &of_sums)?;
            self.kernels.threads("far_above", n, &of_above)?;
            if !m2p.is_empty() {
                self.kernels.warps("far_squares", n, &of_squares)?;
            }
        }
        Ok(squares)
    }

    /// For each leaf the sum over its sources, or over its targets, of ρ^(2·`half_power`), where ρ is the distance from the
    /// centre of the leaf in sides of the leaf, 0 for other boxes; and the sum over all leaves.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn corner_sums(&self, of_sources: bool, half_power: u32) -> Result<(Numbers, f64), Error> {
        let points = if of_sources { self.sources } else { self.targets };
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
        let all = self.sums(&[(&sums).into()])?[0];
        Ok((Numbers(sums), all))
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
    pub(crate) fn points(&self, of: &DevicePoints, positions: &[u32]) -> Result<DevicePoints, Error> {
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
}
