//! The points that carry densities and check values: a [`Lattice`].
//!
//! A lattice of order p is a part of a regular p × p × p grid. For kernels of the plane it is a part of a p × p grid. Its
//! points lie at two places around each box. One index names a point at either place.
//!
//! | | inner points | outer points |
//! |---|---|---|
//! | [`Fill::Surface`] | the boundary of a cube close around the box | the boundary of a cube far around the box |
//! | [`Fill::Volume`] | all points of the cube close around the box | on shells, from the far cube outwards |
//!
//! # Surface
//!
//! Ying, Biros & Zorin 2004, §3.1: a field that solves an elliptic equation of second order is known in a region if it
//! is known on the boundary of the region.
//!
//! # Volume
//!
//! The field of any other kernel is not known from its values on a surface. So the inner points fill the box, and the
//! outer points fill the space around it. The grid point whose largest coordinate is m (1 on the boundary, 0 at the
//! centre) lies on the boundary of a cube of side [`OUTER`] + [`SPREAD`]·(1 − m) in the same direction. So inner points
//! near the centre belong to outer points far away, where fields are smooth and few points suffice. The centre itself
//! (of an odd order) has no direction, and is left out.
//!
//! # The plane
//!
//! A kernel of the plane is constant along z. Its lattice is the layer z = 0 of the grid: the boundary of a square, or a
//! filled square. Boxes stay cubes; where a box lies along z makes no difference to the kernel.

use fmm_traits::Error;

/// Side of the cube of inner points, in sides of the box. Inner points carry the multipole's equivalent density and the
/// local's check values. The cube must enclose the sources, so the constant is at least 1. A smaller inner and a larger
/// outer cube are further apart, and give smaller errors (measured in docs/notes/equivalent-densities.md).
pub const INNER: f64 = 1.01;

/// Side of the smallest cube of outer points, in sides of the box. Outer points carry the multipole's check values and
/// the local's equivalent density. It must stay below 3, where the far field begins. `INNER + OUTER` must not exceed 4,
/// or surfaces of boxes in the V list overlap. See [`INNER`] for the choice.
pub const OUTER: f64 = 2.99;

/// How much larger than [`OUTER`] the side of the outermost shell of a volume may be, in sides of the box (measured in
/// docs/adr/0014-interpolation.md).
pub const SPREAD: f64 = 2.0;

/// Smallest order.
pub const MIN_ORDER: usize = 3;
/// Largest order of a surface, and of any lattice of the plane.
pub const MAX_ORDER: usize = 16;
/// Largest order of a volume.
pub const MAX_VOLUME_ORDER: usize = 12;

/// Which points of a grid a lattice has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Fill {
    /// The points on the boundary.
    Surface,
    /// All points except the centre.
    Volume,
}

/// The points that carry densities and check values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lattice {
    /// Points p per edge.
    pub order: usize,
    /// Which points of the grid it has.
    pub fill: Fill,
    /// Dimensions of the grid: 3, or 2 for kernels of the plane.
    pub dim: usize,
}

/// The surface of an order.
impl From<usize> for Lattice {
    fn from(order: usize) -> Self {
        Lattice::surface(order)
    }
}

/// Points with the same number of mirror images. A point in the middle plane of an axis is its own image there.
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

impl Lattice {
    /// The boundary of a grid of order `p`.
    pub const fn surface(p: usize) -> Self {
        Lattice { order: p, fill: Fill::Surface, dim: 3 }
    }
    /// A filled grid of order `p`.
    pub const fn volume(p: usize) -> Self {
        Lattice { order: p, fill: Fill::Volume, dim: 3 }
    }
    /// The layer z = 0, for kernels of the plane.
    pub const fn in_plane(self) -> Self {
        Lattice { dim: 2, ..self }
    }
    /// Number of octants of a box in which points lie. In the plane they are those of the lower half in z.
    pub const fn octants(self) -> usize {
        1 << self.dim
    }

    /// Number of points. It is even.
    #[expect(clippy::len_without_is_empty, reason = "a lattice has points")]
    pub const fn len(self) -> usize {
        let p = self.order;
        match (self.fill, self.dim) {
            (Fill::Surface, 2) => 4 * (p - 1),
            (Fill::Volume, 2) => p * p - p % 2,
            (Fill::Surface, _) => 6 * (p - 1) * (p - 1) + 2,
            (Fill::Volume, _) => p * p * p - p % 2,
        }
    }

    /// Largest order of a lattice that is filled in the same way, in the same dimension.
    pub const fn max_order(fill: Fill, dim: usize) -> usize {
        match (fill, dim) {
            (Fill::Volume, 3) => MAX_VOLUME_ORDER,
            _ => MAX_ORDER,
        }
    }

    /// Checks the order.
    ///
    /// # Errors
    /// [`Error::Order`].
    pub fn validate(self) -> Result<(), Error> {
        let (min, max) = (MIN_ORDER, Self::max_order(self.fill, self.dim));
        if (min..=max).contains(&self.order) { Ok(()) } else { Err(Error::Order { order: self.order, min, max }) }
    }

    /// The points of a segment's image in the lower half of all axes, in lexicographic order.
    fn representatives(self, fixed: usize) -> Vec<[usize; 3]> {
        let p = self.order;
        let range = |axis: usize| match (fixed >> axis & 1 == 1, axis < self.dim) {
            (true, true) => p / 2..p.div_ceil(2),
            (false, true) => 0..p / 2,
            // A layer is its own image.
            (true, false) => 0..1,
            (false, false) => 0..0,
        };
        let has = |x: usize, y: usize, z: usize| match self.fill {
            Fill::Surface => x == 0 || y == 0 || self.dim == 3 && z == 0,
            // All axes are fixed for the centre alone.
            Fill::Volume => fixed != 7,
        };
        let mut points = Vec::new();
        for x in range(0) {
            for y in range(1) {
                points.extend(range(2).filter(|&z| has(x, y, z)).map(|z| [x, y, z]));
            }
        }
        points
    }

    /// The segments. Even p has one; odd p also has segments in the middle planes and on their lines of intersection.
    pub fn segments(self) -> Vec<Segment> {
        let mut start = 0;
        let all = (0..8usize).map(|fixed| {
            let len = self.representatives(fixed).len();
            let segment = Segment { fixed, start, len };
            start += len << (3 - fixed.count_ones());
            segment
        });
        all.filter(|s| s.len > 0).collect()
    }

    /// Grid coordinates (x, y, z) of the points, each in `0..p`; z = 0 in the plane. Every density and every check vector
    /// has this order: by segment ([`segments`](Self::segments)), within a segment by image. Reflections then exchange
    /// consecutive ranges.
    pub fn coordinates(self) -> Vec<[usize; 3]> {
        let p = self.order;
        let mut points = Vec::with_capacity(self.len());
        for s in self.segments() {
            let lower = self.representatives(s.fixed);
            for image in (0..8).filter(|image| image & s.fixed == 0) {
                let at = |axis: usize, i: usize| if image >> axis & 1 == 1 { p - 1 - i } else { i };
                points.extend(lower.iter().map(|&[x, y, z]| [at(0, x), at(1, y), at(2, z)]));
            }
        }
        points
    }

    /// The points in the cube from −1 to 1, at z = 0 in the plane. The coordinate (2i − (p − 1))/(p − 1) is exactly
    /// antisymmetric in i ↔ p − 1 − i.
    fn unit(self) -> impl Iterator<Item = [f64; 3]> {
        let last = (self.order - 1) as f64;
        let place = move |i: usize| ((2 * i) as f64 - last) / last;
        self.coordinates()
            .into_iter()
            .map(move |c| std::array::from_fn(|a| if a < self.dim { place(c[a]) } else { 0.0 }))
    }

    /// The inner points of a box of side 1 at the origin.
    pub fn inner(self) -> Vec<[f64; 3]> {
        self.unit().map(|x| x.map(|x| 0.5 * INNER * x)).collect()
    }

    /// The outer points of a box of side 1 at the origin.
    pub fn outer(self) -> Vec<[f64; 3]> {
        let place = |x: [f64; 3]| {
            let m = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            x.map(|x| 0.5 * (OUTER + SPREAD * (1.0 - m)) * (x / m))
        };
        self.unit().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn radius(x: &[f64; 3]) -> f64 {
        x.iter().fold(0.0f64, |m, x| m.max(x.abs()))
    }

    #[test]
    fn points_are_distinct_and_symmetric() {
        let in_space = || (2..=16).map(Lattice::surface).chain((2..=12).map(Lattice::volume));
        for lattice in in_space().chain(in_space().map(Lattice::in_plane)) {
            let (inner, outer) = (lattice.inner(), lattice.outer());
            assert_eq!(inner.len(), lattice.len());
            assert_eq!(lattice.len() % 2, 0);
            for points in [&inner, &outer] {
                let mut bits: Vec<[u64; 3]> = points.iter().map(|x| x.map(f64::to_bits)).collect();
                bits.sort_unstable();
                bits.dedup();
                assert_eq!(bits.len(), points.len());
                assert!(points.iter().all(|x| bits.binary_search(&x.map(|x| (0.0 - x).to_bits())).is_ok()));
            }
            assert!(inner.iter().all(|x| radius(x) <= 0.5 * INNER && radius(x) > 0.0));
            assert!(outer.iter().all(|x| radius(x) >= 0.5 * OUTER && radius(x) < 0.5 * (OUTER + SPREAD)));
            if lattice.fill == Fill::Surface {
                assert!(inner.iter().all(|x| radius(x) == 0.5 * INNER));
                assert!(outer.iter().all(|x| radius(x) == 0.5 * OUTER));
            }
        }
    }
}
