//! A plan in the plane: pyramid, lists, programs and workspaces.

use super::connect::PlaneLists;
use super::programs::{plane_p2p_program, plane_series_program};
use super::pyramid::{DevicePyramid, LEAST_SCALE};
use super::stages::Run;
use crate::array::{DeviceArray, DeviceStream};
use crate::device::{Buffer, Device, Functions};
use crate::ends::{Arrays, Ends, MINUS};
use crate::equivalent::DeviceScalar;
use crate::evaluation::{self, Evaluation};
use crate::plan::Replay;
use crate::run::Mode;
use adaptive2d::PlaneKernel;
use adaptive2d::laurent::{self, Jet};
use fmm_traits::{Error, Numbers, NumbersMut, Observer, OutputColumns, Real, StageSeconds, evaluate};
use std::marker::PhantomData;

/// Smallest scale of a series in f32, in radii of the root.
const LEAST_SCALE_F32: f64 = 1.0 / (1u64 << 60) as f64;

/// A summation planned on the device: series in `T`, near field in `N`.
#[derive(Debug)]
pub struct PlanePlan<T: DeviceScalar, N: Real> {
    pub(super) kernel: PlaneKernel,
    /// Order of the derivatives that values carry.
    pub(super) derivatives: usize,
    /// Values of a target, as the facade sees them.
    pub(super) values: usize,
    /// Order of the series; `None` for direct sums.
    pub(super) order: Option<usize>,
    /// Programs of the series; `None` for direct sums.
    pub(super) series: Option<Functions>,
    pub(super) near: Functions,
    pub(super) columns: Vec<OutputColumns>,
    pub(super) work: Workspace<T>,
    pub(super) ends: Ends,
    pub(super) replay: Replay,
    pub(super) of: PhantomData<N>,
}

/// What depends on the points.
#[derive(Debug)]
pub(super) struct Workspace<T> {
    pub(super) pyramid: DevicePyramid,
    pub(super) lists: PlaneLists,
    /// The pyramid as the kernels see it.
    pub(super) described: Buffer<u64>,
    pub(super) strengths: Buffer<f64>,
    pub(super) values: Buffer<f64>,
    pub(super) multipoles: Buffer<T>,
    pub(super) locals: Buffer<T>,
    /// Whether a strength has an imaginary part.
    pub(super) imaginary: Buffer<u32>,
    /// Largest magnitude of a strength, as bits.
    pub(super) largest: Buffer<u64>,
    /// For each strength of a source, what makes it comparable to a value: 1 for charges, 1/length for poles.
    pub(super) factors: Buffer<f64>,
}

/// Number of values of a target on the device: f (of logarithms without Im f), f′ and f″.
pub(super) fn width(kernel: PlaneKernel, derivatives: usize) -> usize {
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
pub(super) fn single<T: Real, N: Real>() -> bool {
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
    pub(super) fn far(&self) -> [bool; 2] {
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
        let mut run = Run::new(self, arrays, mode);
        evaluate(&mut run, &(), observer)?;
        run.seconds()
    }
}
