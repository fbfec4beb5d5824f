//! Rates of direct summation and times of tree and lists on the device, for docs/notes/gpu-performance.md.
//!
//! `device_rates [direct|shapes|tree|far|spherical|translations|treecode|large|huge|profile] …`; `direct`, `tree`,
//! `far` and `large` when none is named.

use backend_cuda::{
    Acceptance, CallerPoints, Device, DeviceArray, DeviceOptions, DeviceScalar, DeviceStream, Direct, Expansion, Plan,
    Root, Shape, SphericalSettings, Translation, TreeOptions, build, near_pairs, treecode, uvwx,
};
use fmm_kernels::equivalent::{Fill, Lattice};
use fmm_kernels::spherical::{Truncation, expansion::M2P_RADIUS};
use fmm_kernels::{Laplace, Stokes};
use fmm_traits::testkit::clouds::{CloudKind, Generator, normal_strengths};
use fmm_traits::{Error, Family, Kernel, Kernels, Outputs, Real, Stage, Targets};
use fmm_tree::{BuildOptions, ListOptions, TreecodeOptions};
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
    let mut sum = Direct::<T>::new(device, &Kernels::of(family, outputs)?, &points, Targets::Sources, shape)?;
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

/// Uniform points beyond 2^LARGE are made by several threads.
const LARGE: usize = 26;

/// Numbers in [0, 1).
fn uniform(n: usize, seed: u64) -> Vec<f64> {
    let mut numbers = vec![0.0; n];
    let part = n.div_ceil(16);
    std::thread::scope(|scope| {
        for (i, part) in numbers.chunks_mut(part).enumerate() {
            let mut generator = Generator::new(seed << 32 | i as u64);
            scope.spawn(move || part.iter_mut().for_each(|x| *x = generator.uniform()));
        }
    });
    numbers
}

/// Milliseconds of the median of some runs of a function that returns when the device is done.
fn milliseconds(runs: usize, mut f: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..runs {
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
            let root = if log <= 18 { Root::Given(chosen.corner, chosen.side) } else { Root::Smallest };
            let options = TreeOptions { ncrit: 64, min_side: 0.0, root };
            let given = CallerPoints::new(device, "points", &points)?;
            let built = milliseconds(20, || {
                build(device, &given, None, &options)?;
                device.synchronize()
            })?;
            let tree = build(device, &given, None, &options)?;
            let listed = milliseconds(20, || {
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

/// A way to sum.
#[derive(Clone, Copy)]
struct Way {
    expansion: Expansion,
    order: usize,
    /// Opening angle of a treecode.
    theta: Option<f64>,
}

impl Way {
    /// By spherical harmonics with all degrees.
    fn harmonics(order: usize, translation: Option<Translation>) -> Way {
        let settings = SphericalSettings { truncation: Truncation::Fixed, translation, parents: false };
        Way { expansion: Expansion::Spherical(settings), order, theta: None }
    }
}

/// Stages of one case, the last of three runs, times of all of it with points, strengths and values on the device, and
/// errors at 1000 of the targets. `leaf`: points of a full box of some level.
fn case<T: DeviceScalar, N: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    kind: CloudKind,
    log: usize,
    leaf: f64,
    p: usize,
) -> Result<(), Error> {
    let signed = |n: usize| normal_strengths(n, 1);
    let way = Way { expansion: Expansion::Equivalent(Fill::Surface), order: p, theta: None };
    case_of::<T, N, F>(device, family, outputs, kind, log, leaf, way, &signed)
}

/// [`case`] of any way, with strengths of any kind.
#[allow(clippy::too_many_arguments, reason = "a row of a table")]
fn case_of<T: DeviceScalar, N: Real, F: Family>(
    device: &Device,
    family: &F,
    outputs: Outputs,
    kind: CloudKind,
    log: usize,
    leaf: f64,
    Way { expansion, order: p, theta }: Way,
    strengths: &dyn Fn(usize) -> Vec<f64>,
) -> Result<(), Error> {
    let n = 1 << log;
    let (points, q) = if log > LARGE {
        (uniform(3 * n, 1), uniform(n * F::Source::STRENGTHS, 2).into_iter().map(|x| x - 0.5).collect())
    } else {
        (kind.points(n, 1), strengths(n * F::Source::STRENGTHS))
    };
    let (runs, warm) = if log > LARGE { (3, 1) } else { (20, 3) };
    let given = CallerPoints::new(device, "points", &points)?;
    let options = TreeOptions { ncrit: (1.6 * leaf) as usize, min_side: 0.0, root: Root::Holding(leaf) };
    // Leaves with fewer points than a row has numbers are summed pair by pair, as the facade does.
    let row = if expansion == Expansion::Equivalent(Fill::Surface) { Lattice::surface(p).len() } else { p * p };
    let list = |tree| match theta {
        None => uvwx(tree, &ListOptions { m2p_min_sources: row, p2l_min_targets: row }),
        Some(theta) => {
            let options = TreecodeOptions { theta, m2p_min_sources: row / 2 };
            treecode(tree, &options, Acceptance { sphere: M2P_RADIUS, cube: 0.0, near: 0.0 })
        }
    };
    let built = milliseconds(runs, || {
        build(device, &given, None, &options)?;
        device.synchronize()
    })?;
    let tree = build(device, &given, None, &options)?;
    let listed = milliseconds(runs, || {
        list(&tree)?;
        device.synchronize()
    })?;
    let lists = list(&tree)?;
    let pairs = near_pairs(&tree, &lists)?;
    let (boxes, edges) = (tree.len(), (lists.m2l.len(), lists.m2p.len(), lists.p2p.len()));
    let start = Instant::now();
    let mut plan = match expansion {
        Expansion::Equivalent(_) => Plan::<T, N>::new(family, outputs, p, None, tree, lists)?,
        Expansion::Spherical(how) => Plan::<T, N>::spherical(family, outputs, p, how, tree, lists)?,
    };
    device.synchronize()?;
    let planned = start.elapsed().as_secs_f64() * 1e3;
    let (mut u, mut seconds) = plan.apply(&q, &mut |_, _| true)?;
    for _ in 1..warm {
        (u, seconds) = plan.apply(&q, &mut |_, _| true)?;
    }
    plan.set_beside(Some(false));
    let (_, alone) = plan.apply(&q, &mut |_, _| true)?;
    plan.set_beside(None);
    let (columns, width) = (plan.columns().to_vec(), u.len() / n);
    let strengths = DeviceArray::new(device, &q)?;
    let zeros = columns.iter().map(|c| DeviceArray::zeros::<f64>(device, n * c.columns.len()));
    let values = zeros.collect::<Result<Vec<_>, _>>()?;
    let applied = milliseconds(runs, || {
        plan.enqueue(&strengths, &values, &DeviceStream::Null)?;
        plan.synchronize()
    })?;
    for (c, values) in columns.iter().zip(&values) {
        let rows = values.download::<f64>()?;
        let same = |(i, x): (usize, &f64)| u[i / c.columns.len() * width + c.columns[i % c.columns.len()]] == *x;
        assert!(rows.iter().enumerate().all(same), "runs differ");
    }
    drop((plan, given, strengths, values));
    let chosen: Vec<usize> = (0..1000).map(|i| i * (n / 1000)).collect();
    let mut sum = Direct::<f64>::new(device, &Kernels::of(family, outputs)?, &points, Targets::Subset(&chosen), None)?;
    let v = sum.apply(&q)?;
    let errors: Vec<String> = columns
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
    let carrier = match expansion {
        Expansion::Equivalent(_) => String::new(),
        Expansion::Spherical(how) => format!(" spherical {}", how.translation.map_or("fastest", Translation::name)),
    };
    let carrier = carrier + &theta.map_or(String::new(), |theta| format!(" treecode {theta}"));
    print!("{}{carrier} {} 2^{log} {} {} leaf {leaf} p {p}: ", family.name(), kind.name(), T::NAME, N::NAME);
    println!("tree {built:.2} lists {listed:.2} apply {applied:.2} sum {:.2} ms", built + listed + applied);
    println!("    errors {}, boxes {boxes}, edges {edges:?}, plan {planned:.1} ms", errors.join(" "));
    for (how, seconds) in [("where it pays", seconds), ("behind", alone)] {
        let stages: Vec<String> =
            Stage::ALL.iter().zip(seconds).map(|(s, t)| format!("{} {:.3}", s.name(), t * 1e3)).collect();
        println!("    P2P {how}: {}", stages.join(", "));
    }
    let rate = pairs as f64 / alone[Stage::P2p as usize] * 1e-12;
    println!("    all stages alone {:.2} ms, P2P {rate:.3}e12 pairs/s", alone.iter().sum::<f64>() * 1e3);
    Ok(())
}

fn far(device: &Device) -> Result<(), Error> {
    let (potential, both) = (Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT);
    let uniform = CloudKind::Uniform;
    for (p, leaf) in [(4, 60.0), (5, 60.0), (6, 60.0), (6, 75.0)] {
        case::<f32, f32, _>(device, &Laplace, potential, uniform, 20, leaf, p)?;
    }
    case::<f32, f64, _>(device, &Laplace, potential, uniform, 20, 60.0, 6)?;
    for (p, leaf) in [(6, 60.0), (7, 60.0), (7, 75.0)] {
        case::<f32, f32, _>(device, &Laplace, both, uniform, 20, leaf, p)?;
    }
    for (p, leaf) in [(6, 60.0), (7, 60.0)] {
        case::<f64, f64, _>(device, &Laplace, both, uniform, 20, leaf, p)?;
    }
    for (p, leaf) in [(8, 75.0), (10, 128.0), (11, 75.0), (11, 128.0)] {
        case::<f64, f64, _>(device, &Laplace, potential, uniform, 20, leaf, p)?;
    }
    for (p, leaf) in [(6, 60.0), (8, 60.0), (8, 128.0)] {
        case::<f64, f64, _>(device, &Stokes { mu: 1.0 }, potential, uniform, 20, leaf, p)?;
    }
    for p in [4, 6] {
        case::<f32, f32, _>(device, &Laplace, both, CloudKind::Plummer, 20, 60.0, p)?;
    }
    Ok(())
}

/// Spherical harmonics: Gumerov & Duraiswami's Table 8 (strengths in (0, 1)), then what compares with [`far`].
fn spherical(device: &Device) -> Result<(), Error> {
    let (potential, both) = (Outputs::POTENTIAL, Outputs::POTENTIAL | Outputs::GRADIENT);
    let (harmonics, cloud) = (|p| Way::harmonics(p, Some(Translation::Dense)), CloudKind::Uniform);
    let positive = |n: usize| uniform(n, 3);
    let signed = |n: usize| normal_strengths(n, 1);
    println!("strengths in (0, 1)");
    for (p, leaf) in [(4, 60.0), (8, 75.0), (8, 128.0), (12, 128.0), (12, 256.0)] {
        case_of::<f32, f32, _>(device, &Laplace, potential, cloud, 20, leaf, harmonics(p), &positive)?;
    }
    println!("normal strengths");
    for (p, leaf) in [(4, 60.0), (8, 75.0), (8, 128.0), (12, 128.0), (12, 256.0)] {
        case_of::<f32, f32, _>(device, &Laplace, both, cloud, 20, leaf, harmonics(p), &signed)?;
        case_of::<f64, f64, _>(device, &Laplace, both, cloud, 20, leaf, harmonics(p), &signed)?;
    }
    case_of::<f64, f64, _>(device, &Laplace, potential, cloud, 20, 256.0, harmonics(20), &signed)?;
    case_of::<f32, f32, _>(device, &Laplace, both, CloudKind::Plummer, 20, 75.0, harmonics(8), &signed)
}

/// Dense products beside rotations.
fn translations(device: &Device) -> Result<(), Error> {
    fn both<T: DeviceScalar>(device: &Device, p: usize, leaf: f64) -> Result<(), Error> {
        for translation in [Translation::Dense, Translation::Rcr] {
            let (way, signed) = (Way::harmonics(p, Some(translation)), |n: usize| normal_strengths(n, 1));
            case_of::<T, f64, _>(device, &Laplace, Outputs::POTENTIAL, CloudKind::Uniform, 20, leaf, way, &signed)?;
        }
        Ok(())
    }
    for (p, leaf) in [(4, 60.0), (6, 60.0), (8, 75.0), (10, 128.0), (12, 128.0), (16, 256.0), (20, 256.0)] {
        both::<f32>(device, p, leaf)?;
        both::<f64>(device, p, leaf)?;
    }
    both::<f64>(device, 30, 256.0)
}

/// Multipoles straight to targets.
fn treecodes(device: &Device) -> Result<(), Error> {
    let (both, signed) = (Outputs::POTENTIAL | Outputs::GRADIENT, |n: usize| normal_strengths(n, 1));
    let of = |p, theta| Way { theta: Some(theta), ..Way::harmonics(p, None) };
    for outputs in [Outputs::POTENTIAL, both] {
        case_of::<f32, f64, _>(device, &Laplace, outputs, CloudKind::Uniform, 20, 64.0, of(8, 0.6), &signed)?;
        case_of::<f64, f64, _>(device, &Laplace, outputs, CloudKind::Uniform, 20, 64.0, of(10, 0.5), &signed)?;
    }
    case_of::<f32, f64, _>(device, &Laplace, both, CloudKind::Plummer, 20, 64.0, of(8, 0.6), &signed)
}

fn large(device: &Device) -> Result<(), Error> {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    for (p, leaf) in [(5, 60.0), (6, 60.0), (6, 75.0)] {
        case::<f32, f32, _>(device, &Laplace, both, CloudKind::Uniform, 24, leaf, p)?;
    }
    for kind in [CloudKind::Plummer, CloudKind::Ellipsoid] {
        case::<f32, f32, _>(device, &Laplace, both, kind, 24, 75.0, 5)?;
    }
    Ok(())
}

/// As many points as the memory holds.
fn huge(device: &Device) -> Result<(), Error> {
    for log in [27, 29] {
        case::<f32, f32, _>(device, &Laplace, Outputs::POTENTIAL, CloudKind::Uniform, log, 60.0, 6)?;
    }
    Ok(())
}

/// One of each, to be watched by a profiler.
fn profile(device: &Device) -> Result<(), Error> {
    let both = Outputs::POTENTIAL | Outputs::GRADIENT;
    case::<f32, f32, _>(device, &Laplace, both, CloudKind::Uniform, 22, 60.0, 6)
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
    if is("spherical") {
        spherical(&device)?;
    }
    if is("translations") {
        translations(&device)?;
    }
    if is("treecode") {
        treecodes(&device)?;
    }
    if wanted.is_empty() || is("large") {
        large(&device)?;
    }
    if is("huge") {
        huge(&device)?;
    }
    if is("profile") {
        profile(&device)?;
    }
    Ok(())
}
