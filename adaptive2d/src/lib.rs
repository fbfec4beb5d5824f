//! The asymmetric adaptive fast multipole method in two dimensions (Goude & Engblom 2012).
//!
//! [`pyramid`]: median splits, four children of equal population, every leaf on the last level.
//! [`connect`](connect()): the θ-criterion turns the pyramid into the edge lists of the framework.
//! [`laurent`]: the operators of an edge, one pair of boxes at a time. Execution over whole lists lives in the
//! backends.

pub mod complex;
pub mod connect;
pub mod laurent;
pub mod norm;
mod partition;
mod points;
pub mod pyramid;
mod select;

pub use connect::{ConnectOptions, connect};
pub use laurent::{Analytic, Laurent, PlaneKernel};
pub use norm::Norm;
pub use pyramid::{PlanePoints, Pyramid, PyramidOptions};
