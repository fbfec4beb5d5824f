//! Targets apart from the sources: the field of a star cluster on a square grid through its centre.
//!
//! `cargo run --release --example 04_separate_targets`

use fmm::{Error, Fmm, Gravity, Method, Outputs, demo};

fn main() -> Result<(), Error> {
    let (n, side, tolerance) = (50_000, 64, 1e-5);
    let stars = demo::points(demo::Demo::Plummer, n, 1);
    let masses = vec![1.0 / n as f64; n];
    // The grid: a square of side 4 in the plane z = 0, row by row.
    let at = |i: usize| 4.0 * ((i as f64 + 0.5) / side as f64 - 0.5);
    let map: Vec<f64> = (0..side * side).flat_map(|k| [at(k % side), at(k / side), 0.0]).collect();

    let plan = Fmm::new(Gravity { g: 1.0, softening: 1e-4 })
        .tolerance(tolerance)
        .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
        .method(Method::EquivalentDensities)
        .plan(&stars, &map)?;
    let out = plan.apply(&masses)?;
    assert_eq!((out.potential.len(), out.gradient.len()), (side * side, 3 * side * side));

    let report = plan.verify_output(&masses, &out, 1000)?;
    println!("{n} stars, {} targets, worst relative ℓ2 error {:.1e}", plan.n_targets(), report.worst());
    assert!(report.worst() <= tolerance);

    // A random cluster is close to Plummer's smooth sphere, −1/√(1 + r²).
    let smooth: Vec<f64> = map.chunks(3).map(|x| -1.0 / (1.0 + x[0] * x[0] + x[1] * x[1]).sqrt()).collect();
    let worst = out.potential.iter().zip(&smooth).map(|(u, s)| (u / s - 1.0).abs()).fold(0.0, f64::max);
    println!("largest departure from the smooth sphere {worst:.1e}");
    assert!(worst < 0.05);
    Ok(())
}
