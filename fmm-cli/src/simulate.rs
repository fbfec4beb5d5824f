//! `fmm ranks --simulate P`: what a sum on P ranks would send, and how its work is shared out.

use crate::args::RanksArgs;
use crate::failure::Failure;
use crate::ranks::{piece, strategy};
use crate::{kernel, print};
use fmm::ranks::{Counted, Kinds, LogGp, Recorded, Replay, Strategy, World, replay, threads};
use fmm::{Error, Fmm, Method, Outputs, Targets};
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

/// Largest number of ranks that run as threads: each holds the coarse tree of all.
const MOST_THREADS: usize = 64;

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
    let counted = builder.census(&points, ranks)?;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for strategy in strategies {
        if args.count || ranks > MOST_THREADS {
            match count(&counted, strategy, &network) {
                Ok(row) => rows.push(row),
                Err(Error::Unsupported { reason, .. }) if args.exchange.is_none() => {
                    left_out.push(format!("{}: {reason}", strategy.name()))
                }
                Err(e) => return Err(e.into()),
            }
        } else {
            rows.push(record(&builder, (&points, dim), (&strengths, width), strategy, &network, ranks)?);
        }
    }
    let seen = Seen { counted: &counted, recorded: !args.count && ranks <= MOST_THREADS, left_out: &left_out };
    print(&if args.json { format!("{}\n", as_json(args, &rows, &seen)) } else { table(args, &rows, &seen) })
}

/// What is shown beside the rows.
struct Seen<'a> {
    counted: &'a Counted,
    /// Whether messages were recorded.
    recorded: bool,
    /// Exchanges that are not counted, with the reason.
    left_out: &'a [String],
}

impl Seen<'_> {
    /// Mean and largest number of boxes of each kind.
    fn kinds(&self) -> Vec<(&'static str, f64, usize)> {
        type Count = fn(&Kinds) -> usize;
        let of: [(&str, Count); 5] = [
            ("domestic", |k| k.domestic),
            ("export", |k| k.export),
            ("import", |k| k.import),
            ("root", |k| k.root),
            ("other", |k| k.other),
        ];
        let kinds = self.counted.census.kinds();
        let row = |(name, of): (&'static str, Count)| {
            let sum: usize = kinds.iter().map(of).sum();
            (name, sum as f64 / kinds.len().max(1) as f64, kinds.iter().map(of).max().unwrap_or(0))
        };
        of.into_iter().map(row).collect()
    }
}

/// The row of a strategy whose messages are counted.
fn count(counted: &Counted, strategy: Strategy, network: &LogGp) -> Result<Row, Error> {
    let census = &counted.census;
    Ok(Row {
        strategy,
        imbalance: census.imbalance,
        by_points: census.imbalance_by_points,
        work: census.work.iter().fold(0.0, |most: f64, work| most.max(*work)),
        network: census.replay(strategy, counted.bytes, network)?,
    })
}

/// The row of a strategy, from ranks that are threads.
fn record(
    builder: &Fmm,
    (points, dim): (&[f64], usize),
    (strengths, width): (&[f64], usize),
    strategy: Strategy,
    network: &LogGp,
    ranks: usize,
) -> Result<Row, Failure> {
    let on_rank = |world: World| -> Result<_, Error> {
        let recorded = Arc::new(Recorded::new(world.transport()));
        let (world, r) = (World::new(recorded.clone()), world.rank());
        let request = builder.clone().exchange(strategy).ranks(&world);
        let plan = request.plan(piece(points, dim, r, ranks), Targets::Sources)?;
        recorded.take();
        plan.apply(piece(strengths, width, r, ranks))?;
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
    row.network = replay(&events, network)?;
    Ok(row)
}

fn as_json(args: &RanksArgs, rows: &[Row], seen: &Seen) -> serde_json::Value {
    let row = |r: &Row| {
        json!({
            "exchange": r.strategy.name(), "imbalance": r.imbalance, "imbalance_by_points": r.by_points,
            "work": r.work, "messages": r.network.messages, "bytes": r.network.bytes,
            "network": r.network.seconds, "share": r.share(),
        })
    };
    json!({
        "ranks": args.simulate, "n": args.n, "order": args.order, "latency": args.latency, "overhead": args.overhead,
        "bandwidth": args.bandwidth, "recorded": seen.recorded, "critical_level": seen.counted.census.critical_level,
        "boxes": seen.kinds().iter().map(|&(kind, mean, largest)| json!({
            "kind": kind, "mean": mean, "largest": largest
        })).collect::<Vec<_>>(),
        "left_out": seen.left_out, "exchanges": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn table(args: &RanksArgs, rows: &[Row], seen: &Seen) -> String {
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
    seen.left_out.iter().for_each(|line| text += &format!("{line}\n"));
    text += "\nboxes that a rank knows, mean and largest:";
    seen.kinds().iter().for_each(|(kind, mean, most)| text += &format!(" {kind} {mean:.0} {most},"));
    let deepest = seen.counted.census.critical_level.map_or("none".to_string(), |level| format!("on level {level}"));
    text += &format!(" deepest box of several ranks {deepest}\n");
    text += "\nimbalance: largest over mean forecast work of a rank; by points: before points were shared out anew\n\
        work: forecast seconds of the busiest rank on one core\n";
    text += if seen.recorded {
        "messages, bytes: what the busiest rank sent in one evaluation, recorded, with all agreements and with strengths and\n\
         sums on their way between callers and owners\n"
    } else {
        "messages, bytes: what the busiest rank sends in the exchange of one evaluation, strengths of ghosts and multipoles,\n\
         counted; agreements, and the ways between callers and owners, are left out\n"
    };
    text += "network: these messages in the LogGP model. The model knows no contention, no noise and no waiting for a slower\n\
        rank, so it is a lower bound.\n";
    text
}
