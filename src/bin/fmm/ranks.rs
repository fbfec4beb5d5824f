//! `fmm run --ranks`: ranks as threads of this process, each with a piece of the points.

use crate::args::{ExchangeName, PrecisionName, RunArgs};
use crate::failure::Failure;
use crate::report::Report;
use crate::run::{self, Input};
use fmm::ranks::{Strategy, World, threads};
use fmm::{Description, Error, ErrorReport, Fmm, Output, Outputs, Stage, Targets};

/// The sums of all ranks.
pub struct Sums {
    /// One output for each set of strengths, in the order of the whole arrays.
    pub outs: Vec<Output>,
    components: Vec<(Outputs, usize)>,
    described: Description,
    seconds: f64,
    stages: [f64; Stage::ALL.len()],
    errors: Option<ErrorReport>,
}

impl Sums {
    /// Components per target of an output.
    pub fn components(&self, output: Outputs) -> usize {
        self.components.iter().find(|(o, _)| *o == output).map_or(0, |(_, n)| *n)
    }
    /// The report.
    pub fn report(&self, kernel: String, repeat: u32) -> Report {
        let (plan, errors) = (self.described.clone(), self.errors.clone());
        Report { kernel, plan, stages: self.stages, apply: self.seconds, set_points: None, open: 0.0, repeat, errors }
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
        let plan = builder.clone().ranks(&world).plan(piece(&input.sources, dim, r, ranks), targets)?;
        let components = Outputs::ALL.iter().map(|&(o, _)| (o, plan.components(o))).collect();
        let (mut outs, mut seconds, mut stages, mut errors) = (Vec::new(), 0.0, [0.0; 10], None::<ErrorReport>);
        for strengths in &input.strengths {
            let mine = piece(strengths, width, r, ranks);
            let (out, time, part) = match args.numbers {
                PrecisionName::F32 => {
                    let (out, time, part) = run::evaluate(&plan, &run::narrowed(mine), args.repeat)?;
                    (out.widened(), time, part)
                }
                PrecisionName::F64 => run::evaluate(&plan, mine, args.repeat)?,
            };
            seconds += time;
            stages.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            if let Some(samples) = samples {
                let report = plan.verify_output(mine, &out, samples)?;
                errors = Some(errors.map_or(report.clone(), |other| other.worse(&report)));
            }
            outs.push(out);
        }
        Ok(Sums { outs, components, described: plan.describe(), seconds, stages, errors })
    };
    let mut parts = Vec::new();
    for part in threads(ranks, of_rank) {
        parts.push(part??);
    }
    let mut all = parts.remove(0);
    // Outputs in the order of the pieces; times of the slowest rank.
    for part in parts {
        for (to, from) in all.outs.iter_mut().zip(part.outs) {
            to.potential.extend(from.potential);
            to.gradient.extend(from.gradient);
            to.hessian.extend(from.hessian);
            to.pressure.extend(from.pressure);
        }
        all.seconds = all.seconds.max(part.seconds);
        all.stages.iter_mut().zip(part.stages).for_each(|(to, from)| *to = to.max(from));
        all.described.n_sources += part.described.n_sources;
        all.described.n_targets += part.described.n_targets;
    }
    Ok(all)
}
