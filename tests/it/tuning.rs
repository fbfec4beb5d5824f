//! Tolerance → order.

use fmm::tuning::{Scene, order_for};
use fmm::{Error, Outputs, Precision};

const HERE: Scene = Scene { sources: 10_000, apart: false, ncrit: None, again: true };

#[test]
fn orders_grow_as_the_tolerance_falls() {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    let mut last = 0;
    for k in 2..=10 {
        let p = order_for("laplace", both, 10f64.powi(-k), Precision::F64, HERE).unwrap();
        assert!(
            p >= last && p >= order_for("laplace", Outputs::POTENTIAL, 10f64.powi(-k), Precision::F64, HERE).unwrap()
        );
        last = p;
    }
    assert!(last > fmm::tuning::MIN_ORDER);
}

#[test]
fn targets_apart_and_unknown_kernels_get_a_higher_order() {
    let order =
        |kernel, apart| order_for(kernel, Outputs::POTENTIAL, 1e-6, Precision::F64, Scene { apart, ..HERE }).unwrap();
    assert!(order("laplace", true) > order("laplace", false));
    assert!(order("one of the caller", false) > order("laplace", false));
}

#[test]
fn below_the_floor_the_error_names_it() {
    let low = order_for("laplace", Outputs::GRADIENT, 1e-11, Precision::F64, HERE);
    assert!(matches!(low, Err(Error::ToleranceFloor { output: "gradient", precision: "f64", .. })), "{low:?}");
    let single = order_for("laplace", Outputs::POTENTIAL, 1e-6, Precision::F32, HERE).unwrap_err();
    assert!(single.to_string().contains("f64 reaches it"), "{single}");
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            order_for("laplace", Outputs::POTENTIAL, bad, Precision::F64, HERE),
            Err(Error::Tolerance { .. })
        ));
    }
}
