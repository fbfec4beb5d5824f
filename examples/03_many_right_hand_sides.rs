//! One plan for many sets of strengths: the plan makes tree, lists and operators once.
//!
//! `cargo run --release --example 03_many_right_hand_sides`

use fmm::{Error, Fmm, Method, Output, Stokes, Targets, demo};
use std::time::Instant;

fn main() -> Result<(), Error> {
    let (n, tolerance) = (10_000, 1e-4);
    let points = demo::points(demo::Demo::Ellipsoid, n, 1);
    let forces: Vec<Vec<f64>> = (0..4).map(|seed| demo::normal_strengths(n, 3, seed)).collect();

    let start = Instant::now();
    let plan = Fmm::new(Stokes { mu: 1.0 })
        .tolerance(tolerance)
        .method(Method::EquivalentDensities)
        .plan(&points, Targets::Sources)?;
    println!("plan: {:.3} s", start.elapsed().as_secs_f64());

    let start = Instant::now();
    let velocities = plan.apply_batch(&forces)?;
    println!("{} sets of {n} forces: {:.3} s", forces.len(), start.elapsed().as_secs_f64());

    // Evaluating the sets one by one, into one reused buffer, gives the same bits.
    let mut out = Output::default();
    for (f, u) in forces.iter().zip(&velocities) {
        plan.apply_into(f, &mut out)?;
        assert_eq!(out.potential, u.potential);
        let error = plan.verify_output(f, u, 1000)?.worst();
        println!("relative ℓ2 error of the velocity {error:.1e}");
        assert!(error <= tolerance);
    }
    Ok(())
}
