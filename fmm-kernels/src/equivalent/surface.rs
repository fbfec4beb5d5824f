//! The cube surfaces that carry equivalent densities and check values.
//!
//! A surface of order p holds the boundary points of a regular p × p × p grid on a cube that is
//! concentric with the box (Ying, Biros & Zorin 2004, §3.1). Both the inner and the outer surface
//! of a box use the same lattice, so one index names a point on either.

/// Side of the inner surface, in sides of the box. The inner surface carries the multipole's equivalent density and the
/// local's check values. It must enclose the sources, so the constant is at least 1. A smaller inner and a larger outer
/// surface are further apart, and give smaller errors (measured in docs/notes/equivalent-densities.md).
pub const INNER: f64 = 1.01;

/// Side of the outer surface, in sides of the box. The outer surface carries the multipole's check values and the
/// local's equivalent density. It must stay below 3, where the far field begins. `INNER + OUTER` must not exceed 4,
/// or surfaces of boxes in the V list overlap. See [`INNER`] for the choice.
pub const OUTER: f64 = 2.99;

/// Number of points of the surface of order `p` ≥ 2.
pub const fn len(p: usize) -> usize {
    6 * (p - 1) * (p - 1) + 2
}

/// Surface points with the same number of mirror images. A point in the middle plane of an axis is its own image there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Axes, as bits, whose reflection leaves the points in place.
    pub fixed: usize,
    /// First point of the segment.
    pub start: usize,
    /// Points of one image. An image is named by the axes, as bits, along which its points lie in the upper half;
    /// images follow each other in the order of these bits.
    pub len: usize,
}

/// The points of a segment's image in the lower half of all axes, in lexicographic order.
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

/// The segments of the surface of order `p`. Even p has one; odd p also has segments in the middle planes and on their
/// lines of intersection.
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

/// Lattice coordinates (x, y, z), each in `0..p`, of the surface points. Every density and every check vector has this
/// order: by segment ([`segments`]), within a segment by image. Reflections then exchange consecutive ranges.
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

/// The points of the surface of order `p` with the given `side`, centred at the origin, in the order of [`lattice`].
/// The surface with `side` = [`INNER`] or [`OUTER`] belongs to a box of side 1.
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
