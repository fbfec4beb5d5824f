//! The number of threads changes no bit.

use crate::{both, strengths, uniform};
use fmm::{AnyFamily, Fmm, Gravity, Laplace, Method, Precision, Stokes, Targets, Yukawa};
use fmm_traits::testkit::clouds::CloudKind;

fn same_bits(family: impl Into<AnyFamily>, x: &[f64], q: &[f64], precision: Precision, method: Method) {
    let builder = Fmm::new(family).outputs(both()).precision(precision).method(method).tolerance(1e-3);
    let [one, three] = [1, 3].map(|threads| {
        let plan = builder.clone().threads(threads).plan(x, Targets::Sources).unwrap();
        assert_eq!(plan.describe().threads, threads);
        plan.apply(q).unwrap()
    });
    assert_eq!(one.potential, three.potential);
    assert_eq!(one.gradient, three.gradient);
}

#[test]
fn for_every_kernel() {
    let (x, q) = (uniform(4000, 1), strengths(12_000, 2));
    for method in [Method::EquivalentDensities, Method::Direct] {
        same_bits(Laplace, &x, &q[..4000], Precision::F64, method);
        same_bits(Laplace, &x, &q[..4000], Precision::F32, method);
        same_bits(Yukawa { kappa: 2.0 }, &x, &q[..4000], Precision::F64, method);
        same_bits(Stokes { mu: 1.0 }, &x[..6000], &q[..6000], Precision::F64, method);
        same_bits(Gravity { g: 1.0, softening: 1e-4 }, &x, &q[..4000], Precision::F64, method);
    }
}

#[test]
fn for_uneven_clouds() {
    for kind in [CloudKind::Ellipsoid, CloudKind::Clustered, CloudKind::TwoClusters, CloudKind::FiftyCopies] {
        let x = kind.points(8000, 3);
        same_bits(Laplace, &x, &strengths(8000, 4), Precision::F64, Method::EquivalentDensities);
    }
}
