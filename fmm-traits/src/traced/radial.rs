//! Radial functions, recorded as functions of s = r², and matrices of their Laplacians.
//!
//! With f₁ = f′/r = 2·df/ds and f₂ = f₁′/r = 2·df₁/ds, the gradient of f is f₁·r, its matrix of second derivatives is
//! f₁·I + f₂·r rᵀ, and Δf = 3·f₁ + s·f₂ (in the plane 2·f₁ + s·f₂).

use super::{MAX_OPERATIONS, Symbol};
use crate::Error;
use crate::dual::Dual;
use crate::lane::{Lane, dot};
use crate::record::{record_with, with_reciprocal_roots};
use crate::tape::Tape;
use std::convert::Infallible;

/// Sums below this part of their terms count as cancelled.
const CANCELLED: f64 = 1e-12;

/// A radial function, with f₁ and f₂ where they were given in closed form.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Radial {
    pub value: Tape,
    pub slope: Option<Tape>,
    pub curvature: Option<Tape>,
    /// Δf, Δ²f, …, as far as they were given.
    pub laplacians: Vec<Tape>,
}

/// A function of s and the parameters.
fn recorded(f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Tape {
    match record_with(1, |p, s, _| Ok::<_, Infallible>(vec![f(s[0], p)])) {
        Ok(tape) => tape,
    }
}

/// The value of a function at s.
fn at(tape: &Tape, s: Symbol, p: &[Symbol]) -> Symbol {
    let mut f = [s];
    tape.evaluate(p, &[s], &[], &mut f);
    f[0]
}

/// The derivative by s, times 2.
fn derivative(tape: &Tape, s: Symbol, p: &[Symbol]) -> Symbol {
    let p: Vec<_> = p.iter().map(|&x| Dual::constant(x)).collect();
    let mut f = [Dual::constant(s)];
    tape.evaluate(&p, &[Dual::variable(s, 0)], &[], &mut f);
    f[0].gradient()[0] * 2.0
}

/// The second derivative by s, times 4.
fn second_derivative(tape: &Tape, s: Symbol, p: &[Symbol]) -> Symbol {
    let p: Vec<_> = p.iter().map(|&x| Dual::constant(Dual::constant(x))).collect();
    let mut f = [Dual::constant(Dual::constant(s))];
    tape.evaluate(&p, &[Dual::variable(Dual::variable(s, 0), 0)], &[], &mut f);
    f[0].gradient()[0].gradient()[0] * 4.0
}

impl Radial {
    /// The function `f` of r and the parameters.
    pub fn of(f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Self {
        Radial { value: recorded(|s, p| f(s.sqrt(), p)), slope: None, curvature: None, laplacians: Vec::new() }
    }

    /// f₁ or f₂ in closed form. Its quotients by r are 0 at r = 0, as they are multiplied by r or r².
    pub fn closed(f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Tape {
        with_reciprocal_roots(&recorded(|s, p| f(s.sqrt(), p)))
    }

    /// f₁ at s.
    fn first(&self, s: Symbol, p: &[Symbol]) -> Symbol {
        self.slope.as_ref().map_or_else(|| derivative(&self.value, s, p), |tape| at(tape, s, p))
    }

    /// f₂ at s.
    fn second(&self, s: Symbol, p: &[Symbol]) -> Symbol {
        match (&self.curvature, &self.slope) {
            (Some(tape), _) => at(tape, s, p),
            (None, Some(slope)) => derivative(slope, s, p),
            (None, None) => second_derivative(&self.value, s, p),
        }
    }

    /// f, Δf, Δ²f, …: `count` functions. One that is 0 up to rounding for these parameters (Δ²r) is exactly 0.
    ///
    /// # Errors
    /// [`Error::TooMany`] operations.
    pub fn laplacians(&self, dim: usize, count: usize, params: &[f64]) -> Result<Vec<Radial>, Error> {
        let mut all = vec![self.clone()];
        while all.len() < count {
            let last = &all[all.len() - 1];
            let value = match self.laplacians.get(all.len() - 1) {
                Some(given) => given.clone(),
                None if last.cancels(dim, params) => recorded(|_, _| Symbol::splat(0.0)),
                None => recorded(|s, p| dim as f64 * last.first(s, p) + s * last.second(s, p)),
            };
            all.push(Radial { value, slope: None, curvature: None, laplacians: Vec::new() });
            super::at_most("operations of a Laplacian", all[all.len() - 1].value.nodes().len(), MAX_OPERATIONS)?;
        }
        Ok(all)
    }

    /// Whether f₁ as computed at r = 0 is its limit.
    pub fn has_limit(&self, params: &[f64]) -> bool {
        let first = recorded(|s, p| self.first(s, p));
        let at = |s: f64| {
            let mut value = [0.0];
            first.evaluate(params, &[s], &[], &mut value);
            value[0]
        };
        let zero = at(0.0);
        // Radii below the lengths of the kernel, whatever these are, but not so small that digits cancel.
        zero.is_finite() && [1e-12, 1e-18, 1e-24, 1e-30].into_iter().any(|s| (at(s) - zero).abs() <= 1e-3 * zero.abs())
    }

    /// Whether the terms dim·f₁ and s·f₂ of the Laplacian cancel to rounding at all of some radii.
    fn cancels(&self, dim: usize, params: &[f64]) -> bool {
        let terms = [recorded(|s, p| dim as f64 * self.first(s, p)), recorded(|s, p| s * self.second(s, p))];
        let mut counted = 0;
        let cancels = (-24..=24).all(|k| {
            let s = 10.3f64.powi(k);
            let [a, b] = [0, 1].map(|i| {
                let mut value = [0.0];
                terms[i].evaluate(params, &[s], &[], &mut value);
                value[0]
            });
            // A function that underflows or overflows says nothing.
            let size = a.abs().max(b.abs());
            let says = size > 1e-250 && size < 1e250;
            counted += usize::from(says);
            !says || (a + b).abs() <= CANCELLED * size
        });
        cancels && counted > 2
    }
}

/// The values Σⱼ Δ^(i + j)f·qⱼ of `rows` × `columns` functions, with `derived` derivatives, where `factor` multiplies
/// lengths in f (and not in Δ). Derivatives along axes that `r` does not have are 0.
pub(super) fn hankel(
    laplacians: &[Radial],
    [rows, columns]: [usize; 2],
    derived: usize,
    factor: Option<Symbol>,
    p: &[Symbol],
    r: &[Symbol],
    q: &[Symbol],
) -> Vec<Symbol> {
    let square = factor.map_or(Symbol::splat(1.0), |h| h * h);
    let s = dot(r, r) * square;
    let sum = |i: usize, part: &dyn Fn(&Radial) -> Symbol| {
        let term = |j: usize| q[j] * part(&laplacians[i + j]) * power(square, i + j);
        (1..columns).fold(term(0), |sum, j| sum + term(j))
    };
    let mut out: Vec<Symbol> = (0..rows).map(|i| sum(i, &|f| at(&f.value, s, p))).collect();
    if derived == 0 {
        return out;
    }
    let first: Vec<Symbol> = (0..rows).map(|i| sum(i, &|f| f.first(s, p)) * square).collect();
    let x = |a: usize| r.get(a).copied().unwrap_or(Symbol::splat(0.0));
    out.extend(first.iter().flat_map(|&g| [g * x(0), g * x(1), g * x(2)]));
    if derived == 1 {
        return out;
    }
    for (i, &g) in first.iter().enumerate() {
        let c = sum(i, &|f| f.second(s, p)) * square * square;
        for a in 0..3 {
            for b in a..3 {
                let term = c * x(a) * x(b);
                out.push(if a == b && a < r.len() { term + g } else { term });
            }
        }
    }
    out
}

/// x^n.
fn power(x: Symbol, n: usize) -> Symbol {
    (0..n).fold(Symbol::splat(1.0), |product, _| product * x)
}
