//! The pair loop of a kernel with the facts that stages need, a [`Pair`], and all pair loops of a family ([`Pairs`]).
//! Stages use them instead of kernel types, so that they are compiled once for all kernels.

use crate::lanes::Isa;
use crate::power_of_two;
use crate::soa::{Soa, Targets};
use crate::sum::{PairSum, sum, together};
use crate::traced::Program;
use fmm_traits::kernel::{MAX_COMPONENTS, MAX_STRENGTHS};
use fmm_traits::{Error, Family, Kernel, Kernels, Member, OutputColumns, Outputs, Real, Visitor};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// A loop over pairs.
#[derive(Clone)]
enum Loop<T> {
    /// Compiled for one kernel.
    Compiled(PairSum<T>),
    /// Carries out the operations of a kernel.
    Traced(Arc<Program<T>>),
}

/// The loop over pairs for one kernel, with the facts about the kernel that stages need.
#[derive(Clone)]
pub struct Pair<T> {
    run: Loop<T>,
    /// Numbers that make up a coordinate: 1, or 2 whose sum is the coordinate (f32 points that may be close).
    pub pieces: usize,
    /// Degree of each strength under dilation.
    pub strength_degrees: Vec<i32>,
    /// The usual values of the attributes of a source, which are the last of its strengths.
    pub attributes: Vec<f64>,
    /// Degree of each value under dilation.
    pub value_degrees: Vec<i32>,
    /// Whether a target skips itself by its index, if it is a source. False for a kernel that is zero by itself at r =
    /// 0, and for one whose sources act on themselves.
    pub skips_self: bool,
}

impl<T: Real> Pair<T> {
    /// The loop over pairs of a point and a surface, for the compiled kernel `K`.
    pub fn of<K: Kernel>() -> Self {
        if const { K::DERIVED > K::COMPILED } {
            return Self::traced(&Member::of::<K>(), 1);
        }
        Self::new(Loop::Compiled(sum::<K, T, 1>), 1, &Member::of::<K>())
    }
    /// The loop over pairs of points, for the compiled kernel `K`. Points may be close, so f32 coordinates have two
    /// pieces.
    pub fn close<K: Kernel>() -> Self {
        if const { K::DERIVED > K::COMPILED } {
            return Self::traced(&Member::of::<K>(), const { pieces::<T>() });
        }
        match const { pieces::<T>() } {
            2 => Self::new(Loop::Compiled(sum::<K, T, 2>), 2, &Member::of::<K>()),
            _ => Self::of::<K>(),
        }
    }
    /// The loop over pairs that carries out the operations of `kernel`. Coordinates have as many `pieces`.
    fn traced(kernel: &Member, pieces: usize) -> Self {
        Self::new(Loop::Traced(Arc::new(Program::new(kernel, pieces))), pieces, kernel)
    }
    /// As [`traced`](Pair::traced), with a loop by the system's C compiler.
    fn native(kernel: &Member, pieces: usize) -> Self {
        Self::new(Loop::Traced(Arc::new(Program::compiled(kernel, pieces))), pieces, kernel)
    }
    fn new(run: Loop<T>, pieces: usize, kernel: &Member) -> Self {
        let Member { strength_degrees, value_degrees, singular, attributes, .. } = kernel.clone();
        Pair { run, pieces, strength_degrees, attributes, value_degrees, skips_self: !singular }
    }
    /// [`sum()`] for this kernel.
    pub fn sum(
        &self,
        isa: Isa,
        params: &[T],
        targets: Targets<T>,
        sources: &Soa<T>,
        range: Range<usize>,
        own: Option<usize>,
        out: &mut [T],
    ) {
        match &self.run {
            Loop::Compiled(sum) => sum(isa, params, targets, sources, range, own, out),
            Loop::Traced(program) => program.sum(isa, params, targets, sources, range, own, out),
        }
    }
    /// Number of sets of strengths that share the evaluation of the kernel.
    pub fn together(&self) -> usize {
        together(self.values())
    }
    /// Strengths per source, with its attributes.
    pub fn strengths(&self) -> usize {
        self.strength_degrees.len()
    }
    /// The unit of strengths: the power of two at or below the [largest](Self::largest). Strengths are divided by it,
    /// attributes are not.
    pub fn unit_of(&self, strengths: &[f64], side: f64) -> f64 {
        power_of_two(self.largest(strengths, side))
    }
    /// The largest magnitude of `strengths`, hatted for a box of side `side`.
    pub fn largest(&self, strengths: &[f64], side: f64) -> f64 {
        let linear = &self.strength_degrees[..self.linear()];
        linear.iter().enumerate().fold(0.0f64, |largest, (c, &degree)| {
            let each = strengths.iter().skip(c).step_by(self.strengths());
            largest.max(each.fold(0.0, |m: f64, q| m.max(q.abs())) * side.powi(degree))
        })
    }
    /// Strengths per source, without its attributes.
    pub fn linear(&self) -> usize {
        self.strengths() - self.attributes.len()
    }
    /// Whether strength `c` is an attribute.
    pub fn is_attribute(&self, c: usize) -> bool {
        c >= self.linear()
    }
    /// Values per target.
    pub fn values(&self) -> usize {
        self.value_degrees.len()
    }
    /// Factors from strengths to strengths in units of a box of side `side`: side^strength_degree. Example: 1/side for
    /// a dipole.
    pub fn strength_factors(&self, side: f64) -> [f64; MAX_STRENGTHS] {
        powers(side, &self.strength_degrees)
    }
    /// Factors that convert values on the unit box to the user's units: side^value_degree.
    pub fn value_factors(&self, side: f64) -> [f64; MAX_COMPONENTS] {
        powers(side, &self.value_degrees)
    }
}

fn powers<const N: usize>(side: f64, degrees: &[i32]) -> [f64; N] {
    let mut factors = [0.0; N];
    for (f, &d) in factors.iter_mut().zip(degrees) {
        *f = side.powi(d);
    }
    factors
}

/// Numbers that make up a coordinate of close points.
const fn pieces<T: Real>() -> usize {
    if T::EPSILON > 1e-10 { 2 } else { 1 }
}

/// The pair loops of a family in both precisions.
#[derive(Clone)]
pub struct Pairs {
    /// Strengths → values, between points.
    pub near: (Pair<f32>, Pair<f64>),
    /// Strengths → check values on a surface.
    pub check: (Pair<f32>, Pair<f64>),
    /// Densities on a surface → values.
    pub far: (Pair<f32>, Pair<f64>),
}

impl Pairs {
    /// The loops for targets that skip themselves, or do not.
    pub fn skipping_self(mut self, skips: bool) -> Self {
        (self.near.0.skips_self, self.near.1.skips_self) = (skips, skips);
        self
    }

    /// Whether an interpreter carries out the loop between points.
    pub fn interpreted(&self) -> bool {
        matches!(&self.near.1.run, Loop::Traced(program) if !program.is_compiled())
    }

    /// The compiled loops of `family` for `outputs`.
    ///
    /// # Errors
    /// An output that the family does not have.
    #[inline(never)]
    pub fn of<F: Family>(family: &F, outputs: Outputs) -> Result<Self, Error> {
        family.visit(outputs, Taken::<F>(PhantomData))
    }

    /// The loops of kernels that were made at run time, carried out by an interpreter.
    pub fn traced(kernels: &Kernels) -> Self {
        Self::made(kernels, Pair::traced, Pair::traced)
    }

    /// As [`traced`](Pairs::traced), with loops by the system's C compiler (the program `cc`, or that of the variable
    /// `CC`). Each loop is compiled when it is first needed, in about a fifth of a second, and kept while the process
    /// lasts. The compiler is tried at once on the loop between points in f64.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no compiler, or if it fails.
    pub fn native(kernels: &Kernels) -> Result<Self, Error> {
        let pairs = Self::made(kernels, Pair::native, Pair::native);
        if let Loop::Traced(program) = &pairs.near.1.run {
            program.compile(Isa::detect())?;
        }
        Ok(pairs)
    }

    fn made(kernels: &Kernels, single: Made<f32>, double: Made<f64>) -> Self {
        let Kernels { near, far, members, .. } = kernels;
        let surface = |kernel| (single(kernel, 1), double(kernel, 1));
        Pairs {
            near: (single(near, pieces::<f32>()), double(near, pieces::<f64>())),
            check: surface(&members.check),
            far: surface(far),
        }
    }
}

/// Makes the loop of a kernel for coordinates in so many pieces.
type Made<T> = fn(&Member, usize) -> Pair<T>;

/// Takes the loops of the kernels of a visit.
struct Taken<F>(PhantomData<F>);

impl<F: Family> Visitor for Taken<F> {
    type Output = Pairs;
    fn visit<S: Kernel, E: Kernel>(self, _: Vec<OutputColumns>) -> Pairs {
        Pairs {
            near: (Pair::close::<S>(), Pair::close::<S>()),
            check: (Pair::of::<F::Check>(), Pair::of::<F::Check>()),
            far: (Pair::of::<E>(), Pair::of::<E>()),
        }
    }
}
