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

/// Sources per tile: a tile of seven f32 rows, or four of f64 (and one more for each further set of strengths), streams from
/// the second cache. In half as many sources the sums over lanes at the end of a tile take 2 % of the time.
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
    let (mut sums, columns) = direct_batch(family, outputs, sources, &[strengths], targets, precision, isa)?;
    Ok((sums.pop().unwrap_or_default(), columns))
}

/// [`direct`] for several sets of strengths, which share the evaluation of the kernel. Each has the bits it has alone.
pub fn direct_batch<F: Family>(
    family: &F,
    outputs: Outputs,
    sources: &[f64],
    strengths: &[&[f64]],
    targets: Targets,
    precision: Precision,
    isa: Isa,
) -> Result<(Vec<Vec<f64>>, Vec<OutputColumns>), Error> {
    let (n, c) = (sources.len() / 3, F::Source::STRENGTHS);
    if let Some(wrong) = strengths.iter().find(|q| q.len() != n * c) {
        let why = format!("{n} sources × {c} strengths");
        return Err(Error::Shape { array: "strengths", found: wrong.len(), expected: n * c, why });
    }
    let (params, scale) = (family.parameters(), family.scale());
    family.visit(outputs, Direct { params, scale, sources, strengths, targets, precision, isa })
}

struct Direct<'a> {
    params: Vec<f64>,
    scale: f64,
    sources: &'a [f64],
    strengths: &'a [&'a [f64]],
    targets: Targets<'a>,
    precision: Precision,
    isa: Isa,
}

impl Visitor for Direct<'_> {
    type Output = (Vec<Vec<f64>>, Vec<OutputColumns>);
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
                    let held = packed.sums(self.isa, targets, out);
                    if held.iter().all(|&held| held) {
                        return;
                    }
                    // Pairs too close for coordinates in two pieces, or for the range of f32.
                    let (mut again, set) = (vec![0.0; out.len()], out.len() / held.len());
                    wide.get_or_init(double).sums(self.isa, targets, &mut again);
                    let sets = out.chunks_exact_mut(set).zip(again.chunks_exact(set));
                    for ((out, again), _) in sets.zip(held).filter(|(_, held)| !held) {
                        out.copy_from_slice(again);
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
    /// The values of each set of strengths at all targets, [`TASK`] at a time from `sums`, which fills in
    /// sets × targets × `values`.
    fn tasks(&self, values: usize, sums: impl Fn(&[Target], &mut [f64]) + Sync) -> Vec<Vec<f64>> {
        let (count, target): (_, Box<dyn Fn(usize) -> Target + Sync>) = match self.targets {
            Targets::Sources(None) => (self.sources.len() / 3, Box::new(|i| (point(self.sources, i), Some(i)))),
            Targets::Sources(Some(s)) => (s.len(), Box::new(|i| (point(self.sources, s[i]), Some(s[i])))),
            Targets::Points(points) => (points.len() / 3, Box::new(|i| (point(points, i), None))),
        };
        let sets = self.strengths.len();
        let mut out = vec![0.0; sets * count * values];
        out.par_chunks_mut(TASK * (sets * values).max(1)).enumerate().for_each(|(task, out)| {
            let targets: Vec<Target> = (0..out.len() / (sets * values)).map(|i| target(task * TASK + i)).collect();
            sums(&targets, out);
        });
        if sets == 1 {
            return vec![out];
        }
        let mut by_set = vec![Vec::with_capacity(count * values); sets];
        for task in out.chunks(TASK * (sets * values).max(1)) {
            for (to, from) in by_set.iter_mut().zip(task.chunks_exact(task.len() / sets)) {
                to.extend_from_slice(from);
            }
        }
        by_set
    }
}

/// The sources in precision `T`.
struct Packed<T> {
    pair: Pair<T>,
    params: Vec<T>,
    /// Factor of each value of each set.
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
        // arithmetic is f32; in f64 as they are, but for a power of two, which changes no bit.
        let (center, extent) = frame(d.sources, others);
        let (shift, unit) = if T::EPSILON > 1e-10 { (center, extent) } else { ([0.0; 3], crate::power_of_two(extent)) };
        let mut sources = Soa::default();
        sources.reset(pair.pieces, d.strengths.len() * pair.strengths(), n);
        for a in 0..3 {
            sources.place(a, 0, d.sources.chunks_exact(3).map(|point| (point[a] - shift[a]) / unit));
        }
        let mut scale = Vec::new();
        for (set, strengths) in d.strengths.iter().enumerate() {
            let size = crate::unit_of(strengths, &pair.strength_degrees, unit);
            for c in 0..pair.strengths() {
                let (row, factor) = (set * pair.strengths() + c, unit.powi(pair.strength_degrees[c]) / size);
                for (to, q) in sources.strength_mut(row).iter_mut().zip(strengths.chunks_exact(pair.strengths())) {
                    *to = T::of(q[c] * factor);
                }
            }
            scale.extend(pair.value_degrees.iter().map(|&degree| d.scale * size * unit.powi(degree)));
        }
        sources.pad();
        let params = dilated(&d.params, unit).into_iter().map(T::of).collect();
        Packed { pair, params, scale, shift, unit, sources }
    }

    /// The values of `targets` for each set, overwriting `out`; whether f32 holds those of a set ([`HELD`]).
    fn sums(&self, isa: Isa, targets: &[Target], out: &mut [f64]) -> Vec<bool> {
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
                let mut one = vec![T::default(); out.len() / targets.len()];
                for (t, (_, own)) in targets.iter().enumerate() {
                    one.fill(T::default());
                    (pair.sum)(isa, params, places.targets(t..t + 1), sources, range.clone(), *own, &mut one);
                    let rows = sums.chunks_exact_mut(values).skip(t).step_by(targets.len());
                    rows.zip(one.chunks_exact(values)).for_each(|(to, from)| to.copy_from_slice(from));
                }
            }
            out.iter_mut().zip(&sums).for_each(|(o, s)| *o += s.f64());
        }
        let sets = out.chunks_exact_mut(targets.len() * values).zip(scale.chunks_exact(values));
        sets.map(|(out, scale)| {
            let held = out.iter().all(|x| x.abs() < HELD);
            for row in out.chunks_exact_mut(values) {
                row.iter_mut().zip(scale).for_each(|(x, s)| *x *= s);
            }
            held
        })
        .collect()
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
