//! Direct summation on the device, of any kernel: `kernels/direct.cu`.

use crate::device::{Buffer, Device, Functions, blocks};
use crate::programs;
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Family, Kernel, OutputColumns, Outputs, Real, Visitor};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// Where a direct sum is evaluated.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// At the sources with these indices (`None`: all), each skipping itself.
    Sources(Option<&'a [usize]>),
    /// At these points, M×3 row-major.
    Points(&'a [f64]),
}

/// The shape of the pair loop; what it is changes the speed, and the rounding of the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Threads of a block.
    pub block: usize,
    /// Targets of a thread.
    pub targets: usize,
    /// Sources in shared memory at once: those of one partial sum.
    pub tile: usize,
    /// Sources handled by one pass of the inner loop.
    pub unroll: usize,
}

impl Shape {
    /// The shape that was fastest for a kernel with this many values.
    pub fn tuned<T: Real>(values: usize) -> Shape {
        let targets = match values {
            1 => 4,
            2..=4 => 2,
            _ => 1,
        };
        Shape { block: 128, targets, tile: 256, unroll: if values > 4 { 2 } else { 8 } }
    }
}

/// Threads of the kernels that handle one item each.
const BLOCK: u32 = 256;
/// Blocks of the sum that each multiprocessor should have to choose from.
const BLOCKS_PER_MULTIPROCESSOR: usize = 32;
/// Most parts into which the sources are cut for that.
const MAX_SPLITS: usize = 64;

/// Sums all pairs, in the precision `T`, on values relative to the middle of the sources in f32.
/// `sources` N×3 and `strengths` N×c row-major; the result has the values of the kernel that
/// [`Family::visit`] chose for `outputs`, target-major, with the columns of each output.
///
/// A source that coincides with a target contributes zero to a singular kernel; when the targets
/// are sources, each skips itself by index.
pub fn direct<T: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets,
) -> Result<(Vec<f64>, Vec<OutputColumns>), Error> {
    let mut sum = Direct::<T>::new(device, family, outputs, sources, targets, None)?;
    Ok((sum.apply(strengths)?, sum.columns))
}

/// A direct sum of any family, outputs and precision; calls from several threads wait for each other.
pub trait Sum: Send + Sync {
    /// The sums for strengths N×c into targets × values, both in the caller's order.
    fn apply(&self, strengths: &[f64], out: &mut [f64]) -> Result<(), Error>;
    /// Bytes of device memory held.
    fn bytes(&self) -> u64;
}

impl<T: Real> Sum for Mutex<Direct<T>> {
    fn apply(&self, strengths: &[f64], out: &mut [f64]) -> Result<(), Error> {
        // A panic of another thread leaves nothing that the next sum does not overwrite.
        let mut sum = self.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, expected) = (out.len(), sum.m * sum.values);
        if found != expected {
            let why = "targets × values of the kernel".to_string();
            return Err(Error::Shape { array: "values", found, expected, why });
        }
        sum.set_strengths(strengths)?;
        sum.enqueue()?;
        sum.device.read(&sum.out, out, "values")
    }
    fn bytes(&self) -> u64 {
        let sum = self.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = [&sum.parameters, &sum.factors, &sum.scale, &sum.frame, &sum.points, &sum.parts, &sum.out];
        let packed = sum.packed.bytes() + sum.targets.bytes() + sum.own.bytes();
        numbers.iter().map(|b| b.bytes()).sum::<u64>() + packed
    }
}

/// A direct sum with its points on the device; strengths come with each [`apply`](Direct::apply).
#[derive(Debug)]
pub struct Direct<T> {
    device: Device,
    functions: Functions,
    columns: Vec<OutputColumns>,
    values: usize,
    strengths: usize,
    n: usize,
    m: usize,
    shape: Shape,
    splits: usize,
    /// Tiles of a split.
    per_split: usize,
    parameters: Buffer<f64>,
    factors: Buffer<f64>,
    scale: Buffer<f64>,
    frame: Buffer<f64>,
    points: Buffer<f64>,
    /// Sources as the pair loop reads them.
    packed: Buffer<u8>,
    targets: Buffer<u8>,
    own: Buffer<u32>,
    parts: Buffer<f64>,
    out: Buffer<f64>,
    precision: PhantomData<T>,
}

impl<T: Real> Direct<T> {
    /// Compiles the kernel and sends the points. `shape`: `None` for the tuned one.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::TooMany`] beyond 2³² − 2 points, and those of the device.
    pub fn new<F: Family>(
        device: &Device,
        family: &F,
        outputs: Outputs,
        sources: &[f64],
        targets: Targets,
        shape: Option<Shape>,
    ) -> Result<Self, Error> {
        let (params, scale) = (family.parameters(), family.scale());
        let others = if let Targets::Points(points) = targets { points } else { &[] };
        for (array, x) in [("sources", sources), ("targets", others)] {
            let rows = x.len() / 3;
            if x.len() != 3 * rows {
                let why = "three coordinates a point".to_string();
                return Err(Error::Shape { array, found: x.len(), expected: 3 * rows, why });
            }
            if rows >= u32::MAX as usize {
                return Err(Error::TooMany { what: array, found: rows, limit: u32::MAX as usize - 1 });
            }
        }
        family.visit(outputs, New { device, params, scale, sources, targets, others, shape, of: PhantomData })?
    }

    /// Where each output lies among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// The sums for these strengths, N×c.
    pub fn apply(&mut self, strengths: &[f64]) -> Result<Vec<f64>, Error> {
        self.set_strengths(strengths)?;
        self.enqueue()?;
        self.device.download(&self.out, "values")
    }

    /// Sends and packs strengths.
    fn set_strengths(&mut self, strengths: &[f64]) -> Result<(), Error> {
        let (n, c) = (self.n, self.strengths);
        if strengths.len() != n * c {
            let why = format!("{n} sources × {c} strengths");
            return Err(Error::Shape { array: "strengths", found: strengths.len(), expected: n * c, why });
        }
        let given = self.device.upload(strengths, "strengths")?;
        let args = [
            (&self.points).into(),
            (&given).into(),
            (&self.factors).into(),
            (&self.frame).into(),
            (n as u32).into(),
            (&self.packed).into(),
        ];
        // SAFETY: arguments as in direct.cu; points and strengths hold n rows, packed room for n.
        unsafe { self.device.launch(&self.functions, "pack_sources", (blocks(n, BLOCK as usize)?, 1), BLOCK, &args) }
    }

    /// Enqueues the sum of what was packed.
    fn enqueue(&mut self) -> Result<(), Error> {
        if self.m == 0 {
            return Ok(());
        }
        let (m, splits) = (self.m as u32, self.splits as u32);
        let args = [
            (&self.parameters).into(),
            (&self.packed).into(),
            (self.n as u32).into(),
            (&self.targets).into(),
            (&self.own).into(),
            m.into(),
            (self.per_split as u32).into(),
            (&self.parts).into(),
        ];
        let grid = (blocks(self.m, self.shape.block * self.shape.targets)?, splits);
        // SAFETY: arguments as in direct.cu; parts has a row of m·VALUES for each split.
        unsafe { self.device.launch(&self.functions, "direct_sum", grid, self.shape.block as u32, &args)? };
        let args = [(&self.parts).into(), (&self.scale).into(), splits.into(), m.into(), (&self.out).into()];
        let grid = (blocks(self.m * self.values, BLOCK as usize)?, 1);
        // SAFETY: as above.
        unsafe { self.device.launch(&self.functions, "combine", grid, BLOCK, &args) }
    }

    /// Seconds of one sum on the device, the median of `repeats`, with everything in its memory.
    pub fn seconds(&mut self, strengths: &[f64], repeats: usize) -> Result<f64, Error> {
        self.apply(strengths)?;
        let mut times = Vec::new();
        for _ in 0..repeats.max(1) {
            let from = self.device.mark()?;
            self.enqueue()?;
            let to = self.device.mark()?;
            times.push(self.device.seconds(&from, &to)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

struct New<'a, T> {
    device: &'a Device,
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    targets: Targets<'a>,
    others: &'a [f64],
    shape: Option<Shape>,
    of: PhantomData<T>,
}

impl<T: Real> Visitor for New<'_, T> {
    type Output = Result<Direct<T>, Error>;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let device = self.device;
        let shape = self.shape.unwrap_or(Shape::tuned::<T>(S::VALUES));
        let functions = device.load(&programs::direct_program::<S, T>(shape))?;
        let (n, size) = (self.sources.len() / 3, if T::NAME == "f32" { 4 } else { 8 });
        let (shift, unit) = if size == 4 { frame(self.sources, self.others) } else { ([0.0; 3], 1.0) };
        let mut parameters = S::unit_parameters(&self.params, unit);
        parameters.resize(MAX_PARAMETERS, 0.0);
        let factors: Vec<f64> = (0..S::STRENGTHS).map(|c| unit.powi(S::strength_degree(c))).collect();
        let scale: Vec<f64> = (0..S::VALUES).map(|i| self.scale * unit.powi(S::value_degree(i))).collect();
        let frame = device.upload(&[shift[0], shift[1], shift[2], unit], "frame")?;
        let points = device.upload(self.sources, "sources")?;

        let chosen: Vec<f64>;
        let (at, own): (&[f64], Vec<u32>) = match self.targets {
            Targets::Sources(None) => (self.sources, (0..n as u32).collect()),
            Targets::Sources(Some(indices)) => {
                if let Some(&found) = indices.iter().find(|&&i| i >= n) {
                    return Err(Error::TooMany { what: "index of a source", found, limit: n.saturating_sub(1) });
                }
                chosen = indices.iter().flat_map(|&i| self.sources[3 * i..3 * i + 3].iter().copied()).collect();
                (&chosen, indices.iter().map(|&i| i as u32).collect())
            }
            Targets::Points(x) => (x, vec![u32::MAX; x.len() / 3]),
        };
        let m = at.len() / 3;
        let given = device.upload(at, "targets")?;
        let targets = device.alloc(3 * m * size, "packed targets")?;
        let args = [(&given).into(), (&frame).into(), (m as u32).into(), (&targets).into()];
        // SAFETY: arguments as in direct.cu; `given` holds m rows and `targets` three arrays of m.
        unsafe { device.launch(&functions, "pack_targets", (blocks(m, BLOCK as usize)?, 1), BLOCK, &args)? };

        let tiles = n.div_ceil(shape.tile);
        let columns_of_blocks = m.div_ceil(shape.block * shape.targets).max(1);
        let wanted = BLOCKS_PER_MULTIPROCESSOR * device.info().multiprocessors as usize;
        let splits = wanted.div_ceil(columns_of_blocks).min(MAX_SPLITS).min(tiles).max(1);
        let per_split = tiles.div_ceil(splits).max(1);
        let splits = tiles.div_ceil(per_split).max(1);
        let word = 16 / size;
        let row = (3 + S::STRENGTHS).next_multiple_of(word) * size;
        Ok(Direct {
            device: device.clone(),
            functions,
            columns,
            values: S::VALUES,
            strengths: S::STRENGTHS,
            n,
            m,
            shape,
            splits,
            per_split,
            parameters: device.upload(&parameters, "parameters")?,
            factors: device.upload(&factors, "factors")?,
            scale: device.upload(&scale, "scale")?,
            frame,
            points,
            packed: device.alloc(n * row, "packed sources")?,
            targets,
            own: device.upload(&own, "indices of targets")?,
            parts: device.alloc(splits * m * S::VALUES, "partial sums")?,
            out: device.alloc(m * S::VALUES, "values")?,
            precision: PhantomData,
        })
    }
}

/// Centre of the bounding box of the sources, and a unit of length in which neither the distances among
/// them nor those of `targets` have squares beyond the range of f32: their largest extent, but at least
/// 10⁻⁹ of the way to the farthest target, and all of it where the sources lie in one point (1 where
/// that is 0).
fn frame(sources: &[f64], targets: &[f64]) -> ([f64; 3], f64) {
    if sources.is_empty() {
        return ([0.0; 3], 1.0);
    }
    let fold = |start: f64, f: fn(f64, f64) -> f64| -> [f64; 3] {
        std::array::from_fn(|a| sources.iter().skip(a).step_by(3).fold(start, |m, &x| f(m, x)))
    };
    let (low, high) = (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max));
    let side = (0..3).map(|a| high[a] - low[a]).fold(0.0, f64::max);
    let center = if side > 0.0 { std::array::from_fn(|a| 0.5 * low[a] + 0.5 * high[a]) } else { low };
    let reach = targets.iter().enumerate().fold(0.0, |m: f64, (i, x)| m.max((x - center[i % 3]).abs()));
    let unit = if side > 0.0 { side.max(1e-9 * reach) } else { reach };
    (center, if unit > 0.0 { unit } else { 1.0 })
}
