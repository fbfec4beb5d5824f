//! Arrays of the caller, in f32 and f64, on the host and on an NVIDIA GPU, through the facade.

use crate::{both, difference, strengths, uniform};
use fmm::{
    Cuda, DeviceStream, Error, Fmm, Laplace, Method, Outputs, Plan, Precision, RawArray, Stokes, Targets, Traced,
    cudarc::driver::CudaContext,
};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

#[test]
fn numbers_in_f32_are_those_of_f64_rounded() {
    let points = uniform(2000, 1);
    let q: Vec<f32> = strengths(2000, 1).iter().map(|&q| q as f32).collect();
    for method in [Method::EquivalentDensities, Method::SphericalHarmonics, Method::Direct] {
        let plan =
            Fmm::new(Laplace).method(method).outputs(both()).tolerance(1e-4).plan(&points, Targets::Sources).unwrap();
        let (single, double) = (plan.apply(&q).unwrap(), plan.apply(&wide(&q)).unwrap());
        let rounded = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
        assert_eq!(single.potential, rounded(&double.potential));
        assert_eq!(single.gradient, rounded(&double.gradient));
        assert!(single.hessian.is_empty());
    }
    // The potential alone, into reused arrays, with an error in between.
    let plan = Fmm::new(Laplace).plan(&points, Targets::Sources).unwrap();
    let mut out = plan.apply(&q).unwrap();
    let first = out.potential.clone();
    let mut bad = q.clone();
    bad[17] = f32::NAN;
    let failed = plan.apply_into(&bad, &mut out).unwrap_err();
    assert!(matches!(failed, Error::NotFinite { array: "strengths", row: 17, column: 0, .. }), "{failed}");
    assert_eq!(out.potential, first);
    // A sum beyond the range of f32.
    let huge = vec![1e38f32; 2000];
    let failed = plan.apply_into(&huge, &mut out).unwrap_err();
    assert!(matches!(failed, Error::NotFinite { array: "potential", .. }), "{failed}");
    assert_eq!(out.potential, first);
    assert!(plan.apply(&wide(&huge)).is_ok());
}

#[test]
fn a_cpu_takes_no_arrays_of_a_device() {
    let plan = Fmm::new(Laplace).plan(&uniform(100, 1), Targets::Sources).unwrap();
    assert!(matches!(plan.device_output::<f64>(), Err(Error::Unsupported { .. })));
    plan.synchronize().unwrap();
}

/// The sums of a plan on arrays of the device, in f64.
fn sums(plan: &Plan, q: &[f64]) -> Result<fmm::Output, Error> {
    let (given, out) = (Cuda::default().array(q)?, plan.device_output::<f64>()?);
    plan.apply_on_device(&given, &out, &DeviceStream::Null)?;
    plan.synchronize()?;
    out.download()
}

#[test]
#[ignore = "needs a GPU"]
fn plans_on_a_gpu_take_arrays_where_they_are() {
    let cuda = Cuda::default();
    let n = 20_000;
    let (s, t, q) = (CloudKind::Plummer.points(n, 3), uniform(3000, 4), normal_strengths(n, 5));
    let [s_there, t_there] = [&s, &t].map(|x| cuda.array(x).unwrap());
    let null = DeviceStream::Null;
    let few = uniform(300, 9);
    let few_there = cuda.array(&few).unwrap();
    let methods =
        [Method::Auto, Method::Direct, Method::EquivalentDensities, Method::SphericalHarmonics, Method::Treecode];
    for (method, precision) in methods.into_iter().flat_map(|m| [(m, Precision::F64), (m, Precision::F32)]) {
        let fmm = Fmm::new(Laplace).backend(cuda).method(method).outputs(both()).precision(precision).tolerance(1e-3);
        // Sources as targets.
        let (mut here, mut there) =
            (fmm.plan(&s, Targets::Sources).unwrap(), fmm.plan_on_device(&s_there, None, &null).unwrap());
        let (u, v) = (here.apply(&q).unwrap(), sums(&there, &q).unwrap());
        assert_eq!((&u.potential, &u.gradient), (&v.potential, &v.gradient), "{method:?} {precision:?}");
        // Several times, so that recorded evaluations run too.
        for _ in 0..3 {
            assert_eq!(sums(&there, &q).unwrap().gradient, u.gradient, "{method:?} {precision:?}");
        }
        assert!(there.verify(&q, 300).unwrap().worst() <= 1e-3);
        // Points that move, and back.
        let moved: Vec<f64> = s.iter().map(|x| 0.5 * x + 0.1).collect();
        here.set_points(&moved, Targets::Sources).unwrap();
        there.set_points_on_device(&cuda.array(&moved).unwrap(), None, &null).unwrap();
        assert_eq!(sums(&there, &q).unwrap().potential, here.apply(&q).unwrap().potential);
        // Separate targets.
        let (here, there) = (fmm.plan(&s, &t).unwrap(), fmm.plan_on_device(&s_there, Some(&t_there), &null).unwrap());
        let (u, v) = (here.apply(&q).unwrap(), sums(&there, &q).unwrap());
        assert_eq!((u.potential, u.gradient), (v.potential, v.gradient), "{method:?} {precision:?}");
        // A mix is an error.
        let failed = there.apply(&q).unwrap_err();
        assert!(failed.to_string().contains("apply_on_device"), "{failed}");
        assert!(there.apply_batch(&[&q]).is_err() && there.apply_transpose(&vec![0.0; 3000]).is_err());
        let out = there.device_output::<f32>().unwrap();
        let failed = here.apply_on_device(&cuda.array(&q).unwrap(), &out, &null).unwrap_err();
        assert!(failed.to_string().contains("on the host"), "{failed}");
        // A few points.
        let there = fmm.plan_on_device(&few_there, None, &null).unwrap();
        let here = fmm.plan(&few, Targets::Sources).unwrap();
        assert_eq!(sums(&there, &q[..300]).unwrap().potential, here.apply(&q[..300]).unwrap().potential);
    }
    // None at all.
    let none = cuda.array::<f64>(&[]).unwrap();
    let fmm = Fmm::new(Laplace).backend(cuda);
    assert!(sums(&fmm.plan_on_device(&none, None, &null).unwrap(), &[]).unwrap().potential.is_empty());
    // No sources, and targets: zeros overwrite what was there.
    let plan = fmm.plan_on_device(&none, Some(&t_there), &null).unwrap();
    let out = fmm::DeviceOutput { potential: Some(cuda.array(&vec![7.0f32; 3000]).unwrap()), ..Default::default() };
    plan.apply_on_device(&none, &out, &null).unwrap();
    assert_eq!(out.download::<f32>().unwrap().potential, vec![0.0; 3000]);
    // A plan with a folder of its own, arrays without: results need no wait.
    let folder = tempfile::tempdir().unwrap();
    let plan = fmm.clone().operator_cache(folder.path()).plan_on_device(&s_there, None, &null).unwrap();
    let out = fmm::DeviceOutput { potential: Some(cuda.zeros::<f64>(n).unwrap()), ..Default::default() };
    plan.apply_on_device(&cuda.array(&q).unwrap(), &out, &null).unwrap();
    let expected = sums(&plan, &q).unwrap().potential;
    plan.apply_on_device(&cuda.array(&q).unwrap(), &out, &null).unwrap();
    assert_eq!(out.download::<f64>().unwrap().potential, expected);
    // After an error, arrays of any length are as before.
    let here = fmm.plan(&s, Targets::Sources).unwrap();
    let mut out = Fmm::new(Laplace).outputs(both()).plan(&few, Targets::Sources).unwrap().apply(&q[..300]).unwrap();
    let (potential, gradient) = (out.potential.clone(), out.gradient.clone());
    let mut bad_q = q.clone();
    bad_q[5] = f64::NAN;
    assert!(here.apply_into(&bad_q, &mut out).is_err());
    assert_eq!((&out.potential, &out.gradient), (&potential, &gradient));
    here.apply_into(&q, &mut out).unwrap();
    assert!(out.potential.len() == n && out.gradient.is_empty());
    // Several threads, each with a plan and a stream.
    let context = CudaContext::new(0).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (context, fmm) = (&context, &fmm);
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let order = DeviceStream::Shared(stream.clone());
                let points = CloudKind::Uniform.points(5000, seed);
                let (q, out) = (normal_strengths(5000, seed), cuda.zeros::<f64>(5000).unwrap());
                let expected = fmm.plan(&points, Targets::Sources).unwrap().apply(&q).unwrap().potential;
                let plan = fmm.plan_on_device(&cuda.array(&points).unwrap(), None, &order).unwrap();
                let out = fmm::DeviceOutput { potential: Some(out), ..Default::default() };
                for _ in 0..20 {
                    plan.apply_on_device(&cuda.array(&q).unwrap(), &out, &order).unwrap();
                }
                assert_eq!(out.download::<f64>().unwrap().potential, expected);
            });
        }
    });
    // On a CPU.
    let failed = Fmm::new(Laplace).plan_on_device(&s_there, None, &null).err().unwrap();
    assert!(matches!(failed, Error::Unsupported { operation: "arrays on a device", .. }));
    // A bad point.
    let mut bad = s.clone();
    bad[3 * 70 + 2] = f64::NAN;
    let failed = fmm.plan_on_device(&cuda.array(&bad).unwrap(), None, &null).err().unwrap();
    assert!(matches!(failed, Error::NotFinite { array: "sources", row: 70, column: 2, .. }), "{failed}");
    let failed = fmm.plan(&bad, Targets::Sources).err().unwrap();
    assert!(matches!(failed, Error::NotFinite { array: "sources", row: 70, column: 2, .. }), "{failed}");
    let failed = fmm.plan(&s, &bad).err().unwrap();
    assert!(matches!(failed, Error::NotFinite { array: "targets", row: 70, column: 2, .. }), "{failed}");
}

#[test]
#[ignore = "needs a GPU"]
fn arrays_on_a_gpu_of_vectors_and_of_other_owners() {
    let cuda = Cuda::default();
    let n = 5000;
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let order = DeviceStream::Shared(stream.clone());
    let single: Vec<f32> = uniform(n, 1).iter().map(|&x| x as f32).collect();
    let points = cuda.take(stream.clone_htod(&single).unwrap()).unwrap();
    let fmm = Fmm::new(Stokes { mu: 1.0 }).backend(cuda).outputs(both()).precision(Precision::F32).tolerance(1e-3);
    let plan = fmm.plan_on_device(&points, None, &order).unwrap();
    let here = fmm.plan(&wide(&single), Targets::Sources).unwrap();
    let q: Vec<f32> = normal_strengths(3 * n, 2).iter().map(|&q| q as f32).collect();
    let expected = here.apply(&q).unwrap();
    let out = plan.device_output::<f32>().unwrap();
    let strengths = stream.clone_htod(&q).unwrap();
    let raw = RawArray {
        address: fmm::cudarc::driver::DevicePtr::device_ptr(&strengths, &stream).0,
        shape: &[n, 3],
        strides: None,
        precision: Precision::F32,
    };
    // SAFETY: the slice outlives the work, which `synchronize` waits for.
    let borrowed = unsafe { cuda.borrow(raw) }.unwrap();
    plan.apply_on_device(&borrowed, &out, &order).unwrap();
    plan.synchronize().unwrap();
    let found = out.download::<f32>().unwrap();
    assert_eq!((&found.potential, &found.gradient), (&expected.potential, &expected.gradient));
    // An output without an array, and one of a wrong length.
    let none = fmm::DeviceOutput { potential: out.potential.clone(), ..Default::default() };
    assert!(matches!(plan.apply_on_device(&borrowed, &none, &order), Err(Error::Array { array: "gradient", .. })));
    let swapped = fmm::DeviceOutput { potential: out.gradient.clone(), gradient: out.potential, ..Default::default() };
    assert!(matches!(plan.apply_on_device(&borrowed, &swapped, &order), Err(Error::Shape { array: "potential", .. })));
    // Attributes of sources are on the host.
    let kernel = Traced::expression("q/sqrt(r*r + e*e)").unwrap().attribute("e").unwrap();
    let fmm = Fmm::new(kernel).backend(cuda).attribute("e", &vec![0.1; n]).tolerance(1e-3);
    let refused = fmm.plan_on_device(&points, None, &order).err().unwrap();
    assert!(refused.to_string().contains("attributes"), "{refused}");
}

/// Many evaluations with moving points keep their memory and their bits.
#[test]
#[ignore = "needs a GPU"]
fn a_soak_of_ten_thousand_evaluations_on_a_gpu() {
    let cuda = Cuda::default();
    let n = 30_000;
    let clouds: Vec<_> = (0..4).map(|i| cuda.array(&CloudKind::Plummer.points(n, i)).unwrap()).collect();
    let q = cuda.array(&normal_strengths(n, 7)).unwrap();
    let fmm = Fmm::new(Laplace).backend(cuda).precision(Precision::F32).outputs(Outputs::GRADIENT).order(5);
    let mut plan = fmm.plan_on_device(&clouds[0], None, &DeviceStream::Null).unwrap();
    let mut seen: Vec<Option<Vec<f32>>> = vec![None; clouds.len()];
    let mut held = None;
    for k in 0..1000 {
        plan.set_points_on_device(&clouds[k % 4], None, &DeviceStream::Null).unwrap();
        let out = plan.device_output::<f32>().unwrap();
        for _ in 0..10 {
            plan.apply_on_device(&q, &out, &DeviceStream::Null).unwrap();
        }
        plan.synchronize().unwrap();
        if k % 50 < 4 {
            let found = out.download::<f32>().unwrap().gradient;
            let known = seen[k % 4].get_or_insert_with(|| found.clone());
            assert_eq!(*known, found, "evaluation {k}");
        }
        // The same cloud as that of the last evaluation.
        if k == 103 {
            held = Some(plan.memory());
        }
    }
    assert_eq!(held, Some(plan.memory()));
    assert!(difference(&wide(seen[0].as_ref().unwrap()), &wide(seen[1].as_ref().unwrap())) > 0.0);
}
