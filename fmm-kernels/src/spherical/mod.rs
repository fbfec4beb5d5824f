//! Spherical harmonics: the classic expansion of Laplace's equation, with real numbers only.
//!
//! A multipole of order p has the p² moments M = Σ q R(y) of the charges about the centre of its box, its field is
//! Σ M S(x); a local is the field Σ L R(x). After Gumerov & Duraiswami (2008), §2.2–2.3.
//!
//! | file | what |
//! |---|---|
//! | [`basis`] | R and S by recursion |
//! | [`gradient`] | derivatives, as sparse matrices on coefficients |
//! | [`rotation`], [`coaxial`], [`rcr`] | translations in O(p³): rotate – coaxial – rotate back |
//! | [`direct`] | the same term by term, O(p⁴) |
//! | [`truncation`] | fewer degrees for pairs further apart |
//! | [`shift`] | the geometry of a translation, and units |
//! | [`expansion`] | the operators of one box and one pair |
//! | [`accuracy`] | errors as measured |

pub mod accuracy;
pub mod basis;
pub mod coaxial;
pub mod direct;
pub mod expansion;
pub mod gradient;
pub mod rcr;
pub mod rotation;
pub mod shift;
pub mod truncation;

pub use expansion::{SphericalExpansion, SphericalOptions, Translation};
pub use truncation::Truncation;

/// Smallest order (monopoles).
pub const MIN_ORDER: usize = 1;
/// Largest order.
pub const MAX_ORDER: usize = 40;
