//! The experiments of Goude & Engblom (2012), §5, on this machine: our rows beside what the paper says.
//!
//! `cargo run --release -p adaptive2d --example goude2012 [-- figure …]`, with figures of 5.2, table, 5.4, 5.5, 5.8,
//! 5.9 (default: all, about a minute). One thread, θ = 1/2, harmonic kernel (eq. 5.1), targets are the sources,
//! complex normal strengths; times from points in to answer out, pyramid included, medians. The paper's machine was a
//! Xeon W3680 with a Tesla C2075: ratios and shapes compare, seconds do not. `device.rs` has the same beside a GPU.

mod measure;

use adaptive2d::pyramid::depth_for;
use backend_cpu::Isa;
use backend_cpu::laurent::direct;
use fmm_kernels::Harmonic2d;
use fmm_traits::Stage;
use fmm_traits::testkit::clouds::normal_strengths;
use measure::{Cloud, P, Seconds, evaluation, median};
use std::time::Instant;

/// Evaluations whose median counts.
const RUNS: usize = 5;

/// Median seconds of `n` points at the depth of eq. 5.2 for `population`.
fn seconds(cloud: Cloud, n: usize, population: f64, order: usize) -> Seconds {
    let (points, strengths) = (cloud.points(n), normal_strengths(2 * n, 2));
    median(RUNS, || evaluation(&points, &strengths, depth_for(n as f64, population), order))
}

/// Fig. 5.2: time over N_d, of the mean over N.
fn optimal_population() {
    println!(
        "\nFig. 5.2, time over N_d, normalised to the best, p = {P} (paper: best at 35 on the CPU, 45 on the GPU)"
    );
    let populations = [15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 60.0, 80.0, 100.0];
    // Two cycles of eq. 5.2, which quadruples the leaves.
    let sizes: Vec<usize> = (0..12).map(|i| (2e4 * 4f64.powf(i as f64 / 6.0)) as usize).collect();
    let mut means = populations.map(|_| 0.0);
    for &n in &sizes {
        let (points, strengths) = (Cloud::Uniform.points(n), normal_strengths(2 * n, 2));
        let depths = populations.map(|population| depth_for(n as f64, population));
        let at = |depth| median(RUNS, || evaluation(&points, &strengths, depth, P)).total;
        let (least, most) = (depths[depths.len() - 1], depths[0]);
        let times: Vec<f64> = (least..=most).map(at).collect();
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        for (mean, depth) in means.iter_mut().zip(depths) {
            *mean += times[depth - least] / best;
        }
    }
    let best = means.iter().copied().fold(f64::INFINITY, f64::min);
    println!("| N_d | time |\n|---|---|");
    for (population, mean) in populations.iter().zip(means) {
        println!("| {population} | {:.3} |", mean / best);
    }
}

/// Table 5.1: shares of the stages.
fn shares() {
    let n = 45 << 16;
    let s = seconds(Cloud::Uniform, n, 45.0, P);
    println!("\nTable 5.1, share of each part, N = 45·2^16, N_d = 45, p = {P}: {:.3} s", s.total);
    s.print_shares();
}

/// Fig. 5.4: the N_d at which a level more takes the time of a level less: eq. 5.2 changes the depth there.
fn population_of_order() {
    println!("\nFig. 5.4, best N_d (paper: grows approximately linearly with p)");
    println!("| p | N_d |\n|---|---|");
    let shallow = 5;
    for order in [5, 10, 17, 25, 35, 45, 55] {
        let gain = |population: f64| {
            // eq. 5.2 is at its step: 5N/(8·N_d) = 4^shallow.
            let n = (population * 1.6 * 4f64.powi(shallow as i32)) as usize;
            let (points, strengths) = (Cloud::Uniform.points(n), normal_strengths(2 * n, 2));
            let at = |depth| median(RUNS, || evaluation(&points, &strengths, depth, order)).total;
            at(shallow) / at(shallow + 1)
        };
        let (mut low, mut high): (f64, f64) = (5.0, 200.0);
        for _ in 0..6 {
            let middle = (low * high).sqrt();
            if gain(middle) < 1.0 { low = middle } else { high = middle }
        }
        println!("| {order} | {:.0} |", (low * high).sqrt());
    }
}

/// Fig. 5.5: total time against direct summation.
fn break_even() {
    println!("\nFig. 5.5, total time against direct summation, p = {P} (paper: even at N = 3500 on the GPU)");
    println!("| N | direct, ms | FMM, ms |\n|---|---|---|");
    let mut even = None;
    for n in [200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3500, 10_000, 30_000] {
        let (points, strengths) = (Cloud::Uniform.points(n), normal_strengths(2 * n, 2));
        let sum = || {
            let start = Instant::now();
            direct(Harmonic2d, 0, &points, &strengths, &points, Isa::detect()).expect("sums");
            let total = start.elapsed().as_secs_f64();
            Seconds { total, ..Seconds::default() }
        };
        let (d, f) = (median(RUNS, sum).total, seconds(Cloud::Uniform, n, 40.0, P).total);
        if f < d && even.is_none() {
            even = Some(n);
        }
        println!("| {n} | {:.3} | {:.3} |", 1e3 * d, 1e3 * f);
    }
    match even {
        Some(n) => println!("The method is the faster way from {n} points."),
        None => println!("Direct summation is the faster way throughout."),
    }
}

/// Fig. 5.8: three distributions.
fn distributions() {
    println!("\nFig. 5.8, microseconds a point, p = {P} (paper: robust, and scales to some 10 million points)");
    println!("| N | uniform | normal | layer |\n|---|---|---|---|");
    for n in [30_000, 100_000, 300_000, 1_000_000] {
        let row = [Cloud::Uniform, Cloud::Normal(0.1), Cloud::Layer(0.1)];
        let [a, b, c] = row.map(|cloud| 1e6 * seconds(cloud, n, 45.0, P).total / n as f64);
        println!("| {n} | {a:.3} | {b:.3} | {c:.3} |");
    }
}

/// Fig. 5.9: time over σ.
fn robustness() {
    let n = 200_000;
    println!(
        "\nFig. 5.9, time over that of uniform points, N = {n}, p = {P} (paper: grows as σ falls, almost all of it P2P)"
    );
    println!("| σ | normal | of it P2P | layer | of it P2P |\n|---|---|---|---|---|");
    let uniform = seconds(Cloud::Uniform, n, 45.0, P);
    for sigma in [0.3, 0.1, 0.03, 0.01, 0.003, 0.001] {
        let [a, b] = [Cloud::Normal(sigma), Cloud::Layer(sigma)].map(|cloud| {
            let s = seconds(cloud, n, 45.0, P);
            let near = |s: &Seconds| s.stages[Stage::P2p as usize];
            [s.total / uniform.total, near(&s) / near(&uniform)]
        });
        println!("| {sigma} | {:.2} | {:.2} | {:.2} | {:.2} |", a[0], a[1], b[0], b[1]);
    }
}

fn main() {
    let experiments: [(&str, fn()); 6] = [
        ("5.2", optimal_population),
        ("table", shares),
        ("5.4", population_of_order),
        ("5.5", break_even),
        ("5.8", distributions),
        ("5.9", robustness),
    ];
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    for (name, run) in experiments {
        if asked.is_empty() || asked.iter().any(|a| a == name) {
            pool.install(run);
        }
    }
    assert!(asked.iter().all(|a| experiments.iter().any(|(name, _)| a == name)), "figures: 5.2 table 5.4 5.5 5.8 5.9");
}
