//! The operators of a unit box as dense matrices in device memory.
//!
//! The host decomposes the matrices of the solves. All other operators are values of the kernel, which the device
//! computes: M2M, L2L, and M2L as matrices or as spectra (`kernels/operators.cu`).

use super::DeviceScalar;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::products::Dense;
use crate::programs::OPERATOR_THREADS;
use fmm_kernels::equivalent::spectra::{Grid, OFFSETS, offsets};
use fmm_kernels::equivalent::{Lattice, Matrix, Operators};
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Member};
use std::sync::Arc;

/// [`Operators`] on the device.
#[derive(Debug)]
pub(super) struct DeviceOperators<T> {
    /// Kernel parameters on the unit box, without a gauge.
    params: Vec<f64>,
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

/// What the host makes of the operators of boxes of one side.
pub(super) struct Prepared<T> {
    /// Kernel parameters on the unit box, without a gauge.
    pub params: Vec<f64>,
    pub operators: Arc<Operators<T>>,
    /// [`Dense::solves`](fmm_kernels::equivalent::Dense::solves).
    pub solves: [[Matrix<T>; 2]; 2],
}

/// Copies matrices of one shape to the device. `tile.cuh` requires even numbers of rows and columns: a lattice has
/// an even number of points, and a solve of odd rank gets a row or column of zeros.
fn upload<T: DeviceScalar>(device: &Device, m: &Matrix<T>) -> Result<Dense<T>, Error> {
    let (rows, cols) = (m.rows.next_multiple_of(2), m.cols.next_multiple_of(2));
    if [rows, cols] == [m.rows, m.cols] {
        return Ok(Dense { data: device.upload(&m.data, "operators")?, rows, cols });
    }
    let mut data = Vec::with_capacity(rows * cols);
    for (j, column) in m.data.chunks_exact(m.rows.max(1)).enumerate() {
        data.extend_from_slice(column);
        data.resize((j + 1) * rows, T::default());
    }
    data.resize(rows * cols, T::default());
    Ok(Dense { data: device.upload(&data, "operators")?, rows, cols })
}

/// Coordinates of points: x of all points, then y, then z.
pub(super) fn rows(points: &[[f64; 3]]) -> Vec<f64> {
    (0..3).flat_map(|a| points.iter().map(move |x| x[a])).collect()
}

/// What computes operators from values of a kernel.
pub(super) struct Maker<'a> {
    pub device: &'a Device,
    /// `operators.cu` for the kernel and the lattice.
    pub functions: &'a Functions,
    /// The kernel from densities to check values.
    pub kernel: &'a Member,
    pub lattice: Lattice,
}

impl Maker<'_> {
    /// Copies what the host has made to the device, and computes M2M and L2L.
    pub fn operators<T: DeviceScalar>(&self, prepared: &Prepared<T>) -> Result<DeviceOperators<T>, Error> {
        let Prepared { params, operators: o, solves: [upward, downward] } = prepared;
        let device = self.device;
        let solve =
            |[a, b]: &[Matrix<T>; 2]| -> Result<[Dense<T>; 2], Error> { Ok([upload(device, a)?, upload(device, b)?]) };
        // Children have half the side, and a parent is twice as large in their units.
        let (inner, outer) = (self.lattice.inner(), self.lattice.outer());
        let child: Vec<[f64; 3]> = inner.iter().map(|x| x.map(|x| 0.5 * x)).collect();
        let centre = |octant: usize| std::array::from_fn(|a| if octant >> a & 1 == 1 { 0.25 } else { -0.25 });
        let centres: Vec<[f64; 3]> = (0..self.lattice.octants()).map(centre).collect();
        let opposite: Vec<[f64; 3]> = centres.iter().map(|x| x.map(|x| -x)).collect();
        let powers = |degrees: &[i32], factor: f64| degrees.iter().map(|&d| factor * f64::from(d).exp2()).collect();
        let (ones, l2l_factor) = (|n: usize| vec![1.0; n], o.l2l_factor.f64());
        let up = [ones(o.values), powers(&self.kernel.strength_degrees, 1.0)];
        let down = [powers(&self.kernel.value_degrees, 1.0 / l2l_factor), ones(o.strengths)];
        let shift = |points, offsets: &[[f64; 3]], factors: [Vec<f64>; 2]| {
            let data = self.matrices(&o.params, points, offsets, &factors.concat())?;
            Ok::<_, Error>(Dense { data, rows: o.values * o.points, cols: o.strengths * o.points })
        };
        Ok(DeviceOperators {
            params: params.clone(),
            upward: solve(upward)?,
            downward: solve(downward)?,
            m2m: shift([&outer, &child], &opposite, up)?,
            l2l: shift([&child, &outer], &centres, down)?,
            l2l_factor,
            units: o
                .units()
                .map(|(s, unit)| Ok((s, device.upload(unit, "operators")?)))
                .collect::<Result<_, Error>>()?,
            dense: None,
            fourier: None,
        })
    }

    /// Makes the operators of M2L, unless they are there: spectra (`fourier`) or matrices.
    pub fn m2l<T: DeviceScalar>(&self, o: &mut DeviceOperators<T>, fourier: bool) -> Result<(), Error> {
        match fourier {
            true if o.fourier.is_none() => o.fourier = Some(self.spectra(&o.params)?),
            false if o.dense.is_none() => {
                let offsets: Vec<[f64; 3]> = offsets().map(|offset| offset.map(f64::from)).collect();
                let inner = self.lattice.inner();
                let factors = vec![1.0; self.kernel.values + self.kernel.strengths];
                o.dense = Some(self.matrices(&o.params, [&inner, &inner], &offsets, &factors)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// The matrices of the kernel from sources to targets, with each of `offsets` added to target minus source. `factors`
    /// are those of values and strengths.
    fn matrices<T: DeviceScalar>(
        &self,
        params: &[f64],
        [targets, sources]: [&[[f64; 3]]; 2],
        offsets: &[[f64; 3]],
        factors: &[f64],
    ) -> Result<Buffer<T>, Error> {
        let (device, n, values) = (self.device, targets.len(), self.kernel.values);
        let entries = offsets.len() * values * n * self.kernel.strengths * n;
        let matrices = device.alloc(entries, "operators")?;
        let parameters = self.parameters(params)?;
        let [targets, sources] = [targets, sources].map(|points| device.upload(&rows(points), "nodes"));
        let (targets, sources) = (targets?, sources?);
        let shifts = device.upload(offsets.as_flattened(), "offsets")?;
        let factors = device.upload(factors, "factors")?;
        let args: [Arg; 8] = [
            (&parameters).into(),
            (&targets).into(),
            (&sources).into(),
            (n as u32).into(),
            (&shifts).into(),
            (offsets.len() as u32).into(),
            (&factors).into(),
            (&matrices).into(),
        ];
        // A thread writes the values of one point.
        let grid = (blocks(entries / values, OPERATOR_THREADS)?, 1);
        // SAFETY: arguments as in operators.cu; the matrices have an entry for each offset, column, point and value.
        unsafe { device.launch(self.functions, "kernel_matrices", grid, OPERATOR_THREADS as u32, &args)? };
        Ok(matrices)
    }

    /// The spectra of M2L, with an entry for each frequency (the last axis slowest), value, strength and offset.
    fn spectra<T: DeviceScalar>(&self, params: &[f64]) -> Result<Buffer<T>, Error> {
        let (device, pairs) = (self.device, self.kernel.values * self.kernel.strengths);
        let grid = Grid::new(self.lattice);
        let spectra = device.alloc(2 * grid.frequencies() * pairs * OFFSETS, "spectra of M2L")?;
        let parameters = self.parameters(params)?;
        let shifts: Vec<f64> = offsets().flatten().map(f64::from).collect();
        let shifts = device.upload(&shifts, "offsets")?;
        let (spacing, scale) = (Grid::spacing(self.lattice), 1.0 / grid.points() as f64);
        let args: [Arg; 5] = [(&parameters).into(), (&shifts).into(), spacing.into(), scale.into(), (&spectra).into()];
        let blocks = [OFFSETS as u32, self.lattice.order as u32, pairs as u32];
        // SAFETY: arguments as in operators.cu; there are as many frequencies along the last axis as the order.
        unsafe { device.launch_3d(self.functions, "kernel_spectra", blocks, OPERATOR_THREADS as u32, &args)? };
        Ok(spectra)
    }

    fn parameters(&self, params: &[f64]) -> Result<Buffer<f64>, Error> {
        let mut parameters = params.to_vec();
        parameters.resize(MAX_PARAMETERS, 0.0);
        self.device.upload(&parameters, "parameters")
    }
}

impl<T: DeviceScalar> DeviceOperators<T> {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let m2l: u64 = self.dense.iter().chain(&self.fourier).map(Buffer::bytes).sum();
        let dense = self.upward.iter().chain(&self.downward).chain([&self.m2m, &self.l2l]);
        dense.map(|d| d.data.bytes()).sum::<u64>() + m2l
    }
}
