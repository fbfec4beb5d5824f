//! Kernels made at run time: agreement with compiled twins and with plain sums, self interaction, the catalog, the
//! options of the command.

use crate::cli::{fmm, json, refused};
use crate::{both, difference, direct, fast, in_turn, strengths, uniform};
use fmm::{
    AnyFamily, Error, Fmm, Laplace, Member, Method, Outputs, Precision, SelfInteraction, Stokes, Targets, Traced,
    Yukawa, catalog,
};
use proptest::prelude::*;
use std::f64::consts::PI;

fn all() -> Outputs {
    both() | Outputs::HESSIAN
}

/// Σ K(x − y)·q by two loops. Target i skips source i if `skip`.
fn plain(member: &Member, params: &[f64], x: &[f64], y: &[f64], q: &[f64], skip: bool) -> Vec<f64> {
    let mut out = vec![0.0; x.len() / 3 * member.values];
    let mut u = vec![0.0; member.values];
    for (i, (x, out)) in x.chunks(3).zip(out.chunks_mut(member.values)).enumerate() {
        for (j, (y, q)) in y.chunks(3).zip(q.chunks(member.strengths)).enumerate() {
            if !(skip && i == j) {
                member.eval(params, &[x[0] - y[0], x[1] - y[1], x[2] - y[2]], q, &mut u);
                out.iter_mut().zip(&u).for_each(|(out, u)| *out += u);
            }
        }
    }
    out
}

/// The rows of all outputs side by side, as the kernel yields them.
fn rows(out: &fmm::Output, outputs: Outputs) -> Vec<f64> {
    Outputs::ALL.iter().filter(|(o, _)| outputs.contains(*o)).flat_map(|(o, _)| out.get(*o).to_vec()).collect()
}

#[test]
fn sums_are_those_of_compiled_twins() {
    let stokes = "parameter mu = 2\nc = 1/(8*pi*mu)\ng = c/r\nh = c*(x*q1 + y*q2 + z*q3)/r^3\n\
                  value g*q1 + h*x\nvalue g*q2 + h*y\nvalue g*q3 + h*z";
    let cases: [(AnyFamily, Traced); 3] = [
        (Laplace.into(), Traced::parse("value 1/(4*pi*r)").unwrap()),
        (Yukawa { kappa: 3.0 }.into(), Traced::parse("parameter k = 3\nvalue exp(-k*r)/(4*pi*r)").unwrap()),
        (Stokes { mu: 2.0 }.into(), Traced::parse(stokes).unwrap()),
    ];
    let (x, y) = (uniform(3000, 1), uniform(700, 2));
    let some: Vec<usize> = (0..3000).step_by(7).collect();
    for (family, traced) in cases {
        let q: Vec<f64> = strengths(9000, 3)[..3000 * Fmm::new(family.clone()).strengths().unwrap()].to_vec();
        for (method, outputs) in [(Method::EquivalentDensities, both()), (Method::Direct, all())] {
            for (precision, rounding) in [(Precision::F64, 1e-9), (Precision::F32, 3e-4)] {
                for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&y)] {
                    let sums = |family: AnyFamily| {
                        let request = Fmm::new(family).method(method).outputs(outputs).precision(precision).ncrit(60);
                        let request = if method == Method::Direct { request } else { request.order(5) };
                        rows(&request.plan(&x, targets).unwrap().apply(&q).unwrap(), outputs)
                    };
                    let e = difference(&sums(traced.clone().into()), &sums(family.clone()));
                    assert!(e < rounding, "{} {method:?} {precision:?}: {e:e}", family.name());
                }
            }
        }
    }
}

#[test]
fn a_source_acts_on_itself_or_does_not() {
    let (x, y, q) = (uniform(1000, 1), uniform(300, 2), strengths(1000, 3));
    let some: Vec<usize> = [999, 0, 17].into_iter().chain((0..1000).step_by(11)).collect();
    let at = |rows: &[f64], width: usize| -> Vec<f64> {
        some.iter().flat_map(|&i| rows[width * i..width * (i + 1)].to_vec()).collect()
    };
    let (l, a) = (0.3, 3f64.sqrt() / 0.3);
    let matern = catalog::kernel("matern32").unwrap().set("l", l).unwrap();
    let kernels = matern.kernels(all()).unwrap();
    for (method, precision, bound) in [
        (Method::Direct, Precision::F64, 1e-12),
        (Method::Direct, Precision::F32, 1e-4),
        (Method::EquivalentDensities, Precision::F64, 2e-2),
    ] {
        let request = Fmm::new(matern.clone()).method(method).precision(precision).outputs(all()).ncrit(50);
        let request = if method == Method::Direct { request } else { request.order(8) };
        for own in [SelfInteraction::Include, SelfInteraction::Skip] {
            let request = request.clone().self_interaction(own);
            let sums = |targets| request.plan(&x, targets).unwrap().apply(&q).unwrap();
            let exact = plain(&kernels.near, &kernels.params, &x, &x, &q, own == SelfInteraction::Skip);
            let column = |range: std::ops::Range<usize>| -> Vec<f64> {
                exact.chunks(10).flat_map(|row| row[range.clone()].to_vec()).collect()
            };
            let whole = sums(Targets::Sources);
            for (output, range) in [(Outputs::POTENTIAL, 0..1), (Outputs::GRADIENT, 1..4)] {
                let e = difference(whole.get(output), &column(range));
                assert!(e < bound, "{method:?} {precision:?} {own:?} {}: {e:e}", output.names()[0]);
            }
            let part = sums(Targets::Subset(&some));
            assert!(
                difference(part.get(Outputs::POTENTIAL), &at(whole.get(Outputs::POTENTIAL), 1))
                    < 1e-4 * bound.max(1e-2)
            );
            // Other targets are at no source, so that both choices agree.
            let other = sums(Targets::Points(&y));
            let exact = plain(&kernels.near, &kernels.params, &y, &x, &q, false);
            let potentials: Vec<f64> = exact.chunks(10).map(|row| row[0]).collect();
            assert!(difference(other.get(Outputs::POTENTIAL), &potentials) < bound);
        }
        // The Hessian of one source at itself is −a²·I, and the default includes it.
        let alone = request.plan(&x[..3], Targets::Sources).unwrap().apply(&[2.0]).unwrap();
        assert_eq!((alone.get(Outputs::POTENTIAL), alone.get(Outputs::GRADIENT)), (&[2.0][..], &[0.0; 3][..]));
        let hessian = alone.get(Outputs::HESSIAN);
        let diagonal = [0, 4, 8].map(|k| (hessian[k] / (-2.0 * a * a) - 1.0).abs());
        assert!(diagonal.iter().all(|e| *e < 1e-6) && hessian[1] == 0.0, "{hessian:?}");
    }
    let plan = Fmm::new(matern).tolerance(1e-3).plan(&x, Targets::Sources).unwrap();
    let v = strengths(1000, 4);
    let (forth, back) = (plan.apply(&q).unwrap(), plan.apply_transpose(&v).unwrap());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (one, two) = (dot(forth.get(Outputs::POTENTIAL), &v), dot(&back, &q));
    assert!((one - two).abs() < 1e-9 * dot(&v, &v), "{one} {two}");
    // A compiled kernel that is finite at r = 0 skips the source itself unless asked; a singular one cannot include it.
    let soft = fmm::Gravity { g: 1.0, softening: 0.1 };
    let sum = |request: Fmm| direct(&request, &x[..6], Targets::Sources, &[1.0, 0.0]).get(Outputs::POTENTIAL)[0];
    assert_eq!(sum(fast(soft)), 0.0);
    assert!((sum(fast(soft).self_interaction(SelfInteraction::Include)) + 10.0).abs() < 1e-12);
    for family in [AnyFamily::from(Laplace), fmm::Laplace2d.into()] {
        let refused = Fmm::new(family).self_interaction(SelfInteraction::Include).plan(&x[..6], Targets::Sources);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
    }
}

/// Branches on parameters alone: the loop over pairs takes the same as the operators.
#[test]
fn branches_on_parameters_are_taken() {
    let (x, q) = (uniform(500, 5), strengths(500, 6));
    for k in [2.0, -2.0] {
        let text = format!("parameter k = {k}\nvalue where(k > 0 and 1 < 2, exp(-k*r)/r, 1/r) + where(k < 0, 1, 0)");
        let kernels = Traced::parse(&text).unwrap().kernels(both()).unwrap();
        let exact = plain(&kernels.near, &kernels.params, &x, &x, &q, true);
        let sums = direct(&Fmm::new(Traced::parse(&text).unwrap()).outputs(both()), &x, Targets::Sources, &q);
        let potentials: Vec<f64> = exact.chunks(4).map(|row| row[0]).collect();
        assert!(difference(sums.get(Outputs::POTENTIAL), &potentials) < 1e-12, "{k}");
    }
    // A derivative that is not finite at r = 0 is skipped with the source.
    for own in [SelfInteraction::Include, SelfInteraction::Skip] {
        let request = Fmm::new(Traced::expression("r^1.3").unwrap()).outputs(both()).self_interaction(own);
        let sums = direct(&request, &x, Targets::Sources, &q);
        assert!(sums.get(Outputs::GRADIENT).iter().all(|g| g.is_finite()));
    }
}

/// Kernels of one name and the same parameters do not share operators.
#[test]
fn caches_tell_kernels_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (x, q) = (uniform(3000, 5), strengths(3000, 6));
    for body in ["1/(4*pi*r)", "exp(-k*r)/r", "exp(-2*k*r)/r", "1/sqrt(r^2 + (0.001*k)^2)"] {
        for k in [1.0, 4.0] {
            let kernel = Traced::parse(&format!("name same\nparameter k = {k}\nvalue {body}")).unwrap();
            let request = fast(kernel).order(6).ncrit(50).operator_cache(folder.path());
            let e = difference(
                request.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap().get(Outputs::POTENTIAL),
                direct(
                    &Fmm::new(Traced::parse(&format!("parameter k = {k}\nvalue {body}")).unwrap())
                        .self_interaction(SelfInteraction::Skip),
                    &x,
                    Targets::Sources,
                    &q,
                )
                .get(Outputs::POTENTIAL),
            );
            // A kernel that is finite at r = 0 acts on its own source: the difference is about 1000 for the last.
            if !body.contains("sqrt") {
                assert!(e < 1e-4, "{body} {k}: {e:e}");
            }
        }
    }
}

#[test]
fn every_kernel_of_the_catalog_is_summed() {
    let x = uniform(1500, 7);
    for (turn, name) in catalog::names().enumerate() {
        let kernel = catalog::kernel(name).unwrap();
        if kernel.dim() == 2 {
            continue;
        }
        let outputs = if name == "kelvin_double" { Outputs::POTENTIAL } else { both() };
        let k = kernel.kernels(outputs).unwrap();
        let members = [
            k.members.check.clone(),
            k.members.slope.clone(),
            kernel.clone().self_interaction(SelfInteraction::Skip).kernels(all()).unwrap().near,
        ];
        assert_eq!(fmm_traits::facts::check(&members, &k.params, 1.0), Ok(()), "{name}");
        let q = strengths(1500 * k.near.strengths, 8);
        // The interpreter sums one pair at a time: at some of the points.
        let exact = plain(&k.near, &k.params, &x[..3 * 150], &x, &q, !k.include_self);
        let count = k.columns[0].columns.len();
        for (_, tolerance) in [1e-3, 1e-6].into_iter().enumerate().filter(|(t, _)| in_turn(turn + t, 2)) {
            let plan =
                Fmm::new(kernel.clone()).outputs(outputs).tolerance(tolerance).plan(&x, Targets::Sources).unwrap();
            let out = plan.apply(&q).unwrap();
            let potential: Vec<f64> = exact.chunks(k.near.values).flat_map(|row| row[..count].to_vec()).collect();
            let e = difference(&out.get(Outputs::POTENTIAL)[..potential.len()], &potential);
            assert!(e <= tolerance, "{name} {tolerance:e}: {e:e} by {}", plan.describe().method);
        }
        // Laplacians in closed form are those by differentiation.
        let given: String = catalog::text(name).unwrap().lines().map(|line| format!("{line}\n")).collect();
        let without: String = given.lines().filter(|l| !l.starts_with("laplacian")).map(|l| format!("{l}\n")).collect();
        if given != without {
            let [a, b]: [Vec<f64>; 2] = [given, without].map(|text| {
                let k = Traced::parse(&text).unwrap().set("l", 0.7).unwrap().kernels(Outputs::POTENTIAL).unwrap();
                let equivalent = k.members.equivalent;
                (0..equivalent.strengths).flat_map(|j| equivalent.column(&k.params, [0.4, -0.7, 0.5], j)).collect()
            });
            assert!(difference(&a, &b) < 1e-9, "{name}: {a:?} {b:?}");
        }
        // At r = 0 nothing is NaN.
        let mut u = vec![0.0; members[2].values];
        members[2].eval(&k.params, &[0.0; 3], &vec![1.0; k.near.strengths], &mut u);
        assert!(u.iter().all(|u| u.is_finite()), "{name}: {u:?}");
    }
    assert!(matches!(catalog::kernel("nothing"), Err(Error::UnknownKernel { .. })));
}

/// The double layer of elasticity is the traction of the displacement by forces, Kelvin's solution.
#[test]
fn the_double_layer_is_the_traction_of_kelvins_solution() {
    let (mu, nu) = (1.0, 0.3);
    let single = catalog::kernel("kelvin").unwrap().kernels(both()).unwrap();
    let double = catalog::kernel("kelvin_double").unwrap().kernels(Outputs::POTENTIAL).unwrap();
    let (d, f, n) = ([0.4, -0.7, 0.5], [0.3, 1.1, -0.6], [0.2, -0.5, 0.9]);
    let lambda = 2.0 * mu * nu / (1.0 - 2.0 * nu);
    let strengths: Vec<f64> = f.iter().flat_map(|f| n.map(|n| f * n)).collect();
    let mut found = [0.0; 3];
    double.near.eval(&double.params, &d, &strengths, &mut found);
    for i in 0..3 {
        // The displacement at the source y by a unit force at the target: its gradient with respect to y. The kernel is
        // even and symmetric, so that the gradient with respect to y = target − d is minus that with respect to d.
        let mut u = [0.0; 12];
        let mut force = [0.0; 3];
        force[i] = 1.0;
        single.near.eval(&single.params, &d, &force, &mut u);
        let gradient = |j: usize, k: usize| -u[3 + 3 * j + k];
        let divergence: f64 = (0..3).map(|k| gradient(k, k)).sum();
        let stress = |j: usize, k: usize| {
            lambda * divergence * f64::from(u8::from(j == k)) + mu * (gradient(j, k) + gradient(k, j))
        };
        let traction: f64 =
            (0..3).flat_map(|j| (0..3).map(move |k| (j, k))).map(|(j, k)| stress(j, k) * n[k] * f[j]).sum();
        assert!((found[i] - traction).abs() < 1e-12, "{i}: {} {traction}", found[i]);
    }
}

#[test]
fn the_command_takes_kernels() {
    let demo = ["--demo", "uniform", "--n", "2000", "--verify", "2000", "--tolerance", "1e-4", "--json"];
    let with = |more: &[&'static str]| -> Vec<&'static str> { [&["run"], more, &demo[..]].concat() };
    let report = json(&with(&["--expression", "(1 + a*r)*exp(-a*r)", "--set", "a=8"]));
    assert_eq!((&report["kernel"], &report["errors"].is_null()), (&"(1 + a*r)*exp(-a*r)".into(), &false));
    json(&with(&["--kernel", "matern52", "--set", "l=0.3", "--self", "skip", "--outputs", "potential,gradient"]));
    json(&with(&["--expression", "q1*y - q2*z", "--self", "include"]));
    json(&with(&["--expression", "exp(-3*r)/r", "--compile"]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.fmm").to_str().unwrap().to_string();
    std::fs::write(&file, catalog::kernel("helmholtz").unwrap().text()).unwrap();
    let run = fmm(&["run", "--kernel-file", &file, "--demo", "uniform", "--n", "1000"]);
    assert!(run.status.success());
    for (args, reason) in [
        (&["--expression", "exp(-r/l"][..], "line 1, column 9: expected \")\""),
        (&["--expression", "exp(-r/l)"], "parameter l of kernel expression has no value"),
        (&["--expression", "1/(1-1)"], "division by zero"),
        (&["--expression", "1/r", "--set", "a=2"], "no parameter a"),
        (&["--expression", "1/r", "--set", "a"], "NAME=VALUE"),
        (&["--expression", "1/r", "--self", "include"], "on itself"),
        (&["--expression", "1/r", "--kernel", "laplace"], "cannot be used with"),
        (&["--kernel", "laplace", "--set", "a=2"], "no meaning"),
        (&["--kernel", "laplace", "--compile"], "no meaning"),
        (&["--kernel", "laplac"], "there is no kernel laplac; known are laplace, stokes"),
        (&["--kernel", "matern32", "--source", "dipole"], "no kinds of sources"),
        (&["--kernel-file", "/nonexistent.fmm"], "/nonexistent.fmm"),
    ] {
        let line = refused(&with(args).iter().map(|s| &**s).collect::<Vec<_>>());
        assert!(line.contains(reason), "{args:?}: {line}");
    }
    let list = fmm(&["kernel", "list"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(["laplace", "gaussian", "thin_plate", "helmholtz"].iter().all(|name| list.contains(name)), "{list}");
    let shown = fmm(&["kernel", "show", "gaussian"]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), catalog::text("gaussian").unwrap());
    let check = fmm(&["kernel", "check", &file, "--n", "2000", "--tolerance", "1e-3"]);
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.success() && text.contains("tolerance  method") && text.contains("degree [-1, -1]"), "{text}");
    assert!(refused(&["kernel", "show", "nothing"]).contains("no kernel nothing"));
}

/// Pair loops by the C compiler change no more than rounding, whatever else is asked of the kernel.
#[test]
fn loops_by_the_c_compiler_serve_every_request() {
    let (x, q) = (uniform(3000, 4), strengths(3000, 5));
    let requests: [(Fmm, f64); 4] = [
        (Fmm::new(catalog::kernel("matern32").unwrap()).method(Method::Interpolation), 1e-9),
        (fast(catalog::kernel("exponential").unwrap()).self_interaction(SelfInteraction::Skip), 1e-9),
        (fast(Traced::parse("value exp(-2*r)/r").unwrap()), 1e-9),
        (fast(Traced::expression("1/r").unwrap()).precision(Precision::F32), 1e-4),
    ];
    for (request, bound) in requests {
        // Leaves of one size, because interpreted pairs have a higher price.
        let request = request.outputs(both()).order(6).ncrit(40);
        let sums = |r: Fmm| r.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        let (a, b) = (sums(request.clone().compiled()), sums(request));
        for (a, b) in [(&a.potential, &b.potential), (&a.gradient, &b.gradient)] {
            assert!(difference(a, b) <= bound, "{:.1e}", difference(a, b));
        }
    }
}

/// A Helmholtz field is e^(ikr)/(4πr) times the strength, as complex numbers.
#[test]
fn helmholtz_is_a_complex_product() {
    let k = catalog::kernel("helmholtz").unwrap().set("k", 2.5).unwrap().kernels(Outputs::POTENTIAL).unwrap();
    let (r, q) = ([0.3, 0.4, 1.2], [0.7, -0.2]);
    let mut u = [0.0; 2];
    k.near.eval(&k.params, &r, &q, &mut u);
    let (length, phase) = (1.3, 2.5 * 1.3f64);
    let expected = [q[0] * phase.cos() - q[1] * phase.sin(), q[0] * phase.sin() + q[1] * phase.cos()]
        .map(|x| x / (4.0 * PI * length));
    assert!(u.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{u:?} {expected:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    /// No text makes the reader of kernels panic, and what it reads can be written and read again.
    #[test]
    fn any_text(text in prop_oneof![
        ".{0,60}",
        "(value|slope|name|a =|parameter|self|strengths)? ?[-+*/^(),<=>.0-9rxyzqalen ]{0,40}(\n(value|a =) [-+*/^()0-9rxyzqa ]{0,20}){0,3}",
    ]) {
        for kernel in [Traced::parse(&text), Traced::expression(&text)].into_iter().flatten() {
            let back = Traced::parse(&kernel.text());
            prop_assert!(back.is_ok(), "{:?}\n{}", back, kernel.text());
            prop_assert_eq!(back.unwrap().text(), kernel.text());
            let names: Vec<String> = kernel.parameters().iter().map(|(n, _)| n.clone()).collect();
            let set = names.iter().try_fold(kernel, |k, name| k.set(name, 0.7)).unwrap();
            if let Ok(k) = set.kernels(Outputs::POTENTIAL | Outputs::GRADIENT) {
                let _ = fmm_traits::facts::check(&[k.members.check, k.near], &k.params, 1.0);
            }
        }
    }
}
