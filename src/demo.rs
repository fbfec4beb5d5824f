//! Seeded point clouds and strengths for demonstrations, benches and tests.

use crate::rng::Rng;
use std::f64::consts::{PI, TAU};

/// A kind of point cloud.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demo {
    /// Uniform in the unit cube.
    Uniform,
    /// On an ellipsoid with axes 1:1:4, uniform in the two angles of spherical coordinates, hence
    /// dense at the poles (Lashuk et al. 2009, §V).
    Ellipsoid,
    /// Plummer's sphere (1911), scale radius 1, out to 100.
    Plummer,
    /// Uniform on the square z = 1/2 of the unit cube.
    Plane,
    /// In the plane: uniform in the unit square. (This and the next two: Goude & Engblom 2012, fig. 5.8.)
    Uniform2d,
    /// Normal about the centre of the unit square with variance 1/100. Points outside the square are rejected.
    Normal2d,
    /// A layer: x uniform, y normal about 1/2 with variance 1/100. Points outside the unit square are rejected.
    Layer2d,
}

impl Demo {
    /// Every kind with its name on the command line.
    pub const ALL: [(Demo, &'static str); 7] = [
        (Demo::Uniform, "uniform"),
        (Demo::Ellipsoid, "ellipsoid"),
        (Demo::Plummer, "plummer"),
        (Demo::Plane, "plane"),
        (Demo::Uniform2d, "uniform2d"),
        (Demo::Normal2d, "normal2d"),
        (Demo::Layer2d, "layer2d"),
    ];

    /// Coordinates per point.
    pub fn dim(self) -> usize {
        if matches!(self, Demo::Uniform2d | Demo::Normal2d | Demo::Layer2d) { 2 } else { 3 }
    }
}

/// `n` points of `demo`, flat n×[`dim`](Demo::dim).
pub fn points(demo: Demo, n: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(demo.dim() * n);
    for _ in 0..n {
        let point = match demo {
            Demo::Uniform => [rng.uniform(), rng.uniform(), rng.uniform()],
            Demo::Plane => [rng.uniform(), rng.uniform(), 0.5],
            Demo::Ellipsoid => {
                let (theta, phi) = (PI * rng.uniform(), TAU * rng.uniform());
                [0.25 * theta.sin() * phi.cos(), 0.25 * theta.sin() * phi.sin(), theta.cos()]
            }
            Demo::Plummer => plummer(&mut rng),
            Demo::Uniform2d => [rng.uniform(), rng.uniform(), 0.0],
            Demo::Normal2d => [normal_in_unit(&mut rng), normal_in_unit(&mut rng), 0.0],
            Demo::Layer2d => [rng.uniform(), normal_in_unit(&mut rng), 0.0],
        };
        out.extend(&point[..demo.dim()]);
    }
    out
}

/// Normal about 1/2 with variance 1/100, in [0, 1].
fn normal_in_unit(rng: &mut Rng) -> f64 {
    loop {
        let x = 0.5 + 0.1 * rng.normal();
        if (0.0..=1.0).contains(&x) {
            return x;
        }
    }
}

/// A point of Plummer's sphere, by inversion of the enclosed mass m(r) = (1 + r⁻²)^(−3/2).
fn plummer(rng: &mut Rng) -> [f64; 3] {
    let r = loop {
        let r = 1.0 / (rng.uniform().powf(-2.0 / 3.0) - 1.0).sqrt();
        if r <= 100.0 {
            break r;
        }
    };
    let z = 2.0 * rng.uniform() - 1.0;
    let (s, phi) = ((1.0 - z * z).sqrt(), TAU * rng.uniform());
    [r * s * phi.cos(), r * s * phi.sin(), r * z]
}

/// `n` strengths of `components` numbers each, uniform in (0, 1).
pub fn strengths(n: usize, components: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(!seed);
    (0..n * components).map(|_| rng.uniform()).collect()
}

/// `n` strengths of `components` numbers each, standard normal.
pub fn normal_strengths(n: usize, components: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(!seed);
    (0..n * components).map(|_| rng.normal()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ellipsoid_lies_on_its_surface_with_uniform_angles() {
        let p = points(Demo::Ellipsoid, 20_000, 5);
        let mut near_poles = 0;
        for x in p.chunks(3) {
            assert!((16.0 * (x[0] * x[0] + x[1] * x[1]) + x[2] * x[2] - 1.0).abs() < 1e-12);
            near_poles += (x[2].abs() > (PI / 10.0).cos()) as usize;
        }
        // θ within π/10 of a pole: a fifth of the angles, 5 % of the sphere.
        assert!((near_poles as f64 / 20_000.0 - 0.2).abs() < 0.02);
    }

    #[test]
    fn half_the_mass_of_plummer_lies_within_its_half_mass_radius() {
        let p = points(Demo::Plummer, 20_000, 5);
        let inside = p.chunks(3).filter(|x| x.iter().map(|c| c * c).sum::<f64>().sqrt() < 1.30477).count();
        assert!((inside as f64 / 20_000.0 - 0.5).abs() < 0.02);
    }

    #[test]
    fn seeds_repeat_and_differ() {
        assert_eq!(points(Demo::Uniform, 10, 3), points(Demo::Uniform, 10, 3));
        assert_ne!(points(Demo::Uniform, 10, 3), points(Demo::Uniform, 10, 4));
        assert_eq!(points(Demo::Plane, 2, 3)[2], 0.5);
    }
}
