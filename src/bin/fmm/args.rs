//! The options.

use clap::{Args, Parser, Subcommand, ValueEnum};
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
    /// Evaluate sums; without options, a million points on an ellipsoid, verified.
    Run(RunArgs),
    /// Show what this machine offers.
    Doctor,
    /// Sweep over sizes, tolerances and methods; write a table and a plot.
    Bench(BenchArgs),
}

/// Green's functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KernelName {
    /// 1/(4πr).
    Laplace,
    /// Stokeslet of viscosity --mu.
    Stokes,
    /// e^(−κr)/(4πr), κ = --kappa.
    Yukawa,
    /// −1/√(r² + ε²), ε = --softening.
    Gravity,
}

/// What a source carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SourceName {
    /// A charge or mass: 1 number (laplace, yukawa, gravity).
    Charge,
    /// A dipole vector: 3 numbers (laplace).
    Dipole,
    /// A charge and a dipole vector: 4 numbers (laplace).
    Mixed,
    /// A force: 3 numbers (stokes).
    Stokeslet,
    /// A force dipole: 9 numbers, row-major (stokes).
    Stresslet,
}

/// Seeded clouds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DemoName {
    /// Uniform in the unit cube.
    Uniform,
    /// On an ellipsoid 1:1:4, dense at the poles.
    Ellipsoid,
    /// Plummer's sphere.
    Plummer,
    /// On a square.
    Plane,
}

/// Methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MethodName {
    /// The cheaper one.
    Auto,
    /// The fast method by equivalent densities.
    Equivalent,
    /// Pair by pair.
    Direct,
}

/// Arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PrecisionName {
    /// Double.
    F64,
    /// Single.
    F32,
}

/// Outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OutputName {
    /// Potential, or velocity.
    Potential,
    /// +∇ of it with respect to the target.
    Gradient,
    /// Its second derivatives.
    Hessian,
    /// Pressure (stokes).
    Pressure,
}

/// Where to compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BackendName {
    /// Threads and SIMD of this machine.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Kernel and its parameters.
#[derive(Args, Clone, Debug)]
pub struct KernelArgs {
    /// Green's function.
    #[arg(long, value_enum, default_value = "laplace")]
    pub kernel: KernelName,
    /// What a source carries [default: charge, for stokes stokeslet].
    #[arg(long, value_enum)]
    pub source: Option<SourceName>,
    /// Inverse screening length of yukawa [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub kappa: Option<f64>,
    /// Viscosity of stokes [default: 1].
    #[arg(long, allow_negative_numbers = true)]
    pub mu: Option<f64>,
    /// Softening length of gravity [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub softening: Option<f64>,
}

/// Options of `fmm run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Sources, N×3 (.npy, else text with commas or blanks).
    #[arg(long, requires = "strengths", conflicts_with = "demo")]
    pub sources: Option<PathBuf>,
    /// Strengths, (N,) or N×c.
    #[arg(long, requires = "sources")]
    pub strengths: Option<PathBuf>,
    /// Targets, M×3 [default: the sources, without self terms].
    #[arg(long)]
    pub targets: Option<PathBuf>,
    /// A seeded cloud with strengths in (0, 1) instead of files.
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Points of the demo [default: 1000000].
    #[arg(long, conflicts_with = "sources")]
    pub n: Option<usize>,
    /// Seed of the demo.
    #[arg(long, default_value_t = 1, conflicts_with = "sources")]
    pub seed: u64,
    /// How.
    #[arg(long, value_enum, default_value = "auto")]
    pub method: MethodName,
    /// Largest relative ℓ2 error of each output [default: 1e-6].
    #[arg(long, allow_negative_numbers = true)]
    pub tolerance: Option<f64>,
    /// Order of the expansion, 3 to 16, instead of a tolerance.
    #[arg(long)]
    pub order: Option<usize>,
    /// Leaf capacity [default: chosen].
    #[arg(long)]
    pub ncrit: Option<usize>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// What each target receives [default: potential].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub outputs: Option<Vec<OutputName>>,
    /// Where.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
    /// Threads [default: all].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Evaluations on the one plan; the median time is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Results, as .npz.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Compare with direct summation at this many random targets.
    #[arg(long)]
    pub verify: Option<usize>,
    /// One JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Options of `fmm bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Cloud.
    #[arg(long, value_enum, default_value = "uniform")]
    pub demo: DemoName,
    /// Numbers of points.
    #[arg(long, value_delimiter = ',', default_value = "10000,31623,100000,316228,1000000")]
    pub n: Vec<usize>,
    /// Tolerances.
    #[arg(long, value_delimiter = ',', default_value = "1e-3,1e-6,1e-9")]
    pub tolerance: Vec<f64>,
    /// Methods.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "equivalent")]
    pub method: Vec<MethodName>,
    /// What each target receives.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "potential,gradient")]
    pub outputs: Vec<OutputName>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// Where.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
    /// Threads [default: all].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Evaluations of each case; the median time is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Folder for bench.csv and bench.svg; made if missing.
    #[arg(long, default_value = "fmm-bench")]
    pub out: PathBuf,
}
