//! The kernels of the plane as families.

use crate::{AnyFamily, Dynamic, Facts, InSpace, Place};
use adaptive2d::PlaneKernel;
use backend_cpu::{Isa, laurent};
use fmm_traits::{Error, OutputColumns, Outputs, Precision, Targets};
use std::sync::Arc;

impl From<PlaneKernel> for AnyFamily {
    fn from(kernel: PlaneKernel) -> Self {
        AnyFamily(Arc::new(kernel))
    }
}

/// Whether `outputs` need the derivative.
pub fn has_gradient(outputs: Outputs) -> bool {
    outputs.contains(Outputs::GRADIENT)
}

/// Converts rows of a kernel (`PlaneKernel::values`) to rows of the facade. A complex potential gets Re φ, Im φ and
/// their gradients, by ∂φ/∂x = φ′, ∂φ/∂y = iφ′.
pub fn widen(kernel: PlaneKernel, gradient: bool, narrow: &[f64], rows: &mut [f64]) {
    if kernel == PlaneKernel::Harmonic && gradient {
        for (to, from) in rows.chunks_exact_mut(6).zip(narrow.chunks_exact(4)) {
            let [re, im] = [from[2], from[3]];
            to.copy_from_slice(&[from[0], from[1], re, -im, im, re]);
        }
    } else {
        rows.copy_from_slice(narrow);
    }
}

impl Dynamic for PlaneKernel {
    fn name(&self) -> &str {
        PlaneKernel::name(*self)
    }
    fn place(&self) -> Place {
        Place::Plane(*self)
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
        Err(no_octree(*self))
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        let supported = Outputs::POTENTIAL | Outputs::GRADIENT;
        let missing = outputs.minus(supported);
        if outputs.is_empty() {
            return Err(Error::NoOutput);
        }
        if !missing.is_empty() {
            let (output, supported) = (missing.names().join(", "), supported.names().join(", "));
            return Err(Error::UnsupportedOutput { kernel: PlaneKernel::name(*self).into(), output, supported });
        }
        let components = self.strengths();
        let values = components * if has_gradient(outputs) { 3 } else { 1 };
        let all = [(Outputs::POTENTIAL, 0..components), (Outputs::GRADIENT, components..values)];
        let columns = all.into_iter().filter(|(output, _)| outputs.contains(*output));
        Ok(Facts {
            dim: 2,
            map: None,
            strengths: components,
            attributes: 0,
            values,
            columns: columns.map(|(output, c)| OutputColumns { output, columns: c.collect() }).collect(),
            skips_self: false,
            // Γ/(z_j − z) changes its sign with z_j − z.
            reciprocal: *self == PlaneKernel::Laplace,
            densities: 1,
            in_volume: [0; 2],
            tapes: Arc::new([]),
            interpreted: false,
            checks: 1,
            homogeneous: false,
            members: Vec::new(),
            params: Vec::new(),
            harmonic: Err(no_octree(*self)),
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
        let gradient = has_gradient(outputs);
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
        let values = self.facts(outputs)?.values;
        let rows = strengths.iter().map(|strengths| {
            let narrow = laurent::direct(*self, gradient, sources, strengths, targets, isa)?;
            let mut rows = vec![0.0; targets.len() / 2 * values];
            widen(*self, gradient, &narrow, &mut rows);
            Ok(rows)
        });
        rows.collect()
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
