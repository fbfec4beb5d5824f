//! The root cube. Its side is free: it is chosen so that the boxes of some level hold the wanted number of points.
//!
//! Halving the side of boxes divides their population by eight. A million uniform points fill leaves with 244 or with
//! 30, nothing in between. *Stretching* the root by a factor in [1, 2) reaches every population in between. Sides are
//! m·2^e with a mantissa m of [`MANTISSA_BITS`] bits, so that box centres stay exact in f64.

use crate::morton::{Frame, KEY_BITS, KEY_LEVELS};
use fmm_traits::Error;
use rayon::prelude::*;

/// Bits of the mantissa of the root side.
const MANTISSA_BITS: i32 = 7;
/// The root corner is a multiple of side / CORNER_GRID.
const CORNER_GRID: f64 = 1024.0;
/// Smallest and largest number of points in the sample from which populations are estimated. Pairs of the sample in one
/// box are counted, and their number grows with the square of the sample over the number of points. 16 √n points have
/// 256 times as many pairs as a leaf has points, so that the estimate errs by 1 to 2 per cent.
const SAMPLE_SIZES: [usize; 2] = [1 << 14, 1 << 19];
/// Number of points of the sample from which outliers are found.
pub const MIDDLE_SAMPLE_SIZE: usize = 1 << 12;
/// Number of points of which 0.5 % is one point.
const FEWEST_WITH_OUTLIERS: usize = 200;
/// Smallest root side, in units of the largest coordinate. A smaller root would not have an exact corner.
const MIN_RELATIVE_SIDE: f64 = 1.0 / (1u64 << 34) as f64;

/// A cube from its lower corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Root {
    pub corner: [f64; 3],
    pub side: f64,
}

/// The root cube that [`choose`] found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub root: Root,
    /// Side of the root over the smallest admissible one, in [1, 2).
    pub stretch: f64,
    /// Expected population of a full box of the level of the leaves, over the wanted population.
    pub ratio: f64,
}

/// Smallest m·2^e not below `x`, with m of [`MANTISSA_BITS`] bits.
fn round_up(x: f64) -> f64 {
    let unit = (x.log2().floor() - (MANTISSA_BITS - 1) as f64).exp2();
    (x / unit).ceil() * unit
}

/// The cube of side `side` whose lower corner is just below `low`.
fn cube_at(low: [f64; 3], side: f64) -> Root {
    let grid = side / CORNER_GRID;
    Root { corner: low.map(|x| (x / grid).floor() * grid), side }
}

/// Smallest admissible cube around the box `low..high`, whose entries are at most `largest` in
/// magnitude.
pub(crate) fn smallest(low: [f64; 3], high: [f64; 3], largest: f64) -> Root {
    let extent = (0..3).fold(0.0f64, |m, a| m.max(high[a] - low[a]));
    let nominal = if extent > 0.0 {
        extent
    } else if largest > 0.0 {
        largest
    } else {
        1.0
    };
    // The corner lies up to one grid step below the points.
    let side = nominal.max(largest * MIN_RELATIVE_SIDE).max(f64::MIN_POSITIVE.sqrt()) * (1.0 + 2.0 / CORNER_GRID);
    cube_at(low, round_up(side))
}

/// The sample of points from which a root cube is chosen: [`sample_size`] points, of which point `i` is point
/// [`sample_index`]`(i, n)` of all `n`. The points may lie in the memory of a device.
pub trait RootSample {
    /// For the levels 1, 2, … below the cube with this lower corner and side: the number of ordered pairs of different
    /// points of the sample that lie in one box of the level. Levels may be left out at the end. Their pairs are then
    /// counted from [`points`](RootSample::points).
    ///
    /// # Errors
    /// Errors of a device.
    fn pairs(&mut self, corner: [f64; 3], side: f64) -> Result<Vec<u64>, Error>;
    /// The points of the sample. If there are more than `most`, point `i` of the result is point
    /// `sample_index(i, size)` of the sample.
    ///
    /// # Errors
    /// Errors of a device.
    fn points(&mut self, most: usize) -> Result<Vec<[f64; 3]>, Error>;
    /// Along each axis, the two coordinates between which the middle of a part of the sample lies: those of the
    /// [`middle_ranks`] in ascending order, of [`MIDDLE_SAMPLE_SIZE`] points or all.
    ///
    /// # Errors
    /// Errors of a device.
    fn middle(&mut self) -> Result<[[f64; 2]; 3], Error> {
        let points = self.points(MIDDLE_SAMPLE_SIZE)?;
        let [low, high] = middle_ranks(points.len());
        Ok(std::array::from_fn(|a| {
            let mut x: Vec<f64> = points.iter().map(|p| p[a]).collect();
            let (_, &mut lower, above) = x.select_nth_unstable_by(low, f64::total_cmp);
            let upper =
                if high > low { *above.select_nth_unstable_by(high - low - 1, f64::total_cmp).1 } else { lower };
            [lower, upper]
        }))
    }
}

/// The first and the last of the middle 99 % of `m` numbers in ascending order.
pub fn middle_ranks(m: usize) -> [usize; 2] {
    let outside = m / FEWEST_WITH_OUTLIERS;
    [outside, m - 1 - outside]
}

/// The sample of points in the memory of the host.
pub(crate) struct OnHost<'a>(pub &'a [[f64; 3]]);

impl RootSample for OnHost<'_> {
    fn pairs(&mut self, _: [f64; 3], _: f64) -> Result<Vec<u64>, Error> {
        Ok(Vec::new())
    }
    fn points(&mut self, most: usize) -> Result<Vec<[f64; 3]>, Error> {
        let (n, size) = (self.0.len(), sample_size(self.0.len()));
        let m = size.min(most);
        let of_sample = |i: usize| if m < size { sample_index(i, size) } else { i };
        Ok((0..m).map(|i| self.0[sample_index(of_sample(i), n)]).collect())
    }
}

/// Chooses the root for `n` points (the more numerous of sources and targets) inside `low..high`.
///
/// `base` is the smallest admissible cube, `wanted` the number of points that a leaf should hold. With `at_most`, a
/// full box never holds more than `wanted`.
pub(crate) fn choose(
    (n, sample): (usize, &mut dyn RootSample),
    [low, high]: [[f64; 3]; 2],
    base: Root,
    wanted: f64,
    at_most: bool,
) -> Result<Choice, Error> {
    let unstretched = Choice { root: base, stretch: 1.0, ratio: 1.0 };
    let Some((level, slope)) = level_of_occupancy(n, sample, base, wanted)? else { return Ok(unstretched) };
    let wanted_side = base.side * (-level).exp2();

    // Cost model. At the wanted population, near and far field cost the same. Boxes with r times that population cost
    // r in the near field and 1/r in the far field. The far field computes families of eight boxes at once; families
    // that stick out of the cloud at its upper faces are partly empty but cost as much as full ones (`fill` < 1). Boxes
    // do not contain their own upper faces, so a point on the upper face of a family belongs to one family more.
    let mut best = (f64::INFINITY, unstretched);
    let mut side = base.side;
    while side < 2.0 * base.side {
        let root = cube_at(low, side);
        let box_side = side * (-(side / wanted_side).log2().round()).exp2();
        let ratio = (box_side / wanted_side).powf(slope);
        let fill: f64 = (0..3)
            .map(|a| (high[a] - root.corner[a]) / (2.0 * box_side))
            .map(|families| if families >= 1.0 { families / (families.floor() + 1.0) } else { 1.0 })
            .product();
        let cost = ratio + 1.0 / (ratio * fill);
        if cost < best.0 && !(at_most && ratio > 1.01) {
            best = (cost, Choice { root, stretch: side / base.side, ratio });
        }
        side = round_up(side * (1.0 + 1e-6));
    }
    Ok(best.1)
}

/// The fractional level at which a point has, on average, `wanted` other points in its box. Also returns by how many
/// powers of two that number falls per level. `None` if no level of the keys gets down to `wanted`.
fn level_of_occupancy(
    n: usize,
    sample: &mut dyn RootSample,
    base: Root,
    wanted: f64,
) -> Result<Option<(f64, f64)>, Error> {
    let m = sample_size(n) as f64;
    let counted = sample.pairs(base.corner, base.side)?;
    let mut keys: Option<Vec<u128>> = None;
    let mut coarser = (n - 1) as f64;
    for level in 1..=2 * KEY_LEVELS {
        // An unbiased estimate of pairs in one box: Σ n(n−1) over the boxes of the sample, scaled to all points.
        let pairs = match (counted.get(level - 1), &keys) {
            (Some(&pairs), _) => pairs,
            (None, Some(keys)) => pairs_at(keys, level),
            (None, None) => pairs_at(keys.insert(deep_keys(&sample.points(usize::MAX)?, base)), level),
        };
        let seen = (pairs as f64 / m * (n as f64 / m)).max(1e-3);
        if seen <= wanted {
            let slope = (coarser / seen).log2().max(0.5);
            let below = ((coarser / wanted).log2() / slope).clamp(0.0, 1.0);
            return Ok((coarser > wanted).then_some((level as f64 - 1.0 + below, slope.min(3.0))));
        }
        coarser = seen;
    }
    Ok(None)
}

/// The keys of points in a cube, ascending.
fn deep_keys(points: &[[f64; 3]], cube: Root) -> Vec<u128> {
    let frame = Frame::new(cube.corner, cube.side);
    let mut keys: Vec<u128> = points.par_iter().with_min_len(1024).map(|&p| frame.deep_key(p)).collect();
    keys.par_sort_unstable();
    keys
}

/// Number of ordered pairs of different keys in one box of a level.
fn pairs_at(keys: &[u128], level: usize) -> u64 {
    let shift = 2 * KEY_BITS - 3 * level as u32;
    keys.chunk_by(|a, b| a >> shift == b >> shift).map(|c| (c.len() * (c.len() - 1)) as u64).sum()
}

/// Number of points in the sample of `n` points from which a root cube is chosen.
pub fn sample_size(n: usize) -> usize {
    n.min((16 * n.isqrt()).clamp(SAMPLE_SIZES[0], SAMPLE_SIZES[1]))
}

/// The index, among `n` points, of point `i` of a sample. For a fixed `n` this is a permutation of the indices that looks
/// random; a sample of m points has its first m indices. So it has as many close pairs in any order of the points. (With one
/// point from each stretch of the array it had too few where points are sorted along a curve.)
///
/// # Panics
/// In a debug build, unless `i` is below `n`.
pub fn sample_index(i: usize, n: usize) -> usize {
    debug_assert!(i < n);
    // A Feistel network permutes the numbers below 4^half. A number that is no index is permuted again.
    let half = (usize::BITS - (n.max(2) - 1).leading_zeros()).div_ceil(2);
    let (mask, mut x) = ((1u64 << half) - 1, i as u64);
    loop {
        for round in 1..=FEISTEL_ROUNDS {
            let (left, right) = (x >> half, x & mask);
            x = right << half | (left ^ hash(right << 8 | round) & mask);
        }
        if x < n as u64 {
            return x as usize;
        }
    }
}

/// Rounds of the network of [`sample_index`].
const FEISTEL_ROUNDS: u64 = 4;

/// A number whose bits look random (the last steps of SplitMix64, Steele, Lea & Flood 2014).
fn hash(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Extent of the cloud over the extent of its middle 99 %, both along their longest axis. Far outliers make the ratio
/// large. It is infinite if the cloud has an extent but its middle has none, and 1 if there are too few points for
/// outliers.
pub(crate) fn outlier_stretch(
    (n, sample): (usize, &mut dyn RootSample),
    [low, high]: [[f64; 3]; 2],
) -> Result<f64, Error> {
    if n < FEWEST_WITH_OUTLIERS {
        return Ok(1.0);
    }
    let middle = sample.middle()?;
    let extent = |a: usize| [high[a] - low[a], middle[a][1] - middle[a][0]];
    let [whole, middle] = (0..3).map(extent).fold([0.0f64; 2], |m, e| [m[0].max(e[0]), m[1].max(e[1])]);
    Ok(if whole > 0.0 { whole / middle } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_spread() {
        for n in [1, 2, 3, 7, 100, 4096, 5000] {
            let mut all: Vec<usize> = (0..n).map(|i| sample_index(i, n)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "{n}");
        }
        // Of 2^20 pairs of neighbouring indices, 2^20·(2^12/2^20)^2 = 16 have both in the sample, on average.
        let (m, n) = (1 << 12, 1 << 20);
        let mut sample: Vec<usize> = (0..m).map(|i| sample_index(i, n)).collect();
        sample.sort_unstable();
        let next = sample.windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!((6..32).contains(&next), "{next}");
        let quarter = sample.partition_point(|&at| at < n / 4) as f64;
        assert!((quarter - 1024.0).abs() < 5.0 * 28.0, "{quarter}");
    }

    #[test]
    fn sides_have_few_bits_and_are_not_below() {
        for x in [1.0, 1.0001, 3.7e-30, 9.99e29, 127.0, 128.5, 0.1] {
            let s = round_up(x);
            assert!(s >= x && s <= x * 1.016, "{x} {s}");
            let unit = (s.log2().floor() - 6.0).exp2();
            assert_eq!((s / unit).fract(), 0.0);
            assert!(round_up(s * (1.0 + 1e-6)) > s);
        }
    }

    /// Points with coordinates from 0 to 1, both included: a grid, and f32 coordinates that are rounded up to 1. A root
    /// whose boxes end at 1 would have a layer of boxes for the points with a coordinate 1.
    #[test]
    fn no_layer_of_boxes_for_the_upper_faces() {
        let grid =
            |m: u32| (0..m.pow(3)).map(move |i| [i % m, i / m % m, i / (m * m)].map(|k| k as f64 / (m - 1) as f64));
        for m in [17, 25, 33, 40] {
            let points: Vec<[f64; 3]> = grid(m).collect();
            let ends = [[0.0; 3], [1.0; 3]];
            let base = smallest(ends[0], ends[1], 1.0);
            for wanted in [8.0, 20.0, 40.0, 64.0, 120.0] {
                let chosen = choose((points.len(), &mut OnHost(&points)), ends, base, wanted, false).unwrap();
                let layers = |level: i32| 1.0 / (chosen.root.side * (-level as f64).exp2());
                let level = (0..12).find(|&l| points.len() as f64 <= wanted * layers(l).max(1.0).powi(3)).unwrap();
                let last = layers(level).fract();
                assert!(
                    last > 0.3 || layers(level) < 1.0,
                    "{m} {wanted}: {chosen:?}, the last layer is {last} of a box"
                );
            }
        }
    }

    #[test]
    fn smallest_contains_its_box() {
        for (low, high) in
            [([0.0; 3], [1.0; 3]), ([-3e-30; 3], [5e-30; 3]), ([1e6; 3], [1e6 + 1e-3; 3]), ([7.0; 3], [7.0; 3])]
        {
            let r = smallest(low, high, high[0].abs().max(low[0].abs()));
            for a in 0..3 {
                assert!(r.corner[a] <= low[a] && high[a] <= r.corner[a] + r.side, "{r:?}");
                assert_eq!((r.corner[a] / (r.side / CORNER_GRID)).fract(), 0.0);
            }
        }
    }
}
