//! A kernel of a family as plain data, a [`Member`]: its constants as numbers, its functions behind one virtual table.
//! Only loops over pairs need the type of a compiled kernel, from which the compiler makes vector code. Operators,
//! plans and GPU programs take a [`Member`], and are compiled once for all kernels. A kernel that is made at run time
//! ([`traced`](crate::traced)) has no type, and is a [`Member`] from the start.

use crate::attributes::Nodes;
use crate::kernel::{Family, Gradient, Kernel, MAX_COMPONENTS, OutputColumns, Outputs, Visitor, assert_limits};
use crate::record::record;
use crate::tape::Tape;
use crate::{Error, facts};
use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// The functions of a kernel.
pub(crate) trait Body: Send + Sync {
    /// [`Kernel::eval`] in f64: parameters, r (three coordinates), strengths, values.
    fn eval(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]);
    /// `eval` of the kernel without its derivatives.
    fn underived(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]);
    /// `eval` at many r for the same strengths, one after the other.
    fn eval_many(&self, params: &[f64], r: &[[f64; 3]], strengths: &[f64], values: &mut [f64]);
    /// [`Kernel::dilated`].
    fn dilated(&self, params: &[f64], h: f64) -> Option<Vec<f64>>;
    /// The operations of `eval`.
    fn tape(&self) -> Tape;
}

/// What makes two kernels the same kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Identity {
    /// The type of a compiled kernel.
    Type(TypeId),
    /// All operations of a kernel that was made at run time.
    Tape(Arc<Tape>),
}

/// The facts of a kernel as numbers, and its functions.
#[derive(Clone)]
pub struct Member {
    /// [`Kernel::NAME`].
    pub name: Arc<str>,
    /// Equal for equal kernels only.
    pub id: Identity,
    /// Name of the type of the kernel; `traced` for a kernel that was made at run time.
    pub type_name: Arc<str>,
    /// [`Kernel::DIM`]. The functions of a kernel of the plane take three coordinates too, and leave the third alone.
    pub dim: usize,
    /// [`Kernel::STRENGTHS`], with the attributes of a source.
    pub strengths: usize,
    /// The attributes of a source: the last of the strengths, in which the values need not be linear. Usual values.
    pub attributes: Vec<f64>,
    /// [`Kernel::VALUES`].
    pub values: usize,
    /// [`Kernel::SINGULAR`].
    pub singular: bool,
    /// [`Kernel::RECIPROCAL`].
    pub reciprocal: bool,
    /// Whether the kernel has branches, so that values at some points say nothing about others. Its symmetries are then
    /// not looked for.
    pub piecewise: bool,
    /// Derivatives that follow the values: 0, 1 (gradients) or 2 (gradients, then Hessians).
    pub derived: usize,
    /// [`Kernel::strength_degree`] of each strength.
    pub strength_degrees: Vec<i32>,
    /// [`Kernel::value_degree`] of each value.
    pub value_degrees: Vec<i32>,
    pub(crate) body: Arc<dyn Body>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} strengths, {} values, {:?})", self.name, self.strengths, self.values, self.id)
    }
}

/// The functions of the compiled kernel `K`. As other functions that are compiled for each kernel, they are never
/// inlined: the compiler then takes those that a crate below has compiled.
struct Compiled<K>(PhantomData<K>);

impl<K: Kernel> Body for Compiled<K> {
    /// One r of many, so that the kernel is compiled once.
    #[inline(never)]
    fn eval(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        self.eval_many(params, r.as_chunks().0, strengths, values);
    }
    #[inline(never)]
    fn underived(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        K::underived()(params, &r[..K::DIM], strengths, values);
    }
    #[inline(never)]
    fn eval_many(&self, params: &[f64], r: &[[f64; 3]], strengths: &[f64], values: &mut [f64]) {
        for (r, values) in r.iter().zip(values.chunks_exact_mut(K::VALUES)) {
            K::eval::<f64>(params, &r[..K::DIM], strengths, values);
        }
    }
    #[inline(never)]
    fn dilated(&self, params: &[f64], h: f64) -> Option<Vec<f64>> {
        K::dilated(params, h)
    }
    #[inline(never)]
    fn tape(&self) -> Tape {
        record::<K>()
    }
}

impl Member {
    /// `K` without its type.
    #[inline(never)]
    pub fn of<K: Kernel>() -> Self {
        const { assert_limits::<K>() };
        Member {
            name: K::NAME.into(),
            id: Identity::Type(TypeId::of::<K>()),
            type_name: type_name::<K>().into(),
            dim: K::DIM,
            strengths: K::STRENGTHS,
            attributes: Vec::new(),
            values: K::VALUES,
            singular: K::SINGULAR,
            reciprocal: K::RECIPROCAL,
            piecewise: false,
            derived: K::DERIVED,
            strength_degrees: (0..K::STRENGTHS).map(K::strength_degree).collect(),
            value_degrees: (0..K::VALUES).map(K::value_degree).collect(),
            body: Arc::new(Compiled::<K>(PhantomData)),
        }
    }

    /// [`Kernel::eval`] in f64: parameters, r (three coordinates), strengths, values.
    pub fn eval(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        self.body.eval(params, r, strengths, values);
    }

    /// [`eval`](Member::eval) at many `r` for the same strengths: the values at `r[0]`, at `r[1]`, …
    pub fn eval_many(&self, params: &[f64], r: &[[f64; 3]], strengths: &[f64], values: &mut [f64]) {
        self.body.eval_many(params, r, strengths, values);
    }

    /// [`eval`](Member::eval) of the kernel without its derivatives.
    pub fn underived(&self, params: &[f64], r: &[f64], strengths: &[f64], values: &mut [f64]) {
        self.body.underived(params, r, strengths, values);
    }

    /// [`Kernel::dilated`].
    pub fn dilated(&self, params: &[f64], h: f64) -> Option<Vec<f64>> {
        self.body.dilated(params, h)
    }

    /// The parameters in units of `h`: [`dilated`](Member::dilated), or `params` themselves.
    pub fn unit_parameters(&self, params: &[f64], h: f64) -> Vec<f64> {
        self.dilated(params, h).unwrap_or_else(|| params.to_vec())
    }

    /// The operations of [`eval`](Member::eval).
    pub fn tape(&self) -> Tape {
        self.body.tape()
    }

    /// Strengths without the attributes of a source.
    pub fn linear(&self) -> usize {
        self.strengths - self.attributes.len()
    }

    /// The values at `r` for strength 1 in component `j`.
    pub fn column(&self, params: &[f64], r: [f64; 3], j: usize) -> [f64; MAX_COMPONENTS] {
        let (mut unit, mut values) = ([0.0; MAX_COMPONENTS], [0.0; MAX_COMPONENTS]);
        unit[j] = 1.0;
        unit[self.linear()..self.strengths].copy_from_slice(&self.attributes);
        self.eval(params, &r, &unit[..self.strengths], &mut values[..self.values]);
        values
    }

    /// Whether K(−r) = K(r)ᵀ at `r`, to ten digits of the largest entry.
    pub fn reciprocal_at(&self, params: &[f64], r: [f64; 3]) -> bool {
        if self.values != self.strengths {
            return false;
        }
        let (mut largest, mut difference) = (0f64, 0f64);
        for j in 0..self.strengths {
            let back = self.column(params, r.map(|x| -x), j);
            for (i, back) in back.iter().enumerate().take(self.values) {
                largest = largest.max(back.abs());
                difference = difference.max((back - self.column(params, r, i)[j]).abs());
            }
        }
        difference <= 1e-10 * largest
    }
}

/// The kernels of a family from which operators are made.
#[derive(Clone, Debug)]
pub struct Members {
    /// The name of the type of the family.
    pub family: Arc<str>,
    /// [`Family::Check`].
    pub check: Member,
    /// [`Family::Equivalent`].
    pub equivalent: Member,
    /// [`Family::Equivalent`] with its gradient.
    pub slope: Member,
}

impl Members {
    /// The members of `F`.
    pub fn of<F: Family>() -> Self {
        const {
            assert!(
                F::Source::DIM == F::Check::DIM
                    && F::Source::DIM == F::Equivalent::DIM
                    && F::Far::DIM == F::Source::DIM,
                "the kernels of a family differ in DIM"
            );
            assert!(F::Source::STRENGTHS == F::Check::STRENGTHS, "Source and Check of a family differ in STRENGTHS");
            assert!(F::Check::VALUES == F::Equivalent::VALUES, "Check and Equivalent of a family differ in VALUES");
            assert!(
                F::Equivalent::STRENGTHS == F::Far::STRENGTHS,
                "Equivalent and Far of a family differ in STRENGTHS"
            );
        }
        Members {
            family: type_name::<F>().into(),
            check: Member::of::<F::Check>(),
            equivalent: Member::of::<F::Equivalent>(),
            slope: Member::of::<Gradient<F::Equivalent>>(),
        }
    }
}

/// A family with its parameters and the kernels that compute the outputs of a plan. All that a plan needs of a family,
/// except compiled pair loops.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// [`Family::name`].
    pub name: Arc<str>,
    /// Strengths → values at targets.
    pub near: Member,
    /// Equivalent densities → values at targets.
    pub far: Member,
    /// The kernels from which operators are made.
    pub members: Members,
    /// [`Family::parameters`].
    pub params: Vec<f64>,
    /// The parameters that are attributes of a source, in the order in which they follow its strengths.
    pub attributes: Vec<usize>,
    /// The values of the attributes in far fields.
    pub nodes: Nodes,
    /// [`Family::scale`].
    pub scale: f64,
    /// The columns of each output among the values.
    pub columns: Vec<OutputColumns>,
    /// Whether a source acts on itself, if the targets are the sources. False for a singular kernel.
    pub include_self: bool,
}

/// Whether a source acts on itself, if the targets are the sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelfInteraction {
    /// A target skips the source that it is.
    Skip,
    /// K(0)·q of the source itself is a part of the sum.
    Include,
}

impl SelfInteraction {
    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            SelfInteraction::Skip => "skip",
            SelfInteraction::Include => "include",
        }
    }
}

impl Kernels {
    /// The kernels of `family` for `outputs`.
    ///
    /// # Errors
    /// Errors of [`facts::validate`], and an output that the family does not have.
    #[inline(never)]
    pub fn of<F: Family>(family: &F, outputs: Outputs) -> Result<Self, Error> {
        facts::validate(family)?;
        family.visit(outputs, Taken(family))
    }

    /// Parameters after the dilation of a box of side `side` to the unit box.
    pub fn parameters(&self, side: f64) -> Vec<f64> {
        self.near.unit_parameters(&self.params, side)
    }
}

/// Takes the kernels of a visit.
struct Taken<'a, F>(&'a F);

impl<F: Family> Visitor for Taken<'_, F> {
    type Output = Kernels;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Kernels {
        Kernels {
            name: self.0.name().into(),
            near: Member::of::<S>(),
            far: Member::of::<E>(),
            members: Members::of::<F>(),
            params: self.0.parameters(),
            attributes: Vec::new(),
            nodes: Nodes::default(),
            scale: self.0.scale(),
            columns,
            include_self: false,
        }
    }
}
