//! Direct summation: the O(N·M) oracle, at the arithmetic peak of the machine.

use crate::lanes::Isa;
use crate::soa::Soa;
use crate::sum::Pair;
use fmm_traits::{Error, Family, Kernel, OutputColumns, Outputs, Real, Visitor};
use rayon::prelude::*;

/// The precision of the arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Precision {
    /// Single.
    F32,
    /// Double.
    F64,
}

impl Precision {
    /// `"f32"` or `"f64"`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F64 => "f64",
        }
    }
}

/// Where a direct sum is evaluated.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// At the sources with these indices (`None`: all), each skipping itself.
    Sources(Option<&'a [usize]>),
    /// At these points, M×3 row-major.
    Points(&'a [f64]),
}

/// Sources per tile: a tile of four f64 rows stays in a 32 KiB cache.
const TILE: usize = 1024;
/// Targets per task.
const TASK: usize = 64;

/// Sums all pairs. `sources` N×3 and `strengths` N×c row-major; the result has the values of the
/// kernel that [`Family::visit`] chose for `outputs`, target-major, with the columns of each output.
/// Runs in the current rayon pool; the result does not depend on its size.
///
/// A source that coincides with a target contributes zero to a singular kernel; when the targets
/// are sources, each skips itself by index.
pub fn direct<F: Family>(
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[f64],
    targets: Targets,
    precision: Precision,
    isa: Isa,
) -> Result<(Vec<f64>, Vec<OutputColumns>), Error> {
    let (n, c) = (sources.len() / 3, F::Source::STRENGTHS);
    if strengths.len() != n * c {
        let why = format!("{n} sources × {c} strengths");
        return Err(Error::Shape { array: "strengths", found: strengths.len(), expected: n * c, why });
    }
    let (params, scale) = (family.parameters(), family.scale());
    let job = Direct { params, scale, sources, strengths, targets, precision, isa };
    family.visit(outputs, job)
}

/// The parameters after a dilation.
fn dilated<K: Kernel>(params: &[f64], h: f64) -> Vec<f64> {
    K::dilated(params, h).unwrap_or_else(|| params.to_vec())
}

struct Direct<'a> {
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    strengths: &'a [f64],
    targets: Targets<'a>,
    precision: Precision,
    isa: Isa,
}

impl Visitor for Direct<'_> {
    type Output = (Vec<f64>, Vec<OutputColumns>);
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output {
        let values = match self.precision {
            Precision::F32 => self.all(Pair::<f32>::of::<S>(), &dilated::<S>),
            Precision::F64 => self.all(Pair::<f64>::of::<S>(), &dilated::<S>),
        };
        (values, columns)
    }
}

impl Direct<'_> {
    fn all<T: Real>(&self, pair: Pair<T>, dilated: &dyn Fn(&[f64], f64) -> Vec<f64>) -> Vec<f64> {
        let values = pair.values();
        let n = self.sources.len() / 3;
        let count = match self.targets {
            Targets::Sources(None) => n,
            Targets::Sources(Some(indices)) => indices.len(),
            Targets::Points(points) => points.len() / 3,
        };
        let others = if let Targets::Points(points) = self.targets { points } else { &[] };
        // Coordinates relative to the centre of the sources, in units of their extent, when the
        // arithmetic is f32; as they are in f64.
        let (shift, unit) = if T::EPSILON > 1e-10 { frame(self.sources, others) } else { ([0.0; 3], 1.0) };
        let params: Vec<T> = dilated(&self.params, unit).into_iter().map(T::of).collect();
        let size = crate::unit_of(self.strengths);
        let mut packed = Soa::default();
        packed.reset(3 + pair.strengths(), n);
        for a in 0..3 {
            let row = packed.row_mut(a);
            for (to, point) in row.iter_mut().zip(self.sources.chunks_exact(3)) {
                *to = T::of((point[a] - shift[a]) / unit);
            }
        }
        for c in 0..pair.strengths() {
            let factor = unit.powi(pair.strength_degrees[c]) / size;
            let row = packed.row_mut(3 + c);
            for (to, q) in row.iter_mut().zip(self.strengths.chunks_exact(pair.strengths())) {
                *to = T::of(q[c] * factor);
            }
        }
        packed.pad();
        let scale: Vec<f64> = (0..values).map(|i| self.scale * size * unit.powi(pair.value_degrees[i])).collect();
        let mut out = vec![0.0; count * values];
        out.par_chunks_mut(TASK * values).enumerate().for_each(|(task, out)| {
            let at = |i: usize| match self.targets {
                Targets::Sources(None) => point(self.sources, i),
                Targets::Sources(Some(indices)) => point(self.sources, indices[i]),
                Targets::Points(points) => point(points, i),
            };
            let own = |i: usize| match self.targets {
                Targets::Sources(None) => Some(i),
                Targets::Sources(Some(indices)) => Some(indices[i]),
                Targets::Points(_) => None,
            };
            let first = task * TASK;
            let targets: Vec<([f64; 3], Option<usize>)> =
                (0..out.len() / values).map(|i| (at(first + i), own(first + i))).collect();
            let xyz: [Vec<T>; 3] =
                std::array::from_fn(|a| targets.iter().map(|(x, _)| T::of((x[a] - shift[a]) / unit)).collect());
            let own: Vec<Option<usize>> = targets.iter().map(|t| t.1).collect();
            let mut sums = vec![T::default(); out.len()];
            for begin in (0..n).step_by(TILE) {
                let range = begin..(begin + TILE).min(n);
                sums.fill(T::default());
                if pair.singular || own.iter().all(Option::is_none) {
                    let targets = xyz.each_ref().map(Vec::as_slice);
                    (pair.sum)(self.isa, &params, targets, &packed, range, None, &mut sums);
                } else {
                    for (t, own) in own.iter().enumerate() {
                        let targets = std::array::from_fn(|a| &xyz[a][t..t + 1]);
                        let sums = &mut sums[t * values..(t + 1) * values];
                        (pair.sum)(self.isa, &params, targets, &packed, range.clone(), *own, sums);
                    }
                }
                out.iter_mut().zip(&sums).for_each(|(o, s)| *o += s.f64());
            }
            for row in out.chunks_exact_mut(values) {
                for (x, s) in row.iter_mut().zip(&scale) {
                    *x *= s;
                }
            }
        });
        out
    }
}

fn point(points: &[f64], i: usize) -> [f64; 3] {
    [points[3 * i], points[3 * i + 1], points[3 * i + 2]]
}

/// Centre of the bounding box of the sources, and a unit of length in which neither the distances among
/// them nor those of `targets` have squares beyond the range of f32: their largest extent, but at least
/// 10⁻⁹ of the way to the farthest target, and all of it where the sources lie in one point (1 where
/// that is 0).
fn frame(sources: &[f64], targets: &[f64]) -> ([f64; 3], f64) {
    let mut low = [f64::INFINITY; 3];
    let mut high = [f64::NEG_INFINITY; 3];
    for p in sources.chunks_exact(3) {
        for a in 0..3 {
            low[a] = low[a].min(p[a]);
            high[a] = high[a].max(p[a]);
        }
    }
    if sources.is_empty() {
        return ([0.0; 3], 1.0);
    }
    let side = (0..3).map(|a| high[a] - low[a]).fold(0.0, f64::max);
    let center = if side > 0.0 { std::array::from_fn(|a| 0.5 * low[a] + 0.5 * high[a]) } else { low };
    let reach = targets.iter().enumerate().fold(0.0, |m: f64, (i, x)| m.max((x - center[i % 3]).abs()));
    let unit = if side > 0.0 { side.max(1e-9 * reach) } else { reach };
    (center, if unit > 0.0 { unit } else { 1.0 })
}
