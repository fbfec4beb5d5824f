//! `fmm compare`: runs variants on the same points and checks each against direct summation. It writes a table, the
//! rows as CSV and JSON, a plot and a page.

use crate::args::{BackendName, CompareArgs, MethodName, VariantArgs};
use crate::failure::Failure;
use crate::npy::WHOLE;
use crate::page::{self, Bar, Line, Plot, Scale};
use crate::{evaluate, input, kernel, print, run};
use clap::ValueEnum;
use fmm::{Error, Fmm, Stage, Targets};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Number of targets that are compared with direct sums.
const SAMPLED_TARGETS: usize = 1000;

/// One variant as named on the command line.
#[derive(Clone)]
struct Variant {
    name: String,
    method: MethodName,
    options: VariantArgs,
}

/// Columns of a row in files: names and values.
type Cells = Vec<(String, Value)>;

/// One measured case.
struct Row {
    variant: usize,
    n: usize,
    order: Option<usize>,
    theta: Option<f64>,
    plan: f64,
    apply: f64,
    ncrit: usize,
    stages: [f64; Stage::ALL.len()],
    /// Error of each output.
    errors: Vec<f64>,
    /// Largest error over the outputs.
    error: f64,
}

impl Row {
    /// The columns of a row in files. A value is null if the method has none.
    fn cells(&self, variants: &[Variant], outputs: &[&str]) -> Cells {
        let mut cells = Cells::new();
        let mut put = |name: &str, value: Value| cells.push((name.to_string(), value));
        put("variant", json!(variants[self.variant].name));
        put("n", json!(self.n));
        put("order", json!(self.order));
        put("theta", json!(self.theta));
        put("ncrit", json!(self.ncrit));
        put("plan_s", json!(self.plan));
        put("apply_s", json!(self.apply));
        for (output, error) in outputs.iter().zip(&self.errors) {
            put(&format!("error_{output}"), json!(error));
        }
        for (stage, seconds) in Stage::ALL.iter().zip(self.stages) {
            put(stage.name(), json!(seconds));
        }
        cells
    }
}

/// Parses a variant `method[+option…]`.
fn parse(text: &str) -> Result<Variant, Failure> {
    let mut words = text.split('+').map(str::trim);
    let refuse = |word: &str| Failure::Input(format!("--variants {text}: {word} is neither a method nor an option"));
    let first = words.next().unwrap_or("");
    let method = MethodName::from_str(first, false).map_err(|_| refuse(first))?;
    let mut options =
        VariantArgs { translation: None, truncation: None, lists: None, expansion: None, theta: None, nodes: None };
    for word in words {
        // After the first word, `direct` is a translation and `spherical` an expansion.
        let known = [
            ValueEnum::from_str(word, false).map(|x| options.translation = Some(x)).is_ok(),
            ValueEnum::from_str(word, false).map(|x| options.truncation = Some(x)).is_ok(),
            ValueEnum::from_str(word, false).map(|x| options.lists = Some(x)).is_ok(),
            ValueEnum::from_str(word, false).map(|x| options.expansion = Some(x)).is_ok(),
            word.parse().map(|x| options.theta = Some(x)).is_ok(),
        ];
        if !known.contains(&true) {
            return Err(refuse(word));
        }
    }
    Ok(Variant { name: text.to_string(), method, options })
}

/// Default variants and orders for points of `dim` coordinates.
fn usual(dim: usize) -> (&'static [&'static str], &'static [usize]) {
    match dim {
        2 => (&["direct", "laurent", "laurent+0.4", "laurent+0.7"], &[8, 12, 16, 20, 24, 28]),
        _ => (
            &["direct", "equivalent", "spherical", "spherical+fixed", "spherical+stencil119", "treecode"],
            &[4, 6, 8, 10, 12],
        ),
    }
}

/// Runs the comparison.
pub fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let dim = kernel::dim(&args.cases.kernel)?;
    let (variants, orders) = usual(dim);
    let variants = match &args.variants {
        Some(given) => given.iter().map(|v| parse(v)).collect::<Result<Vec<_>, _>>()?,
        None => variants.iter().map(|v| parse(v)).collect::<Result<Vec<_>, _>>()?,
    };
    let orders = args.orders.as_deref().unwrap_or(orders);
    let cloud = args.demo.unwrap_or(kernel::uniform(dim));
    let outputs = kernel::outputs(&args.cases.outputs);
    let base = kernel::of_cases(&args.cases)?;
    let components = base.strengths()?;
    let files = match (&args.sources, &args.strengths) {
        (Some(sources), Some(strengths)) => Some(input::read_files(
            [sources, strengths],
            WHOLE,
            dim,
            components,
            kernel::is_complex(&args.cases.kernel)?,
        )?),
        _ => None,
    };
    if files.as_ref().is_some_and(|(_, sets)| sets.len() > 1) {
        return Err(Failure::Input("compare takes real strengths for a real kernel".into()));
    }
    let memory = args.n.iter().map(|&n| base.memory(n, n)).collect::<Result<Vec<_>, _>>()?;
    if args.cases.backend != BackendName::Cuda {
        run::fits(memory.into_iter().max().unwrap_or(0), "the largest --n")?;
    }
    std::fs::create_dir_all(&args.out).map_err(|e| Failure::file(&args.out, e))?;
    let names = outputs.names();
    let mut rows = Vec::new();
    for n in numbers(&args.n, files.as_ref().map_or(usize::MAX, |(points, _)| points.len() / dim)) {
        let (points, strengths) = match &files {
            Some((points, sets)) => (points[..dim * n].to_vec(), sets[0][..n * components].to_vec()),
            None => {
                let demo = kernel::demo(Some(cloud), dim)?;
                (fmm::demo::points(demo, n, args.seed), fmm::demo::strengths(n, components, args.seed))
            }
        };
        for (i, variant) in variants.iter().enumerate() {
            let direct = variant.method == MethodName::Direct;
            for &order in if direct { &orders[..1] } else { orders } {
                let builder =
                    kernel::with_variant(base.clone().method(kernel::method(variant.method)), &variant.options);
                let builder = if direct { builder } else { builder.order(order) };
                let repeat = if direct { 1 } else { args.cases.repeat };
                if let Some(mut row) = case(builder, &points, &strengths, repeat)? {
                    row.variant = i;
                    rows.push(row);
                }
            }
        }
    }
    print(&table(args, &variants, &rows))?;
    let save = |name: &str, text: &str| {
        let path = args.out.join(name);
        std::fs::write(&path, text).map_err(|e| Failure::file(&path, e))
    };
    let cells: Vec<_> = rows.iter().map(|r| r.cells(&variants, &names)).collect();
    save("compare.csv", &csv(&cells))?;
    let plots = plots(args, &variants, &rows);
    save("compare.svg", &page::alone(&plots[1]))?;
    let (points, seed) = match &files {
        Some(_) => ("points from files".to_string(), None),
        None => (format!("one {} cloud", kernel::demo_name(cloud)), Some(args.seed)),
    };
    let kernel = kernel::name(&args.cases.kernel)?;
    let objects: Vec<Map<String, Value>> = cells.into_iter().map(|row| row.into_iter().collect()).collect();
    let head = json!({ "kernel": kernel, "points": points, "seed": seed, "outputs": names, "rows": objects });
    save("compare.json", &format!("{head:#}\n"))?;
    let title = format!("{kernel} on {points}, {}", names.join(" + "));
    save("compare.html", &page::html(&title, &plots))
}

/// The requested numbers of points, at most `most`, without repetition.
fn numbers(asked: &[usize], most: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    for n in asked.iter().map(|&n| n.min(most)) {
        if !numbers.contains(&n) {
            numbers.push(n);
        }
    }
    numbers
}

/// The rows as CSV with a header line.
fn csv(rows: &[Cells]) -> String {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(x) if x.is_f64() => format!("{:.4e}", x.as_f64().unwrap_or(f64::NAN)),
        other => other.to_string(),
    };
    let line = |cells: Vec<String>| cells.join(",") + "\n";
    let head = rows.first().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let rows = rows.iter().map(|row| row.iter().map(|(_, value)| cell(value)).collect());
    std::iter::once(head).chain(rows).map(line).collect()
}

/// Plans and evaluates one variant. `None` if its expansion does not support the order.
fn case(builder: Fmm, points: &[f64], strengths: &[f64], repeat: u32) -> Result<Option<Row>, Failure> {
    let plan = match builder.plan(points, Targets::Sources) {
        Err(Error::Order { .. }) => return Ok(None),
        plan => plan?,
    };
    let (out, apply, stages) = evaluate::evaluate(&plan, strengths, repeat)?;
    let report = plan.verify_output(strengths, &out, SAMPLED_TARGETS)?;
    let d = plan.describe();
    Ok(Some(Row {
        variant: 0,
        n: d.n_sources,
        order: d.order,
        theta: d.theta,
        ncrit: d.ncrit,
        plan: d.seconds.plan,
        apply,
        stages,
        errors: report.outputs.iter().map(|e| e.rel_l2).collect(),
        error: report.worst(),
    }))
}

/// The fastest row of a variant at `n` whose error is at most `error`.
fn best(rows: &[Row], variant: usize, n: usize, error: f64) -> Option<&Row> {
    let fits = rows.iter().filter(|r| r.variant == variant && r.n == n && r.error <= error);
    fits.min_by(|a, b| a.apply.total_cmp(&b.apply))
}

/// The numbers of points that occur in `rows`.
fn sizes(rows: &[Row]) -> Vec<usize> {
    let mut sizes: Vec<usize> = rows.iter().map(|r| r.n).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A table of the fastest row of each variant that meets the error, at each size.
fn table(args: &CompareArgs, variants: &[Variant], rows: &[Row]) -> String {
    let mut out = format!(
        "fastest order of each variant whose error, the worst over the outputs, is at most {:e}\n\n{:>9}  {:<28} {:>5} {:>5} {:>9} {:>9} {:>9} {:>7}\n",
        args.error, "points", "variant", "order", "theta", "error", "plan s", "apply s", "ratio"
    );
    for n in sizes(rows) {
        let found: Vec<_> = (0..variants.len()).map(|i| best(rows, i, n, args.error)).collect();
        let fastest = found.iter().flatten().map(|r| r.apply).fold(f64::INFINITY, f64::min);
        for (variant, row) in variants.iter().zip(found) {
            let Some(r) = row else {
                let _ = writeln!(out, "{n:>9}  {:<28} none of the orders reaches it", variant.name);
                continue;
            };
            let order = r.order.map_or("–".to_string(), |p| p.to_string());
            let theta = r.theta.map_or("–".to_string(), |t| t.to_string());
            let ratio = r.apply / fastest;
            let _ = writeln!(
                out,
                "{n:>9}  {:<28} {order:>5} {theta:>5} {:>9.1e} {:>9.4} {:>9.4} {ratio:>7.2}",
                variant.name, r.error, r.plan, r.apply
            );
        }
    }
    out
}

/// The four plots: error over time, time over N, stages, error over order.
fn plots(args: &CompareArgs, variants: &[Variant], rows: &[Row]) -> [Plot; 4] {
    let largest = rows.iter().map(|r| r.n).max().unwrap_or(0);
    let lines = |points: &dyn Fn(usize) -> Vec<[f64; 2]>| -> Vec<Line> {
        let all = variants.iter().enumerate();
        let all = all.map(|(i, v)| Line { name: v.name.clone(), color: i, points: points(i) });
        all.filter(|l| !l.points.is_empty()).collect()
    };
    let at = |i: usize| rows.iter().filter(move |r| r.variant == i && r.n == largest);
    let stage = |i: usize| {
        let row = best(rows, i, largest, args.error)?;
        let parts = Stage::ALL.iter().map(|&s| (s.name(), row.stages[s as usize])).filter(|p| p.1 > 0.0).collect();
        Some(Bar { name: variants[i].name.clone(), parts })
    };
    let fits = |i: usize| {
        let rows = sizes(rows).into_iter().filter_map(|n| best(rows, i, n, args.error));
        rows.map(|r| [r.n as f64, r.apply]).collect::<Vec<_>>()
    };
    [
        Plot::Lines {
            title: format!("Error against time, {largest} points"),
            axes: ["seconds", "relative ℓ2 error"],
            scales: [Scale::Logarithmic; 2],
            lines: lines(&|i| at(i).map(|r| [r.apply, r.error]).collect()),
        },
        Plot::Lines {
            title: format!("Time against N at errors of at most {:e}", args.error),
            axes: ["points", "seconds"],
            scales: [Scale::Logarithmic; 2],
            lines: lines(&fits),
        },
        Plot::Bars {
            title: format!("Stages at {largest} points, errors of at most {:e}", args.error),
            bars: (0..variants.len()).filter(|&i| variants[i].method != MethodName::Direct).filter_map(stage).collect(),
        },
        Plot::Lines {
            title: format!("Error against order, {largest} points"),
            axes: ["order", "relative ℓ2 error"],
            scales: [Scale::Linear, Scale::Logarithmic],
            lines: lines(&|i| at(i).filter_map(|r| Some([r.order? as f64, r.error])).collect()),
        },
    ]
}
