//! Near fields on an NVIDIA GPU beside far fields on cores. Tests that need a GPU are ignored, as in `gpu.rs`.

use crate::{both, difference, strengths, uniform};
use fmm::ranks::{World, threads};
use fmm::{CostModel, Error, Fmm, Hybrid, Laplace, Laplace2d, Method, Precision, Targets};
use fmm_traits::testkit::clouds::CloudKind;

/// A near field on the GPU beside a far field on cores: the sums of cores alone, for each method, on several ranks too.
#[test]
#[ignore = "needs a GPU"]
fn cores_and_a_gpu_sum_as_cores_alone() {
    let (n, hybrid) = (3000, Hybrid::default());
    let (x, y, q) = (CloudKind::Ellipsoid.points(n, 1), uniform(300, 2), strengths(n, 3));
    for (method, precision, bound) in [
        (Method::EquivalentDensities, Precision::F64, 1e-12),
        (Method::EquivalentDensities, Precision::F32, 1e-5),
        (Method::SphericalHarmonics, Precision::F64, 1e-12),
        (Method::Treecode, Precision::F64, 1e-12),
        (Method::Direct, Precision::F64, 1e-12),
    ] {
        let request = || {
            let request = Fmm::new(Laplace).outputs(both()).method(method).precision(precision).ncrit(40);
            if method == Method::Direct { request } else { request.order(6) }
        };
        for targets in [Targets::Sources, Targets::Points(&y)] {
            let alone = request().plan(&x, targets).unwrap().apply(&q).unwrap();
            let mut plan = request().backend(hybrid).plan(&x, targets).unwrap();
            assert_eq!(plan.describe().backend, "hybrid");
            let error = difference(&plan.apply(&q).unwrap().gradient, &alone.gradient);
            assert!(error <= bound, "{method:?} {precision:?}: {error:e}");
            plan.set_points(&x[..3 * 1000], targets).unwrap();
            let alone = request().plan(&x[..3 * 1000], targets).unwrap().apply(&q[..1000]).unwrap();
            let error = difference(&plan.apply(&q[..1000]).unwrap().gradient, &alone.gradient);
            assert!(error <= bound, "{method:?} {precision:?}, new points: {error:e}");
        }
        let alone = request().plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        let pieces = threads(3, |world: World| {
            let mine = n * world.rank() / 3..n * (world.rank() + 1) / 3;
            let plan = request().backend(hybrid).ranks(&world);
            plan.plan(&x[3 * mine.start..3 * mine.end], Targets::Sources)?.apply(&q[mine])
        });
        let gradient: Vec<f64> = pieces.into_iter().flat_map(|piece| piece.unwrap().unwrap().gradient).collect();
        let error = difference(&gradient, &alone.gradient);
        assert!(error <= bound, "{method:?} {precision:?}, three ranks: {error:e}");
    }
    let wanted = Fmm::new(Laplace).outputs(both()).tolerance(1e-5).backend(hybrid);
    let plan = wanted.plan(&x, Targets::Sources).unwrap();
    assert!(plan.verify(&q, 300).unwrap().worst() <= 1e-5);
    let refused = Fmm::new(Laplace2d).backend(hybrid).plan(&x[..2000], Targets::Sources).map(drop);
    assert!(matches!(refused, Err(Error::Unsupported { operation: "a sum in the plane", .. })), "{refused:?}");
    let measured = CostModel::default().measure(&Fmm::new(Laplace).backend(hybrid));
    assert!(matches!(measured, Err(Error::Unsupported { .. })), "{measured:?}");
}
