//! The fast stages against the plain ones, on every instruction set; threads, symmetry, extreme sizes.

use adaptive2d::{ConnectOptions, Laurent, Pyramid, PyramidOptions, connect};
use backend_cpu::Isa;
use backend_cpu::laurent::{LaurentPlan, LaurentWorkspace, PlanePairs, direct};
use backend_cpu::pairwise::Pairwise;
use fmm_kernels::{Harmonic2d, Laplace2d};
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::testkit::{in_turn, plane::PlaneKind};
use fmm_traits::{Cloud, Edges, Error, Expansion, Hierarchy, Lists, Stage};
use std::sync::Arc;

/// One set of points and a series, with lists that use every kind of edge.
struct Case {
    sources: Vec<f64>,
    targets: Option<Vec<f64>>,
    population: f64,
    pairs: PlanePairs,
    series: Laurent,
}

impl Case {
    fn new(kind: PlaneKind, n: usize, pairs: impl Into<PlanePairs>, order: usize, derivatives: usize) -> Self {
        let pairs = pairs.into();
        let series = Laurent::new(pairs.kernel, order, derivatives).unwrap();
        Case { sources: kind.points(n, 4), targets: None, population: 12.0, pairs, series }
    }
    fn plan(&self, isa: Isa, rough: bool) -> LaurentPlan {
        let options = PyramidOptions { population: self.population, depth: None };
        let pyramid = Pyramid::build(&self.sources, self.targets.as_deref(), &options).unwrap();
        let lists = connect(&pyramid, &ConnectOptions::default()).unwrap();
        self.made(pyramid, lists, isa, rough).unwrap()
    }
    fn made(&self, pyramid: Pyramid, lists: Lists, isa: Isa, rough: bool) -> Result<LaurentPlan, Error> {
        LaurentPlan::new(self.pairs, (self.series.order, self.series.derivatives), pyramid, lists, isa, rough)
    }
    fn strengths(&self) -> Vec<f64> {
        normal_strengths(self.sources.len() / 2 * self.series.strengths(), 8)
    }
    fn plain(&self) -> Vec<f64> {
        let plan = self.plan(Isa::Portable, false);
        let mut run = Pairwise::new(plan.pyramid(), plan.lists(), &self.series).unwrap();
        run.apply(&self.strengths(), &mut |_, _| true).unwrap()
    }
    fn fast(&self, isa: Isa, rough: bool) -> Vec<f64> {
        let plan = self.plan(isa, rough);
        let targets = plan.pyramid().targets.len();
        let mut out = vec![f64::NAN; targets * plan.values()];
        // A workspace that has been used before holds other numbers.
        let mut workspace = LaurentWorkspace::default();
        for strengths in [vec![1.0; self.strengths().len()], self.strengths()] {
            plan.apply(&mut workspace, &strengths, &mut out, &mut |_, _| true).unwrap();
        }
        out
    }
}

/// Largest difference over the largest value, each column by itself.
fn difference(a: &[f64], b: &[f64], columns: usize) -> f64 {
    assert_eq!(a.len(), b.len());
    let mut worst = 0.0;
    for c in 0..columns {
        let pairs = || a.iter().zip(b).skip(c).step_by(columns);
        let largest = pairs().fold(0.0f64, |m, (_, y)| m.max(y.abs()));
        for (x, y) in pairs() {
            let e = if x == y { 0.0 } else { (x - y).abs() / largest };
            worst = if e.is_nan() || e > worst { e } else { worst };
        }
    }
    worst
}

#[test]
fn fast_stages_are_the_plain_ones() {
    for (k, kernel) in PlanePairs::all().into_iter().enumerate() {
        for derivatives in 0..3 {
            for (_, kind) in PlaneKind::ALL.into_iter().enumerate().filter(|(c, _)| in_turn(k + derivatives + c, 3)) {
                for (n, order) in [(0, 3), (1, 3), (30, 1), (900, 17), (700, 60)] {
                    let case = Case::new(kind, n, kernel, order, derivatives);
                    let plain = case.plain();
                    for isa in Isa::available() {
                        for (rough, bound) in [(false, 1e-12), (true, 3e-8)] {
                            let error = difference(&case.fast(isa, rough), &plain, case.series.values());
                            let what = format!("{} {} {n} p {order} {}", kernel.name(), kind.name(), isa.name());
                            assert!(error < bound, "{what} derivatives {derivatives} rough {rough}: {error:e}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn separate_targets() {
    for kernel in PlanePairs::all() {
        for (s, t) in [(PlaneKind::Uniform, PlaneKind::Normal), (PlaneKind::Spiral, PlaneKind::Uniform)] {
            for (n, m) in [(800, 300), (100, 1500), (800, 0), (0, 10)] {
                let mut case = Case::new(s, n, kernel, 12, 1);
                case.targets = Some(t.points(m, 5));
                let plain = case.plain();
                for isa in Isa::available() {
                    let error = difference(&case.fast(isa, false), &plain, case.series.values());
                    assert!(error < 1e-12, "{} {n} {m}: {error:e}", kernel.name());
                }
            }
        }
    }
}

/// Direct sums in vectors against the plain pairs; sources at the place of a target count nothing.
#[test]
fn direct_sums() {
    for kernel in PlanePairs::all() {
        for (n, derivatives) in [(0, 1), (1, 0), (90, 2), (5000, 0), (5000, 1)] {
            let mut case = Case::new(PlaneKind::Layer, n, kernel, 1, derivatives);
            case.targets = Some(
                PlaneKind::Uniform.points(70, 3).into_iter().chain(case.sources.iter().copied().take(60)).collect(),
            );
            let targets = case.targets.clone().unwrap();
            let xyz = |p: &[f64]| -> Vec<[f64; 3]> { p.chunks(2).map(|p| [p[0], p[1], 0.0]).collect() };
            for real in [false, true] {
                let mut strengths = case.strengths();
                if real && kernel.complex() {
                    strengths.iter_mut().skip(1).step_by(2).for_each(|im| *im = 0.0);
                }
                let mut plain = vec![0.0; targets.len() / 2 * case.series.values()];
                let cloud = Cloud { xyz: &xyz(&case.sources), strengths: &strengths };
                case.series.p2p(cloud, &xyz(&targets), false, &mut plain);
                for isa in Isa::available() {
                    let found = direct(kernel, derivatives, &case.sources, &strengths, &targets, isa).unwrap();
                    let error = difference(&found, &plain, case.series.values());
                    assert!(error < 1e-12, "{} {n} {}: {error:e}", kernel.name(), isa.name());
                }
            }
        }
    }
    let refused = direct(Harmonic2d, 0, &[0.0; 4], &[1.0; 3], &[0.0; 2], Isa::Portable);
    assert!(matches!(refused, Err(Error::Shape { array: "strengths", found: 3, expected: 4, .. })));
}

/// Strengths without imaginary parts take half the work and give the same sums.
#[test]
fn real_strengths() {
    for derivatives in 0..3 {
        let case = Case::new(PlaneKind::Normal, 3000, Harmonic2d, 20, derivatives);
        let mut strengths = case.strengths();
        strengths.iter_mut().skip(1).step_by(2).for_each(|im| *im = 0.0);
        let plan = case.plan(Isa::detect(), false);
        let mut run = Pairwise::new(plan.pyramid(), plan.lists(), &case.series).unwrap();
        let plain = run.apply(&strengths, &mut |_, _| true).unwrap();
        let mut workspace = LaurentWorkspace::default();
        let mut out = vec![f64::NAN; plain.len()];
        // Complex strengths before leave their imaginary parts in the workspace.
        for q in [&case.strengths(), &strengths] {
            plan.apply(&mut workspace, q, &mut out, &mut |_, _| true).unwrap();
        }
        assert!(difference(&out, &plain, case.series.values()) < 1e-12);
    }
}

/// Edges with fewer terms leave out no more than θ^p, at every p, and no edge of other lists than the criterion's.
#[test]
fn shortened_edges() {
    for kernel in PlanePairs::all() {
        for kind in [PlaneKind::Uniform, PlaneKind::Normal, PlaneKind::Layer] {
            for order in [4, 9, 17, 30] {
                let case = Case::new(kind, 5000, kernel, order, 1);
                let sum = |plan: LaurentPlan| {
                    let mut out = vec![0.0; 5000 * plan.values()];
                    plan.apply(&mut LaurentWorkspace::default(), &case.strengths(), &mut out, &mut |_, _| true)
                        .unwrap();
                    out
                };
                for isa in Isa::available() {
                    let whole = sum(case.plan(isa, false));
                    let error = difference(&sum(case.plan(isa, false).shortened(0.5)), &whole, case.series.values());
                    let what = format!("{} {} p {order} {}", kernel.name(), kind.name(), isa.name());
                    assert!(error > 0.0 && error < 0.1 * 0.5f64.powi(order as i32), "{what}: {error:e}");
                    // For a θ that no pair reaches all terms stay.
                    let all = sum(case.plan(isa, false).shortened(1e-9));
                    assert_eq!(all, whole, "{what}");
                }
            }
        }
    }
}

/// Pairs served in both directions at once are the pairs served one by one.
#[test]
fn symmetric_near_field_is_the_directed_one() {
    for kernel in PlanePairs::all() {
        let mut case = Case::new(PlaneKind::Layer, 6000, kernel, 40, 1);
        let symmetric = case.fast(Isa::detect(), false);
        case.targets = Some(case.sources.clone());
        let error = difference(&case.fast(Isa::detect(), false), &symmetric, case.series.values());
        assert!(error < 1e-10, "{}: {error:e}", kernel.name());
    }
}

#[test]
fn threads_change_no_bit() {
    for kernel in PlanePairs::all() {
        let mut case = Case::new(PlaneKind::Normal, 40_000, kernel, 9, 1);
        case.population = 5.0;
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| case.fast(Isa::detect(), true))
        };
        let one = run(1);
        for threads in [2, 5] {
            assert!(one.iter().zip(&run(threads)).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", kernel.name());
        }
    }
}

/// Translation, scaling by 1e±30, and rotation (a complex factor) of the points.
#[test]
fn covariance_and_extreme_sizes() {
    for order in [17, 60] {
        let mut case = Case::new(PlaneKind::Uniform, 2000, Harmonic2d, order, 0);
        let here = case.fast(Isa::detect(), false);
        let unit = case.sources.clone();
        for (scale, factor) in [(1e30, [1.0, 0.0]), (1e-30, [1.0, 0.0]), (1.0, [0.6, -0.8]), (1e3, [0.0, 1.0])] {
            let turned = |p: &[f64]| [factor[0] * p[0] - factor[1] * p[1], factor[0] * p[1] + factor[1] * p[0]];
            case.sources = unit.chunks(2).flat_map(turned).map(|x| scale * x).collect();
            // Γ/(z_j − z) is divided by the factor.
            let there = case.fast(Isa::detect(), false);
            let back: Vec<f64> = there.chunks(2).flat_map(turned).map(|x| scale * x).collect();
            let error = difference(&back, &here, 2);
            // Another mesh: equal up to the error of the expansion.
            assert!(error < 3.0 * 0.5f64.powi(order as i32).max(1e-12), "{order} {scale:e} {factor:?}: {error:e}");
        }
    }
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let case = Case::new(PlaneKind::Uniform, 50, Harmonic2d, 5, 0);
    let plan = case.plan(Isa::detect(), false);
    let (mut w, mut out) = (LaurentWorkspace::default(), vec![0.0; 100]);
    let refused = plan.apply(&mut w, &[0.0; 50], &mut out, &mut |_, _| true);
    assert!(matches!(refused, Err(Error::Shape { array: "strengths", found: 50, expected: 100, .. })));
    let refused = plan.apply(&mut w, &[0.0; 100], &mut out[1..], &mut |_, _| true);
    assert!(matches!(refused, Err(Error::Shape { array: "out", found: 99, expected: 100, .. })));
    let stopped = plan.apply(&mut w, &[0.0; 100], &mut out, &mut |_, done| done < 0.5);
    assert_eq!(stopped.map(|_| ()), Err(Error::Cancelled { stage: "l2l" }));
    let other = Pyramid::build(&[0.0, 0.0], None, &PyramidOptions::default()).unwrap();
    let foreign = case.made(other, plan.lists().clone(), Isa::detect(), false);
    assert!(matches!(foreign.map(|_| ()), Err(Error::Shape { .. })));
}

/// The observer sees the fused step block by block, with growing fractions, and can stop it in the middle. On several
/// threads the calling thread may have no block of its own.
#[test]
fn a_run_stops_in_the_middle() {
    let case = Case::new(PlaneKind::Uniform, 20_000, Harmonic2d, 5, 0);
    let (plan, q) = (case.plan(Isa::detect(), true), case.strengths());
    let run = |threads, most: f64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (mut out, mut seen) = (vec![f64::NAN; q.len()], Vec::new());
        let done = pool.install(|| {
            let mut observer = |stage, done| {
                seen.push((stage, done));
                done < most
            };
            plan.apply(&mut LaurentWorkspace::default(), &q, &mut out, &mut observer).map(|_| ())
        });
        (done, seen, out)
    };
    let (stopped, seen, out) = run(1, 0.7);
    assert_eq!(stopped, Err(Error::Cancelled { stage: "l2p" }));
    assert!((0.7..0.75).contains(&seen.last().unwrap().1), "{seen:?}");
    let written = out.iter().filter(|x| x.is_finite()).count();
    assert!(written > 0 && written < out.len() / 2, "{written} of {}", out.len());
    for threads in [1, 3] {
        let (done, seen, out) = run(threads, 2.0);
        assert_eq!(done, Ok(()));
        assert!(out.iter().all(|x| x.is_finite()));
        assert!(seen.is_sorted_by(|a, b| a.1 <= b.1) && seen.iter().all(|(_, done)| *done <= 1.0), "{seen:?}");
        let blocks = seen.iter().filter(|(stage, _)| *stage == Stage::L2p).count() - 1;
        assert!(threads > 1 || blocks == 16, "{seen:?}");
    }
}

/// A caller's index that two targets have would be a row that two tasks write.
#[test]
fn pyramids_that_are_not_whole_are_refused() {
    let case = Case::new(PlaneKind::Uniform, 500, Harmonic2d, 5, 0);
    let plan = case.plan(Isa::detect(), false);
    let make = |pyramid| case.made(pyramid, plan.lists().clone(), Isa::detect(), false).map(|_| ());
    let mut pyramid = plan.pyramid().clone();
    assert_eq!(make(pyramid.clone()), Ok(()));
    Arc::make_mut(&mut pyramid.targets).order.fill(0);
    assert!(matches!(make(pyramid), Err(Error::Shape { .. } | Error::Edge { .. })));
    assert!(make(Pyramid::default()).is_err());
}

#[test]
fn edges_that_the_series_cannot_take_are_refused() {
    let case = Case::new(PlaneKind::Layer, 900, Laplace2d, 5, 1);
    let plan = case.plan(Isa::detect(), false);
    let (pyramid, lists) = (plan.pyramid(), plan.lists());
    let added = |edges: &Edges, (target, source): (u32, u32)| {
        let mut edges = edges.clone();
        edges.sources.insert(edges.starts[target as usize + 1], source);
        edges.starts[target as usize + 1..].iter_mut().for_each(|start| *start += 1);
        edges
    };
    let make = |lists| case.made(pyramid.clone(), lists, Isa::detect(), false).map(|_| ());
    assert_eq!(make(lists.clone()), Ok(()));
    let near = lists.p2p.iter().find(|&(t, s)| t != s).unwrap();
    let leaf = near.0;
    let above = pyramid.parent(leaf as usize);
    let all = || lists.clone();
    for (what, lists) in [
        ("M2L of neighbours", Lists { m2l: added(&lists.m2l, near), ..all() }),
        ("M2L of a box to itself", Lists { m2l: added(&lists.m2l, (0, 0)), ..all() }),
        ("P2L of neighbours", Lists { p2l: added(&lists.p2l, near), ..all() }),
        ("M2P of neighbours", Lists { m2p: added(&lists.m2p, near), ..all() }),
        ("P2M above the leaves", Lists { p2m: added(&lists.p2m, (above, above)), ..all() }),
        ("L2L from a leaf", Lists { l2l: added(&lists.l2l, near), ..all() }),
        ("P2P into a box above the leaves", Lists { p2p: added(&lists.p2p, (above, leaf)), ..all() }),
        ("a box that is not there", Lists { p2p: added(&lists.p2p, (leaf, pyramid.len() as u32)), ..all() }),
    ] {
        assert!(matches!(make(lists), Err(Error::Edge { .. })), "{what}");
    }
    let mut short = lists.clone();
    short.m2l.sources.pop();
    assert!(matches!(make(short), Err(Error::Shape { .. })));
}
