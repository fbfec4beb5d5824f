//! Kernels of the plane with Laurent series as families.

use crate::{AnyFamily, Dynamic, Facts, InSpace, Place};
use adaptive2d::{Analytic, PlaneKernel};
use backend_cpu::Isa;
use backend_cpu::laurent::{self, PlanePairs};
use fmm_kernels::{Harmonic2d, Laplace2d, Laplace2dDipole, Laplace2dMixed};
use fmm_traits::{Error, OutputColumns, Outputs, Precision, Targets};
use std::sync::Arc;

impl AnyFamily {
    /// Wraps your own kernel with Laurent series. ([`AnyFamily::new`] makes the same kernel a family whose far field is
    /// computed by other expansions, on a quadtree.)
    pub fn analytic<K: Analytic>(kernel: K) -> Self {
        PlanePairs::from(kernel).into()
    }
}

impl From<PlanePairs> for AnyFamily {
    fn from(pairs: PlanePairs) -> Self {
        AnyFamily(Arc::new(pairs))
    }
}

macro_rules! compiled_here {
    ($($kernel:ident),*) => {$(
        impl From<$kernel> for AnyFamily {
            #[inline(never)]
            fn from(kernel: $kernel) -> Self {
                AnyFamily::analytic(kernel)
            }
        }
    )*};
}
compiled_here!(Harmonic2d, Laplace2d, Laplace2dDipole, Laplace2dMixed);

/// The order of the derivatives that `outputs` need.
pub fn derivatives(outputs: Outputs) -> usize {
    match () {
        _ if outputs.contains(Outputs::HESSIAN) => 2,
        _ if outputs.contains(Outputs::GRADIENT) => 1,
        _ => 0,
    }
}

impl Dynamic for PlanePairs {
    fn name(&self) -> &str {
        self.kernel.name()
    }
    fn place(&self) -> Place {
        Place::Plane(*self)
    }
    fn dim(&self) -> usize {
        2
    }
    fn parameters(&self) -> Vec<f64> {
        Vec::new()
    }
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }
    fn near_radius(&self, _: f64) -> f64 {
        0.0
    }
    fn in_space(&self, _: Outputs) -> Result<InSpace, Error> {
        Err(no_octree(self.kernel))
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        let supported = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        let missing = outputs.minus(supported);
        if outputs.is_empty() {
            return Err(Error::NoOutput);
        }
        if !missing.is_empty() {
            let (output, supported) = (missing.names().join(", "), supported.names().join(", "));
            return Err(Error::UnsupportedOutput { kernel: self.kernel.name().into(), output, supported });
        }
        let n = self.kernel.potentials();
        // Potentials, gradients, then the entries xx, xy and yy of each Hessian.
        let second = (0..n).flat_map(|i| [0, 1, 1, 2].map(|k| 3 * n + 3 * i + k)).collect();
        let all = [
            (Outputs::POTENTIAL, (0..n).collect()),
            (Outputs::GRADIENT, (n..3 * n).collect()),
            (Outputs::HESSIAN, second),
        ];
        let columns = all.into_iter().filter(|(output, _)| outputs.contains(*output));
        Ok(Facts {
            dim: 2,
            map: None,
            strengths: self.kernel.strengths(),
            attributes: 0,
            values: self.kernel.values(derivatives(outputs)),
            columns: columns.map(|(output, columns)| OutputColumns { output, columns }).collect(),
            skips_self: false,
            reciprocal: self.kernel.member(0).reciprocal,
            densities: 1,
            in_volume: [0; 2],
            tapes: Arc::new([]),
            interpreted: false,
            checks: 1,
            homogeneous: false,
            members: vec![self.kernel.member(derivatives(outputs))],
            params: self.kernel.parameters().to_vec(),
            harmonic: Err(no_octree(self.kernel)),
        })
    }
    fn direct(
        &self,
        outputs: Outputs,
        sources: &[f64],
        strengths: &[&[f64]],
        targets: Targets<'_>,
        precision: Precision,
        isa: Isa,
    ) -> Result<Vec<Vec<f64>>, Error> {
        only_f64(precision)?;
        let derivatives = derivatives(outputs);
        let at: Vec<f64>;
        let targets = match targets {
            Targets::Points(points) => points,
            // A source at the position of a target contributes 0, whatever its index.
            Targets::Sources => sources,
            Targets::Subset(indices) => {
                at = indices.iter().flat_map(|&i| &sources[2 * i..2 * i + 2]).copied().collect();
                &at
            }
        };
        strengths.iter().map(|q| laurent::direct(*self, derivatives, sources, q, targets, isa)).collect()
    }
}

/// An error for f32.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn only_f64(precision: Precision) -> Result<(), Error> {
    if precision == Precision::F64 {
        return Ok(());
    }
    let reason = "kernels of the plane are summed in f64".to_string();
    Err(Error::Unsupported { operation: "f32", reason })
}

pub(crate) fn no_octree(kernel: PlaneKernel) -> Error {
    let reason = format!("the points of kernel {} lie in the plane", kernel.name());
    Error::Unsupported { operation: "an octree", reason }
}
