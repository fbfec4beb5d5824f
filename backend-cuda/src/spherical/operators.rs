//! The operators of an order in device memory: recursions, sparse and dense matrices.

use crate::device::{Buffer, Device};
use crate::domains::M2lEnds;
use crate::equivalent::DeviceScalar;
use crate::products::{Dense, Products};
use fmm_kernels::equivalent::spectra::{OFFSETS, offset_index, offsets};
use fmm_kernels::spherical::basis::Basis;
use fmm_kernels::spherical::sparse::Sparse;
use fmm_kernels::spherical::{Truncation, dense};
use fmm_traits::{Cube, Error};
use rayon::prelude::*;

/// A [`Sparse`] matrix in device memory.
#[derive(Debug)]
pub(super) struct DeviceSparse<T> {
    pub starts: Buffer<u32>,
    pub columns: Buffer<u32>,
    pub entries: Buffer<T>,
}

impl<T: DeviceScalar> DeviceSparse<T> {
    /// Copies `matrix` to the device.
    pub fn new(device: &Device, matrix: &Sparse) -> Result<Self, Error> {
        let entries: Vec<T> = matrix.values.iter().map(|&x| T::of(x)).collect();
        Ok(DeviceSparse {
            starts: device.upload(&matrix.starts, "operators")?,
            columns: device.upload(&matrix.columns, "operators")?,
            entries: device.upload(&entries, "operators")?,
        })
    }
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.starts.bytes() + self.columns.bytes() + self.entries.bytes()
    }
}

/// The coefficients of the recursions below `order`, in the layout of `harmonics.cuh`.
pub(super) fn steps<T: DeviceScalar>(device: &Device, order: usize) -> Result<Buffer<T>, Error> {
    let basis = Basis::<T>::new(order);
    let pairs = (0..order).flat_map(|n| (0..=n).map(move |m| (n, m)));
    let steps: Vec<T> = pairs.flat_map(|(n, m)| basis.coefficients(n, m)).collect();
    device.upload(&steps, "operators")
}

/// Length of a row of order `p`, rounded up to an even number.
pub(super) fn row(p: usize) -> usize {
    (p * p).next_multiple_of(2)
}

/// Translations as dense matrices.
#[derive(Debug)]
pub(super) struct Matrices<T> {
    /// Eight matrices, by octant of the child.
    pub m2m: Dense<T>,
    /// Eight matrices, by octant of the child.
    pub l2l: Dense<T>,
    /// One matrix per operator of M2L. Made for the first points that have a V list.
    pub m2l: Option<Buffer<T>>,
    order: usize,
    truncation: Truncation,
}

impl<T: DeviceScalar> Matrices<T> {
    /// The matrices of order `p`, without the M2L matrices.
    pub fn new(device: &Device, p: usize, truncation: Truncation) -> Result<Self, Error> {
        let (makes, side) = (dense::Dense::new(p), row(p));
        let upload = |matrix: &(dyn Fn(usize) -> Vec<f64> + Sync)| -> Result<Dense<T>, Error> {
            let all: Vec<T> = (0..8).into_par_iter().flat_map_iter(|octant| padded(p, &matrix(octant))).collect();
            Ok(Dense { data: device.upload(&all, "operators")?, rows: side, cols: side })
        };
        let (m2m, l2l) = (upload(&|octant| makes.up(octant))?, upload(&|octant| makes.down(octant))?);
        Ok(Matrices { m2m, l2l, m2l: None, order: p, truncation })
    }

    /// Makes the matrices of M2L, unless they exist. The host makes those of offsets without a negative coordinate, and the
    /// device mirrors them.
    pub fn across(&mut self, device: &Device, products: &Products, ends: &M2lEnds) -> Result<(), Error> {
        if self.m2l.is_some() {
            return Ok(());
        }
        let (p, side, what) = (self.order, row(self.order), "M2L matrices");
        let (makes, length) = (dense::Dense::new(p), side * side);
        let mut all = device.alloc(ends.operators.len() * length, what)?;
        let kinds: Vec<[i32; 3]> = dense::unmirrored().collect();
        let of_kind = |&offset: &[i32; 3]| padded::<T>(p, &makes.across(offset, self.truncation));
        let matrices: Vec<Vec<T>> = kinds.par_iter().map(of_kind).collect();
        let number = |offset: [i32; 3]| offset_index(offset).unwrap_or_default();
        for (&offset, matrix) in kinds.iter().zip(&matrices) {
            device.write(&mut all, number(offset) * length, matrix, what)?;
        }
        let mask = |axes: [bool; 3]| (0..3).map(|a| u32::from(axes[a]) << a).sum::<u32>();
        let image = |offset: [i32; 3]| (number(offset.map(i32::abs)) as u32) << 3 | mask(offset.map(|d| d < 0));
        let images = device.upload(&offsets().map(image).collect::<Vec<_>>(), what)?;
        let odd = device.upload(&(0..side).map(|place| mask(dense::odd(place))).collect::<Vec<_>>(), what)?;
        // SAFETY: `all` has a matrix for each image, and `odd` a number for each row.
        unsafe { products.mirror(&all, &images, &odd, side)? };
        let others = ends.operators.par_iter().skip(OFFSETS);
        let between = |&[target, source]: &[Cube; 2]| padded::<T>(p, &makes.between(target, source, self.truncation));
        let others: Vec<T> = others.flat_map_iter(between).collect();
        device.write(&mut all, OFFSETS * length, &others, what)?;
        self.m2l = Some(all);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.m2m.data.bytes() + self.l2l.data.bytes() + self.m2l.as_ref().map_or(0, Buffer::bytes)
    }
}

/// A matrix of order `p`. If the number of rows is odd, a row and a column of zeros are appended.
fn padded<T: DeviceScalar>(p: usize, matrix: &[f64]) -> Vec<T> {
    let (len, side) = (p * p, row(p));
    let mut all = vec![T::default(); side * side];
    for (to, from) in all.chunks_exact_mut(side).zip(matrix.chunks_exact(len)) {
        to.iter_mut().zip(from).for_each(|(to, &x)| *to = T::of(x));
    }
    all
}
