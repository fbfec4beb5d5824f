//! What a probe reads of a tree and its lists on the device, and the small problem that it cuts out, against the host.

use crate::Test;
use adaptive2d::{ConnectOptions, PyramidOptions};
use backend_cpu::Isa;
use backend_cpu::laurent::{PlanePairs, direct};
use backend_cuda::{
    CallerPoints, Cut, Device, LeafFields, Numbers, PointWeights, Shares, StrengthSets, plane_build, plane_connect,
    plane_sums,
};
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::tree::NONE;
use fmm_traits::{Hierarchy, Lists};
use fmm_tree::{DISTANCES, Incoming, Leaf};
use std::collections::{BTreeMap, BTreeSet};

pub const TESTS: &[Test] =
    &[("cuts::a_pyramid_is_cut_as_on_the_host", pyramids), ("cuts::direct_sums_of_a_sample_in_the_plane", sums)];

/// Compares all that a probe reads. `here` and `lists` are copies of tree and lists.
pub fn same(cut: &Cut, here: &impl Hierarchy, lists: &Lists, [sources, targets]: [&[u32]; 2], what: &str) {
    assert_eq!(cut.incoming().unwrap(), fmm_tree::incoming(here, lists), "{what}");
    // The last one is 0 at all distances, and left out.
    let weights: [[f64; DISTANCES]; 3] = [1.7f64, 0.9, 0.0].map(|x| std::array::from_fn(|k| x.powi(k as i32 + 1)));
    assert!(cut.far_factors(&weights[2..], 2).unwrap().is_none(), "{what}");
    let targets_of = |b: usize| here.targets_of(b).len() as f64;
    let arrays = fmm_tree::far_squares(here, lists, &weights, 2, |_, _| 1.0).into_iter();
    let mean = |squares: &[f64]| (0..here.boxes()).map(|b| targets_of(b) * squares[b]).sum::<f64>() / targets_of(0);
    let arrays: Vec<(f64, Vec<f64>)> = arrays.map(|squares| (mean(&squares), squares)).filter(|a| a.0 > 0.0).collect();
    let factors = cut.far_factors(&weights, 2).unwrap();
    assert_eq!(factors.is_some(), !arrays.is_empty(), "{what}");
    let found = factors.as_ref().map(|factors| cut.download(factors).unwrap());
    for (b, found) in found.iter().flatten().enumerate() {
        let parts = arrays.iter().map(|(mean, squares)| squares[b] / mean).sum::<f64>();
        let factor = 0.5 + 0.5 * parts / arrays.len() as f64;
        assert!((found - factor).abs() <= 1e-12 * factor, "{what}: box {b}: {found} for {factor}");
    }
    assert_eq!(
        (cut.counts(), cut.root_side()),
        ([here.sources_of(0).len(), here.targets_of(0).len()], here.cube(0, 0).side)
    );
    assert_eq!(cut.same_points(), here.same_points());
    let axes = |points: Vec<[f64; 3]>| [0, 1, 2].map(|a| points.iter().map(|x| x[a]).collect::<Vec<f64>>());
    assert_eq!(cut.sources(sources).unwrap(), axes(sources.iter().map(|&k| here.source(k as usize)).collect()));
    assert_eq!(cut.targets(targets).unwrap(), axes(targets.iter().map(|&k| here.target(k as usize)).collect()));
    let indices: Vec<u32> = sources.iter().map(|&k| here.source_order()[k as usize]).collect();
    assert_eq!(cut.source_indices(sources).unwrap(), indices, "{what}");
    let corners = [false, true].map(|of_sources| cut.corner_sums(of_sources, 12).unwrap());
    let sums = corners.each_ref().map(|(sums, _)| cut.download(sums).unwrap());
    for (sums, (_, found)) in sums.iter().zip(&corners) {
        let all = sums.iter().sum::<f64>();
        assert!((found - all).abs() <= 1e-12 * all, "{what}: {found} for {all}");
    }
    normal_strengths_are_those_of_the_host(cut, what);
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
    let [of_targets, of_sources] = &corners;
    let [count_of_sources, count] = cut.counts().map(|count| count as f64);
    let weights = PointWeights { sums: &of_targets.0, mean: Some(of_targets.1 / count) };
    same_kinds(cut, (here, lists), weights, factors.as_ref(), what);
    same_kinds(cut, (here, lists), PointWeights { mean: None, ..weights }, None, what);
    // Weights beyond 2⁶⁴ units.
    same_kinds(cut, (here, lists), PointWeights { mean: weights.mean.map(|mean| 1e-12 * mean), ..weights }, None, what);
    let weights = PointWeights { sums: &of_sources.0, mean: Some(of_sources.1 / count_of_sources) };
    same_sources(cut, (here, lists), weights, what);
}

/// A weight in units of 2⁻⁴⁰.
fn units(weight: f64) -> u128 {
    (weight * 2f64.powi(40)) as u128
}

/// A leaf as the host has it.
fn leaf(here: &impl Hierarchy, b: usize) -> Leaf {
    let level = (0..here.levels()).find(|&l| here.level(l).contains(&b)).unwrap();
    let (cube, sources, targets) = (here.cube(b, level), here.sources_of(b), here.targets_of(b));
    Leaf { number: b as u32, cube, sources, targets, corners: 0.0, factor: 1.0, near: false, close: false }
}

/// The numbers of the items at some places of a row of lengths.
fn drawn(lengths: &[u128], places: &[u128]) -> Vec<usize> {
    let ends: Vec<u128> = lengths
        .iter()
        .scan(0, |sum, x| {
            *sum += x;
            Some(*sum)
        })
        .collect();
    places.iter().map(|&place| ends.partition_point(|&end| end <= place)).collect()
}

/// Places all over a row, and on its joints.
fn places(lengths: &[u128]) -> Vec<u128> {
    let all = lengths.iter().sum::<u128>();
    let mut places: Vec<u128> = (0..400).map(|k| all * k / 400).collect();
    let mut sum = 0;
    for length in lengths.iter().take(100) {
        sum += length;
        places.extend([sum.saturating_sub(1), sum]);
    }
    places.retain(|&place| place < all);
    places.sort_unstable();
    places
}

/// Compares leaves by kind, and draws from them.
fn same_kinds<H: Hierarchy>(
    cut: &Cut,
    (here, lists): (&H, &Lists),
    corners: PointWeights,
    factors: Option<&Numbers>,
    what: &str,
) {
    let incoming = fmm_tree::incoming(here, lists);
    let is_target = |b: &usize| here.is_leaf(*b) && !here.targets_of(*b).is_empty();
    let leaves: Vec<usize> = (0..here.boxes()).filter(is_target).collect();
    let (all, mean) = (here.targets_of(0).len(), here.targets_of(0).len() / leaves.len());
    let mut edges: Vec<u32> = leaves.iter().map(|&b| incoming[b].edges()).collect();
    edges.sort_unstable_by(|a, b| b.cmp(a));
    let long = edges[(leaves.len() - 1) / 50];
    let of_boxes = factors.map(|factors| cut.download(factors).unwrap());
    let sums = cut.download(corners.sums).unwrap();
    let factor = |b: usize| of_boxes.as_ref().map_or(1.0, |factors| factors[b]);
    let mut classes: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for &b in &leaves {
        let (targets, here_in): (usize, Incoming) = (here.targets_of(b).len(), incoming[b]);
        let level = (0..here.levels()).find(|&l| here.level(l).contains(&b)).unwrap();
        let population = u64::from(4 * targets >= mean) + u64::from(targets > 4 * mean.max(1));
        let empty = here.sources_of(b).is_empty();
        let marks = [here_in.m2p(), here_in.p2l(), here_in.edges() > long, here_in.jump(), empty];
        let near_and_close = marks.iter().enumerate().map(|(bit, &is)| u64::from(is) << bit).sum::<u64>();
        classes.entry((level as u64) << 16 | population << 8 | near_and_close).or_default().push(b);
    }
    let weight = |b: usize| {
        let points = here.targets_of(b).len() as f64;
        factor(b) * corners.mean.map_or(points, |mean| 0.5 * points + 0.5 * sums[b] / mean)
    };
    let row = cut.by_kind(corners, factors, all).unwrap();
    assert!(row.classes.iter().map(|class| class.code).eq(classes.keys().copied()), "{what}");
    let (mut start, mut first) = (0, 0);
    for (class, leaves) in row.classes.iter().zip(classes.values()) {
        let end = start + leaves.iter().map(|&b| units(weight(b))).sum::<u128>();
        let targets = leaves.iter().map(|&b| here.targets_of(b).len() as u64).sum::<u64>();
        let found = (class.units.clone(), class.leaves.clone(), class.targets);
        assert_eq!(found, (start..end, first..first + leaves.len(), targets), "{what}: {}", class.code);
        (start, first) = (end, first + leaves.len());
    }
    let fields = LeafFields { corners: Some(corners.sums), factors, near_and_close: None };
    let in_row: Vec<usize> = classes.into_values().flatten().collect();
    let expected = |&b: &usize| Leaf { corners: sums[b], factor: factor(b), ..leaf(here, b) };
    let all: Vec<Leaf> = in_row.iter().map(expected).collect();
    assert_eq!(cut.leaves_of(&row, fields).unwrap(), all, "{what}");
    let lengths: Vec<u128> = in_row.iter().map(|&b| units(weight(b))).collect();
    let places = places(&lengths);
    let expected: Vec<Leaf> = drawn(&lengths, &places).into_iter().map(|k| all[k].clone()).collect();
    assert_eq!(cut.at(&row, &places, fields).unwrap(), expected, "{what}");
}

/// Compares the leaves that reach some leaves, and draws of sources.
fn same_sources<H: Hierarchy>(cut: &Cut, (here, lists): (&H, &Lists), corners: PointWeights, what: &str) {
    let above =
        |b: usize| std::iter::successors(Some(b), |&b| Some(here.parent(b)).filter(|&b| b != NONE).map(|b| b as usize));
    let chosen: Vec<u32> = (0..here.boxes() as u32).filter(|&b| here.is_leaf(b as usize)).skip(3).step_by(90).collect();
    let rows = chosen.iter().flat_map(|&b| above(b as usize)).flat_map(|b| lists.p2p.row(b)).copied();
    let near_rows: BTreeSet<u32> = rows.collect();
    let far = [&lists.m2l, &lists.m2p, &lists.p2l].into_iter();
    let far_rows: BTreeSet<u32> = far.flat_map(|e| chosen.iter().flat_map(|&b| e.row(b as usize)).copied()).collect();
    let within = |rows: &BTreeSet<u32>, b: usize| above(b).any(|b| rows.contains(&(b as u32)));
    let is_source = |b: &usize| here.is_leaf(*b) && !here.sources_of(*b).is_empty();
    let sums = cut.download(corners.sums).unwrap();
    let described = |b: usize| {
        let (near, close) = (within(&near_rows, b), within(&far_rows, b));
        Leaf { corners: sums[b], near, close, ..leaf(here, b) }
    };
    let leaves: Vec<Leaf> = (0..here.boxes()).filter(is_source).map(described).collect();
    let near_and_close = cut.near_and_close(&chosen).unwrap();
    let fields = LeafFields { corners: Some(corners.sums), factors: None, near_and_close: Some(&near_and_close) };
    assert_eq!(cut.leaves_with_sources(&near_and_close, true, fields).unwrap(), leaves, "{what}");
    let near: Vec<Leaf> = leaves.iter().filter(|leaf| leaf.near).cloned().collect();
    assert!(!near.is_empty() && near.len() < leaves.len(), "{what}");
    assert!(lists.m2l.is_empty() || leaves.iter().any(|leaf| leaf.close && !leaf.near), "{what}");
    assert_eq!(cut.leaves_with_sources(&near_and_close, false, fields).unwrap(), near, "{what}");

    let weight = |leaf: &Leaf| {
        let points = leaf.sources.len() as f64;
        0.5 * points + 0.5 * leaf.corners / corners.mean.unwrap()
    };
    let sum =
        |close: bool| leaves.iter().filter(|leaf| leaf.close || !close).map(|leaf| units(weight(leaf))).sum::<u128>();
    assert_eq!(cut.weights_of_sources(corners, &near_and_close).unwrap(), [sum(false), sum(true)], "{what}");
    for takes_near in [false, true] {
        let shares = Shares { share: 0.013, share_of_close: 0.3, of_a_leaf: 4, takes_near };
        let chance = |leaf: &Leaf| {
            let share = if leaf.close { shares.share + shares.share_of_close } else { shares.share };
            let expected = share * weight(leaf);
            let picks = leaf.sources.len().min(4.max(expected.ceil() as usize));
            if takes_near && leaf.near { 0 } else { units((expected / picks as f64).min(1.0)) }
        };
        let lengths: Vec<u128> = leaves.iter().map(chance).collect();
        let row = cut.by_chance(corners, &near_and_close, shares).unwrap();
        assert_eq!(row.classes[0].units, 0..lengths.iter().sum(), "{what}");
        let places = places(&lengths);
        let expected: Vec<Leaf> = drawn(&lengths, &places).into_iter().map(|k| leaves[k].clone()).collect();
        assert_eq!(cut.at(&row, &places, fields).unwrap(), expected, "{what}");
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

/// Strengths as `Sources::normal` of the crate `fmm` draws them: the generator SplitMix64 with the number of ones among 64 bits.
fn normal_strengths_are_those_of_the_host(cut: &Cut, what: &str) {
    let (probability, seeds) = ([1.0, 0.5, 0.3, 1e-7, 0.123_456_789], [7, u64::MAX]);
    for components in [1, 3] {
        let expected = seeds.map(|seed| {
            let mut state: u64 = seed;
            let mut bits = || {
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                z ^ (z >> 31)
            };
            let mut number = |p: f64| {
                let ones = f64::from(bits().count_ones());
                let uniform = ((bits() >> 11) as f64 + 0.5) * (-53f64).exp2();
                1.0 / p.sqrt() * ((ones - 32.0 + uniform - 0.5) / (16.0f64 + 1.0 / 12.0).sqrt())
            };
            let sources = probability.iter().flat_map(|&p| std::iter::repeat_n(p, components));
            sources.map(&mut number).collect::<Vec<f64>>()
        });
        let found = cut.normal_strengths(&probability, components, &seeds).unwrap().download().unwrap();
        assert_eq!(found, expected, "{what}, {components} components");
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
            let there = StrengthSets::new(device, &sets).unwrap();
            let found = plane_sums(device, pairs.kernel, derivatives, (sources, targets), &there).unwrap();
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
