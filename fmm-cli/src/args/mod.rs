//! The options.

mod kernel;
mod names;

pub use kernel::{CheckArgs, KernelArgs, KernelCommand};
pub use names::*;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Fast multipole summation with a promised tolerance.
#[derive(Parser)]
#[command(name = "fmm", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Evaluate sums; without options, a showcase.
    ///
    /// Without --sources and --demo: the showcase, charges on an ellipsoid, 1000000 points, potential and gradient,
    /// tolerance 1e-5, verified at 1000 targets. Options given replace its parts.
    Run(RunArgs),
    /// Show what this machine offers.
    Doctor,
    /// Sweep over sizes, tolerances and methods; write a table and a plot.
    Bench(BenchArgs),
    /// Compare variants on the same points: errors, seconds, stages; write a table and a page of plots.
    Compare(CompareArgs),
    /// Measure the unit costs of this machine, in a few seconds, and keep them for later runs. The choice of method
    /// and leaf size rests on these costs.
    Calibrate(CalibrateArgs),
    /// Kernels: list them, show one, check one.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Forecast a sum on many ranks: imbalance of work, messages and bytes for each exchange.
    ///
    /// The ranks are threads that place the points and sum once. The messages of this sum are counted, and timed by the
    /// LogGP model of a network without contention. Times of work are forecasts for one core by the cost model.
    Ranks(RanksArgs),
    /// Draw the boxes, and in colour what one of them meets.
    Tree(TreeArgs),
}

/// Variants of the methods.
#[derive(Args, Clone, Debug)]
pub struct VariantArgs {
    /// Translations of spherical harmonics [default: rcr; on a GPU what is faster of rcr and dense products].
    #[arg(long, value_enum)]
    pub translation: Option<TranslationName>,
    /// Truncation of spherical harmonics [default: variable, on a GPU fixed].
    #[arg(long, value_enum)]
    pub truncation: Option<TruncationName>,
    /// Lists [default: uvwx].
    #[arg(long, value_enum)]
    pub lists: Option<ListsName>,
    /// Expansion of a treecode [default: spherical where the kernel has it].
    #[arg(long, value_enum)]
    pub expansion: Option<ExpansionName>,
    /// Opening angle of a treecode, side over distance; in the plane θ of the criterion of separation [default:
    /// chosen].
    #[arg(long, allow_negative_numbers = true)]
    pub theta: Option<f64>,
    /// Values of each attribute of the sources in far fields, 1 to 4 [default: chosen].
    #[arg(long)]
    pub nodes: Option<usize>,
}

/// The name and the file of `name=file`.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_string(), file.into())),
        _ => Err("expected NAME=FILE".to_string()),
    }
}

/// Options of `fmm calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// What each target receives, a list with commas [default: potential, and in turn potential,gradient].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub outputs: Option<Vec<OutputName>>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// The processor to measure: one core of the CPU, or the GPU.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
}

/// Options of `fmm run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Sources, N×3, in the plane N×2 or complex (.npy, else text with commas or blanks).
    #[arg(long, requires = "strengths", conflicts_with = "demo")]
    pub sources: Option<PathBuf>,
    /// Strengths, (N,) or N×c for the c numbers that a --source carries; in the plane real or complex.
    #[arg(long, requires = "sources")]
    pub strengths: Option<PathBuf>,
    /// A parameter of a kernel from the list, of --expression or of --kernel-file with a value of its own for each
    /// source, (N,), such as a radius.
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub attribute: Vec<(String, PathBuf)>,
    /// Targets, like the sources [default: the sources; --self says whether with self terms].
    #[arg(long)]
    pub targets: Option<PathBuf>,
    /// A seeded cloud with strengths in (0, 1) instead of files [default without files: ellipsoid, the showcase].
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Points of the demo [default: 1000000].
    #[arg(long, conflicts_with = "sources")]
    pub n: Option<usize>,
    /// Seed of the demo.
    #[arg(long, default_value_t = 1, conflicts_with = "sources")]
    pub seed: u64,
    /// Method that computes the sums.
    #[arg(long, value_enum, default_value = "auto")]
    pub method: MethodName,
    /// Variant of the method.
    #[command(flatten)]
    pub variant: VariantArgs,
    /// Largest relative ℓ2 error of each output [default: 1e-6; f32: 1e-5, or the least error reached if larger;
    /// showcase: 1e-5].
    #[arg(long, allow_negative_numbers = true)]
    pub tolerance: Option<f64>,
    /// What the tolerance bounds.
    #[arg(long, value_enum, default_value = "l2")]
    pub norm: NormName,
    /// Order of the expansion, 3 to 16 (spherical harmonics 1 to 40, in the plane 1 to 60), instead of a tolerance.
    #[arg(long)]
    pub order: Option<usize>,
    /// Leaf capacity, in the plane desired population [default: chosen].
    #[arg(long)]
    pub ncrit: Option<usize>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// What each target receives, a list with commas [default: potential; showcase: potential,gradient].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub outputs: Option<Vec<OutputName>>,
    /// Hardware that computes the sums.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
    /// GPUs by number, with --backend cuda, such as 0,1: they share out the sums. With --ranks, rank r computes on GPU r
    /// of the list, which starts again at its end. With --backend hybrid, one, or with --ranks several [default: 0].
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    pub devices: Option<Vec<usize>>,
    /// Memory of the GPU that arrays may take, with --backend cuda, such as 8GB, 500MB or 8GiB. Where the sums of all
    /// targets do not fit beside the rest of the plan, targets are taken in pieces [default: what is free].
    #[arg(long, value_name = "BYTES", value_parser = names::bytes, conflicts_with = "devices")]
    pub device_memory: Option<u64>,
    /// Folder that keeps operators and compiled programs between runs [default with --backend cuda or hybrid:
    /// $XDG_CACHE_HOME/fmm/operators or ~/.cache/fmm/operators; on a CPU: none].
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_cache")]
    pub cache: Option<PathBuf>,
    /// Keeps no operators and programs between runs.
    #[arg(long)]
    pub no_cache: bool,
    /// Where points, strengths and sums are, with --backend cuda. With `device` they are copied there once, and
    /// `seconds` are those of planning, evaluating and moving points on arrays of the device, without transfers.
    #[arg(long, value_enum, default_value = "host")]
    pub arrays: ArraysName,
    /// Type of strengths and sums of the evaluation, whatever the arithmetic, and of points with --arrays device. Files hold
    /// f64.
    #[arg(long, value_enum, default_value = "f64")]
    pub numbers: PrecisionName,
    /// Threads [default: all].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Ranks that plan and sum together, as threads of this process, each with an equal piece of the points. --threads
    /// counts for each rank [default with several ranks: the cores, shared out].
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks: u32,
    /// How ranks exchange the multipoles of boxes that they share [default: frontier up to 256 ranks, else direct].
    #[arg(long, value_enum)]
    pub exchange: Option<ExchangeName>,
    /// How fast the ranks are, relative to each other: a positive number for each rank, such as 1,2,2. Fast methods give
    /// a rank work in proportion [default: equally fast].
    #[arg(long, value_delimiter = ',')]
    pub speeds: Option<Vec<f64>>,
    /// Ranks first move sources and strengths to the ranks that own them, and plan again there. Then no strength or sum travels
    /// between a caller and an owner. Values come in the order of the owners, so that --out is refused.
    #[arg(long)]
    pub adopt: bool,
    /// Runs no GPU stage beside another, so that the seconds of each stage are its own.
    #[arg(long)]
    pub stages_apart: bool,
    /// Evaluations on the one plan; the median time is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Results: an .npz file, or for a single output an .npy file, without the points of a demo.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Compare with direct summation at this many random targets [default: not; showcase: 1000].
    #[arg(long)]
    pub verify: Option<usize>,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Options of `fmm ranks`.
#[derive(Args, Clone, Debug)]
pub struct RanksArgs {
    /// Number of ranks. Up to 64 ranks run, and their messages are recorded; those of more ranks are counted from one tree.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub simulate: u32,
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Cloud.
    #[arg(long, value_enum, default_value = "ellipsoid")]
    pub demo: DemoName,
    /// Number of points.
    #[arg(long, default_value_t = 200_000)]
    pub n: usize,
    /// Seed of the cloud and its strengths.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Order of the expansion, by equivalent densities.
    #[arg(long, default_value_t = 4)]
    pub order: usize,
    /// Leaf capacity [default: chosen].
    #[arg(long)]
    pub ncrit: Option<usize>,
    /// Exchanges, a list with commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub exchange: Option<Vec<ExchangeName>>,
    /// Seconds from one rank to another [default: that between the farthest nodes of a Cray XT3 by design (Brightwell et
    /// al., Portals 3.3 on Red Storm)].
    #[arg(long, default_value_t = 5e-6)]
    pub latency: f64,
    /// Seconds that a rank itself spends on a message that it sends or takes [default: assumed].
    #[arg(long, default_value_t = 1e-6)]
    pub overhead: f64,
    /// Bytes a second out of a rank [default: that of a node of the same machine].
    #[arg(long, default_value_t = 1.5e9)]
    pub bandwidth: f64,
    /// Count messages also for few ranks.
    #[arg(long)]
    pub count: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Options of `fmm tree`.
#[derive(Args, Clone, Debug)]
pub struct TreeArgs {
    /// The picture, .svg: the plane, or a slice across z.
    #[arg(long)]
    pub plot: PathBuf,
    /// Points, N×2 or N×3.
    #[arg(long, conflicts_with = "demo")]
    pub sources: Option<PathBuf>,
    /// A seeded cloud [default: normal2d].
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Points of the demo [default: 5000].
    #[arg(long, conflicts_with = "sources")]
    pub n: Option<usize>,
    /// Seed of the demo.
    #[arg(long, default_value_t = 1, conflicts_with = "sources")]
    pub seed: u64,
    /// Leaf capacity, in the plane desired population [default: for 40 points a leaf].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub ncrit: Option<u32>,
    /// θ of the criterion of separation in the plane [default: 0.5].
    #[arg(long, allow_negative_numbers = true)]
    pub theta: Option<f64>,
}

/// Options of commands that run many cases: what the cases share.
#[derive(Args, Clone, Debug)]
pub struct CaseArgs {
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// What each target receives, a list with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "potential,gradient")]
    pub outputs: Vec<OutputName>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// Hardware that computes the sums.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
    /// Threads [default: all].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Evaluations of each case; the median time is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
}

/// Options of `fmm bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What all cases share.
    #[command(flatten)]
    pub cases: CaseArgs,
    /// Cloud [default: uniform, in the plane uniform2d].
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Numbers of points, a list with commas.
    #[arg(long, value_delimiter = ',', default_value = "10000,31623,100000,316228,1000000")]
    pub n: Vec<usize>,
    /// Tolerances, a list with commas.
    #[arg(long, value_delimiter = ',', default_value = "1e-3,1e-6,1e-9")]
    pub tolerance: Vec<f64>,
    /// Methods, a list with commas [default: equivalent, in the plane laurent].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub method: Option<Vec<MethodName>>,
    /// Folder for bench.csv and bench.svg; made if missing.
    #[arg(long, default_value = "fmm-bench")]
    pub out: PathBuf,
}

/// Options of `fmm compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// What all cases share.
    #[command(flatten)]
    pub cases: CaseArgs,
    /// Sources, N×3, in the plane N×2 or complex (.npy, else text with commas or blanks).
    #[arg(long, requires = "strengths", conflicts_with = "demo")]
    pub sources: Option<PathBuf>,
    /// Strengths, (N,) or N×c for the c numbers that a --source carries.
    #[arg(long, requires = "sources")]
    pub strengths: Option<PathBuf>,
    /// A seeded cloud with strengths in (0, 1) instead of files [default: uniform, in the plane uniform2d].
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Seed of the cloud and its strengths.
    #[arg(long, default_value_t = 1, conflicts_with = "sources")]
    pub seed: u64,
    /// Numbers of points; of files the first so many.
    #[arg(long, value_delimiter = ',', default_value = "10000,30000,100000")]
    pub n: Vec<usize>,
    /// Variants: method[+option…], where an option is a value of --translation, --truncation, --lists or --expansion,
    /// or an angle θ [default: direct,equivalent,spherical,spherical+fixed,spherical+stencil119,treecode, in the
    /// plane direct,laurent,laurent+0.4,laurent+0.7].
    #[arg(long, value_delimiter = ',')]
    pub variants: Option<Vec<String>>,
    /// Orders to run each variant at [default: 4,6,8,10,12, in the plane 8,12,16,20,24,28].
    #[arg(long, value_delimiter = ',')]
    pub orders: Option<Vec<usize>>,
    /// The error of each output at which variants are compared over N.
    #[arg(long, default_value_t = 1e-5)]
    pub error: f64,
    /// Folder for compare.csv, compare.json, compare.svg and compare.html; made if missing.
    #[arg(long, default_value = "fmm-compare")]
    pub out: PathBuf,
}
