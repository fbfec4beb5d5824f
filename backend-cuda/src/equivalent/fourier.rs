//! M2L through Fourier space: `kernels/dft.cu`, in the plane `kernels/dft_plane.cu`, and `kernels/m2l_fourier.cu`.

use super::DeviceScalar;
use super::plan::Shape;
use crate::arrange::{Arranger, Checks, Items};
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::DeviceEdges;
use crate::programs::{dft_boxes, dft_threads};
use fmm_kernels::equivalent::Lattice;
use fmm_kernels::equivalent::spectra::Grid;
use fmm_traits::Error;
use std::sync::Arc;

/// Threads per block in `m2l_product`.
const PRODUCT_BLOCK: u32 = 256;
/// Families per block in `m2l_product`.
const PRODUCT_FAMILIES: usize = 256;
/// Threads per block in kernels with one item per thread.
const BLOCK: u32 = 256;
/// log₂ of the largest number of families in a chunk of spectra. A chunk of one frequency is then 64 KB in f32, so
/// that few memory pages are in use at a time (measured in docs/notes/gpu-performance.md).
const MAX_CHUNK_SHIFT: u32 = 10;
/// Share of the free memory that the spectra may take, if memory is short.
const SPECTRA_SHARE_OF_MEMORY: f64 = 0.5;
/// Share of the free memory that is left to the driver, which can't give all that it calls free.
const DRIVERS_SHARE: f64 = 1.0 / 32.0;

/// The V list as families that receive and the neighbouring families that send to them, with room for spectra.
#[derive(Debug)]
pub(super) struct Families<T> {
    /// Families of which M2L reads spectra.
    senders: Arc<Group>,
    /// Families of which M2L sums spectra. On one rank, senders and receivers are the same group.
    receivers: Arc<Group>,
    /// The senders around each receiver.
    around: Buffer<u32>,
    /// Number of the operator for each direction, target octant and source octant.
    operators: Buffer<u32>,
    lattice: Lattice,
    /// Coordinates x, y, z of each point of the lattice.
    coordinates: Buffer<u32>,
    /// Number of the point with coordinates x, y, z (in the plane x, y); [`u32::MAX`] off the lattice.
    numbers: Buffer<u32>,
    spectra: Buffer<T>,
    sums: Buffer<T>,
    /// Number of frequencies along the last axis, of p in all, whose spectra are in memory at a time.
    held: usize,
    /// log₂ of the number of families in a chunk of spectra.
    shift: u32,
}

/// Some families, level by level.
#[derive(Debug)]
struct Group {
    count: usize,
    /// First family of each level of parents, then the number of families.
    level_start: Vec<u64>,
    /// The children of each family.
    kids: Buffer<u32>,
}

/// A group, and for each box the number of families of the group whose parents are boxes before it.
#[derive(Clone)]
struct Numbered {
    group: Arc<Group>,
    numbers: Arc<Buffer<u64>>,
}

impl Numbered {
    fn new(
        arranger: &Arranger,
        functions: &Functions,
        lattice: Lattice,
        (parents, numbers): (Items, Buffer<u64>),
    ) -> Result<Self, Error> {
        let (device, n) = (arranger.device(), lattice.octants() * parents.len());
        let kids = device.zeros(n, "children")?;
        let octants = Arg::from(&arranger.tree.boxes.octant);
        let args =
            [arranger.boxes.into(), octants, (&parents.boxes).into(), (parents.len() as u32).into(), (&kids).into()];
        // SAFETY: arguments as in m2l_fourier.cu; there are children for each family.
        unsafe { device.launch(functions, "family_kids", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let group = Group { count: parents.len(), level_start: parents.level_start, kids };
        Ok(Numbered { group: Arc::new(group), numbers: Arc::new(numbers) })
    }

    /// The families that send, and those that receive, along the edges of a V list.
    fn senders_and_receivers(
        arranger: &Arranger,
        functions: &Functions,
        m2l: &DeviceEdges,
        lattice: Lattice,
    ) -> Result<[Self; 2], Error> {
        let (device, n) = (arranger.device(), m2l.boxes);
        let group = |listed| Numbered::new(arranger, functions, lattice, listed);
        let boxes = [Arg::from(arranger.boxes), (n as u32).into()];
        if arranger.tree.shared.is_none() {
            // There are edges between most families.
            let flags = device.alloc(n, "families")?;
            let grid = (blocks(n, BLOCK as usize)?, 1);
            // SAFETY: arguments as in arrange.cu; `flags` has an entry for each box.
            unsafe {
                device.launch(
                    &arranger.functions,
                    "inner_flags",
                    grid,
                    BLOCK,
                    &[boxes[0], boxes[1], (&flags).into()],
                )?;
            }
            let [all] = arranger.listed(&[flags])?.map(group);
            let all = all?;
            return Ok([all.clone(), all]);
        }
        let flags = [device.zeros(n, "families")?, device.zeros(n, "families")?];
        let rows = [(&m2l.starts).into(), (&m2l.sources).into()];
        let args = [&boxes[..], &rows, &[(&flags[0]).into(), (&flags[1]).into()]].concat();
        let grid = (blocks(32 * n, BLOCK as usize)?, 1);
        // SAFETY: as above.
        unsafe { device.launch(&arranger.functions, "family_flags", grid, BLOCK, &args)? };
        let [senders, receivers] = arranger.listed(&flags)?.map(group);
        Ok([senders?, receivers?])
    }
}

/// Number of families around a family.
fn neighbours(lattice: Lattice) -> usize {
    3usize.pow(lattice.dim as u32) - 1
}

impl<T: DeviceScalar> Families<T> {
    /// The families of the V list `m2l`. `None` if the list does not follow the U, V, W, X rules, or if the spectra
    /// do not fit into memory. `later` bytes are needed for arrays that come later.
    pub fn new(
        arranger: &Arranger,
        functions: &Functions,
        m2l: &DeviceEdges,
        (shape, lattice): (&Shape, Lattice),
        later: u64,
    ) -> Result<Option<Self>, Error> {
        let (device, n) = (arranger.device(), m2l.boxes);
        let (order, neighbours) = (lattice.order, neighbours(lattice));
        let groups = Numbered::senders_and_receivers(arranger, functions, m2l, lattice)?;
        let [senders, receivers] = groups.each_ref().map(|numbered| &numbered.group);
        // Numbers per family for one frequency along the last axis.
        let entries = 2 * Grid::new(lattice).frequencies() / order * lattice.octants();
        let shift = (senders.count + 1).ilog2().min(MAX_CHUNK_SHIFT);
        let [spectra, sums] = [(shape.density, senders.count + 1), (shape.check, receivers.count)]
            .map(|(row, n)| row / shape.points * n.next_multiple_of(1 << shift) * entries);
        // Memory that earlier points of the plan have given back is enough for all frequencies, most often.
        let bytes = (spectra + sums) * size_of::<T>();
        let fit = match device.kept_memory()? {
            kept if kept >= (order * bytes) as u64 => order as f64,
            _ => {
                let free = device.free_memory()? as f64;
                let left = free * (1.0 - DRIVERS_SHARE) - later as f64;
                // Ranks do not take their targets in pieces, so that the later arrays come first.
                let least = match arranger.tree.shared {
                    None => free * SPECTRA_SHARE_OF_MEMORY,
                    Some(_) => free.min(bytes as f64),
                };
                left.max(least) / bytes as f64
            }
        };
        if receivers.count == 0 || fit < 1.0 {
            return Ok(None);
        }
        let held = order.div_ceil(order.div_ceil(order.min(fit as usize)));
        let around = device.zeros(neighbours * receivers.count, "families around families")?;
        let operators = device.alloc(neighbours * lattice.octants().pow(2), "families around families")?;
        let checks = Checks::new(device)?;
        let (boxes, count, into) = (Arg::from(arranger.boxes), receivers.count as u32, Arg::from(&around));
        let [starts, sources] = [Arg::from(&m2l.starts), Arg::from(&m2l.sources)];
        let elsewhere = arranger.tree.shared.as_ref().map(|shared| &shared.sources);
        // SAFETY: arguments as in m2l_fourier.cu; the numbers of families have an entry for each box.
        unsafe {
            let numbers = groups.each_ref().map(|numbered| Arg::from(&*numbered.numbers));
            let args = [
                boxes,
                (n as u32).into(),
                starts,
                sources,
                numbers[0],
                numbers[1],
                count.into(),
                into,
                checks.refused(),
            ];
            let grid = (blocks(32 * n, BLOCK as usize)?, 1);
            device.launch(functions, "family_around", grid, BLOCK, &args)?;
            let kids = [Arg::from(&senders.kids), (&receivers.kids).into()];
            let sources = elsewhere.map_or(Arg::NULL, Arg::from);
            let args = [boxes, kids[0], kids[1], into, count.into(), sources, checks.edges()];
            let grid = (blocks(around.len(), BLOCK as usize)?, 1);
            device.launch(functions, "family_edges", grid, BLOCK, &args)?;
            let grid = (blocks(operators.len(), BLOCK as usize)?, 1);
            device.launch(functions, "operator_numbers", grid, BLOCK, &[(&operators).into()])?;
        }
        let found = device.download(&checks.0, "edges")?;
        Checks::none_refused(&found)?;
        if found[1] != m2l.len() as u64 {
            return Ok(None);
        }
        let coordinates = lattice.coordinates();
        let mut numbers = vec![u32::MAX; order.pow(lattice.dim as u32)];
        for (i, point) in coordinates.iter().enumerate() {
            numbers[point[..lattice.dim].iter().fold(0, |at, x| at * order + x)] = i as u32;
        }
        let coordinates: Vec<u32> = coordinates.into_iter().map(|[x, y, z]| (x | y << 8 | z << 16) as u32).collect();
        Ok(Some(Families {
            senders: senders.clone(),
            receivers: receivers.clone(),
            around,
            operators,
            lattice,
            coordinates: device.upload(&coordinates, "lattice")?,
            numbers: device.upload(&numbers, "lattice")?,
            spectra: device.alloc(held * spectra, "spectra of densities")?,
            sums: device.alloc(held * sums, "spectra of check values")?,
            held,
            shift,
        }))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let apart = !Arc::ptr_eq(&self.senders, &self.receivers);
        let kids = self.senders.kids.bytes() + if apart { self.receivers.kids.bytes() } else { 0 };
        kids + self.around.bytes() + self.spectra.bytes() + self.sums.bytes()
    }

    /// Limits the number of frequencies along the last axis that are computed at a time.
    pub fn hold(&mut self, most: usize) {
        self.held = self.held.min(most.max(1));
    }

    /// Enqueues M2L from `multipoles` to `check`, a few frequencies at a time. `operators(level)` are the spectra of
    /// the operators of a level.
    ///
    /// # Safety
    /// Both arrays have a row of `shape` for each box of the tree.
    pub unsafe fn enqueue<'a>(
        &self,
        device: &Device,
        functions: [&Functions; 2],
        shape: &Shape,
        operators: &dyn Fn(usize) -> &'a Buffer<T>,
        multipoles: &Buffer<T>,
        check: &Buffer<T>,
    ) -> Result<(), Error> {
        let order = self.lattice.order;
        for first in (0..order).step_by(self.held) {
            let held = self.held.min(order - first);
            // SAFETY: the caller promises what the callee asks for.
            unsafe { self.frequencies(device, functions, shape, [first, held], operators, multipoles, check)? };
        }
        Ok(())
    }

    /// [`enqueue`](Families::enqueue) for `held` frequencies along the last axis, from `first` on.
    ///
    /// # Safety
    /// As for [`enqueue`](Families::enqueue).
    unsafe fn frequencies<'a>(
        &self,
        device: &Device,
        [dft, product]: [&Functions; 2],
        shape: &Shape,
        [first, held]: [usize; 2],
        operators: &dyn Fn(usize) -> &'a Buffer<T>,
        multipoles: &Buffer<T>,
        check: &Buffer<T>,
    ) -> Result<(), Error> {
        let (strengths, values) = ((shape.density / shape.points) as u32, (shape.check / shape.points) as u32);
        let Families { senders, receivers, .. } = self;
        let [from_count, to_count] = [senders, receivers].map(|group| Arg::from(group.count as u32));
        let shift = Arg::from(self.shift);
        let (lattice, order, plane) = (self.lattice, self.lattice.order, self.lattice.dim == 2);
        let threads = dft_threads::<T>(lattice) as u32;
        let blocks_of = |families: usize| blocks(families * lattice.octants(), dft_boxes::<T>(lattice));
        let [first_arg, held_arg] = [first, held].map(|k| Arg::from(k as u32));
        let rows = [multipoles.into(), (shape.density as u32).into(), (&senders.kids).into(), (&self.numbers).into()];
        let to = Arg::from(&self.spectra);
        let lines = if plane { 1 } else { held as u32 };
        let grid = [blocks_of(senders.count + 1)?, lines, strengths];
        // SAFETY: arguments as in dft.cu or dft_plane.cu; `spectra` has room for one more family of zeros in front.
        unsafe {
            let rest = if plane { &[first_arg, held_arg, shift, from_count, to][..] } else { &[first_arg, shift, to] };
            device.launch_3d(dft, "dft_forward", grid, threads, &[&rows, rest].concat())?;
        }

        // One launch for consecutive levels that share operators. `level` is the level of the parents, `level + 1`
        // the level of the children.
        let (level_start, mut level) = (&receivers.level_start, 0);
        let levels = level_start.len() - 1;
        while level + 1 < levels {
            let shared = operators(level + 1);
            let same = |l: &usize| std::ptr::eq(operators(*l + 1), shared);
            let next = (level + 1..levels - 1).find(|l| !same(l)).unwrap_or(levels - 1);
            let (begin, end) = (level_start[level], level_start[next]);
            let args = [
                shared.at(first * shared.len() / order),
                (&self.operators).into(),
                strengths.into(),
                (&self.spectra).into(),
                to_count,
                (begin as u32).into(),
                ((end - begin) as u32).into(),
                (&self.around).into(),
                shift,
                (&self.sums).into(),
            ];
            let tiles = blocks((end - begin) as usize, PRODUCT_FAMILIES)?;
            let grid = [tiles, (Grid::new(lattice).frequencies() / order * held) as u32, values];
            // SAFETY: arguments as in m2l_fourier.cu; the operators belong to the level.
            unsafe { device.launch_3d(product, "m2l_product", grid, PRODUCT_BLOCK, &args)? };
            level = next;
        }

        let points = Arg::from(if plane { &self.numbers } else { &self.coordinates });
        let from = [(&self.sums).into(), (&receivers.kids).into(), points, first_arg, held_arg, shift];
        let to = [check.into(), (shape.check as u32).into()];
        let count = if plane { &[to_count][..] } else { &[] };
        let grid = [blocks_of(receivers.count)?, 1, values];
        // SAFETY: arguments as in dft.cu or dft_plane.cu; a box is in one family, and every family has its sums.
        unsafe { device.launch_3d(dft, "dft_inverse", grid, threads, &[&from, count, &to].concat()) }
    }
}
