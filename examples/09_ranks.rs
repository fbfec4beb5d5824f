//! One sum on four ranks. Here they are threads of this program, and each has a piece of the points.
//!
//! A rank gives its own points and strengths, and gets the sums at its own points, in its own order. The sums have the
//! bits of one rank.
//!
//! ```text
//! cargo run --release --example 09_ranks
//! ```

use fmm::ranks::{World, threads};
use fmm::{Error, Fmm, Laplace, Method, Outputs, Targets, demo};

const RANKS: usize = 4;
const POINTS: usize = 20_000;

fn main() -> Result<(), Error> {
    let points = demo::points(demo::Demo::Ellipsoid, POINTS, 1);
    let charges = demo::strengths(POINTS, 1, 1);
    let request = Fmm::new(Laplace)
        .method(Method::EquivalentDensities)
        .order(6)
        .outputs(Outputs::POTENTIAL | Outputs::GRADIENT)
        .threads(1);

    // The program of a rank. Every rank runs it, with the same request and its own points.
    let rank = |world: World| -> Result<_, Error> {
        let mine = POINTS * world.rank() / RANKS..POINTS * (world.rank() + 1) / RANKS;
        let plan = request.clone().ranks(&world).plan(&points[3 * mine.start..3 * mine.end], Targets::Sources)?;
        let out = plan.apply(&charges[mine.clone()])?;
        let report = plan.verify(&charges[mine], 500)?;
        Ok((out, report, plan.describe()))
    };

    let mut potential = Vec::new();
    println!("rank  owns  ghosts  messages  multipoles sent  error on all ranks");
    for result in threads(RANKS, rank) {
        // An error of one rank would be the error of all; a rank that panics would be `Error::RankLost`.
        let (out, report, described) = result??;
        if let Some(r) = described.ranks {
            let sent = [r.owned_sources, r.ghosts, r.messages, r.rows].map(|n| format!("{n:>6}")).join("  ");
            println!("{:>4}  {sent}  {:.1e}", r.rank, report.worst());
        }
        potential.extend(out.potential);
    }
    let one = request.plan(&points, Targets::Sources)?.apply(&charges)?;
    assert_eq!(potential, one.potential);
    println!("{RANKS} ranks give the bits of one rank at all {POINTS} points.");
    Ok(())
}
