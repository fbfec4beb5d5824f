//! Plans on an NVIDIA GPU against plans on a CPU. The tests are ignored, as those of `gpu.rs`.

use crate::tolerance::holds_on;
use crate::{both, difference, fast, strengths, uniform};
use fmm::{
    AnyFamily, Cuda, Expansion, Fmm, Gravity, Laplace, LaplaceMixed, ListPolicy, Method, Outputs, Precision,
    StokesPressure, Targets, Translation, Truncation, catalog,
};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};

/// A GPU draws the sample of a probe that the CPU draws from the same tree: the same strata, leaves, targets and sources, and
/// so the same bounds up to rounding.
#[test]
#[ignore = "needs a GPU"]
fn samples_are_those_of_the_cpu() {
    let laplace = |precision, tolerance: f64| {
        let request = Fmm::new(Laplace).outputs(both()).method(Method::EquivalentDensities).ncrit(30);
        request.precision(precision).tolerance(tolerance)
    };
    let few = CloudKind::Uniform.points(1200, 5);
    let (none, others) = (&[][..], CloudKind::Plummer.points(3000, 4));
    // The sample has all sources of few points, and a part of many.
    let cases = [
        ("more kinds than strata", laplace(Precision::F64, 1e-3), CloudKind::Plummer.points(12_000, 1), none),
        ("separate targets", laplace(Precision::F64, 1e-3), CloudKind::Ellipsoid.points(40_000, 2), &others[..]),
        ("near pairs that err", laplace(Precision::F32, 1e-2), CloudKind::Plummer.points(40_000, 3), none),
        ("all targets", laplace(Precision::F64, 1e-3), few, none),
    ];
    for (what, request, sources, targets) in cases {
        let targets = if targets.is_empty() { Targets::Sources } else { Targets::Points(targets) };
        let probe = |request: Fmm| request.plan(&sources, targets).unwrap().describe().probe.unwrap();
        let (here, there) = (probe(request.clone()), probe(request.backend(Cuda::default())));
        assert_eq!(here.orders, there.orders, "{what}");
        assert_eq!(here.strata, there.strata, "{what}");
        assert_eq!((here.targets, here.sources), (there.targets, there.sources), "{what}");
        let n = sources.len() / 3;
        assert_eq!(here.sources < n, n > 20_000, "{what}: {} of {n} sources", here.sources);
        let rare = here.strata.iter().any(|stratum| stratum.name == "rare kinds");
        assert_eq!(rare, what != "all targets", "{what}: {:?}", here.strata);
        let close = if what == "near pairs that err" { 0.1 } else { 1e-6 };
        for (here, there) in here.outputs.iter().zip(&there.outputs) {
            let (here, there) = (here.error, there.error);
            assert!((here - there).abs() <= close * here, "{what}: {there:e} for {here:e}");
        }
    }
}

/// Interpolation on a device errs no more than on a CPU. The trees are not the same.
#[test]
#[ignore = "needs a GPU"]
fn interpolation_is_that_of_the_cpu() {
    let (x, y) = (CloudKind::Ellipsoid.points(6000, 1), uniform(900, 2));
    let kernels: [(AnyFamily, Outputs); 5] = [
        (catalog::kernel("inverse_r2").unwrap().into(), both()),
        (catalog::kernel("matern32").unwrap().set("l", 0.4).unwrap().into(), both()),
        (catalog::kernel("gaussian").unwrap().set("h", 0.4).unwrap().into(), Outputs::POTENTIAL),
        (Laplace.into(), both()),
        (StokesPressure { mu: 0.7 }.into(), Outputs::POTENTIAL),
    ];
    for (family, outputs) in kernels {
        let q = normal_strengths(6000 * family.facts(outputs).unwrap().strengths, 3);
        for targets in [Targets::Sources, Targets::Points(&y)] {
            let request = Fmm::new(family.clone()).outputs(outputs);
            let exact = request.clone().method(Method::Direct).plan(&x, targets).unwrap().apply(&q).unwrap();
            for (order, precision, treecode) in [
                (3, Precision::F64, false),
                (4, Precision::F64, true),
                (5, Precision::F32, false),
                (8, Precision::F64, false),
                (11, Precision::F64, false),
                (12, Precision::F64, false),
            ] {
                let request = request.clone().precision(precision).order(order).ncrit(60);
                let request = match treecode {
                    false => request.method(Method::Interpolation),
                    true => request.method(Method::Treecode).expansion(Expansion::Interpolation).theta(0.8),
                };
                let error = |request: Fmm| {
                    let sums = request.plan(&x, targets).unwrap().apply(&q).unwrap();
                    let all = outputs.names().len();
                    let each = [Outputs::POTENTIAL, Outputs::GRADIENT].into_iter().take(all);
                    each.map(|o| difference(sums.get(o), exact.get(o))).fold(0.0, f64::max)
                };
                let (host, device) = (error(request.clone()), error(request.backend(Cuda::default())));
                let rounding = if precision == Precision::F32 { 1e-4 } else { 1e-9 };
                let what = format!("{} order {order} {}", family.name(), precision.name());
                assert!(device < 5.0 * host + rounding, "{what}: {device:e} {host:e}");
            }
        }
    }
}

/// Kernels made at run time, with and without the source itself: fast and direct sums are those of the CPU.
#[test]
#[ignore = "needs a GPU"]
fn kernels_made_at_run_time_are_those_of_the_cpu() {
    let (x, y) = (uniform(4000, 8), uniform(1500, 9));
    let some: Vec<usize> = [3999, 0, 17, 17].into_iter().chain((0..4000).step_by(11)).collect();
    for name in fmm::catalog::names() {
        let kernel = fmm::catalog::kernel(name).unwrap();
        let dim = kernel.dim();
        let [x, y] = [(&x, 4000), (&y, 1500)].map(|(x, n)| &x[..dim * n]);
        let k = kernel.kernels(both()).unwrap();
        let q = strengths(4000 * k.near.strengths, 9);
        for own in [fmm::SelfInteraction::Include, fmm::SelfInteraction::Skip] {
            if k.near.singular && own == fmm::SelfInteraction::Include {
                continue;
            }
            let request = Fmm::new(kernel.clone()).outputs(both()).self_interaction(own);
            for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(y)] {
                let sums = |request: &Fmm, method| {
                    let request = request.clone().method(method);
                    let request = if method == Method::Direct { request } else { request.order(5).ncrit(60) };
                    request.plan(x, targets).unwrap().apply(&q).unwrap()
                };
                let on_device = request.clone().backend(Cuda::default());
                let exact = sums(&request, Method::Direct);
                let [direct, host, device] = [
                    sums(&on_device, Method::Direct),
                    sums(&request, Method::EquivalentDensities),
                    sums(&on_device, Method::EquivalentDensities),
                ];
                for output in [Outputs::POTENTIAL, Outputs::GRADIENT] {
                    let error = |sums: &fmm::Output| difference(sums.get(output), exact.get(output));
                    let [direct, host, device] = [&direct, &host, &device].map(error);
                    let what = format!("{name} {own:?} {}", output.names()[0]);
                    assert!(direct < 1e-11, "{what}: {direct:e}");
                    // The trees are not the same.
                    assert!(device < 5.0 * host + 1e-9, "{what}: {device:e} {host:e}");
                }
            }
        }
    }
    let matern = fmm::catalog::kernel("matern32").unwrap();
    holds_on(Cuda::default(), matern, both(), &[1e-2], Precision::F64, &[CloudKind::Uniform, CloudKind::Plummer]);
}

#[test]
#[ignore = "needs a GPU"]
fn subsets_other_targets_moved_points_and_direct_sums_are_those_of_the_cpu() {
    let (x, y) = (uniform(4000, 8), uniform(1500, 9));
    let some: Vec<usize> = [3999, 0, 17, 17].into_iter().chain((0..4000).step_by(11)).collect();
    let q = strengths(4000, 9);
    for builder in [
        fast(Laplace),
        fast(Gravity { g: 2.0, softening: 1e-3 }),
        Fmm::new(Laplace).method(Method::Direct),
        Fmm::new(Gravity { g: 2.0, softening: 1e-3 }).method(Method::Direct),
    ] {
        let builder = builder.tolerance(1e-7).outputs(both());
        let mut there = builder.clone().backend(Cuda::default()).plan(&y, Targets::Sources).unwrap();
        for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
            let here = builder.plan(&x, targets).unwrap();
            there.set_points(&x, targets).unwrap();
            let (u, v) = (here.apply(&q).unwrap(), there.apply(&q).unwrap());
            assert!(difference(&v.potential, &u.potential) < 2e-7);
            assert!(difference(&v.gradient, &u.gradient) < 2e-7);
            assert!(there.verify(&q, 100).unwrap().worst() < 1e-7);
            let (a, b) = (here.describe(), there.describe());
            assert_eq!((a.method, a.n_targets, b.backend), (b.method, b.n_targets, "cuda"));
            // A plan with operators of a higher order keeps this order.
            assert!(a.order <= b.order);
            assert!(b.device.is_some() && b.bytes > 0 && b.near_pairs > 0);
            let pairs: usize = there.near_field().map(|b| b.targets.len() * b.sources.len()).sum();
            assert!(a.method == "direct" || targets_differ(targets) || pairs as u64 == b.near_pairs, "{pairs} {b:?}");
            let batch = there.apply_batch(&[&q, &q]).unwrap();
            assert_eq!((&batch[0].potential, &batch[1].gradient), (&v.potential, &v.gradient));
        }
        assert!(there.set_points(&[1.0, 2.0, f64::NAN], Targets::Sources).is_err());
        assert_eq!(there.n_sources(), 4000);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn orders_differ_from_those_on_a_cpu_by_two_at_most() {
    for kind in [CloudKind::Uniform, CloudKind::Grid, CloudKind::Plane, CloudKind::Plummer, CloudKind::Ellipsoid] {
        let points = kind.points(8000, 4);
        for tolerance in [1e-3, 1e-5, 1e-7] {
            let order = |builder: Fmm| builder.plan(&points, Targets::Sources).unwrap().describe().order.unwrap();
            let builder = fast(Laplace).tolerance(tolerance).outputs(both());
            // Each plan measures its own errors. If an error is near the tolerance, the orders may differ by one. And a plan
            // stops above the least order where one more measurement does not pay, by the prices of its processor.
            let (here, there) = (order(builder.clone()), order(builder.backend(Cuda::default())));
            assert!(here.abs_diff(there) <= 2, "{} {tolerance:e}: {here} {there}", kind.name());
        }
    }
}

/// Whether the targets are a subset of the sources: the plan then evaluates at all sources.
fn targets_differ(targets: Targets) -> bool {
    matches!(targets, Targets::Subset(_))
}

#[test]
#[ignore = "needs a GPU"]
fn stencils_are_those_of_the_cpu() {
    let (x, q) = (CloudKind::Clustered.points(5000, 5), strengths(5000, 6));
    for translation in [Translation::Rcr, Translation::Domains] {
        let builder = Fmm::new(Laplace).method(Method::SphericalHarmonics).order(7).ncrit(20).outputs(both());
        let builder = builder.lists(ListPolicy::Stencil119).translation(translation).truncation(Truncation::Fixed);
        let of = |builder: &Fmm| {
            let plan = builder.plan(&x, Targets::Sources).unwrap();
            assert_eq!(plan.describe().lists, Some("stencil119"));
            plan.apply(&q).unwrap()
        };
        let (here, there) = (of(&builder), of(&builder.clone().backend(Cuda::default())));
        assert!(difference(&there.potential, &here.potential) < 1e-12);
        assert!(difference(&there.gradient, &here.gradient) < 1e-11);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn harmonics_and_treecodes_keep_the_tolerance_and_are_those_of_the_cpu() {
    let some: Vec<usize> = (0..4000).step_by(7).collect();
    let (x, y, q) = (uniform(4000, 8), CloudKind::Plummer.points(1500, 9), strengths(4000, 9));
    for kind in CloudKind::ALL {
        let points = kind.points(4000, 3);
        let [harmonics, tree] = [Method::SphericalHarmonics, Method::Treecode];
        for (method, tolerance, precision) in [
            (harmonics, 1e-3, Precision::F32),
            (harmonics, 1e-4, Precision::F64),
            (tree, 1e-3, Precision::F32),
            (tree, 1e-5, Precision::F64),
        ] {
            let builder = Fmm::new(Laplace).method(method).backend(Cuda::default());
            let builder = builder.tolerance(tolerance).precision(precision).outputs(both()).ncrit(30);
            let plan = builder.plan(&points, Targets::Sources).unwrap();
            let worst = plan.verify(&strengths(points.len() / 3, 5), 500).unwrap().worst();
            assert!(worst <= tolerance, "{} {method:?} {precision:?}: {worst:e}", kind.name());
        }
    }
    let builder = fast(Laplace).method(Method::SphericalHarmonics).order(9).outputs(both()).ncrit(30);
    let builder = builder.truncation(Truncation::Fixed);
    for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
        let here = builder.plan(&x, targets).unwrap();
        let there = builder.clone().backend(Cuda::default()).plan(&x, targets).unwrap();
        let (u, v) = (here.apply(&q).unwrap(), there.apply(&q).unwrap());
        assert!(difference(&v.potential, &u.potential) < 1e-3 * there.verify(&q, 200).unwrap().worst());
        let (a, b) = (here.describe(), there.describe());
        assert_eq!((a.method, a.order, a.truncation, b.translation), (b.method, b.order, b.truncation, Some("rcr")));
        assert!(b.bytes > 0 && b.near_pairs > 0 && a.edges.m2l > 0);
    }
    let dipoles = Fmm::new(LaplaceMixed).method(Method::SphericalHarmonics).tolerance(1e-3).outputs(both());
    let plan = dipoles.backend(Cuda::default()).plan(&x, Targets::Points(&y)).unwrap();
    assert!(plan.verify(&normal_strengths(16_000, 4), 500).unwrap().worst() <= 1e-3);
}
