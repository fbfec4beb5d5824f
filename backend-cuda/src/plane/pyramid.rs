//! The pyramid of [`adaptive2d`] on the device: `kernels/plane_pyramid.cu`, which says how medians are found.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::points::CallerPoints;
use crate::primitives::Primitives;
use crate::tree::DevicePoints;
use adaptive2d::pyramid::level_start;
use adaptive2d::{PlanePoints, Pyramid, PyramidOptions};
use fmm_traits::{Error, Points};
use std::sync::Arc;

/// Threads per block: `THREADS` in `plane_pyramid.cu`.
const BLOCK: u32 = 256;
/// Pairs of a chunk of a list: `CHUNK` in `plane_pyramid.cu`.
const CHUNK: usize = 2048;
/// Most points of a segment that a warp splits in shared memory.
const SMALL: usize = 1024;
/// Smallest scale of a box in f64, in radii of the root, as on the CPU.
pub(crate) const LEAST_SCALE: f64 = adaptive2d::pyramid::MIN_RELATIVE_SCALE;
/// Threads per block in kernels with one warp per box.
pub(super) const WARP_BLOCK: u32 = 128;
/// Warps of such a block.
pub(super) const WARPS: usize = WARP_BLOCK as usize / 32;

/// A pyramid in device memory, with the arrays of [`Pyramid`].
#[derive(Debug)]
pub struct DevicePyramid {
    pub(crate) device: Device,
    pub(crate) depth: usize,
    pub(crate) center: Buffer<[f64; 2]>,
    pub(crate) radius: Buffer<f64>,
    pub(crate) source_start: Arc<Buffer<u32>>,
    pub(crate) target_start: Arc<Buffer<u32>>,
    pub(crate) sources: Arc<DevicePoints>,
    pub(crate) targets: Arc<DevicePoints>,
    /// Radius of the root.
    root: f64,
}

/// Builds the pyramid of `sources` and `targets` (`None`: targets are the sources) on the device.
///
/// It has the boxes of [`Pyramid::build`]: equal starts, centres and radii of leaves to the bit, other radii up to the
/// rounding of a distance. Points of a leaf lie in the order of their x. Points with equal coordinates at a median are
/// distributed by the caller's index; the CPU distributes them in the order in which it moves points.
///
/// # Errors
/// As [`Pyramid::build`], and errors of the device.
pub fn plane_build(
    device: &Device,
    sources: &CallerPoints,
    targets: Option<&CallerPoints>,
    options: &PyramidOptions,
) -> Result<DevicePyramid, Error> {
    for points in [Some(sources), targets].into_iter().flatten() {
        points.is_on(device)?;
        if points.dim() != 2 {
            let why = "two coordinates a point".to_string();
            return Err(Error::Shape { array: "points", found: points.dim(), expected: 2, why });
        }
    }
    let depth = options.depth_of(sources.len(), targets.map(CallerPoints::len))?;
    let maker = Maker { device, functions: device.fixed("plane_pyramid", super::pyramid_program)?, depth };
    let (all, start) = maker.split(sources, targets)?;
    let (center, radius) = maker.shrink(&all, &start)?;
    let root = device.download_range(&radius, 0..1, "radii")?[0];
    let pyramid = |sources: Arc<DevicePoints>, targets, source_start, target_start| DevicePyramid {
        device: device.clone(),
        depth,
        center,
        radius,
        source_start,
        target_start,
        sources,
        targets,
        root,
    };
    if targets.is_none() {
        let (all, start) = (Arc::new(all), Arc::new(start));
        return Ok(pyramid(all.clone(), all, start.clone(), start));
    }
    let ([sources, targets], [source_start, target_start]) = maker.pick(&all, &start, sources.len())?;
    Ok(pyramid(Arc::new(sources), Arc::new(targets), Arc::new(source_start), Arc::new(target_start)))
}

/// What the steps of a building share.
struct Maker<'a> {
    device: &'a Device,
    functions: Functions,
    depth: usize,
}

impl Maker<'_> {
    unsafe fn launch(&self, entry: &'static str, n: usize, args: &[Arg]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(&self.functions, entry, (blocks(n, BLOCK as usize)?, 1), BLOCK, args) }
    }

    /// The points in tree order, and the first point of each leaf with the end of the last leaf.
    fn split(
        &self,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
    ) -> Result<(DevicePoints, Buffer<u32>), Error> {
        let device = self.device;
        let n = sources.len() + targets.map_or(0, CallerPoints::len);
        let (halvings, leaves) = (2 * self.depth as u32, 1usize << (2 * self.depth));
        let start: Buffer<u32> = device.alloc(leaves + 1, "starts of leaves")?;
        let points = DevicePoints::alloc(device, 2, n)?;
        // SAFETY: arguments as in plane_pyramid.cu; arrays have the lengths that it names.
        unsafe {
            self.launch("plane_leaf_starts", leaves + 1, &[(n as u32).into(), halvings.into(), (&start).into()])?;
        }
        if n == 0 {
            return Ok((points, start));
        }
        let [low, high] = joint_bounds(sources, targets);
        let bits = [0, 1].map(|axis| (64 - (ordered(high[axis]) - ordered(low[axis])).leading_zeros()).max(1));
        let primitives = Primitives::new(device)?;
        let mut keys = self.keys([Some(sources), targets], n, low)?;
        let mut leading = primitives.leading(keys.each_ref(), n, bits)?;
        let (mut order, mut ranks) = (device.alloc(n, "order")?, device.alloc(n, "ranks")?);
        loop {
            // By x with indices, and then by y with x-ranks.
            primitives.sort_leading(&leading, (0, bits[0]), (&mut keys[0], &mut order), true, n)?;
            // SAFETY: as above; the order is a permutation.
            unsafe { self.launch("plane_ranks", n, &[(&order).into(), (n as u64).into(), (&ranks).into()])? };
            primitives.sort_leading(&leading, (1, bits[1]), (&mut keys[1], &mut ranks), false, n)?;
            if primitives.complete(&leading)? {
                break;
            }
            (keys, leading) = (self.keys([Some(sources), targets], n, low)?, leading.all());
        }
        let pairs = || device.alloc::<[u32; 2]>(n, "lists of points");
        let (lists, rank_y) = ([pairs()?, pairs()?, pairs()?, pairs()?], device.alloc::<u32>(n, "ranks")?);
        let count: Arg = (n as u64).into();
        // SAFETY: as above; the ranks are a permutation.
        unsafe {
            self.launch("plane_by_y", n, &[(&ranks).into(), count, (&rank_y).into(), (&lists[2]).into()])?;
            self.launch("plane_by_x", n, &[(&order).into(), (&rank_y).into(), count, (&lists[0]).into()])?;
        }
        let orders = [
            (&lists[0]).into(),
            (&lists[1]).into(),
            (&lists[2]).into(),
            (&lists[3]).into(),
            (&ranks).into(),
            (&keys[0]).into(),
            (&keys[1]).into(),
            low[0].into(),
            low[1].into(),
            (n as u32).into(),
        ];
        let places = [
            sources.rows().into(),
            (sources.len() as u32).into(),
            targets.unwrap_or(sources).rows().into(),
            points.axis(0),
            points.axis(1),
            (&points.order).into(),
        ];
        self.halve(n, halvings, &orders, &places)?;
        Ok((points, start))
    }

    /// The keys of `n` points along x and y. `low` is the lower corner of their box.
    fn keys(&self, given: [Option<&CallerPoints>; 2], n: usize, low: [f64; 2]) -> Result<[Buffer<u64>; 2], Error> {
        let keys = [self.device.alloc(n, "keys")?, self.device.alloc(n, "keys")?];
        let mut first = 0;
        for given in given.into_iter().flatten() {
            let args = [
                given.rows().into(),
                (given.len() as u64).into(),
                (first as u64).into(),
                low[0].into(),
                low[1].into(),
                (&keys[0]).into(),
                (&keys[1]).into(),
            ];
            // SAFETY: arguments as in plane_pyramid.cu; there is a key for each point.
            unsafe { self.launch("plane_keys", given.len(), &args)? };
            first += given.len();
        }
        Ok(keys)
    }

    /// Splits both lists on all half levels, and writes the points. Segments of one point need no further half level.
    fn halve(&self, n: usize, halvings: u32, orders: &[Arg], places: &[Arg]) -> Result<(), Error> {
        let device = self.device;
        let with = |more: &[Arg]| orders.iter().chain(more).copied().collect::<Vec<Arg>>();
        let useful = halvings.min(n.next_power_of_two().ilog2());
        let longest = |half: u32| n.div_ceil(1 << half);
        let chunks = |half: u32| longest(half).div_ceil(CHUNK);
        let apart = (0..useful).find(|&half| longest(half) <= SMALL).unwrap_or(useful);
        // For each half level a state of each chunk, and the number of the next chunk.
        let lower: Buffer<u64> = device.zeros((0..apart).map(|half| (chunks(half) << half) + 1).sum(), "chunks")?;
        let mut states: Buffer<u32> = device.zeros(1, "states of segments")?;
        let mut first = 0;
        for half in 0..apart {
            let all = chunks(half) << half;
            let below: Buffer<u32> = device.alloc(2 << half, "states of segments")?;
            let args =
                with(&[half.into(), (chunks(half) as u32).into(), (&states).into(), lower.at(first), (&below).into()]);
            // SAFETY: as in plane_pyramid.cu; there is a state for each segment and each chunk.
            unsafe { device.launch(&self.functions, "plane_move", (blocks(all, 1)?, 1), BLOCK, &args)? };
            (states, first) = (below, first + all + 1);
        }
        if apart < useful {
            let mut args = with(&[apart.into(), (useful - apart).into(), (&states).into()]);
            args.extend(places);
            let bytes = (2 * longest(apart) + longest(apart).div_ceil(2)) * size_of::<u64>();
            let grid = [blocks(1 << apart, 1)?, 1, 1];
            // SAFETY: as above; a segment has at most `longest` points.
            return unsafe { device.launch_sharing(&self.functions, "plane_split_small", grid, (32, bytes), &args) };
        }
        let mut args = with(&[useful.into(), (chunks(useful) as u32).into(), (&states).into()]);
        args.extend(places);
        // SAFETY: as above.
        unsafe { device.launch(&self.functions, "plane_put", (blocks(chunks(useful) << useful, 1)?, 1), BLOCK, &args) }
    }

    /// Centres and radii of all boxes.
    fn shrink(&self, points: &DevicePoints, start: &Buffer<u32>) -> Result<(Buffer<[f64; 2]>, Buffer<f64>), Error> {
        let (device, depth) = (self.device, self.depth);
        let (boxes, first) = (level_start(depth + 1), level_start(depth));
        let center = device.alloc::<[f64; 2]>(boxes, "centres of boxes")?;
        let radius = device.alloc::<f64>(boxes, "radii of boxes")?;
        let bounds = device.alloc::<[f64; 4]>(boxes, "bounds of boxes")?;
        let leaves = boxes - first;
        let args = [
            points.axis(0),
            points.axis(1),
            start.into(),
            (leaves as u32).into(),
            bounds.at(first),
            center.at(first),
            radius.at(first),
        ];
        let grid = (blocks(leaves, WARPS)?, 1);
        // SAFETY: arguments as in plane_pyramid.cu; arrays have an entry for each box.
        unsafe { device.launch(&self.functions, "plane_shrink_leaves", grid, WARP_BLOCK, &args)? };
        for level in (0..depth).rev() {
            let count = level_start(level + 1) - level_start(level);
            let args = [(level as u32).into(), (&bounds).into(), (&center).into(), (&radius).into()];
            // SAFETY: as above; the children are complete.
            unsafe { self.launch("plane_shrink", count, &args)? };
            if count <= BLOCK as usize {
                // A single block goes on to the root.
                break;
            }
        }
        Ok((center, radius))
    }

    /// Sources and targets of a joint order, with their starts. The first `count` indices are those of sources.
    fn pick(
        &self,
        all: &DevicePoints,
        start: &Buffer<u32>,
        count: usize,
    ) -> Result<([DevicePoints; 2], [Buffer<u32>; 2]), Error> {
        let (device, n, leaves) = (self.device, all.n, start.len());
        let flags: Buffer<u32> = device.alloc(n, "kinds of points")?;
        let before: Buffer<u64> = device.alloc(n + 1, "kinds of points")?;
        let (sources, targets) = (DevicePoints::alloc(device, 2, count)?, DevicePoints::alloc(device, 2, n - count)?);
        let starts = [device.alloc(leaves, "starts of leaves")?, device.alloc(leaves, "starts of leaves")?];
        let (number, limit): (Arg, Arg) = ((n as u64).into(), (count as u32).into());
        // SAFETY: arguments as in plane_pyramid.cu; sources and targets have room for their points.
        unsafe {
            self.launch("plane_are_sources", n, &[(&all.order).into(), number, limit, (&flags).into()])?;
            Primitives::new(device)?.scan([(&flags, &before)], n)?;
            let args = [
                all.axis(0),
                all.axis(1),
                (&all.order).into(),
                (&before).into(),
                number,
                limit,
                sources.axis(0),
                sources.axis(1),
                (&sources.order).into(),
                targets.axis(0),
                targets.axis(1),
                (&targets.order).into(),
            ];
            self.launch("plane_pick", n, &args)?;
            let args =
                [start.into(), (&before).into(), (leaves as u64).into(), (&starts[0]).into(), (&starts[1]).into()];
            self.launch("plane_pick_starts", leaves, &args)?;
        }
        Ok(([sources, targets], starts))
    }
}

/// Points on the host as those of a pyramid.
pub(crate) fn points_of(points: Points) -> PlanePoints {
    let Points { xyz: [x, y, _], order } = points;
    PlanePoints { x, y, order }
}

/// The bits of a number, in the order of numbers: `ordered` in `plane_pyramid.cu`.
fn ordered(x: f64) -> u64 {
    let bits = (x + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The corners of the box around sources and targets.
fn joint_bounds(sources: &CallerPoints, targets: Option<&CallerPoints>) -> [[f64; 2]; 2] {
    let [mut low, mut high] = [[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]];
    for [l, h] in [Some(sources), targets].into_iter().flatten().map(CallerPoints::bounds) {
        for a in 0..2 {
            (low[a], high[a]) = (low[a].min(l[a]), high[a].max(h[a]));
        }
    }
    [low, high]
}

impl DevicePyramid {
    /// Number of the level of the leaves; the root has level 0.
    pub fn depth(&self) -> usize {
        self.depth
    }
    /// Number of boxes.
    pub fn len(&self) -> usize {
        level_start(self.depth + 1)
    }
    /// Whether there is no box. A pyramid always has a root, so this is always false.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        1 << (2 * self.depth)
    }
    /// Numbers of sources and targets.
    pub fn counts(&self) -> [usize; 2] {
        [self.sources.n, self.targets.n]
    }
    /// Whether targets are the sources.
    pub fn same_points(&self) -> bool {
        Arc::ptr_eq(&self.sources, &self.targets)
    }
    /// Radius of the root.
    pub fn radius(&self) -> f64 {
        self.root
    }
    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        let targets = if self.same_points() { 0 } else { self.targets.bytes() + self.target_start.bytes() };
        self.center.bytes() + self.radius.bytes() + self.source_start.bytes() + self.sources.bytes() + targets
    }
    /// Side of the square that stands for the root: twice its radius, or 2 if all points are one point.
    pub(crate) fn root_side(&self) -> f64 {
        if self.root > 0.0 { 2.0 * self.root } else { 2.0 }
    }
    /// The pyramid as kernels see it: `Pyramid` of `pyramid.cuh`. Boxes have a scale of at least `least` radii of the
    /// root.
    pub(crate) fn described(&self, least: f64) -> Result<Buffer<u64>, Error> {
        let least = if self.root > 0.0 { self.root * least } else { 1.0 };
        let numbers = [
            self.center.address(),
            self.radius.address(),
            self.source_start.address(),
            self.target_start.address(),
            self.depth as u64 | (self.len() as u64) << 32,
            least.to_bits(),
        ];
        self.device.upload(&numbers, "description of a pyramid")
    }
    /// The sources, and the targets if they are separate points (else empty), in the caller's order, N×2.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn points(&self) -> Result<[Vec<f64>; 2], Error> {
        let targets = if self.same_points() { Vec::new() } else { self.targets.rows(&self.device)? };
        Ok([self.sources.rows(&self.device)?, targets])
    }
    /// A copy on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Pyramid, Error> {
        let boxes = self.download_boxes()?;
        let sources = Arc::new(points_of(self.sources.download(&self.device)?));
        let targets = match self.same_points() {
            true => sources.clone(),
            false => Arc::new(points_of(self.targets.download(&self.device)?)),
        };
        boxes.with_points([sources, targets])
    }
    /// A copy of the boxes on the host, without points.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download_boxes(&self) -> Result<Pyramid, Error> {
        let device = &self.device;
        let starts = |start: &Buffer<u32>| device.download(start, "starts of leaves");
        let source_start = starts(&self.source_start)?;
        let target_start = if self.same_points() { source_start.clone() } else { starts(&self.target_start)? };
        Pyramid::of_boxes(
            self.depth,
            device.download(&self.center, "centres of boxes")?,
            device.download(&self.radius, "radii of boxes")?,
            [source_start, target_start],
            self.same_points(),
        )
    }
    /// A copy of a pyramid of the host.
    ///
    /// # Errors
    /// As [`Pyramid::check`], and errors of the device.
    pub fn upload(device: &Device, pyramid: &Pyramid) -> Result<DevicePyramid, Error> {
        pyramid.check()?;
        let upload = |p: &PlanePoints| DevicePoints::upload(device, &[&p.x, &p.y], &p.order).map(Arc::new);
        let (sources, same) = (upload(&pyramid.sources)?, pyramid.same_points());
        let targets = if same { sources.clone() } else { upload(&pyramid.targets)? };
        let [source_start, target_start] = pyramid.starts();
        let source_start = Arc::new(device.upload(source_start, "starts of leaves")?);
        let start =
            if same { source_start.clone() } else { Arc::new(device.upload(target_start, "starts of leaves")?) };
        Ok(DevicePyramid {
            device: device.clone(),
            depth: pyramid.depth(),
            center: device.upload(&pyramid.center, "centres of boxes")?,
            radius: device.upload(&pyramid.radius, "radii of boxes")?,
            source_start,
            target_start: start,
            sources,
            targets,
            root: pyramid.radius[0],
        })
    }
}
