//! The error to expect of spherical harmonics beside the error there is, over the clouds of the testkit:
//! `cargo run --release -p backend-cpu --example spherical_estimates -- [n] [ncrit] [clouds] [stencil119 | treecode θ]`;
//! all clouds are `all`.
//!
//! For each cloud and order errors over estimates of potential, gradient and Hessian: normal strengths, then uniform ones in (0, 1).

use backend_cpu::spherical::estimate::{Estimate, Question};
use backend_cpu::{Isa, Precision, Settings, Targets, direct, spherical};
use fmm_kernels::Laplace;
use fmm_kernels::spherical::expansion::m2p_valid;
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths, uniform_strengths};
use fmm_traits::{OutputError, Outputs, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build, stencil119, treecode, uvwx};
use std::time::Instant;

const SAMPLE: usize = 1000;
const ORDERS: [usize; 10] = [3, 4, 5, 6, 8, 10, 13, 16, 20, 26];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(4000);
    let theta = args.iter().skip_while(|a| *a != "treecode").nth(1).and_then(|x| x.parse().ok());
    let lists = |tree: &Tree| match theta {
        Some(theta) => treecode(tree, &TreecodeOptions { theta, m2p_min_sources: 0 }, m2p_valid),
        None if args.iter().any(|a| a == "stencil119") => stencil119(tree, &ListOptions::default()),
        None => uvwx(tree, &ListOptions::default()),
    };
    let ncrit = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(60);
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
    for kind in CloudKind::ALL.into_iter().filter(|k| args.get(3).is_none_or(|a| a == "all" || a.contains(k.name()))) {
        let points = kind.points(n, 8);
        let n = points.len() / 3;
        let mut random = Generator::new(7);
        let sample: Vec<usize> = (0..SAMPLE.min(n)).map(|_| (random.uniform() * n as f64) as usize).collect();
        let strengths = [normal_strengths(n, 5), uniform_strengths(n, 5)];
        let exact = strengths.each_ref().map(|q| {
            let at = Targets::Sources(Some(&sample));
            direct(&Laplace, outputs, &points, q, at, Precision::F64, Isa::detect()).expect("direct").0
        });
        let tree = build(&points, None, &BuildOptions { ncrit: Some(ncrit), ..Default::default() }).expect("tree");
        let options = SphericalOptions { translation: Translation::Rcr, truncation: Truncation::Variable };
        let edges = lists(&tree).expect("lists");
        let question = Question {
            truncation: options.truncation,
            least: 1,
            orders: 26,
            outputs: 3,
            soft: 0.0,
            isa: Isa::detect(),
        };
        let start = Instant::now();
        let estimate = Estimate::new(&tree, &edges, question);
        println!("{} ({:.1} ms)", kind.name(), 1e3 * start.elapsed().as_secs_f64());
        for order in ORDERS {
            let settings = Settings { order, precision: Precision::F64, isa: Isa::detect(), cache: None };
            let plan =
                spherical::plan(&Laplace, outputs, tree.clone(), edges.clone(), &settings, options).expect("plan");
            print!("{order:4} ");
            for (q, exact) in strengths.iter().zip(&exact) {
                let mut out = vec![0.0; n * 10];
                plan.apply(q, &mut out, &mut |_, _| true).expect("apply");
                for (k, (from, to)) in [(0, 1), (1, 4), (4, 10)].into_iter().enumerate() {
                    let found: Vec<f64> =
                        sample.iter().flat_map(|&i| out[10 * i + from..10 * i + to].to_vec()).collect();
                    let exact: Vec<f64> = exact.chunks_exact(10).flat_map(|row| row[from..to].to_vec()).collect();
                    let e = OutputError::of(outputs, &found, &exact, to - from).rel_l2;
                    print!(" {e:8.1e} ({:5.2})", e / estimate.error(k, order));
                }
                print!(" |");
            }
            println!();
        }
    }
}
