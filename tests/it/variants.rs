//! Spherical harmonics and treecodes: the promise of the tolerance, agreement with the other methods, and options that
//! exclude each other.

use crate::cli::{fmm, last_line};
use crate::probe::Kept;
use crate::{both, difference, direct, far_share, in_turn, strengths, uniform};
use fmm::{
    Error, Expansion, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, ListPolicy, Method, Outputs, Precision,
    Stokes, Targets, Translation, Truncation, Yukawa, demo,
};
use fmm_traits::testkit::clouds::CloudKind;
use serde_json::Value;
use std::path::Path;

/// Checks the tolerance on every cloud, for both kinds of strengths.
fn holds(builder: Fmm, tolerances: &[f64]) {
    holds_with_leaves(builder, tolerances, 40, 0.4);
}

/// As [`holds`], with leaves of up to `ncrit` points. The leaves are so small that the expansion has at least the
/// fraction `far` of the pairs of uniform points: pairs summed directly keep any promise.
fn holds_with_leaves(builder: Fmm, tolerances: &[f64], ncrit: usize, far: f64) {
    let c = builder.strengths().unwrap();
    let mut kept = Kept::default();
    for (k, kind) in CloudKind::ALL.into_iter().enumerate() {
        let x = kind.points(2500, 100 + k as u64);
        let n = x.len() / 3;
        let cases = tolerances.iter().rev().enumerate();
        for (_, &tolerance) in cases.filter(|(t, _)| in_turn(tolerances.len() * k + t, 7)) {
            let plan = builder.clone().tolerance(tolerance).ncrit(ncrit).plan(&x, Targets::Sources).unwrap();
            let share = far_share(&plan.describe());
            assert!(kind != CloudKind::Uniform || share >= far, "{tolerance:e}: {share} of the pairs are far");
            for q in [demo::strengths(n, c, 7), demo::normal_strengths(n, c, 7)] {
                let (report, d) = (plan.verify(&q, 1000).unwrap(), plan.describe());
                kept.count(report.worst(), tolerance, || format!("{} {:?} {:?}", kind.name(), d.order, d.theta));
            }
        }
    }
    kept.judge();
}

fn spherical(family: impl Into<fmm::AnyFamily>) -> Fmm {
    Fmm::new(family).method(Method::SphericalHarmonics).outputs(both())
}

fn treecode(family: impl Into<fmm::AnyFamily>, expansion: Expansion) -> Fmm {
    Fmm::new(family).method(Method::Treecode).expansion(expansion).outputs(both())
}

#[test]
fn spherical_harmonics_keep_the_tolerance() {
    holds(spherical(Laplace), &[1e-2, 1e-4, 1e-6]);
    holds(spherical(Laplace).outputs(Outputs::POTENTIAL), &[1e-3, 1e-8]);
    holds(spherical(Laplace).lists(ListPolicy::Stencil119), &[1e-3, 1e-5]);
    holds(spherical(Laplace).truncation(Truncation::Fixed), &[1e-3, 1e-5]);
    holds(spherical(Laplace).translation(Translation::Domains), &[1e-3]);
    holds(spherical(Laplace).precision(Precision::F32), &[1e-2, 1e-3]);
    holds(spherical(Gravity { g: 1.0, softening: 1e-4 }), &[1e-3, 1e-5]);
}

#[test]
fn second_derivatives_keep_the_tolerance() {
    let all = both() | Outputs::HESSIAN;
    holds(spherical(Laplace).outputs(all), &[1e-2, 1e-5]);
    holds(spherical(Laplace).outputs(all).precision(Precision::F32), &[2e-2]);
    holds(spherical(LaplaceDipole).outputs(all), &[1e-3]);
    holds_with_leaves(treecode(Laplace, Expansion::Equivalent).outputs(all), &[1e-3], 8, 0.7);
}

/// The error is not much smaller than the tolerance.
#[test]
fn spherical_harmonics_spend_what_the_tolerance_allows() {
    let n = 20_000;
    for outputs in [Outputs::POTENTIAL, both()] {
        for tolerance in [1e-3, 1e-6, 1e-9] {
            let builder = spherical(Laplace).outputs(outputs).tolerance(tolerance);
            let plan = builder.plan(&uniform(n, 4), Targets::Sources).unwrap();
            let of = |q: Vec<f64>| plan.verify(&q, 1000).unwrap().worst();
            let worst = of(demo::strengths(n, 1, 7)).max(of(demo::normal_strengths(n, 1, 7)));
            // At high orders the plan keeps one order in reserve.
            let waste = if tolerance > 1e-8 { 30.0 } else { 50.0 };
            assert!((tolerance / waste..=tolerance).contains(&worst), "{outputs:?} {tolerance:e}: {worst:e}");
        }
    }
}

/// Points of a grid lie in the corners of their boxes, and need a higher order than random points.
#[test]
fn the_order_follows_the_points() {
    let q = strengths(30_000, 2);
    for tolerance in [1e-4, 1e-9] {
        let order = |kind: CloudKind| {
            let x = kind.points(30_000, 1);
            let plan = spherical(Laplace).tolerance(tolerance).plan(&x, Targets::Sources).unwrap();
            assert!(plan.verify(&q[..x.len() / 3], 500).unwrap().worst() <= tolerance, "{}", kind.name());
            plan.describe().order
        };
        assert!(order(CloudKind::Grid) > order(CloudKind::Uniform));
    }
}

#[test]
fn spherical_harmonics_of_dipoles_keep_the_tolerance() {
    holds(spherical(LaplaceDipole), &[1e-3, 1e-5]);
    holds(spherical(LaplaceMixed), &[1e-2, 1e-4]);
}

#[test]
fn treecodes_keep_the_tolerance() {
    let holds = |builder, tolerances: &[f64]| holds_with_leaves(builder, tolerances, 8, 0.7);
    for expansion in [Expansion::Spherical, Expansion::Equivalent] {
        holds(treecode(Laplace, expansion), &[1e-2, 1e-4, 1e-7]);
        holds(treecode(Laplace, expansion).outputs(Outputs::POTENTIAL), &[1e-3, 1e-8]);
        holds(treecode(Laplace, expansion).theta(0.45), &[1e-5]);
        holds(treecode(Gravity { g: 1.0, softening: 1e-4 }, expansion), &[1e-3, 1e-5]);
    }
    holds(treecode(Laplace, Expansion::Spherical).truncation(Truncation::Fixed).theta(0.9), &[1e-4]);
    holds(treecode(Laplace, Expansion::Spherical).outputs(both() | Outputs::HESSIAN), &[1e-2, 1e-4]);
    holds(treecode(LaplaceMixed, Expansion::Spherical), &[1e-3]);
    holds(treecode(Laplace, Expansion::Spherical).precision(Precision::F32), &[1e-3]);
    holds(treecode(Laplace, Expansion::Spherical).precision(Precision::F32).outputs(Outputs::POTENTIAL), &[1e-5]);
    holds(treecode(Yukawa { kappa: 2.0 }, Expansion::Equivalent), &[1e-3]);
}

/// Each variant agrees with the direct sum, for all sources, a subset of the sources and separate targets. Errors fall
/// with the order.
#[test]
fn every_variant_gives_the_sums() {
    let (x, other) = (CloudKind::Ellipsoid.points(3000, 1), uniform(500, 2));
    let q = strengths(3000, 3);
    let subset: Vec<usize> = (0..3000).step_by(7).collect();
    let variants = [
        spherical(Laplace),
        spherical(Laplace).translation(Translation::Direct),
        spherical(Laplace).translation(Translation::Domains).lists(ListPolicy::Stencil119),
        spherical(Laplace).lists(ListPolicy::Stencil119).truncation(Truncation::Fixed),
        treecode(Laplace, Expansion::Spherical),
        treecode(Laplace, Expansion::Spherical).theta(0.4),
        treecode(Laplace, Expansion::Equivalent).theta(0.8),
    ];
    for (k, builder) in variants.into_iter().enumerate() {
        for targets in [Targets::Sources, Targets::Subset(&subset), Targets::Points(&other)] {
            let exact = direct(&Fmm::new(Laplace).outputs(both()), &x, targets, &q);
            let errors = [4, 9].map(|order| {
                let out = builder.clone().order(order).plan(&x, targets).unwrap().apply(&q).unwrap();
                difference(&out.potential, &exact.potential).max(difference(&out.gradient, &exact.gradient))
            });
            println!("MEASURE variant {k} : {errors:?}");
            assert!(errors[0] < 0.05 && errors[1] < 2e-3 && errors[1] < 0.2 * errors[0], "{k}: {errors:?}");
        }
    }
}

/// A wider angle has fewer edges, and the plan reports its choices.
#[test]
fn plans_say_what_was_chosen() {
    let x = uniform(5000, 1);
    let of = |builder: Fmm| builder.plan(&x, Targets::Sources).unwrap().describe();
    let [narrow, wide] = [0.3, 0.9].map(|t| of(treecode(Laplace, Expansion::Spherical).order(2).ncrit(10).theta(t)));
    assert!(narrow.edges.m2p > 2 * wide.edges.m2p && wide.edges.m2l == 0 && wide.theta == Some(0.9));
    assert_eq!((wide.method, wide.expansion, wide.lists), ("treecode", Some("spherical"), Some("treecode")));
    let chosen = of(treecode(Laplace, Expansion::Spherical).tolerance(1e-4));
    assert!(chosen.theta.is_some_and(|t| (0.3..=1.0).contains(&t)) && chosen.order.is_some());
    let s = of(spherical(Laplace).tolerance(1e-4));
    assert_eq!((s.method, s.translation, s.truncation), ("spherical", Some("rcr"), Some("variable")));
    let stencil = of(spherical(Laplace).order(6).ncrit(8).lists(ListPolicy::Stencil119));
    assert_eq!(stencil.lists, Some("stencil119"));
    assert!(stencil.edges.m2l < of(spherical(Laplace).order(6).ncrit(8)).edges.m2l);
    assert_eq!(of(Fmm::new(Laplace).method(Method::Direct)).expansion, None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let x = uniform(100, 1);
    let of = |builder: Fmm| builder.plan(&x, Targets::Sources).err();
    let unsupported = |builder: Fmm| assert!(matches!(of(builder), Some(Error::Unsupported { .. })));
    unsupported(Fmm::new(Yukawa { kappa: 1.0 }).method(Method::SphericalHarmonics));
    unsupported(Fmm::new(Stokes { mu: 1.0 }).method(Method::Treecode).expansion(Expansion::Spherical));
    unsupported(spherical(Laplace).theta(0.5));
    unsupported(Fmm::new(Laplace).theta(0.5));
    unsupported(Fmm::new(Laplace).method(Method::EquivalentDensities).lists(ListPolicy::Stencil119));
    unsupported(Fmm::new(Laplace).method(Method::Treecode).lists(ListPolicy::Uvwx));
    unsupported(Fmm::new(Laplace).method(Method::EquivalentDensities).translation(Translation::Rcr));
    unsupported(treecode(Laplace, Expansion::Equivalent).truncation(Truncation::Fixed));
    unsupported(spherical(Laplace).expansion(Expansion::Equivalent));
    for theta in [0.0, -1.0, f64::NAN, 1.2] {
        let refused = of(treecode(Laplace, Expansion::Spherical).theta(theta));
        assert!(matches!(refused, Some(Error::Parameter { name: "theta", .. })), "{refused:?}");
    }
    assert!(matches!(of(spherical(Laplace).order(41)), Some(Error::Order { order: 41, min: 1, max: 40 })));
    let many = uniform(300, 1);
    let refused = spherical(Laplace).tolerance(1e-14).ncrit(10).plan(&many, Targets::Sources).err();
    assert!(matches!(refused, Some(Error::ToleranceFloor { floor, .. }) if floor < 1e-11), "{refused:?}");
    assert!(matches!(of(treecode(Laplace, Expansion::Spherical).tolerance(-1.0)), Some(Error::Tolerance { .. })));
}

#[test]
fn the_command_knows_the_variants() {
    let run = |options: &str| {
        fmm(&format!("run --demo uniform --n 3000 --verify 100 {options}").split(' ').collect::<Vec<_>>())
    };
    for options in [
        "--method spherical --tolerance 1e-4",
        "--method spherical --order 6 --translation direct --truncation fixed --lists stencil119",
        "--method treecode --tolerance 1e-4",
        "--method treecode --order 5 --theta 0.5 --expansion equivalent",
    ] {
        let done = run(options);
        assert!(done.status.success(), "{options}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(String::from_utf8_lossy(&done.stdout).contains("variant"), "{options}");
    }
    for (options, word) in [
        ("--method spherical --theta 0.5", "θ"),
        ("--lists stencil119", "119"),
        ("--kernel yukawa --method spherical", "yukawa"),
    ] {
        let refused = run(options);
        assert!(!refused.status.success() && last_line(&refused).contains(word), "{options}");
    }
}

#[test]
fn compare_writes_a_table_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("compared");
    let variants = "direct,equivalent,spherical+stencil119+fixed,treecode+0.6,treecode+equivalent";
    let args = ["compare", "--n", "1000,3000", "--orders", "4,8,20", "--error", "1e-4", "--repeat", "1"];
    let run = fmm(&[&args[..], &["--variants", variants, "--out", out.to_str().unwrap()]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let table = String::from_utf8(run.stdout).unwrap();
    assert!(variants.split(',').all(|v| table.contains(v)), "{table}");
    let csv = std::fs::read_to_string(out.join("compare.csv")).unwrap();
    // Direct summation runs once per size. Equivalent densities have no order 20.
    assert_eq!(csv.lines().count(), 1 + 2 * (1 + 2 + 3 + 3 + 2), "{csv}");
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|l| l.split(',').count() == columns), "{csv}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(out.join("compare.json")).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!((rows.len() + 1, &json["seed"]), (csv.lines().count(), &Value::from(1)));
    assert!(rows.iter().all(|r| r["apply_s"].as_f64().unwrap() > 0.0 && r["error_gradient"].as_f64().unwrap() < 0.1));
    assert!(rows[0]["order"].is_null() && rows[1]["order"] == 4 && rows[0]["variant"] == "direct");
    let page = std::fs::read_to_string(out.join("compare.html")).unwrap();
    assert_eq!((page.matches("<svg ").count(), page.matches("</svg>").count()), (4, 4));
    assert!(!page.contains("http://") || page.matches("http://").count() == page.matches("http://www.w3.org").count());
    assert!(!page.contains("NaN") && !page.contains("inf"), "a plot of no numbers");
    assert!(std::fs::read_to_string(out.join("compare.svg")).unwrap().starts_with("<?xml"));
    let wrong = fmm(&["compare", "--variants", "spherical+spiral"]);
    assert!(last_line(&wrong).contains("spiral"));
}

/// Other seeds give other clouds. A file with fewer points than requested is compared once.
#[test]
fn compare_takes_a_seed_and_small_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let rows = |out: &str, more: &[&str]| {
        let args = ["compare", "--variants", "spherical", "--orders", "4", "--repeat", "1", "--out", out];
        let run = fmm(&[&args[..], more].concat());
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let json: Value =
            serde_json::from_str(&std::fs::read_to_string(Path::new(out).join("compare.json")).unwrap()).unwrap();
        json["rows"].as_array().unwrap().clone()
    };
    let [a, b, c] = ["1", "1", "2"].map(|seed| rows(&path("seeds"), &["--n", "2000", "--seed", seed]));
    assert!(a[0]["error_potential"] == b[0]["error_potential"] && a[0]["error_potential"] != c[0]["error_potential"]);
    let text = |v: &[f64], width: usize| -> String {
        v.chunks(width).map(|row| row.iter().map(|x| format!("{x} ")).collect::<String>() + "\n").collect()
    };
    std::fs::write(path("x.txt"), text(&uniform(800, 1), 3)).unwrap();
    std::fs::write(path("q.txt"), text(&strengths(800, 1), 1)).unwrap();
    let files = ["--sources", &path("x.txt"), "--strengths", &path("q.txt"), "--n", "500,1000,3000"];
    let found: Vec<u64> = rows(&path("files"), &files).iter().map(|r| r["n"].as_u64().unwrap()).collect();
    assert_eq!(found, [500, 800]);
}
