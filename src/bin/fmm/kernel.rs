//! From names on the command line to the library's types.

use crate::args::{BackendName, DemoName, KernelArgs, KernelName, MethodName, OutputName, PrecisionName, SourceName};
use crate::failure::Failure;
use fmm::demo::Demo;
use fmm::{
    Backend, Cpu, Cuda, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, Method, Outputs, Precision, Stokes,
    StokesPressure, Stresslet, Yukawa,
};

/// The builder for a kernel and what its sources carry.
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
        (KernelName::Stokes, SourceName::Stresslet) => Fmm::new(Stresslet { mu }),
        (kernel, source) => {
            let text = format!("kernel {} has no sources of kind {source:?}", name(kernel));
            return Err(Failure::Input(text.to_lowercase()));
        }
    };
    Ok(fmm.outputs(outputs))
}

/// The name of a kernel in reports.
pub fn name(kernel: KernelName) -> &'static str {
    match kernel {
        KernelName::Laplace => "laplace",
        KernelName::Stokes => "stokes",
        KernelName::Yukawa => "yukawa",
        KernelName::Gravity => "gravity",
    }
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
        MethodName::Direct => Method::Direct,
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
pub fn demo(name: DemoName) -> Demo {
    match name {
        DemoName::Uniform => Demo::Uniform,
        DemoName::Ellipsoid => Demo::Ellipsoid,
        DemoName::Plummer => Demo::Plummer,
        DemoName::Plane => Demo::Plane,
    }
}
