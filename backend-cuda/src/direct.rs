//! Direct summation on the device, of any kernel: `kernels/direct.cu`.

use crate::device::{Buffer, Device, Functions, blocks};
use crate::programs;
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{Error, Kernels, Observer, OutputColumns, Real, Solver, Stage, StageSeconds, Targets};
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The shape of the pair loop. It changes the speed and the rounding of the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Threads per block.
    pub block: usize,
    /// Targets per thread.
    pub targets: usize,
    /// Sources in shared memory at once. They form one partial sum.
    pub tile: usize,
    /// Sources per iteration of the inner loop.
    pub unroll: usize,
}

impl Shape {
    /// The fastest measured shape for a kernel with this many values (docs/notes/gpu-performance.md).
    pub fn tuned<T: Real>(values: usize) -> Shape {
        let targets = match values {
            1 => 4,
            2..=4 => 2,
            _ => 1,
        };
        Shape { block: 128, targets, tile: 256, unroll: if values > 4 { 2 } else { 8 } }
    }
}

/// Threads per block in kernels with one item per thread.
const BLOCK: u32 = 256;
/// Blocks of the sum per multiprocessor that keep the device busy.
const BLOCKS_PER_MULTIPROCESSOR: usize = 32;
/// Largest number of splits of the sources. With few targets, splits multiply the blocks.
const MAX_SPLITS: usize = 64;

/// A direct sum as a [`Solver`]. Calls from several threads wait for each other.
struct Shared<T> {
    columns: Vec<OutputColumns>,
    values: usize,
    sum: Mutex<Direct<T>>,
}

impl<T: Real> Shared<T> {
    /// The locked sum. A poisoned lock is fine: whatever an interrupted sum has left, the next sum overwrites.
    fn sum(&self) -> MutexGuard<'_, Direct<T>> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Real> Solver for Shared<T> {
    fn values(&self) -> usize {
        self.values
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        if !observer(Stage::P2p, 0.0) {
            return Err(Error::Cancelled { stage: Stage::P2p.name() });
        }
        let (mut sum, start) = (self.sum(), Instant::now());
        let (found, expected) = (out.len(), sum.m * sum.values);
        if found != expected {
            let why = "targets × values of the kernel".to_string();
            return Err(Error::Shape { array: "values", found, expected, why });
        }
        sum.set_strengths(strengths)?;
        sum.enqueue()?;
        sum.device.read(&sum.out, out, "values")?;
        let mut seconds = StageSeconds::default();
        seconds[Stage::P2p as usize] = start.elapsed().as_secs_f64();
        Ok(seconds)
    }
    fn bytes(&self) -> u64 {
        let sum = self.sum();
        let numbers = [&sum.parameters, &sum.factors, &sum.scale, &sum.frame, &sum.points, &sum.parts, &sum.out];
        let packed = sum.packed.bytes() + sum.targets.bytes() + sum.own.bytes();
        numbers.iter().map(|b| b.bytes()).sum::<u64>() + packed
    }
}

/// A direct sum with its points on the device. Strengths come with each [`apply`](Direct::apply).
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
    /// Tiles per split.
    per_split: usize,
    parameters: Buffer<f64>,
    factors: Buffer<f64>,
    scale: Buffer<f64>,
    frame: Buffer<f64>,
    points: Buffer<f64>,
    /// Sources in the layout of the pair loop.
    packed: Buffer<u8>,
    targets: Buffer<u8>,
    own: Buffer<u32>,
    parts: Buffer<f64>,
    out: Buffer<f64>,
    precision: PhantomData<T>,
}

impl<T: Real> Direct<T> {
    /// The sum behind the trait that all solvers have.
    pub fn solver(self) -> Box<dyn Solver>
    where
        T: 'static,
    {
        Box::new(Shared { columns: self.columns.clone(), values: self.values, sum: Mutex::new(self) })
    }

    /// Compiles the kernel and copies the points to the device. `shape` is `None` for the tuned shape.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::TooMany`] beyond 2³² − 2 points, and errors of the device.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        sources: &[f64],
        targets: Targets,
        shape: Option<Shape>,
    ) -> Result<Self, Error> {
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
        DirectBuilder { device, kernels, sources, targets, others, shape }.direct()
    }

    /// The columns of each output among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// The sums for `strengths`, N×c.
    pub fn apply(&mut self, strengths: &[f64]) -> Result<Vec<f64>, Error> {
        self.set_strengths(strengths)?;
        self.enqueue()?;
        self.device.download(&self.out, "values")
    }

    /// Copies strengths to the device and packs the sources.
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

    /// Enqueues the sum over the packed sources.
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

    /// Seconds of one sum on the device, without transfers: the median of `repeats`.
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

/// The data from which a direct sum is made.
struct DirectBuilder<'a> {
    device: &'a Device,
    kernels: &'a Kernels,
    sources: &'a [f64],
    targets: Targets<'a>,
    others: &'a [f64],
    shape: Option<Shape>,
}

impl DirectBuilder<'_> {
    fn direct<T: Real>(self) -> Result<Direct<T>, Error> {
        let Kernels { near: kernel, columns, scale, params, .. } = self.kernels;
        let device = self.device;
        let shape = self.shape.unwrap_or(Shape::tuned::<T>(kernel.values));
        let functions = device.load(&programs::direct_program::<T>(kernel, shape))?;
        let (n, size) = (self.sources.len() / 3, if T::NAME == "f32" { 4 } else { 8 });
        let (shift, unit) = if size == 4 { frame(self.sources, self.others) } else { ([0.0; 3], 1.0) };
        let mut parameters = kernel.unit_parameters(params, unit);
        parameters.resize(MAX_PARAMETERS, 0.0);
        let factors: Vec<f64> = kernel.strength_degrees.iter().map(|&d| unit.powi(d)).collect();
        let scale: Vec<f64> = kernel.value_degrees.iter().map(|&d| scale * unit.powi(d)).collect();
        let frame = device.upload(&[shift[0], shift[1], shift[2], unit], "frame")?;
        let points = device.upload(self.sources, "sources")?;

        let chosen: Vec<f64>;
        let (at, own): (&[f64], Vec<u32>) = match self.targets {
            Targets::Sources => (self.sources, (0..n as u32).collect()),
            Targets::Subset(indices) => {
                if let Some(&found) = indices.iter().find(|&&i| i >= n) {
                    return Err(Error::TooMany { what: "index of a source", found, limit: n.saturating_sub(1) });
                }
                chosen = indices.iter().flat_map(|&i| self.sources[3 * i..3 * i + 3].iter().copied()).collect();
                (&chosen, indices.iter().map(|&i| i as u32).collect())
            }
            Targets::Points(x) => (x, vec![u32::MAX; x.len() / 3]),
        };
        let own = if self.kernels.include_self { vec![u32::MAX; own.len()] } else { own };
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
        let row = (3 + kernel.strengths).next_multiple_of(word) * size;
        Ok(Direct {
            device: device.clone(),
            functions,
            columns: columns.clone(),
            values: kernel.values,
            strengths: kernel.strengths,
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
            parts: device.alloc(splits * m * kernel.values, "partial sums")?,
            out: device.alloc(m * kernel.values, "values")?,
            precision: PhantomData,
        })
    }
}

/// The frame of an f32 sum: the centre of the bounding box of the sources, and a unit of length. In this unit, no
/// square of a distance among the sources, or to the targets, leaves the range of f32.
///
/// The unit is the largest extent of the sources, but at least 10⁻⁹ of the distance to the farthest target. If all
/// sources lie in one point, the unit is that distance, or 1 if the distance is 0 too.
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
