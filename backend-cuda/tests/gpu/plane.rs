//! The plane: stages against those of the CPU, sums against direct sums.

pub mod topology;

use crate::Test;
use adaptive2d::complex::Complex;
use adaptive2d::pyramid::level_start;
use adaptive2d::{ConnectOptions, Laurent, PlaneKernel, Pyramid, PyramidOptions};
use backend_cpu::Isa;
use backend_cpu::laurent::{PlanePairs, direct};
use backend_cuda::{CallerPoints, Device, DeviceArray, DevicePyramid, DeviceStream, PlaneLists, PlanePlan};
use backend_cuda::{plane_build, plane_connect};
use fmm_kernels::{Harmonic2d, Laplace2d};
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Cloud, Error, Expansion, Hierarchy, Lists, OutputColumns, Outputs, Precision};
use std::sync::Arc;

pub const TESTS: &[Test] = &[
    ("plane::each_stage_equals_that_of_the_cpu", stages),
    ("plane::sums_equal_direct_sums", sums),
    ("plane::targets_far_outside_and_coincident_points", odd_clouds),
    ("plane::covariances_and_thin_clouds", covariances),
    ("plane::ten_runs_have_the_same_bits", repeated),
    ("plane::arrays_of_the_caller", arrays),
    ("plane::wrong_input_is_refused", wrong),
];

fn send(device: &Device, points: &[f64]) -> CallerPoints {
    CallerPoints::of_dim(device, 2, "points", points).unwrap()
}

fn build(device: &Device, s: &[f64], t: Option<&[f64]>, options: &PyramidOptions) -> DevicePyramid {
    let t = t.map(|t| send(device, t));
    plane_build(device, &send(device, s), t.as_ref(), options).unwrap()
}

fn population(population: f64) -> PyramidOptions {
    PyramidOptions { population, depth: None }
}

/// The outputs of the facade up to an order of derivatives.
fn columns(kernel: impl Into<PlaneKernel>, derivatives: usize) -> Vec<OutputColumns> {
    let (c, outputs) = (kernel.into().potentials(), [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN]);
    let ranges = [0..c, c..3 * c, 3 * c..6 * c];
    let all = outputs.into_iter().zip(ranges).take(derivatives + 1);
    all.map(|(output, range)| OutputColumns { output, columns: range.collect() }).collect()
}

/// Largest difference of two arrays over the largest number of the second.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let most = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f64, |m, (a, b)| m.max((a - b).abs())) / most.max(1e-300)
}

/// Series of one box: those of the CPU, stage by stage and edge by edge.
struct Oracle<'a> {
    pyramid: &'a Pyramid,
    lists: &'a Lists,
    series: Laurent,
    strengths: Vec<f64>,
}

impl Oracle<'_> {
    fn level_of(&self, b: usize) -> usize {
        adaptive2d::pyramid::level_of(b)
    }
    fn cube(&self, b: usize) -> fmm_traits::Cube {
        self.pyramid.cube(b, self.level_of(b))
    }
    /// Positions and strengths of the sources of a box.
    fn sources(&self, b: usize) -> (Vec<[f64; 3]>, Vec<f64>) {
        let (own, c) = (self.pyramid.sources_of(b), self.series.kernel.strengths());
        (own.clone().map(|i| self.pyramid.source(i)).collect(), self.strengths[c * own.start..c * own.end].to_vec())
    }
    /// Multipoles and locals of all boxes.
    fn coefficients(&self) -> [Vec<Vec<f64>>; 2] {
        let (p, l, s) = (self.pyramid, self.lists, &self.series);
        let zeros = vec![vec![0.0; 2 * (s.order + 1)]; p.len()];
        let (mut m, mut b) = (zeros.clone(), zeros);
        for leaf in p.level(p.depth()) {
            let (xyz, strengths) = self.sources(leaf);
            s.p2m(self.cube(leaf), Cloud { xyz: &xyz, strengths: &strengths }, &mut m[leaf]);
        }
        for t in (0..p.len()).rev() {
            for &c in l.m2m.row(t) {
                let from = m[c as usize].clone();
                s.m2m(self.cube(t), self.cube(c as usize), &from, &mut m[t]);
            }
        }
        for t in 0..p.len() {
            for &c in l.m2l.row(t) {
                s.m2l(self.cube(t), self.cube(c as usize), &m[c as usize], &mut b[t]);
            }
            for &c in l.p2l.row(t) {
                let (xyz, strengths) = self.sources(c as usize);
                s.p2l(self.cube(t), self.cube(c as usize), Cloud { xyz: &xyz, strengths: &strengths }, &mut b[t]);
            }
            for &c in l.l2l.row(t) {
                let from = b[c as usize].clone();
                s.l2l(self.cube(t), self.cube(c as usize), &from, &mut b[t]);
            }
        }
        [m, b]
    }
}

/// Coefficients of each box against those of the CPU, and the sums of each target.
fn stages(device: &Device) {
    for (kind, n, order, depth) in [
        (PlaneKind::Normal, 3000, 1, None),
        (PlaneKind::Normal, 3000, 17, None),
        (PlaneKind::Outlier, 2000, 8, None),
        (PlaneKind::TwoClusters, 3000, 24, None),
        // Boxes of one point, with a radius of rounding.
        (PlaneKind::FiftyCopies, 1500, 12, Some(4)),
        (PlaneKind::Coincident, 300, 5, Some(2)),
    ] {
        for kernel in PlanePairs::all() {
            if kernel.charges() && kind == PlaneKind::TwoClusters {
                // The clusters are at distance 1, whose logarithm has no digits.
                continue;
            }
            let points = kind.points(n, 21);
            let options = PyramidOptions { population: 12.0, depth };
            let pyramid = build(device, &points, None, &options);
            let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
            let copy = pyramid.download().unwrap();
            let edges = lists.download(device, &copy).unwrap();
            let c = kernel.strengths();
            let q = normal_strengths(c * n, 22);
            let strengths = copy.sources.order.iter().flat_map(|&i| q[c * i as usize..c * (i as usize + 1)].to_vec());
            let strengths: Vec<f64> = strengths.collect();
            let series = Laurent::new(kernel, order, 1).unwrap();
            let oracle = Oracle { pyramid: &copy, lists: &edges, series, strengths };
            let expected = oracle.coefficients();
            let what = format!("{} {} p = {order}", kind.name(), kernel.name());
            let mut plan =
                PlanePlan::<f64, f64>::new(kernel, &columns(kernel, 2), 2, Some(order), pyramid, lists).unwrap();
            plan.apply(&q, &mut |_, _| true).unwrap();
            let boxes = copy.len();
            let first = (0..boxes).find(|&b| !edges.m2l.row(b).is_empty() || !edges.p2l.row(b).is_empty());
            // Boxes above the first level with edges have no use for their series.
            let first = first.map_or(boxes, |b| level_start(adaptive2d::pyramid::level_of(b)));
            for (of, (found, expected)) in plan.coefficients().unwrap().iter().zip(&expected).enumerate() {
                if found.is_empty() {
                    continue;
                }
                for b in first..boxes {
                    let own: Vec<f64> =
                        (0..=order).flat_map(|j| [0, 1].map(|part| found[2 * (j * boxes + b) + part])).collect();
                    // The imaginary part of a logarithm has no meaning.
                    let error = difference(&own, &expected[b]);
                    assert!(error < 1e-12, "{what}: {} of box {b}: {error:e}", ["multipole", "local"][of]);
                }
            }
        }
    }
}

/// Sums of a plan against direct sums.
fn errors(
    device: &Device,
    kernel: PlanePairs,
    (s, t): (&[f64], Option<&[f64]>),
    q: &[f64],
    (order, size, theta): (usize, f64, f64),
    single: bool,
) -> [f64; 3] {
    let pyramid = build(device, s, t, &population(size));
    let lists = plane_connect(&pyramid, &ConnectOptions { theta, ..Default::default() }).unwrap();
    let found = [0, 1, 2].map(|derivatives| {
        let columns = columns(kernel, derivatives);
        let (p, l) = (pyramid.download().unwrap(), lists.download(device, &pyramid.download().unwrap()).unwrap());
        let (there, edges) = (DevicePyramid::upload(device, &p).unwrap(), PlaneLists::upload(device, &p, &l).unwrap());
        if single {
            let plan = PlanePlan::<f32, f32>::new(kernel, &columns, derivatives, Some(order), there, edges);
            plan.unwrap().apply(q, &mut |_, _| true).unwrap().0
        } else {
            let plan = PlanePlan::<f64, f64>::new(kernel, &columns, derivatives, Some(order), there, edges);
            plan.unwrap().apply(q, &mut |_, _| true).unwrap().0
        }
    });
    let exact = direct(kernel, 2, s, q, t.unwrap_or(s), Isa::detect()).unwrap();
    let (c, width) = (kernel.potentials(), 6 * kernel.potentials());
    let norm = |of: &dyn Fn(usize, usize) -> f64, range: std::ops::Range<usize>| {
        (0..exact.len() / width)
            .flat_map(|i| range.clone().map(move |k| (i, k)))
            .map(|(i, k)| of(i, k).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    let ranges = [0..c, c..3 * c, 3 * c..width];
    for (few, values) in [(&found[0], c), (&found[1], 3 * c)] {
        for (i, row) in few.chunks_exact(values).enumerate() {
            for (k, x) in row.iter().enumerate() {
                let other = found[2][width * i + k];
                let (most, range) = (if single { 1e-4 } else { 1e-9 }, ranges[usize::from(k >= c)].clone());
                assert!((x - other).abs() <= most * norm(&|i, k| exact[width * i + k], range), "fewer derivatives");
            }
        }
    }
    ranges.map(|range| {
        let e = norm(&|i, k| found[2][width * i + k] - exact[width * i + k], range.clone());
        e / norm(&|i, k| exact[width * i + k], range).max(1e-300)
    })
}

fn sums(device: &Device) {
    for kind in
        [PlaneKind::Uniform, PlaneKind::Normal, PlaneKind::Layer, PlaneKind::Spiral, PlaneKind::Line, PlaneKind::Grid]
    {
        for kernel in PlanePairs::all() {
            let s = kind.points(2500, 31);
            let q = normal_strengths(kernel.strengths() * 2500, 32);
            let what = format!("{} {}", kind.name(), kernel.name());
            for (order, theta, most) in [(20, 0.5, 2e-6), (48, 0.5, 1e-12)] {
                let e = errors(device, kernel, (&s, None), &q, (order, 11.0, theta), false);
                assert!(e[0] < most && e[1] < 30.0 * most && e[2] < 900.0 * most, "{what} p = {order}: {e:?}");
            }
            let e = errors(device, kernel, (&s, None), &q, (20, 30.0, 0.5), true);
            assert!(e[0] < 1e-5 && e[1] < 1e-4 && e[2] < 1e-3, "{what} in f32: {e:?}");
        }
    }
    // Real strengths take a loop of their own.
    let s = PlaneKind::Uniform.points(3000, 33);
    let q: Vec<f64> = normal_strengths(3000, 34).into_iter().flat_map(|q| [q, 0.0]).collect();
    let e = errors(device, Harmonic2d.into(), (&s, None), &q, (24, 40.0, 0.5), false);
    assert!(e[0] < 2e-7 && e[1] < 1e-6 && e[2] < 1e-5, "{e:?}");
}

fn odd_clouds(device: &Device) {
    let kernels = PlanePairs::all();
    for (i, kind) in
        [PlaneKind::FiftyCopies, PlaneKind::Outlier, PlaneKind::Axis, PlaneKind::TwoClusters].into_iter().enumerate()
    {
        for kernel in kernels {
            let s = kind.points(900, 41);
            let q = normal_strengths(kernel.strengths() * 900, 42);
            // Targets among the sources, far outside, and in a point.
            let mut t = PlaneKind::Normal.points(700, 43);
            t.extend(PlaneKind::Uniform.points(200, 44).iter().map(|x| 1e4 + 3.0 * x));
            t.extend((0..100).flat_map(|_| [s[0], s[1]]));
            for single in [false, true] {
                let (most, order) = if single { (2e-5, 16) } else { (1e-9, 40) };
                let e = errors(device, kernel, (&s, Some(&t)), &q, (order, 9.0, 0.5), single);
                assert!(
                    e[0] < most && e[1] < 100.0 * most && e[2] < 1e4 * most,
                    "{} {} {e:?}",
                    kind.name(),
                    kernel.name()
                );
                if i == 0 {
                    let e = errors(device, kernel, (&s, None), &q, (order, 9.0, 0.5), single);
                    assert!(
                        e[0] < most && e[1] < 100.0 * most && e[2] < 1e4 * most,
                        "{} {} {e:?}",
                        kind.name(),
                        kernel.name()
                    );
                }
            }
        }
    }
    // All sources at one place but for the targets: every pair at distance zero counts nothing.
    let s: Vec<f64> = (0..200).flat_map(|_| [0.3, -0.7]).collect();
    for kernel in kernels {
        let pyramid = build(device, &s, None, &population(10.0));
        let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
        let q = normal_strengths(200 * kernel.strengths(), 1);
        let mut plan = PlanePlan::<f32, f32>::new(kernel, &columns(kernel, 2), 2, Some(6), pyramid, lists).unwrap();
        assert!(plan.apply(&q, &mut |_, _| true).unwrap().0.iter().all(|&u| u == 0.0), "{}", kernel.name());
    }
}

/// Points that are turned, moved and scaled have the same sums, and points in a strip a million times as long as wide
/// have the direct sums.
fn covariances(device: &Device) {
    let (n, order) = (1500, 40);
    let s = PlaneKind::Normal.points(n, 71);
    let q = normal_strengths(2 * n, 72);
    let sums = |s: &[f64]| {
        let pyramid = build(device, s, None, &population(12.0));
        let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
        let columns = columns(Harmonic2d, 0);
        let mut plan = PlanePlan::<f64, f64>::new(Harmonic2d, &columns, 0, Some(order), pyramid, lists).unwrap();
        plan.apply(&q, &mut |_, _| true).unwrap().0
    };
    let here = sums(&s);
    for (scale, [c, d], shift) in
        [(1e30, [1.0, 0.0], 0.0), (1e-30, [1.0, 0.0], 0.0), (1.0, [0.6, -0.8], 0.0), (1e3, [0.0, 1.0], -70.0)]
    {
        let turned = |p: &[f64]| [c * p[0] - d * p[1], c * p[1] + d * p[0]];
        let there: Vec<f64> = s.chunks(2).flat_map(turned).map(|x| scale * (x + shift)).collect();
        // Γ/(z_j − z) is divided by the factor.
        let back: Vec<f64> = sums(&there).chunks(2).flat_map(turned).map(|x| scale * x).collect();
        // A shift rounds coordinates.
        let most = if shift == 0.0 { 1e-11 } else { 1e-9 };
        let e = difference(&back, &here);
        assert!(e < most, "{scale:e} {c} {d} {shift}: {e:e}");
    }
    let thin: Vec<f64> = s.chunks(2).flat_map(|p| [p[0], 1e-6 * p[1]]).collect();
    for kernel in PlanePairs::all() {
        let q = normal_strengths(kernel.strengths() * n, 73);
        let e = errors(device, kernel, (&thin, None), &q, (48, 12.0, 0.5), false);
        assert!(e[0] < 1e-11 && e[1] < 1e-9 && e[2] < 1e-8, "{} {e:?}", kernel.name());
    }
}

fn repeated(device: &Device) {
    let (n, kernel) = (4000, Harmonic2d);
    let s = PlaneKind::Normal.points(n, 51);
    let q = normal_strengths(2 * n, 52);
    let mut first: Option<Vec<f64>> = None;
    for _ in 0..10 {
        let pyramid = build(device, &s, None, &population(20.0));
        let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
        let mut plan = PlanePlan::<f64, f64>::new(kernel, &columns(kernel, 2), 2, Some(12), pyramid, lists).unwrap();
        let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
        assert!(first.get_or_insert_with(|| u.clone()) == &u);
    }
}

/// Points, strengths and values on the device, in both precisions, and new points.
fn arrays(device: &Device) {
    let (n, kernel, stream) = (3000, Harmonic2d, DeviceStream::Null);
    let single: Vec<f32> = PlaneKind::Layer.points(n, 61).iter().map(|&x| x as f32).collect();
    let wide: Vec<f64> = single.iter().map(|&x| f64::from(x)).collect();
    let points = DeviceArray::new(device, &single).unwrap();
    let points = CallerPoints::copied(device, 2, "sources", &points, &stream).unwrap();
    assert_eq!(points.download().unwrap(), wide);
    let pyramid = plane_build(device, &points, None, &population(20.0)).unwrap();
    let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
    let columns = columns(kernel, 1);
    let mut plan = PlanePlan::<f64, f32>::new(kernel, &columns, 1, Some(14), pyramid, lists).unwrap();
    let q: Vec<f32> = normal_strengths(2 * n, 62).iter().map(|&q| q as f32).collect();
    let strengths = DeviceArray::new(device, &q).unwrap();
    let outputs =
        [DeviceArray::zeros::<f64>(device, 2 * n).unwrap(), DeviceArray::zeros::<f32>(device, 4 * n).unwrap()];
    let q: Vec<f64> = q.iter().map(|&q| f64::from(q)).collect();
    for _ in 0..4 {
        plan.enqueue(&strengths, &outputs, &stream).unwrap();
        plan.synchronize().unwrap();
        let all = plan.apply(&q, &mut |_, _| true).unwrap().0;
        let potential: Vec<f64> = all.chunks_exact(6).flat_map(|u| u[..2].to_vec()).collect();
        let gradient: Vec<f32> =
            all.chunks_exact(6).flat_map(|u| u[2..].iter().map(|&x| x as f32).collect::<Vec<_>>()).collect();
        assert_eq!(outputs[0].download::<f64>().unwrap(), potential);
        assert_eq!(outputs[1].download::<f32>().unwrap(), gradient);
        let moved: Vec<f64> = PlaneKind::Spiral.points(n, 63);
        let pyramid = build(device, &moved, None, &population(20.0));
        let lists = plane_connect(&pyramid, &ConnectOptions::default()).unwrap();
        plan.set_points(pyramid, lists).unwrap();
    }
    assert_eq!(plan.pyramid().points().unwrap()[0], PlaneKind::Spiral.points(n, 63));
    let bad = DeviceArray::new(device, &vec![f64::NAN; 2 * n]).unwrap();
    plan.enqueue(&bad, &outputs, &stream).unwrap();
    assert!(matches!(plan.synchronize(), Err(Error::NotFinite { array: "strengths", row: 0, .. })));
    let short = DeviceArray::zeros::<f64>(device, 5).unwrap();
    assert!(matches!(plan.enqueue(&short, &outputs, &stream), Err(Error::Shape { .. })));
    assert_eq!(points.dim(), 2);
    assert_eq!(Precision::F64.bytes(), 8);
}

fn wrong(device: &Device) {
    let e = CallerPoints::of_dim(device, 2, "sources", &[0.0; 3]).unwrap_err();
    assert!(matches!(e, Error::Shape { array: "sources", found: 3, .. }), "{e}");
    let e = CallerPoints::of_dim(device, 2, "sources", &[0.0, 1.0, 2.0, f64::NAN]).unwrap_err();
    assert!(matches!(e, Error::NotFinite { row: 1, column: 1, .. }), "{e}");
    let points = send(device, &[0.0, 1.0, 2.0, 3.0]);
    for options in [population(0.5), PyramidOptions { depth: Some(16), ..population(1.0) }] {
        assert!(matches!(plane_build(device, &points, None, &options), Err(Error::Parameter { .. })));
    }
    let space = CallerPoints::new(device, "points", &[0.0; 3]).unwrap();
    assert!(matches!(plane_build(device, &space, None, &population(1.0)), Err(Error::Shape { .. })));
    let pyramid = || plane_build(device, &points, None, &population(1.0)).unwrap();
    for theta in [0.0, 1.0, f64::NAN] {
        let e = plane_connect(&pyramid(), &ConnectOptions { theta, ..Default::default() });
        assert!(matches!(e, Err(Error::Parameter { name: "theta", .. })));
    }
    let lists = || plane_connect(&pyramid(), &ConnectOptions::default()).unwrap();
    let kernel = Laplace2d;
    for order in [0, 61] {
        let plan = PlanePlan::<f64, f64>::new(kernel, &columns(kernel, 0), 0, Some(order), pyramid(), lists());
        assert!(matches!(plan, Err(Error::Order { .. })));
    }
    let mut plan = PlanePlan::<f64, f64>::new(kernel, &columns(kernel, 0), 0, Some(4), pyramid(), lists()).unwrap();
    assert!(matches!(plan.apply(&[1.0; 3], &mut |_, _| true), Err(Error::Shape { .. })));
    assert!(matches!(plan.apply(&[1.0; 2], &mut |_, _| false), Err(Error::Cancelled { .. })));
    // A pyramid of another size.
    let other = Pyramid::build(&PlaneKind::Uniform.points(500, 1), None, &population(10.0)).unwrap();
    let small = Arc::new(pyramid().download().unwrap());
    assert!(matches!(
        PlaneLists::upload(device, &other, &lists().download(device, &small).unwrap()),
        Err(Error::Shape { .. })
    ));
    assert_eq!(Complex::new(1.0, 0.0).square(), 1.0);
}
