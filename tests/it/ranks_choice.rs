//! The choice of method and order on several ranks: that of one rank, in every number that the probe reports, without
//! all points on any rank.

use crate::ranks::piece;
use crate::{both, difference, strengths};
use fmm::ranks::{Event, Recorded, World, threads, threads_within};
use fmm::{
    Cuda, Description, Error, Fmm, Gravity, Laplace, LaplaceDipole, Method, Plan, Precision, ProbeReport, Stokes,
    Targets, Yukawa,
};
use fmm_traits::testkit::clouds::CloudKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a plan decided, and what it measured.
#[derive(Clone, Debug, PartialEq)]
struct Decided {
    method: &'static str,
    order: Option<usize>,
    tolerance: Option<f64>,
    why: String,
    ncrit: usize,
    probe: Option<ProbeReport>,
    warnings: Vec<String>,
}

fn decided(plan: &Plan) -> Decided {
    let Description { method, order, tolerance, why, ncrit, mut probe, warnings, .. } = plan.describe();
    if let Some(probe) = &mut probe {
        (probe.seconds, probe.operators) = (0.0, 0.0);
    }
    Decided { method, order, tolerance, why, ncrit, probe, warnings }
}

/// How targets are given.
#[derive(Clone, Copy, Debug)]
enum To {
    Sources,
    Points,
    /// Every third source.
    Some,
}

impl To {
    const ALL: [To; 3] = [To::Sources, To::Points, To::Some];
}

/// Plans on one rank and on several; all ranks decide, or fail, as one.
fn same_choice(what: &str, builder: &Fmm, points: &[f64], others: &[f64], to: To, ranks: &[usize]) {
    let plan = |builder: &Fmm, points: &[f64], others: &[f64], first: usize| {
        let some: Vec<usize> = (0..points.len() / 3).filter(|i| (first + i).is_multiple_of(3)).collect();
        let targets = match to {
            To::Sources => Targets::Sources,
            To::Points => Targets::Points(others),
            To::Some => Targets::Subset(&some),
        };
        builder.plan(points, targets).map(|plan| decided(&plan))
    };
    let one = plan(builder, points, others, 0);
    for &ranks in ranks {
        let shares = vec![1; ranks];
        let found = threads_within(Duration::from_secs(100), ranks, |world: World| {
            let r = world.rank();
            let first: usize = (0..r).map(|k| piece(points, 3, &shares, k).len() / 3).sum();
            let builder = builder.clone().ranks(&world);
            plan(&builder, piece(points, 3, &shares, r), piece(others, 3, &shares, r), first)
        });
        for (rank, found) in found.into_iter().enumerate() {
            assert_eq!(found.unwrap(), one, "{what}, {to:?}: rank {rank} of {ranks}");
        }
    }
}

/// The kernels, each with the facts that make a probe special: net strengths, several levels of operators, self terms,
/// several columns.
fn kernels() -> [(&'static str, Fmm); 5] {
    [
        ("laplace", Fmm::new(Laplace)),
        ("dipoles", Fmm::new(LaplaceDipole)),
        ("yukawa", Fmm::new(Yukawa { kappa: 3.0 })),
        ("gravity", Fmm::new(Gravity { g: 1.0, softening: 1e-2 })),
        ("stokes", Fmm::new(Stokes { mu: 1.0 })),
    ]
}

/// So many points that a sample has a part of the sources, drawn leaf by leaf.
#[test]
fn a_part_of_the_sources_is_that_of_one_rank() {
    for kind in [CloudKind::Uniform, CloudKind::Plummer] {
        let points = kind.points(40_000, 5);
        let builder = Fmm::new(Laplace).tolerance(1e-4).method(Method::EquivalentDensities);
        same_choice(kind.name(), &builder, &points, &[], To::Sources, &[2, 3]);
    }
}

/// All combinations with `every`th step.
fn combinations(n: usize, every: usize, ranks: &[&[usize]]) {
    let mut k = 0;
    for kind in [CloudKind::Uniform, CloudKind::Plummer, CloudKind::Ellipsoid, CloudKind::Clustered] {
        let (x, y) = (kind.points(n, 1), CloudKind::Uniform.points(n / 2, 2));
        for (name, builder) in kernels() {
            for tolerance in [1e-3, 1e-6] {
                for precision in [Precision::F64, Precision::F32] {
                    k += 1;
                    if k % every != 0 {
                        continue;
                    }
                    let builder = builder.clone().tolerance(tolerance).precision(precision).threads(1);
                    let what = format!("{name}, {}, {tolerance:e}, {precision:?}", kind.name());
                    same_choice(&what, &builder, &x, &y, To::ALL[k / every % 3], ranks[k / every % ranks.len()]);
                }
            }
        }
    }
}

#[test]
fn a_choice_is_that_of_one_rank() {
    combinations(8000, 11, &[&[2, 5], &[3], &[8]]);
}

/// On GPUs ranks have the tree of all, and cut it: methods, orders, leaves, measurements and sums are those of one rank.
/// Sums by spherical harmonics agree to rounding, others in all bits.
#[test]
#[ignore = "needs a GPU"]
fn gpu_choices_and_sums_are_those_of_one_rank() {
    let n = 200_000;
    for (kind, precision, tolerance) in [
        (CloudKind::Uniform, Precision::F32, 1e-3),
        (CloudKind::Ellipsoid, Precision::F32, 1e-3),
        (CloudKind::Ellipsoid, Precision::F64, 1e-6),
    ] {
        let (points, q) = (kind.points(n, 7), strengths(n, 8));
        let builder =
            Fmm::new(Laplace).outputs(both()).tolerance(tolerance).precision(precision).backend(Cuda::default());
        same_choice(kind.name(), &builder, &points, &[], To::Sources, &[2, 3]);
        let sums = |builder: &Fmm, points: &[f64], q: &[f64]| {
            let plan = builder.plan(points, Targets::Sources)?;
            let sums = plan.apply(q)?;
            Ok::<_, Error>((plan.describe().method, [sums.potential, sums.gradient]))
        };
        let (method, one) = sums(&builder, &points, &q).unwrap();
        let rounding = match precision {
            _ if method != Method::SphericalHarmonics.name() => 0.0,
            Precision::F32 => 1e-6 * 3f64.sqrt(),
            Precision::F64 => 1e-13 * 3f64.sqrt(),
        };
        let shares = [1; 3];
        let parts = threads_within(Duration::from_secs(100), 3, |world: World| {
            let r = world.rank();
            sums(&builder.clone().ranks(&world), piece(&points, 3, &shares, r), piece(&q, 1, &shares, r))
        });
        let parts: Vec<_> = parts.into_iter().map(|part| part.unwrap().unwrap().1).collect();
        for (k, one) in one.iter().enumerate() {
            let all: Vec<f64> = parts.iter().flat_map(|part| &part[k]).copied().collect();
            let error = difference(&all, one);
            assert!(error <= rounding, "{}, {method}, output {k}: {error:e}", kind.name());
        }
    }
}

/// All combinations, on all numbers of ranks: minutes.
#[test]
#[ignore = "minutes"]
fn ranks_every_choice_is_that_of_one_rank() {
    combinations(8000, 1, &[&[2, 3, 5, 8]]);
}

/// Named methods, no tolerance (the least error), few points, more ranks than points, and kinds of leaves too many for
/// strata of their own.
#[test]
fn named_methods_and_floors_are_those_of_one_rank() {
    let (x, y) = (CloudKind::Clustered.points(9000, 3), CloudKind::Uniform.points(2000, 9));
    let base = Fmm::new(Laplace).outputs(both()).threads(1);
    for method in [Method::EquivalentDensities, Method::SphericalHarmonics, Method::Treecode, Method::Interpolation] {
        same_choice(method.name(), &base.clone().method(method).tolerance(1e-4), &x, &y, To::Sources, &[3]);
    }
    same_choice("least error", &base.clone().precision(Precision::F32), &x, &y, To::Points, &[2]);
    let direct = base.clone().method(Method::Direct).precision(Precision::F32).tolerance(1e-5);
    for to in To::ALL {
        same_choice("direct", &direct, &x[..6000], &y, to, &[3]);
        same_choice("few", &base.clone().tolerance(1e-6), &x[..900], &y[..90], to, &[2, 8]);
        same_choice("fewer than ranks", &base, &x[..9], &y[..6], to, &[5]);
    }
    // A tolerance that no order keeps is the same refusal on all ranks.
    let beyond = base.clone().method(Method::EquivalentDensities).precision(Precision::F32).tolerance(1e-9);
    same_choice("refusal", &beyond, &x, &y, To::Sources, &[2]);
    let results = threads(2, |world| {
        beyond.clone().ranks(&world).plan(piece(&x, 3, &[1, 1], world.rank()), Targets::Sources).map(drop)
    });
    assert!(results.into_iter().all(|r| matches!(r.unwrap(), Err(Error::ToleranceFloor { .. }))));
}

/// With a tolerance a rank receives the points that it owns, and rank 0 a sample: never all points.
#[test]
fn no_rank_receives_all_points() {
    let ranks = 8;
    let received = |n: usize| -> Vec<usize> {
        let x = CloudKind::Uniform.points(n, 4);
        let of_rank = |world: World| {
            let recorded = Arc::new(Recorded::new(world.transport()));
            let (world, r) = (World::new(recorded.clone()), world.rank());
            let builder = Fmm::new(Laplace).method(Method::EquivalentDensities).tolerance(1e-3).threads(1);
            builder.ranks(&world).plan(piece(&x, 3, &vec![1; ranks], r), Targets::Sources).map(drop).unwrap();
            recorded.take()
        };
        let mut received = vec![0; ranks];
        for event in threads(ranks, of_rank).into_iter().flat_map(Result::unwrap) {
            if let Event::Sent { to, bytes } = event {
                received[to] += bytes;
            }
        }
        received
    };
    // What rank 0 receives beyond the mean of the others is the sample.
    let sample = |n: usize| {
        let received = received(n);
        received[0] - received[1..].iter().sum::<usize>() / (ranks - 1)
    };
    let (few, many) = (sample(40_000), sample(200_000));
    let points = 24 * 200_000 * (ranks - 1) / ranks;
    assert!(4 * many < points && many < 2 * few, "{few} and {many} bytes of a sample; points have {points}");
}

/// Direct sums of `verify` are those of one rank to the bit, over several blocks of sources, and no rank receives the
/// sources of the others.
#[test]
fn verify_needs_no_sources_of_others() {
    let (n, shares) = (140_000, [2, 3, 0, 1]);
    let x = CloudKind::Plummer.points(n, 4);
    let q = strengths(n, 5);
    let some: Vec<usize> = (0..n).filter(|i| i.is_multiple_of(3)).collect();
    for (builder, subset) in
        [(Fmm::new(Laplace).order(3), true), (Fmm::new(Gravity { g: 1.0, softening: 1e-6 }).order(3), false)]
    {
        let builder = builder.method(Method::EquivalentDensities).threads(1);
        let all = if subset { Targets::Subset(&some) } else { Targets::Sources };
        let plan = builder.plan(&x, all).unwrap();
        let one = plan.verify_output(&q, &plan.apply(&q).unwrap(), 40).unwrap();
        let results = threads(shares.len(), |world: World| {
            let recorded = Arc::new(Recorded::new(world.transport()));
            let (world, r) = (World::new(recorded.clone()), world.rank());
            let first: usize = (0..r).map(|k| piece(&x, 3, &shares, k).len() / 3).sum();
            let mine = piece(&x, 3, &shares, r);
            let some: Vec<usize> = (0..mine.len() / 3).filter(|i| (first + i).is_multiple_of(3)).collect();
            let targets = if subset { Targets::Subset(&some) } else { Targets::Sources };
            let plan = builder.clone().ranks(&world).plan(mine, targets).unwrap();
            let (q, out) = (piece(&q, 1, &shares, r), plan.apply(piece(&q, 1, &shares, r)).unwrap());
            recorded.take();
            (plan.verify_output(q, &out, 40).unwrap(), recorded.take())
        });
        let mut received = vec![0; shares.len()];
        for (report, events) in results.into_iter().map(Result::unwrap) {
            assert_eq!(report, one);
            for event in events {
                if let Event::Sent { to, bytes } = event {
                    received[to] += bytes;
                }
            }
        }
        assert!(received.iter().all(|&bytes| bytes < 32 * (1 << 16)), "{received:?}");
    }
}

/// The forecast for a rank is that of its share with ghosts: it covers what a plan holds, and no rank needs what one
/// rank needs for all points.
#[test]
fn memory_is_forecast_for_a_rank() {
    let (n, ranks) = (40_000, 4);
    let x = CloudKind::Uniform.points(n, 4);
    let builder = Fmm::new(Laplace).method(Method::EquivalentDensities).tolerance(1e-3).threads(1);
    let whole = |builder: &Fmm, n: usize| builder.memory(n, n).unwrap();
    let results = threads(ranks, |world: World| {
        let builder = builder.clone().ranks(&world);
        let plan = builder.plan(piece(&x, 3, &vec![1; ranks], world.rank()), Targets::Sources).unwrap();
        (plan.memory(), whole(&builder, n), whole(&builder, 100_000_000))
    });
    for (held, forecast, large) in results.into_iter().map(Result::unwrap) {
        assert!(held <= forecast && forecast <= whole(&builder, n), "{held} held, {forecast} forecast");
        let part = large as f64 / whole(&builder, 100_000_000) as f64;
        assert!((0.25..0.3).contains(&part), "{part}");
    }
    // A sum for which machines lack the memory is refused before points are shared out.
    let (x, start) = (CloudKind::Uniform.points(2_000_000, 4), Instant::now());
    let huge = Fmm::new(Stokes { mu: 1.0 }).method(Method::Interpolation).order(12).ncrit(1);
    let results = threads(3, |world| {
        huge.clone().ranks(&world).plan(piece(&x, 3, &[1; 3], world.rank()), Targets::Sources).map(drop)
    });
    for result in results {
        let error = result.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Rank { error, .. } if matches!(**error, Error::Memory { needed, available, .. }
                if needed > available)),
            "{error:?}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}
