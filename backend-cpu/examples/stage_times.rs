//! Seconds per stage and the error at 1000 targets, on one thread: `cargo run --release -p backend-cpu --example
//! stage_times -- N ORDER OCCUPANCY [cloud] [outputs] [precision] [kernel] [threads] [method] [theta]` with `outputs` 1
//! (potential) or 3 (and gradient), `precision` f32 or f64, `kernel` laplace, stokes or yukawa, `method` equivalent,
//! interpolation, spherical, fixed (spherical without variable truncation), stencil119, treecode or
//! equivalent-treecode.

use backend_cpu::{Isa, Settings};
use fmm_families::{AnyFamily, Expansion};
use fmm_kernels::equivalent::{Fill, Lattice, expansion};
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation, expansion as harmonics};
use fmm_kernels::{Laplace, Stokes, Yukawa};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths, uniform_strengths};
use fmm_traits::{OutputError, Outputs, Precision, Stage, Targets};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build_reported, stencil119, treecode, uvwx};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(7).map(String::as_str) {
        Some("stokes") => run(&Stokes { mu: 1.0 }.into(), &args),
        Some("yukawa") => run(&Yukawa { kappa: 5.0 }.into(), &args),
        _ => run(&Laplace.into(), &args),
    }
}

fn run(family: &AnyFamily, args: &[String]) {
    let number = |i: usize, default: usize| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let precision = |i: usize| if args.get(i).is_some_and(|s| s == "f32") { Precision::F32 } else { Precision::F64 };
    let (n, order, occupancy) = (number(1, 100_000), number(2, 6), number(3, 64));
    let kind = CloudKind::named(args.get(4).map_or("uniform", String::as_str)).expect("a cloud of the testkit");
    let outputs = if number(5, 3) == 1 { Outputs::POTENTIAL } else { Outputs::POTENTIAL | Outputs::GRADIENT };
    let settings = Settings { order, precision: precision(6), isa: Isa::detect(), cache: None, near: None };
    let points = kind.points(n, 1);
    let facts = family.facts(outputs).expect("outputs");
    let c = facts.strengths;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(8, 1)).build().expect("threads");
    pool.install(|| {
        let clock = Instant::now();
        let options = BuildOptions { occupancy: occupancy as f64, ..Default::default() };
        let (tree, report) = build_reported(&points, None, &options).expect("tree");
        let tree_seconds = clock.elapsed().as_secs_f64();
        let method = args.get(9).map_or("equivalent", String::as_str);
        let theta = args.get(10).and_then(|x| x.parse().ok()).unwrap_or(2.0 / 3.0);
        let small = match method {
            "equivalent" | "equivalent-treecode" => Lattice::surface(order).len(),
            "interpolation" => Lattice::volume(order).len(),
            _ => order * order,
        };
        let options = ListOptions { m2p_min_sources: small, p2l_min_targets: small };
        let mac = TreecodeOptions { theta, m2p_min_sources: if method == "treecode" { small / 4 } else { small } };
        let lists = match method {
            "treecode" => treecode(&tree, &mac, harmonics::m2p_valid),
            "equivalent-treecode" => treecode(&tree, &mac, expansion::m2p_valid),
            "stencil119" => stencil119(&tree, &options),
            _ => uvwx(&tree, &options),
        }
        .expect("lists");
        let lists_seconds = clock.elapsed().as_secs_f64() - tree_seconds;
        println!(
            "{} leaves, {} boxes, {} levels, ncrit {}, mean leaf {:.1}",
            tree.leaves(),
            tree.len(),
            tree.levels(),
            report.ncrit,
            report.mean_leaf
        );
        println!("m2l {} m2p {} p2l {} p2p {}", lists.m2l.len(), lists.m2p.len(), lists.p2l.len(), lists.p2p.len());
        let truncation = if method == "fixed" { Truncation::Fixed } else { Truncation::Variable };
        let theta = (method == "treecode").then_some(theta);
        let harmonics = SphericalOptions { translation: Translation::Rcr, truncation, theta };
        let expansion = match method {
            "equivalent" | "equivalent-treecode" => Expansion::Equivalent(Fill::Surface),
            "interpolation" => Expansion::Equivalent(Fill::Volume),
            _ => Expansion::Spherical(harmonics),
        };
        let space = family.in_space(outputs).expect("a kernel of space");
        let solver = space.solver(tree, lists, &settings, expansion).expect("plan");
        println!(
            "tree {tree_seconds:.3} lists {lists_seconds:.3} plan {:.3} s, {} MB",
            clock.elapsed().as_secs_f64(),
            solver.bytes() >> 20
        );
        let mut out = vec![0.0; n * solver.values()];
        for (name, q) in [("uniform", uniform_strengths(n * c, 2)), ("normal", normal_strengths(n * c, 2))] {
            let mut best = f64::INFINITY;
            let mut stages = [0.0; 10];
            for _ in 0..3 {
                let clock = Instant::now();
                let s = solver.apply(&q, &mut out, &mut |_, _| true).expect("apply");
                if clock.elapsed().as_secs_f64() < best {
                    best = clock.elapsed().as_secs_f64();
                    stages = s;
                }
            }
            print!("{name}: apply {best:.3}");
            for stage in Stage::ALL {
                print!(" {} {:.3}", stage.name(), stages[stage as usize]);
            }
            let mut random = Generator::new(7);
            let sample: Vec<usize> = (0..1000.min(n)).map(|_| (random.uniform() * n as f64) as usize).collect();
            let at = Targets::Subset(&sample);
            let exact = family.direct(outputs, &points, &[&q], at, Precision::F64, settings.isa).expect("direct");
            for column in &facts.columns {
                let pick = |rows: &[f64], at: &dyn Fn(usize) -> usize| -> Vec<f64> {
                    (0..sample.len())
                        .flat_map(|i| column.columns.iter().map(move |&k| (i, k)))
                        .map(|(i, k)| rows[at(i) * solver.values() + k])
                        .collect()
                };
                let error = OutputError::of(
                    column.output,
                    &pick(&out, &|i| sample[i]),
                    &pick(&exact[0], &|i| i),
                    column.columns.len(),
                );
                print!(" {} {:.2e}", column.output.names()[0], error.rel_l2);
            }
            println!();
        }
    });
}
