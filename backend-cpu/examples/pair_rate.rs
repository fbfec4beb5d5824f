//! Pair rates of direct summation on one core, of compiled kernels, and of the same kernels made at run time,
//! interpreted and by the system's C compiler:
//! `cargo run --release -p backend-cpu --example pair_rate`.
use backend_cpu::{Isa, Pairs, direct_batch};
use fmm_kernels::{Laplace, Stokes, Yukawa};
use fmm_traits::testkit::clouds::{CloudKind, uniform_strengths};
use fmm_traits::{Error, Family, Kernels, Outputs, Precision, Targets, Traced};

/// Sources and targets.
const POINTS: usize = 6000;
/// Runs of a sum, of which the fastest counts.
const RUNS: usize = 5;

/// Pairs per second of the `kernels`.
fn rate(kernels: &Kernels, pairs: &Pairs, precision: Precision, isa: Isa) -> Result<f64, Error> {
    let x = CloudKind::Uniform.points(POINTS, 1);
    let q = uniform_strengths(POINTS * kernels.near.strengths, 1);
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = std::time::Instant::now();
        std::hint::black_box(direct_batch(kernels, pairs, &x, &[&q], Targets::Points(&x), precision, isa)?);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((POINTS * POINTS) as f64 / best)
}

/// Prints the rates of `family` and of its twin in `text`.
fn compare<F: Family>(family: F, text: &str) -> Result<(), Error> {
    let traced = Traced::parse(text)?;
    let gradients = Outputs::POTENTIAL | Outputs::GRADIENT;
    for isa in [Isa::detect()] {
        for precision in [Precision::F64, Precision::F32] {
            for outputs in [Outputs::POTENTIAL, gradients, Outputs::POTENTIAL | Outputs::HESSIAN] {
                let kernels = Kernels::of(&family, outputs)?;
                let compiled = rate(&kernels, &Pairs::of(&family, outputs)?, precision, isa)?;
                let kernels = traced.kernels(outputs)?;
                let interpreted = rate(&kernels, &Pairs::traced(&kernels), precision, isa)?;
                let native = rate(&kernels, &Pairs::native(&kernels)?, precision, isa)?;
                println!(
                    "{:<8} {:<8} {} {:<21} compiled {:.3}, interpreted {:.3}, by cc {:.3} Gpairs/s; quotients {:.2}, {:.2}",
                    family.name(),
                    isa.name(),
                    precision.name(),
                    outputs.names().join(","),
                    compiled * 1e-9,
                    interpreted * 1e-9,
                    native * 1e-9,
                    compiled / interpreted,
                    compiled / native
                );
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stokes = "g = 1/r\nh = (x*q1 + y*q2 + z*q3)*g^3\nvalue g*q1 + h*x\nvalue g*q2 + h*y\nvalue g*q3 + h*z";
    rayon::ThreadPoolBuilder::new().num_threads(1).build()?.install(|| {
        compare(Laplace, "value 1/r")?;
        compare(Yukawa { kappa: 1.0 }, "parameter k = 1\nvalue exp(-k*r)/r")?;
        compare(Stokes { mu: 1.0 }, stokes)
    })?;
    Ok(())
}
