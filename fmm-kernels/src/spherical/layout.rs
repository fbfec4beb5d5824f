//! The strengths of sources and the values of targets, as spherical harmonics see them.

use crate::Laplace;
use fmm_traits::{Error, Kernels, record};

/// Where the charge and the dipole vector of a source lie among its strengths.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The charge.
    pub charge: Option<usize>,
    /// The first of the three components of the dipole.
    pub dipole: Option<usize>,
}

/// Highest derivative among so many values of the far field: 0 (potential), 1 (gradient) or 2 (Hessian).
pub fn derivatives_of(values: usize) -> usize {
    match values {
        1 => 0,
        4 => 1,
        _ => 2,
    }
}

/// The layout of the strengths of `kernels`.
///
/// # Errors
/// [`Error::Unsupported`] if the far field is not that of charges 1/r and dipoles.
pub fn layout(kernels: &Kernels) -> Result<Layout, Error> {
    let Kernels { name, near, far, members, .. } = kernels;
    // The operations decide, so that a kernel 1/r of a user has this expansion too.
    let harmonic = matches!(far.values, 1 | 4 | 10) && members.equivalent.tape() == record::<Laplace>();
    match near.strength_degrees[..] {
        [0] if harmonic => Ok(Layout { charge: Some(0), dipole: None }),
        [-1, -1, -1] if harmonic => Ok(Layout { charge: None, dipole: Some(0) }),
        [0, -1, -1, -1] if harmonic => Ok(Layout { charge: Some(0), dipole: Some(1) }),
        _ => Err(Error::Unsupported {
            operation: "an expansion in spherical harmonics",
            reason: format!("the far field of {name} is not that of charges 1/r or dipoles"),
        }),
    }
}
