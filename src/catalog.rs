//! The kernels that come as text: radial basis functions, covariances, elasticity and more. Each is a file of
//! `src/catalog/` in the [language](fmm_traits::traced::parse) of kernel files, with its formula and its source.
//! They need no Rust compiler.

use fmm_traits::{Error, Traced};

macro_rules! texts {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("catalog/", $name, ".fmm")))),*]
    };
}

/// Names and texts of the kernels.
const TEXTS: [(&str, &str); 23] = texts!(
    "gaussian" "exponential" "matern32" "matern52" "multiquadric" "inverse_multiquadric" "inverse_r2" "inverse_r3"
    "inverse_r4" "inverse_r5" "inverse_r6" "biharmonic" "cubic" "thin_plate" "kelvin" "kelvin_double"
    "regularised_stokeslet" "biot_savart" "helmholtz" "anisotropic"
    "yukawa2d" "stokes2d" "anisotropic2d"
);

/// The names of all kernels in the catalog.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().map(|(name, _)| *name)
}

/// The text of the kernel `name`.
pub fn text(name: &str) -> Option<&'static str> {
    TEXTS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The kernel `name` with the usual values of its parameters; [`Traced::set`] changes them.
///
/// ```
/// let matern = fmm::catalog::kernel("matern32")?.set("l", 0.2)?;
/// # Ok::<(), fmm::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownKernel`].
pub fn kernel(name: &str) -> Result<Traced, Error> {
    match text(name) {
        Some(text) => Traced::parse(text),
        None => Err(Error::UnknownKernel { name: name.to_string(), known: names().collect::<Vec<_>>().join(", ") }),
    }
}
