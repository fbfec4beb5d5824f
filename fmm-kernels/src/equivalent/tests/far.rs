//! Errors at large distances, operator by operator: of multipoles at far targets, and of locals of far sources.

use super::super::*;
use super::kernels_of;
use crate::{Laplace, LaplaceDipole, LaplaceMixed, StokesPressure, Stresslet};
use fmm_traits::testkit::expansion::difference;
use fmm_traits::{Cloud, Cube, Expansion, Family, Kernel, Outputs};

const SOURCES: usize = 40;
const TARGETS: usize = 60;
/// Number of ancestor levels above the leaf.
const ANCESTOR_LEVELS: i32 = 4;

/// The expansion for all outputs of a family but second derivatives.
fn gradients(family: &impl Family, p: usize, sides: &[f64]) -> EquivalentExpansion<f64> {
    let kernels = kernels_of(family, &[Outputs::POTENTIAL, Outputs::PRESSURE, Outputs::GRADIENT]);
    EquivalentExpansion::new(&kernels, p, sides).unwrap()
}

/// Number `k` of a sequence in (0, 1).
fn uniform(k: usize) -> f64 {
    let sine = (12.9898 * k as f64).sin() * 43758.5453;
    sine - sine.floor()
}

/// `n` points in the unit cube.
fn cloud(n: usize) -> Vec<[f64; 3]> {
    (0..n).map(|k| std::array::from_fn(|a| uniform(3 * k + a))).collect()
}

/// `n` points on a cube around the unit cube, `distance` from its centre.
fn around(n: usize, distance: f64) -> Vec<[f64; 3]> {
    let at = |k: usize| {
        let v: [f64; 3] = std::array::from_fn(|a| 2.0 * uniform(5000 + 3 * k + a) - 1.0);
        let length = v.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        v.map(|v| 0.5 + distance * v / length)
    };
    (0..n).map(at).collect()
}

/// The leaf [0, 1]³ and its ancestors.
fn cube(level: i32) -> Cube {
    let side = f64::from(1 << level);
    Cube { center: [0.5 * side; 3], side }
}

/// Largest relative error over the first `values` components of `x`. With `multipoles`, sources lie in the unit cube
/// and targets `distance` away, and the multipoles of the cube and of its ancestor are evaluated. Otherwise the roles
/// are exchanged, and the local of the cube comes from the sources directly and through its ancestors.
fn error<X: Expansion<f64>>(x: &X, values: usize, distance: f64, multipoles: bool) -> f64 {
    let (xyz, targets) = match multipoles {
        true => (cloud(SOURCES), around(TARGETS, distance)),
        false => (around(SOURCES, distance), cloud(TARGETS)),
    };
    let strengths: Vec<f64> = (0..SOURCES * x.strengths()).map(|k| 2.0 * uniform(1000 + k) - 1.0).collect();
    let sources = Cloud { xyz: &xyz, strengths: &strengths };
    let zeros = || vec![0.0; TARGETS * x.values()];
    let mut direct = zeros();
    x.p2p(sources, &targets, false, &mut direct);
    let seen = |level: i32| distance > 3.0 * f64::from(1 << level);
    let mut worst = 0f64;
    let first = |rows: &[f64]| rows.chunks_exact(x.values()).flat_map(|row| row[..values].to_vec()).collect::<Vec<_>>();
    let mut compare = |found: &[f64]| worst = worst.max(difference(&first(found), &first(&direct), values));
    if multipoles {
        let mut row = vec![0.0; x.multipole_len()];
        x.p2m(cube(0), sources, &mut row);
        x.finish_multipole(cube(0), &mut row);
        for level in 0..=ANCESTOR_LEVELS {
            if level == 0 || level == ANCESTOR_LEVELS && seen(level) {
                let mut values = zeros();
                x.m2p(cube(level), &row, &targets, &mut values);
                compare(&values);
            }
            let mut parent = vec![0.0; x.multipole_len()];
            if level < ANCESTOR_LEVELS {
                x.m2m(cube(level + 1), cube(level), &row, &mut parent);
                x.finish_multipole(cube(level + 1), &mut parent);
            }
            row = parent;
        }
        return worst;
    }
    for first in [0, ANCESTOR_LEVELS].into_iter().filter(|&level| level == 0 || seen(level)) {
        let mut row = vec![0.0; x.local_len()];
        x.p2l(cube(first), cube(first), sources, &mut row);
        x.finish_local(cube(first), &mut row);
        for level in (0..first).rev() {
            let mut child = vec![0.0; x.local_len()];
            x.l2l(cube(level), cube(level + 1), &row, &mut child);
            x.finish_local(cube(level), &mut child);
            row = child;
        }
        let mut values = zeros();
        x.l2p(cube(0), &row, &targets, &mut values);
        compare(&values);
    }
    worst
}

/// Errors at far targets stay within 20 times the errors at near targets at every order, and fall by a factor of 4 per
/// order. Outputs are potential and gradient; for flows velocity, pressure and the gradient of the velocity.
fn far_is_as_near<F: Family>(family: F) {
    let values = if F::Source::VALUES == 4 { 13 } else { 4 };
    let sides: Vec<f64> = (0..=ANCESTOR_LEVELS).map(|l| cube(l).side).collect();
    for multipoles in [true, false] {
        let what = format!("{} {}", family.name(), if multipoles { "multipoles" } else { "locals" });
        let mut last = [f64::INFINITY; 5];
        for p in [4, 6, 8] {
            let x = gradients(&family, p, &sides);
            let errors = [2.6, 10.0, 100.0, 1000.0, 1e5].map(|distance| error(&x, values, distance, multipoles));
            let near = errors[0].max(errors[1]);
            assert!(errors.iter().all(|&e| e <= 20.0 * near), "{what}, order {p}: {errors:?}");
            assert!(
                errors.iter().zip(&last).all(|(e, last)| *e <= last / 16.0),
                "{what}, order {p}: {errors:?} after {last:?}"
            );
            last = errors;
        }
    }
}

#[test]
fn charges_and_forces() {
    far_is_as_near(Laplace);
    far_is_as_near(StokesPressure { mu: 0.7 });
}

#[test]
fn dipoles_and_stresslets() {
    far_is_as_near(LaplaceDipole);
    far_is_as_near(Stresslet { mu: 0.7 });
}

#[test]
fn charges_with_dipoles() {
    far_is_as_near(LaplaceMixed);
}

/// Net strengths of multipoles equal the net strengths of the sources to rounding, in a leaf and in its parent.
#[test]
fn net_strengths_are_kept_to_rounding() {
    fn net<F: Family>(family: F, expected: impl Fn(&[f64]) -> Vec<f64>) {
        let x = gradients(&family, 4, &[1.0, 2.0]);
        let (xyz, n) = (cloud(SOURCES), Lattice::surface(4).len());
        let strengths: Vec<f64> = (0..SOURCES * x.strengths()).map(|k| uniform(1000 + k)).collect();
        let mut row = vec![0.0; x.multipole_len()];
        x.p2m(cube(0), Cloud { xyz: &xyz, strengths: &strengths }, &mut row);
        x.finish_multipole(cube(0), &mut row);
        let mut parent = vec![0.0; x.multipole_len()];
        x.m2m(cube(1), cube(0), &row, &mut parent);
        x.finish_multipole(cube(1), &mut parent);
        for row in [&row, &parent] {
            for (j, expected) in expected(&strengths).into_iter().enumerate() {
                let component = &row[j * n..(j + 1) * n];
                let size: f64 = component.iter().map(|x| x.abs()).sum();
                let found: f64 = component.iter().sum();
                assert!((found - expected).abs() < 1e-13 * size, "{} {j}: {found:e} of {size:e}", family.name());
            }
        }
    }
    net(LaplaceDipole, |_| vec![0.0]);
    net(Stresslet { mu: 0.7 }, |_| vec![0.0; 3]);
    net(LaplaceMixed, |q| vec![q.iter().step_by(4).sum()]);
}

/// The dilation rule finds the components whose net strength is kept, and keeps nothing where it does not apply.
#[test]
fn what_is_kept() {
    use crate::{Gravity, Yukawa};
    assert_eq!(net::of_sources(&Members::of::<Laplace>(), &[]), []);
    assert_eq!(net::of_sources(&Members::of::<LaplaceDipole>(), &[]), [None]);
    assert_eq!(net::of_sources(&Members::of::<LaplaceMixed>(), &[]), [Some(0)]);
    assert_eq!(net::of_sources(&Members::of::<Stresslet>(), &[1.0]), [None; 3]);
    assert_eq!(net::of_sources(&Members::of::<StokesPressure>(), &[1.0]), []);
    assert_eq!(net::of_sources(&Members::of::<Gravity>(), &[0.0]), []);
    assert_eq!(net::of_sources(&Members::of::<Yukawa>(), &[1.0]), []);
}
