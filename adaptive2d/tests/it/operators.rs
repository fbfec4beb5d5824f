//! Each operator alone against direct sums and binomial forms, chains, rates in p, covariances.

use adaptive2d::complex::Complex;
use adaptive2d::laurent::shift;
use adaptive2d::{ConnectOptions, Laurent, PlaneKernel, Pyramid, PyramidOptions, connect};
use backend_cpu::pairwise::Pairwise;
use fmm_kernels::Harmonic2d;
use fmm_traits::dual::Dual;
use fmm_traits::testkit::clouds::{Generator, normal_strengths};
use fmm_traits::testkit::{in_turn, plane::PlaneKind};
use fmm_traits::{Cloud, Cube, Error, Expansion, Lane};
use proptest::prelude::*;

type C = Complex<f64>;

/// A box that is a circle of the given centre and radius.
fn circle(center: [f64; 2], radius: f64) -> Cube {
    Cube { center: [center[0], center[1], 0.0], side: 2.0 * radius }
}

/// `n` points inside `at`, up to its rim.
fn inside(at: Cube, n: usize, seed: u64) -> Vec<[f64; 3]> {
    let mut g = Generator::new(seed);
    let point = |_| {
        let (sin, cos) = (std::f64::consts::TAU * g.uniform()).sin_cos();
        let r = 0.5 * at.side * g.uniform().sqrt();
        [at.center[0] + r * cos, at.center[1] + r * sin, 0.0]
    };
    (0..n).map(point).collect()
}

/// Largest difference over the largest value.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    let largest = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let worst =
        a.iter().zip(b).fold(0.0f64, |m, (x, y)| if (x - y).is_nan() { f64::NAN } else { m.max((x - y).abs()) });
    worst / largest
}

/// Sources in one box seen from targets in another through a route of operators, beside the direct sum.
struct Case {
    e: Laurent,
    strengths: Vec<f64>,
    sources: Vec<[f64; 3]>,
    targets: Vec<[f64; 3]>,
}

impl Case {
    fn new(kernel: PlaneKernel, order: usize, source: Cube, target: Cube) -> Self {
        let e = Laurent::new(kernel, order, 2).unwrap();
        let strengths = normal_strengths(20 * kernel.strengths(), 5);
        Case { e, strengths, sources: inside(source, 20, 1), targets: inside(target, 15, 2) }
    }
    fn cloud(&self) -> Cloud<'_, f64> {
        Cloud { xyz: &self.sources, strengths: &self.strengths }
    }
    fn row(&self) -> Vec<f64> {
        vec![0.0; self.e.multipole_len()]
    }
    fn values(&self) -> Vec<f64> {
        vec![0.0; self.targets.len() * self.e.values()]
    }
    fn p2m(&self, at: Cube) -> Vec<f64> {
        let mut a = self.row();
        self.e.p2m(at, self.cloud(), &mut a);
        a
    }
    fn p2l(&self, at: Cube) -> Vec<f64> {
        let mut b = self.row();
        self.e.p2l(at, at, self.cloud(), &mut b);
        b
    }
    fn m2m(&self, at: Cube, child: Cube, from: &[f64]) -> Vec<f64> {
        let mut a = self.row();
        self.e.m2m(at, child, from, &mut a);
        a
    }
    fn m2l(&self, at: Cube, source: Cube, from: &[f64]) -> Vec<f64> {
        let mut b = self.row();
        self.e.m2l(at, source, from, &mut b);
        b
    }
    fn l2l(&self, at: Cube, parent: Cube, from: &[f64]) -> Vec<f64> {
        let mut b = self.row();
        self.e.l2l(at, parent, from, &mut b);
        b
    }
    fn l2p(&self, at: Cube, b: &[f64]) -> Vec<f64> {
        let mut v = self.values();
        self.e.l2p(at, b, &self.targets, &mut v);
        v
    }
    fn m2p(&self, source: Cube, a: &[f64]) -> Vec<f64> {
        let mut v = self.values();
        self.e.m2p(source, a, &self.targets, &mut v);
        v
    }
    fn direct(&self) -> Vec<f64> {
        let mut v = self.values();
        self.e.p2p(self.cloud(), &self.targets, false, &mut v);
        v
    }
    /// The largest error of potential, first and second derivatives. Each is compared with its own size.
    fn error(&self, found: &[f64]) -> f64 {
        let (kernel, width, direct) = (self.e.kernel, self.e.values(), self.direct());
        let ends = [0, kernel.potentials(), kernel.values(1), kernel.values(2)];
        let errors = ends.windows(2).map(|w| {
            let of = |v: &[f64]| -> Vec<f64> { v.chunks(width).flat_map(|row| &row[w[0]..w[1]]).copied().collect() };
            difference(&of(found), &of(&direct))
        });
        errors.fold(0.0, |worst, e| if e.is_nan() || e > worst { e } else { worst })
    }
}

/// Source box at 0, targets three radii away, and a parent of each, all scaled by `s` about a far origin.
fn boxes(s: f64) -> [Cube; 4] {
    let at = |x: f64, y: f64, r: f64| circle([s * (x + 7.0), s * (y - 3.0)], s * r);
    [at(0.0, 0.0, 1.0), at(0.6, -0.3, 1.7), at(6.1, 2.0, 1.7), at(5.5, 2.5, 0.9)]
}

#[test]
fn each_operator_and_their_chains_converge() {
    for kernel in PlaneKernel::all() {
        for s in [1.0, 1e30, 1e-30] {
            let [child, parent, far_parent, far] = boxes(s);
            let errors = |p: usize| {
                let c = Case::new(kernel, p, child, far);
                let a = c.p2m(child);
                let up = c.m2m(parent, child, &a);
                let b = c.m2l(far_parent, parent, &up);
                [
                    c.error(&c.m2p(child, &a)),
                    c.error(&c.l2p(far, &c.p2l(far))),
                    c.error(&c.l2p(far, &c.m2l(far, child, &a))),
                    c.error(&c.m2p(parent, &up)),
                    c.error(&c.l2p(far_parent, &b)),
                    c.error(&c.l2p(far, &c.l2l(far, far_parent, &b))),
                ]
            };
            // Every route converges at least as fast as the ratio of radius to the nearest point.
            let rates = [1.0 / 5.0, 0.9 / 5.0, 0.35, 1.7 / 4.5, 0.6, 0.6];
            for p in [6, 12, 24, 60] {
                for (route, (e, rate)) in errors(p).into_iter().zip(rates).enumerate() {
                    let bound = 40.0 * (p * p) as f64 * f64::powi(rate, p as i32) + 1e-12;
                    assert!(e < bound, "{} s {s:e} p {p} route {route}: {e:e} > {bound:e}", kernel.name());
                }
            }
        }
    }
}

/// Binomial coefficient.
fn binomial(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |b, i| b * (n - i) as f64 / (i + 1) as f64)
}

fn random_row(n: usize, seed: u64) -> Vec<C> {
    let mut g = Generator::new(seed);
    (0..n).map(|_| C::new(g.normal(), g.normal())).collect()
}

fn power(z: C, n: usize) -> C {
    (0..n).fold(C::one(), |w, _| w * z)
}

fn close(a: &[C], b: &[C], tolerance: f64) {
    for (j, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((*a - *b).square().sqrt() <= tolerance * (1.0 + b.square().sqrt()), "{j}: {a:?} {b:?}");
    }
}

#[test]
fn shifts_are_the_binomial_sums() {
    for p in [1, 2, 5, 17, 40, 60] {
        let a = random_row(p + 1, p as u64);
        let (r, rho, rho_to) = (C::new(0.3, -0.4), 0.45, 1.1);
        let (u, v) = (r.inverse().scaled(rho), r.scaled(1.0 / rho_to));
        let (mut m, mut plain) = (a.clone(), a.clone());
        shift::m2m(&mut m, u, v);
        shift::m2m_plain(&mut plain, rho / rho_to, v);
        // a'_j = Σ_k C(j−1, k−1) a_k r^(j−k) − a_0 r^j/j.
        let sum = |j: usize| {
            let terms = (1..=j).map(|k| {
                let c = binomial(j - 1, k - 1) * (rho / rho_to).powi(k as i32);
                (a[k] * power(v, j - k)).scaled(c)
            });
            terms.fold(a[0] * power(v, j), |s, t| if j == 0 { s } else { s + t })
                - if j == 0 { C::zero() } else { (a[0] * power(v, j)).scaled(1.0 + 1.0 / j as f64) }
        };
        let exact: Vec<C> = (0..=p).map(sum).collect();
        close(&m, &exact, 1e-12);
        close(&plain, &exact, 1e-12);

        let t = 0.5;
        let (mut l, mut plain) = (a.clone(), a.clone());
        shift::l2l(&mut l, r.inverse().scaled(t * rho_to), v);
        shift::l2l_plain(&mut plain, t, v);
        // b'_j = Σ_k C(k, j) b_k (−r)^(k−j).
        let minus = C::zero() - v;
        let sum = |j: usize| {
            (j..=p).fold(C::zero(), |s, k| {
                s + (a[k] * power(minus, k - j)).scaled(binomial(k, j) * f64::powi(t, j as i32))
            })
        };
        let exact: Vec<C> = (0..=p).map(sum).collect();
        close(&l, &exact, 1e-11);
        close(&plain, &exact, 1e-11);

        let r = C::new(-2.0, 3.0);
        let (u, v) = (r.inverse().scaled(rho), r.inverse().scaled(rho_to));
        let mut m = a.clone();
        shift::m2l(&mut m, u, v, 1.25);
        // b_j = r^−j (Σ_k (−1)^k C(j+k−1, j) a_k r^−k − a_0/j), b_0 with a_0 log(−r).
        let sum = |j: usize| {
            let first = if j == 0 { a[0].scaled(1.25) } else { a[0].scaled(-1.0 / j as f64) };
            let term = |k: usize| (a[k] * power(C::zero() - u, k)).scaled(binomial(j + k - 1, j));
            (1..=p).fold(first, |s, k| s + term(k)) * power(v, j)
        };
        let exact: Vec<C> = (0..=p).map(sum).collect();
        close(&m, &exact, 1e-12);
    }
}

#[test]
fn shifts_between_almost_equal_centres() {
    for kernel in PlaneKernel::all() {
        for p in [3, 17, 60] {
            for distance in [0.0, 1e-300, 1e-20, 1e-9, 1e-3, 0.05, 0.3] {
                let parent = circle([2.0, 1.0], 1.0);
                let child = circle([2.0 + distance, 1.0], 0.4);
                let (far, far_child) = (circle([8.0, 1.0], 1.0), circle([8.0 - distance, 1.0], 0.6));
                let c = Case::new(kernel, p, child, far_child);
                let a = c.p2m(child);
                let through = c.m2p(parent, &c.m2m(parent, child, &a));
                let at_once = c.m2p(parent, &c.p2m(parent));
                assert!(difference(&through, &at_once) < 1e-13, "{} {p} {distance}", kernel.name());
                let b = c.p2l(far);
                let through = c.l2p(far_child, &c.l2l(far_child, far, &b));
                assert!(difference(&through, &c.l2p(far, &b)) < 1e-12, "{} {p} {distance}", kernel.name());
            }
        }
    }
}

/// A child may be any number of times smaller than its parent, and lie anywhere in it.
#[test]
fn shifts_between_boxes_of_extreme_sizes() {
    let (parent, far) = (circle([0.0, 0.0], 1.0), circle([4.0, -1.0], 1.0));
    for kernel in PlaneKernel::all() {
        for radius in [0.5, 1e-3, 1e-8, 1e-30] {
            for at in [[0.0, 0.0], [0.4, 0.3], [1e-9, -0.5]] {
                for p in [1, 17, 60] {
                    let child = circle(at, radius);
                    let c = Case::new(kernel, p, child, far);
                    let error = difference(&c.m2m(parent, child, &c.p2m(child)), &c.p2m(parent));
                    assert!(error < 1e-12, "{} {radius:e} {at:?} {p}: {error:e}", kernel.name());
                    // The local of the parent, moved to the child, has the field of the parent's there.
                    let c = Case::new(kernel, p, far, child);
                    let local = c.p2l(parent);
                    let moved = c.l2p(child, &c.l2l(child, parent, &local));
                    let error = difference(&moved, &c.l2p(parent, &local));
                    assert!(error < 1e-11, "{} {radius:e} {at:?} {p}: {error:e}", kernel.name());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..Default::default() })]
    /// Two shifts are one: M2M∘M2M and L2L∘L2L lose nothing.
    #[test]
    fn shifts_compose(p in 1usize..=60, x in -0.3..0.3f64, y in -0.3..0.3f64, z in -0.3..0.3f64) {
        for kernel in PlaneKernel::all() {
            let (a, b, d) = (circle([0.0, 0.0], 0.5), circle([x, y], 1.0), circle([y, z], 1.6));
            let c = Case::new(kernel, p, a, circle([9.0, 9.0], 1.0));
            let m = c.p2m(a);
            let (twice, once) = (c.m2m(d, b, &c.m2m(b, a, &m)), c.m2m(d, a, &m));
            prop_assert!(difference(&twice, &once) < 1e-12);
            let l = c.p2l(circle([9.0, 9.0], 1.0));
            let (d, b, a) = (circle([9.0, 9.0], 1.0), circle([9.0 + x, 9.0 + y], 0.6), circle([9.0 + z, 9.0 + x], 0.2));
            let (twice, once) = (c.l2l(a, b, &c.l2l(b, d, &l)), c.l2l(a, d, &l));
            prop_assert!(difference(&twice, &once) < 1e-11);
        }
    }
}

#[test]
fn orders_outside_the_range_are_refused() {
    for order in [0, 61] {
        assert_eq!(Laurent::new(Harmonic2d, order, 0), Err(Error::Order { order, min: 1, max: 60 }));
    }
}

/// Every value of a pair by dual numbers over the real coordinates, from the formula of the potential alone.
#[test]
fn derivatives_of_a_pair_are_those_of_dual_numbers() {
    type D = Dual<Dual<f64>>;
    let at = |x: f64, axis: usize| D::variable(Dual::variable(x, axis), axis);
    let number = |x: f64| D::splat(x);
    for (x, y) in [(0.3, -0.2), (-1e3, 2e-2), (1e-7, 3e-7)] {
        let r = [at(x, 0), at(y, 1)];
        let square = r[0] * r[0] + r[1] * r[1];
        let strengths = [0.7, -1.3, 0.45];
        let [charge, re, im] = strengths.map(number);
        let scale = number(-0.5 * std::f64::consts::FRAC_1_PI);
        let logarithm = scale * charge * number(0.5) * square.ln();
        // m/(z_j − z) with z − z_j = r.
        let poles = |re: D, im: D| [-(re * r[0] + im * r[1]) / square, -(im * r[0] - re * r[1]) / square];
        let dipole = scale * poles(re, im)[0];
        for kernel in PlaneKernel::all() {
            let (potentials, own): (Vec<D>, &[f64]) = match kernel.name() {
                "harmonic2d" => (poles(re, im).to_vec(), &strengths[1..]),
                "laplace2d" => (vec![logarithm], &strengths[..1]),
                "laplace2d_dipole" => (vec![dipole], &strengths[1..]),
                _ => (vec![logarithm + dipole], &strengths),
            };
            let e = Laurent::new(kernel, 1, 2).unwrap();
            let mut values = vec![0.0; e.values()];
            e.p2p(Cloud { xyz: &[[0.0; 3]], strengths: own }, &[[x, y, 0.0]], false, &mut values);
            let of = |numbers: fn(&D) -> Vec<f64>| potentials.iter().flat_map(numbers);
            let second = |u: &D| {
                let d = u.gradient().map(Dual::gradient);
                vec![d[0][0], d[0][1], d[1][1]]
            };
            let expected: Vec<f64> =
                of(|u| vec![u.v.v]).chain(of(|u| u.v.gradient()[..2].to_vec())).chain(of(second)).collect();
            let ends = [0, kernel.potentials(), kernel.values(1), kernel.values(2)];
            for own in ends.windows(2).map(|w| w[0]..w[1]) {
                let error = difference(&values[own.clone()], &expected[own]);
                assert!(error < 1e-13, "{kernel:?} at {x} {y}: {error:e}, {values:?} {expected:?}");
            }
        }
    }
}

/// The whole method, one operator call an edge, against direct sums.
#[test]
fn the_plain_method_is_the_direct_sum() {
    for (k, kernel) in PlaneKernel::all().into_iter().enumerate() {
        for (_, kind) in PlaneKind::ALL.into_iter().enumerate().filter(|(cloud, _)| in_turn(k + cloud, 3)) {
            let points = kind.points(1500, 4);
            let strengths = normal_strengths(points.len() / 2 * kernel.strengths(), 6);
            let options = PyramidOptions { population: 8.0, depth: None };
            let pyramid = Pyramid::build(&points, None, &options).unwrap();
            let lists = connect(&pyramid, &ConnectOptions::default()).unwrap();
            let mut last = f64::INFINITY;
            for (order, bound) in [(8, 1e-2), (17, 3e-5), (34, 1e-9)] {
                let e = Laurent::new(kernel, order, 1).unwrap();
                let found = Pairwise::new(&pyramid, &lists, &e).unwrap().apply(&strengths, &mut |_, _| true).unwrap();
                let xyz: Vec<[f64; 3]> = points.chunks(2).map(|p| [p[0], p[1], 0.0]).collect();
                let mut direct = vec![0.0; found.len()];
                e.p2p(Cloud { xyz: &xyz, strengths: &strengths }, &xyz, true, &mut direct);
                let error = if direct.iter().all(|&x| x == 0.0) {
                    found.iter().fold(0.0, |m: f64, x| m.max(x.abs()))
                } else {
                    difference(&found, &direct)
                };
                assert!(error < bound, "{} {} p {order}: {error:e}", kernel.name(), kind.name());
                assert!(error < last.max(1e-13), "{} {} p {order}: {error:e}", kernel.name(), kind.name());
                last = error;
            }
        }
    }
}
