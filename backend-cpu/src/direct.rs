//! Direct summation: the O(N·M) oracle, at the arithmetic peak of the machine.

use crate::lanes::Isa;
use crate::soa::Soa;
use crate::sum::{HELD, Pair};
use fmm_traits::{Error, Family, Kernel, OutputColumns, Outputs, Real, Visitor};
use rayon::prelude::*;
use std::sync::OnceLock;

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

/// Sources per tile, which stays in the second cache. With half as many the sums over lanes at the end of a tile take 2 % of
/// the time.
const TILE: usize = 2048;
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
        let double = || Packed::new(&self, Pair::<f64>::close::<S>(), S::unit_parameters);
        let values = match self.precision {
            Precision::F64 => {
                let packed = double();
                self.tasks(S::VALUES, |targets, out| {
                    packed.sums(self.isa, targets, out);
                })
            }
            Precision::F32 => {
                let packed = Packed::new(&self, Pair::<f32>::close::<S>(), S::unit_parameters);
                let wide = OnceLock::new();
                self.tasks(S::VALUES, |targets, out| {
                    // Pairs too close for coordinates in two pieces, or for the range of f32.
                    if !packed.sums(self.isa, targets, out) {
                        wide.get_or_init(double).sums(self.isa, targets, out);
                    }
                })
            }
        };
        (values, columns)
    }
}

/// A target: its place, and the source that it is and skips.
type Target = ([f64; 3], Option<usize>);

impl Direct<'_> {
    /// The values of all targets, [`TASK`] at a time from `sums`.
    fn tasks(&self, values: usize, sums: impl Fn(&[Target], &mut [f64]) + Sync) -> Vec<f64> {
        let (count, target): (_, Box<dyn Fn(usize) -> Target + Sync>) = match self.targets {
            Targets::Sources(None) => (self.sources.len() / 3, Box::new(|i| (point(self.sources, i), Some(i)))),
            Targets::Sources(Some(s)) => (s.len(), Box::new(|i| (point(self.sources, s[i]), Some(s[i])))),
            Targets::Points(points) => (points.len() / 3, Box::new(|i| (point(points, i), None))),
        };
        let mut out = vec![0.0; count * values];
        out.par_chunks_mut(TASK * values).enumerate().for_each(|(task, out)| {
            let targets: Vec<Target> = (0..out.len() / values).map(|i| target(task * TASK + i)).collect();
            sums(&targets, out);
        });
        out
    }
}

/// The sources in precision `T`.
struct Packed<T> {
    pair: Pair<T>,
    params: Vec<T>,
    /// Factor of each value.
    scale: Vec<f64>,
    /// Coordinates are relative to `shift`, in units of `unit`.
    shift: [f64; 3],
    unit: f64,
    sources: Soa<T>,
}

impl<T: Real> Packed<T> {
    fn new(d: &Direct, pair: Pair<T>, dilated: fn(&[f64], f64) -> Vec<f64>) -> Self {
        let n = d.sources.len() / 3;
        let others = if let Targets::Points(points) = d.targets { points } else { &[] };
        // Coordinates relative to the centre of the sources, in units of their extent, when the
        // arithmetic is f32; as they are in f64.
        let (shift, unit) = if T::EPSILON > 1e-10 { frame(d.sources, others) } else { ([0.0; 3], 1.0) };
        let size = crate::unit_of(d.strengths);
        let mut sources = Soa::default();
        sources.reset(pair.pieces, pair.strengths(), n);
        for a in 0..3 {
            sources.place(a, 0, d.sources.chunks_exact(3).map(|point| (point[a] - shift[a]) / unit));
        }
        for c in 0..pair.strengths() {
            let factor = unit.powi(pair.strength_degrees[c]) / size;
            for (to, q) in sources.strength_mut(c).iter_mut().zip(d.strengths.chunks_exact(pair.strengths())) {
                *to = T::of(q[c] * factor);
            }
        }
        sources.pad();
        let params = dilated(&d.params, unit).into_iter().map(T::of).collect();
        let scale = pair.value_degrees.iter().map(|&degree| d.scale * size * unit.powi(degree)).collect();
        Packed { pair, params, scale, shift, unit, sources }
    }

    /// The values of `targets`, overwriting `out`; whether f32 holds them ([`HELD`]).
    fn sums(&self, isa: Isa, targets: &[Target], out: &mut [f64]) -> bool {
        let Packed { pair, params, scale, shift, unit, sources } = self;
        let values = pair.values();
        let mut places = Soa::default();
        places.reset(pair.pieces, 0, targets.len());
        for a in 0..3 {
            places.place(a, 0, targets.iter().map(|(x, _)| (x[a] - shift[a]) / unit));
        }
        let mut sums = vec![T::default(); out.len()];
        out.fill(0.0);
        for begin in (0..sources.len()).step_by(TILE) {
            let range = begin..(begin + TILE).min(sources.len());
            sums.fill(T::default());
            if pair.singular || targets.iter().all(|(_, own)| own.is_none()) {
                (pair.sum)(isa, params, places.targets(0..targets.len()), sources, range, None, &mut sums);
            } else {
                for (t, ((_, own), sums)) in targets.iter().zip(sums.chunks_exact_mut(values)).enumerate() {
                    (pair.sum)(isa, params, places.targets(t..t + 1), sources, range.clone(), *own, sums);
                }
            }
            out.iter_mut().zip(&sums).for_each(|(o, s)| *o += s.f64());
        }
        let held = out.iter().all(|x| x.abs() < HELD);
        for row in out.chunks_exact_mut(values) {
            row.iter_mut().zip(scale).for_each(|(x, s)| *x *= s);
        }
        held
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
