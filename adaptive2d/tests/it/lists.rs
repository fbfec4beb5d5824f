//! The pyramid and its lists: population, containment, the constant-one oracle through the driver.

use adaptive2d::connect::{Coupling, coupling};
use adaptive2d::{ConnectOptions, Pyramid, PyramidOptions, connect};
use backend_cpu::pairwise::Pairwise;
use fmm_traits::constant_one::{ConstantOne, expected, wrong_pairs};
use fmm_traits::testkit::clouds::integer_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Error, Hierarchy};
use proptest::prelude::*;

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
    let kind = |t: u32, s: u32| {
        let (t, s) = (t as usize, s as usize);
        let d = [p.center[s][0] - p.center[t][0], p.center[s][1] - p.center[t][1]];
        coupling(0.5, [p.radius[t], p.radius[s]], d)
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
