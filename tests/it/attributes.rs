//! Attributes of sources: a radius or a width of its own for each source, against sums in this file.

use crate::cli::{json, refused};
use crate::{difference, in_turn, strengths, uniform};
use fmm::{
    Backend, Cuda, Error, Expansion, Fmm, Laplace, Method, Outputs, Precision, SelfInteraction, Targets, Traced,
    catalog,
};
use fmm_traits::testkit::clouds::CloudKind;

/// Radii of `n` sources, from `a` to 3·`a`.
fn radii(n: usize, a: f64) -> Vec<f64> {
    uniform(n, 7)[..n].iter().map(|x| a * (1.0 + 2.0 * x)).collect()
}

/// The velocities of regularised Stokeslets (Cortez, Fauci & Medovikov 2005, eq. 10), viscosity 1.
fn stokeslets(x: &[f64], y: &[f64], e: &[f64], f: &[f64]) -> Vec<f64> {
    let velocity = |y: &[f64]| {
        let mut u = [0.0; 3];
        for ((x, f), e) in x.chunks_exact(3).zip(f.chunks_exact(3)).zip(e) {
            let d: [f64; 3] = std::array::from_fn(|a| y[a] - x[a]);
            let dot = |a: &[f64], b: &[f64]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
            let (r2, e2) = (dot(&d, &d), e * e);
            let c = 1.0 / (8.0 * std::f64::consts::PI * (r2 + e2).powf(1.5));
            (0..3).for_each(|a| u[a] += c * ((r2 + 2.0 * e2) * f[a] + dot(&d, f) * d[a]));
        }
        u
    };
    y.chunks_exact(3).flat_map(velocity).collect()
}

fn regularised() -> Traced {
    catalog::kernel("regularised_stokeslet").unwrap()
}

fn tree(kernel: Traced) -> Fmm {
    Fmm::new(kernel).method(Method::Interpolation).ncrit(40)
}

#[test]
fn radii_of_stokeslets_keep_the_tolerance() {
    let mut case = 0;
    for cloud in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Plummer] {
        let (x, f) = (cloud.points(2500, 1), strengths(7500, 2));
        for (radius, tolerance) in [(1e-4, 1e-3), (1e-2, 1e-3), (1e-3, 1e-5)] {
            case += 1;
            if !in_turn(case + 1, 4) {
                continue;
            }
            let e = radii(2500, radius);
            let exact = stokeslets(&x, &x, &e, &f);
            let plan = tree(regularised()).attribute("e", &e).tolerance(tolerance).plan(&x, Targets::Sources).unwrap();
            let found = plan.apply(&f).unwrap();
            let error = difference(found.get(Outputs::POTENTIAL), &exact);
            assert!(error <= tolerance, "{} {radius} {tolerance}: {error:e}", cloud.name());
            let report = plan.verify(&f, 2500).unwrap().outputs[0].rel_l2;
            assert!((report - error).abs() <= 1e-2 * error + 1e-14, "{report} {error}");
        }
    }
}

/// Radii that are not much smaller than leaves: fields of one radius stall above the tolerance, those of several do not.
#[test]
fn wide_radii_keep_a_small_tolerance() {
    let (x, f, e) = (uniform(2500, 1), strengths(7500, 2), radii(2500, 0.01));
    let exact = stokeslets(&x, &x, &e, &f);
    let request = tree(regularised()).attribute("e", &e);
    let plan = request.tolerance(1e-6).plan(&x, Targets::Sources).unwrap();
    let error = difference(plan.apply(&f).unwrap().get(Outputs::POTENTIAL), &exact);
    assert!(error <= 1e-6, "{error:e}");
    let report = plan.verify(&f, 1000).unwrap().outputs[0].rel_l2;
    assert!(report <= 1e-6 && plan.describe().nodes > Some(1), "{report:e} {:?}", plan.describe());
}

/// Direct sums have no far field, so that nodes are no answer to an error of theirs.
#[test]
fn direct_sums_in_single_precision_state_their_floor() {
    let (x, e) = (uniform(400, 1), radii(400, 1e-2));
    let request = Fmm::new(regularised()).attribute("e", &e).precision(Precision::F32);
    match request.clone().tolerance(1e-9).plan(&x, Targets::Sources) {
        Err(Error::ToleranceFloor { floor, .. }) => assert!(floor > 1e-9 && floor < 1e-5, "{floor:e}"),
        other => panic!("{:?}", other.map(|plan| plan.describe())),
    }
    assert!(request.plan(&x, Targets::Sources).is_ok());
}

/// A third node lowers the error of interpolation by more than ten, a fourth to that of the order. Several sets of
/// strengths share the near field.
#[test]
fn nodes_lower_the_error() {
    let (x, f, e) = (uniform(2000, 1), strengths(6000, 2), radii(2000, 0.02));
    let exact = stokeslets(&x, &x, &e, &f);
    let errors = [2, 3, 4].map(|nodes| {
        let request = tree(regularised()).attribute("e", &e).order(7).nodes(nodes);
        let plan = request.plan(&x, Targets::Sources).unwrap();
        assert_eq!((plan.describe().nodes, plan.describe().method), (Some(nodes), "interpolation"));
        let twice: Vec<f64> = f.iter().map(|f| 2.0 * f).collect();
        let found = plan.apply_batch(&[&twice, &f]).unwrap();
        let half: Vec<f64> = found[0].get(Outputs::POTENTIAL).iter().map(|u| 0.5 * u).collect();
        assert_eq!(half, found[1].get(Outputs::POTENTIAL));
        difference(&half, &exact)
    });
    assert!(errors[1] < 0.1 * errors[0] && errors[2] < 0.9 * errors[1], "{errors:?}");
}

/// A treecode takes multipoles of all nodes to its targets.
#[test]
fn nodes_of_a_treecode() {
    let (x, f, e) = (uniform(2000, 1), strengths(6000, 2), radii(2000, 0.02));
    let exact = stokeslets(&x, &x, &e, &f);
    let request = Fmm::new(regularised()).attribute("e", &e).method(Method::Treecode).ncrit(40);
    let error = |request: Fmm| {
        let plan = request.plan(&x, Targets::Sources).unwrap();
        let found = plan.apply(&f).unwrap();
        (difference(found.get(Outputs::POTENTIAL), &exact), plan.describe().nodes)
    };
    let given = request.clone().expansion(Expansion::Interpolation).order(7);
    let [two, three] = [2, 3].map(|nodes| error(given.clone().nodes(nodes)));
    assert!(three.0 < 0.3 * two.0 && three.1 == Some(3), "{two:?} {three:?}");
    let kept = error(request.expansion(Expansion::Interpolation).theta(0.6).tolerance(1e-6));
    assert!(kept.0 <= 1e-6 && kept.1 > Some(1), "{kept:?}");
}

/// The sums of a kernel `value`(r², attributes), over sources with two attributes.
fn softened(x: &[f64], own: [&[f64]; 2], q: &[f64], value: impl Fn(f64, f64, f64) -> f64 + Copy) -> Vec<f64> {
    let sum = |y: &[f64]| -> f64 {
        let of_source = |(j, x): (usize, &[f64])| {
            let r2: f64 = (0..3).map(|a| (y[a] - x[a]).powi(2)).sum();
            q[j] * value(r2, own[0][j], own[1][j])
        };
        x.chunks_exact(3).enumerate().map(of_source).sum()
    };
    x.chunks_exact(3).map(sum).collect()
}

/// Gaussians that are wider than leaves, and two attributes, for which nodes form a grid.
#[test]
fn wide_gaussians_and_two_attributes() {
    let (x, q) = (uniform(2000, 1), strengths(2000, 2));
    let [width, radius, rate] = [(7, 0.3, 0.04), (8, 0.01, 0.02), (9, 1.0, 0.2)]
        .map(|(seed, low, range)| uniform(2000, seed)[..2000].iter().map(|x| low + range * x).collect::<Vec<f64>>());
    let gaussian = Traced::expression("exp(-r^2/(2*s^2))").unwrap();
    let plan = tree(gaussian).attribute("s", &width).tolerance(1e-4).plan(&x, Targets::Sources).unwrap();
    let exact = softened(&x, [&width, &rate], &q, |r2, s, _| (-r2 / (2.0 * s * s)).exp());
    let error = difference(plan.apply(&q).unwrap().get(Outputs::POTENTIAL), &exact);
    assert!(error <= 1e-4, "{error:e} {:?}", plan.describe());

    let kernel = Traced::expression("exp(-k*r)/sqrt(r^2 + e^2)").unwrap();
    let request = tree(kernel).attribute("e", &radius).attribute("k", &rate);
    let exact = softened(&x, [&radius, &rate], &q, |r2, e, k| (-k * r2.sqrt()).exp() / (r2 + e * e).sqrt());
    let error = |request: Fmm| {
        let plan = request.plan(&x, Targets::Sources).unwrap();
        difference(plan.apply(&q).unwrap().get(Outputs::POTENTIAL), &exact)
    };
    let errors = [2, 3].map(|nodes| error(request.clone().order(7).nodes(nodes)));
    assert!(errors[1] < 0.2 * errors[0], "{errors:?}");
    let kept = error(request.tolerance(1e-4));
    assert!(kept <= 1e-4, "{kept:e}");
}

/// All ways of asking give the same sums, whatever the unit of length.
#[test]
fn every_way_of_asking_gives_the_sums() {
    for unit in [1.0, 1e-7, 3e4] {
        let scaled = |x: Vec<f64>| x.into_iter().map(|x| x * unit).collect::<Vec<f64>>();
        let (x, y) = (scaled(uniform(2500, 1)), scaled(CloudKind::Plane.points(300, 3)));
        let (e, f) = (scaled(radii(2500, 2e-3)), strengths(7500, 2));
        let some: Vec<usize> = (0..2500).step_by(9).collect();
        let chosen: Vec<f64> = some.iter().flat_map(|i| x[3 * i..3 * i + 3].to_vec()).collect();
        let request = tree(regularised()).attribute("e", &e);
        for (targets, at) in [(Targets::Sources, &x), (Targets::Points(&y), &y), (Targets::Subset(&some), &chosen)] {
            let exact = stokeslets(&x, at, &e, &f);
            for (request, bound) in [
                (request.clone().order(6), 1e-4),
                (request.clone().order(6).method(Method::EquivalentDensities), 1e-4),
                (request.clone().order(6).method(Method::Treecode).expansion(Expansion::Interpolation), 1e-4),
                (request.clone().order(5).precision(Precision::F32), 2e-3),
                (request.clone().method(Method::Direct), 1e-12),
                (request.clone().tolerance(1e-4).method(Method::Auto), 1e-4),
            ] {
                let plan = request.plan(&x, targets).unwrap();
                assert_eq!(plan.strengths(), 3);
                let twice: Vec<f64> = f.iter().map(|f| 2.0 * f).collect();
                let found = plan.apply_batch(&[&f, &twice]).unwrap();
                let error = difference(found[0].get(Outputs::POTENTIAL), &exact);
                assert!(error < bound, "{unit} {}: {error:e}", plan.describe().method);
                let half: Vec<f64> = found[1].get(Outputs::POTENTIAL).iter().map(|u| 0.5 * u).collect();
                assert!(difference(&half, found[0].get(Outputs::POTENTIAL)) < 1e-6);
            }
        }
    }
}

/// Two attributes, one of them a parameter without a value; the gradient; the source itself.
#[test]
fn several_attributes() {
    let kernel = Traced::expression("a*exp(-r^2/(2*s^2))").unwrap().set("a", 1.0).unwrap();
    let (x, q) = (uniform(2000, 1), strengths(2000, 2));
    let (a, s) = (radii(2000, 0.5), radii(2000, 0.04).iter().map(|s| 0.3 + s).collect::<Vec<_>>());
    let request = Fmm::new(kernel).outputs(crate::both()).attribute("a", &a).attribute("s", &s);
    let (mut potential, mut gradient) = (Vec::new(), Vec::new());
    for y in x.chunks_exact(3) {
        let mut sums = [0.0; 4];
        for (j, x) in x.chunks_exact(3).enumerate() {
            let d: [f64; 3] = std::array::from_fn(|k| y[k] - x[k]);
            let value = a[j] * q[j] * (-(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]) / (2.0 * s[j] * s[j])).exp();
            sums[0] += value;
            (0..3).for_each(|k| sums[k + 1] -= value * d[k] / (s[j] * s[j]));
        }
        potential.push(sums[0]);
        gradient.extend(&sums[1..]);
    }
    for (request, bound) in [
        (request.clone().method(Method::Direct), 1e-12),
        (request.clone().method(Method::Interpolation).ncrit(40).order(9), 2e-2),
    ] {
        let found = request.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        for (output, exact) in [(Outputs::POTENTIAL, &potential), (Outputs::GRADIENT, &gradient)] {
            let error = difference(found.get(output), exact);
            assert!(error < bound, "{} {error:e}", output.names()[0]);
        }
    }
}

/// Every kernel of the catalog with each of its parameters as an attribute: with equal values the sums are those of the
/// parameter.
#[test]
fn equal_attributes_are_a_parameter() {
    let (x, own) = (uniform(301, 1), SelfInteraction::Skip);
    for name in catalog::names() {
        let kernel = catalog::kernel(name).unwrap();
        if kernel.dim() == 2 {
            continue;
        }
        let plain = Fmm::new(kernel.clone()).method(Method::Direct).self_interaction(own);
        let q = strengths(301 * plain.strengths().unwrap(), 2);
        let expected = plain.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        if plain.strengths().unwrap() == 9 {
            let many = plain.clone().attribute(&kernel.parameters()[0].0, &[1.0; 301]).plan(&x, Targets::Sources);
            assert!(matches!(many, Err(Error::TooMany { .. })), "{:?}", many.err());
            continue;
        }
        for (parameter, value) in kernel.parameters() {
            let values = vec![value.unwrap(); 301];
            for (request, bound) in [
                (plain.clone(), 1e-12),
                (Fmm::new(kernel.clone()).self_interaction(own).method(Method::Interpolation).ncrit(40).order(5), 0.5),
            ] {
                let found =
                    request.attribute(parameter, &values).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
                let error = difference(found.get(Outputs::POTENTIAL), expected.get(Outputs::POTENTIAL));
                assert!(error < bound, "{name} {parameter}: {error:e}");
            }
        }
    }
}

/// Radii of both signs, whose mean is 0, and a radius of 0: all pairs of different sources are finite.
#[test]
fn degenerate_radii() {
    let kernel = Traced::expression("1/(r^2 + e^2)").unwrap();
    for n in [8, 9, 63, 200] {
        let (x, q) = (uniform(n, 1), strengths(n, 2));
        let sum = |e: &[f64], own: bool| -> Vec<f64> {
            let pair = |i: usize, j: usize| {
                let r2: f64 = (0..3).map(|a| (x[3 * i + a] - x[3 * j + a]).powi(2)).sum();
                if i == j && !own { 0.0 } else { q[j] / (r2 + e[j] * e[j]) }
            };
            (0..n).map(|i| (0..n).map(|j| pair(i, j)).sum()).collect()
        };
        let signs: Vec<f64> = (0..n).map(|i| if i % 2 == 0 { 0.01 } else { -0.01 }).collect();
        let mut zeros = vec![0.3; n];
        (zeros[0], zeros[n - 1]) = (0.0, 0.0);
        for (e, own) in [(&signs, SelfInteraction::Include), (&zeros, SelfInteraction::Skip)] {
            let exact = sum(e, own == SelfInteraction::Include);
            for (precision, bound) in [(Precision::F64, 1e-12f64), (Precision::F32, 1e-5)] {
                let request = Fmm::new(kernel.clone()).attribute("e", e).self_interaction(own).precision(precision);
                for request in [request.clone().method(Method::Direct), request.method(Method::Interpolation).order(6)]
                {
                    let found = request.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
                    let error = difference(found.get(Outputs::POTENTIAL), &exact);
                    assert!(error < bound.max(if precision == Precision::F64 { 1e-4 } else { 0.0 }), "{n} {error:e}");
                }
            }
        }
    }
}

/// Values belong to names, whatever the order and however often they are given.
#[test]
fn values_belong_to_names() {
    let kernel = Traced::expression("a*exp(-r/s)").unwrap();
    let (x, q) = (uniform(100, 1), strengths(100, 2));
    let (a, s) = (radii(100, 0.5), radii(100, 0.2));
    let sums = |kernel: Traced, given: &[(&str, &Vec<f64>)]| {
        let request = given.iter().fold(Fmm::new(kernel), |request, (name, values)| request.attribute(name, values));
        request.plan(&x, Targets::Sources).map(|plan| plan.apply(&q).unwrap().get(Outputs::POTENTIAL).to_vec())
    };
    let expected = sums(kernel.clone(), &[("a", &a), ("s", &s)]).unwrap();
    let turned = kernel.clone().attribute("s").unwrap().attribute("a").unwrap();
    for given in [&[("a", &a), ("s", &s)][..], &[("s", &s), ("a", &a)], &[("a", &s), ("s", &s), ("a", &a)]] {
        for kernel in [&kernel, &turned] {
            assert!(difference(&sums(kernel.clone(), given).unwrap(), &expected) < 1e-14);
        }
    }
    let missing = sums(turned, &[("s", &s)]);
    assert!(matches!(missing, Err(Error::MissingParameter { .. })), "{missing:?}");
}

#[test]
fn wrong_attributes_are_errors() {
    let (x, e) = (uniform(200, 1), radii(200, 1e-3));
    let plan = |request: Fmm| request.plan(&x, Targets::Sources).err();
    let request = Fmm::new(regularised());
    let unknown = plan(request.clone().attribute("radius", &e));
    assert!(matches!(unknown, Some(Error::UnknownParameter { .. })), "{unknown:?}");
    let few = plan(request.clone().attribute("e", &e[..199]));
    assert!(matches!(few, Some(Error::Shape { found: 199, expected: 200, .. })), "{few:?}");
    let mut bad = e.clone();
    bad[17] = f64::NAN;
    let not_finite = plan(request.clone().attribute("e", &bad));
    assert!(matches!(not_finite, Some(Error::NotFinite { .. })), "{not_finite:?}");
    let compiled = plan(Fmm::new(Laplace).attribute("e", &e));
    assert!(matches!(compiled, Some(Error::Unsupported { .. })), "{compiled:?}");
    let few = plan(request.clone().nodes(2));
    assert!(matches!(few, Some(Error::Unsupported { .. })), "{few:?}");
    for (nodes, method) in [(0, Method::Auto), (5, Method::Interpolation), (2, Method::Direct)] {
        let wrong = plan(request.clone().attribute("e", &e).nodes(nodes).method(method));
        let right = matches!(wrong, Some(Error::Parameter { .. })) == !(1..=4).contains(&nodes);
        assert!(right && wrong.is_some(), "{nodes} {method:?}: {wrong:?}");
    }
    let mut many = request.clone().attribute("mu", &e);
    many = many.attribute("e", &e);
    assert!(plan(many).is_none());
    let mut plan = request.attribute("e", &e).plan(&x, Targets::Sources).unwrap();
    assert!(matches!(plan.apply_transpose(&strengths(600, 1)), Err(Error::Unsupported { .. })));
    let moved = plan.set_points(&x[..300], Targets::Sources);
    assert!(matches!(moved, Err(Error::Shape { found: 200, expected: 100, .. })), "{moved:?}");
    plan.set_points(&uniform(200, 5), Targets::Sources).unwrap();
}

#[test]
fn the_command_reads_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("e.csv");
    let text: String = radii(3000, 2e-3).iter().map(|e| format!("{e}\n")).collect();
    std::fs::write(&file, text).unwrap();
    let attribute = format!("e={}", file.display());
    let shared = ["run", "--kernel", "regularised_stokeslet", "--demo", "uniform", "--n"];
    let report = json(
        &[&shared[..], &["3000", "--attribute", &attribute, "--verify", "3000", "--tolerance", "1e-4", "--json"]]
            .concat(),
    );
    assert!(report["errors"]["potential"]["rel_l2"].as_f64().unwrap() <= 1e-4, "{}", report["errors"]);
    let count = refused(&[&shared[..], &["2000", "--attribute", &attribute]].concat());
    assert!(count.contains("3000") && count.contains("2000"), "{count}");
    let name = refused(&[&shared[..], &["3000", "--attribute", &attribute.replace("e=", "f=")]].concat());
    assert!(name.contains("mu, e"), "{name}");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sums_with_attributes() {
    let (x, y) = (uniform(6001, 1), uniform(500, 2));
    let e = radii(6001, 1e-3);
    let softened = Traced::expression("1/sqrt(r^2 + e^2)").unwrap();
    for (kernel, own) in [(regularised(), SelfInteraction::Include), (softened, SelfInteraction::Skip)] {
        for precision in [Precision::F64, Precision::F32] {
            for method in [Method::Direct, Method::Interpolation, Method::EquivalentDensities] {
                let request = Fmm::new(kernel.clone()).attribute("e", &e).self_interaction(own).tolerance(1e-4);
                let f = strengths(6001 * request.strengths().unwrap(), 3);
                let cuda = request.clone().method(method).precision(precision).backend(Backend::Cuda(Cuda::default()));
                for targets in [Targets::Sources, Targets::Points(&y)] {
                    let found = cuda.plan(&x, targets).unwrap().apply(&f).unwrap();
                    let exact = crate::direct(&request, &x, targets, &f);
                    let error = difference(found.get(Outputs::POTENTIAL), exact.get(Outputs::POTENTIAL));
                    assert!(error <= 1e-4, "{precision:?} {method:?} {error:e}");
                }
            }
        }
    }
}

/// The GPU finds the nodes that the CPU finds, and has its sums.
#[test]
#[ignore = "needs a GPU"]
fn gpu_far_fields_with_nodes() {
    let (x, f, e) = (uniform(4001, 1), strengths(12_003, 2), radii(4001, 0.01));
    let exact = stokeslets(&x, &x, &e, &f);
    let request = tree(regularised()).attribute("e", &e);
    let on_both = |request: Fmm| {
        [request.clone().backend(Backend::Cuda(Cuda::default())), request].map(|request| {
            let plan = request.plan(&x, Targets::Sources).unwrap();
            let sums = plan.apply(&f).unwrap().get(Outputs::POTENTIAL).to_vec();
            (plan.describe().nodes, plan.describe().order, sums)
        })
    };
    for method in [Method::Interpolation, Method::EquivalentDensities, Method::Treecode] {
        let [gpu, cpu] = on_both(request.clone().method(method).order(6).nodes(3));
        let error = difference(&gpu.2, &cpu.2);
        assert!(gpu.0 == Some(3) && error < 1e-9, "{method:?} {error:e}");
    }
    let [gpu, cpu] = on_both(request.tolerance(1e-6));
    let error = difference(&gpu.2, &exact);
    assert!(error <= 1e-6 && gpu.0 > Some(1), "{error:e} {:?}", gpu.0);
    assert_eq!((gpu.0, gpu.1), (cpu.0, cpu.1));
}
