//! Errors of the methods by spherical harmonics and of the treecodes by order, the largest over the clouds of the testkit:
//! `cargo run --release -p backend-cpu --example spherical_clouds -- [method] [n] [f32]`, method fmm or treecode.
//!
//! For each order (and opening angle) the relative ℓ2 errors of potential and gradient against direct summation at 500
//! targets: uniform points, all clouds, and the cloud at fault; strengths normal and uniform in (0, 1), the larger.

use backend_cpu::{Isa, Precision, Settings, Solver, Targets, direct, plan, spherical};
use fmm_kernels::Laplace;
use fmm_kernels::equivalent::expansion as densities;
use fmm_kernels::spherical::{SphericalOptions, Translation, Truncation, expansion as harmonics};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths, uniform_strengths};
use fmm_traits::{Error, Lists, OutputError, Outputs, Tree};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions, build, stencil119, treecode, uvwx};

const SAMPLE: usize = 500;

struct Case {
    kind: CloudKind,
    tree: Tree,
    strengths: [Vec<f64>; 2],
    sample: Vec<usize>,
    exact: [Vec<f64>; 2],
}

fn both() -> Outputs {
    Outputs::POTENTIAL | Outputs::GRADIENT
}

impl Case {
    fn new(kind: CloudKind, n: usize) -> Case {
        let points = kind.points(n, 8);
        let n = points.len() / 3;
        let strengths = [normal_strengths(n, 5), uniform_strengths(n, 5)];
        let mut random = Generator::new(7);
        let sample: Vec<usize> = (0..SAMPLE.min(n)).map(|_| (random.uniform() * n as f64) as usize).collect();
        let exact = strengths.each_ref().map(|q| {
            let at = Targets::Sources(Some(&sample));
            direct(&Laplace, both(), &points, q, at, Precision::F64, Isa::detect()).expect("direct").0
        });
        let tree = build(&points, None, &BuildOptions { ncrit: Some(60), ..Default::default() }).expect("tree");
        Case { kind, tree, strengths, sample, exact }
    }

    /// Largest errors of potential and gradient over both strengths.
    fn errors(&self, solver: &dyn Solver) -> [f64; 2] {
        let mut worst = [0f64; 2];
        for (q, exact) in self.strengths.iter().zip(&self.exact) {
            let mut out = vec![0.0; self.tree.targets.len() * 4];
            solver.apply(q, &mut out, &mut |_, _| true).expect("apply");
            for (k, (from, to)) in [(0, 1), (1, 4)].into_iter().enumerate() {
                let found: Vec<f64> =
                    self.sample.iter().flat_map(|&i| out[4 * i + from..4 * i + to].to_vec()).collect();
                let exact: Vec<f64> = exact.chunks_exact(4).flat_map(|row| row[from..to].to_vec()).collect();
                let e = OutputError::of(both(), &found, &exact, to - from);
                worst[k] = worst[k].max(e.rel_l2);
            }
        }
        worst
    }
}

/// Tree → lists.
type Policy = dyn Fn(&Tree) -> Result<Lists, Error>;

/// A variant: its lists on a tree, and its solver.
struct Variant {
    name: String,
    order: usize,
    lists: Box<Policy>,
    truncation: Option<Truncation>,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(4000);
    let precision = if args.get(3).is_some_and(|x| x == "f32") { Precision::F32 } else { Precision::F64 };
    let cases: Vec<Case> = CloudKind::ALL.into_iter().map(|kind| Case::new(kind, n)).collect();
    let mut variants = Vec::new();
    if args.get(1).is_some_and(|m| m == "treecode") {
        for truncation in [Some(Truncation::Fixed), Some(Truncation::Variable), None] {
            let equivalent = truncation.is_none();
            for theta in [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
                for order in
                    if equivalent { vec![3, 4, 5, 6, 7, 8, 9, 10] } else { vec![2, 3, 4, 6, 8, 10, 12, 16, 20, 24] }
                {
                    let valid = if equivalent { densities::m2p_valid } else { harmonics::m2p_valid };
                    variants.push(Variant {
                        name: format!("{} {theta}", truncation.map_or("equivalent", Truncation::name)),
                        order,
                        lists: Box::new(move |tree| {
                            treecode(tree, &TreecodeOptions { theta, m2p_min_sources: 0 }, valid)
                        }),
                        truncation,
                    });
                }
            }
        }
    } else {
        type Policy = fn(&Tree, &ListOptions) -> Result<Lists, Error>;
        let uvwx: Policy = uvwx;
        for (name, policy, truncation) in [
            ("uvwx variable", uvwx, Truncation::Variable),
            ("uvwx fixed", uvwx, Truncation::Fixed),
            ("stencil119 variable", stencil119, Truncation::Variable),
            ("stencil119 fixed", stencil119, Truncation::Fixed),
        ] {
            for order in (1..=16).chain([18, 20, 24, 28, 32, 36, 40]) {
                let lists = Box::new(move |tree: &Tree| policy(tree, &ListOptions::default()));
                variants.push(Variant { name: name.to_string(), order, lists, truncation: Some(truncation) });
            }
        }
    }
    println!("variant, order | uniform | all clouds | at fault");
    for v in variants {
        let settings = Settings { order: v.order, precision, isa: Isa::detect(), cache: None };
        let (mut uniform, mut worst, mut fault) = ([0f64; 2], [0f64; 2], [""; 2]);
        for case in &cases {
            let (tree, lists) = (case.tree.clone(), (v.lists)(&case.tree).expect("lists"));
            let solver = match v.truncation {
                None => plan(&Laplace, both(), tree, lists, &settings),
                Some(truncation) => {
                    let options = SphericalOptions { translation: Translation::Rcr, truncation };
                    spherical::plan(&Laplace, both(), tree, lists, &settings, options)
                }
            };
            let errors = case.errors(&*solver.expect("plan"));
            for k in 0..2 {
                if case.kind == CloudKind::Uniform {
                    uniform[k] = errors[k];
                }
                if errors[k] > worst[k] {
                    (worst[k], fault[k]) = (errors[k], case.kind.name());
                }
            }
        }
        println!(
            "{} {:2} | {:.1e} {:.1e} | {:.1e} {:.1e} | {} {}",
            v.name, v.order, uniform[0], uniform[1], worst[0], worst[1], fault[0], fault[1]
        );
    }
}
