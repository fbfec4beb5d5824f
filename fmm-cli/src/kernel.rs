//! From names on the command line to the library's types.

use crate::args::{
    BackendName, CaseArgs, DemoName, ExpansionName, KernelArgs, KernelName, ListsName, MethodName, NormName,
    OutputName, PrecisionName, SelfName, SourceName, TranslationName, TruncationName, VariantArgs,
};
use crate::calibrate;
use crate::failure::Failure;
use clap::ValueEnum;
use fmm::demo::Demo;
use fmm::{
    Backend, Cpu, Cuda, Expansion, Fmm, Gravity, Harmonic2d, Hybrid, Laplace, Laplace2d, Laplace2dDipole,
    Laplace2dMixed, LaplaceDipole, LaplaceMixed, ListPolicy, Method, Norm, Outputs, Precision, SelfInteraction, Stokes,
    StokesPressure, Stresslet, Traced, Translation, Truncation, Yukawa,
};

/// The kernel that options choose.
pub enum Choice {
    /// A compiled kernel.
    Built(KernelName),
    /// A kernel made at run time.
    Traced(Box<Traced>),
}

/// The kernel that `args` choose.
pub fn choice(args: &KernelArgs) -> Result<Choice, Failure> {
    let mut traced = match (&args.expression, &args.kernel_file) {
        (Some(text), _) => Traced::expression(text)?,
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|e| Failure::file(path, e))?;
            Traced::parse(&text).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?
        }
        (None, None) => match KernelName::from_str(&args.kernel, false) {
            Ok(name) => {
                if let Some((name, _)) = args.set.first() {
                    let kernel = &args.kernel;
                    return Err(Failure::Input(format!("--set {name} has no meaning for kernel {kernel}")));
                }
                let dim = dim_of(name);
                return if args.dim.is_none_or(|asked| asked == dim) {
                    Ok(Choice::Built(name))
                } else {
                    Err(other_dim(&args.kernel, dim))
                };
            }
            Err(_) => fmm::catalog::kernel(&args.kernel).map_err(|_| {
                let known: Vec<String> = names().collect();
                Failure::Input(format!("there is no kernel {}; known are {}", args.kernel, known.join(", ")))
            })?,
        },
    };
    for (name, value) in &args.set {
        traced = traced.set(name, *value)?;
    }
    match args.dim {
        Some(2) => traced = traced.in_plane(),
        Some(_) if traced.dim() == 2 => return Err(other_dim(traced.name(), 2)),
        _ => {}
    }
    Ok(Choice::Traced(Box::new(traced)))
}

/// The names that --kernel takes.
pub fn names() -> impl Iterator<Item = String> {
    let built = KernelName::value_variants().iter().map(|k| name_of(*k).to_string());
    built.chain(fmm::catalog::names().map(str::to_string))
}

/// The request that all cases share.
pub fn of_cases(args: &CaseArgs) -> Result<Fmm, Failure> {
    let request = builder(&args.kernel, outputs(&args.outputs))?;
    let request = request.backend(backend(args.backend)).precision(precision(args.precision));
    Ok(if let Some(threads) = args.threads { request.threads(threads) } else { request })
}

/// The builder for a kernel and the kind of its sources.
pub fn builder(args: &KernelArgs, outputs: Outputs) -> Result<Fmm, Failure> {
    let choice = choice(args)?;
    let own = args.own.map(|own| match own {
        SelfName::Include => SelfInteraction::Include,
        SelfName::Skip => SelfInteraction::Skip,
    });
    let built = match &choice {
        Choice::Built(kernel) => Some(*kernel),
        Choice::Traced(_) => None,
    };
    for (option, given, owner) in [
        ("--kappa", args.kappa, KernelName::Yukawa),
        ("--mu", args.mu, KernelName::Stokes),
        ("--softening", args.softening, KernelName::Gravity),
    ] {
        if given.is_some() && built != Some(owner) {
            return Err(Failure::Input(format!("{option} has no meaning for kernel {}", name(args)?)));
        }
    }
    if args.compile && built.is_some() {
        return Err(Failure::Input(format!("--compile has no meaning for kernel {}, which is compiled", name(args)?)));
    }
    let kernel = match choice {
        Choice::Built(kernel) => kernel,
        Choice::Traced(traced) => {
            if args.source.is_some() {
                return Err(Failure::Input(format!("kernel {} has no kinds of sources", name(args)?)));
            }
            let traced = own.map_or(traced.clone(), |own| Box::new(traced.self_interaction(own)));
            let fmm = Fmm::new(*traced).outputs(outputs).cost_model(calibrate::costs(args.costs.as_deref())?);
            return Ok(if args.compile { fmm.compiled() } else { fmm });
        }
    };
    let usual = if kernel == KernelName::Stokes { SourceName::Stokeslet } else { SourceName::Charge };
    let mu = args.mu.unwrap_or(1.0);
    let fmm = match (kernel, args.source.unwrap_or(usual)) {
        (KernelName::Laplace, SourceName::Charge) => Fmm::new(Laplace),
        (KernelName::Laplace, SourceName::Dipole) => Fmm::new(LaplaceDipole),
        (KernelName::Laplace, SourceName::Mixed) => Fmm::new(LaplaceMixed),
        (KernelName::Yukawa, SourceName::Charge) => Fmm::new(Yukawa { kappa: args.kappa.unwrap_or(1.0) }),
        (KernelName::Gravity, SourceName::Charge) => {
            Fmm::new(Gravity { g: 1.0, softening: args.softening.unwrap_or(0.0) })
        }
        (KernelName::Stokes, SourceName::Stokeslet) if outputs.contains(Outputs::PRESSURE) => {
            Fmm::new(StokesPressure { mu })
        }
        (KernelName::Stokes, SourceName::Stokeslet) => Fmm::new(Stokes { mu }),
        (KernelName::Harmonic2d, SourceName::Charge) => Fmm::new(Harmonic2d),
        (KernelName::Laplace2d, SourceName::Charge) => Fmm::new(Laplace2d),
        (KernelName::Laplace2d, SourceName::Dipole) => Fmm::new(Laplace2dDipole),
        (KernelName::Laplace2d, SourceName::Mixed) => Fmm::new(Laplace2dMixed),
        (KernelName::Stokes, SourceName::Stresslet) => Fmm::new(Stresslet { mu }),
        (kernel, source) => {
            let text = format!("kernel {} has no sources of kind {source:?}", name_of(kernel));
            return Err(Failure::Input(text.to_lowercase()));
        }
    };
    let fmm = own.map_or(fmm.clone(), |own| fmm.self_interaction(own));
    Ok(fmm.outputs(outputs).cost_model(calibrate::costs(args.costs.as_deref())?))
}

/// The name of a kernel in reports.
pub fn name(args: &KernelArgs) -> Result<String, Failure> {
    Ok(match (&args.expression, choice(args)?) {
        (Some(text), _) => text.trim().to_string(),
        (None, Choice::Built(kernel)) => name_of(kernel).to_string(),
        (None, Choice::Traced(traced)) => traced.name().to_string(),
    })
}

fn name_of(kernel: KernelName) -> &'static str {
    match kernel {
        KernelName::Laplace => "laplace",
        KernelName::Stokes => "stokes",
        KernelName::Yukawa => "yukawa",
        KernelName::Gravity => "gravity",
        KernelName::Harmonic2d => "harmonic2d",
        KernelName::Laplace2d => "laplace2d",
    }
}

/// Coordinates per point of a kernel.
pub fn dim(args: &KernelArgs) -> Result<usize, Failure> {
    Ok(match choice(args)? {
        Choice::Built(kernel) => dim_of(kernel),
        Choice::Traced(kernel) => kernel.dim(),
    })
}

fn dim_of(kernel: KernelName) -> usize {
    if matches!(kernel, KernelName::Harmonic2d | KernelName::Laplace2d) { 2 } else { 3 }
}

/// The failure of `--dim` for a kernel that has another dimension.
fn other_dim(kernel: &str, dim: usize) -> Failure {
    Failure::Input(format!("kernel {kernel} takes points of {dim} coordinates, whatever --dim"))
}

/// Whether potentials are complex numbers.
pub fn is_complex(args: &KernelArgs) -> Result<bool, Failure> {
    Ok(matches!(choice(args)?, Choice::Built(KernelName::Harmonic2d)))
}

/// The set of outputs.
pub fn outputs(names: &[OutputName]) -> Outputs {
    names.iter().fold(Outputs::empty(), |set, name| {
        set | match name {
            OutputName::Potential => Outputs::POTENTIAL,
            OutputName::Gradient => Outputs::GRADIENT,
            OutputName::Hessian => Outputs::HESSIAN,
            OutputName::Pressure => Outputs::PRESSURE,
        }
    })
}

/// The method.
pub fn method(name: MethodName) -> Method {
    match name {
        MethodName::Auto => Method::Auto,
        MethodName::Equivalent => Method::EquivalentDensities,
        MethodName::Interpolation => Method::Interpolation,
        MethodName::Spherical => Method::SphericalHarmonics,
        MethodName::Treecode => Method::Treecode,
        MethodName::Laurent => Method::Laurent,
        MethodName::Direct => Method::Direct,
    }
}

/// `builder` with the options of `args`.
pub fn with_variant(mut builder: Fmm, args: &VariantArgs) -> Fmm {
    if let Some(name) = args.translation {
        builder = builder.translation(match name {
            TranslationName::Rcr => Translation::Rcr,
            TranslationName::Domains => Translation::Domains,
            TranslationName::Direct => Translation::Direct,
        });
    }
    if let Some(name) = args.truncation {
        builder = builder.truncation(match name {
            TruncationName::Variable => Truncation::Variable,
            TruncationName::Fixed => Truncation::Fixed,
        });
    }
    if let Some(name) = args.lists {
        builder = builder.lists(match name {
            ListsName::Uvwx => ListPolicy::Uvwx,
            ListsName::Stencil119 => ListPolicy::Stencil119,
        });
    }
    if let Some(name) = args.expansion {
        builder = builder.expansion(match name {
            ExpansionName::Spherical => Expansion::Spherical,
            ExpansionName::Equivalent => Expansion::Equivalent,
            ExpansionName::Interpolation => Expansion::Interpolation,
        });
    }
    if let Some(theta) = args.theta {
        builder = builder.theta(theta);
    }
    match args.nodes {
        Some(nodes) => builder.nodes(nodes),
        None => builder,
    }
}

/// The norm.
pub fn norm(name: NormName) -> Norm {
    match name {
        NormName::L2 => Norm::L2,
        NormName::Max => Norm::Max,
    }
}

/// The backend.
pub fn backend(name: BackendName) -> Backend {
    backend_on(name, 0)
}

/// A backend whose GPU, if it has one, has a number.
pub fn backend_on(name: BackendName, device: usize) -> Backend {
    let cuda = Cuda { device, ..Cuda::default() };
    match name {
        BackendName::Cpu => Cpu::default().into(),
        BackendName::Cuda => cuda.into(),
        BackendName::Hybrid => Hybrid { cuda, ..Hybrid::default() }.into(),
    }
}

/// The precision.
pub fn precision(name: PrecisionName) -> Precision {
    match name {
        PrecisionName::F64 => Precision::F64,
        PrecisionName::F32 => Precision::F32,
    }
}

/// The cloud.
pub fn cloud(name: DemoName) -> Demo {
    match name {
        DemoName::Uniform => Demo::Uniform,
        DemoName::Ellipsoid => Demo::Ellipsoid,
        DemoName::Plummer => Demo::Plummer,
        DemoName::Plane => Demo::Plane,
        DemoName::Uniform2d => Demo::Uniform2d,
        DemoName::Normal2d => Demo::Normal2d,
        DemoName::Layer2d => Demo::Layer2d,
    }
}

/// The uniform cloud for points of `dim` coordinates.
pub fn uniform(dim: usize) -> DemoName {
    if dim == 2 { DemoName::Uniform2d } else { DemoName::Uniform }
}

/// The named cloud, or the default cloud, for points of `dim` coordinates.
pub fn demo(name: Option<DemoName>, dim: usize) -> Result<Demo, Failure> {
    let demo = cloud(name.unwrap_or(if dim == 2 { DemoName::Uniform2d } else { DemoName::Ellipsoid }));
    if demo.dim() == dim {
        return Ok(demo);
    }
    let text = format!("the points of this demo have {} coordinates, the kernel takes {dim}", demo.dim());
    Err(Failure::Input(text))
}

/// The name of a cloud on the command line.
pub fn demo_name(name: DemoName) -> String {
    name.to_possible_value().map_or(String::new(), |v| v.get_name().to_string())
}
