//! Green's functions, and the expansions that carry them.
//!
//! | family | strengths | outputs |
//! |---|---|---|
//! | [`Laplace`] | charge | potential, gradient, Hessian |
//! | [`LaplaceDipole`] | dipole vector | potential, gradient, Hessian |
//! | [`LaplaceMixed`] | charge, dipole vector | potential, gradient, Hessian |
//! | [`Yukawa`] | charge | potential, gradient, Hessian |
//! | [`Stokes`] | force vector | velocity, gradient, Hessian |
//! | [`StokesPressure`] | force vector | velocity, gradient, Hessian, pressure |
//! | [`Stresslet`] | force dipole, 9 entries | velocity, gradient, Hessian, pressure |
//! | [`Gravity`] | mass | potential, gradient, Hessian |
//! | [`Harmonic2d`] | complex pole | complex potential, gradient, Hessian |
//! | [`Laplace2d`] | charge | potential, gradient, Hessian |
//! | [`Laplace2dDipole`] | dipole vector | potential, gradient, Hessian |
//! | [`Laplace2dMixed`] | charge, dipole vector | potential, gradient, Hessian |

pub mod equivalent;
pub mod gravity;
pub mod laplace;
mod pairs;
pub mod plane;
pub mod spherical;
pub mod stokes;
pub mod yukawa;

pub use gravity::Gravity;
pub use laplace::{Laplace, LaplaceDipole, LaplaceMixed};
pub use plane::{Harmonic2d, Laplace2d, Laplace2dDipole, Laplace2dMixed};
pub use stokes::{Stokes, StokesPressure, Stresslet};
pub use yukawa::Yukawa;
