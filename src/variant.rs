//! The variants of the fast methods: which expansion, how it is translated, which lists.

pub use fmm_kernels::spherical::{Translation, Truncation};

/// What carries the far field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expansion {
    /// Spherical harmonics (Gumerov & Duraiswami 2008): charges 1/r, dipoles and masses.
    Spherical,
    /// Equivalent densities (Ying, Biros & Zorin 2004): any kernel.
    Equivalent,
}

impl Expansion {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Expansion::Spherical => "spherical",
            Expansion::Equivalent => "equivalent",
        }
    }
}

/// Who meets whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListPolicy {
    /// U, V, W and X lists (Lashuk et al. 2009).
    Uvwx,
    /// The same with 119 translations a box instead of 189 (Gumerov & Duraiswami 2008, §2.2.3).
    Stencil119,
}

/// What was asked for beyond the method; `None`: the usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variant {
    pub translation: Option<Translation>,
    pub truncation: Option<Truncation>,
    pub lists: Option<ListPolicy>,
    pub expansion: Option<Expansion>,
    pub theta: Option<f64>,
}
