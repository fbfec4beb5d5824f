//! The plane: every phase of the method of Goude & Engblom (2012) on the device, for the kernels of [`adaptive2d`].
//!
//! `pyramid` builds the pyramid, `connect` its edge lists, and `stages` has the stages of a `plan`. The kernels are
//! `kernels/plane_*.cu`.

mod connect;
mod plan;
mod programs;
mod pyramid;
mod solver;
mod stages;

pub use connect::{PlaneLists, plane_connect};
pub use plan::PlanePlan;
pub(crate) use programs::{connect_program, pyramid_program};
pub use programs::{plane_p2p_program, plane_series_program};
pub use pyramid::{DevicePyramid, plane_build};
pub(crate) use pyramid::{LEAST_SCALE, points_of};
pub use solver::{PlaneCounts, PlanePlaced, PlaneSettings, PlaneSolver, plane_solver, plane_sums};
