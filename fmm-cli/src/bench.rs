//! `fmm bench`: a sweep over sizes, tolerances and methods, written as a table and a plot.

use crate::args::{BackendName, BenchArgs, MethodName};
use crate::failure::Failure;
use crate::{evaluate, kernel, print, run};
use fmm::{Backend, Description, Method, Stage, Targets};
use plotters::prelude::*;
use std::fs::File;
use std::io::Write;

/// One measured case.
struct Row {
    n: usize,
    tolerance: f64,
    method: MethodName,
    apply: f64,
}

/// The rates that this machine reaches, as yardsticks of the stages.
struct Ceilings {
    /// Pairs per second of direct summation.
    pairs: f64,
    /// Rates of matrix products and copies, on a GPU.
    device: Option<fmm::Ceilings>,
}

/// Number of points of the timed direct sum. The sum takes some milliseconds, on a GPU too.
fn yardstick(backend: BackendName) -> usize {
    if backend == BackendName::Cuda { 1 << 17 } else { 1 << 13 }
}

/// Runs the sweep. Each row is written to the file as soon as it is measured. After an error, the rows before it are
/// plotted.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if args.cases.backend == BackendName::Hybrid {
        return Err(Failure::Input(
            "bench: rates are those of one processor, so it takes --backend cpu or cuda".into(),
        ));
    }
    std::fs::create_dir_all(&args.out).map_err(|e| Failure::file(&args.out, e))?;
    let path = args.out.join("bench.csv");
    let mut csv = File::create(&path).map_err(|e| Failure::file(&path, e))?;
    let mut record = |line: &str| {
        let line = format!("{line}\n");
        csv.write_all(line.as_bytes()).map_err(|e| Failure::file(&path, e))?;
        print(&line)
    };
    record(&head())?;
    let mut rows = Vec::new();
    let swept = sweep(args, |row, line| {
        rows.push(row);
        record(line)
    });
    let path = args.out.join("bench.svg");
    swept.and(plot(&path, &rows).map_err(|e| Failure::file(&path, e)))
}

/// Names of the columns. Shares are relative to rates that the machine reaches in the same run: P2P to direct
/// summation; on a GPU, M2L to the product of large matrices (operations) and to a copy within device memory (bytes).
/// Seconds of GPU stages come from a plan that runs the stages one after the other.
fn head() -> String {
    let stages: String = Stage::ALL.iter().map(|s| format!("{}_s,", s.name())).collect();
    format!(
        "kernel,demo,n,tolerance,method,precision,order,ncrit,threads,plan_s,apply_s,error_worst,peak_rss_bytes,tree_s,lists_s,\
         {stages}p2p_gpairs_s,p2p_share,m2l_gflop_s,m2l_gflop_share,m2l_gb_s,m2l_gb_share"
    )
}

/// Measures the rates that this machine reaches with the kernel of `args`.
fn ceilings(args: &BenchArgs, dim: usize) -> Result<Ceilings, Failure> {
    let n = yardstick(args.cases.backend);
    let points = fmm::demo::points(kernel::demo(Some(kernel::uniform(dim)), dim)?, n, 1);
    let builder = kernel::of_cases(&args.cases)?.method(Method::Direct);
    let strengths = fmm::demo::strengths(n, builder.strengths()?, 1);
    let (_, seconds, _) = evaluate::evaluate(&builder.plan(&points, Targets::Sources)?, &strengths, 3)?;
    let device = match kernel::backend(args.cases.backend) {
        Backend::Cuda(gpu) => Some(gpu.ceilings(kernel::precision(args.cases.precision))?),
        _ => None,
    };
    Ok(Ceilings { pairs: (n * n) as f64 / seconds, device })
}

/// Calls `measured` for every case with its line of the table.
fn sweep(args: &BenchArgs, mut measured: impl FnMut(Row, &str) -> Result<(), Failure>) -> Result<(), Failure> {
    let outputs = kernel::outputs(&args.cases.outputs);
    let dim = kernel::dim(&args.cases.kernel)?;
    let cloud = args.demo.unwrap_or(kernel::uniform(dim));
    let usual = if dim == 2 { MethodName::Laurent } else { MethodName::Equivalent };
    let methods = args.method.clone().unwrap_or(vec![usual]);
    let ceilings = ceilings(args, dim)?;
    for &n in &args.n {
        let demo = kernel::demo(Some(cloud), dim)?;
        // Demo points and sums lie in host memory on every backend. A plan checks the memory of a device itself.
        run::fits(kernel::builder(&args.cases.kernel, outputs)?.memory(n, n)?, "the largest --n")?;
        let points = fmm::demo::points(demo, n, 1);
        for &tolerance in &args.tolerance {
            for &method in &methods {
                let builder = kernel::of_cases(&args.cases)?.tolerance(tolerance).method(kernel::method(method));
                let strengths = fmm::demo::strengths(n, builder.strengths()?, 1);
                let plan = builder.plan(&points, Targets::Sources)?;
                let (out, apply, mut stages) = evaluate::evaluate(&plan, &strengths, args.cases.repeat)?;
                if args.cases.backend == BackendName::Cuda {
                    let apart = builder.stages_apart().plan(&points, Targets::Sources)?;
                    stages = evaluate::evaluate(&apart, &strengths, args.cases.repeat)?.2;
                }
                let error = plan.verify_output(&strengths, &out, 1000)?.worst();
                let d = plan.describe();
                let line = format!(
                    "{},{},{n},{tolerance:e},{},{},{},{},{},{:.6},{apply:.6},{error:.3e},{},{:.6},{:.6},{}",
                    d.kernel,
                    kernel::demo_name(cloud),
                    d.method,
                    d.precision,
                    d.order.map_or(String::new(), |o| o.to_string()),
                    d.ncrit,
                    d.threads,
                    d.seconds.plan,
                    fmm::peak_memory().unwrap_or(0),
                    d.seconds.tree,
                    d.seconds.lists,
                    rates(&d, &stages, &ceilings)
                );
                measured(Row { n, tolerance, method, apply }, &line)?;
            }
        }
    }
    Ok(())
}

/// Seconds of the stages, and the rates of P2P and M2L. Cells of stages that did not run are empty.
fn rates(d: &Description, stages: &[f64; Stage::ALL.len()], ceilings: &Ceilings) -> String {
    let mut cells: Vec<String> = stages.iter().map(|s| format!("{s:.6}")).collect();
    let mut rate = |stage: Stage, work: f64, ceiling: Option<f64>| {
        let rate = Some(work / stages[stage as usize]).filter(|r| *r > 0.0 && r.is_finite());
        cells.push(rate.map_or(String::new(), |r| format!("{:.4}", 1e-9 * r)));
        cells.push(rate.zip(ceiling).map_or(String::new(), |(r, c)| format!("{:.3}", r / c)));
    };
    rate(Stage::P2p, d.near_pairs as f64, Some(ceilings.pairs));
    rate(Stage::M2l, d.m2l_operations, ceilings.device.map(|c| c.operations));
    rate(Stage::M2l, d.m2l_bytes, ceilings.device.map(|c| c.bytes));
    cells.join(",")
}

/// Plots the seconds of one evaluation over N on logarithmic axes, with a line for each method and tolerance.
fn plot(path: &std::path::Path, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
        (low * 0.8)..(high * 1.25)
    };
    let used: Vec<&Row> = rows.iter().filter(|r| r.n > 0 && r.apply > 0.0).collect();
    if used.is_empty() {
        return Ok(std::fs::write(path, "")?);
    }
    let xs = range(&mut used.iter().map(|r| r.n as f64));
    let ys = range(&mut used.iter().map(|r| r.apply));
    let area = SVGBackend::new(path, (800, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(xs.log_scale(), ys.log_scale())?;
    chart.configure_mesh().x_desc("points").y_desc("seconds of one evaluation").draw()?;
    let mut lines: Vec<(MethodName, f64)> = Vec::new();
    for r in &used {
        if !lines.contains(&(r.method, r.tolerance)) {
            lines.push((r.method, r.tolerance));
        }
    }
    for (i, line) in lines.into_iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let mut points: Vec<(f64, f64)> =
            used.iter().filter(|r| (r.method, r.tolerance) == line).map(|r| (r.n as f64, r.apply)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = format!("{:?} {:e}", line.0, line.1).to_lowercase();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
