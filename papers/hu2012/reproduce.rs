//! Hu, Gumerov & Duraiswami 2012, our rows beside theirs as ratios:
//! `cargo run --release --example hu2012 -- [--n N] [--ranks P] [--gpu]`
//!
//! With `--gpu`, Table III alone: a node whose GPUs sum near fields while its cores translate, for up to N points.
//! Otherwise:
//! The five kinds of boxes and the law of eq. 3, the exchange through a manager against the other exchanges, strong and weak
//! scaling (figs. 8 to 11), imbalance, and the errors of Table II. N = 2²⁰ unless given, P up to 4096. Nothing runs on
//! several machines: messages are counted from one tree, and their times are those of a model.

mod nodes;

use fmm::ranks::{Counted, Kinds, LogGp, Replay, Strategy};
use fmm::{Error, Fmm, Laplace, Method, Precision, Targets, demo};

/// Truncation number of their multi-node runs.
const ORDER: usize = 8;
/// QDR InfiniBand, as their nodes had: latency and overhead of a small message, 32 Gbit/s of data.
const NETWORK: LogGp = LogGp { latency: 1.3e-6, overhead: 0.5e-6, byte: 1.0 / 3.2e9 };
/// Cores of one of their nodes.
const CORES: f64 = 8.0;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let number = |name: &str, usual: usize| after(name).and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (n, most) = (number("--n", 1 << 20), number("--ranks", 4096));
    if args.iter().any(|a| a == "--gpu") {
        return nodes::table3(number("--n", 1 << 24));
    }
    let clouds = [("cube", demo::points(demo::Demo::Uniform, n, 1)), ("sphere", sphere(n))];
    table2()?;
    for (name, points) in &clouds {
        fixed(name, points, most)?;
    }
    weak(n)?;
    println!(
        "\nNot explained by the model: contention at the manager's wire and memory, waiting for slower nodes, copies between"
    );
    println!(
        "CPU and GPU, which their overhead contains, and the time of near fields on GPUs: our work is that of cores alone."
    );
    Ok(())
}

/// Points on the unit sphere, their non-uniform distribution.
fn sphere(n: usize) -> Vec<f64> {
    let uniform = demo::points(demo::Demo::Uniform, n, 2);
    let turn = |x: &[f64]| {
        let (z, angle) = (2.0 * x[0] - 1.0, std::f64::consts::TAU * x[1]);
        let r = (1.0 - z * z).max(0.0).sqrt();
        [r * angle.cos(), r * angle.sin(), z]
    };
    uniform.chunks_exact(3).flat_map(turn).collect()
}

/// Their method.
fn spherical(order: usize) -> Fmm {
    Fmm::new(Laplace).method(Method::SphericalHarmonics).order(order)
}

/// Table II: truncation number, errors in single and double precision, for 2²⁰ points.
const TABLE2: [(usize, [f64; 2]); 4] =
    [(4, [3.4e-4, 3.3e-4]), (8, [1.2e-6, 9.4e-7]), (12, [3.7e-7, 4.1e-8]), (16, [1.3e-7, 4.6e-9])];

fn table2() -> Result<(), Error> {
    println!("Table II, errors of the potential (theirs for 2^20 points, ours for 2^17), f32 and f64\n");
    let points = demo::points(demo::Demo::Uniform, 1 << 17, 1);
    let charges = demo::strengths(1 << 17, 1, 1);
    for (p, theirs) in TABLE2 {
        let error = |precision| -> Result<f64, Error> {
            let plan = spherical(p).precision(precision).plan(&points, Targets::Sources)?;
            Ok(plan.verify(&charges, 1000)?.worst())
        };
        let ours = [error(Precision::F32)?, error(Precision::F64)?];
        println!("p = {p:>2}: theirs {:.1e} {:.1e}, ours {:.1e} {:.1e}", theirs[0], theirs[1], ours[0], ours[1]);
    }
    Ok(())
}

/// Numbers of ranks: powers of two.
fn powers(from: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..).map(move |k| from << k).take_while(move |&ranks| ranks <= most)
}

/// Boxes by kind and strong scaling of one cloud.
fn fixed(name: &str, points: &[f64], most: usize) -> Result<(), Error> {
    let (mut kinds, mut strong, mut alone) = (Vec::new(), Vec::new(), None);
    for ranks in powers(1, most) {
        let counted = spherical(ORDER).census(points, ranks)?;
        kinds.push(kinds_of(&counted));
        let replay = |strategy| counted.census.replay(strategy, counted.bytes, &NETWORK);
        let exchanges = [replay(Strategy::Manager)?, replay(Strategy::Direct)?, replay(Strategy::Hypercube)?];
        let work = work(&counted);
        let first = *alone.get_or_insert(work);
        strong.push(strong_of(&counted, work, exchanges, first));
    }
    let n = points.len() / 3;
    println!("\nBoxes that a node knows by kind (fig. 5, algorithm 1), mean of the nodes, {name}, {n} points\n");
    println!("     P  domestic   export   import   root  other  l_crit   l_par   (import + root) / (boxes/P)^(2/3)");
    kinds.iter().for_each(|row| println!("{row}"));
    println!(
        "theirs: import and export boxes are a surface, mu (boxes/P)^(2/3) of them; l_par is 2 to 4; l_crit = l_par - 1"
    );
    println!("\nStrong scaling (figs. 10, 11), {name}, {n} points: share of the exchange in work + exchange\n");
    println!("     P imbalance     work s   manager    direct hypercube  manager bytes  over direct    P over 1");
    strong.iter().for_each(|row| println!("{row}"));
    println!(
        "theirs, 1 to 16 nodes, 8 and 16 million points: the manager and its exchange take 1 to 15 % of the time;"
    );
    println!("total times fall as 1/P but for slight deviations (fig. 10)");
    Ok(())
}

/// Fig. 5 and eq. 3: boxes by kind, and boxes to exchange over (boxes of a node)^(2/3).
fn kinds_of(Counted { census, .. }: &Counted) -> String {
    let (kinds, ranks) = (census.kinds(), census.ranks());
    let mean = |of: fn(&Kinds) -> usize| kinds.iter().map(of).sum::<usize>() as f64 / ranks as f64;
    let [domestic, export, import, root, other] =
        [mean(|k| k.domestic), mean(|k| k.export), mean(|k| k.import), mean(|k| k.root), mean(|k| k.other)];
    let [critical, partition] = [0, 1].map(|more| census.critical_level.map_or(0, |level| level + more));
    let surface = (import + root) / (domestic + export).powf(2.0 / 3.0);
    format!(
        "{ranks:>6} {domestic:>9.0} {export:>8.0} {import:>8.0} {root:>6.0} {other:>6.0} {critical:>7} {partition:>7}   \
         {surface:.1}"
    )
}

/// Seconds of work of the busiest node on its cores.
fn work(counted: &Counted) -> f64 {
    counted.census.work.iter().fold(0.0, |most: f64, w| most.max(*w)) / CORES
}

/// Figs. 10 and 11: a row, with the time of one node over that of all, through the manager.
fn strong_of(counted: &Counted, work: f64, [manager, direct, cube]: [Replay; 3], alone: f64) -> String {
    let share = |exchange: Replay| 100.0 * exchange.seconds / (exchange.seconds + work);
    format!(
        "{:>6} {:>9.3} {work:>10.2e} {:>8.1}% {:>8.1}% {:>8.1}% {:>14} {:>12.1} {:>11.1}",
        counted.census.ranks(),
        counted.census.imbalance,
        share(manager),
        share(direct),
        share(cube),
        manager.bytes,
        manager.bytes as f64 / direct.bytes.max(1) as f64,
        alone / (work + manager.seconds)
    )
}

/// Figs. 8 and 9: N/P fixed.
fn weak(n: usize) -> Result<(), Error> {
    let each = (n / 16).max(1);
    println!("\nWeak scaling (figs. 8, 9), cube, {each} points a node: seconds of work, of the exchange, share\n");
    println!("{:>6} {:>10} {:>12} {:>8} {:>12} {:>8}", "P", "work s", "manager s", "share", "direct s", "share");
    for ranks in powers(1, 32) {
        let points = demo::points(demo::Demo::Uniform, each * ranks, 1);
        let counted = spherical(ORDER).census(&points, ranks)?;
        let busiest = work(&counted);
        let replay = |strategy| counted.census.replay(strategy, counted.bytes, &NETWORK);
        let [manager, direct] = [replay(Strategy::Manager)?, replay(Strategy::Direct)?].map(|r| r.seconds);
        let share = |seconds: f64| 100.0 * seconds / (seconds + busiest);
        println!(
            "{ranks:>6} {busiest:>10.2e} {manager:>12.2e} {:>7.1}% {direct:>12.2e} {:>7.1}%",
            share(manager),
            share(direct)
        );
    }
    println!(
        "theirs, 8.4 million points a node, 1 to 32 nodes: overheads grow slightly, and are a small part; 2^30 points on 32"
    );
    println!("nodes: 12.2 s in all, 10.3 s of them in the parallel region of CPUs and GPUs, so 16 % outside it");
    Ok(())
}
