//! A plan behind a trait without type parameters.

use crate::array::{DeviceArray, DeviceStream};
use crate::device::Device;
use crate::equivalent::DeviceScalar;
use crate::placed::{Counts, Ground, Placed, PlanSeconds, Prepared};
use crate::plan::{Carrier, Plan, Unplaced};
use crate::settings::{Expansion, Settings};
use fmm_traits::{
    Error, Kernels, Lists, Numbers, NumbersMut, Observer, OutputColumns, Precision, Real, Solver, StageSeconds, Tree,
};
use fmm_tree::BuildReport;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A [`Solver`] on a device that takes and gives arrays of either precision, on the device or on the host: one array
/// per output, in the order of [`columns`](Solver::columns). Calls wait for each other, because there is one
/// workspace.
pub trait DeviceSums: Solver {
    /// [`Plan::apply_numbers`].
    ///
    /// # Errors
    /// As there.
    fn apply_numbers(
        &self,
        strengths: Numbers,
        values: &mut [NumbersMut],
        observer: Observer,
    ) -> Result<StageSeconds, Error>;
    /// [`Plan::enqueue`], with what it says of several ranks.
    ///
    /// # Errors
    /// As there.
    fn enqueue(&self, strengths: &DeviceArray, values: &[DeviceArray], stream: &DeviceStream) -> Result<(), Error>;
    /// [`Plan::synchronize`].
    ///
    /// # Errors
    /// As there.
    fn synchronize(&self) -> Result<(), Error>;
    /// Copies of the sources, and of the targets if they are separate points (else empty), in the caller's order. Of a
    /// tree that ranks share, those of the caller of this rank; all ranks call it together.
    ///
    /// # Errors
    /// Errors of the device.
    fn points(&self) -> Result<[Vec<f64>; 2], Error>;
}

/// [`DeviceSums`] of a fast method, whose points can be exchanged.
pub trait DeviceSolver: DeviceSums {
    /// Makes everything for new points. Sums are those of the present points until a [`commit`](DeviceSolver::commit).
    /// Operators are kept. Returns the seconds that the new points have taken.
    ///
    /// # Errors
    /// What the device reports.
    fn make(&mut self, points: Placed) -> Result<PlanSeconds, Error>;
    /// Replaces the points by those that were [made](DeviceSolver::make) last, if they still wait for it.
    fn commit(&mut self);
    /// Drops new points that wait for a [`commit`](DeviceSolver::commit).
    fn forget(&mut self);
    /// [`make`](DeviceSolver::make) and [`commit`](DeviceSolver::commit). On an error the plan is as before. Ranks of
    /// one tree take the two steps themselves, and agree between them.
    ///
    /// # Errors
    /// What the device reports.
    fn set_points(&mut self, points: Placed) -> Result<(), Error> {
        self.make(points)?;
        self.commit();
        Ok(())
    }
    /// The numbers of the sources of this rank's share, in tree order, if the sources of all callers are counted in the
    /// order of ranks. On one rank: of all sources.
    ///
    /// # Errors
    /// Errors of the device.
    fn owned(&self) -> Result<Vec<u32>, Error>;
    /// Moves rows of `width` numbers, one for each source of the caller, in the order of `stream`, to the ranks that
    /// own the sources. Returns the rows of the sources that this rank owns, in tree order. If the tree is not cut into
    /// shares, returns `rows`. All ranks call it together. Waits.
    ///
    /// # Errors
    /// [`Error::Array`] for an array of another device, [`Error::Shape`] for one of another length, and errors of the device.
    fn adopt(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error>;
    /// The report of the tree.
    fn report(&self) -> &BuildReport;
    /// Seconds of planning.
    fn seconds(&self) -> PlanSeconds;
    /// Boxes, edges and pairs.
    fn counts(&self) -> &Counts;
    /// Number of pieces in which the targets are taken, one after the other.
    fn pieces(&self) -> usize;
    /// A copy of tree and lists on the host.
    ///
    /// # Errors
    /// What the device reports.
    fn download(&self) -> Result<(Tree, Lists), Error>;
}

/// Makes a plan on the device in `precision`.
///
/// # Errors
/// As [`Plan::new`].
pub fn solver(
    kernels: &Kernels,
    settings: &Settings,
    precision: Precision,
    points: Placed,
) -> Result<Box<dyn DeviceSolver>, Error> {
    method(kernels, settings, precision, &points.ground())?.place(points)
}

/// A method that is ready for points: its programs are loaded, and its operators are made for the smallest boxes of a
/// tree. They serve all boxes if the kernel is homogeneous.
pub trait DeviceMethod: Send {
    /// A plan for points in their tree.
    ///
    /// # Errors
    /// As [`Plan::new`].
    fn place(self: Box<Self>, points: Placed) -> Result<Box<dyn DeviceSolver>, Error>;
}

/// Makes a method for points in a tree, which need not have lists yet.
///
/// # Errors
/// As [`Plan::new`].
pub fn method(
    kernels: &Kernels,
    settings: &Settings,
    precision: Precision,
    ground: &Ground,
) -> Result<Box<dyn DeviceMethod>, Error> {
    match precision {
        Precision::F32 => made::<f32, f32>(kernels, settings, ground),
        Precision::F64 => made::<f64, f64>(kernels, settings, ground),
    }
}

fn made<T: DeviceScalar, N: Real>(
    kernels: &Kernels,
    settings: &Settings,
    ground: &Ground,
) -> Result<Box<dyn DeviceMethod>, Error> {
    let start = Instant::now();
    let carrier = match settings.expansion {
        Expansion::Equivalent(fill) => Carrier::Equivalent(fill, settings.cache.clone()),
        Expansion::Spherical(how) => Carrier::Spherical(how),
    };
    let plan = Unplaced::<T, N>::new(&ground.device, kernels, settings.order, carrier, ground.side)?;
    Ok(Box::new(Made { settings: settings.clone(), plan, seconds: start.elapsed().as_secs_f64() }))
}

/// The only implementation of [`DeviceMethod`].
struct Made<T: DeviceScalar, N: Real> {
    settings: Settings,
    plan: Unplaced<T, N>,
    /// Seconds of programs and operators.
    seconds: f64,
}

impl<T: DeviceScalar, N: Real> DeviceMethod for Made<T, N> {
    fn place(self: Box<Self>, points: Placed) -> Result<Box<dyn DeviceSolver>, Error> {
        let Made { settings, plan, seconds: ahead } = *self;
        let prepared = Prepared::new(&settings, points)?;
        let start = Instant::now();
        let device = prepared.tree.device.clone();
        let Prepared { tree, lists, report, mut seconds, mut counts, near_pairs } = prepared;
        let mut plan = plan.place(tree, lists)?;
        plan.set_beside(settings.beside);
        counts.near_pairs = device.download(&near_pairs, "pairs")?[0];
        seconds.operators = ahead + start.elapsed().as_secs_f64();
        let columns = plan.columns().to_vec();
        let plan = Mutex::new(plan);
        Ok(Box::new(Planned { device, settings, plan, columns, report, seconds, counts, ready: None }))
    }
}

/// The only implementation of [`DeviceSolver`].
struct Planned<T: DeviceScalar, N: Real> {
    device: Device,
    settings: Settings,
    plan: Mutex<Plan<T, N>>,
    columns: Vec<OutputColumns>,
    report: BuildReport,
    seconds: PlanSeconds,
    counts: Counts,
    /// Report, times and sizes of new points that wait for a commit.
    ready: Option<(BuildReport, PlanSeconds, Counts)>,
}

impl<T: DeviceScalar, N: Real> Planned<T, N> {
    /// The locked plan. A poisoned lock is fine: whatever an interrupted run has left, the next run overwrites.
    fn plan(&self) -> MutexGuard<'_, Plan<T, N>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeviceScalar, N: Real> Solver for Planned<T, N> {
    fn values(&self) -> usize {
        self.plan().values()
    }
    fn columns(&self) -> &[OutputColumns] {
        &self.columns
    }
    fn apply(&self, strengths: &[f64], out: &mut [f64], observer: Observer) -> Result<StageSeconds, Error> {
        self.plan().apply_into(strengths, out, observer)
    }
    fn apply_batch(
        &self,
        strengths: &[&[f64]],
        out: &mut [&mut [f64]],
        observer: Observer,
    ) -> Result<StageSeconds, Error> {
        self.plan().apply_batch(strengths, out, observer)
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
        let plan = self.plan();
        let (tree, device) = (plan.tree(), &self.device);
        let separate = !Arc::ptr_eq(&tree.sources, &tree.targets);
        if let Some(ranks) = tree.ranks().filter(|_| tree.share().is_some()) {
            return ranks.points_of_callers([&tree.sources, &tree.targets], separate);
        }
        Ok([tree.sources.rows(device)?, if separate { tree.targets.rows(device)? } else { Vec::new() }])
    }
}

impl<T: DeviceScalar, N: Real> DeviceSolver for Planned<T, N> {
    fn make(&mut self, points: Placed) -> Result<PlanSeconds, Error> {
        self.forget();
        let Prepared { tree, lists, report, mut seconds, mut counts, near_pairs } =
            Prepared::new(&self.settings, points)?;
        let start = Instant::now();
        let plan = self.plan.get_mut().unwrap_or_else(PoisonError::into_inner);
        counts.near_pairs = self.device.download(&near_pairs, "pairs")?[0];
        plan.make(tree, lists)?;
        seconds.operators = start.elapsed().as_secs_f64();
        self.ready = Some((report, seconds, counts));
        Ok(seconds)
    }
    fn commit(&mut self) {
        if let Some((report, seconds, counts)) = self.ready.take() {
            self.plan.get_mut().unwrap_or_else(PoisonError::into_inner).commit();
            (self.report, self.seconds, self.counts) = (report, seconds, counts);
        }
    }
    fn forget(&mut self) {
        self.ready = None;
        self.plan.get_mut().unwrap_or_else(PoisonError::into_inner).forget();
    }
    fn owned(&self) -> Result<Vec<u32>, Error> {
        let plan = self.plan();
        let tree = plan.tree();
        let range = tree.share().map_or(0..tree.sources.len(), |share| share.sources.clone());
        self.device.download_range(&tree.sources.order, range, "order of points")
    }
    fn adopt(&self, rows: &DeviceArray, width: usize, stream: &DeviceStream) -> Result<DeviceArray, Error> {
        rows.is_on("rows", &self.device)?;
        let plan = self.plan();
        let (tree, handle) = (plan.tree(), stream.on(&self.device)?);
        let Some((ranks, share)) = tree.ranks().zip(tree.share()) else { return Ok(rows.clone()) };
        let (own, expected) = (share.sources.clone(), plan.base.given()[0] * width);
        if rows.len() != expected {
            let why = "sources of the caller × numbers of each".to_string();
            return Err(Error::Shape { array: "rows", found: rows.len(), expected, why });
        }
        let to = DeviceArray::room(&self.device, own.len() * width, rows.precision())?;
        let given = (rows.address(), rows.precision(), width);
        // SAFETY: the stream belongs to this device, as checked, and lives by the promise of its type.
        unsafe { self.device.within(handle, || ranks.adopt(given, tree.sources.len(), own, to.address()))? };
        Ok(to)
    }
    fn report(&self) -> &BuildReport {
        &self.report
    }
    fn seconds(&self) -> PlanSeconds {
        self.seconds
    }
    fn counts(&self) -> &Counts {
        &self.counts
    }
    fn pieces(&self) -> usize {
        self.plan().pieces()
    }
    fn download(&self) -> Result<(Tree, Lists), Error> {
        let plan = self.plan();
        Ok((plan.tree().download()?, plan.lists().download()?))
    }
}
