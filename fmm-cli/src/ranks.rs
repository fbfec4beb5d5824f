//! `fmm run` on several ranks, each with a piece of the points: threads of this process (`--ranks`), or processes.

use crate::args::{ArraysName, BackendName, ExchangeName, RunArgs};
use crate::evaluate::{self, Evaluated, OnDevice};
use crate::failure::Failure;
use crate::input::Input;
use crate::kernel;
use crate::npy::part_of;
use crate::report::Report;
use fmm::ranks::{Strategy, World, threads};
use fmm::{Cuda, Description, Error, Fmm, Output, Outputs, Targets};

/// The sums of all ranks.
pub struct Sums {
    /// Outputs in the order of the whole arrays.
    pub all: Evaluated,
    components: Vec<(Outputs, usize)>,
    /// The plan.
    pub described: Description,
    /// Seconds of giving the plan its points again, on arrays of devices.
    pub set_points: Option<f64>,
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
        Report { kernel, plan, stages, apply, set_points: self.set_points, open: 0.0, load: 0.0, repeat, errors }
    }
}

/// The piece of rank `r` of rows of `width` numbers.
pub fn piece(rows: &[f64], width: usize, r: usize, ranks: usize) -> &[f64] {
    let [first, end] = part_of(rows.len() / width, (r, ranks));
    &rows[first * width..end * width]
}

/// The points of one rank.
pub struct Piece<'a> {
    pub sources: &'a [f64],
    pub targets: Option<&'a [f64]>,
    /// Sets of strengths.
    pub strengths: Vec<&'a [f64]>,
}

/// The exchange of this name.
pub fn strategy(exchange: ExchangeName) -> Strategy {
    match exchange {
        ExchangeName::Direct => Strategy::Direct,
        ExchangeName::Hypercube => Strategy::Hypercube,
        ExchangeName::Manager => Strategy::Manager,
        ExchangeName::Frontier => Strategy::Frontier,
    }
}

/// The exchange that `args` ask for.
pub fn with_exchange(args: &RunArgs, builder: Fmm) -> Fmm {
    match args.exchange {
        Some(exchange) => builder.exchange(strategy(exchange)),
        None => builder,
    }
}

/// Refuses options that do not suit this number of ranks. `launched`: by MPI.
pub fn check(args: &RunArgs, ranks: usize, launched: bool) -> Result<(), Failure> {
    let wrong = |what: String| Err(Failure::Input(what));
    match &args.speeds {
        _ if (ranks > 1 || launched) && args.device_memory.is_some() => {
            wrong("--device-memory: several ranks take all their targets at once".into())
        }
        _ if ranks == 1
            && args.backend == BackendName::Hybrid
            && args.devices.as_ref().is_some_and(|d| d.len() > 1) =>
        {
            wrong("--devices: with --backend hybrid each rank has one GPU, so several need ranks".into())
        }
        _ if ranks == 1 && !launched && args.exchange.is_some() => {
            wrong("--exchange: one rank exchanges nothing; give --ranks".into())
        }
        _ if ranks == 1 && !launched && args.adopt => wrong("--adopt: one rank owns all points; give --ranks".into()),
        _ if args.adopt && args.out.is_some() => {
            wrong("--adopt: values come in the order of the owners, and --out has that of the points".into())
        }
        Some(_) if ranks == 1 && !launched => wrong("--speeds: there is one rank; give --ranks".into()),
        Some(speeds) if speeds.len() != ranks => wrong(format!("--speeds: {} numbers for {ranks} ranks", speeds.len())),
        _ => Ok(()),
    }
}

/// Plans and sums on one rank, with the others. Ranks take the devices in turn.
pub fn on_rank(
    world: &World,
    args: &RunArgs,
    builder: &Fmm,
    piece: Piece,
    samples: Option<usize>,
) -> Result<Sums, Error> {
    let mut builder = builder.clone().ranks(world);
    let devices = args.devices.as_deref().unwrap_or(&[0]);
    let cuda = Cuda { device: devices[world.rank() % devices.len()], ..Default::default() };
    if args.devices.is_some() {
        builder = builder.backend(kernel::backend_on(args.backend, cuda.device));
    }
    if let Some(speeds) = &args.speeds {
        builder = builder.speed(speeds[world.rank()]);
    }
    let adopted = args.adopt.then(|| adopted(&builder, &piece)).transpose()?;
    let piece = match &adopted {
        Some((sources, strengths)) => {
            Piece { sources, targets: piece.targets, strengths: strengths.iter().map(|set| &set[..]).collect() }
        }
        None => piece,
    };
    let targets = piece.targets.map_or(Targets::Sources, Targets::Points);
    let there = match args.arrays {
        ArraysName::Host => None,
        ArraysName::Device => Some(world.together(|| OnDevice::new(cuda, piece.sources, piece.targets, args))?),
    };
    let mut plan = match &there {
        None => builder.plan(piece.sources, targets)?,
        Some(held) => held.plan(&builder)?,
    };
    let components = Outputs::ALL.iter().map(|&(o, _)| (o, plan.components(o))).collect();
    let all = evaluate::evaluated(&plan, piece.strengths.into_iter(), there.as_ref(), args, samples)?;
    let described = plan.describe();
    let moved = |held: &OnDevice| evaluate::seconds_of_moves(args.repeat, || held.give_to(&mut plan));
    let set_points = there.as_ref().map(moved).transpose()?.flatten();
    Ok(Sums { all, components, described, set_points })
}

/// The sources that this rank owns, with their strengths.
fn adopted(builder: &Fmm, piece: &Piece) -> Result<(Vec<f64>, Vec<Vec<f64>>), Error> {
    let plan = builder.plan(piece.sources, piece.targets.map_or(Targets::Sources, Targets::Points))?;
    let strengths =
        piece.strengths.iter().map(|set| plan.adopt(set, builder.strengths()?)).collect::<Result<_, _>>()?;
    Ok((plan.adopt(piece.sources, plan.dim())?, strengths))
}

/// Plans and sums on `args.ranks` ranks, threads of this process.
pub fn run(args: &RunArgs, builder: Fmm, input: &Input, dim: usize, samples: Option<usize>) -> Result<Sums, Failure> {
    let ranks = args.ranks as usize;
    let cores = fmm_traits::cores();
    let builder = with_exchange(args, builder.threads(args.threads.unwrap_or((cores / ranks).max(1))));
    let width = builder.strengths()?;
    let of_rank = |world: World| {
        let r = world.rank();
        let here = Piece {
            sources: piece(&input.sources, dim, r, ranks),
            targets: input.targets.as_ref().map(|t| piece(t, dim, r, ranks)),
            strengths: input.strengths.iter().map(|set| piece(set, width, r, ranks)).collect(),
        };
        on_rank(&world, args, &builder, here, samples)
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
            append(to, from);
        }
        whole.all.seconds = whole.all.seconds.max(part.all.seconds);
        whole.all.stages.iter_mut().zip(part.all.stages).for_each(|(to, from)| *to = to.max(from));
        whole.described.devices.extend(part.described.ranks.filter(|r| r.device.is_some()));
        whole.described.n_sources += part.described.n_sources;
        whole.described.n_targets += part.described.n_targets;
    }
    Ok(whole)
}

/// Appends the rows of another piece.
pub fn append(to: &mut Output, from: Output) {
    to.potential.extend(from.potential);
    to.gradient.extend(from.gradient);
    to.hessian.extend(from.hessian);
    to.pressure.extend(from.pressure);
}
