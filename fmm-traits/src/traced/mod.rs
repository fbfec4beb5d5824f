//! Kernels made at run time: [`Traced`]. Such a kernel is a [`Tape`], recorded from a closure over [`Symbol`]s or read
//! from text ([`Traced::parse`]). It needs no Rust type and no Rust compiler: a CPU interprets the tape, a
//! GPU compiles it with NVRTC.
//!
//! Its facts are found, not stated, except the number of equivalent densities ([`Traced::densities`]):
//!
//! - **Dilation.** [`Tape::degrees`] looks for powers of a length. A kernel that is not homogeneous gets one hidden
//!   parameter more, the unit of length h: its tape takes h·r, and a dilation multiplies h.
//! - **Reciprocity.** A radial kernel is reciprocal. For others K(−r) is compared with K(r)ᵀ; a tape with branches
//!   (`where`, `abs`, `min`, `max`) counts as not reciprocal.
//! - **r = 0.** The kernel is singular if a value at r = 0 is not finite, with 1/0 = ∞. Then coincident points
//!   contribute 0.
//!
//! # Derivatives
//!
//! Gradient and Hessian are recorded from dual numbers over the tape. For a radial kernel f(r) they are
//! ∇K = f₁·r and ∇∇K = f₁·I + f₂·r rᵀ with f₁ = f′/r, f₂ = f₁′/r. Differentiation of f cancels digits at
//! r → 0 (f₁ of a Matérn kernel is a difference of nearly equal numbers over r), so an author may give f₁
//! ([`Traced::slope`]) and f₂ ([`Traced::curvature`]) in closed form. A plan compares them with differences of f
//! ([`facts`](crate::facts)).

pub mod parse;
mod radial;

use crate::dual::Dual;
use crate::kernel::{MAX_PARAMETERS, MAX_POTENTIALS, MAX_STRENGTHS, Outputs, derivative_columns};
use crate::lane::{Lane, dot};
use crate::member::{Body, Identity, Kernels, Member, Members};
use crate::record::{Recorded, record_with, with_reciprocal_roots};
use crate::tape::{Degrees, Op, Tape};
use crate::{Error, SelfInteraction};
use radial::Radial;
use std::sync::{Arc, Mutex, PoisonError};

/// Largest number of equivalent densities of a kernel.
pub const MAX_DENSITIES: usize = 4;
/// Largest number of operations of a kernel.
const MAX_OPERATIONS: usize = 1 << 12;

/// A number of a kernel that is being recorded. It has the operations of [`Lane`], also with an `f64` on either side.
pub type Symbol = Recorded;

/// A kernel made at run time, with the values of its parameters.
#[derive(Clone, Debug)]
pub struct Traced {
    name: Arc<str>,
    /// Names and values.
    parameters: Vec<(String, Option<f64>)>,
    strengths: usize,
    body: Arc<Base>,
    own: Option<SelfInteraction>,
    /// The kernels for the outputs that were asked for, as long as nothing changes.
    made: Arc<Mutex<Vec<(Outputs, Kernels)>>>,
}

/// What was recorded.
#[derive(Clone, Debug, PartialEq)]
enum Base {
    /// Values from r.
    General(Tape),
    /// f(r), for one strength and one value, with the number of equivalent densities.
    Radial { f: Radial, densities: usize },
}

/// The kernels of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Strengths → values.
    Near,
    /// Strengths → check values.
    Check,
    /// Densities → check values.
    Equivalent,
    /// Densities → values.
    Far,
}

impl Traced {
    /// The radial kernel f(r)·q, where `f` takes r = |target − source| and the parameters. Each of `parameters` has a
    /// name and a value.
    ///
    /// ```
    /// use fmm_traits::{Lane, Traced};
    /// let l = 0.2;
    /// let matern = Traced::radial("matern32", &[("l", l)], |r, p| {
    ///     let a = 3f64.sqrt() / p[0];
    ///     (1.0 + a * r) * (-a * r).exp()
    /// });
    /// assert_eq!(matern.parameter_values(), Ok(vec![l]));
    /// ```
    pub fn radial(name: &str, parameters: &[(&str, f64)], f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Self {
        let count = parameters.len().min(MAX_PARAMETERS);
        let base = Base::Radial { f: Radial::of(|r, p| f(r, &p[..count])), densities: 1 };
        Self::of(name, named(parameters), 1, base)
    }

    /// The kernel whose values are the result of `f`, which takes r = target − source, the strengths of a source and
    /// the parameters. Values must be linear in the strengths.
    ///
    /// # Errors
    /// [`Error::TooMany`] strengths or values.
    pub fn general(
        name: &str,
        parameters: &[(&str, f64)],
        strengths: usize,
        f: impl FnOnce(&[Symbol], &[Symbol], &[Symbol]) -> Vec<Symbol>,
    ) -> Result<Self, Error> {
        at_most("strengths of a kernel", strengths, MAX_STRENGTHS)?;
        let count = parameters.len().min(MAX_PARAMETERS);
        let tape = record_with(3, |p, r, q| Ok::<_, Error>(f(r, &q[..strengths], &p[..count])))?;
        if strengths == 0 || tape.values().is_empty() {
            let reason = format!("{name} has {strengths} strengths and {} values", tape.values().len());
            return Err(Error::Unsupported { operation: "a kernel without strengths or values", reason });
        }
        at_most("values of a kernel", tape.values().len(), MAX_POTENTIALS)?;
        Ok(Self::of(name, named(parameters), strengths, Base::General(tape)))
    }

    fn of(name: &str, parameters: Vec<(String, Option<f64>)>, strengths: usize, base: Base) -> Self {
        Traced { name: name.into(), parameters, strengths, body: Arc::new(base), own: None, made: Arc::default() }
    }

    /// Gives f′(r)/r of a radial kernel in closed form. Without effect on other kernels.
    pub fn slope(mut self, f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Self {
        if let Base::Radial { f: radial, .. } = Arc::make_mut(&mut self.body) {
            radial.slope = Some(Radial::closed(f));
        }
        self.changed()
    }

    /// Gives (f′(r)/r)′/r of a radial kernel in closed form. Without effect on other kernels.
    pub fn curvature(mut self, f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Self {
        if let Base::Radial { f: radial, .. } = Arc::make_mut(&mut self.body) {
            radial.curvature = Some(Radial::closed(f));
        }
        self.changed()
    }

    /// Gives the next of Δf, Δ²f, … of a radial kernel f in closed form: the first call gives Δf, the second Δ²f. With
    /// n [`densities`](Traced::densities) 2n − 2 of them are used. They are not compared with f. Without effect on
    /// kernels that are not radial.
    pub fn laplacian(mut self, f: impl FnOnce(Symbol, &[Symbol]) -> Symbol) -> Self {
        if let Base::Radial { f: radial, .. } = Arc::make_mut(&mut self.body) {
            radial.laplacians.push(Radial::of(f).value);
        }
        self.changed()
    }

    /// Represents the far field of a box, for a radial kernel f, by `count` charges (1 to [`MAX_DENSITIES`]) at each
    /// point of the surface of the box, instead of one. Their fields are f, Δf, …; they are found from the values u,
    /// Δu, … of the field u of the sources, at points of a second surface. This is right for a kernel that solves an
    /// equation of order 2·`count` away from r = 0. Examples: r solves Δ²r = 0 (2), e^(−ar) solves (Δ − a²)²f = 0 (2),
    /// r³ and the Matérn kernel 3/2 need 3, Matérn 5/2 needs 4. Laplacians that are not given in closed form are
    /// recorded from dual numbers, and are long. Without effect on other kernels.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub fn densities(mut self, count: usize) -> Result<Self, Error> {
        at_most("equivalent densities of a kernel", count, MAX_DENSITIES)?;
        if self.most() == count.max(1) || matches!(*self.body, Base::General(_)) {
            return Ok(self);
        }
        if let Base::Radial { densities, .. } = Arc::make_mut(&mut self.body) {
            *densities = count.max(1);
        }
        Ok(self.changed())
    }

    /// This kernel without the results for what it was before.
    fn changed(mut self) -> Self {
        self.made = Arc::default();
        self
    }

    /// Chooses whether a source acts on itself. Default: it does, unless the kernel is singular.
    pub fn self_interaction(mut self, own: SelfInteraction) -> Self {
        self.own = Some(own);
        self.changed()
    }

    /// Sets the parameter `name`.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`].
    pub fn set(mut self, name: &str, value: f64) -> Result<Self, Error> {
        let known = || self.parameters.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ");
        match self.parameters.iter().position(|(n, _)| n == name) {
            Some(k) => self.parameters[k].1 = Some(value),
            None => return Err(Error::UnknownParameter { name: name.to_string(), known: known() }),
        }
        Ok(self.changed())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the parameters, with their values where they have one.
    pub fn parameters(&self) -> &[(String, Option<f64>)] {
        &self.parameters
    }

    /// The values of the parameters.
    ///
    /// # Errors
    /// [`Error::MissingParameter`]; [`Error::TooMany`] parameters; [`Error::Parameter`] for one that is not finite.
    pub fn parameter_values(&self) -> Result<Vec<f64>, Error> {
        // One place is for the unit of length.
        at_most("parameters of a kernel", self.parameters.len(), MAX_PARAMETERS - 1)?;
        let value = |(name, value): &(String, Option<f64>)| match value {
            None => Err(Error::MissingParameter { kernel: self.name.clone(), name: name.clone() }),
            Some(x) if !x.is_finite() => {
                Err(Error::Parameter { name: "a parameter of the kernel", value: *x, requirement: "must be finite" })
            }
            Some(x) => Ok(*x),
        };
        self.parameters.iter().map(value).collect()
    }

    /// The kernel as text, in the language that [`Traced::parse`] reads.
    pub fn text(&self) -> String {
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.name.chars().map(word).collect();
        let letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let mut out = format!("name {}{name}\n", if letter { "" } else { "k_" });
        for (name, value) in &self.parameters {
            out += &match value {
                Some(x) => format!("parameter {name} = {x:?}\n"),
                None => format!("parameter {name}\n"),
            };
        }
        if let Some(own) = self.own {
            out += &format!("self {}\n", own.name());
        }
        if self.most() > 1 {
            out += &format!("densities {}\n", self.most());
        }
        if self.strengths != 1 {
            out += &format!("strengths {}\n", self.strengths);
        }
        let names: Vec<String> = self.parameters.iter().map(|(n, _)| n.clone()).collect();
        // Names of results that no parameter has.
        let mut free = "t".to_string();
        while names.iter().any(|name| name.starts_with(&free)) {
            free.push('t');
        }
        let radial = |tape: &Tape, prefix: &str, keyword: &str| tape.text(&names, &["(r*r)"], prefix, keyword);
        out + &match &*self.body {
            Base::General(tape) => tape.text(&names, &["x", "y", "z"], &free, "value"),
            Base::Radial { f: Radial { value, slope, curvature, laplacians }, .. } => {
                let slope = slope.as_ref().map_or(String::new(), |tape| radial(tape, &format!("{free}s"), "slope"));
                let curvature =
                    curvature.as_ref().map_or(String::new(), |tape| radial(tape, &format!("{free}c"), "curvature"));
                let prefix = |k: usize| format!("{free}l{k}_");
                let more = laplacians.iter().enumerate().map(|(k, tape)| radial(tape, &prefix(k), "laplacian"));
                radial(value, &free, "value") + &slope + &curvature + &more.collect::<String>()
            }
        }
    }

    /// Equivalent densities.
    fn most(&self) -> usize {
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

    /// Strengths of a source, or densities.
    fn given(&self, part: Part) -> usize {
        match part {
            Part::Near | Part::Check => self.strengths,
            Part::Equivalent | Part::Far => self.strengths * self.most(),
        }
    }

    /// The operations of the values with `derived` derivatives, at `unit`·r where a unit is a parameter. Values at
    /// r = 0 are those of the operations.
    fn tape(&self, part: Part, derived: usize, unit: Option<usize>, params: &[f64]) -> Tape {
        let laplacians = match &*self.body {
            // An error has been reported by `make`.
            Base::Radial { f, .. } => {
                f.laplacians(self.values(part) + self.given(part) - 1, params).unwrap_or_default()
            }
            Base::General(_) => Vec::new(),
        };
        let done = record_with(3, |p, r, q| {
            let factor = unit.map(|k| p[k]);
            Ok::<_, std::convert::Infallible>(match &*self.body {
                Base::Radial { .. } => {
                    radial::hankel(&laplacians, [self.values(part), self.given(part)], derived, factor, p, r, q)
                }
                Base::General(tape) => general(tape, derived, factor, p, r, q),
            })
        });
        match done {
            Ok(tape) => tape,
        }
    }

    /// Whether the values at r = 0 are not finite, with 1/√0 = ∞.
    fn singular(&self, part: Part, params: &[f64]) -> bool {
        let lift = |x: &[f64]| x.iter().map(|&x| Unguarded(x)).collect::<Vec<_>>();
        let mut values = vec![Unguarded(0.0); self.values(part)];
        self.tape(part, 0, None, params).evaluate(
            &lift(params),
            &lift(&[0.0; 3]),
            &lift(&[1.0; MAX_STRENGTHS]),
            &mut values,
        );
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
                let all = f.laplacians(2 * densities - 1, &params)?;
                all.iter().map(|f| f.value.nodes().len()).max().unwrap_or(0)
            }
        };
        at_most("operations of a kernel", most, MAX_OPERATIONS)?;
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
        let degrees = self.tape(Part::Near, 0, None, &params).degrees(params.len(), self.strengths);
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
            columns: derivative_columns(self.values(Part::Near), outputs),
            params,
            scale: 1.0,
            include_self: include,
        })
    }

    fn member(&self, part: Part, derived: usize, rule: &Rule, params: &[f64]) -> Member {
        let (mut tape, plain) = (self.tape(part, derived, rule.unit, params), self.tape(part, 0, rule.unit, params));
        let (singular, count) = (self.singular(part, params), self.values(part));
        tape = if singular { guarded(&tape, params) } else { finite_at_zero(&tape, params, count) };
        let tape = Arc::new(tape);
        // Each application of the Laplacian takes two powers of a length.
        let of_value = |i: usize| if i < rule.values.len() { rule.values[i] } else { rule.values[0] - 2 * i as i32 };
        let of_strength = |j: usize| if j < rule.strengths.len() { rule.strengths[j] } else { -2 * j as i32 };
        let degree = |i: usize| match i {
            _ if i < count => of_value(i),
            _ if i < 4 * count => of_value((i - count) / 3) - 1,
            _ => of_value((i - 4 * count) / 6) - 2,
        };
        let radial = matches!(&*self.body, Base::Radial { .. });
        let square = count == self.given(part);
        let mut member = Member {
            name: self.name.clone(),
            id: Identity::Tape(tape.clone()),
            type_name: "traced".into(),
            strengths: self.given(part),
            values: tape.values().len(),
            singular,
            reciprocal: radial && derived == 0 && square,
            piecewise: !radial && plain.any(|op| op == Op::Select),
            derived,
            strength_degrees: (0..self.given(part)).map(of_strength).collect(),
            value_degrees: (0..tape.values().len()).map(degree).collect(),
            body: Arc::new(Program { tape, plain, rule: rule.clone() }),
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

fn named(parameters: &[(&str, f64)]) -> Vec<(String, Option<f64>)> {
    parameters.iter().map(|(name, value)| (name.to_string(), Some(*value))).collect()
}

fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit { Err(Error::TooMany { what, found, limit }) } else { Ok(()) }
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

/// The functions of a [`Member`] that is a tape.
struct Program {
    tape: Arc<Tape>,
    plain: Tape,
    rule: Rule,
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
        let Rule { parameters, unit, .. } = &self.rule;
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
    fn tape(&self) -> Tape {
        (*self.tape).clone()
    }
}

/// h^d. Integer powers of a power of two are exact.
fn power(h: f64, d: f64) -> f64 {
    if d == d.round() { h.powi(d as i32) } else { h.powf(d) }
}

/// The values of a kernel with `derived` derivatives, where `factor` multiplies lengths.
fn general(
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
            u.iter().map(|u| u.v).chain(u.iter().flat_map(|u| u.d)).collect()
        }
        _ => {
            let twice = |x: &[Symbol]| constant(x).into_iter().map(Dual::constant).collect::<Vec<_>>();
            let h = Dual::constant(Dual::constant(h));
            let mut u = vec![h; n];
            let r: Vec<_> = (0..3).map(|a| Dual::variable(Dual::variable(r[a], a), a) * h).collect();
            tape.evaluate(&twice(p), &r, &twice(q), &mut u);
            let upper = |u: &Dual<Dual<Symbol>>| {
                let d = u.d;
                [d[0].d[0], d[0].d[1], d[0].d[2], d[1].d[1], d[1].d[2], d[2].d[2]]
            };
            let values = u.iter().map(|u| u.v.v).chain(u.iter().flat_map(|u| u.v.d));
            values.chain(u.iter().flat_map(upper)).collect()
        }
    }
}

/// `tape` with values that are exactly 0 at r = 0, as singular kernels must have.
fn guarded(tape: &Tape, params: &[f64]) -> Tape {
    let tape = &with_reciprocal_roots(tape);
    let values = at_zero(tape, params);
    if values.iter().all(|&x| x == 0.0) { tape.clone() } else { zero_at_zero(tape, |_| true) }
}

/// `tape` with derivatives that are 0 at r = 0 where they would not be finite. The first `count` values are no
/// derivatives.
fn finite_at_zero(tape: &Tape, params: &[f64], count: usize) -> Tape {
    let values = at_zero(tape, params);
    if values[count.min(values.len())..].iter().all(|x| x.is_finite()) {
        return tape.clone();
    }
    zero_at_zero(tape, |i| i >= count && !values[i].is_finite())
}

/// The values at r = 0 for strengths of which no sum is 0.
fn at_zero(tape: &Tape, params: &[f64]) -> Vec<f64> {
    const STRENGTHS: [f64; MAX_STRENGTHS] = [0.83, -0.61, 1.27, -0.453, 0.947, 1.611, -0.377, 0.239, -1.133];
    let mut values = vec![0.0; tape.values().len()];
    tape.evaluate(params, &[0.0; 3], &STRENGTHS, &mut values);
    values
}

/// `tape` with 0 at r = 0 for some values.
fn zero_at_zero(tape: &Tape, is_zero: impl Fn(usize) -> bool) -> Tape {
    let done = record_with(3, |p, r, q| {
        let zero = Symbol::splat(0.0);
        let coincide = dot(r, r).eq(zero);
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
struct Unguarded(f64);

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

#[cfg(test)]
mod tests;
