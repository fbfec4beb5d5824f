//! Direct sums in the plane, over the pairs of [`near`](super::near).

use super::near::{Charged, Gathered, PairKernel, PairVisitor, STRENGTHS, VALUES, pairs, visit};
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
/// rayon pool, with derivatives up to the order `derivatives`. The result is M × [`PlaneKernel::values`]. A source at exactly the position of a target contributes 0,
/// so targets may be the sources. The bits do not depend on the number of threads.
///
/// # Errors
/// [`Error::Shape`] if an array has the wrong length.
pub fn direct(
    kernel: PlaneKernel,
    derivatives: usize,
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
    let real = kernel == PlaneKernel::Harmonic && strengths.chunks_exact(2).all(|s| s[1] == 0.0);
    Ok(visit(kernel, derivatives, real, Case { kernel, sources, strengths, targets, isa }))
}

/// One direct sum.
struct Case<'a> {
    kernel: PlaneKernel,
    sources: &'a [f64],
    strengths: &'a [f64],
    targets: &'a [f64],
    isa: Isa,
}

impl PairVisitor for Case<'_> {
    type Output = Vec<f64>;
    fn visit<K: PairKernel>(self) -> Vec<f64> {
        match self.kernel.values(K::DERIVATIVES) {
            1 => self.sum::<K, 1>(),
            2 => self.sum::<K, 2>(),
            3 => self.sum::<K, 3>(),
            4 => self.sum::<K, 4>(),
            _ => self.sum::<K, 6>(),
        }
    }
}

impl Case<'_> {
    fn sum<K: PairKernel, const W: usize>(&self) -> Vec<f64> {
        let column = |a: &[f64], width: usize, c: usize| a.iter().skip(c).step_by(width).copied().collect::<Vec<_>>();
        let at = [0, 1].map(|c| column(self.sources, 2, c));
        // Poles follow the charge.
        let place = |c: usize| if K::CHARGES { c } else { c - 1 };
        let strengths: [Vec<f64>; STRENGTHS] = std::array::from_fn(|c| {
            if K::has(c) { column(self.strengths, self.kernel.strengths(), place(c)) } else { Vec::new() }
        });
        let all = Charged { at: [&at[0], &at[1]], strengths: strengths.each_ref().map(|s| &s[..]) };
        let (n, targets) = (at[0].len(), self.targets);
        let mut out = vec![0.0; targets.len() / 2 * W];
        out.par_chunks_mut(TARGETS_PER_TASK * W).zip(targets.par_chunks(2 * TARGETS_PER_TASK)).for_each_init(
            Gathered::default,
            |gathered, (rows, targets)| {
                let at = [0, 1].map(|c| column(targets, 2, c));
                let targets = Charged { at: [&at[0], &at[1]], strengths: [&[]; STRENGTHS] };
                let mut sums = [[0.0; TARGETS_PER_TASK]; VALUES];
                for start in (0..n).step_by(SOURCES_PER_SUM) {
                    gathered.clear();
                    gathered.push(&all, start..(start + SOURCES_PER_SUM).min(n));
                    gathered.finish(|_| false);
                    pairs::<K, false>(self.isa, false, targets, gathered, sums.each_mut().map(|s| &mut s[..]));
                }
                for (i, row) in rows.chunks_exact_mut(W).enumerate() {
                    row.copy_from_slice(&numbers::<W>(self.kernel, sums.map(|s| s[i])));
                }
            },
        );
        out
    }
}
