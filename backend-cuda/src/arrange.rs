//! Edges sorted by the operator that they use, and lists of boxes by level: `kernels/arrange.cu`, `kernels/m2l.cu`.

use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::domains::plain_numbers;
use crate::lists::{DeviceEdges, each};
use crate::primitives::Primitives;
use crate::products::{TILE_EDGE, Which};
use crate::tree::DeviceTree;
use fmm_traits::Error;
use fmm_traits::tree::NONE;
use std::sync::Arc;

/// Threads per block.
pub(crate) const BLOCK: u32 = 256;

/// Edges of one kind, sorted by operator.
#[derive(Debug)]
pub(crate) struct Arranged {
    /// Source box of each edge.
    pub from: Buffer<u32>,
    /// Receiving box of each edge.
    pub to: Buffer<u32>,
    /// First edge of each operator, then the number of edges.
    pub starts: Vec<u64>,
    /// `starts` on the device.
    pub device_starts: Buffer<u64>,
}

/// The boxes on which a stage works, level by level. Each box is an *item*.
#[derive(Debug)]
pub(crate) struct Items {
    pub boxes: Buffer<u32>,
    /// First item of each level, then the number of items.
    pub level_start: Vec<u64>,
}

/// Edges from children to parents, and the boxes that receive them.
#[derive(Debug)]
pub(crate) struct Upward {
    pub edges: Arranged,
    pub parents: Items,
}

/// The V list as a table. The items, boxes with a V list, are sorted by set of operators, then by group. A group is an
/// octant, or another end of M2L (`domains`).
#[derive(Debug)]
pub(crate) struct Table {
    /// The row that each item receives.
    pub boxes: Buffer<u32>,
    /// First item of each set and group, then the number of items.
    pub starts: Vec<u64>,
    /// `starts` on the device.
    pub device_starts: Buffer<u64>,
    /// Groups of a set.
    pub groups: usize,
    /// First group of each pass, then the number of groups. A pass is a launch of its own: its items receive distinct rows,
    /// while those of different passes may receive the same row.
    pub passes: Vec<usize>,
    /// `numbers[group][slot]`: the operator of each slot.
    pub numbers: Arc<Buffer<u32>>,
    /// `table[slot][item]`: the source box in each of the 216 slots (`slots.cuh`) of each item.
    pub table: Buffer<u32>,
}

/// Slots per box in `m2l.cu`: the children of the parent's colleagues, 27·8. A slot is a position relative to the
/// parent.
pub(crate) const SLOTS_PER_BOX: usize = 216;

/// Edges between a box and its children. The discriminants are the codes of `arrange.cu`.
#[derive(Clone, Copy)]
enum Kind {
    /// Child to parent.
    M2m,
    /// Parent to child.
    L2l,
}

/// What kernels find wrong with edges, on the device: the receiver of an edge for which there is no operator, or [`NONE`];
/// and a number of edges.
pub(crate) struct Checks(pub Buffer<u64>);

impl Checks {
    /// Nothing wrong, no edges.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Ok(Checks(device.upload(&[NONE as u64, 0], "refused edges")?))
    }
    /// The address of the receiver, a number of four bytes.
    pub fn refused(&self) -> Arg {
        Arg::address(self.0.address())
    }
    /// The address of the number of edges.
    pub fn edges(&self) -> Arg {
        self.0.at(1)
    }
    /// Returns an error if a kernel has refused an edge. `found` is a copy on the host.
    pub fn none_refused(found: &[u64]) -> Result<(), Error> {
        if found[0] == NONE as u64 {
            return Ok(());
        }
        let what = "there is no operator for an edge into this box".to_string();
        Err(Error::Edge { what, target: found[0] as u32, source_box: NONE })
    }
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

    /// Sorts M2M and L2L edges by their operators: the level and the octant of the child. There are `operators` of them.
    ///
    /// # Errors
    /// [`Error::Edge`] with a box that receives an edge for which there is no operator.
    pub fn edges(&self, m2m: &DeviceEdges, l2l: &DeviceEdges, operators: usize) -> Result<[Arranged; 2], Error> {
        let checks = Checks::new(self.device())?;
        let mut sorted =
            [self.sorted(m2m, Kind::M2m, operators, &checks)?, self.sorted(l2l, Kind::L2l, operators, &checks)?];
        let [found, up, down] =
            self.device().download_all([&checks.0, &sorted[0].device_starts, &sorted[1].device_starts], "starts")?;
        Checks::none_refused(&found)?;
        [sorted[0].starts, sorted[1].starts] = [up, down];
        Ok(sorted)
    }

    /// Sorts edges of one kind by their operators. `starts` on the host are left empty.
    fn sorted(&self, edges: &DeviceEdges, kind: Kind, operators: usize, checks: &Checks) -> Result<Arranged, Error> {
        let (device, n, count) = (self.device(), edges.len(), edges.boxes);
        let mut keys: Buffer<u64> = device.alloc(n, "operators of edges")?;
        if n >= NONE as usize {
            return Err(Error::TooMany { what: "edges", found: n, limit: NONE as usize - 1 });
        }
        let mut order = device.alloc(n, "order of edges")?;
        let targets: Buffer<u32> = device.alloc(n, "receivers of edges")?;
        let args = [
            self.boxes.into(),
            (&self.tree.boxes.octant).into(),
            (count as u32).into(),
            (kind as u32).into(),
            (&edges.starts).into(),
            (&edges.sources).into(),
            (&keys).into(),
            (&targets).into(),
            checks.refused(),
        ];
        // SAFETY: arguments as in arrange.cu; the outputs have an entry for each edge.
        unsafe { device.launch(&self.functions, "edge_keys", (blocks(32 * count, BLOCK as usize)?, 1), BLOCK, &args)? };
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
        Ok(Arranged { from, to, starts: Vec::new(), device_starts: self.starts(&keys, operators)? })
    }

    /// M2M edges that follow an exchange with other ranks, sorted by their operator.
    ///
    /// # Errors
    /// As [`edges`](Self::edges).
    pub fn upward(&self, m2m: &DeviceEdges, operators: usize) -> Result<Upward, Error> {
        let checks = Checks::new(self.device())?;
        let mut edges = self.sorted(m2m, Kind::M2m, operators, &checks)?;
        let [found, starts] = self.device().download_all([&checks.0, &edges.device_starts], "starts")?;
        Checks::none_refused(&found)?;
        edges.starts = starts;
        let [parents] = self.items([[m2m; 3]])?;
        Ok(Upward { edges, parents })
    }

    /// For each k in 0 … `count`: the position of the first of the sorted `keys` that is at least k.
    pub fn starts(&self, keys: &Buffer<u64>, count: usize) -> Result<Buffer<u64>, Error> {
        let starts = self.device().alloc(count + 1, "starts")?;
        let args = [keys.into(), (keys.len() as u64).into(), (count as u32).into(), (&starts).into()];
        // SAFETY: arguments as in arrange.cu.
        unsafe {
            let grid = (blocks(count + 1, BLOCK as usize)?, 1);
            self.device().launch(&self.functions, "key_starts", grid, BLOCK, &args)?;
        }
        Ok(starts)
    }

    /// The boxes with a V list, and their table. `sets` is the set of operators of each level; there are `count` sets.
    ///
    /// # Errors
    /// [`Error::Edge`] with a box that receives an edge for which there is no operator.
    pub fn table(&self, m2l: &DeviceEdges, functions: &Functions, sets: &[u32], count: usize) -> Result<Table, Error> {
        let device = self.device();
        let [Items { mut boxes, .. }] = self.items([[m2l; 3]])?;
        let n = boxes.len();
        let mut keys: Buffer<u64> = device.alloc(n, "operators of boxes")?;
        let sets = device.upload(sets, "sets of operators")?;
        let octants = Arg::from(&self.tree.boxes.octant);
        let number = Arg::from(n as u32);
        let args = [self.boxes.into(), octants, (&sets).into(), (&boxes).into(), number, (&keys).into()];
        // SAFETY: arguments as in m2l.cu; `keys` has an entry for each box.
        unsafe { device.launch(functions, "m2l_keys", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let operators = 8 * count;
        self.primitives.sort(&mut keys, &mut boxes, false, n, 0..u64::BITS - (operators as u64).leading_zeros())?;
        let device_starts = self.starts(&keys, operators)?;
        let table = device.zeros(SLOTS_PER_BOX * n, "table of the V list")?;
        let checks = Checks::new(device)?;
        let args = [
            self.boxes.into(),
            octants,
            (&boxes).into(),
            number,
            (&m2l.starts).into(),
            (&m2l.sources).into(),
            (&table).into(),
            checks.refused(),
        ];
        // SAFETY: as above; the table has an entry for each slot and box.
        unsafe { device.launch(functions, "m2l_table", (blocks(32 * n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let [found, starts] = device.download_all([&checks.0, &device_starts], "starts")?;
        Checks::none_refused(&found)?;
        Ok(Table {
            boxes,
            starts,
            device_starts,
            groups: 8,
            passes: vec![0, 8],
            numbers: plain_numbers(device)?,
            table,
        })
    }

    /// For each set of three kinds of edges: the boxes that receive an edge of one of them.
    pub fn items<const K: usize>(&self, kinds: [[&DeviceEdges; 3]; K]) -> Result<[Items; K], Error> {
        let (device, n) = (self.device(), self.tree.len());
        let flags: [Buffer<u32>; K] = each(|_| device.alloc(n, "boxes"))?;
        let (grid, count) = ((blocks(n, BLOCK as usize)?, 1), Arg::from(n as u32));
        for (kinds, flags) in kinds.iter().zip(&flags) {
            let [a, b, c] = kinds.map(|k| Arg::from(&k.starts));
            // SAFETY: arguments as in arrange.cu; `flags` has an entry for each box.
            unsafe { device.launch(&self.functions, "with_edges", grid, BLOCK, &[count, a, b, c, flags.into()])? };
        }
        Ok(self.listed(&flags)?.map(|(items, _)| items))
    }

    /// For each array of flags: the flagged boxes, and for each box the number of flagged boxes before it. Waits once.
    pub fn listed<const K: usize>(&self, flags: &[Buffer<u32>; K]) -> Result<[(Items, Buffer<u64>); K], Error> {
        let (device, n, levels) = (self.device(), self.tree.len(), &self.tree.level_start);
        let starts: [Buffer<u64>; K] = each(|_| device.alloc(n + 1, "boxes"))?;
        self.primitives.scan::<K>(std::array::from_fn(|k| (&flags[k], &starts[k])), n)?;
        let at: Vec<_> = starts.iter().flat_map(|starts| levels.iter().map(move |&b| (starts, b as usize))).collect();
        let level_starts = device.entries(&at, "boxes")?;
        let mut rows = level_starts.chunks(levels.len()).zip(starts);
        each(|_| {
            let (level_start, starts) = rows.next().expect("a row for each array");
            let boxes = device.alloc(level_start.last().map_or(0, |&n| n as usize), "boxes")?;
            self.primitives.list_flagged(&starts, n, &boxes)?;
            Ok((Items { boxes, level_start: level_start.to_vec() }, starts))
        })
    }
}

/// Number of tiles of at most `edge` entries that cover groups with these starts, and the end of the last. No tile has entries
/// of two groups.
pub(crate) fn tiles(starts: &[u64], edge: usize) -> usize {
    starts.windows(2).map(|s| ((s[1] - s[0]) as usize).div_ceil(edge)).sum()
}

/// Groups of items that one launch of M2L computes.
pub(crate) struct Pass<'a> {
    /// First item of each group, then the first item behind them.
    pub starts: &'a [u64],
    /// `starts` on the device.
    pub device_starts: Arg,
    /// The operators of the slots of each group.
    pub numbers: Arg,
}

impl Pass<'_> {
    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.starts.len() - 1
    }
    /// Number of items.
    pub fn items(&self) -> usize {
        (self.starts[self.groups()] - self.starts[0]) as usize
    }
    /// Number of blocks of at most `edge` items, all of one group.
    pub fn blocks(&self, edge: usize) -> usize {
        tiles(self.starts, edge)
    }
}

impl Table {
    /// Number of sets.
    pub fn sets(&self) -> usize {
        (self.starts.len() - 1) / self.groups
    }
    /// Number of blocks of at most `edge` items, all of one group.
    pub fn blocks(&self, edge: usize) -> usize {
        tiles(&self.starts, edge)
    }
    /// The passes of a set.
    pub fn passes(&self, set: usize) -> impl Iterator<Item = Pass<'_>> {
        self.passes.windows(2).map(move |groups| {
            let (first, last) = (self.groups * set + groups[0], self.groups * set + groups[1]);
            Pass {
                starts: &self.starts[first..=last],
                device_starts: self.device_starts.at(first),
                numbers: self.numbers.at(SLOTS_PER_BOX * groups[0]),
            }
        })
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.boxes.bytes() + self.table.bytes()
    }
}

impl Arranged {
    /// Whether there are edges to or from children on a level.
    pub fn any(&self, level: usize) -> bool {
        self.beyond(level, 0)
    }
    /// Whether there are edges to or from children on a level in octants from `octant` on.
    pub fn beyond(&self, level: usize, octant: usize) -> bool {
        self.starts[8 * level + octant] < self.starts[8 * level + 8]
    }
    /// The edges between the boxes of a level and their parents, one group per octant.
    pub fn groups(&self, level: usize) -> Which {
        let tiles = tiles(&self.starts[8 * level..=8 * level + 8], TILE_EDGE);
        Which::Groups { starts: self.device_starts.at(8 * level), tiles }
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.from.bytes() + self.to.bytes()
    }
}

impl Upward {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.edges.bytes() + self.parents.boxes.bytes()
    }
}

impl Items {
    /// The items of a level: the first, and their number.
    pub fn of(&self, level: usize) -> (usize, usize) {
        let (start, end) = (self.level_start[level] as usize, self.level_start[level + 1] as usize);
        (start, end - start)
    }
    /// Number of items on all levels.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }
    /// Largest number of items on one level.
    pub fn widest(&self) -> usize {
        self.level_start.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }
}
