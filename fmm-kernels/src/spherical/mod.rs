//! Spherical harmonics: the classic expansion of Laplace's equation, with real numbers only.
//!
//! A multipole of order p holds the p² moments M = Σ q R(y) of the charges about the centre of its box. Its field is
//! Σ M S(x). A local holds coefficients L of the field Σ L R(x). After Gumerov & Duraiswami (2008), §2.2–2.3.
//!
//! # Precision
//!
//! All orders work in f32 and in f64, for boxes of any side: every entry of the basis is at most 1 on the unit
//! sphere, and the entries of translations stay in the range of f32. In f32, orders above 14 gain no accuracy
//! (measured in docs/notes/spherical-errors.md). Tables are computed in f64 and rounded.
//!
//! | file | contents |
//! |---|---|
//! | [`basis`] | R and S by recursion |
//! | [`horner`] | fields of multipoles as polynomials |
//! | [`gradient`] | derivatives, as sparse matrices on coefficients |
//! | [`rotation`], [`coaxial`], [`rcr`] | translations in O(p³): rotate – coaxial – rotate back |
//! | [`direct`] | translations term by term, O(p⁴) |
//! | [`dense`] | translations as dense matrices |
//! | [`truncation`] | fewer degrees for pairs further apart |
//! | [`layout`] | charges and dipoles among the strengths of a source |
//! | [`sparse`] | dipoles and derivatives as sparse matrices on rows |
//! | [`shift`] | the geometry of a translation, and units |
//! | [`expansion`] | the operators of one box and one pair |

pub mod basis;
pub mod coaxial;
pub mod dense;
pub mod direct;
pub mod expansion;
pub mod gradient;
pub mod horner;
pub mod layout;
pub mod rcr;
pub mod rotation;
pub mod shift;
pub mod sparse;
pub mod truncation;

pub use expansion::{SphericalExpansion, SphericalOptions, Translation};
pub use truncation::Truncation;

/// Smallest order (monopoles).
pub const MIN_ORDER: usize = 1;
/// Largest order.
pub const MAX_ORDER: usize = 40;
