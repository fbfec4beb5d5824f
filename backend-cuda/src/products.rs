//! Products of matrices with the rows of boxes: `kernels/{multiply,m2l}.cu`.

use crate::arrange::{Items, Table};
use crate::compile::Program;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::equivalent::DeviceScalar;
use crate::lists::DeviceEdges;
use crate::programs;
use fmm_traits::Error;

/// Threads per block in `multiply.cu` and `m2l.cu`.
const PRODUCT_THREADS: u32 = 128;
/// Rows, and vectors, of the tile that a block computes in `multiply.cu` and `m2l.cu`.
pub(crate) const TILE_EDGE: usize = 64;
/// Threads per block in kernels with one number per thread.
const BLOCK: u32 = 256;

/// Matrices of one shape, one behind the other, each column by column. The numbers of rows and of columns are even, as
/// `tile.cuh` requires.
#[derive(Debug)]
pub(crate) struct Dense<T> {
    pub data: Buffer<T>,
    pub rows: usize,
    pub cols: usize,
}

/// Vectors of a product: the array, the length of a row, and a list of row numbers ([`ALL_ROWS`]: all rows in order).
pub(crate) type Vectors<'a, T> = (&'a Buffer<T>, usize, Arg);
/// Null in place of a list of row numbers: all rows, in order.
pub(crate) const ALL_ROWS: Arg = Arg::NULL;

/// The vectors of a product.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// The given number of rows at the start of the array, with one matrix.
    All(usize),
    /// Groups of rows, with one matrix per group. `starts` are the starts of the groups, `tiles` the tiles of
    /// [`TILE_EDGE`] rows that they fill.
    Groups { starts: Arg, tiles: usize },
}

/// Largest number of parts into which the offsets of M2L are cut.
const MAX_PARTS: usize = 32;
/// With at most this many parts a block runs so long that several waves take less time than one.
const LONG_PARTS: usize = 8;
/// Number of waves that blocks that run long should make. Measured on one NVIDIA H200, as is [`LONG_PARTS`]:
/// `runs/2026-11-29-h200/m2l-in-parts.txt`.
const WAVES: usize = 4;

/// Number of parts into which the offsets of M2L are cut. One part has `blocks` blocks. The device runs `at_once` blocks
/// together; the next ones, a *wave*, begin when these end. Trees with few boxes have too few blocks to fill the device, and parts
/// multiply the blocks.
///
/// Few blocks are cut into as many parts as run together. Example: 24 blocks on a device for 264 are cut into 11 parts; twelve
/// would take a second wave. Where this gives at most [`LONG_PARTS`] parts, there are so many parts, up to that number, that
/// their blocks make [`WAVES`] waves. P2P may run beside M2L, so that the multiprocessors take the first blocks at different
/// times, and the last of several waves evens this out.
fn parts_of_offsets(blocks: usize, at_once: usize) -> usize {
    match at_once / blocks.max(1) {
        parts if parts > LONG_PARTS => parts.min(MAX_PARTS),
        _ => (WAVES * at_once).div_ceil(blocks.max(1)).clamp(1, LONG_PARTS),
    }
}

/// The V list for [`Products::across`].
#[derive(Debug)]
pub(crate) struct Across<T> {
    pub table: Table,
    /// Sums of each part of the offsets; empty for a single part.
    pub partial: Buffer<T>,
    pub parts: usize,
}

impl<T> Across<T> {
    /// Number of sets of operators.
    pub fn sets(&self) -> usize {
        self.table.sets()
    }
}

impl<T> Across<T> {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.table.bytes() + self.partial.bytes()
    }
}

/// The compiled products of one precision.
#[derive(Clone, Debug)]
pub(crate) struct Products {
    device: Device,
    multiply: Functions,
    /// M2L by dense matrices, and the kernels that arrange a V list for it.
    pub m2l: Functions,
}

impl Products {
    /// Compiles the products for `T`.
    pub fn new<T: DeviceScalar>(device: &Device) -> Result<Self, Error> {
        Ok(Products::of(device, device.load_together(Products::programs::<T>())?))
    }
    /// The programs of the products for `T`.
    pub fn programs<T: DeviceScalar>() -> [Program; 2] {
        [programs::multiply_program::<T>(), programs::m2l_program::<T>()]
    }
    /// The products of their loaded [`programs`](Products::programs).
    pub fn of(device: &Device, [multiply, m2l]: [Functions; 2]) -> Self {
        Products { device: device.clone(), multiply, m2l }
    }

    /// Enqueues `to` = `factor`·matrix·`from` or, with `add`, `to` += `factor`·matrix·`from`.
    ///
    /// # Safety
    /// All matrices and rows that the arguments name must exist, and the rows of `to` must be distinct.
    pub unsafe fn multiply<T: DeviceScalar>(
        &self,
        matrix: &Dense<T>,
        from: Vectors<T>,
        to: Vectors<T>,
        which: Which,
        factor: f64,
        add: bool,
    ) -> Result<(), Error> {
        let (starts, count, tiles) = match which {
            Which::All(count) => (ALL_ROWS, count, count.div_ceil(TILE_EDGE)),
            Which::Groups { starts, tiles } => (starts, 0, tiles),
        };
        let args = [
            (&matrix.data).into(),
            (matrix.rows as u32).into(),
            (matrix.cols as u32).into(),
            from.0.into(),
            (from.1 as u32).into(),
            from.2,
            to.0.into(),
            (to.1 as u32).into(),
            to.2,
            starts,
            (count as u32).into(),
            factor.into(),
            u32::from(add).into(),
        ];
        let grid = (blocks(tiles, 1)?, blocks(matrix.rows, TILE_EDGE)?);
        // SAFETY: arguments as in multiply.cu; the caller promises the rest.
        unsafe { self.device.launch(&self.multiply, "multiply", grid, PRODUCT_THREADS, &args) }
    }

    /// Enqueues, for each item of a level, the sum of the rows (`length` numbers) of the source boxes of its `edges`.
    ///
    /// # Safety
    /// Both arrays have a row for each box.
    pub unsafe fn add_rows<T>(
        &self,
        items: &Items,
        level: usize,
        edges: &DeviceEdges,
        length: usize,
        from: &Buffer<T>,
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let (first, count) = items.of(level);
        let args = [
            items.boxes.at(first),
            (count as u32).into(),
            (&edges.starts).into(),
            (&edges.sources).into(),
            (length as u32).into(),
            from.into(),
            to.into(),
        ];
        let grid = (blocks(count * length, BLOCK as usize)?, 1);
        // SAFETY: arguments as in multiply.cu; the caller promises the rest.
        unsafe { self.device.launch(&self.multiply, "add_rows", grid, BLOCK, &args) }
    }

    /// Enqueues the mirror images of square matrices with `side` rows: matrix k becomes matrix `images[k]` >> 3 with the axes
    /// in the lower three bits reflected. Matrices without a reflected axis stay as they are. `odd` has for each row the axes whose
    /// reflection changes its sign.
    ///
    /// # Safety
    /// `matrices` has one for each image, and `odd` one number for each row.
    pub unsafe fn mirror<T>(
        &self,
        matrices: &Buffer<T>,
        images: &Buffer<u32>,
        odd: &Buffer<u32>,
        side: usize,
    ) -> Result<(), Error> {
        let args = [matrices.into(), images.into(), odd.into(), (side as u32).into()];
        let grid = (blocks(side, 1)?, blocks(images.len(), 1)?);
        // SAFETY: arguments as in multiply.cu; the caller promises the rest.
        unsafe { self.device.launch(&self.multiply, "mirror", grid, BLOCK, &args) }
    }

    /// The V list for products with matrices of `rows` rows.
    pub fn far<T: DeviceScalar>(&self, table: Table, rows: usize) -> Result<Across<T>, Error> {
        let blocks = table.blocks(TILE_EDGE) * rows.div_ceil(TILE_EDGE);
        // As in the bounds of the kernel in m2l.cu.
        let resident = if T::NAME == "f32" { 4 } else { 3 };
        self.cut(table, rows, [blocks, resident])
    }

    /// The V list for expansions of `rows` numbers, cut into parts of `blocks` blocks each. A multiprocessor runs `resident`
    /// blocks at once.
    pub fn cut<T: DeviceScalar>(
        &self,
        table: Table,
        rows: usize,
        [blocks, resident]: [usize; 2],
    ) -> Result<Across<T>, Error> {
        let parts = parts_of_offsets(blocks, resident * self.device.info().multiprocessors as usize);
        let numbers = if parts > 1 { parts * table.boxes.len() * rows } else { 0 };
        Ok(Across { partial: self.device.alloc(numbers, "parts of M2L")?, table, parts })
    }

    /// Enqueues M2L for the boxes of `far` that use the operators of `set`: `to` += Σ matrix(offset)·`from`.
    /// `matrices` holds one matrix per operator, of `rows` × `cols` numbers.
    ///
    /// # Safety
    /// Both arrays have a row for each box; `matrices` belongs to the set; `far` was made for `rows`; `rows` and
    /// `cols` are even.
    pub unsafe fn across<T: DeviceScalar>(
        &self,
        matrices: &Buffer<T>,
        [rows, cols]: [usize; 2],
        far: &Across<T>,
        set: usize,
        from: &Buffer<T>,
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let Across { table, partial, parts } = far;
        let (items, boxes) = (Arg::from(table.boxes.len() as u32), Arg::from(&table.boxes));
        let [rows_arg, cols] = [rows, cols].map(|k| Arg::from(k as u32));
        for pass in table.passes(set) {
            let args = [
                matrices.into(),
                rows_arg,
                cols,
                from.into(),
                (&table.table).into(),
                items,
                boxes,
                pass.device_starts,
                pass.numbers,
                to.into(),
                partial.into(),
            ];
            let grid = [blocks(pass.blocks(TILE_EDGE), 1)?, blocks(rows, TILE_EDGE)?, *parts as u32];
            // SAFETY: arguments as in m2l.cu; the rows that a pass receives are distinct.
            unsafe { self.device.launch_3d(&self.m2l, "m2l", grid, PRODUCT_THREADS, &args)? };
        }
        // SAFETY: the caller promises what the callee asks for.
        unsafe { self.join(rows, far, set, to) }
    }

    /// Enqueues the sum over the parts of a set, `to` += Σ parts. Does nothing for a single part.
    ///
    /// # Safety
    /// `to` has a row of `rows` numbers for each box, and the parts belong to `far`.
    pub unsafe fn join<T: DeviceScalar>(
        &self,
        rows: usize,
        far: &Across<T>,
        set: usize,
        to: &Buffer<T>,
    ) -> Result<(), Error> {
        let Across { table, partial, parts } = far;
        if *parts == 1 {
            return Ok(());
        }
        let (items, boxes) = (Arg::from(table.boxes.len() as u32), Arg::from(&table.boxes));
        for pass in table.passes(set) {
            let [rows_arg, groups, parts] = [rows, pass.groups(), *parts].map(|k| Arg::from(k as u32));
            let args = [rows_arg, items, boxes, pass.device_starts, groups, parts, partial.into(), to.into()];
            let grid = (blocks(pass.items() * rows, BLOCK as usize)?, 1);
            // SAFETY: arguments as in m2l.cu; `partial` has room for every part, and the rows of a pass are distinct.
            unsafe { self.device.launch(&self.m2l, "m2l_join", grid, BLOCK, &args)? };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::parts_of_offsets;

    #[test]
    fn parts_fill_the_device() {
        // All parts run together.
        assert_eq!(parts_of_offsets(24, 264), 11);
        assert_eq!(parts_of_offsets(1, 528), 32);
        for (blocks, at_once) in (1..100).flat_map(|blocks| (9 * blocks..600).map(move |at_once| (blocks, at_once))) {
            let parts = parts_of_offsets(blocks, at_once);
            assert!(blocks * parts <= at_once && (parts == 32 || blocks * (parts + 1) > at_once));
        }
        // Four waves, with up to eight parts.
        assert_eq!(parts_of_offsets(256, 264), 5);
        assert_eq!(parts_of_offsets(64, 264), 8);
        assert_eq!(parts_of_offsets(397, 396), 4);
        // Many blocks, or none.
        assert_eq!(parts_of_offsets(1056, 264), 1);
        assert_eq!(parts_of_offsets(0, 264), 32);
        assert_eq!(parts_of_offsets(5, 0), 1);
    }
}
