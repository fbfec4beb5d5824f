//! A kernel of a family as plain data, a [`Member`]: its constants as numbers, its functions as pointers. Only loops
//! over pairs need the type, from which the compiler makes vector code. Operators, plans and GPU programs take a
//! [`Member`], and are compiled once for all kernels.

use crate::kernel::{Family, Gradient, Kernel, MAX_COMPONENTS, assert_limits};
use crate::record::{Tape, record};
use std::any::{TypeId, type_name};

/// [`Kernel::eval`] in f64: parameters, r, strengths, values.
pub type Eval = fn(&[f64], &[f64], &[f64], &mut [f64]);

/// The facts of a kernel as numbers, and its functions as pointers.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// [`Kernel::NAME`].
    pub name: &'static str,
    /// Type of the kernel.
    pub id: TypeId,
    /// Name of the type of the kernel.
    pub type_name: &'static str,
    /// [`Kernel::STRENGTHS`].
    pub strengths: usize,
    /// [`Kernel::VALUES`].
    pub values: usize,
    /// [`Kernel::SINGULAR`].
    pub singular: bool,
    /// [`Kernel::RECIPROCAL`].
    pub reciprocal: bool,
    /// Derivatives that follow the values: 0, 1 (gradients) or 2 (gradients, then Hessians).
    pub derived: usize,
    /// [`Kernel::strength_degree`].
    pub strength_degree: fn(usize) -> i32,
    /// [`Kernel::value_degree`].
    pub value_degree: fn(usize) -> i32,
    /// [`Kernel::dilated`].
    pub dilated: fn(&[f64], f64) -> Option<Vec<f64>>,
    /// [`Kernel::unit_parameters`].
    pub unit_parameters: fn(&[f64], f64) -> Vec<f64>,
    /// [`Kernel::eval`] in f64: parameters, r, strengths, values.
    pub eval: Eval,
    /// `eval` of the kernel without its derivatives.
    pub underived: Eval,
    /// [`record()`](crate::record()).
    pub record: fn() -> Tape,
}

impl Member {
    /// `K` without its type.
    pub fn of<K: Kernel>() -> Self {
        const { assert_limits::<K>() };
        Member {
            name: K::NAME,
            id: TypeId::of::<K>(),
            type_name: type_name::<K>(),
            strengths: K::STRENGTHS,
            values: K::VALUES,
            singular: K::SINGULAR,
            reciprocal: K::RECIPROCAL,
            derived: K::DERIVED,
            strength_degree: K::strength_degree,
            value_degree: K::value_degree,
            dilated: K::dilated,
            unit_parameters: K::unit_parameters,
            eval: K::eval::<f64>,
            underived: K::underived(),
            record: record::<K>,
        }
    }

    /// The degrees of all strengths.
    pub fn strength_degrees(&self) -> Vec<i32> {
        (0..self.strengths).map(self.strength_degree).collect()
    }

    /// The degrees of all values.
    pub fn value_degrees(&self) -> Vec<i32> {
        (0..self.values).map(self.value_degree).collect()
    }

    /// The values at `r` for strength 1 in component `j`.
    pub fn column(&self, params: &[f64], r: [f64; 3], j: usize) -> [f64; MAX_COMPONENTS] {
        let (mut unit, mut values) = ([0.0; MAX_COMPONENTS], [0.0; MAX_COMPONENTS]);
        unit[j] = 1.0;
        (self.eval)(params, &r, &unit[..self.strengths], &mut values[..self.values]);
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
#[derive(Clone, Copy, Debug)]
pub struct Members {
    /// The name of the type of the family.
    pub family: &'static str,
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
            assert!(F::Source::STRENGTHS == F::Check::STRENGTHS, "Source and Check of a family differ in STRENGTHS");
            assert!(F::Check::VALUES == F::Equivalent::VALUES, "Check and Equivalent of a family differ in VALUES");
            assert!(
                F::Equivalent::STRENGTHS == F::Far::STRENGTHS,
                "Equivalent and Far of a family differ in STRENGTHS"
            );
        }
        Members {
            family: type_name::<F>(),
            check: Member::of::<F::Check>(),
            equivalent: Member::of::<F::Equivalent>(),
            slope: Member::of::<Gradient<F::Equivalent>>(),
        }
    }
}
