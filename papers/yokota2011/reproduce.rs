//! Yokota & Barba 2011, figs. 5 and 6, our rows beside theirs, on one core:
//! `cargo run --release --example yokota2011 -- [--n N]`
//!
//! Seconds of direct summation, treecode (θ = 2/3) and fast multipole method for the acceleration of masses against N
//! up to 128 000 (or N), with the orders that meet an error of 10⁻⁴, where they cross, and how the time divides among
//! the stages.

use fmm::{Error, Expansion, Fmm, Gravity, Method, Outputs, Stage, Targets, demo};

/// Relative ℓ2 error of the acceleration.
const ERROR: f64 = 1e-4;
/// What the neighbour list of the fast multipole method amounts to as an opening angle.
const THETA: f64 = 2.0 / 3.0;
/// Targets at which errors are measured.
const SAMPLES: usize = 500;

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

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let most = after("--n").and_then(|n| n.parse().ok()).unwrap_or(128_000);
    let names = ["direct", "treecode", "FMM"];
    println!("Fig. 5: acceleration of N uniform masses to a relative error of {ERROR:e}, seconds of one core\n");
    println!("{:>9} {:<9} {:>5} {:>8} {:>12} {:>10}", "N", "method", "order", "error", "points to end", "evaluation");
    let mut curves: [Vec<Row>; 3] = Default::default();
    for n in (0..).map(|k| 500 << k).take_while(|&n| n <= most) {
        for (name, curve) in names.iter().zip(&mut curves) {
            // Direct sums grow as N²: beyond a few seconds they say nothing new.
            if *name == "direct" && n > 32_000 {
                continue;
            }
            let row = meets(name, n, curve.last().and_then(|r| r.order))?;
            let order = row.order.map_or("–".to_string(), |p| p.to_string());
            println!("{n:>9} {name:<9} {order:>5} {:>8.1e} {:>12.5} {:>10.5}", row.error, row.seconds, row.apply);
            curve.push(row);
        }
    }
    println!("\n{:<22} {:>12} {:>12}   paper, one core", "cross at N", "points to end", "evaluation");
    for (a, b) in [(1, 0), (2, 0), (1, 2)] {
        let at = |seconds: fn(&Row) -> f64| crossing(&curves[a], &curves[b], seconds);
        println!(
            "{:<22} {:>12} {:>12}   3e3",
            format!("{} and {}", names[a], names[b]),
            at(|r| r.seconds),
            at(|r| r.apply)
        );
    }
    stages(&names, &curves);
    Ok(())
}

/// The fast method of a name.
fn method(name: &str) -> Fmm {
    let fmm = Fmm::new(Gravity { g: 1.0, softening: 0.0 }).outputs(Outputs::GRADIENT).threads(1);
    match name {
        "direct" => fmm.method(Method::Direct),
        "treecode" => fmm.method(Method::Treecode).expansion(Expansion::Spherical).theta(THETA),
        _ => fmm.method(Method::SphericalHarmonics),
    }
}

/// The row of the lowest order, from `first` on, that meets the error.
fn meets(name: &str, n: usize, first: Option<usize>) -> Result<Row, Error> {
    let (points, masses) = (demo::points(demo::Demo::Uniform, n, 1), demo::strengths(n, 1, 1));
    for order in first.unwrap_or(2)..=30 {
        let direct = name == "direct";
        let builder = if direct { method(name) } else { method(name).order(order) };
        let plan = builder.plan(&points, Targets::Sources)?;
        let mut out = plan.apply(&masses)?;
        let error = if direct { 0.0 } else { plan.verify_output(&masses, &out, SAMPLES)?.worst() };
        if error > ERROR {
            continue;
        }
        for _ in 0..if n <= 8000 { 9 } else { 1 } {
            let again = plan.apply(&masses)?;
            if again.seconds < out.seconds {
                out = again;
            }
        }
        let d = plan.describe();
        let (seconds, apply, stages) = (d.seconds.plan + out.seconds, out.seconds, out.stages);
        return Ok(Row { n, order: d.order, error, seconds, apply, stages });
    }
    panic!("{name} does not reach {ERROR:e} at {n} points");
}

/// The last N at which one becomes faster than the other, geometric between rows.
fn crossing(a: &[Row], b: &[Row], seconds: fn(&Row) -> f64) -> String {
    let ratio: Vec<(f64, f64)> =
        a.iter().zip(b).map(|(a, b)| ((a.n as f64).ln(), (seconds(a) / seconds(b)).ln())).collect();
    let Some(cross) = ratio.windows(2).rev().find(|w| (w[0].1 > 0.0) != (w[1].1 > 0.0)) else {
        return format!("below {}", a[0].n);
    };
    let part = cross[0].1 / (cross[0].1 - cross[1].1);
    format!("{:.1e}", (cross[0].0 + part * (cross[1].0 - cross[0].0)).exp())
}

/// Fig. 6: how the time of the largest N divides.
fn stages(names: &[&str], curves: &[Vec<Row>]) {
    for (name, curve) in names.iter().zip(curves).skip(1) {
        let Some(row) = curve.last() else { continue };
        let parts: Vec<String> = Stage::ALL
            .iter()
            .filter(|&&s| row.stages[s as usize] > 0.0)
            .map(|&s| format!("{} {:.1} %", s.name(), 100.0 * row.stages[s as usize] / row.apply))
            .collect();
        println!(
            "{}{name} of {} points: {}",
            if *name == "treecode" { "\nFig. 6: " } else { "        " },
            row.n,
            parts.join(", ")
        );
    }
    println!("paper, on a CPU: P2P and M2P or M2L take more than 99 %; P2P the same in both");
}
