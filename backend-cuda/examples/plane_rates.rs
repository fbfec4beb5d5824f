//! Times of the method in the plane on the device, for docs/notes/gpu-performance.md: pyramid, lists and every stage.
//!
//! `plane_rates [table|sweep|large] …`; `table` when none is named. Each row is one cloud at one setting. Points,
//! strengths and sums are in device memory. "whole" is the median time, by the host's clock, from points to sums: copy and
//! check of the points, pyramid, lists, evaluation. Errors are against direct sums in f64 at 1000 targets: the largest
//! |e_i|/|u_i| (Goude & Engblom 2012, eq. 5.3), and the ℓ2 norm.

use adaptive2d::{ConnectOptions, PlaneKernel, PyramidOptions};
use backend_cuda::{
    CallerPoints, Device, DeviceArray, DeviceOptions, DeviceScalar, DeviceStream, PlanePlan, plane_build, plane_connect,
};
use fmm_kernels::{Harmonic2d, Laplace2d};
use fmm_traits::testkit::clouds::normal_strengths;
use fmm_traits::testkit::plane::PlaneKind;
use fmm_traits::{Error, OutputColumns, Outputs, Real, Stage};
use std::time::Instant;

/// Points of the comparison with other codes.
const N: usize = 2_949_120;
/// Targets at which errors are measured.
const SAMPLED: usize = 1000;
/// Runs of which the median counts.
const RUNS: usize = 11;

/// One row.
#[derive(Clone, Copy)]
struct Case {
    kernel: PlaneKernel,
    derivatives: usize,
    order: usize,
    theta: f64,
    depth: usize,
}

/// A cloud in device memory, with direct sums at some of its points.
struct Cloud {
    name: &'static str,
    n: usize,
    points: DeviceArray,
    strengths: [DeviceArray; 2],
    sampled: Vec<usize>,
    exact: Vec<f64>,
}

fn columns(kernel: PlaneKernel, derivatives: usize) -> Vec<OutputColumns> {
    let c = kernel.potentials();
    let mut all = vec![OutputColumns { output: Outputs::POTENTIAL, columns: (0..c).collect() }];
    if derivatives > 0 {
        all.push(OutputColumns { output: Outputs::GRADIENT, columns: (c..3 * c).collect() });
    }
    all
}

impl Cloud {
    fn new(device: &Device, kind: PlaneKind, n: usize) -> Result<Cloud, Error> {
        let (points, q) = (kind.points(n, 1), normal_strengths(2 * n, 2));
        let sampled: Vec<usize> = (0..SAMPLED).map(|k| (k * 7_919_777 + 13) % n).collect();
        let at: Vec<f64> = sampled.iter().flat_map(|&i| [points[2 * i], points[2 * i + 1]]).collect();
        let (s, t) =
            (CallerPoints::of_dim(device, 2, "sources", &points)?, CallerPoints::of_dim(device, 2, "targets", &at)?);
        let pyramid = plane_build(device, &s, Some(&t), &PyramidOptions { depth: Some(0), population: 1.0 })?;
        let lists = plane_connect(&pyramid, &ConnectOptions::default())?;
        let kernel = PlaneKernel::from(Harmonic2d);
        let mut direct = PlanePlan::<f64, f64>::new(kernel, &columns(kernel, 0), 0, None, pyramid, lists)?;
        let exact = direct.apply(&q, &mut |_, _| true)?.0;
        let single: Vec<f32> = q.iter().map(|&q| q as f32).collect();
        let strengths = [DeviceArray::new(device, &q)?, DeviceArray::new(device, &single)?];
        Ok(Cloud { name: kind.name(), n, points: DeviceArray::new(device, &points)?, strengths, sampled, exact })
    }

    /// The largest relative error, and the error in ℓ2.
    fn errors(&self, found: &[f64]) -> [f64; 2] {
        let (mut most, mut e2, mut u2) = (0.0f64, 0.0, 0.0);
        for (&i, u) in self.sampled.iter().zip(self.exact.chunks_exact(2)) {
            let e = (found[2 * i] - u[0]).powi(2) + (found[2 * i + 1] - u[1]).powi(2);
            let square = u[0] * u[0] + u[1] * u[1];
            most = most.max((e / square).sqrt());
            (e2, u2) = (e2 + e, u2 + square);
        }
        [most, (e2 / u2).sqrt()]
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    1e3 * times[times.len() / 2]
}

fn row<T: DeviceScalar, R: Real>(device: &Device, cloud: &Cloud, case: Case) -> Result<(), Error> {
    let Case { kernel, derivatives, order, theta, depth } = case;
    let stream = DeviceStream::Null;
    let options = PyramidOptions { depth: Some(depth), population: 45.0 };
    let connection = ConnectOptions { theta, ..Default::default() };
    let q = normal_strengths(kernel.strengths() * cloud.n, 2);
    let (own, single) = (DeviceArray::new(device, &q)?, usize::from(R::NAME == "f32"));
    let strengths = if kernel.complex() { &cloud.strengths[single] } else { &own };
    let values: Vec<DeviceArray> = columns(kernel, derivatives)
        .iter()
        .map(|c| DeviceArray::zeros::<T>(device, cloud.n * c.columns.len()))
        .collect::<Result<_, _>>()?;
    let mut plan: Option<PlanePlan<T, R>> = None;
    let mut times = [const { Vec::new() }; 5];
    for run in 0..RUNS + 2 {
        device.synchronize()?;
        let start = Instant::now();
        let mut at = start;
        let mut lap = || {
            let now = Instant::now();
            let seconds = (now - at).as_secs_f64();
            at = now;
            seconds
        };
        let points = CallerPoints::copied(device, 2, "points", &cloud.points, &stream)?;
        let copied = lap();
        let pyramid = plane_build(device, &points, None, &options)?;
        let built = lap();
        let lists = plane_connect(&pyramid, &connection)?;
        let connected = lap();
        match &mut plan {
            Some(plan) => plan.set_points(pyramid, lists)?,
            None => {
                plan = Some(PlanePlan::new(
                    kernel,
                    &columns(kernel, derivatives),
                    derivatives,
                    Some(order),
                    pyramid,
                    lists,
                )?)
            }
        }
        let made = plan.as_mut().expect("just made");
        made.enqueue(strengths, &values, &stream)?;
        made.synchronize()?;
        let summed = lap();
        let whole = start.elapsed().as_secs_f64();
        if run >= 2 {
            times.iter_mut().zip([copied, built, connected, summed, whole]).for_each(|(all, t)| all.push(t));
        }
    }
    let [copied, built, connected, summed, whole] = times.map(median);
    let mut plan = plan.expect("made above");
    let found: Vec<f64> = match R::NAME {
        "f32" if T::NAME == "f32" => values[0].download::<f32>()?.into_iter().map(f64::from).collect(),
        _ => values[0].download::<f64>()?,
    };
    let [most, l2] = if kernel.complex() { cloud.errors(&found) } else { [f64::NAN; 2] };
    // Stages by marks on the device, with arrays on the host.
    let mut stages = vec![Vec::new(); Stage::ALL.len()];
    for run in 0..5 {
        let seconds = plan.apply(&q, &mut |_, _| true)?.1;
        if run >= 2 {
            stages.iter_mut().zip(seconds).for_each(|(all, s)| all.push(s));
        }
    }
    let stages: Vec<String> = stages.into_iter().map(|s| format!("{:.3}", median(s))).collect();
    let edges = plan.lists().edges();
    println!(
        "{},{},{},{},{},{},{},{order},{theta},{depth},{whole:.3},{copied:.3},{built:.3},{connected:.3},{summed:.3},{},{most:.2e},{l2:.2e},{},{},{},{},{:.3e}",
        cloud.name,
        cloud.n,
        kernel.name(),
        derivatives,
        T::NAME,
        R::NAME,
        device.info().name,
        stages.join(","),
        edges[0],
        edges[1],
        edges[2],
        edges[3],
        plan.lists().near_pairs() as f64,
    );
    Ok(())
}

fn header() {
    let stages: Vec<&str> = Stage::ALL.iter().map(|s| s.name()).collect();
    println!(
        "cloud,points,kernel,derivatives,series,near,device,order,theta,depth,whole,copy,pyramid,lists,evaluation,{},max_rel,rel_l2,m2l_edges,p2l_edges,m2p_edges,p2p_edges,near_pairs",
        stages.join(",")
    );
}

fn harmonic(order: usize, theta: f64, depth: usize) -> Case {
    Case { kernel: Harmonic2d.into(), derivatives: 0, order, theta, depth }
}

const CLOUDS: [PlaneKind; 3] = [PlaneKind::Uniform, PlaneKind::Normal, PlaneKind::Layer];

/// The comparison with other codes: 2 949 120 points.
fn table(device: &Device) -> Result<(), Error> {
    for kind in CLOUDS {
        let cloud = Cloud::new(device, kind, N)?;
        row::<f64, f64>(device, &cloud, harmonic(20, 0.5, 8))?;
        row::<f64, f64>(device, &cloud, harmonic(42, 0.5, 8))?;
        row::<f32, f32>(device, &cloud, harmonic(15, 0.5, 8))?;
        row::<f64, f32>(device, &cloud, harmonic(20, 0.5, 8))?;
        row::<f64, f64>(device, &cloud, Case { derivatives: 1, ..harmonic(20, 0.5, 8) })?;
        row::<f64, f64>(device, &cloud, Case { kernel: Laplace2d.into(), ..harmonic(20, 0.5, 8) })?;
    }
    Ok(())
}

/// Orders, θ and depths.
fn sweep(device: &Device) -> Result<(), Error> {
    let cloud = Cloud::new(device, PlaneKind::Uniform, N)?;
    for (theta, order) in [(0.45, 16), (0.5, 16), (0.5, 18), (0.55, 20), (0.55, 24), (0.6, 24)] {
        row::<f64, f64>(device, &cloud, harmonic(order, theta, 8))?;
    }
    row::<f64, f64>(device, &cloud, harmonic(16, 0.5, 7))?;
    row::<f64, f64>(device, &cloud, harmonic(16, 0.5, 9))?;
    for (theta, order, depth) in [(0.5, 12, 8), (0.55, 15, 8), (0.5, 12, 7), (0.5, 12, 9)] {
        row::<f32, f32>(device, &cloud, harmonic(order, theta, depth))?;
    }
    Ok(())
}

/// 2²⁵ points, and few.
fn large(device: &Device) -> Result<(), Error> {
    for (n, depth) in [(1 << 25, 10), (1 << 16, 5), (1 << 18, 6), (1 << 20, 7)] {
        let cloud = Cloud::new(device, PlaneKind::Uniform, n)?;
        row::<f64, f64>(device, &cloud, harmonic(20, 0.5, depth))?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wanted = if wanted.is_empty() { vec!["table".to_string()] } else { wanted };
    let cache = std::env::var_os("FMM_CACHE").map(Into::into);
    let device = Device::open(&DeviceOptions { cache, ..Default::default() })?;
    header();
    for name in &wanted {
        match name.as_str() {
            "table" => table(&device)?,
            "sweep" => sweep(&device)?,
            "large" => large(&device)?,
            other => eprintln!("plane_rates: no part {other}; there are table, sweep, large"),
        }
    }
    Ok(())
}
