//! How many degrees a multipole-to-local translation needs (after Gumerov & Duraiswami 2008, §2.2.4).
//!
//! Around boxes of sides h₁ (source) and h₂ (target) lie spheres of radii R = √3/2·h, whose centres are D apart.
//! Cutting the source's series after p degrees costs at most C (R₁/(D − R₂))^p. Cutting the target's series costs at
//! most C (R₂/(D − R₁))^p. The larger ratio is η of eq. 20. The order p is chosen for the worst pair of the V list,
//! η* = √3/(4 − √3) = 0.76 (eq. 22). Any other pair reaches the same bound with p' = p ln η*/ln η degrees (eq. 24).
//!
//! # Bounds are not errors
//!
//! The bound is attained only if source and target lie in the corners of their boxes that face each other. The error
//! of a whole box is that of typical points, half a side from the centre (the root mean square distance in a cube).
//! For the nearest pair it falls like (1/3)^p, much faster than η*^p. It also depends differently on the distance, so
//! degrees chosen by the bound lose digits at other pairs. [`Truncation::Variable`] therefore applies eq. 24 with R =
//! h/2. It does so for source and target separately; if their sides differ, the operator is rectangular, p₁' × p₂'.
//!
//! Variable truncation at order 8 needs 48 % of the products of a fixed order, and errs up to three times as much
//! (measured in docs/notes/spherical-errors.md).

use fmm_traits::Cube;

/// Whether distant pairs use fewer degrees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Truncation {
    /// Each pair uses the smallest number of degrees for which the error of its typical points is no larger than for
    /// the worst pair of the V list.
    #[default]
    Variable,
    /// Eq. 24 to the letter: the degrees that keep the worst-case bound, for the series of the source alone.
    Bound,
    /// Every pair uses all degrees.
    Fixed,
}

/// Radius of the sphere around a box, in sides of the box: √3/2.
pub(crate) const RADIUS: f64 = 0.866_025_403_784_438_6;
/// Distance of a typical point of a cube from the centre, in sides of the cube: the root mean square is 1/2.
const TYPICAL_RADIUS: f64 = 0.5;
/// Slack for the rounding of centres, sides and roots, so that spheres that touch do not count as apart.
pub(crate) const ROUNDING: f64 = 1.0 + 1e-9;

/// Radius of the sphere around a box, rounded up.
pub(crate) fn sphere(of: Cube) -> f64 {
    RADIUS * of.side * ROUNDING
}

/// Distance of the centres of two boxes.
fn distance(a: Cube, b: Cube) -> f64 {
    let [x, y, z] = std::array::from_fn(|i| a.center[i] - b.center[i]);
    // `hypot`, because a sum of squares may overflow.
    x.hypot(y).hypot(z)
}

/// Ratios by which the error bounds of source and target fall per degree over the M2L edge between two boxes. The
/// larger is η of eq. 20. Where the spheres meet, the ratios are not between 0 and 1.
pub fn ratios(target: Cube, source: Cube) -> [f64; 2] {
    ratios_of(RADIUS, target, source)
}

/// As [`ratios`], with spheres whose radius is `radius` sides.
fn ratios_of(radius: f64, target: Cube, source: Cube) -> [f64; 2] {
    let (d, r1, r2) = (distance(target, source), radius * source.side, radius * target.side);
    [r1 / (d - r2), r2 / (d - r1)]
}

impl Truncation {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Truncation::Variable => "variable",
            Truncation::Bound => "bound",
            Truncation::Fixed => "fixed",
        }
    }

    /// Degrees that source and target need, out of `order`.
    pub fn orders(self, target: Cube, source: Cube, order: usize) -> [usize; 2] {
        self.shares(target, source).map(|share| degrees(order, share))
    }

    /// Fractions of the degrees that source and target need; [`degrees`] turns them into numbers.
    pub fn shares(self, target: Cube, source: Cube) -> [f64; 2] {
        match self {
            Truncation::Fixed => [1.0; 2],
            Truncation::Bound => {
                let [a, b] = ratios(target, source);
                [share(RADIUS, if a < 0.0 || b < 0.0 { 1.0 } else { a.max(b) }), 1.0]
            }
            Truncation::Variable => ratios_of(TYPICAL_RADIUS, target, source).map(|ratio| share(TYPICAL_RADIUS, ratio)),
        }
    }

    /// The fraction of the degrees of the multipole of `source` that its evaluation in `target` needs. `theta` is the
    /// opening angle of a treecode; in other lists, M2P edges are near and need all degrees. Only
    /// [variable](Truncation::Variable) truncation takes fewer.
    ///
    /// The order of a treecode is chosen for its nearest edges. The error of typical points falls by the ratio
    /// h₁/2 / (D − h₂/2) per degree. No edge of a treecode has a larger ratio than θ/2. Eq. 24 gives each edge the error
    /// of an edge with the ratio θ/2.
    pub fn of_m2p(self, theta: Option<f64>, target: Cube, source: Cube) -> f64 {
        match (self, theta) {
            (Truncation::Variable, Some(theta)) => share_of(0.5 * theta, typical_ratio(target, source)),
            _ => 1.0,
        }
    }
}

/// The fraction of the degrees that a series with `ratio` per degree needs, if the nearest pair of the V list uses all.
fn share(radius: f64, ratio: f64) -> f64 {
    share_of(radius / (2.0 - radius), ratio)
}

/// The fraction of the degrees that a series with `ratio` per degree needs, if a series with ratio `largest` uses all
/// (eq. 24).
fn share_of(largest: f64, ratio: f64) -> f64 {
    if largest < 1.0 && (0.0..largest).contains(&ratio) { largest.ln() / ratio.ln() } else { 1.0 }
}

/// Factor by which the error of typical points falls per degree when the multipole of `source` is evaluated in
/// `target`.
fn typical_ratio(target: Cube, source: Cube) -> f64 {
    // In units of the source's side, so that squares do not overflow.
    let d2: f64 = (0..3).map(|a| ((target.center[a] - source.center[a]) / source.side).powi(2)).sum();
    TYPICAL_RADIUS / (d2.sqrt() - TYPICAL_RADIUS * target.side / source.side)
}

/// The fraction `share` of `order` degrees, rounded up, at least 1.
pub fn degrees(order: usize, share: f64) -> usize {
    ((order as f64 * share).ceil() as usize).clamp(1, order.max(1))
}
