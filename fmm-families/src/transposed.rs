//! Families of transposed sums.

use crate::{AnyFamily, Dynamic, Facts, InSpace, Place};
use backend_cpu::Pairs;
use fmm_traits::{Error, Member, Outputs};
use std::sync::Arc;

impl AnyFamily {
    /// The family whose sums from x_i to y_j are the transposed sums Σ_i K(x_i − y_j)ᵀ·v_i of this family: itself, if
    /// K(−r) = K(r)ᵀ, or one that is derived from the operations of K
    /// ([`Kernels::transposed`](fmm_traits::Kernels::transposed)).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other kernels of the plane, and if sources have attributes.
    pub fn transposed(&self) -> Result<AnyFamily, Error> {
        let facts = self.facts(Outputs::POTENTIAL)?;
        if facts.attributes > 0 {
            let reason = format!("sources have attributes, and targets have none for kernel {}", self.name());
            return Err(Error::Unsupported { operation: "a transposed sum", reason });
        }
        if facts.reciprocal && facts.strengths == facts.values {
            return Ok(self.clone());
        }
        if matches!(self.place(), Place::Plane(_)) {
            let reason = format!("K(−r) = K(r)ᵀ does not hold for kernel {}", self.name());
            return Err(Error::Unsupported { operation: "a transposed sum", reason });
        }
        let of_potential = self.in_space(Outputs::POTENTIAL)?.kernels.transposed(Outputs::POTENTIAL)?;
        Ok(AnyFamily(Arc::new(Transposed { of: self.clone(), name: of_potential.name, native: false })))
    }
}

/// The [`Dynamic`] of a transposed family in space.
struct Transposed {
    of: AnyFamily,
    name: Arc<str>,
    /// Whether the system's C compiler makes its pair loops.
    native: bool,
}

impl Transposed {
    fn with(&self, of: InSpace, outputs: Outputs) -> Result<InSpace, Error> {
        let kernels = of.kernels.transposed(outputs)?;
        let pairs = if self.native { Pairs::native(&kernels)? } else { Pairs::traced(&kernels) };
        Ok(InSpace::new(kernels, pairs))
    }
}

impl Dynamic for Transposed {
    fn name(&self) -> &str {
        &self.name
    }
    fn place(&self) -> Place {
        Place::Space
    }
    fn dim(&self) -> usize {
        self.of.dim()
    }
    fn parameters(&self) -> Vec<f64> {
        self.of.parameters()
    }
    fn validate(&self) -> Result<(), Error> {
        self.of.validate()
    }
    fn near_radius(&self, tolerance: f64) -> f64 {
        self.of.near_radius(tolerance)
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        let Member { strengths, values, .. } = self.in_volume(outputs)?.kernels.members.equivalent;
        let map = self.of.facts(Outputs::POTENTIAL)?.map;
        Ok(Facts { in_volume: [strengths, values], map, ..self.in_space(outputs)?.facts() })
    }
    fn in_space(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.with(self.of.in_space(Outputs::POTENTIAL)?, outputs)
    }
    fn in_volume(&self, outputs: Outputs) -> Result<InSpace, Error> {
        self.with(self.of.in_volume(Outputs::POTENTIAL)?, outputs)
    }
    fn native(&self) -> Option<AnyFamily> {
        Some(AnyFamily(Arc::new(Transposed { of: self.of.clone(), name: self.name.clone(), native: true })))
    }
}
