//! A kernel that is made while the program runs: from a closure, from one line of text, and from the catalog. It needs
//! no Rust compiler: the CPU interprets the operations of the kernel, a GPU compiles them with NVRTC. The kernels are
//! covariances of a Gaussian process, whose matrix has K(0) on its diagonal. So they are finite at r = 0, and a source
//! acts on itself unless the plan says otherwise.
//!
//! `cargo run --release --example 07_kernel_at_run_time`

use fmm::{Fmm, Lane, Outputs, SelfInteraction, Targets, Traced, catalog, demo};

fn main() -> Result<(), fmm::Error> {
    let l = 0.2;
    // The covariance (1 + √3·r/ℓ)·e^(−√3·r/ℓ), three times.
    let closure = Traced::radial("matern32", &[("l", l)], |r, p| {
        let a = 3f64.sqrt() / p[0];
        (1.0 + a * r) * (-a * r).exp()
    });
    let text = Traced::expression("(1 + sqrt(3)*r/l) * exp(-sqrt(3)*r/l)")?.set("l", l)?;
    let listed = catalog::kernel("matern32")?.set("l", l)?;

    let points = demo::points(demo::Demo::Uniform, 5000, 1);
    let weights = demo::strengths(5000, 1, 2);
    let sums = |kernel: &Traced, own| -> Result<Vec<f64>, fmm::Error> {
        let plan = Fmm::new(kernel.clone()).self_interaction(own).tolerance(1e-3).plan(&points, Targets::Sources)?;
        Ok(plan.apply(&weights)?.get(Outputs::POTENTIAL).to_vec())
    };
    let with = sums(&closure, SelfInteraction::Include)?;
    // The sums agree to the tolerance, here 1e-3. They are not the same bits: the operations differ, and their prices
    // decide how a plan sums.
    for kernel in [&text, &listed] {
        let other = sums(kernel, SelfInteraction::Include)?;
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|a| a * a).sum::<f64>().sqrt();
        let difference = norm(&mut with.iter().zip(&other).map(|(a, b)| a - b)) / norm(&mut with.iter().copied());
        println!("{}: relative difference {difference:.1e}", kernel.name());
        assert!(difference < 2e-3);
    }
    // K(0) = 1: the sums with and without the source itself differ by its weight.
    let without = sums(&closure, SelfInteraction::Skip)?;
    let worst = with.iter().zip(&without).zip(&weights).map(|((a, b), q)| (a - b - q).abs()).fold(0.0, f64::max);
    println!("the source itself: largest error {worst:.1e}");
    assert!(worst < 1e-9 * with[0].abs());
    println!("\n{}", listed.text());
    Ok(())
}
