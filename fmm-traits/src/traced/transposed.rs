//! Kernels of transposed sums.
//!
//! The sums u_i = Σ_j K(x_i − y_j)·q_j have the transposed sums w_j = Σ_i K(x_i − y_j)ᵀ·v_i. These are sums of the kernel
//! Kᵀ(−r), r = y_j − x_i, from the targets to the sources: an ordinary plan with roles exchanged. Its matrix is read from
//! the tape of K, one column for each strength, so that there is nothing to state for a kernel.
//!
//! Transposition turns the chain of a family around. A far field of the sums runs source → check values → densities →
//! target. So in the transposed family `Far` and `Check` exchange their places:
//!
//! | | of the family | of the transposed family |
//! |---|---|---|
//! | near | S | Sᵀ(−r) |
//! | check | C | Fᵀ(−r) |
//! | equivalent | E | Eᵀ(−r), which is E if E(−r) = E(r)ᵀ |
//! | far | F | Cᵀ(−r) |
//!
//! Example: dipoles have densities that are charges. Their transposed sums are gradients of charges, with the operators
//! of the Laplace kernel.

use super::make::{DIFFERENT, Program, general};
use super::zero::{finite_at_zero, guarded};
use super::{Symbol, at_most};
use crate::attributes::Nodes;
use crate::kernel::{
    DERIVATIVE_FACTORS, MAX_COMPONENTS, MAX_POTENTIALS, Outputs, derivative_columns, derivative_degree,
};
use crate::lane::Lane;
use crate::member::{Identity, Kernels, Member, Members};
use crate::record::record_with;
use crate::tape::Tape;
use crate::{Error, kernel::MAX_STRENGTHS};
use std::sync::Arc;

impl Kernels {
    /// The kernels of the transposed sums, for `outputs`: the "potential" are the w_j, as many as strengths; gradient
    /// and Hessian are with respect to y_j. `self` are the kernels for the potential alone,
    /// of sources without attributes.
    ///
    /// # Errors
    /// [`Error::UnsupportedOutput`]; [`Error::TooMany`] densities, or values with their derivatives.
    pub fn transposed(&self, outputs: Outputs) -> Result<Kernels, Error> {
        let supported = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        let missing = outputs.minus(supported);
        if outputs.is_empty() {
            return Err(Error::NoOutput);
        }
        let name: Arc<str> = format!("{}_transposed", self.name).into();
        if !missing.is_empty() {
            let (output, supported) = (missing.names().join(", "), supported.names().join(", "));
            return Err(Error::UnsupportedOutput { kernel: name, output, supported });
        }
        let derived = if outputs.contains(Outputs::HESSIAN) { 2 } else { outputs.contains(Outputs::GRADIENT) as usize };
        let values = self.near.strengths * DERIVATIVE_FACTORS[derived];
        at_most("values of a transposed kernel, with derivatives", values, MAX_COMPONENTS)?;
        at_most("densities of a kernel with a transpose", self.far.strengths, MAX_POTENTIALS)?;
        let Members { family, check, equivalent, slope } = &self.members;
        // Any number may move from the degrees of values to those of strengths. This one keeps those of a reciprocal E.
        let shift = equivalent.value_degrees[0] - equivalent.strength_degrees[0];
        let made = |of: &Member, derived| Turned { of, shift, params: &self.params }.member(derived);
        let (inside, its_slope) = match equivalent.reciprocal {
            true => (equivalent.clone(), slope.clone()),
            false => (made(equivalent, 0), made(equivalent, 1)),
        };
        Ok(Kernels {
            name,
            near: made(&self.near, derived),
            far: made(check, derived),
            members: Members {
                family: format!("transposed {family}").into(),
                check: made(&self.far, 0),
                equivalent: inside,
                slope: its_slope,
            },
            params: self.params.clone(),
            attributes: Vec::new(),
            nodes: Nodes::default(),
            scale: self.scale,
            columns: derivative_columns(self.near.dim, self.near.strengths, outputs),
            include_self: self.include_self,
        })
    }
}

/// A kernel that is to be transposed.
struct Turned<'a> {
    of: &'a Member,
    /// What moves from the degrees of its strengths to those of its values.
    shift: i32,
    params: &'a [f64],
}

impl Turned<'_> {
    /// The operations of Kᵀ(−r).
    fn tape(&self) -> Tape {
        let (of, tape) = (self.of, self.of.tape());
        let done = record_with(3, |p, r, v| {
            let back = [-r[0], -r[1], -r[2]];
            let (zero, one) = (Symbol::splat(0.0), Symbol::splat(1.0));
            let value = |j: usize| {
                let (mut unit, mut column) = (vec![zero; of.strengths], vec![zero; of.values]);
                unit[j] = one;
                tape.evaluate(p, &back, &unit, &mut column);
                column.iter().zip(v).fold(zero, |sum, (&k, &v)| k.mul_add(v, sum))
            };
            Ok::<_, std::convert::Infallible>((0..of.strengths).map(value).collect())
        });
        match done {
            Ok(tape) => tape,
        }
    }

    fn member(&self, derived: usize) -> Member {
        let (of, params) = (self.of, self.params);
        let plain = self.tape();
        let derivatives =
            |p: &[_], r: &[_], v: &[_]| Ok::<_, std::convert::Infallible>(general(&plain, derived, None, p, r, v));
        let Ok(tape) = record_with(3, derivatives);
        let (count, sample) = (of.strengths, &DIFFERENT[..of.values.min(MAX_STRENGTHS)]);
        let tape = Arc::new(match of.singular {
            true => guarded(&tape, of.dim, params, sample),
            false => finite_at_zero(&tape, of.dim, params, sample, count),
        });
        let degree = |i: usize| derivative_degree(count, i, |i| of.strength_degrees[i] + self.shift);
        let given = of.clone();
        Member {
            name: of.name.clone(),
            id: Identity::Tape(tape.clone()),
            type_name: "transposed".into(),
            dim: of.dim,
            strengths: of.values,
            attributes: Vec::new(),
            values: tape.values().len(),
            singular: of.singular,
            reciprocal: of.reciprocal && derived == 0,
            piecewise: of.piecewise,
            derived,
            strength_degrees: of.value_degrees.iter().map(|d| d - self.shift).collect(),
            value_degrees: (0..tape.values().len()).map(degree).collect(),
            body: Arc::new(Program { tape, plain, dilation: Box::new(move |params, h| given.dilated(params, h)) }),
        }
    }
}
