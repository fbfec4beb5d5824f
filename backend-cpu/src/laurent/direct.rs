//! Direct sums in the plane, over the pairs of [`near`](super::near).

use super::near::{Charged, Gathered, HarmonicPair, LogarithmPair, PairKernel, VALUES, pairs};
use super::rows::numbers;
use crate::Isa;
use adaptive2d::PlaneKernel;
use fmm_traits::Error;
use rayon::prelude::*;

/// Targets per task.
const TARGETS_PER_TASK: usize = 64;
/// Sources that are summed together before their sum is added to the total. Partial sums keep the rounding of long sums
/// small.
const SOURCES_PER_SUM: usize = 4096;

/// Direct sums of `sources` (N×2) with `strengths` (N × [`PlaneKernel::strengths`]) at `targets` (M×2), in the current
/// rayon pool. The result is M × [`PlaneKernel::values`]. A source at exactly the position of a target contributes 0,
/// so targets may be the sources. The bits do not depend on the number of threads.
///
/// # Errors
/// [`Error::Shape`] if an array has the wrong length.
pub fn direct(
    kernel: PlaneKernel,
    gradient: bool,
    sources: &[f64],
    strengths: &[f64],
    targets: &[f64],
    isa: Isa,
) -> Result<Vec<f64>, Error> {
    let (n, count) = (sources.len() / 2, kernel.strengths());
    let shape = |array, found, expected, why: &str| {
        if found == expected { Ok(()) } else { Err(Error::Shape { array, found, expected, why: why.to_string() }) }
    };
    shape("sources", sources.len(), 2 * n, "N×2 coordinates")?;
    shape("targets", targets.len(), targets.len() / 2 * 2, "M×2 coordinates")?;
    shape("strengths", strengths.len(), n * count, "those of the sources")?;
    let real = count == 1 || strengths.chunks_exact(2).all(|s| s[1] == 0.0);
    let case = Case { sources, strengths, count, real, isa };
    Ok(match (kernel, gradient, real) {
        (PlaneKernel::Harmonic, false, false) => case.sum::<HarmonicPair<2, false>, 2>(kernel, targets),
        (PlaneKernel::Harmonic, true, false) => case.sum::<HarmonicPair<2, true>, 4>(kernel, targets),
        (PlaneKernel::Harmonic, false, true) => case.sum::<HarmonicPair<1, false>, 2>(kernel, targets),
        (PlaneKernel::Harmonic, true, true) => case.sum::<HarmonicPair<1, true>, 4>(kernel, targets),
        (PlaneKernel::Laplace, false, _) => case.sum::<LogarithmPair<false>, 1>(kernel, targets),
        (PlaneKernel::Laplace, true, _) => case.sum::<LogarithmPair<true>, 3>(kernel, targets),
    })
}

/// The sources of one direct sum.
struct Case<'a> {
    sources: &'a [f64],
    strengths: &'a [f64],
    count: usize,
    real: bool,
    isa: Isa,
}

impl Case<'_> {
    fn sum<K: PairKernel, const W: usize>(&self, kernel: PlaneKernel, targets: &[f64]) -> Vec<f64> {
        let column = |a: &[f64], width: usize, c: usize| a.iter().skip(c).step_by(width).copied().collect::<Vec<_>>();
        let at = [0, 1].map(|c| column(self.sources, 2, c));
        let re = column(self.strengths, self.count, 0);
        let im = if self.real { Vec::new() } else { column(self.strengths, self.count, 1) };
        let all = Charged { at: [&at[0], &at[1]], strengths: [&re, &im] };
        let mut out = vec![0.0; targets.len() / 2 * W];
        out.par_chunks_mut(TARGETS_PER_TASK * W).zip(targets.par_chunks(2 * TARGETS_PER_TASK)).for_each_init(
            Gathered::default,
            |gathered, (rows, targets)| {
                let at = [0, 1].map(|c| column(targets, 2, c));
                let targets = Charged { at: [&at[0], &at[1]], strengths: [&[], &[]] };
                let mut sums = [[0.0; TARGETS_PER_TASK]; VALUES];
                for start in (0..re.len()).step_by(SOURCES_PER_SUM) {
                    gathered.clear();
                    gathered.push(&all, start..(start + SOURCES_PER_SUM).min(re.len()));
                    gathered.finish(|_| false);
                    pairs::<K, false>(self.isa, false, targets, gathered, sums.each_mut().map(|s| &mut s[..]));
                }
                for (i, row) in rows.chunks_exact_mut(W).enumerate() {
                    row.copy_from_slice(&numbers::<W>(kernel, sums.map(|s| s[i])));
                }
            },
        );
        out
    }
}
