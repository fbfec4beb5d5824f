//! Names of options with a list of values.

use clap::ValueEnum;

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
    /// In the plane: Γ/(z_j − z), complex strengths and potentials.
    Harmonic2d,
    /// In the plane: −ln r/(2π).
    Laplace2d,
}

/// What a source carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SourceName {
    /// A charge or mass: 1 number (laplace, yukawa, gravity, laplace2d), for harmonic2d complex.
    Charge,
    /// A dipole vector: 3 numbers (laplace), in the plane 2 (laplace2d).
    Dipole,
    /// A charge and a dipole vector: 4 numbers (laplace), in the plane 3 (laplace2d).
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
    /// In the plane: uniform in the unit square.
    Uniform2d,
    /// In the plane: normal, variance 1/100, within the unit square.
    Normal2d,
    /// In the plane: a layer, x uniform, y normal.
    Layer2d,
}

/// Methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MethodName {
    /// The cheapest of direct, equivalent, interpolation, spherical and treecode that keeps the tolerance; with
    /// --order, of direct and equivalent; for harmonic2d and laplace2d, of direct and laurent.
    Auto,
    /// The fast method by equivalent densities, for kernels of elliptic equations.
    Equivalent,
    /// The fast method by interpolation on grids, for any smooth kernel.
    Interpolation,
    /// The fast method by spherical harmonics (laplace, gravity).
    Spherical,
    /// Multipoles straight to targets.
    Treecode,
    /// The fast method of the plane by Laurent series.
    Laurent,
    /// Pair by pair.
    Direct,
}

/// Translations of spherical harmonics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum TranslationName {
    /// Rotate, shift along the axis, rotate back.
    Rcr,
    /// As rcr, but a translation may end at a group of two or four children: with --lists stencil119, 61 translations
    /// a box.
    Domains,
    /// Term by term.
    Direct,
}

/// Truncation of spherical harmonics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum TruncationName {
    /// Fewer degrees for distant pairs.
    Variable,
    /// All degrees.
    Fixed,
}

/// Lists of the fast multipole method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ListsName {
    /// U, V, W and X.
    Uvwx,
    /// 119 translations a box instead of 189 (spherical).
    Stencil119,
}

/// Expansions of a treecode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ExpansionName {
    /// Spherical harmonics.
    Spherical,
    /// Equivalent densities.
    Equivalent,
    /// Interpolation on grids.
    Interpolation,
}

/// What a tolerance bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum NormName {
    /// The relative ℓ2 error of each output.
    L2,
    /// The largest relative error of the potential (harmonic2d).
    Max,
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
    /// Gradient of the potential at the target.
    Gradient,
    /// Second derivatives of the potential.
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
    /// Both at once: the GPU sums the near field, the cores the far field.
    Hybrid,
}

/// How ranks exchange multipoles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ExchangeName {
    /// Each rank sends its part of a multipole to its readers.
    Direct,
    /// Parts travel along a hypercube and are added up on the way (Lashuk et al. 2009).
    Hypercube,
    /// All parts go through rank 0 (Hu et al. 2012).
    Manager,
    /// Complete multipoles alone travel; the sums have the bits of one rank.
    Frontier,
}

/// Where the arrays of the caller are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ArraysName {
    /// In the memory of the host.
    Host,
    /// In the memory of the GPU.
    Device,
}

/// Whether a source acts on itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SelfName {
    /// K(0)·q of the source itself is a part of the sum.
    Include,
    /// A target skips the source that it is.
    Skip,
}

/// A number of bytes with a unit: 8GB, 500MB, 8GiB, 1.5e9.
pub fn bytes(text: &str) -> Result<u64, String> {
    let split = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = text.split_at(split);
    let units: [(&str, u64); 9] = [
        ("", 1),
        ("B", 1),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
    ];
    let factor = units.iter().find(|(name, _)| *name == unit.to_ascii_uppercase()).map(|(_, factor)| *factor);
    match (number.parse::<f64>(), factor) {
        (Ok(number), Some(factor)) if number > 0.0 && number.is_finite() => Ok((number * factor as f64) as u64),
        _ => Err("a positive number of bytes, such as 8GB, 500MB or 8GiB".to_string()),
    }
}
