//! Fig. 11: seconds of the fast method and of direct sums against N, potential and gradient, through the public API, on one
//! core and on a GPU, and where both break even.

use super::{crossing::crossing, demo};
use fmm::{Cuda, Error, Fmm, Laplace, Method, Outputs, Precision, Targets};

/// Their truncation numbers; N from which the fast method is faster on their GPU; seconds at 2²⁰ on core and GPU.
const PAPER: [(usize, &str, [f64; 2]); 3] =
    [(4, "1e4", [28.37, 0.979]), (8, "3e4", [88.09, 1.227]), (12, "7e4", [116.1, 1.761])];

/// Where sums are computed.
#[derive(Clone, Copy, PartialEq)]
enum Machine {
    /// One core, in f64.
    Core,
    /// A GPU, in f32 as in the paper.
    Gpu,
}

/// Seconds of evaluation, and of plan and evaluation.
type Seconds = [f64; 2];

/// The rows of one method: N and seconds.
type Curve = Vec<(usize, Seconds)>;

/// The curves of a machine: one per order of [`PAPER`], then direct sums.
type Curves = [Curve; PAPER.len() + 1];

/// The best of some runs of a method of an order (`None`: direct sums) with `n` sources and n + 1 receivers.
fn measured(machine: Machine, order: Option<usize>, n: usize) -> Result<Seconds, Error> {
    let builder = Fmm::new(Laplace).outputs(Outputs::POTENTIAL | Outputs::GRADIENT);
    let builder = match order {
        Some(order) => builder.method(Method::SphericalHarmonics).order(order),
        None => builder.method(Method::Direct),
    };
    let (builder, runs) = match machine {
        Machine::Core => (builder.threads(1), if n > 20_000 { 1 } else { 5 }),
        Machine::Gpu => (builder.backend(Cuda::default()).precision(Precision::F32), 5),
    };
    let (points, receivers) = (demo::points(demo::Demo::Uniform, n, 1), demo::points(demo::Demo::Uniform, n + 1, 2));
    let strengths = demo::strengths(n, 1, 3);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..if runs > 1 { 3 } else { 1 } {
        let plan = builder.plan(&points, Targets::Points(&receivers))?;
        best[1] = best[1].min(plan.describe().seconds.plan);
        for _ in 0..runs {
            best[0] = best[0].min(plan.apply(&strengths)?.seconds);
        }
    }
    Ok([best[0], best[0] + best[1]])
}

/// The curves of a machine for N up to `most`; direct sums up to `most_direct`.
fn curves(machine: Machine, [most, most_direct]: [usize; 2]) -> Result<Curves, Error> {
    let mut curves = Curves::default();
    for n in (0..).map(|k| 1024 << k).take_while(|&n| n <= most) {
        for (curve, order) in curves.iter_mut().zip(PAPER.map(|p| Some(p.0)).into_iter().chain([None])) {
            if order.is_some() || n <= most_direct {
                curve.push((n, measured(machine, order, n)?));
            }
        }
        let cells: Vec<String> = curves
            .iter()
            .map(|c| c.last().filter(|row| row.0 == n).map_or("–".to_string(), |row| format!("{:.2e}", row.1[0])))
            .collect();
        println!("{n:>9} {}", cells.iter().map(|c| format!(" {c:>9}")).collect::<String>());
    }
    Ok(curves)
}

/// Where the first curve becomes the faster one: evaluations, and from points to the end.
fn break_even(a: &Curve, b: &Curve) -> [String; 2] {
    [0, 1].map(|i| {
        let rows = a.iter().zip(b).map(|(a, b)| (a.0, a.1[i] / b.1[i]));
        crossing(&rows.collect::<Vec<_>>())
    })
}

/// The figure for up to `n` points on a GPU, and up to n/8 on a core.
pub fn figure11(n: usize) -> Result<(), Error> {
    let head = |of: &str| {
        println!("\nFig. 11: seconds of an evaluation, potential and gradient, N sources, N + 1 receivers, {of}\n");
        println!("{:>9}  {:>9} {:>9} {:>9} {:>9}", "N", "p = 4", "p = 8", "p = 12", "direct");
    };
    let show = |what: String, paper: &str, [evaluation, whole]: [String; 2]| {
        println!("{what:<34} {paper:>9} {evaluation:>12} {whole:>14}");
    };
    head("one core, f64");
    let core = curves(Machine::Core, [n / 8, 16_384])?;
    // Fails without a GPU before anything is printed.
    let gpu = match measured(Machine::Gpu, None, 2) {
        Ok(_) => {
            head("one GPU, f32");
            Some(curves(Machine::Gpu, [n, n / 4])?)
        }
        Err(Error::NoDevice { reason }) => {
            println!("\nThe part of the GPU is left out: there is none ({reason}).");
            None
        }
        Err(e) => return Err(e),
    };
    println!("\n{:<34} {:>9} {:>12} {:>14}", "break-even with direct sums, N", "paper", "evaluation", "points to end");
    let direct = PAPER.len();
    for (k, (p, theirs, _)) in PAPER.into_iter().enumerate() {
        show(format!("p = {p}, one core"), "below 1e3", break_even(&core[k], &core[direct]));
        if let Some(gpu) = &gpu {
            show(format!("p = {p}, one GPU"), theirs, break_even(&gpu[k], &gpu[direct]));
        }
    }
    let Some(gpu) = gpu else { return Ok(()) };
    show("p = 4 of a core, direct on the GPU".into(), "2e5", break_even(&core[0], &gpu[direct]));
    println!("\nGPU over core at the largest N of both, evaluation; paper at 2^20");
    for (k, (p, _, [slow, fast])) in PAPER.into_iter().enumerate() {
        if let Some((a, b)) = core[k].iter().zip(&gpu[k]).next_back() {
            println!("p = {p:>2} at {:>8}: {:>6.0}   paper {:>3.0}", a.0, a.1[0] / b.1[0], slow / fast);
        }
    }
    Ok(())
}
