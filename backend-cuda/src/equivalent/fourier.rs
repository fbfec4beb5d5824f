//! M2L through Fourier space: `kernels/dft.cu`, `kernels/m2l_fourier.cu`.

use super::DeviceScalar;
use super::plan::Shape;
use crate::arrange::Arranger;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::DeviceEdges;
use crate::programs::{dft_boxes, dft_threads};
use fmm_kernels::equivalent::spectra::{Grid, OFFSETS, for_each_spectrum};
use fmm_kernels::equivalent::{Operators, surface};
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Kernel};

/// Children of a box, boxes around it.
const FAMILY: usize = 8;
const AROUND: usize = 26;
/// Threads of the product; families of a block of it.
const PRODUCT_BLOCK: u32 = 256;
const PRODUCT_FAMILIES: usize = 256;
const BLOCK: u32 = 256;
/// Families of a chunk of spectra, by their power of two: a chunk of one frequency is 64 KB in f32.
const MOST_SHIFT: u32 = 10;
/// Of the free memory, the part that the spectra may take.
const PART_OF_MEMORY: f64 = 0.5;

/// The V list as families of boxes around each other, and room for their spectra.
#[derive(Debug)]
pub(super) struct Families<T> {
    count: usize,
    /// First family of each level of parents, and how many there are.
    level_start: Vec<u64>,
    kids: Buffer<u32>,
    around: Buffer<u32>,
    /// Of the operator for each direction, target and source.
    operators: Buffer<u32>,
    /// x, y, z of the points of a surface, and the number of the point with each x, y, z.
    lattice: Buffer<u32>,
    numbers: Buffer<u32>,
    spectra: Buffer<T>,
    sums: Buffer<T>,
    grid: Grid,
    order: usize,
    /// Frequencies along z, of `order`, that are held at a time.
    held: usize,
    /// Families of a chunk of the spectra, by their power of two.
    shift: u32,
}

/// The spectra of the operators, an entry for each frequency (z slowest), value, strength and offset.
pub(super) fn operators<T: DeviceScalar, K: Kernel>(device: &Device, o: &Operators<T>) -> Result<Buffer<T>, Error> {
    let frequencies = Grid::new(o.order).frequencies();
    let across = frequencies / o.order;
    let mut table = vec![T::default(); 2 * frequencies * K::VALUES * K::STRENGTHS * OFFSETS];
    for_each_spectrum::<K>(&o.params, o.order, |offset, a, b, spectrum| {
        for (k, x) in spectrum.iter().enumerate() {
            let k = k % o.order * across + k / o.order;
            let at = 2 * (((k * K::VALUES + a) * K::STRENGTHS + b) * OFFSETS + offset);
            (table[at], table[at + 1]) = (T::of(x.re), T::of(x.im));
        }
    });
    device.upload(&table, "spectra of M2L")
}

impl<T: DeviceScalar> Families<T> {
    /// The families of `m2l`; `None` when it is not what the U, V, W, X rules make of a tree, or when the spectra
    /// would fill the memory.
    pub fn new(
        arranger: &Arranger,
        functions: &Functions,
        m2l: &DeviceEdges,
        shape: &Shape,
        order: usize,
    ) -> Result<Option<Self>, Error> {
        let (device, boxes) = (arranger.device(), Arg::from(arranger.boxes));
        let (n, grid) = (m2l.boxes, Grid::new(order));
        let flags: Buffer<u32> = device.alloc(n, "boxes with children")?;
        let args = [boxes, (n as u32).into(), (&flags).into()];
        // SAFETY: arguments as in m2l_fourier.cu; a flag for each box.
        unsafe { device.launch(functions, "family_flags", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let (parents, numbers) = arranger.listed(&flags)?;
        let count = parents.boxes.len();
        // Of one frequency along z.
        let entries = 2 * grid.frequencies() / order * FAMILY;
        let shift = (count + 1).ilog2().min(MOST_SHIFT);
        let [spectra, sums] = [(shape.density, count + 1), (shape.check, count)]
            .map(|(row, n)| row / shape.points * n.next_multiple_of(1 << shift) * entries);
        let fit = PART_OF_MEMORY * device.free_memory()? as f64 / ((spectra + sums) * size_of::<T>()) as f64;
        if count == 0 || fit < 1.0 {
            return Ok(None);
        }
        let held = order.div_ceil(order.div_ceil(order.min(fit as usize)));
        let kids = device.zeros(FAMILY * count, "children")?;
        let around = device.zeros(AROUND * count, "families around families")?;
        let operators = device.alloc(AROUND * FAMILY * FAMILY, "families around families")?;
        let refused = device.upload(&[NONE], "refused edges")?;
        let edges: Buffer<u64> = device.zeros(1, "edges")?;
        let families = Arg::from(count as u32);
        let octants = Arg::from(&arranger.tree.boxes.octant);
        let rows = [Arg::from(&m2l.starts), Arg::from(&m2l.sources)];
        // SAFETY: arguments as in m2l_fourier.cu; there are `count` families, and `numbers` has an entry for each box.
        unsafe {
            let args = [boxes, octants, (&parents.boxes).into(), families, (&kids).into()];
            let grid = (blocks(FAMILY * count, BLOCK as usize)?, 1);
            device.launch(functions, "family_kids", grid, BLOCK, &args)?;
            let [starts, sources] = rows;
            let (numbers, refused) = (Arg::from(&numbers), Arg::from(&refused));
            let args = [boxes, (n as u32).into(), starts, sources, numbers, families, (&around).into(), refused];
            let grid = (blocks(32 * n, BLOCK as usize)?, 1);
            device.launch(functions, "family_around", grid, BLOCK, &args)?;
            let args = [boxes, (&kids).into(), (&around).into(), families, (&edges).into()];
            let grid = (blocks(AROUND * count, BLOCK as usize)?, 1);
            device.launch(functions, "family_edges", grid, BLOCK, &args)?;
            let grid = (blocks(operators.len(), BLOCK as usize)?, 1);
            device.launch(functions, "operator_numbers", grid, BLOCK, &[(&operators).into()])?;
        }
        arranger.none_refused(&refused)?;
        if device.download(&edges, "edges")?[0] != m2l.len() as u64 {
            return Ok(None);
        }
        let lattice = surface::lattice(order);
        let mut numbers = vec![0u32; order.pow(3)];
        for (i, [x, y, z]) in lattice.iter().enumerate() {
            numbers[(x * order + y) * order + z] = i as u32;
        }
        let lattice: Vec<u32> = lattice.into_iter().map(|[x, y, z]| (x | y << 8 | z << 16) as u32).collect();
        Ok(Some(Families {
            count,
            level_start: parents.level_start,
            kids,
            around,
            operators,
            lattice: device.upload(&lattice, "surface")?,
            numbers: device.upload(&numbers, "surface")?,
            spectra: device.alloc(held * spectra, "spectra of densities")?,
            sums: device.alloc(held * sums, "spectra of check values")?,
            grid,
            order,
            held,
            shift,
        }))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.kids.bytes() + self.around.bytes() + self.spectra.bytes() + self.sums.bytes()
    }

    /// Takes at most this many frequencies along z at a time.
    pub fn hold(&mut self, most: usize) {
        self.held = self.held.min(most.max(1));
    }

    /// Enqueues M2L: `multipoles` to `check`, rows of all boxes, some frequencies after the others. `operators`: those of a
    /// level.
    ///
    /// # Safety
    /// The rows are those of the boxes of the tree, of `shape`.
    pub unsafe fn enqueue<'a>(
        &self,
        device: &Device,
        functions: [&Functions; 2],
        shape: &Shape,
        operators: &dyn Fn(usize) -> &'a Buffer<T>,
        multipoles: &Buffer<T>,
        check: &Buffer<T>,
    ) -> Result<(), Error> {
        for first in (0..self.order).step_by(self.held) {
            let held = self.held.min(self.order - first);
            // SAFETY: that of the caller.
            unsafe { self.frequencies(device, functions, shape, [first, held], operators, multipoles, check)? };
        }
        Ok(())
    }

    /// [`enqueue`](Families::enqueue) for some frequencies along z: the first, and how many.
    ///
    /// # Safety
    /// As there.
    unsafe fn frequencies<'a>(
        &self,
        device: &Device,
        [dft, product]: [&Functions; 2],
        shape: &Shape,
        [first_kz, held]: [usize; 2],
        operators: &dyn Fn(usize) -> &'a Buffer<T>,
        multipoles: &Buffer<T>,
        check: &Buffer<T>,
    ) -> Result<(), Error> {
        let (strengths, values) = ((shape.density / shape.points) as u32, (shape.check / shape.points) as u32);
        let (families, shift) = (Arg::from(self.count as u32), Arg::from(self.shift));
        let (parts, threads) = (FAMILY / dft_boxes::<T>(self.order), dft_threads::<T>(self.order) as u32);
        let args = [
            multipoles.into(),
            (shape.density as u32).into(),
            (&self.kids).into(),
            (&self.numbers).into(),
            (first_kz as u32).into(),
            shift,
            (&self.spectra).into(),
        ];
        let grid = [blocks((self.count + 1) * parts, 1)?, held as u32, strengths];
        // SAFETY: arguments as in dft.cu; there is a zero family in front of the others.
        unsafe { device.launch_3d(dft, "dft_forward", grid, threads, &args)? };

        // Levels that share operators in one launch. Children are a level below their parents.
        let levels = self.level_start.len() - 1;
        let mut level = 0;
        while level + 1 < levels {
            let shared = operators(level + 1);
            let same = |l: &usize| std::ptr::eq(operators(*l + 1), shared);
            let next = (level + 1..levels - 1).find(|l| !same(l)).unwrap_or(levels - 1);
            let (first, end) = (self.level_start[level], self.level_start[next]);
            let args = [
                shared.at(first_kz * shared.len() / self.order),
                (&self.operators).into(),
                strengths.into(),
                (&self.spectra).into(),
                families,
                (first as u32).into(),
                ((end - first) as u32).into(),
                (&self.around).into(),
                shift,
                (&self.sums).into(),
            ];
            let tiles = blocks((end - first) as usize, PRODUCT_FAMILIES)?;
            let grid = [tiles, (self.grid.frequencies() / self.order * held) as u32, values];
            // SAFETY: arguments as in m2l_fourier.cu; the operators are those of the level.
            unsafe { device.launch_3d(product, "m2l_product", grid, PRODUCT_BLOCK, &args)? };
            level = next;
        }

        let args = [
            (&self.sums).into(),
            (&self.kids).into(),
            (&self.lattice).into(),
            (first_kz as u32).into(),
            (held as u32).into(),
            shift,
            check.into(),
            (shape.check as u32).into(),
        ];
        let grid = [blocks(self.count * parts, 1)?, 1, values];
        // SAFETY: arguments as in dft.cu; a box is in one family, and every family has its sums.
        unsafe { device.launch_3d(dft, "dft_inverse", grid, threads, &args) }
    }
}
