//! Checks ranks over MPI: `mpirun -n 4 mpi_check MODE`. The line `mpi_check MODE: well on 4 ranks`, which rank 0 prints last,
//! is the proof of success: an MPI may return 0 for a job whose rank left. scripts/mpi-tests.sh runs all modes but
//! `speed [CUT]`, which prints how fast long messages are.

use fmm::ranks::{Strategy, World};
use fmm::{AnyFamily, Error, Fmm, Laplace, Method, Outputs, Precision, Stokes, Targets};
use fmm_mpi::Settings;
use fmm_traits::Messages;
use std::time::{Duration, Instant};

/// The rank that fails.
const FAILING: usize = 1;

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let mut ranks = (0, 0);
    let mut settings = Settings::usual().unwrap();
    if mode == "cut" {
        settings.cut = 1000;
    }
    if let Some(cut) = std::env::args().nth(2) {
        settings.cut = cut.parse().unwrap();
    }
    let result = fmm_mpi::run_with(
        settings,
        |world| {
            ranks = (world.rank(), world.size());
            let fails = world.rank() == FAILING;
            match &mode[..] {
                "all" => all(&world),
                // Messages are cut into pieces of 1000 bytes.
                "cut" => same_bits(&world, Laplace, Fmm::precision, Precision::F64),
                "handle" => {
                    // SAFETY: the handle is MPI's own.
                    let other = unsafe { fmm_mpi::from_handle(fmm_mpi::all_ranks()?, settings) }?;
                    same_bits(&other, Laplace, Fmm::precision, Precision::F32)?;
                    same_bits(&world, Laplace, Fmm::precision, Precision::F32)
                }
                "nan" => nan(&world),
                "speed" => speed(&world),
                "return" if fails => Ok(()),
                "error" if fails => Err(Error::Tolerance { tolerance: -1.0 }),
                "exit" if fails => std::process::exit(0),
                "kill" if fails => {
                    let me = std::process::id().to_string();
                    std::process::Command::new("kill").args(["-9", &me]).status().unwrap();
                    Ok(())
                }
                "silent" if fails => {
                    std::thread::sleep(Duration::from_secs(600));
                    Ok(())
                }
                "return" | "error" | "exit" | "kill" | "silent" => plan(&world).map(drop),
                "panic" => {
                    let stops = move |p: &fmm::Progress| {
                        assert!(!(fails && p.phase == "m2l"), "this rank panics in a stage");
                        true
                    };
                    let (x, q) = points(1);
                    let plan = of(Laplace)
                        .progress(move |p| stops(&p))
                        .ranks(&world)
                        .plan(mine(&world, &x, 3), Targets::Sources)?;
                    plan.apply(mine(&world, &q, 1)).map(drop)
                }
                other => panic!("no mode {other:?}"),
            }
        },
        |_| {},
    );
    let expected = match (&mode[..], &result) {
        ("all" | "cut" | "handle" | "nan" | "speed", Ok(())) => true,
        // The rank that failed has its own error, the others hear of it.
        ("error", Err(Error::Tolerance { .. })) => ranks.0 == FAILING,
        ("error", Err(Error::RankLost { rank, reason })) => *rank == FAILING && reason.contains("tolerance"),
        ("return", Err(Error::RankLost { rank, reason })) => match ranks.0 {
            FAILING => *rank != FAILING && reason.contains("ended with an error"),
            _ => *rank == FAILING && reason == "it has ended",
        },
        _ => false,
    };
    assert!(expected, "mode {mode}, rank {}: {result:?}", ranks.0);
    if ranks.0 == 0 {
        println!("mpi_check {mode}: well on {} ranks", ranks.1);
    }
}

/// Points and strengths of all ranks, `width` strengths a point.
fn points(width: usize) -> (Vec<f64>, Vec<f64>) {
    (fmm::demo::points(fmm::demo::Demo::Ellipsoid, 2000, 7), fmm::demo::strengths(2000, width, 8))
}

/// The rows of this rank.
fn mine<'a>(world: &World, rows: &'a [f64], width: usize) -> &'a [f64] {
    let n = rows.len() / width;
    let end = |r: usize| n * r / world.size() * width;
    &rows[end(world.rank())..end(world.rank() + 1)]
}

fn of(family: impl Into<AnyFamily>) -> Fmm {
    let outputs = Outputs::POTENTIAL | Outputs::GRADIENT;
    Fmm::new(family).method(Method::EquivalentDensities).order(4).outputs(outputs).ncrit(20).threads(1)
}

/// Each rank sends a long message to the next one, and gets one from the rank before it.
fn speed(world: &World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    for bytes in [1usize << 16, 1 << 20, 1 << 26] {
        let mut seconds = Vec::new();
        for _ in 0..7 {
            let message = vec![rank as u8; bytes];
            world.wait()?;
            let start = Instant::now();
            let came = world.swap(vec![((rank + 1) % size, message)], &[(rank + size - 1) % size])?;
            assert_eq!(came[0][bytes - 1] as usize, (rank + size - 1) % size);
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        if rank == 0 {
            println!("{bytes} bytes: {:.3} ms, {:.2} GB/s", 1e3 * seconds[3], 1e-9 * bytes as f64 / seconds[3]);
        }
    }
    Ok(())
}

fn plan(world: &World) -> Result<fmm::Plan, Error> {
    let (x, _) = points(1);
    of(Laplace).ranks(world).plan(mine(world, &x, 3), Targets::Sources)
}

/// One rank and all ranks give the same bits. `set` gives the request a `value`.
fn same_bits<F: Into<AnyFamily>, V>(
    world: &World,
    family: F,
    set: impl Fn(Fmm, V) -> Fmm,
    value: V,
) -> Result<(), Error> {
    let request = set(of(family), value);
    let (x, q) = points(request.strengths()?);
    let width = q.len() * 3 / x.len();
    let one = request.plan(&x, Targets::Sources)?.apply(&q)?;
    let plan = request.ranks(world).plan(mine(world, &x, 3), Targets::Sources)?;
    let found = plan.apply(mine(world, &q, width))?;
    let c = one.potential.len() * 3 / x.len();
    let same = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same(&found.potential, mine(world, &one.potential, c)), "potential on rank {}", world.rank());
    assert!(same(&found.gradient, mine(world, &one.gradient, 3 * c)), "gradient on rank {}", world.rank());
    Ok(())
}

fn all(world: &World) -> Result<(), Error> {
    for precision in [Precision::F64, Precision::F32] {
        same_bits(world, Laplace, Fmm::precision, precision)?;
        same_bits(world, Stokes { mu: 1.0 }, Fmm::precision, precision)?;
    }
    same_bits(world, Laplace, |r, order| r.method(Method::SphericalHarmonics).order(order), 6)?;
    same_bits(world, Laplace, Fmm::method, Method::Direct)?;
    let (x, q) = points(1);
    // A tolerance: all ranks decide as one.
    let request = Fmm::new(Laplace).tolerance(1e-3).threads(1);
    let one = request.plan(&x, Targets::Sources)?.apply(&q)?;
    let plan = request.ranks(world).plan(mine(world, &x, 3), Targets::Sources)?;
    assert_eq!(plan.apply(mine(world, &q, 1))?.potential, mine(world, &one.potential, 1));
    let report = plan.verify(mine(world, &q, 1), 100)?;
    assert!(report.outputs.iter().all(|o| o.rel_l2 < 1e-3), "{report:?}");
    let one = of(Laplace).plan(&x, Targets::Sources)?.apply(&q)?;
    let norm = one.potential.iter().map(|u| u * u).sum::<f64>().sqrt();
    for (strategy, name) in Strategy::ALL {
        let plan = of(Laplace).exchange(strategy).ranks(world).plan(mine(world, &x, 3), Targets::Sources)?;
        let found = plan.apply(mine(world, &q, 1))?.potential;
        let errors = found.iter().zip(mine(world, &one.potential, 1)).map(|(a, b)| (a - b).powi(2));
        let error = errors.sum::<f64>().sqrt() / norm;
        assert!(error < 1e-12, "{name}: {error}");
    }
    Ok(())
}

/// A NaN on one rank is the same error on all, and the plan still works.
fn nan(world: &World) -> Result<(), Error> {
    let (_, q) = points(1);
    let plan = plan(world)?;
    let mut bad = mine(world, &q, 1).to_vec();
    if world.rank() == FAILING {
        bad[3] = f64::NAN;
    }
    match plan.apply(&bad) {
        Err(Error::Rank { rank: FAILING, error })
            if matches!(*error, Error::NotFinite { array: "strengths", row: 3, .. }) => {}
        other => panic!("rank {}: {other:?}", world.rank()),
    }
    plan.apply(mine(world, &q, 1)).map(drop)
}
