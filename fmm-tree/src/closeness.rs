//! How near the nearest pairs of points are.

use fmm_traits::Tree;

/// Points that are looked at, in so many groups.
const SAMPLE: usize = 4096;
const GROUPS: usize = 8;
/// Leaves with more points are of copies, or of a user who knows.
pub const MOST: usize = 1024;

/// What a source sees of its leaf.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Level of the leaf.
    pub level: usize,
    /// Its sources.
    pub count: usize,
    /// Σ r⁻⁴ over the others, in units of its side; nothing if it has more than [`MOST`].
    pub pairs: f64,
}

/// Positions in tree order of the sources that are looked at, of `n`.
pub fn sample(n: usize) -> impl Iterator<Item = usize> {
    let count = SAMPLE.min(n);
    (0..count).map(move |k| {
        // Spread over all points, in the rhythm of no lattice.
        let at = (k as f64 + (k as f64 * 0.618_033_988_749_894_9).fract()) / count as f64;
        ((at * n as f64) as usize).min(n - 1)
    })
}

/// Σ r⁻⁴ over the other sources in the leaf of a source, in units of density^{4/3} of the leaf: the mean over some sources, the
/// least of a few such means. It is what near pairs of charges give to the square of a gradient.
///
/// Points of a cubic lattice have 3 to 10 (16.5 over all space). Of points at random a few close pairs make up most of it, and it is 30 to
/// 500; in a plane or on a line, whose density is of fewer dimensions, much more. Pairs at one position count for nothing, and
/// so do leaves of more than 1024 points. 0 without points.
pub fn closeness(tree: &Tree) -> f64 {
    let points = &tree.sources;
    of(sample(points.len()).map(|i| {
        let (leaf, level) = leaf_of(tree, i);
        let (side, count) = (tree.side_at(level), leaf.len());
        let near = |j: usize| {
            let square: f64 = points.xyz.iter().map(|x| ((x[i] - x[j]) / side).powi(2)).sum();
            if square > 0.0 { (square * square).recip() } else { 0.0 }
        };
        Seen { level, count, pairs: if count <= MOST { leaf.map(near).sum() } else { 0.0 } }
    }))
}

/// [`closeness`] from what the sources of the [`sample`] see.
pub fn of(seen: impl Iterator<Item = Seen>) -> f64 {
    let mut sums = [[0.0; 2]; GROUPS];
    for (k, seen) in seen.enumerate() {
        // All leaves together in units of the root.
        let unit = f64::exp2(4.0 * seen.level as f64);
        let [pairs, density] = &mut sums[k % GROUPS];
        *density += unit * (seen.count as f64).powf(4.0 / 3.0);
        *pairs += unit * seen.pairs;
    }
    let ratio = |[pairs, density]: [f64; 2]| if density > 0.0 { pairs / density } else { f64::INFINITY };
    let least = sums.map(ratio).into_iter().fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// The sources in the leaf of source `i`, and its level.
fn leaf_of(tree: &Tree, i: usize) -> (std::ops::Range<usize>, usize) {
    let (mut b, mut level) = (0, 0);
    loop {
        let mut children = if tree.is_leaf(b) { 0..0 } else { tree.children(b) };
        match children.find(|&c| tree.sources_of(c).contains(&i)) {
            Some(child) => (b, level) = (child, level + 1),
            None => return (tree.sources_of(b), level),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, build};
    use fmm_traits::testkit::clouds::CloudKind;

    #[test]
    fn lattices_are_told_from_points_at_random() {
        for (n, ncrit) in [(4000, 20), (4000, 100), (30_000, 60)] {
            let of = |kind: CloudKind| {
                let options = BuildOptions { ncrit: Some(ncrit), ..Default::default() };
                closeness(&build(&kind.points(n, 3), None, &options).unwrap())
            };
            assert!((1.0..16.6).contains(&of(CloudKind::Grid)), "{}", of(CloudKind::Grid));
            assert!(of(CloudKind::Uniform) > 40.0, "{}", of(CloudKind::Uniform));
            assert!(of(CloudKind::Plane) > 1000.0, "{}", of(CloudKind::Plane));
            assert_eq!(of(CloudKind::Coincident), 0.0);
        }
    }
}
