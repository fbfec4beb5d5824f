//! Points in the caller's order in device memory, and the sample of them from which a root cube is chosen:
//! `kernels/points.cu`.

use crate::array::{DeviceArray, DeviceStream, refused};
use crate::builder::{BLOCK, KEY_BITS, frame};
use crate::device::{Arg, Buffer, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use crate::primitives::Primitives;
use crate::programs;
use fmm_traits::tree::NONE;
use fmm_traits::{Error, Precision};
use fmm_tree::RootSample;
use std::ops::Range;
use std::sync::Arc;

/// Points in the caller's order in device memory, N×3 (in the plane N×2), with their bounding box. All coordinates are
/// finite.
#[derive(Debug)]
pub struct CallerPoints {
    device: Device,
    rows: Buffer<f64>,
    n: usize,
    dim: usize,
    low: [f64; 3],
    high: [f64; 3],
}

impl CallerPoints {
    /// Copies points of space to the device. `name` appears in errors.
    ///
    /// # Errors
    /// As [`of_dim`](CallerPoints::of_dim).
    pub fn new(device: &Device, name: &'static str, points: &[f64]) -> Result<CallerPoints, Error> {
        CallerPoints::of_dim(device, 3, name, points)
    }

    /// Copies points of `dim` coordinates, 2 or 3, to the device. `name` appears in errors.
    ///
    /// # Errors
    /// [`Error::Shape`] when the length is no multiple of `dim`, [`Error::TooMany`] beyond 2³² − 2 points,
    /// [`Error::NotFinite`], and errors of the device.
    pub fn of_dim(device: &Device, dim: usize, name: &'static str, points: &[f64]) -> Result<CallerPoints, Error> {
        count(name, points.len(), dim)?;
        CallerPoints::of(device, dim, name, device.upload(points, name)?)
    }

    /// Copies points of `dim` coordinates that lie on the device in f32 or f64. The copy runs in the order of `stream`.
    /// Waits for the copy.
    ///
    /// # Errors
    /// As [`of_dim`](CallerPoints::of_dim), and [`Error::Array`].
    pub fn copied(
        device: &Device,
        dim: usize,
        name: &'static str,
        points: &DeviceArray,
        stream: &DeviceStream,
    ) -> Result<CallerPoints, Error> {
        let n = count(name, points.len(), dim)?;
        points.is_on(name, device)?;
        let (handle, mut rows) = (stream.on(device)?, device.alloc(dim * n, name)?);
        let functions = device.fixed("ends", programs::ends)?;
        // SAFETY: the array has dim·n numbers and lives by its own promise; arguments as in ends.cu.
        unsafe {
            device.within(handle, || match points.precision() {
                Precision::F64 => device.copy_from(points.address(), &mut rows, name),
                Precision::F32 => {
                    let args = [Arg::address(points.address()), ((dim * n) as u64).into(), (&rows).into()];
                    device.launch(&functions, "widen_f32", (blocks(dim * n, BLOCK as usize)?, 1), BLOCK, &args)
                }
            })?;
        }
        CallerPoints::of(device, dim, name, rows)
    }

    /// Points whose coordinates lie behind each other in `rows`, `dim` of a point.
    pub(crate) fn of(
        device: &Device,
        dim: usize,
        name: &'static str,
        rows: Buffer<f64>,
    ) -> Result<CallerPoints, Error> {
        let n = rows.len() / dim;
        let (low, high) = bounds(device, dim, name, &rows, n)?;
        Ok(CallerPoints { device: device.clone(), rows, n, dim, low, high })
    }

    /// The points with three coordinates each: those of the plane at z = 0. Trees of boxes and sums of pairs take such
    /// points; the pyramid takes points of the plane.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn in_space(self: Arc<Self>) -> Result<Arc<CallerPoints>, Error> {
        if self.dim == 3 {
            return Ok(self);
        }
        let (device, n) = (&self.device, self.n);
        let rows = device.alloc(3 * n, "points")?;
        let functions = device.fixed("points", programs::points)?;
        let args = [(&self.rows).into(), (n as u64).into(), (&rows).into()];
        // SAFETY: arguments as in points.cu; there are `n` points, and room for as many.
        unsafe { device.launch(&functions, "lift", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        let [mut low, mut high] = [self.low, self.high];
        if n > 0 {
            (low[2], high[2]) = (0.0, 0.0);
        }
        Ok(Arc::new(CallerPoints { device: device.clone(), rows, n, dim: 3, low, high }))
    }

    /// Coordinates of a point.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.n
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }
    /// The bounding box, as lower and upper corner; empty (+∞, −∞) without points, and in the plane along z.
    pub fn bounds(&self) -> [[f64; 3]; 2] {
        [self.low, self.high]
    }
    /// Checks that the points lie on `device`, whose stream orders their memory.
    pub(crate) fn is_on(&self, device: &Device) -> Result<(), Error> {
        if self.device.is(device) { Ok(()) } else { Err(refused("points", "they lie on another opened device")) }
    }
    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
    /// The coordinates, those of a point behind each other.
    pub(crate) fn rows(&self) -> &Buffer<f64> {
        &self.rows
    }

    /// A copy on the host.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn download(&self) -> Result<Vec<f64>, Error> {
        self.device.download(&self.rows, "points")
    }

    /// `m` of `n` points, as `fmm_tree::sample_index` chooses them. These points have the numbers `here`; others become zeros.
    pub(crate) fn sampled(&self, here: Range<usize>, n: usize, m: usize) -> Result<Buffer<f64>, Error> {
        sampled(&self.device, &self.rows, here, (n, m))
    }

    /// The points at some indices below the number of points, three coordinates of a point behind each other.
    pub(crate) fn rows_at(&self, indices: &[usize]) -> Result<Buffer<f64>, Error> {
        let (n, device) = (indices.len(), &self.device);
        let indices = device.upload(&indices.iter().map(|&i| i as u32).collect::<Vec<_>>(), "indices")?;
        let rows = device.alloc(3 * n, "some points")?;
        let functions = device.fixed("points", programs::points)?;
        let args = [(&self.rows).into(), (&indices).into(), (n as u32).into(), (&rows).into()];
        // SAFETY: arguments as in points.cu; the indices are those of points.
        unsafe { device.launch(&functions, "take_rows", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args)? };
        Ok(rows)
    }
}

/// The number of points of an array of `length` coordinates.
fn count(array: &'static str, length: usize, dim: usize) -> Result<usize, Error> {
    let n = length / dim;
    if length != dim * n {
        let why = format!("{} coordinates a point", if dim == 2 { "two" } else { "three" });
        return Err(Error::Shape { array, found: length, expected: dim * n, why });
    }
    if n >= NONE as usize {
        return Err(Error::TooMany { what: array, found: n, limit: NONE as usize - 1 });
    }
    Ok(n)
}

/// Bounding box of the points, or an error that names the first coordinate that is not finite.
fn bounds(
    device: &Device,
    dim: usize,
    name: &'static str,
    rows: &Buffer<f64>,
    n: usize,
) -> Result<([f64; 3], [f64; 3]), Error> {
    let functions = device.fixed("points", programs::points)?;
    let grid = blocks(n, BLOCK as usize)?.clamp(1, MAX_WALKING_BLOCKS);
    let parts: Buffer<u64> = device.alloc(7 * grid as usize, "bounds")?;
    // SAFETY: arguments as in points.cu; `parts` has seven numbers per block.
    unsafe {
        let args = [rows.into(), (n as u64).into(), (dim as u32).into(), (&parts).into()];
        device.launch(&functions, "bounds", (grid, 1), BLOCK, &args)?;
        device.launch(&functions, "join_bounds", (1, 1), BLOCK, &[(&parts).into(), grid.into()])?;
    }
    let all = device.download_range(&parts, 0..7, "bounds")?;
    let bad = all[6];
    if bad != u64::MAX {
        let bad = bad as usize;
        let value = device.download_range(rows, bad..bad + 1, name)?[0];
        return Err(Error::NotFinite { array: name, row: bad / dim, column: bad % dim, value });
    }
    let end = |i: usize| -> [f64; 3] { std::array::from_fn(|a| f64::from_bits(all[i + a])) };
    Ok((end(0), end(3)))
}

/// Levels on which the device counts pairs of a sample. Boxes of deeper levels are wanted for few clouds.
const SAMPLE_LEVELS: usize = 13;
/// First bit of the keys by which a sample is sorted: whole digits, enough for [`SAMPLE_LEVELS`].
const SAMPLE_SHIFT: u32 = KEY_BITS - (3 * SAMPLE_LEVELS as u32).next_multiple_of(8);

/// Threads per block of `middle_of_axes` in `points.cu`.
const MIDDLE_BLOCK: u32 = 1024;

/// The sample of some points from which a root cube is chosen.
pub(crate) struct Sample<'a> {
    device: &'a Device,
    functions: Functions,
    /// Number of points of the sample.
    size: usize,
    /// The points of the sample, three coordinates of a point behind each other.
    rows: Buffer<f64>,
    /// [`RootSample::middle`], which comes with the pairs.
    middle: Option<[[f64; 2]; 3]>,
}

impl<'a> Sample<'a> {
    pub fn new(device: &'a Device, points: &CallerPoints) -> Result<Self, Error> {
        let size = fmm_tree::sample_size(points.n);
        Sample::of(device, size, points.sampled(0..points.n, points.n, size)?)
    }

    /// The sample that has these points, three coordinates of a point behind each other.
    pub fn of(device: &'a Device, size: usize, rows: Buffer<f64>) -> Result<Self, Error> {
        Ok(Sample { device, functions: device.fixed("points", programs::points)?, size, rows, middle: None })
    }

    /// Enqueues counting the pairs of each level.
    fn count_pairs(&self, corner: [f64; 3], side: f64) -> Result<Buffer<u64>, Error> {
        let (device, m) = (self.device, self.size);
        let frame = frame(device, corner, side)?;
        let mut keys = device.alloc(m, "keys of a sample")?;
        let mut order = device.alloc(m, "order of a sample")?;
        let pairs: Buffer<u64> = device.zeros(SAMPLE_LEVELS, "pairs of a sample")?;
        let across = blocks(m, BLOCK as usize)?;
        let args = [(&self.rows).into(), (m as u64).into(), (&frame).into(), (&keys).into()];
        // SAFETY: arguments as in points.cu; all arrays have `m` points, and `pairs` has an entry for each level.
        unsafe {
            device.launch(&self.functions, "point_keys", (across, 1), BLOCK, &args)?;
            Primitives::new(device)?.sort(&mut keys, &mut order, true, m, SAMPLE_SHIFT..KEY_BITS)?;
            let args = [(&keys).into(), (m as u32).into(), (&pairs).into()];
            device.launch(&self.functions, "pairs_of_levels", (across, SAMPLE_LEVELS as u32), BLOCK, &args)?;
        }
        Ok(pairs)
    }

    /// Enqueues finding the middle: six coordinates, as bits.
    fn find_middle(&self) -> Result<Buffer<u64>, Error> {
        let (device, m) = (self.device, self.size.min(fmm_tree::MIDDLE_SAMPLE_SIZE));
        let rows = sampled(device, &self.rows, 0..self.size, (self.size, m))?;
        let middle: Buffer<u64> = device.alloc(6, "middle of a sample")?;
        let [low, high] = fmm_tree::middle_ranks(m);
        let args = [(&rows).into(), (m as u32).into(), (low as u32).into(), (high as u32).into(), (&middle).into()];
        // SAFETY: arguments as in points.cu; there are `m` points, and the ranks are below `m`.
        unsafe { device.launch(&self.functions, "middle_of_axes", (3, 2), MIDDLE_BLOCK, &args)? };
        Ok(middle)
    }
}

/// The middle from the six numbers of [`Sample::find_middle`].
fn middle_of(bits: &[u64]) -> [[f64; 2]; 3] {
    std::array::from_fn(|a| [f64::from_bits(bits[2 * a]), f64::from_bits(bits[2 * a + 1])])
}

/// `m` of `n` points, as `fmm_tree::sample_index` chooses them. `points` holds those with the numbers `here`; others become
/// zeros.
fn sampled(
    device: &Device,
    points: &Buffer<f64>,
    here: Range<usize>,
    (n, m): (usize, usize),
) -> Result<Buffer<f64>, Error> {
    let functions = device.fixed("points", programs::points)?;
    let rows: Buffer<f64> = device.alloc(3 * m, "a sample of the points")?;
    let [first, end, n] = [here.start, here.end, n].map(|x| Arg::from(x as u64));
    let args = [points.into(), first, end, n, (m as u32).into(), (&rows).into()];
    // SAFETY: arguments as in points.cu; the points with these numbers are there, and there is room for `m`.
    unsafe { device.launch(&functions, "sample_points", (blocks(m, BLOCK as usize)?, 1), BLOCK, &args)? };
    Ok(rows)
}

impl RootSample for Sample<'_> {
    fn pairs(&mut self, corner: [f64; 3], side: f64) -> Result<Vec<u64>, Error> {
        let (pairs, middle) = (self.count_pairs(corner, side)?, self.find_middle()?);
        let [pairs, middle] = self.device.download_all([&pairs, &middle], "pairs of a sample")?;
        self.middle = Some(middle_of(&middle));
        Ok(pairs)
    }

    fn points(&mut self, most: usize) -> Result<Vec<[f64; 3]>, Error> {
        let (device, name) = (self.device, "a sample of the points");
        let rows = match most < self.size {
            true => device.download(&sampled(device, &self.rows, 0..self.size, (self.size, most))?, name)?,
            false => device.download(&self.rows, name)?,
        };
        Ok(rows.as_chunks::<3>().0.to_vec())
    }

    fn middle(&mut self) -> Result<[[f64; 2]; 3], Error> {
        match self.middle {
            Some(middle) => Ok(middle),
            None => Ok(middle_of(&self.device.download(&self.find_middle()?, "middle of a sample")?)),
        }
    }
}
