//! The options of a kernel, and those of `fmm kernel`.

use super::names::{BackendName, DemoName, OutputName, PrecisionName, SelfName, SourceName};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Kernel and its parameters.
#[derive(Args, Clone, Debug)]
pub struct KernelArgs {
    /// Green's function: laplace, stokes, yukawa, gravity, in the plane harmonic2d, laplace2d, or a name that `fmm
    /// kernel list` shows.
    #[arg(long, default_value = "laplace")]
    pub kernel: String,
    /// A kernel of your own, an expression of r (or x, y, z), parameters and functions. Example: --expression
    /// "exp(-r/l)" --set l=0.2.
    #[arg(long, conflicts_with_all = ["kernel", "kernel_file"], allow_hyphen_values = true)]
    pub expression: Option<String>,
    /// A file with a kernel of your own, in the language of docs/kernel-files.md.
    #[arg(long, conflicts_with = "kernel", value_name = "FILE")]
    pub kernel_file: Option<PathBuf>,
    /// Coordinates of a point for a kernel from the list, of --expression or of --kernel-file: 2 puts it into the plane,
    /// with r = sqrt(x^2 + y^2) [default: as its file says, else 3].
    #[arg(long, value_parser = dimension)]
    pub dim: Option<usize>,
    /// A parameter of a kernel from the list, of --expression or of --kernel-file.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, f64)>,
    /// Let the C compiler (cc, or that of the variable CC) make the pair loops of a kernel made at run time. Sums on a CPU
    /// are then up to four times as fast. The first plan takes about half a second longer.
    #[arg(long)]
    pub compile: bool,
    /// Whether a source acts on itself, if the targets are the sources [default: skip; include for a kernel from the
    /// list, of --expression or of --kernel-file that is finite at r = 0].
    #[arg(long = "self", value_enum)]
    pub own: Option<SelfName>,
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
    /// The cost model: a file that `fmm calibrate` wrote, or `built-in` [default: the costs that were calibrated on
    /// this machine, kept in $XDG_CACHE_HOME/fmm/costs.json or ~/.cache/fmm/costs.json, or else built-in].
    #[arg(long)]
    pub costs: Option<PathBuf>,
}

/// 2 or 3.
fn dimension(text: &str) -> Result<usize, String> {
    match text {
        "2" => Ok(2),
        "3" => Ok(3),
        _ => Err("expected 2 or 3".to_string()),
    }
}

/// A setting NAME=VALUE.
fn setting(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = value.trim().parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok((name.trim().to_string(), value))
}

/// Options of `fmm kernel`.
#[derive(Subcommand, Clone, Debug)]
pub enum KernelCommand {
    /// The kernels that --kernel takes, with their formulas.
    List,
    /// The text of a kernel from the list, as a beginning of your own.
    Show {
        /// Name.
        name: String,
    },
    /// What was found about a kernel: its facts, a plot, and the methods that carry it to a tolerance on a cloud.
    Check(Box<CheckArgs>),
}

/// Options of `fmm kernel check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// A file with a kernel, instead of --kernel, --expression or --kernel-file.
    #[arg(conflicts_with_all = ["kernel", "expression", "kernel_file"])]
    pub file: Option<PathBuf>,
    /// Kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// What each target receives, a list with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "potential")]
    pub outputs: Vec<OutputName>,
    /// Cloud [default: uniform, in the plane uniform2d].
    #[arg(long, value_enum)]
    pub demo: Option<DemoName>,
    /// Number of points.
    #[arg(long, default_value_t = 20000)]
    pub n: usize,
    /// Tolerances, a list with commas.
    #[arg(long, value_delimiter = ',', default_value = "1e-3,1e-6,1e-9")]
    pub tolerance: Vec<f64>,
    /// Arithmetic.
    #[arg(long, value_enum, default_value = "f64")]
    pub precision: PrecisionName,
    /// Hardware that computes the sums.
    #[arg(long, value_enum, default_value = "cpu")]
    pub backend: BackendName,
}
