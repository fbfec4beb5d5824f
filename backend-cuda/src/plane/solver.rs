//! A plan in the plane behind a trait without type parameters.

use super::connect::{PlaneLists, plane_connect};
use super::plan::PlanePlan;
use super::pyramid::{DevicePyramid, plane_build};
use crate::array::{DeviceArray, DeviceStream};
use crate::cut::Cut;
use crate::device::Device;
use crate::direct::{DeviceTargets, Direct, Pairs};
use crate::equivalent::DeviceScalar;
use crate::placed::PlanSeconds;
use crate::points::CallerPoints;
use crate::solver::DeviceSums;
use crate::strengths::StrengthSets;
use adaptive2d::{ConnectOptions, PlaneKernel, Pyramid, PyramidOptions};
use fmm_traits::{Error, Lists, Numbers, NumbersMut, Observer, OutputColumns, Precision, Real, Solver, StageSeconds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Settings of a plan in the plane.
#[derive(Clone, Debug)]
pub struct PlaneSettings {
    /// The kernel.
    pub kernel: PlaneKernel,
    /// The requested outputs, with their columns among the values of a target.
    pub columns: Vec<OutputColumns>,
    /// Order of the derivatives that values carry, at most 2.
    pub derivatives: usize,
    /// Order p of the series; `None`: direct sums of all pairs.
    pub order: Option<usize>,
    /// Precision of the series.
    pub precision: Precision,
    /// Precision of the near field.
    pub near: Precision,
}

/// Sizes of pyramid and lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneCounts {
    /// Levels of the pyramid.
    pub levels: usize,
    /// Boxes.
    pub boxes: usize,
    /// Numbers of M2L, P2L, M2P and P2P edges.
    pub edges: [usize; 4],
    /// Pairs of points summed directly.
    pub near_pairs: u64,
}

/// Points in their pyramid on a device, with their lists.
#[derive(Debug)]
pub struct PlanePlaced {
    pyramid: DevicePyramid,
    lists: PlaneLists,
    seconds: PlanSeconds,
}

impl PlanePlaced {
    /// Builds pyramid and lists of points. `targets` is `None` if they are the sources.
    ///
    /// # Errors
    /// As [`plane_build`] and [`plane_connect`].
    pub fn new(
        device: &Device,
        sources: &CallerPoints,
        targets: Option<&CallerPoints>,
        options: &PyramidOptions,
        connection: &ConnectOptions,
    ) -> Result<PlanePlaced, Error> {
        let start = Instant::now();
        device.load_programs_of_pyramids()?;
        let pyramid = plane_build(device, sources, targets, options)?;
        let tree = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let lists = plane_connect(&pyramid, connection)?;
        let seconds = PlanSeconds { tree, lists: start.elapsed().as_secs_f64(), operators: 0.0 };
        Ok(PlanePlaced { pyramid, lists, seconds })
    }
    /// Copies pyramid and lists of the host.
    ///
    /// # Errors
    /// As [`DevicePyramid::upload`] and [`PlaneLists::upload`].
    pub fn upload(device: &Device, pyramid: &Pyramid, lists: &Lists) -> Result<PlanePlaced, Error> {
        let lists = PlaneLists::upload(device, pyramid, lists)?;
        Ok(PlanePlaced { pyramid: DevicePyramid::upload(device, pyramid)?, lists, seconds: PlanSeconds::default() })
    }
    /// Sizes of pyramid and lists.
    pub fn counts(&self) -> PlaneCounts {
        PlaneCounts {
            levels: self.pyramid.depth() + 1,
            boxes: self.pyramid.len(),
            edges: self.lists.edges(),
            near_pairs: self.lists.near_pairs(),
        }
    }
    /// Seconds of planning.
    pub fn seconds(&self) -> PlanSeconds {
        self.seconds
    }
    /// Radius of the root.
    pub fn radius(&self) -> f64 {
        self.pyramid.radius()
    }
    /// A copy of the boxes on the host, without points.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn boxes(&self) -> Result<Pyramid, Error> {
        self.pyramid.download_boxes()
    }
    /// Access to pyramid and lists, for a probe.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cut(&self) -> Result<Cut<'_>, Error> {
        self.lists.cut(&self.pyramid)
    }
}

/// Direct sums in f64 at separate points with three coordinates, z = 0, for each set of strengths. Values of a target
/// are those of [`PlaneKernel::values`].
///
/// # Errors
/// Errors of the device.
pub fn plane_sums(
    device: &Device,
    kernel: PlaneKernel,
    derivatives: usize,
    (sources, targets): (CallerPoints, CallerPoints),
    strengths: &StrengthSets,
) -> Result<Vec<Vec<f64>>, Error> {
    let (member, params) = (kernel.member(derivatives), kernel.parameters());
    let pairs = Pairs { kernel: &member, params, scale: 1.0, columns: &[], include_self: false };
    let targets = DeviceTargets::Points(Arc::new(targets));
    let mut sum = Direct::<f64>::of_pairs(device, pairs, Arc::new(sources), targets, None)?;
    let rows = |values: Vec<f64>| {
        let row = |row: &[f64]| kernel.numbers(kernel.jet(row)).into_iter().take(kernel.values(derivatives));
        values.chunks_exact(member.values).flat_map(row).collect()
    };
    Ok(sum.sums(strengths)?.into_iter().map(rows).collect())
}

fn copies(pyramid: &DevicePyramid, lists: &PlaneLists) -> Result<(Pyramid, Lists), Error> {
    let copy = pyramid.download()?;
    let lists = lists.download(&pyramid.device, &copy)?;
    Ok((copy, lists))
}

/// [`DeviceSums`] in the plane, whose points can be exchanged.
pub trait PlaneSolver: DeviceSums {
    /// Replaces the points. Programs are kept, and memory is reused. On an error the plan is as before.
    ///
    /// # Errors
    /// Errors of the device.
    fn set_points(&mut self, points: PlanePlaced) -> Result<(), Error>;
    /// A copy of pyramid and lists on the host.
    ///
    /// # Errors
    /// Errors of the device.
    fn download(&self) -> Result<(Pyramid, Lists), Error>;
}

/// Makes a plan in the plane on the device.
///
/// # Errors
/// As [`PlanePlan::new`].
pub fn plane_solver(settings: &PlaneSettings, points: PlanePlaced) -> Result<Box<dyn PlaneSolver>, Error> {
    match (settings.precision, settings.near) {
        (Precision::F64, Precision::F64) => planned::<f64, f64>(settings, points),
        (Precision::F64, Precision::F32) => planned::<f64, f32>(settings, points),
        (Precision::F32, Precision::F32) => planned::<f32, f32>(settings, points),
        (Precision::F32, Precision::F64) => planned::<f32, f64>(settings, points),
    }
}

fn planned<T: DeviceScalar, N: Real>(
    settings: &PlaneSettings,
    points: PlanePlaced,
) -> Result<Box<dyn PlaneSolver>, Error> {
    let PlaneSettings { kernel, columns, derivatives, order, .. } = settings;
    let plan = PlanePlan::<T, N>::new(*kernel, columns, *derivatives, *order, points.pyramid, points.lists)?;
    Ok(Box::new(Planned { settings: settings.clone(), plan: Mutex::new(plan) }))
}

/// The only implementation of [`PlaneSolver`].
struct Planned<T: DeviceScalar, N: Real> {
    settings: PlaneSettings,
    plan: Mutex<PlanePlan<T, N>>,
}

impl<T: DeviceScalar, N: Real> Planned<T, N> {
    /// The locked plan. A poisoned lock is fine: whatever an interrupted run has left, the next run overwrites.
    fn plan(&self) -> MutexGuard<'_, PlanePlan<T, N>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeviceScalar, N: Real> Solver for Planned<T, N> {
    fn values(&self) -> usize {
        self.plan().values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.settings.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        self.plan().apply_into(strengths, out, observer)
    }
    fn bytes(&self) -> u64 {
        self.plan().bytes()
    }
}

impl<T: DeviceScalar, N: Real> DeviceSums for Planned<T, N> {
    fn apply_numbers(
        &self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        self.plan().apply_numbers(strengths, values, observer)
    }
    fn enqueue(&self, strengths: &DeviceArray, values: &[DeviceArray], stream: &DeviceStream) -> Result<(), Error> {
        self.plan().enqueue(strengths, values, stream)
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.plan().synchronize()
    }
    fn points(&self) -> Result<[Vec<f64>; 2], Error> {
        self.plan().pyramid().points()
    }
}

impl<T: DeviceScalar, N: Real> PlaneSolver for Planned<T, N> {
    fn set_points(&mut self, points: PlanePlaced) -> Result<(), Error> {
        let plan = self.plan.get_mut().unwrap_or_else(PoisonError::into_inner);
        plan.set_points(points.pyramid, points.lists)
    }
    fn download(&self) -> Result<(Pyramid, Lists), Error> {
        let plan = self.plan();
        copies(plan.pyramid(), plan.lists())
    }
}
