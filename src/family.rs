//! A family behind one virtual table, so that plans of different kernels have one type.

use crate::backend_cpu::{self, Isa, Precision, Settings, Solver};
use fmm_traits::{Error, Family, Kernel, Lists, OutputColumns, Outputs, Tree, kernel::Visitor};

/// Facts about the kernel that computes a set of outputs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Numbers per source.
    pub strengths: usize,
    /// Numbers per target as the kernel yields them.
    pub values: usize,
    /// Where each output lies among them.
    pub columns: Vec<OutputColumns>,
    /// Whether K(0) counts as 0.
    pub singular: bool,
    /// Whether K(−r) = K(r)ᵀ.
    pub reciprocal: bool,
}

impl Facts {
    /// Components of `output`, 0 when it was not asked for.
    pub(crate) fn components(&self, output: Outputs) -> usize {
        self.columns.iter().find(|c| c.output == output).map_or(0, |c| c.columns.len())
    }
}

struct Ask;

impl Visitor for Ask {
    type Output = Facts;
    fn visit<S: Kernel, E: Kernel>(self, columns: Vec<OutputColumns>) -> Facts {
        Facts { strengths: S::STRENGTHS, values: S::VALUES, columns, singular: S::SINGULAR, reciprocal: S::RECIPROCAL }
    }
}

/// What the facade needs of a family.
pub(crate) trait AnyFamily: Send + Sync {
    fn name(&self) -> &'static str;
    fn parameters(&self) -> Vec<f64>;
    fn validate(&self) -> Result<(), Error>;
    fn near_radius(&self, tolerance: f64) -> f64;
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error>;
    fn occupancy(&self, outputs: Outputs, order: usize, precision: Precision, near: Precision) -> f64;
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[f64],
        targets: backend_cpu::Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<f64>, Error>;
    fn solver(&self, outputs: Outputs, tree: Tree, lists: Lists, settings: &Settings)
    -> Result<Box<dyn Solver>, Error>;
}

/// The one implementation.
pub(crate) struct Erased<F>(pub F);

impl<F: Family> AnyFamily for Erased<F> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn parameters(&self) -> Vec<f64> {
        self.0.parameters()
    }
    fn validate(&self) -> Result<(), Error> {
        self.0.validate()
    }
    fn near_radius(&self, tolerance: f64) -> f64 {
        self.0.near_radius(tolerance)
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        self.0.visit(outputs, Ask)
    }
    fn occupancy(&self, outputs: Outputs, order: usize, precision: Precision, near: Precision) -> f64 {
        backend_cpu::tuned_occupancy(&self.0, outputs, order, precision, near)
    }
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[f64],
        targets: backend_cpu::Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<f64>, Error> {
        backend_cpu::direct(&self.0, outputs, sources, strengths, targets, precision, isa).map(|(values, _)| values)
    }
    fn solver(
        &self,
        outputs: Outputs,
        tree: Tree,
        lists: Lists,
        settings: &Settings,
    ) -> Result<Box<dyn Solver>, Error> {
        backend_cpu::plan(&self.0, outputs, tree, lists, settings)
    }
}
