//! Coordinates in which a kernel is radial. A plan for the kernel 1/√(rᵀMr) of anisotropic diffusion works at the points
//! L·x with M = LᵀL, where the kernel is 1/r: its tree has cubes there, and its expansions need no higher order. Outputs
//! are mapped back, also where the probe measures their errors.
//!
//! The mapped points are rounded to f64. The vector between two points then errs by 10⁻¹⁶ of the extent of the points.

use crate::cloud::Given;
use crate::output::Output;
use crate::request::Fmm;
use crate::validate;
use fmm_traits::{Error, LinearMap, Number, Targets};
use rayon::prelude::*;

/// Points on the host in the coordinates of a plan.
pub(crate) struct Mapped {
    sources: Vec<f64>,
    targets: Option<Vec<f64>>,
}

/// The request for points in the coordinates of the plan. These are the coordinates of the caller for points on a
/// device and with a root cube of the caller.
pub(crate) fn resolve(mut request: Fmm, given: &Given<'_>) -> Fmm {
    let plain = given.on_device() || request.root.is_some();
    if let Some(unmapped) = request.unmapped.take_if(|_| plain) {
        request.family = unmapped;
    }
    if !plain
        && request.unmapped.is_none()
        && let Some(family) = request.family.isotropic(request.outputs)
    {
        request.unmapped = Some(std::mem::replace(&mut request.family, family));
    }
    request
}

impl Mapped {
    /// The points of a caller in the coordinates of a plan; `None` if these are the coordinates of the caller.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::TooMany`], [`Error::NotFinite`].
    pub fn of(request: &Fmm, given: Given<'_>) -> Result<Option<Self>, Error> {
        let (Some(_), Given::Host(sources, targets)) = (&request.unmapped, given) else { return Ok(None) };
        let Some(map) = request.family.facts(request.outputs)?.map else { return Ok(None) };
        given.counts(3)?;
        let mapped = |name, points: &[f64]| {
            validate::finite(name, points, 3)?;
            let mut points = points.to_vec();
            points.par_chunks_exact_mut(3).for_each(|x| x.copy_from_slice(&map.apply([x[0], x[1], x[2]])));
            Ok::<_, Error>(points)
        };
        let targets = if let Targets::Points(t) = targets { Some(mapped("targets", t)?) } else { None };
        Ok(Some(Mapped { sources: mapped("sources", sources)?, targets }))
    }

    /// The points of the caller, or the mapped points in their place if there are some.
    pub fn instead_of<'a>(mapped: &'a Option<Mapped>, given: Given<'a>) -> Given<'a> {
        let Some(Mapped { sources, targets }) = mapped else { return given };
        match (given, targets) {
            (Given::Host(_, Targets::Points(_)), Some(targets)) => Given::Host(sources, Targets::Points(targets)),
            (Given::Host(_, targets), _) => Given::Host(sources, targets),
            (device, _) => device,
        }
    }
}

/// Maps gradient and Hessian of a scalar kernel to the coordinates of the caller.
pub(crate) fn pull_back<T: Number>(map: &LinearMap, out: &mut Output<T>) {
    let wide = |x: &T| x.to_f64().unwrap_or(f64::NAN);
    let narrow = |x: f64| T::from_f64(x).unwrap_or_default();
    out.gradient.par_chunks_exact_mut(3).for_each(|g| {
        let mapped = map.transposed(std::array::from_fn(|a| wide(&g[a])));
        g.iter_mut().zip(mapped).for_each(|(to, x)| *to = narrow(x));
    });
    out.hessian.par_chunks_exact_mut(9).for_each(|h| {
        let mapped = map.congruent(std::array::from_fn(|k| wide(&h[k])));
        h.iter_mut().zip(mapped).for_each(|(to, x)| *to = narrow(x));
    });
}
