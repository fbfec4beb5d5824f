//! How many degrees a multipole-to-local translation needs (after Gumerov & Duraiswami 2008, §2.2.4).
//!
//! Around boxes of sides h₁ (source) and h₂ (target) lie spheres of radii R = √3/2·h, at distance D. Cutting the source's
//! series after p degrees costs at most C (R₁/(D − R₂))^p, cutting the target's C (R₂/(D − R₁))^p; the larger
//! ratio is η of eq. 20. The order is chosen for the worst pair of the V list, η* = √3/(4 − √3) = 0.76 (eq. 22). Any other
//! pair has the same bound with p' = p ln η*/ln η degrees, eq. 24.
//!
//! # Bounds are not errors
//!
//! The bound is attained where a source and a target lie in the corners of their boxes that face each other. The
//! error of a box is that of typical points, half a side from the centre (the root mean square of
//! the distance in a cube), which falls like (1/3)^p for the nearest pair: much faster than η*^p, and by another law with
//! the distance. Keeping the bound then costs digits. [`Truncation::Variable`] therefore takes eq. 24 with R = h/2, for
//! each side of the translation by itself (a rectangular operator p₁' × p₂' if the sides differ).
//!
//! Relative errors of potential and gradient for normal strengths (`cargo run --release -p backend-cpu --example
//! spherical_errors`), and products of all translations of a V list over those of full length:
//!
//! | order | fixed | variable | eq. 24 |
//! |---|---|---|---|
//! | 4 | 6.6e-4, 4.4e-4 | 1.2e-3, 5.9e-4 with 59 % | 1.6e-2, 9.9e-4 with 48 % |
//! | 8 | 1.1e-5, 1.1e-5 | 3.3e-5, 1.3e-5 with 48 % | 1.6e-3, 2.2e-4 with 44 % |
//! | 12 | 2.9e-7, 4.2e-7 | 8.0e-7, 8.8e-7 with 43 % | 2.1e-4, 3.7e-5 with 44 % |
//! | 16 | 2.0e-8, 2.7e-8 | 5.9e-8, 4.8e-8 with 40 % | 4.8e-5, 9.9e-6 with 44 % |
//!
//! A fixed order with the errors of order 8 variable would be 7, with 67 % of the products.

use fmm_traits::Cube;

/// Whether distant pairs use fewer degrees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Truncation {
    /// As many as keep the error of typical points for the worst pair of the V list.
    #[default]
    Variable,
    /// Eq. 24 to the letter: as many as keep its bound, for the series of the source alone.
    Bound,
    /// All.
    Fixed,
}

/// √3/2: radius of the sphere around a box over its side.
pub(crate) const RADIUS: f64 = 0.866_025_403_784_438_6;
/// Root mean square distance of a point in a cube from its centre, over the side.
const TYPICAL: f64 = 0.5;
/// Slack for the rounding of centres, sides and roots: spheres that touch are not apart.
pub(crate) const ROUNDING: f64 = 1.0 + 1e-9;

/// Radius of the sphere around a box, rounded up.
pub(crate) fn sphere(of: Cube) -> f64 {
    RADIUS * of.side * ROUNDING
}

/// Distance of the centres.
fn distance(a: Cube, b: Cube) -> f64 {
    let [x, y, z] = std::array::from_fn(|i| a.center[i] - b.center[i]);
    // Not the root of a sum of squares, which may overflow.
    x.hypot(y).hypot(z)
}

/// Ratios by which the bounds of source and target fall, a degree, over the M2L edge between two boxes; not
/// between 0 and 1 where the spheres meet. The larger is η of eq. 20.
pub fn ratios(target: Cube, source: Cube) -> [f64; 2] {
    ratios_of(RADIUS, target, source)
}

/// As [`ratios`], with spheres of `radius` sides.
fn ratios_of(radius: f64, target: Cube, source: Cube) -> [f64; 2] {
    let (d, r1, r2) = (distance(target, source), radius * source.side, radius * target.side);
    [r1 / (d - r2), r2 / (d - r1)]
}

impl Truncation {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Truncation::Variable => "variable",
            Truncation::Bound => "bound",
            Truncation::Fixed => "fixed",
        }
    }

    /// Degrees of the source and of the target, of `order`.
    pub fn orders(self, target: Cube, source: Cube, order: usize) -> [usize; 2] {
        self.shares(target, source).map(|share| degrees(order, share))
    }

    /// Shares of the degrees that source and target need, for [`degrees`].
    pub fn shares(self, target: Cube, source: Cube) -> [f64; 2] {
        match self {
            Truncation::Fixed => [1.0; 2],
            Truncation::Bound => {
                let [a, b] = ratios(target, source);
                [share(RADIUS, if a < 0.0 || b < 0.0 { 1.0 } else { a.max(b) }), 1.0]
            }
            Truncation::Variable => ratios_of(TYPICAL, target, source).map(|ratio| share(TYPICAL, ratio)),
        }
    }
}

/// The share of the degrees that a series of `ratio` needs where the nearest pair of the V list has all.
fn share(radius: f64, ratio: f64) -> f64 {
    share_of(radius / (2.0 - radius), ratio)
}

/// The share of the degrees that a series of `ratio` needs where one of `largest` has all (eq. 24).
pub fn share_of(largest: f64, ratio: f64) -> f64 {
    if largest < 1.0 && (0.0..largest).contains(&ratio) { largest.ln() / ratio.ln() } else { 1.0 }
}

/// By how much the error of typical points falls, a degree, where the multipole of `source` is evaluated in `target`.
pub fn typical_ratio(target: Cube, source: Cube) -> f64 {
    // In units of the source's side: squares of neither overflow.
    let d2: f64 = (0..3).map(|a| ((target.center[a] - source.center[a]) / source.side).powi(2)).sum();
    TYPICAL / (d2.sqrt() - TYPICAL * target.side / source.side)
}

/// A share of the degrees of `order`, rounded up.
pub fn degrees(order: usize, share: f64) -> usize {
    ((order as f64 * share).ceil() as usize).clamp(1, order.max(1))
}
