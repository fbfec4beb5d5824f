//! Small problems that are cut out of a tree and its lists on the device: `kernels/thin.cu`, `kernels/cut.cu`.

use crate::cut::Cut;
use crate::device::{Arg, Buffer, ByItem};
use crate::lists::{DeviceEdges, DeviceLists, each, filled};
use crate::placed::Placed;
use crate::plane::points_of;
use crate::primitives::Flagged;
use crate::programs;
use crate::tree::DeviceTree;
use adaptive2d::Pyramid;
use adaptive2d::connect::completed;
use fmm_traits::tree::{NONE, Tree};
use fmm_traits::{Error, Lists};
use std::sync::Arc;
use std::time::Instant;

/// Threads per block.
const BLOCK: u32 = 128;

impl Cut<'_> {
    /// A small problem: a part of the sources and targets of an octree with its lists, as `fmm_tree::thin` makes them. The
    /// small lists serve any settings. The positions ascend.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a pyramid, [`Error::TooMany`] for a position beyond the points, and errors of the device.
    pub fn thin(&self, [sources, targets]: [&[u32]; 2]) -> Result<Placed, Error> {
        let (device, start) = (self.device, Instant::now());
        let Some((large, l)) = self.octree else {
            let reason = "`thin_pyramid` makes it".to_string();
            return Err(Error::Unsupported { operation: "a part of a pyramid", reason });
        };
        let points = [(self.sources, sources), (self.targets, targets)];
        let [s, t] = points.map(|(of, positions)| self.points(of, positions).map(Arc::new));
        let (s, t) = (s?, t?);
        let (tree, kept) = self.small_boxes(large, [sources, targets])?;
        let small = DeviceTree::with_points(device, &tree, s, t)?;
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
        let lists = DeviceLists::of([p2m, m2m, m2l, p2l, l2l, l2p, m2p, p2p], device);
        let mean_leaf = sources.len().max(targets.len()) as f64 / tree.leaves().max(1) as f64;
        Placed::fixed(small, lists, mean_leaf, start)
    }

    /// The boxes of an octree that hold some of the points, as `fmm_tree::thin_boxes` makes them, and their numbers in the
    /// tree. All positions lie within the points.
    fn small_boxes(&self, large: &DeviceTree, [sources, targets]: [&[u32]; 2]) -> Result<(Tree, Buffer<u32>), Error> {
        let (device, n) = (self.device, self.boxes);
        let kernels = ByItem::new(device, device.fixed("thin", programs::thin)?, BLOCK);
        let flags: Buffer<u32> = device.zeros(n, "boxes of a sample")?;
        let positions = [device.upload(sources, "positions")?, device.upload(targets, "positions")?];
        let lengths = [sources.len(), targets.len()];
        for (of_targets, (at, &count)) in positions.iter().zip(&lengths).enumerate() {
            let args =
                [(&self.tree).into(), at.into(), (count as u32).into(), (of_targets as u32).into(), (&flags).into()];
            // SAFETY: arguments as in thin.cu; the positions lie within the points, and each box has a flag.
            unsafe { kernels.threads("holding", count.max(1), &args)? };
        }
        let Flagged { items: kept, starts, count } = self.primitives.flagged(&flags, n, "boxes of a sample")?;
        let (words, anchor) = (device.alloc(8 * count, "boxes")?, device.alloc(3 * count, "boxes")?);
        let args = [
            (&self.tree).into(),
            (n as u32).into(),
            (&flags).into(),
            (&starts).into(),
            (&large.boxes.octant).into(),
            (&positions[0]).into(),
            (lengths[0] as u32).into(),
            (&positions[1]).into(),
            (lengths[1] as u32).into(),
            (&words).into(),
            (&anchor).into(),
        ];
        // SAFETY: as above; the arrays have room for all boxes with a flag.
        unsafe { kernels.threads("small_boxes", n, &args)? };
        let words: Vec<[u32; 8]> = device.download_rows(&words, count, "boxes")?;
        let mut small = Tree { corner: large.corner, side: large.side, ..Tree::default() };
        small.anchor = device.download_rows(&anchor, count, "boxes")?;
        // The boxes are ordered by level: a level begins at the first box that is deeper than the box before it.
        let mut level = vec![0u8; count];
        for (b, &[parent, child, children, octant, s, s_end, t, t_end]) in words.iter().enumerate() {
            level[b] = if parent == NONE { 0 } else { level[parent as usize] + 1 };
            if b == 0 || level[b] > level[b - 1] {
                small.level_start.push(b as u32);
            }
            small.parent.push(parent);
            small.child_start.push(child);
            small.child_count.push(children as u8);
            small.octant.push(octant as u8);
            small.source_range.push([s, s_end]);
            small.target_range.push([t, t_end]);
        }
        small.level_start.push(count as u32);
        Ok((small, kept))
    }

    /// A pyramid with all boxes of this one but only some of its points, and the edges between boxes that still have points.
    /// The result is on the host. `boxes` is a copy of the pyramid, whose points may be missing.
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

    /// The edges between the boxes `kept`, for each kind of edges. Two arrays come with each kind: the new numbers of boxes as
    /// targets and as sources of edges, `NONE` for those that drop out.
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
