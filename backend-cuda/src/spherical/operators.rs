//! The operators of an order in device memory: recursions, sparse and dense matrices.

use crate::device::{Buffer, Device};
use crate::domains::M2lEnds;
use crate::equivalent::DeviceScalar;
use crate::products::Dense;
use fmm_kernels::equivalent::spectra::OFFSETS;
use fmm_kernels::spherical::basis::Basis;
use fmm_kernels::spherical::sparse::Sparse;
use fmm_kernels::spherical::{Truncation, dense};
use fmm_traits::Error;

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
        let upload = |matrix: &dyn Fn(usize) -> Vec<f64>| -> Result<Dense<T>, Error> {
            let all: Vec<T> = (0..8).flat_map(|octant| padded(p, &matrix(octant))).collect();
            Ok(Dense { data: device.upload(&all, "operators")?, rows: side, cols: side })
        };
        let (m2m, l2l) = (upload(&|octant| makes.up(octant))?, upload(&|octant| makes.down(octant))?);
        Ok(Matrices { m2m, l2l, m2l: None, order: p, truncation })
    }

    /// Makes the matrices of M2L, unless they exist.
    pub fn across(&mut self, device: &Device, ends: &M2lEnds) -> Result<(), Error> {
        if self.m2l.is_some() {
            return Ok(());
        }
        let (p, length) = (self.order, row(self.order).pow(2));
        let mut all = device.alloc(ends.operators.len() * length, "M2L matrices")?;
        let (makes, mut done) = (dense::Dense::new(p), Ok(()));
        let mut write = |number: usize, matrix: &[f64]| {
            if done.is_ok() {
                done = device.write(&mut all, number * length, &padded(p, matrix), "M2L matrices");
            }
        };
        makes.across(self.truncation, &mut write);
        for (number, &[target, source]) in ends.operators.iter().enumerate().skip(OFFSETS) {
            write(number, &makes.between(target, source, self.truncation));
        }
        done?;
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
