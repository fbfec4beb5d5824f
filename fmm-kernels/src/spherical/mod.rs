//! Spherical harmonics: the classic expansion of Laplace's equation, with real numbers only.
//!
//! A multipole of order p has the p² moments M = Σ q R(y) of the charges about the centre of its box, its field is
//! Σ M S(x); a local is the field Σ L R(x). After Gumerov & Duraiswami (2008), §2.2–2.3.
//!
//! # Precision
//!
//! Every entry of the orthogonal basis is at most 1 for a point of the unit sphere, and the largest entry of a translation
//! is about 10²² at order 40 (10³⁸ is the limit of f32), so that all orders work in f32 as in f64, for boxes
//! of any side. What f32 cannot do is to profit from them: its errors stop falling at 7e-7 (potential and gradient),
//! at order 14, and stay there up to order 40. (Gumerov & Duraiswami report a loss of accuracy from p = 16 on in f32: their
//! entries carry factorials.) Tables are computed in f64 and rounded.
//!
//! | file | what |
//! |---|---|
//! | [`basis`] | R and S by recursion |
//! | [`horner`] | fields of multipoles as polynomials |
//! | [`gradient`] | derivatives, as sparse matrices on coefficients |
//! | [`rotation`], [`coaxial`], [`rcr`] | translations in O(p³): rotate – coaxial – rotate back |
//! | [`direct`] | the same term by term, O(p⁴) |
//! | [`dense`] | the same as matrices |
//! | [`truncation`] | fewer degrees for pairs further apart |
//! | [`layout`] | what sources carry, what targets want |
//! | [`sparse`] | what dipoles and derivatives do to a row, as matrices |
//! | [`shift`] | the geometry of a translation, and units |
//! | [`expansion`] | the operators of one box and one pair |
//! | [`tail`] | what a cut series leaves of one pair |
//! | [`accuracy`] | errors as measured |

pub mod accuracy;
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
pub mod tail;
pub mod truncation;

pub use expansion::{SphericalExpansion, SphericalOptions, Translation};
pub use truncation::Truncation;

/// Smallest order (monopoles).
pub const MIN_ORDER: usize = 1;
/// Largest order.
pub const MAX_ORDER: usize = 40;
