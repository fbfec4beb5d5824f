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

/// The order of the derivatives that `outputs` need.
pub fn derivatives(outputs: Outputs) -> usize {
    match () {
        _ if outputs.contains(Outputs::HESSIAN) => 2,
        _ if outputs.contains(Outputs::GRADIENT) => 1,
        _ => 0,
    }
}

/// Converts rows of a kernel (`PlaneKernel::values`) to rows of the facade. A complex potential φ gets Re φ, Im φ, their
/// gradients and their second derivatives xx, xy and yy, by ∂φ/∂x = φ′ and ∂φ/∂y = iφ′.
pub fn widen(kernel: PlaneKernel, derivatives: usize, narrow: &[f64], rows: &mut [f64]) {
    if !kernel.complex() || derivatives == 0 {
        return rows.copy_from_slice(narrow);
    }
    let (to, from) = ([0, 6, 12][derivatives], kernel.values(derivatives));
    for (to, from) in rows.chunks_exact_mut(to).zip(narrow.chunks_exact(from)) {
        let [re, im] = [from[2], from[3]];
        to[..6].copy_from_slice(&[from[0], from[1], re, -im, im, re]);
        if let [_, _, _, _, re, im] = *from {
            to[6..].copy_from_slice(&[re, -im, -re, im, re, -im]);
        }
    }
}

impl Dynamic for PlaneKernel {
    fn name(&self) -> &str {
        PlaneKernel::name(*self)
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
        Err(no_octree(*self))
    }
    fn facts(&self, outputs: Outputs) -> Result<Facts, Error> {
        let supported = Outputs::POTENTIAL | Outputs::GRADIENT | Outputs::HESSIAN;
        let missing = outputs.minus(supported);
        if outputs.is_empty() {
            return Err(Error::NoOutput);
        }
        if !missing.is_empty() {
            let (output, supported) = (missing.names().join(", "), supported.names().join(", "));
            return Err(Error::UnsupportedOutput { kernel: PlaneKernel::name(*self).into(), output, supported });
        }
        let n = self.potentials();
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
            strengths: self.strengths(),
            attributes: 0,
            values: n * [1, 3, 6][derivatives(outputs)],
            columns: columns.map(|(output, columns)| OutputColumns { output, columns }).collect(),
            skips_self: false,
            // Γ/(z_j − z) changes its sign with z_j − z, and dipoles have more strengths than values.
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
        let values = self.facts(outputs)?.values;
        let rows = strengths.iter().map(|strengths| {
            let narrow = laurent::direct(*self, derivatives, sources, strengths, targets, isa)?;
            let mut rows = vec![0.0; targets.len() / 2 * values];
            widen(*self, derivatives, &narrow, &mut rows);
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
