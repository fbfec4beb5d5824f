//! Every wrong argument is an error that carries the numbers.

use crate::{both, fast, strengths, uniform};
use fmm::{Error, Fmm, Gravity, Laplace, Method, Outputs, Precision, Stokes, Targets, Yukawa};

/// The error of a plan for 100 uniform points.
fn refused(builder: Fmm) -> Error {
    builder.plan(&uniform(100, 1), Targets::Sources).expect_err("must be refused")
}

#[test]
fn numbers_that_are_not_finite() {
    let mut x = uniform(100, 1);
    x[3 * 41 + 2] = f64::NAN;
    match Fmm::new(Laplace).plan(&x, Targets::Sources).unwrap_err() {
        Error::NotFinite { array: "sources", row: 41, column: 2, value } => assert!(value.is_nan()),
        e => panic!("{e}"),
    }
    let good = uniform(100, 1);
    let e = Fmm::new(Laplace).plan(&good, &[0.0, f64::INFINITY, 0.0]).unwrap_err();
    assert_eq!(e, Error::NotFinite { array: "targets", row: 0, column: 1, value: f64::INFINITY });
    assert_eq!(e.to_string(), "targets[0, 1] is inf: every entry must be finite");
    let plan = Fmm::new(Stokes { mu: 1.0 }).plan(&good, Targets::Sources).unwrap();
    let mut q = strengths(300, 1);
    q[7] = f64::NEG_INFINITY;
    let e = plan.apply(&q).unwrap_err();
    assert_eq!(e, Error::NotFinite { array: "strengths", row: 2, column: 1, value: f64::NEG_INFINITY });
}

/// Lengths whose cubes leave the range of f64. `odd_input` has lengths that work.
#[test]
fn extents_out_of_range() {
    let unit = uniform(50, 1);
    for (scale, method) in [(1e101, Method::Direct), (1e-101, Method::EquivalentDensities)] {
        let x: Vec<f64> = unit.iter().map(|x| x * scale).collect();
        let e = Fmm::new(Laplace).method(method).plan(&x, Targets::Sources).unwrap_err();
        assert!(matches!(e, Error::Extent { extent, low: 1e-100, high: 1e100 } if extent > 0.5 * scale), "{e}");
        let mut plan = Fmm::new(Laplace).method(method).plan(&unit, Targets::Sources).unwrap();
        assert!(matches!(plan.set_points(&x, Targets::Sources), Err(Error::Extent { .. })));
        assert!(plan.apply(&strengths(50, 1)).is_ok(), "the plan is as before");
    }
    let e = Fmm::new(Laplace).plan(&unit, &[1e150, 0.0, 0.0]).unwrap_err();
    assert!(matches!(e, Error::Extent { extent, .. } if extent >= 1e150), "{e}");
}

#[test]
fn shapes() {
    let x = uniform(100, 1);
    let e = Fmm::new(Laplace).plan(&x[..7], Targets::Sources).unwrap_err();
    assert!(matches!(e, Error::Shape { array: "sources", found: 7, .. }), "{e}");
    let e = Fmm::new(Laplace).plan(&x, &[1.0, 2.0]).unwrap_err();
    assert!(matches!(e, Error::Shape { array: "targets", found: 2, .. }), "{e}");
    for method in [Method::Direct, Method::EquivalentDensities] {
        let plan = Fmm::new(Laplace).method(method).plan(&x, Targets::Sources).unwrap();
        for n in [0, 99, 101, 300] {
            let e = plan.apply(&vec![1.0; n]).unwrap_err();
            assert!(matches!(e, Error::Shape { array: "strengths", expected: 100, .. }), "{e}");
        }
        assert!(matches!(plan.verify(&[1.0], 10), Err(Error::Shape { .. })));
        assert!(matches!(
            plan.verify_output(&[1.0; 100], &fmm::Output::default(), 10),
            Err(Error::Shape { array: "output", .. })
        ));
    }
}

#[test]
fn indices_of_targets() {
    let e = Fmm::new(Laplace).plan(&uniform(100, 1), Targets::Subset(&[5, 100])).unwrap_err();
    assert!(matches!(e, Error::TooMany { found: 100, limit: 99, .. }), "{e}");
    assert!(Fmm::new(Laplace).plan(&[], Targets::Subset(&[0])).is_err());
}

#[test]
fn tolerances_and_orders() {
    for tolerance in [0.0, -1e-3, f64::NAN, f64::INFINITY] {
        for method in [Method::Auto, Method::Direct, Method::EquivalentDensities] {
            let e = refused(Fmm::new(Laplace).tolerance(tolerance).method(method));
            assert!(matches!(e, Error::Tolerance { .. }), "{e}");
        }
    }
    let e = refused(Fmm::new(Laplace).tolerance(1e-3).order(6));
    assert_eq!(e, Error::ToleranceAndOrder { tolerance: 1e-3, order: 6 });
    for order in [0, 2, 17, usize::MAX] {
        assert!(matches!(refused(Fmm::new(Laplace).order(order)), Error::Order { min: 3, max: 16, .. }));
    }
    let x = uniform(600, 1);
    let dense = || Fmm::new(Laplace).method(Method::EquivalentDensities).ncrit(30);
    for (builder, at) in [
        (dense().outputs(both()).tolerance(1e-15), "gradient"),
        (dense().precision(Precision::F32).tolerance(1e-9), "potential"),
        (Fmm::new(Laplace).precision(Precision::F32).tolerance(1e-9), "potential"),
    ] {
        match builder.plan(&x, Targets::Sources).expect_err("must be refused") {
            Error::ToleranceFloor { floor, tolerance, output, .. } => assert!(floor > tolerance && output == at),
            e => panic!("{e}"),
        }
    }
    // Direct summation in f64 has no floor.
    let exact = Fmm::new(Laplace).tolerance(1e-16).plan(&x, Targets::Sources).unwrap().describe();
    assert!(exact.method == "direct", "{}", exact.why);
    // Without a tolerance, a plan in f32 promises the error that it reaches.
    assert!(Fmm::new(Laplace).precision(Precision::F32).plan(&uniform(10, 1), Targets::Sources).is_ok());
}

#[test]
fn parameters() {
    for e in [
        refused(Fmm::new(Yukawa { kappa: -1.0 })),
        refused(Fmm::new(Yukawa { kappa: f64::NAN })),
        refused(Fmm::new(Stokes { mu: 0.0 })),
        refused(Fmm::new(Gravity { g: 1.0, softening: -0.1 })),
        refused(Fmm::new(Laplace).ncrit(0)),
        refused(Fmm::new(Laplace).threads(0)),
        refused(Fmm::new(Laplace).threads(usize::MAX)),
    ] {
        assert!(matches!(e, Error::Parameter { .. }), "{e}");
    }
    let outside = fast(Laplace).root_cube([0.0; 3], 0.5).plan(&uniform(100, 1), Targets::Sources);
    assert!(outside.is_err());
}

#[test]
fn outputs() {
    assert_eq!(refused(Fmm::new(Laplace).outputs(Outputs::empty())), Error::NoOutput);
    let e = refused(Fmm::new(Laplace).outputs(Outputs::POTENTIAL | Outputs::PRESSURE));
    assert!(matches!(&e, Error::UnsupportedOutput { output, .. } if output == "pressure"), "{e}");
    assert!(e.to_string().contains("potential, gradient, hessian"), "{e}");
}

#[test]
fn memory() {
    // A forecast from counts alone. Any machine that runs this test refuses 4 billion points.
    let needed = Fmm::new(Laplace).memory(4_000_000_000, 4_000_000_000).unwrap();
    assert!(needed > 100_000_000_000);
    assert!(fmm::available_memory().is_none_or(|a| a > 0));
}

/// 1/r declared as 1/r², with some unused parameters.
#[derive(Clone, Debug)]
struct Wrong(usize);

impl fmm::Kernel for Wrong {
    const NAME: &'static str = "wrong";
    const DERIVATIVES: usize = 0;
    #[inline(always)]
    fn eval<V: fmm::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * (r[0] * r[0] + r[1] * r[1] + r[2] * r[2]).rsqrt();
    }
    fn value_degree(_: usize) -> i32 {
        -2
    }
    fn parameters(&self) -> Vec<f64> {
        vec![1.0; self.0]
    }
}

#[test]
fn a_kernel_that_contradicts_itself_is_refused() {
    let x = crate::uniform(100, 1);
    for method in [Method::Auto, Method::Direct, Method::EquivalentDensities] {
        let plan = |parameters| {
            let kernel = fmm::AnyFamily::new(Wrong(parameters));
            Fmm::new(kernel).method(method).plan(&x, Targets::Sources).unwrap_err()
        };
        let error = plan(0);
        assert!(matches!(&error, Error::Fact { kernel, fact: "value_degree", .. } if &**kernel == "wrong"), "{error}");
        let error = plan(17);
        assert!(matches!(error, Error::TooMany { found: 17, limit: 16, .. }), "{error}");
    }
}
