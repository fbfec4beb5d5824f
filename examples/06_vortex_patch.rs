//! A rotating vortex patch: Kirchhoff's ellipse, advanced in time by the two-dimensional method.
//!
//! The flow and its invariants are those of `vortices/mod.rs`. An ellipse of semi-axes a, b and vorticity ω keeps its shape
//! and turns by the angle ωab/(a + b)² per unit time (Kirchhoff 1876).
//!
//! `cargo run --release --example 06_vortex_patch`

mod vortices;

use fmm::{Error, Fmm, Harmonic2d, Targets};
use std::f64::consts::PI;

/// Semi-axis a of the ellipse, along x.
const A: f64 = 1.5;
/// Semi-axis b, along y.
const B: f64 = 1.0;
const VORTICITY: f64 = 1.0;
/// Number of grid points along the longer axis.
const SIDE: usize = 160;
const STEPS: usize = 20;
const TOLERANCE: f64 = 1e-8;

/// Positions (n×2) of vortices: the points of a square grid inside the ellipse.
fn patch() -> Vec<f64> {
    let h = 2.0 * A / SIDE as f64;
    let grid = (0..SIDE * SIDE).map(|k| [(k % SIDE) as f64, (k / SIDE) as f64].map(|i| (i + 0.5) * h - A));
    grid.filter(|[x, y]| (x / A).powi(2) + (y / B).powi(2) < 1.0).flatten().collect()
}

/// Velocities (n×2) of the vortices at `z`.
fn velocity(z: &[f64], circulation: &[f64]) -> Result<Vec<f64>, Error> {
    let out = Fmm::new(Harmonic2d).tolerance(TOLERANCE).plan(z, Targets::Sources)?.apply(circulation)?;
    Ok(vortices::velocity(&out.potential))
}

/// Angle of the longer principal axis against x.
fn angle(z: &[f64]) -> f64 {
    let sum = |f: &dyn Fn(f64, f64) -> f64| z.chunks(2).map(|p| f(p[0], p[1])).sum::<f64>();
    0.5 * (2.0 * sum(&|x, y| x * y)).atan2(sum(&|x, y| x * x - y * y))
}

fn main() -> Result<(), Error> {
    let mut z = patch();
    let n = z.len() / 2;
    let gamma = VORTICITY * PI * A * B / n as f64;
    let circulation: Vec<f64> = (0..n).flat_map(|_| [gamma, 0.0]).collect();
    let rate = VORTICITY * A * B / (A + B).powi(2);
    let dt = 0.125 * PI / rate / STEPS as f64;
    let before = vortices::invariants(&z, gamma)?;

    // Runge–Kutta of order 4.
    let ahead = |z: &[f64], v: &[f64], h: f64| -> Vec<f64> { z.iter().zip(v).map(|(z, v)| z + h * v).collect() };
    for _ in 0..STEPS {
        let k1 = velocity(&z, &circulation)?;
        let k2 = velocity(&ahead(&z, &k1, 0.5 * dt), &circulation)?;
        let k3 = velocity(&ahead(&z, &k2, 0.5 * dt), &circulation)?;
        let k4 = velocity(&ahead(&z, &k3, dt), &circulation)?;
        for (i, z) in z.iter_mut().enumerate() {
            *z += dt / 6.0 * (k1[i] + 2.0 * (k2[i] + k3[i]) + k4[i]);
        }
    }

    let turned = angle(&z) / (rate * dt * STEPS as f64);
    println!("{n} vortices, {STEPS} steps; turned by {:.4} of Kirchhoff's angle", turned);
    vortices::assert_conserved(before, vortices::invariants(&z, gamma)?, 1e-6);
    assert!((turned - 1.0).abs() < 0.01, "the patch does not turn as Kirchhoff's ellipse");
    Ok(())
}
