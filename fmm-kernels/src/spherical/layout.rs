//! The strengths of sources and the values of targets, as spherical harmonics see them.

use crate::Laplace;
use fmm_traits::{Error, Family, Kernel};
use std::any::TypeId;

/// Where the charge and the dipole vector of a source lie among its strengths.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The charge.
    pub charge: Option<usize>,
    /// The first of the three components of the dipole.
    pub dipole: Option<usize>,
}

/// Highest derivative among the values of `E`: 0 (potential), 1 (gradient) or 2 (Hessian).
pub fn derivatives<E: Kernel>() -> usize {
    derivatives_of(E::VALUES)
}

/// [`derivatives`] of a kernel with so many values.
pub fn derivatives_of(values: usize) -> usize {
    match values {
        1 => 0,
        4 => 1,
        _ => 2,
    }
}

/// The layout of the strengths of family `F`, whose far field is evaluated by `E`.
///
/// # Errors
/// [`Error::Unsupported`] if the far field is not that of charges 1/r and dipoles.
pub fn layout<F: Family, E: Kernel>(family: &F) -> Result<Layout, Error> {
    let degrees: Vec<i32> = (0..F::Source::STRENGTHS).map(F::Source::strength_degree).collect();
    let harmonic = TypeId::of::<F::Equivalent>() == TypeId::of::<Laplace>() && matches!(E::VALUES, 1 | 4 | 10);
    match degrees[..] {
        [0] if harmonic => Ok(Layout { charge: Some(0), dipole: None }),
        [-1, -1, -1] if harmonic => Ok(Layout { charge: None, dipole: Some(0) }),
        [0, -1, -1, -1] if harmonic => Ok(Layout { charge: Some(0), dipole: Some(1) }),
        _ => Err(Error::Unsupported {
            operation: "an expansion in spherical harmonics",
            reason: format!("the far field of {} is not that of charges 1/r or dipoles", family.name()),
        }),
    }
}
