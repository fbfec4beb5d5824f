//! Equivalent densities, on surfaces or in volumes: the kernel-independent FMM of Ying, Biros & Zorin, "A
//! kernel-independent adaptive fast multipole algorithm in two and three dimensions", J. Comput. Phys. 196 (2004).
//!
//! A multipole is a density on a cube surface close around its box (the inner surface). Outside, it has the same
//! field as the sources in the box. A local is a density on a cube surface far around its box (the outer surface).
//! Inside the box, it has the same field as the far sources. Such a density is called *equivalent*. It is found by
//! matching *check values*, values of the field on the other surface (`solve`). Only values of the kernel are
//! needed, so any kernel of an elliptic equation has this expansion.
//!
//! Kernels of no such equation have densities in the volume of the box, and check values in the space around it. In all
//! the rest a volume is like a surface: [`lattice`].
//!
//! | | equivalent density | check values |
//! |---|---|---|
//! | multipole (upward) | inner points, [`lattice::INNER`] | outer points, [`lattice::OUTER`] |
//! | local (downward) | outer points | inner points |
//!
//! # Units
//!
//! All operators belong to a box of side 1 centred at the origin. For a box of side h, strengths and densities are
//! *hatted*, that is multiplied by h^strength_degree, and values are divided by h^value_degree. For example, a dipole
//! (degree −1) in a box of side 2 is halved, and a Laplace potential (degree −1) is doubled. "Dilation" in
//! [`fmm_traits::kernel`] says why this suffices. A density is stored hatted for its own level; the M2M and L2L
//! matrices contain the factor between levels.
//!
//! # Affine fields
//!
//! Beside the density, a local carries the constant and the slope of its field: [`affine`].
//!
//! # The plane
//!
//! A kernel of the plane is a kernel that is constant along z. Boxes stay cubes, with points in one layer of them; the
//! points of the lattice lie in one layer too. All the rest is the same. Kernels with a logarithm have a [`gauge`].
//!
//! # Order
//!
//! Vectors are component-major: entry `component·n + point`, n = [`Lattice::len`], points in
//! the order of [`Lattice::coordinates`].
//!
//! # Reflections
//!
//! Kernels that are symmetric under reflections have operators in eight small blocks: [`symmetry`].

pub mod affine;
pub mod cache;
mod dense;
pub mod expansion;
pub mod gauge;
pub mod lattice;
mod matrix;
pub mod net;
pub mod operators;
mod solve;
pub mod spectra;
mod svd;
pub mod symmetry;

pub use affine::Affine;
pub use dense::Dense;
pub use expansion::EquivalentExpansion;
pub use lattice::{Fill, Lattice};
pub use matrix::{Matrix, View};
pub use operators::{Direction, OperatorSet, Operators};

use fmm_traits::{Error, Members};
use std::path::Path;
use std::sync::Arc;

/// A working precision of operators: f32 or f64. Its function builds them. It is compiled in this crate, and not again in
/// each crate that plans.
pub trait Scalar: fmm_traits::Real {
    /// One level of [`OperatorSet::of`].
    ///
    /// # Errors
    /// Errors of [`Operators::build`].
    fn operators(
        family: &Members,
        params: &[f64],
        side: f64,
        lattice: Lattice,
        disk: Option<&Path>,
    ) -> Result<Arc<Operators<Self>>, Error>;
}

macro_rules! scalar {
    ($type:ident) => {
        impl Scalar for $type {
            #[inline(never)]
            fn operators(
                family: &Members,
                params: &[f64],
                side: f64,
                lattice: Lattice,
                disk: Option<&Path>,
            ) -> Result<Arc<Operators<Self>>, Error> {
                cache::operators(family, params, side, lattice, disk)
            }
        }
    };
}
scalar!(f32);
scalar!(f64);

#[cfg(test)]
mod tests;
