//! What a plan does when memory is short, and the root that fits the number of points.

use crate::Test;
use crate::far::{difference, ten_runs_give_the_same_bits, tree_of};
use backend_cuda::{Device, DeviceArray, DeviceScalar, Direct, Plan, Root, TreeOptions, build, uvwx};
use fmm_kernels::{Laplace, StokesPressure};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Kernels, Outputs, Targets};
use fmm_tree::ListOptions;

pub const TESTS: &[Test] = &[
    ("limits::m2l_in_parts_is_m2l", parts),
    ("limits::m2l_in_parts_gives_the_same_bits_ten_times", repeatable_parts),
    ("limits::a_root_that_holds_so_many_points_a_box", holding),
    ("limits::a_plan_that_does_not_fit_says_how_much_is_needed", too_large),
    ("limits::rates_of_products_and_copies_are_those_of_a_gpu", ceilings),
];

fn planned<T: DeviceScalar, F: Family>(device: &Device, family: &F, p: usize, points: &[f64]) -> Plan<T, f64> {
    let tree = tree_of(device, points, None, 25);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    assert!(!lists.m2l.is_empty());
    Plan::new(family, Outputs::GRADIENT, p, None, tree, lists).unwrap()
}

/// Values of a plan whole and with M2L in parts of at most `most` frequencies, for each `most` below p.
fn whole_and_in_parts<T: DeviceScalar, F: Family>(device: &Device, family: &F, kind: CloudKind, p: usize, bound: f64) {
    let points = kind.points(6000, 61);
    let q = normal_strengths(6000 * F::Source::STRENGTHS, 62);
    let mut plan = planned::<T, F>(device, family, p, &points);
    let whole = plan.apply(&q, &mut |_, _| true).unwrap().0;
    let mut differs = false;
    for most in (1..p).rev() {
        plan.set_m2l_part(most);
        let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
        differs |= u != whole;
        let e = difference(&u, &whole);
        println!("{} {} p {p}, {most} at a time: {e:.1e}", family.name(), T::NAME);
        assert!(e <= bound, "{} {} p {p}, {most} at a time: {e:e}", family.name(), T::NAME);
    }
    // Some sums end elsewhere.
    assert!(differs, "{}: M2L was not in parts", family.name());
}

/// The same terms, but surface solves amplify rounding by up to 1/cutoff.
fn parts(device: &Device) {
    whole_and_in_parts::<f64, _>(device, &Laplace, CloudKind::Uniform, 6, 1e-8);
    whole_and_in_parts::<f64, _>(device, &StokesPressure { mu: 0.7 }, CloudKind::Clustered, 5, 1e-8);
    whole_and_in_parts::<f32, _>(device, &Laplace, CloudKind::Plummer, 5, 3e-5);
}

fn repeatable_parts(device: &Device) {
    let q = normal_strengths(20_000, 63);
    let mut plan = planned::<f32, _>(device, &Laplace, 5, &CloudKind::Clustered.points(20_000, 63));
    plan.set_m2l_part(2);
    ten_runs_give_the_same_bits(&mut plan, &q);
}

/// Boxes of some level hold the points wanted, but for the rounding to whole families of two along the longest axis.
fn holding(device: &Device) {
    let options = |root| TreeOptions { ncrit: 100, min_side: 0.0, root };
    for (n, wanted) in [(8000, 60.0), (50_000, 60.0), (50_000, 75.0), (200_000, 33.0), (1000, 2000.0), (3, 0.5)] {
        for extent in [[1.0; 3], [1.0, 0.5, 0.25], [3.0, 7.0, 5.0]] {
            let unit = CloudKind::Uniform.points(n, 64);
            let points: Vec<f64> = unit.iter().enumerate().map(|(i, x)| 10.0 + x * extent[i % 3]).collect();
            let given = crate::send(device, &points);
            let tree = build(device, &given, None, &options(Root::Holding(wanted))).unwrap();
            let what = format!("{n} points, {wanted} a box, extent {extent:?}: side {}", tree.side);
            for (i, x) in points.iter().enumerate() {
                assert!(tree.corner[i % 3] <= *x && *x <= tree.corner[i % 3] + tree.side, "{what}");
            }
            let longest = extent.into_iter().fold(0.0, f64::max);
            let density = n as f64 / extent.iter().product::<f64>();
            let across = (longest.powi(3) * density / wanted).cbrt();
            // Of the levels the one whose boxes hold closest to what is wanted.
            let held = |level: i32| density * (tree.side * f64::powi(0.5, level)).powi(3);
            let ratio = (0..20).map(|l| held(l) / wanted).min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs())).unwrap();
            // Boxes along the axis are an even number; the root is rounded up, and random points leave a margin.
            let [least, most] = [across / (across + 1.0), across / (across - 1.0).max(0.1)].map(|r: f64| r.powi(3));
            if across > 2.0 {
                assert!(0.95 * least <= ratio && ratio <= 1.1 * most, "{what}: {ratio} of it in a box, {least} {most}");
            } else {
                assert!(tree.side <= 2.1 * longest, "{what}");
            }
        }
    }
    let given = crate::send(device, &CloudKind::Plane.points(2000, 65));
    let smallest = build(device, &given, None, &options(Root::Smallest)).unwrap();
    let flat = build(device, &given, None, &options(Root::Holding(60.0))).unwrap();
    assert_eq!((flat.corner, flat.side), (smallest.corner, smallest.side), "points of no volume");
    for wanted in [0.0, -1.0, f64::NAN] {
        let e = build(device, &given, None, &options(Root::Holding(wanted))).unwrap_err();
        assert!(matches!(e, Error::Parameter { .. }), "{e}");
    }
}

/// Nearly all memory is held by somebody else: every part of a plan says what it needs, and works when the memory is
/// there.
fn too_large(device: &Device) {
    // Programs are loaded into memory, too: that of this plan come first.
    let mut small = planned::<f64, _>(device, &Laplace, 6, &CloudKind::Uniform.points(3000, 66));
    small.apply(&normal_strengths(3000, 66), &mut |_, _| true).unwrap();
    drop(small);
    let n = 1 << 22;
    let points = CloudKind::Uniform.points(n, 66);
    let q = normal_strengths(n, 66);
    let options = TreeOptions { ncrit: 100, min_side: 0.0, root: Root::Smallest };
    let given = crate::send(device, &points);
    let refused = |error: Error| match error {
        Error::Memory { needed, available, what } => {
            // The driver keeps some of what it calls free.
            assert!(needed > 0 && what.ends_with("on the device"), "{what}: {needed} of {available} bytes");
            println!("refused: {what}, {needed} bytes of {available}");
        }
        other => panic!("{other}"),
    };
    let ballast = || fill(device, 8 << 20);
    let held = ballast();
    refused(build(device, &given, None, &options).unwrap_err());
    drop(held);
    let tree = build(device, &given, None, &options).unwrap();
    let held = ballast();
    refused(uvwx(&tree, &ListOptions::default()).unwrap_err());
    drop(held);
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let held = ballast();
    refused(Plan::<f64, f64>::new(&Laplace, Outputs::GRADIENT, 6, None, tree, lists).map(|_| ()).unwrap_err());
    drop(held);
    let tree = build(device, &given, None, &options).unwrap();
    let lists = uvwx(&tree, &ListOptions::default()).unwrap();
    let mut plan = Plan::<f64, f64>::new(&Laplace, Outputs::GRADIENT, 6, None, tree, lists).unwrap();
    let held = ballast();
    // Room for strengths and values of the caller is made by the first run.
    refused(plan.apply(&q, &mut |_, _| true).map(|_| ()).unwrap_err());
    drop(held);
    let u = plan.apply(&q, &mut |_, _| true).unwrap().0;
    let chosen: Vec<usize> = (0..n).step_by(40_009).collect();
    let at = Targets::Subset(&chosen);
    let v = Direct::<f64>::new(device, &Kernels::of(&Laplace, Outputs::GRADIENT).unwrap(), &points, at, None)
        .unwrap()
        .apply(&q)
        .unwrap();
    let width = u.len() / n;
    let u: Vec<f64> = chosen.iter().flat_map(|&i| u[i * width..(i + 1) * width].iter().copied()).collect();
    assert!(difference(&u, &v) <= 1e-4, "{:e}", difference(&u, &v));
}

/// Rates of products and copies are those of a GPU, and a copy is as fast whatever its numbers are.
fn ceilings(device: &Device) {
    let [single, double] = [device.ceilings::<f32>().unwrap(), device.ceilings::<f64>().unwrap()];
    for rates in [single, double] {
        assert!((1e11..1e15).contains(&rates.operations) && (5e10..2e13).contains(&rates.bytes), "{rates:?}");
    }
    assert!((0.5..2.0).contains(&(single.bytes / double.bytes)), "{single:?} {double:?}");
}

/// Holds all but about this many bytes of the free memory, in pieces of falling size.
fn fill(device: &Device, leave: u64) -> Vec<DeviceArray> {
    device.synchronize().unwrap();
    let mut held = Vec::new();
    let mut piece = device.free_memory().unwrap();
    while piece >= leave / 2 {
        match DeviceArray::zeros::<f64>(device, (piece / 8) as usize) {
            Ok(array) => held.push(array),
            Err(Error::Memory { .. }) => piece /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    held
}
