//! Several far fields, one for each node of the attributes of sources, against the CPU and against direct sums.

use crate::Test;
use crate::far::difference;
use backend_cpu::{Isa, Pairs};
use backend_cuda::{Device, Direct, Expansion, Settings, solver};
use fmm_kernels::equivalent::Fill;
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Kernels, Nodes, Outputs, Policy, Precision, Spread, Targets, Traced};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};

pub const TESTS: &[Test] = &[
    ("nodes::far_fields_agree_with_those_of_the_cpu", agree),
    ("nodes::each_node_lowers_the_error_and_points_move", errors),
];

/// 1/√(r² + e²)·exp(−kr) with one or two attributes, and `count` nodes of each for their `values`.
pub fn kernels(names: &[&str], values: &[Vec<f64>], count: usize) -> Kernels {
    let text = "parameter e = 0.05\nparameter k = 1\nvalue exp(-k*r)/sqrt(r^2 + e^2)";
    let kernel = Traced::parse(text).unwrap();
    let kernel = names.iter().try_fold(kernel, |kernel, name| kernel.attribute(name)).unwrap();
    let mut kernels = kernel.kernels(Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
    let of = |(a, values): (usize, &Vec<f64>)| Spread::of(&kernels, a, values, &[1.0, 0.5, 0.25, 0.125]).unwrap();
    let spreads: Vec<Spread> = values.iter().enumerate().map(of).collect();
    kernels.nodes = Nodes::of(&kernels, &spreads, count);
    kernels
}

/// Numbers from `low` to `high`, one for each source.
pub fn values(n: usize, [low, high]: [f64; 2], seed: u64) -> Vec<f64> {
    CloudKind::Uniform.points(n, seed)[..n].iter().map(|x| low + (high - low) * x).collect()
}

/// Normal strengths, each with its attributes behind it.
pub fn strengths(n: usize, attributes: &[Vec<f64>]) -> Vec<f64> {
    let q = normal_strengths(n, 52);
    (0..n).flat_map(|i| [q[i]].into_iter().chain(attributes.iter().map(move |a| a[i])).collect::<Vec<_>>()).collect()
}

fn settings(order: usize, policy: Policy, fill: Fill) -> Settings {
    let lists = ListOptions { m2p_min_sources: 60, p2l_min_targets: 60 };
    Settings { expansion: Expansion::Equivalent(fill), policy, order, lists, beside: None, cache: None }
}

/// FMM and treecode, densities on surfaces and in volumes, one and two attributes, both precisions. The ellipsoid has
/// all lists.
fn agree(device: &Device) {
    let (n, order) = (3000, 5);
    let (s, t) = (CloudKind::Ellipsoid.points(n, 50), CloudKind::Uniform.points(500, 51));
    let attributes = [values(n, [0.02, 0.06], 53), values(n, [0.5, 2.0], 54)];
    let options = BuildOptions { occupancy: 30.0, ..Default::default() };
    for (names, policy, fill, precision, bound) in [
        (&["e"][..], Policy::Uvwx, Fill::Volume, Precision::F64, 1e-10),
        (&["e", "k"], Policy::Uvwx, Fill::Surface, Precision::F64, 1e-10),
        (&["e"], Policy::Treecode { theta: 0.7 }, Fill::Volume, Precision::F64, 1e-10),
        (&["e"], Policy::Uvwx, Fill::Volume, Precision::F32, 1e-5),
    ] {
        let own = &attributes[..names.len()];
        let (kernels, q) = (kernels(names, own, 2), strengths(n, own));
        assert_eq!(kernels.nodes.count(), 1 << names.len());
        let settings = settings(order, policy, fill);
        let points = crate::placed(device, &options, &s, Some(&t)).unwrap();
        let there = solver(&kernels, &settings, precision, points).unwrap();
        let (tree, _) = there.download().unwrap();
        let lists = match policy {
            Policy::Treecode { theta } => {
                let options = TreecodeOptions { theta, m2p_min_sources: settings.lists.m2p_min_sources };
                fmm_tree::treecode(&tree, &options, fmm_kernels::equivalent::expansion::m2p_valid).unwrap()
            }
            _ => fmm_tree::uvwx(&tree, &settings.lists).unwrap(),
        };
        let on_cores = backend_cpu::Settings { order, precision, isa: Isa::detect(), cache: None, near: None };
        let pairs = Pairs::traced(&kernels);
        let here = backend_cpu::plan(kernels.clone(), &pairs, tree, lists, &on_cores, fill).unwrap();
        let [mut u, mut v] = [vec![0.0; 500 * 4], vec![0.0; 500 * 4]];
        // The third run replays the recorded second one.
        for _ in 0..3 {
            there.apply(&q, &mut u, &mut |_, _| true).unwrap();
        }
        here.apply(&q, &mut v, &mut |_, _| true).unwrap();
        let error = difference(&u, &v);
        println!("{names:?} {policy:?} {precision:?}: {error:.1e}");
        assert!(error <= bound, "{names:?} {policy:?} {precision:?}: {error:e}");
    }
}

fn errors(device: &Device) {
    let n = 3000;
    let options = BuildOptions { occupancy: 30.0, ..Default::default() };
    let clouds = [1, 2].map(|seed| CloudKind::Uniform.points(n, seed));
    let own = [values(n, [0.03, 0.1], 53)];
    let q = strengths(n, &own);
    let errors = [1, 2, 3].map(|count| {
        let kernels = kernels(&["e"], &own, count);
        let placed = |s: &[f64]| crate::placed(device, &options, s, None).unwrap();
        let mut plan =
            solver(&kernels, &settings(7, Policy::Uvwx, Fill::Volume), Precision::F64, placed(&clouds[0])).unwrap();
        clouds.each_ref().map(|s| {
            plan.set_points(placed(s)).unwrap();
            let mut u = vec![0.0; n * 4];
            plan.apply(&q, &mut u, &mut |_, _| true).unwrap();
            let exact = Direct::<f64>::new(device, &kernels, s, Targets::Sources, None).unwrap().apply(&q).unwrap();
            difference(&u, &exact)
        })
    });
    println!("{errors:?}");
    for cloud in 0..2 {
        assert!(errors[2][cloud] < 0.3 * errors[1][cloud] && errors[1][cloud] < errors[0][cloud], "{errors:?}");
    }
}
