//! Edges sorted by the operator they take, and lists of boxes by level: `kernels/arrange.cu`, `kernels/m2l.cu`.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::DeviceEdges;
use crate::primitives::Primitives;
use crate::products::{EDGE, Which};
use crate::tree::DeviceTree;
use fmm_traits::Error;
use fmm_traits::tree::NONE;

const BLOCK: u32 = 256;

/// Edges of one kind, those of an operator together.
#[derive(Debug)]
pub(crate) struct Arranged {
    /// Box that each edge comes from.
    pub from: Buffer<u32>,
    /// Box that receives it.
    pub to: Buffer<u32>,
    /// First edge of each operator, and the number of edges; the same on the device.
    pub starts: Vec<u64>,
    pub device_starts: Buffer<u64>,
}

/// Boxes in order.
#[derive(Debug)]
pub(crate) struct Items {
    pub boxes: Buffer<u32>,
    /// First of each level, and how many there are.
    pub level_start: Vec<u64>,
}

/// Boxes with a V list, those of one set of operators and one octant together, and who is where.
#[derive(Debug)]
pub(crate) struct Table {
    pub boxes: Buffer<u32>,
    /// First box of each set and octant, and how many there are; the same on the device.
    pub starts: Vec<u64>,
    pub device_starts: Buffer<u64>,
    /// For each of the 216 slots of `slots.cuh`, the source box of each box.
    pub table: Buffer<u32>,
}

/// Slots of `m2l.cu`.
const SLOTS: usize = 216;

/// Boxes with more units of targets count as equal.
const MOST_GRAINS: usize = 255;

/// Edges between a box and its children; the number is that of `arrange.cu`.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Child to parent.
    M2m,
    /// Parent to child.
    L2l,
}

pub(crate) struct Arranger<'a> {
    pub tree: &'a DeviceTree,
    pub primitives: Primitives,
    pub functions: Functions,
    /// Addresses of the arrays of boxes.
    pub boxes: &'a Buffer<u64>,
}

impl Arranger<'_> {
    pub fn device(&self) -> &Device {
        &self.tree.device
    }

    /// Edges by level and octant of the child, `operators` in all.
    ///
    /// # Errors
    /// [`Error::Edge`] with a box that receives an edge for which there is no operator.
    pub fn edges(&self, edges: &DeviceEdges, kind: Kind, operators: usize) -> Result<Arranged, Error> {
        let (device, n, count) = (self.device(), edges.len(), edges.boxes);
        let mut keys: Buffer<u64> = device.alloc(n, "operators of edges")?;
        if n >= NONE as usize {
            return Err(Error::TooMany { what: "edges", found: n, limit: NONE as usize - 1 });
        }
        let mut order = device.alloc(n, "order of edges")?;
        let targets: Buffer<u32> = device.alloc(n, "receivers of edges")?;
        let refused = device.upload(&[NONE], "refused edges")?;
        let args = [
            self.boxes.into(),
            (&self.tree.boxes.octant).into(),
            (count as u32).into(),
            (kind as u32).into(),
            (&edges.starts).into(),
            (&edges.sources).into(),
            (&keys).into(),
            (&targets).into(),
            (&refused).into(),
        ];
        // SAFETY: arguments as in arrange.cu; an entry for each edge.
        unsafe { device.launch(&self.functions, "edge_keys", (blocks(32 * count, BLOCK as usize)?, 1), BLOCK, &args)? };
        self.none_refused(&refused)?;
        let grid = (blocks(n, BLOCK as usize)?, 1);
        let number = Arg::from(n as u64);
        let (from, to) = (device.alloc(n, "edges")?, device.alloc(n, "edges")?);
        // SAFETY: as above; the order is a permutation.
        unsafe {
            self.primitives.sort(&mut keys, &mut order, true, n, 0..u64::BITS - (operators as u64).leading_zeros())?;
            let order = Arg::from(&order);
            device.launch(
                &self.functions,
                "take",
                grid,
                BLOCK,
                &[(&edges.sources).into(), order, number, (&from).into()],
            )?;
            device.launch(&self.functions, "take", grid, BLOCK, &[(&targets).into(), order, number, (&to).into()])?;
        }
        let device_starts = self.starts(&keys, operators)?;
        let starts = device.download(&device_starts, "starts")?;
        Ok(Arranged { from, to, starts, device_starts })
    }

    /// The first of the sorted `keys` that is not below each of 0 … `count`.
    fn starts(&self, keys: &Buffer<u64>, count: usize) -> Result<Buffer<u64>, Error> {
        let starts = self.device().alloc(count + 1, "starts")?;
        let args = [keys.into(), (keys.len() as u64).into(), (count as u32).into(), (&starts).into()];
        // SAFETY: arguments as in arrange.cu.
        unsafe {
            let grid = (blocks(count + 1, BLOCK as usize)?, 1);
            self.device().launch(&self.functions, "key_starts", grid, BLOCK, &args)?;
        }
        Ok(starts)
    }

    /// An error if a kernel has marked an edge.
    pub fn none_refused(&self, refused: &Buffer<u32>) -> Result<(), Error> {
        let target = self.device().download(refused, "refused edges")?[0];
        if target == NONE {
            return Ok(());
        }
        let what = "there is no operator for an edge into this box".to_string();
        Err(Error::Edge { what, target, source_box: NONE })
    }

    /// Boxes with a V list and their table; `sets`: the set of operators of each level, `count` in all.
    ///
    /// # Errors
    /// [`Error::Edge`] with a box that receives an edge for which there is no operator.
    pub fn table(&self, m2l: &DeviceEdges, functions: &Functions, sets: &[u32], count: usize) -> Result<Table, Error> {
        let device = self.device();
        let mut boxes = self.items([m2l; 3])?.boxes;
        let n = boxes.len();
        let mut keys: Buffer<u64> = device.alloc(n, "operators of boxes")?;
        let sets = device.upload(sets, "sets of operators")?;
        let octants = Arg::from(&self.tree.boxes.octant);
        let number = Arg::from(n as u32);
        let args = [self.boxes.into(), octants, (&sets).into(), (&boxes).into(), number, (&keys).into()];
        // SAFETY: arguments as in m2l.cu; a key for each box.
        unsafe { device.launch(functions, "m2l_keys", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let operators = 8 * count;
        self.primitives.sort(&mut keys, &mut boxes, false, n, 0..u64::BITS - (operators as u64).leading_zeros())?;
        let device_starts = self.starts(&keys, operators)?;
        let starts = device.download(&device_starts, "starts")?;
        let table = device.zeros(SLOTS * n, "table of the V list")?;
        let refused = device.upload(&[NONE], "refused edges")?;
        let args = [
            self.boxes.into(),
            octants,
            (&boxes).into(),
            number,
            (&m2l.starts).into(),
            (&m2l.sources).into(),
            (&table).into(),
            (&refused).into(),
        ];
        // SAFETY: as above; the table has an entry for each slot and box.
        unsafe { device.launch(functions, "m2l_table", (blocks(32 * n, BLOCK as usize)?, 1), BLOCK, &args)? };
        self.none_refused(&refused)?;
        Ok(Table { boxes, starts, device_starts, table })
    }

    /// The boxes into which an edge of one of the kinds leads.
    pub fn items(&self, kinds: [&DeviceEdges; 3]) -> Result<Items, Error> {
        let (device, n) = (self.device(), self.tree.len());
        let flags = device.alloc(n, "boxes")?;
        let [a, b, c] = kinds.map(|k| Arg::from(&k.starts));
        let (grid, count) = ((blocks(n, BLOCK as usize)?, 1), Arg::from(n as u32));
        // SAFETY: arguments as in arrange.cu; an entry for each box.
        unsafe { device.launch(&self.functions, "with_edges", grid, BLOCK, &[count, a, b, c, (&flags).into()])? };
        Ok(self.listed(&flags)?.0)
    }

    /// The boxes of `items`, those with more targets first, in units of `grain`.
    pub fn by_size(&self, items: Items, grain: usize) -> Result<Buffer<u32>, Error> {
        let (mut boxes, n) = (items.boxes, items.level_start.last().map_or(0, |&n| n as usize));
        let mut keys = self.device().alloc(n, "boxes")?;
        let [count, grain, most] = [n, grain, MOST_GRAINS].map(|x| Arg::from(x as u32));
        let args = [self.boxes.into(), (&boxes).into(), count, grain, most, (&keys).into()];
        // SAFETY: arguments as in arrange.cu; a key for each item.
        unsafe {
            let grid = (blocks(n, BLOCK as usize)?, 1);
            self.device().launch(&self.functions, "size_keys", grid, BLOCK, &args)?;
        }
        self.primitives.sort(&mut keys, &mut boxes, false, n, 0..usize::BITS - MOST_GRAINS.leading_zeros())?;
        Ok(boxes)
    }

    /// The boxes that are flagged, and how many are before each.
    pub fn listed(&self, flags: &Buffer<u32>) -> Result<(Items, Buffer<u64>), Error> {
        let (device, n) = (self.device(), self.tree.len());
        let mut starts = device.alloc(n + 1, "boxes")?;
        let (grid, count) = ((blocks(n, BLOCK as usize)?, 1), Arg::from(n as u32));
        self.primitives.scan(flags.into(), n, 0, &mut starts, 0)?;
        let at: Vec<_> = self.tree.level_start.iter().map(|&b| (&starts, b as usize)).collect();
        let level_start = device.entries(&at, "boxes")?;
        let boxes = device.alloc(level_start.last().map_or(0, |&n| n as usize), "boxes")?;
        let args = [count, flags.into(), (&starts).into(), (&boxes).into()];
        // SAFETY: as above; there is room for what was counted.
        unsafe { device.launch(&self.functions, "list_boxes", grid, BLOCK, &args)? };
        Ok((Items { boxes, level_start }, starts))
    }
}

/// Tiles of `edge` that hold what lies between two starts.
pub(crate) fn tiles(starts: &[u64], edge: usize) -> usize {
    ((starts[1] - starts[0]) as usize).div_ceil(edge)
}

impl Table {
    /// Blocks of at most [`EDGE`] boxes of a set of operators, each within an octant.
    pub fn blocks(&self, set: usize) -> usize {
        self.starts[8 * set..=8 * set + 8].windows(2).map(|s| tiles(s, EDGE)).sum()
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.boxes.bytes() + self.table.bytes()
    }
}

impl Arranged {
    /// Whether there are edges to children of a level.
    pub fn any(&self, level: usize) -> bool {
        self.starts[8 * level] < self.starts[8 * level + 8]
    }
    /// The edges between the boxes of a level and their parents, a group an octant.
    pub fn groups(&self, level: usize) -> Which {
        let tiles = self.starts[8 * level..=8 * level + 8].windows(2).map(|s| tiles(s, EDGE)).sum();
        Which::Groups { starts: self.device_starts.at(8 * level), tiles }
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.from.bytes() + self.to.bytes()
    }
}

impl Items {
    /// Items of a level: first, and how many.
    pub fn of(&self, level: usize) -> (usize, usize) {
        let (start, end) = (self.level_start[level] as usize, self.level_start[level + 1] as usize);
        (start, end - start)
    }
    /// How many on all levels.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }
    /// The most of a level.
    pub fn widest(&self) -> usize {
        self.level_start.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }
}
