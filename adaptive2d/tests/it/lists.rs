//! The pyramid and its lists: population, containment, the constant-one oracle through the driver.

use adaptive2d::connect::{Coupling, coupling};
use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions, connect};
use backend_cpu::pairwise::Pairwise;
use fmm_traits::constant_one::{ConstantOne, expected, wrong_pairs};
use fmm_traits::testkit::clouds::integer_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Error, Hierarchy};
use proptest::prelude::*;
use std::sync::Arc;

fn exact(sources: &[f64], targets: Option<&[f64]>, population: f64, connection: &ConnectOptions) -> Result<(), String> {
    let pyramid = Pyramid::build(sources, targets, &PyramidOptions { population, depth: None }).unwrap();
    let lists = connect(&pyramid, connection).unwrap();
    let strengths = integer_strengths(pyramid.sources.len(), 7);
    let found = Pairwise::new(&pyramid, &lists, &ConstantOne).unwrap().apply(&strengths, &mut |_, _| true).unwrap();
    if found != expected(&strengths, pyramid.targets.len(), pyramid.same_points()) {
        return Err(format!("wrong sums; wrong pairs: {:?}", wrong_pairs(&pyramid, &lists, 5)));
    }
    Ok(())
}

#[test]
fn constant_one_is_exact_on_every_cloud() {
    for kind in PlaneKind::ALL {
        for n in [0, 1, 2, 3, 40, 3000] {
            for (population, theta) in [(1.0, 0.5), (10.0, 0.3), (40.0, 0.5), (40.0, 0.9), (1e4, 0.5)] {
                let connection = ConnectOptions { theta, ..Default::default() };
                exact(&kind.points(n, 11), None, population, &connection)
                    .unwrap_or_else(|e| panic!("{} {n} {population} {theta}: {e}", kind.name()));
            }
        }
    }
}

/// One point more or less than fills a pyramid, with leaves of one point and of some.
#[test]
fn constant_one_is_exact_around_powers_of_four() {
    for n in (0..7).flat_map(|k| [-1, 0, 1].map(|d| ((1 << (2 * k)) + d) as usize)) {
        for kind in [PlaneKind::Uniform, PlaneKind::Grid, PlaneKind::Line, PlaneKind::FiftyCopies] {
            for population in [1.0, 10.0] {
                let points = kind.points(n, 13);
                exact(&points, None, population, &ConnectOptions::default()).unwrap_or_else(|e| panic!("{n}: {e}"));
                // Half of the boxes have no sources, the other half no targets.
                let beside: Vec<f64> = points.chunks(2).flat_map(|p| [p[0] + 1.0, p[1]]).collect();
                exact(&points, Some(&beside), population, &ConnectOptions::default()).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn constant_one_is_exact_on_pairs_of_clouds(
        s in proptest::sample::select(&PlaneKind::ALL[..]), sn in 0usize..2000,
        t in proptest::sample::select(&PlaneKind::ALL[..]), tn in 0usize..2000,
        population in 1.0..100.0, theta in 0.05..0.95,
        (m2p_min_sources, p2l_min_targets) in (0usize..40, 0usize..40),
    ) {
        let connection = ConnectOptions { theta, m2p_min_sources, p2l_min_targets };
        prop_assert_eq!(exact(&s.points(sn, 1), Some(&t.points(tn, 2)), population, &connection), Ok(()));
    }
}

#[test]
fn leaves_are_equally_populated_and_boxes_hold_their_points() {
    for kind in PlaneKind::ALL {
        let p = Pyramid::build(&kind.points(5000, 3), None, &PyramidOptions { population: 20.0, depth: None }).unwrap();
        let n = p.sources.len();
        let mut seen = vec![false; n];
        p.sources.order.iter().for_each(|&i| seen[i as usize] = true);
        assert!(seen.iter().all(|&s| s), "{}: not a permutation", kind.name());
        for l in 0..p.levels() {
            let mean = n as f64 / p.level(l).len() as f64;
            for b in p.level(l) {
                let own = p.sources_of(b);
                assert!((own.len() as f64 - mean).abs() < 2.0, "{} level {l}: {own:?} of {mean}", kind.name());
                for i in own {
                    let d = (p.sources.x[i] - p.center[b][0]).hypot(p.sources.y[i] - p.center[b][1]);
                    assert!(d <= p.radius[b], "{} box {b}: {d} > {}", kind.name(), p.radius[b]);
                }
                if l > 0 {
                    let parent = p.parent(b) as usize;
                    assert!(p.level(l - 1).contains(&parent));
                    let (own, all) = (p.sources_of(b), p.sources_of(parent));
                    assert!(all.start <= own.start && own.end <= all.end);
                }
            }
        }
    }
}

#[test]
fn depth_follows_equation_5_2() {
    // The paper: N_d = 45 gives 8 levels for N in (18·2¹⁶, 72·2¹⁶].
    assert_eq!(adaptive2d::pyramid::depth_for(18.0 * 65536.0, 45.0), 7);
    assert_eq!(adaptive2d::pyramid::depth_for(18.0 * 65536.0 + 1.0, 45.0), 8);
    assert_eq!(adaptive2d::pyramid::depth_for(72.0 * 65536.0, 45.0), 8);
    assert_eq!(adaptive2d::pyramid::depth_for(0.0, 45.0), 0);
}

#[test]
fn edges_satisfy_the_criterion() {
    let p = Pyramid::build(&PlaneKind::Normal.points(20_000, 3), None, &PyramidOptions::default()).unwrap();
    let lists = connect(&p, &ConnectOptions::default()).unwrap();
    // The criterion itself (eq. 2.1), apart from the function that `connect` uses: with R the larger radius, r the
    // smaller one and d the distance of the centres, R + θr ≤ θd; with the radii exchanged for P2L and M2P.
    let kind = |t: u32, s: u32| {
        let (t, s) = (t as usize, s as usize);
        let d = (p.center[s][0] - p.center[t][0]).hypot(p.center[s][1] - p.center[t][1]);
        let [large, small] = [p.radius[t].max(p.radius[s]), p.radius[t].min(p.radius[s])];
        match () {
            _ if large + 0.5 * small <= 0.5 * d => Coupling::Weak,
            _ if small + 0.5 * large <= 0.5 * d => Coupling::Swapped,
            _ => Coupling::Strong,
        }
    };
    assert!(lists.m2l.iter().all(|(t, s)| kind(t, s) == Coupling::Weak));
    assert!(
        lists.p2l.iter().all(|(t, s)| kind(t, s) == Coupling::Swapped && p.radius[t as usize] < p.radius[s as usize])
    );
    assert!(
        lists.m2p.iter().all(|(t, s)| kind(t, s) == Coupling::Swapped && p.radius[s as usize] < p.radius[t as usize])
    );
    assert!(lists.p2p.iter().all(|(t, s)| kind(t, s) == Coupling::Strong));
    assert!(!lists.p2l.is_empty() && lists.p2l.len() == lists.m2p.len());
    // Two boxes without extent at one place are not separated (0 ≤ 0).
    assert_eq!(coupling(0.5, [0.0, 0.0], [0.0, 0.0]), Coupling::Strong);
}

#[test]
fn the_pyramid_does_not_depend_on_threads() {
    let points = PlaneKind::Layer.points(200_000, 3);
    let build = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let p = Pyramid::build(&points, None, &PyramidOptions::default()).unwrap();
            let lists = connect(&p, &ConnectOptions::default()).unwrap();
            (p.sources.order.clone(), p.radius.clone(), lists)
        })
    };
    assert!(build(1) == build(3));
}

#[test]
fn bad_input_is_refused() {
    let build = |p: &[f64], population, depth| Pyramid::build(p, None, &PyramidOptions { population, depth });
    assert!(matches!(build(&[0.0, 1.0, 2.0], 40.0, None), Err(Error::Shape { found: 3, .. })));
    let at = Err(Error::NotFinite { array: "sources", row: 1, column: 0, value: f64::INFINITY });
    assert_eq!(build(&[0.0, 1.0, f64::INFINITY, 0.0], 40.0, None).map(|_| ()), at);
    assert!(matches!(build(&[], 0.5, None), Err(Error::Parameter { name: "population", .. })));
    assert!(matches!(build(&[], 40.0, Some(16)), Err(Error::Parameter { name: "depth", .. })));
    let p = build(&[0.0, 0.0], 40.0, Some(2)).unwrap();
    for theta in [0.0, 1.0, f64::NAN] {
        let refused = connect(&p, &ConnectOptions { theta, ..Default::default() });
        assert!(matches!(refused, Err(Error::Parameter { name: "theta", .. })));
    }
}

/// Fewer points in the same boxes: each meets all others once through the lists of the whole.
#[test]
fn thinned_pyramids_keep_their_boxes() {
    for kind in PlaneKind::ALL {
        for targets in [None, Some(PlaneKind::Layer.points(700, 2))] {
            let points = kind.points(900, 1);
            let options = PyramidOptions { population: 9.0, depth: None };
            let all = Pyramid::build(&points, targets.as_deref(), &options).unwrap();
            let lists = connect(&all, &ConnectOptions::default()).unwrap();
            let every = |n: usize, first: usize, step: usize| (first..n).step_by(step).map(|i| i as u32).collect();
            let kept: [Vec<u32>; 2] = [every(all.sources.len(), 1, 3), every(all.targets.len(), 0, 7)];
            let thin = all.thinned(&kept[0], &kept[1]);
            thin.check().unwrap();
            assert!(!thin.same_points() && thin.center == all.center && thin.radius == all.radius);
            for (points, of, kept) in [(&thin.sources, &all.sources, &kept[0]), (&thin.targets, &all.targets, &kept[1])]
            {
                assert!(points.order.iter().enumerate().all(|(i, &own)| own == i as u32));
                let here = points.x.iter().zip(&points.y);
                assert!(here.eq(kept.iter().map(|&i| (&of.x[i as usize], &of.y[i as usize]))));
            }
            for b in 0..all.len() {
                let of = |all: std::ops::Range<usize>, kept: &[u32]| {
                    let first = |end: usize| kept.iter().filter(|&&i| (i as usize) < end).count();
                    first(all.start)..first(all.end)
                };
                assert_eq!(thin.sources_of(b), of(all.sources_of(b), &kept[0]), "{} {b}", kind.name());
                assert_eq!(thin.targets_of(b), of(all.targets_of(b), &kept[1]), "{} {b}", kind.name());
            }
            let strengths = integer_strengths(thin.sources.len(), 7);
            for lists in [&lists, &connect(&thin, &ConnectOptions::default()).unwrap()] {
                let mut run = Pairwise::new(&thin, lists, &ConstantOne).unwrap();
                let found = run.apply(&strengths, &mut |_, _| true).unwrap();
                assert_eq!(found, expected(&strengths, thin.targets.len(), false), "{}", kind.name());
            }
            let none = all.thinned(&[], &[]);
            assert!(none.check().is_ok() && none.sources.is_empty() && none.targets_of(0).is_empty());
        }
    }
}

#[test]
fn arrays_of_another_pyramid_are_seen() {
    let options = PyramidOptions { population: 9.0, depth: Some(2) };
    let of = |n, targets: Option<&[f64]>| Pyramid::build(&PlaneKind::Uniform.points(n, 1), targets, &options).unwrap();
    let pyramid = of(300, Some(&PlaneKind::Normal.points(200, 2)));
    pyramid.check().unwrap();
    let damaged = |damage: &dyn Fn(&mut Pyramid)| {
        let mut p = pyramid.clone();
        damage(&mut p);
        p.check()
    };
    let order = |at: usize, index: u32| damaged(&|p| Arc::make_mut(&mut p.targets).order[at] = index);
    let twice = pyramid.targets.order[0];
    assert!(
        matches!(order(150, twice), Err(Error::Edge { target, .. }) if pyramid.targets_of(target as usize).contains(&150))
    );
    assert!(matches!(order(3, 200), Err(Error::Edge { .. })));
    assert!(matches!(damaged(&|p| p.targets = p.sources.clone()), Err(Error::Edge { .. })));
    assert!(matches!(damaged(&|p| p.targets = of(200, None).targets.clone()), Ok(())));
    assert!(matches!(damaged(&|p| p.sources = of(200, None).sources.clone()), Err(Error::Shape { .. })));
    assert!(matches!(damaged(&|p| Arc::make_mut(&mut p.sources).y.truncate(9)), Err(Error::Shape { .. })));
    assert!(matches!(damaged(&|p| p.radius.truncate(3)), Err(Error::Shape { .. })));
    assert!(matches!(Pyramid::default().check(), Err(Error::Shape { .. })));
}

#[test]
#[should_panic(expected = "ascend")]
fn positions_that_do_not_ascend_are_no_thinning() {
    let p = Pyramid::build(&PlaneKind::Uniform.points(30, 1), None, &PyramidOptions::default()).unwrap();
    p.thinned(&[3, 2], &[]);
}
