//! Direct sums in the plane, over the pairs of [`near`](super::near).

use super::near::{Charged, Gathered, PlanePairs, STRENGTHS, VALUES};
use crate::Isa;
use fmm_traits::Error;
use rayon::prelude::*;

/// Targets per task.
const TARGETS_PER_TASK: usize = 64;
/// Sources that are summed together, and sources whose sums are added up before these enter the total. Sums of sums
/// keep the rounding of long sums small. With 4096 sources at once the relative error of a direct sum of 20 000 sources
/// was 1.0e-15 (ℓ2, normal strengths), three times that of the series, and bounds near 1e-12 were those of the direct
/// sums.
const SOURCES_PER_SUM: [usize; 2] = [256, 8192];

/// Direct sums of `sources` (N×2) with `strengths` (N × [`PlaneKernel::strengths`]) at `targets` (M×2), in the current
/// rayon pool, with derivatives up to the order `derivatives`. The result is M × [`PlaneKernel::values`]. A source at
/// exactly the position of a target contributes 0, so targets may be the sources. The bits do not depend on the number
/// of threads.
///
/// # Errors
/// [`Error::Shape`] if an array has the wrong length.
///
/// [`PlaneKernel::strengths`]: adaptive2d::PlaneKernel::strengths
/// [`PlaneKernel::values`]: adaptive2d::PlaneKernel::values
pub fn direct(
    pairs: impl Into<PlanePairs>,
    derivatives: usize,
    sources: &[f64],
    strengths: &[f64],
    targets: &[f64],
    isa: Isa,
) -> Result<Vec<f64>, Error> {
    let pairs = pairs.into();
    let (kernel, derivatives) = (pairs.kernel, derivatives.min(2));
    let (n, count) = (sources.len() / 2, kernel.strengths());
    let shape = |array, found, expected, why: &str| {
        if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why: why.to_string() }) }
    };
    shape("sources", sources.len(), 2 * n, "N×2 coordinates")?;
    shape("targets", targets.len(), targets.len() / 2 * 2, "M×2 coordinates")?;
    shape("strengths", strengths.len(), n * count, "those of the sources")?;
    let (real, width) = (pairs.is_real(strengths), kernel.values(derivatives));
    let loops = pairs.loops(derivatives, real);
    let column = |a: &[f64], width: usize, c: usize| a.iter().skip(c).step_by(width).copied().collect::<Vec<_>>();
    let at = [0, 1].map(|c| column(sources, 2, c));
    let mut columns: [Vec<f64>; STRENGTHS] = Default::default();
    for (j, place) in kernel.places(real).enumerate() {
        columns[place] = column(strengths, count, j);
    }
    let all = Charged { at: [&at[0], &at[1]], strengths: columns.each_ref().map(|s| &s[..]) };
    let mut out = vec![0.0; targets.len() / 2 * width];
    out.par_chunks_mut(TARGETS_PER_TASK * width).zip(targets.par_chunks(2 * TARGETS_PER_TASK)).for_each_init(
        Gathered::default,
        |gathered, (rows, targets)| {
            let at = [0, 1].map(|c| column(targets, 2, c));
            let targets = Charged { at: [&at[0], &at[1]], strengths: [&[]; STRENGTHS] };
            let zeros = [[0.0; TARGETS_PER_TASK]; VALUES];
            let (mut sums, [few, many]) = (zeros, SOURCES_PER_SUM);
            for first in (0..n).step_by(many) {
                let (mut part, end) = (zeros, (first + many).min(n));
                for start in (first..end).step_by(few) {
                    gathered.clear();
                    gathered.push(&all, start..(start + few).min(end));
                    gathered.finish(|_| false);
                    (loops.one_way)(isa, false, targets, gathered, part.each_mut().map(|s| &mut s[..]));
                }
                sums.as_flattened_mut().iter_mut().zip(part.as_flattened()).for_each(|(sum, part)| *sum += part);
            }
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                row.copy_from_slice(&kernel.numbers(sums.map(|s| s[i]))[..width]);
            }
        },
    );
    Ok(out)
}
