//! Arrays of a caller at both ends of an evaluation, and the near field in f32.

use crate::{Test, in_turn, is_emulated};
use backend_cuda::cudarc::driver::{CudaContext, DevicePtr};
use backend_cuda::{
    CallerPoints, Device, DeviceArray, DeviceStream, DeviceTree, Plan, RawArray, Root, TreeOptions, build, uvwx,
};
use fmm_kernels::{Gravity, Laplace, StokesPressure};
use fmm_traits::lane::dot;
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Lane, Numbers, NumbersMut, Outputs, Precision, Targets};
use fmm_tree::ListOptions;

pub const TESTS: &[Test] = &[
    ("ends::arrays_of_the_caller_in_both_precisions", arrays),
    ("ends::arrays_may_be_dropped_after_the_call", dropped),
    ("ends::numbers_that_are_not_finite_are_reported_once", not_finite),
    ("ends::arrays_that_do_not_fit_are_refused", refused),
    ("ends::large_arrays_go_through_pinned_memory", transfers),
    ("ends::the_near_field_in_f32_keeps_close_pairs", close_pairs),
    ("ends::the_near_field_in_f32_scales_a_softening", softened),
    ("ends::the_near_field_in_f32_of_lone_points", lone_points),
];

fn tree_of(device: &Device, points: &[f64], ncrit: usize) -> DeviceTree {
    build(device, &crate::send(device, points), None, &TreeOptions { ncrit, min_side: 0.0, root: Root::Smallest })
        .unwrap()
}

fn plan_of<F: Family>(device: &Device, family: &F, outputs: Outputs, points: &[f64]) -> Plan<f32, f32> {
    let tree = tree_of(device, points, 50);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    Plan::new(family, outputs, 4, None, tree, lists).unwrap()
}

/// Points, strengths and values that lie in memory of the caller, and a stream on which they become ready.
fn arrays(device: &Device) {
    let n = if is_emulated(device) { 5000 } else { 20_000 };
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: the stream outlives this function's work.
    let order = unsafe { DeviceStream::raw(stream.cu_stream().cast()) };
    let s = CloudKind::Plummer.points(n, 51);
    let single: Vec<f32> = s.iter().map(|&x| x as f32).collect();
    let wide: Vec<f64> = single.iter().map(|&x| f64::from(x)).collect();
    let there = DeviceArray::from_slice(device, stream.clone_htod(&single).unwrap()).unwrap();
    let points = CallerPoints::copied(device, 3, "sources", &there, &order).unwrap();
    assert_eq!(points.download().unwrap(), wide);
    let options = TreeOptions { ncrit: 50, min_side: 0.0, root: Root::Smallest };
    let tree = build(device, &points, None, &options).unwrap();
    let [tree, same] = [tree, tree_of(device, &wide, 50)].map(|tree| tree.download().unwrap());
    assert_eq!((&tree.sources.order, &tree.anchor), (&same.sources.order, &same.anchor));
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT;
    let mut plan = plan_of(device, &Laplace, outputs, &wide);
    let columns = plan.columns().to_vec();
    for unit in [1.0f64, 1e30, 0.0] {
        let q: Vec<f64> = normal_strengths(n, 52).iter().map(|q| f64::from((q * unit) as f32)).collect();
        let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
        assert!(u.iter().all(|u| u.is_finite()), "{unit}");
        let of = |k: usize| -> Vec<f64> {
            u.chunks_exact(4).flat_map(|row| columns[k].columns.iter().map(|&c| row[c])).collect()
        };
        // On the device, in both precisions.
        let given: Vec<f32> = q.iter().map(|&q| q as f32).collect();
        let strengths = stream.clone_htod(&given).unwrap();
        let raw = RawArray {
            address: strengths.device_ptr(&stream).0,
            shape: &[n, 1],
            strides: Some(&[1, 1]),
            precision: Precision::F32,
        };
        // SAFETY: the slice outlives the work, which `synchronize` waits for.
        let strengths_there = unsafe { DeviceArray::borrowed(device, raw) }.unwrap();
        let values = [DeviceArray::zeros::<f64>(device, n).unwrap(), DeviceArray::zeros::<f32>(device, 3 * n).unwrap()];
        plan.enqueue(&strengths_there, &values, &order).unwrap();
        plan.synchronize().unwrap();
        assert_eq!(values[0].download::<f64>().unwrap(), of(0), "{unit}");
        let rounded: Vec<f32> = of(1).iter().map(|&x| x as f32).collect();
        assert_eq!(values[1].download::<f32>().unwrap(), rounded, "{unit}");
        // On the host.
        let (mut potential, mut gradient) = (vec![0.0f64; n], vec![0.0f32; 3 * n]);
        let mut out = [NumbersMut::F64(&mut potential), NumbersMut::F32(&mut gradient)];
        plan.apply_numbers(Numbers::F32(&given), &mut out, &mut |_, _| true).unwrap();
        assert_eq!((potential, gradient), (of(0), rounded), "{unit}");
    }
    // Several sets at once, of which the second is recorded and the third replayed, on other points.
    let n = 4000;
    let tree = tree_of(device, &CloudKind::Uniform.points(n, 54), 50);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    plan.set_tree(tree, lists).unwrap();
    let sets = [53, 54, 55].map(|seed| normal_strengths(n, seed));
    let mut rows = vec![vec![0.0; 4 * n]; sets.len()];
    let mut out: Vec<&mut [f64]> = rows.iter_mut().map(|rows| &mut rows[..]).collect();
    let given = sets.each_ref().map(|q| &q[..]);
    plan.apply_batch(&given, &mut out, &mut |_, _| true).unwrap();
    for (q, rows) in sets.iter().zip(&rows) {
        assert_eq!(plan.apply(q, &mut |_, _| true).unwrap().0, *rows);
    }
    assert!(plan.apply_batch(&given, &mut [], &mut |_, _| true).is_err());
}

/// The caller drops its arrays right after the call, and gets others in their place.
fn dropped(device: &Device) {
    let n = 200_000;
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let order = DeviceStream::Shared(stream.clone());
    let points = CloudKind::Uniform.points(n, 1);
    let mut plan = plan_of(device, &Laplace, Outputs::POTENTIAL, &points);
    let q = normal_strengths(n, 2);
    let expected = plan.apply(&q, &mut |_, _| true).unwrap().0;
    let before = device.reserved_memory().unwrap();
    let mut results = Vec::new();
    for k in 0..20 {
        let strengths = DeviceArray::from_slice(device, stream.clone_htod(&q).unwrap()).unwrap();
        let values = DeviceArray::from_slice(device, stream.alloc_zeros::<f64>(n).unwrap()).unwrap();
        plan.enqueue(&strengths, std::slice::from_ref(&values), &order).unwrap();
        drop(strengths);
        if k % 5 == 0 {
            results.push(values);
        }
    }
    plan.synchronize().unwrap();
    for values in &results {
        assert_eq!(values.download::<f64>().unwrap(), expected);
    }
    drop(results);
    // Arrays of this crate.
    for _ in 0..200 {
        let strengths = DeviceArray::new(device, &q).unwrap();
        let values = DeviceArray::zeros::<f64>(device, n).unwrap();
        plan.enqueue(&strengths, &[values], &order).unwrap();
    }
    plan.synchronize().unwrap();
    let grown = device.reserved_memory().unwrap() - before;
    assert!(grown < 500 << 20, "{grown} bytes");
}

fn not_finite(device: &Device) {
    let n = 5000;
    let mut plan = plan_of(device, &StokesPressure { mu: 1.0 }, Outputs::POTENTIAL, &CloudKind::Uniform.points(n, 3));
    let order = DeviceStream::Null;
    let q = normal_strengths(3 * n, 4);
    let values: Vec<DeviceArray> =
        plan.columns().iter().map(|c| DeviceArray::zeros::<f32>(device, n * c.columns.len()).unwrap()).collect();
    for (value, at) in [(f64::NAN, 7), (f64::INFINITY, 3 * n - 1), (f64::NEG_INFINITY, 0)] {
        let mut bad = q.clone();
        (bad[at], bad[(at + 100).min(3 * n - 1)]) = (value, value);
        let [good_there, bad_there] = [&q, &bad].map(|q| DeviceArray::new(device, q).unwrap());
        plan.enqueue(&bad_there, &values, &order).unwrap();
        // A later call may report; a good call in between hides nothing.
        let later = plan.enqueue(&good_there, &values, &order).err();
        let found = later.or(plan.synchronize().err()).expect("the number is reported");
        let Error::NotFinite { array: "strengths", row, column, value: seen } = found else { panic!("{found}") };
        assert_eq!((row, column), (at / 3, at % 3));
        assert!(seen == value || seen.is_nan() && value.is_nan());
        plan.synchronize().unwrap();
        let mut out: Vec<Vec<f64>> = plan.columns().iter().map(|c| vec![7.0; n * c.columns.len()]).collect();
        let mut arrays: Vec<NumbersMut> = out.iter_mut().map(|x| NumbersMut::F64(x)).collect();
        let failed = plan.apply_numbers(Numbers::F64(&bad), &mut arrays, &mut |_, _| true).unwrap_err();
        assert!(matches!(failed, Error::NotFinite { array: "strengths", row, .. } if row == at / 3), "{failed}");
        assert!(out.iter().flatten().all(|&x| x == 7.0));
    }
    // Sums beyond the range of the array.
    let huge = DeviceArray::new(device, &q.iter().map(|q| q * 1e39).collect::<Vec<_>>()).unwrap();
    plan.enqueue(&huge, &values, &order).unwrap();
    let failed = plan.synchronize().unwrap_err();
    assert!(matches!(failed, Error::NotFinite { array: "potential", .. }), "{failed}");
}

fn refused(device: &Device) {
    let n = 1000;
    let mut plan = plan_of(device, &Laplace, Outputs::POTENTIAL, &CloudKind::Uniform.points(n, 3));
    let zeros = |n: usize| DeviceArray::zeros::<f64>(device, n).unwrap();
    let (q, u, order) = (zeros(n), zeros(n), DeviceStream::Null);
    plan.enqueue(&q, std::slice::from_ref(&u), &order).unwrap();
    let mut fails = |q: &DeviceArray, u: &[DeviceArray]| plan.enqueue(q, u, &order).unwrap_err();
    assert!(matches!(
        fails(&zeros(n - 1), std::slice::from_ref(&u)),
        Error::Shape { array: "strengths", found: 999, .. }
    ));
    assert!(matches!(fails(&q, &[zeros(n + 1)]), Error::Shape { array: "potential", found: 1001, .. }));
    assert!(matches!(fails(&q, &[]), Error::Shape { array: "outputs", found: 0, expected: 1, .. }));
    assert!(matches!(fails(&q, std::slice::from_ref(&q)), Error::Array { array: "potential", .. }));
    plan.synchronize().unwrap();
    let raw = |address: u64| RawArray { address, shape: &[1000], strides: None, precision: Precision::F64 };
    let here = vec![0.0f64; n];
    for (address, reason) in [
        (u.address() + 4, "multiple of 8"),
        (here.as_ptr() as u64, "no memory of a device"),
        (0, "no memory of a device"),
    ] {
        // SAFETY: the array is refused.
        let failed = unsafe { DeviceArray::borrowed(device, raw(address)) }.unwrap_err();
        assert!(failed.to_string().contains(reason), "{failed}");
    }
    assert!(matches!(u.download::<f32>(), Err(Error::Array { .. })));
    // A part of an array that overlaps another.
    // SAFETY: a part of a live array.
    let part = unsafe { DeviceArray::borrowed(device, raw(u.address())) }.unwrap();
    assert!(matches!(plan.enqueue(&part, &[u], &order), Err(Error::Array { .. })));
}

/// Arrays around the sizes at which copies change their way.
fn transfers(device: &Device) {
    for n in [0, 1, 1 << 18, (1 << 18) + 1, (1 << 20) - 3, 1 << 20, (5 << 20) + 7, (40 << 20) + 1] {
        let data: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        let there = DeviceArray::new(device, &data).unwrap();
        assert!(there.download::<f32>().unwrap() == data, "{n}");
    }
}

/// Points in pairs at this distance: uniform points of the unit cube, each second one moved next to the one before it, in
/// any direction. With `across`, the points of a pair lie on both sides of a middle plane of the cube.
fn pairs_at(distance: f64, n: usize, across: bool) -> Vec<f64> {
    let (mut points, directions) = (CloudKind::Uniform.points(n, 6), normal_strengths(3 * n, 8));
    if across {
        points.iter_mut().for_each(|x| *x = 0.1 + 0.8 * *x);
    }
    for i in (0..n).step_by(2) {
        let step = &directions[3 * i..3 * i + 3];
        let length = step.iter().map(|x| x * x).sum::<f64>().sqrt();
        for a in 0..3 {
            let step = distance * step[a] / length;
            if across && a == i / 2 % 3 {
                points[3 * i + a] = 0.5 - 0.5 * step;
            }
            points[3 * (i + 1) + a] = points[3 * i + a] + step;
        }
    }
    points
}

/// Errors of the near field in f32 against sums in f64, at clouds whose points lie far closer than the side of a leaf.
fn close_pairs(device: &Device) {
    // One value, four, and ten: each has a shape of its own.
    let first = Outputs::POTENTIAL | Outputs::GRADIENT;
    for outputs in [Outputs::POTENTIAL, first, first | Outputs::HESSIAN] {
        close_pairs_of(device, outputs);
    }
}

fn close_pairs_of(device: &Device, outputs: Outputs) {
    let n = if is_emulated(device) { 1000 } else { 4000 };
    let unit = Root::Given([0.0; 3], 1.0);
    let mut clouds: Vec<(String, Vec<f64>, Root, usize)> =
        CloudKind::ALL.into_iter().map(|kind| (format!("{kind:?}"), kind.points(n, 5), Root::Smallest, n)).collect();
    let distances = (-1..13).map(|k| 10f64.powi(-k)).chain([3e-9, 1.5e-8, 4e-8, 2e-7, 1e-20]);
    for distance in distances {
        clouds.push((format!("pairs at {distance:e}"), pairs_at(distance, n, false), Root::Smallest, n));
        if distance < 0.1 {
            // Eight leaves that touch, and pairs of points of two leaves.
            clouds.push((format!("pairs across at {distance:e}"), pairs_at(distance, n, true), unit, n - 1));
        }
    }
    // Eight leaves that touch, in each of which all points lie close together.
    for radius in [0.0, 1e-9, 1e-6, 1e-3, 1e-2] {
        let ball = CloudKind::Uniform.points(n, 6);
        let corner = |i: usize, a: usize| 0.3 + 0.4 * (i >> a & 1) as f64;
        let points = (0..3 * n).map(|k| corner(k / 3 % 8, k % 3) + radius * (ball[k] - 0.5)).collect();
        clouds.push((format!("balls of {radius:e}"), points, unit, n - 1));
    }
    let chosen = clouds.into_iter().enumerate().filter(|(k, _)| in_turn(device, *k, 7));
    for (_, (name, points, root, ncrit)) in chosen {
        // Some clouds have fewer points.
        let n = points.len() / 3;
        // As targets of their own, points meet themselves, and no target is a source.
        for own in [false, true] {
            let targets = if own { Targets::Points(&points) } else { Targets::Sources };
            let at = own.then(|| crate::send(device, &points));
            let what = format!("{name}{}", if own { ", targets of their own" } else { "" });
            let options = TreeOptions { ncrit: ncrit.min(n), min_side: 0.0, root };
            let tree = build(device, &crate::send(device, &points), at.as_ref(), &options).unwrap();
            // All pairs are near.
            let lists = uvwx(&tree, &ListOptions::default()).unwrap();
            let mut plan = Plan::<f32, f32>::new(&Laplace, outputs, 4, None, tree, lists).unwrap();
            let q = normal_strengths(n, 7);
            let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
            let (v, columns) = crate::direct::<f64, _>(device, &Laplace, outputs, &points, &q, targets).unwrap();
            let width = u.len() / n;
            for c in &columns {
                let (mut error, mut size) = (0.0, 0.0);
                for i in 0..n {
                    for &k in &c.columns {
                        error += (u[i * width + k] - v[i * width + k]).powi(2);
                        size += v[i * width + k].powi(2);
                    }
                }
                // All sums are zero if all points are one.
                let error = if error == 0.0 { 0.0 } else { (error / size).sqrt() };
                println!("{what}, {}: {error:.1e}", c.output.names()[0]);
                let most = match c.output {
                    Outputs::POTENTIAL => 2e-6,
                    Outputs::GRADIENT => 1e-5,
                    _ => 3e-5,
                };
                assert!(error <= most, "{what}: {error}");
            }
        }
    }
}

/// 1/r⁶. Its gradient is a seventh power.
#[derive(Clone, Debug)]
struct Steep;
impl Kernel for Steep {
    const NAME: &'static str = "steep";
    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let inverse = dot(r, r).rsqrt();
        let square = inverse * inverse;
        u[0] = q[0] * square * square * square;
    }
    fn value_degree(_: usize) -> i32 {
        -6
    }
}

/// A leaf with one point, and one with few points close together, beside leaves with many: the errors at these points alone,
/// of a kernel that falls fast.
fn lone_points(device: &Device) {
    let n = 500;
    let ball = CloudKind::Uniform.points(n, 91);
    let unit = Root::Given([0.0; 3], 1.0);
    for few in [1, 3] {
        for spread in [0.0, 1e-7, 1e-4] {
            // Seven boxes of the unit cube hold uniform points, the eighth the few.
            let at = |i: usize, a: usize| match i < few {
                true => 0.8 + spread * ball[3 * i + a],
                false => 0.5 * ((i % 7) >> a & 1) as f64 + 0.499 * ball[3 * i + a],
            };
            let points: Vec<f64> = (0..3 * n).map(|k| at(k / 3, k % 3)).collect();
            let options = TreeOptions { ncrit: n - 1, min_side: 0.0, root: unit };
            let tree = build(device, &crate::send(device, &points), None, &options).unwrap();
            let lists = uvwx(&tree, &ListOptions::default()).unwrap();
            let outputs = Outputs::POTENTIAL | Outputs::GRADIENT;
            let mut plan = Plan::<f32, f32>::new(&Steep, outputs, 4, None, tree, lists).unwrap();
            let q = vec![1.0; n];
            let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
            let (v, _) = crate::direct::<f64, _>(device, &Steep, outputs, &points, &q, Targets::Sources).unwrap();
            for i in 0..few {
                let size = |u: &[f64]| u.iter().map(|x| x * x).sum::<f64>().sqrt();
                for columns in [4 * i..4 * i + 1, 4 * i + 1..4 * i + 4] {
                    let off: Vec<f64> =
                        u[columns.clone()].iter().zip(&v[columns.clone()]).map(|(u, v)| u - v).collect();
                    let error = size(&off) / size(&v[columns.clone()]);
                    println!("{few} points of {spread:e}, {columns:?}: {error:.1e}");
                    assert!(error <= 1e-5, "{few} points of {spread:e}, {columns:?}: {error:e}");
                }
            }
        }
    }
}

/// A softened kernel: its softening is scaled with the leaf, too.
fn softened(device: &Device) {
    let (n, outputs) = (5000, Outputs::POTENTIAL | Outputs::GRADIENT);
    let points = CloudKind::Uniform.points(n, 9);
    for softening in [1e-4, 1e-3] {
        let gravity = Gravity { g: 1.0, softening };
        let tree = tree_of(device, &points, 40);
        let lists = uvwx(&tree, &ListOptions::default()).unwrap();
        let mut plan = Plan::<f32, f32>::new(&gravity, outputs, 8, None, tree, lists).unwrap();
        let q = normal_strengths(n, 7);
        let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
        let v = crate::direct::<f64, _>(device, &gravity, outputs, &points, &q, Targets::Sources).unwrap().0;
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let error = norm(&mut u.iter().zip(&v).map(|(u, v)| u - v)) / norm(&mut v.iter().copied());
        println!("softening {softening}: {error:.1e}");
        assert!(error <= 1e-4, "{softening}: {error}");
    }
}
