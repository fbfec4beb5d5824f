//! M2L through Fourier space: `kernels/dft.cu`, in the plane `kernels/dft_plane.cu`, and `kernels/m2l_fourier.cu`.

use super::DeviceScalar;
use super::plan::Shape;
use crate::arrange::{Arranger, Checks};
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::DeviceEdges;
use crate::programs::{dft_boxes, dft_threads};
use fmm_kernels::equivalent::Lattice;
use fmm_kernels::equivalent::spectra::Grid;
use fmm_traits::Error;

/// Threads per block in `m2l_product`.
const PRODUCT_BLOCK: u32 = 256;
/// Families per block in `m2l_product`.
const PRODUCT_FAMILIES: usize = 256;
/// Threads per block in kernels with one item per thread.
const BLOCK: u32 = 256;
/// log₂ of the largest number of families in a chunk of spectra. A chunk of one frequency is then 64 KB in f32, so
/// that few memory pages are in use at a time (measured in docs/notes/gpu-performance.md).
const MAX_CHUNK_SHIFT: u32 = 10;
/// Share of the free memory that the spectra may take.
const SPECTRA_SHARE_OF_MEMORY: f64 = 0.5;

/// The V list as families and their neighbouring families, with room for spectra.
#[derive(Debug)]
pub(super) struct Families<T> {
    count: usize,
    /// First family of each level of parents, then the number of families.
    level_start: Vec<u64>,
    /// The children of each family.
    kids: Buffer<u32>,
    /// The families around each family.
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

/// Number of families around a family.
fn neighbours(lattice: Lattice) -> usize {
    3usize.pow(lattice.dim as u32) - 1
}

impl<T: DeviceScalar> Families<T> {
    /// The families of the V list `m2l`. `None` if the list does not follow the U, V, W, X rules, or if the spectra
    /// do not fit into memory.
    pub fn new(
        arranger: &Arranger,
        functions: &Functions,
        m2l: &DeviceEdges,
        shape: &Shape,
        lattice: Lattice,
    ) -> Result<Option<Self>, Error> {
        let (device, boxes) = (arranger.device(), Arg::from(arranger.boxes));
        let (order, children, neighbours) = (lattice.order, lattice.octants(), neighbours(lattice));
        let n = m2l.boxes;
        // A tree of one rank has edges between most families. Of a tree that ranks share, this one has a part of the edges.
        let flags: Buffer<u32> = device.zeros(n, "families")?;
        let args = [boxes, (n as u32).into(), (&m2l.starts).into(), (&m2l.sources).into(), (&flags).into()];
        // SAFETY: arguments as in arrange.cu; `flags` has an entry for each box.
        unsafe {
            let (all, warps) = ((blocks(n, BLOCK as usize)?, 1), (blocks(32 * n, BLOCK as usize)?, 1));
            match arranger.tree.shared {
                None => device.launch(&arranger.functions, "inner_flags", all, BLOCK, &[args[0], args[1], args[4]])?,
                Some(_) => device.launch(&arranger.functions, "family_flags", warps, BLOCK, &args)?,
            }
        }
        let [(parents, numbers)] = arranger.listed(&[flags])?;
        let count = parents.boxes.len();
        // Numbers per family for one frequency along the last axis.
        let entries = 2 * Grid::new(lattice).frequencies() / order * children;
        let shift = (count + 1).ilog2().min(MAX_CHUNK_SHIFT);
        let [spectra, sums] = [(shape.density, count + 1), (shape.check, count)]
            .map(|(row, n)| row / shape.points * n.next_multiple_of(1 << shift) * entries);
        // Memory that earlier points of the plan have given back is enough for all frequencies, most often.
        let bytes = (spectra + sums) * size_of::<T>();
        let fit = match device.kept_memory()? {
            kept if kept >= (order * bytes) as u64 => order as f64,
            _ => SPECTRA_SHARE_OF_MEMORY * device.free_memory()? as f64 / bytes as f64,
        };
        if count == 0 || fit < 1.0 {
            return Ok(None);
        }
        let held = order.div_ceil(order.div_ceil(order.min(fit as usize)));
        let kids = device.zeros(children * count, "children")?;
        let around = device.zeros(neighbours * count, "families around families")?;
        let operators = device.alloc(neighbours * children.pow(2), "families around families")?;
        let checks = Checks::new(device)?;
        let families = Arg::from(count as u32);
        let octants = Arg::from(&arranger.tree.boxes.octant);
        let rows = [Arg::from(&m2l.starts), Arg::from(&m2l.sources)];
        // SAFETY: arguments as in m2l_fourier.cu; there are `count` families, and `numbers` has an entry for each box.
        unsafe {
            let args = [boxes, octants, (&parents.boxes).into(), families, (&kids).into()];
            let grid = (blocks(children * count, BLOCK as usize)?, 1);
            device.launch(functions, "family_kids", grid, BLOCK, &args)?;
            let [starts, sources] = rows;
            let (numbers, around) = (Arg::from(&numbers), Arg::from(&around));
            let args = [boxes, (n as u32).into(), starts, sources, numbers, families, around, checks.refused()];
            let grid = (blocks(32 * n, BLOCK as usize)?, 1);
            device.launch(functions, "family_around", grid, BLOCK, &args)?;
            let sources =
                arranger.tree.shared.as_ref().and_then(|shared| shared.sources.as_ref()).map_or(Arg::NULL, Arg::from);
            let args = [boxes, (&kids).into(), around, families, sources, checks.edges()];
            let grid = (blocks(neighbours * count, BLOCK as usize)?, 1);
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
            count,
            level_start: parents.level_start,
            kids,
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
        self.kids.bytes() + self.around.bytes() + self.spectra.bytes() + self.sums.bytes()
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
        let (families, shift) = (Arg::from(self.count as u32), Arg::from(self.shift));
        let (lattice, order, plane) = (self.lattice, self.lattice.order, self.lattice.dim == 2);
        let threads = dft_threads::<T>(lattice) as u32;
        let blocks_of = |families: usize| blocks(families * lattice.octants(), dft_boxes::<T>(lattice));
        let [first_arg, held_arg] = [first, held].map(|k| Arg::from(k as u32));
        let rows = [multipoles.into(), (shape.density as u32).into(), (&self.kids).into(), (&self.numbers).into()];
        let to = Arg::from(&self.spectra);
        let lines = if plane { 1 } else { held as u32 };
        let grid = [blocks_of(self.count + 1)?, lines, strengths];
        // SAFETY: arguments as in dft.cu or dft_plane.cu; `spectra` has room for one more family of zeros in front.
        unsafe {
            let rest = if plane { &[first_arg, held_arg, shift, families, to][..] } else { &[first_arg, shift, to] };
            device.launch_3d(dft, "dft_forward", grid, threads, &[&rows, rest].concat())?;
        }

        // One launch for consecutive levels that share operators. `level` is the level of the parents, `level + 1`
        // the level of the children.
        let levels = self.level_start.len() - 1;
        let mut level = 0;
        while level + 1 < levels {
            let shared = operators(level + 1);
            let same = |l: &usize| std::ptr::eq(operators(*l + 1), shared);
            let next = (level + 1..levels - 1).find(|l| !same(l)).unwrap_or(levels - 1);
            let (begin, end) = (self.level_start[level], self.level_start[next]);
            let args = [
                shared.at(first * shared.len() / order),
                (&self.operators).into(),
                strengths.into(),
                (&self.spectra).into(),
                families,
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
        let from = [(&self.sums).into(), (&self.kids).into(), points, first_arg, held_arg, shift];
        let to = [check.into(), (shape.check as u32).into()];
        let count = if plane { &[families][..] } else { &[] };
        let grid = [blocks_of(self.count)?, 1, values];
        // SAFETY: arguments as in dft.cu or dft_plane.cu; a box is in one family, and every family has its sums.
        unsafe { device.launch_3d(dft, "dft_inverse", grid, threads, &[&from, count, &to].concat()) }
    }
}
