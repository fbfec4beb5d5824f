//! The facade on an NVIDIA GPU. Tests that need a GPU are ignored: `cargo test --release -p fmm-cli --test it -- --ignored gpu`.

use crate::tolerance::holds_on;
use crate::{Own, both, cli, difference, fast, strengths, uniform};
use fmm::ranks::{Strategy, World, threads};
use fmm::{
    Cuda, DeviceStream, Error, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, Method, Outputs, Precision, Stokes,
    StokesPressure, Stresslet, Targets, Translation, Yukawa, catalog,
};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};

#[test]
fn without_a_gpu_it_is_one_line() {
    let run = cli::fmm(&["run", "--n", "3000", "--backend", "cuda"]);
    match Cuda::default().info() {
        Ok(_) => assert!(run.status.success()),
        Err(Error::NoDevice { reason }) => {
            assert!(!run.status.success() && run.stdout.is_empty());
            assert_eq!(cli::last_line(&run), format!("error: no CUDA device: {reason}"));
            let plan = Fmm::new(Laplace).backend(Cuda::default()).plan(&uniform(10, 1), Targets::Sources);
            assert!(matches!(plan, Err(Error::NoDevice { .. })));
        }
        Err(e) => panic!("{e}"),
    }
    let missing =
        Fmm::new(Laplace).backend(Cuda { device: 999, ..Cuda::default() }).plan(&uniform(10, 1), Targets::Sources);
    assert!(matches!(missing, Err(Error::NoDevice { .. })));
    for (devices, value) in [(&[][..], 0.0), (&[0, 3, 3], 3.0)] {
        let request = Fmm::new(Laplace).backend(Cuda::devices(devices.iter().copied()));
        match request.plan(&uniform(10, 1), Targets::Sources).map(drop) {
            Err(Error::Parameter { name: "devices", value: found, .. }) => assert_eq!(found, value),
            other => panic!("{devices:?}: {other:?}"),
        }
    }
    let missing = Fmm::new(Laplace).backend(Cuda::devices([998, 999]));
    assert!(matches!(missing.open(), Err(Error::NoDevice { .. })));
    let missing = missing.plan(&uniform(10, 1), Targets::Sources);
    assert!(matches!(missing, Err(Error::NoDevice { .. })));
    assert!(Fmm::new(Laplace).backend(Cuda::default()).memory(1 << 20, 1 << 20).unwrap() > 1 << 27);
}

#[test]
#[ignore = "needs a GPU"]
fn the_tolerance_is_kept_on_all_clouds() {
    let (gpu, all) = (Cuda::default(), &CloudKind::ALL);
    holds_on(gpu, Laplace, both(), &[1e-2, 1e-4, 1e-7, 1e-10], Precision::F64, all);
    holds_on(gpu, Laplace, Outputs::POTENTIAL, &[1e-3, 1e-12], Precision::F64, all);
    holds_on(gpu, Laplace, both(), &[1e-2, 1e-3, 1e-4], Precision::F32, all);
    holds_on(gpu, Laplace, Outputs::POTENTIAL, &[1e-3, 1e-5], Precision::F32, all);
    holds_on(gpu, Gravity { g: 1.0, softening: 1e-4 }, both(), &[1e-3, 1e-6], Precision::F64, all);
    holds_on(gpu, Gravity { g: 1.0, softening: 0.0 }, both(), &[1e-3], Precision::F32, all);
}

/// A plan within a limit of memory has the bits of a plan without, or says what is missing.
#[test]
#[ignore = "needs a GPU, alone: the limit counts the arrays of all tests"]
fn a_limit_of_memory_changes_no_bit() {
    let n = 20_000;
    let (x, q) = (uniform(n, 1), strengths(n, 2));
    let request = || {
        let request = Fmm::new(Laplace).outputs(both()).precision(Precision::F32).order(4).ncrit(100);
        request.method(Method::SphericalHarmonics)
    };
    let whole = request().backend(Cuda::default()).plan(&x, Targets::Sources).unwrap();
    assert_eq!(whole.describe().pieces, 1);
    let expected = whole.apply(&q).unwrap();
    let held = whole.memory();
    let forecast = request().backend(Cuda::default()).memory(n, n).unwrap();
    assert!(held <= forecast && forecast <= 2 * held, "{held} held, {forecast} forecast");
    let (mut pieces, mut refused) = (vec![], 0);
    // The limit counts all arrays of the process, those of `whole` too. A fourth of the sums less at each step.
    let (sums, given) = (32 * n as u64, 40 * n as u64);
    for k in 0..100 {
        if refused == 3 {
            break;
        }
        let memory = Some((2 * (held + given + sums)).saturating_sub(k * sums / 4));
        let plan = request().backend(Cuda { memory, ..Cuda::default() }).plan(&x, Targets::Sources);
        // If little is left, sums and arrays of the caller do not both fit.
        match plan.and_then(|plan| Ok((plan.apply(&q)?, plan.describe().pieces))) {
            Ok((out, count)) => {
                assert!((&out.potential, &out.gradient) == (&expected.potential, &expected.gradient), "{memory:?}");
                pieces.push(count);
            }
            Err(Error::Memory { needed, available, .. }) => {
                assert!(needed > available);
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(
        pieces.first() == Some(&1) && pieces.iter().any(|&p| p > 1) && refused > 0,
        "{pieces:?}, {refused} refused"
    );
}

#[test]
#[ignore = "needs a GPU"]
fn rows_move_to_the_owners_of_sources() {
    let (x, q) = (CloudKind::Ellipsoid.points(1500, 5), strengths(1500, 6));
    let request = Fmm::new(Laplace).method(Method::EquivalentDensities).order(3).ncrit(20).backend(Cuda::default());
    let one = request.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    crate::ranks::rows_move_to_owners(&request, &x, &q, &one.potential, &[1, 0, 3]);
}

/// The same on arrays of the device. In the second cloud so many points share a place that their keys do not tell the boxes.
#[test]
#[ignore = "needs a GPU"]
fn rows_on_devices_move_to_the_owners_of_sources() {
    let (n, q) = (1500, strengths(1500, 6));
    let mut crowded = CloudKind::Ellipsoid.points(n, 5);
    let place = [crowded[0], crowded[1], crowded[2]];
    crowded[..3 * 50].as_chunks_mut::<3>().0.iter_mut().for_each(|point| *point = place);
    for x in [CloudKind::Ellipsoid.points(n, 5), crowded] {
        let request = Fmm::new(Laplace).method(Method::EquivalentDensities).order(3).ncrit(20).backend(Cuda::default());
        let one = request.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        let numbers: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let parts = threads(3, |world: World| {
            let mine = n * world.rank() / 3..n * (world.rank() + 1) / 3;
            let array = |x: &[f64], width: usize| Cuda::default().array(&x[width * mine.start..width * mine.end]);
            let (null, request) = (DeviceStream::Null, request.clone().ranks(&world));
            let plan = request.plan_on_device(&array(&x, 3)?, None, &null)?;
            let moved = |x: &[f64], width: usize| plan.adopt_on_device(&array(x, width)?, width, &null);
            let (points, strengths, numbers) = (moved(&x, 3)?, moved(&q, 1)?, moved(&numbers, 1)?);
            let narrow: Vec<f32> = q[mine.clone()].iter().map(|&q| q as f32).collect();
            let narrow = plan.adopt_on_device(&Cuda::default().array(&narrow)?, 1, &null)?.download::<f32>()?;
            assert!(narrow.iter().zip(strengths.download::<f64>()?).all(|(narrow, q)| *narrow == q as f32));
            let e = plan.adopt_on_device(&array(&q, 1)?, 2, &null).unwrap_err();
            assert!(
                matches!(&e, Error::Rank { rank: 0, error } if matches!(**error, Error::Shape { array: "rows", .. }))
            );
            let plan = request.plan_on_device(&points, None, &null)?;
            let out = plan.device_output::<f64>()?;
            plan.apply_on_device(&strengths, &out, &null)?;
            let owned = plan.describe().ranks.map(|ranks| ranks.owned_sources);
            Ok::<_, Error>((owned, numbers.download::<f64>()?, out.download::<f64>()?.potential))
        });
        let mut rows = 0;
        for part in parts {
            let (owned, numbers, potential) = part.unwrap().unwrap();
            assert_eq!(owned, Some(numbers.len()));
            rows += numbers.len();
            assert!(numbers.iter().zip(potential).all(|(&row, value)| value == one.potential[row as usize]));
        }
        assert_eq!(rows, n);
    }
}

/// Ranks that share a device, and several devices of this machine if there are some, sum as one device.
#[test]
#[ignore = "needs a GPU"]
fn ranks_and_devices_sum_as_one_device() {
    let (n, kind) = (1200, CloudKind::Ellipsoid);
    let (x, y, q) = (kind.points(n, 1), uniform(300, 2), strengths(n, 3));
    let request =
        |order: usize| Fmm::new(Laplace).outputs(both()).method(Method::EquivalentDensities).order(order).ncrit(20);
    let narrow: Vec<f32> = q.iter().map(|&q| q as f32).collect();
    let alone = request(3).backend(Cuda::default()).plan(&x, Targets::Sources).unwrap();
    let (one, in_single) = (alone.apply(&q).unwrap(), alone.apply(&narrow).unwrap());
    let boxes = alone.describe().boxes;
    drop(alone);
    let pieces = threads(2, |world: World| {
        let mine = n * world.rank() / 2..n * (world.rank() + 1) / 2;
        let plan = request(3).backend(Cuda::default()).ranks(&world);
        let plan = plan.plan(&x[3 * mine.start..3 * mine.end], Targets::Sources)?;
        assert_eq!((plan.describe().ranks.and_then(|r| r.device), plan.describe().boxes), (Some(0), boxes));
        let out = plan.apply(&q[mine.clone()])?;
        Ok::<_, Error>((plan.verify_output(&q[mine], &out, 50)?.worst(), out))
    });
    let pieces: Vec<_> = pieces.into_iter().map(|piece| piece.unwrap().unwrap()).collect();
    let potential: Vec<f64> = pieces.iter().flat_map(|(_, out)| out.potential.clone()).collect();
    assert_eq!(potential, one.potential);
    assert!(pieces[0].0 == pieces[1].0 && pieces[0].0 < 1e-2);
    // The same on arrays of the device. A bad strength is an error of its rank for all.
    let moved = kind.points(n, 9);
    let there = request(3).backend(Cuda::default()).plan(&moved, Targets::Sources).unwrap().apply(&q).unwrap();
    let on_arrays = threads(2, |world: World| {
        let mine = n * world.rank() / 2..n * (world.rank() + 1) / 2;
        let array = |x: &[f64], width: usize| Cuda::default().array(&x[width * mine.start..width * mine.end]);
        let null = DeviceStream::Null;
        let mut plan = request(3).backend(Cuda::default()).ranks(&world).plan_on_device(&array(&x, 3)?, None, &null)?;
        let (strengths, out) = (array(&q, 1)?, plan.device_output::<f64>()?);
        plan.apply_on_device(&strengths, &out, &null)?;
        let first = out.download::<f64>()?.potential;
        let mut bad = q.clone();
        bad[n - 1] = f64::NAN;
        let e = plan.apply_on_device(&array(&bad, 1)?, &out, &null).unwrap_err();
        let of_strengths =
            |e: &Error| matches!(e, Error::NotFinite { array: "strengths", row, .. } if *row == n / 2 - 1);
        assert!(matches!(&e, Error::Rank { rank: 1, error } if of_strengths(error)), "{e}");
        plan.set_points_on_device(&array(&moved, 3)?, None, &null)?;
        plan.apply_on_device(&strengths, &out, &null)?;
        let moved = out.download::<f64>()?.gradient;
        // The arrays of the ranks have different types.
        plan.set_points_on_device(&array(&x, 3)?, None, &null)?;
        let (strengths, single) = (Cuda::default().array(&narrow[mine.clone()])?, plan.device_output::<f32>()?);
        plan.apply_on_device(&strengths, if world.rank() == 0 { &single } else { &out }, &null)?;
        let mixed = match world.rank() {
            0 => single.download::<f32>()?.gradient,
            _ => out.download::<f64>()?.gradient.iter().map(|&g| g as f32).collect(),
        };
        Ok::<_, Error>((first, moved, mixed))
    });
    let on_arrays: Vec<_> = on_arrays.into_iter().map(|piece| piece.unwrap().unwrap()).collect();
    assert_eq!(on_arrays.iter().flat_map(|(u, ..)| u.clone()).collect::<Vec<f64>>(), one.potential);
    assert_eq!(on_arrays.iter().flat_map(|(_, g, _)| g.clone()).collect::<Vec<f64>>(), there.gradient);
    assert_eq!(on_arrays.iter().flat_map(|(.., g)| g.clone()).collect::<Vec<f32>>(), in_single.gradient);
    // Direct sums of the sample are those of cores, so the bounds agree to rounding.
    let measured = |plan: &fmm::Plan| {
        let described = plan.describe();
        (described.method, described.order, described.probe.map(|probe| (probe.orders, probe.outputs[0].error)))
    };
    let wanted = |request: Fmm| request.tolerance(1e-3).method(Method::EquivalentDensities).backend(Cuda::default());
    let alone = measured(&wanted(Fmm::new(Laplace)).plan(&x, Targets::Sources).unwrap());
    for found in threads(2, |world: World| {
        let mine = &x[3 * (n * world.rank() / 2)..3 * (n * (world.rank() + 1) / 2)];
        wanted(Fmm::new(Laplace)).ranks(&world).plan(mine, Targets::Sources).map(|plan| measured(&plan))
    }) {
        let found = found.unwrap().unwrap();
        assert_eq!((found.0, found.1), (alone.0, alone.1));
        let (Some((orders, error)), Some((of_one, expected))) = (found.2, &alone.2) else { panic!("no probe") };
        assert!(orders == *of_one && (error / expected - 1.0).abs() < 1e-6, "{error:e}, {expected:e}");
    }

    let devices: Vec<usize> = (0..4).take_while(|&device| Cuda { device, ..Cuda::default() }.info().is_ok()).collect();
    let picks: Vec<usize> = (0..n).rev().step_by(7).collect();
    for count in 1..=devices.len() {
        let on = |request: Fmm| request.backend(Cuda::devices(devices[..count].iter().copied()));
        on(request(3)).open_for(n, n).unwrap();
        let mut plan = on(request(3)).plan(&x, Targets::Sources).unwrap();
        let out = plan.apply(&q).unwrap();
        assert_eq!((&out.potential, &out.gradient), (&one.potential, &one.gradient), "{count} devices");
        assert!(plan.verify_output(&q, &out, 50).unwrap().worst() < 1e-2);
        let parts = plan.describe().devices;
        let named: Vec<_> = parts.iter().filter_map(|part| part.device).collect();
        assert_eq!(named, if count == 1 { &[] } else { &devices[..count] });
        assert_eq!(parts.iter().map(|part| part.owned_sources).sum::<usize>(), if count == 1 { 0 } else { n });
        // The first device decides for all, and measures the same numbers as alone.
        for request in [wanted(Fmm::new(Laplace)), wanted(Fmm::new(Laplace)).method(Method::Auto)] {
            let expected = request.plan(&x, Targets::Sources).unwrap();
            let found = on(request).plan(&x, Targets::Sources).unwrap();
            assert_eq!(measured(&found), measured(&expected), "{count} devices");
            assert_eq!(found.describe().why, expected.describe().why, "{count} devices");
            let (found, expected) = (found.apply(&q).unwrap(), expected.apply(&q).unwrap());
            assert!(difference(&found.potential, &expected.potential) < 1e-12, "{count} devices");
        }
        for (targets, name) in [(Targets::Points(&y), "points"), (Targets::Subset(&picks), "a subset")] {
            for request in [request(3), request(3).method(Method::Direct)] {
                let expected = request.clone().backend(Cuda::default()).plan(&x, targets).unwrap().apply(&q).unwrap();
                let found = on(request).plan(&x, targets).unwrap().apply(&q).unwrap();
                assert!(difference(&found.gradient, &expected.gradient) < 1e-12, "{name} on {count} devices");
            }
        }
        // Points that move keep the plan. Points that are no numbers are named by the caller's row.
        let moved = kind.points(n, 9);
        let expected = request(3).backend(Cuda::default()).plan(&moved, Targets::Sources).unwrap().apply(&q).unwrap();
        plan.set_points(&moved, Targets::Sources).unwrap();
        assert_eq!(plan.apply(&q).unwrap().gradient, expected.gradient, "moved on {count} devices");
        let mut lost = x.clone();
        lost[3 * n - 1] = f64::NAN;
        let refused = plan.set_points(&lost, Targets::Sources);
        assert!(matches!(refused, Err(Error::NotFinite { array: "sources", row, column: 2, .. }) if row == n - 1));
        let refused = on(request(3)).plan(&lost, Targets::Sources);
        assert!(matches!(refused, Err(Error::NotFinite { array: "sources", row, column: 2, .. }) if row == n - 1));
        assert_eq!(plan.apply(&q).unwrap().gradient, expected.gradient, "after an error on {count} devices");
        plan.set_points(&x, Targets::Sources).unwrap();
        assert_eq!(plan.apply(&q).unwrap().potential, one.potential, "moved back on {count} devices");
        // A GPU may have no points of the caller.
        let alone = on(request(3)).plan(&x[..3], Targets::Subset(&[0])).unwrap().apply(&q[..1]).unwrap();
        assert_eq!(alone.potential, [0.0], "{count} devices");
        // With a named exchange the host makes the trees of ranks.
        for strategy in [Strategy::Frontier, Strategy::Direct] {
            let other = on(request(3).exchange(strategy)).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
            assert!(difference(&other.gradient, &one.gradient) < 1e-12, "{count} devices");
        }
        // Bad strengths are named by the caller's row, and the plan stays usable.
        let mut bad = q.clone();
        bad[n - 1] = f64::NAN;
        assert!(matches!(plan.apply(&bad), Err(Error::NotFinite { row, .. }) if row == n - 1));
        assert_eq!(plan.apply(&q).unwrap().potential, one.potential);
    }
}

/// The promise for kernels that solve no equation.
#[test]
#[ignore = "needs a GPU"]
fn interpolation_keeps_the_tolerance() {
    let x = CloudKind::Plummer.points(20_000, 1);
    for (name, tolerance) in [("inverse_r2", 1e-6), ("thin_plate", 1e-5), ("multiquadric", 1e-6), ("exponential", 1e-3)]
    {
        let request = Fmm::new(catalog::kernel(name).unwrap()).tolerance(tolerance).backend(Cuda::default());
        let q = normal_strengths(20_000, 3);
        let plan = request.clone().method(Method::Interpolation).plan(&x, Targets::Sources).unwrap();
        let exact = request.method(Method::Direct).plan(&x, Targets::Sources).unwrap();
        let [sums, exact] = [&plan, &exact].map(|plan| plan.apply(&q).unwrap());
        let e = difference(sums.get(Outputs::POTENTIAL), exact.get(Outputs::POTENTIAL));
        assert!(e <= tolerance, "{name}: {e:e}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_tolerance_is_kept_by_all_kernels() {
    let gpu = Cuda::default();
    let some = [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::TwoClusters, CloudKind::Plummer];
    holds_on(gpu, Laplace, both() | Outputs::HESSIAN, &[1e-2, 1e-5], Precision::F64, &some);
    holds_on(gpu, LaplaceDipole, both(), &[1e-3, 1e-6], Precision::F64, &some);
    holds_on(gpu, LaplaceMixed, both(), &[1e-4], Precision::F64, &some);
    holds_on(gpu, Yukawa { kappa: 5.0 }, both(), &[1e-3, 1e-5], Precision::F64, &some);
    holds_on(gpu, Stokes { mu: 2.0 }, both(), &[1e-3, 1e-6], Precision::F64, &some);
    holds_on(gpu, Stokes { mu: 2.0 }, Outputs::POTENTIAL, &[1e-3], Precision::F32, &some);
    let flow = Outputs::POTENTIAL | Outputs::PRESSURE;
    holds_on(gpu, StokesPressure { mu: 0.5 }, flow, &[1e-3], Precision::F64, &some);
    holds_on(gpu, Stresslet { mu: 0.5 }, flow, &[1e-3], Precision::F64, &some);
    holds_on(gpu, fmm::AnyFamily::new(Own), both(), &[1e-3, 1e-6], Precision::F64, &some);
}

/// Prints what a probe costs when the operators and programs are in memory.
#[test]
#[ignore = "needs a GPU"]
fn seconds_of_a_probe() {
    for n in [1 << 17, 1 << 20, 1 << 22] {
        for (method, tolerance) in
            [Method::EquivalentDensities, Method::SphericalHarmonics].into_iter().flat_map(|m| [(m, 1e-3), (m, 1e-6)])
        {
            let builder = Fmm::new(Laplace).method(method).tolerance(tolerance).outputs(both());
            let plan = builder.backend(Cuda::default()).plan(&uniform(n, 1), Targets::Sources).unwrap();
            let first = plan.describe().probe.unwrap();
            for _ in 0..2 {
                let again = plan.probe().unwrap().unwrap();
                println!(
                    "{n} {} {tolerance:e}: orders {:?}, first {:.4} s, again {:.4} s for orders {:?}",
                    method.name(),
                    first.orders,
                    first.seconds,
                    again.seconds,
                    again.orders
                );
                assert_eq!((again.targets, again.sources), (first.targets, first.sources));
            }
        }
    }
}

#[test]
fn what_harmonics_on_a_gpu_cannot_do_is_said() {
    let gpu = || Fmm::new(Laplace).backend(Cuda::default()).method(Method::SphericalHarmonics).order(8);
    let refused = gpu().translation(Translation::Direct).memory(1000, 1000);
    assert!(matches!(&refused, Err(Error::Unsupported { operation: "this translation", .. })), "{refused:?}");
    let memory = |b: Fmm| b.memory(1 << 20, 1 << 20).unwrap();
    assert!(memory(gpu()) > 1 << 27);
    // Rotations need no matrix per offset.
    assert!(memory(gpu().order(7).translation(Translation::Rcr)) < memory(gpu().order(7)));
    let stokes = Fmm::new(Stokes { mu: 1.0 }).backend(Cuda::default()).method(Method::SphericalHarmonics);
    assert!(matches!(stokes.memory(1000, 1000), Err(Error::Unsupported { .. })));
}

#[test]
#[ignore = "needs a GPU"]
fn plans_of_several_threads_do_not_disturb_each_other() {
    let builder = fast(Laplace).tolerance(1e-6).backend(Cuda::default());
    let plans: Vec<_> = [3000, 20_000].map(|n| (n, builder.plan(&uniform(n, 4), Targets::Sources).unwrap())).into();
    let alone: Vec<_> = plans.iter().map(|(n, p)| p.apply(&strengths(*n, 5)).unwrap().potential).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            for ((n, plan), expected) in plans.iter().zip(&alone) {
                scope.spawn(move || {
                    for _ in 0..5 {
                        assert!(plan.apply(&strengths(*n, 5)).unwrap().potential == *expected);
                    }
                });
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn strengths_in_any_unit_fit_single_precision() {
    let builder = fast(Laplace).precision(Precision::F32).backend(Cuda::default());
    let plan = builder.tolerance(1e-4).plan(&uniform(5000, 6), Targets::Sources).unwrap();
    let q = strengths(5000, 7);
    let u = plan.apply(&q).unwrap().potential;
    for unit in [1e-200, 1e200] {
        let scaled: Vec<f64> = q.iter().map(|q| q * unit).collect();
        let v: Vec<f64> = plan.apply(&scaled).unwrap().potential.iter().map(|v| v / unit).collect();
        assert!(difference(&v, &u) < 1e-5);
    }
}
