//! `fmm calibrate`: measures the cost model of this machine and stores it.

use crate::args::{CalibrateArgs, OutputName};
use crate::failure::Failure;
use crate::{kernel, print};
use fmm::{CostModel, Costs, OrderCosts};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The name of the built-in cost model for `--costs`.
const BUILT_IN: &str = "built-in";

/// The folder for files that later runs read.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|x| !x.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("fmm"))
}

/// The file that stores costs for later runs.
fn kept() -> Option<PathBuf> {
    Some(cache_folder()?.join("costs.json"))
}

fn read(path: &Path) -> Result<CostModel, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file(path, e))?;
    let costs: CostModel = serde_json::from_str(&text).map_err(|e| Failure::file(path, e))?;
    costs.validate().map_err(|e| Failure::file(path, e))?;
    Ok(costs)
}

/// The cost model that `--costs` names. Without `--costs`, the stored model, if it was measured on this machine with
/// this version; else the built-in model.
pub fn costs(asked: Option<&Path>) -> Result<CostModel, Failure> {
    match asked {
        Some(path) if path == Path::new(BUILT_IN) => Ok(CostModel::default()),
        Some(path) => read(path),
        None => match kept().filter(|path| path.exists()) {
            None => Ok(CostModel::default()),
            // A file that cannot be read, or that comes from another machine or version, counts as absent.
            Some(path) => {
                Ok(read(&path).ok().filter(|costs| costs.source == CostModel::fingerprint()).unwrap_or_default())
            }
        },
    }
}

/// Measures the costs, prints them and stores them.
pub fn calibrate(args: &CalibrateArgs) -> Result<(), Failure> {
    let asked = args.kernel.costs.as_ref();
    let path = match asked {
        Some(path) if path == Path::new(BUILT_IN) => {
            return Err(Failure::Input("--costs built-in names no file to keep costs in".into()));
        }
        Some(path) => path.clone(),
        None => kept().ok_or_else(|| Failure::Input("no HOME to keep costs in: --costs FILE names a place".into()))?,
    };
    let mut model = match asked {
        Some(path) if path.exists() => read(path)?,
        Some(_) => CostModel::default(),
        None => read(&path).unwrap_or_default(),
    };
    let usual = vec![vec![OutputName::Potential], vec![OutputName::Potential, OutputName::Gradient]];
    let mut kernel = args.kernel.clone();
    kernel.costs = Some(BUILT_IN.into());
    let mut text = String::new();
    for outputs in args.outputs.clone().map_or(usual, |outputs| vec![outputs]) {
        let builder = kernel::builder(&kernel, kernel::outputs(&outputs))?.backend(kernel::backend(args.backend));
        model.measure(&builder.precision(kernel::precision(args.precision)))?;
        text += &model.cases.last().map_or_else(String::new, table);
    }
    keep(&path, &model)?;
    print(&format!("{}\n\n{text}kept in {}\n", model.source, path.display()))
}

/// Writes the cost model to `path`, whole or not at all.
fn keep(path: &Path, model: &CostModel) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(model).map_err(|e| Failure::file(path, e))?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = written.and_then(|()| std::fs::write(&new, text)).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| Failure::file(path, e))
}

/// The costs of a case as a table.
fn table(costs: &Costs) -> String {
    let mut out = format!(
        "{}{} → {}, {}: a pair {:.3e} ns, a pair of leaves {:.3} ns, a pair of a direct sum {:.3e} ns, a few points {:.2} \
         ms\n{:<12} {:>5} {:>9} {:>9} {:>9}   nanoseconds\n",
        costs.device.as_ref().map(|name| format!("{name}, ")).unwrap_or_default(),
        costs.kernel,
        costs.outputs.join(", "),
        costs.precision,
        costs.pair,
        costs.leaves,
        costs.direct,
        1e-6 * costs.evaluation,
        "",
        "order",
        "point",
        "leaf",
        "m2l"
    );
    for (name, rows) in [("equivalent", &costs.equivalent), ("spherical", &costs.spherical)] {
        for OrderCosts { order, point, leaf, m2l } in rows {
            let _ = writeln!(out, "{name:<12} {order:>5} {point:>9.4} {leaf:>9.2} {m2l:>9.4}");
        }
    }
    out + "\n"
}
