//! The variants of the fast methods: expansion, translation and lists.

use fmm_kernels::equivalent::{Fill, Lattice};
pub use fmm_kernels::spherical::{Translation, Truncation};

/// The expansion that represents the far field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expansion {
    /// Spherical harmonics (Gumerov & Duraiswami 2008), for charges 1/r, dipoles and masses.
    Spherical,
    /// Equivalent densities on surfaces (Ying, Biros & Zorin 2004), for kernels of elliptic equations.
    Equivalent,
    /// Equivalent densities on grids that fill the boxes, for any kernel that is smooth away from r = 0.
    Interpolation,
}

impl Expansion {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Expansion::Spherical => "spherical",
            Expansion::Equivalent => "equivalent",
            Expansion::Interpolation => "interpolation",
        }
    }
    /// Where equivalent densities lie; `None` for spherical harmonics.
    pub(crate) fn fill(self) -> Option<Fill> {
        match self {
            Expansion::Spherical => None,
            Expansion::Equivalent => Some(Fill::Surface),
            Expansion::Interpolation => Some(Fill::Volume),
        }
    }
    /// The points of equivalent densities of an order in `dim` dimensions; `None` for spherical harmonics.
    pub(crate) fn lattice(self, order: usize, dim: usize) -> Option<Lattice> {
        self.fill().map(|fill| Lattice { order, fill, dim })
    }
}

/// The list policy: the rule that decides which boxes interact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListPolicy {
    /// U, V, W and X lists (Lashuk et al. 2009).
    Uvwx,
    /// U, V, W and X lists with 119 translations per box instead of 189 (Gumerov & Duraiswami 2008, §2.2.3).
    Stencil119,
}

/// Options that the caller gave besides the method; `None` selects the default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variant {
    pub translation: Option<Translation>,
    pub truncation: Option<Truncation>,
    pub lists: Option<ListPolicy>,
    pub expansion: Option<Expansion>,
    pub theta: Option<f64>,
    pub nodes: Option<usize>,
}
