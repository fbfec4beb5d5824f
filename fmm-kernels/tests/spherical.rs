//! The testkit's properties, and the parts against each other.

use fmm_kernels::equivalent::spectra::offsets;
use fmm_kernels::spherical::coaxial::Step;
use fmm_kernels::spherical::shift::Shift;
use fmm_kernels::spherical::*;
use fmm_kernels::{Gravity, Laplace, LaplaceDipole, LaplaceMixed, Stokes, Yukawa};
use fmm_traits::testkit::clouds::Generator;
use fmm_traits::testkit::expansion::{Chain, Expected, chain_error, check_expansion, difference};
use fmm_traits::{Cloud, Cube, Error, Expansion, Family, Kernels, Outputs, Real};

/// The expansion for the values of a family and their derivatives up to `derivatives`.
fn expansion<T: Real>(
    family: &impl Family,
    derivatives: usize,
    p: usize,
    options: SphericalOptions,
) -> Result<SphericalExpansion<T>, Error> {
    let outputs = [Outputs::POTENTIAL, Outputs::GRADIENT, Outputs::HESSIAN];
    let outputs = outputs[..=derivatives].iter().fold(Outputs::empty(), |all, &o| all | o);
    SphericalExpansion::new(&Kernels::of(family, outputs)?, p, options)
}

const VARIABLE: SphericalOptions =
    SphericalOptions { translation: Translation::Rcr, truncation: Truncation::Variable, theta: None };
const FIXED: SphericalOptions =
    SphericalOptions { translation: Translation::Rcr, truncation: Truncation::Fixed, theta: None };
const DIRECT: SphericalOptions =
    SphericalOptions { translation: Translation::Direct, truncation: Truncation::Fixed, theta: None };

fn expected(orders: &[usize], rate: f64, first: f64, floor: f64) -> Expected {
    Expected { orders: orders.to_vec(), rate, first, floor, homogeneous: true }
}

#[test]
fn laplace_f64() {
    for options in [VARIABLE, FIXED] {
        let promise = expected(&[1, 3, 5, 8, 11, 14, 18, 24, 32, 40], 1.6, 1.0, 1e-13);
        check_expansion::<f64, _>("laplace", |p| expansion::<f64>(&Laplace, 0, p, options), &promise);
    }
    let promise = expected(&[1, 3, 5, 8, 11, 14], 1.6, 1.0, 1e-13);
    check_expansion::<f64, _>("direct", |p| expansion::<f64>(&Laplace, 0, p, DIRECT), &promise);
}

#[test]
fn laplace_f32() {
    let promise = expected(&[1, 3, 5, 8, 11, 14, 20, 40], 1.6, 1.0, 3e-6);
    check_expansion::<f32, _>("laplace", |p| expansion::<f32>(&Laplace, 0, p, VARIABLE), &promise);
}

#[test]
fn derivatives() {
    let promise = expected(&[2, 4, 7, 10, 14, 18, 24], 1.7, 2.0, 1e-12);
    check_expansion::<f64, _>("gradient", |p| expansion::<f64>(&Laplace, 1, p, VARIABLE), &promise);
    let promise = expected(&[3, 5, 8, 12, 16, 24], 1.7, 3.0, 1e-11);
    check_expansion::<f64, _>("hessian", |p| expansion::<f64>(&Laplace, 2, p, VARIABLE), &promise);
}

#[test]
fn dipoles() {
    let promise = expected(&[4, 7, 10, 14, 18, 24], 1.7, 4.0, 1e-12);
    check_expansion::<f64, _>("dipole", |p| expansion::<f64>(&LaplaceDipole, 1, p, VARIABLE), &promise);
    check_expansion::<f64, _>("mixed", |p| expansion::<f64>(&LaplaceMixed, 1, p, DIRECT), &promise.prefix(3));
    let promise = expected(&[4, 7, 10, 14, 24], 1.7, 4.0, 3e-5);
    check_expansion::<f32, _>("mixed", |p| expansion::<f32>(&LaplaceMixed, 1, p, VARIABLE), &promise);
}

/// A promise for the first few orders only.
trait Prefix {
    fn prefix(&self, count: usize) -> Self;
}
impl Prefix for Expected {
    fn prefix(&self, count: usize) -> Self {
        Expected { orders: self.orders[..count].to_vec(), ..self.clone() }
    }
}

/// The normalised basis of this module has no limit of its own in f32: errors fall to rounding by order 16 or so and
/// stay there up to the largest order.
#[test]
fn f32_is_stable_at_every_order() {
    for p in 2..=MAX_ORDER {
        let x = expansion::<f32>(&Laplace, 1, p, VARIABLE).unwrap();
        let worst = Chain::ALL.map(|c| chain_error(&x, c)).into_iter().fold(0.0, f64::max);
        assert!(worst < 8.0 * 0.6f64.powi(p as i32) + 1e-5, "order {p}: {worst:e}");
    }
}

fn cube(center: [f64; 3], side: f64) -> Cube {
    Cube { center, side }
}

/// A row like that of a multipole or local: degree n shrinks like 0.8ⁿ.
fn row(p: usize, seed: u64) -> Vec<f64> {
    let mut g = Generator::new(seed);
    (0..p * p).map(|i| 0.8f64.powi(i.isqrt() as i32) * g.normal()).collect()
}

/// Every kind of translation, along directions on and off the lattice, to z and −z and near them.
#[test]
fn rcr_is_the_direct_translation_to_rounding() {
    let mut g = Generator::new(1);
    let mut directions =
        vec![[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [1e-7, 0.0, 1.0], [1e-9, -1e-9, -1.0], [1.0, 0.0, 0.0]];
    directions.extend([[0.0, -1.0, 0.0], [1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]]);
    directions.extend((0..8).map(|_| g.direction()));
    for p in [1, 2, 5, 12, 20] {
        let (rcr, direct) = (rcr::Rcr::<f64>::new(p), direct::Direct::<f64>::new(p));
        for (k, direction) in directions.iter().enumerate().filter(|(k, _)| p < 20 || k % 3 == 0) {
            for step in [Step::Up, Step::Across, Step::Down] {
                let (length, from_side, to_side, orders) = match step {
                    Step::Up => (0.43, 0.5, 1.0, [p; 2]),
                    Step::Down => (0.43, 1.0, 0.5, [p; 2]),
                    Step::Across => (2.7, 1.0, if k % 2 == 0 { 1.0 } else { 2.0 }, [p.div_ceil(2 + k % 2), p]),
                };
                let shift = Shift { offset: direction.map(|x| length * x), from_side, to_side, orders };
                let from = row(p, k as u64);
                let mut found = row(p, 77);
                let (mut expected, mut work) = (found.clone(), vec![0.0; 2 * p * p]);
                rcr.add(&rcr.course(step, &shift), &from, &mut found, &mut work);
                match step {
                    Step::Up => direct.m2m(&shift, &from, &mut expected),
                    Step::Across => direct.m2l(&shift, &from, &mut expected),
                    Step::Down => direct.l2l(&shift, &from, &mut expected),
                }
                let d = difference(&found, &expected, 1);
                assert!(d < 1e-14, "{step:?} {p} {direction:?}: {d:e}");
            }
        }
    }
}

/// The moments of a parent are those of its sources, and a local moved to a child is the same polynomial: M2M and
/// L2L are exact, and so is any chain of them.
#[test]
fn upward_and_downward_are_exact() {
    let (p, mut g) = (MAX_ORDER, Generator::new(4));
    let x = expansion::<f64>(&Laplace, 0, p, VARIABLE).unwrap();
    let boxes = [cube([0.5, -1.5, 2.5], 1.0), cube([1.0, -1.0, 2.0], 2.0), cube([2.0, -2.0, 2.0], 4.0)];
    let points: Vec<[f64; 3]> = (0..20).map(|_| boxes[0].center.map(|c| c + g.uniform() - 0.5)).collect();
    let charges: Vec<f64> = (0..20).map(|_| g.normal()).collect();
    let sources = Cloud { xyz: &points, strengths: &charges };
    let zeros = || vec![0.0; p * p];

    let mut chain = zeros();
    x.p2m(boxes[0], sources, &mut chain);
    for k in [1, 2] {
        let from = std::mem::replace(&mut chain, zeros());
        x.m2m(boxes[k], boxes[k - 1], &from, &mut chain);
        let mut expected = zeros();
        x.p2m(boxes[k], sources, &mut expected);
        let d = difference(&chain, &expected, 1);
        assert!(d < 1e-14, "level {k}: {d:e}");
    }

    let (mut before, mut after) = (vec![0.0; 20], vec![0.0; 20]);
    let root = row(p, 5);
    x.l2p(boxes[2], &root, &points, &mut before);
    let (mut middle, mut leaf) = (zeros(), zeros());
    x.l2l(boxes[1], boxes[2], &root, &mut middle);
    x.l2l(boxes[0], boxes[1], &middle, &mut leaf);
    x.l2p(boxes[0], &leaf, &points, &mut after);
    assert!(difference(&after, &before, 1) < 1e-13);
}

/// One charge and one target, both on the spheres around their boxes, where eq. 20 is sharpest.
fn pair_error(p: usize, target: Cube, source: Cube, g: &mut Generator) -> f64 {
    let x = expansion::<f64>(&Laplace, 0, p, FIXED).unwrap();
    let on = |of: Cube, d: [f64; 3]| std::array::from_fn(|a| of.center[a] + 0.866 * of.side * d[a]);
    let (at, y) = (on(target, g.direction()), on(source, g.direction()));
    let sources = Cloud { xyz: &[y], strengths: &[1.0] };
    let (mut m, mut l, mut found, mut exact) = (vec![0.0; p * p], vec![0.0; p * p], [0.0], [0.0]);
    x.p2m(source, sources, &mut m);
    x.m2l(target, source, &m, &mut l);
    x.l2p(target, &l, &[at], &mut found);
    x.p2p(sources, &[at], false, &mut exact);
    (found[0] - exact[0]).abs()
}

#[test]
fn errors_fall_as_the_ratio_of_eq_20() {
    let mut g = Generator::new(9);
    for k in 0..40 {
        let (h1, h2) = (1.0, [1.0, 2.0, 0.5][k % 3]);
        let d = 0.8661 * (h1 + h2) * (1.15 + 1.5 * g.uniform());
        let (source, target) = (cube([0.0; 3], h1), cube(g.direction().map(|x| d * x), h2));
        let [r1, r2] = truncation::ratios(target, source);
        for p in [3, 6, 10, 20] {
            let error = (0..10).map(|_| pair_error(p, target, source, &mut g)).fold(0.0, f64::max);
            // The tails of two geometric series, the first term of each over the smallest distance.
            let room = d - 0.8661 * (h1 + h2);
            let bound = (r1.powi(p as i32) + r2.powi(p as i32)) / room + 1e-14;
            assert!(error <= bound, "{p} {r1} {r2}: {error:e} above {bound:e}");
        }
    }
}

#[test]
fn distant_pairs_use_fewer_degrees_and_err_no_more() {
    let source = cube([0.5; 3], 1.0);
    let at = |offset: [i32; 3]| cube(offset.map(|i| i as f64 + 0.5), 1.0);
    assert_eq!(Truncation::Variable.orders(at([2, 0, 0]), source, 10), [10, 10]);
    // 10 ln(1/3)/ln(1/5), and with the spheres' radii 10 ln 0.764/ln 0.406.
    assert_eq!(Truncation::Variable.orders(at([0, 0, 3]), source, 10), [7, 7]);
    assert_eq!(Truncation::Bound.orders(at([0, 0, 3]), source, 10), [3, 10]);
    assert_eq!(Truncation::Fixed.orders(at([3, 3, 3]), source, 10), [10, 10]);
    // The target of a type 2 edge of the 119 stencil has twice the side of the source.
    let parent = cube([3.0, 2.0, 2.0], 2.0);
    assert_eq!(Truncation::Variable.orders(parent, source, 10), [8, 10]);
    for orders in offsets().map(|o| Truncation::Variable.orders(at(o), source, 40)) {
        assert!(orders[0] == orders[1] && (19..=40).contains(&orders[0]), "{orders:?}");
    }
}

/// Strengths of a box at all V offsets: variable truncation keeps the error of the nearest pair.
#[test]
fn variable_truncation_keeps_the_error() {
    let mut g = Generator::new(3);
    let source = cube([0.5; 3], 1.0);
    let mut inside =
        |of: Cube| -> Vec<[f64; 3]> { (0..30).map(|_| of.center.map(|c| c + of.side * (g.uniform() - 0.5))).collect() };
    let (points, p) = (inside(source), 8);
    let charges = vec![1.0; 30];
    let sources = Cloud { xyz: &points, strengths: &charges };
    const BOUND: SphericalOptions =
        SphericalOptions { translation: Translation::Rcr, truncation: Truncation::Bound, theta: None };
    let [fixed, variable, bound] = [FIXED, VARIABLE, BOUND].map(|o| expansion::<f64>(&Laplace, 0, p, o).unwrap());
    let (mut worst, mut moments) = ([0.0f64; 3], vec![0.0; p * p]);
    fixed.p2m(source, sources, &mut moments);
    for offset in offsets() {
        let target = cube(offset.map(|i| i as f64 + 0.5), 1.0);
        let targets = inside(target);
        let mut exact = vec![0.0; 30];
        fixed.p2p(sources, &targets, false, &mut exact);
        for (x, worst) in [&fixed, &variable, &bound].into_iter().zip(&mut worst) {
            let (mut local, mut found) = (vec![0.0; p * p], vec![0.0; 30]);
            x.m2l(target, source, &moments, &mut local);
            x.l2p(target, &local, &targets, &mut found);
            let error = found.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            *worst = worst.max(error);
        }
    }
    // 0.115 = η*⁸ per charge is what the bound of the nearest pair allows.
    assert!(worst[1] < 4.0 * worst[0] && worst[2] < 0.115 * 30.0, "{worst:?}");
}

#[test]
fn sides_from_tiny_to_huge() {
    fn errors<T: fmm_traits::Real>(p: usize, side: f64) -> [f64; 2] {
        let x = expansion::<T>(&Laplace, 0, p, VARIABLE).unwrap();
        let mut g = Generator::new(6);
        let at = |anchor: [f64; 3], h: f64| cube(anchor.map(|c| c * side), h * side);
        let (child, parent) = (at([0.5, 0.5, 1.5], 1.0), at([1.0, 1.0, 1.0], 2.0));
        let (target, leaf) = (at([5.0, 1.0, -1.0], 2.0), at([4.5, 0.5, -0.5], 1.0));
        let mut inside = |of: Cube| -> Vec<[f64; 3]> {
            (0..20).map(|_| of.center.map(|c| c + of.side * (g.uniform() - 0.5))).collect()
        };
        let (points, targets) = (inside(child), inside(leaf));
        let charges: Vec<T> = (0..20).map(|i| T::of(1.0 + i as f64)).collect();
        let sources = Cloud { xyz: &points, strengths: &charges };
        let row = || vec![T::of(0.0); p * p];
        let (mut m, mut up, mut across, mut l) = (row(), row(), row(), row());
        x.p2m(child, sources, &mut m);
        x.m2m(parent, child, &m, &mut up);
        x.m2l(target, parent, &up, &mut across);
        x.l2l(leaf, target, &across, &mut l);
        let mut near = row();
        x.p2l(leaf, child, sources, &mut near);
        assert!([&m, &up, &across, &l, &near].iter().all(|r| r.iter().all(|v| v.f64().is_finite())));
        let values = || vec![T::of(0.0); 20];
        let (mut exact, mut found, mut by_p2l) = (values(), values(), values());
        x.p2p(sources, &targets, false, &mut exact);
        x.l2p(leaf, &l, &targets, &mut found);
        x.l2p(leaf, &near, &targets, &mut by_p2l);
        // The direct sum itself squares distances, which f32 cannot hold: then one in f64.
        let exact: Vec<f64> = targets
            .iter()
            .map(|t| {
                let inverse = |y: &[f64; 3]| 1.0 / (0..3).map(|a| (t[a] - y[a]).powi(2)).sum::<f64>().sqrt();
                points.iter().zip(&charges).map(|(y, q)| q.f64() * inverse(y)).sum()
            })
            .collect();
        [found, by_p2l].map(|v| difference(&v.iter().map(|v| v.f64()).collect::<Vec<_>>(), &exact, 1))
    }
    for side in [1e-30, 1e-3, 1e30] {
        for p in [1, 8, 25, 40] {
            let bound = 0.5 * 0.6f64.powi(p as i32 - 1);
            assert!(errors::<f64>(p, side).iter().all(|e| *e < bound + 1e-14), "{side:e} {p}");
            assert!(errors::<f32>(p, side).iter().all(|e| *e < bound + 1e-6), "f32 {side:e} {p}");
        }
    }
}

/// All edges of the V list together make one rotation an angle.
#[test]
fn a_rotation_is_made_once_per_angle() {
    let p = 6;
    let rcr = rcr::Rcr::<f64>::new(p);
    let make = |offset: [i32; 3], half: f64| {
        let shift = Shift { offset: offset.map(|i| i as f64 * half), from_side: 1.0, to_side: 1.0, orders: [p; 2] };
        rcr.course(Step::Across, &shift);
        rcr.bytes()
    };
    let one = make([2, 1, 0], 1.0);
    assert_eq!(make([-1, 2, 0], 1.0), one);
    assert_eq!(make([2, 0, 1], 1.0), 2 * one);
    assert_eq!(make([0, 2, -1], 1.0), 2 * one);
    let all = offsets().map(|o| make(o, 1.0)).last().unwrap();
    assert!(all <= 40 * one, "{}", all / one);
    // Off the lattice nothing is kept.
    assert_eq!(make([2, 1, 5], 0.3), all);
}

#[test]
fn the_series_are_valid_where_the_lists_use_them() {
    let x = expansion::<f64>(&Laplace, 0, 2, VARIABLE).unwrap();
    let at = |anchor: [f64; 3], side: f64| cube(anchor.map(|i| (i + 0.5) * side), side);
    let source = at([0.0; 3], 1.0);
    for offset in offsets() {
        let target = at(offset.map(f64::from), 1.0);
        assert!(x.admissible_m2l(target, source) && x.admissible(target, source), "{offset:?}");
    }
    for near in [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]] {
        assert!(!x.admissible_m2l(at(near, 1.0), source), "{near:?}");
    }
    // W: a leaf of twice the side, one small box away, takes M2P but no M2L; X is its mirror.
    let coarse = at([1.0, 0.0, 0.0], 2.0);
    assert!(x.admissible(coarse, source) && x.admissible_p2l(source, coarse));
    assert!(!x.admissible_m2l(coarse, source) && !x.admissible_m2l(source, coarse));
    assert!(!x.admissible(at([0.0; 3], 2.0), source));
}

#[test]
fn bad_orders_and_kernels_are_errors() {
    let order = |p| expansion::<f64>(&Laplace, 0, p, VARIABLE).err();
    assert_eq!(order(0), Some(Error::Order { order: 0, min: MIN_ORDER, max: MAX_ORDER }));
    assert_eq!(order(41), Some(Error::Order { order: 41, min: MIN_ORDER, max: MAX_ORDER }));
    assert!(expansion::<f64>(&Gravity { g: 1.0, softening: 0.1 }, 0, 4, VARIABLE).is_ok());
    let yukawa = expansion::<f64>(&Yukawa { kappa: 1.0 }, 0, 4, VARIABLE).err();
    assert!(matches!(yukawa, Some(Error::Unsupported { .. })), "{yukawa:?}");
    assert!(expansion::<f64>(&Stokes { mu: 1.0 }, 0, 4, VARIABLE).is_err());
}
