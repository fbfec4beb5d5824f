//! `fmm bench`: a sweep over sizes, tolerances and methods, as a table and a plot.

use crate::args::{BenchArgs, MethodName};
use crate::failure::Failure;
use crate::{kernel, print, run};
use fmm::Targets;
use plotters::prelude::*;
use std::fmt::Write;

/// One case.
struct Row {
    n: usize,
    tolerance: f64,
    method: MethodName,
    apply: f64,
    line: String,
}

const HEAD: &str =
    "kernel,demo,n,tolerance,method,precision,order,ncrit,threads,plan_s,apply_s,error_worst,peak_rss_bytes";

/// Runs the sweep.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let outputs = kernel::outputs(&args.outputs);
    std::fs::create_dir_all(&args.out).map_err(|e| Failure::file(&args.out, e))?;
    print(&format!("{HEAD}\n"))?;
    let mut rows = Vec::new();
    for &n in &args.n {
        let points = fmm::demo::points(kernel::demo(args.demo), n, 1);
        for &tolerance in &args.tolerance {
            for &method in &args.method {
                let mut builder = kernel::builder(&args.kernel, outputs)?
                    .tolerance(tolerance)
                    .method(kernel::method(method))
                    .backend(kernel::backend(args.backend))
                    .precision(kernel::precision(args.precision));
                if let Some(threads) = args.threads {
                    builder = builder.threads(threads);
                }
                let strengths = fmm::demo::strengths(n, builder.strengths()?, 1);
                let plan = builder.plan(&points, Targets::Sources)?;
                let (out, apply, _) = run::evaluate(&plan, &strengths, args.repeat)?;
                let error = plan.verify_output(&strengths, &out, 1000)?.worst();
                let d = plan.describe();
                let line = format!(
                    "{},{:?},{n},{tolerance:e},{},{},{},{},{},{:.6},{apply:.6},{error:.3e},{}",
                    d.kernel,
                    args.demo,
                    d.method,
                    d.precision,
                    d.order.map_or(String::new(), |o| o.to_string()),
                    d.ncrit,
                    d.threads,
                    d.seconds.plan,
                    fmm::peak_memory().unwrap_or(0)
                );
                print(&format!("{line}\n"))?;
                rows.push(Row { n, tolerance, method, apply, line });
            }
        }
    }
    let mut csv = format!("{HEAD}\n");
    for row in &rows {
        let _ = writeln!(csv, "{}", row.line);
    }
    let path = args.out.join("bench.csv");
    std::fs::write(&path, csv).map_err(|e| Failure::file(&path, e))?;
    let path = args.out.join("bench.svg");
    plot(&path, &rows).map_err(|e| Failure::file(&path, e))
}

/// Seconds of one evaluation over N, both logarithmic; a line for each method and tolerance.
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
