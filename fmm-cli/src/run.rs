//! `fmm run`.

use crate::args::{ArraysName, BackendName, OutputName, RunArgs};
use crate::evaluate::{Evaluated, OnDevice, evaluated, seconds_of_moves};
use crate::failure::Failure;
use crate::input::read;
use crate::npy::WHOLE;
use crate::npz::{self, Pending};
use crate::report::Report;
use crate::save::{fit_complex, save, save_demo};
use crate::{calibrate, kernel, npy, print, ranks};
use fmm::{Cuda, Error, Fmm, Outputs, Targets};
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
    pub demo_points: usize,
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
    // The devices are opened, and their programs loaded, while the points are read or made.
    let (read, open) = std::thread::scope(|scope| {
        let open = scope.spawn(|| open(args, &asked.builder, asked.demo_points));
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
    let [open, load] = open?;
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
        Report { kernel, plan: described, stages, apply: seconds, set_points, open, load, repeat: args.repeat, errors };
    printed(args, report)
}

/// Opens the GPUs of a sum on one rank, and makes ready for its plan. Returns the seconds of both.
fn open(args: &RunArgs, builder: &Fmm, demo_points: usize) -> Result<[f64; 2], Error> {
    let start = Instant::now();
    if args.backend == BackendName::Cpu || args.ranks > 1 {
        return Ok([0.0; 2]);
    }
    let devices = args.devices.as_deref().unwrap_or(&[0]);
    devices.iter().try_for_each(|&device| Cuda { device, ..Cuda::default() }.info().map(drop))?;
    let opened = start.elapsed().as_secs_f64();
    let sources = args.sources.as_deref().map_or(Some(demo_points), npy::rows);
    let targets = args.targets.as_deref().map_or(sources, npy::rows);
    // An error is ignored: the plan loads what is missing, and reports it after errors of the points.
    let _ = match sources.zip(targets) {
        Some((sources, targets)) => builder.open_for(sources, targets),
        // Only `.npy` files say how many points they have before they are read.
        None => builder.open(),
    };
    Ok([opened, start.elapsed().as_secs_f64() - opened])
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
