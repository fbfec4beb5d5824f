//! The boxes of a tree on the device, and their splitting level by level: `kernels/split.cu`.

use crate::builder::{BLOCK, Builder, KEY_LEVELS, Set};
use crate::device::{Arg, Buffer, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use fmm_traits::Error;
use fmm_traits::tree::NONE;
use std::ops::Range;

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

/// A tree's boxes, level by level, and sums over its leaves.
#[derive(Debug)]
pub(crate) struct Split {
    /// First box of each level, then the number of boxes.
    pub level_start: Vec<u32>,
    pub boxes: Boxes,
    /// Sums over the leaves: n(n − 1) for n sources, n(n − 1) for n targets, and the number of leaves.
    pub of_leaves: [u64; 3],
}

/// Levels below the level on which the boxes of an even cloud are leaves that are split before the host looks how many
/// there are. A level without boxes costs two launches; a look costs as much as five.
const LEVELS_BEYOND: usize = 2;
/// Levels that are split between later looks.
const MORE_LEVELS: usize = 4;
/// Boxes of a tile in `split.cu`.
const TILE_BOXES: usize = 32;

impl Builder<'_> {
    /// Splits boxes level by level. `sets` holds the sources and, if they differ, the targets.
    ///
    /// The device splits several levels before the host looks at the numbers of their boxes. If the boxes do not fit into
    /// their arrays, the host makes room and the device continues at the level that did not fit.
    pub fn split(
        &self,
        corner: [f64; 3],
        side: f64,
        sets: &mut [Set],
        ncrit: usize,
        limit: usize,
    ) -> Result<Split, Error> {
        let device = self.device;
        let last = sets.len() - 1;
        let (n, m) = (sets[0].points.n, sets[last].points.n);
        let mut room = ((3 * n.max(m) / ncrit).min(2 * (n + m)) + 512).min(NONE as usize - 1);
        let mut boxes = Boxes::root(device, &self.split, room, [n, m])?;
        let mut fate: Buffer<u32> = device.alloc(room, "boxes to split")?;
        // Without coordinates there are no boxes of points with one key that are split.
        let here = sets.iter().filter(|set| set.points.are_here());
        let found: Buffer<u32> = device.alloc(here.map(|set| set.points.n).sum(), "distinct positions")?;
        let mut level_start = vec![0u64, 1];
        let even = ((n.max(m) as f64 / ncrit as f64).log2() / 3.0).ceil().max(0.0) as usize;
        let mut end = (even + LEVELS_BEYOND).min(limit);
        // Whether the fates of the first level are known.
        let mut decided = false;
        loop {
            let first = level_start.len() - 2;
            // A split below the levels of a key needs new keys, for which the host looks at the level.
            let end_here = end.min((first / KEY_LEVELS + 1) * KEY_LEVELS);
            let levels = first..end_here;
            let counters = Counters::new(device, &level_start, levels.clone(), room)?;
            for level in levels.clone() {
                if !(decided && level == first) {
                    self.fates(&counters, level, sets, ncrit, &boxes, &found, &fate)?;
                }
                if level == first && level > 0 && level % KEY_LEVELS == 0 && !decided {
                    let side = side * (-(level as f64)).exp2();
                    let (start, count) = (level_start[level] as u32, level_start[level + 1] - level_start[level]);
                    let root = [corner[0], corner[1], corner[2], side];
                    for (i, set) in sets.iter_mut().enumerate() {
                        let range = if i == 0 { &boxes.source_range } else { &boxes.target_range };
                        self.rekey(set, start, count as u32, range, &fate, &boxes.anchor, root)?;
                    }
                }
                self.level(&counters, level, sets, &boxes, &fate)?;
            }
            let seen = counters.read(self, end_here, &boxes)?;
            level_start.truncate(first);
            level_start.extend(&seen.level_start);
            // The first level that did not fit, or the first without boxes.
            let full = (first + 1..level_start.len()).find(|&level| level_start[level] > room as u64);
            let empty = (first + 1..level_start.len() - 1).find(|&l| level_start[l] == level_start[l + 1]);
            if let Some(full) = full {
                let total = level_start[full];
                if total >= NONE as u64 {
                    return Err(Error::TooMany { what: "boxes", found: total as usize, limit: NONE as usize - 1 });
                }
                // Boxes before those that did not fit are complete, and so are the fates of the level above these.
                level_start.truncate(full);
                let used = level_start[full - 1] as usize;
                boxes.grow(device, used, total as usize)?;
                device.grow(&mut fate, used, total as usize, "boxes to split")?;
                room = boxes.room().min(NONE as usize - 1);
                decided = true;
                continue;
            }
            decided = false;
            if let Some(empty) = empty {
                level_start.truncate(empty + 1);
            } else if end_here < limit {
                end = if end_here < end { end } else { (end + MORE_LEVELS).min(limit) };
                continue;
            }
            let level_start = level_start.into_iter().map(|start| start as u32).collect();
            return Ok(Split { level_start, boxes, of_leaves: seen.of_leaves });
        }
    }

    /// Enqueues the fates of the boxes of a level.
    fn fates(
        &self,
        counters: &Counters,
        level: usize,
        sets: &[Set],
        ncrit: usize,
        boxes: &Boxes,
        found: &Buffer<u32>,
        fate: &Buffer<u32>,
    ) -> Result<(), Error> {
        let [sources, targets] = [&sets[0], &sets[sets.len() - 1]];
        let args = [
            (level as u32).into(),
            (counters.room as u64).into(),
            counters.level_start(),
            (ncrit.min(u32::MAX as usize) as u32).into(),
            (sets.len() as u32).into(),
            (&boxes.source_range).into(),
            (&boxes.target_range).into(),
            (&sources.keys).into(),
            (&targets.keys).into(),
            (&sources.points.xyz).into(),
            (sources.points.n as u64).into(),
            (&targets.points.xyz).into(),
            (targets.points.n as u64).into(),
            found.into(),
            fate.into(),
        ];
        let grid = blocks(counters.most(level), BLOCK as usize)?.min(MAX_WALKING_BLOCKS);
        // SAFETY: arguments as in split.cu; `found` has an entry for each source and each target. If the coordinates are
        // elsewhere, no box has more than `ncrit` points with one key, so neither `found` nor coordinates are read.
        unsafe { self.device.launch(&self.split, "split_fates", (grid, 1), BLOCK, &args) }
    }

    /// Enqueues making the children of the boxes of a level.
    fn level(
        &self,
        counters: &Counters,
        level: usize,
        sets: &[Set],
        boxes: &Boxes,
        fate: &Buffer<u32>,
    ) -> Result<(), Error> {
        let of_level = [(level as u32).into(), (counters.room as u64).into(), counters.level_start()];
        let [states, next] = counters.tiles(level);
        let keys = [&sets[0].keys, &sets[sets.len() - 1].keys].map(Arg::from);
        let given = [states, next, (sets.len() as u32).into(), keys[0], keys[1], fate.into()];
        let args = [&of_level[..], &given, &boxes.arrays()].concat();
        let grid = blocks(counters.most(level), TILE_BOXES)?.min(MAX_WALKING_BLOCKS);
        // SAFETY: arguments as in split.cu; all arrays have room for `room` boxes, and beyond them nothing is written.
        unsafe { self.device.launch(&self.split, "split_level", (grid, 1), BLOCK, &args) }
    }
}

/// Numbers on the device with which some levels are split: the sums over leaves, the first box of each level, and for
/// each level the states of its tiles and the number of the next tile.
struct Counters {
    numbers: Buffer<u64>,
    /// The levels.
    levels: Range<usize>,
    room: usize,
    /// Where the states of each level begin, then where the last end.
    states: Vec<usize>,
}

/// Largest possible number of boxes of a level, if there is room for `room` boxes.
fn most_boxes(level: usize, room: usize) -> usize {
    1usize.checked_shl(3 * level as u32).unwrap_or(room).min(room)
}

/// What the host reads of [`Counters`].
struct Seen {
    /// First box of the levels from the first on, and of the level behind the last, and the number of boxes.
    level_start: Vec<u64>,
    of_leaves: [u64; 3],
}

impl Counters {
    /// Number of sums over leaves.
    const SUMS: usize = 3;

    /// Zeros, but for the levels that are known.
    fn new(device: &Device, level_start: &[u64], levels: Range<usize>, room: usize) -> Result<Self, Error> {
        let mut states = vec![Counters::SUMS + levels.end + 2];
        for level in levels.clone() {
            states.push(states[states.len() - 1] + most_boxes(level, room).div_ceil(TILE_BOXES) + 1);
        }
        let mut numbers = device.zeros(states[states.len() - 1], "boxes to split")?;
        device.write(&mut numbers, Counters::SUMS, level_start, "boxes to split")?;
        Ok(Counters { numbers, levels, room, states })
    }
    /// Largest possible number of boxes of a level.
    fn most(&self, level: usize) -> usize {
        most_boxes(level, self.room)
    }
    fn level_start(&self) -> Arg {
        self.numbers.at(Counters::SUMS)
    }
    /// The states of the tiles of a level, and the number of the next tile.
    fn tiles(&self, level: usize) -> [Arg; 2] {
        let states = self.states[level - self.levels.start];
        [states, states + self.most(level).div_ceil(TILE_BOXES)].map(|at| self.numbers.at(at))
    }
    /// Sums over the leaves of the levels up to `end`, and reads all numbers. Waits.
    fn read(&self, builder: &Builder<'_>, end: usize, boxes: &Boxes) -> Result<Seen, Error> {
        let device = builder.device;
        let of_level = [(end as u32).into(), (self.room as u64).into(), self.level_start()];
        let ranges = [(&boxes.source_range).into(), (&boxes.target_range).into()];
        let given = [(&boxes.child_count).into(), ranges[0], ranges[1], self.numbers.at(0)];
        let args = [&of_level[..], &given].concat();
        let grid = blocks(self.room, BLOCK as usize)?.min(MAX_WALKING_BLOCKS);
        // SAFETY: arguments as in split.cu; there are sums for both kinds of points and for the leaves.
        unsafe { device.launch(&builder.split, "leaf_sums", (grid, 1), BLOCK, &args)? };
        let all = device.download_range(&self.numbers, 0..Counters::SUMS + end + 2, "boxes to split")?;
        let (sums, starts) = all.split_at(Counters::SUMS);
        Ok(Seen { level_start: starts[self.levels.start..].to_vec(), of_leaves: [sums[0], sums[1], sums[2]] })
    }
}

impl Boxes {
    /// Arrays with room for `room` boxes.
    pub fn alloc(device: &Device, room: usize) -> Result<Self, Error> {
        let what = "boxes";
        Ok(Boxes {
            parent: device.alloc(room, what)?,
            child_start: device.alloc(room, what)?,
            child_count: device.alloc(room, what)?,
            octant: device.alloc(room, what)?,
            level: device.alloc(room, what)?,
            anchor: device.alloc(3 * room, what)?,
            source_range: device.alloc(2 * room, what)?,
            target_range: device.alloc(2 * room, what)?,
        })
    }

    /// The root with `n` sources and `m` targets, in arrays with room for `room` boxes.
    fn root(device: &Device, split: &Functions, room: usize, [n, m]: [usize; 2]) -> Result<Self, Error> {
        let boxes = Boxes::alloc(device, room)?;
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

    /// Number of boxes that all arrays have room for.
    fn room(&self) -> usize {
        let of_pairs = self.source_range.len().min(self.target_range.len()) / 2;
        let words = [&self.parent, &self.child_start].map(Buffer::len);
        let bytes = [&self.child_count, &self.octant, &self.level].map(Buffer::len);
        words.into_iter().chain(bytes).fold(of_pairs.min(self.anchor.len() / 3), usize::min)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let words = [&self.parent, &self.child_start, &self.source_range, &self.target_range];
        let bytes = [&self.child_count, &self.octant, &self.level];
        words.map(Buffer::bytes).iter().sum::<u64>()
            + bytes.map(Buffer::bytes).iter().sum::<u64>()
            + self.anchor.bytes()
    }

    /// The arrays, in the order in which kernels take them.
    pub fn arrays(&self) -> [Arg; 8] {
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

    /// The boxes as kernels see them, with the root cube: `Boxes` of `boxes.cuh`. `target_range` are their ranges of targets.
    pub fn described(
        &self,
        device: &Device,
        (corner, side): ([f64; 3], f64),
        target_range: &Buffer<u32>,
    ) -> Result<Buffer<u64>, Error> {
        let all = [
            self.parent.address(),
            self.child_start.address(),
            self.child_count.address(),
            self.level.address(),
            self.anchor.address(),
            self.source_range.address(),
            target_range.address(),
            corner[0].to_bits(),
            corner[1].to_bits(),
            corner[2].to_bits(),
            side.to_bits(),
        ];
        device.upload(&all, "description of a tree")
    }
}
