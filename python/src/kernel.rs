//! Kernels.

use crate::errors::raised;
use fmm::{
    AnyFamily, Gravity, Harmonic2d, Laplace, Laplace2d, Laplace2dDipole, Laplace2dMixed, LaplaceDipole, LaplaceMixed,
    Outputs, SelfInteraction, Stokes, StokesPressure, Stresslet, Traced, Yukawa,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// A kernel with its parameters.
#[pyclass(frozen, module = "fmm._core")]
pub struct Kernel {
    pub family: AnyFamily,
}

type Parameters = BTreeMap<String, f64>;

#[pymethods]
impl Kernel {
    /// A kernel of the library by its name.
    #[staticmethod]
    fn named(name: &str, mut parameters: Parameters) -> PyResult<Self> {
        let mut take = |name: &str, usual: f64| parameters.remove(name).unwrap_or(usual);
        let family: AnyFamily = match name {
            "laplace" => Laplace.into(),
            "laplace_dipole" => LaplaceDipole.into(),
            "laplace_mixed" => LaplaceMixed.into(),
            "yukawa" => Yukawa { kappa: take("kappa", 1.0) }.into(),
            "gravity" => Gravity { g: take("g", 1.0), softening: take("softening", 0.0) }.into(),
            "stokes" => Stokes { mu: take("mu", 1.0) }.into(),
            "stokes_pressure" => StokesPressure { mu: take("mu", 1.0) }.into(),
            "stresslet" => Stresslet { mu: take("mu", 1.0) }.into(),
            "harmonic2d" => Harmonic2d.into(),
            "laplace2d" => Laplace2d.into(),
            "laplace2d_dipole" => Laplace2dDipole.into(),
            "laplace2d_mixed" => Laplace2dMixed.into(),
            _ => return Self::traced(fmm::catalog::kernel(name).map_err(raised)?, parameters),
        };
        family.validate().map_err(raised)?;
        match parameters.keys().next() {
            None => Ok(Kernel { family }),
            Some(unknown) => Err(PyValueError::new_err(format!("the kernel {name} has no parameter {unknown}"))),
        }
    }

    /// A kernel from the text of a kernel file.
    #[staticmethod]
    fn text(text: &str, parameters: Parameters) -> PyResult<Self> {
        Self::traced(Traced::parse(text).map_err(raised)?, parameters)
    }

    /// A kernel from one expression.
    #[staticmethod]
    fn expression(text: &str, parameters: Parameters) -> PyResult<Self> {
        Self::traced(Traced::expression(text).map_err(raised)?, parameters)
    }

    /// The kernel with a choice whether a source acts on itself.
    fn self_interaction(&self, include: bool) -> Self {
        let own = if include { SelfInteraction::Include } else { SelfInteraction::Skip };
        Kernel { family: self.family.clone().self_interaction(own) }
    }

    /// The kernel with pair loops by the system's C compiler.
    fn compiled(&self) -> Self {
        Kernel { family: self.family.clone().compiled() }
    }

    /// Name.
    #[getter]
    fn name(&self) -> String {
        self.family.name().to_string()
    }

    /// Coordinates of a point.
    #[getter]
    fn dim(&self) -> usize {
        self.family.dim()
    }

    /// Components of the potential.
    #[getter]
    fn values(&self) -> PyResult<usize> {
        Ok(self.family.facts(Outputs::POTENTIAL).map_err(raised)?.components(Outputs::POTENTIAL))
    }

    /// Strengths of a source.
    #[getter]
    fn strengths(&self) -> PyResult<usize> {
        Ok(self.family.facts(Outputs::POTENTIAL).map_err(raised)?.linear())
    }
}

impl Kernel {
    fn traced(mut kernel: Traced, parameters: Parameters) -> PyResult<Self> {
        for (name, value) in parameters {
            kernel = kernel.set(&name, value).map_err(raised)?;
        }
        let family = AnyFamily::from(kernel);
        family.validate().map_err(raised)?;
        // The facts of the kernel, such as that values are linear in the strengths, on a few pairs.
        family.facts(Outputs::POTENTIAL).and_then(|facts| facts.check(0.0)).map_err(raised)?;
        Ok(Kernel { family })
    }
}
