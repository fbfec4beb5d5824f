//! Table III: one node whose GPUs sum near fields while its cores translate.

use super::ORDER;
use fmm::ranks::{World, threads};
use fmm::{Backend, Cpu, Cuda, Error, Fmm, Hybrid, Laplace, Method, Output, Outputs, Precision, Stage, Targets, demo};

/// Seconds of a node with one GPU and with two, in their Table III.
struct Row {
    n: usize,
    /// Translations on the cores.
    cores: [f64; 2],
    /// Cores and GPUs at the same time.
    region: [f64; 2],
    /// The sum of a potential, and of potential and force.
    potential: [f64; 2],
    force: [f64; 2],
}

/// Eight cores of 2.8 GHz and one or two Tesla C1060.
const THEIRS: [Row; 5] = [
    Row { n: 1 << 20, cores: [0.13, 0.13], region: [0.55, 0.28], potential: [0.39, 0.22], force: [0.68, 0.37] },
    Row { n: 1 << 21, cores: [1.09, 1.08], region: [1.09, 1.08], potential: [1.21, 0.83], force: [1.31, 1.20] },
    Row { n: 1 << 22, cores: [1.08, 1.08], region: [1.24, 1.08], potential: [1.32, 1.22], force: [1.62, 1.30] },
    Row { n: 1 << 23, cores: [1.06, 1.08], region: [4.24, 2.14], potential: [2.83, 1.44], force: [4.95, 2.52] },
    Row { n: 1 << 24, cores: [8.98, 1.08], region: [8.98, 9.23], potential: [10.08, 5.74], force: [10.75, 10.00] },
];

/// Evaluations of which the fastest counts.
const REPEAT: usize = 3;

/// Seconds of a sum: on the cores, on the GPU beside them, and in all.
#[derive(Clone, Copy)]
struct Seconds {
    cores: f64,
    gpu: f64,
    all: f64,
}

/// Largest of each over ranks.
fn slowest(ranks: &[Seconds]) -> Seconds {
    let most = |of: fn(&Seconds) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    Seconds { cores: most(|s| s.cores), gpu: most(|s| s.gpu), all: most(|s| s.all) }
}

/// Fastest of some sums of a plan, and the mean points of a leaf.
fn fastest(request: &Fmm, points: &[f64], charges: &[f64]) -> Result<(Seconds, f64), Error> {
    let plan = request.plan(points, Targets::Sources)?;
    let mut best = Seconds { cores: 0.0, gpu: 0.0, all: f64::INFINITY };
    let mut out = Output::default();
    for _ in 0..REPEAT {
        plan.apply_into(charges, &mut out)?;
        let gpu = out.stages[Stage::P2p as usize];
        if out.seconds < best.all {
            best = Seconds { cores: out.stages.iter().sum::<f64>() - gpu, gpu, all: out.seconds };
        }
    }
    Ok((best, charges.len() as f64 / plan.describe().leaves.max(1) as f64))
}

/// On one GPU, or on two ranks with a GPU and half of the cores each.
fn on_gpus(request: &Fmm, gpus: usize, points: &[f64], charges: &[f64]) -> Result<(Seconds, f64), Error> {
    let backend = |device| Backend::from(Hybrid { cuda: Cuda { device, ..Cuda::default() }, ..Hybrid::default() });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if gpus == 1 {
        return fastest(&request.clone().backend(backend(0)), points, charges);
    }
    let n = charges.len();
    let results = threads(gpus, |world: World| {
        let mine = n * world.rank() / gpus..n * (world.rank() + 1) / gpus;
        let request = request.clone().backend(backend(world.rank())).ranks(&world).threads((cores / gpus).max(1));
        fastest(&request, &points[3 * mine.start..3 * mine.end], &charges[mine])
    });
    let ranks = results.into_iter().map(|result| result?).collect::<Result<Vec<_>, _>>()?;
    // Leaves of ghosts count among those of a rank, so that the mean of all ranks is a little too small.
    Ok((slowest(&ranks.iter().map(|rank| rank.0).collect::<Vec<_>>()), ranks[0].1))
}

/// Prints the table, for at most `most` points.
pub fn table3(most: usize) -> Result<(), Error> {
    let gpu = Cuda::default().info()?.name;
    let gpus = if (Cuda { device: 1, ..Cuda::default() }).info().is_ok() { 2 } else { 1 };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("Table III, seconds: near field on GPUs, translations on cores; p = {ORDER}, f32, uniform points");
    println!("theirs: 8 cores and Tesla C1060; ours: {cores} cores and {gpu}");
    println!(
        "on cores: all of it on the cores; on a GPU: all of it on one GPU; cores, GPU: parts of potential + force\n"
    );
    println!("{:>35} | {:>23} | {:>17} | {:>17} | {:>31}", "", "potential + force", "on cores", "on a GPU", "theirs");
    println!(
        "{:>9} {:>4} {:>9} {:>9} | {:>7} {:>7} {:>7} | {:>9} {:>7} | {:>9} {:>7} | {:>6} {:>6} {:>9} {:>7}",
        "N",
        "GPUs",
        "potential",
        "+ force",
        "cores",
        "GPU",
        "leaf",
        "potential",
        "+ force",
        "potential",
        "+ force",
        "cores",
        "region",
        "potential",
        "+ force"
    );
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for row in THEIRS.iter().filter(|row| row.n <= most) {
        let points = demo::points(demo::Demo::Uniform, row.n, 1);
        let charges = demo::strengths(row.n, 1, 1);
        let request = |outputs| {
            let request = Fmm::new(Laplace).method(Method::SphericalHarmonics).order(ORDER);
            request.outputs(outputs).precision(Precision::F32)
        };
        let on = |backend: Backend| -> Result<[f64; 2], Error> {
            let time = |outputs| fastest(&request(outputs).backend(backend.clone()), &points, &charges);
            Ok([time(Outputs::POTENTIAL)?.0.all, time(both)?.0.all])
        };
        let ([cpu, cpu_both], [cuda, cuda_both]) = (on(Cpu::default().into())?, on(Cuda::default().into())?);
        for count in 1..=gpus {
            let (potential, _) = on_gpus(&request(Outputs::POTENTIAL), count, &points, &charges)?;
            let (force, leaf) = on_gpus(&request(both), count, &points, &charges)?;
            let k = count - 1;
            println!(
                "{:>9} {count:>4} {:>9.4} {:>9.4} | {:>7.4} {:>7.4} {leaf:>7.0} | {cpu:>9.4} {cpu_both:>7.4} | {cuda:>9.4} {cuda_both:>7.4} | {:>6.2} {:>6.2} {:>9.2} {:>7.2}",
                row.n,
                potential.all,
                force.all,
                force.cores,
                force.gpu,
                row.cores[k],
                row.region[k],
                row.potential[k],
                row.force[k],
            );
        }
    }
    Ok(())
}
