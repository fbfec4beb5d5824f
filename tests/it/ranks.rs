//! Several ranks, as threads: the same tree, method, order and bits as one rank, and one error for all.

use crate::cli::{json, read_npz, refused};
use crate::{both, difference, in_turn, strengths};
use fmm::ranks::{Strategy, World, threads, threads_within};
use fmm::{
    AnyFamily, Error, ErrorReport, Expansion, Fmm, Gravity, Laplace, LaplaceDipole, LaplaceMixed, ListPolicy, Method,
    Output, Outputs, Precision, Stokes, Stresslet, Targets, Yukawa,
};
use fmm_traits::testkit::clouds::CloudKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time of a test in which a rank fails, and the longest silence.
const SOON: Duration = Duration::from_secs(20);

/// The report of a rank, and its order.
type Reported = (ErrorReport, Option<usize>);

/// The rows of rank `r` if `n` rows are cut into pieces of `shares`.
pub fn piece<'a>(rows: &'a [f64], width: usize, shares: &[usize], r: usize) -> &'a [f64] {
    let (n, total) = (rows.len() / width, shares.iter().sum::<usize>().max(1));
    let end = |r: usize| if r == shares.len() { n } else { n * shares[..r].iter().sum::<usize>() / total };
    &rows[end(r) * width..end(r + 1) * width]
}

/// Points of all ranks.
struct Cloud<'a> {
    sources: &'a [f64],
    targets: Option<&'a [f64]>,
    strengths: &'a [f64],
}

/// The sums of all ranks in their order, and the report of `verify` and the order of each rank.
fn on_ranks(builder: &Fmm, cloud: &Cloud, shares: &[usize]) -> Result<(Output, Vec<Reported>), Error> {
    let width = builder.strengths()?;
    let results = threads_within(Duration::from_secs(120), shares.len(), |world: World| {
        let r = world.rank();
        let targets = cloud.targets.map(|t| piece(t, 3, shares, r)).map_or(Targets::Sources, Targets::Points);
        let plan = builder.clone().ranks(&world).plan(piece(cloud.sources, 3, shares, r), targets)?;
        let q = piece(cloud.strengths, width, shares, r);
        // The second evaluation reuses the workspaces of the first.
        plan.apply(q)?;
        let out = plan.apply(q)?;
        Ok(((plan.verify_output(q, &out, 100)?, plan.describe().order), out))
    });
    let (mut all, mut reports) = (Output::default(), Vec::new());
    for result in results {
        let (report, out): (_, Output) = result.and_then(|r| r)?;
        all.potential.extend(out.potential);
        all.gradient.extend(out.gradient);
        reports.push(report);
    }
    Ok((all, reports))
}

/// One rank and several ranks give the same bits, the same error report and the same order.
fn same_bits(name: &str, builder: &Fmm, cloud: &Cloud, all_shares: &[Vec<usize>]) {
    let targets = cloud.targets.map_or(Targets::Sources, Targets::Points);
    let plan = builder.plan(cloud.sources, targets).unwrap();
    let one = plan.apply(cloud.strengths).unwrap();
    let report = (plan.verify_output(cloud.strengths, &one, 100).unwrap(), plan.describe().order);
    for shares in all_shares {
        let (found, reports) = on_ranks(builder, cloud, shares).unwrap_or_else(|e| panic!("{name} on {shares:?}: {e}"));
        for (what, a, b) in
            [("potential", &one.potential, &found.potential), ("gradient", &one.gradient, &found.gradient)]
        {
            assert_eq!(a.len(), b.len());
            let differ = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            assert_eq!(differ, 0, "{name}, {what} on {shares:?}: relative difference {}", difference(b, a));
        }
        assert!(reports.iter().all(|r| *r == report), "{name} on {shares:?}: {reports:?}, expected {report:?}");
    }
}

/// Rows of the sources that this rank owns are moved to it, and a plan of these points sends no rows between callers and
/// owners: the bits of one rank, with the sums of each rank in the order of its sources. `builder` is for ranks.
pub fn rows_move_to_owners(builder: &Fmm, x: &[f64], q: &[f64], one: &[f64], shares: &[usize]) {
    let ids: Vec<f64> = (0..q.len()).map(|i| i as f64).collect();
    let results = threads_within(Duration::from_secs(120), shares.len(), |world: World| {
        let r = world.rank();
        let builder = builder.clone().ranks(&world);
        let plan = builder.plan(piece(x, 3, shares, r), Targets::Sources)?;
        assert!(plan.adopt(piece(x, 3, shares, r), 2).is_err());
        let adopt = |rows: &[f64], width| plan.adopt(piece(rows, width, shares, r), width);
        let (x, q, ids) = (adopt(x, 3)?, adopt(q, 1)?, adopt(&ids, 1)?);
        let plan = builder.plan(&x, Targets::Sources)?;
        // One rank has no report of its part.
        assert_eq!(plan.describe().ranks.map_or(q.len(), |ranks| ranks.owned_sources), q.len());
        assert_eq!(plan.adopt(&ids, 1)?, ids);
        Ok::<_, Error>((ids, plan.apply(&q)?.potential))
    });
    let mut all = vec![f64::NAN; q.len()];
    for (ids, potential) in results.into_iter().map(|result| result.and_then(|r| r).unwrap()) {
        ids.iter().zip(potential).for_each(|(&id, u)| all[id as usize] = u);
    }
    assert!(all.iter().zip(one).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn rows_move_to_the_owners_of_sources() {
    let (x, q) = (CloudKind::Ellipsoid.points(3000, 5), strengths(3000, 6));
    for builder in [of_order(Laplace, 3), Fmm::new(Laplace).method(Method::Direct)] {
        let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
        for shares in [vec![1], vec![1, 1], vec![1, 0, 3, 2]] {
            rows_move_to_owners(&builder, &x, &q, &one.potential, &shares);
        }
    }
}

/// What is counted from one tree is what ranks report.
#[test]
fn a_census_counts_what_ranks_exchange() {
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid] {
        let points = kind.points(4000, 8);
        for ranks in [2, 4, 7, 16] {
            // The coarse tree depends on whether the leaf capacity is given.
            let mut builder = of_order(Laplace, 3);
            if ranks == 16 {
                builder = Fmm::new(Laplace).method(Method::EquivalentDensities).order(3).threads(1);
            }
            let census = builder.census(&points, ranks).unwrap().census;
            let kinds = census.kinds();
            assert!(kinds.iter().all(|k| k.import > 0 && k.export + k.root > 0), "{kinds:?}");
            for (strategy, name) in Strategy::ALL {
                let reports = threads(ranks, |world: World| {
                    let mine = piece(&points, 3, &vec![1; ranks], world.rank());
                    let plan = builder.clone().exchange(strategy).ranks(&world).plan(mine, Targets::Sources)?;
                    Ok::<_, Error>(plan.describe().ranks.unwrap())
                });
                let reports: Vec<_> = reports.into_iter().map(|r| r.and_then(|r| r).unwrap()).collect();
                let what = format!("{} on {ranks} ranks, {name}", kind.name());
                let ghosts: Vec<usize> = reports.iter().map(|r| r.ghosts).collect();
                assert_eq!(census.ghosts(), ghosts, "{what}");
                assert_eq!(census.imbalance, reports[0].imbalance, "{what}");
                let rows = census.rows(strategy);
                if strategy == Strategy::Hypercube && ranks == 7 {
                    assert!(matches!(rows, Err(Error::Unsupported { .. })), "{what}");
                    continue;
                }
                let reported: Vec<[usize; 2]> = reports.iter().map(|r| [r.rows, r.messages]).collect();
                assert_eq!(rows.unwrap(), reported, "{what}");
            }
        }
    }
}

fn equal(ranks: &[usize]) -> Vec<Vec<usize>> {
    ranks.iter().map(|&r| vec![1; r]).collect()
}

fn of_order(family: impl Into<AnyFamily>, order: usize) -> Fmm {
    Fmm::new(family).method(Method::EquivalentDensities).order(order).outputs(both()).ncrit(20).threads(1)
}

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let ranks = equal(&[2, 3, 4, 5, 7, 8, 9]);
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid, CloudKind::Plummer] {
        let (x, q) = (kind.points(3000, 1), strengths(3000, 2));
        let cloud = Cloud { sources: &x, targets: None, strengths: &q };
        for precision in [Precision::F64, Precision::F32] {
            same_bits(kind.name(), &of_order(Laplace, 4).precision(precision), &cloud, &ranks);
        }
    }
}

/// Kernels whose sums need numbers on which all ranks agree: the unit of strengths in f32, net strengths, near radii,
/// and operators by level.
#[test]
fn for_kernels_with_global_numbers() {
    let ranks = equal(&[2, 3, 8]);
    let some = |n: usize| strengths(n, 5);
    for kind in [CloudKind::Ellipsoid, CloudKind::Clustered] {
        let x = kind.points(2000, 3);
        let check = |name: &str, builder: Fmm, per_source: usize| {
            let q = some(2000 * per_source);
            let cloud = Cloud { sources: &x, targets: None, strengths: &q };
            for precision in [Precision::F64, Precision::F32] {
                same_bits(&format!("{name}, {}", kind.name()), &builder.clone().precision(precision), &cloud, &ranks);
            }
        };
        check("dipoles", of_order(LaplaceDipole, 4), 3);
        check("mixed", of_order(LaplaceMixed, 4), 4);
        check("yukawa", of_order(Yukawa { kappa: 3.0 }, 4), 1);
        check("gravity", of_order(Gravity { g: 1.0, softening: 1e-3 }, 4), 1);
        check("stokes", of_order(Stokes { mu: 1.0 }, 3), 3);
        check("stresslet", of_order(Stresslet { mu: 1.0 }, 3), 9);
    }
}

#[test]
fn for_every_method() {
    let ranks = equal(&[2, 5]);
    let x = CloudKind::Ellipsoid.points(2500, 3);
    let q = strengths(2500, 4);
    let cloud = Cloud { sources: &x, targets: None, strengths: &q };
    let base = |method| Fmm::new(Laplace).outputs(both()).ncrit(20).threads(1).method(method);
    for precision in [Precision::F64, Precision::F32] {
        let check = |name: &str, builder: Fmm| same_bits(name, &builder.precision(precision), &cloud, &ranks);
        check("interpolation", base(Method::Interpolation).order(4));
        check("spherical", base(Method::SphericalHarmonics).order(6));
        check("stencil", base(Method::SphericalHarmonics).order(6).lists(ListPolicy::Stencil119));
        check("treecode", base(Method::Treecode).order(6));
        check("treecode of densities", base(Method::Treecode).order(4).expansion(Expansion::Equivalent));
        check("direct", base(Method::Direct).order(1));
        let gravity = Fmm::new(Gravity { g: 1.0, softening: 0.1 }).outputs(both()).threads(1);
        check("direct, softened", gravity.method(Method::Direct).order(1));
    }
    // Where rotations of parallel offsets differed by which came first.
    let (x, q) = (fmm::demo::points(fmm::demo::Demo::Plummer, 2500, 1), strengths(2500, 4));
    let cloud = Cloud { sources: &x, targets: None, strengths: &q };
    same_bits("spherical, plummer", &base(Method::SphericalHarmonics).order(6), &cloud, &equal(&[4, 7]));
}

/// Cuts by points leave one rank more work, which forecasts from exact lists show.
#[test]
fn work_is_shared_out_anew() {
    let (x, q) = (CloudKind::Ellipsoid.points(10_000, 1), strengths(10_000, 2));
    let builder = of_order(Laplace, 4);
    let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    let results = threads(7, |world| -> Result<_, Error> {
        let r = world.rank();
        let plan = builder.clone().ranks(&world).plan(piece(&x, 3, &[1; 7], r), Targets::Sources)?;
        Ok((plan.apply(piece(&q, 1, &[1; 7], r))?.potential, plan.describe().ranks))
    });
    let (sums, reports): (Vec<_>, Vec<_>) = results.into_iter().map(|r| r.unwrap().unwrap()).unzip();
    assert_eq!(sums.concat(), one.potential);
    let imbalances: Vec<_> = reports.iter().flatten().map(|r| (r.imbalance, r.imbalance_by_points)).collect();
    assert!(imbalances.len() == 7 && imbalances.iter().all(|i| *i == imbalances[0]), "{imbalances:?}");
    let (after, before) = imbalances[0];
    assert!(before.is_some_and(|before| before > 1.05 * after) && after < 1.05, "{after}, before {before:?}");
}

/// A rank gets work in proportion to its speed; no bit changes.
#[test]
fn faster_ranks_get_more_work() {
    let (x, q) = (CloudKind::Ellipsoid.points(10_000, 1), strengths(10_000, 2));
    let builder = of_order(Laplace, 4);
    let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    let speeds = [1.0, 3.0, 0.5];
    let results = threads(3, |world| -> Result<_, Error> {
        let r = world.rank();
        let request = builder.clone().ranks(&world).speed(speeds[r]);
        let plan = request.plan(piece(&x, 3, &[1; 3], r), Targets::Sources)?;
        Ok((plan.apply(piece(&q, 1, &[1; 3], r))?.potential, plan.describe().ranks.unwrap()))
    });
    let (sums, reports): (Vec<_>, Vec<_>) = results.into_iter().map(|r| r.unwrap().unwrap()).unzip();
    assert_eq!(sums.concat(), one.potential);
    let all: f64 = reports.iter().map(|r| r.work).sum();
    for (report, speed) in reports.iter().zip(speeds) {
        let share = report.work / all * 4.5 / speed;
        assert!((0.9..1.1).contains(&share), "rank {} has {share} times its share", report.rank);
    }
}

/// Order and method are measured on one rank for all, so they are those of one rank.
#[test]
fn for_a_tolerance() {
    let ranks = equal(&[2, 3]);
    let x = CloudKind::Plummer.points(4000, 3);
    let (q, y) = (strengths(4000, 4), CloudKind::Uniform.points(1500, 9));
    let base = Fmm::new(Laplace).outputs(both()).threads(1);
    for targets in [None, Some(&y[..])] {
        let cloud = Cloud { sources: &x, targets, strengths: &q };
        same_bits("named", &base.clone().method(Method::EquivalentDensities).tolerance(1e-4), &cloud, &ranks);
        same_bits("auto", &base.clone().tolerance(1e-3), &cloud, &ranks);
        same_bits("default in f32", &base.clone().precision(Precision::F32), &cloud, &ranks);
    }
    let few = Cloud { sources: &x[..300], targets: None, strengths: &q[..100] };
    same_bits("few points", &base, &few, &equal(&[3]));
}

#[test]
fn for_uneven_pieces_and_empty_ranks() {
    let shares = [vec![0, 1, 0], vec![3, 1], vec![0, 0, 0, 1], vec![1, 0, 5, 2, 0]];
    let (x, q) = (CloudKind::Clustered.points(1500, 3), strengths(1500, 4));
    let far: Vec<f64> = CloudKind::Uniform.points(700, 6).iter().map(|x| x + 3.0).collect();
    for targets in [None, Some(&far[..])] {
        let cloud = Cloud { sources: &x, targets, strengths: &q };
        same_bits("uneven", &of_order(Laplace, 4), &cloud, &shares);
        let few = Cloud { sources: &x[..12], targets, strengths: &q[..4] };
        same_bits("few", &of_order(Laplace, 4), &few, &equal(&[2, 9]));
    }
    // Strengths of one rank are 0, those of another tiny or huge: the unit in f32 is that of all.
    let mut q = q;
    q[..500].fill(0.0);
    q[500..1000].iter_mut().for_each(|q| *q *= 1e-30);
    let cloud = Cloud { sources: &x, targets: None, strengths: &q };
    same_bits("scales", &of_order(Laplace, 4).precision(Precision::F32), &cloud, &equal(&[2, 3]));
    q[1000..].iter_mut().for_each(|q| *q *= 1e30);
    let cloud = Cloud { sources: &x, targets: None, strengths: &q };
    same_bits("scales", &of_order(Laplace, 4).precision(Precision::F32), &cloud, &equal(&[2, 3]));
}

#[test]
fn other_exchanges_differ_by_rounding() {
    let mut case = 0;
    for kind in [CloudKind::Uniform, CloudKind::Ellipsoid] {
        let x = kind.points(3000, 3);
        for (builder, per_source) in [
            (of_order(Laplace, 4), 1),
            (of_order(LaplaceMixed, 4), 4),
            (of_order(Laplace, 6).method(Method::SphericalHarmonics), 1),
        ] {
            let q = strengths(3000 * per_source, 4);
            let cloud = Cloud { sources: &x, targets: None, strengths: &q };
            for (precision, close) in [(Precision::F64, 1e-13), (Precision::F32, 1e-6)] {
                let builder = builder.clone().precision(precision);
                let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
                for strategy in [Strategy::Direct, Strategy::Hypercube, Strategy::Manager] {
                    for ranks in [2, 3, 4, 5, 8, 9] {
                        case += 1;
                        if !in_turn(case, 5) {
                            continue;
                        }
                        let builder = builder.clone().exchange(strategy);
                        let (found, _) = on_ranks(&builder, &cloud, &vec![1; ranks]).unwrap();
                        let bound = close * (ranks as f64).sqrt();
                        let errors =
                            [difference(&found.potential, &one.potential), difference(&found.gradient, &one.gradient)];
                        assert!(
                            errors.iter().all(|e| *e <= bound),
                            "{per_source} strengths, {precision:?}, {strategy:?} on {ranks}: {errors:?} > {bound}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn batches_subsets_and_moved_points() {
    let (x, moved) = (CloudKind::Uniform.points(1200, 3), CloudKind::Plummer.points(1200, 4));
    let sets: Vec<Vec<f64>> = (0..3).map(|k| strengths(1200, k)).collect();
    let builder = of_order(Laplace, 4);
    let picks: Vec<Vec<usize>> = vec![vec![3, 1, 399], vec![], vec![0, 7]];
    let whole: Vec<usize> = picks.iter().enumerate().flat_map(|(r, p)| p.iter().map(move |i| 400 * r + i)).collect();
    let mut plan = builder.plan(&x, Targets::Sources).unwrap();
    let batch = plan.apply_batch(&sets).unwrap();
    plan.set_points(&moved, Targets::Sources).unwrap();
    // A plan for these points alone: moved points keep the order, here the given one.
    let after = plan.apply(&sets[0]).unwrap();
    let some = builder.plan(&x, Targets::Subset(&whole)).unwrap().apply(&sets[0]).unwrap();
    let results = threads(3, |world| -> Result<_, Error> {
        let r = world.rank();
        let (mine, mine_moved) = (piece(&x, 3, &[1; 3], r), piece(&moved, 3, &[1; 3], r));
        let sets: Vec<&[f64]> = sets.iter().map(|q| piece(q, 1, &[1; 3], r)).collect();
        let mut plan = builder.clone().ranks(&world).plan(mine, Targets::Sources)?;
        let batch = plan.apply_batch(&sets)?;
        plan.set_points(mine_moved, Targets::Sources)?;
        let after = plan.apply(sets[0])?;
        let some = builder.clone().ranks(&world).plan(mine, Targets::Subset(&picks[r]))?.apply(sets[0])?;
        Ok((batch, after, some))
    });
    let results: Vec<_> = results.into_iter().map(|r| r.unwrap().unwrap()).collect();
    let joined = |of: &dyn Fn(usize) -> Vec<f64>| (0..3).flat_map(of).collect::<Vec<f64>>();
    for k in 0..3 {
        assert_eq!(joined(&|r| results[r].0[k].gradient.clone()), batch[k].gradient);
    }
    assert_eq!(joined(&|r| results[r].1.potential.clone()), after.potential);
    assert_eq!(joined(&|r| results[r].2.potential.clone()), some.potential);
}

/// Runs a failing step on three ranks. All get the same error, in time, and a plan that was there still works.
fn all_get(
    failing: impl Fn(&mut fmm::Plan, usize, &[f64]) -> Result<(), Error> + Sync,
    expected: impl Fn(&Error) -> bool,
) {
    let (x, q) = (CloudKind::Uniform.points(900, 3), strengths(900, 4));
    let builder = of_order(Laplace, 4);
    let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    let start = Instant::now();
    let results = threads_within(SOON, 3, |world| {
        let r = world.rank();
        let mut plan = builder.clone().ranks(&world).plan(piece(&x, 3, &[1; 3], r), Targets::Sources).unwrap();
        let q = piece(&q, 1, &[1; 3], r);
        let error = failing(&mut plan, r, q).unwrap_err();
        (error, plan.apply(q).unwrap().potential)
    });
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    // A NaN in an error is not equal to itself.
    let errors: Vec<String> = results.iter().map(|r| format!("{:?}", r.0)).collect();
    assert!(errors.iter().all(|e| *e == errors[0]) && results.iter().all(|r| expected(&r.0)), "{errors:?}");
    assert_eq!(results.iter().flat_map(|r| r.1.clone()).collect::<Vec<_>>(), one.potential);
}

#[test]
fn an_error_on_one_rank_is_the_error_of_all() {
    // NaN on one rank.
    all_get(
        |plan, r, q| {
            let mut q = q.to_vec();
            if r == 1 {
                q[7] = f64::NAN;
            }
            plan.apply(&q).map(drop)
        },
        |e| match e {
            Error::Rank { rank: 1, error } => {
                matches!(**error, Error::NotFinite { array: "strengths", row: 7, column: 0, .. })
            }
            _ => false,
        },
    );
    // The lowest of two ranks that fail.
    all_get(
        |plan, r, q| plan.apply(if r > 0 { &q[1..] } else { q }).map(drop),
        |e| matches!(e, Error::Rank { rank: 1, error } if matches!(**error, Error::Shape { .. })),
    );
    // Points that are not finite, when they move.
    all_get(
        |plan, r, _| {
            let mut x = CloudKind::Uniform.points(300, 8);
            if r == 2 {
                x[4] = f64::INFINITY;
            }
            plan.set_points(&x, Targets::Sources)
        },
        |e| matches!(e, Error::Rank { rank: 2, error } if matches!(**error, Error::NotFinite { row: 1, column: 1, .. })),
    );
    // Batches of different numbers of sets.
    all_get(
        |plan, r, q| plan.apply_batch(&vec![q; 2 + r / 2]).map(drop),
        |e| matches!(e, Error::RanksDiffer { rank: 2, .. }),
    );
}

#[test]
fn requests_that_differ_or_are_not_served_are_refused_by_all() {
    let x = CloudKind::Uniform.points(300, 3);
    let refused = |builder: &(dyn Fn(usize) -> Fmm + Sync), named: &str| {
        let results = threads_within(SOON, 3, |world| {
            builder(world.rank()).ranks(&world).plan(piece(&x, 3, &[1; 3], world.rank()), Targets::Sources).map(drop)
        });
        let errors: Vec<Error> = results.into_iter().map(|r| r.unwrap().unwrap_err()).collect();
        assert!(errors.iter().all(|e| *e == errors[0] && e.to_string().contains(named)), "{errors:?}");
    };
    refused(&|r| Fmm::new(Laplace).tolerance(if r == 2 { 1e-3 } else { 1e-4 }), "differ in the tolerance: rank 2");
    refused(&|r| of_order(Laplace, 4).precision([Precision::F64, Precision::F32, Precision::F64][r]), "the precision");
    refused(&|_| Fmm::new(Laplace).order(99), "99");
    refused(&|r| of_order(Laplace, 4).speed(r as f64 - 1.0), "speed");
    refused(&|_| Fmm::new(Laplace).backend(fmm::Cuda { device: 999, ..Default::default() }), "no CUDA device");
    refused(&|_| Fmm::new(Laplace).backend(fmm::Cuda::devices([0, 1])), "a rank has one GPU");
    refused(
        &|r| if r == 2 { Fmm::new(Laplace).backend(fmm::Cuda::default()) } else { Fmm::new(Laplace) },
        "the backend",
    );
    let kinds = threads_within(SOON, 2, |world| {
        let targets = if world.rank() == 0 { Targets::Sources } else { Targets::Points(&x) };
        of_order(Laplace, 4).ranks(&world).plan(&x, targets).map(drop)
    });
    assert!(kinds.into_iter().all(|r| matches!(r.unwrap(), Err(Error::RanksDiffer { rank: 1, .. }))));
    let plane = threads_within(SOON, 2, |world| {
        Fmm::new(fmm::Laplace2d).ranks(&world).plan(&x[..200], Targets::Sources).map(drop).unwrap_err()
    });
    assert!(plane.into_iter().all(|e| e.unwrap().to_string().contains("kernels of the plane")));
}

/// Cancels, or panics, in a stage of one rank.
fn stopped_in(phase: &'static str, panics: bool) -> Vec<Result<Result<Vec<f64>, Error>, Error>> {
    let (x, q) = (CloudKind::Uniform.points(900, 3), strengths(900, 4));
    threads_within(SOON, 3, |world| {
        let (r, on) = (world.rank(), std::sync::Arc::new(AtomicBool::new(true)));
        let armed = on.clone();
        let builder = of_order(Laplace, 4).progress(move |p| {
            let hit = r == 1 && p.phase == phase && armed.load(Ordering::Relaxed);
            assert!(!(hit && panics), "a stage of this rank panics");
            !hit
        });
        let mine = piece(&x, 3, &[1; 3], r);
        let q = piece(&q, 1, &[1; 3], r);
        let plan = builder.ranks(&world).plan(mine, Targets::Sources)?;
        let error = plan.apply(q).map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Rank { rank: 1, error } if **error == Error::Cancelled { stage: phase }),
            "{error:?}"
        );
        on.store(false, Ordering::Relaxed);
        Ok(plan.apply(q)?.potential)
    })
}

#[test]
fn cancellation_and_panics_in_any_stage_reach_all() {
    let (x, q) = (CloudKind::Uniform.points(900, 3), strengths(900, 4));
    let one = of_order(Laplace, 4).plan(&x, Targets::Sources).unwrap().apply(&q).unwrap();
    for stage in ["scatter", "p2m", "m2m", "m2l", "p2l", "l2l", "l2p", "m2p", "p2p", "gather"] {
        let start = Instant::now();
        let after: Vec<f64> = stopped_in(stage, false).into_iter().flat_map(|r| r.unwrap().unwrap()).collect();
        assert_eq!(after, one.potential, "{stage}");
        assert!(start.elapsed() < SOON);
    }
    for stage in ["tree", "lists", "operators"] {
        let start = Instant::now();
        for result in stopped_in(stage, false) {
            let error = result.unwrap().unwrap_err();
            assert_eq!(error, Error::Rank { rank: 1, error: Box::new(Error::Cancelled { stage }) });
        }
        assert!(start.elapsed() < SOON);
    }
    for stage in ["tree", "m2m", "m2l", "gather"] {
        let start = Instant::now();
        for (rank, result) in stopped_in(stage, true).into_iter().enumerate() {
            let lost = match result {
                Ok(Err(error)) => error,
                Err(error) => error,
                Ok(Ok(_)) => panic!("{stage}: rank {rank} did not notice"),
            };
            // Where the test expects a cancellation, the panic of another rank is a panic here, too.
            let named =
                matches!(&lost, Error::RankLost { rank: 1, .. }) || lost.to_string().contains("RankLost { rank: 1");
            assert!(named, "{stage}: rank {rank}: {lost:?}");
        }
        assert!(start.elapsed() < SOON);
    }
}

#[test]
fn a_rank_that_ends_or_is_silent_is_lost() {
    let x = CloudKind::Uniform.points(300, 3);
    let plan = |world: &World| {
        of_order(Laplace, 4).ranks(world).plan(piece(&x, 3, &[1; 3], world.rank()), Targets::Sources).map(drop)
    };
    let start = Instant::now();
    let results = threads_within(SOON, 3, |world| if world.rank() == 2 { Ok(()) } else { plan(&world) });
    assert!(results[..2].iter().all(|r| matches!(r, Ok(Err(Error::RankLost { rank: 2, .. })))), "{results:?}");
    let results = threads_within(Duration::from_millis(500), 3, |world| {
        if world.rank() == 2 {
            std::thread::sleep(Duration::from_secs(3));
        }
        if world.rank() == 2 { Ok(()) } else { plan(&world) }
    });
    assert!(results[..2].iter().all(|r| matches!(r, Ok(Err(Error::RankLost { rank: 2, .. })))), "{results:?}");
    assert!(start.elapsed() < SOON);
}

#[test]
fn the_command_gives_the_bits_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &str| {
        let out = folder.path().join(name);
        let args = format!("run --demo ellipsoid --n 4000 --tolerance 1e-3 --outputs potential,gradient --json {more}");
        let mut args: Vec<&str> = args.split_whitespace().collect();
        args.extend(["--out", out.to_str().unwrap()]);
        let report = json(&args);
        (report, ["potential", "gradient", "sources", "strengths"].map(|array| read_npz(&out, array)))
    };
    let (one, arrays) = run("one.npz", "");
    for ranks in ["2", "3", "4"] {
        let (report, found) = run("some.npz", &format!("--ranks {ranks} --threads 1 --verify 200"));
        assert_eq!(found, arrays, "{ranks} ranks");
        assert_eq!((&report["order"], &report["n_sources"]), (&one["order"], &one["n_sources"]));
        assert_eq!(report["plan"]["ranks"]["ranks"].to_string(), ranks);
    }
    for exchange in ["direct", "hypercube", "manager", "frontier"] {
        let (report, found) = run("some.npz", &format!("--ranks 3 --exchange {exchange}"));
        assert_eq!(report["plan"]["ranks"]["exchange"], exchange);
        assert!(difference(&found[0].1, &arrays[0].1) < 1e-13);
    }
    let (_, found) = run("some.npz", "--ranks 3 --speeds 1,2,0.5");
    assert_eq!(found, arrays);
    // Ranks that own all their points sum at as many points as before.
    let args = ["run", "--demo", "uniform", "--n", "2000", "--ranks", "3", "--adopt", "--verify", "100", "--json"];
    let adopted = json(&args);
    assert_eq!(adopted["n_sources"], 2000);
    for (options, said) in [
        (&["--exchange", "direct"][..], "exchanges nothing"),
        (&["--adopt"], "one rank owns all points"),
        (&["--ranks", "2", "--adopt", "--out", "x.npz"], "order of the owners"),
        (&["--speeds", "1"], "there is one rank"),
        (&["--ranks", "3", "--speeds", "1,2"], "2 numbers for 3 ranks"),
    ] {
        assert!(refused(&[&["run", "--demo", "uniform", "--n", "100"], options].concat()).contains(said));
    }
    let plane = ["run", "--kernel", "laplace2d", "--demo", "uniform2d", "--n", "500", "--ranks", "2"];
    assert!(refused(&plane).contains("kernels of the plane"));
}

#[test]
fn outputs_that_were_not_asked_for_stay_empty() {
    let x = CloudKind::Uniform.points(200, 3);
    let results = threads(2, |world| {
        let mine = piece(&x, 3, &[1; 2], world.rank());
        let plan = Fmm::new(Laplace).order(4).outputs(Outputs::POTENTIAL).ranks(&world).plan(mine, Targets::Sources)?;
        let transposed = plan.apply_transpose(&[1.0; 100]).map(drop);
        Ok::<_, Error>((plan.apply(&[1.0; 100])?, transposed, plan.near_field().count(), plan.describe()))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (out, transposed, blocks, described) = result.unwrap().unwrap();
        assert!(out.potential.len() == 100 && out.gradient.is_empty() && blocks == 0);
        assert!(matches!(transposed, Err(Error::Unsupported { operation: "apply_transpose", .. })));
        assert_eq!(described.ranks.map(|r| (r.rank, r.ranks)), Some((rank, 2)));
    }
}
