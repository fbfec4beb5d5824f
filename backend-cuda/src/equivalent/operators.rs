//! The operators of a unit box as dense matrices in device memory.

use super::DeviceScalar;
use crate::device::{Buffer, Device, blocks};
use crate::products::Dense;
use crate::programs;
use fmm_kernels::equivalent::{Matrix, Operators, spectra};
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Member};
use std::sync::Arc;

/// [`Operators`] on the device.
#[derive(Debug)]
pub(super) struct DeviceOperators<T> {
    /// The operators on the host.
    pub host: Arc<Operators<T>>,
    pub upward: [Dense<T>; 2],
    pub downward: [Dense<T>; 2],
    /// Matrices by octant of the child: eight, or four in the plane.
    pub m2m: Dense<T>,
    /// As `m2m`.
    pub l2l: Dense<T>,
    pub l2l_factor: f64,
    /// The source strengths whose net strength is kept, as in [`Operators::units`].
    pub units: Vec<(usize, Buffer<T>)>,
    /// M2L as dense matrices of all offsets, C·n × E·n each, if M2L uses dense matrices.
    pub dense: Option<Buffer<T>>,
    /// M2L as spectra of all offsets, if M2L uses Fourier space.
    pub fourier: Option<Buffer<T>>,
}

/// Copies matrices of one shape to the device. `tile.cuh` requires even numbers of rows and columns: a lattice has
/// an even number of points, and a solve of odd rank gets a row or column of zeros.
fn upload<T: DeviceScalar>(device: &Device, matrices: &[Matrix<T>]) -> Result<Dense<T>, Error> {
    let shape = |m: &Matrix<T>| (m.rows.next_multiple_of(2), m.cols.next_multiple_of(2));
    let (rows, cols) = matrices.first().map_or((0, 0), shape);
    let mut data = Vec::with_capacity(matrices.len() * rows * cols);
    for (k, m) in matrices.iter().enumerate() {
        for (j, column) in m.data.chunks_exact(m.rows.max(1)).enumerate() {
            data.extend_from_slice(column);
            data.resize((k * cols + j + 1) * rows, T::default());
        }
        data.resize((k + 1) * cols * rows, T::default());
    }
    Ok(Dense { data: device.upload(&data, "operators")?, rows, cols })
}

/// Coordinates of points: x of all points, then y, then z.
pub(super) fn rows(points: &[[f64; 3]]) -> Vec<f64> {
    (0..3).flat_map(|a| points.iter().map(move |x| x[a])).collect()
}

impl<T: DeviceScalar> DeviceOperators<T> {
    /// Copies `o` to the device.
    pub fn new(device: &Device, o: &Arc<Operators<T>>) -> Result<Self, Error> {
        let whole = fmm_kernels::equivalent::Dense::of(o);
        let solve = |[a, b]: &[Matrix<T>; 2]| -> Result<[Dense<T>; 2], Error> {
            Ok([upload(device, std::slice::from_ref(a))?, upload(device, std::slice::from_ref(b))?])
        };
        Ok(DeviceOperators {
            host: o.clone(),
            upward: solve(&whole.upward)?,
            downward: solve(&whole.downward)?,
            m2m: upload(device, &whole.m2m)?,
            l2l: upload(device, &whole.l2l)?,
            l2l_factor: o.l2l_factor.f64(),
            units: o
                .units()
                .map(|(s, unit)| Ok((s, device.upload(unit, "operators")?)))
                .collect::<Result<_, Error>>()?,
            dense: None,
            fourier: None,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let m2l: u64 = self.dense.iter().chain(&self.fourier).map(Buffer::bytes).sum();
        let dense = self.upward.iter().chain(&self.downward).chain([&self.m2m, &self.l2l]);
        dense.map(|d| d.data.bytes()).sum::<u64>() + m2l
    }
}

/// The matrices of M2L of all offsets, made on the device. `params` are those of the boxes on the unit box, without a
/// gauge.
pub(super) fn m2l_matrices<T: DeviceScalar>(
    device: &Device,
    kernel: &Member,
    params: &[f64],
    o: &Operators<T>,
) -> Result<Buffer<T>, Error> {
    let functions = device.load(&programs::m2l_matrices_program::<T>(kernel))?;
    let entries = spectra::OFFSETS * o.values * o.points * o.strengths * o.points;
    let matrices = device.alloc(entries, "M2L matrices")?;
    let mut parameters = params.to_vec();
    parameters.resize(MAX_PARAMETERS, 0.0);
    let parameters = device.upload(&parameters, "parameters")?;
    let inner = device.upload(&rows(&o.lattice.inner()), "nodes")?;
    let offsets: Vec<f64> = spectra::offsets().flatten().map(f64::from).collect();
    let offsets = device.upload(&offsets, "offsets")?;
    let args = [
        (&parameters).into(),
        (&inner).into(),
        (o.points as u32).into(),
        (&offsets).into(),
        (spectra::OFFSETS as u32).into(),
        (&matrices).into(),
    ];
    // A thread writes the values of one point.
    let grid = (blocks(entries / o.values, 256)?, 1);
    // SAFETY: arguments as in m2l_matrices.cu; the matrices have an entry for each offset, column, point and value.
    unsafe { device.launch(&functions, "m2l_matrices", grid, 256, &args)? };
    Ok(matrices)
}
