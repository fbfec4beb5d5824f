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

mod expression;
mod isotropic;
mod make;
pub mod parse;
mod radial;
mod transposed;
mod zero;

use crate::kernel::{MAX_PARAMETERS, MAX_POTENTIALS, MAX_STRENGTHS, Outputs};
use crate::lane::Lane;
use crate::member::Kernels;
use crate::record::{Recorded, record_with};
use crate::tape::Tape;
use crate::{Error, SelfInteraction};
use radial::Radial;
use std::sync::{Arc, Mutex};

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
    /// Coordinates of a point: 3, or 2 in the plane.
    dim: usize,
    /// Names and values.
    parameters: Vec<(String, Option<f64>)>,
    /// Parameters with a value of its own for each source.
    attributes: Vec<usize>,
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
        let (name, body) = (name.into(), Arc::new(base));
        Traced { name, dim: 3, parameters, attributes: Vec::new(), strengths, body, own: None, made: Arc::default() }
    }

    /// The kernel in the plane z = 0: points have two coordinates, and r = √(x² + y²). Laplacians in closed form and
    /// [`densities`](Traced::densities) that were given for space are dropped.
    ///
    /// ```
    /// use fmm_traits::{Lane, Traced};
    /// let yukawa = Traced::radial("yukawa2d", &[("kappa", 3.0)], |r, p| (p[0] * r).bessel_k0()).in_plane();
    /// assert_eq!(yukawa.dim(), 2);
    /// ```
    pub fn in_plane(mut self) -> Self {
        if self.dim == 2 {
            return self;
        }
        match Arc::make_mut(&mut self.body) {
            Base::General(tape) => {
                let zero = || Symbol::splat(0.0);
                let flat = record_with(3, |p, r, q| {
                    let mut values = vec![zero(); tape.values().len()];
                    tape.evaluate(p, &[r[0], r[1], zero()], q, &mut values);
                    Ok::<_, std::convert::Infallible>(values)
                });
                *tape = match flat {
                    Ok(tape) => tape,
                };
            }
            Base::Radial { f, densities } => {
                f.laplacians.clear();
                *densities = 1;
            }
        }
        self.dim = 2;
        self.changed()
    }

    /// Coordinates of a point: 3, or 2 in the plane.
    pub fn dim(&self) -> usize {
        self.dim
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
        let at = self.place_of(name)?;
        self.parameters[at].1 = Some(value);
        Ok(self.changed())
    }

    /// Makes the parameter `name` an attribute of the sources, such as a radius: each source has a value of its own. A
    /// source then has one strength more, its attribute, after the strengths of the kernel and earlier attributes.
    ///
    /// Far fields are expanded in fields of sources that all have the value of the parameter, so it should lie among
    /// the values of the sources. A plan measures the error of that.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`].
    pub fn attribute(mut self, name: &str) -> Result<Self, Error> {
        let at = self.place_of(name)?;
        if !self.attributes.contains(&at) {
            self.attributes.push(at);
        }
        Ok(self.changed())
    }

    /// The names of the attributes of a source, in the order in which they follow its strengths.
    pub fn attribute_names(&self) -> Vec<String> {
        self.attributes.iter().map(|&at| self.parameters[at].0.clone()).collect()
    }

    /// The index of a parameter.
    fn place_of(&self, name: &str) -> Result<usize, Error> {
        self.parameters.iter().position(|(n, _)| n == name).ok_or_else(|| Error::UnknownParameter {
            name: name.to_string(),
            known: self.parameters.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "),
        })
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
        if self.dim == 2 {
            out += "dim 2\n";
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
}

fn named(parameters: &[(&str, f64)]) -> Vec<(String, Option<f64>)> {
    parameters.iter().map(|(name, value)| (name.to_string(), Some(*value))).collect()
}

fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found > limit { Err(Error::TooMany { what, found, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
