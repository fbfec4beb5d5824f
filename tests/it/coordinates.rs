//! Kernels of a quadratic form, which plans sum in coordinates in which they are radial, against sums in this file.

use crate::{both, difference, strengths, uniform};
use fmm::{Error, Fmm, Method, Outputs, Plan, Precision, Targets, Traced, catalog};
use fmm_traits::testkit::clouds::CloudKind;

/// L of the quadratic form |L·r|²: directions that differ a hundredfold, and are not the axes.
const L: [[f64; 3]; 3] = [[0.1, 0.02, -0.3], [0.0, 1.0, 2.0], [0.0, 0.0, 10.0]];

/// M = LᵀL.
fn m() -> [[f64; 3]; 3] {
    std::array::from_fn(|a| std::array::from_fn(|b| (0..3).map(|k| L[k][a] * L[k][b]).sum()))
}

/// The kernel of anisotropic diffusion in the catalog.
fn diffusion() -> Traced {
    let (m, names) = (m(), ["xx", "xy", "xz", "yy", "yz", "zz"]);
    let values = [m[0][0], m[0][1], m[0][2], m[1][1], m[1][2], m[2][2]];
    let set = |kernel: Traced, (name, x)| kernel.set(name, x).unwrap();
    names.into_iter().zip(values).fold(catalog::kernel("anisotropic").unwrap(), set)
}

/// A Gaussian of the same form, as an expression without parameters.
fn gaussian() -> Traced {
    let m = m();
    let form = |a: usize, b: usize| format!("({:?})*{}*{}", m[a][b], ["x", "y", "z"][a], ["x", "y", "z"][b]);
    let sum: Vec<String> = (0..9).map(|k| form(k / 3, k % 3)).collect();
    Traced::expression(&format!("exp(-2*({}))", sum.join(" + "))).unwrap()
}

/// Value and gradient of both kernels as functions of q = r·M·r: f and 2·df/dq.
type Form = fn(f64) -> [f64; 2];
fn inverse(q: f64) -> [f64; 2] {
    let f = 0.25 * std::f64::consts::FRAC_1_PI / q.sqrt();
    if q == 0.0 { [0.0; 2] } else { [f, -f / q] }
}
fn bell(q: f64) -> [f64; 2] {
    [(-2.0 * q).exp(), -4.0 * (-2.0 * q).exp()]
}

/// Potentials and gradients at `y`.
fn sums(form: Form, x: &[f64], q: &[f64], y: &[f64]) -> [Vec<f64>; 2] {
    let m = m();
    let (mut potential, mut gradient) = (Vec::new(), Vec::new());
    for y in y.chunks_exact(3) {
        let (mut u, mut g) = (0.0, [0.0; 3]);
        for (x, q) in x.chunks_exact(3).zip(q) {
            let r: [f64; 3] = std::array::from_fn(|a| y[a] - x[a]);
            let mr = m.map(|row| row[0] * r[0] + row[1] * r[1] + row[2] * r[2]);
            let [f, slope] = form(r[0] * mr[0] + r[1] * mr[1] + r[2] * mr[2]);
            u += q * f;
            (0..3).for_each(|a| g[a] += q * slope * mr[a]);
        }
        potential.push(u);
        gradient.extend(g);
    }
    [potential, gradient]
}

/// The rows of some targets.
fn rows(all: &[f64], some: &[usize], width: usize) -> Vec<f64> {
    some.iter().flat_map(|&i| all[width * i..width * (i + 1)].to_vec()).collect()
}

fn mapped(plan: &Plan) -> bool {
    plan.describe().coordinates.is_some()
}

#[test]
fn a_hundredfold_anisotropy_keeps_the_tolerance() {
    let (n, some) = (16_000, (0..16_000).step_by(67).collect::<Vec<_>>());
    let cases: [(Traced, Form, &str); 2] = [(diffusion(), inverse, "1/√q"), (gaussian(), bell, "e^(−2q)")];
    for (cloud, finest) in [(CloudKind::Uniform, 1e-6), (CloudKind::Ellipsoid, 1e-5)] {
        for (kernel, form, name) in &cases {
            let (x, q) = (cloud.points(n, 3), strengths(n, 4));
            // Interpolation of the Gaussian reaches 2e-6 on these points.
            let tolerance = if *name == "1/√q" { finest } else { 1e-4 };
            let request = Fmm::new(kernel.clone()).tolerance(tolerance).outputs(both());
            // Operators of a Gaussian for each level cost more than direct sums of so few points.
            let request = if *name == "1/√q" { request } else { request.method(Method::Interpolation) };
            let plan = request.plan(&x, Targets::Sources).unwrap();
            assert!(mapped(&plan) && plan.describe().method != "direct", "{name}: {}", plan.describe().why);
            let out = plan.apply(&q).unwrap();
            let exact = sums(*form, &x, &q, &rows(&x, &some, 3));
            for (found, exact, width) in [(&out.potential, &exact[0], 1), (&out.gradient, &exact[1], 3)] {
                let error = difference(&rows(found, &some, width), exact);
                assert!(error <= tolerance, "{name} {} {width}: {error:e}", cloud.name());
            }
            let report = plan.verify(&q, 300).unwrap();
            assert!(report.outputs.iter().all(|o| o.rel_l2 <= tolerance), "{report:?}");
        }
    }
}

/// A kernel that differs from 1/r costs about what 1/r costs: no higher order, no direct sum.
#[test]
fn anisotropy_costs_no_order() {
    let x = uniform(20_000, 5);
    let order = |kernel: Traced| {
        let request = Fmm::new(kernel).method(Method::EquivalentDensities).tolerance(1e-6);
        request.plan(&x, Targets::Sources).unwrap().describe().order.unwrap()
    };
    let plain = order(Traced::expression("1/r").unwrap());
    assert!(order(diffusion()) <= plain + 1, "{} {plain}", order(diffusion()));
}

#[test]
fn every_way_of_asking_gives_the_sums() {
    let (n, y) = (2500, CloudKind::Plane.points(300, 8));
    let (x, q) = (uniform(n, 6), strengths(n, 7));
    let some: Vec<usize> = (0..n).step_by(9).collect();
    let at_some = rows(&x, &some, 3);
    let request = Fmm::new(diffusion()).ncrit(40).outputs(both());
    for (targets, at) in [(Targets::Sources, &x), (Targets::Points(&y), &y), (Targets::Subset(&some), &at_some)] {
        let exact = sums(inverse, &x, &q, at);
        for (request, bound, coordinates) in [
            (request.clone().order(8).method(Method::EquivalentDensities), 1e-5, true),
            (request.clone().order(6).method(Method::Interpolation), 1e-3, true),
            (request.clone().order(6).method(Method::EquivalentDensities).precision(Precision::F32), 1e-3, true),
            (request.clone().method(Method::Direct), 1e-11, true),
            (request.clone().method(Method::Direct).root_cube([-2.0; 3], 4.0), 1e-12, false),
        ] {
            let plan = request.plan(&x, targets).unwrap();
            assert_eq!(mapped(&plan), coordinates);
            let out = plan.apply(&q).unwrap();
            let errors = [difference(&out.potential, &exact[0]), difference(&out.gradient, &exact[1])];
            assert!(errors.iter().all(|e| *e <= bound), "{:?} {errors:?} {bound:e}", plan.describe().method);
        }
    }
}

#[test]
fn plans_in_other_coordinates_do_what_plans_do() {
    let (n, request) = (3000, Fmm::new(diffusion()).order(8).method(Method::EquivalentDensities).outputs(both()));
    let (x, q) = (uniform(n, 9), strengths(n, 10));
    let mut plan = request.plan(&x, Targets::Sources).unwrap();
    // f32 in and out.
    let narrow: Vec<f32> = q.iter().map(|x| *x as f32).collect();
    let (wide, short) = (plan.apply(&q).unwrap(), plan.apply(&narrow).unwrap());
    let widened: Vec<f64> = short.gradient.iter().map(|x| f64::from(*x)).collect();
    assert!(difference(&widened, &wide.gradient) < 1e-6);
    // A symmetric matrix is its transpose.
    assert!(difference(&plan.apply_transpose(&q).unwrap(), &wide.potential) < 1e-12);
    // Moved points, of another number of targets.
    let (moved, y) = (CloudKind::Ellipsoid.points(n, 11), uniform(200, 12));
    plan.set_points(&moved, Targets::Sources).unwrap();
    let exact = sums(inverse, &moved, &q, &moved);
    assert!(mapped(&plan) && difference(&plan.apply(&q).unwrap().gradient, &exact[1]) < 1e-4);
    plan.set_points(&moved, Targets::Points(&y)).unwrap();
    let exact = sums(inverse, &moved, &q, &y);
    assert!(mapped(&plan) && difference(&plan.apply(&q).unwrap().gradient, &exact[1]) < 1e-4);
    // The probe repeats itself, and the error names the caller's coordinate.
    let promised = request.clone().order(8).plan(&x, Targets::Sources).unwrap();
    assert!(promised.probe().unwrap().unwrap().outputs.iter().all(|o| o.error < 1e-3));
    let mut bad = x.clone();
    bad[3 * 7 + 1] = f64::NAN;
    match request.plan(&bad, Targets::Sources) {
        Err(Error::NotFinite { array, row, column, .. }) => assert_eq!((array, row, column), ("sources", 7, 1)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(request.plan(&x[1..], Targets::Sources), Err(Error::Shape { .. })));
    let empty = request.plan(&[], Targets::Sources).unwrap();
    assert!(empty.apply::<f64>(&[]).unwrap().gradient.is_empty());
}

/// All second derivatives, against differences of gradients.
#[test]
fn hessians_are_those_of_the_caller() {
    let (x, q) = (uniform(1500, 13), strengths(1500, 14));
    let request = Fmm::new(diffusion()).order(10).method(Method::EquivalentDensities);
    let request = request.outputs(Outputs::GRADIENT | Outputs::HESSIAN);
    let y = [1.4, 0.3, -0.2, 0.5, 2.0, 0.5];
    let h = 1e-5;
    let gradient = |step: [f64; 3]| {
        let at: Vec<f64> = y.chunks_exact(3).flat_map(|y| (0..3).map(|a| y[a] + h * step[a])).collect();
        sums(inverse, &x, &q, &at)[1].clone()
    };
    let found = request.plan(&x, Targets::Points(&y)).unwrap().apply(&q).unwrap().hessian;
    let mut expected = vec![0.0; 18];
    for b in 0..3 {
        let step = |sign: f64| gradient(std::array::from_fn(|c| if c == b { sign } else { 0.0 }));
        let (up, down) = (step(1.0), step(-1.0));
        for t in 0..2 {
            (0..3).for_each(|a| expected[9 * t + 3 * a + b] = (up[3 * t + a] - down[3 * t + a]) / (2.0 * h));
        }
    }
    assert!(difference(&found, &expected) < 1e-5, "{found:?} {expected:?}");
}

/// The same sums on a GPU.
#[test]
#[ignore = "needs a GPU"]
fn gpu_sums_in_other_coordinates() {
    let (x, q, some) = (uniform(20_000, 15), strengths(20_000, 16), (0..20_000).step_by(97).collect::<Vec<_>>());
    let request =
        Fmm::new(diffusion()).tolerance(1e-6).outputs(both()).backend(fmm::Backend::Cuda(fmm::Cuda::default()));
    let plan = request.plan(&x, Targets::Sources).unwrap();
    let out = plan.apply(&q).unwrap();
    let exact = sums(inverse, &x, &q, &rows(&x, &some, 3));
    assert!(mapped(&plan));
    assert!(difference(&rows(&out.potential, &some, 1), &exact[0]) <= 1e-6);
    assert!(difference(&rows(&out.gradient, &some, 3), &exact[1]) <= 1e-6);
}
