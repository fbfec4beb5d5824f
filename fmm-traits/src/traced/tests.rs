use super::*;
use crate::lane::{Lane, dot};
use crate::member::{Member, Members};
use crate::{Gradient, Hessian, Kernel, facts, record};

/// Yukawa's kernel q·e^(−κr)/r as a Rust type.
#[derive(Clone, Debug)]
struct Twin;
impl Kernel for Twin {
    const NAME: &'static str = "twin";
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let s = dot(r, r);
        let inverse = s.rsqrt();
        u[0] = q[0] * (inverse * (-(p[0] * (s * inverse))).exp());
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn dilated(p: &[f64], h: f64) -> Option<Vec<f64>> {
        Some(vec![p[0] * h])
    }
}

fn all() -> Outputs {
    Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN
}

fn check(kernel: &Traced) -> Kernels {
    let k = kernel.kernels(all()).unwrap();
    let members = [k.members.check.clone(), k.members.slope.clone(), k.near.clone()];
    for extent in [1.0, 1e-3, 50.0] {
        assert_eq!(facts::check(&members, &k.params, extent), Ok(()), "{}", kernel.name());
    }
    k
}

fn values(member: &Member, params: &[f64], r: [f64; 3], q: &[f64]) -> Vec<f64> {
    let mut u = vec![0.0; member.values];
    member.eval(params, &r, q, &mut u);
    u
}

#[test]
fn a_kernel_of_text_is_its_compiled_twin() {
    let k = check(&Traced::expression("exp(-kappa*r)/r").unwrap().set("kappa", 1.7).unwrap());
    assert!(k.near.singular && !k.include_self && k.members.check.reciprocal);
    assert_eq!((&k.members.check.value_degrees[..], k.near.dilated(&[1.7], 2.0)), (&[-1][..], Some(vec![3.4])));
    for (member, twin) in [
        (&k.members.check, Member::of::<Twin>()),
        (&k.members.slope, Member::of::<Gradient<Twin>>()),
        (&k.near, Member::of::<Hessian<Twin>>()),
    ] {
        for r in [[0.3, -0.2, 0.9], [1e-4, 2e-5, -3e-5], [7.0, 2.0, -1.0], [0.0; 3]] {
            let (a, b) = (values(member, &[1.7], r, &[0.8]), values(&twin, &[1.7], r, &[0.8]));
            let size = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-12 * size), "{r:?}: {a:?} {b:?}");
        }
    }
}

#[test]
fn dilation_is_found_by_dimensional_analysis() {
    for (text, values, parameters) in [
        ("1/r", -1, vec![]),
        ("1/r^6", -6, vec![]),
        ("r^3", 3, vec![]),
        ("sqrt(r^2 + c^2)", 1, vec![1.0]),
        ("exp(-(r/h)^2)", 0, vec![1.0]),
        ("cos(k*r)/r", -1, vec![-1.0]),
        ("a/r + b/r^2", -2, vec![-1.0, 0.0]),
        ("x/r^3*q", -2, vec![]),
    ] {
        let kernel = Traced::expression(text).unwrap();
        let degrees = kernel
            .tape(Part::Near, 0, None, &[])
            .degrees(kernel.parameters().len(), 1)
            .unwrap_or_else(|| panic!("{text}"));
        // Powers that no equation fixes are 0, and may shift degrees.
        if text.starts_with("a/r") {
            assert_eq!(degrees.parameters[0] - degrees.parameters[1], -1.0);
        } else {
            assert_eq!((degrees.values[0], degrees.parameters), (values, parameters), "{text}");
        }
    }
    // A number where a length should be, a degree that is no integer, and a logarithm of a length.
    for text in ["exp(-r)", "sqrt(r)", "r^2*ln(r)", "where(r < 1, 1/r, 0)", "1/r + 1/r^2"] {
        let kernel = Traced::expression(text).unwrap();
        assert_eq!(kernel.tape(Part::Near, 0, None, &[]).degrees(0, 1), None, "{text}");
        let k = kernel.kernels(Outputs::POTENTIAL).unwrap();
        assert_eq!((&k.params[..], k.near.dilated(&[1.0], 0.5)), (&[1.0][..], Some(vec![0.5])), "{text}");
    }
}

#[test]
fn kernels_of_all_kinds_obey_their_facts() {
    for text in [
        "1/r",
        "1/r^2",
        "1/r^6",
        "r",
        "r^3",
        "r^2*ln(r)",
        "exp(-r)",
        "sqrt(r)",
        "exp(-r^2)",
        "sqrt(r^2 + 0.01)",
        "cos(3*r)/r",
        "erf(r)/r",
        "erfc(2*r)/r",
        "x/r^3",
        "x*y/r^5",
        "tanh(r)",
        "1/sqrt(x^2 + 100*y^2 + z^2)",
        "abs(x)/r^2 + max(y, z)",
        "where(r < 0.5 and x > 0, 1/r, 2 - 1/r)",
        "pow(r, -1.5)",
        "2^(-r)",
    ] {
        let kernel = Traced::expression(text).unwrap();
        let k = kernel.kernels(Outputs::POTENTIAL).unwrap();
        assert_eq!(facts::check(&[k.near], &k.params, 1.0), Ok(()), "{text}");
    }
    // Stokes' kernel, and a dipole with a charge.
    let stokes = "value q1/r + x*(x*q1 + y*q2 + z*q3)/r^3\nvalue q2/r + y*(x*q1 + y*q2 + z*q3)/r^3\n\
                  value q3/r + z*(x*q1 + y*q2 + z*q3)/r^3";
    let k = check(&Traced::parse(stokes).unwrap());
    assert!(k.members.check.reciprocal && k.members.check.value_degrees == [-1; 3] && k.members.check.strengths == 3);
    let mixed = check(&Traced::parse("value q1/r + (x*q2 + y*q3 + z*q4)/r^3").unwrap());
    assert_eq!(mixed.near.strength_degrees[1] - mixed.near.strength_degrees[0], -1);
    assert!(!mixed.members.check.reciprocal);
}

impl Traced {
    /// Sets all parameters.
    fn set_all(self, value: f64) -> Self {
        let names: Vec<String> = self.parameters().iter().map(|(name, _)| name.clone()).collect();
        names.iter().fold(self, |kernel, name| kernel.set(name, value).unwrap())
    }
}

/// (1 + ar)e^(−ar), with its derivatives in closed form.
fn matern(l: f64) -> Traced {
    let a = |p: &[Symbol]| 3f64.sqrt() / p[0];
    Traced::radial("matern32", &[("l", l)], |r, p| (1.0 + a(p) * r) * (-a(p) * r).exp())
        .slope(|r, p| -(a(p) * a(p)) * (-a(p) * r).exp())
        .curvature(|r, p| a(p) * a(p) * a(p) * (-a(p) * r).exp() / r)
}

#[test]
fn derivatives_at_zero_are_limits() {
    let (l, a) = (0.2, 3f64.sqrt() / 0.2);
    let k = check(&matern(l));
    assert!(!k.near.singular && k.include_self);
    for length in [0.0, 1e-160, 1e-80, 1e-20, 1e-8, 1e-5, 1e-3] {
        let u = values(&k.near, &k.params, [length, 0.0, 0.0], &[1.0]);
        let (e, s) = ((-a * length).exp(), -a * a);
        let expected =
            [(1.0 + a * length) * e, s * length * e, 0.0, 0.0, s * (1.0 - a * length) * e, 0.0, 0.0, s * e, 0.0, s * e];
        for (i, (u, expected)) in u.iter().zip(expected).enumerate() {
            assert!((u - expected).abs() <= 1e-14 * if i == 0 { 1.0 } else { a * a }, "{length} {i}: {u} {expected}");
        }
    }
    // A wrong closed form is noticed.
    let wrong = matern(l).slope(|r, p| -3.01 / (p[0] * p[0]) * (-(3f64.sqrt()) * r / p[0]).exp());
    let k = wrong.kernels(all()).unwrap();
    assert!(matches!(facts::check(&[k.near], &k.params, 1.0), Err(Error::Fact { .. })));
}

/// Of r, r³ and e^(−ar): the Laplacians, and the facts of the families with several densities.
#[test]
fn densities_are_laplacians() {
    let biharmonic = Traced::radial("r", &[], |r, _| r).densities(2).unwrap().self_interaction(SelfInteraction::Skip);
    let k = check(&biharmonic);
    let (r, length) = ([0.3, -0.4, 1.2], 1.3f64);
    let u = values(&k.members.equivalent, &[], r, &[1.0, 0.0]);
    assert!((u[0] - length).abs() < 1e-15 && (u[1] - 2.0 / length).abs() < 1e-14, "{u:?}");
    let u = values(&k.members.equivalent, &[], r, &[0.0, 1.0]);
    assert!((u[0] - 2.0 / length).abs() < 1e-14 && u[1].abs() < 1e-14, "{u:?}");
    assert_eq!((&k.members.equivalent.value_degrees, &k.far.strength_degrees), (&vec![1, -1], &vec![0, -2]));
    assert_eq!((k.near.values, k.far.values, k.far.strengths, k.members.check.values), (10, 10, 2, 2));
    for (text, count) in [("r^3", 3), ("exp(-2*r)", 2), ("exp(-a*r)", 2), ("(1 + a*r)*exp(-a*r)", 3)] {
        let kernel = Traced::parse(&format!("densities {count}\nparameter a = 1.5\nvalue {text}")).unwrap();
        let k = kernel.self_interaction(SelfInteraction::Skip).kernels(all()).unwrap();
        let Members { check, equivalent, slope, .. } = k.members;
        let members = [check, equivalent, slope, k.far];
        // The entries cancel digits where r is short.
        assert_eq!(facts::check(&members[..2], &k.params, 3.0), Ok(()), "{text}");
        assert_eq!(members[3].strengths, count);
    }
    // Closed forms are the Laplacians that differentiation finds.
    let given = "densities 2\nparameter a = 1.5\nvalue exp(-a*r)\nlaplacian a*(a - 2/r)*exp(-a*r)\n\
                 laplacian a^3*(a - 4/r)*exp(-a*r)";
    let text: String = given.lines().take(3).map(|line| format!("{line}\n")).collect();
    let [a, b] = [given, &text].map(|text| {
        let k = Traced::parse(text).unwrap().kernels(Outputs::POTENTIAL).unwrap();
        values(&k.members.equivalent, &k.params, r, &[1.0, 0.3])
    });
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-13), "{a:?} {b:?}");
    for text in ["densities 5\nvalue r", "densities 2\nvalue x"] {
        assert!(Traced::parse(text).is_err(), "{text}");
    }
}

#[test]
fn values_at_zero_are_finite_or_refused() {
    let own = |text: &str, outputs| Traced::expression(text).unwrap().set_all(0.7).kernels(outputs);
    // The value is finite, and a derivative is not: it counts as 0.
    for text in ["r^1.3", "exp(-1/r)", "exp(-r)"] {
        let k = own(text, Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
        let u = values(&k.near, &k.params, [0.0; 3], &[1.0]);
        assert!(k.include_self && u[1..] == [0.0; 3], "{text}: {u:?}");
    }
    // The Hessian at r = 0 has a limit that is found, or not.
    for (text, limit) in [("exp(-(r/h)^2)", -2.0 / 0.49), ("sqrt(r^2 + h^2)", 1.0 / 0.7), ("r^2", 2.0)] {
        let k = own(text, all()).unwrap();
        let u = values(&k.near, &k.params, [0.0; 3], &[1.0]);
        assert!((u[4] - limit).abs() < 1e-12 && (u[9] - limit).abs() < 1e-12, "{text}: {u:?}");
    }
    for text in ["exp(-r)", "(1 + h*r)*exp(-h*r)", "cos(r)"] {
        assert!(matches!(own(text, all()), Err(Error::Unsupported { .. })), "{text}");
        let skip = Traced::expression(text).unwrap().set_all(0.7).self_interaction(SelfInteraction::Skip);
        assert!(skip.kernels(all()).is_ok(), "{text}");
    }
    // Sums of strengths that cancel do not hide a value at r = 0.
    let k = Traced::parse("value q1/r + q2 - q3").unwrap().kernels(Outputs::POTENTIAL).unwrap();
    assert_eq!(values(&k.near, &k.params, [0.0; 3], &[1.0, 2.0, 0.5]), [0.0]);
    // An odd part that is small at the usual lengths, and a kernel that underflows there.
    for text in ["1/r + x*exp(-100*r)", "x*exp(-r/0.0005)"] {
        assert!(!own(text, Outputs::POTENTIAL).unwrap().near.reciprocal, "{text}");
    }
    // The Laplacian of a short covariance is not 0.
    let short = Traced::parse("densities 2\nvalue exp(-r/1e-6)").unwrap().kernels(Outputs::POTENTIAL).unwrap();
    let u = values(&short.members.check, &short.params, [1e-6, 0.0, 0.0], &[1.0]);
    assert!((u[1] / (-1e12 / 1f64.exp()) - 1.0).abs() < 1e-9, "{u:?}");
}

#[test]
fn many_pairs_are_as_one() {
    let text = "c = x < y and not (z == 0.1) or r <= 1\n\
                value where(c, q1*sin(r)/r, q2*erf(r)*exp(-r^2)) + abs(x)*q2*max(y, fma(x, y, z))\n\
                value q1*ln(r)/sqrt(r^2 + 2) - cos(x)*tanh(y)*q2*rsqrt(3)*pow(r, -1.5) + where(1 < 2, q1, q2)";
    let k = Traced::parse(text).unwrap().kernels(Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
    let r: Vec<[f64; 3]> = (0..77).map(|i| [0.1 * i as f64 - 3.3, 0.7 - 0.03 * i as f64, 0.02 * i as f64]).collect();
    let mut many = vec![0.0; r.len() * k.near.values];
    k.near.eval_many(&k.params, &r, &[0.3, -1.1], &mut many);
    for (r, many) in r.iter().zip(many.chunks(k.near.values)) {
        assert_eq!(values(&k.near, &k.params, *r, &[0.3, -1.1]), many);
    }
}

#[test]
fn kernels_are_recorded_inside_each_other() {
    let nested = Traced::radial("a", &[("k", 2.0)], |r, p| {
        let inner = Traced::expression("exp(-r)/r").unwrap().kernels(Outputs::POTENTIAL).unwrap();
        assert!(inner.near.singular);
        (-p[0] * r).exp()
    });
    let k = nested.kernels(Outputs::POTENTIAL).unwrap();
    assert_eq!(values(&k.near, &k.params, [0.0, 0.5, 0.0], &[1.0]), [(-1f64).exp()]);
    assert!(Traced::general("none", &[], 0, |_, _, _| Vec::new()).is_err());
}

#[test]
fn text_of_a_kernel_is_the_kernel() {
    for kernel in [
        matern(0.3).self_interaction(SelfInteraction::Skip),
        Traced::expression("where(r < 1 and not (x > y or z == 0), -fma(x, y, 0.1)/r, erf(r)*rsqrt(2))").unwrap(),
        Traced::parse("name two\nstrengths 3\nparameter s = -1e-30\nvalue q1*s/r - q3\nvalue q2").unwrap(),
        Traced::radial("a name!", &[], |r, _| r.sin() + r.cos().ln() - r.sqrt().exp()),
        Traced::expression("q").unwrap(),
        Traced::expression("exp(-r/t3)*tt").unwrap(),
        Traced::expression("where(1 < 2, x, y)*z").unwrap(),
        Traced::parse("densities 2\nvalue exp(-r)\nlaplacian (1 - 2/r)*exp(-r)\nlaplacian r").unwrap(),
    ] {
        let text = kernel.text();
        let back = Traced::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(back.body, kernel.body, "{text}");
        assert_eq!((&back.parameters, back.strengths, back.own), (&kernel.parameters, kernel.strengths, kernel.own));
    }
}

#[test]
fn errors_have_a_place() {
    for (text, line, column, reason) in [
        ("value 1/", 1, 9, "expected an expression"),
        ("a = 1\nvalue b/r", 2, 7, "unknown name b"),
        ("parameter e = 1\nvalue 0^e/r", 2, 9, "a constant that is not finite"),
        ("value 1/(2 - 2)", 1, 9, "division by zero"),
        ("value ln(0)*r", 1, 7, "a constant that is not finite"),
        ("value r^-1)", 1, 11, "expected the end"),
        ("value where(r, 1, 2)", 1, 13, "expected a condition"),
        ("value (r < 1) + 2", 1, 7, "expected a number"),
        ("parameter r = 2\nvalue r", 1, 11, "taken"),
        ("sin = 2\nvalue r", 1, 1, "taken"),
        ("value sqrt(r, 2)", 1, 13, "expected \")\""),
        ("value 1.2.3", 1, 7, "not a number"),
        ("value r $ 2", 1, 9, "unexpected character"),
        ("# nothing", 1, 1, "no value"),
        ("strengths 10\nvalue q1", 1, 11, "from 1 to 9"),
        ("self maybe\nvalue r", 1, 6, "self include"),
        ("r + 2", 1, 1, "expected a statement"),
        ("slope r\nvalue x", 2, 8, "r alone"),
    ] {
        match Traced::parse(text) {
            Err(Error::KernelText { line: l, column: c, reason: why }) => {
                assert!((l, c) == (line, column) && why.contains(reason), "{text:?}: {l}:{c} {why}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
    let deep = format!("value {}r{}", "(".repeat(5000), ")".repeat(5000));
    assert!(matches!(Traced::parse(&deep), Err(Error::KernelText { line: 1, .. })));
    let powers = format!("value {}r", "r^".repeat(5000));
    assert!(matches!(Traced::parse(&powers), Err(Error::KernelText { line: 1, .. })));
    let chain = format!("value r{}", "*x*y".repeat(10000));
    assert!(matches!(Traced::parse(&chain), Err(Error::KernelText { line: 1, .. })));
    let long = format!("value {}", (0..9000).map(|k| format!("sin({k}*r)+")).collect::<String>() + "r");
    assert!(matches!(Traced::parse(&long), Err(Error::TooMany { .. } | Error::KernelText { .. })));
    let kernel = Traced::expression("exp(-r/l)").unwrap();
    assert!(matches!(kernel.kernels(all()), Err(Error::MissingParameter { name, .. }) if name == "l"));
    assert!(matches!(kernel.clone().set("k", 1.0), Err(Error::UnknownParameter { known, .. }) if known == "l"));
    assert!(matches!(kernel.set("l", f64::NAN).unwrap().kernels(all()), Err(Error::Parameter { .. })));
    let include = Traced::expression("1/r").unwrap().self_interaction(SelfInteraction::Include);
    assert!(matches!(include.kernels(all()), Err(Error::Unsupported { .. })));
}

#[test]
fn a_recorded_laplace_kernel_is_laplace() {
    #[derive(Clone, Debug)]
    struct Inverse;
    impl Kernel for Inverse {
        const NAME: &'static str = "inverse";
        fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
            u[0] = q[0] * dot(r, r).rsqrt();
        }
        fn value_degree(_: usize) -> i32 {
            -1
        }
    }
    let k = Traced::expression("1/r").unwrap().kernels(Outputs::POTENTIAL).unwrap();
    assert_eq!(k.near.tape(), record::<Inverse>());
}

/// ln r and its derivatives in the plane, radial, general, and read from text.
#[test]
fn the_plane_has_two_axes() {
    let radial = Traced::radial("log", &[], |r, _| r.ln()).in_plane();
    let general =
        Traced::general("log", &[], 1, |r, q, _| vec![q[0] * crate::lane::dot(r, r).sqrt().ln()]).unwrap().in_plane();
    let text = Traced::parse("dim 2\nvalue 0.5*ln(x^2 + y^2)").unwrap();
    let expression = Traced::expression("q*ln(r)").unwrap().in_plane();
    let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
    for kernel in [radial, general, text, expression] {
        let k = kernel.kernels(all).unwrap();
        assert_eq!((kernel.dim(), k.near.dim, k.near.values), (2, 2, 10));
        assert!(k.near.singular && k.members.equivalent.reciprocal);
        // The third coordinate is left alone.
        let row = k.near.column(&k.params, [0.6, -0.8, 17.0], 0);
        let shown: Vec<f64> = k.columns.iter().flat_map(|c| &c.columns).map(|&c| row[c]).collect();
        let (x, y) = (0.6, -0.8);
        let expected = [0.0, x, y, y * y - x * x, -2.0 * x * y, -2.0 * x * y, x * x - y * y];
        assert_eq!(shown.len(), expected.len());
        assert!(shown.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-14), "{shown:?}");
        assert_eq!([row[3], row[6], row[8], row[9]], [0.0; 4], "derivatives along z");
        assert_eq!(crate::facts::check(std::slice::from_ref(&k.near), &k.params, 1.0), Ok(()));
        let again = Traced::parse(&kernel.text()).unwrap();
        assert_eq!((again.dim(), again.text()), (2, kernel.text()));
    }
    // Δr² is 4 in the plane.
    let square = Traced::radial("square", &[], |r, _| r * r).densities(2).unwrap();
    let at = |kernel: Traced| {
        let k = kernel.kernels(Outputs::POTENTIAL).unwrap();
        k.members.equivalent.column(&k.params, [0.3, 0.4, 0.0], 0)[1]
    };
    assert_eq!(at(square.clone()), 6.0);
    assert_eq!(at(square.in_plane().densities(2).unwrap()), 4.0);
    assert!(Traced::parse("dim 2\nvalue z").is_err());
}
