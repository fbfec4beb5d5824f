//! From names on the command line to the library's types.

use crate::args::{
    BackendName, DemoName, ExpansionName, KernelArgs, KernelName, ListsName, MethodName, NormName, OutputName,
    PrecisionName, SourceName, TranslationName, TruncationName, VariantArgs,
};
use crate::calibrate;
use crate::failure::Failure;
use clap::ValueEnum;
use fmm::demo::Demo;
use fmm::{
    Backend, Cpu, Cuda, Expansion, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, ListPolicy, Method, Norm,
    Outputs, PlaneKernel, Precision, Stokes, StokesPressure, Stresslet, Translation, Truncation, Yukawa,
};

/// The builder for a kernel and the kind of its sources.
pub fn builder(args: &KernelArgs, outputs: Outputs) -> Result<Fmm, Failure> {
    for (option, given, owner) in [
        ("--kappa", args.kappa, KernelName::Yukawa),
        ("--mu", args.mu, KernelName::Stokes),
        ("--softening", args.softening, KernelName::Gravity),
    ] {
        if given.is_some() && args.kernel != owner {
            return Err(Failure::Input(format!("{option} has no meaning for kernel {}", name(args.kernel))));
        }
    }
    let usual = if args.kernel == KernelName::Stokes { SourceName::Stokeslet } else { SourceName::Charge };
    let mu = args.mu.unwrap_or(1.0);
    let fmm = match (args.kernel, args.source.unwrap_or(usual)) {
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
        (KernelName::Harmonic2d, SourceName::Charge) => Fmm::new(PlaneKernel::Harmonic),
        (KernelName::Laplace2d, SourceName::Charge) => Fmm::new(PlaneKernel::Laplace),
        (KernelName::Stokes, SourceName::Stresslet) => Fmm::new(Stresslet { mu }),
        (kernel, source) => {
            let text = format!("kernel {} has no sources of kind {source:?}", name(kernel));
            return Err(Failure::Input(text.to_lowercase()));
        }
    };
    Ok(fmm.outputs(outputs).cost_model(calibrate::costs(args.costs.as_deref())?))
}

/// The name of a kernel in reports.
pub fn name(kernel: KernelName) -> &'static str {
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
pub fn dim(kernel: KernelName) -> usize {
    if matches!(kernel, KernelName::Harmonic2d | KernelName::Laplace2d) { 2 } else { 3 }
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
        });
    }
    match args.theta {
        Some(theta) => builder.theta(theta),
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
    match name {
        BackendName::Cpu => Cpu::default().into(),
        BackendName::Cuda => Cuda::default().into(),
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
