//! `fmm kernel`: kernels listed, shown and checked.

use crate::args::{CheckArgs, KernelArgs, KernelCommand};
use crate::failure::Failure;
use crate::kernel::{self, Choice};
use crate::print;
use fmm::{Error, Fmm, Method, Outputs, Targets, Traced, demo};
use std::fmt::Write;

/// Radii of the plot, in units of the cloud.
const RADII: [f64; 9] = [0.0, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0];
/// Width of the plot in characters.
const WIDTH: f64 = 40.0;

/// Runs `fmm kernel`.
pub fn kernel(command: &KernelCommand) -> Result<(), Failure> {
    match command {
        KernelCommand::List => print(&list()),
        KernelCommand::Show { name } => match fmm::catalog::text(name) {
            Some(text) => print(text),
            None => Err(fmm::catalog::kernel(name).err().map_or(Failure::Closed, Failure::Library)),
        },
        KernelCommand::Check(args) => check(args),
    }
}

/// One line per kernel: name, formula, parameters.
fn list() -> String {
    let mut out = String::new();
    let built = [
        ("laplace", "1/(4 pi r); --source charge, dipole, mixed"),
        ("stokes", "(f/r + d (d.f)/r^3)/(8 pi mu), --mu; --source stokeslet, stresslet"),
        ("yukawa", "e^(-kappa r)/(4 pi r), --kappa"),
        ("gravity", "-1/sqrt(r^2 + e^2), --softening"),
        ("harmonic2d", "in the plane: q/(z_j - z), complex"),
        ("laplace2d", "in the plane: -ln r/(2 pi); --source charge, dipole, mixed"),
    ];
    for (name, formula) in built {
        let _ = writeln!(out, "{name:<23} {formula}");
    }
    for name in fmm::catalog::names() {
        let text = fmm::catalog::text(name).unwrap_or("");
        let formula: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("# ")).collect();
        // The last line of the comment is the source.
        let formula = formula[..formula.len().saturating_sub(1)].join(" ");
        let parameters = text.lines().filter_map(|l| l.strip_prefix("parameter ")).collect::<Vec<_>>().join(", ");
        let set = if parameters.is_empty() { String::new() } else { format!("; --set {parameters}") };
        let _ = writeln!(out, "{name:<23} {formula}{set}");
    }
    out
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let chosen =
        KernelArgs { kernel_file: args.file.clone().or(args.kernel.kernel_file.clone()), ..args.kernel.clone() };
    let Choice::Traced(traced) = kernel::choice(&chosen)? else {
        let reason = "give --expression, --kernel-file or a kernel of the catalog (fmm kernel list)";
        return Err(Failure::Input(reason.to_string()));
    };
    let outputs = kernel::outputs(&args.outputs);
    let facts = traced.kernels(outputs)?;
    let mut out = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "{key:<12} {value}");
    };
    line("kernel", kernel::name(&chosen)?);
    line("dimensions", traced.dim().to_string());
    line("strengths", facts.near.strengths.to_string());
    let values = &traced.kernels(Outputs::POTENTIAL)?.near;
    line("values", values.values.to_string());
    line("densities", facts.members.equivalent.strengths.to_string());
    let parameters: Vec<String> =
        traced.parameters().iter().map(|(n, x)| format!("{n} = {}", x.unwrap_or(f64::NAN))).collect();
    line("parameters", if parameters.is_empty() { "none".to_string() } else { parameters.join(", ") });
    let zero = match (facts.near.singular, facts.include_self) {
        (true, _) => "infinite; counts as 0",
        (false, true) => "finite; a source acts on itself",
        (false, false) => "finite; a source does not act on itself",
    };
    line("at r = 0", zero.to_string());
    let member = &facts.members.equivalent;
    let homogeneous = match facts.params.len() > traced.parameters().len() {
        true => "no powers of a length were found; operators for each level".to_string(),
        false => format!("degree {:?}: times s^degree if all lengths are multiplied by s", values.value_degrees),
    };
    line("dilation", homogeneous);
    let symmetry = match (member.reciprocal, member.piecewise) {
        (true, _) => "K(-r) is the transpose of K(r)",
        (false, true) => "not looked for, as there are branches",
        (false, false) => "K(-r) is not the transpose of K(r)",
    };
    line("symmetry", symmetry.to_string());
    line("operations", format!("{} a pair", facts.near.tape().flops()));
    out.push('\n');
    plot(&mut out, values, &facts.params);
    out.push('\n');
    methods(&mut out, args, &traced)?;
    print(&out)
}

/// The size of the kernel at some distances in one direction, each with a bar as long as its logarithm. The size is the value
/// itself, or for several values or strengths the root of the sum of the squares of all values for strengths 1.
fn plot(out: &mut String, member: &fmm::Member, params: &[f64]) {
    let along = if member.dim == 2 { [0.6, 0.8, 0.0] } else { [0.48, 0.6, 0.64] };
    let size = |r: f64| {
        let column = |c: usize| member.column(params, along.map(|x| r * x), c);
        match (member.linear(), member.values) {
            (1, 1) => column(0)[0],
            (strengths, values) => {
                let square = |c: usize| column(c)[..values].iter().map(|x| x * x).sum::<f64>();
                (0..strengths).map(square).sum::<f64>().sqrt()
            }
        }
    };
    let values = RADII.map(size);
    let log = |x: f64| (x != 0.0 && x.is_finite()).then(|| x.abs().log10());
    let logs: Vec<f64> = values.iter().filter_map(|&x| log(x)).collect();
    let low = logs.iter().copied().fold(f64::INFINITY, f64::min).max(-20.0);
    let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let part = |log: f64| if high > low { (log.max(low) - low) / (high - low) } else { 1.0 };
    for (r, value) in RADII.iter().zip(values) {
        let bar = log(value).map_or(0, |log| 1 + (part(log) * WIDTH) as usize);
        let _ = writeln!(out, "r = {r:<7} {value:>12.4e}  {}", "█".repeat(bar));
    }
}

/// For each tolerance, what each method does on the cloud.
fn methods(out: &mut String, args: &CheckArgs, traced: &Traced) -> Result<(), Failure> {
    let name = args.demo.unwrap_or(kernel::uniform(traced.dim()));
    let demo = kernel::demo(Some(name), traced.dim())?;
    let points = demo::points(demo, args.n, 1);
    let _ = writeln!(out, "{} points, {}", args.n, kernel::demo_name(name));
    let _ = writeln!(out, "tolerance  method        order  measured");
    for &tolerance in &args.tolerance {
        for method in [Method::EquivalentDensities, Method::Interpolation, Method::Auto] {
            let request = Fmm::new(traced.clone())
                .outputs(kernel::outputs(&args.outputs))
                .precision(kernel::precision(args.precision))
                .backend(kernel::backend(args.backend))
                .method(method)
                .tolerance(tolerance);
            let (order, measured) = match request.plan(&points, Targets::Sources) {
                Ok(plan) => {
                    let d = plan.describe();
                    let error = d.probe.as_ref().map(|p| p.outputs.iter().map(|o| o.error).fold(0.0, f64::max));
                    let error = error.filter(|_| d.method != "direct");
                    let error = error.map_or("exact".to_string(), |e| format!("error at most {e:.1e}"));
                    let method = if method == Method::Auto { format!(", by {}", d.method) } else { String::new() };
                    (d.order.map_or("-".to_string(), |p| p.to_string()), error + &method)
                }
                Err(Error::ToleranceFloor { floor, .. }) => ("-".to_string(), format!("refused, floor {floor:.1e}")),
                Err(e) => return Err(e.into()),
            };
            let _ = writeln!(out, "{tolerance:<10e} {:<13} {order:<6} {measured}", method.name());
        }
    }
    Ok(())
}
