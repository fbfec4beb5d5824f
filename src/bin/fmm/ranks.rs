//! `fmm run --ranks`: ranks as threads of this process, each with a piece of the points.

use crate::args::{ExchangeName, RunArgs};
use crate::failure::Failure;
use crate::report::Report;
use crate::run::{self, Evaluated, Input};
use fmm::ranks::{Strategy, World, threads};
use fmm::{Cuda, Description, Error, Fmm, Outputs, Targets};

/// The sums of all ranks.
pub struct Sums {
    /// Outputs in the order of the whole arrays.
    pub all: Evaluated,
    components: Vec<(Outputs, usize)>,
    described: Description,
}

impl Sums {
    /// Components per target of an output.
    pub fn components(&self, output: Outputs) -> usize {
        self.components.iter().find(|(o, _)| *o == output).map_or(0, |(_, n)| *n)
    }
    /// The report.
    pub fn report(&self, kernel: String, repeat: u32) -> Report {
        let (plan, errors) = (self.described.clone(), self.all.errors.clone());
        let Evaluated { stages, seconds: apply, .. } = self.all;
        Report { kernel, plan, stages, apply, set_points: None, open: 0.0, repeat, errors }
    }
}

/// The piece of rank `r` of rows of `width` numbers.
fn piece(rows: &[f64], width: usize, r: usize, ranks: usize) -> &[f64] {
    let n = rows.len() / width;
    &rows[n * r / ranks * width..n * (r + 1) / ranks * width]
}

/// Plans and sums on `args.ranks` ranks.
pub fn run(args: &RunArgs, builder: Fmm, input: &Input, dim: usize, samples: Option<usize>) -> Result<Sums, Failure> {
    let ranks = args.ranks as usize;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut builder = builder.threads(args.threads.unwrap_or((cores / ranks).max(1)));
    if let Some(exchange) = args.exchange {
        builder = builder.exchange(match exchange {
            ExchangeName::Direct => Strategy::Direct,
            ExchangeName::Hypercube => Strategy::Hypercube,
            ExchangeName::Manager => Strategy::Manager,
            ExchangeName::Frontier => Strategy::Frontier,
        });
    }
    let width = builder.strengths()?;
    let of_rank = |world: World| -> Result<Sums, Error> {
        let r = world.rank();
        let targets = input.targets.as_ref().map(|t| piece(t, dim, r, ranks));
        let targets = targets.map_or(Targets::Sources, Targets::Points);
        let mut builder = builder.clone().ranks(&world);
        if let Some(devices) = &args.devices {
            builder = builder.backend(Cuda { device: devices[r % devices.len()] });
        }
        let plan = builder.plan(piece(&input.sources, dim, r, ranks), targets)?;
        let components = Outputs::ALL.iter().map(|&(o, _)| (o, plan.components(o))).collect();
        let sets = input.strengths.iter().map(|set| piece(set, width, r, ranks));
        let all = run::evaluated(&plan, sets, false, args, samples)?;
        Ok(Sums { all, components, described: plan.describe() })
    };
    let mut parts = Vec::new();
    for part in threads(ranks, of_rank) {
        parts.push(part??);
    }
    let mut whole = parts.remove(0);
    whole.described.devices.extend(whole.described.ranks.clone().filter(|r| r.device.is_some()));
    // Outputs in the order of the pieces; times of the slowest rank.
    for part in parts {
        for (to, from) in whole.all.outs.iter_mut().zip(part.all.outs) {
            to.potential.extend(from.potential);
            to.gradient.extend(from.gradient);
            to.hessian.extend(from.hessian);
            to.pressure.extend(from.pressure);
        }
        whole.all.seconds = whole.all.seconds.max(part.all.seconds);
        whole.all.stages.iter_mut().zip(part.all.stages).for_each(|(to, from)| *to = to.max(from));
        whole.described.devices.extend(part.described.ranks.filter(|r| r.device.is_some()));
        whole.described.n_sources += part.described.n_sources;
        whole.described.n_targets += part.described.n_targets;
    }
    Ok(whole)
}
