//! `mpirun -n 4 fmm run`: ranks are processes. Each reads its rows of the files and, into a `.npy` file, writes its rows of
//! the result. Rank 0 speaks for all.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::input::{self, Input};
use crate::kernel;
use crate::npz::{self, Pending, Rows};
use crate::ranks::{self, Piece, Sums};
use crate::run::{self, Asked};
use crate::save;
use fmm::ranks::World;
use fmm::{Error, Output};
use fmm_dist::wire::{Reader, Wire};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Runs `fmm run` on the ranks that a launcher of MPI started.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let (speaks, said) = (Cell::new(true), Cell::new(false));
    let work = |world: World| {
        speaks.set(world.rank() == 0);
        on_rank(args, &world)
    };
    // An error of any rank is an error of rank 0.
    let last = |result: &Result<(), Failure>| {
        if let Err(failure) = result {
            said.set(true);
            if speaks.get() {
                failure.say();
            }
        }
    };
    let result = fmm_mpi::run_with(fmm_mpi::Settings::usual()?, work, last);
    result.map_err(|failure| match failure {
        Failure::Closed => Failure::Closed,
        _ if said.get() => Failure::Said,
        // MPI does not begin or does not end.
        _ => failure,
    })
}

fn on_rank(args: &RunArgs, world: &World) -> Result<(), Failure> {
    if args.ranks > 1 {
        return Err(Failure::Input("--ranks: the launcher of MPI says how many ranks there are".into()));
    }
    let asked = Asked::of(args)?;
    ranks::check(args, world.size(), true)?;
    let input = input::read(args, &asked, (world.rank(), world.size()))?.rounded(args);
    let threads = (fmm_traits::cores() / fmm_mpi::on_this_host(world)?).max(1);
    let builder = asked.builder.clone().threads(args.threads.unwrap_or(threads));
    let builder = ranks::with_exchange(args, builder);
    let piece = Piece {
        sources: &input.sources,
        targets: input.targets.as_deref(),
        strengths: input.strengths.iter().map(|set| &set[..]).collect(),
    };
    let mut sums = ranks::on_rank(world, args, &builder, piece, asked.samples)?;
    if input.complex {
        save::fit_complex(asked.outputs, asked.dim, &|o| sums.components(o))?;
    }
    add_up(world, &mut sums)?;
    match args.out.as_deref() {
        Some(path) if npz::holds_one(path) => save_rows(args, world, path, (&asked, &input), &sums)?,
        Some(path) => save_gathered(args, world, path, (&asked, &input), &mut sums)?,
        None => {}
    }
    if world.rank() > 0 {
        return Ok(());
    }
    run::printed(args, sums.report(kernel::name(&args.kernel)?, args.repeat))
}

/// The points of all ranks, and the times of the slowest.
fn add_up(world: &World, sums: &mut Sums) -> Result<(), Error> {
    world.together(|| {
        let mut times = [&[sums.all.seconds], &sums.all.stages[..]].concat();
        world.reduce(&mut times, f64::max)?;
        sums.all.seconds = times[0];
        sums.all.stages.copy_from_slice(&times[1..]);
        let mut counts = [sums.described.n_sources as u64, sums.described.n_targets as u64];
        world.reduce(&mut counts, |a, b| a + b)?;
        (sums.described.n_sources, sums.described.n_targets) = (counts[0] as usize, counts[1] as usize);
        Ok(())
    })
}

/// The number of targets of this rank.
fn own_targets(asked: &Asked, input: &Input) -> usize {
    input.targets.as_ref().unwrap_or(&input.sources).len() / asked.dim
}

/// Writes the rows of each rank into one `.npy` file.
fn save_rows(
    args: &RunArgs,
    world: &World,
    path: &Path,
    (asked, input): (&Asked, &Input),
    sums: &Sums,
) -> Result<(), Failure> {
    let m = own_targets(asked, input);
    let mut owner = (world.rank() == 0).then(|| Pending::create(path)).transpose()?;
    let temporary = owner.as_ref().map(|file| file.temporary().display().to_string());
    let ((mine, total), names) = world.together(|| Ok((world.numbers(m)?, world.all_gather(temporary)?)))?;
    let rows = Rows { first: mine.start, total };
    let file = match owner.take() {
        Some(file) => file,
        None => Pending::of_another(path, &PathBuf::from(names[0].clone().unwrap_or_default()))?,
    };
    let mut file = file.of_rows(rows);
    let complex = kernel::is_complex(&args.kernel)? || input.complex;
    save::save(&mut file, (m, asked.dim), &|o| sums.components(o), &sums.all.outs, asked.outputs, complex)?;
    // All rows are there before the file gets its name.
    world.together(|| Ok(()))?;
    file.finish()
}

/// Rank 0 gets all rows and writes them.
fn save_gathered(
    args: &RunArgs,
    world: &World,
    path: &Path,
    (asked, input): (&Asked, &Input),
    sums: &mut Sums,
) -> Result<(), Failure> {
    let first = world.rank() == 0;
    let mut pending = first.then(|| Pending::create(path)).transpose()?;
    let mut message = Vec::new();
    let parts =
        |out: &Output| vec![out.potential.clone(), out.gradient.clone(), out.hessian.clone(), out.pressure.clone()];
    let outs: Vec<Vec<Vec<f64>>> = sums.all.outs.iter().map(parts).collect();
    // The points of a demo go into the file, too.
    let demo = if args.sources.is_none() { input.strengths.clone() } else { Vec::new() };
    let sources = if args.sources.is_none() { input.sources.clone() } else { Vec::new() };
    ((own_targets(asked, input), outs), (sources, demo)).put(&mut message);
    let everyone: Vec<usize> = (0..world.size()).collect();
    let from = if first { &everyone[..] } else { &[] };
    let came = world.together(|| world.swap(vec![(0, message)], from))?;
    let Some(file) = &mut pending else { return Ok(()) };
    let mut m = 0;
    let mut whole = Input { sources: Vec::new(), strengths: vec![Vec::new()], targets: None, complex: input.complex };
    sums.all.outs.iter_mut().for_each(|out| *out = Output::default());
    for message in &came {
        type Came = ((usize, Vec<Vec<Vec<f64>>>), (Vec<f64>, Vec<Vec<f64>>));
        let ((rows, outs), (sources, demo)): Came = Wire::get(&mut Reader::new(message))?;
        m += rows;
        for (to, mut parts) in sums.all.outs.iter_mut().zip(outs) {
            let mut part = || parts.pop().unwrap_or_default();
            let (pressure, hessian, gradient, potential) = (part(), part(), part(), part());
            let mut piece = Output::default();
            (piece.potential, piece.gradient, piece.hessian, piece.pressure) = (potential, gradient, hessian, pressure);
            ranks::append(to, piece);
        }
        whole.sources.extend(sources);
        whole.strengths[0].extend(demo.into_iter().flatten());
    }
    let complex = kernel::is_complex(&args.kernel)? || input.complex;
    save::save(file, (m, asked.dim), &|o| sums.components(o), &sums.all.outs, asked.outputs, complex)?;
    save::save_demo(file, args, &whole, (asked.dim, asked.width), complex)?;
    pending.map_or(Ok(()), Pending::finish)
}
