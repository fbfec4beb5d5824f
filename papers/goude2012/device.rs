//! The experiments of Goude & Engblom (2012), §5, on a GPU and on one core of this machine, beside what the paper says.
//!
//! θ = 1/2, harmonic kernel, targets are the sources, f64, complex normal strengths. On the GPU points, strengths and sums
//! are in device memory; times are from points to sums, pyramid and lists included, medians. Times of single stages are
//! between events of the device. The paper compares a Tesla C2075 with one core of a Xeon W3680.

use super::measure2d::{Cloud, P, Seconds, THETA, evaluation, median};
use adaptive2d::pyramid::depth_for;
use adaptive2d::{ConnectOptions, PyramidOptions};
use backend_cpu::Isa;
use backend_cpu::laurent::direct;
use backend_cuda::{CallerPoints, Device, DeviceArray, DeviceStream, PlanePlan, plane_build, plane_connect};
use fmm_kernels::Harmonic2d;
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::{Error, OutputColumns, Outputs, Stage};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// Runs on the GPU whose median counts.
const RUNS: usize = 11;
/// Runs on the core whose median counts.
const RUNS_ON_CORE: usize = 3;

/// The GPU, with a plan of each order: its programs are compiled once.
struct Gpu<'a> {
    device: &'a Device,
    plans: HashMap<Option<usize>, PlanePlan<f64, f64>>,
}

impl Gpu<'_> {
    /// Median seconds of an evaluation at a depth; `None` as the order: of direct summation.
    fn seconds(
        &mut self,
        points: &[f64],
        strengths: &[f64],
        depth: usize,
        order: Option<usize>,
    ) -> Result<Seconds, Error> {
        let (device, stream) = (self.device, DeviceStream::Null);
        let (at, q) = (DeviceArray::new(device, points)?, DeviceArray::new(device, strengths)?);
        let values = [DeviceArray::zeros::<f64>(device, points.len())?];
        let options = PyramidOptions { population: 1.0, depth: Some(if order.is_some() { depth } else { 0 }) };
        let connection = ConnectOptions { theta: THETA, ..ConnectOptions::default() };
        let mut runs = Vec::new();
        for _ in 0..RUNS + 2 {
            device.synchronize()?;
            let start = Instant::now();
            let points = CallerPoints::copied(device, 2, "points", &at, &stream)?;
            let tree = plane_build(device, &points, None, &options)?;
            device.synchronize()?;
            let built = start.elapsed().as_secs_f64();
            let lists = plane_connect(&tree, &connection)?;
            device.synchronize()?;
            let connected = start.elapsed().as_secs_f64();
            if let Some(plan) = self.plans.get_mut(&order) {
                plan.set_points(tree, lists)?;
            } else {
                let columns = [OutputColumns { output: Outputs::POTENTIAL, columns: vec![0, 1] }];
                let plan = PlanePlan::new(Harmonic2d, &columns, 0, order, tree, lists)?;
                self.plans.insert(order, plan);
            }
            let plan = self.plans.get_mut(&order).expect("made above");
            plan.enqueue(&q, &values, &stream)?;
            plan.synchronize()?;
            let total = start.elapsed().as_secs_f64();
            runs.push(Seconds { total, pyramid: built, connect: connected - built, ..Seconds::default() });
        }
        let mut runs = runs.into_iter().skip(2);
        let mut middle = median(RUNS, || runs.next().expect("as many as are asked for"));
        let plan = self.plans.get_mut(&order).expect("made above");
        middle.stages = plan.apply(strengths, &mut |_, _| true)?.1;
        Ok(middle)
    }
}

/// Median seconds on one core.
fn on_core(points: &[f64], strengths: &[f64], depth: usize, order: usize) -> Seconds {
    median(RUNS_ON_CORE, || evaluation(points, strengths, depth, order))
}

/// Median seconds of direct summation on one core.
fn direct_on_core(points: &[f64], strengths: &[f64]) -> f64 {
    let sum = || {
        let start = Instant::now();
        direct(Harmonic2d, 0, points, strengths, points, Isa::detect()).expect("sums");
        let total = start.elapsed().as_secs_f64();
        Seconds { total, ..Seconds::default() }
    };
    median(RUNS_ON_CORE, sum).total
}

/// The parts of which figs. 5.1 and 5.7 show the speed-up, and the time of each. On the CPU, L2P is a part of P2P.
fn parts(s: &Seconds) -> [(&'static str, f64); 7] {
    let of = |stages: &[Stage]| stages.iter().map(|&stage| s.stages[stage as usize]).sum();
    [
        ("all", s.total),
        ("pyramid", s.pyramid),
        ("connect", s.connect),
        ("p2m", of(&[Stage::P2m])),
        ("m2l", of(&[Stage::M2l])),
        ("m2m + l2l", of(&[Stage::M2m, Stage::L2l])),
        ("p2p + l2p", of(&[Stage::P2p, Stage::L2p, Stage::M2p])),
    ]
}

/// The head of a table of speed-ups.
fn head(first: &str) {
    let names = parts(&Seconds::default());
    println!("| {first} | GPU, ms | core, ms | {} |", names.map(|(name, _)| name).join(" | "));
    println!("|{}", "---|".repeat(10));
}

/// A row of a table: the times, and the speed-up of each part.
fn row(first: impl std::fmt::Display, gpu: &Seconds, core: &Seconds) {
    let factors = parts(core).into_iter().zip(parts(gpu)).map(|((_, a), (_, b))| format!("{:.0}", a / b));
    let factors: Vec<String> = factors.collect();
    println!("| {first} | {:.2} | {:.1} | {} |", 1e3 * gpu.total, 1e3 * core.total, factors.join(" | "));
}

/// Figs. 5.1 to 5.9 and Table 5.1.
pub fn tables(device: &Device) -> Result<(), Error> {
    let mut gpu = Gpu { device, plans: HashMap::new() };
    let cloud = |cloud: Cloud, n: usize| (cloud.points(n), normal_strengths(2 * n, 2));
    println!("{}, and one core; θ = {THETA}, p = {P} unless stated", device.info().name);

    println!("\nFig. 5.1, speed-up of each part over N_d, 2^16 leaves (paper: grows with N_d)");
    head("N_d");
    for population in [5, 15, 30, 45, 60, 75] {
        let (x, q) = cloud(Cloud::Uniform, population << 16);
        row(population, &gpu.seconds(&x, &q, 8, Some(P))?, &on_core(&x, &q, 8, P));
    }

    println!("\nFig. 5.2, time over N_d, normalised to the best (paper: best at 45 on the GPU, 35 on the CPU)");
    println!("| N_d | GPU | core |\n|---|---|---|");
    let populations = [15.0, 25.0, 35.0, 45.0, 60.0, 80.0, 110.0, 150.0];
    let mut means = [[0.0; 8]; 2];
    for k in 0..6 {
        let n = (4e5 * 4f64.powf(f64::from(k) / 6.0)) as usize;
        let (x, q) = cloud(Cloud::Uniform, n);
        let depths = populations.map(|population| depth_for(n as f64, population));
        let mut known: HashMap<usize, [f64; 2]> = HashMap::new();
        for &depth in &depths {
            if let Entry::Vacant(unknown) = known.entry(depth) {
                unknown.insert([gpu.seconds(&x, &q, depth, Some(P))?.total, on_core(&x, &q, depth, P).total]);
            }
        }
        for side in 0..2 {
            let best = known.values().map(|t| t[side]).fold(f64::INFINITY, f64::min);
            means[side].iter_mut().zip(&depths).for_each(|(mean, depth)| *mean += known[depth][side] / best);
        }
    }
    let best = means.map(|m| m.into_iter().fold(f64::INFINITY, f64::min));
    for (k, population) in populations.iter().enumerate() {
        println!("| {population} | {:.3} | {:.3} |", means[0][k] / best[0], means[1][k] / best[1]);
    }

    println!("\nTable 5.1, share of each part on the GPU, N = 45·2^16, N_d = 45");
    let (x, q) = cloud(Cloud::Uniform, 45 << 16);
    gpu.seconds(&x, &q, 8, Some(P))?.print_shares();

    println!("\nFig. 5.3, speed-up over the order, N = 10^6, N_d = 45");
    head("p");
    let (x, q) = cloud(Cloud::Uniform, 1_000_000);
    let orders = [5, 11, 17, 29, 41, 53];
    for order in orders {
        let depth = depth_for(1e6, 45.0);
        row(order, &gpu.seconds(&x, &q, depth, Some(order))?, &on_core(&x, &q, depth, order));
    }

    println!("\nFig. 5.4, N_d from which a level less is faster (paper: grows approximately linearly with p)");
    println!("| p | GPU |\n|---|---|");
    for order in orders {
        let shallow = 7;
        let mut gain = |population: f64| -> Result<f64, Error> {
            // eq. 5.2 is at its step: 5N/(8·N_d) = 4^shallow.
            let n = (population * 1.6 * 4f64.powi(shallow as i32)) as usize;
            let (x, q) = cloud(Cloud::Uniform, n);
            let time = |gpu: &mut Gpu, depth| gpu.seconds(&x, &q, depth, Some(order)).map(|s| s.total);
            Ok(time(&mut gpu, shallow)? / time(&mut gpu, shallow + 1)?)
        };
        let (mut low, mut high): (f64, f64) = (10.0, 300.0);
        for _ in 0..5 {
            let middle = (low * high).sqrt();
            if gain(middle)? < 1.0 { low = middle } else { high = middle }
        }
        println!("| {order} | {:.0} |", (low * high).sqrt());
    }

    println!(
        "\nFigs. 5.5 and 5.6, milliseconds and speed-up over N, N_d = 45 (paper: even at 3500 on the GPU; speed-up 11, direct 15)"
    );
    println!("| N | GPU direct | GPU FMM | core direct | core FMM | speed-up direct | speed-up FMM |");
    println!("|{}", "---|".repeat(7));
    let mut even = None;
    for n in [1000, 3500, 10_000, 20_000, 30_000, 50_000, 100_000, 300_000, 1_000_000] {
        let (x, q) = cloud(Cloud::Uniform, n);
        let depth = depth_for(n as f64, 45.0).max(1);
        let fast = [gpu.seconds(&x, &q, depth, Some(P))?.total, on_core(&x, &q, depth, P).total];
        let plain = if n <= 100_000 {
            [gpu.seconds(&x, &q, 0, None)?.total, if n <= 30_000 { direct_on_core(&x, &q) } else { f64::NAN }]
        } else {
            [f64::NAN; 2]
        };
        if even.is_none() && fast[0] < plain[0] {
            even = Some(n);
        }
        let ms = [plain[0], fast[0], plain[1], fast[1]].map(|s| format!("{:.3}", 1e3 * s)).join(" | ");
        println!("| {n} | {ms} | {:.0} | {:.0} |", plain[1] / plain[0], fast[1] / fast[0]);
    }
    match even {
        Some(n) => {
            println!("Of these sizes, {n} is the first at which the method is faster than direct summation on the GPU.")
        }
        None => println!("Direct summation is the faster way on the GPU throughout."),
    }

    println!("\nFig. 5.7, speed-up of each part over N, N_d = 45");
    head("N");
    for n in [10_000, 100_000, 1_000_000, 2_949_120] {
        let ((x, q), depth) = (cloud(Cloud::Uniform, n), depth_for(n as f64, 45.0));
        row(n, &gpu.seconds(&x, &q, depth, Some(P))?, &on_core(&x, &q, depth, P));
    }

    println!("\nFig. 5.8, nanoseconds a point on the GPU (paper: robust, and scales to some 10 million points)");
    println!("| N | uniform | normal | layer |\n|---|---|---|---|");
    for n in [100_000, 1_000_000, 10_000_000] {
        let mut times = Vec::new();
        for kind in [Cloud::Uniform, Cloud::Normal(0.1), Cloud::Layer(0.1)] {
            let (x, q) = cloud(kind, n);
            let s = gpu.seconds(&x, &q, depth_for(n as f64, 45.0), Some(P))?;
            times.push(format!("{:.2}", 1e9 * s.total / n as f64));
        }
        println!("| {n} | {} |", times.join(" | "));
    }

    println!("\nFig. 5.9, time over that of uniform points, N = 10^6 (paper: grows less on the GPU than on the CPU)");
    println!("| σ | normal, GPU | core | layer, GPU | core |\n|---|---|---|---|---|");
    let depth = depth_for(1e6, 45.0);
    let mut both = |kind: Cloud| -> Result<[f64; 2], Error> {
        let (x, q) = cloud(kind, 1_000_000);
        Ok([gpu.seconds(&x, &q, depth, Some(P))?.total, on_core(&x, &q, depth, P).total])
    };
    let uniform = both(Cloud::Uniform)?;
    for sigma in [0.1, 0.03, 0.01, 0.003, 0.001] {
        let [normal, layer] = [both(Cloud::Normal(sigma))?, both(Cloud::Layer(sigma))?];
        let factors = [normal, layer].map(|t| format!("{:.2} | {:.2}", t[0] / uniform[0], t[1] / uniform[1]));
        println!("| {sigma} | {} |", factors.join(" | "));
    }
    Ok(())
}
