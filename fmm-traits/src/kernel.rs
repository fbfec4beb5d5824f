//! Green's functions, written once.
//!
//! A [`Kernel`] is a pairwise function: strengths at a source in, values at a target out. A kernel knows no tree, no
//! expansion and no device. Its author writes [`Kernel::eval`] and a few facts.
//!
//! A plan is made for a [`Family`] of kernels. Kernels of one family may differ in what a source carries (charge,
//! dipole, stresslet), in the equivalent density, and in what a target receives (potential, gradient, pressure). Every
//! plain kernel is a family by itself.
//!
//! # Dilation
//!
//! All expansion operators live on a box of side 1. A kernel therefore states how it behaves when
//! lengths are multiplied by h > 0:
//!
//! K(params, h·r)\[i\]\[j\] = h^(value_degree(i) + strength_degree(j)) · K(dilated(params, h), r)\[i\]\[j\].
//!
//! A homogeneous kernel has `dilated(params, h) = params`: one operator set then serves all
//! levels. Yukawa multiplies κ by h.

use crate::{Error, dual::Dual, lane::Lane, member::Member};
use std::{fmt::Debug, marker::PhantomData};

/// Upper bound on the strengths or values of a kernel with its gradient and Hessian: 10 numbers for each of
/// [`MAX_POTENTIALS`] values.
pub const MAX_COMPONENTS: usize = 10 * MAX_POTENTIALS;
/// Largest number of values of a kernel, without derivatives.
pub const MAX_POTENTIALS: usize = 6;
/// Largest number of strengths of a source.
pub const MAX_STRENGTHS: usize = 9;
/// Largest number of parameters of a kernel. A larger number is an error of
/// [`facts::validate`](crate::facts::validate).
pub const MAX_PARAMETERS: usize = 16;

/// Stops the compilation of a kernel with more values or strengths than the arrays of the backends hold.
pub const fn assert_limits<K: Kernel>() {
    let enough = K::VALUES >= 1 && K::VALUES <= MAX_POTENTIALS * DERIVATIVE_FACTORS[K::DERIVED];
    assert!(enough, "VALUES of a kernel is not 1 to 6 (MAX_POTENTIALS)");
    let enough = K::STRENGTHS >= 1 && K::STRENGTHS <= MAX_STRENGTHS;
    assert!(enough, "STRENGTHS of a kernel is not 1 to 9 (MAX_STRENGTHS)");
    assert!(K::DIM == 2 || K::DIM == 3, "DIM of a kernel is neither 2 nor 3");
}

/// [`Kernel::eval`] in f64: parameters, r, strengths, values.
#[doc(hidden)]
pub type Eval = fn(&[f64], &[f64], &[f64], &mut [f64]);

/// Numbers per value: the value alone, with its gradient, with its gradient and Hessian.
pub(crate) const DERIVATIVE_FACTORS: [usize; 3] = [1, 4, 10];

/// A pairwise function, written once over any [`Lane`]. [`NAME`](Kernel::NAME), [`eval`](Kernel::eval) and
/// [`value_degree`](Kernel::value_degree) are required; all other items have defaults. Every plan tries the facts
/// against `eval` and refuses a kernel with a wrong fact ([`facts`](crate::facts)).
///
/// Mark `eval`, other functions of the trait that you write over lanes, and their helpers `#[inline(always)]`. The
/// calling function enables the instruction set. A body that is not inlined there calls a function for each vector
/// operation, which is ten times slower. Write loops, not closures (`std::array::from_fn`): the compiler does not
/// always inline closures.
pub trait Kernel: Clone + Debug + Send + Sync + 'static {
    /// Name used in reports, fingerprints and as the CUDA function name (an identifier).
    const NAME: &'static str;
    /// Coordinates of a point: 3, or 2 for a kernel of the plane. A kernel of the plane counts as a kernel of space
    /// that is constant along z: its slots for derivatives along z hold zeros, and no output shows them.
    const DIM: usize = 3;
    /// Strengths per source.
    const STRENGTHS: usize = 1;
    /// Values per target.
    const VALUES: usize = 1;
    /// The highest derivative of the values that a plan may ask for: 1 for the gradient, 2 for the Hessian. Higher
    /// derivatives are not compiled. Most of the compile time of a kernel goes to its Hessian.
    const DERIVATIVES: usize = 2;
    /// The highest derivative for which the compiler makes a loop over pairs: 1 means values and gradients. A sum with
    /// a higher derivative interprets the recorded operations of the kernel, as for a kernel made at run time. A
    /// Hessian by dual numbers is 1 to 3.6 times as fast that way (`runs/2026-11-24-zen4x2/pair-rates.txt`), and costs
    /// no time to compile. Set 2 if you write [`eval_hessian`](Kernel::eval_hessian) by hand.
    const COMPILED: usize = 1;
    /// If true, `eval` must yield exactly 0 at r = 0 ([`Lane::rsqrt`] does so by itself). If false, it must yield a
    /// finite number there, which is added for points that coincide.
    const SINGULAR: bool = true;
    /// Whether K(−r) = K(r)ᵀ. Then `apply_transpose` is `apply` with the roles exchanged, and opposite offsets share
    /// operators. A kernel without this property (odd in r, for example) must set `false`: a plan refuses a wrong claim
    /// ([`facts`](crate::facts)).
    const RECIPROCAL: bool = Self::VALUES == Self::STRENGTHS;
    /// Derivatives that follow the values: 1 in [`Gradient`], 2 in [`Hessian`].
    #[doc(hidden)]
    const DERIVED: usize = 0;

    /// The kernel: `values` ← K(r)·`strengths`, r = target − source. `r` has `DIM` entries, `strengths` has
    /// `STRENGTHS`, `values` has `VALUES` (overwritten). `params` are the [`parameters`](Kernel::parameters).
    fn eval<V: Lane>(params: &[V], r: &[V], strengths: &[V], values: &mut [V]);

    /// Values, then the gradient (∂x, ∂y, ∂z of value 0, of value 1, …) with respect to the
    /// target: `VALUES·4` numbers. Default: dual numbers. Pairs of 1/r then take 1.2 times as long as with a
    /// gradient written by hand (`runs/2026-11-29-zen5x2/own-gradients.txt`, with other kernels).
    #[inline(always)]
    fn eval_gradient<V: Lane>(params: &[V], r: &[V], strengths: &[V], out: &mut [V]) {
        gradient_by_dual::<Self, V>(params, r, strengths, out);
    }

    /// Values, gradients, then Hessians (xx, xy, xz, yy, yz, zz of value 0, …): `VALUES·10`
    /// numbers. Default: nested dual numbers.
    #[inline(always)]
    fn eval_hessian<V: Lane>(params: &[V], r: &[V], strengths: &[V], out: &mut [V]) {
        hessian_by_dual::<Self, V>(params, r, strengths, out);
    }

    /// Degree of value `i` under dilation (module header). Laplace: −1.
    fn value_degree(i: usize) -> i32;
    /// Degree of strength `j` under dilation. Charges: 0; dipoles: −1.
    fn strength_degree(j: usize) -> i32 {
        let _ = j;
        0
    }
    /// The parameters after a dilation by `h`; `None` for a homogeneous kernel, none of whose parameters change.
    fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
        let _ = (params, h);
        None
    }
    /// The parameters in units of `h`: [`dilated`](Kernel::dilated), or `params` themselves.
    fn unit_parameters(params: &[f64], h: f64) -> Vec<f64> {
        Self::dilated(params, h).unwrap_or_else(|| params.to_vec())
    }
    /// The numbers handed to `eval` as `params`.
    fn parameters(&self) -> Vec<f64> {
        Vec::new()
    }
    /// Constant factor of the whole sum, applied once outside the pair loop (1/(4π), …).
    fn scale(&self) -> f64 {
        1.0
    }
    /// Checks the parameters.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
    /// [`eval`](Kernel::eval) in f64 of the kernel without its derivatives.
    #[doc(hidden)]
    fn underived() -> Eval {
        Self::eval::<f64>
    }
}

/// Whether K(−r) = K(r)ᵀ at `r`, to ten digits of the largest entry.
pub fn reciprocal_at<K: Kernel>(params: &[f64], r: [f64; 3]) -> bool {
    Member::of::<K>().reciprocal_at(params, r)
}

/// `K` with its gradient; see [`Kernel::eval_gradient`] for the layout.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<K>(PhantomData<K>);
/// `K` with its gradient and Hessian; see [`Kernel::eval_hessian`] for the layout.
#[derive(Clone, Copy, Debug)]
pub struct Hessian<K>(PhantomData<K>);

/// Degree of output `i` when `n` values of the degrees `of_value` are extended by derivatives.
pub(crate) fn derivative_degree(n: usize, i: usize, of_value: impl Fn(usize) -> i32) -> i32 {
    match i {
        _ if i < n => of_value(i),
        _ if i < 4 * n => of_value((i - n) / 3) - 1,
        _ => of_value((i - 4 * n) / 6) - 2,
    }
}

macro_rules! derivative {
    ($wrapper:ident, $derived:literal, $eval:ident) => {
        impl<K: Kernel> Kernel for $wrapper<K> {
            const NAME: &'static str = K::NAME;
            const DIM: usize = K::DIM;
            const STRENGTHS: usize = K::STRENGTHS;
            const VALUES: usize = K::VALUES * DERIVATIVE_FACTORS[$derived];
            const SINGULAR: bool = K::SINGULAR;
            const RECIPROCAL: bool = false;
            const COMPILED: usize = K::COMPILED;
            const DERIVED: usize = $derived;
            #[inline(always)]
            fn eval<V: Lane>(params: &[V], r: &[V], strengths: &[V], values: &mut [V]) {
                K::$eval(params, r, strengths, values);
            }
            fn value_degree(i: usize) -> i32 {
                derivative_degree(K::VALUES, i, K::value_degree)
            }
            fn strength_degree(j: usize) -> i32 {
                K::strength_degree(j)
            }
            fn dilated(params: &[f64], h: f64) -> Option<Vec<f64>> {
                K::dilated(params, h)
            }
            fn underived() -> Eval {
                K::underived()
            }
        }
    };
}
derivative!(Gradient, 1, eval_gradient);
derivative!(Hessian, 2, eval_hessian);

#[inline(always)]
fn lift<V: Lane, const N: usize>(x: &[V]) -> [Dual<V>; N] {
    let mut lifted = [Dual::splat(0.0); N];
    for (to, &from) in lifted.iter_mut().zip(x) {
        *to = Dual::constant(from);
    }
    lifted
}

/// [`Kernel::eval_gradient`] through dual numbers, whatever the kernel overrides.
#[inline(always)]
pub fn gradient_by_dual<K: Kernel, V: Lane>(params: &[V], r: &[V], strengths: &[V], out: &mut [V]) {
    let (params_, strengths_) = (lift::<V, MAX_PARAMETERS>(params), lift::<V, MAX_STRENGTHS>(strengths));
    let mut r_ = [Dual::splat(0.0); 3];
    for a in 0..K::DIM {
        r_[a] = Dual::variable(r[a], a);
    }
    let mut u = [Dual::splat(0.0); MAX_POTENTIALS];
    K::eval(&params_[..params.len()], &r_[..K::DIM], &strengths_[..K::STRENGTHS], &mut u[..K::VALUES]);
    for i in 0..K::VALUES {
        out[i] = u[i].v;
        for a in 0..3 {
            out[K::VALUES + 3 * i + a] = if a < K::DIM { u[i].gradient()[a] } else { V::splat(0.0) };
        }
    }
}

/// [`Kernel::eval_hessian`] through nested dual numbers, whatever the kernel overrides.
#[inline(always)]
pub fn hessian_by_dual<K: Kernel, V: Lane>(params: &[V], r: &[V], strengths: &[V], out: &mut [V]) {
    let (p1, s1) = (lift::<V, MAX_PARAMETERS>(params), lift::<V, MAX_STRENGTHS>(strengths));
    let p2 = lift::<Dual<V>, MAX_PARAMETERS>(&p1[..params.len()]);
    let s2 = lift::<Dual<V>, MAX_STRENGTHS>(&s1[..K::STRENGTHS]);
    // No closure: it may not be compiled into the function that enables the instruction set.
    let mut r_ = [Dual::splat(0.0); 3];
    for a in 0..K::DIM {
        r_[a] = Dual::variable(Dual::variable(r[a], a), a);
    }
    let mut u = [Dual::splat(0.0); MAX_POTENTIALS];
    K::eval(&p2[..params.len()], &r_[..K::DIM], &s2[..K::STRENGTHS], &mut u[..K::VALUES]);
    let n = K::VALUES;
    for i in 0..n {
        out[i] = u[i].v.v;
        let mut at = 4 * n + 6 * i;
        for a in 0..3 {
            out[n + 3 * i + a] = if a < K::DIM { u[i].v.gradient()[a] } else { V::splat(0.0) };
            for b in a..3 {
                out[at] = if b < K::DIM { u[i].gradient()[a].gradient()[b] } else { V::splat(0.0) };
                at += 1;
            }
        }
    }
}

/// A set of outputs of a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outputs(u8);

impl Outputs {
    /// The potential (velocity for Stokes).
    pub const POTENTIAL: Outputs = Outputs(1);
    /// +∇ of the potential with respect to the target.
    pub const GRADIENT: Outputs = Outputs(2);
    /// Second derivatives of the potential.
    pub const HESSIAN: Outputs = Outputs(4);
    /// Pressure (Stokes).
    pub const PRESSURE: Outputs = Outputs(8);
    /// Every output with its name on the command line and in reports.
    pub const ALL: [(Outputs, &'static str); 4] = [
        (Self::POTENTIAL, "potential"),
        (Self::GRADIENT, "gradient"),
        (Self::HESSIAN, "hessian"),
        (Self::PRESSURE, "pressure"),
    ];
    /// No output at all.
    pub const fn empty() -> Outputs {
        Outputs(0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Whether all of `other` is in `self`.
    pub const fn contains(self, other: Outputs) -> bool {
        self.0 & other.0 == other.0
    }
    /// The outputs in `self` but not in `other`.
    pub const fn minus(self, other: Outputs) -> Outputs {
        Outputs(self.0 & !other.0)
    }
    /// The names in `self`, in the order of [`Outputs::ALL`].
    pub fn names(self) -> Vec<&'static str> {
        Self::ALL.iter().filter(|(o, _)| self.contains(*o)).map(|(_, n)| *n).collect()
    }
}
impl std::ops::BitOr for Outputs {
    type Output = Outputs;
    fn bitor(self, other: Outputs) -> Outputs {
        Outputs(self.0 | other.0)
    }
}

/// The columns of one requested output among the values of the kernel chosen by [`Family::visit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputColumns {
    /// The output.
    pub output: Outputs,
    /// For each component of the output as the user sees it, the index of a value. A full Hessian repeats the index of
    /// a symmetric entry.
    pub columns: Vec<usize>,
}

/// Receives the kernels that compute the outputs of a plan (a closure generic over types).
pub trait Visitor {
    /// The result of the visit.
    type Output;
    /// `S`: strengths → requested values. `E`: equivalent densities → the same values.
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Self::Output;
}

/// The kernels of one plan, which belong together. Every [`Kernel`] is a family. A type implements this trait itself if
/// its sources, equivalent densities and outputs differ.
///
/// All members share the parameters and the scale. `Check` and `Equivalent` have the same values. `Equivalent` has as
/// many strengths as values here; its matrix may be singular, because the surface solve is a pseudo-inverse.
pub trait Family: Clone + Debug + Send + Sync + 'static {
    /// Source → values at the targets.
    type Source: Kernel;
    /// Source → check values.
    type Check: Kernel;
    /// Equivalent density → check values.
    type Equivalent: Kernel;
    /// Equivalent density → values at the targets.
    type Far: Kernel;

    /// Name in reports.
    fn name(&self) -> &'static str;
    /// Parameters of all members.
    fn parameters(&self) -> Vec<f64>;
    /// Factor of the whole sum.
    fn scale(&self) -> f64;
    /// Checks the parameters.
    fn validate(&self) -> Result<(), Error>;
    /// Distance within which pairs must be summed directly for a relative error `tolerance`; 0 for no such distance. A
    /// softened kernel has one: its far field is that of the unsoftened kernel.
    fn near_radius(&self, tolerance: f64) -> f64 {
        let _ = tolerance;
        0.0
    }
    /// The outputs this family has.
    fn outputs(&self) -> Outputs {
        match most_derivatives::<Self::Source, Self::Far>() {
            0 => Outputs::POTENTIAL,
            1 => Outputs::POTENTIAL | Outputs::GRADIENT,
            _ => Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN,
        }
    }
    /// Calls `visitor` with the kernels for `outputs`. The error names a missing output.
    fn visit<W: Visitor>(&self, outputs: Outputs, visitor: W) -> Result<W::Output, Error> {
        check_outputs(self, outputs)?;
        Ok(visit_derivatives::<Self::Source, Self::Far, W>(outputs, visitor))
    }
}

/// An error for an empty set of outputs, and for an output that `family` does not have.
pub fn check_outputs<F: Family>(family: &F, outputs: Outputs) -> Result<(), Error> {
    let missing = outputs.minus(family.outputs());
    if outputs.is_empty() {
        return Err(Error::NoOutput);
    }
    if !missing.is_empty() {
        return Err(Error::UnsupportedOutput {
            kernel: family.name().into(),
            output: missing.names().join(", "),
            supported: family.outputs().names().join(", "),
        });
    }
    Ok(())
}

/// The highest derivative that both kernels have.
const fn most_derivatives<S: Kernel, E: Kernel>() -> usize {
    if S::DERIVATIVES < E::DERIVATIVES { S::DERIVATIVES } else { E::DERIVATIVES }
}

/// The columns of each of `outputs` for a kernel of `n` values in `dim` dimensions, which their gradients and Hessians
/// follow.
pub(crate) fn derivative_columns(dim: usize, n: usize, outputs: Outputs) -> Vec<OutputColumns> {
    let hessian: &[usize] = if dim == 2 { &[0, 1, 1, 3] } else { &[0, 1, 2, 1, 3, 4, 2, 4, 5] };
    let layout = |output: Outputs| -> Vec<usize> {
        match output {
            Outputs::POTENTIAL => (0..n).collect(),
            Outputs::GRADIENT => (0..n).flat_map(|i| (0..dim).map(move |a| n + 3 * i + a)).collect(),
            _ => (0..n).flat_map(|i| hessian.iter().map(move |k| 4 * n + 6 * i + k)).collect(),
        }
    };
    Outputs::ALL
        .iter()
        .filter(|(o, _)| outputs.contains(*o))
        .map(|&(output, _)| OutputColumns { output, columns: layout(output) })
        .collect()
}

/// Visits with `S` and `E` extended by as many derivatives as `outputs` need. Derivatives above [`Kernel::DERIVATIVES`]
/// do not exist.
#[expect(clippy::collapsible_if, reason = "the outer condition decides what is compiled")]
pub fn visit_derivatives<S: Kernel, E: Kernel, W: Visitor>(outputs: Outputs, visitor: W) -> W::Output {
    let columns = derivative_columns(S::DIM, S::VALUES, outputs);
    // The compiler evaluates each `const` condition before it compiles the branch.
    if const { most_derivatives::<S, E>() >= 2 } {
        if outputs.contains(Outputs::HESSIAN) {
            return visitor.visit::<Hessian<S>, Hessian<E>>(columns);
        }
    }
    if const { most_derivatives::<S, E>() >= 1 } {
        if outputs.contains(Outputs::GRADIENT) {
            return visitor.visit::<Gradient<S>, Gradient<E>>(columns);
        }
    }
    visitor.visit::<S, E>(columns)
}

impl<K: Kernel> Family for K {
    type Source = K;
    type Check = K;
    type Equivalent = K;
    type Far = K;
    fn name(&self) -> &'static str {
        K::NAME
    }
    fn parameters(&self) -> Vec<f64> {
        Kernel::parameters(self)
    }
    fn scale(&self) -> f64 {
        Kernel::scale(self)
    }
    fn validate(&self) -> Result<(), Error> {
        Kernel::validate(self)
    }
}
