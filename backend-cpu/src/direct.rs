//! Direct summation: the O(N·M) oracle, at the arithmetic peak of the machine.

use crate::lanes::Isa;
use crate::pairs::{Pair, Pairs};
use crate::soa::Soa;
use crate::sum::HELD;
use fmm_traits::{Error, Kernels, Precision, Real, Targets};
use rayon::prelude::*;
use std::sync::OnceLock;

/// Sources per tile. It balances the second-level cache, which should hold a tile (seven rows of f32, or four of f64,
/// and one more for each further set of strengths), against the sums over lanes at the end of a tile. With half as
/// many sources those sums take 2 % of the time.
const SOURCES_PER_TILE: usize = 2048;
/// Targets per task.
const TARGETS_PER_TASK: usize = 64;

/// Sums all pairs, for several sets of strengths, which share the evaluation of the kernel. Each set gets the same bits
/// as it would alone.
///
/// `sources` is N×3 and each of `strengths` N×c, row-major. The result holds the values of the kernel
/// [`near`](Kernels::near), target-major. Runs in the current rayon pool; the result does not depend on the number of
/// threads.
///
/// A source that coincides with a target contributes zero if the kernel is singular. If the targets are sources, each
/// skips itself by index, unless [`Kernels::include_self`].
///
/// # Errors
/// [`Error::Shape`] for a wrong number of strengths.
pub fn direct_batch(
    kernels: &Kernels,
    pairs: &Pairs,
    sources: &[f64],
    strengths: &[&[f64]],
    targets: Targets,
    precision: Precision,
    isa: Isa,
) -> Result<Vec<Vec<f64>>, Error> {
    let (n, c) = (sources.len() / 3, kernels.near.strengths);
    if let Some(wrong) = strengths.iter().find(|q| q.len() != n * c) {
        let why = format!("{n} sources × {c} strengths");
        return Err(Error::Shape { array: "strengths", found: wrong.len(), expected: n * c, why });
    }
    Ok(Direct { kernels, pairs, sources, strengths, targets, precision, isa }.values())
}

struct Direct<'a> {
    kernels: &'a Kernels,
    pairs: &'a Pairs,
    sources: &'a [f64],
    strengths: &'a [&'a [f64]],
    targets: Targets<'a>,
    precision: Precision,
    isa: Isa,
}

impl Direct<'_> {
    /// The values of each set of strengths at all targets.
    fn values(&self) -> Vec<Vec<f64>> {
        let (single, double) = &self.pairs.near;
        let values = double.values();
        let double = || Packed::new(self, double.clone());
        match self.precision {
            Precision::F64 => {
                let packed = double();
                self.tasks(values, |targets, out| {
                    packed.sums(self.isa, targets, out);
                })
            }
            Precision::F32 => {
                let packed = Packed::new(self, single.clone());
                let wide = OnceLock::new();
                self.tasks(values, |targets, out| {
                    let held = packed.sums(self.isa, targets, out);
                    if held.iter().all(|&held| held) {
                        return;
                    }
                    // Some pairs are too close for coordinates in two pieces, or for the range of f32: sum in f64.
                    let (mut again, set) = (vec![0.0; out.len()], out.len() / held.len());
                    wide.get_or_init(double).sums(self.isa, targets, &mut again);
                    let sets = out.chunks_exact_mut(set).zip(again.chunks_exact(set));
                    for ((out, again), _) in sets.zip(held).filter(|(_, held)| !held) {
                        out.copy_from_slice(again);
                    }
                })
            }
        }
    }
}

/// A target: its position, and the index of the source that it is, which it skips.
type Target = ([f64; 3], Option<usize>);

impl Direct<'_> {
    /// The values of each set of strengths at all targets. `sums` computes [`TARGETS_PER_TASK`] targets at a time, as
    /// sets × targets × `values`.
    fn tasks(&self, values: usize, sums: impl Fn(&[Target], &mut [f64]) + Sync) -> Vec<Vec<f64>> {
        let (count, target): (_, Box<dyn Fn(usize) -> Target + Sync>) = match self.targets {
            Targets::Sources => (self.sources.len() / 3, Box::new(|i| (point(self.sources, i), Some(i)))),
            Targets::Subset(s) => (s.len(), Box::new(|i| (point(self.sources, s[i]), Some(s[i])))),
            Targets::Points(points) => (points.len() / 3, Box::new(|i| (point(points, i), None))),
        };
        let sets = self.strengths.len();
        let mut out = vec![0.0; sets * count * values];
        out.par_chunks_mut(TARGETS_PER_TASK * (sets * values).max(1)).enumerate().for_each(|(task, out)| {
            let count = out.len() / (sets * values);
            let targets: Vec<Target> = (0..count).map(|i| target(task * TARGETS_PER_TASK + i)).collect();
            sums(&targets, out);
        });
        if sets == 1 {
            return vec![out];
        }
        let mut by_set = vec![Vec::with_capacity(count * values); sets];
        for task in out.chunks(TARGETS_PER_TASK * (sets * values).max(1)) {
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
    /// Origin of the coordinates.
    shift: [f64; 3],
    /// Unit of the coordinates.
    unit: f64,
    sources: Soa<T>,
}

impl<T: Real> Packed<T> {
    fn new(d: &Direct, pair: Pair<T>) -> Self {
        let n = d.sources.len() / 3;
        let others = if let Targets::Points(points) = d.targets { points } else { &[] };
        // In f32, coordinates are relative to the centre of the sources, in units of their extent. In f64 they are only
        // divided by a power of two, which changes no bit.
        let (center, extent) = frame(d.sources, others);
        let (shift, unit) = if T::EPSILON > 1e-10 { (center, extent) } else { ([0.0; 3], crate::power_of_two(extent)) };
        let mut sources = Soa::default();
        sources.reset(pair.pieces, d.strengths.len() * pair.strengths(), n);
        for a in 0..3 {
            sources.place(a, 0, d.sources.chunks_exact(3).map(|point| (point[a] - shift[a]) / unit));
        }
        let mut scale = Vec::new();
        for (set, strengths) in d.strengths.iter().enumerate() {
            let size = pair.unit_of(strengths, unit);
            for c in 0..pair.strengths() {
                let divisor = if pair.is_attribute(c) { 1.0 } else { size };
                let (row, factor) = (set * pair.strengths() + c, unit.powi(pair.strength_degrees[c]) / divisor);
                for (to, q) in sources.strength_mut(row).iter_mut().zip(strengths.chunks_exact(pair.strengths())) {
                    *to = T::of(q[c] * factor);
                }
            }
            scale.extend(pair.value_degrees.iter().map(|&degree| d.kernels.scale * size * unit.powi(degree)));
        }
        let degrees = &pair.strength_degrees[pair.linear()..];
        let usual = pair.attributes.iter().zip(degrees).map(|(x, &degree)| x * unit.powi(degree));
        sources.pad(pair.strengths(), usual);
        let params = d.kernels.parameters(unit).into_iter().map(T::of).collect();
        Packed { pair, params, scale, shift, unit, sources }
    }

    /// Computes the values of `targets` for each set, overwriting `out`. Returns for each set whether f32 can hold
    /// its sums ([`HELD`]).
    fn sums(&self, isa: Isa, targets: &[Target], out: &mut [f64]) -> Vec<bool> {
        let Packed { pair, params, scale, shift, unit, sources } = self;
        let values = pair.values();
        let mut places = Soa::default();
        places.reset(pair.pieces, 0, targets.len());
        for a in 0..3 {
            places.place(a, 0, targets.iter().map(|(x, _)| (x[a] - shift[a]) / unit));
        }
        let mut sums = Vec::new();
        out.fill(0.0);
        for begin in (0..sources.len()).step_by(SOURCES_PER_TILE) {
            let range = begin..(begin + SOURCES_PER_TILE).min(sources.len());
            // A target that is a source of this tile must not act on itself, and comparing it with each source takes
            // time. So a call has either targets that are not sources of this tile, or targets that are consecutive ones.
            let own = |t: &Target| t.1.filter(|own| pair.skips_self && range.contains(own));
            let mut first = 0;
            for group in targets.chunk_by(|a, b| own(b) == own(a).map(|own| own + 1)) {
                let (begin, row) = (first * values, group.len() * values);
                sums.clear();
                sums.resize(out.len() / targets.len() * group.len(), T::default());
                let at = places.targets(first..first + group.len());
                pair.sum(isa, params, at, sources, range.clone(), own(&group[0]), &mut sums);
                let sets = out.chunks_exact_mut(targets.len() * values).zip(sums.chunks_exact(row));
                sets.for_each(|(out, sums)| {
                    out[begin..begin + row].iter_mut().zip(sums).for_each(|(o, s)| *o += s.f64())
                });
                first += group.len();
            }
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

/// The frame of an f32 sum: the centre of the bounding box of the sources, and a unit of length. In this unit, no
/// square of a distance among the sources, or to the targets, leaves the range of f32.
///
/// The unit is the largest extent of the sources, but at least 10⁻⁹ of the distance to the farthest target. If all
/// sources lie in one point, it is that distance, or 1 if that is 0 too.
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
