//! The properties of the testkit for every family, and tests of single parts of the expansion.

mod convolution;
mod far;

use super::*;
use crate::{Laplace, LaplaceDipole, LaplaceMixed, Stokes, StokesPressure, Stresslet, Yukawa};
use convolution::Convolution;
use fmm_traits::testkit::expansion::{Expected, SIDES, check_expansion, difference};
use fmm_traits::{Cube, Error, Expansion, Family, Kernel, Kernels, Member, Outputs, Traced};

/// The kernels of those `outputs` that a family has.
fn kernels_of(family: &impl Family, outputs: &[Outputs]) -> Kernels {
    let has = |o: &&Outputs| family.outputs().contains(**o);
    Kernels::of(family, outputs.iter().filter(has).fold(Outputs::empty(), |all, &o| all | o)).unwrap()
}

/// The kernels of all outputs of a family without derivatives.
fn kernels(family: &impl Family) -> Kernels {
    kernels_of(family, &[Outputs::POTENTIAL, Outputs::PRESSURE])
}

fn check<F: Family, T: Scalar>(family: F, orders: &[usize], rate: f64, first: f64, floor: f64) {
    let homogeneous = F::Equivalent::dilated(&family.parameters(), 1.0).is_none();
    let expected = Expected { orders: orders.to_vec(), rate, first, floor, homogeneous };
    let kernels = kernels(&family);
    check_expansion::<T, _>(family.name(), |p| EquivalentExpansion::new(&kernels, p, &SIDES), &expected);
}

#[test]
fn laplace_f64() {
    check::<_, f64>(Laplace, &[3, 4, 5, 6, 7, 8, 9, 10, 12, 14], 5.0, 5e-3, 2e-12);
}

#[test]
fn laplace_f32() {
    check::<_, f32>(Laplace, &[3, 4, 5, 6, 7, 8, 10, 12], 5.0, 5e-3, 5e-6);
}

#[test]
fn laplace_gradient() {
    let expected = Expected { orders: vec![3, 4, 5, 6, 7, 8], rate: 5.0, first: 0.1, floor: 1e-12, homogeneous: true };
    let kernels = Kernels::of(&Laplace, Outputs::POTENTIAL | Outputs::GRADIENT).unwrap();
    check_expansion::<f64, _>("gradient", |p| EquivalentExpansion::new(&kernels, p, &SIDES), &expected);
}

#[test]
fn dipoles() {
    check::<_, f64>(LaplaceDipole, &[3, 4, 5, 6, 7, 8], 4.0, 0.6, 1e-12);
    // Charges of either sign represent a dipole. The rounding of the charges shows beside their small sum, and more so
    // at a distance.
    check::<_, f32>(LaplaceMixed, &[3, 4, 5, 6, 7, 8], 4.0, 0.6, 5e-4);
}

#[test]
fn yukawa() {
    check::<_, f64>(Yukawa { kappa: 0.5 }, &[3, 4, 5, 6, 7, 8], 5.0, 0.05, 1e-12);
    check::<_, f32>(Yukawa { kappa: 0.5 }, &[3, 4, 5, 6, 7], 5.0, 0.05, 1e-5);
    check::<_, f64>(Yukawa { kappa: 0.0 }, &[3, 5, 7], 5.0, 5e-3, 1e-12);
}

#[test]
fn stokes() {
    check::<_, f64>(Stokes { mu: 0.7 }, &[3, 4, 5, 6, 7, 8], 3.0, 1.0, 1e-12);
    check::<_, f32>(Stokes { mu: 0.7 }, &[3, 4, 5, 6, 7], 3.0, 1.0, 1e-5);
}

/// The function of a kernel of one strength.
macro_rules! scalar_kernel {
    ($name:ident, $degree:expr, |$r2:ident| $value:expr) => {
        #[derive(Clone, Debug)]
        struct $name;
        impl Kernel for $name {
            const NAME: &'static str = stringify!($name);
            fn eval<V: fmm_traits::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
                let $r2 = fmm_traits::lane::dot(r, r);
                u[0] = q[0] * $value;
            }
            fn value_degree(_: usize) -> i32 {
                $degree
            }
        }
    };
}
scalar_kernel!(InverseSquare, -2, |r2| r2.rsqrt() * r2.rsqrt());
scalar_kernel!(Distance, 1, |r2| r2 * r2.rsqrt());

fn operators<F: Family>(params: &[f64], lattice: Lattice) -> Result<Operators<f64>, Error> {
    Operators::build(&Members::of::<F>(), params, lattice)
}

/// A kernel from text, with a length that operators must find in it.
#[test]
fn a_kernel_made_at_run_time() {
    let kernels = Traced::expression("exp(-r/2)/r").unwrap().kernels(Outputs::POTENTIAL).unwrap();
    let expected =
        Expected { orders: vec![3, 4, 5, 6, 7, 8], rate: 5.0, first: 0.05, floor: 1e-12, homogeneous: false };
    check_expansion::<f64, _>("text", |p| EquivalentExpansion::new(&kernels, p, &SIDES), &expected);
}

/// Kernels that solve no elliptic equation of second order need densities in the volume.
#[test]
fn volumes_carry_any_kernel() {
    fn check<F: Family, T: Scalar>(family: F, rate: f64, first: f64, floor: f64) {
        let expected = Expected { orders: (4..=8).collect(), rate, first, floor, homogeneous: true };
        let kernels = kernels(&family);
        let of = |p| EquivalentExpansion::new(&kernels, Lattice::volume(p), &SIDES);
        check_expansion::<T, _>(family.name(), of, &expected);
    }
    check::<_, f64>(InverseSquare, 4.0, 5e-2, 1e-11);
    check::<_, f32>(InverseSquare, 4.0, 5e-2, 1e-4);
    check::<_, f64>(Distance, 4.0, 5e-3, 1e-11);
    check::<_, f64>(Laplace, 4.0, 5e-3, 1e-11);
    check::<_, f64>(LaplaceDipole, 4.0, 1.0, 1e-10);
    // On a surface the error stalls.
    let cubes = [[0.5; 3], [2.5, 0.5, 0.5]].map(|center| Cube { center, side: 1.0 });
    let error = |lattice: Lattice| {
        let x = EquivalentExpansion::<f64>::new(&kernels(&InverseSquare), lattice, &[1.0]).unwrap();
        let source = [[0.3, 0.9, 0.5]];
        let mut row = vec![0.0; x.multipole_len()];
        x.p2m(cubes[0], fmm_traits::Cloud { xyz: &source, strengths: &[1.0] }, &mut row);
        x.finish_multipole(cubes[0], &mut row);
        let (target, mut values) = ([2.1, 0.4, 0.6], [0.0]);
        x.m2p(cubes[0], &row, &[target], &mut values);
        let r2: f64 = (0..3).map(|a| (target[a] - source[0][a]) * (target[a] - source[0][a])).sum();
        (values[0] * r2 - 1.0).abs()
    };
    let [surface, volume] = [Lattice::surface(8), Lattice::volume(8)].map(error);
    assert!(surface > 1e-5 && volume < 2e-6, "{surface:e} {volume:e}");
}

/// Kernels of the plane: `$value` of r² and of the unit of length, which is the parameter.
macro_rules! kernel_of_the_plane {
    ($name:ident, |$r2:ident, $unit:ident| $value:expr) => {
        #[derive(Clone, Debug)]
        struct $name;
        impl Kernel for $name {
            const NAME: &'static str = stringify!($name);
            const DIM: usize = 2;
            fn eval<V: fmm_traits::Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
                let ($r2, $unit) = (r[0] * r[0] + r[1] * r[1], p[0]);
                u[0] = q[0] * V::select($r2.eq(V::splat(0.0)), V::splat(0.0), $value);
            }
            fn value_degree(_: usize) -> i32 {
                0
            }
            fn parameters(&self) -> Vec<f64> {
                vec![1.0]
            }
            fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
                Some(vec![params[0] * h])
            }
        }
    };
}
kernel_of_the_plane!(Log, |r2, unit| (r2 * unit * unit).ln() * V::splat(-0.5));
kernel_of_the_plane!(Screened, |r2, unit| (r2.sqrt() * unit).bessel_k0());
kernel_of_the_plane!(Bump, |r2, unit| (-(r2 * unit * unit) * V::splat(0.01)).exp());

/// Every operator of a lattice of one layer.
#[test]
fn the_plane() {
    fn check<F: Family, T: Scalar>(family: F, fill: Fill, orders: &[usize], rate: f64, first: f64, floor: f64) {
        let expected = Expected { orders: orders.to_vec(), rate, first, floor, homogeneous: false };
        let kernels = kernels(&family);
        let of = |p| EquivalentExpansion::new(&kernels, Lattice { order: p, fill, dim: 2 }, &SIDES);
        check_expansion::<T, _>(family.name(), of, &expected);
    }
    check::<_, f64>(Log, Fill::Surface, &[4, 6, 8, 10, 12], 4.0, 1e-2, 1e-11);
    check::<_, f32>(Log, Fill::Surface, &[4, 5, 6], 4.0, 1e-2, 1e-4);
    check::<_, f64>(Screened, Fill::Surface, &[4, 6, 8, 10, 12], 4.0, 1e-1, 1e-10);
    check::<_, f64>(Bump, Fill::Volume, &[4, 6, 8, 10], 3.0, 1.0, 1e-7);
    check::<_, f64>(Log, Fill::Volume, &[4, 6, 8, 10], 3.0, 1e-1, 1e-9);
}

#[test]
fn stokes_with_pressure() {
    check::<_, f64>(StokesPressure { mu: 0.7 }, &[3, 4, 5, 6, 7], 3.0, 1.0, 1e-12);
    check::<_, f64>(Stresslet { mu: 0.7 }, &[4, 5, 6, 7], 3.0, 1.0, 1e-12);
}

/// M2L through Fourier space equals the kernel between the surfaces, for every distant pair in a cube of 7³ boxes.
fn fourier_is_dense<F: Family>(family: F, p: usize, tolerance: f64) {
    let kernels = kernels(&family);
    let x = EquivalentExpansion::<f64>::new(&kernels, p, &[0.5]).unwrap();
    let cube = |anchor: [i32; 3]| Cube { center: anchor.map(|i| 0.5 * i as f64), side: 0.5 };
    let from: Vec<f64> = (0..x.multipole_len()).map(|i| (7.3 * i as f64).sin()).collect();
    let convolution = Convolution::new(&kernels.members.equivalent, &x.operators(cube([0; 3])).params, p);
    for (o, offset) in spectra::offsets().enumerate() {
        let at = [5, -2, 3];
        let source: [i32; 3] = std::array::from_fn(|a| at[a] - offset[a]);
        let (mut dense, mut fourier) = (vec![0.0; x.local_len()], vec![0.0; x.local_len()]);
        x.m2l(cube(at), cube(source), &from, &mut dense);
        convolution.apply(o, &from, &mut fourier);
        let d = difference(&fourier, &dense, 1);
        assert!(d < tolerance, "{} p {p} offset {offset:?}: {d:e}", family.name());
    }
}

#[test]
fn fourier_m2l_is_dense_m2l() {
    for p in [3, 4, 6] {
        fourier_is_dense(Laplace, p, 1e-13);
    }
    fourier_is_dense(Yukawa { kappa: 3.0 }, 4, 1e-12);
    fourier_is_dense(Stokes { mu: 1.0 }, 4, 1e-13);
    fourier_is_dense(StokesPressure { mu: 1.0 }, 3, 1e-13);
}

/// A multipole enters the local of a larger and of a smaller box: the field there is that of the sources.
fn m2l_reaches_other_levels<F: Family>(family: F) {
    let x = EquivalentExpansion::<f64>::new(&kernels(&family), 6, &SIDES).unwrap();
    let large = Cube { center: [0.5, -0.25, 1.0], side: 2.0 };
    let small = Cube { center: [4.75, -1.0, 1.25], side: 0.5 };
    for (at, source) in [(large, small), (small, large)] {
        assert!(x.admissible_m2l(at, source));
        let inside = |of: Cube, x: [f64; 3]| -> [f64; 3] { std::array::from_fn(|a| of.center[a] + of.side * x[a]) };
        let sources = [[0.4, -0.3, 0.2], [-0.1, 0.45, -0.35]].map(|y| inside(source, y));
        let targets = [[-0.4, 0.2, 0.1], [0.3, 0.4, -0.45]].map(|y| inside(at, y));
        let strengths: Vec<f64> = (0..2 * x.strengths()).map(|i| 1.0 + 0.3 * i as f64).collect();
        let cloud = fmm_traits::Cloud { xyz: &sources, strengths: &strengths };
        let (mut multipole, mut local) = (vec![0.0; x.multipole_len()], vec![0.0; x.local_len()]);
        x.p2m(source, cloud, &mut multipole);
        x.finish_multipole(source, &mut multipole);
        x.m2l(at, source, &multipole, &mut local);
        x.finish_local(at, &mut local);
        let (mut found, mut direct) = (vec![0.0; 2 * x.values()], vec![0.0; 2 * x.values()]);
        x.l2p(at, &local, &targets, &mut found);
        x.p2p(cloud, &targets, false, &mut direct);
        let d = difference(&found, &direct, x.values());
        assert!(d < 1e-3, "{} into side {}: {d:e}", family.name(), at.side);
    }
}

#[test]
fn m2l_between_levels_is_the_field_of_the_sources() {
    m2l_reaches_other_levels(Laplace);
    m2l_reaches_other_levels(LaplaceDipole);
    m2l_reaches_other_levels(Yukawa { kappa: 0.5 });
    m2l_reaches_other_levels(StokesPressure { mu: 0.7 });
}

/// Laplace, not marked reciprocal: upward and downward operators share nothing.
#[derive(Clone, Debug)]
struct OneWay;
impl Kernel for OneWay {
    const NAME: &'static str = "one_way";
    const RECIPROCAL: bool = false;
    fn eval<V: fmm_traits::Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        Laplace::eval(p, r, q, u);
    }
    fn value_degree(i: usize) -> i32 {
        Laplace::value_degree(i)
    }
}

/// A kernel that is odd in r but claims to be reciprocal.
#[derive(Clone, Debug)]
struct Odd;
impl Kernel for Odd {
    const NAME: &'static str = "odd";
    fn eval<V: fmm_traits::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let w = fmm_traits::lane::dot(r, r).rsqrt();
        u[0] = q[0] * r[0] * w * w * w;
    }
    fn value_degree(_: usize) -> i32 {
        -2
    }
}

#[test]
fn a_kernel_that_is_not_reciprocal_must_say_so() {
    let refused = operators::<Odd>(&[], Lattice::surface(4));
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

fn scaled(factor: f64, a: &Matrix<f64>) -> Matrix<f64> {
    Matrix { data: a.data.iter().map(|x| factor * x).collect(), ..*a }
}

/// Largest difference of two entries, in units of the largest entry of `b`.
fn deviation(a: &Matrix<f64>, b: &Matrix<f64>) -> f64 {
    assert_eq!((a.rows, a.cols), (b.rows, b.cols));
    let largest = |x: &mut dyn Iterator<Item = f64>| x.fold(0.0, |m: f64, x| m.max(x.abs()));
    largest(&mut a.data.iter().zip(&b.data).map(|(a, b)| a - b)) / largest(&mut b.data.iter().copied())
}

/// exp(−A·r²) on one box.
#[derive(Clone, Debug)]
struct Narrow<const A: u32>;
impl<const A: u32> Kernel for Narrow<A> {
    const NAME: &'static str = "narrow";
    fn eval<V: fmm_traits::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        u[0] = q[0] * (V::splat(-f64::from(A)) * fmm_traits::lane::dot(r, r)).exp();
    }
    fn value_degree(_: usize) -> i32 {
        0
    }
}

/// Kernels so narrow that most singular values are rounding alone.
#[test]
fn narrow_kernels_have_operators() {
    fn check<const A: u32>() {
        for lattice in [4, 6, 8].map(Lattice::volume).into_iter().chain([4, 6].map(Lattice::surface)) {
            let operators = operators::<Narrow<A>>(&[], lattice).unwrap();
            assert!(operators.matrices().flat_map(|m| &m.data).all(|v| v.is_finite()), "{A} {lattice:?}");
        }
    }
    check::<40>();
    check::<60>();
    check::<200>();
    check::<700>();
}

#[test]
fn shared_downward_operators_equal_separate_ones() {
    let lattice = Lattice::surface(5);
    let (shared, separate) = (operators::<Laplace>(&[], lattice).unwrap(), operators::<OneWay>(&[], lattice).unwrap());
    assert!(separate.bytes() > 3 * shared.bytes() / 2);
    let dense = [&shared, &separate].map(|o| (o.l2l_factor, Dense::of(o)));
    for octant in 0..8 {
        assert_eq!(dense[0].1.m2m[octant], dense[1].1.m2m[octant]);
        let [a, b] = dense.each_ref().map(|(factor, d)| scaled(*factor, &d.l2l[octant]));
        assert!(deviation(&b, &a) <= 1e-14);
    }
    // Pseudo-inverses are ill-conditioned, so compare the fields that they reproduce, not their entries.
    let check: Vec<f64> = (0..shared.points).map(|i| (0.1 * i as f64).cos()).collect();
    let check = Matrix { rows: check.len(), cols: 1, data: check };
    let [a, b] = dense.each_ref().map(|(factor, d)| {
        let [v, u] = &d.downward;
        scaled(*factor, &d.l2l[3].times(&v.times(&u.times(&check))))
    });
    assert!(deviation(&b, &a) < 1e-9);
    check_expansion::<f64, _>(
        "one_way",
        |p| EquivalentExpansion::new(&kernels(&OneWay), p, &SIDES),
        &Expected { orders: vec![3, 4, 5, 6], rate: 5.0, first: 5e-3, floor: 1e-12, homogeneous: true },
    );
}

/// A kernel that couples x and y, so that only z may be reflected, and that is not even in r.
#[derive(Clone, Debug)]
struct Lopsided;
impl Kernel for Lopsided {
    const NAME: &'static str = "lopsided";
    const RECIPROCAL: bool = false;
    fn eval<V: fmm_traits::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let w = (fmm_traits::lane::dot(r, r) + V::splat(0.5) * r[0] * r[1]).rsqrt();
        u[0] = q[0] * (w + V::splat(0.3) * r[0] * w * w * w);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
}

/// A kernel from three strengths to two values, each with its own parity.
#[derive(Clone, Debug)]
struct TwoOfThree;
impl Kernel for TwoOfThree {
    const NAME: &'static str = "two_of_three";
    const VALUES: usize = 2;
    const STRENGTHS: usize = 3;
    const RECIPROCAL: bool = false;
    fn eval<V: fmm_traits::Lane>(_: &[V], r: &[V], q: &[V], u: &mut [V]) {
        let w = fmm_traits::lane::dot(r, r).rsqrt();
        let along = fmm_traits::lane::dot(q, r);
        u[0] = along * w * w * w;
        u[1] = along * w * w * w * w * w;
    }
    fn value_degree(i: usize) -> i32 {
        [-2, -4][i]
    }
}

/// The blocks by parity together are the kernel between the surfaces. Solves reproduce check values.
fn blocks_are_whole<F: Family>(family: F, lattice: Lattice) {
    let params = family.parameters();
    let operators = operators::<F>(&params, lattice).unwrap();
    let dense = Dense::of(&operators);
    let (inner, outer) = (lattice.inner(), lattice.outer());
    let near = |a: &Matrix<f64>, b: &Matrix<f64>, what: &str| {
        let d = deviation(a, b);
        assert!(d < 1e-13, "{} {lattice:?} {what}: {d:e}", family.name());
    };
    for octant in 0..8 {
        let child = super::operators::in_child(&inner, octant);
        let up = matrix::kernel_matrix(&Member::of::<F::Equivalent>(), &params, &outer, &child, |_, j| {
            (F::Equivalent::strength_degree(j) as f64).exp2()
        });
        near(&dense.m2m[octant], &up, "M2M");
        let down = matrix::kernel_matrix(&Member::of::<F::Equivalent>(), &params, &child, &outer, |i, _| {
            (F::Equivalent::value_degree(i) as f64).exp2() / operators.l2l_factor
        });
        near(&dense.l2l[octant], &down, "L2L");
    }
    let field = matrix::kernel_matrix(&Member::of::<F::Equivalent>(), &params, &outer, &inner, |_, _| 1.0);
    let [v, u] = &dense.upward;
    let d = deviation(&field.times(&v.times(&u.times(&field))), &field);
    // In a volume, singular values are dropped to the error of the order.
    let digits = if lattice.fill == Fill::Surface { lattice.order } else { lattice.order - 2 };
    assert!(d < 10f64.powi(-(digits as i32)), "{} {lattice:?}: {d:e}", family.name());
}

#[test]
fn blocks_by_parity_are_the_whole_operators() {
    for p in [3, 4, 5].map(Lattice::surface).into_iter().chain([3, 4].map(Lattice::volume)) {
        blocks_are_whole(Laplace, p);
        blocks_are_whole(Lopsided, p);
        blocks_are_whole(OneWay, p);
        blocks_are_whole(TwoOfThree, p);
        blocks_are_whole(Yukawa { kappa: 0.7 }, p);
        blocks_are_whole(Stokes { mu: 0.7 }, p);
        blocks_are_whole(StokesPressure { mu: 0.7 }, p);
    }
}

#[test]
fn bad_orders_and_kernels_are_errors() {
    let error = |lattice: Lattice| operators::<Laplace>(&[], lattice).unwrap_err();
    let (min, max) = (lattice::MIN_ORDER, lattice::MAX_ORDER);
    assert_eq!(error(Lattice::surface(2)), Error::Order { order: 2, min, max });
    assert_eq!(error(Lattice::surface(99)), Error::Order { order: 99, min, max });
    assert_eq!(error(Lattice::volume(13)), Error::Order { order: 13, min, max: lattice::MAX_VOLUME_ORDER });
    let nan = operators::<Yukawa>(&[f64::NAN], Lattice::surface(4));
    assert!(matches!(nan, Err(Error::Numerical { .. })), "{nan:?}");
    let no_sides = EquivalentExpansion::<f64>::new(&kernels(&Laplace), 4, &[]).map(|_| ());
    assert!(matches!(no_sides, Err(Error::Shape { array: "sides", found: 0, .. })), "{no_sides:?}");
}

/// A screened kernel far beyond its range has no far field: its operators are zero, not NaN.
#[test]
fn vanishing_kernels_have_rank_zero() {
    for kappa in [60.0, 150.0, 200.0, 300.0, 600.0, 1e3, 1e6] {
        let mut value = [f32::NAN];
        Yukawa::eval(&[kappa as f32], &[2.1f32, -0.4, 0.0], &[1.0], &mut value);
        assert!((0.0..1e-20).contains(&value[0]), "kappa {kappa}: {value:?}");
        let x = EquivalentExpansion::<f32>::new(&kernels(&Yukawa { kappa }), 4, &[1.0]).unwrap();
        let cube = Cube { center: [0.5; 3], side: 1.0 };
        let finite = |row: &[f32]| row.iter().all(|v| v.is_finite());
        let operators = x.operators(cube);
        assert!(operators.matrices().flat_map(|m| &m.data).all(|v| v.is_finite()), "kappa {kappa}");
        let mut row = vec![0.0; x.multipole_len()];
        x.p2m(cube, fmm_traits::Cloud { xyz: &[[0.3, 0.9, 0.5]], strengths: &[1.0] }, &mut row);
        x.finish_multipole(cube, &mut row);
        let mut values = [0.0];
        x.m2p(cube, &row, &[[2.6, 0.5, 0.5]], &mut values);
        assert!(finite(&row) && finite(&values) && values[0].abs() < 1e-20, "kappa {kappa}: {values:?}");
    }
}

#[test]
fn cache_finds_exactly_what_was_stored() {
    let folder = std::env::temp_dir().join(format!("fmm-operators-{}", std::process::id()));
    let disk = Some(folder.as_path());
    let files = || std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect::<Vec<_>>();
    let yukawa = |kappa: f64, p| {
        cache::operators::<f32>(&Members::of::<Yukawa>(), &[kappa], 0.5, Lattice::surface(p), disk).unwrap()
    };

    let built = yukawa(1.25, 4);
    assert!(std::sync::Arc::ptr_eq(&built, &yukawa(1.25, 4)), "memory");
    assert_eq!(files().len(), 1);
    cache::clear();
    let stored = yukawa(1.25, 4);
    assert!(!std::sync::Arc::ptr_eq(&built, &stored));
    assert_eq!(built, stored);
    let other = yukawa(1.25f64.next_up(), 4);
    assert_ne!(built.params, other.params);
    assert_eq!(files().len(), 2, "the next parameter is another file");
    cache::operators::<f64>(&Members::of::<Yukawa>(), &[1.25], 0.5, Lattice::surface(4), disk).unwrap();
    cache::operators::<f32>(&Members::of::<Yukawa>(), &[1.25], 0.25, Lattice::surface(4), disk).unwrap();
    cache::operators::<f32>(&Members::of::<Stresslet>(), &[1.0], 0.25, Lattice::surface(3), disk).unwrap();
    cache::operators::<f32>(&Members::of::<Yukawa>(), &[1.25], 0.5, Lattice::volume(4), disk).unwrap();
    yukawa(1.25, 5);
    assert_eq!(files().len(), 7);

    // A damaged file, or the file of another set under this set's name, leads to the right operators again.
    cache::clear();
    let all: Vec<_> = files().into_iter().map(|f| (std::fs::read(&f).unwrap(), f)).collect();
    for (bytes, file) in &all {
        for (other, _) in &all {
            std::fs::write(file, other).unwrap();
            cache::clear();
            assert_eq!(built, yukawa(1.25, 4));
        }
        for cut in [0, 1, 7, 8, 16, 40, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(file, &bytes[..cut]).unwrap();
            cache::clear();
            assert_eq!(built, yukawa(1.25, 4), "cut at {cut}");
        }
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 3] ^= 4;
        std::fs::write(file, &flipped).unwrap();
        cache::clear();
        assert_eq!(built, yukawa(1.25, 4));
    }
    std::fs::remove_dir_all(&folder).unwrap();
    cache::clear();
    let nowhere = cache::operators::<f64>(
        &Members::of::<Laplace>(),
        &[],
        1.0,
        Lattice::surface(3),
        Some(std::path::Path::new("/dev/null/none")),
    );
    assert!(nowhere.is_ok());
}

#[test]
fn the_fields_are_valid_where_the_lists_use_them() {
    use expansion::{m2l_valid, m2p_valid, p2l_valid};
    let cube = |anchor: [i32; 3], side: f64| Cube { center: anchor.map(|i| (i as f64 + 0.5) * side), side };
    let source = cube([0, 0, 0], 1.0);
    for offset in spectra::offsets() {
        assert!(m2l_valid(cube(offset, 1.0), source), "{offset:?}");
    }
    assert!(!m2l_valid(cube([1, 1, 1], 1.0), source));
    // W edge: a leaf of twice the side, one small box away. X edge: the mirror image.
    let coarse = cube([1, 0, 0], 2.0);
    assert!(m2p_valid(coarse, source) && p2l_valid(source, coarse));
    assert!(!m2p_valid(cube([1, 0, 0], 1.0), source) && !p2l_valid(source, cube([1, 0, 0], 1.0)));
}
