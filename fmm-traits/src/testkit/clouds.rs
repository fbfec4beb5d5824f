//! Seeded point clouds, easy and nasty, and a proptest strategy over all of them.

use proptest::prelude::*;
use std::f64::consts::TAU;

/// The splitmix64 generator (Steele, Lea & Flood 2014): the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Generator(seed)
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Normal, mean 0, variance 1 (Box & Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (TAU * self.uniform()).cos()
    }
    /// Uniform on the unit sphere.
    pub fn direction(&mut self) -> [f64; 3] {
        let z = 2.0 * self.uniform() - 1.0;
        let (sin, cos) = (TAU * self.uniform()).sin_cos();
        let r = (1.0 - z * z).sqrt();
        [r * cos, r * sin, z]
    }
}

/// The kinds of cloud. Unless said otherwise, points lie in or near the unit cube.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloudKind {
    /// Uniform in the unit cube.
    Uniform,
    /// Eight normal blobs of very different widths.
    Clustered,
    /// Plummer's sphere, cut at ten radii.
    Plummer,
    /// In the plane z = 0.25.
    Plane,
    /// On a line that is not parallel to an axis.
    Line,
    /// On the surface of a sphere, uniform.
    Sphere,
    /// On the surface of an ellipsoid 1:1:4, uniform in the two angles (Lashuk et al. 2009, §V).
    Ellipsoid,
    /// On a cubic grid: points on box faces.
    Grid,
    /// Two clusters of size 1e-8, at distance 1.
    TwoClusters,
    /// Uniform, and one point 1e6 away.
    Outlier,
    /// All at one position.
    Coincident,
    /// 50 copies of each position, uniform.
    FiftyCopies,
    /// One point for any `n` > 0, none for `n` = 0.
    Single,
}

impl CloudKind {
    /// All kinds.
    pub const ALL: [CloudKind; 13] = [
        CloudKind::Uniform,
        CloudKind::Clustered,
        CloudKind::Plummer,
        CloudKind::Plane,
        CloudKind::Line,
        CloudKind::Sphere,
        CloudKind::Ellipsoid,
        CloudKind::Grid,
        CloudKind::TwoClusters,
        CloudKind::Outlier,
        CloudKind::Coincident,
        CloudKind::FiftyCopies,
        CloudKind::Single,
    ];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            CloudKind::Uniform => "uniform",
            CloudKind::Clustered => "clustered",
            CloudKind::Plummer => "plummer",
            CloudKind::Plane => "plane",
            CloudKind::Line => "line",
            CloudKind::Sphere => "sphere",
            CloudKind::Ellipsoid => "ellipsoid",
            CloudKind::Grid => "grid",
            CloudKind::TwoClusters => "two-clusters",
            CloudKind::Outlier => "outlier",
            CloudKind::Coincident => "coincident",
            CloudKind::FiftyCopies => "fifty-copies",
            CloudKind::Single => "single",
        }
    }

    /// The kind called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// `n` points, N×3 row-major.
    pub fn points(self, n: usize, seed: u64) -> Vec<f64> {
        let mut g = Generator::new(seed);
        let mut last = [0.0; 3];
        let n = if self == CloudKind::Single { n.min(1) } else { n };
        (0..n)
            .flat_map(|i| {
                last = self.point(&mut g, i, n, last);
                last
            })
            .collect()
    }

    /// Point `i` of `n`; `last` is the previous point.
    fn point(self, g: &mut Generator, i: usize, n: usize, last: [f64; 3]) -> [f64; 3] {
        let cube = |g: &mut Generator| std::array::from_fn(|_| g.uniform());
        match self {
            CloudKind::Uniform | CloudKind::Single => cube(g),
            CloudKind::Clustered => {
                let blob = (g.bits() % 8) as i32;
                let mut place = Generator::new(1000 + blob as u64);
                cube(&mut place).map(|c| c + 0.5 * 4f64.powi(-blob) * g.normal())
            }
            CloudKind::Plummer => {
                // The mass within r is u = r³/(1+r²)^1.5; r goes up to 10.
                let u = 0.985 * g.uniform();
                let r = 0.05 / (u.powf(-2.0 / 3.0) - 1.0).max(1e-300).sqrt();
                g.direction().map(|d| 0.5 + r * d)
            }
            CloudKind::Plane => [g.uniform(), g.uniform(), 0.25],
            CloudKind::Line => {
                let s = g.uniform();
                [s, 0.1 + 0.7 * s, 0.9 - 0.3 * s]
            }
            CloudKind::Sphere => g.direction().map(|d| 0.5 + 0.5 * d),
            CloudKind::Ellipsoid => {
                let (sin, cos) = (0.5 * TAU * g.uniform()).sin_cos();
                let (sin_phi, cos_phi) = (TAU * g.uniform()).sin_cos();
                [0.125 * sin * cos_phi + 0.5, 0.125 * sin * sin_phi + 0.5, 0.5 * cos + 0.5]
            }
            CloudKind::Grid => {
                let side = (n as f64).cbrt().ceil().max(1.0) as usize;
                [i % side, i / side % side, i / side / side].map(|k| k as f64 / side as f64)
            }
            CloudKind::TwoClusters => {
                let at = if g.bits() & 1 == 0 { 0.0 } else { 3f64.sqrt().recip() };
                std::array::from_fn(|_| at + 1e-8 * g.uniform())
            }
            CloudKind::Outlier if i == n / 2 => [1e6, 0.3, 0.4],
            CloudKind::Outlier => cube(g),
            CloudKind::Coincident => [0.1, 0.2, 0.3],
            CloudKind::FiftyCopies if !i.is_multiple_of(50) => last,
            CloudKind::FiftyCopies => cube(g),
        }
    }
}

/// Any kind of cloud.
pub fn any_kind() -> impl Strategy<Value = CloudKind> {
    proptest::sample::select(&CloudKind::ALL[..])
}

/// A kind of cloud, up to `max_points` points (small and large numbers equally likely) and a seed.
pub fn any_cloud(max_points: usize) -> impl Strategy<Value = (CloudKind, usize, u64)> {
    (any_kind(), prop_oneof![0..=max_points.min(20), 0..=max_points], any::<u64>())
}

/// `n` strengths uniform in (0, 1).
pub fn uniform_strengths(n: usize, seed: u64) -> Vec<f64> {
    let mut g = Generator::new(seed ^ 0x5eed);
    (0..n).map(|_| g.uniform()).collect()
}

/// `n` strengths from the normal distribution.
pub fn normal_strengths(n: usize, seed: u64) -> Vec<f64> {
    let mut g = Generator::new(seed ^ 0x5eed);
    (0..n).map(|_| g.normal()).collect()
}

/// `n` integers in 1..=1000: their sums are exact (constant-one oracle).
pub fn integer_strengths(n: usize, seed: u64) -> Vec<f64> {
    let mut g = Generator::new(seed ^ 0x5eed);
    (0..n).map(|_| (1 + g.bits() % 1000) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clouds_are_finite_and_repeatable() {
        for kind in CloudKind::ALL {
            let p = kind.points(700, 3);
            assert_eq!(p.len(), if kind == CloudKind::Single { 3 } else { 2100 }, "{}", kind.name());
            assert!(p.iter().all(|x| x.is_finite()), "{}", kind.name());
            assert_eq!(p, kind.points(700, 3));
            assert!(kind.points(0, 3).is_empty());
            assert_eq!(CloudKind::named(kind.name()), Some(kind));
        }
    }
}
