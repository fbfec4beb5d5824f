//! P2P: the near field of each leaf, in its own precision.

use super::points::{Frame, Scratch};
use crate::lanes::Vectorized;
use crate::sum::sum;
use fmm_traits::{Kernel, Lists, Real, Simd, Tree};
use std::marker::PhantomData;

/// Sources per pass: the rows of a tile stay in the first-level cache, and f32 partial sums short.
const TILE: usize = 1024;

/// The near field of one leaf, added to `out`.
///
/// In f64 the user's own coordinates are subtracted, as direct summation does. In f32 coordinates are
/// first taken relative to the centre of the target leaf, in f64, in units of its side.
pub struct NearField<'a, K, N> {
    /// Tree.
    pub tree: &'a Tree,
    /// Lists.
    pub lists: &'a Lists,
    /// Strengths in tree order.
    pub strengths: &'a [Vec<f64>],
    /// Target leaf.
    pub leaf: usize,
    /// Its level.
    pub level: usize,
    /// Kernel parameters: of the unit box in f32, as they are in f64.
    pub params: &'a [N],
    /// `targets × K::VALUES`.
    pub out: &'a mut [f64],
    /// Scratch.
    pub scratch: &'a mut Scratch<N>,
    /// Kernel.
    pub _k: PhantomData<K>,
}

/// The frame of the near field of a leaf in precision `N`: `None` for the user's own coordinates.
pub fn near_frame<N: Real>(tree: &Tree, leaf: usize, level: usize) -> Option<Frame> {
    (N::EPSILON > 1e-10).then(|| Frame::of(tree, leaf, level))
}

impl<K: Kernel, N: Real> Vectorized for NearField<'_, K, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let tree = self.tree;
        let Scratch { sources, targets } = self.scratch;
        let frame = near_frame::<N>(tree, self.leaf, self.level).unwrap_or(Frame { center: [0.0; 3], side: 1.0 });
        let boxes = self.lists.p2p.row(self.leaf);
        let total = boxes.iter().map(|&b| tree.sources_of(b as usize).len()).sum();
        sources.reset(3 + K::STRENGTHS, total);
        let mut own = None;
        let mut at = 0;
        for &b in boxes {
            let range = tree.sources_of(b as usize);
            if b as usize == self.leaf && tree.same_points() {
                own = Some(at);
            }
            frame.coordinates(&tree.sources, range.clone(), sources, at);
            frame.strengths::<K, N>(self.strengths, range.clone(), sources, at);
            at += range.len();
        }
        sources.pad();
        let range = tree.targets_of(self.leaf);
        let count = range.len();
        targets.reset(3, count);
        frame.coordinates(&tree.targets, range, targets, 0);
        let rows = [&targets.row(0)[..count], &targets.row(1)[..count], &targets.row(2)[..count]];
        let mut factor = [0.0; fmm_traits::kernel::MAX_COMPONENTS];
        for (i, f) in factor[..K::VALUES].iter_mut().enumerate() {
            *f = frame.side.powi(K::value_degree(i));
        }
        let out = self.out;
        let mut begin = 0;
        while begin < total {
            let end = (begin + TILE).min(total);
            sum::<K, S, N>(self.params, rows, sources, begin..end, own, |t, u| {
                let out = &mut out[t * K::VALUES..(t + 1) * K::VALUES];
                for i in 0..K::VALUES {
                    out[i] += u[i].f64() * factor[i];
                }
            });
            begin = end;
        }
    }
}
