//! The part of a tree that a share needs: its boxes, with numbers of their own, and its edges.

use super::points::Leaves;
use super::{Cutter, Kind};
use crate::arrange::Items;
use crate::device::{Arg, Buffer};
use crate::lists::{DeviceEdges, each, filled};
use crate::rounds::Slots;
use crate::split::Boxes;
use crate::tree::DeviceTree;
use fmm_traits::Error;

/// The boxes of a share.
pub(super) struct Own<'a> {
    cutter: &'a Cutter,
    items: Items,
    /// The number of kept boxes before each box: the new number of a box that is kept.
    numbers: Buffer<u64>,
}

impl Cutter {
    /// The boxes with targets or sources of this share, or with sources of several shares; those that this share reads by
    /// `named` ([`marked`](Cutter::marked)); the root, and all boxes above these.
    pub(super) fn own(&self, tree: &DeviceTree, named: [&Buffer<u32>; 2]) -> Result<Own<'_>, Error> {
        let flags: Buffer<u32> = self.device.alloc(self.n, "boxes of a share")?;
        let boxes = [Arg::from(&self.boxes), (self.n as u32).into()];
        let cuts = [Arg::from(&self.cuts_there), (self.shares as u32).into(), (self.me as u32).into()];
        let flagged = [named[0].into(), named[1].into(), (&flags).into()];
        // SAFETY: arguments as in shares.cu; there is a flag for each box.
        unsafe {
            self.kernels.threads("own_flags", self.n, &[&boxes[..], &cuts, &flagged].concat())?;
            self.kernels.threads("with_ancestors", self.n, &[boxes[0], boxes[1], flagged[2]])?;
        }
        let [(items, numbers)] = self.arranger(tree).listed(&[flags])?;
        Ok(Own { cutter: self, items, numbers })
    }
}

impl Own<'_> {
    /// Number of boxes.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    fn n(&self) -> Arg {
        (self.len() as u32).into()
    }

    /// The slots of boxes that are kept, by their new numbers.
    pub fn slots(&self, slots: &Slots) -> Result<Slots, Error> {
        let Cutter { device, kernels, .. } = self.cutter;
        let new = device.alloc(slots.len(), "boxes of other ranks")?;
        let args = [slots.arg(), (slots.len() as u64).into(), (&self.numbers).into(), (&new).into()];
        // SAFETY: arguments as in shares.cu; the slots are boxes.
        unsafe { kernels.threads("renumber", slots.len(), &args)? };
        Ok(Slots::all(new))
    }

    /// The arrays of the boxes, whose ranges are those of the kept points, and whose targets are those of the share; and the
    /// first box of each level, then the number of boxes; and the number of sources of all ranks in each box.
    pub fn boxes(
        &self,
        tree: &DeviceTree,
        [sources, targets]: [&Leaves; 2],
    ) -> Result<(Boxes, Vec<u32>, Buffer<u64>), Error> {
        let Cutter { device, kernels, boxes, cuts, me, .. } = self.cutter;
        let (new, all) = (Boxes::alloc(device, self.len())?, device.alloc(self.len(), "boxes of a share")?);
        let range = [cuts[*me], cuts[me + 1]].map(|cut| Arg::from(cut[1]));
        let args = [boxes.into(), (&tree.boxes.octant).into(), (&self.items.boxes).into(), (&self.numbers).into()];
        let [kept, of] = [sources.numbers(), targets.numbers()];
        let args = [&args[..], &[self.n(), range[0], range[1]], &kept, &of, &new.arrays(), &[(&all).into()]].concat();
        // SAFETY: arguments as in shares.cu; the boxes above a box are kept.
        unsafe { kernels.threads("own_boxes", self.len(), &args)? };
        Ok((new, self.items.level_start.iter().map(|&first| first as u32).collect(), all))
    }

    /// The rows of boxes of a kind.
    pub fn kept<const K: usize>(&self, kind: Kind, edges: [&DeviceEdges; K]) -> Result<[DeviceEdges; K], Error> {
        let Cutter { device, kernels, boxes, primitives, me, .. } = self.cutter;
        let (n, list) = (self.len(), Arg::from(&self.items.boxes));
        let counts: [Buffer<u32>; K] = each(|_| device.alloc(n, "lengths of rows"))?;
        let [_, _, of_kind @ ..] = self.cutter.of(kind, *me);
        for (edges, counts) in edges.iter().zip(&counts) {
            let args =
                [&[boxes.into(), list, self.n()][..], &of_kind, &[(&edges.starts).into(), counts.into()]].concat();
            // SAFETY: arguments as in shares.cu; there is a length for each box.
            unsafe { kernels.threads("kept_count", n, &args)? };
        }
        filled(device, primitives, n, &counts, |rows| {
            for (from, to) in edges.iter().zip(rows) {
                let (from, numbers) = ((&from.starts, &from.sources).into(), (&self.numbers).into());
                let args = [list, self.n(), numbers, from, (&to.starts).into(), (&to.sources).into()];
                // SAFETY: as above; the rows have the lengths that were counted.
                unsafe { kernels.warps("kept_fill", n, &args)? };
            }
            Ok(())
        })
    }
}
