//! A tree in device memory with its points: what plans and kernels ask of it, and copies from and to the host.

use crate::device::{Arg, Buffer, ByItem, Device};
use crate::pinned::joined;
use crate::programs;
use crate::ranks::Ranks;
use crate::split::Boxes;
use fmm_traits::tree::{Points, Tree};
use fmm_traits::{Error, Shared};
use std::ops::Range;
use std::sync::Arc;

/// Threads per block.
const BLOCK: u32 = 256;

/// Points of a tree in device memory, in tree order.
#[derive(Debug)]
pub struct DevicePoints {
    /// x of all points, then y, then z; no z for points of a pyramid.
    pub(crate) xyz: Buffer<f64>,
    /// Index of each point in the caller's array.
    pub(crate) order: Buffer<u32>,
    /// Number of points.
    pub(crate) n: usize,
    /// Coordinates of a point: 3, or 2 in a pyramid.
    pub(crate) axes: usize,
}

/// A tree in device memory, with the same fields as [`Tree`].
#[derive(Debug)]
pub struct DeviceTree {
    pub(crate) device: Device,
    /// Lower corner of the root cube.
    pub corner: [f64; 3],
    /// Side of the root cube.
    pub side: f64,
    /// First box of each level, and the number of boxes.
    pub level_start: Vec<u32>,
    pub(crate) boxes: Boxes,
    /// The sources in tree order.
    pub sources: Arc<DevicePoints>,
    /// The targets in tree order. If they are the sources, both share one allocation.
    pub targets: Arc<DevicePoints>,
    /// What only the tree of one of several ranks has; `None` on one rank.
    pub(crate) shared: Option<DeviceShared>,
}

/// The part of a tree on a device that trees of one rank do not have.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    /// The same on the host; `None` if the tree was made on the device.
    pub host: Option<Arc<Shared>>,
    /// Position of the first target among the sources, if the targets are consecutive sources.
    pub first: Option<u32>,
    /// The share of this rank in a tree that has the points of all ranks.
    pub share: Option<Mine>,
    /// Number of sources of each box on all ranks.
    pub sources: Buffer<u64>,
    /// The way to the other ranks; `None` for a small problem that a rank sums alone.
    pub ranks: Option<Ranks>,
}

/// What one of several ranks has of a tree with the points of all.
#[derive(Clone, Debug)]
pub(crate) struct Mine {
    /// The targets at which this rank sums, in tree order.
    pub targets: Range<usize>,
    /// The sources of the same leaves, in tree order.
    pub sources: Range<usize>,
    /// Number of boxes of the tree of all points.
    pub boxes: usize,
    /// The larger one of the numbers of sources and of targets of all ranks.
    pub points: usize,
}

impl DeviceShared {
    /// Copies the part of a tree of `boxes` boxes from the host.
    fn upload(device: &Device, host: &Arc<Shared>, boxes: usize) -> Result<Self, Error> {
        let exchange = host.exchange.as_deref();
        let ranks = exchange.map(|exchange| Ranks::of_exchange(device, exchange, boxes)).transpose()?;
        let first = host.same_points.then_some(host.first as u32);
        let sources = device.upload(&host.sources, "boxes")?;
        Ok(DeviceShared { host: Some(host.clone()), first, share: None, sources, ranks })
    }
}

impl DevicePoints {
    /// Number of points.
    pub fn len(&self) -> usize {
        self.n
    }
    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }
    /// Room for `n` points of `axes` coordinates.
    pub(crate) fn alloc(device: &Device, axes: usize, n: usize) -> Result<DevicePoints, Error> {
        let xyz = device.alloc(axes * n, "points in tree order")?;
        Ok(DevicePoints { xyz, order: device.alloc(n, "order of points")?, n, axes })
    }
    /// `n` points of space whose coordinates and order are not here. They are never read.
    pub(crate) fn elsewhere(device: &Device, n: usize) -> Result<DevicePoints, Error> {
        let what = "points of other ranks";
        Ok(DevicePoints { xyz: device.alloc(0, what)?, order: device.alloc(0, what)?, n, axes: 3 })
    }
    /// Whether the coordinates are here.
    pub(crate) fn are_here(&self) -> bool {
        self.xyz.len() == self.axes * self.n
    }
    /// The coordinates along an axis, for a kernel.
    pub(crate) fn axis(&self, axis: usize) -> Arg {
        self.xyz.at(axis * self.n)
    }
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.xyz.bytes() + self.order.bytes()
    }
    /// The points in the caller's order, the coordinates of a point behind each other.
    pub(crate) fn rows(&self, device: &Device) -> Result<Vec<f64>, Error> {
        let (points, axes) = (self.download(device)?, self.axes);
        let mut rows = vec![0.0; axes * self.n];
        for (i, &at) in points.order.iter().enumerate() {
            for a in 0..axes {
                rows[axes * at as usize + a] = points.xyz[a][i];
            }
        }
        Ok(rows)
    }
    /// The places in tree order of some of the caller's rows.
    pub(crate) fn places(&self, device: &Device, rows: Range<usize>) -> Result<Buffer<u32>, Error> {
        let to = device.alloc(rows.len(), "places")?;
        let [first, count] = [rows.start, rows.len()].map(|x| Arg::from(x as u32));
        let args = [(&self.order).into(), (self.n as u64).into(), first, count, (&to).into()];
        let kernels = ByItem::new(device, device.fixed("ends", programs::ends)?, BLOCK);
        // SAFETY: arguments as in ends.cu; the order is a permutation of the points.
        unsafe { kernels.threads("places", self.n, &args)? };
        Ok(to)
    }
    /// The points at `n` positions as rows of three coordinates; z = 0 for points of the plane.
    ///
    /// # Safety
    /// `kernels` are those of `cut.cu`. There are `n` positions, all of them within the points.
    pub(crate) unsafe fn taken(&self, kernels: &ByItem, positions: Arg, n: usize) -> Result<Buffer<f64>, Error> {
        let taken = kernels.device().alloc(3 * n, "points")?;
        let shape = [(&self.xyz).into(), (self.n as u64).into(), (self.axes as u32).into()];
        let args = [shape[0], shape[1], shape[2], positions, (n as u32).into(), (&taken).into()];
        // SAFETY: arguments as in cut.cu; the rest is promised by the caller.
        unsafe { kernels.threads("take_points_as_rows", n, &args)? };
        Ok(taken)
    }
    /// Copies points from the host: one array for each axis, and the order.
    pub(crate) fn upload(device: &Device, xyz: &[&[f64]], order: &[u32]) -> Result<DevicePoints, Error> {
        let (axes, n) = (xyz.len(), order.len());
        let xyz = device.upload(&xyz.concat(), "points in tree order")?;
        Ok(DevicePoints { xyz, order: device.upload(order, "order")?, n, axes })
    }
    /// A copy on the host. The array of an axis that there is not is empty.
    pub(crate) fn download(&self, device: &Device) -> Result<Points, Error> {
        let xyz = device.download(&self.xyz, "points")?;
        let axis = |a: usize| if a < self.axes { xyz[a * self.n..(a + 1) * self.n].to_vec() } else { Vec::new() };
        Ok(Points { xyz: std::array::from_fn(axis), order: device.download(&self.order, "order")? })
    }
}

impl DeviceTree {
    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.level_start.last().map_or(0, |&n| n as usize)
    }
    /// Whether there is no box. A tree always has a root, so this is always false.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Side of the boxes of the deepest level.
    pub(crate) fn smallest_side(&self) -> f64 {
        self.side * (2.0 - self.level_start.len() as f64).exp2()
    }
    /// The tree as kernels see it: `Boxes` of `boxes.cuh`.
    pub(crate) fn described(&self) -> Result<Buffer<u64>, Error> {
        self.boxes.described(&self.device, (self.corner, self.side), &self.boxes.target_range)
    }
    /// Bytes of device memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let targets = if Arc::ptr_eq(&self.sources, &self.targets) { 0 } else { self.targets.bytes() };
        self.boxes.bytes() + self.sources.bytes() + targets
    }
    /// Copies boxes from the host to the device. The points are there already.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn with_points(
        device: &Device,
        boxes: &Tree,
        sources: Arc<DevicePoints>,
        targets: Arc<DevicePoints>,
    ) -> Result<DeviceTree, Error> {
        let levels = (0..boxes.levels()).flat_map(|l| boxes.level(l).map(move |_| l as u8));
        let arrays = Boxes {
            parent: device.upload(&boxes.parent, "boxes")?,
            child_start: device.upload(&boxes.child_start, "boxes")?,
            child_count: device.upload(&boxes.child_count, "boxes")?,
            octant: device.upload(&boxes.octant, "boxes")?,
            level: device.upload(&levels.collect::<Vec<u8>>(), "boxes")?,
            anchor: device.upload(boxes.anchor.as_flattened(), "boxes")?,
            source_range: device.upload(boxes.source_range.as_flattened(), "boxes")?,
            target_range: device.upload(boxes.target_range.as_flattened(), "boxes")?,
        };
        let (corner, side, level_start) = (boxes.corner, boxes.side, boxes.level_start.clone());
        let shared =
            boxes.shared.as_ref().map(|shared| DeviceShared::upload(device, shared, boxes.len())).transpose()?;
        Ok(DeviceTree { device: device.clone(), corner, side, level_start, boxes: arrays, sources, targets, shared })
    }
    /// Copies a tree from the host to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn upload(device: &Device, tree: &Tree) -> Result<DeviceTree, Error> {
        let upload =
            |p: &Points| DevicePoints::upload(device, &p.xyz.each_ref().map(|axis| &axis[..]), &p.order).map(Arc::new);
        let sources = upload(&tree.sources)?;
        let same = Arc::ptr_eq(&tree.sources, &tree.targets);
        let targets = if same { sources.clone() } else { upload(&tree.targets)? };
        DeviceTree::with_points(device, tree, sources, targets)
    }
    /// Position of the first target among the sources, if the targets are consecutive sources.
    pub(crate) fn first_target(&self) -> Option<u32> {
        match &self.shared {
            Some(shared) => shared.first,
            None => Arc::ptr_eq(&self.sources, &self.targets).then_some(0),
        }
    }
    /// The targets at which this rank sums, in tree order.
    pub(crate) fn wanted(&self) -> Range<usize> {
        self.share().map_or(0..self.targets.len(), |share| share.targets.clone())
    }
    /// What this rank has of a tree that ranks share; `None` for other trees.
    pub(crate) fn share(&self) -> Option<&Mine> {
        self.shared.as_ref()?.share.as_ref()
    }
    /// The larger one of the numbers of sources and of targets; of a tree that ranks share, those of all ranks.
    pub(crate) fn points_of_all(&self) -> usize {
        self.share().map_or(self.sources.len().max(self.targets.len()), |share| share.points)
    }
    /// Number of boxes; of a tree that ranks share, those of all ranks.
    pub(crate) fn boxes_of_all(&self) -> usize {
        self.share().map_or(self.len(), |share| share.boxes)
    }
    /// The way to the other ranks; `None` on one rank.
    pub(crate) fn ranks(&self) -> Option<&Ranks> {
        self.shared.as_ref()?.ranks.as_ref()
    }
    /// A copy on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Tree, Error> {
        let mut tree = self.download_boxes()?;
        let same = tree.same_points();
        tree.sources = Arc::new(self.sources.download(&self.device)?);
        tree.targets = if same { tree.sources.clone() } else { Arc::new(self.targets.download(&self.device)?) };
        Ok(tree)
    }
    /// A copy of the boxes on the host, without points.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn download_boxes(&self) -> Result<Tree, Error> {
        let (device, n, boxes) = (&self.device, self.len(), &self.boxes);
        let sources = Arc::new(Points::default());
        let same = Arc::ptr_eq(&self.sources, &self.targets);
        // New memory of the host costs more time than the copies, so each array has a thread.
        std::thread::scope(|scope| {
            let words = [&boxes.parent, &boxes.child_start]
                .map(|array| scope.spawn(move || device.download_range(array, 0..n, "boxes")));
            let bytes = [&boxes.child_count, &boxes.octant]
                .map(|array| scope.spawn(move || device.download_range(array, 0..n, "boxes")));
            let ranges = [&boxes.source_range, &boxes.target_range]
                .map(|array| scope.spawn(move || device.download_rows(array, n, "boxes")));
            let anchor = device.download_rows(&boxes.anchor, n, "boxes")?;
            let [parent, child_start] = words.map(joined);
            let [child_count, octant] = bytes.map(joined);
            let [source_range, target_range] = ranges.map(joined);
            Ok(Tree {
                corner: self.corner,
                side: self.side,
                level_start: self.level_start.clone(),
                parent: parent?,
                child_start: child_start?,
                child_count: child_count?,
                octant: octant?,
                anchor,
                source_range: source_range?,
                target_range: target_range?,
                targets: if same { sources.clone() } else { Arc::new(Points::default()) },
                sources,
                shared: self.shared.as_ref().and_then(|shared| shared.host.clone()),
            })
        })
    }
}
