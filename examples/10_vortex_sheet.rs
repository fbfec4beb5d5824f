//! A vortex sheet rolls up: the instability of Kelvin and Helmholtz, on a CPU or a GPU.
//!
//! Two streams slide along each other. Between them lies a layer of vorticity, here a grid of point vortices. A small wave
//! in the layer grows, the layer rolls up into billows, and its ends into spirals. One plan serves all steps:
//! `set_points` moves its points and keeps its method. The motion conserves what `vortices/mod.rs` lists.
//!
//! ```text
//! cargo run --release --example 10_vortex_sheet                     # a small run that checks itself
//! cargo run --release --example 10_vortex_sheet -- --n 40000 --steps 300 --gif sheet.gif
//! cargo run --release --example 10_vortex_sheet -- --n 1000000 --steps 300 --backend cuda --gif sheet.gif
//! ```

mod vortices;

use fmm::{Backend, Cpu, Cuda, Error, Fmm, Harmonic2d, Plan, Targets};
use std::f64::consts::TAU;

/// Length of the layer, which lies along x around the origin.
const LENGTH: f64 = 4.0;
/// Thickness of the layer.
const THICKNESS: f64 = 0.1;
/// Difference of the velocities above and below.
const SHEAR: f64 = 1.0;
/// Waves along the layer, and their height.
const WAVES: f64 = 5.0;
const HEIGHT: f64 = 0.02;
/// Time of the whole run.
const TIME: f64 = 2.2;
const TOLERANCE: f64 = 1e-6;
/// Largest number of pictures of a film.
const FRAMES: usize = 60;

/// Positions (n×2) of about `n` vortices on a square grid, row by row, and the number of rows.
fn layer(n: usize) -> (Vec<f64>, usize) {
    let rows = (n as f64 * THICKNESS / LENGTH).sqrt().round().max(1.0) as usize;
    let columns = n.div_ceil(rows);
    let place = |k: usize, count: usize, length: f64| ((k as f64 + 0.5) / count as f64 - 0.5) * length;
    let point = |k: usize| {
        let (x, y) = (place(k % columns, columns, LENGTH), place(k / columns, rows, THICKNESS));
        [x, y + HEIGHT * (TAU * WAVES * x / LENGTH).sin()]
    };
    ((0..rows * columns).flat_map(point).collect(), rows)
}

/// Length of the row of vortices in the middle of the layer.
fn middle(z: &[f64], rows: usize) -> f64 {
    let row = z.chunks(z.len() / rows).nth(rows / 2).unwrap_or_default();
    row.windows(4).step_by(2).map(|p| (p[2] - p[0]).hypot(p[3] - p[1])).sum()
}

/// Velocities (n×2) at `z` (n×2), where the points of the plan move to.
fn velocity(plan: &mut Plan, z: &[f64], circulation: &[f64]) -> Result<Vec<f64>, Error> {
    plan.set_points(z, Targets::Sources)?;
    Ok(vortices::velocity(&plan.apply(circulation)?.potential))
}

/// `z` + h·`v`.
fn ahead(z: &[f64], v: &[f64], h: f64) -> Vec<f64> {
    z.iter().zip(v).map(|(z, v)| z + h * v).collect()
}

/// Animated pictures of the vortices: those of the upper half of the layer in one colour, of the lower half in another.
struct Film {
    encoder: gif::Encoder<std::fs::File>,
}

impl Film {
    const SIZE: [u16; 2] = [440, 260];
    /// Height of the picture in units of length.
    const VIEW: f64 = 2.5;

    fn new(path: &str) -> Result<Film, Box<dyn std::error::Error>> {
        // Colour 16·a + b: a and b of 15 are the densities of the two halves.
        let colour = |i: usize| {
            let [a, b] = [i / 16, i % 16].map(|x| (x as f64 / 15.0).sqrt());
            let mix = |own: [f64; 2]| (255.0 * (1.0 - a * (1.0 - own[0])).min(1.0 - b * (1.0 - own[1]))) as u8;
            [mix([0.85, 0.05]), mix([0.25, 0.35]), mix([0.1, 0.75])]
        };
        let palette: Vec<u8> = (0..256).flat_map(colour).collect();
        let [width, height] = Film::SIZE;
        let mut encoder = gif::Encoder::new(std::fs::File::create(path)?, width, height, &palette)?;
        encoder.set_repeat(gif::Repeat::Infinite)?;
        Ok(Film { encoder })
    }

    fn add(&mut self, z: &[f64]) -> Result<(), Box<dyn std::error::Error>> {
        let [width, height] = Film::SIZE.map(usize::from);
        let mut counts = vec![[0.0f64; 2]; width * height];
        let scale = height as f64 / Film::VIEW;
        let n = z.len() / 2;
        for (i, p) in z.chunks(2).enumerate() {
            let (x, y) = (p[0] * scale + 0.5 * width as f64, 0.5 * height as f64 - p[1] * scale);
            if (0.0..width as f64).contains(&x) && (0.0..height as f64).contains(&y) {
                counts[y as usize * width + x as usize][usize::from(2 * i < n)] += 1.0;
            }
        }
        // The density of the layer at the beginning is two thirds of the darkest colour.
        let full = 1.5 * n as f64 / (LENGTH * THICKNESS * scale * scale);
        let level = |x: f64| (15.0 * x / full).ceil().min(15.0) as u8;
        let pixels: Vec<u8> = counts.iter().map(|c| 16 * level(c[0]) + level(c[1])).collect();
        let [width, height] = Film::SIZE;
        let mut frame = gif::Frame::from_indexed_pixels(width, height, pixels, None);
        frame.delay = 8;
        self.encoder.write_frame(&frame)?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let number = |name, usual| after(name).map_or(Ok(usual), |x| x.parse::<usize>());
    let (n, steps) = (number("--n", 8000)?, number("--steps", 120)?.max(1));
    let backend: Backend = match after("--backend").map(String::as_str) {
        None | Some("cpu") => Cpu::default().into(),
        Some("cuda") => Cuda::default().into(),
        Some(other) => return Err(format!("no backend {other}: cpu or cuda").into()),
    };
    let mut film = after("--gif").map(|path| Film::new(path)).transpose()?;

    let (mut z, rows) = layer(n);
    let (n, length) = (z.len() / 2, middle(&z, rows));
    let gamma = SHEAR * LENGTH / n as f64;
    let circulation: Vec<f64> = (0..n).flat_map(|_| [gamma, 0.0]).collect();
    let (before, dt) = (vortices::invariants(&z, gamma)?, TIME / steps as f64);
    let mut plan = Fmm::new(Harmonic2d).backend(backend).tolerance(TOLERANCE).plan(&z, Targets::Sources)?;

    // Runge–Kutta of order 4.
    let start = std::time::Instant::now();
    for step in 0..steps {
        if let Some(film) = film.as_mut().filter(|_| step % steps.div_ceil(FRAMES) == 0) {
            film.add(&z)?;
        }
        let k1 = velocity(&mut plan, &z, &circulation)?;
        let k2 = velocity(&mut plan, &ahead(&z, &k1, 0.5 * dt), &circulation)?;
        let k3 = velocity(&mut plan, &ahead(&z, &k2, 0.5 * dt), &circulation)?;
        let k4 = velocity(&mut plan, &ahead(&z, &k3, dt), &circulation)?;
        for (i, z) in z.iter_mut().enumerate() {
            *z += dt / 6.0 * (k1[i] + 2.0 * (k2[i] + k3[i]) + k4[i]);
        }
    }
    let seconds = start.elapsed().as_secs_f64() / steps as f64;
    println!("{n} vortices, {steps} steps of {dt:.4}, {:.1} ms a step", 1e3 * seconds);
    vortices::assert_conserved(before, vortices::invariants(&z, gamma)?, 2e-5);
    let longer = middle(&z, rows) / length;
    println!("the middle of the layer is {longer:.2} times as long as at the beginning");
    assert!(longer > 1.5, "the layer has not rolled up");
    Ok(())
}
