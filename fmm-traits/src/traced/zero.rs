//! Values of a tape at r = 0.

use super::Symbol;
use crate::lane::{Lane, dot};
use crate::record::{record_with, with_reciprocal_roots};
use crate::tape::Tape;

/// `tape` with values that are exactly 0 at r = 0, as singular kernels must have.
pub(super) fn guarded(tape: &Tape, dim: usize, params: &[f64], strengths: &[f64]) -> Tape {
    let tape = &with_reciprocal_roots(tape);
    let values = at_zero(tape, params, strengths);
    if values.iter().all(|&x| x == 0.0) { tape.clone() } else { zero_at_zero(tape, dim, |_| true) }
}

/// `tape` with derivatives that are 0 at r = 0 where they would not be finite. The first `count` values are no
/// derivatives.
pub(super) fn finite_at_zero(tape: &Tape, dim: usize, params: &[f64], strengths: &[f64], count: usize) -> Tape {
    let values = at_zero(tape, params, strengths);
    if values[count.min(values.len())..].iter().all(|x| x.is_finite()) {
        return tape.clone();
    }
    zero_at_zero(tape, dim, |i| i >= count && !values[i].is_finite())
}

/// The values at r = 0.
fn at_zero(tape: &Tape, params: &[f64], strengths: &[f64]) -> Vec<f64> {
    let mut values = vec![0.0; tape.values().len()];
    tape.evaluate(params, &[0.0; 3], strengths, &mut values);
    values
}

/// `tape` with 0 at r = 0 for some values.
fn zero_at_zero(tape: &Tape, dim: usize, is_zero: impl Fn(usize) -> bool) -> Tape {
    let done = record_with(3, |p, r, q| {
        let zero = Symbol::splat(0.0);
        let coincide = dot(&r[..dim], &r[..dim]).eq(zero);
        let mut values = vec![zero; tape.values().len()];
        tape.evaluate(p, r, q, &mut values);
        let select = |(i, u)| if is_zero(i) { Symbol::select(coincide, zero, u) } else { u };
        Ok::<_, std::convert::Infallible>(values.into_iter().enumerate().map(select).collect())
    });
    match done {
        Ok(tape) => tape,
    }
}

/// A number whose 1/√0 is ∞.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unguarded(pub f64);

macro_rules! unguarded {
    ($($trait:ident $method:ident),*) => {$(
        impl std::ops::$trait for Unguarded {
            type Output = Self;
            fn $method(self, o: Self) -> Self {
                Unguarded(std::ops::$trait::$method(self.0, o.0))
            }
        }
    )*};
}
unguarded!(Add add, Sub sub, Mul mul, Div div);

impl std::ops::Neg for Unguarded {
    type Output = Self;
    fn neg(self) -> Self {
        Unguarded(-self.0)
    }
}

impl Lane for Unguarded {
    type Derivative = Self;
    type Mask = bool;
    fn splat(x: f64) -> Self {
        Unguarded(x)
    }
    fn mul_add(self, a: Self, b: Self) -> Self {
        Unguarded(self.0.mul_add(a.0, b.0))
    }
    fn sqrt(self) -> Self {
        Unguarded(self.0.sqrt())
    }
    fn rsqrt(self) -> Self {
        Unguarded(1.0 / self.0.sqrt())
    }
    fn exp(self) -> Self {
        Unguarded(self.0.exp())
    }
    fn ln(self) -> Self {
        Unguarded(self.0.ln())
    }
    fn sin(self) -> Self {
        Unguarded(self.0.sin())
    }
    fn cos(self) -> Self {
        Unguarded(self.0.cos())
    }
    fn lt(self, other: Self) -> bool {
        self.0 < other.0
    }
    fn le(self, other: Self) -> bool {
        self.0 <= other.0
    }
    fn eq(self, other: Self) -> bool {
        self.0 == other.0
    }
    fn select(mask: bool, a: Self, b: Self) -> Self {
        if mask { a } else { b }
    }
}
