//! Kernels of the plane on a quadtree: formulas, conventions, the promise, agreement with Laurent series, the command.

use crate::cli::{fmm as command, json, refused};
use crate::{both, difference, direct, in_turn, strengths};
use fmm::{
    AnyFamily, Cuda, DeviceStream, Error, Expansion, Fmm, Kernel, Lane, Laplace2d, Method, Outputs, Precision, Targets,
    Traced, catalog, demo,
};
use fmm_traits::testkit::{clouds::normal_strengths, kernel::check_kernel, plane::Log, plane::PlaneKind};
use std::f64::consts::PI;

/// A stranger: charges and dipoles in one value, odd in part, homogeneous only in pairs: q₀/r + q₁·x/r².
#[derive(Clone, Debug)]
struct Stranger;
impl Kernel for Stranger {
    const NAME: &'static str = "stranger2d";
    const DIM: usize = 2;
    const STRENGTHS: usize = 2;
    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let w = (r[0] * r[0] + r[1] * r[1]).rsqrt();
        u[0] = q[0] * w + q[1] * r[0] * w * w;
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
}

fn listed(name: &str, set: &[(&str, f64)]) -> Traced {
    let kernel = catalog::kernel(name).unwrap().in_plane();
    set.iter().fold(kernel, |kernel, (name, value)| kernel.set(name, *value).unwrap())
}

/// The kernels, with the method that suits each.
fn kernels() -> Vec<(&'static str, AnyFamily, Method)> {
    let (densities, grids) = (Method::EquivalentDensities, Method::Interpolation);
    vec![
        ("yukawa2d", listed("yukawa2d", &[("kappa", 7.0)]).into(), densities),
        ("log", AnyFamily::new(Log), densities),
        ("stokes2d", listed("stokes2d", &[]).into(), densities),
        ("anisotropic2d", listed("anisotropic2d", &[("xx", 3.0), ("xy", 0.5)]).into(), densities),
        ("gaussian", listed("gaussian", &[("h", 0.3)]).into(), grids),
        ("matern32", listed("matern32", &[("l", 0.4)]).into(), grids),
        ("multiquadric", listed("multiquadric", &[("c", 0.1)]).into(), grids),
        ("stranger2d", AnyFamily::new(Stranger), grids),
    ]
}

/// A request for small leaves, so that a few thousand points have a far field.
fn asked(family: &AnyFamily, method: Method) -> Fmm {
    Fmm::new(family.clone()).method(method).ncrit(20)
}

/// K₀ by the trapezoidal rule for ∫ exp(−x·cosh t) dt over t > 0.
fn bessel_k0(x: f64) -> f64 {
    let h = 1.0 / 64.0;
    (0..2000).map(|k| (if k == 0 { 0.5 } else { 1.0 }) * h * (-x * (k as f64 * h).cosh()).exp()).sum()
}

#[test]
fn compiled_kernels_of_the_plane_are_kernels() {
    check_kernel(&Log).unwrap();
    check_kernel(&Stranger).unwrap();
}

/// Values of a kernel at (x, y).
type Formula = fn(f64, f64) -> Vec<f64>;

/// Values, gradients and Hessians of direct sums against formulas written here; arrays are M×c, M×c×2, M×c×2×2.
#[test]
fn direct_sums_are_the_formulas() {
    let (x, q) = (PlaneKind::Uniform.points(60, 1), strengths(60, 2));
    let y = PlaneKind::Normal.points(9, 3);
    let all = both() | Outputs::HESSIAN;
    let sum = |f: &dyn Fn(f64, f64) -> Vec<f64>, y: &[f64]| -> Vec<f64> {
        let row = |y: &[f64]| {
            let mut total: Vec<f64> = Vec::new();
            for (x, q) in x.chunks(2).zip(&q) {
                let row = f(y[0] - x[0], y[1] - x[1]);
                total.resize(row.len(), 0.0);
                total.iter_mut().zip(row).for_each(|(t, u)| *t += q * u);
            }
            total
        };
        y.chunks(2).flat_map(row).collect()
    };
    let parts: [(Outputs, Formula); 3] = [
        (Outputs::POTENTIAL, |x, y| vec![-x.hypot(y).ln()]),
        (Outputs::GRADIENT, |x, y| vec![-x / (x * x + y * y), -y / (x * x + y * y)]),
        (Outputs::HESSIAN, |x, y| {
            let (s, mixed) = ((x * x + y * y).powi(2), 2.0 * x * y);
            vec![(x * x - y * y) / s, mixed / s, mixed / s, (y * y - x * x) / s]
        }),
    ];
    for family in [AnyFamily::new(Log), Traced::radial("log", &[], |r, _| -r.ln()).in_plane().into()] {
        let out = direct(&Fmm::new(family).outputs(all), &x, Targets::Points(&y), &q);
        for (output, formula) in parts {
            let (found, expected) = (out.get(output), sum(&formula, &y));
            assert!(difference(found, &expected) < 1e-13, "{}", output.names()[0]);
        }
    }
    let yukawa = Fmm::new(listed("yukawa2d", &[("kappa", 3.0)]));
    let expected = sum(&|x, y| vec![bessel_k0(3.0 * x.hypot(y)) / (2.0 * PI)], &y);
    let found = direct(&yukawa, &x, Targets::Points(&y), &q);
    assert!(difference(&found.potential, &expected) < 1e-12);
    // The flow of forces (q, 0), two values a target.
    let forces: Vec<f64> = q.iter().flat_map(|&q| [q, 0.0]).collect();
    let flow = direct(&Fmm::new(listed("stokes2d", &[("mu", 0.5)])), &x, Targets::Points(&y), &forces);
    let expected = sum(
        &|x, y| {
            let r2 = x * x + y * y;
            vec![(x * x / r2 - r2.sqrt().ln()) / (2.0 * PI), x * y / r2 / (2.0 * PI)]
        },
        &y,
    );
    assert!(difference(&flow.potential, &expected) < 1e-13);
}

/// Asserts that a plan keeps the tolerance at all targets for both kinds of strengths, or is refused with a floor above
/// the tolerance that is not far from the error of a large order.
fn judge(what: &str, request: &Fmm, points: &[f64], tolerance: f64) -> bool {
    let components = request.strengths().unwrap();
    let n = points.len() / 2;
    let sets = [demo::strengths(n, components, 3), normal_strengths(n * components, 4)];
    let errors = |plan: &fmm::Plan| {
        let error = |q: &Vec<f64>| {
            let out = plan.apply(q).unwrap();
            let exact = direct(&request.clone().precision(Precision::F64), points, Targets::Sources, q);
            let each = [Outputs::POTENTIAL, Outputs::GRADIENT].map(|o| difference(out.get(o), exact.get(o)));
            each[0].max(each[1])
        };
        sets.iter().map(error).fold(0.0, f64::max)
    };
    match request.clone().tolerance(tolerance).plan(points, Targets::Sources) {
        Ok(plan) => {
            let e = errors(&plan);
            assert!(e <= tolerance, "{what} {tolerance:e}: {e:e} at order {:?}", plan.describe().order);
            true
        }
        Err(Error::ToleranceFloor { floor, .. }) => {
            let least =
                (12..=16).step_by(4).map(|p| errors(&request.clone().order(p).plan(points, Targets::Sources).unwrap()));
            let least = least.fold(f64::INFINITY, f64::min);
            assert!(
                floor > tolerance && floor < 100.0 * least,
                "{what} {tolerance:e}: floor {floor:e}, error {least:e}"
            );
            false
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

const CLOUDS: [PlaneKind; 8] = [
    PlaneKind::Uniform,
    PlaneKind::Normal,
    PlaneKind::Layer,
    PlaneKind::TwoClusters,
    PlaneKind::Line,
    PlaneKind::Axis,
    PlaneKind::FiftyCopies,
    PlaneKind::Coincident,
];

#[test]
fn the_promise_holds_or_is_refused() {
    let mut case = 0;
    let (mut kept, mut total) = (0, 0);
    for (name, family, method) in kernels() {
        for cloud in CLOUDS {
            for tolerance in [1e-3, 1e-6, 1e-9] {
                case += 1;
                if in_turn(case, 7) {
                    let points = cloud.points(2500, 1);
                    let what = format!("{name} {}", cloud.name());
                    let request = asked(&family, method);
                    kept += usize::from(judge(&what, &request, &points, tolerance));
                    total += 1;
                }
            }
        }
    }
    assert!(5 * kept >= 4 * total, "{kept} of {total} were kept");
}

#[test]
fn the_promise_holds_for_gradients_and_in_single_precision() {
    for (k, (name, family, method)) in kernels().into_iter().enumerate() {
        let points = CLOUDS[k % 3].points(2500, 1);
        judge(&format!("{name} gradient"), &asked(&family, method).outputs(both()), &points, 1e-5);
        let single = asked(&family, method).precision(Precision::F32);
        judge(&format!("{name} f32"), &single, &points, 1e-3);
    }
}

/// Errors of a given order do not depend on the size of the cloud: no level of any tree is special. The capacity of a
/// square of side s is 0.59 s, so that a layer of ln r has no constant on a curve near s = 1.7.
#[test]
fn logarithms_have_no_bad_level() {
    let (points, q) = (PlaneKind::Uniform.points(2000, 1), strengths(2000, 2));
    for family in [AnyFamily::new(Log), listed("anisotropic2d", &[]).into()] {
        let error = |scale: f64| {
            let x: Vec<f64> = points.iter().map(|x| scale * x).collect();
            let request = asked(&family, Method::EquivalentDensities);
            let fast = request.clone().order(7).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
            // The net strength times ln(scale) is not the matter here.
            difference(&fast.potential, &direct(&request, &x, Targets::Sources, &q).potential)
        };
        let errors: Vec<f64> = (0..24).map(|k| error((0.13 * k as f64).exp2() * 1.37)).collect();
        let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(errors.iter().all(|e| *e < 1e-5 && *e < 30.0 * least), "{errors:?}");
    }
}

/// Two methods that have nothing in common agree: Laurent series on a pyramid, densities on a quadtree.
#[test]
fn densities_agree_with_laurent_series() {
    for cloud in [PlaneKind::Uniform, PlaneKind::Layer, PlaneKind::Spiral] {
        let (x, q) = (cloud.points(4000, 1), strengths(4000, 2));
        let laurent = Fmm::new(Laplace2d).method(Method::Laurent);
        let densities = asked(&listed("anisotropic2d", &[]).into(), Method::EquivalentDensities);
        let [a, b] = [laurent, densities].map(|request| {
            request.outputs(both()).tolerance(1e-9).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap()
        });
        for output in [Outputs::POTENTIAL, Outputs::GRADIENT] {
            let e = difference(a.get(output), b.get(output));
            assert!(e < 2e-9, "{} {}: {e:e}", cloud.name(), output.names()[0]);
        }
    }
}

/// The sums do not depend on how they are asked for.
#[test]
fn every_way_of_asking_gives_the_sums() {
    let (x, y) = (PlaneKind::Uniform.points(2500, 1), PlaneKind::Layer.points(400, 2));
    let (q, some) = (strengths(5000, 3), (0..2500).step_by(9).collect::<Vec<_>>());
    for (name, family, method) in kernels() {
        let q = &q[..2500 * Fmm::new(family.clone()).strengths().unwrap()];
        for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
            let request = asked(&family, method).outputs(both());
            let tree = asked(&family, Method::Treecode).outputs(both()).expansion(match method {
                Method::Interpolation => Expansion::Interpolation,
                _ => Expansion::Equivalent,
            });
            let exact = direct(&request, &x, targets, q);
            for request in [request, tree] {
                let fast = request.order(9).plan(&x, targets).unwrap();
                assert!(fast.describe().near_pairs < fast.n_targets() as u64 * 2000, "{name}: no far field");
                let fast = fast.apply(q).unwrap();
                for (output, bound) in [(Outputs::POTENTIAL, 2e-6), (Outputs::GRADIENT, 1e-4)] {
                    let e = difference(fast.get(output), exact.get(output));
                    assert!(e < bound, "{name} {}: {e:e}", output.names()[0]);
                }
            }
        }
    }
}

#[test]
fn plans_of_the_plane_are_plans() {
    let (x, q) = (PlaneKind::Normal.points(3000, 1), strengths(3000, 2));
    let request = Fmm::new(listed("yukawa2d", &[("kappa", 4.0)])).tolerance(1e-6).ncrit(30);
    let mut plan = request.clone().method(Method::EquivalentDensities).plan(&x, Targets::Sources).unwrap();
    assert_eq!((plan.dim(), plan.strengths(), plan.components(Outputs::POTENTIAL)), (2, 1, 1));
    assert!(plan.verify(&q, 500).unwrap().worst() <= 1e-6);
    assert!(plan.probe().unwrap().is_some());
    // The transpose of a symmetric matrix.
    let (a, b) = (plan.apply(&q).unwrap().potential, plan.apply_transpose(&q).unwrap());
    assert!(difference(&a, &b) < 1e-13);
    // Moved points.
    let moved: Vec<f64> = x.iter().map(|x| 1.0 - 0.9 * x).collect();
    plan.set_points(&moved, Targets::Sources).unwrap();
    let exact = direct(&request, &moved, Targets::Sources, &q);
    assert!(difference(&plan.apply(&q).unwrap().potential, &exact.potential) <= 1e-6);
    // A root square.
    let rooted = request.clone().method(Method::EquivalentDensities).root_cube([-1.0, -1.0, 5.0], 4.0);
    let rooted = rooted.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    assert!(difference(&rooted.potential, &a) <= 2e-6);
    // One strength as many sets, and nothing at all.
    assert_eq!(plan.n_sources(), 3000);
    let empty = request.plan(&[], Targets::Sources).unwrap().apply::<f64>(&[]).unwrap();
    assert!(empty.potential.is_empty());
}

/// [`Method::Auto`] takes a fast method for many points and keeps the tolerance with it.
#[test]
fn a_plan_chooses() {
    let n = 40_000;
    let (x, q) = (PlaneKind::Uniform.points(n, 1), strengths(2 * n, 2));
    for (name, family, method) in kernels() {
        let plan = Fmm::new(family.clone()).tolerance(1e-5).plan(&x, Targets::Sources).unwrap();
        let q = &q[..n * plan.strengths()];
        let d = plan.describe();
        assert!(plan.verify(q, 500).unwrap().worst() <= 1e-5, "{name}");
        assert_ne!(d.method, "direct", "{name}, whose method is {}: {}", method.name(), d.why);
    }
}

#[test]
fn what_the_plane_does_not_have_is_refused() {
    let (x, family) = (PlaneKind::Uniform.points(100, 1), AnyFamily::from(listed("yukawa2d", &[])));
    for method in [Method::Laurent, Method::SphericalHarmonics] {
        let refused = Fmm::new(family.clone()).method(method).plan(&x, Targets::Sources);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{:?}", refused.err());
    }
    let shape = Fmm::new(family.clone()).plan(&x[..99], Targets::Sources);
    assert!(matches!(shape, Err(Error::Shape { expected: 100, .. })), "{:?}", shape.err());
    // A GPU has the methods of the plane, and knows their memory without a device.
    let memory = |n| Fmm::new(family.clone()).backend(Cuda::default()).memory(n, n).unwrap();
    assert!(memory(1 << 20) > 1 << 26 && memory(1 << 22) > 3 * memory(1 << 20));
    assert!(matches!(Traced::parse("dim 2\nvalue z/r^3"), Err(Error::KernelText { .. })));
    assert!(matches!(Traced::parse("dim 4\nvalue r"), Err(Error::KernelText { line: 1, .. })));
    let text = listed("stokes2d", &[]).text();
    assert_eq!(Traced::parse(&text).unwrap().dim(), 2);
    assert_eq!(Traced::parse(&text).unwrap().text(), text);
}

#[test]
fn the_command_knows_the_plane() {
    for options in [
        &["--kernel", "yukawa2d", "--set", "kappa=10"][..],
        &["--expression", "bessel_k0(kappa*r)", "--dim", "2", "--set", "kappa=10"],
        &["--kernel", "multiquadric", "--dim", "2", "--set", "c=0.1"],
        &["--kernel", "stokes2d", "--outputs", "potential,gradient"],
    ] {
        let ask =
            ["--demo", "layer2d", "--n", "20000", "--tolerance", "1e-5", "--verify", "300", "--json", "--no-cache"];
        let report = json(&[&["run"], options, &ask[..]].concat());
        assert_eq!(report["n_sources"], 20_000, "{report}");
    }
    let out = command(&["kernel", "check", "--kernel", "yukawa2d", "--n", "2000", "--tolerance", "1e-4"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("dimensions   2") && text.contains("uniform2d"), "{text}");
    for wrong in [
        &["run", "--kernel", "yukawa2d", "--dim", "3", "--demo", "uniform", "--n", "10"][..],
        &["run", "--kernel", "laplace", "--dim", "2", "--demo", "uniform2d", "--n", "10"],
        &["run", "--kernel", "gaussian", "--dim", "2", "--demo", "uniform", "--n", "10"],
        &["run", "--kernel", "gaussian", "--dim", "4", "--demo", "uniform", "--n", "10"],
    ] {
        refused(wrong);
    }
}

/// On the same tree, sums on a GPU are those of the CPU.
#[test]
#[ignore = "needs a GPU"]
fn gpu_sums_of_the_plane_are_those_of_the_cpu() {
    let (x, y) = (PlaneKind::Normal.points(2500, 1), PlaneKind::Layer.points(400, 2));
    let (q, some) = (strengths(5000, 3), (0..2500).step_by(9).collect::<Vec<_>>());
    for (name, family, method) in kernels() {
        let q = &q[..2500 * Fmm::new(family.clone()).strengths().unwrap()];
        let outputs = both() | if name == "yukawa2d" { Outputs::HESSIAN } else { Outputs::POTENTIAL };
        for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
            let request = asked(&family, method).outputs(outputs).root_cube([0.0; 3], 1.0);
            let tree = request.clone().method(Method::Treecode).theta(0.8).expansion(match method {
                Method::Interpolation => Expansion::Interpolation,
                _ => Expansion::Equivalent,
            });
            for request in
                [request.clone().method(Method::Direct), request.clone().order(6), request.order(10), tree.order(6)]
            {
                let here = request.plan(&x, targets).unwrap().apply(q).unwrap();
                let there = request.backend(Cuda::default()).plan(&x, targets).unwrap();
                assert_eq!((there.dim(), there.describe().backend), (2, "cuda"));
                let there = there.apply(q).unwrap();
                for output in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
                    if here.get(output).is_empty() {
                        continue;
                    }
                    let e = difference(there.get(output), here.get(output));
                    assert!(e < 1e-10, "{name} {}: {e:e}", output.names()[0]);
                }
            }
        }
    }
}

/// The promise on a GPU, [`Method::Auto`], moved points, and arrays on the device.
#[test]
#[ignore = "needs a GPU"]
fn gpu_plans_of_the_plane_keep_the_promise() {
    let n = 20_000;
    let (x, q, cuda) = (PlaneKind::Normal.points(n, 1), strengths(2 * n, 2), Cuda::default());
    for (name, family, method) in kernels() {
        // In f32, gradients by interpolation reach 2e-3, on a CPU as well.
        let single = if method == Method::Interpolation { 5e-3 } else { 1e-3 };
        let cases =
            [(method, Precision::F64, 1e-6), (method, Precision::F32, single), (Method::Auto, Precision::F64, 1e-4)];
        for (method, precision, tolerance) in cases {
            let request = Fmm::new(family.clone()).method(method).precision(precision).tolerance(tolerance);
            let request = request.outputs(both()).backend(cuda);
            let mut plan = request.plan(&x, Targets::Sources).unwrap();
            let q = &q[..n * plan.strengths()];
            let what = format!("{name} {} {tolerance:e}", precision.name());
            assert!(plan.verify(q, 500).unwrap().worst() <= tolerance, "{what}");
            let sums = plan.apply(q).unwrap();
            // The same from arrays on the device.
            let (points, given) = (cuda.array(&x).unwrap(), cuda.array(q).unwrap());
            let there = request.plan_on_device(&points, None, &DeviceStream::Null).unwrap();
            let out = there.device_output::<f64>().unwrap();
            there.apply_on_device(&given, &out, &DeviceStream::Null).unwrap();
            there.synchronize().unwrap();
            let out = out.download().unwrap();
            assert_eq!((&out.potential, &out.gradient), (&sums.potential, &sums.gradient), "{what}");
            let moved: Vec<f64> = x.iter().map(|x| 1.0 - 0.9 * x).collect();
            plan.set_points(&moved, Targets::Sources).unwrap();
            assert!(plan.verify(q, 300).unwrap().worst() <= tolerance, "{what}, moved");
        }
    }
}
