//! The same sum twice: pair by pair, and in O(N).
//!
//! `cargo run --release --example 01_direct_vs_fmm`

use fmm::{Error, Fmm, Laplace, Method, Outputs, Targets, demo};

fn main() -> Result<(), Error> {
    let (n, tolerance) = (50_000, 1e-6);
    let points = demo::points(demo::Demo::Uniform, n, 1);
    let charges = demo::strengths(n, 1, 1);
    let request = Fmm::new(Laplace).tolerance(tolerance).outputs(Outputs::POTENTIAL | Outputs::GRADIENT);

    let fast = request.clone().method(Method::EquivalentDensities).plan(&points, Targets::Sources)?.apply(&charges)?;
    let direct = request.method(Method::Direct).plan(&points, Targets::Sources)?.apply(&charges)?;

    println!("{n} charges: direct {:.3} s, fast {:.3} s", direct.seconds, fast.seconds);
    for output in [Outputs::POTENTIAL, Outputs::GRADIENT] {
        let (a, b) = (fast.get(output), direct.get(output));
        let difference: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
        let error = (difference / b.iter().map(|b| b * b).sum::<f64>()).sqrt();
        println!("{:?}: relative ℓ2 error {error:.1e}", output.names());
        assert!(error <= tolerance);
    }
    Ok(())
}
