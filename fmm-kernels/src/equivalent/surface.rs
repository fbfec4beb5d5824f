//! The cube surfaces that carry equivalent densities and check values.
//!
//! A surface of order p holds the boundary points of a regular p × p × p grid on a cube that is
//! concentric with the box (Ying, Biros & Zorin 2004, §3.1). Both the inner and the outer surface
//! of a box use the same lattice, so one index names a point on either.

/// Side of the inner cube over the side of the box: the multipole's equivalent density and the
/// local's check values. It must be at least 1: the density must enclose the sources.
///
/// Other codes take 1.05 with an outer side of 2.95. Measured on the chains of the testkit: from
/// there to 1.01 and 2.99 the errors of Laplace fall by a tenth to a quarter and those of Stokes
/// by 1.4 to 3; 1.1 and 2.9 cost Laplace a quarter and Stokes a factor of two to three, 1.2
/// and 2.8 factors of two and ten. No kernel is ever evaluated between the inner surface and a point
/// of its box, so that points close to it do no harm.
pub const INNER: f64 = 1.01;

/// Side of the outer cube over the side of the box: the multipole's check values and the local's
/// equivalent density. It must stay below 3, where the far field begins, and `INNER + OUTER` must
/// not exceed 4, or the surfaces of boxes of the V list overlap. See [`INNER`] for its value.
pub const OUTER: f64 = 2.99;

/// Number of points of the surface of order `p` ≥ 2.
pub const fn len(p: usize) -> usize {
    6 * (p - 1) * (p - 1) + 2
}

/// Points that exist in the same number of mirror images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Axes, as bits, in whose middle the points lie: reflection leaves them in place.
    pub fixed: usize,
    /// First of its points.
    pub start: usize,
    /// Points of one image; the images follow each other by the bits of the axes along which they lie in the upper half.
    pub len: usize,
}

/// The points of one segment and image, in lexicographic order of their coordinates folded into the lower half.
fn representatives(p: usize, fixed: usize) -> Vec<[usize; 3]> {
    let range = |axis: usize| if fixed >> axis & 1 == 1 { p / 2..p.div_ceil(2) } else { 0..p / 2 };
    let mut points = Vec::new();
    for x in range(0) {
        for y in range(1) {
            points.extend(range(2).filter(|&z| x == 0 || y == 0 || z == 0).map(|z| [x, y, z]));
        }
    }
    points
}

/// The segments of the surface of order `p`: one for even p; for odd p also those of the middle planes and lines.
pub fn segments(p: usize) -> Vec<Segment> {
    let mut start = 0;
    let all = (0..8usize).map(|fixed| {
        let len = representatives(p, fixed).len();
        let segment = Segment { fixed, start, len };
        start += len << (3 - fixed.count_ones());
        segment
    });
    all.filter(|s| s.len > 0).collect()
}

/// Lattice coordinates (x, y, z), each in `0..p`, of the surface points, in the order of every density and every
/// check vector: by [`segments`], in each by image, so that reflections exchange consecutive stretches.
pub fn lattice(p: usize) -> Vec<[usize; 3]> {
    let mut points = Vec::with_capacity(len(p));
    for s in segments(p) {
        let lower = representatives(p, s.fixed);
        for image in (0..8).filter(|image| image & s.fixed == 0) {
            let at = |axis: usize, i: usize| if image >> axis & 1 == 1 { p - 1 - i } else { i };
            points.extend(lower.iter().map(|&[x, y, z]| [at(0, x), at(1, y), at(2, z)]));
        }
    }
    points
}

/// The points of the surface of order `p` with the given `side`, centred at the origin; the order
/// is that of [`lattice`]. With `side` = [`INNER`] or [`OUTER`] it belongs to a box of side 1.
pub fn points(p: usize, side: f64) -> Vec<[f64; 3]> {
    let last = (p - 1) as f64;
    // (2i − (p − 1))/(p − 1) is exactly antisymmetric in i ↔ p − 1 − i.
    let at = |i: usize| 0.5 * side * ((2 * i) as f64 - last) / last;
    lattice(p).into_iter().map(|c| c.map(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_on_the_cube_and_are_distinct() {
        for p in 2..=16 {
            let points = points(p, INNER);
            assert_eq!(points.len(), len(p));
            for (i, a) in points.iter().enumerate() {
                let radius = a.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                assert_eq!(radius, 0.5 * INNER);
                assert!(points[..i].iter().all(|b| a != b));
                assert!(points.contains(&a.map(|x| -x)));
            }
        }
    }
}
