//! Identities of the facade.

use crate::{Own, both, difference, direct, fast, strengths, uniform};
use fmm::{
    AnyFamily, Cpu, Cuda, Error, Fmm, Gravity, Hybrid, Isa, Laplace, LaplaceDipole, Method, Outputs, Precision, Stokes,
    StokesPressure, Targets, Yukawa, demo, evaluate,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// On cores there is nothing to open but threads. A list of devices is checked as for a plan.
#[test]
fn a_request_opens_its_devices() {
    assert!(Fmm::new(Laplace).open().is_ok());
    assert!(Fmm::new(Laplace).backend(Hybrid::default()).method(Method::Direct).open().is_ok());
    assert!(Fmm::new(Laplace).open_for(1000, 2000).is_ok());
    let e = Fmm::new(Laplace).threads(0).open().unwrap_err();
    assert!(matches!(e, Error::Parameter { name: "threads", .. }), "{e}");
    let e = Fmm::new(Laplace).tolerance(0.0).open_for(1000, 1000).unwrap_err();
    assert!(matches!(e, Error::Tolerance { .. }), "{e}");
    for devices in [&[][..], &[1, 1]] {
        let e = Fmm::new(Laplace).backend(Cuda::devices(devices.iter().copied())).open().unwrap_err();
        assert!(matches!(e, Error::Parameter { name: "devices", .. }), "{e}");
    }
}

#[test]
fn batch_is_a_loop() {
    let x = uniform(3000, 1);
    let plan = fast(Laplace).outputs(both()).plan(&x, Targets::Sources).unwrap();
    let sets: Vec<Vec<f64>> = (0..3).map(|k| strengths(3000, k)).collect();
    for (batch, set) in plan.apply_batch(&sets).unwrap().iter().zip(&sets) {
        let one = plan.apply(set).unwrap();
        assert_eq!(batch.potential, one.potential);
        assert_eq!(batch.gradient, one.gradient);
    }
    assert!(plan.apply_batch::<&[f64]>(&[]).unwrap().is_empty());
}

/// More sets than one pass takes, potentials alone, and every kind of targets.
#[test]
fn batches_of_every_engine_are_loops() {
    let x = uniform(700, 1);
    let some: Vec<usize> = (0..700).step_by(3).collect();
    let soft = Gravity { g: 1.0, softening: 0.05 };
    let families = [Laplace.into(), LaplaceDipole.into(), Stokes { mu: 1.0 }.into(), AnyFamily::from(soft)];
    for family in families {
        for method in [Method::EquivalentDensities, Method::SphericalHarmonics, Method::Direct] {
            for targets in [Targets::Sources, Targets::Subset(&some), Targets::Points(&x[..300])] {
                let plan = match Fmm::new(family.clone()).method(method).tolerance(1e-3).plan(&x, targets) {
                    Err(Error::Unsupported { .. }) if method == Method::SphericalHarmonics => continue,
                    plan => plan.unwrap(),
                };
                let sets: Vec<Vec<f64>> = (0..11).map(|k| strengths(700 * plan.strengths(), k)).collect();
                let batch = plan.apply_batch(&sets).unwrap();
                assert_eq!(batch.len(), sets.len());
                for (batch, set) in batch.iter().zip(&sets) {
                    assert_eq!(batch.potential, plan.apply(set).unwrap().potential, "{family:?} {method:?}");
                }
                let mut wrong = sets;
                wrong[9][0] = f64::NAN;
                assert!(matches!(plan.apply_batch(&wrong), Err(Error::NotFinite { .. })));
            }
        }
    }
}

#[test]
fn sums_are_linear_in_the_strengths() {
    let x = uniform(3000, 2);
    let plan = fast(Laplace).tolerance(1e-9).plan(&x, Targets::Sources).unwrap();
    let (a, b) = (strengths(3000, 1), strengths(3000, 2));
    let mixed: Vec<f64> = a.iter().zip(&b).map(|(a, b)| 2.0 * a - 3.0 * b).collect();
    let [a, b, mixed] = [a, b, mixed].map(|q| plan.apply(&q).unwrap().potential);
    let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| 2.0 * a - 3.0 * b).collect();
    assert!(difference(&mixed, &expected) < 1e-11);
}

#[test]
fn buffers_are_reused_and_replaced() {
    let x = uniform(500, 3);
    let plan = Fmm::new(Laplace).outputs(both()).plan(&x, Targets::Sources).unwrap();
    let mut out = plan.apply(&strengths(500, 1)).unwrap();
    let at = out.potential.as_ptr();
    plan.apply_into(&strengths(500, 2), &mut out).unwrap();
    assert_eq!(out.potential.as_ptr(), at);
    assert_eq!(out.potential, plan.apply(&strengths(500, 2)).unwrap().potential);
    let before = out.potential.clone();
    assert!(plan.apply_into(&[1.0], &mut out).is_err());
    assert_eq!(out.potential, before);
    let other = Fmm::new(Laplace).plan(&x[..300], Targets::Sources).unwrap();
    other.apply_into(&strengths(100, 1), &mut out).unwrap();
    assert_eq!((out.potential.len(), out.gradient.len()), (100, 0));
}

/// ⟨Aᵀv, q⟩ = ⟨v, Aq⟩ up to the tolerance.
fn transpose_identity(builder: Fmm, n: usize, c: usize, targets: Targets<'_>, m: usize, tolerance: f64) {
    let x = uniform(n, 4);
    let plan = builder.plan(&x, targets).unwrap();
    let (q, v) = (strengths(c * n, 5), strengths(c * m, 6));
    let (aq, atv) = (plan.apply(&q).unwrap().potential, plan.apply_transpose(&v).unwrap());
    assert_eq!(atv.len(), q.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let size = dot(&aq, &aq).sqrt() * dot(&v, &v).sqrt();
    let gap = (dot(&atv, &q) - dot(&v, &aq)).abs() / size;
    assert!(gap <= tolerance, "{gap:e}");
}

#[test]
fn transpose_is_the_adjoint() {
    let y = uniform(700, 7);
    let some: Vec<usize> = (0..1500).step_by(7).chain([3, 3]).collect();
    for method in [Method::EquivalentDensities, Method::Direct] {
        let exact = if method == Method::Direct { 1e-12 } else { 1e-7 };
        let with = |b: Fmm| b.method(method).tolerance(1e-8);
        for (targets, m) in [(Targets::Sources, 1500), (Targets::Points(&y), 700), (Targets::Subset(&some), some.len())]
        {
            transpose_identity(with(Fmm::new(Laplace)), 1500, 1, targets, m, exact);
            transpose_identity(with(Fmm::new(Stokes { mu: 0.7 })), 1500, 3, targets, m, exact);
            transpose_identity(with(Fmm::new(Gravity { g: 1.0, softening: 0.01 })), 1500, 1, targets, m, exact);
        }
    }
}

#[test]
fn a_subset_is_rows_of_the_whole() {
    let x = uniform(4000, 8);
    let q = strengths(4000, 9);
    let some: Vec<usize> = [3999, 0, 17, 17].into_iter().chain((0..4000).step_by(11)).collect();
    let pick =
        |all: &[f64], c: usize| -> Vec<f64> { some.iter().flat_map(|&i| all[c * i..c * i + c].to_vec()).collect() };
    for builder in [
        fast(Laplace),
        fast(Gravity { g: 2.0, softening: 1e-3 }),
        Fmm::new(Laplace).method(Method::Direct),
        Fmm::new(Gravity { g: 2.0, softening: 1e-3 }).method(Method::Direct),
    ] {
        let builder = builder.tolerance(1e-7).outputs(both());
        let all = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        let plan = builder.plan(&x, Targets::Subset(&some)).unwrap();
        let out = plan.apply(&q).unwrap();
        assert!(difference(&out.potential, &pick(&all.potential, 1)) < 3e-7);
        assert!(difference(&out.gradient, &pick(&all.gradient, 3)) < 3e-7);
        assert!(plan.verify(&q, 100).unwrap().worst() < 1e-6);
        let covered: usize = plan.near_field().map(|b| b.targets.len() * b.sources.len()).sum();
        assert!(plan.near_field().all(|b| b.targets.iter().all(|&t| (t as usize) < some.len())));
        assert!(covered >= some.len());
    }
}

#[test]
fn moved_points_give_what_a_new_plan_gives() {
    let (x, y, q) = (uniform(3000, 10), uniform(2500, 11), strengths(2500, 12));
    for method in [Method::EquivalentDensities, Method::Direct] {
        let builder = Fmm::new(Laplace).method(method).outputs(both()).ncrit(40);
        let mut plan = builder.plan(&x, Targets::Sources).unwrap();
        plan.apply(&strengths(3000, 1)).unwrap();
        assert!(plan.set_points(&[1.0, 2.0, f64::NAN], Targets::Sources).is_err());
        assert_eq!(plan.n_sources(), 3000);
        plan.set_points(&y, Targets::Sources).unwrap();
        let (moved, new) = (plan.apply(&q).unwrap(), builder.plan(&y, Targets::Sources).unwrap().apply(&q).unwrap());
        assert_eq!(moved.potential, new.potential);
        assert_eq!(moved.gradient, new.gradient);
        // Other kinds of targets, and no targets.
        plan.set_points(&y, &x).unwrap();
        let expected = builder.plan(&y, &x).unwrap().apply(&q).unwrap();
        assert_eq!(plan.apply(&q).unwrap().potential, expected.potential);
        plan.set_points(&[], &x).unwrap();
        assert_eq!(plan.apply::<f64>(&[]).unwrap().potential, vec![0.0; 3000]);
    }
}

#[test]
fn moved_points_are_described_as_they_are() {
    let builder = Fmm::new(Laplace).outputs(both()).tolerance(1e-6);
    let mut plan = builder.plan(&uniform(30_000, 10), Targets::Sources).unwrap();
    let before = plan.describe().why;
    plan.set_points(&uniform(20_000, 11), Targets::Sources).unwrap();
    let moved = plan.describe();
    assert_ne!(moved.why, before);
    assert!(moved.why.contains(&format!("order {}", moved.order.unwrap())), "{}", moved.why);
}

/// A search may begin far from the order that it finds. The leaves are those that the found order wants.
#[test]
fn leaves_suit_the_order_that_was_found() {
    let x = demo::points(demo::Demo::Plummer, 20_000, 1);
    let damped: AnyFamily = Yukawa { kappa: 30.0 }.into();
    let builders = [
        Fmm::new(Laplace).method(Method::EquivalentDensities),
        Fmm::new(Laplace).method(Method::SphericalHarmonics),
        Fmm::new(damped).method(Method::EquivalentDensities),
    ];
    for builder in builders {
        for tolerance in [1e-2, 1e-5, 1e-8] {
            let found = builder.clone().tolerance(tolerance).plan(&x, Targets::Sources).unwrap().describe();
            let order = found.order.unwrap();
            let given = builder.clone().order(order).plan(&x, Targets::Sources).unwrap().describe();
            let ratio = found.leaves as f64 / given.leaves as f64;
            assert!((0.6..1.7).contains(&ratio), "{} at {tolerance:e}, order {order}: {ratio}", found.kernel);
        }
    }
}

/// Points of a lattice, each moved within its own cell: all counts of boxes and edges stay, but errors grow, because
/// points come closer to the corners of their boxes.
#[test]
fn points_that_leave_a_lattice_are_measured_again() {
    let side = 16;
    let random = uniform(side * side * side, 3);
    let cell = |i: usize| [i % side, i / side % side, i / side / side].map(|k| (k as f64 + 0.5) / side as f64);
    let cloud = |by: f64| -> Vec<f64> {
        let point = |i: usize| [0, 1, 2].map(|a| cell(i)[a] + by / side as f64 * (random[3 * i + a] - 0.5));
        (0..side * side * side).flat_map(point).collect()
    };
    let tolerance = 1e-5;
    let builder = Fmm::new(Laplace).method(Method::EquivalentDensities).tolerance(tolerance);
    let builder = builder.ncrit(8).root_cube([0.0; 3], 1.0);
    let mut plan = builder.plan(&cloud(0.0), Targets::Sources).unwrap();
    let before = plan.describe();
    plan.set_points(&cloud(0.98), Targets::Sources).unwrap();
    let after = plan.describe();
    assert_eq!((before.leaves, before.near_pairs), (after.leaves, after.near_pairs));
    assert!(!after.probe.unwrap().of_earlier_points);
    for q in [strengths(4096, 1), demo::strengths(4096, 1, 1)] {
        assert!(plan.verify(&q, 1000).unwrap().worst() <= tolerance);
    }
}

/// Rounding errors are those of the new points.
#[test]
fn rounding_is_measured_again_for_points_that_moved() {
    let builder = Fmm::new(Laplace).precision(Precision::F32).method(Method::Direct).tolerance(1e-5);
    let error = |plan: &fmm::Plan| {
        let probe = plan.describe().probe.unwrap();
        assert!(!probe.of_earlier_points && probe.orders == [0], "{probe:?}");
        probe.outputs[0].error
    };
    let mut plan = builder.plan(&uniform(2000, 10), Targets::Sources).unwrap();
    let before = error(&plan);
    plan.set_points(&demo::points(demo::Demo::Plummer, 2000, 1), Targets::Sources).unwrap();
    assert_ne!(error(&plan), before);
    assert!(plan.verify(&strengths(2000, 1), 1000).unwrap().worst() < error(&plan));
}

/// 3500 points take the place of 3000 in the plan, 9000 need a new plan.
#[test]
fn points_that_fail_leave_the_plan_as_it_was() {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let builder = fast(Laplace).progress(move |p| !(flag.load(Ordering::Relaxed) && p.phase == "tree"));
    let mut plan = builder.plan(&uniform(3000, 10), Targets::Sources).unwrap();
    let q = strengths(3000, 1);
    let before = plan.apply(&q).unwrap();
    stop.store(true, Ordering::Relaxed);
    for n in [3500, 9000] {
        let moved = plan.set_points(&uniform(n, 11), Targets::Sources);
        assert_eq!(moved.unwrap_err(), Error::Cancelled { stage: "tree" }, "{n}");
        assert_eq!(plan.n_sources(), 3000);
        assert_eq!(plan.apply(&q).unwrap().potential, before.potential, "{n}");
    }
}

#[test]
fn a_callback_sees_the_phases_and_cancels() {
    let x = uniform(3000, 13);
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (flag, log) = (stop.clone(), seen.clone());
    let builder = fast(Laplace).progress(move |p| {
        log.lock().unwrap().push(p.phase);
        assert!((0.0..1.0).contains(&p.fraction));
        !(flag.load(Ordering::Relaxed) && p.phase == "m2l")
    });
    let plan = builder.plan(&x, Targets::Sources).unwrap();
    let q = strengths(3000, 1);
    let before = plan.apply(&q).unwrap();
    let phases =
        ["probe", "lists", "operators", "scatter", "p2m", "m2m", "p2p", "m2l", "p2l", "l2l", "l2p", "m2p", "gather"];
    // The tree is rebuilt if the order needs other leaves.
    assert!(seen.lock().unwrap().starts_with(&["tree"]));
    seen.lock().unwrap().retain(|&phase| phase != "tree");
    assert_eq!(*seen.lock().unwrap(), phases);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(plan.apply(&q).unwrap_err(), Error::Cancelled { stage: "m2l" });
    stop.store(false, Ordering::Relaxed);
    assert_eq!(plan.apply(&q).unwrap().potential, before.potential);
    let never = fast(Laplace).progress(|p| p.phase != "lists").plan(&x, Targets::Sources);
    assert_eq!(never.unwrap_err(), Error::Cancelled { stage: "lists" });
}

#[test]
fn the_direct_twin_agrees() {
    let (x, y) = (uniform(3000, 14), uniform(2000, 15));
    let q = strengths(9000, 16);
    let check = |builder: Fmm, strengths: &[f64], outputs: Outputs| {
        let builder = builder.tolerance(1e-5).outputs(outputs);
        let fast = builder.clone().method(Method::EquivalentDensities).plan(&x, &y).unwrap().apply(strengths).unwrap();
        let exact = direct(&builder, &x, &y, strengths);
        for (output, name) in Outputs::ALL.into_iter().filter(|(o, _)| outputs.contains(*o)) {
            let d = difference(fast.get(output), exact.get(output));
            assert!(d <= 1e-5 && !exact.get(output).is_empty(), "{name}: {d:e}");
        }
    };
    check(Fmm::new(Laplace), &q[..3000], both() | Outputs::HESSIAN);
    check(Fmm::new(LaplaceDipole), &q, both());
    check(Fmm::new(StokesPressure { mu: 2.0 }), &q, both() | Outputs::PRESSURE);
    check(Fmm::custom(Own), &q[..3000], both());
}

#[test]
fn every_instruction_set_gives_the_sum() {
    let x = uniform(2000, 17);
    let q = strengths(2000, 18);
    let exact = direct(&Fmm::new(Laplace), &x, Targets::Sources, &q);
    for isa in Isa::available() {
        for method in [Method::EquivalentDensities, Method::Direct] {
            let builder = Fmm::new(Laplace).tolerance(1e-8).method(method).backend(Cpu { isa: Some(isa) });
            let plan = builder.plan(&x, Targets::Sources).unwrap();
            assert_eq!(plan.describe().isa, isa.name());
            assert!(difference(&plan.apply(&q).unwrap().potential, &exact.potential) <= 1e-8);
        }
    }
}

#[test]
fn the_near_field_is_every_pair_that_is_summed_directly() {
    let (x, y) = (uniform(2000, 19), uniform(1000, 20));
    for (targets, m) in [(Targets::Sources, 2000), (Targets::Points(&y), 1000)] {
        let plan = fast(Laplace).ncrit(30).plan(&x, targets).unwrap();
        let mut pairs = std::collections::HashSet::new();
        for block in plan.near_field() {
            for &t in block.targets.iter() {
                for &s in block.sources.iter() {
                    assert!((t as usize) < m && (s as usize) < 2000 && pairs.insert((t, s)));
                }
            }
        }
        assert_eq!(pairs.len() as u64, plan.describe().near_pairs);
        if m == 2000 {
            assert!((0..2000).all(|i| pairs.contains(&(i, i))));
        }
    }
    let plan = Fmm::new(Laplace).method(Method::Direct).plan(&x, &y).unwrap();
    let blocks: Vec<_> = plan.near_field().collect();
    assert_eq!((blocks.len(), blocks[0].targets.len(), blocks[0].sources.len()), (1, 1000, 2000));
}

#[test]
fn a_plan_describes_itself() {
    let x = uniform(3000, 21);
    let plan = fast(Laplace).tolerance(1e-4).outputs(both()).threads(1).plan(&x, Targets::Sources).unwrap();
    let d = plan.describe();
    assert_eq!((d.method, d.kernel.as_str(), d.threads, d.n_targets), ("equivalent", "laplace", 1, 3000));
    assert!(d.boxes >= d.leaves && d.leaves > 0 && d.levels > 0 && d.ncrit > 0 && d.edges.p2p > 0 && d.bytes > 0);
    let json = serde_json::to_value(&d).unwrap();
    assert_eq!(json["tolerance"], 1e-4);
    assert_eq!(json["outputs"][1], "gradient");
    let small = Fmm::new(Laplace).plan(&x[..30], Targets::Sources).unwrap().describe();
    assert_eq!((small.method, small.order), ("direct", None));
    let large = Fmm::new(Laplace).plan(&uniform(60_000, 1), Targets::Sources).unwrap().describe();
    assert!(["equivalent", "spherical"].contains(&large.method), "{}", large.why);
}

#[test]
fn memory_is_forecast() {
    let builder = Fmm::new(Laplace).outputs(both());
    let (small, large) = (builder.memory(100_000, 100_000).unwrap(), builder.memory(10_000_000, 10_000_000).unwrap());
    assert!(small < large && large > 1_000_000_000);
    let plan = fast(Laplace).plan(&uniform(50_000, 1), Targets::Sources).unwrap();
    let forecast = fast(Laplace).memory(50_000, 50_000).unwrap();
    assert!(plan.memory() <= forecast, "{} held, {forecast} forecast", plan.memory());
}

#[test]
fn several_threads_may_share_a_plan() {
    let x = uniform(3000, 22);
    let plan = fast(Laplace).plan(&x, Targets::Sources).unwrap();
    let sets: Vec<Vec<f64>> = (0..4).map(|k| strengths(3000, k)).collect();
    let alone: Vec<_> = sets.iter().map(|q| plan.apply(q).unwrap().potential).collect();
    std::thread::scope(|scope| {
        let runs: Vec<_> = sets.iter().map(|q| scope.spawn(|| plan.apply(q).unwrap().potential)).collect();
        for (run, alone) in runs.into_iter().zip(&alone) {
            assert_eq!(&run.join().unwrap(), alone);
        }
    });
}

#[test]
fn one_call_does_it() {
    let (x, q) = (uniform(1000, 23), strengths(1000, 24));
    let out = evaluate(Laplace, &x, &q, Targets::Sources, both(), 1e-6).unwrap();
    let exact = direct(&Fmm::new(Laplace).outputs(both()), &x, Targets::Sources, &q);
    assert!(difference(&out.potential, &exact.potential) <= 1e-6);
    assert!(difference(&out.gradient, &exact.gradient) <= 1e-6);
}

#[test]
fn a_wrong_answer_is_reported_as_an_error() {
    let (x, q) = (uniform(2000, 25), strengths(2000, 26));
    let plan = Fmm::new(Laplace).plan(&x, Targets::Sources).unwrap();
    let mut out = plan.apply(&q).unwrap();
    assert!(plan.verify_output(&q, &out, 500).unwrap().worst() <= 1e-6);
    out.potential.iter_mut().for_each(|u| *u *= 1.01);
    let report = plan.verify_output(&q, &out, 500).unwrap();
    assert_eq!(report.samples, 500);
    assert!((report.worst() - 0.01).abs() < 1e-5);
}
