//! Rates of direct summation and times of tree and lists on the device, for docs/notes/gpu-performance.md.
//!
//! `device_rates [direct|shapes|tree|far|large|profile] …`; all but `shapes` and `profile` when none is
//! named.

use backend_cuda::{
    CallerPoints, Device, DeviceOptions, DeviceScalar, Direct, Plan, Shape, Targets, TreeOptions, build, uvwx,
};
use fmm_kernels::{Laplace, Stokes};
use fmm_traits::testkit::clouds::{CloudKind, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Outputs, Real, Stage};
use fmm_tree::{BuildOptions, ListOptions};
use std::time::Instant;

/// Pairs a second for all pairs of `n` points.
fn rate<T: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    n: usize,
    shape: Option<Shape>,
) -> Result<f64, Error> {
    let points = CloudKind::Uniform.points(n, 1);
    let q = normal_strengths(n * F::Source::STRENGTHS, 1);
    let mut sum = Direct::<T>::new(device, family, outputs, &points, Targets::Sources(None), shape)?;
    Ok((n as f64).powi(2) / sum.seconds(&q, 7)?)
}

fn direct(device: &Device) -> Result<(), Error> {
    println!("direct summation, 1e12 pairs/s: kernel, output, N, f32, f64");
    for n in [1 << 14, 1 << 16, 1 << 18] {
        for (outputs, name) in
            [(Outputs::POTENTIAL, "potential"), (Outputs::GRADIENT, "gradient"), (Outputs::HESSIAN, "hessian")]
        {
            let single = rate::<f32, _>(device, &Laplace, outputs, n, None)? * 1e-12;
            let double = rate::<f64, _>(device, &Laplace, outputs, n, None)? * 1e-12;
            println!("laplace {name:9} {n:7} {single:6.3} {double:6.3}");
        }
    }
    let stokes = Stokes { mu: 1.0 };
    let single = rate::<f32, _>(device, &stokes, Outputs::POTENTIAL, 1 << 17, None)? * 1e-12;
    let double = rate::<f64, _>(device, &stokes, Outputs::POTENTIAL, 1 << 17, None)? * 1e-12;
    println!("stokes  potential {:7} {single:6.3} {double:6.3}", 1 << 17);
    Ok(())
}

fn shapes(device: &Device) -> Result<(), Error> {
    println!("shapes at N = 2^18: output, block, targets, tile, unroll, 1e12 pairs/s in f32, f64");
    for (outputs, name) in [(Outputs::POTENTIAL, "potential"), (Outputs::GRADIENT, "gradient")] {
        for (block, targets, tile, unroll) in [
            (128, 1, 256, 8),
            (128, 2, 256, 8),
            (128, 4, 256, 8),
            (128, 4, 256, 4),
            (128, 4, 256, 2),
            (128, 8, 256, 2),
            (256, 2, 256, 8),
            (256, 4, 256, 4),
            (256, 4, 512, 4),
            (128, 2, 512, 16),
            (64, 4, 256, 4),
            (128, 3, 256, 4),
        ] {
            let shape = Some(Shape { block, targets, tile, unroll });
            let single = rate::<f32, _>(device, &Laplace, outputs, 1 << 18, shape)? * 1e-12;
            let double = rate::<f64, _>(device, &Laplace, outputs, 1 << 18, shape)? * 1e-12;
            println!("{name:9} {block:4} {targets:2} {tile:4} {unroll:3} {single:6.3} {double:6.3}");
        }
    }
    Ok(())
}

/// Milliseconds of the median of several runs of a function that returns when the device is done.
fn milliseconds(mut f: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..8 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn tree(device: &Device) -> Result<(), Error> {
    println!("points on the device: cloud, N, boxes, tree ms, lists ms, edges of V, U, W + X");
    for log in [16, 18, 20, 22, 24] {
        for kind in [CloudKind::Uniform, CloudKind::Plummer] {
            let points = kind.points(1 << log, 1);
            // The root that the CPU chooses for this occupancy; the choice is not part of the time.
            let few = points.get(..3 << 18).unwrap_or(&points);
            let chosen = fmm_tree::build(few, None, &BuildOptions { ncrit: Some(64), ..Default::default() })?;
            let root = (log <= 18).then_some((chosen.corner, chosen.side));
            let options = TreeOptions { ncrit: 64, min_side: 0.0, root };
            let given = CallerPoints::new(device, &points)?;
            let built = milliseconds(|| {
                build(device, &given, None, &options)?;
                device.synchronize()
            })?;
            let tree = build(device, &given, None, &options)?;
            let listed = milliseconds(|| {
                uvwx(&tree, &ListOptions::default())?;
                device.synchronize()
            })?;
            let lists = uvwx(&tree, &ListOptions::default())?;
            println!(
                "{:8} 2^{log} {:8} {built:8.3} {listed:8.3} {:10} {:10} {:9}",
                kind.name(),
                tree.len(),
                lists.m2l.len(),
                lists.p2p.len(),
                lists.m2p.len() + lists.p2l.len(),
            );
        }
    }
    Ok(())
}

/// Stages of one case, the last of three runs, and errors at 1000 of the targets.
fn case<T: DeviceScalar, N: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    kind: CloudKind,
    log: usize,
    ncrit: usize,
    p: usize,
) -> Result<(), Error> {
    let n = 1 << log;
    let points = kind.points(n, 1);
    let q = normal_strengths(n * F::Source::STRENGTHS, 1);
    let given = CallerPoints::new(device, &points)?;
    let tree = build(device, &given, None, &TreeOptions { ncrit, min_side: 0.0, root: None })?;
    // Leaves with fewer points than a surface are summed pair by pair, as the facade does.
    let surface = 6 * (p - 1).pow(2) + 2;
    let lists = uvwx(&tree, &ListOptions { m2p_min_sources: surface, p2l_min_targets: surface })?;
    let edges = (lists.m2l.len(), lists.p2p.len());
    let start = Instant::now();
    let mut plan = Plan::<T, N>::new(family, outputs, p, None, tree, lists)?;
    device.synchronize()?;
    let planned = start.elapsed().as_secs_f64() * 1e3;
    plan.apply(&q, &mut |_, _| true)?;
    plan.apply(&q, &mut |_, _| true)?;
    let (u, seconds) = plan.apply(&q, &mut |_, _| true)?;
    let chosen: Vec<usize> = (0..1000).map(|i| i * (n / 1000)).collect();
    let mut sum = Direct::<f64>::new(device, family, outputs, &points, Targets::Sources(Some(&chosen)), None)?;
    let v = sum.apply(&q)?;
    let width = u.len() / n;
    let errors: Vec<String> = plan
        .columns()
        .iter()
        .map(|o| {
            let (mut e, mut size) = (0.0, 0.0);
            for (k, &i) in chosen.iter().enumerate() {
                for &c in &o.columns {
                    e += (u[i * width + c] - v[k * width + c]).powi(2);
                    size += v[k * width + c].powi(2);
                }
            }
            format!("{:.1e}", f64::sqrt(e / size))
        })
        .collect();
    print!(
        "{} {} 2^{log} {} {} ncrit {ncrit} p {p}: plan {planned:.1} ms, apply",
        family.name(),
        kind.name(),
        T::NAME,
        N::NAME
    );
    println!(" {:.3} ms, errors {}, edges {edges:?}", seconds.iter().sum::<f64>() * 1e3, errors.join(" "));
    let stages: Vec<String> =
        Stage::ALL.iter().zip(seconds).map(|(s, t)| format!("{} {:.3}", s.name(), t * 1e3)).collect();
    println!("    {}", stages.join(", "));
    Ok(())
}

fn far(device: &Device) -> Result<(), Error> {
    let (potential, both) = (Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT);
    let uniform = CloudKind::Uniform;
    for (p, ncrit) in [(4, 64), (5, 64), (6, 64), (6, 160)] {
        case::<f32, f32, _>(device, &Laplace, potential, uniform, 20, ncrit, p)?;
    }
    case::<f32, f64, _>(device, &Laplace, potential, uniform, 20, 64, 6)?;
    for (p, ncrit) in [(5, 64), (6, 64), (7, 64)] {
        case::<f32, f32, _>(device, &Laplace, both, uniform, 20, ncrit, p)?;
    }
    for (p, ncrit) in [(6, 64), (7, 64), (7, 256)] {
        case::<f64, f64, _>(device, &Laplace, both, uniform, 20, ncrit, p)?;
    }
    for (p, ncrit) in [(8, 64), (8, 256), (10, 64), (10, 256)] {
        case::<f64, f64, _>(device, &Laplace, potential, uniform, 20, ncrit, p)?;
    }
    for (p, ncrit) in [(6, 64), (6, 256), (8, 64), (8, 256)] {
        case::<f64, f64, _>(device, &Stokes { mu: 1.0 }, potential, uniform, 20, ncrit, p)?;
    }
    case::<f32, f32, _>(device, &Laplace, both, CloudKind::Plummer, 20, 128, 4)?;
    case::<f32, f32, _>(device, &Laplace, both, CloudKind::Plummer, 20, 128, 6)
}

fn large(device: &Device) -> Result<(), Error> {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for (p, ncrit) in [(4, 256), (5, 96), (6, 96)] {
        case::<f32, f32, _>(device, &Laplace, both, CloudKind::Uniform, 24, ncrit, p)?;
    }
    for kind in [CloudKind::Plummer, CloudKind::Ellipsoid] {
        case::<f32, f32, _>(device, &Laplace, both, kind, 24, 128, 5)?;
    }
    Ok(())
}

/// One of each, to be watched by a profiler.
fn profile(device: &Device) -> Result<(), Error> {
    let points = CallerPoints::new(device, &CloudKind::Uniform.points(1 << 24, 1))?;
    let tree = build(device, &points, None, &TreeOptions { ncrit: 64, min_side: 0.0, root: None })?;
    uvwx(&tree, &ListOptions::default())?;
    drop(tree);
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    case::<f64, f64, _>(device, &Laplace, both, CloudKind::Uniform, 20, 64, 6)?;
    case::<f32, f32, _>(device, &Laplace, both, CloudKind::Uniform, 20, 64, 6)
}

fn main() -> Result<(), Error> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let start = Instant::now();
    let device = Device::open(&DeviceOptions::default())?;
    println!("{:?}, opened in {:.3} s", device.info(), start.elapsed().as_secs_f64());
    let is = |name: &str| wanted.iter().any(|w| w == name);
    if wanted.is_empty() || is("direct") {
        direct(&device)?;
    }
    if is("shapes") {
        shapes(&device)?;
    }
    if wanted.is_empty() || is("tree") {
        tree(&device)?;
    }
    if wanted.is_empty() || is("far") {
        far(&device)?;
    }
    if wanted.is_empty() || is("large") {
        large(&device)?;
    }
    if is("profile") {
        profile(&device)?;
    }
    Ok(())
}
