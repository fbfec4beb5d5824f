//! The stages between points and expansions: P2M, P2L, L2P, M2P. Each is a pair sum between the points of a box and the
//! nodes of an expansion, in coordinates of the unit box.

use super::net;
use super::translate::{self, Rows};
use crate::frame::{Fill, Frame, Scratch, add_scaled};
use crate::lanes::{Isa, dispatch};
use crate::pairs::Pair;
use crate::pool::Pool;
use crate::soa::Soa;
use fmm_kernels::equivalent::{Affine, Operators, Scalar};
use fmm_traits::{Lists, Real, Tree};
use rayon::prelude::*;
use std::ops::Range;

/// The inner or outer points of a lattice, which carry densities and check values.
pub struct Nodes<T>(Soa<T>);

impl<T: Real> Nodes<T> {
    /// `points` of the unit box.
    pub fn new(points: &[[f64; 3]]) -> Self {
        let mut rows = Soa::default();
        rows.reset(1, 0, points.len());
        for a in 0..3 {
            rows.place(a, 0, points.iter().map(|x| x[a]));
        }
        Nodes(rows)
    }
}

/// P2M: multipoles of the leaves of `level`, by check values at the outer nodes and the upward solve. `kept` are the
/// net strengths of the boxes.
pub fn p2m<T: Scalar>(
    pair: &Pair<T>,
    tree: &Tree,
    lists: &Lists,
    level: usize,
    operators: &Operators<T>,
    params: &[T],
    outer: &Nodes<T>,
    isa: Isa,
    strengths: &[Vec<f64>],
    kept: &[Vec<T>],
    scratch: &Pool<Scratch<T>>,
    batches: &Pool<translate::Scratch<T>>,
    rows: Rows,
    multipoles: &mut [T],
) {
    let boxes = tree.level(level);
    multipoles[rows.range(boxes.clone())].par_chunks_mut(translate::BATCH * rows.width()).enumerate().for_each(
        |(i, to)| {
            let first = boxes.start + i * translate::BATCH;
            let check = operators.values * operators.points;
            let mut leaves = [0; translate::BATCH];
            let mut count = 0;
            for b in (first..first + to.len() / rows.width()).filter(|&b| !lists.p2m.row(b).is_empty()) {
                leaves[count] = b;
                count += 1;
            }
            if count == 0 {
                return;
            }
            batches.with(|batch| {
                scratch.with(|s| {
                    // All leaves for the first set, then all leaves for the next.
                    let checks = batch.clear(check, rows.sets * count);
                    for (k, &b) in leaves[..count].iter().enumerate() {
                        let (frame, out) = (Frame::of(tree, b, level), &mut checks[k * check..]);
                        to_nodes(pair, tree, strengths, frame, &[b as u32], params, outer, isa, s, count * check, out);
                    }
                });
                for set in 0..rows.sets {
                    let kept = rows.part(kept, set);
                    batch.solve(isa, operators.upward(), set * count..(set + 1) * count, |k, density| {
                        let to = &mut to[rows.of(leaves[k] - first, set)];
                        to.copy_from_slice(density);
                        net::add(operators, kept, leaves[k], to);
                    });
                }
            });
        },
    );
}

/// P2L: sources of X edges → check values at the inner nodes of the target box. `locals` holds the rows of all boxes.
pub fn p2l<T: Real>(
    pair: &Pair<T>,
    tree: &Tree,
    lists: &Lists,
    level: usize,
    params: &[T],
    inner: &Nodes<T>,
    isa: Isa,
    strengths: &[Vec<f64>],
    scratch: &Pool<Scratch<T>>,
    rows: Rows,
    locals: &mut [T],
) {
    let boxes = tree.level(level);
    if lists.p2l.starts[boxes.start] == lists.p2l.starts[boxes.end] {
        return;
    }
    locals[rows.range(boxes.clone())].par_chunks_mut(rows.width()).enumerate().for_each(|(i, out)| {
        let b = boxes.start + i;
        if !lists.p2l.row(b).is_empty() {
            scratch.with(|s| {
                let frame = Frame::of(tree, b, level);
                to_nodes(pair, tree, strengths, frame, lists.p2l.row(b), params, inner, isa, s, rows.len, out);
            });
        }
    });
}

/// Adds the field of the sources of `boxes` at the `nodes` of the box with `frame` to `out`. `out` is component-major,
/// and the sets of strengths begin `apart` numbers from each other.
fn to_nodes<T: Real>(
    pair: &Pair<T>,
    tree: &Tree,
    strengths: &[Vec<f64>],
    frame: Frame,
    boxes: &[u32],
    params: &[T],
    nodes: &Nodes<T>,
    isa: Isa,
    scratch: &mut Scratch<T>,
    apart: usize,
    out: &mut [T],
) {
    let (n, values) = (nodes.0.len(), pair.values());
    scratch.clear_sums(strengths.len() / pair.strengths() * n * values);
    let Scratch { sources, sums, .. } = scratch;
    let factors = &pair.strength_factors(frame.side)[..pair.strengths()];
    let ranges = boxes.iter().map(|&b| tree.sources_of(b as usize));
    dispatch(
        isa,
        Fill {
            points: &tree.sources,
            strengths,
            factors,
            attributes: &pair.attributes,
            frame,
            ranges,
            pieces: 1,
            to: sources,
        },
    );
    pair.sum(isa, params, nodes.0.targets(0..n), sources, 0..sources.len(), None, sums);
    for (set, sums) in sums.chunks_exact(n * values).enumerate() {
        for (t, u) in sums.chunks_exact(values).enumerate() {
            for (c, u) in u.iter().enumerate() {
                out[set * apart + c * n + t] += *u;
            }
        }
    }
}

/// Adds the field of the hatted `densities` at the `nodes` of the box with `frame` to `out`, at the targets of `range`.
/// There is one component-major density per set of strengths. `out` is `[target][set][value]`, in the user's units.
pub fn from_nodes<'a, T: Real>(
    pair: &Pair<T>,
    tree: &Tree,
    frame: Frame,
    nodes: &Nodes<T>,
    densities: impl ExactSizeIterator<Item = &'a [T]>,
    params: &[T],
    range: Range<usize>,
    isa: Isa,
    scratch: &mut Scratch<T>,
    out: &mut [f64],
) {
    let (n, count, sets) = (nodes.0.len(), range.len(), densities.len());
    scratch.clear_sums(sets * count * pair.values());
    let Scratch { sources, targets, sums, .. } = scratch;
    sources.reset(1, sets * pair.strengths(), n);
    for r in 0..3 {
        sources.row_mut(r)[..n].copy_from_slice(&nodes.0.row(r)[..n]);
    }
    for (c, q) in densities.flat_map(|density| density.chunks_exact(n)).enumerate() {
        sources.strength_mut(c)[..n].copy_from_slice(q);
    }
    sources.pad(1, std::iter::empty());
    let ranges = std::iter::once(range);
    dispatch(isa, Fill::targets(&tree.targets, frame, ranges, 1, targets));
    pair.sum(isa, params, targets.targets(0..count), sources, 0..n, None, sums);
    let (values, factors) = (pair.values(), pair.value_factors(frame.side));
    for (set, sums) in sums.chunks_exact(count * values).enumerate() {
        add_scaled(sums, &factors, values, [set, sets], out);
    }
}

/// Adds the affine `part` of a local with `frame` to the values of set `set` (of `sets`) at the targets of `range`.
pub fn add_affine<T: Scalar>(
    affine: &Affine<T>,
    pair: &Pair<T>,
    tree: &Tree,
    frame: Frame,
    part: &[T],
    range: Range<usize>,
    [set, sets]: [usize; 2],
    out: &mut [f64],
) {
    let (values, factors, scale) = (pair.values(), pair.value_factors(frame.side), 1.0 / frame.side);
    for (t, out) in range.zip(out.chunks_exact_mut(sets * values)) {
        let x = std::array::from_fn(|a| (tree.targets.xyz[a][t] - frame.center[a]) * scale);
        affine.at(part, x, |i, u| out[set * values + i] += u * factors[i]);
    }
}
