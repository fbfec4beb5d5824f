//! The plane: pyramid and lists array by array.

use super::{build, population};
use crate::Test;
use adaptive2d::pyramid::level_start;
use adaptive2d::{ConnectOptions, PlanePoints, Pyramid, PyramidOptions, connect};
use backend_cuda::{Device, DevicePyramid, PlaneLists, plane_connect};
use fmm_traits::Lists;
use fmm_traits::testkit::clouds::Generator;
use fmm_traits::testkit::plane::PlaneKind;

pub const TESTS: &[Test] = &[
    ("plane::every_cloud_gives_the_pyramid_of_sorted_splits", pyramids),
    ("plane::pyramids_around_powers_of_four", powers),
    ("plane::the_cpu_has_the_same_pyramid", same_as_cpu),
    ("plane::sources_and_targets_apart", two_clouds),
    ("plane::many_points", many),
    ("plane::lists_equal_those_of_the_cpu", lists),
];

/// The pyramid by sorting: every box is sorted by coordinate, then by index, and cut in the middle.
fn by_sorting(s: &[f64], t: Option<&[f64]>, depth: usize) -> Vec<Vec<u32>> {
    let all: Vec<[f64; 2]> = s.iter().chain(t.unwrap_or(&[])).copied().collect::<Vec<_>>().as_chunks().0.to_vec();
    fn longer(b: [[f64; 2]; 2]) -> usize {
        usize::from(b[1][1] - b[0][1] > b[1][0] - b[0][0])
    }
    let halve = |mut items: Vec<u32>, axis: usize| {
        items.sort_by(|&a, &b| (all[a as usize][axis] + 0.0).total_cmp(&(all[b as usize][axis] + 0.0)).then(a.cmp(&b)));
        let cut = items.get(items.len() / 2).map_or(0.0, |&i| all[i as usize][axis]);
        let upper = items.split_off(items.len() / 2);
        (items, upper, cut)
    };
    let mut boxes: Vec<Vec<u32>> = vec![(0..all.len() as u32).collect()];
    for _ in 0..depth {
        let mut next = Vec::new();
        for items in boxes {
            let mut bounds = [[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]];
            for &i in &items {
                for a in 0..2 {
                    bounds[0][a] = bounds[0][a].min(all[i as usize][a]);
                    bounds[1][a] = bounds[1][a].max(all[i as usize][a]);
                }
            }
            let axis = longer(bounds);
            let (lower, upper, cut) = halve(items, axis);
            for (half, end) in [(lower, 1), (upper, 0)] {
                let mut own = bounds;
                own[end][axis] = cut;
                let (a, b, _) = halve(half, longer(own));
                next.extend([a, b]);
            }
        }
        boxes = next;
    }
    for items in &mut boxes {
        items.sort_unstable();
    }
    boxes
}

/// The caller's indices of each leaf, sources first, in ascending order.
fn leaves(p: &Pyramid) -> Vec<Vec<u32>> {
    let (first, n) = (level_start(p.depth()), p.sources.len() as u32);
    let of_leaf = |k: usize| {
        let mut all: Vec<u32> = p.sources.order[p.sources_of(first + k)].to_vec();
        if !p.same_points() {
            all.extend(p.targets.order[p.targets_of(first + k)].iter().map(|i| i + n));
        }
        all.sort_unstable();
        all
    };
    (0..1 << (2 * p.depth())).map(of_leaf).collect()
}

/// Checks that points are those of the caller, and boxes those around their points.
fn check(p: &Pyramid, s: &[f64], t: Option<&[f64]>, what: &str) {
    for (points, given) in [(&p.sources, s), (&p.targets, t.unwrap_or(s))] {
        assert_eq!(points.len(), given.len() / 2, "{what}");
        for (k, &i) in points.order.iter().enumerate() {
            let own = [points.x[k], points.y[k]];
            assert_eq!(own, [given[2 * i as usize], given[2 * i as usize + 1]], "{what}: point {i}");
        }
    }
    // The boxes of a pyramid of the CPU with the same leaves.
    let order: Vec<u32> = leaves(p).concat();
    let all: Vec<f64> = s.iter().chain(t.unwrap_or(&[])).copied().collect();
    let first = level_start(p.depth());
    for b in 0..p.len() {
        let own: Vec<[f64; 2]> = p.leaves_of(b).flat_map(|k| leaf_points(p, first + k)).collect();
        let [mut low, mut high] = [[f64::INFINITY; 2], [f64::NEG_INFINITY; 2]];
        for x in &own {
            for a in 0..2 {
                (low[a], high[a]) = (low[a].min(x[a]), high[a].max(x[a]));
            }
        }
        let mid = |a: usize| if own.is_empty() { 0.0 } else { low[a] + 0.5 * (high[a] - low[a]) };
        assert_eq!(p.center[b], [mid(0), mid(1)], "{what}: centre of {b}");
        for x in &own {
            let d = (x[0] - p.center[b][0]).hypot(x[1] - p.center[b][1]);
            assert!(d <= p.radius[b], "{what}: box {b}: {d} > {}", p.radius[b]);
        }
        assert!(!own.is_empty() || p.radius[b] == 0.0, "{what}");
    }
    assert_eq!(2 * order.len(), all.len(), "{what}");
}

fn leaf_points(p: &Pyramid, leaf: usize) -> Vec<[f64; 2]> {
    let of = |points: &PlanePoints, range: std::ops::Range<usize>| {
        range.map(|i| [points.x[i], points.y[i]]).collect::<Vec<_>>()
    };
    let mut all = of(&p.sources, p.sources_of(leaf));
    if !p.same_points() {
        all.extend(of(&p.targets, p.targets_of(leaf)));
    }
    all
}

fn same_as_sorted(device: &Device, s: &[f64], t: Option<&[f64]>, options: &PyramidOptions, what: &str) -> Pyramid {
    let there = build(device, s, t, options).download().unwrap();
    assert_eq!(there.depth(), options.depth_of(s.len() / 2, t.map(|t| t.len() / 2)).unwrap());
    check(&there, s, t, what);
    assert_eq!(leaves(&there), by_sorting(s, t, there.depth()), "{what}");
    there
}

fn pyramids(device: &Device) {
    for kind in PlaneKind::ALL {
        for n in [0, 1, 2, 9, 300, 5000] {
            for size in [1.0, 7.0, 60.0] {
                let what = format!("{} {n} {size}", kind.name());
                same_as_sorted(device, &kind.points(n, 5), None, &population(size), &what);
            }
        }
    }
    // Deeper than the points.
    for n in [3, 20] {
        same_as_sorted(
            device,
            &PlaneKind::Normal.points(n, 5),
            None,
            &PyramidOptions { depth: Some(5), ..population(1.0) },
            "deep",
        );
    }
    // Zeros of both signs are equal.
    let mut g = Generator::new(3);
    let values = [0.0, -0.0, 1e-200, -1e-200, 1e-30, -1.0, 1e90];
    let p: Vec<f64> = (0..2000).map(|_| values[(g.bits() % 7) as usize]).collect();
    same_as_sorted(device, &p, None, &population(3.0), "zeros");
}

fn powers(device: &Device) {
    for power in (0..8).map(|k| 1usize << (2 * k)) {
        for n in [power - 1, power, power + 1] {
            for kind in [PlaneKind::Uniform, PlaneKind::Grid, PlaneKind::FiftyCopies] {
                same_as_sorted(device, &kind.points(n, 8), None, &population(10.0), &format!("{} {n}", kind.name()));
            }
        }
    }
}

/// The CPU distributes points with equal coordinates in another way, so these clouds have none.
fn same_as_cpu(device: &Device) {
    let near = |a: f64, b: f64| (a - b).abs() <= 4.0 * f64::EPSILON * b;
    for kind in [PlaneKind::Uniform, PlaneKind::Normal, PlaneKind::Layer, PlaneKind::Spiral, PlaneKind::TwoClusters] {
        for (n, with_targets) in [(1, false), (5000, false), (40_000, false), (3000, true)] {
            let (s, t) = (kind.points(n, 6), PlaneKind::Normal.points(1234, 7));
            let t = with_targets.then_some(&t[..]);
            let here = Pyramid::build(&s, t, &population(30.0)).unwrap();
            let there = build(device, &s, t, &population(30.0)).download().unwrap();
            let what = format!("{} {n}", kind.name());
            assert_eq!(there.starts(), here.starts(), "{what}");
            assert_eq!(leaves(&there), leaves(&here), "{what}");
            assert_eq!(there.center, here.center, "{what}");
            let first = level_start(here.depth());
            assert_eq!(there.radius[first..], here.radius[first..], "{what}");
            assert!(there.radius.iter().zip(&here.radius).all(|(&a, &b)| near(a, b)), "{what}");
        }
    }
}

fn two_clouds(device: &Device) {
    let mut g = Generator::new(11);
    for case in 0..60 {
        let mut cloud = |shift: f64, scale: f64| -> Vec<f64> {
            let kind = PlaneKind::ALL[(g.bits() % 12) as usize];
            let n = (g.bits() % if case % 3 == 0 { 20 } else { 1500 }) as usize;
            kind.points(n, g.bits()).iter().map(|x| shift + scale * x).collect()
        };
        let (s, t) = (cloud(0.0, 1.0), cloud([0.0, 0.4, -2.0][case % 3], [1.0, 1e-3, 30.0][case / 3 % 3]));
        let size = 1.0 + (case * case % 50) as f64;
        let there = same_as_sorted(device, &s, Some(&t), &population(size), &format!("case {case}"));
        same_lists(device, &there, &ConnectOptions { theta: 0.3 + 0.01 * case as f64, ..Default::default() });
    }
}

/// So many points that segments are split by several blocks.
fn many(device: &Device) {
    for kind in [PlaneKind::Normal, PlaneKind::Grid, PlaneKind::Coincident] {
        let s = kind.points(30_011, 12);
        same_as_sorted(device, &s, None, &population(20.0), kind.name());
        same_as_sorted(device, &s, None, &PyramidOptions { depth: Some(1), ..population(20.0) }, kind.name());
        same_as_sorted(device, &s, Some(&PlaneKind::Layer.points(9000, 3)), &population(40.0), kind.name());
    }
    // Columns and rows of more points than a run of a sort may have, among points that differ.
    for axis in 0..2 {
        let mut s = PlaneKind::Uniform.points(40_000, 13);
        s.chunks_exact_mut(2).step_by(300).for_each(|point| point[axis] = 0.5);
        same_as_sorted(device, &s, None, &population(20.0), "a line of points");
    }
}

/// Compares the lists of a pyramid, and their round trip.
fn same_lists(device: &Device, p: &Pyramid, options: &ConnectOptions) -> Lists {
    let here = connect(p, options).unwrap();
    let there = DevicePyramid::upload(device, p).unwrap();
    let lists = plane_connect(&there, options).unwrap();
    let copy = lists.download(device, p).unwrap();
    crate::topology::equal_lists(&copy, &here, "lists");
    let pairs =
        here.p2p.iter().map(|(t, s)| p.targets_of(t as usize).len() * p.sources_of(s as usize).len()).sum::<usize>();
    assert_eq!(lists.near_pairs(), pairs as u64);
    let again = PlaneLists::upload(device, p, &here).unwrap();
    assert_eq!((again.edges(), again.near_pairs()), (lists.edges(), lists.near_pairs()));
    crate::topology::equal_lists(&again.download(device, p).unwrap(), &here, "uploaded lists");
    here
}

fn lists(device: &Device) {
    let mut swapped = 0;
    for kind in PlaneKind::ALL {
        for (n, size, theta) in [(0, 10.0, 0.5), (1, 10.0, 0.5), (700, 1.0, 0.5), (3000, 12.0, 0.3), (9000, 20.0, 0.55)]
        {
            let p = Pyramid::build(&kind.points(n, 9), None, &population(size)).unwrap();
            for (m2p_min_sources, p2l_min_targets) in [(0, 0), (11, 12)] {
                let lists = same_lists(device, &p, &ConnectOptions { theta, m2p_min_sources, p2l_min_targets });
                swapped += lists.p2l.len();
            }
        }
    }
    assert!(swapped > 100);
}
