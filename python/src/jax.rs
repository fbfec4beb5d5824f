//! Sums that compiled functions of XLA call: plans and requests that they find by a number, and the handlers.

use crate::device::stream_of;
use crate::interrupt::Watch;
use crate::kernel::Kernel;
use crate::plan::{self, Batch, Plan};
use crate::xla::{self, Buffer, Call, Code, Handler, Refusal, RuntimeError, refuse};
use fmm::{Cuda, DeviceOutput, DeviceStream, Error, Fmm, Outputs, Precision, RawArray, Targets};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What the results of a call are, in this order.
const RESULTS: [Outputs; 2] = [Outputs::POTENTIAL, Outputs::GRADIENT];

/// The sums of this process that have a number.
static ALL: LazyLock<Mutex<HashMap<i64, Arc<Sums>>>> = LazyLock::new(Mutex::default);
/// Numbers are not used twice, so that a function that outlives its sums finds none.
static NEXT: AtomicI64 = AtomicI64::new(1);

enum Sums {
    /// A plan of the caller: a call brings strengths.
    Plan(Py<Plan>),
    /// A request: a call brings strengths, sources, and perhaps targets.
    Request(Box<Request>),
}

/// A request, and the last plan for each kind of call, whose points move in the next call.
struct Request {
    fmm: Fmm,
    kept: Mutex<HashMap<Kind, Kept>>,
}

/// A kind of call: whether sums are transposed, how many results there are, and the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    transposed: bool,
    results: usize,
    device: Option<usize>,
}

struct Kept {
    plan: fmm::Plan,
    /// The points of a plan on the host.
    points: Vec<Vec<f64>>,
}

/// Sums with a number, by which compiled functions find them as long as this object lives.
#[pyclass(frozen, module = "fmm._core")]
pub struct Registered {
    #[pyo3(get)]
    number: i64,
}

#[pymethods]
impl Registered {
    /// The sums of a plan.
    #[staticmethod]
    fn plan(plan: Py<Plan>) -> Self {
        Registered::of(Sums::Plan(plan))
    }

    /// The sums of a kernel with these options, over points that each call brings.
    #[staticmethod]
    fn request(kernel: &Kernel, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let fmm = plan::request(kernel, options, &Watch::default())?;
        Ok(Registered::of(Sums::Request(Box::new(Request { fmm, kept: Mutex::default() }))))
    }
}

impl Registered {
    fn of(sums: Sums) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        locked(&ALL).insert(number, Arc::new(sums));
        Registered { number }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Dropped after the lock is given back: the end of a plan may wait for a GPU.
        let _gone = locked(&ALL).remove(&self.number);
    }
}

/// Drops the plans that requests keep for their next call.
#[pyfunction]
pub fn forget_kept_plans(py: Python<'_>) {
    py.detach(|| {
        let all: Vec<_> = locked(&ALL).values().cloned().collect();
        for sums in all {
            if let Sums::Request(request) = &*sums {
                std::mem::take(&mut *locked(&request.kept));
            }
        }
    });
}

/// The handler of a platform of XLA, as a capsule.
#[pyfunction]
pub fn xla_handler<'py>(py: Python<'py>, platform: &str) -> PyResult<Bound<'py, PyCapsule>> {
    let handler: Handler = match platform {
        "cpu" => of_host,
        "CUDA" => of_device,
        other => return Err(PyValueError::new_err(format!("there are no sums for the platform {other} of XLA"))),
    };
    // SAFETY: a function lives as long as the module, which Python does not unload. XLA wants a capsule without a name.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler as *mut c_void, std::ptr::null(), None);
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?.cast_into_unchecked())
    }
}

/// Sums of arrays on the host.
unsafe extern "C" fn of_host(frame: *mut c_void) -> RuntimeError {
    // SAFETY: XLA calls its handlers with a frame.
    unsafe {
        xla::answered(frame, |call| match call.arguments()?.first().map(|strengths| strengths.precision) {
            Some(Precision::F32) => on_host::<f32>(call),
            _ => on_host::<f64>(call),
        })
    }
}

/// Sums of arrays on a GPU.
unsafe extern "C" fn of_device(frame: *mut c_void) -> RuntimeError {
    // SAFETY: XLA calls its handlers with a frame.
    unsafe { xla::answered(frame, on_device) }
}

/// The sums, strengths, points and results of a call.
struct Parts<'a> {
    sums: Arc<Sums>,
    transposed: bool,
    strengths: Buffer<'a>,
    points: Vec<Buffer<'a>>,
    results: Vec<Buffer<'a>>,
}

impl<'a> Parts<'a> {
    fn of(call: &Call<'a>) -> Result<Self, Refusal> {
        let number = call.number("number")?;
        let Some(sums) = locked(&ALL).get(&number).cloned() else {
            return refuse(Code::NotFound, "the plan of this compiled function is gone: keep it, or compile again");
        };
        let (mut arguments, results) = (call.arguments()?, call.results()?);
        let most = match &*sums {
            Sums::Plan(plan) if plan.get().is_forked() => {
                return refuse(Code::FailedPrecondition, plan::FORKED);
            }
            Sums::Plan(_) => 1,
            Sums::Request(_) => 3,
        };
        if arguments.is_empty() || arguments.len() > most || results.is_empty() || results.len() > RESULTS.len() {
            let text = format!("a call with {} arrays and {} results", arguments.len(), results.len());
            return refuse(Code::InvalidArgument, text);
        }
        let points = arguments.split_off(1);
        Ok(Parts { sums, transposed: call.number("transposed")? != 0, strengths: arguments[0], points, results })
    }

    fn outputs(&self) -> Outputs {
        if self.results.len() == 1 { RESULTS[0] } else { RESULTS[0] | RESULTS[1] }
    }

    /// How many sets of strengths there are for `plan`, whose sums fill the results. (Sums of nothing are not called.)
    fn sets(&self, plan: &fmm::Plan) -> Result<usize, Refusal> {
        let (one, all) = (plan.n_sources() * plan.strengths(), self.strengths.len());
        if one == 0 || all == 0 || all % one != 0 {
            return refuse(Code::InvalidArgument, misfit(&self.strengths, plan));
        }
        for (result, output) in self.results.iter().zip(RESULTS) {
            if result.len() != all / one * plan.n_targets() * plan.components(output) {
                return refuse(Code::InvalidArgument, misfit(result, plan));
            }
        }
        Ok(all / one)
    }

    /// Does `work` with the plan of the call. For a request, `place` moves the plan that is kept, or makes one of the
    /// request that it is given.
    fn with_plan(
        &self,
        device: Option<usize>,
        place: impl FnOnce(&dyn Fn() -> Result<Fmm, Error>, Option<Kept>) -> Result<Kept, Refusal>,
        work: impl FnOnce(&fmm::Plan) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match &*self.sums {
            Sums::Plan(plan) => plan.get().with(|plan| match self.transposed {
                true => work(&*plan.transposed(self.outputs())?),
                false => work(plan),
            }),
            Sums::Request(request) => {
                let kind = Kind { transposed: self.transposed, results: self.results.len(), device };
                let asked = || match self.transposed {
                    true => request.fmm.transposed(self.outputs()),
                    false => Ok(request.fmm.clone().outputs(self.outputs())),
                };
                let mut kept = locked(&request.kept);
                let placed = place(&asked, kept.remove(&kind))?;
                let done = work(&placed.plan);
                kept.insert(kind, placed);
                done
            }
        }
    }
}

fn on_host<T: Batch>(call: &Call<'_>) -> Result<(), Refusal> {
    let parts = Parts::of(call)?;
    let place = |asked: &dyn Fn() -> Result<Fmm, Error>, kept: Option<Kept>| {
        let points = parts.points.iter().map(wide).collect::<Result<Vec<_>, _>>()?;
        let [sources, targets @ ..] = &points[..] else {
            return refuse(Code::InvalidArgument, "a call without points");
        };
        let targets = targets.first().map_or(Targets::Sources, |targets| Targets::Points(targets));
        let plan = match kept {
            Some(kept) if alike(&kept.points, &points) => return Ok(kept),
            Some(mut kept) => {
                kept.plan.set_points(sources, targets)?;
                kept.plan
            }
            None => asked()?.plan(sources, targets)?,
        };
        Ok(Kept { plan, points })
    };
    parts.with_plan(None, place, |plan| {
        let strengths: &[T] = parts.strengths.numbers()?;
        let sets: Vec<&[T]> = strengths.chunks_exact(strengths.len() / parts.sets(plan)?).collect();
        for (k, sums) in T::batch(plan, &sets)?.iter().enumerate() {
            for (result, output) in parts.results.iter().zip(RESULTS) {
                let sums = sums.get(output);
                result.write(k * sums.len(), sums)?;
            }
        }
        Ok(())
    })
}

fn on_device(call: &Call<'_>) -> Result<(), Refusal> {
    let parts = Parts::of(call)?;
    let (cuda, stream) = (Cuda { device: call.device()?, ..Default::default() }, stream_of(call.stream()?));
    let place = |asked: &dyn Fn() -> Result<Fmm, Error>, kept: Option<Kept>| {
        let points = parts.points.iter().map(|points| borrowed(cuda, points, 0, points.len()));
        let points = points.collect::<Result<Vec<_>, _>>()?;
        let [sources, targets @ ..] = &points[..] else {
            return refuse(Code::InvalidArgument, "a call without points");
        };
        let plan = match kept {
            Some(mut kept) => {
                kept.plan.set_points_on_device(sources, targets.first(), &stream)?;
                kept.plan
            }
            None => asked()?.backend(cuda).plan_on_device(sources, targets.first(), &stream)?,
        };
        Ok(Kept { plan, points: Vec::new() })
    };
    parts.with_plan(Some(cuda.device), place, |plan| sums_on_device(&parts, plan, cuda, &stream))
}

fn sums_on_device(parts: &Parts<'_>, plan: &fmm::Plan, cuda: Cuda, stream: &DeviceStream) -> Result<(), Refusal> {
    let sets = parts.sets(plan)?;
    let one = parts.strengths.len() / sets;
    for k in 0..sets {
        let mut out = DeviceOutput::default();
        for (result, output) in parts.results.iter().zip(RESULTS) {
            let len = plan.n_targets() * plan.components(output);
            let array = Some(borrowed(cuda, result, k * len, len)?);
            match output {
                Outputs::GRADIENT => out.gradient = array,
                _ => out.potential = array,
            }
        }
        plan.apply_on_device(&borrowed(cuda, &parts.strengths, k * one, one)?, &out, stream)?;
    }
    Ok(())
}

/// `len` numbers of a buffer on a GPU from `first` on.
fn borrowed(cuda: Cuda, buffer: &Buffer<'_>, first: usize, len: usize) -> Result<fmm::DeviceArray, Refusal> {
    let address = buffer.address() + (first * buffer.precision.bytes()) as u64;
    let raw = RawArray { address, shape: &[len], strides: None, precision: buffer.precision };
    // SAFETY: the runtime gives buffers of these extents, and orders other work with them by the stream of the call, in
    // which the sums run too. Results belong to this call.
    Ok(unsafe { cuda.borrow(raw) }?)
}

/// Coordinates on the host as f64.
fn wide(points: &Buffer<'_>) -> Result<Vec<f64>, Refusal> {
    Ok(match points.precision {
        Precision::F32 => points.numbers::<f32>()?.iter().map(|&x| f64::from(x)).collect(),
        Precision::F64 => points.numbers::<f64>()?.to_vec(),
    })
}

/// Whether points have the same bits.
fn alike(old: &[Vec<f64>], new: &[Vec<f64>]) -> bool {
    let same = |(old, new): (&Vec<f64>, &Vec<f64>)| {
        old.len() == new.len() && old.iter().zip(new).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    old.len() == new.len() && old.iter().zip(new).all(same)
}

fn misfit(buffer: &Buffer<'_>, plan: &fmm::Plan) -> String {
    let (n, m) = (plan.n_sources(), plan.n_targets());
    format!("an array has extents {:?}, but the plan has {n} sources and {m} targets", buffer.dims)
}

fn locked<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
