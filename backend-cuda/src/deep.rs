//! The tree levels below the levels that one key resolves. The points of boxes that are split there get new keys.

use crate::builder::{BLOCK, Builder, KEY_BITS, Set};
use crate::device::{Arg, Buffer, MAX_WALKING_BLOCKS, blocks};
use fmm_traits::Error;

impl Builder<'_> {
    /// Sorts the points of each split box by keys relative to that box. `fate` has an entry for each box of the tree.
    /// `root` is the corner of the root and the side
    /// of the boxes of this level.
    pub fn rekey(
        &self,
        set: &mut Set,
        first: u32,
        count: u32,
        range: &Buffer<u32>,
        fate: &Buffer<u32>,
        anchor: &Buffer<u64>,
        root: [f64; 4],
    ) -> Result<(), Error> {
        let (device, n) = (self.device, set.points.n);
        let counts: Buffer<u32> = device.alloc(count as usize, "points of deep boxes")?;
        let starts: Buffer<u64> = device.alloc(count as usize + 1, "points of deep boxes")?;
        let [first, items] = [first, count].map(Arg::from);
        let args = [first, items, range.into(), fate.into(), (&counts).into()];
        // SAFETY: arguments as in split.cu; boxes first … first + count exist.
        unsafe {
            device.launch(&self.split, "deep_count", (blocks(count as usize, BLOCK as usize)?, 1), BLOCK, &args)?
        };
        self.primitives.scan([(&counts, &starts)], count as usize)?;
        let all = device.download_range(&starts, count as usize..count as usize + 1, "points of deep boxes")?[0];
        let deep = all as usize;
        if deep == 0 {
            return Ok(());
        }
        let mut keys: Buffer<u64> = device.alloc(deep, "deep keys")?;
        let boxes: Buffer<u64> = device.alloc(deep, "deep boxes")?;
        let positions: Buffer<u32> = device.alloc(deep, "deep positions")?;
        let root = device.upload(&root, "frame")?;
        let args = [
            first,
            items,
            range.into(),
            fate.into(),
            (&starts).into(),
            anchor.into(),
            (&root).into(),
            (&set.points.xyz).into(),
            (n as u64).into(),
            (&keys).into(),
            (&boxes).into(),
            (&positions).into(),
        ];
        // SAFETY: as above; `starts` leaves room for the points of each box.
        unsafe { device.launch(&self.split, "deep_keys", (count.min(MAX_WALKING_BLOCKS), 1), BLOCK, &args)? };

        // Sort by key, then stably by box. A sort permutes its keys, so a copy of the unsorted keys is kept.
        let (grid, deep_count) = ((blocks(deep, BLOCK as usize)?, 1), Arg::from(all));
        let whole = (blocks(n, BLOCK as usize)?, 1);
        let mut order = device.alloc(deep, "deep order")?;
        let from = self.primitives.iota(n, "deep map")?;
        let unsorted = device.copy(&keys, "deep keys")?;
        let mut by_box: Buffer<u64> = device.alloc(deep, "deep boxes")?;
        self.primitives.sort(&mut keys, &mut order, true, deep, 0..KEY_BITS)?;
        let args = [(&boxes).into(), (&order).into(), deep_count, (&by_box).into()];
        // SAFETY: as above; the order is a permutation.
        unsafe { device.launch(&self.split, "deep_boxes", grid, BLOCK, &args)? };
        self.primitives.sort(&mut by_box, &mut order, false, deep, 0..u32::BITS - count.leading_zeros())?;
        let (xyz, moved) = (device.alloc(3 * n, "points in tree order")?, device.alloc(n, "order")?);
        let map =
            [(&unsorted).into(), (&positions).into(), (&order).into(), deep_count, (&from).into(), (&set.keys).into()];
        let moves = [
            (&set.points.xyz).into(),
            (&set.points.order).into(),
            (&from).into(),
            (n as u64).into(),
            (&xyz).into(),
            (&moved).into(),
        ];
        // SAFETY: as above; positions are below n.
        unsafe {
            device.launch(&self.split, "deep_map", grid, BLOCK, &map)?;
            device.launch(&self.split, "deep_move", whole, BLOCK, &moves)?;
        }
        (set.points.xyz, set.points.order) = (xyz, moved);
        Ok(())
    }
}
