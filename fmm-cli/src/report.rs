//! The report of `fmm run`: one JSON object or a table.

use fmm::{Description, ErrorReport, OutputError, Outputs, Stage};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The contents of a report.
pub struct Report {
    /// Name of the kernel on the command line.
    pub kernel: String,
    /// The description of the plan.
    pub plan: Description,
    /// Seconds of each stage in the median evaluation.
    pub stages: [f64; Stage::ALL.len()],
    /// Median seconds of an evaluation.
    pub apply: f64,
    /// Median seconds of giving the plan its points again, on a device or on several.
    pub set_points: Option<f64>,
    /// Seconds of opening the device; about 0 on a CPU.
    pub open: f64,
    /// Seconds of loading programs before the plan.
    pub load: f64,
    /// Number of evaluations.
    pub repeat: u32,
    /// Errors, if verified.
    pub errors: Option<ErrorReport>,
}

/// The reported stages.
const REPORTED_STAGES: [Stage; 8] =
    [Stage::P2m, Stage::M2m, Stage::M2l, Stage::P2l, Stage::L2l, Stage::M2p, Stage::L2p, Stage::P2p];

fn name(output: Outputs) -> &'static str {
    output.names().first().copied().unwrap_or("")
}

impl Report {
    /// The JSON object that `fmm run --json` prints, with the description of the plan under `plan`.
    pub fn json(&self) -> Value {
        let p = &self.plan;
        let mut seconds = Map::new();
        for (key, value) in [
            ("tree", p.seconds.tree),
            ("lists", p.seconds.lists),
            ("operators", p.seconds.operators),
            ("probe", p.seconds.probe),
            ("plan", p.seconds.plan),
            ("apply", self.apply),
            ("total", p.seconds.plan + self.apply),
        ] {
            seconds.insert(key.into(), json!(value));
        }
        if p.device.is_some() {
            seconds.insert("open".into(), json!(self.open));
            seconds.insert("load".into(), json!(self.load));
        }
        if let Some(set_points) = self.set_points {
            seconds.insert("set_points".into(), json!(set_points));
        }
        for stage in REPORTED_STAGES {
            seconds.insert(stage.name().into(), json!(self.stages[stage as usize]));
        }
        let mut errors = Map::new();
        for e in self.errors.iter().flat_map(|r| &r.outputs) {
            let entry = json!({
                "rel_l2": e.rel_l2,
                "rms": e.rms,
                "max_over_rms": e.max_over_rms,
                "max_rel": e.max_rel,
            });
            errors.insert(name(e.output).into(), entry);
        }
        json!({
            "kernel": self.kernel,
            "method": p.method,
            "backend": p.backend,
            "precision": p.precision,
            "n_sources": p.n_sources,
            "n_targets": p.n_targets,
            "tolerance": p.tolerance,
            "norm": p.norm,
            "order": p.order,
            "ncrit": p.ncrit,
            "levels": p.levels,
            "boxes": p.boxes,
            "leaves": p.leaves,
            "threads": p.threads,
            "seconds": seconds,
            "errors": errors,
            "probe": p.probe,
            "peak_rss_bytes": fmm::peak_memory().unwrap_or(0),
            "plan": p,
        })
    }

    /// The error of an output that the tolerance bounds: its relative ℓ2 error, or the largest relative error of a
    /// potential.
    fn promised(&self, e: &OutputError) -> f64 {
        let max = self.plan.norm == "max" && e.output == Outputs::POTENTIAL;
        if max && !e.rel_l2.is_nan() { e.max_rel } else { e.rel_l2 }
    }

    /// The largest error that the tolerance bounds over the outputs; NaN if any is NaN.
    pub fn worst(&self) -> Option<f64> {
        let errors = self.errors.as_ref()?.outputs.iter().map(|e| self.promised(e));
        Some(errors.fold(0.0, |m: f64, e| if e.is_nan() { f64::NAN } else { e.max(m) }))
    }

    /// The report as a table.
    pub fn table(&self) -> String {
        let p = &self.plan;
        let mut out = String::new();
        let mut line = |key: &str, value: String| {
            let _ = writeln!(out, "{key:<12} {value}");
        };
        line("kernel", format!("{} → {}", self.kernel, p.outputs.join(", ")));
        line("points", format!("{} sources, {} targets", p.n_sources, p.n_targets));
        if let Some(l) = p.coordinates {
            let rows = l.map(|row| format!("{:.3} {:.3} {:.3}", row[0], row[1], row[2]));
            line("coordinates", format!("L·x, where the kernel is radial, L = {}", rows.join("; ")));
        }
        line("method", format!("{} ({})", p.method, p.why));
        line("costs", p.cost_model.clone());
        if let (Some(lists), Some(expansion)) = (p.lists, p.expansion) {
            let theta = p.theta.map_or(String::new(), |t| format!(", θ = {t}"));
            let how = [p.translation, p.truncation].into_iter().flatten().map(|x| format!(", {x}")).collect::<String>();
            let nodes = p.nodes.map_or(String::new(), |n| format!(", {n} values of an attribute"));
            line("variant", format!("{expansion} expansion, {lists} lists{theta}{how}{nodes}"));
        }
        let order = p.order.map_or(String::new(), |o| format!(", order {o}"));
        let tolerance = p.tolerance.map_or("none".to_string(), |t| format!("{t:.0e}"));
        line("tolerance", format!("{tolerance}{order}, {}", p.precision));
        let threads = format!("{} threads, {}", p.threads, p.isa);
        line(
            "machine",
            match &p.device {
                Some(device) if p.backend == "hybrid" => format!("{threads}, and {device}"),
                Some(device) => device.clone(),
                None => threads,
            },
        );
        for r in &p.devices {
            let (device, sends) = (r.device.unwrap_or_default(), format!("{} multipoles, {} bytes", r.rows, r.bytes));
            let points = format!("{} sources, {} ghosts", r.owned_sources, r.ghosts);
            line("rank", format!("{} on GPU {device}: {points}, sends {sends}, imbalance {:.3}", r.rank, r.imbalance));
        }
        if p.boxes > 0 {
            line("tree", format!("{} levels, {} boxes, {} leaves, ncrit {}", p.levels, p.boxes, p.leaves, p.ncrit));
        }
        if p.pieces > 1 {
            line("memory", format!("targets in {} pieces, {:.1} MB held", p.pieces, p.bytes as f64 / 1e6));
        }
        for o in p.probe.iter().flat_map(|probe| &probe.outputs) {
            let below = o.below.map_or(String::new(), |e| format!(", one order less {e:.1e}"));
            line("measured", format!("{} errs by at most {:.1e}{below}", o.output, o.error));
        }
        for warning in &p.warnings {
            line("note", warning.clone());
        }
        out.push('\n');
        let s = &p.seconds;
        let mut rows = vec![("tree", s.tree), ("lists", s.lists), ("operators", s.operators), ("probe", s.probe)];
        rows.extend(REPORTED_STAGES.iter().map(|&stage| (stage.name(), self.stages[stage as usize])));
        let largest = rows.iter().fold(0.0f64, |m, r| m.max(r.1));
        for (key, seconds) in rows.into_iter().filter(|r| r.1 > 0.0) {
            let bar = "█".repeat((40.0 * seconds / largest).round() as usize);
            let _ = writeln!(out, "{key:<12} {seconds:>9.4} s  {bar}");
        }
        let median = if self.repeat > 1 { format!("  (median of {})", self.repeat) } else { String::new() };
        let _ = writeln!(out, "{:<12} {:>9.4} s", "plan", s.plan);
        let _ = writeln!(out, "{:<12} {:>9.4} s{median}", "apply", self.apply);
        let _ = writeln!(out, "{:<12} {:>9.4} s", "total", s.plan + self.apply);
        if let Some(bytes) = fmm::peak_memory() {
            let _ = writeln!(out, "{:<12} {:>9.1} MB", "peak memory", bytes as f64 / 1e6);
        }
        if let Some(report) = &self.errors {
            let _ = writeln!(out, "\nerror against direct summation at {} random targets", report.samples);
            for e in &report.outputs {
                let verdict = match p.tolerance {
                    Some(t) if self.promised(e) <= t => "  within tolerance",
                    Some(_) => "  ABOVE TOLERANCE",
                    None => "",
                };
                let (n, l2, max, relative) = (name(e.output), e.rel_l2, e.max_over_rms, e.max_rel);
                let errors = format!("relative ℓ2 {l2:.2e}, max/rms {max:.2e}, largest relative {relative:.2e}");
                let _ = writeln!(out, "{n:<12} {errors}{verdict}");
            }
        }
        out
    }
}
