//! Stokes flow: μΔu = ∇p, ∇·u = 0, r = target − source. The potential of these kernels is the
//! velocity u, and everything is a multiple of the shared `scale` 1/(8πμ):
//!
//! | strength | velocity · 8πμ | pressure · 8πμ |
//! |---|---|---|
//! | force f | f/r + r (r·f)/r³ | 2μ r·f/r³, that is p = r·f/(4πr³) |
//! | force dipole D (stresslet) | 3 r (r·D·r)/r⁵ | 2μ (3 r·D·r/r⁵ − tr D/r³) |
//! | sink s | −s r/r³ | 0 |
//!
//! The stresslet has the sign of the source gradient: up to the sink s = tr D it is D_jk ∂/∂y_k of the Stokeslet of a
//! unit force along j, D symmetric. The antisymmetric part of D (a torque) does not contribute. A double layer with
//! normal n and density φ, kernel 3 r_i r_j r_k n_j φ_k/(4πr⁵), is D = 2μ nφᵀ. Strengths must enter linearly, so the
//! nine entries D_xx, D_xy, … D_zz are the strengths, not n and φ.
//!
//! # Why four equivalent components
//!
//! Three equivalent forces per point leave two gaps:
//!
//! * Forces on a closed surface produce no net flux through it. A stresslet with tr D ≠ 0 does (4π tr D/(8πμ)), so no
//!   distribution of forces reproduces it outside. The sink as a fourth strength does.
//! * Inside a surface, velocities fix the pressure only up to a constant. (Forces along the normal change that constant
//!   and nothing else.) The pressure as a fourth check value fixes the constant.
//!
//! Velocities of Stokeslets need neither, so [`Stokes`] uses three components.
//!
//! Check pressures are divided by 2μ. The operators then do not depend on μ, and a small viscosity does not push the
//! pressure rows below the cutoff of the pseudo-inverse.

use fmm_traits::kernel::{check_outputs, visit_derivatives};
use fmm_traits::{Error, Family, Kernel, Lane, OutputColumns, Outputs, Visitor, lane::dot};
use std::{f64::consts::PI, fmt::Debug, marker::PhantomData};

/// Stokeslets (force vectors) → velocity (f/r + r(r·f)/r³)/(8πμ).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stokes {
    /// Dynamic viscosity μ > 0.
    pub mu: f64,
}

/// Stokeslets (force vectors) → velocity and pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StokesPressure {
    /// Dynamic viscosity μ > 0.
    pub mu: f64,
}

/// Stresslets (D_xx, D_xy, … D_zz, in force × length) → velocity and pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stresslet {
    /// Dynamic viscosity μ > 0.
    pub mu: f64,
}

fn scale(mu: f64) -> f64 {
    0.125 / (PI * mu)
}

fn validate(mu: f64) -> Result<(), Error> {
    if mu > 0.0 && mu.is_finite() {
        return Ok(());
    }
    Err(Error::Parameter { name: "mu", value: mu, requirement: "must be finite and > 0" })
}

impl Kernel for Stokes {
    const NAME: &'static str = "stokes";
    const STRENGTHS: usize = 3;
    const VALUES: usize = 3;

    #[inline(always)]
    fn eval<V: Lane>(_: &[V], r: &[V], f: &[V], u: &mut [V]) {
        u.copy_from_slice(&Force::flow(r, f).0);
    }
    /// ∂u_i/∂x_k = (r_i f_k − f_i r_k + δ_ik s)/r³ − 3 s r_i r_k/r⁵, s = r·f.
    #[inline(always)]
    fn eval_gradient<V: Lane>(params: &[V], r: &[V], f: &[V], out: &mut [V]) {
        let w = dot(r, r).rsqrt();
        let w3 = w * w * w;
        let sw3 = dot(r, f) * w3;
        let t = V::splat(-3.0) * (sw3 * (w * w));
        Self::eval(params, r, f, &mut out[..3]);
        for i in 0..3 {
            let (tr, wr, wf) = (t * r[i], w3 * r[i], w3 * f[i]);
            for k in 0..3 {
                let g = if i == k { sw3 } else { wr * f[k] - wf * r[k] };
                out[3 + 3 * i + k] = tr.mul_add(r[k], g);
            }
        }
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
    fn scale(&self) -> f64 {
        scale(self.mu)
    }
    fn validate(&self) -> Result<(), Error> {
        validate(self.mu)
    }
}

/// A point singularity of Stokes flow.
pub trait Singularity: Copy + Debug + Send + Sync + 'static {
    /// Strengths per source.
    const STRENGTHS: usize;
    /// Names of its [`Velocity`], [`VelocityPressure`] and [`CheckValues`] kernels.
    const NAMES: [&'static str; 3];
    /// Degree of strength `j` under dilation.
    fn degree(j: usize) -> i32;
    /// Velocity·8πμ and pressure·4π (the table of the module).
    fn flow<V: Lane>(r: &[V], strengths: &[V]) -> ([V; 3], V);
}

/// A force vector (Stokeslet).
#[derive(Clone, Copy, Debug)]
pub enum Force {}

impl Singularity for Force {
    const STRENGTHS: usize = 3;
    const NAMES: [&'static str; 3] = ["stokes", "stokes_pressure", "stokes_check"];
    fn degree(_: usize) -> i32 {
        0
    }
    #[inline(always)]
    fn flow<V: Lane>(r: &[V], f: &[V]) -> ([V; 3], V) {
        let w = dot(r, r).rsqrt();
        let s = dot(r, f) * (w * w);
        let mut u = [w; 3];
        for i in 0..3 {
            u[i] = w * s.mul_add(r[i], f[i]);
        }
        (u, w * s)
    }
}

/// A symmetric force dipole, nine entries row by row (stresslet).
#[derive(Clone, Copy, Debug)]
pub enum ForceDipole {}

impl Singularity for ForceDipole {
    const STRENGTHS: usize = 9;
    const NAMES: [&'static str; 3] = ["stresslet", "stresslet_pressure", "stresslet_check"];
    fn degree(_: usize) -> i32 {
        -1
    }
    #[inline(always)]
    fn flow<V: Lane>(r: &[V], d: &[V]) -> ([V; 3], V) {
        let w = dot(r, r).rsqrt();
        let w3 = w * w * w;
        let dr = [dot(&d[0..3], r), dot(&d[3..6], r), dot(&d[6..9], r)];
        let t = V::splat(3.0) * (dot(r, &dr) * (w * w));
        let trace = d[0] + d[4] + d[8];
        let tw3 = t * w3;
        ([tw3 * r[0], tw3 * r[1], tw3 * r[2]], w3 * (t - trace))
    }
}

/// A force vector and a sink: the equivalent density that carries net flux.
#[derive(Clone, Copy, Debug)]
pub enum ForceSink {}

impl Singularity for ForceSink {
    const STRENGTHS: usize = 4;
    const NAMES: [&'static str; 3] = ["force_sink", "force_sink_pressure", "force_sink_check"];
    fn degree(j: usize) -> i32 {
        if j < 3 { 0 } else { -1 }
    }
    #[inline(always)]
    fn flow<V: Lane>(r: &[V], s: &[V]) -> ([V; 3], V) {
        let (mut u, p) = Force::flow(r, &s[..3]);
        let w = dot(r, r).rsqrt();
        let t = -(s[3] * (w * w * w));
        for i in 0..3 {
            u[i] = t.mul_add(r[i], u[i]);
        }
        (u, p)
    }
}

/// A [`Singularity`] → velocity and, by `PRESSURE`, one pressure value after it.
#[derive(Clone, Copy, Debug)]
pub struct Flow<S, const PRESSURE: usize>(PhantomData<S>);
/// `S` → velocity.
pub type Velocity<S> = Flow<S, 0>;
/// `S` → velocity, pressure; `params[0]` = μ.
pub type VelocityPressure<S> = Flow<S, 1>;
/// `S` → velocity, pressure/(2μ).
pub type CheckValues<S> = Flow<S, 2>;

impl<S: Singularity, const PRESSURE: usize> Kernel for Flow<S, PRESSURE> {
    const NAME: &'static str = S::NAMES[PRESSURE];
    const STRENGTHS: usize = S::STRENGTHS;
    const VALUES: usize = if PRESSURE == 0 { 3 } else { 4 };
    const RECIPROCAL: bool = Self::STRENGTHS == Self::VALUES && PRESSURE != 1;

    #[inline(always)]
    fn eval<V: Lane>(params: &[V], r: &[V], strengths: &[V], values: &mut [V]) {
        let (u, p) = S::flow(r, strengths);
        values[..3].copy_from_slice(&u);
        match PRESSURE {
            0 => {}
            1 => values[3] = (params[0] + params[0]) * p,
            _ => values[3] = p,
        }
    }
    fn value_degree(i: usize) -> i32 {
        if i < 3 { -1 } else { -2 }
    }
    fn strength_degree(j: usize) -> i32 {
        S::degree(j)
    }
}

/// A visitor that passes kernels of four values (velocity, pressure) on to another visitor, with the pressure listed as
/// an output of its own.
struct SplitPressure<W>(W);

impl<W: Visitor> Visitor for SplitPressure<W> {
    type Output = W::Output;
    fn visit<S: Kernel, E: Kernel>(self, mut columns: Vec<OutputColumns>) -> W::Output {
        for c in &mut columns {
            if c.output == Outputs::PRESSURE {
                c.columns = vec![3];
            } else {
                // Value-major: the last quarter belongs to the pressure.
                c.columns.truncate(c.columns.len() / 4 * 3);
            }
        }
        self.0.visit::<S, E>(columns)
    }
}

macro_rules! four_components_inside {
    ($family:ident, $source:ident) => {
        impl Family for $family {
            type Source = VelocityPressure<$source>;
            type Check = CheckValues<$source>;
            type Equivalent = CheckValues<ForceSink>;
            type Far = VelocityPressure<ForceSink>;
            fn name(&self) -> &'static str {
                Self::Source::NAME
            }
            fn parameters(&self) -> Vec<f64> {
                vec![self.mu]
            }
            fn scale(&self) -> f64 {
                scale(self.mu)
            }
            fn validate(&self) -> Result<(), Error> {
                validate(self.mu)
            }
            fn outputs(&self) -> Outputs {
                Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN | Outputs::PRESSURE
            }
            fn visit<W: Visitor>(&self, outputs: Outputs, visitor: W) -> Result<W::Output, Error> {
                check_outputs(self, outputs)?;
                if outputs.contains(Outputs::PRESSURE) {
                    let split = SplitPressure(visitor);
                    return Ok(visit_derivatives::<Self::Source, Self::Far, _>(outputs, split));
                }
                Ok(visit_derivatives::<Velocity<$source>, Velocity<ForceSink>, _>(outputs, visitor))
            }
        }
    };
}
four_components_inside!(StokesPressure, Force);
four_components_inside!(Stresslet, ForceDipole);
