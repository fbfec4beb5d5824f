//! Interpolation: the promise for the kernels of the catalog, agreement with direct sums in every way of asking, what a
//! plan chooses, and what it refuses.

use crate::cli::{json, refused};
use crate::{both, difference, direct, in_turn, strengths, uniform};
use fmm::{
    AnyFamily, Error, Expansion, Fmm, Laplace, LaplaceDipole, Method, Outputs, Precision, SelfInteraction, Stokes,
    Targets, Traced, Yukawa, catalog, demo,
};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};

/// A request for small leaves, so that 3000 points have a far field.
fn asked(family: impl Into<AnyFamily>) -> Fmm {
    Fmm::new(family.into()).method(Method::Interpolation).ncrit(40)
}

/// A kernel of the catalog with other parameters.
fn listed(name: &str, set: &[(&str, f64)]) -> Traced {
    set.iter().fold(catalog::kernel(name).unwrap(), |kernel, (name, value)| kernel.set(name, *value).unwrap())
}

/// Asserts that a plan keeps the tolerance at all targets for both kinds of strengths, or is refused with a floor above
/// the tolerance that is not far from the error of the largest order.
fn judge(what: &str, request: &Fmm, points: &[f64], tolerance: f64) {
    let components = request.strengths().unwrap();
    let count = points.len() / 3 * components;
    let sets = [demo::strengths(points.len() / 3, components, 3), normal_strengths(count, 4)];
    let errors = |plan: &fmm::Plan| {
        let error = |q: &Vec<f64>| {
            let out = plan.apply(q).unwrap();
            let exact = direct(request, points, Targets::Sources, q);
            difference(out.get(Outputs::POTENTIAL), exact.get(Outputs::POTENTIAL))
        };
        sets.iter().map(error).fold(0.0, f64::max)
    };
    match request.clone().tolerance(tolerance).plan(points, Targets::Sources) {
        Ok(plan) => {
            let e = errors(&plan);
            assert!(e <= tolerance, "{what} {tolerance:e}: {e:e} at order {:?}", plan.describe().order);
        }
        Err(Error::ToleranceFloor { floor, .. }) => {
            let e = errors(&request.clone().order(12).plan(points, Targets::Sources).unwrap());
            assert!(floor > tolerance && floor < 100.0 * e, "{what} {tolerance:e}: floor {floor:e}, error {e:e}");
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Equivalent densities do not suit these kernels: their errors jump from order to order.
#[test]
fn the_floor_of_a_refusal_depends_on_no_tolerance_and_is_kept() {
    let points = CloudKind::Plummer.points(1500, 1);
    let kernels = [("inverse_r2", &[][..]), ("gaussian", &[("h", 0.3)])];
    for (_, (name, set)) in kernels.into_iter().enumerate().filter(|(k, _)| in_turn(*k, 2)) {
        let request = asked(listed(name, set)).method(Method::EquivalentDensities);
        let plan = |tolerance: f64| request.clone().tolerance(tolerance).plan(&points, Targets::Sources);
        let floor_of = |tolerance| match plan(tolerance) {
            Err(Error::ToleranceFloor { floor, .. }) => floor,
            Err(e) => panic!("{name}: {e}"),
            Ok(plan) => panic!("{name}: {tolerance:e} at order {:?}", plan.describe().order),
        };
        let floors = [1e-7, 1e-11].map(floor_of);
        assert!(floors[0] == floors[1], "{name}: {floors:?}");
        let described = plan(floors[0]).unwrap().describe();
        let bound = described.probe.as_ref().unwrap().outputs[0].error;
        // A floor is rounded up to two digits.
        let range = floors[0] / 1.1..=floors[0];
        assert!(range.contains(&bound), "{name}: {bound:e}, floor {:e}", floors[0]);
    }
}

#[test]
fn every_kernel_of_the_catalog_keeps_the_tolerance() {
    let clouds = [CloudKind::Uniform, CloudKind::Plummer, CloudKind::Ellipsoid, CloudKind::TwoClusters];
    for (kernel, name) in catalog::names().enumerate() {
        let mut case = 3 * kernel;
        // Vectors with many strengths take long. `quadtree` has the kernels of the plane.
        if name == "kelvin_double" || catalog::kernel(name).unwrap().dim() == 2 {
            continue;
        }
        let request = asked(catalog::kernel(name).unwrap()).self_interaction(SelfInteraction::Skip);
        for cloud in clouds {
            for tolerance in [1e-3, 1e-6] {
                if in_turn(case, 8) {
                    judge(&format!("{name} {}", cloud.name()), &request, &cloud.points(2500, 1), tolerance);
                }
                case += 1;
            }
        }
    }
}

#[test]
fn narrow_and_wide_kernels_keep_the_tolerance() {
    let points = uniform(2500, 5);
    for h in [0.02, 0.1, 0.5, 5.0] {
        judge(&format!("gaussian {h}"), &asked(listed("gaussian", &[("h", h)])), &points, 1e-4);
        judge(&format!("matern32 {h}"), &asked(listed("matern32", &[("l", h)])), &points, 1e-6);
        judge(&format!("multiquadric {h}"), &asked(listed("multiquadric", &[("c", h)])), &points, 1e-6);
    }
}

/// Operators of a narrow Gaussian cost more than a few direct sums of 2000 points: no method is measured unless it is
/// asked for by its name.
#[test]
fn errors_are_measured_where_that_pays() {
    let (points, request) = (uniform(2000, 5), Fmm::new(listed("gaussian", &[("h", 0.05)])).tolerance(1e-6));
    let orders = |request: &Fmm| {
        let described = request.plan(&points, Targets::Sources).unwrap().describe();
        (described.probe.map_or(0, |probe| probe.orders.len()), described.why)
    };
    let (measured, why) = orders(&request);
    assert!(measured == 0 && why.starts_with("cheaper than measuring"), "{measured} orders, {why}");
    assert!(orders(&request.method(Method::Interpolation)).0 > 0);
}

#[test]
fn compiled_kernels_keep_the_tolerance() {
    let points = CloudKind::Ellipsoid.points(2500, 1);
    judge("laplace", &asked(Laplace), &points, 1e-6);
    judge("yukawa", &asked(Yukawa { kappa: 5.0 }), &points, 1e-6);
    judge("dipole", &asked(LaplaceDipole), &points, 1e-4);
    judge("stokes", &asked(Stokes { mu: 0.7 }), &points, 1e-4);
    judge("f32", &asked(Laplace).precision(Precision::F32), &points, 1e-4);
}

/// The sums do not depend on how they are asked for.
#[test]
fn every_way_of_asking_gives_the_sums() {
    let (x, y) = (uniform(2500, 1), CloudKind::Plane.points(400, 2));
    let (q, some) = (strengths(2500, 3), (0..2500).step_by(9).collect::<Vec<_>>());
    let kernel = listed("matern52", &[("l", 0.3)]);
    for own in [SelfInteraction::Skip, SelfInteraction::Include] {
        for request in
            [asked(kernel.clone()), asked(kernel.clone()).method(Method::Treecode).expansion(Expansion::Interpolation)]
        {
            let request = request.outputs(both()).self_interaction(own).order(7);
            let summed = asked(kernel.clone()).outputs(both()).self_interaction(own);
            for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
                let plan = request.plan(&x, targets).unwrap();
                let (fast, exact) = (plan.apply(&q).unwrap(), direct(&summed, &x, targets, &q));
                for (output, bound) in [(Outputs::POTENTIAL, 1e-6), (Outputs::GRADIENT, 1e-4)] {
                    let e = difference(fast.get(output), exact.get(output));
                    assert!(e < bound, "{own:?} {}: {e:e}", output.names()[0]);
                }
            }
        }
        let request = asked(kernel.clone()).self_interaction(own).order(7);
        let plan = request.plan(&x, Targets::Points(&y)).unwrap();
        let w = strengths(400, 4);
        let (there, back) = (plan.apply(&q).unwrap(), plan.apply_transpose(&w).unwrap());
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let [a, b] = [dot(there.get(Outputs::POTENTIAL), &w), dot(&back, &q)];
        assert!((a - b).abs() < 1e-5 * a.abs(), "{a} {b}");
    }
}

/// A kernel that solves no equation is refused by equivalent densities, and `auto` takes interpolation; Laplace's is
/// cheaper by other methods.
#[test]
fn auto_takes_what_is_cheapest() {
    let points = uniform(40_000, 1);
    let chosen = |family: AnyFamily| {
        let plan = Fmm::new(family).tolerance(1e-5).plan(&points, Targets::Sources).unwrap();
        plan.describe().method
    };
    assert_eq!(chosen(listed("inverse_r2", &[]).into()), "interpolation");
    assert_eq!(chosen(listed("matern32", &[("l", 0.3)]).into()), "interpolation");
    assert_ne!(chosen(Laplace.into()), "interpolation");
    let surface = Fmm::new(listed("inverse_r2", &[])).method(Method::EquivalentDensities).tolerance(1e-5);
    let refused = surface.plan(&points, Targets::Sources);
    assert!(matches!(refused, Err(Error::ToleranceFloor { .. })));
}

#[test]
fn bad_requests_are_refused() {
    let points = uniform(100, 1);
    let order = asked(Laplace).order(13).plan(&points, Targets::Sources);
    assert!(matches!(order, Err(Error::Order { order: 13, min: 3, max: 12 })), "{order:?}");
    assert_eq!(refused(&["run", "--n", "1000", "--method", "interpolation", "--order", "2"]).lines().count(), 1);
}

#[test]
fn the_command_interpolates() {
    let shared = ["--demo", "uniform", "--n", "5000", "--verify", "5000", "--tolerance", "1e-5", "--json"];
    for kernel in [["--kernel", "gaussian"], ["--expression", "1/r^2"], ["--kernel", "laplace"]] {
        let report = json(&[&["run", "--method", "interpolation"], &kernel[..], &shared[..]].concat());
        assert_eq!(report["method"], "interpolation");
        assert!(report["errors"]["potential"]["rel_l2"].as_f64().unwrap() <= 1e-5, "{}", report["errors"]);
    }
}
