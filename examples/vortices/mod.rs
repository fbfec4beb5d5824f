//! What the examples with vortices share: velocities and conserved quantities of point vortices.
//!
//! A point vortex of circulation Γ moves with the flow of all other vortices: u − iv = Σ Γ_j/(2πi (z − z_j)). This flow
//! is the kernel Γ/(z_j − z) times i/(2π). The motion conserves the circulation, the centre ΣΓz, the angular impulse
//! ΣΓ|z|² and the energy −1/(4π) Σ Γ_i Γ_j ln|z_i − z_j|.

use fmm::{Error, Fmm, Laplace2d, Outputs, Targets};
use std::f64::consts::TAU;

/// Velocities (n×2) from potentials φ (n complex numbers) of the kernel `fmm::Harmonic2d`: u − iv = iφ/(2π).
pub fn velocity(phi: &[f64]) -> Vec<f64> {
    phi.chunks(2).flat_map(|phi| [-phi[1] / TAU, -phi[0] / TAU]).collect()
}

/// Centre x, centre y, angular impulse and energy of vortices at `z` (n×2), each of circulation `gamma`, divided by the
/// total circulation.
pub fn invariants(z: &[f64], gamma: f64) -> Result<[f64; 4], Error> {
    let n = z.len() / 2;
    let fmm = Fmm::new(Laplace2d).tolerance(1e-10).outputs(Outputs::POTENTIAL);
    let psi = fmm.plan(z, Targets::Sources)?.apply(&vec![gamma; n])?.potential;
    let mean = |f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
    let square = |i: usize| z[2 * i].powi(2) + z[2 * i + 1].powi(2);
    Ok([mean(&|i| z[2 * i]), mean(&|i| z[2 * i + 1]), mean(&square), 0.5 * mean(&|i| psi[i])])
}

/// Prints the conserved quantities before and after.
///
/// # Panics
/// If one of them has changed by more than `most`.
pub fn assert_conserved(before: [f64; 4], after: [f64; 4], most: f64) {
    for ((name, before), after) in
        ["centre x", "centre y", "angular impulse", "energy"].into_iter().zip(before).zip(after)
    {
        println!("{name:<16} {before:+.9e} → {after:+.9e}");
        assert!((after - before).abs() < most, "{name} is not conserved");
    }
}
