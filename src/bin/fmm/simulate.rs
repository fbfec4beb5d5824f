//! `fmm ranks --simulate P`: what a sum on P ranks would send, and how its work is shared out.

use crate::args::RanksArgs;
use crate::failure::Failure;
use crate::ranks::{piece, strategy};
use crate::{kernel, print};
use fmm::ranks::{LogGp, Recorded, Replay, Strategy, World, replay, threads};
use fmm::{Error, Method, Outputs, Targets};
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;

/// A row of the table.
struct Row {
    strategy: Strategy,
    imbalance: f64,
    by_points: Option<f64>,
    /// Most seconds of work of a rank.
    work: f64,
    network: Replay,
}

impl Row {
    /// The part of the time that messages take, if they do not overlap with work.
    fn share(&self) -> f64 {
        self.network.seconds / (self.network.seconds + self.work)
    }
}

/// Runs `fmm ranks`.
pub fn ranks(args: &RanksArgs) -> Result<(), Failure> {
    for (name, value) in [("latency", args.latency), ("overhead", args.overhead), ("bandwidth", args.bandwidth)] {
        if !(value.is_finite() && value >= 0.0 && (name != "bandwidth" || value > 0.0)) {
            return Err(Failure::Input(format!("--{name} {value}: a positive number is needed")));
        }
    }
    let network = LogGp { latency: args.latency, overhead: args.overhead, byte: 1.0 / args.bandwidth };
    let dim = kernel::dim(&args.kernel)?;
    let mut builder = kernel::builder(&args.kernel, Outputs::POTENTIAL)?
        .method(Method::EquivalentDensities)
        .order(args.order)
        .threads(1);
    if let Some(ncrit) = args.ncrit {
        builder = builder.ncrit(ncrit);
    }
    let (ranks, width) = (args.simulate as usize, builder.strengths()?);
    let points = fmm::demo::points(kernel::demo(Some(args.demo), dim)?, args.n, args.seed);
    let strengths = fmm::demo::strengths(args.n, width, args.seed);
    let strategies: Vec<Strategy> = match &args.exchange {
        Some(names) => names.iter().map(|&name| strategy(name)).collect(),
        None => Strategy::ALL.map(|(strategy, _)| strategy).to_vec(),
    };
    let mut rows = Vec::new();
    for strategy in strategies {
        let on_rank = |world: World| -> Result<_, Error> {
            let recorded = Arc::new(Recorded::new(world.transport()));
            let (world, r) = (World::new(recorded.clone()), world.rank());
            let request = builder.clone().exchange(strategy).ranks(&world);
            let plan = request.plan(piece(&points, dim, r, ranks), Targets::Sources)?;
            recorded.take();
            plan.apply(piece(&strengths, width, r, ranks))?;
            Ok((plan.describe().ranks, recorded.take()))
        };
        let mut row = Row { strategy, imbalance: 1.0, by_points: None, work: 0.0, network: Replay::default() };
        let mut events = Vec::new();
        for result in threads(ranks, on_rank) {
            let (report, of_rank) = result??;
            if let Some(report) = report {
                (row.imbalance, row.by_points) = (report.imbalance, report.imbalance_by_points);
                row.work = row.work.max(report.work);
            }
            events.push(of_rank);
        }
        row.network = replay(&events, &network)?;
        rows.push(row);
    }
    print(&if args.json { format!("{}\n", as_json(args, &rows)) } else { table(args, &rows) })
}

fn as_json(args: &RanksArgs, rows: &[Row]) -> serde_json::Value {
    let row = |r: &Row| {
        json!({
            "exchange": r.strategy.name(), "imbalance": r.imbalance, "imbalance_by_points": r.by_points,
            "work": r.work, "messages": r.network.messages, "bytes": r.network.bytes,
            "network": r.network.seconds, "share": r.share(),
        })
    };
    json!({
        "ranks": args.simulate, "n": args.n, "order": args.order, "latency": args.latency, "overhead": args.overhead,
        "bandwidth": args.bandwidth, "exchanges": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn table(args: &RanksArgs, rows: &[Row]) -> String {
    let mut text = format!("{} points on {} ranks, order {}\n\n", args.n, args.simulate, args.order);
    let _ = writeln!(text, "exchange   imbalance   by points     work s   messages        bytes  network s   share");
    for r in rows {
        let before = r.by_points.map_or("-".to_string(), |x| format!("{x:.3}"));
        let (name, n) = (r.strategy.name(), &r.network);
        let _ = writeln!(
            text,
            "{name:<9} {:>10.3} {before:>11} {:>10.2e} {:>10} {:>12} {:>10.2e} {:>6.1}%",
            r.imbalance,
            r.work,
            n.messages,
            n.bytes,
            n.seconds,
            100.0 * r.share()
        );
    }
    text += "\nimbalance: largest over mean forecast work of a rank; by points: before points were shared out anew\n\
        work: forecast seconds of the busiest rank on one core; messages, bytes: what the busiest rank sent in one\n\
        evaluation, counted, with all agreements; network: these messages in the LogGP model. The model knows no contention,\n\
        no noise and no waiting for a slower rank, so it is a lower bound.\n";
    text
}
