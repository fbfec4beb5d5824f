//! Yokota & Barba 2011, figs. 5 and 6, our rows beside theirs, on one core and on a GPU:
//! `cargo run --release --example yokota2011 -- [--n N] [--gpu-n N]`
//!
//! Seconds of direct summation, treecode (θ = 2/3) and fast multipole method for the acceleration of masses against N, with
//! the orders that meet an error of 10⁻⁴, where they cross, how many times a GPU is faster, and how the time divides among
//! the stages. N goes up to 128 000 (or N) on a core and to ten million on a GPU. Without a GPU the part of the core is
//! printed alone.

#[path = "../crossing.rs"]
mod crossing;

use crossing::crossing;
use fmm::{Cuda, Error, Expansion, Fmm, Gravity, Method, Outputs, Precision, Stage, Targets, demo};

/// Relative ℓ2 error of the acceleration.
const ERROR: f64 = 1e-4;
/// What the neighbour list of the fast multipole method amounts to as an opening angle.
const THETA: f64 = 2.0 / 3.0;
/// Targets at which errors are measured.
const SAMPLES: usize = 500;
/// The methods.
const NAMES: [&str; 3] = ["direct", "treecode", "FMM"];
/// Methods that are compared with each other, and where they cross in the paper: on a CPU, on a GPU.
const CROSSINGS: [([usize; 2], [&str; 2]); 3] =
    [([1, 0], ["3e3", "2e4"]), ([2, 0], ["3e3", "4e4"]), ([1, 2], ["3e3", "unclear"])];
/// How many times the paper's GPU is faster than its core.
const SPEEDUPS: [f64; 3] = [300.0, 100.0, 30.0];

/// Where sums are computed.
#[derive(Clone, Copy, PartialEq)]
enum Machine {
    /// One core, in f64.
    Core,
    /// A GPU, in f32 as in the paper.
    Gpu,
}

impl Machine {
    fn name(self) -> &'static str {
        ["one core, f64", "one GPU, f32"][self as usize]
    }
    /// Direct sums grow as N²: beyond a few seconds they say nothing new.
    fn most_direct(self) -> usize {
        [32_000, 1_024_000][self as usize]
    }
}

/// A method at one N.
#[derive(Clone)]
struct Row {
    n: usize,
    order: Option<usize>,
    error: f64,
    /// Of plan and evaluation.
    seconds: f64,
    /// Of the evaluation.
    apply: f64,
    stages: [f64; Stage::ALL.len()],
}

/// The rows of each method.
type Curves = [Vec<Row>; 3];

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let number = |name: &str, usual: usize| after(name).and_then(|n| n.parse().ok()).unwrap_or(usual);
    let core = part(Machine::Core, number("--n", 128_000))?;
    match part(Machine::Gpu, number("--gpu-n", 10_000_000)) {
        Ok(gpu) => speedups(&core, &gpu),
        Err(Error::NoDevice { reason }) => println!("\nThe part of the GPU is left out: there is none ({reason})."),
        Err(e) => return Err(e),
    }
    Ok(())
}

/// Figs. 5 and 6 on one machine.
fn part(machine: Machine, most: usize) -> Result<Curves, Error> {
    // Fails without a GPU before anything is printed.
    method("direct", machine).plan(&[0.0, 0.0, 0.0, 1.0, 0.0, 0.0], Targets::Sources)?;
    println!(
        "\nFig. 5: acceleration of N uniform masses to a relative error of {ERROR:e}, seconds of {}\n",
        machine.name()
    );
    println!("{:>9} {:<9} {:>5} {:>8} {:>13} {:>10}", "N", "method", "order", "error", "points to end", "evaluation");
    let mut curves = Curves::default();
    for n in (0..).map(|k| 500 << k).take_while(|&n| n <= most) {
        for (name, curve) in NAMES.iter().zip(&mut curves) {
            if *name == "direct" && n > machine.most_direct() {
                continue;
            }
            let row = meets(name, machine, n, curve.last().and_then(|r| r.order))?;
            let order = row.order.map_or("–".to_string(), |p| p.to_string());
            println!("{n:>9} {name:<9} {order:>5} {:>8.1e} {:>13.6} {:>10.6}", row.error, row.seconds, row.apply);
            curve.push(row);
        }
    }
    println!("\n{:<22} {:>13} {:>12}   paper", "cross at N", "points to end", "evaluation");
    for ([a, b], paper) in CROSSINGS {
        let at = |seconds: fn(&Row) -> f64| {
            let ratio = curves[a].iter().zip(&curves[b]).map(|(a, b)| (a.n, seconds(a) / seconds(b)));
            crossing(&ratio.collect::<Vec<_>>())
        };
        let pair = format!("{} and {}", NAMES[a], NAMES[b]);
        println!("{pair:<22} {:>13} {:>12}   {}", at(|r| r.seconds), at(|r| r.apply), paper[machine as usize]);
    }
    stages(&curves, machine);
    Ok(curves)
}

/// The builder of a method.
fn method(name: &str, machine: Machine) -> Fmm {
    let fmm = Fmm::new(Gravity { g: 1.0, softening: 0.0 }).outputs(Outputs::GRADIENT);
    let fmm = match machine {
        Machine::Core => fmm.threads(1),
        Machine::Gpu => fmm.backend(Cuda::default()).precision(Precision::F32),
    };
    match name {
        "direct" => fmm.method(Method::Direct),
        "treecode" => fmm.method(Method::Treecode).expansion(Expansion::Spherical).theta(THETA),
        _ => fmm.method(Method::SphericalHarmonics),
    }
}

/// The row of the lowest order, from `first` on, that meets the error.
fn meets(name: &str, machine: Machine, n: usize, first: Option<usize>) -> Result<Row, Error> {
    let (points, masses) = (demo::points(demo::Demo::Uniform, n, 1), demo::strengths(n, 1, 1));
    for order in first.unwrap_or(2)..=30 {
        let direct = name == "direct";
        let builder = if direct { method(name, machine) } else { method(name, machine).order(order) };
        let plan = builder.plan(&points, Targets::Sources)?;
        let mut out = plan.apply(&masses)?;
        let error = if direct { 0.0 } else { plan.verify_output(&masses, &out, SAMPLES)?.worst() };
        if error > ERROR {
            continue;
        }
        let mut planned = plan.describe().seconds.plan;
        let again = match machine {
            Machine::Core if n > 8000 => 0,
            Machine::Gpu if n > 1_000_000 => 3,
            _ => 9,
        };
        for _ in 0..again {
            let next = plan.apply(&masses)?;
            if next.seconds < out.seconds {
                out = next;
            }
        }
        // The first plan of an order compiles its programs.
        for _ in 0..if machine == Machine::Gpu { 2 } else { 0 } {
            planned = planned.min(builder.plan(&points, Targets::Sources)?.describe().seconds.plan);
        }
        let (seconds, apply, stages) = (planned + out.seconds, out.seconds, out.stages);
        return Ok(Row { n, order: plan.describe().order, error, seconds, apply, stages });
    }
    panic!("{name} does not reach {ERROR:e} at {n} points");
}

/// Fig. 6: how the time of the largest N divides.
fn stages(curves: &Curves, machine: Machine) {
    for (name, curve) in NAMES.iter().zip(curves).skip(1) {
        let Some(row) = curve.last() else { continue };
        let parts: Vec<String> = Stage::ALL
            .iter()
            .filter(|&&s| row.stages[s as usize] > 0.0)
            .map(|&s| format!("{} {:.1} %", s.name(), 100.0 * row.stages[s as usize] / row.stages.iter().sum::<f64>()))
            .collect();
        let head = if *name == "treecode" { "\nFig. 6: " } else { "        " };
        println!("{head}{name} of {} points: {}", row.n, parts.join(", "));
    }
    let said = match machine {
        Machine::Core => "on a CPU: P2P and M2P or M2L take more than 99 %; P2P the same in both",
        Machine::Gpu => {
            "on a GPU, 10^7 points: the other stages are no longer negligible; M2P and M2L take about the same"
        }
    };
    println!("paper, {said}");
}

/// How many times the GPU is faster than the core, for the evaluation.
fn speedups(core: &Curves, gpu: &Curves) {
    println!("\n{:<9} {:>9} {:>12} {:>7}", "GPU over core", "N", "evaluation", "paper");
    for (((name, core), gpu), paper) in NAMES.iter().zip(core).zip(gpu).zip(SPEEDUPS) {
        let Some((a, b)) = core.iter().zip(gpu).next_back() else { continue };
        println!("{name:<13} {:>9} {:>12.0} {paper:>7.0}", a.n, a.apply / b.apply);
    }
}
