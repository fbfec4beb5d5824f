//! The boxes of a tree on the device, and their splitting level by level: `kernels/split.cu`.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::tree::{BLOCK, Builder, KEY_LEVELS, MAX_WALKING_BLOCKS, Set};
use fmm_traits::Error;
use fmm_traits::tree::NONE;

/// The arrays of all boxes. They may be longer than there are boxes.
#[derive(Debug)]
pub(crate) struct Boxes {
    pub parent: Buffer<u32>,
    pub child_start: Buffer<u32>,
    pub child_count: Buffer<u8>,
    pub octant: Buffer<u8>,
    pub level: Buffer<u8>,
    /// Three numbers per box.
    pub anchor: Buffer<u64>,
    /// Two numbers per box.
    pub source_range: Buffer<u32>,
    pub target_range: Buffer<u32>,
}

impl Builder<'_> {
    /// Splits boxes level by level. `sets` holds the sources and, if they differ, the targets.
    pub fn split(
        &self,
        corner: [f64; 3],
        side: f64,
        sets: &mut [Set],
        ncrit: usize,
        limit: usize,
    ) -> Result<(Vec<u32>, Boxes), Error> {
        let device = self.device;
        let last = sets.len() - 1;
        let (n, m) = (sets[0].points.n, sets[last].points.n);
        let room = (3 * n.max(m) / ncrit).min(2 * (n + m)) + 512;
        let mut boxes = Boxes::root(device, &self.split, room, [n, m])?;
        let mut scratch = Scratch::new(device, room)?;
        let undecided_counts: Buffer<u32> = device.zeros(limit + 1, "undecided boxes")?;
        let found: Buffer<u32> = device.alloc(if last == 0 { n } else { n + m }, "distinct positions")?;
        let (mut level_start, mut total) = (vec![0u32], 1usize);
        let kinds: Arg = (sets.len() as u32).into();
        let ncrit: Arg = (ncrit.min(u32::MAX as usize) as u32).into();
        for level in 0.. {
            let start = level_start[level];
            let count = total as u32 - start;
            level_start.push(total as u32);
            if level >= limit {
                break;
            }
            let (first, items) = (Arg::from(start), Arg::from(count));
            if count as usize > scratch.room {
                scratch = Scratch::new(device, count as usize)?;
            }
            let Scratch { fate, undecided, source_ends, target_ends, children, starts, .. } = &mut scratch;
            let undecided_count = undecided_counts.at(level);
            let ranges = [(&boxes.source_range).into(), (&boxes.target_range).into()];
            let keys = |sets: &[Set]| [Arg::from(&sets[0].keys), Arg::from(&sets[last].keys)];
            let [source_keys, target_keys] = keys(sets);
            let args = [
                first,
                items,
                ncrit,
                kinds,
                ranges[0],
                ranges[1],
                source_keys,
                target_keys,
                (&*fate).into(),
                (&*undecided).into(),
                undecided_count,
            ];
            // SAFETY: arguments as in split.cu; boxes first … first + count exist.
            unsafe {
                device.launch(&self.split, "split_count", (blocks(count as usize, BLOCK as usize)?, 1), BLOCK, &args)?
            };
            let args = [
                first,
                ncrit,
                kinds,
                ranges[0],
                ranges[1],
                (&sets[0].points.xyz).into(),
                (n as u64).into(),
                (&sets[last].points.xyz).into(),
                (m as u64).into(),
                (&*undecided).into(),
                undecided_count,
                (&found).into(),
                (&*fate).into(),
            ];
            // SAFETY: as above; `found` has an entry for each source and each target.
            unsafe {
                device.launch(&self.split, "split_coincident", (count.min(MAX_WALKING_BLOCKS), 1), BLOCK, &args)?
            };
            if level > 0 && level % KEY_LEVELS == 0 {
                let side = side * (-(level as f64)).exp2();
                for (i, set) in sets.iter_mut().enumerate() {
                    let range = if i == 0 { &boxes.source_range } else { &boxes.target_range };
                    self.rekey(set, start, count, range, fate, &boxes.anchor, [corner[0], corner[1], corner[2], side])?;
                }
            }

            let [source_keys, target_keys] = keys(sets);
            let args = [
                first,
                items,
                (level as u32).into(),
                ranges[0],
                ranges[1],
                source_keys,
                target_keys,
                kinds,
                (&*fate).into(),
                (&*source_ends).into(),
                (&*target_ends).into(),
                (&*children).into(),
            ];
            let eight_lanes = (blocks(8 * count as usize, BLOCK as usize)?, 1);
            // SAFETY: as above; there are eight ends per box.
            unsafe { device.launch(&self.split, "split_octants", eight_lanes, BLOCK, &args)? };
            self.primitives.scan((&*children).into(), count as usize, 0, starts, 0)?;
            let more = device.download_range(starts, count as usize..count as usize + 1, "children")?[0] as usize;
            if more == 0 {
                break;
            }
            if total + more >= NONE as usize {
                return Err(Error::TooMany { what: "boxes", found: total + more, limit: NONE as usize - 1 });
            }
            boxes.grow(device, total, total + more)?;
            let of_level = [first, items, (level as u32).into()];
            let found = [(&*fate).into(), (&*source_ends).into(), (&*target_ends).into(), (&*starts).into()];
            let args = [&of_level[..], &found, &boxes.arrays()].concat();
            // SAFETY: as above; there is room for the children.
            unsafe { device.launch(&self.split, "split_fill", eight_lanes, BLOCK, &args)? };
            total += more;
        }
        Ok((level_start, boxes))
    }
}

/// Scratch of a level while its boxes are split.
struct Scratch {
    /// Number of boxes that the arrays have room for.
    room: usize,
    /// For each box: whether it is split.
    fate: Buffer<u32>,
    /// Boxes whose points must be compared to see whether they coincide.
    undecided: Buffer<u32>,
    /// Eight numbers per box.
    source_ends: Buffer<u32>,
    target_ends: Buffer<u32>,
    children: Buffer<u32>,
    starts: Buffer<u64>,
}

impl Scratch {
    fn new(device: &Device, room: usize) -> Result<Self, Error> {
        let numbers = |n: usize| device.alloc(n, "boxes to split");
        Ok(Scratch {
            room,
            fate: numbers(room)?,
            undecided: numbers(room)?,
            source_ends: numbers(8 * room)?,
            target_ends: numbers(8 * room)?,
            children: numbers(room)?,
            starts: device.alloc(room + 1, "boxes to split")?,
        })
    }
}

impl Boxes {
    /// The root with `n` sources and `m` targets, in arrays with room for `room` boxes.
    fn root(device: &Device, split: &Functions, room: usize, [n, m]: [usize; 2]) -> Result<Self, Error> {
        let what = "boxes";
        let boxes = Boxes {
            parent: device.alloc(room, what)?,
            child_start: device.alloc(room, what)?,
            child_count: device.alloc(room, what)?,
            octant: device.alloc(room, what)?,
            level: device.alloc(room, what)?,
            anchor: device.alloc(3 * room, what)?,
            source_range: device.alloc(2 * room, what)?,
            target_range: device.alloc(2 * room, what)?,
        };
        let args = [&[(n as u32).into(), (m as u32).into()][..], &boxes.arrays()].concat();
        // SAFETY: arguments as in split.cu; there is room for the root.
        unsafe { device.launch(split, "root_box", (1, 1), 1, &args)? };
        Ok(boxes)
    }

    /// Makes room for `n` boxes, of which `used` exist.
    fn grow(&mut self, device: &Device, used: usize, n: usize) -> Result<(), Error> {
        device.grow(&mut self.parent, used, n, "boxes")?;
        device.grow(&mut self.child_start, used, n, "boxes")?;
        device.grow(&mut self.child_count, used, n, "boxes")?;
        device.grow(&mut self.octant, used, n, "boxes")?;
        device.grow(&mut self.level, used, n, "boxes")?;
        device.grow(&mut self.anchor, 3 * used, 3 * n, "boxes")?;
        device.grow(&mut self.source_range, 2 * used, 2 * n, "boxes")?;
        device.grow(&mut self.target_range, 2 * used, 2 * n, "boxes")
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let words = [&self.parent, &self.child_start, &self.source_range, &self.target_range];
        let bytes = [&self.child_count, &self.octant, &self.level];
        words.map(Buffer::bytes).iter().sum::<u64>()
            + bytes.map(Buffer::bytes).iter().sum::<u64>()
            + self.anchor.bytes()
    }

    /// The arrays, in the order in which `split.cu` takes them.
    fn arrays(&self) -> [Arg; 8] {
        [
            (&self.parent).into(),
            (&self.child_start).into(),
            (&self.child_count).into(),
            (&self.octant).into(),
            (&self.level).into(),
            (&self.anchor).into(),
            (&self.source_range).into(),
            (&self.target_range).into(),
        ]
    }

    /// The addresses, in the order of `Boxes` in `boxes.cuh`.
    pub fn addresses(&self) -> [u64; 7] {
        [
            self.parent.address(),
            self.child_start.address(),
            self.child_count.address(),
            self.level.address(),
            self.anchor.address(),
            self.source_range.address(),
            self.target_range.address(),
        ]
    }
}
