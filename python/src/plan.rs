//! Plans.

use crate::device::{Described, stream_of};
use crate::errors::raised;
use crate::interrupt::Watch;
use crate::kernel::Kernel;
use crate::ranks::World;
use fmm::{
    Backend, CostModel, Cpu, Cuda, DeviceOutput, Error, Fmm, Hybrid, Method, Norm, Number, Output, Outputs, Precision,
    Stage, Targets,
};
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Points up to which work is so short that no thread of its own looks for signals meanwhile.
const SHORT: usize = 4096;

/// Prepared sums.
#[pyclass(frozen, module = "fmm._core")]
pub struct Plan {
    plan: RwLock<Held>,
    watch: Watch,
    /// The number of the GPU of arrays on a device.
    cuda: Cuda,
    /// The process that made the plan. Its threads do not exist in a child process.
    process: u32,
}

/// What a plan of another process answers.
pub const FORKED: &str = "this plan belongs to the parent process, and its threads do not exist in a forked child: \
                          make the plan in the child, or start processes by 'spawn'";

/// Numbers of which a plan takes several sets at once.
pub trait Batch: Number {
    /// The sums of each set.
    fn batch(plan: &fmm::Plan, sets: &[&[Self]]) -> Result<Vec<Output<Self>>, Error>;
}

impl Batch for f64 {
    fn batch(plan: &fmm::Plan, sets: &[&[f64]]) -> Result<Vec<Output>, Error> {
        plan.apply_batch(sets)
    }
}

impl Batch for f32 {
    fn batch(plan: &fmm::Plan, sets: &[&[f32]]) -> Result<Vec<Output<f32>>, Error> {
        sets.iter().map(|set| plan.apply(set)).collect()
    }
}

/// A plan of the caller, or the transposed plan of another.
enum Held {
    Own(Box<fmm::Plan>),
    Transposed(Arc<fmm::Plan>),
}

impl Deref for Held {
    type Target = fmm::Plan;
    fn deref(&self) -> &fmm::Plan {
        match self {
            Held::Own(plan) => plan,
            Held::Transposed(plan) => plan,
        }
    }
}

/// The targets of a plan.
#[derive(FromPyObject)]
enum At<'py> {
    #[pyo3(transparent)]
    Points(PyReadonlyArray1<'py, f64>),
    #[pyo3(transparent)]
    Subset(PyReadonlyArray1<'py, i64>),
}

/// The errors of an output: name, rel_l2, rms, max_over_rms, max_rel.
type Measured = (String, f64, f64, f64, f64);

/// Numbers of either precision.
#[derive(FromPyObject)]
pub enum Floats<'py> {
    #[pyo3(transparent)]
    F64(PyReadonlyArray1<'py, f64>),
    #[pyo3(transparent)]
    F32(PyReadonlyArray1<'py, f32>),
}

/// The value of `name` among options, if it is there and not None.
fn option<'py, T: FromPyObjectOwned<'py>>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    match options.get_item(name)? {
        Some(value) if !value.is_none() => value.extract().map(Some).map_err(Into::into),
        _ => Ok(None),
    }
}

/// One of several names.
fn named<T: Clone>(what: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what} is {name:?}; known are {}", known.join(", ")))
    })
}

const METHODS: [(&str, Method); 7] = [
    ("auto", Method::Auto),
    ("equivalent", Method::EquivalentDensities),
    ("interpolation", Method::Interpolation),
    ("spherical", Method::SphericalHarmonics),
    ("treecode", Method::Treecode),
    ("laurent", Method::Laurent),
    ("direct", Method::Direct),
];

/// The outputs with these names.
fn outputs(names: &[String]) -> PyResult<Outputs> {
    let known: Vec<(&str, Outputs)> = Outputs::ALL.iter().map(|(output, name)| (*name, *output)).collect();
    let mut all: Option<Outputs> = None;
    for name in names {
        let one = named("an output", name, &known)?;
        all = Some(all.map_or(one, |all| all | one));
    }
    all.ok_or_else(|| PyValueError::new_err("outputs is empty"))
}

/// The request with these options.
pub fn request(kernel: &Kernel, options: &Bound<'_, PyDict>, watch: &Watch) -> PyResult<Fmm> {
    let mut fmm = Fmm::new(kernel.family.clone());
    if let Some(names) = option::<Vec<String>>(options, "outputs")? {
        fmm = fmm.outputs(outputs(&names)?);
    }
    if let Some(tolerance) = option(options, "tolerance")? {
        fmm = fmm.tolerance(tolerance);
    }
    if let Some(order) = option(options, "order")? {
        fmm = fmm.order(order);
    }
    if let Some(method) = option::<String>(options, "method")? {
        fmm = fmm.method(named("method", &method, &METHODS)?);
    }
    if let Some(precision) = option::<String>(options, "precision")? {
        let known = [("f32", Precision::F32), ("f64", Precision::F64)];
        fmm = fmm.precision(named("precision", &precision, &known)?);
    }
    if let Some(norm) = option::<String>(options, "norm")? {
        fmm = fmm.norm(named("norm", &norm, &[("l2", Norm::L2), ("max", Norm::Max)])?);
    }
    if let Some(backend) = option::<String>(options, "backend")? {
        let one = Cuda { device: option(options, "device")?.unwrap_or(0), ..Default::default() };
        let cuda: Backend = match option::<Vec<usize>>(options, "devices")? {
            Some(devices) => Cuda::devices(devices).into(),
            None => one.into(),
        };
        let hybrid = Hybrid { cuda: one, ..Default::default() };
        let known = [("cpu", Backend::Cpu(Cpu::default())), ("cuda", cuda), ("hybrid", hybrid.into())];
        fmm = fmm.backend(named("backend", &backend, &known)?);
    }
    if let Some(threads) = option(options, "threads")? {
        fmm = fmm.threads(threads);
    }
    if let Some(ncrit) = option(options, "ncrit")? {
        fmm = fmm.ncrit(ncrit);
    }
    if let Some(theta) = option(options, "theta")? {
        fmm = fmm.theta(theta);
    }
    if let Some(folder) = option::<String>(options, "cache")? {
        fmm = fmm.operator_cache(folder);
    }
    if let Some(text) = option::<String>(options, "cost_model")? {
        fmm = fmm.cost_model(costs(&text)?);
    }
    if let Some(world) = option::<Py<World>>(options, "world")? {
        fmm = fmm.ranks(&world.get().0);
    }
    if let Some(values) = option::<Bound<'_, PyDict>>(options, "attributes")? {
        for (name, values) in values {
            let (name, values): (String, PyReadonlyArray1<f64>) = (name.extract()?, values.extract()?);
            fmm = fmm.attribute(&name, slice(&values)?);
        }
    }
    if let Some(nodes) = option(options, "nodes")? {
        fmm = fmm.nodes(nodes);
    }
    let watch = watch.clone();
    Ok(fmm.progress(move |p| watch.goes_on(p)))
}

/// The cost model that a text holds.
fn costs(text: &str) -> PyResult<CostModel> {
    let costs: CostModel =
        serde_json::from_str(text).map_err(|e| PyValueError::new_err(format!("the file cost_model: {e}")))?;
    costs.validate().map_err(raised)?;
    Ok(costs)
}

/// The cost model of a text, or else the built-in one, with the costs of a kernel with these options measured on this
/// machine.
#[pyfunction]
pub fn calibrate(
    py: Python<'_>,
    kernel: &Kernel,
    options: &Bound<'_, PyDict>,
    text: Option<String>,
) -> PyResult<String> {
    let watch = Watch::new(option(options, "progress")?);
    let request = request(kernel, options, &watch)?;
    let mut model = match text {
        Some(text) => costs(&text)?,
        None => CostModel::default(),
    };
    watch.run(py, true, || model.measure(&request))?;
    serde_json::to_string_pretty(&model).map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

/// The numbers of an array.
fn slice<'a, T: Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| PyValueError::new_err("an array is not contiguous"))
}

/// The indices of a subset.
fn indices(of: Option<&At<'_>>) -> PyResult<Vec<usize>> {
    let Some(At::Subset(indices)) = of else { return Ok(Vec::new()) };
    let whole = |&i: &i64| usize::try_from(i).map_err(|_| PyValueError::new_err(format!("targets has the index {i}")));
    slice(indices)?.iter().map(whole).collect()
}

/// The targets as the library takes them.
fn targets<'a>(of: Option<&'a At<'_>>, subset: &'a [usize]) -> PyResult<Targets<'a>> {
    Ok(match of {
        None => Targets::Sources,
        Some(At::Subset(_)) => Targets::Subset(subset),
        Some(At::Points(points)) => Targets::Points(slice(points)?),
    })
}

#[pymethods]
impl Plan {
    #[new]
    fn new(
        py: Python<'_>,
        kernel: &Kernel,
        sources: PyReadonlyArray1<'_, f64>,
        at: Option<At<'_>>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let watch = Watch::new(option(options, "progress")?);
        let request = request(kernel, options, &watch)?;
        let subset = indices(at.as_ref())?;
        let (sources, targets) = (slice(&sources)?, targets(at.as_ref(), &subset)?);
        let plan = watch.run(py, true, || request.plan(sources, targets))?;
        Ok(Self::of(Held::Own(Box::new(plan)), watch, Cuda::default()))
    }

    /// A plan for points on a GPU. They are read after the work that is already in the stream.
    #[staticmethod]
    fn on_device(
        py: Python<'_>,
        kernel: &Kernel,
        sources: Described,
        targets: Option<Described>,
        stream: usize,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let watch = Watch::new(option(options, "progress")?);
        let (request, cuda) = (
            request(kernel, options, &watch)?,
            Cuda { device: option(options, "device")?.unwrap_or(0), ..Default::default() },
        );
        let plan = watch.run(py, true, || {
            let (sources, targets) = (sources.borrow(cuda)?, targets.as_ref().map(|t| t.borrow(cuda)).transpose()?);
            request.plan_on_device(&sources, targets.as_ref(), &stream_of(stream))
        })?;
        Ok(Self::of(Held::Own(Box::new(plan)), watch, cuda))
    }

    /// Enqueues the sums for strengths on a GPU into arrays by the names of outputs.
    fn apply_on_device(
        &self,
        py: Python<'_>,
        strengths: Described,
        arrays: HashMap<String, Described>,
        stream: usize,
    ) -> PyResult<()> {
        self.same_process()?;
        let cuda = self.cuda;
        self.watch.run(py, false, || {
            let mut out = DeviceOutput::default();
            for (output, name) in Outputs::ALL {
                let array = arrays.get(name).map(|array| array.borrow(cuda)).transpose()?;
                match output {
                    Outputs::POTENTIAL => out.potential = array,
                    Outputs::GRADIENT => out.gradient = array,
                    Outputs::HESSIAN => out.hessian = array,
                    _ => out.pressure = array,
                }
            }
            self.read().apply_on_device(&strengths.borrow(cuda)?, &out, &stream_of(stream))
        })
    }

    /// Replaces the points by points on a GPU.
    fn set_points_on_device(
        &self,
        py: Python<'_>,
        sources: Described,
        targets: Option<Described>,
        stream: usize,
    ) -> PyResult<()> {
        self.same_process()?;
        let cuda = self.cuda;
        self.watch.run(py, true, || {
            let (sources, targets) = (sources.borrow(cuda)?, targets.as_ref().map(|t| t.borrow(cuda)).transpose()?);
            self.change(|plan| plan.set_points_on_device(&sources, targets.as_ref(), &stream_of(stream)))
        })
    }

    /// Waits for the sums on a GPU, and reports what was wrong with them.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.same_process()?;
        self.watch.run(py, false, || self.read().synchronize())
    }

    /// The plan of the transposed sums.
    fn transposed(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        let outputs = outputs(&names)?;
        let plan = self.long(py, |plan| plan.transposed(outputs))?;
        Ok(Self::of(Held::Transposed(plan), self.watch.clone(), self.cuda))
    }

    /// The sums of `sets` sets of strengths, one after the other in one array: for each output an array, also one set
    /// after the other; and the seconds of the evaluation and of its stages.
    fn apply<'py>(&self, py: Python<'py>, strengths: Floats<'_>, sets: usize) -> PyResult<Bound<'py, PyDict>> {
        match strengths {
            Floats::F64(strengths) => self.sums(py, slice(&strengths)?, sets),
            Floats::F32(strengths) => self.sums(py, slice(&strengths)?, sets),
        }
    }

    /// The product with the transposed matrix.
    fn apply_transpose<'py>(
        &self,
        py: Python<'py>,
        values: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let values = slice(&values)?;
        Ok(PyArray1::from_vec(py, self.long(py, |plan| plan.apply_transpose(values))?))
    }

    /// The errors at sampled targets: for each output rel_l2, rms, max_over_rms, max_rel.
    fn verify(&self, py: Python<'_>, strengths: PyReadonlyArray1<'_, f64>, samples: usize) -> PyResult<Vec<Measured>> {
        let strengths = slice(&strengths)?;
        let report = self.long(py, |plan| plan.verify(strengths, samples))?;
        let name = |o: Outputs| o.names().first().copied().unwrap_or_default().to_string();
        Ok(report.outputs.iter().map(|o| (name(o.output), o.rel_l2, o.rms, o.max_over_rms, o.max_rel)).collect())
    }

    /// Replaces the points.
    fn set_points(&self, py: Python<'_>, sources: PyReadonlyArray1<'_, f64>, at: Option<At<'_>>) -> PyResult<()> {
        self.same_process()?;
        let subset = indices(at.as_ref())?;
        let (sources, targets) = (slice(&sources)?, targets(at.as_ref(), &subset)?);
        self.watch.run(py, true, || self.change(|plan| plan.set_points(sources, targets)))
    }

    /// The description of the plan, as JSON.
    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        let described = self.short(py, |plan| plan.describe())?;
        serde_json::to_string(&described).map_err(|e| PyRuntimeError::new_err(e.to_string()))
    }

    /// The blocks of pairs that are summed directly.
    fn near_blocks<'py>(&self, py: Python<'py>) -> PyResult<Vec<[Bound<'py, PyArray1<u32>>; 2]>> {
        let blocks = self.short(py, |plan| {
            let all = plan.near_field();
            all.map(|block| [block.targets.into_owned(), block.sources.into_owned()]).collect::<Vec<_>>()
        })?;
        Ok(blocks.into_iter().map(|block| block.map(|indices| PyArray1::from_vec(py, indices))).collect())
    }

    /// Components per target of an output.
    fn components(&self, py: Python<'_>, output: String) -> PyResult<usize> {
        let output = outputs(&[output])?;
        self.short(py, |plan| plan.components(output))
    }

    /// Numbers of sources and targets, strengths per source, coordinates per point, bytes.
    fn counts(&self, py: Python<'_>) -> PyResult<(usize, usize, usize, usize, u64)> {
        self.short(py, |p| (p.n_sources(), p.n_targets(), p.strengths(), p.dim(), p.memory()))
    }
}

impl Plan {
    fn of(plan: Held, watch: Watch, cuda: Cuda) -> Self {
        Plan { plan: RwLock::new(plan), watch, cuda, process: std::process::id() }
    }

    /// Changes the plan.
    fn change(&self, work: impl FnOnce(&mut fmm::Plan) -> Result<(), Error>) -> Result<(), Error> {
        match &mut *self.plan.write().unwrap_or_else(PoisonError::into_inner) {
            Held::Own(plan) => work(plan),
            Held::Transposed(_) => {
                let reason = "move the points of the plan that it transposes, and transpose again".to_string();
                Err(Error::Unsupported { operation: "other points of a transposed plan", reason })
            }
        }
    }

    /// An error in a process that was forked from the one of the plan.
    fn same_process(&self) -> PyResult<()> {
        if self.is_forked() { Err(PyRuntimeError::new_err(FORKED)) } else { Ok(()) }
    }

    /// Whether the plan was made in another process.
    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Does `work` with the plan.
    pub fn with<T>(&self, work: impl FnOnce(&fmm::Plan) -> T) -> T {
        work(&self.read())
    }

    /// The sums of `sets` sets of strengths.
    fn sums<'py, T: Batch + Element>(
        &self,
        py: Python<'py>,
        strengths: &[T],
        sets: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let sets = split(strengths, sets);
        collected(py, self.long(py, |plan| T::batch(plan, &sets))?)
    }

    fn read(&self) -> RwLockReadGuard<'_, Held> {
        self.plan.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work that may take long.
    fn long<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&fmm::Plan) -> Result<T, fmm::Error> + Send,
    ) -> PyResult<T> {
        self.same_process()?;
        let points = py.detach(|| {
            let plan = self.read();
            plan.n_sources() + plan.n_targets()
        });
        self.watch.run(py, points > SHORT, || work(&self.read()))
    }

    /// Work that takes no time.
    fn short<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&fmm::Plan) -> T + Send) -> PyResult<T> {
        self.same_process()?;
        Ok(py.detach(|| work(&self.read())))
    }
}

/// Equal parts of `all`.
fn split<T>(all: &[T], sets: usize) -> Vec<&[T]> {
    let each = all.len() / sets.max(1);
    (0..sets).map(|set| &all[set * each..(set + 1) * each]).collect()
}

/// The sums of several sets as arrays.
fn collected<'py, T: Number + Element>(py: Python<'py>, mut sums: Vec<Output<T>>) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (output, name) in Outputs::ALL {
        let array = match &mut sums[..] {
            [one] => std::mem::take(match output {
                Outputs::POTENTIAL => &mut one.potential,
                Outputs::GRADIENT => &mut one.gradient,
                Outputs::HESSIAN => &mut one.hessian,
                _ => &mut one.pressure,
            }),
            many => many.iter().flat_map(|sums| sums.get(output)).copied().collect(),
        };
        all.set_item(name, PyArray1::from_vec(py, array))?;
    }
    let stages = PyDict::new(py);
    for stage in Stage::ALL {
        stages.set_item(stage.name(), sums.iter().map(|s| s.stages[stage as usize]).sum::<f64>())?;
    }
    all.set_item("stages", stages)?;
    all.set_item("seconds", sums.iter().map(|s| s.seconds).sum::<f64>())?;
    Ok(all)
}

/// Prepares this process for a plan of so many points.
#[pyfunction]
pub fn open_for(
    py: Python<'_>,
    kernel: &Kernel,
    n_sources: usize,
    n_targets: usize,
    options: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let request = request(kernel, options, &Watch::default())?;
    py.detach(|| request.open_for(n_sources, n_targets)).map_err(raised)
}

/// Forecast bytes of a plan and one evaluation.
#[pyfunction]
pub fn memory(kernel: &Kernel, n_sources: usize, n_targets: usize, options: &Bound<'_, PyDict>) -> PyResult<u64> {
    request(kernel, options, &Watch::default())?.memory(n_sources, n_targets).map_err(raised)
}
