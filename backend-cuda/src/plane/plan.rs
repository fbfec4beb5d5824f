//! A plan in the plane: pyramid, lists, programs and workspaces, and the stages of one evaluation.

use super::connect::PlaneLists;
use super::programs::{plane_p2p_program, plane_series_program};
use super::pyramid::{DevicePyramid, LEAST_SCALE, WARP_BLOCK, WARPS};
use crate::array::{DeviceArray, DeviceStream};
use crate::device::{Arg, Buffer, Device, Functions, MAX_WALKING_BLOCKS, blocks};
use crate::ends::{Arrays, Ends, MINUS, Rows};
use crate::equivalent::DeviceScalar;
use crate::evaluation::{self, Evaluation};
use crate::plan::Replay;
use crate::programs::{Groups, LEAF_THREADS};
use crate::run::Mode;
use adaptive2d::PlaneKernel;
use adaptive2d::laurent::{self, Jet};
use adaptive2d::pyramid::level_start;
use cudarc::driver::CudaEvent;
use fmm_traits::{Error, Numbers, NumbersMut, Observer, OutputColumns, Real, Stage, StageSeconds, Stages, evaluate};
use std::marker::PhantomData;

/// Smallest scale of a series in f32, in radii of the root.
const LEAST_SCALE_F32: f64 = 1.0 / (1u64 << 60) as f64;
/// Threads per block that look at all strengths.
const BLOCK: u32 = 256;

/// A summation planned on the device: series in `T`, near field in `N`.
#[derive(Debug)]
pub struct PlanePlan<T: DeviceScalar, N: Real> {
    kernel: PlaneKernel,
    /// Order of the derivatives that values carry.
    derivatives: usize,
    /// Values of a target, as the facade sees them.
    values: usize,
    /// Order of the series; `None` for direct sums.
    order: Option<usize>,
    /// Programs of the series; `None` for direct sums.
    series: Option<Functions>,
    near: Functions,
    columns: Vec<OutputColumns>,
    work: Workspace<T>,
    ends: Ends,
    replay: Replay,
    of: PhantomData<N>,
}

/// What depends on the points.
#[derive(Debug)]
struct Workspace<T> {
    pyramid: DevicePyramid,
    lists: PlaneLists,
    /// The pyramid as the kernels see it.
    described: Buffer<u64>,
    strengths: Buffer<f64>,
    values: Buffer<f64>,
    multipoles: Buffer<T>,
    locals: Buffer<T>,
    /// Whether a strength has an imaginary part.
    imaginary: Buffer<u32>,
    /// Largest magnitude of a strength, as bits.
    largest: Buffer<u64>,
    /// For each strength of a source, what makes it comparable to a value: 1 for charges, 1/length for poles.
    factors: Buffer<f64>,
}

/// Number of values of a target on the device: f (of logarithms without Im f), f′ and f″.
fn width(kernel: PlaneKernel, derivatives: usize) -> usize {
    kernel.potentials() + 2 * derivatives
}

/// The values of a target in the order of the facade, as numbers of the device: each of them is a number of the jet, or
/// its negative.
fn row(kernel: PlaneKernel, derivatives: usize) -> Vec<u32> {
    let unit = |c: usize| -> Jet { std::array::from_fn(|k| if k == c { kernel.scale().recip() } else { 0.0 }) };
    let found = (0..kernel.values(derivatives)).filter_map(|value| {
        let sources = (0..unit(0).len()).map(|c| (c, kernel.numbers(unit(c))[value]));
        sources.into_iter().find(|(_, factor)| *factor != 0.0)
    });
    // A real f has no second number on the device.
    let place = |c: usize| (if c > 1 && !kernel.complex() { c - 1 } else { c }) as u32;
    found.map(|(c, factor)| if factor < 0.0 { place(c) | MINUS } else { place(c) }).collect()
}

/// Whether any part is in f32.
fn single<T: Real, N: Real>() -> bool {
    T::NAME == "f32" || N::NAME == "f32"
}

impl<T: DeviceScalar> Workspace<T> {
    /// `width` is the number of values of a target. If `single`, any part is in f32.
    fn new(
        kernel: PlaneKernel,
        (width, single): (usize, bool),
        order: Option<usize>,
        pyramid: DevicePyramid,
        lists: PlaneLists,
    ) -> Result<Self, Error> {
        let device = &pyramid.device;
        let [n, m] = pyramid.counts();
        let scale = if T::NAME == "f32" { LEAST_SCALE_F32 } else { LEAST_SCALE };
        let length = if single && pyramid.radius() > 0.0 { pyramid.radius() } else { 1.0 };
        let mut factors = vec![1.0 / length; kernel.strengths()];
        factors[..usize::from(kernel.charges())].fill(1.0);
        let series = order.map_or(0, |p| 2 * (p + 1) * pyramid.len());
        let rows = |edges: usize| if edges > 0 { series } else { 0 };
        let [m2l, p2l, m2p, _] = lists.edges();
        Ok(Workspace {
            described: pyramid.described(scale)?,
            strengths: device.alloc(n * kernel.strengths(), "strengths")?,
            values: device.alloc(m * width, "values")?,
            multipoles: device.alloc(rows(m2l + m2p), "multipoles")?,
            locals: device.alloc(rows(m2l + p2l), "locals")?,
            imaginary: device.zeros(1, "kind of strengths")?,
            largest: device.zeros(1, "largest strength")?,
            factors: device.upload(&factors, "factors")?,
            pyramid,
            lists,
        })
    }
    fn bytes(&self) -> u64 {
        let numbers = self.strengths.bytes() + self.values.bytes() + self.multipoles.bytes() + self.locals.bytes();
        self.pyramid.bytes() + self.lists.bytes() + numbers
    }
    /// Whether there are edges out of multipoles, and into locals.
    fn far(&self) -> [bool; 2] {
        let [m2l, p2l, m2p, _] = self.lists.edges();
        [m2l + m2p > 0, m2l + p2l > 0]
    }
}

impl<T: DeviceScalar, N: Real> PlanePlan<T, N> {
    /// Plans series of order p, or (`None`) direct sums of all P2P edges alone. `columns` are those of the requested
    /// outputs among the values of a target: each component of the potential, then of each ∂/∂x and ∂/∂y, then of each
    /// the second derivatives xx, xy and yy. Values carry derivatives up to the order `derivatives`, at most 2.
    ///
    /// # Errors
    /// [`Error::Order`] unless 1 ≤ p ≤ 60, [`Error::Unsupported`] for edges of series without an order and for poles of
    /// one real number, and errors of the device.
    pub fn new(
        kernel: impl Into<PlaneKernel>,
        columns: &[OutputColumns],
        derivatives: usize,
        order: Option<usize>,
        pyramid: DevicePyramid,
        lists: PlaneLists,
    ) -> Result<Self, Error> {
        let (device, kernel) = (pyramid.device.clone(), kernel.into());
        if kernel.strengths() != usize::from(kernel.charges()) + 2 * usize::from(kernel.poles()) {
            let reason = format!("poles of kernel {} are real", kernel.name());
            return Err(Error::Unsupported { operation: "a sum in the plane on a GPU", reason });
        }
        let derivatives = derivatives.min(2);
        let row = row(kernel, derivatives);
        if let Some(order) = order.filter(|p| !(1..=laurent::MAX_ORDER).contains(p)) {
            return Err(Error::Order { order, min: 1, max: laurent::MAX_ORDER });
        }
        let near = plane_p2p_program::<N>(kernel, derivatives);
        let (near, series) = match order {
            None => (device.load(&near)?, None),
            Some(p) => {
                let [near, series] = device.load_together([near, plane_series_program::<T>(kernel, derivatives, p)])?;
                (near, Some(series))
            }
        };
        let shape = (width(kernel, derivatives), single::<T, N>());
        let work = Workspace::new(kernel, shape, order, pyramid, lists)?;
        if series.is_none() && work.far() != [false; 2] {
            let reason = "the lists have edges of series".to_string();
            return Err(Error::Unsupported { operation: "a direct sum", reason });
        }
        let ends = Ends::of_rows(&device, columns, kernel.strengths(), &row)?;
        let columns = columns.to_vec();
        Ok(PlanePlan {
            kernel,
            derivatives,
            values: row.len(),
            order,
            series,
            near,
            columns,
            work,
            ends,
            replay: Replay::None,
            of: PhantomData,
        })
    }

    /// Replaces the points. On an error the plan is as before.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_points(&mut self, pyramid: DevicePyramid, lists: PlaneLists) -> Result<(), Error> {
        let shape = (width(self.kernel, self.derivatives), single::<T, N>());
        self.work = Workspace::new(self.kernel, shape, self.order, pyramid, lists)?;
        self.replay = Replay::None;
        self.ends.forget_room();
        Ok(())
    }

    /// The columns of each output among the values of a target.
    pub fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    /// Values of a target.
    pub fn values(&self) -> usize {
        self.values
    }
    /// The pyramid.
    pub fn pyramid(&self) -> &DevicePyramid {
        &self.work.pyramid
    }
    /// The edge lists.
    pub fn lists(&self) -> &PlaneLists {
        &self.work.lists
    }
    /// Bytes of device memory held.
    pub fn bytes(&self) -> u64 {
        self.work.bytes() + self.ends.bytes()
    }

    /// One evaluation: `strengths` (N×strengths) → values (M×values), both in the caller's order. Also returns the
    /// seconds of each stage on the device.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Cancelled`], and errors of the device.
    pub fn apply(&mut self, strengths: &[f64], observer: Observer) -> Result<(Vec<f64>, StageSeconds), Error> {
        let mut out = vec![0.0; self.work.pyramid.counts()[1] * self.values()];
        let seconds = self.apply_into(strengths, &mut out, observer)?;
        Ok((out, seconds))
    }
    /// [`apply`](PlanePlan::apply) into a slice, which is overwritten.
    ///
    /// # Errors
    /// As [`apply`](PlanePlan::apply).
    pub fn apply_into(
        &mut self,
        strengths: &[f64],
        out: &mut [f64],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        evaluation::apply(self, Numbers::F64(strengths), &mut [NumbersMut::F64(out)], true, observer)
    }
    /// As [`Plan::apply_numbers`](crate::Plan::apply_numbers).
    ///
    /// # Errors
    /// As there.
    pub fn apply_numbers(
        &mut self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        evaluation::apply(self, strengths, values, false, observer)
    }
    /// As [`Plan::enqueue`](crate::Plan::enqueue).
    ///
    /// # Errors
    /// As there.
    pub fn enqueue(
        &mut self,
        strengths: &DeviceArray,
        values: &[DeviceArray],
        stream: &DeviceStream,
    ) -> Result<(), Error> {
        evaluation::enqueue(self, strengths, values, stream)
    }
    /// Waits for all enqueued evaluations.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for numbers in one of them, and errors of the device.
    pub fn synchronize(&mut self) -> Result<(), Error> {
        self.ends.check(true)
    }

    /// Multipoles and locals of the last evaluation, each coefficient by coefficient: the real and the imaginary part of
    /// coefficient j of box b are numbers 2(j·boxes + b) and the next. Empty without edges that need them.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn coefficients(&self) -> Result<[Vec<T>; 2], Error> {
        let device = &self.work.pyramid.device;
        Ok([device.download(&self.work.multipoles, "multipoles")?, device.download(&self.work.locals, "locals")?])
    }

    /// Enqueues a kernel of the series with one warp for each of `n` rows. The first argument is the pyramid.
    unsafe fn warps(&self, entry: &'static str, n: usize, args: &[Arg]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(entry, blocks(n, WARPS)?, args) }
    }
    /// Enqueues a kernel of the series with one thread for each of `n` boxes. The first argument is the pyramid.
    unsafe fn threads(&self, entry: &'static str, n: usize, args: &[Arg]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(entry, blocks(n, WARP_BLOCK as usize)?, args) }
    }
    unsafe fn launch(&self, entry: &'static str, grid: u32, args: &[Arg]) -> Result<(), Error> {
        let Some(series) = &self.series else { return Ok(()) };
        let args: Vec<Arg> = [(&self.work.described).into()].into_iter().chain(args.iter().copied()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.work.pyramid.device.launch(series, entry, (grid, 1), WARP_BLOCK, &args) }
    }

    fn scatter(&mut self, arrays: &Arrays) -> Result<(), Error> {
        let device = self.device().clone();
        let w = &mut self.work;
        let [_, down] = w.far();
        if !down {
            device.clear(&mut w.values)?;
        }
        let (n, width) = (w.pyramid.sources.n, self.kernel.strengths());
        let rows = Rows { from: (&w.pyramid.sources.order).into(), to: Arg::NULL, n, width };
        let unit = if single::<T, N>() {
            device.clear(&mut w.largest)?;
            self.ends.largest(arrays, [n, width, width], &w.factors, &w.largest, false)?;
            Some(&w.largest)
        } else {
            None
        };
        self.ends.scatter(arrays.given(), rows, width, unit, (&w.strengths).into(), true)?;
        if self.kernel.real_member(0).is_none() {
            return Ok(());
        }
        device.clear(&mut w.imaginary)?;
        let args = [(&w.strengths).into(), (n as u64).into(), (&w.imaginary).into()];
        let grid = blocks(n, BLOCK as usize)?.min(MAX_WALKING_BLOCKS);
        // SAFETY: arguments as in plane_p2p.cu; there are n strengths.
        unsafe { device.launch(&self.near, "plane_imaginary", (grid, 1), BLOCK, &args) }
    }

    /// Points and strengths of the sources.
    fn charged(&self) -> [Arg; 3] {
        let sources = &self.work.pyramid.sources;
        [sources.axis(0), sources.axis(1), (&self.work.strengths).into()]
    }

    fn p2m(&self) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[0] {
            return Ok(());
        }
        let [x, y, strengths] = self.charged();
        // SAFETY: arguments as in plane_series.cu; there is a multipole for each box.
        unsafe { self.warps("plane_p2m", w.pyramid.leaves(), &[x, y, strengths, (&w.multipoles).into()]) }
    }

    /// Into the boxes of `level`, unless no edge needs their multipoles.
    fn m2m(&self, level: usize) -> Result<(), Error> {
        let w = &self.work;
        if w.lists.m2l.is_empty() || level < w.lists.first_level || level >= w.pyramid.depth {
            return Ok(());
        }
        let children = level_start(level + 2) - level_start(level + 1);
        // SAFETY: as above.
        unsafe { self.threads("plane_m2m", children, &[(level as u32).into(), (&w.multipoles).into()]) }
    }

    fn m2l(&self) -> Result<(), Error> {
        let (w, m2l) = (&self.work, &self.work.lists.m2l);
        if !w.far()[1] {
            return Ok(());
        }
        let args = [(&m2l.starts).into(), (&m2l.sources).into(), (&w.multipoles).into(), (&w.locals).into()];
        // SAFETY: as above; there is a local for each box.
        unsafe { self.warps("plane_m2l", w.pyramid.len(), &args) }
    }

    fn p2l(&self) -> Result<(), Error> {
        let (w, p2l) = (&self.work, &self.work.lists.p2l);
        if p2l.is_empty() {
            return Ok(());
        }
        let [x, y, strengths] = self.charged();
        let edges = [w.lists.of_leaves(p2l), (&p2l.sources).into()];
        let args = [edges[0], edges[1], x, y, strengths, (&w.locals).into()];
        // SAFETY: as above.
        unsafe { self.warps("plane_p2l", w.pyramid.leaves(), &args) }
    }

    fn l2l(&self, level: usize) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[1] || level <= w.lists.first_level {
            return Ok(());
        }
        let boxes = level_start(level + 1) - level_start(level);
        // SAFETY: as above.
        unsafe { self.threads("plane_l2l", boxes, &[(level as u32).into(), (&w.locals).into()]) }
    }

    fn l2p(&self) -> Result<(), Error> {
        let w = &self.work;
        if !w.far()[1] {
            return Ok(());
        }
        let targets = &w.pyramid.targets;
        let args = [targets.axis(0), targets.axis(1), (&w.locals).into(), (&w.values).into()];
        // SAFETY: as above; there is a row of values for each target.
        unsafe { self.warps("plane_l2p", w.pyramid.leaves(), &args) }
    }

    fn m2p(&self) -> Result<(), Error> {
        let (w, m2p) = (&self.work, &self.work.lists.m2p);
        if m2p.is_empty() {
            return Ok(());
        }
        let targets = &w.pyramid.targets;
        let args = [
            w.lists.of_leaves(m2p),
            (&m2p.sources).into(),
            targets.axis(0),
            targets.axis(1),
            (&w.multipoles).into(),
            (&w.values).into(),
        ];
        // SAFETY: as above.
        unsafe { self.warps("plane_m2p", w.pyramid.leaves(), &args) }
    }

    fn p2p(&self) -> Result<(), Error> {
        let (w, p2p) = (&self.work, &self.work.lists.p2p);
        let (pyramid, leaves) = (&w.pyramid, w.pyramid.leaves());
        let [x, y, strengths] = self.charged();
        let args = [
            (&w.described).into(),
            (&w.imaginary).into(),
            w.lists.of_leaves(p2p),
            (&p2p.sources).into(),
            x,
            y,
            strengths,
            pyramid.targets.axis(0),
            pyramid.targets.axis(1),
            (&w.values).into(),
        ];
        let group = Groups::plane::<N>(width(self.kernel, self.derivatives)).targets();
        let parts = blocks_of_a_leaf(pyramid.targets.n, leaves, group);
        let (grid, block) = ((blocks(leaves, 1)?, parts), LEAF_THREADS as u32);
        // SAFETY: arguments as in plane_p2p.cu; there is a row of values for each target.
        unsafe { pyramid.device.launch(&self.near, "plane_p2p", grid, block, &args) }
    }

    fn gather(&self, arrays: &Arrays) -> Result<(), Error> {
        let (w, targets) = (&self.work, &self.work.pyramid.targets);
        let width = width(self.kernel, self.derivatives);
        let rows = Rows { from: Arg::NULL, to: (&targets.order).into(), n: targets.n, width };
        let scale = (single::<T, N>().then_some(&w.largest), self.kernel.scale());
        self.ends.gather(arrays, rows, scale, [0u32.into(), (&w.values).into()])
    }
}

impl<T: DeviceScalar, N: Real> Evaluation for PlanePlan<T, N> {
    fn device(&self) -> &Device {
        &self.work.pyramid.device
    }
    fn counts(&self) -> [usize; 2] {
        self.work.pyramid.counts()
    }
    fn ends(&mut self) -> &mut Ends {
        &mut self.ends
    }
    fn run(&mut self, arrays: &Arrays, observer: Observer, timed: bool) -> Result<StageSeconds, Error> {
        let mode = if timed { Mode::Timed } else { Mode::Plain };
        let mut run = Run { plan: self, arrays, mode, marks: Vec::new() };
        evaluate(&mut run, &(), observer)?;
        run.seconds()
    }
}

/// One evaluation.
struct Run<'a, T: DeviceScalar, N: Real> {
    plan: &'a mut PlanePlan<T, N>,
    arrays: &'a Arrays,
    mode: Mode,
    marks: Vec<(Stage, CudaEvent, CudaEvent)>,
}

impl<T: DeviceScalar, N: Real> Run<'_, T, N> {
    fn seconds(&self) -> Result<StageSeconds, Error> {
        let mut seconds = StageSeconds::default();
        for (stage, from, to) in &self.marks {
            seconds[*stage as usize] += self.plan.device().seconds(from, to)?;
        }
        Ok(seconds)
    }
    fn timed(
        &mut self,
        stage: Stage,
        work: impl FnOnce(&mut PlanePlan<T, N>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.mode != Mode::Timed {
            return work(self.plan);
        }
        let from = self.plan.device().mark()?;
        work(self.plan)?;
        self.marks.push((stage, from, self.plan.device().mark()?));
        Ok(())
    }
}

impl<T: DeviceScalar, N: Real> Stages for Run<'_, T, N> {
    /// Empty: the plan holds the lists.
    type Lists = ();

    fn levels(&self) -> usize {
        self.plan.pyramid().depth + 1
    }
    fn scatter(&mut self) -> Result<(), Error> {
        let arrays = self.arrays;
        self.timed(Stage::Scatter, |p| p.scatter(arrays))
    }
    fn p2m(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2m, |p| p.p2m())
    }
    fn m2m(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::M2m, |p| p.m2m(level))
    }
    fn m2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2l, |p| p.m2l())
    }
    fn p2l(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2l, |p| p.p2l())
    }
    fn l2l(&mut self, _: &(), level: usize) -> Result<(), Error> {
        self.timed(Stage::L2l, |p| p.l2l(level))
    }
    fn l2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::L2p, |p| p.l2p())
    }
    fn m2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::M2p, |p| p.m2p())
    }
    fn p2p(&mut self, _: &()) -> Result<(), Error> {
        self.timed(Stage::P2p, |p| p.p2p())
    }
    fn gather(&mut self) -> Result<(), Error> {
        let arrays = self.arrays;
        self.timed(Stage::Gather, |p| p.gather(arrays))
    }
}

/// Number of blocks per leaf: enough for leaves of twice the mean population. In larger leaves a block has several
/// groups.
fn blocks_of_a_leaf(targets: usize, leaves: usize, group: usize) -> u32 {
    let mean = targets as f64 / leaves.max(1) as f64;
    (2.0 * mean / group as f64).ceil().clamp(1.0, 1024.0) as u32
}
