//! M2P with multipoles as polynomials (`fmm_kernels::spherical::horner`): `kernels/m2p_polynomials.cu`.

use super::operators::{DeviceSparse, row};
use crate::arrange::Arranger;
use crate::base::Base;
use crate::device::{Buffer, Device, Functions, blocks};
use crate::equivalent::DeviceScalar;
use crate::lists::DeviceEdges;
use crate::programs;
use fmm_kernels::spherical::horner::{Horner, even_len, len};
use fmm_kernels::spherical::sparse::Sparse;
use fmm_traits::Error;

/// Largest order for which M2P takes polynomials. All loops over coefficients are unrolled, so that the time of the
/// compiler grows with the order: one second for order 8, six for order 12 (measured in docs/notes/gpu-performance.md).
const MAX_ORDER: usize = 12;
/// Threads per block of `to_polynomials`.
const BOX_THREADS: u32 = 64;
/// Threads per block in kernels with one edge per thread.
const BLOCK: u32 = 256;

/// The program of an order, and the map from rows of harmonics to polynomials.
#[derive(Debug)]
pub(super) struct Polynomials<T> {
    functions: Functions,
    map: DeviceSparse<T>,
    order: usize,
    values: usize,
}

/// The polynomials of the boxes that M2P edges read.
#[derive(Debug)]
pub(super) struct Read {
    /// These boxes.
    boxes: Buffer<u32>,
    /// Their number.
    count: usize,
    /// For each edge the place of its source among them.
    numbers: Buffer<u32>,
    /// A polynomial for each.
    polynomials: Buffer<u8>,
}

/// Bytes of a polynomial: the centre, the scale and the factors of the values, then the coefficients, in units of 16
/// bytes.
fn bytes<T>(order: usize, values: usize) -> usize {
    8 * (4 + values.next_multiple_of(2)) + (len(order) * size_of::<T>()).next_multiple_of(16)
}

/// The map in the order in which the kernel sums coefficients: each of both parts from its last coefficient to its first.
fn map(order: usize) -> Sparse {
    let (count, even) = (len(order), even_len(order));
    let place = |i: usize| if i < even { even - 1 - i } else { even + count - 1 - i };
    let mut rows = vec![Vec::new(); count];
    for &(harmonic, coefficient, factor) in Horner::<f64>::new(order).entries() {
        rows[place(coefficient as usize)].push((harmonic, factor));
    }
    let mut map = Sparse { starts: vec![0], ..Sparse::default() };
    for entries in rows {
        map.columns.extend(entries.iter().map(|e| e.0));
        map.values.extend(entries.iter().map(|e| e.1));
        map.starts.push(map.columns.len() as u32);
    }
    map
}

impl<T: DeviceScalar> Polynomials<T> {
    /// Whether M2P of this order and these values of a target takes polynomials.
    pub fn serve(order: usize, values: usize) -> bool {
        order <= MAX_ORDER && values <= 4
    }

    /// For multipoles of `order` and `values` of a target.
    pub fn new(device: &Device, order: usize, values: usize) -> Result<Self, Error> {
        let functions = device.load(&programs::m2p_polynomials_program::<T>(values, order))?;
        Ok(Polynomials { functions, map: DeviceSparse::new(device, &map(order))?, order, values })
    }

    /// Room for the polynomials that the edges `m2p` read.
    pub fn read(&self, arranger: &Arranger, m2p: &DeviceEdges) -> Result<Read, Error> {
        let (device, n) = (arranger.device(), m2p.len());
        let (flags, numbers) = (device.zeros(arranger.tree.len(), "boxes")?, device.alloc(n, "edges")?);
        let (edges, grid) = ([(&m2p.sources).into(), (n as u64).into()], (blocks(n, BLOCK as usize)?, 1));
        let functions = &arranger.functions;
        // SAFETY: arguments as in arrange.cu; there is a flag for each box.
        unsafe { device.launch(functions, "source_flags", grid, BLOCK, &[edges[0], edges[1], (&flags).into()])? };
        let [(items, starts)] = arranger.listed(&[flags])?;
        let args = [edges[0], edges[1], (&starts).into(), (&numbers).into()];
        // SAFETY: as above; there is a number for each edge.
        unsafe { device.launch(functions, "source_numbers", grid, BLOCK, &args)? };
        let count = items.len();
        let polynomials = device.alloc(count * bytes::<T>(self.order, self.values), "polynomials")?;
        Ok(Read { boxes: items.boxes, count, numbers, polynomials })
    }

    /// Enqueues M2P: `multipoles` at the targets of the current piece, by the edges `m2p`. `levels` are rows of
    /// `level.cuh` with the factors of values.
    ///
    /// # Safety
    /// `read` was made for these edges; `multipoles` has a row for each box.
    pub unsafe fn enqueue(
        &self,
        base: &Base,
        read: &Read,
        levels: &Buffer<f64>,
        m2p: &DeviceEdges,
        multipoles: &Buffer<T>,
    ) -> Result<(), Error> {
        let device = base.device();
        let args = [
            (&base.boxes).into(),
            levels.into(),
            (&read.boxes).into(),
            (&self.map.starts).into(),
            (&self.map.columns).into(),
            (&self.map.entries).into(),
            (row(self.order) as u32).into(),
            multipoles.into(),
            read.polynomials.untyped(),
        ];
        let grid = (blocks(read.count, 1)?, 1);
        // SAFETY: arguments as in m2p_polynomials.cu; there is room for a polynomial of each box.
        unsafe { device.launch(&self.functions, "to_polynomials", grid, BOX_THREADS, &args)? };
        let rest = [
            (&read.numbers).into(),
            read.polynomials.untyped(),
            (&base.tree.targets.xyz).into(),
            (base.tree.targets.len() as u64).into(),
        ];
        // SAFETY: as above.
        unsafe { base.m2p.sum(base, m2p, (&self.functions, "from_polynomials"), false, &rest) }
    }
}

impl Read {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.boxes.bytes() + self.numbers.bytes() + self.polynomials.bytes()
    }
}
