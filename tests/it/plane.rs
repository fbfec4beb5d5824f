//! The kernels of the plane: promise, conventions, options, bad and odd input.

use crate::cli::{fmm as command, last_line};
use crate::probe::Kept;
use crate::{both, difference, in_turn, strengths};
use backend_cpu::laurent::PlanePairs;
use fmm::demo::{self, Demo};
use fmm::{
    Error, Fmm, Harmonic2d, Laplace, Laplace2d, Laplace2dDipole, Laplace2dMixed, Method, Norm, Outputs, Precision,
    Targets,
};
use fmm_traits::testkit::plane::PlaneKind;
use std::f64::consts::TAU;

/// The kernels of charges and of complex poles.
fn kernels() -> [PlanePairs; 2] {
    [Harmonic2d.into(), Laplace2d.into()]
}

fn fast(kernel: impl Into<PlanePairs>) -> Fmm {
    Fmm::new(kernel.into()).method(Method::Laurent).outputs(both())
}

fn direct<'a>(kernel: impl Into<PlanePairs>, z: &[f64], targets: impl Into<Targets<'a>>, q: &[f64]) -> fmm::Output {
    fast(kernel).method(Method::Direct).plan(z, targets).unwrap().apply(q).unwrap()
}

fn charges(kernel: impl Into<PlanePairs>, n: usize) -> Vec<f64> {
    strengths(n * kernel.into().strengths(), 7)
}

#[test]
fn errors_stay_below_the_tolerance() {
    for kernel in kernels() {
        for cloud in [Demo::Uniform2d, Demo::Normal2d, Demo::Layer2d] {
            let z = demo::points(cloud, 20_000, 3);
            let q = charges(kernel, 20_000);
            for tolerance in [1e-3, 1e-6, 1e-10] {
                let plan = fast(kernel).tolerance(tolerance).plan(&z, Targets::Sources).unwrap();
                let worst = plan.verify(&q, 1000).unwrap().worst();
                assert!(worst <= tolerance, "{} {cloud:?} {tolerance:e}: {worst:e}", kernel.name());
            }
        }
    }
}

/// As the tests of `adaptive2d`, with the θ, orders and leaves of a plan. With [`Norm::Max`], clouds of copies are left
/// out: copies that cancel have no bounded relative error.
#[test]
fn the_promise_holds_on_all_clouds() {
    let mut kept = Kept::default();
    for kernel in kernels() {
        for (k, kind) in PlaneKind::ALL.into_iter().enumerate() {
            let z = kind.points(4000, 5);
            let q = charges(kernel, z.len() / 2);
            let copies = matches!(kind, PlaneKind::FiftyCopies | PlaneKind::Coincident);
            let tolerances = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10].into_iter().enumerate();
            for (_, tolerance) in tolerances.filter(|(t, _)| in_turn(k + t, 8)) {
                for norm in [Norm::L2, Norm::Max] {
                    if norm == Norm::Max && (!kernel.complex() || copies) {
                        continue;
                    }
                    let plan = match fast(kernel).tolerance(tolerance).norm(norm).plan(&z, Targets::Sources) {
                        Ok(p) => p,
                        Err(e) => panic!("{} {}: {e}", kernel.name(), kind.name()),
                    };
                    let report = plan.verify(&q, 1000).unwrap();
                    let what = format!("{} {} {tolerance:e} {norm:?}", kernel.name(), kind.name());
                    kept.count(report.worst(), tolerance, || format!("{what}: {report:?}"));
                    if norm == Norm::Max {
                        kept.count(report.outputs[0].max_rel, tolerance, || format!("{what}: {report:?}"));
                    }
                    assert_eq!(plan.describe().norm, if norm == Norm::Max { "max" } else { "l2" });
                }
            }
        }
    }
    kept.judge();
}

/// Clouds of copies have no near field. The error of the far field is then the whole error, so the measured order is
/// higher.
#[test]
fn the_order_of_copies() {
    let order = |kind: PlaneKind| {
        let plan = fast(Harmonic2d).tolerance(1e-6).plan(&kind.points(3000, 1), Targets::Sources).unwrap();
        plan.describe().order.unwrap()
    };
    let (plain, more) = (order(PlaneKind::Uniform), order(PlaneKind::FiftyCopies));
    assert!(more > plain, "{plain} {more}");
    // At a wide angle, the largest order does not reach the tolerance.
    let wide = Fmm::new(Harmonic2d).method(Method::Laurent).tolerance(1e-13).theta(0.75);
    let e = wide.plan(&PlaneKind::Uniform.points(3000, 1), Targets::Sources).unwrap_err();
    assert!(matches!(e, Error::ToleranceFloor { floor, .. } if floor > 1e-13), "{e}");
}

#[test]
fn the_two_kernels_agree() {
    let z = demo::points(Demo::Layer2d, 5000, 1);
    let gamma = strengths(5000, 2);
    let complex: Vec<f64> = gamma.iter().flat_map(|&g| [g, 0.0]).collect();
    let run = |kernel: PlanePairs, q: &[f64]| {
        fast(kernel).tolerance(1e-10).plan(&z, Targets::Sources).unwrap().apply(q).unwrap()
    };
    let (phi, u) = (run(Harmonic2d.into(), &complex), run(Laplace2d.into(), &gamma));
    let expected: Vec<f64> = u.gradient.chunks(2).flat_map(|g| [TAU * g[0], -TAU * g[1]]).collect();
    assert!(difference(&phi.potential, &expected) < 1e-9);
}

/// Potentials, gradients and second derivatives of every kernel keep the tolerance, at strengths of either kind and in
/// clumps, and are those of the formulas.
#[test]
fn all_derivatives_of_all_kernels() {
    let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
    let cases = [
        (PlaneKind::Uniform, 1e-6),
        (PlaneKind::Normal, 1e-10),
        (PlaneKind::Spiral, 1e-10),
        (PlaneKind::TwoClusters, 1e-6),
    ];
    for (k, kernel) in PlanePairs::all().into_iter().enumerate() {
        for (_, (kind, tolerance)) in cases.into_iter().enumerate().filter(|(case, _)| in_turn(k + case, 2)) {
            let z = kind.points(5000, 3);
            let n = z.len() / 2;
            let builder = fast(kernel).outputs(all).tolerance(tolerance);
            let plan = builder.plan(&z, Targets::Sources).unwrap();
            let uniform: Vec<f64> = charges(kernel, n).iter().map(|x| 0.5 + 0.5 * x.tanh()).collect();
            for q in [charges(kernel, n), uniform] {
                let worst = plan.verify(&q, 1000).unwrap().worst();
                assert!(worst <= tolerance, "{kernel:?} {kind:?} {tolerance:e}: {worst:e}");
            }
        }
        // The direct sum of two sources at some targets, by the formulas of the potential and complex differences.
        let (z, q) = ([0.1, 0.2, -0.7, 0.4], [0.8, -0.3, 0.6, 0.5, -1.1, 0.2]);
        let q = &q[..2 * kernel.strengths()];
        let at = [1.3, -0.4, 0.15, 0.21];
        let found = fast(kernel).method(Method::Direct).outputs(all).plan(&z, &at).unwrap().apply(q).unwrap();
        let h = 1e-5;
        let c = kernel.potentials();
        let sum = |x: f64, y: f64| direct(kernel, &z, &[x, y], q);
        for (t, x) in at.chunks(2).enumerate() {
            let near = [sum(x[0] - h, x[1]), sum(x[0] + h, x[1]), sum(x[0], x[1] - h), sum(x[0], x[1] + h)];
            for k in 0..c {
                for a in 0..2 {
                    let slope =
                        |from: &dyn Fn(&fmm::Output) -> f64| (from(&near[2 * a + 1]) - from(&near[2 * a])) / (2.0 * h);
                    let first = found.gradient[2 * c * t + 2 * k + a];
                    assert!(
                        (first - slope(&|o| o.potential[k])).abs() < 1e-4 * (1.0 + first.abs()),
                        "{kernel:?} {t} {k} {a}"
                    );
                    for b in 0..2 {
                        let second = found.hessian[4 * c * t + 4 * k + 2 * b + a];
                        let expected = slope(&|o| o.gradient[2 * k + b]);
                        assert!((second - expected).abs() < 1e-3 * (1.0 + second.abs()), "{kernel:?} {t} {k} {a} {b}");
                    }
                }
            }
        }
    }
}

/// Charges and dipoles in one sum are the sums of both, and a dipole is the limit of two charges.
#[test]
fn charges_and_dipoles_together() {
    let z = PlaneKind::TwoClusters.points(6000, 2);
    let n = z.len() / 2;
    // Targets in clumps beside the sources.
    let at: Vec<f64> = z.chunks(2).step_by(5).flat_map(|p| [p[0] + 3e-10, p[1] - 2e-10]).collect();
    let (q, d) = (strengths(n, 1), strengths(2 * n, 2));
    // Dipoles of a length at which both parts have the same size in the clusters.
    let d: Vec<f64> = d.iter().map(|d| 1e-9 * d).collect();
    let mixed: Vec<f64> = q.iter().zip(d.chunks(2)).flat_map(|(q, d)| [*q, d[0], d[1]]).collect();
    let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
    let sum = |kernel: PlanePairs, q: &[f64], method: Method| {
        Fmm::new(kernel).method(method).tolerance(1e-5).outputs(all).plan(&z, &at).unwrap().apply(q).unwrap()
    };
    let together = sum(Laplace2dMixed.into(), &mixed, Method::Direct);
    let parts = [sum(Laplace2d.into(), &q, Method::Direct), sum(Laplace2dDipole.into(), &d, Method::Direct)];
    let found = sum(Laplace2dMixed.into(), &mixed, Method::Laurent);
    for output in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
        let of = |o: &fmm::Output| o.get(output).to_vec();
        let both: Vec<f64> = of(&parts[0]).iter().zip(of(&parts[1])).map(|(a, b)| a + b).collect();
        assert!(difference(&of(&together), &both) < 1e-12);
        let error = difference(&of(&found), &of(&together));
        assert!(error <= 1e-5, "{output:?}: {error:e}");
    }
    let (at, h) = ([0.4, -0.9], 1e-5);
    let pair = [0.1 + 0.5 * h * 0.6, 0.3 + 0.5 * h * 0.8, 0.1 - 0.5 * h * 0.6, 0.3 - 0.5 * h * 0.8];
    let charges = direct(Laplace2d, &pair, &at, &[1.0 / h, -1.0 / h]).potential[0];
    let dipole = direct(Laplace2dDipole, &[0.1, 0.3], &at, &[0.6, 0.8]).potential[0];
    assert!((charges - dipole).abs() < 1e-9 && dipole.abs() > 1e-3, "{charges} {dipole}");
}

/// Sums in the caller's f32 are those in f64, rounded.
#[test]
fn numbers_of_the_caller_in_f32() {
    let z = demo::points(Demo::Normal2d, 3000, 1);
    for kernel in PlanePairs::all() {
        let q: Vec<f32> = charges(kernel, 3000).iter().map(|&x| x as f32).collect();
        let wide: Vec<f64> = q.iter().map(|&x| x as f64).collect();
        let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        let plan = fast(kernel).outputs(all).tolerance(1e-6).plan(&z, Targets::Sources).unwrap();
        let exact = fast(kernel).outputs(all).method(Method::Direct).plan(&z, Targets::Sources).unwrap();
        let (found, exact) = (plan.apply(&q).unwrap().widened(), exact.apply(&wide).unwrap());
        for output in [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN] {
            assert!(difference(found.get(output), exact.get(output)) <= 1.1e-6, "{kernel:?} {output:?}");
        }
    }
}

#[test]
fn subsets_and_separate_targets() {
    for kernel in kernels() {
        let z = demo::points(Demo::Uniform2d, 6000, 1);
        let q = charges(kernel, 6000);
        let other = demo::points(Demo::Normal2d, 700, 2);
        let subset: Vec<usize> = (0..6000).step_by(17).rev().collect();
        for targets in [Targets::Points(&other), Targets::Subset(&subset), Targets::Points(&z)] {
            let plan = fast(kernel).plan(&z, targets).unwrap();
            let (out, exact) = (plan.apply(&q).unwrap(), direct(kernel, &z, targets, &q));
            assert!(difference(&out.potential, &exact.potential) <= 1e-6, "{}", kernel.name());
            assert!(difference(&out.gradient, &exact.gradient) <= 1e-6, "{}", kernel.name());
            assert!(plan.verify(&q, 300).unwrap().worst() <= 1e-6);
        }
        // Targets that repeat the sources as separate points still skip the source at their own position.
        let all = direct(kernel, &z, Targets::Sources, &q);
        assert_eq!(all.potential, direct(kernel, &z, &z, &q).potential);
    }
}

#[test]
fn moved_points_batches_and_transposes() {
    let z = demo::points(Demo::Uniform2d, 4000, 1);
    let moved = demo::points(Demo::Layer2d, 3000, 2);
    let mut plan = fast(Laplace2d).plan(&z, Targets::Sources).unwrap();
    plan.set_points(&moved, Targets::Sources).unwrap();
    let q = strengths(3000, 1);
    let fresh = fast(Laplace2d).plan(&moved, Targets::Sources).unwrap();
    let out = fresh.apply(&q).unwrap();
    assert_eq!(plan.apply(&q).unwrap().gradient, out.gradient);
    assert_eq!(plan.apply_batch(&[&q, &q]).unwrap()[1].potential, out.potential);
    assert!(difference(&plan.apply_transpose(&q).unwrap(), &out.potential) <= 1e-12);
    let odd = fast(Harmonic2d).plan(&z, Targets::Sources).unwrap();
    assert!(matches!(odd.apply_transpose(&[1.0; 8000]), Err(Error::Unsupported { .. })));
    // Every directly summed pair is named once.
    let pairs: usize = plan.near_field().map(|b| b.targets.len() * b.sources.len()).sum();
    assert_eq!(pairs as u64, plan.describe().near_pairs);
}

#[test]
fn odd_input() {
    for (k, kernel) in PlanePairs::all().into_iter().enumerate() {
        let (s, c) = (kernel.strengths(), kernel.potentials());
        for method in [Method::Auto, Method::Direct, Method::Laurent] {
            let builder = fast(kernel).method(method);
            let none = builder.plan(&[], &[0.0, 1.0]).unwrap().apply(&[]).unwrap();
            assert_eq!((none.potential, none.gradient), (vec![0.0; c], vec![0.0; 2 * c]));
            let one = builder.plan(&[1.0, 2.0], Targets::Sources).unwrap().apply(&vec![3.0; s]).unwrap();
            assert_eq!((one.potential, one.gradient), (vec![0.0; c], vec![0.0; 2 * c]));
            let empty: &[f64] = &[];
            assert!(builder.plan(&[1.0, 2.0], empty).unwrap().apply(&vec![3.0; s]).unwrap().potential.is_empty());
            // A target on a source, and all points at one position.
            let on = builder.plan(&[1.0, 2.0], &[1.0, 2.0]).unwrap().apply(&vec![3.0; s]).unwrap();
            assert_eq!(on.potential, vec![0.0; c]);
            let z = PlaneKind::Coincident.points(500, 1);
            let out = builder.plan(&z, Targets::Sources).unwrap().apply(&charges(kernel, 500)).unwrap();
            assert!(out.potential.iter().chain(&out.gradient).all(|x| *x == 0.0));
        }
        for (_, kind) in PlaneKind::ALL.into_iter().enumerate().filter(|(cloud, _)| in_turn(k + cloud, 3)) {
            let z = kind.points(3000, 4);
            let q = charges(kernel, z.len() / 2);
            let plan = fast(kernel).ncrit(5).plan(&z, Targets::Sources).unwrap();
            let worst = plan.verify(&q, 500).unwrap().worst();
            assert!(worst <= 1e-6, "{} {}: {worst:e}", kernel.name(), kind.name());
        }
    }
}

#[test]
fn wrong_options_are_refused() {
    let z = demo::points(Demo::Uniform2d, 100, 1);
    let refused = |builder: Fmm| builder.plan(&z, Targets::Sources).expect_err("must be refused");
    let unsupported = |builder: Fmm| match refused(builder) {
        Error::Unsupported { operation, .. } => operation,
        e => panic!("{e}"),
    };
    let harmonic = || Fmm::new(Harmonic2d);
    assert_eq!(unsupported(harmonic().method(Method::EquivalentDensities)), "a method of space");
    assert_eq!(unsupported(harmonic().precision(Precision::F32).tolerance(1e-3)), "f32");
    assert_eq!(unsupported(harmonic().root_cube([0.0; 3], 1.0)), "a root cube");
    assert_eq!(unsupported(Fmm::new(Laplace2d).norm(Norm::Max)), "the largest relative error");
    let space = || Fmm::new(Laplace);
    let at = [0.0; 9];
    for builder in [space().method(Method::Laurent), space().theta(0.5), space().norm(Norm::Max)] {
        assert!(matches!(builder.plan(&at, Targets::Sources), Err(Error::Unsupported { .. })));
    }
    for theta in [0.0, 1.0, -0.5, f64::NAN] {
        assert!(matches!(refused(harmonic().theta(theta)), Error::Parameter { name: "theta", .. }));
    }
    assert_eq!(refused(harmonic().order(61)), Error::Order { order: 61, min: 1, max: 60 });
    assert!(matches!(refused(harmonic().tolerance(-1.0)), Error::Tolerance { .. }));
    assert!(matches!(refused(harmonic().outputs(Outputs::PRESSURE)), Error::UnsupportedOutput { .. }));
    assert!(matches!(refused(harmonic().outputs(Outputs::empty())), Error::NoOutput));
    let plan = harmonic().plan(&z, Targets::Sources).unwrap();
    let wrong = plan.apply(&[1.0; 100]).unwrap_err();
    assert!(matches!(wrong, Error::Shape { array: "strengths", found: 100, expected: 200, .. }));
    let mut bad = z.clone();
    bad[7] = f64::NAN;
    let e = harmonic().plan(&bad, Targets::Sources).unwrap_err();
    assert!(matches!(e, Error::NotFinite { array: "sources", row: 3, column: 1, .. }));
    let e = harmonic().plan(&z[..5], Targets::Sources).unwrap_err();
    assert!(matches!(e, Error::Shape { array: "sources", found: 5, .. }));
}

#[test]
fn threads_change_no_bit() {
    for kernel in kernels() {
        let z = demo::points(Demo::Normal2d, 30_000, 1);
        let q = charges(kernel, 30_000);
        let run = |threads, method| {
            let plan = fast(kernel).method(method).threads(threads).plan(&z, Targets::Subset(&[1, 5, 29_999]));
            plan.unwrap().apply(&q).unwrap().gradient
        };
        for method in [Method::Laurent, Method::Direct] {
            assert_eq!(run(1, method), run(3, method));
        }
    }
}

fn run(args: &str) -> serde_json::Value {
    let run = command(&args.split(' ').collect::<Vec<_>>());
    assert!(run.status.success(), "{args}: {}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn the_command() {
    for (kernel, demo) in [("harmonic2d", "uniform2d"), ("laplace2d", "normal2d"), ("harmonic2d", "layer2d")] {
        let v = run(&format!(
            "run --kernel {kernel} --demo {demo} --n 20000 --outputs potential,gradient --verify 200 --json"
        ));
        assert_eq!((&v["kernel"], &v["method"]), (&kernel.into(), &"laurent".into()));
        for output in ["potential", "gradient"] {
            assert!(v["errors"][output]["rel_l2"].as_f64().unwrap() <= 1e-6);
            assert!(v["errors"][output]["max_rel"].is_f64());
        }
        assert!(v["levels"].as_u64() > Some(3) && v["plan"]["theta"].is_f64());
    }
    let v = run("run --kernel harmonic2d --n 9000 --norm max --theta 0.4 --tolerance 1e-5 --verify 100 --json");
    assert_eq!((&v["norm"], v["plan"]["theta"].as_f64()), (&"max".into(), Some(0.4)));
    assert_eq!(run("run --kernel laplace2d --demo uniform2d --n 100 --json")["method"], "direct");
    for (source, outputs) in [("dipole", "potential,hessian"), ("mixed", "potential,gradient,hessian")] {
        let v = run(&format!(
            "run --kernel laplace2d --source {source} --n 9000 --outputs {outputs} --tolerance 1e-5 --verify 200 --json"
        ));
        for output in outputs.split(',') {
            assert!(v["errors"][output]["rel_l2"].as_f64().unwrap() <= 1e-5, "{source} {output}");
        }
    }
    for args in [
        "run --kernel harmonic2d --demo plummer --n 100",
        "run --kernel laplace --demo normal2d --n 100",
        "run --kernel laplace2d --norm max --n 100",
        "run --kernel laplace --theta 0.5 --n 100",
        "run --kernel harmonic2d --source dipole --n 100",
        "run --kernel harmonic2d --source mixed --n 100",
        "run --kernel harmonic2d --method equivalent --n 100",
    ] {
        let run = command(&args.split(' ').collect::<Vec<_>>());
        assert!(!run.status.success() && run.stdout.is_empty(), "{args}");
        assert!(last_line(&run).starts_with("error: "), "{args}");
    }
}

/// Header and numbers of one array of an `.npz` file.
fn read_npz(path: &std::path::Path, name: &str) -> (String, Vec<f64>) {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut zip.by_name(&format!("{name}.npy")).unwrap(), &mut bytes).unwrap();
    let end = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let numbers = bytes[end..].chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
    (String::from_utf8_lossy(&bytes[10..end]).to_string(), numbers)
}

/// Complex numbers in files: potentials of harmonic2d, and strengths of either kernel.
#[test]
fn complex_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (n, z) = (400, demo::points(Demo::Uniform2d, 400, 1));
    let gamma = strengths(2 * n, 3);
    let text = |rows: &[f64], width: usize| -> String {
        rows.chunks(width).map(|r| r.iter().map(|x| format!("{x:?} ")).collect::<String>() + "\n").collect()
    };
    std::fs::write(path("z.txt"), text(&z, 2)).unwrap();
    let mut npy = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
    npy.extend(format!("{:<69}\n", "{'descr': '<c16', 'fortran_order': False, 'shape': (400,), }").bytes());
    npy.extend(gamma.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(path("q.npy"), &npy).unwrap();
    let real: Vec<f64> = gamma.iter().step_by(2).copied().collect();
    std::fs::write(path("real.txt"), text(&real, 1)).unwrap();
    let run = |kernel: &str, strengths: &str| {
        let (z, q, out) = (path("z.txt"), path(strengths), path("out.npz"));
        let files = [z.to_str().unwrap(), q.to_str().unwrap(), out.to_str().unwrap()];
        let args = ["run", "--kernel", kernel, "--method", "direct", "--outputs", "potential,gradient", "--sources"];
        let run = command(&[&args[..], &[files[0], "--strengths", files[1], "--out", files[2]]].concat());
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        ["potential", "gradient"].map(|name| read_npz(&out, name))
    };

    let out = direct(Harmonic2d, &z, Targets::Sources, &gamma);
    let [(header, potential), (shape, gradient)] = run("harmonic2d", "q.npy");
    assert!(header.contains("'<c16'") && header.contains("(400,)") && shape.contains("(400, 2,)"), "{header} {shape}");
    assert_eq!(potential, out.potential);
    let expected: Vec<f64> = out.gradient.chunks(4).flat_map(|g| [g[0], g[2], g[1], g[3]]).collect();
    assert_eq!(gradient, expected);

    // Complex strengths of a real kernel are two sets of strengths. Real strengths of a complex kernel have no
    // imaginary part.
    let parts = [0, 1].map(|c| -> Vec<f64> { gamma.iter().skip(c).step_by(2).copied().collect() });
    let parts = parts.map(|q| direct(Laplace2d, &z, Targets::Sources, &q));
    let [(_, potential), (_, gradient)] = run("laplace2d", "q.npy");
    for (found, parts) in
        [(potential, parts.each_ref().map(|p| &p.potential)), (gradient, parts.each_ref().map(|p| &p.gradient))]
    {
        let expected: Vec<f64> = parts[0].iter().zip(parts[1]).flat_map(|(a, b)| [*a, *b]).collect();
        assert_eq!(found, expected);
    }
    let complex: Vec<f64> = real.iter().flat_map(|&x| [x, 0.0]).collect();
    assert_eq!(run("harmonic2d", "real.txt")[0].1, direct(Harmonic2d, &z, Targets::Sources, &complex).potential);
    assert!(run("laplace2d", "real.txt")[0].0.contains("'<f8'"));
}

/// Second derivatives in files: complex (M, 2, 2) for harmonic2d, real (M, 2, 2) for dipoles, whose strengths are (N, 2).
#[test]
fn second_derivatives_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.npz");
    for (kernel, source, kind, numbers) in [("harmonic2d", "charge", "'<c16'", 2), ("laplace2d", "dipole", "'<f8'", 1)]
    {
        let out = path.to_str().unwrap();
        let args = ["run", "--kernel", kernel, "--source", source, "--n", "50", "--outputs", "hessian", "--out", out];
        let run = command(&args);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let (header, hessian) = read_npz(&path, "hessian");
        assert!(header.contains(kind) && header.contains("(50, 2, 2,)"), "{header}");
        // Each potential solves Laplace's equation.
        for h in hessian.chunks(4 * numbers) {
            for k in 0..numbers {
                let [xx, xy, yx, yy] = [0, 1, 2, 3].map(|e| h[numbers * e + k]);
                assert!(xy == yx && (xx + yy).abs() <= 1e-12 * xx.abs().max(1.0) && xx != 0.0);
            }
        }
        let (header, q) = read_npz(&path, "strengths");
        assert_eq!(q.len(), 100);
        assert!(header.contains(if numbers == 2 { "(50,)" } else { "(50, 2,)" }), "{header}");
    }
}

#[test]
fn pictures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tree.svg");
    for (demo, colours) in
        [("normal2d", ["#000000", "#777777", "#d9d9d9"]), ("ellipsoid", ["#000000", "#777777", "#d9d9d9"])]
    {
        let run = command(&["tree", "--plot", path.to_str().unwrap(), "--demo", demo, "--n", "3000"]);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let text = std::fs::read_to_string(&path).unwrap();
        // Each colour occurs in the picture, not only in the legend.
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(colours.iter().all(|c| text.matches(c).count() > 1), "{demo}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
    let none = folder.path().join("none.txt");
    std::fs::write(&none, "").unwrap();
    let run = command(&["tree", "--plot", path.to_str().unwrap(), "--sources", none.to_str().unwrap()]);
    assert!(!run.status.success());
    assert!(last_line(&run).starts_with("error: "));
}
