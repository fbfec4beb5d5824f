//! P2P: the near field of each leaf, in its own precision.

use super::points::{Fill, Frame, Scratch, add_scaled, coordinates};
use crate::lanes::{Isa, dispatch};
use crate::sum::Pair;
use fmm_traits::{Lists, Real, Tree};

/// Sources per pass: the rows of a tile stay in the first-level cache, and f32 partial sums short.
const TILE: usize = 1024;

/// The frame of the near field of a leaf in precision `N`. In f64 the user's own coordinates are
/// subtracted, as direct summation does (`None`). In f32 coordinates are first taken relative to the
/// centre of the target leaf, in f64, in units of its side.
pub fn near_frame<N: Real>(tree: &Tree, leaf: usize, level: usize) -> Option<Frame> {
    (N::EPSILON > 1e-10).then(|| Frame::of(tree, leaf, level))
}

/// The near field of `leaf`, added to `out` (targets × values of `pair`). `params` are those of the
/// [`near_frame`].
pub fn near_field<N: Real>(
    pair: &Pair<N>,
    tree: &Tree,
    lists: &Lists,
    strengths: &[Vec<f64>],
    leaf: usize,
    level: usize,
    params: &[N],
    isa: Isa,
    scratch: &mut Scratch<N>,
    out: &mut [f64],
) {
    let frame = near_frame::<N>(tree, leaf, level).unwrap_or(Frame { center: [0.0; 3], side: 1.0 });
    let boxes = lists.p2p.row(leaf);
    let own = tree.same_points().then(|| {
        let before = boxes.iter().take_while(|&&b| b as usize != leaf);
        before.map(|&b| tree.sources_of(b as usize).len()).sum()
    });
    let factors = pair.strength_factors(frame.side);
    let ranges = boxes.iter().map(|&b| tree.sources_of(b as usize));
    let to = &mut scratch.sources;
    dispatch(isa, Fill { points: &tree.sources, strengths, factors: &factors, frame, ranges, to });
    let (ranges, to) = (std::iter::once(tree.targets_of(leaf)), &mut scratch.targets);
    dispatch(isa, Fill { points: &tree.targets, strengths: &[], factors: &[], frame, ranges, to });
    let (total, factors) = (scratch.sources.len(), pair.value_factors(frame.side));
    for begin in (0..total).step_by(TILE) {
        scratch.clear_sums(out.len());
        let Scratch { sources, targets, sums } = scratch;
        let range = begin..(begin + TILE).min(total);
        (pair.sum)(isa, params, coordinates(targets), sources, range, own, sums);
        add_scaled(sums, &factors, pair.values(), out);
    }
}
