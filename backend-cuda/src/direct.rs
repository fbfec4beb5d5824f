//! Direct summation on the device, of any kernel: `kernels/direct.cu`.

use crate::array::{DeviceArray, DeviceStream};
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::ends::{Arrays, Ends, Rows};
use crate::evaluation::{self, Evaluation};
use crate::points::CallerPoints;
use crate::programs;
use crate::solver::DeviceSums;
use crate::strengths::StrengthSets;
use fmm_traits::kernel::MAX_PARAMETERS;
use fmm_traits::{
    Error, Kernels, Member, Numbers, NumbersMut, Observer, OutputColumns, Real, Solver, Stage, StageSeconds, Targets,
};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The shape of the pair loop. It changes the speed and the rounding of the sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Largest number of threads per block.
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
/// Threads of a warp.
const WARP_THREADS: u32 = 32;
/// Blocks of the sum per multiprocessor that keep the device busy.
const BLOCKS_PER_MULTIPROCESSOR: usize = 32;
/// Largest number of splits of the sources. With few targets, splits multiply the blocks.
const MAX_SPLITS: usize = 1024;

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
        evaluation::apply(&mut *self.sum(), Numbers::F64(strengths), &mut [NumbersMut::F64(out)], true, observer)
    }
    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        evaluation::apply_batch(&mut *self.sum(), strengths, out, observer)
    }
    fn bytes(&self) -> u64 {
        let sum = self.sum();
        let numbers = [&sum.parameters, &sum.factors, &sum.scale, &sum.frame, &sum.given, &sum.parts, &sum.out];
        let packed = sum.packed.bytes() + sum.targets.bytes() + sum.own.bytes();
        let points = sum.sources.rows().bytes() + sum.separate.as_ref().map_or(0, |t| t.rows().bytes());
        numbers.iter().map(|b| b.bytes()).sum::<u64>() + packed + points + sum.ends.bytes()
    }
}

impl<T: Real> DeviceSums for Shared<T> {
    fn apply_numbers(
        &self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        evaluation::apply(&mut *self.sum(), strengths, values, false, observer)
    }
    fn enqueue(&self, strengths: &DeviceArray, values: &[DeviceArray], stream: &DeviceStream) -> Result<(), Error> {
        evaluation::enqueue(&mut *self.sum(), strengths, values, stream)
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.sum().ends.check(true)
    }
    fn points(&self) -> Result<[Vec<f64>; 2], Error> {
        let sum = self.sum();
        let targets = sum.separate.as_ref().map_or(Ok(Vec::new()), |t| t.download())?;
        Ok([sum.sources.download()?, targets])
    }
}

impl<T: Real> Evaluation for Direct<T> {
    fn device(&self) -> &Device {
        &self.device
    }
    fn counts(&self) -> [usize; 2] {
        [self.n, self.m]
    }
    fn ends(&mut self) -> &mut Ends {
        &mut self.ends
    }
    fn run(&mut self, arrays: &Arrays, observer: Observer, timed: bool) -> Result<StageSeconds, Error> {
        if !observer(Stage::P2p, 0.0) {
            return Err(Error::Cancelled { stage: Stage::P2p.name() });
        }
        let from = if timed { Some(self.device.mark()?) } else { None };
        let rows = |n: usize, width: usize| Rows { from: Arg::NULL, to: Arg::NULL, n, width };
        let strengths = rows(self.n, self.strengths);
        self.ends.scatter(arrays.given(), strengths, self.strengths, None, (&self.given).into(), true)?;
        self.enqueue((&self.given).into(), (&self.out).into())?;
        self.ends.gather(arrays, rows(self.m, self.values), (None, 1.0), [0u32.into(), (&self.out).into()])?;
        let mut seconds = StageSeconds::default();
        if let Some(from) = from {
            seconds[Stage::P2p as usize] = self.device.seconds(&from, &self.device.mark()?)?;
        }
        Ok(seconds)
    }
}

/// The targets of a direct sum on a device.
#[derive(Clone, Debug)]
pub enum DeviceTargets {
    /// All sources. Each target skips itself, by its index, unless sources act on themselves.
    Sources,
    /// The sources with these indices.
    Subset(Vec<usize>),
    /// Separate points.
    Points(Arc<CallerPoints>),
}

impl DeviceTargets {
    /// Copies targets to the device. Points have `dim` coordinates.
    ///
    /// # Errors
    /// As [`CallerPoints::of_dim`].
    pub fn new(device: &Device, dim: usize, targets: Targets) -> Result<Self, Error> {
        Ok(match targets {
            Targets::Sources => DeviceTargets::Sources,
            Targets::Subset(indices) => DeviceTargets::Subset(indices.to_vec()),
            Targets::Points(points) => {
                DeviceTargets::Points(Arc::new(CallerPoints::of_dim(device, dim, "targets", points)?))
            }
        })
    }

    /// The targets with three coordinates each, as [`CallerPoints::in_space`].
    ///
    /// # Errors
    /// Errors of the device.
    pub fn in_space(self) -> Result<Self, Error> {
        Ok(match self {
            DeviceTargets::Points(points) => DeviceTargets::Points(points.in_space()?),
            others => others,
        })
    }

    /// The number of targets, for `n_sources` sources.
    pub fn count(&self, n_sources: usize) -> usize {
        match self {
            DeviceTargets::Sources => n_sources,
            DeviceTargets::Subset(indices) => indices.len(),
            DeviceTargets::Points(points) => points.len(),
        }
    }
    /// The separate points, if any.
    pub fn points(&self) -> Option<&Arc<CallerPoints>> {
        if let DeviceTargets::Points(points) = self { Some(points) } else { None }
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
    /// Threads per block.
    threads: usize,
    splits: usize,
    /// Tiles per split.
    per_split: usize,
    parameters: Buffer<f64>,
    factors: Buffer<f64>,
    scale: Buffer<f64>,
    frame: Buffer<f64>,
    sources: Arc<CallerPoints>,
    /// Separate targets.
    separate: Option<Arc<CallerPoints>>,
    /// Strengths in the caller's order.
    given: Buffer<f64>,
    ends: Ends,
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
    pub fn solver(self) -> Box<dyn DeviceSums>
    where
        T: 'static,
    {
        Box::new(Shared { columns: self.columns.clone(), values: self.values, sum: Mutex::new(self) })
    }

    /// Copies points to the device, and then as [`of`](Direct::of).
    ///
    /// # Errors
    /// As [`CallerPoints::new`] and [`of`](Direct::of).
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        sources: &[f64],
        targets: Targets,
        shape: Option<Shape>,
    ) -> Result<Self, Error> {
        let sources = Arc::new(CallerPoints::new(device, "sources", sources)?);
        Self::of(device, kernels, sources, DeviceTargets::new(device, 3, targets)?, shape)
    }

    /// Compiles the kernel for points on the device. `shape` is `None` for the tuned shape.
    ///
    /// # Errors
    /// [`Error::TooMany`] for an index beyond the sources, and errors of the device.
    pub fn of(
        device: &Device,
        kernels: &Kernels,
        sources: Arc<CallerPoints>,
        targets: DeviceTargets,
        shape: Option<Shape>,
    ) -> Result<Self, Error> {
        let Kernels { near, columns, scale, params, include_self, .. } = kernels;
        let pairs = Pairs { kernel: near, params, scale: *scale, columns, include_self: *include_self };
        Self::of_pairs(device, pairs, sources, targets, shape)
    }

    /// Loads the program of a sum with the tuned shape, ahead of its use.
    ///
    /// # Errors
    /// Errors of the device and of the compiler.
    pub fn load(device: &Device, kernels: &Kernels) -> Result<(), Error> {
        let near = &kernels.near;
        device.load(&programs::direct_program::<T>(near, Shape::tuned::<T>(near.values))).map(|_| ())
    }

    /// As [`of`](Direct::of), of the given pairs.
    pub(crate) fn of_pairs(
        device: &Device,
        pairs: Pairs,
        sources: Arc<CallerPoints>,
        targets: DeviceTargets,
        shape: Option<Shape>,
    ) -> Result<Self, Error> {
        sources.is_on(device)?;
        targets.points().map_or(Ok(()), |points| points.is_on(device))?;
        DirectBuilder { device, pairs, sources, targets, shape }.direct()
    }

    /// The columns of each output among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }

    /// The sums for `strengths`, N×c.
    pub fn apply(&mut self, strengths: &[f64]) -> Result<Vec<f64>, Error> {
        let mut out = vec![0.0; self.m * self.values];
        evaluation::apply(self, Numbers::F64(strengths), &mut [NumbersMut::F64(&mut out)], true, &mut |_, _| true)?;
        Ok(out)
    }

    /// The sums of several sets of strengths, in the order of the caller: the rows of each set.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Array`] for strengths on another device, and errors of the device.
    pub fn sums(&mut self, strengths: &StrengthSets) -> Result<Vec<Vec<f64>>, Error> {
        let (sets, length, rows) = (strengths.sets(), self.n * self.strengths, self.m * self.values);
        strengths.is_on(&self.device)?;
        if sets > 0 && strengths.length() != length {
            let why = format!("{} sources, with {} strengths each", self.n, self.strengths);
            return Err(Error::Shape { array: "strengths", found: strengths.length(), expected: length, why });
        }
        let out: Buffer<f64> = self.device.alloc(sets * rows, "values")?;
        (0..sets).try_for_each(|k| self.enqueue(strengths.set(k), out.at(k * rows)))?;
        let out = self.device.download(&out, "values")?;
        Ok((0..sets).map(|k| out[k * rows..(k + 1) * rows].to_vec()).collect())
    }

    /// Packs the sources with strengths in the caller's order, and sums. `given` has N×c numbers, and `out` room for M×values.
    fn enqueue(&mut self, given: Arg, out: Arg) -> Result<(), Error> {
        if self.m == 0 {
            return Ok(());
        }
        let args = [
            self.sources.rows().into(),
            given,
            (&self.factors).into(),
            (&self.frame).into(),
            (self.n as u32).into(),
            self.packed.untyped(),
        ];
        let grid = (blocks(self.n, BLOCK as usize)?, 1);
        // SAFETY: arguments as in direct.cu; points and strengths hold n rows, packed room for n.
        unsafe { self.device.launch(&self.functions, "pack_sources", grid, BLOCK, &args)? };
        let (m, splits) = (self.m as u32, self.splits as u32);
        let args = [
            (&self.parameters).into(),
            self.packed.untyped(),
            (self.n as u32).into(),
            self.targets.untyped(),
            (&self.own).into(),
            m.into(),
            (self.per_split as u32).into(),
            (&self.parts).into(),
        ];
        let grid = (blocks(self.m, self.threads * self.shape.targets)?, splits);
        // SAFETY: arguments as in direct.cu; parts has a row of m·VALUES for each split.
        unsafe { self.device.launch(&self.functions, "direct_sum", grid, self.threads as u32, &args)? };
        // With few targets there are many splits.
        let lanes = splits.next_power_of_two().min(WARP_THREADS);
        let args = [(&self.parts).into(), (&self.scale).into(), splits.into(), m.into(), lanes.into(), out];
        let grid = (blocks(self.m * self.values * lanes as usize, BLOCK as usize)?, 1);
        // SAFETY: as above.
        unsafe { self.device.launch(&self.functions, "combine", grid, BLOCK, &args) }
    }

    /// Seconds of one sum on the device, without transfers: the median of `repeats`.
    pub fn seconds(&mut self, strengths: &[f64], repeats: usize) -> Result<f64, Error> {
        self.apply(strengths)?;
        let mut times = Vec::new();
        for _ in 0..repeats.max(1) {
            let from = self.device.mark()?;
            self.enqueue((&self.given).into(), (&self.out).into())?;
            let to = self.device.mark()?;
            times.push(self.device.seconds(&from, &to)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// The pairs that a direct sum adds up.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<'a> {
    pub kernel: &'a Member,
    pub params: &'a [f64],
    /// Factor of all values.
    pub scale: f64,
    /// The columns of each output among the values.
    pub columns: &'a [OutputColumns],
    /// Whether a source acts on itself.
    pub include_self: bool,
}

/// The data from which a direct sum is made.
struct DirectBuilder<'a> {
    device: &'a Device,
    pairs: Pairs<'a>,
    sources: Arc<CallerPoints>,
    targets: DeviceTargets,
    shape: Option<Shape>,
}

impl DirectBuilder<'_> {
    fn direct<T: Real>(self) -> Result<Direct<T>, Error> {
        let Pairs { kernel, params, scale, columns, include_self } = self.pairs;
        let device = self.device;
        let shape = self.shape.unwrap_or(Shape::tuned::<T>(kernel.values));
        let functions = device.load(&programs::direct_program::<T>(kernel, shape))?;
        let (n, size) = (self.sources.len(), if T::NAME == "f32" { 4 } else { 8 });
        let separate = self.targets.points().cloned();
        let reach = separate.as_ref().map(|t| t.bounds());
        let (shift, unit) = if size == 4 { frame(self.sources.bounds(), reach) } else { ([0.0; 3], 1.0) };
        let mut parameters = kernel.unit_parameters(params, unit);
        parameters.resize(MAX_PARAMETERS, 0.0);
        let factors: Vec<f64> = kernel.strength_degrees.iter().map(|&d| unit.powi(d)).collect();
        let scale: Vec<f64> = kernel.value_degrees.iter().map(|&d| scale * unit.powi(d)).collect();
        let frame = device.upload(&[shift[0], shift[1], shift[2], unit], "frame")?;
        let chosen: Buffer<f64>;
        let (at, own): (&Buffer<f64>, Vec<u32>) = match &self.targets {
            DeviceTargets::Sources => (self.sources.rows(), (0..n as u32).collect()),
            DeviceTargets::Subset(indices) => {
                if let Some(&found) = indices.iter().find(|&&i| i >= n) {
                    return Err(Error::TooMany { what: "index of a source", found, limit: n.saturating_sub(1) });
                }
                chosen = self.sources.rows_at(indices)?;
                (&chosen, indices.iter().map(|&i| i as u32).collect())
            }
            DeviceTargets::Points(points) => (points.rows(), vec![u32::MAX; points.len()]),
        };
        let m = own.len();
        let own = if include_self { vec![u32::MAX; m] } else { own };
        let targets = device.alloc(3 * m * size, "packed targets")?;
        let args = [at.into(), (&frame).into(), (m as u32).into(), targets.untyped()];
        // SAFETY: arguments as in direct.cu; `at` holds m rows and `targets` three arrays of m.
        unsafe { device.launch(&functions, "pack_targets", (blocks(m, BLOCK as usize)?, 1), BLOCK, &args)? };

        let tiles = n.div_ceil(shape.tile);
        // A block has no more warps than the targets need: idle warps take time from others.
        let threads = m.div_ceil(shape.targets).next_multiple_of(WARP_THREADS as usize).min(shape.block);
        let columns_of_blocks = m.div_ceil((threads * shape.targets).max(1)).max(1);
        let wanted = BLOCKS_PER_MULTIPROCESSOR * device.info().multiprocessors as usize;
        let splits = wanted.div_ceil(columns_of_blocks).min(MAX_SPLITS).min(tiles).max(1);
        let per_split = tiles.div_ceil(splits).max(1);
        let splits = tiles.div_ceil(per_split).max(1);
        let word = 16 / size;
        let row = (3 + kernel.strengths).next_multiple_of(word) * size;
        Ok(Direct {
            device: device.clone(),
            functions,
            columns: columns.to_vec(),
            values: kernel.values,
            strengths: kernel.strengths,
            n,
            m,
            shape,
            threads,
            splits,
            per_split,
            parameters: device.upload(&parameters, "parameters")?,
            factors: device.upload(&factors, "factors")?,
            scale: device.upload(&scale, "scale")?,
            frame,
            ends: Ends::new(device, columns, kernel.strengths, kernel.values)?,
            given: device.alloc(n * kernel.strengths, "strengths")?,
            sources: self.sources,
            separate,
            packed: device.alloc(n * row, "packed sources")?,
            targets,
            own: device.upload(&own, "indices of targets")?,
            parts: device.alloc(splits * m * kernel.values, "partial sums")?,
            out: device.alloc(m * kernel.values, "values")?,
            precision: PhantomData,
        })
    }
}

/// The frame of an f32 sum, from the bounding boxes of sources and targets: the centre of the box of the sources, and a
/// unit of length. In this unit, no square of a distance among the sources, or to the targets, leaves the range of f32.
///
/// The unit is the largest extent of the sources, but at least 10⁻⁹ of the distance to the farthest target. If all
/// sources lie in one point, the unit is that distance, or 1 if the distance is 0 too.
fn frame([low, high]: [[f64; 3]; 2], targets: Option<[[f64; 3]; 2]>) -> ([f64; 3], f64) {
    if low[0] > high[0] {
        return ([0.0; 3], 1.0);
    }
    let side = (0..3).map(|a| high[a] - low[a]).fold(0.0, f64::max);
    let center: [f64; 3] = if side > 0.0 { std::array::from_fn(|a| 0.5 * low[a] + 0.5 * high[a]) } else { low };
    let ends = targets.filter(|[low, high]| low[0] <= high[0]).into_iter().flatten();
    let reach = ends.flat_map(|end| (0..3).map(move |a| (end[a] - center[a]).abs())).fold(0.0, f64::max);
    let unit = if side > 0.0 { side.max(1e-9 * reach) } else { reach };
    (center, if unit > 0.0 { unit } else { 1.0 })
}
