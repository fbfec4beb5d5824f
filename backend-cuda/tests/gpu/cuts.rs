//! What a probe reads of a tree and its lists on the device, and the small problem that it cuts out, against the host.

use crate::Test;
use adaptive2d::{ConnectOptions, PyramidOptions};
use backend_cpu::Isa;
use backend_cpu::laurent::{PlanePairs, direct};
use backend_cuda::{CallerPoints, Cut, Device, plane_build, plane_connect, plane_sums};
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::tree::NONE;
use fmm_traits::{Hierarchy, Lists};
use fmm_tree::DISTANCES;

pub const TESTS: &[Test] =
    &[("cuts::a_pyramid_is_cut_as_on_the_host", pyramids), ("cuts::direct_sums_of_a_sample_in_the_plane", sums)];

/// Compares all that a probe reads. `here` and `lists` are copies of tree and lists.
pub fn same(cut: &Cut, here: &impl Hierarchy, lists: &Lists, [sources, targets]: [&[u32]; 2], what: &str) {
    assert_eq!(cut.incoming().unwrap(), fmm_tree::incoming(here, lists), "{what}");
    // The last one is 0 at all distances, and left out.
    let weights: [[f64; DISTANCES]; 3] = [1.7f64, 0.9, 0.0].map(|x| std::array::from_fn(|k| x.powi(k as i32 + 1)));
    assert_eq!(cut.far_factors(&weights[2..], 2).unwrap(), None, "{what}");
    let targets_of = |b: usize| here.targets_of(b).len() as f64;
    let arrays = fmm_tree::far_squares(here, lists, &weights, 2, |_, _| 1.0).into_iter();
    let mean = |squares: &[f64]| (0..here.boxes()).map(|b| targets_of(b) * squares[b]).sum::<f64>() / targets_of(0);
    let arrays: Vec<(f64, Vec<f64>)> = arrays.map(|squares| (mean(&squares), squares)).filter(|a| a.0 > 0.0).collect();
    let found = cut.far_factors(&weights, 2).unwrap();
    assert_eq!(found.is_some(), !arrays.is_empty(), "{what}");
    for (b, found) in found.iter().flatten().enumerate() {
        let parts = arrays.iter().map(|(mean, squares)| squares[b] / mean).sum::<f64>();
        let factor = 0.5 + 0.5 * parts / arrays.len() as f64;
        assert!((found - factor).abs() <= 1e-12 * factor, "{what}: box {b}: {found} for {factor}");
    }
    let leaves: Vec<u32> = (0..here.boxes() as u32).filter(|&b| here.is_leaf(b as usize)).step_by(9).collect();
    let rows: Vec<u32> = leaves.iter().flat_map(|&b| lists.p2p.row(b as usize)).copied().collect();
    assert_eq!(cut.near_rows(&leaves).unwrap(), rows, "{what}");
    let far = [&lists.m2l, &lists.m2p, &lists.p2l].into_iter();
    let rows: Vec<u32> = far.flat_map(|e| leaves.iter().flat_map(|&b| e.row(b as usize)).copied()).collect();
    assert_eq!(cut.far_rows(&leaves).unwrap(), rows, "{what}");
    let axes = |points: Vec<[f64; 3]>| [0, 1, 2].map(|a| points.iter().map(|x| x[a]).collect::<Vec<f64>>());
    assert_eq!(cut.sources(sources).unwrap(), axes(sources.iter().map(|&k| here.source(k as usize)).collect()));
    assert_eq!(cut.targets(targets).unwrap(), axes(targets.iter().map(|&k| here.target(k as usize)).collect()));
    let indices: Vec<u32> = sources.iter().map(|&k| here.source_order()[k as usize]).collect();
    assert_eq!(cut.source_indices(sources).unwrap(), indices, "{what}");
    let sums = [cut.corner_sums(12).unwrap(), cut.corner_sums_of_sources(12).unwrap()];
    let (mean, found) = (sums[0].iter().sum::<f64>() / targets_of(0), cut.corner_mean(12).unwrap());
    assert!((found - mean).abs() <= 1e-12 * mean, "{what}: {found} for {mean}");
    for (level, b) in (0..here.levels()).flat_map(|l| here.level(l).map(move |b| (l, b))) {
        let cube = here.cube(b, level);
        let square = |x: [f64; 3]| (0..3).map(|a| ((x[a] - cube.center[a]) / cube.side).powi(2)).sum::<f64>();
        let power = |x: [f64; 3]| if here.is_leaf(b) { square(x).powi(12) } else { 0.0 };
        let of_targets = here.targets_of(b).map(|i| power(here.target(i))).sum::<f64>();
        let of_sources = here.sources_of(b).map(|i| power(here.source(i))).sum::<f64>();
        for (found, sum) in sums.iter().zip([of_targets, of_sources]) {
            assert!((found[b] - sum).abs() <= 1e-12 * sum, "{what}: box {b}: {} for {sum}", found[b]);
        }
    }
}

fn send(device: &Device, points: &[f64]) -> CallerPoints {
    CallerPoints::of_dim(device, 2, "points", points).unwrap()
}

fn pyramids(device: &Device) {
    let every = |n: usize, first: u32, step: usize| (first..n as u32).step_by(step).collect::<Vec<u32>>();
    for kind in [PlaneKind::Uniform, PlaneKind::FiftyCopies, PlaneKind::TwoClusters, PlaneKind::Outlier] {
        for apart in [false, true] {
            let (s, t) = (kind.points(3000, 1), PlaneKind::Layer.points(1200, 2));
            let there = apart.then(|| send(device, &t));
            let options = PyramidOptions { population: 9.0, ..PyramidOptions::default() };
            let connection = ConnectOptions { m2p_min_sources: 3, p2l_min_targets: 3, ..ConnectOptions::default() };
            let pyramid = plane_build(device, &send(device, &s), there.as_ref(), &options).unwrap();
            let edges = plane_connect(&pyramid, &connection).unwrap();
            let here = pyramid.download().unwrap();
            let (boxes, lists) = (pyramid.download_boxes().unwrap(), edges.download(device, &here).unwrap());
            assert_eq!((&boxes.center, &boxes.radius), (&here.center, &here.radius));
            assert_eq!((boxes.starts(), boxes.same_points()), (here.starts(), here.same_points()));
            let (of_errors, at) = (every(here.sources.len(), 0, 3), every(here.targets.len(), 1, 7));
            let what = format!("{} {apart}", kind.name());
            let cut = edges.cut(&pyramid).unwrap();
            same(&cut, &here, &lists, [&of_errors, &at], &what);

            let (small, few) = cut.thin_pyramid(&boxes, [&of_errors, &at]).unwrap();
            let expected = here.thinned(&of_errors, &at);
            assert_eq!((&small.center, &small.radius), (&expected.center, &expected.radius));
            assert_eq!(small.starts(), expected.starts());
            for (found, expected) in [(&small.sources, &expected.sources), (&small.targets, &expected.targets)] {
                assert_eq!((&found.x, &found.y, &found.order), (&expected.x, &expected.y, &expected.order));
            }
            let all: Vec<u32> = (0..small.len() as u32).collect();
            let numbers = |filled: &dyn Fn(usize) -> bool| -> Vec<u32> {
                all.iter().map(|&b| if filled(b as usize) { b } else { NONE }).collect()
            };
            let with_sources = numbers(&|b| !small.sources_of(b).is_empty());
            let with_targets = numbers(&|b| !small.targets_of(b).is_empty());
            let expected = fmm_tree::restrict(&lists, &all, &with_sources, &with_targets);
            crate::topology::equal_lists(&few, &expected, &what);
            small.check().unwrap();
        }
    }
}

fn sums(device: &Device) {
    let (s, t) = (PlaneKind::Normal.points(900, 3), PlaneKind::Uniform.points(70, 4));
    // A target on a source.
    let t = [&t[..], &s[..2]].concat();
    let lifted = |points: &[f64]| -> Vec<f64> { points.chunks(2).flat_map(|x| [x[0], x[1], 0.0]).collect() };
    for pairs in PlanePairs::all() {
        for derivatives in 0..3 {
            let q = [1, 2].map(|seed| normal_strengths(900 * pairs.strengths(), seed));
            let points = [&s, &t].map(|points| CallerPoints::new(device, "points", &lifted(points)).unwrap());
            let [sources, targets] = points;
            let sets = [&q[0][..], &q[1]];
            let found = plane_sums(device, pairs.kernel, derivatives, (sources, targets), &sets).unwrap();
            for (found, q) in found.iter().zip(sets) {
                let exact = direct(pairs, derivatives, &s, q, &t, Isa::detect()).unwrap();
                let width = pairs.kernel.values(derivatives);
                assert_eq!(found.len(), exact.len());
                for c in 0..width {
                    let of = |rows: &[f64]| rows.iter().skip(c).step_by(width).copied().collect::<Vec<f64>>();
                    let (found, exact) = (of(found), of(&exact));
                    let most = exact.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                    let error = found.iter().zip(&exact).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                    assert!(error <= 1e-12 * most, "{pairs:?} {derivatives} {c}: {error:e} of {most:e}");
                }
            }
        }
    }
}
