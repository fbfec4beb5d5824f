//! Attributes: numbers of each source, such as a radius. A kernel need not be linear in them.
//!
//! They travel in the array of strengths, behind the strengths of the caller. So engines, the probe and direct sums
//! need no second array.

use crate::request::Fmm;
use fmm_families::Facts;
use fmm_traits::{Error, Kernels, Nodes, Number, Spread};
use rayon::prelude::*;
use std::sync::Arc;

/// Mean points in the smallest boxes that are their side apart, for the distances at which the power of nodes is chosen.
/// Nothing else depends on it.
const POINTS_OF_A_BOX: f64 = 100.0;

/// The attributes of a request.
#[derive(Clone, Default)]
pub(crate) struct Attributes {
    /// Names with a value for each source, as the caller gave them; empty after [`resolve`].
    pub given: Vec<(String, Arc<[f64]>)>,
    /// The attributes of each source, one source after the other.
    rows: Arc<[f64]>,
    /// Attributes of a source.
    count: usize,
    /// The attributes for which one value in far fields is not enough; empty before [`spread`].
    spreads: Arc<[Spread]>,
}

impl Attributes {
    /// Attributes for which one value in far fields is not enough.
    pub fn spreads(&self) -> usize {
        self.spreads.len()
    }

    /// The grid of `count` nodes of each of these attributes.
    pub fn nodes(&self, kernels: &Kernels, count: usize) -> Nodes {
        Nodes::of(kernels, &self.spreads, count)
    }

    /// The [`usual`] value of each attribute.
    pub fn usual(&self) -> Vec<f64> {
        let column = |a: usize| self.rows.iter().skip(a).step_by(self.count).copied().collect::<Vec<_>>();
        (0..self.count).map(|a| usual(&column(a))).collect()
    }

    /// The strengths of some sources with their attributes. `of` gives the index of the k-th source.
    fn joined<T: Number>(&self, strengths: &[T], linear: usize, of: impl Fn(usize) -> usize + Sync) -> Vec<f64> {
        let width = linear + self.count;
        let mut all = vec![0.0; strengths.len() / linear * width];
        let rows = all.par_chunks_mut(width).zip(strengths.par_chunks(linear)).enumerate().with_min_len(4096);
        rows.for_each(|(k, (to, q))| {
            let at = of(k) * self.count;
            to.iter_mut().zip(q).for_each(|(to, q)| *to = q.to_f64().unwrap_or(f64::NAN));
            to[linear..].copy_from_slice(&self.rows[at..at + self.count]);
        });
        all
    }

    /// The strengths of all sources with their attributes; `None` if there are no attributes.
    pub fn join<T: Number>(&self, strengths: &[T], facts: &Facts) -> Option<Vec<f64>> {
        (self.count > 0).then(|| self.joined(strengths, facts.linear(), |k| k))
    }

    /// As [`join`](Self::join) for each set of strengths of some sources.
    ///
    /// # Errors
    /// Those of `indices`, which finds the indices of the sources.
    pub fn join_some(
        &self,
        sets: Vec<Vec<f64>>,
        facts: &Facts,
        indices: impl FnOnce() -> Result<Vec<u32>, Error>,
    ) -> Result<Vec<Vec<f64>>, Error> {
        if self.count == 0 {
            return Ok(sets);
        }
        let indices = indices()?;
        Ok(sets.iter().map(|q| self.joined(q, facts.linear(), |k| indices[k] as usize)).collect())
    }

    /// Checks that there are attributes for `n_sources` sources.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn check_count(&self, n_sources: usize) -> Result<(), Error> {
        let (found, expected) = (self.rows.len(), n_sources * self.count);
        if found == expected {
            return Ok(());
        }
        let why = format!("{n_sources} sources, of {} attributes each", self.count);
        Err(Error::Shape { array: "attributes of the sources", found, expected, why })
    }
}

/// The value closest to the mean of `values`; 0 if there are none. It is one of the values, since a kernel may be
/// degenerate at the mean: radii of both signs have the mean 0.
pub(crate) fn usual(values: &[f64]) -> f64 {
    let mean = values.iter().map(|x| x / values.len() as f64).sum::<f64>();
    values.iter().copied().min_by(|a, b| (a - mean).abs().total_cmp(&(b - mean).abs())).unwrap_or(0.0)
}

/// The request with its attributes as strengths of the kernel.
///
/// # Errors
/// [`Error::Shape`], [`Error::NotFinite`], [`Error::MissingParameter`] for an attribute without values, and those of
/// the kernel.
pub(crate) fn resolve(mut request: Fmm, n_sources: usize) -> Result<Fmm, Error> {
    let given = std::mem::take(&mut request.attributes.given);
    for (name, values) in &given {
        crate::validate::matrix("an attribute of the sources", values, n_sources, 1, request.family.name())?;
        request.family = request.family.attribute(name, usual(values))?;
    }
    let names = request.family.attribute_names();
    if !given.is_empty() || names.len() != request.attributes.count {
        let values = |name: &String| match given.iter().find(|(other, _)| other == name) {
            Some((_, values)) => Ok(values),
            None => Err(Error::MissingParameter { kernel: request.family.name().into(), name: name.clone() }),
        };
        let columns = names.iter().map(values).collect::<Result<Vec<_>, _>>()?;
        request.attributes.rows = (0..n_sources).flat_map(|i| columns.iter().map(move |values| values[i])).collect();
        request.attributes.count = names.len();
    }
    request.attributes.check_count(n_sources)?;
    Ok(request)
}

/// The request with the spread of its attributes, for points that span `extent`.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn spread(mut request: Fmm, extent: f64) -> Result<Fmm, Error> {
    let Attributes { rows, count, .. } = &request.attributes;
    if rows.is_empty() || extent == 0.0 {
        return Ok(request);
    }
    let kernels = request.family.in_space(request.outputs)?.kernels;
    let boxes = (rows.len() / count) as f64 / POINTS_OF_A_BOX;
    let halvings = boxes.max(1.0).log(2f64.powi(request.family.dim() as i32)).round().clamp(1.0, 20.0) as i32;
    let distances: Vec<f64> = (0..=halvings).map(|k| extent * 2f64.powi(-k)).collect();
    let of = |attribute: usize| {
        let values: Vec<f64> = rows.iter().skip(attribute).step_by(*count).copied().collect();
        Spread::of(&kernels, attribute, &values, &distances)
    };
    request.attributes.spreads = (0..*count).filter_map(of).collect();
    Ok(request)
}
