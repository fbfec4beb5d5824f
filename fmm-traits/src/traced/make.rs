//! From what was recorded to the kernels of a plan: tapes with derivatives, degrees, and members.

use super::zero::{Unguarded, finite_at_zero, guarded};
use super::{Base, MAX_OPERATIONS, Part, Symbol, Traced, at_most, radial};
use crate::attributes::Nodes;
use crate::dual::Dual;
use crate::kernel::{MAX_STRENGTHS, Outputs, derivative_columns, derivative_degree};
use crate::lane::Lane;
use crate::member::{Body, Identity, Kernels, Member, Members};
use crate::record::record_with;
use crate::tape::{Degrees, Op, Tape};
use crate::{Error, SelfInteraction};
use std::sync::{Arc, PoisonError};

/// Strengths of which no sum is 0.
pub(super) const DIFFERENT: [f64; MAX_STRENGTHS] = [0.83, -0.61, 1.27, -0.453, 0.947, 1.611, -0.377, 0.239, -1.133];

impl Traced {
    /// Equivalent densities.
    pub(super) fn most(&self) -> usize {
        match &*self.body {
            Base::General(_) => 1,
            Base::Radial { densities, .. } => *densities,
        }
    }

    /// Values without derivatives.
    fn values(&self, part: Part) -> usize {
        match (&*self.body, part) {
            (Base::General(tape), _) => tape.values().len(),
            (Base::Radial { .. }, Part::Near | Part::Far) => 1,
            (Base::Radial { densities, .. }, Part::Check | Part::Equivalent) => *densities,
        }
    }

    /// The parameters that are attributes of the sources in a part. An expansion has none.
    fn attributes(&self, part: Part) -> &[usize] {
        match part {
            Part::Near | Part::Check => &self.attributes,
            Part::Equivalent | Part::Far => &[],
        }
    }

    /// Strengths of a source without attributes, or densities.
    fn given(&self, part: Part) -> usize {
        match part {
            Part::Near | Part::Check => self.strengths,
            Part::Equivalent | Part::Far => self.strengths * self.most(),
        }
    }

    /// The operations of the values with `derived` derivatives, at `unit`·r where a unit is a parameter. Values at
    /// r = 0 are those of the operations.
    pub(super) fn tape(&self, part: Part, derived: usize, unit: Option<usize>, params: &[f64]) -> Tape {
        self.tape_with(self.attributes(part), part, derived, unit, params)
    }

    /// [`tape`](Self::tape), where some parameters are the strengths behind those of the part.
    fn tape_with(&self, attributes: &[usize], part: Part, derived: usize, unit: Option<usize>, params: &[f64]) -> Tape {
        let laplacians = match &*self.body {
            // An error has been reported by `make`.
            Base::Radial { f, .. } => {
                f.laplacians(self.dim, self.values(part) + self.given(part) - 1, params).unwrap_or_default()
            }
            Base::General(_) => Vec::new(),
        };
        let given = self.given(part);
        let done = record_with(3, |p, r, q| {
            let factor = unit.map(|k| p[k]);
            let mut p = p.to_vec();
            attributes.iter().enumerate().for_each(|(k, &at)| p[at] = q[given + k]);
            let p = &p[..];
            Ok::<_, std::convert::Infallible>(match &*self.body {
                Base::Radial { .. } => radial::hankel(
                    &laplacians,
                    [self.values(part), self.given(part)],
                    derived,
                    factor,
                    p,
                    &r[..self.dim],
                    q,
                ),
                Base::General(tape) => general(tape, derived, factor, p, r, q),
            })
        });
        match done {
            Ok(tape) => tape,
        }
    }

    /// `strengths`, and the parameters as attributes.
    fn sample(&self, part: Part, strengths: &[f64; MAX_STRENGTHS], params: &[f64]) -> Vec<f64> {
        let attributes = self.attributes(part).iter().map(|&at| params[at]);
        strengths[..self.given(part)].iter().copied().chain(attributes).collect()
    }

    /// Whether the values at r = 0 are not finite, with 1/√0 = ∞.
    pub(super) fn singular(&self, part: Part, params: &[f64]) -> bool {
        let lift = |x: &[f64]| x.iter().map(|&x| Unguarded(x)).collect::<Vec<_>>();
        let mut values = vec![Unguarded(0.0); self.values(part)];
        let strengths = self.sample(part, &[1.0; MAX_STRENGTHS], params);
        self.tape(part, 0, None, params).evaluate(&lift(params), &lift(&[0.0; 3]), &lift(&strengths), &mut values);
        values.iter().any(|x| !x.0.is_finite())
    }

    /// The kernels for `outputs`.
    ///
    /// # Errors
    /// Errors of [`parameter_values`](Traced::parameter_values); [`Error::NoOutput`]; [`Error::UnsupportedOutput`];
    /// [`Error::Unsupported`] for a singular kernel with [`SelfInteraction::Include`].
    /// [`Error::TooMany`] operations.
    pub fn kernels(&self, outputs: Outputs) -> Result<Kernels, Error> {
        let made = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = made().iter().find(|(known, _)| *known == outputs) {
            return Ok(known.clone());
        }
        let kernels = self.make(outputs)?;
        made().push((outputs, kernels.clone()));
        Ok(kernels)
    }

    fn make(&self, outputs: Outputs) -> Result<Kernels, Error> {
        let mut params = self.parameter_values()?;
        let supported = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        let missing = outputs.minus(supported);
        if outputs.is_empty() {
            return Err(Error::NoOutput);
        }
        if !missing.is_empty() {
            let (output, supported) = (missing.names().join(", "), supported.names().join(", "));
            return Err(Error::UnsupportedOutput { kernel: self.name.clone(), output, supported });
        }
        let derived = if outputs.contains(Outputs::HESSIAN) { 2 } else { outputs.contains(Outputs::GRADIENT) as usize };
        let most = match &*self.body {
            Base::General(tape) => tape.nodes().len(),
            Base::Radial { f, densities } => {
                let all = f.laplacians(self.dim, 2 * densities - 1, &params)?;
                all.iter().map(|f| f.value.nodes().len()).max().unwrap_or(0)
            }
        };
        at_most("operations of a kernel", most, MAX_OPERATIONS)?;
        at_most("strengths and attributes of a source", self.strengths + self.attributes.len(), MAX_STRENGTHS)?;
        let singular = self.singular(Part::Near, &params);
        let include = match self.own {
            Some(SelfInteraction::Include) if singular => {
                let reason = format!("the kernel {} is infinite at r = 0", self.name);
                return Err(Error::Unsupported { operation: "the action of a source on itself", reason });
            }
            own => own.unwrap_or(SelfInteraction::Include) == SelfInteraction::Include && !singular,
        };
        if let (Base::Radial { f, .. }, true, 2) = (&*self.body, include, derived)
            && !f.has_limit(&params)
        {
            let reason = format!(
                "f'/r of the kernel {} has no limit at r = 0, or loses its digits there; give `slope`, or skip the source itself",
                self.name
            );
            return Err(Error::Unsupported { operation: "the Hessian of a source at itself", reason });
        }
        // Of the kernel without attributes: what holds for a parameter holds for an attribute.
        let plain = self.tape_with(&[], Part::Near, 0, None, &params);
        let degrees = plain.degrees(params.len(), self.strengths);
        let whole = |d: &Degrees| self.attributes.iter().all(|&at| d.parameters[at].fract() == 0.0);
        let degrees = degrees.filter(whole);
        let unit = degrees.is_none().then_some(params.len());
        let rule = match degrees {
            Some(Degrees { parameters, strengths, values }) => Rule { parameters, strengths, values, unit },
            None => Rule {
                parameters: vec![0.0; params.len()],
                strengths: vec![0; self.strengths],
                values: vec![0; self.values(Part::Near)],
                unit,
            },
        };
        params.extend(unit.map(|_| 1.0));
        let made = |part, derived| self.member(part, derived, &rule, &params);
        Ok(Kernels {
            name: self.name.clone(),
            near: made(Part::Near, derived),
            far: made(Part::Far, derived),
            members: Members {
                family: "traced".into(),
                check: made(Part::Check, 0),
                equivalent: made(Part::Equivalent, 0),
                slope: made(Part::Equivalent, 1),
            },
            columns: derivative_columns(self.dim, self.values(Part::Near), outputs),
            params,
            attributes: self.attributes.clone(),
            nodes: Nodes::default(),
            scale: 1.0,
            include_self: include,
        })
    }

    fn member(&self, part: Part, derived: usize, rule: &Rule, params: &[f64]) -> Member {
        let (mut tape, plain) = (self.tape(part, derived, rule.unit, params), self.tape(part, 0, rule.unit, params));
        let (singular, count) = (self.singular(part, params), self.values(part));
        let sample = self.sample(part, &DIFFERENT, params);
        tape = match singular {
            true => guarded(&tape, self.dim, params, &sample),
            false => finite_at_zero(&tape, self.dim, params, &sample, count),
        };
        let tape = Arc::new(tape);
        // Each application of the Laplacian takes two powers of a length.
        let of_value = |i: usize| if i < rule.values.len() { rule.values[i] } else { rule.values[0] - 2 * i as i32 };
        let attributes = self.attributes(part);
        let of_strength = |j: usize| match j.checked_sub(self.given(part)) {
            // An attribute that is a length is divided by the unit of length.
            Some(k) => -rule.parameters[attributes[k]] as i32,
            None if j < rule.strengths.len() => rule.strengths[j],
            None => -2 * j as i32,
        };
        let degree = |i: usize| derivative_degree(count, i, of_value);
        let own = rule.clone();
        let dilation = Box::new(move |params: &[f64], h: f64| own.dilated(params, h));
        let radial = matches!(&*self.body, Base::Radial { .. });
        let strengths = self.given(part) + attributes.len();
        let square = attributes.is_empty() && count == strengths;
        let mut member = Member {
            name: self.name.clone(),
            id: Identity::Tape(tape.clone()),
            type_name: "traced".into(),
            dim: self.dim,
            strengths,
            attributes: attributes.iter().map(|&at| params[at]).collect(),
            values: tape.values().len(),
            singular,
            reciprocal: radial && derived == 0 && square,
            piecewise: !radial && plain.any(|op| op == Op::Select),
            derived,
            strength_degrees: (0..strengths).map(of_strength).collect(),
            value_degrees: (0..tape.values().len()).map(degree).collect(),
            body: Arc::new(Program { tape, plain, dilation }),
        };
        if !radial && derived == 0 && square && !member.piecewise {
            let directions = [[0.9, -1.3, 0.7], [-0.31, 0.77, 1.1], [0.012, 0.47, -0.2]];
            let places: Vec<[f64; 3]> =
                (-6..=2).flat_map(|k| directions.map(|d| d.map(|x| x * 10f64.powi(k)))).collect();
            // Places where the kernel underflows say nothing.
            let says =
                |r: &&[f64; 3]| (0..member.strengths).any(|j| member.column(params, **r, j).iter().any(|x| *x != 0.0));
            let mut says_something = places.iter().filter(says).peekable();
            let any = says_something.peek().is_some();
            member.reciprocal = any && says_something.all(|&r| member.reciprocal_at(params, r));
        }
        member
    }
}

/// How a kernel behaves under a dilation.
#[derive(Clone, Debug)]
struct Rule {
    /// Power of a length of each parameter.
    parameters: Vec<f64>,
    strengths: Vec<i32>,
    values: Vec<i32>,
    /// The parameter that is the unit of length.
    unit: Option<usize>,
}

impl Rule {
    /// The parameters after a dilation by `h`; `None` if none changes.
    fn dilated(&self, params: &[f64], h: f64) -> Option<Vec<f64>> {
        let Rule { parameters, unit, .. } = self;
        if unit.is_none() && parameters.iter().all(|&d| d == 0.0) {
            return None;
        }
        let mut dilated = params.to_vec();
        dilated.iter_mut().zip(parameters).for_each(|(p, &d)| *p *= power(h, -d));
        if let Some(unit) = *unit {
            dilated[unit] *= h;
        }
        Some(dilated)
    }
}

/// [`Kernel::dilated`](crate::Kernel::dilated) of a kernel that is a tape.
pub(super) type Dilation = Box<dyn Fn(&[f64], f64) -> Option<Vec<f64>> + Send + Sync>;

/// The functions of a [`Member`] that is a tape.
pub(super) struct Program {
    pub tape: Arc<Tape>,
    /// The operations without derivatives.
    pub plain: Tape,
    pub dilation: Dilation,
}

impl Body for Program {
    fn eval(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        self.tape.evaluate(params, r, strengths, values);
    }
    fn underived(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        self.plain.evaluate(params, r, strengths, values);
    }
    fn eval_many(&self, params: &[f64], r: &[[f64; 3]], strengths: &[f64], values: &mut [f64]) {
        self.tape.evaluate_many(params, r, strengths, values);
    }
    fn dilated(&self, params: &[f64], h: f64) -> Option<Vec<f64>> {
        (self.dilation)(params, h)
    }
    fn tape(&self) -> Tape {
        (*self.tape).clone()
    }
}

/// h^d. Integer powers of a power of two are exact.
fn power(h: f64, d: f64) -> f64 {
    if d == d.round() { h.powi(d as i32) } else { h.powf(d) }
}

/// The values of a kernel with `derived` derivatives, where `factor` multiplies lengths.
pub(super) fn general(
    tape: &Tape,
    derived: usize,
    factor: Option<Symbol>,
    p: &[Symbol],
    r: &[Symbol],
    q: &[Symbol],
) -> Vec<Symbol> {
    let n = tape.values().len();
    let h = factor.unwrap_or(Symbol::splat(1.0));
    let constant = |x: &[Symbol]| x.iter().map(|&x| Dual::constant(x)).collect::<Vec<_>>();
    match derived {
        0 => {
            let mut u = vec![h; n];
            tape.evaluate(p, &[r[0] * h, r[1] * h, r[2] * h], q, &mut u);
            u
        }
        1 => {
            let mut u = vec![Dual::constant(h); n];
            let r: Vec<_> = (0..3).map(|a| Dual::variable(r[a], a) * Dual::constant(h)).collect();
            tape.evaluate(&constant(p), &r, &constant(q), &mut u);
            u.iter().map(|u| u.v).chain(u.iter().flat_map(|u| u.gradient())).collect()
        }
        _ => {
            let twice = |x: &[Symbol]| constant(x).into_iter().map(Dual::constant).collect::<Vec<_>>();
            let h = Dual::constant(Dual::constant(h));
            let mut u = vec![h; n];
            let r: Vec<_> = (0..3).map(|a| Dual::variable(Dual::variable(r[a], a), a) * h).collect();
            tape.evaluate(&twice(p), &r, &twice(q), &mut u);
            let upper = |u: &Dual<Dual<Symbol>>| {
                let d = u.gradient().map(Dual::gradient);
                [d[0][0], d[0][1], d[0][2], d[1][1], d[1][2], d[2][2]]
            };
            let values = u.iter().map(|u| u.v.v).chain(u.iter().flat_map(|u| u.v.gradient()));
            values.chain(u.iter().flat_map(upper)).collect()
        }
    }
}
