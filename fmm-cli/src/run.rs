//! `fmm run`.

use crate::args::{ArraysName, BackendName, OutputName, PrecisionName, RunArgs};
use crate::failure::Failure;
use crate::npy::{Part, WHOLE};
use crate::npz::{self, Pending};
use crate::report::Report;
use crate::{calibrate, kernel, npy, print, ranks};
use fmm::{
    Cuda, DeviceArray, DeviceScalar, DeviceStream, Error, ErrorReport, Fmm, Number, Output, Outputs, Plan, Targets,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

/// Default number of points of a demo.
const DEFAULT_POINTS: usize = 1_000_000;
/// Tolerance of the showcase.
const SHOWCASE_TOLERANCE: f64 = 1e-5;
/// Number of targets at which the showcase is verified.
const SHOWCASE_TARGETS: usize = 1000;
/// Smallest number of points with a progress bar.
const PROGRESS_BAR_POINTS: usize = 100_000;

/// Points and strengths.
pub struct Input {
    pub sources: Vec<f64>,
    /// Sets of strengths. Complex strengths of a real kernel make two sets.
    pub strengths: Vec<Vec<f64>>,
    pub targets: Option<Vec<f64>>,
    /// Whether the strengths came as complex numbers, real and imaginary parts of the two strengths of a kernel in space.
    pub complex: bool,
}

impl Input {
    /// Rounds the points to the numbers of arrays of the device.
    pub fn rounded(mut self, args: &RunArgs) -> Self {
        if args.arrays == ArraysName::Device && args.numbers == PrecisionName::F32 {
            let points = self.sources.iter_mut().chain(self.targets.iter_mut().flatten());
            points.for_each(|x| *x = f64::from(*x as f32));
        }
        self
    }
}

/// What `args` ask for.
pub struct Asked {
    /// The request.
    pub builder: Fmm,
    /// What each target receives.
    pub outputs: Outputs,
    /// Targets at which sums are verified.
    pub samples: Option<usize>,
    /// Coordinates of a point.
    pub dim: usize,
    /// Strengths of a source.
    pub width: usize,
    /// Points of the demo.
    demo_points: usize,
}

impl Asked {
    /// Checks the options, without the points.
    pub fn of(args: &RunArgs) -> Result<Self, Failure> {
        let showcase = args.sources.is_none() && args.demo.is_none();
        let usual: &[OutputName] =
            if showcase { &[OutputName::Potential, OutputName::Gradient] } else { &[OutputName::Potential] };
        let names = args.outputs.as_deref().unwrap_or(usual);
        let outputs = kernel::outputs(names);
        let mut builder = kernel::builder(&args.kernel, outputs)?
            .method(kernel::method(args.method))
            .norm(kernel::norm(args.norm))
            .backend(kernel::backend(args.backend))
            .precision(kernel::precision(args.precision));
        builder = kernel::with_variant(builder, &args.variant);
        let tolerance = args.tolerance.or((showcase && args.order.is_none()).then_some(SHOWCASE_TOLERANCE));
        if let Some(tolerance) = tolerance {
            builder = builder.tolerance(tolerance);
        }
        if let Some(order) = args.order {
            builder = builder.order(order);
        }
        if let Some(ncrit) = args.ncrit {
            builder = builder.ncrit(ncrit);
        }
        if let Some(threads) = args.threads {
            builder = builder.threads(threads);
        }
        if args.verify == Some(0) {
            return Err(Failure::Input("--verify 0: at least one target is needed".into()));
        }
        if let Some(path) = args.out.as_deref().filter(|path| npz::holds_one(path) && names.len() != 1) {
            return Err(Failure::file(path, "a .npy file holds one output: name a .npz file, or give --outputs"));
        }
        for (name, path) in &args.attribute {
            let array = npy::read(path)?;
            if array.complex || array.columns != 1 {
                return Err(Failure::file(path, format!("the attribute {name} must be one real number per source")));
            }
            if let Some(row) = array.values.iter().position(|x| !x.is_finite()) {
                return Err(Failure::file(
                    path,
                    format!("row {row} is {}: every number must be finite", array.values[row]),
                ));
            }
            builder = builder.attribute(name, &array.values);
        }
        if let Some(devices) = &args.devices {
            builder = match (args.backend, &devices[..]) {
                (BackendName::Cuda, _) => builder.backend(Cuda::devices(devices.iter().copied())),
                // Of ranks, each takes a backend of its own.
                (BackendName::Hybrid, [device, ..]) => builder.backend(kernel::backend_on(args.backend, *device)),
                _ => {
                    let what = "--devices: these are GPUs, so it needs --backend cuda or hybrid";
                    return Err(Failure::Input(what.into()));
                }
            };
        }
        if let Some(memory) = args.device_memory {
            if args.backend != BackendName::Cuda {
                return Err(Failure::Input(
                    "--device-memory: this is memory of a GPU, so it needs --backend cuda".into(),
                ));
            }
            builder = builder.backend(Cuda { memory: Some(memory), ..Cuda::default() });
        }
        if args.stages_apart {
            builder = builder.stages_apart();
        }
        if args.arrays == ArraysName::Device && args.backend != BackendName::Cuda {
            return Err(Failure::Input(
                "--arrays device: arrays are in the memory of a GPU, so it needs --backend cuda".into(),
            ));
        }
        if let Some(folder) = cache(args) {
            builder = builder.operator_cache(folder);
        }
        let samples = args.verify.or(showcase.then_some(SHOWCASE_TARGETS));
        let (dim, width) = (kernel::dim(&args.kernel)?, builder.strengths()?);
        Ok(Asked { builder, outputs, samples, dim, width, demo_points: args.n.unwrap_or(DEFAULT_POINTS) })
    }
}

/// Runs `fmm run`.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    #[cfg(feature = "mpi")]
    if fmm_mpi::launched() {
        return crate::mpi::run(args);
    }
    let asked = Asked::of(args)?;
    ranks::check(args, args.ranks as usize, false)?;
    // Wrong options fail before the points are read or any cloud is made.
    let n = if args.sources.is_some() { 0 } else { asked.demo_points };
    let forecast = asked.builder.memory(n, n)?;
    if args.backend != BackendName::Cuda {
        fits(forecast, &format!("{n} points"))?;
    }
    // The devices are opened while the points are read or made.
    let (read, open) = std::thread::scope(|scope| {
        let open = scope.spawn(|| open(args));
        let read = read(args, &asked, WHOLE);
        (read, open.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let mut input = read?.rounded(args);
    let Asked { builder, outputs, samples, dim, width: strengths, .. } = asked;
    let mut pending = args.out.as_deref().map(Pending::create).transpose()?;

    let complex = kernel::is_complex(&args.kernel)? || input.complex;
    if args.ranks > 1 {
        let sums = ranks::run(args, builder, &input, dim, samples)?;
        if input.complex {
            fit_complex(outputs, dim, &|o| sums.components(o))?;
        }
        if let Some(mut file) = pending {
            let targets = input.targets.as_ref().unwrap_or(&input.sources).len() / dim;
            save(&mut file, (targets, dim), &|o| sums.components(o), &sums.all.outs, outputs, complex)?;
            save_demo(&mut file, args, &input, (dim, strengths), complex)?;
            file.finish()?;
        }
        let kernel = kernel::name(&args.kernel)?;
        return printed(args, sums.report(kernel, args.repeat));
    }
    let bar = progress(input.sources.len() / dim);
    let builder = watched(builder, &bar);
    let targets = input.targets.as_deref().map_or(Targets::Sources, Targets::Points);
    let open = open?;
    let mut there = None;
    let mut plan = match args.arrays {
        ArraysName::Host => builder.plan(&input.sources, targets)?,
        ArraysName::Device => {
            let held = there.insert(OnDevice::new(Cuda::default(), &input.sources, input.targets.as_deref(), args)?);
            held.plan(&builder)?
        }
    };
    if input.complex {
        fit_complex(outputs, dim, &|o| plan.components(o))?;
    }
    let moves = there.is_some() || args.devices.as_ref().is_some_and(|devices| devices.len() > 1);
    if args.sources.is_some() && !moves {
        input.sources = Vec::new();
    }
    let sets = input.strengths.iter().map(|set| &set[..]);
    let Evaluated { outs, seconds, stages, errors } = evaluated(&plan, sets, there.as_ref(), args, samples)?;
    let described = plan.describe();
    let moved = || match &there {
        Some(held) => held.give_to(&mut plan),
        None => plan.set_points(&input.sources, targets),
    };
    let set_points = if moves { seconds_of_moves(args.repeat, moved)? } else { None };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if let Some(file) = &mut pending {
        save(file, (plan.n_targets(), plan.dim()), &|o| plan.components(o), &outs, outputs, complex)?;
        save_demo(file, args, &input, (dim, strengths), complex)?;
    }
    if let Some(file) = pending {
        file.finish()?;
    }
    let kernel = kernel::name(&args.kernel)?;
    let report =
        Report { kernel, plan: described, stages, apply: seconds, set_points, open, repeat: args.repeat, errors };
    printed(args, report)
}

/// Refuses complex strengths if an output has other numbers than real and imaginary parts.
pub fn fit_complex(outputs: Outputs, dim: usize, components: &dyn Fn(Outputs) -> usize) -> Result<(), Failure> {
    for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
        let (found, expected) = (components(output), 2 * axes(output, dim).iter().product::<usize>());
        if found != expected {
            let text = format!("strengths are complex, but {name} has {found} numbers instead of {expected}");
            return Err(Failure::Input(text));
        }
    }
    Ok(())
}

/// Adds the points and strengths of a demo to a file of several arrays.
pub fn save_demo(
    file: &mut Pending,
    args: &RunArgs,
    input: &Input,
    (dim, strengths): (usize, usize),
    complex: bool,
) -> Result<(), Failure> {
    if args.sources.is_some() || args.out.as_deref().is_some_and(npz::holds_one) {
        return Ok(());
    }
    let n = input.sources.len() / dim;
    file.add("sources", &[n, dim], &input.sources)?;
    let shape = [n, strengths];
    match strengths {
        1 => file.add("strengths", &shape[..1], &input.strengths[0]),
        2 if complex => file.add_complex("strengths", &shape[..1], &input.strengths[0]),
        _ => file.add("strengths", &shape, &input.strengths[0]),
    }
}

/// Opens the GPUs of a sum on one rank, and returns the seconds.
fn open(args: &RunArgs) -> Result<f64, Error> {
    let start = Instant::now();
    if args.backend != BackendName::Cpu && args.ranks == 1 {
        args.devices
            .as_deref()
            .unwrap_or(&[0])
            .iter()
            .try_for_each(|&device| Cuda { device, ..Cuda::default() }.info().map(drop))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Prints a report; an error if the tolerance is broken.
pub fn printed(args: &RunArgs, report: Report) -> Result<(), Failure> {
    if args.json { print(&format!("{}\n", report.json())) } else { print(&report.table()) }?;
    match (report.worst(), report.plan.tolerance) {
        (Some(error), Some(tolerance)) if error.is_nan() || error > tolerance => Err(Failure::Input(format!(
            "the error {error:.2e} is above the tolerance {tolerance:.0e} (CONVENTIONS.md says for which strengths the tolerance is promised)"
        ))),
        _ => Ok(()),
    }
}

/// The folder for operators and programs. Planning for a GPU takes seconds without it.
fn cache(args: &RunArgs) -> Option<PathBuf> {
    let usual = || {
        let folder = calibrate::cache_folder()?.join("operators");
        (args.backend != BackendName::Cpu && std::fs::create_dir_all(&folder).is_ok()).then_some(folder)
    };
    if args.no_cache { None } else { args.cache.clone().or_else(usual) }
}

/// An error if `needed` bytes exceed the free memory.
pub fn fits(needed: u64, what: &str) -> Result<(), Error> {
    match fmm::available_memory() {
        Some(available) if needed > available => Err(Error::Memory { needed, available, what: what.to_string() }),
        _ => Ok(()),
    }
}

/// Reads or makes a part of the points and strengths, with the shapes that the kernel needs.
pub fn read(args: &RunArgs, asked: &Asked, part: Part) -> Result<Input, Failure> {
    let (dim, strengths, complex) = (asked.dim, asked.width, kernel::is_complex(&args.kernel)?);
    let targets = args.targets.as_deref().map(|path| points(path, "targets", dim, part)).transpose()?;
    let (Some(sources), Some(path)) = (&args.sources, &args.strengths) else {
        let demo = kernel::demo(args.demo, dim)?;
        let of_part = |rows: Vec<f64>, width: usize| {
            let [first, end] = npy::part_of(asked.demo_points, part);
            if part == WHOLE { rows } else { rows[first * width..end * width].to_vec() }
        };
        let sources = of_part(fmm::demo::points(demo, asked.demo_points, args.seed), dim);
        let all = fmm::demo::strengths(asked.demo_points, strengths, args.seed);
        return Ok(Input { sources, strengths: vec![of_part(all, strengths)], targets, complex: false });
    };
    let given_complex = strengths == 2 && !complex && npy::read_part(path, part)?.complex;
    let (sources, values) = read_files([sources, path], part, dim, strengths, complex)?;
    Ok(Input { sources, strengths: values, targets, complex: given_complex })
}

/// Reads a part of the sources of dimension `dim` and of their sets of strengths, `strengths` numbers per source, for a
/// `complex` kernel one complex number. A kernel in space with two strengths also takes complex numbers: real and imaginary
/// parts.
pub fn read_files(
    [sources, path]: [&std::path::Path; 2],
    part: Part,
    dim: usize,
    strengths: usize,
    complex: bool,
) -> Result<(Vec<f64>, Vec<Vec<f64>>), Failure> {
    let sources = points(sources, "sources", dim, part)?;
    let array = npy::read_part(path, part)?;
    let n = sources.len() / dim;
    if dim == 2 && array.rows == n {
        match (array.columns, strengths) {
            // Real strengths for a complex kernel.
            (1, 2) if complex => return Ok((sources, vec![array.values.iter().flat_map(|&x| [x, 0.0]).collect()])),
            // Complex strengths for a real kernel.
            (2, 1) => {
                let part = |c| array.values.iter().skip(c).step_by(2).copied().collect();
                return Ok((sources, [0, 1].map(part).to_vec()));
            }
            _ => {}
        }
    }
    if array.complex && dim != 2 && strengths != 2 {
        let reason = "strengths are complex, and this kernel takes real ones: sum their two parts apart";
        return Err(Failure::file(path, reason));
    }
    if array.rows != n || (array.columns != strengths && array.rows > 0) {
        let shape = format!("({}, {}), expected ({n}, {strengths})", array.rows, array.columns);
        return Err(Failure::file(path, format!("strengths have shape {shape} for {n} sources")));
    }
    Ok((sources, vec![array.values]))
}

/// Reads a part of an N×`dim` array of points.
fn points(path: &std::path::Path, what: &str, dim: usize, part: Part) -> Result<Vec<f64>, Failure> {
    let array = npy::read_part(path, part)?;
    if array.complex && dim != 2 {
        return Err(Failure::file(path, format!("{what} are complex, expected real numbers (N, {dim})")));
    }
    if array.columns != dim && array.rows > 0 {
        let reason = format!("{what} have shape ({}, {}), expected (N, {dim})", array.rows, array.columns);
        let hint = if array.rows == dim { "; this looks transposed" } else { "" };
        return Err(Failure::file(path, reason + hint));
    }
    Ok(array.values)
}

/// Numbers in f32.
pub fn narrowed(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&x| x as f32).collect()
}

/// The points of a run, or of a rank, on its device.
pub struct OnDevice {
    cuda: Cuda,
    sources: DeviceArray,
    targets: Option<DeviceArray>,
}

impl OnDevice {
    pub fn new(cuda: Cuda, sources: &[f64], targets: Option<&[f64]>, args: &RunArgs) -> Result<Self, Error> {
        let array = |x: &[f64]| match args.numbers {
            PrecisionName::F32 => cuda.array(&narrowed(x)),
            _ => cuda.array(x),
        };
        Ok(OnDevice { cuda, sources: array(sources)?, targets: targets.map(array).transpose()? })
    }

    /// A plan of these points.
    pub fn plan(&self, builder: &Fmm) -> Result<Plan, Error> {
        builder.plan_on_device(&self.sources, self.targets.as_ref(), &DeviceStream::Null)
    }

    /// Gives the plan its points once more.
    pub fn give_to(&self, plan: &mut Plan) -> Result<(), Error> {
        plan.set_points_on_device(&self.sources, self.targets.as_ref(), &DeviceStream::Null)?;
        plan.synchronize()
    }
}

/// Median seconds of giving a plan new points; `None` if there is no memory for old and new points at once.
pub fn seconds_of_moves(repeat: u32, moved: impl FnMut() -> Result<(), Error>) -> Result<Option<f64>, Error> {
    match median(repeat, moved) {
        Err(e) if e.lacks_memory() => Ok(None),
        seconds => seconds.map(Some),
    }
}

/// Median seconds of `repeat` calls.
fn median(repeat: u32, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut runs = Vec::new();
    for _ in 0..repeat.max(1) {
        let start = Instant::now();
        call()?;
        runs.push(start.elapsed().as_secs_f64());
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}

/// The sums of all sets of strengths.
pub struct Evaluated {
    pub outs: Vec<Output>,
    /// Seconds of one evaluation of each set, added up.
    pub seconds: f64,
    /// Seconds of each stage, added up over the sets.
    pub stages: [f64; 10],
    /// The larger error of the sets, output by output.
    pub errors: Option<ErrorReport>,
}

/// Evaluates `sets` of strengths one by one, and verifies them at some `samples`. With `there`, arrays are on the device.
pub fn evaluated<'a>(
    plan: &Plan,
    sets: impl Iterator<Item = &'a [f64]>,
    there: Option<&OnDevice>,
    args: &RunArgs,
    samples: Option<usize>,
) -> Result<Evaluated, Error> {
    let mut all = Evaluated { outs: Vec::new(), seconds: 0.0, stages: [0.0; 10], errors: None };
    for strengths in sets {
        let single = args.numbers == PrecisionName::F32;
        let (out, time, part) = match (there, single) {
            (Some(held), true) => evaluate_on_device::<f32>(held.cuda, plan, &narrowed(strengths), args.repeat)?,
            (Some(held), false) => evaluate_on_device::<f64>(held.cuda, plan, strengths, args.repeat)?,
            (None, true) => {
                let (out, time, part) = evaluate(plan, &narrowed(strengths), args.repeat)?;
                (out.widened(), time, part)
            }
            (None, false) => evaluate(plan, strengths, args.repeat)?,
        };
        all.seconds += time;
        all.stages.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        if let Some(samples) = samples {
            let report = plan.verify_output(strengths, &out, samples)?;
            all.errors = Some(all.errors.map_or(report.clone(), |other| other.worse(&report)));
        }
        all.outs.push(out);
    }
    Ok(all)
}

/// As [`evaluate`], on arrays of the device. Such evaluations do not time their stages.
fn evaluate_on_device<T: DeviceScalar>(
    cuda: Cuda,
    plan: &Plan,
    strengths: &[T],
    repeat: u32,
) -> Result<(Output, f64, [f64; 10]), Error> {
    let (strengths, out) = (cuda.array(strengths)?, plan.device_output::<T>()?);
    let seconds = median(repeat, || {
        plan.apply_on_device(&strengths, &out, &DeviceStream::Null)?;
        plan.synchronize()
    })?;
    Ok((out.download::<T>()?.widened(), seconds, [0.0; 10]))
}

/// Runs `repeat` evaluations. Returns the output, and the seconds and stages of the median evaluation.
pub fn evaluate<T: Number>(plan: &Plan, strengths: &[T], repeat: u32) -> Result<(Output<T>, f64, [f64; 10]), Error> {
    let mut out = Output::default();
    let mut runs = Vec::new();
    for _ in 0..repeat.max(1) {
        plan.apply_into(strengths, &mut out)?;
        runs.push((out.seconds, out.stages));
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, stages) = runs[runs.len() / 2];
    Ok((out, seconds, stages))
}

/// The axes along which an output has derivatives: none, one or two axes of `dim` coordinates.
fn axes(output: Outputs, dim: usize) -> Vec<usize> {
    match output {
        Outputs::GRADIENT => vec![dim],
        Outputs::HESSIAN => vec![dim; 2],
        _ => Vec::new(),
    }
}

/// Saves the requested arrays. Arrays are complex for a `complex` kernel, and for a real kernel with two sets of
/// strengths.
pub fn save(
    file: &mut Pending,
    (m, dim): (usize, usize),
    components: &dyn Fn(Outputs) -> usize,
    outs: &[Output],
    outputs: Outputs,
    complex: bool,
) -> Result<(), Failure> {
    if complex || outs.len() == 2 {
        for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
            let parts: Vec<&[f64]> = outs.iter().map(|out| out.get(output)).collect();
            let shape: Vec<usize> = [m].into_iter().chain(axes(output, dim)).collect();
            let width: usize = shape[1..].iter().product();
            // A row of a complex kernel holds all real parts, then all imaginary parts.
            let part = |i: usize, k: usize| match parts[..] {
                [re, im] => [re[width * i + k], im[width * i + k]],
                _ => [parts[0][2 * width * i + k], parts[0][2 * width * i + width + k]],
            };
            let values: Vec<f64> = (0..m * width).flat_map(|e| part(e / width, e % width)).collect();
            file.add_complex(name, &shape, &values)?;
        }
        return Ok(());
    }
    let out = &outs[0];
    for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
        let derivatives = axes(output, dim);
        let components = components(output) / derivatives.iter().product::<usize>();
        let mut shape = vec![m];
        if components != 1 {
            shape.push(components);
        }
        shape.extend(derivatives);
        file.add(name, &shape, out.get(output))?;
    }
    Ok(())
}

/// A progress bar on the terminal for long work.
fn progress(points: usize) -> Option<ProgressBar> {
    if points < PROGRESS_BAR_POINTS || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::new(100);
    if let Ok(style) = ProgressStyle::with_template("{msg:>9} [{bar:40}] {elapsed}") {
        bar.set_style(style);
    }
    Some(bar)
}

/// Makes `builder` show its phases on the bar.
fn watched(builder: Fmm, bar: &Option<ProgressBar>) -> Fmm {
    let Some(bar) = bar.clone() else { return builder };
    builder.progress(move |p| {
        bar.set_position((100.0 * p.fraction) as u64);
        bar.set_message(p.phase);
        true
    })
}
