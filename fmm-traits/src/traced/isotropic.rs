//! Scalar kernels that are radial in other coordinates: K(r) = f(|L·r|) with a linear map L. An example is the kernel
//! 1/√(rᵀMr) of anisotropic diffusion, M = LᵀL. Its tree and its expansions belong into the coordinates y = L·x, where
//! it is as cheap as 1/r.
//!
//! Nobody states L. With q = rᵀMr the gradient of K(r) = g(q) is 2·g′(q)·M·r, so gradients along the axes are the columns
//! of M up to factors, and gradients along diagonals show the factors. L is the Cholesky factor of M with det L = 1. It
//! is found again in its own coordinates, where M is nearly I, until rounding is all that is left. Then f(|L·r|) must
//! be K(r) in many directions at many distances.

use super::radial::Radial;
use super::{Base, Symbol, Traced};
use crate::dual::Dual;
use crate::lane::Lane;
use crate::linear_map::LinearMap;
use crate::record::record_with;
use crate::tape::{Op, Tape};
use std::convert::Infallible;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

/// Distances at which L is looked for, the first one that gives finite numbers. At small distances no exponential
/// underflows along any axis.
const DISTANCES: [f64; 5] = [1e-2, 1.0, 1e-4, 1e-6, 1e2];
/// How often L is found again in its own coordinates.
const ROUNDS: usize = 3;
/// Directions in which f(|L·r|) is compared with K(r).
const DIRECTIONS: [[f64; 3]; 6] =
    [[0.9, -1.3, 0.7], [-0.31, 0.77, 1.1], [0.02, 0.47, -0.2], [0.5, 0.5, 0.03], [-0.8, 0.05, -0.6], [0.1, -0.9, 0.3]];
/// Largest relative difference there. It is far above rounding, since exponentials multiply the rounding of their
/// arguments, and far below the difference to any other kernel.
const LARGEST_DIFFERENCE: f64 = 1e-10;

impl Traced {
    /// The radial kernel f and the map L with K(r) = f(|L·r|) for this kernel K. `None` if this kernel is radial as it
    /// is, or in no coordinates; lies in the plane; has several strengths, values or attributes; has branches; or has parameters without
    /// values.
    pub fn isotropic(&self) -> Option<(Traced, LinearMap)> {
        let Base::General(tape) = &*self.body else { return None };
        let scalar = self.strengths == 1 && tape.values().len() == 1 && self.attributes.is_empty();
        if !scalar || self.dim != 3 || tape.any(|op| op == Op::Select) {
            return None;
        }
        let params = self.parameter_values().ok()?;
        let map = found(tape, &params)?;
        let f = along(tape, map.inverse_of_upper().apply([1.0, 0.0, 0.0]));
        if map == LinearMap::IDENTITY || !agrees(tape, &f, &params, &map) {
            return None;
        }
        let mut kernel = self.clone().changed();
        kernel.body = Arc::new(Base::Radial { f, densities: 1 });
        Some((kernel, map))
    }
}

/// The map in whose coordinates the gradients of a kernel look radial.
fn found(tape: &Tape, params: &[f64]) -> Option<LinearMap> {
    let mut map = DISTANCES.iter().find_map(|&t| factor(tape, params, &LinearMap::IDENTITY, t).map(|l| (l, t)))?;
    for _ in 1..ROUNDS {
        map.0 = factor(tape, params, &map.0.inverse_of_upper(), map.1)?.after(&map.0);
    }
    let mut map = map.0;
    let unit = (map.rows[0][0] * map.rows[1][1] * map.rows[2][2]).cbrt();
    map.rows.iter_mut().flatten().for_each(|x| *x /= unit);
    let deviation = (0..9).map(|k| (map.rows[k / 3][k % 3] - LinearMap::IDENTITY.rows[k / 3][k % 3]).abs());
    Some(if deviation.fold(0.0, f64::max) < 1e-14 { LinearMap::IDENTITY } else { map })
}

/// The Cholesky factor of M for the kernel K(`inverse`·y), from its gradients at the distance `t`. M has M₀₀ = 1.
fn factor(tape: &Tape, params: &[f64], inverse: &LinearMap, t: f64) -> Option<LinearMap> {
    let constant = |x: &[f64]| x.iter().map(|&x| Dual::constant(x)).collect::<Vec<_>>();
    let params = constant(params);
    let unit_gradient = |y: [f64; 3]| {
        let y: [Dual<f64>; 3] = std::array::from_fn(|a| Dual::variable(t * y[a], a));
        let r = inverse.rows.map(|row| (0..3).fold(Dual::constant(0.0), |sum, a| sum + Dual::constant(row[a]) * y[a]));
        let mut u = [Dual::constant(0.0)];
        tape.evaluate(&params, &r, &constant(&[1.0]), &mut u);
        let gradient = u[0].gradient();
        let size = gradient.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        (size.is_normal() && gradient.iter().all(|x| x.is_finite())).then(|| gradient.map(|x| x / size))
    };
    let g = [unit_gradient([1.0, 0.0, 0.0])?, unit_gradient([0.0, 1.0, 0.0])?, unit_gradient([0.0, 0.0, 1.0])?];
    let mut columns = [g[0].map(|x| x / g[0][0]); 3];
    for (k, diagonal) in [(1, [1.0, 1.0, 0.0]), (2, [1.0, 0.0, 1.0])] {
        // M·e₀ + c·g[k] is parallel to the gradient along the diagonal.
        let along = unit_gradient(diagonal)?;
        let (first, second) = (cross(columns[0], along), cross(g[k], along));
        let c = -dot(first, second) / dot(second, second);
        columns[k] = g[k].map(|x| c * x);
    }
    let m = columns;
    let asymmetric = |a: usize, b: usize| (m[a][b] - m[b][a]).powi(2) > 1e-12 * m[a][a].abs() * m[b][b].abs();
    if asymmetric(0, 1) || asymmetric(0, 2) || asymmetric(1, 2) {
        return None;
    }
    let mean = |a: usize, b: usize| 0.5 * (m[a][b] + m[b][a]);
    let root = |x: f64| (x > 0.0 && x.is_finite()).then(|| x.sqrt());
    let xx = root(m[0][0])?;
    let (xy, xz) = (mean(0, 1) / xx, mean(0, 2) / xx);
    let yy = root(m[1][1] - xy * xy)?;
    let yz = (mean(1, 2) - xy * xz) / yy;
    let zz = root(m[2][2] - xz * xz - yz * yz)?;
    Some(LinearMap { rows: [[xx, xy, xz], [0.0, yy, yz], [0.0, 0.0, zz]] })
}

/// Whether f(|L·r|) is the kernel.
fn agrees(tape: &Tape, f: &Radial, params: &[f64], map: &LinearMap) -> bool {
    let inverse = map.inverse_of_upper();
    let mut counted = 0;
    let agrees = (-12..=4).all(|k| {
        DIRECTIONS.iter().all(|d| {
            let y = d.map(|x| x * 3.7f64.powi(k));
            let (mut kernel, mut radial) = ([0.0], [0.0]);
            tape.evaluate(params, &inverse.apply(y), &[1.0], &mut kernel);
            f.value.evaluate(params, &[dot(y, y)], &[], &mut radial);
            // A kernel that underflows or overflows says nothing.
            let says = kernel[0].is_normal() && kernel[0].abs() > 1e-250;
            counted += usize::from(says);
            !says || (kernel[0] - radial[0]).abs() <= LARGEST_DIFFERENCE * kernel[0].abs()
        })
    });
    agrees && counted > 2 * DIRECTIONS.len()
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn cross(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

/// The kernel at √s·`direction`, as a function of s.
fn along(tape: &Tape, direction: [f64; 3]) -> Radial {
    let recorded = record_with(1, |p, _, _| {
        let p: Vec<Power> = p.iter().map(|&factor| Power { factor, power: 0 }).collect();
        let r = direction.map(|c| Power { factor: Symbol::splat(c), power: 1 });
        let mut u = [Power::splat(0.0)];
        tape.evaluate(&p, &r, &[Power::splat(1.0)], &mut u);
        Ok::<_, Infallible>(vec![u[0].symbol()])
    });
    match recorded {
        Ok(value) => Radial { value, slope: None, curvature: None, laplacians: Vec::new() },
    }
}

/// c·rᵏ for r = √s, where s is the coordinate of the tape. Products, quotients, roots, and sums of equal powers have this form again, so that a quadratic form
/// becomes c·s and its root √c·r. All other functions are taken of the number itself.
#[derive(Clone, Copy, Debug)]
struct Power {
    factor: Symbol,
    power: i32,
}

impl Power {
    /// The number itself.
    fn symbol(self) -> Symbol {
        let count = self.power.unsigned_abs() as usize;
        let s = Symbol::coordinate(0);
        let root = if self.power < 0 { s.rsqrt() } else { s.sqrt() };
        let square = if self.power < 0 { root * root } else { s };
        let whole = (0..count / 2).fold(self.factor, |product, _| product * square);
        if count % 2 == 1 { whole * root } else { whole }
    }
    fn is_zero(self) -> bool {
        self.factor.known() == Some(0.0)
    }
    /// A function of the number.
    fn of(self, f: impl FnOnce(Symbol) -> Symbol) -> Self {
        Power { factor: f(self.symbol()), power: 0 }
    }
}

impl Add for Power {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        match (self.is_zero(), o.is_zero()) {
            (true, _) => o,
            (_, true) => self,
            _ if self.power == o.power => Power { factor: self.factor + o.factor, power: self.power },
            _ => self.of(|x| x + o.symbol()),
        }
    }
}
impl Sub for Power {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self + -o
    }
}
impl Mul for Power {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Power { factor: self.factor * o.factor, power: self.power + o.power }
    }
}
impl Div for Power {
    type Output = Self;
    fn div(self, o: Self) -> Self {
        Power { factor: self.factor / o.factor, power: self.power - o.power }
    }
}
impl Neg for Power {
    type Output = Self;
    fn neg(self) -> Self {
        Power { factor: -self.factor, power: self.power }
    }
}

/// Functions of the number itself.
macro_rules! functions {
    ($($name:ident),*) => {$(
        fn $name(self) -> Self {
            self.of(Lane::$name)
        }
    )*};
}
/// Comparisons of the numbers themselves.
macro_rules! comparisons {
    ($($name:ident),*) => {$(
        fn $name(self, o: Self) -> Self::Mask {
            self.symbol().$name(o.symbol())
        }
    )*};
}

impl Lane for Power {
    type Derivative = Self;
    type Mask = <Symbol as Lane>::Mask;
    fn splat(x: f64) -> Self {
        Power { factor: Symbol::splat(x), power: 0 }
    }
    fn mul_add(self, a: Self, b: Self) -> Self {
        self * a + b
    }
    fn sqrt(self) -> Self {
        match self.power % 2 {
            0 => Power { factor: self.factor.sqrt(), power: self.power / 2 },
            _ => self.of(Lane::sqrt),
        }
    }
    fn rsqrt(self) -> Self {
        match self.power % 2 {
            0 => Power { factor: self.factor.rsqrt(), power: -self.power / 2 },
            _ => self.of(Lane::rsqrt),
        }
    }
    functions!(exp, ln, sin, cos, erf, bessel_k0, bessel_k1);
    comparisons!(lt, le, eq);
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        a.of(|a| Symbol::select(mask, a, b.symbol()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outputs, SelfInteraction};

    /// √(rᵀMr) in text, for a matrix M with condition number 10⁴ or so, whose axes are not those of the coordinates.
    const LENGTH: &str = "d = sqrt(x*(10000*x + 2*8000*y + 2*200*z) + y*(6500*y + 2*150*z) + 6*z^2)\nvalue ";

    fn kernel(value: &str) -> Traced {
        Traced::parse(&format!("name k\nparameter l = 0.4\n{LENGTH}{value}")).unwrap()
    }

    #[test]
    fn kernels_of_a_quadratic_form_are_radial_in_their_coordinates() {
        let all = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        for value in ["1/d", "exp(-d^2/(2*l^2))", "(1 + d/l)*exp(-d/l)", "sqrt(d*d + l^2)", "ln(d)", "1/d^6", "d^3"] {
            let original = kernel(value);
            let (radial, map) = original.isotropic().expect(value);
            assert!(radial.isotropic().is_none(), "once is enough");
            // Derivatives of (1 + d/l)·exp(−d/l) lose their digits next to r = 0, so nothing is promised there.
            let skip = |kernel: &Traced| kernel.clone().self_interaction(SelfInteraction::Skip).kernels(all).unwrap();
            let (a, b) = (skip(&original), skip(&radial));
            assert_eq!(a.near.singular, b.near.singular, "{value}");
            for r in [[3e-3, -2e-3, 7e-3], [-1e-4, 1.2e-4, 3e-5], [1e-2, 0.02, -0.4]] {
                let (mut plain, mut mapped) = ([0.0; 10], [0.0; 10]);
                a.near.eval(&a.params, &r, &[1.3], &mut plain);
                b.near.eval(&b.params, &map.apply(r), &[1.3], &mut mapped);
                map.pull_back(&mut mapped, 10);
                for columns in [0..1, 1..4, 4..10] {
                    let size = plain[columns.clone()].iter().fold(0.0f64, |m, x| m.max(x.abs()));
                    for k in columns {
                        let difference = (plain[k] - mapped[k]).abs();
                        assert!(difference <= 1e-10 * size, "{value} {r:?} {k}: {} {}", plain[k], mapped[k]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_gaussian_is_smooth_at_its_own_point() {
        let outputs = Outputs::POTENTIAL | Outputs::HESSIAN;
        let (radial, map) = kernel("exp(-d^2/2)").isotropic().unwrap();
        let k = radial.kernels(outputs).unwrap();
        let mut row = [0.0; 10];
        k.near.eval(&k.params, &[0.0; 3], &[1.0], &mut row);
        map.pull_back(&mut row, 10);
        // The second derivatives are −M.
        let expected = [1.0, 0.0, 0.0, 0.0, -10000.0, -8000.0, -200.0, -6500.0, -150.0, -6.0];
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-9 * 10000.0), "{row:?}");
    }

    #[test]
    fn other_kernels_have_no_such_coordinates() {
        for value in [
            "1/sqrt(x^2 + y^2 + z^2)",
            "x/(x^2 + y^2 + z^2)",
            "1/sqrt(sqrt(x^4 + y^4 + z^4))",
            "1/sqrt(x^2 + 4*y^2 + z^2) + 1/sqrt(x^2 + y^2 + z^2)",
            "1/sqrt(x^2 + y^2 - 2*z^2)",
            "where(x < 1, 1/sqrt(x^2 + 2*y^2 + z^2), 0)",
            "1/sqrt(x^2 + y^2)",
            "x",
            "3",
        ] {
            assert!(Traced::parse(&format!("value {value}")).unwrap().isotropic().is_none(), "{value}");
        }
        let several = Traced::parse("strengths 2\nvalue q1/sqrt(x^2 + 2*y^2 + z^2) + q2").unwrap();
        assert!(several.isotropic().is_none());
        let unset = Traced::parse("parameter m\nvalue 1/sqrt(x^2 + m*y^2 + z^2)").unwrap();
        assert!(unset.isotropic().is_none() && unset.set("m", 3.0).unwrap().isotropic().is_some());
    }
}
